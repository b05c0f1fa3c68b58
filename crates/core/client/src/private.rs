//! Directories that only their owner can change: homes, pools, media.
//!
//! The content of these directories is trusted (records, patches of libraries). So no other user
//! may have created them, or be able to replace them. A directory is opened without following a
//! link, and fstat of that descriptor is checked: the owner must be the effective user, and no
//! other user may have write permission. Each directory above must belong to this user or to root.
//! A directory above to which other users can write must be sticky, so that they can't rename
//! entries of this user.

use crate::PoolError;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// How strictly the directories above are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// For homes: no other user may be able to rename entries of the directories above.
    Strict,
    /// For media and mounts: directories above may belong to others, as project directories do.
    Any,
}

/// Maximum number of symbolic links in the path of a directory, as in the kernel.
const MAX_LINKS: usize = 40;

fn foreign(dir: &Path, why: impl Into<String>) -> PoolError {
    PoolError::Foreign(dir.to_owned(), why.into())
}

fn look(dir: &Path, e: Errno) -> PoolError {
    PoolError::io("can't look at", dir, e)
}

/// Opens a directory with O_PATH, refusing a link.
fn open(dir: &Path) -> Result<OwnedFd, PoolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOTDIR | Errno::LOOP => foreign(dir, "is a link, or no directory"),
        e => look(dir, e),
    })
}

/// Checks that no other user owns a directory, can write to it, or can replace it.
///
/// # Errors
/// [`PoolError::Foreign`] with the directory and the reason; [`PoolError::Io`] if open or fstat
/// fails.
pub fn check(dir: &Path, above: Above) -> Result<(), PoolError> {
    let fd = open(dir)?;
    check_open(&fd, dir)?;
    match above {
        Above::Strict => check_above(dir),
        Above::Any => Ok(()),
    }
}

fn check_open(fd: &OwnedFd, dir: &Path) -> Result<(), PoolError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| look(dir, e))?;
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != me {
        return Err(foreign(
            dir,
            format!("belongs to another user ({})", stat.st_uid),
        ));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(foreign(
            dir,
            format!(
                "lets another user change it (mode {:o})",
                stat.st_mode & 0o7777
            ),
        ));
    }
    Ok(())
}

/// Returns why a user other than this one and root can rename entries of a directory; None if no
/// other user can.
fn unsafe_above(stat: &Stat) -> Option<String> {
    let me = rustix::process::geteuid().as_raw();
    let uid = stat.st_uid;
    if uid != me && uid != 0 && !(uid == OVERFLOW && in_user_namespace()) {
        return Some(format!("belongs to another user ({uid})"));
    }
    let sticky = stat.st_mode & 0o1000 != 0;
    // Many systems give each user a group that has no other member.
    let own_group = stat.st_gid == rustix::process::getegid().as_raw() || stat.st_gid == 0;
    let others = stat.st_mode & 0o002 != 0 || stat.st_mode & 0o020 != 0 && !own_group;
    (others && !sticky).then(|| "lets another user rename what lies in it".into())
}

/// The user id that the kernel shows for users that have no id in this user namespace.
const OVERFLOW: u32 = 65534;

/// Whether user ids are mapped in this user namespace: then root's directories may appear to belong
/// to [`OVERFLOW`].
fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut words = map.split_whitespace();
    [words.next(), words.next(), words.next()] != [Some("0"), Some("0"), Some("4294967295")]
}

/// Checks all directories above `dir`, and the links in the path.
fn check_above(dir: &Path) -> Result<(), PoolError> {
    let dir = std::path::absolute(dir).map_err(|e| {
        let e = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        look(dir, e)
    })?;
    // Components that remain to be checked, in reverse order.
    let mut left: Vec<OsString> = Vec::new();
    let push = |left: &mut Vec<OsString>, path: &Path| {
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => left.push(name.to_owned()),
                Component::ParentDir => left.push("..".into()),
                _ => {}
            }
        }
    };
    if let Some(above) = dir.parent() {
        push(&mut left, above);
    }
    let mut at = PathBuf::from("/");
    let mut links = 0;
    let stat = |path: &Path| {
        rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| look(path, e))
    };
    loop {
        let found = stat(&at)?;
        if let Some(why) = unsafe_above(&found) {
            return Err(foreign(
                &dir,
                format!("lies below {}, which {why}", at.display()),
            ));
        }
        // Continue with the next directory of the path.
        loop {
            let Some(name) = left.pop() else {
                return Ok(());
            };
            if name == ".." {
                at.pop();
                break;
            }
            let next = at.join(&name);
            let found = stat(&next)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
                at = next;
                break;
            }
            links += 1;
            let me = rustix::process::geteuid().as_raw();
            let theirs = found.st_uid != me && found.st_uid != 0;
            if links > MAX_LINKS || theirs && !(found.st_uid == OVERFLOW && in_user_namespace()) {
                let why = format!(
                    "is reached by the link {}, which belongs to another user",
                    next.display()
                );
                return Err(foreign(&dir, why));
            }
            let target = rustix::fs::readlink(&next, Vec::new()).map_err(|e| look(&next, e))?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            push(&mut left, &target);
        }
    }
}

