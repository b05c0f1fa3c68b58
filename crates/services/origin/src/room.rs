//! Room in the media: the service evicts clean files before the media are full, and makes room for
//! waiting writers.
//!
//! A writer in a full pool requests room and waits. The service evicts clean files. If there are
//! none, it writes all dirty files back at once, and then evicts them. The writer gets ENOSPC only
//! if no file can be evicted.

use crate::drain::Drain;
use crate::marks::{Marks, is_clean};
use crate::orders::CopierOrders;
use crate::quota::Quota;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::side::print;
use crate::tree::Tree;
use forebay_client::controls::Temporality;
use forebay_posix::{File, ObjectId};
use forebay_runtime::threads::lock;
use forebay_store::controls::declared;
use forebay_store::{Entry, Inode, NodeId, OriginMark, OriginState, PAGE, SetAttr};
use rustix::io::{Errno, Result};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval between two checks of the room in the media.
const LOOK: Duration = Duration::from_secs(1);
/// Percentages of the media's capacity: above the first, clean files are evicted until usage is
/// down to the second.
const FULL: (u64, u64) = (85, 75);
/// Minimum number of bytes that are freed for a writer in a full pool, so that its next request
/// comes later.
const AT_LEAST: u64 = 8 << 20;
/// Maximum time for which passes are repeated for a writer while files are too young to be written
/// back; and the pause between passes.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
const ROOM_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A file whose bytes can be evicted.
pub struct Clean {
    pub id: ObjectId,
    /// The file's path at the origin.
    pub relative: Vec<u8>,
    pub bytes: u64,
    /// Files of a lower rank are evicted first.
    pub rank: u8,
    /// Time of the last use. Nanoseconds since 1970.
    pub used: i64,
}

/// Returns the rank of a clean file in the order of eviction, by its declared temporality. Files of
/// lower rank are evicted first.
fn eviction_rank(inode: &Inode) -> u8 {
    match declared(inode.controls).0.temporality {
        Some(Temporality::Once) => 0,
        Some(Temporality::Bursty) => 1,
        None => 2,
        Some(Temporality::Multiple) => 3,
    }
}

/// Evicts files, and makes room for writers.
pub struct Room {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub orders: Arc<CopierOrders>,
    pub drain: Arc<Drain>,
    pub settings: Arc<Settings>,
    pub quota: Arc<Quota>,
    /// Locked by the thread that makes room.
    pub making: Mutex<()>,
}

impl Room {
    /// Evicts the bytes of clean files below a path. Returns the numbers of files and of bytes.
    pub fn evict(&self, relative: &[u8]) -> Result<(u64, u64)> {
        let (mut files, mut bytes) = (0, 0);
        for clean in self.clean_files(relative)? {
            if self.release(&clean).unwrap_or(false) {
                files += 1;
                bytes += clean.bytes;
            }
        }
        Ok((files, bytes))
    }

    fn clean_files(&self, relative: &[u8]) -> Result<Vec<Clean>> {
        let mut clean = Vec::new();
        self.tree
            .each_object(relative, &mut |_, at, entry, inode| {
                let archived = inode.origin.state == OriginState::Archived;
                let is_partial = inode.origin.is_released() && inode.pages > 0;
                let is_whole = archived && is_clean(inode) && inode.size > 0;
                if inode.is_file() && (is_whole || is_partial) {
                    clean.push(Clean {
                        id: entry.id,
                        relative: at.to_vec(),
                        bytes: if archived {
                            inode.size
                        } else {
                            part_here(inode)
                        },
                        rank: eviction_rank(inode),
                        used: inode.atime.max(inode.mtime),
                    });
                }
                Ok(())
            })?;
        Ok(clean)
    }

