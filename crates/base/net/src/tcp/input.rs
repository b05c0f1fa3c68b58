//! The input of a lane: what is expected next, and the message whose body is arriving.

use crate::CutReason;
use crate::envelope::Header;
use crate::handshake::Seal;
use crate::sum::Sum;
use crate::transport::{Incoming, Landing, Responder};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::net::TcpStream;

/// Bytes of a body that are received and summed in one step, so that they stay in the cache.
const STEP: usize = 128 << 10;

/// A request and its responder.
pub(super) type IncomingRequest = (Incoming, Responder);

/// Requests without a body that were received but not served yet.
#[derive(Default)]
pub(super) struct Left {
    /// Requests before the last one; their kinds are brief (`Handler::is_brief`).
    pub brief: Vec<IncomingRequest>,
    pub last: Option<IncomingRequest>,
}

pub(super) struct Input {
    pub nonce: u64,
    pub left: Left,
    /// The beginning of an incomplete frame.
    pub rest: Vec<u8>,
    pub stage: Stage,
    /// Bytes received in all.
    pub total: u64,
    /// Value of `total` when the running stall timer was started; None if no timer runs.
    pub watched: Option<u64>,
}

/// The input that is expected next on the lane.
pub(super) enum Stage {
    Frames,
    Body(Box<Arriving>),
    Sum(Box<Arriving>),
    /// Nothing: the session has ended.
    Closed,
}

/// A message whose body is arriving.
pub(super) struct Arriving {
    pub header: Header,
    pub head: Vec<u8>,
    /// None if no thread wants the body, or the thread that wanted it has given up.
    pub landing: Option<Box<dyn Landing>>,
    pub length: usize,
    pub at: usize,
    pub sum: Sum,
}

impl Input {
    pub fn new(nonce: u64) -> Input {
        Input {
            nonce,
            left: Left::default(),
            rest: Vec::new(),
            stage: Stage::Frames,
            total: 0,
            watched: None,
        }
    }

    /// Stops receiving. Drops the last requests unserved: the session would never be freed while
    /// these requests hold references to it.
    pub fn close(&mut self) {
        self.stage = Stage::Closed;
        self.rest = Vec::new();
        self.left = Left::default();
    }

    pub fn is_partial(&self) -> bool {
        !self.rest.is_empty() || matches!(self.stage, Stage::Body(_) | Stage::Sum(_))
    }

    pub fn open(
        &mut self,
        seal: &Seal,
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<usize, CutReason> {
        let n = seal.open(self.nonce, sealed, plain)?;
        self.nonce += 1;
        Ok(n)
    }
}

pub(super) enum Got {
    Bytes(usize),
    Nothing,
}

pub(super) fn receive_into(socket: &TcpStream, room: &mut [u8]) -> Result<Got, CutReason> {
    match rustix::io::retry_on_intr(|| recv(socket, &mut *room, RecvFlags::empty())) {
        Ok((0, _)) => Err(CutReason::Closed),
        Ok((n, _)) => Ok(Got::Bytes(n)),
        Err(Errno::AGAIN) => Ok(Got::Nothing),
        Err(e) => Err(CutReason::System(e)),
    }
}

impl Arriving {
    /// Receives into the landing; if there is none, into `scratch`. Returns the number of bytes.
    pub fn receive(&mut self, socket: &TcpStream, scratch: &mut [u8]) -> Result<usize, CutReason> {
        debug_assert!(self.at < self.length, "a body that arrives isn't whole");
        let left = (self.length - self.at).min(STEP);
        let (room, sum) = match &mut self.landing {
            Some(landing) => (landing.piece(self.at), Some(&mut self.sum)),
            None => (&mut *scratch, None),
        };
        let n = left.min(room.len());
        if n == 0 {
            return Err(CutReason::Broken("a landing ended before its length"));
        }
        let Got::Bytes(got) = receive_into(socket, &mut room[..n])? else {
            return Ok(0);
        };
        if let Some(sum) = sum {
            sum.add(&room[..got]);
        }
        self.at += got;
        assert!(self.at <= self.length, "a body ends at its length");
        Ok(got)
    }

    /// Adds bytes of the body that were read together with a frame.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), CutReason> {
        assert!(
            bytes.len() <= self.length - self.at,
            "a body ends at its length"
        );
        let Some(landing) = &mut self.landing else {
            self.at += bytes.len();
            return Ok(());
        };
        self.sum.add(bytes);
        while !bytes.is_empty() {
            let room = landing.piece(self.at);
            let n = bytes.len().min(room.len());
            if n == 0 {
                return Err(CutReason::Broken("a landing ended before its length"));
            }
            room[..n].copy_from_slice(&bytes[..n]);
            self.at += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Decrypts a piece of the body into the landing.
    pub fn open_chunk(
        &mut self,
        input: &mut Input,
        seal: &Seal,
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<(), CutReason> {
        if let Some(landing) = &mut self.landing {
            let room = landing.piece(self.at);
            // The tag needs space, too; later bytes of the body overwrite it.
            if room.len() >= sealed.len() {
                self.at += input.open(seal, sealed, room)?;
                return Ok(());
            }
        }
        let n = input.open(seal, sealed, plain)?;
        self.take(&plain[..n])
    }
}
