//! `persistence = "node"` in pools that have memory, too: the bytes of such files are on `files`
//! media from the beginning, on all nodes, and never in memory.

mod support;

use forebay_client::Pool;
use forebay_posix::{ChunkSize, Distribution, Errno, Fs, ObjectId};
use forebay_store::Store;
use std::sync::atomic::{AtomicU32, Ordering::*};
use support::nodes::Nodes;
use support::*;

const MIB: usize = 1 << 20;
const MEDIA: [&str; 2] = ["memory:16M", "files:DIR:64M"];

/// Not a test: the code of a process that repeatedly declares `persistence=node` for files until it
/// is killed.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((_, _, fs)) = worker_role() else {
        return;
    };
    fs.mkdir(b"/ready", 0o700).unwrap();
    loop {
        for what in ["persistence=node", "persistence=pool"] {
            for k in 0..4 {
                let Ok(stat) = fs.stat(format!("/{k}").as_bytes(), true) else {
                    continue;
                };
                fs.set_controls(ObjectId(stat.ino), what.parse().unwrap())
                    .unwrap();
            }
        }
    }
}

fn id_of(fs: &Fs, path: &str) -> ObjectId {
    ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino)
}

fn declare(fs: &Fs, path: &str, what: &str) -> forebay_posix::Result<()> {
    fs.set_controls(id_of(fs, path), what.parse().unwrap())
}

/// Bytes in use in the memory of a node, and on its next medium.
fn used(store: &Store) -> [u64; 2] {
    let of = |memory: bool| {
        let media = store.media().iter();
        let these =
            media.filter(|m| matches!(m.kind(), forebay_media::MediumKind::Memory) == memory);
        these.map(|m| m.usage().used).sum()
    };
    [of(true), of(false)]
}

fn assert_on_files(store: &Store, what: &str) {
    let [memory, files] = used(store);
    assert!(memory == 0 && files > 0, "{what}: {memory} and {files}");
}

#[test]
fn no_byte_lies_in_memory_ever() {
    for (k, media) in [MEDIA, ["files:DIR:64M", "memory:16M"]].iter().enumerate() {
        let p = TestPool::with(&format!("on-files-{k}"), media);
        p.mkdir(b"/n", 0o700).unwrap();
        declare(&p, "/n", "persistence=node").unwrap();
        let sizes = [1, 100, 1024, 2000, 70_000, 3 * MIB + 5];
        for (n, &size) in sizes.iter().enumerate() {
            let before = used(p.store())[1];
            let path = format!("/n/{n}");
            let f = p.open(path.as_bytes(), O_CREAT | O_RDWR, 0o600).unwrap();
            write_all(&f, &pattern(n as u64, size), 0);
            assert_on_files(p.store(), "open");
            f.sync().unwrap();
            f.close().unwrap();
            // Small content isn't moved into the record, since records are in memory.
            assert_on_files(p.store(), "closed");
            assert!(used(p.store())[1] >= before + size as u64, "{size}");
        }
        // The file grows, is truncated, gets holes, is reserved, appended to, copied to, and
        // mapped.
        let f = p.open(b"/n/0", O_RDWR, 0).unwrap();
        f.set_len(5 * MIB as u64).unwrap();
        f.write_at(b"far", 4 * MIB as u64 + 77).unwrap();
        f.set_len(10).unwrap();
        f.close().unwrap();
        let f = p.open(b"/n/1", O_RDWR | O_APPEND, 0).unwrap();
        f.write_at(&[7; 5000], 0).unwrap();
        f.close().unwrap();
        p.put("/strict", &pattern(9, MIB));
        let strict = p.open(b"/strict", O_RDONLY, 0).unwrap();
        let before = used(p.store());
        let copy = p.open(b"/n/copy", O_CREAT | O_RDWR, 0o600).unwrap();
        assert_eq!(strict.copy_to(0, &copy, 3, MIB as u64), Ok(MIB as u64));
        let cluster = p.cluster();
        let mapped = p.open(b"/n/mapped", O_CREAT | O_RDWR, 0o600).unwrap();
        mapped.set_len(2 * MIB as u64).unwrap();
        let live = cluster
            .opens()
            .live_acquire(id_of(&p, "/n/mapped"))
            .unwrap();
        let pieces = cluster
            .mappings()
            .map(live, 0, 2 * MIB, usize::MAX)
            .unwrap();
        let files = |medium: usize| {
            !matches!(
                cluster.store().media()[medium].kind(),
                forebay_media::MediumKind::Memory
            )
        };
        assert!(pieces.iter().all(|piece| files(piece.medium)), "{pieces:?}");
        cluster
            .data()
            .reserve_range(live, 5 * MIB as u64, MIB as u64, true)
            .unwrap();
        cluster.store().objects().live_release(live).unwrap();
        assert_eq!(used(cluster.store())[0], before[0]);
        assert!(used(cluster.store())[1] >= before[1] + 4 * MIB as u64);
        drop((strict, copy, mapped));
        assert!(p.get("/n/copy")[3..] == pattern(9, MIB));
        assert!(p.get("/n/5") == pattern(5, 3 * MIB + 5));
        // A rename into a directory with other controls doesn't change the file's controls.
        p.rename(b"/strict", b"/n/strict").unwrap();
        p.rename(b"/n/5", b"/moved").unwrap();
        let f = p.open(b"/moved", O_RDWR, 0).unwrap();
        let before = used(cluster.store());
        f.write_at(&pattern(1, MIB), 8 * MIB as u64).unwrap();
        assert!(used(cluster.store())[0] == before[0] && used(cluster.store())[1] > before[1]);
        f.close().unwrap();
        p.assert_whole();
    }
}

