//! The process's mappings as the kernel lists them: `/proc/thread-self/maps`. (`/proc/self` stands
//! for the first thread, which may have ended.) Linux 6.11 and later can be asked for an address
//! (PROCMAP_QUERY); with older kernels the text is read from its beginning.
//!
//! The table of mappings records which file is mapped where. The kernel is asked how a page is
//! protected, and whether a segment or the empty memfd is mapped; so the program's own mprotect
//! calls are respected.

use forebay_intercept::raw;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};

/// One mapping in the kernel's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    pub start: u64,
    pub end: u64,
    pub prot: i32,
    pub shared: bool,
    pub ino: u64,
    /// Whether the empty memfd ([`EMPTY`]) is mapped.
    pub empty: bool,
}

/// Name of the empty memfd that is mapped where a file has no page, so that touching it raises
/// SIGBUS (see `pages.rs`).
pub const EMPTY: &str = "forebay-end";
const EMPTY_PATH: &[u8] = b"/memfd:forebay-end";

/// Calls `each` for the mappings that overlap with `start..end`, in the order of their addresses.
/// False if the kernel's list can't be read.
pub fn each(start: u64, end: u64, each: impl FnMut(Vma)) -> bool {
    each_of(std::iter::once((start, end)), each)
}

/// Like [`each`], for several ranges, in the order of their ends. A mapping that overlaps with
/// several ranges is passed once. With an older kernel, mappings between the ranges are passed,
/// too.
pub fn each_of(
    ranges: impl Iterator<Item = (u64, u64)> + Clone,
    mut each: impl FnMut(Vma),
) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/thread-self/maps", flags, Mode::empty()) else {
        return false;
    };
    if ask(&file, ranges.clone(), &mut each) {
        return true;
    }
    let start = ranges.clone().map(|(start, _)| start).min().unwrap_or(0);
    let end = ranges.map(|(_, end)| end).max().unwrap_or(0);
    read(&file, start, end, &mut each)
}

/// The argument and result of PROCMAP_QUERY (linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    access: u64,
    page_size: u64,
    offset: u64,
    ino: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const PROCMAP_QUERY: i64 = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const _: () = assert!(size_of::<Query>() == 0x68);

/// Does the work of [`each_of`] by PROCMAP_QUERY. False, before `each` is called, if the kernel
/// doesn't support PROCMAP_QUERY.
fn ask(
    file: &OwnedFd,
    ranges: impl Iterator<Item = (u64, u64)>,
    each: &mut impl FnMut(Vma),
) -> bool {
    // The name is on the heap: the stack may be a small one of a signal handler.
    let mut name = vec![0u8; libc::PATH_MAX as usize];
    let mut found = Vec::new();
    let mut at = 0;
    for (start, end) in ranges {
        at = start.max(at);
        while at < end {
            let mut query = Query {
                size: size_of::<Query>() as u64,
                flags: COVERING_OR_NEXT,
                address: at,
                name_size: name.len() as u32,
                name: name.as_mut_ptr() as u64,
                ..Query::default()
            };
            let a = |query: &mut Query| {
                [
                    file.as_raw_fd().into(),
                    PROCMAP_QUERY,
                    std::ptr::from_mut(query) as i64,
                    0,
                    0,
                    0,
                ]
            };
            // SAFETY: the kernel fills the query, and the name up to its size.
            let mut result = unsafe { raw(libc::SYS_ioctl, a(&mut query)) };
            if result == -i64::from(libc::ENAMETOOLONG) {
                (query.name_size, query.name) = (0, 0);
                // SAFETY: as above.
                result = unsafe { raw(libc::SYS_ioctl, a(&mut query)) };
            }
            if result == -i64::from(libc::ENOENT) {
                break;
            }
            if result != 0 {
                return false;
            }
            if query.start >= end {
                break;
            }
            let shown = &name[..(query.name_size as usize).min(name.len())];
            let bit = |bit: u64, prot| if query.access & bit != 0 { prot } else { 0 };
            found.push(Vma {
                start: query.start,
                end: query.end,
                prot: bit(1, libc::PROT_READ) | bit(2, libc::PROT_WRITE) | bit(4, libc::PROT_EXEC),
                shared: query.access & 8 != 0,
                ino: query.ino,
                empty: shown.split(|&b| b == b' ' || b == 0).next() == Some(EMPTY_PATH),
            });
            at = query.end;
        }
    }
    found.into_iter().for_each(each);
    true
}

/// Does the work of [`each`] by reading the text of the list.
fn read(file: &OwnedFd, start: u64, end: u64, each: &mut impl FnMut(Vma)) -> bool {
    // The buffer is on the heap: the stack may be a small one of a signal handler.
    let mut buffer = vec![0u8; 16 << 10];
    let mut held = 0;
    // Whether the buffer begins inside a line that is longer than the buffer.
    let mut cut = false;
    loop {
        let n = match rustix::io::read(file, &mut buffer[held..]) {
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
            // All needed fields are at the beginning of a line.
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

/// Returns the mapping that contains `address`.
pub fn at(address: u64) -> Option<Vma> {
    let mut found = None;
    each(address, address + 1, |vma| found = Some(vma));
    found
}

/// Parses a line such as `7f00a000-7f00c000 r-xp 00002000 08:02 1234    /usr/lib/x.so`.
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
        for asking in [false, true] {
            let file = OwnedFd::from(std::fs::File::open("/proc/thread-self/maps").unwrap());
            let (mut count, mut last) = (0usize, 0);
            let mut one = |vma: Vma| {
                assert!(vma.start >= last);
                (count, last) = (count + 1, vma.end);
            };
            let done = if asking {
                each(0, u64::MAX, &mut one)
            } else {
                read(&file, 0, u64::MAX, &mut one)
            };
            // Other test threads change the list while it is read.
            assert!(done && count.abs_diff(text.lines().count()) < 20, "{count}");
        }
    }

    #[test]
    fn text_and_answers_say_the_same() {
        let both = |range: (u64, u64)| {
            let file = OwnedFd::from(std::fs::File::open("/proc/thread-self/maps").unwrap());
            let (mut text, mut asked) = (Vec::new(), Vec::new());
            assert!(read(&file, range.0, range.1, &mut |vma| text.push(vma)));
            if ask(&file, [range].into_iter(), &mut |vma| asked.push(vma)) {
                assert_eq!(text, asked);
            }
            text
        };
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(EMPTY, flags).unwrap();
        // SAFETY: maps three new pages, and then replaces the middle one of them.
        let start = unsafe {
            let len = 3 * forebay_store::PAGE;
            let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
            let start = libc::mmap(none, len, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let middle = start.byte_add(forebay_store::PAGE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            assert_eq!(libc::mmap(middle, 4096, prot, flags, -1, 0), middle);
            start as u64
        };
        let seen = both((start + 1, start + 2 * 4096 + 1));
        let empty: Vec<bool> = seen.iter().map(|v| v.empty).collect();
        assert_eq!(empty, [true, false, true]);
        let prots: Vec<i32> = seen.iter().map(|v| v.prot).collect();
        assert_eq!(prots, [libc::PROT_READ, 7, libc::PROT_READ]);
        assert!(seen[0].shared && !seen[1].shared && seen[1].ino == 0);
        assert_eq!(at(start), Some(seen[0]));
        // Nothing is mapped at the lowest page: `each` isn't called.
        assert!(both((0, 4096)).is_empty());
        // SAFETY: these pages were mapped above.
        unsafe { libc::munmap(start as *mut libc::c_void, 3 * 4096) };
    }
}
