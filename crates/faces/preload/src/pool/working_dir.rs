//! The working directory while it lies in the pool, stored in the process's area. The system calls
//! that change it are in `served/cwd.rs`.

use crate::pool::opened;
use crate::program::{process, settings};
use forebay_client::dead_end;
use forebay_posix::{Fs, ObjectId, thread_fs};
use std::sync::atomic::{AtomicBool, Ordering::*};

static INSIDE: AtomicBool = AtomicBool::new(false);

/// The working directory lies in a pool that this process couldn't reach when it started.
static LOST: AtomicBool = AtomicBool::new(false);

/// Records whether the working directory is unreachable: relative paths fail, rather than lead to
/// where the kernel believes the process to be.
pub fn note_lost(lost: bool) {
    LOST.store(lost, Release);
}

/// In a forked child for which there was no slot, or none was needed.
pub fn child_without_slot() {
    if INSIDE.load(Acquire) {
        note_lost(true);
    }
}

/// Whether the working directory is out of reach.
#[inline]
pub fn is_lost() -> bool {
    LOST.load(Acquire)
}

/// Records whether the working directory may lie in the pool (in this process, in a vfork child of
/// it, or in a thread with its own: [`current`] returns it exactly).
pub fn note(inside: bool) {
    if inside {
        INSIDE.store(true, Release);
    } else if !process::in_vfork_child() && !thread_fs::any() {
        INSIDE.store(false, Release);
    }
}

/// Whether the working directory may lie in the pool: [`current`] knows.
#[inline]
pub fn may_be_inside() -> bool {
    INSIDE.load(Acquire)
}

/// The working directory, if it lies in the pool.
#[inline]
pub fn current(fs: &Fs) -> Option<ObjectId> {
    if !INSIDE.load(Acquire) {
        return None;
    }
    fs.process().working_dir()
}

/// The working directory's description, if it lies in the pool: for programs that don't see the
/// pool, and hand it on to those that do.
pub fn description(settings: &settings::Settings) -> Option<Vec<u8>> {
    if is_lost() {
        // In a pool, but this process doesn't know in which directory: nor does a program that it
        // executes.
        return Some(dead_end::describe(0, settings.dir.to_bytes()));
    }
    let id = current(opened::open_fs()?)?;
    Some(dead_end::describe(id.0, settings.dir.to_bytes()))
}

/// Whether the working directory lies in the pool, in reach or not.
pub fn is_inside() -> bool {
    is_lost() || opened::open_fs().is_some_and(|fs| current(fs).is_some())
}
