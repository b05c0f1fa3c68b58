//! Directory entries that are at the origin only (mode `off`): programs use the origin's own files,
//! and the service isn't involved. The pool has objects that stand for their names, so that a
//! listing is complete. Before a process lists such a directory, the service makes these objects
//! agree with the origin.

use crate::listing::Listing;
use crate::marks::Marks;
use crate::shared::Shared;
use crate::side::below;
use crate::tree::Tree;
use forebay_backing::pool_time;
use forebay_posix::ObjectId;
use forebay_staging::is_part;
use forebay_store::{OriginMark, OriginState, SetAttr};
use rustix::fs::FileType;
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Shows the entries of directories that are at the origin only.
pub struct OriginOnly {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub listing: Arc<Listing>,
}

impl OriginOnly {
    /// Makes the pool's objects for a directory's origin-only entries agree with the origin.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin, and of making objects in the pool.
    pub fn show_origin_only(&self, dir: ObjectId) -> Result<()> {
        if self.shared.inode(dir)?.origin.is_released() {
            return self.listing.bring_entries(dir);
        }
        let (_held, relative) = self.tree.path_held(dir)?;
        let _working = self.marks.lock(dir);
        let before = self.shared.inode(dir)?;
        if before.origin.state == OriginState::None {
            return Ok(());
        }
        let Some(there) = self.shared.side.look(&relative)? else {
            return Ok(());
        };
        let is_clean = before.origin.synced == self.marks.print_of_dir(dir, &before)?;
        if !self.compare_origin_only(dir, &relative)? {
            return Ok(());
        }
        // Unless the pool has changed the directory, it gets the modification time of the origin's.
        let mtime = if is_clean {
            pool_time(there.mtime)
        } else {
            before.mtime
        };
        let set = SetAttr {
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        self.shared.cluster().namespace().set_attr(dir, &set)?;
        if is_clean {
            let now = self.shared.inode(dir)?;
            let synced = self.marks.print_of_dir(dir, &now)?;
            self.marks.set_mark(
                dir,
                OriginMark {
                    synced,
                    ..now.origin
                },
            )?;
        }
        Ok(())
    }

    /// Adds and removes the pool's objects that stand for origin-only entries of a directory.
    /// Returns whether the pool has changed.
    fn compare_origin_only(&self, dir: ObjectId, relative: &[u8]) -> Result<bool> {
        let mut there = self.kinds(relative)?;
        let mut has_changed = false;
        let cluster = self.shared.cluster();
        for (name, entry) in self.tree.entries(dir)? {
            let at = below(relative, &name);
            let kind = there.remove(&name);
            if kind == Some(entry.kind) || !self.shared.is_origin_only(&at, entry.kind) {
                continue;
            }
            let removed = self.tree.change_pool(|epoch| match entry.kind {
                libc::S_IFDIR => cluster.namespace().rmdir(dir, &name, epoch),
                _ => cluster.namespace().unlink(dir, &name, Some(entry), epoch),
            });
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
            has_changed = true;
            if let Some(kind) = kind {
                there.insert(name, kind);
            }
        }
        for (name, kind) in there {
            let at = below(relative, &name);
            if is_part(&name) || !self.shared.is_origin_only(&at, kind) {
                continue;
            }
            self.listing.add_entry(dir, relative, &name)?;
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Returns the names and kinds (S_IFMT) of a directory's entries at the origin.
    fn kinds(&self, relative: &[u8]) -> Result<HashMap<Vec<u8>, u32>> {
        let mut kinds = HashMap::new();
        let tree = self.shared.side.tree().ok_or(Errno::OPNOTSUPP)?;
        for entry in tree.entries(relative)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Listings of this file system lack types.
                FileType::Unknown => match self.shared.side.look(&below(relative, name))? {
                    Some(meta) => meta.kind(),
                    // The object was removed meanwhile.
                    None => continue,
                },
                kind => kind.as_raw_mode(),
            };
            kinds.insert(name.to_vec(), kind);
        }
        Ok(kinds)
    }
}
