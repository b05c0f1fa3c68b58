//! The handler of all intercepted system calls, which passes each to the function that serves it.
//!
//! Calls that don't concern the pool return [`PASS`] and are made by the trampoline with
//! the program's own registers.

#![allow(
    non_upper_case_globals,
    reason = "the names of system calls are libc's"
)]

use crate::counted::counted;
use crate::lifecycle::{exec, exit, fork, waits};
use crate::paths::{PathCall, links};
use crate::pool::{fds, stand_in, umask};
use crate::program::results::errno;
use crate::program::{filter, mask, shared_vm_clones, signals};
use crate::served::{
    aio, attributes, copies, credentials, cwd, fd_table, inotify, io, leases, limits, loading,
    locks, names, nodes, openat2, passing, poll, refuse, seccomp, stat,
};
use crate::{calls, map};
use forebay_intercept::{Call, FOLLOW, Hooks, PASS, WATCH, has};
use forebay_posix::Errno;
use forebay_store::process::Critical;
use libc::*;

// Missing in the libc crate, or without a name for x86-64 there.
const io_pgetevents: i64 = 333;
const setxattrat: i64 = 463;
const removexattrat: i64 = 466;

/// The hooks that this library installs.
pub static HOOKS: Hooks = Hooks {
    syscall: on_call,
    failed: on_failed,
    clone_before: fork::before_clone,
    clone_after: fork::after_clone,
    wanted: &calls::WANTED,
    by_fd: &calls::BY_FD,
    fd_filter: filter::FILTER.as_ptr().cast(),
    fd_filter_len: forebay_store::MAX_FDS,
};

unsafe extern "C-unwind" fn on_call(call: &Call) -> i64 {
    let _inside = shared_vm_clones::any().then(shared_vm_clones::enter);
    // SAFETY: the hook is called only with a system call that the program is making.
    unsafe { handle(call) }
}

#[inline(never)]
unsafe fn handle(call: &Call) -> i64 {
    // SAFETY: returns the address of this thread's errno, which is valid while the thread runs.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: as above. The value is saved because functions of libc below may change it.
    let saved = unsafe { *errno_at };
    // No signal handler may run, and the thread can't be cancelled, in the middle of a short call.
    let fd = call.args[0] as i32;
    let short = has(&calls::SHORT, call.nr) && filter::watched(fd) && !filter::is_inotify(fd);
    let critical = short.then(Critical::enter);
    // SAFETY: the caller passes a call that the program is making.
    let result = counted(call.nr, &call.args, || unsafe {
        answer(call.nr, &call.args, 0)
    });
    drop(critical);
    if result == -i64::from(EFBIG) {
        limits::exceeded();
    }
    // SAFETY: `errno_at` is the address of this thread's errno.
    unsafe { *errno_at = saved };
    if result == PASS && has(&links::WATCHED, call.nr) {
        // SAFETY: the caller passes a call that the program is making.
        return unsafe { links::around_the_shadowed(call) }.unwrap_or(WATCH);
    }
    result
}

/// Treats the result of a call that was made in the kernel: a failed call on a path, or a call that
/// has waited for a child. Returns the result for the program.
unsafe extern "C-unwind" fn on_failed(call: &Call, result: i64) -> i64 {
    let _inside = shared_vm_clones::any().then(shared_vm_clones::enter);
    // SAFETY: the hook is called only with a system call that the program has made.
    unsafe { look_again(call, result) }
}

#[inline(never)]
unsafe fn look_again(call: &Call, result: i64) -> i64 {
    // SAFETY: returns the address of this thread's errno, which is valid while the thread runs.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: as above; the call is the program's.
    unsafe {
        let saved = *errno_at;
        let result = match call.nr {
            SYS_wait4 | SYS_waitid => waits::after(call, result),
            _ => links::again(call, result, 0),
        };
        *errno_at = saved;
        result
    }
}

