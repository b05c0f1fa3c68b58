//! A pass over all campaigns, which counts usage, warns owners, and carries out the actions that
//! are due.
//!
//! Any number of processes, on any hosts that share the registry, may make passes at the same time.
//! One of them works on a campaign, and the others skip it. If a process dies during a pass, the
//! next pass finds the actions that are still due.

use crate::area::Area;
use crate::policy::{Due, due};
use crate::record::{AtEnd, Campaign, PoolOf, State};
use crate::registry::{Held, Registry};
use crate::tiers::Tiers;
use crate::{Result, moves, now};
use forebay_media::{count as format_count, format_size};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum run time of the program that sends a message.
const MAIL: Duration = Duration::from_secs(30);
const MAIL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Options of a pass.
pub struct Options<'a> {
    /// Maximum age of a campaign's usage, before it is counted again. Seconds.
    pub count_every: u64,
    /// Whether a pool still uses a campaign's data. Err: this host can't find out.
    pub is_used: &'a dyn Fn(&PoolOf) -> Result<bool>,
    /// Called for each action that succeeded or failed, with the campaign's name and a message.
    pub tell: &'a dyn Fn(&str, &str),
}

/// Makes a pass. Returns the number of campaigns, and the number of failures.
///
/// # Errors
/// The registry can't be read.
pub fn pass(registry: &Registry, tiers: &Tiers, options: &Options<'_>) -> Result<(usize, usize)> {
    let (all, bad) = registry.list()?;
    let mut failures = bad.len();
    for why in bad {
        (options.tell)("", &why);
    }
    for campaign in &all {
        // Another process works on the campaign, or has removed it.
        let Ok(mut held) = registry.hold(&campaign.name, Duration::ZERO) else {
            continue;
        };
        if let Err(why) = one(&mut held, tiers, options)
            .and_then(|is_gone| if is_gone { moves::remove(held) } else { Ok(()) })
        {
            failures += 1;
            (options.tell)(&campaign.name, &why);
        }
    }
    Ok((all.len(), failures))
}

/// Carries out the action that is due for a campaign. Returns whether the campaign has to be
/// removed.
fn one(held: &mut Held, tiers: &Tiers, options: &Options<'_>) -> Result<bool> {
    let tell = |c: &Campaign, what: &str| (options.tell)(&c.name, what);
    let at = now();
    count(held, tiers, options, at)?;
    let what = due(&held.campaign, &tiers.warn, at);
    if matches!(what, Due::CarryOn | Due::End | Due::Remove)
        && let Some(pool) = held.campaign.pool.clone()
    {
        // A pool on a host that can't be reached ends by itself at the campaign's end (--ttl). So
        // after the grace period it no longer uses the data.
        let is_late = at >= held.campaign.ends.saturating_add(held.campaign.grace);
        match (options.is_used)(&pool) {
            Ok(false) => {}
            Err(_) if is_late => {}
            _ => {
                let why = format!("waits for the pool '{}' on {}", pool.name, pool.host);
                held.campaign.note(&why);
                held.save()?;
                tell(&held.campaign, &why);
                return Ok(false);
            }
        }
        held.campaign.pool = None;
        held.save()?;
    }
    match what {
        Due::Nothing => {}
        Due::CarryOn => {
            moves::carry_on(held)?;
            tell(&held.campaign, "what had begun is finished");
        }
        Due::Warn(before) => {
            let c = &held.campaign;
            let (name, left) = (&c.name, words(c.left(at)));
            let text = format!(
                "The campaign '{name}' ends in {left}. Then its data at {} are {}.\n\
                 To keep it longer: forebay campaign extend {name} 7d\n",
                c.place,
                at_end(c)
            );
            let subject = format!("The campaign '{name}' ends in {left}");
            tell(c, &format!("ends in {left}"));
            mail(tiers, c, &subject, &text)?;
            held.campaign.warned = Some((held.campaign.ends, before));
            held.campaign.note(format!("warned: ends in {left}"));
            held.save()?;
        }
        Due::End => end(held, tiers, options)?,
        Due::Remove => {
            tell(&held.campaign, "the grace period is over: removed");
            return Ok(true);
        }
    }
    tell_of_end(held, tiers)?;
    Ok(false)
}

