//! Reads a pool some of whose nodes are dead: the operations of [`crate::salvage`].
//!
//! The first half of this file collects a [`Salvage`] from all living nodes, with requests for one
//! page of names each. The second half serves lookups, attributes and listings from the salvage,
//! after a request to a dead node has failed.

use crate::peers::messages::{List, decode, encode};
use crate::peers::requests::request;
use crate::peers::{Bytes, Peers};
use crate::salvage::{KnownName, LOST_AND_FOUND, NextPage, Salvage};
use crate::views::DeadNodes;
use forebay_placement::{NodeId, SLOTS, Slot};
use forebay_store::dirs::LIST_BYTES;
use forebay_store::names::link_in;
use forebay_store::record::{Entry, EntryRecord, Inode, parse_key, tail};
use forebay_store::records::{ReadRecords, Records};
use forebay_store::{ObjectId, Result, now};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Maximum number of records that one request scans.
const MAX_SCANNED: usize = 50_000;
/// Tags of the records that contain names, ascending: entries, inodes (of directories), links.
const TAGS: [u8; 3] = [b'D', b'I', b'L'];

impl<'a> DeadNodes<'a> {
    /// Collects from the living nodes the names that concern dead nodes; None if no node is dead.
    /// The function scans the names on all living nodes. `owner`: user and group that own
    /// directories whose attributes aren't known.
    ///
    /// # Errors
    /// EIO; EHOSTDOWN if further nodes die during each of several attempts.
    pub fn collect_salvage(&self, owner: (u32, u32)) -> Result<Option<Salvage>> {
        const ATTEMPTS: usize = 4;
        let Some(peers) = self.cluster.peers() else {
            return Ok(None);
        };
        for _ in 0..ATTEMPTS {
            let others = peers.nodes().iter().copied();
            let others: Vec<NodeId> = others.filter(|n| *n != peers.this_node()).collect();
            let reply = self.cluster.ask_each(&others, request::EPOCH, &());
            let answers = others.iter().zip(reply);
            let (dead, living): (Vec<_>, Vec<_>) =
                answers.partition(|(_, reply)| matches!(reply, Err(Errno::HOSTDOWN)));
            let nodes = |list: Vec<(&NodeId, _)>| list.into_iter().map(|(n, _)| *n).collect();
            let (dead, mut living): (Vec<NodeId>, Vec<NodeId>) = (nodes(dead), nodes(living));
            if dead.is_empty() {
                return Ok(None);
            }
            living.push(peers.this_node());
            match self.collect_from(peers, &living, dead, owner) {
                Err(Errno::HOSTDOWN) => {}
                collected => return collected.map(Some),
            }
        }
        Err(Errno::HOSTDOWN)
    }

    fn collect_from(
        &self,
        peers: &dyn Peers,
        living: &[NodeId],
        dead: Vec<NodeId>,
        owner: (u32, u32),
    ) -> Result<Salvage> {
        let mut salvage = Salvage {
            owner,
            collected: now(),
            ..Salvage::default()
        };
        let mut parents = HashSet::new();
        let is_lost = |slot: Slot| dead.contains(&peers.node_of(slot));
        for &node in living {
            self.each_known_name(node, &dead, |dir, name, entry| {
                if is_lost(dir.slot()) {
                    parents.insert(dir);
                }
                let Some(entry) = entry else {
                    return;
                };
                if is_lost(Slot::of_entry(dir, &name)) {
                    let entries = salvage.entries.entry(dir).or_default();
                    entries.insert(name, entry);
                } else if is_lost(entry.id.slot()) {
                    salvage.directories.insert(entry.id, (dir, name));
                }
            })?;
        }
        let root = ObjectId::ROOT;
        if is_lost(root.slot()) {
            salvage.directories.insert(root, (root, Vec::new()));
        }
        let known = &salvage.directories;
        salvage.unnamed = parents
            .into_iter()
            .filter(|dir| !known.contains_key(dir))
            .collect();
        salvage.unnamed.sort_unstable();
        salvage.dead = dead;
        Ok(salvage)
    }

