//! Records in a directory: a file for each campaign, `NAME.json`.
//!
//! A file is replaced in one step. A campaign's lock is a lock on the file `NAME.lock`. The kernel
//! releases the lock when the process ends.

use crate::Result;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of records of one user.
const MAX_RECORDS: usize = 100_000;

/// A recorded campaign: its name, the record's location, the record.
pub type Named = (String, String, Vec<u8>);

pub struct Directory {
    dir: PathBuf,
}

#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Directory {
    /// Opens the directory of records, and makes it if necessary.
    ///
    /// # Errors
    /// The directory can't be made, or other users can change its entries. A process that can
    /// change records can have this user's data moved and removed.
    pub fn open(dir: &Path) -> Result<Directory> {
        let failed = |e| format!("{}: {e}", dir.display());
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        made.map_err(failed)?;
        let found = fs::metadata(dir).map_err(failed)?;
        let own = [rustix::process::geteuid().as_raw(), 0];
        if !own.contains(&found.uid()) || found.mode() & 0o002 != 0 {
            return Err(format!(
                "{}: others can change the campaigns that are noted there; make it yours alone: \
                 chmod 700, chown",
                dir.display()
            ));
        }
        Ok(Directory {
            dir: dir.to_owned(),
        })
    }

    /// Returns name, location and record of all campaigns, and a message for each record that can't
    /// be read.
    ///
    /// # Errors
    /// The directory can't be read, or has too many records.
    pub fn list(&self) -> Result<(Vec<Named>, Vec<String>)> {
        let (mut all, mut bad) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.dir).map_err(|e| self.failed(&e))? {
            let name = entry.map_err(|e| self.failed(&e))?.file_name();
            let Some(name) = name.to_str().and_then(|n| n.strip_suffix(".json")) else {
                continue;
            };
            if all.len() + bad.len() >= MAX_RECORDS {
                return Err(format!(
                    "{}: more than {MAX_RECORDS} records",
                    self.dir.display()
                ));
            }
            match self.read(name) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    let path = self.path(name).display().to_string();
                    all.push((name.to_owned(), path, bytes));
                }
                Err(why) => bad.push(why),
            }
        }
        Ok((all, bad))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    fn failed(&self, why: &std::io::Error) -> String {
        format!("{}: {why}", self.dir.display())
    }

    /// Returns the record of a campaign, if there is one.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        match untrusted::read(&path, Links::Refuse, MAX_SETTINGS) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("{}: {e}", path.display())),
            Ok(bytes) => Ok(Some(bytes)),
        }
    }

    /// Locks a campaign. The lock's file stays when the campaign is removed: if the file were
    /// removed, two processes could hold the lock.
    ///
    /// # Errors
    /// Another process holds the lock for longer than `timeout`.
    pub fn lock(&self, name: &str, timeout: Duration) -> Result<Lock> {
        let path = self.dir.join(format!("{name}.lock"));
        let failed = |e: Errno| format!("{}: {e}", path.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let until = Instant::now() + timeout;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    std::thread::sleep(LOCK_POLL_INTERVAL)
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(format!(
                        "another process works on the campaign '{name}': try again later"
                    ));
                }
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(Lock {
            path: self.path(name),
            _lock: file,
        })
    }
}

impl Lock {
    /// Writes the record to stable storage.
    ///
    /// # Errors
    /// The record can't be written; the earlier one stays.
    pub fn write(&self, text: &[u8]) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let beside = self.path.with_extension("new");
            let mut file = untrusted::create(&beside, 0o600)?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            sync_parent(&self.path)
        };
        write().map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Removes the record.
    ///
    /// # Errors
    /// The record can't be removed.
    pub fn remove(&self) -> Result<()> {
        fs::remove_file(&self.path)
            .and_then(|()| sync_parent(&self.path))
            .map_err(|e| format!("{}: {e}", self.path.display()))
    }
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(dir) => fs::File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}
