//! A pool as the checker's workers use it: through `forebay-posix`, without a preloaded library.

use forebay_check::calls::{Face, Result, Stat};
use forebay_cluster::Cluster;
use forebay_posix::{Errno, Fail, Fs, ObjectId, RenameMode};
use forebay_store::LockType;
use forebay_store::locks::TO_THE_END;
use std::collections::HashMap;

/// A process's view of a pool.
pub struct PoolFace {
    fs: Fs,
    /// Numbers of open file descriptions, by the descriptor that the worker has.
    open: HashMap<i32, u32>,
    next: i32,
}

fn number(e: Errno) -> i32 {
    e.raw_os_error()
}

impl PoolFace {
    /// Makes a face for this view of a pool.
    pub fn new(fs: Fs) -> PoolFace {
        PoolFace {
            fs,
            open: HashMap::new(),
            next: 3,
        }
    }

    fn description(&self, fd: i32) -> Result<u32> {
        self.open.get(&fd).copied().ok_or(libc::EBADF)
    }

    /// Sets a lock, with the steps that the preloaded library takes before and after.
    fn around(
        &self,
        open: u32,
        want: LockType,
        lock: impl FnOnce(&Cluster<'_>) -> forebay_posix::Result<()>,
    ) -> Result<()> {
        self.fs.buffers().write_back_open(open);
        lock(&self.fs.cluster()).map_err(number)?;
        if want != LockType::Unlocked {
            self.fs.buffers().look_again_open(open);
        }
        Ok(())
    }

    fn rename_as(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let root = ObjectId::ROOT;
        let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
        match self.fs.rename_at(from, to, mode) {
            Ok(()) => Ok(()),
            Err(Fail::Errno(e)) => Err(number(e)),
            Err(Fail::Outside(_) | Fail::Origin(_)) => Err(libc::EXDEV),
        }
    }
}

fn stat(s: &forebay_posix::Stat) -> Stat {
    Stat {
        size: s.size,
        links: s.nlink,
        inode: s.ino,
        directory: s.mode & libc::S_IFMT == libc::S_IFDIR,
    }
}

impl Face for PoolFace {
    fn open(&mut self, path: &str, flags: i32) -> Result<i32> {
        let file = self
            .fs
            .open(path.as_bytes(), flags, 0o644)
            .map_err(number)?;
        self.next += 1;
        self.open.insert(self.next, file.into_open());
        Ok(self.next)
    }

    fn close(&mut self, fd: i32) -> Result<()> {
        let open = self.open.remove(&fd).ok_or(libc::EBADF)?;
        // These steps are the same as in the preloaded library.
        let store = self.fs.store();
        let object = ObjectId(
            store
                .objects()
                .open_file(open)
                .id
                .load(std::sync::atomic::Ordering::Relaxed),
        );
        self.fs.buffers().publish_unheard(open);
        let _ = store.locks().end_process_locks(object);
        self.fs.release(open).map_err(number)
    }

    fn write_at(&mut self, fd: i32, bytes: &[u8], at: u64) -> Result<usize> {
        self.fs
            .write_chunk(self.description(fd)?, bytes, at)
            .map_err(number)
    }

    fn write(&mut self, fd: i32, bytes: &[u8]) -> Result<usize> {
        self.fs
            .append_chunk(self.description(fd)?, bytes)
            .map(|(_, n)| n)
            .map_err(number)
    }

    fn read_at(&mut self, fd: i32, bytes: &mut [u8], at: u64) -> Result<usize> {
        self.fs
            .read_chunk(self.description(fd)?, bytes, at)
            .map_err(number)
    }

    fn truncate(&mut self, fd: i32, size: u64) -> Result<()> {
        self.fs
            .truncate_open(self.description(fd)?, size)
            .map_err(number)
    }

    fn sync(&mut self, fd: i32) -> Result<()> {
        self.fs.sync_open(self.description(fd)?).map_err(number)
    }

    fn fstat(&mut self, fd: i32) -> Result<Stat> {
        self.fs
            .stat_open(self.description(fd)?)
            .map(|s| stat(&s))
            .map_err(number)
    }

    fn stat(&mut self, path: &str) -> Result<Stat> {
        self.fs
            .stat(path.as_bytes(), true)
            .map(|s| stat(&s))
            .map_err(number)
    }

    fn unlink(&mut self, path: &str) -> Result<()> {
        self.fs.unlink(path.as_bytes()).map_err(number)
    }

    fn mkdir(&mut self, path: &str) -> Result<()> {
        self.fs.mkdir(path.as_bytes(), 0o755).map_err(number)
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        self.fs.rmdir(path.as_bytes()).map_err(number)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<()> {
        self.fs.link(from.as_bytes(), to.as_bytes()).map_err(number)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.fs
            .rename(from.as_bytes(), to.as_bytes())
            .map_err(number)
    }

    fn exchange(&mut self, one: &str, other: &str) -> Result<()> {
        self.rename_as(one, other, RenameMode::Exchange)
    }

    fn list(&mut self, path: &str) -> Result<Vec<Vec<u8>>> {
        let entries = self.fs.list(path.as_bytes()).map_err(number)?;
        Ok(entries.into_iter().map(|e| e.name).collect())
    }

    fn flock(&mut self, fd: i32, what: i32) -> Result<()> {
        let want = match what {
            libc::LOCK_UN => LockType::Unlocked,
            libc::LOCK_SH => LockType::Shared,
            _ => LockType::Exclusive,
        };
        let open = self.description(fd)?;
        self.around(open, want, |c| c.locks().flock(open, want, false))
    }

    fn range_lock(&mut self, fd: i32, command: i32, kind: i32) -> Result<()> {
        let want = match kind {
            libc::F_UNLCK => LockType::Unlocked,
            libc::F_RDLCK => LockType::Shared,
            _ => LockType::Exclusive,
        };
        let own = command == libc::F_OFD_SETLK;
        let open = self.description(fd)?;
        self.around(open, want, |c| {
            c.locks()
                .lock_range(open, own, want, (0, TO_THE_END), false)
        })
    }

    fn remove_all(&mut self, path: &str) {
        for e in self.fs.list(path.as_bytes()).unwrap_or_default() {
            let below = format!("{path}/{}", String::from_utf8_lossy(&e.name));
            if e.kind == libc::S_IFDIR {
                self.remove_all(&below);
            } else {
                let _ = self.fs.unlink(below.as_bytes());
            }
        }
        let _ = self.fs.rmdir(path.as_bytes());
    }
}
