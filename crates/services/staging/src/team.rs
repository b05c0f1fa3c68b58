//! The processes that copy a staging's files: this one, and movers on other nodes.
//!
//! Movers are started only if there is enough work for them. A mover gets files only if it sees the
//! same directory outside the pool as this process. If a mover ends too early, or stops sending
//! reports, that is a failure in the report: the files that it hasn't reported don't count as
//! staged.

use crate::job::{Entry, Job};
use crate::part;
use crate::wire::{Begin, FromMover, MAX_FILES, Order, Proof, read_message, write_message};
use crate::{Report, Share};
use forebay_backing::join;
use forebay_media::count;
use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fixed cost of a file, counted as additional bytes.
const OVERHEAD: u64 = 64 << 10;
/// Minimum amount of work, per mover, for which movers are started. Bytes.
const WORTH: u64 = 32 << 20;
/// Time without a report after which a mover counts as dead. A mover reports four times a second.
const SILENCE: Duration = Duration::from_secs(20);
/// Maximum time in which a mover must have started, through a remote shell.
const STARTS: Duration = Duration::from_secs(30);

/// A mover that can be started.
pub struct Mover {
    /// The mover's node.
    pub node: u32,
    /// The node's name for messages.
    pub name: String,
    /// The command that starts the mover. Orders go to its standard input; reports come from its
    /// standard output.
    pub command: Command,
}

/// The movers of the other nodes that a staging may use.
#[derive(Default)]
pub struct Team {
    /// The node of this process.
    pub me: u32,
    /// Movers that haven't been started. A mover is used once.
    pub movers: Mutex<Vec<Mover>>,
}

