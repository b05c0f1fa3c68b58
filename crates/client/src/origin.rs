//! The slow store behind a pool: what a pool's configuration says of it, and how processes ask the
//! origin service.
//!
//! The service runs in the keeper's process of one node, [`SERVICE_NODE`]. A process of this node
//! that needs something that is at the origin only connects to `origin.sock` in the node's
//! directory, sends one [`Request`] and waits for the reply; processes of other nodes do the same
//! through their daemon. While the service works, it sends a sign of progress every second; a
//! process that gets none for the origin's timeout gives up, so that a dead origin delays nobody for
//! ever.

use forebay_cluster::Cluster;
pub use forebay_cluster::serve::origin::{MESSAGE, PROGRESS, RESULT, SOCKET};
use forebay_controls::Pattern;
use forebay_placement::NodeId;
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
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A file in a node's directory: its pool has an origin.
pub const SIGN: &str = "origin";
/// The node on which the service runs.
pub const SERVICE_NODE: u32 = 0;
/// How long a process waits for a sign of progress, unless the pool's configuration says it.
/// Milliseconds.
pub const TIMEOUT_MS: u64 = 60_000;
/// Size from which files come in by ranges, unless the pool's configuration says it. Bytes.
pub const RANGES: u64 = 64 << 20;
/// Bytes that come in together. Whole blocks of a file are in the pool, or aren't.
pub const BLOCK: u64 = 8 << 20;
/// How long a process waits for a service that isn't there, since it was last there, and how often
/// it looks.
const RESTARTS: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// Pauses between looks for a message of another node's service: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How changes of files behind which the origin is are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginMode {
    /// Never in the pool: programs use the origin's own files.
    Off,
    /// Nothing can be changed.
    ReadOnly,
    /// Changes are written to the origin in the background.
    #[default]
    WriteBack,
    /// As write-back; fsync(2) and close(2) return when the origin has them.
    WriteThrough,
    /// Changes are never written to the origin.
    Scratch,
}

impl OriginMode {
    /// Whether changes are written to the origin.
    pub fn is_written(self) -> bool {
        matches!(self, OriginMode::WriteBack | OriginMode::WriteThrough)
    }
}

const MODES: [(&str, OriginMode); 5] = [
    ("off", OriginMode::Off),
    ("read-only", OriginMode::ReadOnly),
    ("write-back", OriginMode::WriteBack),
    ("write-through", OriginMode::WriteThrough),
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
            format!(
                "there is no mode '{text}'; choose off, read-only, write-back, write-through or scratch"
            )
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
    /// An absolute path, outside the pool, or the address of a bucket: `s3://BUCKET/PREFIX`.
    pub path: String,
    /// The inode number of the directory there: a host on which it is another sees something else.
    #[serde(default)]
    pub inode: u64,
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
    /// Limit on bytes per second from and to the origin, for all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Size from which a file that is opened for reading only comes in by ranges. Bytes.
    #[serde(default = "ranges")]
    pub ranges: u64,
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

    /// The mode of a path of the pool at which a directory is, or may be. One in which files may
    /// have another mode than `off` is in the pool, and so is the origin's root.
    pub fn mode_of_dir(&self, path: &[u8]) -> OriginMode {
        match self.mode_of(path) {
            OriginMode::Off => {
                let (modes, is_root) = (self.modes(), self.relative(path) == Some(b""));
                match is_root || modes.is_in_pool(&modes.at(path)) {
                    true => OriginMode::WriteBack,
                    false => OriginMode::Off,
                }
            }
            mode => mode,
        }
    }

    /// The modes of paths, for those who look at many.
    pub fn modes(&self) -> Modes {
        let rule = |rule: &OriginRule| Some((Pattern::parse(&rule.path).ok()?, rule.mode));
        Modes {
            rules: self.rules.iter().filter_map(rule).collect(),
            mode: self.mode,
        }
    }

    /// Why this host doesn't see the origin by its path; None if it does.
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

    /// The path in the pool of a path of the origin.
    pub fn pool_path(&self, relative: &[u8]) -> Vec<u8> {
        let at = self.at.trim_end_matches('/').as_bytes();
        match relative {
            b"" if at.is_empty() => b"/".to_vec(),
            b"" => at.to_vec(),
            _ => [at, b"/", relative].concat(),
        }
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

/// An order of the service to the copier of another node, which moves the bytes of files that are
/// there. Paths are relative to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Copies `length` bytes at `at` of this version of a file in. The reply is the bytes copied,
    /// without holes.
    Copy {
        id: ObjectId,
        path: Vec<u8>,
        version: u64,
        at: u64,
        length: u64,
    },
    /// Writes files of a directory back; with `compares`, those of the same size and time, too. The
    /// reply is the copier's report.
    Write {
        path: Vec<u8>,
        names: Vec<Vec<u8>>,
        compares: bool,
    },
    /// Looks whether a file is there: that the copier sees the same directory as the service.
    Look(Vec<u8>),
    /// Stops all orders with lower numbers, and waits until they have ended.
    Stop,
}

/// The modes of paths, computed name by name.
pub struct Modes {
    rules: Vec<(Pattern, OriginMode)>,
    mode: OriginMode,
}

/// What is known of a path: the state of each pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModesAt(Vec<u64>);

/// Where an entry of a directory of the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    Pool,
    /// At the origin only: its mode is `off`, and that of all below it.
    Origin,
    /// At the origin only, unless it is a directory.
    OriginUnlessDirectory,
}

