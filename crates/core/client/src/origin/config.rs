//! A pool's configuration of its origin: its location, and the modes of paths.

use super::modes::{Modes, OriginMode, OriginRule};
use super::{RANGES, TIMEOUT_MS};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Limits on bytes and files of the origin and the pool together, and the origin's usage when the
/// pool starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Maximum number of bytes of regular files; None: no limit.
    pub bytes: Option<u64>,
    /// Maximum number of files, directories and links included; None: no limit.
    pub files: Option<u64>,
    pub used_bytes: u64,
    pub used_files: u64,
}

/// The slow store behind a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginConfig {
    /// An absolute path, outside the pool, or the address of a bucket: `s3://BUCKET/PREFIX`.
    pub path: String,
    /// The inode number of the directory. A host where the number differs has another directory at
    /// this path.
    #[serde(default)]
    pub inode: u64,
    /// The directory of the pool that corresponds to the origin: `/` or `/data`.
    pub at: String,
    /// The mode of paths that no rule matches.
    pub mode: OriginMode,
    /// Modes by path. If several rules match, the last one applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<OriginRule>,
    /// How long a file must be unchanged before its changes are written to the origin.
    /// Milliseconds.
    pub lag_ms: u64,
    /// Maximum time that a request may make no progress; then the request fails with ETIMEDOUT.
    /// Milliseconds; more than 1000, the interval between signs of progress.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Maximum number of bytes per second from and to the origin, for all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Minimum size of files that are fetched by ranges when they are opened for reading only.
    /// Bytes.
    #[serde(default = "ranges")]
    pub ranges: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

fn ranges() -> u64 {
    RANGES
}

fn timeout_ms() -> u64 {
    TIMEOUT_MS
}

impl OriginConfig {
    /// Whether the origin is a bucket.
    pub fn is_bucket(&self) -> bool {
        self.path.starts_with("s3://")
    }

    /// Maximum time that a request may make no progress.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// The mode of a path of the pool.
    pub fn mode_of(&self, path: &[u8]) -> OriginMode {
        let modes = self.modes();
        modes.mode(&modes.at(path))
    }

    /// Returns the mode of a path of the pool that leads, or may lead, to a directory. Instead of
    /// `off`, returns `WriteBack` if such a directory is in the pool: the origin's root, or a
    /// directory in which files may have another mode than `off`.
    pub fn mode_of_dir(&self, path: &[u8]) -> OriginMode {
        match self.mode_of(path) {
            OriginMode::Off => {
                let (modes, is_root) = (self.modes(), self.relative(path) == Some(b""));
                if is_root || modes.is_in_pool(&modes.at(path)) {
                    OriginMode::WriteBack
                } else {
                    OriginMode::Off
                }
            }
            mode => mode,
        }
    }

    /// The modes of paths, for callers that look up many paths.
    pub fn modes(&self) -> Modes {
        Modes::new(&self.rules, self.mode)
    }

    /// Why this host can't see the origin at its path; None if it can.
    pub fn unseen(&self) -> Option<String> {
        match std::fs::read_dir(&self.path).and_then(|_| std::fs::metadata(&self.path)) {
            Err(e) => Some(e.to_string()),
            Ok(found) if self.inode != 0 && found.ino() != self.inode => {
                Some("another directory is there than on the host that starts the pool".into())
            }
            Ok(_) => None,
        }
    }

    /// Whether any path may have this mode.
    pub fn may_be(&self, mode: OriginMode) -> bool {
        self.mode == mode || self.rules.iter().any(|rule| rule.mode == mode)
    }

    /// Converts a path relative to the origin to the path in the pool.
    pub fn pool_path(&self, relative: &[u8]) -> Vec<u8> {
        let at = self.at.trim_end_matches('/').as_bytes();
        match relative {
            b"" if at.is_empty() => b"/".to_vec(),
            b"" => at.to_vec(),
            _ => [at, b"/", relative].concat(),
        }
    }

