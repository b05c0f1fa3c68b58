//! Incomplete workspaces: a directory is created as `/.new-UUID`, gets its attributes, then its
//! name.
//!
//! The directory's creator holds a file lock on the directory. When the creator is killed, the
//! kernel releases the lock, and the next process that loads a workspace removes the directory.

use crate::pool::Attached;
use crate::process::Generation;
use crate::{Error, Result, Uuid};
use forebay_store::LockType;
use libc::{O_DIRECTORY, O_NOFOLLOW, O_RDONLY};
use rustix::io::Errno;

const NAME: &[u8] = b".new-";

/// A directory that this process is creating. Dropping it releases the lock: by then the directory
/// has its final name, or was removed.
pub(super) struct Hidden {
    fs: Attached,
    path: Vec<u8>,
    open: u32,
    generation: Generation,
}

impl Hidden {
    /// Creates and locks an empty directory, to be renamed to the workspace `becomes`.
    pub fn make(fs: &Attached, becomes: &str) -> Result<Hidden> {
        let cannot = |e| Error::of("can't make a directory in the pool's root", e);
        for _ in 0..100 {
            let name = Uuid::random()?.to_string();
            let path = [b"/", NAME, name.as_bytes()].concat();
            fs.mkdir_as(&path, becomes.as_bytes(), fs.mode(0o777))
                .map_err(cannot)?;
            // Another process in `sweep` may have locked the directory first. Such a process has
            // removed the directory, or will.
            match Hidden::open(fs, path) {
                Ok(Some(hidden)) if fs.stat(&hidden.path, false).is_ok() => return Ok(hidden),
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return Err(cannot(e)),
            }
        }
        Err(cannot(Errno::BUSY))
    }

    /// Opens and locks the directory. Returns None if a living process holds its lock.
    fn open(fs: &Attached, path: Vec<u8>) -> std::result::Result<Option<Hidden>, Errno> {
        let flags = O_DIRECTORY | O_RDONLY | O_NOFOLLOW;
        let hidden = Hidden {
            open: fs.open(&path, flags, 0)?.into_open(),
            fs: fs.clone(),
            path,
            generation: Generation::now(),
        };
        match fs
            .cluster()
            .locks()
            .flock(hidden.open, LockType::Exclusive, false)
        {
            Err(Errno::AGAIN) => Ok(None),
            locked => locked.map(|()| Some(hidden)),
        }
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Removes the directory.
    pub fn remove(self) {
        let _ = self.fs.rmdir(&self.path);
    }

    /// Whether a name in the root belongs to an incomplete directory.
    pub fn is(name: &[u8]) -> bool {
        name.starts_with(NAME)
    }

    /// Removes the directory of this name, unless a process is creating it.
    pub fn sweep(fs: &Attached, name: &[u8]) {
        // Does nothing if this process may not remove the directory.
        if let Ok(Some(left)) = Hidden::open(fs, [b"/", name].concat()) {
            left.remove();
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if self.generation.is_now() {
            let _ = self.fs.release(self.open);
        }
    }
}
