//! Mapping pages at addresses: pages of a segment, or of an empty memfd.
//!
//! Where a file has no page (beyond its end, or in a hole that was never written), the empty memfd
//! is mapped. Touching such a page raises SIGBUS, and `follow.rs` maps the page if the file has one
//! by now.

use super::shadow_copy::{self, ShadowCopy};
use super::spans::{Span, Spans};
use super::vmas::{self, Vma};
use crate::program::results;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs};
use forebay_runtime::fd::{Lent, Place};
use forebay_store::control_region::map_flag;
use forebay_store::{CHUNK, MapPiece, PAGE};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};

/// Number of bytes after a touched page's chunk that are mapped with it, if the file has them.
const AROUND: u64 = 16 * CHUNK;

static EMPTY: Place = Place::empty();
static EMPTY_FOR_READING: Place = Place::empty();

/// How a range is mapped.
#[derive(Clone, Copy)]
pub struct How {
    pub prot: i32,
    pub shared: bool,
    /// Whether this is a shared mapping by a descriptor that isn't open for writing.
    pub read_only: bool,
    /// Further flags of mmap.
    pub flags: i32,
}

impl How {
    pub fn of(span: Span, vma: Vma) -> How {
        How {
            prot: vma.prot,
            shared: span.has(map_flag::SHARED),
            read_only: span.has(map_flag::READ_ONLY),
            flags: 0,
        }
    }

    fn kind(self) -> i32 {
        if self.shared {
            libc::MAP_SHARED
        } else {
            libc::MAP_PRIVATE
        }
    }
}

/// Returns a descriptor of the empty memfd. The caller holds the table's lock.
fn empty_file(read_only: bool) -> Result<Lent, Errno> {
    let place = if read_only {
        &EMPTY_FOR_READING
    } else {
        &EMPTY
    };
    let open = || {
        if read_only {
            let path = format!("/proc/thread-self/fd/{}", empty_file(false)?.as_raw_fd());
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        } else {
            rustix::fs::memfd_create(vmas::EMPTY, rustix::fs::MemfdFlags::CLOEXEC)
        }
    };
    place.lend_or_open(open)
}

unsafe fn map(
    at: u64,
    len: usize,
    how: How,
    flags: i32,
    fd: i32,
    offset: u64,
) -> Result<u64, Errno> {
    let flags = how.kind() | flags;
    // SAFETY: the caller promises that, with MAP_FIXED, the range may be replaced.
    let result = unsafe {
        raw(
            libc::SYS_mmap,
            [
                at as i64,
                len as i64,
                how.prot.into(),
                flags.into(),
                fd.into(),
                offset as i64,
            ],
        )
    };
    results::check(result).map(|at| at as u64)
}

/// Maps `len` bytes of the empty memfd at address `at`, with `flags` of mmap.
///
/// # Safety
/// With MAP_FIXED, the program may replace the range.
pub unsafe fn put_empty(at: u64, len: usize, how: How, flags: i32) -> Result<u64, Errno> {
    let fd = empty_file(how.read_only)?;
    // SAFETY: the caller promises that, with MAP_FIXED, the range may be replaced.
    unsafe { map(at, len, how, flags | libc::MAP_NORESERVE, fd.as_raw_fd(), 0) }
}

/// Maps pieces of a file over a range of addresses that begins at `start` and shows the file from
/// `offset` on. Pieces, or parts of pieces, outside of the range are left out.
///
/// # Safety
/// The program may replace the range.
pub unsafe fn put_pieces(
    fs: &Fs,
    pieces: &[MapPiece],
    (start, len): (u64, u64),
    offset: u64,
    how: How,
) -> Result<(), Errno> {
    for p in pieces {
        let from = p.at.max(offset);
        let to = (p.at + p.len as u64).min(offset + len);
        if from < to {
            let piece = MapPiece {
                at: from,
                len: (to - from) as usize,
                segment_offset: p.segment_offset + (from - p.at),
                ..*p
            };
            // SAFETY: the piece lies inside the range, which the caller lets this function replace.
            unsafe { put_piece(fs, &piece, start + (from - offset), how)? };
        }
    }
    Ok(())
}

