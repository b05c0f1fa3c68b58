//! Shared mappings of remote files: when stores through them are written back, and when other
//! nodes' writes are fetched. The bytes themselves are in a [`ShadowCopy`].
//!
//! Changed bytes are written back
//! - at msync, close, fsync, exec and exit, and when a mapping is removed;
//! - before this process reads, writes or truncates the file, and before it releases a lock on it.
//!
//! Changes of other nodes are fetched
//! - when the file is mapped, and at msync(MS_INVALIDATE);
//! - after this process has written to the file, and after it has acquired a lock on it.
//!
//! So nodes that take turns by locks see each other's stores.

use super::locked;
use super::shadow_copy::{self, Merged, ShadowCopy};
use super::spans::{Span, Spans};
use crate::program::{messages, process};
use forebay_cluster::Conflict;
use forebay_posix::{Errno, Fs, ObjectId};
use forebay_store::control_region::map_flag;
use std::ops::Range;

const ALL: Range<u64> = 0..u64::MAX;

/// Whether a file name is one through which processes share locks or indexes without system calls:
/// SQLite, LMDB, Berkeley DB. With a copy on each node, two nodes could enter a critical section at
/// once.
fn needs_one_memory(name: &[u8]) -> bool {
    let is_locks = name == b"lock.mdb" || name.ends_with(b"-lock");
    is_locks || name.ends_with(b"-shm") || name.starts_with(b"__db.")
}

/// Checks whether a remote file can have a shared mapping that may become writable.
///
/// # Errors
/// ENODEV if the file can't have a shadow copy.
pub fn check(fs: &Fs, open: u32) -> Result<(), Errno> {
    if process::in_vfork_child() {
        return Err(Errno::NODEV);
    }
    let name = name(fs, open);
    if needs_one_memory(&name) {
        messages::complain(&format!(
            "{} can't be mapped here: programs on several nodes would each have their own copy of what has to be one \
             memory; run them on the node that made it, or have them do without (SQLite: PRAGMA \
             journal_mode=DELETE)",
            String::from_utf8_lossy(&name)
        ));
        return Err(Errno::NODEV);
    }
    Ok(())
}

fn name(fs: &Fs, open: u32) -> Vec<u8> {
    fs.description(open).name()
}

/// Reports the conflict or error of a write-back, if there was one.
fn report(fs: &Fs, open: u32, merged: Merged) -> Result<(), Errno> {
    if let Some(conflict) = merged? {
        fs.report_conflict(open, &conflict);
    }
    Ok(())
}

/// Like [`report`], for callers that don't return the error: the changes stay in the copy until the
/// mapping is removed.
fn note(fs: &Fs, open: u32, merged: Merged) {
    let _ = report(fs, open, merged);
}

/// Like [`report`], when the mapping is removed. No call can return the error then, so it is
/// written to standard error.
fn report_loss(fs: &Fs, open: u32, merged: Merged) {
    if let Err(e) = report(fs, open, merged) {
        let id = fs.description(open).id();
        let place = match fs.cluster().home_of(id) {
            Some(node) => format!("node {node}"),
            None => "its nodes".into(),
        };
        messages::write_line(&format!(
            "{}: what was stored through a mapping couldn't be written back to {place}: {e}",
            String::from_utf8_lossy(&name(fs, open))
        ));
    }
}

/// Returns the shadow copy of an open file, if a process of this node maps the file.
fn copy(fs: &Fs, open: u32) -> Option<ShadowCopy<'_>> {
    let live = fs.live_of(open).ok()?;
    if fs.mappings().may_be_copied(live) {
        ShadowCopy::of(fs, live)
    } else {
        None
    }
}

/// Writes back the changes in a range of an open file.
fn write_back(fs: &Fs, open: u32, range: Range<u64>) -> Merged {
    copy(fs, open).map_or(Ok(None), |copy| copy.write_back(range))
}

/// Returns the range of `len` bytes from `at` on; None: from the current offset.
fn range(fs: &Fs, open: u32, at: Option<u64>, len: usize) -> Range<u64> {
    let at = at.unwrap_or_else(|| fs.description(open).offset());
    at..at.saturating_add(len as u64)
}

/// Writes back the changed bytes among the `len` bytes of an open file from `at` (None: its current
/// offset) on. Called before a process of this node reads these bytes.
pub fn before_read(fs: &Fs, open: u32, at: Option<u64>, len: usize) {
    if let Some(copy) = copy(fs, open) {
        note(fs, open, copy.write_back(range(fs, open, at, len)));
    }
}

/// Writes back the changed bytes in the range that the program is about to write. Returns this
/// range, for [`after_change`]; None if the file has no shadow copy.
pub fn before_write(
    fs: &Fs,
    open: u32,
    at: Option<u64>,
    append: bool,
    len: usize,
) -> Option<Range<u64>> {
    let copy = copy(fs, open)?;
    let mut range = range(fs, open, at, len);
    if append {
        range = fs.cluster().data().size(fs.live_of(open).ok()?).ok()?..u64::MAX;
    }
    note(fs, open, copy.write_back(range.clone()));
    Some(range)
}

