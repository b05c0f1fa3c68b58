//! Locks on files of a pool. flock(2) is the store's own (`forebay_store::Flock`). Byte
//! ranges (fcntl) are real kernel locks on a stand-in:
//!
//! each locked object has an empty file in the pool's directory, on which the kernel keeps
//! the locks: they block, are released when a process dies, and deadlocks are noticed.
//! Locks that belong to a process (fcntl) need one descriptor of the stand-in per object;
//! those that belong to an open file description (F_OFD_*) one per description. Children
//! inherit the descriptors, and they survive exec; the table of them is in the process's area.
//! (Two processes that share a description, and only afterwards lock it for the first time,
//! have a stand-in each: to each other their locks are those of strangers.)

use crate::paths::{errno, value};
use crate::process::ProcessLock;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs, ObjectId};
use forebay_store::Flock;
use forebay_store::control::{ProcessArea, StandIn};
use forebay_store::elsewhere::locks::LOCKS_AWAY;
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::*};

static TABLE: ProcessLock = ProcessLock::new();
/// Whether there may be anything in the table.
static ANY: AtomicBool = AtomicBool::new(false);

fn path_of(fs: &Fs, object: u64) -> PathBuf {
    fs.pool().dir().join("locks").join(format!("{object:x}"))
}

/// The stand-in's descriptor for locks of the process (`description` 0) or of a
/// description (its index + 1).
/// For a file that lies on another node (`away`) only the fact that there are locks is noted.
fn stand_in(fs: &Fs, object: u64, description: u32, away: bool) -> Result<i32, Errno> {
    let area = fs.store().area()?;
    let _one = TABLE.hold();
    let mut free = None;
    for s in &area.stand_ins {
        match s.fd.load(Acquire).checked_sub(1) {
            None => free = free.or(Some(s)),
            Some(fd)
                if s.object.load(Relaxed) == object
                    && s.description.load(Relaxed) == description =>
            {
                return Ok(fd as i32);
            }
            Some(_) => {}
        }
    }
    let free = free.ok_or(Errno::NOLCK)?;
    if away {
        free.object.store(object, Relaxed);
        free.description.store(description, Relaxed);
        free.fd.store(LOCKS_AWAY, Release);
        ANY.store(true, Release);
        return Ok(-1);
    }
    let path = path_of(fs, object);
    match rustix::fs::mkdir(fs.pool().dir().join("locks"), Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    // It survives exec, as the locks do.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = forebay_media::with_room(|| {
        rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map(forebay_media::lift)
    })?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty())?;
    let fd = fd.into_raw_fd();
    free.object.store(object, Relaxed);
    free.description.store(description, Relaxed);
    free.fd.store(fd as u32 + 1, Release);
    ANY.store(true, Release);
    Ok(fd)
}

/// In a forked child: another thread may have been in the table.
pub fn after_fork_in_child() {
    TABLE.reset();
}

/// Copies the table for a child: it inherits the descriptors.
pub fn inherit(from: &ProcessArea, to: &ProcessArea) {
    if !ANY.load(Acquire) {
        return;
    }
    let _one = TABLE.hold();
    for (from, to) in from.stand_ins.iter().zip(&to.stand_ins) {
        if from.fd.load(Acquire) == LOCKS_AWAY {
            // A child has none of its parent's locks.
            to.fd.store(0, Release);
            continue;
        }
        to.object.store(from.object.load(Relaxed), Relaxed);
        to.description
            .store(from.description.load(Relaxed), Relaxed);
        to.fd.store(from.fd.load(Acquire), Release);
    }
}

/// After exec: keeps the descriptors that are really there.
pub fn resume(fs: &Fs, area: &ProcessArea) {
    for s in &area.stand_ins {
        let Some(fd) = s.fd.load(Acquire).checked_sub(1) else {
            continue;
        };
        if fd + 1 == LOCKS_AWAY {
            ANY.store(true, Release);
            continue;
        }
        // SAFETY: only asks the kernel; no such descriptor is an error.
        let there = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd as i32) });
        match (there, rustix::fs::stat(path_of(fs, s.object.load(Relaxed)))) {
            (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) => {
                forebay_media::keep(fd as i32);
                ANY.store(true, Release);
            }
            _ => s.fd.store(0, Release),
        }
    }
}