/// A mover in progress.
struct Running {
    node: u32,
    name: String,
    child: Child,
    /// The mover's standard input. Dropping it makes the mover stop.
    input: Option<ChildStdin>,
    reports: Receiver<FromMover>,
    last_words: Arc<Mutex<String>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn weight(e: &Entry) -> u64 {
    e.bytes() + OVERHEAD
}

/// Distributes files: returns a list for each of `members`. Files whose bytes are on a member's
/// node go to that member. The rest is divided evenly, by bytes.
fn deal(
    files: Vec<Entry>,
    members: &[u32],
    home: impl Fn(&Entry) -> Option<u32>,
) -> Vec<Vec<Entry>> {
    let index: HashMap<u32, usize> = members.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let mut lists: Vec<Vec<Entry>> = members.iter().map(|_| Vec::new()).collect();
    let mut rest = Vec::new();
    for e in files {
        match home(&e).and_then(|n| index.get(&n)) {
            Some(&i) => lists[i].push(e),
            None => rest.push(e),
        }
    }
    // The largest files first, each to the member with the least work.
    rest.sort_by_key(|e| std::cmp::Reverse(weight(e)));
    let loads = lists.iter().map(|l| l.iter().map(weight).sum::<u64>());
    let loads = loads.enumerate().map(|(i, load)| (load, i));
    let mut heap: std::collections::BTreeSet<(u64, usize)> = loads.collect();
    for e in rest {
        if let Some((load, i)) = heap.pop_first() {
            heap.insert((load + weight(&e), i));
            lists[i].push(e);
        }
    }
    for list in &mut lists {
        list.sort_unstable_by(|a, b| a.below.cmp(&b.below));
    }
    lists
}

/// Returns the movers that have enough work to be worth starting.
fn chosen(
    team: &Team,
    files: &[Entry],
    home: impl Fn(&Entry) -> Option<u32>,
    into_pool: bool,
) -> Vec<Mover> {
    let mut movers = std::mem::take(&mut *lock(&team.movers));
    if into_pool {
        let all: u64 = files.iter().map(weight).sum();
        movers.truncate((all / WORTH).try_into().unwrap_or(usize::MAX));
        return movers;
    }
    let mut of_node: HashMap<u32, u64> = HashMap::new();
    let mut anywhere = 0;
    for e in files {
        match home(e) {
            Some(node) => *of_node.entry(node).or_default() += weight(e),
            None => anywhere += weight(e),
        }
    }
    let share = anywhere / (movers.len() as u64 + 1);
    movers.retain(|m| of_node.get(&m.node).copied().unwrap_or(0) + share >= WORTH);
    movers
}

/// Copies files, with movers if they are worth it.
pub(crate) fn share(job: &Job<'_>, team: &Team, files: Vec<Entry>) {
    let here_only = |e: &Entry| job.from.is_found_here_only(&job.source(&e.below));
    let (here, files): (Vec<Entry>, Vec<Entry>) = files.into_iter().partition(here_only);
    job.move_list(&here);
    let home = |e: &Entry| job.from.node_of(&e.meta);
    let into_pool = !job.from.is_pool();
    let movers = if job.progress.stopped() {
        Vec::new()
    } else {
        chosen(team, &files, home, into_pool)
    };
    let running = if movers.is_empty() {
        Vec::new()
    } else {
        start(job, movers, into_pool)
    };
    if running.is_empty() {
        return job.move_list(&files);
    }
    let members: Vec<u32> = std::iter::once(team.me)
        .chain(running.iter().map(|r| r.node))
        .collect();
    let mut lists = deal(files, &members, home).into_iter();
    let own = lists.next().unwrap_or_default();
    let before = job.ledger.with(|r| Counts(r.moved_files, r.moved_bytes));
    let shares: Vec<Share> = std::thread::scope(|scope| {
        let all: Vec<_> = running
            .into_iter()
            .zip(lists)
            .map(|(r, list)| scope.spawn(|| lead(job, r, list)))
            .collect();
        job.move_list(&own);
        all.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    job.ledger.with(|r| {
        let theirs = |f: fn(&Share) -> u64| shares.iter().map(f).sum::<u64>();
        r.nodes.push(Share {
            node: team.me,
            moved_files: r.moved_files - before.0 - theirs(|s| s.moved_files),
            moved_bytes: r.moved_bytes - before.1 - theirs(|s| s.moved_bytes),
        });
        r.nodes.extend(shares);
        r.nodes.sort_by_key(|s| s.node);
    });
}

/// Numbers of files and bytes copied.
struct Counts(u64, u64);

/// Starts movers in parallel. Returns those that are ready; adds a warning for each of the others.
fn start(job: &Job<'_>, movers: Vec<Mover>, into_pool: bool) -> Vec<Running> {
    let mut probe = None;
    let proof = if into_pool {
        let root = job.from.stat(&job.src, true).ok();
        root.map(Proof::Source)
    } else {
        let path = join(&job.dst, &part::name(b"/probe"));
        let made = job.to.create(&path, &path).is_ok();
        probe = made.then(|| path.clone());
        made.then_some(Proof::Target(path))
    };
    // The copying by this process will report the error.
    let Some(proof) = proof else {
        return Vec::new();
    };
    let began = Order::Begin(Begin {
        forebay: env!("CARGO_PKG_VERSION").into(),
        into_pool,
        src: absolute(&job.src, into_pool),
        dst: absolute(&job.dst, !into_pool),
        options: job.options.clone(),
        proof: match proof {
            Proof::Target(path) => Proof::Target(absolute(&path, true)),
            proof => proof,
        },
    });
    let results: Vec<Result<Running, String>> = std::thread::scope(|scope| {
        let began = &began;
        let all: Vec<_> = movers
            .into_iter()
            .map(|m| scope.spawn(move || Running::start(m, began)))
            .collect();
        let end = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|_| Err("a thread failed".into()))
        };
        all.into_iter().map(end).collect()
    });
    if let Some(probe) = probe {
        let _ = job.to.unlink(&probe);
    }
    let mut running = Vec::new();
    for result in results {
        match result {
            Ok(r) => running.push(r),
            Err(why) => job.ledger.warn(
                why,
                "this node takes no part in the staging; others do its share".into(),
            ),
        }
    }
    running
}

/// Returns a path outside the pool in absolute form, so that it is the same on any host. Paths in
/// the pool are returned unchanged.
fn absolute(path: &[u8], outside: bool) -> Vec<u8> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let as_path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    match std::path::absolute(as_path) {
        Ok(full) if outside => full.into_os_string().into_vec(),
        _ => path.to_vec(),
    }
}

