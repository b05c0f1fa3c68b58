//! The room of a pool, as statfs(2) returns it.

use crate::origin::QuotaStatus;

/// Number of files that a pool without a limit on files reports as its capacity.
const FILES: u64 = 1 << 32;

/// Capacity of a whole pool in bytes and files, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub bytes: u64,
    pub free_bytes: u64,
    pub files: u64,
    pub free_files: u64,
}

impl Room {
    /// The room of media with this capacity and use in bytes.
    pub(crate) fn of_media(bytes: u64, used: u64) -> Room {
        Room {
            bytes,
            free_bytes: bytes.saturating_sub(used),
            files: FILES,
            free_files: FILES,
        }
    }

    /// The same room, limited by what a quota leaves.
    pub(crate) fn within(self, quota: &QuotaStatus) -> Room {
        let least = |(all, free): (u64, u64), limit: Option<u64>, used: u64| match limit {
            Some(limit) => (all.min(limit), free.min(limit.saturating_sub(used))),
            None => (all, free),
        };
        let bytes = (self.bytes, self.free_bytes);
        let (bytes, free_bytes) = least(bytes, quota.bytes, quota.used_bytes);
        let files = (self.files, self.free_files);
        let (files, free_files) = least(files, quota.files, quota.used_files);
        Room {
            bytes,
            free_bytes,
            files,
            free_files,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_media_and_quota() {
        let media = Room::of_media(1000, 400);
        let quota = |bytes, files| QuotaStatus {
            bytes,
            files,
            used_bytes: 250,
            used_files: 3,
        };
        assert_eq!(media.within(&quota(None, None)), media);
        let small = media.within(&quota(Some(300), Some(3)));
        assert_eq!((small.bytes, small.free_bytes), (300, 50));
        assert_eq!((small.files, small.free_files), (3, 0));
        let over = media.within(&quota(Some(200), None));
        assert_eq!((over.bytes, over.free_bytes), (200, 0));
        let large = media.within(&quota(Some(5000), Some(1 << 40)));
        assert_eq!(large, media);
        assert_eq!(Room::of_media(10, 20).free_bytes, 0);
    }
}
