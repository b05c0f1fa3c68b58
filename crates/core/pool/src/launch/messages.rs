//! Messages between daemons during a start, as bytes on the pipes of a launch.
//!
//! ```text
//! greeting, first on each pipe:   "FBSTART" version:1
//! frame:    length:4 (of what follows, without the newline)  kind:1 body "\n"
//! down:  1  begin: number of the node:4, key:32, plan (JSON)
//!        2  map: the pool map          3  go         4  stop
//! up:   17  report: nodes              18  failed: count:4, then (node:4 below:4 length:2 why)
//!       19  ready
//! ```
//! Numbers are little-endian. All lengths are bounded, and memory is allocated only for bytes that
//! have arrived. The newline is needed because srun forwards whole lines.

use super::Plan;
use crate::start::{Down, Missing, Up};
use forebay_placement::map::MAX_NODES;
use forebay_placement::{PoolMap, decode_nodes, encode_nodes};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The greeting; its last byte is the version of these messages.
const GREETING: &[u8; 8] = b"FBSTART\x01";
/// Maximum size of a frame; reports and maps of the largest pool fit. Bytes.
const MAX_FRAME_BYTES: usize = 32 << 20;
/// Maximum length of a reason (`why`) in a message. Bytes.
const WHY: usize = 1000;
/// Size of a pool's key. Bytes.
pub const KEY: usize = 32;

const BEGIN: u8 = 1;
const MAP: u8 = 2;
const GO: u8 = 3;
const STOP: u8 = 4;
const REPORT: u8 = 17;
const FAILED: u8 = 18;
const READY: u8 = 19;

/// The first message to a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The daemon's node number.
    pub me: u32,
    /// The pool's key.
    pub key: Key,
    /// The plan of the pool.
    pub plan: Plan,
}

/// The bytes of a pool's key: never printed, cleared when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub Zeroizing<[u8; KEY]>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// Why a message couldn't be read.
#[derive(Debug)]
pub enum Unread {
    /// The other end is closed.
    Closed,
    /// The other end isn't a daemon; the text is its first output.
    NotADaemon(String),
    /// The other end is a daemon of another version.
    Version(u8),
    /// A malformed frame.
    Malformed,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Closed => write!(f, "its daemon has ended"),
            Unread::NotADaemon(text) => write!(
                f,
                "something else answers in place of its daemon: '{text}'; does its shell print something at login?"
            ),
            Unread::Version(v) => write!(
                f,
                "its Forebay is of another version (messages {v}, not {})",
                GREETING[7]
            ),
            Unread::Malformed => write!(f, "its daemon sent a malformed message"),
        }
    }
}

impl From<io::Error> for Unread {
    fn from(_: io::Error) -> Unread {
        Unread::Closed
    }
}

/// Writes the greeting to a pipe.
///
/// # Errors
/// If the other end is closed.
pub fn greet(to: &mut impl Write) -> io::Result<()> {
    to.write_all(GREETING)?;
    to.flush()
}

/// Reads the greeting from a pipe.
///
/// # Errors
/// [`Unread`] if it isn't the greeting of a daemon of this version.
pub fn hear_greeting(from: &mut impl Read) -> Result<(), Unread> {
    let mut heard = Vec::with_capacity(GREETING.len());
    from.by_ref()
        .take(GREETING.len() as u64)
        .read_to_end(&mut heard)?;
    if heard == GREETING {
        return Ok(());
    }
    if heard.is_empty() {
        return Err(Unread::Closed);
    }
    if let [start @ .., version] = &heard[..]
        && start == &GREETING[..7]
    {
        return Err(Unread::Version(*version));
    }
    // The rest of the line is only shown to users. At most 200 bytes are read, since the line may
    // never end.
    let mut byte = [0];
    while heard.len() < 200 && !heard.contains(&b'\n') && from.read(&mut byte)? == 1 {
        heard.push(byte[0]);
    }
    let line = heard.split(|&b| b == b'\n').next().unwrap_or(b"");
    let mut text = String::from_utf8_lossy(line).into_owned();
    text.retain(|c| !c.is_control());
    Err(Unread::NotADaemon(text))
}

fn frame(kind: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    // In one allocation: a buffer that grows would leave copies of a key in memory.
    let mut out = Zeroizing::new(Vec::with_capacity(length + 6));
    out.extend_from_slice(&(length as u32 + 1).to_le_bytes());
    out.push(kind);
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out.push(b'\n');
    out
}

