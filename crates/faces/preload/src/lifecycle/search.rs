//! Finds out whether a program's loader will search for libraries in the pool.
//!
//! The loader searches before this library is loaded, unless the library is also loaded for
//! auditing (`loader/early.rs`). Auditing slows each start, so it is only used for programs that
//! refer to the pool.

use crate::lifecycle::environ::{self, Strings};
use crate::paths::links;
use crate::paths::locate::{Where, locate};
use crate::program::{settings, variables};
use forebay_elf::Elf;
use forebay_intercept::raw;
use forebay_posix::Follow;
use std::ffi::{CStr, CString};

const LIBRARY_PATH: &CStr = c"LD_LIBRARY_PATH";

/// Whether the loader will search the pool. `inside`: the program itself lies in the pool.
pub fn needs_pool(elf: &Elf, inside: bool, env: &Strings) -> bool {
    let path = env.value(LIBRARY_PATH).unwrap_or(b"");
    if !path.is_empty() && path.split(|b| b":;".contains(b)).any(|d| leads(d, inside)) {
        return true;
    }
    let ours = settings::settings().map_or(&b""[..], |s| environ::library(s.preload.to_bytes()));
    let preload = env.value(variables::PRELOAD).unwrap_or(b"");
    let mut others = preload.split(|b| b": ".contains(b)).filter(|p| *p != ours);
    if others.any(|p| p.contains(&b'/') && leads(p, inside)) {
        return true;
    }
    elf.texts.iter().any(|t| {
        if t.is_name {
            t.text.contains(&b'/') && leads(&t.text, inside)
        } else {
            t.text.split(|&b| b == b':').any(|d| leads(d, inside))
        }
    })
}

/// Whether the path of a directory or file leads into the pool.
fn leads(path: &[u8], inside: bool) -> bool {
    let is_origin = |p: &[u8]| p.starts_with(b"$ORIGIN") || p.starts_with(b"${ORIGIN}");
    if is_origin(path) {
        return inside;
    }
    let path = if path.is_empty() { b"." } else { path };
    let Ok(text) = CString::new(path) else {
        return false;
    };
    let at = text.as_ptr() as i64;
    // SAFETY: `text` is a C string that outlives the call.
    match unsafe { locate(libc::AT_FDCWD, at) } {
        Ok(Where::Pool(..)) => true,
        Ok(Where::Kernel) => {
            let args = [libc::AT_FDCWD.into(), at, libc::F_OK.into(), 0, 0, 0];
            // SAFETY: `text` is a C string that outlives the call.
            let result = unsafe { raw(libc::SYS_faccessat, args) };
            let may_lead = links::is_shadowing() || links::is_suspicious(result);
            may_lead && links::into_pool(libc::AT_FDCWD, path, Follow::Yes).is_some()
        }
        _ => false,
    }
}