#[test]
fn without_room_on_files_there_is_none() {
    let p = TestPool::with("on-files-full", &["memory:16M", "files:DIR:2M"]);
    p.mkdir(b"/n", 0o700).unwrap();
    declare(&p, "/n", "persistence=node").unwrap();
    let f = p.open(b"/n/f", O_CREAT | O_RDWR, 0o600).unwrap();
    let content = pattern(1, 4 * MIB);
    let mut done = 0;
    let error = loop {
        match f.write_at(&content[done..done + 100_000], done as u64) {
            Ok(n) => done += n,
            Err(e) => break e,
        }
    };
    assert_eq!(error, Errno::NOSPC);
    assert!(done > MIB && done <= 2 * MIB, "{done}");
    assert_eq!(used(p.store())[0], 0);
    let live = p
        .cluster()
        .opens()
        .live_acquire(ObjectId(f.stat().unwrap().ino))
        .unwrap();
    let reserved = p
        .cluster()
        .data()
        .reserve_range(live, 0, 4 * MIB as u64, true);
    assert_eq!(reserved, Err(Errno::NOSPC));
    p.store().objects().live_release(live).unwrap();
    // The pool's list of violations has the reason.
    let (violations, _) = Pool::violations(p.pool().dir()).unwrap();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert_eq!(
        (&*violations[0].path, &*violations[0].control),
        ("/n/f", "persistence = \"node\"")
    );
    // Operations that need no room still work, and so do those on files whose bytes may be in
    // memory.
    f.write_at(&content[..100_000], 0).unwrap();
    p.put("/strict", &content);
    let refused = declare(&p, "/strict", "persistence=node");
    assert_eq!(refused, Err(Errno::NOSPC));
    let (said, _) = p.controls_of(id_of(&p, "/strict")).unwrap();
    assert_eq!(said.persistence, None);
    assert!(p.get("/strict") == content && read_all(&f) == content[..done]);
    f.close().unwrap();
    p.unlink(b"/n/f").unwrap();
    p.put("/n/f", &content[..MIB]);
    p.unlink(b"/strict").unwrap();
    assert_on_files(p.store(), "with room again");
    p.assert_whole();
}

#[test]
fn what_lies_in_memory_is_moved_when_it_is_said() {
    let p = TestPool::with("on-files-moved", &MEDIA);
    let sizes = [0, 100, 2000, 70_000, 3 * MIB + 5];
    for (k, &size) in sizes.iter().enumerate() {
        p.put(&format!("/{k}"), &pattern(k as u64, size));
    }
    // A process that has the file open doesn't prevent its bytes from being moved.
    let f = p.open(b"/4", O_RDWR, 0).unwrap();
    f.write_at(b"far", 9 * MIB as u64).unwrap();
    for k in 0..sizes.len() {
        declare(&p, &format!("/{k}"), "persistence=node").unwrap();
    }
    assert_on_files(p.store(), "moved");
    // Another call moves nothing, and finds out that nothing is left.
    assert_eq!(p.cluster().room().drain(u64::MAX).unwrap().bytes, 0);
    assert_eq!(
        f.seek_hole(0),
        Ok((3 * MIB as u64 + 5).next_multiple_of(4096))
    );
    f.write_at(&pattern(4, 3 * MIB + 5), 0).unwrap();
    f.set_len(3 * MIB as u64 + 5).unwrap();
    f.close().unwrap();
    for (k, &size) in sizes.iter().enumerate() {
        assert!(p.get(&format!("/{k}")) == pattern(k as u64, size), "{k}");
    }
    assert_on_files(p.store(), "written again");
    // After the declaration is taken back, new bytes may be on any medium.
    declare(&p, "/4", "persistence=pool").unwrap();
    let f = p.open(b"/4", O_RDWR, 0).unwrap();
    f.write_at(&pattern(4, MIB), 6 * MIB as u64).unwrap();
    assert!(used(p.store())[0] >= MIB as u64);
    // Pages that a program has mapped aren't moved.
    let live = p.cluster().opens().live_acquire(id_of(&p, "/4")).unwrap();
    p.cluster()
        .mappings()
        .map(live, 0, MIB, usize::MAX)
        .unwrap();
    assert_eq!(declare(&p, "/4", "persistence=node"), Err(Errno::BUSY));
    let (said, _) = p.controls_of(id_of(&p, "/4")).unwrap();
    assert_eq!(said.to_string(), "persistence=pool");
    p.store().objects().live_release(live).unwrap();
    f.close().unwrap();
    declare(&p, "/4", "persistence=node").unwrap();
    assert_on_files(p.store(), "no longer mapped");
    p.assert_whole();
}

