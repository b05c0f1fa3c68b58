//! The campaigns of a user: in a directory ([`directory`]), or in an etcd ([`etcd`]); and the list
//! of users with campaigns ([`users`]).
//!
//! Readers need no lock. A writer holds the campaign's lock from reading to writing ([`Held`]). A
//! process that has lost its lock can't write any more.

mod directory;
mod etcd;
mod users;

use crate::Result;
use crate::record::{Campaign, FORMAT, check_name};
use directory::Directory;
use etcd::Etcd;
use std::path::PathBuf;
use std::time::Duration;

pub use etcd::EtcdPlace;
pub use users::{Everyone, IN_HOME};

/// How long a command waits for another one that changes the same campaign.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Where campaigns are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryPlace {
    Directory(PathBuf),
    Etcd(EtcdPlace),
}

pub enum Registry {
    Directory(Directory),
    Etcd(Etcd),
}

/// A campaign that only this process changes.
#[derive(Debug)]
pub struct Held {
    lock: Lock,
    pub campaign: Campaign,
}

#[derive(Debug)]
enum Lock {
    Directory(directory::Lock),
    Etcd(etcd::Lock),
}

impl Registry {
    /// The registry at a place, with the campaigns of this user.
    ///
    /// # Errors
    /// If the directory can't be made, or etcd's settings are wrong. Sends no request yet.
    pub fn open(place: &RegistryPlace, owner: &str) -> Result<Registry> {
        match place {
            RegistryPlace::Directory(dir) => Directory::open(dir).map(Registry::Directory),
            RegistryPlace::Etcd(place) => Etcd::open(place, owner).map(Registry::Etcd),
        }
    }

    /// All campaigns by name, and what can't be read, in words.
    ///
    /// # Errors
    /// If the directory can't be read; if etcd doesn't answer, or refuses.
    pub fn list(&self) -> Result<(Vec<Campaign>, Vec<String>)> {
        let mut all = Vec::new();
        let (found, mut bad) = match self {
            Registry::Directory(dir) => dir.list()?,
            Registry::Etcd(etcd) => (etcd.list()?, Vec::new()),
        };
        for (name, from, bytes) in found {
            match parse(&name, &from, &bytes) {
                Ok(campaign) => all.push(campaign),
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
        let found = match self {
            Registry::Directory(dir) => dir.read(name)?,
            Registry::Etcd(etcd) => etcd.read(name)?,
        };
        let bytes = found.ok_or_else(|| absent(name))?;
        parse(name, &self.shown(name), &bytes)
    }

    /// A campaign that no other process changes until the result is dropped. Waits for other
    /// processes for at most `timeout`.
    ///
    /// # Errors
    /// As for [`Registry::get`]; another process changes it.
    pub fn hold(&self, name: &str, timeout: Duration) -> Result<Held> {
        // A lock's file stays: none for a name that there isn't.
        self.get(name)?;
        let (lock, bytes) = self.lock(name, timeout)?;
        let bytes = bytes.ok_or_else(|| absent(name))?;
        let campaign = parse(name, &self.shown(name), &bytes)?;
        Ok(Held { lock, campaign })
    }

    /// Adds a campaign; no other process changes it until the result is dropped.
    ///
    /// # Errors
    /// There is one of this name; it can't be written.
    pub fn add(&self, campaign: Campaign) -> Result<Held> {
        check_name(&campaign.name)?;
        let (lock, found) = self.lock(&campaign.name, LOCK_TIMEOUT)?;
        if found.is_some() {
            let name = &campaign.name;
            return Err(format!(
                "there is a campaign '{name}': forebay campaign show {name}"
            ));
        }
        let held = Held { lock, campaign };
        held.save()?;
        Ok(held)
    }

    /// The lock of a campaign, and its record, if there is one.
    fn lock(&self, name: &str, timeout: Duration) -> Result<(Lock, Option<Vec<u8>>)> {
        match self {
            Registry::Directory(dir) => {
                let lock = dir.lock(name, timeout)?;
                Ok((Lock::Directory(lock), dir.read(name)?))
            }
            Registry::Etcd(etcd) => {
                let (lock, found) = etcd.lock(name, timeout)?;
                Ok((Lock::Etcd(lock), found))
            }
        }
    }

    /// Where the record of a campaign is, for messages.
    fn shown(&self, name: &str) -> String {
        match self {
            Registry::Directory(dir) => dir.path(name).display().to_string(),
            Registry::Etcd(etcd) => etcd.shown(name),
        }
    }
}

impl Held {
    /// Writes the record. It is on stable storage then.
    ///
    /// # Errors
    /// The record can't be written, or the lock is lost: the earlier record stays.
    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.campaign).map_err(|e| e.to_string())?;
        match &self.lock {
            Lock::Directory(lock) => lock.write(&text),
            Lock::Etcd(lock) => lock.write(Some(&text)),
        }
    }

    /// Removes the record: the campaign has ended.
    ///
    /// # Errors
    /// The record can't be removed.
    pub fn forget(self) -> Result<()> {
        match &self.lock {
            Lock::Directory(lock) => lock.remove(),
            Lock::Etcd(lock) => lock.write(None),
        }
    }
}

/// Reads the record of a campaign; `from`: where it was, for messages.
fn parse(name: &str, from: &str, bytes: &[u8]) -> Result<Campaign> {
    let campaign: Campaign = serde_json::from_slice(bytes)
        .map_err(|e| format!("{from} is no record of a campaign: {e}"))?;
    if campaign.format != FORMAT || campaign.name != name {
        return Err(format!(
            "{from} is of format {} and of the campaign '{}'; this program reads format {FORMAT}",
            campaign.format, campaign.name
        ));
    }
    Ok(campaign)
}

fn absent(name: &str) -> String {
    format!("there is no campaign '{name}'; see what there is with: forebay campaign list")
}
