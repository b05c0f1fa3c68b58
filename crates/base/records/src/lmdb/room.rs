//! Makes room for a write transaction before it begins: reserves it after the last page in use, or
//! waits for freed pages. A full file system, or a full map, is an error at that point.

use super::parked::{self, Room, Todo};
use super::readers::{self, list};
use super::txn::{WriteTxn, scan_stored};
use super::{Env, MAX_READERS, PAGE, check};
use forebay_media::fault::{self, Point};
use forebay_media::memory;
use forebay_runtime::atomics::AtomicU64;
use lmdb_master_sys as ffi;
use rustix::fd::AsFd;
use rustix::io::{Errno, Result};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// Number of pages that a transaction may need for the tree and the free list besides its payload.
const MARGIN: u64 = 64;
/// Beyond what a transaction needs, room for an eighth of the file is reserved, within these
/// bounds. Bytes.
const MIN_AHEAD: u64 = 16 << 10;
const MAX_AHEAD: u64 = 4 << 20;
/// How long a transaction that needs freed pages waits for readers of old states.
const READERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Upper bounds of the size of a lock file's head before the reader slots, and of a slot. Bytes.
const LOCK_HEAD: u64 = 512;
const READER: u64 = 64;
/// Number of free reader slots, after the used ones, that have memory.
pub(super) const READERS_AHEAD: u32 = 100;
/// Number of pages that suffice for a removal when no more room can be reserved.
const LAST_MARGIN: u64 = 24;

/// Reaction of a transaction when no more room can be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFull {
    /// The transaction adds records, so it fails.
    Fails,
    /// The transaction frees more than it takes: [`LAST_MARGIN`] pages of room suffice for it.
    Removes,
    /// The transaction replaces records: room for them and twice [`LAST_MARGIN`] pages suffices, so
    /// that removals still fit after it.
    Updates,
}

