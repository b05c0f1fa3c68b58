//! The working directory of a command that was started by a program in a pool, if it is in that
//! pool: for example, a script calls `forebay exec` again, or `forebay stage in ./x`.
//!
//! The command's process doesn't see the pool's paths. The program's preloaded library gives it the
//! directory's id in an environment variable ([`forebay_client::dead_end`]). Relative paths are
//! resolved against that directory, and programs start in it.

use crate::found::absolute_dir;
use crate::output::print_notice;
use forebay_client::{Pool, dead_end};
use forebay_posix::ObjectId;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Returns the object id of the working directory, and its pool's own directory; None outside of
/// pools.
fn handed() -> Option<(u64, PathBuf)> {
    let name = std::ffi::OsStr::from_bytes(dead_end::VARIABLE.to_bytes());
    let value = std::env::var_os(name)?;
    let (id, dir) = dead_end::read(value.as_bytes())?;
    let dir = PathBuf::from(std::ffi::OsStr::from_bytes(dir));
    dead_end::is_here().then_some((id, dir))
}

/// Whether `dir` is the directory of the pool, or of another of its nodes.
fn is_of(pool: &Pool, dir: &Path) -> bool {
    let ours = absolute_dir(pool);
    ours == dir || pool.config().member.is_some() && ours.parent() == dir.parent()
}

/// Whether the working directory is in any pool.
pub fn is_in_a_pool() -> bool {
    handed().is_some()
}

/// Whether the working directory is in this pool.
pub fn is_in(pool: &Pool) -> bool {
    handed().is_some_and(|(_, dir)| is_of(pool, &dir))
}

/// Returns the path inside this pool of the working directory, if that is in the pool.
pub fn inside(pool: &Pool) -> Option<Vec<u8>> {
    let (id, dir) = handed()?;
    if !is_of(pool, &dir) {
        return None;
    }
    pool.cluster().namespace().path_of(ObjectId(id)).ok()
}

/// Returns the path of the working directory as programs see it, if it is in a pool.
fn shown(pool: &Pool) -> Option<PathBuf> {
    let (id, dir) = handed()?;
    let join = |pool: &Pool| {
        let path = pool.cluster().namespace().path_of(ObjectId(id)).ok()?;
        let whole = [pool.config().mount.as_bytes(), &path].concat();
        Some(PathBuf::from(std::ffi::OsString::from_vec(whole)))
    };
    if is_of(pool, &dir) {
        return join(pool);
    }
    let other = Pool::open_dir(&dir).ok()?;
    let path = join(&other);
    let _ = other.store().recovery().detach();
    path
}

/// Resolves a path of the file system against the working directory, if that is in a pool:
/// `../../data` from `/fb/w` is `/data`. Otherwise returns the path as written.
pub fn resolve(path: &Path, pool: &Pool) -> PathBuf {
    if path.is_absolute() {
        return path.to_owned();
    }
    match shown(pool) {
        Some(dir) => joined(&dir, path),
        None => path.to_owned(),
    }
}

fn joined(dir: &Path, path: &Path) -> PathBuf {
    let mut whole = dir.to_owned();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = whole.pop(),
            Component::CurDir => {}
            other => whole.push(other),
        }
    }
    whole
}

/// Makes a program in `pool` start in the working directory of this process.
pub fn hand_on(pool: &Pool, command: &mut Command) {
    let name = std::ffi::OsStr::from_bytes(dead_end::VARIABLE.to_bytes());
    match handed() {
        None => {
            command.env_remove(name);
        }
        Some((id, dir)) if is_of(pool, &dir) => {
            let text = dead_end::describe(id, absolute_dir(pool).as_os_str().as_bytes());
            command.env(name, std::ffi::OsString::from_vec(text));
        }
        Some((_, dir)) => print_notice(format!(
            "warning: the working directory lies in another pool ({}), which programs in pool '{}' don't see: their relative paths fail; begin them in another directory",
            dir.display(),
            pool.config().name
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_a_directory_of_a_pool() {
        let at = |path: &str| joined(Path::new("/fb/w"), Path::new(path));
        assert_eq!(at("x/./y"), Path::new("/fb/w/x/y"));
        assert_eq!(at("../x"), Path::new("/fb/x"));
        assert_eq!(at("../../../data"), Path::new("/data"));
    }
}
