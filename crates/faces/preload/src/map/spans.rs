//! The table of mappings: which files of the pool this process maps, and at which addresses.
//!
//! The table is part of the process's area in the control region ([`MapTable`]). So a process that
//! finds this one dead knows which files this process had mapped. An entry is one *span*: a range
//! of addresses, and the offset in the file at which it begins. All code that changes the table or
//! the mappings of pool files holds [`LOCK`]. A fork holds it, too, so that a child's mappings
//! agree with its table. A call only visits the spans that it concerns, however many others there
//! are.

use forebay_posix::{Errno, Fs};
use forebay_store::control_region::{MapRef, map_flag};
use forebay_store::map_table::MapTable;
use forebay_store::process::{ProcessGuard, ProcessLock};
use std::sync::atomic::{AtomicBool, Ordering::*};

static LOCK: ProcessLock = ProcessLock::new();
/// Whether this process has ever had a mapping: most processes have none.
static ANY: AtomicBool = AtomicBool::new(false);

/// The table, locked by this thread.
pub struct Spans {
    pub fs: &'static Fs,
    pub table: MapTable<'static>,
    _lock: ProcessGuard<'static>,
}

/// One entry of the table.
#[derive(Clone, Copy)]
pub struct Span(pub &'static MapRef);

impl Span {
    pub fn start(self) -> u64 {
        self.0.address.load(Relaxed)
    }

    pub fn len(self) -> u64 {
        self.0.len.load(Relaxed)
    }

    pub fn end(self) -> u64 {
        self.start() + self.len()
    }

    /// Returns the offset in the file of `address`.
    pub fn offset_of(self, address: u64) -> u64 {
        self.0.offset.load(Relaxed) + (address - self.start())
    }

    pub fn open(self) -> Option<u32> {
        self.0.open.load(Acquire).checked_sub(1)
    }

    pub fn has(self, flag: u32) -> bool {
        self.0.flags.load(Relaxed) & flag != 0
    }

    pub fn set(self, flag: u32) {
        self.0.flags.fetch_or(flag, Relaxed);
    }

    pub fn unset(self, flag: u32) {
        self.0.flags.fetch_and(!flag, Relaxed);
    }

    /// Returns the file's live entry and its size in bytes, rounded up to pages.
    pub fn file(self, fs: &Fs) -> Option<(u32, u64)> {
        let live = fs.live_of(self.open()?).ok()?;
        let size = fs.cluster().data().size(live).ok()?;
        Some((live, size.next_multiple_of(forebay_store::PAGE as u64)))
    }
}

/// Whether this process may have mappings.
pub fn any() -> bool {
    ANY.load(Acquire)
}

/// Records that this process may have mappings from now on.
pub fn note() {
    ANY.store(true, Release);
}

/// Locks the table until [`after_fork`].
pub fn before_fork() {
    LOCK.seize();
}

/// Unlocks the table after a fork, in parent and child.
pub fn after_fork() {
    LOCK.reset();
}

impl Spans {
    /// Locks the table, also for the first mapping. Doesn't check whether files have become
    /// shorter, as the functions in `locked.rs` do.
    ///
    /// # Errors
    /// As for attaching to the pool.
    pub fn begin(fs: &'static Fs) -> Result<Spans, Errno> {
        let lock = LOCK.hold();
        note();
        Ok(Spans {
            fs,
            table: fs.mappings().table()?,
            _lock: lock,
        })
    }

    /// Returns all spans that have addresses.
    pub fn iter(&self) -> impl Iterator<Item = Span> + use<> {
        self.within(0, u64::MAX)
    }

    /// Returns the spans that overlap with `start..end`, in the order of their addresses. The
    /// caller may release spans while it iterates.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Span> + use<> {
        let (table, mut at) = (self.table, start);
        std::iter::from_fn(move || {
            let span = Span(table.first_above(at)?);
            if span.start() >= end {
                return None;
            }
            at = span.end();
            Some(span)
        })
    }

    /// Returns the span that contains `address`.
    pub fn at(&self, address: u64) -> Option<Span> {
        self.within(address, address + 1).next()
    }

    /// Returns the spans of the file with live entry `live`, and maybe spans of other files.
    /// `copy`: the file is remote.
    pub fn of_file(&self, live: u32, copy: bool) -> impl Iterator<Item = Span> + use<> {
        let some = self.table.of_file(live, copy).map(Span);
        some.filter(|s| s.len() != 0)
    }

    /// Returns the spans that map shadow copies of remote files.
    pub fn copies(&self) -> impl Iterator<Item = Span> + use<> {
        self.of_file(0, true)
    }

    /// Fills in the addresses of `span`, which has none yet.
    pub fn publish(&self, span: Span, start: u64, len: u64, offset: u64) {
        span.0.address.store(start, Relaxed);
        span.0.offset.store(offset, Relaxed);
        self.table.insert(span.0);
        span.0.len.store(len, SeqCst);
    }

    /// Copies the mark of `other` (pages to be removed) to `span`, which has taken over some of the
    /// addresses of `other`.
    pub fn inherit_cut(&self, span: Span, other: Span) {
        self.table.inherit_mark(span.0, other.0);
    }

    /// Returns a new entry, still without addresses, that keeps the file of `open` open.
    ///
    /// # Errors
    /// ENOMEM if the table is full.
    pub fn claim(&mut self, open: u32, flags: u32) -> Result<Span, Errno> {
        let place = self.fs.mappings().claim(open, flags)?;
        // SAFETY: the entry is part of the process's area, which stays mapped while the process
        // uses it.
        Ok(Span(unsafe { &*std::ptr::from_ref(place) }))
    }

    /// Frees an entry.
    pub fn release(&self, span: Span) {
        self.fs.mappings().release(span.0);
    }

    /// Splits the span that contains `address`, so that one span ends there and another begins.
    ///
    /// # Errors
    /// ENOMEM if the table is full.
    pub fn split(&mut self, address: u64) -> Result<(), Errno> {
        let Some(span) = self.at(address).filter(|s| s.start() != address) else {
            return Ok(());
        };
        let flags = span.0.flags.load(Relaxed);
        let tail = self.claim(span.open().ok_or(Errno::FAULT)?, flags)?;
        let (offset, len) = (span.offset_of(address), span.end() - address);
        span.0.len.store(address - span.start(), SeqCst);
        self.publish(tail, address, len, offset);
        // The mark is passed on only after the tail is published: from then on, a process that
        // marks the old span finds the tail, too.
        self.inherit_cut(tail, span);
        Ok(())
    }

    /// Merges `span` into the span of the same kind that ends at its start, if there is one.
    pub fn join(&self, span: Span) {
        const KIND: u32 = map_flag::SHARED | map_flag::READ_ONLY | map_flag::COPY;
        let same = |a: Span, b: Span| {
            a.0.open.load(Relaxed) == b.0.open.load(Relaxed)
                && (a.0.flags.load(Relaxed) ^ b.0.flags.load(Relaxed)) & KIND == 0
                && a.end() == b.start()
                && a.offset_of(b.start()) == b.offset_of(b.start())
        };
        let Some(before) = (span.start().checked_sub(1))
            .and_then(|address| self.at(address))
            .filter(|&s| same(s, span))
        else {
            return;
        };
        let len = before.len() + span.len();
        before.set(span.0.flags.load(Relaxed));
        // The mapping continues in `before`, so `release` must not change the file's times.
        span.0.flags.store(0, Relaxed);
        // From now on a process that marks the file's spans finds the longer `before`. A process
        // may have marked `span` before: then the mark is passed on.
        before.0.len.store(len, SeqCst);
        self.inherit_cut(before, span);
        self.release(span);
    }
}
