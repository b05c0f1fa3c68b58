//! The cache of an object's sites: one file per build id. Reading a file allocates nothing and
//! calls no libc function.
//!
//! Guarantees: a file that is damaged, another user's or made for other code counts as absent; a
//! reader sees a whole file or none (it is written under a temporary name, then renamed); failures
//! to write are silent.

use crate::arch::{Site, raw};
use crate::object::{ID_MAX, Object};
use core::ffi::CStr;

const MAGIC: [u8; 8] = *b"FBSITES1";
const PATH_MAX: usize = 4096;
/// Maximum number of records that are read: more than any C library has sites.
pub(crate) const SITES_MAX: usize = 4096;

/// Head of a cache file.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    magic: [u8; 8],
    /// Checksum of everything after this field, the build id included.
    sum: u64,
    code_low: u32,
    code_high: u32,
    count: u64,
    id: [u8; ID_MAX],
}

/// Sites read from a cache file, in an anonymous mapping.
pub(crate) struct Cached {
    start: usize,
    len: usize,
    count: usize,
}

impl Cached {
    pub(crate) fn sites(&self) -> &[Site] {
        // SAFETY: `open` checked length and alignment; any bits are a valid Site.
        unsafe {
            core::slice::from_raw_parts((self.start + size_of::<Head>()) as *const Site, self.count)
        }
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it outlives the value.
        unsafe {
            raw(
                libc::SYS_munmap,
                [self.start as i64, self.len as i64, 0, 0, 0, 0],
            )
        };
    }
}

pub(crate) struct Path {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Path {
    fn push(&mut self, part: &[u8]) {
        // The last byte stays 0. A path cut short only names a file that doesn't exist.
        let n = part.len().min(PATH_MAX - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&part[..n]);
        self.len += n;
    }

    fn push_hex(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.push(&[
                b"0123456789abcdef"[usize::from(b >> 4)],
                b"0123456789abcdef"[usize::from(b & 15)],
            ]);
        }
    }

    /// Returns the path of a file in the cache's directory.
    pub(crate) fn in_dir(dir: &CStr, name: &[u8]) -> Path {
        let mut path = Path {
            bytes: [0; PATH_MAX],
            len: 0,
        };
        path.push(dir.to_bytes());
        path.push(b"/");
        path.push(name);
        path
    }

    fn of(dir: &CStr, object: &Object, suffix: &[u8]) -> Path {
        let mut path = Path::in_dir(dir, b"sites-");
        path.push_hex(object.id());
        if object.part > 0 {
            path.push(b"-");
            path.push_hex(&[object.part]);
        }
        path.push(b"-v1");
        path.push(suffix);
        path
    }

    /// Returns the path's address, as an argument of a system call.
    pub(crate) fn arg(&self) -> i64 {
        self.bytes.as_ptr() as i64
    }
}

/// Returns the checksum of `bytes`, continued from the checksum `sum`.
pub(crate) fn mix(sum: u64, bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    let step = |sum: u64, word: u64| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    };
    let mut sum = step(sum, bytes.len() as u64);
    for c in &mut chunks {
        sum = step(
            sum,
            u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]),
        );
    }
    chunks
        .remainder()
        .iter()
        .fold(sum, |s, &b| step(s, b.into()))
}

fn bytes_of<T: Copy>(list: &[T]) -> &[u8] {
    // SAFETY: only used for Site and Head, which have no padding.
    unsafe { core::slice::from_raw_parts(list.as_ptr().cast(), size_of_val(list)) }
}

fn checksum(head: &Head, sites: &[u8]) -> u64 {
    let fields = &bytes_of(core::slice::from_ref(head))[16..];
    mix(mix(0, fields), sites)
}

fn head(object: &Object, count: usize) -> Head {
    let mut id = [0; ID_MAX];
    id[..object.id().len()].copy_from_slice(object.id());
    Head {
        magic: MAGIC,
        sum: 0,
        code_low: object.code_low,
        code_high: object.code_high,
        count: count as u64,
        id,
    }
}

/// Whether a directory belongs to this user alone. Otherwise the directory's content is neither
/// trusted nor written: a process that can put a file there can have any code patched into every
/// program.
pub(crate) fn is_private(dir: &CStr) -> bool {
    let at = i64::from(libc::AT_FDCWD);
    let nofollow = i64::from(libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: the path ends in 0; all zeros is a valid stat, and the kernel fills it.
    let (stat, uid) = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let to = (&raw mut stat) as i64;
        let path = dir.as_ptr() as i64;
        if raw(libc::SYS_newfstatat, [at, path, to, nofollow, 0, 0]) != 0 {
            return false;
        }
        (stat, raw(libc::SYS_geteuid, [0; 6]))
    };
    i64::from(stat.st_uid) == uid
        && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
        && stat.st_mode & 0o022 == 0
}

