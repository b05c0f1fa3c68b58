//! Random operations on a pool and on a model of it in memory. Both are compared after every step.
//!
//! `FOREBAY_MODEL_SEEDS` and `FOREBAY_MODEL_STEPS` make the test longer. A failure prints the seed
//! and the last operations.

mod support;

use forebay_posix::{ChunkSize, Distribution, Errno, File, Fs, ObjectId};
use std::collections::BTreeMap;
use support::*;

/// Index of a file's bytes in the model, shared by all its names and handles.
type Id = usize;

#[derive(Clone, Debug, PartialEq)]
enum Node {
    File(Id),
    Dir,
}

#[derive(Default)]
struct Model {
    files: Vec<Vec<u8>>,
    names: BTreeMap<String, Node>,
}

impl Model {
    fn is_dir(&self, path: &str) -> bool {
        path.is_empty() || self.names.get(path) == Some(&Node::Dir)
    }

    fn parent(path: &str) -> &str {
        &path[..path.rfind('/').unwrap_or(0)]
    }

    /// Fails with the error of looking up the parent of `path`.
    fn reach(&self, path: &str) -> Result<(), Errno> {
        let parent = Model::parent(path);
        if self.is_dir(parent) {
            return Ok(());
        }
        let mut at = parent;
        while !at.is_empty() {
            if matches!(self.names.get(at), Some(Node::File(_))) {
                return Err(Errno::NOTDIR);
            }
            at = Model::parent(at);
        }
        Err(Errno::NOENT)
    }

    fn has_children(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        self.names.keys().any(|k| k.starts_with(&prefix))
    }

