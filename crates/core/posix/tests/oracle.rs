//! Several processes at once do random operations, are killed at random, and are compared with an
//! oracle.
//!
//! Each process has its own names in directories that all share. A process's operations follow from
//! a seed. So after a kill the number of finished operations determines the expected state: the one
//! after that many operations, or after one more. `FOREBAY_ORACLE_SECONDS` makes the test longer
//! (default 5).

mod support;

use forebay_posix::{Errno, Fs};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use support::*;

const WORKERS: u64 = 4;

/// Not a test: the code of the other processes.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((_, a, fs)) = worker_role() else {
        return;
    };
    // The file isn't created here, but contains 0 already, which is right if the process is killed
    // at this point.
    let counter = std::fs::File::options().write(true).open(&a[0]).unwrap();
    let (who, seed) = (a[1].parse().unwrap(), a[2].parse().unwrap());
    let mut script = Script::new(who, seed);
    for n in 1u64.. {
        let call = script.next();
        let result = carry_out(&fs, &call);
        assert_eq!(
            result,
            script.model.apply(&call),
            "seed {seed}, operation {n}: {call:?}"
        );
        counter.write_all_at(&n.to_le_bytes(), 0).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Call {
    Write(String, usize, u64, usize),
    Append(String, u64, usize),
    Truncate(String, usize),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    Read(String),
}

type Result<T> = std::result::Result<T, Errno>;

/// The expected names and contents.
#[derive(Clone, Default, PartialEq)]
struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
}

impl Model {
    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>> {
        let id = *self.names.get(path).ok_or(Errno::NOENT)?;
        Ok(&mut self.files[id])
    }

    /// Carries out a call. Returns the number of bytes read; 0 for calls that read nothing.
    fn apply(&mut self, call: &Call) -> Result<usize> {
        match call {
            Call::Write(path, at, seed, len) => {
                if !self.names.contains_key(path) {
                    self.files.push(Vec::new());
                    self.names.insert(path.clone(), self.files.len() - 1);
                }
                let file = self.file(path)?;
                file.resize(file.len().max(at + len), 0);
                file[*at..at + len].copy_from_slice(&pattern(*seed, *len));
            }
            Call::Append(path, seed, len) => {
                let bytes = pattern(*seed, *len);
                self.file(path)?.extend_from_slice(&bytes);
            }
            Call::Truncate(path, len) => self.file(path)?.resize(*len, 0),
            Call::Rename(from, to) => {
                let id = *self.names.get(from).ok_or(Errno::NOENT)?;
                // For two names of one file, rename does nothing.
                if self.names.get(to) != Some(&id) {
                    self.names.remove(from);
                    let replaced = self.names.insert(to.clone(), id);
                    self.forget(replaced);
                }
            }
            Call::Link(from, to) => {
                let id = *self.names.get(from).ok_or(Errno::NOENT)?;
                if self.names.contains_key(to) {
                    return Err(Errno::EXIST);
                }
                self.names.insert(to.clone(), id);
            }
            Call::Unlink(path) => {
                let id = self.names.remove(path).ok_or(Errno::NOENT)?;
                self.forget(Some(id));
            }
            Call::Read(path) => return Ok(self.file(path)?.len()),
        }
        Ok(0)
    }

    /// Frees the content of a file that may have lost its last name.
    fn forget(&mut self, id: Option<usize>) {
        if let Some(id) = id.filter(|id| !self.names.values().any(|n| n == id)) {
            self.files[id] = Vec::new();
        }
    }

    /// All names with their contents.
    fn state(&self) -> BTreeMap<&str, &[u8]> {
        self.names
            .iter()
            .map(|(p, id)| (p.as_str(), &self.files[*id][..]))
            .collect()
    }
}

fn carry_out(fs: &Fs, call: &Call) -> Result<usize> {
    let open = |path: &str, flags| fs.open(path.as_bytes(), flags, 0o600);
    match call {
        Call::Write(path, at, seed, len) => {
            let f = open(path, O_CREAT | O_WRONLY)?;
            write_all(&f, &pattern(*seed, *len), *at as u64);
            f.close()?;
        }
        Call::Append(path, seed, len) => {
            let f = open(path, O_APPEND | O_WRONLY)?;
            write_all(&f, &pattern(*seed, *len), 0);
            f.close()?;
        }
        Call::Truncate(path, len) => {
            let f = open(path, O_RDWR)?;
            f.set_len(*len as u64)?;
            f.close()?;
        }
        Call::Rename(from, to) => fs.rename(from.as_bytes(), to.as_bytes())?,
        Call::Link(from, to) => fs.link(from.as_bytes(), to.as_bytes())?,
        Call::Unlink(path) => fs.unlink(path.as_bytes())?,
        Call::Read(path) => return Ok(read_all(&open(path, O_RDONLY)?).len()),
    }
    Ok(0)
}

/// The operations of one process, and their results.
struct Script {
    who: u64,
    random: Random,
    model: Model,
}

impl Script {
    fn new(who: u64, seed: u64) -> Script {
        Script {
            who,
            random: Random(seed),
            model: Model::default(),
        }
    }

