//! Tests that a peer without the key can do nothing.

mod support;

use forebay_fuzz::relay::Relay;
use forebay_net::envelope::{MAX_HEAD, VERSION};
use forebay_net::handshake::{CONFIRM, Caller, HELLO, Hello, Lane, Seal};
use forebay_net::{Connection, Error, NodeId, Peer, PoolId, PoolKey, Request};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::*;

/// Returns the node's answer to `bytes` until it closes the connection; None if the node doesn't
/// close it within `wait`.
fn answer_to(to: SocketAddr, bytes: &[u8], wait: Duration) -> Option<Vec<u8>> {
    let mut socket = TcpStream::connect(to).unwrap();
    let _ = socket.write_all(bytes);
    socket.set_read_timeout(Some(wait)).unwrap();
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Ok(_) => Some(answer),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Some(answer),
        Err(_) => None,
    }
}

fn echo(c: &Arc<dyn Connection>) -> Result<(), Error> {
    let request = Request {
        kind: ECHO,
        head: b"hello".to_vec(),
        ..Request::default()
    };
    c.call(request, soon(5000))
        .map(|r| assert_eq!(r.head, b"hello"))
}

fn hello_of(key: &PoolKey, change: impl FnOnce(&mut Hello)) -> (Caller, [u8; HELLO]) {
    let mut hello = Hello {
        version: VERSION,
        lane: Lane::Control,
        encrypt: false,
        from: NodeId(1),
        to: NodeId(2),
        session: [0; 16],
    };
    change(&mut hello);
    Caller::start(key, &POOL, &hello).unwrap()
}

#[test]
fn another_key_or_pool_is_met_with_silence() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let b = node(2, &key);
        let other = node(1, &PoolKey::generate().unwrap());
        let error = other.connect(b.peer()).err().unwrap();
        assert_eq!(error, Error::Silent { peer: b.peer() });
        let mut options = options(1, key.clone());
        options.pool = PoolId([8; 16]);
        let error = node_with(options).connect(b.peer()).err().unwrap();
        assert_eq!(error, Error::Silent { peer: b.peer() });
        assert_eq!(b.transport.connections(), 0);
        assert!(echo(&node(1, &key).connect(b.peer()).unwrap()).is_ok());
    });
}

#[test]
fn nothing_is_answered_without_the_key() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let b = node(2, &key);
        let to = b.peer().address;
        let second = Duration::from_secs(2);
        for bytes in [
            vec![0; HELLO],
            vec![0xff; HELLO],
            pattern(HELLO),
            pattern(1 << 20),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(10),
        ] {
            assert_eq!(answer_to(to, &bytes, second), Some(Vec::new()));
        }
        // A valid hello with one bit changed is refused.
        for at in 0..HELLO {
            let (_, mut hello) = hello_of(&key, |_| ());
            hello[at] ^= 1 << (at % 8);
            assert_eq!(answer_to(to, &hello, second), Some(Vec::new()), "{at}");
        }
    });
}

#[test]
fn a_version_mismatch_is_reported() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let b = node(2, &key);
        let to = b.peer().address;
        let (caller, hello) = hello_of(&key, |h| h.version = VERSION + 1);
        let answer = answer_to(to, &hello, Duration::from_secs(2)).unwrap();
        let (welcome, ..) = caller.finish(answer[..].try_into().unwrap()).unwrap();
        assert_eq!(
            (welcome.version, welcome.status.words()),
            (VERSION, "it speaks another version of the protocol")
        );
        // The text of this error, and other refusals.
        let error = Error::Version {
            peer: b.peer(),
            theirs: 2,
            ours: 1,
        }
        .to_string();
        assert!(
            error.contains("node 2") && error.contains("version 2"),
            "{error}"
        );
        let wrong = Peer {
            node: NodeId(9),
            ..b.peer()
        };
        let error = node(1, &key).connect(wrong).err().unwrap();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("another node"), "{error}");
    });
}

