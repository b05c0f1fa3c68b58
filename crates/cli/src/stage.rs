//! Staging for `forebay stage` and `forebay run`, with progress and a summary. The side outside the
//! pool is a path, or a bucket (`s3://BUCKET/PREFIX`).

use crate::fail::Fail;
use crate::found::lost_its_daemon;
use crate::output::{count, is_quiet, print_notice, quoted, seconds};
use crate::{nodes, paths};
use forebay_backing::{
    Address, BucketStore, DirectoryStore, PoolStore, SlowStore, THREADS, explain, trimmed,
};
use forebay_client::Pool;
use forebay_media::format_size;
use forebay_posix::Fs;
use forebay_staging::{
    Names, Options, Progress, Report, Room, Selection, StageError, Team, conclude_salvage,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Minimum number of threads that stage from or to a directory. With one per core, a file system
/// whose operations take 1 ms was idle most of the time.
const LEAST: usize = 8;

/// Maximum number of failures that are listed one by one.
const MAX_LISTED_FAILURES: usize = 10;

/// The source and destination of a staging.
pub enum Way<'a> {
    In(&'a Path, &'a OsStr),
    Out(&'a OsStr, &'a Path),
}

impl Way<'_> {
    /// Returns the path or bucket outside the pool.
    pub fn outside(&self) -> &Path {
        match self {
            Way::In(src, _) => src,
            Way::Out(_, dst) => dst,
        }
    }

    /// Returns the path in the pool, as the user wrote it.
    fn inside(&self) -> &OsStr {
        match self {
            Way::In(_, dst) => dst,
            Way::Out(src, _) => src,
        }
    }

    /// Returns the arguments of `forebay stage` for this transfer: `in ./case /case`.
    pub fn words(&self) -> String {
        match self {
            Way::In(src, dst) => {
                format!(
                    "in {} {}",
                    quoted(&src.to_string_lossy()),
                    quoted(&dst.to_string_lossy())
                )
            }
            Way::Out(src, dst) => {
                format!(
                    "out {} {}",
                    quoted(&src.to_string_lossy()),
                    quoted(&dst.to_string_lossy())
                )
            }
        }
    }
}

/// The user's options for a staging.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// Number of threads that copy; 0: chosen by the number of cores.
    pub threads: usize,
    /// Compare contents instead of times.
    pub checksum: bool,
    pub selection: Selection,
    /// Only report what would be copied; write nothing.
    pub dry_run: bool,
}

