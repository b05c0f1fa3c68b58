//! A program that patches itself. The program's code is far from libc, so the trampolines get a
//! separate mapping, with a registered unwind table. Other threads are inside calls meanwhile, and
//! a second installation is refused.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod test {
    use forebay_intercept::{Call, Error, Hooks, PASS, install, raw};
    use std::backtrace::Backtrace;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Mutex, mpsc};

    static CALLS: AtomicU64 = AtomicU64::new(0);
    static TRACE: AtomicBool = AtomicBool::new(false);
    static TRACED: Mutex<String> = Mutex::new(String::new());

    unsafe extern "C-unwind" fn on_call(call: &Call) -> i64 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        if call.nr == libc::SYS_close && TRACE.swap(false, Ordering::Relaxed) {
            *TRACED.lock().unwrap() = Backtrace::force_capture().to_string();
        }
        if call.nr % 2 == 0 {
            return PASS;
        }
        // SAFETY: the program makes this call; its arguments are passed on unchanged.
        unsafe { raw(call.nr, call.args) }
    }
    unsafe extern "C-unwind" fn on_failed(_: &Call, result: i64) -> i64 {
        result
    }
    unsafe extern "C-unwind" fn on_clone(_: &Call) -> i64 {
        0
    }
    unsafe extern "C-unwind" fn on_cloned(_: &Call, _: i64) {}

    static HOOKS: Hooks = Hooks {
        syscall: on_call,
        failed: on_failed,
        clone_before: on_clone,
        clone_after: on_cloned,
        wanted: &[!0; 8],
        by_fd: &[0; 8],
        fd_filter: std::ptr::null(),
        fd_filter_len: 0,
    };

    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn this_calls_close() {
        // SAFETY: close takes no pointer, and -1 is no descriptor.
        std::hint::black_box(unsafe { libc::close(-1) });
    }

    pub fn main() {
        // The alarm ends the process if it hangs. SAFETY: alarm takes no pointers.
        unsafe { libc::alarm(60) };
        let (send, receive) = mpsc::channel::<u32>();
        let mut pipe = [0; 2];
        // SAFETY: `pipe` has room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let in_futex = std::thread::spawn(move || receive.recv().unwrap());
        let in_read = std::thread::spawn(move || {
            let mut byte = 0u8;
            // SAFETY: `byte` has room for the one byte that is read.
            unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
            byte
        });
        std::thread::sleep(std::time::Duration::from_millis(50));

        // SAFETY: the other threads are blocked in sites that keep their instruction.
        let report = unsafe { install(&HOOKS, None) }.unwrap();
        for object in report.objects() {
            println!("{object:?} {}", object.name());
            assert_eq!(
                (object.wanted, object.missed, object.missed_unknown),
                (object.patched, [0; 8], 0)
            );
            assert!(object.far && !object.cached);
        }
        // SAFETY: the second installation is refused before it changes anything.
        let again = unsafe { install(&HOOKS, None) };
        assert_eq!(again, Err(Error::AlreadyInstalled));

        send.send(5).unwrap();
        assert_eq!(in_futex.join().unwrap(), 5);
        // SAFETY: the buffer has the one byte that is written.
        assert_eq!(unsafe { libc::write(pipe[1], b"r".as_ptr().cast(), 1) }, 1);
        assert_eq!(in_read.join().unwrap(), b'r');

        let before = CALLS.load(Ordering::Relaxed);
        TRACE.store(true, Ordering::Relaxed);
        this_calls_close();
        assert!(CALLS.load(Ordering::Relaxed) > before);
        let trace = TRACED.lock().unwrap().clone();
        assert!(
            trace.contains("this_calls_close") && trace.contains("far::test::main"),
            "{trace}"
        );
        // A panic afterwards: the unwinder finds the registered table among the others.
        assert!(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1))).is_err());
        let threads: Vec<_> = (0..50u32).map(|i| std::thread::spawn(move || i)).collect();
        assert_eq!(
            threads.into_iter().map(|t| t.join().unwrap()).sum::<u32>(),
            1225
        );
        assert!(
            std::process::Command::new("true")
                .status()
                .unwrap()
                .success()
        );
        println!("ok");
    }
}

fn main() {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    test::main();
}
