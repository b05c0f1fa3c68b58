//! Tests before a staging whether the destination has room for it.
//!
//! The sizes of the files are compared with the free room. Only if that isn't enough, holes and
//! files that exist already are taken into account. Files that grow while they are staged can't be
//! foreseen.

use crate::StageError;
use crate::job::{Entry, Job, lock};
use rustix::io::Errno;
use std::collections::HashSet;

/// Room is taken in units of this size, and none for shorter files. Bytes.
const UNIT: u64 = 4096;
const SHORT: u64 = 1024;
/// Limit on the segments of data that are looked for in one file; the rest counts as data.
const RUNS: usize = 10_000;

fn room(bytes: u64) -> u64 {
    if bytes <= SHORT {
        0
    } else {
        bytes.next_multiple_of(UNIT)
    }
}

impl Job<'_> {
    /// Checks that there is room for `files`.
    ///
    /// # Errors
    /// Both sizes, and what to do, if there isn't.
    pub fn check_room(&self, files: &[Entry]) -> Result<(), StageError> {
        let Some(free) = &self.options.room else {
            return Ok(());
        };
        // Count one of several hard links to a file.
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

    /// The room that a file takes in addition to what it replaces. Bytes.
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

    /// Bytes of a file without its holes.
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

    /// Removes the directories created so far.
    pub fn undo_directories(&self) {
        let mut made = std::mem::take(&mut *lock(&self.made));
        while let Some(directory) = made.pop() {
            // Another process may have put something there.
            let _ = self.to.rmdir(&directory);
        }
    }
}
