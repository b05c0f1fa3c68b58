//! The library before the program's libraries are loaded.
//!
//! A program whose libraries lie in the pool is started with this library once more, in `LD_AUDIT`
//! (crate `forebay-audit`): the loader then loads it before all others, in a namespace of its own
//! with a libc of its own. That instance patches the loader only, so that it finds, opens and maps
//! files of the pool. When the other instance, in the program's namespace, starts, it has this one
//! take its patches back, close the pool, and hand its process slot over, with the mappings noted
//! there. From then on the first instance does nothing.
//!
//! The two communicate through `FOREBAY_EARLY`: exec puts sixteen zeros there, over which the first
//! instance writes the address of [`hand_over`].

use crate::lifecycle::resume;
use crate::loader::bindings;
use crate::paths::{exe, links};
use crate::program::{messages, settings, signals, variables};
use crate::{dispatch, map, pool};
use forebay_intercept::LoaderPatch;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The loader's patch, to be taken back.
static PATCH: AtomicPtr<LoaderPatch> = AtomicPtr::new(std::ptr::null_mut());
/// No slot is handed over.
const NO_SLOT: u32 = u32::MAX;

/// Whether this instance is the one in the program's namespace.
pub fn is_in_program() -> bool {
    bindings::own_record().is_some()
}

/// Called when the loader has loaded the first instance, before it searches the program's own
/// dependencies.
pub fn begin() {
    let Some((_, meeting)) = variables::place(variables::EARLY) else {
        return;
    };
    if is_in_program() || meeting.to_bytes() != variables::NOT_YET {
        return;
    }
    let Some(cache) = settings::read() else {
        return;
    };
    messages::report_defects();
    signals::start(&map::ON_SIGNALS);
    links::served_by(dispatch::answer);
    // SAFETY: the loader runs alone, and is in no system call.
    let Ok(patch) =
        (unsafe { forebay_intercept::install_in_loader(&dispatch::HOOKS, cache.as_deref()) })
    else {
        return;
    };
    PATCH.store(Box::into_raw(Box::new(patch)), Release);
    if let Some(slot) = variables::handed_slot() {
        resume::resume_after_exec(slot, true);
    }
    if let Some(program) = variables::value(variables::PROGRAM) {
        exe::note(program);
    }
    let address = format!("{:016x}", hand_over as *const () as usize);
    let place = meeting.as_ptr().cast_mut();
    // SAFETY: on the stack, where the kernel laid it; the text there has the same length.
    unsafe { std::ptr::copy_nonoverlapping(address.as_ptr(), place.cast(), address.len()) };
}

/// Whether this instance works for the loader now.
pub fn is_at_work() -> bool {
    !PATCH.load(Acquire).is_null()
}

/// Ends this instance's work. Returns the slot that it used, or [`NO_SLOT`].
extern "C" fn hand_over() -> u32 {
    let patch = PATCH.swap(std::ptr::null_mut(), AcqRel);
    if patch.is_null() {
        return NO_SLOT;
    }
    // SAFETY: made in begin; we are called from a constructor, not from a system call.
    unsafe { Box::from_raw(patch).remove() };
    signals::stop();
    let slot = pool::close().unwrap_or(NO_SLOT);
    for fd in forebay_runtime::fd::internal() {
        // SAFETY: what is left of our own descriptors; nothing of this instance runs again.
        unsafe { forebay_intercept::raw(libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]) };
    }
    slot
}

/// In the instance in the program: takes over from the other, if there is one. The slot
/// that it used.
pub fn take_over() -> Option<u32> {
    let address = variables::take(variables::EARLY)?;
    let address = usize::from_str_radix(address.to_str().ok()?, 16).ok()?;
    if address == 0 {
        return None;
    }
    // SAFETY: written by the other instance, into the environment that this program was
    // started with, and taken out of it now: no later program sees it.
    let hand_over: extern "C" fn() -> u32 = unsafe { std::mem::transmute(address) };
    Some(hand_over()).filter(|&slot| slot != NO_SLOT)
}
