//! Carries out rename(2) within this node. `cross_node/rename.rs` has renames over several nodes.
//!
//! Lookups come first, without locks. The transaction checks that both entries are still the same,
//! and the rename starts again if they aren't.

use crate::views::Namespace;
use forebay_store::names::Named;
use forebay_store::names::Renamed;
use forebay_store::shards::Write;
use forebay_store::{RenameMode, Result, now};
use rustix::io::Errno;

impl<'a> Namespace<'a> {
    /// Renames the entry `from` to `to`, each a directory and a name.
    ///
    /// # Errors
    /// As rename(2); ESTALE.
    pub fn rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        forebay_trace::span!(
            CLUSTER_RENAME_ENTER,
            CLUSTER_RENAME_EXIT,
            from.1,
            [from.0.0],
            self.rename_anywhere(from, to, mode, epoch)
        )
    }

    fn rename_anywhere(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        self.store().index().refuse_view(from.0, from.1)?;
        self.store().index().refuse_view(to.0, to.1)?;
        if self.store().remote.is_some() {
            return self
                .cluster
                .cross_node()
                .rename_among(from, to, mode, epoch);
        }
        self.rename_here(from, to, mode, epoch)
    }

    /// As [`Namespace::rename`], if all entries and objects involved lie here.
    pub(crate) fn rename_here(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        loop {
            let source = self.lookup(from.0, from.1)?.ok_or(Errno::NOENT)?;
            let target = self.lookup(to.0, to.1)?;
            let t = now();
            let check = |w: &mut Write<'_>| {
                self.cluster
                    .cross_node()
                    .check_alone(w, (from, source), (to, target))
            };
            match self.store().names().rename_known(
                (from, source),
                (to, target),
                mode,
                (epoch, t),
                check,
            )? {
                Renamed::Done => {}
                Renamed::Nothing => return Ok(()),
                Renamed::Otherwise => continue,
            }
            self.touch_dir(from.0, t)?;
            return if from.0 == to.0 {
                Ok(())
            } else {
                self.touch_dir(to.0, t)
            };
        }
    }
}
