//! fork, vfork, exec and exit: carrying descriptors, working directory and umask over.
//!
//! A child gets a process slot of its own, filled before it runs with what the parent has
//! open. A forked child adopts it. A vfork child (posix_spawn too) runs in the parent's
//! memory: its thread *borrows* the slot until the child has called exec or ended, so
//! that what it closes or redirects stays its own business. After exec the new program
//! finds the slot by its number in the environment.

use crate::{cwd, fds, inotify, mask, paths, runtime, shared_vm_clones};
use forebay_intercept::Call;
use forebay_store::process::{self as slots, Critical};
pub use forebay_store::process::{ProcessGuard, ProcessLock};
use forebay_store::{Errno, Store};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// How many children of vfork run in our memory.
static VFORK_CHILDREN: AtomicU32 = AtomicU32::new(0);
/// How many threads are about to change the kernel's table of descriptors and ours.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// How many threads are making a child that gets a copy of both.
static COPIES: AtomicU32 = AtomicU32::new(0);

/// A change of the kernel's table of descriptors and ours, which belong together: no child is
/// made in between.
pub struct TableChange(Option<Critical>);

/// Begins a change; short, since a thread that forks waits for it.
pub fn change_table() -> TableChange {
    // A vfork child has tables of its own, and only one thread. And who makes a child opens and
    // closes files of its own meanwhile.
    if in_vfork_child() || COPYING.with(Cell::get) {
        return TableChange(None);
    }
    let critical = Critical::enter();
    loop {
        while COPIES.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        CHANGES.fetch_add(1, SeqCst);
        if COPIES.load(SeqCst) == 0 {
            break;
        }
        CHANGES.fetch_sub(1, SeqCst);
    }
    TableChange(Some(critical))
}

impl Drop for TableChange {
    fn drop(&mut self) {
        if self.0.is_some() {
            CHANGES.fetch_sub(1, SeqCst);
        }
    }
}

/// Waits until no change is in progress, and keeps new ones from beginning. Not for ever: a
/// change that hangs must not keep the program from forking.
fn begin_copy() {
    COPIES.fetch_add(1, SeqCst);
    COPYING.with(|c| c.set(true));
    for turn in 0..10_000 {
        if CHANGES.load(SeqCst) == 0 {
            return;
        }
        if turn < 100 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}

fn end_copy() {
    if COPYING.with(|c| c.replace(false)) {
        COPIES.fetch_sub(1, SeqCst);
    }
}

/// What a vfork child leaves to its parent.
type Left = Vec<Box<dyn std::any::Any>>;

pub const NONE: u32 = u32::MAX;

thread_local! {
    /// Slot prepared for the child that this thread is making.
    static PREPARED: Cell<u32> = const { Cell::new(NONE) };
    /// Memory that a vfork child allocated for exec: freed by the parent.
    static LEFT_BY_CHILD: Cell<*mut Left> = const { Cell::new(std::ptr::null_mut()) };
    /// Between [`begin_copy`] and [`end_copy`].
    static COPYING: Cell<bool> = const { Cell::new(false) };
    static IN_VFORK_CHILD: Cell<bool> = const { Cell::new(false) };
    /// This thread's signal mask before it began to make a child.
    static MASK: Cell<u64> = const { Cell::new(0) };
}

/// This process's id.
pub fn own_pid() -> u32 {
    slots::pid()
}

/// Whether the child of a vfork runs in this memory, on whatever thread.
pub fn has_vfork_child() -> bool {
    VFORK_CHILDREN.load(Acquire) != 0
}

/// Whether this thread runs the child of a vfork, in the parent's memory.
pub fn in_vfork_child() -> bool {
    IN_VFORK_CHILD.with(Cell::get)
}

/// Leaves memory for the parent to free, if this is a vfork child; else it is the caller's.
/// Either way it stays where it is.
pub fn leave_to_parent<T: 'static>(memory: Box<T>) -> Option<Box<T>> {
    if !in_vfork_child() {
        return Some(memory);
    }
    LEFT_BY_CHILD.with(|l| {
        if l.get().is_null() {
            l.set(Box::into_raw(Box::default()));
        }
        // SAFETY: made by into_raw here, only used by this thread.
        unsafe { (*l.get()).push(memory) };
    });
    None
}

