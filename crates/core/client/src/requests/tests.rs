//! Tests of requesters and a daemon that use request cells, within one process.

use super::*;
use forebay_cluster::peers::{Bytes, MAX_BODY, MAX_HEAD, Peers};
use forebay_placement::NodeId;
use region::{CELLS, LARGE, Shared};
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("fb-requests-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn channel(&self) -> Channel {
        Channel::open(&self.0, NodeId(0), 3).unwrap()
    }

    /// A daemon that answers with the head and the bytes reversed.
    fn daemon(&self, request_timeout: u64) -> Daemon {
        let server = Arc::new(RequestServer::open(&self.0).unwrap());
        let left = server.begin(Duration::from_millis(request_timeout));
        let there = server.clone();
        let thread = std::thread::spawn(move || {
            left.into_iter().for_each(answer);
            loop {
                let all = there.wait();
                if all.is_empty() {
                    return;
                }
                all.into_iter().for_each(answer);
            }
        });
        Daemon(server, Some(thread))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Daemon(Arc<RequestServer>, Option<std::thread::JoinHandle<()>>);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.stop();
        self.1.take().unwrap().join().unwrap();
    }
}

fn answer(taken: Arc<Taken>) {
    let mut head = taken.head().to_vec();
    head.reverse();
    if taken.kind() == 99 {
        return taken.answer(Errno::NOENT.raw_os_error() as u32, &[], 0);
    }
    let received = match taken.payload() {
        Payload::Nothing => 0,
        Payload::Send(_) => {
            let sum = taken.body().map_or(0, |b| sum(b.bytes()));
            head = sum.to_le_bytes().to_vec();
            0
        }
        Payload::Receive(_) => taken.room().map_or(0, |mut room| {
            let bytes = room.bytes();
            pattern(bytes);
            bytes.len()
        }),
    };
    taken.answer(0, &head, received);
}

fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(7, |s: u64, b| s.wrapping_mul(31).wrapping_add((*b).into()))
}

fn pattern(bytes: &mut [u8]) {
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = (i * 7 + i / 251) as u8;
    }
}

fn ask(c: &Channel, kind: u16, head: &[u8], bytes: Bytes) -> Result<(Vec<u8>, usize), Errno> {
    // SAFETY: the tests keep the bytes until the answer has come.
    unsafe { c.ask(NodeId(1), kind, head, bytes) }.map(|t| (t.head, t.received))
}

#[test]
fn requests_of_all_sizes_are_answered() {
    let dir = Dir::new();
    let channel = dir.channel();
    let _daemon = dir.daemon(5000);
    for len in [0, 1, 100, SMALL_BODY, SMALL_BODY + 1, 300_000, MAX_BODY] {
        let mut bytes = vec![0; len];
        pattern(&mut bytes);
        let sent = ask(&channel, 1, b"abc", Bytes::Send(bytes.as_ptr(), len));
        let expected = if len == 0 { 0 } else { sum(&bytes) };
        assert_eq!(sent, Ok((expected.to_le_bytes().to_vec(), 0)), "{len}");
        let mut room = vec![0; len];
        let got = ask(&channel, 1, b"abc", Bytes::Receive(room.as_mut_ptr(), len));
        assert_eq!(got, Ok((b"cba".to_vec(), len)));
        assert!(room == bytes, "{len}");
    }
    for len in [0, 1, MAX_HEAD] {
        let head: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let back: Vec<u8> = head.iter().rev().copied().collect();
        assert_eq!(ask(&channel, 1, &head, Bytes::None), Ok((back, 0)));
    }
    let long = vec![0; MAX_HEAD + 1];
    assert_eq!(ask(&channel, 1, &long, Bytes::None), Err(Errno::MSGSIZE));
    let much = Bytes::Receive(std::ptr::null_mut(), MAX_BODY + 1);
    assert_eq!(ask(&channel, 1, b"", much), Err(Errno::MSGSIZE));
    assert_eq!(ask(&channel, 99, b"x", Bytes::None), Err(Errno::NOENT));
}

