//! Making the directories of the pool at the origin.

use crate::marks::Marks;
use crate::pass::is_made;
use crate::shared::Shared;
use crate::side::{below, split};
use crate::tree::Tree;
use forebay_posix::ObjectId;
use forebay_store::OriginMark;
use rustix::io::{Errno, Result};
use std::sync::Arc;

/// Maximum number of attempts to make a directory at the origin while other processes rename it.
const ATTEMPTS: usize = 100;

/// Makes directories at the origin.
pub struct Directories {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
}

impl Directories {
    /// Makes, at the origin, a directory that only the pool has. Returns false if the directory no
    /// longer has this name.
    pub fn make_directory(
        &self,
        id: ObjectId,
        dir: ObjectId,
        name: &[u8],
        at: &[u8],
    ) -> Result<bool> {
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        if !is_made(&inode.origin) {
            self.marks.announce(dir, std::iter::once((id, &inode)))?;
            let made = if self.tree.has_name(dir, name, id) {
                self.make_dirs(at).map(|()| true)
            } else {
                Ok(false)
            };
            if made != Ok(true) {
                // Restores the mark from before `announce`: only the pool has the directory.
                self.marks.set_mark(id, OriginMark::default())?;
            }
            return made;
        }
        Ok(true)
    }

    /// Makes, at the origin, a directory whose attributes are lost, and the missing directories
    /// above it. The mode of these directories lets no other user read them.
    pub fn make_lost_dir(&self, at: &[u8]) -> Result<()> {
        self.make_all(at, 0o700)
    }

    /// Makes a directory at the origin, and the missing directories above it.
    pub fn make_dirs(&self, at: &[u8]) -> Result<()> {
        self.make_all(at, 0o777)
    }

    /// Makes a directory at the origin, and the missing directories above it, all with this mode.
    fn make_all(&self, at: &[u8], mode: u32) -> Result<()> {
        match self.shared.side.mkdir(at, mode) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if self.shared.side.meta(at)?.is_dir() => Ok(()),
            Err(Errno::NOENT) if at.contains(&b'/') => {
                let cut = at.iter().rposition(|&b| b == b'/').unwrap_or(0);
                self.make_all(&at[..cut], mode)?;
                match self.shared.side.mkdir(at, mode) {
                    Err(Errno::EXIST) => Ok(()),
                    made => made,
                }
            }
            Err(e) => Err(e),
        }
    }

    /// Makes sure that the origin has a directory and the directories above it. Returns the
    /// directory's path at the origin. Processes request this before they rename or remove the
    /// directory. The caller holds the lock on the paths.
    ///
    /// # Errors
    /// ENOENT: the directory was removed. EXDEV: the directory isn't below the origin's root.
    /// EBUSY: others keep renaming it. Errors of mkdir(2) at the origin.
    pub fn settle(&self, dir: ObjectId) -> Result<Vec<u8>> {
        // Repeated, since a directory that only the pool has may be renamed or removed meanwhile.
        for _ in 0..ATTEMPTS {
            let relative = self.tree.relative_of(dir)?;
            if is_made(&self.shared.inode(dir)?.origin) {
                return Ok(relative);
            }
            if self.marks.has_lost(dir) {
                // No process can rename or remove a directory whose record is lost.
                self.make_lost_dir(&relative)?;
                return Ok(relative);
            }
            let (above, name) = split(&relative);
            let above = match self.shared.fs.stat(&self.shared.pool_path(above), false) {
                Ok(above) => ObjectId(above.ino),
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e),
            };
            let at = match self.settle(above) {
                Err(Errno::NOENT) => continue,
                at => below(&at?, name),
            };
            match self.make_directory(dir, above, name, &at) {
                Ok(true) => return Ok(at),
                Ok(false) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::BUSY)
    }
}
