//! What nodes say to each other about their stores, as bytes.
//!
//! A question is a [`kind`] and its arguments, an answer the results: both the parts of a tuple,
//! one after the other, numbers little-endian, texts behind their length (4 bytes), what may be
//! absent behind a byte 0 or 1. Decoding accepts any bytes: what isn't a message is None.

pub use forebay_store::codec::*;

pub use super::requests::kind;