/// Creates `dir` with mode 0700, whatever the umask. With `shared`, it may exist already if it
/// passes [`check`], and missing directories above are created in the same way.
///
/// # Errors
/// As for [`check`]; [`PoolError::Io`] with EEXIST if it exists without `shared`, or with the
/// error of mkdir.
pub fn make(dir: &Path, shared: bool, above: Above) -> Result<(), PoolError> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) => {
            let fd = open(dir)?;
            set_private(&fd, dir)?;
            check_open(&fd, dir)?;
            match above {
                Above::Strict => check_above(dir),
                Above::Any => Ok(()),
            }
            .inspect_err(|_| {
                let _ = rustix::fs::rmdir(dir);
            })
        }
        Err(Errno::EXIST) if shared => check(dir, above),
        Err(Errno::NOENT) if shared => {
            let parent = dir.parent().filter(|p| !p.as_os_str().is_empty());
            let parent = parent.ok_or_else(|| PoolError::io("can't make", dir, Errno::NOENT))?;
            match make_above(parent) {
                Ok(()) => make(dir, true, above),
                Err(e) => Err(PoolError::io("can't make", parent, e)),
            }
        }
        Err(Errno::NOENT) => {
            let parent = dir.parent().unwrap_or(dir);
            Err(PoolError::io(
                "a medium's directory must be there already:",
                parent,
                Errno::NOENT,
            ))
        }
        Err(e) => Err(PoolError::io("can't make a directory at", dir, e)),
    }
}

/// Creates a directory and the missing ones above it, with mode 0700.
fn make_above(dir: &Path) -> Result<(), Errno> {
    let made = match rustix::fs::mkdir(dir, Mode::RWXU) {
        Err(Errno::NOENT) => {
            let parent = dir.parent().filter(|p| !p.as_os_str().is_empty());
            make_above(parent.ok_or(Errno::NOENT)?)?;
            rustix::fs::mkdir(dir, Mode::RWXU)
        }
        made => made,
    };
    match made {
        Ok(()) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::open(dir, flags, Mode::empty())?;
            chmod(&fd)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e),
    }
}

fn set_private(fd: &OwnedFd, dir: &Path) -> Result<(), PoolError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| look(dir, e))?;
    if stat.st_mode & 0o777 == 0o700 {
        return Ok(());
    }
    chmod(fd).map_err(|e| PoolError::io("can't set the mode of", dir, e))
}

/// Sets mode 0700 by an O_PATH descriptor. fchmod doesn't accept such a descriptor.
fn chmod(fd: &OwnedFd) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::chmod(path, Mode::RWXU)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// A directory for a test, removed at its end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let dir =
                std::env::temp_dir().join(format!("fb-private-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).unwrap();
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
            Place(dir)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_missing_above_is_made_for_its_owner_alone() {
        let p = Place::new("above");
        let dir = p.0.join("a/b/c");
        make(&dir, true, Above::Strict).unwrap();
        for made in [p.0.join("a"), p.0.join("a/b"), dir.clone()] {
            assert_eq!(std::fs::metadata(made).unwrap().mode() & 0o7777, 0o700);
        }
        make(&dir, true, Above::Strict).unwrap();
        assert!(make(&dir, false, Above::Strict).is_err());
    }

    #[test]
    fn links_and_what_others_can_change_are_refused() {
        let p = Place::new("links");
        let (dir, link) = (p.0.join("own"), p.0.join("link"));
        make(&dir, false, Above::Strict).unwrap();
        symlink(&dir, &link).unwrap();
        let refused =
            |path: &Path| matches!(check(path, Above::Strict), Err(PoolError::Foreign(..)));
        assert!(refused(&link), "the directory itself is never a link");
        mode(&dir, 0o720);
        assert!(refused(&dir));
        mode(&dir, 0o702);
        assert!(refused(&dir));
        mode(&dir, 0o755);
        assert!(!refused(&dir));
        // Above the directory, a link of this user passes. A directory in which others can rename
        // entries doesn't, unless it is sticky.
        let inner = dir.join("inner");
        make(&inner, false, Above::Strict).unwrap();
        assert!(!refused(&link.join("inner")));
        mode(&dir, 0o777);
        assert!(refused(&inner) && refused(&link.join("inner")));
        assert!(check(&inner, Above::Any).is_ok());
        mode(&dir, 0o1777);
        assert!(!refused(&inner));
    }
}
