//! Parks free pages of a record file, so that LMDB has only few free pages at a time.
//!
//! LMDB first reuses the pages that have been free for longest. After many files were removed, no
//! cache and no page table of the process would have the pages that a transaction writes:
//! operations would take twice as long. So only a few free pages are left to LMDB. Each of the
//! others is parked, as the value of a record, and given back when free pages become few. Scans end
//! before these records.

use super::value::{bytes, val};
use super::{DBI, Env, PAGE, check};
use forebay_runtime::atomics::{AtomicU32, AtomicU64};
use lmdb_master_sys as ffi;
use rustix::io::Result;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;

/// Tag of the records of parked pages. Sorts after all other tags.
const TAG: u8 = b'Z';
/// If more pages than this are free, some are parked.
pub const MANY: u64 = 64;
/// If fewer pages than this are free, some are given back. A transaction takes about seven, and the
/// pages that the last two transactions freed aren't usable yet.
const FEW: u64 = 28;
/// If the file is longer than twice the maximum of pages in use plus this many, and still grows,
/// parking pauses. Such growth happens while a reader of an old state keeps pages from being
/// reused: then transactions append new pages, although parked ones exist. Each pause is twice as
/// long as the one before. Pages.
const EXTRA: u64 = 256;
/// Length of the first pause, in transactions that could have parked pages.
const FIRST_PAUSE_TRANSACTIONS: u32 = 1000;
/// Maximum number of doublings of the pause.
const DOUBLED: u32 = 20;
/// Number of pages that one transaction parks or gives back.
const STEP: usize = 16;
/// Maximum length of a value that takes one page, after LMDB's header of 16 bytes. Bytes.
const LEN: usize = PAGE as usize - 16;

/// Whether `key` is the key of a parked page.
pub fn is_parked(key: &[u8]) -> bool {
    matches!(key, [TAG, number @ ..] if number.len() == 4)
}

/// Work that a transaction does before its commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Todo {
    Nothing,
    Park,
    GiveBack,
}

/// Decides what a transaction that has just begun will do. `last`: the last page of the file.
///
/// # Safety
/// `txn` is active.
pub(super) unsafe fn todo(txn: *mut ffi::MDB_txn, last: u64, room: &Room) -> Result<Todo> {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut stats: [ffi::MDB_stat; 2] = unsafe { std::mem::zeroed() };
    // The list of free pages is database 0.
    for (dbi, stat) in [0, DBI].into_iter().zip(&mut stats) {
        // SAFETY: txn is active (the caller's promise), and both databases are open in it.
        check(unsafe { ffi::mdb_stat(txn, dbi, stat) })?;
    }
    let tree = |s: &ffi::MDB_stat| (s.ms_branch_pages + s.ms_leaf_pages) as u64;
    let [list, records] = stats;
    let live = 2 + tree(&list) + list.ms_overflow_pages as u64 + tree(&records);
    let parked = records.ms_overflow_pages as u64;
    let free = (last + 1).saturating_sub(live + parked);
    let most = u64::from(room.most.load(Relaxed)).max(live);
    room.most.store(most as u32, Relaxed);
    Ok(if free < FEW && parked > 0 {
        Todo::GiveBack
    } else if free > MANY && room.may_park(last, 2 * most + EXTRA) {
        Todo::Park
    } else {
        Todo::Nothing
    })
}

/// State of a record file, shared by all processes that use the file.
#[repr(C)]
#[derive(Default)]
pub struct Room {
    /// Length of the part of the file for which room is reserved. Bytes.
    pub reserved: AtomicU64,
    /// Maximum number of pages that were ever in use.
    pub(super) most: AtomicU32,
    /// The file's last page at the most recent transaction that could have parked pages.
    pub(super) last: AtomicU32,
    /// Number of transactions that the current pause still lasts.
    pub(super) pause: AtomicU32,
    /// Number of pauses so far, up to [`DOUBLED`].
    pub(super) pauses: AtomicU32,
}

impl Room {
    /// Whether a transaction may park pages in a file that ends at page `last` and should end at
    /// `bound`. Called by one writer at a time.
    fn may_park(&self, last: u64, bound: u64) -> bool {
        let grown = last > u64::from(self.last.swap(last as u32, Relaxed));
        let mut pause = self.pause.load(Relaxed);
        if grown && last > bound {
            let pauses = self.pauses.load(Relaxed);
            self.pauses.store((pauses + 1).min(DOUBLED), Relaxed);
            pause = FIRST_PAUSE_TRANSACTIONS << pauses;
        }
        self.pause.store(pause.saturating_sub(1), Relaxed);
        pause == 0
    }
}

