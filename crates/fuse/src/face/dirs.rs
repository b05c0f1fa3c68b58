//! Reading directories. The kernel requests a page of entries at a time; this module fetches more
//! from the store and keeps the rest for the next requests.

use super::{Call, handle, object};
use crate::protocol::{self as p, Args, Head, Reply};
use forebay_posix::{Errno, ObjectId, Whence};
use forebay_store::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Entries fetched at once.
const AHEAD: usize = 1024;

/// By handle: entries that were fetched but not returned yet.
#[derive(Default)]
pub struct Dirs(Mutex<HashMap<u32, Arc<Mutex<Listing>>>>);

#[derive(Default)]
struct Listing {
    /// Position of the first of the entries.
    at: u64,
    entries: VecDeque<Told>,
}

struct Told {
    ino: u64,
    kind: u32,
    next: u64,
    name: Vec<u8>,
}

impl Dirs {
    fn all(&self) -> MutexGuard<'_, HashMap<u32, Arc<Mutex<Listing>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget(&self, open: u32) {
        self.all().remove(&open);
    }
}

impl Call<'_> {
    pub(super) fn opendir(
        &self,
        head: &Head,
        a: &mut Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        a.skip(8)?;
        let entry = Entry {
            id: object(head.node),
            kind: libc::S_IFDIR,
        };
        let open = (self.fs()).open_object(entry, libc::O_RDONLY, false, ObjectId::ROOT, b"")?;
        self.dirs.all().insert(open, Arc::default());
        reply.u64(u64::from(open)).u32(0).u32(0);
        Ok(())
    }

    pub(super) fn readdir(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let open = handle(a)?;
        let (offset, room) = (a.u64()?, a.u32()? as usize);
        let listing = self.dirs.all().get(&open).cloned().ok_or(Errno::BADF)?;
        let mut listing = listing.lock().unwrap_or_else(PoisonError::into_inner);
        // Start again, with the current entries.
        if listing.at != offset || offset == 0 {
            self.fs().seek(open, Whence::Start, offset as i64)?;
            listing.entries.clear();
            listing.at = offset;
        }
        loop {
            if listing.entries.is_empty() && !self.fetch(open, &mut listing)? {
                return Ok(());
            }
            let Some(first) = listing.entries.front() else {
                return Ok(());
            };
            let len = (24 + first.name.len()).next_multiple_of(8);
            if reply.len() + len > room {
                return Ok(());
            }
            reply.u64(p::node_of(first.ino)).u64(first.next);
            reply.u32(first.name.len() as u32).u32(first.kind >> 12);
            reply.put(&first.name);
            reply.zeros(len - 24 - first.name.len());
            listing.at = first.next;
            listing.entries.pop_front();
        }
    }

    /// Fetches more entries; false if there are none.
    fn fetch(&self, open: u32, listing: &mut Listing) -> Result<bool, Errno> {
        let entries = &mut listing.entries;
        let listed = self.fs().read_dir(open, |name, ino, kind, next| {
            if entries.len() == AHEAD {
                return false;
            }
            entries.push_back(Told {
                ino,
                kind,
                next,
                name: name.to_vec(),
            });
            true
        });
        match listed {
            // Return the entries before the error first; the next request gets the error.
            Err(_) if !entries.is_empty() => Ok(true),
            other => other.map(|()| !entries.is_empty()),
        }
    }

    pub(super) fn releasedir(&self, a: &mut Args<'_>) -> Result<(), Errno> {
        let open = handle(a)?;
        self.dirs.forget(open);
        self.locks.drop_handle(open);
        self.fs().store().objects().open_release(open)
    }
}
