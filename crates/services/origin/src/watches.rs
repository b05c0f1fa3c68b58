//! The directories of the origin that the kernel watches for the service, and the kernel's events.

use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use forebay_staging::is_part;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Maximum number of names of one directory that wait to be compared. Further names are dropped:
/// the next check of the whole directory ([`crate::external_changes`]) finds their changes.
const NAMES: usize = 4096;
/// Size of the buffer for events. Bytes.
const BUFFER: usize = 64 << 10;

/// The watched directories of the origin.
pub struct Watches {
    /// The inotify(7) queue. None: the kernel gives this process no more queues.
    pub queue: Option<OwnedFd>,
    /// The pool's directories by the kernel's watch descriptors.
    dirs: Mutex<HashMap<i32, ObjectId>>,
    /// Number of entries of `dirs`, to be read without the lock: a watch that waits for the origin
    /// holds the lock.
    count: AtomicU64,
}

/// Names that have to be compared, by directory.
pub type Pending = HashMap<ObjectId, HashSet<Vec<u8>>>;

impl Watches {
    pub fn new() -> Watches {
        Watches {
            queue: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            dirs: Mutex::default(),
            count: AtomicU64::new(0),
        }
    }

    /// Makes the kernel watch a directory of the origin. `dir`: the directory in the pool; `path`:
    /// the directory's path for this process. If the kernel refuses, checks of the whole directory
    /// find its changes.
    pub fn watch(&self, path: &[u8], dir: ObjectId) {
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::MOVE
            | WatchFlags::ONLYDIR;
        // Locked until the watch is in the table, so that [`Watches::take`] finds the watch of each
        // event.
        let mut dirs = lock(&self.dirs);
        let watch = self
            .queue
            .as_ref()
            .map(|queue| add_watch(queue, path, flags));
        if let Some(Ok(number)) = watch {
            dirs.insert(number, dir);
            self.count.store(dirs.len() as u64, Relaxed);
        }
    }

    /// Number of watched directories. Doesn't block.
    pub fn watched(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Reads all events that have arrived, and adds the names of their entries to `pending`.
    pub fn take(&self, queue: &OwnedFd, pending: &mut Pending) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(queue, &mut buffer);
        let mut dirs = lock(&self.dirs);
        // EAGAIN ends the loop: no further event has arrived.
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
