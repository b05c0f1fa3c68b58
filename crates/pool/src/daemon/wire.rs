//! What daemons put into the heads of their messages. Pure: no I/O.
//!
//! A question of the store travels with who asks, its number, and the lowest number of the asker's
//! that isn't answered yet. Small bytes go in the head, too: on the control lane they are faster.

use forebay_store::elsewhere::{MAX_BODY, MAX_HEAD};
use std::ops::Range;

/// Kinds from here on are the daemons' own.
pub const OWN: u16 = 0x8000;
/// The first message on a connection: who calls, since when.
pub const HELLO: u16 = 0x8000;
/// The body is a map.
pub const MAP: u16 = 0x8001;
/// Asks for the map.
pub const GET_MAP: u16 = 0x8002;

/// Bytes up to this many go in the head if there is room for them.
pub const INLINE: usize = 16 << 10;
/// Most bytes of both.
const MOST: usize = 56 << 10;
/// Most bytes of an encoded map.
pub const MAX_MAP: usize = 16 << 20;

const QUESTION: usize = 28;
const ANSWER: usize = 4;

const _: () = assert!(QUESTION + MAX_HEAD <= MOST && MOST <= forebay_net::envelope::MAX_HEAD);
const _: () = assert!(MAX_BODY <= forebay_net::envelope::MAX_BODY);

/// What precedes the store's part of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Tells the askers of all nodes apart.
    pub asker: u64,
    /// Tells an asker's questions apart; never used twice.
    pub number: u64,
    /// All below are settled: their answers needn't be remembered.
    pub lowest: u64,
}

/// Whether so many bytes go in the head, where up to `most` may.
pub fn goes_inline(head: usize, body: usize, most: usize) -> bool {
    body <= most.min(INLINE) && QUESTION + head + body <= MOST
}

impl Asking {
    /// The head of the message.
    pub fn encode(&self, head: &[u8], inline: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(QUESTION + head.len() + inline.len());
        for word in [self.asker, self.number, self.lowest] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        with_parts(&mut bytes, head, inline);
        bytes
    }

    /// Takes it apart: where the head lies in it, and what bytes follow.
    pub fn decode(bytes: &[u8]) -> Option<(Asking, Range<usize>, Range<usize>)> {
        let asking = Asking {
            asker: word(bytes, 0)?,
            number: word(bytes, 8)?,
            lowest: word(bytes, 16)?,
        };
        let (head, inline) = parts(bytes, QUESTION)?;
        (asking.number != 0).then_some((asking, head, inline))
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

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Who calls, or answers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Another one after each start of the daemon.
    pub incarnation: u64,
    /// Of its map.
    pub epoch: u64,
    /// Bytes of its map.
    pub map: u64,
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        [self.incarnation, self.epoch, self.map]
            .map(u64::to_le_bytes)
            .concat()
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let hello = Hello {
            incarnation: word(bytes, 0)?,
            epoch: word(bytes, 8)?,
            map: word(bytes, 16)?,
        };
        (bytes.len() == 24 && hello.incarnation != 0).then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let asking = Asking {
            asker: 7,
            number: 9,
            lowest: 8,
        };
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
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }

    #[test]
    fn anything_can_be_taken_apart() {
        let asking = Asking {
            asker: 7,
            number: 9,
            lowest: 8,
        };
        let good = [
            asking.encode(b"head", b"bytes"),
            encode_answer(b"head", b"bytes"),
            vec![1; 24],
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
            if let Some(hello) = Hello::decode(&bytes) {
                assert_eq!(hello.encode(), bytes);
            }
        });
    }
}
