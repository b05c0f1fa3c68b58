//! execve: programs and scripts that lie in the pool, and programs whose loader needs it.
//!
//! The kernel can't execute a path of the pool. A program is executed from a copy in memory
//! ([`image`]); for a script (`#!`) the interpreter is executed with the script's path,
//! which it opens under our eyes. So every exec begins by following the chain from script
//! to interpreter up to a program, wherever each of them lies. If none lies in the pool,
//! the kernel gets the program's own call; only the environment differs ([`environ`]).

use crate::lifecycle::environ::{self, Strings};
use crate::lifecycle::executable::{File, Found};
use crate::lifecycle::{exit, image, search, static_binary_hint};
use crate::map;
use crate::paths::links::Onwards;
use crate::paths::locate::{Where, locate};
use crate::paths::{exe, links, prefix};
use crate::pool::{self, fds};
use crate::program::results::{self, errno};
use crate::program::{process, shared_vm_clones, user};
use crate::served::{cwd, stat};
use forebay_elf::{Elf, Source};
use forebay_intercept::raw;
use forebay_posix::{EXEC, Errno, Fail, Follow, Fs, Place};
use forebay_store::process::{self as slots, Critical};
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ffi::CString;

/// Most scripts in a row, as in Linux.
const MAX_SCRIPTS: usize = 5;
/// Bytes of a file's beginning that the kernel reads to find out its format.
const HEAD: usize = 256;
/// Most links between pool and outside on the way to one program.
const MAX_CROSSINGS: usize = 40;

/// What the kernel is asked for.
struct Plan {
    /// The texts that are pointed to below.
    texts: Vec<CString>,
    argv: Strings,
    env: Strings,
    /// The program's copy, and its interpreter's. Numbers, since a vfork child's memory is
    /// freed by its parent, who doesn't have these descriptors.
    images: Vec<i32>,
    /// Scripts outside, which the kernel doesn't look at itself if the chain is ours.
    scripts_outside: Vec<(i32, i64)>,
    /// Part of the chain lies in the pool: the kernel can't follow it.
    ours: bool,
    /// The working directory for a program that doesn't see the pool, where that is mounted. A
    /// number, as above.
    mounted: Option<i32>,
}

/// Runs `f` with signals kept out. They must not be kept out over exec itself: the new
/// program would inherit that.
fn guarded<T>(f: impl FnOnce() -> T) -> T {
    let _critical = Critical::enter();
    f()
}

/// execve and execveat. Returns only an error.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn execve(nr: i64, a: &[i64; 6]) -> i64 {
    exit::publish_all();
    let at = nr == libc::SYS_execveat;
    let (dirfd, argv, envp, flags) = if at {
        (a[0] as i32, a[2], a[3], a[4] as i32)
    } else {
        (libc::AT_FDCWD, a[1], a[2], 0)
    };
    // SAFETY: the program's own arguments.
    let plan = guarded(|| unsafe {
        let env = Strings::copy(envp)?;
        env.look()?;
        Ok(Box::new(Plan {
            texts: Vec::new(),
            argv: Strings::copy(argv)?,
            env,
            images: Vec::new(),
            scripts_outside: Vec::new(),
            ours: false,
            mounted: None,
        }))
    });
    let mut plan = match plan {
        Ok(plan) => plan,
        Err(e) => return errno(e),
    };
    let path = a[usize::from(at)];
    // SAFETY: as above.
    let prepared = guarded(|| unsafe { prepare(&mut plan, dirfd, path, flags) });
    let mut executing = None;
    if prepared.is_ok() {
        map::before_exec();
        // What other threads have written since.
        exit::publish_all();
        exit::end_readers();
        // A child that shares its parent's memory must not hold up the parent's threads: after exec
        // nobody would let them go on.
        let shares = process::in_vfork_child() || shared_vm_clones::is_one();
        executing = (!shares).then(slots::begin_exec);
        guarded(|| environ::hand_slot(&mut plan.env));
    }
    let env = plan.env.finish();
    let call = match prepared {
        Err(e) => Err(e),
        Ok(_) if !plan.ours => {
            let mut args = *a;
            args[if at { 3 } else { 2 }] = env;
            Ok((nr, args))
        }
        Ok(found) => {
            let argv = plan.argv.finish();
            Ok(match plan.images.first() {
                Some(&image) => {
                    let empty = c"".as_ptr() as i64;
                    let flags = libc::AT_EMPTY_PATH.into();
                    (
                        libc::SYS_execveat,
                        [image.into(), empty, argv, env, flags, 0],
                    )
                }
                None if found.dirfd == libc::AT_FDCWD => {
                    (libc::SYS_execve, [found.path, argv, env, 0, 0, 0])
                }
                None => {
                    let dirfd = found.dirfd.into();
                    (libc::SYS_execveat, [dirfd, found.path, argv, env, 0, 0])
                }
            })
        }
    };
    let (images, mounted) = (plan.images.clone(), plan.mounted);
    // A vfork child's memory is its parent's to free, once the child has gone.
    let kept = process::leave_to_parent(plan);
    let result = match call {
        Ok((nr, args)) => {
            let moved = mounted.is_some_and(|dir| cwd::go_to(dir).is_ok());
            // SAFETY: paths and lists that `kept` or the parent keeps.
            let result = unsafe { raw(nr, args) };
            drop(executing);
            if let (true, Some(fs)) = (moved, pool::open_fs()) {
                guarded(|| cwd::back_to_dead_end(fs));
            }
            result
        }
        Err(e) => errno(e),
    };
    for image in images.into_iter().chain(mounted) {
        // SAFETY: made here, and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(image) });
    }
    drop(kept);
    result
}