unsafe fn put_piece(fs: &Fs, piece: &MapPiece, to: u64, how: How) -> Result<(), Errno> {
    if let Some(fd) = piece.medium.checked_sub(shadow_copy::MEDIUM) {
        let flags = libc::MAP_FIXED | how.flags;
        // SAFETY: the caller lets this function replace the range; `fd` is of an open shadow copy.
        return unsafe { map(to, piece.len, how, flags, fd as i32, piece.segment_offset) }
            .map(|_| ());
    }
    let segment = fs.mappings().segment(piece.medium, how.read_only)?;
    let flags = libc::MAP_FIXED | how.flags;
    // SAFETY: the range is one that the caller lets this function replace.
    let first = unsafe {
        map(
            to,
            piece.len,
            how,
            flags,
            segment.as_raw_fd(),
            piece.segment_offset,
        )
    };
    let Err(Errno::PERM | Errno::ACCESS) = first else {
        return first.map(|_| ());
    };
    if how.prot & libc::PROT_EXEC == 0 || how.shared {
        return first.map(|_| ());
    }
    // The segment is on a file system mounted noexec: a private copy of the bytes suffices.
    let writable = How {
        prot: libc::PROT_READ | libc::PROT_WRITE,
        ..how
    };
    // SAFETY: the caller lets this function replace the range; the copy stays inside it.
    unsafe {
        map(to, piece.len, writable, flags | libc::MAP_ANONYMOUS, -1, 0)?;
        let bytes = std::slice::from_raw_parts_mut(to as *mut u8, piece.len);
        let segment = fs.mappings().segment(piece.medium, false)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = piece.segment_offset + done as u64;
            match rustix::io::pread(&segment, &mut bytes[done..], at)? {
                0 => return Err(Errno::IO),
                n => done += n,
            }
        }
        let prot = how.prot.into();
        results::check(raw(
            libc::SYS_mprotect,
            [to as i64, piece.len as i64, prot, 0, 0, 0],
        ))?;
    }
    Ok(())
}

/// Maps the file's bytes at those addresses in `from..to` of a span that map the empty memfd.
/// Missing pages of the file are allocated, if they are at most `budget`.
///
/// # Errors
/// ENOSPC, EIO, ENOMEM.
pub fn fill(spans: &Spans, span: Span, from: u64, to: u64, budget: usize) -> Result<(), Errno> {
    fill_empty(spans, span, (from, to), budget, &empty(from, to))
}

/// Like [`fill`]. `empty` lists the parts of the range that map the empty memfd, and maybe parts of
/// other ranges.
fn fill_empty(
    spans: &Spans,
    span: Span,
    (from, to): (u64, u64),
    budget: usize,
    empty: &[Vma],
) -> Result<(), Errno> {
    let fs = spans.fs;
    let Some((live, size)) = span.file(fs) else {
        return Ok(());
    };
    let (from, to) = (from.max(span.start()), to.min(span.end()));
    if from >= to || span.offset_of(from) >= size {
        return Ok(());
    }
    let rest = &empty[empty.partition_point(|v| v.end <= from)..];
    let inside = &rest[..rest.partition_point(|v| v.start < to)];
    if inside.is_empty() {
        return Ok(());
    }
    let offset = span.offset_of(from);
    // The copy stays open until its pieces are mapped.
    let copy = if span.has(map_flag::COPY) {
        Some(ShadowCopy::of(fs, live).ok_or(Errno::IO)?)
    } else {
        None
    };
    let pieces = match &copy {
        Some(copy) => copy.pieces(offset..offset + (to - from), budget)?,
        None => fs
            .cluster()
            .mappings()
            .map(live, offset, (to - from) as usize, budget)?,
    };
    let mut result = Ok(());
    for &vma in inside {
        let (start, end) = (vma.start.max(from), vma.end.min(to));
        let how = How::of(span, vma);
        // SAFETY: these addresses map the empty memfd, in a mapping of the program.
        let put = unsafe {
            put_pieces(
                fs,
                &pieces,
                (start, end - start),
                span.offset_of(start),
                how,
            )
        };
        result = result.and(put);
    }
    result
}

/// Returns the parts of `from..to` that map the empty memfd, in the order of their addresses.
pub fn empty(from: u64, to: u64) -> Vec<Vma> {
    let mut found = Vec::new();
    vmas::each(from, to, |vma| {
        if vma.empty {
            found.push(Vma {
                start: vma.start.max(from),
                end: vma.end.min(to),
                ..vma
            });
        }
    });
    found
}

