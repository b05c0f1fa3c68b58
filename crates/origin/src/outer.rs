//! Entries of the pool's directories that are at the origin only (mode `off`): programs use the
//! origin's own files, past this service. Objects in the pool stand for their names, so that a
//! listing shows all; before it begins, the process asks this service to make them agree with the
//! origin.

use crate::service::Origin;
use crate::side::below;
use forebay_client::origin::OriginMode;
use forebay_posix::ObjectId;
use forebay_staging::is_part;
use forebay_store::{OriginMark, OriginState, SetAttr};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;

impl Origin {
    /// Whether an object of this kind (S_IFMT) is at the origin only.
    pub fn is_outer(&self, relative: &[u8], kind: u32) -> bool {
        let path = self.pool_path(relative);
        let mode = match kind {
            libc::S_IFDIR => self.config.mode_of_dir(&path),
            _ => self.config.mode_of(&path),
        };
        mode == OriginMode::Off
    }

    /// Has the pool show those entries of a directory that are at the origin only.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin, and of making objects in the pool.
    pub fn show_outer(&self, dir: ObjectId) -> Result<()> {
        if self.inode(dir)?.origin.is_released() {
            return self.bring_entries(dir);
        }
        let (_held, relative) = self.path_held(dir)?;
        let _working = self.busy.begin(dir);
        let before = self.inode(dir)?;
        if before.origin.state == OriginState::None {
            return Ok(());
        }
        let Some(there) = self.side.look(&relative)? else {
            return Ok(());
        };
        let is_clean = before.origin.synced == self.print_of_dir(dir, &before)?;
        if !self.compare_outer(dir, &relative)? {
            return Ok(());
        }
        // The directory's time is the origin's, as far as the pool hasn't changed it.
        let mtime = if is_clean { there.mtime } else { before.mtime };
        let set = SetAttr {
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        self.fs.cluster().set_attr(dir, &set)?;
        if is_clean {
            let now = self.inode(dir)?;
            let synced = self.print_of_dir(dir, &now)?;
            self.set_mark(
                dir,
                OriginMark {
                    synced,
                    ..now.origin
                },
            )?;
        }
        Ok(())
    }

    /// Whether something has changed in the pool.
    fn compare_outer(&self, dir: ObjectId, relative: &[u8]) -> Result<bool> {
        let mut there = self.kinds(relative)?;
        let mut has_changed = false;
        let cluster = self.fs.cluster();
        for (name, entry) in self.entries(dir)? {
            let at = below(relative, &name);
            let kind = there.remove(&name);
            if kind == Some(entry.kind) || !self.is_outer(&at, entry.kind) {
                continue;
            }
            let removed = self.change_pool(|epoch| match entry.kind {
                libc::S_IFDIR => cluster.rmdir(dir, &name, epoch),
                _ => cluster.unlink(dir, &name, Some(entry), epoch),
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
            if is_part(&name) || !self.is_outer(&at, kind) {
                continue;
            }
            self.add_entry(dir, relative, &name)?;
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Names and kinds (S_IFMT) of what a directory of the origin has.
    fn kinds(&self, relative: &[u8]) -> Result<HashMap<Vec<u8>, u32>> {
        let failed = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        let path = self.side.path(relative)?;
        let mut kinds = HashMap::new();
        for entry in std::fs::read_dir(OsStr::from_bytes(&path)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_dir() => libc::S_IFDIR,
                Ok(kind) if kind.is_symlink() => libc::S_IFLNK,
                Ok(kind) if kind.is_fifo() => libc::S_IFIFO,
                Ok(kind) if kind.is_socket() => libc::S_IFSOCK,
                Ok(kind) if kind.is_char_device() => libc::S_IFCHR,
                Ok(kind) if kind.is_block_device() => libc::S_IFBLK,
                Ok(_) => libc::S_IFREG,
                // Removed meanwhile.
                Err(_) => continue,
            };
            kinds.insert(entry.file_name().into_vec(), kind);
        }
        Ok(kinds)
    }
}
