//! The end of a program, by exit or exec: what it has kept back is published, and what nobody could
//! find again is given back.

use crate::{map, own_stack, pool, process, shared_vm_clones};
use forebay_store::process::Critical;

/// Before this process's memory goes: what it has kept back of its writes is published.
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
    let store = fs.store();
    if process::in_vfork_child() {
        if let Some(slot) = store.lent() {
            let _ = store.release_slot(slot);
        }
        if shared_vm_clones::has_slot() {
            store.end_lending();
        }
        return;
    }
    if shared_vm_clones::is_one() && !shared_vm_clones::is_thread() {
        return; // All that it has is its parent's.
    }
    map::before_exit();
    fs.publish_all();
    let _ = store.end();
    // A process that only looked at names has readers, but no slot.
    store.end_readers();
}

/// Before exec: gives back what the new program couldn't find again. A vfork child has only what is
/// its parent's, and a shared-memory clone what is shared with others.
pub fn end_readers() {
    if !process::in_vfork_child()
        && !shared_vm_clones::is_one()
        && let Some(fs) = pool::open_fs()
    {
        fs.store().end_readers();
    }
}