    /// Converts a path of the pool to the path relative to [`OriginConfig::path`]. None if the
    /// origin doesn't cover the path.
    pub fn relative<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let at = self.at.trim_end_matches('/').as_bytes();
        match path.strip_prefix(at)? {
            b"" => Some(b""),
            rest => rest.strip_prefix(b"/"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Lead;
    use super::*;

    fn config(at: &str, mode: OriginMode, rules: &[(&str, OriginMode)]) -> OriginConfig {
        let rule = |(path, mode): &(&str, OriginMode)| OriginRule {
            path: (*path).into(),
            mode: *mode,
        };
        OriginConfig {
            path: "/lustre/case".into(),
            inode: 0,
            at: at.into(),
            mode,
            rules: rules.iter().map(rule).collect(),
            lag_ms: 0,
            timeout_ms: TIMEOUT_MS,
            bandwidth: None,
            ranges: RANGES,
            quota: None,
        }
    }

    #[test]
    fn the_last_rule_that_matches_counts() {
        let rules = [
            ("/data/out/**", OriginMode::WriteBack),
            ("/data/out/tmp/**", OriginMode::Scratch),
        ];
        let config = config("/data", OriginMode::ReadOnly, &rules);
        assert_eq!(config.mode_of(b"/data/x"), OriginMode::ReadOnly);
        assert_eq!(config.mode_of(b"/data/out/x"), OriginMode::WriteBack);
        assert_eq!(config.mode_of(b"/data/out/tmp/x"), OriginMode::Scratch);
        assert_eq!(config.relative(b"/data/a/b"), Some(&b"a/b"[..]));
        assert_eq!(config.relative(b"/data"), Some(&b""[..]));
        assert_eq!(config.relative(b"/database"), None);
        assert_eq!(config.relative(b"/other"), None);
    }

    #[test]
    fn paths_that_are_off_lead_to_the_origin() {
        let rules = [
            ("/mesh/**", OriginMode::WriteBack),
            ("/a/b/*.chk", OriginMode::ReadOnly),
            ("/mesh/**/*.tmp", OriginMode::Off),
        ];
        let config = config("/", OriginMode::Off, &rules);
        let modes = config.modes();
        let lead = |dir: &str, name: &str| modes.lead(&modes.at(dir.as_bytes()), name.as_bytes());
        assert_eq!(lead("/", "input"), Lead::Origin);
        assert_eq!(lead("/", "mesh"), Lead::OriginUnlessDirectory);
        assert_eq!(lead("/mesh", "x"), Lead::Pool);
        assert_eq!(lead("/mesh/deep", "x"), Lead::Pool);
        // A directory of that name may hold files with another mode.
        assert_eq!(lead("/mesh/deep", "x.tmp"), Lead::OriginUnlessDirectory);
        assert_eq!(lead("/a", "b"), Lead::OriginUnlessDirectory);
        assert_eq!(lead("/a", "c"), Lead::Origin);
        assert_eq!(lead("/a/b", "1.chk"), Lead::Pool);
        assert_eq!(lead("/a/b", "1.log"), Lead::Origin);
        assert_eq!(config.mode_of_dir(b"/a"), OriginMode::WriteBack);
        assert_eq!(config.mode_of_dir(b"/a/c"), OriginMode::Off);
        assert_eq!(config.mode_of_dir(b"/"), OriginMode::WriteBack);
        assert_ne!(modes.at(b"/mesh/x"), modes.at(b"/a/x"));
        let outer =
            |dir: &str, modes: &Modes| modes.may_hold_origin_only(&modes.at(dir.as_bytes()));
        assert!(outer("/", &modes) && outer("/a", &modes) && outer("/a/b", &modes));
        assert!(outer("/mesh", &modes));
        let fewer = OriginConfig {
            rules: config.rules[..2].to_vec(),
            ..config.clone()
        };
        assert!(!outer("/mesh", &fewer.modes()) && !outer("/mesh/x", &fewer.modes()));
        assert!(outer("/", &fewer.modes()) && outer("/a/b", &fewer.modes()));
        let all = OriginConfig {
            rules: Vec::new(),
            ..config.clone()
        };
        assert_eq!(all.mode_of_dir(b"/"), OriginMode::WriteBack);
        assert!(outer("/", &all.modes()));
        // The path leads to another directory than the configured one, or to none.
        let here = |inode| OriginConfig {
            path: "/".into(),
            inode,
            ..config.clone()
        };
        assert_eq!(here(0).unseen(), None);
        assert!(
            here(u64::MAX)
                .unseen()
                .is_some_and(|why| why.contains("another directory"))
        );
        assert!(config.unseen().is_some());
        assert_eq!(modes.at(b"/mesh/x"), modes.at(b"/mesh/y"));
    }
}