/// Serves a call. `crossings` counts how often its path has gone into the pool and out of it again.
///
/// # Safety
/// The arguments are those of a system call of the program: their pointers are valid for it.
pub unsafe fn answer(nr: i64, a: &[i64; 6], crossings: u32) -> i64 {
    const AT: Option<usize> = Some(0);
    let p = PathCall {
        nr,
        args: a,
        crossings,
    };
    // SAFETY: the caller passes the arguments of a call that the program is making.
    unsafe {
        if has(&calls::NEED_FILE, nr) && fds::is_path_only(a[0] as i32) {
            return errno(Errno::BADF);
        }
        // The table of all calls that this library serves, by theme.
        match nr {
            // Bytes of open files.
            SYS_read => io::read(a, None),
            SYS_write => io::write(a, None),
            SYS_pread64 => io::read(a, Some(a[3])),
            SYS_pwrite64 => io::write(a, Some(a[3])),
            SYS_readv => io::vector(a, None, 0, false),
            SYS_writev => io::vector(a, None, 0, true),
            SYS_preadv | SYS_pwritev if a[3] < 0 => errno(Errno::INVAL),
            SYS_preadv => io::vector(a, Some(a[3]), 0, false),
            SYS_pwritev => io::vector(a, Some(a[3]), 0, true),
            SYS_preadv2 => io::vector(a, Some(a[3]), a[5], false),
            SYS_pwritev2 => io::vector(a, Some(a[3]), a[5], true),
            SYS_lseek => io::lseek(a),
            SYS_close => io::close(a),
            SYS_fstat => stat::fstat(a),
            // Opening, and what a path leads to.
            SYS_open | SYS_creat => leases::until_free(|| names::open(p, None, 0)),
            SYS_openat => leases::until_free(|| names::open(p, AT, 1)),
            SYS_openat2 => leases::until_free(|| openat2::open(p)),
            SYS_stat | SYS_lstat => stat::stat(p),
            SYS_newfstatat => stat::fstatat(p),
            SYS_statx => stat::statx(p),
            SYS_statfs => stat::statfs(p),
            SYS_fstatfs => stat::fstatfs(a),
            SYS_getdents | SYS_getdents64 => stat::getdents(nr, a),
            SYS_access => attributes::access(p, None, 0),
            SYS_faccessat | SYS_faccessat2 => attributes::access(p, AT, 1),
            // The working directory, and names.
            SYS_getcwd => cwd::getcwd(a),
            SYS_chdir => cwd::chdir(p),
            SYS_fchdir => cwd::fchdir(a),
            SYS_mkdir => names::mkdir(p, None, 0),
            SYS_mkdirat => names::mkdir(p, AT, 1),
            SYS_mknod => names::mknod(p, None, 0),
            SYS_mknodat => names::mknod(p, AT, 1),
            SYS_rmdir | SYS_unlink => names::unlink(p, None, 0),
            SYS_unlinkat => names::unlink(p, AT, 1),
            SYS_rename | SYS_renameat | SYS_renameat2 => names::rename(p),
            SYS_link | SYS_linkat => names::link(p),
            SYS_symlink => names::symlink(p, None, 1),
            SYS_symlinkat => names::symlink(p, Some(1), 2),
            SYS_readlink => names::readlink(p, None, 0),
            SYS_readlinkat => names::readlink(p, AT, 1),
            // Attributes and sizes.
            SYS_chmod => attributes::chmod(p, None, 0),
            SYS_fchmodat | calls::FCHMODAT2 => attributes::chmod(p, AT, 1),
            SYS_fchmod => attributes::fchmod(a),
            SYS_chown | SYS_lchown => attributes::chown(p, None, 0),
            SYS_fchownat => attributes::chown(p, AT, 1),
            SYS_fchown => attributes::fchown(a),
            SYS_utime | SYS_utimes => attributes::utimes(p, None, 0),
            SYS_futimesat => attributes::utimes(p, AT, 1),
            SYS_utimensat => attributes::utimensat(p),
            SYS_umask => umask::set(a[0]),
            SYS_truncate => leases::until_free(|| attributes::truncate(p)),
            SYS_ftruncate => io::ftruncate(a),
            SYS_getxattr | SYS_setxattr | SYS_listxattr | SYS_removexattr => {
                attributes::path_xattr(p, false)
            }
            SYS_lgetxattr | SYS_lsetxattr | SYS_llistxattr | SYS_lremovexattr => {
                attributes::path_xattr(p, true)
            }
            SYS_fgetxattr | SYS_fsetxattr | SYS_flistxattr | SYS_fremovexattr => {
                attributes::fd_xattr(nr, a)
            }
            // Durability, advice, room.
            SYS_fsync | SYS_fdatasync => io::fsync(a),
            SYS_syncfs => io::syncfs(a),
            SYS_sync_file_range => io::sync_file_range(a),
            SYS_readahead => io::readahead(a),
            SYS_fadvise64 => io::advise(a),
            SYS_fallocate => io::fallocate(a),
            // Descriptors, and copies from one to another.
            SYS_fcntl => io::fcntl(a),
            SYS_ioctl => io::ioctl(a),
            SYS_flock => locks::flock(a),
            SYS_dup => fd_table::dup(a),
            SYS_dup2 => fd_table::dup_onto(nr, a, 0),
            SYS_dup3 => fd_table::dup_onto(nr, a, a[2]),
            SYS_close_range => fd_table::close_range(a[0] as u32, a[1] as u32, a[2] as u32),
            SYS_sendfile => copies::sendfile(a),
            SYS_copy_file_range => copies::copy_file_range(a),
            SYS_splice => copies::splice(a),
            // Memory.
            SYS_mmap if loading::is_code(a) => loading::mmap(a),
            SYS_mmap => map::mmap(a),
            SYS_munmap => map::munmap(a),
            SYS_mremap => map::mremap(a),
            SYS_msync => map::msync(a),
            SYS_mprotect | SYS_pkey_mprotect => map::mprotect(a),
            SYS_madvise => map::madvise(a),
            SYS_mlock | SYS_mlock2 => map::mlock(a),
            SYS_remap_file_pages => map::remap_file_pages(a),
            // Watching, and calls that are refused.
            SYS_inotify_init | SYS_inotify_init1 => inotify::init(nr, a),
            SYS_inotify_add_watch => inotify::add_watch(p),
            SYS_inotify_rm_watch => inotify::rm_watch(a),
            SYS_chroot => refuse::chroot(p),
            SYS_mount => refuse::mount(p),
            SYS_umount2 => refuse::umount(p),
            // Sockets' calls on a file of the pool, which isn't a socket.
            SYS_bind | SYS_connect | SYS_sendto | SYS_getsockname | SYS_getpeername
            | SYS_sendmsg | SYS_sendmmsg | SYS_recvmsg | SYS_recvmmsg
                if fds::pool_file(a[0] as i32).is_some() =>
            {
                stand_in::call(nr, a, &[0])
            }
            // Sockets, waiting, passing descriptors.
            SYS_bind => nodes::bind(a),
            SYS_connect => nodes::connect(a),
            SYS_poll | SYS_ppoll => poll::poll(nr, a),
            SYS_select | SYS_pselect6 => poll::select(nr, a),
            SYS_epoll_ctl => stand_in::call(nr, a, &[0, 2]),
            SYS_tee => stand_in::call(nr, a, &[0, 1]),
            SYS_sync => io::sync(),
            setxattrat..=removexattrat => attributes::xattr_at(p),
            SYS_sendto => nodes::send_to(a),
            SYS_getsockname | SYS_getpeername => nodes::name(nr, a),
            SYS_sendmsg => passing::send(a),
            SYS_sendmmsg => passing::send_many(a),
            SYS_recvmsg => passing::receive(a),
            SYS_recvmmsg => passing::receive_many(a),
            SYS_pidfd_getfd => passing::from_process(a),
            SYS_kcmp => fds::compare(a),
            // Limits, asynchronous I/O.
            SYS_setrlimit | SYS_prlimit64 => limits::change(nr, a),
            SYS_io_uring_setup => errno(Errno::NOSYS),
            SYS_io_setup => aio::setup(a),
            SYS_io_destroy => aio::destroy(a),
            SYS_io_submit => aio::submit(a),
            SYS_io_cancel => aio::cancel(a),
            SYS_io_getevents | io_pgetevents => aio::events(nr, a),
            // Processes: credentials, programs, children, signals.
            SYS_prctl | SYS_seccomp => {
                seccomp::before_filter(nr, a);
                PASS
            }
            SYS_unshare => credentials::unshare(a),
            SYS_setns => credentials::setns(a),
            SYS_landlock_add_rule => refuse::landlock(a),
            SYS_execve | SYS_execveat => exec::execve(nr, a),
            SYS_wait4 | SYS_waitid => FOLLOW,
            SYS_rt_sigaction => signals::sigaction(a),
            SYS_rt_sigprocmask => mask::sigprocmask(a),
            SYS_exit_group => {
                exit::before_exit();
                PASS
            }
            SYS_setuid | SYS_setgid | SYS_setreuid | SYS_setregid | SYS_setresuid
            | SYS_setresgid | SYS_setgroups | SYS_setfsuid | SYS_setfsgid | SYS_capset => {
                credentials::change(nr, a)
            }
            // The rest of the calls of `calls.rs`, by their way.
            _ if has(&calls::REFUSE_PATH, nr) => refuse::path(p),
            _ if has(&calls::REFUSE_FD, nr) => refuse::descriptor(a),
            _ if has(&calls::NO_FILE, nr) => stand_in::call(nr, a, &[0]),
            _ => PASS,
        }
    }
}
