//! Dead ends: the kernel's working directory of a process whose working directory is in a pool.
//!
//! Only the preload library knows the directory in the pool. A program that this library doesn't
//! reach (static, Go, set-user-ID) uses the kernel's working directory, which must therefore never
//! be a directory with a user's files. A dead end is the innermost of [`DEPTH`] nested directories,
//! all of them removed. A dead end has no entries, none can be created, and up to [`DEPTH`] steps
//! to `..` lead to another removed directory. Only root can list it (mode 0111).
//!
//! The environment variable [`VARIABLE`] carries the pool's directory across programs that don't
//! see the pool. The variable is valid while the process's working directory is a dead end.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, open, openat, unlinkat};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Environment variable `ID:DIR`: the id of the working directory, and the directory of its pool.
pub const VARIABLE: &CStr = c"FOREBAY_CWD";
/// Number of nested removed directories.
pub const DEPTH: usize = 32;
/// Name of the innermost directory; /proc shows it as the process's location.
const NAME: &str = "forebay-nowhere";
/// Name of the directories between the outermost and the innermost.
const OTHER: &str = "n";
/// Directories to create a dead end in if the pool's directory doesn't allow it.
const PLACES: [&str; 4] = ["/dev/shm", "/tmp", "/var/tmp", "/"];
/// Maximum number of names tried for the outermost directory.
const MAX_NAMES: u32 = 1000;

/// Creates a dead end. The result is a descriptor for fchdir(2).
///
/// # Errors
/// EACCES, EROFS, ENOSPC or another error of mkdir(2), if no directory allows it.
pub fn make(pool: &Path) -> Result<OwnedFd> {
    let first = match make_in(pool) {
        Err(e) => e,
        made => return made,
    };
    let mut others = PLACES.iter().map(|place| make_in(Path::new(place)));
    others.find_map(Result::ok).ok_or(first)
}

fn make_in(place: &Path) -> Result<OwnedFd> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let place = open(
        place,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let pid = std::process::id();
    for _ in 0..MAX_NAMES {
        let top = format!(".nowhere-{pid}-{}", NUMBER.fetch_add(1, Relaxed));
        match mkdirat(&place, top.as_str(), Mode::RWXU) {
            Err(Errno::EXIST) => continue,
            made => made?,
        }
        let mut names = vec![top.as_str()];
        let made = dig(&place, &mut names);
        let removed = match &made {
            Ok(bottom) => remove(bottom, &place, &names),
            // Remove the directories created so far.
            Err(_) => remove_by_path(&place, &names),
        };
        let bottom = made?;
        removed?;
        fchmod(&bottom, Mode::XUSR | Mode::XGRP | Mode::XOTH)?;
        return Ok(bottom);
    }
    Err(Errno::EXIST)
}

/// Creates the directories below the outermost one, `names[0]`, and appends their names to `names`.
/// Returns the innermost.
fn dig(place: &OwnedFd, names: &mut Vec<&str>) -> Result<OwnedFd> {
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let list = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The umask may have removed the owner's permissions.
    let bare = |at: &OwnedFd| {
        rustix::fs::fstat(at).is_ok_and(|s| s.st_mode & Mode::RWXU.bits() != Mode::RWXU.bits())
    };
    let mut at = openat(place, names[0], way, Mode::empty())?;
    let narrow = bare(&at);
    let widen = |dir: &OwnedFd, name: &str| {
        if narrow {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())
        } else {
            Ok(())
        }
    };
    widen(place, names[0])?;
    for level in 1..DEPTH {
        let is_last = level == DEPTH - 1;
        let name = if is_last { NAME } else { OTHER };
        mkdirat(&at, name, Mode::RWXU)?;
        names.push(name);
        widen(&at, name)?;
        let flags = if is_last { list } else { way };
        at = openat(&at, name, flags, Mode::empty())?;
    }
    Ok(at)
}

/// Removes the directories from the innermost one outwards.
fn remove(bottom: &OwnedFd, place: &OwnedFd, names: &[&str]) -> Result<()> {
    let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above: Option<OwnedFd> = None;
    for name in names.iter().skip(1).rev() {
        let parent = openat(above.as_ref().unwrap_or(bottom), "..", way, Mode::empty())?;
        unlinkat(&parent, *name, AtFlags::REMOVEDIR)?;
        above = Some(parent);
    }
    unlinkat(place, names[0], AtFlags::REMOVEDIR)
}

/// Removes the directories by their paths, innermost first: for a failure of [`dig`], which leaves
/// no open directory.
fn remove_by_path(place: &OwnedFd, names: &[&str]) -> Result<()> {
    for depth in (1..=names.len()).rev() {
        unlinkat(place, names[..depth].join("/"), AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Whether the kernel's working directory is a dead end.
pub fn is_here() -> bool {
    match rustix::fs::readlink("/proc/thread-self/cwd", Vec::new()) {
        Ok(link) => {
            let link = link.to_bytes();
            let end = link.strip_suffix(b" (deleted)");
            end.is_some_and(|path| path.ends_with(format!("/{NAME}").as_bytes()))
        }
        // There is no /proc here; getcwd of a removed directory fails.
        Err(_) => rustix::process::getcwd(Vec::new()) == Err(Errno::NOENT),
    }
}

/// Encodes a value of [`VARIABLE`].
pub fn describe(id: u64, pool: &[u8]) -> Vec<u8> {
    [format!("{id}:").as_bytes(), pool].concat()
}

/// Decodes a value of [`VARIABLE`]. Returns the id of the working directory, and the pool's
/// directory.
pub fn read(value: &[u8]) -> Option<(u64, &[u8])> {
    let cut = value.iter().position(|&b| b == b':')?;
    let id = std::str::from_utf8(&value[..cut]).ok()?.parse().ok()?;
    Some((id, &value[cut + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn in_scratch<T>(f: impl FnOnce(&Path) -> T) -> T {
        let dir = std::env::temp_dir().join(format!(
            "dead-end-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir(&dir).unwrap();
        let result = f(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        result
    }

    #[test]
    fn nothing_is_found_and_nothing_can_be_made() {
        in_scratch(|dir| {
            let end = make(dir).unwrap();
            assert_eq!(
                std::fs::read_dir(dir).unwrap().count(),
                0,
                "something is left"
            );
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            for up in 0..DEPTH {
                let at = "../".repeat(up);
                let name = format!("{at}x");
                assert_eq!(
                    mkdirat(&end, &*name, Mode::RWXU),
                    Err(Errno::NOENT),
                    "{name}"
                );
                assert!(openat(&end, &*format!("{at}n"), flags, Mode::empty()).is_err());
            }
            let here = format!("/proc/self/fd/{}", end.as_raw_fd());
            let link = std::fs::read_link(here).unwrap();
            assert!(
                link.to_str()
                    .unwrap()
                    .ends_with("/forebay-nowhere (deleted)")
            );
        });
    }

    #[test]
    fn another_place_is_taken() {
        in_scratch(|dir| {
            assert!(make(&dir.join("not there")).is_ok());
        });
    }

    #[test]
    fn the_variable() {
        let text = describe(77, b"/dev/shm/forebay-0/p:q");
        assert_eq!(read(&text), Some((77, &b"/dev/shm/forebay-0/p:q"[..])));
        assert_eq!(read(b"x:/y"), None);
        assert_eq!(read(b"7"), None);
    }
}
