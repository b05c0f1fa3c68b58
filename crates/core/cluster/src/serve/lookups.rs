//! Requests that only read records: entries, inodes, lists of directories.

use super::{Call, each};
use crate::Cluster;
use crate::peers::messages::{List, Record, encode};
use crate::peers::requests::Lookups;
use forebay_store::{Entry, ObjectId};
use rustix::io::Errno;

/// Returns `entry` if its object lies on this node; else None.
fn here(cluster: &Cluster<'_>, entry: Option<Entry>) -> Option<Entry> {
    entry.filter(|e| cluster.remote_home(e.id).is_none())
}

/// Returns the inode of an entry; None if the object was removed meanwhile, which the requesting
/// node then handles.
fn inode_of(cluster: &Cluster<'_>, entry: Option<Entry>) -> Option<Record> {
    let inode = entry.and_then(|e| cluster.namespace().stat(e.id).ok());
    inode.map(|inode| Record(inode, Vec::new()))
}

impl Lookups for Call<'_> {
    fn lookup(&self, parent: ObjectId, name: Vec<u8>) -> Result<Option<Entry>, Errno> {
        self.home_of_entry(parent, &name)?;
        self.cluster.namespace().lookup(parent, &name)
    }

    fn lookup_all(
        &self,
        parent: ObjectId,
        List(names): List<Vec<u8>>,
    ) -> Result<List<Result<Option<Entry>, u32>>, Errno> {
        let one = |name: &Vec<u8>| {
            self.home_of_entry(parent, name)?;
            self.cluster.namespace().lookup(parent, name)
        };
        Ok(each(names.iter().map(one)))
    }

    fn lookup_stat(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
    ) -> Result<(Option<Entry>, Option<Record>), Errno> {
        self.home_of_entry(parent, &name)?;
        let entry = self.cluster.namespace().lookup(parent, &name)?;
        Ok((entry, inode_of(&self.cluster, here(&self.cluster, entry))))
    }

    fn lookup_open(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        usage: u64,
    ) -> Result<(Option<Entry>, Option<Record>, bool), Errno> {
        let cluster = &self.cluster;
        self.home_of_entry(parent, &name)?;
        let entry = cluster.namespace().lookup(parent, &name)?;
        let here = here(cluster, entry);
        let file = here.filter(|e| e.kind == libc::S_IFREG);
        // If the file was removed meanwhile, it isn't opened; the requesting node handles that.
        let is_open = |e: Entry| {
            self.server
                .keep_open(cluster, self.from, e.id, usage)
                .is_ok()
        };
        let open = file.is_some_and(is_open);
        Ok((entry, inode_of(cluster, here), open))
    }

    fn stat(&self, id: ObjectId) -> Result<Record, Errno> {
        let (inode, tail) = self.cluster.namespace().inode_tail(self.home(id)?)?;
        // A small file's content isn't sent.
        let tail = if inode.is_file() { Vec::new() } else { tail };
        Ok(Record(inode, tail))
    }

    fn list(
        &self,
        dir: ObjectId,
        shard: u64,
        after: Vec<u8>,
    ) -> Result<((u64, bool), Vec<u8>), Errno> {
        let (list, shard, end) = self.cluster.namespace().list_part(dir, shard, after)?;
        Ok(((shard, end), encode(&list)))
    }

    fn known_names(
        &self,
        shard: u64,
        after: Vec<u8>,
        dead: List<u32>,
    ) -> Result<(Option<(u64, Vec<u8>)>, Vec<u8>), Errno> {
        let (names, next) = self
            .cluster
            .dead_nodes()
            .known_names_here(shard, after, &dead)?;
        Ok((next, encode(&names)))
    }
}
