//! inotify on paths of the pool.
//!
//! The program's inotify descriptor is the kernel's. For an object of the pool, that descriptor
//! watches a shadow file in the node's directory (`store/src/watches.rs`). The kernel handles all
//! calls on the descriptor, except those that add and remove watches, and reads: events about
//! shadows are replaced by the events for which they stand. The replacement needs no state in
//! memory, so it also works for any process that inherits the descriptor.

use crate::paths::locate::{Where, locate};
use crate::paths::{PathCall, on_path};
use crate::pool::{self, fds, stand_in};
use crate::program::results::{check, errno, value};
use crate::program::{filter, process, user};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Follow, Fs, READ};
use forebay_runtime::user::UserSliceMut;
use forebay_store::watches::SHADOW_MASK;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Number of bytes of an event before its name.
const HEADER: usize = 16;
/// Number of bytes by which an event about a shadow is longer than the event for which it stands.
const LONGER: usize = 16;

/// Whether there is an inotify descriptor, or a directory's descriptor that sends signals.
static ANY: AtomicBool = AtomicBool::new(false);
/// Whether a descriptor has been duplicated, or inherited by a child: then closing the descriptor
/// in this process may not be its last close.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Serves inotify_init and inotify_init1.
pub unsafe fn init(nr: i64, a: &[i64; 6]) -> i64 {
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let fd = unsafe { raw(nr, *a) };
    if fd >= 0 {
        note(fd as i32);
    }
    fd
}

/// Whether only this process can have its inotify descriptors.
fn is_own() -> bool {
    !SHARED.load(Acquire) && !process::in_vfork_child()
}

fn note(fd: i32) {
    ANY.store(true, Release);
    filter::watch_inotify(fd);
}

/// Whether the program has had an inotify descriptor: a child may use it to watch.
pub fn any() -> bool {
    ANY.load(Acquire)
}

/// Records that a child is being made that inherits all descriptors.
pub fn before_fork() {
    if any() {
        SHARED.store(true, Release);
    }
}

/// Records that `new` is a duplicate of `old`.
pub fn duplicated(old: i32, new: i32) {
    if filter::is_inotify(old) {
        SHARED.store(true, Release);
        filter::watch_inotify(new);
    }
}

/// Finds the inotify descriptors that the program has inherited over exec.
pub fn after_exec(fs: &Fs) {
    if !fs.store().watches().has_watches() {
        return;
    }
    for fd in std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        let number = fd.file_name().to_str().and_then(|n| n.parse().ok());
        if let Some(fd) = number.filter(|&fd| kind(fd).is_ok()) {
            note(fd);
            SHARED.store(true, Release);
        }
    }
}

/// Checks that `fd` is an inotify descriptor. Otherwise EBADF, or EINVAL for another file.
fn kind(fd: i32) -> Result<(), Errno> {
    if fds::is_path_only(fd) {
        return Err(Errno::BADF);
    }
    match rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()) {
        Ok(to) if to.as_bytes() == b"anon_inode:inotify" => Ok(()),
        Ok(_) => Err(Errno::INVAL),
        Err(_) => Err(Errno::BADF),
    }
}

/// Serves inotify_add_watch.
pub unsafe fn add_watch(p: PathCall<'_>) -> i64 {
    let (fd, mask) = (p.args[0] as i32, p.args[2] as u32);
    let both = libc::IN_MASK_ADD | libc::IN_MASK_CREATE;
    const KNOWN: u32 = libc::IN_ALL_EVENTS
        | libc::IN_ONLYDIR
        | libc::IN_DONT_FOLLOW
        | libc::IN_EXCL_UNLINK
        | libc::IN_MASK_CREATE
        | libc::IN_MASK_ADD
        | libc::IN_ISDIR
        | libc::IN_ONESHOT
        | libc::IN_UNMOUNT
        | libc::IN_Q_OVERFLOW
        | libc::IN_IGNORED;
    if mask & KNOWN == 0 || mask & !KNOWN != 0 || mask & both == both {
        // The kernel returns EINVAL or EBADF, whatever the path.
        // SAFETY: the program is making this call.
        return unsafe { stand_in::call(p.nr, p.args, &[0]) };
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if let Err(e) = kind(fd) {
            return match locate(libc::AT_FDCWD, p.args[1]) {
                Ok(Where::Kernel) => stand_in::call(p.nr, p.args, &[0]),
                _ => errno(e),
            };
        }
        let follow = match mask & libc::IN_DONT_FOLLOW {
            0 => Follow::Yes,
            _ => Follow::No,
        };
        on_path(p, None, 1, follow, |fs, place| {
            let e = place.existing()?;
            if mask & libc::IN_ONLYDIR != 0 && e.kind != libc::S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            fs.access(place, READ)?;
            let wd = fs
                .store()
                .watches()
                .watch(fd, e.id, mask, |shadow| add(fd, shadow))?;
            note(fd);
            Ok(wd)
        })
    }
}

/// Makes the kernel watch a shadow.
fn add(fd: i32, shadow: &Path) -> Result<i64, Errno> {
    let path = CString::new(shadow.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let args = [
        i64::from(fd),
        path.as_ptr() as i64,
        i64::from(SHADOW_MASK),
        0,
        0,
        0,
    ];
    // SAFETY: `path` is a C string of this library that outlives the call.
    check(unsafe { raw(libc::SYS_inotify_add_watch, args) })
}

/// Serves inotify_rm_watch.
pub unsafe fn rm_watch(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    let Some(fs) = pool_of(fd) else {
        // SAFETY: the program is making this call.
        return unsafe { stand_in::call(libc::SYS_inotify_rm_watch, a, &[0]) };
    };
    let watched = fs.store().watches().watched_by(fd);
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(libc::SYS_inotify_rm_watch, *a) };
    if let Some((_, inode)) = watched.iter().find(|w| w.0 == a[1] as i32)
        && result == 0
    {
        fs.store().watches().unwatch(*inode);
    }
    result
}

