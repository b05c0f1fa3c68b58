//! The formats of records: keys and values as they are stored in LMDB.
//!
//! ```text
//! 'D' parent:8 name      -> id:8 kind:1            an entry of a directory ([`EntryRecord`])
//! 'I' id:8               -> inode tail              attributes; the tail is a small file's
//!                                                   data, a link's target, a directory's
//!                                                   name, or the extents of chunk 0
//! 'X' id:8 chunk:8       -> extent:8 ...            extents of chunk 1, 2, ...
//! 'E' id:8 chunk:8       -> from:4 node:4           the node that has the rest of a chunk
//!                                                   (`placements.rs`)
//! 'A' id:8 name          -> value                   an extended attribute
//! 'O' id:8               -> () or 1                 an object without a name, still open; 1: it
//!                                                   never had one
//! 'B' id:8               -> ()                      a bursty file, or one that mustn't stay in
//!                                                   memory: to be moved when nobody has it open
//!                                                   (`data/drain.rs`, `data/on_files.rs`)
//! 'K' id:8 chunk:8       -> stable:1 sum:4 ...   checksums of a chunk's blocks (`data/sums.rs`)
//! 'M' id:8               -> node:4 boot:8 process:8  an ephemeral file's creator
//!                                                   (`ephemeral.rs`)
//! 'J'                    -> changes                 rest of a commit over several shards
//! 'L' id:8 parent:8 name -> state:1 owner:4         a name that the object has on another node
//! 'N' parent:8 name      -> an intent               what is left to do for this name on other
//!                                                   nodes (`cross_node.rs`)
//! 'P' id:8 parent:8 name -> ()                      a name of a file that is indexed or ephemeral
//! 'V' key:8 value:8 name:8 id:8 -> ()               the index: hashes of a user attribute's key,
//!                                                   value and name, and the object
//!                                                   (`index.rs`)
//! 'R' key:8 order:16 id:8 -> ()                     the same by order: the hash of the key, the
//!                                                   value's order (`order.rs`)
//! 'T' id:8               -> name:8 ...             hashes of names under which attributes of the
//!                                                   object may still be in the index; if it has
//!                                                   no inode, its other records are to be removed
//!                                                   (`leftovers.rs`)
//! 'W' id:8               -> path                    a directory of the view `.by` that was looked
//!                                                   up
//! ```
//! Numbers in keys are big-endian, so that they sort; those in values are little-endian. Decoding
//! accepts any bytes and returns None for what isn't a record.

mod chunk_map;

pub use chunk_map::{ChunkMap, FEW_EXTENTS, MAX_EXTENTS};

use crate::origin::OriginMark;
use forebay_placement::ObjectId;
use smallvec::SmallVec;
use twox_hash::XxHash3_64;

/// Maximum length of the name of an entry or an extended attribute. Bytes.
pub const NAME_MAX: usize = 255;
/// Maximum size of a file that is stored inside its record. Bytes.
pub const INLINE_MAX: usize = 1024;
/// Size of the fixed part at the beginning of each encoded inode. Bytes.
const INODE_LEN: usize = 6;
/// Offset in the fixed part of the byte whose bits tell which optional fields follow.
const THERE: usize = 3;
const VERSION: u8 = 4;
/// Flags, in the third byte of the fixed part.
const HAS_ATTRIBUTES: u8 = 1;
const HAS_CONTROLS: u8 = 2;
const HAS_EDITION: u8 = 4;
const HAS_CUTS: u8 = 8;
const HAS_CUT_SIZE: u8 = 16;
const HAS_COPY_STAMP: u8 = 32;
const IS_SPREAD: u8 = 64;
/// Flag: three 64-bit words follow the numbers of [`WORD_FLAGS`]: the fields of [`OriginMark`].
const HAS_ORIGIN: u8 = 128;
/// Number of the modification time's bit in the byte at [`THERE`]. The lower bits are those of
/// size, pages, parent and device; the higher bits are those of the other times.
const MTIME: u8 = 4;
/// Maximum length of an encoded number of 64 bits, and of one of 32 bits. Bytes.
const MAX_NUMBER: usize = 10;
const MAX_NUMBER_32: usize = 5;
/// Maximum number of bytes that follow the fixed part of an inode.
const MAX_NUMBERS: usize =
    3 * MAX_NUMBER_32 + (7 + WORD_FLAGS.len()) * MAX_NUMBER + 8 * (1 + OriginMark::WORDS);
