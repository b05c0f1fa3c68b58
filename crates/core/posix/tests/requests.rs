//! Requests from other nodes with random and with damaged content. Each must be answered or
//! refused, without a panic, and without reading or storing an unbounded number of bytes.

mod support;

use forebay_cluster::peers::requests::find;
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use forebay_cluster::serve::{Class, Server};
use forebay_posix::{ChunkSize, Distribution, Errno, Fs, ObjectId, RenameMode};
use forebay_store::record::Order;
use forebay_store::{LockType, Term};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use support::nodes::{Nodes, PeerRequest};
use support::*;

/// Does some operations of every kind, and returns the requests between the nodes.
fn corpus(nodes: &Nodes) -> Vec<PeerRequest> {
    *nodes.together.kept.lock().unwrap() = Some(Vec::new());
    for n in 0..12 {
        let fs = &nodes.views[n % 3];
        let other = &nodes.views[(n + 1) % 3];
        let p = |name: &str| format!("/{name}{n}").into_bytes();
        fs.mkdir(&p("dir"), 0o755).unwrap();
        let f = fs.open(&p("file"), O_CREAT | O_RDWR, 0o644).unwrap();
        write_all(&f, &pattern(1, 5000), 0);
        let g = other.open(&p("file"), O_RDWR, 0).unwrap();
        write_all(&g, b"more", 4998);
        assert_eq!(g.read_at(&mut [0; 10], 4998), Ok(4));
        g.set_len(4000).unwrap();
        g.sync().unwrap();
        g.flock(LockType::Exclusive, false).unwrap();
        f.lock_range(true, LockType::Shared, (7, 9), false).unwrap();
        let free = g.lock_range(false, LockType::Exclusive, (9, 9), false);
        assert_eq!(free, Err(Errno::AGAIN));
        fs.cluster().locks().check_lock_owners().unwrap();
        let _ = g.seek_hole(0);
        g.close().unwrap();
        f.close().unwrap();
        kept_back(nodes, (n + 1) % 3, &p("file"));
        other.chmod(&p("file"), 0o600).unwrap();
        other.chmod(&p("dir"), 0o700).unwrap();
        other
            .set_xattr(&p("file"), b"user.x", b"value", true)
            .unwrap();
        assert_eq!(fs.xattrs(&p("file"), true).unwrap().len(), 1);
        assert_eq!(other.xattr(&p("file"), b"user.x", true).unwrap(), b"value");
        let id = ObjectId(fs.stat(&p("file"), true).unwrap().ino);
        assert_eq!(
            other.cluster().search().describe(id),
            fs.cluster().search().describe(id)
        );
        assert_eq!(fs.list(b"/.by").unwrap().len(), 1);
        assert_eq!(fs.list(b"/.by/x").unwrap().len(), 1);
        assert_eq!(fs.list(b"/.by/x=value").unwrap().len(), 1);
        let (root, mut found) = (ObjectId::ROOT, 0);
        let all = [
            Term::Within(b"x".to_vec(), Order::FIRST_TEXT, Order::LAST),
            Term::Equal(b"x".to_vec(), b"value".to_vec()),
        ];
        fs.cluster()
            .search()
            .matching(&all, root, |_| found += 1)
            .unwrap();
        assert_eq!(found, 1);
        let link = [b"/.by/x=value", &p("file")[..]].concat();
        assert_eq!(
            fs.readlink(&link).unwrap(),
            [b"../..", &p("file")[..]].concat()
        );
        other.remove_xattr(&p("file"), b"user.x", true).unwrap();
        other.link(&p("file"), &p("link")).unwrap();
        other.symlink(b"file", &p("symlink")).unwrap();
        fs.rename(&p("file"), &p("new")).unwrap();
        fs.rename(&p("new"), &p("link-not")).unwrap();
        let new = |from: &str, to: &str| rename_with(fs, &p(from), &p(to), RenameMode::NoReplace);
        assert_eq!(new("link-not", "symlink"), Err(Errno::EXIST));
        assert_eq!(new("link-not", "link"), Err(Errno::EXIST));
        fs.rename(&p("link-not"), &p("link")).unwrap();
        fs.rename(&p("dir"), &p("directory")).unwrap();
        exchange(fs, &p("link-not"), &p("symlink")).unwrap();
        exchange(fs, &p("link-not"), &p("symlink")).unwrap();
        together(fs, n);
        let second = fs.open(&p("second"), O_CREAT | O_RDWR, 0o644).unwrap();
        second.close().unwrap();
        exchange(other, &p("link"), &p("second")).unwrap();
        fs.unlink(&p("second")).unwrap();
        fs.unlink(&p("symlink")).unwrap();
        other.unlink(&p("link")).unwrap();
        fs.rmdir(&p("directory")).unwrap();
        fs.list(b"/").unwrap();
        striped(fs, other, n);
        fs.cluster().namespace().settle_notes().unwrap();
        fs.cluster().data().sync_everywhere().unwrap();
        fs.cluster().data().sync_entries_everywhere().unwrap();
        nodes.together.down.store((n + 2) % 3, SeqCst);
        assert!(fs.salvage(b"/").unwrap().is_some());
        fs.end_salvage();
        nodes.together.down.store(usize::MAX, SeqCst);
    }
    nodes.together.kept.lock().unwrap().take().unwrap()
}

