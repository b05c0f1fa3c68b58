//! Hints for programs that this library can't intercept (static, Go, set-user-ID) and that are to
//! work in the pool: their working directory is in the pool, or an argument is a path of the pool.
//!
//! The kernel's working directory is a dead end for them ([`cwd`]), unless the pool is mounted. The
//! process that executes such a program prints what to do: the program itself will only report that
//! a file doesn't exist.

use crate::lifecycle::environ::Strings;
use crate::lifecycle::executable::{File, Found};
use crate::pool::working_dir;
use crate::program::{hints, messages, settings, user};
use crate::served::cwd;
use forebay_elf::Elf;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::AtFlags;

/// File name of glibc's loader on this processor. Other libcs have other loaders, which can't load
/// this library.
const LOADER: &[u8] = b"/ld-linux-x86-64.so.2";

/// The reason for which a program doesn't see the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Statically linked, or a Go program.
    Direct,
    /// Set-user-ID, set-group-ID, or with file capabilities.
    Privileged,
    /// For another processor, or for this processor's 32-bit mode.
    Foreign,
    /// With the loader of another libc.
    Loader,
}

impl Why {
    fn words(self) -> &'static str {
        match self {
            Why::Direct => "is linked statically or makes its system calls itself",
            Why::Privileged => "changes its user, group or capabilities",
            Why::Foreign => "is for another processor or its mode with 32 bits",
            Why::Loader => "isn't made for glibc",
        }
    }
}

/// Whether the executed program is to work in the pool. False under valgrind, whose own program is
/// static but loads this library.
pub fn concerns(argv: &Strings, env: &Strings) -> bool {
    (working_dir::is_inside() || names_the_pool(argv)) && !is_valgrinds(env)
}

/// Writes a line on standard error if valgrind is to run a program in the pool: valgrind itself
/// opens the program's file, and doesn't find it in the pool. (The files that the program uses may
/// be in the pool.)
pub fn of_valgrind(argv: &Strings, env: &Strings) {
    let Some(settings) = settings::settings().filter(|_| is_valgrinds(env)) else {
        return;
    };
    // SAFETY: the arguments of execve are bad addresses, or C strings that aren't freed meanwhile.
    let mut texts = argv
        .pointers
        .iter()
        .skip(1)
        .filter_map(|&p| unsafe { user::path(p) });
    let Some(program) = texts.find(|t| !t.starts_with(b"-")) else {
        return;
    };
    let is_relative = program.first() != Some(&b'/') && program.contains(&b'/');
    let is_there = leads_inside(program, settings.mount) || is_relative && working_dir::is_inside();
    if is_there && !cwd::is_prefix_mounted(settings) {
        messages::complain(&format!(
            "{} lies in the pool, and valgrind, which reads its file, doesn't see {}; it does where \
             the pool is mounted, by `forebay mount` or for one program by `forebay exec \
             --with-mount`",
            messages::text(program),
            messages::text(settings.mount)
        ));
    }
}

/// Whether the executed program is valgrind's own.
pub fn is_valgrinds(env: &Strings) -> bool {
    env.value(c"VALGRIND_LAUNCHER").is_some()
}

fn names_the_pool(argv: &Strings) -> bool {
    let Some(settings) = settings::settings() else {
        return false;
    };
    // SAFETY: the arguments of execve are bad addresses, or C strings that aren't freed meanwhile.
    let mut texts = argv
        .pointers
        .iter()
        .skip(1)
        .map(|&p| unsafe { user::path(p) });
    texts.any(|t| t.is_some_and(|t| leads_inside(t, settings.mount)))
}

/// Returns why a program doesn't see the pool; None if it sees it, as far as is known.
pub fn why(elf: Option<&Elf>, found: &Found) -> Option<Why> {
    let file = &found.file;
    // A program in the pool is executed from a copy. The copy has no set-user-ID bits or
    // capabilities.
    if !file.is_ours() && is_privileged(found) {
        return Some(Why::Privileged);
    }
    match elf {
        None => {
            let mut head = [0; 4];
            let read = forebay_elf::Source::read_at(file, &mut head, 0);
            (read.is_ok() && head == *b"\x7fELF").then_some(Why::Foreign)
        }
        Some(elf) if !elf.is_native() => Some(Why::Foreign),
        // If a loader itself is executed, it loads the program given as its argument, and this
        // library with it.
        Some(_) if is_loader(found) => None,
        Some(elf) if elf.calls_directly(file) => Some(Why::Direct),
        Some(elf) => (loader_of(elf)? != LOADER).then_some(Why::Loader),
    }
}

/// Returns the file name of the program's loader, from its last slash on.
fn loader_of(elf: &Elf) -> Option<&[u8]> {
    let (_, loader) = elf.interpreter.as_ref()?;
    let last = loader.iter().rposition(|&b| b == b'/').unwrap_or(0);
    Some(&loader[last..])
}

/// Whether the program is made for musl, whose loader ends if it can't load this library.
pub fn is_for_musl(elf: &Elf) -> bool {
    loader_of(elf).is_some_and(|loader| loader.starts_with(b"/ld-musl-"))
}

/// Whether the program is glibc's loader.
pub fn is_loader(found: &Found) -> bool {
    // SAFETY: the path is a bad address, or a C string that execve's caller or the plan keeps.
    let path = unsafe { user::path(found.path) };
    path.is_some_and(|path| path == &LOADER[1..] || path.ends_with(LOADER))
}

/// Whether the kernel will give the program other rights than its caller has. The loader of such a
/// program ignores libraries that the caller names.
fn is_privileged(found: &Found) -> bool {
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let stat = match &found.file {
        File::Kernel(Some(fd)) => rustix::fs::fstat(fd),
        // The file can be executed but not read.
        _ => {
            // SAFETY: the path is a bad address, or a C string that execve's caller or the plan
            // keeps.
            let path = unsafe { user::path(found.path) }.unwrap_or(b"");
            user::descriptor(found.dirfd)
                .and_then(|dirfd| rustix::fs::statat(dirfd, path, AtFlags::EMPTY_PATH))
        }
    };
    let Ok(stat) = stat else { return false };
    let has_bits = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user
        || stat.st_mode & (libc::S_ISGID | 0o010) == libc::S_ISGID | 0o010 && stat.st_gid != group;
    has_bits || user != 0 && has_capabilities(&found.file)
}

fn has_capabilities(file: &File) -> bool {
    let File::Kernel(Some(fd)) = file else {
        return false;
    };
    let mut none: [u8; 0] = [];
    rustix::fs::fgetxattr(fd.as_fd(), c"security.capability", &mut none).is_ok_and(|len| len > 0)
}

/// Returns the working directory for the program, if the pool is mounted. If the program can't see
/// its working directory or paths among its arguments, writes a line on standard error.
pub fn help(why: Why, name: &[u8], argv: &Strings) -> Option<OwnedFd> {
    let settings = settings::settings()?;
    let inside = working_dir::is_inside();
    let mounted = if inside { cwd::mounted() } else { None };
    let is_lost = inside && mounted.is_none();
    let concerns = is_lost || names_the_pool(argv) && !cwd::is_prefix_mounted(settings);
    if concerns && hints::claim() {
        let (name, mount) = (messages::text(name), messages::text(settings.mount));
        let lost = if is_lost {
            ", nor its working directory"
        } else {
            ""
        };
        let words = why.words();
        messages::complain(&format!(
            "{name} {words}: it doesn't see {mount}{lost}; it does where the pool is mounted, \
             by `forebay mount` or for one program by `forebay exec --with-mount`"
        ));
    }
    mounted
}

/// Whether an argument contains a path under the prefix.
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
