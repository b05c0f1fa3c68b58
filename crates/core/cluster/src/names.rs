//! Looks up names and attributes of any node, and changes attributes.
//!
//! A lookup waits for an entry that is being renamed. A lookup on another node also returns
//! attributes, and with `open` opens the file, in the same request. If a change of attributes may
//! make resolved paths wrong, the node of names carries it out.

use crate::backoff::Backoff;
use crate::peers::messages::Record;
use crate::peers::requests::request;
use crate::views::Namespace;
use forebay_store::Opened;
use forebay_store::live::new_use;
use forebay_store::names::SetAttr;
use forebay_store::record::{Entry, Inode};
use forebay_store::views::Index;
use forebay_store::{NAME_MAX, NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::time::Instant;

/// The result of looking up a name ([`Namespace::find`]).
#[derive(Debug, Default)]
pub struct Found {
    /// None: the name has no entry.
    pub entry: Option<Entry>,
    /// The attributes, if the reply contained them.
    pub inode: Option<Inode>,
    /// The use by which the file is open on its home, if the lookup opened it.
    pub opened: Option<Opened>,
    /// `DeclaredControls::counts` as it was before the request.
    pub counts: u32,
}

impl<'a> Namespace<'a> {
    /// Returns the entry `name` of `parent`. Waits for a rename of the entry that is in progress.
    ///
    /// # Errors
    /// ENAMETOOLONG; EIO.
    pub fn lookup(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>> {
        let entry = self.lookup_entry(parent, name)?;
        Ok(entry.or_else(|| self.cluster.dead_nodes().salvaged_name(parent, name)))
    }

    fn lookup_entry(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if Index::is_in_view(parent, name) {
            return self.cluster.search().lookup_in_view(parent, name);
        }
        if let Some(home) = self.cluster.remote_home_of_entry(parent, name) {
            return match self.cluster.ask(home, request::LOOKUP, &(parent, name)) {
                Err(Errno::HOSTDOWN) => {
                    self.cluster.dead_nodes().salvaged_entry(home, parent, name)
                }
                reply => reply,
            };
        }
        let mut backoff = None;
        loop {
            match self.store().names().lookup_here(parent, name) {
                Ok(Some((_, true))) => {
                    self.cluster
                        .cross_node()
                        .wait_for_move((parent, name), backoff.get_or_insert_with(Backoff::new))?;
                }
                found => return found.map(|found| found.map(|(entry, _)| entry)),
            }
        }
    }

    /// As [`Namespace::lookup`]. If the reply comes from another node, also returns the object's
    /// attributes and, with `open`, the use by which that node has opened the object (if the object
    /// is a file).
    ///
    /// # Errors
    /// As for [`Namespace::lookup`].
    pub fn find(&self, parent: ObjectId, name: &[u8], open: bool) -> Result<Found> {
        forebay_trace::span!(
            CLUSTER_LOOKUP_ENTER,
            CLUSTER_LOOKUP_EXIT,
            name,
            [parent.0],
            self.find_entry(parent, name, open)
        )
    }

    #[inline(always)]
    fn find_entry(&self, parent: ObjectId, name: &[u8], open: bool) -> Result<Found> {
        let counts = self.store().declared().counts();
        let remote = match name.len() {
            ..=NAME_MAX => self.cluster.remote_home_of_entry(parent, name),
            _ => None,
        };
        let Some(home) = remote else {
            let entry = self.lookup(parent, name)?;
            return Ok(Found {
                entry,
                inode: None,
                opened: None,
                counts,
            });
        };
        let (number, asked_at) = (new_use(), Instant::now());
        let reply: Result<(Option<Entry>, Option<Record>, bool)> = if open {
            self.cluster
                .ask(home, request::LOOKUP_OPEN, &(parent, name, number))
        } else {
            let reply = self
                .cluster
                .ask(home, request::LOOKUP_STAT, &(parent, name));
            reply.map(|(entry, record)| (entry, record, false))
        };
        let (entry, record, is_open) = match reply {
            Err(Errno::HOSTDOWN) => (
                self.cluster
                    .dead_nodes()
                    .salvaged_entry(home, parent, name)?,
                None,
                false,
            ),
            reply => reply?,
        };
        let entry = entry.or_else(|| self.cluster.dead_nodes().salvaged_name(parent, name));
        let id = entry.filter(|_| is_open).map(|e| e.id);
        Ok(Found {
            entry,
            inode: record.map(|r| r.0),
            opened: id.map(|id| Opened {
                home,
                id,
                number,
                asked_at,
            }),
            counts,
        })
    }

    /// Returns the present attributes of `id`, even if it is open.
    ///
    /// # Errors
    /// ENOENT if there is no such object.
    pub fn stat(&self, id: ObjectId) -> Result<Inode> {
        forebay_trace::span!(
            CLUSTER_STAT_ENTER,
            CLUSTER_STAT_EXIT,
            [id.0],
            self.attributes_of(id)
        )
    }

    #[inline(always)]
    fn attributes_of(&self, id: ObjectId) -> Result<Inode> {
        if let Some((inode, _)) = self.cluster.dead_nodes().invented(id) {
            return Ok(inode);
        }
        if let Some(home) = self.cluster.remote_home(id) {
            return match self.stat_remote(home, id) {
                Err(Errno::HOSTDOWN) => self
                    .cluster
                    .dead_nodes()
                    .salvaged_inode(home, id)
                    .map(|(inode, _)| inode),
                record => record.map(|record| record.0),
            };
        }
        if id.is_view() {
            return self
                .cluster
                .search()
                .stat_in_view(id)
                .map(|(inode, _)| inode);
        }
        self.store().names().stat_here(id)
    }

    pub(crate) fn stat_remote(&self, home: NodeId, id: ObjectId) -> Result<Record> {
        self.cluster.ask(home, request::STAT, &id)
    }

    /// Returns the inode and the tail of its record: a link's target, a directory's own name.
    ///
    /// # Errors
    /// ENOENT if there is no such object.
    pub fn inode_tail(&self, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        if let Some(invented) = self.cluster.dead_nodes().invented(id) {
            return Ok(invented);
        }
        if let Some(home) = self.cluster.remote_home(id) {
            return match self.stat_remote(home, id) {
                Err(Errno::HOSTDOWN) => self.cluster.dead_nodes().salvaged_inode(home, id),
                record => record.map(|record| (record.0, record.1)),
            };
        }
        if id.is_view() {
            return self.cluster.search().stat_in_view(id);
        }
        self.store().names().inode_tail_here(id)
    }

    /// Returns the path of a directory, which may be one of the view.
    ///
    /// # Errors
    /// ENOENT if the directory was removed.
    pub fn path_of(&self, dir: ObjectId) -> Result<Vec<u8>> {
        self.store().names().path_by(dir, |id| self.inode_tail(id))
    }

    /// Changes attributes of `id`.
    ///
    /// # Errors
    /// ENOENT; ENOSPC; EROFS in the view.
    pub fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<()> {
        if id.is_view() {
            return Err(Errno::ROFS);
        }
        if let Some(node) = self.cluster.names_node()
            && set.of_names()
            && self.stat(id)?.is_dir()
        {
            return self.cluster.ask(node, request::NAMES_SET_ATTR, &(id, *set));
        }
        if let Some(home) = self.cluster.remote_home(id) {
            return self.cluster.ask(home, request::SET_ATTR, &(id, *set));
        }
        self.store().names().set_attr_here(id, set)
    }

    /// Lists the directory `parent` to find a name of `id` in it; None if there is none.
    ///
    /// # Errors
    /// EIO.
    pub fn name_in(&self, parent: ObjectId, id: ObjectId) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.list(parent, &mut Default::default(), |name, entry| {
            if entry.id == id {
                found = Some(name.to_vec());
            }
            found.is_none()
        })?;
        Ok(found)
    }
}
