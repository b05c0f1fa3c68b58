//! Common parts of the daemon tests. Nodes have their own directories and use loopback; a simple
//! replacement of the store answers their requests. Daemons and requesters can be processes, which
//! run this test program again.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test that includes this file uses a part of it"
)]

use forebay_client::requests::Channel;
use forebay_cluster::peers::{Bytes, PeerReply, Peers};
use forebay_cluster::serve::{Class, Reply};
pub use forebay_fuzz::within;
use forebay_net::{NodeId, PoolId, PoolKey};
use forebay_placement::map::{Address, Medium, MediumKind};
use forebay_placement::{Node, PoolMap, State};
use forebay_pool::daemon::{Daemon, Identity, Options, Serve, read_map};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Answers with the head, and with the sum of the request's bytes if there are any.
pub const ECHO: u16 = 1;
/// Returns as many bytes as the head says.
pub const GIVE: u16 = 2;
/// Appends the head to the file `done`; must not be carried out twice.
pub const NOTE: u16 = 3;
/// As `NOTE`, but may be carried out twice.
pub const NOTE_AGAIN: u16 = 4;
/// Takes as many milliseconds as the head's text says.
pub const SLOW: u16 = 5;
/// Sends an ECHO to each other node.
pub const ASK: u16 = 6;
/// Answers with an error.
pub const FAIL: u16 = 7;
/// Returns bytes, and records that it did.
pub const GIVE_ONCE: u16 = 8;
/// Waits until the node's directory has a file `gate`, and records that it did. The wait is a
/// request that may take long.
pub const WAIT: u16 = 9;

pub const POOL: PoolId = PoolId([5; 16]);

/// Handler of the requests above.
pub struct Simple {
    pub dir: PathBuf,
    pub others: Arc<dyn Peers>,
    pub gone: Mutex<Vec<NodeId>>,
    /// Time that carrying out a note takes.
    pub pause: Duration,
}

pub fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(7, |s: u64, b| s.wrapping_mul(31).wrapping_add((*b).into()))
}

pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|i| (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

pub fn number(head: &[u8]) -> u64 {
    head.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

impl Simple {
    fn note(&self, head: &[u8]) {
        std::thread::sleep(self.pause);
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("done"))
            .unwrap();
        let line = String::from_utf8_lossy(head).into_owned() + "\n";
        file.write_all(line.as_bytes()).unwrap();
    }
}

impl Serve for Simple {
    fn class(&self, kind: u16) -> Option<Class> {
        match kind {
            ECHO..=NOTE_AGAIN | FAIL | GIVE_ONCE => Some(Class::Leaf),
            SLOW | ASK | WAIT => Some(Class::Composite),
            _ => None,
        }
    }

    fn repeatable(&self, kind: u16) -> bool {
        matches!(kind, ECHO | GIVE | NOTE_AGAIN)
    }

    fn is_long(&self, kind: u16) -> bool {
        kind == WAIT
    }

    fn serve(&self, from: NodeId, kind: u16, head: &[u8], body: &[u8]) -> Result<Reply, Errno> {
        let reply = |head: &[u8]| Reply {
            head: head.to_vec(),
            body: Vec::new(),
        };
        match kind {
            ECHO if body.is_empty() => Ok(reply(head)),
            ECHO => Ok(reply(&sum(body).to_le_bytes())),
            GIVE | GIVE_ONCE => {
                if kind == GIVE_ONCE {
                    self.note(&head[8..]);
                }
                Ok(Reply {
                    head: head.to_vec(),
                    body: pattern(number(head) as usize, head[0]),
                })
            }
            NOTE | NOTE_AGAIN => {
                self.note(head);
                Ok(reply(b"noted"))
            }
            SLOW => {
                std::thread::sleep(Duration::from_millis(number(head)));
                Ok(reply(b"slept"))
            }
            ASK => {
                let nodes: Vec<NodeId> = self.others.nodes().to_vec();
                let replies = self.others.ask_each(&nodes, ECHO, head);
                let good = replies
                    .iter()
                    .filter(|t| t.as_ref().is_ok_and(|t| t.head == head));
                let mut answer = vec![good.count() as u8, from.0 as u8];
                let bytes = pattern(100_000, 1);
                // SAFETY: `bytes` outlives the request.
                let echoed = unsafe {
                    let bytes = Bytes::Send(bytes.as_ptr(), bytes.len());
                    self.others.ask(from, ECHO, b"", bytes)?
                };
                answer.extend_from_slice(&echoed.head);
                Ok(reply(&answer))
            }
            WAIT => {
                let _ = std::fs::write(self.dir.join("waiting"), b"");
                while !self.dir.join("gate").exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.note(head);
                Ok(reply(b"noted"))
            }
            FAIL => Err(Errno::NOENT),
            _ => Err(Errno::PROTO),
        }
    }

    fn restarted(&self, node: NodeId) -> Result<(), Errno> {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("restarts"))
            .unwrap();
        writeln!(file, "{}", node.0).unwrap();
        Ok(())
    }

    fn gone(&self, node: NodeId) {
        self.gone.lock().unwrap().push(node);
        let line = format!("{}\n", node.0);
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("gone"))
            .unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// Directories of nodes, removed when this is dropped.
pub struct Nodes {
    pub dir: PathBuf,
    pub count: u32,
}

impl Nodes {
    pub fn new(count: u32) -> Nodes {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("fb-daemons-{}-{n}", std::process::id()));
        let key = PoolKey::generate().unwrap();
        for i in 0..count {
            let node = dir.join(format!("node-{i}"));
            std::fs::create_dir_all(&node).unwrap();
            key.write(&node.join("key")).unwrap();
        }
        Nodes { dir, count }
    }

    pub fn of(&self, node: u32) -> PathBuf {
        self.dir.join(format!("node-{node}"))
    }

    pub fn channel(&self, node: u32) -> Channel {
        Channel::open(&self.of(node), NodeId(node), self.count).unwrap()
    }

    /// The notes recorded at a node, and how often each was recorded.
    pub fn noted(&self, node: u32) -> HashMap<String, usize> {
        let text = std::fs::read_to_string(self.of(node).join("done")).unwrap_or_default();
        let mut noted = HashMap::new();
        for line in text.lines() {
            *noted.entry(line.to_owned()).or_insert(0) += 1;
        }
        noted
    }

    pub fn log(&self, node: u32) -> String {
        std::fs::read_to_string(self.of(node).join("log")).unwrap_or_default()
    }

    /// Starts daemons in this process, which serve.
    pub fn daemons(&self, options: &Options) -> Vec<(Daemon, Arc<Simple>)> {
        let made: Vec<_> = (0..self.count)
            .map(|i| listen(&self.of(i), i, self.count, options.clone(), Duration::ZERO))
            .collect();
        let addresses: Vec<SocketAddr> = made.iter().map(|(d, _)| d.addresses()[0]).collect();
        let map = Arc::new(map(&addresses));
        for (daemon, _) in &made {
            daemon.serve(map.clone()).unwrap();
        }
        made
    }

    /// Starts daemons as processes, which serve.
    pub fn processes(&self, settings: &Settings) -> Vec<Process> {
        let mut made: Vec<_> = (0..self.count).map(|i| self.process(i, settings)).collect();
        let addresses: Vec<SocketAddr> = made.iter().map(|d| d.address).collect();
        for process in &mut made {
            process.serve(Some(&map(&addresses)));
        }
        made
    }

    /// Starts a daemon as a process, which listens.
    pub fn process(&self, node: u32, settings: &Settings) -> Process {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.of(node).join("log"))
            .unwrap();
        let mut child = again("daemon")
            .env("FB_DIR", self.of(node))
            .env("FB_NODE", format!("{node} {}", self.count))
            .env("FB_SETTINGS", settings.text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "{}", self.log(node));
            if let Some((_, address)) = line.split_once("address ") {
                break address.trim().parse().unwrap();
            }
        };
        Process {
            input: child.stdin.take().unwrap(),
            child,
            out,
            address,
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Settings of a daemon process.
#[derive(Clone, Debug)]
pub struct Settings {
    pub request_timeout: u64,
    pub gone_after: u64,
    pub pause: u64,
    pub advertise: Option<SocketAddr>,
    /// Maximum number of descriptors of the process.
    pub descriptors: Option<u64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            request_timeout: 10_000,
            gone_after: 30_000,
            pause: 0,
            advertise: None,
            descriptors: None,
        }
    }
}