impl Modes {
    /// What is known of a path of the pool.
    pub fn at(&self, path: &[u8]) -> ModesAt {
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let root = ModesAt(self.rules.iter().map(|(p, _)| p.root()).collect());
        names.fold(root, |at, name| self.below(&at, name))
    }

    /// What is known of the entry `name` of a directory.
    pub fn below(&self, at: &ModesAt, name: &[u8]) -> ModesAt {
        let all = self.rules.iter().zip(&at.0);
        ModesAt(all.map(|((p, _), state)| p.below(*state, name)).collect())
    }

    fn mode(&self, at: &ModesAt) -> OriginMode {
        let mut all = self.rules.iter().zip(&at.0).rev();
        let found = all.find(|((pattern, _), state)| pattern.matches(**state));
        found.map_or(self.mode, |((_, mode), _)| *mode)
    }

    /// Whether a directory is in the pool: it, or something below, may have another mode than `off`.
    fn is_in_pool(&self, at: &ModesAt) -> bool {
        let mut all = self.rules.iter().zip(&at.0);
        self.mode(at) != OriginMode::Off
            || all.any(|((p, mode), state)| *mode != OriginMode::Off && p.goes_on(*state))
    }

    /// Whether entries of a directory may be at the origin only.
    pub fn may_hold_outer(&self, dir: &ModesAt) -> bool {
        for ((pattern, mode), state) in self.rules.iter().zip(&dir.0).rev() {
            if *mode == OriginMode::Off && pattern.goes_on(*state) {
                return true;
            }
            // Earlier rules don't count in it.
            if *mode != OriginMode::Off && pattern.matches_all_in(*state) {
                return false;
            }
        }
        self.mode == OriginMode::Off
    }

