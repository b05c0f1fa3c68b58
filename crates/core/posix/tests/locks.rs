//! Locks on files over several nodes, each with its store, in one process (`support/nodes.rs`). For
//! locks that belong to a process (fcntl), each node counts as another process.

mod support;

use forebay_cluster::peers::messages::{decode, encode};
use forebay_cluster::peers::requests::kind;
use forebay_cluster::serve::Server;
use forebay_placement::{NodeId, Slot};
use forebay_posix::{ChunkSize, Distribution, Errno, File, ObjectId};
use forebay_store::LockType::{Exclusive, Shared, Unlocked};
use forebay_store::locks::{InTheWay, Owner, Request, Sort};
use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use support::nodes::Nodes;
use support::*;

const ALL: (u64, u64) = (0, i64::MAX as u64);

#[test]
fn locks_are_in_the_way_on_all_nodes_until_they_are_given_up() {
    let nodes = Nodes::new("locks-all", 3, &["memory:16M"], 60);
    let home = nodes.views[0].open(b"/f", O_CREAT | O_RDWR, 0o644).unwrap();
    let far: Vec<_> = (1..3)
        .map(|n| nodes.views[n].open(b"/f", O_RDWR, 0).unwrap())
        .collect();
    for own in [false, true] {
        let lock = |f: &forebay_posix::File<'_>, want, range| f.lock_range(own, want, range, false);
        assert_eq!(lock(&far[0], Shared, (10, 19)), Ok(()));
        assert_eq!(lock(&far[1], Shared, (15, 30)), Ok(()));
        assert_eq!(lock(&home, Exclusive, (0, 9)), Ok(()));
        assert_eq!(lock(&home, Exclusive, (9, 10)), Err(Errno::AGAIN));
        assert_eq!(lock(&far[0], Exclusive, (10, 14)), Ok(()));
        assert_eq!(lock(&far[1], Shared, (14, 15)), Err(Errno::AGAIN));
        assert_eq!(lock(&far[0], Unlocked, (12, 12)), Ok(()));
        assert_eq!(lock(&home, Exclusive, (12, 12)), Ok(()));
        for f in [&home, &far[0], &far[1]] {
            assert_eq!(lock(f, Unlocked, ALL), Ok(()));
        }
        assert_eq!(lock(&home, Exclusive, ALL), Ok(()));
        assert_eq!(lock(&home, Unlocked, ALL), Ok(()));
    }
    assert_eq!(far[0].flock(Exclusive, false), Ok(()));
    assert_eq!(far[0].lock_range(true, Exclusive, ALL, false), Ok(()));
    assert_eq!(home.flock(Shared, false), Err(Errno::AGAIN));
    std::thread::scope(|s| {
        s.spawn(|| {
            let f = nodes.views[2].open(b"/f", O_RDWR, 0).unwrap();
            assert_eq!(f.flock(Exclusive, true), Ok(()));
            assert_eq!(f.lock_range(true, Shared, ALL, true), Ok(()));
        });
        std::thread::sleep(Duration::from_millis(100));
        // The description's locks end when its last descriptor is closed.
        far.into_iter().next().unwrap().close().unwrap();
    });
    assert_eq!(home.flock(Exclusive, false), Ok(()));
    // Directories can be locked, too.
    let dirs: Vec<_> = (0..3)
        .map(|n| nodes.views[n].open(b"/", O_RDONLY, 0).unwrap())
        .collect();
    assert_eq!(dirs[1].flock(Exclusive, false), Ok(()));
    assert_eq!(dirs[0].flock(Shared, false), Err(Errno::AGAIN));
    assert_eq!(dirs[2].flock(Shared, false), Err(Errno::AGAIN));
}

