//! Workloads on mapped files: each worker maps its own files and touches their pages.

use crate::blocks;
use crate::sys::{self, Mapping, Name};
use crate::worker::Worker;

const PAGE: usize = 4096;
const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

/// Loads each page of an existing file for the first time. The time includes mapping and unmapping.
pub fn read(w: &Worker) -> Result<(), String> {
    let name = Name::of(&format!("{}data", w.prefix()))?;
    let fd = blocks::prepare(w, &name, PAGE)?;
    let start = w.start()?;
    for _ in 0..w.passes {
        let mapping = Mapping::of(fd, w.count * PAGE)?;
        for page in 0..w.count {
            if mapping.load(page * PAGE) != page as u64 {
                return Err(format!("page {page} holds other bytes than were written"));
            }
        }
    }
    w.done(start, w.passes * w.count)?;
    blocks::end(fd, &name)
}

/// Stores to each page of a file for the first time, after the file was only given its size.
pub fn fresh(w: &Worker) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    let start = w.start()?;
    for pass in 0..w.passes {
        let fd = sys::open(name.at(pass), NEW)?;
        sys::truncate(fd, w.count * PAGE)?;
        let mapping = Mapping::of(fd, w.count * PAGE)?;
        for page in 0..w.count {
            mapping.store(page * PAGE, page as u64);
        }
        drop(mapping);
        sys::close(fd)?;
    }
    w.done(start, w.passes * w.count)?;
    let mut data = [0; PAGE];
    for pass in 0..w.passes {
        let fd = sys::open(name.at(pass), libc::O_RDONLY)?;
        sys::pread(fd, &mut data, (w.count - 1) * PAGE)?;
        if data[..8] != (w.count as u64 - 1).to_le_bytes() {
            return Err("what was stored isn't there".to_string());
        }
        blocks::end(fd, name.at(pass))?;
    }
    Ok(())
}

/// Grows a file by one page at a time, under a mapping that is longer than the file. Each page is
/// written, and then loaded.
pub fn grow(w: &Worker) -> Result<(), String> {
    let name = Name::of(&format!("{}data", w.prefix()))?;
    let mut data = [1; PAGE];
    let start = w.start()?;
    for _ in 0..w.passes {
        let fd = sys::open(&name, NEW)?;
        let mapping = Mapping::of(fd, w.count * PAGE)?;
        for page in 0..w.count {
            data[..8].copy_from_slice(&(page as u64).to_le_bytes());
            sys::write(fd, &data)?;
            if mapping.load(page * PAGE) != page as u64 {
                return Err(format!("page {page} holds other bytes than were written"));
            }
        }
        drop(mapping);
        blocks::end(fd, &name)?;
    }
    w.done(start, w.passes * w.count)
}
