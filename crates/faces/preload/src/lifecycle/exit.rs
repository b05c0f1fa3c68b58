//! The end of a program, by exit or exec: publishes buffered writes and releases the process's
//! resources in the pool.

use crate::program::{own_stack, process, shared_vm_clones};
use crate::{map, pool};
use forebay_store::process::Critical;

/// Publishes the writes that this process has buffered. Called before its memory is released.
pub fn publish_all() {
    if let Some(fs) = pool::open_fs() {
        fs.buffers().publish_all();
    }
}

/// Writes open files back at once, instead of leaving that to the keeper. Called before the process
/// ends.
pub fn before_exit() {
    if let Some(fs) = pool::open_fs() {
        // The end may come from a signal handler on a small stack.
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
        return; // The clone shares everything with its parent.
    }
    map::before_exit();
    fs.buffers().publish_all();
    own.end();
}

/// Frees this process's reader slots before exec: the new program couldn't find them again. Does
/// nothing in a vfork child or a shared-memory clone, which uses its parent's reader slots.
pub fn end_readers() {
    if !process::in_vfork_child()
        && !shared_vm_clones::is_one()
        && let Some(fs) = pool::open_fs()
    {
        fs.process().end_readers();
    }
}
