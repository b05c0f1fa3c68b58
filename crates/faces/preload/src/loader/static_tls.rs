//! Makes sure that static thread-local storage suffices for a program's libraries, when the loader
//! has loaded the auditing instance first.
//!
//! The loader lays out thread-local storage when it starts auditing, before it knows the program's
//! libraries, with little room to spare. A library that needs more static storage ("static TLS")
//! would fail to load. So this module adds up the sizes as libraries are mapped. When the room may
//! not suffice, it executes the program again, with more room (`GLIBC_TUNABLES`).

use crate::lifecycle::environ::Strings;
use crate::lifecycle::exit;
use crate::loader::early;
use crate::loader::link_map::{self, LinkMap};
use crate::paths::exe;
use crate::pool;
use crate::program::variables;
use forebay_intercept::raw;
use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicUsize, Ordering::*};

const TUNABLES: &CStr = c"GLIBC_TUNABLES";
const TUNABLE: &[u8] = b"glibc.rtld.optional_static_tls=";
/// Room for libraries' static thread-local storage that glibc reserves by default. Bytes.
const USUAL: usize = 512;
/// The room that [`execute_again`] sets is a multiple of this. Bytes.
const STEP: usize = 16 << 10;

/// Request of dlinfo for the program headers.
const RTLD_DI_PHDR: i32 = 11;

/// Static thread-local storage that the libraries mapped so far may need. Bytes.
static NEEDED: AtomicUsize = AtomicUsize::new(0);

/// Adds the thread-local storage of an object that the loader has mapped into the program's
/// namespace. Executes the program again if the room doesn't suffice.
///
/// # Safety
/// Called by the loader, with its record of the object.
pub unsafe fn mapped(map: &LinkMap) {
    // SAFETY: the loader's name is a C string that lives as long as its record.
    let is_program = map.name.is_null() || unsafe { *map.name } == 0;
    if is_program || !early::is_at_work() {
        return;
    }
    let size = tls_size(map);
    let needed = NEEDED.fetch_add(size, Relaxed) + size;
    let room = variables::place(variables::STATIC_TLS)
        .and_then(|(_, v)| v.to_str().ok()?.split(' ').next()?.parse().ok())
        .unwrap_or(USUAL);
    if size > 0 && needed > room {
        // SAFETY: nothing of the program has run yet.
        unsafe { execute_again((2 * needed).next_multiple_of(STEP)) };
    }
}

/// Returns the size of an object's thread-local storage. Bytes.
fn tls_size(map: &LinkMap) -> usize {
    program_headers(map)
        .iter()
        .filter(|h| h.p_type == libc::PT_TLS)
        .map(|h| h.p_memsz.next_multiple_of(h.p_align.max(1)) as usize)
        .sum()
}

/// Returns the program headers, as the loader reports them; with a glibc before 2.36, from the
/// object's first page.
fn program_headers(map: &LinkMap) -> &[libc::Elf64_Phdr] {
    let mut table: *const libc::Elf64_Phdr = std::ptr::null();
    let handle = std::ptr::from_ref(map).cast_mut().cast();
    // SAFETY: the loader's record serves as a handle.
    let count = unsafe { libc::dlinfo(handle, RTLD_DI_PHDR, (&raw mut table).cast()) };
    if count > 0 && !table.is_null() {
        // SAFETY: dlinfo has returned a table of `count` headers, which lives as long as the
        // object.
        return unsafe { std::slice::from_raw_parts(table, count as usize) };
    }
    link_map::headers_in_memory(map)
}

