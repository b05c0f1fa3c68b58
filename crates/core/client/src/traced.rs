//! The keeper's work for the tracing of its node. The keeper removes rings of ended processes when
//! all rings take more than half of their limit, and sets the bound for slow operations once it
//! knows how long a tick of the trace clock is.

use forebay_store::{RINGS, process};
use forebay_trace::clock::{Moment, Scale};
use forebay_trace::shared::{SLOW_BOUND, Shared, first_slow_bound};
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::SystemTime;

/// Minimum time after the node's start for measuring the length of a tick. Nanoseconds.
const LONG_ENOUGH: u64 = 500_000_000;

/// Sets the bound for slow operations if it is due, and removes old rings. The keeper calls this
/// function about every 2 s.
pub fn look_after(dir: &Path, shared: &Shared) {
    set_bound(shared);
    remove_old_rings(dir, shared);
}

fn set_bound(shared: &Shared) {
    let (begin, now) = (shared.head.begun(), Moment::now());
    if now.monotonic.saturating_sub(begin.monotonic) < LONG_ENOUGH {
        return;
    }
    let guess = first_slow_bound(shared.head.counter.load(Relaxed) != 0);
    let exact = Scale::between(begin, now).ticks(SLOW_BOUND);
    // Don't replace a bound that another process has set.
    let _ = (shared.head.slow_bound).compare_exchange(guess, exact, Relaxed, Relaxed);
}

/// Removes rings of ended processes, the oldest first, until all rings together take at most half
/// of the memory that they may take.
fn remove_old_rings(dir: &Path, shared: &Shared) {
    let limit = shared.head.rings_limit.load(Relaxed) / 2;
    // If a reader is attached, it removes the rings whose events it has read.
    if shared.head.rings.load(Relaxed) <= limit || shared.is_read() {
        return;
    }
    let Ok(entries) = std::fs::read_dir(dir.join(RINGS)) else {
        return;
    };
    let ended = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.split('.').next()?.parse().ok());
        pid.is_some_and(process::has_ended)
    };
    let mut old: Vec<(SystemTime, u64, std::path::PathBuf)> = entries
        .flatten()
        .filter(ended)
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            Some((meta.modified().ok()?, meta.len(), entry.path()))
        })
        .collect();
    old.sort();
    for (_, bytes, path) in old {
        if shared.head.rings.load(Relaxed) <= limit {
            return;
        }
        if std::fs::remove_file(path).is_ok() {
            let less = |all: u64| Some(all.saturating_sub(bytes));
            let _ = shared.head.rings.fetch_update(AcqRel, Relaxed, less);
        }
    }
}
