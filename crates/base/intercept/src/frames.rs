//! Bounds of functions, from `.eh_frame_hdr` and `.eh_frame`: the unwinders' tables, which stripped
//! libraries have, too. This module reads a table's entries when they are needed; an entry of
//! unusual form counts as absent.

/// Reads bytes at an address relative to the object's load address; false if any are missing.
pub(crate) type Read<'a> = &'a dyn Fn(u32, &mut [u8]) -> bool;

/// Bounds of one function, relative to the object's load address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub start: u32,
    /// The function's end.
    pub end: u32,
    /// The start of the next function; for the last one, the object's highest address.
    pub next: u32,
}

/// An object's functions.
pub(crate) struct Frames<'a> {
    read: Read<'a>,
    /// The sorted table: start of a function, address of its description in `.eh_frame`.
    table: Vec<(u32, u32)>,
    end: u32,
}

/// Maximum number of table entries: more than any library has.
const ENTRIES_MAX: usize = 1 << 24;
/// Maximum number of bytes that are read of a common entry (CIE).
const HEAD: usize = 64;

impl<'a> Frames<'a> {
    /// Reads the table at `at`. `end`: the end of the object's code. None if there is no table of
    /// the usual form.
    pub(crate) fn read(at: u32, end: u32, read: Read<'a>) -> Option<Frames<'a>> {
        let mut head = [0; 12];
        if at == 0 || !read(at, &mut head) {
            return None;
        }
        // The table's head: version 1; any pointer, a 32-bit count, 32-bit entries relative to the
        // table.
        let [1, _, 0x03, 0x3b, _, _, _, _, a, b, c, d] = head else {
            return None;
        };
        let count = u32::from_le_bytes([a, b, c, d]) as usize;
        if count == 0 || count > ENTRIES_MAX {
            return None;
        }
        let mut bytes = vec![0; count * 8];
        if !read(at.checked_add(12)?, &mut bytes) {
            return None;
        }
        let place = |i: usize| at.wrapping_add(word(&bytes, i));
        let table: Vec<_> = (0..count)
            .map(|i| (place(8 * i), place(8 * i + 4)))
            .collect();
        let sorted = table.windows(2).all(|w| w[0].0 <= w[1].0);
        sorted.then_some(Frames { read, table, end })
    }

    /// Returns the function that contains `at`.
    pub(crate) fn around(&mut self, at: u32) -> Option<Function> {
        let behind = self.table.partition_point(|&(start, _)| start <= at);
        let &(start, description) = self.table.get(behind.checked_sub(1)?)?;
        let end = start.checked_add(self.len(start, description)?)?;
        let next = self.table.get(behind).map_or(self.end, |e| e.0);
        // An entry that overlaps the next function is wrong.
        (at < end && end <= next).then_some(Function { start, end, next })
    }

    /// Returns the length of a function by its description. Bytes.
    fn len(&self, start: u32, at: u32) -> Option<u32> {
        let mut fde = [0; 24];
        if !(self.read)(at, &mut fde) || matches!(word(&fde, 0), 0 | u32::MAX) {
            return None;
        }
        // The second word is the distance back to the common entry (CIE).
        let common = at.checked_add(4)?.checked_sub(word(&fde, 4))?;
        let mut cie = [0; HEAD];
        // How many bytes of the common entry could be read: fewer than `HEAD` at the segment's end.
        let there = (16..=HEAD)
            .rev()
            .step_by(4)
            .find(|&n| (self.read)(common, &mut cie[..n]))?;
        let encoding = pointers(&cie[..there])?;
        let (begin, len) = match encoding & 0x0f {
            0x03 | 0x0b => (word(&fde, 8), u64::from(word(&fde, 12))),
            0x00 | 0x04 | 0x0c => (
                word(&fde, 8),
                u64::from(word(&fde, 16)) | u64::from(word(&fde, 20)) << 32,
            ),
            _ => return None,
        };
        let begins = match encoding & 0x70 {
            0x10 => at.wrapping_add(8).wrapping_add(begin),
            // Absolute pointer, relocated or not: the function's start is taken from the table.
            0x00 => start,
            _ => return None,
        };
        (begins == start).then_some(())?;
        u32::try_from(len).ok()
    }
}

/// Returns the encoding of pointers in the descriptions that share this common entry (CIE).
fn pointers(cie: &[u8]) -> Option<u8> {
    if word(cie, 4) != 0 || !matches!(cie.get(8)?, 1 | 3) {
        return None;
    }
    let text_end = 9 + cie.get(9..)?.iter().position(|&b| b == 0)?;
    let text = &cie[9..text_end];
    let mut rest = cie.get(text_end + 1..)?.iter().copied();
    fn leb(rest: &mut impl Iterator<Item = u8>) -> Option<u8> {
        rest.find(|b| b & 0x80 == 0)
    }
    // Two alignment factors, and the column of the return address.
    for _ in 0..3 {
        leb(&mut rest)?;
    }
    if text.is_empty() {
        return Some(0);
    }
    if text[0] != b'z' {
        return None;
    }
    leb(&mut rest)?;
    for &c in &text[1..] {
        match c {
            b'R' => return rest.next(),
            b'L' => _ = rest.next()?,
            b'P' => {
                let size = match rest.next()? & 0x0f {
                    0x03 | 0x0b => 4,
                    0x00 | 0x04 | 0x0c => 8,
                    0x02 | 0x0a => 2,
                    _ => return None,
                };
                rest.nth(size - 1)?;
            }
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    Some(0)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
