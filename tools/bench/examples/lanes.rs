//! Measures the network: round trips and transfers on loopback, beside bare TCP in the same run.
//!
//! `cargo run --release -p forebay-bench --example lanes [REPETITIONS [ROW]]`. Each row alternates
//! between bare TCP (two threads, blocking sockets, a reply to each message or transfer) and two
//! nodes of `forebay-net`. The ratio is the median of the repetitions' ratios.

use forebay_net::transport::Answer;
use forebay_net::{
    Connection, Error, Handler, Incoming, Landing, Limits, NodeId, Options, Peer, PoolId, PoolKey,
    Reply, Request, Responder, TcpTransport, Transport,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const PING: u16 = 1;
const PUT: u16 = 2;
const GET: u16 = 3;
/// Size of a small message on the wire, in both cases. Bytes.
const SMALL: usize = 64;
/// Number of bytes that `forebay-net` adds to a small head.
const AROUND: usize = 2 + 20 + 16;

/// A server that replies with buffers that it reuses, as a store does.
struct Served {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    data: Arc<Vec<u8>>,
}

impl Handler for Served {
    fn serve(&self, request: Incoming, reply: Responder) {
        match request.kind {
            PUT => {
                if let Some(bytes) = request.body.and_then(|b| b.into_landing::<Vec<u8>>())
                    && let Ok(mut free) = self.free.lock()
                {
                    free.push(*bytes);
                }
                reply.reply(0, Vec::new());
            }
            GET => reply.answer(Answer {
                status: 0,
                head: Vec::new(),
                body: Some(Box::new(self.data.clone())),
            }),
            _ => reply.reply(0, request.head),
        }
    }

    fn landing(&self, _: Peer, _: u16, _: &[u8], length: usize) -> Option<Box<dyn Landing>> {
        let free = self.free.lock().ok()?.pop();
        let bytes = free.filter(|b| b.len() >= length);
        Some(Box::new(bytes.unwrap_or_else(|| vec![1; length])))
    }
}

struct Pair {
    _nodes: [TcpTransport; 2],
    c: Arc<dyn Connection>,
}

fn pair(encrypt: bool, size: usize) -> Result<(Pair, Arc<Vec<u8>>), Error> {
    let key = PoolKey::generate()?;
    let data = Arc::new(vec![5u8; size]);
    let start = |node: u32| {
        let served = Served {
            free: Arc::default(),
            data: data.clone(),
        };
        let options = Options {
            pool: PoolId([1; 16]),
            node: NodeId(node),
            key: key.clone(),
            encrypt,
            limits: Limits::default(),
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        TcpTransport::start(options, Arc::new(served), &[any])
    };
    let nodes = [start(1)?, start(2)?];
    let peer = Peer {
        node: NodeId(2),
        address: nodes[1].addresses()[0],
    };
    let c = nodes[0].connect(peer, soon())?;
    Ok((Pair { _nodes: nodes, c }, data))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Returns the time of one bare round trip with `out` bytes there and `back` bytes back, measured
/// over `count` of them. Seconds.
fn bare(out: usize, back: usize, count: usize) -> std::io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let (mut room, answer) = (vec![1; out], vec![2; back]);
        loop {
            socket.read_exact(&mut room)?;
            socket.write_all(&answer)?;
        }
    });
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let (message, mut room) = (vec![3; out], vec![4; back]);
    let mut round = || {
        socket.write_all(&message)?;
        socket.read_exact(&mut room)
    };
    for _ in 0..count / 10 + 2 {
        round()?;
    }
    let begin = Instant::now();
    for _ in 0..count {
        round()?;
    }
    let took = begin.elapsed().as_secs_f64() / count as f64;
    drop(socket);
    let _ = echo.join();
    Ok(took)
}

fn timed(count: usize, mut round: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    for _ in 0..count / 10 + 2 {
        round()?;
    }
    let begin = Instant::now();
    for _ in 0..count {
        round()?;
    }
    Ok(begin.elapsed().as_secs_f64() / count as f64)
}

fn ping() -> Request {
    Request {
        kind: PING,
        head: vec![1; SMALL - AROUND],
        ..Request::default()
    }
}

/// Makes calls one after the other; this thread waits for each reply.
fn calls(p: &Pair, count: usize) -> Result<f64, Error> {
    timed(count, || p.c.call(ping(), soon()).map(drop))
}

