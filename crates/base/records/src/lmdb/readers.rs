//! The reader slots of a record file, and when they become free.
//!
//! Each read transaction has a slot with its process's id, in a table in the lock file. A process
//! keeps the slots of its idle transactions, so that reading takes no lock. For each process id,
//! the byte of the lock file with that number has a record lock of the kernel (fcntl), held by the
//! process. LMDB considers a slot dead if nobody holds the record lock of its process id. The
//! kernel releases that lock when the process ends, even as a zombie. Exec releases it, too, as
//! exec closes LMDB's descriptors.
//!
//! - A process that exits frees its slots itself, before it ends ([`Env::end_readers`]).
//! - A process that calls exec frees its idle slots before. Slots that other threads are using are
//!   freed when the new program opens the file.
//! - Slots of a killed process are freed by the keeper or, without a keeper, by a process that
//!   finds no free slot.
//!
//! A living process never loses a slot. LMDB's rule has two gaps, both for a process that has the
//! file open twice (by the preloaded library and the verbs, say). First, a process loses its record
//! locks when it closes *any* descriptor of the file, and closing an environment frees all slots of
//! the process id. Second, a process that opens the file a second time counts as its only user, and
//! empties the table. So the second environment locks the file by a lock of its open file
//! description, and neither environment is closed while the other may use the file (`kept.rs`).

use super::{Env, check};
use forebay_runtime::atomics::AtomicU32;
use forebay_runtime::critical::Critical;
use forebay_runtime::fd;
use lmdb_master_sys as ffi;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::*;

/// Maximum number of read transactions of all processes at the same time in one record file: twice
/// the number of process slots.
pub const MAX_READERS: u32 = 8192;
/// Number of the [`MAX_READERS`] slots that are reserved for commands that inspect a pool, repair
/// it, or save its data ([`forebay_runtime::slots::use_reserve`]).
pub const RESERVED_READERS: u32 = 256;

/// LMDB's layout of the lock file, in bytes: a head with a mutex at [`MUTEX_AT`]; another mutex;
/// the slots. A slot begins with the transaction (8 bytes) and the process id (4 bytes).
const MAGIC: u32 = 0xBEEF_C0DE;
const READERS_USED_AT: usize = 16;
const MUTEX_AT: usize = 24;
const MUTEX: usize = size_of::<libc::pthread_mutex_t>();
const SLOTS_AT: usize =
    (MUTEX_AT + MUTEX).next_multiple_of(CACHE_LINE) + MUTEX.next_multiple_of(CACHE_LINE);
const CACHE_LINE: usize = 64;
const SLOT: usize = CACHE_LINE;
const PROCESS_AT: usize = 8;

/// Returns the path of the lock file of the record file `path`.
fn lock_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    name.into()
}

/// Describes a record lock on one byte of a lock file.
fn record_lock(kind: i32, byte: u32) -> libc::flock {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = byte.into();
    lock.l_len = 1;
    lock
}

/// Whether any process, this one included, holds the record lock of process `pid`.
fn is_held(file: &OwnedFd, pid: u32) -> bool {
    let mut lock = record_lock(libc::F_WRLCK, pid);
    // F_OFD_GETLK asks for this open file description, not for the process. So the locks of this
    // process count as held, too.
    // SAFETY: the descriptor is open, and the kernel fills `lock`.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    // If the kernel can't tell, the lock counts as held.
    rc != 0 || i32::from(lock.l_type) != libc::F_UNLCK
}

/// Marks the file as in use, by the same kind of lock that LMDB takes. Without this lock, a process
/// that opens the file might count as its only user and empty the table, even if it has the file
/// open already.
fn keep_in_use(file: impl AsFd) -> Result<()> {
    let file = file.as_fd();
    let lock = record_lock(libc::F_RDLCK, 0);
    // SAFETY: the descriptor is open, and the kernel only reads `lock`.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(Errno::NOLCK),
    }
}

/// Opens the lock file of the record file `path`, or creates it. Closing the descriptor releases
/// this process's record locks on the file: see [`free_left_behind`].
pub(super) fn open_lock_file(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::open(lock_file(path), flags, Mode::from_raw_mode(0o600))
}

