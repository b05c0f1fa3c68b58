//! Measures interception: nanoseconds per call on each path, microseconds of the installation.
//!
//! `bench` runs itself in new processes to measure the installation: with and without a cache, with
//! the calls that a file system face wants and with all calls. Then it measures calls in its own
//! process. There, the trampolines are too far from the program for a near jump; so a call costs
//! one jump more than in a preloaded library.

#[cfg(target_arch = "x86_64")]
mod bench {
    use forebay_intercept::{Call, Hooks, PASS, WATCH, bitmap, install, raw};
    use std::ffi::CString;
    use std::hint::black_box;
    use std::sync::atomic::AtomicU8;
    use std::time::Instant;

    unsafe extern "C-unwind" fn on_call(call: &Call) -> i64 {
        match call.args[0] {
            // Answered by the hook; the kernel never sees the call.
            1001 => -9,
            // SAFETY: only calls of close get this argument: a descriptor that doesn't exist.
            1002 => unsafe { raw(call.nr, call.args) },
            // The gate makes the call.
            1004 => WATCH,
            _ => PASS,
        }
    }
    unsafe extern "C-unwind" fn on_failed(_: &Call, result: i64) -> i64 {
        result
    }
    unsafe extern "C-unwind" fn on_before(_: &Call) -> i64 {
        0
    }
    unsafe extern "C-unwind" fn on_after(_: &Call, _: i64) {}

    static FILTER: [AtomicU8; 2048] = {
        let mut list = [const { AtomicU8::new(0) }; 2048];
        let mut i = 1001;
        while i < 1005 {
            list[i] = AtomicU8::new(1);
            i += 1;
        }
        list
    };
    static FILES: [u64; 8] = bitmap(&[
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_open,
        libc::SYS_openat,
        libc::SYS_close,
        libc::SYS_stat,
        libc::SYS_fstat,
        libc::SYS_lstat,
        libc::SYS_newfstatat,
        libc::SYS_lseek,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_msync,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_access,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_dup,
        libc::SYS_dup2,
        libc::SYS_dup3,
        libc::SYS_fcntl,
        libc::SYS_ioctl,
        libc::SYS_flock,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_truncate,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_getdents64,
        libc::SYS_getcwd,
        libc::SYS_chdir,
        libc::SYS_fchdir,
        libc::SYS_rename,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_mkdir,
        libc::SYS_mkdirat,
        libc::SYS_rmdir,
        libc::SYS_link,
        libc::SYS_linkat,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
        libc::SYS_symlink,
        libc::SYS_symlinkat,
        libc::SYS_readlink,
        libc::SYS_readlinkat,
        libc::SYS_chmod,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_chown,
        libc::SYS_fchown,
        libc::SYS_lchown,
        libc::SYS_fchownat,
        libc::SYS_statfs,
        libc::SYS_fstatfs,
        libc::SYS_statx,
        libc::SYS_utimensat,
        libc::SYS_utimes,
        libc::SYS_sendfile,
        libc::SYS_splice,
        libc::SYS_copy_file_range,
        libc::SYS_setxattr,
        libc::SYS_getxattr,
        libc::SYS_listxattr,
        libc::SYS_removexattr,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_mknod,
        libc::SYS_mknodat,
        libc::SYS_close_range,
        libc::SYS_chroot,
    ]);
    static BY_FD: [u64; 8] = bitmap(&[
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_close,
        libc::SYS_fstat,
    ]);
    static ALL: [u64; 8] = [!0; 8];
    static HOOKS: Hooks = Hooks {
        syscall: on_call,
        failed: on_failed,
        clone_before: on_before,
        clone_after: on_after,
        wanted: &FILES,
        by_fd: &BY_FD,
        fd_filter: FILTER.as_ptr().cast(),
        fd_filter_len: FILTER.len(),
    };
    static HOOKS_ALL: Hooks = Hooks {
        wanted: &ALL,
        ..HOOKS
    };

