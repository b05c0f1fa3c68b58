//! The first change of a file that the pool's origin has: the change is recorded before it is made.
//!
//! A file is clean while its change time is that of the last comparison with the origin. After a
//! loss of power, a clean file is taken for the origin's version. So a file's record must not have
//! the old change time once the file's size or bytes have changed: any process's sync may bring the
//! bytes to stable storage. The cost is one sync of the journal each time the file was written to
//! the origin.

use super::*;

impl Content<'_> {
    /// Records that a clean file changes. Must be called before the file's bytes or size change.
    /// The caller has locked the file's live entry.
    ///
    /// # Errors
    /// Errors of writing the record and the journal: ENOSPC, EIO.
    #[inline]
    pub(crate) fn note_change(&self, index: u32) -> Result<()> {
        match self.store.objects().live(index).flags.load(Acquire) & flag::CLEAN {
            0 => Ok(()),
            _ => self.note_first_change(index),
        }
    }

    #[cold]
    fn note_first_change(&self, index: u32) -> Result<()> {
        let live = self.store.objects().live(index);
        if self.store.durability().active_journal().is_some() {
            self.touch(live);
            self.flush_locked(index, false)?;
            self.store.durability().sync_journal()?;
        }
        live.flags.fetch_and(!flag::CLEAN, AcqRel);
        Ok(())
    }
}
