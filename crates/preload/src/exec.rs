//! execve: programs and scripts that lie in the pool, and what the new program needs.
//!
//! The kernel can't execute a path of the pool. A program is copied to a memory file and
//! executed from its descriptor; for a script (`#!`) the interpreter is executed with the
//! script's path, which it opens under our eyes. The environment always carries the
//! variables that load this library again, and the process's slot.

use crate::paths::{Where, errno, locate};
use crate::process::{in_vfork_child, leave_to_parent};
use crate::{fds, runtime};
use forebay_intercept::raw;
use forebay_posix::{EXEC, Errno, Fail, Follow, Fs};
use forebay_store::process::Critical;
use rustix::fd::AsRawFd;
use std::ffi::{CStr, CString};

/// Most interpreters in a row, as in Linux.
const MAX_DEPTH: usize = 5;
/// Longest `#!` line, as in Linux.
const MAX_LINE: usize = 255;

/// A list of C strings for the kernel; null-terminated pointers into texts that live
/// elsewhere, or in `made`.
struct Strings {
    pointers: Vec<i64>,
    made: Vec<CString>,
}

impl Strings {
    /// # Safety
    /// `list` is null or a null-terminated array of C strings that stay.
    unsafe fn copy(list: i64) -> Strings {
        let mut pointers = Vec::new();
        let mut at = list as *const i64;
        // SAFETY: the caller's promise.
        unsafe {
            while !at.is_null() && *at != 0 {
                pointers.push(*at);
                at = at.add(1);
            }
        }
        Strings {
            pointers,
            made: Vec::new(),
        }
    }

    fn own(&mut self, text: CString) -> i64 {
        let pointer = text.as_ptr() as i64;
        self.made.push(text);
        pointer
    }

    fn finish(&mut self) -> i64 {
        self.pointers.push(0);
        self.pointers.as_ptr() as i64
    }

    /// The memory behind it, for the parent of a vfork child to free.
    fn into_memory(self) -> Vec<Vec<u8>> {
        self.made
            .into_iter()
            .map(CString::into_bytes_with_nul)
            .collect()
    }
}

/// The environment of the new program.
unsafe fn environment(envp: i64) -> Strings {
    // SAFETY: the program's own array.
    let mut env = unsafe { Strings::copy(envp) };
    let Some(settings) = runtime::settings() else {
        return env;
    };
    if leads_elsewhere(&env, settings) {
        env.pointers.retain(|&p| !is_variable(p, runtime::SLOT));
        return env;
    }
    let mut slot = None;
    if let Some(fs) = runtime::open_fs() {
        let store = fs.store();
        let has = if in_vfork_child() { store.lent() } else { None };
        slot = has.or_else(|| {
            (!in_vfork_child() && store.is_attached())
                .then(|| store.me().ok())
                .flatten()
        });
    }
    let join = |name: &CStr, value: &[u8]| {
        let mut text = name.to_bytes().to_vec();
        text.push(b'=');
        text.extend_from_slice(value);
        CString::new(text).unwrap_or_default()
    };
    let mount = if settings.mount.is_empty() {
        b"/"
    } else {
        settings.mount
    };
    let mut wanted = vec![
        (runtime::DIR, settings.dir.to_bytes()),
        (runtime::MOUNT, mount),
    ];
    let number = slot.map(|s| s.to_string());
    if let Some(number) = &number {
        wanted.push((runtime::SLOT, number.as_bytes()));
    }
    if number.is_none() {
        env.pointers.retain(|&p| !is_variable(p, runtime::SLOT));
    }
    for (name, value) in wanted {
        let text = join(name, value);
        let pointer = env.own(text);
        match env.pointers.iter_mut().find(|p| is_variable(**p, name)) {
            Some(place) => *place = pointer,
            None => env.pointers.push(pointer),
        }
    }
    add_preload(&mut env, settings, join);
    env
}

/// Whether an environment string sets the variable `name`.
fn is_variable(text: i64, name: &CStr) -> bool {
    value_of(text, name).is_some()
}

/// The value that an environment string gives the variable `name`.
fn value_of<'a>(text: i64, name: &CStr) -> Option<&'a [u8]> {
    // SAFETY: a C string of the environment, which stays for the call.
    let text = unsafe { CStr::from_ptr(text as *const libc::c_char) }.to_bytes();
    text.strip_prefix(name.to_bytes())?.strip_prefix(b"=")
}

