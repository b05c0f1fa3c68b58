//! The table of all system calls: which are intercepted, and how each is handled.
//!
//! One line for each call of Linux 6.18 on x86-64: number, [`Way`], what happens with paths and
//! descriptors of the pool, and the test that shows it. The interception's lists ([`WANTED`],
//! [`BY_FD`], ...) and `docs/reference/syscalls.md` are both made from this table.

use Way::*;

/// Number of fchmodat2, which the libc crate doesn't name for x86-64.
pub const FCHMODAT2: i64 = 452;

/// How a call is handled. A pool descriptor is a descriptor of a file of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The kernel handles it unchanged. A call that reads or writes a pool descriptor gets EBADF.
    Kernel,
    /// The kernel handles it, with work of this library before and after: the call makes a process.
    Clone,
    /// This library handles it.
    Ours,
    /// This library handles it if the first argument is a descriptor that it watches.
    Fd,
    /// As [`Fd`]; EBADF if the descriptor was opened with O_PATH.
    Io,
    /// As [`Fd`]; but the call may wait for other processes, so the dispatcher doesn't hold signals
    /// back during the call.
    Wait,
    /// EOPNOTSUPP for a path of the pool. Indices of two arguments: the directory's descriptor
    /// (None: the call has none), and the path.
    NoPath(Option<usize>, usize),
    /// EOPNOTSUPP if the first argument is a pool descriptor.
    NoFd,
    /// For calls on sockets, timers and so on: if the first argument is a pool descriptor, the
    /// kernel's error for a regular file is returned.
    NoFile,
}

/// One call.
pub struct Call {
    pub nr: i64,
    #[cfg(test)]
    pub name: &'static str,
    pub way: Way,
    /// Effect of the call on paths and descriptors of the pool. Empty: the call never concerns the
    /// pool.
    #[cfg(test)]
    pub what: &'static str,
    /// The test that shows `what`; empty: there is none.
    #[cfg(test)]
    pub test: &'static str,
}

macro_rules! calls {
    ($($name:ident $nr:literal $way:expr, $what:literal, $test:literal;)*) => {
        /// All system calls in the table.
        pub static CALLS: &[Call] = &[$(Call {
            nr: $nr,
            #[cfg(test)]
            name: stringify!($name),
            way: $way,
            #[cfg(test)]
            what: $what,
            #[cfg(test)]
            test: $test,
        }),*];
    };
}

const AT: Option<usize> = Some(0);

