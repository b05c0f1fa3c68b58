//! Removed directories that are still in use: open, or the working directory.
//!
//! A removed directory has no record any more. Its attributes are kept by its open file
//! descriptions (`forebay_store::removed_dirs`). A working directory that isn't open has those that
//! it had when the process entered it; the first change makes a description of it. A removed
//! directory has no entries: resolving any name in it is ENOENT, except `.` and `..`.

use crate::fs::Fs;
use crate::process::Process;
use forebay_store::removed_dirs::RemovedDir;
use forebay_store::{Inode, NewOpen, ObjectId, SetAttr, now};
use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Number + 1 of the description that keeps the attributes of a working directory that was removed
/// and isn't open; 0: none. A forked child has the number, but no reference.
static KEPT_BY: AtomicU32 = AtomicU32::new(0);
/// The process that has made `KEPT_BY`.
static KEPT_IN: AtomicU32 = AtomicU32::new(0);

fn own_id() -> u32 {
    rustix::process::getpid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

impl Process<'_> {
    /// The attributes of the removed directory `id`, if this process may use it.
    ///
    /// # Errors
    /// ENOENT: it isn't in use.
    #[cold]
    pub(crate) fn removed_dir(self, id: ObjectId) -> Result<RemovedDir> {
        if let Some(removed) = self.0.objects().removed_dir(id) {
            return Ok(removed);
        }
        match self.entered(id) {
            Some(inode) => Ok(RemovedDir::new(inode)),
            // After an exec only the id of the working directory is known.
            None if self.working_dir() == Some(id) => Ok(RemovedDir::with_defaults(ObjectId(0))),
            None => Err(Errno::NOENT),
        }
    }

    /// Changes the attributes of the removed directory `id`.
    ///
    /// # Errors
    /// ENOENT: it isn't in use. Errors of `change`; ENFILE, ENOSPC.
    #[cold]
    pub(crate) fn change_removed_dir<T>(
        self,
        id: ObjectId,
        change: impl FnOnce(&mut RemovedDir) -> Result<T>,
    ) -> Result<T> {
        let mut removed = self.removed_dir(id)?;
        let done = change(&mut removed)?;
        let objects = self.0.objects();
        if objects.keep_removed_dir(id, &removed) == 0 {
            let new = NewOpen::new(id, libc::S_IFDIR, libc::O_PATH as u32);
            let parent = ObjectId(removed.inode.parent);
            let open = objects.open_create(&new.named(parent, b""), None)?;
            self.let_go_of_removed();
            KEPT_IN.store(own_id(), Release);
            KEPT_BY.store(open + 1, Release);
            objects.keep_removed_dir(id, &removed);
        }
        Ok(done)
    }

    /// Releases the description of a removed working directory, when the process leaves it.
    pub(crate) fn let_go_of_removed(self) {
        let open = KEPT_BY.swap(0, AcqRel);
        if open != 0 && KEPT_IN.load(Acquire) == own_id() {
            let _ = self.0.objects().open_release(open - 1);
        }
    }
}

impl Fs {
    /// The inode of an object. Of a removed directory that is in use, the attributes that it had.
    ///
    /// # Errors
    /// ENOENT.
    #[inline]
    pub(crate) fn inode_in_use(&self, id: ObjectId) -> Result<Inode> {
        match self.cluster().namespace().stat(id) {
            Err(Errno::NOENT) => self.process().removed_dir(id).map(|removed| removed.inode),
            found => found,
        }
    }

    /// Changes attributes of an object, also of a removed directory that is in use.
    ///
    /// # Errors
    /// ENOENT; ENOSPC; EROFS in the view.
    pub(crate) fn set_attributes_in_use(&self, id: ObjectId, set: &SetAttr) -> Result<()> {
        match self.cluster().namespace().set_attr(id, set) {
            Err(Errno::NOENT) => self.process().change_removed_dir(id, |removed| {
                let i = &mut removed.inode;
                i.mode = set.mode.map_or(i.mode, |mode| i.mode & libc::S_IFMT | mode);
                (i.uid, i.gid) = (set.uid.unwrap_or(i.uid), set.gid.unwrap_or(i.gid));
                i.atime = set.atime.unwrap_or(i.atime);
                i.mtime = set.mtime.unwrap_or(i.mtime);
                i.ctime = set.ctime.unwrap_or_else(now);
                Ok(())
            }),
            done => done,
        }
    }
}
