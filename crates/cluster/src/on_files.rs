//! Controls that change where the bytes of a file may lie, of files of any node.
//!
//! The home and the nodes with parts follow a change: they move what must no longer lie in memory
//! to `files` media, and seal what has checksums from now on. Before parts are written, they are
//! told the file's controls.

use crate::Cluster;
use crate::live::with_open;
use crate::peers::requests::request;
use crate::stripes::Striped;
use forebay_store::control::live_flag as flag;
use forebay_store::data::{is_summed, word_of_part};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> Cluster<'a> {
    /// The word of a file was `before` and is `word` now: its parts are told, what must not lie in
    /// memory any more is moved, and what has checksums from now on is sealed.
    ///
    /// # Errors
    /// ENOSPC: `files` media are full. EBUSY: it is mapped. EHOSTDOWN: a node can't be asked. Some
    /// of it may have been moved.
    pub fn follow_word(&self, id: ObjectId, before: u64, word: u64) -> Result<()> {
        let moves = self.content().keeps_on_files(word) && !self.content().keeps_on_files(before);
        let seals = is_summed(word) && !is_summed(before);
        if word_of_part(before) == word_of_part(word) {
            return Ok(());
        }
        let away = self.object_away(id);
        let parts = self.foreign.is_some() && self.stat(id)?.is_spread;
        if parts {
            self.tell_parts(id, word_of_part(word))?;
        }
        if moves {
            self.move_to_files(away, id)?;
        }
        if seals {
            self.seal_file(away, id)?;
        }
        if parts {
            let nodes = self
                .stripes()
                .part_nodes(id)?
                .into_iter()
                .map(|node| (Some(node), id));
            for (node, id) in nodes.chain(away.map(|_| (None, id.part()))) {
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

    /// Has a file's home, or this node (None), seal it.
    fn seal_file(&self, home: Option<NodeId>, id: ObjectId) -> Result<()> {
        match home {
            Some(home) => self.ask(home, request::SYNC, &id),
            None => with_open(self, id, |live| self.durability().sync_here(live)),
        }
    }

    /// Has a node, or this one (None), seal its part of a file.
    fn seal_part(&self, node: Option<NodeId>, id: ObjectId) -> Result<()> {
        let sealed = match node {
            Some(node) => self.ask(node, request::SYNC_PART, &id),
            None => with_open(self, id, |live| self.durability().sync_here(live)),
        };
        // It has none.
        match sealed {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Has a node, or this one (None), move what it has of a file in memory.
    fn move_to_files(&self, node: Option<NodeId>, id: ObjectId) -> Result<()> {
        let mut next = Some(0);
        while let Some(chunk) = next {
            next = match node {
                Some(node) => self.ask(node, request::TO_FILES, &(id, chunk))?,
                None => with_open(self, id, |live| self.content().to_files(live, chunk))?,
            };
        }
        Ok(())
    }

    /// Before something is written to parts of a file: they know what of its controls is theirs.
    #[inline]
    pub(crate) fn prepare_parts(&self, f: &Striped) -> Result<()> {
        let live = self.objects().live(f.index);
        let word = live.controls.load(Acquire);
        if word == 0 || live.flags.load(Acquire) & flag::ON_FILES != 0 {
            return Ok(());
        }
        if self.content().keeps_on_files(word) || is_summed(word) {
            self.tell_parts(f.id, word_of_part(word))?;
            live.flags.fetch_or(flag::ON_FILES, AcqRel);
        }
        Ok(())
    }

    /// Tells all nodes that may have parts of a file, and this one, the word of its parts.
    #[cold]
    fn tell_parts(&self, id: ObjectId, word: u64) -> Result<()> {
        let nodes = self.stripes().part_nodes(id)?;
        let told = self.ask_each(&nodes, request::PART_ON_FILES, &(id, word));
        told.into_iter().collect::<Result<()>>()?;
        match self.object_away(id) {
            Some(_) => self.content().set_part_word(id, word),
            None => Ok(()),
        }
    }
}