calls! {
    open 2 Ours, "served", "c-names";
    openat 257 Ours, "served", "c-names";
    openat2 437 Ours, "served, with all RESOLVE_ flags; RESOLVE_CACHED is EAGAIN", "c-names";
    creat 85 Ours, "served", "c-names";
    close 3 Fd, "served; of our own descriptors EBADF", "c-descriptors";
    close_range 436 Ours, "served; leaves our own descriptors open; CLOSE_RANGE_UNSHARE as plain", "c-descriptors";
    dup 32 Fd, "served", "c-descriptors";
    dup2 33 Ours, "served", "c-descriptors";
    dup3 292 Ours, "served", "c-descriptors";
    fcntl 72 Wait, "served: F_DUPFD, F_DUPFD_CLOEXEC, F_DUPFD_QUERY, F_CREATED_QUERY, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW and the same for F_OFD_, owner and signal, life-time hints (not kept), F_GETLEASE, F_SETLEASE (EINVAL in pools of several nodes); EINVAL: seals, F_NOTIFY; EBADF: sizes of pipes", "c-descriptors";
    ioctl 16 Io, "served: FIOCLEX, FIONCLEX, FIONBIO, FIOASYNC, FIONREAD, FIOQSIZE, FIGETBSZ; EOPNOTSUPP: FICLONE, FICLONERANGE, FIDEDUPERANGE, FS_IOC_FIEMAP; else ENOTTY. Cloning from the pool to outside is EBADF", "c-descriptors";
    flock 73 Wait, "served by the store", "locks";
    poll 7 Ours, "served: files of the pool are always ready", "c-descriptors";
    ppoll 271 Ours, "as poll", "c-descriptors";
    select 23 Ours, "as poll", "c-descriptors";
    pselect6 270 Ours, "as poll", "c-descriptors";
    epoll_ctl 233 Ours, "EPERM, as for regular files elsewhere", "c-descriptors";
    epoll_wait 232 NoFile, "EINVAL", "c-odd";
    epoll_pwait 281 NoFile, "EINVAL", "";
    epoll_pwait2 441 NoFile, "EINVAL", "";
    signalfd 282 NoFile, "EINVAL", "";
    signalfd4 289 NoFile, "EINVAL", "";
    timerfd_settime 286 NoFile, "EINVAL", "c-odd";
    timerfd_gettime 287 NoFile, "EINVAL", "";

    read 0 Fd, "served", "c-data";
    write 1 Fd, "served", "c-data";
    pread64 17 Fd, "served", "c-data";
    pwrite64 18 Fd, "served", "c-data";
    readv 19 Fd, "served", "c-data";
    writev 20 Fd, "served", "c-data";
    preadv 295 Fd, "served", "c-data";
    pwritev 296 Fd, "served", "c-data";
    preadv2 327 Fd, "served: RWF_HIPRI has no effect; RWF_NOWAIT, RWF_DONTCACHE, RWF_ATOMIC are EOPNOTSUPP, as on tmpfs", "c-data";
    pwritev2 328 Fd, "as preadv2; RWF_APPEND, RWF_NOAPPEND, RWF_DSYNC, RWF_SYNC are served", "c-data";
    lseek 8 Fd, "served, with SEEK_DATA and SEEK_HOLE", "c-data";
    sendfile 40 Ours, "served with either end in the pool", "c-data";
    copy_file_range 326 Ours, "served inside the pool; EXDEV between the pool and outside", "c-data";
    splice 275 Ours, "served between a pipe and a file of the pool", "c-data";
    tee 276 Ours, "EINVAL: no pipe", "c-odd";
    vmsplice 278 NoFile, "EBADF: no pipe", "c-odd";
    truncate 76 Ours, "served", "c-data";
    ftruncate 77 Fd, "served", "c-data";
    fallocate 285 Io, "served: allocate, keep size, punch hole, zero range; the rest is EOPNOTSUPP", "c-data";
    fsync 74 Io, "served: see semantics.md, Durability", "c-data";
    fdatasync 75 Io, "as fsync", "c-data";
    sync_file_range 277 Io, "as fsync", "c-data";
    syncfs 306 Io, "writes back all that is open in the pool, then as fsync", "c-data";
    sync 162 Ours, "as syncfs, if the process has the pool open; then the kernel's", "c-data";
    readahead 187 Io, "nothing to do: 0", "c-data";
    fadvise64 221 Io, "nothing to do: 0", "c-data";
    cachestat 451 NoFd, "refused: the pool isn't in the page cache", "";

    mmap 9 Ours, "served: see semantics.md, Memory mapping", "mmap-calls";
    munmap 11 Ours, "served", "mmap-calls";
    mremap 25 Ours, "served, with all flags; old size 0 duplicates", "mmap-calls";
    msync 26 Ours, "served; MS_SYNC as fsync", "mmap-calls";
    mprotect 10 Ours, "the kernel's; EACCES against the descriptor's access mode", "mmap-calls";
    madvise 28 Ours, "MADV_REMOVE and MADV_POPULATE_ are served; the rest is the kernel's", "mmap-calls";
    mincore 27 Kernel, "", "";
    mlock 149 Ours, "fills holes first, then the kernel's", "mmap-calls";
    mlock2 325 Ours, "as mlock", "";
    munlock 150 Kernel, "", "";
    mlockall 151 Kernel, "", "";
    munlockall 152 Kernel, "", "";
    mseal 462 Kernel, "", "";
    remap_file_pages 216 Ours, "served on shared mappings", "";
    pkey_mprotect 329 Ours, "as mprotect", "";
    pkey_alloc 330 Kernel, "", "";
    pkey_free 331 Kernel, "", "";
    map_shadow_stack 453 Kernel, "", "";
    brk 12 Kernel, "", "";

    stat 4 Ours, "served", "c-names";
    lstat 6 Ours, "served", "c-names";
    fstat 5 Fd, "served", "c-descriptors";
    newfstatat 262 Ours, "served", "c-names";
    statx 332 Ours, "served; no mount id, no attributes", "c-names";
    statfs 137 Ours, "served", "c-names";
    fstatfs 138 Fd, "served", "c-descriptors";
    ustat 136 Kernel, "EINVAL: a pool is no device", "";
    statmount 457 Kernel, "a pool is no mount", "";
    listmount 458 Kernel, "a pool is no mount", "";
    getdents 78 Io, "served", "c-names";
    getdents64 217 Io, "served", "c-names";
    access 21 Ours, "served, for the real user", "thread-credentials";
    faccessat 269 Ours, "as access", "c-names";
    faccessat2 439 Ours, "as access; AT_EACCESS: for the effective user", "c-names";
    chmod 90 Ours, "served", "c-names";
    fchmod 91 Io, "served", "c-descriptors";
    fchmodat 268 Ours, "served", "c-names";
    fchmodat2 452 Ours, "served", "c-names";
    chown 92 Ours, "served", "c-names";
    lchown 94 Ours, "served", "c-names";
    fchown 93 Io, "served", "c-descriptors";
    fchownat 260 Ours, "served", "c-names";
    utime 132 Ours, "served", "c-names";
    utimes 235 Ours, "served", "c-names";
    futimesat 261 Ours, "served", "c-names";
    utimensat 280 Ours, "served", "c-names";
    umask 95 Ours, "served", "coreutils-attrs";
    setxattr 188 Ours, "served: user.*; root also trusted.*, security.*; else EOPNOTSUPP", "coreutils-xattrs";
    lsetxattr 189 Ours, "as setxattr", "coreutils-xattrs";
    fsetxattr 190 Fd, "as setxattr", "coreutils-xattrs";
    getxattr 191 Ours, "as setxattr", "coreutils-xattrs";
    lgetxattr 192 Ours, "as setxattr", "coreutils-xattrs";
    fgetxattr 193 Fd, "as setxattr", "coreutils-xattrs";
    listxattr 194 Ours, "served", "coreutils-xattrs";
    llistxattr 195 Ours, "served", "coreutils-xattrs";
    flistxattr 196 Fd, "served", "coreutils-xattrs";
    removexattr 197 Ours, "served", "coreutils-xattrs";
    lremovexattr 198 Ours, "served", "coreutils-xattrs";
    fremovexattr 199 Fd, "served", "coreutils-xattrs";
    setxattrat 463 Ours, "as setxattr", "c-names";
    getxattrat 464 Ours, "as setxattr", "c-names";
    listxattrat 465 Ours, "served", "c-names";
    removexattrat 466 Ours, "served", "c-names";
    file_getattr 468 NoPath(AT, 1), "refused", "c-refused";
    file_setattr 469 NoPath(AT, 1), "refused", "c-refused";

    mkdir 83 Ours, "served", "c-names";
    mkdirat 258 Ours, "served", "c-names";
    rmdir 84 Ours, "served", "c-names";
    unlink 87 Ours, "served", "c-names";
    unlinkat 263 Ours, "served", "c-names";
    rename 82 Ours, "served; EXDEV between the pool and outside", "c-names";
    renameat 264 Ours, "as rename", "c-names";
    renameat2 316 Ours, "as rename, with RENAME_NOREPLACE and RENAME_EXCHANGE; RENAME_WHITEOUT is EINVAL", "c-names";
    link 86 Ours, "served; EXDEV between the pool and outside", "c-names";
    linkat 265 Ours, "as link; also of an O_TMPFILE, by AT_EMPTY_PATH and by /proc/self/fd", "c-names";
    symlink 88 Ours, "served", "c-names";
    symlinkat 266 Ours, "served", "c-names";
    readlink 89 Ours, "served, also of /proc/self/fd/N and /proc/self/cwd", "c-names";
    readlinkat 267 Ours, "as readlink", "c-names";
    mknod 133 Ours, "served; devices are names that can't be opened", "c-names";
    mknodat 259 Ours, "as mknod", "c-names";
    chdir 80 Ours, "served", "c-names";
    fchdir 81 Ours, "served", "c-names";
    getcwd 79 Ours, "served", "c-names";
    chroot 161 Ours, "refused: the kernel's errors first, then EOPNOTSUPP. After one to a directory outside, paths under the prefix still lead into the pool", "c-refused";

    execve 59 Ours, "served: from a copy in memory; scripts by their interpreter", "exec";
    execveat 322 Ours, "as execve", "exec";
    wait4 61 Ours, "the kernel's; then waits until what a statically linked child has written is in the pool", "inherited";
    waitid 247 Ours, "as wait4", "inherited";
    exit_group 231 Ours, "writes open files back, frees the process's slot", "python-subprocess";
    exit 60 Kernel, "of the last thread: the keeper cleans up", "";
    fork 57 Clone, "served: descriptors, mappings, working directory, umask go to the child", "c-robust";
    vfork 58 Clone, "served: what the child closes stays its own business", "python-subprocess";
    clone 56 Clone, "as fork, vfork or for a thread; CLONE_VM without CLONE_VFORK and CLONE_SETTLS gives a process or thread with its own thread area inside our code; CLONE_FILES without CLONE_VM is taken for a fork", "beside";
    clone3 435 Clone, "as clone", "python-subprocess";
    unshare 272 Ours, "CLONE_FILES with files of the pool open and several threads is EINVAL; else the kernel's. CLONE_FS: a thread then has its own working directory and umask", "thread-credentials";
    setns 308 Ours, "the kernel's; ids are those of the new user namespace. A PID namespace: see semantics.md, Processes; EINVAL for a file of the pool", "user-namespaces";
    prctl 157 Ours, "PR_SET_SECCOMP: first opens all of the pool, since the filter may forbid it; else the kernel's", "sandboxed";
    seccomp 317 Ours, "as prctl", "sandboxed";
    setuid 105 Ours, "permissions are checked for the new user", "";
    setgid 106 Ours, "as setuid", "";
    setreuid 113 Ours, "as setuid", "";
    setregid 114 Ours, "as setuid", "";
    setresuid 117 Ours, "as setuid", "";
    setresgid 119 Ours, "as setuid", "";
    setgroups 116 Ours, "as setuid", "";
    setfsuid 122 Ours, "as setuid, for the effective user only", "thread-credentials";
    setfsgid 123 Ours, "as setfsuid", "thread-credentials";
    capset 126 Ours, "permissions are checked with the new capabilities", "thread-credentials";

    rt_sigaction 13 Ours, "handlers are wrapped: none runs while we hold a lock", "signals";
    rt_sigprocmask 14 Ours, "SIGSEGV and SIGBUS aren't really blocked: faults must reach us. What the program sees is as ever", "signal-masks";

    fanotify_mark 301 NoPath(Some(3), 4), "refused", "c-refused";
    name_to_handle_at 303 NoPath(AT, 1), "refused", "c-refused";
    open_by_handle_at 304 NoFd, "refused", "";
    mount 165 Ours, "refused as a mount point: as the kernel says it, EPERM without the right to mount, ENODEV for an unknown file system; else EOPNOTSUPP", "c-refused";
    umount2 166 Ours, "no mount point: EPERM without the right to mount, else EINVAL", "c-refused";
    move_mount 429 NoPath(Some(2), 3), "refused as a mount point", "c-refused";
    open_tree 428 NoPath(AT, 1), "refused", "c-refused";
    open_tree_attr 467 NoPath(AT, 1), "refused", "c-refused";
    fspick 433 NoPath(AT, 1), "refused", "c-refused";
    mount_setattr 442 NoPath(AT, 1), "refused", "c-refused";
    pivot_root 155 NoPath(None, 0), "refused", "c-refused";
    quotactl 179 NoPath(None, 1), "refused", "c-refused";
    quotactl_fd 443 NoFd, "refused", "";
    acct 163 NoPath(None, 0), "refused", "c-refused";
    swapon 167 NoPath(None, 0), "refused", "c-refused";
    swapoff 168 NoPath(None, 0), "refused", "c-refused";
    uselib 134 NoPath(None, 0), "refused", "";

    inotify_init 253 Ours, "the kernel's", "inotify";
    inotify_init1 294 Ours, "the kernel's", "inotify";
    inotify_add_watch 254 Ours, "served: see semantics.md, Watching", "inotify";
    inotify_rm_watch 255 Fd, "served", "inotify";
    bind 49 Ours, "served for Unix sockets: one in the pool's directory stands in", "fifos-sockets";
    connect 42 Ours, "as bind", "fifos-sockets";
    sendto 44 Ours, "as bind", "fifos-sockets";
    getsockname 51 Ours, "the path in the pool for one that stands in", "fifos-sockets";
    getpeername 52 Ours, "as getsockname", "fifos-sockets";
    accept 43 NoFile, "the peer's address may be that of a stand-in", "c-odd";
    accept4 288 NoFile, "as accept", "";
    recvfrom 45 NoFile, "as accept", "c-odd";
    listen 50 NoFile, "ENOTSOCK", "c-odd";
    shutdown 48 NoFile, "ENOTSOCK", "";
    setsockopt 54 NoFile, "ENOTSOCK", "";
    getsockopt 55 NoFile, "ENOTSOCK", "";
    sendmsg 46 Ours, "served: address as sendto; SCM_RIGHTS passes descriptors of the pool to processes of the pool", "c-passing";
    sendmmsg 307 Ours, "as sendmsg", "c-passing";
    recvmsg 47 Ours, "served: descriptors of the pool arrive as such", "c-passing";
    recvmmsg 299 Ours, "as recvmsg", "c-passing";
    pidfd_getfd 438 Ours, "served for a process of the same pool", "c-answers";
    kcmp 312 Ours, "served: KCMP_FILE, of this and other processes", "c-answers";
    io_uring_setup 425 Ours, "refused with ENOSYS, as where it is switched off: the kernel would not find the pool.", "c-refused";
    io_uring_enter 426 NoFile, "EOPNOTSUPP", "";
    io_uring_register 427 NoFile, "EOPNOTSUPP", "";
    io_setup 206 Ours, "a context that takes requests on files of the pool and of the kernel", "c-aio";
    io_destroy 207 Ours, "served", "c-aio";
    io_submit 209 Ours, "served: requests on files of the pool are carried out at once. POSIX's aio_read and the like are served, too", "c-aio";
    io_getevents 208 Ours, "served, without reading the ring in user space", "c-aio";
    io_pgetevents 333 Ours, "as io_getevents", "c-aio";
    io_cancel 210 Ours, "requests on files of the pool are done when they are submitted: EINVAL", "c-aio";
    landlock_add_rule 445 Ours, "refused for a directory of the pool", "";
    getrlimit 97 Kernel, "", "";
    setrlimit 160 Ours, "RLIMIT_FSIZE holds in the pool, with SIGXFSZ; RLIMIT_NOFILE anyway", "c-limits";
    prlimit64 302 Ours, "as setrlimit; a change by another process isn't noticed", "c-limits";
    memfd_create 319 Kernel, "", "";
    memfd_secret 447 Kernel, "", "";
    userfaultfd 323 Kernel, "not on a mapping of a file of the pool", "";
    process_vm_readv 310 Kernel, "", "";
    process_vm_writev 311 Kernel, "", "";
    kexec_file_load 320 Kernel, "EBADF", "";
    finit_module 313 Kernel, "EBADF", "";
    fsopen 430 Kernel, "", "";
    fsconfig 431 Kernel, "a path of the pool isn't found", "";
    fsmount 432 Kernel, "", "";
    bpf 321 Kernel, "a path of the pool isn't found", "";
}

