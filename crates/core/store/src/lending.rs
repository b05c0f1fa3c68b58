//! For which process the calls of a thread act: the process that owns the memory, or a vfork child
//! that runs in it.

use crate::control_region::ProcessArea;
use std::cell::Cell;

/// In place of a slot: the process isn't attached.
pub(crate) const NO_SLOT: u32 = u32::MAX;
/// The thread is between two slots: descriptors that it opens and closes now belong to no table.
pub(crate) const BETWEEN: u32 = u32::MAX - 2;
/// The vfork child on this thread gets a slot when it first needs one.
pub(crate) const BORROW_LATER: u32 = u32::MAX - 1;

thread_local! {
    /// Slot and area of a vfork child that runs on this thread in the parent's memory.
    ///
    /// This has to be a thread-local. Only the thread that makes a call decides for which process
    /// the call acts: the child of a vfork shares all memory with its parent, the [`crate::Store`]
    /// included, and other threads of the parent continue to call the store meanwhile. The parent's
    /// own thread stands still until the child executes a program or ends, so one cell for each
    /// thread is enough. Program code (a handler, a library's constructor) may run between the
    /// vfork and the call, so no caller has a context that it could pass.
    static BORROWED: Cell<(u32, *mut ProcessArea)> =
        const { Cell::new((NO_SLOT, std::ptr::null_mut())) };
}

/// The lent slot, or one of the values above.
#[inline]
pub(crate) fn slot() -> u32 {
    BORROWED.with(Cell::get).0
}

/// The area of the lent slot; null if there is none.
#[inline]
pub(crate) fn area() -> *mut ProcessArea {
    BORROWED.with(Cell::get).1
}

/// Makes calls on this thread act for the owner of the memory again.
pub(crate) fn clear() {
    BORROWED.with(|b| b.set((NO_SLOT, std::ptr::null_mut())));
}

/// Makes calls on this thread act for the process in `slot` (a vfork child) from now on.
pub fn lend(slot: u32, area: *mut ProcessArea) {
    BORROWED.with(|b| b.set((slot, area)));
}

/// Takes the slot from this thread until [`lend`] or [`Store::end_lending`]: the thread is about to
/// get another slot, and must not change the table of a wrong process meanwhile.
///
/// [`Store::end_lending`]: crate::Store::end_lending
pub fn between_slots() {
    BORROWED.with(|b| b.set((BETWEEN, std::ptr::null_mut())));
}

/// As [`lend`], but the slot is only taken when the child first needs one.
pub fn borrow_later() {
    BORROWED.with(|b| b.set((BORROW_LATER, std::ptr::null_mut())));
}

/// Whether calls on this thread act for another process than the owner of the memory (a vfork
/// child).
pub fn acts_for_another() -> bool {
    slot() != NO_SLOT
}

/// The slot lent to the vfork child on this thread, if it has one.
pub fn lent() -> Option<u32> {
    match slot() {
        NO_SLOT | BORROW_LATER | BETWEEN => None,
        slot => Some(slot),
    }
}
