//! A table of processes in shared memory ([`Table`] gives access to its words).
//!
//! Every process that works on a shared memory region has a slot in the region's table. The locks
//! and entries that it holds there carry its *identity*: the number and the generation of its slot.
//! So any process can release them when the owner has died. A process that calls exec keeps its
//! slot; a child gets one before it runs.

use crate::atomics::{AtomicU32, AtomicU64, Ordering::*};
use crate::process::{
    OF_PROCESS, PID_BITS, TIME, TIME_BITS, own_start, own_word_or_id, pid, pid_of, runs, state,
    state_of, word, write_notice,
};
use rustix::io::Errno;
use std::sync::atomic::AtomicBool;

/// Maximum number of processes attached at the same time. Slots.
pub const MAX_PROCESSES: usize = if cfg!(loom) { 4 } else { 4096 };

/// Access to the words of each slot. There are [`MAX_PROCESSES`] slots.
pub trait Table {
    /// The first `RESERVED_SLOTS` slots are a reserve: see [`use_reserve`].
    const RESERVED_SLOTS: usize;
    /// The slots below `FIRST` cost less memory than others, and are tried first.
    const FIRST: usize;
    /// The slot's owner word: state, process id and start time of the owner. 0: free.
    fn owner(&self, slot: u32) -> &AtomicU64;
    /// The generation: how many owners the slot has had. The generation distinguishes a lock that
    /// an earlier owner left from a lock of the present owner.
    fn generation(&self, slot: u32) -> &AtomicU32;
    /// Identity of the process for whose lock the slot's owner has been waiting for a while. For
    /// reports.
    fn waits_for(&self, slot: u32) -> &AtomicU32;
}

/// Like [`own_word`], but read from this process's slot, not from /proc. None if `slot` is another
/// process's, or its owner word has no start time.
pub fn noted_word(table: &impl Table, slot: u32) -> Option<u64> {
    let owner = table.owner(slot).load(Acquire);
    let noted = u64::from(state::USED) << (TIME_BITS + PID_BITS) | owner & OF_PROCESS;
    (is_mine(table, slot) && owner & TIME != 0).then_some(noted)
}

/// Whether a running process is responsible for `slot`: the owner or, if the owner is dead, the
/// process that reaps the slot.
pub fn is_alive(table: &impl Table, slot: u32) -> bool {
    if slot as usize >= MAX_PROCESSES {
        return false;
    }
    let owner = table.owner(slot).load(Acquire);
    state_of(owner) != state::FREE && runs(owner)
}

/// A bit that is set in every identity, so that no identity is 0.
pub const HELD: u32 = 1 << 30;
const SLOT_BITS: u32 = MAX_PROCESSES.trailing_zeros();

/// The identity (slot and generation) that the present owner of `slot` writes into the locks and
/// entries that it holds.
pub fn identity(table: &impl Table, slot: u32) -> u32 {
    assert!((slot as usize) < MAX_PROCESSES, "there is a slot {slot}");
    let generation = table.generation(slot).load(Relaxed);
    HELD | (generation << SLOT_BITS & (HELD - 1)) | slot
}

/// Returns the slot of an identity.
#[inline]
pub fn slot_of(identity: u32) -> u32 {
    identity & ((1 << SLOT_BITS) - 1)
}

/// Whether the process that wrote `identity` still runs.
pub fn identity_lives(table: &impl Table, id: u32) -> bool {
    let slot = slot_of(id);
    let owner = table.owner(slot).load(Acquire);
    matches!(state_of(owner), state::RESERVED | state::USED)
        && identity(table, slot) == id
        && runs(owner)
}

/// Process id of the owner of the slot in `identity`, whether that process still lives or not.
pub fn pid_of_identity(table: &impl Table, identity: u32) -> u32 {
    pid_of(table.owner(slot_of(identity)).load(Acquire))
}

/// Whether this process may use the reserve of every table: see [`use_reserve`].
static USES_RESERVE: AtomicBool = AtomicBool::new(false);

/// Lets this process use the reserved entries of every table from now on: process slots, live
/// entries, descriptions, locks and reader slots. For commands that inspect a pool, repair it or
/// save its data, and for keepers and daemons. Such processes must work even when programs have
/// used up the rest.
pub fn use_reserve() {
    USES_RESERVE.store(true, Relaxed);
}

/// Whether this process may use the reserve.
#[inline]
pub fn uses_reserve() -> bool {
    USES_RESERVE.load(Relaxed)
}

/// Takes a free slot for this process.
///
/// # Errors
/// EAGAIN if all slots are taken. ENOTCONN, EMFILE or ENFILE if this process's start time can't be
/// read in /proc; a line on standard error reports that. Without a start time no process could
/// distinguish this one from a later one with its id.
pub fn attach(table: &impl Table) -> Result<u32, Errno> {
    let me = pid();
    let started = own_start(me).map_err(|e| {
        write_notice(format_args!(
            "process {me} can't use the pool: its start time can't be read in /proc/{me}/stat ({}); {}",
            std::io::Error::from(e),
            match e {
                Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
                _ => "it needs a /proc in which it sees itself",
            }
        ));
        match e {
            Errno::MFILE | Errno::NFILE => e,
            _ => Errno::NOTCONN,
        }
    })?;
    take_free(table, word(state::USED, me, started))
}

