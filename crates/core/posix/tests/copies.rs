//! Copies of laminated files of other nodes. A second read sends no request and never returns bytes
//! of an older edition. Copies give way to files, and are removed with their file. All this holds
//! even if processes are killed meanwhile.
//!
//! Nodes are stores in one process (`support/nodes.rs`), which counts the requests that they send
//! to each other.

mod support;

use forebay_posix::{ChunkSize, Distribution, File, Fs};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use support::declare::declare;
use support::nodes::Nodes;
use support::*;

const MIB: usize = 1 << 20;

/// Not a test: the code of the process that is killed while it reads.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((_, a, fs)) = worker_role() else {
        return;
    };
    drop(fs);
    let nodes = Nodes::open(a[2..].iter().map(Into::into).collect(), 60);
    let kill_at: usize = a[1].parse().unwrap();
    nodes
        .together
        .kill_behind
        .store(kill_at.is_multiple_of(2), SeqCst);
    nodes.together.kill_at.store(kill_at, SeqCst);
    for n in 0.. {
        let fs = &nodes.views[n % 3];
        let file = fs.open(a[0].as_bytes(), O_RDONLY, 0).unwrap();
        read_all(&file);
        fs.store().local_copies().drop_all_copies().unwrap();
    }
}

fn nodes(name: &str, media: &[&str]) -> Nodes {
    let nodes = Nodes::new(name, 3, media, 100);
    let fs = &nodes.views[0];
    for (dir, how) in [
        ("/last", Distribution::Local),
        ("/wide", Distribution::Striped(ChunkSize::LEAST)),
    ] {
        fs.mkdir_with(dir.as_bytes(), 0o700, how).unwrap();
        declare(fs, dir, "mutability=immutable");
    }
    nodes
}

fn put(fs: &Fs, path: &str, bytes: &[u8]) {
    let f = fs.open(path.as_bytes(), O_CREAT | O_WRONLY, 0o600).unwrap();
    write_all(&f, bytes, 0);
    f.close().unwrap();
}

fn open<'a>(fs: &'a Fs, path: &str) -> File<'a> {
    fs.open(path.as_bytes(), O_RDONLY, 0).unwrap()
}

/// Number of requests that the nodes send while `f` runs.
fn requests_during(nodes: &Nodes, f: impl FnOnce()) -> usize {
    let before = nodes.together.asked.load(SeqCst);
    f();
    nodes.together.asked.load(SeqCst) - before
}

fn sweep(nodes: &Nodes) -> Vec<usize> {
    let views = nodes.views.iter();
    views
        .map(|fs| fs.cluster().data().sweep_copies().unwrap())
        .collect()
}

#[test]
fn what_is_read_again_asks_nobody() {
    let nodes = nodes("again", &["memory:64M"]);
    let sizes = [
        1,
        100,
        1024,
        1025,
        5000,
        MIB - 1,
        MIB,
        MIB + 1,
        5 * MIB + 77,
    ];
    for dir in ["/last", "/wide"] {
        for (n, size) in sizes.into_iter().enumerate() {
            let path = format!("{dir}/{n}");
            let content = pattern(n as u64, size);
            put(&nodes.views[n % 3], &path, &content);
            for fs in &nodes.views {
                assert!(read_all(&open(fs, &path)) == content, "{path}: read first");
                // Another open of the file, as by another process.
                let file = open(fs, &path);
                let asked = requests_during(&nodes, || {
                    let mut all = vec![0; size + 1];
                    assert_eq!(file.read_at(&mut all, 0), Ok(size), "{path}");
                    assert!(all[..size] == content, "{path}: read again");
                    let mut some = [0; 3000];
                    for at in [0, size / 2, size.saturating_sub(10), size, size + 10] {
                        let n = file.read_at(&mut some, at as u64).unwrap();
                        assert_eq!(n, some.len().min(size.saturating_sub(at)), "{path} at {at}");
                        assert!(some[..n] == content[at.min(size)..at.min(size) + n]);
                    }
                });
                assert_eq!(asked, 0, "{path} of {size} bytes");
            }
        }
    }
    assert!(sweep(&nodes).iter().all(|&left| left > 0));
    nodes.assert_whole();
}

#[test]
fn what_may_change_or_is_used_once_is_not_copied() {
    let nodes = nodes("uncopied", &["memory:32M"]);
    for what in [
        "mutability=append",
        "mutability=immutable,on_violation=report",
        "mutability=immutable,temporality=once",
    ] {
        declare(&nodes.views[0], "/last", what);
        put(&nodes.views[0], "/last/f", b"content");
        let fs = &nodes.views[1];
        let file = open(fs, "/last/f");
        for _ in 0..2 {
            let mut all = [0; 7];
            let asked = requests_during(&nodes, || assert_eq!(file.read_at(&mut all, 0), Ok(7)));
            assert!(asked > 0 && all == *b"content", "{what}");
        }
        file.close().unwrap();
        nodes.views[0].unlink(b"/last/f").unwrap();
    }
    assert_eq!(sweep(&nodes), [0, 0, 0]);
}

