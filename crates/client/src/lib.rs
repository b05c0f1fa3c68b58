//! Pools on this node: creating, finding, opening, keeping and removing them.
//!
//! Every pool has a directory below [`home`] (in shared memory, mode 0700):
//!
//! ```text
//! HOME/NAME/pool.json     what it is made of ([`PoolConfig`])
//! HOME/NAME/control       control region of the node store
//! HOME/NAME/records/      records
//! HOME/NAME/map-0         map of medium 0
//! HOME/NAME/medium-0/     segment of a memory medium
//! HOME/NAME/journal       the latest part of the journal, if all media are `files`
//! HOME/NAME/keeper.pid    locked by the keeper while it runs
//! HOME/NAME/violations    what was done or refused against the controls of files, if anything was
//! DIR/forebay-UID-NAME-ID/  of a `files` medium: segment, a copy of pool.json, and, if no
//!                         medium is memory, in the first one checkpoint and journal, and of
//!                         a node of several copies of key, map and plan.json
//! ```
//! A pool of several nodes has a directory HOME/NAME/node-K for each node that is on this host
//! ([`places`]), with more in it: `map` (the pool's map), `key`, and `requests`, by which its
//! processes reach other nodes ([`requests`]).
//!
//! A process uses a pool by opening these files; there is no server. The keeper
//! ([`run_keeper`]) only reserves room ahead and cleans up behind dead processes.

mod config;
pub mod dead_end;
mod error;
mod files;
mod home;
mod host;
mod keeper;
mod keepers;
mod lifetime;
mod nodes;
pub mod private;
pub mod requests;
mod violations;

pub use config::{
    CreateOptions, DEFAULT_RESERVE, Member, PoolConfig, begin_lifetime, check_name, impossible,
};
pub use error::PoolError;
pub use files::mend_files;
pub use forebay_controls as controls;
pub use home::{check_home, home, node_dir};
pub use host::{Host, check as check_host};
pub use keeper::{Keeper, run_keeper};
pub use keepers::{end_keeper, keeper_of, keeper_pid};
pub use lifetime::{Lifetime, boot_clock};
pub use nodes::{Place, PoolState, choose, places, take_over, write_kept};
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

