//! Changes of directories and symbolic links, which can make resolved paths wrong.
//!
//! In a pool of several nodes, one node (the node of names) carries out these changes, one at a
//! time. The node of names first notifies all nodes that names are about to change (FREEZE): from
//! then on the nodes resolve paths again, and create nothing in a directory that is to be removed.
//! Then the node of names makes the entry's home carry out the change, and notifies all nodes of
//! its end (THAW). Changes of other files' names continue meanwhile.

use super::Call;
use crate::backoff::Backoff;
use crate::cross_node::without_change;
use crate::peers::requests::{Directories, request};
use crate::views::CrossNode;
use crate::views::Namespace;
use forebay_store::dirs::DirPosition;
use forebay_store::names::is_on_paths;
use forebay_store::{Entry, ObjectId, RenameMode, Result, SetAttr};
use rustix::io::Errno;

impl Directories for Call<'_> {
    fn epoch(&self) -> Result<u64> {
        Ok(self.store().names_epoch().now())
    }

    fn freeze(&self, epoch: u64, dir: ObjectId) -> Result<bool> {
        self.store().intents().freeze(epoch, dir)
    }

    fn thaw(&self, epoch: u64) -> Result<()> {
        self.store().names_epoch().thaw(epoch);
        Ok(())
    }

    fn names_rmdir(&self, parent: ObjectId, name: Vec<u8>, epoch: u64) -> Result<()> {
        let cross_node = self.cluster.cross_node();
        self.store().names_epoch().agreed_with(epoch)?;
        let entry = self
            .cluster
            .namespace()
            .lookup(parent, &name)?
            .ok_or(Errno::NOENT)?;
        if entry.kind != libc::S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        cross_node.unless_filled(entry.id, || {
            cross_node.while_frozen(entry.id, |_, empty| {
                if empty {
                    cross_node.remove_dir(parent, &name)
                } else {
                    Err(Errno::NOTEMPTY)
                }
            })
        })
    }

    fn names_rename(
        &self,
        from: ObjectId,
        name: Vec<u8>,
        to: ObjectId,
        new: Vec<u8>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        let cross_node = self.cluster.cross_node();
        self.store().names_epoch().agreed_with(epoch)?;
        let source = self
            .cluster
            .namespace()
            .lookup(from, &name)?
            .ok_or(Errno::NOENT)?;
        let target = self.cluster.namespace().lookup(to, &new)?;
        if let Some(target) = target
            && let Some(answer) = without_change(mode, source, target)
        {
            // Only this node moves directories and symbolic links. So if the source or the target
            // is one, it didn't move between the two look-ups, and the answer holds. If neither is,
            // both may have moved meanwhile.
            return if is_on_paths(source) || is_on_paths(target) {
                answer
            } else {
                Err(Errno::REMOTE)
            };
        }
        if source.kind == libc::S_IFDIR && cross_node.is_within(to, source.id)? {
            return Err(Errno::INVAL);
        }
        if mode == RenameMode::Exchange {
            let target = target.ok_or(Errno::NOENT)?;
            if target.kind == libc::S_IFDIR && cross_node.is_within(from, target.id)? {
                return Err(Errno::INVAL);
            }
            return cross_node.while_frozen(ObjectId(0), |epoch, _| {
                cross_node.exchange((from, &name), (to, &new), true, epoch)
            });
        }
        let replaced = target.filter(|t| t.kind == libc::S_IFDIR);
        let frozen = replaced.map_or(ObjectId(0), |t| t.id);
        let rename = |epoch, empty: bool| {
            if replaced.is_some() && !empty {
                return Err(not_replaced(source));
            }
            cross_node.rename_from((from, &name), (to, &new), mode, Some(frozen), epoch)
        };
        cross_node.unless_filled(frozen, || cross_node.while_frozen(frozen, rename))
    }

    fn names_set_attr(&self, id: ObjectId, set: SetAttr) -> Result<()> {
        let cluster = &self.cluster;
        let store = self.store();
        // Setting an origin's mark must wait for all changes of names that began before. Freezing
        // the object waits for these changes, since it takes the locks of all shards, as freezing a
        // directory does.
        let frozen = match set.origin {
            Some(_) => id,
            None => ObjectId(0),
        };
        cluster.cross_node().while_told(
            frozen,
            Unreachable::of_set_attr(&set),
            |_, _| match cluster.remote_home(id) {
                Some(home) => cluster.ask(home, request::SET_ATTR, &(id, set)),
                None => store.names().set_attr_here(id, &set),
            },
        )
    }

    fn names_unlink(&self, parent: ObjectId, name: Vec<u8>, epoch: u64) -> Result<()> {
        let cluster = &self.cluster;
        let store = self.store();
        store.names_epoch().agreed_with(epoch)?;
        cluster.cross_node().while_frozen(ObjectId(0), |epoch, _| {
            match cluster.remote_home_of_entry(parent, &name) {
                Some(home) => cluster.ask(home, request::UNLINK, &(parent, &name[..], epoch, true)),
                None => cluster
                    .namespace()
                    .unlink_here(parent, &name, None, epoch, true),
            }
        })
    }
}

/// Returns the error of renaming `source` over a directory that isn't empty.
fn not_replaced(source: Entry) -> Errno {
    match source.kind {
        libc::S_IFDIR => Errno::NOTEMPTY,
        _ => Errno::ISDIR,
    }
}

