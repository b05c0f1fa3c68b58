//! The placeholder: an `O_PATH` descriptor of a file in the pool's directory. Duplicates of this
//! descriptor are the kernel's side of pool descriptors.

use crate::program::settings;
use forebay_posix::Fs;
use forebay_runtime::fd::{Lent, Place};
use forebay_store::Errno;
use rustix::fs::{Mode, OFlags};

static PLACEHOLDER: Place = Place::empty();

/// Forgets the placeholder, which no longer exists; the next use opens it again.
pub fn forget() {
    PLACEHOLDER.forget();
}

/// Returns the placeholder; opens it if necessary.
///
/// # Errors
/// Those of open.
pub fn descriptor(fs: &Fs) -> Result<Lent, Errno> {
    PLACEHOLDER.lend_or_open(|| {
        let path = fs.pool().dir().join("pool.json");
        rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    })
}

/// Whether `path` leads, in the kernel, to a placeholder of this pool, of whichever process.
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
