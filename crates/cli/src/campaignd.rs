//! `forebay campaignd`: counts the usage of campaigns, warns before they end, and does what is due
//! at their end.
//!
//! A pass covers the campaigns of the user who runs it. With `--all-users`, root's process finds
//! out which users have campaigns, and starts each user's pass as a process of that user. So no
//! record and no path gives access to more than the user has anyway. Passes of different users run
//! concurrently. A pass may take long, since it moves data: until it ends, its user gets no other
//! pass.

use crate::campaign::is_used;
use crate::campaign_args::Campaignd;
use crate::fail::{Fail, code};
use crate::files::user_name;
use crate::lifetime::Span;
use crate::output::{json, print_notice};
use forebay_campaign::now;
use forebay_campaign::record::Campaign;
use forebay_campaign::registry::Registry;
use forebay_campaign::service::{self, Options};
use forebay_campaign::tiers::Tiers;
use forebay_flow::account;
use forebay_runtime::untrusted;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Default maximum age of a count of usage. Seconds.
const COUNT_EVERY: u64 = 600;
/// Maximum number of users' passes that run at once. Passes that take longer than [`LONG`] aren't
/// counted. Such passes move much data, or hang, and other users must not wait for them.
const MAX_CONCURRENT_PASSES: usize = 8;
const LONG: Duration = Duration::from_secs(600);
/// Maximum number of bytes that are read of a pass's standard output (its campaigns) and of its
/// messages: the user may make the pass print anything.
const MAX_OUTPUT_BYTES: u64 = 8 << 20;
const MAX_MESSAGE_BYTES: u64 = 1 << 20;

fn seconds(span: Span, name: &str) -> Result<u64, Fail> {
    match span {
        Span::Of(seconds) => Ok(seconds),
        Span::Never => Err(Fail::usage(format!("{name}: give a time"))),
    }
}

/// Runs `forebay campaignd`.
pub fn daemon(a: &Campaignd) -> Result<u8, Fail> {
    let every = Duration::from_secs(seconds(a.every, "--every")?);
    let usual = if a.once { 0 } else { COUNT_EVERY };
    let pass_limit = Duration::from_secs(seconds(a.pass_limit, "--pass-limit")?);
    let given = a.count_every.map(|span| seconds(span, "--count-every"));
    let count_every = given.transpose()?.unwrap_or(usual);
    let me = user_name(rustix::process::getuid().as_raw());
    let tiers = Tiers::read(&me).map_err(Fail::usage)?;
    if !a.all_users {
        return of_one_user(a, (&me, &tiers), every, count_every);
    }
    if !account::is_root() {
        return Err(Fail::usage(
            "--all-users: only root can work for other users",
        ));
    }
    of_all_users(a, &tiers, every, (count_every, pass_limit))
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
            "" => print_notice(what),
            name => print_notice(format!("campaign '{name}': {what}")),
        },
    };
    loop {
        let began = Instant::now();
        let (count, failures) = match service::pass(&registry, tiers, &options) {
            Ok(done) => done,
            // The registry's file system may become reachable again, so the daemon continues.
            Err(why) if !a.once => {
                print_notice(why);
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
                    "{n} {} in a pass over {count} {}; see above",
                    if n == 1 { "failure" } else { "failures" },
                    if count == 1 { "campaign" } else { "campaigns" },
                ))),
            };
        }
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

/// Writes the results of a pass in the forms that the options ask for.
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
    let written = untrusted::create(&beside, 0o644).and_then(|mut f| f.write_all(text.as_bytes()));
    if let Err(e) = written.and_then(|()| std::fs::rename(&beside, file)) {
        print_notice(format!("{}: {e}", file.display()));
    }
}

// ---- all users ----

/// The result of a user's pass: its campaigns, if it printed them, and whether it succeeded.
struct Passed {
    user: String,
    campaigns: Option<Vec<Campaign>>,
    is_well: bool,
}

/// Queues and runs the passes of all users.
struct Passes {
    /// Maximum age of a count of usage. Seconds.
    count_every: u64,
    /// Maximum duration of a pass.
    limit: Duration,
    ended: (Sender<Passed>, Receiver<Passed>),
    waiting: VecDeque<String>,
    /// Users whose passes run, with the times at which these began.
    running: BTreeMap<String, Instant>,
    /// Campaigns that each user's last pass has printed.
    known: BTreeMap<String, Vec<Campaign>>,
    failed: BTreeSet<String>,
}

fn of_all_users(
    a: &Campaignd,
    tiers: &Tiers,
    every: Duration,
    (count_every, limit): (u64, Duration),
) -> Result<u8, Fail> {
    let mut passes = Passes {
        count_every,
        limit,
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
            Err(why) => print_notice(why),
        }
        passes.go_on((!a.once).then_some(until));
        let all = || passes.known.values().flatten().cloned().collect();
        report(a, all, passes.failed.len())?;
        if a.once {
            let failed: Vec<&str> = passes.failed.iter().map(String::as_str).collect();
            return if failed.is_empty() {
                Ok(code::OK)
            } else {
                Err(Fail::failed(format!(
                    "something failed for {}; see above",
                    failed.join(", ")
                )))
            };
        }
    }
}

