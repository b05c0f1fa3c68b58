//! execve of programs and scripts in the pool, and of programs whose loader needs the pool.
//!
//! The kernel can't execute a path of the pool. A program is executed from a copy in memory
//! ([`image`]). For a script (`#!`) the interpreter is executed with the script's path, and this
//! library serves its open of the script. So every exec begins by following the chain from script
//! to interpreter up to a program, in the pool or outside. If none of these files is in the pool,
//! the kernel gets the program's own call, with a changed environment ([`environ`]).

use crate::lifecycle::environ::{self, Strings};
use crate::lifecycle::executable::{File, Found};
use crate::lifecycle::inherited::{self, Inherited};
use crate::lifecycle::{exit, image, search, static_binary_hint, supervisor};
use crate::map;
use crate::paths::links::Onwards;
use crate::paths::locate::{Where, locate};
use crate::paths::{exe, links, prefix};
use crate::pool::{self, fds, working_dir};
use crate::program::results::{self, errno};
use crate::program::{credentials, process, shared_vm_clones, user};
use crate::served::{cwd, stat};
use forebay_elf::{Elf, Source};
use forebay_intercept::raw;
use forebay_posix::{EXEC, Errno, Fail, Follow, Fs, PATH_MAX, Place};
use forebay_store::process::{self as slots, Critical};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ffi::CString;

/// Maximum number of scripts in a row, as in Linux.
const MAX_SCRIPTS: usize = 5;
/// Number of bytes at a file's beginning that the kernel reads to recognise its format.
const HEAD: usize = 256;
/// Flag of execveat(2): only checks whether the program could be executed (Linux 6.14).
const AT_EXECVE_CHECK: i32 = 0x1_0000;
/// Maximum number of links between the pool and outside on the path to one program.
const MAX_CROSSINGS: usize = 40;

/// The arguments of the kernel's call, in preparation.
struct Plan {
    /// Texts to which the fields below point.
    texts: Vec<CString>,
    argv: Strings,
    env: Strings,
    /// The descriptors of the copies of the program and its interpreter, as numbers, not owned
    /// descriptors: a vfork child's memory is freed by its parent, which doesn't have these
    /// descriptors.
    images: Vec<i32>,
    /// The descriptors of copies of a program that is an argument of a loader.
    images_for_loader: Vec<i32>,
    /// Descriptor and path of each script outside the pool. If this library follows the chain
    /// instead of the kernel, it also checks the permissions of these scripts.
    scripts_outside: Vec<(i32, i64)>,
    /// Whether a part of the chain lies in the pool: then the kernel can't follow it.
    ours: bool,
    /// The working directory in a mount of the pool, for a program that doesn't see the pool. A
    /// number, for the same reason as `images`.
    mounted: Option<i32>,
    /// The descriptors that a program gets instead of its pool descriptors if it doesn't see the
    /// pool.
    inherited: Inherited,
    /// Whether nothing is executed (AT_EXECVE_CHECK).
    only_checks: bool,
    supervision: Supervision,
}

/// Whether a [`supervisor`] waits for the program's courier, in place of a parent that can't.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Supervision {
    /// The program may get a courier only if the parent waits for it.
    Absent,
    /// The program needs a supervisor. Nothing has been executed.
    Needed,
    /// The parent is the supervisor.
    Present,
    /// No supervisor could be made: the program is executed without one.
    Refused,
}

impl Plan {
    /// Returns a plan with copies of the program's lists.
    ///
    /// # Errors
    /// EFAULT, E2BIG.
    ///
    /// # Safety
    /// `argv` and `envp` are null, or lists as execve(2) takes them.
    unsafe fn new(argv: i64, envp: i64) -> Result<Box<Plan>, Errno> {
        // SAFETY: the caller promises that both are null, or lists as execve(2) takes them.
        let (argv, env) = unsafe {
            let env = Strings::copy(envp)?;
            env.look()?;
            (Strings::copy(argv)?, env)
        };
        Ok(Box::new(Plan {
            texts: Vec::new(),
            argv,
            env,
            images: Vec::new(),
            images_for_loader: Vec::new(),
            scripts_outside: Vec::new(),
            ours: false,
            mounted: None,
            inherited: Inherited::default(),
            only_checks: false,
            supervision: Supervision::Absent,
        }))
    }
}

