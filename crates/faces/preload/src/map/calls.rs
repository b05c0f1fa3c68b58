//! mmap, munmap, mremap, msync and the other system calls on mappings.

use super::follow::resident;
use super::mapping::{PASSED, WRITE, aligned, map_range, page_up, replacing};
use super::pages::{self, How};
use super::remote::{self, after_change, before_change};
use super::spans;
use super::{copied, locked, remap};
use crate::pool::fds;
use crate::program::results::{errno, value};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs};
use forebay_store::PAGE;
use forebay_store::control_region::map_flag;
use forebay_store::process::is_critical;
use std::sync::atomic::Ordering::*;

/// The flags that MAP_SHARED_VALIDATE accepts.
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
/// Upper bound of a mapping's length; no address space is longer. Bytes.
const MAX_LEN: usize = 1 << 56;

/// Serves mmap.
pub unsafe fn mmap(a: &[i64; 6]) -> i64 {
    let (flags, fd) = (a[3] as i32, a[4] as i32);
    let file = if flags & libc::MAP_ANONYMOUS == 0 {
        fds::pool_file(fd)
    } else {
        None
    };
    match file {
        // SAFETY: the caller passes the arguments of a call that the program makes.
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
    let offset = a[5] as u64;
    if !offset.is_multiple_of(PAGE as u64) {
        return Err(Errno::INVAL);
    }
    if mode & libc::O_PATH != 0 {
        return Err(Errno::BADF);
    }
    if len == 0 {
        return Err(Errno::INVAL);
    }
    let len = page_up(len).filter(|&n| n <= MAX_LEN).ok_or(Errno::NOMEM)?;
    let end = offset.checked_add(len as u64);
    let most = if fs.description(open).is_dir() {
        u64::MAX
    } else {
        i64::MAX as u64
    };
    if end.is_none_or(|end| end > most) {
        return Err(Errno::OVERFLOW);
    }
    let shared = match flags & libc::MAP_TYPE {
        libc::MAP_SHARED => true,
        libc::MAP_SHARED_VALIDATE if flags & !KNOWN != 0 => return Err(Errno::OPNOTSUPP),
        libc::MAP_SHARED_VALIDATE => true,
        libc::MAP_PRIVATE => false,
        _ => return Err(Errno::INVAL),
    };
    let access = mode & libc::O_ACCMODE;
    let write = prot & WRITE != 0;
    let reads = matches!(access, libc::O_RDONLY | libc::O_RDWR);
    if !reads || shared && write && access != libc::O_RDWR {
        return Err(Errno::ACCESS);
    }
    let live = fs.live_of(open).map_err(|_| Errno::NODEV)?;
    fs.origin_gate().bring_whole(open)?;
    fs.buffers().write_back_open(open);
    if shared && write {
        fs.controls().check_shared_writing(open, live)?;
    }
    if fs.cluster().data().is_remote(live) {
        if !(shared && access == libc::O_RDWR) {
            // SAFETY: the range is the one that the program asked for.
            return unsafe { copied::map_copy(fs, live, at, len, offset, prot, flags) };
        }
        remote::check(fs, open)?;
    }
    let how = How {
        prot,
        shared,
        read_only: shared && (access == libc::O_RDONLY || !write && fs.controls().only_grows(live)),
        flags: flags & (libc::MAP_LOCKED | libc::MAP_POPULATE | libc::MAP_NONBLOCK),
    };
    let mut spans = locked::lock_for(fs)?;
    let budget = pages::eager_pages(fs);
    // SAFETY: the range is the one that the program asked for.
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

/// Serves munmap.
pub unsafe fn munmap(a: &[i64; 6]) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe { replacing(libc::SYS_munmap, a, a[0] as u64, a[1] as usize) }
}

/// Serves mremap.
pub unsafe fn mremap(a: &[i64; 6]) -> i64 {
    match locked::of_call() {
        // SAFETY: the caller passes the arguments of a call that the program makes.
        Some(mut spans) => unsafe { remap::mremap(&mut spans, a) },
        None => PASS,
    }
}

/// Serves remap_file_pages.
pub unsafe fn remap_file_pages(a: &[i64; 6]) -> i64 {
    match locked::of_call() {
        // SAFETY: the caller passes the arguments of a call that the program makes.
        Some(mut spans) => unsafe { remap::remap_file_pages(&mut spans, a) },
        None => PASS,
    }
}

/// Serves mprotect and pkey_mprotect: records which shared mappings become writable.
pub fn mprotect(a: &[i64; 6]) -> i64 {
    if a[2] as i32 & WRITE != 0
        && let Some(spans) = locked::of_call()
    {
        let (start, end) = range(a);
        for span in spans.within(start, end) {
            if !span.has(map_flag::SHARED) || span.has(map_flag::READ_ONLY | map_flag::CHANGES) {
                continue;
            }
            span.set(map_flag::CHANGES);
            let live = |open| spans.fs.live_of(open).ok().map(|live| (open, live));
            if let Some((open, live)) = span.open().and_then(live) {
                let fs = spans.fs;
                let checked = fs
                    .controls()
                    .check_shared_writing_again(open, live)
                    .map_err(|_| Errno::ACCESS);
                if let Err(e) = checked.and_then(|()| fs.mappings().begin_storing(live)) {
                    span.unset(map_flag::CHANGES);
                    return errno(e);
                }
            }
        }
    }
    PASS
}

/// Returns the range of addresses in a call's first two arguments.
fn range(a: &[i64; 6]) -> (u64, u64) {
    let start = a[0] as u64;
    let len = page_up(a[1] as usize).unwrap_or(usize::MAX) as u64;
    (start, start.saturating_add(len))
}

/// Serves msync: the kernel writes back the pages; then this library writes the files' records.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn msync(a: &[i64; 6]) -> i64 {
    let Some(spans) = locked::of_call() else {
        return PASS;
    };
    let (start, end) = range(a);
    if spans.within(start, end).next().is_none() {
        return PASS;
    }
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let mut result = unsafe { raw(libc::SYS_msync, *a) };
    if result != 0 && result != -i64::from(libc::ENOMEM) {
        return result;
    }
    let cluster = spans.fs.cluster();
    let concerns = |s: &spans::Span| s.has(map_flag::CHANGES | map_flag::COPY);
    for span in spans.within(start, end).filter(concerns) {
        if span.has(map_flag::COPY)
            && let Err(e) = remote::msync(&spans, span, (start, end), a[2] as i32)
        {
            result = errno(e);
            continue;
        }
        if let Some(live) = span.open().and_then(|o| spans.fs.live_of(o).ok()) {
            let _ = cluster
                .store()
                .mappings()
                .touch_mapped(live, span.0.flags.load(Relaxed));
            if a[2] as i32 & libc::MS_SYNC != 0
                && let Err(e) = cluster.data().sync(live)
                && result == 0
            {
                result = errno(e);
            }
        }
    }
    result
}

