//! Parked pages, so that LMDB has few free pages at a time.
//!
//! LMDB reuses the pages first that have been free for longest. After many files were removed,
//! every page that a transaction writes would be one that no cache and no page table of the process
//! has: operations take twice as long. So only a few free pages are left to LMDB. Others are
//! parked, each as the value of a record, and given back when free pages become few. Scans end
//! before these records.

use super::value::{bytes, val};
use super::{DBI, Env, PAGE, check};
use forebay_runtime::atomics::{AtomicU32, AtomicU64};
use lmdb_master_sys as ffi;
use rustix::io::Result;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;

/// Tag of these records; sorts after all others.
const TAG: u8 = b'Z';
/// With more free pages than this, some are parked.
pub const MANY: u64 = 64;
/// With fewer free pages, some are given back. A transaction takes about seven, and those that the
/// last two freed aren't usable yet.
const FEW: u64 = 28;
/// While a reader of an old state keeps pages from being reused, new pages are taken instead of
/// parked ones, and the file grows. If it has grown to more than twice the pages that were ever in
/// use, plus this many, none are parked for a while, which doubles each time. Pages.
const EXTRA: u64 = 256;
/// The first such while, in transactions that could have parked pages.
const FIRST_PAUSE_TRANSACTIONS: u32 = 1000;
/// Limit on the doublings.
const DOUBLED: u32 = 20;
/// Pages parked or given back in one go.
const STEP: usize = 16;
/// The longest value that takes one page: LMDB's header takes 16 bytes of it.
const LEN: usize = PAGE as usize - 16;

/// Whether this is the key of a parked page.
pub fn is_parked(key: &[u8]) -> bool {
    matches!(key, [TAG, number @ ..] if number.len() == 4)
}

/// Work for a transaction before its commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Todo {
    Nothing,
    Park,
    GiveBack,
}

/// Decides what to do in a transaction that has just begun on a file whose last page is `last`.
///
/// # Safety
/// `txn` is active.
pub(super) unsafe fn todo(txn: *mut ffi::MDB_txn, last: u64, room: &Room) -> Result<Todo> {
    // SAFETY: plain numbers, for which zero is valid.
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

/// State of a record file that all its processes share.
#[repr(C)]
#[derive(Default)]
pub struct Room {
    /// Bytes of the file for which room is reserved.
    pub reserved: AtomicU64,
    /// Maximum number of pages ever in use.
    pub(super) most: AtomicU32,
    /// The last page of the file when a transaction last could have parked pages.
    pub(super) last: AtomicU32,
    /// Number of further transactions that park no pages.
    pub(super) pause: AtomicU32,
    /// Number of such pauses.
    pub(super) pauses: AtomicU32,
}

impl Room {
    /// Whether pages may be parked in a file that ends at page `last` and should end at `bound`.
    /// There is one writer at a time.
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

/// Parks some free pages. False if none are usable: a reader of an old state may still need them.
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
        // SAFETY: as above. Only LMDB's header in front of the value is written, which begins with
        // the page's number.
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

/// Gives some parked pages back to LMDB.
///
/// # Safety
/// `txn` is an active write transaction.
pub(super) unsafe fn give_back(txn: *mut ffi::MDB_txn) -> Result<()> {
    for _ in 0..STEP {
        // SAFETY: the caller's promise; the cursor stands at the record.
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

/// Calls `f` with a cursor at the last parked page and with its number, if there is one.
///
/// # Safety
/// That of [`give_back`].
unsafe fn with_last<T>(
    txn: *mut ffi::MDB_txn,
    f: impl FnOnce(*mut ffi::MDB_cursor, u32) -> Result<T>,
) -> Result<Option<T>> {
    let mut cursor = null_mut();
    let (mut k, mut v) = (val(&[]), val(&[]));
    // SAFETY: txn is active; the cursor is closed before it ends.
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
    /// Numbers of parked, free, and all pages of the record file; for tests and reports.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn page_counts(&self) -> Result<(u64, u64, u64)> {
        let snapshot = self.fresh_snapshot()?;
        // SAFETY: plain numbers, for which zero is valid.
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
