//! Files of which the kernel has pages in its cache, because they are mapped or executed.
//!
//! Reads and writes pass that cache by. A mapping can't: its pages are in it. So while there are
//! any, a thread looks whether others have changed the file, and then tells the kernel, which asks for
//! the pages again when they are touched. A mapping sees what others write within [`PERIOD`],
//! that of a file of another node within [`PERIOD_AWAY`].

use crate::serve::Server;
use forebay_posix::{Fs, ObjectId};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(5);
const PERIOD_AWAY: Duration = Duration::from_millis(100);
/// A time of change younger than this may stay the same with the next change.
const TICK: i64 = 20_000_000;

/// The handles through which pages were read, or written back.
#[derive(Default)]
pub struct Cached {
    files: Mutex<HashMap<u32, Seen>>,
    /// There is something to look at.
    some: Condvar,
}

/// The file as it was when it was last looked at.
struct Seen {
    node: u64,
    changed: Option<(i64, u64)>,
    at: Instant,
}

impl Cached {
    fn files(&self) -> MutexGuard<'_, HashMap<u32, Seen>> {
        self.files.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The kernel asks for pages by this handle. Before they are read: what changes from now on is seen.
    pub fn note(&self, fs: &Fs, open: u32, node: u64) {
        let mut files = self.files();
        if files.contains_key(&open) {
            return;
        }
        let seen = Seen {
            node,
            changed: changed(fs, open),
            at: Instant::now(),
        };
        files.insert(open, seen);
        self.some.notify_one();
    }

    /// The handle is gone, and no mapping has it any more.
    pub fn forget(&self, open: u32) {
        let mut files = self.files();
        if !files.is_empty() {
            files.remove(&open);
        }
    }

    /// Starts to look, for as long as there is a server.
    ///
    /// # Errors
    /// If there can't be a thread.
    pub fn watch(&self, server: &Arc<Server>) -> io::Result<()> {
        let server = Arc::downgrade(server);
        std::thread::Builder::new()
            .name("pages".into())
            .stack_size(256 << 10)
            .spawn(move || while look(&server).is_some() {})?;
        Ok(())
    }
}

fn changed(fs: &Fs, open: u32) -> Option<(i64, u64)> {
    fs.stat_open(open)
        .ok()
        .map(|s| (s.mtime.max(s.ctime), s.size))
}

/// Once; None if the server is gone.
fn look(server: &Weak<Server>) -> Option<()> {
    let server = server.upgrade()?;
    let cached = &server.face.cached;
    let fs = server.face.fs();
    // By node: it may be mapped by many handles, and each word to the kernel has it drop what it is being told of
    // the file at that time.
    let mut old = HashSet::new();
    let mut found = HashMap::new();
    {
        let mut files = cached.files();
        if files.is_empty() {
            let long = Duration::from_secs(1);
            drop(cached.some.wait_timeout(files, long));
            return Some(());
        }
        for (&open, seen) in files.iter_mut() {
            let away = fs.store().is_object_away(ObjectId(seen.node));
            if away && seen.at.elapsed() < PERIOD_AWAY {
                continue;
            }
            let now = *found.entry(seen.node).or_insert_with(|| changed(fs, open));
            let fresh = |(time, _): (i64, u64)| (fs.now() - time).abs() < TICK;
            if now != seen.changed || now.is_some_and(fresh) {
                old.insert(seen.node);
            }
            (seen.changed, seen.at) = (now, Instant::now());
        }
    }
    // Not under the lock: the kernel may ask for pages meanwhile, and wait for them here.
    for node in old {
        server.forget_pages(node);
    }
    drop(server);
    std::thread::sleep(PERIOD);
    Some(())
}