/// The flags that each announce one encoded number of 64 bits, in the order of these numbers.
const WORD_FLAGS: [u8; 5] = [
    HAS_CONTROLS,
    HAS_EDITION,
    HAS_CUTS,
    HAS_CUT_SIZE,
    HAS_COPY_STAMP,
];
const HAS_WORDS: u8 = HAS_CONTROLS | HAS_EDITION | HAS_CUTS | HAS_CUT_SIZE | HAS_COPY_STAMP;
/// Bit in the last byte of an entry's record: several nodes are changing the entry.
const CHANGING: u8 = 0x80;

/// A key, built on the stack.
pub struct Key {
    bytes: [u8; 17 + NAME_MAX],
    len: usize,
}

impl Key {
    #[inline]
    fn new(tag: u8, id: ObjectId, rest: &[u8]) -> Key {
        assert!(
            rest.len() <= 8 + NAME_MAX,
            "a key has {} bytes behind its id",
            rest.len()
        );
        let mut bytes = [0; 17 + NAME_MAX];
        bytes[0] = tag;
        bytes[1..9].copy_from_slice(&id.0.to_be_bytes());
        bytes[9..9 + rest.len()].copy_from_slice(rest);
        Key {
            bytes,
            len: 9 + rest.len(),
        }
    }

    /// Key of the entry `name` of directory `parent`.
    #[inline]
    pub fn entry(parent: ObjectId, name: &[u8]) -> Key {
        Key::new(b'D', parent, name)
    }

    /// Key of the inode of `id`.
    #[inline]
    pub fn inode(id: ObjectId) -> Key {
        Key::new(b'I', id, &[])
    }

    /// Key of the extents of chunk `chunk` of `id`.
    #[inline]
    pub fn chunk(id: ObjectId, chunk: u64) -> Key {
        Key::new(b'X', id, &chunk.to_be_bytes())
    }

    /// Key of the checksums of chunk `chunk` of `id`.
    pub fn sums(id: ObjectId, chunk: u64) -> Key {
        Key::new(b'K', id, &chunk.to_be_bytes())
    }

    /// Key of the record of the node that has chunk `chunk` of `id`, if it is another node
    /// (`stripes/placed.rs`).
    pub fn placed(id: ObjectId, chunk: u64) -> Key {
        Key::new(b'E', id, &chunk.to_be_bytes())
    }

    /// Key of the extended attribute `name` of `id`.
    pub fn attribute(id: ObjectId, name: &[u8]) -> Key {
        Key::new(b'A', id, name)
    }

    /// Key of the record that `id` has the name `name` in `parent` on another node.
    pub fn link(id: ObjectId, parent: ObjectId, name: &[u8]) -> Key {
        let mut key = Key::new(b'L', id, &parent.0.to_be_bytes());
        key.bytes[key.len..key.len + name.len()].copy_from_slice(name);
        key.len += name.len();
        key
    }

    /// Key of the record that `id`, an indexed or ephemeral file, has the name `name` in `parent`.
    pub fn known_name(id: ObjectId, parent: ObjectId, name: &[u8]) -> Key {
        let mut key = Key::link(id, parent, name);
        key.bytes[0] = b'P';
        key
    }

    /// Prefix of the keys of all known names of `id`.
    pub fn known_names(id: ObjectId) -> Key {
        Key::new(b'P', id, &[])
    }

    /// Key of an entry of the index: the object at `mark` has the attribute `word`.
    pub fn indexed(word: Word, mark: Mark) -> Key {
        let mut rest = [0; 24];
        rest[..8].copy_from_slice(&word.value.to_be_bytes());
        rest[8..16].copy_from_slice(&mark.name.to_be_bytes());
        rest[16..].copy_from_slice(&mark.id.0.to_be_bytes());
        Key::new(b'V', ObjectId(word.key), &rest)
    }

    /// Key of an entry of the index by order: the value of attribute `key` of `id` has this order.
    pub fn ordered(key: u64, order: Order, id: ObjectId) -> Key {
        let mut rest = [0; 24];
        rest[..16].copy_from_slice(&order.0.to_be_bytes());
        rest[16..].copy_from_slice(&id.0.to_be_bytes());
        Key::new(b'R', ObjectId(key), &rest)
    }