/// Makes files in one batch, and removes them.
fn together(fs: &Fs, n: usize) {
    let names: Vec<String> = (0..4).map(|i| format!("together{n}.{i}")).collect();
    let made = make_together(fs, b"/", &names, (b"user.y", b"z")).unwrap();
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    for name in names {
        fs.unlink(format!("/{name}").as_bytes()).unwrap();
    }
}

/// Buffered writes of a program on node `k`, which are sent in one request.
fn kept_back(nodes: &Nodes, k: usize, path: &[u8]) {
    let program = nodes.program(k);
    let id = ObjectId(program.stat(path, true).unwrap().ino);
    for said in ["consistency=commit", ""] {
        program.set_controls(id, said.parse().unwrap()).unwrap();
        let f = program.open(path, O_RDWR, 0).unwrap();
        write_all(&f, b"kept", 100);
        write_all(&f, b"back", 3000);
        f.close().unwrap();
    }
}

/// A file with chunks on all nodes: it is written, appended to, truncated and removed.
fn striped(fs: &Fs, other: &Fs, n: usize) {
    let p = |name: &str| format!("/{name}{n}").into_bytes();
    let striped = Distribution::Striped(ChunkSize::LEAST);
    fs.mkdir_with(&p("striped"), 0o755, striped).unwrap();
    let path = [p("striped"), b"/file".to_vec()].concat();
    let f = fs.open(&path, O_CREAT | O_RDWR, 0o644).unwrap();
    for chunk in 0..4 {
        write_all(&f, &pattern(1, 200), (chunk << 20) + 1000);
    }
    let g = other.open(&path, O_RDWR | O_APPEND, 0).unwrap();
    assert_eq!(g.write_at(b"at the end", 0), Ok(10));
    assert_eq!(g.read_at(&mut [0; 10], (3 << 20) + 1200), Ok(10));
    assert_eq!(g.stat().unwrap().size, (3 << 20) + 1210);
    let plain = other.open(&p("copied"), O_CREAT | O_RDWR, 0o600).unwrap();
    let seen = fs.open(&p("copied"), O_RDWR, 0).unwrap();
    assert_eq!(f.copy_to(1000, &seen, 0, 2 << 20), Ok(2 << 20));
    assert_eq!(seen.copy_to(0, &f, 1000, 2 << 20), Ok(2 << 20));
    drop((plain, seen));
    fs.unlink(&p("copied")).unwrap();
    g.sync().unwrap();
    let cluster = other.cluster();
    let live = cluster
        .opens()
        .live_acquire(ObjectId(g.stat().unwrap().ino))
        .unwrap();
    assert_eq!(cluster.data().reserve_range(live, 0, 5 << 20, true), Ok(()));
    assert_eq!(cluster.data().punch(live, 1 << 20, 3 << 20, false), Ok(()));
    let id = ObjectId(g.stat().unwrap().ino);
    for said in ["persistence=node", ""] {
        fs.set_controls(id, said.parse().unwrap()).unwrap();
    }
    cluster.store().objects().live_release(live).unwrap();
    g.set_len(2_000_000).unwrap();
    g.close().unwrap();
    f.close().unwrap();
    fs.unlink(&path).unwrap();
    fs.rmdir(&p("striped")).unwrap();
}

#[test]
fn damaged_questions_are_refused() {
    let nodes = Nodes::new("requests", 3, &["memory:64M", "files:DIR:64M"], 4000);
    let corpus = corpus(&nodes);
    let kinds: BTreeSet<u16> = corpus.iter().map(|q| q.0).collect();
    assert!(kinds.len() > 55, "only the kinds {kinds:?}");
    for (kind, head, _) in &corpus {
        let request = find(*kind).unwrap();
        assert!((request.is_request)(head), "no {}: {head:?}", request.name);
    }
    let mut answered = [0u64; 2];
    let mut slowest = Duration::ZERO;
    forebay_fuzz::run("requests", |r| {
        let (mut kind, mut head, mut body) = corpus[r.below(corpus.len())].clone();
        match r.below(4) {
            0 => kind = r.below(300) as u16,
            1 => head = r.bytes(200),
            _ => {
                let other = r.below(corpus.len());
                r.mutate(&mut head, &corpus[other].1);
            }
        }
        if r.once_in(4) {
            body = r.bytes(3000);
        }
        // Requests that wait for other nodes may do so for the pool's request timeout, so only a
        // few are sent.
        if Server::class(kind).is_none_or(|c| c >= Class::Composite) && !r.once_in(200) {
            return;
        }
        let began = Instant::now();
        let reply = nodes.serve(r.below(3), kind, &head, &body);
        slowest = slowest.max(began.elapsed());
        match &reply {
            Ok(reply) => {
                assert!(reply.head.len() <= MAX_HEAD && reply.body.len() <= MAX_BODY);
                answered[0] += 1;
            }
            Err(_) => answered[1] += 1,
        }
    });
    println!("{answered:?} answered and refused; the slowest took {slowest:?}");
    assert!(answered[1] > 0);
}

#[test]
fn what_is_no_question_is_refused() {
    let nodes = Nodes::new("no-requests", 2, &["memory:16M"], 60);
    for kind in 0..=u16::MAX {
        if Server::class(kind).is_none() {
            assert_eq!(nodes.serve(0, kind, b"", b""), Err(Errno::PROTO));
        }
    }
    for kind in (0..=u16::MAX).filter(|k| Server::class(*k).is_some()) {
        // More bytes than any request's arguments have.
        assert_eq!(
            nodes.serve(0, kind, &[0; 2000], b""),
            Err(Errno::PROTO),
            "{kind}"
        );
    }
}
