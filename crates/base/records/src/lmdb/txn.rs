//! Transactions that read and change the records of one shard. Each value ends with a checksum, its
//! *seal*.

use super::parked::{self, Todo, is_parked};
use super::value::{bytes, val};
use super::{DBI, Env, check};
use forebay_media::fault::{self, Point};
use forebay_runtime::critical::Critical;
use lmdb_master_sys as ffi;
use rustix::io::{Errno, Result};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::*;
use twox_hash::XxHash3_64;

/// Number of transactions without an attempt to park pages, after an attempt that found no usable
/// free page.
const PARK_AGAIN: u32 = 200;

/// A read-only view of one committed state of a shard.
pub struct Snapshot<'a> {
    pub(super) env: &'a Env,
    pub(super) txn: *mut ffi::MDB_txn,
}

impl Snapshot<'_> {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// EIO if the seal doesn't match; errors of LMDB.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        get(self.txn, key)
    }

    /// Calls `each` with the records from key `from` on, in order, until `each` returns false.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn scan(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        scan(self.txn, from, each)
    }

    /// As [`Snapshot::scan`], for all records, including damaged ones. `each` also gets whether the
    /// value's seal matches.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn scan_all(&self, mut each: impl FnMut(&[u8], &[u8], bool) -> bool) -> Result<()> {
        scan_stored(self.txn, DBI, b"", |key, stored| {
            match unsealed(key, stored) {
                Some(value) => each(key, value, true),
                None => each(key, without_seal(stored), false),
            }
        })
    }

    /// Moves the view to the last committed state.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn renew(&mut self) -> Result<()> {
        // SAFETY: this value owns the read transaction; no borrowed value is alive (&mut self).
        unsafe {
            ffi::mdb_txn_reset(self.txn);
            check(ffi::mdb_txn_renew(self.txn))
        }
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SAFETY: this value owns the read transaction, which nothing uses any more.
        unsafe { ffi::mdb_txn_reset(self.txn) };
        for idle in &self.env.idle {
            if idle.load(Relaxed).is_null()
                && idle
                    .compare_exchange(null_mut(), self.txn, AcqRel, Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        let _critical = Critical::enter();
        // SAFETY: this value owns the read transaction, which nothing uses afterwards.
        unsafe { ffi::mdb_txn_abort(self.txn) };
    }
}

fn get<'a>(txn: *mut ffi::MDB_txn, key: &[u8]) -> Result<Option<&'a [u8]>> {
    let mut k = val(key);
    let mut v = val(&[]);
    // SAFETY: txn is active; LMDB doesn't write through the key.
    match unsafe { ffi::mdb_get(txn, DBI, &mut k, &mut v) } {
        ffi::MDB_NOTFOUND => Ok(None),
        rc => {
            check(rc)?;
            // SAFETY: LMDB has filled `v`; callers bound the lifetime by the transaction's.
            let value = unsafe { unsealed(key, bytes(&v)) };
            value.map(Some).ok_or(Errno::IO)
        }
    }
}

/// Size of the seal at the end of every value. Bytes.
const SEAL: usize = 8;

/// Returns a checksum of key and value. The records are mapped writable in every process of the
/// user: the checksum reveals a program's stray write into a record.
#[inline]
fn seal(key: &[u8], value: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(key), value)
}

/// Returns the value without its seal; None if the seal doesn't match.
#[inline]
fn unsealed<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (value, end) = stored.split_last_chunk::<SEAL>()?;
    (u64::from_le_bytes(*end) == seal(key, value)).then_some(value)
}

/// Returns the value without its seal, whether the seal matches or not.
pub fn without_seal(stored: &[u8]) -> &[u8] {
    &stored[..stored.len().saturating_sub(SEAL)]
}

/// Stores `value` and its seal. Returns LMDB's result.
fn put(txn: *mut ffi::MDB_txn, key: &[u8], value: &[u8], flags: u32) -> i32 {
    let mut k = val(key);
    let mut v = ffi::MDB_val {
        mv_size: value.len() + SEAL,
        mv_data: null_mut(),
    };
    // SAFETY: txn is active. With MDB_RESERVE and no error, LMDB returns the address of mv_size
    // bytes, which may be written until the next call.
    unsafe {
        let rc = ffi::mdb_put(txn, DBI, &mut k, &mut v, flags | ffi::MDB_RESERVE);
        if rc == 0 {
            let to: *mut u8 = v.mv_data.cast();
            std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len());
            let seal = seal(key, value).to_le_bytes();
            std::ptr::copy_nonoverlapping(seal.as_ptr(), to.add(value.len()), SEAL);
        }
        rc
    }
}

