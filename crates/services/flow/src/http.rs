//! HTTP/1.1 for the service: one thread and one request per connection, with limits.
//!
//! There are limits on the number of connections, in all and per address and token
//! ([`crate::admission`]), on the size of a request's head, and on the time of each phase. The time
//! for a body grows with its size, so that a sender slower than [`SLOWEST`] is cut off. A
//! connection is closed after its reply. Pipelining, chunked bodies and compression aren't
//! supported.

use crate::Result;
use crate::admission::{Admission, Busy, Place};
use crate::service::Error;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum size of a request's head. Bytes.
pub const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum number of header fields.
pub const MAX_HEAD_FIELDS: usize = 64;
/// Maximum time of the TLS handshake and the head together.
pub const HEAD: Duration = Duration::from_secs(10);
/// Maximum time of a body or reply, in addition to its size divided by [`SLOWEST`].
pub const BODY: Duration = Duration::from_secs(20);
/// Minimum rate of a sender or receiver. Bytes per second.
pub const SLOWEST: u64 = 64 << 10;
/// Maximum size (bytes) and time for reading the rest of a refused body, so that its sender gets
/// the reply.
const DRAINED: u64 = 4 << 20;
const DRAINING: Duration = Duration::from_secs(2);
/// Time after which a client that was refused because of load may try again. Seconds.
pub const RETRY_AFTER: u64 = 1;

/// A request without its body.
#[derive(Debug)]
pub struct Head {
    pub method: String,
    /// Components of the path, URL-decoded.
    pub path: Vec<String>,
    /// The request's target as it was sent, for the log.
    pub target: String,
    pub query: Vec<(String, String)>,
    /// Header fields. Names are in lower case.
    fields: Vec<(String, String)>,
    /// Length of the body. Bytes. None: not declared.
    pub length: Option<u64>,
    pub peer: SocketAddr,
}

impl Head {
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The reply to a request.
pub struct Reply {
    pub status: u16,
    pub kind: &'static str,
    pub fields: Vec<(&'static str, String)>,
    pub body: Body,
}

pub enum Body {
    Bytes(Vec<u8>),
    /// A file, and the number of its bytes to send.
    File(File, u64),
}

/// A function that answers requests.
pub type Handler = dyn Fn(&Head, &mut Incoming<'_>) -> Reply + Send + Sync;

/// The body of a request. The body can be read once.
pub struct Incoming<'a> {
    channel: &'a mut Channel,
    /// Bytes of the body that were received with the head.
    first: Vec<u8>,
    left: u64,
    expects: bool,
}

impl Incoming<'_> {
    /// Counts the connection for this token from now on, no longer for its address.
    ///
    /// # Errors
    /// The token has the maximum number of requests in progress.
    pub fn belongs_to(&self, token: &str) -> std::result::Result<(), Busy> {
        self.channel.timed_ref().place.belongs_to(token)
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = to.len().min(self.left.try_into().unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        if !self.first.is_empty() {
            let got = most.min(self.first.len());
            to[..got].copy_from_slice(&self.first[..got]);
            self.first.drain(..got);
            self.left -= got as u64;
            return Ok(got);
        }
        if self.expects {
            self.expects = false;
            self.channel.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            self.channel.flush()?;
        }
        let got = self.channel.read(&mut to[..most])?;
        self.left -= got as u64;
        Ok(got)
    }
}

/// A socket whose reads and writes fail after a time limit, or when another connection has got its
/// place.
struct Timed {
    tcp: Arc<TcpStream>,
    until: Instant,
    place: Place,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(left)
        }
    }
}

/// Maps the error of an expired time limit, for which system calls return different errors, to
/// TimedOut.
fn in_time<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => e,
    })
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(self.left()?))?;
        let got = in_time((&*self.tcp).read(to));
        if self.place.is_lost() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let got = got?;
        self.place.moved(got);
        Ok(got)
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        let sent = in_time((&*self.tcp).write(from))?;
        self.place.moved(sent);
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.tcp).flush()
    }
}