/// Returns the pool, if `fd` is an inotify descriptor that may watch objects of the pool.
fn pool_of(fd: i32) -> Option<&'static Fs> {
    let fs = pool::open_fs().filter(|_| filter::is_inotify(fd))?;
    fs.store().watches().has_watches().then_some(fs)
}

/// Returns the shadows that nothing watches any more once `fd` is closed; called before the close.
pub fn before_close(fd: i32) -> Vec<u64> {
    match pool_of(fd) {
        Some(fs) if is_own() => {
            let watched = fs.store().watches().watched_by(fd);
            watched.into_iter().map(|(_, inode)| inode).collect()
        }
        // The keeper checks whether other processes watch the shadows.
        _ => Vec::new(),
    }
}

/// Gives up the shadows that [`before_close`] returned, after the descriptor has been closed.
pub fn closed(unwatched: Vec<u64>) {
    if let Some(fs) = pool::open_fs() {
        for inode in unwatched {
            fs.store().watches().unwatch(inode);
        }
    }
}

/// Serves read of an inotify descriptor.
pub unsafe fn read(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    let Some(fs) = pool::open_fs().filter(|_| filter::is_inotify(fd)) else {
        return PASS;
    };
    if kind(fd).is_err() {
        // The number stands for another file now.
        filter::unwatch(fd);
        return PASS;
    }
    // SAFETY: the program passed this buffer to the call, which outlasts the slice.
    read_events(fs, a[0], unsafe {
        UserSliceMut::new(a[1] as *mut u8, a[2] as usize)
    })
}

/// Serves readv of an inotify descriptor: buffer by buffer, as the kernel does.
pub unsafe fn readv(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    let Some(fs) = pool::open_fs().filter(|_| filter::is_inotify(fd)) else {
        return PASS;
    };
    if kind(fd).is_err() || !(1..=1024).contains(&a[2]) {
        return PASS;
    }
    // SAFETY: any bytes are valid iovecs; a bad address is caught.
    let parts: Vec<libc::iovec> = match unsafe { user::take_list(a[1], a[2] as usize) } {
        Ok(parts) => parts,
        Err(e) => return errno(e),
    };
    let mut done = 0;
    for part in parts.iter().filter(|p| p.iov_len > 0) {
        // SAFETY: the program passed this buffer to the call, which outlasts `to`.
        let to = unsafe { UserSliceMut::new(part.iov_base.cast(), part.iov_len) };
        let n = read_events(fs, a[0], to);
        if n < 0 {
            return if done > 0 { done } else { n };
        }
        done += n;
        if (n as usize) < part.iov_len {
            break;
        }
    }
    done
}

fn read_events(fs: &Fs, fd: i64, to: UserSliceMut<'_>) -> i64 {
    let len = to.len();
    // SAFETY: `to` is the program's buffer, or one of this library, and has `len` bytes.
    let ask = |to: i64, len: usize| unsafe { raw(libc::SYS_read, [fd, to, len as i64, 0, 0, 0]) };
    let n = ask(to.address() as i64, len);
    let mut events;
    if n > 0 {
        events = Vec::new();
        // Copies the events that the kernel has just written.
        if let Err(e) = to.as_input().first(n as usize).append_to(&mut events) {
            return errno(e);
        }
    } else if n == -i64::from(libc::EINVAL)
        && (HEADER..HEADER + 256).contains(&len)
        && fs.store().watches().has_watches()
    {
        // The next event doesn't fit; the shorter event for which it stands may fit.
        events = vec![0u8; len + LONGER];
        let n = ask(events.as_mut_ptr() as i64, events.len());
        if n <= 0 {
            return n;
        }
        events.truncate(n as usize);
    } else {
        return n;
    }
    let events = translated(fs, &events);
    if events.len() > len {
        return errno(Errno::INVAL);
    }
    value(to.copy_from(&events).map(|()| events.len() as i64))
}

/// Returns the kernel's events, with those about shadows replaced by the events for which they
/// stand.
fn translated(fs: &Fs, events: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(events.len());
    let mut rest = events;
    while rest.len() >= HEADER {
        let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        let (mask, len) = (word(4), word(12) as usize);
        let (event, behind) = rest.split_at((HEADER + len).min(rest.len()));
        let padded = &event[HEADER..];
        let name = padded.split(|&b| b == 0).next().unwrap_or_default();
        let happened = fs.store().watches().happened(name);
        match happened.filter(|_| mask & SHADOW_MASK != 0) {
            None => out.extend_from_slice(event),
            Some(e) => {
                let len = match e.name.len() {
                    0 => 0,
                    n => (n + 1).next_multiple_of(16),
                };
                out.extend_from_slice(&event[..4]);
                for word in [e.mask, e.cookie, len as u32] {
                    out.extend_from_slice(&word.to_ne_bytes());
                }
                let start = out.len();
                out.extend_from_slice(&e.name);
                out.resize(start + len, 0);
            }
        }
        rest = behind;
    }
    out
}
