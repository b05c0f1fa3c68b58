//! Copies of files that never change again, on the nodes that read them.
//!
//! A process that reads a laminated file of another node, or remote chunks of a striped one,
//! fetches the bytes in units of 1 MiB. The node store of the reader keeps the bytes for all
//! processes of the node. A copy is an ordinary sparse file, known by the file's id
//! ([`ObjectId::copy`]). So extents, deaths of processes and free space are handled as for any
//! file.
//!
//! - *Presence* is shown by the pages' "initialised" bits, which are set after the bytes are
//!   written. A small copy that lies in its record was written as a whole. So a process that
//!   fetches may be killed at any time, and two may fetch the same bytes.
//! - *Edition*: each lamination makes another *edition* of the file ([`crate::Inode::edition`]),
//!   which the home reports when the file is opened. A copy belongs, as long as it exists, to one
//!   edition and one life of the control region; another edition needs a new copy. So a process
//!   that opens a file never reads bytes of an earlier edition.
//! - *Room*: see [`keep`].

mod keep;

pub use keep::Copies;
pub use keep::Copy;

use crate::chunks::pages;
use crate::control_region::{MAX_LIVE, live_flag as flag};
use crate::declared::is_last;
use crate::record::{Inode, Key};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::views::Content;
use crate::views::LocalCopies;
use crate::{CHUNK, ObjectId, PAGE, Result, now};
use forebay_runtime::atomics::{Ordering::*, fence};
use rustix::io::Errno;

/// Edition and size of a file that never changes again, as of its opening.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    edition: u64,
    pub size: u64,
}