    fn path(&mut self) -> String {
        format!(
            "/d{}/w{}-{}",
            self.random.below(3),
            self.who,
            self.random.below(6)
        )
    }

    fn next(&mut self) -> Call {
        let (a, b) = (self.path(), self.path());
        let r = &mut self.random;
        let at = [0, r.below(900), r.below(20_000), (1 << 20) - r.below(3000)][r.below(4)];
        let len = 1 + [r.below(40), r.below(900), r.below(9000), r.below(80_000)][r.below(4)];
        match r.below(12) {
            0..=2 => Call::Write(a, at, r.next() % 97, len),
            3 => Call::Append(a, r.next() % 97, len),
            4 => Call::Truncate(a, at),
            5..=7 => Call::Rename(a, b),
            8 => Call::Link(a, b),
            9 => Call::Unlink(a),
            _ => Call::Read(a),
        }
    }
}

/// Whether the state matches `before` or, with one more operation, `after`. All names must be those
/// of `before`, or all those of `after`. Each file's size, and each byte, must be as in one of the
/// two.
fn fits(there: &BTreeMap<String, Vec<u8>>, before: &Model, after: &Model) -> bool {
    let (before, after) = (before.state(), after.state());
    let same_names =
        |m: &BTreeMap<&str, &[u8]>| there.keys().map(String::as_str).eq(m.keys().copied());
    (same_names(&before) || same_names(&after))
        && there.iter().all(|(path, bytes)| {
            let (a, b) = (before.get(path.as_str()), after.get(path.as_str()));
            let one = |i: usize, c: u8| {
                [a, b]
                    .iter()
                    .flatten()
                    .any(|m| m.get(i).copied().unwrap_or(0) == c)
            };
            // A new file may exist before its first bytes are written.
            let empty = a.is_none() && bytes.is_empty();
            empty
                || [a, b].iter().flatten().any(|m| m.len() == bytes.len())
                    && bytes.iter().enumerate().all(|(i, c)| one(i, *c))
        })
}

#[test]
fn killed_processes_have_done_what_they_said_and_no_more() {
    let seconds = std::env::var("FOREBAY_ORACLE_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(5);
    let pool = TestPool::limited("oracle", &["memory:96M", "files:DIR:96M"], seconds + 100);
    for d in 0..3 {
        pool.mkdir(format!("/d{d}").as_bytes(), 0o755).unwrap();
    }
    let mut r = Random(u64::from(std::process::id()) << 8 | 1);
    let dir = pool.pool().dir().with_extension("counts");
    std::fs::create_dir_all(&dir).unwrap();
    let start = |who: u64, seed: u64| {
        let counter = dir.join(who.to_string());
        std::fs::write(&counter, [0; 8]).unwrap();
        (
            seed,
            pool.worker_for(
                "worker",
                &format!("{} {who} {seed}", counter.display()),
                seconds + 60,
            ),
        )
    };
    let mut workers: Vec<(u64, Worker)> = (0..WORKERS).map(|w| start(w, r.next() | 1)).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut kills, mut calls) = (0, 0);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_micros(r.below(80_000) as u64));
        let who = r.below(WORKERS as usize);
        let (seed, worker) = workers.remove(who);
        worker.kill();
        kills += 1;
        pool.store().recovery().reap().unwrap();
        let mut n = [0; 8];
        std::fs::File::open(dir.join(who.to_string()))
            .unwrap()
            .read_exact_at(&mut n, 0)
            .unwrap();
        let done = u64::from_le_bytes(n);
        calls += done;
        let mut script = Script::new(who as u64, seed);
        for _ in 0..done {
            let call = script.next();
            let _ = script.model.apply(&call);
        }
        let before = script.model.clone();
        let last = script.next();
        let _ = script.model.apply(&last);
        let mut there = BTreeMap::new();
        let own = format!("w{who}-");
        for d in 0..3 {
            for e in pool.list(format!("/d{d}").as_bytes()).unwrap() {
                let name = String::from_utf8(e.name).unwrap();
                if name.starts_with(&own) {
                    let path = format!("/d{d}/{name}");
                    there.insert(path.clone(), pool.get(&path));
                }
            }
        }
        assert!(
            fits(&there, &before, &script.model),
            "seed {seed}, process {who}: after {done} operations, perhaps {last:?}: {:?}, but {:?}",
            there.iter().map(|(p, b)| (p, b.len())).collect::<Vec<_>>(),
            before
                .state()
                .iter()
                .map(|(p, b)| (*p, b.len()))
                .collect::<Vec<_>>()
        );
        if kills % 10 == 0 {
            pool.assert_whole_online();
        }
        for path in there.keys() {
            pool.unlink(path.as_bytes()).unwrap();
        }
        workers.insert(who, start(who as u64, r.next() | 1));
    }
    for (_, w) in workers {
        w.kill();
    }
    pool.store().recovery().reap().unwrap();
    pool.assert_whole();
    let _ = std::fs::remove_dir_all(dir);
    eprintln!("{kills} kills, {calls} operations checked");
}
