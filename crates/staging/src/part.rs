//! The names of files that are not complete yet.
//!
//! `.forebay-part-BOOT-PID-START-NAME`: by which process of which boot it is written, and
//! a hash of its final name. So the next run can tell what an interrupted one has left
//! from what a running one is writing.

use crate::place::{Place, join};
use std::sync::OnceLock;

/// How all these names begin.
pub const PREFIX: &[u8] = b".forebay-part-";
/// A part of another boot or node is taken for a leftover when untouched this long.
const ABANDONED_NS: i64 = 3_600_000_000_000;

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// This boot of this node, unlike all others.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| hash(&std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()))
}

/// When a process started, in clock ticks since boot; None if there is none, or it has ended and only wasn't waited for.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The command name, field 2, may hold anything but ends at the last ')'.
    let after = stat.iter().rposition(|&b| b == b')')? + 2;
    let mut fields = stat.get(after..)?.split(|&b| b == b' ');
    if matches!(fields.next()?, b"Z" | b"X") {
        return None;
    }
    std::str::from_utf8(fields.nth(18)?).ok()?.parse().ok()
}

/// The name under which this process writes the file that will be `name`.
pub fn name(name: &[u8]) -> Vec<u8> {
    static START: OnceLock<u64> = OnceLock::new();
    let pid = std::process::id();
    let start = START.get_or_init(|| started(pid).unwrap_or(0));
    let text = format!("{}-{pid}-{start}-{}", boot(), hash(name));
    [PREFIX, text.as_bytes()].concat()
}

/// The fields of such a name.
fn fields(name: &[u8]) -> Option<(&str, u32, u64, &str)> {
    let text = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
    let mut parts = text.split('-');
    let (boot, pid) = (parts.next()?, parts.next()?.parse().ok()?);
    let (start, hash) = (parts.next()?.parse().ok()?, parts.next()?);
    let is_hash = |t: &str| t.len() == 16 && t.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hash(boot) && is_hash(hash) && parts.next().is_none()).then_some(())?;
    Some((boot, pid, start, hash))
}

/// Whether `name` is one that this module makes.
pub fn is_part(name: &[u8]) -> bool {
    fields(name).is_some()
}

/// Removes what interrupted runs have left in `directory`; only the parts of the file
/// `of`, if given.
pub fn sweep(place: &impl Place, directory: &[u8], of: Option<&[u8]>) {
    let of = of.map(hash);
    for name in place.list(directory).unwrap_or_default() {
        let Some((b, pid, start, h)) = fields(&name) else {
            continue;
        };
        if of.as_deref().is_some_and(|of| of != h) {
            continue;
        }
        let path = join(directory, &name);
        let left = if b == boot() {
            started(pid) != Some(start)
        } else {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_nanos() as i64);
            place
                .stat(&path, false)
                .is_ok_and(|m| now - m.mtime.max(m.ctime) > ABANDONED_NS)
        };
        if left {
            let _ = place.unlink(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended_writes_nothing() {
        let mut child = std::process::Command::new("sleep")
            .arg("20")
            .spawn()
            .unwrap();
        assert!(started(child.id()) >= started(std::process::id()));
        child.kill().unwrap();
        // It is there until it is waited for.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while started(child.id()).is_some() {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert!(std::path::Path::new(&format!("/proc/{}/stat", child.id())).exists());
        child.wait().unwrap();
    }

    #[test]
    fn names_are_recognised() {
        let own = name(&[b'x'; 255]);
        assert!(own.len() < 100);
        assert!(is_part(&own));
        assert_ne!(own, name(b"other"));
        for other in [
            &b".forebay-part-"[..],
            b".forebay-part-mine",
            b"a",
            b"",
            b".forebay-part-1-2-3-4",
        ] {
            assert!(!is_part(other));
        }
    }
}
