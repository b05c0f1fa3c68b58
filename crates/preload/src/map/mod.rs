//! Mapping files of a pool: the pages of the medium's segment themselves.
//!
//! A mapping is put together from the file's extents, each mapped from the segment, so
//! that it is coherent with read and write and with other processes by nature. Where the
//! file has no page, behind its end or in a hole, lies a file without a byte, whose pages
//! are SIGBUS; [`follow::on_fault`] then maps what is there by now. Which file lies where is kept
//! in a table ([`spans`]), whose places keep their files as long as they are mapped.
//!
//! - `copied.rs`, `away.rs`, `shadow_copy.rs`: files that lie on other nodes
//! - `spans.rs`: the table; `vmas.rs`: the kernel's view; `pages.rs`: mapping pieces
//! - `follow.rs`: what mappings show follows the files; `remap.rs`: mremap and
//!   remap_file_pages

mod away;
mod copied;
mod follow;
mod pages;
mod remap;
mod shadow_copy;
mod spans;
mod vmas;

use crate::pool::fds;
use crate::program::results::{errno, value};
use crate::program::signals::{self, Above};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs};
use forebay_store::PAGE;
use forebay_store::control::map_flag;
use forebay_store::process::is_critical;
use pages::How;
use spans::Spans;
use std::sync::atomic::{AtomicBool, Ordering::*};

pub use away::{
    after_change, after_cut, after_lock, before_change, before_exec, before_read, before_write,
    sync as write_back,
};
pub use follow::{before_exit, grown, resident};
pub use shadow_copy::sweep;
pub use spans::{after_fork, before_fork};

/// What the signal handler asks.
pub static ON_SIGNALS: Above = Above {
    on_fault: follow::on_fault,
    on_notice: follow::on_notice,
};

const WRITE: i32 = libc::PROT_WRITE;
/// Flags of mmap that are the kernel's business.
const PASSED: i32 = libc::MAP_32BIT
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE;
/// What MAP_SHARED_VALIDATE knows.
const KNOWN: i32 = PASSED
    | libc::MAP_TYPE
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK
    | MAP_ABOVE4G
    | MAP_UNINITIALIZED
    | libc::MAP_HUGE_2MB
    | libc::MAP_HUGE_1GB;
const MAP_ABOVE4G: i32 = 0x80;
const MAP_UNINITIALIZED: i32 = 0x400_0000;
/// No address space is longer.
const MAX_LEN: usize = 1 << 56;

fn page_up(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE)
}

fn aligned(address: i64) -> bool {
    (address as u64).is_multiple_of(PAGE as u64)
}

/// mmap.
pub unsafe fn mmap(a: &[i64; 6]) -> i64 {
    let (flags, fd) = (a[3] as i32, a[4] as i32);
    let file = if flags & libc::MAP_ANONYMOUS == 0 {
        fds::pool_file(fd)
    } else {
        None
    };
    match file {
        // SAFETY: the program's own arguments.
        Some((fs, open)) => value(unsafe { map_file(fs, open, a) }.map(|at| at as i64)),
        None if flags & libc::MAP_FIXED != 0 => {
            // SAFETY: as above.
            unsafe { replacing(libc::SYS_mmap, a, a[0] as u64, a[1] as usize) }
        }
        None => PASS,
    }
}

unsafe fn map_file(fs: &'static Fs, open: u32, a: &[i64; 6]) -> Result<u64, Errno> {
    let (at, len, prot, flags) = (a[0], a[1] as usize, a[2] as i32, a[3] as i32);
    let mode = fs.description(open).flags();
    if mode & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    let offset = u64::try_from(a[5]).map_err(|_| Errno::OVERFLOW)?;
    if len == 0 || !offset.is_multiple_of(PAGE as u64) {
        return Err(Errno::INVAL);
    }
    let len = page_up(len).filter(|&n| n <= MAX_LEN).ok_or(Errno::NOMEM)?;
    offset
        .checked_add(len as u64)
        .filter(|&end| end <= i64::MAX as u64)
        .ok_or(Errno::OVERFLOW)?;
    let shared = match flags & libc::MAP_TYPE {
        libc::MAP_SHARED => true,
        libc::MAP_SHARED_VALIDATE if flags & !KNOWN != 0 => return Err(Errno::OPNOTSUPP),
        libc::MAP_SHARED_VALIDATE => true,
        libc::MAP_PRIVATE => false,
        _ => return Err(Errno::INVAL),
    };
    let access = mode & libc::O_ACCMODE;
    let write = prot & WRITE != 0;
    if access == libc::O_WRONLY || shared && write && access != libc::O_RDWR {
        return Err(Errno::ACCESS);
    }
    let live = fs.live_of(open).map_err(|_| Errno::NODEV)?;
    fs.write_back_open(open);
    if shared && write {
        fs.check_shared_writing(open, live)?;
    }
    if fs.cluster().is_away(live) {
        if !(shared && access == libc::O_RDWR) {
            // SAFETY: as the program asked.
            return unsafe { copied::map_copy(fs, live, at, len, offset, prot, flags) };
        }
        away::check(fs, open)?;
    }
    let how = How {
        prot,
        shared,
        read_only: shared && (access == libc::O_RDONLY || !write && fs.only_grows(live)),
        flags: flags & (libc::MAP_LOCKED | libc::MAP_POPULATE | libc::MAP_NONBLOCK),
    };
    let mut spans = spans::lock_for(fs)?;
    let budget = pages::eager_pages(fs);
    // SAFETY: as the program asked.
    unsafe {
        map_range(
            &mut spans,
            open,
            at,
            len,
            offset,
            how,
            flags & PASSED,
            budget,
        )
    }
}