/// Stages all files, or only those in `only`, and shows progress. Calls `stop` repeatedly; staging
/// ends when `stop` returns true.
pub fn transfer(
    pool: &Arc<Pool>,
    way: &Way<'_>,
    how: &How,
    only: Option<Names>,
    room: Option<Room>,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Report, StageError> {
    let (store, path) = store_of(way.outside(), pool)?;
    let (least, team) = if store.is_object_store() {
        // Movers on other nodes don't have this user's credentials, so this node copies everything.
        (THREADS, Team::default())
    } else {
        (LEAST, nodes::team(pool))
    };
    let options = Options {
        threads: match how.threads {
            // At least `least` even on few cores: the threads mostly wait for the slower side.
            0 => std::thread::available_parallelism().map_or(least, |n| least.max(n.get())),
            threads => threads,
        },
        checksum: how.checksum,
        only,
        selection: how.selection.clone(),
        dry_run: how.dry_run,
        room,
        ..match way {
            Way::In(..) => Options::stage_in(),
            Way::Out(..) => Options::stage_out(),
        }
    };
    let inside = paths::in_pool(way.inside(), pool);
    let there = (&*store, &path[..]);
    watched(stop, |progress| {
        carry(pool, there, &inside, way, &options, progress, &team)
    })
}

/// Returns the store that `outside` names, and the path in that store.
fn store_of(outside: &Path, pool: &Arc<Pool>) -> Result<(Box<dyn SlowStore>, Vec<u8>), StageError> {
    let failed = |what: String| StageError {
        path: outside.display().to_string(),
        what,
    };
    if let Some(bucket) = bucket(outside) {
        let (bucket, path) = bucket.map_err(|e| failed(e.to_string()))?;
        return Ok((Box::new(bucket), path));
    }
    if paths::is_under(outside, pool) {
        return Err(failed(format!(
            "lies under the mount prefix {}, where only programs in the pool see anything; name a \
             path of the file system",
            pool.config().mount
        )));
    }
    let path = crate::cwd::resolve(outside, pool)
        .into_os_string()
        .into_vec();
    let store = DirectoryStore::of(&path).map_err(|e| StageError {
        path: String::from_utf8_lossy(&path).into_owned(),
        what: format!("can't be reached: {}", explain(e)),
    })?;
    Ok((Box::new(store), path))
}

/// Returns the bucket that `outside` names, and the path in it; None if `outside` is a path of the
/// file system.
fn bucket(outside: &Path) -> Option<Result<(BucketStore, Vec<u8>), forebay_backing::Error>> {
    let address = Address::parse(outside.as_os_str().as_bytes())?;
    Some(address.and_then(|address| Ok((BucketStore::for_staging(&address)?, address.path))))
}

/// Whether `outside` names a bucket.
pub fn is_bucket(outside: &Path) -> bool {
    Address::parse(outside.as_os_str().as_bytes()).is_some()
}

/// Checks that the bucket can be used, if `outside` names one.
pub fn check_bucket(outside: &Path) -> Result<(), Fail> {
    match bucket(outside) {
        None => Ok(()),
        Some(Err(what)) => Err(Fail::usage(format!("{}: {what}", outside.display()))),
        Some(Ok((place, path))) => match place.stat(trimmed(&path), true) {
            Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => {
                let why = place.explain(e);
                Err(Fail::failed(format!("{}: {why}", outside.display())))
            }
        },
    }
}

/// Stages between the pool and `path` in the store `place`, with `inside` as the path in the pool.
fn carry(
    pool: &Arc<Pool>,
    (place, path): (&dyn SlowStore, &[u8]),
    inside: &[u8],
    way: &Way<'_>,
    options: &Options,
    progress: &Progress,
    team: &Team,
) -> Result<Report, StageError> {
    let fs = Fs::for_staging(pool.clone());
    let there = PoolStore::new(&fs, &pool.config().mount);
    match way {
        Way::In(..) => forebay_staging::stage(place, path, &there, inside, options, progress, team),
        Way::Out(..) => {
            // Collects what living nodes know of the names on dead nodes, so that files on living
            // nodes to which only these names lead are saved.
            let salvage = there.salvage(inside).unwrap_or_else(|e| {
                let (source, why) = (there.show(inside), there.explain(e));
                print_notice(format!(
                    "{source}: what is known of dead nodes' names can't be collected, so files \
                     that only these names lead to aren't saved: {why}"
                ));
                None
            });
            let staged =
                forebay_staging::stage(&there, inside, place, path, options, progress, team);
            staged.map(|mut report| {
                // Without this node's daemon, all other nodes seem to be dead.
                let is_sure = !options.dry_run && !lost_its_daemon(pool);
                if let Some(salvage) = salvage.filter(|_| is_sure) {
                    let source = there.show(inside);
                    conclude_salvage(&salvage, source, place, path, &mut report);
                }
                report
            })
        }
    }
}

/// Calls `work`, and shows its progress meanwhile. Calls `stop` repeatedly; `work` is told to end
/// when `stop` returns true.
fn watched<T>(stop: &(dyn Fn() -> bool + Sync), work: impl FnOnce(&Progress) -> T) -> T {
    let progress = Progress::default();
    let done = std::sync::Mutex::new(false);
    let changed = std::sync::Condvar::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bar = None;
            let began = Instant::now();
            let mut over = done.lock().unwrap_or_else(|e| e.into_inner());
            while !*over {
                let waited = changed.wait_timeout(over, Duration::from_millis(100));
                over = waited.unwrap_or_else(|e| e.into_inner()).0;
                if stop() {
                    progress.stop();
                }
                show(&mut bar, began, &progress);
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        let result = work(&progress);
        *done.lock().unwrap_or_else(|e| e.into_inner()) = true;
        changed.notify_all();
        result
    })
}