#[test]
fn more_threads_than_cells_are_served() {
    let dir = Dir::new();
    let channel = dir.channel();
    let _daemon = dir.daemon(20_000);
    let nodes: Vec<NodeId> = (0..600).map(NodeId).collect();
    std::thread::scope(|s| {
        for t in 0..6u8 {
            let (channel, nodes) = (&channel, &nodes);
            s.spawn(move || {
                for i in 0..20u8 {
                    let all = channel.ask_each(nodes, 1, &[t, i]);
                    assert_eq!(all.len(), 600);
                    for reply in all {
                        assert_eq!(reply.unwrap().head, [i, t]);
                    }
                }
            });
        }
        for t in 0..LARGE + 10 {
            let channel = &channel;
            s.spawn(move || {
                let mut bytes = vec![0; 100_000 + t];
                pattern(&mut bytes);
                for _ in 0..5 {
                    let bytes = Bytes::Send(bytes.as_ptr(), bytes.len());
                    assert!(ask(channel, 1, b"", bytes).is_ok());
                }
            });
        }
    });
    let shared = Shared::open(&dir.0).unwrap();
    let taken = (0..CELLS).filter(|&i| shared.cell(i).owner.load(SeqCst) != 0);
    assert_eq!(taken.count(), 0, "all cells are free again");
}

#[test]
fn without_a_daemon_waiting_is_bounded() {
    let dir = Dir::new();
    let channel = dir.channel();
    drop(dir.daemon(300));
    let start = Instant::now();
    assert_eq!(ask(&channel, 1, b"x", Bytes::None), Err(Errno::HOSTDOWN));
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(start.elapsed() < Duration::from_secs(4));
    // The daemon is marked as missing now.
    let start = Instant::now();
    assert_eq!(ask(&channel, 1, b"x", Bytes::None), Err(Errno::HOSTDOWN));
    assert!(start.elapsed() < Duration::from_millis(100));
    let _daemon = dir.daemon(300);
    assert!(ask(&channel, 1, b"x", Bytes::None).is_ok());
}

#[test]
fn the_next_daemon_goes_on_with_what_is_there() {
    let dir = Dir::new();
    let channel = dir.channel();
    let server = RequestServer::open(&dir.0).unwrap();
    assert!(server.begin(Duration::from_secs(20)).is_empty());
    assert_eq!(RequestServer::open(&dir.0).err(), Some(Errno::BUSY));
    std::thread::scope(|s| {
        let pending: Vec<_> = (0..5u8)
            .map(|i| {
                let channel = &channel;
                s.spawn(move || ask(channel, 1, &[1, i], Bytes::None))
            })
            .collect();
        let mut taken = Vec::new();
        while taken.len() < 5 {
            taken.extend(server.wait());
        }
        for t in &taken {
            t.set_number(server.next_number());
            t.set_sent_to(17);
        }
        // As if the daemon were killed: the daemon frees no cell.
        std::mem::forget(taken);
        drop(server);
        let server = RequestServer::open(&dir.0).unwrap();
        let left = server.begin(Duration::from_secs(20));
        let mut numbers: Vec<u64> = left.iter().map(|t| t.number()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert!(left.iter().all(|t| t.sent_to() == 17));
        assert_eq!(server.next_number(), 6);
        left.into_iter().for_each(answer);
        for (i, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.join().unwrap(), Ok((vec![i as u8, 1], 0)));
        }
    });
}

#[test]
fn a_cell_isnt_used_again_while_the_network_has_it() {
    let dir = Dir::new();
    let channel = dir.channel();
    let server = RequestServer::open(&dir.0).unwrap();
    server.begin(Duration::from_millis(200));
    let shared = Shared::open(&dir.0).unwrap();
    let used = || {
        (0..CELLS)
            .filter(|&i| shared.cell(i).owner.load(SeqCst) != 0)
            .count()
    };
    let mut bytes = vec![0; 100_000];
    let room = Bytes::Receive(bytes.as_mut_ptr(), bytes.len());
    std::thread::scope(|s| {
        let at = bytes.as_mut_ptr() as usize;
        let channel = &channel;
        let ask = move || ask(channel, 1, b"", Bytes::Receive(at as *mut u8, 100_000));
        // The requester gives up.
        let pending = s.spawn(ask);
        let taken = server.wait().pop().unwrap();
        let mut landing = taken.room().unwrap();
        assert!(taken.room().is_none(), "one at a time");
        assert_eq!(pending.join().unwrap(), Err(Errno::HOSTDOWN));
        assert_eq!(used(), 1);
        landing.bytes()[0] = 1;
        taken.answer(0, b"late", 0);
        assert_eq!(used(), 1);
        drop(landing);
        assert_eq!(used(), 0);
        // The reply comes while the room is still in use.
        let pending = s.spawn(ask);
        let taken = server.wait().pop().unwrap();
        let landing = taken.room().unwrap();
        taken.answer(5, b"", 0);
        assert_eq!(pending.join().unwrap(), Err(Errno::IO));
        assert_eq!(used(), 1);
        drop(landing);
        assert_eq!(used(), 0);
    });
    let _ = room;
}

