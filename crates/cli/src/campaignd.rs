//! `forebay campaignd`: counts what campaigns use, warns, and does what is due at their end.
//!
//! A pass is about the campaigns of the user who runs it. With `--all-users`, a process of root only
//! finds out who has campaigns; the pass of a user is a process of that user, so no record and no
//! path leads further than its user could go anyway. Passes of users run beside each other. A pass
//! may take long, since it moves data: until it ends, that user gets no other.

use crate::campaign::is_used;
use crate::campaign_args::Campaignd;
use crate::fail::{Fail, code};
use crate::files::user_name;
use crate::lifetime::Span;
use crate::output::{json, say};
use forebay_campaign::now;
use forebay_campaign::record::Campaign;
use forebay_campaign::registry::Registry;
use forebay_campaign::service::{self, Options};
use forebay_campaign::tiers::Tiers;
use forebay_flow::account;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How old a count of usage may be, unless it is said. Seconds.
const COUNT_EVERY: u64 = 600;
/// Passes of users that run at once, beside those that take longer than [`LONG`]: these move much
/// data, or hang, and nobody else is to wait for them.
const AT_ONCE: usize = 8;
const LONG: Duration = Duration::from_secs(600);
/// Most bytes that are read of what a pass says of its campaigns, and to people. Its user may make
/// it say anything.
const MOST_OUTPUT: u64 = 8 << 20;
const MOST_SAID: u64 = 1 << 20;

fn seconds(span: Span, name: &str) -> Result<u64, Fail> {
    match span {
        Span::Of(seconds) => Ok(seconds),
        Span::Never => Err(Fail::usage(format!("{name}: give a time"))),
    }
}

/// `forebay campaignd`.
pub fn daemon(a: &Campaignd) -> Result<u8, Fail> {
    let every = Duration::from_secs(seconds(a.every, "--every")?);
    let usual = if a.once { 0 } else { COUNT_EVERY };
    let given = a.count_every.map(|span| seconds(span, "--count-every"));
    let count_every = given.transpose()?.unwrap_or(usual);
    let me = user_name(rustix::process::getuid().as_raw());
    let tiers = Tiers::read(&me).map_err(Fail::usage)?;
    match a.all_users {
        true if !account::is_root() => Err(Fail::usage(
            "--all-users: only root can work for other users",
        )),
        true => of_all_users(a, &tiers, every, count_every),
        false => of_one_user(a, (&me, &tiers), every, count_every),
    }
}