    /// Where the entry `name` of a directory is.
    pub fn lead(&self, dir: &ModesAt, name: &[u8]) -> Lead {
        let at = self.below(dir, name);
        match (self.mode(&at), self.is_in_pool(&at)) {
            (OriginMode::Off, true) => Lead::OriginUnlessDirectory,
            (OriginMode::Off, false) => Lead::Origin,
            _ => Lead::Pool,
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
    /// A range of a file, which was opened for reading by this name, is to be in the pool; nothing
    /// of it is, with a length of 0: it has just been opened. The reply is the number of the fill
    /// ([`forebay_store::control::Open::fill`]), or nothing if the whole file is in the pool.
    Range {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
        at: u64,
        length: u64,
    },
    /// The object is to lose this name.
    Remove {
        dir: ObjectId,
        name: Vec<u8>,
        id: ObjectId,
    },
    /// The object, which has had the first name, is to get one more.
    Link {
        id: ObjectId,
        known: (ObjectId, Vec<u8>),
        to: (ObjectId, Vec<u8>),
    },
    /// The object under the first name is to get the second one, which `replaced` has.
    Rename {
        from: (ObjectId, Vec<u8>),
        to: (ObjectId, Vec<u8>),
        id: ObjectId,
        replaced: Option<ObjectId>,
        may_replace: bool,
    },
    /// A writer needs room for so many bytes of this file.
    Room { id: ObjectId, bytes: u64 },
    /// The changes of a file, which has had this name, are to be at the origin.
    SyncFile {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
    },
    /// Pins everything below this path: it isn't evicted. Or unpins it.
    Pin { path: Vec<u8>, is_pinned: bool },
    /// Stops writing back in the background (true), or resumes it.
    Hold(bool),
    /// All changes below this path of the pool are to be at the origin.
    Sync(Vec<u8>),
    /// Bytes of clean files below this path are to leave the pool.
    Evict(Vec<u8>),
    /// The bytes of all files below this path are to be in the pool.
    Prefetch(Vec<u8>),
    /// The `user.*` attributes of a released file, which has had this name, are to be in the pool.
    Attributes {
        id: ObjectId,
        dir: ObjectId,
        name: Vec<u8>,
    },
    /// The directory is to be at the origin, too.
    Settle(ObjectId),
    /// The pool is to show those entries of the directory that are at the origin only.
    Outer(ObjectId),
    /// How things stand.
    Status,
    /// To a copier, by the service of this number. Higher numbers replace lower ones.
    Order { service: u64, order: Order },
}

type Fields = (
    u8,
    (ObjectId, Vec<u8>),
    (ObjectId, Vec<u8>),
    ObjectId,
    Option<ObjectId>,
);

impl Request {
    /// The request as a message.
    pub fn encode(&self) -> Vec<u8> {
        let none = ObjectId(0);
        let no = (none, Vec::new());
        let (kind, one, other, id) = match self {
            Request::Entries(id) => (0, no.clone(), no, *id),
            Request::Settle(id) => (30, no.clone(), no, *id),
            Request::Outer(id) => (31, no.clone(), no, *id),
            Request::Bytes { id, dir, name, cut } => {
                (1 + u8::from(*cut), (*dir, name.clone()), no, *id)
            }
            Request::Remove { dir, name, id } => (3, (*dir, name.clone()), no, *id),
            Request::Rename {
                from,
                to,
                id,
                may_replace,
                ..
            } => {
                let kind = if *may_replace { 4 } else { 10 };
                (kind, from.clone(), to.clone(), *id)
            }
            Request::Sync(path) => (5, (none, path.clone()), no, none),
            Request::Evict(path) => (6, (none, path.clone()), no, none),
            Request::Prefetch(path) => (7, (none, path.clone()), no, none),
            Request::Status => (8, no.clone(), no, none),
            Request::Link { id, known, to } => (9, known.clone(), to.clone(), *id),
            Request::Room { id, bytes } => (11, (ObjectId(*bytes), Vec::new()), no, *id),
            Request::SyncFile { id, dir, name } => (12, (*dir, name.clone()), no, *id),
            Request::Pin { path, is_pinned } => {
                (13 + u8::from(*is_pinned), (none, path.clone()), no, none)
            }
            Request::Attributes { id, dir, name } => (17, (*dir, name.clone()), no, *id),
            Request::Range {
                id,
                dir,
                name,
                at,
                length,
            } => {
                let range = (ObjectId(*at), length.to_le_bytes().to_vec());
                (18, (*dir, name.clone()), range, *id)
            }
            Request::Hold(is_held) => (15 + u8::from(*is_held), no.clone(), no, none),
            Request::Order { service, order } => {
                let with = |path: &[u8]| (ObjectId(*service), path.to_vec());
                match order {
                    Order::Copy {
                        id,
                        path,
                        version,
                        at,
                        length,
                    } => {
                        let range = [at.to_le_bytes(), length.to_le_bytes()].concat();
                        (40, with(path), (ObjectId(*version), range), *id)
                    }
                    Order::Write {
                        path,
                        names,
                        compares,
                    } => {
                        let names = (none, names.join(&b'/'));
                        (41 + u8::from(*compares), with(path), names, none)
                    }
                    Order::Look(path) => (43, with(path), no, none),
                    Order::Stop => (44, with(b""), no, none),
                }
            }
        };
        let replaced = match self {
            Request::Rename { replaced, .. } => *replaced,
            _ => None,
        };
        let fields: Fields = (kind, one, other, id, replaced);
        let mut bytes = Vec::new();
        fields.put(&mut bytes);
        bytes
    }

    /// The request in a message; None if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let (kind, (dir, name), (other, other_name), id, replaced) = decode::<Fields>(bytes)?;
        Some(match kind {
            0 => Request::Entries(id),
            30 => Request::Settle(id),
            31 => Request::Outer(id),
            1 | 2 => Request::Bytes {
                id,
                dir,
                name,
                cut: kind == 2,
            },
            3 => Request::Remove { dir, name, id },
            4 | 10 => Request::Rename {
                from: (dir, name),
                to: (other, other_name),
                id,
                replaced,
                may_replace: kind == 4,
            },
            9 => Request::Link {
                id,
                known: (dir, name),
                to: (other, other_name),
            },
            11 => Request::Room { id, bytes: dir.0 },
            12 => Request::SyncFile { id, dir, name },
            13 | 14 => Request::Pin {
                path: name,
                is_pinned: kind == 14,
            },
            15 | 16 => Request::Hold(kind == 16),
            17 => Request::Attributes { id, dir, name },
            18 => Request::Range {
                id,
                dir,
                name,
                at: other.0,
                length: u64::from_le_bytes(other_name.try_into().ok()?),
            },
            5 => Request::Sync(name),
            6 => Request::Evict(name),
            7 => Request::Prefetch(name),
            8 => Request::Status,
            40..=44 => Request::Order {
                service: dir.0,
                order: match kind {
                    40 => {
                        let (at, length) = other_name.split_first_chunk::<8>()?;
                        Order::Copy {
                            id,
                            path: name,
                            version: other.0,
                            at: u64::from_le_bytes(*at),
                            length: u64::from_le_bytes(length.try_into().ok()?),
                        }
                    }
                    43 => Order::Look(name),
                    44 => Order::Stop,
                    _ => Order::Write {
                        path: name,
                        names: other_name
                            .split(|&b| b == b'/')
                            .map(<[u8]>::to_vec)
                            .collect(),
                        compares: kind == 42,
                    },
                },
            },
            _ => return None,
        })
    }
}

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

/// The node that a process asks from.
pub struct Asker<'p> {
    /// Its number, and its directory.
    pub node: u32,
    pub dir: &'p Path,
    pub cluster: Cluster<'p>,
    /// How long it waits for a sign of progress.
    pub timeout: Duration,
}