    /// Evicts clean files that aren't pinned, until `wanted` bytes have been freed: those of the
    /// lowest rank first ([`eviction_rank`]), and of one rank the least recently used first.
    /// `node`: evicts only files with bytes on this node. Returns the number of freed bytes.
    pub fn evict_least_used(&self, wanted: u64, node: Option<u32>) -> Result<u64> {
        let mut clean = self.clean_files(b"")?;
        // Striped files have no single home: they have bytes on all nodes, so none is left out.
        let home = |c: &Clean| self.shared.cluster().home_of(c.id);
        clean.retain(|c| node.is_none() || home(c).is_none_or(|home| Some(home) == node));
        clean.retain(|c| !self.settings.is_pinned(&c.relative));
        clean.sort_by_key(|c| (c.rank, c.used));
        let mut freed = 0;
        for c in &clean {
            if freed >= wanted {
                break;
            }
            if self.release(c).unwrap_or(false) {
                freed += c.bytes;
            }
        }
        Ok(freed)
    }

    /// Makes room for `bytes` more bytes of a file. Blocks.
    ///
    /// # Errors
    /// ENOSPC: nothing can be evicted.
    pub fn make_room(&self, id: ObjectId, bytes: u64) -> Result<()> {
        let began = Instant::now();
        // One thread at a time makes room. All waiting writers can use the room that it makes.
        let _alone = lock(&self.making);
        let node = self.shared.cluster().home_of(id);
        let wanted = bytes.max(AT_LEAST);
        let counted = |made| {
            self.shared
                .ledger
                .waited
                .add(1, began.elapsed().as_millis() as u64);
            made
        };
        loop {
            if self.evict_least_used(wanted, node)? > 0 {
                return counted(Ok(()));
            }
            let pass = self.drain.pass(b"", Duration::ZERO);
            self.shared.advance();
            if self.evict_least_used(wanted, node)? > 0 {
                return counted(Ok(()));
            }
            if pass.young == 0 || began.elapsed() > ROOM_TIMEOUT {
                return counted(Err(Errno::NOSPC));
            }
            std::thread::sleep(ROOM_POLL_INTERVAL);
        }
    }

    /// Evicts files whenever the media are too full, until the pool is removed.
    pub fn keep_room(&self) {
        while self.shared.is_there() {
            std::thread::sleep(LOOK);
            self.forget_fills();
            for (node, capacity, free) in self.rooms() {
                let used = capacity.saturating_sub(free);
                if used > capacity / 100 * FULL.0 {
                    // After a failure, the next turn tries again.
                    let _ = self.evict_least_used(used - capacity / 100 * FULL.1, node);
                }
            }
        }
    }

    /// Releases the bytes of a clean file. Returns false if the file has changed, a process has it
    /// open, or the origin has another version.
    pub fn release(&self, clean: &Clean) -> Result<bool> {
        let _held = self.tree.paths();
        let _working = self.marks.lock(clean.id);
        let inode = self.shared.inode(clean.id)?;
        if inode.origin.is_released() {
            return self.release_part(clean, &inode);
        }
        let archived = inode.origin.state == OriginState::Archived;
        let there = self.shared.side.look(&clean.relative)?;
        if !archived
            || !is_clean(&inode)
            || there.is_none_or(|meta| print(&meta) != inode.origin.print)
        {
            return Ok(false);
        }
        self.release_bytes(clean.id, inode.size, inode.origin)
    }

    /// Removes a file's bytes from the pool and sets its size to `size`. Returns false if a process
    /// has the file open. The caller holds the object's lock.
    pub fn release_bytes(&self, id: ObjectId, size: u64, mark: OriginMark) -> Result<bool> {
        self.orders.make_sure_of(id)?;
        let released = OriginMark {
            state: OriginState::Released,
            ..mark
        };
        let before = self.shared.inode(id)?;
        self.marks.set_mark(id, released)?;
        // A process's open is recorded before the process reads the mark. So this check sees the
        // open, or the process sees the released mark.
        if self.shared.cluster().opens().is_open(id)? {
            self.marks.set_mark(id, before.origin)?;
            return Ok(false);
        }
        let entry = Entry {
            id,
            kind: libc::S_IFREG,
        };
        let open = self.shared.fs.keep_object(entry, libc::O_RDWR)?;
        let file = File::new(&self.shared.fs, open);
        // If the service dies here, the released file has the size 0. The next comparison with the
        // origin restores the size.
        file.set_len(0)?;
        file.set_len(size)?;
        file.close()?;
        self.quota.others(size as i64 - before.size as i64, 0);
        let set = SetAttr {
            mtime: Some(before.mtime),
            ..SetAttr::default()
        };
        self.marks.set_clean(id, before.ctime, released, set)?;
        self.shared.ledger.evicted.add(1, before.size);
        Ok(true)
    }

