//! A carrier: a program that exists everywhere, executed with this library for a task of the
//! library itself. An environment variable names the task, and the library takes over the process
//! before the program's own code begins ([`courier`](super::courier),
//! [`supervisor`](super::supervisor)).

use crate::program::{settings, variables};
use forebay_intercept::raw;
use forebay_posix::Errno;
use std::ffi::{CStr, CString};

/// These programs are harmless with the arguments that they get.
const PROGRAMS: [&CStr; 3] = [c"/bin/sh", c"/bin/true", c"/usr/bin/true"];

/// Gives this process, a carrier, its name in listings. Maximum length: 15 bytes.
pub fn rename(name: &'static CStr) {
    let args = [libc::PR_SET_NAME.into(), name.as_ptr() as i64, 0, 0, 0, 0];
    // SAFETY: a C string.
    unsafe { raw(libc::SYS_prctl, args) };
}

/// The arguments and the environment of a carrier, complete before a fork.
pub struct Carrier {
    /// Texts to which `argv` and `env` point.
    _texts: Vec<CString>,
    argv: [i64; 4],
    env: Vec<i64>,
}

impl Carrier {
    /// `name`: the process's name in listings. `task`: the variable that names the task, and its
    /// value.
    ///
    /// # Errors
    /// EINVAL: `task` has a null byte. ENOTCONN: this process has no pool.
    pub fn new(name: &'static CStr, task: &[u8]) -> Result<Carrier, Errno> {
        let mut texts = vec![CString::new(task).map_err(|_| Errno::INVAL)?];
        let (_, mut at) = variables::given();
        // SAFETY: the environment as the kernel laid it on the stack: strings up to a null pointer.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                let text = CStr::from_ptr(*at);
                if variables::is_pools(text.to_bytes()) {
                    texts.push(text.to_owned());
                }
                at = at.add(1);
            }
        }
        let ours = settings::settings().ok_or(Errno::NOTCONN)?;
        let mount = match ours.mount {
            b"" => b"/",
            mount => mount,
        };
        for (name, value) in [
            (variables::DIR, ours.dir.to_bytes()),
            (variables::MOUNT, mount),
            (
                variables::PRELOAD,
                super::environ::library(ours.preload.to_bytes()),
            ),
        ] {
            let text = [name.to_bytes(), b"=", value].concat();
            texts.push(CString::new(text).map_err(|_| Errno::INVAL)?);
        }
        let pointers = texts.iter().map(|t| t.as_ptr() as i64);
        let env = pointers.chain([0]).collect();
        let [name, option, command] = [name, c"-c", c":"].map(|t| t.as_ptr() as i64);
        Ok(Carrier {
            _texts: texts,
            argv: [name, option, command, 0],
            env,
        })
    }

    /// Executes the carrier in this process, by raw system calls only. Returns if no program can be
    /// executed.
    pub fn exec(&self) {
        for program in PROGRAMS {
            let (path, argv) = (program.as_ptr() as i64, self.argv.as_ptr() as i64);
            let args = [path, argv, self.env.as_ptr() as i64, 0, 0, 0];
            // SAFETY: a C string and two null-terminated lists of C strings, which outlive the
            // call.
            unsafe { raw(libc::SYS_execve, args) };
        }
    }
}
