//! The start of the library in the program's namespace. The start reads the environment, takes over
//! from the auditing instance, patches libc, and takes over the state that exec handed on.

use crate::lifecycle::{courier, environ, resume, supervisor};
use crate::loader::{bindings, early, static_tls};
use crate::paths::{exe, links};
use crate::program::{messages, settings, signals, variables};
use crate::served::cwd;
use crate::{dispatch, map};
use std::ffi::CString;

/// Reads the environment, patches libc, and takes over the state that exec handed on.
///
/// # Safety
/// Called by the loader as a constructor, with arguments and environment on the stack:
/// null-terminated arrays of C strings, which are never freed.
pub unsafe fn start(arguments: *mut *const libc::c_char, environment: *mut *const libc::c_char) {
    // SAFETY: the caller passes arrays on the stack, which are never freed.
    unsafe { variables::note(arguments, environment) };
    if !early::is_in_program() || !bindings::is_first() {
        return;
    }
    let Some(cache) = settings::read() else {
        return;
    };
    messages::report_defects();
    if let Some(errand) = variables::take(courier::VARIABLE) {
        courier::run(errand);
    }
    if let Some(child) = variables::take(supervisor::VARIABLE) {
        supervisor::run(child);
    }
    let early = early::take_over();
    if let Some(name) = variables::take(variables::PROGRAM).and_then(exe::note) {
        // SAFETY: the caller passes the environment on the stack, and no other thread runs yet.
        unsafe { exe::introduce(name, environment) };
    }
    forget_audit();
    static_tls::restore();
    signals::start(&map::ON_SIGNALS);
    links::served_by(dispatch::answer);
    // SAFETY: called in a constructor, before the program's own threads exist; the hooks are
    // static.
    if let Err(e) = unsafe { forebay_intercept::install(&dispatch::HOOKS, cache.as_deref()) } {
        let mount = settings::settings().map_or(&b""[..], |s| s.mount);
        messages::complain(&format!(
            "the pool under {} is out of reach: {e}",
            messages::text(mount)
        ));
        return;
    }
    // SAFETY: no thread of the program exists yet, and none of the loaded objects' code has run.
    unsafe { forebay_intercept::install_in_others(&dispatch::HOOKS, cache.as_deref()) };
    signals::note_beginning(true);
    let resumed = match (early, variables::handed_slot()) {
        (Some(slot), _) => resume::resume_after_exec(slot, false),
        (None, Some(slot)) => resume::resume_after_exec(slot, true),
        (None, None) => false,
    };
    if !resumed {
        cwd::recover();
    }
    signals::note_beginning(false);
}

/// Removes the auditing library from LD_AUDIT: its work is done.
fn forget_audit() {
    let (Some((at, list)), Some(settings)) =
        (variables::place(variables::AUDIT), settings::settings())
    else {
        return;
    };
    let ours = environ::audit_library(settings.preload.to_bytes());
    let others = list
        .to_bytes()
        .split(|&b| b == b':')
        .filter(|p| **p != *ours);
    let others = others.collect::<Vec<_>>().join(&b':');
    if others.is_empty() {
        variables::take(variables::AUDIT);
    } else if others != list.to_bytes()
        && let Ok(text) = CString::new([variables::AUDIT.to_bytes(), b"=", &others].concat())
    {
        // SAFETY: `at` is a pointer in the environment; the new text is never freed.
        unsafe { *at = text.into_raw() };
    }
}
