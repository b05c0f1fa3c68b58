//! The heads of messages between daemons. Pure: no I/O.
//!
//! A request of the store travels with its asker, its number, its remaining time, and which of the
//! asker's requests are settled. Small bytes go in the head, too: on the control lane they are
//! faster.

use super::reply_cache::Settled;
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use std::ops::Range;

/// Kinds from here on are the daemons' own.
pub const OWN: u16 = 0x8000;

/// What is no request of the store: name, number, and what it is for; for `protocol.md`, too.
macro_rules! own {
    ($($name:ident $number:literal, $what:literal;)*) => {
        $(
            #[doc = $what]
            pub const $name: u16 = $number;
        )*
        /// All of them.
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

/// Bytes up to this many go in the head if there is room for them.
pub const INLINE: usize = 16 << 10;
/// Most bytes of both.
const MOST: usize = 56 << 10;
/// Most bytes of an encoded map.
pub const MAX_MAP: usize = 16 << 20;

/// Before the list of open requests: asker, number, lowest, upto, how long it is waited for, how
/// many open.
const FIXED: usize = 4 * 8 + 2 * 4;
const ANSWER: usize = 4;
/// Open requests that one message lists, at most.
pub const MOST_OPEN: usize = 512;
/// Requests that one [`PROGRESS`] is about, at most.
pub const MOST_AT_WORK: usize = 1024;

const _: () = assert!(
    FIXED + 8 * MOST_OPEN + 4 + MAX_HEAD <= MOST && MOST <= forebay_net::envelope::MAX_HEAD
);
const _: () = assert!(MAX_BODY <= forebay_net::envelope::MAX_BODY);

/// What precedes the store's part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Tells the askers of all nodes apart.
    pub asker: u64,
    /// Tells an asker's requests apart; never used twice.
    pub number: u64,
    /// How long it is waited for, unless [`PROGRESS`] says that it is longer. Milliseconds.
    pub within: u32,
    /// What needn't be remembered.
    pub settled: Settled,
}

/// Whether so many bytes go in the head, where up to `most` may.
pub fn goes_inline(head: usize, body: usize, most: usize) -> bool {
    body <= most.min(INLINE) && FIXED + 8 * MOST_OPEN + 4 + head + body <= MOST
}

impl Asking {
    /// The head of the message.
    pub fn encode(&self, head: &[u8], inline: &[u8]) -> Vec<u8> {
        let open = &self.settled.open[..];
        let mut bytes = Vec::with_capacity(FIXED + 8 * open.len() + 4 + head.len() + inline.len());
        let Settled { lowest, upto, .. } = self.settled;
        for word in [self.asker, self.number, lowest, upto] {
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

    /// Takes it apart: where the head lies in it, and what bytes follow.
    pub fn decode(bytes: &[u8]) -> Option<(Asking, Range<usize>, Range<usize>)> {
        let count = half(bytes, 36)? as usize;
        if count > MOST_OPEN {
            return None;
        }
        let open: Vec<u64> = (0..count)
            .map(|i| word(bytes, FIXED + 8 * i))
            .collect::<Option<_>>()?;
        let asking = Asking {
            asker: word(bytes, 0)?,
            number: word(bytes, 8)?,
            within: half(bytes, 32)?,
            settled: Settled {
                lowest: word(bytes, 16)?,
                upto: word(bytes, 24)?,
                open,
            },
        };
        let (head, inline) = parts(bytes, FIXED + 8 * count + 4)?;
        let sorted = asking.settled.open.is_sorted();
        (asking.number != 0 && sorted).then_some((asking, head, inline))
    }
}

/// Which requests of an asker are asked about, and how long they are waited for from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtWork {
    /// As in [`Asking`].
    pub asker: u64,
    /// Milliseconds.
    pub within: u32,
    /// At most [`MOST_AT_WORK`].
    pub numbers: Vec<u64>,
}

impl AtWork {
    /// As bytes. The answer has a byte for each number: 1 if it is being carried out.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.asker.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.within.to_le_bytes());
        for number in &self.numbers {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Option<AtWork> {
        let (numbers, rest) = bytes.get(12..)?.as_chunks::<8>();
        let fits = rest.is_empty() && numbers.len() <= MOST_AT_WORK;
        fits.then_some(AtWork {
            asker: word(bytes, 0)?,
            within: half(bytes, 8)?,
            numbers: numbers.iter().map(|n| u64::from_le_bytes(*n)).collect(),
        })
    }
}

/// The head of the message that answers.
pub fn encode_answer(head: &[u8], inline: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ANSWER + head.len() + inline.len());
    with_parts(&mut bytes, head, inline);
    bytes
}

/// The head of an answer, and the bytes that came with it.
pub fn decode_answer(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, inline) = parts(bytes, ANSWER)?;
    Some((&bytes[head], &bytes[inline]))
}

fn with_parts(bytes: &mut Vec<u8>, head: &[u8], inline: &[u8]) {
    bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(inline);
}

/// The two parts behind `at`, whose first length lies before it.
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

/// The two sides of a hello: the caller, and the called node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Another one after each start of the daemon.
    pub incarnation: u64,
    /// Of its map.
    pub epoch: u64,
    /// Bytes of its map.
    pub map: u64,
    /// Its records of what was carried out: as long as they are the same, they know of each
    /// request.
    pub records: u64,
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        [self.incarnation, self.epoch, self.map, self.records]
            .map(u64::to_le_bytes)
            .concat()
    }

    /// From bytes.
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

    fn asking() -> Asking {
        Asking {
            asker: 7,
            number: 9,
            within: 10,
            settled: Settled {
                lowest: 5,
                upto: 9,
                open: vec![5, 8],
            },
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let asking = asking();
        let bytes = asking.encode(b"head", b"bytes");
        let (back, head, inline) = Asking::decode(&bytes).unwrap();
        assert_eq!(
            (back, &bytes[head], &bytes[inline]),
            (asking, &b"head"[..], &b"bytes"[..])
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
        let asking = asking();
        let at_work = AtWork {
            asker: 7,
            within: 8,
            numbers: vec![1, 2],
        };
        let good = [
            at_work.encode(),
            asking.encode(b"head", b"bytes"),
            encode_answer(b"head", b"bytes"),
            vec![1; 32],
        ];
        forebay_fuzz::run("daemon messages", |random| {
            let mut bytes = random.one_of(&good).clone();
            random.mutate(&mut bytes, &good[0]);
            if let Some((asking, head, inline)) = Asking::decode(&bytes) {
                let again = asking.encode(&bytes[head], &bytes[inline]);
                assert_eq!(again, bytes);
            }
            if let Some((head, inline)) = decode_answer(&bytes) {
                assert_eq!(encode_answer(head, inline), bytes);
            }
            if let Some(at_work) = AtWork::decode(&bytes) {
                assert_eq!(at_work.encode(), bytes);
            }
            if let Some(hello) = Hello::decode(&bytes) {
                assert_eq!(hello.encode(), bytes);
            }
        });
    }
}
