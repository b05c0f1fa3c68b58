//! Open files: reading, writing, seeking and more by the number of an open file description.
//!
//! Each call checks how the file is open. Calls that use the description's offset lock the
//! description; `pread` and `pwrite` don't. Buffered writes of this process are published before an
//! operation that depends on them. [`File`] is a description that is closed when dropped.

use crate::Fs;
use crate::fs::{DirEntry, Stat};
use crate::pool_ref::PoolRef;
use forebay_cluster::Cluster;
use forebay_media::size_limit;
use forebay_runtime::user::{UserSlice, UserSliceMut};
use forebay_store::control_region::Open;
use forebay_store::controls::Change;
use forebay_store::{DirPosition, LockType, MAX_SIZE, ObjectId};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// Maximum number of times that one write to a full pool with an origin evicts files: other writers
/// may take the freed room.
const ROOM_ATTEMPTS: usize = 100;

/// The position from which an offset counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    Start,
    Current,
    End,
    Data,
    Hole,
}

/// Writes to the file itself, unbuffered. Returns the offset and the number of bytes written.
fn write_through(
    cluster: Cluster<'_>,
    live: u32,
    offset: Option<u64>,
    from: UserSlice<'_>,
) -> Result<(u64, usize)> {
    // SAFETY: the address and length come from a `UserSlice`, and `write_at` copies under the fault
    // guard.
    unsafe {
        cluster
            .data()
            .write_at(live, offset, from.address(), from.len())
    }
}

/// The offset of an open file, for a transfer of `len` bytes.
///
/// # Errors
/// EINVAL if the transfer's end is beyond the largest offset. An lseek(2) may go beyond the largest
/// size of a file.
#[inline]
fn offset_for(o: &Open, len: usize) -> Result<u64> {
    let at = o.offset.load(Relaxed);
    if len as u64 > i64::MAX as u64 - at {
        return Err(Errno::INVAL);
    }
    Ok(at)
}

impl Fs {
    /// The live entry of an open regular file.
    ///
    /// # Errors
    /// EISDIR, EBADF (opened with O_PATH, and neither a file nor a directory).
    pub fn live_of(&self, open: u32) -> Result<u32> {
        let o = self.store().objects().open_file(open);
        match o.live.load(Relaxed).checked_sub(1) {
            Some(live) => Ok(live),
            None if o.kind.load(Relaxed) == libc::S_IFDIR => Err(Errno::ISDIR),
            None => Err(Errno::BADF),
        }
    }

    /// Whether the description is open for writing (`write`), or else for reading.
    pub fn may(&self, open: u32, write: bool) -> bool {
        !matches!(self.check_access(open, write), Err(Errno::BADF))
    }

    pub(crate) fn check_access(&self, open: u32, write: bool) -> Result<u32> {
        let flags = self.store().objects().open_file(open).flags.load(Relaxed) as i32;
        let access = flags & libc::O_ACCMODE;
        let wrong = if write {
            libc::O_RDONLY
        } else {
            libc::O_WRONLY
        };
        // An access mode of O_ACCMODE allows neither reading nor writing.
        if access == wrong || access == libc::O_ACCMODE || flags & libc::O_PATH != 0 {
            return Err(Errno::BADF);
        }
        self.live_of(open)
    }

    /// read(2), or pread(2) with an offset.
    ///
    /// # Errors
    /// EBADF, EISDIR, EFAULT, EIO.
    pub fn read(&self, open: u32, offset: Option<u64>, to: UserSliceMut<'_>) -> Result<usize> {
        let n = self.read_part(open, offset, to)?;
        self.notify_bytes(open, n, libc::IN_ACCESS);
        Ok(n)
    }

    /// As [`Fs::read`], without notifying the file's watchers.
    ///
    /// # Errors
    /// As for read.
    pub fn read_part(&self, open: u32, offset: Option<u64>, to: UserSliceMut<'_>) -> Result<usize> {
        if self.origin_gate().comes_by_ranges(open) {
            return self.read_by_ranges(open, offset, to);
        }
        self.read_there(open, offset, to)
    }

