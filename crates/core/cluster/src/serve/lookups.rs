//! Requests that only read records: entries, inodes, lists of directories.

use super::{Call, Server, each, home, home_of_entry};
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

impl Lookups<Call<'_>> for Server {
    fn lookup(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        name: Vec<u8>,
    ) -> Result<Option<Entry>, Errno> {
        home_of_entry(&call.cluster, parent, &name)?;
        call.cluster.namespace().lookup(parent, &name)
    }

    fn lookup_all(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        List(names): List<Vec<u8>>,
    ) -> Result<List<Result<Option<Entry>, u32>>, Errno> {
        let one = |name: &Vec<u8>| {
            home_of_entry(&call.cluster, parent, name)?;
            call.cluster.namespace().lookup(parent, name)
        };
        Ok(each(names.iter().map(one)))
    }

    fn lookup_stat(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        name: Vec<u8>,
    ) -> Result<(Option<Entry>, Option<Record>), Errno> {
        home_of_entry(&call.cluster, parent, &name)?;
        let entry = call.cluster.namespace().lookup(parent, &name)?;
        Ok((entry, inode_of(&call.cluster, here(&call.cluster, entry))))
    }

    fn lookup_open(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        name: Vec<u8>,
        usage: u64,
    ) -> Result<(Option<Entry>, Option<Record>, bool), Errno> {
        let cluster = &call.cluster;
        home_of_entry(cluster, parent, &name)?;
        let entry = cluster.namespace().lookup(parent, &name)?;
        let here = here(cluster, entry);
        let file = here.filter(|e| e.kind == libc::S_IFREG);
        // If the file was removed meanwhile, it isn't opened; the requesting node handles that.
        let is_open = |e: Entry| self.keep_open(cluster, call.from, e.id, usage).is_ok();
        let open = file.is_some_and(is_open);
        Ok((entry, inode_of(cluster, here), open))
    }

    fn stat(&self, call: &Call<'_>, id: ObjectId) -> Result<Record, Errno> {
        let (inode, tail) = call
            .cluster
            .namespace()
            .inode_tail(home(&call.cluster, id)?)?;
        // A small file's content isn't sent.
        let tail = if inode.is_file() { Vec::new() } else { tail };
        Ok(Record(inode, tail))
    }

    fn list(
        &self,
        call: &Call<'_>,
        dir: ObjectId,
        shard: u64,
        after: Vec<u8>,
    ) -> Result<((u64, bool), Vec<u8>), Errno> {
        let (list, shard, end) = call.cluster.namespace().list_part(dir, shard, after)?;
        Ok(((shard, end), encode(&list)))
    }

    fn known_names(
        &self,
        call: &Call<'_>,
        shard: u64,
        after: Vec<u8>,
        dead: List<u32>,
    ) -> Result<(Option<(u64, Vec<u8>)>, Vec<u8>), Errno> {
        let (names, next) = call
            .cluster
            .dead_nodes()
            .known_names_here(shard, after, &dead)?;
        Ok((next, encode(&names)))
    }
}