    /// Key of the path of a directory of the view `.by` that was looked up.
    pub fn view(id: ObjectId) -> Key {
        Key::new(b'W', id, &[])
    }

    /// Key of the intent on the entry `name` of `parent`.
    pub fn note(parent: ObjectId, name: &[u8]) -> Key {
        Key::new(b'N', parent, name)
    }

    /// Key of the mark of a file that is to be moved out of memory.
    pub fn landed(id: ObjectId) -> Key {
        Key::new(b'B', id, &[])
    }

    /// Key of the creator of an ephemeral file.
    pub fn creator(id: ObjectId) -> Key {
        Key::new(b'M', id, &[])
    }

    /// Key of the hashes of names under which attributes of `id` may still be in the index.
    pub fn leftover(id: ObjectId) -> Key {
        Key::new(b'T', id, &[])
    }

    /// Key of the mark of an object without a name.
    pub fn orphan(id: ObjectId) -> Key {
        Key::new(b'O', id, &[])
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The key of a shard's journal record.
pub const JOURNAL: &[u8] = b"J";

/// Returns tag, id and rest of a key other than [`JOURNAL`].
pub fn parse_key(key: &[u8]) -> Option<(u8, ObjectId, &[u8])> {
    let id = u64::from_be_bytes(key.get(1..9)?.try_into().ok()?);
    Some((key[0], ObjectId(id), &key[9..]))
}

/// A user attribute's key and value as hashes, by which the index is sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Word {
    /// Hash of the key.
    pub key: u64,
    /// Hash of key and value.
    pub value: u64,
}

/// Position of an object among all objects with the same attribute, sorted by the hash of their
/// names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark {
    /// Hash of the name.
    pub name: u64,
    pub id: ObjectId,
}

impl Mark {
    /// The position before all others.
    pub const FIRST: Mark = Mark {
        name: 0,
        id: ObjectId(0),
    };
}

/// Decodes a key of the index.
pub fn parse_indexed(key: &[u8]) -> Option<(Word, Mark)> {
    let rest: &[u8; 32] = key.strip_prefix(b"V")?.try_into().ok()?;
    let n = |at: usize| u64::from_be_bytes(rest[at..at + 8].try_into().expect("8 bytes"));
    let (key, value) = (n(0), n(8));
    let (name, id) = (n(16), ObjectId(n(24)));
    Some((Word { key, value }, Mark { name, id }))
}

/// The position of a value in the order of all values: see `order.rs`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Order(pub u128);

/// Decodes a key of the index by order: hash of the attribute's key, order of the value, object.
pub fn parse_ordered(key: &[u8]) -> Option<(u64, Order, ObjectId)> {
    let rest: &[u8; 32] = key.strip_prefix(b"R")?.try_into().ok()?;
    let (of, rest) = rest.split_first_chunk::<8>()?;
    let (order, id) = rest.split_first_chunk::<16>()?;
    let id = ObjectId(u64::from_be_bytes(id.try_into().ok()?));
    let order = Order(u128::from_be_bytes(*order));
    Some((u64::from_be_bytes(*of), order, id))
}

/// Type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;

/// The object that a directory's entry refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: ObjectId,
    /// Type bits of the object's mode (S_IFREG, S_IFDIR, ...).
    pub kind: u32,
}

impl Entry {
    pub fn encode(&self) -> [u8; 9] {
        let mut out = [0; 9];
        out[..8].copy_from_slice(&self.id.0.to_le_bytes());
        out[8] = (self.kind >> 12) as u8;
        out
    }

    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Entry> {
        let bytes: &[u8; 9] = bytes.try_into().ok()?;
        let id = u64::from_le_bytes(bytes[..8].try_into().ok()?);
        (bytes[8] & 0xf0 == 0).then_some(Entry {
            id: ObjectId(id),
            kind: u32::from(bytes[8]) << 12,
        })
    }
}

/// The record of a directory's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    pub entry: Entry,
    /// Whether several nodes are changing the entry, by renaming, exchanging or removing it. A
    /// look-up of the name waits, since only the intent for this name tells the outcome.
    pub changing: bool,
}

impl EntryRecord {
    /// The record of an entry that several nodes are changing.
    pub fn changing(entry: Entry) -> EntryRecord {
        EntryRecord {
            entry,
            changing: true,
        }
    }

