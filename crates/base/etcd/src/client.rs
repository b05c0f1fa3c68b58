//! A client of etcd: sends requests over HTTP to one endpoint after the other, each with a time
//! limit.
//!
//! A request without a reply may have been carried out. A caller that can't simply repeat its
//! request ([`Client::ask_once`]) gets [`Error::Lost`] and must read the state. Endpoints that
//! can't be reached are skipped. When none can be reached, all are tried again for
//! [`REQUEST_TIMEOUT`], since an etcd that is restarted needs a second or two.
//!
//! Without TLS, the endpoints' names are resolved once. With TLS, connections use the names, since
//! certificates are for names.

use crate::api::{Answer, Line, Refusal};
use crate::secret::Login;
use crate::{Error, Result};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a request is repeated without a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(1);
/// How long to wait for a reply to begin, and then for the rest of the reply.
const ANSWER: Duration = Duration::from_secs(4);
/// Pause between two rounds over all endpoints.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of bytes of a reply.
const MAX_REPLY_BYTES: u64 = 512 << 20;

/// gRPC's numbers of errors.
mod code {
    pub const INVALID_ARGUMENT: i64 = 3;
    pub const PERMISSION_DENIED: i64 = 7;
    pub const RESOURCE_EXHAUSTED: i64 = 8;
    pub const FAILED_PRECONDITION: i64 = 9;
    pub const OUT_OF_RANGE: i64 = 11;
    pub const UNAUTHENTICATED: i64 = 16;
}

/// etcd's message for a client that isn't logged in.
const NOBODY: &str = "user name is empty";

struct Endpoint {
    /// The endpoint as the user wrote it.
    name: String,
    /// The endpoint's URL. Without TLS, it has the endpoint's address instead of its name.
    url: String,
}

/// Certificates for endpoints with `https://`, in PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// Certificates of the trusted authorities; None: the system's.
    pub authority: Option<String>,
    /// The client's certificate, and its private key.
    pub own: Option<(String, String)>,
}

/// How to reach a cluster.
pub struct Settings {
    /// `HOST:PORT` of each endpoint.
    pub endpoints: Vec<String>,
    /// None for plain HTTP.
    pub tls: Option<Tls>,
    pub login: Option<Login>,
    /// Called by each thread that the client starts, before anything else.
    pub in_thread: fn(),
    /// Advice for users, shown if etcd can't authenticate the client (no certificate or password).
    pub nobody: &'static str,
}

/// Connections to the endpoints of a cluster.
pub struct Client {
    agent: ureq::Agent,
    endpoints: Vec<Endpoint>,
    /// Index of the endpoint that replied last.
    first: AtomicUsize,
    /// Id of the cluster that replied; 0 before the first reply.
    cluster: AtomicU64,
    user: Option<Login>,
    nobody: &'static str,
    /// The token of the last login. The token expires when it isn't used for some minutes, and when
    /// etcd is restarted.
    token: Mutex<Option<String>>,
}

/// The result of a try at one endpoint.
enum Tried {
    /// The endpoint can't be reached: the request wasn't carried out.
    Unreachable(String),
    /// A request was sent, and may have been carried out.
    Lost(String),
    /// The request was refused, and would be again.
    Refused(Error),
    /// The login has expired: the request wasn't carried out.
    LoggedOut,
}

/// The errno for a revision that etcd has removed by compaction.
pub const COMPACTED: Errno = Errno::STALE;

