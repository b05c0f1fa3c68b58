//! POSIX semantics on a pool: paths, permissions, open files.
//!
//! Every face uses this crate, so all faces behave alike. [`Fs`] is the view of one process: the
//! view has the process's credentials and resolves paths (bytes, absolute inside the pool or
//! relative to the id of a directory). Resolved directories are cached and checked against the
//! store's epoch of names. So a path of any depth costs one look-up, and is never resolved to a
//! stale directory.
//!
//! [`Fs`] has the calls. Its parts that have state are types (decision 0095), which don't refer to
//! the [`Fs`]:
//!
//! ```text
//! Fs                 calls of POSIX        ops, simple, file, opening
//!  +- controls()     ControlGate           controls
//!  +- buffers()      FileBuffers           writeback, readahead
//!  +- resolver()     Resolver              path
//!  +- origin_gate()  OriginGate            origin, ranges
//! ```
//!
//! A path can lead out of the pool (`..` above its root, a symbolic link to a path outside).
//! Resolving then returns [`Fail::Outside`] with the path outside, and the face continues there.
//!
//! Reading doesn't update access times (as on a file system mounted `noatime`).

mod aside;
mod buffers;
mod cache;
mod chunks;
pub mod controls;
mod copying;
mod cred;
mod description;
mod descriptors;
mod file;
mod fs;
mod guarded;
mod id_map;
mod known_blocks;
mod leases;
mod mapped;
mod mappings;
mod nodes;
mod off;
mod opening;
mod ops;
mod origin;
mod origin_caches;
mod path;
mod per_file_cache;
mod pool_ref;
mod process;
mod ranges;
mod readahead;
mod removed;
mod rule_cache;
mod simple;
pub mod thread_fs;
mod writeback;
mod xattr;

pub use controls::ControlGate;
pub use cred::{EXEC, READ, WRITE, umask};
pub use description::Description;
pub use descriptors::{Descriptors, Parked};
pub use file::{File, Whence};
pub use forebay_store::{
    ChunkSize, Distribution, Entry, Errno, LockType, NAME_MAX, ObjectId, PATH_MAX, RenameMode,
    Result,
};
pub use fs::{DirEntry, Fs, Stat};
pub use mappings::Mappings;
pub use opening::UNNAMED;
pub use ops::FileToMake;
pub use origin::OriginGate;
pub use path::{Fail, Follow, Goal, Name, Place, Purpose, Resolver, Rules};
pub use process::Process;
pub use writeback::FileBuffers;
