//! Pools on this node: creating, finding, opening, keeping and removing them.
//!
//! Every pool has a directory below [`home`] (in shared memory, mode 0700):
//!
//! ```text
//! HOME/NAME/pool.json     configuration ([`PoolConfig`])
//! HOME/NAME/control       control region of the node store
//! HOME/NAME/records/      records
//! HOME/NAME/map-0         map of medium 0
//! HOME/NAME/medium-0/     segment of a memory medium
//! HOME/NAME/journal       the latest part of the journal, if all media are `files`
//! HOME/NAME/keeper.pid    locked by the keeper while it runs
//! HOME/NAME/programs/     the programs that `forebay exec` and `run` have started
//! HOME/NAME/rings/        what processes have recorded, if tracepoints are on
//! HOME/NAME/violations    operations done or refused against the controls of files, if any
//! DIR/forebay-UID-NAME-ID/  directory of a `files` medium: segment and a copy of pool.json. If
//!                         no medium is memory, the first medium's directory also has the
//!                         checkpoint and the journal and, in a pool of several nodes,
//!                         copies of key, map and plan.json
//! ```
//! A pool of several nodes has a directory HOME/NAME/node-K for each of its nodes on this host
//! ([`places`]). Besides the files above, it contains `map` (the pool map), `key`, and `requests`,
//! through which processes reach other nodes ([`requests`]).
//!
//! A process uses a pool by opening these files; there is no server. The keeper ([`run_keeper`])
//! only reserves room ahead and cleans up behind dead processes.

mod config;
pub mod courier_note;
pub mod dead_end;
pub mod death;
mod error;
mod files;
mod home;
mod host;
mod keeper;
mod keeper_process;
mod lifetime;
mod nodes;
pub mod origin;
pub mod private;
pub mod requests;
mod room;
mod starting;
mod traced;
mod violations;

pub use config::VERSION as FORMAT;
pub use config::{
    CreateOptions, DEFAULT_RESERVE, Member, PoolConfig, begin_lifetime, check_name, impossible,
};
pub use error::PoolError;
pub use files::mend_files;
pub use forebay_controls as controls;
pub use home::{check_home, home, node_dir};
pub use host::{Host, check as check_host};
pub use keeper::{Keeper, run_keeper};
pub use keeper_process::{end_keeper, keeper_of, keeper_pid};
pub use lifetime::{Lifetime, boot_clock};
pub use nodes::{Place, PoolState, choose, places, take_over, write_kept};
pub use room::Room;
pub use starting::Starting;
pub use violations::Violation;

use forebay_cluster::peers::Peers;
use forebay_cluster::{Cluster, Nodes};
use forebay_media::{Medium, MediumKind, MediumSpec, Usage};
use forebay_placement::NodeId;
use forebay_store::{Journal, Loaded, Store};
use home::{is_absent, make_home, sync_path};
use nodes::check_absent;
use private::Above;
use requests::Channel;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pool found by [`Pool::list`].
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    pub name: String,
    pub dir: PathBuf,
    pub state: PoolState,
}

/// The use of a medium of a pool. Bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediumUsage {
    pub spec: MediumSpec,
    pub capacity: u64,
    pub used: u64,
    pub reserved: u64,
    /// Maximum room kept ready beyond the room in use.
    pub reserve: u64,
    /// Bytes that can still be written: what the capacity leaves, or less if the host has less
    /// room.
    pub available: u64,
}

/// An open pool.
pub struct Pool {
    config: PoolConfig,
    dir: PathBuf,
    store: Store,
    nodes: Option<Arc<Nodes>>,
}

impl Pool {
    /// Creates an empty pool, without starting its keeper.
    ///
    /// # Errors
    /// [`PoolError`] if the name is taken or malformed, or a medium can't be made. Nothing is left
    /// behind.
    pub fn create(o: &CreateOptions) -> Result<Pool, PoolError> {
        Pool::create_for(o, &Lifetime::default())
    }

    /// As [`Pool::create`], with a limited lifetime.
    ///
    /// # Errors
    /// As for [`Pool::create`].
    pub fn create_for(o: &CreateOptions, lifetime: &Lifetime) -> Result<Pool, PoolError> {
        let mut config = PoolConfig::new(o)?;
        config.lifetime = lifetime.begun();
        let home = home();
        make_home()?;
        let dir = home.join(&o.name);
        check_absent(&o.name, Pool::state(&o.name))?;
        private::make(&dir, false, Above::Strict)?;
        let made = Pool::fill(&config, &dir, None).and_then(|()| Pool::open_dir(&dir));
        if made.is_err() {
            remove_everything(&config, &dir);
        }
        made
    }