    fn links(&self, id: Id) -> u32 {
        self.names
            .values()
            .filter(|n| **n == Node::File(id))
            .count() as u32
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.reach(from)?;
        let source = self.names.get(from).cloned();
        self.reach(to)?;
        let source = source.ok_or(Errno::NOENT)?;
        let target = self.names.get(to).cloned();
        if from == to {
            return Ok(());
        }
        match (&source, &target) {
            (Node::File(a), Some(Node::File(b))) if a == b => return Ok(()),
            (Node::File(_), Some(Node::Dir)) => return Err(Errno::ISDIR),
            (Node::Dir, Some(Node::File(_))) => return Err(Errno::NOTDIR),
            (Node::Dir, _) if to.starts_with(&format!("{from}/")) => return Err(Errno::INVAL),
            (Node::Dir, Some(Node::Dir)) if self.has_children(to) => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let prefix = format!("{from}/");
        let inside: Vec<String> = self
            .names
            .keys()
            .filter(|k| k.starts_with(&prefix))
            .cloned()
            .collect();
        for path in inside {
            let node = self.names.remove(&path).unwrap();
            self.names
                .insert(format!("{to}/{}", &path[prefix.len()..]), node);
        }
        self.names.remove(from);
        self.names.insert(to.into(), source);
        Ok(())
    }
}

impl Model {
    fn exchange(&mut self, a: &str, b: &str) -> Result<(), Errno> {
        self.reach(a)?;
        self.reach(b)?;
        if !self.names.contains_key(a) || !self.names.contains_key(b) {
            return Err(Errno::NOENT);
        }
        if a.starts_with(&format!("{b}/")) || b.starts_with(&format!("{a}/")) {
            return Err(Errno::INVAL);
        }
        let moved = |path: &str, from: &str, to: &str| {
            let rest = path.strip_prefix(from)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
        };
        let names = std::mem::take(&mut self.names).into_iter();
        self.names = names
            .map(
                |(path, node)| match moved(&path, a, b).or(moved(&path, b, a)) {
                    Some(path) => (path, node),
                    None => (path, node),
                },
            )
            .collect();
        Ok(())
    }
}

fn path(r: &mut Random) -> String {
    const DIRS: [&str; 6] = ["", "", "/d0", "/d1", "/d0/e0", "/d1/e1"];
    const NAMES: [&str; 8] = ["d0", "d1", "e0", "e1", "f0", "f1", "f2", "f3"];
    format!(
        "{}/{}",
        DIRS[r.below(DIRS.len())],
        NAMES[r.below(NAMES.len())]
    )
}

fn offset(r: &mut Random) -> usize {
    match r.below(6) {
        0 => 0,
        1 => r.below(1100),
        2 => r.below(9000),
        3 => (1 << 20) - r.below(5000),
        4 => (1 << 20) + r.below(5000),
        _ => r.below(2_500_000),
    }
}

struct Run<'a> {
    /// The views of all nodes; each step uses one of the views.
    views: Vec<&'a Fs>,
    /// The view by which the state is observed.
    view: &'a Fs,
    model: Model,
    handles: Vec<(Id, File<'a>)>,
    log: Vec<String>,
}

impl<'a> Run<'a> {
    fn step(&mut self, r: &mut Random) {
        let fs = self.views[r.below(self.views.len())];
        self.view = self.views[r.below(self.views.len())];
        let a = path(r);
        let bytes = a.as_bytes();
        match r.below(20) {
            0..=2 => {
                self.log.push(format!("open(create) {a}"));
                let expected = self
                    .model
                    .reach(&a)
                    .and_then(|()| match self.model.names.get(&a) {
                        Some(Node::Dir) => Err(Errno::ISDIR),
                        _ => Ok(()),
                    });
                let got = fs.open(bytes, O_CREAT | O_RDWR, 0o600);
                assert_eq!(got.as_ref().map(|_| ()).map_err(|e| *e), expected);
                if let Ok(f) = got {
                    let id = match self.model.names.get(&a) {
                        Some(Node::File(id)) => *id,
                        _ => {
                            self.model.files.push(Vec::new());
                            let id = self.model.files.len() - 1;
                            self.model.names.insert(a, Node::File(id));
                            id
                        }
                    };
                    self.handles.push((id, f));
                }
            }
            3 => {
                self.log.push(format!("open(trunc) {a}"));
                if let Some(Node::File(id)) = self.model.names.get(&a) {
                    let f = fs.open(bytes, O_TRUNC | O_RDWR, 0).unwrap();
                    self.model.files[*id].clear();
                    self.handles.push((*id, f));
                }
            }
            4..=6 if !self.handles.is_empty() => {
                let n = r.below(self.handles.len());
                let (id, f) = &self.handles[n];
                let (at, len) = (
                    offset(r),
                    [1, 10, 700, 1024, 4096, 5000, 150_000][r.below(7)],
                );
                self.log.push(format!("write #{n} (file {id}) {at}+{len}"));
                let data = pattern(r.next() % 97, len);
                write_all(f, &data, at as u64);
                let content = &mut self.model.files[*id];
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&data);
            }
            7 => {
                if let Some(Node::File(id)) = self.model.names.get(&a) {
                    let f = fs.open(bytes, O_APPEND | O_WRONLY, 0).unwrap();
                    let data = pattern(r.next() % 97, 1 + r.below(3000));
                    // The file is open for appending, so the offset must not matter.
                    write_all(&f, &data, 0);
                    self.model.files[*id].extend_from_slice(&data);
                }
            }
            8 if !self.handles.is_empty() => {
                let n = r.below(self.handles.len());
                let (id, f) = &self.handles[n];
                let size = offset(r);
                self.log
                    .push(format!("truncate #{n} (file {id}) to {size}"));
                f.set_len(size as u64).unwrap();
                self.model.files[*id].resize(size, 0);
            }
            9 if !self.handles.is_empty() => {
                let n = r.below(self.handles.len());
                self.log.push(format!("close #{n}"));
                self.handles.swap_remove(n).1.close().unwrap();
            }
            10 | 11 => {
                let b = path(r);
                self.log.push(format!("rename {a} {b}"));
                let expected = self.model.rename(&a, &b);
                let got = fs.rename(bytes, b.as_bytes());
                // If several errors apply, the model doesn't say which one comes first.
                assert_eq!(
                    got.is_ok(),
                    expected.is_ok(),
                    "{got:?}, expected {expected:?}"
                );
            }
            18 => {
                let b = path(r);
                self.log.push(format!("exchange {a} {b}"));
                let expected = self.model.exchange(&a, &b);
                let got = exchange(fs, bytes, b.as_bytes());
                assert_eq!(
                    got.is_ok(),
                    expected.is_ok(),
                    "{got:?}, expected {expected:?}"
                );
                self.look(&a);
                self.look(&b);
            }
            12 => {
                let b = path(r);
                self.log.push(format!("link {a} {b}"));
                let expected = (|| {
                    self.model.reach(&a)?;
                    let node = self.model.names.get(&a).cloned().ok_or(Errno::NOENT)?;
                    self.model.reach(&b)?;
                    match (self.model.names.get(&b), node) {
                        (Some(_), _) => Err(Errno::EXIST),
                        (None, Node::Dir) => Err(Errno::PERM),
                        (None, node) => Ok(node),
                    }
                })();
                let got = fs.link(bytes, b.as_bytes());
                assert_eq!(got, expected.as_ref().map(|_| ()).map_err(|e| *e));
                if let Ok(node) = expected {
                    self.model.names.insert(b, node);
                }
            }
            13 => {
                self.log.push(format!("unlink {a}"));
                let expected = self
                    .model
                    .reach(&a)
                    .and_then(|()| match self.model.names.get(&a) {
                        None => Err(Errno::NOENT),
                        Some(Node::Dir) => Err(Errno::ISDIR),
                        Some(_) => Ok(()),
                    });
                assert_eq!(fs.unlink(bytes), expected);
                if expected.is_ok() {
                    self.model.names.remove(&a);
                }
            }
            14 => {
                self.log.push(format!("mkdir {a}"));
                let expected = self
                    .model
                    .reach(&a)
                    .and_then(|()| match self.model.names.get(&a) {
                        None => Ok(()),
                        Some(_) => Err(Errno::EXIST),
                    });
                let striped =
                    Distribution::Striped(ChunkSize::new(1 << (20 + r.below(2))).unwrap());
                let made = match r.below(4) {
                    0 => fs.mkdir(bytes, 0o755),
                    1 => fs.mkdir_with(bytes, 0o755, Distribution::Local),
                    2 => fs.mkdir_with(bytes, 0o755, Distribution::LocalAll),
                    _ => fs.mkdir_with(bytes, 0o755, striped),
                };
                assert_eq!(made, expected);
                if expected.is_ok() {
                    self.model.names.insert(a, Node::Dir);
                }
            }
            15 => {
                self.log.push(format!("rmdir {a}"));
                let expected = self
                    .model
                    .reach(&a)
                    .and_then(|()| match self.model.names.get(&a) {
                        None => Err(Errno::NOENT),
                        Some(Node::File(_)) => Err(Errno::NOTDIR),
                        Some(Node::Dir) if self.model.has_children(&a) => Err(Errno::NOTEMPTY),
                        Some(Node::Dir) => Ok(()),
                    });
                assert_eq!(fs.rmdir(bytes), expected);
                if expected.is_ok() {
                    self.model.names.remove(&a);
                }
            }
            17 => {
                self.log.push(format!("append {a}"));
                let file = self.model.names.get(&a);
                if let (Ok(()), Some(Node::File(id))) = (self.model.reach(&a), file) {
                    let f = fs.open(bytes, O_WRONLY | O_APPEND, 0).unwrap();
                    let content = &mut self.model.files[*id];
                    let data = pattern(content.len() as u64, 1 + r.below(1_500_000));
                    let (at, n) = (content.len(), data.len());
                    self.log.push(format!("append {a} (file {id}) {at}+{n}"));
                    assert_eq!(f.write_at(&data, 0), Ok(data.len()));
                    content.extend_from_slice(&data);
                    f.close().unwrap();
                    assert!(get(self.view, &a) == *content, "other content");
                }
            }
            16 if !self.handles.is_empty() => {
                let n = r.below(self.handles.len());
                let (id, f) = &self.handles[n];
                self.log.push(format!("read #{n} (file {id})"));
                let content = &self.model.files[*id];
                assert_eq!(f.size(), content.len() as u64);
                let at = offset(r);
                let mut buffer = vec![0xee; 1 + r.below(100_000)];
                let got = f.read_at(&mut buffer, at as u64).unwrap();
                let rest = content.get(at..).unwrap_or(&[]);
                let rest = &rest[..rest.len().min(buffer.len())];
                assert_eq!(got, rest.len());
                assert!(buffer[..got] == *rest, "other bytes at {at}");
                assert_eq!(f.stat().unwrap().nlink, self.model.links(*id));
            }
            _ => self.look(&a),
        }
        if self.handles.len() > 12 {
            self.handles.swap_remove(r.below(12)).1.close().unwrap();
        }
    }

