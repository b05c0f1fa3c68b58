//! Link records of objects of any node.
//!
//! Each function goes to the object's home, which carries it out in one transaction. All can be
//! repeated.

use super::*;
use crate::peers::requests::request;

impl<'a> CrossNode<'a> {
    /// The object is to get a name whose entry is about to be made elsewhere, instead of `from`.
    pub(crate) fn add_link(&self, id: ObjectId, name: Named<'_>, from: Named<'_>) -> Result<()> {
        match self.object_away(id) {
            Some(home) => {
                let question = (id, name.0, name.1, from.0, from.1);
                self.ask(home, request::ADD_LINK, &question)
            }
            None => self.links().add_link_here(id, name, from),
        }
    }

    /// What has become of a link whose entry is held elsewhere: Some(true) it counts, Some(false)
    /// it won't, None: that isn't known yet.
    pub(crate) fn offered(&self, id: ObjectId, name: Named<'_>) -> Result<Option<bool>> {
        match self.object_away(id) {
            Some(home) => self.ask(home, request::OFFERED, &(id, name.0, name.1)),
            None => self.links().offered_here(id, name),
        }
    }

    /// The object doesn't get the name after all for which it was to lose that in slot `from`.
    pub(crate) fn undo_link(&self, id: ObjectId, name: Named<'_>, from: u32) -> Result<()> {
        match self.object_away(id) {
            Some(home) => self.ask(home, request::UNDO_LINK, &(id, name.0, name.1, from)),
            None => self.links().undo_link_here(id, name, from),
        }
    }

    /// The object has lost a name whose entry lay elsewhere: to `new`, or altogether. `again`: that
    /// may have been done before.
    pub(crate) fn lose_name(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
        again: bool,
    ) -> Result<()> {
        match self.object_away(id) {
            Some(home) => {
                let new = new.map(|n| (n.0, n.1.to_vec()));
                self.ask(home, request::DROP_LINK, &(id, name.0, name.1, new, again))
            }
            None => self.links().lose_name_here(id, name, new, again),
        }
    }

    /// Whether a rename to the name is still on its way.
    pub(crate) fn has_coming(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        match self.object_away(id) {
            Some(home) => self.ask(home, request::HAS_LINK, &(id, name.0, name.1)),
            None => self.links().has_coming_here(id, name),
        }
    }

    /// A held entry stays, or goes.
    pub(crate) fn release_entry(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        match self.entry_away(name.0, name.1) {
            Some(home) => self.ask(home, request::RELEASE, &(name.0, name.1, entry, stays)),
            None => self.intents().release_entry_here(name, entry, stays),
        }
    }
}
