//! The byte format of the journal: its files and their records.
//!
//! ```text
//! file:    a page: "FBYJNL01" version:4 shards:4 generation:8 start:8 checksum:8, zeros
//! record:  checksum:8 position:8 length:4 kind:4 content, zeros up to a multiple of 8
//! kinds:   1 changes of a commit     2 position of a commit that failed after all
//!          3 extents that are initialised on stable storage    4 extents that are not
//! ```
//! Numbers are little-endian. A checksum is xxh3 with the generation as its seed. A reader of the
//! file stops at the first incomplete record: no sync has reported the records after it as durable.

use crate::Extent;
use rustix::io::Result;
use twox_hash::XxHash3_64;

/// Length of the head of a file. Bytes.
pub(crate) const FILE_HEAD: usize = 4096;
const MAGIC: &[u8; 8] = b"FBYJNL01";
const VERSION: u32 = 1;
/// Length of the head of a record, before its content. Bytes.
pub(super) const HEAD: usize = 24;

/// Kinds of records.
pub(crate) mod kind {
    pub const COMMIT: u32 = 1;
    pub const VOID: u32 = 2;
    pub const DURABLE: u32 = 3;
    pub const CLEARED: u32 = 4;
}

/// Encodes the head of a record.
pub(super) fn record_head(generation: u64, position: u64, kind: u32, content: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[8..16].copy_from_slice(&position.to_le_bytes());
    head[16..20].copy_from_slice(&(content.len() as u32).to_le_bytes());
    head[20..24].copy_from_slice(&kind.to_le_bytes());
    let seed = XxHash3_64::oneshot_with_seed(generation, &head[8..]);
    head[..8].copy_from_slice(&XxHash3_64::oneshot_with_seed(seed, content).to_le_bytes());
    head
}

/// Decodes the head of a record: its position, kind and length.
pub(super) fn parse_head(head: &[u8; HEAD]) -> (u64, u32, usize) {
    let n64 = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let n32 = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    (n64(8), n32(20), n32(16) as usize)
}

/// Encodes the head of a file.
pub(super) fn file_head(generation: u64, start: u64, shards: u32) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&shards.to_le_bytes());
    head.extend_from_slice(&generation.to_le_bytes());
    head.extend_from_slice(&start.to_le_bytes());
    head.extend_from_slice(&XxHash3_64::oneshot_with_seed(generation, &head).to_le_bytes());
    head.resize(FILE_HEAD, 0);
    head
}

/// A journal's file that was read into memory.
pub(crate) struct Read {
    bytes: Vec<u8>,
    generation: u64,
    /// Position of the file's first record.
    pub start: u64,
}

impl Read {
    /// Checks the head of a file; None if these aren't the bytes of a journal of this generation.
    pub(crate) fn new(bytes: Vec<u8>, generation: u64, shards: usize) -> Option<Read> {
        let start = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        let head = bytes.get(..FILE_HEAD)?;
        (head == file_head(generation, start, shards as u32)).then_some(Read {
            bytes,
            generation,
            start,
        })
    }

    /// Calls `each(position, kind, content)` for the complete records in order. Returns the
    /// position after the last.
    pub(crate) fn records<'a>(
        &'a self,
        mut each: impl FnMut(u64, u32, &'a [u8]) -> Result<()>,
    ) -> Result<u64> {
        let mut position = self.start;
        loop {
            let at = FILE_HEAD + (position - self.start) as usize;
            let Some(head) = self.bytes.get(at..at + HEAD) else {
                return Ok(position);
            };
            let head: &[u8; HEAD] = head.try_into().expect("a head's length");
            let (_, kind, len) = parse_head(head);
            let content = self.bytes.get(at + HEAD..at + HEAD + len);
            match content {
                Some(c) if *head == record_head(self.generation, position, kind, c) => {
                    each(position, kind, c)?;
                }
                _ => return Ok(position),
            }
            position += (HEAD + len).next_multiple_of(8) as u64;
        }
    }
}

pub(crate) fn extents_bytes(extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|e| e.0.to_le_bytes()).collect()
}

/// Decodes the extents in the content of a record.
pub(crate) fn extents(content: &[u8]) -> impl Iterator<Item = Extent> {
    content
        .chunks_exact(8)
        .map(|e| Extent(u64::from_le_bytes(e.try_into().expect("8 bytes"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of three records.
    fn file() -> Vec<u8> {
        let mut bytes = file_head(7, 800, 4);
        let mut position = 800;
        for (kind, content) in [(1, &b"first"[..]), (3, &[9; 64]), (1, b"")] {
            bytes.extend_from_slice(&record_head(7, position, kind, content));
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            position = 800 + (bytes.len() - FILE_HEAD) as u64;
        }
        bytes
    }

    fn count(bytes: Vec<u8>) -> Option<usize> {
        let read = Read::new(bytes, 7, 4)?;
        let mut n = 0;
        read.records(|_, _, _| {
            n += 1;
            Ok(())
        })
        .unwrap();
        Some(n)
    }

    #[test]
    fn reading_stops_at_the_first_damage() {
        let whole = file();
        assert_eq!(count(whole.clone()), Some(3));
        // Where the records begin, and where their contents end.
        let places = [(0, 24 + 5), (32, 32 + 24 + 64), (120, 120 + 24)];
        let places = places.map(|(a, b)| (FILE_HEAD + a, FILE_HEAD + b));
        for at in 0..whole.len() {
            let cut = count(whole[..at].to_vec()).unwrap_or(0);
            assert_eq!(cut, places.iter().filter(|p| at >= p.1).count(), "{at}");
            let mut bad = whole.clone();
            bad[at] ^= 0x40;
            let hit = places.iter().position(|p| (p.0..p.1).contains(&at));
            let expected = if at < FILE_HEAD {
                None
            } else {
                hit.or(Some(3))
            };
            assert_eq!(count(bad), expected, "{at}");
        }
        let old = Read::new(whole, 8, 4);
        assert!(old.is_none(), "of another generation");
    }

    /// Reading a damaged file yields a prefix of the records that were written.
    #[test]
    fn nothing_is_read_that_was_not_written() {
        let contents = |bytes: Vec<u8>| {
            let mut all = Vec::new();
            if let Some(read) = Read::new(bytes, 7, 4) {
                let each = |_, kind, c: &[u8]| {
                    all.push((kind, c.to_vec()));
                    Ok(())
                };
                read.records(each).unwrap();
            }
            all
        };
        let (sound, written) = (file(), contents(file()));
        forebay_fuzz::run("journals", |r| {
            let mut bytes = sound.clone();
            r.mutate(&mut bytes, &sound);
            let read = contents(bytes);
            assert!(written.starts_with(&read), "{read:?}");
        });
    }
}
