//! dnotify: signals when something changes in a directory of the pool (fcntl's F_NOTIFY).
//!
//! The kernel sends them, with the right number of a descriptor, by what it finds under that
//! number. So as soon as a program chooses a signal or an owner, or asks to be told, the
//! placeholder under the number of a directory is replaced by a shadow (`store/src/watches.rs`),
//! opened.

use crate::pool;
use crate::program::filter;
use crate::program::results::{check, errno};
use crate::served::inotify;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const DN_ACCESS: u32 = 1;
const DN_MODIFY: u32 = 2;
const DN_CREATE: u32 = 4;
const DN_DELETE: u32 = 8;
const DN_RENAME: u32 = 16;
const DN_ATTRIB: u32 = 32;
const DN_MULTISHOT: u32 = 1 << 31;
/// What each is in terms of inotify.
const EVENTS: [(u32, u32); 6] = [
    (DN_ACCESS, libc::IN_ACCESS),
    (DN_MODIFY, libc::IN_MODIFY),
    (DN_CREATE, libc::IN_CREATE | libc::IN_MOVED_TO),
    (DN_DELETE, libc::IN_DELETE | libc::IN_MOVED_FROM),
    (DN_RENAME, libc::IN_MOVED_FROM),
    (DN_ATTRIB, libc::IN_ATTRIB),
];

/// The shadow under the number `fd`, if there is one.
fn shadow_at(fs: &Fs, fd: i32) -> Option<PathBuf> {
    if !filter::has_shadow(fd) {
        return None;
    }
    let link = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).ok()?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(link.into_bytes()));
    fs.watches().shadow_mask(&path).map(|_| path)
}

/// Puts a shadow in the place of the placeholder, unless it is there.
fn shadow_of(fs: &Fs, fd: i32, open: u32) -> Result<PathBuf, Errno> {
    if let Some(path) = shadow_at(fs, fd) {
        return Ok(path);
    }
    let id = fs.description(open).id();
    let path = fs.watches().make_shadow(id, |path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let shadow = forebay_media::with_room(|| rustix::fs::open(path, flags, Mode::empty()))?;
        let number = i64::from(fd);
        // SAFETY: the program's own number goes on to stand for the same directory.
        unsafe {
            let get = [number, libc::F_GETFD.into(), 0, 0, 0, 0];
            let flags = check(raw(libc::SYS_fcntl, get))?;
            let cloexec = if flags != 0 { libc::O_CLOEXEC } else { 0 };
            let from = i64::from(shadow.as_raw_fd());
            check(raw(libc::SYS_dup3, [from, number, cloexec.into(), 0, 0, 0])).map(|_| ())
        }
    })?;
    filter::watch_shadow(fd);
    inotify::note_any();
    Ok(path)
}

/// Whether the command is about signals.
pub fn concerns(cmd: i32) -> bool {
    matches!(cmd, F_SETSIG | F_GETSIG | F_SETOWN_EX | F_GETOWN_EX)
        || matches!(cmd, libc::F_SETOWN | libc::F_GETOWN | libc::F_NOTIFY)
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

/// fcntl with one of these commands on an open file of the pool.
pub unsafe fn fcntl(fs: &Fs, open: u32, a: &[i64; 6]) -> i64 {
    let (fd, cmd) = (a[0] as i32, a[1] as i32);
    let is_dir = fs.description(open).is_dir();
    let asks = matches!(cmd, F_GETSIG | F_GETOWN_EX | libc::F_GETOWN);
    if cmd == libc::F_NOTIFY && !is_dir {
        return errno(Errno::NOTDIR);
    }
    // Nobody is told anything of files: they are always ready.
    let none = !is_dir || asks && shadow_at(fs, fd).is_none();
    match cmd {
        F_SETOWN_EX | F_GETOWN_EX if none => return errno(Errno::INVAL),
        _ if none => return 0,
        _ => {}
    }
    let shadow = match shadow_of(fs, fd, open) {
        Ok(shadow) => shadow,
        Err(e) => return errno(e),
    };
    if cmd != libc::F_NOTIFY {
        // SAFETY: the program's own call.
        return unsafe { raw(libc::SYS_fcntl, *a) };
    }
    let wanted = a[2] as u32;
    let mut mask = 0;
    for (_, events) in EVENTS.iter().filter(|(bit, _)| wanted & bit != 0) {
        mask |= events;
    }
    if mask == 0 {
        // SAFETY: the program's own call.
        let result = unsafe { raw(libc::SYS_fcntl, *a) };
        let _ = fs.watches().change_shadow(&shadow, 0);
        return result;
    }
    let before = fs.watches().shadow_mask(&shadow).unwrap_or(0);
    mask |= before & libc::IN_ALL_EVENTS;
    let once = before == 0 || before & libc::IN_ONESHOT != 0;
    if once && wanted & DN_MULTISHOT == 0 {
        mask |= libc::IN_ONESHOT;
    }
    let kernel = i64::from(DN_CREATE | DN_MULTISHOT);
    let told = [a[0], a[1], kernel, 0, 0, 0];
    // SAFETY: the program's own call, for what happens to the shadow.
    let result = unsafe { raw(libc::SYS_fcntl, told) };
    match fs.watches().change_shadow(&shadow, mask) {
        Err(e) if result >= 0 => errno(e),
        _ => result,
    }
}

/// Before `fd` is closed: the shadow under it, which nobody needs any more then.
pub fn before_close(fd: i32) -> Option<PathBuf> {
    let fs = pool::open_fs().filter(|_| inotify::is_own())?;
    shadow_at(fs, fd)
}

/// After it has been closed.
pub fn closed(shadow: Option<PathBuf>) {
    if let (Some(fs), Some(shadow)) = (pool::open_fs(), shadow) {
        fs.watches().drop_shadow(&shadow);
    }
}