#[test]
fn a_recorded_handshake_is_worth_nothing() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let (a, b) = (node(1, &key), node(2, &key));
        let relay = Relay::start(b.peer().address).unwrap();
        let c = a.connect(behind(&relay, &b)).unwrap();
        echo(&c).unwrap();
        let mut recorded = relay.recorded();
        // The bulk lane's hello may have arrived before the control lane's confirm, been refused,
        // and been sent again.
        recorded.retain(|lane| lane.len() >= HELLO + CONFIRM);
        assert_eq!(recorded.len(), 2);
        for lane in &recorded {
            let answer = relay.replay(lane, Duration::from_secs(2)).unwrap();
            assert!(answer.is_empty(), "a hello is answered once");
        }
        // After a restart, a node remembers no hellos. A node answers a replayed hello, but the
        // replay can't continue.
        let again = node(2, &key);
        let relay = Relay::start(again.peer().address).unwrap();
        for lane in &recorded {
            let answer = relay.replay(lane, Duration::from_secs(2)).unwrap();
            assert!(
                answer.is_empty() || answer.len() == HELLO,
                "{}",
                answer.len()
            );
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(again.transport.connections(), 0);
        assert!(again.served.connected.lock().unwrap().is_empty());
        assert_eq!(b.transport.connections(), 1);
        echo(&c).unwrap();
    });
}

#[test]
fn handshakes_that_end_at_any_byte_leave_nothing() {
    within(120, || {
        let key = PoolKey::generate().unwrap();
        let mut options = options(2, key.clone());
        options.limits.handshake = Duration::from_millis(800);
        let b = node_with(options);
        let to = b.peer().address;
        for length in 0..HELLO {
            let (_, hello) = hello_of(&key, |_| ());
            let mut socket = TcpStream::connect(to).unwrap();
            socket.write_all(&hello[..length]).unwrap();
            drop(socket);
        }
        for length in 0..=CONFIRM {
            let (caller, hello) = hello_of(&key, |_| ());
            let mut socket = TcpStream::connect(to).unwrap();
            socket.write_all(&hello).unwrap();
            let mut answer = [0; HELLO];
            socket.read_exact(&mut answer).unwrap();
            let (_, _, confirm) = caller.finish(&answer).unwrap();
            socket.write_all(&confirm[..length]).unwrap();
        }
        // Handshakes that stop without closing the connection.
        let (_, hello) = hello_of(&key, |_| ());
        let mut stopped: Vec<_> = (0..100)
            .map(|length| {
                let mut socket = TcpStream::connect(to).unwrap();
                socket.write_all(&hello[..length]).unwrap();
                socket
            })
            .collect();
        let begin = Instant::now();
        for socket in &mut stopped {
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            assert!(matches!(socket.read(&mut [0; 10]), Ok(0) | Err(_)));
        }
        assert!(begin.elapsed() < Duration::from_secs(3));
        assert_eq!(b.transport.connections(), 0);
        echo(&node(1, &key).connect(b.peer()).unwrap()).unwrap();
    });
}

#[test]
fn a_peer_that_sends_a_byte_a_second_is_dropped() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let mut options = options(2, key.clone());
        options.limits.handshake = Duration::from_secs(2);
        let b = node_with(options);
        let (_, hello) = hello_of(&key, |_| ());
        let mut socket = TcpStream::connect(b.peer().address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(1000)))
            .unwrap();
        let begin = Instant::now();
        for byte in hello {
            if socket.write_all(&[byte]).is_err() || matches!(socket.read(&mut [0; 1]), Ok(0)) {
                break;
            }
        }
        assert!(
            (1900..4000).contains(&begin.elapsed().as_millis()),
            "{:?}",
            begin.elapsed()
        );
    });
}

/// Both lanes of a connection made by the test.
struct ByHand {
    lanes: [(TcpStream, Seal); 2],
}

fn by_hand(key: &PoolKey, to: SocketAddr) -> ByHand {
    let mut session = [0; 16];
    let lanes = [Lane::Control, Lane::Bulk].map(|lane| {
        let (caller, hello) = hello_of(key, |h| {
            h.lane = lane;
            h.session = session;
        });
        let mut socket = TcpStream::connect(to).unwrap();
        socket.write_all(&hello).unwrap();
        let mut answer = [0; HELLO];
        socket.read_exact(&mut answer).unwrap();
        let (welcome, seal, confirm) = caller.finish(&answer).unwrap();
        socket.write_all(&confirm).unwrap();
        session = welcome.session;
        (socket, seal)
    });
    ByHand { lanes }
}

