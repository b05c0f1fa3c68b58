//! The states of a request cell, and which side may use it in each.
//!
//! ```text
//!          asker           asker            daemon            daemon           asker
//! FREE ---------> CLAIMED ---------> POSTED ---------> TAKEN ---------> DONE ---------> FREE
//!                                      |                 | asker           | daemon
//!                                      v                 v                 v
//!                                   CLAIMED          ABANDONED --------> FREE
//! ```
//! The asker has the cell in `CLAIMED` and `DONE`, the daemon in `TAKEN` and `ABANDONED`; in
//! `POSTED` it belongs to who changes the state first. With [`HELD`] the network may still be using
//! the cell's bytes: the asker may read the answer then, but leaves it to the daemon to free the
//! cell.
//!
//! If nobody waits for the answer (`told`), the cell is the daemon's from `POSTED` on, whoever
//! dies: it frees the cell instead of making it `DONE`.

use super::SMALL_BODY;
use super::region::{ASLEEP, CELLS, Cell, LARGE, Shared};
use forebay_media::atomics::{AtomicU32, Ordering::*, futex};
use forebay_placement::NodeId;
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

/// What a cell is needed for.
pub struct Claim {
    /// The process, and the program in it.
    pub me: u64,
    pub image: u64,
    /// Whom it asks.
    pub node: NodeId,
    /// Bytes of the body, or of the room for it.
    pub body: usize,
    /// Nobody may look at the answer for long: such requests get half of the cells, and only large
    /// ones.
    pub is_kept: bool,
}

impl Cell {
    /// From state to state, if it is as presumed.
    pub fn pass(&self, from: u32, to: u32) -> bool {
        change(&self.state, from, to)
    }
}

impl Shared {
    /// Takes a free cell.
    ///
    /// # Errors
    /// The word to sleep on until there may be one.
    pub fn claim(&self, claim: &Claim) -> std::result::Result<usize, &AtomicU32> {
        let header = self.header();
        let mine = |index: usize, before: usize, of: usize| {
            let cell = self.cell(index);
            if cell.owner.load(Relaxed) != 0 {
                return None;
            }
            // Looked at only when many are taken.
            if before >= of / 8 * 3 && self.cells_for(claim.node, of) >= of / 4 * 3 {
                return Some(Err(header.share_of(claim.node.0)));
            }
            let took = cell.owner.compare_exchange(0, claim.me, AcqRel, Relaxed);
            took.ok()?;
            cell.image.store(claim.image, Relaxed);
            cell.node.store(claim.node.0, Relaxed);
            // Anything else was written by somebody who shouldn't: nobody gets this cell.
            cell.pass(FREE, CLAIMED).then_some(Ok(index))
        };
        let found = if claim.is_kept {
            let large = claim.body > SMALL_BODY;
            let most = if large { LARGE / 2 } else { 0 };
            (0..most).find_map(|i| mine(i, i, LARGE))
        } else if claim.body > SMALL_BODY {
            (0..LARGE).find_map(|i| mine(i, i, LARGE))
        } else {
            let small = (LARGE..CELLS).find_map(|i| mine(i, i - LARGE, CELLS));
            small.or_else(|| (0..LARGE).rev().find_map(|i| mine(i, CELLS, CELLS)))
        };
        found.unwrap_or(Err(&header.room))
    }

    /// How many of the first `of` cells are taken for a node. One that doesn't answer must not get
    /// all.
    fn cells_for(&self, node: NodeId, of: usize) -> usize {
        let theirs = |&i: &usize| {
            let cell = self.cell(i);
            cell.owner.load(Relaxed) != 0 && cell.node.load(Relaxed) == node.0
        };
        (0..of).filter(theirs).count()
    }

    /// As [`Shared::claim`]; waits until `until` for a cell.
    ///
    /// # Errors
    /// EHOSTDOWN if there was none.
    pub fn claim_waiting(&self, claim: &Claim, until: u64) -> Result<usize> {
        if let Ok(index) = self.claim(claim) {
            return Ok(index);
        }
        let header = self.header();
        header.wanting.fetch_add(1, SeqCst);
        let got = loop {
            let seen = [&header.room, header.share_of(claim.node.0)].map(|w| w.load(SeqCst));
            let word = match self.claim(claim) {
                Ok(index) => break Ok(index),
                Err(word) => word,
            };
            let now = super::clock();
            if self.may_reclaim(now) && self.reclaim_dead(claim.me) > 0 {
                continue;
            }
            if now >= until {
                break Err(Errno::HOSTDOWN);
            }
            let turn = TURN.min(Duration::from_nanos(until - now));
            let seen = seen[usize::from(!std::ptr::eq(word, &header.room))];
            let _ = futex::wait(word, seen, turn);
        };
        header.wanting.fetch_sub(1, SeqCst);
        got
    }

    /// Whether it is time to look for cells of dead processes; only one of those who wait does.
    fn may_reclaim(&self, now: u64) -> bool {
        let last = &self.header().reclaimed;
        let before = last.load(Relaxed);
        // A time in the future was written by who shouldn't.
        let due = now.wrapping_sub(before) >= TURN.as_nanos() as u64;
        due && last.compare_exchange(before, now, AcqRel, Relaxed).is_ok()
    }

    /// Gives a cell back. Only who has it.
    pub fn free(&self, index: usize) {
        let cell = self.cell(index);
        let header = self.header();
        let share = header.share_of(cell.node.load(Relaxed));
        cell.told.store(0, Relaxed);
        cell.state.store(FREE, Release);
        cell.owner.store(0, SeqCst);
        for word in [&header.room, share] {
            word.fetch_add(1, SeqCst);
            if header.wanting.load(SeqCst) > 0 {
                futex::wake(word, 1);
            }
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
        self.reclaim(me, |_, owner| owner != me && !process::runs(owner))
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
            // It is still to be sent.
            if cell.told.load(Acquire) != 0 && cell.state.load(Acquire) != CLAIMED {
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

    /// Says that something was posted for which nobody waits: the daemon needn't wake for that at
    /// once.
    pub fn ring_softly(&self) {
        if self.header().sleeps.load(SeqCst) == ASLEEP {
            self.ring();
        }
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
