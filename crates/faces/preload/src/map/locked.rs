//! The table of mappings, for one thread at a time: what files have lost is taken out of the
//! mappings first.

use super::pages;
use super::spans::{self, Spans};
use crate::pool;
use forebay_posix::{Errno, Fs};
use forebay_store::process::is_critical;

/// The table, if there may be mappings.
pub fn lock() -> Option<Spans> {
    if !spans::any() {
        return None;
    }
    lock_for(pool::open_fs()?).ok()
}

/// The table, for a call of the program's that may concern it. Our own work, which LMDB's
/// and the allocator's mappings are part of, may hold other locks.
pub fn of_call() -> Option<Spans> {
    if is_critical() { None } else { lock() }
}

/// The table, for the first mapping too.
///
/// # Errors
/// As for attaching to the pool.
pub fn lock_for(fs: &'static Fs) -> Result<Spans, Errno> {
    let spans = Spans::begin(fs)?;
    if fs.mappings().is_behind() {
        // The notice hasn't arrived yet: first the pages that have to be removed.
        pages::cut(&spans);
    }
    Ok(spans)
}
