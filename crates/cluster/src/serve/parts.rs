//! Answers about striped files whose home this node is, and about this node's parts of others.
//!
//! The daemon keeps up to [`KEPT`] parts open between requests, so that their records aren't read
//! again each time.

use super::{Reply, home, lock, parts, told, with_file, with_file_in_room};
use crate::Cluster;
use crate::merge::Conflict;
use crate::peers::MAX_BODY;
use crate::peers::messages::{List, Record, encode, kind};
use forebay_placement::NodeId;
use forebay_store::placements::Placed;
use forebay_store::process::identity_lives;
use forebay_store::{CHUNK, NewOpen, ObjectId};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;

/// So many parts are kept open at most: one that is used again needn't be read from its record
/// again.
const KEPT: usize = 1024;

/// The parts that the daemon keeps open, by the open file descriptions that do it.
#[derive(Default)]
pub(super) struct Parts(Mutex<HashMap<ObjectId, u32>>);

impl Parts {
    pub(super) fn serve(
        &self,
        store: &Cluster<'_>,
        from: NodeId,
        kind: u16,
        head: &[u8],
        body: &[u8],
    ) -> Result<Reply, Errno> {
        match kind {
            kind::LAYOUT => {
                let (id, write) = parts(head)?;
                let known = with_file(store, id, |live| store.parts().layout_here(live, write))?;
                told((known.size, known.cuts, known.appends, known.word))
            }
            kind::GROW => {
                let (id, as_of, end) = parts(head)?;
                check_size(end)?;
                told(with_file(store, id, |live| {
                    store.parts().grow_here(live, as_of, end)
                })?)
            }
            kind::LEASE => {
                let (id, process, over) = parts(head)?;
                told(with_file(store, id, |live| {
                    store.parts().lease_here(live, (from, process), over)
                })?)
            }
            kind::END_LEASE => {
                let (id, lease, as_of, size): (_, _, _, Option<u64>) = parts(head)?;
                size.map_or(Ok(()), check_size)?;
                told(with_file(store, id, |live| {
                    store.parts().end_lease_here(live, lease, as_of, size)
                })?)
            }
            kind::PLACES => {
                let (id, cuts, first, count) = parts(head)?;
                let count: u64 = count;
                let places = |live| {
                    store
                        .parts()
                        .places_here(live, cuts, (first, count.min(2048)))
                };
                told(List(with_file(store, id, places)?))
            }
            kind::PLACE => {
                let (id, cuts, chunk, end): (_, _, u64, u64) = parts(head)?;
                let sound = (1..=CHUNK).contains(&end) && chunk <= forebay_store::MAX_SIZE / CHUNK;
                sound.then_some(()).ok_or(Errno::PROTO)?;
                told(with_file(store, id, |live| {
                    store
                        .recovery()
                        .with_room_of_the_dead(|| store.parts().place_here(live, cuts, chunk, end))
                })?)
            }
            kind::ASSIGN => {
                let (id, cuts, chunk, placed, inline): (_, _, u64, Placed, _) = parts(head)?;
                let known = store.other_nodes()?.nodes().contains(&placed.node);
                let sound = known && chunk <= forebay_store::MAX_SIZE / CHUNK;
                sound.then_some(()).ok_or(Errno::PROTO)?;
                told(with_file(store, id, |live| {
                    store.parts().assign_here(live, cuts, chunk, placed, inline)
                })?)
            }
            kind::READ_PART => {
                let (id, cuts, offset, len): (_, _, _, u64) = parts(head)?;
                let len = usize::try_from(len).map_err(|_| Errno::PROTO)?;
                let len = len.min(MAX_BODY);
                if home(store, id).is_ok() {
                    let body = with_file(store, id, |live| {
                        let mut body: Vec<u8> = Vec::with_capacity(len);
                        // SAFETY: as below.
                        unsafe {
                            let n = store.parts().read_part(
                                live,
                                cuts,
                                offset,
                                body.as_mut_ptr(),
                                len,
                            )?;
                            body.set_len(n);
                        }
                        Ok(body)
                    })?;
                    let head = encode(&());
                    return Ok(Reply { head, body });
                }
                let read = self.with_part(store, id, false, |part| {
                    let mut body: Vec<u8> = Vec::with_capacity(len);
                    // SAFETY: the vector has room for so many bytes; as many are then there.
                    unsafe {
                        let n =
                            store
                                .parts()
                                .read_part(part, cuts, offset, body.as_mut_ptr(), len)?;
                        body.set_len(n);
                    }
                    Ok(body)
                })?;
                Ok(Reply {
                    head: encode(&()),
                    body: read.unwrap_or_default(),
                })
            }
            kind::WRITE_PART => {
                let (id, cuts, offset): (_, _, u64) = parts(head)?;
                check_size(offset.saturating_add(body.len() as u64))?;
                if home(store, id).is_ok() {
                    let n = with_file(store, id, |live| {
                        // SAFETY: the slice is readable.
                        store.recovery().with_room_of_the_dead(|| unsafe {
                            store.parts().write_behind(
                                live,
                                cuts,
                                offset,
                                (body.as_ptr(), body.len()),
                            )
                        })
                    })?;
                    return told(n as u64);
                }
                let written = self.with_part(store, id, true, |part| {
                    // SAFETY: the slice is readable.
                    store.recovery().with_room_of_the_dead(|| unsafe {
                        store
                            .parts()
                            .write_part(part, cuts, offset, (body.as_ptr(), body.len()))
                    })
                })?;
                told(written.ok_or(Errno::IO)? as u64)
            }
            kind::MERGE => {
                let (id, cuts, offset): (_, Option<u64>, u64) = parts(head)?;
                check_size(offset.saturating_add(2 * MAX_BODY as u64))?;
                if home(store, id).is_ok() {
                    let merge = |live| {
                        if cuts.is_none() {
                            store.parts().not_spilled(live)?;
                        }
                        store.merge_here(live, cuts, Some(from), offset, body)
                    };
                    let merged = match cuts {
                        None => with_file_in_room(store, id, merge),
                        Some(_) => with_file(store, id, merge),
                    };
                    return told(Conflict::told(merged?));
                }
                let cuts = cuts.ok_or(Errno::REMCHG)?;
                let merged = self.with_part(store, id, true, |part| {
                    store.merge_part(part, cuts, offset, body)
                })?;
                told(Conflict::told(merged.ok_or(Errno::IO)?))
            }
            kind::CUT_PART => {
                let (id, cuts, size) = parts(head)?;
                check_size(size)?;
                let id = part_here(store, id)?;
                told(store.parts().cut_part(id, cuts, size)?)
            }
            kind::STAT_PART => {
                let id = part_here(store, parts(head)?)?;
                let part = store.parts().stat_part(id)?;
                told(part.map(|inode| Record(inode, Vec::new())))
            }
            kind::SYNC_PART => {
                let id = parts(head)?;
                if home(store, id).is_ok() {
                    return told(with_file(store, id, |live| {
                        store.durability().sync_here(live)
                    })?);
                }
                self.with_part(store, id, false, |part| store.durability().sync_here(part))?;
                told(())
            }
            kind::ROOM_PART => {
                let (id, cuts, offset, len, punch): (_, _, u64, u64, bool) = parts(head)?;
                check_size(offset.saturating_add(len))?;
                let len = len.min(MAX_BODY as u64);
                if home(store, id).is_ok() {
                    return told(with_file(store, id, |live| {
                        forebay_store::views::Parts::check_cuts(store.objects().live(live), cuts)?;
                        match punch {
                            true => store.content().punch_here(live, offset, len, false),
                            false => store.recovery().with_room_of_the_dead(|| {
                                store.content().reserve_here(live, offset, len, false)
                            }),
                        }
                    })?);
                }
                self.with_part(store, id, !punch, |part| {
                    store.recovery().with_room_of_the_dead(|| {
                        store.parts().room_part(part, cuts, (offset, len), punch)
                    })
                })?;
                told(())
            }
            kind::LANDED => {
                let id = part_here(store, parts(head)?)?;
                // What is kept open isn't moved.
                let kept = lock(&self.0).remove(&id);
                let closed = kept.map_or(Ok(()), |open| store.objects().open_release(open));
                told(store.content().part_landed(id).and(closed)?)
            }
            kind::PART_ON_FILES => {
                let (id, word) = parts(head)?;
                told(store.content().set_part_word(part_here(store, id)?, word)?)
            }
            kind::DROP_PART => {
                let id = part_here(store, parts(head)?)?;
                let kept = lock(&self.0).remove(&id);
                let closed = kept.map_or(Ok(()), |open| store.objects().open_release(open));
                told(store.parts().drop_part(id).and(closed)?)
            }
            kind::LIVES => told(identity_lives(store.control(), parts(head)?)),
            _ => Err(Errno::PROTO),
        }
    }

