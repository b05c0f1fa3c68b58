//! Counts the kernel's requests by kind of operation.

use crate::protocol::{Reply, opcode as o};
use forebay_trace::Operation::{self, *};
use forebay_trace::count::{self, Outcome};
use rustix::io::Errno;

/// Begins to count a request. Returns the tick at which it began; 0 if it isn't counted.
pub fn begin(opcode: u32) -> u64 {
    kind(opcode).map_or(0, count::begin)
}

/// Counts a request that began at tick `begun` and has been answered.
pub fn end(opcode: u32, begun: u64, result: Result<(), Errno>, reply: &Reply) {
    let Some(kind) = kind(opcode) else { return };
    let bytes = match (kind, result) {
        (Read, Ok(())) => reply.len() as u64,
        // The reply is a `fuse_write_out`: the number of bytes written, and padding.
        (Write, Ok(())) if reply.len() >= 8 => reply.get(0) & u64::from(u32::MAX),
        _ => 0,
    };
    let errno = forebay_trace::points::outcome(&result) as i32;
    count::end(kind, begun, Outcome { bytes, errno });
}

/// Returns the kind of a request; None if it doesn't come from a program's operation.
fn kind(opcode: u32) -> Option<Operation> {
    Some(match opcode {
        o::OPEN | o::OPENDIR => Open,
        o::CREATE | o::MKNOD | o::TMPFILE => Create,
        o::RELEASE | o::RELEASEDIR => Close,
        o::READ => Read,
        o::WRITE | o::COPY_FILE_RANGE => Write,
        o::LSEEK => Seek,
        o::LOOKUP | o::GETATTR | o::STATX | o::STATFS => Stat,
        o::READDIR => List,
        o::MKDIR => Mkdir,
        o::UNLINK | o::RMDIR => Remove,
        o::RENAME | o::RENAME2 => Rename,
        o::LINK | o::SYMLINK | o::READLINK => Link,
        o::SETATTR | o::SETXATTR | o::GETXATTR | o::LISTXATTR | o::REMOVEXATTR => Attributes,
        o::FALLOCATE => Truncate,
        o::FSYNC | o::FSYNCDIR | o::SYNCFS => Sync,
        o::SETLK | o::SETLKW | o::GETLK => Lock,
        o::IOCTL => Other,
        _ => return None,
    })
}
