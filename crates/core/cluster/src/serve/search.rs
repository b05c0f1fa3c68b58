//! Requests about this node's share of the index of attributes.

use super::Call;
use crate::peers::messages::List;
use crate::peers::requests::Search;
use forebay_store::index::find::{Described, Place, Wanted};
use forebay_store::index::query::{Hit, Page, Written};
use forebay_store::record::{Mark, Word};
use forebay_store::{Match, ObjectId, OwnedName};
use rustix::io::Result;

impl Search for Call<'_> {
    fn search(
        &self,
        List(words): List<Word>,
        from: Mark,
        only: Option<u64>,
        most: u64,
    ) -> Result<Page<Hit, Mark>> {
        self.store().index().search_part(&words, from, only, most)
    }

    fn written(&self, of: Option<u64>, from: u64, most: u64) -> Result<Page<Written, u64>> {
        self.store().index().written_part(of, from, most)
    }

    fn find(
        &self,
        dir: ObjectId,
        from: Place,
        List(terms): List<Wanted>,
    ) -> Result<Page<Match, Place>> {
        self.store().index().matching_part(dir, from, &terms)
    }

    fn indexed_name(&self, id: ObjectId) -> Result<OwnedName> {
        self.cluster.search().indexed_name(self.home(id)?)
    }

    fn describe(&self, List(ids): List<ObjectId>) -> Result<List<Described>> {
        self.cluster.search().described_part(&ids).map(List)
    }
}
