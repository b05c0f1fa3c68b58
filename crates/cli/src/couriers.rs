//! Couriers: processes that carry bytes between files of the pool and programs that don't see the
//! pool. `forebay run` asks them, before it stages out, whether bytes are lost.
//!
//! A parent with the preloaded library reports losses and removes their notes. A supervisor reports
//! them and marks the notes: maybe nobody waits for the supervisor. Other notes are about programs
//! for which nobody has waited.

use forebay_client::Pool;
use forebay_client::courier_note::{self, Text};
use forebay_store::process::{Life, life};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time that couriers of ended programs may take.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two looks at couriers that are still at work.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The losses of a run.
#[derive(Default)]
pub struct Losses {
    /// Sentences that the user hasn't seen yet.
    pub unreported: Vec<String>,
    /// Whether any bytes are lost.
    pub any: bool,
}

/// The state of one program's bytes.
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
/// still run aren't waited for.
pub fn settle(pools: &[Arc<Pool>]) -> Losses {
    let mut notes = notes_of(pools);
    let end = Instant::now() + SETTLE_TIMEOUT;
    notes.retain(|path| !is_reported(path));
    let mut losses = Losses::default();
    let lost = &mut losses.unreported;
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
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    // A supervisor may have reported a loss meanwhile.
    let reported = notes_of(pools).iter().any(|path| is_reported(path));
    losses.any = reported || !losses.unreported.is_empty();
    losses
}

fn notes_of(pools: &[Arc<Pool>]) -> Vec<PathBuf> {
    let dirs = pools.iter().map(|p| p.dir().join(courier_note::DIR));
    let entries = dirs.filter_map(|dir| std::fs::read_dir(dir).ok());
    entries.flatten().flatten().map(|e| e.path()).collect()
}

/// Whether the user has seen what the note says.
fn is_reported(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    name.starts_with(courier_note::REPORTED.as_bytes())
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
