//! The metadata of an object in a slow store.

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
    /// Times in nanoseconds since 1970. A file system's times can be outside the range of a pool's
    /// times ([`pool_time`]).
    pub atime: i128,
    pub mtime: i128,
    pub ctime: i128,
}

/// Returns the pool's time that is closest to `time`. A pool's times reach from 1677-09-21 to
/// 2262-04-11. Nanoseconds since 1970.
pub fn pool_time(time: i128) -> i64 {
    i64::try_from(time).unwrap_or(if time < 0 { i64::MIN } else { i64::MAX })
}

impl Meta {
    /// Returns the type, as `S_IFMT` bits.
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

    /// Whether the time of modification equals `other`. If `other` is the first or last time that a
    /// pool can store, all times beyond it are equal to it.
    pub fn is_modified_at(&self, other: i128) -> bool {
        let is_limit = [i64::MIN, i64::MAX].map(i128::from).contains(&other);
        self.mtime == other || is_limit && i128::from(pool_time(self.mtime)) == other
    }

    /// Returns the permission bits.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_those_of_a_pool() {
        let last = i128::from(i64::MAX);
        assert_eq!(pool_time(-5), -5);
        assert_eq!(pool_time(last + 1), i64::MAX);
        assert_eq!(pool_time(-last - 9), i64::MIN);
        let meta = |mtime| Meta {
            dev: 0,
            ino: 0,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            atime: 0,
            mtime,
            ctime: 0,
        };
        assert!(meta(7).is_modified_at(7) && !meta(7).is_modified_at(8));
        assert!(meta(last + 5).is_modified_at(last));
        assert!(!meta(last + 5).is_modified_at(last + 6));
        assert!(!meta(7).is_modified_at(last));
    }
}
