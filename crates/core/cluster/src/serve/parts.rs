//! Requests about this node's parts of striped files whose home is another node. The home gets some
//! of these requests, too, for the file's bytes on the home.
//!
//! The daemon keeps up to [`MAX_OPEN_PARTS`] parts open between requests, so that their records
//! aren't read again each time.

use super::{Call, bytes_read, check_size, lock};
use crate::Cluster;
use crate::merge::Conflict;
use crate::peers::MAX_BODY;
use crate::peers::messages::Record;
use crate::peers::requests::Parts;
use forebay_store::{NewOpen, ObjectId};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;

/// Maximum number of parts that the daemon keeps open.
const MAX_OPEN_PARTS: usize = 1024;

/// The parts that the daemon keeps open: for each file, the open file description of its part.
#[derive(Default)]
pub(super) struct OpenParts(Mutex<HashMap<ObjectId, u32>>);

impl OpenParts {
    /// Calls `f` with this node's part of a file. If there is no part: with `make`, creates one;
    /// without, returns None.
    pub(super) fn with_part<T>(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        make: bool,
        f: impl FnOnce(u32) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        let cluster = &call.cluster;
        let part = call.part_here(id)?.part();
        let (live, held) = match cluster.opens().live_acquire_held(part) {
            Err(Errno::NOENT) if make => {
                cluster.store().parts().make_part(id)?;
                cluster.opens().live_acquire_held(part)?
            }
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let result = self.keep(cluster, id, live).and_then(|()| f(live));
        drop(held);
        cluster
            .store()
            .objects()
            .live_release(live)
            .and(result)
            .map(Some)
    }

    /// Closes a part that is kept open.
    fn let_go(&self, cluster: &Cluster<'_>, id: ObjectId) -> Result<(), Errno> {
        let kept = lock(&self.0).remove(&id);
        kept.map_or(Ok(()), |open| cluster.store().objects().open_release(open))
    }

    /// Keeps a part open after the request. At the limit, closes another part.
    fn keep(&self, cluster: &Cluster<'_>, id: ObjectId, live: u32) -> Result<(), Errno> {
        let mut kept = lock(&self.0);
        if kept.contains_key(&id) {
            return Ok(());
        }
        if kept.len() >= MAX_OPEN_PARTS {
            let any = kept.keys().next().copied();
            if let Some(open) = any.and_then(|other| kept.remove(&other)) {
                // Records that can't be written back are tried again by the next repair.
                let _ = cluster.store().objects().open_release(open);
            }
        }
        let part = id.part();
        let _section = cluster.store().section()?;
        cluster.store().objects().live_retain(live);
        let new = NewOpen::new(part, libc::S_IFREG, libc::O_RDWR as u32);
        let open = cluster
            .store()
            .objects()
            .open_create(&new, Some(live))
            .inspect_err(|_| _ = cluster.store().objects().live_release(live))?;
        kept.insert(id, open);
        Ok(())
    }
}

impl Parts for Call<'_> {
    fn read_part(
        &self,
        id: ObjectId,
        cuts: u64,
        offset: u64,
        length: u64,
    ) -> Result<((), Vec<u8>), Errno> {
        let store = self.store();
        let len = usize::try_from(length).map_err(|_| Errno::PROTO)?;
        let len = len.min(MAX_BODY);
        let read = |part| {
            // SAFETY: the buffer has room for `len` bytes.
            unsafe {
                bytes_read(len, |to| {
                    store.parts().read_part(part, cuts, offset, to, len)
                })
            }
        };
        let bytes = if self.home(id).is_ok() {
            Some(self.with_file(id, read)?)
        } else {
            self.server.parts.with_part(self, id, false, read)?
        };
        Ok(((), bytes.unwrap_or_default()))
    }