/// Returns the number of slots that were ever in use, as read from a lock file.
pub(super) fn used(file: &OwnedFd) -> u32 {
    let mut head = [0; SLOTS_AT];
    let n = rustix::io::pread(file, &mut head, 0).unwrap_or(0);
    if n == SLOTS_AT && word(&head, 0) == MAGIC {
        word(&head, READERS_USED_AT).min(MAX_READERS)
    } else {
        0
    }
}

/// Returns LMDB's own descriptor of the lock file: the second member of its environment, after the
/// descriptor of the data.
///
/// # Errors
/// EIO if the environment doesn't begin as expected.
pub(super) fn descriptor<'a>(env: *mut ffi::MDB_env) -> Result<BorrowedFd<'a>> {
    let mut data = -1;
    // SAFETY: the environment is open; LMDB writes only to `data`.
    check(unsafe { ffi::mdb_env_get_fd(env, (&raw mut data).cast()) })?;
    // SAFETY: an environment begins with three descriptors.
    let [first, lock, _] = unsafe { env.cast::<[i32; 3]>().read() };
    if first != data || lock < 0 {
        return Err(Errno::IO);
    }
    // SAFETY: the descriptor is open as long as the environment.
    Ok(unsafe { BorrowedFd::borrow_raw(lock) })
}

/// Returns LMDB's own descriptor of the data. Unlike the path, it can be used by a thread that may
/// no longer open the file.
///
/// # Errors
/// EIO if the environment doesn't begin as expected.
pub(super) fn data_descriptor<'a>(env: *mut ffi::MDB_env) -> Result<BorrowedFd<'a>> {
    descriptor(env)?;
    // SAFETY: an environment begins with three descriptors, as was just checked. The first one is
    // open as long as the environment.
    Ok(unsafe { BorrowedFd::borrow_raw(env.cast::<i32>().read()) })
}

/// Lets the preloaded library move the descriptors of the just opened `env` to other numbers.
pub(super) fn let_move(env: *mut ffi::MDB_env) {
    if descriptor(env).is_err() {
        return;
    }
    let files = env.cast::<[i32; 3]>();
    // SAFETY: an environment begins with three descriptors, as was just checked. LMDB uses them
    // only under [`in_use`]. `Env::close` calls `unfollow` before the memory is freed.
    unsafe {
        fd::follow(&raw mut (*files)[0], None);
        fd::follow(&raw mut (*files)[1], Some(move_lock_file));
    }
}

/// Lets the descriptors of `env` keep their numbers from now on. Called before `env` is closed.
fn keep_numbers(env: *mut ffi::MDB_env) {
    numbers(env).for_each(fd::unfollow);
}

/// Takes the descriptors of `env` off [`fd`]'s list of this library's descriptors: a vfork child
/// opened them, so this process doesn't have them.
pub(super) fn forget_numbers(env: *mut ffi::MDB_env) {
    numbers(env).for_each(fd::forget);
}

fn numbers(env: *mut ffi::MDB_env) -> impl Iterator<Item = RawFd> {
    // SAFETY: an environment begins with three descriptors, and hasn't been closed.
    let files = unsafe { env.cast::<[i32; 3]>().read() };
    files.into_iter().filter(|&fd| fd >= 0)
}

/// Keeps the descriptors of `env` at their numbers until the result is dropped.
///
/// # Errors
/// EBADF in a vfork child that has given the numbers to its program.
pub(super) fn in_use(env: *mut ffi::MDB_env) -> Result<fd::Using> {
    let using = fd::using();
    if fd::is_lost_here(descriptor(env)?.as_raw_fd()) {
        Err(Errno::BADF)
    } else {
        Ok(using)
    }
}

/// How long [`lock_readers`] waits for another process. Seconds.
const READERS_LOCK_TIMEOUT: i64 = 1;

