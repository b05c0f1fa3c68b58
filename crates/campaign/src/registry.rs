//! The campaigns that there are: a directory with a file for each, `NAME.json`.
//!
//! A file is replaced as a whole, so that readers need no lock. Who changes a campaign holds the lock
//! of `NAME.lock` from reading to writing ([`Held`]); the kernel ends it with the process.

use crate::Result;
use crate::record::{Campaign, FORMAT, check_name};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a command waits for another one that changes the same campaign.
pub const PATIENCE: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(20);

pub struct Registry {
    dir: PathBuf,
}

/// A campaign that only this process changes.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    _lock: OwnedFd,
    pub campaign: Campaign,
}

impl Registry {
    /// The registry in this directory, which is made if it isn't there.
    ///
    /// # Errors
    /// The directory can't be made.
    pub fn open(dir: &Path) -> Result<Registry> {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Registry {
            dir: dir.to_owned(),
        })
    }

    /// All campaigns by name, and what can't be read, in words.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn list(&self) -> Result<(Vec<Campaign>, Vec<String>)> {
        let (mut all, mut bad) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.dir).map_err(|e| self.failed(&e))? {
            let name = entry.map_err(|e| self.failed(&e))?.file_name();
            let Some(name) = name.to_str().and_then(|n| n.strip_suffix(".json")) else {
                continue;
            };
            match self.read(name) {
                Ok(Some(campaign)) => all.push(campaign),
                Ok(None) => {}
                Err(why) => bad.push(why),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((all, bad))
    }

    /// A campaign.
    ///
    /// # Errors
    /// There is none of this name, or its record can't be read.
    pub fn get(&self, name: &str) -> Result<Campaign> {
        check_name(name)?;
        self.read(name)?.ok_or_else(|| absent(name))
    }

    /// A campaign that nobody else changes until the result is dropped. Waits for others for so long.
    ///
    /// # Errors
    /// As for [`Registry::get`]; another process changes it.
    pub fn hold(&self, name: &str, patience: Duration) -> Result<Held> {
        check_name(name)?;
        let lock = self.lock(name, patience)?;
        let campaign = self.read(name)?.ok_or_else(|| absent(name))?;
        Ok(Held {
            path: self.path(name),
            _lock: lock,
            campaign,
        })
    }

    /// Adds a campaign; nobody else changes it until the result is dropped.
    ///
    /// # Errors
    /// There is one of this name; it can't be written.
    pub fn add(&self, campaign: Campaign) -> Result<Held> {
        check_name(&campaign.name)?;
        let lock = self.lock(&campaign.name, PATIENCE)?;
        if self.read(&campaign.name)?.is_some() {
            let name = &campaign.name;
            return Err(format!(
                "there is a campaign '{name}': forebay campaign show {name}"
            ));
        }
        let held = Held {
            path: self.path(&campaign.name),
            _lock: lock,
            campaign,
        };
        held.save()?;
        Ok(held)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    fn failed(&self, why: &std::io::Error) -> String {
        format!("{}: {why}", self.dir.display())
    }

    fn read(&self, name: &str) -> Result<Option<Campaign>> {
        let path = self.path(name);
        let bytes = match fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| format!("{}: {e}", path.display()))?,
        };
        let campaign: Campaign = serde_json::from_slice(&bytes)
            .map_err(|e| format!("{} is no record of a campaign: {e}", path.display()))?;
        if campaign.format != FORMAT || campaign.name != name {
            return Err(format!(
                "{} is of format {} and of the campaign '{}'; this program reads format {FORMAT}",
                path.display(),
                campaign.format,
                campaign.name
            ));
        }
        Ok(Some(campaign))
    }

    /// The lock of a campaign. Its file stays, also when the campaign goes: removed, it could be held
    /// twice.
    fn lock(&self, name: &str, patience: Duration) -> Result<OwnedFd> {
        let path = self.dir.join(format!("{name}.lock"));
        let failed = |e: Errno| format!("{}: {e}", path.display());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let until = Instant::now() + patience;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(TURN),
                Err(Errno::WOULDBLOCK) => {
                    return Err(format!(
                        "another process works on the campaign '{name}': try again later"
                    ));
                }
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

impl Held {
    /// Writes the record. It is on stable storage then.
    ///
    /// # Errors
    /// The record can't be written; the earlier one stays.
    pub fn save(&self) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let text = serde_json::to_vec_pretty(&self.campaign)?;
            let beside = self.path.with_extension("new");
            let mut file = fs::File::create(&beside)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            sync_parent(&self.path)
        };
        write().map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Removes the record: the campaign has gone.
    ///
    /// # Errors
    /// The record can't be removed.
    pub fn forget(self) -> Result<()> {
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

fn absent(name: &str) -> String {
    format!("there is no campaign '{name}'; see what there is with: forebay campaign list")
}
