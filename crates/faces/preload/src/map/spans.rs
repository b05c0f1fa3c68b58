//! The table of mappings: which files of the pool lie where in this process.
//!
//! It is part of the process's area in the control region ([`MapTable`]), so that a process that
//! finds the process dead knows what it had mapped. A place is one *span*: addresses, and where in
//! the file they begin. Everything that changes the table or the mappings of files of the pool
//! holds [`LOCK`], a fork too: what a child inherits is what the table says. A call looks at the
//! spans that it concerns, however many others there are.

use forebay_posix::{Errno, Fs};
use forebay_store::control_region::{MapRef, map_flag};
use forebay_store::map_table::MapTable;
use forebay_store::process::{ProcessGuard, ProcessLock};
use std::sync::atomic::{AtomicBool, Ordering::*};

static LOCK: ProcessLock = ProcessLock::new();
/// Whether there has ever been a mapping: most processes have none.
static ANY: AtomicBool = AtomicBool::new(false);

/// The table, locked.
pub struct Spans {
    pub fs: &'static Fs,
    pub table: MapTable<'static>,
    _lock: ProcessGuard<'static>,
}

/// One place of the table.
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

    /// Where in the file `address` lies.
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

    /// Live entry and size of the file, the size rounded up to pages.
    pub fn file(self, fs: &Fs) -> Option<(u32, u64)> {
        let live = fs.live_of(self.open()?).ok()?;
        let size = fs.cluster().size(live).ok()?;
        Some((live, size.next_multiple_of(forebay_store::PAGE as u64)))
    }
}

/// Whether there may be mappings at all.
pub fn any() -> bool {
    ANY.load(Acquire)
}

/// From now on there may be a mapping.
pub fn note() {
    ANY.store(true, Release);
}

/// Keeps the table as it is until [`after_fork`].
pub fn before_fork() {
    LOCK.seize();
}

/// Ends [`before_fork`], in parent and child.
pub fn after_fork() {
    LOCK.reset();
}

impl Spans {
    /// The table, also for the first mapping; without a check whether files have become shorter,
    /// see `locked.rs`.
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

    /// All spans with addresses.
    pub fn iter(&self) -> impl Iterator<Item = Span> + use<> {
        self.within(0, u64::MAX)
    }

    /// The spans that overlap with `start..end`, in the order of addresses. They may be released
    /// meanwhile.
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

    /// The span that `address` lies in.
    pub fn at(&self, address: u64) -> Option<Span> {
        self.within(address, address + 1).next()
    }

    /// The spans of the file with live entry `live`, and maybe of others; `copy`: it lies on
    /// another node.
    pub fn of_file(&self, live: u32, copy: bool) -> impl Iterator<Item = Span> + use<> {
        let some = self.table.of_file(live, copy).map(Span);
        some.filter(|s| s.len() != 0)
    }

    /// The spans that show copies of files of other nodes.
    pub fn copies(&self) -> impl Iterator<Item = Span> + use<> {
        self.of_file(0, true)
    }

    /// Fills the place of `span`, which is empty so far.
    pub fn publish(&self, span: Span, start: u64, len: u64, offset: u64) {
        span.0.address.store(start, Relaxed);
        span.0.offset.store(offset, Relaxed);
        self.table.insert(span.0);
        span.0.len.store(len, SeqCst);
    }

    /// `span` has to remove the same pages as `other`, since it has some of them.
    pub fn inherit_cut(&self, span: Span, other: Span) {
        self.table.inherit_mark(span.0, other.0);
    }

    /// A new place that keeps the file of `open`; without addresses yet.
    ///
    /// # Errors
    /// ENOMEM if the table is full.
    pub fn claim(&mut self, open: u32, flags: u32) -> Result<Span, Errno> {
        let place = self.fs.mappings().claim(open, flags)?;
        // SAFETY: part of the area, which stays mapped as long as the process uses it.
        Ok(Span(unsafe { &*std::ptr::from_ref(place) }))
    }

    /// Frees a place.
    pub fn release(&self, span: Span) {
        self.fs.mappings().release(span.0);
    }

    /// Makes `address` the border between two spans, if it lies inside one.
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
        // Only now: a process that marks the old span from here on finds the tail, too; earlier
        // marks are passed on.
        self.inherit_cut(tail, span);
        Ok(())
    }

    /// Merges `span` into the span that ends where it begins, if there is one of the same kind.
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
        // The mapping lives on in `before`, so `release` must not change the file's times.
        span.0.flags.store(0, Relaxed);
        // A process that marks the file's spans now finds the longer `before`, or has marked `span`
        // already: then the mark is passed on.
        before.0.len.store(len, SeqCst);
        self.inherit_cut(before, span);
        self.release(span);
    }
}
