//! Requests while daemons are killed and restarted, connections cut, and requesters killed. Each
//! request must be carried out at most once, and exactly once if its requester gets a reply. No
//! requester may wait longer than the request timeout.

mod support;

use forebay_cluster::peers::Bytes;
use forebay_fuzz::relay::{Faults, Relay};
use forebay_pool::daemon::{Options, Reach};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use support::*;

/// For each note, the result that its sender got.
type Results = HashMap<String, Result<(), Errno>>;

/// Minimum number of notes that a test needs to prove anything.
const ENOUGH: usize = 100;

/// Threads on node 0 send notes to node 1 while `f` runs. Returns their results.
fn take_notes(nodes: &Nodes, kind: u16, f: impl FnOnce()) -> Results {
    let over = AtomicBool::new(false);
    let (results, count) = (Mutex::new(Results::new()), AtomicU64::new(0));
    std::thread::scope(|s| {
        for t in 0..8 {
            let (over, results, count, nodes) = (&over, &results, &count, &nodes);
            s.spawn(move || {
                let channel = nodes.channel(0);
                while !over.load(SeqCst) {
                    let note = format!("note-{t}-{}", count.fetch_add(1, SeqCst));
                    let answer = match t {
                        // Some requests with many bytes in the reply.
                        0 if kind == NOTE => {
                            receive(&channel, 1, GIVE_ONCE, 50_000, &note).map(|got| {
                                assert!(got == pattern(50_000, 50_000u64 as u8));
                            })
                        }
                        // Some requests with many bytes of their own.
                        1 => send(&channel, 1, kind, note.as_bytes(), &pattern(100_000, 1))
                            .map(|head| assert_eq!(head, b"noted")),
                        _ => call(&channel, 1, kind, note.as_bytes())
                            .map(|head| assert_eq!(head, b"noted")),
                    };
                    results.lock().unwrap().insert(note, answer);
                    // Leaves the few cores to other threads for a moment.
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        f();
        // Waits for enough notes, since the machine may be busy with something else.
        let limit = Instant::now() + Duration::from_secs(30);
        while results.lock().unwrap().len() <= ENOUGH && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        over.store(true, SeqCst);
    });
    results.into_inner().unwrap()
}

/// Checks that node 1 recorded each note as its requester was told. Returns the number of failed
/// requests.
fn check(nodes: &Nodes, results: &Results, twice: bool) -> usize {
    let noted = nodes.noted(1);
    for (note, times) in &noted {
        assert!(results.contains_key(note), "{note} came from nowhere");
        assert!(*times == 1 || twice, "{note} was taken {times} times");
    }
    let mut failed = 0;
    for (note, answer) in results {
        match answer {
            Ok(()) => assert!(noted.contains_key(note), "{note} is lost"),
            Err(_) => failed += 1,
        }
    }
    println!("{} notes, {failed} failed", results.len());
    assert!(results.len() > ENOUGH, "{}", results.len());
    failed
}

/// Kills a daemon and starts it again with the same directory.
fn replace(nodes: &Nodes, process: &mut Process, node: u32, settings: &Settings) {
    process.kill();
    *process = nodes.process(node, settings);
    process.serve(None);
}

/// Makes two nodes, and kills and restarts the daemon of one of them `times` times while notes are
/// sent. Returns the nodes, their daemons, and the results.
fn restarted(node: u32, times: usize, kind: u16) -> (Nodes, Vec<Process>, Results) {
    let nodes = Nodes::new(2);
    let settings = Settings {
        pause: 1,
        ..Settings::default()
    };
    let mut daemons = nodes.processes(&settings);
    let results = take_notes(&nodes, kind, || {
        for _ in 0..times {
            std::thread::sleep(Duration::from_millis(150));
            replace(&nodes, &mut daemons[node as usize], node, &settings);
        }
    });
    (nodes, daemons, results)
}

#[test]
fn connections_are_cut() {
    within(100, || {
        let nodes = Nodes::new(2);
        let settings = Settings {
            pause: 2,
            ..Settings::default()
        };
        let (relays, _daemons) = behind_relays(&nodes, &settings);
        let channel = nodes.channel(0);
        assert!(call(&channel, 1, ECHO, b"").is_ok());
        let results = take_notes(&nodes, NOTE, || {
            for i in 0..60 {
                std::thread::sleep(Duration::from_millis(40));
                for relay in &relays {
                    relay.set(Faults {
                        cut_after: (i % 3 == 0).then_some(20_000 + i * 1000),
                        delay: Duration::from_millis(i % 2),
                        ..Faults::default()
                    });
                    relay.cut();
                }
            }
            relays.iter().for_each(|r| r.set(Faults::default()));
        });
        assert_eq!(check(&nodes, &results, false), 0);
        assert!(nodes.noted(1).len() >= results.len());
    });
}

#[test]
fn the_home_is_killed_and_started_again() {
    within(100, || {
        let (nodes, _daemons, results) = restarted(1, 10, NOTE);
        let failed = check(&nodes, &results, false);
        // Requests that were being carried out at a kill may have failed.
        assert!(failed <= 8 * 10, "{failed}");
        assert!(
            results
                .values()
                .all(|t| matches!(t, Ok(()) | Err(Errno::IO)))
        );
        // The outcome is unknown only for requests that were begun and not finished: the records of
        // finished requests outlive the daemon.
        assert!(!nodes.log(0).contains("has lost its records"));
        let restarts = || {
            let text = std::fs::read_to_string(nodes.of(0).join("restarts")).unwrap();
            text.lines().filter(|l| *l == "1").count()
        };
        let end = Instant::now() + Duration::from_secs(10);
        while restarts() < 10 {
            assert!(Instant::now() < end, "a new daemon got no restart notice");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// Starts two daemons as processes, each behind a relay through which all its connections go.
fn behind_relays(nodes: &Nodes, settings: &Settings) -> ([Relay; 2], Vec<Process>) {
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let relays = [0, 1].map(|_| Relay::start(nowhere).unwrap());
    let mut daemons: Vec<Process> = (0..2)
        .map(|i: u32| {
            let settings = Settings {
                advertise: Some(relays[i as usize].address()),
                ..settings.clone()
            };
            let daemon = nodes.process(i, &settings);
            relays[i as usize].lead_to(daemon.address);
            daemon
        })
        .collect();
    let map = map(&[relays[0].address(), relays[1].address()]);
    daemons.iter_mut().for_each(|d| d.serve(Some(&map)));
    (relays, daemons)
}

/// The home is killed after it has carried out a request and before the reply has arrived. The next
/// daemon sends the reply, and doesn't carry the request out again.
#[test]
fn an_answer_outlives_the_daemon() {
    within(60, || {
        let nodes = Nodes::new(2);
        let (relays, mut daemons) = behind_relays(&nodes, &Settings::default());
        let channel = nodes.channel(0);
        assert!(call(&channel, 1, ECHO, b"").is_ok());
        // Messages of node 1 don't arrive, whichever side has made the connection.
        relays[1].set(Faults {
            hold_back: true,
            ..Faults::default()
        });
        relays[0].set(Faults {
            hold_to_node: true,
            ..Faults::default()
        });
        std::thread::scope(|s| {
            let pending = s.spawn(|| call(&channel, 1, NOTE, b"once"));
            until("it is carried out", 8, || {
                nodes.noted(1).contains_key("once")
            });
            // The reply is recorded a moment after the note.
            std::thread::sleep(Duration::from_millis(100));
            daemons[1].kill();
            for relay in &relays {
                relay.set(Faults::default());
                relay.cut();
            }
            // The new daemon sends node 0 its own address.
            daemons[1] = nodes.process(1, &Settings::default());
            daemons[1].serve(None);
            let answer = pending.join().unwrap();
            let logs = [nodes.log(0), nodes.log(1)];
            assert_eq!(answer, Ok(b"noted".to_vec()), "{logs:?}");
        });
        assert_eq!(nodes.noted(1)["once"], 1);
    });
}

/// One request isn't answered for a while. Meanwhile the same daemon answers thousands of others.
#[test]
fn a_slow_request_fails_no_others() {
    within(100, || {
        let nodes = Nodes::new(2);
        let daemons = nodes.daemons(&Options::default());
        let channel = nodes.channel(0);
        std::thread::scope(|s| {
            let slow = s.spawn(|| call(&channel, 1, WAIT, b"slow"));
            until("it is begun", 8, || nodes.of(1).join("waiting").exists());
            let pending: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        let channel = nodes.channel(0);
                        (0..1400).try_for_each(|_| {
                            call(&channel, 1, FAIL, b"").map_or_else(
                                |e| if e == Errno::NOENT { Ok(()) } else { Err(e) },
                                |_| Err(Errno::PROTO),
                            )
                        })
                    })
                })
                .collect();
            let pending: Vec<_> = pending.into_iter().map(|a| a.join().unwrap()).collect();
            std::fs::write(nodes.of(1).join("gate"), b"").unwrap();
            assert_eq!(pending, [Ok(()); 4]);
            assert_eq!(slow.join().unwrap(), Ok(b"noted".to_vec()));
        });
        drop(daemons);
    });
}

/// A request takes longer than the request timeout. Its requester waits while the home works on the
/// request, and no longer.
#[test]
fn long_work_is_waited_for() {
    within(60, || {
        let nodes = Nodes::new(3);
        let settings = Settings {
            request_timeout: 600,
            ..Settings::default()
        };
        let mut daemons = nodes.processes(&settings);
        let gate = nodes.of(1).join("gate");
        let channel = nodes.channel(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let far = s.spawn(|| call(&channel, 1, WAIT, b"far"));
            // A process of the home's own node waits as long as one of another node.
            let near = s.spawn(|| {
                let answer = call(&nodes.channel(1), 1, WAIT, b"near");
                done.store(true, SeqCst);
                answer
            });
            // The work takes five times the request timeout.
            std::thread::sleep(Duration::from_secs(3));
            assert!(
                !far.is_finished() && !done.load(SeqCst),
                "they were given up"
            );
            std::fs::write(&gate, b"").unwrap();
            assert_eq!(far.join().unwrap(), Ok(b"noted".to_vec()));
            assert_eq!(near.join().unwrap(), Ok(b"noted".to_vec()));
        });
        let noted = nodes.noted(1);
        assert_eq!((noted["far"], noted["near"]), (1, 1));
        // A stopped home, and one that dies, are noticed in time.
        for fate in [stand_still as fn(&mut Process), Process::kill] {
            std::fs::remove_file(&gate).unwrap();
            let _ = std::fs::remove_file(nodes.of(1).join("waiting"));
            std::thread::scope(|s| {
                let pending = s.spawn(|| call(&channel, 1, WAIT, b"in vain"));
                until("it is begun", 8, || nodes.of(1).join("waiting").exists());
                std::thread::sleep(Duration::from_secs(1));
                assert!(!pending.is_finished());
                fate(&mut daemons[1]);
                until("it is given up", 20, || pending.is_finished());
                assert_eq!(pending.join().unwrap(), Err(Errno::HOSTDOWN));
            });
            std::fs::write(&gate, b"").unwrap();
            replace(&nodes, &mut daemons[1], 1, &settings);
            until("it is back", 20, || call(&channel, 1, ECHO, b"").is_ok());
        }
        assert!(!nodes.noted(1).contains_key("in vain"));
    });
}

/// A home is stopped when a request arrives, and continues when the requester has given up. The
/// home must not carry out the request then.
#[test]
fn nothing_is_carried_out_after_the_requester_gave_up() {
    within(60, || {
        let nodes = Nodes::new(2);
        let settings = Settings {
            request_timeout: 700,
            ..Settings::default()
        };
        let mut daemons = nodes.processes(&settings);
        let channel = nodes.channel(0);
        assert!(call(&channel, 1, ECHO, b"").is_ok());
        stand_still(&mut daemons[1]);
        let large = pattern(100_000, 1);
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(call(&channel, 1, NOTE, b"late"), Err(Errno::HOSTDOWN)));
            let sends = || send(&channel, 1, NOTE, b"much", &large);
            s.spawn(move || assert_eq!(sends(), Err(Errno::HOSTDOWN)));
        });
        // By now node 0 has abandoned the connection.
        std::thread::sleep(Duration::from_millis(300));
        let pid = rustix::process::Pid::from_child(&daemons[1].child);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        until("it is back", 20, || call(&channel, 1, NOTE, b"new").is_ok());
        std::thread::sleep(Duration::from_millis(300));
        let noted = nodes.noted(1);
        assert!(
            !noted.contains_key("late") && !noted.contains_key("much"),
            "{noted:?}"
        );
    });
}

