//! This process's mappings of the pool's files: its table of mappings, the segments from which
//! pages are mapped, and whether processes of the node map a shadow copy of a remote file.

use crate::Fs;
use forebay_runtime::fd::Lent;
use forebay_store::control_region::MapRef;
use forebay_store::map_table::{MapTable, map_flag};
use forebay_store::{ObjectId, Result, Store};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;

/// The mappings of this process; see the module.
#[derive(Clone, Copy)]
pub struct Mappings<'a>(&'a Store);

impl Fs {
    /// The mappings of this process.
    #[inline]
    pub fn mappings(&self) -> Mappings<'_> {
        Mappings(self.store())
    }
}

impl<'a> Mappings<'a> {
    /// This process's table of mappings.
    ///
    /// # Errors
    /// EAGAIN if there is no slot for this process, ENOSPC.
    pub fn table(self) -> Result<MapTable<'a>> {
        self.0.mappings().map_table()
    }

    /// Whether a mapped file has become shorter, and this process hasn't adjusted its mappings yet.
    pub fn is_behind(self) -> bool {
        self.0.mappings().is_behind()
    }

    /// Claims a place in the table of mappings, with a reference to the file of `open`.
    ///
    /// # Errors
    /// ENOMEM if the table is full.
    pub fn claim(self, open: u32, flags: u32) -> Result<&'a MapRef> {
        let place = self.0.mappings().map_claim(open, flags)?;
        let file = || self.0.objects().open_file(open).id.load(Relaxed);
        let changes = flags & map_flag::CHANGES != 0;
        forebay_trace::event!(POSIX_MAPPED, file(), changes);
        Ok(place)
    }

    /// Records that the process may store through a mapping of an open file, as the mapping's place
    /// in the table says already.
    ///
    /// # Errors
    /// EIO, ENOSPC: the change can't be recorded.
    pub fn begin_storing(self, live: u32) -> Result<()> {
        self.0.mappings().begin_storing(live)
    }

    /// Frees a place in the table of mappings, and releases the place's reference to the file.
    pub fn release(self, place: &MapRef) {
        let _ = self.0.mappings().map_release(place);
    }

    /// The file of one of the pool's segments.
    ///
    /// # Errors
    /// EIO if there is no medium of this number; errors of open.
    pub fn segment(self, medium: usize, for_reading: bool) -> Result<Lent> {
        let medium = self.0.media.get(medium).ok_or(Errno::IO)?;
        if for_reading {
            medium.file_for_reading()
        } else {
            medium.file()
        }
    }

    /// The files of all segments that can be opened.
    pub fn segments(self) -> impl Iterator<Item = Lent> {
        self.0.media.iter().filter_map(|m| m.file().ok())
    }

    /// Free room in all segments. Bytes.
    pub fn room(self) -> u64 {
        let usage = self.0.media.iter().map(|m| m.usage());
        usage.map(|u| u.capacity.saturating_sub(u.used)).sum()
    }

    /// Whether a process of this node may map a shadow copy of the file.
    #[inline]
    pub fn may_be_copied(self, live: u32) -> bool {
        self.0.mappings().may_be_copied(live)
    }

    /// Records that from now on a process of this node may map a shadow copy of the file.
    pub fn note_copied(self, live: u32) {
        self.0.mappings().note_copied(live);
    }

    /// Whether a process maps a shadow copy of the file, not counting the mapping in the place
    /// `but`.
    pub fn is_copied(self, id: ObjectId, but: Option<&MapRef>) -> bool {
        self.0.mappings().is_copied(id, but)
    }

    /// The id of the object with this live entry.
    pub fn id(self, live: u32) -> ObjectId {
        self.0.content().live_id(live)
    }

    /// Notifies all processes of this node that map the file of its new size `size`.
    pub fn notify_shrunk(self, live: u32, size: u64) {
        self.0.mappings().notify_shrunk(live, size);
    }
}
