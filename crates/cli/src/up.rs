//! `forebay up`: a new pool, or an old one again.

use crate::args::{Media, Up};
use crate::fail::{Fail, code};
use crate::output::{json, say, seconds, write};
use crate::{capacity, keeper, lifetime, mpi, node, nodes, prefix, rules};
use forebay_client::{CreateOptions, Place, Pool, PoolError, PoolState, places, take_over};
use forebay_media::{MediumSpec, format_size};
use forebay_pool::launch::How;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A pool's directory, absolute: other processes have other working directories.
pub fn absolute_dir(pool: &Pool) -> PathBuf {
    std::path::absolute(pool.dir()).unwrap_or_else(|_| pool.dir().to_owned())
}

/// Makes a pool and starts its keeper. Returns it, and why its media were chosen.
pub fn create(name: &str, wanted: &Media) -> Result<(Pool, Option<String>), Fail> {
    let (media, why) = if wanted.media.is_empty() {
        let (media, why) = capacity::default_media()?;
        (media, Some(why))
    } else {
        (wanted.media.clone(), None)
    };
    let (mount, warning) = prefix::check(&wanted.mount, &media)?;
    let rules = rules::read_for(wanted.rules.as_deref(), &mount, &media)?;
    let options = CreateOptions {
        name: name.to_owned(),
        mount,
        media,
        reserve: wanted.reserve,
        rules,
    };
    let lifetime = lifetime::of_new(wanted.ttl, wanted.idle, &options.media);
    let pool = Pool::create_for(&options, &lifetime)?;
    for warning in warning
        .into_iter()
        .chain(capacity::warnings(&options.media))
    {
        say(format!("warning: {warning}"));
    }
    if let Err(fail) = keeper::start(&absolute_dir(&pool)) {
        drop(pool);
        let _ = Pool::destroy(name);
        return Err(fail);
    }
    Ok((pool, why))
}

/// The media in words: `memory:1G, files:/ssd:10G (11.0 GiB)`.
pub fn describe(media: &[MediumSpec]) -> String {
    let list: Vec<String> = media.iter().map(ToString::to_string).collect();
    let total = media.iter().map(|m| m.capacity).sum();
    format!("{} ({})", list.join(", "), format_size(total))
}

pub fn up(name: &str, a: &Up) -> Result<u8, Fail> {
    let began = Instant::now();
    if a.nodes.mpi {
        return mpi::up(name, a, began);
    }
    let (pool, note) = if a.reopen {
        let (pool, note) = reopen(name, a.from.as_deref())?;
        (pool, Some(note))
    } else if let Some(wanted) = nodes::wanted(&a.nodes)? {
        return up_nodes(name, a, wanted, began);
    } else {
        return one(name, a, began);
    };
    tell(&pool, note, a.json, began)
}

/// A pool of one node, on this host.
pub fn one(name: &str, a: &Up, began: Instant) -> Result<u8, Fail> {
    nodes::warn_of_limits(&a.nodes);
    let (pool, note) = create(name, &a.media)?;
    tell(&pool, note, a.json, began)
}

/// Says what was started.
fn tell(pool: &Pool, note: Option<String>, as_json: bool, began: Instant) -> Result<u8, Fail> {
    let took = began.elapsed().as_secs_f64();
    let c = pool.config();
    if as_json {
        json(&serde_json::json!({
            "name": c.name, "mount": c.mount, "dir": absolute_dir(pool), "uuid": c.uuid,
            "media": c.media.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "capacity": c.media.iter().map(|m| m.capacity).sum::<u64>(),
            "note": note, "seconds": took,
        }))?;
    } else {
        let note = note.map(|n| format!(", {n}")).unwrap_or_default();
        let line = format!(
            "pool '{}' is up: {}{note}; mounted on {}; {}\n",
            c.name,
            describe(&c.media),
            c.mount,
            seconds(took)
        );
        write(line.as_bytes())?;
    }
    Ok(code::OK)
}

