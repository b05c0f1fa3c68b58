//! Slow stores: any directory of the kernel, a bucket, and the pool as one end of a copy.
//!
//! [`SlowStore`] is what staging copies between, what an origin keeps its files in, and where the
//! data of campaigns lie. [`DirectoryStore`], [`BucketStore`] and [`PoolStore`] are its
//! implementations; `docs/decisions/0093-one-slow-store.md` says what it covers.
//!
//! Guarantees: below the root of a directory, no symbolic link is followed
//! ([`forebay_runtime::beneath`]); a bucket's object appears complete or not at all, and replaces
//! only the version that the caller names or has seen.

mod bucket;
mod directory;
mod meta;
mod parallel;
mod pool;
mod source;
mod store;

pub use bucket::{Address, BucketStore, CHANGED, DEVICE, PART, SCHEME, THREADS, kept_attributes};
pub use directory::DirectoryStore;
pub use meta::{Meta, pool_time};
pub use parallel::{for_each, map};
pub use pool::{PoolFile, PoolStore};
pub use source::{Source, Trouble};
pub use store::{
    Attributes, Entries, Replaced, SlowStore, StoreFile, UserAttributes, explain, join, split,
    trimmed,
};

use std::time::Duration;

/// The slow store at a location: the directory at a path, or the objects below `s3://BUCKET/PREFIX`.
/// Paths are relative to it. A request to a server that doesn't answer ends after about `timeout`.
///
/// # Errors
/// Why it can't be opened, and what to do.
pub fn open(location: &str, timeout: Duration) -> Result<Box<dyn SlowStore>, String> {
    if let Some(address) = Address::parse(location.as_bytes()) {
        return Ok(Box::new(BucketStore::inside(&address?, timeout)?));
    }
    match DirectoryStore::inside(location) {
        Ok(store) => Ok(Box::new(store)),
        Err(e) => Err(format!(
            "{e}; it must be a directory that this user may search"
        )),
    }
}
