//! The state that a process keeps of files with weaker consistency: unpublished writes
//! (`writeback.rs`) and bytes that were read ahead (`readahead.rs`).

use forebay_cluster::{Sending, WriteBuffer};
use rustix::io::Errno;
use std::time::Instant;

/// Buffered writes to a file.
#[derive(Default)]
pub(crate) struct Kept {
    /// The file's live entry, the description that was written to last, and the file's controls.
    pub(crate) live: u32,
    pub(crate) open: u32,
    pub(crate) word: u64,
    pub(crate) buffer: WriteBuffer,
    /// The writes that are being sent. They come before the buffered ones.
    pub(crate) under_way: Option<(WriteBuffer, Sending)>,
    /// Memory for the next.
    pub(crate) spare: WriteBuffer,
    /// An error that wasn't reported yet.
    pub(crate) error: Option<Errno>,
}

/// Bytes of a file that were read ahead.
#[derive(Default)]
pub(crate) struct Window {
    /// The beginning of the bytes read ahead, the bytes, and the time of their request.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) asked_at: Option<Instant>,
    /// Where the last read ended: a process whose next read begins there reads sequentially.
    pub(crate) next: u64,
    /// Bytes to fetch for the next read.
    pub(crate) ahead: usize,
}
