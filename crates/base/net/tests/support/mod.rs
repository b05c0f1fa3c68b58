//! Helpers of the network's tests: nodes on loopback, a handler, a time limit.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test that includes this file uses a part of it"
)]

use forebay_fuzz::relay::Relay;
pub use forebay_fuzz::within;
use forebay_net::transport::Answer;
use forebay_net::{
    Connection, Error, Handler, Incoming, Landing, Limits, NodeId, Options, Peer, PoolId, PoolKey,
    Reply, Request, Responder, TcpTransport, Transport, envelope,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const POOL: PoolId = PoolId([7; 16]);

/// Kind of request: replies with the same head.
pub const ECHO: u16 = 1;
/// Replies after the number of milliseconds in the head.
pub const LATER: u16 = 2;
/// Takes a body; replies with its length.
pub const TAKE: u16 = 3;
/// Replies with a body of the length in the head.
pub const GIVE: u16 = 4;
/// Doesn't reply.
pub const DROP: u16 = 5;
/// Replies when the test releases it.
pub const HOLD: u16 = 6;
/// Takes a body and sends it back.
pub const BOTH: u16 = 7;
/// Replies with a head that is too large.
pub const HUGE: u16 = 8;
/// The kind of a message whose body gets no landing.
pub const UNWANTED: u16 = 9;

/// Serves requests of the kinds above.
#[derive(Default)]
pub struct Served {
    pub held: Mutex<Vec<Responder>>,
    pub held_most: AtomicUsize,
    pub connected: Mutex<Vec<Arc<dyn Connection>>>,
    pub ended: Mutex<Vec<Error>>,
}

pub fn number(bytes: &[u8]) -> usize {
    u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize
}

/// Bytes that differ from position to position.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut x = length as u64 | 1;
    let mut bytes = vec![0; length];
    for piece in bytes.chunks_mut(8) {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        piece.copy_from_slice(&(x ^ (x >> 29)).to_le_bytes()[..piece.len()]);
    }
    bytes
}

impl Handler for Served {
    fn serve(&self, request: Incoming, reply: Responder) {
        let sound = match request.kind {
            TAKE | BOTH => request.body.is_some(),
            LATER => request.head.len() >= 8 && number(&request.head) < 10_000,
            GIVE => request.head.len() >= 8 && number(&request.head) <= envelope::MAX_BODY,
            _ => true,
        };
        match request.kind {
            _ if !sound => drop(reply),
            ECHO => reply.reply(17, request.head),
            LATER => {
                let wait = Duration::from_millis(number(&request.head) as u64);
                std::thread::spawn(move || {
                    std::thread::sleep(wait);
                    reply.reply(0, request.head);
                });
            }
            TAKE => {
                let body = request.body.unwrap();
                let length = body.length;
                let bytes = body.into_landing::<Vec<u8>>().unwrap();
                let good = bytes[..length] == pattern(length);
                reply.reply(u32::from(!good), (length as u64).to_le_bytes().to_vec());
            }
            GIVE => reply.answer(Answer {
                status: 3,
                head: b"here".to_vec(),
                body: Some(Box::new(pattern(number(&request.head)))),
            }),
            BOTH => {
                let bytes = request.body.unwrap().into_landing::<Vec<u8>>().unwrap();
                reply.answer(Answer {
                    status: 0,
                    head: request.head,
                    body: Some(bytes),
                });
            }
            HUGE => reply.reply(0, vec![0; 100_000]),
            HOLD => {
                let mut held = self.held.lock().unwrap();
                held.push(reply);
                self.held_most.fetch_max(held.len(), Ordering::SeqCst);
            }
            _ => drop(reply),
        }
    }

    fn landing(&self, _: Peer, kind: u16, _: &[u8], length: usize) -> Option<Box<dyn Landing>> {
        (kind != UNWANTED).then(|| Box::new(vec![0u8; length]) as Box<dyn Landing>)
    }

    fn connected(&self, connection: Arc<dyn Connection>) {
        self.connected.lock().unwrap().push(connection);
    }

    fn ended(&self, _: Peer, why: &Error) {
        self.ended.lock().unwrap().push(why.clone());
    }
}

pub struct Node {
    pub served: Arc<Served>,
    pub transport: TcpTransport,
    pub id: NodeId,
}

pub fn options(node: u32, key: PoolKey) -> Options {
    Options {
        pool: POOL,
        node: NodeId(node),
        key,
        encrypt: false,
        limits: Limits::default(),
    }
}

pub fn node_with(options: Options) -> Node {
    let served = Arc::new(Served::default());
    let id = options.node;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let transport = TcpTransport::start(options, served.clone(), &[address]).unwrap();
    Node {
        served,
        transport,
        id,
    }
}

pub fn node(number: u32, key: &PoolKey) -> Node {
    node_with(options(number, key.clone()))
}

pub fn soon(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

impl Node {
    pub fn peer(&self) -> Peer {
        Peer {
            node: self.id,
            address: self.transport.addresses()[0],
        }
    }

    pub fn connect(&self, to: Peer) -> Result<Arc<dyn Connection>, Error> {
        self.transport.connect(to, soon(5000))
    }
}

/// Returns a node as a peer that is reached through a relay.
pub fn behind(relay: &Relay, node: &Node) -> Peer {
    Peer {
        address: relay.address(),
        ..node.peer()
    }
}

/// Returns nodes 1 and 2, a relay to node 2, and node 2 as a peer behind the relay.
pub fn relayed() -> (Node, Node, Relay, Peer) {
    let key = PoolKey::generate().unwrap();
    let (a, b) = (node(1, &key), node(2, &key));
    let relay = Relay::start(b.peer().address).unwrap();
    let peer = behind(&relay, &b);
    (a, b, relay, peer)
}

/// Waits until `f` holds.
pub fn until(what: &str, f: impl Fn() -> bool) {
    let end = soon(10_000);
    while !f() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a request and waits for the reply.
pub fn ask(c: &Arc<dyn Connection>, kind: u16, head: Vec<u8>, ms: u64) -> Result<Reply, Error> {
    let request = Request {
        kind,
        head,
        ..Request::default()
    };
    c.call(request, soon(ms))
}

pub fn le(n: usize) -> Vec<u8> {
    (n as u64).to_le_bytes().to_vec()
}

pub fn pair() -> (Node, Node, Arc<dyn Connection>) {
    pair_that(false)
}

pub fn pair_that(encrypts: bool) -> (Node, Node, Arc<dyn Connection>) {
    let key = PoolKey::generate().unwrap();
    let mut options = options(1, key.clone());
    options.encrypt = encrypts;
    let a = node_with(options);
    let b = node(2, &key);
    let c = a.connect(b.peer()).unwrap();
    (a, b, c)
}
