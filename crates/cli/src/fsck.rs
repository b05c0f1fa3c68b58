//! `forebay fsck`: checks a pool, and repairs it.

use crate::args::Fsck;
use crate::fail::Fail;
use crate::found::{absolute_dir, named, users};
use crate::output::{count, json, say, seconds, write};
use forebay_client::{Place, Pool, PoolError, PoolState, places};
use forebay_media::format_size;
use forebay_store::Report;
use serde_json::json as value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exit codes, as those of fsck(8).
mod code {
    pub const CLEAN: u8 = 0;
    pub const REPAIRED: u8 = 1;
    pub const DAMAGED: u8 = 4;
    pub const FAILED: u8 = 8;
}

/// How long the keeper may take to release what a dead process held.
const RELEASE: Duration = Duration::from_secs(3);

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
            "findings": findings, "more": report.more, "left_out": report.left_out, "lost_pages": report.lost_pages,
            "objects": report.objects, "entries": report.entries, "seconds": took,
        }))?;
        return Ok(status);
    }
    report.findings.sort_by_key(|f| f.repaired);
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
    write(text.as_bytes())?;
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
        code::REPAIRED => say(format!("{what}; {} repaired", count(repaired, "finding"))),
        _ if a.repair => say(format!(
            "{what}; {} repaired, {left} not: stage out what you need and remove the pool",
            count(repaired, "finding")
        )),
        _ if left > 0 => say(format!(
            "{what}; {}; stage out what is precious, then: forebay fsck --repair --pool {name}",
            count(left, "finding")
        )),
        _ => say(format!("{what}; not everything could be looked at")),
    }
    Ok(status)
}

/// Checks a pool, which may be in use meanwhile.
fn check(pool: &Pool) -> Result<Report, String> {
    let until = Instant::now() + RELEASE;
    loop {
        let before = pool.store().recovery().is_unsettled();
        let report = pool
            .store()
            .checker()
            .inspect()
            .map_err(|e| words(pool, e))?;
        // The keeper may not have released yet what a process held that has just died, or may have
        // done so during the check.
        if report.is_clean()
            || pool.keeper_pid().is_none()
            || !before && !pool.store().recovery().is_unsettled()
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

/// Repairs a pool that no process uses. Its keeper doesn't run meanwhile.
fn mend(name: &str, place: &Place) -> Result<Report, Fail> {
    let failed = |e: &dyn std::fmt::Display| Fail::new(code::FAILED, e);
    let before = place.state();
    let made_anew = forebay_client::mend_files(place).map_err(|e| failed(&e))?;
    let pool = Arc::new(Pool::open_dir(&place.dir).map_err(|e| failed(&e))?);
    let pids = users(std::slice::from_ref(&pool));
    if !pids.is_empty() {
        return Err(failed(&format!(
            "the pool '{name}' is in use by {}; a repair has to be alone: end them first",
            named(&pids)
        )));
    }
    forebay_client::end_keeper(pool.dir())?;
    if place.node.is_some() {
        // A node's daemon uses its store; having ended it just now is no finding.
        let _ = pool.settle();
    }
    let result = pool
        .store()
        .checker()
        .mend()
        .map_err(|e| failed(&words(&pool, e)));
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
