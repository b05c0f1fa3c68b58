//! The environment of a new program. Unless the program is to use another pool or none, its
//! environment has the variables that load this library again, and those that name the pool, the
//! process slot and the program's file.

use crate::pool::{self, working_dir};
use crate::program::process::in_vfork_child;
use crate::program::settings::{self, Settings};
use crate::program::user::{self, plausible};
use crate::program::variables;
use forebay_client::dead_end::VARIABLE;
use forebay_posix::Errno;
use forebay_runtime::guard;
use std::ffi::{CStr, CString};

/// File name of the library for auditing.
const AUDIT_LIBRARY: &[u8] = b"libforebay_audit.so";

/// A list of C strings for the kernel: null-terminated pointers to texts of the program, or to
/// texts in `made`.
pub struct Strings {
    pub pointers: Vec<i64>,
    made: Vec<CString>,
}

impl Strings {
    /// # Errors
    /// EFAULT.
    ///
    /// # Safety
    /// `list` is null, unmapped memory, or a null-terminated array of C strings that aren't freed.
    pub unsafe fn copy(list: i64) -> Result<Strings, Errno> {
        let mut pointers = Vec::new();
        if list != 0 {
            let at = list as *const i64;
            let count = || {
                let mut n = 0;
                // SAFETY: the caller promises an array that ends with null, or unmapped memory,
                // whose fault `guard::attempt` catches.
                while unsafe { *at.add(n) } != 0 {
                    n += 1;
                }
                n
            };
            // SAFETY: the closure holds no lock.
            let n = unsafe { guard::attempt(count) };
            let n = n.filter(|_| plausible(list)).ok_or(Errno::FAULT)?;
            // SAFETY: the `n` pointers were just read; the caller promises that they aren't freed.
            pointers.extend_from_slice(unsafe { std::slice::from_raw_parts(at, n) });
        }
        Ok(Strings {
            pointers,
            made: Vec::new(),
        })
    }

    /// Checks that all texts can be read.
    ///
    /// # Errors
    /// EFAULT.
    ///
    /// # Safety
    /// Each text is a C string that isn't freed, or unmapped memory.
    pub unsafe fn look(&self) -> Result<(), Errno> {
        let len = |&p: &i64| {
            // SAFETY: the caller promises a C string, or unmapped memory, whose fault `user::touch`
            // catches.
            unsafe { CStr::from_ptr(p as *const libc::c_char) }.count_bytes()
        };
        // SAFETY: the closure has nothing to drop if a fault ends it. It only touches the bytes.
        let sum = unsafe { user::touch(|| self.pointers.iter().map(len).fold(0, |n, l| n ^ l)) };
        match sum.map(std::hint::black_box) {
            Some(_) => Ok(()),
            None => Err(Errno::FAULT),
        }
    }

    /// Adds a text that lives as long as the list. Returns a pointer to it.
    pub fn own(&mut self, text: CString) -> i64 {
        let pointer = text.as_ptr() as i64;
        self.made.push(text);
        pointer
    }

    /// Returns the address of the null-terminated array.
    pub fn finish(&mut self) -> i64 {
        if self.pointers.last() != Some(&0) {
            self.pointers.push(0);
        }
        self.pointers.as_ptr() as i64
    }

    fn place(&self, name: &CStr) -> Option<usize> {
        let mut all = self.pointers.iter();
        all.position(|&p| value_of(p, name).is_some())
    }

    /// The value of the variable `name`.
    pub fn value(&self, name: &CStr) -> Option<&[u8]> {
        self.place(name)
            .and_then(|i| value_of(self.pointers[i], name))
    }

    /// Sets the variable `name`.
    pub fn set(&mut self, name: &CStr, value: &[u8]) {
        let text = [name.to_bytes(), b"=", value].concat();
        let pointer = self.own(CString::new(text).unwrap_or_default());
        match self.place(name) {
            Some(i) => self.pointers[i] = pointer,
            None => self.pointers.push(pointer),
        }
    }

    fn remove(&mut self, name: &CStr) {
        self.pointers.retain(|&p| value_of(p, name).is_none());
    }
}

/// Returns the value of the variable `name`, if the environment string `text` sets it.
fn value_of<'a>(text: i64, name: &CStr) -> Option<&'a [u8]> {
    // SAFETY: `text` is a C string of the environment, which isn't freed during the call.
    let text = unsafe { CStr::from_ptr(text as *const libc::c_char) }.to_bytes();
    text.strip_prefix(name.to_bytes())?.strip_prefix(b"=")
}

/// Whether the new program is to use another pool, or none (if it is Forebay's command line): then
/// the program's environment isn't changed.
fn has_other_target(env: &Strings, settings: &Settings) -> bool {
    env.value(variables::BARE).is_some()
        || env
            .value(variables::DIR)
            .is_some_and(|dir| dir != settings.dir.to_bytes())
}

/// Whether the new program is to use another pool or none, although it could use this pool: it
/// doesn't get this pool's descriptors.
pub fn leaves_pool(env: &Strings) -> bool {
    settings::settings().is_some_and(|settings| has_other_target(env, settings))
}