/// Runs `f` with signals held back. The hold must end before exec itself: the new program would
/// inherit the blocked signals.
fn guarded<T>(f: impl FnOnce() -> T) -> T {
    let _critical = Critical::enter();
    f()
}

/// Whether the new program takes over this process's slot. Not if that program may not open the
/// pool, because this process has become another user, and would get nothing of the pool by the
/// slot: a program that doesn't use the pool must not complain about it.
fn takes_over_slot() -> bool {
    !credentials::has_changed_user()
        || working_dir::may_be_inside()
        || inherited::any()
        || pool::is_owner(rustix::process::geteuid().as_raw())
}

/// Serves execve and execveat. Returns only if it fails.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn execve(nr: i64, a: &[i64; 6]) -> i64 {
    // SAFETY: the caller's promise. In the supervised child the arguments are copies at the same
    // addresses.
    let run = |supervision| unsafe { execute(nr, a, supervision) };
    let (result, supervision) = run(Supervision::Absent);
    if supervision != Supervision::Needed {
        return result;
    }
    supervisor::execute(|| run(Supervision::Present).0)
        .unwrap_or_else(|| run(Supervision::Refused).0)
}

/// Executes the program, if it doesn't need a supervisor that it hasn't got.
///
/// # Safety
/// The arguments are those of the program's call.
unsafe fn execute(nr: i64, a: &[i64; 6], supervision: Supervision) -> (i64, Supervision) {
    exit::publish_all();
    let at = nr == libc::SYS_execveat;
    let (dirfd, argv, envp, flags) = if at {
        (a[0] as i32, a[2], a[3], a[4] as i32)
    } else {
        (libc::AT_FDCWD, a[1], a[2], 0)
    };
    const KNOWN: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | AT_EXECVE_CHECK;
    let path = a[usize::from(at)];
    // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
    match unsafe { user::path(path) } {
        None => return (errno(Errno::FAULT), supervision),
        Some(b"") if flags & libc::AT_EMPTY_PATH == 0 => {
            return (errno(Errno::NOENT), supervision);
        }
        Some(path) if path.len() >= PATH_MAX => return (errno(Errno::NAMETOOLONG), supervision),
        Some(_) if flags & !KNOWN != 0 => return (errno(Errno::INVAL), supervision),
        Some(_) => {}
    }
    // SAFETY: the program's lists are null, or as execve(2) takes them.
    let mut plan = match guarded(|| unsafe { Plan::new(argv, envp) }) {
        Ok(plan) => plan,
        // Errors of the path come first, as in the kernel.
        Err(e) => {
            // SAFETY: `path` is the program's argument of execve.
            let seen = guarded(|| unsafe { look(dirfd, path, flags) });
            return (errno(seen.err().unwrap_or(e)), supervision);
        }
    };
    plan.only_checks = flags & AT_EXECVE_CHECK != 0;
    plan.supervision = supervision;
    // SAFETY: as above.
    let prepared = guarded(|| unsafe { prepare(&mut plan, dirfd, path, flags) });
    let mut executing = None;
    let mut of_process = None;
    if prepared.is_ok() {
        map::before_exec();
        // Publishes what other threads have written since the call at the beginning.
        exit::publish_all();
        exit::end_readers();
        // A child that shares its parent's memory must not stop the parent's threads: after exec no
        // thread would resume them.
        let shares = process::in_vfork_child() || shared_vm_clones::is_one();
        executing = (!shares).then(slots::begin_exec);
        guarded(|| environ::hand_slot(&mut plan.env, takes_over_slot()));
        of_process = pool::open_fs().and_then(|fs| fs.process().hand_on_thread_fs());
    }
    let env = plan.env.finish();
    let call = match prepared {
        Err(e) => Err(e),
        Ok(_) if !plan.ours => {
            let mut args = *a;
            args[if at { 3 } else { 2 }] = env;
            if !plan.images_for_loader.is_empty() {
                args[if at { 2 } else { 1 }] = plan.argv.finish();
            }
            Ok((nr, args))
        }
        Ok(found) => {
            let argv = plan.argv.finish();
            Ok(match plan.images.first() {
                Some(&image) => {
                    let empty = c"".as_ptr() as i64;
                    let flags = (libc::AT_EMPTY_PATH | flags & AT_EXECVE_CHECK).into();
                    (
                        libc::SYS_execveat,
                        [image.into(), empty, argv, env, flags, 0],
                    )
                }
                None if found.dirfd == libc::AT_FDCWD && flags & AT_EXECVE_CHECK == 0 => {
                    (libc::SYS_execve, [found.path, argv, env, 0, 0, 0])
                }
                None => {
                    let (dirfd, flags) = (found.dirfd.into(), (flags & AT_EXECVE_CHECK).into());
                    (libc::SYS_execveat, [dirfd, found.path, argv, env, flags, 0])
                }
            })
        }
    };
    let images = [&plan.images[..], &plan.images_for_loader].concat();
    let mounted = plan.mounted;
    let inherited = plan.inherited.clone();
    let supervision = plan.supervision;
    // A vfork child's memory is freed by its parent, once the child has ended or executed a
    // program.
    let kept = process::leave_to_parent(plan);
    let result = match call {
        Ok((nr, args)) => {
            let moved = mounted.is_some_and(|dir| cwd::go_to(dir).is_ok());
            guarded(pool::close_childs);
            // SAFETY: `kept`, or in a vfork child its parent, keeps the paths and lists.
            let result = unsafe { raw(nr, args) };
            drop(executing);
            if let (Some(before), Some(fs)) = (of_process, pool::open_fs()) {
                fs.process().take_back(before);
            }
            if let (true, Some(fs)) = (moved, pool::open_fs()) {
                guarded(|| cwd::back_to_dead_end(fs));
            }
            guarded(|| inherited.put_back());
            result
        }
        Err(e) => errno(e),
    };
    for image in images.into_iter().chain(mounted) {
        // SAFETY: the descriptor was opened for this exec, and nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(image) });
    }
    drop(kept);
    (result, supervision)
}

