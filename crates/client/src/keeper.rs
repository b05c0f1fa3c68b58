//! The keeper: one background process per pool, never on the path of an operation.
//!
//! It keeps some room reserved ahead of use (first touches of memory are slow), gives back room
//! that hasn't been used for a while, releases what dead processes held, removes ephemeral files,
//! and moves bursty files out of memory. While nobody is attached it sleeps, and checks once a
//! minute that the pool still exists. Without a keeper the pool works on, only slower and without
//! cleanup.
//!
//! For a pool with a journal, the keeper bounds what a loss of power takes: it syncs the journal
//! every second and all bytes every 30 s.

use crate::home::is_absent;
use crate::host::Host;
use crate::traced;
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
/// Longest sleep. The keeper must notice that the pool's directory was removed by hand.
const IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// Shortest time between two reports that a table is full.
const FULL_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// How often watches without an owner are removed, if there are watches, and reader slots of the
/// dead are freed.
const SWEEP: Duration = Duration::from_secs(2);
/// How often bursty files are moved from memory; and about how many bytes one turn moves.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_MOST: u64 = 256 << 20;
/// How often files of ended creators are looked for. Less often if looking takes more than a
/// twentieth of the time.
const EPHEMERAL_INTERVAL: Duration = Duration::from_secs(1);
const FOLLOW_SHARE: u32 = 20;
/// How long the intents of dead processes are looked for on other nodes: a request that they sent
/// just before may still be carried out.
const LATE: Duration = Duration::from_secs(15);
/// Longest sleep while something is left to be synced.
const SOON: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// How long what a dead daemon held is left unchanged.
const GRACE: Duration = Duration::from_secs(2);
/// How often other nodes are asked whether the owners of locks held here are alive.
const ASK_OWNERS: Duration = Duration::from_secs(5);
const ASK_OWNERS_IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: ASK_OWNERS.as_secs() as i64,
    tv_nsec: 0,
};
/// How often other nodes are asked whether the files that this node has copies of still exist.
const SWEEP_COPIES: Duration = Duration::from_secs(5);
const QUIET_TICK: Duration = Duration::from_secs(1);
/// Room used within this time, or twice of it, stays reserved.
const PEAK_PERIOD: Duration = Duration::from_secs(5);
/// Most cells (1 MiB each) whose room is given back in one turn.
const GIVE_BACK_CELLS: usize = 256;
/// How often the keeper recomputes how much room it may keep ready on this host.
const SHARE_PERIOD: Duration = Duration::from_secs(5);
/// How long no room is reserved ahead after the host had none.
const NO_ROOM: Duration = Duration::from_secs(1);
/// How often the journal, and everything, is synced.
const SYNC_JOURNAL: Duration = Duration::from_secs(1);
const SYNC_ALL: Duration = Duration::from_secs(30);

/// Runs the keeper of the pool in `dir` until the pool is removed or the process is killed. Calls
/// `ready` when it has taken charge. A caller that ends the process should call [`Store::sync_all`]
/// before.
///
/// # Errors
/// As for [`Pool::open`]; [`PoolError`] if the pool has a keeper already or its journal can't be
/// continued.
pub fn run_keeper(dir: &Path, ready: impl FnOnce(&Arc<Pool>)) -> Result<(), PoolError> {
    let keeper = Keeper::take_charge(Arc::new(Pool::open_dir(dir)?))?;
    ready(&keeper.pool);
    keeper.run()
}

/// The process that keeps a pool.
pub struct Keeper {
    pool: Arc<Pool>,
    /// Lock on keeper.pid, held while this exists.
    _charge: OwnedFd,
    /// Locks of the media on file systems.
    _media: Vec<OwnedFd>,
}

