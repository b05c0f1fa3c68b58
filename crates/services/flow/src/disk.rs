//! Files of the state directory. Each is replaced in one step, and is on stable storage when the
//! function that writes it returns.
//!
//! ```text
//! STATE/lock                 locked by the service
//! STATE/tokens/ID.json       a token's user, scopes, end, and the hash of its secret
//! STATE/records/USER/W.json  a workflow with its runs
//! STATE/areas/USER/W/work    the workflow's files, unless it has a campaign; the user owns USER
//! STATE/areas/USER/W/runs/N  a run: lock, pid, log, events, exit codes
//! STATE/plugin               the plug-in by which Snakemake reports jobs
//! ```

use crate::Result;
use forebay_runtime::untrusted::{self, Links};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Maximum size of a record. Bytes.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Makes a directory, unless it exists, and sets its mode.
///
/// # Errors
/// The directory can't be made.
pub fn make_dir(path: &Path, mode: u32) -> Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(path, &e)),
        // The directory's mode must not depend on the umask.
        _ => fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .map_err(|e| failed(path, &e)),
    }
}

/// Writes a record. The earlier one stays until the new one is on stable storage.
///
/// # Errors
/// The record can't be written.
pub fn save(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value).map_err(|e| format!("{}: {e}", path.display()))?;
    replace(path, &text, 0o600)
}

/// Replaces a file.
///
/// # Errors
/// The file can't be written.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let beside = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = untrusted::create(&beside, mode)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        sync_parent(path)
    };
    write().map_err(|e| failed(path, &e))
}

/// Removes a record.
///
/// # Errors
/// The record can't be removed.
pub fn remove(path: &Path) -> Result<()> {
    let removed = fs::remove_file(path).and_then(|()| sync_parent(path));
    removed.map_err(|e| failed(path, &e))
}

/// Reads a record; None if it doesn't exist.
///
/// # Errors
/// The file can't be read, or isn't a valid record.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match untrusted::read(path, Links::Refuse, MAX_RECORD_BYTES) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|e| failed(path, &e))?,
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| format!("{} is no record: {e}", path.display()))
}

/// Returns the names of the records in a directory, without `.json`.
///
/// # Errors
/// The directory can't be read.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| failed(dir, &e))? {
        let name = entry.map_err(|e| failed(dir, &e))?.file_name();
        if let Some(name) = name.to_str().and_then(|n| n.strip_suffix(".json")) {
            found.push(name.to_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Locks a file until the result is dropped. The file is created if necessary.
///
/// # Errors
/// Another process has the lock.
pub fn lock(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(format!(
            "{} is locked: another service has this state directory",
            path.display()
        )),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

fn failed(path: &Path, why: &std::io::Error) -> String {
    format!("{}: {why}", path.display())
}
