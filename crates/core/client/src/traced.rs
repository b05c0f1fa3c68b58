//! A keeper's work for the tracing of its node: it removes rings of ended processes when they take
//! more than half of the limit, and sets the bound for slow operations once it knows how long a
//! tick is.

use forebay_store::{RINGS, process};
use forebay_trace::clock::{Moment, Scale};
use forebay_trace::shared::{SLOW_BOUND, Shared, first_slow_bound};
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::SystemTime;

/// How long after the node's beginning a tick is measured. Nanoseconds.
const LONG_ENOUGH: u64 = 500_000_000;

/// To be called now and then.
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
    // Unless another process has set one.
    let _ = (shared.head.slow_bound).compare_exchange(guess, exact, Relaxed, Relaxed);
}

/// Removes rings of ended processes, the oldest first, until all rings together take half of the
/// memory that they may.
fn remove_old_rings(dir: &Path, shared: &Shared) {
    let limit = shared.head.rings_limit.load(Relaxed) / 2;
    // A reader removes rings when it has taken their events.
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
