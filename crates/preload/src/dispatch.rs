//! The one handler of all intercepted system calls: which call is answered where.
//!
//! Calls that don't concern the pool return [`PASS`] and are made by the trampoline with
//! the program's own registers.

// The names of system calls are libc's.
#![allow(non_upper_case_globals)]

use crate::paths::{PathCall, errno};
use crate::{
    attributes, exec, fds, io, limits, locks, map, names, nodes, paths, poll, process, runtime,
    signals, stat,
};
use forebay_intercept::{Call, Hooks, PASS, bitmap, has, raw};
use forebay_posix::Errno;
use forebay_store::process::Critical;
use libc::*;

const FCHMODAT2: i64 = 452;

/// Calls whose first argument is a descriptor, and that concern us only if it is watched.
static BY_FD: [u64; 8] = bitmap(&[
    SYS_read,
    SYS_write,
    SYS_close,
    SYS_fstat,
    SYS_lseek,
    SYS_ioctl,
    SYS_pread64,
    SYS_pwrite64,
    SYS_readv,
    SYS_writev,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_dup,
    SYS_fcntl,
    SYS_flock,
    SYS_fsync,
    SYS_fdatasync,
    SYS_syncfs,
    SYS_sync_file_range,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_getdents,
    SYS_getdents64,
    SYS_fchmod,
    SYS_fchown,
    SYS_fstatfs,
    SYS_fgetxattr,
    SYS_fsetxattr,
    SYS_flistxattr,
    SYS_fremovexattr,
    SYS_readahead,
    SYS_fadvise64,
]);

/// Those of them that never wait for anything outside the pool.
static SHORT: [u64; 8] = {
    let mut map = BY_FD;
    let waiting = bitmap(&[SYS_fcntl, SYS_flock]);
    let mut i = 0;
    while i < 8 {
        map[i] &= !waiting[i];
        i += 1;
    }
    map
};

/// All calls that may concern us.
static WANTED: [u64; 8] = {
    let mut map = bitmap(&[
        SYS_open,
        SYS_openat,
        SYS_openat2,
        SYS_creat,
        SYS_stat,
        SYS_lstat,
        SYS_newfstatat,
        SYS_statx,
        SYS_statfs,
        SYS_access,
        SYS_faccessat,
        SYS_faccessat2,
        SYS_getcwd,
        SYS_chdir,
        SYS_fchdir,
        SYS_mkdir,
        SYS_mkdirat,
        SYS_rmdir,
        SYS_unlink,
        SYS_unlinkat,
        SYS_rename,
        SYS_renameat,
        SYS_renameat2,
        SYS_link,
        SYS_linkat,
        SYS_symlink,
        SYS_symlinkat,
        SYS_readlink,
        SYS_readlinkat,
        SYS_chmod,
        SYS_fchmodat,
        FCHMODAT2,
        SYS_chown,
        SYS_lchown,
        SYS_fchownat,
        SYS_utime,
        SYS_utimes,
        SYS_futimesat,
        SYS_utimensat,
        SYS_mknod,
        SYS_mknodat,
        SYS_umask,
        SYS_truncate,
        SYS_bind,
        SYS_connect,
        SYS_getxattr,
        SYS_lgetxattr,
        SYS_setxattr,
        SYS_lsetxattr,
        SYS_listxattr,
        SYS_llistxattr,
        SYS_removexattr,
        SYS_lremovexattr,
        SYS_dup2,
        SYS_dup3,
        SYS_close_range,
        SYS_sendfile,
        SYS_copy_file_range,
        SYS_splice,
        SYS_mmap,
        SYS_munmap,
        SYS_mremap,
        SYS_msync,
        SYS_poll,
        SYS_ppoll,
        SYS_select,
        SYS_pselect6,
        SYS_epoll_ctl,
        SYS_inotify_add_watch,
        SYS_name_to_handle_at,
        SYS_chroot,
        SYS_execve,
        SYS_execveat,
        SYS_rt_sigaction,
        SYS_exit_group,
        SYS_setuid,
        SYS_setgid,
        SYS_setreuid,
        SYS_setregid,
        SYS_setresuid,
        SYS_setresgid,
        SYS_setgroups,
        SYS_setfsuid,
        SYS_setfsgid,
        SYS_setrlimit,
        SYS_prlimit64,
    ]);
    let mut i = 0;
    while i < 8 {
        map[i] |= BY_FD[i];
        i += 1;
    }
    map
};

