//! A slow store, as the copier, origins and campaigns see it.
//!
//! [`SlowStore`] has the operations that all stores have. Those that only some have are methods
//! with a default that refuses (EOPNOTSUPP): renames, links, attributes, files that are written
//! piece by piece, and objects that are stored whole, on a condition. Paths are bytes; errors are
//! errnos, those of the system call of the same name.

use crate::meta::Meta;
use crate::source::{Source, Trouble};
use forebay_runtime::beneath::Tree;
use rustix::io::{Errno, Result};

/// `user.*` attributes: names with that prefix, and values.
pub type UserAttributes = Vec<(Vec<u8>, Vec<u8>)>;

/// The entries of a directory, with their metadata.
#[derive(Debug, Default)]
pub struct Entries {
    /// Names, and metadata as far as they are known.
    pub all: Vec<(Vec<u8>, Meta)>,
    /// Keys that can't be files of this directory.
    pub odd: Vec<String>,
}

/// The version that [`SlowStore::put`] may replace.
#[derive(Clone, Copy, Debug)]
pub enum Replaced {
    /// The one that this store has seen last under the name.
    Seen,
    /// None: nothing may be there.
    Nothing,
    /// The one with these metadata.
    Version(Meta),
}

/// A name space of files behind system calls or requests to a server: each operation may take long.
#[expect(
    clippy::missing_errors_doc,
    reason = "each says what the system call of its name says"
)]
pub trait SlowStore: Send + Sync {
    /// Follows a symbolic link at the end of the path if `follow`, and the store may.
    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta>;
    /// `names` gets the names in a directory, without `.` and `..`: those that could be read, even
    /// if others couldn't.
    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()>;
    /// Opens for reading; doesn't follow a symbolic link at the end of the path unless `follow`.
    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn StoreFile + '_>>;
    /// The attributes of the object at a path, whose last name isn't followed.
    fn at<'a>(&'a self, path: &'a [u8]) -> Box<dyn Attributes + 'a>;
    /// The path as the user knows it.
    fn show(&self, path: &[u8]) -> String;

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.list_into(path, &mut names)?;
        Ok(names)
    }
    /// The error as a sentence, with advice where there is any.
    fn explain(&self, error: Errno) -> String {
        explain(error)
    }
    /// Whether there is nothing in a directory.
    fn is_empty(&self, path: &[u8]) -> Result<bool> {
        Ok(self.list(path)?.is_empty())
    }
    /// Metadata without the fields that may differ at the next look at the same object.
    fn comparable(&self, meta: Meta) -> Meta {
        meta
    }
    /// The [comparable](SlowStore::comparable) metadata of the object at a path.
    fn meta(&self, path: &[u8]) -> Result<Meta> {
        Ok(self.comparable(self.stat(path, false)?))
    }
    /// As [`SlowStore::meta`]; None if there is no object.
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

    /// Creates the temporary file of `to`, exclusively, for reading and writing, with mode 0600.
    fn create(&self, _path: &[u8], _to: &[u8]) -> Result<Box<dyn StoreFile + '_>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Renames, but replaces nothing unless `replaces`. Returns the object's metadata, if it has
    /// become another version.
    fn rename(&self, _from: &[u8], _to: &[u8], _replaces: bool) -> Result<Option<Meta>> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes another name, or in a store without links an equal object.
    fn link(&self, _old: &[u8], _new: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    // ---- Stores of whole objects: a file appears with its content and attributes in one step ----

    /// Whether the store can't write files piece by piece: it has no `create`, and attributes are
    /// set by [`SlowStore::put_attributes`] only.
    fn is_object_store(&self) -> bool {
        false
    }
    /// Stores a file with the source's attributes and those of `user` that an object can have, in
    /// place of `replaced`. It appears under its name when its content has been confirmed to be
    /// that of the source, and [`Source::rests`] has said so. Returns its metadata.
    ///
    /// # Errors
    /// [`Trouble`]; the object doesn't appear then. [`Trouble::Write`] with
    /// [`CHANGED`](crate::CHANGED): another version is there.
    fn put(
        &self,
        _path: &[u8],
        _source: &dyn Source,
        _user: &UserAttributes,
        _replaced: Replaced,
    ) -> std::result::Result<Meta, Trouble> {
        Err(Trouble::Write(Errno::OPNOTSUPP))
    }
    /// Stores a symbolic link with its attributes, in place of what this store has seen there.
    fn put_symlink(&self, _path: &[u8], _target: &[u8], _meta: &Meta) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// Sets mode, owner, group and time of modification of an object or a directory, and those of
    /// the attributes `user` that it can have; None: its attributes stay.
    fn put_attributes(
        &self,
        _path: &[u8],
        _meta: &Meta,
        _user: Option<&UserAttributes>,
    ) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// All `user.*` attributes of an object or a directory.
    fn user_attributes(&self, _path: &[u8], _is_dir: bool) -> Result<UserAttributes> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes an object that is as another one, in place of what is there.
    fn copy(&self, _from: &[u8], _to: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
    /// The entries of a directory with versions and sizes, and with all attributes of those that
    /// `is_new` names. None: lists have names only.
    fn entries(
        &self,
        _path: &[u8],
        _is_new: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Option<Entries>> {
        Ok(None)
    }

    // ---- The kernel's directories, and the pool ----

    /// The directory tree of the kernel, if the store is one.
    fn tree(&self) -> Option<&Tree> {
        None
    }
    /// Whether this is the pool.
    fn is_pool(&self) -> bool {
        false
    }
    /// The node that has a file's bytes, if they are on one node.
    fn node_of(&self, _file: &Meta) -> Option<u32> {
        None
    }
    /// Whether only this process finds the object: movers on other nodes don't.
    fn is_found_here_only(&self, _path: &[u8]) -> bool {
        false
    }
}

/// An open file of a [`SlowStore`].
#[expect(
    clippy::missing_errors_doc,
    reason = "each says what the system call of its name says"
)]
pub trait StoreFile: Sync {
    fn meta(&self) -> Result<Meta>;
    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize>;
    fn write_at(&self, _bytes: &[u8], _at: u64) -> Result<usize> {
        Err(Errno::BADF)
    }
    fn set_len(&self, _size: u64) -> Result<()> {
        Err(Errno::BADF)
    }
    /// Start of the first data at or after `at`. ENXIO if there is none.
    fn seek_data(&self, at: u64) -> Result<u64>;
    /// Start of the first hole at or after `at`; the end of the file is one.
    fn seek_hole(&self, at: u64) -> Result<u64>;
    /// Syncs the content to stable storage.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// The file's attributes, if they can be set without its path: then nothing can take its place
    /// meanwhile.
    fn attributes(&self) -> Option<&dyn Attributes> {
        None
    }
    /// The `user.*` attributes that came with the file when it was opened.
    fn user_attributes(&self) -> Option<&UserAttributes> {
        None
    }
    /// Makes the next read come from storage instead of a cache, where that is possible.
    fn forget_cached(&self) {}
    /// Closes the file. Returns the error of a delayed write.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The attributes of an open file, or of the object at a path.
#[expect(
    clippy::missing_errors_doc,
    reason = "each says what the system call of its name says"
)]
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
    /// Whether a time of the object can be this one. Nanoseconds since 1970.
    fn keeps_time(&self, _time: i128) -> bool {
        true
    }
    /// Names of the `user.*` attributes; empty where there can't be any.
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

/// An errno's text, without its number.
pub fn explain(error: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(error.raw_os_error()).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    let mut text: String = match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    };
    if error == Errno::FBIG {
        text += "; raise the limit of file sizes (ulimit -f), or choose another file system";
    }
    text
}

/// `directory` and `name` as one path.
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

/// A path without the slashes at its end; `/` stays.
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

    #[test]
    fn errors_read_as_words() {
        assert_eq!(explain(Errno::NOENT), "no such file or directory");
    }
}