fn end(held: &mut Held, tiers: &Tiers, options: &Options<'_>) -> Result<()> {
    let (name, end) = (held.campaign.name.clone(), held.campaign.at_end.clone());
    let fate = at_end(&held.campaign);
    // Saved with the first step of ending the campaign. The process that carries out the last step
    // sends the notification.
    held.campaign.is_untold = true;
    match &end {
        AtEnd::Archive => {
            let tier = tiers.archive_tier()?.to_owned();
            moves::to_tier(held, tiers, &tier, State::Archived)?;
        }
        AtEnd::Move(tier) => {
            // After the move, the data stay on that tier: no further action follows.
            held.campaign.at_end = AtEnd::Keep;
            held.campaign.warned = Some((held.campaign.ends, 0));
            moves::to_tier(held, tiers, tier, State::Active)?;
        }
        AtEnd::Delete => moves::expire(held)?,
        AtEnd::Keep => {
            held.campaign.warned = Some((held.campaign.ends, 0));
            held.campaign.note("has ended; the data stay");
            held.save()?;
        }
    }
    (options.tell)(&name, &format!("has ended: the data are {fate}"));
    Ok(())
}

/// Notifies the owner of a campaign that has ended, if that is still to be done.
fn tell_of_end(held: &mut Held, tiers: &Tiers) -> Result<()> {
    let c = &held.campaign;
    if !c.is_untold || c.moving.is_some() {
        return Ok(());
    }
    let name = &c.name;
    let (fate, back) = match c.state {
        State::Archived => ("archived".into(), true),
        State::Expired => (at_end(c), true),
        State::Active => (format!("on the tier {}", c.tier), false),
    };
    let mut text = format!(
        "The campaign '{name}' has ended. Its data are {fate}.\nTheir place is {}.\n",
        c.place
    );
    if back {
        text += &format!("To get them back: forebay campaign restore {name}\n");
    }
    mail(tiers, c, &format!("The campaign '{name}' has ended"), &text)?;
    held.campaign.is_untold = false;
    held.save()
}

/// Counts a campaign's usage, if the last count is too old. Notifies its owner once if the quota is
/// exceeded.
fn count(held: &mut Held, tiers: &Tiers, options: &Options<'_>, at: u64) -> Result<()> {
    let c = &held.campaign;
    let is_recent = c
        .usage
        .is_some_and(|u| at < u.at.saturating_add(options.count_every));
    if c.state != State::Active || c.moving.is_some() || is_recent {
        return Ok(());
    }
    measure(held)?;
    let c = &held.campaign;
    match c.excess() {
        Some(excess) if !c.is_over => {
            let name = &c.name;
            let text = format!(
                "The campaign '{name}' has {excess} at {}.\nRemove some, or ask for more.\n",
                c.place
            );
            (options.tell)(name, &format!("more than its quota: {excess}"));
            mail(
                tiers,
                c,
                &format!("The campaign '{name}' exceeds its quota"),
                &text,
            )?;
            held.campaign.is_over = true;
            held.campaign.note(format!("more than its quota: {excess}"));
        }
        None if c.is_over => held.campaign.is_over = false,
        _ => {}
    }
    held.save()
}

/// Counts a campaign's usage. Doesn't save the record.
///
/// # Errors
/// The campaign's data can't be read.
pub fn measure(held: &mut Held) -> Result<()> {
    held.campaign.usage = Some(Area::open(&held.campaign.place)?.measure()?);
    Ok(())
}

/// Describes the action on the data at the campaign's end, such as `archived`.
fn at_end(c: &Campaign) -> String {
    match &c.at_end {
        AtEnd::Archive => "archived".into(),
        AtEnd::Move(tier) => format!("moved to {tier}"),
        AtEnd::Delete => format!("out of the way, and removed {} later", words(c.grace)),
        AtEnd::Keep => "kept where they are".into(),
    }
}

