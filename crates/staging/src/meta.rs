//! The metadata of an object.

use serde::{Deserialize, Serialize};

/// The metadata of an object that the copier needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub dev: u64,
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Nanoseconds since 1970.
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
}

impl Meta {
    /// The type, as `S_IFMT` bits.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    pub fn is_symlink(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }

    /// Permission bits.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}
