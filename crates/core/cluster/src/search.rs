//! Searches the index on all nodes.
//!
//! Requests for a share of a page go to all nodes at once. A page ends where the first of the
//! shares ends, so that the results are in one order over all nodes.

use crate::peers::messages::{List, Wire};
use crate::peers::requests::{Signature, request};
use crate::views::Search;
use forebay_store::index::query::{Hit, Page, Written};
use forebay_store::index::{OwnedName, known_name};
use forebay_store::record::{Mark, Word};
use forebay_store::records::Records;
use forebay_store::{ObjectId, Result};
use rustix::io::Errno;

impl<'a> Search<'a> {
    /// Returns a page of about `most` objects of the whole pool that have all these attributes,
    /// from `from` on. `only`: the hash of the name that the objects must have.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached; EIO.
    pub(crate) fn search(
        &self,
        words: &[Word],
        from: Mark,
        only: Option<u64>,
        most: usize,
    ) -> Result<Page<Hit, Mark>> {
        let nodes = self.all_nodes();
        let share = most / nodes + most.min(8);
        let arguments = (List(words.to_vec()), from, only, share as u64);
        let mut pages = self.ask_others(request::SEARCH, &arguments)?;
        pages.push(self.store().index().search_here(words, from, only, share)?);
        Ok(Page::join(pages, |hit| hit.mark))
    }

    /// Whether any object has all these attributes. Sends requests to other nodes only if this node
    /// has no such object.
    ///
    /// # Errors
    /// As for [`Search::search`].
    pub(crate) fn is_any(&self, words: &[Word]) -> Result<bool> {
        let begin = Some(Mark::FIRST);
        for shard in 0..self.store().files.count() {
            let mut from = begin;
            while let Some(at) = from {
                let page = self
                    .store()
                    .index()
                    .search_shard(shard, words, at, None, 1)?;
                if !page.items.is_empty() {
                    return Ok(true);
                }
                from = page.next;
            }
        }
        let mut from = begin.filter(|_| self.store().remote.is_some());
        while let Some(at) = from {
            let page = self.search(words, at, None, 1)?;
            if !page.items.is_empty() {
                return Ok(true);
            }
            from = page.next;
        }
        Ok(false)
    }

    /// Returns the keys that occur in the pool, or with `of` the values of a key, in the form used
    /// in paths: a page of about `most`, in the order of their hashes, from the hash `from` on.
    ///
    /// # Errors
    /// As for [`Search::search`].
    pub(crate) fn written(
        &self,
        of: Option<u64>,
        from: u64,
        most: usize,
    ) -> Result<Page<Written, u64>> {
        let mut pages = self.ask_others(request::WRITTEN, &(of, from, most as u64))?;
        pages.push(self.store().index().written_here(of, from, most)?);
        let mut page = Page::join(pages, |item| item.0);
        page.items.dedup_by_key(|item| item.0);
        Ok(page)
    }

    /// Returns the directory and name under which the object is in the index.
    ///
    /// # Errors
    /// ENOENT if the object isn't indexed.
    pub fn indexed_name(&self, id: ObjectId) -> Result<OwnedName> {
        if let Some(home) = self.cluster.remote_home(id) {
            return self.cluster.ask(home, request::INDEXED_NAME, &id);
        }
        known_name(&self.store().records_of(id)?, id)?.ok_or(Errno::NOENT)
    }

    fn all_nodes(&self) -> usize {
        self.cluster.peers().map_or(1, |e| e.nodes().len())
    }

    /// Sends the same request to all other nodes, at once.
    fn ask_others<A, R: Wire>(
        &self,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Result<Vec<R>> {
        let Some(others) = self.cluster.peers() else {
            return Ok(Vec::new());
        };
        let nodes = others.nodes().iter().copied();
        let nodes: Vec<_> = nodes.filter(|n| *n != others.this_node()).collect();
        self.cluster
            .ask_each(&nodes, request, arguments)
            .into_iter()
            .collect()
    }
}