    /// Reads bytes that are in the pool, without asking the origin for any.
    #[inline(always)]
    pub(crate) fn read_there(
        &self,
        open: u32,
        offset: Option<u64>,
        to: UserSliceMut<'_>,
    ) -> Result<usize> {
        let live = self.check_access(open, false)?;
        let (store, controls) = (self.store(), self.controls());
        if let Some(offset) = offset {
            let read = self.read_traced(live, offset, to);
            return controls.report_damage((open, live), ("read", offset), read);
        }
        let _lock = store.objects().open_lock(open)?;
        let o = store.objects().open_file(open);
        let at = offset_for(o, to.len())?;
        let read = self.read_traced(live, at, to);
        let n = controls.report_damage((open, live), ("read", at), read)?;
        debug_assert!(n <= to.len(), "{n} bytes are read into {}", to.len());
        o.offset.store(at + n as u64, Release);
        Ok(n)
    }

    #[inline(always)]
    fn read_traced(&self, live: u32, at: u64, to: UserSliceMut<'_>) -> Result<usize> {
        let id = || self.store().content().live_id(live).0;
        forebay_trace::event!(POSIX_READ_ENTER, id(), at, to.len());
        let read = self.buffers().read_live(live, at, to);
        forebay_trace::event!(POSIX_READ_EXIT, id(), *read.as_ref().unwrap_or(&0));
        read
    }

    /// Notifies the file's watchers of `what` (bits of inotify(7)) if the number `n` of bytes read
    /// or written isn't 0.
    pub fn notify_bytes(&self, open: u32, n: usize, what: u32) {
        if n > 0 {
            self.store().watches().notify_open(open, what);
        }
    }

    /// write(2), or pwrite(2) with an offset.
    ///
    /// # Errors
    /// EBADF, ENOSPC, EFBIG, EFAULT, EIO.
    pub fn write(&self, open: u32, offset: Option<u64>, from: UserSlice<'_>) -> Result<usize> {
        let flags = self.store().objects().open_file(open).flags.load(Relaxed) as i32;
        let append = flags & libc::O_APPEND != 0;
        self.write_as(open, offset, append, from)
    }

    /// As [`Fs::write`], but `append` alone decides whether the bytes go to the end of the file,
    /// whatever the open flags (pwritev2's RWF_APPEND and RWF_NOAPPEND).
    ///
    /// # Errors
    /// As for write.
    pub fn write_as(
        &self,
        open: u32,
        offset: Option<u64>,
        append: bool,
        from: UserSlice<'_>,
    ) -> Result<usize> {
        let n = self.write_part(open, offset, append, from)?;
        self.notify_bytes(open, n, libc::IN_MODIFY);
        Ok(n)
    }

    /// As [`Fs::write_as`], without notifying the file's watchers.
    ///
    /// # Errors
    /// As for write.
    pub fn write_part(
        &self,
        open: u32,
        offset: Option<u64>,
        append: bool,
        from: UserSlice<'_>,
    ) -> Result<usize> {
        let write = || {
            let cluster = self.cluster();
            cluster
                .namespace()
                .with_room_of_the_removed(|| self.write_once(open, offset, append, from))
        };
        for _ in 0..ROOM_ATTEMPTS {
            match write() {
                Err(Errno::NOSPC) if self.origin_gate().makes_room(open, from.len()) => {}
                Err(Errno::DQUOT) => {
                    let more = self.growth(open, offset, append, from.len())?;
                    return self.origin_gate().with_quota(open, more, write);
                }
                done => return done,
            }
        }
        write()
    }

    /// Number of bytes by which a write would make an open file longer.
    #[cold]
    fn growth(&self, open: u32, offset: Option<u64>, append: bool, len: usize) -> Result<u64> {
        let size = self.size(self.live_of(open)?)?;
        let now = || self.store().objects().open_file(open).offset.load(Relaxed);
        let at = if append {
            size
        } else {
            offset.unwrap_or_else(now)
        };
        Ok(at.saturating_add(len as u64).saturating_sub(size))
    }