/// Follows the chain from the file named to a program, and puts together what the kernel
/// needs for that: the program, as it was found.
unsafe fn prepare(plan: &mut Plan, dirfd: i32, path: i64, flags: i32) -> Result<Found, Errno> {
    // SAFETY: the program's path.
    let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && unsafe { stat::is_empty(path) };
    let mut found = if by_descriptor {
        by_fd(plan, dirfd, path)?
    } else {
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        // SAFETY: as above.
        unsafe { by_path(plan, dirfd, path, follow)? }
    };
    // SAFETY: as above.
    let mut shown = unsafe { shown_path(plan, dirfd, path) };
    // SAFETY: a C string, the program's or ours.
    let name = unsafe { user::path(shown) }.unwrap_or(b"").to_vec();
    for scripts in 0.. {
        let mut head = [0; HEAD];
        match found.file.read_at(&mut head, 0) {
            Err(e) if found.file.is_ours() => return Err(e),
            // The kernel says what is wrong with it.
            other => _ = other,
        }
        if !head.starts_with(b"#!") {
            break;
        }
        if scripts == MAX_SCRIPTS {
            return Err(Errno::LOOP);
        }
        let (interpreter, argument) = script_line(&head).ok_or(Errno::NOEXEC)?;
        let interpreter = CString::new(interpreter).map_err(|_| Errno::NOEXEC)?;
        let interpreter = plan.argv.own(interpreter);
        let mut front = vec![interpreter];
        if let Some(argument) = argument.and_then(|a| CString::new(a).ok()) {
            front.push(plan.argv.own(argument));
        }
        front.push(shown);
        let rest = plan.argv.pointers.len().min(1);
        plan.argv.pointers.splice(0..rest, front);
        if !found.file.is_ours() {
            plan.scripts_outside.push((found.dirfd, found.path));
        }
        // SAFETY: a C string of ours.
        found = unsafe { by_path(plan, libc::AT_FDCWD, interpreter, true)? };
        shown = interpreter;
    }
    if plan.ours {
        for &(dirfd, path) in &plan.scripts_outside {
            // SAFETY: the program's path, or one of ours.
            results::check(unsafe {
                // By descriptor, there is no path.
                let flags = match stat::is_empty(path) {
                    true => libc::AT_EACCESS | libc::AT_EMPTY_PATH,
                    false => libc::AT_EACCESS,
                };
                raw(
                    libc::SYS_faccessat2,
                    [dirfd.into(), path, libc::X_OK.into(), flags.into(), 0, 0],
                )
            })?;
        }
    }
    finish(plan, &found, &name)?;
    Ok(found)
}

/// The program's copy, if it lies in the pool, and the environment.
fn finish(plan: &mut Plan, found: &Found, name: &[u8]) -> Result<(), Errno> {
    let file = &found.file;
    let elf = Elf::read(file);
    if static_binary_hint::concerns(&plan.argv, &plan.env)
        && let Some(why) = static_binary_hint::why(elf.as_ref(), found)
    {
        plan.mounted = static_binary_hint::help(why, name, &plan.argv).map(IntoRawFd::into_raw_fd);
    }
    let elf = elf.filter(|e| e.interpreter.is_some());
    let early = elf
        .as_ref()
        .is_some_and(|e| search::needs_pool(e, file.is_ours(), &plan.env));
    let mut program = plan.ours.then(|| exe::describe(name, None));
    if let File::Pool(fs, open) = file {
        let path = prefix::visible(fs, &fs.path_of_open(*open)?);
        let id = fs.description(*open).id().0;
        program = Some(exe::describe(name, Some((id, &path))));
        let title = path.rsplit(|&b| b == b'/').next().unwrap_or(b"");
        let title = CString::new(&title[..title.len().min(200)]).unwrap_or_default();
        let image = image::copy(file, &title)?;
        if let Some(elf) = &elf {
            if let Some((header, interpreter)) = &elf.interpreter
                && let Some(interpreter) = copy_interpreter(plan, interpreter)?
            {
                image::set_interpreter(&image, header, &interpreter)?;
                plan.images.push(interpreter.into_raw_fd());
            }
            let dir = path.len() - title.as_bytes().len();
            let dir = path[..path.len().min(dir)].strip_suffix(b"/");
            image::set_origin(&image, elf, dir.unwrap_or(b"/"))?;
        }
        plan.images.insert(0, image.into_raw_fd());
    }
    environ::complete(&mut plan.env, program.as_deref(), early);
    if elf.is_some_and(|e| e.needs(environ::ASAN)) {
        environ::let_asan_be_second(&mut plan.env);
    }
    Ok(())
}