/// Whether pages of the range are locked in memory: locked pages can't be marked cold. (Linux
/// before 5.4 doesn't know MADV_COLD at all; there locked pages are removed.)
fn is_locked(start: u64, end: u64) -> bool {
    let cold = |len: u64| {
        let call = [start as i64, len as i64, libc::MADV_COLD.into(), 0, 0, 0];
        // SAFETY: MADV_COLD changes no content of pages.
        unsafe { raw(libc::SYS_madvise, call) }
    };
    cold(0) == 0 && cold(end - start) == errno(Errno::INVAL)
}

/// Serves madvise with advice that allocates pages or removes them.
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
    let Some(spans) = locked::of_call() else {
        return PASS;
    };
    let (start, end) = range(a);
    if spans.within(start, end).next().is_none() {
        return PASS;
    }
    if !aligned(a[0]) || is_locked(start, end) {
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
                spans.fs.cluster().data().punch(live, at, len, false)?;
                after_change(spans.fs, open, copied);
            }
        }
        Ok(0)
    })())
}

/// Serves mlock and mlock2: first allocates the pages of the range to be locked.
pub fn mlock(a: &[i64; 6]) -> i64 {
    if !is_critical() {
        let _ = resident(a[0] as u64, a[1] as usize);
    }
    PASS
}