/// Takes a slot of the reserve for this process. The process is going to release what dead
/// processes hold.
///
/// # Errors
/// EAGAIN if the reserve is used up.
pub fn attach_kept<T: Table>(table: &T) -> Result<u32, Errno> {
    let me = pid();
    let mine = word(state::USED, me, own_start(me)?);
    let free = |&i: &usize| {
        let owner = table.owner(i as u32);
        owner.compare_exchange(0, mine, AcqRel, Relaxed).is_ok()
    };
    let slot = (0..T::RESERVED_SLOTS).find(free);
    slot.map(|i| i as u32).ok_or(Errno::AGAIN)
}

/// Takes a free slot on behalf of a child that is about to be created, and returns its identity.
/// Until the slot is handed over or claimed, it counts as this process's.
///
/// # Errors
/// EAGAIN if all slots are taken.
pub fn reserve(table: &impl Table) -> Result<u32, Errno> {
    let me = pid();
    let slot = take_free(table, word(state::RESERVED, me, own_start(me).unwrap_or(0)))?;
    debug_assert!(
        is_mine(table, slot),
        "a slot reserved for a child is its parent's"
    );
    Ok(identity(table, slot))
}

/// Makes the process `child` the owner of the slot that is reserved for it. The parent calls this
/// as soon as the child exists, so that the slot isn't reaped if the parent ends before the child
/// has claimed it.
pub fn hand_over(table: &impl Table, reserved: u32, child: u32) {
    let owner = table.owner(slot_of(reserved));
    let now = owner.load(Acquire);
    if is_reserved(table, reserved, now) && pid_of(now) == pid() {
        // If the exchange fails, the child has claimed the slot already.
        let its = word(state::RESERVED, child, 0);
        let _ = owner.compare_exchange(now, its, AcqRel, Relaxed);
    }
}

/// Makes this process the owner of the slot that its parent reserved for it. Returns false if the
/// parent was killed before it could hand over the slot, and the slot has been reaped. A child that
/// can't read its start time can't report this failure here; the child's owner word then has no
/// start time: see [`own_word_or_id`].
pub fn claim(table: &impl Table, reserved: u32) -> bool {
    let owner = table.owner(slot_of(reserved));
    let mine = own_word_or_id();
    loop {
        let now = owner.load(Acquire);
        if !is_reserved(table, reserved, now) {
            return false;
        }
        // The exchange fails at most once: either the parent has handed the slot over, or somebody
        // reaps it.
        if owner.compare_exchange(now, mine, AcqRel, Relaxed).is_ok() {
            return true;
        }
    }
}

/// Whether a slot whose owner word is `now` is still reserved under the identity `reserved`, which
/// [`reserve`] returned.
fn is_reserved(table: &impl Table, reserved: u32, now: u64) -> bool {
    state_of(now) == state::RESERVED && identity(table, slot_of(reserved)) == reserved
}

/// Takes a free slot and stores the owner word `mine` in it.
fn take_free<T: Table>(table: &T, mine: u64) -> Result<u32, Errno> {
    let ordinary = MAX_PROCESSES - T::RESERVED_SLOTS;
    let first = pid_of(mine) as usize;
    // First the slots below `FIRST`, whose areas have memory already; then any.
    let among = |slots: usize| (0..slots).map(move |k| T::RESERVED_SLOTS + (first + k) % slots);
    let ordinary = among(T::FIRST).chain(among(ordinary));
    let kept = 0..if uses_reserve() { T::RESERVED_SLOTS } else { 0 };
    for i in ordinary.chain(kept) {
        let owner = table.owner(i as u32);
        if owner.load(Relaxed) == 0 && owner.compare_exchange(0, mine, AcqRel, Relaxed).is_ok() {
            return Ok(i as u32);
        }
    }
    Err(Errno::AGAIN)
}

/// Makes this process the one that reaps `slot`; false if the slot is free, or its owner or last
/// reaper still lives.
pub fn begin_reaping(table: &impl Table, slot: u32) -> bool {
    let owner = &table.owner(slot);
    let now = owner.load(Acquire);
    if state_of(now) == state::FREE || runs(now) {
        return false;
    }
    let me = pid();
    // If this process dies during the reaping, other processes must be able to notice its death.
    let Ok(started) = own_start(me) else {
        return false;
    };
    let mine = word(state::REAPING, me, started);
    owner.compare_exchange(now, mine, AcqRel, Relaxed).is_ok()
}

/// Whether the owner word of `slot` names this process. Needed after exec, for the slot that the
/// environment names.
pub fn is_mine(table: &impl Table, slot: u32) -> bool {
    let owner = table.owner(slot).load(Acquire);
    matches!(state_of(owner), state::RESERVED | state::USED) && pid_of(owner) == pid()
}
