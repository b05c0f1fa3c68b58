//! A command's view of a pool, and the complaints about single paths.

use crate::fail::{Fail, code};
use crate::found;
use crate::output::{detail, say};
use crate::paths::in_pool;
use forebay_client::Pool;
use forebay_posix::{Errno, Fs};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::sync::Arc;

/// An open pool, and whether a path has failed.
pub struct Session {
    pub fs: Fs,
    pool: Arc<Pool>,
    failed: Cell<bool>,
}

impl Session {
    pub fn open(name: &str) -> Result<Session, Fail> {
        let pool = found::open(name, None)?;
        Ok(Session {
            fs: Fs::new(pool.clone()),
            pool,
            failed: Cell::new(false),
        })
    }

    /// The path inside the pool.
    pub fn path(&self, written: &OsStr) -> Vec<u8> {
        in_pool(written, &self.pool)
    }

    /// Names a path that failed, and the reason.
    pub fn complain(&self, path: &[u8], what: impl Display) {
        self.failed.set(true);
        say(format!("{}: {what}", String::from_utf8_lossy(path)));
    }

    /// As [`Session::complain`], with the reason of an errno: `can't be removed: not permitted`.
    pub fn complain_errno(&self, path: &[u8], what: &str, e: Errno) {
        self.complain(path, format_args!("{what}: {}", explain(e)));
    }

    /// With `-v`, names what was done: `removed /x`.
    pub fn tell(&self, done: &str, path: &[u8]) {
        detail(format_args!("{done} {}", String::from_utf8_lossy(path)));
    }

    /// The exit code. Detaches from the pool.
    pub fn end(self) -> u8 {
        let _ = self.fs.store().recovery().detach();
        match self.failed.get() {
            true => code::FAILED,
            false => code::OK,
        }
    }
}

fn explain(e: Errno) -> String {
    match e {
        Errno::XDEV => "it leads out of the pool, or is at the origin only".into(),
        e => forebay_staging::explain(e),
    }
}

/// `directory` and `name` as one path.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// A path without the slashes at its end; `/` stays.
pub fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(1, |at| at + 1);
    &path[..end.min(path.len())]
}

/// The last name of a path, without slashes; empty for `/`.
pub fn base_name(path: &[u8]) -> &[u8] {
    let path = trimmed(path);
    let at = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    &path[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_paths() {
        for (path, without, name) in [
            ("/", "/", ""),
            ("//", "/", ""),
            ("/a", "/a", "a"),
            ("/a/b//", "/a/b", "b"),
            ("a/", "a", "a"),
            ("", "", ""),
        ] {
            assert_eq!(trimmed(path.as_bytes()), without.as_bytes());
            assert_eq!(base_name(path.as_bytes()), name.as_bytes());
        }
    }
}
