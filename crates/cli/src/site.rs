//! Settings of a site, and of a user, for all pools: the site's are in `/etc/forebay/forebay.toml`.
//!
//! A site's file has defaults for options of `up` and `run`, and limits. A user's file,
//! `~/.config/forebay/forebay.toml`, has only defaults, which override the site's. Options on the
//! command line override both. `$FOREBAY_CONFIG` names a file to use instead of the site's.
//!
//! A file with an unknown key or an invalid value is refused, with its line: a misspelled limit
//! would limit nothing. Limits keep users from mistakes. Limits are no boundary against users who
//! want to exceed them, since daemons run with the user's rights and no others.
//! docs/reference/configuration.md lists all keys.

use crate::fail::Fail;
use crate::files::user_name;
use crate::lifetime::Span;
use crate::pool_args::{Media, Nodes};
use forebay_backing::Address;
use forebay_media::{MediumKind, MediumSpec, format_size, parse_size};
use forebay_pool::launch::Listen;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use rustix::fs::Access;
use rustix::io::Errno;
use serde::Deserialize;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use toml::Spanned;

const SITE: &str = "/etc/forebay/forebay.toml";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    limits: Limits,
}

/// Values for options that the command line doesn't give.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    media: Option<Vec<Spanned<String>>>,
    mount: Option<String>,
    reserve: Option<Spanned<String>>,
    ttl: Option<Spanned<String>>,
    idle: Option<Spanned<String>>,
    listen: Option<Spanned<String>>,
    encrypt: Option<bool>,
}

/// Limits on the pools of a site.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// Maximum sum of the memory media of each node; `files`: of its `files` media.
    memory: Option<Spanned<String>>,
    files: Option<Spanned<String>>,
    nodes: Option<u32>,
    ttl: Option<Spanned<String>>,
    /// Directories in which the directories of `files` media may be.
    directories: Option<Vec<PathBuf>>,
    /// Allowed origins: directories, a bucket `s3://BUCKET`, or `s3://` for all buckets.
    origins: Option<Vec<String>>,
    /// Networks on which daemons may listen.
    networks: Option<Vec<Spanned<String>>>,
}

/// A settings file that was read: the content and the path.
#[derive(Debug)]
struct Read {
    path: PathBuf,
    text: String,
    file: File,
}

/// Completes the options of a new pool, and checks them against the site's limits.
///
/// # Errors
/// If a file can't be read or has an invalid value (names its line), or a limit is exceeded.
pub fn complete(media: &mut Media, nodes: &mut Nodes) -> Result<(), Fail> {
    let (user, site) = (read_user()?, read_site()?);
    for read in user.iter().chain(&site) {
        read.fill(media, nodes)?;
    }
    match site {
        Some(site) => site.check(media, nodes),
        None => Ok(()),
    }
}

/// Returns the paths of the settings files that exist, or the error of each, for `forebay doctor`.
pub fn files() -> Vec<Result<PathBuf, String>> {
    let all = [read_user(), read_site()];
    let all = all.map(|file| match file {
        Ok(read) => Ok(read.map(|r| r.path)),
        Err(fail) => Err(fail.message),
    });
    all.into_iter().filter_map(Result::transpose).collect()
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
}

fn site_file() -> PathBuf {
    variable("FOREBAY_CONFIG").unwrap_or_else(|| SITE.into())
}

/// Reads the site's file; returns None if it doesn't exist.
fn read_site() -> Result<Option<Read>, Fail> {
    match variable("FOREBAY_CONFIG") {
        Some(named) => read(&named, Links::Named),
        None => read(Path::new(SITE), Links::Follow),
    }
}

/// Reads a settings file; returns None if it doesn't exist.
fn read(path: &Path, links: Links) -> Result<Option<Read>, Fail> {
    let text = match untrusted::read_text(path, links, MAX_SETTINGS) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|e| Fail::failed(format!("{}: {e}", path.display())))?,
    };
    let read = Read::parse(path, text)?;
    // Parses all values now, so that a mistake shows at once, whichever values are needed.
    read.defaults()?;
    read.bounds()?;
    Ok(Some(read))
}

/// Reads the user's file; returns None if it doesn't exist.
fn read_user() -> Result<Option<Read>, Fail> {
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    let Some(config) = config else {
        return Ok(None);
    };
    let path = config.join("forebay/forebay.toml");
    // $HOME may be another user's, as after `setpriv`: then the file isn't this user's.
    let is_denied = rustix::fs::access(&path, Access::READ_OK) == Err(Errno::ACCESS);
    let user = if is_denied {
        None
    } else {
        read(&path, Links::Follow)?
    };
    match &user {
        Some(user) if !user.file.limits.is_empty() => Err(Fail::usage(format!(
            "{}: [limits] belong into the site's file, {}",
            user.path.display(),
            site_file().display()
        ))),
        _ => Ok(user),
    }
}

/// The values of [`Defaults`], parsed.
struct Values {
    media: Option<Vec<MediumSpec>>,
    reserve: Option<u64>,
    ttl: Option<Span>,
    idle: Option<Span>,
    listen: Option<Listen>,
}