/// Makes a mapping of `len` bytes of a file from `offset` on.
///
/// # Safety
/// With MAP_FIXED, the range must be the program's to replace.
#[allow(
    clippy::too_many_arguments,
    reason = "what one mmap call says, and nothing that belongs together"
)]
unsafe fn map_range(
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
    let is_away = fs.cluster().is_away(live);
    let mut kind = 0;
    if how.shared {
        kind |= map_flag::SHARED;
        kind |= if is_away { map_flag::COPY } else { 0 };
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
        if kind & map_flag::CHANGES != 0 {
            fs.check_shared_writing_again(open, live)?;
        }
        let range = offset..offset + len as u64;
        let twin = if is_away {
            let twin = shadow_copy::Twin::make(spans, live, span, range.end)?;
            twin.refresh(range.clone())?;
            Some(twin)
        } else {
            None
        };
        let pieces = match &twin {
            Some(twin) => twin.pieces(range, pages::fetched_pages(how))?,
            None => match fs.cluster().map(live, offset, len, budget) {
                // Sparse, and no room after all: what isn't there is made when it is touched.
                Err(Errno::NOSPC) if budget == usize::MAX => {
                    fs.cluster().map(live, offset, len, 0)?
                }
                other => other?,
            },
        };
        let fixed = flags & libc::MAP_FIXED != 0 && aligned(at);
        if fixed {
            spans.split(at as u64)?;
            spans.split(at as u64 + len as u64)?;
        }
        // The whole range at once, as pages of an empty file; then the pieces over it.
        // SAFETY: the caller's promise.
        let start = unsafe { pages::put_empty(at as u64, len, how, flags)? };
        if fixed {
            spans.forget(start, start + len as u64);
        }
        // SAFETY: the range just mapped.
        let put = unsafe { pages::put_pieces(fs, &pieces, (start, len as u64), offset, how) };
        if let Err(e) = put {
            // SAFETY: as above.
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

/// Notes that files are mapped already: by the library that worked for the loader.
pub fn note_mappings(fs: &Fs) {
    spans::note();
    prepare(fs);
    // A notice that came before is lost.
    fs.process().catch_up();
}

/// Before the first mapping.
fn prepare(fs: &Fs) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, AcqRel) {
        forebay_store::on_shrink(follow::cut_all);
        signals::watch_notices();
        // Opened now, while that can be.
        fs.mappings().segments().for_each(|_| {});
    }
}

/// A call that puts something else at `at..at + len`, or nothing.
unsafe fn replacing(nr: i64, a: &[i64; 6], at: u64, len: usize) -> i64 {
    let end = page_up(len).and_then(|len| at.checked_add(len as u64));
    let (Some(mut spans), Some(end)) = (spans::of_call(), end) else {
        return PASS;
    };
    if !aligned(at as i64) || spans.within(at, end).next().is_none() {
        return PASS;
    }
    if let Err(e) = spans.split(at).and_then(|()| spans.split(end)) {
        return errno(e);
    }
    // SAFETY: the program's own call.
    let result = unsafe { raw(nr, *a) };
    if result >= 0 {
        spans.forget(at, end);
    }
    result
}

/// munmap.
pub unsafe fn munmap(a: &[i64; 6]) -> i64 {
    // SAFETY: the program's own call.
    unsafe { replacing(libc::SYS_munmap, a, a[0] as u64, a[1] as usize) }
}

/// mremap.
pub unsafe fn mremap(a: &[i64; 6]) -> i64 {
    match spans::of_call() {
        // SAFETY: the program's own call.
        Some(mut spans) => unsafe { remap::mremap(&mut spans, a) },
        None => PASS,
    }
}

/// remap_file_pages.
pub unsafe fn remap_file_pages(a: &[i64; 6]) -> i64 {
    match spans::of_call() {
        // SAFETY: the program's own call.
        Some(mut spans) => unsafe { remap::remap_file_pages(&mut spans, a) },
        None => PASS,
    }
}

/// mprotect and pkey_mprotect: notes which shared mappings become writable.
pub fn mprotect(a: &[i64; 6]) -> i64 {
    if a[2] as i32 & WRITE != 0
        && let Some(spans) = spans::of_call()
    {
        let (start, end) = range(a);
        for span in spans.within(start, end) {
            if !span.has(map_flag::SHARED) || span.has(map_flag::READ_ONLY | map_flag::CHANGES) {
                continue;
            }
            span.set(map_flag::CHANGES);
            let live = |open| spans.fs.live_of(open).ok().map(|live| (open, live));
            if let Some((open, live)) = span.open().and_then(live)
                && spans.fs.check_shared_writing_again(open, live).is_err()
            {
                span.unset(map_flag::CHANGES);
                return errno(Errno::ACCESS);
            }
        }
    }
    PASS
}

/// The range of addresses that a call's first two arguments name.
fn range(a: &[i64; 6]) -> (u64, u64) {
    let start = a[0] as u64;
    let len = page_up(a[1] as usize).unwrap_or(usize::MAX) as u64;
    (start, start.saturating_add(len))
}

/// msync: the kernel writes pages back; then the files' records follow.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn msync(a: &[i64; 6]) -> i64 {
    let Some(spans) = spans::of_call() else {
        return PASS;
    };
    let (start, end) = range(a);
    if spans.within(start, end).next().is_none() {
        return PASS;
    }
    // SAFETY: the program's own call.
    let mut result = unsafe { raw(libc::SYS_msync, *a) };
    if result != 0 && result != -i64::from(libc::ENOMEM) {
        return result;
    }
    let cluster = spans.fs.cluster();
    let concerns = |s: &spans::Span| s.has(map_flag::CHANGES | map_flag::COPY);
    for span in spans.within(start, end).filter(concerns) {
        if span.has(map_flag::COPY)
            && let Err(e) = away::msync(&spans, span, (start, end), a[2] as i32)
        {
            result = errno(e);
            continue;
        }
        if let Some(live) = span.open().and_then(|o| spans.fs.live_of(o).ok()) {
            let _ = cluster.touch_mapped(live, span.0.flags.load(Relaxed));
            if a[2] as i32 & libc::MS_SYNC != 0
                && let Err(e) = cluster.sync(live)
                && result == 0
            {
                result = errno(e);
            }
        }
    }
    result
}

