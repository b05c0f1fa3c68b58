//! The placeholder: an `O_PATH` descriptor of a file of the pool's directory, whose duplicates are
//! the kernel's side of descriptors of the pool.

use crate::program::settings;
use forebay_posix::Fs;
use forebay_runtime::fd::{Lent, Place};
use forebay_store::Errno;
use rustix::fs::{Mode, OFlags};

static PLACEHOLDER: Place = Place::empty();

/// The next one is opened again.
pub fn forget() {
    PLACEHOLDER.forget();
}

/// The descriptor whose duplicates stand for files of the pool.
///
/// # Errors
/// Those of open.
pub fn descriptor(fs: &Fs) -> Result<Lent, Errno> {
    PLACEHOLDER.lend_or_open(|| {
        let path = fs.pool().dir().join("pool.json");
        rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    })
}

/// Whether the kernel finds a placeholder of any process at `path`.
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
