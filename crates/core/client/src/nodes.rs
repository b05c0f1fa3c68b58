//! The nodes of a pool on this host: their directories, and which of them a process uses.
//!
//! A pool of one node is in HOME/NAME itself. In a pool of several nodes, each node on this host
//! has a directory HOME/NAME/node-K, with all files that a pool of one node has, and
//!
//! ```text
//! key    the pool's key, by which nodes authenticate each other (mode 0600)
//! map    the pool map as this node knows it; exists once the pool has started
//! ```
//!
//! If the node's media are all `files`, there are copies of `key`, `map` and `plan.json` beside its
//! first medium, so that the pool can be reopened after shared memory was lost ([`crate::reopen`]).

use crate::error::cant_look;
use crate::home::{PREFIX, home, is_absent, sync_path};
use crate::keeper_process::keeper_of;
use crate::{Member, PoolConfig, PoolError, config};
use forebay_store::Store;
use rustix::io::Errno;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Environment variables with a process's rank: first ranks among the processes of this host, then
/// ranks among all processes. The first one that is set is used.
const RANKS: [&str; 7] = [
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
    "PMIX_RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
];

/// A pool's state, as far as it can be found out without opening the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolState {
    /// The keeper runs.
    Running,
    /// The keeper is dead; the data is still there.
    Stale,
    /// There is no such pool.
    Absent,
    /// Parts of the pool exist, but it can't be used; the text says why.
    Damaged(String),
    /// The pool couldn't be read, so its state is unknown; the text explains why.
    Unknown(String),
}

/// Location of one node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node's number; None in a pool of one node.
    pub node: Option<u32>,
    pub dir: PathBuf,
}

impl Place {
    /// The state of this node alone.
    pub fn state(&self) -> PoolState {
        match is_absent(&self.dir) {
            Ok(true) => return PoolState::Absent,
            Ok(false) => {}
            Err(e) => return PoolState::Unknown(e.why()),
        }
        let why = |e: PoolError| match self.node {
            Some(node) => format!("node {node}: {}", e.why()),
            None => e.why(),
        };
        match PoolConfig::read(&self.dir).and_then(|c| check_started(&c, &self.dir)) {
            Err(e) if e.is_unknown() => return PoolState::Unknown(why(e)),
            Err(PoolError::Damaged { why, .. }) if self.node.is_none() => {
                // The directory may be that of a pool of several nodes, none of which was found.
                return match std::fs::read_dir(&self.dir).map_err(|e| Errno::from_io_error(&e)) {
                    Err(Some(e)) if cant_look(e) => {
                        PoolState::Unknown(PoolError::io("can't list", &self.dir, e).why())
                    }
                    _ => PoolState::Damaged(why),
                };
            }
            Err(e) => return PoolState::Damaged(why(e)),
            Ok(()) => {}
        }
        match keeper_of(&self.dir) {
            Ok(Some(_)) => PoolState::Running,
            Ok(None) => PoolState::Stale,
            Err(e) => PoolState::Unknown(why(e)),
        }
    }
}

/// The nodes of pool `name` on this host, sorted by number; empty if there is no such pool.
pub fn places(name: &str) -> Vec<Place> {
    let dir = home().join(name);
    let mut nodes: Vec<Place> = std::fs::read_dir(&dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| {
            let node = e.file_name().to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
            Some(Place {
                node: Some(node),
                dir: e.path(),
            })
        })
        .collect();
    nodes.sort_by_key(|p| p.node);
    if nodes.is_empty() && dir.exists() {
        nodes.push(Place { node: None, dir });
    }
    nodes
}

/// The files that [`write_kept`] writes to a node's directory.
pub(crate) const NODE_FILES: [&str; 3] = ["key", "plan.json", "map"];

/// Writes the file `name` of the node in `dir`, with mode 0600. If the node can be reopened after a
/// loss of shared memory, also writes and syncs a copy beside its first medium.
///
/// # Errors
/// If the file or its copy can't be written.
pub fn write_kept(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    write_whole(dir, name, bytes)?;
    let medium = PoolConfig::read(dir).ok().and_then(|c| c.journal_dir(dir));
    match medium {
        Some(medium) => keep(&medium, name, bytes),
        None => Ok(()),
    }
}

/// Writes a file beside a medium and syncs it.
pub(crate) fn keep(medium: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    write_whole(medium, name, bytes)?;
    sync_path(&medium.join(name))?;
    Ok(sync_path(medium)?)
}

