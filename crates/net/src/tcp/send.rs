//! The sending side of a lane.
//!
//! Messages are queued. One thread at a time holds the lane's [`Writer`] and sends until the queue
//! is empty: the thread that queued a message, unless another is sending. So messages of several
//! threads go out in one write. When the socket is full, the writer is *parked*, and the I/O thread
//! continues when there is room. The queue is bounded by the limit on requests in progress.

use super::Way;
use super::engine::on_io_thread;
use super::session::{BULK, CONTROL, Lane, OUT_STALLS, Session};
use crate::envelope::{CHUNK, Header};
use crate::handshake::Seal;
use crate::lock;
use crate::sum::Sum;
use crate::transport::Source;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

/// Frames are gathered up to this size before they are written. Bytes.
const BATCH: usize = 64 << 10;
/// Bytes of a body that are summed (or encrypted) and written in one go: they stay in the cache.
const STEP: usize = 256 << 10;
/// Bytes that a thread sends for others before it leaves the rest to the I/O thread.
const BUDGET: usize = 8 << 20;
/// A larger buffer isn't kept when the queue is empty. Bytes.
const KEPT: usize = 4 << 10;

pub(super) struct Message {
    pub header: Header,
    pub head: Vec<u8>,
    /// A body of `header.body` bytes.
    pub body: Option<Box<dyn Source>>,
}

pub(super) struct Outbox {
    queue: VecDeque<Message>,
    /// None: a thread is sending.
    writer: Option<Box<Writer>>,
    /// Whether the writer waits for the I/O thread.
    parked: bool,
    /// Whether the I/O thread waits for room in the socket.
    armed: bool,
    closed: bool,
    /// Bytes sent when the running timer was started; None: no timer runs.
    watched: Option<u64>,
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

    /// Called when the I/O thread knows the socket. Something may have been parked before.
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

impl Session {
    /// Sends a message, or leaves it to the thread that is sending; with `lazily`, to the next that
    /// sends. Never blocks.
    pub fn send(&self, message: Message, lazily: bool) {
        let index = if message.body.is_some() { BULK } else { 0 };
        let lane = &self.lanes[index];
        let mut out = lock(&lane.out);
        if out.closed {
            return;
        }
        out.queue.push_back(message);
        if out.parked || lazily {
            return;
        }
        let Some(writer) = out.writer.take() else {
            return;
        };
        if index == BULK && (on_io_thread() || self.core.paces.is_some()) {
            // Others wait for this thread, or it mustn't wait: a bulk thread continues.
            self.park(lane, &mut out, writer, index);
            return;
        }
        drop(out);
        if let Err(why) = self.pump(index, writer) {
            self.cut(why);
        }
    }

    /// Sends lazy messages of the control lane.
    pub fn flush(&self) {
        let writer = {
            let mut out = lock(&self.lanes[CONTROL].out);
            match out.parked || out.queue.is_empty() {
                true => None,
                false => out.writer.take(),
            }
        };
        if let Some(writer) = writer
            && let Err(why) = self.pump(CONTROL, writer)
        {
            self.cut(why);
        }
    }

    /// Called when the socket has room again.
    pub fn go_on_sending(&self, index: usize) -> Result<(), String> {
        let lane = &self.lanes[index];
        let writer = {
            let mut out = lock(&lane.out);
            if !out.parked {
                return Ok(());
            }
            out.parked = false;
            out.writer.take()
        };
        writer.map_or(Ok(()), |writer| self.pump(index, writer))
    }

    fn park(&self, lane: &Lane, out: &mut Outbox, writer: Box<Writer>, index: usize) {
        if out.watched.is_none() {
            out.watched = Some(writer.total);
            self.watch(OUT_STALLS[index]);
        }
        out.writer = Some(writer);
        out.parked = true;
        if !out.armed {
            out.armed = true;
            self.want_out(lane, true);
        }
    }

    /// Starts a timer that checks for progress.
    pub fn watch(&self, what: u64) {
        let at = Instant::now() + self.core.options.limits.stall;
        self.core.timers.add(at, (self.id, what));
    }

    /// Sends until the queue is empty or the socket full.
    fn pump(&self, index: usize, mut writer: Box<Writer>) -> Result<(), String> {
        let lane = &self.lanes[index];
        // With a bandwidth limit, the lanes of a thread take turns more often.
        let mut budget = match self.core.paces {
            Some(_) => STEP,
            None => BUDGET,
        };
        loop {
            while writer.wants_more() {
                let mut out = lock(&lane.out);
                if out.closed {
                    return Ok(());
                }
                let Some(message) = out.queue.pop_front() else {
                    if !writer.is_idle() {
                        break;
                    }
                    writer.tidy();
                    out.writer = Some(writer);
                    if out.armed {
                        out.armed = false;
                        self.want_out(lane, false);
                    }
                    return Ok(());
                };
                drop(out);
                writer.add(&lane.seal, message)?;
            }
            let wrote = writer.write(lane)?;
            self.core.went(Way::Out, wrote.unwrap_or(0), index == BULK);
            budget = budget.saturating_sub(wrote.unwrap_or(0));
            if wrote.is_none() || budget == 0 {
                let mut out = lock(&lane.out);
                if !out.closed {
                    // After a successful write, no event will report room.
                    out.armed &= wrote.is_none();
                    self.park(lane, &mut out, writer, index);
                }
                return Ok(());
            }
        }
    }

