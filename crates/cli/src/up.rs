//! `forebay up`: starts a new pool, or reopens one.

use crate::args::{Media, Up};
use crate::fail::{Fail, code};
use crate::found::absolute_dir;
use crate::origin_args::Origin;
use crate::output::{count, is_quiet, json, print_notice, seconds, write};
use crate::{capacity, fsck, keeper, lifetime, node_command, nodes, prefix, rule_file};
use forebay_client::{
    CreateOptions, Place, Pool, PoolConfig, PoolError, PoolState, Starting, places, take_over,
};
use forebay_media::{MediumSpec, format_size};
use forebay_pool::launch::{How, Plan};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Creates a pool and starts its keeper. Returns the pool, and why it has these media if the user
/// gave none.
pub fn create(name: &str, wanted: &Media) -> Result<(Pool, Option<String>), Fail> {
    let (media, why) = if wanted.media.is_empty() {
        let (media, why) = capacity::default_media()?;
        (media, Some(why))
    } else {
        (wanted.media.clone(), None)
    };
    let (origin, mount) = wanted
        .origin
        .wanted(wanted.mount.as_deref(), prefix::wanted(wanted))?;
    Origin::check_bucket(origin.as_ref())?;
    let (mount, warning) = prefix::check(&mount, &media)?;
    // A pool at its origin's own path hides that directory, but shows the same files.
    let warning = warning.filter(|_| origin.as_ref().is_none_or(|o| o.path != mount));
    let rules = rule_file::read_for(wanted.rules.as_deref(), &mount, &media, origin.is_some())?;
    let options = CreateOptions {
        name: name.to_owned(),
        mount,
        media,
        reserve: wanted.reserve,
        rules,
        origin,
    };
    let starting = Starting::begin(name)?;
    let limit = FileSizeLimit::raise();
    let excess = capacity::check(&options.media, 1, wanted.force)?;
    let lifetime = lifetime::of_new(wanted.ttl, wanted.idle, &options.media);
    let pool = Pool::create_for(&options, &lifetime)?;
    for warning in warning.into_iter().chain(excess) {
        print_notice(format!("warning: {warning}"));
    }
    if let Err(fail) = keeper::start(&absolute_dir(&pool)) {
        drop(pool);
        let _ = Pool::destroy(name);
        return Err(fail);
    }
    drop((starting, limit));
    Ok((pool, why))
}

/// Raises this process's limit of file sizes to its hard limit, for a pool's files. Dropping it
/// restores the limit, so that programs run later get the original one.
struct FileSizeLimit(Rlimit);

impl FileSizeLimit {
    fn raise() -> FileSizeLimit {
        let before = getrlimit(Resource::Fsize);
        // If the limit can't be raised, creating a larger file fails with a message.
        let _ = keeper::raise(Resource::Fsize);
        FileSizeLimit(before)
    }
}

impl Drop for FileSizeLimit {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Fsize, self.0);
    }
}

/// Describes media in words: `memory:1G, files:/ssd:10G (11.0 GiB)`.
pub fn describe(media: &[MediumSpec]) -> String {
    let list: Vec<String> = media.iter().map(ToString::to_string).collect();
    let total = media.iter().map(|m| m.capacity).sum();
    format!("{} ({})", list.join(", "), format_size(total))
}

pub fn up(name: &str, a: &Up) -> Result<u8, Fail> {
    let began = Instant::now();
    let (pool, note) = if a.reopen {
        let (pool, note) = reopen(name, a.from.as_deref())?;
        (pool, Some(note))
    } else if let Some(wanted) = nodes::wanted(&a.nodes)? {
        return up_nodes(name, a, wanted, began);
    } else {
        return one(name, a, began);
    };
    report(&pool, note, a.json, began)
}

/// Starts a pool of one node, on this host.
pub fn one(name: &str, a: &Up, began: Instant) -> Result<u8, Fail> {
    nodes::warn_of_limits(&a.nodes);
    let (pool, note) = create(name, &a.media)?;
    report(&pool, note, a.json, began)
}

