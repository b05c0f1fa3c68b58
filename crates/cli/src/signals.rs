//! Handles the signals that `forebay run` receives: forwards them to the program, or ends staging.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// Signals that ask a process to end.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Passes signals to the program, or records them while no program runs.
#[derive(Default)]
pub struct Relay {
    /// The program's process id while it runs.
    child: AtomicI32,
    /// Whether a signal has arrived while no program ran.
    stopped: AtomicBool,
    /// Signal mask from before [`Relay::install`], for the program.
    before: OnceLock<libc::sigset_t>,
}

impl Relay {
    /// Handles the signals that this process doesn't ignore. Must be called before any thread is
    /// started.
    pub fn install() -> Arc<Relay> {
        let relay = Arc::new(Relay::default());
        // SAFETY: all pointers are to local variables, which are initialised.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in SIGNALS {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut action);
                if action.sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(&mut set, signal);
                }
            }
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            let _ = relay.before.set(before);
            set
        };
        let own = relay.clone();
        let _ = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                loop {
                    // SAFETY: the set and `info` are valid during the call.
                    let (signal, code) = unsafe {
                        let mut info: libc::siginfo_t = std::mem::zeroed();
                        (libc::sigwaitinfo(&set, &mut info), info.si_code)
                    };
                    if signal > 0 {
                        own.take(signal, code);
                    }
                }
            });
        relay
    }

    fn take(&self, signal: i32, code: i32) {
        let child = self.child.load(SeqCst);
        if child <= 0 {
            self.stopped.store(true, SeqCst);
        } else if code != libc::SI_KERNEL {
            // (A signal from the terminal, SI_KERNEL, reaches the program directly.) SAFETY:
            // `child` is still the program's id: it isn't reaped before `self.child` is reset.
            unsafe { libc::kill(child, signal) };
        }
    }

    /// Makes `command` start with this process's original signal mask.
    pub fn unblock_in(&self, command: &mut std::process::Command) {
        use std::os::unix::process::CommandExt;
        let Some(before) = self.before.get().copied() else {
            return;
        };
        // SAFETY: the closure makes only an async-signal-safe call, and owns a copy of the mask.
        unsafe {
            command.pre_exec(move || {
                libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
                Ok(())
            });
        }
    }

    /// From now on passes signals to `child`; if None, only records them.
    pub fn pass_to(&self, child: Option<u32>) {
        self.child.store(child.map_or(0, |c| c as i32), SeqCst);
    }

    /// Whether a signal asked us to stop.
    pub fn stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }
}