    /// Creates a node of a new pool of several nodes, with the pool's key; see
    /// [`PoolConfig::of_node`]. The node is usable once its file `map` is written.
    ///
    /// # Errors
    /// [`PoolError`] if the name is taken, or a medium can't be made. Nothing is left behind.
    pub fn create_node(config: &PoolConfig, key: &[u8]) -> Result<(), PoolError> {
        let member = config.member.unwrap_or(Member { node: 0, nodes: 1 });
        make_home()?;
        nodes::check_room(config, member)?;
        let dir = node_dir(&config.name, member.node);
        let above = home().join(&config.name);
        let mut made = Err(PoolError::io("can't make", &above, Errno::NOENT));
        // When another node in the same directory `above` is removed, `above` may be removed, too,
        // and must be made again.
        for _ in 0..8 {
            private::make(&above, true, Above::Strict)?;
            made = private::make(&dir, false, Above::Strict);
            match &made {
                Err(PoolError::Io { error, .. }) if *error == Errno::NOENT => {}
                _ => break,
            }
        }
        made?;
        let made = Pool::fill(config, &dir, Some(key));
        if made.is_err() {
            remove_node(config);
        }
        made
    }

    fn fill(config: &PoolConfig, dir: &Path, key: Option<&[u8]>) -> Result<(), PoolError> {
        if let Some(key) = key {
            let at = dir.join("key");
            write_secret(&at, key).map_err(|e| PoolError::io("can't write", &at, e))?;
        }
        let journal_dir = config.journal_dir(dir);
        let tracks = journal_dir.is_some();
        for (i, spec) in config.media.iter().enumerate() {
            let medium = config.medium_dir(dir, i);
            let failed = |e| PoolError::medium(spec, &medium, e);
            private::make(&medium, false, Above::Any)?;
            let map = config.map_path(dir, i);
            Medium::create(&medium, &map, spec.capacity, tracks).map_err(failed)?;
            if let MediumKind::Files(base) = &spec.kind {
                config.write(&medium)?;
                link_medium(dir, i, &medium)?;
                sync_path(base).map_err(failed)?;
            }
        }
        let records = config.records_dir(dir);
        private::make(&records, false, Above::Strict)?;
        if let (Some(key), Some(at)) = (key, &journal_dir) {
            nodes::keep(at, "key", key).map_err(|e| {
                let error = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                PoolError::io("can't write the key in", at, error)
            })?;
        }
        let journal = match &journal_dir {
            Some(at) => {
                let failed = |e| PoolError::io("can't make the journal in", at, e);
                let journal = make_journal(dir, at).map_err(failed)?;
                Some((journal, config.open_media(dir)?, config.journal_bound()))
            }
            None => None,
        };
        let owner = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        Store::create(
            &dir.join("control"),
            &records,
            (config.shards, config.record_bytes),
            (0o755, owner.0, owner.1),
            journal,
        )
        .map_err(|e| PoolError::io("can't make the records in", &records, e))?;
        // Written last: a directory without pool.json is one of a pool whose creation wasn't
        // completed.
        config.write(dir)
    }

    /// Opens the pool `name`. Of a pool of several nodes, opens the node that [`choose`] returns.
    ///
    /// # Errors
    /// [`PoolError::Absent`], [`PoolError::Foreign`], [`PoolError::Damaged`],
    /// [`PoolError::OtherHost`], [`PoolError::Blind`]; [`PoolError::Io`] if a file can't be read;
    /// [`PoolError::Invalid`] if FOREBAY_NODE is no node on this host.
    pub fn open(name: &str) -> Result<Pool, PoolError> {
        Pool::open_node(name, None)
    }

    /// As [`Pool::open`], but opens node `wanted` if it is given.
    ///
    /// # Errors
    /// As for [`Pool::open`]; [`PoolError::Invalid`] if the node isn't on this host.
    pub fn open_node(name: &str, wanted: Option<u32>) -> Result<Pool, PoolError> {
        let place = choose(name, wanted)?;
        let pool = Pool::open_dir(&place.dir)?;
        nodes::check_started(pool.config(), &place.dir)?;
        Ok(pool)
    }

