//! Requests to the origin service and orders to copiers, as messages.

use super::{MESSAGE, RESULT};
use forebay_store::ObjectId;
use forebay_store::codec::{Wire, decode};
use serde::{Deserialize, Serialize};

/// An order of the service to the copier of another node, which moves the bytes of files that are
/// there. Paths are relative to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Copies `length` bytes at `at` of this version of a file in. The reply is the bytes copied,
    /// without holes.
    Copy {
        id: ObjectId,
        path: Vec<u8>,
        version: u64,
        at: u64,
        length: u64,
    },
    /// Writes files of a directory back; with `compares`, those of the same size and time, too. The
    /// reply is the copier's report.
    Write {
        path: Vec<u8>,
        names: Vec<Vec<u8>>,
        compares: bool,
    },
    /// Looks whether a file is there: that the copier sees the same directory as the service.
    Look(Vec<u8>),
    /// Stops all orders with lower numbers, and waits until they have ended.
    Stop,
}

/// A request to the origin service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The entries of a directory.
    Entries(ObjectId),
    /// The bytes of a file, which has had this name; with `cut`, the file is about to be cut to
    /// nothing, and needs none.
    Bytes {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
        cut: bool,
    },
    /// A range of a file, which was opened for reading by this name, is to be in the pool; nothing
    /// of it is, with a length of 0: it has just been opened. The reply is the number of the fill
    /// ([`forebay_store::control::Open::fill`]), or nothing if the whole file is in the pool.
    Range {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
        at: u64,
        length: u64,
    },
    /// The object is to lose this name.
    Remove {
        dir: ObjectId,
        name: Vec<u8>,
        id: ObjectId,
    },
    /// The object, which has had the first name, is to get one more.
    Link {
        id: ObjectId,
        known: (ObjectId, Vec<u8>),
        to: (ObjectId, Vec<u8>),
    },
    /// The object under the first name is to get the second one, which `replaced` has.
    Rename {
        from: (ObjectId, Vec<u8>),
        to: (ObjectId, Vec<u8>),
        id: ObjectId,
        replaced: Option<ObjectId>,
        may_replace: bool,
    },
    /// A writer needs room for so many bytes of this file.
    Room { id: ObjectId, bytes: u64 },
    /// The changes of a file, which has had this name, are to be at the origin.
    SyncFile {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
    },
    /// Pins everything below this path: it isn't evicted. Or unpins it.
    Pin { path: Vec<u8>, is_pinned: bool },
    /// Stops writing back in the background (true), or resumes it.
    Hold(bool),
    /// All changes below this path of the pool are to be at the origin.
    Sync(Vec<u8>),
    /// Bytes of clean files below this path are to leave the pool.
    Evict(Vec<u8>),
    /// The bytes of all files below this path are to be in the pool.
    Prefetch(Vec<u8>),
    /// The `user.*` attributes of a released file, which has had this name, are to be in the pool.
    Attributes {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
    },
    /// The directory is to be at the origin, too.
    Settle(ObjectId),
    /// The pool is to show those entries of the directory that are at the origin only.
    Outer(ObjectId),
    /// A node needs so many bytes and files more than it is granted of the quota.
    Grant { node: u32, bytes: u64, files: u64 },
    /// The quota's limits are these from now on; None: no limit.
    Quota {
        bytes: Option<u64>,
        files: Option<u64>,
    },
    /// Limits and usage of the quota: a [`QuotaStatus`] as JSON; the reply is empty if there is
    /// none.
    Usage,
    /// How things stand.
    Status,
    /// To a copier, by the service of this number. Higher numbers replace lower ones.
    Order { service: u64, order: Order },
}

/// Limits of the quota, None if there is none, and what counts against it. Bytes and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
    pub used_bytes: u64,
    pub used_files: u64,
}

type Fields = (
    u8,
    (ObjectId, Vec<u8>),
    (ObjectId, Vec<u8>),
    ObjectId,
    Option<ObjectId>,
);

