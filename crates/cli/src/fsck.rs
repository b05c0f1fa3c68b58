//! `forebay fsck`: checks a pool, and repairs it.

use crate::args::Fsck;
use crate::fail::Fail;
use crate::found::{absolute_dir, named, users};
use crate::output::{count, json, print_notice, seconds, write};
use forebay_client::{Place, Pool, PoolError, PoolState, places};
use forebay_media::format_size;
use forebay_store::Report;
use serde_json::json as value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exit codes, with the meanings that fsck(8) gives them.
mod code {
    pub const CLEAN: u8 = 0;
    pub const REPAIRED: u8 = 1;
    pub const DAMAGED: u8 = 4;
    pub const FAILED: u8 = 8;
}

/// Pause between two checks of state that may be changing.
const AGAIN: Duration = Duration::from_millis(300);
/// How long the keeper may take to release what a dead process held.
const RELEASE: Duration = Duration::from_secs(3);
/// How long the keepers may take to complete intents that span several nodes, and to remove the
/// parts of removed files. A difference between nodes that lasts longer is a finding.
const COMPLETION: Duration = Duration::from_secs(10);

pub fn fsck(name: &str, a: &Fsck) -> Result<u8, Fail> {
    let failed = |e: &dyn std::fmt::Display| Fail::new(code::FAILED, e);
    let began = Instant::now();
    let places = places(name);
    if places.is_empty() {
        return Err(failed(&PoolError::Absent(name.to_owned())));
    }
    let mut report = Report::default();
    for place in &places {
        let mut one = if a.repair {
            mend(name, place)?
        } else {
            let pool = Pool::open_dir(&place.dir).map_err(|e| failed(&e))?;
            check(&pool).map_err(|e| failed(&e))?
        };
        if let Some(node) = place.node {
            for f in &mut one.findings {
                f.what = format!("node {node}: {}", f.what);
            }
        }
        report.join(one);
    }
    if report.left_out.is_none() && report.findings.iter().all(|f| f.repaired) {
        compare_nodes(name, &places, a.repair, &mut report)?;
    }
    let took = began.elapsed().as_secs_f64();
    let repaired = report.findings.iter().filter(|f| f.repaired).count() as u64;
    let left = report.findings.len() as u64 + report.more - repaired;
    let status = match (left, repaired, &report.left_out) {
        (0, 0, None) => code::CLEAN,
        (0, _, None) => code::REPAIRED,
        _ => code::DAMAGED,
    };
    if a.json {
        let findings: Vec<_> = report
            .findings
            .iter()
            .map(|f| value!({ "part": f.part, "what": f.what, "remedy": f.remedy, "repaired": f.repaired }))
            .collect();
        json(&value!({
            "name": name, "clean": status == code::CLEAN, "online": report.others > 0,
            "findings": findings, "more": report.more, "left_out": report.left_out,
            "lost_pages": report.lost_pages, "unasked": report.unasked,
            "objects": report.objects, "entries": report.entries, "seconds": took,
        }))?;
        return Ok(status);
    }
    report.findings.sort_by_key(|f| f.repaired);
    write(in_words(&report).as_bytes())?;
    let what = format!(
        "pool '{name}': {}, {} looked at in {}",
        count(report.objects, "object"),
        match report.entries {
            1 => "1 name".into(),
            n => format!("{n} names"),
        },
        seconds(took)
    );
    match status {
        code::CLEAN => write(format!("{what}; clean\n").as_bytes())?,
        code::REPAIRED => print_notice(format!("{what}; {} repaired", count(repaired, "finding"))),
        _ if left == 0 => print_notice(format!("{what}; not everything could be looked at")),
        _ if a.repair => print_notice(format!(
            "{what}; {} repaired, {left} not: stage out what you need and remove the pool",
            count(repaired, "finding")
        )),
        _ => print_notice(format!(
            "{what}; {}; stage out what is precious, then: forebay fsck --repair --pool {name}",
            count(left, "finding")
        )),
    }
    Ok(status)
}

