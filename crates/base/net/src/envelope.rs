//! The envelope of a message, and limits on messages. No I/O.
//!
//! Everything after the handshake is a *frame*: the length of what follows (2 bytes,
//! little-endian), then a Noise message. A frame's plain text is a [`Header`] and the message's
//! head. On the bulk lane a body follows the frame. See docs/internals/wire.md.

use crate::CutReason;

/// Version of the protocol after the handshake.
pub const VERSION: u16 = 8;

/// Size of a header. Bytes.
pub const HEADER: usize = 20;
/// Bytes that Noise adds to each message.
pub const TAG: usize = 16;
/// Maximum size of a Noise message. Bytes.
pub const MAX_SEALED: usize = 65535;
/// Maximum size of a head. Bytes.
pub const MAX_HEAD: usize = 60 * 1024;
/// Maximum size of a body. Bytes.
pub const MAX_BODY: usize = 64 << 20;
/// Number of plain bytes in each Noise message of an encrypted body, except the last one.
pub const CHUNK: usize = MAX_SEALED - TAG;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A request.
    Request = 1,
    /// The reply to the request with the same id.
    Reply = 2,
    /// There will be no reply to the request with the same id.
    NoReply = 3,
}

/// The fixed-size part of a message, before its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message's type.
    pub is: Type,
    /// The operation; in a reply, that of the request.
    pub kind: u16,
    /// In a request, the time until its deadline in milliseconds; in a reply, its status.
    pub value: u32,
    /// The number that the sender of the request gave it. In a reply, the number of the answered
    /// request.
    pub id: u64,
    /// Length of the body after the frame: 0 on the control lane, never 0 on the bulk lane. Bytes.
    pub body: u32,
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        assert!(
            self.body as usize <= MAX_BODY,
            "a body has a limit: {}",
            self.body
        );
        let mut bytes = [0; HEADER];
        bytes[0] = self.is as u8;
        bytes[2..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.value.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body.to_le_bytes());
        bytes
    }

    /// Decodes a frame's plain text into header and head; None if it is malformed.
    pub fn decode(plain: &[u8]) -> Option<(Header, &[u8])> {
        let (bytes, head) = plain.split_first_chunk::<HEADER>()?;
        let header = Header {
            is: match bytes[0] {
                1 => Type::Request,
                2 => Type::Reply,
                3 => Type::NoReply,
                _ => return None,
            },
            kind: u16::from_le_bytes([bytes[2], bytes[3]]),
            value: u32::from_le_bytes(*bytes[4..].first_chunk()?),
            id: u64::from_le_bytes(*bytes[8..].first_chunk()?),
            body: u32::from_le_bytes(*bytes[16..].first_chunk()?),
        };
        let sound = bytes[1] == 0 && head.len() <= MAX_HEAD && header.body as usize <= MAX_BODY;
        sound.then_some((header, head))
    }
}

/// The Noise message of a frame, and the bytes after the frame; None if the frame is incomplete.
pub type Frame<'a> = Option<(&'a [u8], &'a [u8])>;

/// Splits off the first frame in `bytes`.
///
/// # Errors
/// [`CutReason::Broken`] if no frame can begin with these bytes.
pub fn frame(bytes: &[u8]) -> Result<Frame<'_>, CutReason> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_le_bytes(*length));
    // The shortest frame contains a checksum.
    if !(TAG + 8..=TAG + HEADER + MAX_HEAD).contains(&length) {
        return Err(CutReason::Broken("a frame of impossible length"));
    }
    Ok(rest.split_at_checked(length))
}
