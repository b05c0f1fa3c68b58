//! mremap and remap_file_pages: a mapping grows, shrinks, moves, is duplicated, or shows other
//! pages.
//!
//! The kernel's mremap doesn't suffice: a mapping of a pool file consists of several kernel
//! mappings. The kernel moves each of them, with its protection and its privately written pages;
//! the added range is mapped separately.

use super::mapping::{aligned, map_range, page_up};
use super::pages::{self, How};
use super::remote;
use super::spans::{Span, Spans};
use super::vmas::{self, Vma};
use crate::program::results::{self, errno, value};
use forebay_intercept::{PASS, raw};
use forebay_posix::Errno;
use forebay_store::control_region::map_flag;
use std::sync::atomic::Ordering::*;

const MAYMOVE: i64 = libc::MREMAP_MAYMOVE as i64;
const FIXED: i64 = libc::MREMAP_FIXED as i64;
const DONTUNMAP: i64 = libc::MREMAP_DONTUNMAP as i64;

/// Serves mremap(old address, old length, new length, flags, new address).
pub unsafe fn mremap(spans: &mut Spans, a: &[i64; 6]) -> i64 {
    let (old, flags) = (a[0] as u64, a[3]);
    let lens = (page_up(a[1] as usize), page_up(a[2] as usize));
    // No address space is that long: the kernel returns EINVAL.
    let fits = |len: usize| len < 1 << 47;
    let (Some(old_len), Some(new_len)) = (lens.0.filter(|&n| fits(n)), lens.1.filter(|&n| fits(n)))
    else {
        return PASS;
    };
    let old_end = old.saturating_add(old_len.max(1) as u64);
    if spans.within(old, old_end).next().is_none() {
        // The old range isn't a mapping of a pool file, but it may be moved over one.
        if flags & FIXED == 0 {
            return PASS;
        }
        let to = a[4] as u64;
        let end = to.saturating_add(new_len as u64);
        if spans.within(to, end).next().is_none() {
            return PASS;
        }
        if let Err(e) = spans.split(to).and_then(|()| spans.split(end)) {
            return errno(e);
        }
        // SAFETY: the program makes this call; its arguments are passed on unchanged.
        let result = unsafe { raw(libc::SYS_mremap, *a) };
        if result >= 0 {
            remote::unmapped(spans, to, end);
        }
        return result;
    }
    // SAFETY: the ranges are those that the program asked for.
    value(unsafe { remap(spans, old, old_len, new_len, flags, a[4] as u64) }.map(|at| at as i64))
}

unsafe fn remap(
    spans: &mut Spans,
    old: u64,
    old_len: usize,
    new_len: usize,
    flags: i64,
    new: u64,
) -> Result<u64, Errno> {
    let fixed = flags & FIXED != 0;
    let keep = flags & DONTUNMAP != 0;
    let new_end = new.checked_add(new_len as u64).ok_or(Errno::INVAL)?;
    let old_end = old + old_len as u64;
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0
        || (fixed || keep) && flags & MAYMOVE == 0
        || keep && old_len != new_len
        || !aligned(old as i64)
        || new_len == 0
        || fixed && (!aligned(new as i64) || new < old_end && old < new_end)
    {
        return Err(Errno::INVAL);
    }
    if old_len > new_len && !keep {
        // Unmaps the end.
        // SAFETY: the program asked to unmap this range.
        unsafe { unmap(spans, old + new_len as u64, old_end)? };
    }
    if old_len >= new_len && !fixed && !keep {
        return Ok(old);
    }
    let old_len = old_len.min(new_len);
    let old_end = old + old_len as u64;
    let span = spans.at(old).ok_or(Errno::FAULT)?;
    if old_end > span.end() {
        // The range lies in more than one mapping.
        return Err(Errno::FAULT);
    }
    let offset = span.offset_of(old);
    let open = span.open().ok_or(Errno::FAULT)?;
    let last = vmas::at(old_end.max(old + 1) - 1).ok_or(Errno::FAULT)?;
    let how = How::of(span, last);
    let more = new_len - old_len;
    if old_len == 0 {
        if !how.shared {
            return Err(Errno::INVAL);
        }
        if flags & MAYMOVE == 0 {
            return Err(Errno::NOMEM);
        }
        let place = if fixed { libc::MAP_FIXED } else { 0 };
        let at = if fixed { new as i64 } else { 0 };
        let budget = pages::eager_pages(spans.fs);
        // SAFETY: the range is the one that the program asked for.
        return unsafe { map_range(spans, open, at, new_len, offset, how, place, budget) };
    }
    offset
        .checked_add(new_len as u64)
        .filter(|&end| end <= i64::MAX as u64)
        .ok_or(Errno::INVAL)?;
    if !fixed && !keep && old_end == span.end() {
        let place = libc::MAP_FIXED_NOREPLACE;
        let (at, from) = (old_end as i64, offset + old_len as u64);
        let budget = pages::eager_pages(spans.fs);
        // SAFETY: with MAP_FIXED_NOREPLACE, no existing mapping is replaced.
        match unsafe { map_range(spans, open, at, more, from, how, place, budget) } {
            Ok(_) => return Ok(old),
            Err(Errno::EXIST | Errno::NOMEM | Errno::INVAL | Errno::PERM) => {}
            Err(e) => return Err(e),
        }
    }
    if flags & MAYMOVE == 0 {
        return Err(Errno::NOMEM);
    }
    // SAFETY: the ranges are those that the program asked for.
    unsafe {
        move_to(
            spans,
            span,
            (old, old_end),
            new_len,
            how,
            fixed.then_some(new),
            keep,
        )
    }
}

