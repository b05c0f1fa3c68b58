//! Records whose call is being served: this process's, or that of a vfork child, which runs in its
//! parent's memory on the parent's thread. `lifecycle/fork.rs` makes children and keeps these
//! records.

use forebay_runtime::fd;
use forebay_store::process as slots;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Number of vfork children that run in this process's memory.
static VFORK_CHILDREN: AtomicU32 = AtomicU32::new(0);

/// Memory that a vfork child leaves to its parent to free.
type Left = Vec<Box<dyn std::any::Any>>;

pub const NONE: u32 = u32::MAX;

thread_local! {
    /// Memory that a vfork child allocated for exec: the parent frees it.
    static LEFT_BY_CHILD: Cell<*mut Left> = const { Cell::new(std::ptr::null_mut()) };
    static IN_VFORK_CHILD: Cell<bool> = const { Cell::new(false) };
}

/// This process's id.
pub fn own_pid() -> u32 {
    slots::pid()
}

/// Whether the child of a vfork runs in this memory, on any thread.
#[inline]
pub fn has_vfork_child() -> bool {
    VFORK_CHILDREN.load(Acquire) != 0
}

/// Whether this thread runs the child of a vfork, in the parent's memory.
#[inline]
pub fn in_vfork_child() -> bool {
    IN_VFORK_CHILD.with(Cell::get)
}

/// If this is a vfork child, hands the memory to the parent to free, and returns None; otherwise
/// returns the memory. In both cases the memory keeps its address.
pub fn leave_to_parent<T: 'static>(memory: Box<T>) -> Option<Box<T>> {
    if !in_vfork_child() {
        return Some(memory);
    }
    LEFT_BY_CHILD.with(|l| {
        if l.get().is_null() {
            l.set(Box::into_raw(Box::default()));
        }
        // SAFETY: the pointer was made by into_raw above, and only this thread uses it.
        unsafe { (*l.get()).push(memory) };
    });
    None
}

/// Counts a child that is about to run in this process's memory with its own descriptors.
pub fn vfork_begins() {
    VFORK_CHILDREN.fetch_add(1, AcqRel);
}

/// Stops counting a vfork child, which has ended or couldn't be made.
pub fn vfork_ended() {
    let _ = VFORK_CHILDREN.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
}

/// Records that this thread runs the vfork child from now on.
pub fn enter_vfork_child() {
    IN_VFORK_CHILD.set(true);
    fd::enter_vfork_child();
}

/// Records that this thread runs the parent again.
pub fn leave_vfork_child() {
    IN_VFORK_CHILD.set(false);
    fd::leave_vfork_child();
}

/// Frees the memory that the vfork child has left; called in the parent.
pub fn free_left() {
    let left = LEFT_BY_CHILD.with(|l| l.replace(std::ptr::null_mut()));
    if !left.is_null() {
        // SAFETY: `leave_to_parent` made the pointer by into_raw; the child has ended.
        drop(unsafe { Box::from_raw(left) });
    }
}

/// Resets the records in a forked child: its parent's vfork children aren't its own.
pub fn after_fork_in_child() {
    VFORK_CHILDREN.store(0, SeqCst);
    IN_VFORK_CHILD.set(false);
    fd::after_fork_in_child();
}
