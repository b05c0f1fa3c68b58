//! Makes files durable, wherever their bytes and names lie.
//!
//! The parts are synced first, then the home, which has the size. A sync of a file with
//! `persistence = "durable"` also syncs the entries on the path to the file.

use crate::peers::requests::request;
use crate::views::FileData;
use forebay_store::Result;

impl<'a> FileData<'a> {
    /// Makes an open file's data and record durable as far as its media can; for a file with
    /// `persistence = "durable"` also the entries on its path.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached; EIO. After a failed write to stable storage, all later
    /// calls return EIO, too.
    pub fn sync(&self, index: u32) -> Result<()> {
        self.sync_file(index)?;
        if self.store().declared().is_durable(index) {
            // The entries on the file's path may lie on any nodes.
            self.sync_entries_everywhere()
        } else {
            Ok(())
        }
    }

    fn sync_file(&self, index: u32) -> Result<()> {
        self.cluster.locks().check_lease(index)?;
        if let Some(file) = self.cluster.stripes().striped(index) {
            return self.cluster.stripes().sync_striped(&file);
        }
        let synced = match self.cluster.opens().remote_live(index) {
            Some((home, id)) => self.cluster.ask(home, request::SYNC, &id),
            None => self
                .store()
                .durability()
                .sync_here(index)
                .and(self.store().parts().not_spilled(index)),
        };
        match self.cluster.stripes().spilled_by(index, &synced)? {
            Some(file) => self.cluster.stripes().sync_striped(&file),
            None => synced,
        }
    }
}
