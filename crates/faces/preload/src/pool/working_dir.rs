//! The working directory while it lies in the pool, stored in the process's area. The system calls
//! that change it are in `served/cwd.rs`.

use crate::pool::opened;
use crate::program::{process, settings};
use forebay_client::dead_end;
use forebay_posix::{Fs, ObjectId, thread_fs};
use std::sync::atomic::{AtomicBool, Ordering::*};

static INSIDE: AtomicBool = AtomicBool::new(false);

/// Whether the working directory lies in a pool that this process couldn't reach when it started.
static LOST: AtomicBool = AtomicBool::new(false);

/// Records whether the working directory is unreachable. If so, relative paths fail; otherwise such
/// paths would lead to the kernel's working directory.
pub fn note_lost(lost: bool) {
    LOST.store(lost, Release);
}

/// Records, in a forked child without a process slot, that it can't reach its working directory.
pub fn child_without_slot() {
    if INSIDE.load(Acquire) {
        note_lost(true);
    }
}

/// Whether the working directory is unreachable.
#[inline]
pub fn is_lost() -> bool {
    LOST.load(Acquire)
}

/// Records whether the working directory may lie in the pool: that of this process, of its vfork
/// child, or of a thread that has its own. [`current`] checks it exactly.
pub fn note(inside: bool) {
    if inside {
        INSIDE.store(true, Release);
    } else if !process::in_vfork_child() && !thread_fs::any() {
        INSIDE.store(false, Release);
    }
}

/// Whether the working directory may lie in the pool; [`current`] checks it exactly.
#[inline]
pub fn may_be_inside() -> bool {
    INSIDE.load(Acquire)
}

/// Returns the working directory, if it lies in the pool.
#[inline]
pub fn current(fs: &Fs) -> Option<ObjectId> {
    if !INSIDE.load(Acquire) {
        return None;
    }
    fs.process().working_dir()
}

/// Returns a description of the working directory, if it lies in the pool. Programs that don't see
/// the pool pass the description to those that do.
pub fn description(settings: &settings::Settings) -> Option<Vec<u8>> {
    if is_lost() {
        // The directory is in a pool, but this process doesn't know which one it is; nor will a
        // program that it executes.
        return Some(dead_end::describe(0, settings.dir.to_bytes()));
    }
    let id = current(opened::open_fs()?)?;
    Some(dead_end::describe(id.0, settings.dir.to_bytes()))
}

/// Whether the working directory lies in the pool, reachable or not.
pub fn is_inside() -> bool {
    is_lost() || opened::open_fs().is_some_and(|fs| current(fs).is_some())
}
