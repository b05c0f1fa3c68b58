//! Making objects and their names.

use super::*;
use crate::views::Names;

impl<'s> Names<'s> {
    /// Makes an object and its entry, both on this node, at time `t`. With `counts`, the directory,
    /// which is of this node, counts one more in it. Its id; or the entry that is there already.
    ///
    /// # Errors
    /// ESTALE if names changed since `epoch`; EAGAIN: something has begun with the entry that isn't
    /// finished; ENOSPC; EDQUOT.
    pub fn create_here(
        &self,
        (parent, name): Named<'_>,
        new: &NewObject<'_>,
        (epoch, t): (u64, i64),
        counts: bool,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let kind = new.mode & crate::S_IFMT;
        let slot = crate::Slot::of_entry(parent, name);
        let shard = self.shard_of_entry(parent, name);
        let key = Key::entry(parent, name);
        let is_dir = kind == libc::S_IFDIR;
        let mut set = self.set(&[shard]);
        if counts {
            set = set.with(self.shard_of(parent));
        }
        forebay_trace::event_of!(STORE_CREATE_ENTER, name, parent.0);
        let made = self.write(set, Need::Bytes(new.target.len()), |w| {
            self.check_epoch(epoch)?;
            self.intents().check_frozen(parent)?;
            self.intents().check_note(w, (parent, name))?;
            let id = ObjectId::new(self.next_seq(shard)?, slot);
            let id = id.with(new.distribution.unwrap_or_default());
            if let Some(bytes) = w.insert(shard, &key, &Entry { id, kind }.encode())? {
                return Ok(Err(EntryRecord::decode(bytes).ok_or(Errno::IO)?.entry));
            }
            let mut inode = Inode {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: if is_dir { 2 } else { 1 },
                rdev: new.rdev,
                controls: new.controls,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            match &new.stub {
                Some(stub) => stub.apply(&mut inode),
                None => w.charge_file()?,
            }
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
            self.declared()
                .note_maker(w, id, new, Some((parent, name)))?;
            if counts {
                self.change_inode(w, parent, |p| p.nlink = p.nlink.wrapping_add(1))?;
            }
            self.open_new(opened, id, &inode)?;
            Ok(Ok(id))
        });
        forebay_trace::event!(STORE_CREATE_EXIT, forebay_trace::points::outcome(&made));
        made
    }

    /// The last step of a transaction that makes the file `id`.
    pub fn open_new(
        &self,
        opened: &mut Option<Opening<'_, '_>>,
        id: ObjectId,
        inode: &Inode,
    ) -> Result<()> {
        if let Some(opening) = opened {
            let live = self.objects().live_of_new(id, inode)?;
            opening.held.set(live);
            opening.live = Some(live);
        }
        Ok(())
    }

    /// Makes an object without a name in `slot`, which is of this node.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT.
    pub fn create_unnamed_here(&self, slot: crate::Slot, new: &NewObject<'_>) -> Result<ObjectId> {
        let shard = slot.shard(self.envs.len());
        let t = now();
        self.write(self.set(&[shard]), Need::Bytes(0), |w| {
            let id = ObjectId::new(self.next_seq(shard)?, slot);
            let mut inode = Inode {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                controls: new.controls,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            match &new.stub {
                Some(stub) => stub.apply(&mut inode),
                None => w.charge_file()?,
            }
            w.put(shard, &Key::inode(id), &inode.encode(&[]))?;
            self.declared().note_maker(w, id, new, None)?;
            w.put(shard, &Key::orphan(id), &[UNNAMED])?;
            Ok(id)
        })
    }

    /// The next sequence number of `shard`, whose lock is held.
    pub fn next_seq(&self, shard: usize) -> Result<u64> {
        let last = &self.control.shard(shard).last_seq;
        if last.load(Relaxed) == 0 {
            last.store(self.highest_seq(shard)?.max(1), Relaxed);
        }
        let next = last.fetch_add(1, Relaxed) + 1;
        if next >= ObjectId::SEQ_END {
            return Err(Errno::NOSPC);
        }
        Ok(next)
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

    /// Gives an object of this node one more name here, at time `t`. True if it is the first one of an
    /// object without a name: then [`Store::unmark_named`] is due.
    ///
    /// # Errors
    /// EEXIST, ENOENT if it has no name left, EMLINK, ESTALE, ENOSPC; EAGAIN: something has begun
    /// with the entry that isn't finished.
    pub fn link_here(
        &self,
        id: ObjectId,
        (parent, name): Named<'_>,
        (epoch, t): (u64, i64),
    ) -> Result<bool> {
        let shard = self.shard_of_entry(parent, name);
        let key = Key::entry(parent, name);
        let set = self.set(&[shard, self.shard_of(id)]);
        self.write(set, Need::Bytes(0), |w| {
            self.check_epoch(epoch)?;
            self.intents().check_frozen(parent)?;
            self.intents().check_note(w, (parent, name))?;
            if w.get(shard, &key)?.is_some() {
                return Err(Errno::EXIST);
            }
            let (kind, nameless) = self.count_link(w, id, t)?;
            self.index()
                .names_in_index(w, id, None, Some((parent, name)))?;
            w.put(shard, &key, &Entry { id, kind }.encode())?;
            Ok(nameless)
        })
    }

    /// One name more for an object, in a transaction. Its kind, and whether it is the first one of
    /// an object without a name: then [`Store::unmark_named`] is due behind the transaction.
    /// (Before its end, a death would leave an object without name or mark.)
    pub(crate) fn count_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        t: i64,
    ) -> Result<(u32, bool)> {
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
        }
        Ok((kind, orphan))
    }
}
