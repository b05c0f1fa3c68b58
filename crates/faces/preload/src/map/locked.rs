//! Access to the table of mappings, for one thread at a time. Pages that files have lost are
//! removed from the mappings before the table is used.

use super::pages;
use super::spans::{self, Spans};
use crate::pool;
use forebay_posix::{Errno, Fs};
use forebay_store::process::is_critical;

/// Returns the locked table, if this process may have mappings.
pub fn lock() -> Option<Spans> {
    if !spans::any() {
        return None;
    }
    lock_for(pool::open_fs()?).ok()
}

/// Returns the locked table, for a call of the program that may concern it. None inside the
/// library's own work: then LMDB or the allocator makes the mapping, and other locks may be held.
pub fn of_call() -> Option<Spans> {
    if is_critical() { None } else { lock() }
}

/// Returns the locked table, even if there has been no mapping yet.
///
/// # Errors
/// As for attaching to the pool.
pub fn lock_for(fs: &'static Fs) -> Result<Spans, Errno> {
    let spans = Spans::begin(fs)?;
    if fs.mappings().is_behind() {
        // The notice of a truncation hasn't arrived yet: removes the pages that files have lost.
        pages::cut(&spans);
    }
    Ok(spans)
}
