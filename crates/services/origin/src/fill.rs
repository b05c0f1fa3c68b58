//! The blocks of a released file: which are in the pool, and which are being read.
//!
//! The thread that reads a block claims it first, so that each block is read once. While a fill is
//! [paused](Fill::pause), and after it has [ended](Fill::end), no thread claims a block. A reader
//! whose reads continue one another is a *stream*: blocks after its last read are read ahead. The
//! number of these blocks quadruples with each read, up to [`MAX_BLOCKS_AHEAD`].

use forebay_runtime::threads::lock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of blocks that are read ahead of one stream: 64 MiB.
pub const MAX_BLOCKS_AHEAD: u64 = 8;
/// Number of blocks that are read ahead when a second read continues the first one.
const FIRST_AHEAD: u64 = 2;
/// Maximum number of readers of one file whose positions are remembered.
const STREAMS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Absent,
    /// The block waits for a thread that reads ahead.
    Queued,
    /// A thread is reading it.
    Coming,
    Present,
}

/// A reader: the block after its last read, and the number of blocks that are read ahead of it.
struct Stream {
    next: u64,
    ahead: u64,
}

struct State {
    blocks: Vec<Block>,
    /// Number of blocks that aren't present, and of those that are being read.
    missing: u64,
    coming: u64,
    streams: Vec<Stream>,
    /// Fingerprint of the origin's version to which the blocks belong.
    version: u64,
    is_paused: bool,
    has_ended: bool,
}

