//! `forebay stage`: checks its sources and patterns, and prints the outcome.

use crate::args::{Direction, Pair, Stage};
use crate::fail::{Fail, code};
use crate::found;
use crate::output::{count, json, note, print_notice, quoted, write};
use crate::stage::{How, Way, check_bucket, room, summary, tell_troubles, transfer};
use forebay_backing::trimmed;
use forebay_media::format_size;
use forebay_staging::{Report, Room, Selection};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Returns the command line that repeats this staging, with `more` options added.
fn command(name: &str, a: &Stage, more: &str) -> String {
    let (word, pair) = match &a.direction {
        Direction::In(pair) => ("in", pair),
        Direction::Out(pair) => ("out", pair),
    };
    let mut text = format!("forebay stage {word}");
    let shown = |text: &OsStr| quoted(&text.to_string_lossy());
    for path in pair.src.iter().chain([&pair.dst]) {
        text += &format!(" {}", shown(path));
    }
    for (option, globs) in [("include", &pair.include), ("exclude", &pair.exclude)] {
        for glob in globs {
            text += &format!(" --{option} {}", quoted(glob));
        }
    }
    format!("{text}{more} --pool {}", quoted(name))
}

/// Returns the destination of each source: DST, or with several sources, the name of each in DST.
fn destinations(pair: &Pair) -> Result<Vec<(&OsStr, OsString)>, Fail> {
    if let [src] = &pair.src[..] {
        return Ok(vec![(src, pair.dst.clone())]);
    }
    let mut taken = HashSet::new();
    let one = |src: &'_ OsString| {
        let path = trimmed(src.as_bytes());
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let refuse = |what: &str| {
            let src = src.to_string_lossy();
            Err(Fail::usage(format!(
                "{src}: {what}; stage it by a command of its own"
            )))
        };
        if matches!(name, b"" | b"." | b"..") {
            return refuse("has no name by which it could go into DST beside other sources");
        }
        if !taken.insert(name.to_vec()) {
            return refuse(
                "another source has the same name, and both would go to one place in DST",
            );
        }
        let dst = trimmed(pair.dst.as_bytes());
        let slash: &[u8] = if dst.ends_with(b"/") { b"" } else { b"/" };
        Ok(OsString::from_vec([dst, slash, name].concat()))
    };
    let targets: Result<Vec<OsString>, Fail> = pair.src.iter().map(one).collect();
    Ok(pair
        .src
        .iter()
        .map(OsString::as_os_str)
        .zip(targets?)
        .collect())
}

pub fn stage(name: &str, a: &Stage) -> Result<u8, Fail> {
    let (pair, is_in) = match &a.direction {
        Direction::In(pair) => (pair, true),
        Direction::Out(pair) => (pair, false),
    };
    let selection = Selection::new(&pair.include, &pair.exclude).map_err(Fail::usage)?;
    let how = How {
        threads: pair.threads,
        checksum: pair.checksum,
        selection,
        dry_run: pair.dry_run,
    };
    let pairs = destinations(pair)?;
    let pool = found::open_reaching(name)?;
    let ways: Vec<Way<'_>> = pairs
        .iter()
        .map(|(src, dst)| {
            if is_in {
                Way::In(Path::new(src), dst)
            } else {
                Way::Out(src, Path::new(dst))
            }
        })
        .collect();
    for way in &ways {
        check_bucket(way.outside())?;
    }
    let mut report = Report::default();
    let mut is_begun = true;
    for way in &ways {
        let insist = command(name, a, " --force");
        let remedy = format!("stage less, make room, or insist with: {insist}");
        let room = room(&pool, way, remedy).filter(|_| !pair.force && !pair.dry_run);
        match transfer(&pool, way, &how, None, room, &|| false) {
            Ok(more) => report.absorb(more),
            Err(e) if ways.len() == 1 => return Err(Fail::new(code::STAGE_OUT, e)),
            Err(e) => {
                is_begun = false;
                print_notice(e);
            }
        }
    }
    if pair.dry_run {
        foretell(&report, pair.json)?;
        if let Some(room) = ways.first().and_then(|way| room(&pool, way, String::new())) {
            warn_of_room(&report, &room);
        }
    } else if pair.json {
        json(&report)?;
    }
    tell_troubles(&report);
    if !pair.json && !pair.dry_run {
        let words: Vec<String> = ways.iter().map(Way::words).collect();
        note(format!("staged {}: {}", words.join(", "), summary(&report)));
    }
    if report.complete() && is_begun {
        return Ok(code::OK);
    }
    let rest = command(name, a, "");
    let what = if pair.dry_run {
        "not all of it can be staged".to_owned()
    } else {
        format!("staging is incomplete; stage the rest with: {rest}")
    };
    Err(Fail::new(code::STAGE_OUT, what))
}

/// Prints what a staging would copy.
fn foretell(report: &Report, as_json: bool) -> Result<(), Fail> {
    if as_json {
        return json(report);
    }
    let mut text = String::new();
    for p in &report.planned {
        text += &format!("{:>10}  {} -> {}\n", format_size(p.bytes), p.from, p.to);
    }
    let bytes = report.planned.iter().map(|p| p.bytes).sum();
    text += &format!(
        "{:>10}  in {} would be copied; {} unchanged, {} excluded\n",
        format_size(bytes),
        count(report.planned.len() as u64, "file"),
        report.unchanged,
        report.excluded
    );
    write(text.as_bytes())
}

fn warn_of_room(report: &Report, room: &Room) {
    let bytes: u64 = report.planned.iter().map(|p| p.bytes).sum();
    if bytes > room.bytes {
        print_notice(format!(
            "warning: {} would be copied, but {} has {} free",
            format_size(bytes),
            room.whose,
            format_size(room.bytes)
        ));
    }
}
