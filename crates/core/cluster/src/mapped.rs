//! Maps files; only pages that lie on this node can be mapped.
//!
//! A file of another node is mapped through a shadow copy, which the faces make; this module
//! returns ENODEV for such a file. `stripes/own.rs` maps this node's chunks of a striped file.

use crate::views::Mappings;
use forebay_store::Result;
use forebay_store::control_region::live_flag as flag;
use forebay_store::data::{MAX_SIZE, is_summed};
use forebay_store::mapped::MapPiece;
use forebay_store::process::Critical;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> Mappings<'a> {
    /// Returns which pages of `len` bytes from `offset` (a page boundary) on can be mapped, and
    /// where they lie. Pages that don't exist yet (holes, and reserved room that was never written)
    /// are allocated if they are at most `budget`; otherwise such pages are omitted. Pages behind
    /// the end of the file are always omitted.
    ///
    /// The caller has claimed a place in the table of mappings (`map_claim` of the store's
    /// `Mappings`).
    ///
    /// # Errors
    /// ENOSPC, EIO; ENODEV if the file's pages lie on another node.
    pub fn map(&self, index: u32, offset: u64, len: usize, budget: usize) -> Result<Vec<MapPiece>> {
        if self.cluster.data().is_remote(index) {
            return Err(Errno::NODEV);
        }
        self.store().mappings().map_here(index, offset, len, budget)
    }

    /// Unseals an open file, because stores through a mapping may change it unnoticed from now on.
    /// No part of the file is sealed again until its last close.
    ///
    /// # Errors
    /// EIO if the content doesn't match its checksums; ETIMEDOUT.
    pub fn unseal_for_mapping(&self, index: u32) -> Result<()> {
        let here = match self.cluster.stripes().striped(index) {
            Some(f) if f.home.is_some() => match self.cluster.stripes().own_part(&f, false)? {
                Some(part) => part,
                None => return Ok(()),
            },
            None if self.cluster.data().is_remote(index) => return Ok(()),
            _ => index,
        };
        if !is_summed(self.store().objects().live(here).controls.load(Acquire)) {
            return Ok(());
        }
        self.store()
            .content()
            .verify(here, 0, MAX_SIZE)
            .map_err(|_| Errno::IO)?;
        let _critical = Critical::enter();
        let lock = self.store().objects().lock_live(here)?;
        lock.0.flags.fetch_or(flag::MAPPED, AcqRel);
        self.store().content().unseal(here, 0, MAX_SIZE)
    }
}