/// Asks the pool's origin service, and waits for the result: a text. Blocks as long as the service
/// makes progress. If the service isn't there, or dies meanwhile, it is waited for: each request can
/// be repeated.
///
/// # Errors
/// The errno of what failed at the origin or in the pool. ENOTCONN: the service doesn't run.
/// ETIMEDOUT: it made no progress for the origin's timeout. EHOSTDOWN: its node can't be reached.
pub fn ask(from: &Asker<'_>, request: &Request) -> Result<String, Refusal> {
    let mut seen = Instant::now();
    loop {
        let asked = match from.node {
            SERVICE_NODE => ask_here(from.dir, request, from.timeout, &mut seen),
            _ => {
                let service = NodeId(SERVICE_NODE);
                let mut is_there = || seen = Instant::now();
                ask_there(&from.cluster, service, request, from.timeout, &mut is_there)
            }
        };
        match asked {
            Err(refusal) if refusal.error == Errno::NOTCONN && seen.elapsed() < RESTARTS => {
                pause(RETRY);
            }
            result => return result,
        }
    }
}

fn pause(time: Duration) {
    let time = rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: time.as_nanos() as i64,
    };
    let _ = rustix::thread::nanosleep(&time);
}

fn no_service(e: Errno) -> Refusal {
    if e == Errno::ACCESS {
        let text = "the origin is asked by processes of the pool's user only";
        return Refusal::new(e, text);
    }
    let text = format!("the pool's origin service doesn't answer ({e}): forebay up --reopen");
    Refusal::new(Errno::NOTCONN, &text)
}