/// Returns the bit that stands for a kind of [`Way`] in the argument of [`map_of`].
const fn bit(way: Way) -> u16 {
    1 << match way {
        Kernel => 0,
        Clone => 1,
        Ours => 2,
        Fd => 3,
        Io => 4,
        Wait => 5,
        NoPath(..) => 6,
        NoFd => 7,
        NoFile => 8,
    }
}

/// Returns a bitmap of the calls whose [`Way`] is among `bits`.
const fn map_of(bits: u16) -> [u64; 8] {
    let mut map = [0; 8];
    let mut i = 0;
    while i < CALLS.len() {
        let nr = CALLS[i].nr as usize;
        if bits & bit(CALLS[i].way) != 0 {
            map[nr / 64] |= 1 << (nr % 64);
        }
        i += 1;
    }
    map
}

const NO_PATH: u16 = bit(NoPath(None, 0));
/// Calls that may involve the pool.
pub static WANTED: [u64; 8] = map_of(!(bit(Kernel) | bit(Clone)));
/// Calls whose first argument is a descriptor, and that are intercepted only if this descriptor is
/// watched.
pub static BY_FD: [u64; 8] = map_of(bit(Fd) | bit(Io) | bit(Wait) | bit(NoFd) | bit(NoFile));
/// Calls of [`BY_FD`] that never wait for anything outside the pool.
pub static SHORT: [u64; 8] = map_of(bit(Fd) | bit(Io) | bit(NoFd));
/// Calls that fail with EBADF on a descriptor opened with O_PATH.
pub static NEED_FILE: [u64; 8] = map_of(bit(Io));
/// Calls that are refused on descriptors of the pool.
pub static REFUSE_FD: [u64; 8] = map_of(bit(NoFd));
/// Calls that need a descriptor of another kind than a file: a socket, a timer and so on.
pub static NO_FILE: [u64; 8] = map_of(bit(NoFile));
/// Calls that are refused on paths of the pool.
pub static REFUSE_PATH: [u64; 8] = map_of(NO_PATH);