/// Completes the environment of a new program. `program`: the value of `FOREBAY_PROGRAM`, if the
/// program needs one; `early`: whether the program's loader needs the pool.
pub fn complete(env: &mut Strings, program: Option<&[u8]>, early: bool) {
    let Some(settings) = settings::settings() else {
        return;
    };
    env.remove(variables::PROGRAM);
    env.remove(variables::EARLY);
    env.remove(variables::STATIC_TLS);
    match working_dir::description(settings) {
        Some(text) => env.set(VARIABLE, &text),
        None if working_dir::is_lost() => {}
        None => env.remove(VARIABLE),
    }
    if has_other_target(env, settings) {
        return;
    }
    let mount: &[u8] = match settings.mount {
        b"" => b"/",
        mount => mount,
    };
    env.set(variables::DIR, settings.dir.to_bytes());
    env.set(variables::MOUNT, mount);
    if let Some(program) = program {
        env.set(variables::PROGRAM, program);
    }
    add_library(env, variables::PRELOAD, settings.preload.to_bytes(), true);
    let audit = audit_library(settings.preload.to_bytes());
    if early && is_there(&audit) {
        env.set(variables::EARLY, variables::NOT_YET);
        add_library(env, variables::AUDIT, &audit, true);
    } else if env.value(variables::AUDIT).is_some() {
        add_library(env, variables::AUDIT, &audit, false);
    }
}

/// Writes the number of the slot that the new program takes over. To be called last: between
/// [`forebay_store::process::begin_exec`] and exec. `takes_over`: whether the program takes over a
/// slot at all.
pub fn hand_slot(env: &mut Strings, takes_over: bool) {
    let Some(settings) = settings::settings() else {
        return;
    };
    match slot().filter(|_| takes_over && !has_other_target(env, settings)) {
        None => env.remove(variables::SLOT),
        Some(slot) => env.set(variables::SLOT, slot.to_string().as_bytes()),
    }
}

/// Removes this library from LD_PRELOAD: the new program's loader can't load it, and would end the
/// program.
pub fn leave_library_out(env: &mut Strings) {
    if let Some(settings) = settings::settings() {
        add_library(env, variables::PRELOAD, settings.preload.to_bytes(), false);
    }
}

/// AddressSanitizer's library.
pub const ASAN: &[u8] = b"libasan.so";

/// Sets ASAN_OPTIONS so that AddressSanitizer accepts this library before its own in LD_PRELOAD.
/// (This library replaces none of AddressSanitizer's functions.)
pub fn let_asan_be_second(env: &mut Strings) {
    const OPTIONS: &CStr = c"ASAN_OPTIONS";
    const SETTING: &[u8] = b"verify_asan_link_order=0";
    let now = env.value(OPTIONS).unwrap_or(b"");
    if !now.windows(SETTING.len()).any(|w| w == SETTING) {
        let value = [now, SETTING].join(&b':');
        let value = value.strip_prefix(b":").unwrap_or(&value);
        env.set(OPTIONS, value);
    }
}

/// Returns the slot that the new program takes over.
fn slot() -> Option<u32> {
    pool::open_fs()?.process().slot_for_exec(in_vfork_child())
}

fn is_separator(b: &u8) -> bool {
    *b == b':' || *b == b' '
}

/// Returns this library's path, the first in the list `list`.
pub fn library(list: &[u8]) -> &[u8] {
    list.split(is_separator).next().unwrap_or(b"")
}

/// Returns the path of the auditing library, which lies in this library's directory.
pub fn audit_library(preload: &[u8]) -> Vec<u8> {
    let ours = library(preload);
    let dir = ours.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
    [&ours[..dir], AUDIT_LIBRARY].concat()
}

fn is_there(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else {
        return false;
    };
    let args = [
        libc::AT_FDCWD.into(),
        path.as_ptr() as i64,
        libc::R_OK.into(),
        0,
        0,
        0,
    ];
    // SAFETY: `path` is a C string that outlives the call.
    unsafe { forebay_intercept::raw(libc::SYS_faccessat, args) == 0 }
}

/// Adds the first library of `ours` to the variable `name`, a list in which the program may have
/// put other libraries; or removes it (`wanted` is false).
fn add_library(env: &mut Strings, name: &CStr, ours: &[u8], wanted: bool) {
    let first = library(ours);
    let Some(now) = env.value(name) else {
        if wanted {
            env.set(name, ours);
        }
        return;
    };
    let has = now.split(is_separator).any(|p| p == first);
    if has == wanted {
        return;
    }
    if wanted {
        let value = [first, now].join(&b':');
        return env.set(name, &value);
    }
    let others = now
        .split(is_separator)
        .filter(|p| *p != first && !p.is_empty());
    let others: Vec<&[u8]> = others.collect();
    let value = others.join(&b':');
    if value.is_empty() {
        env.remove(name);
    } else {
        env.set(name, &value);
    }
}
