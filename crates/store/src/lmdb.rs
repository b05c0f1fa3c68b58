//! LMDB, and every rule that its use from many processes brings.
//!
//! - One environment per file and process, opened on first use; after a fork the child
//!   opens its own and never touches the parent's.
//! - Reader slots belong to transactions, not threads (`NOTLS`); idle read transactions
//!   are kept and renewed, which costs no system call and takes no lock.
//! - A write transaction writes the map directly (`WRITEMAP`) and syncs nothing: whatever
//!   instant a process is killed at, the last committed state stays valid.
//! - Room is reserved ahead of the last page in use, so that a full file system is ENOSPC
//!   at the start of a transaction and never a SIGBUS inside one.
//! - Opening, and making new read transactions, take locks inside LMDB: both happen in a
//!   [`Critical`] section.

mod parked;

use crate::process::{Critical, ProcessLock};
use forebay_media::atomics::{AtomicU32, AtomicU64};
use forebay_media::fault::{self, Point};
use lmdb_master_sys as ffi;
use parked::Todo;
pub(crate) use parked::is_parked;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const PAGE: u64 = 4096;
/// Most read transactions of all processes at the same time.
const MAX_READERS: u32 = 4096;
/// Idle read transactions kept per environment.
const IDLE_READERS: usize = 8;
/// Pages that a transaction may need for the tree and the free list beside its payload.
const MARGIN: u64 = 64;
/// How long a transaction that needs pages of old states waits for those who read these.
const READERS_PATIENCE: Duration = Duration::from_secs(2);
/// What a removal may make do with when no more room can be reserved.
const LAST_MARGIN: u64 = 24;
/// So many transactions later free pages are parked again when none were to be had.
const PARK_AGAIN: u32 = 200;

/// State of a record file that all its processes share.
#[repr(C)]
#[derive(Default)]
pub struct Room {
    /// Bytes for which room is reserved.
    pub reserved: AtomicU64,
    /// Most pages that were ever in use.
    most: AtomicU32,
}