    /// Returns the encoded record. If no operation is changing the entry, the result equals that of
    /// [`Entry::encode`].
    pub fn encode(&self) -> [u8; 9] {
        let mut out = self.entry.encode();
        out[8] |= if self.changing { CHANGING } else { 0 };
        out
    }

    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<EntryRecord> {
        let mut bytes: [u8; 9] = bytes.try_into().ok()?;
        let changing = bytes[8] & CHANGING != 0;
        bytes[8] &= !CHANGING;
        Entry::decode(&bytes).map(|entry| EntryRecord { entry, changing })
    }
}

/// The bytes of a record, on the stack unless they contain a small file's content.
pub type RecordBytes = SmallVec<[u8; 256]>;

/// Content of the tail of an inode record.
pub mod tail {
    /// Nothing.
    pub const NONE: u8 = 0;
    /// The whole content of a small file.
    pub const DATA: u8 = 1;
    /// Extents of chunk 0.
    pub const EXTENTS: u8 = 2;
    /// A symbolic link's target.
    pub const TARGET: u8 = 3;
    /// A directory's own name.
    pub const NAME: u8 = 4;
}

/// The attributes of an object. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    /// Number of pages of all extents.
    pub pages: u64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime: i64,
    pub btime: i64,
    /// For a directory: the parent.
    pub parent: u64,
    /// For a device: the device number.
    pub rdev: u64,
    /// For a file that lies on several nodes, and for its parts: number of the file's truncations.
    pub cuts: u64,
    /// For a part: the size that the file got by its last truncation. Bytes.
    pub cut_size: u64,
    /// For a copy of another node's file: that file's edition, and the generation of the control
    /// region in which the copy was made.
    pub copy_stamp: u64,
    /// In the record at a file's home: whether other nodes may have parts of the file.
    pub is_spread: bool,
    /// Whether the object may have extended attributes.
    pub has_attributes: bool,
    /// The declared controls and their state; 0: none (`controls.rs`).
    pub controls: u64,
    /// Increases with each change of `controls`; odd while the file can't change any more and may
    /// be copied (`controls.rs`).
    pub edition: u64,
    /// The relation of the object to its copy at the pool's origin.
    pub origin: OriginMark,
    /// Whether programs could store to the file through shared mappings when `origin` was set. Such
    /// stores don't change the file's change time, so after a loss of power the file counts as
    /// changed.
    pub is_mapped: bool,
    /// One of [`tail`].
    pub tail: u8,
}

impl Inode {
    /// Returns an inode with all times set to `t`. Nanoseconds since 1970.
    pub fn made_at(t: i64) -> Inode {
        Inode {
            mtime: t,
            ctime: t,
            atime: t,
            btime: t,
            ..Inode::default()
        }
    }

    /// Type bits of the mode.
    #[inline]
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    #[inline]
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    #[inline]
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    pub fn is_link(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }

    /// Encodes the record, in few bytes: the more records fit into a page, the fewer pages a change
    /// has to copy.
    pub fn encode(&self, tail: &[u8]) -> RecordBytes {
        assert!(
            self.tail <= tail::NAME,
            "a record has one of the tails: {}",
            self.tail
        );
        let bit = |there: bool, bit: u8| if there { bit } else { 0 };
        let mut out = Numbers::new();
        for n in [self.uid, self.gid, self.nlink] {
            out.push(u64::from(n));
        }
        let mut there = 0;
        for (i, word) in [self.size, self.pages, self.parent, self.rdev]
            .into_iter()
            .enumerate()
        {
            there |= bit(out.push_some(word), 1 << i);
        }
        if self.mtime != 0 {
            there |= 1 << MTIME;
            out.push_word(self.mtime as u64);
        }
        let times = [
            (self.ctime, self.mtime),
            (self.btime, self.mtime),
            (self.atime, self.btime),
        ];
        for (i, (time, otherwise)) in times.into_iter().enumerate() {
            there |= bit(out.push_some(difference(time, otherwise)), 2 << MTIME << i);
        }
        let mut flags = bit(self.has_attributes, HAS_ATTRIBUTES) | bit(self.is_spread, IS_SPREAD);
        let more = [
            self.controls,
            self.edition,
            self.cuts,
            self.cut_size,
            self.copy_stamp,
        ];
        for (word, flag) in more.into_iter().zip(WORD_FLAGS) {
            flags |= bit(out.push_some(word), flag);
        }
        if self.origin != OriginMark::default() {
            flags |= HAS_ORIGIN;
            for word in self.origin.words(self.is_mapped) {
                out.push_word(word);
            }
        }
        let fixed = &mut out.bytes[..INODE_LEN];
        fixed[0] = VERSION;
        fixed[1] = self.tail;
        fixed[2] = flags;
        fixed[THERE] = there;
        fixed[4..].copy_from_slice(&(self.mode as u16).to_le_bytes());
        let mut bytes = RecordBytes::from_slice(&out.bytes[..out.len]);
        bytes.extend_from_slice(tail);
        debug_assert_eq!(
            Inode::decode(&bytes),
            Some((self.as_recorded(), tail)),
            "an inode is read as it is written"
        );
        bytes
    }

