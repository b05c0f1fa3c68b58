//! Tests with random input: handshakes of unauthenticated peers, and messages from a peer that
//! holds the key and is broken or hostile. Nothing panics, and the node still serves other peers
//! afterwards.

mod support;

use forebay_fuzz::{Random, Watched, largest_allocation};
use forebay_net::envelope::{self, HEADER, Header, MAX_BODY, MAX_HEAD, TAG, Type, VERSION};
use forebay_net::handshake::{
    CONFIRM, Called, Caller, HELLO, Hello, Lane, Seal, Status, Unconfirmed, Welcome,
};
use forebay_net::{NodeId, PoolKey, Request, Transport};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use support::*;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn header(r: &mut Random) -> Header {
    Header {
        is: *r.one_of(&[Type::Request, Type::Reply, Type::NoReply]),
        kind: r.edge() as u16,
        value: r.edge() as u32,
        id: r.edge(),
        body: (r.edge() % (MAX_BODY as u64 + 1)) as u32,
    }
}

#[test]
fn envelopes() {
    forebay_fuzz::run("envelopes", |r| {
        let written = header(r);
        let head = r.bytes(200);
        let mut bytes = [&written.encode()[..], &head].concat();
        assert_eq!(Header::decode(&bytes), Some((written, &head[..])));
        let other = header(r).encode();
        r.mutate(&mut bytes, &other);
        let (read, largest) = largest_allocation(|| Header::decode(&bytes));
        assert_eq!(largest, 0);
        if let Some((header, head)) = read {
            assert_eq!([&header.encode()[..], head].concat(), bytes);
            assert!(head.len() <= MAX_HEAD && header.body as usize <= MAX_BODY);
        }
        match envelope::frame(&bytes) {
            Ok(Some((sealed, rest))) => {
                assert_eq!(2 + sealed.len() + rest.len(), bytes.len());
                assert!(sealed.len() <= TAG + HEADER + MAX_HEAD);
            }
            Ok(None) => assert!(bytes.len() < 2 + TAG + HEADER + MAX_HEAD),
            Err(_) => assert!(bytes.len() >= 2),
        }
    });
}

fn hello(r: &mut Random) -> Hello {
    Hello {
        version: if r.once_in(3) {
            r.edge() as u16
        } else {
            VERSION
        },
        lane: *r.one_of(&[Lane::Control, Lane::Bulk]),
        encrypt: r.once_in(2),
        from: NodeId(r.edge() as u32),
        to: NodeId(r.edge() as u32),
        session: std::array::from_fn(|_| r.number() as u8),
    }
}

#[test]
fn handshakes() {
    let key = PoolKey::generate().unwrap();
    forebay_fuzz::run("handshakes", |r| {
        let sent = hello(r);
        let (caller, bytes) = Caller::start(&key, &POOL, &sent).unwrap();
        let changed = |r: &mut Random, bytes: &[u8]| {
            let mut changed = bytes.to_vec();
            r.mutate(&mut changed, &[0; 64]);
            changed.resize(bytes.len(), r.number() as u8);
            changed
        };
        // A hello that was changed in transit is refused.
        let other = changed(r, &bytes);
        if other != bytes {
            let other = other[..].try_into().unwrap();
            assert!(Called::read(&key, &POOL, &other).is_none());
        }
        let (called, heard) = Called::read(&key, &POOL, &bytes).unwrap();
        assert_eq!(heard, (sent.version == VERSION).then_some(sent));
        let answer = Welcome {
            version: VERSION,
            status: *r.one_of(&[Status::Welcome, Status::Version, Status::Full]),
            encrypt: r.once_in(2),
            session: std::array::from_fn(|_| r.number() as u8),
            seed: r.number(),
        };
        let (unconfirmed, bytes) = called.welcome(&answer).unwrap();
        let other = changed(r, &bytes);
        if r.once_in(3) && other != bytes {
            assert!(caller.finish(other[..].try_into().unwrap()).is_none());
            return;
        }
        let (heard, ours, confirm) = caller.finish(&bytes).unwrap();
        assert_eq!(heard, answer);
        let other = changed(r, &confirm);
        if r.once_in(3) && other != confirm {
            assert!(confirmed(unconfirmed, &other).is_none());
            return;
        }
        let theirs = confirmed(unconfirmed, &confirm).unwrap();
        let plain = r.bytes(300);
        let mut sealed = Vec::new();
        ours.seal(1, &plain, &mut sealed).unwrap();
        let mut room = [0; 400];
        assert_eq!(theirs.open(1, &sealed, &mut room), Ok(plain.len()));
        assert_eq!(room[..plain.len()], plain);
        assert!(theirs.open(2, &sealed, &mut room).is_err());
    });
}