fn clone_flags(call: &Call) -> u64 {
    match call.nr {
        libc::SYS_vfork => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        libc::SYS_clone => call.args[0] as u64,
        // SAFETY: clone3's first argument points to its arguments, flags first.
        libc::SYS_clone3 => unsafe { paths::take(call.args[0]) }.unwrap_or(0),
        _ => 0,
    }
}

fn shares_memory(flags: u64) -> bool {
    flags & libc::CLONE_VM as u64 != 0
}

/// Whether the child shares our memory and thread area, and we go on meanwhile.
fn makes_stranger(flags: u64) -> bool {
    flags & (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) as u64
        == libc::CLONE_VM as u64
}

/// Before fork and the like. 0, or why there can't be a child.
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
    match makes_stranger(flags) {
        true => prepare_stranger(call, flags).map_or_else(paths::errno, |()| 0),
        false => {
            prepare_other(flags);
            0
        }
    }
}

/// Before this process's memory goes: what it has kept back of its writes is published.
pub fn publish_all() {
    if let Some(fs) = runtime::open_fs() {
        fs.publish_all();
    }
}

/// Before a child is made, which would have a copy of it, or do something behind it.
fn write_back_all() {
    if let Some(fs) = runtime::open_fs() {
        fs.write_back_all();
    }
}

fn prepare_other(flags: u64) {
    if !shares_memory(flags) || flags & libc::CLONE_VFORK as u64 != 0 {
        write_back_all();
    }
    if shared_vm_clones::has_slot() && shares_memory(flags) {
        return;
    }
    if shares_memory(flags) && flags & libc::CLONE_VFORK as u64 != 0 && !in_vfork_child() {
        runtime::open_all();
        VFORK_CHILDREN.fetch_add(1, AcqRel);
    }
    if !shares_memory(flags) {
        inotify::before_fork();
        // A handler that needed the locks that are kept now would wait for its own thread.
        MASK.set(mask::block_all_but_faults());
        crate::map::before_fork();
    }
    prepare_child(flags);
    if !shares_memory(flags) {
        crate::alloc::before_fork();
    }
}

/// With a copy of the table of descriptors it gets a slot of its own, as the child of a vfork does.
///
/// # Errors
/// EAGAIN if there is no slot for it, ENOMEM.
fn prepare_stranger(call: &Call, flags: u64) -> Result<(), Errno> {
    if !shared_vm_clones::supported() {
        return Ok(());
    }
    write_back_all();
    let mut slot = NONE;
    if flags & libc::CLONE_FILES as u64 == 0 && !in_vfork_child() {
        runtime::open_all();
        if let Some(fs) = runtime::open_fs()
            && fs.store().is_attached()
        {
            begin_copy();
            let prepared = prepare(fs.store(), true);
            slot = prepared.inspect_err(|_| end_copy()).or(Err(Errno::AGAIN))?;
            VFORK_CHILDREN.fetch_add(1, AcqRel);
        }
    }
    // A handler that ran before it has an area of its own would spoil its parent's.
    let mask = mask::block_all_but_faults();
    MASK.set(mask);
    shared_vm_clones::prepare(call, slot, mask | mask::blocked_faults()).inspect_err(|_| {
        end_copy();
        no_stranger(slot);
        mask::set(mask);
    })
}

/// There is no child for which the slot was.
fn no_stranger(slot: u32) {
    if slot != NONE {
        end_stranger();
        release(slot);
    }
}

/// A shared-memory clone with a slot of its own is gone.
pub fn end_stranger() {
    let _ = VFORK_CHILDREN.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
}

fn release(slot: u32) {
    if let Some(fs) = runtime::open_fs() {
        let _ = fs.store().release_slot(slot);
    }
}

/// After the clone that made a shared-memory clone, in its parent.
#[inline(never)]
fn after_stranger(call: &Call, ret: i64) {
    if ret == 0 || !shared_vm_clones::supported() {
        return; // It wasn't prepared for.
    }
    end_copy();
    if ret < 0
        && let Some(slot) = shared_vm_clones::failed(call)
    {
        no_stranger(slot);
    }
    mask::set(MASK.get());
}

/// In the shared-memory clone itself.
#[inline(never)]
fn begin_stranger(begun: &shared_vm_clones::Begun) {
    if begun.slot != NONE {
        take_lent(begun.slot);
    }
    mask::begin(begun.mask);
}

