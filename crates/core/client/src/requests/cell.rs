//! The states of a request cell, and which side may use it in each.
//!
//! ```text
//!       requester       requester          daemon            daemon         requester
//! FREE ---------> CLAIMED ---------> POSTED ---------> TAKEN ---------> DONE ---------> FREE
//!                                      |                 | requester       | daemon
//!                                      v                 v                 v
//!                                   CLAIMED          ABANDONED --------> FREE
//! ```
//! The requester owns the cell in `CLAIMED` and `DONE`, the daemon in `TAKEN` and `ABANDONED`. In
//! `POSTED` the cell belongs to the side that changes the state first. With [`HELD`] the network
//! may still be using the cell's bytes: the requester may read the reply, but the daemon frees the
//! cell.
//!
//! The cell of a one-way request (`one_way`) belongs to the daemon from `POSTED` on, even if the
//! requester dies: the daemon frees the cell instead of setting `DONE`.

use super::SMALL_BODY;
use super::region::{ASLEEP, CELLS, Cell, LARGE, Shared};
use forebay_placement::NodeId;
use forebay_runtime::atomics::{AtomicU32, Ordering::*, futex};
use forebay_store::process;
use rustix::io::{Errno, Result};
use std::time::Duration;

pub const FREE: u32 = 0;
pub const CLAIMED: u32 = 1;
pub const POSTED: u32 = 2;
pub const TAKEN: u32 = 3;
pub const DONE: u32 = 4;
pub const ABANDONED: u32 = 5;
/// The daemon or the network still uses the cell's bytes.
pub const HELD: u32 = 16;

/// How long a thread that waits for a cell sleeps before it checks whether owners of cells are
/// dead.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

fn change(word: &AtomicU32, from: u32, to: u32) -> bool {
    word.compare_exchange(from, to, AcqRel, Acquire).is_ok()
}

/// A request for a cell: its requester, and what the cell must hold.
pub struct Claim {
    /// Owner word of the requesting process, and the random number of its program.
    pub me: u64,
    pub image: u64,
    /// The node to which the request is sent.
    pub node: NodeId,
    /// Number of bytes of the body that is sent, or of the space for one that is received.
    pub body: usize,
    /// Whether the requester may leave the reply in the cell for long. Such requests get only large
    /// cells, and at most half of the large cells.
    pub is_kept: bool,
}

impl Cell {
    /// Changes the state from `from` to `to`; false if the state isn't `from`.
    pub fn pass(&self, from: u32, to: u32) -> bool {
        change(&self.state, from, to)
    }
}

impl Shared {
    /// Claims a free cell. Returns its index.
    ///
    /// # Errors
    /// The word on which to sleep until a cell may be free.
    pub fn claim(&self, claim: &Claim) -> std::result::Result<usize, &AtomicU32> {
        let header = self.header();
        let mine = |index: usize, before: usize, of: usize| {
            let cell = self.cell(index);
            if cell.owner.load(Relaxed) != 0 {
                return None;
            }
            // The share of a node is checked only when many cells are in use.
            if before >= of / 8 * 3 && self.cells_for(claim.node, of) >= of / 4 * 3 {
                return Some(Err(header.share_of(claim.node.0)));
            }
            let took = cell.owner.compare_exchange(0, claim.me, AcqRel, Relaxed);
            took.ok()?;
            cell.image.store(claim.image, Relaxed);
            cell.node.store(claim.node.0, Relaxed);
            // A cell that is in any other state is corrupt, and stays unused.
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

    /// Number of cells in use for requests to `node`, among the first `of` cells. The caller limits
    /// it: requests to a node that doesn't answer must not use up all cells.
    fn cells_for(&self, node: NodeId, of: usize) -> usize {
        let theirs = |&i: &usize| {
            let cell = self.cell(i);
            cell.owner.load(Relaxed) != 0 && cell.node.load(Relaxed) == node.0
        };
        (0..of).filter(theirs).count()
    }

    /// As [`Shared::claim`], but waits until `until` for a cell.
    ///
    /// # Errors
    /// EHOSTDOWN if no cell became free in time.
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
            let turn = OWNER_CHECK_INTERVAL.min(Duration::from_nanos(until - now));
            let seen = seen[usize::from(!std::ptr::eq(word, &header.room))];
            let _ = futex::wait(word, seen, turn);
        };
        let before = header.wanting.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a thread that waited was counted");
        got
    }

    /// Whether the calling thread is to search for cells of dead processes now. Returns true to
    /// only one of the waiting threads.
    fn may_reclaim(&self, now: u64) -> bool {
        let last = &self.header().reclaimed;
        let before = last.load(Relaxed);
        // A time in the future is corrupt, and counts as long ago.
        let due = now.wrapping_sub(before) >= OWNER_CHECK_INTERVAL.as_nanos() as u64;
        due && last.compare_exchange(before, now, AcqRel, Relaxed).is_ok()
    }

    /// Frees a cell. Only its owner may call this.
    pub fn free(&self, index: usize) {
        let cell = self.cell(index);
        let header = self.header();
        let share = header.share_of(cell.node.load(Relaxed));
        cell.one_way.store(0, Relaxed);
        cell.state.store(FREE, Release);
        cell.owner.store(0, SeqCst);
        for word in [&header.room, share] {
            word.fetch_add(1, SeqCst);
            if header.wanting.load(SeqCst) > 0 {
                futex::wake(word, 1);
            }
        }
    }

    /// Gives up a cell, in whatever state it is. Called when the requester no longer needs it.
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

    /// Reclaims the cells of dead processes. Returns their number.
    pub fn reclaim_dead(&self, me: u64) -> usize {
        self.reclaim(me, |_, owner| owner != me && !process::runs(owner))
    }

    /// Reclaims the cells that this process claimed before exec, in its previous program. Returns
    /// their number.
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
            // A posted one-way request of a dead process must still be sent.
            if cell.one_way.load(Acquire) != 0 && cell.state.load(Acquire) != CLAIMED {
                continue;
            }
            let taken = cell.owner.compare_exchange(owner, me, AcqRel, Relaxed);
            // The daemon frees an abandoned cell that the network uses.
            if taken.is_ok() && cell.state.load(Acquire) != ABANDONED | HELD {
                self.leave(index);
                count += 1;
            }
        }
        count
    }

    /// Whether a request of a kind for which `counts` is true may still be carried out although its
    /// requester has died or abandoned the request. One-way requests are ignored.
    pub fn has_orphan(&self, counts: impl Fn(u16) -> bool) -> bool {
        (0..CELLS).any(|index| {
            let cell = self.cell(index);
            let owner = cell.owner.load(Acquire);
            let state = cell.state.load(Acquire);
            let in_progress = state == POSTED || state == TAKEN | HELD;
            owner != 0
                && cell.one_way.load(Acquire) == 0
                && u16::try_from(cell.kind.load(Relaxed)).is_ok_and(&counts)
                && (state == ABANDONED | HELD || in_progress && !process::runs(owner))
        })
    }

    /// Signals that a one-way request was posted. A daemon that only dozes isn't woken.
    pub fn ring_softly(&self) {
        if self.header().sleeps.load(SeqCst) == ASLEEP {
            self.ring();
        }
    }

    /// Signals that cells were posted.
    pub fn ring(&self) {
        let header = self.header();
        header.bell.fetch_add(1, SeqCst);
        if header.sleeps.load(SeqCst) != 0 {
            futex::wake(&header.bell, 1);
        }
    }
}
