//! Records: keys and values in LMDB. Each shard is one LMDB environment; all processes of a node
//! share it.
//!
//! - [`lmdb`] is the only user of LMDB: environments that are opened at their first use,
//!   transactions, readers, pages of the file whose room is reserved ahead, parked pages.
//! - [`record`] has the formats of keys and values. Decoding accepts any bytes. `order.rs` and
//!   [`number`] define the order of attributes' values in the index.
//!
//! The meaning of records (names, files, transactions over several shards, the journal) is defined
//! in the node store.

pub mod lmdb;
pub mod number;
mod order;
pub mod origin;
pub mod record;