    /// Shows the unnamed directories of a salvage in `lost+found` of the directory `top`, one
    /// directory for each dead node.
    ///
    /// # Errors
    /// ENOTDIR if `lost+found` isn't a directory.
    pub fn show_unnamed(&self, salvage: &mut Salvage, top: ObjectId) -> Result<()> {
        if salvage.unnamed.is_empty() {
            return Ok(());
        }
        let lost = match self.cluster.namespace().lookup(top, LOST_AND_FOUND) {
            Ok(Some(there)) if there.kind == libc::S_IFDIR => there.id,
            Ok(Some(_)) => return Err(Errno::NOTDIR),
            Ok(None) | Err(Errno::HOSTDOWN) => {
                let node = salvage.any_dead()?;
                self.invent_directory(salvage, node, top, LOST_AND_FOUND)?
            }
            Err(e) => return Err(e),
        };
        let mut of_nodes = HashMap::new();
        for dir in salvage.unnamed.clone() {
            let node = self.cluster.remote(dir.slot()).ok_or(Errno::IO)?;
            let of_node = format!("node-{}", node.0);
            let above = match of_nodes.get(&node) {
                Some(id) => *id,
                None => self.invent_directory(salvage, node, lost, of_node.as_bytes())?,
            };
            of_nodes.insert(node, above);
            let name = format!("#{}", dir.0);
            salvage.add_directory(above, name.as_bytes(), dir);
            let path = format!("{of_node}/{name}");
            let path = [LOST_AND_FOUND, b"/", path.as_bytes()].concat();
            salvage.shown.push(path);
        }
        Ok(())
    }

    /// Adds a directory that exists only in the salvage, named `name` in `dir`. No object has its
    /// id (sequence numbers of objects begin at 1), and its home is the dead `node`.
    ///
    /// # Errors
    /// ENOSPC: all slots of the node are used for such directories.
    pub fn invent_directory(
        &self,
        salvage: &mut Salvage,
        node: NodeId,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<ObjectId> {
        let slots = (0..SLOTS)
            .map(Slot)
            .filter(|slot| self.cluster.remote(*slot) == Some(node));
        let mut ids = slots.map(|slot| ObjectId::new(0, slot));
        let id = ids
            .find(|id| !salvage.invented.contains(id))
            .ok_or(Errno::NOSPC)?;
        salvage.invented.insert(id);
        salvage.add_directory(dir, name, id);
        Ok(id)
    }

    /// Returns the directory at `path`. The path comes from the user or the pool's configuration.
    /// If a name of the path is lost, uses the unnamed directory that must have had it
    /// (`Salvage::recognize`). If there is none, invents a directory of that name, in which the
    /// unnamed directories are shown.
    ///
    /// # Errors
    /// EHOSTDOWN if a name isn't known and there are no unnamed directories; ENOTDIR; ENOENT.
    pub fn salvaged_top(&self, salvage: &mut Salvage, path: &[u8]) -> Result<ObjectId> {
        let mut top = ObjectId::ROOT;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            let found = if salvage.is_invented(top) {
                Err(Errno::HOSTDOWN)
            } else {
                self.cluster.namespace().lookup(top, name)
            };
            top = match found {
                Ok(Some(entry)) if entry.kind == libc::S_IFDIR => entry.id,
                Ok(Some(_)) => return Err(Errno::NOTDIR),
                Ok(None) => return Err(Errno::NOENT),
                Err(Errno::HOSTDOWN) if !salvage.unnamed.is_empty() => {
                    match salvage.recognize(top, name) {
                        Some(id) => id,
                        None => {
                            let node = salvage.any_dead()?;
                            self.invent_directory(salvage, node, top, name)?
                        }
                    }
                }
                Err(e) => return Err(e),
            };
        }
        Ok(top)
    }

