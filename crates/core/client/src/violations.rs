//! The pool's list of violations: operations that the controls of files forbid, and that programs
//! did or were refused.
//!
//! Each violation is one line of JSON, appended by one write. The list is bounded: a process
//! records the same violation of a file at most once a minute, and nothing is added beyond
//! [`MAX_BYTES`].

use crate::{Pool, PoolError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Size from which nothing is added to the list. Bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Minimum time between two records of the same violation by one process. Seconds.
const REPEATS: u64 = 60;

/// An operation that the controls of a file forbid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Seconds since 1970.
    pub time: i64,
    /// Id of the process.
    pub pid: u32,
    /// The path from the root of the pool, as far as it is known.
    pub path: String,
    /// The control, with its value: `mutability = "append"`.
    pub control: String,
    /// The operation: `write at 0 of 10 bytes`.
    pub what: String,
    /// Whether the operation was refused; otherwise it was done, and only reported.
    pub refused: bool,
}

/// The violations that this process recorded last: for each, half of its hash and the second of the
/// record, in one word.
static NOTED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Whether a violation with this hash is to be recorded at second `now`.
fn is_due(hash: u64, now: u64) -> bool {
    let place = &NOTED[hash as usize % NOTED.len()];
    let (mark, last) = (hash >> 32, place.load(Relaxed));
    let due = last >> 32 != mark || now.wrapping_sub(last & 0xffff_ffff) >= REPEATS;
    due && place.swap(mark << 32 | now & 0xffff_ffff, Relaxed) == last
}

fn file(dir: &Path) -> PathBuf {
    dir.join("violations")
}

impl Pool {
    /// Records a violation, unless this process did so within [`REPEATS`] s. `hash` identifies the
    /// violation and the file. Returns whether the violation had to be recorded.
    pub fn note_violation(&self, hash: u64, violation: impl FnOnce() -> Violation) -> bool {
        let now = forebay_store::now() / 1_000_000_000;
        if !is_due(hash, now as u64) {
            return false;
        }
        // A violation that can't be recorded doesn't stop the program.
        let _ = append(self.dir(), &violation());
        true
    }

    /// All violations recorded of the pool, or node, in `dir`, oldest first; and whether the list
    /// is full.
    ///
    /// # Errors
    /// [`PoolError::Io`] if the list can't be read.
    pub fn violations(dir: &Path) -> Result<(Vec<Violation>, bool), PoolError> {
        let path = file(dir);
        let text = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(|e| {
                let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                PoolError::io("can't read", &path, errno)
            })?,
        };
        let lines = text.split(|b| *b == b'\n');
        // A line cut short by a full disk or a kill is omitted.
        let all = lines.filter_map(|line| serde_json::from_slice(line).ok());
        Ok((all.collect(), text.len() as u64 >= MAX_BYTES))
    }
}

fn append(dir: &Path, violation: &Violation) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let list = rustix::fs::open(file(dir), flags, Mode::RUSR | Mode::WUSR)?;
    if rustix::fs::fstat(&list)?.st_size as u64 >= MAX_BYTES {
        return Ok(());
    }
    let mut line = serde_json::to_vec(violation).map_err(|_| Errno::INVAL)?;
    line.push(b'\n');
    rustix::io::write(&list, &line).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_noted_once_a_minute() {
        let hash = 0x1234_5678_0000_0005;
        assert!(is_due(hash, 1000));
        assert!(!is_due(hash, 1000));
        assert!(!is_due(hash, 1059));
        assert!(is_due(hash, 1060));
        // Another hash with the same index.
        assert!(is_due(0x1234_5679_0000_0005, 1060));
    }

    #[test]
    fn a_list_outlives_rubbish_and_is_bounded() {
        let dir = std::env::temp_dir().join(format!("forebay-violations-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut v = Violation {
            time: 1,
            pid: 2,
            path: "/a\n\"b".into(),
            control: "mutability = \"append\"".into(),
            what: "write at 0".into(),
            refused: true,
        };
        append(&dir, &v).unwrap();
        std::fs::write(
            file(&dir),
            [std::fs::read(file(&dir)).unwrap(), b"{\"half\n".into()].concat(),
        )
        .unwrap();
        v.pid = 3;
        append(&dir, &v).unwrap();
        let (all, full) = Pool::violations(&dir).unwrap();
        assert_eq!(all.iter().map(|v| v.pid).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(all[1], v);
        assert!(!full);
        std::fs::write(file(&dir), vec![b'x'; MAX_BYTES as usize]).unwrap();
        append(&dir, &v).unwrap();
        assert_eq!(std::fs::metadata(file(&dir)).unwrap().len(), MAX_BYTES);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
