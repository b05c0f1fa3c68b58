//! Locks on files of a pool. flock(2) is the store's own (`forebay_store::Flock`). Byte
//! ranges (fcntl) are real kernel locks on a stand-in:
//!
//! each locked object has an empty file in the pool's directory, on which the kernel keeps
//! the locks: they block, are released when a process dies, and deadlocks are noticed.
//! Locks that belong to a process (fcntl) need one descriptor of the stand-in per object;
//! those that belong to an open file description (F_OFD_*) one per description,
//! which forked children share, as they should.

use crate::paths::{errno, value};
use crate::process::ProcessLock;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs};
use forebay_store::Flock;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// A descriptor of a stand-in.
struct Held {
    /// The object (locks of a process) or the description + 1 (locks of a description).
    object: u64,
    description: u32,
    fd: OwnedFd,
}

static TABLE: ProcessLock = ProcessLock::new();
static ANY: AtomicBool = AtomicBool::new(false);
struct Table(std::cell::UnsafeCell<Vec<Held>>);
// SAFETY: only used with TABLE held.
unsafe impl Sync for Table {}
static HELD: Table = Table(std::cell::UnsafeCell::new(Vec::new()));

fn with_table<T>(f: impl FnOnce(&mut Vec<Held>) -> T) -> T {
    let _one = TABLE.hold();
    // SAFETY: TABLE is held.
    f(unsafe { &mut *HELD.0.get() })
}

/// The stand-in's descriptor for locks of the process (`description` 0) or of a
/// description (its index + 1).
fn stand_in(fs: &Fs, object: u64, description: u32) -> Result<i32, Errno> {
    with_table(|held| {
        let found = held
            .iter()
            .find(|h| h.object == object && h.description == description);
        if let Some(h) = found {
            return Ok(h.fd.as_raw_fd());
        }
        let dir = fs.pool().dir().join("locks");
        match rustix::fs::mkdir(&dir, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let path = dir.join(format!("{object:x}"));
        let fd = forebay_media::with_room(|| {
            rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map(forebay_media::lift)
        })?;
        crate::fds::watch(fd.as_raw_fd());
        let raw = fd.as_raw_fd();
        held.push(Held {
            object,
            description,
            fd,
        });
        ANY.store(true, Release);
        Ok(raw)
    })
}

/// In a forked child: another thread may have been in the table.
pub fn after_fork_in_child() {
    TABLE.reset();
}

/// When a descriptor of `open` has been closed: POSIX drops all locks that the process has
/// on the file; those of the description go with its last descriptor.
pub fn on_close(fs: &Fs, open: u32) {
    // A vfork child shares our table, but not our descriptors.
    if !ANY.load(Acquire) || crate::process::in_vfork_child() {
        return;
    }
    let o = fs.store().open_file(open);
    let object = o.id.load(Relaxed);
    let last = o.refs.load(Acquire) == 1;
    let dropped: Vec<Held> = with_table(|held| {
        let gone = |h: &Held| {
            h.object == object && (h.description == 0 || last && h.description == open + 1)
        };
        held.extract_if(.., |h| gone(h)).collect()
    });
    for h in dropped {
        forebay_media::forget(h.fd.as_raw_fd());
    }
}

/// The lock commands of fcntl.
pub unsafe fn fcntl(fs: &Fs, open: u32, cmd: i32, arg: i64) -> i64 {
    let o = fs.store().open_file(open);
    let of_description = matches!(
        cmd,
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW
    );
    // SAFETY: the program's own struct flock.
    let asked = unsafe { &mut *(arg as *mut libc::flock) };
    let access = o.flags.load(Relaxed) as i32 & libc::O_ACCMODE;
    let setting = !matches!(cmd, libc::F_GETLK | libc::F_OFD_GETLK);
    let wrong = match i32::from(asked.l_type) {
        libc::F_RDLCK => access == libc::O_WRONLY,
        libc::F_WRLCK => access == libc::O_RDONLY,
        _ => false,
    };
    if setting && wrong {
        return errno(Errno::BADF);
    }
    // The stand-in is empty: offsets that count from elsewhere are made absolute.
    let base = match i32::from(asked.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => o.offset.load(Relaxed) as i64,
        libc::SEEK_END => match fs.live_of(open) {
            Ok(live) => fs.store().size(live) as i64,
            Err(e) => return errno(e),
        },
        _ => return errno(Errno::INVAL),
    };
    let Some(start) = asked.l_start.checked_add(base).filter(|&s| s >= 0) else {
        return errno(Errno::INVAL);
    };
    let mut real = *asked;
    real.l_whence = libc::SEEK_SET as i16;
    real.l_start = start;
    let description = if of_description { open + 1 } else { 0 };
    let fd = match stand_in(fs, o.id.load(Relaxed), description) {
        Ok(fd) => fd,
        Err(e) => return errno(e),
    };
    // SAFETY: a descriptor of ours and a valid struct flock; may wait, as the program asks.
    let result = unsafe {
        raw(
            libc::SYS_fcntl,
            [fd.into(), cmd.into(), &raw mut real as i64, 0, 0, 0],
        )
    };
    if result == 0 && !setting {
        *asked = real;
    }
    result
}

/// flock(2).
pub fn flock(fs: &Fs, open: u32, operation: i64) -> i64 {
    if fs.store().open_file(open).flags.load(Relaxed) as i32 & libc::O_PATH != 0 {
        return errno(Errno::BADF);
    }
    let operation = operation as i32;
    let want = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Flock::Shared,
        libc::LOCK_EX => Flock::Exclusive,
        libc::LOCK_UN => Flock::Unlocked,
        _ => return errno(Errno::INVAL),
    };
    value(
        fs.store()
            .flock(open, want, operation & libc::LOCK_NB == 0)
            .map(|()| 0),
    )
}
