//! Creates objects: on this node, at the home of the entry, or on a node with room.
//!
//! A file of distribution `local` lies on the node of its creator, its entry at the entry's home.
//! If the creator's node is nearly full, or its records have no room, it asks up to eight nodes
//! with more room to create the file. Other objects lie on the node of their entry, unless their
//! directory keeps its entries on one node (`local-all`).
//!
//! A file that is created to be opened is open before any other process sees its name: so a process
//! that removes the name right afterwards removes the name of an open file.

use crate::live::RemoteOpen;
use crate::peers::requests::{Signature, arguments, replies, request};
use crate::views::Namespace;
use forebay_store::Opened;
use forebay_store::live::{Held, new_use};
use forebay_store::names::Opening;
use forebay_store::record::{Entry, Inode};
use forebay_store::views::Index;
use forebay_store::{Distribution, NAME_MAX, NewObject, NodeId, ObjectId, Result, Slot, now};
use rustix::io::Errno;
use std::time::Instant;

impl<'a> Namespace<'a> {
    /// Creates a new object named `name` in `parent`. Returns its id; or, as `Ok(Err(entry))`, the
    /// existing entry.
    ///
    /// # Errors
    /// ESTALE if names changed since `epoch`; ENOSPC; ENAMETOOLONG.
    pub fn create_object(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        self.make_with_room(parent, name, new, epoch, &mut None)
    }

    /// As [`Namespace::create_object`], but on this node or on the entry's home, whichever has
    /// room: for an operation on behalf of another node.
    pub(crate) fn create_object_near(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        self.make(parent, name, new, epoch, &mut None)
    }

