//! A preload library that passes every call to the kernel, for the `whole` test: unmodified
//! programs must behave as without it.
//!
//! Environment: `FB_CACHE` (directory), `FB_MODE` (`pass`: through the trampoline's own
//! instruction, `raw`: from the handler, `watch`: from the gate, `fd`: with descriptor calls
//! filtered out, `refuse`: no children), `FB_REPORT` (print what was patched to standard error),
//! `FB_COUNT` (append a line with the number of calls to this file at exit_group). `/magic` opens
//! `/etc/hostname`.

#[cfg(target_arch = "x86_64")]
mod library {
    use forebay_intercept::{Call, Hooks, PASS, WATCH, bitmap, install, install_in_others, raw};
    use std::ffi::{CStr, c_char, c_int};
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

    static CALLS: AtomicU64 = AtomicU64::new(0);
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    static AFTER: AtomicU64 = AtomicU64::new(0);
    static VIA_PASS: AtomicBool = AtomicBool::new(true);
    static WATCHING: AtomicBool = AtomicBool::new(false);
    static REFUSING: AtomicBool = AtomicBool::new(false);
    static COUNT_FILE: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
    static ALL: [u64; 8] = [!0; 8];
    static BY_FD: [u64; 8] = bitmap(&[
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_lseek,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_fcntl,
        libc::SYS_ioctl,
        libc::SYS_fsync,
        libc::SYS_ftruncate,
        libc::SYS_getdents64,
        libc::SYS_dup,
        libc::SYS_dup2,
        libc::SYS_dup3,
    ]);
    static ONES: [u8; 4096] = [1; 4096];
    static HOOKS: Hooks = Hooks {
        syscall: on_call,
        failed: on_failed,
        clone_before: on_before,
        clone_after: on_after,
        wanted: &ALL,
        by_fd: &BY_FD,
        fd_filter: ONES.as_ptr(),
        fd_filter_len: ONES.len(),
    };
    static HOOKS_FD: Hooks = Hooks {
        syscall: on_call,
        failed: on_failed,
        clone_before: on_before,
        clone_after: on_after,
        wanted: &ALL,
        by_fd: &BY_FD,
        fd_filter: ONES.as_ptr(),
        fd_filter_len: 0,
    };

