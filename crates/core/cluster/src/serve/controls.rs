//! Requests about declared controls of files whose home is this node.

use super::{Call, checked};
use crate::peers::messages::List;
use crate::peers::requests::Controls;
use forebay_store::ObjectId;
use forebay_store::controls::DeclareOutcome;
use rustix::io::{Errno, Result};

impl Controls for Call<'_> {
    fn laminate(&self, id: ObjectId) -> Result<()> {
        let id = self.home(id)?;
        self.store().declared().laminate_here(id)
    }

    fn seal(&self, id: ObjectId, lease: u64, cuts: u64) -> Result<bool> {
        let id = self.home(id)?;
        self.store().declared().seal_here(id, (lease, cuts))
    }

    /// Unlike other handlers, this one doesn't check that this node is the home: the request is
    /// about the programs of this node that have the file open.
    fn count_uses(&self, id: ObjectId, word: u64, is_declared: bool) -> Result<List<u64>> {
        if id.is_part() || id.is_view() {
            return Err(Errno::PROTO);
        }
        let word = checked(word)?;
        self.cluster
            .declarations()
            .count_here(id, word, is_declared)
            .map(List)
    }

    fn begin_declaring(&self, id: ObjectId, word: u64) -> Result<Option<List<u32>>> {
        let (id, word) = (self.home(id)?, checked(word)?);
        let nodes = self.store().declared().begin_declaring_here(id, word)?;
        Ok(nodes.map(List))
    }

    fn end_declaring(&self, id: ObjectId, word: u64) -> Result<Option<DeclareOutcome>> {
        let (id, word) = (self.home(id)?, checked(word)?);
        self.store().declared().end_declaring_here(id, word)
    }
}
