//! Copies of files that never change again, on the nodes that read them.
//!
//! What a process reads of a laminated file of another node (or of what lies elsewhere of a striped
//! one) is fetched by the MiB and kept in its own node's store, for all processes there. A copy is
//! an ordinary sparse file, known by the file's id ([`ObjectId::copy`]): so extents, deaths and
//! room need nothing new.
//!
//! - *What is there* is told by the "initialised" bits of the pages: they are set behind the bytes.
//!   A small copy that lies in its record was written at once. So who fetches may be killed at any
//!   time, and two may fetch the same.
//! - *Whose it is*: each lamination is another *edition* of the file ([`crate::Inode::edition`]),
//!   which comes along when the file is opened. A copy is of one edition, and of one life of the
//!   control region, all its life; another one takes its place. So who opens a file never reads of
//!   an edition before.
//! - *Room*: see [`keep`].

mod keep;

pub use keep::Copies;
pub use keep::Copy;

use crate::chunks::pages;
use crate::control::{MAX_LIVE, live_flag as flag};
use crate::declared::is_last;
use crate::record::{Inode, Key};
use crate::shards::Need;
use crate::views::Content;
use crate::views::LocalCopies;
use crate::{CHUNK, ObjectId, PAGE, Result, now};
use forebay_media::atomics::{Ordering::*, fence};
use rustix::io::Errno;

/// A file that never changes again, as it was when it was opened.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    edition: u64,
    pub size: u64,
}

