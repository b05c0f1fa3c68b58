//! The keeper: a pool's background process, which no operation of a program waits for.
//!
//! The keeper keeps some room reserved ahead of use (first touches of memory are slow), gives back
//! room that hasn't been used for a while, releases what dead processes held, removes ephemeral
//! files, and moves bursty files out of memory. While no process is attached, it sleeps, and checks
//! once a minute that the pool still exists. Without a keeper the pool still works, only slower and
//! without cleanup.
//!
//! For a pool with a journal, the keeper bounds what a loss of power can destroy: it syncs the
//! journal every second and all bytes every 30 s.

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
/// Maximum sleep, so that the keeper notices that the pool's directory was removed by hand.
const IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};
/// Minimum time between two reports that a table is full.
const FULL_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// How often the keeper removes watches without an owner, and frees reader slots of dead processes.
const SWEEP: Duration = Duration::from_secs(2);
/// How often bursty files are moved out of memory, and about how many bytes are moved each time.
const DRAIN: Duration = Duration::from_secs(1);
const MAX_DRAIN_BYTES: u64 = 256 << 20;
/// How often the keeper searches for ephemeral files of ended creators; less often if the searches
/// would take more than 1 part in `FOLLOW_SHARE` of its time.
const EPHEMERAL_INTERVAL: Duration = Duration::from_secs(1);
const FOLLOW_SHARE: u32 = 20;
/// How long the keeper searches for intents of a dead process on other nodes: a request that the
/// process sent before its death may still be carried out.
const LATE: Duration = Duration::from_secs(15);
/// Maximum sleep while changes have yet to be synced.
const SOON: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// For this time after its start, a node's keeper releases nothing that dead processes held: it
/// waits for other nodes to report again which files they have open here.
const GRACE: Duration = Duration::from_secs(2);
/// How often the keeper asks other nodes whether the owners of locks on this node's files are
/// alive.
const ASK_OWNERS: Duration = Duration::from_secs(5);
const ASK_OWNERS_IDLE: rustix::thread::Timespec = rustix::thread::Timespec {
    tv_sec: ASK_OWNERS.as_secs() as i64,
    tv_nsec: 0,
};
/// How often the keeper asks other nodes whether the files of which this node has copies still
/// exist.
const SWEEP_COPIES: Duration = Duration::from_secs(5);
const QUIET_TICK: Duration = Duration::from_secs(1);
/// Length of the periods for which the peak of the room in use is recorded. Room that was in use in
/// the current or the previous period stays reserved.
const PEAK_PERIOD: Duration = Duration::from_secs(5);
/// Maximum number of cells (1 MiB each) whose room is given back in one turn.
const GIVE_BACK_CELLS: usize = 256;
/// How often the keeper computes again how much room it may keep ready on this host.
const SHARE_PERIOD: Duration = Duration::from_secs(5);
/// How long the keeper reserves no room ahead of use after the host had no room left.
const NO_ROOM: Duration = Duration::from_secs(1);
/// How often the journal, and all bytes, are synced.
const SYNC_JOURNAL: Duration = Duration::from_secs(1);
const SYNC_ALL: Duration = Duration::from_secs(30);

/// Runs the keeper of the pool in `dir` until the pool is removed or the process is killed. Calls
/// `ready` when the keeper has taken charge. A caller that ends the process should first call
/// `sync_all` of the store's `durability`.
///
/// # Errors
/// As for [`Pool::open`]; [`PoolError`] if the pool has a keeper already or its journal can't be
/// continued.
pub fn run_keeper(dir: &Path, ready: impl FnOnce(&Arc<Pool>)) -> Result<(), PoolError> {
    let keeper = Keeper::take_charge(Arc::new(Pool::open_dir(dir)?))?;
    ready(&keeper.pool);
    keeper.run()
}

/// A pool's keeper: this process, once it has locked keeper.pid.
pub struct Keeper {
    pool: Arc<Pool>,
    /// Lock on keeper.pid, held until this descriptor is closed.
    _charge: OwnedFd,
    /// Locks of the `files` media.
    _media: Vec<OwnedFd>,
}

