//! The library that the loader loads before all others (`LD_AUDIT`), for programs whose own
//! libraries lie in the pool.
//!
//! It is the preloaded library once more, linked so that its own dependencies (libc) are found in
//! the system's directories without using the program's search path: the loader would remember the
//! directories of the pool as missing. Its tasks are described in `early.rs` of `forebay-preload`.

use std::ffi::{c_long, c_uint};

/// Called by the loader once it has loaded this library, with the version of the auditing interface
/// that it supports; this library requires the same.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: u32) -> u32 {
    forebay_preload::begin_early();
    version
}

/// Called by the loader for each object that it has mapped. Bindings to it aren't audited.
///
/// # Safety
/// Called by the loader, with its record of the object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(
    map: *const forebay_preload::LinkMap,
    namespace: c_long,
    _cookie: *mut usize,
) -> c_uint {
    if namespace == 0 && !map.is_null() {
        // SAFETY: the loader's record.
        unsafe { forebay_preload::object_mapped(&*map) };
    }
    0
}