#[test]
fn readers_and_writers_never_see_it() {
    let p = TestPool::with("on-files-used", &MEDIA);
    let writing = AtomicU32::new(2);
    for file in 0..2 {
        p.put(&format!("/{file}"), b"");
    }
    std::thread::scope(|s| {
        s.spawn(|| {
            while writing.load(Relaxed) > 0 {
                for what in ["persistence=node", "persistence=pool"] {
                    declare(&p, "/0", what).unwrap();
                    declare(&p, "/1", what).unwrap();
                }
            }
        });
        for file in 0..2u64 {
            let (p, writing) = (&p, &writing);
            s.spawn(move || {
                let path = format!("/{file}");
                for round in 0..60 {
                    let size = [500, 2 * MIB + round as usize][round as usize % 2];
                    let content = pattern(file + 2 * round, size);
                    let f = p.open(path.as_bytes(), O_RDWR | O_TRUNC, 0).unwrap();
                    write_all(&f, &content, 0);
                    for _ in 0..5 {
                        assert!(read_all(&f) == content, "{path} in round {round}");
                        let end = (size as u64).next_multiple_of(4096);
                        let hole = f.seek_hole(0).unwrap();
                        assert!(hole == size as u64 || hole == end, "{hole}");
                    }
                    f.close().unwrap();
                    assert!(p.get(&path) == content, "{path} in round {round}");
                }
                writing.fetch_sub(1, Relaxed);
            });
        }
    });
    p.assert_whole();
}

#[test]
fn who_says_it_may_be_killed() {
    let p = TestPool::with("on-files-killed", &MEDIA);
    for round in 0..12 {
        let worker = p.worker("says", "");
        while p.stat(b"/ready", true).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for k in 0..4 {
            let size = [300, 2 * MIB][k % 2];
            p.put(&format!("/{k}"), &pattern(k as u64 + round, size));
        }
        std::thread::sleep(std::time::Duration::from_millis(round));
        worker.kill();
        p.store().recovery().reap().unwrap();
        p.store().recovery().put_in_order().unwrap();
        p.rmdir(b"/ready").unwrap();
        // The pool is consistent, including its intents.
        p.assert_whole();
        assert_eq!(p.cluster().room().drain(u64::MAX).unwrap().left, 0);
        p.assert_whole();
        for k in 0..4u64 {
            let path = format!("/{k}");
            let size = [300, 2 * MIB][k as usize % 2];
            assert!(p.get(&path) == pattern(k + round, size), "{path}");
            // The keeper has moved the files that had to be moved.
            if p.controls_of(id_of(&p, &path)).unwrap().0.to_string() != "persistence=node" {
                p.unlink(path.as_bytes()).unwrap();
            }
        }
        assert_eq!(used(p.store())[0], 0, "round {round}");
    }
}

