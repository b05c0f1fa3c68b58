//! Couriers: processes that carry bytes between files of the pool and programs that don't see the
//! pool. `forebay run` asks them, before it stages out, whether bytes are lost.
//!
//! A parent with the preloaded library, or the program's supervisor, reports most losses and
//! removes their notes. What stays is about programs that nobody has waited for.

use forebay_client::Pool;
use forebay_client::courier_note::{self, Text};
use forebay_store::process::{Life, life};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time that couriers of ended programs may take.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

/// What is known of one program's bytes.
enum State {
    /// They are in the pool.
    Stored,
    /// The program still runs; its courier serves it.
    Runs,
    /// The program has ended, and its courier is still at work.
    Settling,
    /// Sentences about lost bytes.
    Lost(Vec<String>),
}

/// Waits, up to [`SETTLE_TIMEOUT`], for the couriers of programs that have ended. Programs that
/// still run aren't waited for. Returns sentences about lost bytes.
pub fn settle(pools: &[Arc<Pool>]) -> Vec<String> {
    let dirs = pools.iter().map(|p| p.dir().join(courier_note::DIR));
    let mut notes: Vec<PathBuf> = dirs.flat_map(|dir| notes_in(&dir)).collect();
    let end = Instant::now() + SETTLE_TIMEOUT;
    let mut lost = Vec::new();
    while !notes.is_empty() {
        notes.retain(|path| match state(path) {
            State::Stored | State::Runs => false,
            State::Settling => true,
            State::Lost(sentences) => {
                lost.extend(sentences);
                false
            }
        });
        if Instant::now() >= end {
            lost.extend(notes.drain(..).map(|path| {
                format!(
                    "what a program has written isn't all in the pool yet, {} s after its end, and \
                     may be lost: {} is locked still",
                    SETTLE_TIMEOUT.as_secs(),
                    path.display()
                )
            }));
        }
        if !notes.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
    lost
}

fn notes_in(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn state(path: &Path) -> State {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        return State::Stored;
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
    let pid = courier_note::pid_in(&name, namespace);
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::INTR) => {
            return match pid.map(life) {
                Some(Life::Gone) => State::Settling,
                _ => State::Runs,
            };
        }
        Err(e) => return State::Lost(vec![format!("locking {}: {e}", path.display())]),
    }
    if rustix::fs::fstat(&file).is_ok_and(|s| s.st_nlink == 0) {
        return State::Stored;
    }
    let mut bytes = [0; courier_note::MAX_BYTES];
    let read = rustix::io::read(&file, &mut bytes).unwrap_or(0);
    let text = Text::parse(&bytes[..read]);
    State::Lost(text.sentences(pid.unwrap_or(0)).into_owned())
}
