//! The pools that this process has open.
//!
//! The records of a pool must not be opened twice in a process. So all sessions and back ends of a
//! process share one [`Fs`] for each pool, and the last of them closes it before the pool can be
//! opened again. A forked child doesn't touch its parent's pools, not even to close them. The child
//! opens a pool again.

use crate::process::{Generation, lock_in_time};
use crate::{Error, Result};
use forebay_client::{Pool, PoolError, choose};
use forebay_posix::{Fs, umask};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

struct Known {
    generation: Generation,
    dir: PathBuf,
    fs: Weak<Open>,
}

/// An open pool.
struct Open {
    fs: Fs,
    /// The process's umask when the pool was opened.
    umask: u32,
    /// Held while the caller claims an entry in the process's table of mappings.
    claiming: Mutex<()>,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A handle of an open pool. All handles of a pool in a process share one [`Fs`].
pub struct Attached {
    /// None only within `drop`.
    fs: Option<Arc<Open>>,
    generation: Generation,
}

fn known() -> Result<MutexGuard<'static, Vec<Known>>> {
    lock_in_time(&KNOWN, "opening a pool")
}

fn of_pool(error: PoolError) -> Error {
    let errno = match &error {
        PoolError::Invalid(_) => Errno::INVAL,
        PoolError::Exists(_) | PoolError::ExistsStale(_) => Errno::EXIST,
        PoolError::Absent(_) => Errno::NOENT,
        PoolError::Foreign(..) => Errno::ACCESS,
        PoolError::Io { error, .. } => *error,
        _ => Errno::IO,
    };
    Error::new(errno, error.to_string())
}

impl Attached {
    /// Opens the pool of this name; an empty name selects `$FOREBAY_POOL`, or else `default`, as on
    /// the command line.
    ///
    /// # Errors
    /// ENOENT if this node has no such pool; the errors of opening it.
    pub fn open(name: &str) -> Result<Attached> {
        let from_environment = || std::env::var("FOREBAY_POOL").ok().filter(|n| !n.is_empty());
        let name = match name {
            "" => from_environment().unwrap_or_else(|| "default".into()),
            name => name.to_owned(),
        };
        let place = choose(&name, None).map_err(of_pool)?;
        let generation = Generation::now();
        let mut known = known()?;
        known.retain(|k| k.generation.is_now() && k.fs.strong_count() > 0);
        let there = known.iter().find(|k| k.dir == place.dir);
        if let Some(fs) = there.and_then(|k| k.fs.upgrade()) {
            let fs = Some(fs);
            return Ok(Attached { fs, generation });
        }
        let fs = Arc::new(Open {
            fs: Fs::for_program(Arc::new(Pool::open_dir(&place.dir).map_err(of_pool)?)),
            umask: umask(),
            claiming: Mutex::default(),
        });
        known.push(Known {
            generation,
            dir: place.dir,
            fs: Arc::downgrade(&fs),
        });
        let fs = Some(fs);
        Ok(Attached { fs, generation })
    }

    /// Whether both handles are of the same pool.
    pub fn is(&self, other: &Attached) -> bool {
        std::ptr::eq::<Fs>(&**self, &**other)
    }

    /// Checks that this process may use the handle.
    ///
    /// # Errors
    /// EPERM in a forked child of the process that opened the pool.
    pub fn check(&self) -> Result<()> {
        self.generation.check()
    }

    /// Returns the mode of a new object: `bits` without those of the umask.
    pub fn mode(&self, bits: u32) -> u32 {
        bits & !self.fs.as_ref().expect("only drop takes it").umask
    }

    /// Locks the process's table of mappings, so that one thread at a time claims an entry.
    ///
    /// # Errors
    /// EPERM in a forked child of the process that opened the pool.
    pub fn claiming(&self) -> Result<MutexGuard<'_, ()>> {
        self.generation.check()?;
        let open = self.fs.as_ref().expect("only drop takes it");
        Ok(lock(&open.claiming))
    }
}

impl Clone for Attached {
    fn clone(&self) -> Attached {
        Attached {
            fs: self.fs.clone(),
            generation: self.generation,
        }
    }
}

impl std::ops::Deref for Attached {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs.as_deref().expect("only drop takes it").fs
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let fs = self.fs.take();
        if !self.generation.is_now() {
            std::mem::forget(fs);
            return;
        }
        // Closed under the lock, so that no other thread opens the pool meanwhile.
        match known() {
            Ok(_known) => drop(fs),
            Err(_) => std::mem::forget(fs),
        }
    }
}

/// An open file of a pool, closed when it is dropped. In a forked child every call fails with
/// EPERM, and dropping it doesn't close the parent's file.
pub struct PoolFile {
    fs: Attached,
    /// The open file description; None once it is closed.
    open: Option<u32>,
}

impl PoolFile {
    /// Takes over an open file description of the pool (`File::into_open` of forebay-posix).
    pub fn new(fs: Attached, open: u32) -> PoolFile {
        let open = Some(open);
        PoolFile { fs, open }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Attached {
        &self.fs
    }

    /// Calls `f` with the file.
    ///
    /// # Errors
    /// EPERM in a forked child; the errors of `f`.
    pub fn with<T>(
        &self,
        f: impl FnOnce(&forebay_posix::File<'_>) -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        let open = self.checked()?;
        f(&ManuallyDrop::new(self.fs.file_of(open)))
    }

    /// Makes written bytes visible to other processes, if the file's controls allow buffering them.
    ///
    /// # Errors
    /// EPERM in a forked child; EIO, ENOSPC if some of the bytes are lost.
    pub fn publish(&self) -> std::result::Result<(), Errno> {
        self.fs.buffers().publish(self.checked()?)
    }

    /// Closes the file.
    ///
    /// # Errors
    /// The errors of writing back buffered bytes.
    pub fn close(mut self) -> std::result::Result<(), Errno> {
        self.finish()
    }

    fn checked(&self) -> std::result::Result<u32, Errno> {
        self.fs.check().map_err(|e| e.errno())?;
        Ok(self.open.expect("only close and drop take it"))
    }

    fn finish(&mut self) -> std::result::Result<(), Errno> {
        match self.open.take() {
            Some(open) if self.fs.check().is_ok() => self.fs.release(open),
            _ => Ok(()),
        }
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        // `close` reports errors of closing; drop can't.
        let _ = self.finish();
    }
}
