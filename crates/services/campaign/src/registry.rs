//! The registry of a user's campaigns: in a directory ([`directory`]), or in etcd ([`etcd`]). Also
//! the list of users with campaigns ([`users`]).
//!
//! Readers need no lock. A writer holds the campaign's lock from reading the record to writing it
//! ([`Held`]). A process that has lost its lock can't write.

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

/// Maximum time that a command waits for another process that changes the same campaign.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The location of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryPlace {
    Directory(PathBuf),
    Etcd(EtcdPlace),
}

pub enum Registry {
    Directory(Directory),
    Etcd(Etcd),
}

/// A campaign with its lock: no other process changes it.
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
    /// Opens the registry at `place`, for the campaigns of the user `owner`. Sends no request yet.
    ///
    /// # Errors
    /// The directory can't be made, or etcd's settings are wrong.
    pub fn open(place: &RegistryPlace, owner: &str) -> Result<Registry> {
        match place {
            RegistryPlace::Directory(dir) => Directory::open(dir).map(Registry::Directory),
            RegistryPlace::Etcd(place) => Etcd::open(place, owner).map(Registry::Etcd),
        }
    }

    /// Returns all campaigns, sorted by name, and a message for each record that can't be read.
    ///
    /// # Errors
    /// The directory can't be read; etcd doesn't answer, or refuses.
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

    /// Returns a campaign.
    ///
    /// # Errors
    /// No campaign has this name, or its record can't be read.
    pub fn get(&self, name: &str) -> Result<Campaign> {
        check_name(name)?;
        let found = match self {
            Registry::Directory(dir) => dir.read(name)?,
            Registry::Etcd(etcd) => etcd.read(name)?,
        };
        let bytes = found.ok_or_else(|| absent(name))?;
        parse(name, &self.shown(name), &bytes)
    }

    /// Locks a campaign, so that no other process changes it until the result is dropped. Waits for
    /// other processes for at most `timeout`.
    ///
    /// # Errors
    /// The errors of [`Registry::get`]; another process has the lock.
    pub fn hold(&self, name: &str, timeout: Duration) -> Result<Held> {
        // Lock files aren't removed. So none is made for a name that has no campaign.
        self.get(name)?;
        let (lock, bytes) = self.lock(name, timeout)?;
        let bytes = bytes.ok_or_else(|| absent(name))?;
        let campaign = parse(name, &self.shown(name), &bytes)?;
        Ok(Held { lock, campaign })
    }

    /// Adds a campaign, and locks it until the result is dropped.
    ///
    /// # Errors
    /// A campaign of this name exists; the record can't be written.
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

    /// Locks a campaign. Returns the lock, and the record, if there is one.
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

    /// Returns the location of a campaign's record, for messages.
    fn shown(&self, name: &str) -> String {
        match self {
            Registry::Directory(dir) => dir.path(name).display().to_string(),
            Registry::Etcd(etcd) => etcd.shown(name),
        }
    }
}

impl Held {
    /// Writes the record to stable storage.
    ///
    /// # Errors
    /// The record can't be written, or the lock was lost. The earlier record stays.
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

/// Parses the record of a campaign. `from`: its location, for messages.
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