/// A copy of a program's interpreter, if that lies in the pool.
fn copy_interpreter(plan: &mut Plan, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    let path = CString::new(path).map_err(|_| Errno::NOEXEC)?;
    let pointer = path.as_ptr() as i64;
    plan.texts.push(path);
    // SAFETY: a C string that the plan keeps.
    let found = unsafe { by_path(plan, libc::AT_FDCWD, pointer, true)? };
    if found.file.is_ours() {
        image::copy(&found.file, c"ld.so").map(Some)
    } else {
        Ok(None)
    }
}

/// The file behind a descriptor.
fn by_fd(plan: &mut Plan, fd: i32, path: i64) -> Result<Found, Errno> {
    let file = match fds::pool_file(fd) {
        Some((fs, open)) => {
            plan.ours = true;
            open_place(fs, &fs.description(open).place())?
        }
        // The kernel looks at it itself; we only look for what its loader needs.
        None => {
            let path = CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::BADF)?;
            File::Kernel(open_kernel(libc::AT_FDCWD, path.as_ptr() as i64, 0).ok())
        }
    };
    Ok(Found {
        file,
        path,
        dirfd: fd,
    })
}

/// Opens a file of the pool to execute it: for that it needn't be readable.
fn open_place(fs: &'static Fs, place: &Place) -> Result<File, Errno> {
    match place.existing()?.kind {
        libc::S_IFREG => {}
        libc::S_IFLNK => return Err(Errno::LOOP),
        _ => return Err(Errno::ACCESS),
    }
    fs.access(place, EXEC)?;
    let open = fs.open_place(place, libc::O_PATH, 0)?;
    let file = File::Pool(fs, open);
    fs.bring_whole(open)?;
    Ok(file)
}

fn open_kernel(dirfd: i32, path: i64, more: i32) -> Result<OwnedFd, i64> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | more;
    // SAFETY: a path of the program's or of ours.
    let fd = unsafe {
        raw(
            libc::SYS_openat,
            [dirfd.into(), path, flags.into(), 0, 0, 0],
        )
    };
    if fd < 0 {
        return Err(fd);
    }
    // SAFETY: just opened, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The kernel's file at an absolute path.
fn in_kernel(plan: &mut Plan, path: CString, follow: bool) -> Found {
    let at = path.as_ptr() as i64;
    plan.texts.push(path);
    let more = if follow { 0 } else { libc::O_NOFOLLOW };
    Found {
        file: File::Kernel(open_kernel(libc::AT_FDCWD, at, more).ok()),
        path: at,
        dirfd: libc::AT_FDCWD,
    }
}

