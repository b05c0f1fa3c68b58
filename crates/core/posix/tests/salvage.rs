//! While a node is dead, a view with a salvage finds every file that is on living nodes, by its
//! path or in `lost+found`, whatever was made, renamed, linked and removed before.

mod support;

use forebay_posix::{Errno, Fs, ObjectId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
use support::nodes::Nodes;
use support::*;

const NODES: usize = 3;

/// Paths of all objects except directories, by id.
fn walk(fs: &Fs, top: &[u8]) -> BTreeMap<u64, BTreeSet<Vec<u8>>> {
    let (mut found, mut todo) = (BTreeMap::<_, BTreeSet<_>>::new(), vec![top.to_vec()]);
    while let Some(dir) = todo.pop() {
        let mut entries = Vec::new();
        assert_eq!(fs.list_into(&dir, &mut entries), Ok(()), "{}", shown(&dir));
        let names: BTreeSet<_> = entries.iter().map(|e| e.name.clone()).collect();
        assert_eq!(
            names.len(),
            entries.len(),
            "a name twice in {}",
            shown(&dir)
        );
        for entry in entries {
            let slash: &[u8] = if dir == b"/" { b"" } else { b"/" };
            let path = [&dir, slash, &entry.name].concat();
            match fs.stat(&path, false) {
                Ok(stat) if stat.mode & libc::S_IFMT == libc::S_IFDIR => todo.push(path),
                Ok(stat) => drop(found.entry(stat.ino).or_default().insert(path)),
                // The file is on the dead node.
                Err(e) => assert_eq!(e, Errno::HOSTDOWN, "{}", shown(&path)),
            }
        }
    }
    found
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Makes directories and files on all nodes, and changes their names.
fn fill(nodes: &Nodes, seed: u64) {
    let mut random = Random(seed | 1);
    let mut dirs = vec![Vec::new()];
    let mut files: Vec<Vec<u8>> = Vec::new();
    for n in 0..160 {
        let fs = &nodes.views[random.below(NODES)];
        let above = dirs[random.below(dirs.len())].clone();
        let path = [&above[..], format!("/x{n}").as_bytes()].concat();
        let file = (!files.is_empty()).then(|| random.below(files.len()));
        match (random.below(8), file) {
            (0 | 1, _) => {
                fs.mkdir(&path, 0o755).unwrap();
                dirs.push(path);
            }
            (2, Some(file)) => {
                fs.rename(&files[file], &path).unwrap();
                files[file] = path;
            }
            (3, Some(file)) => {
                fs.link(&files[file], &path).unwrap();
                files.push(path);
            }
            (4, Some(file)) => fs.unlink(&files.swap_remove(file)).unwrap(),
            (5, _) => fs.symlink(b"target", &path).unwrap(),
            _ => {
                let f = fs.open(&path, O_CREAT | O_RDWR, 0o644).unwrap();
                write_all(&f, &path, 0);
                f.close().unwrap();
                files.push(path);
            }
        }
    }
    // A directory that isn't empty is renamed, so all paths below it change.
    let moved = dirs.iter().rev().find(|d| !d.is_empty()).unwrap();
    nodes.views[0].rename(moved, b"/moved").unwrap();
}

/// Numbers determined by a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn living_nodes_find_all_that_they_keep() {
    let nodes = Nodes::new("salvage", NODES as u32, &["memory:64M"], 120);
    for seed in 1..=4 {
        fill(&nodes, seed * 0x9e37_79b9_7f4a_7c15);
        let all = walk(&nodes.views[0], b"/");
        for dead in 0..NODES {
            let fs = &nodes.views[(dead + 1) % NODES];
            assert!(fs.salvage(b"/").unwrap().is_none(), "no node is dead");
            nodes.together.down.store(dead, SeqCst);
            let salvage = fs.salvage(b"/").unwrap().unwrap();
            assert_eq!(salvage.dead(), [dead as u32]);
            let found = walk(fs, b"/");
            for (id, paths) in &all {
                let home = fs.cluster().home_of(ObjectId(*id)).unwrap();
                if home as usize == dead {
                    assert!(!found.contains_key(id));
                    continue;
                }
                let there = found.get(id).unwrap_or_else(|| {
                    panic!("seed {seed}, without node {dead}: {:?} isn't found", paths)
                });
                for path in there {
                    let lost = path.starts_with(b"/lost+found/");
                    assert!(
                        lost || paths.contains(path),
                        "{}: no such name",
                        shown(path)
                    );
                    // Every object that is found can be read.
                    let stat = fs.stat(path, false).unwrap();
                    if stat.mode & libc::S_IFMT == libc::S_IFREG {
                        let f = fs.open(path, O_RDONLY, 0).unwrap();
                        let mut bytes = vec![0; stat.size as usize];
                        assert_eq!(f.read_at(&mut bytes, 0), Ok(bytes.len()));
                        f.close().unwrap();
                    }
                }
            }
            // An object that no living node knows isn't reported as missing.
            let name = |e: &forebay_posix::DirEntry| e.name == b"nothing";
            let mut listed = Vec::new();
            fs.list_into(b"/", &mut listed).unwrap();
            assert!(!listed.iter().any(name));
            nodes.together.down.store(usize::MAX, SeqCst);
            assert!(fs.salvage(b"/").unwrap().is_none());
            assert_eq!(walk(fs, b"/"), all, "all nodes are there again");
        }
        for entry in nodes.views[0].list(b"/").unwrap() {
            remove(&nodes.views[0], &[b"/", &entry.name[..]].concat());
        }
    }
}

fn remove(fs: &Fs, path: &[u8]) {
    if fs.stat(path, false).unwrap().mode & libc::S_IFMT != libc::S_IFDIR {
        return fs.unlink(path).unwrap();
    }
    for entry in fs.list(path).unwrap() {
        remove(fs, &[path, b"/", &entry.name[..]].concat());
    }
    fs.rmdir(path).unwrap();
}
