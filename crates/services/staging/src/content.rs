//! Copies the whole content of one open file to another. Ranges are copied in parallel; with
//! `Care::verify` each is read back and compared ([`crate::copy`]). If the source changes meanwhile,
//! the copy fails.

use crate::Progress;
use crate::copy as segments;
use forebay_backing::{Error, Meta, StoreFile, try_map};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The guarantees of a copy of a file's content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Care {
    /// Whether the copy is synced to stable storage.
    pub sync: bool,
    /// Whether the copy is read back from the destination, and compared by checksum.
    pub verify: bool,
}

/// Copies the whole content of `from` to the empty file `to`, with `threads` threads. Syncs the
/// copy before verifying it. Returns the number of copied bytes, without holes, and the source's
/// metadata.
///
/// # Errors
/// [`Error`]; [`Error::Changed`] if the source isn't a file, or changes meanwhile.
pub fn copy(
    from: &dyn StoreFile,
    to: &dyn StoreFile,
    care: Care,
    threads: usize,
    progress: &Progress,
) -> Result<(u64, Meta), Error> {
    let before = at_rest(from).map_err(Error::Read)?;
    if !before.is_file() {
        return Err(Error::Changed);
    }
    let ranges = segments::ranges(before.size);
    let ranges = try_map(threads, &ranges, |&(start, end)| {
        segments::copy(from, to, start, end, care.verify, progress)
    })?;
    if to.meta().map_err(Error::Write)?.size != before.size {
        // The file ends in a hole, so its size isn't set yet.
        to.set_len(before.size).map_err(Error::Write)?;
    }
    let after = from.meta().map_err(Error::Read)?;
    if (after.size, after.mtime, after.ctime) != (before.size, before.mtime, before.ctime) {
        return Err(Error::Changed);
    }
    if care.sync {
        to.sync().map_err(Error::Write)?;
        to.forget_cached();
    }
    if to.meta().map_err(Error::ReadBack)?.size != before.size {
        return Err(Error::Differs);
    }
    if care.verify {
        try_map(threads, &ranges, |range| {
            segments::verify(to, range, progress)
        })?;
    }
    Ok((ranges.iter().map(segments::Range::data).sum(), before))
}

/// Copies the bytes from `start` to `end` (exclusive) over the same range of `to`, if `is_wanted`
/// is true for the source's metadata. Returns the number of copied bytes, without holes.
///
/// # Errors
/// [`Error`]; [`Error::Changed`] if `is_wanted` is false, or the source ends before `end` or
/// changes meanwhile.
pub fn copy_part(
    from: &dyn StoreFile,
    to: &dyn StoreFile,
    (start, end): (u64, u64),
    is_wanted: impl Fn(&Meta) -> bool,
    verify: bool,
    progress: &Progress,
) -> Result<u64, Error> {
    let before = at_rest(from).map_err(Error::Read)?;
    if !is_wanted(&before) || before.size < end {
        return Err(Error::Changed);
    }
    let range = segments::copy(from, to, start, end, verify, progress)?;
    let after = from.meta().map_err(Error::Read)?;
    if (after.size, after.mtime, after.ctime) != (before.size, before.mtime, before.ctime) {
        return Err(Error::Changed);
    }
    if verify {
        segments::verify(to, &range, progress)?;
    }
    Ok(range.data())
}

/// Returns the file's metadata, after waiting until its last change is older than a tick of the
/// clock (some milliseconds). So any later change sets another time.
pub fn at_rest(file: &dyn StoreFile) -> rustix::io::Result<Meta> {
    const TICK: Duration = Duration::from_millis(20);
    let meta = file.meta()?;
    let changed = Duration::from_nanos(u64::try_from(meta.mtime).unwrap_or(0));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    match now.checked_sub(changed) {
        Some(age) if age < TICK => {
            std::thread::sleep(TICK - age);
            file.meta()
        }
        _ => Ok(meta),
    }
}
