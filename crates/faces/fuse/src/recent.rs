//! Files that were looked up a moment ago, kept open.
//!
//! To open a file, the kernel looks up its name, requests its attributes, then opens the node
//! number. If others replace the file in between, again and again as programs do with rename, the
//! open would never succeed: the object that was found is gone. So it is kept open for a moment.

use forebay_posix::Fs;
use forebay_runtime::threads::watch;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a file is kept at least; twice as long at most.
const MIN_OPEN_TIME: Duration = Duration::from_millis(200);
/// Usual limit on kept files: at twice as many, the oldest are closed.
const MAX_OPEN_FILES: usize = 128;
const WAKES: usize = 2 * MAX_OPEN_FILES;
/// Hard limit on kept files: then the thread that closes them is delayed, and further files aren't
/// kept.
const FULL: usize = 8 * MAX_OPEN_FILES;

/// The files, by the time of their look-up.
#[derive(Default)]
pub struct Recent {
    files: Mutex<VecDeque<File>>,
    /// Signals that there is a file, or that there are too many.
    some: Condvar,
    /// Held while files are closed.
    closing: Mutex<()>,
}

struct File {
    node: u64,
    open: u32,
    since: Instant,
}

impl Recent {
    fn files(&self) -> MutexGuard<'_, VecDeque<File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file is kept, and will be for a while.
    pub fn has(&self, node: u64) -> bool {
        let files = self.files();
        let young = files
            .iter()
            .rev()
            .take_while(|f| f.since.elapsed() < MIN_OPEN_TIME);
        young.into_iter().any(|f| f.node == node)
    }

    /// Keeps a file by a description of it. Another thread closes it, since that may wait for users
    /// of the file.
    pub fn keep(&self, fs: &Fs, node: u64, open: u32) {
        let file = File {
            node,
            open,
            since: Instant::now(),
        };
        let mut files = self.files();
        if files.len() >= FULL {
            drop(files);
            let _ = fs.store().objects().open_release(open);
            return;
        }
        files.push_back(file);
        if matches!(files.len(), 1 | WAKES) {
            self.some.notify_one();
        }
    }

    /// Whether no file is kept.
    pub fn is_empty(&self) -> bool {
        self.files().is_empty()
    }

    /// Closes all kept files: their room is wanted, or counted. Waits for their users.
    pub fn let_go(&self, fs: &Fs) {
        self.close(fs, |files| files.len());
    }

    /// Closes as many of the oldest as `how_many` returns.
    fn close(&self, fs: &Fs, how_many: impl FnOnce(&VecDeque<File>) -> usize) {
        let one = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = self.files();
        let n = how_many(&files);
        let old: Vec<File> = files.drain(..n).collect();
        drop(files);
        for file in old {
            let _ = fs.store().objects().open_release(file.open);
        }
        drop(one);
    }

    /// Starts the thread that closes kept files in time, while there is a face.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn watch(this: &Arc<Recent>, fs: Arc<Fs>) -> io::Result<()> {
        let recent = Arc::downgrade(this);
        watch("recent", move || look(&recent, &fs))
    }
}

/// One round; None if the face has ended.
fn look(recent: &Weak<Recent>, fs: &Fs) -> Option<()> {
    let this = recent.upgrade()?;
    this.close(fs, |files| {
        let old = files.partition_point(|f| f.since.elapsed() >= MIN_OPEN_TIME);
        old.max(files.len().saturating_sub(MAX_OPEN_FILES))
    });
    let files = this.files();
    let turn = match files.len() {
        0 => Duration::from_secs(1),
        n if n >= WAKES => return Some(()),
        _ => MIN_OPEN_TIME / 2,
    };
    drop(this.some.wait_timeout(files, turn));
    Some(())
}