    /// Returns the inode without what a record doesn't store: other bits of the mode, which only
    /// messages use; and `is_mapped`, unless the object has a mark of the origin.
    fn as_recorded(&self) -> Inode {
        Inode {
            mode: self.mode & 0xffff,
            is_mapped: self.is_mapped && self.origin != OriginMark::default(),
            ..*self
        }
    }

    /// Decodes the inode and its tail. Each inode has exactly one valid encoding.
    pub fn decode(bytes: &[u8]) -> Option<(Inode, &[u8])> {
        let (fixed, mut rest) = bytes.split_first_chunk::<INODE_LEN>()?;
        if fixed[0] != VERSION || fixed[1] > tail::NAME {
            return None;
        }
        let from = &mut rest;
        let (flags, there) = (fixed[2], fixed[THERE]);
        let mut n32 = || u32::try_from(take_number(from)?).ok();
        let (uid, gid, nlink) = (n32()?, n32()?, n32()?);
        let mut inode = Inode {
            tail: fixed[1],
            has_attributes: flags & HAS_ATTRIBUTES != 0,
            is_spread: flags & IS_SPREAD != 0,
            mode: u32::from(u16::from_le_bytes([fixed[4], fixed[5]])),
            uid,
            gid,
            nlink,
            size: take_some(from, there & 1)?,
            pages: take_some(from, there & 2)?,
            parent: take_some(from, there & 4)?,
            rdev: take_some(from, there & 8)?,
            ..Inode::default()
        };
        if there & 1 << MTIME != 0 {
            inode.mtime = take_word(from).filter(|&t| t != 0)? as i64;
        }
        let mut time = |bit: u8, otherwise: i64| {
            take_some(from, there & bit).map(|n| from_difference(n, otherwise))
        };
        inode.ctime = time(2 << MTIME, inode.mtime)?;
        inode.btime = time(4 << MTIME, inode.mtime)?;
        inode.atime = time(8 << MTIME, inode.btime)?;
        if flags & HAS_WORDS != 0 {
            inode.controls = take_some(from, flags & HAS_CONTROLS)?;
            inode.edition = take_some(from, flags & HAS_EDITION)?;
            inode.cuts = take_some(from, flags & HAS_CUTS)?;
            inode.cut_size = take_some(from, flags & HAS_CUT_SIZE)?;
            inode.copy_stamp = take_some(from, flags & HAS_COPY_STAMP)?;
        }
        if flags & HAS_ORIGIN != 0 {
            let words = [take_word(from)?, take_word(from)?, take_word(from)?];
            (inode.origin, inode.is_mapped) = OriginMark::from_words(words)?;
            if inode.origin == OriginMark::default() {
                return None;
            }
        }
        Some((inode, rest))
    }
}

/// Buffer for the numbers of a record, in the order of their fields. A number takes 7 bits of each
/// byte, the lowest first; bit 7 is set in all its bytes but the last.
struct Numbers {
    /// Begins with space for the fixed part.
    bytes: [u8; INODE_LEN + MAX_NUMBERS],
    len: usize,
}

impl Numbers {
    fn new() -> Numbers {
        Numbers {
            bytes: [0; INODE_LEN + MAX_NUMBERS],
            len: INODE_LEN,
        }
    }

