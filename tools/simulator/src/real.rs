//! Access to libc's functions whose names this program defines itself ([`crate::taken`]).

use libc::c_long;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// One of libc's functions, looked up at its first use.
pub struct Real(AtomicUsize, &'static std::ffi::CStr);

impl Real {
    pub const fn new(name: &'static std::ffi::CStr) -> Real {
        Real(AtomicUsize::new(0), name)
    }

    pub fn get(&self) -> usize {
        let known = self.0.load(SeqCst);
        if known != 0 {
            return known;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) } as usize;
        if found == 0 {
            std::process::abort();
        }
        self.0.store(found, SeqCst);
        found
    }
}

macro_rules! real {
    ($name:literal, $type:ty) => {{
        static REAL: crate::real::Real = crate::real::Real::new($name);
        // SAFETY: libc's function of this name has this type.
        unsafe { std::mem::transmute::<usize, $type>(REAL.get()) }
    }};
}

type Syscall =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// Calls libc's syscall(2).
pub fn real_syscall(
    n: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let real = real!(c"syscall", Syscall);
    // SAFETY: the callers pass their own valid arguments, or those that their callers promise.
    unsafe { real(n, a, b, c, d, e, f) }
}

pub(crate) use real;
