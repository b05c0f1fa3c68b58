//! The pools of this user that are being started on this host: a lock for each, which its process
//! holds from the first check of the name until the pool is up.
//!
//! A pool that is being made looks damaged to other processes. They call [`Starting::is_held`]
//! before they report that. The lock ends with its process.

use crate::config::check_name;
use crate::error::PoolError;
use crate::home::{home, make_home};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Attempts to lock a file that its holder removes meanwhile.
const ATTEMPTS: usize = 100;
/// How long [`Starting::begin`] tries while the name is locked: [`Starting::is_held`] locks it for
/// a moment, too.
const LOOKED_AT: Duration = Duration::from_millis(100);
/// Pause between two of these tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// Whether this process starts a pool: its own lock must not be taken for another process's.
static OWN: AtomicBool = AtomicBool::new(false);

/// The right to start the pool of a name.
#[derive(Debug)]
pub struct Starting {
    /// The lock, held until it is closed.
    _file: OwnedFd,
    path: PathBuf,
}

fn path_of(name: &str) -> PathBuf {
    home().join(format!(".starting-{name}"))
}

/// Opens and locks the file of this path; None if another process holds the lock.
fn lock(path: &Path, flags: OFlags, operation: FlockOperation) -> Result<Option<OwnedFd>> {
    for _ in 0..ATTEMPTS {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::flock(&file, operation) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // The lock's holder may just have removed the file: then the name is another file's, or no
        // file's.
        let held = rustix::fs::fstat(&file)?;
        match rustix::fs::statat(CWD, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {
                return Ok(Some(file));
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::AGAIN)
}

impl Starting {
    /// Begins to start the pool `name` on this host.
    ///
    /// # Errors
    /// [`PoolError::Starting`] while another process starts it; [`PoolError::Invalid`] for an
    /// invalid name; [`PoolError::Io`].
    pub fn begin(name: &str) -> std::result::Result<Starting, PoolError> {
        check_name(name)?;
        make_home()?;
        let path = path_of(name);
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let until = Instant::now() + LOOKED_AT;
        let mut file = lock(&path, OFlags::CREATE, exclusive);
        while matches!(file, Ok(None)) && Instant::now() < until {
            std::thread::sleep(RETRY_INTERVAL);
            file = lock(&path, OFlags::CREATE, exclusive);
        }
        match file.map_err(|e| PoolError::io("can't lock the pool's name, by", &path, e))? {
            None => Err(PoolError::Starting(name.to_owned())),
            Some(_file) => {
                OWN.store(true, Relaxed);
                Ok(Starting { _file, path })
            }
        }
    }

    /// Whether another process is starting the pool `name` on this host.
    pub fn is_held(name: &str) -> bool {
        let held = lock(
            &path_of(name),
            OFlags::empty(),
            FlockOperation::NonBlockingLockShared,
        );
        !OWN.load(Relaxed) && matches!(held, Ok(None))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        // Before the lock is released, so that no other process's file is removed.
        let _ = rustix::fs::unlink(&self.path);
        OWN.store(false, Relaxed);
    }
}
