//! Records: keys and values in LMDB, one environment per shard, shared by all processes of a node.
//!
//! - [`lmdb`] has every rule of LMDB: environments that are opened when they are first used,
//!   transactions, readers, room for pages that is reserved before it is needed, pages that are
//!   parked.
//! - [`record`] has the formats of keys and values. Decoding accepts any bytes. `order.rs` and
//!   [`number`] say where the values of attributes lie in the index.
//!
//! What records mean (names, files, transactions over several shards, the journal) is the business
//! of the node store.

pub mod lmdb;
pub mod number;
mod order;
pub mod record;