    /// As [`Namespace::create_open`], for an operation on behalf of another node.
    pub(crate) fn create_open_near(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<(ObjectId, u32, Held<'a>), Entry>> {
        self.create_opened(new, |opened| self.make(parent, name, new, epoch, opened))
    }

    /// As [`Namespace::create_object`] for a file, and opens the file in the same step: a process
    /// that removes the file's name right afterwards removes the name of an open file. Returns the
    /// file's id, its live entry, and the record of this process's use ([`Held`]).
    ///
    /// # Errors
    /// As for [`Namespace::create_object`]; ENFILE.
    pub fn create_open(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<std::result::Result<(ObjectId, u32, Held<'a>), Entry>> {
        forebay_trace::span!(
            CLUSTER_CREATE_ENTER,
            CLUSTER_CREATE_EXIT,
            name,
            [parent.0],
            self.create_opened(new, |opened| {
                self.make_with_room(parent, name, new, epoch, opened)
            })
        )
    }

    fn create_opened(
        &self,
        new: &NewObject<'_>,
        make: impl FnOnce(&mut Option<Opening<'_, '_>>) -> Result<std::result::Result<ObjectId, Entry>>,
    ) -> Result<std::result::Result<(ObjectId, u32, Held<'a>), Entry>> {
        let held = self.store().objects().place()?;
        let _section = self.store().section()?;
        let mut opened = Some(Opening {
            held: &held,
            live: None,
            remote: None,
        });
        let made = make(&mut opened);
        let (live, opened) = opened.map_or((None, None), |o| (o.live, o.remote));
        match (made, live) {
            (Ok(Ok(id)), Some(live)) => Ok(Ok((id, live, held))),
            (Ok(Ok(id)), None) => {
                // The file was created on another node.
                drop(held);
                let mut remote = RemoteOpen {
                    opened,
                    ..RemoteOpen::default()
                };
                let acquired = self.cluster.opens().live_acquire_opened(id, &mut remote);
                if let Ok((live, _)) = &acquired {
                    let inode = Inode {
                        controls: new.controls,
                        ..Inode::default()
                    };
                    self.cluster.declarations().note_controls(*live, &inode);
                }
                if let Some(unused) = remote.opened {
                    self.cluster.opens().close_opened(unused);
                }
                let (live, held) = acquired?;
                Ok(Ok((id, live, held)))
            }
            (other, live) => {
                drop(held);
                if let Some(live) = live {
                    self.store().objects().live_release(live)?;
                }
                other.map(|made| made.map(|_| unreachable!("the cases before")))
            }
        }
    }

    /// Whether this node's free room is less than 1/32 of its media and less than 16 MiB. Files are
    /// then created on nodes with more room.
    fn is_nearly_full(&self) -> bool {
        let (mut capacity, mut free) = (0, 0);
        for medium in &self.store().media {
            let usage = medium.usage();
            capacity += usage.capacity;
            free += usage.capacity.saturating_sub(usage.used);
        }
        free < (capacity / 32).min(16 << 20)
    }

    /// As [`Namespace::make`]; but if this node has no room for a file, creates the file on a node
    /// that has room.
    fn make_with_room(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let local = new.mode & forebay_store::S_IFMT == libc::S_IFREG
            && self.store().remote.is_some()
            && new.creator.is_none()
            && self.distribution_of(parent, new) == Distribution::Local
            && !Index::is_in_view(parent, name);
        if !local {
            return self.make(parent, name, new, epoch, opened);
        }
        if !self.is_nearly_full() {
            match self.make(parent, name, new, epoch, opened) {
                // This node has no room for the file's records.
                Err(Errno::NOSPC) => self.close_unmade(opened)?,
                made => return made,
            }
        }
        let hash = u64::from(Slot::of_entry(parent, name).0);
        for node in self.cluster.stripes().roomy_nodes(hash).into_iter().take(8) {
            if self.cluster.other_nodes()?.this_node() == node {
                break;
            }
            match self.ask_to_make(
                (node, request::CREATE_THERE),
                (parent, name),
                new,
                epoch,
                opened,
            ) {
                Err(Errno::NOSPC | Errno::HOSTDOWN) => {}
                made => return made,
            }
        }
        self.make(parent, name, new, epoch, opened)
    }

    /// Closes the file of a failed transaction. The file has a live entry but doesn't exist.
    /// Another node is to create the file.
    fn close_unmade(&self, opened: &mut Option<Opening<'_, '_>>) -> Result<()> {
        if let Some(opening) = opened
            && let Some(live) = opening.live.take()
        {
            opening.held.unset();
            self.store().objects().live_release(live)?;
        }
        Ok(())
    }

    /// Makes another node create an object. With `opened`, that node opens the object, if it is a
    /// file, in the same request.
    fn ask_to_make(
        &self,
        (node, request): (NodeId, Signature<arguments::CREATE, replies::CREATE>),
        (parent, name): (ObjectId, &[u8]),
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let what = (new.mode, new.uid, new.gid, new.rdev, new.target);
        let is_file = new.mode & forebay_store::S_IFMT == libc::S_IFREG;
        let number = (opened.is_some() && is_file).then(new_use);
        let bits = self.distribution_of(parent, new).bits();
        let arguments = (
            (parent, name),
            what,
            bits,
            new.controls,
            epoch,
            number,
            (new.creator, new.stub),
        );
        let asked_at = Instant::now();
        let made = self.cluster.ask(node, request, &arguments)?;
        if let (Ok(id), Some(number), Some(opening)) = (&made, number, opened) {
            let (home, id) = (node, *id);
            opening.remote = Some(Opened {
                home,
                id,
                number,
                asked_at,
            });
        }
        Ok(made)
    }

    /// Creates an object at the place that its distribution requires: on this node, or on another
    /// with a request. With `opened`, a file that is created on this node has a live entry before
    /// any other process sees it. Result as for [`Namespace::create_object`].
    fn make(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if Index::is_in_view(parent, name) {
            return self.lookup(parent, name)?.map(Err).ok_or(Errno::ROFS);
        }
        let distribution = self.distribution_of(parent, new);
        let local = self.is_made_here(parent, new);
        let new = &NewObject {
            distribution: Some(distribution),
            ..*new
        };
        if let Some(home) = self.cluster.remote_home_of_entry(parent, name) {
            if local
                && let Some(made) = self.cluster.cross_node().create_apart(
                    home,
                    (parent, name),
                    new,
                    epoch,
                    opened,
                )?
            {
                return Ok(made);
            }
            return self.ask_to_make((home, request::CREATE), (parent, name), new, epoch, opened);
        }
        self.create_beside(parent, name, new, epoch, opened)
    }

    /// Whether an object is created on this node even if its entry lies on another node, as long as
    /// this node has room.
    pub(crate) fn is_made_here(&self, parent: ObjectId, new: &NewObject<'_>) -> bool {
        let kind = new.mode & forebay_store::S_IFMT;
        let local = match self.distribution_of(parent, new) {
            Distribution::Striped(_) => false,
            Distribution::LocalAll => matches!(kind, libc::S_IFREG | libc::S_IFDIR),
            Distribution::Local => kind == libc::S_IFREG,
        };
        // The placeholder of an origin's file has no writer on any node: such files are spread over
        // all nodes.
        local && new.stub.is_none()
    }

    /// Creates an object and its entry, both on this node.
    fn create_beside(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        let is_dir = new.mode & forebay_store::S_IFMT == libc::S_IFDIR;
        let counts = is_dir && self.cluster.remote_home(parent).is_none();
        let t = now();
        let made = self.cluster.cross_node().retry_noted((parent, name), || {
            self.store()
                .names()
                .create_here((parent, name), new, (epoch, t), counts, opened)
        })?;
        if made.is_ok() {
            self.touch_dir(parent, t)?;
            if is_dir && !counts {
                self.cluster.cross_node().add_dir_links(parent, 1)?;
            }
        }
        Ok(made)
    }

    /// Returns the distribution of an object that is created in `parent`.
    fn distribution_of(&self, parent: ObjectId, new: &NewObject<'_>) -> Distribution {
        let wanted = new.distribution.unwrap_or(parent.distribution());
        match new.mode & forebay_store::S_IFMT {
            _ if self.store().remote.is_none() => Distribution::Local,
            libc::S_IFDIR => wanted,
            libc::S_IFREG => match wanted {
                Distribution::Striped(_) => wanted,
                // A file is never `local-all`: that distribution concerns a directory's entries.
                _ => Distribution::Local,
            },
            _ => Distribution::Local,
        }
    }

    /// Creates an object without a name (O_TMPFILE). The last close removes it, unless it has got a
    /// name.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn create_unnamed(&self, parent: ObjectId, new: &NewObject<'_>) -> Result<ObjectId> {
        self.store().index().refuse_view(parent, b"")?;
        let name = format!("\0{}.{}", forebay_store::process::pid(), now());
        let slot = Slot::of_entry(parent, name.as_bytes());
        let slot = match self.cluster.peers() {
            Some(others) => others.slot_here(u64::from(slot.0)).ok_or(Errno::NOSPC)?,
            None => slot,
        };
        self.store().names().create_unnamed_here(slot, new)
    }

    /// Adds one more name for the object `id`.
    ///
    /// # Errors
    /// EEXIST; ENOENT if the object has no name left; EMLINK; ESTALE; ENOSPC.
    pub fn link(&self, id: ObjectId, parent: ObjectId, name: &[u8], epoch: u64) -> Result<()> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.store().index().refuse_view(parent, name)?;
        if id.is_view() {
            return Err(Errno::XDEV);
        }
        if let Some(home) = self.cluster.remote_home(id) {
            return self
                .cluster
                .ask(home, request::LINK, &(id, parent, name, epoch));
        }
        if let Some(home) = self.cluster.remote_home_of_entry(parent, name) {
            return self
                .cluster
                .cross_node()
                .link_across(home, id, (parent, name), epoch);
        }
        let t = now();
        let nameless = self.cluster.cross_node().retry_noted((parent, name), || {
            self.store()
                .names()
                .link_here(id, (parent, name), (epoch, t))
        })?;
        if nameless {
            self.store().names().unmark_named(id)?;
        }
        self.store().names().set_live_ctime(id, t)?;
        self.touch_dir(parent, t)
    }
}