fn no_progress(timeout: Duration) -> Refusal {
    let seconds = timeout.as_secs_f64();
    let text = format!("the origin has made no progress for {seconds} s");
    Refusal::new(Errno::TIMEDOUT, &text)
}

/// The result in a message; None: the service works on it.
fn result_of(message: &[u8]) -> Option<Result<String, Refusal>> {
    let [RESULT, e0, e1, e2, e3, text @ ..] = message else {
        return None;
    };
    let text = String::from_utf8_lossy(text).into_owned();
    Some(match i32::from_le_bytes([*e0, *e1, *e2, *e3]) {
        0 => Ok(text),
        error => Err(Refusal {
            error: Errno::from_raw_os_error(error),
            text,
        }),
    })
}

/// Has the copier of another node carry an order out. `is_there` is called for each sign of
/// progress.
///
/// # Errors
/// The errno of what failed there. ENOTCONN: no copier runs there. ETIMEDOUT: it made no progress
/// for the timeout. EHOSTDOWN: the node can't be reached. After the last two, it may still work.
pub fn order(
    from: &Asker<'_>,
    node: u32,
    request: &Request,
    is_there: &mut dyn FnMut(),
) -> Result<String, Refusal> {
    ask_there(&from.cluster, NodeId(node), request, from.timeout, is_there)
}

