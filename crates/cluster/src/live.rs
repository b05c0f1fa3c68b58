//! Opening objects of any node: a live entry of this node stands for each object that is open here.
//!
//! The live entry of another node's object has the flag `AWAY` and a number, by which the home
//! knows this node's use of the object. The home keeps the object open until it is told of the end
//! of that use. A node has one use of an object for all its processes.

use crate::Cluster;
use crate::peers::requests::request;
use forebay_store::Opened;
use forebay_store::control::live_flag as flag;
use forebay_store::controls::Opener;
use forebay_store::live::{Held, new_use};
use forebay_store::record::Inode;
use forebay_store::{NewOpen, NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// What is known of a file of another node that is to be opened.
#[derive(Debug, Default)]
pub struct Away {
    /// The home keeps it open already. What is left here isn't needed: there was an entry.
    pub opened: Option<Opened>,
    /// Its attributes, if they came along.
    pub inode: Option<Inode>,
    /// With them: `Store::counts`, as of before they were asked for.
    pub counts: u32,
}

/// How long after its home was asked a use may be made a live entry. Less than the time between two
/// looks of the home at what is open (`Server::check_open`).
const USED_WITHIN: Duration = Duration::from_secs(2);

impl<'a> Cluster<'a> {
    /// Becomes a user of object `id`, which must exist, and returns its live entry.
    ///
    /// # Errors
    /// ENOENT if the object is gone; ENFILE if `MAX_LIVE` objects are open.
    pub fn live_acquire(&self, id: ObjectId) -> Result<u32> {
        self.live_acquire_held(id).map(|(index, _)| index)
    }

    /// As [`Cluster::live_acquire`]; the use is noted until [`Held`] is dropped.
    ///
    /// # Errors
    /// As for [`Cluster::live_acquire`].
    pub fn live_acquire_held(&self, id: ObjectId) -> Result<(u32, Held<'a>)> {
        self.live_acquire_opened(id, &mut Away::default())
    }

    /// As [`Cluster::live_acquire_held`] of what another node may keep open for us already.
    ///
    /// # Errors
    /// As for [`Cluster::live_acquire`].
    pub fn live_acquire_opened(&self, id: ObjectId, away: &mut Away) -> Result<(u32, Held<'a>)> {
        match self.object_away(id) {
            Some(home) => self
                .store()
                .objects()
                .live_acquire_with(id, |index| self.live_load_away(index, id, home, away)),
            None => self.store().objects().live_acquire_here(id),
        }
    }

    /// Gives back what no live entry was made of.
    pub fn close_opened(&self, opened: Opened) {
        if let Some(foreign) = &self.foreign {
            foreign.closed(opened.id, opened.number);
        }
    }

    /// Tells the home that this node has the object open, unless it knows.
    fn live_load_away(
        &self,
        index: u32,
        id: ObjectId,
        home: NodeId,
        away: &mut Away,
    ) -> Result<()> {
        let live = self.objects().live(index);
        if live.flags.load(Acquire) & flag::LOADED != 0 {
            return Ok(());
        }
        let _lock = self.objects().lock_live(index)?;
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
        let mut opened = away.opened.take();
        if let Some(late) = opened.take_if(|o| o.asked.elapsed() > USED_WITHIN) {
            // The home may have given it up.
            self.close_opened(late);
        }
        let number = opened.as_ref().map_or_else(new_use, |o| o.number);
        live.ctime.store(number as i64, Relaxed);
        // Should we die now, or not hear of the answer: whoever ends the entry tells the home.
        live.flags.fetch_or(flag::AWAY, AcqRel);
        if opened.is_none() {
            match self.ask(home, request::OPEN, &(id, number)) {
                Ok(record) => away.inode = Some(record.0),
                Err(e) => {
                    if e == Errno::NOENT {
                        live.flags.fetch_and(!flag::AWAY, AcqRel);
                    }
                    return Err(e);
                }
            }
        }
        live.flags.fetch_or(flag::LOADED, AcqRel);
        Ok(())
    }

    /// The home of what the entry stands for, if it is another node.
    #[inline]
    pub(crate) fn live_away(&self, index: u32) -> Option<(NodeId, ObjectId)> {
        let live = self.objects().live(index);
        if live.flags.load(Acquire) & flag::AWAY == 0 {
            return None;
        }
        let id = ObjectId(live.id.load(Relaxed));
        self.object_away(id).map(|home| (home, id))
    }
}

/// Calls `f` with an object that is open meanwhile. By a description: for a use alone that takes
/// longer, a process has few places.
pub(crate) fn with_open<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T>,
) -> Result<T> {
    let (live, held) = store.live_acquire_held(id).map_err(|e| match e {
        // The asking node has the file open; this node has lost it, by a death.
        Errno::NOENT => Errno::STALE,
        e => e,
    })?;
    // Whoever asks has the file open itself.
    let opener = Opener::Kept(store.names().node());
    let new = NewOpen::new(id, libc::S_IFREG, libc::O_RDWR as u32).by(opener);
    let open = store
        .objects()
        .open_create_held(&new, Some((live, Some(held))))
        .inspect_err(|_| _ = store.objects().live_release(live))?;
    let done = f(live);
    store.objects().open_release(open).and(done)
}
