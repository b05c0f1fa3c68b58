//! Options of origins: the slow store behind a pool.

use clap::{Args, Subcommand};
use forebay_backing::Address;
use forebay_campaign::area::Area;
use forebay_client::origin::{OriginConfig, OriginMode, OriginRule, Quota};

use crate::fail::Fail;
use crate::output::print_notice;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum of --origin-lag and of --origin-timeout. Seconds.
const MAX_LAG_SECONDS: f64 = 86_400.0;
/// Minimum of --origin-timeout: progress is reported once a second. Seconds.
const SHORTEST_TIMEOUT: f64 = 2.0;

/// Parses a time that may be shorter than a second: `500ms`, `0.2s`, `10m`, `2`. Returns seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 0.001),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(n) if n.is_finite() && n >= 0.0 => Ok(n * unit),
        _ => forebay_media::parse_time(text)
            .map(|seconds| seconds as f64)
            .map_err(|_| format!("'{text}' is no time: write 500ms, 2s, 10m or 1h")),
    }
}

#[derive(Debug, Args)]
pub struct Origin {
    /// Show the files of DIR, a directory of a slower file system, in the pool: under DIR's own
    /// path, or below the pool's directory AT. Changes are written back to DIR. DIR may be a
    /// bucket, s3://BUCKET/PREFIX (docs/howto/origins.md)
    #[arg(long, value_name = "DIR[=AT]")]
    pub origin: Option<String>,
    /// Mode of the paths that match PATTERN, which is relative to the origin: off, read-only,
    /// write-back, write-through or scratch. Repeatable; the last match applies. PATTERN without a
    /// mode: write-back, and paths without a match aren't in the pool
    #[arg(long = "cache", value_name = "PATTERN[:MODE]", requires = "origin")]
    pub cache: Vec<String>,
    /// The mode of the origin's other paths [default: write-back; off if a --cache has no mode]
    #[arg(long, value_name = "MODE", requires = "origin")]
    pub origin_mode: Option<OriginMode>,
    /// How long a file must be unchanged before its changes are written back: 2s, 500ms, 10m
    #[arg(
        long,
        value_name = "TIME",
        value_parser = seconds,
        default_value = "2s",
        requires = "origin"
    )]
    pub origin_lag: f64,
    /// How long a request to the origin may make no progress before it fails with ETIMEDOUT: from 2s
    #[arg(
        long,
        value_name = "TIME",
        value_parser = seconds,
        default_value = "60s",
        requires = "origin"
    )]
    pub origin_timeout: f64,
    /// Limit on bytes per second from and to the origin, for all nodes together: 200M
    #[arg(long, value_name = "SIZE", value_parser = forebay_media::parse_size, requires = "origin")]
    pub origin_bandwidth: Option<u64>,
    /// Size from which a file that a program opens for reading only isn't fetched whole, but range
    /// by range as it is read
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = forebay_media::parse_size,
        default_value = "64M",
        requires = "origin"
    )]
    pub origin_ranges: u64,
    /// Maximum number of bytes that the files of the origin and the pool may have together: more
    /// fails with EDQUOT
    #[arg(long, value_name = "SIZE", value_parser = forebay_media::parse_size, requires = "origin")]
    pub quota_bytes: Option<u64>,
    /// Maximum number of files that the origin and the pool may have together, directories and
    /// links included
    #[arg(long, value_name = "N", requires = "origin")]
    pub quota_files: Option<u64>,
    /// The quota of the campaign to which the pool belongs.
    #[arg(skip)]
    pub quota: Option<Quota>,
}

#[derive(Debug, Args)]
pub struct OriginCommand {
    #[command(subcommand)]
    pub what: OriginWhat,
}

#[derive(Debug, Subcommand)]
pub enum OriginWhat {
    /// Show where files lie, which were moved, and which couldn't be
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
    /// Fetch everything below these paths of the pool, and don't evict it
    #[command(after_help = "Example:\n  forebay origin pin /lustre/project/case/mesh")]
    Pin { paths: Vec<OsString> },
    /// Let files below these paths of the pool be evicted again
    #[command(after_help = "Example:\n  forebay origin unpin /lustre/project/case/mesh")]
    Unpin { paths: Vec<OsString> },
    /// Write nothing back in the background, until `resume`
    #[command(after_help = "Example:\n  forebay origin hold")]
    Hold,
    /// Go on with writing back
    #[command(after_help = "Example:\n  forebay origin resume")]
    Resume,
    /// Remove from the pool the bytes of files that the origin has, too
    #[command(after_help = "Example:\n  forebay origin evict /lustre/project/case/old")]
    Evict {
        /// Only below this path of the pool
        path: Option<OsString>,
    },
    /// Fetch the bytes of files before they are used
    #[command(after_help = "Example:\n  forebay origin prefetch /lustre/project/case/mesh")]
    Prefetch {
        /// Paths of the pool: files, or directories with all below them
        #[arg(required = true)]
        paths: Vec<OsString>,
    },
}

