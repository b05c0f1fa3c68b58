//! Mounts the file system, and ensures that it doesn't stay mounted.
//!
//! The file system is unmounted when standard input ends, and so also when the process dies that
//! has started the server. If the server itself is killed, another process unmounts the file system
//! ([`watch`]).

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
    /// Number of threads that serve requests. An operation that waits or hangs occupies one.
    pub threads: usize,
    /// Whether the kernel caches the pages of files until their size or modification time changes.
    /// If not, each read by a program is a request.
    pub caches: bool,
    pub effects: Option<Arc<Effects>>,
}

/// Mounts `source` at `dir`, prints `ready`, and serves the mount until standard input ends.
/// Blocks.
///
/// # Errors
/// A sentence, if `source` or `dir` doesn't exist or can't be mounted.
pub fn mount(source: &str, dir: &str, options: Options) -> Result<(), String> {
    let failed = |e: io::Error| format!("{dir}: {e}");
    let tree = Tree::new(source).map_err(|e| format!("{source}: {e}"))?;
    // Each node of the tree uses a descriptor.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
    // The kernel has applied the umask of the requesting process already.
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

/// Waits until standard input ends, then unmounts `dir`. Blocks.
pub fn watch(dir: &Path) {
    let _ = rustix::process::setsid();
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    unmount_lazily(dir);
}

/// Unmounts `dir`, even if it is in use. Does nothing if nothing is mounted there.
pub fn unmount_lazily(dir: &Path) {
    let Ok(name) = CString::new(dir.as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: a CString ends with a zero.
    if unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) } == 0 {
        return;
    }
    // Ordinary users may not call umount2, so fusermount3 unmounts for them. For root, umount2
    // fails only if nothing is mounted.
    let _ = Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