/// Stops the process.
fn stand_still(process: &mut Process) {
    let pid = rustix::process::Pid::from_child(&process.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // The threads of a stopped process stop one after the other.
    let tasks = format!("/proc/{}/task", process.child.id());
    let stands = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" T")
    };
    until("it stands still", 5, || {
        std::fs::read_dir(&tasks).unwrap().all(stands)
    });
}

#[test]
fn repeatable_requests_never_fail() {
    within(100, || {
        let (nodes, _daemons, results) = restarted(1, 8, NOTE_AGAIN);
        assert_eq!(check(&nodes, &results, true), 0);
    });
}

#[test]
fn the_requesters_daemon_is_killed_and_started_again() {
    within(100, || {
        let (nodes, _daemons, results) = restarted(0, 10, NOTE);
        assert_eq!(check(&nodes, &results, false), 0);
    });
}

#[test]
fn a_node_that_continues_is_reached_at_once() {
    within(60, || {
        let nodes = Nodes::new(2);
        let options = Options {
            request_timeout: Duration::from_millis(800),
            ..Options::default()
        };
        let mut daemons = nodes.daemons(&options);
        let addresses: Vec<_> = daemons.iter().map(|(d, _)| d.addresses()[0]).collect();
        let channel = nodes.channel(0);
        for round in 0..6 {
            assert!(call(&channel, 1, ECHO, b"x").is_ok());
            drop(daemons.pop());
            // Wait until node 0 counts node 1 as down: then requests to node 1 fail at once.
            until("it is refused at once", 5, || {
                let start = Instant::now();
                assert_eq!(call(&channel, 1, ECHO, b"x"), Err(Errno::HOSTDOWN));
                start.elapsed() < Duration::from_millis(200)
            });
            let (daemon, simple) = listen(&nodes.of(1), 1, 2, options.clone(), Duration::ZERO);
            daemon.serve(std::sync::Arc::new(map(&addresses))).unwrap();
            daemon.wait_announced(Duration::from_secs(10));
            assert!(call(&channel, 1, ECHO, b"x").is_ok(), "round {round}");
            daemons.push((daemon, simple));
        }
    });
}

