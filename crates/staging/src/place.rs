//! The two sides of a staging as the copier sees them.

pub use crate::meta::Meta;
use crate::objects::Objects;
use rustix::io::{Errno, Result};

/// A name space that files are staged from or to. Paths are bytes; errors are errnos.
#[expect(
    clippy::missing_errors_doc,
    reason = "each says what the system call of its name says"
)]
pub trait Place: Sync {
    /// An open file.
    type File<'a>: PlaceFile
    where
        Self: 'a;

    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta>;
    /// Names in a directory, without `.` and `..`.
    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// As [`Place::list`]; `names` gets those that could be had, also if others couldn't.
    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
        *names = self.list(path)?;
        Ok(())
    }
    /// Opens for reading; doesn't follow a symbolic link at the end of the path unless `follow`.
    fn open(&self, path: &[u8], follow: bool) -> Result<Self::File<'_>>;
    /// Creates the temporary file of `to`, exclusively, for reading and writing, with mode 0600.
    fn create(&self, path: &[u8], to: &[u8]) -> Result<Self::File<'_>>;
    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()>;
    fn unlink(&self, path: &[u8]) -> Result<()>;
    fn rmdir(&self, path: &[u8]) -> Result<()>;
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()>;
    fn link(&self, old: &[u8], new: &[u8]) -> Result<()>;
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()>;
    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>>;
    fn chmod(&self, path: &[u8], mode: u32) -> Result<()>;
    /// Never follows a symbolic link.
    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()>;
    /// Never follows a symbolic link.
    fn set_times(&self, path: &[u8], atime: i64, mtime: i64) -> Result<()>;
    /// Names of the `user.*` attributes; empty where there can't be any.
    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>>;
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()>;
    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()>;
    /// Syncs everything around `path` to stable storage.
    fn sync_all(&self, path: &[u8]) -> Result<()>;
    /// The store as one of whole objects, if it can't write files piece by piece. The copier then
    /// calls none of `create`, `rename`, `link`, `symlink`, `chmod`, `chown` and `set_times`.
    fn objects(&self) -> Option<&dyn Objects> {
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
    /// The path as the user knows it.
    fn show(&self, path: &[u8]) -> String;
    /// The error as a sentence, with advice where there is any.
    fn explain(&self, error: Errno) -> String {
        explain(error)
    }
}

/// An open file of a [`Place`].
#[expect(
    clippy::missing_errors_doc,
    reason = "each says what the system call of its name says"
)]
pub trait PlaceFile: Sync {
    fn meta(&self) -> Result<Meta>;
    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize>;
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize>;
    fn set_len(&self, size: u64) -> Result<()>;
    /// Start of the first data at or after `at`. ENXIO if there is none.
    fn seek_data(&self, at: u64) -> Result<u64>;
    /// Start of the first hole at or after `at`; the end of the file is one.
    fn seek_hole(&self, at: u64) -> Result<u64>;
    /// Syncs the content to stable storage.
    fn sync(&self) -> Result<()>;
    /// Makes the next read come from storage instead of a cache, where that is possible.
    fn forget_cached(&self);
    /// Closes the file. Returns the error of a delayed write.
    fn close(self) -> Result<()>;
}

/// An errno's text, without its number.
pub fn explain(error: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(error.raw_os_error()).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// `directory` and `name` as one path.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
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

/// Splits a path into directory and last name: `a/b` is (`a`, `b`), `b` is (`.`, `b`).
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
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