/// Fills cells and header with arbitrary words. Lengths must be checked, no memory outside of the
/// areas touched, and valid requests answered afterwards.
#[test]
fn corrupt_cells_do_no_harm() {
    let dir = Dir::new();
    let channel = dir.channel();
    let shared = Shared::open(&dir.0).unwrap();
    forebay_fuzz::run("cells", |random| {
        let server = RequestServer::open(&dir.0).unwrap();
        server.begin(Duration::from_millis(100));
        for _ in 0..20 {
            let cell = shared.cell(random.below(CELLS));
            let words = [
                &cell.node,
                &cell.kind,
                &cell.way,
                &cell.head,
                &cell.body,
                &cell.status,
                &cell.answer,
                &cell.received,
                &cell.sleeps,
            ];
            for word in words {
                let value = match random.below(3) {
                    0 => random.below(4) as u32,
                    1 => random.below(MAX_BODY) as u32,
                    _ => random.edge() as u32,
                };
                word.store(value, SeqCst);
            }
            cell.owner.store(random.edge(), SeqCst);
            cell.state.store(random.below(24) as u32, SeqCst);
        }
        for word in &shared.header().posted {
            word.store(random.number(), SeqCst);
        }
        shared.header().bell.store(random.number() as u32, SeqCst);
        for taken in server.take() {
            if let Payload::Send(len) = taken.payload() {
                assert!(len <= MAX_BODY);
            }
            answer(taken);
        }
        drop(server);
        // The next daemon, and processes short of cells, repair what is left.
        let server = RequestServer::open(&dir.0).unwrap();
        server
            .begin(Duration::from_millis(500))
            .into_iter()
            .for_each(answer);
        drop(server);
        shared.reclaim_dead(forebay_store::process::own_word().unwrap());
    });
    let _daemon = dir.daemon(2000);
    assert!(ask(&channel, 1, b"x", Bytes::None).is_ok());
}

#[test]
fn cells_of_the_dead_come_back() {
    let dir = Dir::new();
    let channel = dir.channel();
    let shared = Shared::open(&dir.0).unwrap();
    // A process that has ended.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = 2u64 << 62 | u64::from(child.id()) << 40 | 12345;
    child.wait().unwrap();
    for i in 0..CELLS {
        let claim = cell::Claim {
            me: dead,
            image: 1,
            node: NodeId(i as u32 % 2),
            body: 0,
            is_kept: false,
        };
        assert!(shared.claim(&claim).is_ok(), "{i}");
    }
    for i in 0..CELLS {
        let state = [cell::CLAIMED, cell::POSTED, cell::DONE, cell::FREE][i % 4];
        shared.cell(i).state.store(state, SeqCst);
    }
    let _daemon = dir.daemon(3000);
    let start = Instant::now();
    assert!(ask(&channel, 1, b"x", Bytes::None).is_ok());
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    drop(_daemon);
    let used = (0..CELLS).filter(|&i| shared.cell(i).owner.load(SeqCst) != 0);
    assert_eq!(used.count(), 0);
}

