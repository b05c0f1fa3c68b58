//! The bytes of an open collection: reading, writing, copying; and the undo log entries that are
//! written before each change.

use super::{Collection, Log, Opened, check_log};
use crate::backend::Mapped;
use crate::mapped::Access;
use crate::meta::undo::Undo;
use crate::{Error, Result};
use forebay_trace::Operation;
use forebay_trace::count::{self, Outcome};
use std::cmp::Ordering;

/// Maximum number of bytes that one step of a copy moves.
const COPY: u64 = 1 << 20;

/// Carries out an operation and counts it; `bytes` returns the number of bytes moved.
fn counted<T>(
    kind: Operation,
    operation: impl FnOnce() -> Result<T>,
    bytes: impl FnOnce(&T) -> usize,
) -> Result<T> {
    let begun = count::begin(kind);
    let result = operation();
    let outcome = match &result {
        Ok(done) => Outcome {
            bytes: bytes(done) as u64,
            errno: 0,
        },
        Err(e) => Outcome {
            bytes: 0,
            errno: e.errno().raw_os_error(),
        },
    };
    count::end(kind, begun, outcome);
    result
}

impl Collection {
    /// Like [`Collection::with`], for two collections. Both may be the same. Always locks them in
    /// the same order, so that no two threads wait for each other.
    fn with_both<T>(
        &self,
        other: &Collection,
        f: impl FnOnce(Opened<'_>, Opened<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.identity().cmp(&other.identity()) {
            Ordering::Equal => self.with(|open| f(open, open)),
            Ordering::Less => self.with(|open| other.with(|with| f(open, with))),
            Ordering::Greater => other.with(|with| self.with(|open| f(open, with))),
        }
    }

    /// Logs the old size, and the old bytes of a range. `range` returns the start and end of the
    /// range for the old size.
    fn note_bytes(
        &self,
        log: Log<'_>,
        open: Opened<'_>,
        range: impl FnOnce(u64) -> (u64, u64),
    ) -> Result<()> {
        let Some(log) = log else { return Ok(()) };
        check_log(Some(log), open.outlives, &open.record.backend)?;
        let size = open.object.size()?;
        let (at, end) = range(size);
        let len = end.min(size).saturating_sub(at);
        let len = usize::try_from(len).map_err(|_| Error::invalid("more than memory can hold"))?;
        let mut old = vec![0; len];
        if len > 0 {
            let n = open.object.read(&mut old, at)?;
            old.truncate(n);
        }
        log.note(Undo::Wrote {
            workspace: self.0.workspace.uuid,
            uuid: open.record.uuid,
            at,
            old,
            size,
        })
    }

    /// Reads into `to` from byte `at` on, and returns the number of bytes. The number is less than
    /// `to.len()` only at the collection's end.
    ///
    /// # Errors
    /// EBADF if the collection isn't open; the errors of the back end.
    pub fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let read = || self.with(|open| open.object.read(to, at));
        counted(Operation::Get, read, |&n| n)
    }

    /// Writes all of `from` at byte `at`. If `at` is beyond the end, the collection grows, with
    /// zeros between.
    ///
    /// # Errors
    /// EBADF if the collection isn't open; ENOSPC; the errors of the back end. After an error, a
    /// first part of the bytes may have been written.
    pub fn write(&self, from: &[u8], at: u64) -> Result<()> {
        let write = || self.with(|open| open.object.write(from, at));
        counted(Operation::Put, write, |()| from.len())
    }

    pub(crate) fn write_logged(&self, from: &[u8], at: u64, log: Log<'_>) -> Result<()> {
        let write = || {
            self.with(|open| {
                let end = at.saturating_add(from.len() as u64);
                self.note_bytes(log, open, |_| (at, end))?;
                open.object.write(from, at)
            })
        };
        counted(Operation::Put, write, |()| from.len())
    }

    /// Appends all of `from` in one piece, and returns its offset in bytes.
    ///
    /// # Errors
    /// As for [`Collection::write`].
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.append_logged(from, None)
    }

    pub(crate) fn append_logged(&self, from: &[u8], log: Log<'_>) -> Result<u64> {
        let append = || {
            self.with(|open| {
                self.note_bytes(log, open, |size| (size, size))?;
                open.object.append(from)
            })
        };
        counted(Operation::Put, append, |_| from.len())
    }

    /// Sets the size to `size` bytes: truncates the collection, or adds zeros.
    ///
    /// # Errors
    /// As for [`Collection::write`].
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.truncate_logged(size, None)
    }

    pub(crate) fn truncate_logged(&self, size: u64, log: Log<'_>) -> Result<()> {
        self.with(|open| {
            self.note_bytes(log, open, |old| (size, old))?;
            open.object.truncate(size)
        })
    }

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// EBADF if the collection isn't open.
    pub fn size(&self) -> Result<u64> {
        self.with(|open| open.object.size())
    }

    /// Makes written bytes durable, as fsync(2) does, if the back end supports it.
    ///
    /// # Errors
    /// EBADF if the collection isn't open; the errors of the back end.
    pub fn sync(&self) -> Result<()> {
        self.with(|open| open.object.sync())
    }

    pub(crate) fn map_object(&self, at: u64, len: usize, access: Access) -> Result<Mapped> {
        self.with(|open| open.object.map(at, len, access))
    }

    /// Copies the `len` bytes at offset `at` to offset `to_at` of `to`, and returns the number of
    /// bytes copied. Doesn't use the caller's memory.
    ///
    /// # Errors
    /// As for reading and writing; EINVAL if `to` is this collection and the ranges overlap.
    pub fn copy(&self, at: u64, len: u64, to: &Collection, to_at: u64) -> Result<u64> {
        self.copy_logged((at, len), to, to_at, None)
    }

    pub(crate) fn copy_logged(
        &self,
        (at, len): (u64, u64),
        to: &Collection,
        to_at: u64,
        log: Log<'_>,
    ) -> Result<u64> {
        self.with_both(to, |from, into| {
            let len = len.min(from.object.size()?.saturating_sub(at));
            let touches = at < to_at.saturating_add(len) && to_at < at + len;
            if from.record.uuid == into.record.uuid && touches {
                return Err(Error::invalid(
                    "a chunk can't be copied to where it overlaps with itself",
                ));
            }
            let mut buffer = Vec::new();
            let mut done = 0;
            while done < len {
                let (at, to_at, left) = (at + done, to_at + done, len - done);
                // The old bytes are logged block by block, so blocks are small in a batch that can
                // be undone.
                let block = if log.is_some() { left.min(COPY) } else { left };
                to.note_bytes(log, into, |_| (to_at, to_at.saturating_add(block)))?;
                let copied = match from.object.copy_to(at, block, into.object, to_at)? {
                    Some(copied) => copied,
                    None => {
                        buffer.resize(block.min(COPY) as usize, 0);
                        let n = from.object.read(&mut buffer, at)?;
                        into.object.write(&buffer[..n], to_at)?;
                        n as u64
                    }
                };
                if copied == 0 {
                    break;
                }
                done += copied;
            }
            Ok(done)
        })
    }
}
