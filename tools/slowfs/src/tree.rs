//! The nodes and open files that the kernel knows.
//!
//! A node is identified by its inode number and held by an `O_PATH` descriptor. So renames, hard
//! links and removals by others don't change the node.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of the root directory's node.
const ROOT: u64 = 1;

struct Node {
    fd: Arc<OwnedFd>,
    lookups: u64,
}

pub struct Tree {
    nodes: Mutex<HashMap<u64, Node>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next: AtomicU64,
    /// The path of the root directory, with a slash at the end.
    top: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a path in /proc by which this process reaches the object of a descriptor.
pub fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Returns the real path of the object of a descriptor.
fn path_of(fd: &OwnedFd) -> Result<Vec<u8>> {
    Ok(readlinkat(CWD, proc_path(fd), Vec::new())?.into_bytes())
}

impl Tree {
    /// Makes the tree of the directory `source`.
    ///
    /// # Errors
    /// As open(2) of the directory.
    pub fn new(source: &str) -> Result<Tree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, source, flags, Mode::empty())?;
        let mut top = path_of(&fd)?;
        top.push(b'/');
        let root = Node {
            fd: Arc::new(fd),
            lookups: 1,
        };
        Ok(Tree {
            nodes: Mutex::new(HashMap::from([(ROOT, root)])),
            files: Mutex::default(),
            next: AtomicU64::new(1),
            top,
        })
    }

    /// Returns the descriptor of a node.
    ///
    /// # Errors
    /// ESTALE if no such node is known.
    pub fn node(&self, number: u64) -> Result<Arc<OwnedFd>> {
        let nodes = lock(&self.nodes);
        let node = nodes.get(&number).ok_or(Errno::STALE)?;
        Ok(node.fd.clone())
    }

    /// Looks a name up and returns its attributes. The kernel knows the node from then on.
    ///
    /// # Errors
    /// As lstat(2).
    pub fn look_up(&self, dir: &OwnedFd, name: &OsStr) -> Result<Stat> {
        let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if let Some(node) = lock(&self.nodes).get_mut(&found.st_ino) {
            node.lookups += 1;
            return Ok(found);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(dir, name, flags, Mode::empty())?;
        // Another object may have got the name meanwhile: take the attributes of the opened object.
        let found = fstat(&fd)?;
        let new = Node {
            fd: Arc::new(fd),
            lookups: 0,
        };
        let mut nodes = lock(&self.nodes);
        nodes.entry(found.st_ino).or_insert(new).lookups += 1;
        Ok(found)
    }

    pub fn forget(&self, number: u64, times: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(known) = nodes.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 {
                nodes.remove(&number);
            }
        }
    }

    /// Returns the path of a node, or of a name in it, relative to the root directory.
    pub fn shown(&self, node: &OwnedFd, name: Option<&OsStr>) -> Vec<u8> {
        let mut path = path_of(node).unwrap_or_default();
        if let Some(name) = name {
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        match path.strip_prefix(&self.top[..]) {
            Some(below) => below.to_vec(),
            None => Vec::new(),
        }
    }

    /// Stores an open file. Returns its handle.
    pub fn keep(&self, file: File) -> u64 {
        let handle = self.next.fetch_add(1, Relaxed);
        lock(&self.files).insert(handle, Arc::new(file));
        handle
    }

    /// Returns the open file with a handle.
    ///
    /// # Errors
    /// EBADF if there is no such handle.
    pub fn file(&self, handle: u64) -> Result<Arc<File>> {
        lock(&self.files).get(&handle).cloned().ok_or(Errno::BADF)
    }

    pub fn close(&self, handle: u64) {
        let file = lock(&self.files).remove(&handle);
        drop(file);
    }
}
