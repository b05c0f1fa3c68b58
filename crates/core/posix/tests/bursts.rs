//! `temporality = "bursty"`: files are written to memory, and are moved to the next medium when no
//! process has them open.

mod support;

use forebay_posix::{ChunkSize, Distribution, ObjectId};
use forebay_store::Store;
use std::sync::atomic::{AtomicU32, Ordering::*};
use support::declare::declare;
use support::nodes::Nodes;
use support::*;

const MIB: usize = 1 << 20;

/// Not a test: the code of a process that moves files until it is killed.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((_, _, fs)) = worker_role() else {
        return;
    };
    fs.mkdir(b"/ready", 0o700).unwrap();
    loop {
        let _ = fs.cluster().room().drain(u64::MAX);
    }
}

/// Bytes that depend on the file and on their offset in it.
fn bytes(file: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (file * 31 + i / 4096 * 7 + i % 251) as u8)
        .collect()
}

fn used(store: &Store) -> [u64; 2] {
    [0, 1].map(|m| store.media()[m].usage().used)
}

fn pool(name: &str) -> TestPool {
    let p = TestPool::with(name, &["memory:16M", "files:DIR:64M"]);
    p.mkdir(b"/out", 0o700).unwrap();
    declare(&p, "/out", "temporality=bursty");
    p
}

#[test]
fn what_is_closed_moves_from_memory() {
    let p = pool("bursty");
    let sizes = [100, 2000, 70_000, 3 * MIB + 5];
    for (k, &size) in sizes.iter().enumerate() {
        p.put(&format!("/out/{k}"), &bytes(k, size));
    }
    p.put("/strict", &bytes(9, MIB));
    // A file with holes: ranges that were never written aren't copied and stay zero.
    let f = p.open(b"/out/holes", O_CREAT | O_RDWR, 0o600).unwrap();
    f.write_at(b"far", 2 * MIB as u64 + 77).unwrap();
    f.sync().unwrap();
    // The file is open, so it isn't moved.
    let done = p.cluster().room().drain(u64::MAX).unwrap();
    assert_eq!(done.left, 1);
    assert!(done.bytes >= 3 * MIB as u64, "{done:?}");
    let [memory, files] = used(p.store());
    assert!(files >= 3 * MIB as u64, "{files}");
    f.close().unwrap();
    assert_eq!(p.cluster().room().drain(u64::MAX).unwrap().left, 0);
    assert!(used(p.store())[0] < memory);
    // Bytes are moved only once; the strict file stays in memory.
    assert_eq!(p.cluster().room().drain(u64::MAX).unwrap().bytes, 0);
    assert!(used(p.store())[0] >= MIB as u64);
    for (k, &size) in sizes.iter().enumerate() {
        assert!(p.get(&format!("/out/{k}")) == bytes(k, size), "{k}");
    }
    let holes = p.get("/out/holes");
    assert!(holes.len() == 2 * MIB + 80 && holes.ends_with(b"\0far"));
    // The file grows: its new bytes lie in memory at first, and are moved, too.
    let f = p.open(b"/out/3", O_RDWR, 0).unwrap();
    f.write_at(&bytes(3, 5 * MIB)[3 * MIB + 5..], 3 * MIB as u64 + 5)
        .unwrap();
    f.close().unwrap();
    assert!(p.cluster().room().drain(u64::MAX).unwrap().bytes >= MIB as u64);
    assert!(p.get("/out/3") == bytes(3, 5 * MIB));
    p.assert_whole();
}

#[test]
fn holes_cost_nothing() {
    let p = pool("bursty-holes");
    let f = p.open(b"/out/f", O_CREAT | O_RDWR, 0o600).unwrap();
    let (far, size) = (1 << 50, 1 << 54);
    for at in [0, 5 * MIB as u64, far] {
        f.write_at(&bytes(1, 70_000), at).unwrap();
    }
    f.set_len(size).unwrap();
    // Data and holes consist of whole pages, even if a chunk has more pages than were written.
    let ends = |at: u64| (at + 70_000).next_multiple_of(4096);
    for (at, next) in [(0, 5 * MIB as u64), (5 * MIB as u64, far)] {
        assert_eq!(f.seek_data(at), Ok(at));
        assert_eq!(f.seek_data(at + 50_001), Ok(at + 50_001));
        assert_eq!(f.seek_hole(at), Ok(ends(at)));
        assert_eq!(f.seek_hole(ends(at) + 5), Ok(ends(at) + 5));
        assert_eq!(f.seek_data(ends(at)), Ok(next));
    }
    assert_eq!(f.seek_hole(far), Ok(ends(far)));
    assert_eq!(f.seek_data(ends(far)), Err(forebay_posix::Errno::NXIO));
    f.close().unwrap();
    // The file is moved in several turns, since each turn is to move 1 byte only.
    let mut rounds = 1;
    while p.cluster().room().drain(1).unwrap().left > 0 {
        rounds += 1;
    }
    assert!((3..=4).contains(&rounds), "{rounds}");
    let f = p.open(b"/out/f", O_RDONLY, 0).unwrap();
    for at in [0, 5 * MIB as u64, far] {
        let mut found = vec![0; 70_000];
        f.read_at(&mut found, at).unwrap();
        assert!(found == bytes(1, 70_000), "{at}");
    }
    f.close().unwrap();
    p.assert_whole();
}