    /// Opens the pool, or node, in `dir`. A node of a pool of several nodes reaches its peers
    /// through its daemon.
    ///
    /// # Errors
    /// As for [`Pool::open`].
    pub fn open_dir(dir: &Path) -> Result<Pool, PoolError> {
        Pool::open_with(dir, None)
    }

    /// Opens the node in `dir` for its daemon. The daemon reaches peers through `others`.
    ///
    /// # Errors
    /// As for [`Pool::open`].
    pub fn open_dir_among(dir: &Path, others: Arc<dyn Peers>) -> Result<Pool, PoolError> {
        Pool::open_with(dir, Some(others))
    }

    fn open_with(dir: &Path, others: Option<Arc<dyn Peers>>) -> Result<Pool, PoolError> {
        if is_absent(dir)? {
            return Err(PoolError::Absent(home::name_of(dir)));
        }
        let config = PoolConfig::read(dir)?;
        let damaged = |what: &str, e: Errno| match e {
            // This process isn't allowed to read the files, so nothing is known about the pool.
            e if error::cant_look(e) => PoolError::io(&format!("can't open {what} in"), dir, e),
            e => PoolError::Damaged {
                name: config.name.clone(),
                why: format!("{what}: {}", error::words(e)),
            },
        };
        let media = config.open_media(dir)?;
        // RLIMIT_FSIZE is meant for users' files, and segments and journals are longer than most
        // limits. So segments and journals are written through mappings beyond the limit.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        forebay_media::set_size_limit(limit.unwrap_or(u64::MAX));
        let journal = match config.journal_dir(dir) {
            Some(at) => Some(
                Journal::open(&dir.join("journal"), &at).map_err(|e| damaged("the journal", e))?,
            ),
            None => None,
        };
        let records = config.records_dir(dir);
        for shard in 0..config.shards {
            // LMDB would create an empty shard in place of a missing one.
            if is_absent(&records.join(format!("{shard:02}")))? {
                return Err(damaged("the records", Errno::NOENT));
            }
        }
        let control = dir.join("control");
        let store = Store::open(&control, &records, config.record_bytes, media, journal)
            .map_err(|e| damaged("the control region", e))?;
        match forebay_store::process::sees_others(store.control()) {
            Some(true) => {}
            Some(false) => return Err(PoolError::OtherHost(config.name)),
            None => return Err(PoolError::Blind),
        }
        store.durability().set_journal_bound(config.journal_bound());
        let node = config.member.map_or(0, |member| member.node);
        store
            .control()
            .traced()
            .head
            .node
            .store(node, std::sync::atomic::Ordering::Relaxed);
        let others = match (others, config.member) {
            (None, Some(member)) => {
                let channel = Channel::open(dir, NodeId(member.node), member.nodes)
                    .map_err(|e| damaged("the way to other nodes", e))?;
                Some(Arc::new(channel) as Arc<dyn Peers>)
            }
            (others, _) => others,
        };
        let pool = Pool {
            config,
            dir: dir.to_owned(),
            store,
            nodes: None,
        };
        Ok(match others {
            Some(others) => pool.among(others),
            None => pool,
        })
    }

    /// Makes this pool one node of a pool of several nodes. The pool reaches its peers through
    /// `others`.
    pub fn among(self, others: std::sync::Arc<dyn forebay_cluster::peers::Peers>) -> Pool {
        let nodes = Nodes::new(others);
        Pool {
            store: self.store.among(nodes.clone()),
            nodes: Some(nodes),
            ..self
        }
    }

