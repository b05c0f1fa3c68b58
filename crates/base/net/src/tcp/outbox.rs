//! The output of a lane: queued messages, and the writer that encrypts and writes them.

use crate::CutReason;
use crate::envelope::{CHUNK, Header, MAX_SEALED, TAG};
use crate::handshake::Seal;
use crate::sum::Sum;
use crate::transport::Source;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::TcpStream;

/// Frames are collected up to this size before they are written. Bytes.
const BATCH: usize = 64 << 10;
/// Bytes of a body that are summed (or encrypted) and written in one step, so that they stay in the
/// cache.
pub(super) const STEP: usize = 256 << 10;
/// A buffer larger than this is freed when the queue is empty. Bytes.
const MAX_IDLE_BUFFER_BYTES: usize = 4 << 10;

const SHORT: CutReason = CutReason::Broken("a source ended before its length");

pub(super) struct Message {
    pub header: Header,
    pub head: Vec<u8>,
    /// A body of `header.body` bytes.
    pub body: Option<Box<dyn Source>>,
}

pub(super) struct Outbox {
    pub queue: VecDeque<Message>,
    /// None while a thread is sending.
    pub writer: Option<Box<Writer>>,
    /// Whether the writer waits for the I/O thread to continue.
    pub parked: bool,
    /// Whether the I/O thread waits for space in the socket.
    pub armed: bool,
    pub closed: bool,
    /// Number of bytes sent when the running stall timer was started; None if no timer runs.
    pub watched: Option<u64>,
}

impl Outbox {
    pub fn new(nonce: u64, encrypt: bool, seed: u64) -> Outbox {
        Outbox {
            queue: VecDeque::new(),
            writer: Some(Box::new(Writer {
                nonce,
                encrypt,
                seed,
                buffer: Vec::new(),
                sent: 0,
                plain: Vec::new(),
                body: None,
                total: 0,
            })),
            parked: false,
            armed: false,
            closed: false,
            watched: None,
        }
    }

    /// Calls `want_out` if a writer was parked before the I/O thread knew the socket.
    pub fn register(&self, want_out: impl FnOnce()) {
        if self.armed {
            want_out();
        }
    }

    pub fn close(&mut self) {
        self.closed = true;
        self.queue.clear();
        self.writer = None;
        self.parked = false;
    }
}

/// Encrypts and writes messages. Has the message that is being sent.
pub(super) struct Writer {
    pub nonce: u64,
    pub encrypt: bool,
    pub seed: u64,
    /// Encrypted frames, of which `sent` bytes are written.
    pub buffer: Vec<u8>,
    pub sent: usize,
    /// A frame before encryption. Kept only to reuse its memory.
    pub plain: Vec<u8>,
    /// The body that follows the buffer.
    pub body: Option<Sending>,
    /// Bytes sent in all.
    pub total: u64,
}

pub(super) struct Sending {
    source: Box<dyn Source>,
    length: usize,
    /// Number of bytes of the body that were written, or encrypted into the buffer.
    at: usize,
    /// Checksum of the bytes sent or, once `trailer` is set, of the whole body.
    sum: Sum,
    /// The encrypted checksum, which is written with the body's last bytes.
    trailer: Vec<u8>,
}

impl Writer {
    pub fn is_idle(&self) -> bool {
        self.sent == self.buffer.len() && self.body.is_none()
    }

    pub fn wants_more(&self) -> bool {
        self.body.is_none() && self.buffer.len() < BATCH
    }

    pub fn tidy(&mut self) {
        self.buffer.clear();
        self.sent = 0;
        if self.buffer.capacity() > MAX_IDLE_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        if self.plain.capacity() > MAX_IDLE_BUFFER_BYTES {
            self.plain = Vec::new();
        }
    }

    pub fn add(&mut self, seal: &Seal, message: Message) -> Result<(), CutReason> {
        assert!(
            self.body.is_none(),
            "a body is sent before the next message begins"
        );
        debug_assert_eq!(
            message.body.as_ref().map_or(0, |body| body.length()),
            message.header.body as usize,
            "a header tells the length of its body"
        );
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        plain.extend_from_slice(&message.header.encode());
        plain.extend_from_slice(&message.head);
        self.nonce = seal_frame(seal, self.nonce, &plain, &mut self.buffer)?;
        self.plain = plain;
        self.body = message.body.map(|source| Sending {
            source,
            length: message.header.body as usize,
            at: 0,
            sum: Sum::new(self.seed),
            trailer: Vec::new(),
        });
        Ok(())
    }

