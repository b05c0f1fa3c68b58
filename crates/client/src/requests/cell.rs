//! Who may do what with a cell, and how it passes on.
//!
//! ```text
//!          asker           asker            daemon            daemon           asker
//! FREE ---------> CLAIMED ---------> POSTED ---------> TAKEN ---------> DONE ---------> FREE
//!                                      |                 | asker           | daemon
//!                                      v                 v                 v
//!                                   CLAIMED          ABANDONED --------> FREE
//! ```
//! The asker has the cell in `CLAIMED` and `DONE`, the daemon in `TAKEN` and `ABANDONED`; in `POSTED` it
//! belongs to who changes the state first. With [`HELD`] the network may still be using the cell's bytes:
//! the asker may read the answer then, but leaves it to the daemon to free the cell.

use super::SMALL_BODY;
use super::region::{CELLS, Cell, LARGE, Shared};
use forebay_media::atomics::{AtomicU32, Ordering::*, futex};
use forebay_store::process;
use rustix::io::{Errno, Result};
use std::time::Duration;

pub const FREE: u32 = 0;
pub const CLAIMED: u32 = 1;
pub const POSTED: u32 = 2;
pub const TAKEN: u32 = 3;
pub const DONE: u32 = 4;
pub const ABANDONED: u32 = 5;
/// The daemon still needs it.
pub const HELD: u32 = 16;

/// How long who waits for a cell sleeps before looking whether owners have died.
const TURN: Duration = Duration::from_millis(100);

fn change(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, AcqRel, Acquire).is_ok()
}

impl Cell {
    /// From state to state, if it is as presumed.
    pub fn pass(&self, from: u32, to: u32) -> bool {
        change(&self.state, from, to)
    }
}

impl Shared {
    /// Takes a free cell with room for `body` bytes for the process `me`. None: all are taken.
    pub fn claim(&self, me: u64, image: u64, body: usize) -> Option<usize> {
        let mine = |&index: &usize| {
            let cell = self.cell(index);
            if cell.owner.load(Relaxed) != 0
                || cell.owner.compare_exchange(0, me, AcqRel, Relaxed).is_err()
            {
                return false;
            }
            cell.image.store(image, Relaxed);
            // Anything else was written by somebody who shouldn't: nobody gets this cell.
            cell.pass(FREE, CLAIMED)
        };
        if body > SMALL_BODY {
            return (0..LARGE).find(mine);
        }
        (LARGE..CELLS).chain((0..LARGE).rev()).find(mine)
    }

    /// As [`Shared::claim`]; waits until `until` for a cell.
    ///
    /// # Errors
    /// EHOSTDOWN if there was none.
    pub fn claim_waiting(&self, me: u64, image: u64, body: usize, until: u64) -> Result<usize> {
        if let Some(index) = self.claim(me, image, body) {
            return Ok(index);
        }
        let header = self.header();
        header.wanting.fetch_add(1, SeqCst);
        let mut reclaims = true;
        let got = loop {
            let seen = header.room.load(SeqCst);
            if let Some(index) = self.claim(me, image, body) {
                break Ok(index);
            }
            if reclaims && self.reclaim_dead(me) > 0 {
                continue;
            }
            let left = until.saturating_sub(super::clock());
            if left == 0 {
                break Err(Errno::HOSTDOWN);
            }
            let turn = TURN.min(Duration::from_nanos(left));
            reclaims = futex::wait(&header.room, seen, turn) == Err(Errno::TIMEDOUT);
        };
        header.wanting.fetch_sub(1, SeqCst);
        got
    }

    /// Gives a cell back. Only who has it.
    pub fn free(&self, index: usize) {
        let cell = self.cell(index);
        cell.state.store(FREE, Release);
        cell.owner.store(0, SeqCst);
        let header = self.header();
        header.room.fetch_add(1, SeqCst);
        if header.wanting.load(SeqCst) > 0 {
            futex::wake(&header.room, 1);
        }
    }

    /// The asker needs the cell no more, in whatever state it is.
    pub fn leave(&self, index: usize) {
        let cell = self.cell(index);
        loop {
            let state = cell.state.load(Acquire);
            if state & HELD != 0 {
                if state == ABANDONED | HELD || cell.pass(state, ABANDONED | HELD) {
                    return;
                }
            } else if state == FREE || state == CLAIMED || cell.pass(state, CLAIMED) {
                return self.free(index);
            }
        }
    }

    /// Takes back the cells of dead processes: how many.
    pub fn reclaim_dead(&self, me: u64) -> usize {
        self.reclaim(me, |_, owner| !process::runs(owner))
    }

    /// Takes back what the program before exec has left in this process.
    pub fn reclaim_own(&self, me: u64, image: u64) -> usize {
        self.reclaim(me, |cell, owner| {
            owner == me && cell.image.load(Relaxed) != image
        })
    }

    fn reclaim(&self, me: u64, lost: impl Fn(&Cell, u64) -> bool) -> usize {
        let mut count = 0;
        for index in 0..CELLS {
            let cell = self.cell(index);
            let owner = cell.owner.load(Acquire);
            if owner == 0 || !lost(cell, owner) {
                continue;
            }
            let taken = cell.owner.compare_exchange(owner, me, AcqRel, Relaxed);
            // What nobody waits for any more is the daemon's to free.
            if taken.is_ok() && cell.state.load(Acquire) != ABANDONED | HELD {
                self.leave(index);
                count += 1;
            }
        }
        count
    }

    /// Says that cells were posted.
    pub fn ring(&self) {
        let header = self.header();
        header.bell.fetch_add(1, SeqCst);
        if header.sleeps.load(SeqCst) != 0 {
            futex::wake(&header.bell, 1);
        }
    }
}
