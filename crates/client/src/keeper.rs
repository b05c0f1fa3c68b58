//! The keeper: one background process per pool, never on the path of an operation.
//!
//! It keeps some room reserved ahead of use (first touches of memory are slow), and
//! releases what dead processes held. While nobody is attached it sleeps, and looks once a
//! minute whether the pool is still there.
//! Without it the pool works on, only slower and without cleaning up.

use crate::{Pool, PoolError};
use forebay_media::Medium;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::futex;
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Room kept reserved ahead of use in each medium, at most this many bytes and at most an
/// eighth of its capacity.
const AHEAD: u64 = 256 << 20;
const CELL: u64 = 1 << 20;
const TICK: Duration = Duration::from_millis(100);
/// How long it sleeps at most: it must notice that the pool's directory was removed by hand.
const IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
const QUIET_TICK: Duration = Duration::from_secs(1);

/// Runs the keeper of the pool in `dir` until the pool is removed or the process is
/// killed. Calls `ready` once it has taken charge.
///
/// # Errors
/// If the pool can't be opened, or has a keeper already.
pub fn run_keeper(dir: &Path, ready: impl FnOnce()) -> Result<(), PoolError> {
    let pool = Pool::open_dir(dir)?;
    let file = dir.join("keeper.pid");
    let failed = |e: Errno| PoolError::io("can't take charge of the pool", &file, e);
    let fd = rustix::fs::open(
        &file,
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o600),
    )
    .map_err(failed)?;
    // Who asks for the keeper's process id holds the lock for an instant.
    let mut tries = 0;
    while rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        tries += 1;
        if tries == 20 {
            return Err(PoolError::Exists(pool.config().name.clone()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::fs::ftruncate(&fd, 0).map_err(failed)?;
    rustix::io::pwrite(&fd, format!("{}\n", std::process::id()).as_bytes(), 0).map_err(failed)?;
    ready();

    let store = pool.store();
    let header = store.control().header();
    let mut used_before = 0;
    loop {
        let seen = header.activity.load(Acquire);
        if !dir.join("pool.json").exists() {
            return Ok(());
        }
        // When nobody else is left, also what was lost at the instant of a death.
        if let Err(e) = store.reap().and_then(|_| store.put_in_order()) {
            eprintln!("forebay keeper: can't release what a dead process held: {e}");
        }
        let mut used = 0;
        for m in store.media() {
            used += m.usage().used;
            top_up(m);
        }
        let quiet = used == used_before;
        used_before = used;
        // The keeper itself may be attached (it writes dead processes' files back).
        let _ = store.detach();
        if store.any_attached() {
            std::thread::sleep(if quiet { QUIET_TICK } else { TICK });
        } else {
            header.keeper_sleeps.store(1, SeqCst);
            let _ = futex::wait(&header.activity, futex::Flags::empty(), seen, Some(&IDLE));
            header.keeper_sleeps.store(0, SeqCst);
        }
    }
}

/// Reserves room ahead of use. A full file system shows when the room is needed.
fn top_up(m: &Medium) {
    loop {
        let u = m.usage();
        let goal = AHEAD.min(u.capacity / 8).max(CELL);
        let have = m.cells().reserved();
        if u.reserved >= (u.used + goal).min(u.capacity) || !matches!(m.reserve(8), Ok(true)) {
            return;
        }
        m.warm(have, m.cells().reserved());
    }
}