/// Moves (or copies, with `keep`) the mapping at `old` to a range of `len` bytes: at `fixed`, or
/// where the kernel finds room.
unsafe fn move_to(
    spans: &mut Spans,
    span: Span,
    old: (u64, u64),
    len: usize,
    how: How,
    fixed: Option<u64>,
    keep: bool,
) -> Result<u64, Errno> {
    let offset = span.offset_of(old.0);
    let flags = span.0.flags.load(Relaxed);
    let moved = spans.claim(span.open().ok_or(Errno::FAULT)?, flags)?;
    let result = (|| {
        spans.split(old.0)?;
        spans.split(old.1)?;
        if let Some(to) = fixed {
            spans.split(to)?;
            spans.split(to + len as u64)?;
        }
        let place = if fixed.is_some() { libc::MAP_FIXED } else { 0 };
        // Maps the empty memfd over the whole new range first.
        // SAFETY: the range is the one that the program asked for.
        let to = unsafe { pages::put_empty(fixed.unwrap_or(0), len, how, place)? };
        if fixed.is_some() {
            remote::unmapped(spans, to, to + len as u64);
        }
        // SAFETY: both ranges are mappings of pool files.
        if let Err(e) = unsafe { move_pages(old, to, keep) } {
            // SAFETY: moves the pages back to their old addresses, and unmaps the range just
            // mapped.
            unsafe {
                let _ = move_pages((to, to + (old.1 - old.0)), old.0, false);
                raw(libc::SYS_munmap, [to as i64, len as i64, 0, 0, 0, 0]);
            }
            return Err(e);
        }
        Ok(to)
    })();
    let to = match result {
        Ok(to) => to,
        Err(e) => {
            spans.release(moved);
            return Err(e);
        }
    };
    spans
        .within(old.0, old.1)
        .for_each(|s| spans.inherit_cut(moved, s));
    if !keep {
        remote::unmapped(spans, old.0, old.1);
    }
    spans.publish(moved, to, len as u64, offset);
    let from = to + (old.1 - old.0);
    if from < to + len as u64 {
        moved.set(map_flag::PARTIAL);
        let budget = pages::eager_pages(spans.fs);
        let _ = pages::fill(spans, moved, from, to + len as u64, budget);
    }
    spans.join(moved);
    Ok(to)
}

/// Makes the kernel move each kernel mapping in `from` to the same offset from `to`.
unsafe fn move_pages(from: (u64, u64), to: u64, keep: bool) -> Result<(), Errno> {
    let mut parts: Vec<Vma> = Vec::new();
    if !vmas::each(from.0, from.1, |vma| parts.push(vma)) {
        return Err(Errno::NOMEM);
    }
    let flags = MAYMOVE | FIXED | if keep { DONTUNMAP } else { 0 };
    for part in parts {
        let (start, end) = (part.start.max(from.0), part.end.min(from.1));
        let (len, new) = ((end - start) as i64, to + (start - from.0));
        // SAFETY: the caller lets this function move these mappings to the range at `to`.
        results::check(unsafe {
            raw(
                libc::SYS_mremap,
                [start as i64, len, len, flags, new as i64, 0],
            )
        })?;
    }
    Ok(())
}

unsafe fn unmap(spans: &mut Spans, start: u64, end: u64) -> Result<(), Errno> {
    spans.split(start)?;
    spans.split(end)?;
    // SAFETY: the caller lets this function unmap the range.
    results::check(unsafe {
        raw(
            libc::SYS_munmap,
            [start as i64, (end - start) as i64, 0, 0, 0, 0],
        )
    })?;
    remote::unmapped(spans, start, end);
    Ok(())
}

/// Serves remap_file_pages(address, length, 0, page, flags): maps other pages of the same file.
pub unsafe fn remap_file_pages(spans: &mut Spans, a: &[i64; 6]) -> i64 {
    let start = a[0] as u64;
    let Some(len) = page_up(a[1] as usize) else {
        return PASS;
    };
    let Some(span) = spans.within(start, start.saturating_add(len as u64)).next() else {
        return PASS;
    };
    value((|| {
        let page = u64::try_from(a[3]).map_err(|_| Errno::INVAL)?;
        let offset = page
            .checked_mul(forebay_store::PAGE as u64)
            .ok_or(Errno::INVAL)?;
        let end = offset.checked_add(len as u64);
        if a[2] != 0
            || len == 0
            || !aligned(a[0])
            || start < span.start()
            || start + len as u64 > span.end()
            || !span.has(map_flag::SHARED)
            || end.is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Errno::INVAL);
        }
        let how = How::of(span, vmas::at(start).ok_or(Errno::INVAL)?);
        let open = span.open().ok_or(Errno::INVAL)?;
        let budget = pages::eager_pages(spans.fs);
        // SAFETY: replaces a part of a mapping of a pool file, as the program asked.
        unsafe { map_range(spans, open, a[0], len, offset, how, libc::MAP_FIXED, budget)? };
        Ok(0)
    })())
}
