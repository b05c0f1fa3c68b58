//! Calls of a function for many items, from several threads.

use forebay_runtime::threads::lock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

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

/// As [`map`], but returns the first error. After an error, no further call begins.
///
/// # Errors
/// Those of `each`.
pub fn try_map<T: Sync, R: Send + Sync, E: Send>(
    threads: usize,
    items: &[T],
    each: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let failed = Mutex::new(None);
    let results = map(threads, items, |item| {
        if lock(&failed).is_some() {
            return None;
        }
        let result = each(item);
        result.map_err(|e| _ = lock(&failed).get_or_insert(e)).ok()
    });
    let failed = lock(&failed).take();
    failed.map_or_else(|| Ok(results.into_iter().flatten().collect()), Err)
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
