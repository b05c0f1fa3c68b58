//! Hints are remarks about programs that don't see the pool. A command that starts many such
//! programs gets one hint, not one for each process.
//!
//! `forebay exec` and `forebay run` number themselves in the variable [`VARIABLE`]. `DIR/hints` has
//! a counter and the last [`MAX_SESSIONS`] pairs of that number and a standard error that have had
//! a hint: u64 each, under a lock of the file (flock).

use crate::program::{settings, variables};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use std::ffi::CStr;

/// The number of the command in which the program runs; `off` if the user has said `-q`.
const VARIABLE: &CStr = c"FOREBAY_HINTS";

/// Maximum number of remembered commands.
const MAX_SESSIONS: usize = 64;
const WORD: usize = 8;

/// Whether a hint may be written now: none has been written by this command to this standard error.
/// Blocks while another process of the pool asks the same.
pub fn claim() -> bool {
    let Some(session) = variables::value(VARIABLE) else {
        return true;
    };
    match session.to_str().map(str::parse::<u64>) {
        Ok(Ok(session)) => is_first(session).unwrap_or(true),
        _ => session != c"off",
    }
}

/// None if the file can't be used.
fn is_first(session: u64) -> Option<bool> {
    let error = rustix::fs::fstat(std::io::stderr()).ok()?;
    if FileType::from_raw_mode(error.st_mode) == FileType::RegularFile && error.st_size == 0 {
        return Some(true); // A file of its own for this program's messages.
    }
    let key = mix(session, error.st_dev, error.st_ino);
    let path = [settings::settings()?.dir.to_bytes(), b"/hints"].concat();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).ok()?;
    let mut bytes = [0; WORD * (1 + MAX_SESSIONS)];
    let read = rustix::io::pread(&file, &mut bytes, 0).ok()?;
    let words = bytes[..read].chunks_exact(WORD);
    let words: Vec<u64> = words
        .map(|w| u64::from_ne_bytes(w.try_into().unwrap_or_default()))
        .collect();
    let count = words.first().copied().unwrap_or(0);
    if words.iter().skip(1).any(|&w| w == key) {
        return Some(false);
    }
    let at = WORD as u64 * (1 + count % MAX_SESSIONS as u64);
    rustix::io::pwrite(&file, &key.to_ne_bytes(), at).ok()?;
    rustix::io::pwrite(&file, &count.wrapping_add(1).to_ne_bytes(), 0).ok()?;
    Some(true)
}

/// Returns a hash of three numbers; never 0, which an unused word has.
fn mix(a: u64, b: u64, c: u64) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = [a, b, c].iter().fold(PRIME, |hash, n| {
        (hash ^ n).wrapping_mul(PRIME).rotate_left(29)
    });
    hash | 1
}

#[cfg(test)]
mod tests {
    use super::mix;

    #[test]
    fn pairs_have_keys_of_their_own() {
        let mut keys: Vec<u64> = (0..20)
            .flat_map(|a| (0..20).map(move |b| mix(a, b, 1)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 400);
        assert!(!keys.contains(&0));
    }
}