/// The blocks of one file while it is released. After the next eviction, the file gets another
/// fill.
pub struct Fill {
    /// A number that no other fill has, not even another of the same file. Not 0.
    pub number: u32,
    /// Size of the file. Bytes.
    pub size: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// The result of claiming blocks.
pub enum Claimed {
    /// The caller has to read these blocks, of this version of the file.
    Blocks(Vec<u64>, u64),
    /// All blocks are present.
    Present,
    /// The fill has ended: the file has another fill, or all its bytes are in the pool.
    Ended,
}

impl Fill {
    /// Returns a fill of `blocks` blocks, none of which is present.
    pub fn new(number: u32, size: u64, blocks: u64, version: u64) -> Fill {
        Fill {
            number,
            size,
            state: Mutex::new(State {
                blocks: vec![Block::Absent; blocks as usize],
                missing: blocks,
                coming: 0,
                streams: Vec::new(),
                version,
                is_paused: false,
                has_ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the blocks from `first` to `end` (exclusive) that are missing and that no thread
    /// reads. If other threads read all the missing ones, waits until all blocks are present, or
    /// until another thread has failed to read one. Then claims that block.
    pub fn claim(&self, (first, end): (u64, u64)) -> Claimed {
        let mut state = lock(&self.state);
        let range = first as usize..(end as usize).min(state.blocks.len());
        loop {
            if state.has_ended {
                return Claimed::Ended;
            }
            if !state.is_paused {
                let mut claimed = Vec::new();
                for block in range.clone() {
                    if matches!(state.blocks[block], Block::Absent | Block::Queued) {
                        state.blocks[block] = Block::Coming;
                        claimed.push(block as u64);
                    }
                }
                state.coming += claimed.len() as u64;
                debug_assert_eq!(
                    state.blocks.iter().filter(|b| **b == Block::Coming).count() as u64,
                    state.coming,
                    "each block that is claimed is counted"
                );
                if !claimed.is_empty() {
                    return Claimed::Blocks(claimed, state.version);
                }
            }
            if state.blocks[range.clone()]
                .iter()
                .all(|b| *b == Block::Present)
            {
                return Claimed::Present;
            }
            state = self.wait(state);
        }
    }

    /// Claims a queued block, and returns the version to read. None: another thread has claimed the
    /// block, or the fill has ended.
    pub fn claim_queued(&self, block: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        while state.is_paused && !state.has_ended {
            state = self.wait(state);
        }
        if state.has_ended || state.blocks[block as usize] != Block::Queued {
            return None;
        }
        state.blocks[block as usize] = Block::Coming;
        state.coming += 1;
        Some(state.version)
    }

    /// Records that a claimed block is present now, or couldn't be read. Returns whether all blocks
    /// of the file are present.
    pub fn came(&self, block: u64, is_there: bool) -> bool {
        let mut state = lock(&self.state);
        assert!(
            state.coming > 0 && state.blocks[block as usize] == Block::Coming,
            "a block that has come was claimed: {block}"
        );
        state.coming -= 1;
        state.blocks[block as usize] = if is_there {
            Block::Present
        } else {
            Block::Absent
        };
        assert!(
            state.missing >= u64::from(is_there),
            "a block comes once: {block}"
        );
        state.missing -= u64::from(is_there);
        debug_assert_eq!(
            state
                .blocks
                .iter()
                .filter(|b| **b == Block::Present)
                .count() as u64
                + state.missing,
            state.blocks.len() as u64,
            "each block is present or missing"
        );
        self.changed.notify_all();
        state.missing == 0
    }

    /// Records that a program reads the blocks from `first` to `end` (exclusive). Queues blocks to
    /// be read ahead, and returns them.
    pub fn ahead(&self, first: u64, end: u64) -> Vec<u64> {
        let mut state = lock(&self.state);
        let follows = |s: &Stream| first <= s.next && s.next <= first + 1 && s.next <= end;
        let stream = match state.streams.iter().position(follows) {
            Some(at) => {
                let old = state.streams.remove(at);
                let ahead = if end > old.next {
                    (4 * old.ahead).clamp(FIRST_AHEAD, MAX_BLOCKS_AHEAD)
                } else {
                    old.ahead
                };
                Stream { next: end, ahead }
            }
            None => Stream {
                next: end,
                ahead: u64::from(first == 0),
            },
        };
        let ahead = end..(end + stream.ahead).min(state.blocks.len() as u64);
        state.streams.insert(0, stream);
        state.streams.truncate(STREAMS);
        let mut queued = Vec::new();
        for block in ahead {
            if state.blocks[block as usize] == Block::Absent && !state.has_ended {
                state.blocks[block as usize] = Block::Queued;
                queued.push(block);
            }
        }
        queued
    }

    /// Removes blocks from the queue for reading ahead.
    pub fn unqueue(&self, blocks: &[u64]) {
        let mut state = lock(&self.state);
        for block in blocks {
            if state.blocks[*block as usize] == Block::Queued {
                state.blocks[*block as usize] = Block::Absent;
            }
        }
        self.changed.notify_all();
    }

    /// Pauses the fill: waits until no block is being read. No read begins before [`Fill::go_on`].
    pub fn pause(&self) {
        let mut state = lock(&self.state);
        while state.is_paused && !state.has_ended {
            state = self.wait(state);
        }
        assert!(
            !state.is_paused || state.has_ended,
            "one thread pauses a fill at a time"
        );
        state.is_paused = true;
        while state.coming > 0 {
            state = self.wait(state);
        }
    }

    /// Ends a pause of the fill.
    pub fn go_on(&self) {
        lock(&self.state).is_paused = false;
        self.changed.notify_all();
    }

    /// Ends the fill, so that no further block is read. Waits until no block is being read.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.has_ended = true;
        self.changed.notify_all();
        while state.coming > 0 {
            state = self.wait(state);
        }
    }

    /// Ends the fill as [`Fill::end`]. Returns false, and does nothing, if a block is being read.
    pub fn end_if_idle(&self) -> bool {
        let mut state = lock(&self.state);
        if state.coming > 0 {
            return false;
        }
        state.has_ended = true;
        self.changed.notify_all();
        true
    }

    /// Sets the fingerprint of the blocks' version, when the origin has a new version with the same
    /// bytes.
    pub fn is_of(&self, version: u64) {
        lock(&self.state).version = version;
    }

    /// Whether a block is present or is being read.
    pub fn has_any(&self) -> bool {
        let state = lock(&self.state);
        state.coming > 0 || state.missing < state.blocks.len() as u64
    }

    /// Whether all blocks are present.
    pub fn is_complete(&self) -> bool {
        lock(&self.state).missing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(fill: &Fill, range: (u64, u64)) -> Vec<u64> {
        match fill.claim(range) {
            Claimed::Blocks(blocks, 5) => blocks,
            _ => Vec::new(),
        }
    }

    #[test]
    fn each_block_is_read_once() {
        let fill = Fill::new(1, 40, 4, 5);
        assert!(!fill.has_any());
        assert_eq!(claimed(&fill, (1, 3)), [1, 2]);
        // Blocks that other threads read aren't claimed again.
        assert_eq!(claimed(&fill, (0, 9)), [0, 3]);
        assert!(fill.has_any() && !fill.end_if_idle());
        assert!(!fill.came(1, true) && !fill.came(2, false));
        assert_eq!(claimed(&fill, (1, 3)), [2]);
        assert!(!fill.came(2, true) && !fill.came(0, true) && fill.came(3, true));
        assert!(matches!(fill.claim((0, 4)), Claimed::Present));
        assert!(fill.is_complete() && fill.end_if_idle());
        assert!(matches!(fill.claim((0, 4)), Claimed::Ended));
    }

    #[test]
    fn a_reader_waits_for_a_block_that_another_one_reads() {
        let fill = Fill::new(1, 40, 4, 5);
        assert_eq!(claimed(&fill, (0, 1)), [0]);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| matches!(fill.claim((0, 1)), Claimed::Present));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waits.is_finished());
            fill.came(0, true);
            assert!(waits.join().unwrap());
            // A block that fails for one reader is tried by the next.
            assert_eq!(claimed(&fill, (1, 2)), [1]);
            let takes_over = scope.spawn(|| claimed(&fill, (1, 2)));
            fill.came(1, false);
            assert_eq!(takes_over.join().unwrap(), [1]);
            fill.came(1, true);
        });
    }

