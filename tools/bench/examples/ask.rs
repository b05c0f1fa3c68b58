//! Measures a process's request to another node: through a request cell and two daemons, each a
//! process of its own, on loopback; beside bare TCP between two processes in the same run.
//!
//! `cargo run --release -p forebay-bench --example ask [REPETITIONS [ROW]]`. Each row alternates
//! between the two cases; the ratio is the median of the repetitions' ratios.

use forebay_client::requests::Channel;
use forebay_cluster::peers::{Bytes, Peers};
use forebay_cluster::serve::{Class, Reply};
use forebay_net::{NodeId, PoolId, PoolKey};
use forebay_placement::map::Address;
use forebay_placement::{Node, PoolMap, State};
use forebay_pool::daemon::{Daemon, Identity, Options, Serve};
use rustix::io::Errno;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SMALL: u16 = 1;
const PUT: u16 = 2;
const GET: u16 = 3;
const POOL: PoolId = PoolId([3; 16]);
/// Size of the head of a small request. Bytes.
const HEAD: usize = 64;

/// A server that replies at once.
struct Quick;

impl Serve for Quick {
    fn class(&self, _: u16) -> Option<Class> {
        Some(Class::Leaf)
    }

    fn repeatable(&self, kind: u16) -> bool {
        kind == GET
    }

    fn serve(
        &self,
        _: NodeId,
        kind: u16,
        head: &[u8],
        _: &[u8],
    ) -> std::result::Result<Reply, Errno> {
        let mut length = [0; 8];
        length.copy_from_slice(&head[..8]);
        Ok(Reply {
            head: head.to_vec(),
            body: match kind {
                GET => vec![7; u64::from_le_bytes(length) as usize],
                _ => Vec::new(),
            },
        })
    }

    fn gone(&self, _: NodeId) {}
    fn restarted(&self, _: NodeId) -> std::result::Result<(), Errno> {
        Ok(())
    }
}

/// Runs the process `ask daemon DIR NODE`: prints its address, then reads the addresses for the
/// map.
fn daemon(dir: &Path, node: u32) -> Result<()> {
    let identity = Identity {
        pool: POOL,
        node: NodeId(node),
        nodes: 2,
    };
    let daemon = Daemon::listen_as(dir, identity, Options::default(), |_| Ok(Arc::new(Quick)))?;
    println!("{}", daemon.addresses()[0]);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let addresses: std::result::Result<Vec<SocketAddr>, _> =
        line.split_whitespace().map(str::parse).collect();
    let node = |(i, a): (usize, &SocketAddr)| Node {
        number: NodeId(i as u32),
        name: format!("node{i}"),
        addresses: vec![Address {
            ip: a.ip(),
            port: a.port(),
        }],
        state: State::Up,
        since: 0,
        weight: 1,
        media: Vec::new(),
    };
    let nodes = addresses?.iter().enumerate().map(node).collect();
    daemon.serve(Arc::new(PoolMap::first(POOL.0, nodes)?))?;
    println!("serving");
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}

/// Runs the process `ask echo OUT BACK`: answers each OUT bytes with BACK bytes.
fn echo(out: usize, back: usize) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?);
    let (mut socket, _) = listener.accept()?;
    socket.set_nodelay(true)?;
    let (mut room, answer) = (vec![1; out], vec![2; back]);
    while socket.read_exact(&mut room).is_ok() {
        socket.write_all(&answer)?;
    }
    Ok(())
}

/// Another process of this program, and its standard output.
struct Again(Child, BufReader<std::process::ChildStdout>);

