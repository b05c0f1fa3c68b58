//! Names and attributes: looking up, making, linking, moving and removing objects.
//!
//! Everything here works on ids; paths, permissions and the like are the business of the
//! floors above. Operations that depend on a path resolved before take the `epoch` at
//! which it was resolved and fail with ESTALE if names have changed since in a way that
//! could matter: the caller then resolves anew.

use crate::across::{Nap, entry_in};
use crate::control::live_flag;
use crate::elsewhere::Opened;
use crate::elsewhere::messages::{Record, kind};
use crate::live::{Away, Held, new_use};
use crate::record::{ChunkMap, Entry, Inode, Key, parse_key, tail};
use crate::shards::{Need, ShardSet, Write};
use crate::striped::has_parts;
use crate::{Distribution, NAME_MAX, ObjectId, Store, now};
use forebay_media::Extent;
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// What a new object is.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// How a directory's content is distributed, if not as its parent's.
    pub distribution: Option<Distribution>,
}

/// How rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// Attributes to change; None leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<i64>,
    pub atime: Option<i64>,
}

/// What a name leads to.
#[derive(Debug, Default)]
pub struct Found {
    /// None: nothing.
    pub entry: Option<Entry>,
    /// The attributes, if they came along.
    pub inode: Option<Inode>,
    /// The file is open on its home.
    pub opened: Option<Opened>,
}

/// What became of an object that lost a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It is removed.
    Gone,
    /// It has other names, or is open.
    Stays,
}

/// The inode of `id` and the extents of chunk 0, if it is there.
fn inode_and_extents(
    w: &mut Write<'_>,
    shard: usize,
    id: ObjectId,
) -> Result<Option<(Inode, ChunkMap)>> {
    let Some(record) = w.get(shard, &Key::inode(id))? else {
        return Ok(None);
    };
    let (inode, bytes) = Inode::decode(record).ok_or(Errno::IO)?;
    let extents = if inode.tail == tail::EXTENTS {
        ChunkMap::decode(bytes).ok_or(Errno::IO)?
    } else {
        ChunkMap::default()
    };
    Ok(Some((inode, extents)))
}

/// Where a file that is being made becomes an open one.
pub(crate) struct Opening<'a, 's> {
    /// Where its use is noted.
    pub held: &'a Held<'s>,
    /// Its live entry, once it has one.
    pub live: Option<u32>,
    /// If it was made on another node: that keeps it open.
    pub away: Option<Opened>,
}

/// Value of an orphan's record: it never had a name, and may get one.
const UNNAMED: u8 = 1;

/// Most names of one object.
const LINK_MAX: u32 = 1 << 20;

impl Store {
    /// The epoch of names: changes whenever a resolved path may have become wrong.
    pub fn names_epoch(&self) -> u64 {
        self.control.header().names_epoch.load(Acquire)
    }

    pub(crate) fn bump_epoch(&self) {
        self.control.header().names_epoch.fetch_add(1, AcqRel);
    }