    fn write_once(
        &self,
        open: u32,
        offset: Option<u64>,
        append: bool,
        from: UserSlice<'_>,
    ) -> Result<usize> {
        let live = self.check_access(open, true)?;
        if !from.is_empty() {
            self.before_change(live)?;
        }
        let cluster = self.cluster();
        let o = cluster.store().objects().open_file(open);
        let flags = o.flags.load(Relaxed) as i32;
        let allowed = |at: Option<u64>| match size_limit() {
            u64::MAX => Ok(from),
            limit => {
                let at = at.map_or_else(|| self.size(live), Ok)?;
                self.below(limit, at, from.len()).map(|len| from.first(len))
            }
        };
        let controls = self.controls();
        let finish = |n| match flags & libc::O_DSYNC {
            0 => Ok(n),
            // O_SYNC contains O_DSYNC; the pool treats both alike.
            _ => cluster.data().sync(live).map(|()| n),
        };
        let file = || cluster.store().content().live_id(live).0;
        let begins = |offset: Option<u64>, from: UserSlice<'_>| {
            // An append has no offset: the event shows `u64::MAX`.
            let at = offset.unwrap_or(u64::MAX);
            forebay_trace::event!(POSIX_WRITE_ENTER, file(), at, from.len());
        };
        let ended = |n: usize| {
            forebay_trace::event!(POSIX_WRITE_EXIT, file(), n);
            n
        };
        if let Some(offset) = offset {
            // As on Linux, a file opened with O_APPEND is appended to even if the call has an
            // offset.
            let offset = (!append).then_some(offset);
            let from = allowed(offset)?;
            begins(offset, from);
            if let Some(n) = self.buffers().write_later(open, live, offset, from)? {
                return Ok(ended(n));
            }
            let write = || write_through(cluster, live, offset, from);
            let (_, n) = controls.changing(open, live, Change::From(offset), write)?;
            return finish(ended(n));
        }
        let _lock = cluster.store().objects().open_lock(open)?;
        let offset = if append {
            None
        } else {
            Some(offset_for(o, from.len())?)
        };
        let from = allowed(offset)?;
        begins(offset, from);
        let kept = self.buffers().write_later(open, live, offset, from)?;
        if let (Some(n), Some(at)) = (kept, offset) {
            debug_assert!(n <= from.len(), "{n} of {} bytes are written", from.len());
            o.offset.store(at + n as u64, Release);
            return Ok(ended(n));
        }
        let write = || write_through(cluster, live, offset, from);
        let (at, n) = controls.changing(open, live, Change::From(offset), write)?;
        debug_assert!(n <= from.len(), "{n} of {} bytes are written", from.len());
        debug_assert!(
            n == 0 || at + n as u64 <= MAX_SIZE,
            "a file ends at the largest size"
        );
        o.offset.store(at + n as u64, Release);
        finish(ended(n))
    }

    /// Returns how many of `len` bytes may be written at `at` if the file may have `limit` bytes.
    pub(crate) fn below(&self, limit: u64, at: u64, len: usize) -> Result<usize> {
        let room = usize::try_from(limit.saturating_sub(at)).unwrap_or(usize::MAX);
        if len > 0 && room == 0 {
            return Err(Errno::FBIG);
        }
        Ok(len.min(room))
    }

    /// Checks that the process may make the file `size` bytes long (RLIMIT_FSIZE).
    ///
    /// # Errors
    /// EFBIG if it may not.
    pub fn check_growth(&self, live: u32, size: u64) -> Result<()> {
        if size > size_limit() && size > self.size(live)? {
            return Err(Errno::FBIG);
        }
        Ok(())
    }

    /// Size of an open file in bytes. Publishes this process's buffered writes first.
    ///
    /// # Errors
    /// EHOSTDOWN if the file's home doesn't reply.
    pub fn size(&self, live: u32) -> Result<u64> {
        self.buffers()
            .write_back(self.store().content().live_id(live));
        self.cluster().data().size(live)
    }

    /// lseek(2). In a directory, seeks to its start or to a position that was returned before.
    ///
    /// # Errors
    /// EINVAL, ENXIO, EBADF.
    pub fn seek(&self, open: u32, whence: Whence, offset: i64) -> Result<u64> {
        let store = self.store();
        let o = store.objects().open_file(open);
        if o.flags.load(Relaxed) as i32 & libc::O_PATH != 0 {
            return Err(Errno::BADF);
        }
        if o.kind.load(Relaxed) == libc::S_IFDIR {
            return self.seek_dir(open, whence, offset);
        }
        let live = self.live_of(open)?;
        if matches!(whence, Whence::Data | Whence::Hole) {
            self.origin_gate().bring_whole(open)?;
        }
        let _lock = store.objects().open_lock(open)?;
        let at = |base: u64| {
            let to = i128::from(base) + i128::from(offset);
            u64::try_from(to)
                .ok()
                .filter(|&t| t <= i64::MAX as u64)
                .ok_or(Errno::INVAL)
        };
        let start = || u64::try_from(offset).map_err(|_| Errno::NXIO);
        let to = match whence {
            Whence::Start => at(0)?,
            Whence::Current => at(o.offset.load(Relaxed))?,
            Whence::End => at(self.size(live)?)?,
            Whence::Data => self.seek_data(live, start()?, false)?,
            Whence::Hole => self.seek_data(live, start()?, true)?,
        };
        debug_assert!(to <= i64::MAX as u64, "an offset is one of lseek(2)");
        o.offset.store(to, Release);
        Ok(to)
    }

    /// Returns the next offset from `from` on with data or, with `hole`, without.
    ///
    /// # Errors
    /// ENXIO if there is none.
    fn seek_data(&self, live: u32, from: u64, hole: bool) -> Result<u64> {
        self.buffers()
            .write_back(self.store().content().live_id(live));
        self.cluster().data().seek_data(live, from, hole)
    }

    /// lseek(2) of a directory. A directory's offset is the number of entries returned, `.` and
    /// `..` included.
    fn seek_dir(&self, open: u32, whence: Whence, offset: i64) -> Result<u64> {
        let cluster = self.cluster();
        let o = cluster.store().objects().open_file(open);
        let _lock = cluster.store().objects().open_lock(open)?;
        let to = match whence {
            Whence::Start => offset,
            Whence::Current => {
                let sum = offset.checked_add_unsigned(o.offset.load(Relaxed));
                sum.ok_or(Errno::INVAL)?
            }
            _ => return Err(Errno::INVAL),
        };
        let to = u64::try_from(to).map_err(|_| Errno::INVAL)?;
        if to == o.offset.load(Relaxed) {
            return Ok(to);
        }
        if let Err(Errno::NOENT) = cluster.namespace().stat(ObjectId(o.id.load(Relaxed))) {
            // Removed: nothing is left to read, and the description's name has another use.
            o.offset.store(to, Release);
            return Ok(to);
        }
        let mut position = DirPosition::default();
        let mut left = to.saturating_sub(2);
        if left > 0 {
            cluster
                .namespace()
                .list(ObjectId(o.id.load(Relaxed)), &mut position, |_, _| {
                    let take = left > 0;
                    left = left.saturating_sub(1);
                    take
                })?;
        }
        let (shard, name) = position.packed();
        o.shard.store(shard, Relaxed);
        cluster.store().objects().open_set_name(o, name);
        o.offset.store(to, Release);
        Ok(to)
    }

    /// getdents(2): calls `each(name, inode number, type, offset of the next entry)` from the
    /// directory's current offset on, until `each` returns false or all entries have been listed.
    ///
    /// # Errors
    /// ENOTDIR, EBADF, EIO.
    pub fn read_dir(
        &self,
        open: u32,
        mut each: impl FnMut(&[u8], u64, u32, u64) -> bool,
    ) -> Result<()> {
        let cluster = self.cluster();
        let o = cluster.store().objects().open_file(open);
        if o.flags.load(Relaxed) as i32 & libc::O_PATH != 0 {
            return Err(Errno::BADF);
        }
        if o.kind.load(Relaxed) != libc::S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        let _lock = cluster.store().objects().open_lock(open)?;
        let dir = ObjectId(o.id.load(Relaxed));
        // ENOENT if the directory was removed while open.
        let inode = cluster.namespace().stat(dir)?;
        if inode.origin.is_released() {
            self.origin_gate().bring_entries(dir)?;
        }
        let mut offset = o.offset.load(Relaxed);
        if offset == 0 {
            self.origin_gate().show_origin_only(dir)?;
        }
        for (name, ino) in [(&b"."[..], dir.0), (b"..", inode.parent)]
            .into_iter()
            .skip(offset as usize)
        {
            if !each(name, ino, libc::S_IFDIR, offset + 1) {
                o.offset.store(offset, Release);
                cluster.store().watches().notify_open(open, libc::IN_ACCESS);
                return Ok(());
            }
            offset += 1;
        }
        let mut name = Vec::new();
        cluster.store().objects().open_name(o, &mut name);
        let mut position = DirPosition::from_packed(o.shard.load(Relaxed), name);
        // The offset counts the entries passed to `each`, even if listing the rest fails: so a
        // later call doesn't repeat these entries.
        let listed = cluster.namespace().list(dir, &mut position, |name, e| {
            let more = each(name, e.id.0, e.kind, offset + 1);
            offset += u64::from(more);
            more
        });
        let (shard, name) = position.packed();
        o.shard.store(shard, Relaxed);
        cluster.store().objects().open_set_name(o, name);
        o.offset.store(offset, Release);
        cluster.store().watches().notify_open(open, libc::IN_ACCESS);
        listed
    }

    /// fstat(2).
    ///
    /// # Errors
    /// EIO.
    pub fn stat_open(&self, open: u32) -> Result<Stat> {
        let o = self.store().objects().open_file(open);
        let id = ObjectId(o.id.load(Relaxed));
        match self.stat_id(id) {
            // A file exists as long as it is open, unless its home has lost it.
            Err(Errno::NOENT) if o.kind.load(Relaxed) == libc::S_IFREG => Err(Errno::STALE),
            // A directory or FIFO that was removed while open.
            Err(Errno::NOENT) => Ok(self.stat_of_removed(id, o.kind.load(Relaxed))),
            other => other,
        }
    }

    /// Id of the object that the description has open, for trace events.
    pub(crate) fn id_of_open(&self, open: u32) -> u64 {
        self.store().objects().open_file(open).id.load(Relaxed)
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// EINVAL (not open for writing), EFBIG, EIO.
    pub fn truncate_open(&self, open: u32, size: u64) -> Result<()> {
        let live = self.check_access(open, true).map_err(|e| match e {
            Errno::BADF => Errno::INVAL,
            e => e,
        })?;
        self.buffers().write_back_open(open);
        self.buffers().look_again_open(open);
        self.check_growth(live, size)?;
        self.before_change(live)?;
        let cut = || self.cluster().data().truncate(live, size);
        let controls = self.controls();
        let change = || controls.changing(open, live, Change::Size(size), cut);
        match change() {
            Err(Errno::DQUOT) => {
                let more = size.saturating_sub(self.size(live)?);
                self.origin_gate().with_quota(open, more, change)?;
            }
            done => done?,
        }
        forebay_trace::event!(POSIX_TRUNCATED, self.id_of_open(open), size);
        self.store().watches().notify_open(open, libc::IN_MODIFY);
        Ok(())
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// EBADF (not open for writing), EINVAL, EOPNOTSUPP for an unsupported mode, EFBIG, ENOSPC,
    /// EIO.
    pub fn allocate(&self, open: u32, mode: i32, at: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 | libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_UNSHARE_RANGE => {}
            libc::FALLOC_FL_PUNCH_HOLE if keep => {}
            libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE if !keep => {}
            _ => return Err(Errno::OPNOTSUPP),
        }
        let live = match self.check_access(open, true) {
            // A directory can't be open for writing.
            Err(Errno::ISDIR) => return Err(Errno::BADF),
            live => live?,
        };
        if at.saturating_add(len) > i64::MAX as u64 {
            return Err(Errno::FBIG);
        }
        self.buffers().write_back_open(open);
        self.buffers().look_again_open(open);
        if !keep {
            self.check_growth(live, at.saturating_add(len))?;
        }
        let cluster = self.cluster();
        let controls = self.controls();
        let zero = |grow| {
            let punch = || cluster.data().punch(live, at, len, grow);
            controls.changing(open, live, Change::From(Some(at)), punch)
        };
        self.before_change(live)?;
        let allocate = || match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => cluster
                .namespace()
                .with_room_of_the_removed(|| cluster.data().reserve_range(live, at, len, !keep))
                .inspect_err(|e| {
                    if *e == Errno::NOSPC {
                        let what = format!("reserving {len} bytes at {at}");
                        controls.report_full(open, live, &what);
                    }
                }),
            libc::FALLOC_FL_PUNCH_HOLE if keep => zero(false),
            libc::FALLOC_FL_ZERO_RANGE => zero(!keep),
            _ => Err(Errno::OPNOTSUPP),
        };
        match allocate() {
            Err(Errno::DQUOT) => {
                let more = at.saturating_add(len).saturating_sub(self.size(live)?);
                self.origin_gate().with_quota(open, more, allocate)?;
            }
            done => done?,
        }
        forebay_trace::event!(POSIX_ALLOCATED, self.id_of_open(open), at, len, mode);
        cluster.store().watches().notify_open(open, libc::IN_MODIFY);
        Ok(())
    }

    /// fsync(2): makes the file as durable as the pool's media can. On memory media, data last as
    /// long as the pool.
    ///
    /// # Errors
    /// EIO; the reason why buffered writes couldn't be written.
    pub fn sync_open(&self, open: u32) -> Result<()> {
        let sync = || {
            let published = self.buffers().publish(open);
            let live = &self.store().objects().open_file(open).live;
            let synced = match live.load(Relaxed).checked_sub(1) {
                Some(live) => self.cluster().data().sync(live),
                // A directory: its entries are records.
                None => self.cluster().data().sync_entries_everywhere(),
            };
            published.and(synced)?;
            self.origin_gate().sync_through_open(open)
        };
        forebay_trace::span!(
            POSIX_SYNC_ENTER,
            POSIX_SYNC_EXIT,
            [self.id_of_open(open)],
            sync()
        )
    }

    /// Path of an open file from the pool's root, as far as it is known.
    ///
    /// # Errors
    /// ENOENT if its directory was removed.
    pub fn path_of_open(&self, open: u32) -> Result<Vec<u8>> {
        self.pool_ref().path_of_open(open)
    }
}

