//! Creates a store: its control region, its records with the root directory, its journal's files.

use crate::control_region::{Control, Limits};
use crate::record::{Inode, tail};
use crate::records::{ChangeRecords, Need, Records};
use crate::{Journal, Medium, ObjectId, Store, now};
use forebay_runtime::atomics::Ordering::*;
use rustix::io::Result;
use std::path::Path;

impl Store {
    /// Creates the control region and empty records (one file per shard in `records`), with a root
    /// directory of the given mode and owner. With a journal and the media whose pages the journal
    /// records, the new store is on stable storage when the call returns. A checkpoint is due
    /// whenever the journal has grown to `bound` bytes.
    ///
    /// # Errors
    /// EEXIST, ENOSPC and errors of the file system.
    pub fn create(
        control: &Path,
        records: &Path,
        (shards, record_bytes): (usize, usize),
        root: (u32, u32, u32),
        journal: Option<(Journal, Vec<Medium>, u64)>,
    ) -> Result<()> {
        Store::new_control(control, shards)?;
        let (journal, media, bound) = match journal {
            Some((journal, media, bound)) => (Some(journal), media, bound),
            None => (None, Vec::new(), 0),
        };
        let store = Store::open(control, records, record_bytes, media, journal)?;
        store.format_root(root)?;
        store.durability().set_journal_bound(bound);
        store.durability().checkpoint()?;
        if let Some(journal) = &store.journal {
            store.durability().reserve_checkpoint(journal)?;
        }
        store.durability().make_spare_journal()
    }

    /// Creates only the control region: for a pool whose records have survived a reboot.
    ///
    /// # Errors
    /// As for [`Store::create`].
    pub fn create_control(control: &Path, shards: usize) -> Result<()> {
        let control = Store::new_control(control, shards)?;
        // A former user of the records may have left orphans and pages in use.
        control.header().leaks.store(1, Release);
        Ok(())
    }

    fn new_control(control: &Path, shards: usize) -> Result<Control> {
        Control::create(control, shards, Limits::of_machine())
    }

    /// Writes the root directory of a new store.
    pub(crate) fn format_root(&self, (mode, uid, gid): (u32, u32, u32)) -> Result<()> {
        let t = now();
        let root = Inode {
            mode: libc::S_IFDIR | mode,
            uid,
            gid,
            nlink: 2,
            parent: ObjectId::ROOT.0,
            tail: tail::NAME,
            ..Inode::made_at(t)
        };
        // Every record file exists and has room from the start.
        self.make_records()?;
        self.transact(
            self.names().object_set(ObjectId::ROOT),
            Need::Bytes(0),
            |w| w.set_inode(ObjectId::ROOT, &root, &[]),
        )
    }
}