#[test]
fn impossible_lengths_and_frames_end_the_connection() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let b = node(2, &key);
        let cut = |what: &str, lane: usize, frame: &dyn Fn(&Seal) -> Vec<u8>| {
            let mut hand = by_hand(&key, b.peer().address);
            until("it is there", || b.transport.connections() == 1);
            let (socket, seal) = &mut hand.lanes[lane];
            let bytes = frame(seal);
            let _ = socket.write_all(&bytes);
            until(what, || b.transport.connections() == 0);
        };
        let sealed = |seal: &Seal, plain: &[u8]| {
            let mut frame = Vec::new();
            seal.seal(1, plain, &mut frame).unwrap();
            [&(frame.len() as u16).to_le_bytes()[..], &frame].concat()
        };
        let header = |is: u8, body: u32| {
            let mut h = [0; 20];
            h[0] = is;
            h[16..].copy_from_slice(&body.to_le_bytes());
            h
        };
        for length in [0u16, 1, 16, 23, (MAX_HEAD + 37) as u16, u16::MAX] {
            cut("the length", 0, &|_| length.to_le_bytes().to_vec());
            cut("the length", 1, &|_| length.to_le_bytes().to_vec());
        }
        cut("no seal", 0, &|_| [&[100, 0][..], &[1; 100]].concat());
        cut("type", 0, &|s| sealed(s, &header(0, 0)));
        cut("type", 0, &|s| sealed(s, &header(9, 0)));
        cut("short", 0, &|s| sealed(s, &[1; 12]));
        cut("body on the control lane", 0, &|s| sealed(s, &header(1, 5)));
        cut("none on the bulk lane", 1, &|s| sealed(s, &header(1, 0)));
        cut("body too large", 1, &|s| {
            sealed(s, &header(1, (64 << 20) + 1))
        });
        cut("huge body", 1, &|s| sealed(s, &header(1, u32::MAX)));
        cut("an answer to nothing", 0, &|s| sealed(s, &header(2, 0)));
        cut("a body for nothing", 1, &|s| sealed(s, &header(2, 10)));
        cut("no reason with a body", 1, &|s| sealed(s, &header(3, 10)));
        cut("again number 0", 0, &|s| {
            let mut frame = Vec::new();
            s.seal(0, &header(1, 0), &mut frame).unwrap();
            [&(frame.len() as u16).to_le_bytes()[..], &frame].concat()
        });
    });
}

#[test]
fn more_requests_than_there_may_be_end_the_connection() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let b = node(2, &key);
        let mut hand = by_hand(&key, b.peer().address);
        let (socket, seal) = &mut hand.lanes[0];
        for nonce in 1..=forebay_net::WINDOW as u64 + 1 {
            let mut plain = [0; 20];
            plain[0] = 1;
            plain[2] = HOLD as u8;
            plain[8..16].copy_from_slice(&nonce.to_le_bytes());
            let mut frame = vec![36, 0];
            seal.seal(nonce, &plain, &mut frame).unwrap();
            let _ = socket.write_all(&frame);
        }
        until("cut", || !b.served.ended.lock().unwrap().is_empty());
        assert!(b.served.held.lock().unwrap().len() <= forebay_net::WINDOW);
    });
}

#[test]
fn a_node_keeps_few_connections_of_the_same_other_node() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let (a, b) = (node(1, &key), node(2, &key));
        let all: Vec<_> = (0..10).map(|_| a.connect(b.peer()).unwrap()).collect();
        until("old ones go", || b.transport.connections() == 4);
        for c in &all[6..] {
            echo(c).unwrap();
        }
        assert!(echo(&all[0]).is_err());
    });
}

