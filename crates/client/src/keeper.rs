//! The keeper: one background process per pool, never on the path of an operation.
//!
//! It keeps some room reserved ahead of use (first touches of memory are slow), and
//! releases what dead processes held. While nobody is attached it sleeps, and looks once a
//! minute whether the pool is still there.
//! Without it the pool works on, only slower and without cleaning up.
//!
//! Of a pool with a journal it keeps what would be lost with the node's power small: the
//! journal goes to stable storage every second, all bytes every 30 s.

use crate::{Pool, PoolError};
use forebay_media::Medium;
use forebay_store::Store;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::futex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// How long it sleeps at most: it must notice that the pool's directory was removed by hand.
const IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// The same while something is left to be written to stable storage.
const SOON: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const QUIET_TICK: Duration = Duration::from_secs(1);
/// How often the journal, and everything, is written to stable storage.
const SYNC_JOURNAL: Duration = Duration::from_secs(1);
const SYNC_ALL: Duration = Duration::from_secs(30);

/// Runs the keeper of the pool in `dir` until the pool is removed or the process is
/// killed. Calls `ready` once it has taken charge; who ends the process should call
/// [`Store::sync_all`] before.
///
/// # Errors
/// If the pool can't be opened, or has a keeper already.
pub fn run_keeper(dir: &Path, ready: impl FnOnce(&Arc<Pool>)) -> Result<(), PoolError> {
    let pool = Arc::new(Pool::open_dir(dir)?);
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
    ready(&pool);

    let store = pool.store();
    let header = store.control().header();
    let mut used_before = 0;
    let mut told = None;
    if store.journal_stopped() {
        let failed = |e| PoolError::io("can't begin the journal anew of the pool", dir, e);
        store.restart_journal().map_err(failed)?;
    }
    let mut saver = Saver::new(store);
    loop {
        let seen = header.activity.load(Acquire);
        if !dir.join("pool.json").exists() {
            return Ok(());
        }
        // When nobody else is left, also what was lost at the instant of a death.
        let failed = store.reap().and_then(|_| store.put_in_order()).err();
        if let Some(e) = failed.filter(|_| failed != told) {
            eprintln!("forebay keeper: can't release what a dead process held: {e}");
        }
        told = failed;
        let mut used = 0;
        for (i, m) in store.media().iter().enumerate() {
            used += m.usage().used;
            top_up(m, pool.config().reserve_of(i));
        }
        let quiet = used == used_before;
        used_before = used;
        let calm = saver.step(store);
        // The keeper itself may be attached (it writes dead processes' files back).
        let _ = store.detach();
        if store.any_attached() {
            std::thread::sleep(if quiet { QUIET_TICK } else { TICK });
        } else {
            let idle = if calm { IDLE } else { SOON };
            header.keeper_sleeps.store(1, SeqCst);
            let _ = futex::wait(&header.activity, futex::Flags::empty(), seen, Some(&idle));
            header.keeper_sleeps.store(0, SeqCst);
        }
    }
}

/// Writes to stable storage what has changed, for pools that have any.
struct Saver {
    journal: Instant,
    all: Instant,
    /// The journal's end when all was saved.
    saved: u64,
    failed: bool,
}

impl Saver {
    fn new(store: &Store) -> Saver {
        Saver {
            journal: Instant::now(),
            all: Instant::now(),
            saved: store.journal_end(),
            failed: false,
        }
    }

    /// Does what is due. Whether nothing is left to be done.
    fn step(&mut self, store: &Store) -> bool {
        if self.failed {
            return true;
        }
        let result = self.save(store);
        if let Err(e) = result {
            // Said once: who asks for a promise gets the error.
            eprintln!("forebay keeper: can't write to stable storage: {e}");
            self.failed = e == Errno::IO;
        }
        !store.has_unsynced() && store.journal_end() == self.saved
    }

    fn save(&mut self, store: &Store) -> Result<(), Errno> {
        let now = Instant::now();
        if store.checkpoint_wanted() {
            store.checkpoint()?;
        }
        if now - self.all >= SYNC_ALL && store.journal_end() != self.saved {
            store.sync_all()?;
            (self.all, self.saved) = (now, store.journal_end());
        }
        if now - self.journal >= SYNC_JOURNAL && store.has_unsynced() {
            store.end_limbo()?;
            self.journal = now;
        }
        Ok(())
    }
}

/// Reserves room ahead of use, up to `goal` bytes. A full file system shows when the room is
/// needed.
fn top_up(m: &Medium, goal: u64) {
    const CELL: u64 = 1 << 20;
    loop {
        let u = m.usage();
        let have = m.cells().reserved();
        let missing = (u.used + goal).min(u.capacity).saturating_sub(u.reserved) / CELL;
        if missing == 0 || !matches!(m.reserve(missing.min(8) as usize), Ok(true)) {
            return;
        }
        m.warm(have, m.cells().reserved());
    }
}
