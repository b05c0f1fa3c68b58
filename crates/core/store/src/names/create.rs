//! Creates objects and their names.

use super::*;
use crate::NAME_MAX;
use crate::views::Names;

impl<'s> Names<'s> {
    /// Creates an object and its entry, both on this node, at time `t`. With `counts`, also adds
    /// one to the link count of the directory, which then lies on this node. Returns the object's
    /// id, or the existing entry.
    ///
    /// # Errors
    /// ESTALE if names changed since `epoch`; EAGAIN: another operation on the entry isn't
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
        let at = self.store.entry_ref((parent, name));
        let mut set = at.set();
        if counts {
            set = set.with(self.store.files.shard_of(parent));
        }
        forebay_trace::event_of!(STORE_CREATE_ENTER, name, parent.0);
        assert!(
            (1..=NAME_MAX).contains(&name.len()),
            "a name has {} bytes",
            name.len()
        );
        let made = self
            .store
            .transact(set, Need::Bytes(new.target.len()), |w| {
                self.store.names_epoch().check(epoch)?;
                self.store.names_epoch().check_frozen(parent)?;
                self.store.intents().check_note(w, (parent, name))?;
                let id = ObjectId::new(self.next_seq(at.shard())?, slot);
                let id = id.with(new.distribution.unwrap_or_default());
                assert!(
                    id.seq() != 0 && id.slot() == slot,
                    "a new object lies in its name's slot"
                );
                let mut inode = new.inode(t);
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
                if let Some(there) = w.create(at, Entry { id, kind }, &inode, tail_bytes)? {
                    return Ok(Err(there.entry));
                }
                if new.stub.is_none() {
                    w.charge_file()?;
                }
                self.store
                    .declared()
                    .record_creator(w, id, new, Some((parent, name)))?;
                if counts {
                    w.change_inode(parent, |p| p.nlink = p.nlink.wrapping_add(1))?;
                }
                self.open_new(opened, id, &inode)?;
                Ok(Ok(id))
            });
        forebay_trace::event!(STORE_CREATE_EXIT, forebay_trace::points::outcome(&made));
        made
    }

    /// Opens a new file as the last step of the transaction that creates it, if `opened` is given.
    pub fn open_new(
        &self,
        opened: &mut Option<Opening<'_, '_>>,
        id: ObjectId,
        inode: &Inode,
    ) -> Result<()> {
        if let Some(opening) = opened {
            let live = self.store.objects().live_of_new(id, inode)?;
            opening.held.set(live);
            opening.live = Some(live);
        }
        Ok(())
    }

    /// Creates an object without a name in `slot`. The slot belongs to this node.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT.
    pub fn create_unnamed_here(&self, slot: crate::Slot, new: &NewObject<'_>) -> Result<ObjectId> {
        let shard = slot.shard(self.store.files.count());
        let t = now();
        self.store
            .transact(ShardSet::of(&[shard]), Need::Bytes(0), |w| {
                let id = ObjectId::new(self.next_seq(shard)?, slot);
                let inode = Inode {
                    nlink: 0,
                    ..new.inode(t)
                };
                if new.stub.is_none() {
                    w.charge_file()?;
                }
                w.set_inode(id, &inode, &[])?;
                self.store.declared().record_creator(w, id, new, None)?;
                w.attach(id, &Key::orphan(id), &[UNNAMED])?;
                Ok(id)
            })
    }

    /// Returns the next sequence number of `shard`, whose lock the caller holds.
    pub fn next_seq(&self, shard: usize) -> Result<u64> {
        let last = &self.store.control.shard(shard).last_seq;
        if last.load(Relaxed) == 0 {
            last.store(self.highest_seq(shard)?.max(1), Relaxed);
        }
        debug_assert!(
            !self.store.control.shard(shard).lock.is_free(),
            "a shard that gives a number is locked"
        );
        let next = last.fetch_add(1, Relaxed) + 1;
        if next >= ObjectId::SEQ_END {
            return Err(Errno::NOSPC);
        }
        Ok(next)
    }

    /// The highest sequence number among the objects of `shard`.
    fn highest_seq(&self, shard: usize) -> Result<u64> {
        let mut highest = 0;
        self.store
            .committed(shard)?
            .each_inode(ObjectId(0), |id, _| {
                // A part has its file's sequence number, assigned by the file's home.
                if !id.is_part() {
                    highest = highest.max(id.seq());
                }
                true
            })?;
        Ok(highest)
    }

    /// Adds a name, with an entry on this node, for an object of this node, at time `t`. True if it
    /// is the first name of an object without one: then the caller must call
    /// [`Names::unmark_named`].
    ///
    /// # Errors
    /// EEXIST; ENOENT if the object has no name left; EMLINK; ESTALE; ENOSPC; EAGAIN: a change of
    /// the entry has begun and isn't finished.
    pub fn link_here(
        &self,
        id: ObjectId,
        (parent, name): Named<'_>,
        (epoch, t): (u64, i64),
    ) -> Result<bool> {
        let at = self.store.entry_ref((parent, name));
        let set = at.set().with(self.store.files.shard_of(id));
        self.store.transact(set, Need::Bytes(0), |w| {
            self.store.names_epoch().check(epoch)?;
            self.store.names_epoch().check_frozen(parent)?;
            self.store.intents().check_note(w, (parent, name))?;
            if w.look_up(at)?.is_some() {
                return Err(Errno::EXIST);
            }
            let (kind, nameless) = self.count_link(w, id, t)?;
            self.store
                .index()
                .names_in_index(w, id, None, Some((parent, name)))?;
            w.set_entry(at, Entry { id, kind })?;
            Ok(nameless)
        })
    }

    /// Counts one more name of an object, in a transaction. Returns the object's kind, and whether
    /// this is the first name of an object without one: then the caller must call
    /// [`Names::unmark_named`] after the transaction. (If the mark were removed earlier, a death
    /// could leave the object without name or mark.)
    pub(crate) fn count_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        t: i64,
    ) -> Result<(u32, bool)> {
        // An object that has lost its last name gets no other. One that never had a name may get
        // one.
        let orphan = w.attached(id, &Key::orphan(id))? == Some(&[UNNAMED]);
        let (kind, nlink) = w.change_inode(id, |i| {
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
            w.detach(id, &Key::orphan(id))?;
        }
        Ok((kind, orphan))
    }
}
