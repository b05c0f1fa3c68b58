//! Mapping files: only pages that lie on this node can be mapped.
//!
//! A file of another node is mapped through a shadow copy, which is the faces' task; here it is
//! ENODEV. `stripes/own.rs` maps this node's chunks of a striped file.

use crate::Cluster;
use forebay_store::Result;
use forebay_store::control_region::live_flag as flag;
use forebay_store::data::{MAX_SIZE, is_summed};
use forebay_store::mapped::MapPiece;
use forebay_store::process::Critical;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> Cluster<'a> {
    /// Which pages of `len` bytes from `offset` (a page boundary) on can be mapped, and where
    /// they lie. Pages that aren't there yet (holes, and room nobody has written to) are
    /// made if they are at most `budget`; otherwise they are left out, as is what lies
    /// behind the end of the file.
    ///
    /// The caller holds a place from `Store::map_claim`.
    ///
    /// # Errors
    /// ENOSPC, EIO; ENODEV if the file's pages lie on another node.
    pub fn map(&self, index: u32, offset: u64, len: usize, budget: usize) -> Result<Vec<MapPiece>> {
        if self.is_remote(index) {
            return Err(Errno::NODEV);
        }
        self.mappings().map_here(index, offset, len, budget)
    }

    /// From now on an open file may be changed through a mapping without notice: no part of it is
    /// sealed until its last close.
    ///
    /// # Errors
    /// EIO: the content isn't what was written. ETIMEDOUT.
    pub fn unseal_for_mapping(&self, index: u32) -> Result<()> {
        let here = match self.striped(index) {
            Some(f) if f.home.is_some() => match self.stripes().own_part(&f, false)? {
                Some(part) => part,
                None => return Ok(()),
            },
            None if self.is_remote(index) => return Ok(()),
            _ => index,
        };
        if !is_summed(self.objects().live(here).controls.load(Acquire)) {
            return Ok(());
        }
        self.content()
            .verify(here, 0, MAX_SIZE)
            .map_err(|_| Errno::IO)?;
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(here)?;
        lock.0.flags.fetch_or(flag::MAPPED, AcqRel);
        self.content().unseal(here, 0, MAX_SIZE)
    }
}