    fn look(&mut self, a: &str) {
        self.log.push(format!("look {a}"));
        let got = self.view.stat(a.as_bytes(), false);
        if let Err(e) = self.model.reach(a) {
            assert_eq!(got, Err(e));
            return;
        }
        match (self.model.names.get(a), got) {
            (None, got) => assert_eq!(got, Err(Errno::NOENT)),
            (Some(Node::Dir), got) => {
                let prefix = format!("{a}/");
                let below =
                    |k: &&String| k.starts_with(&prefix) && !k[prefix.len()..].contains('/');
                let expected: Vec<&String> = self.model.names.keys().filter(below).collect();
                let mut names: Vec<String> = (self.view.list(a.as_bytes()).unwrap().iter())
                    .map(|e| format!("{prefix}{}", String::from_utf8_lossy(&e.name)))
                    .collect();
                names.sort();
                assert!(
                    names.iter().eq(expected.iter().copied()),
                    "{names:?} {expected:?}"
                );
                let dirs = expected.iter().filter(|k| self.model.is_dir(k)).count() as u32;
                assert_eq!(got.unwrap().nlink, 2 + dirs);
            }
            (Some(Node::File(id)), got) => {
                let got = got.unwrap();
                let content = &self.model.files[*id];
                assert_eq!(
                    (got.size, got.nlink),
                    (content.len() as u64, self.model.links(*id))
                );
                assert!(get(self.view, a) == *content, "other content");
            }
        }
    }

