//! Transfers of many pieces: vectors, and the ranges that MPI datatypes describe.
//!
//! - [`runs`] groups small pieces that are close in the file, so that one call of the pool moves
//!   them.
//! - [`flatten`] lists the ranges that an MPI datatype covers: HDF5 describes collective transfers
//!   by datatypes where it doesn't use vectors.

use crate::file::Failure;
use crate::mpi::{Handle, Mpi};
use rustix::io::Errno;
use std::ops::Range;

/// Maximum number of bytes that one call of the pool gathers or scatters.
pub const GATHERED: usize = 1 << 20;
/// Maximum size of a piece that is copied together with others. Bytes. Copying a longer piece costs
/// more than a call of its own.
const SMALL: usize = 16 << 10;
/// Maximum gap between two pieces that one call reads. Bytes. Reading the gap costs less than
/// another call.
pub const GAP: u64 = 4 << 10;

/// A piece of a transfer: `len` bytes at offset `at` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub at: u64,
    pub len: usize,
    /// Address in memory.
    pub memory: usize,
}

impl Piece {
    /// Returns the offset of the piece's end in the file.
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.len as u64)
    }
}

/// Adds a piece. Merges it into the piece before if they are adjacent in the file and in memory.
pub fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last)
            if last.end() == piece.at && last.memory.wrapping_add(last.len) == piece.memory =>
        {
            last.len += piece.len;
        }
        _ if piece.len > 0 => pieces.push(piece),
        _ => {}
    }
}

/// Groups pieces so that one call can move each group: returns ranges of indices of `pieces`. Gaps
/// inside a group are at most `gap` bytes; a group of several pieces has at most [`GATHERED`]
/// bytes.
pub fn runs(pieces: &[Piece], gap: u64) -> impl Iterator<Item = Range<usize>> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let start = pieces.get(first)?;
        let (mut last, mut next) = (start, first + 1);
        while let Some(piece) = pieces.get(next) {
            let near = piece.at >= last.end() && piece.at - last.end() <= gap;
            let small = piece.len <= SMALL && last.len <= SMALL;
            if !near || !small || piece.end() - start.at > GATHERED as u64 {
                break;
            }
            (last, next) = (piece, next + 1);
        }
        let run = first..next;
        first = next;
        Some(run)
    })
}

/// Adds a range. Merges it into the range before if they are adjacent.
fn push(ranges: &mut Vec<(i64, usize)>, at: i64, len: usize) {
    match ranges.last_mut() {
        Some((last, n)) if *last + *n as i64 == at => *n += len,
        _ if len > 0 => ranges.push((at, len)),
        _ => {}
    }
}

/// Returns the ranges (offset, bytes) of as many elements of a datatype as have `total` bytes
/// together.
///
/// # Errors
/// As for [`flatten`]; EINVAL if `total` isn't a multiple of the element's size.
pub fn fill(mpi: &Mpi, datatype: Handle, total: usize) -> Result<Vec<(i64, usize)>, Failure> {
    let size: usize = flatten_one(mpi, datatype)?.iter().map(|(_, len)| len).sum();
    if size > 0 && total.is_multiple_of(size) {
        flatten(mpi, datatype, total / size)
    } else {
        Err((
            Errno::INVAL,
            format!("{total} bytes of memory for elements of {size} in the file"),
        ))
    }
}

/// Returns the ranges (offset, bytes) of `count` elements of a datatype, in the order of the
/// transfer.
///
/// # Errors
/// ENOTSUP for a datatype of a kind that HDF5 doesn't construct; EIO if an MPI function fails.
pub fn flatten(mpi: &Mpi, datatype: Handle, count: usize) -> Result<Vec<(i64, usize)>, Failure> {
    let mut ranges = Vec::new();
    let one = flatten_one(mpi, datatype)?;
    repeat(&mut ranges, &one, 0, count, mpi.type_extent(datatype)?);
    Ok(ranges)
}

/// Adds `count` copies of the ranges `one`, from offset `at` on, `stride` bytes apart.
fn repeat(to: &mut Vec<(i64, usize)>, one: &[(i64, usize)], at: i64, count: usize, stride: i64) {
    if let [(offset, len)] = one
        && *len as i64 == stride
    {
        return push(to, at + offset, len * count);
    }
    for i in 0..count as i64 {
        for (offset, len) in one {
            push(to, at + i * stride + offset, *len);
        }
    }
}

