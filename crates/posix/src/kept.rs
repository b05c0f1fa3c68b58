//! What a process keeps of files with weaker consistency: unpublished writes (`writeback.rs`) and
//! bytes that were read ahead (`readahead.rs`).

use forebay_cluster::{Pieces, Sending};
use rustix::io::Errno;
use std::time::Instant;

/// Bytes of a file that are kept back.
#[derive(Default)]
pub(crate) struct Kept {
    /// Its live entry, the description that was written to last, and its controls.
    pub(crate) live: u32,
    pub(crate) open: u32,
    pub(crate) word: u64,
    pub(crate) pieces: Pieces,
    /// They come before the others.
    pub(crate) under_way: Option<(Pieces, Sending)>,
    /// Memory for the next.
    pub(crate) spare: Pieces,
    /// An error that wasn't reported yet.
    pub(crate) error: Option<Errno>,
}

/// Bytes of a file that were read ahead.
#[derive(Default)]
pub(crate) struct Window {
    /// Where it begins, its bytes, and when they were asked for.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) asked: Option<Instant>,
    /// Where the last read ended: who goes on there reads one piece after the other.
    pub(crate) next: u64,
    /// Bytes to fetch for the next read.
    pub(crate) ahead: usize,
}