/// Whether the new program is to use another pool, or (the command line itself) none:
/// then its environment is its own business.
fn leads_elsewhere(env: &Strings, settings: &runtime::Settings) -> bool {
    env.pointers.iter().any(|&p| {
        is_variable(p, runtime::BARE)
            || value_of(p, runtime::DIR).is_some_and(|dir| dir != settings.dir.to_bytes())
    })
}

/// Makes sure that LD_PRELOAD names this library; a program may have put others there.
fn add_preload(
    env: &mut Strings,
    settings: &runtime::Settings,
    join: impl Fn(&CStr, &[u8]) -> CString,
) {
    let ours = settings.preload.to_bytes();
    let first = ours
        .split(|&b| b == b':' || b == b' ')
        .next()
        .unwrap_or(b"");
    let place = env
        .pointers
        .iter()
        .position(|&p| is_variable(p, runtime::PRELOAD));
    let value = match place {
        None => ours.to_vec(),
        Some(i) => {
            // SAFETY: a C string of the environment.
            let text = unsafe { CStr::from_ptr(env.pointers[i] as *const libc::c_char) };
            let now = &text.to_bytes()[runtime::PRELOAD.to_bytes().len() + 1..];
            if now.split(|&b| b == b':' || b == b' ').any(|p| p == first) {
                return;
            }
            [first, now].join(&b':')
        }
    };
    let pointer = env.own(join(runtime::PRELOAD, &value));
    match place {
        Some(i) => env.pointers[i] = pointer,
        None => env.pointers.push(pointer),
    }
}

/// Runs `f` with signals kept out. They must not be kept out over exec itself: the new
/// program would inherit that.
fn guarded<T>(f: impl FnOnce() -> T) -> T {
    let _critical = Critical::enter();
    f()
}

/// execve and execveat.
pub unsafe fn execve(nr: i64, a: &[i64; 6]) -> i64 {
    let at = nr == libc::SYS_execveat;
    let (path, argv, envp) = if at {
        (a[1], a[2], a[3])
    } else {
        (a[0], a[1], a[2])
    };
    let dirfd = if at { a[0] as i32 } else { libc::AT_FDCWD };
    let flags = if at { a[4] as i32 } else { 0 };
    // SAFETY: the program's own arguments; here and below.
    unsafe {
        let mut env = guarded(|| environment(envp));
        let env_pointer = env.finish();
        let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && crate::stat::is_empty(path);
        let located = if by_descriptor {
            match fds::pool_file(dirfd) {
                Some((fs, open)) => Ok(Where::Descriptor(fs, open)),
                None => Ok(Where::Kernel),
            }
        } else {
            locate(dirfd, path)
        };
        let result = match located {
            Err(e) => errno(e),
            Ok(Where::Kernel) => {
                let mut args = *a;
                args[if at { 3 } else { 2 }] = env_pointer;
                raw(nr, args)
            }
            Ok(inside) => {
                let mut argv = Strings::copy(argv);
                let result = exec_inside(inside, path, &mut argv, env_pointer, 0);
                leave_to_parent(argv.into_memory());
                result
            }
        };
        // Only reached if it failed, or not at all.
        leave_to_parent(env.into_memory());
        result
    }
}

/// Executes a file of the pool. Returns only an error.
unsafe fn exec_inside(
    located: Where,
    path: i64,
    argv: &mut Strings,
    envp: i64,
    depth: usize,
) -> i64 {
    if depth > MAX_DEPTH {
        return errno(Errno::LOOP);
    }
    let (fs, open, owned) = match located {
        Where::Descriptor(fs, open) => (fs, open, false),
        Where::Pool(fs, base, p) => {
            let opened = fs.at(base, &p, Follow::Yes, |place| {
                fs.access(place, EXEC)?;
                if place.existing()?.kind != libc::S_IFREG {
                    return Err(Errno::ACCESS);
                }
                fs.open_place(place, libc::O_RDONLY, 0)
            });
            match opened {
                Ok(open) => (fs, open, true),
                Err(Fail::Errno(e)) => return errno(e),
                Err(Fail::Outside(to)) => {
                    let Ok(to) = CString::new(to) else {
                        return errno(Errno::NOENT);
                    };
                    let args = argv.finish();
                    // SAFETY: the program's own call, with the path it really means.
                    return unsafe {
                        raw(libc::SYS_execve, [to.as_ptr() as i64, args, envp, 0, 0, 0])
                    };
                }
            }
        }
        Where::Kernel => return errno(Errno::NOENT),
    };
    // SAFETY: passed on.
    let result = unsafe { exec_open(fs, open, path, argv, envp, depth) };
    if owned {
        let _ = fs.store().open_release(open);
    }
    result
}