/// Checks the path of an execve, as far as that is possible without its other arguments.
///
/// # Errors
/// The error of the path.
///
/// # Safety
/// `path` is the program's path.
unsafe fn look(dirfd: i32, path: i64, flags: i32) -> Result<(), Errno> {
    // SAFETY: `Plan::new` gets null for both lists; the caller promises that `path` is the
    // program's.
    unsafe {
        let mut plan = Plan::new(0, 0)?;
        let found = found_by(&mut plan, dirfd, path, flags)?;
        if found.file.is_ours() {
            return Ok(());
        }
        let no_arguments = [0i64];
        let list = no_arguments.as_ptr() as i64;
        let flags = i64::from(flags & !AT_EXECVE_CHECK) | i64::from(AT_EXECVE_CHECK);
        let args = [found.dirfd.into(), found.path, list, list, flags, 0];
        match results::check(raw(libc::SYS_execveat, args)) {
            // Kernels before 6.14 don't know the flag.
            Err(Errno::INVAL) | Ok(_) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Returns the file that an execve names by path or descriptor.
unsafe fn found_by(plan: &mut Plan, dirfd: i32, path: i64, flags: i32) -> Result<Found, Errno> {
    // SAFETY: the caller passes execve's path: a bad address, or a C string that isn't freed
    // meanwhile.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && stat::is_empty(path) {
            return by_fd(plan, dirfd, path);
        }
        by_path(plan, dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
    }
}

/// Follows the chain from the named file to a program, and prepares what the kernel needs to
/// execute that program. Returns the program.
unsafe fn prepare(plan: &mut Plan, dirfd: i32, path: i64, flags: i32) -> Result<Found, Errno> {
    // SAFETY: the caller passes execve's path: a bad address, or a C string that isn't freed
    // meanwhile.
    let mut found = unsafe { found_by(plan, dirfd, path, flags)? };
    // SAFETY: as above.
    let mut shown = unsafe { shown_path(plan, dirfd, path) };
    // SAFETY: the path is the program's, or a C string that the plan keeps.
    let name = unsafe { user::path(shown) }.unwrap_or(b"").to_vec();
    for scripts in 0.. {
        let mut head = [0; HEAD];
        match found.file.read_at(&mut head, 0) {
            Err(e) if found.file.is_ours() => return Err(e),
            // If a file outside can't be read, the kernel reports the error.
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
        // SAFETY: `interpreter` is a C string that the plan keeps.
        found = unsafe { by_path(plan, libc::AT_FDCWD, interpreter, true)? };
        shown = interpreter;
    }
    if plan.ours {
        for &(dirfd, path) in &plan.scripts_outside {
            // SAFETY: the path is the program's, or a C string that the plan keeps.
            results::check(unsafe {
                // A program given by its descriptor has an empty path.
                let flags = if stat::is_empty(path) {
                    libc::AT_EACCESS | libc::AT_EMPTY_PATH
                } else {
                    libc::AT_EACCESS
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

/// Copies the program if it lies in the pool, and completes the environment.
fn finish(plan: &mut Plan, found: &Found, name: &[u8]) -> Result<(), Errno> {
    let file = &found.file;
    let elf = Elf::read(file);
    let (hints, inherits) = (
        static_binary_hint::concerns(&plan.argv, &plan.env),
        inherited::any(),
    );
    let by_valgrind = static_binary_hint::is_valgrinds(&plan.env) && working_dir::is_inside();
    let why = (hints || inherits || by_valgrind)
        .then(|| static_binary_hint::why(elf.as_ref(), found))
        .flatten();
    static_binary_hint::of_valgrind(&plan.argv, &plan.env);
    if let (true, Some(why)) = (hints, why) {
        plan.mounted = static_binary_hint::help(why, name, &plan.argv).map(IntoRawFd::into_raw_fd);
    }
    if by_valgrind && why.is_some() {
        // Valgrind itself opens the program's file, by a path that may be relative.
        plan.mounted = cwd::mounted().map(IntoRawFd::into_raw_fd);
    }
    if static_binary_hint::is_loader(found) {
        give_loader_its_program(plan)?;
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
    if elf.as_ref().is_some_and(static_binary_hint::is_for_musl) {
        environ::leave_library_out(&mut plan.env);
    }
    if elf.is_some_and(|e| e.needs(environ::ASAN)) {
        environ::let_asan_be_second(&mut plan.env);
    }
    // Forebay's command line restarts itself without this library; a program of another pool has
    // the library, but not this pool's descriptors.
    let is_blind = why.is_some() || environ::leaves_pool(&plan.env);
    if inherits && is_blind && !plan.only_checks {
        // Valgrind's own program is static; the program that valgrind runs sees the pool.
        let only = static_binary_hint::is_valgrinds(&plan.env).then_some(libc::STDERR_FILENO);
        // The parent of such a child is the process in whose memory it runs.
        let shares_memory = process::in_vfork_child() || shared_vm_clones::is_one();
        if plan.supervision == Supervision::Absent
            && !shares_memory
            && inherited::needs_courier(only)
            && !supervisor::parent_waits()
        {
            plan.supervision = Supervision::Needed;
            return Err(Errno::AGAIN);
        }
        let is_supervised = plan.supervision == Supervision::Present;
        plan.inherited = inherited::replace(name, only, is_supervised)?;
    }
    Ok(())
}

/// If glibc's loader is executed directly (by ldd, for instance), it opens its program before this
/// library is loaded. A program in the pool is therefore copied, and the loader gets the copy's
/// descriptor.
fn give_loader_its_program(plan: &mut Plan) -> Result<(), Errno> {
    const WITH_VALUE: [&[u8]; 6] = [
        b"--library-path",
        b"--inhibit-rpath",
        b"--audit",
        b"--preload",
        b"--argv0",
        b"--glibc-hwcaps-prepend",
    ];
    let mut at = 1;
    let path = loop {
        let Some(&argument) = plan.argv.pointers.get(at).filter(|&&p| p != 0) else {
            return Ok(());
        };
        // SAFETY: `argument` is a bad address, or a C string that isn't freed during the execve.
        match unsafe { user::path(argument) } {
            Some(option) if option.starts_with(b"--") => {
                at += if WITH_VALUE.contains(&option) { 2 } else { 1 };
            }
            _ => break argument,
        }
    };
    let was_ours = plan.ours;
    // SAFETY: `path` is a bad address, or a C string that isn't freed during the execve.
    let program = unsafe { by_path(plan, libc::AT_FDCWD, path, true) };
    plan.ours = was_ours;
    let Ok(program) = program.map_err(drop) else {
        return Ok(()); // The loader reports the error.
    };
    if program.file.is_ours() {
        let image = image::copy(&program.file, c"program")?;
        rustix::io::fcntl_setfd(&image, rustix::io::FdFlags::empty())?;
        let text = CString::new(format!("/proc/self/fd/{}", image.as_raw_fd()));
        plan.argv.pointers[at] = plan.argv.own(text.map_err(|_| Errno::NOMEM)?);
        plan.images_for_loader.push(image.into_raw_fd());
    }
    Ok(())
}

/// Copies a program's interpreter if it lies in the pool; None if it doesn't.
fn copy_interpreter(plan: &mut Plan, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    let path = CString::new(path).map_err(|_| Errno::NOEXEC)?;
    let pointer = path.as_ptr() as i64;
    plan.texts.push(path);
    // SAFETY: `pointer` is a C string that the plan keeps.
    let found = unsafe { by_path(plan, libc::AT_FDCWD, pointer, true)? };
    if found.file.is_ours() {
        image::copy(&found.file, c"ld.so").map(Some)
    } else {
        Ok(None)
    }
}

/// Returns the file behind a descriptor.
fn by_fd(plan: &mut Plan, fd: i32, path: i64) -> Result<Found, Errno> {
    let file = match fds::pool_file(fd) {
        Some((fs, open)) => {
            plan.ours = true;
            open_place(fs, &fs.description(open).place())?
        }
        // The kernel reads the file itself; this library only checks what the program's loader
        // needs.
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

/// Opens a file of the pool for execution; read permission isn't needed.
fn open_place(fs: &'static Fs, place: &Place) -> Result<File, Errno> {
    match place.existing()?.kind {
        libc::S_IFREG => {}
        libc::S_IFLNK => return Err(Errno::LOOP),
        _ => return Err(Errno::ACCESS),
    }
    fs.access(place, EXEC)?;
    let open = fs.open_place(place, libc::O_PATH, 0)?;
    let file = File::Pool(fs, open);
    fs.origin_gate().bring_whole(open)?;
    Ok(file)
}

fn open_kernel(dirfd: i32, path: i64, more: i32) -> Result<OwnedFd, i64> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | more;
    // SAFETY: `path` is a bad address, or a C string that the program or the plan keeps.
    let fd = unsafe {
        raw(
            libc::SYS_openat,
            [dirfd.into(), path, flags.into(), 0, 0, 0],
        )
    };
    if fd < 0 {
        return Err(fd);
    }
    // SAFETY: `fd` was just opened here, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Opens the kernel's file at an absolute path.
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

/// Returns the file at a path. Links on the path may lead out of the pool and back.
unsafe fn by_path(
    plan: &mut Plan,
    mut dirfd: i32,
    mut path: i64,
    follow: bool,
) -> Result<Found, Errno> {
    let how = if follow { Follow::Yes } else { Follow::No };
    for _ in 0..MAX_CROSSINGS {
        // SAFETY: the path is the program's, or a C string that the plan keeps.
        let to = match unsafe { locate(dirfd, path)? } {
            Where::Pool(fs, base, p) => match fs
                .resolver()
                .at(base, &p, how, |place| open_place(fs, place))
            {
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
                    match links::onwards(to, how)? {
                        Onwards::Pool(to) => to,
                        Onwards::Kernel(to) => return Ok(in_kernel(plan, to, follow)),
                    }
                }
            },
            Where::Exe(fs, p) => {
                let root = forebay_posix::ObjectId::ROOT;
                return match fs
                    .resolver()
                    .at(root, p, how, |place| open_place(fs, place))
                {
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
                // SAFETY: the path is the program's, or a C string that the plan keeps.
                let text = unsafe { user::path(path) };
                let may_lead = match &opened {
                    Err(e) => links::is_suspicious(*e),
                    Ok(_) => links::is_shadowing(),
                };
                let inside = text
                    .filter(|_| may_lead)
                    .and_then(|text| links::into_pool(dirfd, text, how));
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

/// Returns the path that a script's interpreter gets, and from which the process gets its name.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn shown_path(plan: &mut Plan, dirfd: i32, path: i64) -> i64 {
    // SAFETY: the caller promises that `path` is null or a C string.
    let given = unsafe { user::path(path) }.unwrap_or(b"");
    if !given.is_empty() && (dirfd == libc::AT_FDCWD || given[0] == b'/') {
        return path;
    }
    // SAFETY: F_GETFD takes no pointer.
    let cloexec = unsafe {
        raw(
            libc::SYS_fcntl,
            [dirfd.into(), libc::F_GETFD.into(), 0, 0, 0, 0],
        )
    };
    let mut text = format!("/dev/fd/{dirfd}").into_bytes();
    // A directory's path, or the path of a file whose descriptor exec closes, replaces `/dev/fd/N`.
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

/// Returns the interpreter in a script's first line, and its argument, by Linux's rules. None: the
/// line is empty, or the interpreter's name doesn't end within the head.
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
