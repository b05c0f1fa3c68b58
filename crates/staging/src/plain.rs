//! Any file system that the kernel shows.

use crate::place::{Meta, Place, PlaceFile};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;

/// The kernel's name space.
#[derive(Clone, Copy, Debug)]
pub struct PlainPlace;

const NS: i64 = 1_000_000_000;

#[allow(
    clippy::unnecessary_cast,
    reason = "the widths differ between architectures"
)]
fn meta(s: &fs::Stat) -> Meta {
    let time = |sec: i64, ns: i64| sec.saturating_mul(NS).saturating_add(ns);
    Meta {
        dev: s.st_dev,
        ino: s.st_ino,
        mode: s.st_mode,
        nlink: s.st_nlink as u64,
        uid: s.st_uid,
        gid: s.st_gid,
        size: s.st_size as u64,
        atime: time(s.st_atime, s.st_atime_nsec as i64),
        mtime: time(s.st_mtime, s.st_mtime_nsec as i64),
        ctime: time(s.st_ctime, s.st_ctime_nsec as i64),
    }
}

fn timespec(ns: i64) -> Timespec {
    Timespec {
        tv_sec: ns.div_euclid(NS),
        tv_nsec: ns.rem_euclid(NS) as _,
    }
}

/// Whether the error means that the file system has no extended attributes.
fn without(error: Errno) -> bool {
    error == Errno::OPNOTSUPP || error == Errno::NOSYS
}

/// Calls `get` with ever larger buffers until the result fits.
fn grown(mut get: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        match get(&mut buffer) {
            Ok(n) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(e) => return Err(e),
        }
    }
}

impl Place for PlainPlace {
    type File<'a> = PlainFile;

    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta> {
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        fs::statat(CWD, path, flags).map(|s| meta(&s))
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in fs::Dir::new(fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<PlainFile> {
        // Non-blocking, in case a FIFO has replaced the file.
        let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if !follow {
            flags |= OFlags::NOFOLLOW;
        }
        // The source's access times should show who used it, not that it was staged.
        match fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => fs::open(path, flags, Mode::empty()),
            other => other,
        }
        .map(PlainFile)
    }

    fn create(&self, path: &[u8], _: &[u8]) -> Result<PlainFile> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        fs::open(path, flags, Mode::from_raw_mode(0o600)).map(PlainFile)
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        fs::mkdir(path, Mode::from_raw_mode(mode))
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        fs::unlink(path)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        fs::rmdir(path)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        fs::linkat(CWD, old, CWD, new, AtFlags::empty())
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        fs::symlink(target, path)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(fs::readlink(path, Vec::new())?.into_bytes())
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        fs::chmod(path, Mode::from_raw_mode(mode))
    }

    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        fs::chownat(
            CWD,
            path,
            uid.map(fs::Uid::from_raw),
            gid.map(fs::Gid::from_raw),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    fn set_times(&self, path: &[u8], atime: i64, mtime: i64) -> Result<()> {
        let times = Timestamps {
            last_access: timespec(atime),
            last_modification: timespec(mtime),
        };
        fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        match grown(|b| fs::llistxattr(path, b)) {
            Ok(list) => Ok(list
                .split(|&b| b == 0)
                .filter(|n| n.starts_with(b"user."))
                .map(<[u8]>::to_vec)
                .collect()),
            Err(e) if without(e) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        grown(|b| fs::lgetxattr(path, name, b))
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        fs::lsetxattr(path, name, value, XattrFlags::empty())
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        fs::lremovexattr(path, name)
    }

    fn sync_all(&self, path: &[u8]) -> Result<()> {
        let fd = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        fs::syncfs(&fd)
    }

    fn show(&self, path: &[u8]) -> String {
        String::from_utf8_lossy(path).into_owned()
    }
}

/// An open file of the kernel.
#[derive(Debug)]
pub struct PlainFile(OwnedFd);

impl PlaceFile for PlainFile {
    fn meta(&self) -> Result<Meta> {
        fs::fstat(&self.0).map(|s| meta(&s))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut *buffer, at))
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.0, bytes, at))
    }

    fn set_len(&self, size: u64) -> Result<()> {
        fs::ftruncate(&self.0, size)
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        match fs::seek(&self.0, fs::SeekFrom::Data(at)) {
            // A file system without holes: all is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
            other => other,
        }
    }

    fn seek_hole(&self, at: u64) -> Result<u64> {
        match fs::seek(&self.0, fs::SeekFrom::Hole(at)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(u64::MAX),
            other => other,
        }
    }

    fn sync(&self) -> Result<()> {
        fs::fsync(&self.0)
    }

    fn forget_cached(&self) {
        let _ = fs::fadvise(&self.0, 0, None, fs::Advice::DontNeed);
    }

    fn close(self) -> Result<()> {
        // SAFETY: the descriptor is owned, and not used again.
        match unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(self.0)) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)),
        }
    }
}