/// Whether any page is parked.
///
/// # Safety
/// `txn` is an active write transaction.
pub(super) unsafe fn any(txn: *mut ffi::MDB_txn) -> Result<bool> {
    // SAFETY: the caller's promise.
    Ok(unsafe { with_last(txn, |_, _| Ok(()))? }.is_some())
}

/// Parks up to [`STEP`] free pages. False if no free page is usable: a reader of an old state may
/// still need them.
///
/// # Safety
/// `txn` is an active write transaction on a file whose last page was `last` when it began.
pub(super) unsafe fn park(txn: *mut ffi::MDB_txn, last: u64) -> Result<bool> {
    // SAFETY: the caller's promise, here and below.
    let highest = unsafe { with_last(txn, |_, number| Ok(number))? };
    let mut number = highest.map_or(0, |n| n.wrapping_add(1));
    for _ in 0..STEP {
        let key = key_of(number);
        let mut k = val(&key);
        let mut v = ffi::MDB_val {
            mv_size: LEN,
            mv_data: null_mut(),
        };
        // SAFETY: as above. Nothing is written to the value. LMDB's header before it begins with
        // the page's number, which is read.
        let page = unsafe {
            check(ffi::mdb_put(txn, DBI, &mut k, &mut v, ffi::MDB_RESERVE))?;
            v.mv_data
                .cast::<u8>()
                .sub(PAGE as usize - LEN)
                .cast::<u64>()
                .read()
        };
        if page > last {
            // SAFETY: as above.
            check(unsafe { ffi::mdb_del(txn, DBI, &mut k, null_mut()) })?;
            return Ok(false);
        }
        number = number.wrapping_add(1);
    }
    Ok(true)
}

/// Returns up to [`STEP`] parked pages to LMDB.
///
/// # Safety
/// `txn` is an active write transaction.
pub(super) unsafe fn give_back(txn: *mut ffi::MDB_txn) -> Result<()> {
    for _ in 0..STEP {
        // SAFETY: the transaction is active (the caller's promise); the cursor is at a parked page.
        let done = unsafe { with_last(txn, |cursor, _| check(ffi::mdb_cursor_del(cursor, 0)))? };
        if done.is_none() {
            break;
        }
    }
    Ok(())
}

fn key_of(number: u32) -> [u8; 5] {
    let n = number.to_be_bytes();
    [TAG, n[0], n[1], n[2], n[3]]
}

/// Calls `f` with a cursor at the last parked page, and with that page's number. None if no page is
/// parked.
///
/// # Safety
/// That of [`give_back`].
unsafe fn with_last<T>(
    txn: *mut ffi::MDB_txn,
    f: impl FnOnce(*mut ffi::MDB_cursor, u32) -> Result<T>,
) -> Result<Option<T>> {
    let mut cursor = null_mut();
    let (mut k, mut v) = (val(&[]), val(&[]));
    // SAFETY: `txn` is active; the cursor is closed before the transaction ends.
    unsafe {
        check(ffi::mdb_cursor_open(txn, DBI, &mut cursor))?;
        let rc = ffi::mdb_cursor_get(cursor, &mut k, &mut v, ffi::MDB_LAST);
        let result = match (rc, bytes(&k)) {
            (0, [TAG, number @ ..]) if number.len() == 4 => {
                let number = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
                f(cursor, number).map(Some)
            }
            (ffi::MDB_NOTFOUND, _) => Ok(None),
            (rc, _) => check(rc).map(|()| None),
        };
        ffi::mdb_cursor_close(cursor);
        result
    }
}

impl Env {
    /// Returns the numbers of parked, of free, and of all pages of the record file. For tests and
    /// reports.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn page_counts(&self) -> Result<(u64, u64, u64)> {
        let snapshot = self.fresh_snapshot()?;
        // SAFETY: the struct has only numbers, for which zero is valid.
        let mut stat: ffi::MDB_stat = unsafe { std::mem::zeroed() };
        // SAFETY: the snapshot's transaction is active.
        check(unsafe { ffi::mdb_stat(snapshot.txn, DBI, &mut stat) })?;
        drop(snapshot);
        let (free, pinned) = self.free_pages()?;
        Ok((
            stat.ms_overflow_pages as u64,
            free + pinned,
            self.used()? / PAGE,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_beyond_its_bound_parks_ever_less() {
        let room = Room::default();
        assert!(room.may_park(50, 100) && room.may_park(99, 100));
        let mut last = 100;
        for n in 0..4 {
            last += 1;
            let refused = (0..).take_while(|_| !room.may_park(last, 100)).count();
            assert_eq!(refused as u32, FIRST_PAUSE_TRANSACTIONS << n);
            assert!(room.may_park(last, 100));
        }
        // Within the bound again, earlier growth doesn't count.
        assert!(room.may_park(80, 100) && room.may_park(90, 100));
    }
}
