//! How the bytes of a file are divided: chunks, and pages.

use forebay_media::{CELL_PAGES, PAGE};

/// Size of a chunk in bytes.
pub const CHUNK: u64 = (CELL_PAGES * PAGE) as u64;
/// Maximum size of a file. Bytes.
pub const MAX_SIZE: u64 = 1 << 55;

/// Pages needed for `bytes` bytes.
pub(crate) fn pages(bytes: u64) -> usize {
    bytes.div_ceil(PAGE as u64) as usize
}