/// Prints a report about the pool that was started.
fn report(pool: &Pool, note: Option<String>, as_json: bool, began: Instant) -> Result<u8, Fail> {
    let took = began.elapsed().as_secs_f64();
    let c = pool.config();
    if as_json {
        json(&serde_json::json!({
            "name": c.name, "mount": c.mount, "dir": absolute_dir(pool), "uuid": c.uuid,
            "media": c.media.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "capacity": c.media.iter().map(|m| m.capacity).sum::<u64>(),
            "note": note, "seconds": took,
        }))?;
    } else if !is_quiet() {
        let note = note.map(|n| format!(", {n}")).unwrap_or_default();
        let line = format!(
            "pool '{}' is up: {}{note}; programs see it under {}; {}\n",
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
    } else if !is_quiet() {
        let line = format!(
            "pool '{}' is up: {}; programs see it under {}; {}\n",
            plan.name,
            nodes::describe(&plan, &all),
            plan.mount,
            seconds(took)
        );
        write(line.as_bytes())?;
    }
    Ok(code::OK)
}

/// Reopens a pool that has no keeper.
fn reopen(name: &str, from: Option<&Path>) -> Result<(Pool, String), Fail> {
    if let Some(from) = from {
        let found = find_media(name, from)?;
        if found.iter().any(|f| f.config.member.is_some()) {
            return reopen_from_media(name, from, &found);
        }
        let dir = only(found, from)?;
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
        // Opening the pool, below, reports the error.
        PoolState::Damaged(_) | PoolState::Stale => {}
        // The state can't be determined; the keeper may well be running.
        PoolState::Unknown(why) => {
            return Err(Fail::failed(format!(
                "the pool '{name}' can't be looked at, so nothing was done: {why}"
            )));
        }
    }
    take_over(name);
    let places = places(name);
    // The pool's time limit begins again: a user who reopens an expired pool wants its files.
    for place in places.iter().filter(|p| p.state() == PoolState::Stale) {
        forebay_client::begin_lifetime(&place.dir)?;
    }
    if places.iter().any(|p| p.node.is_some()) {
        return reopen_nodes(name, &places);
    }
    let pool = Pool::open(name)?;
    let busy = pool.attached();
    // `settle` needs a pool without processes; otherwise the keeper cleans up behind each dead
    // process.
    let note = if busy.is_empty() {
        format!("reopened: {}", pool.settle()?)
    } else {
        match busy.len() {
            1 => "reopened under 1 process that uses it".to_owned(),
            n => format!("reopened under {n} processes that use it"),
        }
    };
    keeper::start(&absolute_dir(&pool))?;
    Ok((pool, note))
}

/// Restarts the dead daemons of a pool's nodes on this host.
fn reopen_nodes(name: &str, places: &[Place]) -> Result<(Pool, String), Fail> {
    let dead = places.iter().filter(|p| p.state() != PoolState::Running);
    let mut started = Vec::new();
    for place in dead {
        node_command::restart(place)?;
        started.push(place.node.unwrap_or(0).to_string());
    }
    let note = format!("restarted on this host: node {}", started.join(", "));
    Ok((Pool::open(name)?, note))
}

/// A directory of a pool, or of a node, in its first medium.
struct Found {
    dir: PathBuf,
    config: PoolConfig,
}

/// Reopens the nodes of a pool from their media on this host, when shared memory with their records
/// is lost. Reopens all nodes that the pool had here, or none.
fn reopen_from_media(name: &str, from: &Path, found: &[Found]) -> Result<(Pool, String), Fail> {
    let first = &found[0];
    if let Some(other) = found.iter().find(|f| f.config.uuid != first.config.uuid) {
        return Err(Fail::failed(format!(
            "there are nodes of several pools '{name}' in {}: {} and {}; move those away that aren't wanted",
            from.display(),
            first.dir.display(),
            other.dir.display()
        )));
    }
    let plan = Plan::read(&first.dir).map_err(|e| {
        let path = first.dir.join("plan.json");
        Fail::failed(format!("can't read {}: {e}", path.display()))
    })?;
    let number = |f: &Found| f.config.member.map_or(0, |m| m.node);
    let here: Vec<u32> = found.iter().map(number).collect();
    let host = |n: u32| plan.hosts.get(n as usize).map_or("", String::as_str);
    let (mut missing, mut other_hosts) = (Vec::new(), Vec::new());
    for node in (0..plan.hosts.len() as u32).filter(|n| !here.contains(n)) {
        let same_host = here.iter().any(|&h| host(h) == host(node));
        if plan.how == How::Local || same_host {
            missing.push(node.to_string())
        } else {
            other_hosts.push(host(node).to_owned())
        }
    }
    if !missing.is_empty() {
        let here: Vec<String> = here.iter().map(u32::to_string).collect();
        return Err(Fail::new(
            code::NO_POOL,
            format!(
                "the pool '{name}' has {} nodes; {} has nothing of node {} (only of node {}); nothing was started: bring the \
                 directory forebay-*-n{}-0 back there",
                plan.hosts.len(),
                from.display(),
                missing.join(", "),
                here.join(", "),
                missing[0]
            ),
        ));
    }
    if Pool::state(name) != PoolState::Absent {
        return Err(PoolError::Exists(name.to_owned()).into());
    }
    let started = start_from_media(name, found);
    let note = match started {
        Ok(note) => note,
        Err(fail) => {
            // The media stay as they are, so that another attempt begins with the same content.
            forebay_client::forget(name);
            return Err(fail);
        }
    };
    other_hosts.dedup();
    if !other_hosts.is_empty() {
        print_notice(format!(
            "the other nodes of the pool '{name}' are on {}: run the same command there",
            other_hosts.join(", ")
        ));
    }
    Ok((Pool::open(name)?, note))
}

/// Loads all these nodes, starts their daemons, and makes their records consistent with each other.
fn start_from_media(name: &str, found: &[Found]) -> Result<String, Fail> {
    let (mut records, mut commits) = (0, 0);
    for f in found {
        let (pool, loaded) = forebay_client::reopen(&f.dir)?;
        records += loaded.records;
        commits += loaded.commits;
        let _ = pool.store().recovery().detach();
    }
    let places = places(name);
    for place in &places {
        let dir = std::path::absolute(&place.dir).unwrap_or_else(|_| place.dir.clone());
        keeper::start(&dir)?;
    }
    let (mut mended, mut unsettled) = (0, None);
    if found.len() == found[0].config.member.map_or(1, |m| m.nodes as usize) {
        let pools = places.iter().map(|p| Pool::open_dir(&p.dir).map(Arc::new));
        let pools = pools.collect::<Result<Vec<_>, _>>()?;
        unsettled = fsck::settle_notes(&pools).err();
        for (place, pool) in places.iter().zip(&pools) {
            let fitted = match unsettled {
                None => pool.cluster().checks().mend_across(),
                Some(_) => Ok(0),
            };
            let _ = pool.store().recovery().detach();
            mended += fitted.map_err(|e| {
                let why = std::io::Error::from(e);
                Fail::failed(format!(
                    "can't compare {} with the other nodes: {why}",
                    place.dir.display()
                ))
            })?;
        }
    }
    let mut note = format!(
        "reopened {} from their media ({records} record(s), {commits} later commit(s))",
        count(places.len() as u64, "node")
    );
    if let Some(why) = unsettled {
        note += &format!(
            "; they weren't compared with each other, since operations that they began can't be \
             completed ({why}): forebay fsck --repair --pool {name} does it"
        );
    }
    if mended > 0 {
        note += &format!(
            "; {mended} name(s) or part(s) that not all nodes had noted were put in order"
        );
    }
    Ok(note)
}

/// Returns the directories of pool `name` in its first media. If `from` is a node's directory,
/// returns it and its siblings; otherwise, those inside `from`.
fn find_media(name: &str, from: &Path) -> Result<Vec<Found>, Fail> {
    let from = std::path::absolute(from).unwrap_or_else(|_| from.to_owned());
    let single = from.join("pool.json").exists();
    let read = |dir: PathBuf| {
        let config = PoolConfig::read(&dir).ok()?;
        let is_first = config.journal_dir(&dir).is_none_or(|first| first == dir);
        // The medium's directory may have been moved; the directory's name ends with the medium's
        // number.
        let is_first = is_first || dir.to_string_lossy().ends_with("-0");
        is_first.then_some(Found { dir, config })
    };
    if single {
        match read(from.clone()) {
            Some(one) if one.config.member.is_some() => {}
            Some(one) => return Ok(vec![one]),
            // The first read has dropped the error: read again to report it.
            None => PoolConfig::read(&from).map(|_| ())?,
        }
    }
    let base = match (single, from.parent()) {
        (true, Some(above)) => above,
        _ => &from,
    };
    let entries = std::fs::read_dir(base)
        .map_err(|e| Fail::failed(format!("can't read --from {}: {e}", base.display())))?;
    let dirs = entries.flatten().map(|e| e.path());
    let dirs = dirs.filter(|p| p.join("pool.json").exists());
    let mut found: Vec<Found> = dirs.filter_map(read).collect();
    found.retain(|f| f.config.name == name);
    found.sort_by_key(|f| (f.config.member.map(|m| m.node), f.dir.clone()));
    if found.is_empty() {
        Err(Fail::new(
            code::NO_POOL,
            format!("there is nothing of a pool '{name}' in {}", from.display()),
        ))
    } else {
        Ok(found)
    }
}

/// Returns the only directory found of a pool of one node; fails if there are several.
fn only(mut found: Vec<Found>, from: &Path) -> Result<PathBuf, Fail> {
    if found.len() == 1 {
        return Ok(found.remove(0).dir);
    }
    let list: Vec<String> = found.iter().map(|f| f.dir.display().to_string()).collect();
    Err(Fail::failed(format!(
        "there are several in {}; say --from with one of: {}",
        from.display(),
        list.join(" ")
    )))
}
