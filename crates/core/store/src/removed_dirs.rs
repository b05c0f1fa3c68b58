//! Attributes of directories that were removed while they are open.
//!
//! The records of a directory go with its name. Its attributes, which processes that have it open
//! may still read and change, are kept in the directory's open file descriptions of this node. They
//! take the place of the name up to which the directory has been read: nothing is left to read. The
//! process that removes the directory stores the attributes there, after its transaction. A
//! description that has none (the remover was killed, or is on another node) gets default ones from
//! the process that asks.
//!
//! All descriptions of a directory on this node have the same attributes: a change is stored in
//! each. Each is changed under the lock of its offset; a change that loses a race is lost.

use crate::control_region::{MAX_OPEN, Open};
use crate::record::{Inode, Key, parse_key};
use crate::records::ChangeRecords;
use crate::shards::Write;
use crate::views::{Names, Objects};
use crate::{ObjectId, now};
use forebay_runtime::atomics::Ordering::*;
use rustix::io::{Errno, Result};

/// Room for the attributes, that of the name in a description. Bytes.
const ROOM: usize = 256;
/// Encoded length of mode, owner, times and parent. Bytes.
const FIXED: usize = 3 * 4 + 5 * 8;
/// Maximum encoded length of the extended attributes: names, values, and 3 bytes each. Bytes.
const MAX_ATTRIBUTE_BYTES: usize = 204;
const _: () = assert!(FIXED + MAX_ATTRIBUTE_BYTES == ROOM);
/// The value of `Open::fill` in a description of a removed directory that has the directory's
/// attributes. (Directories have no bytes to fill.)
pub(crate) const HAS_ATTRIBUTES: u32 = 1;