    #[test]
    fn sequential_readers_are_read_ahead_of() {
        let fill = Fill::new(1, 1000, 100, 5);
        // A read of the first block: maybe the program reads the whole file.
        assert_eq!(fill.ahead(0, 1), [1]);
        assert_eq!(fill.ahead(1, 2), [2, 3, 4, 5]);
        // The same read again, and a read that begins in the last block of the read before.
        assert!(fill.ahead(1, 2).is_empty());
        assert_eq!(fill.ahead(1, 3), [6, 7, 8, 9, 10]);
        assert_eq!(fill.ahead(3, 4), [11]);
        assert_eq!(fill.ahead(4, 5), [12]);
        // For readers in the middle of a file, nothing is read ahead at first, then more with each
        // read.
        assert!(fill.ahead(50, 51).is_empty() && fill.ahead(70, 71).is_empty());
        assert_eq!(fill.ahead(51, 52), [52, 53]);
        assert_eq!(fill.ahead(71, 72), [72, 73]);
        assert_eq!(fill.ahead(72, 73), [74, 75, 76, 77, 78, 79, 80]);
        fill.unqueue(&[73, 74]);
        assert_eq!(fill.ahead(98, 99), Vec::<u64>::new());
        assert_eq!(fill.ahead(99, 100), Vec::<u64>::new());
        assert_eq!(fill.claim_queued(52), Some(5));
        assert_eq!(fill.claim_queued(52), None);
        assert_eq!(fill.claim_queued(73), None);
    }

    #[test]
    fn nothing_is_read_in_a_pause() {
        let fill = Fill::new(1, 40, 4, 4);
        fill.ahead(0, 1);
        fill.pause();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| claimed(&fill, (0, 1)));
            let ahead = scope.spawn(|| fill.claim_queued(1));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!reader.is_finished() && !ahead.is_finished());
            fill.is_of(5);
            fill.go_on();
            assert_eq!(reader.join().unwrap(), [0]);
            assert_eq!(ahead.join().unwrap(), Some(5));
            let end = scope.spawn(|| fill.end());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!end.is_finished());
            fill.came(0, true);
            fill.came(1, true);
            end.join().unwrap();
        });
    }
}