#[test]
fn staged_files_lie_there_from_the_start() {
    let rule = "[[rule]]\npath = \"/s/**\"\npersistence = \"node\"\nmutability = \"append\"\n";
    let pool = TestPool::ruled("on-files-staged", &MEDIA, rule, 60);
    pool.mkdir(b"/s", 0o700).unwrap();
    let staging = Fs::for_staging(std::sync::Arc::new(
        Pool::open_dir(pool.pool().dir()).unwrap(),
    ));
    let flags = O_CREAT | O_RDWR;
    let f = staging
        .open_staged(b"/s/part", b"/s/whole", flags, 0o600)
        .unwrap();
    write_all(&f, &pattern(1, MIB), 0);
    assert_on_files(pool.store(), "staged");
    f.close().unwrap();
    staging.settle(b"/s/part", b"/s/whole").unwrap();
    staging.rename(b"/s/part", b"/s/whole").unwrap();
    // A file whose controls are declared when it is complete.
    let f = staging.open(b"/s/part", flags, 0o600).unwrap();
    write_all(&f, &pattern(2, MIB), 0);
    f.close().unwrap();
    assert!(used(pool.store())[0] >= MIB as u64);
    staging.settle(b"/s/part", b"/s/late").unwrap();
    staging.rename(b"/s/part", b"/s/late").unwrap();
    assert_on_files(pool.store(), "settled");
    for (path, seed) in [("/s/whole", 1), ("/s/late", 2)] {
        let (said, _) = pool.controls_of(id_of(&pool, path)).unwrap();
        assert_eq!(said.to_string(), "mutability=append,persistence=node");
        assert!(pool.get(path) == pattern(seed, MIB));
    }
    pool.assert_whole();
}

fn no_memory_is_used(nodes: &Nodes, when: &str) {
    for (k, view) in nodes.views.iter().enumerate() {
        assert_eq!(used(view.store())[0], 0, "node {k}, {when}");
    }
}

#[test]
fn files_of_other_nodes_and_parts_of_striped_ones() {
    let nodes = Nodes::new("on-files-nodes", 3, &MEDIA, 60);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    for (dir, how) in [("/n", Distribution::Local), ("/s", striped)] {
        nodes.views[0]
            .mkdir_with(dir.as_bytes(), 0o700, how)
            .unwrap();
        declare(&nodes.views[0], dir, "persistence=node").unwrap();
    }
    for (k, view) in nodes.views.iter().enumerate() {
        let other = &nodes.views[(k + 1) % 3];
        for dir in ["/n", "/s"] {
            let path = format!("{dir}/{k}");
            let content = pattern(k as u64, 7 * MIB + 77);
            let f = view.open(path.as_bytes(), O_CREAT | O_RDWR, 0o600).unwrap();
            // One node begins to write the file, and another continues.
            write_all(&f, &content[..3000], 0);
            let g = other.open(path.as_bytes(), O_RDWR | O_APPEND, 0).unwrap();
            write_all(&g, &content[3000..5 * MIB], 0);
            no_memory_is_used(&nodes, "appended");
            write_all(&f, &content[4 * MIB..], 4 * MIB as u64);
            no_memory_is_used(&nodes, "written");
            assert!(read_all(&g) == content, "{path}");
            // Bytes are stored through a mapping on another node.
            let cluster = other.cluster();
            let live = cluster.opens().live_acquire(id_of(other, &path)).unwrap();
            let merged = cluster.mappings().merge(
                live,
                2 * MIB as u64,
                &content[2 * MIB..][..9],
                b"by others",
            );
            assert_eq!(merged, Ok(None));
            cluster
                .data()
                .reserve_range(live, 8 * MIB as u64, 3 * MIB as u64, true)
                .unwrap();
            cluster
                .data()
                .punch(live, 3 * MIB as u64, 10_000, false)
                .unwrap();
            cluster.store().objects().live_release(live).unwrap();
            no_memory_is_used(&nodes, "merged and reserved");
            g.set_len(5 * MIB as u64 + 5).unwrap();
            g.close().unwrap();
            f.close().unwrap();
            no_memory_is_used(&nodes, "cut");
        }
    }
    // The nodes that have the bytes carry out copies.
    let fs = &nodes.views[2];
    for (from, to) in [
        ("/s/0", "/s/copy"),
        ("/n/1", "/s/copy"),
        ("/s/1", "/n/copy"),
    ] {
        let from = fs.open(from.as_bytes(), O_RDONLY, 0).unwrap();
        let to = fs.open(to.as_bytes(), O_CREAT | O_RDWR, 0o600).unwrap();
        let len = 5 * MIB as u64 + 5;
        assert_eq!(from.copy_to(0, &to, 0, len), Ok(len));
        assert!(read_all(&to) == read_all(&from));
        no_memory_is_used(&nodes, "copied");
    }
    // Nothing is written behind the file's first chunk until nodes store through mappings of their
    // own parts.
    let f = fs.open(b"/s/mapped", O_CREAT | O_RDWR, 0o600).unwrap();
    f.set_len(9 * MIB as u64).unwrap();
    f.close().unwrap();
    let mut own = 0;
    for view in &nodes.views {
        let cluster = view.cluster();
        let live = cluster
            .opens()
            .live_acquire(id_of(view, "/s/mapped"))
            .unwrap();
        for chunk in 0..9 {
            let (at, size) = (chunk * MIB as u64, 9 * MIB as u64);
            if cluster.mappings().is_own(live, at, 4096, size) {
                let pieces = cluster
                    .mappings()
                    .map_own(live, at, 4096, usize::MAX)
                    .unwrap();
                assert!(pieces.iter().all(|p| p.medium == 1), "{pieces:?}");
                own += 1;
            }
        }
        cluster.store().objects().live_release(live).unwrap();
    }
    assert_eq!(own, 9);
    no_memory_is_used(&nodes, "mapped");
    for view in &nodes.views {
        let held = view.store().media()[1].usage().used;
        assert!(held > 5 * MIB as u64, "{held}");
    }
    nodes.assert_whole();
}

