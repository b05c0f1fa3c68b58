//! Mounting, and that nothing stays mounted.
//!
//! The file system is unmounted when standard input ends, so when the process dies that has started
//! it. For a server that is killed itself, another process does it ([`watch`]).

use crate::effects::Effects;
use crate::passthrough::Passthrough;
use crate::tree::Tree;
use fuser::{Config, MountOption, Session};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// How a directory is mounted.
pub struct Options {
    /// Threads that wait for requests. An operation that waits or hangs keeps one.
    pub threads: usize,
    /// Whether the kernel keeps pages of files, until their size or time of modification changes.
    /// Otherwise each read of a program is a request.
    pub caches: bool,
    pub effects: Option<Arc<Effects>>,
}

/// Mounts `source` at `dir`, prints `ready`, and serves it until standard input ends. Blocks.
///
/// # Errors
/// A sentence: `source` or `dir` isn't there, or can't be mounted.
pub fn mount(source: &str, dir: &str, options: Options) -> Result<(), String> {
    let failed = |e: io::Error| format!("{dir}: {e}");
    let tree = Tree::new(source).map_err(|e| format!("{source}: {e}"))?;
    // A node takes a descriptor.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
    // The kernel has applied the process's mask.
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("passthrough".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    let passthrough = Passthrough::new(tree, options.effects, options.caches);
    let session = Session::new(passthrough, dir, &config).map_err(failed)?;
    let at = PathBuf::from(dir);
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        unmount_lazily(&at);
    });
    println!("ready");
    session.run().map_err(failed)
}

/// Waits for the end of standard input, and unmounts `dir` then. Blocks.
pub fn watch(dir: &Path) {
    let _ = rustix::process::setsid();
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    unmount_lazily(dir);
}

/// Unmounts `dir`, in use or not; does nothing if nothing is mounted there.
pub fn unmount_lazily(dir: &Path) {
    let Ok(name) = CString::new(dir.as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: a CString ends with a zero.
    if unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) } == 0 {
        return;
    }
    // Ordinary users may not unmount directly; for root this fails only if nothing is mounted.
    let _ = Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
