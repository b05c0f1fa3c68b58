//! `forebay run`: a pool for one program.
//!
//! The order of steps decides what a failure costs. Nothing is created before the arguments, the
//! program, sources and destinations have been checked. The pool is removed only when every result
//! has been staged out and verified, or was never made.

use crate::args::Run;
use crate::fail::{Fail, code};
use crate::output::{count, note, print_notice, quoted, seconds};
use crate::report::Watching;
use crate::signals::Relay;
use crate::stage::{How, Way, room, summary, tell_troubles, transfer};
use crate::{couriers, down, exec, foresight, found, nodes, origin, paths, programs, stats, up};
use forebay_client::Pool;
use forebay_media::format_size;
use forebay_posix::Fs;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long processes that the program has left running may continue.
const LINGER: Duration = Duration::from_secs(2);

/// Sources and destinations of staging in and out.
struct Pairs {
    ins: Vec<(PathBuf, OsString)>,
    outs: Vec<(OsString, PathBuf)>,
}

/// How the program ended, and how long it ran.
struct Ran {
    status: ExitStatus,
    took: Duration,
    watching: Option<Watching>,
}

/// The state of the results when the program has ended.
struct Saved {
    /// The incomplete transfers, as arguments of `forebay stage`.
    missing: Vec<String>,
    /// Whether a path to stage out is missing although the program ended well.
    is_unmade: bool,
    /// Whether the origin has all changes.
    written: Result<(), Fail>,
}

pub fn run(name: Option<&str>, a: &Run) -> Result<u8, Fail> {
    let relay = Relay::install();
    let pairs = checked(a)?;
    let name = name.map_or_else(|| format!("run-{}", std::process::id()), str::to_owned);
    let pool = Arc::new(start(&name, a)?);
    let brought = bring(&pool, &pairs.ins, (a.threads, a.media.force), &relay);
    let ran = match brought.and_then(|()| run_program(&pool, &name, a, &relay)) {
        Ok(ran) => ran,
        Err(fail) => {
            remove(pool, &name);
            return Err(fail);
        }
    };
    let lost = couriers::settle(&found::open_all(&name));
    for sentence in &lost.unreported {
        print_notice(sentence);
    }
    end_left_behind(&name, a.keep);
    let (status, took) = (ran.status, ran.took);
    let saved = save(&pool, &name, a, ran, &pairs, &relay);
    sum_up(&pool, &name, took, saved.written.is_ok());
    judge(saved, &name, status)?;
    if a.keep {
        print_notice(format!(
            "the pool '{name}' stays; remove it with: forebay down --pool {}",
            quoted(&name)
        ));
    } else {
        remove(pool, &name);
    }
    if status.success() && lost.any {
        print_notice("bytes of a program are lost, as said above; what it has made is incomplete");
        return Ok(code::LOST);
    }
    Ok(exit_code(status))
}

/// Checks all that can be checked before anything is created.
fn checked(a: &Run) -> Result<Pairs, Fail> {
    let ins = a.stage_in.iter().map(|t| paths::in_pair(t));
    let outs = a.stage_out.iter().map(|t| paths::out_pair(t));
    let pairs = Pairs {
        ins: ins.collect::<Result<_, _>>()?,
        outs: outs.collect::<Result<_, _>>()?,
    };
    exec::library()?;
    foresight::check(a, &pairs.ins, &pairs.outs)?;
    Ok(pairs)
}

/// Starts the pool.
fn start(name: &str, a: &Run) -> Result<Pool, Fail> {
    let began = Instant::now();
    let (pool, what) = match nodes::wanted(&a.nodes)? {
        None => {
            nodes::warn_of_limits(&a.nodes);
            let (pool, why) = up::create(name, &a.media)?;
            let why = why.map(|w| format!(", {w}")).unwrap_or_default();
            let what = format!("{}{why}", up::describe(&pool.config().media));
            (pool, what)
        }
        Some(wanted) => {
            let (plan, all) = nodes::start(name, &a.media, &a.nodes, wanted)?;
            // This host may start a pool without having a node of it, but can use the pool only
            // with one.
            let pool = Pool::open(name).inspect_err(|_| down::remove_plan(&plan))?;
            (pool, nodes::describe(&plan, &all))
        }
    };
    note(format!(
        "pool '{name}' with {what}: {}",
        seconds(began.elapsed().as_secs_f64())
    ));
    Ok(pool)
}

/// Runs the program. Watches it if there is to be a report.
fn run_program(pool: &Arc<Pool>, name: &str, a: &Run, relay: &Relay) -> Result<Ran, Fail> {
    let watching = a.report.as_ref().map(|page| Watching::begin(name, page));
    let mut watching = watching.transpose()?;
    let began = Instant::now();
    let status = match execute(pool, &a.command, relay) {
        Ok(status) => status,
        Err(fail) => {
            if let Some(watching) = watching {
                watching.abandon();
            }
            return Err(fail);
        }
    };
    let took = began.elapsed();
    note(format!(
        "ran {}: {}, {}",
        a.command[0].to_string_lossy(),
        seconds(took.as_secs_f64()),
        describe(status)
    ));
    if let Some(watching) = &mut watching {
        watching.program_ended();
    }
    Ok(Ran {
        status,
        took,
        watching,
    })
}

/// Ends processes that the program has left running, unless the pool stays (`stay`).
fn end_left_behind(name: &str, stay: bool) {
    let all = found::open_all(name);
    let left = found::users(&all);
    if !left.is_empty() && !stay && !found::wait_for_users(&all, LINGER) {
        print_notice(format!(
            "warning: ended what the program had left running: {}",
            found::named(&left)
        ));
        found::end_users(&all);
    }
}

