//! Requests about this node's share of the index of attributes.

use super::{Call, Server, home};
use crate::peers::messages::List;
use crate::peers::requests::Search;
use forebay_store::index::find::{Described, Place, Wanted};
use forebay_store::index::query::{Hit, Page, Written};
use forebay_store::record::{Mark, Word};
use forebay_store::{Match, ObjectId, OwnedName};
use rustix::io::Errno;

impl Search<Call<'_>> for Server {
    fn search(
        &self,
        call: &Call<'_>,
        List(words): List<Word>,
        from: Mark,
        only: Option<u64>,
        most: u64,
    ) -> Result<Page<Hit, Mark>, Errno> {
        call.store().index().search_part(&words, from, only, most)
    }

    fn written(
        &self,
        call: &Call<'_>,
        of: Option<u64>,
        from: u64,
        most: u64,
    ) -> Result<Page<Written, u64>, Errno> {
        call.store().index().written_part(of, from, most)
    }

    fn find(
        &self,
        call: &Call<'_>,
        dir: ObjectId,
        from: Place,
        List(terms): List<Wanted>,
    ) -> Result<Page<Match, Place>, Errno> {
        call.store().index().matching_part(dir, from, &terms)
    }

    fn indexed_name(&self, call: &Call<'_>, id: ObjectId) -> Result<OwnedName, Errno> {
        call.cluster.search().indexed_name(home(&call.cluster, id)?)
    }

    fn describe(
        &self,
        call: &Call<'_>,
        List(ids): List<ObjectId>,
    ) -> Result<List<Described>, Errno> {
        call.cluster.search().described_part(&ids).map(List)
    }
}
