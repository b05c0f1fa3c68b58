//! Requests and replies between nodes, as bytes.
//!
//! A request is a [`kind`](super::requests::kind) and its arguments, a reply is the results. Both
//! are tuples whose elements follow each other: numbers little-endian, texts behind their length (4
//! bytes), optional values behind a byte 0 or 1. Decoding accepts any bytes: what isn't a message is
//! None.

pub use forebay_store::codec::*;