impl Keeper {
    /// Becomes the keeper of an open pool.
    ///
    /// # Errors
    /// [`PoolError::Exists`] if the pool has a keeper already; [`PoolError::Daemon`] if a keeper
    /// with another FOREBAY_HOME uses a medium; [`PoolError::Io`] if keeper.pid can't be opened or
    /// written.
    pub fn take_charge(pool: Arc<Pool>) -> Result<Keeper, PoolError> {
        let file = pool.dir().join("keeper.pid");
        let failed = |e: Errno| PoolError::io("can't take charge of the pool by", &file, e);
        let fd = rustix::fs::open(
            &file,
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .map_err(failed)?;
        // A process that looks up the keeper's process id holds the lock for an instant.
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
        crate::death::note_start(pool.dir());
        let media = pool.config().hold_media(pool.dir())?;
        Ok(Keeper {
            pool,
            _charge: fd,
            _media: media,
        })
    }

    /// The keeper's pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Does the keeper's work until the pool is removed.
    ///
    /// # Errors
    /// If the journal can't be continued.
    pub fn run(self) -> Result<(), PoolError> {
        if self.pool.config().member.is_some() {
            let pool = self.pool.clone();
            // The following tasks have their own threads, so that no other task waits for a node
            // that doesn't answer.
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

/// Periodic removal of ephemeral files.
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

    /// Removes the ephemeral files of ended creators. Returns whether ephemeral files are left,
    /// because their creators live or the removal failed.
    fn step(&mut self, cluster: Cluster<'_>) -> bool {
        let begun = Instant::now();
        let followed = cluster.declarations().follow_creators();
        self.next = begun + (begun.elapsed() * FOLLOW_SHARE).max(EPHEMERAL_INTERVAL);
        let failed = followed.err();
        // EHOSTDOWN isn't reported here: operations that need the node report it.
        if let Some(e) = failed.filter(|e| failed != self.reported && *e != Errno::HOSTDOWN) {
            eprintln!("forebay keeper: can't remove ephemeral files: {e}");
        }
        self.reported = failed;
        followed.map_or(true, |f| f.left > 0)
    }
}

/// Removes ephemeral files, on every node, until the pool is removed.
fn remove_ephemeral_files(pool: &Pool) {
    // Wait until other nodes have reported again which files they have open here.
    std::thread::sleep(GRACE);
    let mut ephemeral = EphemeralFiles::new();
    while is_there(pool.dir()) {
        ephemeral.step(pool.cluster());
        std::thread::sleep(ephemeral.next.saturating_duration_since(Instant::now()));
    }
}

/// Removes this node's copies of remote files when those files no longer exist. Returns when the
/// pool is removed.
fn keep_copies(pool: &Pool) {
    let mut known = false;
    while is_there(pool.dir()) {
        // After a loss of power the number of copies is unknown.
        if !known || pool.store().local_copies().copied().files > 0 {
            // A failure is retried in the next turn.
            known = pool.cluster().data().sweep_copies().is_ok();
        }
        std::thread::sleep(SWEEP_COPIES);
    }
}

/// A periodic task of the keeper.
struct Every {
    period: Duration,
    done: Instant,
}

impl Every {
    /// A task that is due for the first time after `period`.
    fn new(period: Duration) -> Every {
        Every {
            period,
            done: Instant::now(),
        }
    }

    fn is_due(&self) -> bool {
        self.done.elapsed() >= self.period
    }

    fn has_been_done(&mut self) {
        self.done = Instant::now();
    }
}

/// The last error of a task. An error is reported only if it differs from the last one.
#[derive(Default)]
struct Reported(Option<Errno>);

impl Reported {
    fn note(&mut self, failed: Option<Errno>, what: &str) {
        if let Some(e) = failed.filter(|_| failed != self.0) {
            eprintln!("forebay keeper: {what}: {e}");
        }
        self.0 = failed;
    }
}

/// The keeper's tasks, and what they know from one turn to the next.
struct Tasks<'a> {
    pool: &'a Pool,
    store: &'a Store,
    cluster: Cluster<'a>,
    /// Whether the pool has several nodes.
    among: bool,
    /// End of the time in which other nodes report again which files they have open here.
    grace: Instant,
    /// Whether intents may be left, of dead processes or of this node's previous daemon; and the
    /// time until which more of them may appear.
    unfinished: bool,
    late: Instant,
    ask_owners: Every,
    release: Reported,
    drain: Every,
    drained: Reported,
    ephemeral: EphemeralFiles,
    /// Whether there are ephemeral files.
    made: bool,
    /// Number of refused table entries at the last report of full tables, and the time of that
    /// report.
    refused: u32,
    full_reported: Option<Instant>,
    sweep: Every,
    room: Vec<Room>,
    used: u64,
    saver: Saver,
}

/// The result of a turn.
struct Turn {
    /// Time until the next turn, while processes are attached.
    pause: Duration,
    /// Whether nothing is left to do.
    calm: bool,
}

impl<'a> Tasks<'a> {
    fn new(pool: &'a Pool) -> Tasks<'a> {
        let store = pool.store();
        let among = pool.config().member.is_some();
        Tasks {
            pool,
            store,
            cluster: pool.cluster(),
            among,
            grace: Instant::now() + GRACE,
            unfinished: among,
            late: Instant::now(),
            ask_owners: Every::new(ASK_OWNERS),
            release: Reported::default(),
            drain: Every::new(DRAIN),
            drained: Reported::default(),
            ephemeral: EphemeralFiles::new(),
            made: false,
            refused: 0,
            full_reported: None,
            sweep: Every::new(SWEEP),
            room: store.media().iter().map(|_| Room::new()).collect(),
            used: 0,
            saver: Saver::new(store),
        }
    }

    /// Whether the keeper has to wait for other nodes to report again which files they have open
    /// here.
    fn waits_for_nodes(&self) -> bool {
        self.among
            && Instant::now() < self.grace
            && forebay_store::process::is_unsettled(self.store.control())
    }

    /// Carries out all tasks that are due.
    fn turn(&mut self) -> Turn {
        let failed = self.release_dead();
        let landed = self.move_bursty();
        self.remove_ephemeral();
        self.report_full_tables();
        self.sweep();
        let (quiet, settled) = self.keep_room();
        let calm = self.saver.step(self.store)
            && settled
            && !self.unfinished
            && failed.is_none()
            && Instant::now() > self.late
            && !landed
            && !self.made
            && !self.store.watches().has_watches();
        let pause = if quiet { QUIET_TICK } else { TICK };
        Turn { pause, calm }
    }

    /// Releases what dead processes held, here and on other nodes. If no other process has an
    /// operation in flight, also recovers the references, entries and pages lost by processes that
    /// died in the middle of an operation. Returns the failure, if any.
    fn release_dead(&mut self) -> Option<Errno> {
        let reaped = self.store.recovery().reap();
        self.unfinished |= self.among && reaped.as_ref().map_or(true, |r| r.processes > 0);
        if self.unfinished {
            self.late = Instant::now() + LATE;
        }
        let unsettled = &self.store.control().header().unsettled;
        self.unfinished |= self.among && unsettled.swap(0, AcqRel) != 0;
        if self.unfinished {
            self.unfinished = self.cluster.namespace().settle_notes().is_err();
        }
        if self.among && self.ask_owners.is_due() {
            let _ = self.cluster.locks().check_lock_owners();
            self.ask_owners.has_been_done();
        }
        let failed = reaped.and_then(|_| self.store.recovery().put_in_order());
        let failed = failed.err();
        self.release
            .note(failed, "can't release what a dead process held");
        failed
    }

    /// Moves bursty files out of memory. If no process is attached, does so even before the
    /// interval [`DRAIN`] has passed. Returns whether bursty files are left in memory.
    fn move_bursty(&mut self) -> bool {
        if !self.store.content().drains()
            || !self.drain.is_due() && self.store.attachment.any_attached(self.store.control())
        {
            return false;
        }
        let left = self.cluster.room().drain(MAX_DRAIN_BYTES);
        self.drain.has_been_done();
        self.drained
            .note(left.err(), "can't move files from memory");
        left.is_ok_and(|d| d.left > 0)
    }

    /// Removes ephemeral files of ended creators. In a pool of several nodes, a separate thread
    /// does that.
    fn remove_ephemeral(&mut self) {
        if !self.among
            && (Instant::now() >= self.ephemeral.next
                || !self.store.attachment.any_attached(self.store.control()))
        {
            self.made = self.ephemeral.step(self.cluster);
        }
    }

    fn report_full_tables(&mut self) {
        let due = (self.full_reported).is_none_or(|at| at.elapsed() >= FULL_REPORT_INTERVAL);
        if !due || forebay_store::tables::refusals(self.store.control()) == self.refused {
            return;
        }
        self.refused = forebay_store::tables::refusals(self.store.control());
        self.full_reported = Some(Instant::now());
        let tables = forebay_store::tables::all(self.store.control());
        for text in tables.iter().filter_map(Table::complaint) {
            eprintln!("forebay keeper: {text}");
        }
    }

    /// Removes leftovers of dead processes: watches, reader slots, request cells. A failure is
    /// retried in the next turn.
    fn sweep(&mut self) {
        if !self.sweep.is_due() {
            return;
        }
        let dir = self.pool.dir();
        traced::look_after(dir, self.store.control().traced());
        let _ = self.store.watches().sweep_watches();
        let _ = self.store.recovery().sweep_readers();
        if self.among {
            self.unfinished |=
                Instant::now() < self.late && self.cluster.namespace().settle_notes().is_err();
            let _ = crate::requests::reclaim_cells(dir);
        }
        self.sweep.has_been_done();
    }

    /// Keeps room reserved ahead of use. Returns whether as much room is in use as in the turn
    /// before, and whether nothing is left to reserve or to give back.
    fn keep_room(&mut self) -> (bool, bool) {
        let (mut used, mut settled) = (0, true);
        for (i, m) in self.store.media().iter().enumerate() {
            used += m.usage().used;
            settled &= self.room[i].step(self.store, m, self.pool.config().reserve_of(i));
        }
        let before = std::mem::replace(&mut self.used, used);
        (used == before, settled)
    }

    /// Ends the attachment that this process got by writing back dead processes' files. A daemon
    /// stays attached: it has files open for other nodes. So does the keeper of a pool with an
    /// origin: threads of the origin service use its process slot for open files and locks.
    fn detach(&self) {
        if !self.among && self.pool.config().origin.is_none() {
            let _ = self.store.recovery().detach();
        }
    }

    /// Sleeps until the next turn. While no process is attached, the sleep ends as soon as one
    /// attaches: when the counter of activity differs from `seen`.
    fn rest(&self, turn: &Turn, seen: u32) {
        if self.store.attachment.any_attached(self.store.control()) {
            return std::thread::sleep(turn.pause);
        }
        // Locks on this node's files may have owners on other nodes, and these owners may have
        // died.
        let locked = self.among && self.store.locks().has_remote_locks();
        let idle = match (turn.calm, locked) {
            (true, false) => IDLE,
            (true, true) => ASK_OWNERS_IDLE,
            (false, _) => SOON,
        };
        let header = self.store.control().header();
        header.keeper_sleeps.store(1, SeqCst);
        let waited = futex::wait(&header.activity, futex::Flags::empty(), seen, Some(&idle));
        header.keeper_sleeps.store(0, SeqCst);
        // The counter changed, perhaps by the keeper's own work. If its own work fails again and
        // again, the keeper must not keep the processor busy.
        if waited == Err(Errno::AGAIN) {
            std::thread::sleep(turn.pause);
        }
    }
}

fn keep(pool: &Pool) -> Result<(), PoolError> {
    let dir = pool.dir();
    let store = pool.store();
    // The keeper must be able to clean up after programs that have used up a resource, so it may
    // use the reserved entries of tables. A daemon also works for programs, so it may not.
    if pool.config().member.is_none() {
        forebay_store::process::use_reserve();
    }
    if store.durability().journal_stopped() {
        let failed = |e| PoolError::io("can't restart the journal of the pool in", dir, e);
        store.durability().restart_journal().map_err(failed)?;
    }
    let mut tasks = Tasks::new(pool);
    loop {
        let seen = store.control().header().activity.load(Acquire);
        if !is_there(dir) {
            return Ok(());
        }
        if tasks.waits_for_nodes() {
            std::thread::sleep(TICK);
            continue;
        }
        let turn = tasks.turn();
        tasks.detach();
        tasks.rest(&turn, seen);
    }
}

/// Syncs the changes of a pool with `files` media.
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

    /// Carries out the syncs that are due. Returns whether nothing is left to sync.
    fn step(&mut self, store: &Store) -> bool {
        if self.failed {
            return true;
        }
        let result = self.save(store);
        if let Err(e) = result {
            // EIO is reported once, since nothing is synced after it. Operations that need their
            // changes synced return the error themselves.
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

/// State of one medium's reserve: the room kept ready, and the room to give back.
struct Room {
    /// Maximum number of bytes in use in the current period (it began at `since`), and in the
    /// previous one.
    peak: u64,
    before: u64,
    since: Instant,
    /// Maximum number of bytes that the keeper may keep ready on this host, and when it was
    /// computed.
    share: u64,
    looked: Option<Instant>,
    /// Time until which no room is reserved ahead of use, because the host had none left.
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

    /// Reserves room ahead of use, up to `most` bytes, and gives back further unused room. A full
    /// file system isn't reported here, but by the operations that need room. Returns whether
    /// nothing is left to do.
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
        // Room that was in use in this or the previous period is given back later.
        give_back(store, m, kept) && self.peak.max(self.before) == used
    }
}

/// Reserves up to `goal` bytes ahead of use. Returns false if there is no room.
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

/// Gives back the room of unused cells until at most `kept` bytes are reserved. Returns whether
/// nothing more is to be given back.
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
            // All other cells are in use, or the file system can't release room.
            Ok(None) | Err(_) => return true,
        }
    }
    false
}

/// Whether the pool in `dir` still exists. Only ENOENT counts as removed.
fn is_there(dir: &Path) -> bool {
    !matches!(is_absent(&dir.join("pool.json")), Ok(true))
}
