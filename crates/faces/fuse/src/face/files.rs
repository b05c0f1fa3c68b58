//! Answers requests that open, read, write and close files.

use super::{Call, Face, handle, inside, object};
use crate::protocol::{self as p, Args, Reply};
use forebay_posix::{Goal, ObjectId};
use forebay_store::Entry;
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::Relaxed;

/// Flags of open(2) that an open file description keeps. O_APPEND isn't one of them: O_APPEND may
/// change, and the kernel sends it with each write.
const DESCRIPTION_FLAGS: i32 = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC;
/// Maximum number of bytes that one request copies. The kernel then sends another request for the
/// rest, and between the two a signal can interrupt the program.
const MAX_COPY_BYTES: u64 = 64 << 20;

impl Face {
    /// Returns the file's node number if this description allows a writable mapping.
    fn can_be_stored_to(&self, open: u32) -> Option<u64> {
        let o = self.fs().store().objects().open_file(open);
        let both = o.flags.load(Relaxed) as i32 & libc::O_ACCMODE == libc::O_RDWR;
        both.then(|| o.id.load(Relaxed))
    }

    /// Closes a description to which the kernel has a handle.
    pub(super) fn close(&self, open: u32) -> Result<()> {
        if let Some(node) = self.can_be_stored_to(open) {
            self.cached.fetched.closed(node);
        }
        self.fs().store().objects().open_release(open)
    }
}