    /// Removes everything, names and handles.
    fn clear(&mut self) {
        for (path, node) in self.model.names.iter().rev() {
            match node {
                Node::Dir => self.view.rmdir(path.as_bytes()).unwrap(),
                Node::File(_) => self.view.unlink(path.as_bytes()).unwrap(),
            }
        }
        for (id, f) in self.handles.drain(..) {
            assert!(
                read_all(&f) == self.model.files[id],
                "other content after the last unlink"
            );
            f.close().unwrap();
        }
    }
}

fn seed(name: &str, seed: u64) {
    run(TestPool::with(name, &["memory:96M", "files:DIR:32M"]), seed);
}

fn run(pool: TestPool, seed: u64) {
    let mut run = Run {
        views: vec![&*pool],
        view: &pool,
        model: Model::default(),
        handles: Vec::new(),
        log: Vec::new(),
    };
    steps(&mut run, seed, || pool.assert_whole());
    pool.assert_whole();
    run.clear();
    pool.assert_whole();
    assert_eq!(pool.used(), 0);
    assert_eq!(pool.store().recovery().rebuild_free_space(), Ok(0));
}

/// As [`seed`], on a pool of `n` nodes, one of which does each step. A pool of two nodes has
/// checksums.
fn seed_on_nodes(name: &str, n: u32, seed: u64) {
    let nodes = nodes::Nodes::new(name, n, &["memory:96M", "files:DIR:32M"], 240);
    if n == 2 {
        let root = &nodes.views[0];
        let summed = "integrity=checksum".parse().unwrap();
        root.set_controls(ObjectId::ROOT, summed).unwrap();
    }
    let mut run = Run {
        views: nodes.views.iter().collect(),
        view: &nodes.views[0],
        model: Model::default(),
        handles: Vec::new(),
        log: Vec::new(),
    };
    steps(&mut run, seed, || nodes.assert_whole());
    nodes.assert_whole();
    run.clear();
    drop(run);
    nodes.drop_parts();
    nodes.assert_whole();
    let asked = nodes
        .together
        .asked
        .load(std::sync::atomic::Ordering::SeqCst);
    assert!(asked > 1000, "nodes asked each other only {asked} times");
    assert_eq!(nodes.used(), 0);
    for view in &nodes.views {
        assert_eq!(
            view.cluster().namespace().settle_notes(),
            Ok(0),
            "something is unfinished"
        );
        assert_eq!(view.store().recovery().rebuild_free_space(), Ok(0));
    }
}

fn steps(run: &mut Run<'_>, seed: u64, whole: impl Fn()) {
    let steps: usize = variable("FOREBAY_MODEL_STEPS").unwrap_or(3000);
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for step in 0..steps {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.step(&mut r)));
        if let Err(panic) = done {
            let tail = run.log.split_off(run.log.len().saturating_sub(40));
            eprintln!(
                "seed {seed}, step {step}; the last operations:\n{}",
                tail.join("\n")
            );
            std::panic::resume_unwind(panic);
        }
        // Checks the pool. Several nodes also drop their parts of removed files.
        if step % 500 == 0 {
            whole();
        }
    }
}

fn variable(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

fn get(fs: &Fs, path: &str) -> Vec<u8> {
    read_all(&fs.open(path.as_bytes(), O_RDONLY, 0).unwrap())
}

#[test]
fn two_nodes() {
    seed_on_nodes("model-two", 2, 1);
}

#[test]
fn several_nodes() {
    for n in 0..variable("FOREBAY_MODEL_SEEDS").unwrap_or(1) as u64 {
        seed_on_nodes("model-several", 4, 2 + n);
    }
}

#[test]
fn seed_1() {
    seed("model-1", 1);
}

#[test]
fn seed_2() {
    seed("model-2", 2);
}

#[test]
fn seed_3_with_checksums() {
    let media = ["memory:96M", "files:DIR:32M"];
    run(TestPool::summed("model-3", &media, 120), 3);
}

#[test]
fn more_seeds() {
    for n in 0..variable("FOREBAY_MODEL_SEEDS").unwrap_or(1) as u64 {
        seed("model-more", 4 + n);
    }
}