/// The values of [`Limits`], parsed. Bytes and seconds.
struct Bounds {
    memory: Option<u64>,
    files: Option<u64>,
    ttl: Option<u64>,
    networks: Option<Vec<Listen>>,
}

impl Limits {
    fn is_empty(&self) -> bool {
        let sizes = self.memory.is_none() && self.files.is_none() && self.nodes.is_none();
        let places = self.directories.is_none() && self.origins.is_none();
        sizes && places && self.ttl.is_none() && self.networks.is_none()
    }
}

impl Read {
    fn parse(path: &Path, text: String) -> Result<Read, Fail> {
        let failed = |e| Fail::usage(format!("{}: {e}", path.display()));
        Ok(Read {
            path: path.to_owned(),
            file: toml::from_str(&text).map_err(failed)?,
            text,
        })
    }

    /// Parses a value with `parse`. A failure names the file and the line.
    fn value<T, E: Display>(
        &self,
        value: Option<&Spanned<String>>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Fail> {
        let Some(value) = value else {
            return Ok(None);
        };
        let failed = |why: E| {
            let line = self.text[..value.span().start].lines().count().max(1);
            let path = self.path.display();
            Fail::usage(format!("{path}, line {line}: {why}"))
        };
        parse(value.get_ref()).map(Some).map_err(failed)
    }

    fn list<T, E: Display>(
        &self,
        values: Option<&Vec<Spanned<String>>>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<Vec<T>>, Fail> {
        let Some(values) = values else {
            return Ok(None);
        };
        let all: Result<Vec<Option<T>>, Fail> =
            values.iter().map(|v| self.value(Some(v), &parse)).collect();
        Ok(Some(all?.into_iter().flatten().collect()))
    }

    fn defaults(&self) -> Result<Values, Fail> {
        let d = &self.file.defaults;
        let user = || user_name(rustix::process::getuid().as_raw());
        let medium = |text: &str| text.replace("{user}", &user()).parse();
        Ok(Values {
            media: self.list(d.media.as_ref(), medium)?,
            reserve: self.value(d.reserve.as_ref(), parse_size)?,
            ttl: self.value(d.ttl.as_ref(), str::parse)?,
            idle: self.value(d.idle.as_ref(), str::parse)?,
            listen: self.value(d.listen.as_ref(), str::parse)?,
        })
    }

    fn bounds(&self) -> Result<Bounds, Fail> {
        let l = &self.file.limits;
        if l.memory.is_some() && self.file.defaults.media.is_none() {
            let path = self.path.display();
            return Err(Fail::usage(format!(
                "{path}: limits.memory needs defaults.media: a pool takes a quarter of the memory otherwise"
            )));
        }
        Ok(Bounds {
            memory: self.value(l.memory.as_ref(), parse_size)?,
            files: self.value(l.files.as_ref(), parse_size)?,
            ttl: self.value(l.ttl.as_ref(), forebay_media::parse_time)?,
            networks: self.list(l.networks.as_ref(), str::parse)?,
        })
    }

    /// Sets those options that aren't set yet to the file's defaults.
    fn fill(&self, media: &mut Media, nodes: &mut Nodes) -> Result<(), Fail> {
        let values = self.defaults()?;
        if media.media.is_empty() {
            media.media = values.media.unwrap_or_default();
        }
        let mount = &self.file.defaults.mount;
        // A pool with an origin gets the origin's path, not the default one.
        if media.mount.is_none() && media.origin.origin.is_none() {
            media.mount.clone_from(mount);
        }
        media.reserve = media.reserve.or(values.reserve);
        media.ttl = media.ttl.or(values.ttl);
        media.idle = media.idle.or(values.idle);
        // A pool of several nodes on this host listens only on loopback.
        if nodes.listen.is_none() && nodes.nodes.is_none() {
            nodes.listen = values.listen;
        }
        nodes.encrypt |= self.file.defaults.encrypt.unwrap_or(false);
        Ok(())
    }

    /// Fails if the options exceed one of the limits.
    fn check(&self, media: &Media, nodes: &Nodes) -> Result<(), Fail> {
        let (limits, bounds) = (&self.file.limits, self.bounds()?);
        let path = self.path.display();
        let refused = |what: String| Err(Fail::usage(format!("{what} ({path})")));
        let sum = |is_memory: bool| {
            let of_kind = |m: &&MediumSpec| (m.kind == MediumKind::Memory) == is_memory;
            media.media.iter().filter(of_kind).map(|m| m.capacity).sum()
        };
        for (name, limit, is_memory) in [
            ("memory", bounds.memory, true),
            ("files", bounds.files, false),
        ] {
            let wanted: u64 = sum(is_memory);
            if let Some(limit) = limit.filter(|limit| wanted > *limit) {
                let (wanted, limit) = (format_size(wanted), format_size(limit));
                return refused(format!(
                    "{name} media of {wanted} on each node; this site allows {limit}"
                ));
            }
        }
        if let Some(allowed) = &limits.directories {
            for medium in &media.media {
                if let MediumKind::Files(dir) = &medium.kind
                    && !allowed.iter().any(|above| is_below(dir, above))
                {
                    let dir = dir.display();
                    return refused(format!(
                        "this site allows no files media in {dir}, but in {}",
                        listed(allowed.iter().map(|d| d.display()))
                    ));
                }
            }
        }
        if let (Some(allowed), Some(origin)) = (&limits.origins, &media.origin.origin)
            && !allowed.iter().any(|above| is_origin_below(origin, above))
        {
            return refused(format!(
                "this site doesn't allow {origin} as an origin, but what is below {}",
                listed(allowed)
            ));
        }
        let count = nodes.nodes.unwrap_or(0).max(nodes.hosts.len() as u32);
        if let Some(limit) = limits.nodes.filter(|limit| count > *limit) {
            return refused(format!("{count} nodes; this site allows {limit}"));
        }
        if let Some(limit) = bounds.ttl {
            match media.ttl {
                Some(Span::Of(seconds)) if seconds <= limit => {}
                // Without --ttl, the pool ends with the batch job.
                None if std::env::var_os("SLURM_JOB_ID").is_some() => {}
                _ => {
                    let hours = limit as f64 / 3600.0;
                    return refused(format!(
                        "a pool lives for {hours} h at most on this site: say how long with --ttl"
                    ));
                }
            }
        }
        if let (Some(allowed), Some(Listen::Network(address, length))) =
            (&bounds.networks, &nodes.listen)
            && !allowed.iter().any(|n| contains(n, *address, *length))
        {
            return refused(format!(
                "daemons may not listen on {address}/{length} on this site"
            ));
        }
        Ok(())
    }
}

fn listed(all: impl IntoIterator<Item = impl ToString>) -> String {
    let all: Vec<String> = all.into_iter().map(|d| d.to_string()).collect();
    all.join(", ")
}

/// Whether `path` is the directory `above` or below it, compared by components. Resolves symbolic
/// links in the existing part of the path.
fn is_below(path: &Path, above: &Path) -> bool {
    let resolved = path.ancestors().find_map(|there| {
        let rest = path.strip_prefix(there).ok()?;
        Some(there.canonicalize().ok()?.join(rest))
    });
    let path = resolved.unwrap_or_else(|| path.to_owned());
    let above = above.canonicalize().unwrap_or_else(|_| above.to_owned());
    !path.components().any(|c| c == Component::ParentDir) && path.starts_with(above)
}

fn is_origin_below(origin: &str, above: &str) -> bool {
    let (is_bucket, above_is) = (|t: &str| Address::parse(t.as_bytes()).is_some(), above);
    if is_bucket(origin) {
        let above = above_is.trim_end_matches('/');
        return match origin.strip_prefix(above) {
            Some(rest) => above == "s3:" || rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
    }
    // Of DIR=AT, only DIR is compared: AT is a path in the pool.
    let dir = origin.split('=').next().unwrap_or(origin);
    !above_is.starts_with("s3:") && is_below(Path::new(dir), Path::new(above_is))
}

fn contains(network: &Listen, address: IpAddr, length: u8) -> bool {
    match network {
        Listen::Network(_, own) => *own <= length && !network.pick(&[address]).is_empty(),
        Listen::All | Listen::Loopback => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Read, Fail> {
        let read = Read::parse(Path::new("/f"), text.to_owned())?;
        read.defaults()?;
        read.bounds()?;
        Ok(read)
    }

    fn error(text: &str) -> String {
        parse(text).expect_err(text).message
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        assert!(error("[limits]\nmemroy = '1G'\n").contains("memroy"));
        assert!(error("[defaults]\n\nttl = '3x'\n").starts_with("/f, line 3: "));
        assert!(
            error("[defaults]\nmedia = ['memory:1G',\n 'memory']\n").starts_with("/f, line 3: ")
        );
        assert!(error("[limits]\nmemory = '1G'\n").contains("defaults.media"));
        assert!(error("[limits]\nnodes = -1\n").contains("nodes"));
        assert!(error("\0").starts_with("/f: "));
    }

    #[test]
    fn a_directory_is_below_another_by_whole_names() {
        assert!(is_below(
            Path::new("/no/where/a/b"),
            Path::new("/no/where/a")
        ));
        assert!(!is_below(
            Path::new("/no/where/ab"),
            Path::new("/no/where/a")
        ));
        assert!(!is_below(
            Path::new("/no/where/a/../../b"),
            Path::new("/no/where/a")
        ));
        assert!(is_origin_below("s3://one/two", "s3://one"));
        assert!(is_origin_below("s3://one/two", "s3://"));
        assert!(!is_origin_below("s3://ones/two", "s3://one"));
        assert!(!is_origin_below("/no/where", "s3://"));
    }

    #[test]
    fn a_network_contains_smaller_ones() {
        let network: Listen = "10.1.0.0/16".parse().unwrap();
        let asks = |text: &str| match text.parse().unwrap() {
            Listen::Network(address, length) => contains(&network, address, length),
            _ => false,
        };
        assert!(asks("10.1.2.0/24") && asks("10.1.0.0/16"));
        assert!(!asks("10.0.0.0/8") && !asks("10.2.0.0/16"));
    }
}