/// Lists the findings, and what wasn't checked.
fn in_words(report: &Report) -> String {
    let mut text = String::new();
    for f in &report.findings {
        text += &format!("{f}\n");
    }
    if report.more > 0 {
        text += &format!("and {} more\n", report.more);
    }
    if let Some(left_out) = &report.left_out {
        text += &format!("not looked at: {left_out}\n");
    }
    if report.lost_pages > 0 {
        text += &format!(
            "{} of record files lost by killed processes ({}); nothing is damaged\n",
            count(report.lost_pages, "page"),
            format_size(report.lost_pages * 4096)
        );
    }
    if report.unasked > 0 {
        text += &format!(
            "{} not compared with other nodes, since the time for it was over; no damage is known\n",
            count(report.unasked, "record")
        );
    }
    text
}

/// Compares the records that the nodes of a running pool have about each other. With `repair`, and
/// if all nodes run on this host, makes them agree. A difference is a finding only if every
/// comparison within [`COMPLETION`] finds it: until then, operations in progress and the keepers
/// may remove it.
fn compare_nodes(
    name: &str,
    places: &[Place],
    repair: bool,
    report: &mut Report,
) -> Result<(), Fail> {
    let open = |place: &Place| {
        let pool = Arc::new(Pool::open_dir(&place.dir).ok()?);
        place.node.map(|node| (node, pool))
    };
    let is_running = |place: &&Place| place.state() == PoolState::Running;
    let (numbers, pools): (Vec<u32>, Vec<Arc<Pool>>) =
        places.iter().filter(is_running).filter_map(open).unzip();
    let all = |report: &mut Report| {
        let (mut found, mut failed) = (Vec::new(), None);
        report.unasked = 0;
        for (node, pool) in numbers.iter().zip(&pools) {
            match compare(pool) {
                Ok(mut one) => {
                    for f in &mut one.findings {
                        f.what = format!("node {node}: {}", f.what);
                    }
                    found.append(&mut one.findings);
                    report.unasked += one.unasked;
                }
                Err(e) => failed = Some(e),
            }
        }
        if let Some(e) = failed {
            let e = std::io::Error::from(e);
            let what = format!(
                "what the nodes say of each other, since one can't be asked ({e}): bring it back \
                 (forebay status --pool {name}; forebay node --pool {name} restart N), and repeat this"
            );
            report.left_out.get_or_insert(what);
        }
        found
    };
    let mut found = all(report);
    let until = Instant::now() + COMPLETION;
    while !found.is_empty() && report.left_out.is_none() && Instant::now() < until {
        std::thread::sleep(AGAIN);
        let again = all(report);
        found.retain(|f| again.iter().any(|g| g.what == f.what));
    }
    let nodes = pools.first().and_then(|pool| pool.config().member.as_ref());
    let are_all_here = nodes.is_some_and(|m| m.nodes as usize == pools.len());
    if repair && are_all_here && !found.is_empty() {
        // Programs may have attached after each node was checked alone.
        check_unused(name, &pools)?;
        match settle_notes(&pools) {
            Ok(()) => {
                for pool in &pools {
                    // If a repair fails, the comparison below finds the difference again.
                    let _ = pool.cluster().checks().mend_across();
                }
            }
            Err(why) => print_notice(format!(
                "what differs between nodes isn't repaired, since operations that they began can't \
                 be completed: {why}"
            )),
        }
        let after = all(report);
        for f in &mut found {
            f.repaired = !after.iter().any(|g| g.what == f.what);
        }
    }
    report.findings.append(&mut found);
    for pool in &pools {
        let _ = pool.store().recovery().detach();
    }
    Ok(())
}