impl Settings {
    fn text(&self) -> String {
        let advertise = self.advertise.map_or("-".into(), |a| a.to_string());
        let Settings {
            request_timeout,
            gone_after,
            pause,
            ..
        } = self;
        let descriptors = self.descriptors.unwrap_or(0);
        format!("{request_timeout} {gone_after} {pause} {advertise} {descriptors}")
    }

    fn from(text: &str) -> (Options, Duration) {
        let words: Vec<&str> = text.split(' ').collect();
        let ms = |i: usize| Duration::from_millis(words[i].parse().unwrap());
        // The limit is set before the options are made, since some options depend on it.
        let descriptors: u64 = words[4].parse().unwrap();
        if descriptors > 0 {
            let limit = rustix::process::Rlimit {
                current: Some(descriptors),
                maximum: Some(descriptors),
            };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        }
        let options = Options {
            request_timeout: ms(0),
            gone_after: ms(1),
            advertise: words[3].parse().ok().into_iter().collect(),
            ..Options::default()
        };
        (options, ms(2))
    }
}

/// A daemon process.
pub struct Process {
    pub child: Child,
    input: ChildStdin,
    out: BufReader<std::process::ChildStdout>,
    pub address: SocketAddr,
}

impl Process {
    /// Makes the daemon serve. Without a map, it uses the map in its directory.
    pub fn serve(&mut self, map: Option<&PoolMap>) {
        let bytes = map.map_or(Vec::new(), |m| m.encode());
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(self.input, "{hex}").unwrap();
        let mut line = String::new();
        while !line.contains("serving") {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0);
        }
    }

    /// Number of descriptors of the process.
    pub fn descriptors(&self) -> usize {
        let dir = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(dir).unwrap().count()
    }

    /// The daemon's TCP connections that exist at both ends.
    pub fn connections(&self) -> usize {
        let mut established = std::collections::HashSet::new();
        for table in ["tcp", "tcp6"] {
            let path = format!("/proc/{}/net/{table}", self.child.id());
            let text = std::fs::read_to_string(path).unwrap_or_default();
            for line in text.lines().skip(1) {
                let fields: Vec<&str> = line.split_whitespace().collect();
                if fields[3] == "01" {
                    established.insert(format!("socket:[{}]", fields[9]));
                }
            }
        }
        let dir = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(dir)
            .unwrap()
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .filter(|link| link.to_str().is_some_and(|link| established.contains(link)))
            .count()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command that runs this program again, in a role that the test named `child` reads.
pub fn again(what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("FB_CHILD", what)
        .stdin(Stdio::null());
    command
}

/// Plays the role in the environment variable FB_CHILD, if it is set. Must be called by a test
/// named `child`.
pub fn child() {
    let Ok(what) = std::env::var("FB_CHILD") else {
        return;
    };
    // The process ends after 120 s in any case.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let dir = PathBuf::from(std::env::var_os("FB_DIR").unwrap());
    let node = std::env::var("FB_NODE").unwrap();
    let (node, nodes) = node.split_once(' ').unwrap();
    let (node, nodes) = (node.parse().unwrap(), nodes.parse().unwrap());
    match what.as_str() {
        "daemon" => {
            let (options, pause) = Settings::from(&std::env::var("FB_SETTINGS").unwrap());
            let (daemon, _) = listen(&dir, node, nodes, options, pause);
            println!("address {}", daemon.addresses()[0]);
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            let bytes: Vec<u8> = (0..line.trim().len() / 2)
                .map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).unwrap())
                .collect();
            let map = if bytes.is_empty() {
                read_map(&dir).unwrap()
            } else {
                PoolMap::decode(&bytes).unwrap()
            };
            daemon.serve(Arc::new(map)).unwrap();
            println!("serving");
            // Serves until the test has ended.
            let _ = std::io::stdin().read_line(&mut line);
        }
        "requester" => {
            // Sends large and small requests until it is killed.
            let channel = Channel::open(&dir, NodeId(node), nodes).unwrap();
            let bytes = pattern(700_000, 3);
            std::thread::scope(|s| {
                for t in 0..6u8 {
                    let (channel, bytes) = (&channel, &bytes);
                    s.spawn(move || {
                        let mut room = vec![0; bytes.len()];
                        loop {
                            let (at, len) = (room.as_mut_ptr(), room.len());
                            let length = (len as u64).to_le_bytes();
                            match t % 3 {
                                0 => drop(send(channel, 1, ECHO, b"", bytes)),
                                1 => drop(ask(channel, 1, GIVE, &length, Bytes::Receive(at, len))),
                                _ => drop(call(channel, 1, ECHO, b"hello")),
                            }
                        }
                    });
                }
            });
        }
        _ => {}
    }
    std::process::exit(0);
}