    /// Removes the bytes of a released file from the pool. Returns false if a process has the file
    /// open. The caller holds the object's lock.
    pub fn release_part(&self, clean: &Clean, inode: &Inode) -> Result<bool> {
        let id = clean.id;
        if self.shared.cluster().opens().is_open(id)? {
            return Ok(false);
        }
        if let Some(fill) = self.marks.fills().of(id) {
            if !fill.end_if_idle() {
                return Ok(false);
            }
            self.marks.fills().end(id);
        }
        // A process that opens the file from here on asks this service first, and waits.
        let entry = Entry {
            id,
            kind: libc::S_IFREG,
        };
        let file = File::new(
            &self.shared.fs,
            self.shared.fs.keep_object(entry, libc::O_RDWR)?,
        );
        file.set_len(0)?;
        file.set_len(inode.size)?;
        file.close()?;
        self.shared.ledger.evicted.add(0, clean.bytes);
        Ok(true)
    }

    /// Removes fills of files that were removed, and fills without present blocks of files that no
    /// process has open.
    pub fn forget_fills(&self) {
        for (id, fill) in self.marks.fills().all() {
            let is_gone = self.shared.inode(id).err() == Some(Errno::NOENT);
            let is_unused = || {
                let is_open = self.shared.cluster().opens().is_open(id);
                !fill.has_any() && is_open == Ok(false)
            };
            if !is_gone && !is_unused() {
                continue;
            }
            let _working = self.marks.lock(id);
            let is_current = self.marks.fills().of(id);
            let is_current = is_current.is_some_and(|current| Arc::ptr_eq(&current, &fill));
            if is_current && (is_gone || !fill.has_any()) && fill.end_if_idle() {
                self.marks.fills().end(id);
            }
        }
    }
}

impl Room {
    /// Whether the media have room for this many bytes of read-ahead.
    pub fn has_room(&self, id: ObjectId, bytes: u64) -> bool {
        let home = self.shared.cluster().home_of(id);
        let rooms = self.rooms();
        let room = rooms.iter().find(|(node, ..)| *node == home);
        room.or(rooms.first()).is_some_and(|(_, capacity, free)| {
            let kept = capacity / 100 * (100 - FULL.0);
            free.saturating_sub(kept) >= bytes
        })
    }

    /// Returns each node's number, the size of its media, and the room in them. Bytes. The number
    /// is None in a pool of one node.
    pub fn rooms(&self) -> Vec<(Option<u32>, u64, u64)> {
        let cluster = self.shared.cluster();
        match (cluster.room().capacity_of_all(), cluster.room().rooms()) {
            (Some((capacity, _)), Some(rooms)) if !rooms.is_empty() => {
                // All nodes have media of the same capacity.
                let each = capacity / rooms.len() as u64;
                let room = |(node, free): (NodeId, u64)| (Some(node.0), each, free);
                rooms.into_iter().map(room).collect()
            }
            _ => {
                let (mut capacity, mut used) = (0, 0);
                for medium in self.shared.fs.store().media() {
                    let usage = medium.usage();
                    capacity += usage.capacity;
                    used += usage.used;
                }
                vec![(None, capacity, capacity.saturating_sub(used))]
            }
        }
    }
}

/// Returns the number of bytes that a released file has in the pool.
pub fn part_here(inode: &Inode) -> u64 {
    inode.pages * PAGE as u64
}