fn prepare_child(flags: u64) {
    let Some(fs) = runtime::open_fs() else { return };
    let store = fs.store();
    if in_vfork_child() && !shared_vm_clones::has_slot() || !store.is_attached() {
        return;
    }
    // A child that shares memory but doesn't suspend its parent is a thread in all but
    // name, and one that shares the descriptor table needs no copy of it.
    if shares_memory(flags) && flags & libc::CLONE_VFORK as u64 == 0 {
        return;
    }
    let has_some = fds::any_open(store) || inotify::any();
    if has_some || paths::cwd(fs).is_some() || paths::known_umask(store).is_some() {
        begin_copy();
        let slot = prepare(store, shares_memory(flags)).unwrap_or(NONE);
        PREPARED.with(|p| p.set(slot));
    }
}

/// Makes a slot with copies of this process's descriptors and mappings. A child that shares
/// our memory only keeps the files of our mappings, should we die before it.
fn prepare(store: &Store, shares_memory: bool) -> Result<u32, Errno> {
    let mut slot = slots::reserve(store.control());
    if slot == Err(Errno::AGAIN) && store.reap().is_ok_and(|r| r.processes > 0) {
        // They were of the dead: no keeper has come to them.
        slot = slots::reserve(store.control());
    }
    let slot = slot?;
    fill(store, slot, shares_memory).inspect_err(|_| {
        let _ = store.release_slot(slot);
    })?;
    Ok(slot)
}

fn fill(store: &Store, slot: u32, shares_memory: bool) -> Result<(), Errno> {
    let area = store.map_area(slot)?;
    let from = store.area()?;
    // SAFETY: just mapped, made of atomics; unmapped below.
    let to = unsafe { &*area };
    let end = store.fds_end();
    store.control().reserve_fds(slot, to, end)?;
    let _section = store.section()?;
    store
        .control()
        .process(slot as usize)
        .fds_end
        .store(end as u32, Release);
    // Other threads may open and close meanwhile.
    for n in 0..end {
        let (Some(from), Some(to)) = (from.fd(n), to.fd(n)) else {
            break;
        };
        match store.open_retain_at(from) {
            Some(open) => to.store(open + 1, Release),
            None if to.load(Relaxed) != 0 => to.store(0, Release),
            None => {}
        }
    }
    store.map_inherit(slot, to, shares_memory)?;
    to.cwd.store(from.cwd.load(Acquire), Release);
    to.umask.store(from.umask.load(Acquire), Release);
    // SAFETY: nothing refers to it any more.
    unsafe { store.unmap_area(area) };
    Ok(())
}

/// After fork and the like, in parent (`ret` > 0, or < 0 if it failed) and child (0).
pub unsafe extern "C-unwind" fn after_clone(call: &Call, ret: i64) {
    if ret == 0
        && shared_vm_clones::any()
        && let Some(begun) = shared_vm_clones::begin(call)
    {
        return begin_stranger(&begun);
    }
    let inside = shared_vm_clones::any()
        .then(|| shared_vm_clones::enter_after(call, ret))
        .flatten();
    finish_clone(call, ret, inside.as_ref());
}

#[inline(never)]
fn finish_clone(call: &Call, ret: i64, inside: Option<&shared_vm_clones::Inside>) {
    let flags = clone_flags(call);
    if makes_stranger(flags) {
        return after_stranger(call, ret);
    }
    if shared_vm_clones::has_slot() && shares_memory(flags) {
        return;
    }
    if ret == 0 && !shares_memory(flags) && shared_vm_clones::any() {
        shared_vm_clones::after_fork_in_child(inside);
    }
    let vfork = shares_memory(flags) && flags & libc::CLONE_VFORK as u64 != 0;
    if !shares_memory(flags) {
        crate::alloc::after_fork();
        crate::map::after_fork();
    } else if !vfork {
        return;
    }
    match (ret == 0, vfork) {
        (true, true) => begin_vfork_child(),
        (true, false) => begin_forked_child(),
        (false, _) => end_in_parent(ret, vfork),
    }
    if !shares_memory(flags) {
        mask::set(MASK.get());
    }
}

fn begin_vfork_child() {
    end_copy();
    take_lent(PREPARED.with(|p| p.replace(NONE)));
}

fn take_lent(slot: u32) {
    IN_VFORK_CHILD.with(|c| c.set(true));
    let Some(fs) = runtime::open_fs() else { return };
    let store = fs.store();
    if slot == NONE {
        store.borrow_later();
        return;
    }
    store.between_slots();
    if !slots::is_apart() {
        slots::claim(store.control(), slot);
    }
    match store.map_area(slot) {
        Ok(area) => {
            store.lend(slot, area);
            fds::drop_strangers(fs, false);
        }
        Err(_) => store.borrow_later(),
    }
}

