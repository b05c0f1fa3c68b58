//! Finds and opens pools on this host, and finds the processes that use them.

use crate::fail::Fail;
use crate::lifetime;
use crate::output::print_notice;
use crate::programs;
use forebay_client::{Pool, PoolError, PoolState, death, places};
use forebay_store::process::{Life, life};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns a pool's directory as an absolute path, for processes with other working directories.
pub fn absolute_dir(pool: &Pool) -> PathBuf {
    std::path::absolute(pool.dir()).unwrap_or_else(|_| pool.dir().to_owned())
}

/// Opens a pool, or one of its nodes; warns if its keeper or daemon is dead.
pub fn open(name: &str, node: Option<u32>) -> Result<Arc<Pool>, Fail> {
    let pool = Arc::new(Pool::open_node(name, node)?);
    if pool.keeper_pid().is_none() {
        print_notice(match pool.config().member.map(|m| m.node) {
            Some(node) => format!(
                "warning: the daemon of node {node} of pool '{name}' is dead{}; start it again with: forebay node restart {node} --pool {name}",
                why_dead(pool.dir())
            ),
            None => format!(
                "warning: the keeper of pool '{name}' is dead{}; start it again with: forebay up --reopen --pool {name}",
                why_dead(pool.dir())
            ),
        });
    }
    lifetime::warn(&pool);
    Ok(pool)
}

/// Opens a pool for a command that needs all of its nodes: by the node that [`open`] takes, or by
/// another one as [`reaching`] does.
///
/// # Errors
/// If the pool can't be opened; as for [`reaching`].
pub fn open_reaching(name: &str) -> Result<Arc<Pool>, Fail> {
    let pool = Arc::new(Pool::open(name)?);
    if pool.config().member.is_none() {
        drop(pool);
        return open(name, None);
    }
    lifetime::warn(&pool);
    reaching(pool)
}

/// Returns the pool, opened by a node from which the others can be reached: `pool` itself or, if
/// the daemon of its node is dead, another node on this host whose daemon runs. A message says so.
///
/// # Errors
/// If the daemons of all nodes on this host are dead. The message names that of `pool`.
pub fn reaching(pool: Arc<Pool>) -> Result<Arc<Pool>, Fail> {
    if !lost_its_daemon(&pool) {
        return Ok(pool);
    }
    let name = &pool.config().name;
    let own = pool.config().member.map_or(0, |m| m.node);
    let dead = format!(
        "the daemon of node {own} of pool '{name}' is dead{}",
        why_dead(pool.dir())
    );
    let restart = format!("start it again with: forebay node restart {own} --pool {name}");
    let living = places(name).into_iter().find_map(|place| {
        let node = place.node.filter(|_| place.state() == PoolState::Running)?;
        Some((node, Pool::open_dir(&place.dir).ok()?))
    });
    match living {
        Some((node, by)) => {
            print_notice(format!(
                "warning: {dead}, so node {node} does this in its place; {restart}"
            ));
            Ok(Arc::new(by))
        }
        None => Err(Fail::failed(format!(
            "{dead}, so this host can't reach the other nodes, and nothing was done; {restart}"
        ))),
    }
}

/// Whether the pool is a node of several whose daemon is dead. Such a node reaches no other one.
pub fn lost_its_daemon(pool: &Pool) -> bool {
    pool.config().member.is_some() && pool.keeper_pid().is_none()
}

/// Returns why the keeper of the pool or node in `dir` has died, in parentheses; empty if unknown.
pub fn why_dead(dir: &Path) -> String {
    death::of_keeper(dir).map_or(String::new(), |why| format!(" ({why})"))
}

/// How long a process may take to end after SIGTERM, before it gets SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Lists processes with their names: `1234 (bash), 1240 (sort)`.
pub fn named(pids: &[u32]) -> String {
    let name = |pid: &u32| match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{pid} ({})", name.trim()),
        Err(_) => pid.to_string(),
    };
    pids.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Whether the process exists and isn't a zombie. A process that can't be inspected counts as
/// running.
pub fn runs(pid: u32) -> bool {
    life(pid) != Life::Gone
}

/// Opens all nodes of a pool on this host that can be opened; leaves out the others.
pub fn open_all(name: &str) -> Vec<Arc<Pool>> {
    let places = places(name);
    let pools = places.iter().filter_map(|p| Pool::open_dir(&p.dir).ok());
    pools.map(Arc::new).collect()
}

/// Opens all nodes of a pool on this host.
///
/// # Errors
/// If a node can't be opened: the pool may be in use there.
pub fn open_each(name: &str) -> Result<Vec<Arc<Pool>>, PoolError> {
    let places = places(name);
    let pools = places.iter().map(|p| Pool::open_dir(&p.dir).map(Arc::new));
    pools.collect()
}

/// Returns the processes that use one of these nodes: those attached to it, and the programs that
/// `forebay exec` and `run` have started there.
pub fn users(pools: &[Arc<Pool>]) -> Vec<u32> {
    let of = |pool: &Arc<Pool>| [pool.attached(), programs::running(pool)].concat();
    let mut pids: Vec<u32> = pools.iter().flat_map(of).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Waits at most `timeout` until no process uses the pool. Returns whether none does.
pub fn wait_for_users(pools: &[Arc<Pool>], timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    while !users(pools).is_empty() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Ends all processes that use the pool: SIGTERM, then SIGKILL after [`GRACE`].
pub fn end_users(pools: &[Arc<Pool>]) {
    for signal in [Signal::TERM, Signal::KILL] {
        for pid in users(pools) {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, signal);
            }
        }
        if wait_for_users(pools, GRACE) {
            return;
        }
    }
}
