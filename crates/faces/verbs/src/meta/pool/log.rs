//! The undo log of a batch, in a pool: a file `/.undo-UUID`, locked by the process that runs the
//! batch.
//!
//! An entry is appended before its operation is done. When the process is killed, its lock is
//! released, and the next process that loads a workspace finds an unlocked log. That process undoes
//! the entries, or completes the batch if it was committed. Repeating either is harmless, so the
//! next process may be killed as well.

use super::hidden::Hidden;
use crate::meta::entries;
use crate::meta::undo::{Undo, UndoLog};
use crate::pool::Attached;
use crate::process::Generation;
use crate::{Error, Result, Uuid};
use forebay_runtime::threads::lock;
use forebay_store::LockType;
use libc::{O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR};
use rustix::io::Errno;
use std::sync::Mutex;

const NAME: &str = ".undo-";

pub(super) struct Log {
    fs: Attached,
    path: Vec<u8>,
    open: u32,
    /// Serialises appends of entries.
    turn: Mutex<()>,
    generation: Generation,
}

impl Log {
    /// Creates an empty undo log.
    pub fn create(fs: &Attached) -> Result<Log> {
        let cannot = |e| Error::of("can't make the log of a batch in the pool", e);
        for _ in 0..100 {
            let path = format!("/{NAME}{}", Uuid::random()?).into_bytes();
            let made = Log::open(fs, path, O_CREAT | O_EXCL).map_err(cannot)?;
            // A process that searches for logs of dead processes may have locked the new file
            // first, and then have removed it.
            if let Some(log) = made {
                return Ok(log);
            }
        }
        Err(cannot(Errno::BUSY))
    }

    /// Takes over and returns the logs of dead processes; removes their incomplete workspaces.
    pub fn left_behind(fs: &Attached) -> std::result::Result<Vec<Log>, Errno> {
        let names = fs.list(b"/")?.into_iter().map(|entry| entry.name);
        let mut names = names
            .filter(|name| name.starts_with(NAME.as_bytes()) || Hidden::is(name))
            .peekable();
        if names.peek().is_some() {
            // Releases the locks of dead processes that the keeper hasn't noticed yet.
            let _ = fs.store().recovery().reap();
        }
        let mut found = Vec::new();
        for name in names {
            if Hidden::is(&name) {
                Hidden::sweep(fs, &name);
                continue;
            }
            match Log::open(fs, [b"/", &name[..]].concat(), 0) {
                Ok(log) => found.extend(log),
                // Another process has removed the log, or this process may not open it.
                Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    /// Opens and locks a log. Returns None if a living process holds its lock, or the log was
    /// removed.
    fn open(fs: &Attached, path: Vec<u8>, flags: i32) -> std::result::Result<Option<Log>, Errno> {
        let flags = flags | O_RDWR | O_NOFOLLOW;
        let open = fs.open(&path, flags, 0o600)?.into_open();
        let log = Log {
            fs: fs.clone(),
            path,
            open,
            turn: Mutex::new(()),
            generation: Generation::now(),
        };
        match fs.cluster().locks().flock(open, LockType::Exclusive, false) {
            Err(Errno::AGAIN) => return Ok(None),
            locked => locked?,
        }
        let there = fs.stat_open(open)?.nlink > 0;
        Ok(there.then_some(log))
    }

    fn append(&self, mut part: &[u8]) -> Result<()> {
        let cannot = |e| Error::of("can't note how a batch is undone", e);
        let _turn = lock(&self.turn);
        let mut before = None;
        while !part.is_empty() {
            match self.fs.append_chunk(self.open, part) {
                Ok((at, n)) if n > 0 => {
                    before.get_or_insert(at);
                    part = &part[n..];
                }
                failed => {
                    // Cuts off the incomplete entry: its remains would be read as the beginning of
                    // the next entry.
                    if let Some(before) = before {
                        self.fs.truncate_open(self.open, before).map_err(cannot)?;
                    }
                    return Err(cannot(failed.err().unwrap_or(Errno::NOSPC)));
                }
            }
        }
        Ok(())
    }

    fn content(&self) -> std::result::Result<Vec<u8>, Errno> {
        let size = self.fs.stat_open(self.open)?.size;
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::FBIG)?];
        let mut done = 0;
        while done < bytes.len() {
            match self
                .fs
                .read_chunk(self.open, &mut bytes[done..], done as u64)?
            {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}

impl UndoLog for Log {
    fn note(&self, entry: Undo) -> Result<()> {
        self.append(&entries::encode(&entry))
    }

    fn entries(&self) -> Result<(Vec<Undo>, bool)> {
        let path = String::from_utf8_lossy(&self.path);
        let cannot = |e| Error::of(format!("can't read {path} in the pool"), e);
        let bytes = self.content().map_err(cannot)?;
        entries::decode(&bytes).ok_or_else(|| {
            Error::new(
                Errno::PROTO,
                format!("{path} in the pool isn't the log of a batch, or of another version"),
            )
        })
    }

    fn commit(&self) -> Result<()> {
        self.append(&entries::end())
    }

    fn end(&self) {
        let _ = self.fs.unlink(&self.path);
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // A forked child must neither close its parent's log nor release the lock on it.
        if self.generation.is_now() {
            let _ = self.fs.release(self.open);
        }
    }
}
