//! Copies between open files. The result is that of reading and writing, whichever nodes the files
//! are on. The bytes are sent from node to node, not through the node that requests the copy.

mod support;

use forebay_posix::{ChunkSize, Distribution, Errno, File, Fs, ObjectId};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use support::nodes::Nodes;
use support::*;

const MIB: usize = 1 << 20;
const ALL: u64 = 1 << 40;

fn open<'a>(fs: &'a Fs, path: &str) -> File<'a> {
    fs.open(path.as_bytes(), O_CREAT | O_RDWR, 0o644).unwrap()
}

fn put(fs: &Fs, path: &str, bytes: &[u8]) {
    let f = open(fs, path);
    write_all(&f, bytes, 0);
    f.close().unwrap();
}

fn get(fs: &Fs, path: &str) -> Vec<u8> {
    read_all(&open(fs, path))
}

/// Makes two directories: one whose files are striped, and one whose files are stored where they
/// are made.
fn directories(fs: &Fs) {
    let striped = Distribution::Striped(ChunkSize::LEAST);
    fs.mkdir_with(b"/striped", 0o755, striped).unwrap();
    fs.mkdir_with(b"/plain", 0o755, Distribution::Local)
        .unwrap();
}

// ---- a model ----

fn offset(r: &mut Random) -> usize {
    match r.below(7) {
        0 => 0,
        1 => r.below(1100),
        2 => r.below(9000),
        3 => MIB - r.below(5000),
        4 => MIB + r.below(5000),
        5 => 4096 * r.below(700),
        _ => r.below(3_500_000),
    }
}

fn length(r: &mut Random) -> usize {
    match r.below(6) {
        0 => r.below(20),
        1 => r.below(1100),
        2 => r.below(20_000),
        3 => 4096 * r.below(300),
        4 => ALL as usize,
        _ => r.below(3_000_000),
    }
}

/// Copies `n` bytes of the model's file `a`, at `at`, to the offset `to` of its file `b`.
fn model_copy(files: &mut [Vec<u8>], (a, at): (usize, usize), (b, to): (usize, usize), n: usize) {
    let bytes = files[a][at..at + n].to_vec();
    let content = &mut files[b];
    content.resize(content.len().max(to + n), 0);
    content[to..to + n].copy_from_slice(&bytes);
}

/// Random nodes do random writes, truncations and copies; the results are compared with the same
/// operations in memory.
fn against_a_model(views: &[&Fs], paths: &[String], seed: u64) {
    let steps = std::env::var("FOREBAY_MODEL_STEPS").ok();
    let steps = steps.and_then(|s| s.parse().ok()).unwrap_or(400);
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut files: Vec<Vec<u8>> = paths.iter().map(|_| Vec::new()).collect();
    let (mut copied, mut refused) = (0, 0);
    for step in 0..steps {
        let fs = views[r.below(views.len())];
        let (a, b) = (r.below(paths.len()), r.below(paths.len()));
        let (at, to, len) = (offset(&mut r), offset(&mut r), length(&mut r));
        let into = open(fs, &paths[b]);
        let what = match r.below(10) {
            0..=2 => {
                let bytes = pattern(r.next() % 97, len.min(700_000));
                write_all(&into, &bytes, to as u64);
                if !bytes.is_empty() {
                    let size = files[b].len().max(to + bytes.len());
                    files[b].resize(size, 0);
                    files[b][to..to + bytes.len()].copy_from_slice(&bytes);
                }
                "write"
            }
            3 => {
                into.set_len(to as u64).unwrap();
                files[b].resize(to, 0);
                "cut"
            }
            _ => {
                let from = open(fs, &paths[a]);
                let n = len.min(files[a].len().saturating_sub(at));
                let overlaps = a == b && at.abs_diff(to) < n;
                let done = from.copy_to(at as u64, &into, to as u64, len as u64);
                if overlaps {
                    assert_eq!(done, Err(Errno::INVAL));
                    refused += 1;
                } else {
                    assert_eq!(
                        done,
                        Ok(n as u64),
                        "step {step}: {a} {at} to {b} {to}, {len}"
                    );
                    if n > 0 {
                        model_copy(&mut files, (a, at), (b, to), n);
                        copied += n;
                    }
                }
                from.close().unwrap();
                "copy"
            }
        };
        into.close().unwrap();
        let looks = views[r.below(views.len())];
        let got = get(looks, &paths[b]);
        let wrong = got.iter().zip(&files[b]).position(|(x, y)| x != y);
        assert!(
            got == files[b],
            "seed {seed}, step {step}: {what} from {} at {at} to {} at {to}, {len}: {} bytes instead of {}, byte {wrong:?}",
            paths[a],
            paths[b],
            got.len(),
            files[b].len()
        );
    }
    println!("seed {seed}: {copied} bytes copied, {refused} copies onto themselves");
    assert!(copied > 20 * MIB && refused > 0);
    for path in paths {
        views[0].unlink(path.as_bytes()).unwrap();
    }
}

