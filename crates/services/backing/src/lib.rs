//! Slow stores: any directory of the kernel, a bucket, and the pool as one end of a copy.
//!
//! [`SlowStore`] is the interface. Staging copies between two slow stores, an origin has its files
//! in one, and so do campaigns. [`DirectoryStore`], [`BucketStore`] and [`PoolStore`] implement it;
//! `docs/decisions/0093-one-slow-store.md` gives the design.
//!
//! Guarantees: below the root of a directory store, no symbolic link is followed
//! ([`forebay_runtime::beneath`]). A bucket's object appears complete or not at all, and replaces
//! only the version that the caller names or has seen.

mod bucket;
mod directory;
mod error;
mod meta;
mod parallel;
mod pool;
mod source;
mod store;

pub use bucket::{Address, BucketStore, CHANGED, DEVICE, PART, SCHEME, THREADS, kept_attributes};
pub use directory::DirectoryStore;
pub use error::{Error, explain};
pub use meta::{Meta, pool_time};
pub use parallel::{for_each, map, try_map};
pub use pool::{PoolFile, PoolStore};
pub use source::Source;
pub use store::{
    Attributes, Entries, Replaced, SlowStore, StoreFile, UserAttributes, join, split, trimmed,
};

use std::time::Duration;

/// Opens the slow store at a location: the directory at a path, or the objects below
/// `s3://BUCKET/PREFIX`. Paths of the store are relative to the location. A request to a server
/// that doesn't answer ends after about `timeout`.
///
/// # Errors
/// The reason why the store can't be opened, and what the user can do.
pub fn open(location: &str, timeout: Duration) -> Result<Box<dyn SlowStore>, Error> {
    if let Some(address) = Address::parse(location.as_bytes()) {
        return Ok(Box::new(BucketStore::inside(&address?, timeout)?));
    }
    match DirectoryStore::inside(location) {
        Ok(store) => Ok(Box::new(store)),
        Err(e) => Err(Error::Unusable(format!(
            "{e}; it must be a directory that this user may search"
        ))),
    }
}
