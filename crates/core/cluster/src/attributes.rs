//! Extended attributes of objects of any node.
//!
//! The object's home stores them. A value of up to `MAX_VALUE` bytes travels after the message's
//! arguments.

use crate::peers::Bytes;
use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::views::Namespace;
use forebay_store::attributes::MAX_VALUE;
use forebay_store::names::Named;
use forebay_store::{ObjectId, Result};
use rustix::io::Errno;

impl<'a> Namespace<'a> {
    /// Returns the value of the extended attribute `name`.
    ///
    /// # Errors
    /// ENODATA if the object has no such attribute; ENOENT; EHOSTDOWN.
    pub fn attribute(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        let Some(home) = self.cluster.remote_home(id) else {
            return self.store().names().attribute_here(id, name);
        };
        let mut value = vec![0; MAX_VALUE];
        let bytes = Bytes::Receive(value.as_mut_ptr(), value.len());
        // SAFETY: `bytes` are those of `value`, which outlives the request.
        let reply = unsafe {
            self.cluster
                .ask_with(home, request::ATTRIBUTE, &(id, name), bytes)?
        };
        value.truncate(reply.1);
        Ok(value)
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// ENOENT; EHOSTDOWN.
    pub fn attributes(&self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        if self.cluster.dead_nodes().invented(id).is_some() {
            return Ok(Vec::new());
        }
        let Some(home) = self.cluster.remote_home(id) else {
            return self.store().names().attributes_here(id);
        };
        let names: Result<List<Vec<u8>>> = self.cluster.ask(home, request::ATTRIBUTES, &id);
        match names {
            // The directory's home is dead, so the directory's extended attributes can't be read.
            Err(Errno::HOSTDOWN) => self
                .cluster
                .dead_nodes()
                .salvaged_inode(home, id)
                .map(|_| Vec::new()),
            names => names.map(|names| names.0),
        }
    }

    /// Sets an extended attribute. `create`: Some(true): the attribute must be new; Some(false):
    /// the attribute must exist. `known`: a name of the object, if the caller has one; the search
    /// index stores the object's attributes under that name.
    ///
    /// # Errors
    /// EEXIST, ENODATA, ENOSPC, ENOENT; EROFS in the view; EHOSTDOWN.
    pub fn set_attribute(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        create: Option<bool>,
        known: Option<Named<'_>>,
    ) -> Result<()> {
        let Some(home) = self.cluster.remote_home(id) else {
            return self
                .store()
                .names()
                .set_attribute_here(id, name, value, create, known);
        };
        let bytes = Bytes::Send(value.as_ptr(), value.len());
        let known = known.map(|(dir, name)| (dir, name.to_vec()));
        let arguments = (id, name, create, known);
        // SAFETY: `bytes` are those of `value`, which outlives the request.
        let reply = unsafe {
            self.cluster
                .ask_with(home, request::SET_ATTRIBUTE, &arguments, bytes)
        };
        reply.map(|((), _)| ())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA if the object has no such attribute; ENOENT; EROFS in the view; EHOSTDOWN.
    pub fn remove_attribute(&self, id: ObjectId, name: &[u8]) -> Result<()> {
        match self.cluster.remote_home(id) {
            Some(home) => self
                .cluster
                .ask(home, request::REMOVE_ATTRIBUTE, &(id, name)),
            None => self.store().names().remove_attribute_here(id, name),
        }
    }
}