#[test]
fn as_reading_and_writing_on_one_node() {
    let kinds: [&[&str]; 3] = [
        &["memory:96M"],
        &["memory:6M", "files:DIR:96M"],
        &["files:DIR:96M"],
    ];
    for (seed, media) in kinds.iter().enumerate() {
        let pool = TestPool::with("copying", media);
        let paths: Vec<String> = (0..4).map(|n| format!("/{n}")).collect();
        against_a_model(&[&*pool], &paths, seed as u64);
        pool.assert_whole();
        assert_eq!(pool.used(), 0);
    }
}

#[test]
fn as_reading_and_writing_on_several_nodes() {
    for (seed, media) in [["memory:96M"], ["files:DIR:96M"]].iter().enumerate() {
        let nodes = Nodes::new("copying-nodes", 3, media, 240);
        directories(&nodes.views[0]);
        let mut paths = Vec::new();
        for (n, fs) in nodes.views.iter().chain(&nodes.views).enumerate() {
            let dir = if n < 4 { "plain" } else { "striped" };
            paths.push(format!("/{dir}/{n}"));
            put(fs, &paths[n], b"");
        }
        let views: Vec<&Fs> = nodes.views.iter().collect();
        against_a_model(&views, &paths, 10 + seed as u64);
        nodes.assert_whole();
        assert_eq!(nodes.used(), 0);
    }
}

// ---- which node moves the bytes ----

/// For each node, the number of requests that it sends while `f` runs, and the bytes sent with them
/// or received.
fn traffic<T>(nodes: &Nodes, f: impl FnOnce() -> T) -> Vec<(usize, usize)> {
    let all = &nodes.together.traffic;
    let now = || -> Vec<_> {
        let both = all.iter().map(|[q, b]| (q.load(SeqCst), b.load(SeqCst)));
        both.collect()
    };
    let before = now();
    f();
    let both = now().into_iter().zip(before);
    both.map(|(a, b)| (a.0 - b.0, a.1 - b.1)).collect()
}

