//! The placeholder: an `O_PATH` descriptor of a file of the pool's directory, whose duplicates are
//! the kernel's side of descriptors of the pool.

use crate::program::settings;
use forebay_posix::Fs;
use forebay_store::Errno;
use rustix::fd::IntoRawFd;
use rustix::fs::{Mode, OFlags};
use std::sync::atomic::{AtomicI32, Ordering::*};

static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);

/// The next one is opened again.
pub fn forget() {
    PLACEHOLDER.store(-1, Release);
}

/// The descriptor whose duplicates stand for files of the pool.
///
/// # Errors
/// What open says.
pub fn descriptor(fs: &Fs) -> Result<i32, Errno> {
    let fd = PLACEHOLDER.load(Acquire);
    if fd >= 0 {
        return Ok(fd);
    }
    let path = fs.pool().dir().join("pool.json");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = forebay_media::with_room(|| {
        rustix::fs::open(&path, flags, Mode::empty()).map(forebay_media::lift)
    })?;
    let new = opened.into_raw_fd();
    match PLACEHOLDER.compare_exchange(-1, new, AcqRel, Acquire) {
        Ok(_) => Ok(new),
        // Two threads at once: one descriptor more does no harm.
        Err(other) => Ok(other),
    }
}

/// Whether the kernel finds a placeholder of whatever process at `path`.
pub fn leads_to_one(path: &[u8]) -> bool {
    let Some(settings) = settings::settings() else {
        return false;
    };
    let ours = [settings.dir.to_bytes(), b"/pool.json"].concat();
    match (rustix::fs::stat(path), rustix::fs::stat(ours)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}