/// madvise: what makes pages or takes them away.
pub fn madvise(a: &[i64; 6]) -> i64 {
    const REMOVE: i32 = libc::MADV_REMOVE;
    const POPULATE: [i32; 2] = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE];
    let advice = a[2] as i32;
    if POPULATE.contains(&advice) && !is_critical() {
        let _ = resident(a[0] as u64, a[1] as usize);
        return PASS;
    }
    if advice != REMOVE {
        return PASS;
    }
    let Some(spans) = spans::of_call() else {
        return PASS;
    };
    let (start, end) = range(a);
    if spans.within(start, end).next().is_none() {
        return PASS;
    }
    if !aligned(a[0]) {
        return errno(Errno::INVAL);
    }
    let covered: u64 = spans
        .within(start, end)
        .map(|s| s.end().min(end) - s.start().max(start))
        .sum();
    if covered != end - start {
        return errno(Errno::NOMEM);
    }
    let writable = spans
        .within(start, end)
        .all(|s| s.has(map_flag::SHARED) && !s.has(map_flag::READ_ONLY));
    if !writable {
        return errno(Errno::ACCESS);
    }
    value((|| {
        for span in spans.within(start, end) {
            if let (Some(open), Some((live, _))) = (span.open(), span.file(spans.fs)) {
                let from = span.start().max(start);
                let (at, len) = (span.offset_of(from), span.end().min(end) - from);
                let copied = before_change(spans.fs, open);
                spans.fs.cluster().punch(live, at, len, false)?;
                after_change(spans.fs, open, copied);
            }
        }
        Ok(0)
    })())
}

/// mlock and mlock2: what is to be locked has to be there.
pub fn mlock(a: &[i64; 6]) -> i64 {
    if !is_critical() {
        let _ = resident(a[0] as u64, a[1] as usize);
    }
    PASS
}
