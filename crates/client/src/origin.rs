//! The slow store behind a pool: what a pool's configuration says of it, and how processes ask the
//! node's origin service.
//!
//! The service runs in the keeper's process. A process that needs something that is at the origin
//! only connects to `origin.sock` in the node's directory, sends one [`Request`] and waits for the
//! reply. While the service works, it sends a sign of progress every second; a process that gets
//! none for the origin's timeout gives up, so that a dead origin delays nobody for ever.

use forebay_controls::Pattern;
use forebay_store::ObjectId;
use forebay_store::codec::{Wire, decode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The socket's name in the node's directory.
pub const SOCKET: &str = "origin.sock";
/// Longest message. Bytes.
pub const MESSAGE: usize = 32 << 10;
/// How long a process waits for a sign of progress, unless the pool's configuration says it.
/// Milliseconds.
pub const TIMEOUT_MS: u64 = 60_000;
/// How long a process waits for a service that isn't there, and how often it looks.
const RESTARTS: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);

/// How changes of files behind which the origin is are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginMode {
    /// Nothing can be changed.
    ReadOnly,
    /// Changes are written to the origin in the background.
    #[default]
    WriteBack,
    /// Changes are never written to the origin.
    Scratch,
}

const MODES: [(&str, OriginMode); 3] = [
    ("read-only", OriginMode::ReadOnly),
    ("write-back", OriginMode::WriteBack),
    ("scratch", OriginMode::Scratch),
];

impl fmt::Display for OriginMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = MODES.iter().find(|(_, mode)| mode == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

impl FromStr for OriginMode {
    type Err = String;

    fn from_str(text: &str) -> Result<OriginMode, String> {
        let found = MODES.iter().find(|(word, _)| *word == text);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            format!("there is no mode '{text}'; choose read-only, write-back or scratch")
        })
    }
}

/// The mode of the paths that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRule {
    /// As in rules of controls: `/out/**`, from the root of the pool.
    pub path: String,
    pub mode: OriginMode,
}

/// The slow store behind a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginConfig {
    /// An absolute path, outside the pool.
    pub path: String,
    /// The directory of the pool that stands for it: `/` or `/data`.
    pub at: String,
    /// The mode of paths that no rule matches.
    pub mode: OriginMode,
    /// Modes by path; the last rule that matches counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<OriginRule>,
    /// How long a file rests before its changes are written to the origin. Milliseconds.
    pub lag_ms: u64,
    /// How long a request may make no progress before it fails with ETIMEDOUT. Milliseconds; more
    /// than the second after which signs of progress come.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
}

fn timeout_ms() -> u64 {
    TIMEOUT_MS
}

impl OriginConfig {
    /// How long a request may make no progress.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// The mode of a path of the pool.
    pub fn mode_of(&self, path: &[u8]) -> OriginMode {
        let matches = |rule: &&OriginRule| {
            Pattern::parse(&rule.path).is_ok_and(|pattern| {
                let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
                let state = names.fold(pattern.root(), |state, name| pattern.below(state, name));
                pattern.matches(state)
            })
        };
        let rule = self.rules.iter().rev().find(matches);
        rule.map_or(self.mode, |rule| rule.mode)
    }

    /// Whether any path is read-only.
    pub fn may_be_read_only(&self) -> bool {
        let mut modes = self.rules.iter().map(|rule| rule.mode);
        self.mode == OriginMode::ReadOnly || modes.any(|mode| mode == OriginMode::ReadOnly)
    }

    /// The path at the origin of a path of the pool, relative to [`OriginConfig::path`]; None if
    /// the origin isn't behind it.
    pub fn relative<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let at = self.at.trim_end_matches('/').as_bytes();
        match path.strip_prefix(at)? {
            b"" => Some(b""),
            rest => rest.strip_prefix(b"/"),
        }
    }
}

/// A request to the origin service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The entries of a directory.
    Entries(ObjectId),
    /// The bytes of a file, which has had this name; with `cut`, the file is about to be cut to
    /// nothing, and needs none.
    Bytes {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
        cut: bool,
    },
    /// The object under this name is about to lose it.
    Remove { dir: ObjectId, name: Vec<u8> },
    /// The object under the first name is about to get the second one.
    Rename {
        from: (ObjectId, Vec<u8>),
        to: (ObjectId, Vec<u8>),
    },
    /// All changes below this path of the pool are to be at the origin.
    Sync(Vec<u8>),
    /// Bytes of clean files below this path are to leave the pool.
    Evict(Vec<u8>),
    /// The bytes of all files below this path are to be in the pool.
    Prefetch(Vec<u8>),
    /// How things stand.
    Status,
}

type Fields = (u8, ObjectId, Vec<u8>, ObjectId, Vec<u8>);

impl Request {
    /// The request as a message.
    pub fn encode(&self) -> Vec<u8> {
        let none = ObjectId(0);
        let fields: Fields = match self {
            Request::Entries(id) => (0, *id, Vec::new(), none, Vec::new()),
            Request::Bytes { id, dir, name, cut } => {
                (1 + u8::from(*cut), *dir, name.clone(), *id, Vec::new())
            }
            Request::Remove { dir, name } => (3, *dir, name.clone(), none, Vec::new()),
            Request::Rename { from, to } => (4, from.0, from.1.clone(), to.0, to.1.clone()),
            Request::Sync(path) => (5, none, path.clone(), none, Vec::new()),
            Request::Evict(path) => (6, none, path.clone(), none, Vec::new()),
            Request::Prefetch(path) => (7, none, path.clone(), none, Vec::new()),
            Request::Status => (8, none, Vec::new(), none, Vec::new()),
        };
        let mut bytes = Vec::new();
        fields.put(&mut bytes);
        bytes
    }

