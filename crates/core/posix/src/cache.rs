//! A process's cache of resolved directory paths.
//!
//! An entry records to which directory a path leads from the directory `base`; the process may
//! search all directories on the path. An entry is valid while the epoch of names and the process's
//! credentials stay the same. The table has [`ENTRIES`] slots, indexed by a 128-bit hash. The table
//! has no lock: each slot has a version, which is odd while the slot is written.

use forebay_placement::planted;
use forebay_store::ObjectId;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use twox_hash::XxHash3_128;

const ENTRIES: usize = 1024;

/// The attributes of a directory that resolving paths and creating objects need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirInfo {
    pub id: ObjectId,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The controls declared for the directory, and for all that is made in it
    /// ([`forebay_store::controls::declared`]).
    pub controls: u64,
    /// Whether the directory's entries are at the pool's origin only. Such a directory is never
    /// cached.
    pub is_released: bool,
    /// Whether the directory was removed, and is still in use. Such a directory has no entries, and
    /// is never cached.
    pub is_removed: bool,
}

impl DirInfo {
    /// A directory of which only the id is known.
    pub fn unknown(id: ObjectId) -> DirInfo {
        DirInfo {
            id,
            mode: 0,
            uid: 0,
            gid: 0,
            controls: 0,
            is_released: false,
            is_removed: false,
        }
    }
}

#[derive(Default)]
struct Slot {
    /// Odd while the slot is written.
    version: AtomicU32,
    cred: AtomicU32,
    key: [AtomicU64; 2],
    epoch: AtomicU64,
    id: AtomicU64,
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    controls: AtomicU64,
}

pub(crate) struct DirCache {
    slots: Box<[Slot]>,
}

/// Key of a pair (base, path): a 128-bit hash, so that two pairs never collide in practice.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey(u128);

impl CacheKey {
    /// The key of `path`, relative to the directory `base`.
    pub fn new(base: ObjectId, path: &[u8]) -> CacheKey {
        CacheKey(XxHash3_128::oneshot_with_seed(base.0, path))
    }
}

impl DirCache {
    /// An empty cache.
    pub fn new() -> DirCache {
        DirCache {
            slots: (0..ENTRIES).map(|_| Slot::default()).collect(),
        }
    }

    fn slot(&self, key: CacheKey) -> &Slot {
        &self.slots[key.0 as usize % ENTRIES]
    }

    /// The directory, if it is cached for this epoch of names and generation of credentials.
    pub fn get(&self, key: CacheKey, epoch: u64, cred: u32) -> Option<DirInfo> {
        let s = self.slot(key);
        let version = s.version.load(Acquire);
        if !version.is_multiple_of(2)
            || s.key[0].load(Relaxed) != key.0 as u64
            || s.key[1].load(Relaxed) != (key.0 >> 64) as u64
            || s.epoch.load(Relaxed) != epoch && !planted("stale-cache")
            || s.cred.load(Relaxed) != cred
        {
            return None;
        }
        let info = DirInfo {
            id: ObjectId(s.id.load(Relaxed)),
            mode: s.mode.load(Relaxed),
            uid: s.uid.load(Relaxed),
            gid: s.gid.load(Relaxed),
            controls: s.controls.load(Relaxed),
            is_released: false,
            is_removed: false,
        };
        fence(Acquire);
        (s.version.load(Relaxed) == version).then_some(info)
    }

    /// Caches a directory for this epoch of names and generation of credentials.
    pub fn put(&self, key: CacheKey, epoch: u64, cred: u32, info: &DirInfo) {
        let s = self.slot(key);
        let version = s.version.load(Relaxed);
        if !version.is_multiple_of(2)
            || s.version
                .compare_exchange(version, version + 1, AcqRel, Relaxed)
                .is_err()
        {
            return;
        }
        debug_assert!(info.id.0 != 0, "a path leads to a directory");
        s.key[0].store(key.0 as u64, Relaxed);
        s.key[1].store((key.0 >> 64) as u64, Relaxed);
        s.epoch.store(epoch, Relaxed);
        s.cred.store(cred, Relaxed);
        s.id.store(info.id.0, Relaxed);
        s.mode.store(info.mode, Relaxed);
        s.uid.store(info.uid, Relaxed);
        s.gid.store(info.gid, Relaxed);
        s.controls.store(info.controls, Relaxed);
        debug_assert_eq!(
            s.version.load(Relaxed),
            version + 1,
            "a slot has one writer"
        );
        s.version.store(version + 2, Release);
    }

    /// Frees slots that a thread was writing when the process forked.
    pub fn after_fork_in_child(&self) {
        for s in &self.slots {
            let version = s.version.load(Relaxed);
            if !version.is_multiple_of(2) {
                s.epoch.store(0, Relaxed);
                s.version.store(version + 1, Release);
            }
        }
    }
}
