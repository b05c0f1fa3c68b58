//! Buffered writes to files with `consistency = "commit"` or `"session"`.
//!
//! A write to such a file, if its bytes are on another node, is buffered in this process and sent
//! to the home together with others. Writes are sent when [`MAX_BUFFERED_BYTES`] bytes are buffered
//! (further writes are buffered meanwhile), and at the latest when they are *published*: at fsync,
//! close, before a lock is given up, at fork, exec and exit. Writes that aren't published are lost
//! with the process. The process sees its own writes: reads are served from the buffer, or the
//! writes are published before anything else is done to the file.
//!
//! An error of publishing is reported once: by the next fsync or close of the file or, if there is
//! none, on standard error. Until then, writes to the file aren't buffered.
//!
//! A forked child begins with an empty buffer: the parent publishes the writes. A child of vfork
//! buffers nothing, and neither do faces other than the library ([`Fs::for_program`]).

use crate::buffers::{BufferCaches, BufferedWrites, Window};
use crate::fs::Fs;
use crate::per_file_cache::{Held, PerFileCache};
use crate::pool_ref::PoolRef;
use forebay_client::controls::{Consistency, Controls, Mutability};
use forebay_cluster::Cluster;
use forebay_cluster::WriteBuffer;
use forebay_runtime::user::{UserSlice, UserSliceMut};
use forebay_store::controls::declared;
use forebay_store::process::write_notice;
use forebay_store::{MAX_SIZE, ObjectId, Store};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// Maximum number of bytes of a file that are buffered; as many more may be in the message that is
/// being sent.
const MAX_BUFFERED_BYTES: usize = 512 << 10;

/// How much of a read the buffer has served.
enum Read {
    Done,
    /// The home has the bytes. The file in this process's view ends at `end`: if the home returns
    /// fewer bytes, the rest is in the buffer.
    Home {
        end: u64,
    },
}

impl BufferedWrites {
    fn holds_some(&self) -> bool {
        !self.buffer.is_empty() || self.under_way.is_some()
    }

    /// Waits until the writes that are being sent are done.
    fn finish(&mut self, cluster: Cluster<'_>, id: ObjectId) {
        if let Some((mut buffer, sending)) = self.under_way.take() {
            if let Err(e) = cluster.data().end_writes(id, &buffer, sending) {
                self.error.get_or_insert(e);
            }
            buffer.clear();
            self.spare = buffer;
        }
    }

    /// Sends the buffered writes, after waiting for those that are being sent.
    fn send(&mut self, cluster: Cluster<'_>, id: ObjectId) {
        self.finish(cluster, id);
        if !self.buffer.is_empty() {
            let next = std::mem::take(&mut self.spare);
            let buffer = std::mem::replace(&mut self.buffer, next);
            let sending = cluster.data().begin_writes(self.live, id, &buffer);
            assert!(self.under_way.is_none(), "one buffer is sent at a time");
            self.under_way = Some((buffer, sending));
        }
    }

    fn publish(&mut self, cluster: Cluster<'_>, id: ObjectId) {
        self.send(cluster, id);
        self.finish(cluster, id);
    }

    /// Buffers a write. Returns the number of bytes buffered.
    fn add(
        &mut self,
        cluster: Cluster<'_>,
        id: ObjectId,
        at: u64,
        from: UserSlice<'_>,
    ) -> Result<usize> {
        let (mut done, len) = (0, from.len());
        while done < len {
            let n = (len - done).min(self.buffer.room(at + done as u64, MAX_BUFFERED_BYTES));
            if n > 0 {
                let part = from.behind(done).first(n);
                // SAFETY: `part` is a `UserSlice` of `n` bytes, and `add` copies under the fault
                // guard.
                match unsafe { self.buffer.add(at + done as u64, part.address(), n) } {
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => break,
                    Ok(()) => done += n,
                }
            }
            debug_assert!(
                self.buffer.len() <= MAX_BUFFERED_BYTES,
                "a buffer has a limit"
            );
            if self.buffer.len() == MAX_BUFFERED_BYTES || done < len {
                self.send(cluster, id);
            }
        }
        Ok(done)
    }

    /// Reads the range from the buffered writes, if one buffer covers it. If a buffer covers only a
    /// part of the range, publishes the writes.
    fn read(
        &mut self,
        cluster: Cluster<'_>,
        id: ObjectId,
        at: u64,
        to: UserSliceMut<'_>,
    ) -> Result<Read> {
        let sent = self.under_way.as_ref().map(|(buffer, _)| buffer);
        let all = || [Some(&self.buffer), sent].into_iter().flatten();
        let Some(touching) = all().find(|buffer| buffer.touch(at, to.len())) else {
            let end = all().map(WriteBuffer::end).max().unwrap_or(0);
            return Ok(Read::Home { end });
        };
        match touching.cover(at, to.len()) {
            Some(bytes) => to.copy_from(bytes).map(|()| Read::Done),
            None => {
                self.publish(cluster, id);
                Ok(Read::Home { end: 0 })
            }
        }
    }
}