/// Asks the service or the copier of another node, through this node's daemon. `is_there` is called
/// for each sign of progress.
fn ask_there(
    cluster: &Cluster<'_>,
    node: NodeId,
    request: &Request,
    timeout: Duration,
    is_there: &mut dyn FnMut(),
) -> Result<String, Refusal> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = u64::from(std::process::id()) << 32 | NUMBERS.fetch_add(1, Relaxed) & 0xffff_ffff;
    let failed = |e: Errno| match e {
        Errno::NOTCONN => no_service(e),
        e => {
            let text = format!("node {}, which has the origin, can't be asked: {e}", node.0);
            Refusal::new(e, &text)
        }
    };
    let mut bytes = request.encode();
    let (mut last, mut rest) = (Instant::now(), FIRST_PAUSE);
    loop {
        let message = cluster.ask_origin(node, number, &bytes);
        bytes.clear();
        match message.map_err(failed)? {
            Some(message) => {
                if let Some(result) = result_of(&message) {
                    return result;
                }
                last = Instant::now();
                is_there();
            }
            None if last.elapsed() > timeout => return Err(no_progress(timeout)),
            None => {
                pause(rest);
                rest = (rest * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Asks the service of this node. `seen`: when it was last there.
fn ask_here(
    dir: &Path,
    request: &Request,
    timeout: Duration,
    seen: &mut Instant,
) -> Result<String, Refusal> {
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
            Ok(0) => return Err(no_progress(timeout)),
            // An end of the connection, too: until now the service was there.
            Ok(_) => *seen = Instant::now(),
        }
        let n = match recv(&socket, &mut message[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(no_service(e)),
            Ok((0, _)) => return Err(no_service(Errno::CONNRESET)),
            Ok((_, n)) => n.min(message.len()),
        };
        if let Some(result) = result_of(&message[..n]) {
            return result;
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
                dir: ObjectId(9),
                name: name.clone(),
                id,
            },
            Request::Rename {
                from: (ObjectId(9), name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
                id,
                replaced: Some(ObjectId(6)),
                may_replace: true,
            },
            Request::Rename {
                from: (ObjectId(9), name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
                id,
                replaced: None,
                may_replace: false,
            },
            Request::Link {
                id,
                known: (ObjectId(9), name.clone()),
                to: (ObjectId(8), b"other".to_vec()),
            },
            Request::Room { id, bytes: 5 << 32 },
            Request::Settle(id),
            Request::Outer(id),
            Request::SyncFile {
                id,
                dir: ObjectId(9),
                name: name.clone(),
            },
            Request::Pin {
                path: name.clone(),
                is_pinned: true,
            },
            Request::Pin {
                path: name.clone(),
                is_pinned: false,
            },
            Request::Attributes {
                id,
                dir: ObjectId(9),
                name: name.clone(),
            },
            Request::Range {
                id,
                dir: ObjectId(9),
                name: name.clone(),
                at: 5 << 40,
                length: 1 << 33,
            },
            Request::Hold(true),
            Request::Hold(false),
            Request::Sync(name.clone()),
            Request::Evict(name.clone()),
            Request::Prefetch(name.clone()),
            Request::Status,
            Request::Order {
                service: 3,
                order: Order::Copy {
                    id,
                    path: name.clone(),
                    version: 5,
                    at: 1 << 40,
                    length: 7,
                },
            },
            Request::Order {
                service: 3,
                order: Order::Write {
                    path: Vec::new(),
                    names: vec![name.clone(), b"other".to_vec()],
                    compares: true,
                },
            },
            Request::Order {
                service: 3,
                order: Order::Look(name),
            },
            Request::Order {
                service: u64::MAX,
                order: Order::Stop,
            },
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
            inode: 0,
            at: "/data".into(),
            mode: OriginMode::ReadOnly,
            rules: vec![
                rule("/data/out/**", OriginMode::WriteBack),
                rule("/data/out/tmp/**", OriginMode::Scratch),
            ],
            lag_ms: 0,
            timeout_ms: TIMEOUT_MS,
            bandwidth: None,
            ranges: RANGES,
        };
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
        let rule = |path: &str, mode| OriginRule {
            path: path.into(),
            mode,
        };
        let config = OriginConfig {
            path: "/lustre/case".into(),
            inode: 0,
            at: "/".into(),
            mode: OriginMode::Off,
            rules: vec![
                rule("/mesh/**", OriginMode::WriteBack),
                rule("/a/b/*.chk", OriginMode::ReadOnly),
                rule("/mesh/**/*.tmp", OriginMode::Off),
            ],
            lag_ms: 0,
            timeout_ms: TIMEOUT_MS,
            bandwidth: None,
            ranges: RANGES,
        };
        let modes = config.modes();
        let lead = |dir: &str, name: &str| modes.lead(&modes.at(dir.as_bytes()), name.as_bytes());
        assert_eq!(lead("/", "input"), Lead::Origin);
        assert_eq!(lead("/", "mesh"), Lead::OriginUnlessDirectory);
        assert_eq!(lead("/mesh", "x"), Lead::Pool);
        assert_eq!(lead("/mesh/deep", "x"), Lead::Pool);
        // A directory of that name may hold others.
        assert_eq!(lead("/mesh/deep", "x.tmp"), Lead::OriginUnlessDirectory);
        assert_eq!(lead("/a", "b"), Lead::OriginUnlessDirectory);
        assert_eq!(lead("/a", "c"), Lead::Origin);
        assert_eq!(lead("/a/b", "1.chk"), Lead::Pool);
        assert_eq!(lead("/a/b", "1.log"), Lead::Origin);
        assert_eq!(config.mode_of_dir(b"/a"), OriginMode::WriteBack);
        assert_eq!(config.mode_of_dir(b"/a/c"), OriginMode::Off);
        assert_eq!(config.mode_of_dir(b"/"), OriginMode::WriteBack);
        assert_ne!(modes.at(b"/mesh/x"), modes.at(b"/a/x"));
        let outer = |dir: &str, modes: &Modes| modes.may_hold_outer(&modes.at(dir.as_bytes()));
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
        // Another directory than the one that was meant, and none.
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
