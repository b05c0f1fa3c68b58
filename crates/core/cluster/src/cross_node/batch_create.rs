//! Creating many files at once, with their attributes and names, in few transactions and requests.
//!
//! The ids are drawn first, so that the caller can record them before the files exist. An entry of
//! this node is made with its file, one transaction for each shard. Files whose entries lie on
//! other nodes follow the steps of `create_apart`, so that the death of a process has the same
//! consequences:
//!
//! 1. The files, each with an unconfirmed name.
//! 2. The entries, with one request to each home.
//! 3. The confirmation of the names, which puts the files into the index.

use super::{CrossNode, Link, is_unclear};
use crate::peers::messages::{List, Wire};
use crate::peers::requests::{Signature, request};
use crate::peers::{Bytes, MAX_HEAD, PeerReply, PeerRequest};
use crate::views::Namespace;
use forebay_store::controls::is_ephemeral;
use forebay_store::record::{Entry, Inode, Key};
use forebay_store::records::{ChangeRecords, Need, Records, ShardSet};
use forebay_store::shards::Write;
use forebay_store::{NAME_MAX, NewObject, NodeId, ObjectId, Slot, now};
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;

/// Maximum number of files in one transaction.
pub(super) const MAX_BATCH_FILES: usize = 64;
/// Maximum sum of the files' names and attributes in one transaction. Bytes.
const MAX_BATCH_ATTRIBUTE_BYTES: usize = 256 << 10;

/// A file to be made by [`Namespace::create_files`].
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// The file's id, from [`Namespace::draw_files`].
    pub id: ObjectId,
    /// The file's name.
    pub name: &'a [u8],
    /// The file's kind and attributes.
    pub new: NewObject<'a>,
    /// The file's extended attributes: names and values.
    pub attributes: &'a [(Vec<u8>, Vec<u8>)],
}

impl NewFile<'_> {
    fn bytes(&self) -> usize {
        let attributes = self.attributes.iter();
        self.name.len() + attributes.map(|(n, v)| n.len() + v.len()).sum::<usize>()
    }

    /// Number of record pages that the file may need beyond those that every transaction reserves.
    fn pages(&self) -> usize {
        2 + 3 * self.attributes.len()
    }

    fn entry(&self) -> Entry {
        Entry {
            id: self.id,
            kind: libc::S_IFREG,
        }
    }
}

/// A request to one node about several files: their indices, and the encoded arguments.
pub(super) struct NodeRequest {
    pub home: NodeId,
    pub files: Vec<usize>,
    head: Vec<u8>,
}

/// Encodes requests to the nodes in `by_home` about their files: to each node as many requests as
/// its files need. `head` encodes the arguments of one request.
pub(super) fn node_requests(
    by_home: BTreeMap<NodeId, Vec<usize>>,
    head: impl Fn(&[usize]) -> Vec<u8>,
) -> Vec<NodeRequest> {
    let mut asked = Vec::new();
    for (home, all) in by_home {
        for part in all.chunks(MAX_HEAD / (2 * NAME_MAX)) {
            asked.push(NodeRequest {
                home,
                files: part.to_vec(),
                head: head(part),
            });
        }
    }
    asked
}

/// A reply about several files: for each file a result or an errno.
type Each<T> = List<std::result::Result<T, u32>>;

/// Splits the reply to `asked` into one result for each file in `asked`.
pub(super) fn of_each<T>(answer: Result<Each<T>>, asked: &NodeRequest) -> Vec<Result<T>> {
    let answer_of_one = answer.and_then(|List(answer_of_one)| {
        if answer_of_one.len() == asked.files.len() {
            Ok(answer_of_one)
        } else {
            Err(Errno::PROTO)
        }
    });
    match answer_of_one {
        Ok(answer_of_one) => answer_of_one
            .into_iter()
            .map(|one| one.map_err(|e| Errno::from_raw_os_error(e as i32 & 0xfff)))
            .collect(),
        Err(e) => asked.files.iter().map(|_| Err(e)).collect(),
    }
}

