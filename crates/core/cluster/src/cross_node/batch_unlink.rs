//! Removing the names of many files at once, in few transactions and requests.
//!
//! The steps are those of one removal (`unlink_remote`), in the same order, so that the death of a
//! process has the same consequences:
//!
//! 1. At their homes, the entries are marked, and intents record that their objects are to lose the
//!    names: one transaction for many.
//! 2. Each home of these objects gets one request that lists the names they have lost.
//! 3. Entries and intents are removed.
//!
//! A name that can't be removed this way (EAGAIN, an entry that has changed) is left to the caller.

use super::batch_create::{MAX_BATCH_FILES, node_requests, of_each};
use super::{CrossNode, Named, is_unclear};
use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::views::Namespace;
use forebay_store::names::Note;
use forebay_store::record::Entry;
use forebay_store::records::{ChangeRecords, Need, Records, ShardSet};
use forebay_store::shards::Write;
use forebay_store::{NAME_MAX, NodeId, ObjectId, now};
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;

/// Number of record pages that marking one entry and recording its intent may need.
const PAGES: usize = 3;

impl<'a> Namespace<'a> {
    /// Looks these names up in `parent`.
    ///
    /// # Errors
    /// For each name, those of [`Namespace::lookup`].
    pub fn lookup_all(&self, parent: ObjectId, names: &[&[u8]]) -> Vec<Result<Option<Entry>>> {
        let mut results = vec![Ok(None); names.len()];
        let mut by_home: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (i, name) in names.iter().enumerate() {
            match self.cluster.remote_home_of_entry(parent, name) {
                Some(home) if name.len() <= NAME_MAX => by_home.entry(home).or_default().push(i),
                _ => results[i] = self.lookup(parent, name),
            }
        }
        let asked = node_requests(by_home, |part| {
            let names = part.iter().map(|&i| names[i].to_vec());
            request::LOOKUP_ALL.encode(&(parent, List(names.collect::<Vec<_>>())))
        });
        let answers = self
            .cluster
            .cross_node()
            .ask_together(request::LOOKUP_ALL, &asked);
        for (asked, answer) in asked.iter().zip(answers) {
            for (&i, answer_of_one) in asked.files.iter().zip(of_each(answer, asked)) {
                results[i] = match answer_of_one {
                    // The entry is being renamed, or the object's home has changed: a lookup of
                    // this name alone waits for the rename, or asks the new home.
                    Err(e) if !is_unclear(e) => self.lookup(parent, names[i]),
                    answer_of_one => answer_of_one,
                };
            }
        }
        results
    }

    /// Removes these entries of `parent`, all of files, each separately. Returns for each whether
    /// the name had that entry, and is removed now.
    ///
    /// # Errors
    /// For each: EAGAIN, ESTALE or EREMCHG, if the name must be removed by a separate operation;
    /// EHOSTDOWN and others, if the outcome isn't known.
    pub fn unlink_files(
        &self,
        parent: ObjectId,
        files: &[(&[u8], Entry)],
        epoch: u64,
    ) -> Vec<Result<bool>> {
        let mut results = vec![Ok(false); files.len()];
        let mut here = Vec::new();
        let mut by_home: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (i, (name, _)) in files.iter().enumerate() {
            match (
                self.store().index().refuse_view(parent, name),
                self.cluster.remote_home_of_entry(parent, name),
            ) {
                (Err(e), _) => results[i] = Err(e),
                (_, Some(home)) => by_home.entry(home).or_default().push(i),
                (_, None) => here.push(i),
            }
        }
        let own = |part: &[usize]| -> Vec<(Vec<u8>, Entry)> {
            let own = part.iter().map(|&i| (files[i].0.to_vec(), files[i].1));
            own.collect()
        };
        for (&i, removed) in here.iter().zip(self.cluster.cross_node().remove_all(
            parent,
            &own(&here),
            epoch,
        )) {
            results[i] = removed;
        }
        let asked = node_requests(by_home, |part| {
            request::REMOVE_ALL.encode(&(parent, List(own(part)), epoch))
        });
        let answers = self
            .cluster
            .cross_node()
            .ask_together(request::REMOVE_ALL, &asked);
        for (asked, answer) in asked.iter().zip(answers) {
            for (&i, answer_of_one) in asked.files.iter().zip(of_each(answer, asked)) {
                results[i] = answer_of_one;
            }
        }
        results
    }
}

