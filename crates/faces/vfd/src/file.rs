//! An open file: in a pool, by `forebay-posix`, or on the host, by the kernel.
//!
//! HDF5 passes the offset of each read and write. The driver keeps two marks for a file: `eoa`, the
//! end of the space that HDF5 has allocated, and `eof`, the size that this process has last seen.
//! As several processes may have a file open, [`Open::size`] reads the current size.

use crate::config::{Config, Place};
use forebay_iov::{Attached, PoolFile};
use forebay_posix::{File, LockType};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    pub write: bool,
    pub create: bool,
    pub truncate: bool,
    /// The file must not exist.
    pub exclusive: bool,
}

/// Identifies a file on this host: a device number and an inode number. Two opens of one file have
/// the same identity. The device number of a pool's files is the pool's
/// ([`forebay_posix::Fs::device`]).
pub type Identity = (u64, u64);

/// Identifies a file among processes on any nodes: the inode number, the type of the file system,
/// the device number, and the host in two numbers. The same file has the same numbers in every
/// process.
///
/// A shared file system has different device numbers on its nodes, and NFS, Lustre and FUSE have no
/// other number in common that is the same on all nodes. So the last three numbers of a file
/// outside of pools are 0, unless only one host can have the file system mounted ([`LOCAL`]).
pub type SharedIdentity = [u64; 5];

/// Types of file systems that one host alone can have mounted (`f_type` of statfs).
const LOCAL: [i64; 5] = [
    libc::TMPFS_MAGIC,
    libc::EXT4_SUPER_MAGIC,
    libc::XFS_SUPER_MAGIC,
    libc::BTRFS_SUPER_MAGIC,
    libc::F2FS_SUPER_MAGIC,
];

/// An open file.
pub enum Open {
    Pool(PoolFile, Identity),
    Host(fs::File, Identity),
}

/// Why an operation failed: an errno and a sentence.
pub type Failure = (Errno, String);

fn of_system(what: &str, e: &std::io::Error) -> Failure {
    let errno = Errno::from_io_error(e).unwrap_or(Errno::IO);
    (errno, format!("{what}: {e}"))
}

fn in_pool(e: Errno) -> Failure {
    of_pool("in the pool", e)
}

fn of_pool(what: &str, e: Errno) -> Failure {
    let words = std::io::Error::from(e).to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    (e, format!("{what}: {words}"))
}

/// Returns the pool and the path inside it, if the name is of a file in a pool.
fn locate(name: &str, config: &Config) -> Result<Option<(Attached, String)>, Failure> {
    let invalid = |text: String| (Errno::INVAL, text);
    let attach = |pool: &str| Attached::open(pool).map_err(|e| (e.errno(), e.to_string()));
    match Place::of(name).map_err(invalid)? {
        Place::Pool(named, path) => {
            let pool = named.or(config.pool.clone()).unwrap_or_default();
            Ok(Some((attach(&pool)?, path)))
        }
        Place::Host(path) => {
            let configured = config.pool.clone().unwrap_or_default();
            let whole = if path.starts_with('/') {
                path
            } else {
                match std::env::current_dir() {
                    Ok(dir) => format!("{}/{path}", dir.display()),
                    Err(_) => return Ok(None),
                }
            };
            // If the default pool can't be opened, the path is one of the host. A pool that the
            // configuration names must exist.
            let fs = match attach(&configured) {
                Ok(fs) => fs,
                Err(e) if config.pool.is_some() => return Err(e),
                Err(_) => return Ok(None),
            };
            let mount = String::from_utf8_lossy(fs.mount()).into_owned();
            Ok(Place::below(&whole, &mount)
                .map(str::to_owned)
                .map(|inner| (fs, inner)))
        }
    }
}

