//! Opens objects of any node: each object that is open on this node has a live entry here.
//!
//! The live entry of another node's object has the flag `REMOTE` and a number, by which the home
//! knows this node's use of the object. The home keeps the object open until this node reports that
//! the use has ended. A node has one use of an object for all its processes.

use crate::Cluster;
use crate::peers::requests::request;
use crate::views::Opens;
use forebay_store::Opened;
use forebay_store::control_region::{MAX_LIVE, live_flag as flag};
use forebay_store::controls::Opener;
use forebay_store::live::{Held, new_use};
use forebay_store::record::Inode;
use forebay_store::{NewOpen, NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// The state of a file of another node that is to be opened.
#[derive(Debug, Default)]
pub struct RemoteOpen {
    /// The use, if the home already keeps the object open for this node. None after the use has got
    /// a live entry.
    pub opened: Option<Opened>,
    /// The object's attributes, if they came with the reply.
    pub inode: Option<Inode>,
    /// `DeclaredControls::counts` as it was before the attributes were requested.
    pub counts: u32,
}

/// Maximum age of an open by the home ([`Opened`]) for which a live entry is still made. An older
/// one is closed, and the object is opened again. Must be less than the interval at which the home
/// checks whether the file is still open (`Server::check_open`).
const USED_WITHIN: Duration = Duration::from_secs(2);

impl<'a> Opens<'a> {
    /// Makes this process a user of the object `id`. Returns the object's live entry.
    ///
    /// # Errors
    /// ENOENT if the object was removed; ENFILE if `MAX_LIVE` objects are open.
    pub fn live_acquire(&self, id: ObjectId) -> Result<u32> {
        self.live_acquire_held(id).map(|(index, _)| index)
    }

    /// As [`Opens::live_acquire`]; the use is recorded in this process's slot until [`Held`] is
    /// dropped.
    ///
    /// # Errors
    /// As for [`Opens::live_acquire`].
    pub fn live_acquire_held(&self, id: ObjectId) -> Result<(u32, Held<'a>)> {
        self.live_acquire_opened(id, &mut RemoteOpen::default())
    }

    /// As [`Opens::live_acquire_held`], for an object that its home may keep open for this node
    /// already.
    ///
    /// # Errors
    /// As for [`Opens::live_acquire`].
    pub fn live_acquire_opened(
        &self,
        id: ObjectId,
        remote: &mut RemoteOpen,
    ) -> Result<(u32, Held<'a>)> {
        match self.cluster.remote_home(id) {
            Some(home) => self
                .store()
                .objects()
                .live_acquire_with(id, |index| self.live_load_remote(index, id, home, remote)),
            None => self.store().objects().live_acquire_here(id),
        }
    }

    /// Ends, at the object's home, a use that has no live entry on this node.
    pub fn close_opened(&self, opened: Opened) {
        if let Some(remote) = &self.store().remote {
            remote.closed(opened.id, opened.number);
        }
    }

    /// Fills the live entry of another node's object, and opens the object at its home, unless the
    /// home keeps it open for this node already.
    fn live_load_remote(
        &self,
        index: u32,
        id: ObjectId,
        home: NodeId,
        remote: &mut RemoteOpen,
    ) -> Result<()> {
        let live = self.store().objects().live(index);
        if live.flags.load(Acquire) & flag::LOADED != 0 {
            return Ok(());
        }
        let _lock = self.store().objects().lock_live(index)?;
        if live.flags.load(Acquire) & flag::LOADED != 0 {
            return Ok(());
        }
        live.extents.store(0, Relaxed);
        live.part.store(0, Relaxed);
        live.size.store(0, Relaxed);
        live.cuts.store(0, Relaxed);
        live.controls.store(0, Relaxed);
        live.changed_by.store(0, Relaxed);
        live.edition.store(0, Relaxed);
        live.lease_until.store(0, Relaxed);
        let mut opened = remote.opened.take();
        if let Some(late) = opened.take_if(|o| o.asked_at.elapsed() > USED_WITHIN) {
            // The home may have closed the use already.
            self.close_opened(late);
        }
        let number = opened.as_ref().map_or_else(new_use, |o| o.number);
        live.ctime.store(number as i64, Relaxed);
        // The flag is set first: if this process dies now, or gets no reply, the process that
        // releases the live entry ends the use at the home.
        live.flags.fetch_or(flag::REMOTE, AcqRel);
        if opened.is_none() {
            match self.cluster.ask(home, request::OPEN, &(id, number)) {
                Ok(record) => remote.inode = Some(record.0),
                Err(e) => {
                    if e == Errno::NOENT {
                        live.flags.fetch_and(!flag::REMOTE, AcqRel);
                    }
                    return Err(e);
                }
            }
        }
        live.flags.fetch_or(flag::LOADED, AcqRel);
        Ok(())
    }

    /// Whether any process of the pool has the file open.
    ///
    /// # Errors
    /// ETIMEDOUT; EHOSTDOWN.
    pub fn is_open(&self, id: ObjectId) -> Result<bool> {
        match self.cluster.remote_home(id) {
            Some(home) => self.cluster.ask(home, request::IS_OPEN, &id),
            None => self.store().objects().is_open(id),
        }
    }

    /// Reports to the restarted daemon of `home` which files of that node this node has open.
    /// Returns the number of files that can't be opened again, such as removed ones.
    ///
    /// # Errors
    /// EHOSTDOWN if the daemon can't be reached.
    pub fn open_again(&self, home: NodeId) -> Result<usize> {
        let mut lost = 0;
        let header = self.store().control.header();
        for i in 0..header.free_live.end(MAX_LIVE) {
            let live = self.store().objects().live(i);
            let id = ObjectId(live.id.load(Acquire));
            let remote = live.flags.load(Acquire) & flag::REMOTE != 0;
            if id.0 == 0 || !remote || self.cluster.remote_home(id) != Some(home) {
                continue;
            }
            let number = live.ctime.load(Relaxed) as u64;
            match self.cluster.ask(home, request::REOPEN, &(id, number)) {
                Ok(()) => {}
                Err(Errno::HOSTDOWN) => return Err(Errno::HOSTDOWN),
                Err(_) => lost += 1,
            }
        }
        Ok(lost)
    }

    /// Returns the home and id of a live entry's object, if the home is another node.
    #[inline]
    pub(crate) fn remote_live(&self, index: u32) -> Option<(NodeId, ObjectId)> {
        let live = self.store().objects().live(index);
        if live.flags.load(Acquire) & flag::REMOTE == 0 {
            return None;
        }
        let id = ObjectId(live.id.load(Relaxed));
        self.cluster.remote_home(id).map(|home| (home, id))
    }
}

/// Calls `f` with the live entry of an object, which an open file description keeps open meanwhile.
/// (A [`Held`] alone would occupy one of the process's few places for short uses.)
pub(crate) fn with_open<T>(
    cluster: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T>,
) -> Result<T> {
    let (live, held) = cluster.opens().live_acquire_held(id).map_err(|e| match e {
        // The requesting node has the file open, but the object was deleted here after a node or
        // daemon died.
        Errno::NOENT => Errno::STALE,
        e => e,
    })?;
    // This description doesn't count as a further use: the requesting process has the file open.
    let opener = Opener::Kept(cluster.store().peers().node());
    let new = NewOpen::new(id, libc::S_IFREG, libc::O_RDWR as u32).by(opener);
    let open = cluster
        .store()
        .objects()
        .open_create_held(&new, Some((live, Some(held))))
        .inspect_err(|_| _ = cluster.store().objects().live_release(live))?;
    let done = f(live);
    cluster.store().objects().open_release(open).and(done)
}