impl<'a> Namespace<'a> {
    /// Draws ids for new files with these names in `parent`, for [`Namespace::create_files`].
    /// Nothing is created yet.
    ///
    /// # Errors
    /// ENOSPC if no ids are left, or this node has no slots.
    pub fn draw_files(&self, parent: ObjectId, names: &[&[u8]]) -> Result<Vec<ObjectId>> {
        let mut near = None;
        let mut slots = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            let slot = Slot::of_entry(parent, name);
            slots.push(match self.cluster.peers() {
                Some(others) if self.cluster.remote_home_of_entry(parent, name).is_some() => {
                    // Files that one transaction is to create get the same slot.
                    if i % MAX_BATCH_FILES == 0 || near.is_none() {
                        near = others.slot_here(u64::from(slot.0));
                    }
                    near.ok_or(Errno::NOSPC)?
                }
                _ => slot,
            });
        }
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, slot) in slots.iter().enumerate() {
            let shard = slot.shard(self.store().files.count());
            by_shard.entry(shard).or_default().push(i);
        }
        let mut ids = vec![ObjectId(0); names.len()];
        for (shard, all) in by_shard {
            self.store()
                .transact(ShardSet::of(&[shard]), Need::Removal, |_| {
                    all.iter().try_for_each(|&i| {
                        ids[i] = ObjectId::new(self.store().names().next_seq(shard)?, slots[i]);
                        Ok(())
                    })
                })?;
        }
        Ok(ids)
    }

    /// Creates these files in `parent`. Each succeeds or fails by itself; returns the result of
    /// each.
    ///
    /// # Errors
    /// For each file: EEXIST; ESTALE if names changed since `epoch`; ENOSPC; ENAMETOOLONG.
    pub fn create_files(
        &self,
        parent: ObjectId,
        files: &[NewFile<'_>],
        epoch: u64,
    ) -> Vec<Result<()>> {
        let mut results = vec![Ok(()); files.len()];
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            results[i] = match file.name.len() {
                ..=NAME_MAX => self.store().index().refuse_view(parent, file.name),
                _ => Err(Errno::NAMETOOLONG),
            };
            if results[i].is_ok() {
                let shard = self.store().files.shard_of(file.id);
                by_shard.entry(shard).or_default().push(i);
            }
        }
        let t = now();
        let mut here = false;
        for (shard, all) in by_shard {
            for part in parts_of(files, &all) {
                let made =
                    self.cluster
                        .cross_node()
                        .create_part(parent, files, part, shard, (epoch, t));
                for (n, &i) in part.iter().enumerate() {
                    results[i] = made.as_ref().map_or_else(|e| Err(*e), |made| made[n]);
                }
            }
        }
        for (i, file) in files.iter().enumerate() {
            if results[i] == Err(Errno::AGAIN) {
                // Another operation has an intent on that name: complete that operation or wait for
                // it, then create the file.
                results[i] = self
                    .cluster
                    .cross_node()
                    .retry_noted((parent, file.name), || {
                        let shard = self.store().files.shard_of(file.id);
                        self.cluster.cross_node().create_part(
                            parent,
                            files,
                            &[i],
                            shard,
                            (epoch, t),
                        )?[0]
                    });
            }
            here |= results[i].is_ok()
                && self
                    .cluster
                    .remote_home_of_entry(parent, file.name)
                    .is_none();
        }
        if here && let Err(e) = self.touch_dir(parent, t) {
            results.iter_mut().for_each(|r| *r = r.and(Err(e)));
        }
        self.cluster
            .cross_node()
            .insert_on_peers(parent, files, epoch, &mut results);
        results
    }
}

