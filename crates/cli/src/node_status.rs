//! `forebay status` and `df` for a pool of several nodes.

use crate::accounting;
use crate::fail::{Fail, code};
use crate::found::{named, users, why_dead};
use crate::lifetime;
use crate::mount::{Served, mounts};
use crate::origin::quota_line;
use crate::output::{age, json, print_notice, write};
use crate::survey::{Known, State, Survey};
use crate::tables::{df_table, medium, percent, table, tables};
use forebay_client::requests::requests_sent;
use forebay_client::{MediumUsage, Pool, home};
use forebay_media::format_size;
use serde_json::{Value, json as value};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

fn capacity(k: &Known) -> u64 {
    k.node.media.iter().map(|m| m.capacity).sum()
}

fn as_json(k: &Known, all: bool) -> Value {
    let addresses = k.node.addresses.iter();
    let addresses: Vec<String> = addresses
        .map(|a| SocketAddr::from(*a).to_string())
        .collect();
    let mut report = value!({
        "node": k.node.number.0, "name": k.node.name, "state": k.state.word(), "since": k.since,
        "why": k.why, "addresses": addresses, "capacity": capacity(k), "here": k.here.is_some(),
    });
    if let Some(u) = &k.use_of {
        report["media"] = u.media.iter().map(medium).collect();
        report["record_bytes"] = value!(u.record_bytes);
        report["copied"] = value!(u.copied);
        report["processes"] = value!(u.processes);
    }
    if let Some(here) = &k.here {
        report["dir"] = value!(here.place.dir);
        report["keeper"] = value!(here.keeper);
        report["requests"] = value!(requests_sent(&here.place.dir).ok());
        if let Some(pool) = &here.pool {
            report["lifetime"] = lifetime::as_json(pool);
            if all {
                report["taken"] = accounting::as_json(pool);
            }
            report["process_ids"] = value!(users(std::slice::from_ref(pool)));
            report["mounts"] = mounts(pool).iter().map(Served::as_json).collect();
            report["tables"] = tables(pool.store());
            let stuck = forebay_store::process::stuck(pool.store().control()).into_iter();
            report["stuck"] = stuck
                .map(|s| value!({ "process": s.0, "waits_for": s.1 }))
                .collect();
        }
    }
    report
}

fn row(k: &Known) -> Vec<String> {
    let none = || "-".to_owned();
    let used = k.use_of.as_ref();
    let bytes = used.map(|u| u.media.iter().map(|m| m.used).sum::<u64>());
    let since = k.since.map(|s| age(now().saturating_sub(s)));
    let address = k.node.addresses.first();
    let pid = k.here.as_ref().and_then(|h| h.keeper);
    vec![
        k.node.number.to_string(),
        k.node.name.clone(),
        k.state.word().to_owned(),
        since.unwrap_or_else(none),
        address.map_or_else(none, |a| SocketAddr::from(*a).to_string()),
        pid.map_or_else(none, |p| p.to_string()),
        format_size(capacity(k)),
        bytes.map_or_else(none, format_size),
        bytes.map_or_else(none, |u| percent(u, capacity(k))),
        used.map_or_else(none, |u| u.processes.to_string()),
    ]
}

/// Appends remarks on a node to `text`, for what its row doesn't show.
fn remarks(k: &Known, name: &str, text: &mut String) {
    let number = k.node.number;
    let what = match k.state {
        State::Dead => Some(format!(
            "node {number}: its daemon is dead{}; start it again with: forebay node restart {number} --pool {name}",
            k.here
                .as_ref()
                .map_or(String::new(), |here| why_dead(&here.place.dir))
        )),
        State::Paused => Some(format!(
            "node {number}: its daemon is stopped; let it go on with: forebay node resume {number} --pool {name}"
        )),
        State::Unreachable => k.why.clone(),
        State::Up | State::Unknown => None,
    };
    if let Some(what) = what {
        let _ = writeln!(text, "{what}");
    }
    if let Some(why) = k.why.as_ref().filter(|_| k.state != State::Unreachable) {
        let _ = writeln!(text, "node {number}: its data can't be looked at: {why}");
    }
    if let Some(copied) = k.use_of.as_ref().map(|u| u.copied).filter(|&n| n > 0) {
        let _ = writeln!(
            text,
            "node {number}: {} of that are copies of other nodes' files; they give way to files",
            format_size(copied)
        );
    }
    let pool = k.here.as_ref().and_then(|h| h.pool.as_ref());
    if let Some(words) = pool.and_then(|p| lifetime::words(p)) {
        let _ = writeln!(text, "node {number}: {words}");
    }
    for mount in pool.iter().flat_map(|p| mounts(p)) {
        let _ = writeln!(text, "node {number}: mounted at {}", mount.words());
    }
    let full = pool
        .iter()
        .flat_map(|p| forebay_store::tables::all(p.store().control()));
    for complaint in full.filter_map(|table| table.complaint()) {
        let _ = writeln!(text, "node {number}: {complaint}");
    }
    for (waiter, holder) in pool
        .iter()
        .flat_map(|p| forebay_store::process::stuck(p.store().control()))
    {
        let _ = writeln!(
            text,
            "node {number}: process {} waits for process {}, which is stopped; kill -CONT {holder} lets it go on",
            named(&[waiter]),
            named(&[holder])
        );
    }
}

