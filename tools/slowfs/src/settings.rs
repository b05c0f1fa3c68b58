//! The behaviour of the file system, as a test sets it.

use serde::{Deserialize, Serialize};

/// The kinds of operations, as the kernel requests them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Rename,
    Link,
    Open,
    Create,
    Read,
    Write,
    Flush,
    Release,
    Fsync,
    Opendir,
    Readdir,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Access,
    Fallocate,
    Lseek,
}

impl Kind {
    /// Whether a full file system refuses this kind of operation.
    pub fn needs_room(self) -> bool {
        use Kind::*;
        matches!(
            self,
            Mknod | Mkdir | Symlink | Link | Create | Write | Fallocate
        )
    }

    /// Whether a read-only file system refuses this kind of operation. (It also refuses opening for
    /// writing.)
    pub fn changes(self) -> bool {
        use Kind::*;
        self.needs_room()
            || matches!(
                self,
                Setattr | Unlink | Rmdir | Rename | Setxattr | Removexattr
            )
    }
}

/// A fault: operations that fail or hang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The kinds of operations concerned; empty: all kinds.
    pub kinds: Vec<Kind>,
    /// The paths concerned, relative to the mounted directory; `*` stands for any characters.
    pub path: String,
    /// The share of these operations that fails or hangs, chosen by the seed. 0 to 1.
    pub share: f64,
    /// The errno; 0: the operation hangs until the settings change or its process is killed.
    pub errno: i32,
}

impl Default for Fault {
    fn default() -> Fault {
        Fault {
            kinds: Vec::new(),
            path: "*".into(),
            share: 1.0,
            errno: 0,
        }
    }
}

impl Fault {
    /// Whether the fault concerns an operation of this kind on this path.
    pub fn concerns(&self, kind: Kind, path: &[u8]) -> bool {
        let by_kind = self.kinds.is_empty() || self.kinds.contains(&kind);
        by_kind && matches(self.path.as_bytes(), path)
    }
}

/// All settings. One that isn't given is off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum rate of all reads and writes together. Bytes per second; 0: unlimited.
    pub rate: u64,
    /// Additional time that each operation takes. Milliseconds.
    pub latency_ms: f64,
    /// Maximum of the time that each operation takes in addition to `latency_ms`, by a simulated
    /// load of other users, which changes every 100 ms. Milliseconds.
    pub contention_ms: f64,
    /// Determines the operations that fail, and the simulated load.
    pub seed: u64,
    /// Whether all operations that need room fail with ENOSPC.
    pub full: bool,
    /// Whether all changes fail with EROFS.
    pub read_only: bool,
    pub faults: Vec<Fault>,
}

impl Settings {
    /// Reads settings from JSON.
    ///
    /// # Errors
    /// A sentence that names the setting that is unknown or out of its range.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let settings: Settings = serde_json::from_str(text).map_err(|e| e.to_string())?;
        settings.check()?;
        Ok(settings)
    }

    /// # Errors
    /// A sentence that names the setting that is out of its range.
    pub fn check(&self) -> Result<(), String> {
        let longest = 600_000.0;
        for pause in [self.latency_ms, self.contention_ms] {
            if !(0.0..=longest).contains(&pause) {
                return Err(format!("a delay of {pause} ms: 0 to {longest} ms"));
            }
        }
        for fault in &self.faults {
            if !(0..4096).contains(&fault.errno) || !(0.0..=1.0).contains(&fault.share) {
                return Err("a fault's errno is 0 to 4095, and its share 0 to 1".into());
            }
        }
        Ok(())
    }
}

/// Whether a path matches a pattern in which `*` stands for any characters.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((b'*', rest)) => (0..=path.len()).any(|n| matches(rest, &path[n..])),
        Some((first, rest)) => path.first() == Some(first) && matches(rest, &path[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, path, wanted) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a/*", "a/b/c", true),
            ("*.bin", "a/b.bin", true),
            ("*.bin", "a/b.bin2", false),
            ("a", "ab", false),
            ("", "a", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), path.as_bytes()),
                wanted,
                "{pattern} {path}"
            );
        }
    }

    #[test]
    fn settings_are_read_from_json_and_unknown_ones_refused() {
        let text = r#"{"rate": 5, "faults": [{"kinds": ["read"], "share": 0.5, "errno": 5}]}"#;
        let read: Settings = Settings::parse(text).unwrap();
        assert_eq!((read.rate, read.latency_ms), (5, 0.0));
        let fault = &read.faults[0];
        assert!(fault.concerns(Kind::Read, b"a") && !fault.concerns(Kind::Write, b"a"));
        for wrong in [
            r#"{"rates": 5}"#,
            r#"{"latency_ms": -1}"#,
            r#"{"faults": [{"errno": 9999}]}"#,
        ] {
            assert!(Settings::parse(wrong).is_err(), "{wrong}");
        }
    }
}
