//! Requests to one bucket: signed, with time limits, repeated where that may help.
//!
//! Guarantees: each attempt has time limits ([`Limits`]). The number of attempts is bounded
//! ([`ATTEMPTS`]), with growing random pauses between them. Once a server can't be reached, each
//! further request makes only one attempt, until one succeeds. So a staging of many files ends soon
//! after its server has died.

use crate::bucket::address::Server;
use crate::bucket::fault::{self, Fault};
use crate::bucket::secret::{Credentials, Settings};
use crate::bucket::sign::{Unsigned, authorization, encode, hex, sha256};
use crate::bucket::{time, xml};
use crate::error::Error;
use forebay_runtime::threads::lock;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use ureq::http::{HeaderMap, Request, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Maximum number of attempts per request.
pub const ATTEMPTS: u32 = 5;
/// The pause after the first attempt. The pause doubles after each attempt; up to half of it is
/// random.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum time for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum time until the server begins its reply.
const REPLY: Duration = Duration::from_secs(60);
/// Maximum time of a transfer without progress.
const STALL: Duration = Duration::from_secs(30);

/// Time limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    connect: Duration,
    reply: Duration,
    stall: Duration,
    /// Time since a request's first attempt after which a failed attempt isn't repeated.
    attempts: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: CONNECT,
            reply: REPLY,
            stall: STALL,
            attempts: Duration::MAX,
        }
    }
}

impl Limits {
    /// Returns limits for giving up a server that doesn't answer after about `timeout`.
    pub fn of(timeout: Duration) -> Limits {
        Limits {
            connect: CONNECT.min(timeout / 2),
            reply: REPLY.min(timeout),
            stall: STALL.min(timeout),
            attempts: timeout / 2,
        }
    }
}
/// Maximum size of a reply that is read as a whole. Bytes. A list of 1000 keys has some MiB at
/// most.
const LARGEST_REPLY: u64 = 32 << 20;
/// Maximum number of idle connections that are kept open.
const CONNECTIONS: usize = 64;
/// Files in which systems have their trusted certificates.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A request.
#[derive(Clone, Default)]
pub struct Call<'a> {
    pub method: &'static str,
    /// The object's key. Empty: the bucket itself.
    pub key: &'a str,
    pub query: Vec<(&'static str, String)>,
    /// Names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Option<Body<'a>>,
}

/// A request's body, and its SHA-256.
#[derive(Clone, Copy)]
pub struct Body<'a> {
    pub bytes: &'a [u8],
    pub sum: [u8; 32],
}

impl<'a> Body<'a> {
    pub fn new(bytes: &'a [u8]) -> Body<'a> {
        Body {
            bytes,
            sum: sha256(bytes),
        }
    }
}

/// A reply that was read as a whole.
pub struct Reply {
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// Parses the body as XML whose root is `name`.
    pub fn xml(&self, name: &str) -> Result<xml::Element, Fault> {
        let text = std::str::from_utf8(&self.body).ok();
        let root = text.and_then(xml::parse).filter(|root| root.name == name);
        root.ok_or_else(|| Fault::garbage(format!("the reply isn't a complete {name}")))
    }
}

/// Returns a header's value, if the header exists and is text.
pub fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// A client for one bucket.
pub struct Client {
    agent: ureq::Agent,
    server: Server,
    pub bucket: String,
    credentials: Option<Credentials>,
    limits: Limits,
    /// Whether no attempt has succeeded since a request was given up.
    is_down: AtomicBool,
    /// Details of the last fault of each errno.
    words: Mutex<HashMap<i32, String>>,
}

impl Client {
    /// Returns a client. Doesn't connect yet.
    ///
    /// # Errors
    /// A message: settings are missing or wrong.
    pub fn new(bucket: &str, settings: &Settings, limits: Limits) -> Result<Client, Error> {
        if settings.credentials.is_none() && !settings.anonymous {
            let why = fault::explain(fault::NO_CREDENTIALS, bucket).unwrap_or_default();
            return Err(Error::Unusable(why));
        }
        let server = Server::new(bucket, settings)?;
        let tls = match server.scheme.as_str() {
            "https" => TlsConfig::builder()
                .root_certs(trusted(settings.certificates.as_deref())?)
                .build(),
            _ => TlsConfig::default(),
        };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(limits.connect))
            .timeout_recv_response(Some(limits.reply))
            .timeout_per_read(Some(limits.stall))
            .timeout_per_write(Some(limits.stall))
            .max_idle_connections(CONNECTIONS)
            .max_idle_connections_per_host(CONNECTIONS)
            .tls_config(tls)
            .build();
        Ok(Client {
            agent: config.into(),
            server,
            bucket: bucket.to_owned(),
            credentials: settings.credentials.clone(),
            limits,
            is_down: AtomicBool::new(false),
            words: Mutex::default(),
        })
    }

    /// Sends a request, and reads the whole reply.
    ///
    /// # Errors
    /// The last attempt's [`Fault`].
    pub fn ask(&self, call: &Call<'_>) -> Result<Reply, Fault> {
        self.attempts(|| self.ask_once(call))
    }