impl<'a> CrossNode<'a> {
    /// Creates some of the files, all of one shard, in one transaction, together with those of
    /// their entries that lie here.
    fn create_part(
        &self,
        parent: ObjectId,
        files: &[NewFile<'_>],
        part: &[usize],
        shard: usize,
        (epoch, t): (u64, i64),
    ) -> Result<Vec<Result<()>>> {
        let bytes = part.iter().map(|&i| files[i].bytes()).sum();
        let pages = part.iter().map(|&i| files[i].pages()).sum();
        self.store()
            .transact(ShardSet::of(&[shard]), Need::Bytes(bytes), |w| {
                self.store().names_epoch().check(epoch)?;
                self.store().names_epoch().check_frozen(parent)?;
                w.more_room(shard, pages)?;
                let each = part.iter().map(|&i| self.put_file(w, parent, &files[i], t));
                each.collect()
            })
    }

    /// Creates one file inside a transaction. An inner error concerns this file alone; an outer one
    /// ends the transaction.
    fn put_file(
        &self,
        w: &mut Write<'_>,
        parent: ObjectId,
        file: &NewFile<'_>,
        t: i64,
    ) -> Result<Result<()>> {
        let name = (parent, file.name);
        let remote = self
            .cluster
            .remote_home_of_entry(parent, file.name)
            .is_some();
        if let Err(e) = w.charge_file() {
            return Ok(Err(e));
        }
        let inode = Inode {
            has_attributes: !file.attributes.is_empty(),
            ..file.new.inode(t)
        };
        if remote {
            w.set_inode(file.id, &inode, &[])?;
        } else {
            match self.store().intents().check_note(w, name) {
                Err(Errno::AGAIN) => {
                    w.uncharge_file();
                    return Ok(Err(Errno::AGAIN));
                }
                checked => checked?,
            }
            let at = self.store().entry_ref(name);
            if w.create(at, file.entry(), &inode, &[])?.is_some() {
                w.uncharge_file();
                return Ok(Err(Errno::EXIST));
            }
        }
        for (attribute, value) in file.attributes {
            w.attach(file.id, &Key::attribute(file.id, attribute), value)?;
        }
        if remote {
            self.store()
                .links()
                .set_link(w, file.id, name, Link::Unconfirmed)?;
        }
        // The name of an ephemeral file is recorded from the start, and a file with recorded names
        // is in the index.
        if !remote || is_ephemeral(file.new.controls) {
            self.store()
                .index()
                .names_in_index(w, file.id, None, Some(name))?;
        }
        self.store()
            .declared()
            .record_creator(w, file.id, &file.new, Some(name))?;
        Ok(Ok(()))
    }

    /// Creates, on other nodes, the entries of those files whose objects were created.
    fn insert_on_peers(
        &self,
        parent: ObjectId,
        files: &[NewFile<'_>],
        epoch: u64,
        results: &mut [Result<()>],
    ) {
        let mut by_home: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            if let (Some(home), Ok(())) = (
                self.cluster.remote_home_of_entry(parent, file.name),
                results[i],
            ) {
                by_home.entry(home).or_default().push(i);
            }
        }
        let asked = node_requests(by_home, |part| {
            let entry = |&i: &usize| (files[i].name.to_vec(), files[i].entry());
            let entries = List(part.iter().map(entry).collect());
            request::INSERT_ALL.encode(&(parent, entries, epoch))
        });
        let mut confirmed = Vec::new();
        let answers = self.ask_together(request::INSERT_ALL, &asked);
        for (asked, answer) in asked.iter().zip(answers) {
            let answer_of_one = of_each(answer, asked);
            for (&i, answer_of_one) in asked.files.iter().zip(answer_of_one) {
                let (id, name) = (files[i].id, (parent, files[i].name));
                results[i] = match answer_of_one {
                    Ok(None) => {
                        confirmed.push(i);
                        Ok(())
                    }
                    // Another operation is in progress on that name, or this node's epoch of names
                    // is behind. The request for a single entry waits for that operation, or
                    // fetches the other node's epoch.
                    Err(Errno::AGAIN | Errno::STALE) => self
                        .insert_at(asked.home, (id, name), libc::S_IFREG, epoch)
                        .and_then(|there| there.map_or(Ok(()), |_| Err(Errno::EXIST))),
                    Ok(Some(_)) => self
                        .store()
                        .links()
                        .lose_link(id, name)
                        .and(Err(Errno::EXIST)),
                    Err(e) if is_unclear(e) => {
                        self.store().intents().disown_link(id, name).and(Err(e))
                    }
                    Err(e) => self.store().links().lose_link(id, name).and(Err(e)),
                };
            }
        }
        self.confirm_all(parent, files, &confirmed, results);
    }

    /// Confirms the names of these files.
    fn confirm_all(
        &self,
        parent: ObjectId,
        files: &[NewFile<'_>],
        all: &[usize],
        results: &mut [Result<()>],
    ) {
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &i in all {
            by_shard
                .entry(self.store().files.shard_of(files[i].id))
                .or_default()
                .push(i);
        }
        for (shard, all) in by_shard {
            for part in parts_of(files, &all) {
                let pages = part.iter().map(|&i| files[i].pages()).sum();
                let together = self
                    .store()
                    .transact(ShardSet::of(&[shard]), Need::Removal, |w| {
                        w.more_room(shard, pages)?;
                        part.iter().try_for_each(|&i| {
                            self.store()
                                .links()
                                .confirm(w, files[i].id, (parent, files[i].name))
                        })
                    });
                if together.is_ok() {
                    continue;
                }
                // A transaction that confirms one name needs less room than one for many names.
                for &i in part {
                    results[i] = self
                        .store()
                        .links()
                        .confirm_link(files[i].id, (parent, files[i].name));
                }
            }
        }
    }

    /// Sends these requests at the same time. Returns their replies in the same order.
    pub(super) fn ask_together<A, R: Wire>(
        &self,
        request: Signature<A, R>,
        asked: &[NodeRequest],
    ) -> Vec<Result<R>> {
        let kind = request.number();
        let node_requests: Vec<PeerRequest<'_>> = asked
            .iter()
            .map(|asked| PeerRequest {
                node: asked.home,
                kind,
                head: &asked.head,
                bytes: Bytes::None,
            })
            .collect();
        let answers = match self.cluster.other_nodes() {
            // SAFETY: without bytes, no address has to be valid.
            Ok(others) if !node_requests.is_empty() => unsafe { others.ask_all(&node_requests) },
            Ok(_) => Vec::new(),
            Err(e) => vec![Err(e); node_requests.len()],
        };
        let read = |reply: Result<PeerReply>| request.decode(&reply?.head);
        answers.into_iter().map(read).collect()
    }

    /// Creates entries of `parent` for files that lie on other nodes. Each succeeds or fails by
    /// itself; where an entry exists already, returns it.
    pub(crate) fn insert_all(
        &self,
        parent: ObjectId,
        entries: &[(Vec<u8>, Entry)],
        epoch: u64,
    ) -> Vec<Result<Option<Entry>>> {
        let mut results = vec![Err(Errno::IO); entries.len()];
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, (name, _)) in entries.iter().enumerate() {
            let shard = self.store().files.shard_of_entry(parent, name);
            by_shard.entry(shard).or_default().push(i);
        }
        let t = now();
        for (shard, all) in by_shard {
            for part in all.chunks(MAX_BATCH_FILES) {
                let bytes = part.iter().map(|&i| entries[i].0.len() + 64).sum();
                let made = self
                    .store()
                    .transact(ShardSet::of(&[shard]), Need::Bytes(bytes), |w| {
                        self.store().names_epoch().check(epoch)?;
                        self.store().names_epoch().check_frozen(parent)?;
                        let each = part.iter().map(|&i| {
                            let (name, entry) = &entries[i];
                            self.put_entry(w, (parent, name), *entry)
                        });
                        each.collect::<Result<Vec<_>>>()
                    });
                for (n, &i) in part.iter().enumerate() {
                    results[i] = made.as_ref().map_or_else(|e| Err(*e), |made| made[n]);
                }
            }
        }
        if results.contains(&Ok(None))
            && let Err(e) = self.cluster.namespace().touch_dir(parent, t)
        {
            return vec![Err(e); entries.len()];
        }
        results
    }

    /// In a transaction: makes an entry, unless the name exists.
    fn put_entry(
        &self,
        w: &mut Write<'_>,
        name: super::Named<'_>,
        entry: Entry,
    ) -> Result<Result<Option<Entry>>> {
        match self.store().intents().check_note(w, name) {
            Err(Errno::AGAIN) => return Ok(Err(Errno::AGAIN)),
            checked => checked?,
        }
        let there = w.link(self.store().entry_ref(name), entry)?;
        Ok(Ok(there.map(|there| there.entry)))
    }
}

/// Splits the files `all` into batches that each fit into one transaction.
fn parts_of<'a>(files: &'a [NewFile<'_>], all: &'a [usize]) -> impl Iterator<Item = &'a [usize]> {
    let mut left = all;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = left.iter().take(MAX_BATCH_FILES).take_while(|&&i| {
            bytes += files[i].bytes();
            bytes <= MAX_BATCH_ATTRIBUTE_BYTES
        });
        let count = fits.count().max(1).min(left.len());
        let (part, rest) = left.split_at(count);
        left = rest;
        (!part.is_empty()).then_some(part)
    })
}
