//! Encoding of the heads of messages between daemons. Without I/O.
//!
//! A request to the store carries its requester, its number, the time that the requester still
//! waits, and which of the requester's requests are settled. Small bodies are sent in the head,
//! too: the control lane, which carries heads, is faster for them.

use super::reply_cache::Settled;
use forebay_client::requests::unreachable_in;
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use forebay_net::NodeId;
use rustix::io::Errno;
use std::ops::Range;

/// Kinds from this number on are those of the daemons' own requests, not the store's.
pub const OWN: u16 = 0x8000;

/// Defines the requests that aren't the store's: name, number, and purpose. `protocol.md` lists
/// them, too.
macro_rules! own {
    ($($name:ident $number:literal, $what:literal;)*) => {
        $(
            #[doc = $what]
            pub const $name: u16 = $number;
        )*
        /// All of these requests.
        #[cfg(test)]
        pub const ALL: &[(&str, u16, &str)] = &[$((stringify!($name), $number, $what)),*];
    };
}

own! {
    HELLO 0x8000, "The first message on a connection: who calls, since when.";
    MAP 0x8001, "The body is the pool's map.";
    GET_MAP 0x8002, "Asks for the map.";
    PROGRESS 0x8003, "Asks whether requests are still being carried out, which are waited for longer then.";
}

/// Maximum size of a body that is sent in the head, if there is space. Bytes.
pub const INLINE: usize = 16 << 10;
/// Maximum size of head and body together. Bytes.
const MAX_INLINE_BYTES: usize = 56 << 10;
/// Maximum size of an encoded map. Bytes.
pub const MAX_MAP: usize = 16 << 20;

/// Bytes before the list of open requests: requester, number, lowest, upto, traced, time to wait,
/// number of open requests.
const FIXED: usize = 5 * 8 + 2 * 4;
const ANSWER: usize = 4;
/// Maximum number of open requests listed in one message.
pub const MAX_LISTED_REQUESTS: usize = 512;
/// Maximum number of requests in one [`PROGRESS`].
pub const MAX_PROGRESS_REQUESTS: usize = 1024;

const _: () = assert!(
    FIXED + 8 * MAX_LISTED_REQUESTS + 4 + MAX_HEAD <= MAX_INLINE_BYTES
        && MAX_INLINE_BYTES <= forebay_net::envelope::MAX_HEAD
);
const _: () = assert!(MAX_BODY <= forebay_net::envelope::MAX_BODY);

/// The part of a message's head that precedes the store's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Id of the requester, which differs from those of all other nodes.
    pub requester: u64,
    /// Number of the request, which the requester never uses again.
    pub number: u64,
    /// How long the requester waits for the reply, unless [`PROGRESS`] extends it. Milliseconds.
    pub within: u32,
    /// Requests whose replies needn't be kept.
    pub settled: Settled,
    /// The program's request of which this one is a part; see [`forebay_trace::request`].
    pub traced: u64,
}

/// Whether a body of `body` bytes is sent in the head. `most`: the maximum size of such bodies that
/// the daemon allows.
pub fn goes_inline(head: usize, body: usize, most: usize) -> bool {
    body <= most.min(INLINE)
        && FIXED + 8 * MAX_LISTED_REQUESTS + 4 + head + body <= MAX_INLINE_BYTES
}

impl RequestHead {
    /// Encodes the head of the message.
    pub fn encode(&self, head: &[u8], inline: &[u8]) -> Vec<u8> {
        let open = &self.settled.open[..];
        assert!(self.number != 0, "a request has a number");
        assert!(
            open.len() <= MAX_LISTED_REQUESTS,
            "{} open requests are listed",
            open.len()
        );
        debug_assert!(open.is_sorted(), "open requests are listed in order");
        let mut bytes = Vec::with_capacity(FIXED + 8 * open.len() + 4 + head.len() + inline.len());
        let Settled { lowest, upto, .. } = self.settled;
        for word in [self.requester, self.number, lowest, upto, self.traced] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for word in [self.within, open.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for number in open {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        with_parts(&mut bytes, head, inline);
        bytes
    }

    /// Decodes the head of a message. Also returns the ranges of the store's head and of the inline
    /// bytes in it.
    pub fn decode(bytes: &[u8]) -> Option<(RequestHead, Range<usize>, Range<usize>)> {
        let count = half(bytes, 44)? as usize;
        if count > MAX_LISTED_REQUESTS {
            return None;
        }
        let open: Vec<u64> = (0..count)
            .map(|i| word(bytes, FIXED + 8 * i))
            .collect::<Option<_>>()?;
        let request_head = RequestHead {
            requester: word(bytes, 0)?,
            number: word(bytes, 8)?,
            within: half(bytes, 40)?,
            settled: Settled {
                lowest: word(bytes, 16)?,
                upto: word(bytes, 24)?,
                open,
            },
            traced: word(bytes, 32)?,
        };
        let (head, inline) = parts(bytes, FIXED + 8 * count + 4)?;
        let sorted = request_head.settled.open.is_sorted();
        (request_head.number != 0 && sorted).then_some((request_head, head, inline))
    }
}

/// Asks which requests are still being carried out, and says how long the requester waits for them
/// from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressQuery {
    /// The requester, as in [`RequestHead`].
    pub requester: u64,
    /// How long the requester waits. Milliseconds.
    pub within: u32,
    /// At most [`MAX_PROGRESS_REQUESTS`] numbers.
    pub numbers: Vec<u64>,
}

impl ProgressQuery {
    /// Encodes the query. The reply has one byte for each number: 1 if the request is being carried
    /// out.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.numbers.len() <= MAX_PROGRESS_REQUESTS,
            "a query has a limit"
        );
        let mut bytes = self.requester.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.within.to_le_bytes());
        for number in &self.numbers {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes a query.
    pub fn decode(bytes: &[u8]) -> Option<ProgressQuery> {
        let (numbers, rest) = bytes.get(12..)?.as_chunks::<8>();
        let fits = rest.is_empty() && numbers.len() <= MAX_PROGRESS_REQUESTS;
        fits.then_some(ProgressQuery {
            requester: word(bytes, 0)?,
            within: half(bytes, 8)?,
            numbers: numbers.iter().map(|n| u64::from_le_bytes(*n)).collect(),
        })
    }
}

