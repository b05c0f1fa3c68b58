//! Files of which the kernel has pages in its cache, because they are mapped or executed.
//!
//! Reads and writes bypass that cache; a mapping's pages are in it. So while there are any, a
//! thread checks whether others have changed the file, and tells the kernel, which asks for the
//! pages again when they are touched. A mapping sees writes of others within [`PERIOD`], those to a
//! file of another node within [`PERIOD_AWAY`].
//!
//! The kernel throws attributes away that are on their way while it is told so, and then takes no
//! notice of the new size in them: a page behind the old one would be SIGBUS, and SEEK_END lead
//! there. Therefore:
//! - What has grown is told by a notice before it is answered ([`Cached::tell`]); notices aren't
//!   thrown away.
//! - There is none for what has become shorter. So the kernel isn't told to forget pages while a
//!   file's size changes and somebody asks for it ([`SETTLES`]). It forgets them by itself with
//!   each answer that has another size.

use crate::fetched::Fetched;
use crate::notices::Notices;
use forebay_posix::controls::ASIDE;
use forebay_posix::{Errno, Fs, ObjectId};
use forebay_store::process::is_answering;
use forebay_store::threads::watch;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(5);
const PERIOD_AWAY: Duration = Duration::from_millis(100);
/// A time of change younger than this may stay the same with the next change.
const TICK: i64 = 20_000_000;
/// After this time the kernel has taken in what it was answered; a program may wait so long for a
/// core.
const SETTLES: Duration = Duration::from_millis(100);

/// The files, by node.
pub struct Cached {
    notices: Arc<Notices>,
    /// What the kernel's pages were when it got them.
    pub fetched: Fetched,
    files: Mutex<HashMap<u64, File>>,
    /// There is something to look at.
    some: Condvar,
}

/// A file as it was when it was last looked at.
struct File {
    /// The handles through which pages were read, or written back.
    handles: Vec<u32>,
    changed: Option<(i64, u64)>,
    at: Instant,
    /// The kernel has pages of before.
    is_old: bool,
    /// Whether by a look or by an answer.
    size: u64,
    resized: Instant,
    /// When the kernel was last answered with its size.
    told: Instant,
    /// What the kernel takes for the size.
    kernels: u64,
    /// Held by who tells it that the file has grown.
    telling: Arc<Mutex<()>>,
}

impl File {
    fn add(&mut self, open: u32) {
        if !self.handles.contains(&open) {
            self.handles.push(open);
        }
    }

    fn saw(&mut self, size: u64) {
        if self.size != size {
            (self.size, self.resized) = (size, Instant::now());
        }
    }

    /// Whether no answer can be on its way that has a size that the kernel doesn't know yet.
    fn is_settled(&self) -> bool {
        self.resized.elapsed() >= SETTLES || self.told.elapsed() >= SETTLES
    }
}

