//! Locations: the directory of all pools of this user, and the directories of pools and nodes in
//! it.

use crate::PoolError;
use crate::private::{self, Above};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Prefix of the names of nodes' directories.
pub(crate) const PREFIX: &str = "node-";

/// The directory that holds this user's pools: `$FOREBAY_HOME`, or `/dev/shm/forebay-UID`.
pub fn home() -> PathBuf {
    match std::env::var_os("FOREBAY_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(format!(
            "/dev/shm/forebay-{}",
            rustix::process::geteuid().as_raw()
        )),
    }
}

/// Creates the directory of this user's pools, unless it exists.
pub(crate) fn make_home() -> Result<(), PoolError> {
    private::make(&home(), true, Above::Strict)
}

/// Checks that no other user owns or can change the directory of pools ([`home`]). A missing
/// directory passes.
///
/// # Errors
/// [`PoolError::Foreign`] if other users own or can change it; [`PoolError::Io`] if it can't be
/// read.
pub fn check_home() -> Result<(), PoolError> {
    match private::check(&home(), Above::Strict) {
        Err(PoolError::Io { error, .. }) if error == Errno::NOENT => Ok(()),
        checked => checked,
    }
}

/// Directory of node `node` of pool `name`, whether or not it exists.
pub fn node_dir(name: &str, node: u32) -> PathBuf {
    home().join(name).join(format!("{PREFIX}{node}"))
}

/// The name of the pool whose directory, or whose node's directory, is `dir`.
pub(crate) fn name_of(dir: &Path) -> String {
    let last = |d: &Path| d.file_name().map(|n| n.to_string_lossy().into_owned());
    let own = last(dir).unwrap_or_default();
    let above = dir.parent().filter(|a| a.parent() == Some(&home()));
    match above.and_then(last) {
        Some(pool) if own.starts_with(PREFIX) => pool,
        _ => own,
    }
}

/// Whether nothing exists at `path`. A path that can't be read is an error, since something may
/// exist there.
pub(crate) fn is_absent(path: &Path) -> Result<bool, PoolError> {
    match rustix::fs::lstat(path) {
        Ok(_) => Ok(false),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(true),
        Err(e) => Err(PoolError::io("can't look at", path, e)),
    }
}

/// Syncs a file, or a directory's names, to stable storage.
pub(crate) fn sync_path(path: &Path) -> Result<(), Errno> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    forebay_media::sync_all(fd.as_fd())
}
