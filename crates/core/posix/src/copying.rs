//! Copying between open files: copy_file_range(2), and the faces' operations that use it.
//!
//! The cluster copies, step by step, on the nodes that hold the bytes. This module checks access,
//! offsets, limits and controls, and moves the descriptions' offsets.

use crate::Fs;
use forebay_media::size_limit;
use forebay_store::controls::Change;
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

impl Fs {
    /// copy_file_range(2): copies up to `len` bytes from one open file to another. Where no offset
    /// is given, the description's current offset is used and advanced. Returns the number of bytes
    /// copied: less than `len` at the end of the first file, or if space runs out.
    ///
    /// # Errors
    /// EBADF (not open for reading, or for writing, or the second file is open for appending),
    /// EISDIR; EINVAL: both are one file, and the ranges overlap; errors of reading and writing.
    pub fn copy_range(
        &self,
        (from, at): (u32, Option<u64>),
        (to, to_at): (u32, Option<u64>),
        len: u64,
    ) -> Result<u64> {
        let (source, live) = (
            self.check_access(from, false)?,
            self.check_access(to, true)?,
        );
        let cluster = self.cluster();
        let (input, output) = (
            cluster.store().objects().open_file(from),
            cluster.store().objects().open_file(to),
        );
        let flags = output.flags.load(Relaxed) as i32;
        if flags & libc::O_APPEND != 0 {
            return Err(Errno::BADF);
        }
        let start = at.unwrap_or_else(|| input.offset.load(Relaxed));
        let to_start = to_at.unwrap_or_else(|| output.offset.load(Relaxed));
        // Buffered writes of either file are published first.
        let size = self.size(source)?;
        self.buffers().write_back_open(to);
        self.buffers().look_again_open(to);
        let len = len.min(size.saturating_sub(start));
        if source == live && start.abs_diff(to_start) < len {
            return Err(Errno::INVAL);
        }
        let len = match size_limit() {
            u64::MAX => len,
            limit => {
                self.below(limit, to_start, usize::try_from(len).unwrap_or(usize::MAX))? as u64
            }
        };
        if len > 0 {
            self.before_change(live)?;
            self.origin_gate().bring_range(from, start, len)?;
        }
        let mut done = 0;
        let mut copy = || {
            while done < len {
                match cluster.data().copy(
                    (source, start + done),
                    (live, to_start + done),
                    len - done,
                ) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(e) if done == 0 => return Err(e),
                    // The next call returns the error.
                    Err(_) => break,
                }
            }
            Ok(())
        };
        let controls = self.controls();
        match controls.changing(to, live, Change::From(Some(to_start)), &mut copy) {
            Err(Errno::DQUOT) => {
                let more = (to_start + len).saturating_sub(self.size(live)?);
                self.origin_gate().with_quota(to, more, || {
                    controls.changing(to, live, Change::From(Some(to_start)), &mut copy)
                })?
            }
            done => done?,
        }
        if at.is_none() {
            input.offset.store(start + done, Release);
        }
        if to_at.is_none() {
            output.offset.store(to_start + done, Release);
        }
        self.notify_bytes(from, done as usize, libc::IN_ACCESS);
        self.notify_bytes(to, done as usize, libc::IN_MODIFY);
        if flags & libc::O_DSYNC != 0 && done > 0 {
            cluster.data().sync(live)?;
        }
        Ok(done)
    }
}