/// Encodes the head of a reply.
pub fn encode_answer(head: &[u8], inline: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ANSWER + head.len() + inline.len());
    with_parts(&mut bytes, head, inline);
    bytes
}

/// Decodes the head of a reply: the store's head, and the inline bytes.
pub fn decode_answer(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, inline) = parts(bytes, ANSWER)?;
    Some((&bytes[head], &bytes[inline]))
}

/// The node that didn't answer, if a reply names one ([`unreachable_in`]).
pub fn unreachable(status: u32, reply: &[u8]) -> Option<NodeId> {
    if status != Errno::HOSTDOWN.raw_os_error() as u32 {
        return None;
    }
    unreachable_in(decode_answer(reply)?.0)
}

fn with_parts(bytes: &mut Vec<u8>, head: &[u8], inline: &[u8]) {
    debug_assert!(head.len() <= MAX_HEAD, "a head has a limit: {}", head.len());
    bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(inline);
}

/// Splits the bytes after `at` into two ranges. The length of the first one precedes `at`.
fn parts(bytes: &[u8], at: usize) -> Option<(Range<usize>, Range<usize>)> {
    let length = u32::from_le_bytes(*bytes.get(at - 4..)?.first_chunk()?) as usize;
    let end = at.checked_add(length)?;
    (end <= bytes.len() && length <= MAX_HEAD).then_some((at..end, end..bytes.len()))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The content of a hello. The connecting node sends one, and the other node replies with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// A number that differs after each start of the daemon.
    pub incarnation: u64,
    /// Epoch of the sender's map.
    pub epoch: u64,
    /// Size of the sender's encoded map. Bytes.
    pub map: u64,
    /// Id of the sender's reply cache. While the id stays the same, no record of a request was
    /// lost.
    pub records: u64,
}

impl Hello {
    /// Encodes a hello.
    pub fn encode(&self) -> Vec<u8> {
        [self.incarnation, self.epoch, self.map, self.records]
            .map(u64::to_le_bytes)
            .concat()
    }

    /// Decodes a hello.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let hello = Hello {
            incarnation: word(bytes, 0)?,
            epoch: word(bytes, 8)?,
            map: word(bytes, 16)?,
            records: word(bytes, 24)?,
        };
        (bytes.len() == 32 && hello.records != 0 && hello.incarnation != 0).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_head() -> RequestHead {
        RequestHead {
            requester: 7,
            number: 9,
            within: 10,
            traced: 77,
            settled: Settled {
                lowest: 5,
                upto: 9,
                open: vec![5, 8],
            },
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let request_head = request_head();
        let bytes = request_head.encode(b"head", b"bytes");
        let (back, head, inline) = RequestHead::decode(&bytes).unwrap();
        assert_eq!(
            (back, &bytes[head], &bytes[inline]),
            (request_head, &b"head"[..], &b"bytes"[..])
        );
        let bytes = encode_answer(b"", b"x");
        assert_eq!(decode_answer(&bytes), Some((&b""[..], &b"x"[..])));
        let hello = Hello {
            incarnation: 1,
            epoch: 2,
            map: 3,
            records: 4,
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }

    #[test]
    fn anything_can_be_taken_apart() {
        let request_head = request_head();
        let at_work = ProgressQuery {
            requester: 7,
            within: 8,
            numbers: vec![1, 2],
        };
        let good = [
            at_work.encode(),
            request_head.encode(b"head", b"bytes"),
            encode_answer(b"head", b"bytes"),
            vec![1; 32],
        ];
        forebay_fuzz::run("daemon messages", |random| {
            let mut bytes = random.one_of(&good).clone();
            random.mutate(&mut bytes, &good[0]);
            if let Some((request_head, head, inline)) = RequestHead::decode(&bytes) {
                let again = request_head.encode(&bytes[head], &bytes[inline]);
                assert_eq!(again, bytes);
            }
            if let Some((head, inline)) = decode_answer(&bytes) {
                assert_eq!(encode_answer(head, inline), bytes);
            }
            if let Some(at_work) = ProgressQuery::decode(&bytes) {
                assert_eq!(at_work.encode(), bytes);
            }
            if let Some(hello) = Hello::decode(&bytes) {
                assert_eq!(hello.encode(), bytes);
            }
        });
    }
}
