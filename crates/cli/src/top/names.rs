//! Paths of directories, and names of files that were opened before their tracepoints were on.
//!
//! A separate thread looks up paths: a lookup may send requests to other nodes, and so wait for a
//! silent one.

use super::files::{Tally, Unknown};
use crate::found::open_all;
use forebay_client::Pool;
use forebay_store::ObjectId;
use forebay_store::control_region::MAX_OPEN;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Names that were found: directory and name of each file, path of each directory.
#[derive(Default)]
pub struct Found {
    files: BTreeMap<u64, (u64, Vec<u8>)>,
    directories: BTreeMap<u64, Vec<u8>>,
}

impl Found {
    /// Looks for the names of these files and directories.
    pub fn look(pool: &str, unknown: &Unknown) -> Found {
        let pools = open_all(pool);
        let mut found = Found::default();
        let files: BTreeSet<u64> = unknown.files.iter().copied().collect();
        if !files.is_empty() {
            pools.iter().for_each(|pool| found.open_files(pool, &files));
        }
        let of_files = found.files.values().map(|(dir, _)| *dir);
        let directories: BTreeSet<u64> = of_files
            .chain(unknown.directories.iter().copied())
            .collect();
        if let Some(pool) = pools.first() {
            for dir in directories {
                if let Ok(path) = pool.cluster().namespace().path_of(ObjectId(dir)) {
                    found.directories.insert(dir, path);
                }
            }
        }
        found
    }

    fn open_files(&mut self, pool: &Arc<Pool>, wanted: &BTreeSet<u64>) {
        let store = pool.store();
        let end = store.control().header().free_open.end(MAX_OPEN);
        for o in (0..end).map(|i| store.objects().open_file(i)) {
            let id = o.id.load(Relaxed);
            let is_open = o.refs.load(Relaxed) > 0;
            if is_open && o.kind.load(Relaxed) != libc::S_IFDIR && wanted.contains(&id) {
                let mut name = Vec::new();
                store.objects().open_name(o, &mut name);
                self.files.insert(id, (o.parent.load(Relaxed), name));
            }
        }
    }

    /// Adds the names to a tally.
    pub fn tell(self, tally: &mut Tally) {
        for (file, (dir, name)) in self.files {
            tally.name(file, dir, &name);
        }
        for (dir, path) in self.directories {
            tally.path(dir, &path);
        }
    }
}
