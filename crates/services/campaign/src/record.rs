//! The record of a campaign: one JSON document.

use crate::Result;
use serde::{Deserialize, Serialize};

/// Version of the record's format.
pub const FORMAT: u32 = 1;
/// Maximum number of events in a record. The oldest ones are dropped.
const EVENTS: usize = 100;
/// Maximum length of a campaign's name, which is also the name of its directory. Bytes.
const MAX_NAME_BYTES: usize = 100;

/// A campaign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Campaign {
    pub format: u32,
    pub name: String,
    /// The owner's user name.
    pub owner: String,
    #[serde(default)]
    pub members: Vec<Member>,
    /// Maximum number of bytes. None: no limit.
    pub bytes: Option<u64>,
    /// Maximum number of files, including directories and links. None: no limit.
    pub files: Option<u64>,
    /// The location of the data: a tier's name, and a path or `s3://BUCKET/PREFIX`.
    pub tier: String,
    pub place: String,
    /// Times here and below are in seconds since 1970.
    pub created: u64,
    pub ends: u64,
    pub at_end: AtEnd,
    /// Time for which data are kept hidden after the end, before they are deleted. Seconds.
    pub grace: u64,
    pub state: State,
    /// A move of the data that has begun.
    #[serde(default)]
    pub moving: Option<Moving>,
    /// Places from which the data have been moved, and which are still to be removed.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// The pool that uses the data, if there is one.
    #[serde(default)]
    pub pool: Option<PoolOf>,
    #[serde(default)]
    pub usage: Option<Usage>,
    /// The last warning to the owner: the campaign's end (seconds since 1970), and the warning's
    /// time before that end (seconds).
    #[serde(default)]
    pub warned: Option<(u64, u64)>,
    /// Whether the owner still has to be notified of the end. The owner may be notified twice.
    #[serde(default)]
    pub is_untold: bool,
    /// Whether the owner was notified that the quota is exceeded.
    #[serde(default)]
    pub is_over: bool,
    #[serde(default)]
    pub events: Vec<Event>,
}

/// A user with whom a campaign is shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub user: String,
    pub may_write: bool,
}

/// The action on the data at the campaign's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtEnd {
    /// The data are moved to the tier for archives.
    Archive,
    /// The data are moved to this tier, where they stay.
    Move(String),
    /// The data are hidden, and removed after the grace period.
    Delete,
    /// The data stay.
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The data are available at their place.
    Active,
    /// The campaign has ended. The data are hidden until the grace period has passed.
    Expired,
    /// The data are on the tier for archives.
    Archived,
}

/// A move of the data, from the place in the record to this place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moving {
    pub tier: String,
    pub place: String,
    /// The campaign's state after the move.
    pub then: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolOf {
    pub name: String,
    /// The host on which the pool was started.
    pub host: String,
    pub since: u64,
}

/// Number and size of the files at a campaign's place, when they were last counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
    /// Time of the count.
    pub at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub at: u64,
    pub what: String,
}

impl Campaign {
    /// Returns a campaign that begins now, and whose end is now, without a place, a quota and a
    /// grace period.
    pub fn new(name: &str, owner: &str) -> Campaign {
        let now = crate::now();
        Campaign {
            format: FORMAT,
            name: name.to_owned(),
            owner: owner.to_owned(),
            members: Vec::new(),
            bytes: None,
            files: None,
            tier: String::new(),
            place: String::new(),
            created: now,
            ends: now,
            at_end: AtEnd::Delete,
            grace: 0,
            state: State::Active,
            moving: None,
            leftovers: Vec::new(),
            pool: None,
            usage: None,
            warned: None,
            is_untold: false,
            is_over: false,
            events: Vec::new(),
        }
    }

    /// Adds an event with the current time.
    pub fn note(&mut self, what: impl Into<String>) {
        let (at, what) = (crate::now(), what.into());
        // If an event repeats, the record has only the latest.
        if self.events.last().is_some_and(|e| e.what == what) {
            self.events.pop();
        }
        self.events.push(Event { at, what });
        let excess = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..excess);
    }

    /// Returns the number of seconds until the campaign's end; 0 once the end has come.
    pub fn left(&self, now: u64) -> u64 {
        self.ends.saturating_sub(now)
    }

    /// Describes the exceeded part of the quota. None if usage is within the quota, or wasn't
    /// counted.
    pub fn excess(&self) -> Option<String> {
        let usage = self.usage?;
        let (size, count) = (forebay_media::format_size, forebay_media::count);
        let bytes = self.bytes.filter(|&most| usage.bytes > most);
        let files = self.files.filter(|&most| usage.files > most);
        match (bytes, files) {
            (Some(most), _) => Some(format!("{} of {}", size(usage.bytes), size(most))),
            (_, Some(most)) => Some(format!("{} of {}", usage.files, count(most, "file"))),
            _ => None,
        }
    }
}

/// Checks a campaign's name: letters, digits, `-`, `_` and `.`. The name can't begin with `.` or
/// `-`.
///
/// # Errors
/// A message: the name is empty, too long, or has other characters.
pub fn check_name(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match name.len() {
        1..=MAX_NAME_BYTES if name.chars().all(is_good) && !name.starts_with(['.', '-']) => Ok(()),
        _ => Err(format!(
            "'{name}' is no name for a campaign: write up to {MAX_NAME_BYTES} letters, digits, -, _ \
             and ., which isn't first"
        )),
    }
}
