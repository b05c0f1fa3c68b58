//! The unwinder's functions, looked up when they are needed.
//!
//! Rust's standard library needs libgcc_s, which costs each start of a program 40 to 90 us to load,
//! relocate and initialise. Only an exception, or the cancellation of a thread, that passes through
//! this library's functions needs it; a process that throws has loaded it already. So libgcc_s's
//! functions are defined here, visible to this library alone, as jumps to the real ones; the linker
//! then omits libgcc_s.
//!
//! Unwind tables of far trampolines that are registered before libgcc_s is loaded are kept until it
//! is loaded ([`register_kept`]).

use std::ffi::CStr;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

macro_rules! unwinder {
    ($($name:ident)*) => {
        const NAMES: &[&CStr] = &[$(
            // SAFETY: the bytes end with the only zero.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
        ),*];
        // Unit tests are linked with libgcc_s itself.
        #[cfg(all(target_arch = "x86_64", not(test)))]
        std::arch::global_asm!(
            ".pushsection .text.forebay_unwinder, \"ax\", @progbits",
            ".set forebay_unwinder_index, 0",
            $(
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ", @function"),
                concat!(stringify!($name), ":"),
                // Finds the real function and jumps to it, with up to four arguments.
                "push %rdi",
                "push %rsi",
                "push %rdx",
                "push %rcx",
                "sub $8, %rsp",
                "mov $forebay_unwinder_index, %edi",
                "call {find}",
                "add $8, %rsp",
                "pop %rcx",
                "pop %rdx",
                "pop %rsi",
                "pop %rdi",
                "jmp *%rax",
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                ".set forebay_unwinder_index, forebay_unwinder_index + 1",
            )*
            ".popsection",
            find = sym find,
            options(att_syntax),
        );
    };
}

unwinder! {
    _Unwind_RaiseException _Unwind_Resume _Unwind_DeleteException _Unwind_ForcedUnwind
    _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart _Unwind_GetTextRelBase
    _Unwind_GetDataRelBase _Unwind_GetGR _Unwind_SetGR _Unwind_GetIP _Unwind_SetIP
    _Unwind_GetIPInfo _Unwind_GetCFA _Unwind_Backtrace _Unwind_FindEnclosingFunction
    __register_frame
}

static FOUND: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

/// Maximum number of unwind tables that are kept until libgcc_s is loaded.
const MAX_REGISTERED: usize = 64;
static REGISTERED: [AtomicUsize; MAX_REGISTERED] = [const { AtomicUsize::new(0) }; MAX_REGISTERED];
static REGISTERED_END: AtomicUsize = AtomicUsize::new(0);

/// Where to search for a function of libgcc_s.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// In the libraries that the program is linked with. No dlopen: before `main`, dlopen would run
    /// libc's constructors without arguments and environment, and the program would have none.
    Linked,
    /// In all loaded objects.
    Loaded,
    /// In all loaded objects; libgcc_s is loaded if it isn't yet.
    Load,
}

/// Returns the address of function `NAMES[i]` of libgcc_s; null if it isn't found in `scope`.
fn look_up(i: usize, scope: Scope) -> *mut c_void {
    let found = FOUND[i].load(Acquire);
    if !found.is_null() {
        return found;
    }
    let flags = libc::RTLD_NOW
        | if scope == Scope::Load {
            0
        } else {
            libc::RTLD_NOLOAD
        };
    // SAFETY: the names are C strings, and the library stays loaded.
    let found = unsafe {
        match libc::dlsym(libc::RTLD_DEFAULT, NAMES[i].as_ptr()) {
            found if !found.is_null() || scope == Scope::Linked => found,
            _ => match libc::dlopen(c"libgcc_s.so.1".as_ptr(), flags) {
                library if library.is_null() => null_mut(),
                library => libc::dlsym(library, NAMES[i].as_ptr()),
            },
        }
    };
    FOUND[i].store(found, Release);
    found
}

/// Returns the address of an unwinder's function; of a replacement if it isn't found.
#[cfg_attr(test, allow(dead_code, reason = "called by the jumps"))]
extern "C" fn find(i: usize) -> *mut c_void {
    let registers = i == NAMES.len() - 1;
    let scope = if registers {
        Scope::Linked
    } else {
        Scope::Load
    };
    match look_up(i, scope) {
        found if !found.is_null() => found,
        _ if registers => keep as *mut c_void,
        _ => nothing as *mut c_void,
    }
}

/// Replacement for the unwinder's functions. Returns `_URC_END_OF_STACK`: there is nothing to
/// unwind.
extern "C" fn nothing() -> usize {
    const END_OF_STACK: usize = 5;
    END_OF_STACK
}

extern "C" fn keep(table: usize) {
    if let Some(place) = REGISTERED.get(REGISTERED_END.fetch_add(1, AcqRel)) {
        place.store(table, Release);
    }
}

/// Registers the unwind tables in [`REGISTERED`], if libgcc_s is loaded now. Called before a thread
/// is unwound.
pub fn register_kept() {
    let end = REGISTERED_END.load(Acquire).min(MAX_REGISTERED);
    if end == 0 {
        return;
    }
    let register = look_up(NAMES.len() - 1, Scope::Loaded);
    if register.is_null() {
        return;
    }
    // SAFETY: `__register_frame` has this type.
    let register: extern "C" fn(usize) = unsafe { std::mem::transmute(register) };
    for place in &REGISTERED[..end] {
        let table = place.swap(0, AcqRel);
        if table != 0 {
            register(table);
        }
    }
}
