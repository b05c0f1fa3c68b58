//! Mapping files of a pool: the pages of the medium's segment themselves.
//!
//! A mapping is put together from the file's extents, each mapped from the segment, so
//! that it is coherent with read and write and with other processes by nature. Behind the
//! end of the file lies an empty file, whose pages are SIGBUS. The process keeps a
//! reference to the file until all of the mapping is gone.

use crate::fds;
use crate::paths::{errno, value};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs};
use forebay_store::PAGE;
use forebay_store::process::Critical;
use rustix::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

static EMPTY: AtomicI32 = AtomicI32::new(-1);
static ANY: AtomicBool = AtomicBool::new(false);

/// Notes that files may be mapped already.
pub fn note_mappings() {
    ANY.store(true, Release);
}

/// A file without a byte.
fn empty_file() -> Result<i32, Errno> {
    let fd = EMPTY.load(Acquire);
    if fd >= 0 {
        return Ok(fd);
    }
    let made = rustix::fs::memfd_create("forebay-end", rustix::fs::MemfdFlags::CLOEXEC)?;
    let new = forebay_media::lift(made).into_raw_fd();
    fds::watch(new);
    EMPTY.store(new, Release);
    Ok(new)
}

unsafe fn kernel_map(
    at: i64,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: u64,
) -> Result<i64, Errno> {
    // SAFETY: the caller's promise.
    fds::check(unsafe {
        raw(
            libc::SYS_mmap,
            [
                at,
                len as i64,
                prot.into(),
                flags.into(),
                fd.into(),
                offset as i64,
            ],
        )
    })
}

/// mmap.
pub unsafe fn mmap(a: &[i64; 6]) -> i64 {
    let (prot, flags, fd) = (a[2] as i32, a[3] as i32, a[4] as i32);
    if flags & libc::MAP_ANONYMOUS != 0 {
        return PASS;
    }
    let Some((fs, open)) = fds::pool_file(fd) else {
        return PASS;
    };
    let _critical = Critical::enter();
    // SAFETY: the program's own arguments.
    value(unsafe { map_file(fs, open, a[0], a[1] as usize, prot, flags, a[5]) })
}

unsafe fn map_file(
    fs: &Fs,
    open: u32,
    at: i64,
    len: usize,
    prot: i32,
    flags: i32,
    offset: i64,
) -> Result<i64, Errno> {
    let store = fs.store();
    let access = store.open_file(open).flags.load(Relaxed) as i32 & libc::O_ACCMODE;
    let kind = flags & libc::MAP_TYPE;
    let shared = kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE;
    let write = prot & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || shared && write && access != libc::O_RDWR {
        return Err(Errno::ACCESS);
    }
    let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
    if len == 0 || !offset.is_multiple_of(PAGE as u64) {
        return Err(Errno::INVAL);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
    let live = fs.live_of(open).map_err(|_| Errno::NODEV)?;
    let pieces = store.map(live, offset, len)?;
    // A reference for as long as the mapping lasts.
    let place = claim(fs, open, shared && write)?;
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let result = (|| {
        // The whole range at once, as pages of an empty file; then the pieces over it.
        let how = kind | fixed | flags & (libc::MAP_NORESERVE | libc::MAP_32BIT);
        // SAFETY: as the program asked; a MAP_FIXED range is the program's to replace.
        let start = unsafe { kernel_map(at, len, prot, how, empty_file()?, 0)? };
        let mut done = 0;
        for piece in &pieces {
            let to = start + done as i64;
            // SAFETY: inside the range just mapped.
            let mapped = unsafe { map_piece(fs, piece, to, prot, kind) };
            if let Err(e) = mapped {
                // SAFETY: the range just mapped.
                unsafe { raw(libc::SYS_munmap, [start, len as i64, 0, 0, 0, 0]) };
                return Err(e);
            }
            done += piece.len;
        }
        Ok(start)
    })();
    match result {
        Ok(start) => {
            place.address.store(start as u64, Release);
            place.len.store(len as u64, Release);
            ANY.store(true, Release);
            if shared && write {
                let _ = store.touch_open(live);
            }
            Ok(start)
        }
        Err(e) => {
            if let Some(open) = place.open.swap(0, AcqRel).checked_sub(1) {
                let _ = store.open_release(open);
            }
            Err(e)
        }
    }
}

unsafe fn map_piece(
    fs: &Fs,
    piece: &forebay_store::MapPiece,
    to: i64,
    prot: i32,
    kind: i32,
) -> Result<(), Errno> {
    let medium = fs.store().media().get(piece.medium).ok_or(Errno::IO)?;
    let segment = medium.file()?.as_raw_fd();
    let how = kind | libc::MAP_FIXED;
    // SAFETY: the caller's range.
    let first = unsafe { kernel_map(to, piece.len, prot, how, segment, piece.segment_offset) };
    let Err(Errno::PERM | Errno::ACCESS) = first else {
        return first.map(|_| ());
    };
    if prot & libc::PROT_EXEC == 0 || kind != libc::MAP_PRIVATE {
        return first.map(|_| ());
    }
    // A file system mounted noexec: a private copy does as well.
    let anonymous = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's range; the copy stays inside it.
    unsafe {
        kernel_map(to, piece.len, writable, anonymous, -1, 0)?;
        let bytes = std::slice::from_raw_parts_mut(to as *mut u8, piece.len);
        rustix::io::pread(medium.file()?, bytes, piece.segment_offset)?;
        fds::check(raw(
            libc::SYS_mprotect,
            [to, piece.len as i64, prot.into(), 0, 0, 0],
        ))?;
    }
    Ok(())
}

/// A place in the process's table of mappings, with a reference to the open file.
fn claim(
    fs: &Fs,
    open: u32,
    shared_write: bool,
) -> Result<&'static forebay_store::control::MapRef, Errno> {
    let store = fs.store();
    // SAFETY: areas stay mapped as long as the process uses them.
    let area: &'static forebay_store::control::ProcessArea =
        unsafe { &*std::ptr::from_ref(store.area()?) };
    let _section = store.section()?;
    store.open_retain(open);
    for place in &area.maps {
        if place.open.load(Relaxed) == 0
            && place
                .open
                .compare_exchange(0, open + 1, AcqRel, Relaxed)
                .is_ok()
        {
            place.len.store(0, Release);
            place.shared_write.store(u32::from(shared_write), Relaxed);
            return Ok(place);
        }
    }
    let _ = store.open_release(open);
    Err(Errno::NOMEM)
}