impl Running {
    /// Starts a mover, and waits until it is ready.
    fn start(mut mover: Mover, begin: &Order) -> Result<Running, String> {
        let title = format!("node {} on {}", mover.node, mover.name);
        let mut child = mover
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A signal from the terminal should reach only this process, which ends its movers in
            // order.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("{title}: can't be reached: {e}"))?;
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let last_words = Arc::new(Mutex::new(String::new()));
        let (words, (sender, reports)) = (last_words.clone(), channel());
        let mut running = Running {
            node: mover.node,
            name: mover.name,
            child,
            input,
            reports,
            last_words,
        };
        let threads = output.map(|output| {
            spawn(move || follow(output, |what| sender.send(what).is_ok()))?;
            spawn(move || {
                let lines = BufReader::new(errors.into_iter().next()?).lines();
                for line in lines.map_while(Result::ok).filter(|l| !l.trim().is_empty()) {
                    let line = line.strip_prefix("forebay: ").unwrap_or(&line);
                    *lock(&words) = line.chars().take(300).collect();
                }
                Some(())
            })
        });
        if threads.flatten().is_none() {
            return Err(format!("{title}: no thread can be started for it"));
        }
        if let Some(input) = &mut running.input {
            // If the mover has ended, reading its reply fails below.
            let _ = write_message(input, begin);
        }
        match running.reports.recv_timeout(STARTS) {
            Ok(FromMover::Ready) => Ok(running),
            Ok(FromMover::Cannot(why)) => Err(format!("{title}: {why}")),
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{title}: it didn't answer within {} s",
                STARTS.as_secs()
            )),
            _ => Err(format!("{title}: {}", running.how_it_ended())),
        }
    }

    /// Returns the reason why the mover sends no more messages.
    fn how_it_ended(&mut self) -> String {
        drop(self.input.take());
        // The mover's output is closed, so it has ended or will soon.
        let until = std::time::Instant::now() + Duration::from_secs(2);
        let mut status = None;
        while status.is_none() && std::time::Instant::now() < until {
            status = self.child.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(5));
        }
        let words = lock(&self.last_words).clone();
        match status {
            // The last line that the mover printed is its error message.
            Some(s) if s.code().is_some_and(|c| c != 0) && !words.is_empty() => words,
            Some(status) => format!("the staging there ended too early ({status})"),
            None => "the staging there can't be reached any more".into(),
        }
    }
}

fn spawn(f: impl FnOnce() -> Option<()> + Send + 'static) -> Option<()> {
    std::thread::Builder::new()
        .name("mover".into())
        .spawn(f)
        .ok()
        .map(|_| ())
}

/// Passes a mover's messages to `pass`, until the mover ends or `pass` returns false.
fn follow(output: ChildStdout, mut pass: impl FnMut(FromMover) -> bool) -> Option<()> {
    let mut from = BufReader::new(output);
    while let Ok(Some(what)) = read_message(&mut from) {
        if !pass(what) {
            break;
        }
    }
    None
}

