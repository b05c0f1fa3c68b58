//! The table of the fills of all files that are read by ranges ([`Fill`]).

use crate::fill::Fill;
use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use forebay_store::OriginMark;
use rustix::io::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The fills by file.
#[derive(Default)]
pub struct Fills {
    fills: Mutex<HashMap<u64, Arc<Fill>>>,
}

impl Fills {
    /// Returns the fill of a file, if it has one.
    pub fn of(&self, id: ObjectId) -> Option<Arc<Fill>> {
        lock(&self.fills).get(&id.0).cloned()
    }

    /// Returns all files that have a fill.
    pub fn all(&self) -> Vec<(ObjectId, Arc<Fill>)> {
        let fills = lock(&self.fills);
        let fills = fills.iter();
        fills
            .map(|(id, fill)| (ObjectId(*id), fill.clone()))
            .collect()
    }

    /// Begins a fill of a file of this size and number of blocks. None of the blocks is present.
    /// The caller holds the object's lock.
    ///
    /// # Errors
    /// Errors of getrandom(2).
    pub fn begin(
        &self,
        id: ObjectId,
        (size, blocks): (u64, u64),
        version: u64,
    ) -> Result<Arc<Fill>> {
        let mut number = [0; 4];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let number = u32::from_le_bytes(number).max(1);
        let fill = Arc::new(Fill::new(number, size, blocks, version));
        lock(&self.fills).insert(id.0, fill.clone());
        Ok(fill)
    }

    /// Whether blocks of the file are in the pool or are being read.
    pub fn has_any(&self, id: ObjectId) -> bool {
        self.of(id).is_some_and(|fill| fill.has_any())
    }

    /// Ends the file's fill, unless `mark`, the file's new mark, says that the file stays released.
    /// Waits for blocks that are being read. The caller holds the object's lock.
    pub fn is_marked(&self, id: ObjectId, mark: &OriginMark) {
        if mark.is_released() {
            if let Some(fill) = self.of(id) {
                fill.is_of(mark.print);
            }
        } else {
            self.end(id)
        }
    }

    /// Removes and ends the fill of a file. Waits until no block is being fetched from the origin.
    pub fn end(&self, id: ObjectId) {
        let fill = lock(&self.fills).remove(&id.0);
        if let Some(fill) = fill {
            fill.end();
        }
    }

    /// Pauses the file's fill: while the result exists, no block of the file is fetched from the
    /// origin.
    pub fn pause(&self, id: ObjectId) -> Pause {
        let fill = self.of(id);
        if let Some(fill) = &fill {
            fill.pause();
        }
        Pause(fill)
    }
}

/// See [`Fills::pause`].
pub struct Pause(Option<Arc<Fill>>);

impl Drop for Pause {
    fn drop(&mut self) {
        if let Some(fill) = &self.0 {
            fill.go_on();
        }
    }
}
