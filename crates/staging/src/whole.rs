//! An open file as the source of an object ([`crate::objects`]).

use crate::content::at_rest;
use crate::meta::Meta;
use crate::objects::Source;
use crate::place::PlaceFile;
use crate::report::Progress;
use crate::trouble::Trouble;
use rustix::io::Errno;

/// A file that is to be stored whole.
pub struct WholeFile<'a, F> {
    file: &'a F,
    meta: Meta,
    threads: usize,
    progress: &'a Progress,
}

impl<'a, F: PlaceFile> WholeFile<'a, F> {
    /// A file that rests now; `threads` threads may read it.
    ///
    /// # Errors
    /// [`Trouble::Changed`] if it is no file; [`Trouble::Read`].
    pub fn new(
        file: &'a F,
        threads: usize,
        progress: &'a Progress,
    ) -> Result<WholeFile<'a, F>, Trouble> {
        let meta = at_rest(file).map_err(Trouble::Read)?;
        if !meta.is_file() {
            return Err(Trouble::Changed);
        }
        Ok(WholeFile {
            file,
            meta,
            threads,
            progress,
        })
    }
}

impl<F: PlaceFile> Source for WholeFile<'_, F> {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Trouble> {
        let mut have = 0;
        while have < buffer.len() {
            if self.progress.stopped() {
                return Err(Trouble::Stopped);
            }
            match self.file.read_at(&mut buffer[have..], at + have as u64) {
                Ok(0) => return Err(Trouble::Changed),
                Ok(n) => have += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Trouble::Read(e)),
            }
        }
        Ok(())
    }

    fn count(&self, bytes: u64) {
        self.progress.copied(bytes);
    }

    fn rests(&self) -> Result<(), Trouble> {
        let (now, then) = (self.file.meta().map_err(Trouble::Read)?, &self.meta);
        match (now.size, now.mtime, now.ctime) == (then.size, then.mtime, then.ctime) {
            _ if self.progress.stopped() => Err(Trouble::Stopped),
            true => Ok(()),
            false => Err(Trouble::Changed),
        }
    }
}
