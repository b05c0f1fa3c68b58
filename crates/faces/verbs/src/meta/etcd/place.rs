//! Parses the location of metadata in etcd:
//! `etcd://[USER@]HOST:PORT[,HOST:PORT...][/PREFIX][?cache=DIR|off][&age=BOUND][&password=FILE]`.
//!
//! Other users can see a location, in command lines and messages. So a password isn't part of it,
//! but is stored in a file that only its owner can read, or in the environment.

use crate::{Error, Result};
use forebay_etcd::secret::{Login, password_in};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default port.
const PORT: &str = "2379";
/// The default prefix of all keys.
const PREFIX: &str = "forebay";
/// The environment variable that has the password.
const PASSWORD: &str = "FOREBAY_ETCD_PASSWORD";

/// A location of metadata in etcd.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `HOST:PORT` of each endpoint, in the given order.
    pub endpoints: Vec<String>,
    /// The prefix of all keys, with '/' at its beginning and its end.
    pub prefix: String,
    /// The user to log in as.
    pub user: Option<Login>,
    /// The directory of the local copies; None: no copies.
    pub cache: Option<PathBuf>,
    /// Maximum age of read data; zero: always current.
    pub age: Duration,
}

/// Returns the default directory of local copies: beside $FOREBAY_HOME, which by default is in
/// memory, so a restart of the node removes the copies.
fn default_cache() -> PathBuf {
    let home = forebay_client::home();
    // Without a slash at its end, so that the suffix extends the last component.
    let mut beside = home.components().as_path().as_os_str().to_owned();
    beside.push("-cache");
    beside.into()
}

impl Place {
    /// Parses the location after `etcd:`.
    pub fn parse(text: &str) -> Result<Place> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "the metadata store 'etcd:{text}' {why}; it is written \
                 etcd://[USER@]HOST:PORT[,HOST:PORT...][/PREFIX][?cache=off][&age=1s][&password=FILE]"
            ))
        };
        let rest = text.strip_prefix("//").ok_or_else(|| wrong("has no //"))?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match hosts.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, hosts),
        };
        match user {
            Some("") => return Err(wrong("has no user before the @")),
            // The message doesn't repeat the text, as it may contain a password.
            Some(user) if user.contains(':') => {
                return Err(Error::invalid(format!(
                    "the place of the metadata store, etcd://..., has a password in it, where others see it: \
                     put it into a file (?password=FILE), or into ${PASSWORD}"
                )));
            }
            _ => {}
        }
        let endpoints: Vec<String> = hosts
            .split(',')
            .map(|host| endpoint(host).ok_or_else(|| wrong("names an endpoint that can't be")))
            .collect::<Result<_>>()?;
        let prefix = match prefix.trim_matches('/') {
            "" => PREFIX,
            prefix => prefix,
        };
        let mut place = Place {
            endpoints,
            prefix: format!("/{prefix}/"),
            user: None,
            cache: Some(default_cache()),
            age: Duration::ZERO,
        };
        let mut file = None;
        for option in options.split('&').filter(|o| !o.is_empty()) {
            match option.split_once('=') {
                Some(("cache", "off")) => place.cache = None,
                Some(("cache", dir)) if dir.starts_with('/') => place.cache = Some(dir.into()),
                Some(("cache", _)) => {
                    return Err(wrong(
                        "has a cache that is neither `off` nor a directory's whole path",
                    ));
                }
                Some(("age", age)) => {
                    place.age = bound(age)
                        .ok_or_else(|| wrong("has an age that isn't like 500ms or 2s"))?;
                }
                Some(("password", path)) if path.starts_with('/') => file = Some(Path::new(path)),
                Some(("password", _)) => {
                    return Err(Error::invalid(
                        "the place of the metadata store, etcd://..., has a ?password= that isn't the whole path of a file with the password",
                    ));
                }
                _ => return Err(wrong(&format!("has an unknown option '{option}'"))),
            }
        }
        place.user = match (user, file) {
            (None, None) => None,
            (None, Some(_)) => return Err(wrong("has a password, but no user: USER@HOST:PORT")),
            (Some(user), file) => {
                let (password, from) = match file {
                    Some(file) => (password_in(file)?, file.display().to_string()),
                    None => match std::env::var(PASSWORD) {
                        Ok(password) => (password, format!("${PASSWORD}")),
                        Err(_) => {
                            return Err(wrong(&format!(
                                "names a user, but no password: put it into a file that only you can read, and name that (?password=FILE), \
                                 or set ${PASSWORD}"
                            )));
                        }
                    },
                };
                let user = user.to_owned();
                Some(Login {
                    surplus: format!("'{user}@'"),
                    user,
                    password,
                    from,
                })
            }
        };
        Ok(place)
    }
}

fn endpoint(host: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if host.is_empty() || !host.chars().all(good) {
        return None;
    }
    // An IPv6 address is in brackets, and its colons don't separate a port.
    let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    match behind.rsplit_once(':') {
        Some((_, port)) => port.parse::<u16>().ok().map(|_| host.into()),
        None => Some(format!("{host}:{PORT}")),
    }
}

fn bound(text: &str) -> Option<Duration> {
    let number = |text: &str| text.parse::<u32>().ok().map(u64::from);
    match text.strip_suffix("ms") {
        Some(ms) => number(ms).map(Duration::from_millis),
        None => number(text.strip_suffix('s')?).map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = Place::parse("//a:1,b,[::1]:3/x/y?cache=/tmp/c&age=250ms").unwrap();
        assert_eq!(place.endpoints, ["a:1", "b:2379", "[::1]:3"]);
        assert_eq!(place.prefix, "/x/y/");
        assert_eq!(place.cache, Some("/tmp/c".into()));
        assert_eq!(place.age, Duration::from_millis(250));
        let plain = Place::parse("//h").unwrap();
        assert_eq!((&*plain.prefix, plain.age), ("/forebay/", Duration::ZERO));
        assert!(plain.cache.is_some());
        assert_eq!(Place::parse("//h/?cache=off").unwrap().cache, None);
        for (wrong, word) in [
            ("", "no //"),
            ("//", "endpoint"),
            ("//h:x", "endpoint"),
            ("//h,", "endpoint"),
            ("//h h", "endpoint"),
            ("//me:secret@h", "password"),
            ("//@h", "user"),
            ("//h?password=/x", "no user"),
            ("//me@h?password=secret", "whole path"),
            ("//me@h?password=/nowhere/at/all", "No such file"),
            ("//me@h?password=/dev/null", "regular"),
            ("//h?cache=here", "whole path"),
            ("//h?age=2", "age"),
            ("//h?colour=red", "colour"),
        ] {
            let error = Place::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{wrong}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