/// Completes operations over several nodes that processes of `pools`, all nodes of one pool, have
/// begun. Must be called before [`mend_across`] compares nodes, since half of a rename looks like
/// damage.
///
/// # Errors
/// Why the operations weren't completed within [`COMPLETION`].
///
/// [`mend_across`]: forebay_cluster::Checks::mend_across
pub fn settle_notes(pools: &[Arc<Pool>]) -> Result<(), String> {
    let until = Instant::now() + COMPLETION;
    loop {
        let (mut pending, mut failed) = (false, None);
        for pool in pools {
            let cluster = pool.cluster();
            // An intent of one node may have to wait for another node's. The keepers complete
            // intents, too.
            let settled = cluster.namespace().settle_notes();
            match settled.and_then(|n| Ok(n > 0 || cluster.checks().has_notes()?)) {
                Ok(some) => pending |= some,
                Err(e) => failed = Some(std::io::Error::from(e).to_string()),
            }
        }
        match failed {
            None if !pending => return Ok(()),
            _ if Instant::now() < until => std::thread::sleep(AGAIN),
            failed => return Err(failed.unwrap_or_else(|| "some stay incomplete".into())),
        }
    }
}

/// Fails if a process uses the pool: a repair needs it unused.
fn check_unused(name: &str, pools: &[Arc<Pool>]) -> Result<(), Fail> {
    let pids = users(pools);
    if pids.is_empty() {
        return Ok(());
    }
    let named = named(&pids);
    let what =
        format!("the pool '{name}' is in use by {named}; a repair has to be alone: end them first");
    Err(Fail::new(code::FAILED, what))
}

/// Checks this node's records against those of the other nodes. Tries again for a while if a daemon
/// doesn't answer: the daemon may have just been started.
fn compare(pool: &Pool) -> rustix::io::Result<Report> {
    let until = Instant::now() + RELEASE;
    loop {
        match pool.cluster().checks().inspect_across() {
            Err(rustix::io::Errno::HOSTDOWN) if Instant::now() < until => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Checks a pool, which may be in use during the check.
fn check(pool: &Pool) -> Result<Report, String> {
    let until = Instant::now() + RELEASE;
    loop {
        let before = forebay_store::process::is_unsettled(pool.store().control());
        let report = forebay_store::fsck::inspect(pool.store()).map_err(|e| words(pool, e))?;
        // The state of a dead process may look like damage: the keeper may not have released it
        // yet, or may have released it during the check. Then check again.
        if report.is_clean()
            || pool.keeper_pid().is_none()
            || !before && !forebay_store::process::is_unsettled(pool.store().control())
            || Instant::now() > until
        {
            return Ok(report);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn words(pool: &Pool, e: rustix::io::Errno) -> String {
    format!(
        "can't check the pool in {}: {}",
        pool.dir().display(),
        std::io::Error::from(e)
    )
}

/// Repairs a pool that no process uses. The pool's keeper doesn't run during the repair.
fn mend(name: &str, place: &Place) -> Result<Report, Fail> {
    let failed = |e: &dyn std::fmt::Display| Fail::new(code::FAILED, e);
    let before = place.state();
    let made_anew = forebay_client::mend_files(place).map_err(|e| failed(&e))?;
    let pool = Arc::new(Pool::open_dir(&place.dir).map_err(|e| failed(&e))?);
    check_unused(name, std::slice::from_ref(&pool))?;
    forebay_client::end_keeper(pool.dir())?;
    if place.node.is_some() {
        // The ended daemon was attached to the store: settling cleans up behind it, so that nothing
        // it has left is a finding.
        let _ = pool.settle();
    }
    let result = forebay_store::fsck::mend(pool.store()).map_err(|e| failed(&words(&pool, e)));
    let _ = pool.store().recovery().detach();
    let dir = absolute_dir(&pool);
    drop(pool);
    if before == PoolState::Running || !made_anew.is_empty() {
        crate::keeper::start(&dir)?;
    }
    let mut report = result?;
    report.findings.splice(0..0, made_anew);
    Ok(report)
}
