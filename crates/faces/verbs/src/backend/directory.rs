//! The back end for any mounted file system: a collection's bytes are the file
//! `DIR/WORKSPACE/NAME`, where DIR is the back end's configuration.
//!
//! A workspace's directory is created with its first collection and removed with its last one.
//! Other programs can read and write the files; when they see changes is up to the file system.
//! Symbolic links below DIR aren't followed.

use super::{Address, Backend, Object, plain_support};
use crate::meta::check_name;
use crate::{Error, Result};
use forebay_controls::{Controls, Persistence};
use forebay_runtime::beneath::{Tree, bytes};
use forebay_runtime::threads::lock;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long an append waits for another process's append.
const APPEND_TIMEOUT: Duration = Duration::from_secs(30);

/// The back end `directory`.
pub struct Directory {
    dir: PathBuf,
    tree: Tree,
}

struct Open {
    path: PathBuf,
    file: File,
    /// Held by an append while it finds the file's end and writes there.
    end: Mutex<()>,
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let errno = error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error);
    Error::of(format!("can't {what} {}", path.display()), errno)
}

impl Directory {
    /// Returns a back end for this directory. The directory must exist.
    ///
    /// # Errors
    /// EINVAL if `dir` is empty; the errors of opening the directory.
    pub fn open(dir: &str) -> Result<Directory> {
        if dir.is_empty() {
            return Err(Error::invalid(
                "the back end 'directory' needs the directory in which its files shall lie",
            ));
        }
        let wrong = |e: std::io::Error| failed("use", Path::new(dir), &e);
        let dir = std::fs::canonicalize(dir).map_err(wrong)?;
        let tree = Tree::open(bytes(&dir)).map_err(|e| Error::of(dir.display(), e))?;
        Ok(Directory { dir, tree })
    }

    fn path(&self, address: &Address) -> PathBuf {
        self.dir.join(&address.workspace).join(&address.name)
    }

    /// Returns the path of a collection's file, relative to DIR.
    fn relative(address: &Address) -> Vec<u8> {
        format!("{}/{}", address.workspace, address.name).into_bytes()
    }

    /// Refuses names that lead out of the directory.
    fn check(address: &Address) -> std::result::Result<(), Errno> {
        let names = [&address.workspace, &address.name];
        if names.iter().all(|name| check_name(name).is_ok()) {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    fn open_file(&self, address: &Address, how: OFlags) -> std::result::Result<Open, Errno> {
        Directory::check(address)?;
        let how = how | OFlags::RDWR | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o666);
        let file = self
            .tree
            .open_file(&Directory::relative(address), how, mode)?;
        Ok(Open {
            path: self.path(address),
            file: file.into(),
            end: Mutex::new(()),
        })
    }
}

impl Backend for Directory {
    fn kind(&self) -> &str {
        "directory"
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn supports(&self, controls: &Controls) -> Result<()> {
        // `Object::sync` calls fsync, so written bytes are as durable as the file system makes
        // them.
        let persistence = [Persistence::Pool, Persistence::Node, Persistence::Durable];
        plain_support("directory", controls, &persistence)
    }

    fn create(&self, address: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        let how = OFlags::CREATE | OFlags::EXCL;
        let cannot = |e| Error::of(format!("can't make {}", self.path(address).display()), e);
        // Another process may remove the workspace's directory between its creation and the file's.
        for _ in 0..100 {
            match self.open_file(address, how) {
                Ok(open) => return Ok(Box::new(open)),
                Err(Errno::NOENT) => match self.tree.mkdir(address.workspace.as_bytes(), 0o777) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(cannot(e)),
                },
                Err(e) => return Err(cannot(e)),
            }
        }
        Err(cannot(Errno::BUSY))
    }

    fn open(&self, address: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        let opened = self.open_file(address, OFlags::empty());
        let cannot = |e| Error::of(format!("can't open {}", self.path(address).display()), e);
        Ok(Box::new(opened.map_err(cannot)?))
    }

    fn delete(&self, address: &Address) -> Result<()> {
        let path = self.path(address);
        Directory::check(address)
            .map_err(|e| Error::of(format!("can't remove {}", path.display()), e))?;
        match self.tree.unlink(&Directory::relative(address)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(Error::of(format!("can't remove {}", path.display()), e)),
        }
        // Removing the directory fails, as it should, if it has other files.
        let _ = self.tree.rmdir(address.workspace.as_bytes());
        Ok(())
    }
}

impl Open {
    /// Locks the file against appends of other processes.
    fn lock(&self) -> std::result::Result<(), Errno> {
        let until = Instant::now() + APPEND_TIMEOUT;
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(Errno::WOULDBLOCK) => return Err(Errno::TIMEDOUT),
                done => return done,
            }
        }
    }
}

impl Object for Open {
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.file.read_at(&mut to[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(failed("read", &self.path, &e)),
            }
        }
        Ok(done)
    }

    fn write(&self, from: &[u8], at: u64) -> Result<()> {
        let written = self.file.write_all_at(from, at);
        written.map_err(|e| failed("write", &self.path, &e))
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        // The mutex serialises appends of this handle; the lock on the file excludes those of other
        // processes.
        let _turn = lock(&self.end);
        self.lock()
            .map_err(|e| Error::of(format!("can't lock {}", self.path.display()), e))?;
        let at = self.size();
        let written = at.and_then(|at| self.write(from, at).map(|()| at));
        let _ = flock(&self.file, FlockOperation::Unlock);
        written
    }

    fn truncate(&self, size: u64) -> Result<()> {
        let cut = self.file.set_len(size);
        cut.map_err(|e| failed("truncate", &self.path, &e))
    }

    fn size(&self) -> Result<u64> {
        let stat = self.file.metadata();
        stat.map(|m| m.len())
            .map_err(|e| failed("stat", &self.path, &e))
    }

    fn sync(&self) -> Result<()> {
        let synced = self.file.sync_all();
        synced.map_err(|e| failed("sync", &self.path, &e))
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
