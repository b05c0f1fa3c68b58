//! Campaigns: named storage with a quota and an end, which outlives jobs and pools.
//!
//! A campaign's data are a directory, or a prefix of a bucket, on a *tier* ([`tiers`]): a slow
//! store that the site's file names. A [`record`] has the campaign's owner, its quota and its end;
//! the [`registry`] stores the records. A pool for the campaign has the campaign's data as its
//! origin, so that pools come and go while the data stay.
//!
//! Guarantees:
//! - Data are moved by a verified copy. The record names the new place only when the copy is
//!   complete, and the old place is removed after that ([`moves`]). If a process is killed in the
//!   middle, the record says how to continue; the next command or pass does.
//! - Data are removed only by the owner's command, or at the end of the grace period that the
//!   record names, and never while a pool uses them.
//! - One process at a time changes a campaign ([`registry::Held`]), however many processes run.
//!
//! [`policy`] decides which action is due at a time; [`service`] carries it out. Source: S0, AP4.a
//! ("Campaign Storage").

pub mod area;
pub mod moves;
pub mod policy;
pub mod record;
pub mod registry;
pub mod service;
pub mod spec;
pub mod tiers;

/// The reason for a failure: one line for the user.
pub type Result<T> = std::result::Result<T, String>;

/// Returns the current time. Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