impl Env {
    /// Begins a write transaction that may add `payload` bytes. The caller holds the shard's lock
    /// and is in a critical section.
    ///
    /// # Errors
    /// ENOSPC if the file system, or the map, has no room for what may be needed.
    pub fn write(&self, room: &Room, payload: usize, on_full: OnFull) -> Result<WriteTxn<'_>> {
        if on_full != OnFull::Removes {
            fault::check(Point::Records)?;
        }
        let env = self.get()?;
        let reserved = &room.reserved;
        let mut info = ffi::MDB_envinfo {
            me_mapaddr: null_mut(),
            me_mapsize: 0,
            me_last_pgno: 0,
            me_last_txnid: 0,
            me_maxreaders: 0,
            me_numreaders: 0,
        };
        // SAFETY: the environment is open; LMDB writes only to `info`.
        check(unsafe { ffi::mdb_env_info(env, &mut info) })?;
        let last = info.me_last_pgno as u64 + 1;
        let payload = payload as u64 * 2;
        let need = (last + MARGIN) * PAGE + payload;
        let behind =
            |pages: u64, bytes: u64| (last + pages) * PAGE + bytes <= reserved.load(Relaxed);
        let mut full = false;
        if need > reserved.load(Relaxed)
            && let Err(e) = self.reserve(reserved, need)
        {
            full = true;
            let behind_last = behind(LAST_MARGIN, 0);
            let makes_do = match on_full {
                OnFull::Fails => false,
                OnFull::Removes => behind_last,
                OnFull::Updates => behind(2 * LAST_MARGIN, payload),
            };
            if !makes_do {
                // A long value needs consecutive pages. Only the pages after the last one are sure
                // to be consecutive.
                let long = if payload > PAGE / 2 { payload } else { 0 };
                let wanted = match on_full {
                    OnFull::Removes => LAST_MARGIN
                        .saturating_sub((reserved.load(Relaxed) / PAGE).saturating_sub(last)),
                    OnFull::Fails | OnFull::Updates => MARGIN + payload / PAGE,
                };
                if !behind(0, long) || !self.wait_for_free_pages(wanted, behind_last)? {
                    return Err(e);
                }
            }
        }
        let mut begun = self.begin()?;
        begun.last = last - 1;
        // SAFETY: `begun` holds the transaction, which has just begun.
        begun.todo = match unsafe { parked::todo(begun.txn, begun.last, room)? } {
            Todo::Park if full || self.parks_later() => Todo::Nothing,
            todo => todo,
        };
        Ok(begun)
    }

    fn begin(&self) -> Result<WriteTxn<'_>> {
        let mut txn = null_mut();
        // SAFETY: env is open; the shard's lock makes us the only writer.
        check(unsafe { ffi::mdb_txn_begin(self.get()?, null_mut(), 0, &mut txn) })?;
        Ok(WriteTxn {
            env: self,
            txn,
            last: 0,
            todo: Todo::Nothing,
        })
    }

    fn parks_later(&self) -> bool {
        let left = self.dont_park.load(Relaxed);
        if left > 0 {
            self.dont_park.store(left - 1, Relaxed);
        }
        left > 0
    }

    /// Waits until `pages` freed pages can be reused: until readers that may still use them end, or
    /// are found dead. Returns parked pages to LMDB. False if there are not enough pages. `room`:
    /// whether a transaction may add some pages to the file.
    #[cold]
    fn wait_for_free_pages(&self, pages: u64, room: bool) -> Result<bool> {
        let until = Instant::now() + READERS_TIMEOUT;
        loop {
            self.release_dead_readers()?;
            let (free, pinned) = self.free_pages()?;
            if free >= pages {
                return Ok(true);
            }
            if free + pinned < pages && (room || free >= LAST_MARGIN) {
                let mut txn = self.begin()?;
                txn.todo = Todo::GiveBack;
                // SAFETY: `txn` holds the transaction, which has just begun.
                if unsafe { parked::any(txn.txn)? } {
                    txn.commit()?;
                    continue;
                }
            }
            if free + pinned < pages || Instant::now() > until {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the number of freed pages that the next write transaction may use, and of those that
    /// a reader may still see. The caller excludes writers.
    pub(super) fn free_pages(&self) -> Result<(u64, u64)> {
        /// LMDB's database of freed pages.
        const FREED: ffi::MDB_dbi = 0;
        let snapshot = self.fresh_snapshot()?;
        // SAFETY: the snapshot's transaction is active until the snapshot is dropped.
        let last = unsafe { ffi::mdb_txn_id(snapshot.txn) } as u64;
        let mut oldest = last;
        list(self.get()?, |_, kept| {
            oldest = oldest.min(kept.unwrap_or(oldest));
        })?;
        let (mut free, mut pinned) = (0, 0);
        // Each key is the transaction that freed the pages. Each value begins with the number of
        // pages.
        scan_stored(snapshot.txn, FREED, b"", |by, list| {
            let word = |b: &[u8]| b.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
            // Pages freed by the last transaction are never usable by the next one, even without
            // readers.
            match word(by) {
                by if by < oldest => free += word(list),
                by if by < last => pinned += word(list),
                _ => {}
            }
            true
        })?;
        Ok((free, pinned))
    }

    /// Reserves room for `pages` more pages in a transaction that is in progress.
    ///
    /// # Errors
    /// ENOSPC if the file system has none.
    pub fn reserve_more(&self, txn: &WriteTxn<'_>, room: &Room, pages: u64) -> Result<()> {
        // The room reserved at the transaction's beginning lies after `last`; the transaction may
        // have used all of it.
        const MAX_PAGES_PROMISED: u64 = 2 * (64 << 10);
        let need = (txn.last + 1 + 2 * MARGIN + pages) * PAGE + MAX_PAGES_PROMISED;
        if need > room.reserved.load(Relaxed) {
            self.reserve(&room.reserved, need)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn reserve(&self, reserved: &AtomicU64, need: u64) -> Result<()> {
        let have = reserved.load(Relaxed);
        assert!(need > have, "room is reserved behind what there is");
        let step = (have / 8).clamp(MIN_AHEAD, MAX_AHEAD);
        let end = (need + step).min(self.map_size as u64);
        if end < need {
            return Err(Errno::NOSPC);
        }
        // LMDB's own descriptor: the calling thread may have become a user who may not open the
        // file.
        let env = self.get()?;
        let _in_use = readers::in_use(env)?;
        let fd = readers::data_descriptor(env)?;
        for end in [end, need] {
            match memory::reserve(fd, false, have, end - have) {
                Ok(()) => {
                    debug_assert!(end <= self.map_size as u64, "room lies in the map");
                    reserved.store(end, Relaxed);
                    return Ok(());
                }
                Err(Errno::NOSPC) if end > need => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::NOSPC)
    }

    /// Reserves memory for a slot in the lock file, before a reader takes a new one. Uses LMDB's
    /// own descriptor, since closing another one would release this process's record locks.
    ///
    /// LMDB takes the first free slot, counted from 0; `me_numreaders` is the end of the used ones.
    /// Memory for [`READERS_AHEAD`] more is reserved, for readers that take slots at the same
    /// moment.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for the slot; errors of opening the file.
    pub(super) fn reserve_reader(&self, env: *mut ffi::MDB_env) -> Result<()> {
        // SAFETY: the struct has only numbers and a pointer, for which zero is valid.
        let mut info: ffi::MDB_envinfo = unsafe { std::mem::zeroed() };
        // SAFETY: the environment is open; LMDB writes only to `info`.
        check(unsafe { ffi::mdb_env_info(env, &mut info) })?;
        if info.me_numreaders + READERS_AHEAD <= self.readers.load(Relaxed) {
            Ok(())
        } else {
            let file = readers::descriptor(env)?;
            self.reserve_readers(file, info.me_numreaders + 2 * READERS_AHEAD)
        }
    }

    /// Reserves memory for the first `readers` slots of the lock file.
    ///
    /// # Errors
    /// As for [`Env::reserve_reader`].
    #[cold]
    pub(super) fn reserve_readers(&self, file: impl AsFd, readers: u32) -> Result<()> {
        let fd = file.as_fd();
        let end = LOCK_HEAD + u64::from(readers.min(MAX_READERS)) * READER;
        if (rustix::fs::fstat(fd)?.st_blocks as u64) * 512 < end.next_multiple_of(PAGE) {
            // The file's size doesn't change, since LMDB sets it.
            memory::reserve(fd, true, 0, end)?;
        }
        self.readers.fetch_max(readers, Relaxed);
        Ok(())
    }

    /// Returns the length of the file up to the last page in use. Bytes.
    ///
    /// # Errors
    /// Errors of opening the file.
    pub fn used(&self) -> Result<u64> {
        let mut info = std::mem::MaybeUninit::<ffi::MDB_envinfo>::zeroed();
        // SAFETY: the environment is open; LMDB fills `info`, whose zeros are valid, too.
        unsafe {
            check(ffi::mdb_env_info(self.get()?, info.as_mut_ptr()))?;
            Ok((info.assume_init().me_last_pgno as u64 + 1) * PAGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Puts records until there is no room, and reads each again. Returns their number.
    fn fill(env: &Env, room: &Room) -> u64 {
        for n in 0u64.. {
            let put = || {
                let mut txn = env.write(room, 300, OnFull::Fails)?;
                txn.put(&n.to_be_bytes(), &[n as u8; 300])?;
                txn.commit()
            };
            match put() {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e, Errno::NOSPC);
                    return n;
                }
            }
        }
        unreachable!()
    }

    fn clear(env: &Env, room: &Room, records: u64) {
        for n in 0..records {
            let mut txn = env.write(room, 0, OnFull::Removes).unwrap();
            assert_eq!(txn.del(&n.to_be_bytes()), Ok(true));
            txn.commit().unwrap();
        }
    }

    #[test]
    fn a_full_map_takes_records_again_when_others_are_removed() {
        let dir = Dir(std::env::temp_dir().join(format!("fb-lmdb-{}", std::process::id())));
        std::fs::create_dir_all(&dir.0).unwrap();
        let env = Env::new(dir.0.join("records"), 4 << 20);
        let room = Room::default();
        let first = fill(&env, &room);
        assert!(first > 4000, "{first}");
        clear(&env, &room, first);
        // All pages that can be used now were used before.
        let second = fill(&env, &room);
        assert!(second > first / 2, "{second} after {first}");
        // Pages that a reader sees can't be reused, so each commit takes free pages.
        let (ready, is_ready) = std::sync::mpsc::channel();
        let read_for = |time: Duration| {
            let reader = env.fresh_snapshot().unwrap();
            ready.send(()).unwrap();
            std::thread::sleep(time);
            assert_eq!(reader.get(&0u64.to_be_bytes()), Ok(None));
        };
        clear(&env, &room, second);
        let third = std::thread::scope(|s| {
            s.spawn(|| read_for(READERS_TIMEOUT * 2));
            is_ready.recv().unwrap();
            fill(&env, &room)
        });
        assert!(third < second / 2, "{third} of {second}");
        // A transaction waits for a reader that ends soon.
        clear(&env, &room, third);
        let last = std::thread::scope(|s| {
            s.spawn(|| read_for(READERS_TIMEOUT / 4));
            is_ready.recv().unwrap();
            fill(&env, &room)
        });
        assert!(last > first / 2, "{last} after {first}");
        let left = env.fresh_snapshot().unwrap();
        for n in 0..last {
            assert_eq!(left.get(&n.to_be_bytes()), Ok(Some(&[n as u8; 300][..])));
        }
    }
}