/// Returns the free space at the destination; None if it can't be determined.
pub fn room(pool: &Pool, way: &Way<'_>, remedy: String) -> Option<Room> {
    let (bytes, whose) = match way {
        Way::In(..) => {
            let (size, used) = pool.capacity();
            let c = pool.config();
            let media: Vec<String> = c.media.iter().map(ToString::to_string).collect();
            let each = if c.member.is_some() {
                "each node with "
            } else {
                ""
            };
            let whose = format!("the pool '{}' ({each}{})", c.name, media.join(", "));
            (size.saturating_sub(used), whose)
        }
        Way::Out(_, dst) if Address::parse(dst.as_os_str().as_bytes()).is_some() => return None,
        Way::Out(_, dst) => {
            let dst = std::path::absolute(dst).ok()?;
            let there = dst.ancestors().find(|p| p.exists())?;
            let s = rustix::fs::statvfs(there).ok()?;
            // A file system with no blocks doesn't report its size.
            (s.f_blocks > 0).then_some(())?;
            (
                s.f_bavail.saturating_mul(s.f_frsize),
                there.display().to_string(),
            )
        }
    };
    Some(Room {
        bytes,
        whose,
        remedy,
    })
}

/// Draws the progress bar, on a terminal and only after the first second.
fn show(bar: &mut Option<ProgressBar>, began: Instant, progress: &Progress) {
    if began.elapsed() < Duration::from_secs(1) || is_quiet() || !std::io::stderr().is_terminal() {
        return;
    }
    let bar = bar.get_or_insert_with(|| {
        let style = ProgressStyle::with_template(
            "{bar:24} {bytes}/{total_bytes} {binary_bytes_per_sec} {msg} {eta}",
        );
        let bar = ProgressBar::new(0);
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar
    });
    bar.set_length(progress.bytes_found.load(Relaxed));
    bar.set_position(progress.bytes_done.load(Relaxed));
    let (files, of) = (
        progress.files_done.load(Relaxed),
        progress.files_found.load(Relaxed),
    );
    bar.set_message(format!("{files}/{of} files"));
}

/// Describes a finished staging: `3 files, 1.2 GiB moved in 0.5 s (2.4 GiB/s), 7 unchanged`.
pub fn summary(r: &Report) -> String {
    let mut text = format!(
        "{} with {} moved in {}",
        count(r.moved_files, "file"),
        format_size(r.moved_bytes),
        seconds(r.seconds)
    );
    if r.nodes.len() > 1 {
        text += &format!(" by {}", count(r.nodes.len() as u64, "node"));
    }
    if r.moved_bytes > 1 << 20 && r.seconds > 0.0 {
        let rate = (r.moved_bytes as f64 / r.seconds) as u64;
        text += &format!(" ({}/s)", format_size(rate));
    }
    for (n, what) in [
        (r.unchanged, "unchanged"),
        (r.skipped, "skipped"),
        (r.excluded, "excluded"),
        (r.failed, "failed"),
    ] {
        if n > 0 {
            text += &format!(", {n} {what}");
        }
    }
    if r.interrupted {
        text += ", interrupted";
    }
    text
}

/// Prints warnings and failures, each up to [`MAX_LISTED_FAILURES`] one by one.
pub fn tell_troubles(r: &Report) {
    for (list, kind, total) in [
        (&r.warnings, "warning: ", r.warnings.len() as u64),
        (&r.failures, "", r.failed),
    ] {
        for f in list.iter().take(MAX_LISTED_FAILURES) {
            print_notice(format!("{kind}{}: {}", f.path, f.what));
        }
        if total > MAX_LISTED_FAILURES as u64 {
            print_notice(format!(
                "{kind}and {} more; see all with --json",
                total - MAX_LISTED_FAILURES as u64
            ));
        }
    }
}
