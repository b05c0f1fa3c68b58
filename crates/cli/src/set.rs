//! `forebay set`: declares the controls of a file or directory, and how a directory's content is
//! distributed over the nodes of a pool.
//!
//! The distribution is part of the directory's id, so every process knows it without a lookup. To
//! change it, an empty directory is replaced by one with another id. Controls are a property of any
//! file or directory.

use crate::args::{self, Set};
use crate::fail::{Fail, code};
use crate::output::{json, note, print_notice, write};
use crate::{found, paths};
use forebay_client::controls::{Declared, Persistence};
use forebay_client::impossible;
use forebay_posix::{Distribution, Errno, Fs, ObjectId, umask};
use serde_json::{Value, json as value};
use std::fmt::Write;

pub fn set(name: &str, a: &Set) -> Result<u8, Fail> {
    let pool = found::open(name, None)?;
    let path = paths::in_pool(&a.path, &pool);
    let fs = Fs::new(pool);
    if let Some(wanted) = wanted(a)? {
        set_distribution(&fs, a, &path, wanted)?;
    }
    if !a.controls.is_empty() {
        set_controls(&fs, a, &path)?;
    } else if a.distribution.is_none() {
        show(&fs, a, &path)?;
    }
    let _ = fs.store().recovery().detach();
    Ok(code::OK)
}

fn failed(a: &Set, what: &str, e: Errno) -> Fail {
    Fail::failed(format!("{}: can't {what}: {e}", a.path.to_string_lossy()))
}

fn id_of(fs: &Fs, a: &Set, path: &[u8]) -> Result<ObjectId, Fail> {
    let stat = fs.stat(path, true);
    stat.map(|s| ObjectId(s.ino))
        .map_err(|e| failed(a, "look at it", e))
}

/// Returns the distribution that the user wants; None if the options name none.
fn wanted(a: &Set) -> Result<Option<Distribution>, Fail> {
    match (a.distribution, a.chunk_size) {
        (Some(args::Distribution::Striped), size) => {
            Ok(Some(Distribution::Striped(size.unwrap_or_default())))
        }
        (_, Some(_)) => Err(Fail::usage(
            "--chunk-size belongs to --distribution striped",
        )),
        (Some(args::Distribution::Local), None) => Ok(Some(Distribution::Local)),
        (Some(args::Distribution::LocalAll), None) => Ok(Some(Distribution::LocalAll)),
        (None, None) => Ok(None),
    }
}

fn set_distribution(fs: &Fs, a: &Set, path: &[u8], wanted: Distribution) -> Result<(), Fail> {
    let shown = a.path.to_string_lossy();
    let one_node = fs.pool().config().member.is_none();
    if one_node {
        print_notice(
            "this pool has one node, so its directories need no distribution: all data lie here",
        );
    }
    let found = match fs.stat(path, true) {
        Err(Errno::NOENT) => None,
        other => Some(other.map_err(|e| failed(a, "look at it", e))?),
    };
    let mode = match found {
        None => 0o777 & !umask(),
        Some(stat) if stat.mode & libc::S_IFMT != libc::S_IFDIR => {
            return Err(failed(a, "set its distribution", Errno::NOTDIR));
        }
        Some(stat) if one_node || ObjectId(stat.ino).distribution() == wanted => return Ok(()),
        Some(stat) => {
            fs.rmdir(path).map_err(|e| match e {
                Errno::NOTEMPTY => Fail::failed(format!(
                    "{shown} isn't empty: the distribution is chosen before anything is made in it; make a new directory with: forebay set --distribution HOW DIR, and move the content"
                )),
                e => failed(a, "set its distribution", e),
            })?;
            stat.mode & 0o7777
        }
    };
    fs.mkdir_with(path, mode, wanted)
        .map_err(|e| failed(a, "make it", e))?;
    if found.is_none() {
        note(format!("{shown} was not there: it is made, as a directory"));
    }
    Ok(())
}

fn set_controls(fs: &Fs, a: &Set, path: &[u8]) -> Result<(), Fail> {
    let id = id_of(fs, a, path)?;
    let (mut declared, _) = fs.controls_of(id).map_err(|e| failed(a, "look at it", e))?;
    for wanted in &a.controls {
        let Some((control, value)) = wanted.split_once('=') else {
            return Err(Fail::usage(format!(
                "'{wanted}' isn't CONTROL=VALUE, such as mutability=append"
            )));
        };
        let done = match value {
            "" => declared.unsay(control),
            value => declared.declare(control, value),
        };
        done.map_err(Fail::usage)?;
    }
    let config = fs.pool().config();
    if let Some(why) = impossible(&declared.resolve(), &config.media, config.origin.is_some()) {
        return Err(Fail::usage(why));
    }
    // Parent directory and name of the declared path, for messages and rules.
    let known = path.iter().rposition(|&b| b == b'/').and_then(|cut| {
        let dir = fs.stat(&path[..cut.max(1)], true).ok()?;
        Some((ObjectId(dir.ino), &path[cut + 1..]))
    });
    fs.declare(id, declared, known).map_err(|refused| match refused.error {
        Errno::BUSY if refused.why.is_some() => Fail::failed(format!(
            "{}: can't declare {declared}: {}",
            a.path.to_string_lossy(),
            refused.why.unwrap_or_default()
        )),
        Errno::OPNOTSUPP if refused.why.is_some() => Fail::usage(format!(
            "{}: can't declare {declared}: {}",
            a.path.to_string_lossy(),
            refused.why.unwrap_or_default()
        )),
        // All other causes of OPNOTSUPP were excluded before.
        Errno::OPNOTSUPP if declared.persistence == Some(Persistence::Process) => Fail::usage(format!(
            "{}: persistence = \"process\" is fixed when a file is created: declare it for the directory before, or by a rule",
            a.path.to_string_lossy()
        )),
        Errno::BUSY if declared.persistence == Some(Persistence::Node) => Fail::failed(format!(
            "{}: persistence = \"node\" can't be declared now: a program has the file open and mapped, so its bytes can't be moved from memory to files",
            a.path.to_string_lossy()
        )),
        Errno::NOSPC if declared.persistence == Some(Persistence::Node) => Fail::failed(format!(
            "{}: persistence = \"node\" can't be declared: the pool's files media have no room for its bytes in memory",
            a.path.to_string_lossy()
        )),
        e => failed(a, "set its controls", e),
    })
}

fn show(fs: &Fs, a: &Set, path: &[u8]) -> Result<(), Fail> {
    let id = id_of(fs, a, path)?;
    let (declared, laminated): (Declared, bool) =
        fs.controls_of(id).map_err(|e| failed(a, "look at it", e))?;
    if a.json {
        let values = declared.values().into_iter();
        let controls: serde_json::Map<String, Value> = values
            .filter_map(|(control, value)| Some((control.to_string(), value?.into())))
            .collect();
        let distribution = id.distribution().to_string();
        return json(&value!({
            "distribution": distribution, "controls": controls, "laminated": laminated,
        }));
    }
    let mut text = format!("{}\n", id.distribution());
    for (control, value) in declared.values() {
        if let Some(value) = value {
            let _ = writeln!(text, "{control}={value}");
        }
    }
    if laminated {
        text.push_str("laminated\n");
    }
    write(text.as_bytes())
}