#[test]
fn what_lies_on_other_nodes_is_moved_when_it_is_said() {
    let nodes = Nodes::new("on-files-said", 3, &MEDIA, 60);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0].mkdir_with(b"/s", 0o700, striped).unwrap();
    let content = pattern(3, 9 * MIB + 77);
    let paths = ["/f", "/s/f"];
    for (k, path) in paths.iter().enumerate() {
        let f = nodes.views[k].open(path.as_bytes(), O_CREAT | O_RDWR, 0o600);
        write_all(&f.unwrap(), &content[..8 * MIB], 0);
    }
    for (k, path) in paths.iter().enumerate() {
        // A writer on another node, which doesn't know the new controls yet, continues.
        let fs = &nodes.views[(k + 1) % 3];
        let writer = fs.open(path.as_bytes(), O_RDWR, 0).unwrap();
        write_all(&writer, &content[..MIB], 0);
        assert!(nodes.views.iter().any(|v| used(v.store())[0] > 0));
        declare(&nodes.views[2], path, "persistence=node").unwrap();
        write_all(&writer, &content[MIB..], MIB as u64);
        assert!(read_all(&writer) == content, "{path}");
        writer.close().unwrap();
    }
    no_memory_is_used(&nodes, "said");
    nodes.assert_whole();
    for view in &nodes.views {
        assert_eq!(view.cluster().room().drain(u64::MAX).unwrap().bytes, 0);
    }
    // After the declaration is taken back, new bytes may be in memory again, on all nodes.
    declare(&nodes.views[0], "/s/f", "persistence=pool").unwrap();
    let f = nodes.views[1].open(b"/s/f", O_RDWR, 0).unwrap();
    write_all(&f, &content, 12 * MIB as u64);
    write_all(&f, &content, 24 * MIB as u64);
    assert!(nodes.views.iter().all(|v| used(v.store())[0] >= MIB as u64));
    // A node has no room for the file: the declaration fails.
    let fill = nodes.views[1]
        .open(b"/fill", O_CREAT | O_RDWR, 0o600)
        .unwrap();
    declare(&nodes.views[1], "/fill", "persistence=node").unwrap();
    let mut at = 0;
    while let Ok(n) = fill.write_at(&content[..MIB], at) {
        at += n as u64;
    }
    let home = nodes.views[1]
        .cluster()
        .home_of(id_of(&nodes.views[1], "/fill"));
    assert_eq!(home, Some(1));
    assert_eq!(
        declare(&nodes.views[0], "/s/f", "persistence=node"),
        Err(Errno::NOSPC)
    );
    let (said, _) = nodes.views[2]
        .controls_of(id_of(&nodes.views[2], "/s/f"))
        .unwrap();
    assert_eq!(said.to_string(), "persistence=pool");
    fill.close().unwrap();
    nodes.views[0].unlink(b"/fill").unwrap();
    // Drops the chunks of the file that were stored on other nodes.
    nodes.drop_parts();
    declare(&nodes.views[0], "/s/f", "persistence=node").unwrap();
    no_memory_is_used(&nodes, "said again");
    let mut there = content[..8 * MIB].to_vec();
    there.resize(12 * MIB, 0);
    there[8 * MIB..9 * MIB + 77].copy_from_slice(&content[8 * MIB..]);
    there.extend_from_slice(&content);
    there.resize(24 * MIB, 0);
    there.extend_from_slice(&content);
    assert!(read_all(&f) == there);
    f.close().unwrap();
    for path in paths {
        nodes.views[1].unlink(path.as_bytes()).unwrap();
    }
    nodes.drop_parts();
    assert_eq!(nodes.used(), 0);
    nodes.assert_whole();
}
