//! fork, vfork and clone: pass descriptors, working directory and umask on to children.
//!
//! A child gets its own process slot. Before the child runs, the slot is filled with what the
//! parent has open. A forked child adopts the slot. A vfork child (of posix_spawn too) runs in the
//! parent's memory: it *borrows* the slot until it has called exec or ended, so that the parent
//! keeps descriptors that the child closes or redirects. After exec the new program finds the slot
//! by its number in the environment (`resume.rs`).

use crate::pool::{self, working_dir};
use crate::program::{mask, process, results, shared_vm_clones, signals, table_change, user};
use crate::served::{aio, credentials, cwd, fd_table, inotify};
use crate::{alloc, map};
use forebay_intercept::Call;
use forebay_posix::thread_fs;
use forebay_store::Errno;
use forebay_store::process as slots;
use std::cell::Cell;
use std::sync::atomic::Ordering::*;

thread_local! {
    /// Identity of the slot reserved for the child that this thread is making.
    static RESERVED: Cell<u32> = const { Cell::new(process::NONE) };
    /// This thread's signal mask before it began to make a child.
    static MASK: Cell<u64> = const { Cell::new(0) };
}

fn clone_flags(call: &Call) -> u64 {
    match call.nr {
        libc::SYS_vfork => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        libc::SYS_clone => call.args[0] as u64,
        // SAFETY: clone3's first argument points to its arguments, flags first.
        libc::SYS_clone3 => unsafe { user::take(call.args[0]) }.unwrap_or(0),
        _ => 0,
    }
}

/// Whether the child begins in a new user namespace.
fn is_apart(flags: u64) -> bool {
    flags & libc::CLONE_NEWUSER as u64 != 0
}

fn shares_memory(flags: u64) -> bool {
    flags & libc::CLONE_VM as u64 != 0
}

/// Whether the child shares this thread's memory and thread area while this thread continues.
fn makes_shared_vm_clone(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) as u64
        == libc::CLONE_VM as u64
}

/// Prepares a fork, vfork or clone that doesn't create a thread. Returns 0, or a negated errno if
/// there can't be a child.
pub unsafe extern "C-unwind" fn before_clone(call: &Call) -> i64 {
    let inside = shared_vm_clones::any()
        .then(shared_vm_clones::enter)
        .flatten();
    if let Some(inside) = &inside {
        inside.makes(call);
    }
    prepare_clone(call)
}

#[inline(never)]
fn prepare_clone(call: &Call) -> i64 {
    let flags = clone_flags(call);
    if makes_shared_vm_clone(flags) {
        prepare_shared_vm_clone(call, flags).map_or_else(results::errno, |()| 0)
    } else {
        prepare_other(flags);
        0
    }
}

/// Writes back buffered writes, before a child is made. Otherwise the child would have a copy of
/// the buffer, or act before the writes are visible.
fn write_back_all() {
    if let Some(fs) = pool::open_fs() {
        fs.buffers().write_back_all();
    }
}

fn prepare_other(flags: u64) {
    if !shares_memory(flags) || flags & libc::CLONE_VFORK as u64 != 0 {
        write_back_all();
    }
    if shared_vm_clones::has_slot() && shares_memory(flags) {
        return;
    }
    if shares_memory(flags) && flags & libc::CLONE_VFORK as u64 != 0 && !process::in_vfork_child() {
        pool::before_vfork();
        process::vfork_begins();
    }
    if !shares_memory(flags) {
        inotify::before_fork();
        // A signal handler that needed one of the locks held from here on would wait for its own
        // thread.
        MASK.set(mask::block_all_but_faults());
        map::before_fork();
    }
    prepare_child(flags);
    if !shares_memory(flags) {
        alloc::before_fork();
    }
}

/// Prepares a shared-memory clone. If the clone gets a copy of the table of descriptors, it gets
/// its own process slot, too, as a vfork child does.
///
/// # Errors
/// EAGAIN if there is no slot for it, ENOMEM.
fn prepare_shared_vm_clone(call: &Call, flags: u64) -> Result<(), Errno> {
    if !shared_vm_clones::supported() {
        return Ok(());
    }
    write_back_all();
    let mut reserved = process::NONE;
    if flags & libc::CLONE_FILES as u64 == 0 && !process::in_vfork_child() {
        pool::open_all();
        if let Some(fs) = pool::open_fs()
            && fs.process().is_attached()
        {
            table_change::begin_copy();
            let prepared = fs.process().prepare_child(true);
            reserved = prepared
                .inspect_err(|_| table_change::end_copy())
                .or(Err(Errno::AGAIN))?;
            process::vfork_begins();
        }
    }
    // A signal handler that ran in the clone before the clone has its own thread area would damage
    // the parent's area.
    let mask = mask::block_all_but_faults();
    MASK.set(mask);
    shared_vm_clones::prepare(call, reserved, mask | mask::blocked_faults()).inspect_err(|_| {
        table_change::end_copy();
        no_shared_vm_clone(reserved);
        mask::set(mask);
    })?;
    RESERVED.with(|r| r.set(reserved));
    Ok(())
}

/// Undoes the preparation of a shared-memory clone that wasn't made.
fn no_shared_vm_clone(reserved: u32) {
    if reserved != process::NONE {
        process::vfork_ended();
    }
    settle(reserved, None);
}

/// Hands over the reserved slot to the child, or frees the slot if there is no child.
fn settle(reserved: u32, child: Option<u32>) {
    if reserved == process::NONE {
        return;
    }
    let Some(fs) = pool::open_fs() else { return };
    match child {
        Some(child) => fs.process().hand_over(reserved, child),
        None => fs.process().drop_child(slots::slot_of(reserved)),
    }
}

