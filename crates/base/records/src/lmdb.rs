//! LMDB, and the rules for its use by many processes.
//!
//! - A process opens each file once, at its first use. A forked child opens its own environment and
//!   never touches the parent's.
//! - Reader slots belong to transactions, not to threads (`NOTLS`). Idle read transactions are kept
//!   for renewal, which takes no system call and no lock. `lmdb/readers.rs` explains when slots
//!   become free.
//! - A write transaction writes to the map directly (`WRITEMAP`) and syncs nothing: if a process is
//!   killed at any instant, the last committed state stays valid.
//! - Room is reserved beyond the last page in use, and for reader slots in the lock file. So a full
//!   file system is ENOSPC at the start of a transaction and never SIGBUS inside one.
//! - Opening environments and creating read transactions takes locks inside LMDB: both happen in a
//!   [`Critical`] section.

mod kept;
pub mod parked;
mod readers;
mod room;
mod txn;
mod value;

use forebay_runtime::atomics::AtomicU32;
use forebay_runtime::critical::{Critical, ProcessLock};
use lmdb_master_sys as ffi;
pub use parked::{Room, is_parked};
pub use readers::{MAX_READERS, RESERVED_READERS};
pub use room::OnFull;
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
/// Maximum number of idle read transactions of an environment.
const IDLE_READERS: usize = 8;
thread_local! {
    /// Whether this thread is in [`hidden`].
    ///
    /// This has to be a thread-local. LMDB is written in C and opens its files by libc's functions.
    /// The system calls of libc's functions reach the preloaded library as the program's do. The
    /// thread is all that connects such a call with the caller of [`hidden`].
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is opening or closing an environment. If so, the preloaded library moves the
/// descriptors that LMDB opens out of the program's sight, and lets LMDB close them.
pub fn is_opening() -> bool {
    OPENING.with(Cell::get)
}

/// Calls `f`, in which LMDB opens or closes its files; meanwhile, [`is_opening`] is true.
fn hidden<T>(f: impl FnOnce() -> T) -> T {
    let before = OPENING.replace(true);
    let result = f();
    OPENING.set(before);
    result
}

/// One record file, opened by this process at its first use.
pub struct Env {
    path: PathBuf,
    map_size: usize,
    ptr: AtomicPtr<ffi::MDB_env>,
    /// In a forked child: the parent's environment, which the child only closes and never uses.
    inherited: AtomicPtr<ffi::MDB_env>,
    opening: ProcessLock,
    /// Number of reader slots in the lock file that have memory, as far as this process knows.
    readers: AtomicU32,
    /// Number of transactions until free pages are parked again.
    dont_park: AtomicU32,
    idle: [AtomicPtr<ffi::MDB_txn>; IDLE_READERS],
    /// A descriptor of the lock file, if another environment of this process uses the same file:
    /// closing the descriptor would release that environment's locks.
    beside: Mutex<Option<OwnedFd>>,
}

/// The only database of an environment, the unnamed one.
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
    /// Represents the record file `path`, which isn't opened yet. `map_size`: bytes of address
    /// space for it.
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
        let env = hidden(|| {
            let inherited = self.inherited.swap(null_mut(), AcqRel);
            if !inherited.is_null() {
                // SAFETY: `inherited` is a copy of the parent's environment that nothing in this
                // process uses. LMDB sees by the process id that its readers belong to another
                // process, and doesn't free their slots.
                unsafe { ffi::mdb_env_close(inherited) };
            }
            forebay_runtime::fd::with_room(|| self.open_env())
        })?;
        self.ptr.store(env, Release);
        Ok(env)
    }

    fn open_env(&self) -> Result<*mut ffi::MDB_env> {
        if let Some((env, file)) = kept::take(&self.path, self.map_size) {
            let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(&mut *beside, file));
            return Ok(env);
        }
        let path = CString::new(self.path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let file = readers::open_lock_file(&self.path)?;
        let is_beside = readers::free_left_behind(&file);
        // Room is reserved first: the lock file is sparse, and LMDB writes to it while opening it.
        let reserved = self.reserve_readers(&file, readers::used(&file) + 2 * room::READERS_AHEAD);
        if is_beside {
            let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(beside.replace(file));
        } else {
            // Closed before LMDB opens the file: closing it later would release the locks that LMDB
            // takes.
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
                // The transaction becomes the first idle reader: the handle of the unnamed database
                // stays valid without a commit.
                ffi::mdb_txn_reset(txn);
                check(rc)?;
                assert_eq!(dbi, DBI);
                self.idle[0].store(txn, Release);
                Ok(())
            };
            if let Err(e) = open() {
                // If closing the descriptor of the lock file would release locks, leak the
                // environment.
                if !is_beside {
                    ffi::mdb_env_close(env);
                }
                return Err(e);
            }
        }
        readers::let_move(env);
        Ok(env)
    }

    /// Forgets the parent's environment. Must be the first call in a forked child. Resets the lock,
    /// since another thread of the parent may have been opening the file.
    pub fn after_fork_in_child(&self) {
        self.opening.reset();
        let ptr = self.ptr.swap(null_mut(), AcqRel);
        if !ptr.is_null() {
            self.inherited.store(ptr, Release);
            for idle in &self.idle {
                // Leaked on purpose: freeing the transaction would release the parent's reader
                // slot.
                idle.store(null_mut(), Release);
            }
        }
    }

    /// Closes the record file, which nothing in this process uses any more.
    pub fn close_for_good(&self) {
        let env = self.ptr.swap(null_mut(), AcqRel);
        if !env.is_null() {
            self.end_readers();
            self.close(env);
        }
    }

    /// Forgets that the file is open: another process, which shared this one's memory and has
    /// ended, opened it. The file stays mapped.
    pub fn forget(&self) {
        self.opening.reset();
        let env = self.ptr.swap(null_mut(), AcqRel);
        if !env.is_null() {
            readers::forget_numbers(env);
        }
        for idle in &self.idle {
            idle.store(null_mut(), Release);
        }
    }

    /// Returns a read-only view of a committed state.
    ///
    /// # Errors
    /// EAGAIN if all reader slots of the file are in use; ENOSPC if there is no memory for more;
    /// errors of opening the file.
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
                    // The slot was freed, and may be in use by another process. The transaction is
                    // never touched again; a few hundred bytes are leaked.
                    ffi::MDB_BAD_RSLOT => continue,
                    rc => return Err(check(rc).err().unwrap_or(Errno::IO)),
                }
            }
        }
        let _critical = Critical::enter();
        let txn = self.begin_reader(env)?;
        Ok(Snapshot { env: self, txn })
    }

    /// As [`Env::snapshot`], of the state committed last. The caller excludes writers.
    ///
    /// # Errors
    /// As for [`Env::snapshot`].
    pub fn fresh_snapshot(&self) -> Result<Snapshot<'_>> {
        let mut snapshot = self.snapshot()?;
        snapshot.renew()?;
        Ok(snapshot)
    }

    /// Whether this process has the file open.
    pub fn is_open(&self) -> bool {
        !self.ptr.load(Acquire).is_null()
    }

    /// Size of the map. Bytes of address space.
    pub fn map_size(&self) -> usize {
        self.map_size
    }

    /// Path of the record file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        // Snapshots borrow the environment, so no transaction is left.
        self.close_for_good();
    }
}
