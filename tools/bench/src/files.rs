//! Workloads on names: many files in one directory, which all workers of a run share.

use crate::sys::{self, Name};
use crate::worker::Worker;
use crate::workloads::SMALL;

const NEW: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;

/// Returns the content of small files: bytes that reveal a wrong offset or a lost write.
fn content() -> Vec<u8> {
    (0..SMALL).map(|i| (i % 251) as u8 + 1).collect()
}

fn make(w: &Worker, data: &[u8]) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    for i in 0..w.count {
        let fd = sys::open(name.at(i), NEW)?;
        if !data.is_empty() {
            sys::write(fd, data)?;
        }
        sys::close(fd)?;
    }
    Ok(())
}

fn remove(w: &Worker, prefix: &str) -> Result<(), String> {
    let mut name = Name::numbered(prefix)?;
    for i in 0..w.count {
        sys::unlink(name.at(i))?;
    }
    Ok(())
}

/// Returns the order in which files are visited: each of them once, in another order than they were
/// made.
fn order(count: usize) -> impl Iterator<Item = usize> {
    // A prime number: it has no common divisor with a count that isn't its multiple.
    const STEP: usize = 7919;
    let step = if count.is_multiple_of(STEP) { 1 } else { STEP };
    let mut at = 0;
    (0..count).map(move |_| {
        at = (at + step) % count;
        at
    })
}

pub fn create(w: &Worker) -> Result<(), String> {
    let start = w.start()?;
    make(w, &[])?;
    w.done(start, w.count)?;
    remove(w, &w.prefix())
}

/// Worker: creates and unlinks files. Each exists only for a moment.
pub fn create_unlink(w: &Worker) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    let start = w.start()?;
    for i in 0..w.passes * w.count {
        sys::close(sys::open(name.at(i), NEW)?)?;
        sys::unlink(name.at(i))?;
    }
    w.done(start, w.passes * w.count)
}

pub fn small_write(w: &Worker) -> Result<(), String> {
    let data = content();
    let start = w.start()?;
    make(w, &data)?;
    w.done(start, w.count)?;
    remove(w, &w.prefix())
}

/// Worker: creates the files that [`list`] and [`crate::remote`] use, and leaves them.
pub fn fill(w: &Worker) -> Result<(), String> {
    let start = w.start()?;
    make(w, &[])?;
    w.done(start, w.count)
}

pub fn list(w: &Worker) -> Result<(), String> {
    let directory = Name::of(&w.directory)?;
    let start = w.start()?;
    for _ in 0..w.passes {
        let entries = sys::list(&directory)?;
        if entries != w.count {
            return Err(format!("{entries} entries instead of {}", w.count));
        }
    }
    w.done_with_peak(start, w.passes * w.count)
}

pub fn stat(w: &Worker) -> Result<(), String> {
    make(w, &[])?;
    let mut name = Name::numbered(&w.prefix())?;
    let start = w.start()?;
    for _ in 0..w.passes {
        for i in order(w.count) {
            if sys::stat(name.at(i))? != 0 {
                return Err("stat: an empty file with a size".into());
            }
        }
    }
    w.done(start, w.passes * w.count)?;
    remove(w, &w.prefix())
}

/// Worker: stats the files of the next worker (of PASSES workers). These files lie on another node.
pub fn stat_next(w: &Worker) -> Result<(), String> {
    make(w, &[])?;
    let next = Worker {
        directory: w.directory.clone(),
        index: (w.index + 1) % w.passes,
        ..*w
    };
    let mut name = Name::numbered(&next.prefix())?;
    let start = w.start()?;
    for i in order(w.count) {
        sys::stat(name.at(i))?;
    }
    w.done(start, w.count)?;
    remove(w, &w.prefix())
}

pub fn open_close(w: &Worker) -> Result<(), String> {
    make(w, &[])?;
    let mut name = Name::numbered(&w.prefix())?;
    let start = w.start()?;
    for _ in 0..w.passes {
        for i in order(w.count) {
            sys::close(sys::open(name.at(i), libc::O_RDONLY)?)?;
        }
    }
    w.done(start, w.passes * w.count)?;
    remove(w, &w.prefix())
}

pub fn small_read(w: &Worker) -> Result<(), String> {
    let data = content();
    make(w, &data)?;
    let mut name = Name::numbered(&w.prefix())?;
    let mut buffer = vec![0; 4096];
    let start = w.start()?;
    for _ in 0..w.passes {
        for i in order(w.count) {
            let fd = sys::open(name.at(i), libc::O_RDONLY)?;
            sys::read(fd, &mut buffer, SMALL)?;
            sys::close(fd)?;
        }
    }
    w.done(start, w.passes * w.count)?;
    if buffer[..SMALL] != data {
        return Err("read: other bytes than were written".into());
    }
    remove(w, &w.prefix())
}

pub fn unlink(w: &Worker) -> Result<(), String> {
    make(w, &[])?;
    let start = w.start()?;
    remove(w, &w.prefix())?;
    w.done(start, w.count)
}

pub fn mkdir_rmdir(w: &Worker) -> Result<(), String> {
    let mut name = Name::numbered(&w.prefix())?;
    let start = w.start()?;
    for i in 0..w.count {
        sys::mkdir(name.at(i))?;
        sys::rmdir(name.at(i))?;
    }
    w.done(start, w.count)
}

pub fn rename(w: &Worker) -> Result<(), String> {
    make(w, &[])?;
    let renamed = format!("{}to-", w.prefix());
    let mut from = Name::numbered(&w.prefix())?;
    let mut to = Name::numbered(&renamed)?;
    let start = w.start()?;
    for i in 0..w.count {
        sys::rename(from.at(i), to.at(i))?;
    }
    w.done(start, w.count)?;
    remove(w, &renamed)
}

pub fn append(w: &Worker) -> Result<(), String> {
    let name = Name::of(&format!("{}log", w.prefix()))?;
    let fd = sys::open(&name, NEW | libc::O_APPEND)?;
    let line = [b'x'; 100];
    let start = w.start()?;
    for _ in 0..w.count {
        sys::write(fd, &line)?;
    }
    w.done(start, w.count)?;
    sys::close(fd)?;
    let size = sys::stat(&name)?;
    if size != 100 * w.count as i64 {
        return Err(format!("append: the file has {size} bytes"));
    }
    sys::unlink(&name)
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn order_visits_each_file_once() {
        for count in [1, 2, 100, 7919, 8_000, 2 * 7919, 40_000] {
            let mut seen: Vec<usize> = order(count).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count), "{count}");
        }
    }
}