    fn push(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes[self.len] = n as u8 | 0x80;
            self.len += 1;
            n >>= 7;
        }
        self.bytes[self.len] = n as u8;
        self.len += 1;
    }

    /// Appends a number unless it is 0. Returns whether it was appended.
    fn push_some(&mut self, n: u64) -> bool {
        if n != 0 {
            self.push(n);
        }
        n != 0
    }

    fn push_word(&mut self, word: u64) {
        self.bytes[self.len..self.len + 8].copy_from_slice(&word.to_le_bytes());
        self.len += 8;
    }
}

/// Takes a number, in the form that [`Numbers::push`] writes, from the beginning of `from`.
fn take_number(from: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = from.split_first()?;
    if first < 0x80 {
        *from = rest;
        return Some(u64::from(first));
    }
    take_long_number(from)
}

fn take_long_number(from: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let part = u64::from(byte & 0x7f);
        n |= part << shift;
        if byte < 0x80 {
            // A valid number has no needless last byte, and no bit beyond the 64th.
            let is_short = byte != 0 && part << shift >> shift == part;
            return is_short.then_some(n);
        }
    }
    None
}

/// Removes a number from the beginning of `from` if `bit` isn't 0. Such a number must not be 0.
#[inline]
fn take_some(from: &mut &[u8], bit: u8) -> Option<u64> {
    if bit == 0 {
        return Some(0);
    }
    take_number(from).filter(|&n| n != 0)
}

fn take_word(from: &mut &[u8]) -> Option<u64> {
    let (word, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u64::from_le_bytes(*word))
}

/// Returns the difference of two times, encoded so that it is small if they are close: twice the
/// difference or, if that is negative, twice its absolute value minus one.
fn difference(time: i64, from: i64) -> u64 {
    let by = time.wrapping_sub(from);
    (by << 1 ^ by >> 63) as u64
}

fn from_difference(n: u64, from: i64) -> i64 {
    from.wrapping_add((n >> 1) as i64 ^ -((n & 1) as i64))
}

/// One change of a commit: the shard, the key, and the new value (None: the record is removed).
pub type ChangeRef<'a> = (usize, &'a [u8], Option<&'a [u8]>);

/// An owned [`ChangeRef`].
pub type Change = (usize, Vec<u8>, Option<Vec<u8>>);

/// Appends a change to a list of changes. Such a list is the value of 'J', and the content of the
/// journal.
pub fn push_change(list: &mut Vec<u8>, shard: usize, key: &[u8], value: Option<&[u8]>) {
    assert!(
        shard <= usize::from(u16::MAX),
        "a change names its shard: {shard}"
    );
    assert!(
        key.len() <= usize::from(u16::MAX),
        "a key of {} bytes",
        key.len()
    );
    list.extend_from_slice(&(shard as u16).to_le_bytes());
    list.extend_from_slice(&(key.len() as u16).to_le_bytes());
    let len = value.map_or(u32::MAX, |v| v.len() as u32);
    list.extend_from_slice(&len.to_le_bytes());
    list.extend_from_slice(key);
    list.extend_from_slice(value.unwrap_or(&[]));
}

/// Returns the changes of a list. If the list is damaged, None follows the last valid change.
pub fn changes(mut list: &[u8]) -> impl Iterator<Item = Option<ChangeRef<'_>>> {
    std::iter::from_fn(move || {
        if list.is_empty() {
            return None;
        }
        let one = split_change(list);
        list = one.map_or(&[], |(_, rest)| rest);
        Some(one.map(|(change, _)| change))
    })
}

fn split_change(list: &[u8]) -> Option<(ChangeRef<'_>, &[u8])> {
    let (head, rest) = list.split_at_checked(8)?;
    let shard = u16::from_le_bytes([head[0], head[1]]) as usize;
    let key_len = u16::from_le_bytes([head[2], head[3]]) as usize;
    let len = u32::from_le_bytes(head[4..8].try_into().ok()?);
    let (key, rest) = rest.split_at_checked(key_len)?;
    let (value, rest) = rest.split_at_checked(if len == u32::MAX { 0 } else { len as usize })?;
    Some(((shard, key, (len != u32::MAX).then_some(value)), rest))
}

/// Returns the extents in a record, and the object that they belong to.
pub fn extents_in(key: &[u8], value: &[u8]) -> Option<(ObjectId, ChunkMap)> {
    let (what, id, _) = parse_key(key)?;
    let bytes = match what {
        b'X' => value,
        b'I' => Inode::decode(value)
            .filter(|(i, _)| i.tail == tail::EXTENTS)
            .map(|(_, bytes)| bytes)?,
        _ => return None,
    };
    Some((id, ChunkMap::decode(bytes)?))
}