impl LocalCopies<'_> {
    /// What is known of an open file that lies elsewhere, or partly so, if it may be copied.
    pub fn last_of(&self, index: u32) -> Option<Last> {
        let live = self.objects().live(index);
        let edition = live.edition.load(SeqCst);
        if !is_last(edition) {
            return None;
        }
        let size = match live.flags.load(Acquire) & flag::AWAY {
            0 => live.size.load(SeqCst),
            _ => live.last_size.load(SeqCst),
        };
        (live.edition.load(SeqCst) == edition).then_some(Last { edition, size })
    }

    /// What tells copies of this edition from all others.
    fn stamp(&self, edition: u64) -> u64 {
        let born = u64::from(self.control.header().born.load(Relaxed));
        edition.wrapping_add(born.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The edition that a copy with this stamp is of.
    fn edition_of(&self, stamp: u64) -> u64 {
        stamp.wrapping_sub(self.stamp(0))
    }

    /// Reads from a copy, inside one MiB (to nowhere: only looks). False if not all of that is
    /// there.
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
        let live = self.objects().live(copy);
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
                    // SAFETY: passed on.
                    unsafe { self.content().copy_out(copy, moved, at, to, len) }.map(|()| len)
                }
                None => Ok(len),
            }
        } else {
            let start = (at % CHUNK) as usize;
            let map =
                self.content()
                    .chunk_map(copy, at / CHUNK, moved, pages((start + len) as u64));
            map.and_then(|map| {
                Content::pieces(&map, start, len, |e, from, done, n| {
                    let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
                    let (first, end) = (from / PAGE, (from + n).div_ceil(PAGE));
                    let page = e.start() + first as u64;
                    whole = whole && medium.cells().all_init(page, end - first);
                    match to {
                        // SAFETY: pieces stay within len, and within the extent.
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
            // The file is there all the same.
            Err(_) => Ok(false),
        }
    }

    /// The copy of an open file, if there is one of this edition. It stays open as long as the
    /// file.
    pub fn copy_of(&self, index: u32, last: Last) -> Option<u32> {
        let live = self.objects().live(index);
        let hung = live.copy.load(Acquire);
        if let Some(copy) = hung.checked_sub(1) {
            if self.objects().live(copy).copy_stamp().load(Acquire) == self.stamp(last.edition) {
                return Some(copy);
            }
            let _section = self.section().ok()?;
            if (live.copy.compare_exchange(hung, 0, AcqRel, Relaxed)).is_ok() {
                self.release_copy(hung);
            }
        }
        self.hang(index, last).ok().flatten()
    }

    /// Whether the live table has places for copies: half of it is for files, whatever is copied.
    fn may_hang(&self) -> bool {
        let list = &self.control.header().free_live;
        list.end(MAX_LIVE) < list.limit() / 2
    }

    /// Opens the copy for as long as the file is open, if there is one.
    fn hang(&self, index: u32, last: Last) -> Result<Option<u32>> {
        if !self.may_hang() {
            return Ok(None);
        }
        let live = self.objects().live(index);
        let id = self.content().live_id(index).copy();
        if self.objects().live_probe(id)?.is_none() && !self.is_there(id)? {
            return Ok(None);
        }
        let _section = self.section()?;
        let (copy, held) = match self.objects().live_acquire_here(id) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let fits = self.objects().live(copy).copy_stamp().load(Acquire) == self.stamp(last.edition);
        let mine = fits
            && live
                .copy
                .compare_exchange(0, copy + 1, AcqRel, Acquire)
                .is_ok();
        drop(held);
        if !mine {
            self.objects().live_release(copy)?;
        }
        if !fits {
            self.drop_copy(id)?;
        }
        Ok(live.copy.load(Acquire).checked_sub(1))
    }

    /// Whether there is a record of this object.
    fn is_there(&self, id: ObjectId) -> Result<bool> {
        let snapshot = self.snapshot(self.shard_of(id))?;
        Ok(snapshot.get(&Key::inode(id))?.is_some())
    }

    /// A live entry that used a copy (plus one; 0: none) doesn't any more.
    pub(crate) fn release_copy(&self, copy: u32) {
        if let Some(copy) = copy.checked_sub(1) {
            // What can't be written back is tried again when all is put in order.
            let _: Result<()> = self.objects().live_release(copy);
        }
    }

    /// Keeps whole MiBs of a file, or what is behind its last one, from `first` on.
    pub fn keep_copy(&self, index: u32, last: Last, first: u64, bytes: &[u8]) -> Result<()> {
        if self.copy_of(index, last).is_none() {
            self.make_copy(self.content().live_id(index).copy(), last)?;
        }
        // Of its own, as others may let it go meanwhile.
        let (copy, held) = self
            .objects()
            .live_acquire_here(self.content().live_id(index).copy())?;
        let stamp = self.stamp(last.edition);
        let mut result = Ok(());
        for (n, chunk) in bytes.chunks(CHUNK as usize).enumerate() {
            let at = first + n as u64 * CHUNK;
            let check = |live: &crate::control::Live| match live.copy_stamp().load(Acquire) == stamp
            {
                true => Ok(()),
                false => Err(Errno::STALE),
            };
            let bytes = (chunk.as_ptr(), chunk.len());
            // SAFETY: a slice.
            result = unsafe {
                self.content()
                    .write_here(copy, Some(at), bytes, true, check)
            }
            .map(|_| ());
            if result.is_err() {
                self.copying_failed();
                break;
            }
        }
        drop(held);
        self.objects().live_release(copy).and(result)
    }

    /// Makes an empty copy of a file, if there is none.
    fn make_copy(&self, id: ObjectId, last: Last) -> Result<()> {
        let t = now();
        let inode = Inode {
            mode: libc::S_IFREG | 0o600,
            nlink: 1,
            copy_stamp: self.stamp(last.edition),
            mtime: t,
            ctime: t,
            atime: t,
            btime: t,
            ..Inode::default()
        };
        let (key, shard) = (Key::inode(id), self.shard_of(id));
        self.write(self.names().object_set(id), Need::Bytes(0), |w| {
            w.insert(shard, &key, &inode.encode(&[])).map(|_| ())
        })?;
        self.count_copy();
        Ok(())
    }

    /// Removes a copy; its pages are free at once, whoever has it open.
    pub fn drop_copy(&self, id: ObjectId) -> Result<()> {
        let (index, held) = match self.objects().live_acquire_here(id) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let emptied = self.content().truncate_here(index, |_| Ok(0));
        let shard = self.shard_of(id);
        let dropped = self.write(self.names().object_set(id), Need::Removal, |w| {
            self.names().change_inode(w, id, |inode| inode.nlink = 0)?;
            w.put(shard, &Key::orphan(id), &[])?;
            self.objects().live_mark_unlinked(id, false)
        });
        drop(held);
        self.objects().live_release(index).and(dropped).and(emptied)
    }
}