#[test]
fn bytes_go_past_who_asks() {
    let nodes = Nodes::new("copying-past", 3, &["memory:256M"], 100);
    let fs = &nodes.views[0];
    directories(fs);
    let bytes = pattern(3, 20 * MIB);
    put(&nodes.views[1], "/plain/a", &bytes);
    for (node, name) in [(0, "own"), (1, "b"), (2, "c")] {
        put(&nodes.views[node], &format!("/plain/{name}"), b"");
    }
    let a = open(fs, "/plain/a");
    let copy = |from: &File<'_>, to: &str| {
        let to = open(fs, to);
        let all = traffic(&nodes, || {
            assert_eq!(from.copy_to(0, &to, 0, ALL), Ok(20 << 20))
        });
        assert!(read_all(&to) == bytes);
        all
    };
    // One request for the size, and three requests to copy up to 8 MiB each.
    let requests = (4, 0);
    let moves = 20 * MIB;
    assert_eq!(copy(&a, "/plain/b"), [requests, (0, 0), (0, 0)]);
    assert_eq!(copy(&a, "/plain/c"), [requests, (0, 0), (20, moves)]);
    // If the target is on the requesting node, that node fetches the bytes.
    assert_eq!(copy(&a, "/plain/own"), [(21, moves), (0, 0), (0, 0)]);
    let own = open(fs, "/plain/own");
    assert_eq!(copy(&own, "/plain/c"), [(3, 0), (0, 0), (20, moves)]);
    assert_eq!(traffic(&nodes, || copy_inside(&own))[0], (0, 0));
    // Each node fetches the bytes of its own chunks.
    let all = copy(&a, "/striped/s");
    assert!(all[0].1 < moves / 2 && all[2].1 < moves / 2, "{all:?}");
    assert!(all[0].1 + all[2].1 < moves, "{all:?}");
    let s = open(fs, "/striped/s");
    let all = copy(&s, "/plain/b");
    assert_eq!(all[0].1, 0, "{all:?}");
    let all = copy(&s, "/striped/t");
    assert!(all.iter().all(|node| node.1 < moves / 2), "{all:?}");
    drop((a, own, s));
    nodes.assert_whole();
}

fn copy_inside(f: &File<'_>) {
    let half = 10 << 20;
    assert_eq!(f.copy_to(0, f, half, half), Ok(half));
}

#[test]
fn holes_stay_holes() {
    for media in [["memory:32M"], ["files:DIR:32M"]] {
        let pool = TestPool::with("copying-holes", &media);
        let (a, b) = (open(&pool, "/a"), open(&pool, "/b"));
        write_all(&a, b"begin", 0);
        write_all(&a, b"end", 1 << 30);
        // The target's former bytes become zero where the source has a hole.
        write_all(&b, &[7; 3 * MIB], MIB as u64);
        let before = pool.used();
        assert_eq!(a.copy_to(0, &b, 0, ALL), Ok((1 << 30) + 3));
        assert!(pool.used() <= before + 2 * MIB as u64);
        assert_eq!(b.size(), (1 << 30) + 3);
        let mut bytes = vec![1; 4 * MIB];
        assert_eq!(b.read_at(&mut bytes, 0), Ok(4 * MIB));
        assert!(bytes[..5] == *b"begin" && bytes[5..].iter().all(|&b| b == 0));
        assert_eq!(b.read_at(&mut bytes, 1 << 30), Ok(3));
        assert_eq!(bytes[..3], *b"end");
        drop((a, b));
        pool.assert_whole();
    }
}

// ---- what others do meanwhile ----

/// Two files are copied to each other in both directions, and truncated, while a third file takes
/// and frees pages.
#[test]
fn others_cut_and_copy_meanwhile() {
    for media in [["memory:64M"], ["files:DIR:64M"]] {
        let pool = TestPool::with("copying-meanwhile", &media);
        let fs: &Fs = &pool;
        put(fs, "/a", &vec![b'a'; 3 * MIB]);
        put(fs, "/b", &vec![b'b'; 3 * MIB]);
        let ours = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, 0 | b'a' | b'b'));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let copy = |from: &'static str, to: &'static str, seed: u64| {
                let (f, g) = (open(fs, from), open(fs, to));
                let mut r = Random(seed);
                for _ in 0..300 {
                    let (at, to, len) = (r.below(3 * MIB), r.below(3 * MIB), r.below(2 * MIB));
                    f.copy_to(at as u64, &g, to as u64, len as u64).unwrap();
                    let mut bytes = vec![0; 100_000];
                    let n = g.read_at(&mut bytes, to as u64).unwrap();
                    assert!(ours(&bytes[..n]), "another file's bytes in {to}");
                }
            };
            let copiers = [
                scope.spawn(move || copy("/a", "/b", 1)),
                scope.spawn(move || copy("/b", "/a", 2)),
            ];
            scope.spawn(|| {
                let mut r = Random(3);
                while !over.load(SeqCst) {
                    let f = open(fs, ["/a", "/b"][r.below(2)]);
                    f.set_len(r.below(3 * MIB) as u64).unwrap();
                    write_all(&f, &vec![b'a'; MIB], r.below(2 * MIB) as u64);
                    put(fs, "/x", &vec![b'X'; 2 * MIB]);
                    fs.unlink(b"/x").unwrap();
                }
            });
            let ended = copiers.map(|copier| copier.join());
            over.store(true, SeqCst);
            assert!(ended.iter().all(Result::is_ok));
        });
        assert!(ours(&get(fs, "/a")) && ours(&get(fs, "/b")));
        pool.assert_whole();
    }
}

