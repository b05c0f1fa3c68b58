//! Records in etcd, for a site: each user has separate keys.
//!
//! ```text
//! PREFIX/OWNER/records/NAME    the record, as in a directory
//! PREFIX/OWNER/locks/NAME      which process holds the campaign; on a lease of that process
//! ```
//!
//! A process holds a lock as long as it renews its lease. A write has two conditions: the lock is
//! the one that this process has taken, and the record is the one that it has read. So a process
//! that was stopped for longer than its lease can't overwrite the next process's changes. If the
//! reply to a request is lost, the process checks the outcome before it repeats the request. While
//! etcd can't be reached, requests are repeated for [`RECONNECT_TIMEOUT`]. Then the command fails,
//! and a later pass continues any move that the record says has begun.

use crate::Result;
use forebay_etcd::api::{self, Answer};
use forebay_etcd::client::Tls;
use forebay_etcd::secret::{Login, key_in, password_in};
use forebay_etcd::{Client, Error, Settings};
use forebay_runtime::threads::lock;
use forebay_runtime::untrusted::{self, Links};
use rustix::io::Errno;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Lifetime of a lease that isn't renewed, and so of the lock of a killed process. Seconds.
const LIFE: u64 = 8;
/// Interval between two renewals of a lease, and maximum time of a renewal at one endpoint.
const SIGN: Duration = Duration::from_secs(2);
/// Pause between two checks of another process's lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time for which requests are repeated while etcd can't be reached.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of records that one request reads.
const PAGE: usize = 200;
/// Maximum size of a file with certificates. Bytes.
const MAX_CERTIFICATE_BYTES: u64 = 1 << 20;
const PORT: &str = "2379";

/// Settings for reaching a site's etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdPlace {
    /// `HOST:PORT` of each endpoint.
    pub endpoints: Vec<String>,
    pub has_tls: bool,
    /// Prefix of all keys. The prefix begins with a slash, and doesn't end in one.
    pub prefix: String,
    /// Files: the authority's certificate, the client's certificate and its key.
    pub authority: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The user name for logging in, and the file with the password.
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
}

impl EtcdPlace {
    /// Parses `http[s]://HOST[:PORT][,HOST[:PORT]...]/PREFIX`.
    ///
    /// # Errors
    /// A message with the reason why the text is invalid.
    pub fn parse(text: &str) -> Result<EtcdPlace> {
        let wrong = |why: &str| {
            format!(
                "the registry 'etcd:{text}' {why}; it is written \
                 etcd:https://HOST:{PORT}[,HOST:{PORT}...]/PREFIX"
            )
        };
        let (has_tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong("has neither https:// nor http://")),
        };
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(wrong("has a user in it, who is named in [etcd]"));
        }
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() || prefix.contains("//") {
            return Err(wrong("has no prefix for its keys"));
        }
        let endpoint = |host: &str| {
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
            let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
            match behind.rsplit_once(':') {
                _ if host.is_empty() || !host.chars().all(is_good) => None,
                Some((_, port)) => port.parse::<u16>().ok().map(|_| host.to_owned()),
                None => Some(format!("{host}:{PORT}")),
            }
        };
        let endpoints: Option<Vec<String>> = hosts.split(',').map(endpoint).collect();
        Ok(EtcdPlace {
            endpoints: endpoints.ok_or_else(|| wrong("names an endpoint that can't be"))?,
            has_tls,
            prefix: format!("/{prefix}"),
            ..EtcdPlace::default()
        })
    }

    /// Whether all endpoints are on this host.
    pub fn is_local(&self) -> bool {
        let local = ["127.0.0.1:", "localhost:", "[::1]:"];
        let is_local = |endpoint: &String| local.iter().any(|begin| endpoint.starts_with(begin));
        self.endpoints.iter().all(is_local)
    }

    fn tls(&self) -> Result<Option<Tls>> {
        if !self.has_tls {
            return Ok(None);
        }
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((
                text_in(certificate)?,
                key_in(key).map_err(|e| e.to_string())?,
            )),
            _ => None,
        };
        let authority = self.authority.as_deref().map(text_in).transpose()?;
        Ok(Some(Tls { authority, own }))
    }

    fn login(&self) -> Result<Option<Login>> {
        let (Some(user), Some(file)) = (&self.user, &self.password_file) else {
            return Ok(None);
        };
        Ok(Some(Login {
            user: user.clone(),
            password: password_in(file).map_err(|e| e.to_string())?,
            from: file.display().to_string(),
            surplus: "user and password_file in [etcd]".into(),
        }))
    }
}

