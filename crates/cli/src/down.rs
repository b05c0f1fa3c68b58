//! `forebay down`: removing a pool.

use crate::fail::{Fail, code};
use crate::output::say;
use forebay_client::{Pool, PoolError, PoolState};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Time that a process has between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// `1234 (bash), 1240 (sort)`.
pub fn named(pids: &[u32]) -> String {
    let name = |pid: &u32| match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{pid} ({})", name.trim()),
        Err(_) => pid.to_string(),
    };
    pids.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Processes that use the pool and aren't just ending.
pub fn users(pool: &Pool) -> Vec<u32> {
    let mut pids = pool.attached();
    pids.retain(|pid| {
        std::fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            let at = stat.iter().rposition(|&b| b == b')').map_or(0, |at| at + 2);
            !matches!(stat.get(at), Some(b'Z' | b'X'))
        })
    });
    pids
}

/// Waits until nobody uses the pool, at most `patience`. True if so.
pub fn wait_for_users(pool: &Pool, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while !users(pool).is_empty() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Ends all processes that use the pool: SIGTERM, two seconds, SIGKILL.
pub fn end_users(pool: &Pool) {
    for signal in [Signal::TERM, Signal::KILL] {
        for pid in users(pool) {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, signal);
            }
        }
        if wait_for_users(pool, GRACE) {
            return;
        }
    }
}

pub fn down(name: &str, force: bool) -> Result<u8, Fail> {
    match (Pool::state(name), force) {
        (PoolState::Absent, true) => {
            say(format!("there is no pool '{name}': nothing to remove"));
            return Ok(code::OK);
        }
        (PoolState::Absent, false) => return Err(PoolError::Absent(name.to_owned()).into()),
        // Whom it belongs to is looked at once more before anything is removed.
        (_, true) => {
            if let Ok(pool) = Pool::open(name) {
                end_users(&pool);
            }
        }
        (state, false) => {
            let pool = Pool::open(name)?;
            let pids = users(&pool);
            if !pids.is_empty() {
                return Err(Fail::failed(format!(
                    "the pool '{name}' is in use by {}; end them first, or remove it and end them with: forebay down --force --pool {name}",
                    named(&pids)
                )));
            } else if state == PoolState::Stale {
                say(format!("the keeper of pool '{name}' was dead already"));
            }
        }
    }
    Pool::destroy(name)?;
    Ok(code::OK)
}