    /// The request in a message; None if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (kind, id, name, other, other_name) = decode::<Fields>(bytes)?;
        Some(match kind {
            0 => Request::Entries(id),
            1 | 2 => Request::Bytes {
                id: other,
                dir: id,
                name,
                cut: kind == 2,
            },
            3 => Request::Remove { dir: id, name },
            4 => Request::Rename {
                from: (id, name),
                to: (other, other_name),
            },
            5 => Request::Sync(name),
            6 => Request::Evict(name),
            7 => Request::Prefetch(name),
            8 => Request::Status,
            _ => return None,
        })
    }
}

/// A reply's first byte: the service works on it; or this is the result.
pub const PROGRESS: u8 = 0;
pub const RESULT: u8 = 1;

/// The final message: an errno, or 0, and a text.
pub fn encode_result(error: i32, text: &str) -> Vec<u8> {
    let most = MESSAGE - 5;
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = vec![RESULT];
    bytes.extend_from_slice(&error.to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..end]);
    bytes
}

/// A request that failed: the errno for the program, and a sentence for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub error: Errno,
    pub text: String,
}

impl Refusal {
    fn new(error: Errno, text: &str) -> Refusal {
        Refusal {
            error,
            text: text.to_owned(),
        }
    }
}

/// Asks the origin service of the node in `dir`, and waits for the result: a text. Blocks as long
/// as the service makes progress. If the service isn't there, or dies meanwhile, it is waited for:
/// each request can be repeated.
///
/// # Errors
/// The errno of what failed at the origin or in the pool. ENOTCONN: the service doesn't run.
/// ETIMEDOUT: it made no progress for `timeout`.
pub fn ask(dir: &Path, request: &Request, timeout: Duration) -> Result<String, Refusal> {
    let until = Instant::now() + RESTARTS;
    loop {
        match ask_once(dir, request, timeout) {
            Err(refusal) if refusal.error == Errno::NOTCONN && Instant::now() < until => {
                let pause = rustix::thread::Timespec {
                    tv_sec: 0,
                    tv_nsec: RETRY.as_nanos() as i64,
                };
                let _ = rustix::thread::nanosleep(&pause);
            }
            result => return result,
        }
    }
}

fn ask_once(dir: &Path, request: &Request, timeout: Duration) -> Result<String, Refusal> {
    let no_service = |e: Errno| {
        let text = format!("the pool's origin service doesn't answer ({e}): forebay up --reopen");
        Refusal::new(Errno::NOTCONN, &text)
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(no_service)?;
    let address = SocketAddrUnix::new(dir.join(SOCKET)).map_err(no_service)?;
    connect(&socket, &address).map_err(no_service)?;
    send(&socket, &request.encode(), SendFlags::NOSIGNAL).map_err(no_service)?;
    let mut message = vec![0; MESSAGE];
    loop {
        let limit = rustix::time::Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], limit.as_ref()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(no_service(e)),
            Ok(0) => {
                let text = format!(
                    "the origin has made no progress for {} s",
                    timeout.as_secs_f64()
                );
                return Err(Refusal::new(Errno::TIMEDOUT, &text));
            }
            Ok(_) => {}
        }
        let n = match recv(&socket, &mut message[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(no_service(e)),
            Ok((0, _)) => return Err(no_service(Errno::CONNRESET)),
            Ok((_, n)) => n.min(message.len()),
        };
        match &message[..n] {
            [RESULT, e0, e1, e2, e3, text @ ..] => {
                let text = String::from_utf8_lossy(text).into_owned();
                return match i32::from_le_bytes([*e0, *e1, *e2, *e3]) {
                    0 => Ok(text),
                    error => Err(Refusal {
                        error: Errno::from_raw_os_error(error),
                        text,
                    }),
                };
            }
            _ => continue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_garbage_is_refused() {
        let (id, name) = (ObjectId(7), b"a name".to_vec());
        let all = [
            Request::Entries(id),
            Request::Bytes {
                id,
                dir: ObjectId(9),
                name: name.clone(),
                cut: false,
            },
            Request::Bytes {
                id,
                dir: ObjectId(9),
                name: name.clone(),
                cut: true,
            },
            Request::Remove {
                dir: id,
                name: name.clone(),
            },
            Request::Rename {
                from: (id, name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
            },
            Request::Sync(name.clone()),
            Request::Evict(name.clone()),
            Request::Prefetch(name),
            Request::Status,
        ];
        for request in all {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            for cut in 0..bytes.len() {
                assert_eq!(Request::decode(&bytes[..cut]), None);
            }
        }
        assert_eq!(Request::decode(&[200; 40]), None);
    }

    #[test]
    fn the_last_rule_that_matches_counts() {
        let rule = |path: &str, mode| OriginRule {
            path: path.into(),
            mode,
        };
        let config = OriginConfig {
            path: "/lustre/case".into(),
            at: "/data".into(),
            mode: OriginMode::ReadOnly,
            rules: vec![
                rule("/data/out/**", OriginMode::WriteBack),
                rule("/data/out/tmp/**", OriginMode::Scratch),
            ],
            lag_ms: 0,
            timeout_ms: TIMEOUT_MS,
        };
        assert_eq!(config.mode_of(b"/data/x"), OriginMode::ReadOnly);
        assert_eq!(config.mode_of(b"/data/out/x"), OriginMode::WriteBack);
        assert_eq!(config.mode_of(b"/data/out/tmp/x"), OriginMode::Scratch);
        assert_eq!(config.relative(b"/data/a/b"), Some(&b"a/b"[..]));
        assert_eq!(config.relative(b"/data"), Some(&b""[..]));
        assert_eq!(config.relative(b"/database"), None);
        assert_eq!(config.relative(b"/other"), None);
    }
}