pub fn status(name: &str, as_json_text: bool, all: bool) -> Result<u8, Fail> {
    let Survey { config, map, nodes } = Survey::of(name)?;
    let up = nodes.iter().filter(|k| k.state == State::Up).count();
    let state = if up == nodes.len() {
        "running"
    } else {
        "degraded"
    };
    let uptime = (now() as i64 - config.created).max(0);
    let dir = std::path::absolute(home().join(name)).unwrap_or_else(|_| home().join(name));
    if as_json_text {
        json(&value!({
            "name": name, "state": state, "mount": config.mount, "dir": dir,
            "uuid": config.uuid, "created": config.created, "uptime": uptime,
            "quota": Pool::open(name).ok().as_ref().and_then(Pool::quota),
            "epoch": map.epoch(), "nodes": nodes.iter().map(|k| as_json(k, all)).collect::<Vec<_>>(),
        }))?;
        return Ok(code::OK);
    }
    let mut text = format!(
        "pool       {name}, {}\nup for     {}\nseen under {}\ndirectory  {}\nnodes      {}, {up} up\n{}\n",
        state,
        age(uptime as u64),
        config.mount,
        dir.display(),
        nodes.len(),
        Pool::open(name).map_or(String::new(), |pool| quota_line("   ", &pool)),
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
    nodes.iter().for_each(|k| remarks(k, name, &mut text));
    for k in nodes.iter().filter(|_| all) {
        if let Some(pool) = k.here.as_ref().and_then(|h| h.pool.as_ref()) {
            let _ = writeln!(text, "\nnode {}", k.node.number);
            accounting::in_words(pool, &mut text);
        }
    }
    write(text.as_bytes())?;
    Ok(code::OK)
}

/// Returns the media of all these nodes together: those with the same index are summed up.
fn sums(nodes: &[Known]) -> Vec<MediumUsage> {
    let mut sums: Vec<MediumUsage> = Vec::new();
    let media = nodes.iter().filter_map(|k| Some(&k.use_of.as_ref()?.media));
    for (i, u) in media.flat_map(|m| m.iter().enumerate()) {
        match sums.get_mut(i) {
            Some(sum) => {
                sum.capacity += u.capacity;
                sum.used += u.used;
                sum.reserved += u.reserved;
                sum.reserve += u.reserve;
                sum.available += u.available;
                sum.spec.capacity += u.spec.capacity;
            }
            None => sums.push(u.clone()),
        }
    }
    sums
}

pub fn df(name: &str, as_json_text: bool) -> Result<u8, Fail> {
    let Survey { config, nodes, .. } = Survey::of(name)?;
    let sums = sums(&nodes);
    let missing: Vec<&Known> = nodes.iter().filter(|k| k.use_of.is_none()).collect();
    if as_json_text {
        let used = nodes.iter().filter_map(|k| k.use_of.as_ref());
        let records: Option<u64> = used.map(|u| u.record_bytes).sum();
        let missing: Vec<u32> = missing.iter().map(|k| k.node.number.0).collect();
        json(&value!({
            "name": name, "mount": config.mount, "media": sums.iter().map(medium).collect::<Vec<_>>(),
            "record_bytes": records, "nodes": nodes.len(), "missing": missing,
            "quota": Pool::open(name).ok().as_ref().and_then(Pool::quota),
        }))?;
        return Ok(code::OK);
    }
    write(df_table(&sums, &config.mount).as_bytes())?;
    if let Ok(pool) = Pool::open(name) {
        write(quota_line("", &pool).as_bytes())?;
    }
    if !missing.is_empty() {
        let list = missing
            .iter()
            .map(|k| format!("{} ({})", k.node.number, k.node.name));
        print_notice(format!(
            "warning: not counted, because out of reach: node {}",
            list.collect::<Vec<_>>().join(", ")
        ));
    }
    Ok(code::OK)
}
