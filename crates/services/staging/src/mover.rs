//! A mover: a process that copies files on its own node for a staging that another process leads.
//!
//! A mover ends when all files are copied, or when the leading process has ended, and leaves no
//! incomplete files.

use crate::Progress;
use crate::job::{Entry, Job};
use crate::wire::{Begin, FromMover, Order, Proof, read_message, write_message};
use forebay_backing::{DirectoryStore, PoolStore, SlowStore, explain};
use forebay_posix::Fs;
use forebay_runtime::threads::lock;
use std::io::{BufRead, Result, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Interval between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Carries out the orders on `input`: copies files between the pool and the file system. `pool`:
/// the open pool and the prefix under which programs see it, for messages; or the reason why the
/// pool couldn't be opened.
///
/// # Errors
/// Writing to the leading process failed.
pub fn mover(
    pool: std::result::Result<(&Fs, &str), String>,
    mut input: impl BufRead + Send + 'static,
    mut output: impl Write + Send,
) -> Result<()> {
    let Some(Order::Begin(begin)) = read_message(&mut input)? else {
        return Ok(());
    };
    let (fs, mount) = match pool {
        _ if begin.forebay != env!("CARGO_PKG_VERSION") => {
            let why = format!(
                "has Forebay {}, not {}",
                env!("CARGO_PKG_VERSION"),
                begin.forebay
            );
            return write_message(&mut output, &FromMover::Cannot(why));
        }
        Err(why) => return write_message(&mut output, &FromMover::Cannot(why)),
        Ok(pool) => pool,
    };
    let inside = PoolStore::new(fs, mount);
    let outside = if begin.into_pool {
        &begin.src
    } else {
        &begin.dst
    };
    let place = match DirectoryStore::of(outside) {
        Ok(place) => place,
        Err(e) => {
            let path = String::from_utf8_lossy(outside);
            let why = format!("{path} can't be reached: {}", explain(e));
            return write_message(&mut output, &FromMover::Cannot(why));
        }
    };
    if begin.into_pool {
        work(&place, &inside, begin, input, output)
    } else {
        work(&inside, &place, begin, input, output)
    }
}

fn work(
    from: &dyn SlowStore,
    to: &dyn SlowStore,
    begin: Begin,
    input: impl BufRead + Send + 'static,
    mut output: impl Write + Send,
) -> Result<()> {
    if !sees_the_same(from, to, &begin) {
        return write_message(
            &mut output,
            &FromMover::Cannot(other_directory(from, to, &begin)),
        );
    }
    write_message(&mut output, &FromMover::Ready)?;
    let progress = Arc::new(Progress::default());
    let (give, take) = sync_channel(1);
    let reader_progress = progress.clone();
    // The thread isn't joined, since it reads until the leading process closes the stream.
    std::thread::Builder::new()
        .name("orders".into())
        .spawn(move || listen(input, give, &reader_progress))?;
    let job = Job::new(from, &begin.src, to, &begin.dst, &begin.options, &progress);
    let output = Mutex::new(output);
    let over = (Mutex::new(false), Condvar::new());
    let to_the_end = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut is_over = lock(&over.0);
            while !*is_over {
                let waited = over.1.wait_timeout(is_over, REPORT_INTERVAL);
                is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                if send_report(&job, &mut *lock(&output)).is_err() {
                    progress.stop();
                }
            }
        });
        let to_the_end = carry_out(&job, &begin.proof, &take);
        *lock(&over.0) = true;
        over.1.notify_all();
        to_the_end
    });
    if !to_the_end {
        return Ok(());
    }
    let mut output = lock(&output);
    send_report(&job, &mut *output)?;
    write_message(&mut *output, &FromMover::Finished)
}

/// Passes the leading process's orders to the thread that copies. The end of the input, or an
/// invalid message, stops the work.
fn listen(mut input: impl BufRead, give: SyncSender<Vec<Entry>>, progress: &Progress) {
    let mut give = Some(give);
    loop {
        match read_message(&mut input) {
            Ok(Some(Order::Files(list))) => {
                if give.as_ref().is_none_or(|g| g.send(list).is_err()) {
                    return;
                }
            }
            // Closing the channel tells the waiting threads that no further order comes. The loop
            // goes on, to notice the end of the input.
            Ok(Some(Order::End)) => give = None,
            _ => return progress.stop(),
        }
    }
}

/// Copies the ordered files. Returns whether all orders were carried out.
fn carry_out(job: &Job<'_>, proof: &Proof, orders: &Receiver<Vec<Entry>>) -> bool {
    let mut any = false;
    while let Ok(list) = orders.recv() {
        let list: Vec<Entry> = match proof {
            Proof::Source(_) => list.into_iter().filter(|e| is_seen(job, e)).collect(),
            Proof::Target(_) => list,
        };
        any |= !list.is_empty();
        job.move_list(&list);
    }
    // The files' new names are synced on this host, because this host made them.
    if any
        && job.options.sync
        && let Err(e) = job.to.sync_all(&job.dst)
    {
        job.fail_target(b"", "writing to stable storage", e);
    }
    !job.progress.stopped()
}

/// Whether this host sees a source file as the leading process does. If not, records a failure.
fn is_seen(job: &Job<'_>, e: &Entry) -> bool {
    let here = job.from.stat(&job.source(&e.below), false);
    let (m, same) = (&e.meta, |h: &forebay_backing::Meta| {
        (h.ino, h.kind(), h.size, h.mtime) == (e.meta.ino, e.meta.kind(), e.meta.size, e.meta.mtime)
    });
    if here.as_ref().is_ok_and(same) {
        return true;
    }
    job.progress.files_done.fetch_add(1, Relaxed);
    job.progress.bytes_done.fetch_add(m.size, Relaxed);
    job.ledger.fail(
        job.to.show(&job.target(&e.below)),
        format!(
            "{} is another file on {}, or has changed; stage again when it rests",
            job.from.show(&job.source(&e.below)),
            host()
        ),
    );
    false
}

fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Whether this host sees the same directory outside the pool as the leading process does.
fn sees_the_same(from: &dyn SlowStore, to: &dyn SlowStore, begin: &Begin) -> bool {
    match &begin.proof {
        Proof::Source(root) => from.stat(&begin.src, true).is_ok_and(|here| {
            (here.ino, here.mtime, here.kind()) == (root.ino, root.mtime, root.kind())
        }),
        Proof::Target(probe) => to.stat(probe, false).is_ok_and(|m| m.is_file()),
    }
}

fn other_directory(from: &dyn SlowStore, to: &dyn SlowStore, begin: &Begin) -> String {
    match &begin.proof {
        Proof::Source(_) => format!("{} isn't there, or another one", from.show(&begin.src)),
        Proof::Target(_) => format!("{} isn't there, or another one", to.show(&begin.dst)),
    }
}

/// Sends the results since the last report.
fn send_report(job: &Job<'_>, output: &mut impl Write) -> Result<()> {
    // The counters are read before the report, so that the report has all files that the counters
    // count.
    let files = job.progress.files_done.swap(0, Relaxed);
    let bytes = job.progress.bytes_done.swap(0, Relaxed);
    let report = job.ledger.take();
    write_message(
        output,
        &FromMover::Did {
            files,
            bytes,
            report,
        },
    )
}