fn flatten_one(mpi: &Mpi, datatype: Handle) -> Result<Vec<(i64, usize)>, Failure> {
    let Some(parts) = mpi.type_parts(datatype)? else {
        let mut ranges = Vec::new();
        push(&mut ranges, 0, mpi.type_size(datatype)?);
        return Ok(ranges);
    };
    let unknown = |what: &str| {
        (
            Errno::NOTSUP,
            format!("a datatype of MPI ({what}) isn't known"),
        )
    };
    let int = |i: usize| parts.ints.get(i).copied().ok_or_else(|| unknown("numbers"));
    let count = |i: usize| int(i).map(|n| usize::try_from(n).unwrap_or(0));
    let address = |i: usize| {
        parts
            .addresses
            .get(i)
            .map(|a| *a as i64)
            .ok_or_else(|| unknown("addresses"))
    };
    let child = *parts.types.first().ok_or_else(|| unknown("types"))?;
    let mut ranges = Vec::new();
    // A structure has several element types, every other datatype one.
    if parts.combiner == STRUCT {
        for i in 0..count(0)? {
            let child = *parts.types.get(i).ok_or_else(|| unknown("types"))?;
            let one = flatten_one(mpi, child)?;
            repeat(
                &mut ranges,
                &one,
                address(i)?,
                count(1 + i)?,
                mpi.type_extent(child)?,
            );
        }
        return Ok(ranges);
    }
    let (one, extent) = (flatten_one(mpi, child)?, mpi.type_extent(child)?);
    match parts.combiner {
        DUP | RESIZED => return Ok(one),
        CONTIGUOUS => repeat(&mut ranges, &one, 0, count(0)?, extent),
        VECTOR | HVECTOR => {
            let stride = match parts.combiner {
                VECTOR => i64::from(int(2)?) * extent,
                _ => address(0)?,
            };
            for i in 0..count(0)? {
                repeat(&mut ranges, &one, i as i64 * stride, count(1)?, extent);
            }
        }
        HINDEXED => {
            for i in 0..count(0)? {
                repeat(&mut ranges, &one, address(i)?, count(1 + i)?, extent);
            }
        }
        HINDEXED_BLOCK => {
            for i in 0..count(0)? {
                repeat(&mut ranges, &one, address(i)?, count(1)?, extent);
            }
        }
        other => return Err(unknown(&format!("combiner {other}"))),
    }
    Ok(ranges)
}

// MPI_COMBINER_*, counted from 0.
const DUP: i32 = 1;
const CONTIGUOUS: i32 = 2;
const VECTOR: i32 = 3;
const HVECTOR: i32 = 5;
const HINDEXED: i32 = 8;
const STRUCT: i32 = 11;
const RESIZED: i32 = 17;
const HINDEXED_BLOCK: i32 = 18;

/// Pairs the file's ranges with memory's: returns pieces that are contiguous in both.
///
/// # Errors
/// EINVAL if the file's and memory's ranges differ in size; EOVERFLOW for offsets below 0.
pub fn pair(
    at: u64,
    file: &[(i64, usize)],
    memory: usize,
    buffer: &[(i64, usize)],
) -> Result<Vec<Piece>, Failure> {
    let mut pieces = Vec::new();
    let mut rest = buffer.iter().copied();
    let mut have = (0, 0);
    for (mut offset, mut len) in file.iter().copied() {
        while len > 0 {
            if have.1 == 0 {
                let short = || {
                    (
                        Errno::INVAL,
                        "memory has fewer bytes than the file's part".into(),
                    )
                };
                have = rest.next().ok_or_else(short)?;
            }
            let n = len.min(have.1);
            let before = || (Errno::OVERFLOW, "a part begins before the file".to_owned());
            let piece = Piece {
                at: at.checked_add_signed(offset).ok_or_else(before)?,
                len: n,
                memory: memory.wrapping_add_signed(have.0 as isize),
            };
            add(&mut pieces, piece);
            (offset, len) = (offset + n as i64, len - n);
            have = (have.0 + n as i64, have.1 - n);
        }
    }
    if have.1 == 0 && rest.next().is_none() {
        Ok(pieces)
    } else {
        Err((
            Errno::INVAL,
            "memory has more bytes than the file's part".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(at: u64, len: usize, memory: usize) -> Piece {
        Piece { at, len, memory }
    }

    #[test]
    fn runs_of_small_pieces() {
        let all = [
            piece(0, 4, 100),
            piece(4, 4, 200),
            piece(9, 1, 204),
            piece(10, 2, 7),
            piece(3, 1, 0),
        ];
        assert_eq!(runs(&all, 0).collect::<Vec<_>>(), [0..2, 2..4, 4..5]);
        assert_eq!(runs(&all, 1).collect::<Vec<_>>(), [0..4, 4..5]);
        assert_eq!(runs(&[], 1).count(), 0);
        let large = [
            piece(0, SMALL + 1, 0),
            piece(SMALL as u64 + 1, 1, 0),
            piece(SMALL as u64 + 2, 1, 9),
        ];
        assert_eq!(runs(&large, 0).collect::<Vec<_>>(), [0..1, 1..3]);
        let many: Vec<Piece> = (0..200).map(|i| piece(i * 16384, 16384, 0)).collect();
        assert_eq!(
            runs(&many, 0).collect::<Vec<_>>(),
            [0..64, 64..128, 128..192, 192..200]
        );
    }

    #[test]
    fn neighbours_in_file_and_memory_are_one() {
        let mut all = Vec::new();
        for p in [
            piece(0, 4, 100),
            piece(4, 4, 104),
            piece(8, 0, 7),
            piece(8, 4, 200),
        ] {
            add(&mut all, p);
        }
        assert_eq!(all, [piece(0, 8, 100), piece(8, 4, 200)]);
    }

    #[test]
    fn ranges_of_file_and_memory() {
        let pieces = pair(1000, &[(0, 3), (10, 5)], 0, &[(20, 4), (40, 4)]).unwrap();
        assert_eq!(
            pieces,
            [piece(1000, 3, 20), piece(1010, 1, 23), piece(1011, 4, 40)]
        );
        assert!(pair(0, &[(0, 3)], 0, &[(0, 2)]).is_err());
        assert!(pair(0, &[(0, 3)], 0, &[(0, 4)]).is_err());
        assert!(pair(0, &[(-1, 3)], 0, &[(0, 3)]).is_err());
    }
}
