//! Options of origins: the slow store behind a pool.

use clap::{Args, Subcommand};
use forebay_client::origin::{OriginConfig, OriginMode, OriginRule};

use crate::fail::Fail;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longest lag, and longest timeout. Seconds.
const LONGEST_LAG: f64 = 86_400.0;
/// Shortest timeout: signs of progress come once a second. Seconds.
const SHORTEST_TIMEOUT: f64 = 2.0;

#[derive(Debug, Args)]
pub struct Origin {
    /// Show the files of DIR, a directory of a slower file system, and write changes back to it:
    /// under its own path, or below the pool's directory AT
    #[arg(long, value_name = "DIR[=AT]")]
    pub origin: Option<String>,
    /// The mode of the origin's paths that match: off, read-only, write-back, write-through or
    /// scratch; relative to the origin, repeatable; the last one that matches counts. Without a
    /// mode: write-back, and only such paths are in the pool
    #[arg(long = "cache", value_name = "PATTERN[:MODE]", requires = "origin")]
    pub cache: Vec<String>,
    /// The mode of the origin's other paths [default: write-back; off if a --cache has no mode]
    #[arg(long, value_name = "MODE", requires = "origin")]
    pub origin_mode: Option<OriginMode>,
    /// How long a file rests before its changes are written back. Seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 2.0,
        requires = "origin"
    )]
    pub origin_lag: f64,
    /// How long a request to the origin may make no progress before it fails with ETIMEDOUT.
    /// Seconds, from 2
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60.0,
        requires = "origin"
    )]
    pub origin_timeout: f64,
    /// Limit on bytes per second from and to the origin, for all nodes together: 200M
    #[arg(long, value_name = "SIZE", value_parser = forebay_media::parse_size, requires = "origin")]
    pub origin_bandwidth: Option<u64>,
    /// Size from which a file that a program opens for reading only isn't brought in whole, but
    /// range by range as it is read
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = forebay_media::parse_size,
        default_value = "64M",
        requires = "origin"
    )]
    pub origin_ranges: u64,
}

#[derive(Debug, Args)]
pub struct OriginCommand {
    #[command(subcommand)]
    pub what: OriginWhat,
}

#[derive(Debug, Subcommand)]
pub enum OriginWhat {
    /// Show what lies where, what was moved, and what couldn't be
    #[command(after_help = "Example:\n  forebay origin status --json")]
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write all changes back now, and wait for it
    #[command(after_help = "Example:\n  forebay origin sync /lustre/project/case/out")]
    Sync {
        /// Only below this path of the pool
        path: Option<OsString>,
    },
    /// Bring everything below these paths of the pool in, and keep it there
    #[command(after_help = "Example:\n  forebay origin pin /lustre/project/case/mesh")]
    Pin { paths: Vec<OsString> },
    /// Let what is below these paths of the pool be evicted again
    #[command(after_help = "Example:\n  forebay origin unpin /lustre/project/case/mesh")]
    Unpin { paths: Vec<OsString> },
    /// Write nothing back in the background, until `resume`
    #[command(after_help = "Example:\n  forebay origin hold")]
    Hold,
    /// Go on with writing back
    #[command(after_help = "Example:\n  forebay origin resume")]
    Resume,
    /// Take the bytes of files out of the pool that the origin has, too
    #[command(after_help = "Example:\n  forebay origin evict /lustre/project/case/old")]
    Evict {
        /// Only below this path of the pool
        path: Option<OsString>,
    },
    /// Bring in the bytes of files before they are used
    #[command(after_help = "Example:\n  forebay origin prefetch /lustre/project/case/mesh")]
    Prefetch {
        /// Paths of the pool: files, or directories with all below them
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
}

impl Origin {
    /// The origin and the mount prefix that it asks for, if an origin is wanted. `mount` is the
    /// prefix that the user has chosen.
    ///
    /// # Errors
    /// The option that is wrong, and why.
    pub fn wanted(
        &self,
        mount: Option<&str>,
        plain: String,
    ) -> Result<(Option<OriginConfig>, String), Fail> {
        let Some(given) = &self.origin else {
            return Ok((None, plain));
        };
        let bad = |why: String| Fail::usage(format!("--origin {given}: {why}"));
        if given.starts_with("s3://") || given.contains("://") {
            return Err(bad("buckets can't be origins yet; give a directory".into()));
        }
        let (dir, at) = match given.split_once('=') {
            Some((dir, at)) => (dir, Some(at)),
            None => (&given[..], None),
        };
        let path = std::fs::canonicalize(Path::new(dir)).map_err(|e| bad(e.to_string()))?;
        let path = path
            .to_str()
            .filter(|path| *path != "/")
            .ok_or_else(|| bad("its path must be text, and not the root directory".into()))?;
        if !Path::new(path).is_dir() {
            return Err(bad("it is not a directory".into()));
        }
        let at = at.unwrap_or("/");
        let names = at.split('/').skip(1);
        if !at.starts_with('/') || at != "/" && names.clone().any(|n| matches!(n, "" | "." | ".."))
        {
            return Err(bad("AT is a path inside the pool, such as /data".into()));
        }
        let mount = match (mount, at) {
            (Some(mount), _) => mount.to_owned(),
            (None, "/") => path.to_owned(),
            (None, _) => "/fb".to_owned(),
        };
        if !(0.0..=LONGEST_LAG).contains(&self.origin_lag) {
            return Err(Fail::usage("--origin-lag: 0 to 86400 seconds"));
        }
        if !(SHORTEST_TIMEOUT..=LONGEST_LAG).contains(&self.origin_timeout) {
            return Err(Fail::usage("--origin-timeout: 2 to 86400 seconds"));
        }
        Ok((
            Some(OriginConfig {
                path: path.to_owned(),
                inode: std::fs::metadata(path).map_or(0, |found| found.ino()),
                at: at.to_owned(),
                mode: self.other_mode(),
                rules: self.rules(at)?,
                lag_ms: (self.origin_lag * 1000.0) as u64,
                timeout_ms: (self.origin_timeout * 1000.0) as u64,
                bandwidth: self.origin_bandwidth,
                ranges: self.origin_ranges,
            }),
            mount,
        ))
    }

    /// The mode of paths that no pattern matches.
    fn other_mode(&self) -> OriginMode {
        let only_these = self.cache.iter().any(|given| !given.contains(':'));
        self.origin_mode.unwrap_or(match only_these {
            true => OriginMode::Off,
            false => OriginMode::WriteBack,
        })
    }

    fn rules(&self, at: &str) -> Result<Vec<OriginRule>, Fail> {
        let rule = |given: &String| {
            let bad = |why: String| Fail::usage(format!("--cache {given}: {why}"));
            let (pattern, mode) = match given.rsplit_once(':') {
                Some((pattern, mode)) => (pattern, mode.parse().map_err(bad)?),
                None => (&given[..], OriginMode::WriteBack),
            };
            let path = format!(
                "{}/{}",
                at.trim_end_matches('/'),
                pattern.trim_start_matches('/')
            );
            forebay_client::controls::Pattern::parse(&path).map_err(|e| bad(e.to_string()))?;
            Ok(OriginRule { path, mode })
        };
        self.cache.iter().map(rule).collect()
    }
}