impl Origin {
    /// Returns the origin that the options name, if any, and the mount prefix: `plain` without an
    /// origin. `mount` is the prefix that the user has chosen.
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
        let (path, at) = match Address::parse(given.as_bytes()) {
            Some(_) => {
                // A key may contain `=`, too, so split at the last `=/`.
                let (bucket, at) = match given.rsplit_once("=/") {
                    Some((bucket, _)) => (bucket, &given[bucket.len() + 1..]),
                    None => (&given[..], "/"),
                };
                if let Some(Err(why)) = Address::parse(bucket.as_bytes()) {
                    return Err(bad(why.to_string()));
                }
                (bucket.trim_end_matches('/').to_owned(), at)
            }
            None if given.contains("://") => {
                return Err(bad(
                    "give a directory, or a bucket as s3://BUCKET/PREFIX".into()
                ));
            }
            None => {
                let (dir, at) = given.split_once('=').unwrap_or((given, "/"));
                (directory(dir).map_err(bad)?, at)
            }
        };
        let is_bucket = path.starts_with("s3://");
        let names = at.split('/').skip(1);
        if !at.starts_with('/') || at != "/" && names.clone().any(|n| matches!(n, "" | "." | ".."))
        {
            return Err(bad("AT is a path inside the pool, such as /data".into()));
        }
        let mount = match (mount, at) {
            (Some(mount), _) => mount.to_owned(),
            (None, "/") if !is_bucket => path.clone(),
            (None, _) => "/fb".to_owned(),
        };
        if !(0.0..=MAX_LAG_SECONDS).contains(&self.origin_lag) {
            return Err(Fail::usage("--origin-lag: 0s to 1d"));
        }
        if !(SHORTEST_TIMEOUT..=MAX_LAG_SECONDS).contains(&self.origin_timeout) {
            return Err(Fail::usage("--origin-timeout: 2s to 1d"));
        }
        let config = OriginConfig {
            inode: std::fs::metadata(&path).map_or(0, |found| found.ino()),
            path,
            at: at.to_owned(),
            mode: self.other_mode(),
            rules: self.rules(at)?,
            lag_ms: (self.origin_lag * 1000.0) as u64,
            timeout_ms: (self.origin_timeout * 1000.0) as u64,
            bandwidth: self.origin_bandwidth,
            ranges: self.origin_ranges,
            quota: None,
        };
        if is_bucket && config.may_be(OriginMode::Off) {
            let why = "programs can't use objects of a bucket past the pool: no path may have the \
                       mode off, so give each --cache a mode, or --origin-mode";
            return Err(bad(why.into()));
        }
        let quota = self.quota_of(&config.path)?;
        Ok((Some(OriginConfig { quota, ..config }), mount))
    }

    /// Returns the quota and the origin's present usage; None if the options set no quota.
    fn quota_of(&self, path: &str) -> Result<Option<Quota>, Fail> {
        if self.quota.is_some() || (self.quota_bytes, self.quota_files) == (None, None) {
            return Ok(self.quota);
        }
        let counted = Area::open(path).and_then(|area| area.measure());
        let used = counted.map_err(Fail::failed)?;
        Ok(Some(Quota {
            bytes: self.quota_bytes,
            files: self.quota_files,
            used_bytes: used.bytes,
            used_files: used.files,
        }))
    }

    /// Returns the mode of paths that no --cache pattern matches.
    fn other_mode(&self) -> OriginMode {
        let only_these = self.cache.iter().any(|given| !given.contains(':'));
        self.origin_mode.unwrap_or(if only_these {
            OriginMode::Off
        } else {
            OriginMode::WriteBack
        })
    }

    /// Checks that the origin can be used from this host, if it is a bucket. Prints a notice if the
    /// bucket is empty.
    ///
    /// # Errors
    /// Why the bucket can't be used, and what to do.
    pub fn check_bucket(config: Option<&OriginConfig>) -> Result<(), Fail> {
        match config.filter(|config| config.is_bucket()) {
            None => Ok(()),
            Some(config) => match forebay_origin::check(config) {
                Ok(true) => Ok(()),
                Ok(false) => {
                    print_notice(format!("there is nothing below {} yet", config.path));
                    Ok(())
                }
                Err(why) => Err(Fail::failed(format!("--origin {}: {why}", config.path))),
            },
        }
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

/// Returns the absolute path of a directory that is to be an origin.
fn directory(given: &str) -> Result<String, String> {
    let path = std::fs::canonicalize(Path::new(given)).map_err(|e| e.to_string())?;
    if !path.is_dir() {
        return Err("it is not a directory".into());
    }
    match path.to_str() {
        Some(path) if path != "/" => Ok(path.to_owned()),
        _ => Err("its path must be text, and not the root directory".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, wanted) in [
            ("500ms", 0.5),
            ("0.2", 0.2),
            ("0.2s", 0.2),
            ("0", 0.0),
            ("60s", 60.0),
            ("10m", 600.0),
            ("1h", 3600.0),
        ] {
            let found = seconds(text).unwrap();
            assert!((found - wanted).abs() < 1e-9, "{text}: {found}");
        }
        for bad in ["", "s", "ms", "-1s", "inf", "NaN", "2 s", "2x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
