//! An open file as the source for an object store ([`forebay_backing::SlowStore::put`]).

use crate::content::at_rest;
use crate::report::Progress;
use forebay_backing::{Error, Meta, Source, StoreFile};
use rustix::io::Errno;

/// A file that is to be stored in one step.
pub struct WholeFile<'a> {
    file: &'a dyn StoreFile,
    meta: Meta,
    threads: usize,
    progress: &'a Progress,
}

impl<'a> WholeFile<'a> {
    /// Prepares a file, after waiting for a tick since its last change. `threads`: number of
    /// threads that may read it.
    ///
    /// # Errors
    /// [`Error::Changed`] if it isn't a regular file; [`Error::Read`].
    pub fn new(
        file: &'a dyn StoreFile,
        threads: usize,
        progress: &'a Progress,
    ) -> Result<WholeFile<'a>, Error> {
        let meta = at_rest(file).map_err(Error::Read)?;
        if !meta.is_file() {
            return Err(Error::Changed);
        }
        Ok(WholeFile {
            file,
            meta,
            threads,
            progress,
        })
    }
}

impl Source for WholeFile<'_> {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Error> {
        let mut have = 0;
        while have < buffer.len() {
            if self.progress.stopped() {
                return Err(Error::Stopped);
            }
            match self.file.read_at(&mut buffer[have..], at + have as u64) {
                Ok(0) => return Err(Error::Changed),
                Ok(n) => have += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::Read(e)),
            }
        }
        Ok(())
    }

    fn count(&self, bytes: u64) {
        self.progress.copied(bytes);
    }

    fn rests(&self) -> Result<(), Error> {
        let (now, then) = (self.file.meta().map_err(Error::Read)?, &self.meta);
        match (now.size, now.mtime, now.ctime) == (then.size, then.mtime, then.ctime) {
            _ if self.progress.stopped() => Err(Error::Stopped),
            true => Ok(()),
            false => Err(Error::Changed),
        }
    }
}
