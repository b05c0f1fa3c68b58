//! Requests from processes through their node's daemon to other nodes, without faults.

mod support;

use forebay_cluster::peers::{MAX_BODY, MAX_HEAD, Peers};
use forebay_net::NodeId;
use forebay_placement::Slot;
use forebay_pool::daemon::{Options, Reach};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};
use support::*;

/// Calls a function when it is dropped, even if a test fails.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn requests_reach_other_nodes_and_are_answered() {
    within(60, || {
        let nodes = Nodes::new(3);
        let daemons = nodes.daemons(&Options::default());
        let channel = nodes.channel(0);
        for to in 0..3 {
            for size in [0, 1, 500, 40_000, MAX_HEAD] {
                let head = pattern(size, to as u8);
                assert_eq!(call(&channel, to, ECHO, &head), Ok(head), "{to} {size}");
            }
            for size in [1, 4096, 16 << 10, (16 << 10) + 1, 300_000, MAX_BODY] {
                let bytes = pattern(size, to as u8);
                let sum = sum(&bytes).to_le_bytes().to_vec();
                assert_eq!(
                    send(&channel, to, ECHO, b"h", &bytes),
                    Ok(sum),
                    "{to} {size}"
                );
                let got = receive(&channel, to, GIVE, size.min(MAX_BODY - 10), "").unwrap();
                assert!(got == pattern(got.len(), got.len() as u8), "{to} {size}");
                assert_eq!(got.len(), size.min(MAX_BODY - 10));
            }
            // With a head so large that even a small body doesn't fit beside it.
            let bytes = pattern(16 << 10, 1);
            let head = pattern(MAX_HEAD, 1);
            let sum = sum(&bytes).to_le_bytes().to_vec();
            assert_eq!(send(&channel, to, ECHO, &head, &bytes), Ok(sum));
            assert_eq!(call(&channel, to, FAIL, b""), Err(Errno::NOENT));
            assert_eq!(call(&channel, to, 1000, b""), Err(Errno::PROTO));
            assert_eq!(call(&channel, to, 0x8000, b""), Err(Errno::PROTO));
        }
        assert_eq!(call(&channel, 77, ECHO, b""), Err(Errno::HOSTDOWN));
        // A request whose handler sends requests to the other nodes and to its own.
        for to in 0..3 {
            let answer = call(&channel, to, ASK, b"all").unwrap();
            assert_eq!(answer[..2], [3, 0]);
            assert_eq!(answer[2..], sum(&pattern(100_000, 1)).to_le_bytes());
        }
        let all: Vec<NodeId> = [2, 0, 77, 1].map(NodeId).to_vec();
        let replies = channel.ask_each(&all, ECHO, b"x");
        let ok = replies.iter().map(|t| t.as_ref().map(|t| t.head.clone()));
        let ok: Vec<_> = ok.map(|r| r.map_err(|e| *e)).collect();
        let x = Ok(b"x".to_vec());
        assert_eq!(ok, [x.clone(), x.clone(), Err(Errno::HOSTDOWN), x]);

        // The nodes are those in the map.
        assert_eq!(channel.nodes(), [0, 1, 2].map(NodeId));
        let mine = (0..1000).filter(|&s| channel.node_of(Slot(s * 200)) == NodeId(0));
        assert!((200..500).contains(&mine.count()));
        let slot = channel.slot_here(12345).unwrap();
        assert_eq!(channel.node_of(slot), NodeId(0));
        let states = daemons[0].0.states();
        assert_eq!(states.len(), 2);
        assert!(states.iter().all(|s| s.reach == Reach::Up), "{states:?}");
        assert!(daemons.iter().all(|d| d.1.gone.lock().unwrap().is_empty()));
    });
}

#[test]
fn many_threads_of_many_nodes_send_requests_to_each_other() {
    within(100, || {
        let nodes = Nodes::new(3);
        let _daemons = nodes.daemons(&Options {
            encrypt: true,
            ..Options::default()
        });
        std::thread::scope(|s| {
            for from in 0..3 {
                for t in 0..20u32 {
                    let nodes = &nodes;
                    s.spawn(move || {
                        let channel = nodes.channel(from);
                        for i in 0..30u32 {
                            let to = (from + t + i) % 3;
                            match (t + i) % 5 {
                                0 => {
                                    let bytes = pattern(200_000 + i as usize, t as u8);
                                    let sum = sum(&bytes).to_le_bytes().to_vec();
                                    assert_eq!(send(&channel, to, ECHO, b"", &bytes), Ok(sum));
                                }
                                1 => {
                                    let size = 150_000 + i as usize;
                                    let got = receive(&channel, to, GIVE, size, "").unwrap();
                                    assert!(got == pattern(size, size as u8));
                                }
                                2 => {
                                    let answer = call(&channel, to, ASK, b"all").unwrap();
                                    assert_eq!(answer[..2], [3, from as u8]);
                                }
                                _ => {
                                    let head = [t as u8, i as u8];
                                    assert_eq!(
                                        call(&channel, to, ECHO, &head).as_deref(),
                                        Ok(&head[..])
                                    );
                                }
                            }
                        }
                    });
                }
            }
        });
    });
}

/// Sends more requests than there are receiving threads. Each request blocks the thread that
/// received it.
#[test]
fn slow_requests_delay_no_others() {
    within(60, || {
        let nodes = Nodes::new(2);
        let slow = Duration::from_millis(700);
        let settings = Settings {
            pause: slow.as_millis() as u64,
            ..Settings::default()
        };
        let _daemons = nodes.processes(&settings);
        let channel = nodes.channel(0);
        assert!(call(&channel, 1, ECHO, b"").is_ok());
        std::thread::scope(|s| {
            for i in 0..20u8 {
                let channel = &channel;
                // Posted one after the other, so that each is received alone.
                std::thread::sleep(Duration::from_millis(5));
                s.spawn(move || assert!(call(channel, 1, NOTE, &[b'a' + i]).is_ok()));
            }
            let begin = Instant::now();
            for i in 0..20u8 {
                assert_eq!(call(&channel, 1, ECHO, &[i]).as_deref(), Ok(&[i][..]));
            }
            let took = begin.elapsed();
            assert!(took < slow / 2, "{took:?}");
        });
        assert_eq!(nodes.noted(1).len(), 20);
    });
}