fn read_frame(from: &mut impl Read) -> Result<(u8, Zeroizing<Vec<u8>>), Unread> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if !(1..=MAX_FRAME_BYTES).contains(&length) {
        return Err(Unread::Malformed);
    }
    // `length` counts the kind, which was read already, but not the newline. So `length` bytes
    // remain. A frame with the key fits the first allocation: a buffer that grows would leave
    // copies of the key in memory.
    let mut body = Zeroizing::new(Vec::with_capacity(length.min(64 << 10)));
    from.by_ref().take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(Unread::Closed);
    }
    match body.pop() {
        Some(b'\n') => Ok((head[4], body)),
        _ => Err(Unread::Malformed),
    }
}

impl Begin {
    /// Encodes the message.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let plan = serde_json::to_vec(&self.plan).unwrap_or_default();
        frame(BEGIN, &[&self.me.to_le_bytes(), &self.key.0[..], &plan])
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`Unread`] if it is malformed, or its plan is impossible.
    pub fn read(from: &mut impl Read) -> Result<Begin, Unread> {
        let (kind, body) = read_frame(from)?;
        let parse = || {
            let (me, rest) = body.split_first_chunk::<4>()?;
            let (key, plan) = rest.split_first_chunk::<KEY>()?;
            let me = u32::from_le_bytes(*me);
            let plan: Plan = serde_json::from_slice(plan).ok()?;
            let key = Key(Zeroizing::new(*key));
            (kind == BEGIN && plan.check(me).is_none()).then_some(Begin { me, key, plan })
        };
        parse().ok_or(Unread::Malformed)
    }
}

/// Encodes a message to a child.
pub fn encode_down(down: &Down) -> Zeroizing<Vec<u8>> {
    match down {
        Down::Map(map) => frame(MAP, &[&map.encode()]),
        Down::Go => frame(GO, &[]),
        Down::Stop => frame(STOP, &[]),
    }
}

/// Reads a message from the parent.
///
/// # Errors
/// [`Unread`] if the pipe is closed, or the message malformed.
pub fn read_down(from: &mut impl Read) -> Result<Down, Unread> {
    let (kind, body) = read_frame(from)?;
    match kind {
        MAP => {
            let map = PoolMap::decode(&body).map_err(|_| Unread::Malformed)?;
            Ok(Down::Map(Arc::new(map)))
        }
        GO if body.is_empty() => Ok(Down::Go),
        STOP if body.is_empty() => Ok(Down::Stop),
        _ => Err(Unread::Malformed),
    }
}

/// Encodes a message to the parent.
pub fn encode_up(up: &Up) -> Zeroizing<Vec<u8>> {
    match up {
        Up::Report(nodes) => {
            let mut nodes = nodes.clone();
            nodes.sort_by_key(|n| n.number);
            nodes.dedup_by_key(|n| n.number);
            frame(REPORT, &[&encode_nodes(&nodes)])
        }
        Up::Failed(missing) => {
            let mut body = (missing.len() as u32).to_le_bytes().to_vec();
            for m in missing {
                let cut = m.why.floor_char_boundary(WHY);
                body.extend_from_slice(&m.node.to_le_bytes());
                body.extend_from_slice(&m.below.to_le_bytes());
                body.extend_from_slice(&(cut as u16).to_le_bytes());
                body.extend_from_slice(&m.why.as_bytes()[..cut]);
            }
            frame(FAILED, &[&body])
        }
        Up::Ready => frame(READY, &[]),
    }
}

/// Reads a message from a child.
///
/// # Errors
/// [`Unread`] if the pipe is closed, or the message malformed.
pub fn read_up(from: &mut impl Read) -> Result<Up, Unread> {
    let (kind, body) = read_frame(from)?;
    let up = match kind {
        REPORT => decode_nodes(&body).ok().map(Up::Report),
        FAILED => missing(&body).map(Up::Failed),
        READY if body.is_empty() => Some(Up::Ready),
        _ => None,
    };
    up.ok_or(Unread::Malformed)
}

fn missing(body: &[u8]) -> Option<Vec<Missing>> {
    fn number(rest: &mut &[u8]) -> Option<u32> {
        let (number, after) = rest.split_first_chunk::<4>()?;
        *rest = after;
        Some(u32::from_le_bytes(*number))
    }
    let mut rest = body;
    let count = number(&mut rest).filter(|&n| n as usize <= MAX_NODES)?;
    let mut all = Vec::new();
    for _ in 0..count {
        let (node, below) = (number(&mut rest)?, number(&mut rest)?);
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (why, after) = after.split_at_checked(length).filter(|_| length <= WHY)?;
        rest = after;
        let why = std::str::from_utf8(why).ok()?.to_owned();
        all.push(Missing { node, below, why });
    }
    rest.is_empty().then_some(all)
}
