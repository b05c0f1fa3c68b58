//! Copying, reading back and comparing the content of one file.
//!
//! A range is copied segment by segment, so that holes stay holes, and hashed while it is read.
//! When all ranges of a file are written, each is read back from the destination. The range's
//! segments must have the same hash, and all bytes between them must be zero.

use crate::Progress;
use forebay_backing::{Error, StoreFile};
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

/// Number of bytes of a large file that one thread copies at a time.
pub const RANGE: u64 = 16 << 20;
/// Maximum number of bytes of one read or write.
const BUFFER: usize = 1 << 20;

/// A copied range of a file, as it was read from the source.
#[derive(Debug)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    /// Start and end (exclusive) of each segment of data.
    segments: Vec<(u64, u64)>,
    /// BLAKE3 hash of the segments. None: the range won't be compared.
    hash: Option<blake3::Hash>,
}

impl Range {
    /// Returns the number of bytes of data, without holes.
    pub fn data(&self) -> u64 {
        self.segments.iter().map(|(start, end)| end - start).sum()
    }
}

/// Returns the ranges in which a file of `size` bytes is copied.
pub fn ranges(size: u64) -> Vec<(u64, u64)> {
    (0..size.div_ceil(RANGE))
        .map(|i| (i * RANGE, ((i + 1) * RANGE).min(size)))
        .collect()
}

fn with_buffer<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static SPACE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    SPACE.with_borrow_mut(|space| {
        space.resize(BUFFER, 0);
        use_it(space)
    })
}

/// Returns start and end of the next data at or after `at`, limited to `end`. None: only holes.
fn next_data(file: &dyn StoreFile, at: u64, end: u64) -> Result<Option<(u64, u64)>, Errno> {
    let start = match file.seek_data(at) {
        Ok(start) if start < end => start.max(at),
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(e),
    };
    match file.seek_hole(start) {
        Ok(hole) if hole > start => Ok(Some((start, hole.min(end)))),
        // The data became a hole between the two calls. The copy will notice the change.
        Ok(_) | Err(Errno::NXIO) => Ok(Some((start, end))),
        Err(e) => Err(e),
    }
}

/// Copies the bytes from `start` to `end` (exclusive). If `hashes`, the result can be
/// [verified](verify).
///
/// # Errors
/// [`Error::Read`], [`Error::Write`]; [`Error::Changed`] if the source has become shorter;
/// [`Error::Stopped`].
pub fn copy(
    from: &dyn StoreFile,
    to: &dyn StoreFile,
    start: u64,
    end: u64,
    hashes: bool,
    progress: &Progress,
) -> Result<Range, Error> {
    let mut hasher = hashes.then(blake3::Hasher::new);
    let mut segments = Vec::new();
    let mut at = start;
    with_buffer(|buffer| {
        while let Some((data, data_end)) = next_data(from, at, end).map_err(Error::Read)? {
            progress.bytes_done.fetch_add(data - at, Relaxed);
            at = data;
            while at < data_end {
                if progress.stopped() {
                    return Err(Error::Stopped);
                }
                let want = buffer.len().min((data_end - at) as usize);
                let n = match from.read_at(&mut buffer[..want], at) {
                    Ok(0) => return Err(Error::Changed),
                    Ok(n) => n,
                    Err(Errno::INTR) => continue,
                    Err(e) => return Err(Error::Read(e)),
                };
                if let Some(hasher) = &mut hasher {
                    hasher.update(&buffer[..n]);
                }
                let mut written = 0;
                while written < n {
                    match to.write_at(&buffer[written..n], at + written as u64) {
                        Ok(0) => return Err(Error::Write(Errno::NOSPC)),
                        Ok(w) => written += w,
                        Err(Errno::INTR) => {}
                        Err(e) => return Err(Error::Write(e)),
                    }
                }
                at += n as u64;
                progress.copied(n as u64);
            }
            segments.push((data, data_end));
        }
        progress.bytes_done.fetch_add(end - at, Relaxed);
        Ok(())
    })?;
    Ok(Range {
        start,
        end,
        segments,
        hash: hasher.map(|hasher| hasher.finalize()),
    })
}

/// Reads a copied range back from the destination, and compares it with the hash.
///
/// # Errors
/// [`Error::Differs`], [`Error::ReadBack`], [`Error::Stopped`].
pub fn verify(to: &dyn StoreFile, range: &Range, progress: &Progress) -> Result<(), Error> {
    let mut hasher = blake3::Hasher::new();
    let mut at = range.start;
    for &(start, end) in &range.segments {
        zeros(to, at, start)?;
        read(to, start, end, |bytes| {
            hasher.update(bytes);
            if progress.stopped() {
                Err(Error::Stopped)
            } else {
                Ok(())
            }
        })?;
        at = end;
    }
    zeros(to, at, range.end)?;
    if Some(hasher.finalize()) == range.hash {
        Ok(())
    } else {
        Err(Error::Differs)
    }
}