/// Replaces a file atomically: a reader finds the old content or the new, never a mixture.
pub(crate) fn write_whole(dir: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let part = dir.join(format!("{name}.part"));
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&part)?;
    file.write_all(bytes)?;
    rustix::fs::fsync(&file)?;
    std::fs::rename(&part, dir.join(name))
}

/// Chooses the node of pool `name` that this process uses. The first of these that applies: node
/// `wanted`; the node in FOREBAY_NODE; for processes of an MPI launcher or srun, a node on this
/// host by rank; the node with the lowest number.
///
/// # Errors
/// [`PoolError::Absent`] if there is no such pool on this host; [`PoolError::Invalid`] if the node
/// isn't on this host, or FOREBAY_NODE is no number; [`PoolError::Io`] if this process may not look.
pub fn choose(name: &str, wanted: Option<u32>) -> Result<Place, PoolError> {
    config::check_name(name)?;
    let mut places = places(name);
    let variable = |v: &str| std::env::var(v).ok().filter(|t| !t.is_empty());
    let wanted = match (wanted, variable("FOREBAY_NODE")) {
        (Some(node), _) => Some(node),
        (None, Some(text)) if places.first().is_some_and(|p| p.node.is_some()) => {
            Some(text.parse().map_err(|_| {
                PoolError::Invalid(format!(
                    "FOREBAY_NODE is '{text}', which is no number of a node"
                ))
            })?)
        }
        (None, _) => None,
    };
    if places.is_empty() {
        // Another user's directory of pools can't be looked at: then the pool may exist.
        is_absent(&home().join(name))?;
        return Err(PoolError::Absent(name.to_owned()));
    }
    let rank = || {
        RANKS
            .iter()
            .find_map(|v| variable(v)?.parse::<usize>().ok())
    };
    let at = match wanted {
        Some(node) => {
            let is_it = |p: &Place| p.node.unwrap_or(0) == node;
            places.iter().position(is_it).ok_or_else(|| {
                let here: Vec<String> = places
                    .iter()
                    .map(|p| p.node.unwrap_or(0).to_string())
                    .collect();
                PoolError::Invalid(format!(
                    "node {node} of the pool '{name}' isn't on this host; here: {}",
                    here.join(", ")
                ))
            })?
        }
        None => rank().unwrap_or(0) % places.len(),
    };
    Ok(places.swap_remove(at))
}

/// Moves into this process's PID and user namespaces those stores of pool `name` whose keepers are
/// dead. A failure isn't returned: opening the pool will fail, too.
pub fn take_over(name: &str) {
    let places = places(name).into_iter();
    for place in places.filter(|p| p.state() == PoolState::Stale) {
        let _ = Store::take_over(&place.dir.join("control"));
    }
}

/// Checks that the start of a node's pool was completed: otherwise the node can't be used alone.
pub(crate) fn check_started(config: &PoolConfig, dir: &Path) -> Result<(), PoolError> {
    if config.member.is_none() || !is_absent(&dir.join("map"))? {
        return Ok(());
    }
    Err(PoolError::Damaged {
        name: config.name.clone(),
        why: "its start was never completed".into(),
    })
}

/// Checks that no pool has this name.
pub(crate) fn check_absent(name: &str, state: PoolState) -> Result<(), PoolError> {
    match state {
        PoolState::Absent => Ok(()),
        PoolState::Running => Err(PoolError::Exists(name.to_owned())),
        PoolState::Stale => Err(PoolError::ExistsStale(name.to_owned())),
        PoolState::Damaged(why) => Err(PoolError::Damaged {
            name: name.to_owned(),
            why,
        }),
        PoolState::Unknown(why) => Err(PoolError::unknown(name, &why)),
    }
}

/// Checks that the directory of a new node isn't used by another pool.
pub(crate) fn check_room(config: &PoolConfig, member: Member) -> Result<(), PoolError> {
    let empty = |dir: &Path| std::fs::read_dir(dir).is_ok_and(|mut d| d.next().is_none());
    for place in places(&config.name) {
        // Another node may exist on this host if it belongs to the same pool, or if it is just
        // being created or removed.
        let passes = match place.node {
            Some(node) if node == member.node => false,
            Some(_) => {
                !place.dir.join("pool.json").exists()
                    || PoolConfig::read(&place.dir).is_ok_and(|c| c.uuid == config.uuid)
            }
            None => empty(&place.dir),
        };
        if passes {
            continue;
        }
        let now = places(&config.name);
        if place.node.is_none() && now.iter().all(|p| p.node.is_some()) {
            // A sibling node appeared between the two checks.
            return check_room(config, member);
        }
        check_absent(&config.name, place.state())?;
    }
    Ok(())
}