// ---- kills ----

/// Sizes of the source and the target before the copy. Bytes.
const SOURCE: usize = 5 * MIB / 2;
const TARGET: usize = 3 * MIB / 2;

/// Not a test: copies one file over another. Arguments: the nodes' directories, both paths, the
/// request at which the process is killed, and whether it is killed after that request.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, _)) = worker_role() else {
        return;
    };
    assert_eq!(role, "copy");
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let fs = &nodes.views[0];
    let (from, to) = (open(fs, &a[1]), open(fs, &a[2]));
    nodes.together.kill_behind.store(a[4] == "true", SeqCst);
    let asked = nodes.together.asked.load(SeqCst);
    let at: usize = a[3].parse().unwrap();
    nodes.together.kill_at.store(asked + at, SeqCst);
    let done = from.copy_to(0, &to, 0, ALL).unwrap();
    nodes.together.kill_at.store(0, SeqCst);
    assert_eq!(done, SOURCE as u64);
}

#[test]
fn killed_at_every_question() {
    let nodes = Nodes::new("copying-kills", 3, &["memory:64M"], 200);
    directories(&nodes.views[0]);
    let dirs: Vec<String> = (nodes.dirs.iter().map(|d| d.display().to_string())).collect();
    let dirs = dirs.join(":");
    let (old, new) = (vec![b'o'; TARGET], pattern(5, SOURCE));
    let mut kills = 0;
    for (from, to) in [
        ("plain", "plain"),
        ("plain", "striped"),
        ("striped", "plain"),
    ] {
        for behind in [false, true] {
            for at in 1.. {
                let [from, to] = [format!("/{from}/from"), format!("/{to}/to")];
                put(&nodes.views[1], &from, &new);
                put(&nodes.views[2], &to, &old);
                let arguments = format!("{dirs} {from} {to} {at} {behind}");
                let mut worker = nodes.pools[0].worker("copy", &arguments);
                wait_until("the worker ends", || worker.is_done());
                let killed = worker.finish_killed();
                nodes.recover();
                nodes.assert_whole();
                let got = get(&nodes.views[1], &to);
                let story = format!("{from} to {to}, killed at request {at}, behind: {behind}");
                assert!(
                    (TARGET..=SOURCE).contains(&got.len()),
                    "{story}: {} bytes",
                    got.len()
                );
                let is_one = |(i, b): (usize, &u8)| *b == new[i] || i < TARGET && *b == b'o';
                assert!(got.iter().enumerate().all(is_one), "{story}: other bytes");
                for path in [&from, &to] {
                    nodes.views[0].unlink(path.as_bytes()).unwrap();
                }
                nodes.drop_parts();
                if !killed {
                    assert!(got == new, "{story}: not all was copied");
                    break;
                }
                kills += 1;
            }
        }
    }
    println!("{kills} kills");
    assert!(kills > 20);
    assert_eq!(nodes.used(), 0, "pages are left");
}

// ---- what was declared for files ----