    pub(crate) fn check_epoch(&self, epoch: u64) -> Result<()> {
        if self.names_epoch() == epoch {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }

    /// Writes the root directory of a new store.
    pub(crate) fn format_root(&self, (mode, uid, gid): (u32, u32, u32)) -> Result<()> {
        let t = now();
        let root = Inode {
            mode: libc::S_IFDIR | mode,
            uid,
            gid,
            nlink: 2,
            parent: ObjectId::ROOT.0,
            mtime: t,
            ctime: t,
            atime: t,
            btime: t,
            tail: tail::NAME,
            ..Inode::default()
        };
        let shard = self.shard_of(ObjectId::ROOT);
        for i in 0..self.envs.len() {
            // Every record file exists and has room from the start.
            self.write(self.set(&[i]), Need::Bytes(0), |w| {
                w.get(i, b"I").map(|_| ())
            })?;
        }
        self.write(self.set(&[shard]), Need::Bytes(0), |w| {
            w.put(shard, &Key::inode(ObjectId::ROOT), &root.encode(&[]))
        })
    }

    /// The entry `name` of `parent`.
    ///
    /// # Errors
    /// ENAMETOOLONG; EIO.
    pub fn lookup(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if let Some(home) = self.entry_away(parent, name) {
            return self.ask(home, kind::LOOKUP, &(parent, name));
        }
        let mut nap = None;
        loop {
            let snapshot = self.snapshot(self.shard_of_entry(parent, name))?;
            let Some(bytes) = snapshot.get(&Key::entry(parent, name))? else {
                return Ok(None);
            };
            match entry_in(bytes).ok_or(Errno::IO)? {
                (entry, false) => return Ok(Some(entry)),
                (_, true) => {
                    drop(snapshot);
                    self.wait_for_move((parent, name), nap.get_or_insert_with(Nap::new))?;
                }
            }
        }
    }

    /// Whether only another node knows what the entry is.
    pub fn is_entry_away(&self, parent: ObjectId, name: &[u8]) -> bool {
        self.entry_away(parent, name).is_some()
    }

    /// As [`Store::lookup`]; also what comes from another node with the same question: the attributes
    /// of the object, and with `open`, if it is a file, its being open.
    ///
    /// # Errors
    /// As for [`Store::lookup`].
    pub fn find(&self, parent: ObjectId, name: &[u8], open: bool) -> Result<Found> {
        let away = match name.len() {
            ..=NAME_MAX => self.entry_away(parent, name),
            _ => None,
        };
        let Some(home) = away else {
            let entry = self.lookup(parent, name)?;
            return Ok(Found {
                entry,
                inode: None,
                opened: None,
            });
        };
        let number = new_use();
        let (entry, record, is_open): (Option<Entry>, Option<Record>, _) = match open {
            true => self.ask(home, kind::LOOKUP_OPEN, &(parent, name, number))?,
            false => {
                let (entry, record) = self.ask(home, kind::LOOKUP_STAT, &(parent, name))?;
                (entry, record, false)
            }
        };
        let id = entry.filter(|_| is_open).map(|e| e.id);
        Ok(Found {
            entry,
            inode: record.map(|r| r.0),
            opened: id.map(|id| Opened { home, id, number }),
        })
    }

    /// The attributes of `id` as of now, those of an open file included.
    ///
    /// # Errors
    /// ENOENT if there is no such object.
    pub fn stat(&self, id: ObjectId) -> Result<Inode> {
        if let Some(home) = self.object_away(id) {
            return self.stat_away(home, id).map(|record| record.0);
        }
        self.with_inode(id, |inode, _| inode)
    }

    /// Calls `f` with the current attributes and the tail of the record.
    fn with_inode<T>(&self, id: ObjectId, f: impl FnOnce(Inode, &[u8]) -> T) -> Result<T> {
        let shard = self.shard_of(id);
        let key = Key::inode(id);
        // The tables in memory first: what isn't in them any more is in the record.
        let live = self.live_probe(id)?;
        let times = if live.is_none() {
            self.dir_times(id)
        } else {
            None
        };
        let snapshot = self.snapshot(shard)?;
        let record = snapshot.get(&key)?.ok_or(Errno::NOENT)?;
        let (mut inode, tail) = Inode::decode(record).ok_or(Errno::IO)?;
        if let Some(live) = live {
            inode.size = live.size;
            inode.pages = live.pages;
            inode.mtime = live.mtime;
            inode.ctime = inode.ctime.max(live.ctime);
            if inode.is_file() && id.stripe().is_some() {
                inode.rdev = live.cuts;
                inode.parent |= u64::from(live.parts && !id.is_part());
            }
        } else if let Some((mtime, ctime)) = times {
            inode.mtime = mtime;
            inode.ctime = inode.ctime.max(ctime);
        }
        if inode.is_dir() && self.elsewhere.is_some() {
            // See `add_dir_links`.
            inode.nlink = (inode.nlink as i32).max(2) as u32;
        }
        Ok(f(inode, tail))
    }

    /// The tail of the record: a link's target, a directory's own name.
    ///
    /// # Errors
    /// ENOENT if there is no such object.
    pub fn inode_tail(&self, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        if let Some(home) = self.object_away(id) {
            return self.stat_away(home, id).map(|record| (record.0, record.1));
        }
        self.with_inode(id, |inode, tail| (inode, tail.to_vec()))
    }

    /// Makes a new object named `name` in `parent`. Its id; or, as `Ok(Err(entry))`, the
    /// entry that is there already.
    ///
    /// # Errors
    /// ESTALE if names changed since `epoch`; ENOSPC; ENAMETOOLONG.
    pub fn create_object(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        self.make(parent, name, new, epoch, &mut None)
    }

    /// As [`Store::create_object`] of a file, which is open from the start: whoever removes its name
    /// removes that of an open file. Its id, its live entry, the note of its use.
    ///
    /// # Errors
    /// As for [`Store::create_object`]; ENFILE.
    pub fn create_open(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<(ObjectId, u32, Held<'_>), Entry>> {
        let held = self.place()?;
        let _section = self.section()?;
        let mut opened = Some(Opening {
            held: &held,
            live: None,
            away: None,
        });
        let made = self.make(parent, name, new, epoch, &mut opened);
        let (live, opened) = opened.map_or((None, None), |o| (o.live, o.away));
        match (made, live) {
            (Ok(Ok(id)), Some(live)) => Ok(Ok((id, live, held))),
            (Ok(Ok(id)), None) => {
                // Made on another node.
                drop(held);
                let mut away = Away {
                    opened,
                    inode: None,
                };
                let acquired = self.live_acquire_opened(id, &mut away);
                if let Some(unused) = away.opened {
                    self.close_opened(unused);
                }
                let (live, held) = acquired?;
                Ok(Ok((id, live, held)))
            }
            (other, live) => {
                drop(held);
                if let Some(live) = live {
                    self.live_release(live)?;
                }
                other.map(|made| made.map(|_| unreachable!("the cases before")))
            }
        }
    }

    /// See [`Store::create_object`]; with `opened`, a file that is made on this node has a live
    /// entry before anybody sees it.
    fn make(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let kind = new.mode & crate::S_IFMT;
        let distribution = self.distribution_of(parent, new);
        let local = match distribution {
            Distribution::Striped(_) => false,
            Distribution::LocalAll => matches!(kind, libc::S_IFREG | libc::S_IFDIR),
            Distribution::Local => kind == libc::S_IFREG,
        };
        let new = &NewObject {
            distribution: Some(distribution),
            ..*new
        };
        if let Some(home) = self.entry_away(parent, name) {
            if local
                && let Some(made) = self.create_here(home, (parent, name), new, epoch, opened)?
            {
                return Ok(made);
            }
            let what = (new.mode, new.uid, new.gid, new.rdev, new.target);
            let number = (opened.is_some() && kind == libc::S_IFREG).then(new_use);
            let bits = distribution.bits();
            let question = ((parent, name), what, bits, epoch, number);
            let made: std::result::Result<ObjectId, Entry> =
                self.ask(home, kind::CREATE, &question)?;
            if let (Ok(id), Some(number), Some(opening)) = (&made, number, opened) {
                let id = *id;
                opening.away = Some(Opened { home, id, number });
            }
            return Ok(made);
        }
        self.retry_noted((parent, name), || {
            self.create_beside(parent, name, new, epoch, opened)
        })
    }

    /// How what is made in `parent` is distributed.
    fn distribution_of(&self, parent: ObjectId, new: &NewObject<'_>) -> Distribution {
        let wanted = new.distribution.unwrap_or(parent.distribution());
        match new.mode & crate::S_IFMT {
            _ if self.elsewhere.is_none() => Distribution::Local,
            libc::S_IFDIR => wanted,
            libc::S_IFREG => match wanted {
                Distribution::Striped(_) => wanted,
                // What it means for a file is told by its place.
                _ => Distribution::Local,
            },
            _ => Distribution::Local,
        }
    }

    /// Makes an object and its entry, both here.
    fn create_beside(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let kind = new.mode & crate::S_IFMT;
        let slot = crate::Slot::of_entry(parent, name);
        let shard = self.shard_of_entry(parent, name);
        let key = Key::entry(parent, name);
        let is_dir = kind == libc::S_IFDIR;
        let counts = is_dir && self.object_away(parent).is_none();
        let mut set = self.set(&[shard]);
        if counts {
            set = set.with(self.shard_of(parent));
        }
        let t = now();
        let made = self.write(set, Need::Bytes(new.target.len()), |w| {
            self.check_epoch(epoch)?;
            self.check_frozen(parent)?;
            self.check_note(w, (parent, name))?;
            let id = ObjectId::new(self.next_seq(shard)?, slot);
            let id = id.with(new.distribution.unwrap_or_default());
            if let Some(bytes) = w.insert(shard, &key, &Entry { id, kind }.encode())? {
                return Ok(Err(entry_in(bytes).ok_or(Errno::IO)?.0));
            }
            let mut inode = Inode {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: if is_dir { 2 } else { 1 },
                rdev: new.rdev,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            let tail_bytes = match kind {
                libc::S_IFDIR => {
                    inode.parent = parent.0;
                    inode.tail = tail::NAME;
                    name
                }
                libc::S_IFLNK => {
                    inode.size = new.target.len() as u64;
                    inode.tail = tail::TARGET;
                    new.target
                }
                _ => &[],
            };
            w.put(shard, &Key::inode(id), &inode.encode(tail_bytes))?;
            if counts {
                self.change_inode(w, parent, |p| p.nlink = p.nlink.wrapping_add(1))?;
            }
            self.open_new(opened, id, &inode)?;
            Ok(Ok(id))
        })?;
        if made.is_ok() {
            self.touch_dir(parent, t)?;
            if is_dir && !counts {
                self.add_dir_links(parent, 1)?;
            }
        }
        Ok(made)
    }

    /// The last step of a transaction that makes the file `id`.
    pub(crate) fn open_new(
        &self,
        opened: &mut Option<Opening<'_, '_>>,
        id: ObjectId,
        inode: &Inode,
    ) -> Result<()> {
        if let Some(opening) = opened {
            let live = self.live_of_new(id, inode)?;
            opening.held.set(live);
            opening.live = Some(live);
        }
        Ok(())
    }

    /// Makes an object without a name (O_TMPFILE), which its user removes unless it is
    /// linked before.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn create_unnamed(&self, parent: ObjectId, new: &NewObject<'_>) -> Result<ObjectId> {
        let name = format!("\0{}.{}", crate::process::pid(), now());
        let slot = crate::Slot::of_entry(parent, name.as_bytes());
        let slot = match self.elsewhere.as_deref() {
            Some(others) => others.slot_here(u64::from(slot.0)).ok_or(Errno::NOSPC)?,
            None => slot,
        };
        let shard = slot.shard(self.envs.len());
        let t = now();
        self.write(self.set(&[shard]), Need::Bytes(0), |w| {
            let id = ObjectId::new(self.next_seq(shard)?, slot);
            let inode = Inode {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            w.put(shard, &Key::inode(id), &inode.encode(&[]))?;
            w.put(shard, &Key::orphan(id), &[UNNAMED])?;
            Ok(id)
        })
    }

    /// The next sequence number of `shard`, whose lock is held.
    pub(crate) fn next_seq(&self, shard: usize) -> Result<u64> {
        let last = &self.control.shard(shard).last_seq;
        if last.load(Relaxed) == 0 {
            last.store(self.highest_seq(shard)?.max(1), Relaxed);
        }
        Ok(last.fetch_add(1, Relaxed) + 1)
    }

    /// The highest sequence number among the objects of `shard`.
    fn highest_seq(&self, shard: usize) -> Result<u64> {
        let mut highest = 0;
        self.envs[shard]
            .snapshot()?
            .scan(b"I", |key, _| match parse_key(key) {
                Some((b'I', id, _)) => {
                    // A part's number was given by its file's home.
                    if !id.is_part() {
                        highest = highest.max(id.seq());
                    }
                    true
                }
                _ => false,
            })?;
        Ok(highest)
    }

    /// Reads, changes and writes an inode inside a transaction.
    pub(crate) fn change_inode<T>(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        change: impl FnOnce(&mut Inode) -> T,
    ) -> Result<T> {
        let shard = self.shard_of(id);
        let key = Key::inode(id);
        let record = w.get(shard, &key)?.ok_or(Errno::NOENT)?;
        let (mut inode, tail) = Inode::decode(record).ok_or(Errno::IO)?;
        let result = change(&mut inode);
        let bytes = inode.encode(tail);
        w.put(shard, &key, &bytes)?;
        Ok(result)
    }

    /// Takes one name from the object `id` inside a transaction. With the last name gone,
    /// the object goes too (its extents are added to `freed`), or becomes an orphan while
    /// it is open.
    pub(crate) fn drop_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        t: i64,
        freed: &mut Vec<Extent>,
    ) -> Result<Dropped> {
        let shard = self.shard_of(id);
        w.begin_removing(shard);
        let (inode, extents) = inode_and_extents(w, shard, id)?.ok_or(Errno::NOENT)?;
        let last = inode.nlink <= 1;
        let open = last && !inode.is_dir() && self.live_mark_unlinked(id, false)?;
        if inode.is_dir() || last && !open {
            freed.extend_from_slice(extents.extents());
            self.remove_inode(w, id, &inode, freed)?;
            return Ok(Dropped::Gone);
        }
        self.change_inode(w, id, |i| {
            i.nlink = i.nlink.saturating_sub(1);
            i.ctime = t;
        })?;
        if open {
            w.put(shard, &Key::orphan(id), &[])?;
        }
        Ok(Dropped::Stays)
    }

    /// Removes all records of `id` inside a transaction. `freed` gets the extents; those of
    /// chunk 0 only with `first`.
    pub(crate) fn remove_records(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        first: bool,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        let shard = self.shard_of(id);
        if let Some((inode, extents)) = inode_and_extents(w, shard, id)? {
            if first {
                freed.extend_from_slice(extents.extents());
            }
            self.remove_inode(w, id, &inode, freed)?;
        }
        Ok(())
    }

    /// Removes the inode and all other records of `id`; `freed` gets the extents of chunk 1
    /// and later ones.
    fn remove_inode(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        inode: &Inode,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        w.del(self.shard_of(id), &Key::inode(id))?;
        if inode.is_file() {
            self.remove_chunks(w, id, 1, freed)?;
            if has_parts(id, inode) {
                self.leave_parts(w, id)?;
            }
        }
        if inode.has_attributes {
            self.remove_range(w, &Key::attribute(id, b""), |_| ())?;
        }
        Ok(())
    }

    /// Removes the extent records of chunk `from` and later ones.
    pub(crate) fn remove_chunks(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        from: u64,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        self.remove_range(w, &Key::chunk(id, from), |value| {
            if let Some(map) = ChunkMap::decode(value) {
                freed.extend_from_slice(map.extents());
            }
        })
    }

    /// Removes the records from `first` on that have its tag and object; `each` sees their
    /// values before.
    fn remove_range(
        &self,
        w: &mut Write<'_>,
        first: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let (tag, id, _) = parse_key(first).ok_or(Errno::INVAL)?;
        let shard = self.shard_of(id);
        let mut keys = Vec::new();
        w.scan(shard, first, |key, value| {
            let same = parse_key(key).is_some_and(|(t, of, _)| (t, of) == (tag, id));
            if same {
                each(value);
                keys.push(key.to_vec());
            }
            same
        })?;
        for key in keys {
            w.del(shard, &key)?;
        }
        Ok(())
    }

    /// Gives the object `id` one more name.
    ///
    /// # Errors
    /// EEXIST, ENOENT if it has no name left, EMLINK, ESTALE, ENOSPC.
    pub fn link(&self, id: ObjectId, parent: ObjectId, name: &[u8], epoch: u64) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::LINK, &(id, parent, name, epoch));
        }
        if let Some(home) = self.entry_away(parent, name) {
            return self.link_across(home, id, (parent, name), epoch);
        }
        let shard = self.shard_of_entry(parent, name);
        let key = Key::entry(parent, name);
        let t = now();
        self.retry_noted((parent, name), || {
            self.write(self.set(&[shard, self.shard_of(id)]), Need::Bytes(0), |w| {
                self.check_epoch(epoch)?;
                self.check_frozen(parent)?;
                self.check_note(w, (parent, name))?;
                if w.get(shard, &key)?.is_some() {
                    return Err(Errno::EXIST);
                }
                let kind = self.count_link(w, id, t)?;
                w.put(shard, &key, &Entry { id, kind }.encode())
            })
        })?;
        self.set_live_ctime(id, t)?;
        self.touch_dir(parent, t)
    }

    /// One name more for an object, in a transaction. Its kind.
    pub(crate) fn count_link(&self, w: &mut Write<'_>, id: ObjectId, t: i64) -> Result<u32> {
        // One that has lost its last name gets none again.
        let orphan = w.get(self.shard_of(id), &Key::orphan(id))? == Some(&[UNNAMED]);
        let (kind, nlink) = self.change_inode(w, id, |i| {
            i.nlink += 1;
            i.ctime = t;
            (i.kind(), i.nlink)
        })?;
        if nlink > LINK_MAX {
            return Err(Errno::MLINK);
        }
        if nlink == 1 && !orphan {
            return Err(Errno::NOENT);
        }
        if orphan {
            w.del(self.shard_of(id), &Key::orphan(id))?;
            self.live_mark_unlinked(id, true)?;
        }
        Ok(kind)
    }

    /// Removes the entry `name` of `parent`, which must not be a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, ESTALE.
    ///
    /// `known` is what a look-up at `epoch` found.
    pub fn unlink(
        &self,
        parent: ObjectId,
        name: &[u8],
        known: Option<Entry>,
        epoch: u64,
    ) -> Result<()> {
        if let Some(home) = self.entry_away(parent, name)
            && known.is_none_or(|e| e.kind != libc::S_IFLNK)
        {
            match self.ask(home, kind::UNLINK, &(parent, name, epoch, false)) {
                Err(Errno::REMOTE) => {}
                result => return result,
            }
        } else {
            match self.unlink_here(parent, name, known, epoch, false) {
                Err(Errno::REMOTE) => {}
                result => return result,
            }
        }
        let node = self.names_node().ok_or(Errno::NODEV)?;
        self.ask(node, kind::NAMES_UNLINK, &(parent, name, epoch))
    }

    /// As [`Store::unlink`], where the entry lies here. A symbolic link's only while `names` of
    /// directories and links may change.
    ///
    /// # Errors
    /// Those of unlink; EREMOTE if they mayn't.
    pub(crate) fn unlink_here(
        &self,
        parent: ObjectId,
        name: &[u8],
        mut known: Option<Entry>,
        epoch: u64,
        names: bool,
    ) -> Result<()> {
        loop {
            let entry = match known.take() {
                Some(entry) => entry,
                None => self.lookup(parent, name)?.ok_or(Errno::NOENT)?,
            };
            if entry.kind == libc::S_IFDIR {
                return Err(Errno::ISDIR);
            }
            if entry.kind == libc::S_IFLNK && self.elsewhere.is_some() && !names {
                return Err(Errno::REMOTE);
            }
            if self.object_away(entry.id).is_some() {
                if self.unlink_away((parent, name), entry, epoch)? {
                    return Ok(());
                }
                continue;
            }
            let shard = self.shard_of_entry(parent, name);
            let key = Key::entry(parent, name);
            let t = now();
            let mut freed = Vec::new();
            let _section = self.section()?;
            let done = self.write(
                self.set(&[shard, self.shard_of(entry.id)]),
                Need::Removal,
                |w| {
                    self.check_epoch(epoch)?;
                    self.check_note(w, (parent, name))?;
                    if w.get(shard, &key)? != Some(&entry.encode()) {
                        return Ok(None);
                    }
                    w.del(shard, &key)?;
                    if entry.kind == libc::S_IFLNK {
                        w.names_change();
                    }
                    if self.end_link(w, entry.id, (parent, name))? {
                        return Ok(Some(Dropped::Stays));
                    }
                    self.drop_link(w, entry.id, t, &mut freed).map(Some)
                },
            );
            let done = self.undo_mark(done, entry.id);
            if done == Err(Errno::AGAIN) {
                self.retry_noted((parent, name), || self.note_gone((parent, name)))?;
                continue;
            }
            match done? {
                None => continue,
                Some(dropped) => {
                    self.free_extents(freed);
                    if dropped == Dropped::Stays {
                        self.set_live_ctime(entry.id, t)?;
                    }
                    return self.touch_dir(parent, t);
                }
            }
        }
    }

    /// If a removal failed after its object was marked as unlinked, takes the mark away.
    pub(crate) fn undo_mark<T>(&self, result: Result<T>, id: ObjectId) -> Result<T> {
        match &result {
            Ok(_) => return result,
            // Nothing is marked before these are found.
            Err(Errno::STALE | Errno::AGAIN | Errno::REMOTE) => return result,
            Err(_) if self.object_away(id).is_some() => return result,
            Err(_) => {}
        }
        let shard = self.shard_of(id);
        // With the shard locked: another removal may just have marked it, and not be committed yet.
        self.write(self.object_set(id), Need::Removal, |w| {
            let record = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
            if record.is_some_and(|(inode, _)| inode.nlink > 0 && !inode.is_dir()) {
                self.live_mark_unlinked(id, true)?;
            }
            Ok(())
        })?;
        result
    }

    /// Removes the empty directory `name` of `parent`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, ESTALE.
    pub fn rmdir(&self, parent: ObjectId, name: &[u8], epoch: u64) -> Result<()> {
        if let Some(node) = self.names_node() {
            return self.ask(node, kind::NAMES_RMDIR, &(parent, name, epoch));
        }
        let shard = self.shard_of_entry(parent, name);
        let key = Key::entry(parent, name);
        let t = now();
        // All shards: nothing may appear in the directory while it goes.
        self.write(self.all_shards(), Need::Removal, |w| {
            self.check_epoch(epoch)?;
            let entry = w.get(shard, &key)?.ok_or(Errno::NOENT)?;
            let entry = Entry::decode(entry).ok_or(Errno::IO)?;
            if entry.kind != libc::S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            if !self.is_empty(entry.id)? {
                return Err(Errno::NOTEMPTY);
            }
            w.del(shard, &key)?;
            self.drop_link(w, entry.id, t, &mut Vec::new())?;
            self.change_inode(w, parent, |p| p.nlink -= 1)?;
            w.names_change();
            Ok(())
        })?;
        self.touch_dir(parent, t)
    }

    /// Whether the directory has no entries.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn is_empty(&self, dir: ObjectId) -> Result<bool> {
        let first = Key::entry(dir, b"");
        for env in &self.envs {
            let mut found = false;
            env.snapshot()?.scan(&first, |key, _| {
                found = key.starts_with(&first);
                false
            })?;
            if found {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the entry `from` to `to`, both (directory, name).
    ///
    /// # Errors
    /// As rename(2); ESTALE.
    pub fn rename(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        if self.elsewhere.is_some() {
            return self.rename_among(from, to, mode, epoch);
        }
        self.rename_here(from, to, mode, epoch)
    }

    /// As [`Store::rename`], where all that takes part lies here.
    pub(crate) fn rename_here(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        loop {
            let source = self.lookup(from.0, from.1)?.ok_or(Errno::NOENT)?;
            let target = self.lookup(to.0, to.1)?;
            match (mode, target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
                (RenameMode::Exchange, None) => return Err(Errno::NOENT),
                // Two names of one file, or the same name twice: nothing to do. Unless somebody has
                // just renamed it so.
                (_, Some(t)) if t.id == source.id => match self.lookup(from.0, from.1)? {
                    Some(still) if still == source => return Ok(()),
                    _ => continue,
                },
                _ => {}
            }
            let dirs =
                source.kind == libc::S_IFDIR || target.is_some_and(|t| t.kind == libc::S_IFDIR);
            if mode == RenameMode::Replace
                && let Some(t) = target
            {
                match (source.kind == libc::S_IFDIR, t.kind == libc::S_IFDIR) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    _ => {}
                }
            }
            let set = if dirs {
                // Loops and vanishing directories can't happen while all is locked.
                self.all_shards()
            } else {
                let mut set = self.set(&[
                    self.shard_of_entry(from.0, from.1),
                    self.shard_of_entry(to.0, to.1),
                    self.shard_of(source.id),
                ]);
                if let Some(t) = target {
                    set = set.with(self.shard_of(t.id));
                }
                set
            };
            let mut freed = Vec::new();
            let _section = self.section()?;
            let t = now();
            let done = self.write(set, Need::Bytes(0), |w| {
                self.check_epoch(epoch)?;
                self.check_alone(w, (from, source), (to, target))?;
                self.rename_locked(w, (from, source), (to, target), mode, t, &mut freed)
            });
            let done = match target {
                Some(target) if mode == RenameMode::Replace => self.undo_mark(done, target.id)?,
                _ => done?,
            };
            if !done {
                continue;
            }
            self.free_extents(freed);
            self.set_live_ctime(source.id, t)?;
            if let Some(target) = target {
                self.set_live_ctime(target.id, t)?;
            }
            self.touch_dir(from.0, t)?;
            return if from.0 == to.0 {
                Ok(())
            } else {
                self.touch_dir(to.0, t)
            };
        }
    }

    /// The body of rename. False if the entries have changed since they were looked up.
    fn rename_locked(
        &self,
        w: &mut Write<'_>,
        (from, source): ((ObjectId, &[u8]), Entry),
        (to, target): ((ObjectId, &[u8]), Option<Entry>),
        mode: RenameMode,
        t: i64,
        freed: &mut Vec<Extent>,
    ) -> Result<bool> {
        let (from_shard, from_key) = (
            self.shard_of_entry(from.0, from.1),
            Key::entry(from.0, from.1),
        );
        let (to_shard, to_key) = (self.shard_of_entry(to.0, to.1), Key::entry(to.0, to.1));
        if w.get(from_shard, &from_key)? != Some(&source.encode()[..])
            || w.get(to_shard, &to_key)? != target.map(|t| t.encode()).as_ref().map(|b| &b[..])
        {
            return Ok(false);
        }
        let moves_paths = |e: Entry| matches!(e.kind, libc::S_IFDIR | libc::S_IFLNK);
        if moves_paths(source) || target.is_some_and(moves_paths) {
            w.names_change();
        }
        let source_dir = source.kind == libc::S_IFDIR;
        let target_dir = target.is_some_and(|t| t.kind == libc::S_IFDIR);
        if source_dir && self.is_below(to.0, source.id)? {
            return Err(Errno::INVAL);
        }
        if mode == RenameMode::Exchange {
            let target = target.ok_or(Errno::NOENT)?;
            if target_dir && self.is_below(from.0, target.id)? {
                return Err(Errno::INVAL);
            }
            w.put(to_shard, &to_key, &source.encode())?;
            w.put(from_shard, &from_key, &target.encode())?;
            self.moved_to(w, source, to, t)?;
            self.moved_to(w, target, from, t)?;
        } else {
            if let Some(target) = target {
                if target_dir && !self.is_empty(target.id)? {
                    return Err(Errno::NOTEMPTY);
                }
                self.drop_link(w, target.id, t, freed)?;
            }
            w.put(to_shard, &to_key, &source.encode())?;
            w.del(from_shard, &from_key)?;
            self.moved_to(w, source, to, t)?;
        }
        // Link counts of the parents: each directory inside counts one.
        let replaced = target_dir && mode != RenameMode::Exchange;
        let back = target_dir && mode == RenameMode::Exchange;
        if from.0 == to.0 {
            if replaced {
                self.change_inode(w, to.0, |p| p.nlink -= 1)?;
            }
        } else if source_dir || target_dir {
            let (leaves, comes) = (u32::from(source_dir), u32::from(source_dir));
            self.change_inode(w, from.0, |p| p.nlink = p.nlink + u32::from(back) - leaves)?;
            let gone = u32::from(replaced || back);
            self.change_inode(w, to.0, |p| p.nlink = p.nlink + comes - gone)?;
        }
        Ok(true)
    }

    /// Notes a move in the moved object's inode.
    fn moved_to(
        &self,
        w: &mut Write<'_>,
        entry: Entry,
        to: (ObjectId, &[u8]),
        t: i64,
    ) -> Result<()> {
        let shard = self.shard_of(entry.id);
        if self.set_contains(w, shard) && entry.kind != libc::S_IFDIR {
            return self.change_inode(w, entry.id, |i| i.ctime = t);
        }
        let key = Key::inode(entry.id);
        let record = w.get(shard, &key)?.ok_or(Errno::NOENT)?;
        let (mut inode, _) = Inode::decode(record).ok_or(Errno::IO)?;
        inode.ctime = t;
        inode.parent = to.0.0;
        w.put(shard, &key, &inode.encode(to.1))
    }

    fn set_contains(&self, w: &Write<'_>, shard: usize) -> bool {
        w.set().0 >> shard & 1 == 1
    }

    /// Whether directory `dir` is `ancestor` or lies below it.
    fn is_below(&self, mut dir: ObjectId, ancestor: ObjectId) -> Result<bool> {
        loop {
            if dir == ancestor {
                return Ok(true);
            }
            if dir == ObjectId::ROOT {
                return Ok(false);
            }
            let snapshot = self.envs[self.shard_of(dir)].snapshot()?;
            let record = snapshot.get(&Key::inode(dir))?.ok_or(Errno::NOENT)?;
            dir = ObjectId(Inode::decode(record).ok_or(Errno::IO)?.0.parent);
        }
    }

    /// Path of the directory `dir` from the root of the pool: `/`, `/a/b`.
    ///
    /// # Errors
    /// ENOENT if it has been removed.
    pub fn path_of(&self, dir: ObjectId) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        while at != ObjectId::ROOT {
            let (inode, name) = self.inode_tail(at)?;
            if !inode.is_dir() || names.len() > crate::PATH_MAX {
                return Err(Errno::NOENT);
            }
            names.push(name);
            at = ObjectId(inode.parent);
        }
        if names.is_empty() {
            return Ok(b"/".to_vec());
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Changes attributes of `id`.
    ///
    /// # Errors
    /// ENOENT; ENOSPC.
    pub fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<()> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if let Some(node) = self.names_node()
            && rights
            && self.stat(id)?.is_dir()
        {
            return self.ask(node, kind::NAMES_SET_ATTR, &(id, *set));
        }
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::SET_ATTR, &(id, *set));
        }
        self.set_attr_here(id, set)
    }

    pub(crate) fn set_attr_here(&self, id: ObjectId, set: &SetAttr) -> Result<()> {
        let t = now();
        let shard = self.shard_of(id);
        let in_record = || {
            self.write(self.set(&[shard]), Need::Removal, |w| {
                if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
                    // Only a directory's matter, but what it is isn't known yet.
                    let record = w.get(shard, &Key::inode(id))?;
                    if record
                        .and_then(Inode::decode)
                        .is_some_and(|(i, _)| i.is_dir())
                    {
                        w.names_change();
                    }
                }
                self.change_inode(w, id, |i| {
                    if let Some(mode) = set.mode {
                        i.mode = i.mode & crate::S_IFMT | mode & !crate::S_IFMT;
                    }
                    i.uid = set.uid.unwrap_or(i.uid);
                    i.gid = set.gid.unwrap_or(i.gid);
                    i.mtime = set.mtime.unwrap_or(i.mtime);
                    i.atime = set.atime.unwrap_or(i.atime);
                    i.ctime = t;
                    i.is_dir()
                })
            })
        };
        // An open file's times are in the live table: both change under its lock.
        let open = self.with_live(id, |index| {
            let result = in_record();
            let live = self.live(index);
            if result.is_ok() && live.flags.load(Acquire) & live_flag::LOADED != 0 {
                if let Some(mtime) = set.mtime {
                    live.mtime.store(mtime, Release);
                }
                live.ctime.store(t, Release);
            }
            result
        })?;
        let is_dir = match open {
            Some(result) => result?,
            None => in_record()?,
        };
        if is_dir {
            self.set_dir_times(id, set.mtime, t)?;
        }
        Ok(())
    }

    pub(crate) fn set_live_ctime(&self, id: ObjectId, t: i64) -> Result<()> {
        if self.live_probe(id)?.is_some() {
            self.with_live(id, |index| self.live(index).ctime.store(t, Release))?;
        }
        Ok(())
    }

    /// Shards that hold anything of directory `dir`'s entries: all of them.
    pub(crate) fn shard_count(&self) -> usize {
        self.envs.len()
    }

    /// The set of shards of a transaction over one object.
    pub(crate) fn object_set(&self, id: ObjectId) -> ShardSet {
        self.set(&[self.shard_of(id)])
    }
}
