//! Calls of a function for many items, from several threads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Locks a mutex, even after a thread has panicked while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the results of `each` for all items, in the items' order. Calls `each` as [`for_each`]
/// does.
pub fn map<T: Sync, R: Send + Sync>(
    threads: usize,
    items: &[T],
    each: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let results: Vec<OnceLock<R>> = items.iter().map(|_| OnceLock::new()).collect();
    let pairs: Vec<(&T, &OnceLock<R>)> = items.iter().zip(&results).collect();
    for_each(threads, &pairs, |(item, result)| {
        result.get_or_init(|| each(item));
    });
    results
        .into_iter()
        .filter_map(OnceLock::into_inner)
        .collect()
}

/// Calls `each` once per item, from at most `threads` threads. Returns after all calls. A thread
/// takes the next item when it has finished one, so that a long item delays no others.
pub fn for_each<'t, T: Sync>(threads: usize, items: &'t [T], each: impl Fn(&'t T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Relaxed)) {
            each(item);
        }
    };
    let threads = threads.min(items.len());
    if threads <= 1 {
        return work();
    }
    std::thread::scope(|scope| {
        for i in 1..threads {
            // If no further thread can be started, because of a limit on processes, fewer threads
            // do the work.
            if std::thread::Builder::new()
                .name(format!("stage-{i}"))
                .spawn_scoped(scope, work)
                .is_err()
            {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_once() {
        for threads in [1, 3, 100] {
            let seen: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
            for_each(threads, &seen, |s| _ = s.fetch_add(1, Relaxed));
            assert!(seen.iter().all(|s| s.load(Relaxed) == 1));
        }
    }
}
