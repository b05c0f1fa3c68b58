//! Keeps files that were just looked up open for a moment.
//!
//! To open a file, the kernel looks up its name, requests its attributes, then opens the node
//! number. If another program replaces the file in between by rename, the object that was found is
//! removed and the open fails. If such replacements go on, the open would never succeed. So a file
//! that was found stays open for a moment.

use forebay_posix::Fs;
use forebay_runtime::threads::{lock, watch};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

/// Minimum time for which a file is kept open; the maximum is twice as long.
const MIN_OPEN_TIME: Duration = Duration::from_millis(200);
/// Number of kept files that remain when the oldest are closed, because there are twice as many.
const MAX_OPEN_FILES: usize = 128;
const WAKES: usize = 2 * MAX_OPEN_FILES;
/// Maximum number of kept files. It is reached only if the thread that closes them is delayed.
/// Further files aren't kept.
const FULL: usize = 8 * MAX_OPEN_FILES;

/// The kept files, in the order of their look-ups.
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
    /// Whether the file is kept, and will be for at least a part of [`MIN_OPEN_TIME`].
    pub fn has(&self, node: u64) -> bool {
        let files = lock(&self.files);
        let young = files
            .iter()
            .rev()
            .take_while(|f| f.since.elapsed() < MIN_OPEN_TIME);
        young.into_iter().any(|f| f.node == node)
    }

    /// Keeps a file open through its description `open`. Another thread closes the description,
    /// since closing may wait for users of the file.
    pub fn keep(&self, fs: &Fs, node: u64, open: u32) {
        let file = File {
            node,
            open,
            since: Instant::now(),
        };
        let mut files = lock(&self.files);
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
        lock(&self.files).is_empty()
    }

    /// Closes all kept files, so that their space is freed or can be counted. Waits for their
    /// users.
    pub fn let_go(&self, fs: &Fs) {
        self.close(fs, |files| files.len());
    }

    /// Closes the oldest files; `how_many` returns their number.
    fn close(&self, fs: &Fs, how_many: impl FnOnce(&VecDeque<File>) -> usize) {
        let one = lock(&self.closing);
        let mut files = lock(&self.files);
        let n = how_many(&files);
        let old: Vec<File> = files.drain(..n).collect();
        drop(files);
        for file in old {
            let _ = fs.store().objects().open_release(file.open);
        }
        drop(one);
    }

    /// Starts the thread that closes kept files in time. The thread runs as long as the face
    /// exists.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn watch(this: &Arc<Recent>, fs: Arc<Fs>) -> io::Result<()> {
        let recent = Arc::downgrade(this);
        watch("recent", move || look(&recent, &fs))
    }
}

/// Closes the kept files that are due, then waits. Returns None if the face has ended.
fn look(recent: &Weak<Recent>, fs: &Fs) -> Option<()> {
    let this = recent.upgrade()?;
    this.close(fs, |files| {
        let old = files.partition_point(|f| f.since.elapsed() >= MIN_OPEN_TIME);
        old.max(files.len().saturating_sub(MAX_OPEN_FILES))
    });
    let files = lock(&this.files);
    let turn = match files.len() {
        0 => Duration::from_secs(1),
        n if n >= WAKES => return Some(()),
        _ => MIN_OPEN_TIME / 2,
    };
    drop(this.some.wait_timeout(files, turn));
    Some(())
}
