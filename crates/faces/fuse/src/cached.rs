//! Tracks files whose pages the kernel may cache, because they are mapped or executed.
//!
//! Reads and writes bypass the kernel's page cache; mappings use it. So while a file is mapped, a
//! thread checks whether other processes have changed the file. If so, it notifies the kernel,
//! which requests the pages again at their next use. A mapping sees the writes of others within
//! [`PERIOD`], or within [`REMOTE_PERIOD`] if the file is on another node.
//!
//! While the kernel handles such a notice, it discards the attributes in replies that arrive,
//! including a new size. An access to a page behind the old size would then raise SIGBUS, and
//! SEEK_END would lead to the old end. Therefore:
//! - A larger size is sent as a notice before the reply ([`Cached::announce_size`]): the kernel
//!   doesn't discard notices.
//! - For a smaller size there is no notice. So the kernel isn't told to forget pages while the
//!   file's size changes and is being requested ([`SETTLES`]), nor before the threads that
//!   requested the size have run again ([`Waiter`]). With each reply that has another size, the
//!   kernel forgets the pages without being told.

use crate::fetched::Fetched;
use crate::notices::Notices;
use forebay_posix::controls::ASIDE;
use forebay_posix::{Errno, Fs, ObjectId};
use forebay_runtime::threads::{lock, watch};
use forebay_store::process::{core_time_of_runnable, is_answering};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(5);
const REMOTE_PERIOD: Duration = Duration::from_millis(100);
/// Two changes that are closer than this may have the same time stamp. Nanoseconds.
const TICK: i64 = 20_000_000;
/// How long the kernel takes at most to process a reply, unless the program waits for a core.
const SETTLES: Duration = Duration::from_millis(250);
/// How long a program waits at most for a core.
const MAX_CORE_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of threads per file that are checked for waiting for a core.
const MAX_CHECKED_WAITERS: usize = 64;

/// The mapped files, by node number, and what the kernel knows of each.
pub struct Cached {
    notices: Arc<Notices>,
    /// Content of the kernel's pages, as the kernel received it.
    pub fetched: Fetched,
    files: Mutex<HashMap<u64, File>>,
    /// Signals that there is a file to check.
    some: Condvar,
}

/// A mapped file, as of the last check.
struct File {
    /// The handles through which the kernel read or wrote back pages.
    handles: Vec<u32>,
    changed: Option<(i64, u64)>,
    at: Instant,
    /// Whether the kernel may have outdated pages.
    is_old: bool,
    /// The file's size, as of the last check or reply.
    size: u64,
    resized: Instant,
    /// When the kernel last got a reply with the size.
    replied: Instant,
    /// The threads that received replies while the size was new.
    waiters: Vec<Waiter>,
    /// The size that the kernel assumes.
    kernels: u64,
    /// Held while the kernel is being notified that the file has grown.
    telling: Arc<Mutex<()>>,
}

/// A thread that received a reply, which the thread processes inside the kernel once it has a core.
struct Waiter {
    thread: u32,
    replied: Instant,
    /// CPU time of the thread when a check first found it runnable. Nanoseconds.
    ran: Option<u64>,
}

impl Waiter {
    /// Whether the thread may not have processed the reply yet.
    fn waits(&mut self) -> bool {
        let age = self.replied.elapsed();
        if age < SETTLES {
            return true;
        }
        match core_time_of_runnable(self.thread) {
            Some(now) => *self.ran.get_or_insert(now) == now && age < MAX_CORE_WAIT,
            None => false,
        }
    }
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

    /// Records that `thread` is about to receive a reply with the file's size.
    fn replies_to(&mut self, thread: u32) {
        let now = Instant::now();
        self.replied = now;
        if self.resized.elapsed() >= SETTLES {
            return;
        }
        self.waiters.retain(|w| w.thread != thread);
        if self.waiters.len() < MAX_CHECKED_WAITERS {
            self.waiters.push(Waiter {
                thread,
                replied: now,
                ran: None,
            });
        }
    }

    /// Whether all replies with a size that may be new to the kernel have been processed.
    fn is_settled(&mut self) -> bool {
        self.waiters.retain_mut(Waiter::waits);
        self.waiters.is_empty()
            && (self.resized.elapsed() >= SETTLES || self.replied.elapsed() >= SETTLES)
    }
}

impl Cached {
    /// Returns an empty table.
    pub fn new(notices: Arc<Notices>) -> Cached {
        Cached {
            notices,
            fetched: Fetched::default(),
            files: Mutex::default(),
            some: Condvar::new(),
        }
    }

    /// Records that the kernel requests pages through this handle. Must be called before they are
    /// read, so that changes from then on are noticed.
    pub fn note(&self, fs: &Fs, open: u32, node: u64) {
        if let Some(file) = lock(&self.files).get_mut(&node) {
            return file.add(open);
        }
        // The table isn't locked, because the call may send a request to another node.
        let changed = changed(fs, open);
        let now = Instant::now();
        let size = changed.map_or(0, |(_, size)| size);
        let new = || File {
            handles: Vec::new(),
            changed,
            at: now,
            is_old: false,
            size,
            // The lookup before the open has sent the kernel a size just now.
            resized: now,
            replied: now,
            waiters: Vec::new(),
            kernels: size,
            telling: Arc::default(),
        };
        lock(&self.files).entry(node).or_insert_with(new).add(open);
        self.some.notify_one();
    }

