//! The handshake: two nodes prove to each other that they hold the pool's key. Pure: no I/O.
//!
//! Noise NNpsk0, three messages of fixed size, on each lane of a connection:
//!
//! 1. *hello*: proves the key; says, encrypted, which version, lane and nodes.
//! 2. *welcome*: proves the key, fresh; accepts or says why not.
//! 3. *confirm*: proves that the hello wasn't an old one, recorded by somebody else.
//!
//! Until a hello has proved the key the answer to anything is silence. Sizes, the prologue, and the
//! places of version and status stay the same in all versions of the protocol, so that nodes of
//! different versions can tell each other so. Why this pattern: docs/decisions/0019.

use crate::envelope::{TAG, VERSION};
use crate::transport::{NodeId, PoolId};
use crate::{Error, PoolKey};
use snow::{Builder, HandshakeState, StatelessTransportState};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"Forebay handshake 1\0";
const PAYLOAD: usize = 64;

/// Bytes of a hello, and of a welcome.
pub const HELLO: usize = 32 + PAYLOAD + TAG;
/// Bytes of a confirm.
pub const CONFIRM: usize = 16 + TAG;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Small messages.
    Control = 0,
    /// Messages with a body.
    Bulk = 1,
}

/// What the calling node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Of the protocol.
    pub version: u16,
    /// Which lane this is to be.
    pub lane: Lane,
    /// Bodies have to be encrypted.
    pub encrypt: bool,
    /// The calling node.
    pub from: NodeId,
    /// The called node.
    pub to: NodeId,
    /// Of the bulk lane: the session that the welcome on the control lane named.
    pub session: [u8; 16],
}

/// What the called node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Of the protocol.
    pub version: u16,
    /// Whether the connection is accepted.
    pub status: Status,
    /// Bodies will be encrypted.
    pub encrypt: bool,
    /// The session to be joined by the bulk lane.
    pub session: [u8; 16],
    /// Start value of the checksums of bodies.
    pub seed: u64,
}

/// Whether a connection is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is.
    Welcome = 0,
    /// The versions differ.
    Version = 1,
    /// The node isn't the one that was called.
    OtherNode = 2,
    /// There is no such session to join.
    NoSession = 3,
    /// There are as many connections as there may be.
    Full = 4,
}

impl Status {
    /// In words.
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

/// The keys of a lane. Each message has its number, from 0 on in each direction, as its nonce.
pub struct Seal(StatelessTransportState);

impl Seal {
    /// Most messages in one direction: far from what AES-GCM bears with one key. The connection
    /// ends then.
    pub const MESSAGES: u64 = 1 << 36;

    /// Appends the sealed `plain` to `out`.
    ///
    /// # Errors
    /// The connection's keys are used up, or the message is too long.
    pub fn seal(&self, nonce: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        if nonce >= Seal::MESSAGES {
            return Err("its keys are used up");
        }
        let at = out.len();
        out.resize(at + plain.len() + TAG, 0);
        match self.0.write_message(nonce, plain, &mut out[at..]) {
            Ok(_) => Ok(()),
            Err(_) => Err("a message can't be sealed"),
        }
    }

    /// Opens `sealed` into `out`, which should have room for the tag too (it is faster then).
    ///
    /// # Errors
    /// The message isn't authentic.
    pub fn open(&self, nonce: u64, sealed: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
        (self.0.read_message(nonce, sealed, out)).map_err(|_| "a message isn't authentic")
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

/// The calling side.
pub struct Caller(HandshakeState);

impl Caller {
    /// Begins: the hello to be sent.
    ///
    /// # Errors
    /// If the key can't be used, or no random bytes are given.
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

    /// Reads the welcome: what it says, the keys, and the confirm to be sent. None: who sent it
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

/// The called side, when it has read a hello.
pub struct Called(HandshakeState);

impl Called {
    /// Reads a hello. None: who sent it doesn't hold the key. The hello inside is None if its
    /// version is another one than ours (given), which has to be told.
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

    /// The welcome to be sent, and the keys, which count once the confirm has come.
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

/// The called side, when it has sent a welcome.
pub struct Unconfirmed(Seal);

impl Unconfirmed {
    /// Reads the confirm. None: who sent it doesn't hold the key. The caller's next message has
    /// number 1.
    pub fn confirm(self, bytes: &[u8; CONFIRM]) -> Option<Seal> {
        let mut payload = [0; CONFIRM];
        let n = self.0.open(0, bytes, &mut payload).ok()?;
        (payload[..n] == [0; 16]).then_some(self.0)
    }
}