impl PoolRef<'_> {
    /// As [`Fs::path_of_open`].
    pub fn path_of_open(self, open: u32) -> Result<Vec<u8>> {
        let o = self.store().objects().open_file(open);
        if o.kind.load(Relaxed) == libc::S_IFDIR {
            return self
                .cluster()
                .namespace()
                .path_of(ObjectId(o.id.load(Relaxed)));
        }
        let cluster = self.cluster();
        let (id, dir) = (
            ObjectId(o.id.load(Relaxed)),
            ObjectId(o.parent.load(Relaxed)),
        );
        let mut path = cluster.namespace().path_of(dir)?;
        let mut name = Vec::new();
        cluster.store().objects().open_name(o, &mut name);
        if cluster
            .namespace()
            .lookup(dir, &name)?
            .is_none_or(|e| e.id != id)
        {
            // The object has another name in the directory now, or has been moved, or has no name.
            match cluster.namespace().name_in(dir, id)? {
                Some(now) => name = now,
                None if cluster.namespace().stat(id).is_ok_and(|i| i.nlink > 0) => {}
                None => name.extend_from_slice(b" (deleted)"),
            }
        }
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        Ok(path)
    }
}

/// An open file of the simple interface. Closed when dropped.
pub struct File<'a> {
    fs: &'a Fs,
    open: Option<u32>,
}