/// Maps the pages around `address`, which has been touched and lies inside the file. False if a
/// page is mapped at `address` already.
///
/// # Errors
/// ENOSPC, EIO, ENOMEM.
pub fn fill_around(spans: &Spans, span: Span, address: u64) -> Result<bool, Errno> {
    let offset = span.offset_of(address);
    let first = offset - offset % CHUNK;
    let from = address.saturating_sub(offset - first).max(span.start());
    let chunk_end = address + (first + CHUNK - offset);
    let to = (chunk_end + AROUND).min(span.end());
    let empty = empty(from, to);
    if !empty.iter().any(|v| v.start <= address && address < v.end) {
        return Ok(false);
    }
    fill_empty(spans, span, (from, chunk_end), usize::MAX, &empty)?;
    if span.has(map_flag::COPY) {
        let to = to.min(chunk_end + shadow_copy::AHEAD);
        fill_empty(spans, span, (chunk_end, to), usize::MAX, &empty)?;
    } else {
        fill_empty(spans, span, (chunk_end, to), 0, &empty)?;
    }
    Ok(true)
}

/// Maps new pages in the spans `some`, whose files have become longer.
pub fn fill_grown(spans: &Spans, some: &[Span]) {
    let (Some(from), Some(to)) = (
        some.iter().map(|s| s.start()).min(),
        some.iter().map(|s| s.end()).max(),
    ) else {
        return;
    };
    let empty = empty(from, to);
    for &span in some {
        let budget = if span.has(map_flag::COPY) {
            shadow_copy::EAGER / PAGE
        } else {
            eager_pages(spans.fs)
        };
        let _ = fill_empty(spans, span, (span.start(), span.end()), budget, &empty);
    }
}

/// Removes the pages beyond the ends of their files from the spans that are marked (their files
/// have become shorter), even if the files have grown again meanwhile.
pub fn cut(spans: &Spans) {
    let mut behind: Vec<(u64, Span)> = Vec::new();
    for (place, mark) in spans.table.take_marks() {
        let span = Span(place);
        if span.open().is_none() || span.len() == 0 {
            continue;
        }
        // The size of a remote file isn't requested: a process that waits for this one may be about
        // to truncate the file. Pages that the file still has are mapped again when they are
        // touched.
        let size = if span.has(map_flag::COPY) {
            Some(u64::MAX)
        } else {
            span.file(spans.fs).map(|(_, size)| size)
        };
        let Some(size) = size else { continue };
        let lowest = (u64::MAX - mark).checked_next_multiple_of(PAGE as u64);
        let size = size.min(lowest.unwrap_or(size));
        let from = span.start() + size.saturating_sub(span.offset_of(span.start()));
        if from < span.end() {
            span.set(map_flag::PARTIAL);
            behind.push((from, span));
        }
    }
    behind.sort_unstable_by_key(|&(from, _)| from);
    if behind.is_empty() {
        return;
    }
    let mut segments = segments(spans.fs);
    for (_, span) in behind.iter().filter(|(_, s)| s.has(map_flag::COPY)) {
        let live = span.open().and_then(|o| spans.fs.live_of(o).ok());
        let copy = live.and_then(|live| ShadowCopy::of(spans.fs, live));
        segments.extend(copy.and_then(|t| t.ino()));
    }
    let mut found: Vec<(Vma, u64, Span)> = Vec::new();
    let ranges = behind.iter().map(|&(from, span)| (from, span.end()));
    vmas::each_of(ranges, |vma| {
        if segments.contains(&vma.ino) {
            let rest = &behind[behind.partition_point(|(_, s)| s.end() <= vma.start)..];
            let inside = rest.iter().take_while(|&&(from, _)| from < vma.end);
            found.extend(inside.map(|&(from, span)| (vma, from, span)));
        }
    });
    for (vma, from, span) in found {
        let (from, to) = (vma.start.max(from), vma.end.min(span.end()));
        let (len, how) = ((to - from) as usize, How::of(span, vma));
        // SAFETY: these addresses map pages that the file has lost.
        let _ = unsafe { put_empty(from, len, how, libc::MAP_FIXED) };
    }
}

/// Returns the inode numbers of the pool's segments.
fn segments(fs: &Fs) -> Vec<u64> {
    let ino = |fd: Lent| rustix::fs::fstat(fd).ok().map(|s| s.st_ino);
    fs.mappings().segments().filter_map(ino).collect()
}

/// Returns the maximum number of pages that are fetched at once for a new mapping of a remote file.
pub fn fetched_pages(how: How) -> usize {
    match how.flags & (libc::MAP_LOCKED | libc::MAP_POPULATE) {
        0 => shadow_copy::EAGER / PAGE,
        _ => usize::MAX,
    }
}

/// Returns the maximum number of pages that are allocated at once for a new mapping of a file with
/// holes. If more pages are missing, or little room is left, each page is allocated when it is
/// touched.
pub fn eager_pages(fs: &Fs) -> usize {
    const MAX_FILLED_BYTES: u64 = 1 << 30;
    (fs.mappings().room() / 4).min(MAX_FILLED_BYTES) as usize / PAGE
}
