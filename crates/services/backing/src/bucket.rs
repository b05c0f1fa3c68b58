//! Buckets (S3 and compatible) as slow stores.
//!
//! It guarantees what staging and origins require: an object appears under its key only when it is
//! complete and the server has its content; a file that is read is of one version, and never
//! shorter than it is at the server.
//!
//! Modules, from the top to the bottom: `store`: the bucket as a slow store; `put`: uploads;
//! `objects`: paths, listings, and what a staging remembers; `file`: an object that is read;
//! `calls`: the operations of S3; `client`: requests with time limits and repetitions; `sign`,
//! `secret`, `address`, `xml`, `time`: the parts of a request. docs/howto/buckets.md is the user's
//! page, docs/decisions/0078-buckets.md tells why no library for S3 is used.

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