/// Executes the program again with `room` bytes for static thread-local storage. Returns only if
/// that fails: then the loader continues with the present room.
unsafe fn execute_again(room: usize) {
    let (argv, environment) = variables::given();
    // SAFETY: the kernel laid the environment on the stack, and nothing frees it.
    let Ok(mut env) = (unsafe { Strings::copy(environment as i64) }) else {
        return;
    };
    let before = env.value(TUNABLES).map(<[u8]>::to_vec);
    // The former value of GLIBC_TUNABLES, to be restored: a leading `=` distinguishes an empty
    // value from none.
    let note = match env.value(variables::STATIC_TLS) {
        Some(note) => note
            .splitn(2, |&b| b == b' ')
            .nth(1)
            .unwrap_or(b"")
            .to_vec(),
        None => before
            .as_ref()
            .map_or(Vec::new(), |b| [b"=", b.as_slice()].concat()),
    };
    let mut tunables = before.unwrap_or_default();
    if !tunables.is_empty() {
        tunables.push(b':');
    }
    tunables.extend_from_slice(TUNABLE);
    tunables.extend_from_slice(room.to_string().as_bytes());
    env.set(TUNABLES, &tunables);
    let note = [format!("{room} ").as_bytes(), &note].concat();
    env.set(variables::STATIC_TLS, &note);
    env.set(variables::EARLY, variables::NOT_YET);
    if let Some(slot) = pool::open_fs().and_then(|fs| fs.process().attach().ok()) {
        env.set(variables::SLOT, slot.to_string().as_bytes());
    }
    if env.value(variables::PROGRAM).is_none() {
        // SAFETY: the kernel passed this C string, which is never freed.
        let name = unsafe {
            let name = libc::getauxval(libc::AT_EXECFN) as *const c_char;
            if name.is_null() {
                return;
            }
            CStr::from_ptr(name)
        };
        env.set(variables::PROGRAM, &exe::describe(name.to_bytes(), None));
    }
    let args = [
        c"/proc/self/exe".as_ptr() as i64,
        argv as i64,
        env.finish(),
        0,
        0,
        0,
    ];
    exit::end_readers();
    // SAFETY: the arguments are the program's, and `env` lives until here.
    unsafe { raw(libc::SYS_execve, args) };
}

/// Restores the variables that `execute_again` has changed. Called in the program's instance.
pub fn restore() {
    let Some(note) = variables::take(variables::STATIC_TLS) else {
        return;
    };
    let before = note.to_bytes().splitn(2, |&b| b == b' ').nth(1);
    let Some((at, _)) = variables::place(TUNABLES) else {
        return;
    };
    match before.and_then(|b| b.strip_prefix(b"=")) {
        None => _ = variables::take(TUNABLES),
        Some(value) => {
            let text = [TUNABLES.to_bytes(), b"=", value].concat();
            if let Ok(text) = CString::new(text) {
                // SAFETY: `at` is a pointer in the environment; the new text is never freed.
                unsafe { *at = text.into_raw() };
            }
        }
    }
}

/// Makes this library's own thread-local storage static. Otherwise a thread's first use of it calls
/// the program's malloc, which may unmap memory; and the intercepted munmap uses the storage again.
/// One access by a fixed offset from the thread pointer makes the whole library's storage static.
/// (Without auditing it is static in any case.)
#[cfg(target_arch = "x86_64")]
mod ours {
    std::arch::global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".hidden forebay_static",
        ".globl forebay_static",
        ".type forebay_static,@object",
        ".size forebay_static, 8",
        ".balign 8",
        "forebay_static: .zero 8",
        ".popsection",
        ".pushsection .text.forebay_use_static,\"ax\",@progbits",
        ".hidden forebay_use_static",
        ".globl forebay_use_static",
        ".type forebay_use_static,@function",
        "forebay_use_static:",
        ".cfi_startproc",
        "mov rax, qword ptr [rip + forebay_static@GOTTPOFF]",
        "ret",
        ".cfi_endproc",
        ".size forebay_use_static, . - forebay_use_static",
        ".popsection",
    );

    unsafe extern "C" {
        pub fn forebay_use_static() -> usize;
    }

    #[used]
    static USE: unsafe extern "C" fn() -> usize = forebay_use_static;
}
