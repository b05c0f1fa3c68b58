//! Making a mapping of a file, and replacing mappings of files.

use super::pages::{self, How};
use super::spans::{self, Spans};
use super::{follow, locked, remote, shadow_copy};
use crate::program::results::errno;
use crate::program::signals;
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs};
use forebay_store::PAGE;
use forebay_store::control_region::map_flag;
use std::sync::atomic::{AtomicBool, Ordering::*};

pub const WRITE: i32 = libc::PROT_WRITE;
/// Flags of mmap that are passed to the kernel unchanged.
pub const PASSED: i32 = libc::MAP_32BIT
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE;

pub fn page_up(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE)
}

pub fn aligned(address: i64) -> bool {
    (address as u64).is_multiple_of(PAGE as u64)
}

/// Maps `len` bytes of a file from `offset` on.
///
/// # Safety
/// With MAP_FIXED, the program may replace the range.
#[allow(
    clippy::too_many_arguments,
    reason = "what one mmap call says, and nothing that belongs together"
)]
pub unsafe fn map_range(
    spans: &mut Spans,
    open: u32,
    at: i64,
    len: usize,
    offset: u64,
    how: How,
    flags: i32,
    budget: usize,
) -> Result<u64, Errno> {
    let fs = spans.fs;
    prepare(fs);
    let live = fs.live_of(open)?;
    let is_remote = fs.cluster().data().is_remote(live);
    let mut kind = 0;
    if how.shared {
        kind |= map_flag::SHARED;
        kind |= if is_remote { map_flag::COPY } else { 0 };
        kind |= if how.prot & WRITE != 0 {
            map_flag::CHANGES
        } else {
            0
        };
        kind |= if how.read_only {
            map_flag::READ_ONLY
        } else {
            0
        };
    }
    let span = spans.claim(open, kind)?;
    let result = (|| {
        // Another thread may have closed the file before the span kept it open.
        if fs.live_of(open) != Ok(live) {
            return Err(Errno::BADF);
        }
        if kind & map_flag::CHANGES != 0 {
            fs.controls().check_shared_writing_again(open, live)?;
        }
        let range = offset..offset + len as u64;
        let copy = if is_remote {
            let copy = shadow_copy::ShadowCopy::make(spans, live, span, range.end)?;
            copy.refresh(range.clone())?;
            Some(copy)
        } else {
            None
        };
        let pieces = match &copy {
            Some(copy) => copy.pieces(range, pages::fetched_pages(how))?,
            None => match fs.cluster().mappings().map(live, offset, len, budget) {
                // The file is sparse, and there is no room: missing pages are allocated when they
                // are touched.
                Err(Errno::NOSPC) if budget == usize::MAX => {
                    fs.cluster().mappings().map(live, offset, len, 0)?
                }
                other => other?,
            },
        };
        let fixed = flags & libc::MAP_FIXED != 0 && aligned(at);
        if fixed {
            spans.split(at as u64)?;
            spans.split(at as u64 + len as u64)?;
        }
        // Maps the empty memfd over the whole range in one call, then the file's pieces over it.
        // SAFETY: the caller promises that, with MAP_FIXED, the range may be replaced.
        let start = unsafe { pages::put_empty(at as u64, len, how, flags)? };
        if fixed {
            remote::unmapped(spans, start, start + len as u64);
        }
        // SAFETY: replaces only parts of the range at which the empty memfd was just mapped.
        let put = unsafe { pages::put_pieces(fs, &pieces, (start, len as u64), offset, how) };
        if let Err(e) = put {
            // SAFETY: unmaps only the range just mapped.
            unsafe { raw(libc::SYS_munmap, [start as i64, len as i64, 0, 0, 0, 0]) };
            return Err(e);
        }
        if pieces.iter().map(|p| p.len).sum::<usize>() < len {
            span.set(map_flag::PARTIAL);
        }
        Ok(start)
    })();
    match result {
        Ok(start) => {
            spans.publish(span, start, len as u64, offset);
            spans.join(span);
        }
        Err(_) => spans.release(span),
    }
    result
}

/// Records that the auditing instance of this library has mapped files already.
pub fn note_mappings(fs: &Fs) {
    spans::note();
    prepare(fs);
    // A notice that was sent before the handler was installed is lost.
    fs.process().catch_up();
}

/// Installs the handlers that mappings need, and opens the segments, before the first mapping.
fn prepare(fs: &Fs) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, AcqRel) {
        forebay_store::on_shrink(follow::cut_all);
        signals::watch_notices();
        // The segments are opened now, while the process can still open files.
        fs.mappings().segments().for_each(|_| {});
    }
}

/// Makes a call that replaces or removes the mappings at `at..at + len`. [`PASS`] if no pool file
/// is mapped there.
pub unsafe fn replacing(nr: i64, a: &[i64; 6], at: u64, len: usize) -> i64 {
    let end = page_up(len).and_then(|len| at.checked_add(len as u64));
    let (Some(mut spans), Some(end)) = (locked::of_call(), end) else {
        return PASS;
    };
    if !aligned(at as i64) || spans.within(at, end).next().is_none() {
        return PASS;
    }
    if let Err(e) = spans.split(at).and_then(|()| spans.split(end)) {
        return errno(e);
    }
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(nr, *a) };
    if result >= 0 {
        remote::unmapped(&spans, at, end);
    }
    result
}
