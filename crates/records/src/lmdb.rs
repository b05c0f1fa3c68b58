//! LMDB, and every rule that its use from many processes brings.
//!
//! - One environment per file and process, opened on first use; after a fork the child
//!   opens its own and never touches the parent's.
//! - Reader slots belong to transactions, not threads (`NOTLS`); idle read transactions
//!   are kept and renewed, which costs no system call and takes no lock. `lmdb/readers.rs` says
//!   when slots become free.
//! - A write transaction writes the map directly (`WRITEMAP`) and syncs nothing: whatever
//!   instant a process is killed at, the last committed state stays valid.
//! - Room is reserved ahead of the last page in use, so that a full file system is ENOSPC
//!   at the start of a transaction and never a SIGBUS inside one. So is that for the slots of
//!   readers in the lock file.
//! - Opening, and making new read transactions, take locks inside LMDB: both happen in a
//!   [`Critical`] section.

pub mod parked;
mod readers;
mod room;
mod txn;

use forebay_media::atomics::AtomicU32;
use forebay_runtime::critical::{Critical, ProcessLock};
use lmdb_master_sys as ffi;
pub use parked::is_parked;
pub use readers::{MAX_READERS, RESERVED_READERS};
pub use room::{OnFull, Room};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Mutex, PoisonError};
pub use txn::without_seal;
pub use txn::{Snapshot, WriteTxn};

const PAGE: u64 = 4096;
/// Idle read transactions kept per environment.
const IDLE_READERS: usize = 8;
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
    /// Slots of readers in the lock file that have memory, as far as this process knows.
    readers: AtomicU32,
    /// Transactions before free pages are parked again.
    dont_park: AtomicU32,
    idle: [AtomicPtr<ffi::MDB_txn>; IDLE_READERS],
    /// A descriptor of the lock file that must not be closed: this process has the file open twice.
    beside: Mutex<Option<OwnedFd>>,
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

impl Env {
    /// The record file `path` with room for `map_size` bytes of address space.
    pub fn new(path: PathBuf, map_size: usize) -> Env {
        Env {
            path,
            map_size,
            ptr: AtomicPtr::new(null_mut()),
            inherited: AtomicPtr::new(null_mut()),
            opening: ProcessLock::new(),
            readers: AtomicU32::new(0),
            dont_park: AtomicU32::new(0),
            idle: [const { AtomicPtr::new(null_mut()) }; IDLE_READERS],
            beside: Mutex::new(None),
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
        let file = readers::open_lock_file(&self.path)?;
        let is_beside = readers::free_left_behind(&file);
        // The lock file is sparse, and LMDB touches it at once.
        let reserved = self.reserve_readers(&file, readers::used(&file) + 2 * room::READERS_AHEAD);
        if is_beside {
            let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(beside.replace(file));
        } else {
            // Now: later, that would give up the locks that LMDB has taken.
            drop(file);
        }
        reserved?;
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
                let txn = self.begin_reader(env)?;
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
            if let Err(e) = open() {
                // Its descriptor of the lock file stays, too, where closing it would give up locks.
                if !is_beside {
                    ffi::mdb_env_close(env);
                }
                return Err(e);
            }
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
                match unsafe { ffi::mdb_txn_renew(txn) } {
                    0 => return Ok(Snapshot { env: self, txn }),
                    // Somebody has freed its slot, which may be another's now: the transaction is
                    // never touched again, and its few hundred bytes stay.
                    ffi::MDB_BAD_RSLOT => continue,
                    rc => return Err(check(rc).err().unwrap_or(Errno::IO)),
                }
            }
        }
        let _critical = Critical::enter();
        let txn = self.begin_reader(env)?;
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
            self.end_readers();
            // Snapshots borrow self: no transaction is left.
            self.close(env);
        }
    }
}