/// Returns the object's cached sites, if there is a valid file for exactly this object.
pub(crate) fn open(dir: &CStr, object: &Object) -> Option<Cached> {
    if object.id().is_empty() {
        return None;
    }
    let path = Path::of(dir, object, b"");
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: `path` is a C string that outlives the call.
    let fd = unsafe {
        raw(
            libc::SYS_openat,
            [libc::AT_FDCWD.into(), path.arg(), flags.into(), 0, 0, 0],
        )
    };
    if fd < 0 {
        return None;
    }
    let cached = map(fd, object);
    // SAFETY: closes the descriptor opened above, which nothing uses any more.
    unsafe { raw(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    cached
}

/// Returns the length of an open regular file, if it belongs to this user or root and no other user
/// can write it. Bytes.
pub(crate) fn sealed(fd: i64) -> Option<usize> {
    // SAFETY: all zeros is a valid stat, and the kernel fills it.
    let (stat, uid) = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        if raw(libc::SYS_fstat, [fd, (&raw mut stat) as i64, 0, 0, 0, 0]) != 0 {
            return None;
        }
        (stat, raw(libc::SYS_geteuid, [0; 6]))
    };
    let mine = stat.st_uid == 0 || i64::from(stat.st_uid) == uid;
    let sealed = stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_mode & 0o022 == 0;
    let len = usize::try_from(stat.st_size).ok()?;
    (mine && sealed).then_some(len)
}

fn map(fd: i64, object: &Object) -> Option<Cached> {
    let len = sealed(fd)?;
    let whole =
        len >= size_of::<Head>() && (len - size_of::<Head>()).is_multiple_of(size_of::<Site>());
    if !whole || len > size_of::<Head>() + SITES_MAX * size_of::<Site>() {
        return None;
    }
    // Reads the file instead of mapping it: truncating a mapped file would cause SIGBUS.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses unused addresses; the read stays inside the mapping.
    let (start, got) = unsafe {
        let start = raw(
            libc::SYS_mmap,
            [0, len as i64, prot.into(), flags.into(), -1, 0],
        );
        if start < 0 {
            return None;
        }
        (
            start as usize,
            raw(libc::SYS_read, [fd, start, len as i64, 0, 0, 0]),
        )
    };
    let cached = Cached {
        start,
        len,
        count: (len - size_of::<Head>()) / size_of::<Site>(),
    };
    // SAFETY: the mapping is page-aligned and at least as long as a Head; any bits are a valid
    // Head.
    let found = unsafe { *(start as *const Head) };
    let expected = head(object, cached.count);
    let sound = got == len as i64
        && found.magic == MAGIC
        && found.count == expected.count
        && (found.code_low, found.code_high) == (expected.code_low, expected.code_high)
        && found.id == expected.id
        && found.sum == checksum(&found, bytes_of(cached.sites()))
        && cached.sites().windows(2).all(|w| w[0].at < w[1].at)
        && cached
            .sites()
            .iter()
            .all(|s| s.is_sane(object.code_low, object.code_high));
    sound.then_some(cached)
}

/// Whether this process may write a file up to this size (RLIMIT_FSIZE). A write beyond would make
/// the kernel send the program SIGXFSZ.
pub(crate) fn may_write_to(size: u64) -> bool {
    let mut limit = [libc::RLIM_INFINITY; 2];
    let to = limit.as_mut_ptr() as i64;
    // SAFETY: the kernel writes a struct rlimit64 to `limit`, which has room for it.
    unsafe {
        raw(
            libc::SYS_prlimit64,
            [0, libc::RLIMIT_FSIZE.into(), 0, to, 0, 0],
        )
    };
    size <= limit[0]
}

/// Writes the object's sites, if possible.
pub(crate) fn save(dir: &CStr, object: &Object, sites: &[Site]) {
    let size = size_of::<Head>() + size_of_val(sites);
    if object.id().is_empty() || sites.len() > SITES_MAX || !may_write_to(size as u64) {
        return;
    }
    let mut head = head(object, sites.len());
    head.sum = checksum(&head, bytes_of(sites));
    // SAFETY: getpid has no arguments.
    let pid = unsafe { raw(libc::SYS_getpid, [0; 6]) };
    let mut temporary = Path::of(dir, object, b".");
    temporary.push_hex(&(pid as u32).to_be_bytes());
    let path = Path::of(dir, object, b"");
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let at = i64::from(libc::AT_FDCWD);
    // SAFETY: the paths end in 0, the buffers have their lengths, and this function owns `fd`.
    unsafe {
        let fd = raw(
            libc::SYS_openat,
            [at, temporary.arg(), flags.into(), 0o644, 0, 0],
        );
        if fd < 0 {
            if fd == -i64::from(libc::EEXIST) {
                // The file was left by a process that died with this process id.
                raw(libc::SYS_unlinkat, [at, temporary.arg(), 0, 0, 0, 0]);
            }
            return;
        }
        let whole = [bytes_of(core::slice::from_ref(&head)), bytes_of(sites)]
            .iter()
            .all(|b| {
                raw(
                    libc::SYS_write,
                    [fd, b.as_ptr() as i64, b.len() as i64, 0, 0, 0],
                ) == b.len() as i64
            });
        raw(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        let moved = whole
            && raw(
                libc::SYS_renameat2,
                [at, temporary.arg(), at, path.arg(), 0, 0],
            ) == 0;
        if !moved {
            raw(libc::SYS_unlinkat, [at, temporary.arg(), 0, 0, 0, 0]);
        }
    }
}

#[cfg(test)]
mod tests;
