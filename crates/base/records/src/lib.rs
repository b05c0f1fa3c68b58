//! Records: keys and values in LMDB, one environment per shard, shared by all processes of a node.
//!
//! - [`lmdb`] has every rule of LMDB: environments opened at their first use, transactions,
//!   readers, room for pages that is reserved before it is needed, parked pages.
//! - [`record`] has the formats of keys and values. Decoding accepts any bytes. `order.rs` and
//!   [`number`] define the order of attributes' values in the index.
//!
//! The meaning of records (names, files, transactions over several shards, the journal) is up to
//! the node store.

pub mod lmdb;
pub mod number;
mod order;
pub mod origin;
pub mod record;
