//! Checks before a run begins, so that hours of waiting, copying and work don't end at a wrong
//! name.
//!
//! A check refuses only what can't work. A path that may come into existence later passes: a
//! program in the pool, or a destination that the program creates.

use crate::args::Run;
use crate::exec;
use crate::fail::{Fail, code};
use crate::paths;
use crate::stage::{check_bucket, is_bucket};
use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Checks a run's program, sources and destinations.
///
/// # Errors
/// The first argument that can't work, and what to do.
pub fn check(
    a: &Run,
    ins: &[(PathBuf, OsString)],
    outs: &[(OsString, PathBuf)],
) -> Result<(), Fail> {
    for (src, _) in ins {
        check_bucket(src)?;
        if !is_bucket(src) {
            check_source(src)?;
        }
    }
    for (_, dst) in outs {
        check_bucket(dst)?;
        if !is_bucket(dst) {
            check_destination(dst)?;
        }
    }
    check_program(&a.command[0], &prefixes(a))
}

/// Returns the prefixes under which programs see the pool.
fn prefixes(a: &Run) -> Vec<String> {
    let origin = a.media.origin.origin.as_ref();
    let origin = origin.map(|given| given.split_once('=').map_or(&given[..], |(dir, _)| dir));
    let mount = a.media.mount.as_deref().unwrap_or("/fb");
    [Some(mount), origin]
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .collect()
}

fn check_source(src: &Path) -> Result<(), Fail> {
    match std::fs::metadata(src) {
        Ok(_) => Ok(()),
        Err(e) => {
            let why = forebay_backing::explain(
                rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
            );
            let text = format!(
                "stage-in is impossible: {}: {why}; nothing was run",
                src.display()
            );
            Err(Fail::new(code::STAGE_IN, text))
        }
    }
}

/// Checks that the destination, or its nearest existing ancestor, can be written.
fn check_destination(dst: &Path) -> Result<(), Fail> {
    let whole = std::path::absolute(dst).unwrap_or_else(|_| dst.to_owned());
    let there = whole
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok());
    let Some(there) = there else {
        return Ok(());
    };
    let why = if !there.is_dir() {
        // An existing file may be replaced: check its directory.
        if there == whole {
            return check_destination(whole.parent().unwrap_or(Path::new("/")));
        } else {
            "is no directory".to_owned()
        }
    } else if let Err(e) = access(there, Access::WRITE_OK | Access::EXEC_OK) {
        format!("can't be written ({})", forebay_backing::explain(e))
    } else {
        return Ok(());
    };
    Err(Fail::failed(format!(
        "stage-out to {} is impossible: {} {why}; choose another --out; nothing was run",
        dst.display(),
        there.display()
    )))
}

/// Checks that the program exists, unless it may be in the pool.
fn check_program(program: &OsStr, prefixes: &[String]) -> Result<(), Fail> {
    let may_be_inside = |path: &Path| {
        prefixes
            .iter()
            .any(|prefix| paths::is_under_prefix(path, prefix))
    };
    let missing = || {
        Err(exec::cannot_start(
            program,
            &Error::from_raw_os_error(libc::ENOENT),
        ))
    };
    if program.as_bytes().contains(&b'/') {
        let path = Path::new(program);
        return match std::fs::metadata(path) {
            _ if may_be_inside(path) => Ok(()),
            Err(e) => Err(exec::cannot_start(program, &e)),
            Ok(found) if found.is_dir() || access(path, Access::EXEC_OK).is_err() => Err(
                exec::cannot_start(program, &Error::from_raw_os_error(libc::EACCES)),
            ),
            Ok(_) => Ok(()),
        };
    }
    let Some(list) = std::env::var_os("PATH").filter(|_| !program.is_empty()) else {
        return Ok(());
    };
    let found = std::env::split_paths(&list).any(|dir| {
        let path = dir.join(program);
        may_be_inside(&path) || access(&path, Access::EXEC_OK).is_ok() && path.is_file()
    });
    if found { Ok(()) } else { missing() }
}