impl Passes {
    /// Queues passes for these users, except those whose pass is queued or runs already.
    fn begin(&mut self, names: Vec<String>) {
        self.known.retain(|name, _| names.contains(name));
        self.failed.retain(|name| names.contains(name));
        for name in names {
            if !self.running.contains_key(&name) && !self.waiting.contains(&name) {
                self.waiting.push_back(name);
            }
        }
    }

    /// Runs queued passes until `until`; if None, until all have ended.
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
            // Wakes up after `LONG` at the latest: a pass may have become long, so that another can
            // start.
            let left = until.map_or(LONG, |u| u.saturating_duration_since(Instant::now()));
            let Ok(passed) = self.ended.1.recv_timeout(left) else {
                match until {
                    None if !self.waiting.is_empty() => continue,
                    None => self.running.keys().for_each(|user| {
                        print_notice(format!("{user}: the pass takes long; it goes on by itself"));
                    }),
                    Some(_) => {}
                }
                return;
            };
            self.running.remove(&passed.user);
            if passed.is_well {
                self.failed.remove(&passed.user)
            } else {
                self.failed.insert(passed.user.clone())
            };
            if let Some(campaigns) = passed.campaigns {
                self.known.insert(passed.user, campaigns);
            }
        }
    }

    fn is_free(&self) -> bool {
        let short = |began: &&Instant| began.elapsed() < LONG;
        self.running.values().filter(short).count() < MAX_CONCURRENT_PASSES
    }

    fn start(&mut self, user: String) {
        self.running.insert(user.clone(), Instant::now());
        let (tell, count_every, limit) = (self.ended.0.clone(), self.count_every, self.limit);
        std::thread::spawn(move || {
            let done = pass_of(&user, count_every, limit);
            let (campaigns, is_well) = done.unwrap_or_else(|why| {
                print_notice(format!("{user}: {why}"));
                (None, false)
            });
            // Fails only if the receiver is gone, and then nobody needs the result.
            let _ = tell.send(Passed {
                user,
                campaigns,
                is_well,
            });
        });
    }
}

/// The result of a pass: its campaigns, if it printed them, and whether it succeeded.
type Outcome = Result<(Option<Vec<Campaign>>, bool), String>;

/// Runs a pass as a process of `user`, for at most `limit`, and forwards its messages.
fn pass_of(user: &str, count_every: u64, limit: Duration) -> Outcome {
    let account = account::lookup(user)?;
    let forebay = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    let mut command = account.command(forebay);
    command.args(["campaignd", "--once", "--json"]);
    if count_every > 0 {
        command.arg(format!("--count-every={count_every}s"));
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    let child = command.spawn().map_err(|e| format!("its pass: {e}"))?;
    let group = Pid::from_child(&child);
    let (tell, ended) = channel();
    let name = user.to_owned();
    // This thread isn't joined: a process that has left the pass's group may keep the pipes open.
    std::thread::spawn(move || tell.send(follow(&name, child)));
    ended.recv_timeout(limit).unwrap_or_else(|_| {
        let _ = kill_process_group(group, Signal::KILL);
        Err(format!(
            "its pass took longer than {} s (--pass-limit), and was ended; the next one carries on",
            limit.as_secs()
        ))
    })
}

/// Reads the output of a user's pass until it ends.
fn follow(user: &str, mut child: Child) -> Outcome {
    let messages = child.stderr.take().map(|from| pass_on(user, from));
    let text = output_of(&mut child);
    let ended = child.wait().map_err(|e| format!("its pass: {e}"))?;
    if let Some(messages) = messages {
        let _ = messages.join();
    }
    let mut campaigns: Option<Vec<Campaign>> = match text?.trim() {
        "" => None,
        text => Some(serde_json::from_str(text).map_err(|e| format!("its campaigns: {e}"))?),
    };
    for campaign in campaigns.iter_mut().flatten() {
        // The owner is the user of the pass, whatever the record says.
        campaign.owner = user.to_owned();
    }
    Ok((campaigns, ended.success()))
}

fn output_of(child: &mut Child) -> Result<String, String> {
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        let read = (&mut out).take(MAX_OUTPUT_BYTES).read_to_string(&mut text);
        read.map_err(|e| format!("its campaigns: {e}"))?;
        // Reads and drops the rest, so that the pass doesn't wait for a reader.
        let _ = std::io::copy(&mut out, &mut std::io::sink());
    }
    Ok(text)
}

/// Starts a thread that prints the messages of a user's pass, each preceded by the user's name.
fn pass_on(user: &str, mut from: ChildStderr) -> std::thread::JoinHandle<()> {
    let user = user.to_owned();
    std::thread::spawn(move || {
        let messages = BufReader::new((&mut from).take(MAX_MESSAGE_BYTES));
        for line in messages.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_prefix("forebay: ").unwrap_or(&line);
            let clean: String = line
                .chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect();
            if !clean.is_empty() {
                print_notice(format!("{user}: {clean}"));
            }
        }
        let _ = std::io::copy(&mut from, &mut std::io::sink());
    })
}
