//! Names and attributes: looking up, making, linking, moving and removing objects.
//!
//! Everything here works on ids; the layers above handle paths and permissions. An operation that
//! depends on a resolved path takes the `epoch` at which the path was resolved. If names have
//! changed since in a way that could matter, the operation fails with ESTALE, and the caller
//! resolves the path again.

mod create;
mod intents;
mod links;
mod remove;
mod rename;

pub use intents::{Exchange, Note, Phase, is_on_paths};
pub use links::{Link, is_unconfirmed, link_in};
pub use rename::Renamed;

use crate::control_region::{Live, live_flag};
use crate::declared::COUNTED;
use crate::live::{Held, at_origin, put_parts};
pub use crate::object::{Named, NewObject, RenameMode, SetAttr};
use crate::remote_opens::Opened;
use crate::views::Names;

use crate::record::{ChunkMap, Entry, Inode, Key, parse_key, tail};
use crate::records::{ChangeRecords, Need, ReadRecords, Records, ShardSet};
use crate::shards::Write;
use crate::{ObjectId, now};
use forebay_media::Extent;
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::sync::atomic::Ordering::*;

/// Number of records that one transaction may change even on a full file system.
pub(crate) const STEP: usize = 4;

/// The state of an object that lost a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The object is removed.
    Gone,
    /// The object has other names, or is open.
    Stays,
}

/// The inode of `id` and the extents of chunk 0, if the object exists.
fn inode_and_extents(w: &mut Write<'_>, id: ObjectId) -> Result<Option<(Inode, ChunkMap)>> {
    let Some((inode, bytes)) = w.inode(id)? else {
        return Ok(None);
    };
    let extents = if inode.tail == tail::EXTENTS {
        ChunkMap::decode(bytes).ok_or(Errno::IO)?
    } else {
        ChunkMap::default()
    };
    Ok(Some((inode, extents)))
}

/// The state that keeps a file open from its creation on.
pub struct Opening<'a, 's> {
    /// Where this process's use of the file is recorded.
    pub held: &'a Held<'s>,
    /// The object's live entry, once it has one.
    pub live: Option<u32>,
    /// The use of the file at its home, if the file was created on another node.
    pub remote: Option<Opened>,
}

/// Value of an orphan's record: the object never had a name, and may get one.
const UNNAMED: u8 = 1;

/// Maximum number of names of one object.
const LINK_MAX: u32 = 1 << 20;

impl<'s> Names<'s> {
    /// The entry `name` of `parent`, in the records of this node, and whether it is moving: being
    /// renamed or removed by several nodes.
    ///
    /// # Errors
    /// EIO; EAGAIN: all reader slots are taken.
    pub fn lookup_here(&self, parent: ObjectId, name: &[u8]) -> Result<Option<(Entry, bool)>> {
        forebay_trace::span!(
            STORE_LOOKUP_ENTER,
            STORE_LOOKUP_EXIT,
            name,
            [parent.0],
            self.entry_here(parent, name)
        )
    }

    #[inline(always)]
    fn entry_here(&self, parent: ObjectId, name: &[u8]) -> Result<Option<(Entry, bool)>> {
        let at = self.store.entry_ref((parent, name));
        let found = self.store.records(at.shard())?.look_up(at)?;
        Ok(found.map(|found| (found.entry, found.changing)))
    }

    /// The attributes of an object of this node as of now, those of an open file included.
    ///
    /// # Errors
    /// ENOENT if there is no such object.
    pub fn stat_here(&self, id: ObjectId) -> Result<Inode> {
        self.with_inode(id, |inode, _| inode)
    }

    /// As [`Names::stat_here`], with the tail of the record: a link's target, a directory's own
    /// name.
    ///
    /// # Errors
    /// ENOENT if there is no such object.
    pub fn inode_tail_here(&self, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        self.with_inode(id, |inode, tail| (inode, tail.to_vec()))
    }

    /// Calls `f` with the current attributes and the tail of the record.
    fn with_inode<T>(&self, id: ObjectId, f: impl FnOnce(Inode, &[u8]) -> T) -> Result<T> {
        // The tables in memory are read before the record: an entry that has left a table is in the
        // record.
        let live = self.store.objects().live_probe(id)?;
        let times = if live.is_none() {
            self.dir_times(id)
        } else {
            None
        };
        let records = self.store.records_of(id)?;
        let (mut inode, tail) = records.inode(id)?.ok_or(Errno::NOENT)?;
        if let Some(live) = live {
            inode.size = live.size;
            inode.pages = live.pages;
            inode.mtime = live.mtime;
            inode.ctime = inode.ctime.max(live.ctime);
            inode.controls |= live.controls & COUNTED;
            put_parts(id, &mut inode, live.cuts, live.parts);
        } else if let Some((mtime, ctime)) = times {
            inode.mtime = mtime;
            inode.ctime = inode.ctime.max(ctime);
        }
        if inode.is_dir() && self.store.remote.is_some() {
            // See `add_dir_links`.
            inode.nlink = (inode.nlink as i32).max(2) as u32;
        }
        Ok(f(inode, tail))
    }

    pub fn set_attr_here(&self, id: ObjectId, set: &SetAttr) -> Result<()> {
        self.set_attr_judged(id, set, |_| Ok(()))
    }

