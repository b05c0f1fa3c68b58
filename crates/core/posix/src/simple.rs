//! A path interface of a view for programs in Rust. Paths are absolute inside the pool.
//!
//! A symbolic link that leads out of the pool fails with EXDEV.

use crate::file::File;
use crate::fs::{DirEntry, Fs, Stat};
use crate::path::{Fail, Follow, Goal, Place};
use forebay_store::{Distribution, ObjectId, RenameMode};
use rustix::io::{Errno, Result};

impl Fs {
    /// Notifies the watchers of the object at a place, and of its directory, of `what` (bits of
    /// inotify(7)). Not needed for changes of names and for operations on open files: both notify
    /// watchers themselves.
    pub fn notify_place(&self, place: &Place, what: u32) {
        if self.store().watches().has_watches()
            && let Ok(e) = place.existing()
        {
            let at = place.parent_and_name();
            self.store().watches().tell(e.id, e.kind, Some(at), what);
        }
    }

    pub(crate) fn simple<T>(
        &self,
        path: &[u8],
        follow: bool,
        f: impl FnMut(&Place) -> Result<T>,
    ) -> Result<T> {
        let follow = if follow { Follow::Yes } else { Follow::No };
        self.resolver()
            .at(ObjectId::ROOT, path, follow, f)
            .map_err(inside_only)
    }

    /// Attributes of `path`.
    ///
    /// # Errors
    /// As stat(2).
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Stat> {
        self.simple(path, follow, |p| self.stat_place(p))
    }

    /// Opens `path`; `flags` are libc's O_*.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<File<'_>> {
        let open = self
            .open_at(ObjectId::ROOT, path, flags, mode)
            .map_err(inside_only)?;
        self.store().watches().notify_opened(open);
        Ok(File::new(self, open))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.resolver()
            .at(ObjectId::ROOT, path, Goal::DIRECTORY, |p| {
                self.make_dir(p, mode)
            })
            .map_err(inside_only)
    }

    /// Makes a directory whose content has this distribution.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn mkdir_with(&self, path: &[u8], mode: u32, distribution: Distribution) -> Result<()> {
        self.resolver()
            .at(ObjectId::ROOT, path, Goal::DIRECTORY, |p| {
                self.make_dir_with(p, mode, distribution)
            })
            .map_err(inside_only)
    }

    /// As `mkdir`, for a directory that will be renamed to `becomes` in the same parent directory.
    /// The directory's content is distributed as that of a directory made with the name `becomes`.
    ///
    /// # Errors
    /// As for `mkdir`.
    pub fn mkdir_as(&self, path: &[u8], becomes: &[u8], mode: u32) -> Result<()> {
        self.resolver()
            .at(ObjectId::ROOT, path, Goal::DIRECTORY, |p| {
                self.make_dir_as(p, becomes, mode)
            })
            .map_err(inside_only)
    }

    /// Makes a FIFO, socket, device or file.
    ///
    /// # Errors
    /// As mknod(2).
    pub fn mknod(&self, path: &[u8], mode: u32, rdev: u64) -> Result<()> {
        self.simple(path, false, |p| self.make_node(p, mode, rdev).map(|_| ()))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.simple(path, false, |p| self.remove_dir(p))
    }

    /// Removes a name.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        self.simple(path, false, |p| self.remove_file(p))
    }

    /// Renames `from` to `to`.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let root = ObjectId::ROOT;
        self.rename_at((root, from), (root, to), RenameMode::Replace)
            .map_err(inside_only)
    }

    /// Gives the object at `old` the additional name `new`.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.simple(old, false, |source| {
            source.existing()?;
            self.simple(new, false, |p| self.make_link_to(source, p))
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.simple(path, false, |p| self.make_symlink(target, p))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.simple(path, false, |p| self.read_symlink(p))
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// As chmod(2).
    pub fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        self.simple(path, true, |p| self.change_mode(p.existing()?.id, mode))
    }

    /// Sets owner and group.
    ///
    /// # Errors
    /// As chown(2).
    pub fn chown(
        &self,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        self.simple(path, follow, |p| {
            self.change_owner(p.existing()?.id, uid, gid)
        })
    }

    /// Sets times in nanoseconds since 1970; None leaves one as it is.
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_times(
        &self,
        path: &[u8],
        atime: Option<i64>,
        mtime: Option<i64>,
        follow: bool,
    ) -> Result<()> {
        self.simple(path, follow, |p| {
            self.change_times(p.existing()?.id, atime, mtime, false)
        })
    }

    /// All entries of a directory but `.` and `..`, in no particular order.
    ///
    /// # Errors
    /// As opendir(3) and readdir(3).
    pub fn list(&self, path: &[u8]) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.list_into(path, &mut entries)?;
        Ok(entries)
    }

    /// As [`Fs::list`]. `entries` gets all entries that could be read, even if an error is returned
    /// for others.
    ///
    /// # Errors
    /// As opendir(3) and readdir(3). EHOSTDOWN: entries on a node that is down are missing.
    pub fn list_into(&self, path: &[u8], entries: &mut Vec<DirEntry>) -> Result<()> {
        self.simple(path, true, |p| {
            let e = p.existing()?;
            if e.kind != libc::S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            self.origin_gate()
                .with_entries(self.resolver().dir_info(e.id)?)?;
            self.origin_gate().show_origin_only(e.id)?;
            // This may be a second attempt, after names changed during the first.
            entries.clear();
            self.cluster()
                .namespace()
                .list(e.id, &mut Default::default(), |name, e| {
                    entries.push(DirEntry {
                        name: name.to_vec(),
                        ino: e.id.0,
                        kind: e.kind,
                    });
                    true
                })
        })
    }

    /// Names of the extended attributes.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn xattrs(&self, path: &[u8], follow: bool) -> Result<Vec<Vec<u8>>> {
        self.simple(path, follow, |p| self.attribute_names(p.existing()?.id))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<Vec<u8>> {
        self.simple(path, follow, |p| self.get_attribute(p.existing()?.id, name))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], follow: bool) -> Result<()> {
        self.simple(path, follow, |p| {
            self.set_attribute(p.existing()?.id, name, value, 0, Some(p.parent_and_name()))
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<()> {
        self.simple(path, follow, |p| {
            self.remove_attribute(p.existing()?.id, name)
        })
    }
}

fn inside_only(f: Fail) -> Errno {
    match f {
        Fail::Errno(e) => e,
        Fail::Outside(_) | Fail::Origin(_) => Errno::XDEV,
    }
}