/// Moves the descriptor of a lock file with `go`, which closes the old number. Closing the
/// descriptor releases this process's record locks, which are taken again before another process
/// can act on the release. A process that finds a reader dead checks again under the lock of the
/// reader slots before it frees slots. And since the file is marked as in use meanwhile, no process
/// opens it exclusively.
fn move_lock_file(file: BorrowedFd<'_>, go: &mut dyn FnMut() -> Result<RawFd>) -> Result<RawFd> {
    let head = forebay_media::Region::map(file, 0, SLOTS_AT)?;
    // SAFETY: the address lies inside the head, where LMDB has made a robust mutex.
    let mutex = unsafe { head.base().add(MUTEX_AT) }.cast::<libc::pthread_mutex_t>();
    keep_in_use(file)?;
    let result = lock_readers(mutex).and_then(|()| {
        let moved = go();
        if let Ok(number) = moved {
            let locks = [
                record_lock(libc::F_RDLCK, 0),
                record_lock(libc::F_WRLCK, forebay_runtime::process::pid()),
            ];
            for lock in &locks {
                // SAFETY: `number` is the moved descriptor, which is open; the kernel only reads
                // the lock.
                let _ = unsafe { libc::fcntl(number, libc::F_SETLK, lock) };
            }
        }
        // SAFETY: this thread locked the mutex above.
        unsafe { libc::pthread_mutex_unlock(mutex) };
        moved
    });
    let unlock = record_lock(libc::F_UNLCK, 0);
    let number = *result.as_ref().unwrap_or(&file.as_raw_fd());
    // SAFETY: the descriptor is open, and the kernel only reads `unlock`.
    let _ = unsafe { libc::fcntl(number, libc::F_OFD_SETLK, &raw const unlock) };
    result
}

/// Locks LMDB's mutex of the reader slots, as LMDB itself does.
///
/// # Errors
/// EBUSY if another process holds the mutex for [`READERS_LOCK_TIMEOUT`].
fn lock_readers(mutex: *mut libc::pthread_mutex_t) -> Result<()> {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut until: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `until` is a local variable; the mutex is mapped.
    let rc = unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
        until.tv_sec += READERS_LOCK_TIMEOUT;
        libc::pthread_mutex_timedlock(mutex, &raw const until)
    };
    match rc {
        0 => Ok(()),
        libc::EOWNERDEAD => {
            // A slot is taken or freed by a store of one word, so the table is valid at each
            // instant.
            // SAFETY: this thread has just locked the mutex.
            unsafe { libc::pthread_mutex_consistent(mutex) };
            Ok(())
        }
        _ => Err(Errno::BUSY),
    }
}

/// Frees slots with this process's id, before it opens the record file: the program before exec has
/// left them, or a dead process with the same id. If another environment of this process has the
/// file open, frees nothing and returns true: then `file` must never be closed.
pub(super) fn free_left_behind(file: &OwnedFd) -> bool {
    let pid = forebay_runtime::process::pid();
    if is_held(file, pid) {
        let _ = keep_in_use(file);
        return true;
    }
    let mut page = [0; 4096];
    let mut left = false;
    let mut at = 0;
    let mut end = page.len();
    while at < end {
        let n = rustix::io::pread(file, &mut page, at as u64).unwrap_or(0);
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
        // If freeing the slots fails, they are freed after this process has ended.
        let _ = free_slots_of(file, end, pid);
    }
    false
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |b| u32::from_ne_bytes(*b))
}

/// Frees the slots of process `pid` in the first `end` bytes of a lock file.
#[cold]
fn free_slots_of(file: &OwnedFd, end: usize, pid: u32) -> Result<()> {
    let end = end.min(rustix::fs::fstat(file)?.st_size as usize);
    let region = forebay_media::Region::map(file, 0, end)?;
    for slot in (SLOTS_AT..end.saturating_sub(SLOT - 1)).step_by(SLOT) {
        // SAFETY: the word lies inside the mapped file; LMDB, too, changes it by whole loads and
        // stores.
        let owner: &AtomicU32 = unsafe { region.at(slot + PROCESS_AT) };
        let _ = owner.compare_exchange(pid, 0, AcqRel, Relaxed);
    }
    Ok(())
}