impl Call<'_> {
    /// Opens a description of the regular file `node`.
    pub(super) fn open_node(&self, node: u64, flags: i32) -> Result<u32> {
        let entry = Entry {
            id: object(node),
            kind: libc::S_IFREG,
        };
        // The kernel sends only the object. The name is for messages, and for watchers of the
        // directory.
        let (dir, name) = self
            .known
            .name(node)
            .unwrap_or((ObjectId::ROOT, Vec::new()));
        let fs = self.fs();
        fs.open_object(entry, flags, false, dir, &name)
            .map_err(|e| match e {
                Errno::NOENT => Errno::STALE,
                e => e,
            })
    }

    fn put_open(&self, open: u32, reply: &mut Reply) {
        if let Some(node) = self.can_be_stored_to(open) {
            self.cached.fetched.opened(node);
        }
        reply.u64(u64::from(open));
        reply.u32(p::FOPEN_DIRECT_IO | p::FOPEN_PARALLEL_DIRECT_WRITES);
        reply.u32(0);
    }

    pub(super) fn open(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (flags, more) = (a.u32()? as i32, a.u32()?);
        let open = self.open_node(
            self.head.node,
            flags & (DESCRIPTION_FLAGS | libc::O_TRUNC | libc::O_NONBLOCK),
        )?;
        self.fs().store().watches().notify_opened(open);
        if flags & libc::O_TRUNC != 0 {
            self.cached.set(self.head.node, 0);
            self.fs()
                .store()
                .watches()
                .notify_open(open, libc::IN_MODIFY);
        }
        if flags & libc::O_TRUNC != 0 && more & p::OPEN_KILL_SUIDGID != 0 {
            // The file stays open even if this fails.
            let _ = self.drop_privileges(self.head.node);
        }
        self.put_open(open, reply);
        Ok(())
    }

    /// Creates and opens a file. The kernel has just found the name free. If a file has the name
    /// now, replies ESTALE: the kernel then looks the name up again, and checks whether that file
    /// may be opened.
    pub(super) fn create(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (flags, mode) = (a.u32()? as i32, a.u32()?);
        a.skip(8)?;
        let name = a.text()?;
        let fs = self.fs_of();
        let new = flags & DESCRIPTION_FLAGS | libc::O_CREAT | libc::O_EXCL;
        let made = fs
            .resolver()
            .at(self.object(), name, Goal::of_open(new), |place| {
                fs.open_place(place, new, mode)
            });
        let open = match made.map_err(inside) {
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => return Err(Errno::STALE),
            made => made?,
        };
        let made = fs.store().objects().open_file(open).id.load(Relaxed);
        self.known.note(made, self.object(), name);
        fs.store().watches().notify_opened(open);
        self.put_made(open, reply)
    }

    /// Appends the entry of the new file, and its handle.
    fn put_made(&self, open: u32, reply: &mut Reply) -> Result<()> {
        match self.fs().stat_open(open) {
            Ok(stat) => reply.entry(&stat),
            Err(e) => {
                let _ = self.fs().store().objects().open_release(open);
                return Err(e);
            }
        };
        self.put_open(open, reply);
        Ok(())
    }

    /// Creates and opens a file without a name (O_TMPFILE).
    pub(super) fn tmpfile(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (flags, mode) = (a.u32()? as i32, a.u32()?);
        let fs = self.fs_of();
        let flags = flags & DESCRIPTION_FLAGS | libc::O_TMPFILE;
        let place = fs.resolver().dir_place(self.object())?;
        let open = fs.open_place(&place, flags, mode)?;
        self.put_made(open, reply)
    }

    pub(super) fn read(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let open = handle(a)?;
        let (offset, size, flags) = (a.u64()?, a.u32()? as usize, a.u32()?);
        let fs = self.fs();
        let to_cache = flags & p::READ_LOCKOWNER == 0;
        if to_cache {
            self.cached.note(fs, open, self.head.node);
        }
        let size = size.min(p::MAX_WRITE);
        let begin = reply.len();
        reply.fill(size, |to| {
            let n = fs.read(open, Some(offset), (&mut *to).into())?;
            if to_cache {
                self.cached.fetched.agree(self.head.node, offset, &to[..n]);
            }
            Ok(n)
        })?;
        let n = reply.len() - begin;
        if n < size && to_cache {
            self.cached.ends(self.head.node, offset + n as u64);
        }
        Ok(())
    }

    pub(super) fn write(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let open = handle(a)?;
        let (offset, size, how) = (a.u64()?, a.u32()? as usize, a.u32()?);
        a.skip(8)?;
        let flags = a.u32()? as i32;
        a.skip(4)?;
        let bytes = a.take(size)?;
        if how & p::WRITE_KILL_SUIDGID != 0 {
            self.drop_privileges(self.head.node)?;
        }
        if how & p::WRITE_CACHE != 0 {
            self.write_back(self.head.node, open, offset, bytes)?;
            reply.u32(size as u32).u32(0);
            return Ok(());
        }
        let append = flags & libc::O_APPEND != 0;
        let n = self.write_bytes(open, offset, append, bytes)?;
        if append {
            self.cached.appended(self.head.node, n as u64)
        } else {
            self.cached.reaches(self.head.node, offset + n as u64)
        }
        reply.u32(n as u32).u32(0);
        Ok(())
    }

    fn write_bytes(&self, open: u32, offset: u64, append: bool, bytes: &[u8]) -> Result<usize> {
        self.fs().write_as(open, Some(offset), append, bytes.into())
    }

    /// Writes back, from `offset` on, pages to which programs have stored through mappings. Writing
    /// back never extends a file: if pages reach behind its end, it was truncated outside of the
    /// mount.
    fn write_back(&self, node: u64, open: u32, offset: u64, pages: &[u8]) -> Result<()> {
        let fs = self.fs();
        self.cached.note(fs, open, node);
        let (mut at, mut rest) = (offset, pages);
        for (len, before) in self.cached.fetched.before(node, offset, pages) {
            let (now, behind) = rest.split_at(len);
            rest = behind;
            match before {
                Some(before) => {
                    let merged = fs.merge(open, at, &before, now)?;
                    if let Some(conflict) = merged {
                        fs.report_conflict(open, &conflict);
                    }
                }
                None => {
                    let room = fs.stat_open(open)?.size.saturating_sub(at);
                    let there = &now[..len.min(usize::try_from(room).unwrap_or(len))];
                    if self.write_bytes(open, at, false, there)? < there.len() {
                        return Err(Errno::NOSPC);
                    }
                }
            }
            at += len as u64;
        }
        self.cached.fetched.agree(node, offset, pages);
        Ok(())
    }

    /// Handles close(2) of a descriptor: releases the process's locks of the file, and copies
    /// written data to the origin, if the file's mode or controls require that.
    pub(super) fn flush(&self, a: &mut Args<'_>) -> Result<()> {
        let open = handle(a)?;
        a.skip(8)?;
        self.locks.drop_owner(a.u64()?, self.head.node);
        self.fs().origin_gate().write_through_open(open)
    }

    pub(super) fn fsync(&self, a: &mut Args<'_>) -> Result<()> {
        self.fs().sync_open(handle(a)?)
    }

    /// Closes a handle, after its last descriptor and its last mapping were closed.
    pub(super) fn release(&self, a: &mut Args<'_>) -> Result<()> {
        let open = handle(a)?;
        self.cached.forget(open, self.head.node);
        self.locks.drop_handle(open);
        self.close(open)
    }

    pub(super) fn truncate(&self, node: u64, size: u64) -> Result<()> {
        let open = self.open_node(node, libc::O_WRONLY)?;
        let done = self.fs().truncate_open(open, size);
        done.and(self.fs().store().objects().open_release(open))
    }

    pub(super) fn fallocate(&self, a: &mut Args<'_>) -> Result<()> {
        let open = handle(a)?;
        let (offset, len, mode) = (a.u64()?, a.u64()?, a.u32()?);
        self.drop_users_privileges(self.head.node)?;
        self.fs().allocate(open, mode as i32, offset, len)?;
        if mode as i32 & libc::FALLOC_FL_KEEP_SIZE == 0 {
            self.cached.reaches(self.head.node, offset + len);
        }
        Ok(())
    }

    /// Handles lseek(2) with SEEK_DATA and SEEK_HOLE; the kernel handles the other values of
    /// `whence`.
    pub(super) fn lseek(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let open = handle(a)?;
        let (offset, whence) = (a.u64()?, a.u32()? as i32);
        let hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        let fs = self.fs();
        fs.origin_gate().bring_whole(open)?;
        reply.u64(
            fs.cluster()
                .data()
                .seek_data(fs.live_of(open)?, offset, hole)?,
        );
        Ok(())
    }

    pub(super) fn copy_file_range(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (from, from_at) = (handle(a)?, a.u64()?);
        let (to_node, to, to_at) = (a.u64()?, handle(a)?, a.u64()?);
        let len = a.u64()?.min(MAX_COPY_BYTES);
        let (input, output) = ((from, Some(from_at)), (to, Some(to_at)));
        self.drop_users_privileges(to_node)?;
        let done = self.fs().copy_range(input, output, len)?;
        self.cached.reaches(to_node, to_at + done);
        reply.u32(done as u32).u32(0);
        Ok(())
    }
}
