//! `forebay node`: kills, stops and restarts the daemons of a pool's nodes, for tests and drills.

use crate::args::Drill;
use crate::fail::{Fail, code};
use crate::found::runs;
use crate::keeper;
use crate::peers::Peers;
use forebay_client::{Place, Pool, PoolError, PoolState, places};
use forebay_runtime::process::is_stopped;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// How long a process may take to show the effect of a signal.
const FOLLOWING: Duration = Duration::from_secs(5);

pub fn drill(name: &str, what: Drill) -> Result<u8, Fail> {
    let (node, word) = match what {
        Drill::Kill { node } => (node, "kill"),
        Drill::Restart { node } => (node, "restart"),
        Drill::Pause { node } => (node, "pause"),
        Drill::Resume { node } => (node, "resume"),
    };
    let places = places(name);
    if places.is_empty() {
        return Err(PoolError::Absent(name.to_owned()).into());
    }
    let Some(place) = places.iter().find(|p| p.node.unwrap_or(0) == node) else {
        if let Some(others) = Peers::of(name) {
            others.at(node, &["node", word, &node.to_string(), "--pool", name])?;
            return Ok(code::OK);
        }
        // The node isn't on this host: the error of `choose` lists the nodes that are.
        forebay_client::choose(name, Some(node))?;
        return Ok(code::FAILED);
    };
    match what {
        Drill::Kill { .. } => {
            let pid = signal(name, place, Signal::KILL)?;
            follows(|| keeper_of(place) != Some(pid));
        }
        Drill::Pause { .. } => {
            let pid = signal(name, place, Signal::STOP)?;
            follows(|| is_stopped(pid) || !runs(pid));
        }
        Drill::Resume { .. } => {
            let pid = signal(name, place, Signal::CONT)?;
            follows(|| !is_stopped(pid));
        }
        Drill::Restart { .. } => {
            if place.state() == PoolState::Running {
                forebay_client::end_keeper(&place.dir)?;
            }
            restart(place)?;
        }
    }
    Ok(code::OK)
}

/// Starts a node's daemon over its existing data.
pub fn restart(place: &Place) -> Result<(), Fail> {
    // Opening the pool reports an error, if there is one.
    drop(Pool::open_dir(&place.dir)?);
    let dir = std::path::absolute(&place.dir).unwrap_or_else(|_| place.dir.clone());
    keeper::start(&dir)
}

/// Waits until a signal has had its effect, which may take a moment on a busy machine.
fn follows(done: impl Fn() -> bool) {
    let until = Instant::now() + FOLLOWING;
    while !done() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn keeper_of(place: &Place) -> Option<u32> {
    forebay_client::keeper_pid(&place.dir)
}

fn signal(name: &str, place: &Place, signal: Signal) -> Result<u32, Fail> {
    let node = place.node.unwrap_or(0);
    let pid = keeper_of(place);
    let raw = pid.and_then(|p| Pid::from_raw(p as i32));
    let (Some(pid), Some(raw)) = (pid, raw) else {
        return Err(Fail::failed(format!(
            "the daemon of node {node} of the pool '{name}' doesn't run; start it with: forebay node restart {node} --pool {name}"
        )));
    };
    kill_process(raw, signal).map_err(|e| {
        Fail::failed(format!(
            "can't signal the daemon of node {node}, process {pid}: {e}"
        ))
    })?;
    Ok(pid)
}
