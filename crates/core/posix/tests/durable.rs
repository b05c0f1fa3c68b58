//! `persistence=durable` over several nodes: bytes for which fsync has returned outlive a loss of
//! power on all nodes at once, together with the names on the file's path, whichever nodes these
//! are on. `support/disk.rs` simulates the state of the disks afterwards.

#[allow(dead_code, reason = "what syncs do when they fail is for others")]
#[path = "support/disk.rs"]
mod disk;
#[path = "support/left.rs"]
mod left;
mod support;

use disk::Disk;
use forebay_posix::{ChunkSize, Distribution, Errno, Fs, ObjectId};
use left::{Left, medium_dir};
use std::sync::Arc;
use support::nodes::Nodes;
use support::*;

const MEDIUM: &str = "files:DIR:8M";

fn declare(fs: &Fs, path: &str, what: &str) -> forebay_posix::Result<()> {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.set_controls(id, what.parse().unwrap())
}

/// Opens the pool from the state of all nodes' disks after all nodes have lost power.
fn cut(nodes: &Nodes, disks: &[Arc<Disk>], n: usize) -> (Vec<Left>, Nodes) {
    let mut all = Vec::new();
    for (pool, disk) in nodes.pools.iter().zip(disks) {
        let dir = medium_dir(pool.pool());
        let (base, name) = (dir.parent().unwrap(), &pool.pool().config().name);
        let copy = format!("{name}c{n}");
        let file = dir.file_name().unwrap().to_str().unwrap();
        let to = base.join(file.replace(name.as_str(), &copy));
        disk.torn_copy(&to);
        all.push(Left::open(to, name, base, &copy));
    }
    let dirs = all.iter().map(|left| left.fs().pool().dir().to_owned());
    let view = Nodes::open(dirs.collect(), 60);
    (all, view)
}

#[test]
fn a_durable_file_is_found_after_all_nodes_have_lost_their_power() {
    let nodes = Nodes::new("durable", 3, &[MEDIUM], 100);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    for (dir, how) in [("/a", Distribution::Local), ("/s", striped)] {
        let fs = &nodes.views[0];
        fs.mkdir_with(dir.as_bytes(), 0o700, how).unwrap();
        declare(fs, dir, "persistence=durable").unwrap();
    }
    let disk = |(k, pool): (usize, &TestPool)| Disk::new(&medium_dir(pool.pool()), 7 + k as u64);
    let disks: Vec<Arc<Disk>> = nodes.pools.iter().enumerate().map(disk).collect();
    let mut there: Vec<(String, Vec<u8>)> = Vec::new();
    for n in 0..10 {
        let fs = &nodes.views[n % 3];
        let (top, size) = match n % 5 {
            4 => ("/s", (1 << 20) + 5000),
            _ => ("/a", 900 + n * 700),
        };
        let dir = format!("{top}/{n}");
        fs.mkdir(dir.as_bytes(), 0o700).unwrap();
        let path = format!("{dir}/file");
        let file = fs.open(path.as_bytes(), O_CREAT | O_WRONLY, 0o600).unwrap();
        let content = pattern(n as u64, size);
        write_all(&file, &content, 0);
        disks.iter().for_each(|disk| disk.look());
        file.sync().unwrap();
        there.push((path, content));
        let (left, view) = cut(&nodes, &disks, n);
        for (path, content) in &there {
            for fs in &view.views {
                let file = fs.open(path.as_bytes(), O_RDONLY, 0);
                let file = file.unwrap_or_else(|e| panic!("{path} after cut {n}: {e}"));
                assert!(read_all(&file) == *content, "{path} after cut {n}");
            }
        }
        drop(view);
        drop(left);
        file.close().unwrap();
    }
    disks.iter().for_each(|disk| disk.close());
    nodes.assert_whole();
}

#[test]
fn what_memory_cannot_keep_is_refused() {
    let (pool, process) = ("persistence=pool", "persistence=process");
    let (node, durable) = ("persistence=node", "persistence=durable");
    let all = [pool, process, node, durable];
    for (name, media, kept) in [
        ("memory", &["memory:16M"][..], &[pool][..]),
        ("both", &["memory:16M", MEDIUM][..], &[pool, node][..]),
        ("files", &[MEDIUM][..], &[pool, node, durable][..]),
    ] {
        let pool = TestPool::with(&format!("refused-{name}"), media);
        pool.put("/f", b"content");
        for what in all {
            let wanted = if kept.contains(&what) {
                Ok(())
            } else {
                Err(Errno::OPNOTSUPP)
            };
            assert_eq!(declare(&pool, "/f", what), wanted, "{what} on {name}");
        }
    }
}