/// Formats seconds in words: `2d 3h`.
pub fn words(seconds: u64) -> String {
    let parts = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut rest = seconds;
    let mut all = Vec::new();
    for (unit, name) in parts {
        if rest >= unit && all.len() < 2 {
            all.push(format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if all.is_empty() {
        "0s".into()
    } else {
        all.join(" ")
    }
}

/// Sends a message to a campaign's owner, if the site has configured a program for this.
fn mail(tiers: &Tiers, c: &Campaign, subject: &str, text: &str) -> Result<()> {
    let words = tiers
        .mail
        .iter()
        .map(|w| w.replace("{user}", &c.owner).replace("{subject}", subject));
    let words: Vec<String> = words.collect();
    let Some((program, arguments)) = words.split_first() else {
        return Ok(());
    };
    let failed = |why: &dyn std::fmt::Display| format!("no message was sent by {program}: {why}");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failed(&e))?;
    if let Some(mut input) = child.stdin.take() {
        // The text fits into a pipe. Whether the program has read the text doesn't matter: its exit
        // status tells whether it sent the message.
        let _ = input.write_all(text.as_bytes());
    }
    let until = Instant::now() + MAIL;
    loop {
        match child.try_wait().map_err(|e| failed(&e))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(failed(&status)),
            None if Instant::now() < until => std::thread::sleep(MAIL_POLL_INTERVAL),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&"it took too long"));
            }
        }
    }
}

/// Returns the state of all campaigns in the format of Prometheus.
#[must_use]
pub fn metrics(all: &[Campaign], failures: usize, at: u64) -> String {
    let mut text = String::new();
    let mut family = |name: &str, help: &str, value: &dyn Fn(&Campaign) -> Option<u64>| {
        text += &format!("# HELP forebay_campaign_{name} {help}\n");
        text += &format!("# TYPE forebay_campaign_{name} gauge\n");
        for c in all {
            if let Some(value) = value(c) {
                text += &format!(
                    "forebay_campaign_{name}{{campaign=\"{}\",owner=\"{}\",tier=\"{}\"}} {value}\n",
                    label(&c.name),
                    label(&c.owner),
                    label(&c.tier)
                );
            }
        }
    };
    family("bytes", "Bytes at the campaign's place.", &|c| {
        c.usage.map(|u| u.bytes)
    });
    family("files", "Files, directories and links there.", &|c| {
        c.usage.map(|u| u.files)
    });
    family("quota_bytes", "Maximum number of bytes.", &|c| c.bytes);
    family("quota_files", "Maximum number of files.", &|c| c.files);
    family("seconds_left", "Seconds until the campaign ends.", &|c| {
        (c.state == State::Active).then(|| c.left(at))
    });
    text += "# HELP forebay_campaign_failures Failures of the last pass.\n";
    text += "# TYPE forebay_campaign_failures gauge\n";
    text + &format!("forebay_campaign_failures {failures}\n")
}

/// Escapes the value of a label for Prometheus.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Describes a campaign's quota: `100.0 TiB, 10000 files`.
pub fn quota_in_words(c: &Campaign) -> String {
    let bytes = c.bytes.map(format_size);
    let files = c.files.map(|most| format_count(most, "file"));
    let both: Vec<String> = [bytes, files].into_iter().flatten().collect();
    if both.is_empty() {
        "without limits".into()
    } else {
        both.join(", ")
    }
}

/// Describes a campaign's usage and quota: `3.0 GiB of 100.0 TiB, 12 of 10000 files`.
pub fn usage_in_words(c: &Campaign) -> String {
    let Some(usage) = c.usage else {
        return match (c.bytes, c.files) {
            (None, None) => "not counted yet".into(),
            _ => format!("not counted yet, of {}", quota_in_words(c)),
        };
    };
    let bytes = match c.bytes {
        Some(most) => format!("{} of {}", format_size(usage.bytes), format_size(most)),
        None => format_size(usage.bytes),
    };
    match c.files {
        Some(most) => format!("{bytes}, {} of {}", usage.files, format_count(most, "file")),
        None => format!("{bytes}, {}", format_count(usage.files, "file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_words() {
        assert_eq!(words(0), "0s");
        assert_eq!(words(90_061), "1d 1h");
        assert_eq!(words(61), "1m 1s");
        assert_eq!(words(86_400 * 7), "7d");
    }

    #[test]
    fn metrics_of_one() {
        let mut c = moves::tests::campaign("/x");
        (c.ends, c.bytes) = (100, Some(5));
        let text = metrics(&[c], 2, 40);
        let of = "{campaign=\"c\",owner=\"me\",tier=\"fast\"}";
        assert!(text.contains(&format!("forebay_campaign_quota_bytes{of} 5\n")));
        assert!(text.contains(&format!("forebay_campaign_seconds_left{of} 60\n")));
        assert!(text.ends_with("forebay_campaign_failures 2\n"));
        assert!(!text.contains("forebay_campaign_bytes{"));
    }
}
