//! Names of incomplete files (*parts*).
//!
//! A part's name is `.forebay-part-BOOT-PID-START-NAME`: the boot, id and start time of the process
//! that writes the file, and a hash of the final name. So another run can distinguish leftovers of
//! an interrupted run from files of a run in progress.

use forebay_backing::{SlowStore, join};
use forebay_store::process::{Life, life};
use std::sync::OnceLock;

/// Prefix of the names of parts.
pub const PREFIX: &[u8] = b".forebay-part-";
/// Time without a change after which a part of another boot or node counts as a leftover.
/// Nanoseconds.
const ABANDONED_NS: i128 = 3_600_000_000_000;

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// Returns an id for this node's current boot. If the kernel doesn't tell the boot's id, returns a
/// random id, so that to other runs this process's parts look like parts of another boot.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) => hash(&id),
        Err(_) => {
            let mut random = [0; 16];
            let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
            hash(&random)
        }
    })
}

/// Whether the process that made a part, in this boot, has ended. True only if the kernel confirms
/// the process's end.
fn has_ended(pid: u32, start: u64) -> bool {
    match life(pid) {
        // Start time 0: the process couldn't determine it.
        Life::Runs(started) => start != 0 && started != start,
        Life::Gone => true,
        Life::Unknown(_) => false,
    }
}

/// Returns the temporary name under which this process writes the file `name`.
pub fn name(name: &[u8]) -> Vec<u8> {
    static START: OnceLock<u64> = OnceLock::new();
    let pid = std::process::id();
    let start = START.get_or_init(|| match life(pid) {
        Life::Runs(started) => started,
        _ => 0,
    });
    let text = format!("{}-{pid}-{start}-{}", boot(), hash(name));
    [PREFIX, text.as_bytes()].concat()
}

/// Parses a part's name into its fields.
fn fields(name: &[u8]) -> Option<(&str, u32, u64, &str)> {
    let text = std::str::from_utf8(name.strip_prefix(PREFIX)?).ok()?;
    let mut parts = text.split('-');
    let (boot, pid) = (parts.next()?, parts.next()?.parse().ok()?);
    let (start, hash) = (parts.next()?.parse().ok()?, parts.next()?);
    let is_hash = |t: &str| t.len() == 16 && t.bytes().all(|b| b.is_ascii_hexdigit());
    (is_hash(boot) && is_hash(hash) && parts.next().is_none()).then_some(())?;
    Some((boot, pid, start, hash))
}

/// Whether `name` is the name of a part.
pub fn is_part(name: &[u8]) -> bool {
    fields(name).is_some()
}

/// Removes leftover parts of interrupted runs in `directory`; if `of` is given, only those of the
/// file `of`.
pub fn sweep(place: &dyn SlowStore, directory: &[u8], of: Option<&[u8]>) {
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
            has_ended(pid, start)
        } else {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_nanos() as i128);
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
    fn ended_processes_are_recognised() {
        let mut child = std::process::Command::new("sleep")
            .arg("20")
            .spawn()
            .unwrap();
        let Life::Runs(start) = life(child.id()) else {
            panic!("it runs")
        };
        assert!(!has_ended(child.id(), start));
        assert!(!has_ended(child.id(), 0));
        assert!(has_ended(child.id(), start + 1));
        child.kill().unwrap();
        // A killed process exists until its parent waits for it.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !has_ended(child.id(), start) {
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
