//! Buckets (S3 and compatible) as slow stores.
//!
//! As a slow store, a bucket gives the guarantees that staging and origins require. An object
//! appears under its key only when it is complete and the server has confirmed its content. Reading
//! a file returns bytes of one version only; a reply that breaks off isn't taken for the file's
//! end.
//!
//! Modules, each using those after it: `store`: the bucket as a slow store; `put`: uploads;
//! `objects`: paths, listings, and the memory of a staging; `file`: reading an object; `calls`: the
//! operations of S3; `client`: requests with time limits and repetitions; `sign`, `secret`,
//! `address`, `xml`, `time`: the parts of a request. docs/howto/buckets.md is for users;
//! docs/decisions/0078-buckets.md tells why no library for S3 is used.

mod address;
mod attributes;
mod calls;
mod client;
mod fault;
mod file;
mod objects;
mod put;
mod secret;
mod sign;
mod store;
mod time;
mod xml;

pub use address::{Address, SCHEME};
pub use attributes::{DEVICE, kept as kept_attributes};
pub use fault::CHANGED;
pub use objects::{BucketStore, THREADS};
pub use put::PART;
