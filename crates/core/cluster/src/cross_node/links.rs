//! Link records of objects of any node.
//!
//! Each function sends a request to the object's home, which carries it out in one transaction. All
//! can be repeated.

use super::*;
use crate::peers::requests::request;

impl<'a> CrossNode<'a> {
    /// Announces to the object a name whose entry is about to be made on another node, instead of
    /// `from`.
    pub(crate) fn add_link(&self, id: ObjectId, name: Named<'_>, from: Named<'_>) -> Result<()> {
        match self.remote_home(id) {
            Some(home) => {
                let arguments = (id, name.0, name.1, from.0, from.1);
                self.ask(home, request::ADD_LINK, &arguments)
            }
            None => self.links().add_link_here(id, name, from),
        }
    }

    /// The state of a link whose entry is held on another node: Some(true) it counts, Some(false)
    /// it won't, None: that isn't known yet.
    pub(crate) fn offered(&self, id: ObjectId, name: Named<'_>) -> Result<Option<bool>> {
        match self.remote_home(id) {
            Some(home) => self.ask(home, request::OFFERED, &(id, name.0, name.1)),
            None => self.links().offered_here(id, name),
        }
    }

    /// Withdraws the announced name from the object, for which it was to lose the name in slot
    /// `from`.
    pub(crate) fn undo_link(&self, id: ObjectId, name: Named<'_>, from: u32) -> Result<()> {
        match self.remote_home(id) {
            Some(home) => self.ask(home, request::UNDO_LINK, &(id, name.0, name.1, from)),
            None => self.links().undo_link_here(id, name, from),
        }
    }

    /// Tells the object that it has lost a name whose entry lay on another node: replaced by `new`,
    /// or removed. `again`: it may have been told before.
    pub(crate) fn lose_name(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
        again: bool,
    ) -> Result<()> {
        match self.remote_home(id) {
            Some(home) => {
                let new = new.map(|n| (n.0, n.1.to_vec()));
                self.ask(home, request::DROP_LINK, &(id, name.0, name.1, new, again))
            }
            None => self.links().lose_name_here(id, name, new, again),
        }
    }

    /// Whether a rename to the name is still on its way.
    pub(crate) fn has_coming(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        match self.remote_home(id) {
            Some(home) => self.ask(home, request::HAS_LINK, &(id, name.0, name.1)),
            None => self.links().has_coming_here(id, name),
        }
    }

    /// A held entry is kept, or removed.
    pub(crate) fn release_entry(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        match self.remote_home_of_entry(name.0, name.1) {
            Some(home) => self.ask(home, request::RELEASE, &(name.0, name.1, entry, stays)),
            None => self.intents().release_entry_here(name, entry, stays),
        }
    }
}