unsafe fn exec_open(
    fs: &'static Fs,
    open: u32,
    path: i64,
    argv: &mut Strings,
    envp: i64,
    depth: usize,
) -> i64 {
    let mut head = [0u8; MAX_LINE];
    // SAFETY: a buffer with its length.
    let n = match unsafe { fs.read(open, Some(0), head.as_mut_ptr(), head.len()) } {
        Ok(n) => n,
        Err(e) => return errno(e),
    };
    if let Some(line) = head[..n].strip_prefix(b"#!") {
        // SAFETY: passed on.
        return unsafe { exec_script(fs, open, line, path, argv, envp, depth) };
    }
    let memory = match guarded(|| copy_to_memory(fs, open)) {
        Ok(fd) => fd,
        Err(e) => return errno(e),
    };
    let args = argv.finish();
    // SAFETY: executes the copy; arguments and environment are the program's.
    unsafe {
        raw(
            libc::SYS_execveat,
            [
                memory.as_raw_fd().into(),
                c"".as_ptr() as i64,
                args,
                envp,
                libc::AT_EMPTY_PATH.into(),
                0,
            ],
        )
    }
}

/// The program's bytes in a memory file named after it.
fn copy_to_memory(fs: &Fs, open: u32) -> Result<rustix::fd::OwnedFd, Errno> {
    let mut name = Vec::new();
    fs.store().open_name(fs.store().open_file(open), &mut name);
    let name = CString::new(name).unwrap_or_default();
    let fd = rustix::fs::memfd_create(&*name, rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut buffer = vec![0u8; 256 << 10];
    let mut at = 0;
    loop {
        // SAFETY: a buffer with its length.
        let n = unsafe { fs.read(open, Some(at), buffer.as_mut_ptr(), buffer.len())? };
        if n == 0 {
            return Ok(fd);
        }
        let mut done = 0;
        while done < n {
            done += rustix::io::write(&fd, &buffer[done..n])?;
        }
        at += n as u64;
    }
}

unsafe fn exec_script(
    fs: &'static Fs,
    open: u32,
    line: &[u8],
    path: i64,
    argv: &mut Strings,
    envp: i64,
    depth: usize,
) -> i64 {
    let end = line
        .iter()
        .position(|&b| b == b'\n' || b == 0)
        .unwrap_or(line.len());
    let line = line[..end].trim_ascii();
    let cut = line
        .iter()
        .position(|b| b.is_ascii_whitespace())
        .unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(cut);
    let rest = rest.trim_ascii();
    if interpreter.is_empty() {
        return errno(Errno::NOEXEC);
    }
    let Ok(interpreter) = CString::new(interpreter) else {
        return errno(Errno::NOEXEC);
    };
    // The script by a path that the interpreter can open.
    // SAFETY: null, or the program's path.
    let script = if path == 0 || unsafe { crate::stat::is_empty(path) } {
        match fs.path_of_open(open) {
            Ok(p) => CString::new(crate::names::visible(fs, &p)).map(|p| argv.own(p)),
            Err(e) => return errno(e),
        }
    } else {
        Ok(path)
    };
    let Ok(script) = script else {
        return errno(Errno::NOENT);
    };
    let program = argv.own(interpreter);
    let mut front = vec![program];
    if let (false, Ok(rest)) = (rest.is_empty(), CString::new(rest)) {
        front.push(argv.own(rest));
    }
    front.push(script);
    if argv.pointers.is_empty() {
        argv.pointers.push(script);
    }
    argv.pointers.splice(0..1, front);
    // SAFETY: a C string of ours.
    match unsafe { locate(libc::AT_FDCWD, program) } {
        Err(e) => errno(e),
        Ok(Where::Kernel) => {
            let args = argv.finish();
            // SAFETY: executes the interpreter with the arguments just put together.
            unsafe { raw(libc::SYS_execve, [program, args, envp, 0, 0, 0]) }
        }
        // SAFETY: passed on.
        Ok(inside) => unsafe { exec_inside(inside, program, argv, envp, depth + 1) },
    }
}