/// Makes calls one after the other; the reply to each starts the next.
fn chain(p: &Pair, count: usize) -> Result<f64, Error> {
    fn next(c: Arc<dyn Connection>, left: usize, end: mpsc::Sender<Result<(), Error>>) {
        let (there, over) = (c.clone(), end.clone());
        let done = move |reply: Result<Reply, Error>| match reply {
            Ok(_) if left > 0 => next(there, left - 1, over),
            other => drop(over.send(other.map(drop))),
        };
        if let Err(e) = c.start(ping(), soon(), Box::new(done)) {
            drop(end.send(Err(e)));
        }
    }
    let run = |count| {
        let (end, wait) = mpsc::channel();
        next(p.c.clone(), count - 1, end);
        (wait.recv()).unwrap_or(Err(Error::Local("it never ended".into())))
    };
    run(count / 10 + 2)?;
    let begin = Instant::now();
    run(count)?;
    Ok(begin.elapsed().as_secs_f64() / count as f64)
}

fn put(p: &Pair, data: &Arc<Vec<u8>>, count: usize) -> Result<f64, Error> {
    timed(count, || {
        let request = Request {
            kind: PUT,
            body: Some(Box::new(data.clone())),
            ..Request::default()
        };
        p.c.call(request, soon()).map(drop)
    })
}

fn get(p: &Pair, length: usize, count: usize) -> Result<f64, Error> {
    let mut room = Some(Box::new(vec![1u8; length]));
    timed(count, || {
        let landing = room.take().unwrap_or_else(|| Box::new(vec![1; length]));
        let request = Request {
            kind: GET,
            landing: Some(landing),
            ..Request::default()
        };
        let reply = p.c.call(request, soon())?;
        room = reply.body.and_then(|b| b.into_landing());
        Ok(())
    })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Measures one row: the two cases alternate.
fn row(
    name: &str,
    reps: usize,
    size: Option<usize>,
    goal: &str,
    mut bare: impl FnMut() -> std::io::Result<f64>,
    mut ours: impl FnMut() -> Result<f64, Error>,
) -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(2).unwrap_or_default();
    if !only.is_empty() && name != only {
        return Ok(());
    }
    let (mut theirs, mut own, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..reps {
        let (a, b) = (bare()?, ours()?);
        theirs.push(a);
        own.push(b);
        // `a` and `b` are times. For rates, the ratio is inverted: our rate to that of bare TCP.
        ratios.push(if size.is_some() { a / b } else { b / a });
    }
    let (unit, show): (_, Box<dyn Fn(f64) -> f64>) = match size {
        Some(size) => ("GB/s", Box::new(move |t| size as f64 / t / 1e9)),
        None => ("us", Box::new(|t| t * 1e6)),
    };
    let (low, high) = ratios
        .iter()
        .fold((f64::MAX, 0f64), |(l, h), r| (l.min(*r), h.max(*r)));
    println!(
        "{name:<28} {unit:>4} {:>8.2} {:>8.2} {:>6.2}  {low:.2}..{high:.2}  {goal}",
        show(median(theirs)),
        show(median(own)),
        median(ratios)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let reps = std::env::args().nth(1).map_or(Ok(7), |n| n.parse())?;
    println!(
        "{:<28} {:>4} {:>8} {:>8} {:>6}  min..max",
        "", "", "TCP", "ours", "ratio"
    );
    let (p, _) = pair(false, 0)?;
    let small = || bare(SMALL, SMALL, 4000);
    row("round trip, called", reps, None, "<= 2", small, || {
        calls(&p, 4000)
    })?;
    row("round trip, chained", reps, None, "<= 2", small, || {
        chain(&p, 4000)
    })?;
    drop(p);
    for (size, count, words) in [(1 << 20, 200, "1 MiB"), (16 << 20, 15, "16 MiB")] {
        for (encrypt, how) in [(false, ""), (true, ", encrypted")] {
            let (p, data) = pair(encrypt, size)?;
            let goal = if encrypt { "" } else { ">= 0.8" };
            let name = format!("put {words}{how}");
            let there = || bare(size, SMALL, count);
            row(&name, reps, Some(size), goal, there, || {
                put(&p, &data, count)
            })?;
            let name = format!("get {words}{how}");
            let back = || bare(SMALL, size, count);
            row(&name, reps, Some(size), goal, back, || get(&p, size, count))?;
        }
    }
    Ok(())
}
