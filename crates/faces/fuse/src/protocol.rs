//! The protocol between the kernel and a FUSE server (Linux, `include/uapi/linux/fuse.h`, version
//! 7.31 and later): constants, parsing of requests, writing of replies. All numbers are in the
//! machine's byte order.

use forebay_posix::{Errno, Stat};

/// The protocol version of this server. Kernels with a minor version before [`OLDEST_MINOR`] (Linux
/// 5.4) are refused.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 40;
pub const OLDEST_MINOR: u32 = 31;

/// The kernel's node number of the root directory.
pub const ROOT_NODE: u64 = 1;
/// Size of a reply's head. Bytes.
pub const REPLY_HEAD: usize = 16;
/// Size of the reply to LOOKUP. Bytes.
pub const ENTRY: usize = 128;
/// Offset, in the reply to LOOKUP, of the name's validity. Seconds.
pub const ENTRY_VALID: usize = 16;
/// Maximum number of bytes of one write.
pub const MAX_WRITE: usize = 1 << 20;

pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Capabilities that INIT negotiates.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    /// A write, a truncation or a change of owner must remove the set-user-ID bit.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files may be mapped even though reads and writes bypass the page cache.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;

    pub const WANTED: u64 = ASYNC_READ
        | POSIX_LOCKS
        | ATOMIC_O_TRUNC
        | BIG_WRITES
        | FLOCK_LOCKS
        | PARALLEL_DIROPS
        | MAX_PAGES
        | HANDLE_KILLPRIV_V2
        | INIT_EXT
        | DIRECT_IO_ALLOW_MMAP;
}

/// Bits that name the attributes set by SETATTR.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// All bits that stand for an attribute's value.
    pub const ANY: u32 = MODE | UID | GID | SIZE | ATIME | MTIME;
}

/// Flag of GETATTR: the request has a handle.
pub const GETATTR_FH: u32 = 1;
/// Flag of READ: the request has the reader's lock owner. Reads that fill the page cache have none.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// Flag of WRITE: the data come from the page cache; the offset is valid even if the file is open
/// for appending.
pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of OPEN with O_TRUNC: the set-user-ID bit is to be removed.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// Flag of SETLK: the lock is one of flock(2).
pub const LK_FLOCK: u32 = 1;
/// Flags of the reply to OPEN: reads and writes bypass the page cache; several writes may run at
/// once.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// Notice that cached pages of a file, or its attributes, are outdated.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notice that a name's validity has ended ([`EXPIRE_ONLY`]). Without that flag the kernel would
/// also forget the name, and unmount what is mounted on it. Linux has the flag from 6.2 on, with
/// minor version [`EXPIRE_MINOR`].
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
pub const EXPIRE_ONLY: u32 = 1 << 0;
pub const EXPIRE_MINOR: u32 = 38;
/// Notice that gives the kernel bytes of a file.
pub const NOTIFY_STORE: i32 = 4;

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    /// The requesting thread's id in this process's PID namespace; 0 if there is no thread, or it
    /// is in another namespace.
    pub pid: u32,
}

/// Parses the content of a request.
#[derive(Clone)]
pub struct Args<'a>(&'a [u8]);

/// # Errors
/// EPROTO if the request is too short.
impl<'a> Args<'a> {
    /// Splits a request into head and content.
    ///
    /// # Errors
    /// EPROTO if the request is too short, or its length is wrong.
    pub fn divide(request: &'a [u8]) -> Result<(Head, Args<'a>), Errno> {
        let mut a = Args(request);
        let len = a.u32()? as usize;
        if len != request.len() {
            return Err(Errno::PROTO);
        }
        let head = Head {
            opcode: a.u32()?,
            unique: a.u64()?,
            node: a.u64()?,
            uid: a.u32()?,
            gid: a.u32()?,
            pid: a.u32()?,
        };
        // Reserved for extensions of the protocol.
        a.skip(4)?;
        Ok((head, a))
    }

    /// Returns the next `n` bytes of the request.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips `n` bytes.
    pub fn skip(&mut self, n: usize) -> Result<(), Errno> {
        self.take(n).map(|_| ())
    }

    /// Returns the next 32-bit number.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        let bytes = self.take(4)?.try_into().map_err(|_| Errno::PROTO)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    /// Returns the next 64-bit number.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        let bytes = self.take(8)?.try_into().map_err(|_| Errno::PROTO)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Returns the text up to the next zero byte.
    ///
    /// # Errors
    /// EPROTO if there is no zero byte.
    pub fn text(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Errno::PROTO)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(text)
    }
}

/// A reply that is being written: space for its head, then its content.
pub struct Reply {
    /// Never shrinks: bytes from `len` on are left from earlier replies.
    bytes: Vec<u8>,
    len: usize,
}

impl Reply {
    pub fn new() -> Reply {
        Reply::of_size(4096)
    }