fn confirmed(unconfirmed: Unconfirmed, bytes: &[u8]) -> Option<Seal> {
    unconfirmed.confirm(bytes.try_into().unwrap())
}

/// A lane made by the test, for messages that no node would send.
fn lane(key: &PoolKey, to: SocketAddr, lane: Lane, session: &mut [u8; 16]) -> (TcpStream, Seal) {
    let sent = Hello {
        version: VERSION,
        lane,
        encrypt: false,
        from: NodeId(1),
        to: NodeId(2),
        session: *session,
    };
    let (caller, bytes) = Caller::start(key, &POOL, &sent).unwrap();
    let mut socket = TcpStream::connect(to).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    socket.write_all(&bytes).unwrap();
    let mut answer = [0; HELLO];
    socket.read_exact(&mut answer).unwrap();
    let (welcome, seal, confirm): (_, _, [u8; CONFIRM]) = caller.finish(&answer).unwrap();
    socket.write_all(&confirm).unwrap();
    *session = welcome.session;
    (socket, seal)
}

#[test]
fn messages_behind_the_handshake() {
    let key = PoolKey::generate().unwrap();
    let (b, good) = (node(2, &key), node(3, &key));
    let to = b.transport.addresses()[0];
    let c = good.connect(b.peer()).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    forebay_fuzz::run("messages", |r| {
        let mut session = [0; 16];
        let mut lanes = [Lane::Control, Lane::Bulk].map(|l| lane(&key, to, l, &mut session));
        let mut nonces = [1, 1];
        for _ in 0..r.below(20) {
            let index = r.below(2);
            let (socket, seal) = &mut lanes[index];
            let mut header = header(r);
            header.kind = *r.one_of(&[ECHO, TAKE, GIVE, DROP, HOLD, BOTH, HUGE, UNWANTED, 77]);
            if header.kind == GIVE || header.kind == TAKE || header.kind == BOTH {
                // The tests' handler assumes that requests of these kinds are well-formed.
                header.kind = UNWANTED;
            }
            if r.once_in(2) {
                header.is = Type::Request;
            }
            header.body = match (index, r.below(6)) {
                (_, 0) => header.body,
                (0, _) => 0,
                _ => 1 + r.below(5000) as u32,
            };
            let mut plain = [&header.encode()[..], &r.bytes(100)].concat();
            if r.once_in(4) {
                r.mutate(&mut plain, &[0xff; 16]);
            }
            let mut frame = Vec::new();
            seal.seal(nonces[index], &plain, &mut frame).unwrap();
            nonces[index] += 1;
            let mut bytes = [&(frame.len() as u16).to_le_bytes()[..], &frame].concat();
            if header.body < 10_000 {
                bytes.extend(std::iter::repeat_n(5, header.body as usize));
                let mut sum = vec![24, 0];
                if header.body > 0 {
                    seal.seal(nonces[index], &r.number().to_le_bytes(), &mut sum)
                        .unwrap();
                    nonces[index] += 1;
                    bytes.extend(sum);
                }
            }
            if r.once_in(20) {
                r.mutate(&mut bytes, &[0; 32]);
            }
            if socket.write_all(&bytes).is_err() {
                break;
            }
        }
        drop(lanes);
        b.served.held.lock().unwrap().clear();
        b.served.connected.lock().unwrap().clear();
        b.served.ended.lock().unwrap().clear();
        let request = Request {
            kind: ECHO,
            head: b"x".to_vec(),
            ..Request::default()
        };
        assert_eq!(c.call(request, soon(10_000)).unwrap().head, b"x");
    });
    until("they have gone", || b.transport.connections() == 1);
    b.served.connected.lock().unwrap().clear();
    // Tests that run in parallel have descriptors, too.
    until("their sockets are closed", || open() < before + 100);
}

#[test]
fn bytes_of_unauthenticated_peers() {
    let key = PoolKey::generate().unwrap();
    let b = node(2, &key);
    let to = b.transport.addresses()[0];
    forebay_fuzz::run("unauthenticated peers", |r| {
        let mut socket = TcpStream::connect(to).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let _ = socket.write_all(&r.bytes(3 * HELLO));
        if r.once_in(2) {
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert!(answer.is_empty());
        }
    });
    assert_eq!(b.transport.connections(), 0);
}
