//! Reading large files by ranges: blocks are fetched on demand, and ahead of sequential readers.
//!
//! Such a file stays released until all its blocks are in the pool; then the file is archived. The
//! list of present blocks ([`Fill`]) is in memory only. A restarted service fetches present blocks
//! again, which writes the same bytes.
//!
//! The bytes that a released file has in the pool are those of the version in its mark. Before the
//! mark gets another version, the bytes are removed, or a new object gets the file's name. So no
//! reader ever gets a mixture of versions. A program that has the old object open can read the
//! bytes it has fetched, and gets ESTALE for others.
//!
//! A thread that begins or ends a fill holds the object's lock. Blocks are fetched without it,
//! several at a time; the origin's version is checked before and after a block is copied.

use crate::attributes::ObjectAttributes;
use crate::error::{Done, Error};
use crate::fill::{Claimed, Fill};
use crate::listing::Listing;
use crate::marks::{Marks, is_clean};
use crate::orders::CopierOrders;
use crate::quota::Quota;
use crate::room::Room;
use crate::shared::{Shared, THREADS};
use crate::side::{below, print, split};
use crate::tree::{Name, Tree};
use forebay_backing::{Meta, PoolFile, for_each, pool_time, try_map};
use forebay_client::origin::BLOCK;
use forebay_posix::{File, ObjectId};
use forebay_runtime::threads::lock;
use forebay_staging::{copy_part, part_name};
use forebay_store::{Entry, Inode, OriginMark, OriginState, RenameMode, SetAttr};
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum number of threads that read ahead, and of blocks that wait for them, for all files.
const AHEAD_THREADS: usize = 6;
const MAX_QUEUED_BLOCKS: usize = 256;
/// Maximum number of attempts to fetch blocks while the pool is full, and the pause between two
/// attempts. In all 1 s.
const ROOM_ATTEMPTS: usize = 20;
const ROOM_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum number of bytes that a reader in a full pool evicts.
const ROOM_AT_LEAST: u64 = 8 * BLOCK;
/// Maximum number of times that a reader starts again because its fill has ended.
const ATTEMPTS: usize = 100;

/// Number of bytes of a block that one thread copies if a program waits for this block only.
const PIECE: u64 = BLOCK / THREADS as u64;

/// A file that is fetched by ranges.
struct Source<'f> {
    id: ObjectId,
    fill: &'f Arc<Fill>,
    relative: &'f [u8],
}

/// The queue of blocks to be read ahead, and the number of threads that read them.
#[derive(Default)]
pub struct Ahead {
    queue: VecDeque<Job>,
    threads: usize,
}

/// A block to be read ahead. `relative`: a path that its file has, or has had.
struct Job {
    id: ObjectId,
    fill: Arc<Fill>,
    relative: Vec<u8>,
    block: u64,
}

/// Fetches files by ranges.
pub struct Ranges {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub orders: Arc<CopierOrders>,
    pub attributes: Arc<ObjectAttributes>,
    pub listing: Arc<Listing>,
    pub room: Arc<Room>,
    pub quota: Arc<Quota>,
    pub ahead: Mutex<Ahead>,
}

impl Ranges {
    /// Fetches a range of a file that is open for reading. `name`: a name that the file has, or has
    /// had. Returns the reply to [`forebay_client::origin::Request::Range`].
    ///
    /// # Errors
    /// The errno, and what failed. ESTALE: the origin has another version. ENOSPC: the pool is full
    /// even after evicting what can be evicted.
    pub fn bring_range(
        self: &Arc<Self>,
        id: ObjectId,
        name: Name<'_>,
        (at, length): (u64, u64),
    ) -> Done<String> {
        for _ in 0..ROOM_ATTEMPTS {
            match self.try_range(id, name, (at, length)) {
                Err(Error {
                    errno: Errno::NOSPC,
                    ..
                }) => {
                    let home = self.shared.cluster().home_of(id);
                    if self.room.evict_least_used(ROOM_AT_LEAST, home).unwrap_or(0) == 0 {
                        std::thread::sleep(ROOM_POLL_INTERVAL);
                    }
                    self.shared.advance();
                }
                done => return done,
            }
        }
        self.try_range(id, name, (at, length))
    }