enum Channel {
    Plain(Timed),
    Secure(Box<StreamOwned<ServerConnection, Timed>>),
}

impl Channel {
    fn timed(&mut self) -> &mut Timed {
        match self {
            Channel::Plain(timed) => timed,
            Channel::Secure(stream) => &mut stream.sock,
        }
    }

    fn timed_ref(&self) -> &Timed {
        match self {
            Channel::Plain(timed) => timed,
            Channel::Secure(stream) => &stream.sock,
        }
    }

    fn allow(&mut self, time: Duration) {
        self.timed().until = Instant::now() + time;
    }

    fn close(&mut self) {
        if let Channel::Secure(stream) = self {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.timed().tcp.shutdown(Shutdown::Write);
    }
}

impl Read for Channel {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Channel::Plain(timed) => timed.read(to),
            Channel::Secure(stream) => stream.read(to),
        }
    }
}

impl Write for Channel {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Channel::Plain(timed) => timed.write(from),
            Channel::Secure(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Channel::Plain(timed) => timed.flush(),
            Channel::Secure(stream) => stream.flush(),
        }
    }
}

/// Reads a service's certificates and key.
///
/// # Errors
/// A message: a file can't be read, or the key doesn't belong to the certificates.
pub fn tls(certificates: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let failed = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let chain: std::result::Result<Vec<CertificateDer<'_>>, _> =
        CertificateDer::pem_file_iter(certificates)
            .map_err(|e| failed(certificates, &e))?
            .collect();
    let chain = chain.map_err(|e| failed(certificates, &e))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| failed(key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| failed(certificates, &e))?;
    Ok(Arc::new(config))
}

