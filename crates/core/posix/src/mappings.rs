//! This process's mappings of the pool's files: its table of mappings, the segments that pages are
//! mapped from, and whether processes of the node share a copy of another node's file.

use crate::Fs;
use forebay_runtime::fd::Lent;
use forebay_store::control_region::MapRef;
use forebay_store::map_table::{MapTable, map_flag};
use forebay_store::{ObjectId, Result, Store};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;

/// See the module.
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
    /// This process's table.
    ///
    /// # Errors
    /// EAGAIN if there is no slot for this process, ENOSPC.
    pub fn table(self) -> Result<MapTable<'a>> {
        self.0.mappings().map_table()
    }

    /// Whether there is a notice that a mapped file has become shorter which this process hasn't
    /// followed yet.
    pub fn is_behind(self) -> bool {
        self.0.mappings().is_behind()
    }

    /// A new place of the table, which keeps the file of `open`.
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

    /// A mapping of an open file becomes one for writing, which its place says already.
    ///
    /// # Errors
    /// EIO, ENOSPC: it can't be noted.
    pub fn begin_storing(self, live: u32) -> Result<()> {
        self.0.mappings().begin_storing(live)
    }

    /// Frees a place, and its use of the file.
    pub fn release(self, place: &MapRef) {
        let _ = self.0.mappings().map_release(place);
    }

    /// The file of one of the pool's segments.
    ///
    /// # Errors
    /// EIO if there is none of this number; errors of open.
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

    /// Free room in the segments. Bytes.
    pub fn room(self) -> u64 {
        let usage = self.0.media.iter().map(|m| m.usage());
        usage.map(|u| u.capacity.saturating_sub(u.used)).sum()
    }

    /// Whether a process of this node may map a copy of the file.
    #[inline]
    pub fn may_be_copied(self, live: u32) -> bool {
        self.0.mappings().may_be_copied(live)
    }

    /// From now on, one may.
    pub fn note_copied(self, live: u32) {
        self.0.mappings().note_copied(live);
    }

    /// Whether a process maps a copy of the file, by another place of a table than `but`.
    pub fn is_copied(self, id: ObjectId, but: Option<&MapRef>) -> bool {
        self.0.mappings().is_copied(id, but)
    }

    /// The object behind a live entry.
    pub fn id(self, live: u32) -> ObjectId {
        self.0.content().live_id(live)
    }

    /// Notifies all processes of this node that map the file that its size is `size` now.
    pub fn notify_shrunk(self, live: u32, size: u64) {
        self.0.mappings().notify_shrunk(live, size);
    }
}