    unsafe extern "C-unwind" fn on_call(call: &Call) -> i64 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        let mut args = call.args;
        let path = match call.nr {
            libc::SYS_open => 0,
            libc::SYS_openat => 1,
            libc::SYS_exit_group => {
                count();
                return PASS;
            }
            _ => 2,
        };
        if path < 2 && is_marked(args[path]) {
            args[path] = c"/etc/hostname".as_ptr() as i64;
            // SAFETY: the program makes this call; only its path is replaced, by a static C string.
            return unsafe { raw(call.nr, args) };
        }
        if WATCHING.load(Ordering::Relaxed) {
            clobber();
            return WATCH;
        }
        if VIA_PASS.load(Ordering::Relaxed) {
            return PASS;
        }
        // SAFETY: the program makes this call; its arguments are passed on unchanged.
        unsafe { raw(call.nr, args) }
    }

    /// Whether a path is `/magic`. Stops at the first difference, since the path may be shorter. (A
    /// program's pointer may be bad; in these tests none is.)
    fn is_marked(path: i64) -> bool {
        path > 4096
            && b"/magic\0".iter().enumerate().all(|(i, &b)| {
                // SAFETY: all bytes before this one equal those of `/magic`, so the C string hasn't
                // ended.
                b == unsafe { *(path as *const u8).add(i) }
            })
    }

    unsafe extern "C-unwind" fn on_failed(_: &Call, result: i64) -> i64 {
        clobber();
        result
    }

    unsafe extern "C-unwind" fn on_before(_: &Call) -> i64 {
        BEFORE.fetch_add(1, Ordering::Relaxed);
        clobber();
        if REFUSING.load(Ordering::Relaxed) {
            -i64::from(libc::EDQUOT)
        } else {
            0
        }
    }

    unsafe extern "C-unwind" fn on_after(_: &Call, _: i64) {
        AFTER.fetch_add(1, Ordering::Relaxed);
        clobber();
    }

    /// Changes all registers that a handler may change.
    fn clobber() {
        // SAFETY: changes only registers that are declared as clobbered.
        unsafe {
            std::arch::asm!(
                "xor edi, edi", "xor esi, esi", "xor edx, edx", "xor r8d, r8d", "xor r9d, r9d", "xor r10d, r10d",
                "pcmpeqd xmm0, xmm0", "pcmpeqd xmm1, xmm1", "pcmpeqd xmm7, xmm7", "pcmpeqd xmm15, xmm15",
                out("rdi") _, out("rsi") _, out("rdx") _, out("r8") _, out("r9") _, out("r10") _,
                out("xmm0") _, out("xmm1") _, out("xmm7") _, out("xmm15") _
            );
        }
        // Wide registers, which libc's own functions may change where the processor has them.
        if std::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX; `clobber_wide` declares the registers that it changes.
            unsafe { clobber_wide() };
        }
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512; `clobber_widest` declares the registers that it
            // changes.
            unsafe { clobber_widest() };
        }
    }

    #[target_feature(enable = "avx")]
    unsafe fn clobber_wide() {
        // SAFETY: changes only registers that are declared as clobbered.
        unsafe {
            std::arch::asm!("vzeroall", out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _)
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn clobber_widest() {
        // SAFETY: changes only registers that are declared as clobbered.
        unsafe {
            std::arch::asm!(
                "kxnorw k1, k1, k1", "kxnorw k7, k7, k7", "vpxord zmm16, zmm16, zmm16", "vpxord zmm31, zmm31, zmm31",
                out("k1") _, out("k7") _, out("zmm16") _, out("zmm31") _
            )
        }
    }

    fn count() {
        let file = COUNT_FILE.load(Ordering::Relaxed);
        if file.is_null() {
            return;
        }
        let mut line = [b' '; 64];
        let values = [
            CALLS.load(Ordering::Relaxed),
            BEFORE.load(Ordering::Relaxed),
            AFTER.load(Ordering::Relaxed),
        ];
        for (field, mut value) in line.chunks_exact_mut(20).zip(values) {
            for digit in field[1..].iter_mut().rev() {
                *digit = b'0' + (value % 10) as u8;
                value /= 10;
            }
        }
        line[63] = b'\n';
        let flags = i64::from(libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT);
        // SAFETY: `file` is a C string of the environment, and `line` is passed with its length.
        unsafe {
            let fd = raw(
                libc::SYS_openat,
                [libc::AT_FDCWD.into(), file as i64, flags, 0o600, 0, 0],
            );
            raw(libc::SYS_write, [fd, line.as_ptr() as i64, 64, 0, 0, 0]);
            raw(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        }
    }

    unsafe extern "C" fn start(_: c_int, _: *const *const c_char, mut env: *const *const c_char) {
        let (mut cache, mut report, mut hooks) = (None, false, &HOOKS);
        // SAFETY: glibc passes the environment to constructors; `env` hasn't passed its null
        // pointer.
        while let Some(entry) = unsafe { env.as_ref() }.filter(|e| !e.is_null()) {
            // SAFETY: the entry is a C string of the environment, which nothing frees.
            let entry = unsafe { CStr::from_ptr(*entry) };
            let bytes = entry.to_bytes();
            let value = |name: &str| {
                bytes
                    .starts_with(name.as_bytes())
                    .then(|| &entry.to_bytes_with_nul()[name.len()..])
            };
            if let Some(dir) = value("FB_CACHE=") {
                cache = CStr::from_bytes_with_nul(dir).ok();
            }
            if let Some(file) = value("FB_COUNT=") {
                COUNT_FILE.store(file.as_ptr() as *mut c_char, Ordering::Relaxed);
            }
            report |= bytes.starts_with(b"FB_REPORT");
            if bytes == b"FB_MODE=raw" {
                VIA_PASS.store(false, Ordering::Relaxed);
            }
            if bytes == b"FB_MODE=watch" {
                WATCHING.store(true, Ordering::Relaxed);
            }
            if bytes == b"FB_MODE=refuse" {
                REFUSING.store(true, Ordering::Relaxed);
            }
            if bytes == b"FB_MODE=fd" {
                hooks = &HOOKS_FD;
            }
            // SAFETY: this entry isn't the null pointer that ends the list, so another entry
            // follows.
            env = unsafe { env.add(1) };
        }
        // SAFETY: no other thread runs during a constructor; the hooks need no preparation.
        let result = unsafe { install(hooks, cache) };
        if result.is_ok() {
            // SAFETY: the program hasn't started, so nothing of the other objects has run.
            unsafe { install_in_others(hooks, cache) };
        }
        if report {
            match result {
                Ok(report) => {
                    for o in report.objects() {
                        let missed: Vec<i64> = (0..512)
                            .filter(|&n| forebay_intercept::has(&o.missed, n))
                            .collect();
                        eprintln!(
                            "{}: found {} wanted {} patched {} unknown {} missed {missed:?} cached {} far {}",
                            o.name(),
                            o.found,
                            o.wanted,
                            o.patched,
                            o.missed_unknown,
                            o.cached,
                            o.far
                        );
                    }
                    eprintln!("{} us", report.microseconds);
                }
                Err(e) => eprintln!("{e}"),
            }
        }
    }

    #[used]
    #[unsafe(link_section = ".init_array")]
    static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;
}
