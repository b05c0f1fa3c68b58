//! Chunks in memory: a range of a collection's bytes mapped without a copy; and buffers allocated
//! in the pool.
//!
//! The mapped pages are the pages of the pool's medium that hold the bytes, so a write to them
//! changes the collection's content at once for every reader. The bytes must be on this node, in
//! one piece: the collection must be one of this node, and not striped. A buffer is a mapped file
//! without a name, which is removed with its last mapping.
//!
//! A [`Token`] names a chunk to other processes on the node. A process attaches the chunk by its
//! token if it may open the collection, or, for a buffer, if it runs as the buffer's user. The
//! token is no secret. The token keeps nothing alive: the chunk lives as long as the collection,
//! and a buffer as long as some process has it mapped. A process that dies loses only its own
//! mappings.

use crate::abi::TOKEN;
use crate::mapped::{Access, Mapped};
use crate::pool::Attached;
use crate::{Collection, Error, Result, Session};
use forebay_posix::ObjectId;
use rustix::io::Errno;

/// The first bytes of a token, which identify its format.
const MAGIC: [u8; 4] = *b"FBt1";

/// Names a chunk to other processes of the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub [u8; TOKEN]);

/// Bytes of a collection, or a buffer, mapped into this process. Unmapped when dropped. A forked
/// child doesn't have the mapping.
pub struct Chunk(Mapped);

/// The fields of a token.
struct Named {
    pool: [u8; 16],
    node: u32,
    object: ObjectId,
    at: u64,
    len: u64,
    access: Access,
}

impl Chunk {
    /// Maps the `len` bytes at offset `at` of a collection. All of them must exist: nothing beyond
    /// the end can be mapped.
    ///
    /// # Errors
    /// ENOTSUP if the collection's back end can't map bytes; EREMOTE if the bytes are on another
    /// node, or on several; EINVAL beyond the end, or for a length of 0; ENOSPC if a hole can't be
    /// filled; EPERM, EBUSY if the collection's controls refuse the mapping; ENOMEM.
    pub fn map(collection: &Collection, at: u64, len: usize, access: Access) -> Result<Chunk> {
        collection.map_object(at, len, access).map(Chunk)
    }

    /// Maps the `len` bytes at offset `at` of a regular file of a pool, given by its id.
    ///
    /// # Errors
    /// As for [`Chunk::map`]; ENOENT if the file doesn't exist or isn't a regular file.
    pub fn map_file(
        pool: &Attached,
        file: ObjectId,
        at: u64,
        len: usize,
        access: Access,
    ) -> Result<Chunk> {
        pool.check()?;
        Mapped::by_id(pool, file, at, len, access).map(Chunk)
    }

    /// Allocates a zeroed buffer in the session's pool, aligned to a page.
    ///
    /// # Errors
    /// ENOTSUP if the session has no pool; ENOSPC, ENOMEM if there is no room.
    pub fn allocate(session: &Session, len: usize) -> Result<Chunk> {
        Mapped::buffer(pool_of(session)?, len).map(Chunk)
    }

    /// Maps the chunk that a token of another process of this node names.
    ///
    /// # Errors
    /// EINVAL if the token is invalid, EXDEV for a token of another pool, EREMOTE for one of
    /// another node; ENOENT if the chunk was removed; EACCES, EPERM, EBUSY if this process may not
    /// open the chunk's file.
    pub fn attach(session: &Session, token: &Token) -> Result<Chunk> {
        let fs = pool_of(session)?;
        let named = Named::read(token)?;
        if named.pool != identity(fs) {
            let text = format!(
                "this token is of another pool than '{}'",
                fs.pool().config().name
            );
            return Err(Error::new(Errno::XDEV, text));
        }
        let here = fs.store().peers().node().0;
        if named.node != here {
            return Err(Error::new(
                Errno::REMOTE,
                format!(
                    "this token is of the node {}, and this process works at node {here}",
                    named.node
                ),
            ));
        }
        let len = usize::try_from(named.len).map_err(|_| Named::wrong())?;
        Mapped::by_id(fs, named.object, named.at, len, named.access).map(Chunk)
    }

    /// Returns the kind of access for which the chunk was mapped.
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.0.address()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the chunk has no bytes. False for every chunk.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a token for all of the chunk.
    ///
    /// # Errors
    /// EPERM in a forked child.
    pub fn share(&self) -> Result<Token> {
        self.share_part(0, self.len())
    }