/// The hash of a key or of a name.
pub fn hash_of(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

impl Word {
    /// Returns the hashes of this key with this value.
    pub fn new(key: &[u8], value: &[u8]) -> Word {
        let key = hash_of(key);
        Word {
            key,
            value: XxHash3_64::oneshot_with_seed(key, value),
        }
    }
}

impl Mark {
    /// Returns the next possible position.
    pub fn after(self) -> Mark {
        match self.id.0.checked_add(1) {
            Some(id) => Mark {
                id: ObjectId(id),
                ..self
            },
            None => Mark {
                name: self.name.saturating_add(1),
                id: ObjectId(0),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_media::Extent;

    #[test]
    fn inodes_round_trip() {
        let inode = Inode {
            mode: libc::S_IFREG | 0o640,
            uid: 1,
            gid: 2,
            nlink: 3,
            size: 1 << 40,
            pages: 5,
            mtime: -7,
            ctime: 8,
            atime: 9,
            btime: i64::MAX,
            parent: 10,
            rdev: 11,
            controls: 0x80,
            edition: 13,
            origin: OriginMark {
                state: crate::origin::OriginState::Released,
                print: 17,
                synced: -18,
            },
            cuts: 14,
            cut_size: 15,
            is_mapped: true,
            copy_stamp: 16,
            is_spread: true,
            has_attributes: true,
            tail: tail::DATA,
        };
        let bytes = inode.encode(b"payload");
        assert_eq!(Inode::decode(&bytes), Some((inode, &b"payload"[..])));
        for cut in 0..bytes.len() - b"payload".len() {
            assert!(Inode::decode(&bytes[..cut]).is_none());
        }
        // The most frequent inode: the inode of a file that was just created.
        let t = 1_764_212_345_678_901_234;
        let new = Inode {
            mode: libc::S_IFREG | 0o644,
            uid: 1000,
            gid: 1000,
            nlink: 1,
            ..Inode::made_at(t)
        };
        let bytes = new.encode(&[]);
        assert_eq!(bytes.len(), 19);
        assert_eq!(Inode::decode(&bytes), Some((new, &[][..])));
        // A number with a needless byte, or a bit beyond the 64th, is refused.
        let mut long = bytes.to_vec();
        long[INODE_LEN + 4] |= 0x80;
        long.insert(INODE_LEN + 5, 0);
        assert_eq!(Inode::decode(&long), None);
        assert_eq!(take_number(&mut &[0xff; 10][..]), None);
        let most = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(take_number(&mut &most[..]), Some(u64::MAX));
        assert_eq!(take_number(&mut &[&[0xff; 9][..], &[2]].concat()[..]), None);
    }

    #[test]
    fn changes_round_trip_and_reject_garbage() {
        let some: [ChangeRef<'_>; 3] = [
            (0, b"k", Some(b"value")),
            (3, b"gone", None),
            (1, b"empty", Some(b"")),
        ];
        let mut list = Vec::new();
        for (shard, key, value) in some {
            push_change(&mut list, shard, key, value);
        }
        assert!(changes(&list).eq(some.map(Some)));
        for cut in 0..list.len() {
            let whole = changes(&list[..cut]).take_while(Option::is_some).count();
            assert!(whole < 3);
        }
        let mut seed = 1u64;
        for len in 1..200 {
            let garbage: Vec<u8> = (0..len)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (seed >> 56) as u8
                })
                .collect();
            let _ = changes(&garbage).count();
            let _ = Inode::decode(&garbage);
            let _ = ChunkMap::decode(&garbage);
            let _ = Entry::decode(&garbage);
        }
    }

    #[test]
    fn chunk_maps_truncate_inside_an_extent() {
        let mut map = ChunkMap::default();
        for (start, pages) in [(0, 1), (10, 1), (20, 2), (30, 4)] {
            map.push(Extent::new(0, start, pages));
        }
        let mut gone = Vec::new();
        map.truncate(3, |e| gone.push((e.start(), e.pages())));
        assert_eq!((map.pages(), gone), (3, vec![(21, 1), (30, 4)]));
        assert_eq!(ChunkMap::decode(&map.encode()), Some(map));
    }
}