    /// All pools of this user, sorted by name. Empty if the directory of pools doesn't exist.
    ///
    /// # Errors
    /// [`PoolError::Foreign`] if others own or can change that directory; [`PoolError::Io`] if it
    /// can't be read.
    pub fn list() -> Result<Vec<Listing>, PoolError> {
        check_home()?;
        let home = home();
        let failed = |e: std::io::Error| {
            let e = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            PoolError::io("can't list", &home, e)
        };
        let entries = match std::fs::read_dir(&home) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut pools = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if !entry.file_type().map_err(failed)?.is_dir() {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            pools.push(Listing {
                state: Pool::state(&name),
                dir: entry.path(),
                name,
            });
        }
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pools)
    }

    /// The state of the pool `name`: the worst of its nodes' states on this host.
    pub fn state(name: &str) -> PoolState {
        let mut worst = PoolState::Absent;
        for place in places(name) {
            worst = match (worst, place.state()) {
                (PoolState::Unknown(why), _) | (_, PoolState::Unknown(why)) => {
                    PoolState::Unknown(why)
                }
                (PoolState::Damaged(why), _) | (_, PoolState::Damaged(why)) => {
                    PoolState::Damaged(why)
                }
                (PoolState::Stale, _) | (_, PoolState::Stale) => PoolState::Stale,
                (PoolState::Running, _) | (_, PoolState::Running) => PoolState::Running,
                (PoolState::Absent, PoolState::Absent) => PoolState::Absent,
            };
        }
        worst
    }

    /// Sends a request to the origin service, and waits for the result; see [`origin::ask`].
    ///
    /// # Errors
    /// As for [`origin::ask`].
    pub fn ask_origin(&self, request: &origin::Request) -> Result<String, origin::Refusal> {
        origin::ask(&self.asker(), request)
    }

    /// Sends an order to the origin's copier on another node, and waits for the result. Blocks as
    /// long as the copier makes progress; `is_there` is called at each sign of progress.
    ///
    /// # Errors
    /// As for [`origin::order`].
    pub fn order_copier(
        &self,
        node: u32,
        request: &origin::Request,
        is_there: &mut dyn FnMut(),
    ) -> Result<String, origin::Refusal> {
        origin::order(&self.asker(), node, request, is_there)
    }

    fn asker(&self) -> origin::Asker<'_> {
        let config = self.config.origin.as_ref();
        let timeout = config.map_or(origin::TIMEOUT_MS, |config| config.timeout_ms);
        origin::Asker {
            node: self.config.member.map_or(0, |member| member.node),
            dir: self.dir(),
            cluster: self.cluster(),
            timeout: Duration::from_millis(timeout),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The pool's directory; of a pool of several nodes, this node's.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// This node's store, for operations that concern this node and its processes alone.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Prepares the pool for use in a forked child, where the parent's handles can't be used. Must
    /// be the child's first call.
    pub fn after_fork_in_child(&self) {
        self.store.after_fork_in_child();
        if let Some(nodes) = &self.nodes {
            nodes.after_fork_in_child();
        }
    }

    /// The pool as one store, whichever nodes its objects are on.
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster::new(&self.store, self.nodes.as_deref())
    }

    /// The use of each medium of this node.
    pub fn usage(&self) -> Vec<MediumUsage> {
        self.config
            .media
            .iter()
            .zip(self.store.media())
            .enumerate()
            .map(|(i, (spec, m))| {
                let u = m.usage();
                let spec = spec.clone();
                let host = (spec.kind == MediumKind::Memory).then(Host::now);
                let ready = host.map_or(u64::MAX, |h| h.ready_each());
                MediumUsage {
                    capacity: u.capacity,
                    used: u.used,
                    reserved: u.reserved,
                    reserve: self.config.reserve_of(i).min(ready),
                    available: available(&spec.kind, &u, host),
                    spec,
                }
            })
            .collect()
    }

    /// Capacity of the whole pool on all nodes, and how much of it is used. Bytes. Figures of
    /// remote nodes may be some seconds old. Capacity for which the hosts have no room isn't
    /// counted.
    pub fn capacity(&self) -> (u64, u64) {
        self.cluster().room().capacity_of_all().unwrap_or_else(|| {
            self.usage().iter().fold((0, 0), |(size, used), u| {
                (size + u.used + u.available, used + u.used)
            })
        })
    }

    /// The quota of the pool's origin, and its usage. None if there is no quota, or the origin
    /// service doesn't answer.
    pub fn quota(&self) -> Option<origin::QuotaStatus> {
        self.config.has_quota().then_some(())?;
        let text = self.ask_origin(&origin::Request::Usage {}).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// The pool's figures for statfs(2): the room of its media or, if that is less, of its quota.
    pub fn room(&self) -> Room {
        let (bytes, used) = self.capacity();
        let media = Room::of_media(bytes, used);
        match self.quota() {
            Some(quota) => media.within(&quota),
            None => media,
        }
    }

    /// Process ids of the attached processes, without this one and the keeper.
    pub fn attached(&self) -> Vec<u32> {
        let not = [Some(std::process::id()), self.keeper_pid()];
        let mut pids = forebay_store::process::attached(self.store.control());
        pids.retain(|p| !not.contains(&Some(*p)));
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The keeper's process id, if the keeper runs.
    pub fn keeper_pid(&self) -> Option<u32> {
        keeper_pid(&self.dir)
    }

    /// Releases what dead processes held, completes the operations that they began, and removes
    /// objects that only they could reach. Returns a sentence with the results.
    ///
    /// # Errors
    /// If the records can't be read or written.
    pub fn settle(&self) -> Result<String, PoolError> {
        let r = self
            .store
            .recovery()
            .settle()
            .map_err(|e| PoolError::io("can't settle the records in", &self.dir, e))?;
        Ok(format!(
            "dead processes released: {}; open files of theirs: {}",
            r.processes, r.descriptors
        ))
    }

    /// Ends the keepers of the pool `name`, and removes the whole pool on this host, whatever its
    /// state.
    ///
    /// # Errors
    /// [`PoolError`] if the pool doesn't exist, belongs to another user, or can't be removed.
    pub fn destroy(name: &str) -> Result<(), PoolError> {
        config::check_name(name)?;
        let dir = home().join(name);
        if is_absent(&dir)? {
            return Err(PoolError::Absent(name.to_owned()));
        }
        private::check(&dir, Above::Strict)?;
        let until = Instant::now() + REMOVAL;
        loop {
            let places = places(name);
            // In parallel: each keeper may take a moment to end.
            std::thread::scope(|s| {
                let all: Vec<_> = places
                    .iter()
                    .map(|place| s.spawn(|| end_keeper(&place.dir)))
                    .collect();
                let ended = all.into_iter().map(|one| {
                    one.join()
                        .unwrap_or_else(|_| Err(PoolError::Daemon("a thread has failed".into())))
                });
                ended.collect::<Result<Vec<()>, _>>()
            })?;
            places.iter().for_each(|p| remove_linked_media(&p.dir));
            match std::fs::remove_dir_all(&dir) {
                Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    let e = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                    return Err(PoolError::io("can't remove", &dir, e));
                }
                _ => return Ok(()),
            }
        }
    }
}

