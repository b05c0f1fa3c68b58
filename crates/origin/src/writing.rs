//! Versions of files that are being written to the origin, kept in a file of the node's directory:
//! after a death of the service, the next one tells them from versions of others.
//!
//! A version is noted before it is copied, and forgotten when the pool's mark says that the origin
//! has it. The file is a line of JSON for each version; it outlives the process, not the node.

use forebay_staging::Meta;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file's name.
const NAME: &str = "origin-writing";
/// Size from which the file is written anew with what is in progress. Bytes.
const LONGEST: u64 = 1 << 20;

/// A version of a file: its path at the origin, size in bytes, time of modification.
#[derive(Clone, Serialize, Deserialize)]
struct Line {
    path: Vec<u8>,
    size: u64,
    mtime: i64,
}

/// The versions by path: sizes and times of modification.
type Versions = HashMap<Vec<u8>, Vec<(u64, i64)>>;

/// The versions that are being written, and those that an earlier service was writing.
pub struct Writing {
    file: PathBuf,
    versions: Mutex<Versions>,
}

impl Writing {
    /// Those of the node in `dir`.
    pub fn load(dir: &Path) -> Writing {
        let file = dir.join(NAME);
        let mut versions = Versions::new();
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        // The last line may be cut off.
        for line in text.lines().filter_map(|l| serde_json::from_str(l).ok()) {
            let Line { path, size, mtime } = line;
            versions.entry(path).or_default().push((size, mtime));
        }
        Writing {
            file,
            versions: Mutex::new(versions),
        }
    }

    fn versions(&self) -> MutexGuard<'_, Versions> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes versions: path, size, time of modification.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn begin<'p>(
        &self,
        list: impl Iterator<Item = (&'p [u8], u64, i64)>,
    ) -> std::io::Result<()> {
        let mut versions = self.versions();
        let mut file = File::options().create(true).append(true).open(&self.file)?;
        if file.metadata()?.len() > LONGEST {
            file.set_len(0)?;
            for (path, all) in versions.iter() {
                for (size, mtime) in all {
                    append(&mut file, path, *size, *mtime)?;
                }
            }
        }
        for (path, size, mtime) in list {
            append(&mut file, path, size, mtime)?;
            let all = versions.entry(path.to_vec()).or_default();
            all.push((size, mtime));
        }
        Ok(())
    }

    /// The origin's version of a path is known from here on.
    pub fn end(&self, path: &[u8]) {
        let mut versions = self.versions();
        versions.remove(path);
        if versions.is_empty() {
            // Lines of versions that are known do no harm.
            let _ = std::fs::remove_file(&self.file);
        }
    }

    /// Whether this is a version that this service, or an earlier one, has written.
    pub fn is_ours(&self, path: &[u8], there: &Meta) -> bool {
        let versions = self.versions();
        let ours = versions.get(path);
        ours.is_some_and(|all| all.contains(&(there.size, there.mtime)))
    }
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
        let writing = Writing::load(&dir);
        let some = [(&b"a"[..], 1, 10), (b"b\xff", 2, 20), (b"a", 3, 30)];
        writing.begin(some.into_iter()).unwrap();
        writing.end(b"gone");
        let mut cut = File::options().append(true).open(dir.join(NAME)).unwrap();
        cut.write_all(b"{\"path\":[9").unwrap();
        let next = Writing::load(&dir);
        assert!(next.is_ours(b"a", &meta(1, 10)) && next.is_ours(b"a", &meta(3, 30)));
        assert!(next.is_ours(b"b\xff", &meta(2, 20)));
        assert!(!next.is_ours(b"a", &meta(1, 11)) && !next.is_ours(b"c", &meta(1, 10)));
        next.end(b"a");
        next.end(b"b\xff");
        assert!(!dir.join(NAME).exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