fn text_in(file: &Path) -> Result<String> {
    untrusted::read_text(file, Links::Named, MAX_CERTIFICATE_BYTES)
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// The records of one user.
pub struct Etcd {
    client: Arc<Client>,
    /// Prefix of all keys of the user, without a slash at the end.
    prefix: String,
    name: String,
}

/// The lock of a campaign. A thread of this process renews its lease.
pub struct Lock {
    client: Arc<Client>,
    name: String,
    lock: Vec<u8>,
    record: Vec<u8>,
    /// The revision of etcd at which the lock was taken.
    taken: u64,
    /// The revision of the record's last change. 0: there is no record.
    revision: AtomicU64,
    lease: u64,
    /// Dropping this ends the thread that renews the lease.
    alive: Mutex<Option<Sender<()>>>,
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lock of {} of revision {}", self.name, self.taken)
    }
}

impl Etcd {
    /// Returns the registry of one user in a site's etcd. Sends no request yet.
    ///
    /// # Errors
    /// A file of certificates or passwords can't be read, or others may read it.
    pub fn open(place: &EtcdPlace, owner: &str) -> Result<Etcd> {
        let scheme = if place.has_tls { "https" } else { "http" };
        let prefix = format!("{}/{owner}", place.prefix);
        let name = format!("etcd:{scheme}://{}{prefix}", place.endpoints.join(","));
        let client = Client::new(Settings {
            endpoints: place.endpoints.clone(),
            tls: place.tls()?,
            login: place.login()?,
            in_thread: || (),
            nobody: "name a user, and a file with the password, in [etcd] of the file with the \
                     tiers",
        });
        Ok(Etcd {
            client: Arc::new(client.map_err(|e| format!("{name}: {e}"))?),
            prefix,
            name,
        })
    }

    /// Returns the names of users that have keys. Sends one request per name.
    ///
    /// # Errors
    /// The errors of [`Etcd::open`]; etcd doesn't answer, or refuses.
    pub fn users(place: &EtcdPlace) -> Result<Vec<String>> {
        let all = Etcd::open(place, "")?;
        let (mut from, to) = api::beginning(all.prefix.clone().into_bytes());
        let skip = from.len();
        let mut names = Vec::new();
        loop {
            let request = api::page(&(from, to.clone()), 0, 1, true);
            let page = patiently(|| all.client.ask("/v3/kv/range", &request));
            let page = page.map_err(|why| format!("{}: {why}", all.name))?;
            let Some(first) = page.kvs.first() else {
                return Ok(names);
            };
            let rest = first.key.0.get(skip..).unwrap_or_default();
            let name = rest.split(|&b| b == b'/').next().unwrap_or_default();
            from = if name.len() < rest.len() {
                names.extend(String::from_utf8(name.to_vec()));
                // Skips to the end of this user's keys, which precede those of a longer name.
                api::behind(&first.key.0[..skip + name.len() + 1])
            } else {
                // This isn't a user's key: continues with the key after it.
                [&first.key.0[..], &[0]].concat()
            };
        }
    }

    /// Returns a record's location, for messages.
    pub fn shown(&self, name: &str) -> String {
        format!("{}/records/{name}", self.name)
    }

    fn key(&self, kind: &str, name: &str) -> Vec<u8> {
        format!("{}/{kind}/{name}", self.prefix).into_bytes()
    }

    /// Returns name, location and record of all campaigns.
    ///
    /// # Errors
    /// etcd doesn't answer, or refuses.
    pub fn list(&self) -> Result<Vec<(String, String, Vec<u8>)>> {
        let (mut from, to) = api::beginning(self.key("records", ""));
        let skip = from.len();
        let mut all = Vec::new();
        loop {
            let range = (from.clone(), to.clone());
            let page = patiently(|| {
                let request = api::page(&range, 0, PAGE, false);
                self.client.ask("/v3/kv/range", &request)
            });
            let page = page.map_err(|why| format!("{}: {why}", self.name))?;
            for pair in &page.kvs {
                let name = pair.key.0.get(skip..).unwrap_or_default();
                let name = String::from_utf8_lossy(name).into_owned();
                let at = self.shown(&name);
                all.push((name, at, pair.value.0.clone()));
            }
            match page.kvs.last() {
                Some(last) if page.more => from = [&last.key.0[..], &[0]].concat(),
                _ => return Ok(all),
            }
        }
    }