/// A deadlock over three nodes, many times: one process gets EDEADLK, and the others continue.
#[test]
fn one_of_a_circle_is_told() {
    let nodes = Nodes::new("locks-circle", 3, &["memory:16M"], 60);
    let deadlocks = std::sync::atomic::AtomicUsize::new(0);
    for (k, name) in [b"/0", b"/1", b"/2"].into_iter().enumerate() {
        nodes.views[k].open(name, O_CREAT, 0o644).unwrap();
    }
    let barrier = Barrier::new(3);
    const ROUNDS: usize = 10;
    std::thread::scope(|s| {
        for k in 0..3 {
            let (nodes, barrier, deadlocks) = (&nodes, &barrier, &deadlocks);
            s.spawn(move || {
                let open = |n: usize| {
                    let name = format!("/{}", n % 3);
                    nodes.views[k].open(name.as_bytes(), O_RDWR, 0).unwrap()
                };
                // Each process has locked the file of the next node, and wants that of the node
                // after it.
                let (has, wants) = (open(k + 1), open(k + 2));
                for _ in 0..ROUNDS {
                    has.lock_range(false, Exclusive, (5, 5), true).unwrap();
                    barrier.wait();
                    match wants.lock_range(false, Exclusive, ALL, true) {
                        Ok(()) => wants.lock_range(false, Unlocked, ALL, false).unwrap(),
                        Err(e) => {
                            assert_eq!(e, Errno::DEADLK);
                            deadlocks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        }
                    }
                    has.lock_range(false, Unlocked, ALL, false).unwrap();
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!(deadlocks.into_inner(), ROUNDS);
}

/// A home asks another node about the locks of that node's programs. It releases those of which the
/// node doesn't know (their end wasn't reported), and keeps the others. When the node is given up,
/// the home releases all of the node's locks.
#[test]
fn locks_that_their_node_does_not_know_of_are_dropped() {
    let nodes = Nodes::new("locks-lost", 2, &["memory:16M"], 60);
    let home = nodes.views[1].open(b"/f", O_CREAT | O_RDWR, 0o644).unwrap();
    let far = nodes.views[0].open(b"/f", O_RDWR, 0).unwrap();
    let object = ObjectId(home.stat().unwrap().ino);
    far.lock_range(true, Exclusive, (0, 9), false).unwrap();
    let request = Request {
        object,
        owner: Owner {
            node: NodeId(0),
            number: 1 << 63 | 12345,
            slot: 0,
        },
        sort: Sort::Range,
        want: Exclusive,
        start: 20,
        end: 29,
    };
    let reply = nodes.serve(1, kind::LOCK, &encode(&request), b"");
    assert_eq!(decode::<Option<InTheWay>>(&reply.unwrap().head), Some(None));
    let cluster = nodes.views[1].cluster();
    let free = |range| {
        let done = home.lock_range(false, Exclusive, range, false).is_ok();
        home.lock_range(false, Unlocked, range, false).unwrap();
        done
    };
    assert!(!free((25, 25)) && !free((5, 5)));
    cluster.locks().check_lock_owners().unwrap();
    assert!(free((25, 25)) && !free((5, 5)));
    assert_eq!(cluster.store().locks().nodes_with_locks(), [NodeId(0)]);
    cluster
        .store()
        .locks()
        .end_node_locks(NodeId(0), |_| true)
        .unwrap();
    assert!(free((5, 5)) && cluster.store().locks().nodes_with_locks().is_empty());
}

/// A node that was given up has lost its locks. Such a node can't change files that it had locked
/// until it has closed and opened them again, even if the home's daemon was restarted. The node can
/// change other files.
#[test]
fn a_node_that_was_given_up_is_fenced_off_from_what_it_had_locked() {
    let nodes = Nodes::new("locks-fenced", 2, &["memory:16M"], 60);
    let open = |n: usize, path: &[u8]| nodes.views[n].open(path, O_CREAT | O_RDWR, 0o644);
    let (home, other) = (open(1, b"/f").unwrap(), open(1, b"/g").unwrap());
    home.set_len(10).unwrap();
    let far = [open(0, b"/f").unwrap(), open(0, b"/f").unwrap()];
    let far_other = open(0, b"/g").unwrap();
    far[0].flock(Exclusive, false).unwrap();
    assert_eq!(home.flock(Exclusive, false), Err(Errno::AGAIN));
    nodes.give_up(1, 0);
    nodes.give_up(1, 0);
    home.flock(Exclusive, false).unwrap();
    for f in &far {
        // Programs get EIO: the layer that sends their requests turns OWNERDEAD into EIO.
        assert_eq!(f.set_len(3), Err(Errno::OWNERDEAD));
        assert_eq!(f.flock(Shared, false), Err(Errno::OWNERDEAD));
    }
    far_other.set_len(3).unwrap();
    // The home's next daemon knows of the lost locks, too.
    let id = ObjectId(home.stat().unwrap().ino);
    let cluster = nodes.views[1].cluster();
    let cuts = encode(&(id, 3u64));
    let later = Server::default().serve(&cluster, NodeId(0), kind::TRUNCATE, &cuts, b"");
    assert_eq!(later.unwrap_err(), Errno::OWNERDEAD);
    // Opening the file again while earlier descriptors are open doesn't help: the fence still
    // refuses.
    let third = open(0, b"/f").unwrap();
    assert_eq!(third.set_len(3), Err(Errno::OWNERDEAD));
    assert_eq!(home.stat().unwrap().size, 10);
    third.close().unwrap();
    far.into_iter().for_each(|f| f.close().unwrap());
    let again = open(0, b"/f").unwrap();
    assert_eq!(again.flock(Shared, false), Err(Errno::AGAIN));
    again.set_len(4).unwrap();
    assert_eq!(home.stat().unwrap().size, 4);
    drop((home, other, again, far_other));
    nodes.assert_whole();
}

const MIB: u64 = 1 << 20;
/// Number of chunks of the test file: each of the three nodes gets some of them.
const CHUNKS: u64 = 64;

/// Makes a striped file on node 1, with some bytes in each chunk, open on the three nodes. Returns
/// the open files and the name.
fn striped<'a>(nodes: &'a Nodes) -> (Vec<File<'a>>, String) {
    let way = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[1].mkdir_with(b"/s", 0o755, way).unwrap();
    let of_node_1 = |name: &String| {
        let made = nodes.views[1].open(name.as_bytes(), O_CREAT | O_RDWR, 0o644);
        let id = ObjectId(made.unwrap().stat().unwrap().ino);
        nodes.together.node_of(id.slot()) == NodeId(1)
    };
    let mut names = (0..100).map(|n| format!("/s/{n}"));
    let name = names.find(of_node_1).unwrap();
    let all: Vec<File<'a>> = (0..3)
        .map(|n| nodes.views[n].open(name.as_bytes(), O_RDWR, 0).unwrap())
        .collect();
    for chunk in 0..CHUNKS {
        assert_eq!(all[0].write_at(b"before", chunk * MIB), Ok(6));
    }
    (all, name)
}

/// The parts on third nodes refuse the requests of a node that has lost its locks, before another
/// process gets the lock.
#[test]
fn parts_on_third_nodes_are_fenced_off_before_locks_are_released() {
    let nodes = Nodes::new("locks-parts", 3, &["memory:160M"], 60);
    let (all, name) = striped(&nodes);
    let [lost, home, third] = &all[..] else {
        panic!("three")
    };
    let id = ObjectId(home.stat().unwrap().ino);
    let on = |chunk| nodes.together.node_of(Slot::of_chunk(id, chunk)).0;
    let on_third: Vec<u64> = (0..CHUNKS).filter(|&c| on(c) == 2).collect();
    assert!(!on_third.is_empty() && (0..CHUNKS).any(|c| on(c) == 0));
    lost.flock(Exclusive, false).unwrap();
    // A request from before the loss, which arrives late.
    let cuts = nodes.views[0].cluster().declarations().cuts_of(id).unwrap();
    let late = (id, cuts, on_third[0] * MIB);
    let write = |request: &_| {
        let cluster = nodes.views[2].cluster();
        let (kind, head) = (kind::WRITE_PART, encode(request));
        nodes.together.servers[2].serve(&cluster, NodeId(0), kind, &head, b"before")
    };
    assert!(write(&late).is_ok());
    nodes.give_up(1, 0);
    third.flock(Exclusive, false).unwrap();
    assert!(write(&late).is_err());
    for &chunk in &on_third {
        assert_eq!(lost.write_at(b"behind", chunk * MIB), Err(Errno::OWNERDEAD));
        let mut read = [0; 6];
        assert_eq!(lost.read_at(&mut read, chunk * MIB), Err(Errno::OWNERDEAD));
        assert_eq!(third.read_at(&mut read, chunk * MIB), Ok(6));
        assert_eq!(&read, b"before");
        assert_eq!(third.write_at(b"theirs", chunk * MIB), Ok(6));
    }
    assert_eq!(lost.set_len(0), Err(Errno::OWNERDEAD));
    drop(all);
    // Once opened again, the file can be used as any other.
    let again = nodes.views[0].open(name.as_bytes(), O_RDWR, 0).unwrap();
    again.flock(Exclusive, false).unwrap();
    assert_eq!(again.write_at(b"again.", on_third[0] * MIB), Ok(6));
    again.close().unwrap();
    nodes.assert_whole();
}

/// A node that has had no reply from a home for the time of the lease doesn't access files of that
/// home that its programs have locked: not even their bytes on the node itself.
#[test]
fn a_node_notices_itself_that_its_locks_may_be_gone() {
    let nodes = Nodes::new("locks-lease", 3, &["memory:160M"], 60);
    let (all, name) = striped(&nodes);
    let (lost, home) = (&all[0], &all[1]);
    let cluster = nodes.views[0].cluster();
    let id = ObjectId(home.stat().unwrap().ino);
    let lease = |milliseconds| nodes.together.lease.store(milliseconds, SeqCst);
    let renew = || {
        for (home, files) in cluster.locks().leased().unwrap() {
            assert_eq!(home, NodeId(1));
            cluster.locks().renew_leases(home, &files).unwrap();
        }
    };
    let write_all = |text: &[u8]| -> Vec<_> {
        let each = (0..CHUNKS).map(|chunk| lost.write_at(text, chunk * MIB));
        each.collect()
    };
    let fine = vec![Ok(6); CHUNKS as usize];
    let over = vec![Err(Errno::OWNERDEAD); CHUNKS as usize];
    lease(3_600_000);
    lost.flock(Exclusive, false).unwrap();
    let first = cluster.locks().leased().unwrap()[&NodeId(1)].clone();
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].0, id);
    renew();
    let then = cluster.locks().leased().unwrap()[&NodeId(1)].clone();
    assert!(then[0].1 > first[0].1, "it isn't renewed");
    assert_eq!(write_all(b"locked"), fine);
    // Without locks no lease runs out.
    lost.flock(Unlocked, false).unwrap();
    renew();
    assert!(cluster.locks().leased().unwrap().is_empty());
    lease(1);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(write_all(b"nobody"), fine);
    // The lease runs out, and no later reply changes that.
    lost.flock(Exclusive, false).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(write_all(b"behind"), over);
    lease(3_600_000);
    cluster.locks().renew_leases(NodeId(1), &first).unwrap();
    assert_eq!(write_all(b"behind"), over);
    assert_eq!(lost.flock(Exclusive, false), Err(Errno::OWNERDEAD));
    assert_eq!(lost.set_len(0), Err(Errno::OWNERDEAD));
    let mut read = [0; 6];
    assert_eq!(lost.read_at(&mut read, 0), Err(Errno::OWNERDEAD));
    for chunk in 0..CHUNKS {
        assert_eq!(all[2].read_at(&mut read, chunk * MIB), Ok(6));
        assert_eq!(&read, b"nobody");
    }
    // Once closed and opened again, the file can be used. The home's reply to the next lock request
    // starts a new lease at once.
    drop(all);
    let all: Vec<_> = (0..3)
        .map(|n| nodes.views[n].open(name.as_bytes(), O_RDWR, 0).unwrap())
        .collect();
    all[0].flock(Exclusive, false).unwrap();
    assert_eq!(all[0].write_at(b"again.", 0), Ok(6));
    nodes.give_up(1, 0);
    all[2].flock(Exclusive, false).unwrap();
    renew();
    let asked = nodes.together.asked.load(SeqCst);
    for chunk in 0..CHUNKS {
        assert_eq!(
            all[0].write_at(b"behind", chunk * MIB),
            Err(Errno::OWNERDEAD)
        );
    }
    assert_eq!(
        nodes.together.asked.load(SeqCst),
        asked,
        "somebody was asked"
    );
    drop(all);
    nodes.assert_whole();
}

/// One of two nodes with parts can't be reached: the locks stay until that node can be reached.
#[test]
fn locks_stay_until_the_nodes_with_parts_are_told() {
    let nodes = Nodes::new("locks-late", 3, &["memory:160M"], 60);
    let (all, _) = striped(&nodes);
    all[0].flock(Exclusive, false).unwrap();
    nodes.together.down.store(2, SeqCst);
    nodes.give_up(1, 0);
    assert_eq!(all[0].set_len(0), Err(Errno::OWNERDEAD));
    assert_eq!(all[1].flock(Exclusive, false), Err(Errno::AGAIN));
    let (server, cluster) = (&nodes.together.servers[1], nodes.views[1].cluster());
    server.release_late(&cluster);
    assert_eq!(all[1].flock(Exclusive, false), Err(Errno::AGAIN));
    nodes.together.down.store(usize::MAX, SeqCst);
    server.release_late(&cluster);
    all[1].flock(Exclusive, false).unwrap();
    assert_eq!(all[0].set_len(0), Err(Errno::OWNERDEAD));
    drop(all);
    nodes.assert_whole();
}