impl Env {
    /// Begins a read transaction with a new slot. If all slots are taken, frees those of dead
    /// processes first. The caller is in a critical section.
    ///
    /// # Errors
    /// EAGAIN if living processes use all slots; ENOSPC if there is no memory for more.
    pub(super) fn begin_reader(&self, env: *mut ffi::MDB_env) -> Result<*mut ffi::MDB_txn> {
        let _using = in_use(env)?;
        let mut freed = false;
        loop {
            self.reserve_reader(env)?;
            let mut txn = null_mut();
            // SAFETY: `_using` keeps the environment open; LMDB writes only to `txn`.
            let rc = unsafe { ffi::mdb_txn_begin(env, null_mut(), ffi::MDB_RDONLY, &mut txn) };
            let scarce = match rc {
                0 if !forebay_runtime::slots::uses_reserve() => self.is_scarce(env)?,
                _ => rc == ffi::MDB_READERS_FULL,
            };
            if !scarce {
                return check(rc).map(|()| txn);
            }
            if rc == 0 {
                // SAFETY: the transaction was begun above, and nothing uses it afterwards.
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
        // SAFETY: the environment is open; LMDB fills `info`, whose zeros are valid, too.
        let ever = unsafe {
            check(ffi::mdb_env_info(env, info.as_mut_ptr()))?;
            info.assume_init().me_numreaders
        };
        // A process takes the first free slot, so no more than `ever` were in use at the same time.
        if ever <= MAX_READERS - RESERVED_READERS {
            return Ok(false);
        }
        let mut used = 0;
        list(env, |_, _| used += 1)?;
        Ok(used > MAX_READERS - RESERVED_READERS)
    }

    /// Frees the slots of this process's idle read transactions. Called before the process ends or
    /// executes another program; if the process continues after all, it takes new slots.
    pub fn end_readers(&self) {
        let _critical = Critical::enter();
        for idle in &self.idle {
            if idle.load(Relaxed).is_null() {
                continue;
            }
            let txn = idle.swap(null_mut(), AcqRel);
            if !txn.is_null() {
                // SAFETY: only this thread has the idle read transaction. One store frees its slot.
                unsafe { ffi::mdb_txn_abort(txn) };
            }
        }
    }

    /// Returns the process ids of all slots in use, one for each slot.
    ///
    /// # Errors
    /// Errors of opening the file.
    pub fn readers(&self) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        list(self.get()?, |pid, _| pids.push(pid))?;
        Ok(pids)
    }

    /// Frees the reader slots of dead processes, so that old pages can be reused.
    ///
    /// # Errors
    /// Errors of LMDB.
    pub fn release_dead_readers(&self) -> Result<()> {
        let env = self.get()?;
        let _critical = Critical::enter();
        check_readers(env)
    }

    /// Closes an environment whose transactions have ended. If another environment of this process
    /// may use the same file, keeps this one for the next use of the file instead
    /// ([`super::kept`]).
    pub(super) fn close(&self, env: *mut ffi::MDB_env) {
        let pid = forebay_runtime::process::pid();
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = beside.is_some();
        let listed = list(env, |owner, _| others |= owner == pid);
        if listed.is_err() || others {
            super::kept::keep(env, self.map_size, beside.take());
            return;
        }
        keep_numbers(env);
        super::hidden(|| {
            // SAFETY: this value owns the environment, in which no transaction is left.
            unsafe { ffi::mdb_env_close(env) };
        });
    }
}

fn check_readers(env: *mut ffi::MDB_env) -> Result<()> {
    let _using = in_use(env)?;
    let mut dead = 0;
    // SAFETY: `_using` keeps the environment open; LMDB writes only to `dead`.
    check(unsafe { ffi::mdb_reader_check(env, &mut dead) })
}

/// Calls `each` for every slot in use, with the slot's process id and the number of the transaction
/// whose state the slot keeps alive, if any.
pub(super) fn list(env: *mut ffi::MDB_env, mut each: impl FnMut(u32, Option<u64>)) -> Result<()> {
    unsafe extern "C" fn note<F: FnMut(u32, Option<u64>)>(
        line: *const c_char,
        each: *mut c_void,
    ) -> i32 {
        // SAFETY: LMDB passes a C string, and the pointer to the closure that `list` gave it.
        let (line, each) = unsafe { (CStr::from_ptr(line), &mut *each.cast::<F>()) };
        // A line has process, thread, and transaction ("-" for an idle reader). The first line is a
        // heading.
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
    // SAFETY: the environment is open; `note` gets the address of the type that it expects.
    let rc = unsafe { ffi::mdb_reader_list(env, Some(of(&each)), (&raw mut each).cast()) };
    if rc < 0 { Err(Errno::IO) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lmdb::{OnFull, Room};
    use forebay_runtime::process::pid;
    use rustix::fd::FromRawFd;
    use std::io::Read;
    use std::mem::ManuallyDrop;
    use std::os::unix::fs::FileExt;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("fb-readers-{name}-{}", pid()));
            std::fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }

        fn env(&self) -> Env {
            Env::new(self.0.join("records"), 4 << 20)
        }

        /// The lock file. Never closed: closing would release this process's locks.
        fn file(&self) -> ManuallyDrop<std::fs::File> {
            let path = lock_file(&self.0.join("records"));
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path);
            ManuallyDrop::new(file.unwrap())
        }

