//! Files that were looked up a moment ago, kept open.
//!
//! To open a file, the kernel asks for its name, then for its attributes, then to open what has that
//! number. If others replace the file in between, again and again as programs do with rename, nobody
//! could open it any more: what was found is gone. So it is kept for a moment, as it is for a
//! process that has it open.

use forebay_posix::Fs;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a file is kept, at least; twice as long at most.
const KEPT: Duration = Duration::from_millis(200);
/// How many are kept, at most.
const MOST: usize = 128;

/// By the time of the look-up.
#[derive(Default)]
pub struct Recent {
    files: Mutex<VecDeque<File>>,
    some: Condvar,
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

    /// Whether it is kept, and will be for a while.
    pub fn has(&self, node: u64) -> bool {
        let files = self.files();
        let young = files.iter().rev().take_while(|f| f.since.elapsed() < KEPT);
        young.into_iter().any(|f| f.node == node)
    }

    /// Keeps a file, by a description of it.
    pub fn keep(&self, fs: &Fs, node: u64, open: u32) {
        let file = File {
            node,
            open,
            since: Instant::now(),
        };
        let mut files = self.files();
        files.push_back(file);
        let oldest = match files.len() {
            1 => {
                self.some.notify_one();
                None
            }
            n if n > MOST => files.pop_front(),
            _ => None,
        };
        drop(files);
        close(fs, oldest);
    }

    /// Lets all go: their room is wanted, or counted.
    pub fn let_go(&self, fs: &Fs) {
        let all = std::mem::take(&mut *self.files());
        close(fs, all);
    }

    /// Starts the thread that lets them go in time, for as long as there is a face.
    ///
    /// # Errors
    /// If there can't be a thread.
    pub fn watch(this: &Arc<Recent>, fs: Arc<Fs>) -> io::Result<()> {
        let recent = Arc::downgrade(this);
        std::thread::Builder::new()
            .name("recent".into())
            .stack_size(256 << 10)
            .spawn(move || while look(&recent, &fs).is_some() {})?;
        Ok(())
    }
}

fn close(fs: &Fs, files: impl IntoIterator<Item = File>) {
    for file in files {
        let _ = fs.store().open_release(file.open);
    }
}

/// Once; None if the face is gone.
fn look(recent: &Weak<Recent>, fs: &Fs) -> Option<()> {
    let this = recent.upgrade()?;
    let mut files = this.files();
    if files.is_empty() {
        let long = Duration::from_secs(1);
        drop(this.some.wait_timeout(files, long));
        return Some(());
    }
    let old = files.partition_point(|f| f.since.elapsed() >= KEPT);
    let old: Vec<File> = files.drain(..old).collect();
    drop(files);
    close(fs, old);
    drop(this);
    std::thread::sleep(KEPT / 2);
    Some(())
}