/// What the interception calls.
pub static HOOKS: Hooks = Hooks {
    syscall: on_call,
    clone_before: process::before_clone,
    clone_after: process::after_clone,
    wanted: &WANTED,
    by_fd: &BY_FD,
    fd_filter: fds::FILTER.as_ptr().cast(),
    fd_filter_len: forebay_store::MAX_FDS,
};

unsafe extern "C-unwind" fn on_call(call: &Call) -> i64 {
    // SAFETY: the calling thread's errno; libc functions below may change it.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno_at };
    // No signal handler, and no cancellation of the thread, in the midst of our work.
    let short = has(&SHORT, call.nr) && fds::watched(call.args[0] as i32);
    let critical = short.then(Critical::enter);
    // SAFETY: a system call that the program is making.
    let result = unsafe { answer(call.nr, &call.args) };
    drop(critical);
    if result == -i64::from(EFBIG) {
        limits::exceeded();
    }
    // SAFETY: as above.
    unsafe { *errno_at = saved };
    result
}

/// # Safety
/// The arguments are those of a system call of the program: pointers are valid for it.
unsafe fn answer(nr: i64, a: &[i64; 6]) -> i64 {
    const AT: Option<usize> = Some(0);
    let p = PathCall { nr, args: a };
    // SAFETY: the caller's promise covers every call below.
    unsafe {
        match nr {
            SYS_read => io::read(a, None),
            SYS_write => io::write(a, None),
            SYS_pread64 => io::read(a, Some(a[3])),
            SYS_pwrite64 => io::write(a, Some(a[3])),
            SYS_readv => io::vector(a, None, 0, false),
            SYS_writev => io::vector(a, None, 0, true),
            SYS_preadv => io::vector(a, Some(a[3]), 0, false),
            SYS_pwritev => io::vector(a, Some(a[3]), 0, true),
            SYS_preadv2 => io::vector(a, Some(a[3]), a[5], false),
            SYS_pwritev2 => io::vector(a, Some(a[3]), a[5], true),
            SYS_lseek => io::lseek(a),
            SYS_close => close(a),
            SYS_fstat => stat::fstat(a),
            SYS_open | SYS_creat => names::open(p, None, 0),
            SYS_openat => names::open(p, AT, 1),
            SYS_openat2 => names::openat2(a),
            SYS_stat | SYS_lstat => stat::stat(p),
            SYS_newfstatat => stat::fstatat(p),
            SYS_statx => stat::statx(p),
            SYS_statfs => stat::statfs(p),
            SYS_fstatfs => stat::fstatfs(a),
            SYS_getdents | SYS_getdents64 => stat::getdents(nr, a),
            SYS_access => attributes::access(p, None, 0),
            SYS_faccessat | SYS_faccessat2 => attributes::access(p, AT, 1),
            SYS_getcwd => names::getcwd(a),
            SYS_chdir => names::chdir(p),
            SYS_fchdir => names::fchdir(a),
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
            SYS_chmod => attributes::chmod(p, None, 0),
            SYS_fchmodat | FCHMODAT2 => attributes::chmod(p, AT, 1),
            SYS_fchmod => attributes::fchmod(a),
            SYS_chown | SYS_lchown => attributes::chown(p, None, 0),
            SYS_fchownat => attributes::chown(p, AT, 1),
            SYS_fchown => attributes::fchown(a),
            SYS_utime | SYS_utimes => attributes::utimes(p, None, 0),
            SYS_futimesat => attributes::utimes(p, AT, 1),
            SYS_utimensat => attributes::utimensat(p),
            SYS_umask => paths::set_umask(a[0]),
            SYS_truncate => attributes::truncate(p),
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
            SYS_fsync | SYS_fdatasync | SYS_syncfs | SYS_sync_file_range => io::fsync(a),
            SYS_readahead | SYS_fadvise64 => io::advise(a),
            SYS_fallocate => io::fallocate(a),
            SYS_fcntl => io::fcntl(a),
            SYS_ioctl => io::ioctl(a),
            SYS_flock => flock(a),
            SYS_dup => dup(a),
            SYS_dup2 => dup_onto(nr, a, 0),
            SYS_dup3 => dup_onto(nr, a, a[2]),
            SYS_close_range => fds::close_range(a[0] as u32, a[1] as u32, a[2] as u32),
            SYS_sendfile => io::sendfile(a),
            SYS_copy_file_range => io::copy_file_range(a),
            SYS_splice => io::splice(a),
            SYS_mmap => map::mmap(a),
            SYS_munmap => map::munmap(a),
            SYS_mremap => map::mremap(a),
            SYS_msync => map::msync(a),
            SYS_bind => nodes::bind(a),
            SYS_connect => nodes::connect(a),
            SYS_poll | SYS_ppoll => poll::poll(nr, a),
            SYS_select | SYS_pselect6 => poll::select(nr, a),
            SYS_epoll_ctl => poll::epoll_ctl(a),
            // What a pool can't do is refused, not done wrongly.
            SYS_inotify_add_watch => refuse(p, None, 1),
            SYS_name_to_handle_at => refuse(p, AT, 1),
            SYS_chroot => refuse(p, None, 0),
            SYS_execve | SYS_execveat => exec::execve(nr, a),
            SYS_rt_sigaction => signals::sigaction(a),
            SYS_exit_group => {
                process::before_exit();
                PASS
            }
            SYS_setuid | SYS_setgid | SYS_setreuid | SYS_setregid | SYS_setresuid
            | SYS_setresgid | SYS_setgroups | SYS_setfsuid | SYS_setfsgid => credentials(nr, a),
            SYS_setrlimit | SYS_prlimit64 => limits::change(nr, a),
            _ => PASS,
        }
    }
}

