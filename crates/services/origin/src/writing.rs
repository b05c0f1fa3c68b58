//! Versions of files that are being written to the origin, recorded in a file of the node's
//! directory: after the service has died, the next one distinguishes them from versions of others.
//!
//! A version is recorded before it is copied, and removed when the pool's mark says that the origin
//! has it. The file has a line of JSON for each version. In a pool that outlives a loss of power,
//! this file does, too: it is beside the journal and synced. Because a mark reaches stable storage
//! later than its version reaches the origin, this file has all versions of the last
//! [`MARK_SYNC_TIME`].

use forebay_backing::{Meta, pool_time};
use forebay_runtime::threads::lock;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Name of the file with the versions.
const NAME: &str = "origin-writing";
/// Name of the file with the earlier versions, in a pool that outlives a loss of power.
const OLD: &str = "origin-writing.old";
/// Time after which a version's mark is certainly on stable storage: the keeper syncs records every
/// second.
const MARK_SYNC_TIME: Duration = Duration::from_secs(30);
/// Size from which the file is rewritten with the versions in progress only. Bytes.
const COMPACTION_BYTES: u64 = 1 << 20;

/// A line of the file, for a version: the path at the origin, the size in bytes, the time of
/// modification in nanoseconds since 1970.
#[derive(Clone, Serialize, Deserialize)]
struct Line {
    path: Vec<u8>,
    size: u64,
    mtime: i64,
}

/// Sizes and times of modification of versions, by path.
type Versions = HashMap<Vec<u8>, Vec<(u64, i64)>>;

/// The versions that are being written, and those that an earlier service was writing.
pub struct Writing {
    file: PathBuf,
    /// Whether the file outlives a loss of power.
    is_durable: bool,
    kept: Mutex<Kept>,
}

struct Kept {
    versions: Versions,
    /// Time since which lines have been appended to the current file.
    since: Instant,
}

impl Writing {
    /// Reads the versions recorded in the journal's directory, or else in the node's directory
    /// `dir`.
    pub fn load(dir: &Path, journal: Option<&Path>) -> Writing {
        let (at, is_durable) = (journal.unwrap_or(dir), journal.is_some());
        let mut versions = Versions::new();
        for name in [OLD, NAME] {
            let text = std::fs::read_to_string(at.join(name)).unwrap_or_default();
            // The last line may be incomplete.
            for line in text.lines().filter_map(|l| serde_json::from_str(l).ok()) {
                let Line { path, size, mtime } = line;
                versions.entry(path).or_default().push((size, mtime));
            }
        }
        Writing {
            file: at.join(NAME),
            is_durable,
            kept: Mutex::new(Kept {
                versions,
                since: Instant::now(),
            }),
        }
    }

    /// Records the versions that are about to be copied to the origin: path, size, time of
    /// modification.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub fn begin<'p>(
        &self,
        list: impl Iterator<Item = (&'p [u8], u64, i64)>,
    ) -> std::io::Result<()> {
        let mut kept = lock(&self.kept);
        let mut file = File::options().create(true).append(true).open(&self.file)?;
        let mut is_new = file.metadata()?.len() == 0;
        if file.metadata()?.len() > COMPACTION_BYTES
            && (!self.is_durable || kept.since.elapsed() > MARK_SYNC_TIME)
        {
            if self.is_durable {
                std::fs::rename(&self.file, self.file.with_file_name(OLD))?;
                file = File::options().create(true).append(true).open(&self.file)?;
                is_new = true;
            }
            file.set_len(0)?;
            for (path, all) in &kept.versions {
                for (size, mtime) in all {
                    append(&mut file, path, *size, *mtime)?;
                }
            }
            kept.since = Instant::now();
        }
        for (path, size, mtime) in list {
            append(&mut file, path, size, mtime)?;
            let all = kept.versions.entry(path.to_vec()).or_default();
            all.push((size, mtime));
        }
        if self.is_durable {
            file.sync_data()?;
        }
        if self.is_durable && is_new {
            File::open(self.file.parent().unwrap_or(Path::new("/")))?.sync_all()?;
        }
        Ok(())
    }

    /// Removes the versions of a path: the pool's mark has the origin's version from here on.
    pub fn end(&self, path: &[u8]) {
        let mut kept = lock(&self.kept);
        kept.versions.remove(path);
        if kept.versions.is_empty() && !self.is_durable {
            // If the file isn't removed, its lines do no harm.
            let _ = std::fs::remove_file(&self.file);
        }
    }

    /// Whether this service or an earlier one has written this version.
    pub fn is_ours(&self, path: &[u8], there: &Meta) -> bool {
        let kept = lock(&self.kept);
        let ours = kept.versions.get(path);
        ours.is_some_and(|all| {
            let mut all = all.iter();
            all.any(|(size, mtime)| {
                *size == there.size && is_same_time(pool_time(there.mtime), *mtime)
            })
        })
    }
}

/// Whether `there` is the time `ours` as the origin stores it: network file systems may truncate it
/// to seconds, tenths of a second or microseconds.
fn is_same_time(there: i64, ours: i64) -> bool {
    [1, 100, 1_000, 1_000_000_000]
        .into_iter()
        .any(|unit| there == ours - ours.rem_euclid(unit))
}

fn append(file: &mut File, path: &[u8], size: u64, mtime: i64) -> std::io::Result<()> {
    let path = path.to_vec();
    let mut line = serde_json::to_string(&Line { path, size, mtime })?;
    line.push('\n');
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_outlive_the_service() {
        let dir = std::env::temp_dir().join(format!("fb-writing-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let meta = |size, mtime| Meta {
            dev: 1,
            ino: 2,
            mode: libc::S_IFREG,
            nlink: 1,
            uid: 0,
            gid: 0,
            size,
            atime: 0,
            mtime,
            ctime: 0,
        };
        let writing = Writing::load(&dir, None);
        let some = [(&b"a"[..], 1, 10), (b"b\xff", 2, 20), (b"a", 3, 30)];
        writing.begin(some.into_iter()).unwrap();
        writing.end(b"gone");
        let mut cut = File::options().append(true).open(dir.join(NAME)).unwrap();
        cut.write_all(b"{\"path\":[9").unwrap();
        let next = Writing::load(&dir, None);
        assert!(next.is_ours(b"a", &meta(1, 10)) && next.is_ours(b"a", &meta(3, 30)));
        assert!(next.is_ours(b"b\xff", &meta(2, 20)));
        assert!(!next.is_ours(b"a", &meta(1, 11)) && !next.is_ours(b"c", &meta(1, 10)));
        next.end(b"a");
        next.end(b"b\xff");
        assert!(!dir.join(NAME).exists());
        assert!(is_same_time(7_000_000_000, 7_123_456_789) && is_same_time(-1, -1));
        assert!(!is_same_time(7_000_000_001, 7_123_456_789) && !is_same_time(8_000_000_000, 7));
        // In a pool that outlives a loss of power, marks may be lost. So lines stay after `end`.
        let durable = Writing::load(Path::new("/nowhere"), Some(&dir));
        durable.begin([(&b"a"[..], 1, 10)].into_iter()).unwrap();
        durable.end(b"a");
        assert!(!durable.is_ours(b"a", &meta(1, 10)));
        let next = Writing::load(Path::new("/nowhere"), Some(&dir));
        assert!(next.is_ours(b"a", &meta(1, 10)));
        std::fs::rename(dir.join(NAME), dir.join(OLD)).unwrap();
        let next = Writing::load(Path::new("/nowhere"), Some(&dir));
        assert!(next.is_ours(b"a", &meta(1, 10)));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
