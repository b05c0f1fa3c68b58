//! The process's memory as the kernel sees it: `/proc/thread-self/maps` (the first thread, which
//! `/proc/self` stands for, may have ended).
//!
//! The table of mappings says which file lies where; how a page is protected, and whether
//! it shows a segment or the file without bytes, is asked of the kernel, so that
//! whatever the program does with mprotect is right.

use rustix::fs::{Mode, OFlags};

/// One mapping of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    pub start: u64,
    pub end: u64,
    pub prot: i32,
    pub shared: bool,
    pub ino: u64,
    /// It shows the file without a byte.
    pub empty: bool,
}

/// The name of the file without a byte.
pub const EMPTY: &str = "forebay-end";
const EMPTY_PATH: &[u8] = b"/memfd:forebay-end";

/// Calls `each` for the mappings that overlap with `start..end`, in order. False if they
/// can't be read.
pub fn each(start: u64, end: u64, mut each: impl FnMut(Vma)) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/thread-self/maps", flags, Mode::empty()) else {
        return false;
    };
    // Not on the stack, which may be that of a signal handler.
    let mut buffer = vec![0u8; 16 << 10];
    let mut held = 0;
    // Behind a line that was longer than the buffer.
    let mut cut = false;
    loop {
        let n = match rustix::io::read(&file, &mut buffer[held..]) {
            Ok(0) => return true,
            Ok(n) => n,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
        };
        let mut rest = &buffer[..held + n];
        while let Some(line) = rest.iter().position(|&b| b == b'\n') {
            if !cut && let Some(vma) = parse(&rest[..line]) {
                if vma.start >= end {
                    return true;
                }
                if vma.end > start {
                    each(vma);
                }
            }
            cut = false;
            rest = &rest[line + 1..];
        }
        let left = rest.len();
        if left == buffer.len() {
            // All that is asked for stands at the beginning of a line.
            if let Some(vma) = parse(rest).filter(|v| !cut && v.start < end && v.end > start) {
                each(vma);
            }
            cut = true;
            held = 0;
        } else {
            let from = held + n - left;
            buffer.copy_within(from..from + left, 0);
            held = left;
        }
    }
}

/// The mapping that `address` lies in.
pub fn at(address: u64) -> Option<Vma> {
    let mut found = None;
    each(address, address + 1, |vma| found = Some(vma));
    found
}

/// A line such as `7f00a000-7f00c000 r-xp 00002000 08:02 1234    /usr/lib/x.so`.
fn parse(line: &[u8]) -> Option<Vma> {
    let mut fields = line.split(|&b| b == b' ').filter(|f| !f.is_empty());
    let mut range = fields.next()?.split(|&b| b == b'-');
    let (start, end) = (number(range.next()?, 16)?, number(range.next()?, 16)?);
    let access = fields.next()?;
    let bit = |i: usize, letter, bit| {
        if access.get(i) == Some(&letter) {
            bit
        } else {
            0
        }
    };
    let ino = number(fields.nth(2)?, 10)?;
    let empty = fields.next() == Some(EMPTY_PATH);
    Some(Vma {
        start,
        end,
        prot: bit(0, b'r', libc::PROT_READ)
            | bit(1, b'w', libc::PROT_WRITE)
            | bit(2, b'x', libc::PROT_EXEC),
        shared: access.get(3) == Some(&b's'),
        ino,
        empty,
    })
}

fn number(digits: &[u8], base: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_where_how_and_what() {
        let line = b"7f00a000-7f00c000 rw-s 00002000 00:1f 4711       /memfd:forebay-end (deleted)";
        let vma = Vma {
            start: 0x7f00_a000,
            end: 0x7f00_c000,
            prot: libc::PROT_READ | libc::PROT_WRITE,
            shared: true,
            ino: 4711,
            empty: true,
        };
        assert_eq!(parse(line), Some(vma));
        assert_eq!(parse(b"7f00a000-7f00c000 rw-s"), None);
    }

    #[test]
    fn every_mapping_is_seen_once() {
        let here = 0u64;
        let address = &raw const here as u64;
        let stack = at(address).unwrap();
        assert!(stack.start <= address && address < stack.end && !stack.shared);
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let (mut count, mut last) = (0usize, 0);
        assert!(each(0, u64::MAX, |vma| {
            assert!(vma.start >= last);
            (count, last) = (count + 1, vma.end);
        }));
        // The file changes while it is read: tests are threads.
        assert!(count.abs_diff(text.lines().count()) < 20, "{count}");
    }
}
