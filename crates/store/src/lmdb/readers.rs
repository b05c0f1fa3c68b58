//! The reader slots of a record file, and when they become free.
//!
//! Each read transaction has a slot in a table in the lock file, with the process id of its owner.
//! A process keeps the slots of its idle transactions, so that reading takes no lock.
//! LMDB calls a slot dead if nobody holds the kernel's record lock (fcntl) on the byte of the lock
//! file whose number is that process id. The kernel releases that lock when the process ends, even
//! as a zombie, and at exec, which closes LMDB's descriptors.
//!
//! | the process | its slots are freed |
//! |---|---|
//! | exits | by itself, before it ends ([`Env::end_readers`]) |
//! | calls exec | the idle ones before; what other threads used: when the new program opens the file |
//! | is killed | by the keeper; without one, by whoever finds no free slot |
//!
//! A living process never loses a slot. LMDB's rule has two gaps, both where a process has the file
//! open twice (the preloaded library and the verbs, say): the record locks of a process go when it
//! closes *any* descriptor of the file, and closing an environment frees all slots of the process
//! id. So the file isn't closed as long as another environment of this process may use it.

use super::{Env, check};
use crate::process::Critical;
use forebay_media::atomics::AtomicU32;
use lmdb_master_sys as ffi;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::*;

/// Most read transactions of all processes at the same time, in one record file: twice as many as
/// there are process slots.
pub const MAX_READERS: u32 = 8192;
/// So many of them are for commands that look at a pool, mend it, or save its data
/// ([`crate::process::use_reserve`]).
pub const RESERVED_READERS: u32 = 256;

/// LMDB's layout of the lock file, in bytes. A mutex begins at [`MUTEX_AT`] of the head; behind the
/// head is another one; then come the slots: transaction (8), process (4).
const MAGIC: u32 = 0xBEEF_C0DE;
const READERS_USED_AT: usize = 16;
const MUTEX_AT: usize = 24;
const MUTEX: usize = size_of::<libc::pthread_mutex_t>();
const SLOTS_AT: usize =
    (MUTEX_AT + MUTEX).next_multiple_of(CACHE_LINE) + MUTEX.next_multiple_of(CACHE_LINE);
const CACHE_LINE: usize = 64;
const SLOT: usize = CACHE_LINE;
const PROCESS_AT: usize = 8;

/// The lock file beside the record file `path`.
fn lock_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    name.into()
}

/// Whether anyone, this process too, holds the record lock of the process `pid`.
fn is_held(file: &OwnedFd, pid: u32) -> bool {
    // SAFETY: plain numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = pid.into();
    lock.l_len = 1;
    // An owner of its own, the open file description: so the locks of this process count, too.
    // SAFETY: an open descriptor; the kernel fills `lock`.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    // What can't be asked may be held.
    asked != 0 || i32::from(lock.l_type) != libc::F_UNLCK
}

/// Before a program opens the record file `path`: frees slots with its process id, which threads
/// of the program before it in the same process have left by exec. If another environment of this
/// process has the file open, nothing is freed, and a descriptor is returned that must never be
/// closed.
pub(super) fn free_left_behind(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(lock_file(path), flags, Mode::empty()).ok()?;
    let pid = crate::process::pid();
    if is_held(&file, pid) {
        return Some(file);
    }
    let mut page = [0; 4096];
    let mut left = false;
    let mut at = 0;
    let mut end = page.len();
    while at < end {
        let n = rustix::io::pread(&file, &mut page, at as u64).unwrap_or(0);
        if n < SLOTS_AT || at == 0 && word(&page, 0) != MAGIC {
            break;
        }
        if at == 0 {
            let used = word(&page, READERS_USED_AT).min(MAX_READERS);
            end = SLOTS_AT + used as usize * SLOT;
        }
        let slots = page[..n].chunks_exact(SLOT);
        let skipped = if at == 0 { SLOTS_AT / SLOT } else { 0 };
        left |= slots
            .skip(skipped)
            .any(|slot| word(slot, PROCESS_AT) == pid);
        at += page.len();
    }
    if left {
        // What stays is freed when this process has ended.
        let _ = free_slots_of(&file, end, pid);
    }
    None
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |b| u32::from_ne_bytes(*b))
}

/// Frees the slots of `pid` in the first `end` bytes of a lock file.
#[cold]
fn free_slots_of(file: &OwnedFd, end: usize, pid: u32) -> Result<()> {
    let end = end.min(rustix::fs::fstat(file)?.st_size as usize);
    let region = forebay_media::Region::map(file, 0, end)?;
    for slot in (SLOTS_AT..end.saturating_sub(SLOT - 1)).step_by(SLOT) {
        // SAFETY: inside the mapped file; LMDB changes the word by whole loads and stores, too.
        let owner: &AtomicU32 = unsafe { region.at(slot + PROCESS_AT) };
        let _ = owner.compare_exchange(pid, 0, AcqRel, Relaxed);
    }
    Ok(())
}