    /// Makes a token for a part of the chunk.
    ///
    /// # Errors
    /// EINVAL if the part isn't inside the chunk; EPERM in a forked child.
    pub fn share_part(&self, from: usize, len: usize) -> Result<Token> {
        share(&self.0, from, len)
    }

    /// Converts the chunk to its mapping.
    pub(crate) fn into_mapped(self) -> Mapped {
        self.0
    }

    /// Copies `to.len()` bytes at offset `at` out of the chunk.
    ///
    /// # Errors
    /// EINVAL if the range isn't inside the chunk; EPERM in a forked child.
    pub fn read(&self, to: &mut [u8], at: usize) -> Result<()> {
        self.0.check()?;
        self.0.read(to, at)
    }

    /// Copies `from` into the chunk at offset `at`.
    ///
    /// # Errors
    /// EINVAL if the range isn't inside the chunk; EACCES if the chunk was mapped for reading;
    /// EPERM in a forked child.
    pub fn write(&self, from: &[u8], at: usize) -> Result<()> {
        self.0.check()?;
        self.0.write(from, at)
    }
}

/// Like [`Chunk::share_part`], for a mapping.
pub(crate) fn share(mapped: &Mapped, from: usize, len: usize) -> Result<Token> {
    mapped.check()?;
    if len == 0 || from.checked_add(len).is_none_or(|end| end > mapped.len()) {
        let text = format!(
            "{len} bytes at {from} aren't inside a chunk of {}",
            mapped.len()
        );
        return Err(Error::invalid(text));
    }
    let fs = mapped.pool();
    let (object, at) = mapped.object();
    Ok(Named {
        pool: identity(fs),
        node: fs.store().peers().node().0,
        object,
        at: at + from as u64,
        len: len as u64,
        access: mapped.access(),
    }
    .token())
}

fn pool_of(session: &Session) -> Result<&Attached> {
    session.check()?;
    session.pool().ok_or_else(|| {
        Error::unsupported(
            "memory for others lies in a pool, and this session has none: open pool:NAME",
        )
    })
}

/// Returns the bytes that identify the pool in tokens. They are the same in every process.
fn identity(fs: &Attached) -> [u8; 16] {
    let mut bytes = [0; 16];
    let uuid = fs.pool().config().uuid.as_bytes();
    for (byte, digits) in bytes.iter_mut().zip(uuid.chunks(2)) {
        let text = std::str::from_utf8(digits).unwrap_or_default();
        *byte = u8::from_str_radix(text, 16).unwrap_or_default();
    }
    bytes
}

impl Named {
    fn wrong() -> Error {
        Error::invalid("this is no token of a chunk, or one of another version")
    }

    fn token(&self) -> Token {
        let mut bytes = [0; TOKEN];
        bytes[..4].copy_from_slice(&MAGIC);
        let access = match self.access {
            Access::Read => 0,
            Access::Write => 1 << 31,
        };
        bytes[4..8].copy_from_slice(&(self.node | access).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.pool);
        bytes[24..32].copy_from_slice(&self.object.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.at.to_le_bytes());
        bytes[40..].copy_from_slice(&self.len.to_le_bytes());
        Token(bytes)
    }

    fn read(token: &Token) -> Result<Named> {
        let bytes = &token.0;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if bytes[..4] != MAGIC {
            return Err(Named::wrong());
        }
        let node = (word(0) >> 32) as u32;
        let mut pool = [0; 16];
        pool.copy_from_slice(&bytes[8..24]);
        Ok(Named {
            pool,
            node: node & !(1 << 31),
            object: ObjectId(word(24)),
            at: word(32),
            len: word(40),
            access: match node >> 31 {
                0 => Access::Read,
                _ => Access::Write,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_what_was_put_into_it() {
        let named = Named {
            pool: *b"0123456789abcdef",
            node: 7,
            object: ObjectId(0x0102_0304_0506_0708),
            at: 4096,
            len: u64::MAX,
            access: Access::Write,
        };
        let read = Named::read(&named.token()).unwrap();
        assert_eq!(read.token(), named.token());
        assert_eq!((read.node, read.at, read.len), (7, 4096, u64::MAX));
        assert_eq!(read.access, Access::Write);
        let mut other = named.token();
        other.0[3] ^= 1;
        assert!(Named::read(&other).is_err());
    }
}
