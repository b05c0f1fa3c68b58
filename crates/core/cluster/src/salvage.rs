//! The names of living nodes' objects while other nodes are dead, so that all these objects can be
//! saved.
//!
//! A directory's record lies on one node, its entries on all. Without this module, the death of one
//! node makes files of all others unreachable: those below a directory whose record lies on the
//! dead node, and those whose entry lies there. But an object's home has a link record for each
//! name whose entry lies on another node, a directory's record contains its name, and a directory's
//! entry contains its id. A [`Salvage`] holds the names that follow from these records of all
//! living nodes:
//!
//! - entries that lay on dead nodes: from the link records of their objects, and from the records
//!   of directories (which may lie on another node than their entry after a rename);
//! - directories whose record is lost: from the entries in them. The directories' attributes aren't
//!   known;
//! - *unnamed* directories, whose entry is lost, too. (Any directory that was never renamed has its
//!   record and its entry on the same node.) The content of unnamed directories is known. Such a
//!   directory is shown as `lost+found/node-N/#ID` in the directory that is to be saved.
//!
//! A [`crate::Cluster`] with a salvage (`with_salvage`) uses it when a request to a dead node has
//! failed, and only for reading: lookups, attributes, listings. The salvage doesn't change after it
//! was collected. A lookup of a name that isn't in the salvage returns EHOSTDOWN, never ENOENT.

use forebay_placement::{NodeId, Slot};
use forebay_runtime::threads::write_lock;
use forebay_store::record::{Entry, Inode, tail};
use forebay_store::{ObjectId, Result};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, PoisonError, RwLock};

/// Name of the directory that holds unnamed directories.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A directory, a name in it, and its entry. If there is no entry and the name is empty, it is only
/// known that the directory has entries.
pub(crate) type KnownName = (ObjectId, Vec<u8>, Option<Entry>);

/// Shard and key after which the next page of names begins; None after the last page.
pub(crate) type NextPage = Option<(u64, Vec<u8>)>;

/// Names that living nodes know while others are dead. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Salvage {
    pub(crate) dead: Vec<NodeId>,
    /// Entries that lay on dead nodes, by directory.
    pub(crate) entries: HashMap<ObjectId, BTreeMap<Vec<u8>, Entry>>,
    /// Directories whose record lay on a dead node, with their parent and name.
    pub(crate) directories: HashMap<ObjectId, (ObjectId, Vec<u8>)>,
    /// Directories whose record and entry lay on dead nodes.
    pub(crate) unnamed: Vec<ObjectId>,
    /// Paths of the unnamed directories, below the directory that is to be saved.
    pub(crate) shown: Vec<Vec<u8>>,
    /// Directories that exist only in the salvage: `lost+found`, its subdirectories `node-N`, and a
    /// missing directory that is to be saved.
    pub(crate) invented: HashSet<ObjectId>,
    /// Owner of directories whose attributes aren't known: user, group.
    pub(crate) owner: (u32, u32),
    /// Time of the collection. Nanoseconds since 1970.
    pub(crate) collected: i64,
}

impl Salvage {
    /// Returns the nodes that didn't reply.
    pub fn dead(&self) -> Vec<u32> {
        self.dead.iter().map(|node| node.0).collect()
    }

    /// Returns the paths under which unnamed directories are shown, below the directory that is to
    /// be saved.
    pub fn shown(&self) -> &[Vec<u8>] {
        &self.shown
    }

    /// Returns the entry of this name, if it lay on a dead node and is known.
    pub fn entry(&self, dir: ObjectId, name: &[u8]) -> Option<Entry> {
        self.entries.get(&dir)?.get(name).copied()
    }

    /// Whether the record of this directory is lost, so that its attributes aren't known.
    pub fn has_lost(&self, dir: ObjectId) -> bool {
        self.directories.contains_key(&dir)
    }

    /// Whether this directory exists in the salvage only.
    pub fn is_invented(&self, dir: ObjectId) -> bool {
        self.invented.contains(&dir)
    }

    /// Returns an inode with defaults, and the name, of a directory whose record is lost.
    pub(crate) fn inode(&self, id: ObjectId) -> Option<(Inode, Vec<u8>)> {
        let (parent, name) = self.directories.get(&id)?;
        let inode = Inode {
            mode: libc::S_IFDIR | 0o700,
            uid: self.owner.0,
            gid: self.owner.1,
            nlink: 2,
            parent: parent.0,
            mtime: self.collected,
            ctime: self.collected,
            btime: self.collected,
            atime: self.collected,
            tail: tail::NAME,
            ..Inode::default()
        };
        Some((inode, name.clone()))
    }

    /// Gives `name` in `dir` to the unnamed directory whose id has the slot of that name, if there
    /// is exactly one: a new directory's id contains the slot of its name, one of [`SLOTS`].
    pub(crate) fn recognize(&mut self, dir: ObjectId, name: &[u8]) -> Option<ObjectId> {
        let slot = Slot::of_entry(dir, name);
        let mut made_so = self.unnamed.iter().filter(|id| id.slot() == slot);
        let (id, None) = (*made_so.next()?, made_so.next()) else {
            return None;
        };
        self.unnamed.retain(|other| *other != id);
        self.add_directory(dir, name, id);
        Some(id)
    }

    /// Returns a dead node, to be the home of directories that exist only in the salvage.
    pub(crate) fn any_dead(&self) -> Result<NodeId> {
        self.dead.first().copied().ok_or(Errno::IO)
    }

    pub(crate) fn add_directory(&mut self, dir: ObjectId, name: &[u8], id: ObjectId) {
        let kind = libc::S_IFDIR;
        let entries = self.entries.entry(dir).or_default();
        entries.insert(name.to_vec(), Entry { id, kind });
        self.directories.insert(id, (dir, name.to_vec()));
    }
}

/// The salvage of a [`crate::Cluster`], if there is one.
#[derive(Debug, Default)]
pub struct SalvageCell {
    salvage: RwLock<Option<Arc<Salvage>>>,
    /// Whether there is a salvage. Tested without a lock by lookups that find nothing.
    pub(crate) is_set: AtomicBool,
}

impl SalvageCell {
    /// Returns a cell without a salvage.
    pub const fn new() -> SalvageCell {
        SalvageCell {
            salvage: RwLock::new(None),
            is_set: AtomicBool::new(false),
        }
    }

    /// Returns the salvage, if there is one.
    pub fn get(&self) -> Option<Arc<Salvage>> {
        let salvage = self.salvage.read();
        salvage.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the salvage.
    pub fn set(&self, salvage: Option<Arc<Salvage>>) {
        let mut held = write_lock(&self.salvage);
        self.is_set.store(salvage.is_some(), Release);
        *held = salvage;
    }
}