#[test]
fn a_node_that_is_down_is_reported_in_time_and_delays_no_others() {
    within(60, || {
        let nodes = Nodes::new(3);
        let settings = Settings {
            request_timeout: 800,
            gone_after: 1500,
            ..Settings::default()
        };
        let options = Options {
            request_timeout: Duration::from_millis(800),
            gone_after: Duration::from_millis(1500),
            ..Options::default()
        };
        // The daemon of node 0 runs in this process, so that the test can read its link states.
        let (own, simple) = listen(&nodes.of(0), 0, 3, options, Duration::ZERO);
        let mut daemons: Vec<Process> = (1..3).map(|i| nodes.process(i, &settings)).collect();
        let addresses = [own.addresses()[0], daemons[0].address, daemons[1].address];
        let map = map(&addresses);
        own.serve(std::sync::Arc::new(map.clone())).unwrap();
        daemons.iter_mut().for_each(|d| d.serve(Some(&map)));
        let channel = nodes.channel(0);
        assert!(call(&channel, 1, ECHO, b"x").is_ok());
        let reach = |node: usize| own.states()[node - 1].reach;
        assert_eq!((reach(1), reach(2)), (Reach::Up, Reach::Untried));
        daemons[0].kill();

        let start = Instant::now();
        assert_eq!(call(&channel, 1, NOTE, b"x"), Err(Errno::HOSTDOWN));
        let took = start.elapsed();
        assert!(
            took > Duration::from_millis(700) && took < Duration::from_secs(3),
            "{took:?}"
        );
        assert_eq!(reach(1), Reach::Unreachable);
        assert!(
            own.states()[0]
                .why
                .as_ref()
                .is_some_and(|w| w.contains("node 1"))
        );
        // From now on requests to the down node fail at once, and delay no others.
        let start = Instant::now();
        std::thread::scope(|s| {
            for _ in 0..300 {
                s.spawn(|| {
                    let bytes = pattern(100_000, 1);
                    assert_eq!(send(&channel, 1, NOTE, b"", &bytes), Err(Errno::HOSTDOWN));
                });
                s.spawn(|| assert!(call(&channel, 2, ECHO, b"y").is_ok()));
            }
        });
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        until("it is given up", 5, || {
            !simple.gone.lock().unwrap().is_empty()
        });
        assert_eq!(simple.gone.lock().unwrap()[..], [forebay_net::NodeId(1)]);

        // The daemon comes back. A request that waits for it at that moment succeeds.
        let requester = std::thread::spawn({
            let channel = nodes.channel(0);
            move || {
                let end = Instant::now() + Duration::from_secs(10);
                while call(&channel, 1, ECHO, b"z").is_err() {
                    assert!(Instant::now() < end);
                }
            }
        });
        daemons[0] = nodes.process(1, &settings);
        daemons[0].serve(None);
        requester.join().unwrap();
        assert_eq!(reach(1), Reach::Up);
        assert_eq!(simple.gone.lock().unwrap().len(), 1, "once");
    });
}

