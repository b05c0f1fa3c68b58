//! The files of local copies: `DIR/STORE/`, where STORE is the identity of the copied store.
//!
//! LMDB's file isn't synced, so it isn't used after a crash of the node: the file `boot` has the id
//! of the boot in which the copy was made. A copy is also not used if a part of it is missing, or
//! isn't LMDB's. Opening and removing are done under the file lock `lock`. A process opens a copy
//! once and keeps it open until it ends.

use super::{Copy, Errnos, key};
use crate::meta::Scope;
use crate::process::{Generation, lock_in_time};
use crate::{Error, Result};
use forebay_store::lmdb::{Env, OnFull, Room};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Size of the address range of a copy. Bytes; unused parts occupy no memory.
const MAP: usize = 8 << 30;
/// How long to wait for the lock while other processes write.
const WRITER_TIMEOUT: Duration = Duration::from_secs(3);
/// The format's version, stored as a record.
const FORMAT: &[u8] = b"etcd copy 1";

pub(super) struct Files {
    dir: PathBuf,
    /// The inode number of LMDB's file when it was opened.
    inode: u64,
}

struct Open {
    generation: Generation,
    copy: Arc<Copy>,
}

static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// A file lock, held until this is dropped.
pub(super) struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    /// Takes the lock.
    ///
    /// # Errors
    /// ETIMEDOUT if other processes hold it for too long.
    pub fn new(lock: &'a File) -> Errnos<Locked<'a>> {
        let until = Instant::now() + WRITER_TIMEOUT;
        loop {
            match flock(lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(Errno::WOULDBLOCK) => return Err(Errno::TIMEDOUT),
                Err(Errno::INTR) => {}
                done => return done.map(|()| Locked(lock)),
            }
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Opens the local copy of the store with identity `store` in `dir`.
///
/// # Errors
/// EACCES if the directory is another user's; the errors of the system.
pub(in super::super) fn open(dir: &Path, store: &str) -> Result<Arc<Copy>> {
    let dir = dir.join(store);
    let mut open = lock_in_time(&OPEN, "opening a local copy")?;
    let at = open.iter().position(|o| o.copy.files.dir == dir);
    if let Some(at) = at {
        let there = inode(&dir.join("records"));
        if open[at].generation.is_now() && there == Some(open[at].copy.files.inode) {
            return Ok(open[at].copy.clone());
        }
        let gone = open.swap_remove(at);
        if !gone.generation.is_now() {
            // A forked child must not close its parent's copy.
            std::mem::forget(gone);
        }
    }
    let failed = |e: Errno| Error::of(format!("the local copy in {}", dir.display()), e);
    let copy = Arc::new(open_files(&dir).map_err(failed)?);
    open.push(Open {
        generation: Generation::now(),
        copy: copy.clone(),
    });
    Ok(copy)
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|m| m.ino())
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn open_files(dir: &Path) -> Errnos<Copy> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| errno(&e))?;
    let owner = std::fs::metadata(dir).map_err(|e| errno(&e))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join("lock"));
    let lock = lock.map_err(|e| errno(&e))?;
    let locked = Locked::new(&lock)?;
    let records = dir.join("records");
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let size = std::fs::metadata(&records).ok().map(|m| m.len());
    let is_whole = size.is_none_or(|size| size == MAP as u64);
    let anew = || {
        remove(dir);
        // Creates `boot` in one step, so that no process finds an incomplete one.
        let new = dir.join("boot.new");
        let written = std::fs::write(&new, &boot);
        let put = written.and_then(|()| std::fs::rename(&new, dir.join("boot")));
        put.map_err(|e| errno(&e))
    };
    if !is_whole || std::fs::read(dir.join("boot")).unwrap_or_default() != boot {
        anew()?;
    }
    let opened = open_records(&records).or_else(|_| {
        anew()?;
        open_records(&records)
    });
    let (env, room) = opened?;
    drop(locked);
    Ok(Copy {
        env,
        room,
        turn: Mutex::default(),
        lock,
        files: Files {
            dir: dir.into(),
            inode: inode(&records).ok_or(Errno::NOENT)?,
        },
    })
}

fn open_records(records: &Path) -> Errnos<(Env, Room)> {
    let (env, room) = (Env::new(records.into(), MAP), Room::default());
    env.release_dead_readers()?;
    let at = key(b'v', Scope::Root, &[]);
    let found = env.snapshot()?.get(&at)?.map(<[u8]>::to_vec);
    match found.as_deref() {
        Some(FORMAT) => {}
        Some(_) => return Err(Errno::PROTO),
        None => {
            let mut txn = env.write(&room, FORMAT.len(), OnFull::Fails)?;
            txn.put(&at, FORMAT)?;
            txn.commit()?;
        }
    }
    Ok((env, room))
}

fn remove(dir: &Path) {
    for name in ["boot", "records", "records-lock"] {
        let _ = std::fs::remove_file(dir.join(name));
    }
}

impl Files {
    /// Removes the files, unless another process has replaced them since this process opened them.
    pub fn throw_away(&self, lock: &File) {
        let Ok(_locked) = Locked::new(lock) else {
            return;
        };
        if inode(&self.dir.join("records")) == Some(self.inode) {
            remove(&self.dir);
        }
    }
}