thread_local! {
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is opening an environment: the preload then moves the descriptors
/// that LMDB opens out of the program's sight.
pub fn is_opening() -> bool {
    OPENING.with(Cell::get)
}

/// One record file, opened by this process when it is first used.
pub struct Env {
    path: PathBuf,
    map_size: usize,
    ptr: AtomicPtr<ffi::MDB_env>,
    /// The parent's environment, in a forked child: to be closed, never used.
    inherited: AtomicPtr<ffi::MDB_env>,
    opening: ProcessLock,
    /// Transactions before free pages are parked again.
    dont_park: AtomicU32,
    idle: [AtomicPtr<ffi::MDB_txn>; IDLE_READERS],
}

/// The only database of an environment is its unnamed one.
const DBI: ffi::MDB_dbi = 1;

fn check(rc: i32) -> Result<()> {
    match rc {
        0 => Ok(()),
        ffi::MDB_MAP_FULL | ffi::MDB_TXN_FULL => Err(Errno::NOSPC),
        ffi::MDB_READERS_FULL => Err(Errno::AGAIN),
        1..4096 => Err(Errno::from_raw_os_error(rc)),
        _ => Err(Errno::IO),
    }
}

fn val(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val {
        mv_size: bytes.len(),
        mv_data: bytes.as_ptr().cast_mut().cast(),
    }
}

/// # Safety
/// `v` was filled by LMDB in a transaction that lives for `'a`.
unsafe fn bytes<'a>(v: &ffi::MDB_val) -> &'a [u8] {
    if v.mv_size == 0 {
        return &[];
    }
    // SAFETY: LMDB's contract for values.
    unsafe { std::slice::from_raw_parts(v.mv_data.cast(), v.mv_size) }
}

impl Env {
    /// The record file `path` with room for `map_size` bytes of address space.
    pub fn new(path: PathBuf, map_size: usize) -> Env {
        Env {
            path,
            map_size,
            ptr: AtomicPtr::new(null_mut()),
            inherited: AtomicPtr::new(null_mut()),
            opening: ProcessLock::new(),
            dont_park: AtomicU32::new(0),
            idle: [const { AtomicPtr::new(null_mut()) }; IDLE_READERS],
        }
    }

    fn get(&self) -> Result<*mut ffi::MDB_env> {
        let ptr = self.ptr.load(Acquire);
        if ptr.is_null() { self.open() } else { Ok(ptr) }
    }

    #[cold]
    fn open(&self) -> Result<*mut ffi::MDB_env> {
        let _one = self.opening.hold();
        let ptr = self.ptr.load(Acquire);
        if !ptr.is_null() {
            return Ok(ptr);
        }
        OPENING.with(|o| o.set(true));
        let inherited = self.inherited.swap(null_mut(), AcqRel);
        if !inherited.is_null() {
            // SAFETY: a copy of the parent's environment that nothing uses here any more;
            // LMDB sees by the pid that its readers aren't ours and leaves them alone.
            unsafe { ffi::mdb_env_close(inherited) };
        }
        let opened = forebay_media::with_room(|| self.open_env());
        OPENING.with(|o| o.set(false));
        let env = opened?;
        self.ptr.store(env, Release);
        Ok(env)
    }

    fn open_env(&self) -> Result<*mut ffi::MDB_env> {
        let path = CString::new(self.path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let flags = ffi::MDB_NOSUBDIR
            | ffi::MDB_NOSYNC
            | ffi::MDB_NOMETASYNC
            | ffi::MDB_WRITEMAP
            | ffi::MDB_NOTLS
            | ffi::MDB_NORDAHEAD
            | ffi::MDB_NOMEMINIT;
        let mut env = null_mut();
        // SAFETY: LMDB's documented order of calls; env is closed if one of them fails.
        unsafe {
            check(ffi::mdb_env_create(&mut env))?;
            let open = || -> Result<()> {
                check(ffi::mdb_env_set_mapsize(env, self.map_size))?;
                check(ffi::mdb_env_set_maxreaders(env, MAX_READERS))?;
                check(ffi::mdb_env_open(env, path.as_ptr(), flags, 0o600))?;
                let mut txn = null_mut();
                check(ffi::mdb_txn_begin(
                    env,
                    null_mut(),
                    ffi::MDB_RDONLY,
                    &mut txn,
                ))?;
                let mut dbi = 0;
                let rc = ffi::mdb_dbi_open(txn, null(), 0, &mut dbi);
                // Kept as the first idle reader: opening the unnamed database needs no
                // commit to stay valid.
                ffi::mdb_txn_reset(txn);
                check(rc)?;
                assert_eq!(dbi, DBI);
                self.idle[0].store(txn, Release);
                Ok(())
            };
            open().inspect_err(|_| ffi::mdb_env_close(env))?;
        }
        Ok(env)
    }

    /// In a forked child, before anything else: forgets the parent's environment. Another
    /// thread may have been opening it.
    pub fn after_fork_in_child(&self) {
        self.opening.reset();
        let ptr = self.ptr.swap(null_mut(), AcqRel);
        if !ptr.is_null() {
            self.inherited.store(ptr, Release);
            for idle in &self.idle {
                // Leaked on purpose: freeing it would release the parent's reader slot.
                idle.store(null_mut(), Release);
            }
        }
    }

    /// A view of the last committed state.
    ///
    /// # Errors
    /// EAGAIN if too many readers are active on the node; what open says.
    pub fn snapshot(&self) -> Result<Snapshot<'_>> {
        let env = self.get()?;
        for idle in &self.idle {
            if idle.load(Relaxed).is_null() {
                continue;
            }
            let txn = idle.swap(null_mut(), AcqRel);
            if !txn.is_null() {
                // SAFETY: txn is a read transaction that was reset.
                check(unsafe { ffi::mdb_txn_renew(txn) })?;
                return Ok(Snapshot { env: self, txn });
            }
        }
        let _critical = Critical::enter();
        let mut txn = null_mut();
        // SAFETY: env is open.
        let mut rc = unsafe { ffi::mdb_txn_begin(env, null_mut(), ffi::MDB_RDONLY, &mut txn) };
        if rc == ffi::MDB_READERS_FULL {
            self.release_dead_readers()?;
            // SAFETY: as above.
            rc = unsafe { ffi::mdb_txn_begin(env, null_mut(), ffi::MDB_RDONLY, &mut txn) };
        }
        check(rc)?;
        Ok(Snapshot { env: self, txn })
    }

    /// As [`Env::snapshot`], of what is committed now: the caller keeps writers out.
    ///
    /// # Errors
    /// As for [`Env::snapshot`].
    pub fn fresh_snapshot(&self) -> Result<Snapshot<'_>> {
        let mut snapshot = self.snapshot()?;
        snapshot.renew()?;
        Ok(snapshot)
    }

    /// Frees the reader slots of dead processes, so that old pages can be used again.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn release_dead_readers(&self) -> Result<()> {
        let env = self.get()?;
        let _critical = Critical::enter();
        let mut dead = 0;
        // SAFETY: env is open.
        check(unsafe { ffi::mdb_reader_check(env, &mut dead) })
    }

    /// Starts a write transaction. The caller holds the shard's lock and is critical.
    /// `payload` is the number of bytes that it may add; `removing` says that it frees
    /// more than it takes.
    ///
    /// # Errors
    /// ENOSPC if the file system has no room for what may be needed.
    pub fn write(&self, room: &Room, payload: usize, removing: bool) -> Result<WriteTxn<'_>> {
        if !removing {
            fault::check(Point::Records)?;
        }
        let env = self.get()?;
        let reserved = &room.reserved;
        let mut info = ffi::MDB_envinfo {
            me_mapaddr: null_mut(),
            me_mapsize: 0,
            me_last_pgno: 0,
            me_last_txnid: 0,
            me_maxreaders: 0,
            me_numreaders: 0,
        };
        // SAFETY: env is open; info is valid.
        check(unsafe { ffi::mdb_env_info(env, &mut info) })?;
        let last = info.me_last_pgno as u64 + 1;
        let payload = payload as u64 * 2;
        let need = (last + MARGIN) * PAGE + payload;
        let behind =
            |pages: u64, bytes: u64| (last + pages) * PAGE + bytes <= reserved.load(Relaxed);
        let mut full = false;
        if need > reserved.load(Relaxed)
            && let Err(e) = self.reserve(reserved, need)
        {
            full = true;
            let behind_last = behind(LAST_MARGIN, 0);
            if !(removing && behind_last) {
                // A long value needs pages in a row, and those are had behind the last one only.
                let long = if payload > PAGE / 2 { payload } else { 0 };
                if !behind(0, long)
                    || !self.wait_for_free_pages(MARGIN + payload / PAGE, behind_last)?
                {
                    return Err(e);
                }
            }
        }
        let mut begun = self.begin()?;
        begun.last = last - 1;
        // SAFETY: it has just begun.
        begun.todo = match unsafe { parked::todo(begun.txn, begun.last, room)? } {
            Todo::Park if full || self.parks_later() => Todo::Nothing,
            todo => todo,
        };
        Ok(begun)
    }

    fn begin(&self) -> Result<WriteTxn<'_>> {
        let mut txn = null_mut();
        // SAFETY: env is open; the shard's lock makes us the only writer.
        check(unsafe { ffi::mdb_txn_begin(self.get()?, null_mut(), 0, &mut txn) })?;
        Ok(WriteTxn {
            env: self,
            txn,
            last: 0,
            todo: Todo::Nothing,
        })
    }

    fn parks_later(&self) -> bool {
        let left = self.dont_park.load(Relaxed);
        if left > 0 {
            self.dont_park.store(left - 1, Relaxed);
        }
        left > 0
    }

    /// Waits until so many pages that were freed can be used again: the readers that may
    /// still look at them end soon, or are dead. Parked pages come back. False if there are
    /// not enough. `room` says that a transaction may add some pages to the file.
    #[cold]
    fn wait_for_free_pages(&self, pages: u64, room: bool) -> Result<bool> {
        let until = Instant::now() + READERS_PATIENCE;
        loop {
            self.release_dead_readers()?;
            let (free, pinned) = self.free_pages()?;
            if free >= pages {
                return Ok(true);
            }
            if free + pinned < pages && (room || free >= LAST_MARGIN) {
                let mut txn = self.begin()?;
                txn.todo = Todo::GiveBack;
                // SAFETY: it has just begun.
                if unsafe { parked::any(txn.txn)? } {
                    txn.commit()?;
                    continue;
                }
            }
            if free + pinned < pages || Instant::now() > until {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Freed pages that the next write transaction may use, and those that a reader may still
    /// see. The caller keeps writers out.
    fn free_pages(&self) -> Result<(u64, u64)> {
        /// LMDB's own database of freed pages.
        const FREED: ffi::MDB_dbi = 0;
        unsafe extern "C" fn note(line: *const c_char, oldest: *mut c_void) -> i32 {
            // SAFETY: LMDB gives a string, and what it was given itself.
            let (line, oldest) = unsafe { (CStr::from_ptr(line), &mut *oldest.cast::<u64>()) };
            // Per line: process, thread, transaction; a head line; "-" for an idle reader.
            let id = line.to_str().ok().and_then(|l| l.split_whitespace().nth(2));
            if let Some(id) = id.and_then(|id| id.parse::<u64>().ok()) {
                *oldest = id.min(*oldest);
            }
            0
        }
        let snapshot = self.fresh_snapshot()?;
        // SAFETY: a running transaction.
        let last = unsafe { ffi::mdb_txn_id(snapshot.txn) } as u64;
        let mut oldest = last;
        // SAFETY: the environment is open; `note` gets the address of a u64.
        let rc = unsafe { ffi::mdb_reader_list(self.get()?, Some(note), (&raw mut oldest).cast()) };
        if rc < 0 {
            return Err(Errno::IO);
        }
        let (mut free, mut pinned) = (0, 0);
        // Keys are the transactions that freed the pages, values begin with their number.
        scan_stored(snapshot.txn, FREED, b"", |by, list| {
            let word = |b: &[u8]| b.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
            // What the last one freed is never for the next, whoever reads.
            match word(by) {
                by if by < oldest => free += word(list),
                by if by < last => pinned += word(list),
                _ => {}
            }
            true
        })?;
        Ok((free, pinned))
    }

    #[cold]
    fn reserve(&self, reserved: &AtomicU64, need: u64) -> Result<()> {
        let have = reserved.load(Relaxed);
        let step = (have / 4).clamp(256 << 10, 16 << 20);
        let end = (need + step).min(self.map_size as u64);
        if end < need {
            return Err(Errno::NOSPC);
        }
        let fd = rustix::fs::open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        for end in [end, need] {
            let room = || rustix::fs::fallocate(&fd, FallocateFlags::empty(), have, end - have);
            match rustix::io::retry_on_intr(room) {
                Ok(()) => {
                    reserved.store(end, Relaxed);
                    return Ok(());
                }
                Err(Errno::NOSPC) if end > need => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::NOSPC)
    }

    /// Bytes of records in use (pages up to the last one).
    ///
    /// # Errors
    /// What open says.
    pub fn used(&self) -> Result<u64> {
        let mut info = std::mem::MaybeUninit::<ffi::MDB_envinfo>::zeroed();
        // SAFETY: env is open; zeroed info is valid.
        unsafe {
            check(ffi::mdb_env_info(self.get()?, info.as_mut_ptr()))?;
            Ok((info.assume_init().me_last_pgno as u64 + 1) * PAGE)
        }
    }

    /// Whether this process has it open.
    pub fn is_open(&self) -> bool {
        !self.ptr.load(Acquire).is_null()
    }

    /// Bytes of address space.
    pub fn map_size(&self) -> usize {
        self.map_size
    }

    /// The record file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        let env = *self.ptr.get_mut();
        if !env.is_null() {
            for idle in &mut self.idle {
                let txn = *idle.get_mut();
                if !txn.is_null() {
                    // SAFETY: ours, and unused.
                    unsafe { ffi::mdb_txn_abort(txn) };
                }
            }
            // SAFETY: ours; no transaction is left (snapshots borrow self).
            unsafe { ffi::mdb_env_close(env) };
        }
    }
}

/// A consistent view of one shard.
pub struct Snapshot<'a> {
    env: &'a Env,
    txn: *mut ffi::MDB_txn,
}

impl Snapshot<'_> {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        get(self.txn, key)
    }

    /// Calls `each` for the records from `from` on, in order, until it returns false.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn scan(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        scan(self.txn, from, each)
    }

    /// As [`Snapshot::scan`], for all records, damaged ones too: `each` also gets whether the
    /// value is as it was stored.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn scan_all(&self, mut each: impl FnMut(&[u8], &[u8], bool) -> bool) -> Result<()> {
        scan_stored(self.txn, DBI, b"", |key, stored| {
            match unsealed(key, stored) {
                Some(value) => each(key, value, true),
                None => each(key, without_seal(stored), false),
            }
        })
    }

    /// Moves the view to the state committed last.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn renew(&mut self) -> Result<()> {
        // SAFETY: a read transaction of ours; no value borrowed from it lives (&mut self).
        unsafe {
            ffi::mdb_txn_reset(self.txn);
            check(ffi::mdb_txn_renew(self.txn))
        }
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // SAFETY: a read transaction of ours.
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
        // SAFETY: as above; nobody else has it.
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
            // SAFETY: filled by LMDB; callers bound the lifetime by the transaction's.
            let value = unsafe { unsealed(key, bytes(&v)) };
            value.map(Some).ok_or(Errno::IO)
        }
    }
}