#[test]
fn a_pool_without_media_behind_its_memory_refuses_it() {
    for media in [
        &["memory:16M"][..],
        &["files:DIR:16M"],
        &["files:DIR:8M", "memory:8M"],
    ] {
        let p = TestPool::with("bursty-refused", media);
        p.put("/f", b"x");
        let id = ObjectId(p.stat(b"/f", true).unwrap().ino);
        let refused = p.set_controls(id, "temporality=bursty".parse().unwrap());
        assert_eq!(refused, Err(forebay_posix::Errno::OPNOTSUPP), "{media:?}");
    }
}

#[test]
fn without_room_behind_it_all_stays() {
    let p = TestPool::with("bursty-full", &["memory:16M", "files:DIR:2M"]);
    p.mkdir(b"/out", 0o700).unwrap();
    declare(&p, "/out", "temporality=bursty");
    p.put("/out/large", &bytes(1, 6 * MIB));
    assert_eq!(
        p.cluster().room().drain(u64::MAX),
        Err(forebay_posix::Errno::NOSPC)
    );
    assert!(p.get("/out/large") == bytes(1, 6 * MIB));
    p.unlink(b"/out/large").unwrap();
    assert_eq!(p.cluster().room().drain(u64::MAX).unwrap().left, 0);
    p.assert_whole();
}

#[test]
fn readers_and_writers_never_see_it() {
    let p = pool("bursty-used");
    let writing = AtomicU32::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            while writing.load(Relaxed) > 0 {
                let _ = p.cluster().room().drain(u64::MAX);
            }
        });
        for file in 0..2 {
            let p = &p;
            let writing = &writing;
            s.spawn(move || {
                let path = format!("/out/{file}");
                for round in 0..60 {
                    let content = bytes(file + 2 * round, 2 * MIB + round);
                    p.put(&path, &content);
                    for _ in 0..3 {
                        assert!(p.get(&path) == content, "{path} in round {round}");
                    }
                    let f = p.open(path.as_bytes(), O_RDWR, 0).unwrap();
                    f.set_len(0).unwrap();
                    f.close().unwrap();
                }
                writing.fetch_sub(1, Relaxed);
            });
        }
    });
    p.assert_whole();
}

#[test]
fn a_killed_mover_loses_nothing() {
    let p = pool("bursty-killed");
    for round in 0..12 {
        let mover = p.worker("moves", "");
        while p.stat(b"/ready", true).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for k in 0..4 {
            p.put(&format!("/out/{k}"), &bytes(k + round, 2 * MIB));
        }
        mover.kill();
        p.store().recovery().reap().unwrap();
        p.rmdir(b"/ready").unwrap();
        for k in 0..4 {
            assert!(p.get(&format!("/out/{k}")) == bytes(k + round, 2 * MIB));
        }
        p.assert_whole();
    }
}

#[test]
fn parts_of_striped_files_move_on_their_nodes() {
    let media = ["memory:16M", "files:DIR:64M"];
    let nodes = Nodes::new("bursty-striped", 3, &media, 60);
    let (fs, other) = (&nodes.views[0], &nodes.views[1]);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    fs.mkdir_with(b"/out", 0o700, striped).unwrap();
    declare(fs, "/out", "temporality=bursty");
    let drain = || {
        // All keepers work twice, in any order. In the first round, the home's keeper moves its own
        // bytes and notifies the other nodes; in the second round at the latest, their keepers move
        // their parts.
        for _ in 0..2 {
            for view in &nodes.views {
                assert_eq!(view.cluster().room().drain(u64::MAX).unwrap().left, 0);
            }
        }
    };
    for round in 0..3 {
        let content = bytes(round, 9 * MIB + 77);
        for (k, fs) in nodes.views.iter().enumerate() {
            let path = format!("/out/{k}");
            let f = fs
                .open(path.as_bytes(), O_CREAT | O_TRUNC | O_RDWR, 0o600)
                .unwrap();
            write_all(&f, &content, 0);
            f.close().unwrap();
        }
        assert!(nodes.views.iter().all(|v| used(v.store())[0] > 4 << 20));
        drain();
        for view in &nodes.views {
            let [memory, files] = used(view.store());
            assert!(memory == 0 && files > 4 << 20, "{memory} {files}");
        }
        for k in 0..3 {
            let f = other.open(format!("/out/{k}").as_bytes(), O_RDONLY, 0);
            assert!(read_all(&f.unwrap()) == content, "{k} in round {round}");
        }
    }
    for k in 0..3 {
        fs.unlink(format!("/out/{k}").as_bytes()).unwrap();
    }
    nodes.drop_parts();
    drain();
    assert_eq!(nodes.used(), 0);
    nodes.assert_whole();
}
