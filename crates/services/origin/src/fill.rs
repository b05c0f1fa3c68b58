//! The blocks of a released file that are in the pool, and those that are being read.
//!
//! A block is claimed by the thread that reads it, so that it is read once. While a file is
//! [paused](Fill::pause), or its fill has [ended](Fill::end), nobody claims a block. Readers are
//! *streams* if each goes on where it has ended: blocks behind it are read ahead, four times as
//! many each time, up to [`MAX_BLOCKS_AHEAD`].

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of blocks that are read ahead of one reader: 64 MiB.
pub const MAX_BLOCKS_AHEAD: u64 = 8;
/// Minimum of blocks that are read ahead of a reader whose second read continues its first.
const FIRST_AHEAD: u64 = 2;
/// Readers of a file that are followed.
const STREAMS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Absent,
    /// To be read ahead.
    Queued,
    /// Being read.
    Coming,
    Present,
}

/// A reader: the block after its last one, and the blocks that were read ahead of it.
struct Stream {
    next: u64,
    ahead: u64,
}

struct State {
    blocks: Vec<Block>,
    /// Blocks that aren't present, and those that are being read.
    missing: u64,
    coming: u64,
    streams: Vec<Stream>,
    /// Fingerprint of the origin's version to which the blocks belong.
    version: u64,
    is_paused: bool,
    has_ended: bool,
}

/// The blocks of one file, from an eviction to the next.
pub struct Fill {
    /// Distinguishes fills, also those of the same file. Not 0.
    pub number: u32,
    /// Size of the file. Bytes.
    pub size: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// The result of asking for blocks.
pub enum Claimed {
    /// These are to be read by this thread, of this version.
    Blocks(Vec<u64>, u64),
    /// All blocks are present.
    Present,
    /// There is another fill now, or the whole file is in the pool.
    Ended,
}

impl Fill {
    /// A fill of which none of the `blocks` blocks is present.
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims those of the blocks from `first` to `end` that no thread reads. If other threads read
    /// all the missing ones, waits until one of them is present.
    pub fn claim(&self, (first, end): (u64, u64)) -> Claimed {
        let mut state = self.state();
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

    /// Claims a block that was queued. Returns the version. None: another thread has claimed it.
    pub fn claim_queued(&self, block: u64) -> Option<u64> {
        let mut state = self.state();
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

    /// A claimed block is present now, or couldn't be read. True: all blocks are present.
    pub fn came(&self, block: u64, is_there: bool) -> bool {
        let mut state = self.state();
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

    /// Called when a program reads the blocks from `first` to `end`. Returns the blocks to be read
    /// ahead, which count as queued.
    pub fn ahead(&self, first: u64, end: u64) -> Vec<u64> {
        let mut state = self.state();
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

    /// Blocks that were queued aren't read ahead.
    pub fn unqueue(&self, blocks: &[u64]) {
        let mut state = self.state();
        for block in blocks {
            if state.blocks[*block as usize] == Block::Queued {
                state.blocks[*block as usize] = Block::Absent;
            }
        }
        self.changed.notify_all();
    }

    /// Waits until no block is being read; none is until [`Fill::go_on`].
    pub fn pause(&self) {
        let mut state = self.state();
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

    /// Ends a pause.
    pub fn go_on(&self) {
        self.state().is_paused = false;
        self.changed.notify_all();
    }

    /// Ends the fill: no block is read from now on. Waits until none is being read.
    pub fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        self.changed.notify_all();
        while state.coming > 0 {
            state = self.wait(state);
        }
    }

    /// As [`Fill::end`], unless a block is being read: false.
    pub fn end_if_idle(&self) -> bool {
        let mut state = self.state();
        if state.coming > 0 {
            return false;
        }
        state.has_ended = true;
        self.changed.notify_all();
        true
    }

    /// The origin's copy is this version, with the same bytes.
    pub fn is_of(&self, version: u64) {
        self.state().version = version;
    }

    /// Whether a block is present or is being read.
    pub fn has_any(&self) -> bool {
        let state = self.state();
        state.coming > 0 || state.missing < state.blocks.len() as u64
    }

    /// Whether all blocks are present.
    pub fn is_complete(&self) -> bool {
        self.state().missing == 0
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
        // The file's beginning: perhaps all of it is read.
        assert_eq!(fill.ahead(0, 1), [1]);
        assert_eq!(fill.ahead(1, 2), [2, 3, 4, 5]);
        // Asked for again, and a read that begins in the last block.
        assert!(fill.ahead(1, 2).is_empty());
        assert_eq!(fill.ahead(1, 3), [6, 7, 8, 9, 10]);
        assert_eq!(fill.ahead(3, 4), [11]);
        assert_eq!(fill.ahead(4, 5), [12]);
        // Others in the middle: nothing, and then more and more.
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
