//! The working directory while it lies in the pool, as the process's area has it. The system calls
//! that change it are in
//! `served/cwd.rs`.

use crate::pool::opened;
use crate::program::{process, settings};
use forebay_client::dead_end;
use forebay_posix::{Fs, ObjectId};
use std::sync::atomic::{AtomicBool, Ordering::*};

static INSIDE: AtomicBool = AtomicBool::new(false);

/// The working directory lies in a pool that this process couldn't reach when it started.
static LOST: AtomicBool = AtomicBool::new(false);

/// Notes whether the working directory is out of reach: relative paths fail, rather than
/// lead to where the kernel believes the process to be.
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

/// Notes whether the working directory may lie in the pool (in this process or in a vfork
/// child of it: the area of the process says it exactly).
pub fn note(inside: bool) {
    if inside {
        INSIDE.store(true, Release);
    } else if !process::in_vfork_child() {
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

/// What a program that doesn't see the pool is to hand on, if the working directory lies there.
pub fn description(settings: &settings::Settings) -> Option<Vec<u8>> {
    if is_lost() {
        // In a pool, but this process doesn't know where: nor does what it executes.
        return Some(dead_end::describe(0, settings.dir.to_bytes()));
    }
    let id = current(opened::open_fs()?)?;
    Some(dead_end::describe(id.0, settings.dir.to_bytes()))
}

/// Whether the working directory lies in the pool, in reach or not.
pub fn is_inside() -> bool {
    is_lost() || opened::open_fs().is_some_and(|fs| current(fs).is_some())
}
