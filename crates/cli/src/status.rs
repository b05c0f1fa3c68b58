//! `forebay df`, `status` and `pools`: show how full pools are, and their state.

use crate::accounting;
use crate::fail::{Fail, code};
use crate::file_args::Df;
use crate::found::{self, absolute_dir, named, users};
use crate::mount::{Served, mounts};
use crate::node_status;
use crate::origin::quota_line;
use crate::output::{age, json, write};
use crate::tables::{df_table, medium, percent, table, tables};
use forebay_client::{MediumUsage, Pool, PoolState, places};
use forebay_media::format_size;
use forebay_store::{Store, Table};
use serde_json::{Value, json as value};
use std::fmt::Write;
use std::sync::Arc;

/// Whether the pool has several nodes.
fn has_nodes(name: &str) -> bool {
    places(name).iter().any(|p| p.node.is_some())
}

pub fn df(name: &str, a: &Df) -> Result<u8, Fail> {
    if has_nodes(name) {
        return node_status::df(name, a.json);
    }
    let pool = Pool::open(name)?;
    let usage = pool.usage();
    let mount = &pool.config().mount;
    if a.json {
        let media: Vec<Value> = usage.iter().map(medium).collect();
        let records = pool.store().files.used().ok();
        json(&value!({
            "name": name, "mount": mount, "media": media, "record_bytes": records,
            "quota": pool.quota(),
        }))?;
        return Ok(code::OK);
    }
    write(df_table(&usage, mount).as_bytes())?;
    write(quota_line("", &pool).as_bytes())?;
    Ok(code::OK)
}

fn state_words(state: &PoolState) -> String {
    match state {
        PoolState::Running => "running".into(),
        PoolState::Stale => "stale".into(),
        PoolState::Absent => "absent".into(),
        PoolState::Damaged(_) => "damaged".into(),
        PoolState::Unknown(_) => "unknown".into(),
    }
}

pub fn status(name: &str, as_json: bool, all: bool) -> Result<u8, Fail> {
    if has_nodes(name) {
        return node_status::status(name, as_json, all);
    }
    let pool = Arc::new(Pool::open(name)?);
    let c = pool.config();
    let state = Pool::state(name);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64);
    let uptime = now.saturating_sub(c.created).max(0);
    let pids = users(std::slice::from_ref(&pool));
    let records = pool.store().files.used().ok();
    let usage = pool.usage();
    if as_json {
        let mut report = value!({
            "name": c.name, "state": state_words(&state), "mount": c.mount,
            "dir": absolute_dir(&pool), "uuid": c.uuid, "created": c.created, "uptime": uptime,
            "media": usage.iter().map(medium).collect::<Vec<_>>(), "record_bytes": records,
            "shards": c.shards, "processes": pids, "keeper": pool.keeper_pid(),
            "lifetime": crate::lifetime::as_json(&pool), "quota": pool.quota(),
            "mounts": mounts(&pool).iter().map(Served::as_json).collect::<Vec<_>>(),
            "tables": tables(pool.store()),
            "stuck": forebay_store::process::stuck(pool.store().control()).iter()
                .map(|s| value!({ "process": s.0, "waits_for": s.1 })).collect::<Vec<_>>(),
        });
        if all {
            report["taken"] = accounting::as_json(&pool);
        }
        json(&report)?;
        return Ok(code::OK);
    }
    let keeper = match pool.keeper_pid() {
        Some(pid) => format!("process {pid}"),
        None => format!(
            "dead{}; start it again with: forebay up --reopen --pool {name}",
            found::why_dead(pool.dir())
        ),
    };
    let mut text = format!(
        "pool       {}, {}\nup for     {}\nseen under {}\ndirectory  {}\n",
        c.name,
        state_words(&state),
        age(uptime as u64),
        c.mount,
        absolute_dir(&pool).display()
    );
    text += &media_in_words(&usage);
    let _ = writeln!(
        text,
        "records    {}",
        records.map_or("?".into(), format_size)
    );
    let used_by = if pids.is_empty() {
        "nobody".into()
    } else {
        named(&pids)
    };
    let _ = writeln!(text, "used by    {used_by}\nkeeper     {keeper}");
    text += &quota_line("   ", &pool);
    if let Some(words) = crate::lifetime::words(&pool) {
        let _ = writeln!(text, "lifetime   {words}");
    }
    for mount in mounts(&pool) {
        let _ = writeln!(text, "mount      {}", mount.words());
    }
    text += &full_tables(pool.store());
    for (waiter, holder) in forebay_store::process::stuck(pool.store().control()) {
        let _ = writeln!(
            text,
            "stuck      process {} waits for process {}, which is stopped; kill -CONT {holder} lets it go on",
            named(&[waiter]),
            named(&[holder])
        );
    }
    if all {
        text.push('\n');
        accounting::in_words(&pool, &mut text);
    }
    write(text.as_bytes())?;
    Ok(code::OK)
}

