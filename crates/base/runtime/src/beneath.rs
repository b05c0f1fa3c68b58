//! Directory trees that other processes may change at any time: no path inside a tree leads out of
//! it.
//!
//! The root is opened once, by the path as the user wrote it; symbolic links on that path are
//! followed. Everything below is reached from the root's descriptor. Directories are opened by
//! openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS. An object is reached by its name in its
//! directory, and isn't followed if it is a link. So if another process replaces a directory by a
//! link, the result is an error (ELOOP), never an object outside the tree. Where the kernel has no
//! openat2, directories are opened one by one with O_NOFOLLOW.
//!
//! Paths are relative to the root, and may be longer than PATH_MAX. `.` and empty names are
//! skipped; `..` is refused (EXDEV).
//!
//! [`Tree::keeping`] keeps the descriptors of directories open, for trees of many small files.
//! Since another process may have moved a kept directory, [`Tree::rename`] resolves its paths
//! again.

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timestamps,
    Uid, XattrFlags, fstat, openat, openat2,
};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of directories that a tree keeps open. At the maximum, all are closed.
const MAX_OPEN_DIRECTORIES: usize = 64;
/// Maximum length of a path that one system call gets. Bytes, without the zero at its end.
const MAX_PIECE: usize = libc::PATH_MAX as usize - 1;
/// Maximum number of attempts to open a path while others rename directories on it (EAGAIN).
const MAX_ATTEMPTS: usize = 100;
/// Number of fchmodat2(2), the same on all architectures; the libc crate lacks it on some.
const SYS_FCHMODAT2: libc::c_long = 452;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A tree of directories that no path inside it leaves; see the module.
#[derive(Debug)]
pub struct Tree {
    root: Arc<OwnedFd>,
    kept: Option<Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>>,
}

/// An object's directory, and its name there: `.` for the root itself.
#[derive(Debug)]
pub struct Spot<'p> {
    pub dir: Arc<OwnedFd>,
    pub name: &'p [u8],
}

impl Spot<'_> {
    /// Returns a path in /proc for system calls that take no descriptor. The directory part follows
    /// no link of the tree; only the object itself may be a link.
    fn by_proc(&self) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}/", self.dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(self.name);
        path
    }
}

/// Names of a path, without empty ones and `.`.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/')
        .filter(|name| !matches!(*name, b"" | b"."))
}

/// Splits a path into its directory and its last name; the name is `.` if the path has none.
fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let mut dir = path;
    loop {
        let at = dir.iter().rposition(|&b| b == b'/');
        let (before, last) = match at {
            Some(at) => (&dir[..at], &dir[at + 1..]),
            None => (&dir[..0], dir),
        };
        match last {
            b".." => return Err(Errno::XDEV),
            b"" | b"." if at.is_some() => dir = before,
            b"" | b"." => return Ok((b"", b".")),
            _ => return Ok((before, last)),
        }
    }
}