        /// Returns the process ids of the slots in use, read from the file.
        fn slots(&self) -> Vec<u32> {
            let mut bytes = Vec::new();
            self.file().read_to_end(&mut bytes).unwrap();
            assert_eq!(word(&bytes, 0), MAGIC);
            (0..word(&bytes, READERS_USED_AT) as usize)
                .map(|i| word(&bytes, SLOTS_AT + i * SLOT + PROCESS_AT))
                .filter(|&pid| pid != 0)
                .collect()
        }

        /// Assigns the slots from `first` to `end` to process `pid`.
        fn take(&self, first: u32, end: u32, pid: u32) {
            let file = self.file();
            for i in first as usize..end as usize {
                let mut slot = [0xff; SLOT];
                slot[PROCESS_AT..PROCESS_AT + 4].copy_from_slice(&pid.to_ne_bytes());
                let at = SLOTS_AT + i * SLOT;
                file.write_all_at(&slot, at as u64).unwrap();
            }
            let used = end.to_ne_bytes();
            file.write_all_at(&used, READERS_USED_AT as u64).unwrap();
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A process id that no process has: the kernel's highest is 2^22.
    const NOBODY: u32 = 1 << 23;

    #[test]
    fn idle_slots_are_freed_before_a_process_ends() {
        let dir = Dir::new("idle");
        let env = dir.env();
        drop(env.snapshot().unwrap());
        assert_eq!(dir.slots(), [pid()]);
        assert_eq!(env.readers(), Ok(vec![pid()]));
        let (a, b) = (env.snapshot().unwrap(), env.snapshot().unwrap());
        env.end_readers();
        assert_eq!(dir.slots().len(), 2, "those in use stay");
        drop((a, b));
        env.end_readers();
        assert_eq!(dir.slots(), []);
        assert_eq!(env.snapshot().unwrap().get(b"x"), Ok(None));
        assert_eq!(dir.slots(), [pid()]);
    }

    #[test]
    fn a_table_full_of_dead_readers_is_cleared_when_it_is_opened() {
        let dir = Dir::new("full");
        drop(dir.env().snapshot().unwrap());
        // If no process had the file open, LMDB would begin with an empty table.
        let other = dir.env();
        drop(other.snapshot().unwrap());
        dir.take(1, MAX_READERS, NOBODY);
        let env = dir.env();
        drop(env.snapshot().unwrap());
        assert_eq!(dir.slots(), [pid(), pid()]);
        dir.take(2, MAX_READERS, NOBODY);
        let (_a, _b) = (env.snapshot().unwrap(), env.snapshot().unwrap());
    }

    #[test]
    fn slots_of_the_program_before_exec_are_freed() {
        let dir = Dir::new("exec");
        drop(dir.env().snapshot().unwrap());
        dir.take(0, 100, pid());
        let file = open_lock_file(&dir.0.join("records")).unwrap();
        assert!(!free_left_behind(&file));
        assert_eq!(dir.slots(), []);
    }

    #[test]
    fn a_file_that_is_open_twice_keeps_its_slots() {
        let dir = Dir::new("twice");
        let first = dir.env();
        let kept = first.snapshot().unwrap();
        let second = dir.env();
        drop(second.snapshot().unwrap());
        assert_eq!(dir.slots(), [pid(), pid()]);
        drop(second);
        assert_eq!(dir.slots(), [pid()]);
        let file = ManuallyDrop::into_inner(dir.file());
        let file = ManuallyDrop::new(OwnedFd::from(file));
        assert!(is_held(&file, pid()));
        assert_eq!(kept.get(b"x"), Ok(None));
        drop(kept);
        drop(first.snapshot().unwrap());
        assert_eq!(dir.slots(), [pid()]);
    }

    #[test]
    fn a_slot_that_was_taken_away_is_not_used_again() {
        let dir = Dir::new("stolen");
        let env = dir.env();
        drop(env.snapshot().unwrap());
        dir.take(0, 1, NOBODY);
        drop(env.snapshot().unwrap());
        assert_eq!(dir.slots(), [NOBODY, pid()]);
    }

    /// The test checks the locks by a second descriptor of the file. That descriptor sees the locks
    /// as other processes do. A reader that seems dead is checked again under the lock of the
    /// reader slots.
    #[test]
    fn a_lock_file_whose_descriptor_moves_stays_locked() {
        use std::sync::atomic::AtomicBool;
        const MOVES: u32 = 200;
        let dir = Dir::new("moves");
        let env = dir.env();
        drop(env.snapshot().unwrap());
        let ptr = env.get().unwrap();
        let numbers = || descriptor(ptr).unwrap().as_raw_fd();
        fd::keep(numbers());
        let_move(ptr);
        let (file, done) = (dir.file(), AtomicBool::new(false));
        let looks = std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let file = ManuallyDrop::new(OwnedFd::from(file.try_clone().unwrap()));
                let head = forebay_media::Region::map(&*file, 0, SLOTS_AT).unwrap();
                // SAFETY: the mutex lies inside the head, which is mapped.
                let mutex = unsafe { head.base().add(MUTEX_AT) }.cast::<libc::pthread_mutex_t>();
                let mut looks = 0;
                while !done.load(Acquire) {
                    assert!(is_held(&file, 0), "another process would empty the table");
                    lock_readers(mutex).unwrap();
                    let is_alive = is_held(&file, pid());
                    // SAFETY: this thread locked the mutex above.
                    unsafe { libc::pthread_mutex_unlock(mutex) };
                    assert!(is_alive, "another process would free the slots");
                    looks += 1;
                }
                looks
            });
            for _ in 0..MOVES {
                let before = numbers();
                let other = std::fs::File::open("/dev/null").unwrap();
                // SAFETY: the number is given to the test, which closes it.
                let replace =
                    || unsafe { assert_eq!(libc::dup2(other.as_raw_fd(), before), before) };
                fd::vacate(before, replace).unwrap();
                assert_ne!(numbers(), before);
                // SAFETY: as above.
                drop(unsafe { OwnedFd::from_raw_fd(before) });
            }
            done.store(true, Release);
            looker.join().unwrap()
        });
        assert!(looks > 0);
        assert_eq!(dir.slots(), [pid()]);
        drop(env.snapshot().unwrap());
    }

    /// Like a program that uses HDF5's driver under the preloaded library and opens file after
    /// file.
    #[test]
    fn a_file_that_is_opened_again_and_again_beside_another_use_loses_no_descriptor() {
        let dir = Dir::new("again");
        let name = dir.0.file_name().unwrap().to_str().unwrap().to_owned();
        let descriptors = || {
            let fds = std::fs::read_dir("/proc/self/fd").unwrap();
            let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            links
                .filter(|l| l.to_string_lossy().contains(&name))
                .count()
        };
        let (first, room) = (dir.env(), Room::default());
        drop(first.snapshot().unwrap());
        let once = |n: u32| {
            let second = dir.env();
            let mut txn = second.write(&room, 100, OnFull::Fails).unwrap();
            txn.put(&n.to_be_bytes(), b"value").unwrap();
            txn.commit().unwrap();
            let seen = first.fresh_snapshot().unwrap();
            assert_eq!(seen.get(&n.to_be_bytes()), Ok(Some(&b"value"[..])));
        };
        once(0);
        let after_one = descriptors();
        (1..20).for_each(once);
        assert_eq!(descriptors(), after_one);
        assert!(dir.slots().iter().all(|&owner| owner == pid()));
    }
}