    /// Sends a request as [`Client::ask`] does, in one attempt. For use in [`Client::attempts`].
    ///
    /// # Errors
    /// [`Fault`]
    pub fn ask_once(&self, call: &Call<'_>) -> Result<Reply, Fault> {
        let (parts, body) = self.send(call)?.into_parts();
        let wanted = length(&parts.headers).filter(|_| call.method != "HEAD");
        let body = read_all(body, wanted)?;
        Ok(Reply {
            headers: parts.headers,
            body,
        })
    }

    /// Sends a request, and returns the reply, whose body is still to be read.
    ///
    /// # Errors
    /// The last attempt's [`Fault`].
    pub fn begin(&self, call: &Call<'_>) -> Result<Response<ureq::Body>, Fault> {
        self.attempts(|| self.send(call))
    }

    /// Calls `f` until it succeeds, a further attempt makes no sense, or a limit is reached.
    pub fn attempts<T>(&self, f: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
        let (mut may_be_done, began) = (false, Instant::now());
        let mut attempt = 1;
        loop {
            let mut fault = match f() {
                Ok(done) => {
                    self.is_down.store(false, Relaxed);
                    return Ok(done);
                }
                Err(fault) => fault,
            };
            may_be_done |= fault.may_be_done;
            fault.may_be_done = may_be_done;
            if !fault.passes {
                return Err(self.noted(fault));
            }
            let is_late = began.elapsed() >= self.limits.attempts;
            if attempt == ATTEMPTS || is_late || self.is_down.load(Relaxed) {
                self.is_down.store(true, Relaxed);
                return Err(self.noted(fault));
            }
            std::thread::sleep(pause(attempt));
            attempt += 1;
        }
    }

    /// Makes one attempt. Any reply except success is a fault.
    fn send(&self, call: &Call<'_>) -> Result<Response<ureq::Body>, Fault> {
        let request = self.request(call, now())?;
        let reply = match call.body {
            Some(body) => self.agent.run(request.map(|()| body.bytes)),
            None => self.agent.run(request),
        };
        let reply = reply.map_err(Fault::of_network)?;
        let status = reply.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(reply);
        }
        let (parts, body) = reply.into_parts();
        // If the text can't be read, the fault just has no message.
        let text = read_all(body, None).unwrap_or_default();
        let error = xml::parse(&String::from_utf8_lossy(&text)).filter(|e| e.name == "Error");
        let get = |name| error.as_ref().and_then(|e| e.get(name)).unwrap_or_default();
        let region = header(&parts.headers, "x-amz-bucket-region");
        let region = region.or(Some(get("Region")).filter(|r| !r.is_empty()));
        let mut fault = Fault::of_reply(status, get("Code"), get("Message"), region);
        if fault.errno == fault::WRONG_CLOCK
            && let Some(theirs) = header(&parts.headers, "date").and_then(time::from_header)
        {
            let off = i128::from(now()) - theirs / 1_000_000_000;
            fault.words = format!("this host's clock is {off} s before the server's");
        }
        Err(fault)
    }

    /// Returns the signed request.
    fn request(&self, call: &Call<'_>, now: i64) -> Result<Request<()>, Fault> {
        let path = format!("{}{}", self.server.base, encode(call.key.as_bytes(), true));
        let mut query: Vec<String> = call
            .query
            .iter()
            .map(|(name, value)| format!("{name}={}", encode(value.as_bytes(), false)))
            .collect();
        query.sort();
        let query = query.join("&");
        let sum = call.body.map_or_else(|| sha256(b""), |body| body.sum);
        let payload = hex(&sum);
        let mut signed = vec![
            ("host".to_owned(), self.server.host.clone()),
            ("x-amz-content-sha256".to_owned(), payload.clone()),
            ("x-amz-date".to_owned(), time::basic(now)),
        ];
        if let Some(token) = self.credentials.as_ref().and_then(|c| c.token.as_ref()) {
            signed.push(("x-amz-security-token".to_owned(), token.expose().to_owned()));
        }
        let (ours, rest): (Vec<_>, Vec<_>) = call
            .headers
            .iter()
            .cloned()
            .partition(|(name, _)| name.starts_with("x-amz-"));
        signed.extend(ours);
        let authorization = self.credentials.as_ref().map(|credentials| {
            let unsigned = Unsigned {
                method: call.method,
                path: &path,
                query: &query,
                headers: &signed,
                payload: &payload,
            };
            authorization(&unsigned, credentials, &self.server.region, now)
        });
        let Server { scheme, host, .. } = &self.server;
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{scheme}://{host}{path}{mark}{query}"));
        for (name, value) in signed.iter().chain(&rest) {
            request = request.header(name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(());
        request.map_err(|_| Fault::new(Errno::INVAL, "a value can't be sent as a header"))
    }

    /// Stores a fault's details for [`Client::explain`].
    fn noted(&self, fault: Fault) -> Fault {
        let words: String = fault
            .words
            .chars()
            .filter(|c| !c.is_control())
            .take(300)
            .collect();
        let words = match &self.credentials {
            Some(credentials) => credentials.redact(&words),
            None => words,
        };
        let mut all = lock(&self.words);
        all.insert(fault.errno.raw_os_error(), words);
        fault
    }

    /// Returns a sentence for an errno, with advice, and with the details of its last fault.
    pub fn explain(&self, errno: Errno) -> String {
        let all = lock(&self.words);
        let words = all.get(&errno.raw_os_error());
        match (fault::explain(errno, &self.bucket), words) {
            (Some(advice), Some(words)) => format!("{advice} ({words})"),
            (Some(advice), None) => advice,
            (None, Some(words)) => format!("{} ({words})", crate::error::explain(errno)),
            (None, None) => crate::error::explain(errno),
        }
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs() as i64)
}

/// Returns the random pause after an attempt.
fn pause(attempt: u32) -> Duration {
    let longest = FIRST_RETRY_DELAY * 2u32.pow(attempt - 1);
    let mut random = [0];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    longest / 2 + longest / 2 * u32::from(random[0]) / 255
}

/// Returns the length that a reply's header declares. Bytes.
pub fn length(headers: &HeaderMap) -> Option<u64> {
    header(headers, "content-length")?.parse().ok()
}

/// Reads a whole body. Fails if the body's length isn't `wanted`; None: any length is accepted.
fn read_all(body: ureq::Body, wanted: Option<u64>) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let mut reader = body.into_reader().take(LARGEST_REPLY + 1);
    let n = reader
        .read_to_end(&mut bytes)
        .map_err(|e| Fault::of_network(e.into()))? as u64;
    if n > LARGEST_REPLY {
        return Err(Fault::new(fault::GARBAGE, "the reply is too long"));
    }
    match wanted {
        Some(wanted) if wanted != n => Err(Fault::garbage(format!(
            "the reply has {n} of {wanted} bytes"
        ))),
        _ => Ok(bytes),
    }
}