/// More requests than there are cells wait for a node that doesn't answer.
#[test]
fn a_node_that_stands_still_leaves_room_for_others() {
    within(60, || {
        let nodes = Nodes::new(3);
        let settings = Settings {
            request_timeout: 3000,
            ..Settings::default()
        };
        let daemons = nodes.processes(&settings);
        let channel = nodes.channel(0);
        assert!(call(&channel, 1, ECHO, b"").is_ok());
        let pid = rustix::process::Pid::from_raw(daemons[1].child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        // The threads of a stopped process stop one after the other.
        let tasks = format!("/proc/{}/task", daemons[1].child.id());
        let stands = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(')').next().unwrap().starts_with(" T")
        };
        until("it stands still", 5, || {
            std::fs::read_dir(&tasks).unwrap().all(stands)
        });
        std::thread::scope(|s| {
            let begin = Instant::now();
            for i in 0..400 {
                let channel = &channel;
                s.spawn(move || {
                    let bytes = pattern(100_000 * (i % 2), 1);
                    assert_eq!(send(channel, 1, ECHO, b"", &bytes), Err(Errno::HOSTDOWN));
                    assert!(begin.elapsed() < Duration::from_secs(6));
                });
            }
            std::thread::sleep(Duration::from_millis(500));
            let bytes = pattern(100_000, 1);
            for _ in 0..20 {
                assert!(call(&channel, 2, ECHO, b"y").is_ok());
                assert!(send(&channel, 2, ECHO, b"", &bytes).is_ok());
            }
            assert!(
                begin.elapsed() < Duration::from_secs(2),
                "{:?}",
                begin.elapsed()
            );
        });
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        until("it answers", 10, || call(&channel, 1, ECHO, b"").is_ok());
    });
}

