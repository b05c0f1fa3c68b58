//! Statistics of the file system: numbers of operations and bytes, by kind of operation and by
//! file.

use crate::settings::Kind;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of read ends that are remembered for each file.
const ENDS: usize = 256;

/// The operations on one file. An operation counts under the name that the file has at that time;
/// if the name was removed, ` (deleted)` follows it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FileStats {
    /// Number of opens for reading, and for writing.
    pub read_opens: u64,
    pub write_opens: u64,
    pub reads: u64,
    pub bytes_read: u64,
    /// Number of reads that began neither at offset 0 nor at the end of an earlier read of this
    /// file.
    pub jumps: u64,
    pub writes: u64,
    pub bytes_written: u64,
    #[serde(skip)]
    ends: BTreeSet<u64>,
}

/// All counters.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Numbers of operations that have begun, of those that were made to fail, and of those that
    /// hang now.
    pub operations: BTreeMap<Kind, u64>,
    pub failed: BTreeMap<Kind, u64>,
    pub stalled: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub files: BTreeMap<String, FileStats>,
}

impl Stats {
    fn file(&mut self, path: &[u8]) -> &mut FileStats {
        let path = String::from_utf8_lossy(path).into_owned();
        self.files.entry(path).or_default()
    }

    pub fn opened(&mut self, path: &[u8], writes: bool) {
        let file = self.file(path);
        if writes {
            file.write_opens += 1
        } else {
            file.read_opens += 1
        }
    }

    pub fn has_read(&mut self, path: &[u8], offset: u64, bytes: u64) {
        self.bytes_read += bytes;
        let file = self.file(path);
        file.reads += 1;
        file.bytes_read += bytes;
        if offset != 0 && !file.ends.remove(&offset) {
            file.jumps += 1;
        }
        file.ends.insert(offset + bytes);
        if file.ends.len() > ENDS {
            file.ends.pop_first();
        }
    }

    pub fn has_written(&mut self, path: &[u8], bytes: u64) {
        self.bytes_written += bytes;
        let file = self.file(path);
        file.writes += 1;
        file.bytes_written += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_pieces_are_told_from_jumps() {
        let mut stats = Stats::default();
        for offset in [0, 10, 20, 100, 110, 30] {
            stats.has_read(b"a", offset, 10);
        }
        let file = &stats.files["a"];
        assert_eq!((file.reads, file.bytes_read, file.jumps), (6, 60, 1));
    }
}