/// Accepts connections forever, each in a thread. `handle` answers a request; `tell` is called with
/// errors.
pub fn serve(
    listener: &TcpListener,
    tls: Option<&Arc<ServerConfig>>,
    handle: &Arc<Handler>,
    tell: fn(&str),
) -> ! {
    let admission = Admission::new();
    loop {
        let (tcp, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) => {
                // Probably no descriptor is free. Connections that end will free some.
                tell(&format!("accept: {e}"));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let tcp = Arc::new(tcp);
        let place = admission.admit(peer.ip(), &tcp);
        let (tls, handle) = (tls.cloned(), Arc::clone(handle));
        let name = "connection".to_owned();
        let started = std::thread::Builder::new().name(name).spawn(move || {
            connection(tcp, peer, place, tls, handle.as_ref());
        });
        if let Err(e) = started {
            tell(&format!("a connection gets no thread: {e}"));
        }
    }
}

fn connection(
    tcp: Arc<TcpStream>,
    peer: SocketAddr,
    place: Place,
    tls: Option<Arc<ServerConfig>>,
    handle: &Handler,
) {
    let _ = tcp.set_nodelay(true);
    let timed = Timed {
        tcp,
        until: Instant::now() + HEAD,
        place,
    };
    let mut channel = match tls {
        None => Channel::Plain(timed),
        Some(config) => match ServerConnection::new(config) {
            Ok(connection) => Channel::Secure(Box::new(StreamOwned::new(connection, timed))),
            Err(_) => return,
        },
    };
    let (reply, left) = match head(&mut channel, peer) {
        Ok((head, rest)) => {
            let length = head.length.unwrap_or(0);
            channel.allow(BODY + Duration::from_secs(length / SLOWEST));
            let mut incoming = Incoming {
                channel: &mut channel,
                first: rest,
                left: length,
                expects: head.field("expect").is_some(),
            };
            let reply = handle(&head, &mut incoming);
            let unread = incoming.left - (incoming.first.len() as u64).min(incoming.left);
            (reply, unread)
        }
        Err(Some((status, why))) => (error(status, why), 0),
        Err(None) => return,
    };
    let size = match &reply.body {
        Body::Bytes(bytes) => bytes.len() as u64,
        Body::File(_, size) => *size,
    };
    if channel.timed_ref().place.begin_reply() {
        channel.allow(BODY + Duration::from_secs(size / SLOWEST));
    } else {
        channel.allow(DRAINING);
    }
    if send(&mut channel, reply, size).is_ok() {
        channel.close();
        // The reply is complete. The place is lost, so the rest of the request isn't read.
        if channel.timed_ref().place.is_lost() {
            return;
        }
        // Unread bytes would make the kernel reset the connection, and discard the reply.
        channel.allow(DRAINING);
        let _ = io::copy(
            &mut (&mut channel).take(left.clamp(1, DRAINED)),
            &mut io::sink(),
        );
    }
}

/// Returns a reply with an error in the interface's format.
pub fn error(status: u16, why: impl Into<String>) -> Reply {
    let body = serde_json::json!({"status": status, "error": why.into()});
    let fields = match status {
        503 => vec![("Retry-After", RETRY_AFTER.to_string())],
        _ => Vec::new(),
    };
    Reply {
        status,
        kind: "application/json",
        fields,
        body: Body::Bytes(body.to_string().into_bytes()),
    }
}

/// An error in a head: status and message. None: there is no client to reply to.
type Bad = Option<(u16, String)>;

/// Reads a head. Also returns the bytes of the body that were received with it.
fn head(channel: &mut Channel, peer: SocketAddr) -> std::result::Result<(Head, Vec<u8>), Bad> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let got = channel.read(&mut piece).map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut if !bytes.is_empty() => {
                Some((408, "the request came too slowly".to_owned()))
            }
            io::ErrorKind::ConnectionAborted if channel.timed_ref().place.is_lost() => {
                let shed = Error::shed();
                Some((shed.status, shed.message))
            }
            _ => None,
        });
        let got = match got {
            Err(Some(bad)) => {
                // The time for reading has passed. A short time is left for sending the error.
                channel.allow(DRAINING);
                return Err(Some(bad));
            }
            Err(None) | Ok(0) => return Err(None),
            Ok(got) => got,
        };
        let from = bytes.len().saturating_sub(3);
        bytes.extend_from_slice(&piece[..got]);
        let end = bytes[from..].windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end.map(|n| from + n + 4).filter(|&n| n <= MAX_HEAD_BYTES) {
            let rest = bytes.split_off(end);
            return parse(&bytes, peer).map(|h| (h, rest)).map_err(Some);
        }
        if bytes.len() > MAX_HEAD_BYTES {
            let why = format!("a head has {MAX_HEAD_BYTES} bytes at most");
            return Err(Some((431, why)));
        }
    }
}

/// Parses a head.
///
/// # Errors
/// A status and a message.
fn parse(bytes: &[u8], peer: SocketAddr) -> std::result::Result<Head, (u16, String)> {
    let bad = |why: &str| (400, why.to_owned());
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEAD_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Err((431, format!("a head has {MAX_HEAD_FIELDS} fields at most")));
        }
        _ => return Err(bad("this is no request of HTTP/1.1")),
    }
    let mut named = Vec::new();
    for field in parsed.headers.iter() {
        let value = std::str::from_utf8(field.value).map_err(|_| bad("a field is no UTF-8"))?;
        named.push((field.name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let all = |name: &str| -> Vec<&str> {
        let found = named.iter().filter(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str()).collect()
    };
    if !all("transfer-encoding").is_empty() {
        return Err((411, "send the body's length, in Content-Length".into()));
    }
    let length = match all("content-length")[..] {
        [] => None,
        [text] if text.len() < 19 && text.bytes().all(|b| b.is_ascii_digit()) => Some(
            text.parse()
                .map_err(|_| bad("Content-Length is no number"))?,
        ),
        _ => return Err(bad("Content-Length is no number")),
    };
    if all("authorization").len() > 1 {
        return Err(bad("Authorization is there twice"));
    }
    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(path) = path.strip_prefix('/') else {
        return Err(bad("the target of a request begins with '/'"));
    };
    let decode = |text: &str| decoded(text).ok_or_else(|| bad("the target has a bad escape"));
    let path: std::result::Result<Vec<String>, _> = path.split('/').map(decode).collect();
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        pairs.push((decode(name)?, decode(value)?));
    }
    Ok(Head {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: path?,
        target: target.to_owned(),
        query: pairs,
        fields: named,
        length,
        peer,
    })
}

/// URL-decodes a part of a target. None: an escape is invalid, or the text isn't UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        bytes.push(match b {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b => b,
        });
    }
    String::from_utf8(bytes).ok()
}