    fn write_part(&self, id: ObjectId, cuts: u64, offset: u64, body: &[u8]) -> Result<u64, Errno> {
        let store = self.store();
        check_size(offset.saturating_add(body.len() as u64))?;
        let bytes = (body.as_ptr(), body.len());
        if self.home(id).is_ok() {
            let n = self.with_file(id, |live| {
                // SAFETY: pointer and length are those of `body`.
                store.recovery().with_room_of_the_dead(|| unsafe {
                    store.parts().write_behind(live, cuts, offset, bytes)
                })
            })?;
            return Ok(n as u64);
        }
        let written = self.server.parts.with_part(self, id, true, |part| {
            // SAFETY: pointer and length are those of `body`.
            store.recovery().with_room_of_the_dead(|| unsafe {
                store.parts().write_part(part, cuts, offset, bytes)
            })
        })?;
        Ok(written.ok_or(Errno::IO)? as u64)
    }

    fn merge(
        &self,
        id: ObjectId,
        cuts: Option<u64>,
        offset: u64,
        body: &[u8],
    ) -> Result<Option<(u64, u64, Option<u32>)>, Errno> {
        let cluster = &self.cluster;
        let store = self.store();
        check_size(offset.saturating_add(2 * MAX_BODY as u64))?;
        if self.home(id).is_ok() {
            let merge = |live| {
                if cuts.is_none() {
                    store.parts().not_spilled(live)?;
                }
                cluster
                    .mappings()
                    .merge_here(live, cuts, Some(self.from), offset, body)
            };
            let merged = match cuts {
                None => self.with_file_in_room(id, merge),
                Some(_) => self.with_file(id, merge),
            };
            return merged.map(Conflict::reply);
        }
        let cuts = cuts.ok_or(Errno::REMCHG)?;
        let merge = |part| cluster.mappings().merge_part(part, cuts, offset, body);
        let merged = self.server.parts.with_part(self, id, true, merge)?;
        merged.map(Conflict::reply).ok_or(Errno::IO)
    }

    fn cut_part(&self, id: ObjectId, cuts: u64, size: u64) -> Result<(), Errno> {
        check_size(size)?;
        let id = self.part_here(id)?;
        self.store().parts().cut_part(id, cuts, size)
    }

    fn stat_part(&self, id: ObjectId) -> Result<Option<Record>, Errno> {
        let id = self.part_here(id)?;
        let inode = self.store().parts().stat_part(id)?;
        Ok(inode.map(|inode| Record(inode, Vec::new())))
    }

    fn sync_part(&self, id: ObjectId) -> Result<(), Errno> {
        let store = self.store();
        let sync = |part| store.durability().sync_here(part);
        if self.home(id).is_ok() {
            self.with_file(id, sync)
        } else {
            let synced = self.server.parts.with_part(self, id, false, sync);
            synced.map(|_| ())
        }
    }

    fn room_part(
        &self,
        id: ObjectId,
        cuts: u64,
        offset: u64,
        length: u64,
        punch: bool,
    ) -> Result<(), Errno> {
        let store = self.store();
        check_size(offset.saturating_add(length))?;
        let len = length.min(MAX_BODY as u64);
        if self.home(id).is_ok() {
            return self.with_file(id, |live| {
                forebay_store::views::Parts::check_cuts(store.objects().live(live), cuts)?;
                if punch {
                    store.content().punch_here(live, offset, len, false)
                } else {
                    store.recovery().with_room_of_the_dead(|| {
                        store.content().reserve_here(live, offset, len, false)
                    })
                }
            });
        }
        self.server.parts.with_part(self, id, !punch, |part| {
            let room = || store.parts().room_part(part, cuts, (offset, len), punch);
            store.recovery().with_room_of_the_dead(room)
        })?;
        Ok(())
    }

    fn drop_part(&self, id: ObjectId) -> Result<(), Errno> {
        let id = self.part_here(id)?;
        let closed = self.server.parts.let_go(&self.cluster, id);
        self.store().parts().drop_part(id).and(closed)
    }

    /// The part is closed first: a part that is open isn't moved.
    fn landed(&self, id: ObjectId) -> Result<(), Errno> {
        let id = self.part_here(id)?;
        let closed = self.server.parts.let_go(&self.cluster, id);
        self.store().content().part_landed(id).and(closed)
    }

    fn part_on_files(&self, id: ObjectId, word: u64) -> Result<(), Errno> {
        let id = self.part_here(id)?;
        self.store().content().set_part_word(id, word)
    }
}
