//! Reads directories. The kernel requests a page of entries at a time; this module fetches more
//! from the store and keeps the rest for the next requests.
//!
//! An offset is the number of entries of the handle's listing that precede the next one. Programs
//! return to earlier offsets: by seekdir(3), and indirectly if their buffer is smaller than the
//! kernel's (musl: 2 KiB). So up to [`MAX_RETURNED`] returned entries are kept, and an offset means
//! the same entry even if files were removed or created meanwhile. For an older offset, the
//! directory's current entries are counted instead.

use super::{Call, handle};
use crate::protocol::{self as p, Args, Reply};
use forebay_posix::{ObjectId, Whence};
use forebay_runtime::threads::lock;
use forebay_store::Entry;
use rustix::io::{Errno, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Number of entries that are fetched at once.
const AHEAD: usize = 1024;
/// Maximum number of returned entries that one handle keeps.
const MAX_RETURNED: usize = 1 << 16;
/// Maximum number of returned entries per handle while all handles of the mount together keep more
/// than [`MAX_KEPT_ENTRIES`].
const MIN_RETURNED: usize = 1 << 10;
const MAX_KEPT_ENTRIES: usize = 1 << 20;

/// The listings, by handle.
#[derive(Default)]
pub struct Dirs {
    listings: Mutex<HashMap<u32, Arc<Mutex<Listing>>>>,
    /// Number of entries that all listings keep.
    kept: AtomicUsize,
}

/// Consecutive entries of a directory: first some that were returned already, then those to return
/// next.
#[derive(Default)]
struct Listing {
    entries: VecDeque<ReturnedEntry>,
    /// Offset of the first of the entries.
    start: u64,
}

struct ReturnedEntry {
    ino: u64,
    kind: u32,
    name: Box<[u8]>,
}

impl Listing {
    /// Returns the index in `entries` of the entry at this offset. None if that entry is neither
    /// kept nor the next one to fetch.
    fn index_of(&self, offset: u64) -> Option<usize> {
        let index = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        (index <= self.entries.len()).then_some(index)
    }
}

impl Dirs {
    pub fn forget(&self, open: u32) {
        let gone = lock(&self.listings).remove(&open);
        if let Some(listing) = gone {
            self.clear(&mut lock(&listing), 0);
        }
    }

    /// Drops all entries of a listing; the listing's next entry is the one at `offset`.
    fn clear(&self, listing: &mut Listing, offset: u64) {
        self.kept.fetch_sub(listing.entries.len(), Relaxed);
        *listing = Listing::default();
        listing.start = offset;
    }

    /// Drops the oldest of the `returned` entries if too many are kept.
    fn trim(&self, listing: &mut Listing, returned: usize) {
        let limit = if self.kept.load(Relaxed) > MAX_KEPT_ENTRIES {
            MIN_RETURNED
        } else {
            MAX_RETURNED
        };
        let excess = returned.saturating_sub(limit);
        listing.entries.drain(..excess);
        listing.start += excess as u64;
        self.kept.fetch_sub(excess, Relaxed);
    }
}

impl Call<'_> {
    pub(super) fn opendir(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        a.skip(8)?;
        let entry = Entry {
            id: self.object(),
            kind: libc::S_IFDIR,
        };
        let open = (self.fs()).open_object(entry, libc::O_RDONLY, false, ObjectId::ROOT, b"")?;
        lock(&self.dirs.listings).insert(open, Arc::default());
        reply.u64(u64::from(open)).u32(0).u32(0);
        Ok(())
    }

    pub(super) fn readdir(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let open = handle(a)?;
        let (offset, room) = (a.u64()?, a.u32()? as usize);
        let listing = lock(&self.dirs.listings)
            .get(&open)
            .cloned()
            .ok_or(Errno::BADF)?;
        let mut listing = lock(&listing);
        let index = listing.index_of(offset).filter(|_| offset > 0);
        let mut index = match index {
            Some(index) => index,
            // This is the first request, rewinddir(3), or an offset whose entry isn't kept.
            None => {
                self.fs().seek(open, Whence::Start, offset as i64)?;
                self.dirs.clear(&mut listing, offset);
                0
            }
        };
        loop {
            if index == listing.entries.len() && !self.fetch(open, &mut listing)? {
                break;
            }
            let Some(next) = listing.entries.get(index) else {
                break;
            };
            let len = (24 + next.name.len()).next_multiple_of(8);
            if reply.len() + len > room {
                break;
            }
            index += 1;
            reply
                .u64(p::node_of(next.ino))
                .u64(listing.start + index as u64);
            reply.u32(next.name.len() as u32).u32(next.kind >> 12);
            reply.put(&next.name);
            reply.zeros(len - 24 - next.name.len());
        }
        self.dirs.trim(&mut listing, index);
        Ok(())
    }

    /// Fetches more entries. Returns false if there are none.
    fn fetch(&self, open: u32, listing: &mut Listing) -> Result<bool> {
        let before = listing.entries.len();
        let entries = &mut listing.entries;
        let listed = self.fs().read_dir(open, |name, ino, kind, _| {
            if entries.len() == before + AHEAD {
                return false;
            }
            entries.push_back(ReturnedEntry {
                ino,
                kind,
                name: name.into(),
            });
            true
        });
        let fetched = entries.len() - before;
        self.dirs.kept.fetch_add(fetched, Relaxed);
        match listed {
            // Entries before the error are returned first; the next request gets the error.
            Err(_) if fetched > 0 => Ok(true),
            other => other.map(|()| fetched > 0),
        }
    }

    pub(super) fn releasedir(&self, a: &mut Args<'_>) -> Result<()> {
        let open = handle(a)?;
        self.dirs.forget(open);
        self.locks.drop_handle(open);
        self.fs().store().objects().open_release(open)
    }
}
