//! Ends pools when their time limit has passed (`--ttl`, `--idle`) or the batch job has ended.
//!
//! The keeper of a pool, and each daemon of a pool of several nodes, has a thread that records when
//! the pool was last used and checks whether a limit is reached. If one is, the thread calls
//! `forebay down`, as a person would. `forebay down` refuses while the pool is used on any node;
//! then the thread tries again. Of several daemons, that of node 0 acts first; the others act
//! later, in case that daemon is dead.

use crate::output::{age, print_notice};
use crate::{background, programs};
use forebay_client::{Lifetime, Pool, PoolConfig, boot_clock};
use forebay_media::{MediumKind, MediumSpec, parse_time};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum time to live, and maximum idle limit. Seconds.
const MAX_LIFETIME_SECONDS: u64 = 10 * 365 * 86_400;
/// Bounds of the pause between two checks of the limits. The pause is a tenth of the time to the
/// nearer limit.
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(30);
/// A warning is written when this much time is left, or a tenth of the time limit if that is less.
/// Seconds.
const WARN: u64 = 600;
/// Minimum delay of other nodes after node 0, before they remove the pool. Seconds.
const OTHERS_LATER: u64 = 60;
/// How long `scontrol` may take to report a job's remaining time.
const SCONTROL: Duration = Duration::from_secs(2);

/// A time as the user writes it: `2h`, `1d12h`, `90s`, `300`, `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    Never,
    /// Seconds.
    Of(u64),
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        match text {
            "none" => Ok(Span::Never),
            _ => parse_time(text)
                .map(Span::Of)
                .map_err(|why| why + ", or none"),
        }
    }
}

/// Returns the lifetime of a new pool with these media (if there are none: memory). Without the
/// user's choice, a pool ends with the batch job, unless its media outlive the job.
pub fn of_new(ttl: Option<Span>, idle: Option<Span>, media: &[MediumSpec]) -> Lifetime {
    let idle = match idle {
        Some(Span::Of(seconds)) => Some(seconds),
        _ => None,
    };
    let (ttl, why) = match ttl {
        Some(Span::Of(seconds)) => (Some(seconds), "--ttl".into()),
        Some(Span::Never) => (None, String::new()),
        None if is_reopenable(media) => (None, String::new()),
        None => match job_left() {
            Some((left, job)) => (Some(left), format!("the end of job {job}")),
            None => (None, String::new()),
        },
    };
    Lifetime::new(ttl, idle, &why)
}

/// Whether a pool of these media can be reopened after a reboot of its host.
pub fn is_reopenable(media: &[MediumSpec]) -> bool {
    !media.is_empty() && media.iter().all(|m| m.kind != MediumKind::Memory)
}

/// Returns the remaining time of this process's Slurm job, in seconds, and the job's number.
fn job_left() -> Option<(u64, String)> {
    let variable = |v: &str| std::env::var(v).ok().filter(|t| !t.is_empty());
    let job = variable("SLURM_JOB_ID")?;
    if !job.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let end = variable("SLURM_JOB_END_TIME").and_then(|t| t.trim().parse::<u64>().ok());
    let left = match end {
        Some(end) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
            end.checked_sub(now)
        }
        None => scontrol(&job),
    };
    left.map(|left| (left.clamp(1, MAX_LIFETIME_SECONDS), job))
}

/// Returns a job's remaining time from `scontrol`, its limit minus its run time, in seconds. None
/// if no answer comes within [`SCONTROL`].
fn scontrol(job: &str) -> Option<u64> {
    let mut child = Command::new("scontrol")
        .args(["-o", "show", "job", job])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + SCONTROL;
    // The output is smaller than a pipe's buffer, so the child can end before the output is read.
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
        }
    };
    let mut text = [0; 32 << 10];
    let out = child.stdout.take().filter(|_| ended)?;
    let n = rustix::io::read(&out, &mut text).ok()?;
    left_in(&String::from_utf8_lossy(&text[..n]))
}

