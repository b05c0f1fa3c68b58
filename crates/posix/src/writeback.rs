//! Writes to files with `consistency = "commit"` or `"session"` that aren't at their homes yet.
//!
//! A write to such a file, if its bytes lie on another node, is kept in this process and goes to
//! the home together with others: when there are [`MOST`] bytes (the next writes are kept while
//! these are sent), and at the latest when it is *published*: at fsync, close, before a lock is
//! given up, at fork, exec and exit. What isn't published is lost with the process. The process
//! sees its own writes: reads are served from here, or the writes are published before anything
//! else is done to the file.
//!
//! An error of publishing is reported once, by the next fsync or close of the file, or on standard
//! error if there is none. Until then, writes are not kept back.
//!
//! A forked child begins without kept writes: its parent publishes them. A child of vfork keeps
//! nothing back, and faces other than the library ([`Fs::for_program`]) don't, either.

use crate::fs::Fs;
use crate::kept::Kept;
use crate::per_file_cache::Held;
use forebay_client::controls::{Consistency, Controls, Mutability};
use forebay_cluster::Cluster;
use forebay_cluster::Pieces;
use forebay_runtime::user::{UserSlice, UserSliceMut};
use forebay_store::controls::declared;
use forebay_store::process::write_notice;
use forebay_store::{MAX_SIZE, ObjectId};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// Bytes of a file that are kept back, at most; as many more may be in progress.
const MOST: usize = 512 << 10;

/// What becomes of a read.
enum Read {
    Done,
    /// It is the home's to answer, but for what lies behind its end, up to here.
    Home {
        end: u64,
    },
}

impl Kept {
    fn holds_some(&self) -> bool {
        !self.pieces.is_empty() || self.under_way.is_some()
    }

    /// Waits for what is in progress.
    fn finish(&mut self, cluster: Cluster<'_>, id: ObjectId) {
        if let Some((mut pieces, sending)) = self.under_way.take() {
            if let Err(e) = cluster.end_pieces(id, &pieces, sending) {
                self.error.get_or_insert(e);
            }
            pieces.clear();
            self.spare = pieces;
        }
    }

    /// Sends what there is, behind what is in progress.
    fn send(&mut self, cluster: Cluster<'_>, id: ObjectId) {
        self.finish(cluster, id);
        if !self.pieces.is_empty() {
            let next = std::mem::take(&mut self.spare);
            let pieces = std::mem::replace(&mut self.pieces, next);
            let sending = cluster.begin_pieces(self.live, id, &pieces);
            self.under_way = Some((pieces, sending));
        }
    }

    fn publish(&mut self, cluster: Cluster<'_>, id: ObjectId) {
        self.send(cluster, id);
        self.finish(cluster, id);
    }

    /// Keeps a write back: how much of it.
    fn add(
        &mut self,
        cluster: Cluster<'_>,
        id: ObjectId,
        at: u64,
        from: UserSlice<'_>,
    ) -> Result<usize> {
        let (mut done, len) = (0, from.len());
        while done < len {
            let n = (len - done).min(self.pieces.room(at + done as u64, MOST));
            if n > 0 {
                let part = from.behind(done).first(n);
                // SAFETY: what it needs is what the type says.
                match unsafe { self.pieces.add(at + done as u64, part.address(), n) } {
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => break,
                    Ok(()) => done += n,
                }
            }
            if self.pieces.len() == MOST || done < len {
                self.send(cluster, id);
            }
        }
        Ok(done)
    }

