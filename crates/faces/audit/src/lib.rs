//! Audit library: the loader loads it before all others (`LD_AUDIT`), for programs whose own
//! libraries lie in the pool.
//!
//! The auditing library is the preload library linked a second time, so that its own dependencies
//! (libc) are found in the system's directories. Through the program's search path, the loader
//! would search the pool's directories before the pool can be served, and would remember them as
//! missing. `early.rs` of `forebay-preload` describes what the auditing library does.

use std::ffi::{c_long, c_uint};

/// Starts the auditing instance. Called by the loader once it has loaded this library. `version` is
/// the version of the auditing interface that the loader supports; this library returns the same
/// version, so it accepts any.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: u32) -> u32 {
    forebay_preload::begin_early();
    version
}

/// Passes an object of the program's namespace to the preload library. Called by the loader for
/// each object that it has mapped. Returns 0: bindings to the object aren't audited.
///
/// # Safety
/// `map` is null, or the loader's record of the object, valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(
    map: *const forebay_preload::LinkMap,
    namespace: c_long,
    _cookie: *mut usize,
) -> c_uint {
    if namespace == 0 && !map.is_null() {
        // SAFETY: the loader passes its record of the object, which is valid during the call.
        unsafe { forebay_preload::object_mapped(&*map) };
    }
    0
}