impl<'a> File<'a> {
    /// An open file description as a file that is closed when it is dropped.
    pub fn new(fs: &'a Fs, open: u32) -> File<'a> {
        File {
            fs,
            open: Some(open),
        }
    }

    fn open(&self) -> u32 {
        self.open.expect("only close takes it")
    }

    pub(crate) fn take_open(&mut self) -> u32 {
        self.open.take().expect("only close takes it")
    }

    /// flock(2).
    ///
    /// # Errors
    /// As flock(2).
    pub fn flock(&self, want: LockType, wait: bool) -> Result<()> {
        self.fs.cluster().locks().flock(self.open(), want, wait)
    }

    /// Locks the bytes of `range` (the first, the last), as fcntl(2). The lock belongs to this open
    /// file description if `own`, otherwise to this process.
    ///
    /// # Errors
    /// As fcntl(2) with F_SETLK or F_SETLKW.
    pub fn lock_range(
        &self,
        own: bool,
        want: LockType,
        range: (u64, u64),
        wait: bool,
    ) -> Result<()> {
        let cluster = self.fs.cluster();
        cluster
            .locks()
            .lock_range(self.open(), own, want, range, wait)
    }

    /// Reads at `offset`. Returns the number of bytes read; 0 at the end of the file.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_into(buffer.into(), offset)
    }