/// Bytes that can still be written to a medium: what its capacity leaves, and no more than the host
/// has room for.
fn available(kind: &MediumKind, u: &Usage, host: Option<Host>) -> u64 {
    let promised = u.capacity.saturating_sub(u.reserved);
    let there = match (kind, host) {
        (MediumKind::Files(base), _) => {
            rustix::fs::statvfs(base).map_or(promised, |s| s.f_bavail.saturating_mul(s.f_frsize))
        }
        (MediumKind::Memory, Some(host)) => host.part_of(promised),
        (MediumKind::Memory, None) => promised,
    };
    u.reserved.saturating_sub(u.used) + promised.min(there)
}

/// Ends the keepers of pool `name` on this host and removes its shared memory. The directories of
/// `files` media, with everything that was synced, are not changed.
pub fn forget(name: &str) {
    let places = places(name);
    // A keeper that can't be ended notices that its pool was removed.
    places.iter().for_each(|p| _ = end_keeper(&p.dir));
    let _ = std::fs::remove_dir_all(home().join(name));
}

/// How long the removal of a pool's directory is retried. The processes of a cancelled start may
/// still create files in the directory, until they notice the removal.
const REMOVAL: Duration = Duration::from_secs(5);

/// Removes the node with this configuration, whether it is complete or not. The node's keeper must
/// have ended.
pub fn remove_node(config: &PoolConfig) {
    let Some(member) = config.member else {
        return;
    };
    let dir = node_dir(&config.name, member.node);
    // The creation may have failed because the directory belongs to another pool of this name.
    if !dir.join("pool.json").exists()
        || PoolConfig::read(&dir).is_ok_and(|c| c.uuid == config.uuid)
    {
        remove_everything(config, &dir);
        let _ = std::fs::remove_dir(home().join(&config.name));
    }
}

