//! The origin's directories that the kernel watches for this service, and its events.

use forebay_posix::ObjectId;
use forebay_staging::is_part;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of names of one directory that wait to be compared. Further ones are dropped: the
/// next look at the whole directory ([`crate::external_changes`]) finds their changes.
const NAMES: usize = 4096;
/// Size of the buffer for events. Bytes.
const BUFFER: usize = 64 << 10;

/// The directories that are watched.
pub struct Watches {
    /// None: the kernel provides no more.
    pub queue: Option<OwnedFd>,
    /// The pool's directories by the kernel's numbers of watches.
    dirs: Mutex<HashMap<i32, ObjectId>>,
    /// Their number: adding one waits for the origin, with the lock held.
    count: AtomicU64,
}

/// Names by directory that have to be compared.
pub type Pending = HashMap<ObjectId, HashSet<Vec<u8>>>;

impl Watches {
    pub fn new() -> Watches {
        Watches {
            queue: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            dirs: Mutex::default(),
            count: AtomicU64::new(0),
        }
    }

    fn dirs(&self) -> MutexGuard<'_, HashMap<i32, ObjectId>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a directory of the origin, which is `dir` in the pool. `path` leads to it from this
    /// process. Changes that the kernel doesn't report are found by comparing.
    pub fn watch(&self, path: &[u8], dir: ObjectId) {
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::MOVE
            | WatchFlags::ONLYDIR;
        // Held meanwhile: an event of it isn't looked up before it is known.
        let mut dirs = self.dirs();
        let watch = self
            .queue
            .as_ref()
            .map(|queue| add_watch(queue, path, flags));
        if let Some(Ok(number)) = watch {
            dirs.insert(number, dir);
            self.count.store(dirs.len() as u64, Relaxed);
        }
    }

    /// Number of directories that are watched. Doesn't wait.
    pub fn watched(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Adds the entries of all events that have come.
    pub fn take(&self, queue: &OwnedFd, pending: &mut Pending) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(queue, &mut buffer);
        let mut dirs = self.dirs();
        // EAGAIN: there are no more.
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::IGNORED) {
                dirs.remove(&event.wd());
                self.count.store(dirs.len() as u64, Relaxed);
                continue;
            }
            let (Some(dir), Some(name)) = (dirs.get(&event.wd()), event.file_name()) else {
                continue;
            };
            let names = pending.entry(*dir).or_default();
            if names.len() < NAMES && !is_part(name.to_bytes()) {
                names.insert(name.to_bytes().to_vec());
            }
        }
    }
}