    /// Called when a timer of this lane is due. Whether nothing was sent since it was set.
    pub fn sending_stalled(&self, index: usize) -> bool {
        let mut out = lock(&self.lanes[index].out);
        let then = out.watched.take();
        // Without a writer here, a thread is sending.
        let Some(total) = out.writer.as_ref().map(|w| w.total) else {
            return false;
        };
        if !out.parked {
            return false;
        }
        out.watched = Some(total);
        self.watch(OUT_STALLS[index]);
        then == Some(total)
    }
}

/// The message that is being sent.
struct Writer {
    nonce: u64,
    encrypt: bool,
    seed: u64,
    /// Sealed frames, of which `sent` bytes are written.
    buffer: Vec<u8>,
    sent: usize,
    /// A frame before sealing; kept for its memory.
    plain: Vec<u8>,
    /// The body that follows the buffer.
    body: Option<Sending>,
    /// Bytes sent in all.
    total: u64,
}

struct Sending {
    source: Box<dyn Source>,
    length: usize,
    /// Bytes written, or encrypted into the buffer.
    at: usize,
    /// Checksum of the bytes sent; once there is a trailer, of the whole body.
    sum: Sum,
    /// The sealed checksum, written with the last bytes.
    trailer: Vec<u8>,
}

impl Writer {
    fn is_idle(&self) -> bool {
        self.sent == self.buffer.len() && self.body.is_none()
    }

    fn wants_more(&self) -> bool {
        self.body.is_none() && self.buffer.len() < BATCH
    }

    fn tidy(&mut self) {
        self.buffer.clear();
        self.sent = 0;
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        if self.plain.capacity() > KEPT {
            self.plain = Vec::new();
        }
    }

    fn add(&mut self, seal: &Seal, message: Message) -> Result<(), &'static str> {
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

    /// Writes once. Returns the number of bytes, or None if the socket is full.
    fn write(&mut self, lane: &Lane) -> Result<Option<usize>, String> {
        if self.encrypt {
            self.encrypt_body(&lane.seal)?;
        } else {
            self.seal_sum(&lane.seal)?;
        }
        let frames = &self.buffer[self.sent..];
        let (piece, trailer) = match &self.body {
            Some(body) if !self.encrypt => (body.next_piece()?, &body.trailer[..]),
            _ => (&[][..], &[][..]),
        };
        let wrote = if piece.is_empty() {
            rustix::net::send(&lane.socket, frames, SendFlags::NOSIGNAL)
        } else {
            let all = [frames, piece, trailer].map(IoSlice::new);
            let mut no_ancillary = SendAncillaryBuffer::default();
            sendmsg(&lane.socket, &all, &mut no_ancillary, SendFlags::NOSIGNAL)
        };
        let wrote = match wrote {
            Ok(n) => n,
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.to_string()),
        };
        self.total += wrote as u64;
        let of_frames = wrote.min(frames.len());
        let of_body = (wrote - of_frames).min(piece.len());
        self.sent += of_frames;
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.sent = 0;
        }
        if let Some(body) = &mut self.body {
            // Sum it while the other side is busy with it.
            if of_body > 0 && body.trailer.is_empty() {
                body.sum.add(&body.source.piece(body.at)[..of_body]);
            }
            body.at += of_body;
            if body.at == body.length {
                let of_trailer = wrote - of_frames - of_body;
                self.buffer.extend_from_slice(&body.trailer[of_trailer..]);
                self.body = None;
            }
        }
        Ok(Some(wrote))
    }

    /// Before the last bytes of a body are written: seals the checksum of all.
    fn seal_sum(&mut self, seal: &Seal) -> Result<(), &'static str> {
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        let piece = body.next_piece()?;
        if !body.trailer.is_empty() || body.at + piece.len() < body.length {
            return Ok(());
        }
        // If the source's bytes change between this sum and the write, the body arrives damaged.
        let rest = body.source.piece(body.at);
        body.sum.add(&rest[..body.length - body.at]);
        let sum = body.sum.value().to_le_bytes();
        self.nonce = seal_frame(seal, self.nonce, &sum, &mut body.trailer)?;
        Ok(())
    }

    /// Fills the buffer with encrypted pieces of the body.
    fn encrypt_body(&mut self, seal: &Seal) -> Result<(), String> {
        let Some(mut body) = self.body.take() else {
            return Ok(());
        };
        while body.at < body.length && self.buffer.len() < STEP {
            let n = CHUNK.min(body.length - body.at);
            let piece = body.source.piece(body.at);
            if piece.len() >= n {
                seal.seal(self.nonce, &piece[..n], &mut self.buffer)?;
            } else {
                // The source's pieces have any size; encrypted ones have fixed sizes.
                self.plain.clear();
                while self.plain.len() < n {
                    let piece = body.source.piece(body.at + self.plain.len());
                    let take = piece.len().min(n - self.plain.len());
                    if take == 0 {
                        return Err("a source ended before its length".into());
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

/// Appends a sealed frame, with the next message's number.
fn seal_frame(
    seal: &Seal,
    nonce: u64,
    plain: &[u8],
    to: &mut Vec<u8>,
) -> Result<u64, &'static str> {
    let length = (plain.len() + crate::envelope::TAG) as u16;
    to.extend_from_slice(&length.to_le_bytes());
    seal.seal(nonce, plain, to)?;
    Ok(nonce + 1)
}

impl Sending {
    /// The next bytes to write.
    fn next_piece(&self) -> Result<&[u8], &'static str> {
        let piece = self.source.piece(self.at);
        match piece.len().min(self.length - self.at).min(STEP) {
            0 => Err("a source ended before its length"),
            n => Ok(&piece[..n]),
        }
    }
}
