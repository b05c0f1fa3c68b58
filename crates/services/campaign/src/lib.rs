//! Campaigns: named storage with a quota and an end, which outlives jobs and pools.
//!
//! A campaign's data are a directory or a prefix of a bucket on a *tier* ([`tiers`]), a slow store
//! that the site's file names. A [`record`] says whose they are, how much they may be, and when the
//! campaign ends; the [`registry`] keeps the records. A pool for the campaign is one whose origin is
//! the campaign's data, so that pools come and go while the data stay.
//!
//! Guarantees:
//! - Data change their place by a verified copy. The record names the new place only when the copy
//!   is complete, and the old place is removed after that ([`moves`]). A process that is killed in
//!   the middle leaves a record that says how to go on; the next command or pass does.
//! - Data are removed only by the owner's command or at the end of the grace period that the record
//!   names, and never while a pool uses them.
//! - One process at a time changes a campaign ([`registry::Held`]), however many run.
//!
//! [`policy`] decides what is due at a time, without doing anything; [`service`] does it.
//! Source: S0, AP4.a ("Campaign Storage").

pub mod area;
pub mod moves;
pub mod policy;
pub mod record;
pub mod registry;
pub mod service;
pub mod spec;
pub mod tiers;

/// Why something can't be done: one line for the user.
pub type Result<T> = std::result::Result<T, String>;

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