impl Client {
    /// Makes a client. Doesn't connect yet.
    ///
    /// # Errors
    /// EHOSTUNREACH if no endpoint has an address; EINVAL for certificates that can't be read.
    pub fn new(settings: Settings) -> Result<Client> {
        let scheme = match settings.tls {
            Some(_) => "https",
            None => "http",
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .user_agent("forebay")
            .max_idle_connections(64)
            .max_idle_connections_per_host(32)
            .max_idle_age(Duration::from_secs(60))
            // There is no limit for the whole request: with one, the library would start a thread
            // for each request to resolve the name.
            .timeout_connect(Some(CONNECT))
            .timeout_send_request(Some(ANSWER))
            .timeout_send_body(Some(ANSWER))
            .timeout_recv_response(Some(ANSWER))
            .timeout_recv_body(Some(ANSWER));
        #[cfg(feature = "tls")]
        let config = config.tls_config(tls_config(settings.tls.as_ref())?);
        if cfg!(not(feature = "tls")) && settings.tls.is_some() {
            return Err(Error::NoTls);
        }
        let config = config.build();
        let mut endpoints = Vec::new();
        let mut failed = Vec::new();
        for name in &settings.endpoints {
            match resolve(name, settings.in_thread) {
                Ok(address) => endpoints.push(Endpoint {
                    name: name.clone(),
                    url: match settings.tls {
                        Some(_) => format!("{scheme}://{name}"),
                        None => format!("{scheme}://{address}"),
                    },
                }),
                Err(why) => failed.push(format!("{name}: {why}")),
            }
        }
        if endpoints.is_empty() {
            return Err(Error::NoAddress(failed));
        }
        Ok(Client {
            agent: ureq::Agent::new_with_config(config),
            endpoints,
            first: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            user: settings.login,
            nobody: settings.nobody,
            token: Mutex::new(None),
        })
    }

    /// Sends a request that may be carried out twice.
    ///
    /// # Errors
    /// Errors of etcd; ETIMEDOUT, EHOSTUNREACH or EPROTO if there is no good reply within some
    /// seconds.
    pub fn ask(&self, path: &str, request: &Value) -> Result<Answer> {
        self.try_all(path, request, true)
    }

    /// Sends a request that must not be carried out twice.
    ///
    /// # Errors
    /// As for [`Client::ask`]. Only after [`Error::Lost`], the request may have been carried out.
    pub fn ask_once(&self, path: &str, request: &Value) -> Result<Answer> {
        self.try_all(path, request, false)
    }

    fn try_all(&self, path: &str, request: &Value, repeat: bool) -> Result<Answer> {
        let body = request.to_string();
        let until = Instant::now() + REQUEST_TIMEOUT;
        loop {
            let mut whys = Vec::new();
            let mut lost = false;
            for endpoint in self.in_turn() {
                let tried = match self.try_one(endpoint, path, &body) {
                    Err(Tried::LoggedOut) => self.try_one(endpoint, path, &body),
                    tried => tried,
                };
                match tried {
                    Ok(answer) => return Ok(answer),
                    Err(Tried::Refused(error)) => return Err(error),
                    Err(Tried::LoggedOut) => return Err(Error::LoggedOut),
                    Err(Tried::Unreachable(why)) => {
                        whys.push(format!("{}: {why}", self.endpoints[endpoint].name));
                    }
                    Err(Tried::Lost(why)) => {
                        whys.push(format!("{}: {why}", self.endpoints[endpoint].name));
                        lost = true;
                        if !repeat {
                            return Err(Error::Lost(whys));
                        }
                    }
                }
                if Instant::now() > until {
                    break;
                }
            }
            if Instant::now() + RETRY_INTERVAL > until {
                return Err(if lost {
                    Error::Lost(whys)
                } else {
                    Error::Unreachable(whys)
                });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Returns the endpoints in the order in which they are tried: first the endpoint that replied
    /// last.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, n) = (self.first.load(Relaxed), self.endpoints.len());
        (0..n).map(move |i| (first + i) % n)
    }

    fn token(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_one(
        &self,
        endpoint: usize,
        path: &str,
        body: &str,
    ) -> std::result::Result<Answer, Tried> {
        let mut response = self.begin(endpoint, path, body, ANSWER)?;
        let content = content(&mut response)?;
        let answer = serde_json::from_slice::<Answer>(&content);
        let answer = answer.map_err(|_| Tried::Lost(not_etcd(&content)))?;
        self.check_cluster(answer.header.cluster_id.0)?;
        self.first.store(endpoint, Relaxed);
        Ok(answer)
    }

    /// Sends a request, logged in if there is a user, and waits until the reply begins. A refusal
    /// is an error.
    fn begin(
        &self,
        endpoint: usize,
        path: &str,
        body: &str,
        bound: Duration,
    ) -> std::result::Result<ureq::http::Response<ureq::Body>, Tried> {
        let login = self.login(endpoint)?;
        let mut response = self.send(endpoint, path, body, login.as_deref(), bound)?;
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let content = content(&mut response)?;
        let why = refused(status, &content, self.nobody);
        if matches!(why, Tried::LoggedOut) {
            // Discards the token, unless another thread has logged in meanwhile.
            let mut token = self.token();
            if *token == login {
                *token = None;
            }
        }
        Err(why)
    }

    /// Checks that `id`, the cluster of an endpoint, is the cluster that replied before.
    fn check_cluster(&self, id: u64) -> std::result::Result<(), Tried> {
        if id == 0 {
            return Err(Tried::Lost(not_etcd(b"no cluster")));
        }
        match self.cluster.compare_exchange(0, id, Relaxed, Relaxed) {
            Err(known) if known != id => Err(Tried::Lost(format!(
                "it is of another cluster ({id:x}) than answered before ({known:x})"
            ))),
            _ => Ok(()),
        }
    }

    fn send(
        &self,
        endpoint: usize,
        path: &str,
        body: &str,
        login: Option<&str>,
        bound: Duration,
    ) -> std::result::Result<ureq::http::Response<ureq::Body>, Tried> {
        let url = format!("{}{path}", self.endpoints[endpoint].url);
        let mut request = self
            .agent
            .post(url)
            .header("Content-Type", "application/json");
        if let Some(token) = login {
            request = request.header("Authorization", token);
        }
        let request = request.config().timeout_recv_body(Some(bound)).build();
        request.send(body.as_bytes()).map_err(|error| {
            use std::io::ErrorKind::{
                ConnectionRefused, HostUnreachable, InvalidData, NetworkUnreachable,
            };
            match &error {
                // The certificate of one side was refused, so no connection was made.
                ureq::Error::Io(e) if e.kind() == InvalidData => {
                    Tried::Refused(Error::NotTrusted {
                        endpoint: self.endpoints[endpoint].name.clone(),
                        why: e.to_string(),
                    })
                }
                ureq::Error::Io(e)
                    if matches!(
                        e.kind(),
                        ConnectionRefused | HostUnreachable | NetworkUnreachable
                    ) =>
                {
                    Tried::Unreachable(e.to_string())
                }
                ureq::Error::ConnectionFailed | ureq::Error::Timeout(ureq::Timeout::Connect) => {
                    Tried::Unreachable(error.to_string())
                }
                _ => Tried::Lost(error.to_string()),
            }
        })
    }

    /// Returns the login's token; logs in if needed. None if there is no user.
    fn login(&self, endpoint: usize) -> std::result::Result<Option<String>, Tried> {
        let Some(login) = &self.user else {
            return Ok(None);
        };
        let mut token = self.token();
        if token.is_none() {
            let body = json!({"name": login.user, "password": login.password}).to_string();
            let path = "/v3/auth/authenticate";
            let mut response = self.send(endpoint, path, &body, None, ANSWER)?;
            let status = response.status().as_u16();
            let content = response
                .body_mut()
                .with_config()
                .limit(1 << 20)
                .read_to_vec();
            // A login changes no data, so without a reply nothing was carried out.
            let content = content.map_err(|e| Tried::Unreachable(e.to_string()))?;
            if status != 200 {
                return Err(match refused(status, &content, self.nobody) {
                    Tried::Refused(e) => Tried::Refused(login.refused(e)),
                    other => other,
                });
            }
            let answer = serde_json::from_slice::<Answer>(&content);
            let answer = answer.map_err(|_| Tried::Unreachable(not_etcd(&content)))?;
            *token = Some(answer.token);
        }
        Ok(token.clone())
    }

    /// Sends a request whose reply consists of lines. Reads them until the time limit `bound`, or
    /// until `each` returns false.
    ///
    /// # Errors
    /// If no endpoint begins to reply, or if one stops within a reply or sends something invalid.
    pub fn lines<E: From<Error>>(
        &self,
        path: &str,
        request: &Value,
        bound: Duration,
        each: &mut dyn FnMut(Line) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let body = request.to_string();
        let mut whys = Vec::new();
        for endpoint in self.in_turn() {
            let begun = match self.begin(endpoint, path, &body, bound) {
                Err(Tried::LoggedOut) => self.begin(endpoint, path, &body, bound),
                begun => begun,
            };
            let response = match begun {
                Ok(response) => response,
                Err(Tried::Refused(error)) => return Err(error.into()),
                Err(Tried::LoggedOut) => return Err(Error::LoggedOut.into()),
                Err(Tried::Unreachable(why) | Tried::Lost(why)) => {
                    whys.push(format!("{}: {why}", self.endpoints[endpoint].name));
                    continue;
                }
            };
            let body = response
                .into_body()
                .into_with_config()
                .limit(MAX_REPLY_BYTES);
            return read_lines(body.reader(), each);
        }
        Err(Error::Lost(whys).into())
    }

    /// Grants a lease of `seconds` seconds.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn grant(&self, seconds: u64) -> Result<u64> {
        let request = json!({"TTL": seconds.to_string()});
        match self.ask("/v3/lease/grant", &request)?.lease.0 {
            0 => Err(Error::NoLease),
            id => Ok(id),
        }
    }

    /// Renews the lease for its full time; false if it has expired. `bound`: time limit for each
    /// endpoint.
    ///
    /// # Errors
    /// As for [`Client::lines`].
    pub fn renew(&self, id: u64, bound: Duration) -> Result<bool> {
        let mut alive = false;
        let request = json!({"ID": id.to_string()});
        self.lines("/v3/lease/keepalive", &request, bound, &mut |line| {
            alive = line.result.is_some_and(|r| r.seconds.0 > 0);
            Ok::<bool, Error>(false)
        })?;
        Ok(alive)
    }

    /// Ends a lease; etcd removes the keys with this lease.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn revoke(&self, id: u64) -> Result<()> {
        let request = json!({"ID": id.to_string()});
        self.ask("/v3/lease/revoke", &request).map(|_| ())
    }
}

/// Returns the HTTP client's settings for TLS.
///
/// # Errors
/// EINVAL for certificates that can't be read.
#[cfg(feature = "tls")]
fn tls_config(tls: Option<&Tls>) -> Result<ureq::tls::TlsConfig> {
    use ureq::tls::{
        Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem,
    };
    let Some(tls) = tls else {
        return Ok(TlsConfig::default());
    };
    let certificates = |text: &str, what: &'static str| -> Result<Vec<Certificate<'static>>> {
        let mut all = Vec::new();
        for item in parse_pem(text.as_bytes()) {
            if let PemItem::Certificate(one) = item.map_err(|_| Error::NotPem(what))? {
                all.push(one);
            }
        }
        if all.is_empty() {
            Err(Error::NotPem(what))
        } else {
            Ok(all)
        }
    };
    let mut config = TlsConfig::builder();
    if let Some(text) = &tls.authority {
        let trusted = certificates(text, "the authority's certificate")?;
        config = config.root_certs(RootCerts::from(trusted));
    }
    if let Some((text, key)) = &tls.own {
        let own = certificates(text, "the own certificate")?;
        let key = PrivateKey::from_pem(key.as_bytes());
        let key = key.map_err(|_| Error::NotPem("the private key"))?;
        config = config.client_cert(Some(ClientCert::new_with_certs(&own, key)));
    }
    Ok(config.build())
}

fn read_lines<E: From<Error>>(
    reader: impl Read,
    each: &mut dyn FnMut(Line) -> std::result::Result<bool, E>,
) -> std::result::Result<(), E> {
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(|e| Error::BrokenOff(e.to_string()))?;
        let read = serde_json::from_slice::<Line>(&line);
        let read = read.map_err(|_| Error::NotEtcd(not_etcd(&line)))?;
        if let Some(refusal) = read.error {
            let (errno, text) = (Errno::IO, refusal.error + &refusal.message);
            return Err(Error::Refused { errno, text }.into());
        }
        if !each(read)? {
            return Ok(());
        }
    }
    Err(Error::EndedEarly.into())
}

/// Resolves `HOST:PORT` to its first address. The system's resolver may take longer than the time
/// limit, so it runs on another thread.
fn resolve(endpoint: &str, in_thread: fn()) -> io::Result<SocketAddr> {
    if let Ok(address) = endpoint.parse() {
        return Ok(address);
    }
    let (send, receive) = mpsc::channel();
    let name = endpoint.to_owned();
    std::thread::spawn(move || {
        in_thread();
        let found = name.to_socket_addrs().map(|mut all| all.next());
        let _ = send.send(found);
    });
    match receive.recv_timeout(ANSWER) {
        Ok(Ok(Some(address))) => Ok(address),
        Ok(Ok(None)) => Err(io::Error::other("it has no address")),
        Ok(Err(e)) => Err(e),
        Err(_) => {
            let why = format!("no address within {} s", ANSWER.as_secs());
            Err(io::Error::other(why))
        }
    }
}

/// Returns the body of a reply.
fn content(response: &mut ureq::http::Response<ureq::Body>) -> std::result::Result<Vec<u8>, Tried> {
    let read = response.body_mut().with_config().limit(MAX_REPLY_BYTES);
    let read = read.read_to_vec();
    read.map_err(|e| Tried::Lost(format!("its answer broke off: {e}")))
}

fn not_etcd(content: &[u8]) -> String {
    let begin = String::from_utf8_lossy(&content[..content.len().min(40)]).into_owned();
    format!("what answers isn't etcd 3.4 or later: {begin:?}")
}

/// Returns the result of a request that etcd refused.
fn refused(status: u16, content: &[u8], nobody: &str) -> Tried {
    let Ok(refusal) = serde_json::from_slice::<Refusal>(content) else {
        // etcd refuses requests to its gateway from a client whose certificate has a common name:
        // the gateway can't pass that name on as the user's name.
        if content.starts_with(b"CommonName of client") {
            return Tried::Refused(Error::CommonName);
        }
        let text = format!("HTTP status {status}, {}", not_etcd(content));
        return Tried::Lost(text);
    };
    let text = if refusal.message.is_empty() {
        refusal.error
    } else {
        refusal.message
    };
    // The login is older than a change of users or roles: the client must log in again.
    if text.contains("revision in header is old") || text.contains("auth store is old") {
        return Tried::LoggedOut;
    }
    let errno = match refusal.code {
        code::UNAUTHENTICATED => return Tried::LoggedOut,
        code::OUT_OF_RANGE => COMPACTED,
        code::PERMISSION_DENIED => Errno::ACCESS,
        code::RESOURCE_EXHAUSTED if text.contains("database space") => Errno::NOSPC,
        code::RESOURCE_EXHAUSTED if text.contains("larger than max") => Errno::TOOBIG,
        code::INVALID_ARGUMENT if text.contains("too large") => Errno::TOOBIG,
        code::INVALID_ARGUMENT
            if text.contains(NOBODY) || text.contains("authentication failed") =>
        {
            Errno::ACCESS
        }
        code::INVALID_ARGUMENT | code::FAILED_PRECONDITION => Errno::INVAL,
        // etcd has no leader, is busy, or stopped waiting: the request may still be carried out.
        _ => return Tried::Lost(format!("HTTP status {status}, {text}")),
    };
    let hint = match errno {
        Errno::ACCESS if refusal.code == code::PERMISSION_DENIED => {
            "; the user needs a role that may read and write all keys below the prefix"
        }
        Errno::ACCESS if text.contains(NOBODY) => {
            &format!("; it wants to know who you are: {nobody}")
        }
        _ => "",
    };
    let text = text + hint;
    Tried::Refused(Error::Refused { errno, text })
}