/// How full a medium of a pool is, in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediumUsage {
    pub spec: MediumSpec,
    pub capacity: u64,
    pub used: u64,
    pub reserved: u64,
    /// Room kept ready beyond what is used, at most.
    pub reserve: u64,
    /// What can still be written, as far as the host has that much.
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
    /// Makes a new, empty pool. Its keeper isn't started.
    ///
    /// # Errors
    /// If the name is taken or malformed, or a medium can't be made. Nothing is left then.
    pub fn create(o: &CreateOptions) -> Result<Pool, PoolError> {
        Pool::create_for(o, &Lifetime::default())
    }

    /// As [`Pool::create`]: a pool that lives so long.
    ///
    /// # Errors
    /// As there.
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

    /// Makes a node of a new pool of several nodes, with the pool's key; see
    /// [`PoolConfig::of_node`]. It can be used when it has its map.
    ///
    /// # Errors
    /// If the name is taken, or a medium can't be made. Nothing is left then.
    pub fn create_node(config: &PoolConfig, key: &[u8]) -> Result<(), PoolError> {
        let member = config.member.unwrap_or(Member { node: 0, nodes: 1 });
        make_home()?;
        nodes::check_room(config, member)?;
        let dir = node_dir(&config.name, member.node);
        let above = home().join(&config.name);
        let mut made = Err(PoolError::io("can't make", &above, Errno::NOENT));
        // A node of a pool of this name that was removed just now takes the directory with it.
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
                let failed = |e| PoolError::io("can't make the journal", at, e);
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
        .map_err(|e| PoolError::io("can't make the records", &records, e))?;
        // Last: a directory without it is a pool that was never finished.
        config.write(dir)
    }

    /// Opens the pool `name`, at the node that this process uses if it has several ([`choose`]).
    ///
    /// # Errors
    /// If there is none, it belongs to somebody else, or it is damaged.
    pub fn open(name: &str) -> Result<Pool, PoolError> {
        Pool::open_node(name, None)
    }

    /// Opens the pool `name` at the node that this process uses: see [`choose`].
    ///
    /// # Errors
    /// If there is none, it belongs to somebody else, or it is damaged.
    pub fn open_node(name: &str, wanted: Option<u32>) -> Result<Pool, PoolError> {
        let place = choose(name, wanted)?;
        let pool = Pool::open_dir(&place.dir)?;
        nodes::check_started(pool.config(), &place.dir)?;
        Ok(pool)
    }

    /// Opens the pool in `dir`: if it is one node of several, with a way to the others.
    ///
    /// # Errors
    /// As for [`Pool::open`].
    pub fn open_dir(dir: &Path) -> Result<Pool, PoolError> {
        Pool::open_with(dir, None)
    }

    /// Opens the node in `dir`, for who reaches other nodes by a way of its own: its daemon.
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
            // Nothing is wrong with the pool.
            e if error::cant_look(e) => PoolError::io(&format!("can't open {what}"), dir, e),
            e => PoolError::Damaged {
                name: config.name.clone(),
                why: format!("{what}: {}", error::words(e)),
            },
        };
        let media = config.open_media(dir)?;
        let journal = match config.journal_dir(dir) {
            Some(at) => Some(
                Journal::open(&dir.join("journal"), &at).map_err(|e| damaged("the journal", e))?,
            ),
            None => None,
        };
        let records = config.records_dir(dir);
        for shard in 0..config.shards {
            // LMDB would make an empty one in place of one that is gone.
            if is_absent(&records.join(format!("{shard:02}")))? {
                return Err(damaged("the records", Errno::NOENT));
            }
        }
        let control = dir.join("control");
        let store = Store::open(&control, &records, config.record_bytes, media, journal)
            .map_err(|e| damaged("the control region", e))?;
        match forebay_store::process::sees_others(store.control()) {
            Some(true) => {}
            Some(false) => return Err(PoolError::Elsewhere(config.name)),
            None => return Err(PoolError::Blind),
        }
        store.set_journal_bound(config.journal_bound());
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

    /// The same, as one node of a pool of several.
    pub fn among(self, others: std::sync::Arc<dyn forebay_cluster::peers::Peers>) -> Pool {
        let nodes = Nodes::new(others);
        Pool {
            store: self.store.among(nodes.clone()),
            nodes: Some(nodes),
            ..self
        }
    }

    /// All pools of this user, by name.
    ///
    /// # Errors
    /// If the home can't be read, or others own or can change it. One that isn't there has no
    /// pools.
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

    /// The state of the pool `name`: that of its nodes on this host, the worst if they differ.
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

    /// What it is made of.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// This node's store: what concerns this node and its processes alone.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// In a forked child, before anything else: nothing of the parent's may be used.
    pub fn after_fork_in_child(&self) {
        self.store.after_fork_in_child();
        if let Some(nodes) = &self.nodes {
            nodes.after_fork_in_child();
        }
    }

    /// The pool as one store, on whatever nodes its objects lie.
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster::new(&self.store, self.nodes.as_deref())
    }

    /// How full its media are.
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

    /// The bytes that the whole pool has, on all nodes, and those of them that are used; as they
    /// were a moment ago, elsewhere. What the hosts haven't isn't counted.
    pub fn capacity(&self) -> (u64, u64) {
        self.cluster().capacity_of_all().unwrap_or_else(|| {
            self.usage().iter().fold((0, 0), |(size, used), u| {
                (size + u.used + u.available, used + u.used)
            })
        })
    }

    /// Processes that use it, this one and the keeper left out.
    pub fn attached(&self) -> Vec<u32> {
        let not = [Some(std::process::id()), self.keeper_pid()];
        let mut pids = self.store.attached();
        pids.retain(|p| !not.contains(&Some(*p)));
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The keeper's process id, if it runs.
    pub fn keeper_pid(&self) -> Option<u32> {
        keeper_pid(&self.dir)
    }

    /// Releases what dead processes held, completes what they began, removes what only
    /// they knew. A sentence about it.
    ///
    /// # Errors
    /// If the records can't be read or written.
    pub fn settle(&self) -> Result<String, PoolError> {
        let r = self
            .store
            .settle()
            .map_err(|e| PoolError::io("can't settle the records", &self.dir, e))?;
        Ok(format!(
            "released {} dead process(es) with {} open file(s)",
            r.processes, r.descriptors
        ))
    }

    /// Ends the keepers and removes all of the pool `name` on this host, whatever state it is in.
    ///
    /// # Errors
    /// If it doesn't exist, isn't ours, or can't be removed.
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
            // All at once: each may take a moment to end.
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

/// What can still be written to a medium: no more than it has been promised, and than there is.
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

/// Ends the keepers of pool `name` on this host and removes what it has in shared memory. Its media
/// stay as they are, with all that was written to stable storage.
pub fn forget(name: &str) {
    let places = places(name);
    // A keeper that can't be ended notices that its pool is gone.
    places.iter().for_each(|p| _ = end_keeper(&p.dir));
    let _ = std::fs::remove_dir_all(home().join(name));
}

/// How long a pool is removed again and again while others put something into it: a start that was
/// cut short, whose processes are about to find that out.
const REMOVAL: Duration = Duration::from_secs(5);

/// Removes all of the node that this describes, finished or not. Its keeper must have ended.
pub fn remove_node(config: &PoolConfig) {
    let Some(member) = config.member else {
        return;
    };
    let dir = node_dir(&config.name, member.node);
    // It may have come to nothing because another pool is there.
    if !dir.join("pool.json").exists()
        || PoolConfig::read(&dir).is_ok_and(|c| c.uuid == config.uuid)
    {
        remove_everything(config, &dir);
        let _ = std::fs::remove_dir(home().join(&config.name));
    }
}

/// Writes a new file that only its owner may read.
fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::io::write(&file, bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Makes a pool usable again whose media are all `files`, after shared memory was lost
/// (a reboot, or a loss of power): `medium` is the pool's directory in the first of them. Of a pool
/// of several nodes, that makes one node; see [`PoolConfig::member`]. Also what was found there.
///
/// # Errors
/// If it isn't one, has media in memory, or a pool of its name exists.
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
        store.set_journal_bound(config.journal_bound());
        let loaded = store.reload().map_err(|e| match e {
            Errno::BADMSG | Errno::NOENT => PoolError::NoCheckpoint(at),
            e => PoolError::io("can't load the records", &at, e),
        })?;
        if config.member.is_some() {
            for name in nodes::KEPT {
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
        // Only what was made here: the medium stays as it was.
        let _ = std::fs::remove_dir_all(&dir);
    }
    made
}

/// The ring of a journal in the pool's directory, and the journal whose files are in `at`.
fn make_journal(dir: &Path, at: &Path) -> Result<Journal, Errno> {
    let ring = dir.join("journal");
    Journal::create_ring(&ring)?;
    Journal::open(&ring, at)
}

/// Links a pool's directory to that of a `files` medium, so that it is found even if
/// pool.json should be lost.
fn link_medium(dir: &Path, i: usize, medium: &Path) -> Result<(), PoolError> {
    let link = dir.join(format!("medium-{i}"));
    rustix::fs::symlink(medium, &link).map_err(|e| PoolError::io("can't make", &link, e))
}

/// Removes the directories in other file systems that a pool's directory links to.
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
