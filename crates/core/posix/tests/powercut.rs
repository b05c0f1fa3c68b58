//! Losses of power: random operations on a pool of `files` media, and at random instants a copy of
//! the disk in a state that a loss of power could leave (see `support/disk.rs`). The pool that is
//! opened from the copy must be consistent, must have everything that was synced, and must show no
//! byte of another file in a file.
//!
//! The tests expect more of names than POSIX requires: all names must be as after some operation,
//! not older than the last successful sync of any file. Each byte of a file must be as in some
//! version of the file, not older than the file's last sync.
//!
//! `FOREBAY_CUT_SEEDS` and `FOREBAY_CUT_STEPS` make the test longer. A failure prints the seed.

#[path = "support/disk.rs"]
mod disk;
#[path = "support/left.rs"]
mod left;
mod support;

use disk::Disk;
use forebay_posix::{Errno, Fs};
use left::{Left, medium_dir, tree};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use support::*;

const MEDIUM: &str = "files:DIR:6M";
/// Bytes of the journal after which a checkpoint is due: few, so that checkpoints are frequent.
const BOUND: u64 = 60 << 10;

type Id = usize;
type Names = BTreeMap<String, Option<Id>>;

/// The model: the present state, and what a loss of power may leave.
struct Model {
    /// Present names. Directories have no id.
    names: Names,
    /// States of the names since the last sync.
    history: VecDeque<Names>,
    /// By file: its versions since its last sync, the oldest first.
    versions: Vec<Vec<Vec<u8>>>,
    /// States of the names, and versions of files, that a sync of the present step has made
    /// outdated; such states are still allowed if power is lost during the step.
    recent: (VecDeque<Names>, Vec<(Id, Vec<u8>)>),
}

impl Model {
    fn now(&mut self, id: Id) -> &mut Vec<Vec<u8>> {
        &mut self.versions[id]
    }

    fn content(&self, id: Id) -> &Vec<u8> {
        self.versions[id].last().unwrap()
    }

    fn note(&mut self) {
        self.history.push_back(self.names.clone());
    }

    /// Records that all names are durable, and the content of the files `ids`.
    fn synced(&mut self, ids: &[Id]) {
        self.recent.0.append(&mut self.history);
        self.note();
        for &id in ids {
            let last = self.versions[id].pop().unwrap();
            let old = std::mem::replace(&mut self.versions[id], vec![last]);
            self.recent.1.extend(old.into_iter().map(|v| (id, v)));
        }
    }

    fn files(&self) -> Vec<(String, Id)> {
        let file = |(n, id): (&String, &Option<Id>)| id.map(|id| (n.clone(), id));
        self.names.iter().filter_map(file).collect()
    }

    fn dirs(&self) -> Vec<String> {
        let mut dirs = vec![String::new()];
        dirs.extend(
            self.names
                .iter()
                .filter(|(_, id)| id.is_none())
                .map(|(n, _)| n.clone()),
        );
        dirs
    }
}

struct Run {
    random: Random,
    model: Model,
    serial: u64,
}

/// The last operations, printed if the test fails.
static TRAIL: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