fn of_one_user(
    a: &Campaignd,
    (me, tiers): (&str, &Tiers),
    every: Duration,
    count_every: u64,
) -> Result<u8, Fail> {
    let registry = Registry::open(&tiers.registry, me).map_err(Fail::failed)?;
    let options = Options {
        count_every,
        is_used: &is_used,
        tell: &|name, what| match name {
            "" => say(what),
            name => say(format!("campaign '{name}': {what}")),
        },
    };
    loop {
        let began = Instant::now();
        let (count, failures) = match service::pass(&registry, tiers, &options) {
            Ok(done) => done,
            // A registry on a file system that is out of reach comes back.
            Err(why) if !a.once => {
                say(why);
                (0, 1)
            }
            Err(why) => return Err(Fail::failed(why)),
        };
        let all = || registry.list().map(|found| found.0).unwrap_or_default();
        report(a, all, failures)?;
        if a.once {
            return match failures {
                0 => Ok(code::OK),
                n => Err(Fail::failed(format!(
                    "{n} of {count} campaigns: something failed; see above"
                ))),
            };
        }
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

/// Writes what is known after a pass, as far as it is asked for.
fn report(a: &Campaignd, all: impl FnOnce() -> Vec<Campaign>, failures: usize) -> Result<(), Fail> {
    if !a.json && a.metrics.is_none() {
        return Ok(());
    }
    let all = all();
    if let Some(file) = &a.metrics {
        write_metrics(file, &service::metrics(&all, failures, now()));
    }
    if a.json { json(&all) } else { Ok(()) }
}

fn write_metrics(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    let written = std::fs::write(&beside, text);
    if let Err(e) = written.and_then(|()| std::fs::rename(&beside, file)) {
        say(format!("{}: {e}", file.display()));
    }
}

// ---- all users ----

/// What the pass of a user came to: the campaigns, if it got so far, and whether all went well.
struct Passed {
    user: String,
    campaigns: Option<Vec<Campaign>>,
    is_well: bool,
}

/// The passes of all users.
struct Passes {
    count_every: u64,
    ended: (Sender<Passed>, Receiver<Passed>),
    waiting: VecDeque<String>,
    /// Since when.
    running: BTreeMap<String, Instant>,
    /// What the last pass of each user has said.
    known: BTreeMap<String, Vec<Campaign>>,
    failed: BTreeSet<String>,
}

fn of_all_users(
    a: &Campaignd,
    tiers: &Tiers,
    every: Duration,
    count_every: u64,
) -> Result<u8, Fail> {
    let mut passes = Passes {
        count_every,
        ended: channel(),
        waiting: VecDeque::new(),
        running: BTreeMap::new(),
        known: BTreeMap::new(),
        failed: BTreeSet::new(),
    };
    loop {
        let until = Instant::now() + every;
        match tiers.everyone.names(account::homes) {
            Ok(names) => passes.begin(names),
            Err(why) if a.once => return Err(Fail::failed(why)),
            Err(why) => say(why),
        }
        passes.go_on((!a.once).then_some(until));
        let all = || passes.known.values().flatten().cloned().collect();
        report(a, all, passes.failed.len())?;
        if a.once {
            let failed: Vec<&str> = passes.failed.iter().map(String::as_str).collect();
            return match failed.is_empty() {
                true => Ok(code::OK),
                false => Err(Fail::failed(format!(
                    "something failed for {}; see above",
                    failed.join(", ")
                ))),
            };
        }
    }
}

impl Passes {
    /// These users are to have a pass.
    fn begin(&mut self, names: Vec<String>) {
        self.known.retain(|name, _| names.contains(name));
        self.failed.retain(|name| names.contains(name));
        for name in names {
            if !self.running.contains_key(&name) && !self.waiting.contains(&name) {
                self.waiting.push_back(name);
            }
        }
    }

    /// Lets passes run until then, or until all have ended.
    fn go_on(&mut self, until: Option<Instant>) {
        loop {
            while self.is_free()
                && let Some(user) = self.waiting.pop_front()
            {
                self.start(user);
            }
            if until.is_none() && self.running.is_empty() {
                return;
            }
            // Once in a while, one has become long, and another may start.
            let left = until.map_or(LONG, |u| u.saturating_duration_since(Instant::now()));
            let Ok(passed) = self.ended.1.recv_timeout(left) else {
                match until {
                    None if !self.waiting.is_empty() => continue,
                    None => self.running.keys().for_each(|user| {
                        say(format!("{user}: the pass takes long; it goes on by itself"));
                    }),
                    Some(_) => {}
                }
                return;
            };
            self.running.remove(&passed.user);
            match passed.is_well {
                true => self.failed.remove(&passed.user),
                false => self.failed.insert(passed.user.clone()),
            };
            if let Some(campaigns) = passed.campaigns {
                self.known.insert(passed.user, campaigns);
            }
        }
    }

    fn is_free(&self) -> bool {
        let short = |began: &&Instant| began.elapsed() < LONG;
        self.running.values().filter(short).count() < AT_ONCE
    }

    fn start(&mut self, user: String) {
        self.running.insert(user.clone(), Instant::now());
        let (tell, count_every) = (self.ended.0.clone(), self.count_every);
        std::thread::spawn(move || {
            let done = pass_of(&user, count_every);
            let (campaigns, is_well) = done.unwrap_or_else(|why| {
                say(format!("{user}: {why}"));
                (None, false)
            });
            // Without a receiver, nobody waits for it any more.
            let _ = tell.send(Passed {
                user,
                campaigns,
                is_well,
            });
        });
    }
}

/// Runs a pass as a user, and passes on what it says to people.
fn pass_of(user: &str, count_every: u64) -> Result<(Option<Vec<Campaign>>, bool), String> {
    let account = account::lookup(user)?;
    let forebay = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    let mut command = account.command(forebay);
    command.args(["campaignd", "--once", "--json"]);
    if count_every > 0 {
        command.arg(format!("--count-every={count_every}s"));
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("its pass: {e}"))?;
    let said = child.stderr.take().map(|from| pass_on(user, from));
    let text = output_of(&mut child);
    let ended = child.wait().map_err(|e| format!("its pass: {e}"))?;
    if let Some(said) = said {
        let _ = said.join();
    }
    let mut campaigns: Option<Vec<Campaign>> = match text?.trim() {
        "" => None,
        text => Some(serde_json::from_str(text).map_err(|e| format!("its campaigns: {e}"))?),
    };
    for campaign in campaigns.iter_mut().flatten() {
        // Whatever the user's record says.
        campaign.owner = user.to_owned();
    }
    Ok((campaigns, ended.success()))
}

fn output_of(child: &mut Child) -> Result<String, String> {
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        let read = (&mut out).take(MOST_OUTPUT).read_to_string(&mut text);
        read.map_err(|e| format!("its campaigns: {e}"))?;
        // The rest, so that the pass doesn't wait for a reader.
        let _ = std::io::copy(&mut out, &mut std::io::sink());
    }
    Ok(text)
}

/// Says what a user's pass says, with the user's name before it.
fn pass_on(user: &str, mut from: ChildStderr) -> std::thread::JoinHandle<()> {
    let user = user.to_owned();
    std::thread::spawn(move || {
        let said = BufReader::new((&mut from).take(MOST_SAID));
        for line in said.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_prefix("forebay: ").unwrap_or(&line);
            let clean: String = line
                .chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect();
            if !clean.is_empty() {
                say(format!("{user}: {clean}"));
            }
        }
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    })
}
