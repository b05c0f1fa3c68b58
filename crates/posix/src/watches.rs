//! What programs watch: inotify on objects of the pool, and dnotify on its directories.
//!
//! The kernel watches *shadows* in the node's directory in place of the objects
//! (`store/src/watches.rs`); a face has it do so, and turns its events into those that were meant.

use crate::Fs;
use forebay_store::watches::Happened;
use forebay_store::{ObjectId, Result, Store};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Copy)]
pub struct Watches<'a>(&'a Store);

impl Fs {
    /// What is watched of the pool on this node.
    pub fn watches(&self) -> Watches<'_> {
        Watches(self.store())
    }
}

impl Watches<'_> {
    /// Whether anything is watched.
    pub fn any(self) -> bool {
        self.0.watches().has_watches()
    }

    /// Has the inotify descriptor `fd` watch an object. `mask` as for inotify_add_watch(2), which
    /// `add` calls on a path, with [`forebay_store::watches::SHADOW_MASK`]; its value is returned.
    ///
    /// # Errors
    /// EEXIST (IN_MASK_CREATE), ENOSPC and what `add` says.
    pub fn add(
        self,
        fd: i32,
        id: ObjectId,
        mask: u32,
        add: impl Fn(&Path) -> Result<i64>,
    ) -> Result<i64> {
        self.0.watches().watch(fd, id, mask, add)
    }

    /// The shadows that `fd` watches: its number for each, and their inodes.
    pub fn of(self, fd: i32) -> Vec<(i32, u64)> {
        self.0.watches().watched_by(fd)
    }

    /// This shadow isn't watched any more, by one descriptor.
    pub fn end(self, inode: u64) {
        self.0.watches().unwatch(inode);
    }

    /// What the kernel's event about this file in a shadow stands for.
    pub fn happened<'a>(&self, file: &'a [u8]) -> Option<Happened<'a>> {
        self.0.watches().happened(file)
    }

    /// Tells those who watch a directory without its name at hand.
    pub fn tell_dir(self, id: ObjectId, what: u32) {
        self.0.watches().tell(id, libc::S_IFDIR, None, what);
    }

    /// What a shadow is told of; None if the path isn't one.
    pub fn shadow_mask(self, path: &Path) -> Option<u32> {
        self.0.watches().shadow_mask(path)
    }

    /// Makes a shadow of a directory, which `open` opens.
    ///
    /// # Errors
    /// ENOSPC and what `open` says.
    pub fn make_shadow(
        self,
        id: ObjectId,
        open: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        self.0.watches().make_shadow_of(id, open)
    }

    /// Changes what a shadow is told of.
    ///
    /// # Errors
    /// ENOENT.
    pub fn change_shadow(self, path: &Path, mask: u32) -> Result<()> {
        self.0.watches().change_shadow(path, mask)
    }

    /// Nobody needs this shadow any more.
    pub fn drop_shadow(self, path: &Path) {
        self.0.watches().drop_shadow(path);
    }
}