impl Tree {
    /// The tree of the directory at `path`; symbolic links on it are followed.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(path: &[u8]) -> Result<Tree> {
        openat(CWD, path, DIRECTORY, Mode::empty()).map(Tree::new)
    }

    /// The tree of an open directory.
    pub fn new(root: OwnedFd) -> Tree {
        Tree {
            root: Arc::new(root),
            kept: None,
        }
    }

    /// Returns the same tree, whose directories stay open after their first use.
    #[must_use]
    pub fn keeping(self) -> Tree {
        Tree {
            kept: Some(Mutex::default()),
            ..self
        }
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory, without use of the kept descriptors. The result is an O_PATH descriptor.
    ///
    /// # Errors
    /// ELOOP for a symbolic link; EXDEV for `..`; others as openat2(2).
    pub fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>> {
        let mut at = self.root.clone();
        let mut piece = Vec::new();
        for name in names(path) {
            if name == b".." {
                return Err(Errno::XDEV);
            }
            if piece.len() + 1 + name.len() > MAX_PIECE {
                at = Arc::new(open_beneath(at.as_fd(), &piece)?);
                piece.clear();
            }
            if !piece.is_empty() {
                piece.push(b'/');
            }
            piece.extend_from_slice(name);
        }
        if piece.is_empty() {
            return Ok(at);
        }
        open_beneath(at.as_fd(), &piece).map(Arc::new)
    }

    /// Returns an object's directory and its name there; the object needn't exist. The directory
    /// may be one that was kept open.
    ///
    /// # Errors
    /// As [`Tree::directory`].
    pub fn spot<'p>(&self, path: &'p [u8]) -> Result<Spot<'p>> {
        let (dir, name) = split(path)?;
        let Some(kept) = &self.kept else {
            let dir = self.directory(dir)?;
            return Ok(Spot { dir, name });
        };
        let lock = || kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dir) = lock().get(dir).cloned() {
            return Ok(Spot { dir, name });
        }
        self.spot_now(path)
    }

    /// As [`Tree::spot`], but opens the directory again even if it was kept open.
    fn spot_now<'p>(&self, path: &'p [u8]) -> Result<Spot<'p>> {
        let (at, name) = split(path)?;
        let opened = self.directory(at);
        if let Some(kept) = &self.kept {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if opened.is_err() {
                kept.remove(at);
            }
            if kept.len() >= MAX_OPEN_DIRECTORIES && !kept.contains_key(at) {
                kept.clear();
            }
            if let Ok(dir) = &opened {
                kept.insert(at.to_vec(), dir.clone());
            }
        }
        opened.map(|dir| Spot { dir, name })
    }

    /// Returns an object's attributes. `follow`: if the last name is a symbolic link, those of its
    /// target; the target may lie outside the tree.
    ///
    /// # Errors
    /// As stat(2), or lstat(2) without `follow`.
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Stat> {
        let spot = self.spot(path)?;
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        rustix::fs::statat(&spot.dir, spot.name, flags)
    }

    /// Opens an object. Without O_NOFOLLOW in `flags`, the last name may be a link that leads out
    /// of the tree.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open_file(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let spot = self.spot(path)?;
        openat(&spot.dir, spot.name, flags | OFlags::CLOEXEC, mode)
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// As opendir(3).
    pub fn entries(&self, path: &[u8]) -> Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = self.directory(path)?;
        Dir::new(openat(&dir, c".", flags, Mode::empty())?)
    }

    /// # Errors
    /// As mkdir(2).
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::mkdirat(&spot.dir, spot.name, Mode::from_raw_mode(mode))
    }

    /// # Errors
    /// As unlink(2).
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::unlinkat(&spot.dir, spot.name, AtFlags::empty())
    }

    /// # Errors
    /// As rmdir(2).
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::unlinkat(&spot.dir, spot.name, AtFlags::REMOVEDIR)
    }

    /// Renames an object. Both directories are opened again, even if they were kept open.
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
        let new = self.spot_now(to)?;
        let (above, name) = split(from)?;
        let dir = if above == split(to)?.0 {
            new.dir.clone()
        } else {
            self.directory(above)?
        };
        if flags.is_empty() {
            return rustix::fs::renameat(&dir, name, &new.dir, new.name);
        }
        rustix::fs::renameat_with(&dir, name, &new.dir, new.name, flags)
    }

    /// Makes `new` another name of `old`; if `old` is a symbolic link, of the link itself.
    ///
    /// # Errors
    /// As linkat(2).
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let (old, new) = (self.spot(old)?, self.spot(new)?);
        rustix::fs::linkat(&old.dir, old.name, &new.dir, new.name, AtFlags::empty())
    }

    /// # Errors
    /// As symlink(2).
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::symlinkat(target, &spot.dir, spot.name)
    }

    /// # Errors
    /// As readlink(2).
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let spot = self.spot(path)?;
        let target = rustix::fs::readlinkat(&spot.dir, spot.name, Vec::new())?;
        Ok(target.into_bytes())
    }

    /// # Errors
    /// As fchmodat2(2); EOPNOTSUPP for a symbolic link.
    pub fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        /// Whether the kernel has no fchmodat2.
        static LACKS: AtomicBool = AtomicBool::new(false);
        let spot = self.spot(path)?;
        if !LACKS.load(Relaxed) {
            match fchmodat2(spot.dir.as_fd(), spot.name, mode) {
                Err(Errno::NOSYS) => LACKS.store(true, Relaxed),
                // Old seccomp filters of containers return this for calls that they don't know.
                Err(Errno::PERM) => {}
                other => return other,
            }
        }
        chmod_by_proc(&spot, mode)
    }

    /// Changes owner and group; of a symbolic link, those of the link itself.
    ///
    /// # Errors
    /// As fchownat(2).
    pub fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::chownat(
            &spot.dir,
            spot.name,
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    /// Sets the times; of a symbolic link, those of the link itself.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_times(&self, path: &[u8], times: &Timestamps) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::utimensat(&spot.dir, spot.name, times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Writes the names of an object's extended attributes into `buffer`, each with a zero at its
    /// end. Returns their length in bytes.
    ///
    /// # Errors
    /// As llistxattr(2).
    pub fn xattrs(&self, path: &[u8], buffer: &mut [u8]) -> Result<usize> {
        rustix::fs::llistxattr(self.spot(path)?.by_proc(), buffer)
    }

    /// # Errors
    /// As lgetxattr(2).
    pub fn xattr(&self, path: &[u8], name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        rustix::fs::lgetxattr(self.spot(path)?.by_proc(), name, buffer)
    }

    /// # Errors
    /// As lsetxattr(2).
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        let spot = self.spot(path)?;
        rustix::fs::lsetxattr(spot.by_proc(), name, value, XattrFlags::empty())
    }

    /// # Errors
    /// As lremovexattr(2).
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        rustix::fs::lremovexattr(self.spot(path)?.by_proc(), name)
    }
}

