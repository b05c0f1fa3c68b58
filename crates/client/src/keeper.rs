//! The keeper: one background process per pool, never on the path of an operation.
//!
//! It keeps some room reserved ahead of use (first touches of memory are slow), gives room back
//! that hasn't been used for a while, and releases what dead processes held, removes files that go
//! with them, and moves bursty files out of memory. While nobody is attached it sleeps, and looks
//! once a minute whether the pool is still there. Without it the pool works on, only slower and
//! without cleaning up.
//!
//! Of a pool with a journal it keeps what would be lost with the node's power small: the
//! journal goes to stable storage every second, all bytes every 30 s.

use crate::home::is_absent;
use crate::host::Host;
use crate::{Pool, PoolError};
use forebay_cluster::Cluster;
use forebay_media::{Medium, MediumKind};
use forebay_store::{Store, Table};
use rustix::fd::OwnedFd;
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
/// How often it is told, at most, that a table is full.
const TELL_FULL: Duration = Duration::from_secs(60);
/// How often it looks for watches that nobody has any more, if there are any, and for reader slots
/// of the dead.
const SWEEP: Duration = Duration::from_secs(2);
/// How often files that came in bursts are moved from memory, and how many bytes of them in one
/// turn, or a few more.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_MOST: u64 = 256 << 20;
/// How often files are looked for whose makers have ended; more rarely, if there are so many that
/// looking takes more than a twentieth of the time.
const FOLLOW: Duration = Duration::from_secs(1);
const FOLLOW_SHARE: u32 = 20;
/// How long what the dead have begun on other nodes is looked for: what they asked for just before
/// may still be carried out.
const LATE: Duration = Duration::from_secs(15);
/// The same while something is left to be written to stable storage.
const SOON: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// How long what a dead daemon held is left as it was.
const GRACE: Duration = Duration::from_secs(2);
/// How often other nodes are asked whether those who have locks here still live.
const ASK_OWNERS: Duration = Duration::from_secs(5);
const ASK_OWNERS_IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: ASK_OWNERS.as_secs() as i64,
    tv_nsec: 0,
};
/// How often other nodes are asked whether the files are there of which this one has copies.
const SWEEP_COPIES: Duration = Duration::from_secs(5);
const QUIET_TICK: Duration = Duration::from_secs(1);
/// Room that was used within this time, or twice as long, stays ready for what comes next.
const GIVES_BACK: Duration = Duration::from_secs(5);
/// Most cells, of 1 MiB, whose room is given back in one turn.
const GIVES_BACK_MOST: usize = 256;
/// How often it is looked how much all keepers of the host may keep ready.
const LOOKS: Duration = Duration::from_secs(5);
/// How long no room is reserved ahead after there was none.
const NO_ROOM: Duration = Duration::from_secs(1);
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
    let keeper = Keeper::take_charge(Arc::new(Pool::open_dir(dir)?))?;
    ready(&keeper.pool);
    keeper.run()
}

/// The one process that keeps a pool.
pub struct Keeper {
    pool: Arc<Pool>,
    /// Locked as long as this is there.
    _charge: OwnedFd,
}

