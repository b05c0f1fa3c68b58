//! The FUSE server: passes the kernel's requests on to a directory.

use crate::effects::{Effects, Operation};
use crate::settings::Kind;
use crate::tree::{Tree, proc_path};
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, XattrFlags,
};
use rustix::io::Result;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum size of a request. Bytes.
const LARGEST: usize = 1 << 20;
/// How long the kernel may cache names and attributes.
const NOT_AT_ALL: Duration = Duration::ZERO;
const FIRST: Generation = Generation(0);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; LARGEST]);
}

struct Listing {
    entries: Vec<(u64, FileType, OsString)>,
}

pub struct Passthrough {
    tree: Tree,
    listings: Mutex<HashMap<u64, Arc<Listing>>>,
    next_listing: AtomicU64,
    effects: Option<Arc<Effects>>,
    caches: bool,
}

fn attributes(m: &Stat) -> FileAttr {
    let time = |seconds: i64, nanos: u64| {
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let at = if seconds < 0 {
            UNIX_EPOCH - whole
        } else {
            UNIX_EPOCH + whole
        };
        at + Duration::from_nanos(nanos)
    };
    let kind = match m.st_mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    };
    FileAttr {
        ino: INodeNo(m.st_ino),
        size: m.st_size as u64,
        blocks: m.st_blocks as u64,
        atime: time(m.st_atime, m.st_atime_nsec),
        mtime: time(m.st_mtime, m.st_mtime_nsec),
        ctime: time(m.st_ctime, m.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind,
        perm: (m.st_mode & 0o7777) as u16,
        nlink: m.st_nlink as u32,
        uid: m.st_uid,
        gid: m.st_gid,
        rdev: m.st_rdev as u32,
        blksize: 4096,
        flags: 0,
    }
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno::from_i32(e.raw_os_error())
}

fn plain(e: io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO)
}