impl Request {
    /// The request as a message.
    pub fn encode(&self) -> Vec<u8> {
        let none = ObjectId(0);
        let no = (none, Vec::new());
        let (kind, one, other, id) = match self {
            Request::Entries(id) => (0, no.clone(), no, *id),
            Request::Settle(id) => (30, no.clone(), no, *id),
            Request::Outer(id) => (31, no.clone(), no, *id),
            Request::Bytes { id, dir, name, cut } => {
                (1 + u8::from(*cut), (*dir, name.clone()), no, *id)
            }
            Request::Remove { dir, name, id } => (3, (*dir, name.clone()), no, *id),
            Request::Rename {
                from,
                to,
                id,
                may_replace,
                ..
            } => {
                let kind = if *may_replace { 4 } else { 10 };
                (kind, from.clone(), to.clone(), *id)
            }
            Request::Sync(path) => (5, (none, path.clone()), no, none),
            Request::Evict(path) => (6, (none, path.clone()), no, none),
            Request::Prefetch(path) => (7, (none, path.clone()), no, none),
            Request::Status => (8, no.clone(), no, none),
            Request::Usage => (21, no.clone(), no, none),
            Request::Link { id, known, to } => (9, known.clone(), to.clone(), *id),
            Request::Room { id, bytes } => (11, (ObjectId(*bytes), Vec::new()), no, *id),
            Request::Grant { node, bytes, files } => {
                let node = node.to_le_bytes().to_vec();
                (
                    19,
                    (ObjectId(*bytes), node),
                    (ObjectId(*files), Vec::new()),
                    none,
                )
            }
            Request::Quota { bytes, files } => {
                // A limit, and whether there is one.
                let limit = |most: &Option<u64>| {
                    (ObjectId(most.unwrap_or(0)), vec![u8::from(most.is_some())])
                };
                (20, limit(bytes), limit(files), none)
            }
            Request::SyncFile { id, dir, name } => (12, (*dir, name.clone()), no, *id),
            Request::Pin { path, is_pinned } => {
                (13 + u8::from(*is_pinned), (none, path.clone()), no, none)
            }
            Request::Attributes { id, dir, name } => (17, (*dir, name.clone()), no, *id),
            Request::Range {
                id,
                dir,
                name,
                at,
                length,
            } => {
                let range = (ObjectId(*at), length.to_le_bytes().to_vec());
                (18, (*dir, name.clone()), range, *id)
            }
            Request::Hold(is_held) => (15 + u8::from(*is_held), no.clone(), no, none),
            Request::Order { service, order } => {
                let with = |path: &[u8]| (ObjectId(*service), path.to_vec());
                match order {
                    Order::Copy {
                        id,
                        path,
                        version,
                        at,
                        length,
                    } => {
                        let range = [at.to_le_bytes(), length.to_le_bytes()].concat();
                        (40, with(path), (ObjectId(*version), range), *id)
                    }
                    Order::Write {
                        path,
                        names,
                        compares,
                    } => {
                        let names = (none, names.join(&b'/'));
                        (41 + u8::from(*compares), with(path), names, none)
                    }
                    Order::Look(path) => (43, with(path), no, none),
                    Order::Stop => (44, with(b""), no, none),
                }
            }
        };
        let replaced = match self {
            Request::Rename { replaced, .. } => *replaced,
            _ => None,
        };
        let fields: Fields = (kind, one, other, id, replaced);
        let mut bytes = Vec::new();
        fields.put(&mut bytes);
        bytes
    }