    fn try_range(
        self: &Arc<Self>,
        id: ObjectId,
        name: Name<'_>,
        (at, length): (u64, u64),
    ) -> Done<String> {
        // The path of the last attempt, if the origin had no file or another version there. A
        // second attempt is made if the path differs now: a directory above may have been renamed.
        let mut other = None;
        for _ in 0..ATTEMPTS {
            let (fill, relative) = {
                let (_held, dir) = match self.tree.path_held(name.0) {
                    Ok((held, dir)) => (held, Some(dir)),
                    Err(_) => (self.tree.paths(), None),
                };
                let _working = self.marks.lock(id);
                self.orders.make_sure_of(id)?;
                let inode = self.shared.inode(id)?;
                if !inode.origin.is_released() {
                    return Ok(String::new());
                }
                let relative = match dir {
                    Some(dir) if self.tree.has_name(name.0, name.1, id) => below(&dir, name.1),
                    _ => match self.tree.find(id) {
                        Err(Errno::NOENT) => return Err(self.has_gone(name.1)),
                        found => found?,
                    },
                };
                let fill = self.fill_for(id, &relative, inode, length == 0)?;
                (fill, relative)
            };
            let count = fill.size.div_ceil(BLOCK);
            let first = (at / BLOCK).min(count);
            let end = at.saturating_add(length).div_ceil(BLOCK).min(count);
            if length == 0 || first >= end {
                return Ok(fill.number.to_string());
            }
            let source = Source {
                id,
                fill: &fill,
                relative: &relative,
            };
            // At the beginning of a file, the first block is fetched before others are read ahead:
            // maybe the program reads no more.
            if first > 0 {
                self.read_ahead(&source, (first, end));
            }
            match self.bring_blocks(&source, (first, end)) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(Errno::NOENT | Errno::STALE) if other.as_ref() != Some(&relative) => {
                    other = Some(relative);
                    continue;
                }
                Err(Errno::NOENT) => return Err(self.has_gone(&relative)),
                Err(Errno::STALE) => return Err(self.has_changed_meanwhile(&relative)),
                Err(e) => {
                    return Err(Error::new(
                        e,
                        self.shared.error_text(&relative, "can't be read", e),
                    ));
                }
            }
            if first == 0 {
                self.read_ahead(&source, (first, end));
            }
            if fill.is_complete() {
                // A failure is ignored: the next range tries again.
                let _ = self.complete(&source);
            }
            return Ok(fill.number.to_string());
        }
        Err(Error::new(
            Errno::BUSY,
            self.shared.error_text(name.1, "can't be read", Errno::BUSY),
        ))
    }

    fn has_gone(&self, path: &[u8]) -> Error {
        let path = self.shared.side.show(path);
        let why = format!(
            "{path} was removed or replaced at the origin while it was open: the bytes that weren't read yet are gone"
        );
        Error::new(Errno::STALE, why)
    }

    fn has_changed_meanwhile(&self, relative: &[u8]) -> Error {
        let shown = self.shared.side.show(relative);
        let why = format!(
            "{shown} has changed at the origin while it was open: open it again to read the new version"
        );
        Error::new(Errno::STALE, why)
    }

    fn begin_fill(&self, id: ObjectId, inode: &Inode) -> Result<Arc<Fill>> {
        let blocks = inode.size.div_ceil(BLOCK);
        self.marks
            .fills()
            .begin(id, (inode.size, blocks), inode.origin.print)
    }

    /// Returns the fill of a released file, after beginning one if there is none. If the file has
    /// just been opened, the origin's version is checked. The caller holds the object's lock.
    fn fill_for(
        &self,
        id: ObjectId,
        relative: &[u8],
        inode: Inode,
        was_opened: bool,
    ) -> Done<Arc<Fill>> {
        let known = self.marks.fills().of(id);
        if let Some(fill) = known.as_ref().filter(|_| !was_opened) {
            return Ok(fill.clone());
        }
        let error_text = |e| Error::new(e, self.shared.error_text(relative, "can't be read", e));
        let there = match self.shared.side.meta(relative) {
            Err(Errno::NOENT) if !was_opened => return Err(self.has_gone(relative)),
            there => there.map_err(error_text)?,
        };
        if print(&there) == inode.origin.print && there.size == inode.size {
            let known = known.filter(|fill| fill.size == inode.size);
            return known.map_or_else(|| self.begin_fill(id, &inode).map_err(Error::from), Ok);
        }
        if !was_opened {
            // The blocks that the program has read were fetched by a service that has died, and
            // belong to another version of the file.
            return Err(self.has_changed_meanwhile(relative));
        }
        self.renew(id, relative, &inode, &there)
            .map_err(|e| match e {
                Errno::STALE => e.into(),
                e => error_text(e),
            })?;
        let inode = self.shared.inode(id)?;
        self.begin_fill(id, &inode).map_err(Error::from)
    }

    /// Makes a released file stand for `there`, a new version at the origin. If the object has
    /// bytes of the old version, a new object gets its name instead. The caller holds the object's
    /// lock and the lock on the paths.
    ///
    /// # Errors
    /// ESTALE: the object doesn't stand for the new version; another object may have its name now.
    /// Errors of making that object.
    pub fn renew(&self, id: ObjectId, relative: &[u8], inode: &Inode, there: &Meta) -> Result<()> {
        if !there.is_file() {
            return Err(Errno::STALE);
        }
        if inode.pages == 0 && !self.marks.fills().has_any(id) {
            self.marks.fills().end(id);
            return self.take_attributes(id, there, print(there));
        }
        if inode.nlink == 1 {
            self.replace(relative, there)?;
        }
        Err(Errno::STALE)
    }

    /// Gives the name of an object of the pool to a new object. The new object stands for the
    /// version at the origin.
    fn replace(&self, relative: &[u8], there: &Meta) -> Result<()> {
        let (above, name) = split(relative);
        let dir = ObjectId(
            self.shared
                .fs
                .stat(&self.shared.pool_path(above), true)?
                .ino,
        );
        let mtime = self.shared.inode(dir)?.mtime;
        let cluster = self.shared.cluster();
        // Removes a temporary name that a service left when it died.
        let part = part_name(name);
        if let Some(left) = cluster.namespace().lookup(dir, &part)? {
            self.tree
                .change_pool(|epoch| cluster.namespace().unlink(dir, &part, Some(left), epoch))?;
        }
        let _pending = self.tree.pending_creates().begin(dir, &part);
        self.listing.make_stub(dir, &part, relative, there)?;
        let (from, to) = ((dir, &part[..]), (dir, name));
        self.tree.change_pool(|epoch| {
            cluster
                .namespace()
                .rename(from, to, RenameMode::Replace, epoch)
        })?;
        // Renaming has set the new object's change time, but isn't a change to write back.
        if let Some(new) = cluster.namespace().lookup(dir, name)? {
            let _working = self.marks.lock(new.id);
            let inode = self.shared.inode(new.id)?;
            if inode.origin.is_released() && inode.origin.print == print(there) {
                self.marks
                    .set_clean(new.id, inode.ctime, inode.origin, SetAttr::default())?;
            }
        }
        let set = SetAttr {
            mtime: Some(mtime),
            ..SetAttr::default()
        };
        cluster.namespace().set_attr(dir, &set)
    }

    /// Fetches the missing blocks of `range`. Returns false if the fill has ended.
    fn bring_blocks(&self, source: &Source<'_>, range: (u64, u64)) -> Result<bool> {
        loop {
            let (blocks, version) = match source.fill.claim(range) {
                Claimed::Present => return Ok(true),
                Claimed::Ended => return Ok(false),
                Claimed::Blocks(blocks, version) => (blocks, version),
            };
            let piece = if blocks.len() == 1 { PIECE } else { BLOCK };
            let failed = Mutex::new(None);
            for_each(THREADS, &blocks, |block| {
                let failure = *lock(&failed);
                let came = match failure {
                    Some(e) => Err(e),
                    None => self.fetch_block(source, *block, version, piece),
                };
                source.fill.came(*block, came.is_ok());
                if let Err(e) = came {
                    *lock(&failed) = Some(e);
                }
            });
            let failed = *lock(&failed);
            if let Some(e) = failed {
                return Err(e);
            }
        }
    }

    /// Copies a claimed block into the pool. Each thread copies `piece` bytes at a time.
    fn fetch_block(&self, source: &Source<'_>, block: u64, version: u64, piece: u64) -> Result<()> {
        let from = self.shared.side.open(source.relative, false)?;
        let before = self.shared.side.comparable(from.meta()?);
        if print(&before) != version {
            return Err(Errno::STALE);
        }
        let (start, end) = (block * BLOCK, (block + 1) * BLOCK);
        let end = end.min(source.fill.size);
        if let Some(bytes) =
            self.orders
                .copy_there(source.id, source.relative, &before, (start, end))?
        {
            self.shared.ledger.fetched.add(0, bytes);
            return Ok(());
        }
        let entry = Entry {
            id: source.id,
            kind: libc::S_IFREG,
        };
        let to = PoolFile::new(File::new(
            &self.shared.fs,
            self.shared.fs.keep_object(entry, libc::O_RDWR)?,
        ));
        let pieces: Vec<_> = (start..end)
            .step_by(piece as usize)
            .map(|at| (at, (at + piece).min(end)))
            .collect();
        // Files media are read back for verification; memory isn't, since it returns what was
        // written.
        let verify = self.shared.pool.config().has_files();
        let is_version = |there: &Meta| print(&self.shared.side.comparable(*there)) == version;
        let copied = self.shared.watched(|progress| {
            try_map(THREADS, &pieces, |range| {
                copy_part(&*from, &to, *range, is_version, verify, progress)
            })
        });
        let bytes = copied.map_err(|error| error.errno())?.iter().sum();
        to.close()?;
        self.shared.ledger.fetched.add(0, bytes);
        Ok(())
    }

    /// Fetches the blocks that a program will read next, if there is room for them.
    fn read_ahead(self: &Arc<Self>, source: &Source<'_>, (first, end): (u64, u64)) {
        let blocks = source.fill.ahead(first, end);
        if blocks.is_empty() {
            return;
        }
        let mut ahead = lock(&self.ahead);
        let is_full = ahead.queue.len() + blocks.len() > MAX_QUEUED_BLOCKS;
        if is_full || !self.room.has_room(source.id, blocks.len() as u64 * BLOCK) {
            drop(ahead);
            return source.fill.unqueue(&blocks);
        }
        ahead.queue.extend(blocks.into_iter().map(|block| Job {
            id: source.id,
            fill: source.fill.clone(),
            relative: source.relative.to_vec(),
            block,
        }));
        while ahead.threads < AHEAD_THREADS.min(ahead.queue.len()) {
            let ranges = self.clone();
            let thread = std::thread::Builder::new().name("fb-ahead".into());
            if thread.spawn(move || ranges.read_queued()).is_err() {
                break;
            }
            ahead.threads += 1;
        }
        if ahead.threads == 0 {
            // No thread could be started: programs fetch these blocks when they read them.
            for job in ahead.queue.drain(..) {
                job.fill.unqueue(&[job.block]);
            }
        }
    }

    fn read_queued(&self) {
        loop {
            let mut ahead = lock(&self.ahead);
            let Some(job) = ahead.queue.pop_front() else {
                ahead.threads -= 1;
                return;
            };
            drop(ahead);
            let Some(version) = job.fill.claim_queued(job.block) else {
                continue;
            };
            let source = Source {
                id: job.id,
                fill: &job.fill,
                relative: &job.relative,
            };
            // An error is ignored here: if a process reads the block, fetching it is tried again,
            // and that process gets the error.
            let is_there = self.fetch_block(&source, job.block, version, BLOCK).is_ok();
            if job.fill.came(job.block, is_there) {
                let _ = self.complete(&source);
            }
        }
    }

    /// Marks a file as archived if all its blocks are present. Takes the lock on the paths and the
    /// object's lock.
    fn complete(&self, source: &Source<'_>) -> Result<()> {
        let _held = self.tree.paths();
        let _working = self.marks.lock(source.id);
        let found = self
            .shared
            .fs
            .stat(&self.shared.pool_path(source.relative), false)?;
        if found.ino != source.id.0 {
            return Err(Errno::NOENT);
        }
        self.complete_held(source)
    }

    /// As [`Ranges::complete`], for a caller that holds the object's lock and the lock on the
    /// paths.
    fn complete_held(&self, source: &Source<'_>) -> Result<()> {
        let id = source.id;
        let is_current = self.marks.fills().of(id);
        let is_current = is_current.is_some_and(|fill| Arc::ptr_eq(&fill, source.fill));
        let inode = self.shared.inode(id)?;
        if !is_current || !inode.origin.is_released() || !source.fill.is_complete() {
            return Ok(());
        }
        self.attributes.bring_user_attributes(source.relative)?;
        self.shared.sync_pool()?;
        let mark = OriginMark {
            state: OriginState::Archived,
            synced: 0,
            ..inode.origin
        };
        if is_clean(&inode) {
            self.marks
                .set_clean(id, inode.ctime, mark, SetAttr::default())?
        } else {
            // The pool's attributes have changed; writing them back is still to be done.
            self.marks.set_mark(id, mark)?
        }
        self.shared.ledger.fetched.add(1, 0);
        self.shared.ledger.is_solved(source.relative);
        Ok(())
    }

    /// Fetches the missing blocks of a released file. Returns false if none of its blocks is in the
    /// pool and no process reads it by ranges. The caller holds the object's lock and the lock on
    /// the paths.
    ///
    /// # Errors
    /// Errors of reading the file. ESTALE: the origin has another version, and another object may
    /// have the file's name.
    pub fn bring_rest(&self, id: ObjectId, relative: &[u8]) -> Result<bool> {
        let inode = self.shared.inode(id)?;
        let known = self.marks.fills().of(id);
        if known.is_none() && !self.shared.cluster().opens().is_open(id)? {
            return Ok(false);
        }
        let there = self.shared.side.meta(relative)?;
        if print(&there) != inode.origin.print || there.size != inode.size {
            self.renew(id, relative, &inode, &there)?;
            return Ok(false);
        }
        let fill = match known {
            Some(fill) if fill.size == inode.size => fill,
            _ => self.begin_fill(id, &inode)?,
        };
        let source = Source {
            id,
            fill: &fill,
            relative,
        };
        let all = (0, fill.size.div_ceil(BLOCK));
        match self.bring_blocks(&source, all) {
            Ok(true) => self.complete_held(&source).map(|()| true),
            // Can't happen: only a holder of the object's lock ends a fill, and the caller holds
            // it.
            Ok(false) => Err(Errno::BUSY),
            Err(Errno::STALE) => {
                let there = self.shared.side.meta(relative)?;
                self.renew(id, relative, &self.shared.inode(id)?, &there)?;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Fetches the rest of a file that is about to lose its last name, if a process reads it by
    /// ranges. Failures are ignored: only that process will notice. The caller holds the object's
    /// lock.
    pub fn keep_readable(&self, id: ObjectId, relative: &[u8], inode: &Inode) {
        let is_partial = inode.is_file() && inode.origin.is_released();
        if is_partial && inode.nlink == 1 && self.marks.fills().of(id).is_some() {
            let is_open = self.shared.cluster().opens().is_open(id);
            if is_open.unwrap_or(true) {
                let _ = self.bring_rest(id, relative);
            }
        }
    }

    /// Gives a released file the size and attributes of the origin's version.
    pub fn take_attributes(&self, id: ObjectId, meta: &Meta, version: u64) -> Result<()> {
        let size = self.shared.inode(id)?.size;
        if size != meta.size {
            self.shared.resize(id, meta.size)?;
            self.quota.others(meta.size as i64 - size as i64, 0);
        }
        let set = SetAttr {
            mode: Some(meta.permissions()),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            mtime: Some(pool_time(meta.mtime)),
            ..SetAttr::default()
        };
        let mark = OriginMark {
            state: OriginState::Released,
            print: version,
            synced: 0,
        };
        self.marks.set_clean(id, i64::MAX, mark, set)
    }
}