impl LocalCopies<'_> {
    /// Returns edition and size of an open file that lies on other nodes, completely or partly;
    /// None if the file must not be copied.
    pub fn last_of(&self, index: u32) -> Option<Last> {
        let live = self.store.objects().live(index);
        let edition = live.edition.load(SeqCst);
        if !is_last(edition) {
            return None;
        }
        let size = match live.flags.load(Acquire) & flag::REMOTE {
            0 => live.size.load(SeqCst),
            _ => live.last_size.load(SeqCst),
        };
        (live.edition.load(SeqCst) == edition).then_some(Last { edition, size })
    }

    /// Returns the stamp of a file's copy of this edition. Copies of other editions, or of another
    /// life of the control region, have other stamps.
    fn stamp(&self, edition: u64) -> u64 {
        let born = u64::from(self.store.control.header().born.load(Relaxed));
        edition.wrapping_add(born.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The edition of a copy with this stamp.
    fn edition_of(&self, stamp: u64) -> u64 {
        stamp.wrapping_sub(self.stamp(0))
    }

    /// Reads from a copy, inside one MiB. Without a buffer (`to`), only checks that the bytes are
    /// there. False if some of them are missing.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub unsafe fn read_copy(
        &self,
        copy: u32,
        last: Last,
        at: u64,
        to: Option<*mut u8>,
        len: usize,
    ) -> Result<bool> {
        let live = self.store.objects().live(copy);
        let moved = live.moved.load(Acquire);
        let is_ours = || live.copy_stamp().load(Acquire) == self.stamp(last.edition);
        let there = live.size.load(Acquire) >= at + len as u64;
        if !moved.is_multiple_of(2) || !there || !is_ours() {
            return Ok(false);
        }
        let mut whole = true;
        let read = if live.flags.load(Acquire) & flag::INLINE != 0 {
            match to {
                Some(to) => {
                    // SAFETY: the caller's promise.
                    unsafe { self.store.content().copy_out(copy, moved, at, to, len) }.map(|()| len)
                }
                None => Ok(len),
            }
        } else {
            let start = (at % CHUNK) as usize;
            let map = self.store.content().chunk_map(
                copy,
                at / CHUNK,
                moved,
                pages((start + len) as u64),
            );
            map.and_then(|map| {
                Content::pieces(&map, start, len, |e, from, done, n| {
                    let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
                    let (first, end) = (from / PAGE, (from + n).div_ceil(PAGE));
                    let page = e.start() + first as u64;
                    whole = whole && medium.cells().all_init(page, end - first);
                    match to {
                        // SAFETY: the piece lies in the `len` bytes at `to`, and in the extent.
                        Some(to) if whole => unsafe { medium.read(e, from, to.add(done), n) },
                        _ => Ok(()),
                    }
                })
            })
        };
        fence(Acquire);
        let same = live.moved.load(Relaxed) == moved && is_ours();
        match read {
            Ok(n) => Ok(same && whole && n == len),
            Err(Errno::FAULT) => Err(Errno::FAULT),
            // Other errors concern only the copy: the reader can fetch the bytes from the file's
            // own nodes.
            Err(_) => Ok(false),
        }
    }

    /// Returns the live entry of an open file's copy; None if there is no copy of this edition. The
    /// copy stays open as long as the file.
    pub fn copy_of(&self, index: u32, last: Last) -> Option<u32> {
        let live = self.store.objects().live(index);
        let hung = live.copy.load(Acquire);
        if let Some(copy) = hung.checked_sub(1) {
            if self.store.objects().live(copy).copy_stamp().load(Acquire)
                == self.stamp(last.edition)
            {
                return Some(copy);
            }
            let _section = self.store.section().ok()?;
            if (live.copy.compare_exchange(hung, 0, AcqRel, Relaxed)).is_ok() {
                self.release_copy(hung);
            }
        }
        self.hang(index, last).ok().flatten()
    }

    /// Whether the live table has room for copies: at least half of the table is reserved for
    /// files.
    fn may_hang(&self) -> bool {
        let list = &self.store.control.header().free_live;
        list.end(MAX_LIVE) < list.limit() / 2
    }

    /// Opens the copy of this edition of a file, if there is one. The copy stays open as long as
    /// the file.
    fn hang(&self, index: u32, last: Last) -> Result<Option<u32>> {
        if !self.may_hang() {
            return Ok(None);
        }
        let live = self.store.objects().live(index);
        let id = self.store.content().live_id(index).copy();
        if self.store.objects().live_probe(id)?.is_none() && !self.is_there(id)? {
            return Ok(None);
        }
        let _section = self.store.section()?;
        let (copy, held) = match self.store.objects().live_acquire_here(id) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let fits =
            self.store.objects().live(copy).copy_stamp().load(Acquire) == self.stamp(last.edition);
        let mine = fits
            && live
                .copy
                .compare_exchange(0, copy + 1, AcqRel, Acquire)
                .is_ok();
        drop(held);
        if !mine {
            self.store.objects().live_release(copy)?;
        }
        if !fits {
            self.drop_copy(id)?;
        }
        Ok(live.copy.load(Acquire).checked_sub(1))
    }

    /// Whether there is a record of this object.
    fn is_there(&self, id: ObjectId) -> Result<bool> {
        self.store.records_of(id)?.exists(id)
    }

    /// Ends a live entry's use of a copy. `copy`: the copy's live entry plus one; 0: none.
    pub(crate) fn release_copy(&self, copy: u32) {
        if let Some(copy) = copy.checked_sub(1) {
            // Copies that can't be written back are tried again by the next repair.
            let _: Result<()> = self.store.objects().live_release(copy);
        }
    }

    /// Stores bytes of a file in its copy, from offset `first` on: whole MiBs, or up to the file's
    /// end.
    pub fn keep_copy(&self, index: u32, last: Last, first: u64, bytes: &[u8]) -> Result<()> {
        if self.copy_of(index, last).is_none() {
            self.make_copy(self.store.content().live_id(index).copy(), last)?;
        }
        // Takes a reference to the copy for this thread: other threads may release their references
        // meanwhile.
        let (copy, held) = self
            .store
            .objects()
            .live_acquire_here(self.store.content().live_id(index).copy())?;
        let stamp = self.stamp(last.edition);
        let mut result = Ok(());
        for (n, chunk) in bytes.chunks(CHUNK as usize).enumerate() {
            let at = first + n as u64 * CHUNK;
            let check = |live: &crate::control_region::Live| {
                if live.copy_stamp().load(Acquire) == stamp {
                    Ok(())
                } else {
                    Err(Errno::STALE)
                }
            };
            let bytes = (chunk.as_ptr(), chunk.len());
            // SAFETY: pointer and length are those of `chunk`.
            result = unsafe {
                self.store
                    .content()
                    .write_here(copy, Some(at), bytes, true, check)
            }
            .map(|_| ());
            if result.is_err() {
                self.copying_failed();
                break;
            }
        }
        drop(held);
        self.store.objects().live_release(copy).and(result)
    }

    /// Makes an empty copy of a file, if there is none.
    fn make_copy(&self, id: ObjectId, last: Last) -> Result<()> {
        let t = now();
        let inode = Inode {
            mode: libc::S_IFREG | 0o600,
            nlink: 1,
            copy_stamp: self.stamp(last.edition),
            ..Inode::made_at(t)
        };
        self.store
            .transact(self.store.names().object_set(id), Need::Bytes(0), |w| {
                w.add_object(id, &inode, &[]).map(|_| ())
            })?;
        self.count_copy();
        Ok(())
    }

    /// Removes a copy. The copy's pages are freed at once, even if the copy is open.
    pub fn drop_copy(&self, id: ObjectId) -> Result<()> {
        let (index, held) = match self.store.objects().live_acquire_here(id) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let emptied = self.store.content().truncate_here(index, |_| Ok(0));
        let dropped = self
            .store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                w.change_inode(id, |inode| inode.nlink = 0)?;
                w.attach(id, &Key::orphan(id), &[])?;
                self.store.objects().live_mark_unlinked(id, false)
            });
        drop(held);
        self.store
            .objects()
            .live_release(index)
            .and(dropped)
            .and(emptied)
    }
}