/// The file at a path. Links may lead from the pool outside and back.
unsafe fn by_path(
    plan: &mut Plan,
    mut dirfd: i32,
    mut path: i64,
    follow: bool,
) -> Result<Found, Errno> {
    let how = if follow { Follow::Yes } else { Follow::No };
    for _ in 0..MAX_CROSSINGS {
        // SAFETY: the program's path, or a text that the plan keeps.
        let to = match unsafe { locate(dirfd, path)? } {
            Where::Pool(fs, base, p) => match fs.at(base, &p, how, |place| open_place(fs, place)) {
                Ok(file) => {
                    plan.ours = true;
                    return Ok(Found { file, path, dirfd });
                }
                Err(Fail::Errno(e)) => return Err(e),
                Err(Fail::Outside(to)) => {
                    plan.ours = true;
                    CString::new(to).map_err(|_| Errno::NOENT)?
                }
                Err(Fail::Origin(to)) => {
                    plan.ours = true;
                    match links::onwards(to, follow)? {
                        Onwards::Pool(to) => to,
                        Onwards::Kernel(to) => return Ok(in_kernel(plan, to, follow)),
                    }
                }
            },
            Where::Exe(fs, p) => {
                let root = forebay_posix::ObjectId::ROOT;
                return match fs.at(root, p, how, |place| open_place(fs, place)) {
                    Ok(file) => {
                        plan.ours = true;
                        Ok(Found { file, path, dirfd })
                    }
                    Err(Fail::Errno(e)) => Err(e),
                    Err(Fail::Outside(_) | Fail::Origin(_)) => Err(Errno::NOENT),
                };
            }
            Where::Descriptor(fs, open) => {
                plan.ours = true;
                let file = open_place(fs, &fs.description(open).place())?;
                return Ok(Found { file, path, dirfd });
            }
            Where::Kernel => {
                let more = if follow { 0 } else { libc::O_NOFOLLOW };
                let opened = open_kernel(dirfd, path, more);
                // SAFETY: as above.
                let text = unsafe { user::path(path) };
                let may_lead = match &opened {
                    Err(e) => links::is_suspicious(*e),
                    Ok(_) => links::is_shadowing(),
                };
                let inside = text
                    .filter(|_| may_lead)
                    .and_then(|text| links::into_pool(dirfd, text, follow));
                match inside {
                    Some(to) => to,
                    None => {
                        let file = File::Kernel(opened.ok());
                        return Ok(Found { file, path, dirfd });
                    }
                }
            }
        };
        path = to.as_ptr() as i64;
        plan.texts.push(to);
        dirfd = libc::AT_FDCWD;
    }
    Err(Errno::LOOP)
}

/// The path that a script's interpreter is told, and by which the process is named.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn shown_path(plan: &mut Plan, dirfd: i32, path: i64) -> i64 {
    // SAFETY: the caller's promise.
    let given = unsafe { user::path(path) }.unwrap_or(b"");
    if !given.is_empty() && (dirfd == libc::AT_FDCWD || given[0] == b'/') {
        return path;
    }
    // SAFETY: only asks.
    let cloexec = unsafe {
        raw(
            libc::SYS_fcntl,
            [dirfd.into(), libc::F_GETFD.into(), 0, 0, 0, 0],
        )
    };
    let mut text = format!("/dev/fd/{dirfd}").into_bytes();
    // A directory's path, or that of a file whose descriptor the interpreter won't have.
    if let (true, Some((fs, open))) = (!given.is_empty() || cloexec != 0, fds::pool_file(dirfd))
        && let Ok(path) = fs.path_of_open(open)
    {
        text = prefix::visible(fs, &path);
    }
    if !given.is_empty() {
        text.push(b'/');
        text.extend_from_slice(given);
    }
    plan.argv.own(CString::new(text).unwrap_or_default())
}

/// The interpreter in a script's first line, and its argument, found as Linux finds them.
/// None: the line is empty, or cut within the interpreter's name.
fn script_line(head: &[u8; HEAD]) -> Option<(&[u8], Option<&[u8]>)> {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let start = |text: &[u8]| text.iter().take_while(|b| blank(b)).count();
    let name_end = |text: &[u8]| text.iter().position(|b| blank(b) || *b == 0);
    let text = &head[2..HEAD - 1];
    let text = match text.iter().position(|&b| b == b'\n') {
        Some(end) => &text[..end],
        None => {
            name_end(&text[start(text)..])?;
            text
        }
    };
    let text = &text[start(text)..];
    let text = &text[..text.len() - text.iter().rev().take_while(|b| blank(b)).count()];
    let end = name_end(text).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let rest = &rest[start(rest)..];
    let rest = rest.split(|&b| b == 0).next().filter(|r| !r.is_empty());
    (!name.is_empty()).then_some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_lines_are_read_as_linux_does() {
        let line = |text: &[u8]| {
            let mut head = [0; HEAD];
            head[..text.len()].copy_from_slice(text);
            let found = script_line(&head);
            found.map(|(a, b)| (a.to_vec(), b.map(<[u8]>::to_vec)))
        };
        let some = |a: &str, b: Option<&str>| Some((a.into(), b.map(Into::into)));
        assert_eq!(line(b"#!/bin/sh\necho"), some("/bin/sh", None));
        assert_eq!(line(b"#!/bin/sh"), some("/bin/sh", None));
        assert_eq!(
            line(b"#! \t/bin/env  a  b \nx"),
            some("/bin/env", Some("a  b"))
        );
        assert_eq!(line(b"#!/bin/sh\r\nx"), some("/bin/sh\r", None));
        assert_eq!(line(b"#! \nx"), None);
        let long = [&b"#!/"[..], &[b'a'; 253]].concat();
        assert_eq!(line(&long), None);
    }
}
