//! `forebay status` of a pool of several nodes.

use crate::down::{named, users};
use crate::fail::{Fail, code};
use crate::output::{json, seconds, write};
use crate::status::{medium, percent, state_words, table};
use forebay_client::{Place, Pool, PoolConfig, PoolError, PoolState, home, places};
use forebay_media::format_size;
use forebay_placement::{Node, PoolMap};
use serde_json::{Value, json as value};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What is known of one node.
struct Known {
    node: Node,
    /// In one word.
    state: String,
    since: u64,
    /// If it is on this host.
    here: Option<Here>,
}

/// What can be seen of a node on this host.
struct Here {
    place: Place,
    keeper: Option<u32>,
    pool: Option<Arc<Pool>>,
}

impl Here {
    fn look(place: &Place) -> Here {
        Here {
            place: place.clone(),
            keeper: forebay_client::keeper_pid(&place.dir),
            pool: Pool::open_dir(&place.dir).ok().map(Arc::new),
        }
    }

    /// The state of its daemon and, if it doesn't run, since when.
    fn state(&self) -> (&'static str, Option<u64>) {
        let Some(pid) = self.keeper else {
            return ("dead", None);
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        match stat
            .rsplit(')')
            .next()
            .and_then(|s| s.trim().chars().next())
        {
            Some('T') => ("paused", None),
            _ => ("up", None),
        }
    }
}

/// The map of the pool: the newest that nodes here have.
fn map(places: &[Place]) -> Option<PoolMap> {
    let maps = places.iter().filter_map(|p| {
        let bytes = std::fs::read(p.dir.join("map")).ok()?;
        PoolMap::decode(&bytes).ok()
    });
    maps.max_by_key(PoolMap::epoch)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

fn known(map: &PoolMap, places: &[Place]) -> Vec<Known> {
    let one = |node: &Node| {
        let place = places.iter().find(|p| p.node == Some(node.number.0));
        let here = place.map(Here::look);
        let (state, since) = match here.as_ref().map(Here::state) {
            Some((state, since)) => (state.to_owned(), since),
            None => (node.state.to_string(), None),
        };
        Known {
            since: since.unwrap_or(node.since),
            node: node.clone(),
            state,
            here,
        }
    };
    map.nodes().iter().map(one).collect()
}

fn as_json(k: &Known) -> Value {
    let addresses: Vec<String> = k
        .node
        .addresses
        .iter()
        .map(|a| SocketAddr::from(*a).to_string())
        .collect();
    let capacity: u64 = k.node.media.iter().map(|m| m.capacity).sum();
    let mut told = value!({
        "node": k.node.number.0, "name": k.node.name, "state": k.state, "since": k.since,
        "addresses": addresses, "capacity": capacity, "here": k.here.is_some(),
    });
    if let Some(here) = &k.here {
        told["dir"] = value!(here.place.dir);
        told["keeper"] = value!(here.keeper);
        if let Some(pool) = &here.pool {
            told["media"] = pool.usage().iter().map(medium).collect();
            told["record_bytes"] = value!(pool.store().record_bytes().ok());
            told["processes"] = value!(users(std::slice::from_ref(pool)));
            told["stuck"] = stuck(pool)
                .iter()
                .map(|s| value!({ "process": s.0, "waits_for": s.1 }))
                .collect();
        }
    }
    told
}

fn stuck(pool: &Pool) -> Vec<(u32, u32)> {
    pool.store().stuck()
}

fn row(k: &Known) -> Vec<String> {
    let capacity: u64 = k.node.media.iter().map(|m| m.capacity).sum();
    let pool = k.here.as_ref().and_then(|h| h.pool.as_ref());
    let used = pool.map(|p| p.usage().iter().map(|u| u.used).sum::<u64>());
    let pids = pool.map(|p| users(std::slice::from_ref(p)));
    let address = k.node.addresses.first();
    let pid = k.here.as_ref().and_then(|h| h.keeper);
    vec![
        k.node.number.to_string(),
        k.node.name.clone(),
        k.state.clone(),
        seconds(now().saturating_sub(k.since) as f64),
        address.map_or("-".into(), |a| SocketAddr::from(*a).to_string()),
        pid.map_or("-".into(), |p| p.to_string()),
        format_size(capacity),
        used.map_or("-".into(), format_size),
        used.map_or("-".into(), |u| percent(u, capacity)),
        pids.map_or("-".into(), |p| p.len().to_string()),
    ]
}

pub fn status(name: &str, as_json_text: bool) -> Result<u8, Fail> {
    let places = places(name);
    let Some(map) = map(&places) else {
        // Opening it says what is wrong.
        Pool::open(name)?;
        return Err(PoolError::Absent(name.to_owned()).into());
    };
    let nodes = known(&map, &places);
    let config = places.iter().find_map(|p| PoolConfig::read(&p.dir).ok());
    let Some(config) = config else {
        Pool::open(name)?;
        return Err(PoolError::Absent(name.to_owned()).into());
    };
    let state = match Pool::state(name) {
        PoolState::Running if nodes.iter().any(|k| k.state != "up") => PoolState::Stale,
        state => state,
    };
    let up = nodes.iter().filter(|k| k.state == "up").count();
    let uptime = (now() as i64 - config.created).max(0);
    let dir = std::path::absolute(home().join(name)).unwrap_or_else(|_| home().join(name));
    if as_json_text {
        json(&value!({
            "name": name, "state": state_words(&state), "mount": config.mount, "dir": dir,
            "uuid": config.uuid, "created": config.created, "uptime": uptime,
            "epoch": map.epoch(), "nodes": nodes.iter().map(as_json).collect::<Vec<_>>(),
        }))?;
        return Ok(code::OK);
    }
    let mut text = format!(
        "pool       {name}, {}\nup for     {}\nmounted on {}\ndirectory  {}\nnodes      {}, {up} up\n\n",
        state_words(&state),
        seconds(uptime as f64),
        config.mount,
        dir.display(),
        nodes.len(),
    );
    let titles = [
        "Node",
        "Name",
        "State",
        "For",
        "Address",
        "Daemon",
        "Size",
        "Used",
        "Use%",
        "Processes",
    ];
    let mut rows = vec![titles.map(String::from).to_vec()];
    rows.extend(nodes.iter().map(row));
    text += &table(&rows, &[1, 2, 4]);
    for k in &nodes {
        let number = k.node.number;
        if let Some(here) = &k.here {
            if here.keeper.is_none() {
                let _ = writeln!(
                    text,
                    "node {number}: its daemon is dead; start it again with: forebay node restart {number} --pool {name}"
                );
            }
            for (waiter, holder) in here.pool.iter().flat_map(|p| stuck(p)) {
                let _ = writeln!(
                    text,
                    "node {number}: process {} waits for process {}, which is stopped; kill -CONT {holder} lets it go on",
                    named(&[waiter]),
                    named(&[holder])
                );
            }
        }
    }
    write(text.as_bytes())?;
    Ok(code::OK)
}
