//! `forebay run`: a pool for one program.
//!
//! The order of things decides what a failure costs. Nothing is made before the arguments, the
//! program, sources and destinations have been checked; the pool is removed only when every result
//! has been staged out and verified, or was never made.

use crate::args::Run;
use crate::fail::{Fail, code};
use crate::output::{quoted, say, seconds};
use crate::report::Watching;
use crate::signals::Relay;
use crate::stage::{How, Way, room, summary, tell_troubles, transfer};
use crate::{down, exec, foresight, found, nodes, origin, paths, stats, up};
use forebay_client::Pool;
use forebay_media::format_size;
use forebay_posix::Fs;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long processes that the program has left behind may go on.
const LINGER: Duration = Duration::from_secs(2);

/// The report on a run: a line for each step, as soon as it is done.
struct Account {
    quiet: bool,
}

impl Account {
    fn note(&self, line: impl std::fmt::Display) {
        if !self.quiet {
            say(line);
        }
    }
}

pub fn run(name: Option<&str>, a: &Run) -> Result<u8, Fail> {
    let relay = Relay::install();
    let ins: Vec<(PathBuf, OsString)> = a
        .stage_in
        .iter()
        .map(|t| paths::in_pair(t))
        .collect::<Result<_, _>>()?;
    let outs: Vec<(OsString, PathBuf)> = a
        .stage_out
        .iter()
        .map(|t| paths::out_pair(t))
        .collect::<Result<_, _>>()?;
    exec::library()?;
    foresight::check(a, &ins, &outs)?;
    let name = name.map_or_else(|| format!("run-{}", std::process::id()), str::to_owned);
    let account = Account { quiet: a.quiet };

    let began = Instant::now();
    let (pool, what) = match nodes::wanted(&a.nodes)? {
        None => {
            nodes::warn_of_limits(&a.nodes);
            let (pool, why) = up::create(&name, &a.media)?;
            let why = why.map(|w| format!(", {w}")).unwrap_or_default();
            let what = format!("{}{why}", up::describe(&pool.config().media));
            (pool, what)
        }
        Some(wanted) => {
            let (plan, all) = nodes::start(&name, &a.media, &a.nodes, wanted)?;
            // The host on which a pool is started need not have a node of it, but its users' hosts
            // must.
            let pool = Pool::open(&name).inspect_err(|_| down::remove_plan(&plan))?;
            (pool, nodes::describe(&plan, &all))
        }
    };
    let pool = Arc::new(pool);
    account.note(format!(
        "pool '{name}' with {what}: {}",
        seconds(began.elapsed().as_secs_f64())
    ));

    if let Err(fail) = bring(&pool, &ins, (a.threads, a.media.force), &relay, &account) {
        remove(pool, &name);
        return Err(fail);
    }

    let watching = a.report.as_ref().map(|page| Watching::begin(&name, page));
    let mut watching = match watching.transpose() {
        Ok(watching) => watching,
        Err(fail) => {
            remove(pool, &name);
            return Err(fail);
        }
    };
    let began = Instant::now();
    let status = match execute(&pool, &a.command, &relay) {
        Ok(status) => status,
        Err(fail) => {
            if let Some(watching) = watching {
                watching.abandon();
            }
            remove(pool, &name);
            return Err(fail);
        }
    };
    account.note(format!(
        "ran {}: {}, {}",
        a.command[0].to_string_lossy(),
        seconds(began.elapsed().as_secs_f64()),
        describe(status)
    ));
    if let Some(watching) = &mut watching {
        watching.program_ended();
    }
    let all = found::open_all(&name);
    let left = found::users(&all);
    if !left.is_empty() && !a.keep && !found::wait_for_users(&all, LINGER) {
        say(format!(
            "warning: ended what the program had left running: {}",
            found::named(&left)
        ));
        found::end_users(&all);
    }
    drop(all);
    let written = origin::write_back(&name, &pool);
    if let Some(watching) = watching {
        let words: Vec<String> = a
            .command
            .iter()
            .map(|w| quoted(&w.to_string_lossy()))
            .collect();
        watching.end(&pool, words.join(" "));
    }

    let (missing, is_unmade) = fetch(&pool, &outs, a.threads, status, &relay, &account);
    if let Some(origin) = origin::status_of(&pool).filter(|_| written.is_ok()) {
        account.note(format!(
            "all changes are at the origin: {} file(s), {} read from it, {} file(s), {} written to it",
            origin.fetched_files,
            format_size(origin.fetched_bytes),
            origin.written_files,
            format_size(origin.written_bytes)
        ));
    }
    account.note(where_it_lay(&pool));
    match stats::of_all(&name, false) {
        Ok(counted) => {
            let lines = stats::summary(&stats::sum(&counted));
            lines.into_iter().for_each(|line| account.note(line));
        }
        Err(e) => say(e.message),
    }
    let exit = exit_code(status);
    if is_unmade || !missing.is_empty() {
        for words in &missing {
            say(format!(
                "the rest is still in the pool; when the cause is mended, or to another directory, \
                 fetch it with: forebay stage {words} --pool {}",
                quoted(&name)
            ));
        }
        return Err(Fail::new(
            code::STAGE_OUT,
            format!(
                "stage-out is incomplete, so the pool '{name}' stays (the program: {}); \
                 when you have everything, remove it with: forebay down --pool {}",
                describe(status),
                quoted(&name)
            ),
        ));
    }
    if let Err(fail) = written {
        let stays = format!(
            "the pool '{name}' stays (the program: {})",
            describe(status)
        );
        return Err(Fail::new(
            code::STAGE_OUT,
            format!("{}\n{stays}", fail.message),
        ));
    }
    if a.keep {
        say(format!(
            "the pool '{name}' stays; remove it with: forebay down --pool {}",
            quoted(&name)
        ));
    } else {
        remove(pool, &name);
    }
    Ok(exit)
}

