//! Counting the progress of copies, so that waiting threads see that a copy isn't stuck.

use forebay_staging::Progress;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Interval between two checks of a copy's progress.
const WATCH: Duration = Duration::from_millis(200);

/// Calls `f`. While `f` runs, adds the bytes that `progress` counts to `moved`.
pub fn watched<T>(moved: &AtomicU64, progress: &Progress, f: impl FnOnce() -> T) -> T {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = 0;
            while !is_done.load(Relaxed) {
                std::thread::park_timeout(WATCH);
                let now = progress.bytes_done.load(Relaxed);
                moved.fetch_add(now.saturating_sub(seen), Relaxed);
                seen = now;
            }
        });
        let result = f();
        is_done.store(true, Relaxed);
        watcher.thread().unpark();
        result
    })
}
