//! The program's own executable, if it lies in the pool. A copy in memory is executed, but
//! `/proc/self/exe`, `AT_EXECFN` and the process's name refer to the file in the pool.
//!
//! exec describes the new program in `FOREBAY_PROGRAM`: `ID LENGTH PATH NAME`. ID and PATH (with
//! its length) are those of the program's file in the pool; 0 and empty if it isn't in the pool (a
//! script's interpreter). NAME is the path that was executed.

use crate::paths::prefix;
use crate::pool;
use crate::program::{process, settings};
use forebay_posix::{Follow, Fs};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The program's own executable file, in the pool.
struct Exe {
    /// Path of the file as the program sees it, under the prefix.
    path: CString,
    id: u64,
}

static EXE: AtomicPtr<Exe> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the value of `FOREBAY_PROGRAM` that describes a program.
pub fn describe(name: &[u8], file: Option<(u64, &[u8])>) -> Vec<u8> {
    let (id, path) = file.unwrap_or((0, b""));
    let mut value = format!("{id} {} ", path.len()).into_bytes();
    value.extend_from_slice(path);
    value.push(b' ');
    value.extend_from_slice(name);
    value
}

/// Records the program's file from the value of `FOREBAY_PROGRAM`. Returns the path that was
/// executed.
pub fn note(value: &'static CStr) -> Option<&'static CStr> {
    let mut parts = value.to_bytes_with_nul().splitn(3, |&b| b == b' ');
    let mut number = || {
        let text = std::str::from_utf8(parts.next()?).ok()?;
        text.parse::<u64>().ok()
    };
    let (id, len) = (number()?, number()? as usize);
    let rest = parts.next()?;
    let path = rest.get(..len)?;
    if id != 0 && path.first() == Some(&b'/') {
        let path = CString::new(path).ok()?;
        EXE.store(Box::leak(Box::new(Exe { path, id })), Release);
    }
    CStr::from_bytes_with_nul(rest.get(len + 1..)?).ok()
}

fn exe() -> Option<&'static Exe> {
    // SAFETY: the pointer is null, or of a leaked value, which is never freed or changed.
    unsafe { EXE.load(Acquire).as_ref() }
}

/// Returns the path in the pool of the program's own file, if `path` is its name under `/proc`.
/// None once that path has been removed: the kernel's own link then leads to the copy in memory.
pub fn locate(path: &[u8]) -> Option<(&'static Fs, &'static [u8])> {
    let exe = exe()?;
    let rest = path.strip_prefix(b"/proc/")?.strip_suffix(b"/exe")?;
    if rest != b"self" && rest != b"thread-self" {
        let pid: u32 = std::str::from_utf8(rest).ok()?.parse().ok()?;
        if pid != process::own_pid() {
            return None;
        }
    }
    let fs = pool::fs().ok()?;
    let inside = prefix::under(settings::settings()?.mount, exe.path.to_bytes())?;
    let found = fs
        .resolver()
        .at(forebay_posix::ObjectId::ROOT, inside, Follow::No, |place| {
            place.existing()
        });
    (found.ok()?.id.0 == exe.id).then_some((fs, inside))
}

/// Makes `AT_EXECFN` and the process's name show which path was executed.
///
/// # Safety
/// `environment` is the one that the kernel laid on the stack, with the auxiliary vector behind it;
/// no other thread reads that vector meanwhile.
pub unsafe fn introduce(name: &'static CStr, environment: *mut *const libc::c_char) {
    let by_descriptor = name.to_bytes().starts_with(b"/dev/fd/");
    let title = exe().filter(|_| by_descriptor).map_or(name, |e| &e.path);
    let last = title.to_bytes().iter().rposition(|&b| b == b'/');
    // SAFETY: passes a part of the C string `title`, from its last component on; the kernel copies
    // it.
    unsafe {
        libc::prctl(
            libc::PR_SET_NAME,
            title.as_ptr().add(last.map_or(0, |i| i + 1)),
        )
    };
    if environment.is_null() {
        return;
    }
    // SAFETY: the caller promises pointers up to a null pointer, then pairs of words up to AT_NULL.
    // The path is never freed.
    unsafe {
        let mut at = environment;
        while !(*at).is_null() {
            at = at.add(1);
        }
        // Several null pointers end the array if variables have been removed.
        while (*at).is_null() {
            at = at.add(1);
        }
        let mut pair = at as *mut u64;
        while *pair != libc::AT_NULL {
            if *pair == libc::AT_EXECFN {
                *pair.add(1) = name.as_ptr() as u64;
            }
            pair = pair.add(2);
        }
    }
}
