//! Workers on files that another node of the pool holds. That node made DIRECTORY, with COUNT empty
//! files (by [`crate::files::fill`], as worker 0) and the file of [`content`].

use crate::sys::{self, Name};
use crate::worker::Worker;
use crate::workloads::MIB;

/// Size of a block. Bytes.
pub const BLOCK: usize = 4096;
/// Size of a block of [`small_write`] and [`small_read`]. Bytes.
pub const SMALL_BLOCK: usize = 8192;
/// Size of the file that is read and written. MiB.
pub const CONTENT_MIB: usize = 64;

/// Which of the measured times is reported.
#[derive(Clone, Copy)]
pub enum Middle {
    Half,
    /// The median of the slower three quarters: a quarter of the operations needs no other node.
    OfThreeQuarters,
}

/// Measures the times of PASSES × COUNT operations, each separately. Reports the median time.
pub fn median_of(
    w: &Worker,
    middle: Middle,
    mut operation: impl FnMut(usize) -> Result<(), String>,
) -> Result<(), String> {
    w.start()?;
    let mut times = Vec::with_capacity(w.count * w.passes);
    for _ in 0..w.passes {
        for i in 0..w.count {
            let start = sys::now();
            operation(i)?;
            times.push(sys::now() - start);
        }
    }
    times.sort_unstable();
    let at = match middle {
        Middle::Half => times.len() / 2,
        Middle::OfThreeQuarters => times.len() * 5 / 8,
    };
    w.report(1, times[at] as f64 / 1e9)
}

fn file(w: &Worker) -> Result<Name, String> {
    Name::of(&format!("{}/content", w.directory))
}

/// Worker: makes the file that other workers read and write, and leaves it.
pub fn content(w: &Worker) -> Result<(), String> {
    let fd = sys::open(&file(w)?, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY)?;
    let data = vec![5; MIB];
    let start = w.start()?;
    for _ in 0..CONTENT_MIB {
        sys::write(fd, &data)?;
    }
    w.done(start, CONTENT_MIB)?;
    sys::close(fd)
}

pub fn stat(w: &Worker, middle: Middle) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    median_of(w, middle, |i| sys::stat(name.at(i)).map(drop))
}

pub fn open_close(w: &Worker) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    median_of(w, Middle::Half, |i| {
        sys::close(sys::open(name.at(i), libc::O_RDONLY)?)
    })
}

/// Worker: creates and closes new files.
pub fn create(w: &Worker, middle: Middle) -> Result<(), String> {
    let mut name = Name::numbered(&format!("{}new-", w.prefix()))?;
    let mut made = 0;
    median_of(w, middle, |_| {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let fd = sys::open(name.at(made), flags)?;
        made += 1;
        sys::close(fd)
    })?;
    (0..made).try_for_each(|i| sys::unlink(name.at(i)))
}

pub fn fstat(w: &Worker) -> Result<(), String> {
    let fd = sys::open(&file(w)?, libc::O_RDONLY)?;
    median_of(w, Middle::Half, |_| match sys::fstat(fd)? {
        size if size == (CONTENT_MIB * MIB) as i64 => Ok(()),
        size => Err(format!("fstat: {size} bytes")),
    })?;
    sys::close(fd)
}

fn access(write: bool) -> libc::c_int {
    if write { libc::O_RDWR } else { libc::O_RDONLY }
}

/// Worker: pread or pwrite of one block, another one each time.
pub fn block(w: &Worker, write: bool) -> Result<(), String> {
    let fd = sys::open(&file(w)?, access(write))?;
    let mut data = vec![5; BLOCK];
    let blocks = CONTENT_MIB * MIB / BLOCK;
    median_of(w, Middle::Half, |i| {
        // A prime number, so that neither readahead nor chance helps.
        let at = i * 7919 % blocks * BLOCK;
        if write {
            sys::pwrite(fd, &data, at)
        } else {
            sys::pread(fd, &mut data, at)
        }
    })?;
    sys::close(fd)
}

/// Worker: writes COUNT blocks of 8 KiB one after the other. The time includes making them visible
/// to other processes.
pub fn small_write(w: &Worker) -> Result<(), String> {
    let fd = sys::open(&file(w)?, libc::O_RDWR)?;
    let data = vec![5; SMALL_BLOCK];
    sys::write(fd, &data)?;
    let start = w.start()?;
    for _ in 1..w.count {
        sys::write(fd, &data)?;
    }
    sys::fsync(fd)?;
    w.done(start, w.count - 1)?;
    sys::close(fd)
}

/// Worker: reads COUNT blocks of 8 KiB one after the other.
pub fn small_read(w: &Worker) -> Result<(), String> {
    let fd = sys::open(&file(w)?, libc::O_RDONLY)?;
    let mut data = vec![0; SMALL_BLOCK];
    let start = w.start()?;
    for i in 0..w.count {
        sys::pread(fd, &mut data, i * SMALL_BLOCK)?;
    }
    w.done(start, w.count)?;
    if data.iter().any(|&byte| byte != 5) {
        return Err("read: other bytes than were written".into());
    }
    sys::close(fd)
}

/// Worker: makes COUNT calls of PASSES MiB each, over the file again and again.
pub fn transfers(w: &Worker, write: bool) -> Result<(), String> {
    let fd = sys::open(&file(w)?, access(write))?;
    let mut data = vec![5; w.passes * MIB];
    let places = CONTENT_MIB / w.passes;
    let mut call = |i: usize| {
        let at = i % places * data.len();
        if write {
            sys::pwrite(fd, &data, at)
        } else {
            sys::pread(fd, &mut data, at)
        }
    };
    call(0)?;
    let start = w.start()?;
    (0..w.count).try_for_each(&mut call)?;
    w.done(start, w.count * w.passes)?;
    if data.iter().any(|&byte| byte != 5) {
        return Err("read: other bytes than were written".into());
    }
    sys::close(fd)
}

/// Worker: reads the COUNT MiB after the first MiB once, in calls of 1 MiB. It has read the first
/// MiB before.
pub fn rest(w: &Worker) -> Result<(), String> {
    let fd = sys::open(&file(w)?, libc::O_RDONLY)?;
    let mut data = vec![0; MIB];
    sys::pread(fd, &mut data, 0)?;
    let start = w.start()?;
    (1..=w.count).try_for_each(|i| sys::pread(fd, &mut data, i * MIB))?;
    w.done(start, w.count)?;
    sys::close(fd)
}

/// Worker: copies the file COUNT times over the file of node INDEX (`../INDEX-to`), by
/// copy_file_range or `through` a buffer of 1 MiB.
pub fn copies(w: &Worker, through: bool) -> Result<(), String> {
    let (top, _) = w.directory.rsplit_once('/').unwrap_or_default();
    let from = sys::open(&file(w)?, libc::O_RDONLY)?;
    let into = Name::of(&format!("{top}/{}-to/content", w.index))?;
    let into = sys::open(&into, libc::O_WRONLY)?;
    let mut data = vec![0; MIB];
    let copy = |data: &mut [u8]| {
        if through {
            (0..CONTENT_MIB).try_for_each(|i| {
                sys::pread(from, data, i * MIB)?;
                sys::pwrite(into, data, i * MIB)
            })
        } else {
            sys::copy_range(from, into, CONTENT_MIB * MIB)
        }
    };
    copy(&mut data)?;
    let start = w.start()?;
    for _ in 0..w.count {
        copy(&mut data)?;
    }
    w.done(start, w.count * CONTENT_MIB)?;
    sys::close(into)?;
    sys::close(from)
}