    /// Returns the time of the fastest of several runs. Nanoseconds.
    fn time(mut call: impl FnMut()) -> f64 {
        const N: u32 = 200_000;
        (0..15)
            .map(|_| {
                let begun = Instant::now();
                (0..N).for_each(|_| call());
                begun.elapsed().as_nanos() as f64 / f64::from(N)
            })
            .fold(f64::MAX, f64::min)
    }

    fn close(fd: i32) {
        // SAFETY: close takes no pointer, and the descriptor doesn't exist.
        black_box(unsafe { libc::close(black_box(fd)) });
    }

    fn child(cache: &str, all: bool) {
        let dir = CString::new(cache).unwrap();
        // SAFETY: the process has a single thread; the hooks are ready.
        let report = unsafe {
            install(
                if all { &HOOKS_ALL } else { &HOOKS },
                (cache != "-").then_some(&dir),
            )
        };
        let report = report.unwrap();
        let sum = |f: fn(&forebay_intercept::ObjectReport) -> u32| {
            report.objects().iter().map(f).sum::<u32>()
        };
        println!(
            "{} {} {}",
            report.microseconds,
            sum(|o| o.found),
            sum(|o| o.patched)
        );
    }

    fn installs(title: &str, cache: &str, all: &str) {
        let mut lines: Vec<(u64, String)> = (0..15)
            .map(|_| {
                let exe = std::env::current_exe().unwrap();
                let out = std::process::Command::new(exe)
                    .args(["install", cache, all])
                    .output()
                    .unwrap();
                let text = String::from_utf8(out.stdout).unwrap();
                let mut words = text.split_whitespace();
                (
                    words.next().unwrap().parse().unwrap(),
                    words.collect::<Vec<_>>().join(" sites found, patched "),
                )
            })
            .collect();
        lines.sort();
        println!(
            "install, {title}: {} us, best {} ({})",
            lines[7].0, lines[0].0, lines[0].1
        );
    }

    pub fn main() {
        let args: Vec<String> = std::env::args().collect();
        if args.len() == 4 && args[1] == "install" {
            return child(&args[2], args[3] == "all");
        }
        let dir = std::env::temp_dir().join(format!("forebay-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let cache = dir.to_str().unwrap();
        installs("no cache, file calls", "-", "files");
        child(cache, false);
        installs("cache, file calls", cache, "files");
        installs("cache, all calls", cache, "all");
        let _ = std::fs::remove_dir_all(&dir);
        // A raw getppid is the unpatched reference for the kernel; closing an invalid descriptor
        // goes through libc. SAFETY: getppid has no arguments.
        let ppid = time(|| unsafe {
            black_box(libc::getppid());
        });
        println!("getppid (not wanted, not patched): {ppid:.1} ns");
        // SAFETY: close takes no pointer, and the descriptor doesn't exist.
        let bare = time(|| unsafe {
            black_box(raw(libc::SYS_close, [1000, 0, 0, 0, 0, 0]));
        });
        println!("close(1000) by raw(): {bare:.1} ns");
        for (fd, what) in [
            (1000, "filtered by descriptor"),
            (5000, "filtered, beyond the table"),
            (1003, "handler says PASS"),
            (1004, "handler says WATCH, the call fails"),
            (1002, "handler asks the kernel itself"),
            (1001, "handler answers without the kernel"),
        ] {
            println!("close({fd}), {what}: {:.1} ns", time(|| close(fd)));
        }
        // SAFETY: getppid has no arguments; its number is known at run time only.
        let unknown = time(|| unsafe {
            black_box(libc::syscall(libc::SYS_getppid));
        });
        println!("syscall(SYS_getppid), not wanted: {unknown:.1} ns");
    }

    /// Measures calls before the installation, as the reference for patched calls.
    pub fn unpatched() {
        if std::env::args().len() > 1 {
            return;
        }
        println!("close(1000), unpatched: {:.1} ns", time(|| close(1000)));
        // SAFETY: getppid has no arguments.
        let by_number = time(|| unsafe {
            black_box(libc::syscall(libc::SYS_getppid));
        });
        println!("syscall(SYS_getppid), unpatched: {by_number:.1} ns");
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    {
        bench::unpatched();
        bench::main();
    }
}