    /// The request in a message; None if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (kind, (dir, name), (other, other_name), id, replaced) = decode::<Fields>(bytes)?;
        Some(match kind {
            0 => Request::Entries(id),
            30 => Request::Settle(id),
            31 => Request::Outer(id),
            1 | 2 => Request::Bytes {
                id,
                dir,
                name,
                cut: kind == 2,
            },
            3 => Request::Remove { dir, name, id },
            4 | 10 => Request::Rename {
                from: (dir, name),
                to: (other, other_name),
                id,
                replaced,
                may_replace: kind == 4,
            },
            9 => Request::Link {
                id,
                known: (dir, name),
                to: (other, other_name),
            },
            11 => Request::Room { id, bytes: dir.0 },
            19 => Request::Grant {
                node: u32::from_le_bytes(name.try_into().ok()?),
                bytes: dir.0,
                files: other.0,
            },
            20 => Request::Quota {
                bytes: (name == [1]).then_some(dir.0),
                files: (other_name == [1]).then_some(other.0),
            },
            12 => Request::SyncFile { id, dir, name },
            13 | 14 => Request::Pin {
                path: name,
                is_pinned: kind == 14,
            },
            15 | 16 => Request::Hold(kind == 16),
            17 => Request::Attributes { id, dir, name },
            18 => Request::Range {
                id,
                dir,
                name,
                at: other.0,
                length: u64::from_le_bytes(other_name.try_into().ok()?),
            },
            5 => Request::Sync(name),
            6 => Request::Evict(name),
            7 => Request::Prefetch(name),
            8 => Request::Status,
            21 => Request::Usage,
            40..=44 => Request::Order {
                service: dir.0,
                order: match kind {
                    40 => {
                        let (at, length) = other_name.split_first_chunk::<8>()?;
                        Order::Copy {
                            id,
                            path: name,
                            version: other.0,
                            at: u64::from_le_bytes(*at),
                            length: u64::from_le_bytes(length.try_into().ok()?),
                        }
                    }
                    43 => Order::Look(name),
                    44 => Order::Stop,
                    _ => Order::Write {
                        path: name,
                        names: other_name
                            .split(|&b| b == b'/')
                            .map(<[u8]>::to_vec)
                            .collect(),
                        compares: kind == 42,
                    },
                },
            },
            _ => return None,
        })
    }
}

/// The final message: an errno, or 0, and a text.
pub fn encode_result(error: i32, text: &str) -> Vec<u8> {
    let most = MESSAGE - 5;
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = vec![RESULT];
    bytes.extend_from_slice(&error.to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..end]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_garbage_is_refused() {
        let (id, name) = (ObjectId(7), b"a name".to_vec());
        let all = [
            Request::Entries(id),
            Request::Bytes {
                id,
                dir: ObjectId(9),
                name: name.clone(),
                cut: false,
            },
            Request::Bytes {
                id,
                dir: ObjectId(9),
                name: name.clone(),
                cut: true,
            },
            Request::Remove {
                dir: ObjectId(9),
                name: name.clone(),
                id,
            },
            Request::Rename {
                from: (ObjectId(9), name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
                id,
                replaced: Some(ObjectId(6)),
                may_replace: true,
            },
            Request::Rename {
                from: (ObjectId(9), name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
                id,
                replaced: None,
                may_replace: false,
            },
            Request::Link {
                id,
                known: (ObjectId(9), name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
            },
            Request::Room { id, bytes: 5 << 32 },
            Request::Settle(id),
            Request::Outer(id),
            Request::Grant {
                node: 3,
                bytes: 5 << 40,
                files: 1,
            },
            Request::Quota {
                bytes: Some(0),
                files: None,
            },
            Request::Quota {
                bytes: None,
                files: Some(1 << 40),
            },
            Request::SyncFile {
                id,
                dir: ObjectId(9),
                name: name.clone(),
            },
            Request::Pin {
                path: name.clone(),
                is_pinned: true,
            },
            Request::Pin {
                path: name.clone(),
                is_pinned: false,
            },
            Request::Attributes {
                id,
                dir: ObjectId(9),
                name: name.clone(),
            },
            Request::Range {
                id,
                dir: ObjectId(9),
                name: name.clone(),
                at: 5 << 40,
                length: 1 << 33,
            },
            Request::Hold(true),
            Request::Hold(false),
            Request::Sync(name.clone()),
            Request::Evict(name.clone()),
            Request::Prefetch(name.clone()),
            Request::Status,
            Request::Usage,
            Request::Order {
                service: 3,
                order: Order::Copy {
                    id,
                    path: name.clone(),
                    version: 5,
                    at: 1 << 40,
                    length: 7,
                },
            },
            Request::Order {
                service: 3,
                order: Order::Write {
                    path: Vec::new(),
                    names: vec![name.clone(), b"other".to_vec()],
                    compares: true,
                },
            },
            Request::Order {
                service: 3,
                order: Order::Look(name),
            },
            Request::Order {
                service: u64::MAX,
                order: Order::Stop,
            },
        ];
        for request in all {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            for cut in 0..bytes.len() {
                assert_eq!(Request::decode(&bytes[..cut]), None);
            }
        }
        assert_eq!(Request::decode(&[200; 40]), None);
    }
}
