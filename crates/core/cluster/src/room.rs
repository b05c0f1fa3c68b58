//! Changes the size of files and the room that they occupy, wherever their bytes lie.
//!
//! Truncating, reserving, punching holes, and finding data and holes: as in `data.rs`, the first
//! request goes to the home, and further ones to the parts if the file has spilled.

use crate::peers::requests::request;
use crate::views::FileData;
use forebay_store::Result;
use forebay_store::controls::Change;
use forebay_store::data::MAX_SIZE;
use forebay_store::stripe_units::CHANGED;
use forebay_store::views::Parts;
use rustix::io::Errno;

impl<'a> FileData<'a> {
    /// Sets the size of a file.
    ///
    /// # Errors
    /// EFBIG, EIO, EHOSTDOWN.
    pub fn truncate(&self, index: u32, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Errno::FBIG);
        }
        self.cluster.locks().check_lease(index)?;
        if let Some(file) = self.cluster.stripes().striped(index) {
            self.cluster
                .declarations()
                .check_striped(index, Change::Size(size))?;
            return self.cluster.stripes().truncate_striped(&file, size);
        }
        let cut = match self.cluster.opens().remote_live(index) {
            Some((home, id)) => self.cluster.ask(home, request::TRUNCATE, &(id, size)),
            None => self.store().content().truncate_here(index, |live| {
                if Parts::is_spilled(live) {
                    Err(CHANGED)
                } else {
                    Ok(size)
                }
            }),
        };
        match self.cluster.stripes().spilled_by(index, &cut)? {
            Some(file) => self.cluster.stripes().truncate_striped(&file, size),
            None => cut,
        }
    }

    /// Reserves room for `offset..offset + len`, so that writing there can't fail for lack of room;
    /// with `grow`, the file becomes at least that long.
    ///
    /// # Errors
    /// ENOSPC, EFBIG.
    pub fn reserve_range(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        self.change_room(index, offset, len, grow, false)
    }

    /// Makes `offset..offset + len` read as zero; with `grow`, the file becomes at least
    /// that long.
    ///
    /// # Errors
    /// EFBIG, EIO.
    pub fn punch(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        self.change_room(index, offset, len, grow, true)
    }

    /// Makes a hole if `punch`, and reserves room otherwise.
    fn change_room(
        &self,
        index: u32,
        offset: u64,
        len: u64,
        grow: bool,
        punch: bool,
    ) -> Result<()> {
        let (cluster, store) = (self.cluster, self.store());
        let (stripes, range) = (cluster.stripes(), (offset, len));
        cluster.locks().check_lease(index)?;
        if let Some(file) = stripes.striped(index) {
            let change = if punch {
                Change::From(Some(offset))
            } else {
                Change::Size(MAX_SIZE)
            };
            cluster.declarations().check_striped(index, change)?;
            return stripes.room_striped(&file, range, grow, punch);
        }
        let done = match cluster.opens().remote_live(index) {
            Some((home, id)) => {
                let request = if punch {
                    request::PUNCH
                } else {
                    request::RESERVE
                };
                cluster.ask(home, request, &(id, offset, len, grow))
            }
            None if punch => {
                let punched = store.content().punch_here(index, offset, len, grow);
                punched.and(store.parts().not_spilled(index))
            }
            None => store.content().reserve_here(index, offset, len, grow),
        };
        match stripes.spilled_by(index, &done)? {
            Some(file) => stripes.room_striped(&file, range, grow, punch),
            None => done,
        }
    }

    /// Returns the first offset from `offset` on with data (or, with `hole`, without); the end of
    /// the file counts as a hole. Granularity: a page.
    ///
    /// # Errors
    /// ENXIO if there is no such offset before the end of the file.
    pub fn seek_data(&self, index: u32, offset: u64, hole: bool) -> Result<u64> {
        self.cluster.locks().check_lease(index)?;
        if let Some(file) = self.cluster.stripes().striped(index) {
            return self.cluster.stripes().seek_striped(&file, offset, hole);
        }
        let found = match self.cluster.opens().remote_live(index) {
            Some((home, id)) => self.cluster.ask(home, request::SEEK, &(id, offset, hole)),
            None => {
                let found = self.store().content().seek_here(index, offset, hole);
                self.store().parts().not_spilled(index).and(found)
            }
        };
        match self.cluster.stripes().spilled_by(index, &found)? {
            Some(file) => self.cluster.stripes().seek_striped(&file, offset, hole),
            None => found,
        }
    }
}