/// Parses `RunTime=00:10:00 TimeLimit=1-00:00:00` in a line about a job. Returns the difference in
/// seconds.
fn left_in(line: &str) -> Option<u64> {
    let field = |name: &str| line.split_whitespace().find_map(|w| w.strip_prefix(name));
    let time = |text: &str| -> Option<u64> {
        let (days, rest) = text.split_once('-').unwrap_or(("0", text));
        let parts: Option<Vec<u64>> = rest.split(':').map(|p| p.parse().ok()).collect();
        let parts = parts.filter(|p| (1..=3).contains(&p.len()))?;
        let rest = parts
            .iter()
            .try_fold(0u64, |all, p| all.checked_mul(60)?.checked_add(*p))?;
        days.parse::<u64>()
            .ok()?
            .checked_mul(86_400)?
            .checked_add(rest)
    };
    time(field("TimeLimit=")?)?.checked_sub(time(field("RunTime=")?)?)
}

/// Returns when the node's pool was last used, on [`boot_clock`]; 0 if that wasn't checked yet.
pub fn last_used(pool: &Pool) -> u64 {
    pool.store().control().header().used.load(Acquire)
}

/// Describes the remaining time in words, for `status`; None without limits.
pub fn words(pool: &Pool) -> Option<String> {
    let lifetime = &pool.config().lifetime;
    let mut parts = Vec::new();
    match (lifetime.left(), lifetime.ttl) {
        (Some(0), _) => parts.push(format!(
            "its time is over ({}): it is removed as soon as nobody uses it",
            lifetime.why
        )),
        (Some(left), _) => parts.push(format!("is removed in {} ({})", age(left), lifetime.why)),
        (None, Some(_)) => parts.push("its time to live belongs to another boot".into()),
        (None, None) => {}
    }
    if let (Some(idle), Some(left)) = (lifetime.idle, lifetime.idle_left(last_used(pool))) {
        parts.push(format!(
            "is removed when nobody uses it for {} ({} left)",
            age(idle),
            age(left)
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Returns the lifetime as JSON, for `status --json`.
pub fn as_json(pool: &Pool) -> serde_json::Value {
    let lifetime = &pool.config().lifetime;
    serde_json::json!({
        "ttl": lifetime.ttl, "ttl_left": lifetime.left(), "why": lifetime.why,
        "idle": lifetime.idle, "idle_left": lifetime.idle_left(last_used(pool)),
    })
}

/// Warns a user of the pool that it will soon be removed.
pub fn warn(pool: &Pool) {
    let lifetime = &pool.config().lifetime;
    if let (Some(left), Some(ttl)) = (lifetime.left(), lifetime.ttl)
        && left <= WARN.min(ttl / 10)
    {
        print_notice(format!(
            "warning: the pool '{}' is removed in {} ({}), or as soon as nobody uses it then",
            pool.config().name,
            age(left),
            lifetime.why
        ));
    }
}

/// Starts the thread that watches a pool's lifetime, if that is limited. Called by the pool's
/// keeper.
pub fn watch(pool: &Arc<Pool>) {
    if !pool.config().lifetime.any() {
        return;
    }
    let pool = pool.clone();
    let thread = std::thread::Builder::new().name("fb-lifetime".into());
    let watcher = Watcher {
        foreign: None,
        warned: u64::MAX,
        reported: String::new(),
        pool,
    };
    if let Err(e) = thread.spawn(move || watcher.run()) {
        print_notice(format!(
            "keeper: nobody watches over the pool's lifetime: {e}"
        ));
    }
}

struct Watcher {
    pool: Arc<Pool>,
    /// Number of attachments by other processes at the last check.
    foreign: Option<u32>,
    /// Remaining time at the last check; a warning is given once for each bound. Seconds.
    warned: u64,
    /// The last reported reason why the pool couldn't be removed.
    reported: String,
}

impl Watcher {
    fn run(mut self) {
        let lifetime = self.pool.config().lifetime.clone();
        let node = self.pool.config().member.map_or(0, |m| m.node);
        // The delay differs between nodes, so that two of them don't remove the pool at once.
        let later = match node {
            0 => 0,
            n => OTHERS_LATER + u64::from(n % 64),
        };
        let longest = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        loop {
            self.note_use();
            let left = lifetime.left();
            let idle = lifetime.idle_left(last_used(&self.pool));
            self.warn(&lifetime, left);
            let over = |limit: Option<u64>, since: u64| limit == Some(0) && since >= later;
            if over(left, lifetime.over_for()) {
                self.remove(None, &lifetime.why);
            } else if let Some(limit) = lifetime.idle
                && over(idle, self.unused().saturating_sub(limit))
            {
                let why = format!("nobody has used it for {}", age(limit));
                self.remove(Some(limit), &why);
            }
            let near = longest(left).min(longest(idle)).min(longest(lifetime.idle));
            let next = Duration::from_secs(near.min(3600)) / 10;
            std::thread::sleep(next.clamp(SOONEST, LATEST));
        }
    }

    fn unused(&self) -> u64 {
        match last_used(&self.pool) {
            0 => 0,
            used => boot_clock().saturating_sub(used),
        }
    }

    /// Records that the pool is in use, if it is or was since the last check.
    fn note_use(&mut self) {
        let store = self.pool.store();
        let foreign = store.attachment.attachments_of_others(store.control());
        let in_use = self.foreign != Some(foreign)
            || !self.pool.attached().is_empty()
            || !programs::running(&self.pool).is_empty();
        self.foreign = Some(foreign);
        if in_use {
            let header = self.pool.store().control().header();
            header.used.store(boot_clock().max(1), Release);
        }
    }

    fn warn(&mut self, lifetime: &Lifetime, left: Option<u64>) {
        let (Some(left), Some(ttl)) = (left, lifetime.ttl) else {
            return;
        };
        let due = [WARN.min(ttl / 10), WARN.min(ttl / 10) / 10]
            .into_iter()
            .any(|at| left <= at && self.warned > at);
        if due && left > 0 {
            print_notice(format!(
                "keeper: the pool '{}' is removed in {} ({}), or as soon as nobody uses it then; stage out what you need",
                self.pool.config().name,
                age(left),
                lifetime.why
            ));
        }
        self.warned = self.warned.min(left);
    }

    /// Removes the pool everywhere, unless it is in use. Removing the pool ends this process.
    fn remove(&mut self, unused: Option<u64>, why: &str) {
        let config: &PoolConfig = self.pool.config();
        let mut command = background::command();
        command.args(["down", "--pool", &config.name]);
        if let Some(limit) = unused {
            command.args(["--unused", &limit.to_string()]);
        }
        let home = forebay_client::home();
        command.env("FOREBAY_HOME", std::path::absolute(&home).unwrap_or(home));
        print_notice(format!(
            "keeper: removing the pool '{}': {why}",
            config.name
        ));
        let done = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
        let failed = match done {
            Ok(done) if done.status.success() => return,
            Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
            Err(e) => e.to_string(),
        };
        // The pool was used again, or a host can't be reached: the caller tries again later.
        if failed != self.reported {
            print_notice(format!("keeper: not removed: {failed}"));
        }
        self.reported = failed;
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [
            ("90s", 90),
            ("30m", 1800),
            ("2h", 7200),
            ("1d12h", 129_600),
            ("300", 300),
        ] {
            assert_eq!(text.parse(), Ok(Span::Of(seconds)), "{text}");
        }
        assert_eq!("none".parse(), Ok(Span::Never));
        for bad in [
            "",
            "0",
            "0s",
            "h",
            "2x",
            "1h30",
            "-1s",
            "9999999999d",
            "2 h",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_scontrol_says_of_a_job() {
        let line = "JobId=7 JobName=x RunTime=00:10:00 TimeLimit=1-00:00:00 TimeMin=N/A";
        assert_eq!(left_in(line), Some(86_400 - 600));
        assert_eq!(
            left_in("RunTime=02:00 TimeLimit=01:00:00"),
            Some(3600 - 120)
        );
        assert_eq!(left_in("RunTime=02:00:00 TimeLimit=01:00:00"), None);
        for bad in [
            "",
            "RunTime=00:10:00 TimeLimit=UNLIMITED",
            "TimeLimit=01:00:00",
            "RunTime=:: TimeLimit=1",
        ] {
            assert_eq!(left_in(bad), None, "{bad}");
        }
    }
}