/// URL-encodes a component of a path, for clients.
pub fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    let one = |b: u8| {
        if plain(b) {
            char::from(b).to_string()
        } else {
            format!("%{b:02X}")
        }
    };
    text.bytes().map(one).collect()
}

/// The Content-Security-Policy of pages, which may load resources from this service only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn send(channel: &mut Channel, reply: Reply, size: u64) -> io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {size}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nContent-Security-Policy: {POLICY}\r\n",
        reply.status,
        reason(reply.status),
        reply.kind
    );
    for (name, value) in &reply.fields {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    channel.write_all(head.as_bytes())?;
    match reply.body {
        Body::Bytes(bytes) => channel.write_all(&bytes)?,
        Body::File(file, size) => {
            let sent = io::copy(&mut file.take(size), channel)?;
            if sent < size {
                // The file has become shorter. The receiver notices that bytes are missing.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    channel.flush()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fuzz::Random;

    fn parsed(text: &str) -> std::result::Result<Head, u16> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        parse(text.as_bytes(), peer).map_err(|bad| bad.0)
    }

    #[test]
    fn heads() {
        let head = parsed(
            "PUT /api/v1/a%20b/..%2Fc?x=%C3%A4&y HTTP/1.1\r\nContent-Length: 5\r\nHOST: x\r\n\r\n",
        )
        .unwrap();
        assert_eq!(head.path, ["api", "v1", "a b", "../c"]);
        assert_eq!(
            (head.query("x"), head.query("y")),
            (Some("\u{e4}"), Some(""))
        );
        assert_eq!((head.length, head.field("host")), (Some(5), Some("x")));
        for (fields, status) in [
            ("Transfer-Encoding: chunked", 411),
            ("Content-Length: 1\r\nContent-Length: 1", 400),
            ("Content-Length: +1", 400),
            ("Content-Length: 99999999999999999999", 400),
            ("A: b\r\n folded", 400),
            ("Authorization: a\r\nauthorization: b", 400),
        ] {
            let text = format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n");
            assert_eq!(parsed(&text).unwrap_err(), status, "{fields}");
        }
        for line in [
            "GET * HTTP/1.1",
            "GET /%zz HTTP/1.1",
            "GET /%ff HTTP/1.1",
            "GET /%4 HTTP/1.1",
        ] {
            assert_eq!(
                parsed(&format!("{line}\r\n\r\n")).unwrap_err(),
                400,
                "{line}"
            );
        }
        let many = "a: b\r\n".repeat(65);
        assert_eq!(
            parsed(&format!("GET / HTTP/1.1\r\n{many}\r\n")).unwrap_err(),
            431
        );
        assert_eq!(decoded(&encoded("a/\u{e4} %")).unwrap(), "a/\u{e4} %");
    }

    #[test]
    fn garbage() {
        let good = "POST /a?b=c HTTP/1.1\r\nContent-Length: 10\r\nX: y\r\n\r\n";
        let mut random = Random::new(11);
        for _ in 0..20_000 {
            let mut bytes = good.as_bytes().to_vec();
            for _ in 0..1 + random.below(4) {
                let n = random.below(bytes.len());
                bytes[n] = random.number() as u8;
            }
            let _ = parse(&bytes, SocketAddr::from(([127, 0, 0, 1], 1)));
        }
    }
}