    /// Writes to the socket once. Returns the number of bytes, or None if the socket is full.
    pub fn write(&mut self, socket: &TcpStream, seal: &Seal) -> Result<Option<usize>, CutReason> {
        if self.encrypt {
            self.encrypt_body(seal)?;
        } else {
            self.seal_sum(seal)?;
        }
        let frames = &self.buffer[self.sent..];
        let (piece, trailer) = match &self.body {
            Some(body) if !self.encrypt => (body.next_piece()?, &body.trailer[..]),
            _ => (&[][..], &[][..]),
        };
        let wrote = if piece.is_empty() {
            rustix::net::send(socket, frames, SendFlags::NOSIGNAL)
        } else {
            let all = [frames, piece, trailer].map(IoSlice::new);
            let mut no_ancillary = SendAncillaryBuffer::default();
            sendmsg(socket, &all, &mut no_ancillary, SendFlags::NOSIGNAL)
        };
        let wrote = match wrote {
            Ok(n) => n,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => 0,
            Err(e) => return Err(CutReason::System(e)),
        };
        self.total += wrote as u64;
        let of_frames = wrote.min(frames.len());
        let of_body = (wrote - of_frames).min(piece.len());
        self.sent += of_frames;
        assert!(
            self.sent <= self.buffer.len(),
            "no more is sent than there is"
        );
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.sent = 0;
        }
        if let Some(body) = &mut self.body {
            // The checksum is computed after the write, while the other side is busy with these
            // bytes.
            if of_body > 0 && body.trailer.is_empty() {
                body.sum.add(&body.source.piece(body.at)[..of_body]);
            }
            body.at += of_body;
            assert!(body.at <= body.length, "a body ends at its length");
            if body.at == body.length {
                let of_trailer = wrote - of_frames - of_body;
                self.buffer.extend_from_slice(&body.trailer[of_trailer..]);
                self.body = None;
            }
        }
        Ok(Some(wrote))
    }

    /// Encrypts the checksum of the whole body, if the body's last bytes are about to be written.
    fn seal_sum(&mut self, seal: &Seal) -> Result<(), CutReason> {
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        let piece = body.next_piece()?;
        if !body.trailer.is_empty() || body.at + piece.len() < body.length {
            return Ok(());
        }
        // If the source's bytes change between this sum and the write, the body arrives damaged.
        debug_assert!(body.trailer.is_empty(), "a body is summed up once");
        let rest = body.source.piece(body.at);
        body.sum.add(&rest[..body.length - body.at]);
        let sum = body.sum.value().to_le_bytes();
        self.nonce = seal_frame(seal, self.nonce, &sum, &mut body.trailer)?;
        Ok(())
    }

    /// Fills the buffer with encrypted pieces of the body.
    fn encrypt_body(&mut self, seal: &Seal) -> Result<(), CutReason> {
        let Some(mut body) = self.body.take() else {
            return Ok(());
        };
        while body.at < body.length && self.buffer.len() < STEP {
            let n = CHUNK.min(body.length - body.at);
            let piece = body.source.piece(body.at);
            if piece.len() >= n {
                seal.seal(self.nonce, &piece[..n], &mut self.buffer)?;
            } else {
                // The pieces of a source can have any size, but encrypted pieces have a fixed size:
                // so bytes of several pieces are collected.
                self.plain.clear();
                while self.plain.len() < n {
                    let piece = body.source.piece(body.at + self.plain.len());
                    let take = piece.len().min(n - self.plain.len());
                    if take == 0 {
                        return Err(SHORT);
                    }
                    self.plain.extend_from_slice(&piece[..take]);
                }
                seal.seal(self.nonce, &self.plain, &mut self.buffer)?;
            }
            self.nonce += 1;
            body.at += n;
        }
        self.body = Some(body);
        Ok(())
    }
}

/// Encrypts a frame, whose nonce is the number of the next message, and appends it.
fn seal_frame(seal: &Seal, nonce: u64, plain: &[u8], to: &mut Vec<u8>) -> Result<u64, CutReason> {
    assert!(
        plain.len() + TAG <= MAX_SEALED,
        "a frame has a limit: {}",
        plain.len()
    );
    let length = (plain.len() + TAG) as u16;
    to.extend_from_slice(&length.to_le_bytes());
    seal.seal(nonce, plain, to)?;
    Ok(nonce + 1)
}

impl Sending {
    /// The next bytes to write.
    fn next_piece(&self) -> Result<&[u8], CutReason> {
        let piece = self.source.piece(self.at);
        match piece.len().min(self.length - self.at).min(STEP) {
            0 => Err(SHORT),
            n => Ok(&piece[..n]),
        }
    }
}
