//! Making objects and their names.

use super::*;

impl Store {
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
        self.make_with_room(parent, name, new, epoch, &mut None)
    }

    /// As [`Store::create_object`], but on this node or where the entry lies, wherever is room: for
    /// who serves another node.
    pub(crate) fn create_object_near(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        self.make(parent, name, new, epoch, &mut None)
    }

    /// As [`Store::create_open`], in the same way.
    pub(crate) fn create_open_near(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<(ObjectId, u32, Held<'_>), Entry>> {
        self.create_opened(new, |opened| self.make(parent, name, new, epoch, opened))
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
        self.create_opened(new, |opened| {
            self.make_with_room(parent, name, new, epoch, opened)
        })
    }

    fn create_opened(
        &self,
        new: &NewObject<'_>,
        make: impl FnOnce(&mut Option<Opening<'_, '_>>) -> Result<std::result::Result<ObjectId, Entry>>,
    ) -> Result<std::result::Result<(ObjectId, u32, Held<'_>), Entry>> {
        let held = self.place()?;
        let _section = self.section()?;
        let mut opened = Some(Opening {
            held: &held,
            live: None,
            away: None,
        });
        let made = make(&mut opened);
        let (live, opened) = opened.map_or((None, None), |o| (o.live, o.away));
        match (made, live) {
            (Ok(Ok(id)), Some(live)) => Ok(Ok((id, live, held))),
            (Ok(Ok(id)), None) => {
                // Made on another node.
                drop(held);
                let mut away = Away {
                    opened,
                    ..Away::default()
                };
                let acquired = self.live_acquire_opened(id, &mut away);
                if let Ok((live, _)) = &acquired {
                    let inode = Inode {
                        controls: new.controls,
                        ..Inode::default()
                    };
                    self.note_controls(*live, &inode);
                }
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

    /// Whether this node has so little room that files are made on others, if those have more: less
    /// than a 32nd of its media, at most 16 MiB.
    fn is_nearly_full(&self) -> bool {
        let (mut capacity, mut free) = (0, 0);
        for medium in &self.media {
            let usage = medium.usage();
            capacity += usage.capacity;
            free += usage.capacity.saturating_sub(usage.used);
        }
        free < (capacity / 32).min(16 << 20)
    }

    /// As [`Store::make`]; a file that its maker's node has no room for lies on one that has.
    fn make_with_room(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let local = new.mode & crate::S_IFMT == libc::S_IFREG
            && self.elsewhere.is_some()
            && new.maker.is_none()
            && self.distribution_of(parent, new) == Distribution::Local
            && !Store::is_in_view(parent, name);
        if !local {
            return self.make(parent, name, new, epoch, opened);
        }
        if !self.is_nearly_full() {
            match self.make(parent, name, new, epoch, opened) {
                // Of the records.
                Err(Errno::NOSPC) => {}
                made => return made,
            }
        }
        let hash = u64::from(crate::Slot::of_entry(parent, name).0);
        for node in self.roomy_nodes(hash).into_iter().take(8) {
            if self.other_nodes()?.me() == node {
                break;
            }
            match self.ask_to_make(
                (node, kind::CREATE_THERE),
                (parent, name),
                new,
                epoch,
                opened,
            ) {
                Err(Errno::NOSPC | Errno::HOSTDOWN) => {}
                made => return made,
            }
        }
        self.make(parent, name, new, epoch, opened)
    }

    /// Has another node make something. It is open there from the start if it is `opened` and a
    /// file.
    fn ask_to_make(
        &self,
        (node, how): (crate::NodeId, u16),
        (parent, name): (ObjectId, &[u8]),
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let what = (new.mode, new.uid, new.gid, new.rdev, new.target);
        let is_file = new.mode & crate::S_IFMT == libc::S_IFREG;
        let number = (opened.is_some() && is_file).then(new_use);
        let bits = self.distribution_of(parent, new).bits();
        let question = (
            (parent, name),
            what,
            bits,
            new.controls,
            epoch,
            number,
            new.maker,
        );
        let asked = Instant::now();
        let made: std::result::Result<ObjectId, Entry> = self.ask(node, how, &question)?;
        if let (Ok(id), Some(number), Some(opening)) = (&made, number, opened) {
            let (home, id) = (node, *id);
            opening.away = Some(Opened {
                home,
                id,
                number,
                asked,
            });
        }
        Ok(made)
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
        if Store::is_in_view(parent, name) {
            return self.lookup(parent, name)?.map(Err).ok_or(Errno::ROFS);
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
            return self.ask_to_make((home, kind::CREATE), (parent, name), new, epoch, opened);
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
                controls: new.controls,
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
            self.note_maker(w, id, new, Some((parent, name)))?;
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
        self.refuse_view(parent, b"")?;
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
                controls: new.controls,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            w.put(shard, &Key::inode(id), &inode.encode(&[]))?;
            self.note_maker(w, id, new, None)?;
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

    /// Gives the object `id` one more name.
    ///
    /// # Errors
    /// EEXIST, ENOENT if it has no name left, EMLINK, ESTALE, ENOSPC.
    pub fn link(&self, id: ObjectId, parent: ObjectId, name: &[u8], epoch: u64) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.refuse_view(parent, name)?;
        if id.is_view() {
            return Err(Errno::XDEV);
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
        let nameless = self.retry_noted((parent, name), || {
            self.write(self.set(&[shard, self.shard_of(id)]), Need::Bytes(0), |w| {
                self.check_epoch(epoch)?;
                self.check_frozen(parent)?;
                self.check_note(w, (parent, name))?;
                if w.get(shard, &key)?.is_some() {
                    return Err(Errno::EXIST);
                }
                let (kind, nameless) = self.count_link(w, id, t)?;
                self.names_in_index(w, id, None, Some((parent, name)))?;
                w.put(shard, &key, &Entry { id, kind }.encode())?;
                Ok(nameless)
            })
        })?;
        if nameless {
            self.unmark_named(id)?;
        }
        self.set_live_ctime(id, t)?;
        self.touch_dir(parent, t)
    }

    /// One name more for an object, in a transaction. Its kind, and whether it is the first one of an object without a
    /// name: then [`Store::unmark_named`] is due behind the transaction. (Before its end, a death would leave an object
    /// without name or mark.)
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