impl Run {
    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random.below(from.len())].clone())
    }

    fn path(&mut self) -> String {
        let dirs = self.model.dirs();
        let dir = self.pick(&dirs).unwrap();
        format!("{dir}/{}", self.random.below(6))
    }

    fn bytes(&mut self) -> Vec<u8> {
        self.serial += 1;
        let len = match self.random.below(6) {
            0 => self.random.below(10),
            1 | 2 => self.random.below(1500),
            3 => self.random.below(20_000),
            4 => 4096 * self.random.below(5),
            _ => self.random.below(90_000),
        };
        // Nearly all bytes of a write are unlike those of other writes.
        let mut r = Random(self.serial * 0x9e37_79b9_7f4a_7c15 + 1);
        (0..len).map(|_| (r.next() >> 40) as u8 | 1).collect()
    }

    fn step(&mut self, fs: &Fs) -> bool {
        let what = self.random.below(20);
        let files = self.model.files();
        match what {
            0..=3 => {
                let path = self.path();
                if self.model.names.get(&path) == Some(&None) {
                    return true;
                }
                let bytes = self.bytes();
                self.log(format!("create {path} {}", bytes.len()));
                let truncates = self.model.names.contains_key(&path);
                let f = fs.open(path.as_bytes(), O_CREAT | O_TRUNC | O_WRONLY, 0o600);
                let f = match f {
                    Ok(f) => f,
                    Err(Errno::NOSPC) => return true,
                    Err(e) => panic!("{path}: {e}"),
                };
                let id = match self.model.names.get(&path) {
                    Some(&id) => id.unwrap(),
                    None => {
                        self.model.versions.push(vec![Vec::new()]);
                        let id = self.model.versions.len() - 1;
                        self.model.names.insert(path.clone(), Some(id));
                        id
                    }
                };
                if truncates {
                    self.model.now(id).push(Vec::new());
                }
                self.model.note();
                self.write(&f, id, 0, &bytes);
                if self.random.below(4) == 0 {
                    self.sync(&f, id);
                }
                f.close().unwrap();
            }
            4..=8 => {
                let Some((path, id)) = self.pick(&files) else {
                    return true;
                };
                let f = fs.open(path.as_bytes(), O_RDWR, 0).unwrap();
                let size = self.model.content(id).len();
                let bytes = self.bytes();
                let at = match self.random.below(3) {
                    0 => size,
                    1 => self.random.below(size + 1),
                    _ => self.random.below(size + 20_000),
                };
                match self.random.below(6) {
                    0 => {
                        let to = self.random.below(size * 2 + 2);
                        self.log(format!("truncate {path} {size} to {to}"));
                        f.set_len(to as u64).unwrap();
                        let mut new = self.model.content(id).clone();
                        new.resize(to, 0);
                        self.model.now(id).push(new);
                    }
                    _ => {
                        self.log(format!("write {path} at {at} {}", bytes.len()));
                        self.write(&f, id, at, &bytes);
                    }
                }
                if self.random.below(3) == 0 {
                    self.sync(&f, id);
                }
                if self.random.below(3) == 0 {
                    let again = self.bytes();
                    let at = self.random.below(5000);
                    self.log(format!("write {path} at {at} {}", again.len()));
                    self.write(&f, id, at, &again);
                }
                f.close().unwrap();
            }
            9 | 10 => {
                let Some((path, id)) = self.pick(&files) else {
                    return true;
                };
                let f = fs.open(path.as_bytes(), O_RDWR, 0).unwrap();
                self.sync(&f, id);
                f.close().unwrap();
            }
            11 | 12 => {
                let Some((path, _)) = self.pick(&files) else {
                    return true;
                };
                self.log(format!("unlink {path}"));
                fs.unlink(path.as_bytes()).unwrap();
                self.model.names.remove(&path);
                self.model.note();
            }
            13..=15 => {
                let Some((from, id)) = self.pick(&files) else {
                    return true;
                };
                let to = self.path();
                if self.model.names.get(&to) == Some(&None) {
                    return true;
                }
                self.log(format!("rename {from} {to}"));
                fs.rename(from.as_bytes(), to.as_bytes()).unwrap();
                if self.model.names.get(&to) != Some(&Some(id)) {
                    self.model.names.remove(&from);
                    self.model.names.insert(to, Some(id));
                }
                self.model.note();
            }
            16 => {
                let path = self.path();
                if self.model.names.contains_key(&path) || path.len() > 6 {
                    return true;
                }
                self.log(format!("mkdir {path}"));
                fs.mkdir(path.as_bytes(), 0o700).unwrap();
                self.model.names.insert(path, None);
                self.model.note();
            }
            17 => {
                let dirs = self.model.dirs();
                let dir = self.pick(&dirs).unwrap();
                match self.random.below(3) {
                    0 => {
                        self.log(format!("sync all {dir}"));
                        fs.store().durability().sync_all().unwrap();
                        let all: Vec<Id> = (0..self.model.versions.len()).collect();
                        self.model.synced(&all);
                    }
                    _ => {
                        self.log("sync names".into());
                        fs.store().durability().sync_entries().unwrap();
                        self.model.synced(&[]);
                    }
                }
            }
            18 => {
                let Some((from, id)) = self.pick(&files) else {
                    return true;
                };
                let to = self.path();
                if self.model.names.contains_key(&to) {
                    return true;
                }
                self.log(format!("link {from} {to}"));
                fs.link(from.as_bytes(), to.as_bytes()).unwrap();
                self.model.names.insert(to, Some(id));
                self.model.note();
            }
            _ => {
                // A periodic task of the keeper.
                self.log("keeper".into());
                fs.store().durability().end_limbo().unwrap();
                self.model.synced(&[]);
                if self.random.below(3) == 0 {
                    fs.store().durability().checkpoint().unwrap();
                }
            }
        }
        true
    }

    fn log(&mut self, what: String) {
        let mut trail = TRAIL.lock().unwrap();
        trail.push_back(what);
        if trail.len() > 40 {
            trail.pop_front();
        }
    }

    fn write(&mut self, f: &forebay_posix::File<'_>, id: Id, at: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            match f.write_at(&bytes[done..], (at + done) as u64) {
                Ok(n) => done += n,
                Err(Errno::NOSPC) => break,
                Err(e) => panic!("write: {e}"),
            }
        }
        if done > 0 {
            let mut new = self.model.content(id).clone();
            new.resize(new.len().max(at + done), 0);
            new[at..at + done].copy_from_slice(&bytes[..done]);
            self.model.now(id).push(new);
        }
    }

    fn sync(&mut self, f: &forebay_posix::File<'_>, id: Id) {
        self.log(format!("sync {id}"));
        f.sync().unwrap();
        self.model.synced(&[id]);
    }

    /// Compares the state after the loss of power with the model.
    fn compare(&self, fs: &Fs) {
        let findings = forebay_store::fsck::check(fs.store()).unwrap();
        assert!(findings.is_empty(), "not whole: {findings:#?}");
        let found = tree(fs);
        // The names found have no file ids: a state of the model's names that fits determines them.
        let fits = |names: &&Names| {
            names.len() == found.len()
                && names
                    .iter()
                    .all(|(n, id)| found.get(n).is_some_and(|f| f.is_some() == id.is_some()))
        };
        let mut candidates: Vec<&Names> = self
            .model
            .recent
            .0
            .iter()
            .chain(&self.model.history)
            .filter(fits)
            .collect();
        candidates.dedup();
        assert!(
            !candidates.is_empty(),
            "names of no moment since the last sync: {:?}\nnow: {:?}",
            found.keys(),
            self.model.names
        );
        let mut why = String::new();
        let fit = candidates.into_iter().rev().any(|names| {
            names.iter().all(|(name, id)| {
                let (Some(id), Some(Some(bytes))) = (id, found.get(name)) else {
                    return true;
                };
                let old = self.model.recent.1.iter().filter(|(of, _)| of == id);
                let versions = old.map(|(_, v)| v).chain(&self.model.versions[*id]);
                let wrong = wrong(bytes, &versions.collect::<Vec<_>>());
                if let Some(wrong) = &wrong {
                    why += &format!("{name} (file {id}): {wrong}\n");
                }
                wrong.is_none()
            })
        });
        assert!(fit, "{why}");
    }
}