/// Number of this process's sockets that are connected to this address, or bound to it.
fn sockets_of(address: SocketAddr) -> usize {
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    // Fields of a line: number, both ends, state, queues, timers, retransmissions, user, timeout,
    // inode.
    let inodes: HashSet<&str> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|w| w.len() > 9 && (w[1].ends_with(&port) || w[2].ends_with(&port)))
        .map(|w| w[9])
        .collect();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours = links.filter_map(|e| {
        let link = std::fs::read_link(e.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inodes.contains(inode).then_some(())
    });
    ours.count()
}

#[test]
fn ten_thousand_unauthenticated_connections() {
    within(120, || {
        let key = PoolKey::generate().unwrap();
        let (a, b, joining) = (node(1, &key), node(2, &key), node(3, &key));
        let c = a.connect(b.peer()).unwrap();
        let (attacking, made) = (AtomicBool::new(false), AtomicU64::new(0));
        let to = b.peer().address;
        std::thread::scope(|s| {
            s.spawn(|| attack(to, &attacking, &made));
            // Rounds without and with the attack alternate, so that other load on the machine
            // affects both.
            let (mut calls, mut spent) = ([0u32; 2], [Duration::ZERO; 2]);
            let (mut joined, mut failed, mut most) = (0u32, 0u32, 0);
            while made.load(Ordering::SeqCst) < 10_000 {
                for (turn, on) in [false, true].into_iter().enumerate() {
                    attacking.store(on, Ordering::SeqCst);
                    // Waits until the attacker has noticed the change, and the node has handled its
                    // attacks.
                    std::thread::sleep(Duration::from_millis(5));
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_millis(50) {
                        echo(&c).unwrap();
                        calls[turn] += 1;
                    }
                    spent[turn] += begin.elapsed();
                    most = most.max(b.transport.half_open());
                }
                match joining.connect(b.peer()) {
                    Ok(c) => {
                        c.close();
                        joined += 1;
                    }
                    Err(_) => failed += 1,
                }
            }
            let [before, during] = [0, 1].map(|i| f64::from(calls[i]) / spent[i].as_secs_f64());
            println!(
                "{before:.0} calls a second without, {during:.0} with {:.0} connections a second; \
                 {joined} nodes joined, {failed} failed; {most} half open",
                10_000.0 / spent[1].as_secs_f64()
            );
            assert!(
                during >= before / 2.0,
                "{during} a second instead of {before}"
            );
            assert!((2..=256).contains(&most), "{most} half open");
            assert!(joined > 0 && joined >= 9 * failed);
        });
        echo(&c).unwrap();
        until("they have gone", || b.transport.half_open() == 0);
        // The sockets of node `a` and the listening ones remain.
        until("no sockets are left", || sockets_of(to) < 10);
    });
}

/// Rate of [`attack`]. Connections per second. Without a bound, the attack would use every core
/// that it can get, and the number of cores would decide whether the rest of the test runs at all.
const ATTACKS_PER_SECOND: u32 = 20_000;

/// Makes ten thousand connections while `attacking` is set: silent ones, garbage, incomplete
/// hellos. The connections stay open.
fn attack(to: SocketAddr, attacking: &AtomicBool, made: &AtomicU64) {
    // A real attacker has its own machine, so this thread should take little time here.
    let _ = rustix::process::nice(10);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let room = limit
        .current
        .map_or(10_000, |l| (l as usize / 2).min(10_000));
    let garbage = pattern(HELLO);
    let (mut open, mut i) = (Vec::new(), 0);
    let end = soon(100_000);
    let mut next = Instant::now();
    while i < 10_000 && Instant::now() < end {
        if !attacking.load(Ordering::SeqCst) || Instant::now() < next {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        // The attack catches up on at most 10 ms of missed connections.
        next = next.max(Instant::now() - Duration::from_millis(10));
        next += Duration::from_secs(1) / ATTACKS_PER_SECOND;
        if open.len() >= room {
            open.drain(..room / 2);
        }
        if let Ok(mut socket) = TcpStream::connect_timeout(&to, Duration::from_secs(5)) {
            let _ = socket.write_all(&garbage[..[0, HELLO, i % HELLO][i % 3]]);
            open.push(socket);
        }
        i += 1;
        made.store(i as u64, Ordering::SeqCst);
    }
}