/// In whatever order nodes connect, even all at once, each node ends up with two sockets for each
/// other node.
#[test]
fn two_nodes_share_their_connection() {
    within(100, || {
        let nodes = Nodes::new(4);
        let settings = Settings::default();
        let mut daemons = nodes.processes(&settings);
        let ask_all = || {
            std::thread::scope(|s| {
                for from in 0..4 {
                    for to in (0..4).filter(|to| *to != from) {
                        let nodes = &nodes;
                        s.spawn(move || {
                            let channel = nodes.channel(from);
                            let bytes = pattern(100_000, from as u8);
                            let sum = sum(&bytes).to_le_bytes().to_vec();
                            assert_eq!(call(&channel, to, ECHO, b"x"), Ok(b"x".to_vec()));
                            assert_eq!(send(&channel, to, ECHO, b"", &bytes), Ok(sum));
                            assert!(receive(&channel, to, GIVE, 100_000, "").is_ok());
                        });
                    }
                }
            });
        };
        let settled = |daemons: &[Process]| {
            until("two sockets for each other node", 20, || {
                daemons.iter().all(|d| d.connections() == 2 * 3)
            });
        };
        ask_all();
        settled(&daemons);
        // The surplus connection is closed; the remaining one still serves both nodes.
        ask_all();
        settled(&daemons);
        // Restart the daemon with the highest number, to which the others connect, then the lowest.
        for node in [3, 0] {
            daemons[node].kill();
            daemons[node] = nodes.process(node as u32, &settings);
            daemons[node].serve(None);
            ask_all();
            settled(&daemons);
        }
    });
}

/// Daemons have descriptors for two sockets for each other node and a few more. Unauthenticated
/// peers try to take all of them.
#[test]
fn unauthenticated_peers_leave_descriptors_for_nodes() {
    const OTHERS: u32 = 8;
    within(100, || {
        let nodes = Nodes::new(OTHERS + 1);
        let settings = Settings::default();
        let mut daemons = nodes.processes(&settings);
        let others = 2 * OTHERS as usize;
        let alone = daemons[0].descriptors();
        daemons[0].kill();
        let limit = Some((alone + others + 12) as u64);
        let settings = Settings {
            descriptors: limit,
            ..settings
        };
        daemons[0] = nodes.process(0, &settings);
        daemons[0].serve(None);
        let (over, to) = (AtomicBool::new(false), daemons[0].address);
        std::thread::scope(|s| {
            let over = &over;
            s.spawn(move || {
                // The connections send nothing, and are opened again when they are closed.
                let mut open = std::collections::VecDeque::new();
                while !over.load(Relaxed) {
                    let wait = Duration::from_millis(100);
                    open.extend(std::net::TcpStream::connect_timeout(&to, wait));
                    if open.len() > 100 {
                        open.pop_front();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let _ends = OnDrop(|| over.store(true, Relaxed));
            let bytes = pattern(100_000, 1);
            let sum = sum(&bytes).to_le_bytes().to_vec();
            let channel = nodes.channel(0);
            for _ in 0..2 {
                for other in 1..=OTHERS {
                    assert_eq!(
                        send(&channel, other, ECHO, b"", &bytes),
                        Ok(sum.clone()),
                        "to {other}: {}",
                        nodes.log(0)
                    );
                    let back = nodes.channel(other);
                    assert_eq!(
                        send(&back, 0, ECHO, b"", &bytes),
                        Ok(sum.clone()),
                        "from {other}: {}",
                        nodes.log(other)
                    );
                }
            }
        });
    });
}

/// No thread of a daemon wakes up while there are no requests.
#[test]
fn an_idle_daemon_uses_no_cpu() {
    within(60, || {
        let nodes = Nodes::new(2);
        let daemons = nodes.processes(&Settings::default());
        let channel = nodes.channel(0);
        for i in 0..100u8 {
            assert_eq!(call(&channel, 1, ECHO, &[i]).as_deref(), Ok(&[i][..]));
        }
        let bytes = pattern(500_000, 1);
        assert!(send(&channel, 1, ECHO, b"", &bytes).is_ok());
        std::thread::sleep(Duration::from_millis(300));
        let used = |pid: u32| {
            let mut ticks = 0u64;
            let mut switches = 0u64;
            for task in std::fs::read_dir(format!("/proc/{pid}/task"))
                .unwrap()
                .flatten()
            {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
                let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
                ticks += fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap();
                let status = std::fs::read_to_string(task.path().join("status")).unwrap();
                let line = status.lines().find(|l| l.starts_with("voluntary")).unwrap();
                switches += line
                    .split_whitespace()
                    .nth(1)
                    .unwrap()
                    .parse::<u64>()
                    .unwrap();
            }
            (ticks, switches)
        };
        let before: Vec<_> = daemons.iter().map(|d| used(d.child.id())).collect();
        std::thread::sleep(Duration::from_secs(3));
        for (daemon, before) in daemons.iter().zip(before) {
            let after = used(daemon.child.id());
            assert_eq!(after.0, before.0, "ticks");
            assert!(after.1 - before.1 <= 2, "wake-ups: {before:?} {after:?}");
        }
    });
}

#[test]
fn child() {
    support::child();
}
