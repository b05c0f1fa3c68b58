//! The processes attached to a store: what the control region adds to `forebay_runtime`.
//!
//! Every process that uses a node store has a slot in the control region. From a dead process's
//! slot, any other process can find its locks, descriptors and open counts, and release them.

pub use forebay_runtime::critical::*;
pub use forebay_runtime::exec::*;
pub use forebay_runtime::process::*;
pub use forebay_runtime::slots::*;
pub use forebay_runtime::thread_ids;

use crate::control_region::{Control, Process};
use std::sync::atomic::Ordering::*;

/// Whether this process is in the PID namespace of the pool's processes. From another namespace,
/// all of them would look dead, and their locks free. None if this process's namespace can't be
/// determined.
pub fn sees_others(control: &Control) -> Option<bool> {
    let mine = Some(namespace()).filter(|&n| n != 0)?;
    let theirs = control.header().namespace.load(Relaxed);
    Some(theirs == 0 || theirs == mine)
}

/// Frees a process slot for other processes.
pub(crate) fn free(control: &Control, slot: u32) {
    let p: &Process = control.process(slot as usize);
    p.generation.fetch_add(1, AcqRel);
    p.locked.store(0, Relaxed);
    p.held_end.store(0, Relaxed);
    for wait in &p.waits {
        wait.stamp.store(0, Relaxed);
    }
    p.owner.store(0, Release);
}

/// Process ids of the living processes that are attached now.
pub fn attached(control: &Control) -> Vec<u32> {
    (0..MAX_PROCESSES)
        .map(|i| control.process(i))
        .map(|p| p.owner.load(Acquire))
        .filter(|&owner| state_of(owner) == state::USED && runs(owner))
        .map(pid_of)
        .collect()
}

/// Pairs of process ids: a process that has been waiting for a lock for a while, and the
/// stopped process that holds the lock.
pub fn stuck(control: &Control) -> Vec<(u32, u32)> {
    (0..MAX_PROCESSES)
        .map(|i| control.process(i))
        .filter_map(|p| {
            let holder = p.waits_for.load(Acquire);
            let pid = pid_of_identity(control, holder);
            let stuck = holder != 0 && identity_lives(control, holder) && is_stopped(pid);
            stuck.then(|| (pid_of(p.owner.load(Acquire)), pid))
        })
        .collect()
}

/// Whether processes have died whose slots and losses haven't all been cleaned up.
pub fn is_unsettled(control: &Control) -> bool {
    control.header().leaks.load(Acquire) != 0
        || (0..MAX_PROCESSES).any(|i| {
            let owner = control.process(i).owner.load(Acquire);
            owner != 0 && !is_alive(control, i as u32)
        })
}

/// The owner word of another process, for tests.
#[cfg(test)]
pub(crate) fn word_of(pid: u32) -> u64 {
    word_running(pid).expect("it runs")
}