/// Why these bytes can't be a mixture of these versions of a file; None if they can.
fn wrong(bytes: &[u8], versions: &[&Vec<u8>]) -> Option<String> {
    if !versions.iter().any(|v| v.len() == bytes.len()) {
        let sizes: Vec<usize> = versions.iter().map(|v| v.len()).collect();
        return Some(format!("size {}, not one of {sizes:?}", bytes.len()));
    }
    let at = bytes.iter().enumerate().position(|(i, b)| {
        // Behind the end of a version there are zeros.
        !versions
            .iter()
            .any(|v| v.get(i).copied().unwrap_or(0) == *b)
    })?;
    let then: Vec<Option<&u8>> = versions.iter().map(|v| v.get(at)).collect();
    let mut text = format!(
        "byte {at} of {} is {}, not {then:?}",
        bytes.len(),
        bytes[at]
    );
    let bad = bytes.iter().enumerate().filter(|(i, b)| {
        !versions
            .iter()
            .any(|v| v.get(*i).copied().unwrap_or(0) == **b)
    });
    text += &format!("; {} wrong bytes", bad.count());
    Some(text)
}

fn run(seed: u64, steps: usize) {
    let name = format!("cut{seed}");
    let pool = match seed % 2 {
        0 => TestPool::summed(&name, &[MEDIUM], 120),
        _ => TestPool::with(&name, &[MEDIUM]),
    };
    pool.store().durability().change_journal_bound(BOUND);
    pool.store().durability().checkpoint().unwrap();
    let dir = medium_dir(pool.pool());
    let base = dir.parent().unwrap().to_owned();
    let disk = Disk::new(&dir, seed * 77 + 1);
    let mut names = VecDeque::new();
    names.push_back(Names::new());
    let mut run = Run {
        random: Random(seed * 0x1234_5678_9abc_def1 + 1),
        model: Model {
            names: Names::new(),
            history: names,
            versions: Vec::new(),
            recent: Default::default(),
        },
        serial: seed << 32,
    };
    TRAIL.lock().unwrap().clear();
    let _report = Report(seed);
    for step in 0..steps {
        if run.random.below(4) == 0 {
            disk.look();
        }
        run.model.recent = Default::default();
        let copy = format!("{name}c");
        let to = base.join(
            dir.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .replace(&name, &copy),
        );
        // Power is lost in the middle of an operation's sync, or between two operations.
        let trapped = run.random.below(12) == 0;
        if trapped {
            disk.trap(run.random.below(5) as u32, &to);
        }
        run.step(&pool);
        let sprung = trapped && !disk.untrap();
        if !sprung && run.random.below(15) == 0 {
            disk.torn_copy(&to);
        } else if !sprung {
            continue;
        }
        run.log(format!("cut at {step}"));
        if !sprung {
            run.model.recent = Default::default();
        }
        check_left(&mut run, Left::open(to, &name, &base, &copy));
    }
    disk.close();
    pool.assert_whole();
}

