//! The handshake, by which two nodes prove to each other that they hold the pool's key. No I/O.
//!
//! The protocol is Noise NNpsk0: three messages of fixed size, on each lane of a connection:
//!
//! 1. *hello*: proves the key; contains, encrypted, the version, the lane and the nodes.
//! 2. *welcome*: proves the key, and that it isn't a replay; accepts, or refuses with the reason.
//! 3. *confirm*: proves that the hello isn't a replay of an earlier one.
//!
//! Until a hello has proved the key, nothing is answered. Sizes, the prologue, and the positions of
//! version and status are the same in all versions of the protocol, so that nodes of different
//! versions can report the difference. docs/decisions/0019 gives the reasons for this pattern.

use crate::envelope::{TAG, VERSION};
use crate::transport::{NodeId, PoolId};
use crate::{CutReason, Error, PoolKey};
use snow::{Builder, HandshakeState, StatelessTransportState};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"Forebay handshake 1\0";
const PAYLOAD: usize = 64;

/// Size of a hello and of a welcome. Bytes.
pub const HELLO: usize = 32 + PAYLOAD + TAG;
/// Size of a confirm. Bytes.
pub const CONFIRM: usize = 16 + TAG;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Messages without a body.
    Control = 0,
    /// Messages with a body.
    Bulk = 1,
}

/// The calling node's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol's version.
    pub version: u16,
    /// The lane for which this connection is made.
    pub lane: Lane,
    /// Whether bodies must be encrypted.
    pub encrypt: bool,
    /// The calling node.
    pub from: NodeId,
    /// The called node.
    pub to: NodeId,
    /// On the bulk lane: the session named in the control lane's welcome.
    pub session: [u8; 16],
}

/// The called node's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The protocol's version.
    pub version: u16,
    /// Whether the connection is accepted.
    pub status: Status,
    /// Whether bodies will be encrypted.
    pub encrypt: bool,
    /// The session that the bulk lane is to join.
    pub session: [u8; 16],
    /// Start value of the checksums of bodies.
    pub seed: u64,
}

/// Whether a connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Accepted.
    Welcome = 0,
    /// The versions differ.
    Version = 1,
    /// The node isn't the one that was called.
    OtherNode = 2,
    /// There is no such session to join.
    NoSession = 3,
    /// The limit on connections is reached.
    Full = 4,
}

impl Status {
    /// The status as text.
    pub fn words(self) -> &'static str {
        match self {
            Status::Welcome => "no reason",
            Status::Version => "it speaks another version of the protocol",
            Status::OtherNode => "it is another node than the one that was called",
            Status::NoSession => "the session has gone",
            Status::Full => "it has as many connections as it may have",
        }
    }
}

/// The keys of a lane. The number of a message, counted from 0 in each direction, is its nonce.
pub struct Seal(StatelessTransportState);

impl Seal {
    /// Maximum number of messages in one direction, far below what AES-GCM allows with one key.
    /// After this number of messages, the connection ends.
    pub const MESSAGES: u64 = 1 << 36;

    /// Encrypts `plain` and appends the result to `out`.
    ///
    /// # Errors
    /// [`CutReason::Broken`] if the connection's keys are used up or the message is too long.
    pub fn seal(&self, nonce: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CutReason> {
        if nonce >= Seal::MESSAGES {
            return Err(CutReason::Broken("its keys are used up"));
        }
        let at = out.len();
        out.resize(at + plain.len() + TAG, 0);
        match self.0.write_message(nonce, plain, &mut out[at..]) {
            Ok(_) => Ok(()),
            Err(_) => Err(CutReason::Broken("a message can't be sealed")),
        }
    }

    /// Decrypts `sealed` into `out`, and returns the length of the plain text. Decryption is faster
    /// if `out` has space for the tag, too.
    ///
    /// # Errors
    /// [`CutReason::Broken`] if the message isn't authentic.
    pub fn open(&self, nonce: u64, sealed: &[u8], out: &mut [u8]) -> Result<usize, CutReason> {
        let opened = self.0.read_message(nonce, sealed, out);
        opened.map_err(|_| CutReason::Broken("a message isn't authentic"))
    }
}

fn builder<'a>(key: &'a PoolKey, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?)
        .psk(0, key.bytes())?
        .prologue(prologue)
}

fn prologue(pool: &PoolId) -> Vec<u8> {
    [PROLOGUE, &pool.0].concat()
}

fn local(e: snow::Error) -> Error {
    Error::Local(format!("Noise: {e}"))
}

/// The calling side, after sending its hello.
pub struct Caller(HandshakeState);

