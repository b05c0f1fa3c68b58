//! A process's buffers for files with weaker consistency: unpublished writes (`writeback.rs`) and
//! bytes that were read ahead (`readahead.rs`).

use crate::per_file_cache::PerFileCache;
use forebay_cluster::{Sending, WriteBuffer};
use rustix::io::Errno;
use std::time::Instant;

/// The buffers of a process; see the module.
pub(crate) struct BufferCaches {
    /// Buffered writes to files.
    pub writes: PerFileCache<BufferedWrites>,
    /// Bytes that were read ahead.
    pub windows: PerFileCache<Window>,
}

impl BufferCaches {
    /// Empty buffers.
    pub fn new() -> BufferCaches {
        BufferCaches {
            writes: PerFileCache::new(),
            windows: PerFileCache::new(),
        }
    }

    /// Empties the buffers. Must be called first in a forked child.
    pub fn begin_anew(&self) {
        self.writes.begin_anew();
        self.windows.begin_anew();
    }
}

/// Buffered writes to a file.
#[derive(Default)]
pub(crate) struct BufferedWrites {
    /// The file's live entry, the description that was written to last, and the file's controls.
    pub(crate) live: u32,
    pub(crate) open: u32,
    pub(crate) word: u64,
    pub(crate) buffer: WriteBuffer,
    /// The writes that are being sent, which are older than those in `buffer`.
    pub(crate) under_way: Option<(WriteBuffer, Sending)>,
    /// Empty buffer whose memory the next send reuses.
    pub(crate) spare: WriteBuffer,
    /// An error that wasn't reported yet.
    pub(crate) error: Option<Errno>,
}

/// Bytes of a file that were read ahead.
#[derive(Default)]
pub(crate) struct Window {
    /// Offset of the bytes read ahead, the bytes, and the time when they were requested.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) asked_at: Option<Instant>,
    /// Where the last read ended: a process whose next read begins there reads sequentially.
    pub(crate) next: u64,
    /// Number of bytes that the last fetch asked for; the next one asks for twice as many.
    pub(crate) ahead: usize,
}
