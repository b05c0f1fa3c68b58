//! `forebay down`: removes a pool.

use crate::args::Down;
use crate::fail::{Fail, code};
use crate::found::{end_users, named, open_all, open_each, users};
use crate::output::{age, note, print_notice};
use crate::peers::Peers;
use crate::{lifetime, mount, origin, stats};
use forebay_client::{Pool, PoolError, PoolState, boot_clock, places};
use forebay_pool::launch::Plan;
use std::sync::Arc;

pub fn down(name: &str, a: &Down) -> Result<u8, Fail> {
    let state = Pool::state(name);
    if state == PoolState::Absent {
        if !a.force {
            return Err(PoolError::Absent(name.to_owned()).into());
        }
        if !a.here {
            note(format!("there is no pool '{name}': nothing to remove"));
        }
        return Ok(code::OK);
    }
    let peers = match (a.here, a.force) {
        (true, _) => None,
        (false, true) => Peers::of(name),
        (false, false) => Peers::look(name)?,
    };
    if a.force {
        // `open_all` checks the pool's owner again before anything is removed.
        let pools = open_all(name);
        mount::end_all(&pools, true)?;
        end_users(&pools);
    } else {
        // Reports the error if the pool can't be opened.
        Pool::open(name)?;
        let pools = open_each(name)?;
        if !a.check {
            mount::end_all(&pools, false)?;
        }
        let mut pids = users(&pools);
        pids.retain(|&pid| Some(pid) != a.besides);
        if let Some(limit) = a.unused {
            unused_for(name, &pools, limit)?;
        }
        if !pids.is_empty() {
            return Err(Fail::failed(format!(
                "the pool '{name}' is in use by {}; end them first, or remove it and end them with: forebay down --force --pool {name}",
                named(&pids)
            )));
        }
        if let Some(others) = &peers {
            let limit = a.unused.map(|limit| limit.to_string());
            let mut check = vec!["down", "--here", "--check", "--pool", name];
            check.extend(limit.iter().flat_map(|limit| ["--unused", limit]));
            let free = others.each(&check);
            free.map_err(|e| {
                Fail::new(
                    e.code,
                    format!("{}; nothing was removed: see to that, or remove what can be reached with: forebay down --force --pool {name}", e.message),
                )
            })?;
        }
        if a.check {
            return Ok(code::OK);
        }
        origin::write_back_all(name).map_err(|e| {
            Fail::new(
                e.code,
                format!(
                    "{}\nnothing was removed; to lose these changes: forebay down --force --pool {name}",
                    e.message
                ),
            )
        })?;
        if !a.quiet && !a.here && a.besides.is_none() {
            tell_what_was_done(name);
        }
        if state == PoolState::Stale {
            let places = places(name);
            let dead = places.iter().filter(|p| p.state() != PoolState::Running);
            let dead: Vec<String> = dead.filter_map(|p| p.node).map(|n| n.to_string()).collect();
            note(match dead.len() {
                // None of the directories belongs to a node: a pool of one node.
                0 => format!("the keeper of pool '{name}' was dead already"),
                1 => format!("node {} was dead already", dead[0]),
                _ => format!("nodes {} were dead already", dead.join(", ")),
            });
        }
    }
    remove(name, peers.as_ref())?;
    Ok(code::OK)
}

/// Prints the summary of a pool that is about to be removed.
fn tell_what_was_done(name: &str) {
    match stats::of_all(name, false) {
        Ok(counted) => stats::summary(&stats::sum(&counted), None)
            .iter()
            .for_each(print_notice),
        Err(e) => print_notice(e.message),
    }
}

/// Fails if a node of this host was used in the last `limit` seconds, as far as its keeper knows,
/// or if its keeper hasn't checked yet.
fn unused_for(name: &str, pools: &[Arc<Pool>], limit: u64) -> Result<(), Fail> {
    let was_used = |pool: &&Arc<Pool>| {
        let used = lifetime::last_used(pool);
        used == 0 || boot_clock().saturating_sub(used) < limit
    };
    match pools.iter().find(was_used) {
        None => Ok(()),
        Some(_) => Err(Fail::failed(format!(
            "the pool '{name}' was used in the last {}",
            age(limit)
        ))),
    }
}

/// Removes the pool here and on other hosts, even if it is in use.
fn remove(name: &str, peers: Option<&Peers>) -> Result<(), Fail> {
    let others = peers.map_or(Ok(()), |o| {
        o.each(&["down", "--here", "--force", "--pool", name])
    });
    match Pool::destroy(name) {
        // Another `down`, or an interrupted start that cleans up, has removed it meanwhile.
        Err(PoolError::Absent(_)) => others,
        removed => removed.map_err(Fail::from).and(others),
    }
}

/// Ends all processes that use the pool, and removes it everywhere.
pub fn end_and_remove(pools: Vec<Arc<Pool>>, name: &str) {
    end_users(&pools);
    drop(pools);
    if let Err(e) = remove(name, Peers::of(name).as_ref()) {
        print_notice(format!(
            "warning: the pool could not be removed: {}",
            e.message
        ));
    }
}

/// Removes what a failed start has left of the pool, here and on other hosts.
pub fn remove_plan(plan: &Plan) {
    let left = places(&plan.name);
    let ours = |dir: &std::path::Path| Plan::read(dir).is_ok_and(|p| p.uuid == plan.uuid);
    if left.iter().any(|p| ours(&p.dir)) {
        let _ = remove(&plan.name, Peers::of(&plan.name).as_ref());
    }
}