impl Caller {
    /// Starts a handshake. Also returns the hello to be sent.
    ///
    /// # Errors
    /// If the key can't be used, or there are no random bytes.
    pub fn start(
        key: &PoolKey,
        pool: &PoolId,
        hello: &Hello,
    ) -> Result<(Caller, [u8; HELLO]), Error> {
        let mut payload = [0; PAYLOAD];
        payload[0..2].copy_from_slice(&hello.version.to_le_bytes());
        payload[2] = hello.lane as u8;
        payload[3] = u8::from(hello.encrypt);
        payload[4..8].copy_from_slice(&hello.from.0.to_le_bytes());
        payload[8..12].copy_from_slice(&hello.to.0.to_le_bytes());
        payload[16..32].copy_from_slice(&hello.session);
        let mut bytes = [0; HELLO];
        let mut state = builder(key, &prologue(pool))
            .and_then(Builder::build_initiator)
            .map_err(local)?;
        state.write_message(&payload, &mut bytes).map_err(local)?;
        Ok((Caller(state), bytes))
    }

    /// Reads the welcome. Returns it, the keys, and the confirm to be sent. None if the sender
    /// doesn't hold the key.
    pub fn finish(mut self, bytes: &[u8; HELLO]) -> Option<(Welcome, Seal, [u8; CONFIRM])> {
        let mut payload = [0; HELLO];
        let n = self.0.read_message(bytes, &mut payload).ok()?;
        let payload: &[u8; PAYLOAD] = payload[..n].try_into().ok()?;
        let welcome = Welcome {
            version: u16::from_le_bytes([payload[0], payload[1]]),
            status: match payload[2] {
                0 => Status::Welcome,
                1 => Status::Version,
                2 => Status::OtherNode,
                3 => Status::NoSession,
                4 => Status::Full,
                _ => return None,
            },
            encrypt: payload[3] & 1 != 0,
            session: *payload[16..].first_chunk()?,
            seed: u64::from_le_bytes(*payload[32..].first_chunk()?),
        };
        let seal = Seal(self.0.into_stateless_transport_mode().ok()?);
        let mut confirm = Vec::with_capacity(CONFIRM);
        seal.seal(0, &[0; 16], &mut confirm).ok()?;
        Some((welcome, seal, confirm.try_into().ok()?))
    }
}

/// The called side after reading a hello.
pub struct Called(HandshakeState);

impl Called {
    /// Reads a hello. None if the sender doesn't hold the key. The inner hello is None if its
    /// version differs from this node's: the calling side must be answered with that reason.
    pub fn read(
        key: &PoolKey,
        pool: &PoolId,
        bytes: &[u8; HELLO],
    ) -> Option<(Called, Option<Hello>)> {
        let mut state = builder(key, &prologue(pool))
            .and_then(Builder::build_responder)
            .ok()?;
        let mut payload = [0; HELLO];
        let n = state.read_message(bytes, &mut payload).ok()?;
        let payload: &[u8; PAYLOAD] = payload[..n].try_into().ok()?;
        let number = |at: usize| Some(u32::from_le_bytes(*payload[at..].first_chunk()?));
        let version = u16::from_le_bytes([payload[0], payload[1]]);
        if version != VERSION {
            return Some((Called(state), None));
        }
        let hello = Hello {
            version,
            lane: match payload[2] {
                0 => Lane::Control,
                1 => Lane::Bulk,
                _ => return None,
            },
            encrypt: payload[3] & 1 != 0,
            from: NodeId(number(4)?),
            to: NodeId(number(8)?),
            session: *payload[16..].first_chunk()?,
        };
        Some((Called(state), Some(hello)))
    }

    /// Makes the welcome to be sent, and the keys, which are valid once the confirm has arrived.
    ///
    /// # Errors
    /// If the message can't be made.
    pub fn welcome(mut self, welcome: &Welcome) -> Result<(Unconfirmed, [u8; HELLO]), Error> {
        let mut payload = [0; PAYLOAD];
        payload[0..2].copy_from_slice(&welcome.version.to_le_bytes());
        payload[2] = welcome.status as u8;
        payload[3] = u8::from(welcome.encrypt);
        payload[16..32].copy_from_slice(&welcome.session);
        payload[32..40].copy_from_slice(&welcome.seed.to_le_bytes());
        let mut bytes = [0; HELLO];
        self.0.write_message(&payload, &mut bytes).map_err(local)?;
        let seal = Seal(self.0.into_stateless_transport_mode().map_err(local)?);
        Ok((Unconfirmed(seal), bytes))
    }
}

/// The called side after sending a welcome.
pub struct Unconfirmed(Seal);

impl Unconfirmed {
    /// Reads the confirm. None if the sender doesn't hold the key. The calling side's next message
    /// has number 1.
    pub fn confirm(self, bytes: &[u8; CONFIRM]) -> Option<Seal> {
        let mut payload = [0; CONFIRM];
        let n = self.0.open(0, bytes, &mut payload).ok()?;
        (payload[..n] == [0; 16]).then_some(self.0)
    }
}