/// A network that loses all messages, like a host without power.
#[test]
fn a_node_that_says_nothing_is_given_up() {
    within(60, || {
        let nodes = Nodes::new(2);
        let options = Options {
            request_timeout: Duration::from_millis(700),
            ..Options::default()
        };
        let (one, _) = listen(&nodes.of(1), 1, 2, options.clone(), Duration::ZERO);
        let relay = Relay::start(one.addresses()[0]).unwrap();
        let (own, _) = listen(&nodes.of(0), 0, 2, options, Duration::ZERO);
        let back = Relay::start(own.addresses()[0]).unwrap();
        let map = std::sync::Arc::new(map(&[own.addresses()[0], relay.address()]));
        own.serve(map).unwrap();
        // Node 1 has no map yet, so it answers no requests.
        let channel = nodes.channel(0);
        assert_eq!(call(&channel, 1, ECHO, b"x"), Err(Errno::HOSTDOWN));
        let real = [back.address(), one.addresses()[0]];
        one.serve(std::sync::Arc::new(support::map(&real))).unwrap();
        until("it serves", 5, || call(&channel, 1, ECHO, b"x").is_ok());
        let hold = Faults {
            hold: true,
            ..Faults::default()
        };
        relay.set(hold);
        back.set(hold);
        let start = Instant::now();
        let bytes = pattern(300_000, 1);
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(call(&channel, 1, ECHO, b"x"), Err(Errno::HOSTDOWN)));
            s.spawn(|| assert_eq!(send(&channel, 1, ECHO, b"x", &bytes), Err(Errno::HOSTDOWN)));
            s.spawn(|| assert!(receive(&channel, 1, GIVE, 300_000, "").is_err()));
        });
        assert!(
            start.elapsed() < Duration::from_millis(2500),
            "{:?}",
            start.elapsed()
        );
        until("it is known", 5, || {
            own.states()[0].reach == Reach::Unreachable
        });
        relay.set(Faults::default());
        back.set(Faults::default());
        until("it is back", 10, || call(&channel, 1, ECHO, b"x").is_ok());
    });
}

