//! `forebay pools --clean`: removes stale pools.
//!
//! A pool is stale if all its keepers on this host are dead and no process uses it, or if its time
//! limit has passed ([`crate::lifetime`]). All other pools stay, each with a reason: pools in use,
//! pools that can be opened again (unless `--all`), pools of other hosts, and pools that can't be
//! inspected.

use crate::args::{Down, Pools};
use crate::down::down;
use crate::fail::{Fail, code};
use crate::found::{named, open_each, users};
use crate::lifetime;
use crate::output::{json, note, print_notice};
use forebay_client::{Pool, PoolState, home, places};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::time::{Duration, Instant};

/// How long to wait for another process that cleans.
const CLEAN_LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The result for one pool.
struct Outcome {
    name: String,
    removed: bool,
    why: String,
    /// Whether a person has to decide: the pool should have been removed but wasn't, or can't be
    /// used.
    unclear: bool,
}

pub fn clean(a: &Pools) -> Result<u8, Fail> {
    let _alone = alone();
    // `list` returns only this user's pools, so those of others are never touched.
    let all: Vec<Outcome> = Pool::list()?
        .into_iter()
        .map(|listed| outcome(listed.name, a))
        .collect();
    if a.json {
        let list = all.iter().map(|o| {
            serde_json::json!({ "name": o.name, "removed": o.removed, "why": o.why, "unclear": o.unclear })
        });
        json(&list.collect::<Vec<_>>())?;
    } else {
        for o in &all {
            let what = if o.removed { "removed" } else { "stays" };
            print_notice(format!("pool '{}' {what}: {}", o.name, o.why));
        }
        if all.is_empty() {
            note("you have no pools on this node");
        }
    }
    Ok(if all.iter().any(|o| o.unclear) {
        code::FAILED
    } else {
        code::OK
    })
}

/// Takes the lock that excludes other processes that clean: to them, a half-removed pool would look
/// damaged. Returns None if there are no pools, or if another process takes longer than
/// [`CLEAN_LOCK_TIMEOUT`].
fn alone() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(home(), flags, Mode::empty()).ok()?;
    let until = Instant::now() + CLEAN_LOCK_TIMEOUT;
    while flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(fd)
}

fn outcome(name: String, a: &Pools) -> Outcome {
    let (removed, why, unclear) = match stale(&name, a.all) {
        Err((why, unclear)) => (false, why, unclear),
        // The pool's time limit has passed and no keeper of it runs here, or its job has ended. If
        // the pool can't be removed everywhere, this host's share is removed alone; other hosts
        // remove theirs.
        Ok((why, is_over)) if is_over || a.here => {
            match remove(&name, false).or_else(|_| remove(&name, true)) {
                Ok(()) => (true, why, false),
                Err(e) => (false, format!("{why}, but {}", e.message), true),
            }
        }
        Ok((why, _)) => match remove(&name, false) {
            Ok(()) => (true, why, false),
            Err(e) => (false, format!("{why}, but {}", e.message), true),
        },
    };
    Outcome {
        name,
        removed,
        why,
        unclear,
    }
}

/// Decides whether a pool is stale. `Ok`: the reason to remove it, and whether this host's share
/// can be removed alone. `Err`: the reason to keep it, and whether a person has to decide.
fn stale(name: &str, also_reopenable: bool) -> Result<(String, bool), (String, bool)> {
    let places = places(name);
    let mut running = None;
    for place in &places {
        match place.state() {
            PoolState::Running => running = Some(place.node),
            PoolState::Stale => {}
            PoolState::Absent => return Err(("it is being removed".into(), false)),
            PoolState::Damaged(why) => {
                let what = format!("{why}; remove it with: forebay down --force --pool {name}");
                return Err((what, true));
            }
            PoolState::Unknown(why) => return Err((format!("it can't be looked at: {why}"), true)),
        }
    }
    let pools = open_each(name).map_err(|e| (format!("it can't be looked at: {e}"), true))?;
    let Some(first) = pools.first() else {
        return Err(("it is being removed".into(), false));
    };
    let users = users(&pools);
    if !users.is_empty() {
        return Err((format!("in use by {}", named(&users)), false));
    }
    let over = pools.iter().any(|p| p.config().lifetime.left() == Some(0));
    if over {
        let why = format!("its time is over ({})", first.config().lifetime.why);
        return Ok((why, running.is_none()));
    }
    if running.is_some() {
        return Err(("its keeper runs".into(), false));
    }
    if first.config().origin.is_some() {
        let what = format!(
            "its keeper is dead, and its origin may not have all changes: go on with it by \
             forebay up --reopen --pool {name}, or remove it by forebay down --force --pool {name}"
        );
        return Err((what, false));
    }
    if lifetime::is_reopenable(&first.config().media) && !also_reopenable {
        let what = format!(
            "its keeper is dead, but all its media are files: go on with it by forebay up --reopen --pool {name}, or remove it by forebay pools --clean --all"
        );
        return Err((what, false));
    }
    Ok(("its keeper is dead and nobody uses it".into(), false))
}

/// Removes a pool as `forebay down` does. Fails if a process uses it, on any host; with `here`,
/// only this host's share is removed and other hosts aren't asked.
fn remove(name: &str, here: bool) -> Result<(), Fail> {
    let options = Down {
        quiet: false,
        force: false,
        here,
        check: false,
        unused: None,
        besides: None,
    };
    down(name, &options).map(|_| ())
}