/// Writes back changes to the origin, ends the report, and stages out.
fn save(pool: &Arc<Pool>, name: &str, a: &Run, ran: Ran, pairs: &Pairs, relay: &Relay) -> Saved {
    // The daemon of this host's node may have died while the program ran.
    let reached = found::reaching(pool.clone());
    let written = match &reached {
        Ok(pool) => origin::write_back(name, pool),
        Err(_) => Ok(()),
    };
    if let Some(watching) = ran.watching {
        let words = a.command.iter().map(|w| quoted(&w.to_string_lossy()));
        let words: Vec<String> = words.collect();
        watching.end(pool, words.join(" "));
    }
    let (missing, is_unmade) = match reached {
        Ok(pool) => fetch(&pool, &pairs.outs, a.threads, ran.status, relay),
        Err(fail) => {
            if !pairs.outs.is_empty() {
                print_notice(fail.message);
            }
            let ways = pairs.outs.iter().map(|(src, dst)| Way::Out(src, dst));
            let missing = ways.map(|way| way.words()).collect();
            return Saved {
                missing,
                is_unmade: false,
                written: origin::write_back(name, pool),
            };
        }
    };
    Saved {
        missing,
        is_unmade,
        written,
    }
}

/// Prints summaries: changes at the origin, bytes per medium, the program's operations.
fn sum_up(pool: &Pool, name: &str, took: Duration, is_written: bool) {
    if let Some(origin) = origin::status_of(pool).filter(|_| is_written) {
        note(format!(
            "all changes are at the origin: {}, {} read from it, {}, {} written to it",
            count(origin.fetched_files, "file"),
            format_size(origin.fetched_bytes),
            count(origin.written_files, "file"),
            format_size(origin.written_bytes)
        ));
    }
    note(where_it_lay(pool));
    match stats::of_all(name, false) {
        Ok(counted) => {
            let lines = stats::summary(&stats::sum(&counted), Some(took));
            lines.into_iter().for_each(note);
        }
        Err(e) => print_notice(e.message),
    }
}

/// Fails if results or changes aren't saved yet: the pool is then not removed.
fn judge(saved: Saved, name: &str, status: ExitStatus) -> Result<(), Fail> {
    if saved.is_unmade || !saved.missing.is_empty() {
        for words in &saved.missing {
            print_notice(format!(
                "the rest is still in the pool; when the cause is mended, or to another directory, \
                 fetch it with: forebay stage {words} --pool {}",
                quoted(name)
            ));
        }
        return Err(Fail::new(
            code::STAGE_OUT,
            format!(
                "stage-out is incomplete, so the pool '{name}' stays (the program: {}); \
                 when you have everything, remove it with: forebay down --pool {}",
                describe(status),
                quoted(name)
            ),
        ));
    }
    saved.written.map_err(|fail| {
        let stays = format!(
            "the pool '{name}' stays (the program: {})",
            describe(status)
        );
        Fail::new(code::STAGE_OUT, format!("{}\n{stays}", fail.message))
    })
}

/// Stages in. If the stage-in fails, the program isn't run.
fn bring(
    pool: &Arc<Pool>,
    pairs: &[(PathBuf, OsString)],
    (threads, force): (usize, bool),
    relay: &Relay,
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
        note(format!("staged {}: {}", way.words(), summary(&report)));
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

/// Runs the program to its end, forwarding signals to it.
fn execute(pool: &Arc<Pool>, command: &[OsString], relay: &Relay) -> Result<ExitStatus, Fail> {
    let mut prepared = exec::prepare(pool, command)?;
    relay.unblock_in(&mut prepared);
    let mut child = prepared
        .spawn()
        .map_err(|e| exec::cannot_start(&command[0], &e))?;
    relay.pass_to(Some(child.id()));
    programs::begin(pool, child.id());
    // Handles a signal that came after the last check, before the program's process id was known.
    if relay.stopped() {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        );
    }
    // Waits without reaping, so that the process id isn't reused while signals are passed to it.
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

/// Stages out. Returns the incomplete transfers, as arguments of `forebay stage`, and whether a
/// path is missing although the program ended well.
fn fetch(
    pool: &Arc<Pool>,
    pairs: &[(OsString, PathBuf)],
    threads: usize,
    status: ExitStatus,
    relay: &Relay,
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
            note(format!(
                "nothing staged out of {src}: the program failed without making it"
            ));
            continue;
        }
        if there == Err(rustix::io::Errno::NOENT) {
            let (config, path) = (pool.config(), String::from_utf8_lossy(&inside));
            print_notice(format!(
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
        // No check that all of it fits: the pool may end with the job, so a part is better than
        // nothing.
        match transfer(pool, &way, &how, None, None, &|| relay.stopped()) {
            Ok(report) => {
                tell_troubles(&report);
                note(format!("staged {}: {}", way.words(), summary(&report)));
                if !report.complete() {
                    missing.push(way.words());
                }
            }
            Err(e) => {
                print_notice(e);
                missing.push(way.words());
            }
        }
    }
    (missing, is_unmade)
}

/// Lists the bytes that each medium holds.
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
    let records = pool.store().files.used().map_or("?".into(), format_size);
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

/// Returns the exit code of the program, or 128 plus the number of its signal, as shells do.
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.saturating_add(signal as u8),
        (None, None) => code::FAILED,
    }
}
