//! The interface of slow stores, for the copier, origins and campaigns.
//!
//! All stores have the operations of [`SlowStore`] without a default. Some stores also have other
//! operations: renames, links, attributes, files that are written piece by piece, and conditional
//! writes of whole objects. The default of such an operation fails, usually with EOPNOTSUPP. Paths
//! are bytes. Errors are the errnos of the system call of the same name.

use crate::error::{Error, explain};
use crate::meta::Meta;
use crate::source::Source;
use forebay_runtime::beneath::Tree;
use rustix::io::{Errno, Result};

/// `user.*` attributes: full names, and values.
pub type UserAttributes = Vec<(Vec<u8>, Vec<u8>)>;

/// The entries of a directory, with their metadata.
#[derive(Debug, Default)]
pub struct Entries {
    /// Names, with metadata as far as a listing has them.
    pub all: Vec<(Vec<u8>, Meta)>,
    /// Keys below the directory that can't be names of files.
    pub odd: Vec<String>,
}

/// The versions that [`SlowStore::put`] may replace.
#[derive(Clone, Copy, Debug)]
pub enum Replaced {
    /// The version that this store has last seen under the name.
    Seen,
    /// No version: the name must not exist.
    Nothing,
    /// The version with this metadata.
    Version(Meta),
}

/// A name space of files behind system calls or requests to a server. Each operation may block for
/// long, and fails like the system call of its name.
pub trait SlowStore: Send + Sync {
    /// Returns an object's metadata. A symbolic link at the end of the path is followed if
    /// `follow`, in stores that have links.
    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta>;
    /// Fills `names` with the names in a directory, without `.` and `..`. After an error, `names`
    /// has those that could be read.
    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()>;
    /// Opens a file for reading. Doesn't follow a symbolic link at the end of the path unless
    /// `follow`.
    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn StoreFile + '_>>;
    /// Returns access to the attributes of the object at a path. A symbolic link isn't followed.
    fn at<'a>(&'a self, path: &'a [u8]) -> Box<dyn Attributes + 'a>;
    /// Returns the path for messages to the user.
    fn show(&self, path: &[u8]) -> String;

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.list_into(path, &mut names)?;
        Ok(names)
    }
    /// Describes an error as a sentence, with advice where there is some.
    fn explain(&self, error: Errno) -> String {
        explain(error)
    }
    /// Whether a directory has no entries.
    fn is_empty(&self, path: &[u8]) -> Result<bool> {
        Ok(self.list(path)?.is_empty())
    }
    /// Returns metadata without those fields that may differ although the object is unchanged.
    fn comparable(&self, meta: Meta) -> Meta {
        meta
    }
    /// Returns the [comparable](SlowStore::comparable) metadata of the object at a path.
    fn meta(&self, path: &[u8]) -> Result<Meta> {
        Ok(self.comparable(self.stat(path, false)?))
    }
    /// Returns the metadata as [`SlowStore::meta`] does; None if there is no object.
    fn look(&self, path: &[u8]) -> Result<Option<Meta>> {
        match self.meta(path) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(e),
        }
    }
    /// Writes the whole file system that contains the directory `path` to stable storage.
    fn sync_all(&self, _path: &[u8]) -> Result<()> {
        Ok(())
    }

    // ---- Stores with links, and those that can be written to ----

    fn readlink(&self, _path: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }
    fn symlink(&self, _target: &[u8], _path: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }
    fn mkdir(&self, _path: &[u8], _mode: u32) -> Result<()> {
        Err(Errno::ROFS)
    }
    fn unlink(&self, _path: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }
    fn rmdir(&self, _path: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    // ---- Stores of files that are written piece by piece, under a temporary name ----

    /// Creates `path`, the temporary file for `to`, exclusively, for reading and writing, with mode
    /// 0600.
    fn create(&self, _path: &[u8], _to: &[u8]) -> Result<Box<dyn StoreFile + '_>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Renames an object. Fails rather than replaces one unless `replaces`. Returns the object's
    /// metadata if the rename has made a new version of it.
    fn rename(&self, _from: &[u8], _to: &[u8], _replaces: bool) -> Result<Option<Meta>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes another name of an object. A store without links copies the object.
    fn link(&self, _old: &[u8], _new: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    // ---- Stores of whole objects: a file appears with its content and attributes in one step ----

    /// Whether the store has whole objects only: such a store has no `create`, and attributes are
    /// set only by [`SlowStore::put_attributes`].
    fn is_object_store(&self) -> bool {
        false
    }
    /// Stores a file in place of `replaced`, with the source's attributes and those of `user` that
    /// an object can have. The object appears when its content is confirmed to be the source's and
    /// [`Source::rests`] has succeeded. Returns the object's metadata.
    /// # Errors
    /// [`Error`]: the object doesn't appear, except with [`Error::Damaged`]. [`Error::Write`] with
    /// [`CHANGED`](crate::CHANGED): the object has another version than `replaced`.
    fn put(
        &self,
        _path: &[u8],
        _source: &dyn Source,
        _user: &UserAttributes,
        _replaced: Replaced,
    ) -> std::result::Result<Meta, Error> {
        Err(Error::Write(Errno::OPNOTSUPP))
    }
    /// Stores a symbolic link with its attributes, in place of the version that this store has
    /// seen.
    fn put_symlink(&self, _path: &[u8], _target: &[u8], _meta: &Meta) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Sets mode, owner, group and time of modification of an object or a directory. Of the
    /// attributes `user`, sets those that the object can have; None leaves its attributes
    /// unchanged.
    fn put_attributes(
        &self,
        _path: &[u8],
        _meta: &Meta,
        _user: Option<&UserAttributes>,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Returns all `user.*` attributes of an object or a directory.
    fn user_attributes(&self, _path: &[u8], _is_dir: bool) -> Result<UserAttributes> {
        Err(Errno::OPNOTSUPP)
    }
    /// Copies an object inside the store, in place of any object at `to`.
    fn copy(&self, _from: &[u8], _to: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Returns the entries of a directory with versions and sizes. Entries for which `is_new` is
    /// true get all their attributes. None: this store lists names only.
    fn entries(
        &self,
        _path: &[u8],
        _is_new: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Option<Entries>> {
        Ok(None)
    }

    // ---- The kernel's directories, and the pool ----

    /// Returns the directory tree, if the store is a directory of the kernel.
    fn tree(&self) -> Option<&Tree> {
        None
    }
    /// Whether the store is the pool.
    fn is_pool(&self) -> bool {
        false
    }
    /// Returns the node that has a file's bytes, if they are all on one node.
    fn node_of(&self, _file: &Meta) -> Option<u32> {
        None
    }
    /// Whether only this process can find the object, so that no other node can copy it.
    fn is_found_here_only(&self, _path: &[u8]) -> bool {
        false
    }
}

/// An open file of a [`SlowStore`]. Each operation fails like the system call of its name.
pub trait StoreFile: Sync {
    fn meta(&self) -> Result<Meta>;
    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize>;
    fn write_at(&self, _bytes: &[u8], _at: u64) -> Result<usize> {
        Err(Errno::BADF)
    }
    fn set_len(&self, _size: u64) -> Result<()> {
        Err(Errno::BADF)
    }
    /// Returns the offset of the first data at or after `at`. ENXIO if there is none.
    fn seek_data(&self, at: u64) -> Result<u64>;
    /// Returns the offset of the first hole at or after `at`. The end of the file counts as a hole.
    fn seek_hole(&self, at: u64) -> Result<u64>;
    /// Syncs the content to stable storage.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Returns access to the attributes of the open file, if they can be set without the file's
    /// path. So no other file that has taken this path is changed.
    fn attributes(&self) -> Option<&dyn Attributes> {
        None
    }
    /// Returns the `user.*` attributes that the store received when it opened the file; None if it
    /// received none.
    fn user_attributes(&self) -> Option<&UserAttributes> {
        None
    }
    /// Drops cached content where possible, so that the next read comes from storage.
    fn forget_cached(&self) {}
    /// Closes the file. Returns the error of a delayed write.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The attributes of an open file, or of the object at a path. Each operation fails like the system
/// call of its name.
pub trait Attributes {
    fn stat(&self) -> Result<Meta>;
    fn chmod(&self, _mode: u32) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    fn chown(&self, _uid: Option<u32>, _gid: Option<u32>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    fn set_times(&self, _atime: i128, _mtime: i128) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Whether an object can have this time. Nanoseconds since 1970.
    fn keeps_time(&self, _time: i128) -> bool {
        true
    }
    /// Returns the names of the `user.*` attributes. Empty where there can't be any.
    fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NODATA)
    }
    fn set_xattr(&self, _name: &[u8], _value: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Joins `directory` and `name` into one path.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !name.is_empty() {
        if !path.is_empty() && path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    path
}

/// Returns a path without trailing slashes; `/` stays.
pub fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(1, |at| at + 1);
    &path[..end.min(path.len())]
}

/// Splits a path into directory and last name: `a/b` is (`a`, `b`), `b` is (`.`, `b`).
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b".", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b/c"), b"/a/b/c");
        assert_eq!(join(b"/a", b""), b"/a");
        assert_eq!(split(b"/a"), (&b"/"[..], &b"a"[..]));
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"a"), (&b"."[..], &b"a"[..]));
    }
}
