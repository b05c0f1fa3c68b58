//! Encodes events as names of files that are created in shadows.
//!
//! A file name consists of a mark, the mask (4 hexadecimal digits) and, if the event has a name,
//! the cookie (8 digits) and that name: 16 bytes precede the name. The kernel pads names to
//! multiples of 16, so its event about the shadow is always 16 bytes longer than the event that it
//! encodes. A name that is too long for a prefix is stored separately under its hash; then both
//! events have the same length.

use crate::views::Watches;
use rustix::io::{Errno, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The events that the kernel watches a shadow for.
pub const SHADOW_MASK: u32 = libc::IN_CREATE;

const MARK: &[u8; 4] = b"\x01fb\x02";
const LONG_MARK: &[u8; 4] = b"\x01fb\x03";
/// Length of the prefix before a name. Bytes.
const BEFORE: usize = 16;
/// Names of this length or longer are stored separately. Bytes.
const LONG: usize = 256 - BEFORE;
/// The bit for IN_ISDIR in the 4 digits of the mask.
const IS_DIR: u32 = 1 << 12;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened<'a> {
    /// As in `struct inotify_event`.
    pub mask: u32,
    pub cookie: u32,
    /// Empty if the event concerns the watched object itself.
    pub name: std::borrow::Cow<'a, [u8]>,
}

impl<'a> Happened<'a> {
    pub(super) fn new(what: u32, kind: u32, name: &'a [u8], cookie: u32) -> Happened<'a> {
        // As in the kernel, these events don't have IN_ISDIR.
        let without = what & (libc::IN_MOVE_SELF | libc::IN_DELETE_SELF) != 0;
        let dir = if kind == libc::S_IFDIR && !without {
            libc::IN_ISDIR
        } else {
            0
        };
        Happened {
            mask: what | dir,
            cookie,
            name: name.into(),
        }
    }
}

fn hash(name: &[u8]) -> String {
    format!("{:016x}", twox_hash::XxHash3_64::oneshot(name))
}

/// Encodes an event as a file name.
pub(super) fn file_name(e: &Happened<'_>) -> Vec<u8> {
    let dir = if e.mask & libc::IN_ISDIR != 0 {
        IS_DIR
    } else {
        0
    };
    let mask = e.mask & libc::IN_ALL_EVENTS | dir;
    let mut file = MARK.to_vec();
    file.extend_from_slice(format!("{mask:04x}").as_bytes());
    if e.name.is_empty() {
        return file;
    }
    file.extend_from_slice(format!("{:08x}", e.cookie).as_bytes());
    if e.name.len() < LONG {
        file.extend_from_slice(&e.name);
    } else {
        file[..4].copy_from_slice(LONG_MARK);
        file.extend_from_slice(hash(&e.name).as_bytes());
        file.resize(LONG, b'.');
    }
    file
}

/// Decodes a file name; None if it doesn't encode an event. `aside` returns a separately stored
/// name by its hash.
fn parse<'a>(file: &'a [u8], aside: impl FnOnce(&str) -> Result<Vec<u8>>) -> Option<Happened<'a>> {
    let long = file.starts_with(LONG_MARK);
    if !long && !file.starts_with(MARK) {
        return None;
    }
    let hex = |at: std::ops::Range<usize>| {
        let digits = std::str::from_utf8(file.get(at)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let bits = hex(4..8)?;
    let dir = if bits & IS_DIR != 0 {
        libc::IN_ISDIR
    } else {
        0
    };
    let mask = bits & libc::IN_ALL_EVENTS | dir;
    if file.len() == 8 {
        let name = std::borrow::Cow::Borrowed(&b""[..]);
        return Some(Happened {
            mask,
            cookie: 0,
            name,
        });
    }
    let cookie = hex(8..BEFORE)?;
    let name = if long {
        let hash = std::str::from_utf8(file.get(BEFORE..BEFORE + 16)?).ok()?;
        aside(hash).ok()?.into()
    } else {
        file.get(BEFORE..)?.into()
    };
    Some(Happened { mask, cookie, name })
}

impl Watches<'_> {
    /// Stores the name of an event separately, if the name is long. The stored name stays as long
    /// as any object is watched.
    pub(super) fn keep_long_name(&self, e: &Happened<'_>) -> Result<()> {
        if e.name.len() < LONG {
            return Ok(());
        }
        let at = self.watch_path("names").join(hash(&e.name));
        match rustix::fs::symlink(&e.name[..], &at) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Decodes the event for which `file` was created in a shadow.
    pub fn happened<'a>(&self, file: &'a [u8]) -> Option<Happened<'a>> {
        parse(file, |hash| {
            let at = self.watch_path("names").join(hash);
            let name = rustix::fs::readlink(at, Vec::new())?;
            Ok(std::ffi::OsStr::from_bytes(name.as_bytes())
                .to_owned()
                .into_vec())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mask: u32, kind: u32, name: &[u8], cookie: u32) -> Happened<'_> {
        Happened::new(mask, kind, name, cookie)
    }

    /// Returns the length of a name in the kernel's events: with a final zero, and padded.
    fn len(name: usize) -> usize {
        if name == 0 {
            0
        } else {
            (name + 1).next_multiple_of(16)
        }
    }

    #[test]
    fn every_event_comes_back_and_never_takes_more_room() {
        let mut bits = 1;
        while bits & libc::IN_ALL_EVENTS != 0 {
            for n in 0..=255 {
                for kind in [libc::S_IFREG, libc::S_IFDIR] {
                    let name = vec![b'x'; n];
                    let cookie = if n == 0 { 0 } else { 0x8000_0001 };
                    let e = event(bits, kind, &name, cookie);
                    let file = file_name(&e);
                    assert!(file.len() <= 255 && !file.contains(&b'/') && !file.contains(&0));
                    let more = if n < LONG { 16 } else { 0 };
                    assert_eq!(len(file.len()), len(n) + more, "{n}");
                    let back = parse(&file, |h| {
                        assert_eq!(h, hash(&name));
                        Ok(name.clone())
                    });
                    assert_eq!(back, Some(e));
                }
            }
            bits <<= 1;
        }
    }

    #[test]
    fn other_names_stand_for_nothing() {
        let none = |_: &str| Err(Errno::NOENT);
        for file in [
            &b""[..],
            b"f",
            b"\x01fb\x02",
            b"\x01fb\x02zzzz",
            b"\x01fb\x020002zzzzzzzza",
        ] {
            assert_eq!(parse(file, none), None);
        }
        assert_eq!(parse(b"\x01fb\x03000200000000gone", none), None);
    }
}
