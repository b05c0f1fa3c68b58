//! `forebay violations`: lists actions that were done or refused against the controls of files.

use crate::args::Show;
use crate::fail::{Fail, code};
use crate::output::{json, print_notice, write};
use crate::tables::table;
use forebay_client::{Pool, Violation, places};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The violations that nodes have recorded.
#[derive(Default)]
pub struct Recorded {
    pub all: Vec<Violation>,
    /// Whether a node's list is full: then there may have been more violations.
    pub full: bool,
    /// Why a node's list can't be read, for each such list.
    pub unread: Vec<Fail>,
}

/// Reads the lists of the nodes with these directories. Doesn't open the pool: the lists outlive a
/// pool that can't be used any more.
pub fn read(dirs: impl IntoIterator<Item = PathBuf>) -> Recorded {
    let mut found = Recorded::default();
    for dir in dirs {
        match Pool::violations(&dir) {
            Ok((some, full)) => {
                found.all.extend(some);
                found.full |= full;
            }
            Err(e) => found.unread.push(e.into()),
        }
    }
    found
}

/// Prints the violations. If lists can't be read, prints those of the others, and fails.
pub fn list(name: &str, a: &Show) -> Result<u8, Fail> {
    let mut found = read(places(name).into_iter().map(|place| place.dir));
    let failed = found.unread.pop();
    found.unread.iter().for_each(Fail::print);
    show(found, a, failed.is_none())?;
    failed.map_or(Ok(code::OK), Err)
}

/// Prints the violations. `is_whole`: all lists were read.
fn show(found: Recorded, a: &Show, is_whole: bool) -> Result<(), Fail> {
    let Recorded { mut all, full, .. } = found;
    all.sort_by_key(|v| v.time);
    if a.json {
        return json(&serde_json::json!(all));
    }
    if all.is_empty() {
        if is_whole {
            print_notice("no violations");
        }
        return Ok(());
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
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_cannot_be_read_does_not_hide_the_others() {
        let base = std::env::temp_dir().join(format!("forebay-violations-{}", std::process::id()));
        let dirs = ["node-0", "node-1"].map(|node| base.join(node));
        for dir in &dirs {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::create_dir(dirs[0].join("violations")).unwrap();
        let violation = Violation {
            time: 1,
            pid: 2,
            path: "/f".into(),
            control: "mutability = \"append\"".into(),
            what: "write at 0 of 10 bytes".into(),
            refused: true,
        };
        let line = serde_json::to_string(&violation).unwrap() + "\n";
        std::fs::write(dirs[1].join("violations"), line).unwrap();
        let found = read(dirs);
        assert_eq!(found.all, [violation]);
        let [why] = &found.unread[..] else { panic!() };
        assert!(why.message.contains("node-0"), "{}", why.message);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
