//! Requests about declared controls of files whose home is this node.

use super::{Call, Server, checked, home};
use crate::peers::messages::List;
use crate::peers::requests::Controls;
use forebay_store::ObjectId;
use forebay_store::controls::DeclareOutcome;
use rustix::io::Errno;

impl Controls<Call<'_>> for Server {
    fn laminate(&self, call: &Call<'_>, id: ObjectId) -> Result<(), Errno> {
        let id = home(&call.cluster, id)?;
        call.store().declared().laminate_here(id)
    }

    fn seal(&self, call: &Call<'_>, id: ObjectId, lease: u64, cuts: u64) -> Result<bool, Errno> {
        let id = home(&call.cluster, id)?;
        call.store().declared().seal_here(id, (lease, cuts))
    }

    /// Unlike other handlers, this one doesn't check that this node is the home: the request is
    /// about the programs of this node that have the file open.
    fn count_uses(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        word: u64,
        is_declared: bool,
    ) -> Result<List<u64>, Errno> {
        if id.is_part() || id.is_view() {
            return Err(Errno::PROTO);
        }
        let word = checked(word)?;
        call.cluster
            .declarations()
            .count_here(id, word, is_declared)
            .map(List)
    }

    fn begin_declaring(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        word: u64,
    ) -> Result<Option<List<u32>>, Errno> {
        let (id, word) = (home(&call.cluster, id)?, checked(word)?);
        let nodes = call.store().declared().begin_declaring_here(id, word)?;
        Ok(nodes.map(List))
    }

    fn end_declaring(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        word: u64,
    ) -> Result<Option<DeclareOutcome>, Errno> {
        let (id, word) = (home(&call.cluster, id)?, checked(word)?);
        call.store().declared().end_declaring_here(id, word)
    }
}