/// Stages in. On failure the program isn't run.
fn bring(
    pool: &Arc<Pool>,
    pairs: &[(PathBuf, OsString)],
    (threads, force): (usize, bool),
    relay: &Relay,
    account: &Account,
) -> Result<(), Fail> {
    let how = How {
        threads,
        ..How::default()
    };
    for (src, dst) in pairs {
        let way = Way::In(src, dst);
        let failed = |what: String| {
            let end = "nothing was run, and the pool is removed";
            Fail::new(code::STAGE_IN, format!("stage-in failed: {what}; {end}"))
        };
        let remedy = "make the pool larger with --media, or insist with --force";
        let room = room(pool, &way, remedy.into()).filter(|_| !force);
        let report = transfer(pool, &way, &how, None, room, &|| relay.stopped())
            .map_err(|e| failed(e.to_string()))?;
        tell_troubles(&report);
        account.note(format!("staged {}: {}", way.words(), summary(&report)));
        if !report.complete() {
            let first = report.failures.first();
            return Err(failed(first.map_or("interrupted".into(), |f| {
                format!("{}: {}", f.path, f.what)
            })));
        }
    }
    if relay.stopped() {
        return Err(Fail::new(
            code::STAGE_IN,
            "interrupted; nothing was run, and the pool is removed",
        ));
    }
    Ok(())
}

/// Runs the program to its end, passing signals on to it.
fn execute(pool: &Arc<Pool>, command: &[OsString], relay: &Relay) -> Result<ExitStatus, Fail> {
    let mut prepared = exec::prepare(pool, command)?;
    relay.unblock_in(&mut prepared);
    let mut child = prepared
        .spawn()
        .map_err(|e| exec::cannot_start(&command[0], &e))?;
    relay.pass_to(Some(child.id()));
    // A signal may have come since the last check.
    if relay.stopped() {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        );
    }
    // Waits without reaping, so that no signal can go to another process with the same id.
    loop {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let id = WaitId::Pid(rustix::process::Pid::from_child(&child));
        match waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    relay.pass_to(None);
    child
        .wait()
        .map_err(|e| Fail::failed(format!("can't find out how the program ended: {e}")))
}

/// Stages out. Returns the incomplete transfers, as arguments of `forebay stage`, and whether the
/// program hasn't made something that it should have.
fn fetch(
    pool: &Arc<Pool>,
    pairs: &[(OsString, PathBuf)],
    threads: usize,
    status: ExitStatus,
    relay: &Relay,
    account: &Account,
) -> (Vec<String>, bool) {
    let (mut missing, mut is_unmade) = (Vec::new(), false);
    let how = How {
        threads,
        ..How::default()
    };
    for (src, dst) in pairs {
        let inside = paths::in_pool(src, pool);
        let there = Fs::new(pool.clone()).stat(&inside, true);
        if !status.success() && there == Err(rustix::io::Errno::NOENT) {
            let src = src.to_string_lossy();
            account.note(format!(
                "nothing staged out of {src}: the program failed without making it"
            ));
            continue;
        }
        if there == Err(rustix::io::Errno::NOENT) {
            let (config, path) = (pool.config(), String::from_utf8_lossy(&inside));
            say(format!(
                "{}: the program ended well, but hasn't made {}{path}; see what there is with: \
                 forebay ls -R --pool {} /",
                src.to_string_lossy(),
                config.mount,
                quoted(&config.name)
            ));
            is_unmade = true;
            continue;
        }
        let way = Way::Out(src, dst);
        // The pool may end with the job: transferring what fits is better than nothing.
        match transfer(pool, &way, &how, None, None, &|| relay.stopped()) {
            Ok(report) => {
                tell_troubles(&report);
                account.note(format!("staged {}: {}", way.words(), summary(&report)));
                if !report.complete() {
                    missing.push(way.words());
                }
            }
            Err(e) => {
                say(e);
                missing.push(way.words());
            }
        }
    }
    (missing, is_unmade)
}

/// The bytes that each medium held.
fn where_it_lay(pool: &Pool) -> String {
    let media: Vec<String> = pool
        .usage()
        .iter()
        .map(|u| {
            format!(
                "{} of {} in {}",
                format_size(u.used),
                format_size(u.capacity),
                u.spec
            )
        })
        .collect();
    let records = pool.store().record_bytes().map_or("?".into(), format_size);
    format!(
        "the data lay: {}; records and small files {records}",
        media.join(", ")
    )
}

fn remove(pool: Arc<Pool>, name: &str) {
    drop(pool);
    down::end_and_remove(found::open_all(name), name);
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The exit code, as in shells.
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.saturating_add(signal as u8),
        (None, None) => code::FAILED,
    }
}