/// Whether writes to a file with these controls may be buffered.
fn may_wait(controls: &Controls, laminated: bool) -> bool {
    let later = matches!(
        controls.consistency,
        Consistency::Commit | Consistency::Session
    );
    // A write to a file that only grows has to be checked by its home, so it is sent at once.
    later && !laminated && controls.mutability != Mutability::Append
}

/// Frees the file's place in the cache if it holds neither writes nor an error.
fn leave(mut kept: Held<'_, BufferedWrites>) {
    if !kept.holds_some() && kept.error.is_none() {
        kept.word = 0;
        kept.free();
    }
}

/// The buffers of a process's open files: writes that aren't published, and bytes that were read
/// ahead (`readahead.rs`). See the module.
#[derive(Clone, Copy)]
pub struct FileBuffers<'a> {
    pool: PoolRef<'a>,
    /// None: the view buffers nothing.
    caches: Option<&'a BufferCaches>,
}

impl Fs {
    /// The buffers of this process's open files.
    #[inline]
    pub fn buffers(&self) -> FileBuffers<'_> {
        FileBuffers {
            pool: self.pool_ref(),
            caches: self.buffer_caches(),
        }
    }
}

impl<'a> FileBuffers<'a> {
    #[inline]
    pub(crate) fn store(&self) -> &'a Store {
        self.pool.store()
    }

    #[inline]
    pub(crate) fn cluster(&self) -> Cluster<'a> {
        self.pool.cluster()
    }

    /// The writes that aren't published. None: the view buffers none.
    #[inline]
    fn writeback(&self) -> Option<&'a PerFileCache<BufferedWrites>> {
        self.caches.map(|caches| &caches.writes)
    }

    /// The bytes that were read ahead. None: the view reads none ahead.
    #[inline]
    pub(crate) fn windows(&self) -> Option<&'a PerFileCache<Window>> {
        self.caches.map(|caches| &caches.windows)
    }

    /// Whether writes to this file may be buffered now.
    fn waits(&self, id: ObjectId, live: u32, word: u64) -> bool {
        let cluster = self.cluster();
        let (declared, laminated) = declared(word);
        may_wait(&declared.resolve(), laminated)
            && cluster.data().is_remote(live)
            // A buffered write would report too late that the quota is exceeded.
            && !cluster.store().quota().is_active()
            && !cluster.store().mappings().may_be_copied(live)
            && id.0 != 0
    }

    /// Buffers a write to an open file, if that is allowed. Returns the number of bytes buffered.
    /// None: the caller must send the write at once; earlier buffered writes have been published.
    ///
    /// # Errors
    /// EFAULT; EIO: the process's locks on the file are lost
    /// ([`forebay_cluster::Locks::check_lease`]).
    pub(crate) fn write_later(
        &self,
        open: u32,
        live: u32,
        at: Option<u64>,
        from: UserSlice<'_>,
    ) -> Result<Option<usize>> {
        let cluster = self.cluster();
        let word = cluster.store().declared().controls(live);
        let Some(all) = self.writeback().filter(|_| word != 0) else {
            return Ok(None);
        };
        cluster.locks().check_lease(live)?;
        let id = cluster.store().content().live_id(live);
        self.look_again(id);
        let flags = cluster
            .store()
            .objects()
            .open_file(open)
            .flags
            .load(Relaxed) as i32;
        let at = at.filter(|at| {
            let fits = at
                .checked_add(from.len() as u64)
                .is_some_and(|end| end <= MAX_SIZE);
            fits && !from.is_empty()
                && flags & libc::O_DSYNC == 0
                && !forebay_store::lending::acts_for_another()
        });
        let Some(at) = at else {
            self.write_back(id);
            return Ok(None);
        };
        let found = match all.of(id) {
            // The first buffered write has checked that the file's writes may be buffered. The file
            // may have been mapped since.
            Some(found)
                if found.word == word && !cluster.store().mappings().may_be_copied(live) =>
            {
                Some(found)
            }
            Some(found) => {
                drop(found);
                None
            }
            None => None,
        };
        let found = found.or_else(|| {
            if self.waits(id, live, word) {
                all.make(id)
            } else {
                None
            }
        });
        let Some(mut kept) = found.filter(|found| found.error.is_none()) else {
            self.write_back(id);
            return Ok(None);
        };
        debug_assert!(word != 0, "writes wait by declared controls only");
        (kept.live, kept.open, kept.word) = (live, open, word);
        let done = kept.add(cluster, id, at, from);
        leave(kept);
        done.map(Some)
    }

    /// As [`forebay_cluster::FileData::read`], with the buffered writes of this process.
    ///
    /// # Errors
    /// As for [`forebay_cluster::FileData::read`].
    pub(crate) fn read_live(&self, live: u32, at: u64, to: UserSliceMut<'_>) -> Result<usize> {
        let cluster = self.cluster();
        cluster.locks().check_lease(live)?;
        let id = cluster.store().content().live_id(live);
        let mut end = 0;
        match self.writeback().and_then(|all| all.of(id)) {
            Some(mut kept) => {
                let read = kept.read(cluster, id, at, to);
                leave(kept);
                match read? {
                    Read::Done => return Ok(to.len()),
                    Read::Home { end: known } => end = known,
                }
            }
            None => {
                if let Some(n) = self.read_ahead(live, at, to)? {
                    return Ok(n);
                }
            }
        }
        // SAFETY: `to` is a `UserSliceMut`, and `read` copies under the fault guard.
        let read = || unsafe { cluster.data().read(live, at, to.address(), to.len()) };
        let n = read()?;
        if n < to.len() && at.saturating_add(n as u64) < end {
            // The file is longer than its home knows: the buffered bytes are published first.
            self.write_back(id);
            return read();
        }
        Ok(n)
    }

    /// Whether the file has buffered writes.
    pub(crate) fn keeps(&self, id: ObjectId) -> bool {
        self.writeback().and_then(|all| all.of(id)).is_some()
    }

    /// Publishes the buffered writes of a file. An error is stored for a later call that can return
    /// it.
    pub(crate) fn write_back(&self, id: ObjectId) {
        let Some(all) = self.writeback() else { return };
        if let Some(mut kept) = all.of(id) {
            kept.publish(self.cluster(), id);
            leave(kept);
        }
    }

    /// As [`FileBuffers::write_back`], for an open file.
    pub fn write_back_open(&self, open: u32) {
        if self.writeback().is_some() {
            self.write_back(ObjectId(
                self.cluster()
                    .store()
                    .objects()
                    .open_file(open)
                    .id
                    .load(Acquire),
            ));
        }
    }

    /// Publishes the buffered writes of an open file.
    ///
    /// # Errors
    /// An error of sending buffered writes; these writes are lost. The error is returned once.
    pub fn publish(&self, open: u32) -> Result<()> {
        let Some(all) = self.writeback() else {
            return Ok(());
        };
        let id = ObjectId(
            self.cluster()
                .store()
                .objects()
                .open_file(open)
                .id
                .load(Acquire),
        );
        self.look_again(id);
        let Some(mut kept) = all.of(id) else {
            return Ok(());
        };
        kept.publish(self.cluster(), id);
        let error = kept.error.take();
        leave(kept);
        error.map_or(Ok(()), Err)
    }

    /// As [`FileBuffers::publish`], where no call can return an error to the program: the error is
    /// printed on standard error.
    pub fn publish_unheard(&self, open: u32) {
        if let Err(e) = self.publish(open) {
            self.report_lost(open, e);
        }
    }

    /// Publishes all buffered writes: before fork and sync. Errors are stored for later calls.
    pub fn write_back_all(&self) {
        let Some(all) = self.writeback() else { return };
        all.files().for_each(|id| self.write_back(id));
    }

    /// As [`FileBuffers::write_back_all`], where no later call can return an error: before exec and
    /// exit.
    pub fn publish_all(&self) {
        let Some(all) = self.writeback() else { return };
        for id in all.files() {
            let Some(mut kept) = all.of(id) else { continue };
            kept.publish(self.cluster(), id);
            let (open, error) = (kept.open, kept.error.take());
            leave(kept);
            if let Some(e) = error {
                self.report_lost(open, e);
            }
        }
    }

    #[cold]
    fn report_lost(&self, open: u32, e: Errno) {
        let path = self
            .pool
            .path_of_open(open)
            .unwrap_or_else(|_| b"?".to_vec());
        let path = String::from_utf8_lossy(&path);
        let end = path.floor_char_boundary(100);
        write_notice(format_args!(
            "{}{}: some of what was written before the last commit is lost: {e}",
            String::from_utf8_lossy(self.pool.mount()),
            &path[..end]
        ));
    }
}
