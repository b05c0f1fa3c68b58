//! The tables of requests to the origin service and of orders to copiers, and the messages that
//! follow from them.
//!
//! A message is the request's number, one byte, and its fields in their order, by the codec of all
//! messages ([`forebay_store::codec`]). Two requests with one number don't compile. Numbers are never
//! used again for another request: the next one is 41; of orders, 5.
//!
//! Requests between nodes have a macro of their own (`cluster/src/peers/requests.rs`): it makes
//! functions with typed replies. These are values, since they are passed on whole, through the
//! daemon of another node if need be, and their reply is a text.

use super::{MESSAGE, RESULT};
use forebay_store::ObjectId;
use forebay_store::codec::{List, Wire, decode, encode};
use serde::{Deserialize, Serialize};

type Bytes = Vec<u8>;

/// An enumeration of requests and its codec: name, number and fields of each.
macro_rules! requests {
    (
        $(#[$doc:meta])+
        $table:ident {$(
            $(#[$what:meta])+
            $name:ident $number:literal { $($field:ident: $t:ty),* $(,)? }
        )+}
    ) => {
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $table {$(
            $(#[$what])+
            $name { $($field: $t),* },
        )+}

        impl Wire for $table {
            type Owned = $table;

            fn put(&self, to: &mut Vec<u8>) {
                match self {$(
                    $table::$name { $($field),* } => {
                        to.push($number);
                        $($field.put(to);)*
                    }
                )+}
            }

            #[deny(unreachable_patterns)]
            fn take(from: &mut &[u8]) -> Option<$table> {
                Some(match u8::take(from)? {
                    $($number => $table::$name { $($field: Wire::take(from)?),* },)+
                    _ => return None,
                })
            }
        }
    };
}

requests! {
    /// A request to the origin service.
    Request {
        /// The entries of a directory.
        Entries 0 { dir: ObjectId }
        /// The bytes of a file, which has had this name. With `cut`, no bytes are fetched: the file
        /// is about to be truncated to nothing.
        Bytes 1 { id: ObjectId, dir: ObjectId, name: Bytes, cut: bool }
        /// The object is to lose this name.
        Remove 3 { dir: ObjectId, name: Bytes, id: ObjectId }
        /// The object under the first name is to get the second one, which `replaced` has.
        Rename 4 {
            from: (ObjectId, Bytes),
            to: (ObjectId, Bytes),
            id: ObjectId,
            replaced: Option<ObjectId>,
            may_replace: bool,
        }
        /// All changes below this path of the pool are to be copied to the origin.
        Sync 5 { path: Bytes }
        /// Bytes of clean files below this path are to leave the pool.
        Evict 6 { path: Bytes }
        /// The bytes of all files below this path are to be in the pool.
        Prefetch 7 { path: Bytes }
        /// How things stand.
        Status 8 {}
        /// The object, which has had the first name, is to get one more.
        Link 9 { id: ObjectId, known: (ObjectId, Bytes), to: (ObjectId, Bytes) }
        /// A writer needs room for this many bytes of this file.
        Room 11 { id: ObjectId, bytes: u64 }
        /// The changes of a file, which has had this name, are to be at the origin.
        SyncFile 12 { id: ObjectId, dir: ObjectId, name: Bytes }
        /// Pins everything below this path: it isn't evicted. Or unpins it.
        Pin 13 { path: Bytes, is_pinned: bool }
        /// Stops writing back in the background (true), or resumes it.
        Hold 15 { is_held: bool }
        /// The `user.*` attributes of a released file, which has had this name, are to be in the
        /// pool.
        Attributes 17 { id: ObjectId, dir: ObjectId, name: Bytes }
        /// A range of a file, which was opened for reading by this name, is to be in the pool;
        /// nothing of it is, with a length of 0: it has just been opened. The reply is the number
        /// of the fill ([`forebay_store::control_region::Open::fill`]), or nothing if the whole
        /// file is in the pool.
        Range 18 { id: ObjectId, dir: ObjectId, name: Bytes, at: u64, length: u64 }
        /// A node needs this many bytes and files more of the quota than its grant.
        Grant 19 { node: u32, bytes: u64, files: u64 }
        /// The quota's limits are these from now on; None: no limit.
        Quota 20 { bytes: Option<u64>, files: Option<u64> }
        /// Limits and usage of the quota: a [`QuotaStatus`] as JSON; the reply is empty if there is
        /// none.
        Usage 21 {}
        /// The directory is to be at the origin, too.
        Settle 30 { dir: ObjectId }
        /// The pool is to show those entries of the directory that are at the origin only.
        OriginOnly 31 { dir: ObjectId }
        /// To a copier, by the service of this number. Higher numbers replace lower ones.
        Order 40 { service: u64, order: Order }
    }
}

requests! {
    /// An order of the service to the copier of another node, which moves the bytes of files on
    /// that node. Paths are relative to the origin.
    Order {
        /// Copies `length` bytes at `at` of this version of a file in. The reply is the bytes
        /// copied, without holes.
        Copy 1 { id: ObjectId, path: Bytes, version: u64, at: u64, length: u64 }
        /// Writes files of a directory back; with `compares`, those of the same size and time, too.
        /// The reply is the copier's report.
        Write 2 { path: Bytes, names: List<Bytes>, compares: bool }
        /// Checks whether a file exists: whether the copier sees the same directory as the service.
        Look 3 { path: Bytes }
        /// Stops all orders with lower numbers, and waits until they have ended.
        Stop 4 {}
    }
}

impl Request {
    /// The request as a message.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The request in a message; None if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        decode(bytes)
    }
}

/// Limits of the quota, None if there is none, and what counts against it. Bytes and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
    pub used_bytes: u64,
    pub used_files: u64,
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
            Request::Entries { dir: id },
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
            Request::Settle { dir: id },
            Request::OriginOnly { dir: id },
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
            Request::Hold { is_held: true },
            Request::Hold { is_held: false },
            Request::Sync { path: name.clone() },
            Request::Evict { path: name.clone() },
            Request::Prefetch { path: name.clone() },
            Request::Status {},
            Request::Usage {},
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
                    names: List(vec![name.clone(), b"other".to_vec()]),
                    compares: true,
                },
            },
            Request::Order {
                service: 3,
                order: Order::Look { path: name },
            },
            Request::Order {
                service: u64::MAX,
                order: Order::Stop {},
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
