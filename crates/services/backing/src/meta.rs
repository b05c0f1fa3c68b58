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
    /// Nanoseconds since 1970. Times of file systems go beyond those of a pool ([`pool_time`]).
    pub atime: i128,
    pub mtime: i128,
    pub ctime: i128,
}

/// The closest time that a pool keeps, whose times reach from 1677-09-21 to 2262-04-11.
/// Nanoseconds since 1970.
pub fn pool_time(time: i128) -> i64 {
    i64::try_from(time).unwrap_or(if time < 0 { i64::MIN } else { i64::MAX })
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

    /// Whether its time of modification is as good as `other`, which may be one of a pool: the first
    /// and the last time of a pool stand for all times before and after.
    pub fn is_modified_at(&self, other: i128) -> bool {
        let is_limit = [i64::MIN, i64::MAX].map(i128::from).contains(&other);
        self.mtime == other || is_limit && i128::from(pool_time(self.mtime)) == other
    }

    /// Permission bits.
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
