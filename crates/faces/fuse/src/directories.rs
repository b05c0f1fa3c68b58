//! The last attributes of the directories that the kernel knows.
//!
//! A directory that was removed, through the mount or otherwise, may still be open, or be the
//! working directory of a process. Other file systems let the process use it: fstat(2), fchmod(2)
//! and fchdir(2) succeed, and a listing is empty. The pool keeps something of a removed directory
//! only in descriptions of it, and the kernel doesn't open a directory to use it. So this module
//! keeps its attributes until the kernel forgets the node. Extended attributes aren't kept.

use forebay_posix::{Errno, Stat};
use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Maximum number of directories whose attributes are recorded. Directories that are looked up
/// beyond it aren't recorded.
const MAX_DIRECTORIES: usize = 1 << 16;

/// Attributes of directories by node number.
#[derive(Default)]
pub struct Directories(Mutex<HashMap<u64, Stat>>);

impl Directories {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Stat>> {
        lock(&self.0)
    }

    /// Records an object's attributes that the kernel is about to get, if the object is a
    /// directory.
    pub fn note(&self, node: u64, stat: &Stat) {
        if stat.mode & libc::S_IFMT != libc::S_IFDIR {
            return;
        }
        let mut all = self.all();
        if all.len() < MAX_DIRECTORIES || all.contains_key(&node) {
            all.insert(node, *stat);
        }
    }

    /// Returns the last attributes of a removed directory, with a link count of 0.
    pub fn removed(&self, node: u64) -> Option<Stat> {
        let last = *self.all().get(&node)?;
        Some(Stat { nlink: 0, ..last })
    }

    /// Changes the attributes of a removed directory. The kernel has checked permissions.
    ///
    /// # Errors
    /// ENOENT if they aren't kept.
    pub fn change_removed(&self, node: u64, change: impl FnOnce(&mut Stat)) -> Result<(), Errno> {
        let mut all = self.all();
        change(all.get_mut(&node).ok_or(Errno::NOENT)?);
        Ok(())
    }

    /// Drops the attributes of a node that the kernel has forgotten.
    pub fn forget(&self, node: u64) {
        self.all().remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(mode: u32) -> Stat {
        Stat {
            ino: 5,
            mode,
            nlink: 2,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 4096,
            blocks: 0,
            atime: 1,
            mtime: 2,
            ctime: 3,
            btime: 4,
        }
    }

    #[test]
    fn a_removed_directory_has_its_last_attributes() {
        let directories = Directories::default();
        directories.note(5, &stat(libc::S_IFDIR | 0o755));
        directories.note(5, &stat(libc::S_IFDIR | 0o700));
        directories.note(6, &stat(libc::S_IFREG | 0o700));
        let removed = directories.removed(5);
        assert_eq!(removed.map(|s| (s.mode & 0o777, s.nlink)), Some((0o700, 0)));
        assert_eq!(directories.removed(6), None);
        directories.change_removed(5, |s| s.uid = 9).unwrap();
        assert_eq!(
            directories.removed(5).map(|s| (s.uid, s.nlink)),
            Some((9, 0))
        );
        assert_eq!(directories.change_removed(6, |_| ()), Err(Errno::NOENT));
        directories.forget(5);
        assert_eq!(directories.removed(5), None);
    }

    #[test]
    fn the_number_of_directories_is_bounded() {
        let directories = Directories::default();
        for node in 0..2 * MAX_DIRECTORIES as u64 {
            directories.note(node, &stat(libc::S_IFDIR));
        }
        assert_eq!(directories.all().len(), MAX_DIRECTORIES);
        directories.note(0, &stat(libc::S_IFDIR | 0o700));
        assert_eq!(directories.removed(0).map(|s| s.mode & 0o777), Some(0o700));
    }
}
