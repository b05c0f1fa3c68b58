//! The end of a program, by exit or exec: publishes buffered writes and releases what no other
//! process could find.

use crate::program::{own_stack, process, shared_vm_clones};
use crate::{map, pool};
use forebay_store::process::Critical;

/// Before this process's memory is released: publishes the writes that it has buffered.
pub fn publish_all() {
    if let Some(fs) = pool::open_fs() {
        fs.publish_all();
    }
}

/// Before the process ends: writes open files back at once instead of leaving it to the
/// keeper.
pub fn before_exit() {
    if let Some(fs) = pool::open_fs() {
        // A handler on a small signal stack may be what ends it.
        own_stack::run(|| leave(fs));
    }
}

fn leave(fs: &forebay_posix::Fs) {
    let _critical = Critical::enter();
    let own = fs.process();
    if process::in_vfork_child() {
        if let Some(slot) = own.borrowed() {
            own.drop_child(slot);
        }
        if shared_vm_clones::has_slot() {
            own.end_borrowing();
        }
        pool::close_childs();
        return;
    }
    if shared_vm_clones::is_one() && !shared_vm_clones::is_thread() {
        return; // All that it has is its parent's.
    }
    map::before_exit();
    fs.publish_all();
    own.end();
}

/// Before exec: gives back what the new program couldn't find again. A vfork child has only what is
/// its parent's, and a shared-memory clone what is shared with others.
pub fn end_readers() {
    if !process::in_vfork_child()
        && !shared_vm_clones::is_one()
        && let Some(fs) = pool::open_fs()
    {
        fs.process().end_readers();
    }
}
