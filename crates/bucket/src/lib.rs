//! Buckets (S3 and compatible) as a slow store: one side of a staging.
//!
//! [`BucketPlace`] is a bucket as the copier sees it. Its promises are those of staging: an object
//! appears under its key only when it is complete and the server has its content; a file that is
//! read is of one version, and never shorter than it is at the server.
//!
//! Modules, from the top to the bottom: `store`: the store behind a pool; `place`, `put`, `file`:
//! the copier's view; `calls`: the operations of S3; `client`: requests with time limits and
//! repetitions; `sign`, `secret`, `address`, `xml`, `time`: the parts of a request.
//! docs/buckets.md is the user's page, docs/decisions/0078-buckets.md tells why no library for S3 is
//! used.

mod address;
mod attributes;
mod calls;
mod client;
mod fault;
mod file;
mod place;
mod put;
mod secret;
mod sign;
mod store;
mod time;
mod xml;

pub use address::{Address, SCHEME};
pub use attributes::{DEVICE, UserAttributes, kept as kept_attributes};
pub use fault::CHANGED;
pub use file::BucketFile;
pub use place::{BucketPlace, THREADS};
pub use put::PART;
pub use store::{BucketStore, Entries};