#[test]
fn a_daemon_with_another_port_tells_the_others() {
    within(60, || {
        let nodes = Nodes::new(3);
        let settings = Settings::default();
        let mut daemons = nodes.processes(&settings);
        let channels: Vec<_> = (0..3).map(|i| nodes.channel(i)).collect();
        assert!(call(&channels[0], 2, ECHO, b"").is_ok());
        let before = daemons[2].address;
        // Node 2 keeps its address, too.
        replace(&nodes, &mut daemons[2], 2, &settings);
        assert_eq!(daemons[2].address, before);
        daemons[2].kill();
        let taken = std::net::TcpListener::bind(before).unwrap();
        daemons[2] = nodes.process(2, &settings);
        daemons[2].serve(None);
        assert_ne!(daemons[2].address, before);
        for channel in &channels[..2] {
            until("it is found", 10, || call(channel, 2, ECHO, b"").is_ok());
        }
        drop(taken);
        let address = |dir: u32| {
            let map = forebay_pool::daemon::read_map(&nodes.of(dir)).unwrap();
            (map.epoch(), map.nodes()[2].addresses[0].port)
        };
        // Other nodes can reach node 2 through the connection that it has made. So a request may be
        // answered before node 2's new address has arrived at all nodes.
        for node in 0..3 {
            until("all know", 10, || {
                address(node) == (2, daemons[2].address.port())
            });
        }
        // A node that was down gets the address when it comes back.
        daemons[0].kill();
        daemons[2].kill();
        let taken = std::net::TcpListener::bind(daemons[2].address).unwrap();
        daemons[2] = nodes.process(2, &settings);
        daemons[2].serve(None);
        daemons[0] = nodes.process(0, &settings);
        daemons[0].serve(None);
        until("it is found", 10, || {
            call(&channels[0], 2, ECHO, b"").is_ok()
        });
        drop(taken);
    });
}

#[test]
fn requesters_are_killed() {
    within(100, || {
        let nodes = Nodes::new(2);
        let daemons = nodes.processes(&Settings::default());
        for round in 0..25u64 {
            let mut requesters: Vec<_> = (0..3)
                .map(|_| {
                    again("requester")
                        .env("FB_DIR", nodes.of(0))
                        .env("FB_NODE", "0 2")
                        .stdout(std::process::Stdio::null())
                        .spawn()
                        .unwrap()
                })
                .collect();
            std::thread::sleep(Duration::from_millis(60 + 7 * round));
            for requester in &mut requesters {
                requester.kill().unwrap();
            }
            for requester in &mut requesters {
                requester.wait().unwrap();
            }
        }
        // All cells can be claimed again, small and large ones.
        let channel = nodes.channel(0);
        let start = Instant::now();
        std::thread::scope(|s| {
            for i in 0..64 {
                let channel = &channel;
                s.spawn(move || {
                    let bytes = pattern(100_000 + i, 1);
                    let expected = sum(&bytes).to_le_bytes();
                    for _ in 0..5 {
                        let head = send(channel, 1, ECHO, b"", &bytes);
                        assert_eq!(head.as_deref(), Ok(&expected[..]));
                    }
                });
            }
            for i in 0..192u64 {
                let channel = &channel;
                s.spawn(move || {
                    let ms = (300 + i % 5).to_le_bytes();
                    assert!(call(channel, 1, SLOW, &ms).is_ok());
                });
            }
        });
        assert!(
            start.elapsed() < Duration::from_secs(9),
            "{:?}",
            start.elapsed()
        );
        drop(daemons);
    });
}

/// Sends more requests at once than there are cells.
#[test]
fn all_cells_are_taken() {
    within(60, || {
        let nodes = Nodes::new(2);
        let _daemons = nodes.daemons(&Options::default());
        let channel = nodes.channel(0);
        std::thread::scope(|s| {
            for i in 0..400u64 {
                let channel = &channel;
                s.spawn(move || match i % 2 {
                    0 => assert!(call(channel, 1, SLOW, &20u64.to_le_bytes()).is_ok()),
                    _ => {
                        let mut room = vec![0; 60_000];
                        let bytes = Bytes::Receive(room.as_mut_ptr(), room.len());
                        let head = 60_000u64.to_le_bytes();
                        assert!(ask(channel, 1, GIVE, &head, bytes).is_ok());
                    }
                });
            }
        });
    });
}

#[test]
fn child() {
    support::child();
}