fn scan(
    txn: *mut ffi::MDB_txn,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    let mut damaged = false;
    scan_stored(txn, DBI, from, |key, stored| match unsealed(key, stored) {
        Some(value) => each(key, value),
        None => {
            damaged = true;
            false
        }
    })?;
    if damaged { Err(Errno::IO) } else { Ok(()) }
}

pub(super) fn scan_stored(
    txn: *mut ffi::MDB_txn,
    dbi: ffi::MDB_dbi,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    let mut cursor = null_mut();
    let mut k = val(from);
    let mut v = val(&[]);
    // SAFETY: `txn` is active; the cursor is closed before the transaction ends.
    unsafe {
        check(ffi::mdb_cursor_open(txn, dbi, &mut cursor))?;
        // LMDB doesn't allow an empty key.
        let first = if from.is_empty() {
            ffi::MDB_FIRST
        } else {
            ffi::MDB_SET_RANGE
        };
        let mut rc = ffi::mdb_cursor_get(cursor, &mut k, &mut v, first);
        while rc == 0 && !is_parked(bytes(&k)) && each(bytes(&k), bytes(&v)) {
            rc = ffi::mdb_cursor_get(cursor, &mut k, &mut v, ffi::MDB_NEXT);
        }
        ffi::mdb_cursor_close(cursor);
        if rc == ffi::MDB_NOTFOUND {
            Ok(())
        } else {
            check(rc)
        }
    }
}

/// A write transaction on one shard. Dropping it undoes its changes.
pub struct WriteTxn<'a> {
    pub(super) env: &'a Env,
    pub(super) txn: *mut ffi::MDB_txn,
    /// The last page of the file when the transaction began.
    pub(super) last: u64,
    /// Whether the commit parks free pages or returns parked ones to LMDB.
    pub(super) todo: Todo,
}

impl WriteTxn<'_> {
    /// Returns the value of `key` as this transaction sees it; valid until the transaction's next
    /// change.
    ///
    /// # Errors
    /// EIO if the seal doesn't match; errors of LMDB.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        get(self.txn, key)
    }

    /// As [`Snapshot::scan`]. `each` must not change the transaction.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn scan(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        scan(self.txn, from, each)
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// ENOSPC if the map is full.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check(put(self.txn, key, value, 0))?;
        debug_assert_eq!(
            self.get(key),
            Ok(Some(value)),
            "a record is read as it is written"
        );
        Ok(())
    }

    /// Sets `key` to `value` unless it exists; false if it does.
    ///
    /// # Errors
    /// ENOSPC if the map is full.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        match put(self.txn, key, value, ffi::MDB_NOOVERWRITE) {
            ffi::MDB_KEYEXIST => Ok(false),
            rc => check(rc).map(|()| true),
        }
    }

    /// Removes `key`. False if it doesn't exist.
    ///
    /// # Errors
    /// ENOSPC if the map is full.
    pub fn del(&mut self, key: &[u8]) -> Result<bool> {
        let mut k = val(key);
        // SAFETY: the transaction is active until `commit` or drop.
        match unsafe { ffi::mdb_del(self.txn, DBI, &mut k, null_mut()) } {
            ffi::MDB_NOTFOUND => Ok(false),
            rc => check(rc).map(|()| true),
        }
    }

    /// Makes the changes visible to all readers that begin later.
    ///
    /// # Errors
    /// Errors of LMDB; then the changes are undone.
    pub fn commit(mut self) -> Result<()> {
        assert!(!self.txn.is_null(), "a transaction is committed once");
        // On an error, the transaction is dropped, which undoes it.
        fault::check(Point::Commit)?;
        // SAFETY: the transaction is active, and it is a write transaction.
        unsafe {
            match self.todo {
                Todo::Nothing => {}
                Todo::GiveBack => parked::give_back(self.txn)?,
                Todo::Park => {
                    if !parked::park(self.txn, self.last)? {
                        self.env.dont_park.store(PARK_AGAIN, Relaxed);
                    }
                }
            }
        }
        let txn = std::mem::replace(&mut self.txn, null_mut());
        // SAFETY: the transaction is active, and nothing uses it afterwards.
        check(unsafe { ffi::mdb_txn_commit(txn) })
    }
}

impl Drop for WriteTxn<'_> {
    fn drop(&mut self) {
        if !self.txn.is_null() {
            // SAFETY: the transaction is active, and nothing uses it afterwards.
            unsafe { ffi::mdb_txn_abort(self.txn) };
        }
    }
}