/// Returns the argument indices of a call of [`REFUSE_PATH`]: the directory's descriptor (if any),
/// and the path.
pub fn refused_path(nr: i64) -> Option<(Option<usize>, usize)> {
    CALLS.iter().find(|c| c.nr == nr).and_then(|c| match c.way {
        NoPath(dirfd, path) => Some((dirfd, path)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::path::PathBuf;

    /// Calls that use no file, with their numbers.
    const OTHERS: &str = "
15 rt_sigreturn; 22 pipe; 24 sched_yield; 29 shmget;
30 shmat; 31 shmctl; 34 pause; 35 nanosleep; 36 getitimer; 37 alarm; 38 setitimer; 39 getpid;
41 socket; 53 socketpair;
62 kill; 63 uname; 64 semget; 65 semop; 66 semctl; 67 shmdt; 68 msgget; 69 msgsnd; 70 msgrcv;
71 msgctl; 96 gettimeofday; 98 getrusage; 99 sysinfo; 100 times; 101 ptrace; 102 getuid;
103 syslog; 104 getgid; 107 geteuid; 108 getegid; 109 setpgid; 110 getppid; 111 getpgrp;
112 setsid; 115 getgroups; 118 getresuid; 120 getresgid; 121 getpgid; 124 getsid; 125 capget;
127 rt_sigpending; 128 rt_sigtimedwait; 129 rt_sigqueueinfo; 130 rt_sigsuspend;
131 sigaltstack; 135 personality; 139 sysfs; 140 getpriority; 141 setpriority;
142 sched_setparam; 143 sched_getparam; 144 sched_setscheduler; 145 sched_getscheduler;
146 sched_get_priority_max; 147 sched_get_priority_min; 148 sched_rr_get_interval; 153 vhangup;
154 modify_ldt; 156 _sysctl; 158 arch_prctl; 159 adjtimex; 164 settimeofday;
169 reboot; 170 sethostname; 171 setdomainname; 172 iopl; 173 ioperm; 174 create_module;
175 init_module; 176 delete_module; 177 get_kernel_syms; 178 query_module; 180 nfsservctl;
181 getpmsg; 182 putpmsg; 183 afs_syscall; 184 tuxcall; 185 security; 186 gettid; 200 tkill;
201 time; 202 futex; 203 sched_setaffinity; 204 sched_getaffinity; 205 set_thread_area;
211 get_thread_area;
212 lookup_dcookie; 213 epoll_create; 214 epoll_ctl_old; 215 epoll_wait_old;
218 set_tid_address; 219 restart_syscall; 220 semtimedop; 222 timer_create; 223 timer_settime;
224 timer_gettime; 225 timer_getoverrun; 226 timer_delete; 227 clock_settime; 228 clock_gettime;
229 clock_getres; 230 clock_nanosleep; 234 tgkill; 236 vserver; 237 mbind;
238 set_mempolicy; 239 get_mempolicy; 240 mq_open; 241 mq_unlink; 242 mq_timedsend;
243 mq_timedreceive; 244 mq_notify; 245 mq_getsetattr; 246 kexec_load; 248 add_key;
249 request_key; 250 keyctl; 251 ioprio_set; 252 ioprio_get; 256 migrate_pages; 273 set_robust_list; 274 get_robust_list;
279 move_pages; 283 timerfd_create; 284 eventfd;
290 eventfd2; 291 epoll_create1;
293 pipe2; 297 rt_tgsigqueueinfo; 298 perf_event_open; 300 fanotify_init;
305 clock_adjtime; 309 getcpu; 314 sched_setattr; 315 sched_getattr; 318 getrandom;
324 membarrier; 334 rseq; 335 uretprobe; 424 pidfd_send_signal;
434 pidfd_open; 440 process_madvise; 444 landlock_create_ruleset;
446 landlock_restrict_self; 448 process_mrelease; 449 futex_waitv; 450 set_mempolicy_home_node;
454 futex_wake; 455 futex_wait; 456 futex_requeue; 459 lsm_get_self_attr; 460 lsm_set_self_attr;
461 lsm_list_modules
";

    /// The first call of each section, and its title.
    const SECTIONS: &[(&str, &str)] = &[
        ("open", "Opening, descriptors, waiting"),
        ("read", "Data"),
        ("mmap", "Memory"),
        ("stat", "Attributes"),
        ("mkdir", "Names"),
        ("execve", "Processes"),
        ("fanotify_mark", "Refused on the pool"),
        (
            "inotify_init",
            "Watching, sockets, passing descriptors, the rest",
        ),
    ];

    fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..")
    }

    fn others() -> impl Iterator<Item = (i64, &'static str)> {
        OTHERS.split(';').filter_map(|o| {
            let (nr, name) = o.trim().split_once(' ')?;
            Some((nr.parse().ok()?, name))
        })
    }

    fn document() -> String {
        let mut text = String::from(
            "# System calls\n\nWhat the preload library does with the system calls of Linux 6.18 on x86-64 on paths and\n\
             descriptors of a pool. All other paths and descriptors go to the kernel, untouched. Made from\n\
             `crates/faces/preload/src/calls.rs` by\n\
             `FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-preload calls`.\n\n\
             \"refused\": EOPNOTSUPP. \"kernel\": goes to the kernel as it is; on a descriptor of the pool the kernel\n\
             finds one opened with `O_PATH`, and says EBADF to all that reads or writes. Tests are scripts in\n\
             `tests/programs/cases`.\n",
        );
        for c in CALLS {
            if let Some((_, title)) = SECTIONS.iter().find(|s| s.0 == c.name) {
                let _ = write!(
                    text,
                    "\n## {title}\n\n| call | with the pool | test |\n|---|---|---|\n"
                );
            }
            let kernel = if c.way == Kernel { "kernel" } else { "" };
            let what = match (kernel, c.what) {
                ("", what) => what.to_owned(),
                (k, "") => k.to_owned(),
                (k, what) => format!("{k}: {what}"),
            };
            let test = if c.test.is_empty() {
                "(no test)"
            } else {
                c.test
            };
            let _ = writeln!(text, "| `{}` | {what} | {test} |", c.name);
        }
        text.push_str("\n## Those that name no file\n\nThey all go to the kernel:\n");
        let mut line = String::new();
        for (_, name) in others() {
            if line.len() + name.len() > 100 {
                text.push_str(line.trim_end());
                text.push('\n');
                line.clear();
            }
            let _ = write!(line, "{name} ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
        text
    }

    #[test]
    fn every_call_is_there_once() {
        let mut seen = BTreeMap::new();
        for (nr, name) in CALLS.iter().map(|c| (c.nr, c.name)).chain(others()) {
            assert_eq!(seen.insert(nr, name), None, "{name} is there twice");
        }
        let missing: Vec<i64> = (0..335)
            .chain(424..470)
            .filter(|n| !seen.contains_key(n) && *n != 328 + 3)
            .collect();
        assert_eq!(missing, Vec::<i64>::new(), "calls without a line");
        for c in CALLS.iter().filter(|c| c.nr < 335) {
            let known = syscalls_by_libc(c.name);
            assert!(
                known.is_none_or(|n| n == c.nr),
                "{} has number {known:?}",
                c.name
            );
        }
    }

    /// Returns libc's number of some calls, to check that the table's numbers aren't all off by
    /// one.
    fn syscalls_by_libc(name: &str) -> Option<i64> {
        Some(match name {
            "openat2" => libc::SYS_openat2,
            "statx" => libc::SYS_statx,
            "read" => libc::SYS_read,
            "renameat2" => libc::SYS_renameat2,
            "sendmmsg" => libc::SYS_sendmmsg,
            "fanotify_mark" => libc::SYS_fanotify_mark,
            "pidfd_getfd" => libc::SYS_pidfd_getfd,
            _ => return None,
        })
    }

    #[test]
    fn tests_named_exist() {
        for test in CALLS.iter().map(|c| c.test).filter(|t| !t.is_empty()) {
            let file = root().join(format!("tests/programs/cases/{test}.sh"));
            assert!(file.exists(), "there is no {}", file.display());
        }
    }

    #[test]
    fn the_document_is_up_to_date() {
        let file = root().join("docs/reference/syscalls.md");
        if std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
            std::fs::write(&file, document()).unwrap();
        }
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            there == document(),
            "docs/reference/syscalls.md is stale: FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p \
             forebay-preload calls"
        );
    }
}