/// Writes a new file with mode 0600.
fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::io::write(&file, bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Makes a pool whose media are all `files` usable again after shared memory was lost (reboot, loss
/// of power). `medium` is the pool's directory in its first medium. Of a pool of several nodes,
/// reopens one node; see [`PoolConfig::member`]. Returns the pool, and what was loaded from
/// checkpoint and journal.
///
/// # Errors
/// [`PoolError`] if `medium` isn't such a directory, the pool has media in memory, its checkpoint
/// is missing or damaged, a pool of this name exists, or a keeper with another FOREBAY_HOME uses a
/// medium.
pub fn reopen(medium: &Path) -> Result<(Pool, Loaded), PoolError> {
    let mut config = PoolConfig::read_of_medium(medium)?;
    config.lifetime = config.lifetime.begun();
    if config.media.iter().any(|m| m.kind == MediumKind::Memory) {
        return Err(PoolError::Lost(config.name));
    }
    make_home()?;
    let dir = match config.member {
        Some(member) => {
            let above = home().join(&config.name);
            private::make(&above, true, Above::Strict)?;
            nodes::check_room(&config, member)?;
            node_dir(&config.name, member.node)
        }
        None => {
            if Pool::state(&config.name) != PoolState::Absent {
                return Err(PoolError::Exists(config.name));
            }
            home().join(&config.name)
        }
    };
    // The locks are held until the records are complete; then the pool's keeper takes them.
    let _media = config.hold_media(&dir)?;
    private::make(&dir, false, Above::Strict)?;
    let made = (|| {
        let failed = |e| PoolError::io("can't prepare", &dir, e);
        Store::create_control(&dir.join("control"), config.shards).map_err(failed)?;
        for (i, spec) in config.media.iter().enumerate() {
            Medium::create_map(&config.map_path(&dir, i), spec.capacity, true).map_err(failed)?;
            link_medium(&dir, i, &config.medium_dir(&dir, i))?;
        }
        let records = config.records_dir(&dir);
        private::make(&records, false, Above::Strict)?;
        let at = config.medium_dir(&dir, 0);
        let journal = make_journal(&dir, &at).map_err(failed)?;
        let media = config.open_media(&dir)?;
        let control = dir.join("control");
        let store = Store::open(
            &control,
            &records,
            config.record_bytes,
            media,
            Some(journal),
        )
        .map_err(failed)?;
        store.durability().set_journal_bound(config.journal_bound());
        let loaded = store.durability().reload().map_err(|e| match e {
            Errno::BADMSG | Errno::NOENT => PoolError::NoCheckpoint(at),
            e => PoolError::io("can't load the records in", &at, e),
        })?;
        if config.member.is_some() {
            for name in nodes::NODE_FILES {
                let from = config.medium_dir(&dir, 0).join(name);
                let copied = std::fs::read(&from).and_then(|b| nodes::write_whole(&dir, name, &b));
                copied.map_err(|e| {
                    let error = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                    PoolError::io("can't take over", &from, error)
                })?;
            }
        }
        config.write(&dir)?;
        Ok((
            Pool {
                config,
                dir: dir.clone(),
                store,
                nodes: None,
            },
            loaded,
        ))
    })();
    if made.is_err() {
        // Remove only what was created here: the medium stays as it was.
        let _ = std::fs::remove_dir_all(&dir);
    }
    made
}

/// Creates the journal's ring in the pool's directory, and opens the journal, whose files are in
/// `at`.
fn make_journal(dir: &Path, at: &Path) -> Result<Journal, Errno> {
    let ring = dir.join("journal");
    Journal::create_ring(&ring)?;
    Journal::open(&ring, at)
}

/// Creates a symbolic link in the pool's directory to the directory of a `files` medium, so that
/// this directory is found even if pool.json is missing.
fn link_medium(dir: &Path, i: usize, medium: &Path) -> Result<(), PoolError> {
    let link = dir.join(format!("medium-{i}"));
    rustix::fs::symlink(medium, &link).map_err(|e| PoolError::io("can't make", &link, e))
}

/// Removes the directories on other file systems that a pool's directory links to.
fn remove_linked_media(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for link in entries.flatten().map(|e| e.path()) {
        let Ok(medium) = std::fs::read_link(&link) else {
            continue;
        };
        let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("forebay-");
        if medium.file_name().is_some_and(ours) && private::check(&medium, Above::Any).is_ok() {
            let _ = std::fs::remove_dir_all(&medium);
        }
    }
}

fn remove_everything(config: &PoolConfig, dir: &Path) {
    for (i, spec) in config.media.iter().enumerate() {
        if spec.kind != MediumKind::Memory {
            let _ = std::fs::remove_dir_all(config.medium_dir(dir, i));
        }
    }
    let _ = std::fs::remove_dir_all(dir);
}
