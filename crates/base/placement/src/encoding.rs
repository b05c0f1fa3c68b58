//! The encoding of a pool map.
//!
//! ```text
//! "FBYPMAP" version:1  pool:16 epoch:8  next nodes slices
//! node:   number (less the one before, less 1)  flags:1  [since] [weight] [media]
//!         addresses: count, then kind:1 (4 or 6) ip:4|16 port:2
//!         name: bytes shared with the previous one, number of other bytes, these
//! media:  count, then kind:1 capacity
//! slice:  length  index of its node in the list (difference to the previous one, zigzag)
//! xxh3 of all before: 8
//! ```
//! Numbers without a width are LEB128; others are little-endian. Flags: the state (2 bits), and 4,
//! 8, 16: since, weight, media equal those of the previous node and are left out. Decoding accepts
//! any bytes; if the bytes are a map, encoding that map gives the same bytes. Decoding allocates
//! memory in proportion to the bytes, and no more than the limits in [`crate::map`] allow.

use crate::map::{
    Address, MAX_ADDRESSES, MAX_MEDIA, MAX_NAME, MAX_NODES, Medium, MediumKind, Node, PoolMap,
    State,
};
use crate::{NodeId, SLOTS, Slices};
use std::fmt;
use std::net::IpAddr;
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 7] = b"FBYPMAP";
const VERSION: u8 = 1;
/// Minimum size of an encoded node: number, flags, addresses, name. Bytes.
const NODE_MIN: usize = 6;

const SAME_SINCE: u8 = 4;
const SAME_WEIGHT: u8 = 8;
const SAME_MEDIA: u8 = 16;

const STATES: [State; 4] = [State::Up, State::Down, State::Joining, State::Leaving];
const KINDS: [MediumKind; 2] = [MediumKind::Memory, MediumKind::Files];

/// Why bytes aren't a pool map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The bytes are something else, or damaged.
    NoMap,
    /// The bytes are a map in an encoding of another version.
    Version(u8),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::NoMap => write!(f, "not a pool map, or damaged"),
            DecodeError::Version(v) => write!(
                f,
                "the pool map has format version {v}, this Forebay reads {VERSION}"
            ),
        }
    }
}

impl std::error::Error for DecodeError {}

impl PoolMap {
    /// Encodes the map.
    pub fn encode(&self) -> Vec<u8> {
        let nodes = self.nodes();
        let mut out = Vec::with_capacity(64 + 32 * nodes.len() + 4 * self.slices().len());
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.pool());
        out.extend_from_slice(&self.epoch().to_le_bytes());
        put(&mut out, u64::from(self.next_number().0));
        put(&mut out, nodes.len() as u64);
        put(&mut out, self.slices().len() as u64);
        let mut before = None;
        for node in nodes {
            put_node(&mut out, node, before);
            before = Some(node);
        }
        let mut last = 0;
        for (range, node) in self.slices().iter() {
            let place = nodes.partition_point(|n| n.number < node) as i64;
            put(&mut out, u64::from(range.end - range.start));
            let step = place - last;
            put(&mut out, (step << 1 ^ step >> 63) as u64);
            last = place;
        }
        let sum = XxHash3_64::oneshot(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(
            PoolMap::decode(&out).as_ref(),
            Ok(self),
            "a map is read as it is written"
        );
        out
    }

    /// Decodes a map.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes aren't a map in this version's encoding.
    pub fn decode(bytes: &[u8]) -> Result<PoolMap, DecodeError> {
        let version = bytes.strip_prefix(MAGIC).and_then(|b| b.first());
        match version {
            Some(&VERSION) => {}
            Some(&v) => return Err(DecodeError::Version(v)),
            None => return Err(DecodeError::NoMap),
        }
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(DecodeError::NoMap)?;
        if XxHash3_64::oneshot(body) != u64::from_le_bytes(*sum) {
            return Err(DecodeError::NoMap);
        }
        decode_body(&body[MAGIC.len() + 1..]).ok_or(DecodeError::NoMap)
    }
}

/// Encodes nodes, which must be sorted by their numbers: a count, then each node as in a map.
pub fn encode_nodes(nodes: &[Node]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + 48 * nodes.len());
    put(&mut out, nodes.len() as u64);
    let mut before = None;
    for node in nodes {
        put_node(&mut out, node, before);
        before = Some(node);
    }
    out
}

/// Decodes nodes: at most [`MAX_NODES`], with ascending numbers.
///
/// # Errors
/// [`DecodeError`] if the bytes aren't such nodes.
pub fn decode_nodes(bytes: &[u8]) -> Result<Vec<Node>, DecodeError> {
    let mut r = Reader(bytes);
    let nodes = (|| {
        let count = r.number(MAX_NODES as u64)? as usize;
        let mut nodes: Vec<Node> = Vec::with_capacity(count.min(r.0.len() / NODE_MIN));
        for _ in 0..count {
            let node = r.node(nodes.last())?;
            node.check().ok()?;
            nodes.push(node);
        }
        r.0.is_empty().then_some(nodes)
    })();
    nodes.ok_or(DecodeError::NoMap)
}