/// Whether two files of `size` bytes have the same content.
///
/// # Errors
/// [`Error::Read`] for an error of reading `a`; [`Error::Stopped`].
pub fn same(
    a: &dyn StoreFile,
    b: &dyn StoreFile,
    size: u64,
    progress: &Progress,
) -> Result<bool, Error> {
    let mut other = vec![0; BUFFER];
    let mut at = 0;
    let result = read(a, 0, size, |bytes| {
        if progress.stopped() {
            return Err(Error::Stopped);
        }
        let mut have = 0;
        while have < bytes.len() {
            match b.read_at(&mut other[have..bytes.len()], at + have as u64) {
                Ok(0) => return Err(Error::Differs),
                Ok(n) => have += n,
                Err(Errno::INTR) => {}
                // The destination can't be read, so it counts as different and will be replaced.
                Err(_) => return Err(Error::Differs),
            }
        }
        at += have as u64;
        progress.bytes_done.fetch_add(have as u64, Relaxed);
        if other[..have] == *bytes {
            Ok(())
        } else {
            Err(Error::Differs)
        }
    });
    match result {
        Ok(()) => Ok(true),
        Err(e) => {
            progress.bytes_done.fetch_sub(at, Relaxed);
            match e {
                Error::Differs => Ok(false),
                Error::ReadBack(e) => Err(Error::Read(e)),
                e => Err(e),
            }
        }
    }
}

/// Calls `each` with the bytes from `start` to `end` (exclusive), one buffer at a time.
fn read(
    file: &dyn StoreFile,
    start: u64,
    end: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    with_buffer(|buffer| {
        let mut at = start;
        while at < end {
            let want = buffer.len().min((end - at) as usize);
            match file.read_at(&mut buffer[..want], at) {
                Ok(0) => return Err(Error::Differs),
                Ok(n) => {
                    each(&buffer[..n])?;
                    at += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::ReadBack(e)),
            }
        }
        Ok(())
    })
}

/// Checks that all bytes from `start` to `end` (exclusive) are zero. Doesn't read holes.
fn zeros(file: &dyn StoreFile, start: u64, end: u64) -> Result<(), Error> {
    let mut at = start;
    while at < end
        && let Some((data, data_end)) = next_data(file, at, end).map_err(Error::ReadBack)?
    {
        read(file, data, data_end, |bytes| {
            if bytes.iter().all(|&b| b == 0) {
                Ok(())
            } else {
                Err(Error::Differs)
            }
        })?;
        at = data_end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_backing::{DirectoryStore, Meta, SlowStore};
    use std::os::unix::fs::FileExt;

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-copy-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// A file that returns a wrong byte when it is read again, as failing hardware does.
    struct Flipped<'f>(Box<dyn StoreFile + 'f>);

    impl StoreFile for Flipped<'_> {
        fn meta(&self) -> rustix::io::Result<Meta> {
            self.0.meta()
        }
        fn read_at(&self, buffer: &mut [u8], at: u64) -> rustix::io::Result<usize> {
            let n = self.0.read_at(buffer, at)?;
            if n > 0 {
                buffer[n - 1] ^= 1;
            }
            Ok(n)
        }
        fn seek_data(&self, at: u64) -> rustix::io::Result<u64> {
            self.0.seek_data(at)
        }
        fn seek_hole(&self, at: u64) -> rustix::io::Result<u64> {
            self.0.seek_hole(at)
        }
    }

    #[test]
    fn ranges_cover_a_file() {
        assert!(ranges(0).is_empty());
        assert_eq!(ranges(1), [(0, 1)]);
        let many = ranges(3 * RANGE + 5);
        assert_eq!(many.len(), 4);
        assert_eq!(many[3], (3 * RANGE, 3 * RANGE + 5));
    }

    #[test]
    fn what_arrives_wrong_is_noticed() {
        let (from, to) = (scratch("from"), scratch("to"));
        std::fs::write(&from, vec![7; 100_000]).unwrap();
        let bytes = |p: &std::path::Path| p.to_str().unwrap().as_bytes().to_vec();
        let place = DirectoryStore::beside(&bytes(&from)).unwrap();
        let source = place.open(&bytes(&from), true).unwrap();
        let target = place.create(&bytes(&to), b"").unwrap();
        let progress = Progress::default();
        let range = copy(&*source, &*target, 0, 100_000, true, &progress).unwrap();
        assert_eq!(verify(&*target, &range, &progress), Ok(()));
        assert!(same(&*source, &*target, 100_000, &progress).unwrap());
        let flipped = Flipped(target);
        assert_eq!(verify(&flipped, &range, &progress), Err(Error::Differs));
        assert!(!same(&*source, &flipped, 100_000, &progress).unwrap());
        // The file is shorter than the range.
        flipped.0.set_len(99_999).unwrap();
        assert_eq!(verify(&*flipped.0, &range, &progress), Err(Error::Differs));
        for p in [from, to] {
            std::fs::remove_file(p).unwrap();
        }
    }

    #[test]
    fn bytes_in_a_hole_are_noticed() {
        let (from, to) = (scratch("hole-from"), scratch("hole-to"));
        let file = std::fs::File::create(&from).unwrap();
        file.write_all_at(b"end", (1 << 20) - 3).unwrap();
        let bytes = |p: &std::path::Path| p.to_str().unwrap().as_bytes().to_vec();
        let place = DirectoryStore::beside(&bytes(&from)).unwrap();
        let source = place.open(&bytes(&from), true).unwrap();
        let target = place.create(&bytes(&to), b"").unwrap();
        let progress = Progress::default();
        let range = copy(&*source, &*target, 0, 1 << 20, true, &progress).unwrap();
        assert_eq!(verify(&*target, &range, &progress), Ok(()));
        if range.data() < 1 << 20 {
            target.write_at(b"x", 4096).unwrap();
            assert_eq!(verify(&*target, &range, &progress), Err(Error::Differs));
        }
        for p in [from, to] {
            std::fs::remove_file(p).unwrap();
        }
    }
}
