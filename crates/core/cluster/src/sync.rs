//! Makes files durable, wherever their bytes and names lie.
//!
//! The nodes with parts come first, then the home, which knows the size. A file with `persistence =
//! "durable"` is durable together with the entries that lead to it.

use crate::Cluster;
use crate::peers::requests::request;
use forebay_store::Result;

impl<'a> Cluster<'a> {
    /// Makes an open file's data and record durable as far as its media can; for a file with
    /// `persistence=durable` also the entries that lead to it.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached. EIO and the like. After a failed write to stable
    /// storage, always EIO.
    pub fn sync(&self, index: u32) -> Result<()> {
        self.sync_file(index)?;
        if self.declared().is_durable(index) {
            // The file's entries may lie on any nodes.
            self.sync_entries_everywhere()
        } else {
            Ok(())
        }
    }

    fn sync_file(&self, index: u32) -> Result<()> {
        self.locks().check_lease(index)?;
        if let Some(file) = self.striped(index) {
            return self.stripes().sync_striped(&file);
        }
        let synced = match self.opens().remote_live(index) {
            Some((home, id)) => self.ask(home, request::SYNC, &id),
            None => self
                .durability()
                .sync_here(index)
                .and(self.parts().not_spilled(index)),
        };
        match self.stripes().spilled_by(index, &synced)? {
            Some(file) => self.stripes().sync_striped(&file),
            None => synced,
        }
    }
}