#[test]
fn requests_of_the_dead_are_seen_while_they_may_be_carried_out() {
    let dir = Dir::new();
    let shared = Shared::open(&dir.0).unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = 2u64 << 62 | u64::from(child.id()) << 40 | 12345;
    child.wait().unwrap();
    let alive = forebay_store::process::own_word().unwrap();
    let claim = |me: u64| {
        let claim = cell::Claim {
            me,
            image: 1,
            node: NodeId(1),
            body: 0,
            is_kept: false,
        };
        shared.claim(&claim).ok().unwrap()
    };
    let in_state = |index: usize, state: u32, kind: u32| {
        shared.cell(index).kind.store(kind, SeqCst);
        shared.cell(index).state.store(state, SeqCst);
        shared.has_orphan(|kind| kind == 7)
    };
    let (of_dead, of_living) = (claim(dead), claim(alive));
    for state in [cell::POSTED, cell::TAKEN | cell::HELD] {
        assert!(in_state(of_dead, state, 7), "{state}");
        assert!(!in_state(of_dead, state, 8), "{state}");
        assert!(!in_state(of_dead, cell::DONE, 7), "{state}");
        assert!(!in_state(of_living, state, 7), "{state}");
    }
    // The cell's requester lives, and no longer waits.
    assert!(in_state(of_living, cell::ABANDONED | cell::HELD, 7));
    shared.free(of_living);
    assert!(!shared.has_orphan(|_| true));
}

#[test]
fn one_node_doesnt_get_all_cells() {
    let dir = Dir::new();
    let shared = Shared::open(&dir.0).unwrap();
    let claim_as = |node: u32, body: usize, is_kept: bool| {
        shared.claim(&cell::Claim {
            me: forebay_store::process::own_word().unwrap(),
            image: 1,
            node: NodeId(node),
            body,
            is_kept,
        })
    };
    // Requests whose reply may stay uncollected for long get no small cell, and at most half of the
    // large ones.
    assert!(claim_as(1, 0, true).is_err());
    let kept = (0..CELLS).map_while(|_| claim_as(1, MAX_BODY, true).ok());
    let kept: Vec<usize> = kept.collect();
    assert_eq!(kept.len(), LARGE / 2);
    kept.into_iter().for_each(|index| shared.leave(index));
    let claim = |node: u32, body: usize| claim_as(node, body, false);
    let large = (0..CELLS).take_while(|_| claim(1, MAX_BODY).is_ok());
    assert_eq!(large.count(), LARGE / 4 * 3);
    assert!(claim(2, MAX_BODY).is_ok());
    let small = (0..CELLS).take_while(|_| claim(1, 0).is_ok());
    assert_eq!(small.count(), CELLS / 4 * 3 - LARGE / 4 * 3);
    assert!(claim(2, 0).is_ok());
}

#[test]
fn one_way_requests_arrive_even_if_requester_or_daemon_die() {
    let dir = Dir::new();
    let channel = dir.channel();
    let shared = Shared::open(&dir.0).unwrap();
    let owned = || (0..CELLS).filter(|&i| shared.cell(i).owner.load(Acquire) != 0);
    // Without a daemon no process waits while there are free cells.
    for i in 0..10u8 {
        channel.tell(NodeId(1), 1, &[i]);
    }
    assert_eq!(owned().count(), 10);
    // One-way requests of dead processes must still be sent.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = 2u64 << 62 | u64::from(child.id()) << 40 | 12345;
    child.wait().unwrap();
    for i in owned() {
        shared.cell(i).owner.store(dead, Release);
    }
    assert_eq!(shared.reclaim_dead(7), 0);
    // This daemon takes the requests and dies.
    let server = RequestServer::open(&dir.0).unwrap();
    assert!(server.begin(Duration::from_millis(5000)).is_empty());
    assert_eq!(server.take().len(), 10);
    drop(server);
    let server = RequestServer::open(&dir.0).unwrap();
    let again = server.begin(Duration::from_millis(5000));
    let mut heads: Vec<u8> = again.iter().map(|t| t.head()[0]).collect();
    heads.sort_unstable();
    assert_eq!(heads, (0..10).collect::<Vec<u8>>());
    for taken in again {
        assert!(taken.is_one_way());
        let also = taken.clone();
        taken.answer(0, b"x", 0);
        drop(also);
    }
    assert_eq!(owned().count(), 0);
    // The next request in the cell isn't one-way.
    drop(server);
    let _daemon = dir.daemon(5000);
    let reply = ask(&channel, 1, b"ab", Bytes::None);
    assert_eq!(reply, Ok((b"ba".to_vec(), 0)));
    // The daemon sleeps at this point; a one-way request wakes it.
    std::thread::sleep(Duration::from_millis(100));
    channel.tell(NodeId(1), 1, b"a");
    let end = Instant::now() + Duration::from_secs(5);
    while owned().count() > 0 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
}