/// Returns the certificates to trust: those of the file `named`, or the system's, or those built
/// into the program.
fn trusted(named: Option<&Path>) -> Result<RootCerts, Error> {
    let read = |path: &Path| -> Result<RootCerts, Error> {
        let shown = path.display();
        let text = untrusted::read(path, Links::Named, MAX_SETTINGS)
            .map_err(|e| Error::Unusable(format!("{shown} can't be read: {e}")))?;
        let all: Vec<Certificate<'static>> = parse_pem(&text)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        if all.is_empty() {
            let why = format!("{shown} has no certificates (PEM)");
            Err(Error::Unusable(why))
        } else {
            Ok(RootCerts::new_with_certs(&all))
        }
    };
    if let Some(named) = named {
        return read(named);
    }
    let found = CERTIFICATES
        .iter()
        .find_map(|path| read(Path::new(path)).ok());
    Ok(found.unwrap_or(RootCerts::WebPki))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::secret::Secret;

    pub fn settings(endpoint: &str) -> Settings {
        Settings {
            credentials: Some(Credentials {
                id: Secret::new("the-id".into()),
                secret: Secret::new("the-secret".into()),
                token: Some(Secret::new("the-token".into())),
            }),
            endpoint: Some(endpoint.into()),
            ..Settings::default()
        }
    }

    #[test]
    fn messages_have_no_secrets() {
        let client =
            Client::new("abc", &settings("http://127.0.0.1:1"), Limits::default()).unwrap();
        let words = "the-id used the-secret with the-token";
        let fault = Fault::of_reply(403, "SignatureDoesNotMatch", words, None);
        client.noted(fault);
        let told = client.explain(fault::BAD_CREDENTIALS);
        assert!(told.contains("refuses the credentials"), "{told}");
        assert!(
            !told.contains("the-id") && !told.contains("the-secret"),
            "{told}"
        );
        assert!(!told.contains("the-token"), "{told}");
        let request = client
            .request(
                &Call {
                    method: "GET",
                    ..Call::default()
                },
                0,
            )
            .unwrap();
        let url = request.uri().to_string();
        assert!(!url.contains("the-") && !format!("{request:?}").contains("the-secret"));
    }

    #[test]
    fn without_credentials_nothing_begins() {
        let mut settings = settings("http://127.0.0.1:1");
        settings.credentials = None;
        let told = Client::new("abc", &settings, Limits::default())
            .err()
            .unwrap()
            .to_string();
        assert!(told.contains("AWS_ACCESS_KEY_ID"), "{told}");
        settings.anonymous = true;
        assert!(Client::new("abc", &settings, Limits::default()).is_ok());
    }

    #[test]
    fn pauses_grow() {
        for attempt in 1..ATTEMPTS {
            let longest = FIRST_RETRY_DELAY * 2u32.pow(attempt - 1);
            assert!((longest / 2..=longest).contains(&pause(attempt)));
        }
    }
}
