//! `forebay set`: how a directory's content is distributed over the nodes of a pool.
//!
//! It is a property of the directory's identity, so that everybody knows it without looking it up.
//! An empty directory is replaced by one of the other kind.

use crate::args::{self, Set};
use crate::fail::{Fail, code};
use crate::output::{say, write};
use crate::{exec, paths};
use forebay_posix::{Distribution, Errno, Fs, ObjectId};

pub fn set(name: &str, a: &Set) -> Result<u8, Fail> {
    let pool = exec::open(name, None)?;
    let path = paths::in_pool(&a.path, &pool.config().mount);
    let one_node = pool.config().member.is_none();
    let fs = Fs::new(pool);
    let shown = a.path.to_string_lossy();
    let failed = |what: &str, e: Errno| Fail::failed(format!("{shown}: can't {what}: {e}"));
    let found = match fs.stat(&path, true) {
        Err(Errno::NOENT) => None,
        other => Some(other.map_err(|e| failed("look at it", e))?),
    };
    let Some(wanted) = a.distribution else {
        if a.chunk_size.is_some() {
            return Err(Fail::usage(
                "--chunk-size belongs to --distribution striped",
            ));
        }
        let stat = found.ok_or_else(|| failed("look at it", Errno::NOENT))?;
        write(format!("{}\n", ObjectId(stat.ino).distribution()).as_bytes())?;
        return Ok(code::OK);
    };
    let wanted = match (wanted, a.chunk_size) {
        (args::Distribution::Striped, size) => Distribution::Striped(size.unwrap_or_default()),
        (_, Some(_)) => {
            return Err(Fail::usage(
                "--chunk-size belongs to --distribution striped",
            ));
        }
        (args::Distribution::Local, None) => Distribution::Local,
        (args::Distribution::LocalAll, None) => Distribution::LocalAll,
    };
    if one_node {
        say("this pool has one node: everything is local in it");
    }
    let mode = match found {
        None => 0o755,
        Some(stat) if stat.mode & libc::S_IFMT != libc::S_IFDIR => {
            return Err(failed("set its distribution", Errno::NOTDIR));
        }
        Some(stat) if one_node || ObjectId(stat.ino).distribution() == wanted => {
            return Ok(code::OK);
        }
        Some(stat) => {
            fs.rmdir(&path).map_err(|e| match e {
                Errno::NOTEMPTY => Fail::failed(format!(
                    "{shown} isn't empty: the distribution is chosen before anything is made in it; make a new directory with: forebay set --distribution HOW DIR, and move the content"
                )),
                e => failed("set its distribution", e),
            })?;
            stat.mode & 0o7777
        }
    };
    fs.mkdir_with(&path, mode, wanted)
        .map_err(|e| failed("make it", e))?;
    let _ = fs.store().detach();
    Ok(code::OK)
}