/// After exec has closed descriptors: closes the stand-ins that belonged to them alone.
pub fn drop_unused(fs: &Fs, area: &ProcessArea) {
    if !ANY.load(Acquire) {
        return;
    }
    let _one = TABLE.hold();
    for s in &area.stand_ins {
        let (object, description) = (s.object.load(Relaxed), s.description.load(Relaxed));
        let used = open_here(fs, area).any(|open| match description {
            0 => fs.store().open_file(open).id.load(Relaxed) == object,
            n => open + 1 == n,
        });
        if !used {
            close(fs, s);
        }
    }
}

/// The descriptions to which this process has descriptors.
fn open_here<'a>(fs: &Fs, area: &'a ProcessArea) -> impl Iterator<Item = u32> + 'a {
    let numbers = &area.fds[..fs.store().fds_end()];
    numbers
        .iter()
        .filter_map(|f| f.load(Acquire).checked_sub(1))
}

fn close(fs: &Fs, s: &StandIn) {
    if s.fd.load(Acquire) == LOCKS_AWAY {
        let id = ObjectId(s.object.load(Relaxed));
        // Should it not get there, the locks' home will have gone, and with it the locks.
        let _ = fs
            .store()
            .end_process_locks(id, forebay_store::process::pid());
        s.fd.store(0, Release);
        return;
    }
    if let Some(fd) = s.fd.swap(0, AcqRel).checked_sub(1) {
        forebay_media::forget(fd as i32);
        // SAFETY: ours, and no longer in the table.
        drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    }
}

/// When a descriptor of `open` has been closed: POSIX drops all locks that the process has
/// on the file; those of the description go with its last descriptor.
pub fn on_close(fs: &Fs, open: u32) {
    // A vfork child's descriptors are its own, but what we note of them is not.
    if !ANY.load(Acquire) || crate::process::in_vfork_child() {
        return;
    }
    let Ok(area) = fs.store().area() else { return };
    let object = fs.store().open_file(open).id.load(Relaxed);
    let _one = TABLE.hold();
    for s in &area.stand_ins {
        if s.fd.load(Acquire) == 0 || s.object.load(Relaxed) != object {
            continue;
        }
        let description = s.description.load(Relaxed);
        if description == 0
            || description == open + 1 && !open_here(fs, area).any(|other| other == open)
        {
            close(fs, s);
        }
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
    let asked: libc::flock = match unsafe { crate::paths::take(arg) } {
        Ok(asked) => asked,
        Err(e) => return errno(e),
    };
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
        libc::SEEK_END => match fs.live_of(open).and_then(|live| fs.store().size(live)) {
            Ok(size) => size as i64,
            Err(e) => return errno(e),
        },
        _ => return errno(Errno::INVAL),
    };
    let Some(start) = asked.l_start.checked_add(base).filter(|&s| s >= 0) else {
        return errno(Errno::INVAL);
    };
    let mut real = asked;
    real.l_whence = libc::SEEK_SET as i16;
    real.l_start = start;
    let description = if of_description { open + 1 } else { 0 };
    let away = fs.store().open_away(open).is_some();
    let fd = match of_description && away {
        true => -1,
        false => match stand_in(fs, o.id.load(Relaxed), description, away) {
            Ok(fd) => fd,
            Err(e) => return errno(e),
        },
    };
    if away {
        let wait = matches!(cmd, libc::F_SETLKW | libc::F_OFD_SETLKW);
        let pid = (!of_description).then(forebay_store::process::pid);
        let range = (real.l_type as u32, real.l_start, real.l_len);
        let found = match fs.store().lock_range_away(open, pid, setting, wait, range) {
            Ok(found) => found,
            Err(e) => return errno(e),
        };
        if setting {
            return 0;
        }
        real.l_type = found.0 as i16;
        if found.0 != libc::F_UNLCK as u32 {
            (real.l_start, real.l_len, real.l_pid) = (found.1, found.2, -1);
        }
        // SAFETY: the program's own struct flock.
        return value(unsafe { crate::paths::give(real, arg) });
    }
    // SAFETY: a descriptor of ours and a valid struct flock; may wait, as the program asks.
    let result = unsafe {
        raw(
            libc::SYS_fcntl,
            [fd.into(), cmd.into(), &raw mut real as i64, 0, 0, 0],
        )
    };
    if result == 0 && !setting {
        // SAFETY: as above.
        return value(unsafe { crate::paths::give(real, arg) });
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
