//! The table of libraries without `syscall` instructions, so that they needn't be searched again.
//! The table is one file for all libraries, with hashes as keys. A lost or overwritten entry only
//! costs another search.

use crate::arch::raw;
use crate::cache::{self, Path, mix};
use crate::object::Object;
use core::ffi::CStr;

/// Number of buckets; each is one cache line of `KEYS` keys.
const BUCKETS: u64 = 2048;
const KEYS: usize = 8;

/// Descriptor of the open table file.
pub(crate) struct Known(i64);

/// Returns the key of an object: never 0.
fn key(object: &Object) -> u64 {
    let bounds = u64::from(object.code_low) << 32 | u64::from(object.code_high);
    mix(mix(1, object.id()), &bounds.to_le_bytes()) | 1
}

impl Known {
    /// Opens the table's file; None if that fails, or if other users can write the file.
    pub(crate) fn open(dir: &CStr) -> Option<Known> {
        let path = Path::in_dir(dir, b"sites-none-v1");
        let open = |flags: i32| {
            let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let at = libc::AT_FDCWD.into();
            // SAFETY: `path` is a C string that outlives the call.
            unsafe {
                raw(
                    libc::SYS_openat,
                    [at, path.arg(), flags.into(), 0o600, 0, 0],
                )
            }
        };
        let fd = match open(libc::O_RDWR | libc::O_CREAT) {
            fd if fd >= 0 => fd,
            _ => open(libc::O_RDONLY),
        };
        let known = (fd >= 0).then(|| Known(fd))?;
        cache::sealed(fd).map(|_| known)
    }

    fn bucket(&self, key: u64) -> ([u64; KEYS], u64) {
        let (mut keys, at) = (
            [0; KEYS],
            key / 64 % BUCKETS * size_of::<[u64; KEYS]>() as u64,
        );
        let to = (&raw mut keys) as i64;
        // SAFETY: `keys` has the length that is passed; bytes that aren't read stay 0.
        unsafe {
            raw(
                libc::SYS_pread64,
                [self.0, to, size_of_val(&keys) as i64, at as i64, 0, 0],
            )
        };
        (keys, at)
    }

    pub(crate) fn has(&self, object: &Object) -> bool {
        !object.id().is_empty() && self.bucket(key(object)).0.contains(&key(object))
    }

    pub(crate) fn add(&self, object: &Object) {
        if object.id().is_empty() {
            return;
        }
        let key = key(object);
        let (keys, at) = self.bucket(key);
        let free = keys.iter().position(|&k| k == 0);
        let place = at + 8 * free.unwrap_or((key >> 40) as usize % KEYS) as u64;
        if !cache::may_write_to(place + 8) {
            return;
        }
        // SAFETY: `key` has 8 bytes, and outlives the call.
        unsafe {
            raw(
                libc::SYS_pwrite64,
                [self.0, (&raw const key) as i64, 8, place as i64, 0, 0],
            )
        };
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, which nothing uses after it.
        unsafe { raw(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}