    /// As [`File::read_at`], into memory whose bytes needn't be initialised.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read_into(&self, to: UserSliceMut<'_>, offset: u64) -> Result<usize> {
        self.fs.read(self.open(), Some(offset), to)
    }

    /// Writes at `offset`. Returns the number of bytes written: less than `bytes.len()` if space
    /// runs out.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.fs.write(self.open(), Some(offset), bytes.into())
    }

    /// Copies up to `len` bytes at `at` to `to_at` in another file. Returns the number copied.
    ///
    /// # Errors
    /// As copy_file_range(2).
    pub fn copy_to(&self, at: u64, to: &File<'_>, to_at: u64, len: u64) -> Result<u64> {
        let (from, to) = ((self.open(), Some(at)), (to.open(), Some(to_at)));
        self.fs.copy_range(from, to, len)
    }

    /// Size in bytes; 0 if it can't be determined.
    pub fn size(&self) -> u64 {
        self.fs
            .live_of(self.open())
            .and_then(|l| self.fs.size(l))
            .unwrap_or(0)
    }

    /// Sets the file's size in bytes.
    ///
    /// # Errors
    /// As ftruncate(2).
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.fs.truncate_open(self.open(), size)
    }

    /// Returns the next offset with data.
    ///
    /// # Errors
    /// As lseek(2) with SEEK_DATA: ENXIO if there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.fs.origin_gate().bring_whole(self.open())?;
        let live = self.fs.live_of(self.open())?;
        self.fs.seek_data(live, offset, false)
    }

    /// Returns the next offset without data; at the latest, the end of the file.
    ///
    /// # Errors
    /// As lseek(2) with SEEK_HOLE.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.fs.origin_gate().bring_whole(self.open())?;
        let live = self.fs.live_of(self.open())?;
        self.fs.seek_data(live, offset, true)
    }

    /// Attributes of the open file.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn stat(&self) -> Result<Stat> {
        self.fs.stat_open(self.open())
    }

    /// Sets times in nanoseconds since 1970.
    ///
    /// # Errors
    /// As futimens(3).
    pub fn set_times(&self, atime: Option<i64>, mtime: Option<i64>) -> Result<()> {
        let id = ObjectId(
            self.fs
                .store()
                .objects()
                .open_file(self.open())
                .id
                .load(Relaxed),
        );
        self.fs.change_times(id, atime, mtime, false)
    }

    /// Writes the file to stable storage.
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync(&self) -> Result<()> {
        self.fs.sync_open(self.open())
    }

    /// Entries of a directory, `.` and `..` left out.
    ///
    /// # Errors
    /// As readdir(3).
    pub fn entries(&self) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.entries_into(&mut entries)?;
        Ok(entries)
    }

    /// As [`File::entries`]. `entries` gets all entries that could be read, even if an error is
    /// returned for others.
    ///
    /// # Errors
    /// As readdir(3). EHOSTDOWN: entries on a node that is down are missing.
    pub fn entries_into(&self, entries: &mut Vec<DirEntry>) -> Result<()> {
        self.fs.read_dir(self.open(), |name, ino, kind, _| {
            if name != b"." && name != b".." {
                entries.push(DirEntry {
                    name: name.to_vec(),
                    ino,
                    kind,
                });
            }
            true
        })
    }

    /// Closes the file.
    ///
    /// # Errors
    /// As close(2): ENOSPC or EIO if the record can't be written.
    pub fn close(mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => self.fs.release(open),
            None => Ok(()),
        }
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let _ = self.fs.release(open);
        }
    }
}