/// A file is laminated, written again with the same size and the same times, and laminated again. A
/// process that opens it then reads the new bytes, even if another process has had it open all the
/// time.
#[test]
fn a_later_edition_is_read_by_who_opens_it() {
    let nodes = nodes("editions", &["memory:64M"]);
    for path in ["/last/f", "/wide/f"] {
        let old = pattern(1, 3 * MIB + 5);
        put(&nodes.views[0], path, &old);
        let before: Vec<File<'_>> = nodes.views.iter().map(|fs| open(fs, path)).collect();
        for round in 2..6u64 {
            for file in &before {
                assert_eq!(read_all(file).len(), old.len());
            }
            let new = pattern(round, old.len());
            declare(&nodes.views[2], path, "mutability=overwrite");
            // The file isn't laminated now: a process that opens it reads its present content.
            put(&nodes.views[0], path, &new[..1000]);
            for fs in &nodes.views {
                let mut some = [0; 1000];
                open(fs, path).read_at(&mut some, 0).unwrap();
                assert!(
                    some[..] == new[..1000],
                    "{path} {round}: while it can be written"
                );
            }
            declare(&nodes.views[1], path, "mutability=immutable");
            put(&nodes.views[0], path, &new);
            for fs in &nodes.views {
                fs.set_times(path.as_bytes(), None, Some(1), true).unwrap();
                assert!(
                    read_all(&open(fs, path)) == new,
                    "{path} {round}: laminated again"
                );
            }
            for file in &before {
                assert!(
                    read_all(file) == new,
                    "{path} {round}: it was opened anew here"
                );
            }
        }
    }
    nodes.assert_whole();
}

#[test]
fn a_copy_goes_with_its_file() {
    let nodes = nodes("gone", &["memory:64M"]);
    let empty = nodes.used();
    for path in ["/last/f", "/wide/f"] {
        put(&nodes.views[0], path, &pattern(1, 3 * MIB + 5));
        let file = nodes.used();
        for fs in &nodes.views {
            read_all(&open(fs, path));
        }
        assert!(nodes.used() > file + 4 * MIB as u64);
        // The copies of a file aren't removed while the file exists.
        let left = sweep(&nodes);
        assert!(left[1] == 1 && left[2] == 1, "{left:?}");
        let still_open = open(&nodes.views[1], path);
        nodes.views[2].unlink(path.as_bytes()).unwrap();
        assert_eq!(sweep(&nodes)[1], 1);
        read_all(&still_open);
        still_open.close().unwrap();
        nodes.drop_parts();
        assert_eq!(sweep(&nodes), [0, 0, 0]);
        assert_eq!(nodes.used(), empty, "{path}");
    }
    nodes.assert_whole();
}

/// Copies take no room from files: a node can store as much as without them, even if processes have
/// the copied files open.
#[test]
fn copies_give_way_to_files() {
    let nodes = nodes("give-way", &["memory:32M"]);
    let used = |fs: &Fs| fs.pool().usage().iter().map(|u| u.used).sum::<u64>();
    let elsewhere = || used(&nodes.views[0]) + used(&nodes.views[2]);
    // Fills a node; none of these bytes are stored on other nodes.
    let fill = |fs: &Fs| {
        let before = elsewhere();
        fs.mkdir_with(b"/here", 0o700, Distribution::LocalAll)
            .unwrap();
        let file = fs.open(b"/here/f", O_CREAT | O_WRONLY, 0o600).unwrap();
        let (mut at, bytes) = (0, pattern(9, 300_000));
        while at < 31 * MIB as u64 {
            assert_eq!(file.write_at(&bytes, at), Ok(bytes.len()), "at {at}");
            at += bytes.len() as u64;
        }
        file.close().unwrap();
        assert_eq!(elsewhere(), before, "it has grown on other nodes");
        at
    };
    let room = fill(&nodes.views[1]);
    nodes.views[1].unlink(b"/here/f").unwrap();
    nodes.views[1].rmdir(b"/here").unwrap();
    let content = pattern(1, 3 * MIB);
    for n in 0..9 {
        put(&nodes.views[0], &format!("/last/{n}"), &content);
    }
    let files: Vec<File<'_>> = (0..9)
        .map(|n| open(&nodes.views[1], &format!("/last/{n}")))
        .collect();
    for file in &files {
        assert!(read_all(file) == content);
    }
    let copied = nodes.views[1].store().local_copies().copied();
    // Copies take at most half of the room.
    assert!(
        copied.files >= 5 && copied.bytes > 12 * MIB as u64,
        "{copied:?}"
    );
    assert!(copied.bytes <= 16 * MIB as u64, "{copied:?}");
    assert_eq!(fill(&nodes.views[1]), room);
    for file in &files {
        assert!(read_all(file) == content, "there is no room for copies");
    }
    nodes.views[1].unlink(b"/here/f").unwrap();
    for file in &files {
        assert!(read_all(file) == content, "there is room again");
    }
    drop(files);
    nodes.assert_whole();
}

/// A process is killed at any request, and at any time between requests. Reads afterwards return
/// the right bytes, and no room is lost.
#[test]
fn who_fetches_may_be_killed() {
    let nodes = nodes("killed", &["memory:64M"]);
    let mut random = Random(5);
    for path in ["/last/f", "/wide/f"] {
        let content = pattern(3, 4 * MIB + 123);
        put(&nodes.views[0], path, &content);
        for n in 0..24 {
            let at_question = if n % 2 == 0 { 2 + n / 2 } else { 0 };
            let dirs: Vec<_> = nodes.dirs.iter().map(|d| d.to_string_lossy()).collect();
            let what = format!("{path} {at_question} {}", dirs.join(" "));
            let worker = nodes.pools[0].worker("reads", &what);
            if at_question == 0 {
                // Up to 100 ms, of which the worker's start takes some milliseconds.
                std::thread::sleep(Duration::from_micros(random.below(100_000) as u64));
                worker.kill();
            } else {
                worker.finish_killed();
            }
            nodes.recover();
            for fs in &nodes.views {
                assert!(read_all(&open(fs, path)) == content, "{path}, round {n}");
            }
            nodes.assert_whole();
        }
        nodes.views[0].unlink(path.as_bytes()).unwrap();
    }
    nodes.drop_parts();
    assert_eq!(sweep(&nodes), [0, 0, 0]);
}
