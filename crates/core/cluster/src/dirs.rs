//! Lists directories, whose entries lie on all nodes, and records their times, which lie at their
//! home.
//!
//! A listing asks one node after the other, and on each node one shard after the other. The
//! position consists of node, shard and name, so a listing can continue after changes. An
//! unreachable node is left out, and the listing ends with an error: so the entries of the other
//! nodes can be saved while a node is dead, and no program takes the listing for complete. Times of
//! a remote directory are rounded down to steps of [`TICK`], so that fewer requests are sent.

use crate::peers::Bytes;
use crate::peers::messages::{List, decode};
use crate::peers::requests::request;
use crate::views::Namespace;
use forebay_store::dirs::{DirPosition, LIST_BYTES, Listed};
use forebay_store::record::Entry;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;

/// A position's shard is the index of the node, shifted left by this number of bits, plus the
/// shard's number on that node.
const NODE_SHIFT: u32 = 8;
/// Step in which the times of a remote directory are recorded. Nanoseconds.
const TICK: i64 = 4_000_000;

impl<'a> Namespace<'a> {
    /// Calls `each` for the entries of `dir` after `position`, until `each` returns false or all
    /// entries have been listed. An entry for which `each` returned false is listed again by the
    /// next call.
    ///
    /// # Errors
    /// EHOSTDOWN, after the entries of all other nodes, if a node can't be reached; EIO.
    pub fn list(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        mut each: impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<()> {
        if dir.is_view() {
            return self.cluster.search().list_view(dir, position, &mut each);
        }
        let Some(others) = self.cluster.peers() else {
            return self.list_here(dir, position, &mut each).map(|_| ());
        };
        // `position.shard` counts through the shards of all nodes: see [`NODE_SHIFT`].
        let nodes = others.nodes();
        // Whether all nodes have been listed, and only salvaged entries are left.
        let is_behind = position.shard >> NODE_SHIFT >= nodes.len();
        let mut is_salvaged = is_behind || self.cluster.dead_nodes().invented(dir).is_some();
        while let Some(&node) = nodes.get(position.shard >> NODE_SHIFT) {
            let more = if node == others.this_node() {
                let base = position.shard >> NODE_SHIFT << NODE_SHIFT;
                position.shard -= base;
                let more = self.list_here(dir, position, &mut each);
                position.shard += base;
                more?
            } else {
                match self.list_remote(node, dir, position, &mut each) {
                    Err(Errno::HOSTDOWN) if self.cluster.dead_nodes().is_salvaged(node) => {
                        is_salvaged = true;
                        true
                    }
                    Err(Errno::HOSTDOWN) => {
                        position.is_partial = true;
                        true
                    }
                    more => more?,
                }
            };
            if !more {
                return Ok(());
            }
            position.shard = ((position.shard >> NODE_SHIFT) + 1) << NODE_SHIFT;
            position.name.clear();
        }
        if is_salvaged {
            for (name, entry) in self
                .cluster
                .dead_nodes()
                .salvaged_entries(dir, &position.name)
            {
                if !each(&name, entry) {
                    return Ok(());
                }
                position.name = name;
            }
        }
        if position.is_partial {
            Err(Errno::HOSTDOWN)
        } else {
            Ok(())
        }
    }

    /// As [`Namespace::list`], for the entries on another node; false if `each` returned false.
    fn list_remote(
        &self,
        node: NodeId,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<bool> {
        loop {
            let base = position.shard >> NODE_SHIFT << NODE_SHIFT;
            let arguments = (dir, (position.shard - base) as u64, &position.name[..]);
            let mut bytes = vec![0; LIST_BYTES];
            let room = Bytes::Receive(bytes.as_mut_ptr(), bytes.len());
            // SAFETY: `room` is the space of `bytes`, which outlives the request.
            let ((shard, end), n) = unsafe {
                self.cluster
                    .ask_with(node, request::LIST, &arguments, room)?
            };
            let list: List<Listed> = decode(&bytes[..n]).ok_or(Errno::PROTO)?;
            for Listed(shard, name, entry) in list.0 {
                let entry = match entry {
                    None => self.settled(dir, &name, position)?,
                    known => known,
                };
                if entry.is_some_and(|e| !each(&name, e)) {
                    return Ok(false);
                }
                position.shard = base + shard as usize;
                position.name = name;
            }
            if end {
                return Ok(true);
            }
            if base + shard as usize > position.shard {
                position.shard = base + shard as usize;
                position.name.clear();
            }
        }
    }

    /// Serves another node's [`Namespace::list_remote`]: returns entries, the shard to continue in,
    /// and whether all entries were returned.
    pub(crate) fn list_part(
        &self,
        dir: ObjectId,
        shard: u64,
        name: Vec<u8>,
    ) -> Result<(List<Listed>, u64, bool)> {
        let mut position = DirPosition {
            shard: usize::try_from(shard).map_err(|_| Errno::PROTO)?,
            name,
            is_partial: false,
        };
        if position.name.len() > forebay_store::NAME_MAX {
            return Err(Errno::PROTO);
        }
        let mut list = Vec::new();
        let mut bytes = 4;
        let mut end = true;
        while position.shard < self.store().files.count() {
            let at = position.shard as u64;
            let more =
                self.store()
                    .names()
                    .list_shard(dir, &mut position, &mut |name, entry| {
                        bytes += 8 + 4 + name.len() + 1 + 9;
                        if bytes > LIST_BYTES {
                            return false;
                        }
                        list.push(Listed(at, name.to_vec(), entry));
                        true
                    })?;
            if !more {
                end = false;
                break;
            }
            position.shard += 1;
        }
        Ok((List(list), position.shard as u64, end))
    }

    /// As [`Namespace::list`], for the entries on this node; false if `each` returned false.
    fn list_here(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<bool> {
        while position.shard < self.store().files.count() {
            let mut unsure = None;
            let more = self
                .store()
                .names()
                .list_shard(dir, position, &mut |name, entry| match entry {
                    Some(entry) => each(name, entry),
                    None => {
                        unsure = Some(name.to_vec());
                        false
                    }
                })?;
            // Waits for the operation that is changing the entry. Waiting isn't possible in the
            // middle of a scan.
            if let Some(name) = unsure {
                let entry = self.settled(dir, &name, position)?;
                if entry.is_some_and(|e| !each(&name, e)) {
                    return Ok(false);
                }
                position.name = name;
            } else if more {
                position.shard += 1;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns an entry after the operation that is changing it. If that operation waits for an
    /// unreachable node, the entry is omitted, like the unreachable node's entries.
    fn settled(
        &self,
        dir: ObjectId,
        name: &[u8],
        position: &mut DirPosition,
    ) -> Result<Option<Entry>> {
        match self.lookup(dir, name) {
            Err(Errno::HOSTDOWN) => {
                position.is_partial = true;
                Ok(None)
            }
            found => found,
        }
    }

    /// Records that an entry of `dir` was made or removed at `t`.
    ///
    /// At another node, the time is rounded down to a step of [`TICK`], as kernels round times,
    /// too. After one request, a second one in the same step would change nothing, so it isn't
    /// sent.
    pub(crate) fn touch_dir(&self, dir: ObjectId, t: i64) -> Result<()> {
        let remote = self.cluster.remote_home(dir);
        let t = if remote.is_some() { t - t % TICK } else { t };
        if let Some(home) = remote {
            let is_set = self
                .store()
                .names()
                .dir_times(dir)
                .is_some_and(|(mtime, _)| mtime == t);
            if is_set {
                return Ok(());
            }
            // The entry was made or removed already: a failure to set the time must not undo that.
            if self.cluster.ask(home, request::TOUCH, &(dir, t)).is_err() {
                return Ok(());
            }
        }
        self.store().names().note_dir_time(dir, t)
    }
}