fn close(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    if fds::watched(fd) {
        paths::value(fds::close(fd))
    } else {
        PASS
    }
}

unsafe fn dup(a: &[i64; 6]) -> i64 {
    // SAFETY: the program's own call.
    let new = unsafe { raw(SYS_dup, *a) };
    if new < 0 {
        return new;
    }
    paths::value(fds::duplicated(a[0] as i32, new as i32))
}

fn dup_onto(nr: i64, a: &[i64; 6], flags: i64) -> i64 {
    let (old, new) = (a[0] as i32, a[1] as i32);
    if fds::watched(old) || fds::watched(new) {
        fds::dup_onto(nr, old, new, flags)
    } else {
        PASS
    }
}

fn flock(a: &[i64; 6]) -> i64 {
    match fds::pool_file(a[0] as i32) {
        Some((fs, open)) => locks::flock(fs, open, a[1]),
        None => PASS,
    }
}

/// EOPNOTSUPP for a path of the pool.
unsafe fn refuse(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let base = dirfd.map_or(AT_FDCWD, |i| p.args[i] as i32);
    // SAFETY: the program's path.
    match unsafe { paths::locate(base, p.args[path]) } {
        Ok(paths::Where::Kernel) => PASS,
        Ok(_) => errno(Errno::OPNOTSUPP),
        Err(e) => errno(e),
    }
}

/// A change of user or groups.
unsafe fn credentials(nr: i64, a: &[i64; 6]) -> i64 {
    // Another user may not be able to open the pool's files.
    runtime::open_all();
    // SAFETY: the program's own call.
    let result = unsafe { raw(nr, *a) };
    if let Some(fs) = runtime::open_fs() {
        fs.refresh_credentials();
    }
    result
}
