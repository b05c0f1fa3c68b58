//! Ephemeral files: removed, with all their names on any nodes, when the process that created them
//! has ended.
//!
//! The home keeps a record of the creator for each such file. The home's keeper asks the creators'
//! nodes which creators still run, and removes the files of the ended ones. If a node can't be
//! reached, its creators count as running. A file whose name is being changed is left for the
//! keeper's next turn.

use crate::peers::messages::{List, decode};
use crate::peers::requests::request;
use crate::views::Declarations;
use forebay_store::controls::is_ephemeral;
use forebay_store::ephemeral::{Creator, Followed, MAX_CREATORS_PER_REQUEST, TRIES};
use forebay_store::index::known_in;
use forebay_store::names::Named;
use forebay_store::record::{Key, parse_key};
use forebay_store::records::{ReadRecords, Records};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};

impl<'a> Declarations<'a> {
    /// Removes files of this node whose creators, on any node, have ended.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached: files whose creators ran on it are left, the others
    /// are removed; EIO.
    pub fn follow_creators(&self) -> Result<Followed> {
        let me = self.store().peers().node_of_several().unwrap_or(0);
        let mut done = Followed::default();
        let mut run: HashMap<Creator, bool> = HashMap::new();
        let mut notes = Vec::new();
        for shard in 0..self.store().files.count() {
            self.store()
                .records(shard)?
                .each_attached(b"M", |key, value| {
                    let Some((b'M', id, _)) = parse_key(key) else {
                        return false;
                    };
                    // Fsck handles values of other forms.
                    let Some(creator) = decode::<Creator>(value) else {
                        return true;
                    };
                    if creator.node == me && *run.entry(creator).or_insert_with(|| creator.runs()) {
                        done.left += 1
                    } else {
                        notes.push((id, creator))
                    }
                    true
                })?;
        }
        let mut result = self.ask_for_creators(me, &notes, &mut run);
        for (id, creator) in notes {
            if run[&creator] {
                done.left += 1;
                continue;
            }
            match self.cluster.nonblocking().declarations().remove_made(id) {
                Ok(true) => done.gone += 1,
                // An operation is in progress on one of the file's names.
                Ok(false) | Err(Errno::AGAIN) => done.left += 1,
                Err(e) => {
                    done.left += 1;
                    result = Err(e);
                }
            }
        }
        result.map(|()| done)
    }

    /// Asks the other nodes whether the creators on them still run. A process whose state isn't
    /// known counts as running.
    fn ask_for_creators(
        &self,
        me: u32,
        notes: &[(ObjectId, Creator)],
        run: &mut HashMap<Creator, bool>,
    ) -> Result<()> {
        let mut remote: BTreeMap<u32, Vec<Creator>> = BTreeMap::new();
        for (_, creator) in notes.iter().filter(|(_, creator)| creator.node != me) {
            if run.insert(*creator, true).is_none() {
                remote.entry(creator.node).or_default().push(*creator);
            }
        }
        let mut result = Ok(());
        for (node, creators) in remote {
            for creators in creators.chunks(MAX_CREATORS_PER_REQUEST) {
                let arguments = List(creators.to_vec());
                match self
                    .cluster
                    .ask(NodeId(node), request::CREATORS, &arguments)
                {
                    Ok(List(answers)) if answers.len() == creators.len() => {
                        run.extend(creators.iter().copied().zip(answers));
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

    /// Removes all names of a file whose creator has ended. Returns whether the file is removed.
    fn remove_made(&self, id: ObjectId) -> Result<bool> {
        let mut names = Vec::new();
        {
            let records = self.store().records_of(id)?;
            let inode = records.inode(id)?;
            if !inode.is_some_and(|(inode, _)| is_ephemeral(inode.controls)) {
                drop(records);
                return self.store().declared().forget_creator(id).map(|()| true);
            }
            records.each_attached(&Key::known_names(id), |key, _| match parse_key(key) {
                Some((b'P', of, rest)) if of == id => {
                    names.extend(known_in(rest));
                    true
                }
                _ => false,
            })?;
        }
        for (dir, name) in &names {
            if self.unlink_from(id, (*dir, name))? {
                self.store()
                    .watches()
                    .notify_self(id, libc::S_IFREG, libc::IN_ATTRIB);
                self.store().watches().notify_if_gone(id, libc::S_IFREG);
                self.store()
                    .watches()
                    .notify_dir(*dir, name, libc::S_IFREG, libc::IN_DELETE);
            }
        }
        Ok(!self.store().records_of(id)?.exists(id)?)
    }

    /// Removes the entry `name` if it refers to the file `id`. Returns whether an entry was
    /// removed.
    fn unlink_from(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        for _ in 0..TRIES {
            let epoch = self.store().names_epoch().now();
            let Some(entry) = self
                .cluster
                .namespace()
                .lookup(name.0, name.1)?
                .filter(|e| e.id == id)
            else {
                return Ok(false);
            };
            let removed = match self.cluster.remote_home_of_entry(name.0, name.1) {
                Some(home) => {
                    self.cluster
                        .ask(home, request::UNLINK_FROM, &(name.0, name.1, entry, epoch))
                }
                None => self.cluster.namespace().unlink_entry(name, entry, epoch),
            };
            match removed {
                Ok(false) | Err(Errno::STALE) => {}
                removed => return removed,
            }
        }
        Err(Errno::AGAIN)
    }
}
