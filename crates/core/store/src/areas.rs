//! The areas of processes in the control region: working directory, descriptors, mappings.
//!
//! Each area is mapped when it is used, and unmapped afterwards with the length that it was mapped
//! with. The area of this process stays mapped.

use crate::Region;
use crate::control_region::{Control, ProcessArea};
use rustix::io::{Errno, Result};
use std::path::Path;

/// Maps the areas of processes.
#[derive(Clone, Copy)]
pub struct ProcessAreas<'s> {
    pub(crate) control: &'s Control,
    /// Path of the control region's file.
    pub(crate) path: &'s Path,
}

impl ProcessAreas<'_> {
    /// Maps the area of `slot`. The mapping stays until [`ProcessAreas::unmap`].
    ///
    /// # Errors
    /// ENOSPC if there is no memory for it; errors of open and mmap.
    pub fn map(self, slot: u32) -> Result<*mut ProcessArea> {
        self.control.reserve_area(slot)?;
        let fd = rustix::fs::open(
            self.path,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let layout = self.control.layout();
        let at = layout.areas_at + slot as usize * layout.area_len;
        let region = match fd {
            // A forked child needs its area even if its parent has used up all descriptors, or has
            // become another user, who can't open the file.
            Err(Errno::MFILE | Errno::NFILE | Errno::ACCESS | Errno::PERM) => {
                self.control.area(slot as usize)?
            }
            fd => Region::map(&fd?, at as u64, layout.area_len)?,
        };
        let base = region.base().cast();
        std::mem::forget(region);
        Ok(base)
    }

    /// Unmaps an area that [`ProcessAreas::map`] returned.
    ///
    /// # Safety
    /// No thread may use the area any more.
    pub unsafe fn unmap(self, area: *mut ProcessArea) {
        // SAFETY: mapped by `map` with this length; the caller vouches for the rest.
        let _ = unsafe { rustix::mm::munmap(area.cast(), self.control.layout().area_len) };
    }
}