    /// Returns the record of a campaign, if there is one.
    ///
    /// # Errors
    /// etcd doesn't answer, or refuses.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let get = api::get(&self.key("records", name));
        let found = look(&self.client, vec![get]);
        let found = found.map_err(|why| format!("{}: {why}", self.shown(name)))?;
        Ok(found.one(0).map(|pair| pair.value.0.clone()))
    }

    /// Locks a campaign. Returns the lock and the record, if there is one.
    ///
    /// # Errors
    /// Another process holds the lock for longer than `timeout`; etcd doesn't answer, or refuses.
    pub fn lock(&self, name: &str, timeout: Duration) -> Result<(Lock, Option<Vec<u8>>)> {
        let failed = |why: String| format!("{}: {why}", self.shown(name));
        let (lock, record) = (self.key("locks", name), self.key("records", name));
        let granted = patiently(|| self.client.grant(LIFE));
        let lease = granted.map_err(failed)?;
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let me = format!("process {} on {host}, lease {lease:x}", std::process::id());
        // From here on, dropping `held` revokes the lease.
        let mut held = Lock {
            client: self.client.clone(),
            name: self.shown(name),
            lock,
            record,
            taken: 0,
            revision: AtomicU64::new(0),
            lease,
            alive: Mutex::new(Some(keep_alive(&self.client, lease)?)),
        };
        let until = Instant::now() + timeout;
        loop {
            let free = vec![api::absent(&held.lock)];
            let put = api::put_leased(&held.lock, me.as_bytes(), lease);
            let both = || vec![api::get(&held.lock), api::get(&held.record)];
            let then = [vec![put], both()].concat();
            let request = api::transaction(free, then, both());
            // If the request is sent twice, the second one finds that this process has the lock.
            let asked = patiently(|| self.client.ask("/v3/kv/txn", &request));
            let answer = asked.map_err(failed)?;
            let first = usize::from(answer.succeeded);
            match answer.one(first) {
                Some(pair) if pair.value.0 == me.as_bytes() => {
                    let found = answer.one(first + 1);
                    held.taken = pair.mod_revision.0;
                    let revision = found.map_or(0, |pair| pair.mod_revision.0);
                    held.revision.store(revision, Relaxed);
                    return Ok((held, found.map(|pair| pair.value.0.clone())));
                }
                Some(pair) if Instant::now() >= until => {
                    let who = String::from_utf8_lossy(&pair.value.0).into_owned();
                    return Err(format!(
                        "another process works on the campaign '{name}' ({who}): try again later"
                    ));
                }
                // Another process holds the lock, or has just released it.
                _ => std::thread::sleep(LOCK_POLL_INTERVAL),
            }
        }
    }
}

/// Renews a lease until the result is dropped.
fn keep_alive(client: &Arc<Client>, lease: u64) -> Result<Sender<()>> {
    let (alive, end) = channel();
    let client = client.clone();
    let sign = move || {
        while end.recv_timeout(SIGN) == Err(RecvTimeoutError::Timeout) {
            // After an error, it isn't known whether the lease was renewed. The loop continues: if
            // the lease has expired, etcd refuses writes.
            if matches!(client.renew(lease, SIGN), Ok(false)) {
                break;
            }
        }
    };
    let named = std::thread::Builder::new().name("fb-lease".into());
    named.spawn(sign).map_err(|e| format!("no thread: {e}"))?;
    Ok(alive)
}