impl Env {
    /// Begins a read transaction with a slot of its own. If all are taken, those of dead processes
    /// are freed first. The caller is critical.
    ///
    /// # Errors
    /// EAGAIN if the slots are in use by the living.
    pub(super) fn begin_reader(&self, env: *mut ffi::MDB_env) -> Result<*mut ffi::MDB_txn> {
        let mut freed = false;
        loop {
            let mut txn = null_mut();
            // SAFETY: env is open.
            let rc = unsafe { ffi::mdb_txn_begin(env, null_mut(), ffi::MDB_RDONLY, &mut txn) };
            let scarce = match rc {
                0 if !crate::process::uses_reserve() => self.is_scarce(env)?,
                _ => rc == ffi::MDB_READERS_FULL,
            };
            if !scarce {
                return check(rc).map(|()| txn);
            }
            if rc == 0 {
                // SAFETY: just begun.
                unsafe { ffi::mdb_txn_abort(txn) };
            }
            if freed {
                return Err(Errno::AGAIN);
            }
            freed = true;
            check_readers(env)?;
        }
    }

    /// Whether only reserved slots are left.
    fn is_scarce(&self, env: *mut ffi::MDB_env) -> Result<bool> {
        let mut info = std::mem::MaybeUninit::<ffi::MDB_envinfo>::zeroed();
        // SAFETY: env is open; zeroed info is valid.
        let ever = unsafe {
            check(ffi::mdb_env_info(env, info.as_mut_ptr()))?;
            info.assume_init().me_numreaders
        };
        // That many were never in use at the same time: slots are taken from the front.
        if ever <= MAX_READERS - RESERVED_READERS {
            return Ok(false);
        }
        let mut used = 0;
        list(env, |_, _| used += 1)?;
        Ok(used > MAX_READERS - RESERVED_READERS)
    }

    /// Frees the slots of this process's idle read transactions: it is about to end, or to execute
    /// another program. Should it go on, it takes new ones.
    pub fn end_readers(&self) {
        let _critical = Critical::enter();
        for idle in &self.idle {
            if idle.load(Relaxed).is_null() {
                continue;
            }
            let txn = idle.swap(null_mut(), AcqRel);
            if !txn.is_null() {
                // SAFETY: a read transaction of ours that nobody else has; its slot is freed by one
                // store.
                unsafe { ffi::mdb_txn_abort(txn) };
            }
        }
    }

    /// Notes that this process executed a program before: see [`free_left_behind`].
    pub fn after_exec(&self) {
        self.executed.store(true, Relaxed);
    }

    /// The process ids of all slots that are taken, one for each slot.
    ///
    /// # Errors
    /// What open says.
    pub fn readers(&self) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        list(self.get()?, |pid, _| pids.push(pid))?;
        Ok(pids)
    }

    /// Frees the reader slots of dead processes, so that old pages can be used again.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn release_dead_readers(&self) -> Result<()> {
        let env = self.get()?;
        let _critical = Critical::enter();
        check_readers(env)
    }

    /// Closes an environment whose transactions have ended, unless another one of this process may
    /// use the same file: then its address space and descriptors stay until the process ends.
    pub(super) fn close(&mut self, env: *mut ffi::MDB_env) {
        let pid = crate::process::pid();
        let beside = self.beside.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut others = beside.is_some();
        let listed = list(env, |owner, _| others |= owner == pid);
        if listed.is_err() || others {
            std::mem::forget(beside.take());
            return;
        }
        // SAFETY: ours; no transaction is left.
        unsafe { ffi::mdb_env_close(env) };
    }
}

fn check_readers(env: *mut ffi::MDB_env) -> Result<()> {
    let mut dead = 0;
    // SAFETY: env is open.
    check(unsafe { ffi::mdb_reader_check(env, &mut dead) })
}

/// Calls `each` for every slot that is taken, with its process id and the transaction that it keeps
/// alive, if it has one.
pub(super) fn list(env: *mut ffi::MDB_env, mut each: impl FnMut(u32, Option<u64>)) -> Result<()> {
    unsafe extern "C" fn note<F: FnMut(u32, Option<u64>)>(
        line: *const c_char,
        each: *mut c_void,
    ) -> i32 {
        // SAFETY: LMDB gives a string, and what it was given itself.
        let (line, each) = unsafe { (CStr::from_ptr(line), &mut *each.cast::<F>()) };
        // Per line: process, thread, transaction; a head line; "-" for an idle reader.
        let mut words = line.to_str().unwrap_or("").split_whitespace();
        if let Some(pid) = words.next().and_then(|w| w.parse().ok()) {
            each(pid, words.nth(1).and_then(|w| w.parse().ok()));
        }
        0
    }
    fn of<F: FnMut(u32, Option<u64>)>(
        _: &F,
    ) -> unsafe extern "C" fn(*const c_char, *mut c_void) -> i32 {
        note::<F>
    }
    // SAFETY: the environment is open; `note` gets the address of what it expects.
    let rc =
        unsafe { ffi::mdb_reader_list(env, Some(of(&each)), (&raw mut each).cast()) };
    if rc < 0 { Err(Errno::IO) } else { Ok(()) }
}

/// Whether the lock file at `path` begins as LMDB's of this version do.
#[cfg(test)]
fn slots_in_file(path: &Path) -> Vec<u32> {
    let bytes = std::fs::read(lock_file(path)).unwrap();
    assert_eq!(word(&bytes, 0), MAGIC);
    let used = word(&bytes, READERS_USED_AT) as usize;
    (0..used)
        .map(|i| word(&bytes, SLOTS_AT + i * SLOT + PROCESS_AT))
        .filter(|&pid| pid != 0)
        .collect()
}