    /// Reads what was kept back, if all of it was.
    fn read(
        &mut self,
        cluster: Cluster<'_>,
        id: ObjectId,
        at: u64,
        to: UserSliceMut<'_>,
    ) -> Result<Read> {
        let sent = self.under_way.as_ref().map(|(pieces, _)| pieces);
        let all = || [Some(&self.pieces), sent].into_iter().flatten();
        let Some(touching) = all().find(|pieces| pieces.touch(at, to.len())) else {
            let end = all().map(Pieces::end).max().unwrap_or(0);
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

/// Whether writes to a file with these controls may be kept back.
fn may_wait(controls: &Controls, laminated: bool) -> bool {
    let later = matches!(
        controls.consistency,
        Consistency::Commit | Consistency::Session
    );
    // What its home has to judge goes there at once.
    later && !laminated && controls.mutability != Mutability::Append
}

/// Gives the place back if it isn't needed.
fn leave(mut kept: Held<'_, Kept>) {
    if !kept.holds_some() && kept.error.is_none() {
        kept.word = 0;
        kept.free();
    }
}

impl Fs {
    /// Whether writes to this file may wait now.
    fn waits(&self, id: ObjectId, live: u32, word: u64) -> bool {
        let cluster = self.cluster();
        let (declared, laminated) = declared(word);
        may_wait(&declared.resolve(), laminated)
            && cluster.is_away(live)
            // Too late, the program would hear that the quota is exceeded.
            && !cluster.quota().is_active()
            && !cluster.mappings().may_be_copied(live)
            && id.0 != 0
    }

    /// Keeps a write to an open file back, if that may be: how much of it. None: it is to go
    /// through, and what was kept back has.
    ///
    /// # Errors
    /// EFAULT; EIO: its locks are lost ([`Cluster::check_lease`]).
    pub(crate) fn write_later(
        &self,
        open: u32,
        live: u32,
        at: Option<u64>,
        from: UserSlice<'_>,
    ) -> Result<Option<usize>> {
        let cluster = self.cluster();
        let word = cluster.declared().controls(live);
        let Some(all) = self.writeback().filter(|_| word != 0) else {
            return Ok(None);
        };
        cluster.check_lease(live)?;
        let id = cluster.content().live_id(live);
        self.look_again(id);
        let flags = cluster.objects().open_file(open).flags.load(Relaxed) as i32;
        let at = at.filter(|at| {
            let fits = at
                .checked_add(from.len() as u64)
                .is_some_and(|end| end <= MAX_SIZE);
            fits && !from.is_empty() && flags & libc::O_DSYNC == 0 && !cluster.acts_for_another()
        });
        let Some(at) = at else {
            self.write_back(id);
            return Ok(None);
        };
        let found = match all.of(id) {
            // Asked when it began; a mapping may have come since.
            Some(found) if found.word == word && !cluster.mappings().may_be_copied(live) => {
                Some(found)
            }
            Some(found) => {
                drop(found);
                None
            }
            None => None,
        };
        let found = found.or_else(|| match self.waits(id, live, word) {
            true => all.make(id),
            false => None,
        });
        let Some(mut kept) = found.filter(|found| found.error.is_none()) else {
            self.write_back(id);
            return Ok(None);
        };
        (kept.live, kept.open, kept.word) = (live, open, word);
        let done = kept.add(cluster, id, at, from);
        leave(kept);
        done.map(Some)
    }

    /// As [`Cluster::read`], with what this process has written.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn read_live(&self, live: u32, at: u64, to: UserSliceMut<'_>) -> Result<usize> {
        let cluster = self.cluster();
        cluster.check_lease(live)?;
        let id = cluster.content().live_id(live);
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
        // SAFETY: what it needs is what the type says.
        let read = || unsafe { cluster.read(live, at, to.address(), to.len()) };
        let n = read()?;
        if n < to.len() && at.saturating_add(n as u64) < end {
            // It ends later, by what was kept back.
            self.write_back(id);
            return read();
        }
        Ok(n)
    }

    /// Whether something of the file is kept back.
    pub(crate) fn keeps(&self, id: ObjectId) -> bool {
        self.writeback().and_then(|all| all.of(id)).is_some()
    }

    /// Publishes what was kept back of a file. An error is kept, for who can be told.
    pub(crate) fn write_back(&self, id: ObjectId) {
        let Some(all) = self.writeback() else { return };
        if let Some(mut kept) = all.of(id) {
            kept.publish(self.cluster(), id);
            leave(kept);
        }
    }

    /// As [`Fs::write_back`], of an open file.
    pub fn write_back_open(&self, open: u32) {
        if self.writeback().is_some() {
            self.write_back(ObjectId(
                self.cluster().objects().open_file(open).id.load(Acquire),
            ));
        }
    }

    /// Publishes what was kept back of an open file.
    ///
    /// # Errors
    /// Why some of what was written isn't there, once.
    pub fn publish(&self, open: u32) -> Result<()> {
        let Some(all) = self.writeback() else {
            return Ok(());
        };
        let id = ObjectId(self.cluster().objects().open_file(open).id.load(Acquire));
        self.look_again(id);
        let Some(mut kept) = all.of(id) else {
            return Ok(());
        };
        kept.publish(self.cluster(), id);
        let error = kept.error.take();
        leave(kept);
        error.map_or(Ok(()), Err)
    }

    /// As [`Fs::publish`], where the program can't be told of an error: standard error is.
    pub fn publish_unheard(&self, open: u32) {
        if let Err(e) = self.publish(open) {
            self.tell_lost(open, e);
        }
    }

    /// Publishes all that was kept back: before fork and sync. Errors are kept.
    pub fn write_back_all(&self) {
        let Some(all) = self.writeback() else { return };
        all.files().for_each(|id| self.write_back(id));
    }

    /// As [`Fs::write_back_all`], where nobody will be told of errors later: before exec and exit.
    pub fn publish_all(&self) {
        let Some(all) = self.writeback() else { return };
        for id in all.files() {
            let Some(mut kept) = all.of(id) else { continue };
            kept.publish(self.cluster(), id);
            let (open, error) = (kept.open, kept.error.take());
            leave(kept);
            if let Some(e) = error {
                self.tell_lost(open, e);
            }
        }
    }

    #[cold]
    fn tell_lost(&self, open: u32, e: Errno) {
        let path = self.path_of_open(open).unwrap_or_else(|_| b"?".to_vec());
        let path = String::from_utf8_lossy(&path);
        let end = path.floor_char_boundary(100);
        write_notice(format_args!(
            "{}{}: some of what was written before the last commit is lost: {e}",
            String::from_utf8_lossy(self.mount()),
            &path[..end]
        ));
    }
}