#[test]
fn controls_hold() {
    let rules = "[[rule]]\npath = \"/log\"\nmutability = \"append\"\n";
    let pool = TestPool::ruled("copying-rules", &["memory:32M"], rules, 60);
    put(&pool, "/a", &pattern(1, 2 * MIB));
    put(&pool, "/log", b"first");
    let (a, log) = (open(&pool, "/a"), open(&pool, "/log"));
    assert_eq!(a.copy_to(0, &log, 0, 10), Err(Errno::PERM));
    assert_eq!(a.copy_to(0, &log, 5, ALL), Ok(2 * MIB as u64));
    assert_eq!(a.copy_to(0, &log, 5, ALL), Err(Errno::PERM));
    assert_eq!(log.size(), 5 + 2 * MIB as u64);
    drop((a, log));
    let only = pool.open(b"/a", O_RDONLY, 0).unwrap();
    let b = pool.open(b"/b", O_CREAT | O_WRONLY, 0o644).unwrap();
    assert_eq!(b.copy_to(0, &only, 0, 1), Err(Errno::BADF));
    assert_eq!(only.copy_to(0, &only, 3 << 20, 1), Err(Errno::BADF));
    let appends = pool.open(b"/b", O_WRONLY | O_APPEND, 0).unwrap();
    assert_eq!(only.copy_to(0, &appends, 0, 1), Err(Errno::BADF));
    // At and behind the end of the source nothing is copied.
    assert_eq!(only.copy_to(2 << 20, &b, 0, ALL), Ok(0));
    assert_eq!(only.copy_to(9 << 20, &b, 0, ALL), Ok(0));
}

#[test]
fn what_was_kept_back_goes_first() {
    let nodes = Nodes::new("copying-kept", 3, &["memory:32M"], 60);
    directories(&nodes.views[0]);
    put(&nodes.views[1], "/plain/a", &[b'-'; 20_000]);
    put(&nodes.views[2], "/plain/b", &[b'-'; 20_000]);
    let program = nodes.program(0);
    for path in ["/plain/a", "/plain/b"] {
        let id = ObjectId(program.stat(path.as_bytes(), true).unwrap().ino);
        let commit = "consistency=commit".parse().unwrap();
        program.set_controls(id, commit).unwrap();
    }
    let (a, b) = (open(&program, "/plain/a"), open(&program, "/plain/b"));
    write_all(&b, &[b'b'; 200], 1000);
    write_all(&a, &[b'a'; 100], 100);
    assert_eq!(a.copy_to(100, &b, 1050, 100), Ok(100));
    let got = get(&nodes.views[1], "/plain/b");
    let expected = [[b'b'; 50], [b'a'; 50], [b'a'; 50], [b'b'; 50]].concat();
    assert!(got[1000..1200] == expected);
    drop((a, b));
    nodes.assert_whole();
}

// ---- room ----

#[test]
fn a_full_node_is_told_of() {
    let nodes = Nodes::new("copying-full", 2, &["memory:8M"], 60);
    directories(&nodes.views[0]);
    let bytes = pattern(1, 6 * MIB);
    put(&nodes.views[0], "/plain/from", &bytes);
    put(&nodes.views[1], "/plain/other", &pattern(2, 5 * MIB));
    put(&nodes.views[1], "/plain/to", b"");
    let used = nodes.used();
    let fs = &nodes.views[0];
    let (from, to) = (open(fs, "/plain/from"), open(fs, "/plain/to"));
    let n = from.copy_to(0, &to, 0, ALL).unwrap();
    assert!((MIB as u64..4 << 20).contains(&n), "{n}");
    assert_eq!(from.copy_to(n, &to, n, ALL), Err(Errno::NOSPC));
    assert!(read_all(&to) == bytes[..n as usize]);
    to.set_len(0).unwrap();
    drop((from, to));
    assert_eq!(nodes.used(), used);
    nodes.assert_whole();
}