impl<'a> Namespace<'a> {
    /// Thaws the directories that an earlier daemon may have left frozen. To be called on the node
    /// of names before its first change.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached; the caller should try again.
    pub fn begin_names(&self) -> Result<()> {
        let nodes = self.cluster.other_nodes()?;
        for epoch in self.cluster.ask_each(nodes.nodes(), request::EPOCH, &()) {
            self.store().names_epoch().raise(epoch?);
        }
        let epoch = ((self.store().names_epoch().now() >> 32) + 1) << 32;
        let reply = self.cluster.ask_each(nodes.nodes(), request::THAW, &epoch);
        reply.into_iter().collect()
    }
}

/// Whether names may change while a node can't be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unreachable {
    Forbids,
    /// The change is made without the unreachable node. When that node is back, it learns of the
    /// change before it changes anything on other nodes: other nodes refuse the old epoch in its
    /// requests.
    IsLeftOut,
}

impl Unreachable {
    /// Unreachable nodes may miss a change of an origin's mark: otherwise no changes could be
    /// written back while a node is dead. Objects of the dead node don't change meanwhile, and
    /// changing its entries of other nodes' objects takes requests to these nodes. But all nodes
    /// must know that a directory is released: a process that changes such a directory afterwards
    /// first fetches the directory's entries from the origin.
    fn of_set_attr(set: &SetAttr) -> Unreachable {
        let is_only_mark = SetAttr {
            origin: None,
            ..*set
        } == SetAttr::default();
        match set.origin {
            Some(mark) if is_only_mark && !mark.is_released() => Unreachable::IsLeftOut,
            _ => Unreachable::Forbids,
        }
    }
}

impl<'a> CrossNode<'a> {
    /// Runs `change`, and repeats it while it returns ENOTEMPTY although a listing of `dir` shows
    /// no entry: `dir` then had an entry that was being removed, or that lookups couldn't find yet.
    fn unless_filled(&self, dir: ObjectId, change: impl Fn() -> Result<()>) -> Result<()> {
        let mut backoff = Backoff::new();
        loop {
            match change() {
                Err(Errno::NOTEMPTY) => {}
                result => return result,
            }
            let mut filled = false;
            self.cluster
                .namespace()
                .list(dir, &mut DirPosition::default(), |_, _| {
                    filled = true;
                    false
                })?;
            if filled {
                return Err(Errno::NOTEMPTY);
            }
            backoff.wait()?;
        }
    }

    /// Runs `change` while all nodes know that names change and create nothing in `dir` (0: no
    /// directory). The parameters of `change` are the epoch, and whether `dir` is empty.
    ///
    /// # Errors
    /// Those of `change`; EHOSTDOWN if a node can't be reached: then nothing has been changed.
    fn while_frozen(
        &self,
        dir: ObjectId,
        change: impl FnOnce(u64, bool) -> Result<()>,
    ) -> Result<()> {
        self.while_told(dir, Unreachable::Forbids, change)
    }

    /// As [`CrossNode::while_frozen`], for changes that unreachable nodes needn't learn.
    fn while_told(
        &self,
        dir: ObjectId,
        unreachable: Unreachable,
        change: impl FnOnce(u64, bool) -> Result<()>,
    ) -> Result<()> {
        let nodes = self.cluster.other_nodes()?;
        let others: Vec<_> = nodes
            .nodes()
            .iter()
            .copied()
            .filter(|n| *n != nodes.this_node())
            .collect();
        let next = |epoch: u64| (epoch >> 32).wrapping_add(1) << 32;
        let epoch = next(self.store().names_epoch().now());
        let mut empty = !self.store().intents().freeze(epoch, dir)?;
        let mut result = Ok(());
        for reply in self
            .cluster
            .ask_each(&others, request::FREEZE, &(epoch, dir))
        {
            match reply {
                Ok(entries) => empty &= !entries,
                Err(Errno::HOSTDOWN) if unreachable == Unreachable::IsLeftOut => {}
                Err(e) => result = Err(e),
            }
        }
        if result == Err(Errno::STALE) {
            // Another node knows a later epoch: this node's control region was rebuilt.
            for node in &others {
                match self.cluster.ask(*node, request::EPOCH, &()) {
                    Err(Errno::HOSTDOWN) if unreachable == Unreachable::IsLeftOut => {}
                    epoch => self.store().names_epoch().raise(epoch?),
                }
            }
        }
        let result = result.and_then(|()| change(self.store().names_epoch().now(), empty));
        let after = next(self.store().names_epoch().now());
        self.store().names_epoch().thaw(after);
        // An unreachable node learns the epoch later: its next request is refused with ESTALE.
        let _ = self.cluster.ask_each(&others, request::THAW, &after);
        result
    }

    /// Removes an empty, frozen directory.
    fn remove_dir(&self, parent: ObjectId, name: &[u8]) -> Result<()> {
        match self.cluster.remote_home_of_entry(parent, name) {
            Some(home) => self.cluster.ask(home, request::REMOVE_DIR, &(parent, name)),
            None => self.remove_dir_entry((parent, name)),
        }
    }

    /// Whether directory `dir` is `ancestor` or lies below it, on any nodes.
    fn is_within(&self, mut dir: ObjectId, ancestor: ObjectId) -> Result<bool> {
        while dir != ObjectId::ROOT {
            if dir == ancestor {
                return Ok(true);
            }
            dir = ObjectId(self.cluster.namespace().stat(dir)?.parent);
        }
        Ok(dir == ancestor)
    }
}
