//! Removes names of any node, and objects with their last name.
//!
//! An entry on the same node as its object is removed in one transaction. For an entry whose object
//! lies on another node, see `cross_node`. In a pool of several nodes, the node of names removes
//! directories and symbolic links.

use crate::peers::requests::request;
use crate::views::Namespace;
use forebay_store::names::Named;
use forebay_store::record::Entry;
use forebay_store::{ObjectId, Result, now};
use rustix::io::Errno;

impl<'a> Namespace<'a> {
    /// Removes the entry `name` of `parent`. The entry must not be a directory's. `known` is the
    /// result of a lookup at `epoch`.
    ///
    /// # Errors
    /// ENOENT: the name doesn't exist. EISDIR: the object is a directory. ESTALE: names have
    /// changed since `epoch`. EROFS: the name is in the view. EHOSTDOWN: the entry's home can't be
    /// reached.
    pub fn unlink(
        &self,
        parent: ObjectId,
        name: &[u8],
        known: Option<Entry>,
        epoch: u64,
    ) -> Result<()> {
        forebay_trace::span!(
            CLUSTER_REMOVE_ENTER,
            CLUSTER_REMOVE_EXIT,
            name,
            [parent.0],
            self.remove_name(parent, name, known, epoch)
        )
    }

    fn remove_name(
        &self,
        parent: ObjectId,
        name: &[u8],
        known: Option<Entry>,
        epoch: u64,
    ) -> Result<()> {
        self.store().index().refuse_view(parent, name)?;
        if let Some(home) = self.cluster.remote_home_of_entry(parent, name)
            && known.is_none_or(|e| e.kind != libc::S_IFLNK)
        {
            match self
                .cluster
                .ask(home, request::UNLINK, &(parent, name, epoch, false))
            {
                Err(Errno::REMOTE) => {}
                result => return result,
            }
        } else {
            match self.unlink_here(parent, name, known, epoch, false) {
                Err(Errno::REMOTE) => {}
                result => return result,
            }
        }
        let node = self.cluster.names_node().ok_or(Errno::NODEV)?;
        self.cluster
            .ask(node, request::NAMES_UNLINK, &(parent, name, epoch))
    }

    /// As [`Namespace::unlink`], for an entry on this node. `names`: the caller holds the right to
    /// change names of directories and symbolic links. Removing a symbolic link needs that right.
    ///
    /// # Errors
    /// Those of unlink; EREMOTE if the right to change such names is missing.
    pub(crate) fn unlink_here(
        &self,
        parent: ObjectId,
        name: &[u8],
        mut known: Option<Entry>,
        epoch: u64,
        names: bool,
    ) -> Result<()> {
        loop {
            let entry = match known.take() {
                Some(entry) => entry,
                None => self.lookup(parent, name)?.ok_or(Errno::NOENT)?,
            };
            if entry.kind == libc::S_IFDIR {
                return Err(Errno::ISDIR);
            }
            if entry.kind == libc::S_IFLNK && self.store().remote.is_some() && !names {
                return Err(Errno::REMOTE);
            }
            if self.cluster.remote_home(entry.id).is_some() {
                if self
                    .cluster
                    .cross_node()
                    .unlink_remote((parent, name), entry, epoch)?
                {
                    return Ok(());
                }
                continue;
            }
            if self.unlink_beside((parent, name), entry, epoch)? {
                return Ok(());
            }
        }
    }

    /// Removes the entry `name`, of a regular file and on this node, if it is still `entry`;
    /// returns false otherwise.
    ///
    /// # Errors
    /// ESTALE; EHOSTDOWN.
    pub(crate) fn unlink_entry(&self, name: Named<'_>, entry: Entry, epoch: u64) -> Result<bool> {
        if entry.kind != libc::S_IFREG {
            return Err(Errno::INVAL);
        }
        match self.cluster.remote_home(entry.id) {
            Some(_) => self.cluster.cross_node().unlink_remote(name, entry, epoch),
            None => self.unlink_beside(name, entry, epoch),
        }
    }

    /// Removes an entry that lies on this node together with its object. Returns false if the name
    /// has another entry now, or if another operation had to end first.
    fn unlink_beside(&self, name: Named<'_>, entry: Entry, epoch: u64) -> Result<bool> {
        let t = now();
        match self.store().names().remove_beside(name, entry, epoch, t) {
            Err(Errno::AGAIN) => {
                self.cluster
                    .cross_node()
                    .retry_noted(name, || self.store().intents().note_gone(name))?;
                Ok(false)
            }
            Ok(true) => self.touch_dir(name.0, t).map(|()| true),
            other => other,
        }
    }

    /// Removes the empty directory `name` of `parent`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, ESTALE.
    pub fn rmdir(&self, parent: ObjectId, name: &[u8], epoch: u64) -> Result<()> {
        self.store().index().refuse_view(parent, name)?;
        if let Some(node) = self.cluster.names_node() {
            return self
                .cluster
                .ask(node, request::NAMES_RMDIR, &(parent, name, epoch));
        }
        let t = now();
        self.store()
            .names()
            .rmdir_here((parent, name), (epoch, t))?;
        self.touch_dir(parent, t)
    }
}