impl<'a> CrossNode<'a> {
    /// Does what [`Namespace::unlink_files`] does for entries of this node.
    pub(crate) fn remove_all(
        &self,
        parent: ObjectId,
        entries: &[(Vec<u8>, Entry)],
        epoch: u64,
    ) -> Vec<Result<bool>> {
        let t = now();
        let mut results = vec![Err(Errno::INVAL); entries.len()];
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, (name, entry)) in entries.iter().enumerate() {
            if entry.kind != libc::S_IFREG {
                continue;
            }
            match self.cluster.remote_home(entry.id) {
                Some(_) => by_shard
                    .entry(self.store().files.shard_of_entry(parent, name))
                    .or_default()
                    .push(i),
                None => {
                    results[i] =
                        self.store()
                            .names()
                            .remove_beside((parent, name), *entry, epoch, t)
                }
            }
        }
        let mut noted = Vec::new();
        for (shard, all) in by_shard {
            for part in all.chunks(MAX_BATCH_FILES) {
                let done = self
                    .store()
                    .transact(ShardSet::of(&[shard]), Need::Removal, |w| {
                        w.more_room(shard, PAGES * part.len())?;
                        self.store().names_epoch().check(epoch)?;
                        let each = part
                            .iter()
                            .map(|&i| self.note_drop(w, (parent, &entries[i].0), entries[i].1));
                        each.collect::<Result<Vec<_>>>()
                    });
                for (n, &i) in part.iter().enumerate() {
                    results[i] = match &done {
                        Ok(done) => done[n],
                        // The caller then removes these names one by one, because single removals
                        // need less room.
                        Err(Errno::NOSPC) => Err(Errno::AGAIN),
                        Err(e) => Err(*e),
                    };
                    if results[i] == Ok(true) {
                        noted.push(i);
                    }
                }
            }
        }
        self.finish_drops(parent, entries, &noted, &mut results);
        if results.contains(&Ok(true))
            && let Err(e) = self.cluster.namespace().touch_dir(parent, t)
        {
            let removed = results.iter_mut().filter(|r| **r == Ok(true));
            removed.for_each(|r| *r = Err(e));
        }
        results
    }

    /// In a transaction: marks an entry to be removed when its object, which lies on another node,
    /// has lost the name. Returns false if `name` doesn't have `entry`.
    fn note_drop(&self, w: &mut Write<'_>, name: Named<'_>, entry: Entry) -> Result<Result<bool>> {
        match self.store().intents().check_note(w, name) {
            Err(Errno::AGAIN) => return Ok(Err(Errno::AGAIN)),
            checked => checked?,
        }
        let at = self.store().entry_ref(name);
        if !w.has_entry(at, entry)? {
            return Ok(Ok(false));
        }
        w.set_changing(at, entry)?;
        self.store()
            .intents()
            .put_note(w, name, &Note::Drop(entry))?;
        Ok(Ok(true))
    }

    /// Removes the names from the objects of the marked entries, then removes the entries. Does for
    /// many entries what [`CrossNode::finish_drop`] does for one.
    fn finish_drops(
        &self,
        parent: ObjectId,
        entries: &[(Vec<u8>, Entry)],
        noted: &[usize],
        results: &mut [Result<bool>],
    ) {
        let mut by_home: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        let mut others = Vec::new();
        for &i in noted {
            match self.cluster.remote_home(entries[i].1.id) {
                Some(home) => by_home.entry(home).or_default().push(i),
                None => others.push(i),
            }
        }
        let asked = node_requests(by_home, |part| {
            let lost = part
                .iter()
                .map(|&i| (entries[i].1.id, entries[i].0.clone()));
            request::DROP_LINKS.encode(&(parent, List(lost.collect::<Vec<_>>())))
        });
        let mut ended: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let answers = self.ask_together(request::DROP_LINKS, &asked);
        for (asked, answer) in asked.iter().zip(answers) {
            for (&i, answer_of_one) in asked.files.iter().zip(of_each(answer, asked)) {
                let (name, entry) = ((parent, &entries[i].0[..]), entries[i].1);
                match answer_of_one {
                    Ok(()) | Err(Errno::NOENT) => ended
                        .entry(self.store().files.shard_of_entry(parent, name.1))
                        .or_default()
                        .push(i),
                    // The keeper sends the request to the object's home again later.
                    Err(e) if is_unclear(e) => {
                        let left = self.store().intents().end_drop(name, entry, false);
                        if let Err(e) = left.and_then(|()| self.store().intents().disown_note(name))
                        {
                            results[i] = Err(e);
                        }
                    }
                    Err(_) => others.push(i),
                }
            }
        }
        for (shard, all) in ended {
            for part in all.chunks(MAX_BATCH_FILES) {
                let together = self
                    .store()
                    .transact(ShardSet::of(&[shard]), Need::Removal, |w| {
                        part.iter().try_for_each(|&i| {
                            let name = (parent, &entries[i].0[..]);
                            self.store().intents().let_see(w, name, entries[i].1)?;
                            w.end_intent(self.store().entry_ref(name))
                        })
                    });
                if together.is_err() {
                    others.extend_from_slice(part);
                }
            }
        }
        for i in others {
            if let Err(e) = self.finish_drop((parent, &entries[i].0), entries[i].1) {
                results[i] = Err(e);
            }
        }
    }
}