    /// As `Namespace::set_attr`, for an object of this node, unless `judge` refuses. `judge` is
    /// called before the change, with the live entry of an open object. The entry is locked.
    ///
    /// # Errors
    /// As for `Namespace::set_attr`; those of `judge`.
    pub(crate) fn set_attr_judged(
        &self,
        id: ObjectId,
        set: &SetAttr,
        judge: impl FnOnce(Option<&Live>) -> Result<()>,
    ) -> Result<()> {
        let changed = set.ctime.or_else(|| set.changes_object().then(now));
        let mut judge = Some(judge);
        let mut judged = |live: Option<&Live>| judge.take().map_or(Ok(()), |judge| judge(live));
        // The change time of an open file. It can be later than that in the file's record.
        let open_ctime = Cell::new(i64::MIN);
        let is_mapped = Cell::new(false);
        let in_record = || {
            self.store
                .transact(self.object_set(id), Need::Removal, |w| {
                    // Only a directory's attributes affect resolved paths, but the object's type isn't
                    // known yet.
                    if set.of_names() && w.inode(id)?.is_some_and(|(i, _)| i.is_dir()) {
                        w.names_change();
                    }
                    if let Some(word) = set.controls {
                        self.store.declared().change_creator(w, id, word)?;
                        self.store.content().change_place(w, id, word)?;
                        self.store.content().change_sums(w, id, word)?;
                    }
                    w.change_inode(id, |i| {
                        if let Some(mode) = set.mode {
                            i.mode = i.mode & crate::S_IFMT | mode & !crate::S_IFMT;
                        }
                        i.uid = set.uid.unwrap_or(i.uid);
                        i.gid = set.gid.unwrap_or(i.gid);
                        i.mtime = set.mtime.unwrap_or(i.mtime);
                        i.atime = set.atime.unwrap_or(i.atime);
                        if let Some(controls) = set.controls {
                            crate::declared::set_controls(i, controls);
                        }
                        if let Some(mark) = set.origin {
                            (i.origin, i.is_mapped) = (mark, is_mapped.get());
                        }
                        i.ctime = changed.unwrap_or(i.ctime.max(open_ctime.get()));
                        (i.is_dir(), i.edition, at_origin(i))
                    })
                })
        };
        // An open file's times are in the live table: record and live entry change under the
        // entry's lock.
        let open = self.store.objects().with_live(id, |index| {
            let live = self.store.objects().live(index);
            judged(Some(live))?;
            let is_loaded = live.flags.load(Acquire) & live_flag::LOADED != 0;
            if is_loaded {
                open_ctime.set(live.ctime.load(Acquire));
            }
            if set.origin.is_some() {
                is_mapped.set(!self.store.mappings().writable_mappings(id).is_empty());
            }
            let result = in_record();
            if let Ok((_, edition, there)) = result
                && is_loaded
            {
                if let Some(mode) = set.mode {
                    live.set_privileged(mode);
                }
                if let Some(mtime) = set.mtime {
                    live.mtime.store(mtime, Release);
                }
                if let Some(t) = changed {
                    live.ctime.store(t, Release);
                }
                if set.origin.is_some() {
                    live.set_at_origin(there);
                }
                if let Some(controls) = set.controls {
                    if live.refs.load(Acquire) > 1 {
                        live.flags.fetch_or(live_flag::DECLARED_LATE, AcqRel);
                    }
                    let counted = live.controls.load(Relaxed) & COUNTED;
                    live.controls.store(controls | counted, Release);
                    live.edition.store(edition, Release);
                }
            }
            result
        })?;
        let (is_dir, ..) = match open {
            Some(result) => result?,
            None => {
                judged(None)?;
                let done = in_record()?;
                if set.controls.is_some() || set.origin.is_some() {
                    self.reread(id)?;
                }
                done
            }
        };
        if let Some(t) = changed.filter(|_| is_dir) {
            self.set_dir_times(id, set.mtime, t)?;
        }
        Ok(())
    }

    /// Reads controls and origin mark of an open file from its record again: the process that
    /// opened the file may have read the record before controls or mark changed.
    fn reread(&self, id: ObjectId) -> Result<()> {
        let reread = self.store.objects().with_live(id, |index| -> Result<()> {
            let live = self.store.objects().live(index);
            if live.flags.load(Acquire) & live_flag::LOADED != 0 {
                let inode = self.inode_tail_here(id)?.0;
                let counted = live.controls.load(Relaxed) & COUNTED;
                live.controls.store(inode.controls | counted, Release);
                live.edition.store(inode.edition, Release);
                live.set_at_origin(at_origin(&inode));
            }
            Ok(())
        });
        match reread?.unwrap_or(Ok(())) {
            // The object was removed meanwhile.
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    pub fn set_live_ctime(&self, id: ObjectId, t: i64) -> Result<()> {
        if self.store.objects().live_probe(id)?.is_some() {
            self.store.objects().with_live(id, |index| {
                self.store.objects().live(index).ctime.store(t, Release)
            })?;
        }
        Ok(())
    }

    /// The set of shards of a transaction over one object.
    pub fn object_set(&self, id: ObjectId) -> ShardSet {
        ShardSet::of(&[self.store.files.shard_of(id)])
    }
}