    /// Calls `f` with this node's part of a file; None if there is none, and it isn't to be made.
    pub(super) fn with_part<T>(
        &self,
        store: &Cluster<'_>,
        id: ObjectId,
        make: bool,
        f: impl FnOnce(u32) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        let part = part_here(store, id)?.part();
        let (live, held) = match store.live_acquire_held(part) {
            Err(Errno::NOENT) if make => {
                store.parts().make_part(id)?;
                store.live_acquire_held(part)?
            }
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let result = self.keep(store, id, live).and_then(|()| f(live));
        drop(held);
        store.objects().live_release(live).and(result).map(Some)
    }

    /// Keeps a part open.
    fn keep(&self, store: &Cluster<'_>, id: ObjectId, live: u32) -> Result<(), Errno> {
        let mut kept = lock(&self.0);
        if kept.contains_key(&id) {
            return Ok(());
        }
        if kept.len() >= KEPT {
            let any = kept.keys().next().copied();
            if let Some(open) = any.and_then(|other| kept.remove(&other)) {
                // What can't be written back is tried again when all is put in order.
                let _ = store.objects().open_release(open);
            }
        }
        let part = id.part();
        let _section = store.section()?;
        store.objects().live_retain(live);
        let new = NewOpen::new(part, libc::S_IFREG, libc::O_RDWR as u32);
        let open = store
            .objects()
            .open_create(&new, Some(live))
            .inspect_err(|_| _ = store.objects().live_release(live))?;
        kept.insert(id, open);
        Ok(())
    }
}

/// EPROTO for what has no parts, EREMCHG if this node is the home, which has none either.
pub(super) fn part_here(store: &Cluster<'_>, id: ObjectId) -> Result<ObjectId, Errno> {
    if id.is_part() {
        return Err(Errno::PROTO);
    }
    match home(store, id) {
        Ok(_) => Err(Errno::REMCHG),
        Err(_) => Ok(id),
    }
}

pub(super) fn check_size(size: u64) -> Result<(), Errno> {
    match size <= forebay_store::MAX_SIZE {
        true => Ok(()),
        false => Err(Errno::FBIG),
    }
}
