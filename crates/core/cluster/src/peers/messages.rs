//! Requests and replies between nodes, as bytes.
//!
//! A request is a [`kind`](super::requests::kind) and its arguments, a reply is the results. Both
//! are tuples whose elements follow each other: numbers little-endian, a text follows its length (4
//! bytes), an optional value follows a byte 0 or 1. Decoding accepts any bytes, and returns None
//! for those that aren't a message.

pub use forebay_store::codec::*;