fn answer(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

fn answer_entry(found: Result<Stat>, reply: ReplyEntry) {
    match found {
        Ok(found) => reply.entry(&NOT_AT_ALL, &attributes(&found), FIRST),
        Err(e) => reply.error(errno(e)),
    }
}

/// Replies with the bytes that `get` returns: an extended attribute's value, or the names of all
/// attributes. If `size` is 0, replies with the number of bytes, for which alone the kernel asks.
fn answer_bytes(size: u32, reply: ReplyXattr, get: impl Fn(&mut [u8]) -> Result<usize>) {
    let mut bytes = vec![0; size as usize];
    match get(&mut bytes) {
        Ok(n) if size == 0 => reply.size(n as u32),
        Ok(n) => reply.data(&bytes[..n]),
        Err(e) => reply.error(errno(e)),
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, UTIME_OMIT),
        Some(TimeOrNow::Now) => (0, UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => since_epoch(at),
    };
    Timespec { tv_sec, tv_nsec }
}

fn since_epoch(at: SystemTime) -> (i64, i64) {
    let nanos = match at.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    let second = 1_000_000_000;
    (
        nanos.div_euclid(second) as i64,
        nanos.rem_euclid(second) as i64,
    )
}

/// Whether flags of open(2) allow a change of the file.
fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

/// Reads a whole directory. `number`: the inode number of the directory.
fn listed(fd: &OwnedFd, number: u64) -> io::Result<Listing> {
    use std::os::unix::fs::DirEntryExt;
    let mut entries = Vec::new();
    for dots in [".", ".."] {
        entries.push((number, FileType::Directory, dots.into()));
    }
    for entry in std::fs::read_dir(proc_path(fd))? {
        let entry = entry?;
        let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
        entries.push((entry.ino(), kind, entry.file_name()));
    }
    Ok(Listing { entries })
}

impl Passthrough {
    pub fn new(tree: Tree, effects: Option<Arc<Effects>>, caches: bool) -> Passthrough {
        Passthrough {
            tree,
            listings: Mutex::default(),
            next_listing: AtomicU64::new(1),
            effects,
            caches,
        }
    }

    fn listings(&self) -> MutexGuard<'_, HashMap<u64, Arc<Listing>>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the flags with which files are opened.
    fn how(&self) -> FopenFlags {
        if self.caches {
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        }
    }

    /// Waits until an operation on a node may be carried out. Returns the node's descriptor.
    fn begin(&self, request: &Request, kind: Kind, node: INodeNo) -> Result<Arc<OwnedFd>> {
        self.begin_with(request, kind, node, None, 0)
    }

    /// As [`Passthrough::begin`], for an operation on a name in a directory, or one that opens with
    /// flags.
    fn begin_with(
        &self,
        request: &Request,
        kind: Kind,
        node: INodeNo,
        name: Option<&OsStr>,
        flags: i32,
    ) -> Result<Arc<OwnedFd>> {
        let fd = self.tree.node(node.0)?;
        if let Some(effects) = &self.effects {
            effects.begin(&Operation {
                kind,
                path: &self.tree.shown(&fd, name),
                pid: request.pid(),
                writes: writes(flags),
            })?;
        }
        Ok(fd)
    }

    /// Carries out an operation that makes a name, and looks the name up.
    fn make(
        &self,
        request: &Request,
        kind: Kind,
        (parent, name): (INodeNo, &OsStr),
        make: impl FnOnce(&OwnedFd) -> Result<()>,
    ) -> Result<Stat> {
        let dir = self.begin_with(request, kind, parent, Some(name), 0)?;
        make(&dir)?;
        self.tree.look_up(&dir, name)
    }

    fn change(
        &self,
        fd: &OwnedFd,
        handle: Option<FileHandle>,
        mode: Option<u32>,
        (uid, gid): (Option<u32>, Option<u32>),
        size: Option<u64>,
        times: (Option<TimeOrNow>, Option<TimeOrNow>),
    ) -> Result<Stat> {
        let path = proc_path(fd);
        if let Some(mode) = mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode))?;
        }
        if uid.is_some() || gid.is_some() {
            let uid = uid.map(rustix::fs::Uid::from_raw);
            let gid = gid.map(rustix::fs::Gid::from_raw);
            rustix::fs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(size) = size {
            let file = match handle {
                Some(handle) => self.tree.file(handle.0)?,
                None => Arc::new(File::options().write(true).open(&path).map_err(plain)?),
            };
            file.set_len(size).map_err(plain)?;
        }
        if times.0.is_some() || times.1.is_some() {
            let times = Timestamps {
                last_access: timespec(times.0),
                last_modification: timespec(times.1),
            };
            rustix::fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH)?;
        }
        rustix::fs::fstat(fd)
    }

    fn has_read(&self, node: INodeNo, offset: u64, bytes: usize) {
        if let (Some(effects), Ok(fd)) = (&self.effects, self.tree.node(node.0)) {
            effects.has_read(&self.tree.shown(&fd, None), offset, bytes);
        }
    }

    fn has_written(&self, node: INodeNo, bytes: usize) {
        if let (Some(effects), Ok(fd)) = (&self.effects, self.tree.node(node.0)) {
            effects.has_written(&self.tree.shown(&fd, None), bytes);
        }
    }

    /// Waits until an operation on an open file may be carried out. Returns the file.
    fn begin_io(
        &self,
        request: &Request,
        kind: Kind,
        node: INodeNo,
        handle: FileHandle,
    ) -> Result<Arc<File>> {
        if self.effects.is_some() {
            self.begin(request, kind, node)?;
        }
        self.tree.file(handle.0)
    }
}

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A feature that the kernel doesn't have is left out.
        let _ = config.set_max_write(LARGEST as u32);
        let features = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for feature in features {
            let _ = config.add_capabilities(feature);
        }
        Ok(())
    }

    fn lookup(&self, r: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(
            self.make(r, Kind::Lookup, (parent, name), |_| Ok(())),
            reply,
        );
    }

    fn forget(&self, _: &Request, node: INodeNo, times: u64) {
        self.tree.forget(node.0, times);
    }

    fn getattr(&self, r: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let fd = self.begin(r, Kind::Getattr, node);
        match fd.and_then(|fd| rustix::fs::fstat(&*fd)) {
            Ok(found) => reply.attr(&NOT_AT_ALL, &attributes(&found)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setattr(
        &self,
        r: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let fd = self.begin(r, Kind::Setattr, node);
        let times = (atime, mtime);
        match fd.and_then(|fd| self.change(&fd, handle, mode, (uid, gid), size, times)) {
            Ok(now) => reply.attr(&NOT_AT_ALL, &attributes(&now)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readlink(&self, r: &Request, node: INodeNo, reply: ReplyData) {
        let fd = self.begin(r, Kind::Readlink, node);
        match fd.and_then(|fd| rustix::fs::readlinkat(&*fd, "", Vec::new())) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = self.make(r, Kind::Mknod, (parent, name), |dir| {
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(mode), device.into())
        });
        answer_entry(made, reply);
    }

    fn mkdir(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let made = self.make(r, Kind::Mkdir, (parent, name), |dir| {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
        });
        answer_entry(made, reply);
    }

    fn unlink(&self, r: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = self.begin_with(r, Kind::Unlink, parent, Some(name), 0);
        let none = AtFlags::empty();
        answer(
            dir.and_then(|dir| rustix::fs::unlinkat(&*dir, name, none)),
            reply,
        );
    }

    fn rmdir(&self, r: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = self.begin_with(r, Kind::Rmdir, parent, Some(name), 0);
        let flags = AtFlags::REMOVEDIR;
        answer(
            dir.and_then(|dir| rustix::fs::unlinkat(&*dir, name, flags)),
            reply,
        );
    }

    fn symlink(&self, r: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let made = self.make(r, Kind::Symlink, (parent, name), |dir| {
            rustix::fs::symlinkat(to, dir, name)
        });
        answer_entry(made, reply);
    }

    fn rename(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let dir = self.begin_with(r, Kind::Rename, parent, Some(name), 0);
        let done = dir.and_then(|dir| {
            let new_dir = self.tree.node(new_parent.0)?;
            let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            rustix::fs::renameat_with(&*dir, name, &*new_dir, new_name, flags)
        });
        answer(done, reply);
    }

    fn link(&self, r: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let made = self.make(r, Kind::Link, (parent, name), |dir| {
            let from = self.tree.node(node.0)?;
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, proc_path(&from), dir, name, flags)
        });
        answer_entry(made, reply);
    }

    fn open(&self, r: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let fd = self.begin_with(r, Kind::Open, node, None, flags.0);
        let opened = fd.and_then(|fd| {
            // The path in /proc is a symbolic link, so it must be followed. The kernel has handled
            // symbolic links and creation.
            let kept =
                flags.0 & !(libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL | libc::O_DIRECT);
            let flags = OFlags::from_bits_retain(kept as u32) | OFlags::CLOEXEC;
            rustix::fs::open(proc_path(&fd), flags, Mode::empty())
        });
        match opened {
            Ok(opened) => reply.opened(FileHandle(self.tree.keep(opened.into())), self.how()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn create(
        &self,
        r: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let dir = self.begin_with(r, Kind::Create, parent, Some(name), flags | libc::O_RDWR);
        let made = dir.and_then(|dir| {
            let kept = flags & !libc::O_DIRECT;
            let flags = OFlags::from_bits_retain(kept as u32) | OFlags::CREATE | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(&*dir, name, flags, Mode::from_raw_mode(mode))?;
            Ok((self.tree.look_up(&dir, name)?, opened))
        });
        match made {
            Ok((found, opened)) => {
                let handle = FileHandle(self.tree.keep(opened.into()));
                reply.created(&NOT_AT_ALL, &attributes(&found), FIRST, handle, self.how());
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn read(
        &self,
        r: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let room = buffer.len().min(size as usize);
            let file = self.begin_io(r, Kind::Read, node, handle);
            match file.and_then(|file| rustix::io::pread(&*file, &mut buffer[..room], offset)) {
                Ok(n) => {
                    self.has_read(node, offset, n);
                    reply.data(&buffer[..n]);
                }
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn write(
        &self,
        r: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = self.begin_io(r, Kind::Write, node, handle);
        match file.and_then(|file| rustix::io::pwrite(&*file, data, offset)) {
            Ok(n) => {
                self.has_written(node, n);
                reply.written(n as u32);
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn flush(&self, r: &Request, node: INodeNo, h: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(self.begin_io(r, Kind::Flush, node, h).map(drop), reply);
    }

    fn release(
        &self,
        r: &Request,
        node: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _ = self.begin_io(r, Kind::Release, node, handle);
        self.tree.close(handle.0);
        reply.ok();
    }

    fn fsync(&self, r: &Request, node: INodeNo, h: FileHandle, _: bool, reply: ReplyEmpty) {
        let file = self.begin_io(r, Kind::Fsync, node, h);
        answer(file.and_then(|file| rustix::fs::fsync(&*file)), reply);
    }

    fn opendir(&self, r: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let fd = self.begin(r, Kind::Opendir, node);
        match fd.and_then(|fd| listed(&fd, node.0).map_err(plain)) {
            Ok(listing) => {
                let handle = self.next_listing.fetch_add(1, Relaxed);
                self.listings().insert(handle, Arc::new(listing));
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdir(
        &self,
        r: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if self.effects.is_some()
            && let Err(e) = self.begin(r, Kind::Readdir, node)
        {
            return reply.error(errno(e));
        }
        let Some(listing) = self.listings().get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let rest = listing.entries.iter().enumerate().skip(offset as usize);
        for (at, (number, kind, name)) in rest {
            if reply.add(INodeNo(*number), at as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, r: ReplyEmpty) {
        self.listings().remove(&handle.0);
        r.ok();
    }

    fn fsyncdir(&self, r: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let fd = self.begin(r, Kind::Fsync, node);
        let synced = fd.and_then(|fd| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::fsync(rustix::fs::open(proc_path(&fd), flags, Mode::empty())?)
        });
        answer(synced, reply);
    }

    fn statfs(&self, r: &Request, node: INodeNo, reply: ReplyStatfs) {
        let fd = self.begin(r, Kind::Statfs, node);
        match fd.and_then(|fd| rustix::fs::fstatvfs(&*fd)) {
            Ok(s) => {
                let is_full = self
                    .effects
                    .as_ref()
                    .is_some_and(|effects| effects.is_full());
                let (free, available) = if is_full {
                    (0, 0)
                } else {
                    (s.f_bfree, s.f_bavail)
                };
                let (block, name) = (s.f_bsize as u32, s.f_namemax as u32);
                let fragment = s.f_frsize as u32;
                reply.statfs(
                    s.f_blocks, free, available, s.f_files, s.f_ffree, block, name, fragment,
                );
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(
        &self,
        r: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let fd = self.begin(r, Kind::Setxattr, node);
        let flags = XattrFlags::from_bits_retain(flags as u32);
        answer(
            fd.and_then(|fd| rustix::fs::setxattr(proc_path(&fd), name, value, flags)),
            reply,
        );
    }

    fn getxattr(&self, r: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.begin(r, Kind::Getxattr, node) {
            Ok(fd) => answer_bytes(size, reply, |bytes| {
                rustix::fs::getxattr(proc_path(&fd), name, bytes)
            }),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn listxattr(&self, r: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        match self.begin(r, Kind::Listxattr, node) {
            Ok(fd) => answer_bytes(size, reply, |bytes| {
                rustix::fs::listxattr(proc_path(&fd), bytes)
            }),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn removexattr(&self, r: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let fd = self.begin(r, Kind::Removexattr, node);
        answer(
            fd.and_then(|fd| rustix::fs::removexattr(proc_path(&fd), name)),
            reply,
        );
    }

    fn access(&self, r: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let fd = self.begin(r, Kind::Access, node);
        let mask = rustix::fs::Access::from_bits_retain(mask.bits() as u32);
        answer(
            fd.and_then(|fd| rustix::fs::access(proc_path(&fd), mask)),
            reply,
        );
    }

    fn fallocate(
        &self,
        r: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let file = self.begin_io(r, Kind::Fallocate, node, handle);
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        answer(
            file.and_then(|file| rustix::fs::fallocate(&*file, mode, offset, length)),
            reply,
        );
    }

    fn lseek(
        &self,
        r: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let from = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset as u64),
            libc::SEEK_HOLE => SeekFrom::Hole(offset as u64),
            _ => return reply.error(Errno::EINVAL),
        };
        let file = self.begin_io(r, Kind::Lseek, node, handle);
        match file.and_then(|file| rustix::fs::seek(&*file, from)) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(errno(e)),
        }
    }
}