fn check_left(run: &mut Run, left: Left) {
    run.compare(left.fs());
    let first = tree(left.fs());
    if run.random.below(3) == 0 {
        // Power is lost again, while the pool is being opened: nothing may be lost.
        let text = &left.name;
        let copy = format!("{text}d");
        let file = left
            .dir
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .replace(text, &copy);
        let to = left.dir.parent().unwrap().join(file);
        let disk = Disk::new(&left.dir, run.random.next());
        left.fs().store().durability().sync_all().unwrap();
        disk.torn_copy(&to);
        disk.close();
        let base = left.dir.parent().unwrap().to_owned();
        let again = Left::open(to, &left.name, &base, &copy);
        assert!(
            tree(again.fs()) == first,
            "another loss of power changed something"
        );
    }
    // The pool continues to work: files grow with zeros, and new files take no pages of others.
    for (path, bytes) in &first {
        let Some(bytes) = bytes else { continue };
        let f = left.fs().open(path.as_bytes(), O_RDWR, 0).unwrap();
        f.set_len(bytes.len() as u64 + 6000).unwrap();
        let got = read_all(&f);
        assert!(got[..bytes.len()] == bytes[..], "{path} has changed");
        let dirt = got[bytes.len()..].iter().filter(|&&b| b != 0).count();
        assert_eq!(dirt, 0, "{path}: bytes behind the end of {}", bytes.len());
        f.set_len(bytes.len() as u64).unwrap();
    }
    for i in 0..20 {
        match left
            .fs()
            .open(format!("/new{i}").as_bytes(), O_CREAT | O_WRONLY, 0o600)
        {
            Ok(f) => _ = f.write_at(&pattern(i, 9000), 0),
            Err(e) => assert_eq!(e, Errno::NOSPC),
        }
    }
    let mut now = tree(left.fs());
    now.retain(|n, _| !n.starts_with("/new"));
    assert!(now == first, "new files have changed old ones");
    let findings = forebay_store::fsck::check(left.fs().store()).unwrap();
    assert!(
        findings.is_empty(),
        "not whole after going on: {findings:#?}"
    );
}

/// Prints the seed and the last operations if the test fails.
struct Report(u64);

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}; the last operations:", self.0);
            let trail = TRAIL.lock().unwrap();
            trail.iter().for_each(|t| eprintln!("  {t}"));
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |s| s.parse().unwrap())
}

#[test]
fn what_was_synced_survives_a_loss_of_power() {
    let (seeds, steps) = (
        number("FOREBAY_CUT_SEEDS", 2),
        number("FOREBAY_CUT_STEPS", 250),
    );
    let first = number("FOREBAY_CUT_FIRST", 1);
    for seed in first..first + seeds {
        run(seed, steps as usize);
    }
}

#[test]
fn a_failed_sync_is_not_forgotten() {
    let pool = TestPool::with("fails", &[MEDIUM]);
    let disk = Disk::new(&medium_dir(pool.pool()), 1);
    pool.put("/old", &[1; 5000]);
    let f = pool.open(b"/old", O_RDWR, 0).unwrap();
    f.sync().unwrap();
    write_all(&f, &[2; 5000], 0);
    disk.fail(true);
    assert_eq!(f.sync(), Err(Errno::IO));
    disk.fail(false);
    // The kernel would report success now, but the data of the failed sync may be lost.
    assert_eq!(f.sync(), Err(Errno::IO));
    assert_eq!(pool.store().durability().sync_all(), Err(Errno::IO));
    assert_eq!(pool.store().durability().sync_entries(), Err(Errno::IO));
    // The pool continues to work, but reuses no pages, and so fills up.
    f.close().unwrap();
    pool.put("/new", &[3; 5000]);
    assert_eq!(pool.get("/old"), [2; 5000]);
    pool.unlink(b"/old").unwrap();
    assert_eq!(pool.get("/new"), [3; 5000]);
    pool.assert_whole();
    disk.close();
}