/// munmap: releases files whose mappings go entirely.
pub unsafe fn munmap(a: &[i64; 6]) -> i64 {
    if !ANY.load(Acquire) {
        return PASS;
    }
    // SAFETY: the program's own call.
    let result = unsafe { raw(libc::SYS_munmap, *a) };
    if result == 0 {
        release_within(a[0] as u64, (a[1] as usize).next_multiple_of(PAGE) as u64);
    }
    result
}

fn release_within(start: u64, len: u64) {
    let _critical = Critical::enter();
    let Some(fs) = crate::runtime::open_fs() else {
        return;
    };
    let Ok(area) = fs.store().area() else { return };
    for place in &area.maps {
        let open = place.open.load(Acquire);
        let (at, n) = (place.address.load(Relaxed), place.len.load(Relaxed));
        if open == 0 || n == 0 || at < start || at + n > start + len {
            continue;
        }
        let _section = fs.store().section().ok();
        if place
            .open
            .compare_exchange(open, 0, AcqRel, Relaxed)
            .is_ok()
        {
            if place.shared_write.load(Relaxed) != 0
                && let Ok(live) = fs.live_of(open - 1)
            {
                let _ = fs.store().touch_open(live);
            }
            let _ = fs.store().open_release(open - 1);
        }
    }
}

/// mremap: a mapping of a pool file can shrink or move, but not grow: what lies behind it
/// in the segment belongs to others.
pub fn mremap(a: &[i64; 6]) -> i64 {
    if !ANY.load(Acquire) || a[2] <= a[1] {
        return PASS;
    }
    let Some(fs) = crate::runtime::open_fs() else {
        return PASS;
    };
    let Ok(area) = fs.store().area() else {
        return PASS;
    };
    let start = a[0] as u64;
    let inside = area.maps.iter().any(|m| {
        let at = m.address.load(Relaxed);
        m.open.load(Relaxed) != 0 && start >= at && start < at + m.len.load(Relaxed)
    });
    if inside { errno(Errno::NOMEM) } else { PASS }
}

/// msync on a shared mapping: notes the change, or with MS_SYNC makes it durable; then lets
/// the kernel write pages back.
pub fn msync(a: &[i64; 6]) -> i64 {
    if ANY.load(Acquire)
        && let Some(fs) = crate::runtime::open_fs()
        && let Ok(area) = fs.store().area()
    {
        let start = a[0] as u64;
        for m in &area.maps {
            let at = m.address.load(Relaxed);
            let open = m.open.load(Relaxed);
            if open != 0
                && m.shared_write.load(Relaxed) != 0
                && start >= at
                && start < at + m.len.load(Relaxed)
                && let Ok(live) = fs.live_of(open - 1)
            {
                let _ = fs.store().touch_open(live);
                if a[2] as i32 & libc::MS_SYNC != 0
                    && let Err(e) = fs.store().sync(live)
                {
                    return errno(e);
                }
            }
        }
    }
    PASS
}
