//! A hint for who executes a program that this library can't reach, with a path of the pool among
//! its arguments: the program will say that there is no such file, which is no help.

use crate::environ::Strings;
use crate::paths::bytes;
use crate::runtime;
use forebay_elf::{Elf, Source};
use forebay_intercept::raw;

/// One line on standard error, if `name` makes its system calls without libc and is to work in
/// the pool.
pub fn hint(elf: &Elf, file: &dyn Source, name: &[u8], argv: &Strings, env: &Strings) {
    let Some(settings) = runtime::settings() else {
        return;
    };
    // The program that valgrind runs does see it.
    let sees = || env.value(c"VALGRIND_LAUNCHER").is_some() || is_mounted(settings);
    if !elf.calls_directly(file) || sees() {
        return;
    }
    // SAFETY: the program's arguments, which have been looked at.
    let mut texts = argv.pointers.iter().skip(1).map(|&p| unsafe { bytes(p) });
    if texts.any(|t| t.is_some_and(|t| leads_inside(t, settings.mount))) {
        let (name, mount) = (runtime::text(name), runtime::text(settings.mount));
        runtime::complain(&format!(
            "{name} is linked statically or makes its system calls itself: it doesn't see {mount}, \
             but would see a directory that `forebay mount` shows the pool in"
        ));
    }
}

/// Whether the kernel knows the prefix: then the pool is mounted there, too.
fn is_mounted(settings: &runtime::Settings) -> bool {
    let Ok(mount) = std::ffi::CString::new(settings.mount) else {
        return false;
    };
    let args = [libc::AT_FDCWD.into(), mount.as_ptr() as i64, 0, 0, 0, 0];
    // SAFETY: a C string.
    unsafe { raw(libc::SYS_faccessat, args) == 0 }
}

/// Whether an argument has a path under the prefix in it.
fn leads_inside(argument: &[u8], mount: &[u8]) -> bool {
    argument.split(|b| b"=:,".contains(b)).any(|part| {
        let rest = part.strip_prefix(mount);
        !mount.is_empty() && rest.is_some_and(|r| r.is_empty() || r[0] == b'/')
    })
}

#[cfg(test)]
mod tests {
    use super::leads_inside;

    #[test]
    fn arguments_with_paths_of_the_pool_are_found() {
        for yes in ["/fb", "/fb/x", "--to=/fb/x", "/a:/fb/b", "if=/fb"] {
            assert!(leads_inside(yes.as_bytes(), b"/fb"), "{yes}");
        }
        for no in ["", "/fbx", "/a/fb", "fb/x", "-x"] {
            assert!(!leads_inside(no.as_bytes(), b"/fb"), "{no}");
        }
        assert!(!leads_inside(b"/x", b""));
    }
}