    /// Calls `each` for the names that `node` knows and that concern dead nodes.
    fn each_known_name(
        &self,
        node: NodeId,
        dead: &[NodeId],
        mut each: impl FnMut(ObjectId, Vec<u8>, Option<Entry>),
    ) -> Result<()> {
        let is_here = self
            .cluster
            .peers()
            .is_some_and(|peers| peers.this_node() == node);
        let lost: List<u32> = List(dead.iter().map(|node| node.0).collect());
        let mut at = (0, Vec::new());
        loop {
            let (names, next): (List<KnownName>, _) = if is_here {
                self.known_names_here(at.0, at.1.clone(), &lost)?
            } else {
                let mut bytes = vec![0; LIST_BYTES];
                let room = Bytes::Receive(bytes.as_mut_ptr(), bytes.len());
                let asked = (at.0, &at.1[..], &lost);
                // SAFETY: `room` is the space of `bytes`, which outlives the request.
                let (next, n) = unsafe {
                    self.cluster
                        .ask_with(node, request::KNOWN_NAMES, &asked, room)?
                };
                (decode(&bytes[..n]).ok_or(Errno::PROTO)?, next)
            };
            for (dir, name, entry) in names.0 {
                each(dir, name, entry);
            }
            match next {
                Some(next) if next > at => at = next,
                Some(_) => return Err(Errno::PROTO),
                None => return Ok(()),
            }
        }
    }

    /// Returns a page of this node's names that concern dead nodes, from the key `after` of a shard
    /// on, and the start of the next page. Serves `KNOWN_NAMES`.
    pub(crate) fn known_names_here(
        &self,
        shard: u64,
        after: Vec<u8>,
        List(dead): &List<u32>,
    ) -> Result<(List<KnownName>, NextPage)> {
        let is_lost = |slot: Slot| {
            self.cluster
                .remote(slot)
                .is_some_and(|node| dead.contains(&node.0))
        };
        let mut page: Vec<KnownName> = Vec::new();
        let (mut bytes, mut scanned) = (4, 0);
        let mut last = after;
        for shard in usize::try_from(shard).map_err(|_| Errno::PROTO)?..self.store().files.count() {
            let records = self.store().records(shard)?;
            for tag in TAGS {
                let from = match last.first() {
                    Some(&at) if at > tag => continue,
                    Some(&at) if at == tag => std::mem::take(&mut last),
                    _ => vec![tag],
                };
                // If the page becomes full before any record is read, the next page begins at
                // `from`.
                last.clone_from(&from);
                let mut is_full = false;
                records.each_record(&from, |key, value| {
                    if key.first() != Some(&tag) {
                        return false;
                    }
                    if key == from {
                        return true;
                    }
                    let known = match tag {
                        b'D' => entry_of(key, value, &is_lost),
                        b'I' => directory_of(key, value, &is_lost),
                        _ => link_of(key, value, &is_lost).and_then(|(id, dir, name)| {
                            let (inode, _) = records.inode(id).ok().flatten()?;
                            let kind = inode.kind();
                            Some((dir, name, Some(Entry { id, kind })))
                        }),
                    };
                    scanned += 1;
                    let known = known.filter(|known| {
                        known.2.is_some() || page.last().is_none_or(|last| last.0 != known.0)
                    });
                    let more = known.as_ref().map_or(0, |known| encode(known).len());
                    if bytes + more > LIST_BYTES || scanned > MAX_SCANNED {
                        is_full = true;
                        return false;
                    }
                    bytes += more;
                    page.extend(known);
                    last.clear();
                    last.extend_from_slice(key);
                    true
                })?;
                if is_full {
                    return Ok((List(page), Some((shard as u64, last))));
                }
                last.clear();
            }
        }
        Ok((List(page), None))
    }

    /// Returns the salvage if `node` was dead when the salvage was collected.
    fn salvage_for(&self, node: NodeId) -> Option<Arc<Salvage>> {
        let salvage = self.cluster.salvage_cell().get()?;
        salvage.dead.contains(&node).then_some(salvage)
    }

    /// Returns the inode and name of `id` if that is a directory that exists only in the salvage.
    pub(crate) fn invented(&self, id: ObjectId) -> Option<(Inode, Vec<u8>)> {
        if !self.cluster.salvage_cell().is_set.load(Acquire) {
            return None;
        }
        let salvage = self.cluster.salvage_cell().get()?;
        salvage.inode(id).filter(|_| salvage.is_invented(id))
    }