fn decode_body(body: &[u8]) -> Option<PoolMap> {
    let mut r = Reader(body);
    let pool = *r.array::<16>()?;
    let epoch = u64::from_le_bytes(*r.array()?);
    let next = r.number(u64::from(u32::MAX))? as u32;
    let node_count = r.number(MAX_NODES as u64)? as usize;
    let slice_count = r.number(u64::from(SLOTS))? as usize;
    let mut nodes: Vec<Node> = Vec::with_capacity(node_count.min(r.0.len() / NODE_MIN));
    for _ in 0..node_count {
        let node = r.node(nodes.last())?;
        nodes.push(node);
    }
    let mut lengths = Vec::with_capacity(slice_count.min(r.0.len() / 2));
    let mut place = 0i64;
    for _ in 0..slice_count {
        let length = r.number(u64::from(SLOTS)).filter(|&n| n > 0)? as u32;
        let step = r.number(2 * MAX_NODES as u64)? as i64;
        place += step >> 1 ^ -(step & 1);
        let node = nodes.get(usize::try_from(place).ok()?)?.number;
        lengths.push((length, node));
    }
    let slices = Slices::from_lengths(lengths)?;
    // Epochs count up; the highest ones, which leave none for a later map, are invalid.
    if !r.0.is_empty() || slices.len() != slice_count || epoch == 0 || epoch >> 63 != 0 {
        return None;
    }
    PoolMap::sound(pool, epoch, next, nodes, slices).ok()
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Returns the number of bytes at the beginning that two names have in common.
fn in_common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn put_node(out: &mut Vec<u8>, node: &Node, before: Option<&Node>) {
    let step = before.map_or(node.number.0, |b| node.number.0 - b.number.0 - 1);
    put(out, u64::from(step));
    let same =
        |flag, same: fn(&Node, &Node) -> bool| before.filter(|b| same(b, node)).map_or(0, |_| flag);
    let flags = STATES.iter().position(|s| *s == node.state).unwrap_or(0) as u8
        | same(SAME_SINCE, |a, b| a.since == b.since)
        | same(SAME_WEIGHT, |a, b| a.weight == b.weight)
        | same(SAME_MEDIA, |a, b| a.media == b.media);
    out.push(flags);
    if flags & SAME_SINCE == 0 {
        put(out, node.since);
    }
    if flags & SAME_WEIGHT == 0 {
        put(out, u64::from(node.weight));
    }
    if flags & SAME_MEDIA == 0 {
        put(out, node.media.len() as u64);
        for m in &node.media {
            out.push(m.kind as u8);
            put(out, m.capacity);
        }
    }
    put(out, node.addresses.len() as u64);
    for a in &node.addresses {
        match a.ip {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend_from_slice(&ip.octets());
            }
        }
        out.extend_from_slice(&a.port.to_le_bytes());
    }
    let name = node.name.as_bytes();
    let shared = before.map_or(0, |b| in_common(b.name.as_bytes(), name));
    put(out, shared as u64);
    put(out, (name.len() - shared) as u64);
    out.extend_from_slice(&name[shared..]);
}

/// The bytes that are still to be decoded.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, n: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<&'b [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }

    /// Decodes a number of at most `most`, in its shortest encoding.
    fn number(&mut self, most: u64) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            n |= bits << shift;
            if n >> shift != bits {
                return None;
            }
            if byte & 0x80 == 0 {
                let shortest = shift == 0 || byte != 0;
                return (shortest && n <= most).then_some(n);
            }
        }
        None
    }

    /// Decodes a field that is left out if it equals `before`. If the field is present, it must
    /// differ.
    fn or_same<T: Clone + PartialEq>(
        &mut self,
        same: bool,
        before: Option<T>,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        if same {
            return before;
        }
        read(self).filter(|new| before.as_ref() != Some(new))
    }

    fn node(&mut self, before: Option<&Node>) -> Option<Node> {
        let step = self.number(u64::from(u32::MAX))? as u32;
        let number = match before {
            Some(b) => b.number.0.checked_add(step)?.checked_add(1)?,
            None => step,
        };
        let flags = self.byte()?;
        let state = *STATES.get(usize::from(flags & 3))?;
        if flags & !(3 | SAME_SINCE | SAME_WEIGHT | SAME_MEDIA) != 0 {
            return None;
        }
        let since = before.map(|b| b.since);
        let since = self.or_same(flags & SAME_SINCE != 0, since, |r| r.number(u64::MAX))?;
        let weight = before.map(|b| b.weight);
        let weight = self.or_same(flags & SAME_WEIGHT != 0, weight, |r| {
            Some(r.number(u64::from(u32::MAX))? as u32)
        })?;
        let media = before.map(|b| b.media.clone());
        let media = self.or_same(flags & SAME_MEDIA != 0, media, Reader::media)?;
        let addresses = self.addresses()?;
        let name = self.name(before.map_or(b"", |b| b.name.as_bytes()))?;
        Some(Node {
            number: NodeId(number),
            name,
            addresses,
            state,
            since,
            weight,
            media,
        })
    }

    fn media(&mut self) -> Option<Vec<Medium>> {
        let count = self.number(MAX_MEDIA as u64)?;
        let medium = |_| {
            Some(Medium {
                kind: *KINDS.get(usize::from(self.byte()?))?,
                capacity: self.number(u64::MAX)?,
            })
        };
        (0..count).map(medium).collect()
    }

    fn addresses(&mut self) -> Option<Vec<Address>> {
        let count = self.number(MAX_ADDRESSES as u64)?;
        let address = |_| {
            let ip = match self.byte()? {
                4 => IpAddr::from(*self.array::<4>()?),
                6 => IpAddr::from(*self.array::<16>()?),
                _ => return None,
            };
            let port = u16::from_le_bytes(*self.array()?);
            Some(Address { ip, port })
        };
        (0..count).map(address).collect()
    }

    fn name(&mut self, before: &[u8]) -> Option<String> {
        let shared = self.number(MAX_NAME as u64)? as usize;
        let more = self.number(MAX_NAME as u64)? as usize;
        let mut name = before.get(..shared)?.to_vec();
        name.extend_from_slice(self.take(more)?);
        let sound = in_common(before, &name) == shared;
        String::from_utf8(name).ok().filter(|_| sound)
    }
}