/// Opens the directory at `path`, of at most [`MAX_PIECE`] bytes and without `..`, below `dir`.
fn open_beneath(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    /// Whether the kernel has no openat2.
    static LACKS: AtomicBool = AtomicBool::new(false);
    if !LACKS.load(Relaxed) {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        for _ in 0..MAX_ATTEMPTS {
            match openat2(dir, path, DIRECTORY, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NOSYS) => {
                    LACKS.store(true, Relaxed);
                    break;
                }
                // Old seccomp filters of containers return this for calls that they don't know.
                Err(Errno::PERM) => break,
                other => return other,
            }
        }
    }
    open_one_by_one(dir, path)
}

fn open_one_by_one(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    for name in names(path) {
        let above = at.as_ref().map_or(dir, AsFd::as_fd);
        let opened = openat(above, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        at = Some(opened.map_err(|e| match e {
            Errno::NOTDIR if is_link(above, name) => Errno::LOOP,
            e => e,
        })?);
    }
    at.map_or_else(|| openat(dir, c".", DIRECTORY, Mode::empty()), Ok)
}

fn is_link(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink)
}

fn fchmodat2(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    // SAFETY: the descriptor is open and the name ends with a zero while the call runs; the call
    // changes no memory of this process.
    let result = unsafe {
        libc::syscall(
            SYS_FCHMODAT2,
            dir.as_raw_fd(),
            name.as_ptr(),
            mode,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}

/// Changes a mode where the kernel has no fchmodat2: opens the object, so that it can't be replaced
/// meanwhile, and changes it through the descriptor's path in /proc.
fn chmod_by_proc(spot: &Spot<'_>, mode: u32) -> Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let object = openat(&spot.dir, spot.name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&object)?.st_mode) == FileType::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    let path = format!("/proc/self/fd/{}", object.as_raw_fd());
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Returns the bytes of a path, as the functions of [`Tree`] take them.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    /// Makes a directory with `in/d/f` and `out/secret`, and links from `in` to `out`.
    fn scratch(name: &str) -> PathBuf {
        let top = std::env::temp_dir().join(format!("fb-beneath-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(top.join("in/d")).unwrap();
        fs::create_dir_all(top.join("out")).unwrap();
        fs::write(top.join("in/d/f"), "f").unwrap();
        fs::write(top.join("out/secret"), "s").unwrap();
        fs::set_permissions(top.join("out/secret"), PermissionsExt::from_mode(0o640)).unwrap();
        symlink("../out", top.join("in/away")).unwrap();
        symlink("../../out/secret", top.join("in/d/link")).unwrap();
        top
    }

    fn tree(top: &Path) -> Tree {
        Tree::open(bytes(&top.join("in"))).unwrap()
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn paths_are_split() {
        for (path, parts) in [
            (&b"a/b"[..], (&b"a"[..], &b"b"[..])),
            (b"a", (b"", b"a")),
            (b"", (b"", b".")),
            (b"./a//b/./", (b"./a/", b"b")),
            (b"/", (b"", b".")),
            (b"./", (b"", b".")),
        ] {
            assert_eq!(split(path).unwrap(), parts, "{}", path.escape_ascii());
        }
        assert_eq!(split(b"a/.."), Err(Errno::XDEV));
    }

    #[test]
    fn nothing_leads_out() {
        let top = scratch("links");
        let secret = top.join("out/secret");
        for tree in [tree(&top), tree(&top).keeping()] {
            let new = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW;
            let made = tree.open_file(b"away/new", new, Mode::RUSR);
            assert_eq!(made.unwrap_err(), Errno::LOOP);
            for refused in [
                tree.mkdir(b"away/new", 0o755),
                tree.unlink(b"away/secret"),
                tree.chmod(b"away/secret", 0o777),
                tree.set_xattr(b"away/secret", b"user.a", b"1"),
                tree.rename(b"d/f", b"away/f", RenameFlags::empty()),
                tree.rename(b"away/secret", b"d/f", RenameFlags::empty()),
                tree.link(b"d/f", b"away/f"),
                tree.symlink(b"x", b"away/x"),
            ] {
                assert_eq!(refused, Err(Errno::LOOP));
            }
            assert_eq!(tree.mkdir(b"../new", 0o755), Err(Errno::XDEV));
            assert_eq!(tree.chmod(b"d/link", 0o777), Err(Errno::OPNOTSUPP));
            let spot = tree.spot(b"d/link").unwrap();
            assert_eq!(chmod_by_proc(&spot, 0o777), Err(Errno::OPNOTSUPP));
            tree.chmod(b"d/f", 0o600).unwrap();
            chmod_by_proc(&tree.spot(b"d/f").unwrap(), 0o604).unwrap();
            assert_eq!(mode_of(&top.join("in/d/f")), 0o604);
        }
        assert_eq!(fs::read(&secret).unwrap(), b"s");
        assert_eq!(mode_of(&secret), 0o640);
        assert_eq!(fs::read_dir(top.join("out")).unwrap().count(), 1);
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn the_way_without_openat2_is_the_same() {
        let top = scratch("old");
        let tree = tree(&top);
        open_one_by_one(tree.root(), b"d").unwrap();
        for (path, error) in [
            (&b"away/x"[..], Errno::LOOP),
            (b"d/f", Errno::NOTDIR),
            (b"d/x", Errno::NOENT),
        ] {
            for open in [open_one_by_one, open_beneath] {
                assert_eq!(open(tree.root(), path).unwrap_err(), error);
            }
        }
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_kept_directory_that_moves_gets_no_names() {
        let top = scratch("moved");
        let tree = tree(&top).keeping();
        let new = OFlags::WRONLY | OFlags::CREATE;
        tree.open_file(b"d/part", new, Mode::RUSR).unwrap();
        fs::rename(top.join("in/d"), top.join("d")).unwrap();
        symlink("../out", top.join("in/d")).unwrap();
        let renamed = tree.rename(b"d/part", b"d/name", RenameFlags::empty());
        assert_eq!(renamed, Err(Errno::LOOP));
        // The descriptor that was kept for `d` isn't used any more, either.
        assert_eq!(tree.unlink(b"d/part"), Err(Errno::LOOP));
        assert!(!top.join("out/name").exists() && !top.join("d/name").exists());
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn paths_may_be_longer_than_path_max() {
        let top = scratch("deep");
        let tree = tree(&top).keeping();
        let name = [b'n'; 200];
        let mut path = name.to_vec();
        while path.len() < 3 * MAX_PIECE {
            tree.mkdir(&path, 0o755).unwrap();
            path.push(b'/');
            path.extend_from_slice(&name);
        }
        tree.symlink(b"target", &path).unwrap();
        assert_eq!(tree.readlink(&path).unwrap(), b"target");
        tree.unlink(&path).unwrap();
        // The standard library removes trees by descriptors, too, so the long path is no problem.
        fs::remove_dir_all(&top).unwrap();
    }
}
