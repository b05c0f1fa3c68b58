//! Ephemeral files: removed, with all their names on whatever nodes, when the process that created
//! them has ended.
//!
//! The home keeps a record of the maker for each such file. Its keeper asks the makers' nodes which
//! of them run, and removes the files of the others. A node that can't be asked counts all as
//! running. A file with a busy name is left for the next turn.

use crate::Cluster;
use crate::peers::messages::{List, decode};
use crate::peers::requests::request;
use forebay_store::controls::goes_with_maker;
use forebay_store::ephemeral::{AT_ONCE, Followed, Maker, TRIES};
use forebay_store::index::known_in;
use forebay_store::names::Named;
use forebay_store::record::{Inode, Key, parse_key};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};

impl<'a> Cluster<'a> {
    /// Removes files of this node whose makers have ended, wherever those were.
    ///
    /// # Errors
    /// EHOSTDOWN: a node can't be asked, its files are left; EIO. The others have gone all the
    /// same.
    pub fn follow_makers(&self) -> Result<Followed> {
        let me = self.names().node_of_several().unwrap_or(0);
        let mut done = Followed::default();
        let mut run: HashMap<Maker, bool> = HashMap::new();
        let mut notes = Vec::new();
        for shard in 0..self.names().shard_count() {
            self.snapshot(shard)?.scan(b"M", |key, value| {
                let Some((b'M', id, _)) = parse_key(key) else {
                    return false;
                };
                // What isn't one is for fsck.
                let Some(maker) = decode::<Maker>(value) else {
                    return true;
                };
                match maker.node == me && *run.entry(maker).or_insert_with(|| maker.runs()) {
                    true => done.left += 1,
                    false => notes.push((id, maker)),
                }
                true
            })?;
        }
        let mut result = self.ask_for_makers(me, &notes, &mut run);
        for (id, maker) in notes {
            if run[&maker] {
                done.left += 1;
                continue;
            }
            match self.nonblocking().remove_made(id) {
                Ok(true) => done.gone += 1,
                // Somebody is at one of its names.
                Ok(false) | Err(Errno::AGAIN) => done.left += 1,
                Err(e) => {
                    done.left += 1;
                    result = Err(e);
                }
            }
        }
        result.map(|()| done)
    }

    /// Asks the other nodes whether their makers run. What nobody can tell counts as running.
    fn ask_for_makers(
        &self,
        me: u32,
        notes: &[(ObjectId, Maker)],
        run: &mut HashMap<Maker, bool>,
    ) -> Result<()> {
        let mut away: BTreeMap<u32, Vec<Maker>> = BTreeMap::new();
        for (_, maker) in notes.iter().filter(|(_, maker)| maker.node != me) {
            if run.insert(*maker, true).is_none() {
                away.entry(maker.node).or_default().push(*maker);
            }
        }
        let mut result = Ok(());
        for (node, makers) in away {
            for makers in makers.chunks(AT_ONCE) {
                let question = List(makers.to_vec());
                match self.ask(NodeId(node), request::MAKERS, &question) {
                    Ok(List(answers)) if answers.len() == makers.len() => {
                        run.extend(makers.iter().copied().zip(answers));
                    }
                    Ok(_) => result = Err(Errno::PROTO),
                    Err(e) => {
                        result = Err(e);
                        break;
                    }
                }
            }
        }
        result
    }

    /// Takes all names from a file whose maker has ended. Whether it is gone.
    fn remove_made(&self, id: ObjectId) -> Result<bool> {
        let shard = self.shard_of(id);
        let mut names = Vec::new();
        {
            let snapshot = self.snapshot(shard)?;
            let inode = snapshot.get(&Key::inode(id))?.and_then(Inode::decode);
            if !inode.is_some_and(|(inode, _)| goes_with_maker(inode.controls)) {
                drop(snapshot);
                return self.declared().forget_maker(id).map(|()| true);
            }
            snapshot.scan(&Key::known_names(id), |key, _| match parse_key(key) {
                Some((b'P', of, rest)) if of == id => {
                    names.extend(known_in(rest));
                    true
                }
                _ => false,
            })?;
        }
        for (dir, name) in &names {
            if self.unlink_from(id, (*dir, name))? {
                self.watches().tell_self(id, libc::S_IFREG, libc::IN_ATTRIB);
                self.watches().tell_if_gone(id, libc::S_IFREG);
                self.watches()
                    .tell_dir(*dir, name, libc::S_IFREG, libc::IN_DELETE);
            }
        }
        let snapshot = self.snapshot(shard)?;
        Ok(snapshot.get(&Key::inode(id))?.is_none())
    }

    /// Removes an entry while it leads to the file `id`. Whether it did.
    fn unlink_from(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        for _ in 0..TRIES {
            let epoch = self.names().names_epoch();
            let Some(entry) = self.lookup(name.0, name.1)?.filter(|e| e.id == id) else {
                return Ok(false);
            };
            let removed = match self.entry_away(name.0, name.1) {
                Some(home) => self.ask(home, request::UNLINK_FROM, &(name.0, name.1, entry, epoch)),
                None => self.unlink_entry(name, entry, epoch),
            };
            match removed {
                Ok(false) | Err(Errno::STALE) => {}
                removed => return removed,
            }
        }
        Err(Errno::AGAIN)
    }
}