/// Repeats a request that had no effect because etcd couldn't be reached.
fn patiently<T>(mut ask: impl FnMut() -> forebay_etcd::Result<T>) -> Result<T> {
    let until = Instant::now() + RECONNECT_TIMEOUT;
    loop {
        match ask() {
            Ok(done) => return Ok(done),
            Err(e) if is_away(&e) && Instant::now() < until => {
                std::thread::sleep(LOCK_POLL_INTERVAL);
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// Whether etcd can't be reached.
fn is_away(error: &Error) -> bool {
    matches!(error.errno(), Errno::HOSTUNREACH | Errno::TIMEDOUT)
}

fn look(client: &Client, parts: Vec<Value>) -> Result<Answer> {
    let request = api::transaction(vec![], parts, vec![]);
    patiently(|| client.ask("/v3/kv/txn", &request))
}

impl Lock {
    /// Writes the record. None: removes it.
    ///
    /// # Errors
    /// The lock was lost: nothing was written. etcd doesn't answer, or refuses: the record may be
    /// written or not.
    pub fn write(&self, text: Option<&[u8]>) -> Result<()> {
        let failed = |why: String| format!("{}: {why}", self.name);
        let until = Instant::now() + RECONNECT_TIMEOUT;
        let was = self.revision.load(Relaxed);
        let change = match text {
            Some(text) => api::put(&self.record, text),
            None => api::delete(&self.record),
        };
        let same = match was {
            0 => api::absent(&self.record),
            n => api::unchanged(&self.record, n),
        };
        let compare = vec![api::unchanged(&self.lock, self.taken), same];
        let both = vec![api::get(&self.lock), api::get(&self.record)];
        let request = api::transaction(compare, vec![change], both);
        // Whether an earlier attempt may have been carried out.
        let mut is_unclear = false;
        loop {
            match self.client.ask_once("/v3/kv/txn", &request) {
                Ok(done) if done.succeeded => {
                    let now = if text.is_some() { done.revision() } else { 0 };
                    self.revision.store(now, Relaxed);
                    return Ok(());
                }
                Ok(found) => {
                    let record = found.one(1);
                    // If this process still has the lock, no other process has written the record.
                    let is_ours = found.one(0).is_some_and(|l| l.mod_revision.0 == self.taken);
                    let is_done = record.map(|pair| &pair.value.0[..]) == text;
                    if is_unclear && is_done && is_ours {
                        let now = record.map_or(0, |pair| pair.mod_revision.0);
                        self.revision.store(now, Relaxed);
                        return Ok(());
                    }
                    return Err(failed(format!(
                        "the lock of the campaign is lost: this process, or etcd, was away for more \
                         than {LIFE} s; nothing is written{}: call this again",
                        if is_unclear && is_done {
                            " by this try, but an earlier one was carried out"
                        } else {
                            ""
                        }
                    )));
                }
                Err(Error::Lost(_)) if Instant::now() < until => is_unclear = true,
                Err(e) if is_away(&e) && Instant::now() < until => {}
                Err(e) => return Err(failed(e.to_string())),
            }
            std::thread::sleep(LOCK_POLL_INTERVAL);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        *lock(&self.alive) = None;
        // If revoking the lease fails, the lease expires.
        let _ = self.client.revoke(self.lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = EtcdPlace::parse("https://a,b:1,[::1]:3/site/x/").unwrap();
        assert_eq!(place.endpoints, ["a:2379", "b:1", "[::1]:3"]);
        assert!(place.has_tls && place.prefix == "/site/x");
        assert!(!EtcdPlace::parse("http://a/p").unwrap().has_tls);
        for (wrong, word) in [
            ("a:2379/p", "neither"),
            ("https://", "no prefix"),
            ("https://a", "no prefix"),
            ("https:///p", "endpoint"),
            ("https://a:x/p", "endpoint"),
            ("https://a b/p", "endpoint"),
            ("https://me@a/p", "[etcd]"),
        ] {
            let why = EtcdPlace::parse(wrong).unwrap_err();
            assert!(why.contains(word), "{wrong}: {why}");
        }
    }

    #[test]
    fn an_etcd_that_is_not_there_is_told() {
        let place = EtcdPlace::parse("http://127.0.0.1:1/p").unwrap();
        let etcd = Etcd::open(&place, "me").unwrap();
        assert_eq!(etcd.shown("c"), "etcd:http://127.0.0.1:1/p/me/records/c");
        let tls = EtcdPlace {
            has_tls: true,
            authority: Some("/nowhere/at/all".into()),
            ..place
        };
        let why = Etcd::open(&tls, "me").err().unwrap();
        assert!(why.contains("/nowhere/at/all"), "{why}");
    }
}