/// Completes the making of a shared-memory clone, or undoes its preparation if the clone call
/// failed; called in the parent.
#[inline(never)]
fn after_shared_vm_clone(call: &Call, ret: i64) {
    if ret == 0 || !shared_vm_clones::supported() {
        return; // No clone was prepared.
    }
    table_change::end_copy();
    let reserved = RESERVED.with(|r| r.replace(process::NONE));
    if ret > 0 {
        settle(reserved, Some(ret as u32));
    } else if shared_vm_clones::failed(call) {
        no_shared_vm_clone(reserved);
    }
    mask::set(MASK.get());
}

/// Starts a shared-memory clone; called in the clone itself.
#[inline(never)]
fn begin_shared_vm_clone(begun: &shared_vm_clones::Begun) {
    if begun.reserved != process::NONE {
        take_lent(begun.reserved);
    }
    mask::begin(begun.mask);
}

fn prepare_child(flags: u64) {
    let Some(fs) = pool::open_fs() else { return };
    let own = fs.process();
    if process::in_vfork_child() && !shared_vm_clones::has_slot() || !own.is_attached() {
        return;
    }
    // A child that shares memory but doesn't suspend its parent is almost a thread. (Such a child
    // that also shares the descriptor table needs no copy of it.)
    if shares_memory(flags) && flags & libc::CLONE_VFORK as u64 == 0 {
        return;
    }
    let has_some = fs.descriptors().any() || inotify::any();
    if has_some || working_dir::current(fs).is_some() || own.umask().is_some() {
        table_change::begin_copy();
        let prepared = own.prepare_child(shares_memory(flags));
        RESERVED.with(|r| r.set(prepared.unwrap_or(process::NONE)));
    }
}

/// Completes a fork, vfork or clone: in the parent (`ret` > 0, or < 0 if the call failed) and in
/// the child (0).
pub unsafe extern "C-unwind" fn after_clone(call: &Call, ret: i64) {
    if ret == 0
        && shared_vm_clones::any()
        && let Some(begun) = shared_vm_clones::begin(call)
    {
        return begin_shared_vm_clone(&begun);
    }
    let inside = shared_vm_clones::any()
        .then(|| shared_vm_clones::enter_after(call, ret))
        .flatten();
    finish_clone(call, ret, inside.as_ref());
}

#[inline(never)]
fn finish_clone(call: &Call, ret: i64, inside: Option<&shared_vm_clones::Inside>) {
    let flags = clone_flags(call);
    if makes_shared_vm_clone(flags) {
        return after_shared_vm_clone(call, ret);
    }
    if shared_vm_clones::has_slot() && shares_memory(flags) {
        return;
    }
    if ret == 0 && !shares_memory(flags) && shared_vm_clones::any() {
        shared_vm_clones::after_fork_in_child(inside);
    }
    let vfork = shares_memory(flags) && flags & libc::CLONE_VFORK as u64 != 0;
    if !shares_memory(flags) {
        alloc::after_fork();
        map::after_fork();
    } else if !vfork {
        return;
    }
    match (ret == 0, vfork) {
        (true, true) => begin_vfork_child(is_apart(flags)),
        (true, false) => begin_forked_child(is_apart(flags)),
        (false, _) => end_in_parent(ret, vfork),
    }
    if !shares_memory(flags) {
        mask::set(MASK.get());
    }
}

fn begin_vfork_child(apart: bool) {
    table_change::end_copy();
    take_lent(RESERVED.with(|r| r.replace(process::NONE)));
    if let Some(fs) = pool::open_fs().filter(|_| apart) {
        credentials::vfork_child_apart(fs);
    }
}

fn take_lent(reserved: u32) {
    process::enter_vfork_child();
    let Some(fs) = pool::open_fs() else { return };
    let reserved = Some(reserved).filter(|&r| r != process::NONE);
    if fs.process().borrow(reserved) {
        fd_table::drop_closed(fs, false);
    }
}

fn begin_forked_child(apart: bool) {
    let reserved = RESERVED.with(|r| r.replace(process::NONE));
    table_change::after_fork_in_child();
    process::after_fork_in_child();
    slots::forget_exec();
    after_fork_in_child();
    if slots::is_apart() {
        // The other processes don't know this process by its number. The slot stays unused until
        // this process ends.
        pool::leave_behind();
        return working_dir::child_without_slot();
    }
    let Some(fs) = pool::open_fs() else { return };
    credentials::alone_again(fs, apart);
    let own = fs.process();
    if reserved != process::NONE && own.adopt(reserved) {
        fd_table::drop_closed(fs, false);
        // Until now no other process could notify this one that a mapped file has become shorter.
        std::sync::atomic::fence(SeqCst);
        own.catch_up();
    } else {
        working_dir::child_without_slot();
    }
}

fn end_in_parent(ret: i64, vfork: bool) {
    table_change::end_copy();
    if vfork && (ret < 0 || process::in_vfork_child()) {
        process::vfork_ended();
    }
    if vfork && process::in_vfork_child() {
        process::leave_vfork_child();
        if let Some(fs) = pool::open_fs() {
            fs.process().end_borrowing();
            credentials::alone_again(fs, false);
        }
        pool::forget_childs();
        process::free_left();
    }
    let reserved = RESERVED.with(|r| r.replace(process::NONE));
    settle(reserved, u32::try_from(ret).ok());
}

/// Resets locks in a forked child: another thread of the parent may have held them.
fn after_fork_in_child() {
    pool::after_fork_in_child();
    cwd::after_fork_in_child();
    signals::after_fork_in_child();
    aio::after_fork_in_child();
    thread_fs::after_fork_in_child();
    if let Some(fs) = pool::open_fs() {
        fs.after_fork_in_child();
    }
}
