//! Pools of this user that are being started on this host. There is one lock for each, which the
//! starting process holds from the first check of the name until the pool is up.
//!
//! A pool that is being made looks damaged to other processes, so they call [`Starting::is_held`]
//! before they report damage. The lock ends with the process that holds it.

use crate::config::check_name;
use crate::error::PoolError;
use crate::home::{home, make_home};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum number of attempts to lock a file that its holder keeps removing.
const ATTEMPTS: usize = 100;
/// How long [`Starting::begin`] retries while the name is locked: a call of [`Starting::is_held`]
/// locks it for a moment, too.
const LOOKED_AT: Duration = Duration::from_millis(100);
/// Pause of [`Starting::begin`] between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// Whether this process is starting a pool: [`Starting::is_held`] must not report this process's
/// lock as another process's.
static OWN: AtomicBool = AtomicBool::new(false);

/// The right to start the pool with this name.
#[derive(Debug)]
pub struct Starting {
    /// The locked file. Closing it releases the lock.
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
        // The lock's holder may just have removed the file: then the path leads to another file, or
        // to none.
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
        // Removed while the lock is held: later, the file could be another process's.
        let _ = rustix::fs::unlink(&self.path);
        OWN.store(false, Relaxed);
    }
}
