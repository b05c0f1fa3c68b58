//! The envelope of a message, and how large messages may be. Pure: no I/O.
//!
//! Everything that is sent behind the handshake is a *frame*: the length of what follows (2 bytes,
//! little-endian), then a Noise message. The plain text of a frame is a [`Header`] and a head. On
//! the bulk lane a body follows the frame. See "Wire format" in the internals.

/// Version of the protocol: of everything behind the handshake.
pub const VERSION: u16 = 5;

/// Bytes in a header.
pub const HEADER: usize = 20;
/// Bytes that Noise adds to each message.
pub const TAG: usize = 16;
/// Largest Noise message.
pub const MAX_SEALED: usize = 65535;
/// Largest head.
pub const MAX_HEAD: usize = 60 * 1024;
/// Largest body.
pub const MAX_BODY: usize = 64 << 20;
/// Plain bytes in each Noise message of an encrypted body, but the last.
pub const CHUNK: usize = MAX_SEALED - TAG;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Asks for something.
    Request = 1,
    /// Answers the request with the same id.
    Reply = 2,
    /// There will be no answer to the request with the same id.
    NoReply = 3,
}

/// What precedes the head of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub is: Type,
    /// Which operation; in an answer that of the request.
    pub kind: u16,
    /// Of a request: milliseconds until its deadline. Of an answer: its status.
    pub value: u32,
    /// The sender's number of the request, or the one that is answered.
    pub id: u64,
    /// Bytes of the body behind the frame. 0 on the control lane, never 0 on the bulk lane.
    pub body: u32,
}

impl Header {
    /// Writes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.is as u8;
        bytes[2..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.value.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body.to_le_bytes());
        bytes
    }

    /// The header and the head in the plain text of a frame, if it is one.
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

/// A Noise message and what follows its frame. None: it isn't whole yet.
pub type Frame<'a> = Option<(&'a [u8], &'a [u8])>;

/// The first frame in `bytes`. An error: no frame can begin like this.
///
/// # Errors
/// No frame can begin like this.
pub fn frame(bytes: &[u8]) -> Result<Frame<'_>, &'static str> {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_le_bytes(*length));
    // A checksum is the shortest that is sent.
    if !(TAG + 8..=TAG + HEADER + MAX_HEAD).contains(&length) {
        return Err("a frame of impossible length");
    }
    Ok(rest.split_at_checked(length))
}
