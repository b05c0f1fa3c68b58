//! Applies controls that decide where the bytes of a file may lie, for files of any node.
//!
//! After such controls change, the home and the nodes with parts move bytes that must no longer lie
//! in memory to `files` media, and seal files that have checksums from now on. Before parts are
//! written, their nodes get the file's controls.

use crate::live::with_open;
use crate::peers::requests::request;
use crate::stripes::Striped;
use crate::views::Declarations;
use forebay_store::control_region::live_flag as flag;
use forebay_store::data::{is_summed, word_of_part};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> Declarations<'a> {
    /// Applies a change of a file's controls from `before` to `word`: sends `word` to the nodes
    /// with parts, moves bytes that must not lie in memory any more, and seals a file that has
    /// checksums from now on.
    ///
    /// # Errors
    /// ENOSPC: `files` media are full. EBUSY: the file is mapped. EHOSTDOWN: a node can't be
    /// reached. Some bytes may have been moved.
    pub fn follow_word(&self, id: ObjectId, before: u64, word: u64) -> Result<()> {
        let moves = self.store().content().keeps_on_files(word)
            && !self.store().content().keeps_on_files(before);
        let seals = is_summed(word) && !is_summed(before);
        if word_of_part(before) == word_of_part(word) {
            return Ok(());
        }
        let remote = self.cluster.remote_home(id);
        let parts = self.store().remote.is_some() && self.cluster.namespace().stat(id)?.is_spread;
        if parts {
            self.notify_parts(id, word_of_part(word))?;
        }
        if moves {
            self.move_to_files(remote, id)?;
        }
        if seals {
            self.seal_file(remote, id)?;
        }
        if parts {
            let nodes = self
                .cluster
                .stripes()
                .part_nodes(id)?
                .into_iter()
                .map(|node| (Some(node), id));
            for (node, id) in nodes.chain(remote.map(|_| (None, id.part()))) {
                if moves {
                    self.move_to_files(node, id)?;
                }
                if seals {
                    self.seal_part(node, id)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a file's home, or this node (None), seal the file.
    fn seal_file(&self, home: Option<NodeId>, id: ObjectId) -> Result<()> {
        match home {
            Some(home) => self.cluster.ask(home, request::SYNC, &id),
            None => with_open(&self.cluster, id, |live| {
                self.store().durability().sync_here(live)
            }),
        }
    }

    /// Makes a node, or this one (None), seal its part of a file.
    fn seal_part(&self, node: Option<NodeId>, id: ObjectId) -> Result<()> {
        let sealed = match node {
            Some(node) => self.cluster.ask(node, request::SYNC_PART, &id),
            None => with_open(&self.cluster, id, |live| {
                self.store().durability().sync_here(live)
            }),
        };
        // ENOENT: this node has no part of the file.
        match sealed {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Makes a node, or this one (None), move the bytes that it has of a file in memory to `files`
    /// media.
    fn move_to_files(&self, node: Option<NodeId>, id: ObjectId) -> Result<()> {
        let mut next = Some(0);
        while let Some(chunk) = next {
            next = match node {
                Some(node) => self.cluster.ask(node, request::TO_FILES, &(id, chunk))?,
                None => with_open(&self.cluster, id, |live| {
                    self.store().content().to_files(live, chunk)
                })?,
            };
        }
        Ok(())
    }

    /// Makes sure that a file's parts have the file's controls, before bytes are written to them.
    #[inline]
    pub(crate) fn prepare_parts(&self, f: &Striped) -> Result<()> {
        let live = self.store().objects().live(f.index);
        let word = live.controls.load(Acquire);
        if word == 0 || live.flags.load(Acquire) & flag::ON_FILES != 0 {
            return Ok(());
        }
        if self.store().content().keeps_on_files(word) || is_summed(word) {
            self.notify_parts(f.id, word_of_part(word))?;
            live.flags.fetch_or(flag::ON_FILES, AcqRel);
        }
        Ok(())
    }

    /// Sends a file's controls to all nodes that may have parts, and sets them for this node's
    /// part.
    #[cold]
    fn notify_parts(&self, id: ObjectId, word: u64) -> Result<()> {
        let nodes = self.cluster.stripes().part_nodes(id)?;
        let reply = self
            .cluster
            .ask_each(&nodes, request::PART_ON_FILES, &(id, word));
        reply.into_iter().collect::<Result<()>>()?;
        match self.cluster.remote_home(id) {
            Some(_) => self.store().content().set_part_word(id, word),
            None => Ok(()),
        }
    }
}