fn begin_forked_child() {
    let slot = PREPARED.with(|p| p.replace(NONE));
    COPIES.store(0, SeqCst);
    VFORK_CHILDREN.store(0, SeqCst);
    CHANGES.store(0, SeqCst);
    COPYING.with(|c| c.set(false));
    IN_VFORK_CHILD.with(|c| c.set(false));
    slots::forget_exec();
    runtime::after_fork_in_child();
    if slots::is_apart() {
        // Its number says nothing to the others. The slot stays its parent's, until that ends.
        return runtime::leave_behind();
    }
    let Some(fs) = runtime::open_fs() else { return };
    let store = fs.store();
    if slot != NONE {
        store.between_slots();
        slots::claim(store.control(), slot);
        // Without its area the child sees no descriptors of the pool, and says EBADF.
        let _ = store.adopt(slot);
        store.end_lending();
        fds::drop_strangers(fs, false);
        // Nobody could tell us before that files we map have become shorter.
        std::sync::atomic::fence(SeqCst);
        store.catch_up();
    } else {
        paths::child_without_slot();
    }
}

fn end_in_parent(ret: i64, vfork: bool) {
    end_copy();
    if vfork && (ret < 0 || in_vfork_child()) {
        let _ = VFORK_CHILDREN.fetch_update(AcqRel, Acquire, |n| n.checked_sub(1));
    }
    if vfork && in_vfork_child() {
        IN_VFORK_CHILD.with(|c| c.set(false));
        if let Some(fs) = runtime::open_fs() {
            fs.store().end_lending();
        }
        runtime::forget_childs();
        let left = LEFT_BY_CHILD.with(|l| l.replace(std::ptr::null_mut()));
        if !left.is_null() {
            // SAFETY: made by into_raw in leave_to_parent; the child is gone.
            drop(unsafe { Box::from_raw(left) });
        }
    }
    let slot = PREPARED.with(|p| p.replace(NONE));
    if slot == NONE || ret > 0 {
        return;
    }
    if let Some(fs) = runtime::open_fs() {
        let _ = fs.store().release_slot(slot);
    }
}

/// Takes over the slot that exec handed on, or that was used so far in this process
/// (`executed` is false then). False if it isn't this process's, or the pool is out of reach.
pub fn resume_after_exec(slot: u32, executed: bool) -> bool {
    let Ok(fs) = runtime::fs() else { return false };
    let store = fs.store();
    if slot as usize >= forebay_store::control::MAX_PROCESSES
        || !slots::is_mine(store.control(), slot)
    {
        // Left in the environment by another process.
        return false;
    }
    let taken = match executed {
        true => store.resume(slot),
        false => store.adopt(slot),
    };
    if taken.is_err() {
        return false;
    }
    let Ok(area) = store.area() else { return false };
    if executed {
        // Mappings don't survive exec.
        let any = store.maps_end() > 0;
        let _ = store.end_mappings();
        if any {
            crate::map::sweep(fs);
        }
    } else if store.maps_end() > 0 {
        crate::map::note_mappings(fs);
    }
    fds::drop_strangers(fs, true);
    inotify::after_exec(fs);
    let id = area.cwd.load(Acquire);
    let inside = id != 0 && cwd::is_still_inside(fs, id);
    if !inside {
        area.cwd.store(0, Release);
    }
    paths::note_cwd(inside);
    true
}

/// Before the process ends: writes open files back at once instead of leaving it to the
/// keeper.
pub fn before_exit() {
    if let Some(fs) = runtime::open_fs() {
        // A handler on a small signal stack may be what ends it.
        crate::own_stack::run(|| leave(fs));
    }
}

fn leave(fs: &forebay_posix::Fs) {
    let _critical = slots::Critical::enter();
    let store = fs.store();
    if in_vfork_child() {
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
    crate::map::before_exit();
    fs.publish_all();
    let _ = store.end();
    // A process that only looked at names has readers, but no slot.
    store.end_readers();
}

/// Before exec: gives back what the new program couldn't find again. A vfork child has only what is
/// its parent's, and a shared-memory clone what is shared with others.
pub fn end_readers() {
    if !in_vfork_child()
        && !shared_vm_clones::is_one()
        && let Some(fs) = runtime::open_fs()
    {
        fs.store().end_readers();
    }
}
