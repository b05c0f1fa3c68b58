//! The auditing instance: this library before the program's libraries are loaded.
//!
//! A program whose libraries lie in the pool is started with a second instance of this library, in
//! `LD_AUDIT` (crate `forebay-audit`). The loader loads it before all others, in a separate
//! namespace with a separate libc. This first instance of the library only patches the loader, so
//! that the loader finds, opens and maps files of the pool. When the second instance starts, in the
//! program's namespace, it ends the first one's work. The first one removes its patches, closes the
//! pool, and hands over its process slot with the mappings recorded there. From then on the first
//! instance does nothing.
//!
//! The two communicate through the variable `FOREBAY_EARLY`: exec sets it to sixteen zeros, which
//! the first instance overwrites with the address of [`hand_over`].

use crate::lifecycle::resume;
use crate::loader::bindings;
use crate::paths::{exe, links};
use crate::program::{messages, settings, signals, variables};
use crate::{dispatch, map, pool};
use forebay_intercept::LoaderPatch;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The patch of the loader, to be removed later.
static PATCH: AtomicPtr<LoaderPatch> = AtomicPtr::new(std::ptr::null_mut());
/// Result of [`hand_over`] if there is no slot.
const NO_SLOT: u32 = u32::MAX;

/// Whether this instance is the one in the program's namespace.
pub fn is_in_program() -> bool {
    bindings::own_record().is_some()
}

/// Starts the first instance. Called by the loader before it searches for the program's libraries.
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
    // SAFETY: `place` is in the environment on the stack, which is writable; the text there has the
    // same length.
    unsafe { std::ptr::copy_nonoverlapping(address.as_ptr(), place.cast(), address.len()) };
}

/// Whether this instance serves the loader at the moment.
pub fn is_at_work() -> bool {
    !PATCH.load(Acquire).is_null()
}

/// Ends this instance's work. Returns the slot that it used, or [`NO_SLOT`].
extern "C" fn hand_over() -> u32 {
    let patch = PATCH.swap(std::ptr::null_mut(), AcqRel);
    if patch.is_null() {
        return NO_SLOT;
    }
    // SAFETY: `begin` made the patch; the caller is a constructor, so no intercepted call is in
    // progress.
    unsafe { Box::from_raw(patch).remove() };
    signals::stop();
    let slot = pool::close().unwrap_or(NO_SLOT);
    for fd in forebay_runtime::fd::internal() {
        // SAFETY: closes only this library's descriptors; no code of this instance runs again.
        unsafe { forebay_intercept::raw(libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]) };
    }
    slot
}

/// Ends the first instance, if there is one. Called in the program's instance. Returns the slot
/// that the first one used.
pub fn take_over() -> Option<u32> {
    let address = variables::take(variables::EARLY)?;
    let address = usize::from_str_radix(address.to_str().ok()?, 16).ok()?;
    if address == 0 {
        return None;
    }
    // SAFETY: the first instance has written the address, into the environment with which this
    // program was started. The variable is removed now, so no later program sees it.
    let hand_over: extern "C" fn() -> u32 = unsafe { std::mem::transmute(address) };
    Some(hand_over()).filter(|&slot| slot != NO_SLOT)
}
