//! What the tests of this folder share.
#![allow(dead_code)]

use forebay_iov::{Meta, Options, Session, Workspace};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub fn meta(pairs: &[(&str, &str)]) -> Meta {
    let own = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    own.collect()
}

pub fn options(backend: &str, pairs: &[(&str, &str)]) -> Options {
    Options {
        meta: meta(pairs),
        backend: Some(backend.into()),
        ..Options::default()
    }
}

/// A directory that goes at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "forebay-verbs-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        Dir(dir)
    }

    pub fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A session in memory with a workspace, and the back ends to be tested.
pub fn in_memory(dir: &Dir) -> (Session, Workspace) {
    let session = Session::open("memory").unwrap();
    session.attach("scratch", "directory", dir.text()).unwrap();
    let workspace = Workspace::create(&session, "w", &Meta::new()).unwrap();
    (session, workspace)
}
