//! The node store: one node's share of a pool, a data structure and not a server.
//!
//! Every process of the user opens the same store and works on it directly:
//! - *records* (names, attributes, extents) in LMDB, sharded by slot ([`records`], [`shards`]);
//! - *bytes* in extents of media (crate `forebay-media`, [`data`]);
//! - what only matters while processes run (locks, open objects with their true size,
//!   open file descriptions, process slots) in the control region ([`control_region`]).
//!
//! Promises: a finished write is seen by the next read of any process; changes of names are atomic,
//! also over several shards; a process may be killed at any instant, and the others go on with
//! consistent data and release what it held. Locks are taken in the order: live object (two of
//! them: ascending), shards (ascending), bucket of the live table; never backwards. `Locked.` in
//! the documentation of a function: the caller holds the lock of the object's live entry.
//!
//! A module imports modules of lower lines, or to its left in its own line
//! (`crates/cli/tests/floors.rs` refuses cycles):
//!
//! ```text
//! fsck                                              checking and repairing
//! create durable recount recover repair checkpoint reload    after deaths and losses of power
//! accounting exclusive_mount tables                 how full tables are; other processes
//! names ephemeral attribute_view index attributes dirs   names, attributes, and how they are found
//! locks controls open watches mapped                uses of files by processes
//! stripe_units cached_copies data placements        their bytes
//! live remote_opens quota                           open objects
//! shards journal                                    transactions
//! views                                             Store's views, and what each holds
//! node                                              Store; Remote; this process's slot
//! record_files                                      the records' files, by shard
//! records                                           operations on records
//! extent_cache ring quiescence                      extents; journal; no operation in flight
//! declared object lock_request                      what callers ask for, as plain values
//! names_epoch lending areas                         when paths become wrong; vfork children; areas
//! process                                           processes attached to the control region
//! map_table control_region                          how shared memory is laid out
//! codec chunks clock errors record_tree             bytes, numbers, time
//! ```

/// The directory beside the control region that contains the rings of [`forebay_trace`].
pub const RINGS: &str = "rings";

pub mod accounting;
#[cfg(test)]
mod alone;
mod areas;
pub mod attribute_view;
pub mod attributes;
pub mod cached_copies;
mod checkpoint;
mod chunks;
mod clock;
pub mod codec;
pub mod control_region;
pub mod controls;
mod create;
pub mod data;
mod declared;
pub mod dirs;
mod durable;
pub mod ephemeral;
mod errors;
mod exclusive_mount;
mod extent_cache;
pub mod fsck;
pub mod index;
mod journal;
pub mod leases;
mod leftovers;
pub mod lending;
pub mod live;
mod lock_request;
pub mod locks;
#[cfg(all(test, loom))]
mod loom_models;
pub mod map_table;
pub mod mapped;
pub mod names;
mod names_epoch;
mod node;
mod object;
mod open;
pub mod placements;
pub mod process;
mod quiescence;
pub mod quota;
pub mod record_files;
mod record_tree;
pub mod records;
mod recount;
mod recover;
mod reload;
pub mod remote_opens;
pub mod removed_dirs;
mod repair;
mod ring;
pub mod shards;
pub mod stripe_units;
pub mod tables;
#[cfg(test)]
mod test_store;
pub mod views;
pub mod watches;

// `test_store` names this crate `forebay_store`, because the crate `cluster` includes its file,
// too.
#[cfg(test)]
extern crate self as forebay_store;

pub use areas::ProcessAreas;
pub use checkpoint::Loaded;
pub use chunks::{CHUNK, MAX_SIZE};
pub use clock::{TICK, now};
pub use control_region::{Limits, MAX_FDS, MAX_SHARDS, NAME_MAX, PATH_MAX};
pub use data::Drained;
pub use dirs::DirPosition;
pub use ephemeral::Followed;
pub use forebay_media::{Extent, Medium, PAGE, Region, Usage};
pub use forebay_placement::{ChunkSize, Distribution, NodeId, ObjectId, Slot};
pub use forebay_records::origin::{OriginMark, OriginState};
pub use forebay_records::{lmdb, record};
pub use fsck::{Finding, Report};
pub use index::{Description, Match, Number, OwnedName, Term};
pub use live::Held;
pub use lock_request::LockType;
pub use mapped::{MapPiece, NOTICE, NOTICE_VALUE, on_shrink};
pub use node::{Attachment, Remote, Store};
pub use object::{Creator, NewObject, RenameMode, SetAttr, Stub};
pub use open::NewOpen;
pub use quiescence::Section;
pub use record::{Entry, Inode, S_IFMT};
pub use recover::Reaped;
pub use remote_opens::Opened;
pub use ring::{Journal, RING};
pub use rustix::io::{Errno, Result};
pub use tables::Table;

pub(crate) use forebay_runtime::lock;
