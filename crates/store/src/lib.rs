//! The node store: one node's share of a pool, a data structure and not a server.
//!
//! Every process of the user opens the same store and works on it directly:
//! - *records* (names, attributes, extents) in LMDB, sharded by slot ([`lmdb`], [`shards`]);
//! - *bytes* in extents of media (crate `forebay-media`, [`data`]);
//! - what only matters while processes run (locks, open objects with their true size,
//!   open file descriptions, process slots) in the control region ([`control`]).
//!
//! Promises: a finished write is seen by the next read of any process; changes of names are atomic,
//! also over several shards; a process may be killed at any instant, and the others go on with
//! consistent data and get back what it held. Locks are taken in the order: live object (two of
//! them: ascending), shards (ascending), bucket of the live table; never backwards.
//!
//! A module imports modules of lower lines, or to its left in its own line
//! (`crates/cli/tests/floors.rs` checks that there are no circles):
//!
//! ```text
//! fsck                                              checking and mending
//! create durable recount recover repair checkpoint reload    after deaths and losses of power
//! accounting sole tables                            how full tables are; who else is there
//! names ephemeral view index attributes dirs        names, attributes, and how they are found
//! locks controls open watches mapped                who uses files, and for what
//! parts copies data placements                      their bytes
//! live foreign quota                                open objects
//! shards journal                                    transactions
//! views                                             Store's operations by theme
//! node                                              Store; Foreign; this process's slot
//! extent_cache ring quiescence                      files of the journal; moments without sections
//! declared object lock_request                      what callers ask for, as plain values
//! process                                           processes attached to the control region
//! map_table control                                 how shared memory is laid out
//! codec chunks clock errors record_tree             bytes, numbers, time
//! ```

/// The directory beside the control region in which the rings of [`forebay_trace`] lie.
pub const RINGS: &str = "rings";

pub mod accounting;
#[cfg(test)]
mod alone;
pub mod attributes;
mod checkpoint;
mod chunks;
mod clock;
pub mod codec;
pub mod control;
pub mod controls;
pub mod copies;
mod create;
pub mod data;
mod declared;
pub mod dirs;
mod durable;
pub mod ephemeral;
mod errors;
mod extent_cache;
pub mod foreign;
pub mod fsck;
pub mod index;
mod journal;
pub mod live;
mod lock_request;
pub mod locks;
pub mod map_table;
pub mod mapped;
#[cfg(all(test, loom))]
mod models;
pub mod names;
mod node;
mod object;
mod open;
pub mod parts;
pub mod placements;
pub mod process;
mod quiescence;
pub mod quota;
mod record_tree;
mod recount;
mod recover;
mod reload;
mod repair;
mod ring;
pub mod shards;
mod sole;
mod tables;
pub mod view;
pub mod views;
pub mod watches;

pub use checkpoint::Loaded;
pub use chunks::{CHUNK, MAX_SIZE};
pub use clock::{TICK, now};
pub use control::{Limits, MAX_FDS, MAX_SHARDS, NAME_MAX, PATH_MAX};
pub use data::Drained;
pub use dirs::DirPosition;
pub use ephemeral::Followed;
pub use forebay_media::{Extent, Medium, PAGE, Region, Usage};
pub use forebay_placement::{ChunkSize, Distribution, NodeId, ObjectId, Slot};
pub use forebay_records::origin::{OriginMark, OriginState};
pub use forebay_records::{lmdb, record};
pub use foreign::Opened;
pub use fsck::{Finding, Report};
pub use index::{Description, Match, Number, OwnedName, Term};
pub use live::Held;
pub use lock_request::LockType;
pub use mapped::{MapPiece, NOTICE, NOTICE_VALUE, on_shrink};
pub use node::{Foreign, Store};
pub use object::{Maker, NewObject, RenameMode, SetAttr, Stub};
pub use open::NewOpen;
pub use quiescence::Section;
pub use record::{Entry, Inode, S_IFMT};
pub use recover::Reaped;
pub use ring::{Journal, RING};
pub use rustix::io::{Errno, Result};
pub use tables::Table;

// Of a lower crate, under the names that modules here use.
pub(crate) use forebay_runtime::lock;
pub use forebay_runtime::threads;