impl Keeper {
    /// Takes charge of an open pool.
    ///
    /// # Errors
    /// If it has a keeper already.
    pub fn take_charge(pool: Arc<Pool>) -> Result<Keeper, PoolError> {
        let file = pool.dir().join("keeper.pid");
        let failed = |e: Errno| PoolError::io("can't take charge of the pool", &file, e);
        let fd = rustix::fs::open(
            &file,
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .map_err(failed)?;
        // A process that asks for the keeper's process id holds the lock for an instant.
        let mut tries = 0;
        while rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
            tries += 1;
            if tries == 20 {
                return Err(PoolError::Exists(pool.config().name.clone()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        rustix::fs::ftruncate(&fd, 0).map_err(failed)?;
        rustix::io::pwrite(&fd, format!("{}\n", std::process::id()).as_bytes(), 0)
            .map_err(failed)?;
        Ok(Keeper { pool, _charge: fd })
    }

    /// What it keeps.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Keeps the pool until it is removed.
    ///
    /// # Errors
    /// If its journal can't be gone on with.
    pub fn run(self) -> Result<(), PoolError> {
        if self.pool.config().member.is_some() {
            let pool = self.pool.clone();
            // By themselves: nothing else waits for a node that doesn't answer.
            self.spawn("fb-copies", move || keep_copies(&pool))?;
            let pool = self.pool.clone();
            self.spawn("fb-makers", move || follow_makers(&pool))?;
        }
        keep(&self.pool)
    }

    fn spawn(&self, name: &str, f: impl FnOnce() + Send + 'static) -> Result<(), PoolError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(f);
        thread.map(|_| ()).map_err(|e| {
            let e = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
            PoolError::io("can't start a thread for", self.pool.dir(), e)
        })
    }
}

/// Looks for files whose makers have ended.
struct Follower {
    next: Instant,
    told: Option<Errno>,
}

impl Follower {
    fn new() -> Follower {
        Follower {
            next: Instant::now(),
            told: None,
        }
    }

    /// Removes what dead makers have left. Whether there are files of others, or such as couldn't
    /// be removed.
    fn step(&mut self, store: Cluster<'_>) -> bool {
        let begun = Instant::now();
        let followed = store.follow_makers();
        self.next = begun + (begun.elapsed() * FOLLOW_SHARE).max(FOLLOW);
        let failed = followed.err();
        // A node that is out of reach is told of by whoever needs it.
        if let Some(e) = failed.filter(|e| failed != self.told && *e != Errno::HOSTDOWN) {
            eprintln!("forebay keeper: can't remove files whose makers have ended: {e}");
        }
        self.told = failed;
        followed.map_or(true, |f| f.left > 0)
    }
}

/// Removes files whose makers have ended, on whatever node, until the pool is removed.
fn follow_makers(pool: &Pool) {
    // Until other nodes have said again what they have open here.
    std::thread::sleep(GRACE);
    let mut follower = Follower::new();
    while is_there(pool.dir()) {
        follower.step(pool.cluster());
        std::thread::sleep(follower.next.saturating_duration_since(Instant::now()));
    }
}

/// Removes copies of files of other nodes that are gone, until the pool is.
fn keep_copies(pool: &Pool) {
    let mut known = false;
    while is_there(pool.dir()) {
        // How many there are isn't known after a loss of power.
        if !known || pool.store().copied().files > 0 {
            // What can't be removed now will be the next time.
            known = pool.cluster().sweep_copies().is_ok();
        }
        std::thread::sleep(SWEEP_COPIES);
    }
}

fn keep(pool: &Pool) -> Result<(), PoolError> {
    let dir = pool.dir();
    let store = pool.store();
    let cluster = pool.cluster();
    // What programs have used up must not keep it from cleaning up behind them.
    // (A daemon works for programs, too, and leaves the reserve to others.)
    if pool.config().member.is_none() {
        forebay_store::process::use_reserve();
    }
    let header = store.control().header();
    let mut used_before = 0;
    let (mut told, mut undrained) = (None, None);
    let (mut refused, mut told_full) = (0, None::<Instant>);
    if store.journal_stopped() {
        let failed = |e| PoolError::io("can't begin the journal anew of the pool", dir, e);
        store.restart_journal().map_err(failed)?;
    }
    let mut saver = Saver::new(store);
    // What processes, or the node's daemon before this one, have begun on other nodes.
    let among = pool.config().member.is_some();
    let mut unfinished = among;
    // A daemon before this one had files open for other nodes, which need a moment to say so again.
    let until = Instant::now() + GRACE;
    let mut asked = Instant::now();
    let mut late = asked;
    let mut swept = Instant::now();
    let mut drained = Instant::now();
    let mut follower = Follower::new();
    let mut made = false;
    let mut room: Vec<Room> = store.media().iter().map(|_| Room::new()).collect();
    loop {
        let seen = header.activity.load(Acquire);
        if !is_there(dir) {
            return Ok(());
        }
        // When nobody else is left, also what was lost at the instant of a death.
        if among && Instant::now() < until && store.is_unsettled() {
            std::thread::sleep(TICK);
            continue;
        }
        let reaped = store.reap();
        unfinished |= among && reaped.as_ref().map_or(true, |r| r.processes > 0);
        if unfinished {
            late = Instant::now() + LATE;
        }
        unfinished |= among && header.unsettled.swap(0, AcqRel) != 0;
        if unfinished {
            unfinished = cluster.settle_notes().is_err();
        }
        if among && asked.elapsed() >= ASK_OWNERS {
            let _ = cluster.check_lock_owners();
            asked = Instant::now();
        }
        let failed = reaped.and_then(|_| store.put_in_order()).err();
        if let Some(e) = failed.filter(|_| failed != told) {
            eprintln!("forebay keeper: can't release what a dead process held: {e}");
        }
        told = failed;
        // Of the last one to go, before sleeping.
        let mut landed = false;
        if store.drains() && (drained.elapsed() >= DRAIN || !store.any_attached()) {
            let left = cluster.drain(DRAIN_MOST);
            landed = left.is_ok_and(|d| d.left > 0);
            drained = Instant::now();
            let failed = left.err();
            if let Some(e) = failed.filter(|_| failed != undrained) {
                eprintln!("forebay keeper: can't move files from memory: {e}");
            }
            undrained = failed;
        }
        if !among && (Instant::now() >= follower.next || !store.any_attached()) {
            made = follower.step(cluster);
        }
        let due = told_full.is_none_or(|told| told.elapsed() >= TELL_FULL);
        if due && store.refusals() != refused {
            (refused, told_full) = (store.refusals(), Some(Instant::now()));
            for text in store.tables().iter().filter_map(Table::complaint) {
                eprintln!("forebay keeper: {text}");
            }
        }
        if swept.elapsed() >= SWEEP {
            // What can't be looked at now will be the next time.
            let _ = store.sweep_watches();
            let _ = store.sweep_readers();
            if among {
                unfinished |= Instant::now() < late && cluster.settle_notes().is_err();
                let _ = crate::requests::reclaim_cells(dir);
            }
            swept = Instant::now();
        }
        let (mut used, mut settled) = (0, true);
        for (i, m) in store.media().iter().enumerate() {
            used += m.usage().used;
            settled &= room[i].step(store, m, pool.config().reserve_of(i));
        }
        let quiet = used == used_before;
        used_before = used;
        let calm = saver.step(store)
            && settled
            && !unfinished
            && Instant::now() > late
            && !landed
            && !made
            && !store.has_watches();
        // The keeper itself may be attached (it writes dead processes' files back). As a daemon it
        // stays so: it has files open for other nodes.
        if !among {
            let _ = store.detach();
        }
        if store.any_attached() {
            std::thread::sleep(if quiet { QUIET_TICK } else { TICK });
        } else {
            // Those who have locks here from elsewhere may have died there.
            let locked = among && store.has_foreign_locks();
            let idle = match (calm, locked) {
                (true, false) => IDLE,
                (true, true) => ASK_OWNERS_IDLE,
                (false, _) => SOON,
            };
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

/// The room of one medium: what is kept ready, and what is given back.
struct Room {
    /// Most bytes in use since `since`, and in the time before that.
    peak: u64,
    before: u64,
    since: Instant,
    /// What all keepers of the host leave this one to keep ready, and when that was found out.
    share: u64,
    looked: Option<Instant>,
    /// There was no room until then.
    none_until: Option<Instant>,
}

impl Room {
    const CELL: u64 = 1 << 20;

    fn new() -> Room {
        Room {
            peak: 0,
            before: 0,
            since: Instant::now(),
            share: 0,
            looked: None,
            none_until: None,
        }
    }

    /// Reserves room ahead of use, up to `most` bytes; gives back what is more. A full file system
    /// shows when the room is needed. Whether nothing is left to be done.
    fn step(&mut self, store: &Store, m: &Medium, most: u64) -> bool {
        if self.looked.is_none_or(|at| at.elapsed() >= LOOKS) {
            self.share = match m.kind() {
                MediumKind::Memory => Host::look().ready_each(),
                MediumKind::Files(_) => u64::MAX,
            };
            self.looked = Some(Instant::now());
        }
        let goal = most.min(self.share);
        let used = m.usage().used;
        if self.since.elapsed() >= GIVES_BACK {
            (self.before, self.peak, self.since) = (self.peak, used, Instant::now());
        }
        self.peak = self.peak.max(used);
        if self.none_until.is_none_or(|until| Instant::now() >= until) {
            let filled = top_up(store, m, goal);
            self.none_until = (!filled).then(|| Instant::now() + NO_ROOM);
        }
        let kept = self.peak.max(self.before) + goal;
        // What was used a moment ago is given back in the end.
        give_back(store, m, kept) && self.peak.max(self.before) == used
    }
}

/// Reserves room ahead of use, up to `goal` bytes. False if there is none.
fn top_up(store: &Store, m: &Medium, goal: u64) -> bool {
    loop {
        let u = m.usage();
        let missing = (u.used + goal).min(u.capacity).saturating_sub(u.reserved) / Room::CELL;
        if missing == 0 {
            return true;
        }
        let Ok(_section) = store.section() else {
            return false;
        };
        if !matches!(m.prepare(missing.min(8) as usize), Ok(true)) {
            return false;
        }
    }
}

/// Gives back the room of unused cells, until no more than `kept` bytes are reserved. Whether
/// nothing is left that can be given back.
fn give_back(store: &Store, m: &Medium, kept: u64) -> bool {
    let mut end = usize::MAX;
    for _ in 0..GIVES_BACK_MOST {
        if m.usage().reserved <= kept {
            return true;
        }
        let Ok(_section) = store.section() else {
            return true;
        };
        match m.give_back(end) {
            Ok(Some(cell)) => end = cell,
            // All others have something in them; or the file system can't.
            Ok(None) | Err(_) => return true,
        }
    }
    false
}

/// Whether the pool in `dir` hasn't been removed: only what the kernel says is gone is gone.
fn is_there(dir: &Path) -> bool {
    !matches!(is_absent(&dir.join("pool.json")), Ok(true))
}