    /// Creates a reply with space for `size` bytes, which grows as needed.
    pub fn of_size(size: usize) -> Reply {
        Reply {
            bytes: vec![0; size.max(REPLY_HEAD)],
            len: REPLY_HEAD,
        }
    }

    pub fn clear(&mut self) {
        self.len = REPLY_HEAD;
    }

    fn room(&mut self, n: usize) -> &mut [u8] {
        let end = self.len + n;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(4096), 0);
        }
        &mut self.bytes[self.len..end]
    }

    pub fn u16(&mut self, v: u16) -> &mut Reply {
        self.put(&v.to_ne_bytes())
    }

    pub fn u32(&mut self, v: u32) -> &mut Reply {
        self.put(&v.to_ne_bytes())
    }

    pub fn u64(&mut self, v: u64) -> &mut Reply {
        self.put(&v.to_ne_bytes())
    }

    pub fn put(&mut self, bytes: &[u8]) -> &mut Reply {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub fn zeros(&mut self, n: usize) -> &mut Reply {
        self.room(n).fill(0);
        self.len += n;
        self
    }

    /// Returns the length of the content. Bytes.
    pub fn len(&self) -> usize {
        self.len - REPLY_HEAD
    }

    /// Replaces the 64-bit number at this offset of the content.
    pub fn set(&mut self, at: usize, v: u64) {
        let at = REPLY_HEAD + at;
        self.bytes[at..at + 8].copy_from_slice(&v.to_ne_bytes());
    }

    /// Returns the 64-bit number at this offset of the content.
    pub fn get(&self, at: usize) -> u64 {
        let at = REPLY_HEAD + at;
        let bytes = self.bytes[at..at + 8].try_into();
        bytes.map_or(0, u64::from_ne_bytes)
    }

    /// Lets `f` fill up to `n` further bytes, which aren't zeroed first. `f` returns how many it
    /// filled.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn fill(
        &mut self,
        n: usize,
        f: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        self.len += f(self.room(n))?;
        Ok(())
    }

    /// Appends an object's attributes.
    pub fn attributes(&mut self, s: &Stat) -> &mut Reply {
        let times = [s.atime, s.mtime, s.ctime].map(seconds);
        self.u64(node_of(s.ino)).u64(s.size).u64(s.blocks);
        for (seconds, _) in times {
            self.u64(seconds);
        }
        for (_, nanos) in times {
            self.u32(nanos);
        }
        self.u32(s.mode).u32(s.nlink).u32(s.uid).u32(s.gid);
        self.u32(old_device(s.rdev)).u32(4096).u32(0)
    }

    /// Appends the reply to LOOKUP and to all requests that create a name.
    pub fn entry(&mut self, s: &Stat) -> &mut Reply {
        // Node, generation, and the validity of name and attributes: no validity, unless keeping.rs
        // sets it.
        self.u64(node_of(s.ino)).u64(0).u64(0).u64(0).u32(0).u32(0);
        self.attributes(s)
    }

    /// Fills in the head and returns the whole reply.
    pub fn finish(&mut self, unique: u64) -> &[u8] {
        self.bytes[..REPLY_HEAD].copy_from_slice(&head(self.len as u32, 0, unique));
        &self.bytes[..self.len]
    }
}

const NANOS: i64 = 1_000_000_000;

/// Splits nanoseconds since 1970 into seconds (negative ones wrapped) and nanoseconds.
pub fn seconds(time: i64) -> (u64, u32) {
    (time.div_euclid(NANOS) as u64, time.rem_euclid(NANOS) as u32)
}

/// The reverse of [`seconds`]; values out of range are clamped.
pub fn time(seconds: u64, nanos: u32) -> i64 {
    let whole = (seconds as i64).saturating_mul(NANOS);
    whole.saturating_add(i64::from(nanos))
}

/// Encodes the head of a reply or notice.
pub fn head(len: u32, error: i32, unique: u64) -> [u8; REPLY_HEAD] {
    let mut head = [0; REPLY_HEAD];
    head[..4].copy_from_slice(&len.to_ne_bytes());
    head[4..8].copy_from_slice(&error.to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// Encodes a reply that is an error.
pub fn refusal(error: Errno, unique: u64) -> [u8; REPLY_HEAD] {
    head(REPLY_HEAD as u32, -error.raw_os_error(), unique)
}

/// Returns the kernel's node number of an object: the pool's id, except for the root.
pub fn node_of(ino: u64) -> u64 {
    if ino == forebay_posix::ObjectId::ROOT.0 {
        ROOT_NODE
    } else {
        ino
    }
}

/// Encodes a device's major and minor number in 32 bits, like `new_encode_dev` of the kernel.
fn old_device(rdev: u64) -> u32 {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`old_device`].
pub fn device(old: u32) -> u64 {
    let (major, minor) = ((old & 0xfff00) >> 8, (old & 0xff) | ((old >> 12) & 0xfff00));
    libc::makedev(major, minor)
}
