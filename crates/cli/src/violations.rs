//! `forebay violations`: lists actions that were done or refused against the controls of files.

use crate::args::Show;
use crate::fail::{Fail, code};
use crate::output::{json, print_notice, write};
use crate::tables::table;
use forebay_client::{Pool, places};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub fn list(name: &str, a: &Show) -> Result<u8, Fail> {
    // Reads the lists without opening the pool: they outlive a pool that can't be used any more.
    let dirs: Vec<_> = places(name).into_iter().map(|place| place.dir).collect();
    let (mut all, mut full) = (Vec::new(), false);
    for dir in &dirs {
        let (some, ended) = Pool::violations(dir)?;
        all.extend(some);
        full |= ended;
    }
    all.sort_by_key(|v| v.time);
    if a.json {
        json(&serde_json::json!(all))?;
        return Ok(code::OK);
    }
    if all.is_empty() {
        print_notice("no violations");
        return Ok(code::OK);
    }
    let mut rows = vec![
        ["TIME", "PID", "WHAT", "PATH", "CONTROL", ""]
            .map(String::from)
            .to_vec(),
    ];
    for v in &all {
        let done = if v.refused { "refused" } else { "done" };
        rows.push(vec![
            ago(v.time),
            v.pid.to_string(),
            v.what.clone(),
            v.path.escape_debug().to_string(),
            v.control.clone(),
            done.to_owned(),
        ]);
    }
    write(table(&rows, &[0, 2, 3, 4, 5]).as_bytes())?;
    if full {
        print_notice("the list is full: there were more");
    }
    Ok(code::OK)
}

/// Formats how long ago a time was. `time` is in seconds since 1970.
fn ago(time: i64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs(time.max(0) as u64);
    let seconds = SystemTime::now()
        .duration_since(then)
        .map_or(0, |d| d.as_secs());
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}