/// Describes the use of each medium, for people.
fn media_in_words(usage: &[MediumUsage]) -> String {
    let mut text = String::new();
    for (i, u) in usage.iter().enumerate() {
        let label = if i == 0 { "media     " } else { "          " };
        let ready = u.reserved.saturating_sub(u.used);
        let _ = writeln!(
            text,
            "{label} {}: {} used ({}), {} kept ready (at most {}{})",
            u.spec,
            format_size(u.used),
            percent(u.used, u.capacity),
            format_size(ready),
            format_size(u.reserve),
            if ready > u.reserve {
                "; the rest is being given back"
            } else {
                ""
            }
        );
    }
    text
}

/// Describes the number of open files, and of refusals because a table was full, for people.
fn full_tables(store: &Store) -> String {
    let tables = forebay_store::tables::all(store.control());
    let opened = &tables[0];
    let mut text = format!("files open {} of {} at most\n", opened.used, opened.limit);
    for complaint in tables.iter().filter_map(Table::complaint) {
        let _ = writeln!(text, "refused    {complaint}");
    }
    text
}

pub fn pools(as_json: bool) -> Result<u8, Fail> {
    let listed = Pool::list()?;
    if as_json {
        let list: Vec<Value> = listed
            .iter()
            .map(|l| {
                let why = match &l.state {
                    PoolState::Damaged(why) | PoolState::Unknown(why) => Some(why),
                    _ => None,
                };
                let nodes: Vec<u32> = places(&l.name).iter().filter_map(|p| p.node).collect();
                value!({ "name": l.name, "dir": l.dir, "state": state_words(&l.state), "why": why,
                         "nodes": nodes })
            })
            .collect();
        json(&list)?;
        return Ok(code::OK);
    }
    let mut rows = vec![
        ["Name", "State", "Media", "Mounted on"]
            .map(String::from)
            .to_vec(),
    ];
    for l in &listed {
        let (media, mount) = match (&l.state, Pool::open(&l.name)) {
            (PoolState::Damaged(why) | PoolState::Unknown(why), _) => (why.clone(), String::new()),
            (_, Ok(pool)) => {
                let c = pool.config();
                let media: Vec<String> = c.media.iter().map(ToString::to_string).collect();
                let mut media = media.join(", ");
                if let Some(member) = c.member {
                    let here = places(&l.name).len() as u32;
                    let _ = match member.nodes {
                        n if n == here => write!(media, " on each of {n} nodes"),
                        n => write!(media, " on each of {n} nodes, {here} here"),
                    };
                }
                (media, c.mount.clone())
            }
            (_, Err(e)) => (e.to_string(), String::new()),
        };
        rows.push(vec![l.name.clone(), state_words(&l.state), media, mount]);
    }
    if listed.is_empty() {
        crate::output::note("you have no pools on this node; start one with: forebay up");
    } else {
        write(table(&rows, &[0, 1, 2, 3]).as_bytes())?;
    }
    Ok(code::OK)
}
