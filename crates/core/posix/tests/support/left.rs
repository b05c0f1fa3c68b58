//! Opens a pool from a copy of its medium's directory, and reads everything that is in it.
#![allow(
    dead_code,
    reason = "each test that includes this file uses a part of it"
)]

use super::support::{O_RDONLY, TestPool, read_all};
use forebay_client::Pool;
use forebay_posix::Fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// All paths, with the contents of files.
pub fn tree(fs: &Fs) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        let path = if dir.is_empty() { "/" } else { &dir };
        let f = fs
            .open(path.as_bytes(), O_RDONLY | libc::O_DIRECTORY, 0)
            .unwrap();
        for e in f.entries().unwrap() {
            let name = format!("{dir}/{}", String::from_utf8(e.name).unwrap());
            if e.kind == libc::S_IFDIR {
                found.insert(name.clone(), None);
                dirs.push(name);
            } else if e.kind != libc::S_IFREG {
                found.insert(name, None);
            } else {
                let f = fs.open(name.as_bytes(), O_RDONLY, 0).unwrap();
                found.insert(name, Some(read_all(&f)));
            }
        }
    }
    found
}

/// A pool opened from a copy of its medium's directory.
pub struct Left {
    fs: Option<Fs>,
    pub name: String,
    pub dir: PathBuf,
}

impl Left {
    /// Opens the pool from `dir`, a torn copy. The original is the pool `of`, with its medium in
    /// `from`; the opened pool is called `name`.
    pub fn open(dir: PathBuf, of: &str, from: &Path, name: &str) -> Left {
        let json = dir.join("pool.json");
        let text = std::fs::read_to_string(&json).unwrap();
        let base = dir.parent().unwrap().to_str().unwrap();
        let text = text.replace(from.to_str().unwrap(), base);
        let text = text.replace(&format!("\"{of}\""), &format!("\"{name}\""));
        std::fs::write(&json, text).unwrap();
        let (pool, _) = forebay_client::reopen(&dir).unwrap();
        let fs = Some(Fs::new(Arc::new(pool)));
        Left {
            fs,
            name: name.into(),
            dir,
        }
    }

    pub fn fs(&self) -> &Fs {
        self.fs.as_ref().unwrap()
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.fs = None;
        let _ = Pool::destroy(&self.name);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The pool's directory in its first medium.
pub fn medium_dir(pool: &Pool) -> PathBuf {
    pool.config().medium_dir(pool.dir(), 0)
}

/// Checks that the state that a pool would load after a loss of power now is the present state.
pub fn records_and_journal_agree(pool: &TestPool, name: &str) {
    pool.store().durability().sync_all().unwrap();
    let dir = medium_dir(pool.pool());
    let base = dir.parent().unwrap();
    let copy = format!("{name}c");
    let file = dir.file_name().unwrap().to_str().unwrap();
    let to = base.join(file.replace(name, &copy));
    let copied = std::process::Command::new("cp")
        .args(["-r", "--sparse=always"])
        .args([&dir, &to])
        .status();
    assert!(copied.unwrap().success());
    let left = Left::open(to, name, base, &copy);
    let findings = forebay_store::fsck::check(left.fs().store()).unwrap();
    assert!(findings.is_empty(), "loaded: {findings:#?}");
    assert!(tree(left.fs()) == tree(pool), "loaded, it isn't the same");
}