impl Again {
    fn start(arguments: &[&str]) -> Result<(Again, String)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("no output")?;
        let mut again = Again(child, BufReader::new(out));
        let line = again.line()?;
        Ok((again, line))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn send_line(&mut self, line: &str) -> Result<()> {
        let input = self.0.stdin.as_mut().ok_or("no input")?;
        Ok(writeln!(input, "{line}")?)
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn timed(count: usize, mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..count / 10 + 2 {
        round()?;
    }
    let begin = Instant::now();
    for _ in 0..count {
        round()?;
    }
    Ok(begin.elapsed().as_secs_f64() / count as f64)
}

fn bare(out: usize, back: usize, count: usize) -> Result<f64> {
    let (_echo, address) = Again::start(&["echo", &out.to_string(), &back.to_string()])?;
    let mut socket = TcpStream::connect(address.parse::<SocketAddr>()?)?;
    socket.set_nodelay(true)?;
    let (message, mut room) = (vec![3; out], vec![4; back]);
    timed(count, || {
        socket.write_all(&message)?;
        Ok(socket.read_exact(&mut room)?)
    })
}

fn ours(channel: &Channel, kind: u16, out: usize, back: usize, count: usize) -> Result<f64> {
    let mut head = vec![1; HEAD];
    head[..8].copy_from_slice(&(back as u64).to_le_bytes());
    let (message, mut room) = (vec![3u8; out], vec![4u8; back]);
    timed(count, || {
        let bytes = match kind {
            PUT => Bytes::Send(message.as_ptr(), out),
            GET => Bytes::Receive(room.as_mut_ptr(), back),
            _ => Bytes::None,
        };
        // SAFETY: `message` has `out` bytes and `room` has `back` bytes.
        let reply = unsafe { channel.ask(NodeId(1), kind, &head, bytes) }?;
        if reply.head == head && (kind != GET || reply.received == back) {
            Ok(())
        } else {
            Err("another answer".into())
        }
    })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["daemon", dir, node] => return daemon(Path::new(dir), node.parse()?),
        ["echo", out, back] => return echo(out.parse()?, back.parse()?),
        _ => {}
    }
    let reps = words.first().map_or(Ok(7), |n| n.parse())?;
    let only = words.get(1).copied().unwrap_or("");
    let dir = Path::new("/dev/shm").join(format!("fb-ask-{}", std::process::id()));
    let done = measure(&dir, reps, only);
    let _ = std::fs::remove_dir_all(&dir);
    done
}

fn measure(dir: &Path, reps: usize, only: &str) -> Result<()> {
    let key = PoolKey::generate()?;
    let dirs = [0, 1].map(|i| dir.join(format!("node-{i}")));
    let mut daemons = Vec::new();
    let mut addresses = String::new();
    for (i, dir) in dirs.iter().enumerate() {
        std::fs::create_dir_all(dir)?;
        key.write(&dir.join("key"))?;
        let path = dir.to_str().ok_or("a path")?;
        let (daemon, address) = Again::start(&["daemon", path, &i.to_string()])?;
        addresses = format!("{addresses} {address}");
        daemons.push(daemon);
    }
    for daemon in &mut daemons {
        daemon.send_line(&addresses)?;
        daemon.line()?;
    }
    let channel = Channel::open(&dirs[0], NodeId(0), 2)?;
    println!(
        "{:<24} {:>4} {:>8} {:>8} {:>6}  min..max",
        "", "", "TCP", "ours", "ratio"
    );
    const MIB: usize = 1 << 20;
    let rows = [
        ("small request", SMALL, 0, 0, 4000, "<= 2"),
        ("4 KiB there", PUT, 4096, 0, 4000, "<= 2"),
        ("4 KiB back", GET, 0, 4096, 4000, "<= 2"),
        ("1 MiB there", PUT, MIB, 0, 300, ">= 0.8"),
        ("1 MiB back", GET, 0, MIB, 300, ">= 0.8"),
    ];
    for (name, kind, out, back, count, goal) in rows {
        if !only.is_empty() && name != only {
            continue;
        }
        let large = out + back >= MIB;
        let (mut theirs, mut own, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..reps {
            let a = bare(HEAD + out, HEAD + back, count)?;
            let b = ours(&channel, kind, out, back, count)?;
            theirs.push(a);
            own.push(b);
            ratios.push(if large { a / b } else { b / a });
        }
        let (unit, show): (_, fn(f64) -> f64) = if large {
            ("GB/s", |t| MIB as f64 / t / 1e9)
        } else {
            ("us", |t| t * 1e6)
        };
        let low = ratios.iter().copied().fold(f64::MAX, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        println!(
            "{name:<24} {unit:>4} {:>8.2} {:>8.2} {:>6.2}  {low:.2}..{high:.2}  {goal}",
            show(median(theirs)),
            show(median(own)),
            median(ratios)
        );
    }
    Ok(())
}