impl Cached {
    /// No files yet.
    pub fn new(notices: Arc<Notices>) -> Cached {
        Cached {
            notices,
            fetched: Fetched::default(),
            files: Mutex::default(),
            some: Condvar::new(),
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, File>> {
        self.files.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The kernel asks for pages by this handle. Before they are read: what changes from now on is
    /// seen.
    pub fn note(&self, fs: &Fs, open: u32, node: u64) {
        if let Some(file) = self.files().get_mut(&node) {
            return file.add(open);
        }
        // Not under the lock: it may be another node that is asked.
        let changed = changed(fs, open);
        let now = Instant::now();
        let size = changed.map_or(0, |(_, size)| size);
        let new = || File {
            handles: Vec::new(),
            changed,
            at: now,
            is_old: false,
            size,
            // It was looked up to be opened.
            resized: now,
            told: now,
            kernels: size,
            telling: Arc::default(),
        };
        self.files().entry(node).or_insert_with(new).add(open);
        self.some.notify_one();
    }

    /// The handle is gone, and no mapping has it any more. The file stays for a while: who asks for
    /// it now may be answered while the kernel is still being told of its pages.
    pub fn forget(&self, open: u32, node: u64) {
        if let Some(file) = self.files().get_mut(&node) {
            file.handles.retain(|&h| h != open);
            file.at = Instant::now();
        }
    }

    /// The kernel is about to be answered with this size of a file, whose last byte `last` reads.
    ///
    /// # Errors
    /// [`ASIDE`]: the kernel has to be told first, which waits for programs that use the pages, and
    /// the calling thread may not wait for them.
    pub fn tell(
        &self,
        node: u64,
        size: u64,
        last: impl FnOnce() -> Option<u8>,
    ) -> Result<(), Errno> {
        let Some(telling) = self.answers(node, size) else {
            return Ok(());
        };
        if is_answering() {
            return Err(ASIDE);
        }
        let one = telling.lock().unwrap_or_else(|e| e.into_inner());
        if self.answers(node, size).is_some() {
            // As with the answer, if it isn't thrown away. And no answer of before is left, nor
            // what was stored to the last byte through a mapping.
            self.notices.forget_pages(node);
            if let Some(last) = last() {
                self.notices.store(node, size - 1, &[last]);
                self.fetched.told(node, size - 1, last);
                self.set(node, size);
            }
        }
        drop(one);
        Ok(())
    }

    /// Somebody, if the kernel takes the file for shorter.
    fn answers(&self, node: u64, size: u64) -> Option<Arc<Mutex<()>>> {
        let mut files = self.files();
        let file = files.get_mut(&node)?;
        file.saw(size);
        file.told = Instant::now();
        if size > file.kernels {
            return Some(file.telling.clone());
        }
        let is_cut = std::mem::replace(&mut file.kernels, size) > size;
        drop(files);
        if is_cut {
            self.fetched.cut(node, size);
        }
        None
    }

    /// The kernel has given the file this size, or takes it from an answer that it doesn't throw
    /// away.
    pub fn set(&self, node: u64, size: u64) {
        if let Some(file) = self.files().get_mut(&node) {
            file.saw(size);
            file.told = Instant::now();
            file.kernels = size;
        }
        self.fetched.cut(node, size);
    }

    /// The kernel has written a file up to there, by its reckoning.
    pub fn reaches(&self, node: u64, end: u64) {
        if let Some(file) = self.files().get_mut(&node) {
            file.kernels = file.kernels.max(end);
        }
    }

    /// The kernel gets a page for its cache that ends there: it concludes that the file does.
    pub fn ends(&self, node: u64, at: u64) {
        if let Some(file) = self.files().get_mut(&node) {
            file.kernels = file.kernels.min(at);
        }
    }

    /// The kernel has appended to a file: behind what it takes for its end.
    pub fn appended(&self, node: u64, n: u64) {
        if let Some(file) = self.files().get_mut(&node) {
            file.kernels += n;
        }
    }

    /// A file was looked at by a handle: whether the kernel shall forget its pages now.
    fn is_to_be_told(&self, fs: &Fs, node: u64, open: u32, now: Option<(i64, u64)>) -> bool {
        let mut files = self.files();
        let Some(file) = files.get_mut(&node) else {
            return false;
        };
        if !file.handles.contains(&open) {
            // It was another file's by then.
            return false;
        }
        let fresh = |(time, _): (i64, u64)| (fs.now() - time).abs() < TICK;
        file.is_old |= now != file.changed || now.is_some_and(fresh);
        (file.changed, file.at) = (now, Instant::now());
        if let Some((_, size)) = now {
            file.saw(size);
        }
        if !file.is_settled() {
            return false;
        }
        std::mem::take(&mut file.is_old)
    }

    /// Starts to look, for as long as there is a server.
    ///
    /// # Errors
    /// If there can't be a thread.
    pub fn watch<S: Serves>(server: &Arc<S>) -> io::Result<()> {
        let server = Arc::downgrade(server);
        watch("pages", move || look(&server))
    }
}

/// What a look at the files needs of the server.
pub trait Serves: Send + Sync + 'static {
    fn cached(&self) -> &Cached;
    fn fs(&self) -> &Fs;
    /// Does `f` unless the server is ending.
    fn while_it_runs(&self, f: impl FnOnce());
}

fn changed(fs: &Fs, open: u32) -> Option<(i64, u64)> {
    fs.stat_open(open)
        .ok()
        .map(|s| (s.mtime.max(s.ctime), s.size))
}

/// Once; None if the server is gone.
fn look<S: Serves>(server: &Weak<S>) -> Option<()> {
    let server = server.upgrade()?;
    let cached = server.cached();
    cached.fetched.trim(&cached.notices);
    let fs = server.fs();
    let mut due = Vec::new();
    {
        let mut files = cached.files();
        files.retain(|_, file| !file.handles.is_empty() || file.at.elapsed() < SETTLES);
        if files.is_empty() {
            let long = Duration::from_secs(1);
            drop(cached.some.wait_timeout(files, long));
            return Some(());
        }
        for (&node, file) in files.iter() {
            let away = fs.store().is_object_away(ObjectId(node));
            if let Some(&open) = file.handles.first()
                && (!away || file.at.elapsed() >= PERIOD_AWAY)
            {
                due.push((node, open));
            }
        }
    }
    for (node, open) in due {
        let mut is_to_be_told = false;
        server.while_it_runs(|| {
            is_to_be_told = cached.is_to_be_told(fs, node, open, changed(fs, open));
        });
        if is_to_be_told {
            // Not under the lock: the kernel may ask for pages meanwhile, and wait for them here.
            cached.notices.forget_pages(node);
        }
    }
    drop(server);
    std::thread::sleep(PERIOD);
    Some(())
}