impl Keeper {
    /// Takes charge of an open pool.
    ///
    /// # Errors
    /// [`PoolError::Exists`] if the pool has a keeper already; [`PoolError::Daemon`] if one with
    /// another home has a medium; [`PoolError::Io`] if keeper.pid can't be opened or written.
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
        let media = pool.config().hold_media(pool.dir())?;
        Ok(Keeper {
            pool,
            _charge: fd,
            _media: media,
        })
    }

    /// The pool that is kept.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Keeps the pool until it is removed.
    ///
    /// # Errors
    /// If the journal can't be continued.
    pub fn run(self) -> Result<(), PoolError> {
        if self.pool.config().member.is_some() {
            let pool = self.pool.clone();
            // Threads of their own: nothing else waits for a node that doesn't answer.
            self.spawn("fb-copies", move || keep_copies(&pool))?;
            let pool = self.pool.clone();
            self.spawn("fb-makers", move || remove_ephemeral_files(&pool))?;
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

/// Removes ephemeral files.
struct EphemeralFiles {
    next: Instant,
    reported: Option<Errno>,
}

impl EphemeralFiles {
    fn new() -> EphemeralFiles {
        EphemeralFiles {
            next: Instant::now(),
            reported: None,
        }
    }

    /// Removes the ephemeral files of ended creators. Whether there are files of living creators,
    /// or files that couldn't be removed.
    fn step(&mut self, store: Cluster<'_>) -> bool {
        let begun = Instant::now();
        let followed = store.follow_makers();
        self.next = begun + (begun.elapsed() * FOLLOW_SHARE).max(EPHEMERAL_INTERVAL);
        let failed = followed.err();
        // EHOSTDOWN is reported by the operations that need the node.
        if let Some(e) = failed.filter(|e| failed != self.reported && *e != Errno::HOSTDOWN) {
            eprintln!("forebay keeper: can't remove ephemeral files: {e}");
        }
        self.reported = failed;
        followed.map_or(true, |f| f.left > 0)
    }
}

/// Removes ephemeral files, on every node, until the pool is removed.
fn remove_ephemeral_files(pool: &Pool) {
    // Wait until other nodes have repeated what they have open here.
    std::thread::sleep(GRACE);
    let mut ephemeral = EphemeralFiles::new();
    while is_there(pool.dir()) {
        ephemeral.step(pool.cluster());
        std::thread::sleep(ephemeral.next.saturating_duration_since(Instant::now()));
    }
}

/// Removes copies of remote files that no longer exist, until the pool is removed.
fn keep_copies(pool: &Pool) {
    let mut known = false;
    while is_there(pool.dir()) {
        // After a loss of power the number of copies is unknown.
        if !known || pool.store().local_copies().copied().files > 0 {
            // A failure is retried in the next turn.
            known = pool.cluster().sweep_copies().is_ok();
        }
        std::thread::sleep(SWEEP_COPIES);
    }
}

fn keep(pool: &Pool) -> Result<(), PoolError> {
    let dir = pool.dir();
    let store = pool.store();
    let cluster = pool.cluster();
    // Resources that programs have used up must not keep the keeper from cleaning up behind them.
    // (A daemon also works for programs, and leaves the reserve to others.)
    if pool.config().member.is_none() {
        forebay_store::process::use_reserve();
    }
    let header = store.control().header();
    let mut used_before = 0;
    let (mut reported, mut drain_failed) = (None, None);
    let (mut refused, mut full_reported) = (0, None::<Instant>);
    if store.durability().journal_stopped() {
        let failed = |e| PoolError::io("can't restart the journal of the pool", dir, e);
        store.durability().restart_journal().map_err(failed)?;
    }
    let mut saver = Saver::new(store);
    // Intents that processes, or this node's previous daemon, have left on other nodes.
    let among = pool.config().member.is_some();
    let has_origin = pool.config().origin.is_some();
    let mut unfinished = among;
    // Other nodes need a moment to repeat which files they have open here.
    let until = Instant::now() + GRACE;
    let mut owners_asked = Instant::now();
    let mut late = owners_asked;
    let mut swept = Instant::now();
    let mut drained = Instant::now();
    let mut ephemeral = EphemeralFiles::new();
    let mut made = false;
    let mut room: Vec<Room> = store.media().iter().map(|_| Room::new()).collect();
    loop {
        let seen = header.activity.load(Acquire);
        if !is_there(dir) {
            return Ok(());
        }
        // When no other process is left, this also recovers what was lost at the instant of a
        // death.
        if among && Instant::now() < until && store.recovery().is_unsettled() {
            std::thread::sleep(TICK);
            continue;
        }
        let reaped = store.recovery().reap();
        unfinished |= among && reaped.as_ref().map_or(true, |r| r.processes > 0);
        if unfinished {
            late = Instant::now() + LATE;
        }
        unfinished |= among && header.unsettled.swap(0, AcqRel) != 0;
        if unfinished {
            unfinished = cluster.settle_notes().is_err();
        }
        if among && owners_asked.elapsed() >= ASK_OWNERS {
            let _ = cluster.check_lock_owners();
            owners_asked = Instant::now();
        }
        let failed = reaped.and_then(|_| store.recovery().put_in_order()).err();
        if let Some(e) = failed.filter(|_| failed != reported) {
            eprintln!("forebay keeper: can't release what a dead process held: {e}");
        }
        reported = failed;
        // For what the last process to end has left, before sleeping.
        let mut landed = false;
        if store.content().drains() && (drained.elapsed() >= DRAIN || !store.any_attached()) {
            let left = cluster.drain(DRAIN_MOST);
            landed = left.is_ok_and(|d| d.left > 0);
            drained = Instant::now();
            let failed = left.err();
            if let Some(e) = failed.filter(|_| failed != drain_failed) {
                eprintln!("forebay keeper: can't move files from memory: {e}");
            }
            drain_failed = failed;
        }
        if !among && (Instant::now() >= ephemeral.next || !store.any_attached()) {
            made = ephemeral.step(cluster);
        }
        let due = full_reported.is_none_or(|at| at.elapsed() >= FULL_REPORT_INTERVAL);
        if due && store.recovery().refusals() != refused {
            (refused, full_reported) = (store.recovery().refusals(), Some(Instant::now()));
            for text in store
                .recovery()
                .tables()
                .iter()
                .filter_map(Table::complaint)
            {
                eprintln!("forebay keeper: {text}");
            }
        }
        if swept.elapsed() >= SWEEP {
            traced::look_after(dir, store.control().traced());
            // A failure is retried in the next turn.
            let _ = store.watches().sweep_watches();
            let _ = store.recovery().sweep_readers();
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
            && !store.watches().has_watches();
        // The keeper itself may be attached (it writes dead processes' files back). A daemon stays
        // attached: it has files open for other nodes. So does the keeper of a pool with an origin:
        // threads of the origin service have files open, and locks, by the keeper's slot.
        if !among && !has_origin {
            let _ = store.recovery().detach();
        }
        if store.any_attached() {
            std::thread::sleep(if quiet { QUIET_TICK } else { TICK });
        } else {
            // Owners on other nodes of locks held here may have died there.
            let locked = among && store.locks().has_foreign_locks();
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

/// Syncs changes of a pool with `files` media.
struct Saver {
    journal: Instant,
    all: Instant,
    /// The journal's end at the last complete sync.
    saved: u64,
    failed: bool,
}

impl Saver {
    fn new(store: &Store) -> Saver {
        Saver {
            journal: Instant::now(),
            all: Instant::now(),
            saved: store.durability().journal_end(),
            failed: false,
        }
    }

    /// Does the syncs that are due. Whether nothing is left to sync.
    fn step(&mut self, store: &Store) -> bool {
        if self.failed {
            return true;
        }
        let result = self.save(store);
        if let Err(e) = result {
            // Reported once: operations that need the guarantee get the error themselves.
            eprintln!("forebay keeper: can't write to stable storage: {e}");
            self.failed = e == Errno::IO;
        }
        !store.durability().has_unsynced() && store.durability().journal_end() == self.saved
    }

    fn save(&mut self, store: &Store) -> Result<(), Errno> {
        let now = Instant::now();
        if store.durability().checkpoint_wanted() {
            store.durability().checkpoint()?;
        }
        if now - self.all >= SYNC_ALL && store.durability().journal_end() != self.saved {
            store.durability().sync_all()?;
            (self.all, self.saved) = (now, store.durability().journal_end());
        }
        if now - self.journal >= SYNC_JOURNAL && store.durability().has_unsynced() {
            store.durability().end_limbo()?;
            self.journal = now;
        }
        Ok(())
    }
}

/// Reserve of one medium: what is kept ready, and what is given back.
struct Room {
    /// Most bytes in use since `since`, and in the period before.
    peak: u64,
    before: u64,
    since: Instant,
    /// The keeper's share of the room that may be kept ready on this host, and when it was
    /// computed.
    share: u64,
    looked: Option<Instant>,
    /// The host had no room; nothing is reserved until then.
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

    /// Reserves room ahead of use, up to `most` bytes, and gives back the rest. That the file
    /// system is full shows when the room is needed. Whether nothing is left to do.
    fn step(&mut self, store: &Store, m: &Medium, most: u64) -> bool {
        if self.looked.is_none_or(|at| at.elapsed() >= SHARE_PERIOD) {
            self.share = match m.kind() {
                MediumKind::Memory => Host::look().ready_each(),
                MediumKind::Files(_) => u64::MAX,
            };
            self.looked = Some(Instant::now());
        }
        let goal = most.min(self.share);
        let used = m.usage().used;
        if self.since.elapsed() >= PEAK_PERIOD {
            (self.before, self.peak, self.since) = (self.peak, used, Instant::now());
        }
        self.peak = self.peak.max(used);
        if self.none_until.is_none_or(|until| Instant::now() >= until) {
            let filled = top_up(store, m, goal);
            self.none_until = (!filled).then(|| Instant::now() + NO_ROOM);
        }
        let kept = self.peak.max(self.before) + goal;
        // Room that was used until a moment ago is given back later.
        give_back(store, m, kept) && self.peak.max(self.before) == used
    }
}

/// Reserves up to `goal` bytes ahead of use. False if there is no room.
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

/// Gives back the room of unused cells until at most `kept` bytes are reserved. Whether no more can
/// be given back.
fn give_back(store: &Store, m: &Medium, kept: u64) -> bool {
    let mut end = usize::MAX;
    for _ in 0..GIVE_BACK_CELLS {
        if m.usage().reserved <= kept {
            return true;
        }
        let Ok(_section) = store.section() else {
            return true;
        };
        match m.give_back(end) {
            Ok(Some(cell)) => end = cell,
            // All other cells are in use, or the file system can't give room back.
            Ok(None) | Err(_) => return true,
        }
    }
    false
}

/// Whether the pool in `dir` still exists. Only ENOENT counts as removed.
fn is_there(dir: &Path) -> bool {
    !matches!(is_absent(&dir.join("pool.json")), Ok(true))
}