/// Starts a pool of several nodes.
pub fn up_nodes(
    name: &str,
    a: &Up,
    wanted: (Vec<String>, How),
    began: Instant,
) -> Result<u8, Fail> {
    let (plan, all) = nodes::start(name, &a.media, &a.nodes, wanted)?;
    let took = began.elapsed().as_secs_f64();
    if a.json {
        let dir = forebay_client::home().join(name);
        json(&serde_json::json!({
            "name": plan.name, "mount": plan.mount, "uuid": plan.uuid,
            "dir": std::path::absolute(&dir).unwrap_or(dir),
            "nodes": all.iter().map(nodes::as_json).collect::<Vec<_>>(),
            "media": plan.media.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "capacity": nodes::capacity(&all), "seconds": took,
        }))?;
    } else {
        let line = format!(
            "pool '{}' is up: {}; mounted on {}; {}\n",
            plan.name,
            nodes::describe(&plan, &all),
            plan.mount,
            seconds(took)
        );
        write(line.as_bytes())?;
    }
    Ok(code::OK)
}

/// Goes on with a pool that has no keeper.
fn reopen(name: &str, from: Option<&Path>) -> Result<(Pool, String), Fail> {
    if let Some(from) = from {
        let dir = find_medium(name, from)?;
        let (pool, found) = forebay_client::reopen(&dir)?;
        keeper::start(&absolute_dir(&pool))?;
        let mut note = format!(
            "reopened from {} ({} record(s), {} later commit(s))",
            dir.display(),
            found.records,
            found.commits
        );
        if found.unused > 0 {
            note += &format!(
                "; the last {} byte(s) of its journal were never completed",
                found.unused
            );
        }
        return Ok((pool, note));
    }
    match Pool::state(name) {
        PoolState::Absent => {
            let hint = "if it had only 'files' media, name their directory: forebay up --reopen --from DIR";
            return Err(Fail::new(
                code::NO_POOL,
                format!("{}; {hint}", PoolError::Absent(name.into())),
            ));
        }
        PoolState::Running => return Ok((Pool::open(name)?, "which it was already".into())),
        // Opening it says what is wrong.
        PoolState::Damaged(_) | PoolState::Stale => {}
        // Its keeper may well run.
        PoolState::Unknown(why) => {
            return Err(Fail::failed(format!(
                "the pool '{name}' can't be looked at, so nothing was done: {why}"
            )));
        }
    }
    take_over(name);
    let places = places(name);
    // Whoever goes on with a pool whose time is over wants what is in it.
    for place in places.iter().filter(|p| p.state() == PoolState::Stale) {
        forebay_client::begin_lifetime(&place.dir)?;
    }
    if places.iter().any(|p| p.node.is_some()) {
        return reopen_nodes(name, &places);
    }
    let pool = Pool::open(name)?;
    let busy = pool.attached();
    // Settling is for when nobody is left; the keeper cleans up behind single processes.
    let note = if busy.is_empty() {
        format!("reopened: {}", pool.settle()?)
    } else {
        format!("reopened under {} process(es) that use it", busy.len())
    };
    keeper::start(&absolute_dir(&pool))?;
    Ok((pool, note))
}

/// Starts those daemons of a pool's nodes on this host again that are dead.
fn reopen_nodes(name: &str, places: &[Place]) -> Result<(Pool, String), Fail> {
    let dead = places.iter().filter(|p| p.state() != PoolState::Running);
    let mut started = Vec::new();
    for place in dead {
        node::restart(place)?;
        started.push(place.node.unwrap_or(0).to_string());
    }
    let note = format!("restarted on this host: node {}", started.join(", "));
    Ok((Pool::open(name)?, note))
}

/// The directory of pool `name` in a medium, from that or from the directory it lies in.
fn find_medium(name: &str, from: &Path) -> Result<PathBuf, Fail> {
    let from = std::path::absolute(from).unwrap_or_else(|_| from.to_owned());
    if from.join("pool.json").exists() {
        return Ok(from);
    }
    let named = |dir: &Path| -> bool {
        std::fs::read(dir.join("pool.json"))
            .ok()
            .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
            .is_some_and(|config| config["name"] == name)
    };
    let entries = std::fs::read_dir(&from)
        .map_err(|e| Fail::failed(format!("can't read --from {}: {e}", from.display())))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| named(p))
        .collect();
    found.sort();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Fail::new(
            code::NO_POOL,
            format!("there is nothing of a pool '{name}' in {}", from.display()),
        )),
        _ => {
            let list: Vec<String> = found.iter().map(|p| p.display().to_string()).collect();
            Err(Fail::failed(format!(
                "there are several in {}; say --from with one of: {}",
                from.display(),
                list.join(" ")
            )))
        }
    }
}
