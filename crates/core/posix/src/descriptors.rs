//! A process's table of descriptors: which open file description each number stands for. The table
//! is in the process's area, so that a forked child, or the next program after exec, can take it
//! over.
//!
//! A reference to a description may be on its way to another process. Meanwhile it is *parked* in
//! the sender's table, at a number that no descriptor has, and it is released if the sender dies.

use crate::Fs;
use forebay_store::{Result, Section, Store};
use std::sync::atomic::Ordering::*;

/// This process's table of descriptors; see the module.
#[derive(Clone, Copy)]
pub struct Descriptors<'a>(&'a Store);

/// Where a reference to a description is parked.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Parked {
    slot: u32,
    /// Identity of the process that has the slot; see [`forebay_store::process::identity`].
    holder: u32,
    place: u32,
    /// The description.
    open: u32,
}

impl Parked {
    /// The description.
    pub fn open(self) -> u32 {
        self.open
    }

    /// The parked reference as numbers that can be sent to another process.
    pub fn to_words(self) -> [u32; 4] {
        [self.slot, self.holder, self.place, self.open]
    }

    /// The parked reference from the numbers of [`Parked::to_words`].
    pub fn from_words([slot, holder, place, open]: [u32; 4]) -> Parked {
        Parked {
            slot,
            holder,
            place,
            open,
        }
    }
}

impl Fs {
    /// This process's table of descriptors.
    #[inline]
    pub fn descriptors(&self) -> Descriptors<'_> {
        Descriptors(self.store())
    }
}

impl<'a> Descriptors<'a> {
    /// The description that `fd` stands for.
    #[inline]
    pub fn get(self, fd: i32) -> Option<u32> {
        self.0.objects().fd_get(fd)
    }

    /// The description that `fd` stands for, with a new reference that the caller takes over.
    #[inline]
    pub fn retained(self, fd: i32) -> Option<u32> {
        self.0.objects().fd_retained(fd)
    }

    /// Makes `fd` stand for `open`, whose reference it takes over. Returns the description for
    /// which `fd` stood before; the caller takes over its reference.
    ///
    /// # Errors
    /// EMFILE for a number that is too high; ENOSPC.
    pub fn set(self, fd: i32, open: Option<u32>) -> Result<Option<u32>> {
        self.0.objects().fd_set(fd, open)
    }

    /// One more than the highest number in use.
    pub fn end(self) -> usize {
        self.0.objects().fds_end()
    }

    /// Begins an operation in flight, to be held while references are moved into the table or out
    /// of it: so the process's death in between is noticed.
    ///
    /// # Errors
    /// Errors of taking a process slot.
    pub fn changing(self) -> Result<Section<'a>> {
        self.0.section()
    }

    /// Whether any descriptor number stands for a file of the pool, or the process maps such a
    /// file.
    pub fn any(self) -> bool {
        let store = self.0;
        let Ok(area) = store.area() else { return false };
        (0..store.objects().fds_end())
            .map_while(|n| area.fd(n))
            .any(|f| f.load(Relaxed) != 0)
            || store.mappings().map_table().is_ok_and(|table| {
                let maps = table.up_to(store.mappings().maps_end());
                maps.iter().any(|m| m.open.load(Relaxed) != 0)
            })
    }

    /// The description behind another process's descriptor, which may be closed at any moment.
    pub fn of_process(self, pid: u32, fd: i32) -> Option<u32> {
        self.0.objects().fd_of_process(pid, fd)
    }

    /// As [`Descriptors::of_process`], with a new reference that the caller takes over.
    pub fn taken_from(self, pid: u32, fd: i32) -> Option<u32> {
        self.0.objects().fd_taken_from(pid, fd)
    }

    /// Parks a new reference to the description that `fd` stands for.
    ///
    /// # Errors
    /// EBADF if `fd` stands for none; ETOOMANYREFS if too many references are on their way; ENOSPC.
    pub fn park(self, fd: i32) -> Result<Parked> {
        let (slot, holder, place, open) = self.0.objects().fd_park(fd)?;
        Ok(Parked {
            slot,
            holder,
            place,
            open,
        })
    }

    /// Takes over a parked reference (`take`), or adds a reference to its description. Returns the
    /// description; None if the process that parked the reference has died, and the reference was
    /// released.
    pub fn unpark(self, at: &Parked, take: bool) -> Option<u32> {
        self.0
            .objects()
            .fd_unpark(at.slot, at.holder, at.place, at.open, take)
            .then_some(at.open)
    }

    /// Releases a parked reference that no process will take over.
    pub fn drop_parked(self, at: &Parked) {
        let _section = self.0.section().ok();
        if let Some(open) = self.unpark(at, true) {
            let _ = self.0.objects().open_release(open);
        }
    }
}
