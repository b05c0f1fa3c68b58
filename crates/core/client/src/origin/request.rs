//! The tables of requests to the origin service and of orders to copiers, and their messages.
//!
//! A message consists of the request's number (one byte) and its fields in order, encoded by the
//! codec of all messages ([`forebay_store::codec`]). Two requests with one number don't compile. A
//! number is never used again for another request: the next free one is 41; for orders, 5.
//!
//! Requests between nodes have another macro (`cluster/src/peers/requests.rs`), which makes
//! functions with typed replies. The requests here are values, since they are passed on whole,
//! through the daemon of another node if need be, and their reply is a text.

use super::{MESSAGE, RESULT};
use forebay_store::ObjectId;
use forebay_store::codec::{List, Wire, decode, encode};
use serde::{Deserialize, Serialize};

type Bytes = Vec<u8>;

/// Defines an enumeration of requests and its codec: name, number and fields of each.
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
        /// Fetches the entries of a directory.
        Entries 0 { dir: ObjectId }
        /// Fetches the bytes of a file, which has or had this name. With `cut`, no bytes are
        /// fetched: the file is about to be truncated to length 0.
        Bytes 1 { id: ObjectId, dir: ObjectId, name: Bytes, cut: bool }
        /// Removes this name of the object.
        Remove 3 { dir: ObjectId, name: Bytes, id: ObjectId }
        /// Renames the object from `from` to `to`. `replaced` is the object whose name is `to`.
        Rename 4 {
            from: (ObjectId, Bytes),
            to: (ObjectId, Bytes),
            id: ObjectId,
            replaced: Option<ObjectId>,
            may_replace: bool,
        }
        /// Copies all changes below this path of the pool to the origin.
        Sync 5 { path: Bytes }
        /// Evicts the bytes of clean files below this path.
        Evict 6 { path: Bytes }
        /// Fetches the bytes of all files below this path.
        Prefetch 7 { path: Bytes }
        /// Returns the state of the service.
        Status 8 {}
        /// Creates the hard link `to` to the object, which has or had the name `known`.
        Link 9 { id: ObjectId, known: (ObjectId, Bytes), to: (ObjectId, Bytes) }
        /// Makes room for this many bytes that are about to be written to this file.
        Room 11 { id: ObjectId, bytes: u64 }
        /// Copies the changes of a file, which has or had this name, to the origin.
        SyncFile 12 { id: ObjectId, dir: ObjectId, name: Bytes }
        /// Pins everything below this path, so that it isn't evicted; or unpins it.
        Pin 13 { path: Bytes, is_pinned: bool }
        /// Stops writing back in the background (true), or resumes it.
        Hold 15 { is_held: bool }
        /// Fetches the `user.*` attributes of a released file, which has or had this name.
        Attributes 17 { id: ObjectId, dir: ObjectId, name: Bytes }
        /// Fetches a range of a file that was opened for reading by this name. With a length of 0,
        /// fetches nothing: the file has just been opened. The reply is the number of the fill
        /// ([`forebay_store::control_region::Open::fill`]), or empty if the whole file is in the
        /// pool.
        Range 18 { id: ObjectId, dir: ObjectId, name: Bytes, at: u64, length: u64 }
        /// Adds this many bytes and files of the quota to the node's grant.
        Grant 19 { node: u32, bytes: u64, files: u64 }
        /// Sets the quota's limits. None: no limit.
        Quota 20 { bytes: Option<u64>, files: Option<u64> }
        /// Returns limits and usage of the quota: a [`QuotaStatus`] as JSON, or an empty reply if
        /// there is no quota.
        Usage 21 {}
        /// Creates this directory of the pool at the origin, too.
        Settle 30 { dir: ObjectId }
        /// Makes the pool show those entries of the directory that are at the origin only.
        OriginOnly 31 { dir: ObjectId }
        /// Sends an order to a copier, from the service with this number. A service with a higher
        /// number replaces one with a lower number.
        Order 40 { service: u64, order: Order }
    }
}

requests! {
    /// An order of the service to the copier of another node, which moves the bytes of files on
    /// that node. Paths are relative to the origin.
    Order {
        /// Copies `length` bytes at `at` of this version of a file into the pool. The reply is the
        /// number of bytes copied, holes not counted.
        Copy 1 { id: ObjectId, path: Bytes, version: u64, at: u64, length: u64 }
        /// Writes files of a directory back. With `compares`, also files whose size and time are
        /// the same at the origin. The reply is the copier's report.
        Write 2 { path: Bytes, names: List<Bytes>, compares: bool }
        /// Checks whether a file exists, and thereby whether the copier sees the same directory as
        /// the service.
        Look 3 { path: Bytes }
        /// Stops all orders of services with lower numbers, and waits until they have ended.
        Stop 4 {}
    }
}

impl Request {
    /// The request as a message.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The request in a message; None if the message has none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        decode(bytes)
    }
}

/// Limits of the quota (None: no limit), and its usage. Bytes and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
    pub used_bytes: u64,
    pub used_files: u64,
}

/// Encodes the final message of a reply: an errno or 0, and a text.
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
