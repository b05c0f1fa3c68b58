//! The check, before a staging, that the destination has enough free room.
//!
//! The check compares the sum of the files' sizes with the free room. Only if the room isn't
//! enough, the check subtracts holes, and files that the destination already has. The check can't
//! foresee that files grow while they are staged.

use crate::StageError;
use crate::job::{Entry, Job};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::HashSet;

/// Files occupy room in multiples of `UNIT`; files of up to `SHORT` bytes occupy none. Bytes.
const UNIT: u64 = 4096;
const SHORT: u64 = 1024;
/// Maximum number of data segments that are searched for in one file. The rest counts as data.
const RUNS: usize = 10_000;

fn room(bytes: u64) -> u64 {
    if bytes <= SHORT {
        0
    } else {
        bytes.next_multiple_of(UNIT)
    }
}

impl Job<'_> {
    /// Checks that the destination has room for `files`.
    ///
    /// # Errors
    /// A message with both sizes and advice, if the room isn't enough.
    pub fn check_room(&self, files: &[Entry]) -> Result<(), StageError> {
        let Some(free) = &self.options.room else {
            return Ok(());
        };
        // A file with several names counts once.
        let mut seen = HashSet::new();
        let mut once = |e: &&Entry| e.meta.nlink <= 1 || seen.insert((e.meta.dev, e.meta.ino));
        let files: Vec<&Entry> = files
            .iter()
            .filter(|e| e.meta.is_file())
            .filter(|e| once(e))
            .collect();
        if files.iter().map(|e| room(e.bytes())).sum::<u64>() <= free.bytes {
            return Ok(());
        }
        let need: u64 = files.iter().map(|e| self.needs(e)).sum();
        if need <= free.bytes || self.progress.stopped() {
            return Ok(());
        }
        let size = forebay_media::format_size;
        Err(StageError {
            path: self.from.show(&self.src),
            what: format!(
                "needs {}, but {} has {} free and would be full before the end; nothing was staged: {}",
                size(need),
                free.whose,
                size(free.bytes),
                free.remedy
            ),
        })
    }

    /// Returns the room that a file needs in addition to the room of the file that it replaces.
    /// Bytes.
    fn needs(&self, entry: &Entry) -> u64 {
        let there = self.to.stat(&self.target(&entry.below), false);
        let there = there.ok().filter(|m| m.is_file()).map_or(0, |m| m.size);
        let more = room(entry.bytes()).saturating_sub(room(there));
        if more > 256 * UNIT {
            more.min(room(self.data(entry).unwrap_or(u64::MAX - UNIT)))
        } else {
            more
        }
    }

    /// Returns the number of bytes of a file, without its holes.
    fn data(&self, entry: &Entry) -> Result<u64, Errno> {
        let file = self
            .from
            .open(&self.source(&entry.below), entry.below.is_empty())?;
        let (mut at, mut sum) = (0, 0);
        for _ in 0..RUNS {
            let start = match file.seek_data(at) {
                Ok(start) => start,
                Err(Errno::NXIO) => return Ok(sum),
                Err(e) => return Err(e),
            };
            let end = file.seek_hole(start)?;
            sum += end - start;
            at = end;
        }
        Ok(sum + entry.bytes().saturating_sub(at))
    }

    /// Removes the directories that this staging has created.
    pub fn undo_directories(&self) {
        let mut made = std::mem::take(&mut *lock(&self.made));
        while let Some(directory) = made.pop() {
            // Fails if another process has put something into the directory; the directory then
            // stays.
            let _ = self.to.rmdir(&directory);
        }
    }
}