/// Sends a mover its files, and adds its reports to the job's. Returns the mover's share.
fn lead(job: &Job<'_>, mut r: Running, list: Vec<Entry>) -> Share {
    let mut share = Share {
        node: r.node,
        moved_files: 0,
        moved_bytes: 0,
    };
    let reported = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let mut input = r.input.take();
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            let Some(to) = &mut input else { return };
            for some in list.chunks(MAX_FILES) {
                if job.progress.stopped()
                    || write_message(to, &Order::Files(some.to_vec())).is_err()
                {
                    break;
                }
            }
            if !job.progress.stopped() {
                let _ = write_message(to, &Order::End);
            }
            // Closing the mover's input stops it.
            while !over.load(Acquire) && !job.progress.stopped() {
                std::thread::sleep(Duration::from_millis(10));
            }
            input = None;
        });
        let ended = loop {
            match r.reports.recv_timeout(SILENCE) {
                Ok(FromMover::Did {
                    files,
                    bytes,
                    report,
                }) => {
                    reported.fetch_add(files, Relaxed);
                    job.progress.files_done.fetch_add(files, Relaxed);
                    job.progress.bytes_done.fetch_add(bytes, Relaxed);
                    account(job, &mut share, report);
                }
                Ok(FromMover::Finished) => break Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let _ = r.child.kill();
                    break Err(format!("it sent nothing for {} s", SILENCE.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => break Err(r.how_it_ended()),
            }
        };
        over.store(true, Release);
        ended
    });
    let left = (list.len() as u64).saturating_sub(reported.load(Relaxed));
    match ended {
        Ok(()) if left == 0 => {}
        _ if job.progress.stopped() => job.ledger.with(|r| r.interrupted = true),
        ended => {
            let why = ended.err().unwrap_or_else(|| "it left files out".into());
            let missing = left.max(1);
            job.ledger.fail(
                format!("node {} on {}", r.node, r.name),
                format!(
                    "{why}; {missing} of its {} may be missing",
                    count(list.len() as u64, "file")
                ),
            );
            job.ledger.with(|r| r.failed += missing - 1);
        }
    }
    share
}

fn account(job: &Job<'_>, share: &mut Share, report: Report) {
    share.moved_files += report.moved_files;
    share.moved_bytes += report.moved_bytes;
    job.ledger.add(report);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_backing::Meta;

    fn file(name: &str, size: u64, ino: u64) -> Entry {
        let meta = Meta {
            dev: 0,
            ino,
            mode: libc::S_IFREG | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size,
            atime: 0,
            mtime: 0,
            ctime: 0,
        };
        Entry {
            below: name.into(),
            meta,
        }
    }

    #[test]
    fn members_get_equal_shares() {
        let sizes = [900, 10, 500, 400, 30, 20, 450, 460].map(|m: u64| m << 20);
        let files: Vec<Entry> = (0..)
            .zip(sizes)
            .map(|(i, s)| file(&format!("{i}"), s, i))
            .collect();
        let lists = deal(files.clone(), &[3, 0, 7], |_| None);
        let loads: Vec<u64> = lists.iter().map(|l| l.iter().map(weight).sum()).collect();
        assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), sizes.len());
        assert!(
            loads.iter().max().unwrap() - loads.iter().min().unwrap() < 100 << 20,
            "{loads:?}"
        );
        // Files whose bytes are on a node go to that node's mover, if it has one.
        let lists = deal(files, &[3, 0, 7], |e| Some(e.meta.ino as u32 % 4));
        assert!(lists[0].iter().filter(|e| e.meta.ino % 4 == 3).count() == 2);
        assert!(lists[1].iter().filter(|e| e.meta.ino % 4 == 0).count() == 2);
        assert!(lists[2].iter().all(|e| [1, 2].contains(&(e.meta.ino % 4))));
    }

    #[test]
    fn little_work_stays_with_one() {
        let team = || Team {
            me: 0,
            movers: Mutex::new(
                (1..4)
                    .map(|node| Mover {
                        node,
                        name: "x".into(),
                        command: Command::new("true"),
                    })
                    .collect(),
            ),
        };
        let nodes = |m: Vec<Mover>| m.iter().map(|m| m.node).collect::<Vec<_>>();
        let small = [file("a", 1 << 20, 1)];
        assert!(nodes(chosen(&team(), &small, |_| None, true)).is_empty());
        let some = [file("a", 40 << 20, 2), file("b", 30 << 20, 3)];
        assert_eq!(nodes(chosen(&team(), &some, |_| None, true)), [1, 2]);
        let home = |e: &Entry| Some(e.meta.ino as u32);
        assert_eq!(nodes(chosen(&team(), &some, home, false)), [2]);
    }
}