/// The attributes of a removed directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedDir {
    /// Mode, owner, times and parent; the link count is 0.
    pub inode: Inode,
    /// Names and values of the extended attributes that have room.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl RemovedDir {
    /// A removed directory with this inode.
    pub fn new(inode: Inode) -> RemovedDir {
        RemovedDir {
            inode: Inode {
                nlink: 0,
                has_attributes: false,
                ..inode
            },
            attributes: Vec::new(),
        }
    }

    fn encoded_len(&self) -> usize {
        let each = |(name, value): &(Vec<u8>, Vec<u8>)| 3 + name.len() + value.len();
        FIXED + self.attributes.iter().map(each).sum::<usize>()
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// ENOSPC if there is no room for it.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        let before = self.attributes.clone();
        self.attributes.retain(|(other, _)| other != name);
        self.attributes.push((name.to_vec(), value.to_vec()));
        if name.len() > u8::MAX.into() || self.encoded_len() > ROOM {
            self.attributes = before;
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    /// The value of an extended attribute.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.attributes.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| &value[..])
    }

    fn encode(&self) -> Vec<u8> {
        let i = &self.inode;
        let mut out = Vec::with_capacity(ROOM);
        for word in [i.mode, i.uid, i.gid] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for time in [i.atime, i.mtime, i.ctime, i.btime] {
            out.extend_from_slice(&time.to_le_bytes());
        }
        out.extend_from_slice(&i.parent.to_le_bytes());
        for (name, value) in &self.attributes {
            out.push(name.len() as u8);
            out.extend_from_slice(&(value.len() as u16).to_le_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(value);
        }
        assert!(out.len() <= ROOM, "attributes have room where a name has");
        out
    }

    /// None if the bytes aren't those of [`RemovedDir::encode`].
    fn decode(bytes: &[u8]) -> Option<RemovedDir> {
        let mut rest = bytes;
        let mut word = || take(&mut rest).map(u32::from_le_bytes);
        let (mode, uid, gid) = (word()?, word()?, word()?);
        let mut long = || take(&mut rest).map(i64::from_le_bytes);
        let (atime, mtime, ctime, btime) = (long()?, long()?, long()?, long()?);
        let parent = u64::from_le_bytes(take(&mut rest)?);
        let mut removed = RemovedDir::new(Inode {
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
            btime,
            parent,
            ..Inode::default()
        });
        while !rest.is_empty() {
            let [name_len] = take(&mut rest)?;
            let value_len = u16::from_le_bytes(take(&mut rest)?);
            let (name, after) = rest.split_at_checked(name_len.into())?;
            let (value, after) = after.split_at_checked(value_len.into())?;
            removed.attributes.push((name.to_vec(), value.to_vec()));
            rest = after;
        }
        Some(removed)
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}

impl<'s> Objects<'s> {
    /// The descriptions of the directory `id` on this node, by number.
    fn descriptions_of_dir(self, id: ObjectId) -> impl Iterator<Item = (u32, &'s Open)> {
        let header = self.store.control.header();
        let end = match header.open_directories.load(Acquire) {
            0 => 0,
            _ => header.free_open.end(MAX_OPEN),
        };
        (0..end)
            .map(move |index| (index, self.store.control.open_file(index)))
            .filter(move |(_, open)| {
                open.id.load(Acquire) == id.0 && open.kind.load(Relaxed) == libc::S_IFDIR
            })
    }

    /// Stores the attributes of the removed directory `id` in its descriptions on this node.
    /// Returns the number of descriptions.
    pub fn keep_removed_dir(self, id: ObjectId, removed: &RemovedDir) -> usize {
        let mut kept = 0;
        for (index, open) in self.descriptions_of_dir(id) {
            // A description whose lock isn't to be had gets default attributes when it is asked.
            let Ok(_lock) = self.open_lock(index) else {
                continue;
            };
            if open.id.load(Acquire) == id.0 {
                self.open_set_name(open, &removed.encode());
                open.fill.store(HAS_ATTRIBUTES, Release);
                kept += 1;
            }
        }
        kept
    }

    /// The attributes of the removed directory `id`, if it is open on this node. The caller found
    /// that the directory has no record any more.
    pub fn removed_dir(self, id: ObjectId) -> Option<RemovedDir> {
        let mut parent = None;
        for (index, open) in self.descriptions_of_dir(id) {
            let Ok(_lock) = self.open_lock(index) else {
                continue;
            };
            if open.id.load(Acquire) != id.0 {
                continue;
            }
            if open.fill.load(Acquire) == HAS_ATTRIBUTES {
                let mut bytes = Vec::new();
                self.open_name(open, &mut bytes);
                if let Some(removed) = RemovedDir::decode(&bytes) {
                    return Some(removed);
                }
            }
            parent = Some(open.parent.load(Relaxed));
        }
        parent.map(|parent| RemovedDir::with_defaults(ObjectId(parent)))
    }
}

impl RemovedDir {
    /// Attributes of a removed directory of which only the parent is known.
    pub fn with_defaults(parent: ObjectId) -> RemovedDir {
        RemovedDir::new(Inode {
            mode: libc::S_IFDIR | 0o755,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            parent: parent.0,
            ..Inode::made_at(now())
        })
    }
}

impl Names<'_> {
    /// In the transaction that removes the directory `id`: the attributes that its descriptions are
    /// to keep. None if no directory is open on this node.
    pub(crate) fn attributes_to_keep(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
    ) -> Result<Option<RemovedDir>> {
        if self.store.control.header().open_directories.load(Acquire) == 0 {
            return Ok(None);
        }
        let Some((inode, _)) = w.inode(id)? else {
            return Ok(None);
        };
        let mut removed = RemovedDir::new(inode);
        removed.inode.ctime = now();
        if inode.has_attributes {
            w.each_attached(id, &Key::attribute(id, b""), |key, value| {
                match parse_key(key) {
                    Some((b'A', of, name)) if of == id => {
                        // Attributes that don't have room aren't kept.
                        let _ = removed.set(name, value);
                        true
                    }
                    _ => false,
                }
            })?;
        }
        Ok(Some(removed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_have_room_come_back() {
        let mut removed = RemovedDir::with_defaults(ObjectId(7));
        removed.inode.mtime = -5;
        removed.set(b"user.a", b"12").unwrap();
        removed.set(b"user.empty", b"").unwrap();
        removed.set(b"user.a", b"123").unwrap();
        assert_eq!(removed.set(b"user.b", &[1; ROOM]), Err(Errno::NOSPC));
        assert_eq!(removed.set(b"user.a", &[1; ROOM]), Err(Errno::NOSPC));
        let again = RemovedDir::decode(&removed.encode()).unwrap();
        assert_eq!(again, removed);
        assert_eq!(again.get(b"user.a"), Some(&b"123"[..]));
        assert_eq!(again.get(b"user.b"), None);
        for len in 0..FIXED {
            assert_eq!(RemovedDir::decode(&removed.encode()[..len]), None, "{len}");
        }
    }
}
