//! Link records of objects of any node.
//!
//! Each function sends a request to the object's home. The home carries out the request in one
//! transaction. Repeating a request does no harm.

use super::*;
use crate::peers::requests::request;

impl<'a> CrossNode<'a> {
    /// Records at the object the announcement that a rename will replace its name `from` by `name`.
    pub(crate) fn add_link(&self, id: ObjectId, name: Named<'_>, from: Named<'_>) -> Result<()> {
        match self.cluster.remote_home(id) {
            Some(home) => {
                let arguments = (id, name.0, name.1, from.0, from.1);
                self.cluster.ask(home, request::ADD_LINK, &arguments)
            }
            None => self.store().links().add_link_here(id, name, from),
        }
    }

    /// Whether a held entry counts as a name of its object: Some(true) if it does, Some(false) if
    /// it never will, None if that isn't decided yet.
    pub(crate) fn offered(&self, id: ObjectId, name: Named<'_>) -> Result<Option<bool>> {
        match self.cluster.remote_home(id) {
            Some(home) => self
                .cluster
                .ask(home, request::OFFERED, &(id, name.0, name.1)),
            None => self.store().links().offered_here(id, name),
        }
    }

    /// Withdraws the announced name from the object. `from` is the slot of the name that it was to
    /// replace.
    pub(crate) fn undo_link(&self, id: ObjectId, name: Named<'_>, from: u32) -> Result<()> {
        match self.cluster.remote_home(id) {
            Some(home) => self
                .cluster
                .ask(home, request::UNDO_LINK, &(id, name.0, name.1, from)),
            None => self.store().links().undo_link_here(id, name, from),
        }
    }

    /// Records at the object that it has lost a name: replaced by `new`, or removed. `again`: the
    /// same request may have been carried out before.
    pub(crate) fn lose_name(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
        again: bool,
    ) -> Result<()> {
        match self.cluster.remote_home(id) {
            Some(home) => {
                let new = new.map(|n| (n.0, n.1.to_vec()));
                self.cluster
                    .ask(home, request::DROP_LINK, &(id, name.0, name.1, new, again))
            }
            None => self.store().links().lose_name_here(id, name, new, again),
        }
    }

    /// Whether a rename of the object to `name` is in progress.
    pub(crate) fn has_coming(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        match self.cluster.remote_home(id) {
            Some(home) => self
                .cluster
                .ask(home, request::HAS_LINK, &(id, name.0, name.1)),
            None => self.store().links().has_coming_here(id, name),
        }
    }

    /// Lets lookups find a held entry if `stays`; else removes the entry.
    pub(crate) fn release_entry(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        match self.cluster.remote_home_of_entry(name.0, name.1) {
            Some(home) => self
                .cluster
                .ask(home, request::RELEASE, &(name.0, name.1, entry, stays)),
            None => self
                .store()
                .intents()
                .release_entry_here(name, entry, stays),
        }
    }
}