/// Every value ends in a seal of so many bytes.
const SEAL: usize = 8;

/// A checksum of key and value. The records are mapped for writing in every process of the
/// user: should a stray write of a program hit one, it is noticed.
fn seal(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

/// The value without its seal; None if that doesn't fit.
fn unsealed<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (value, end) = stored.split_last_chunk::<SEAL>()?;
    (u64::from_le_bytes(*end) == seal(key, value)).then_some(value)
}

/// The value without its seal, whether that fits or not.
pub(crate) fn without_seal(stored: &[u8]) -> &[u8] {
    &stored[..stored.len().saturating_sub(SEAL)]
}

/// Stores `value` and its seal. What LMDB answers.
fn put(txn: *mut ffi::MDB_txn, key: &[u8], value: &[u8], flags: u32) -> i32 {
    let mut k = val(key);
    let mut v = ffi::MDB_val {
        mv_size: value.len() + SEAL,
        mv_data: null_mut(),
    };
    // SAFETY: txn is active. With MDB_RESERVE and no error, LMDB leaves the address of
    // mv_size bytes, which are ours until the next call.
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

fn scan_stored(
    txn: *mut ffi::MDB_txn,
    dbi: ffi::MDB_dbi,
    from: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<()> {
    let mut cursor = null_mut();
    let mut k = val(from);
    let mut v = val(&[]);
    // SAFETY: txn is active; the cursor is closed before it ends.
    unsafe {
        check(ffi::mdb_cursor_open(txn, dbi, &mut cursor))?;
        // An empty key is none to LMDB.
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

/// A write transaction on one shard. Undone when dropped.
pub struct WriteTxn<'a> {
    env: &'a Env,
    txn: *mut ffi::MDB_txn,
    /// The last page of the file when it began.
    last: u64,
    /// What becomes of free pages.
    todo: Todo,
}

impl WriteTxn<'_> {
    /// The value of `key` as this transaction sees it; valid until its next change.
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        get(self.txn, key)
    }

    /// See [`Snapshot::scan`]. `each` must not change the transaction.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn scan(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        scan(self.txn, from, each)
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// ENOSPC if the map is full.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        check(put(self.txn, key, value, 0))
    }

    /// Sets `key` to `value` unless it is there; false if it is.
    ///
    /// # Errors
    /// ENOSPC if the map is full.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        match put(self.txn, key, value, ffi::MDB_NOOVERWRITE) {
            ffi::MDB_KEYEXIST => Ok(false),
            rc => check(rc).map(|()| true),
        }
    }

    /// Removes `key`. False if there was none.
    ///
    /// # Errors
    /// ENOSPC if the map is full.
    pub fn del(&mut self, key: &[u8]) -> Result<bool> {
        let mut k = val(key);
        // SAFETY: txn is active.
        match unsafe { ffi::mdb_del(self.txn, DBI, &mut k, null_mut()) } {
            ffi::MDB_NOTFOUND => Ok(false),
            rc => check(rc).map(|()| true),
        }
    }

    /// Makes the changes visible to everyone.
    ///
    /// # Errors
    /// What LMDB says; the changes are undone then.
    pub fn commit(mut self) -> Result<()> {
        // Dropped, it is undone.
        fault::check(Point::Commit)?;
        // SAFETY: txn is active, and a write transaction.
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
        // SAFETY: txn is active and not used after.
        check(unsafe { ffi::mdb_txn_commit(txn) })
    }
}