    /// Removes a handle whose last descriptor and last mapping were closed. The file stays in the
    /// table for a while: a reply about it may be sent while the kernel is still being notified
    /// about its pages.
    pub fn forget(&self, open: u32, node: u64) {
        if let Some(file) = lock(&self.files).get_mut(&node) {
            file.handles.retain(|&h| h != open);
            file.at = Instant::now();
        }
    }

    /// Notifies the kernel if the file is larger than the kernel assumes. Must be called before
    /// `thread` gets a reply with this size. `last` reads the file's last byte.
    ///
    /// # Errors
    /// [`ASIDE`] if the kernel has to be notified: the notice waits for programs that use the
    /// pages, for which the calling thread may not wait.
    pub fn announce_size(
        &self,
        node: u64,
        size: u64,
        thread: u32,
        last: impl FnOnce() -> Option<u8>,
    ) -> Result<(), Errno> {
        let Some(telling) = self.answers(node, size, thread) else {
            return Ok(());
        };
        if is_answering() {
            return Err(ASIDE);
        }
        let one = lock(&telling);
        if self.answers(node, size, thread).is_some() {
            // The notices act like a reply that isn't discarded. After the notices, all older
            // replies are processed, and the last byte is written back if a program has stored to
            // it through a mapping.
            self.notices.forget_pages(node);
            if let Some(last) = last() {
                self.notices.store(node, size - 1, &[last]);
                self.fetched.got_byte(node, size - 1, last);
                self.set(node, size);
            }
        }
        drop(one);
        Ok(())
    }

    /// Records a reply with this size. Returns the file's mutex `telling` if the kernel assumes a
    /// smaller size.
    fn answers(&self, node: u64, size: u64, thread: u32) -> Option<Arc<Mutex<()>>> {
        let mut files = lock(&self.files);
        let file = files.get_mut(&node)?;
        file.saw(size);
        file.replies_to(thread);
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

    /// Records that the kernel assumes this size: the kernel has set the size itself, or takes it
    /// from a reply that it doesn't discard.
    pub fn set(&self, node: u64, size: u64) {
        if let Some(file) = lock(&self.files).get_mut(&node) {
            file.saw(size);
            file.replied = Instant::now();
            file.kernels = size;
        }
        self.fetched.cut(node, size);
    }

    /// Records that the kernel assumes that it has written up to `end`.
    pub fn reaches(&self, node: u64, end: u64) {
        if let Some(file) = lock(&self.files).get_mut(&node) {
            file.kernels = file.kernels.max(end);
        }
    }

    /// Records that the kernel gets a page that ends at `at`, from which it concludes that the file
    /// ends there.
    pub fn ends(&self, node: u64, at: u64) {
        if let Some(file) = lock(&self.files).get_mut(&node) {
            file.kernels = file.kernels.min(at);
        }
    }

    /// Records that the kernel has appended `n` bytes at the end that it assumes.
    pub fn appended(&self, node: u64, n: u64) {
        if let Some(file) = lock(&self.files).get_mut(&node) {
            file.kernels += n;
        }
    }

    /// Records the result `now` of a check. Returns whether the kernel has to forget the file's
    /// pages now.
    fn must_forget(&self, fs: &Fs, node: u64, open: u32, now: Option<(i64, u64)>) -> bool {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&node) else {
            return false;
        };
        if !file.handles.contains(&open) {
            // The handle's number has been reused for another file.
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

    /// Starts the thread that checks files, which runs as long as the server exists.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn watch<S: Serves>(server: &Arc<S>) -> io::Result<()> {
        let server = Arc::downgrade(server);
        watch("pages", move || look(&server))
    }
}

/// The parts of the server that the checking thread uses.
pub trait Serves: Send + Sync + 'static {
    fn cached(&self) -> &Cached;
    fn fs(&self) -> &Fs;
    /// Calls `f` unless the server is ending.
    fn while_it_runs(&self, f: impl FnOnce());
}

fn changed(fs: &Fs, open: u32) -> Option<(i64, u64)> {
    fs.stat_open(open)
        .ok()
        .map(|s| (s.mtime.max(s.ctime), s.size))
}

/// Does one round of checks. Returns None if the server has ended.
fn look<S: Serves>(server: &Weak<S>) -> Option<()> {
    let server = server.upgrade()?;
    let cached = server.cached();
    cached.fetched.trim(&cached.notices);
    let fs = server.fs();
    let mut due = Vec::new();
    {
        let mut files = lock(&cached.files);
        files.retain(|_, file| !file.handles.is_empty() || file.at.elapsed() < SETTLES);
        if files.is_empty() {
            let long = Duration::from_secs(1);
            drop(cached.some.wait_timeout(files, long));
            return Some(());
        }
        for (&node, file) in files.iter() {
            let is_remote = fs.store().peers().is_object_remote(ObjectId(node));
            if let Some(&open) = file.handles.first()
                && (!is_remote || file.at.elapsed() >= REMOTE_PERIOD)
            {
                due.push((node, open));
            }
        }
    }
    for (node, open) in due {
        let mut must_forget = false;
        server.while_it_runs(|| {
            must_forget = cached.must_forget(fs, node, open, changed(fs, open));
        });
        if must_forget {
            // The table isn't locked: the kernel may request pages during this call, and answering
            // those requests locks the table.
            cached.notices.forget_pages(node);
        }
    }
    drop(server);
    std::thread::sleep(PERIOD);
    Some(())
}