/// Opens a file.
///
/// # Errors
/// An errno and a sentence: the errors of opening; EINVAL for an invalid name; ENOTSUP, EBUSY if
/// the controls can't be declared for the file.
pub fn open(name: &str, mode: Mode, config: &Config) -> Result<Open, Failure> {
    let Some((fs, path)) = locate(name, config)? else {
        return open_on_host(name, mode);
    };
    let failed = |e| of_pool(name, e);
    let mut flags = if mode.write {
        libc::O_RDWR
    } else {
        libc::O_RDONLY
    };
    for (wanted, flag) in [
        (mode.create, libc::O_CREAT),
        (mode.truncate, libc::O_TRUNC),
        (mode.exclusive, libc::O_EXCL),
    ] {
        flags |= if wanted { flag } else { 0 };
    }
    let bits = fs.mode(0o666);
    let file = match config.controls {
        Some(declared) => fs
            .declaring(declared)
            .open(path.as_bytes(), flags, bits)
            .map(File::into_open),
        None => fs.open(path.as_bytes(), flags, bits).map(File::into_open),
    };
    let file = PoolFile::new(fs, file.map_err(failed)?);
    let stat = file.with(|f| f.stat()).map_err(failed)?;
    match stat.mode & libc::S_IFMT {
        libc::S_IFREG => {
            let device = file.pool().device();
            Ok(Open::Pool(file, (device, stat.ino)))
        }
        libc::S_IFDIR => Err(failed(Errno::ISDIR)),
        _ => Err(failed(Errno::INVAL)),
    }
}

fn open_on_host(name: &str, mode: Mode) -> Result<Open, Failure> {
    let mut options = fs::OpenOptions::new();
    options
        .read(true)
        .write(mode.write)
        .custom_flags(libc::O_CLOEXEC);
    options
        .create(mode.create && !mode.exclusive)
        .truncate(mode.truncate);
    options.create_new(mode.create && mode.exclusive);
    let file = options.open(name).map_err(|e| of_system(name, &e))?;
    let about = file.metadata().map_err(|e| of_system(name, &e))?;
    Ok(Open::Host(file, (about.dev(), about.ino())))
}

/// Removes a file.
///
/// # Errors
/// As for [`open`].
pub fn remove(name: &str, config: &Config) -> Result<(), Failure> {
    match locate(name, config)? {
        Some((fs, path)) => fs.unlink(path.as_bytes()).map_err(|e| of_pool(name, e)),
        None => fs::remove_file(name).map_err(|e| of_system(name, &e)),
    }
}

/// Returns a number that no other running host has; 0 if it can't be read.
fn host() -> u128 {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
}

impl Open {
    /// Returns the file's identity on this host.
    pub fn identity(&self) -> Identity {
        match self {
            Open::Pool(_, identity) | Open::Host(_, identity) => *identity,
        }
    }

    /// Returns the file's identity among processes on any nodes.
    ///
    /// # Errors
    /// The errors of statfs.
    pub fn shared_identity(&self) -> Result<SharedIdentity, Failure> {
        let (device, inode) = self.identity();
        let Open::Host(file, _) = self else {
            return Ok([inode, 0, device, 0, 0]);
        };
        let kind = rustix::fs::fstatfs(file).map_err(|e| of_pool("statfs", e))?;
        let kind = kind.f_type as i64;
        let (device, host) = if LOCAL.contains(&kind) {
            (device, host())
        } else {
            (0, 0)
        };
        Ok([inode, kind as u64, device, (host >> 64) as u64, host as u64])
    }

    /// Returns the file's current size in bytes.
    ///
    /// # Errors
    /// The errors of reading the file's attributes.
    pub fn size(&self) -> Result<u64, Failure> {
        match self {
            Open::Pool(file, _) => file.with(|f| f.stat().map(|s| s.size)).map_err(in_pool),
            Open::Host(file, _) => Ok(file.metadata().map_err(|e| of_system("stat", &e))?.len()),
        }
    }

