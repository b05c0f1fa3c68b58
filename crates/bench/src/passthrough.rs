//! The reference of [`crate::fuse`]: a FUSE file system that passes each request on to a directory,
//! and does nothing else.
//!
//! Like Forebay's, it has the kernel cache nothing (timeouts of 0, direct I/O) and judge
//! permissions by `default_permissions`, and it has several threads. Nodes are known by their path,
//! so a directory must not be renamed while it is in use.

use crate::fuse::unmount_lazily;
use crate::sys;
use crate::workloads::MIB;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Threads that wait for requests; the kernel wakes them in turn. With one thread, which then
/// sleeps between requests, one program gets a third of the rate, and four programs no more.
const THREADS: usize = 2;
/// How long names and attributes are valid.
const NOT_AT_ALL: Duration = Duration::ZERO;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MIB]);
}

struct Node {
    path: PathBuf,
    lookups: u64,
}

#[derive(Default)]
struct Listing {
    entries: Vec<(u64, FileType, OsString)>,
}

struct Passthrough {
    /// The nodes by inode number; the root's is 1.
    nodes: Mutex<HashMap<u64, Node>>,
    listings: Mutex<(u64, HashMap<u64, Listing>)>,
}

/// Mounts `source` at `dir`, prints `ready` and serves it until standard input ends.
pub fn main(source: &str, dir: &str) -> Result<(), String> {
    sys::leave_session();
    let failed = |e: io::Error| format!("{dir}: {e}");
    let root = Node {
        path: source.into(),
        lookups: 1,
    };
    let passthrough = Passthrough {
        nodes: Mutex::new(HashMap::from([(INodeNo::ROOT.0, root)])),
        listings: Mutex::default(),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("passthrough".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let session = Session::new(passthrough, dir, &config).map_err(failed)?;
    let at = PathBuf::from(dir);
    // This unmounts also when the driver is killed.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        unmount_lazily(&at);
    });
    println!("ready");
    session.run().map_err(failed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Passthrough {
    fn path(&self, node: INodeNo) -> io::Result<PathBuf> {
        let nodes = lock(&self.nodes);
        let node = nodes.get(&node.0);
        let stale = || io::Error::from_raw_os_error(libc::ESTALE);
        node.map(|n| n.path.clone()).ok_or_else(stale)
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        let mut path = self.path(parent)?;
        path.push(name);
        Ok(path)
    }

    /// The attributes of a name that the kernel then knows.
    fn entry(&self, path: PathBuf) -> io::Result<FileAttr> {
        let found = path.symlink_metadata()?;
        let mut nodes = lock(&self.nodes);
        let new = Node { path, lookups: 0 };
        nodes.entry(found.ino()).or_insert(new).lookups += 1;
        Ok(attributes(&found, found.ino()))
    }

    fn forgotten(&self, node: INodeNo, times: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(known) = nodes.get_mut(&node.0) {
            known.lookups = known.lookups.saturating_sub(times);
            if known.lookups == 0 {
                nodes.remove(&node.0);
            }
        }
    }
}

fn attributes(m: &Metadata, ino: u64) -> FileAttr {
    let time = |seconds: i64, nanos: i64| {
        SystemTime::UNIX_EPOCH + Duration::new(seconds as u64, nanos as u32)
    };
    FileAttr {
        ino: INodeNo(ino),
        size: m.size(),
        blocks: m.blocks(),
        atime: time(m.atime(), m.atime_nsec()),
        mtime: time(m.mtime(), m.mtime_nsec()),
        ctime: time(m.ctime(), m.ctime_nsec()),
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::from_std(m.file_type()).unwrap_or(FileType::RegularFile),
        perm: (m.mode() & 0o7777) as u16,
        nlink: m.nlink() as u32,
        uid: m.uid(),
        gid: m.gid(),
        rdev: m.rdev() as u32,
        blksize: 4096,
        flags: 0,
    }
}

fn open(path: &Path, flags: i32, mode: u32) -> io::Result<FileHandle> {
    let mut options = File::options();
    let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
    options
        .read(flags & libc::O_ACCMODE != libc::O_WRONLY)
        .write(write)
        .create(flags & libc::O_CREAT != 0 && write)
        .custom_flags(flags & !libc::O_ACCMODE)
        .mode(mode);
    options
        .open(path)
        .map(|file| FileHandle(file.into_raw_fd() as u64))
}

const HOW: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
const FIRST: Generation = Generation(0);

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Features that the kernel lacks are left out.
        let _ = config.set_max_write(MIB as u32);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.child(parent, name).and_then(|path| self.entry(path)) {
            Ok(found) => reply.entry(&NOT_AT_ALL, &found, FIRST),
            Err(e) => reply.error(e.into()),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, times: u64) {
        self.forgotten(node, times);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(node).and_then(|path| path.symlink_metadata()) {
            Ok(found) => reply.attr(&NOT_AT_ALL, &attributes(&found, node.0)),
            Err(e) => reply.error(e.into()),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, r: ReplyEntry) {
        let made = self.child(parent, name).and_then(|path| {
            std::fs::DirBuilder::new().mode(mode).create(&path)?;
            self.entry(path)
        });
        match made {
            Ok(found) => r.entry(&NOT_AT_ALL, &found, FIRST),
            Err(e) => r.error(e.into()),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(
            self.child(parent, name).and_then(std::fs::remove_file),
            reply,
        );
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(
            self.child(parent, name).and_then(std::fs::remove_dir),
            reply,
        );
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.child(parent, name).and_then(|path| {
            let handle = open(&path, flags | libc::O_CREAT, mode)?;
            Ok((self.entry(path)?, handle))
        });
        match made {
            Ok((found, handle)) => reply.created(&NOT_AT_ALL, &found, FIRST, handle, HOW),
            Err(e) => reply.error(e.into()),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.path(node).and_then(|path| open(&path, flags.0, 0)) {
            Ok(handle) => reply.opened(handle, HOW),
            Err(e) => reply.error(e.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let room = buffer.len().min(size as usize);
            match sys::read_at(handle.0 as i32, &mut buffer[..room], offset) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(e) => reply.error(e.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match sys::write_at(handle.0 as i32, data, offset) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(e.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _ = sys::close(handle.0 as i32);
        reply.ok();
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.path(node).and_then(|path| listed(&path, node)) {
            Ok(listing) => {
                let (last, listings) = &mut *lock(&self.listings);
                *last += 1;
                listings.insert(*last, listing);
                reply.opened(FileHandle(*last), FopenFlags::empty());
            }
            Err(e) => reply.error(e.into()),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listings = lock(&self.listings);
        let Some(listing) = listings.1.get(&handle.0) else {
            return reply.error(Errno::EBADF);
        };
        let rest = listing.entries.iter().enumerate().skip(offset as usize);
        for (at, (ino, kind, name)) in rest {
            if reply.add(INodeNo(*ino), at as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, r: ReplyEmpty) {
        lock(&self.listings).1.remove(&handle.0);
        r.ok();
    }
}

fn answer(done: io::Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e.into()),
    }
}

/// Reads a whole directory at once.
fn listed(path: &Path, node: INodeNo) -> io::Result<Listing> {
    use std::os::unix::fs::DirEntryExt;
    let mut entries = Vec::new();
    for dots in [".", ".."] {
        entries.push((node.0, FileType::Directory, dots.into()));
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
        entries.push((entry.ino(), kind, entry.file_name()));
    }
    Ok(Listing { entries })
}
