//! The receiving side of a lane: frames, and bodies straight into their landings.

use super::Way;
use super::engine::Scratch;
use super::input::{Arriving, Got, IncomingRequest, Input, Left, Stage, receive_into};
use super::session::{BULK, IN_STALLS, Session, WayBack, no_reply};
use crate::envelope::{self, CHUNK, Header, TAG, Type};
use crate::sum::Sum;
use crate::transport::{Body, Incoming, Peer, Reply, Responder, WINDOW};
use crate::{CutReason, Error, lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of bytes in a read after which a body may follow. Few, since the part of a body
/// that is read with the frame has to be copied.
const FRAMES: usize = 4 << 10;
/// Bytes of a body that are received before it is other sockets' turn.
const BUDGET: u64 = 2 << 20;
/// How often to poll for more bytes of a body before sleeping: about 20 us. If this thread slept,
/// waking it would cost the sender time.
const SPINS: u32 = 40;

const NOTHING: CutReason = CutReason::Broken("an answer to nothing");

impl Session {
    /// Reads available bytes: on a control lane all of them, on a bulk lane about [`BUDGET`].
    /// Returns the last requests, which aren't served yet. `ends`: the other side has closed its
    /// direction. An error ends the session.
    pub fn receive(
        self: &Arc<Self>,
        index: usize,
        scratch: &mut Scratch,
        ends: bool,
    ) -> Result<Left, CutReason> {
        let mut input = lock(&self.lanes[index].input);
        let begin = input.total;
        let mut spins = 0;
        loop {
            let kept = input.rest.len();
            let got = match &mut input.stage {
                Stage::Body(_) if !self.encrypt => self.receive_body(index, &mut input, scratch)?,
                Stage::Closed => return Ok(Left::default()),
                _ => self.receive_frames(index, &mut input, scratch)?,
            };
            input.total += got as u64;
            self.core.went(Way::In, got, index == BULK);
            if got == 0 && spins < SPINS && !matches!(input.stage, Stage::Frames) {
                spins += 1;
                std::thread::yield_now();
                continue;
            }
            // Control lanes are edge-triggered: no event reports bytes that remain in the socket. A
            // read that doesn't fill the buffer has emptied the socket.
            let more = match index {
                BULK => input.total - begin < BUDGET,
                _ => ends || kept + got == scratch.raw.len(),
            };
            // More of a body is likely to arrive soon, but other sockets are served first.
            if got == 0 || !more {
                break;
            }
        }
        if input.is_partial() && input.watched.is_none() {
            input.watched = Some(input.total);
            self.watch(IN_STALLS[index]);
        }
        Ok(std::mem::take(&mut input.left))
    }

    /// Receives a body that isn't encrypted straight into its landing. Returns the number of bytes.
    fn receive_body(
        &self,
        index: usize,
        input: &mut Input,
        scratch: &mut Scratch,
    ) -> Result<usize, CutReason> {
        let Stage::Body(mut arriving) = std::mem::replace(&mut input.stage, Stage::Frames) else {
            return Ok(0);
        };
        let got = arriving.receive(&self.lanes[index].socket, &mut scratch.raw)?;
        input.stage = if arriving.at == arriving.length {
            Stage::Sum(arriving)
        } else {
            Stage::Body(arriving)
        };
        Ok(got)
    }

    /// Receives frames, checksums and encrypted bodies. Returns the number of bytes.
    fn receive_frames(
        self: &Arc<Self>,
        index: usize,
        input: &mut Input,
        scratch: &mut Scratch,
    ) -> Result<usize, CutReason> {
        let kept = input.rest.len();
        let Scratch { raw, plain, .. } = scratch;
        raw[..kept].copy_from_slice(&input.rest);
        debug_assert!(kept < raw.len(), "there is room beside an incomplete frame");
        let room = if index == BULK && !matches!(input.stage, Stage::Body(_)) {
            kept + missing(&input.rest)
        } else {
            raw.len()
        };
        let Got::Bytes(got) = receive_into(&self.lanes[index].socket, &mut raw[kept..room])? else {
            return Ok(0);
        };
        let left = self.parse(index, input, &raw[..kept + got], plain)?;
        if left.is_empty() {
            input.rest = Vec::new();
        } else {
            input.rest.clear();
            input.rest.extend_from_slice(left);
        }
        Ok(got)
    }

    /// Returns whether the peer has stalled within a message: nothing has arrived since the lane's
    /// stall timer was started. Called when that timer is due.
    pub fn receiving_stalled(&self, index: usize) -> bool {
        let Ok(mut input) = self.lanes[index].input.try_lock() else {
            // Another thread is reading now.
            self.watch(IN_STALLS[index]);
            return false;
        };
        let then = input.watched.take();
        if !input.is_partial() {
            return false;
        }
        input.watched = Some(input.total);
        self.watch(IN_STALLS[index]);
        then == Some(input.total)
    }

    /// Handles complete frames. Returns the incomplete rest.
    fn parse<'a>(
        self: &Arc<Self>,
        index: usize,
        input: &mut Input,
        mut bytes: &'a [u8],
        plain: &mut [u8],
    ) -> Result<&'a [u8], CutReason> {
        let seal = &self.lanes[index].seal;
        loop {
            match std::mem::replace(&mut input.stage, Stage::Frames) {
                Stage::Closed => {
                    input.stage = Stage::Closed;
                    return Ok(&[]);
                }
                Stage::Body(mut arriving) if self.encrypt => {
                    let n = CHUNK.min(arriving.length - arriving.at) + TAG;
                    let Some((sealed, rest)) = bytes.split_at_checked(n) else {
                        input.stage = Stage::Body(arriving);
                        return Ok(bytes);
                    };
                    bytes = rest;
                    arriving.open_chunk(input, seal, sealed, plain)?;
                    if arriving.at == arriving.length {
                        self.arrived(*arriving, true);
                    } else {
                        input.stage = Stage::Body(arriving);
                    }
                }
                Stage::Body(mut arriving) => {
                    let n = bytes.len().min(arriving.length - arriving.at);
                    arriving.take(&bytes[..n])?;
                    bytes = &bytes[n..];
                    if arriving.at < arriving.length {
                        input.stage = Stage::Body(arriving);
                        return Ok(bytes);
                    }
                    input.stage = Stage::Sum(arriving);
                }
                Stage::Sum(arriving) => {
                    let Some((sealed, rest)) = envelope::frame(bytes)? else {
                        input.stage = Stage::Sum(arriving);
                        return Ok(bytes);
                    };
                    bytes = rest;
                    let n = input.open(seal, sealed, plain)?;
                    let Ok(sum) = <[u8; 8]>::try_from(&plain[..n]) else {
                        return Err(CutReason::Broken("a checksum of another length"));
                    };
                    let sum = u64::from_le_bytes(sum);
                    // For a body that no thread wants, no checksum is computed.
                    let right = arriving.landing.is_none() || sum == arriving.sum.value();
                    self.arrived(*arriving, right);
                }
                Stage::Frames => {
                    let Some((sealed, rest)) = envelope::frame(bytes)? else {
                        return Ok(bytes);
                    };
                    bytes = rest;
                    let n = input.open(seal, sealed, plain)?;
                    let Some((header, head)) = Header::decode(&plain[..n]) else {
                        return Err(CutReason::Broken("a message that makes no sense"));
                    };
                    if (header.body > 0) != (index == BULK) {
                        return Err(CutReason::Broken("a message on the wrong lane"));
                    }
                    if let Some(arriving) = self.begun(input, header, head)? {
                        input.stage = Stage::Body(Box::new(arriving));
                    }
                }
            }
        }
    }

    /// Handles a frame: a message without a body, or the beginning of one with a body.
    fn begun(
        self: &Arc<Self>,
        input: &mut Input,
        header: Header,
        head: &[u8],
    ) -> Result<Option<Arriving>, CutReason> {
        if header.is == Type::Request && self.serving.fetch_add(1, Ordering::SeqCst) >= WINDOW {
            return Err(CutReason::Broken("more requests at once than there may be"));
        }
        if header.body == 0 {
            match header.is {
                Type::Request => {
                    let handler = &self.core.handler;
                    let brief = handler.is_brief(header.kind);
                    let incoming = self.incoming(header, head.to_vec(), None);
                    if self.given_up.load(Ordering::Relaxed) {
                        drop(incoming);
                    } else if brief {
                        input.left.brief.push(incoming);
                    } else if let Some((request, reply)) = input.left.last.replace(incoming) {
                        handler.serve(request, reply);
                    }
                }
                Type::Reply => self.answered(header, head.to_vec(), None)?,
                Type::NoReply => self.finish(
                    header.id,
                    Err(Error::NotServed {
                        peer: self.peer,
                        why: no_reply::words(header.value),
                    }),
                )?,
            }
            return Ok(None);
        }
        let length = header.body as usize;
        let landing = match header.is {
            Type::Request => self
                .core
                .handler
                .landing(self.peer, header.kind, head, length),
            Type::Reply => (self.calls.landing(header.id)).ok_or(NOTHING)?,
            Type::NoReply => return Err(CutReason::Broken("a body without a message")),
        };
        Ok(Some(Arriving {
            header,
            head: head.to_vec(),
            landing: landing.filter(|l| l.length() >= length),
            length,
            at: 0,
            sum: Sum::new(self.seed),
        }))
    }

    /// Handles a complete message with a body.
    fn arrived(self: &Arc<Self>, arriving: Arriving, right: bool) {
        let Arriving {
            header,
            head,
            landing,
            length,
            ..
        } = arriving;
        let body = landing.map(|landing| Body { landing, length });
        let why = match (&body, right) {
            (_, false) => no_reply::DAMAGED,
            (None, true) => no_reply::NO_LANDING,
            (Some(_), true) => 0,
        };
        if header.is == Type::Request {
            match why {
                0 => self.serve(header, head, body),
                why => self.way_back(header).none(why),
            }
            return;
        }
        let result = match why {
            0 => Ok(Reply {
                status: header.value,
                head,
                body,
            }),
            no_reply::DAMAGED => Err(Error::Damaged { peer: self.peer }),
            _ => Err(no_room(self.peer)),
        };
        // The request existed when its body began, and only its reply removes it.
        let _ = self.finish(header.id, result);
    }

    fn way_back(self: &Arc<Self>, header: Header) -> WayBack {
        WayBack {
            session: self.clone(),
            id: header.id,
            kind: header.kind,
        }
    }

    fn serve(self: &Arc<Self>, header: Header, head: Vec<u8>, body: Option<Body>) {
        let (request, reply) = self.incoming(header, head, body);
        if !self.given_up.load(Ordering::Relaxed) {
            self.core.handler.serve(request, reply);
        }
    }

    fn incoming(
        self: &Arc<Self>,
        header: Header,
        head: Vec<u8>,
        body: Option<Body>,
    ) -> IncomingRequest {
        let reply = Responder::new(Box::new(self.way_back(header)));
        let request = Incoming {
            connection: self.clone(),
            kind: header.kind,
            head,
            body,
            deadline: Instant::now() + Duration::from_millis(u64::from(header.value)),
        };
        (request, reply)
    }

    fn answered(&self, header: Header, head: Vec<u8>, body: Option<Body>) -> Result<(), CutReason> {
        let reply = Reply {
            status: header.value,
            head,
            body,
        };
        self.finish(header.id, Ok(reply))
    }

    fn finish(&self, id: u64, result: Result<Reply, Error>) -> Result<(), CutReason> {
        if self.calls.finish(&self.core.timers, id, result) {
            Ok(())
        } else {
            Err(NOTHING)
        }
    }
}

fn no_room(peer: Peer) -> Error {
    Error::NotServed {
        peer,
        why: "the answer has a body for which there is no room",
    }
}

/// Returns how many bytes to read so that a body after the frame stays in the socket.
fn missing(rest: &[u8]) -> usize {
    match rest.split_first_chunk::<2>() {
        None => FRAMES,
        Some((length, rest)) => {
            let length = usize::from(u16::from_le_bytes(*length));
            (length.saturating_sub(rest.len())).max(1)
        }
    }
}