    /// Reads at offset `at`. Bytes beyond the end of the file read as zero.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Failure> {
        let mut done = 0;
        while done < to.len() {
            let (rest, offset) = (&mut to[done..], at + done as u64);
            let n = match self {
                Open::Pool(file, _) => file.with(|f| f.read_at(rest, offset)).map_err(in_pool)?,
                Open::Host(file, _) => match file.read_at(rest, offset) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                    read => read.map_err(|e| of_system("read", &e))?,
                },
            };
            if n == 0 {
                to[done..].fill(0);
                break;
            }
            done += n;
        }
        Ok(())
    }

    /// Writes all of `bytes` at offset `at`.
    ///
    /// # Errors
    /// The errors of writing.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut done = 0;
        while done < bytes.len() {
            let (rest, offset) = (&bytes[done..], at + done as u64);
            let n = match self {
                Open::Pool(file, _) => file.with(|f| f.write_at(rest, offset)).map_err(in_pool)?,
                Open::Host(file, _) => match file.write_at(rest, offset) {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                    written => written.map_err(|e| of_system("write", &e))?,
                },
            };
            if n == 0 {
                return Err((Errno::NOSPC, "there is no room for what is written".into()));
            }
            done += n;
        }
        Ok(())
    }

    /// Sets the size in bytes.
    ///
    /// # Errors
    /// The errors of ftruncate.
    pub fn set_size(&self, size: u64) -> Result<(), Failure> {
        match self {
            Open::Pool(file, _) => file.with(|f| f.set_len(size)).map_err(in_pool),
            Open::Host(file, _) => file.set_len(size).map_err(|e| of_system("ftruncate", &e)),
        }
    }

    /// Makes written bytes visible to other processes, if the file's controls allow buffering them.
    ///
    /// # Errors
    /// If written bytes were lost.
    pub fn publish(&self) -> Result<(), Failure> {
        match self {
            Open::Pool(file, _) => file.publish().map_err(in_pool),
            Open::Host(..) => Ok(()),
        }
    }

    /// Locks the whole file as flock(2) does, without waiting.
    ///
    /// # Errors
    /// EWOULDBLOCK if another process holds a conflicting lock.
    pub fn lock(&self, kind: Lock) -> Result<(), Failure> {
        use rustix::fs::FlockOperation as Op;
        match self {
            Open::Pool(file, _) => {
                let want = match kind {
                    Lock::Shared => LockType::Shared,
                    Lock::Exclusive => LockType::Exclusive,
                    Lock::None => LockType::Unlocked,
                };
                file.with(|f| f.flock(want, false)).map_err(in_pool)
            }
            Open::Host(file, _) => {
                let op = match kind {
                    Lock::Shared => Op::NonBlockingLockShared,
                    Lock::Exclusive => Op::NonBlockingLockExclusive,
                    Lock::None => Op::NonBlockingUnlock,
                };
                rustix::fs::flock(file, op).map_err(|e| of_pool("flock", e))
            }
        }
    }

    /// Closes the file.
    ///
    /// # Errors
    /// If written bytes can't be written back.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Open::Pool(file, _) => file.close().map_err(in_pool),
            Open::Host(..) => Ok(()),
        }
    }
}

/// The kinds of locks on whole files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    Shared,
    Exclusive,
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_local_file_system_is_another_one_on_each_host() {
        let name = format!("/dev/shm/forebay-vfd-{}", std::process::id());
        let mode = Mode {
            create: true,
            write: true,
            ..Mode::default()
        };
        let (one, again) = (open_on_host(&name, mode), open_on_host(&name, mode));
        let identity = one.unwrap().shared_identity().unwrap();
        assert_eq!(again.unwrap().shared_identity(), Ok(identity));
        assert!(identity[2] != 0 && identity[3..] != [0, 0], "{identity:?}");
        fs::remove_file(&name).unwrap();
        let other = fs::File::open("/proc/self/status").unwrap();
        let [inode, kind, rest @ ..] = Open::Host(other, (7, 8)).shared_identity().unwrap();
        assert_eq!((inode, kind), (8, libc::PROC_SUPER_MAGIC as u64));
        assert_eq!(rest, [0, 0, 0]);
    }
}