    /// Whether the salvage has the entries of `node`. A listing can't get them from `node` itself.
    pub(crate) fn is_salvaged(&self, node: NodeId) -> bool {
        self.salvage_for(node).is_some()
    }

    /// Returns an entry that exists only in the salvage, because its directory, or the directory to
    /// which it refers, is invented.
    pub(crate) fn salvaged_name(&self, dir: ObjectId, name: &[u8]) -> Option<Entry> {
        let cell = self.cluster.salvage_cell();
        if !cell.is_set.load(Acquire) {
            return None;
        }
        let salvage = cell.get()?;
        let entry = salvage.entry(dir, name)?;
        (salvage.is_invented(dir) || salvage.is_invented(entry.id)).then_some(entry)
    }

    /// Returns an entry from the salvage; the entry's home, `node`, hasn't replied.
    pub(crate) fn salvaged_entry(
        &self,
        node: NodeId,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<Option<Entry>> {
        let salvage = self.salvage_for(node).ok_or(Errno::HOSTDOWN)?;
        salvage.entry(dir, name).map(Some).ok_or(Errno::HOSTDOWN)
    }

    /// Returns a directory's inode and name from the salvage; the directory's home, `node`, hasn't
    /// replied.
    pub(crate) fn salvaged_inode(&self, node: NodeId, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        let salvage = self.salvage_for(node).ok_or(Errno::HOSTDOWN)?;
        salvage.inode(id).ok_or(Errno::HOSTDOWN)
    }

    /// Returns a directory's entries after the name `after`, as far as the entries' homes are dead
    /// nodes.
    pub(crate) fn salvaged_entries(&self, dir: ObjectId, after: &[u8]) -> Vec<(Vec<u8>, Entry)> {
        let salvage = self.cluster.salvage_cell().get();
        let entries = salvage.as_ref().and_then(|s| s.entries.get(&dir));
        entries.map_or(Vec::new(), |entries| {
            let behind = entries
                .range::<[u8], _>((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
            behind.map(|(name, entry)| (name.clone(), *entry)).collect()
        })
    }
}

/// Returns what an entry record tells: the name of a directory whose inode is lost, or only that
/// the entry's directory, whose inode is lost, has entries.
fn entry_of(key: &[u8], value: &[u8], is_lost: &impl Fn(Slot) -> bool) -> Option<KnownName> {
    let (_, dir, name) = parse_key(key)?;
    let entry = EntryRecord::decode(value)?.entry;
    if entry.kind == libc::S_IFDIR && is_lost(entry.id.slot()) {
        return Some((dir, name.to_vec(), Some(entry)));
    }
    is_lost(dir.slot()).then(|| (dir, Vec::new(), None))
}

/// Returns the name in a directory's inode, if the name's entry is lost. (Directories have no link
/// records.)
fn directory_of(key: &[u8], value: &[u8], is_lost: &impl Fn(Slot) -> bool) -> Option<KnownName> {
    let (_, id, _) = parse_key(key)?;
    let (inode, name) = Inode::decode(value)?;
    let is_named = inode.is_dir() && id != ObjectId::ROOT && inode.tail == tail::NAME;
    let dir = ObjectId(inode.parent);
    let kind = libc::S_IFDIR;
    (is_named && is_lost(Slot::of_entry(dir, name)))
        .then(|| (dir, name.to_vec(), Some(Entry { id, kind })))
}

/// Decodes a link record into object, directory and name. None unless the name is one that counts,
/// and its entry is lost.
fn link_of(
    key: &[u8],
    value: &[u8],
    is_lost: &impl Fn(Slot) -> bool,
) -> Option<(ObjectId, ObjectId, Vec<u8>)> {
    let (_, id, rest) = parse_key(key)?;
    let (dir, name, counts) = link_in(rest, value)?;
    (counts && is_lost(Slot::of_entry(dir, name))).then(|| (id, dir, name.to_vec()))
}