/// Merges the file's bytes in `range` into its shadow copy, after the program has changed the file
/// by other means than the mapping.
pub fn after_change(fs: &Fs, open: u32, range: Option<Range<u64>>) {
    if let Some(range) = range
        && let Some(copy) = copy(fs, open)
    {
        note(fs, open, copy.refresh(range));
    }
}

/// Writes back the changed bytes of a mapped remote file. Called before the program truncates the
/// file, allocates room for it (fallocate), closes it or releases a lock on it. Returns the range
/// for [`after_change`]; None if the file has no shadow copy.
pub fn before_change(fs: &Fs, open: u32) -> Option<Range<u64>> {
    let copy = copy(fs, open)?;
    note(fs, open, copy.write_back(ALL));
    Some(ALL)
}

/// Merges other nodes' changes of a file into its shadow copy, after the program has acquired a
/// lock on the file.
pub fn after_lock(fs: &Fs, open: u32) {
    after_change(fs, open, Some(ALL));
}

/// Removes the pages beyond the new end of a truncated file from the mappings of all processes of
/// the node.
pub fn after_cut(fs: &Fs, open: u32, size: u64) {
    if let (Some(copy), Ok(live)) = (copy(fs, open), fs.live_of(open)) {
        // The result doesn't matter: bytes stored behind the new end are lost anyway.
        let _ = copy.refresh(size..u64::MAX);
        fs.mappings().notify_shrunk(live, size);
    }
}

/// Writes back changes that were made through mappings of an open file; called by fsync.
///
/// # Errors
/// As for writing back.
pub fn sync(fs: &Fs, open: u32) -> Result<(), Errno> {
    report(fs, open, write_back(fs, open, ALL))
}

/// Serves msync for the part of a span that lies in `start..end`.
///
/// # Errors
/// EIO if the changes couldn't be written back because a node can't be reached; ENOSPC and other
/// errors of writing.
pub fn msync(spans: &Spans, span: Span, (start, end): (u64, u64), flags: i32) -> Result<(), Errno> {
    let (Some(open), from, to) = (span.open(), span.start().max(start), span.end().min(end)) else {
        return Ok(());
    };
    let range = span.offset_of(from)..span.offset_of(from) + (to - from);
    let Some(copy) = copy(spans.fs, open) else {
        return Ok(());
    };
    let mut merged = copy.write_back(range.clone());
    if flags & libc::MS_INVALIDATE != 0
        && let Ok(before) = merged
    {
        merged = copy.refresh(range).map(|mut now| {
            Conflict::add(&mut now, before);
            now
        });
    }
    report(spans.fs, open, merged).map_err(|e| match e {
        Errno::HOSTDOWN | Errno::TIMEDOUT => Errno::IO,
        e => e,
    })
}

/// Releases the spans in `start..end`, which the kernel has unmapped. The spans have been split at
/// both ends.
pub fn unmapped(spans: &Spans, start: u64, end: u64) {
    let is_copy = |s: &Span| s.has(map_flag::COPY);
    let copies: Vec<Span> = spans.within(start, end).filter(is_copy).collect();
    if !copies.is_empty() {
        forget(spans, &copies);
    }
    spans.within(start, end).for_each(|s| spans.release(s));
}

/// Writes back what was changed through removed mappings, and frees their entries in the table.
pub fn forget(spans: &Spans, gone: &[Span]) {
    for span in gone.iter().filter(|s| s.has(map_flag::CHANGES)) {
        if let Some(open) = span.open() {
            let from = span.offset_of(span.start());
            let merged = write_back(spans.fs, open, from..from + span.len());
            report_loss(spans.fs, open, merged);
        }
    }
    let id = |open: u32| spans.fs.description(open).id();
    let mut ids: Vec<ObjectId> = gone.iter().filter_map(|s| s.open().map(id)).collect();
    gone.iter().for_each(|&s| spans.release(s));
    ids.sort_unstable();
    ids.dedup();
    let mapped = |of: ObjectId| {
        let mut copies = spans.copies();
        copies.any(|s| s.open().map(id) == Some(of))
    };
    ids.retain(|&of| !mapped(of));
    ids.into_iter()
        .for_each(|of| shadow_copy::leave(spans.fs, of));
}

/// Writes back changes before exec, which releases this process's memory.
pub fn before_exec() {
    let Some(spans) = locked::lock().filter(|_| !process::in_vfork_child()) else {
        return;
    };
    for span in spans.copies().filter(|s| s.has(map_flag::CHANGES)) {
        if let Some(open) = span.open() {
            let from = span.offset_of(span.start());
            let merged = write_back(spans.fs, open, from..from + span.len());
            report_loss(spans.fs, open, merged);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_shared_without_system_calls_is_known_by_name() {
        let known = |name: &str| super::needs_one_memory(name.as_bytes());
        assert!(
            known("app.db-shm") && known("lock.mdb") && known("data.mdb-lock") && known("__db.001")
        );
        assert!(!known("app.db") && !known("app.db-wal") && !known("data.mdb") && !known("shm"));
    }
}
