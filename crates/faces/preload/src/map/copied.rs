//! Private copies for mappings of remote files, made when the file is mapped.
//!
//! MAP_PRIVATE promises no more than a copy. A copy also suffices for a shared mapping that nobody
//! can write through, unless the file is changed on other nodes (docs/explanation/semantics.md says
//! so). A shared mapping that may become writable doesn't use this module: what is written to a
//! private copy would be lost.

use super::mapping::{PASSED, replacing};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs};

/// Maps a private copy of `len` bytes (whole pages) of a file from `offset` on.
///
/// # Safety
/// With MAP_FIXED, the program may replace the range.
pub unsafe fn map_copy(
    fs: &Fs,
    live: u32,
    at: i64,
    len: usize,
    offset: u64,
    prot: i32,
    flags: i32,
) -> Result<u64, Errno> {
    let kind = flags & PASSED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let fill = libc::PROT_READ | libc::PROT_WRITE;
    let call = [at, len as i64, fill.into(), kind.into(), -1, 0];
    let fixed = flags & libc::MAP_FIXED != 0;
    // SAFETY: the caller promises that, with MAP_FIXED, the range may be replaced.
    let mut start = unsafe {
        if fixed {
            replacing(libc::SYS_mmap, &call, at as u64, len)
        } else {
            PASS
        }
    };
    if start == PASS {
        // SAFETY: the caller lets this function replace the range; no pool file is mapped there.
        start = unsafe { raw(libc::SYS_mmap, call) };
    }
    if start < 0 {
        return Err(Errno::from_raw_os_error(-start as i32));
    }
    let mut done = 0;
    let result = loop {
        if done == len {
            break Ok(());
        }
        // SAFETY: `len - done` bytes at `to` lie in the writable mapping just made.
        match unsafe {
            let to = (start as *mut u8).add(done);
            fs.cluster()
                .data()
                .read(live, offset + done as u64, to, len - done)
        } {
            // The rest of the copy stays zeros, since it is beyond the file's end.
            Ok(0) => break Ok(()),
            Ok(n) => done += n,
            Err(e) => break Err(e),
        }
    };
    let result = result.and_then(|()| {
        if prot == fill {
            return Ok(());
        }
        // SAFETY: changes only the mapping just made, which is `len` bytes long.
        let set = unsafe {
            raw(
                libc::SYS_mprotect,
                [start, len as i64, prot.into(), 0, 0, 0],
            )
        };
        match set {
            0 => Ok(()),
            e => Err(Errno::from_raw_os_error(-e as i32)),
        }
    });
    if let Err(e) = result {
        // SAFETY: unmaps only the mapping just made, which is `len` bytes long.
        unsafe { raw(libc::SYS_munmap, [start, len as i64, 0, 0, 0, 0]) };
        return Err(e);
    }
    Ok(start as u64)
}