pub fn listen(
    dir: &Path,
    node: u32,
    nodes: u32,
    options: Options,
    pause: Duration,
) -> (Daemon, Arc<Simple>) {
    let identity = Identity {
        pool: POOL,
        node: NodeId(node),
        nodes,
    };
    let mut simple = None;
    let daemon = Daemon::listen_as(dir, identity, options, |others| {
        let made = Arc::new(Simple {
            dir: dir.to_owned(),
            others,
            gone: Mutex::default(),
            pause,
        });
        simple = Some(made.clone());
        Ok(made)
    });
    (daemon.unwrap(), simple.unwrap())
}

pub fn map(addresses: &[SocketAddr]) -> PoolMap {
    let node = |(i, a): (usize, &SocketAddr)| Node {
        number: NodeId(i as u32),
        name: format!("host{i}"),
        addresses: vec![Address {
            ip: a.ip(),
            port: a.port(),
        }],
        state: State::Up,
        since: 0,
        weight: 100,
        media: vec![Medium {
            kind: MediumKind::Memory,
            capacity: 1 << 30,
        }],
    };
    PoolMap::first(POOL.0, addresses.iter().enumerate().map(node).collect()).unwrap()
}

pub fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub fn ask(
    c: &dyn Peers,
    node: u32,
    kind: u16,
    head: &[u8],
    bytes: Bytes,
) -> Result<PeerReply, Errno> {
    // SAFETY: the tests keep the bytes until the answer has come.
    unsafe { c.ask(NodeId(node), kind, head, bytes) }
}

/// Sends a request without bytes; returns the head of the reply.
pub fn call(c: &dyn Peers, node: u32, kind: u16, head: &[u8]) -> Result<Vec<u8>, Errno> {
    ask(c, node, kind, head, Bytes::None).map(|t| t.head)
}

/// Sends bytes with a request; returns the head of the reply.
pub fn send(
    c: &dyn Peers,
    node: u32,
    kind: u16,
    head: &[u8],
    bytes: &[u8],
) -> Result<Vec<u8>, Errno> {
    let bytes = Bytes::Send(bytes.as_ptr(), bytes.len());
    ask(c, node, kind, head, bytes).map(|t| t.head)
}

/// Sends a request for `length` bytes, with space for a few more.
pub fn receive(
    c: &dyn Peers,
    node: u32,
    kind: u16,
    length: usize,
    more: &str,
) -> Result<Vec<u8>, Errno> {
    let mut room = vec![0; length + 10];
    let head = [&(length as u64).to_le_bytes()[..], more.as_bytes()].concat();
    let bytes = Bytes::Receive(room.as_mut_ptr(), room.len());
    let reply = ask(c, node, kind, &head, bytes)?;
    assert_eq!(reply.head, head);
    room.truncate(reply.received);
    Ok(room)
}

/// Waits until `f` holds.
pub fn until(what: &str, seconds: u64, f: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !f() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