impl Drop for WriteTxn<'_> {
    fn drop(&mut self) {
        if !self.txn.is_null() {
            // SAFETY: txn is active and not used after.
            unsafe { ffi::mdb_txn_abort(self.txn) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Puts records until there is no room; how many. Each is looked at again.
    fn fill(env: &Env, room: &Room) -> u64 {
        for n in 0u64.. {
            let put = || {
                let mut txn = env.write(room, 300, false)?;
                txn.put(&n.to_be_bytes(), &[n as u8; 300])?;
                txn.commit()
            };
            match put() {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e, Errno::NOSPC);
                    return n;
                }
            }
        }
        unreachable!()
    }

    fn clear(env: &Env, room: &Room, records: u64) {
        for n in 0..records {
            let mut txn = env.write(room, 0, true).unwrap();
            assert_eq!(txn.del(&n.to_be_bytes()), Ok(true));
            txn.commit().unwrap();
        }
    }

    #[test]
    fn a_full_map_takes_records_again_when_others_are_removed() {
        let dir = Dir(std::env::temp_dir().join(format!("fb-lmdb-{}", std::process::id())));
        std::fs::create_dir_all(&dir.0).unwrap();
        let env = Env::new(dir.0.join("records"), 4 << 20);
        let room = Room::default();
        let first = fill(&env, &room);
        assert!(first > 4000, "{first}");
        clear(&env, &room, first);
        // Old pages are all there is now.
        let second = fill(&env, &room);
        assert!(second > first / 2, "{second} after {first}");
        // What a reader sees stays as long as it looks, so each commit uses pages up.
        let (ready, is_ready) = std::sync::mpsc::channel();
        let read_for = |time: Duration| {
            let reader = env.fresh_snapshot().unwrap();
            ready.send(()).unwrap();
            std::thread::sleep(time);
            assert_eq!(reader.get(&0u64.to_be_bytes()), Ok(None));
        };
        clear(&env, &room, second);
        let third = std::thread::scope(|s| {
            s.spawn(|| read_for(READERS_PATIENCE * 2));
            is_ready.recv().unwrap();
            fill(&env, &room)
        });
        assert!(third < second / 2, "{third} of {second}");
        // Who ends soon is waited for.
        clear(&env, &room, third);
        let last = std::thread::scope(|s| {
            s.spawn(|| read_for(READERS_PATIENCE / 4));
            is_ready.recv().unwrap();
            fill(&env, &room)
        });
        assert!(last > first / 2, "{last} after {first}");
        let left = env.fresh_snapshot().unwrap();
        for n in 0..last {
            assert_eq!(left.get(&n.to_be_bytes()), Ok(Some(&[n as u8; 300][..])));
        }
    }
}
