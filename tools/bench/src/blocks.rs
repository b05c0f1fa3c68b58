//! Workloads on bytes: each worker has its own large files, in blocks of one size. The first bytes
//! of each block contain its number, by which reads are checked.

use crate::sys::{self, Name};
use crate::worker::Worker;

const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

fn buffer(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i % 251) as u8 + 1).collect()
}

#[inline]
fn mark(data: &mut [u8], block: usize) {
    data[..8].copy_from_slice(&(block as u64).to_le_bytes());
}

#[inline]
fn check(data: &[u8], block: usize) -> Result<(), String> {
    if data[..8] != (block as u64).to_le_bytes() || data[data.len() - 1] == 0 {
        return Err(format!("block {block} holds other bytes than were written"));
    }
    Ok(())
}

/// Makes a new file with all its blocks. Returns its descriptor.
pub fn prepare(w: &Worker, name: &Name, size: usize) -> Result<i32, String> {
    let fd = sys::open(name, NEW)?;
    // Written in large pieces, since this isn't measured.
    let per_piece = ((1 << 20) / size).max(1);
    let mut piece = buffer(per_piece * size);
    let mut block = 0;
    while block < w.count {
        let blocks = per_piece.min(w.count - block);
        for i in 0..blocks {
            mark(&mut piece[i * size..], block + i);
            piece[(i + 1) * size - 1] = 1;
        }
        sys::write(fd, &piece[..blocks * size])?;
        block += blocks;
    }
    Ok(fd)
}

pub fn end(fd: i32, name: &Name) -> Result<(), String> {
    sys::close(fd)?;
    sys::unlink(name)
}

/// Worker: writes new files from the beginning to the end. The time includes creating and closing
/// them.
pub fn sequential_write(w: &Worker, size: usize) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    let mut data = buffer(size);
    let start = w.start()?;
    for pass in 0..w.passes {
        let fd = sys::open(name.at(pass), NEW)?;
        for block in 0..w.count {
            mark(&mut data, block);
            sys::write(fd, &data)?;
        }
        sys::close(fd)?;
    }
    w.done(start, w.passes * w.count)?;
    for pass in 0..w.passes {
        let bytes = sys::stat(name.at(pass))?;
        if bytes != (w.count * size) as i64 {
            return Err(format!("a file has {bytes} bytes after it was written"));
        }
        let fd = sys::open(name.at(pass), libc::O_RDONLY)?;
        sys::pread(fd, &mut data, (w.count - 1) * size)?;
        check(&data, w.count - 1)?;
        end(fd, name.at(pass))?;
    }
    Ok(())
}

pub fn sequential_read(w: &Worker, size: usize) -> Result<(), String> {
    let name = Name::of(&format!("{}data", w.prefix()))?;
    let fd = prepare(w, &name, size)?;
    let mut data = buffer(size);
    let start = w.start()?;
    for _ in 0..w.passes {
        sys::rewind(fd)?;
        for block in 0..w.count {
            sys::read(fd, &mut data, size)?;
            check(&data, block)?;
        }
    }
    w.done(start, w.passes * w.count)?;
    end(fd, &name)
}

/// Worker: reads or writes blocks of an existing file in random order, at explicit offsets.
pub fn random(w: &Worker, size: usize, write: bool) -> Result<(), String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (w.index as u64 + 1);
    at_offsets(w, size, write, move |_, count| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state as u128 * count as u128) >> 64) as usize
    })
}

/// Worker: reads or writes blocks of an existing file from the beginning to the end, at explicit
/// offsets.
pub fn over(w: &Worker, size: usize, write: bool) -> Result<(), String> {
    at_offsets(w, size, write, |i, count| i % count)
}

fn at_offsets(
    w: &Worker,
    size: usize,
    write: bool,
    mut next: impl FnMut(usize, usize) -> usize,
) -> Result<(), String> {
    let name = Name::of(&format!("{}data", w.prefix()))?;
    let fd = prepare(w, &name, size)?;
    let mut data = buffer(size);
    let operations = w.passes * w.count;
    let start = w.start()?;
    for i in 0..operations {
        let block = next(i, w.count);
        if write {
            mark(&mut data, block);
            sys::pwrite(fd, &data, block * size)?;
        } else {
            sys::pread(fd, &mut data, block * size)?;
            check(&data, block)?;
        }
    }
    w.done(start, operations)?;
    for block in [0, w.count / 2, w.count - 1] {
        sys::pread(fd, &mut data, block * size)?;
        check(&data, block)?;
    }
    end(fd, &name)
}
