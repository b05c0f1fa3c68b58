//! Runs two operations over several nodes, the second in the middle of the first: before and after
//! each request that the first one's node sends. The results of both, and the state afterwards,
//! must be those of a local file system that carries the two out one after the other, in either
//! order.
//!
//! The local file system is tmpfs. Testing all pairs of operations at all requests takes too long
//! for every day. So the pairs are tested in random order for FOREBAY_BETWEEN_SECONDS (0: all of
//! them). With FOREBAY_BETWEEN_ONLY=WORD, only pairs with that word are tested.

mod support;

use forebay_posix::{Errno, Fs, RenameMode};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};
use support::nodes::{Between, Nodes, end_between, set_between};
use support::*;

/// Paths of all objects. For objects other than directories, also content and number of links.
type Seen = BTreeMap<String, Option<(String, u64)>>;

/// Where operations are carried out: a directory of a pool, or of tmpfs.
trait Place {
    fn rename(&self, from: &str, to: &str) -> Result<(), Errno>;
    /// Renames without replacing.
    fn rename_new(&self, from: &str, to: &str) -> Result<(), Errno>;
    fn exchange(&self, one: &str, other: &str) -> Result<(), Errno>;
    fn link(&self, from: &str, to: &str) -> Result<(), Errno>;
    fn unlink(&self, path: &str) -> Result<(), Errno>;
    fn create(&self, path: &str) -> Result<(), Errno>;
    fn put(&self, path: &str, content: &[u8]);
    fn mkdir(&self, path: &str) -> Result<(), Errno>;
    fn rmdir(&self, path: &str) -> Result<(), Errno>;
    fn look(&self) -> Seen;
}

struct InPool<'a> {
    fs: &'a Fs,
    dir: String,
}

impl InPool<'_> {
    fn path(&self, path: &str) -> Vec<u8> {
        format!("{}/{path}", self.dir).into_bytes()
    }
}

impl InPool<'_> {
    /// Paths of all objects in order, found by listings only.
    fn list(&self) -> Vec<String> {
        let mut seen = Vec::new();
        let mut todo = vec![String::new()];
        while let Some(dir) = todo.pop() {
            // An entry that is removed meanwhile isn't listed.
            for e in self.fs.list(&self.path(&dir)).unwrap_or_default() {
                let path = format!("{dir}{}", String::from_utf8_lossy(&e.name));
                if e.kind == libc::S_IFDIR {
                    todo.push(format!("{path}/"));
                }
                seen.push(path);
            }
        }
        seen.sort();
        seen
    }
}

impl Place for InPool<'_> {
    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        self.fs.rename(&self.path(from), &self.path(to))
    }
    fn rename_new(&self, from: &str, to: &str) -> Result<(), Errno> {
        rename_with(
            self.fs,
            &self.path(from),
            &self.path(to),
            RenameMode::NoReplace,
        )
    }
    fn exchange(&self, one: &str, other: &str) -> Result<(), Errno> {
        exchange(self.fs, &self.path(one), &self.path(other))
    }
    fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        self.fs.link(&self.path(from), &self.path(to))
    }
    fn unlink(&self, path: &str) -> Result<(), Errno> {
        self.fs.unlink(&self.path(path))
    }
    fn create(&self, path: &str) -> Result<(), Errno> {
        let flags = O_CREAT | O_EXCL | O_RDWR;
        self.fs.open(&self.path(path), flags, 0o600)?.close()
    }
    fn put(&self, path: &str, content: &[u8]) {
        let f = self
            .fs
            .open(&self.path(path), O_CREAT | O_RDWR, 0o600)
            .unwrap();
        write_all(&f, content, 0);
        f.close().unwrap();
        // The index of attributes must be updated, too.
        let path = self.path(path);
        self.fs.set_xattr(&path, b"user.k", b"v", true).unwrap();
    }
    fn mkdir(&self, path: &str) -> Result<(), Errno> {
        self.fs.mkdir(&self.path(path), 0o700)
    }
    fn rmdir(&self, path: &str) -> Result<(), Errno> {
        self.fs.rmdir(&self.path(path))
    }
    fn look(&self) -> Seen {
        let mut seen = Seen::new();
        let mut todo = vec![String::new()];
        while let Some(dir) = todo.pop() {
            // An entry that is removed meanwhile isn't listed.
            for e in self.fs.list(&self.path(&dir)).unwrap_or_default() {
                let path = format!("{dir}{}", String::from_utf8_lossy(&e.name));
                if e.kind == libc::S_IFDIR {
                    seen.insert(path.clone(), None);
                    todo.push(format!("{path}/"));
                } else if let Ok(stat) = self.fs.stat(&self.path(&path), false)
                    && let Ok(file) = self.fs.open(&self.path(&path), O_RDONLY, 0)
                {
                    let content = String::from_utf8(read_all(&file)).unwrap();
                    seen.insert(path, Some((content, u64::from(stat.nlink))));
                }
            }
        }
        seen
    }
}

struct OnTmpfs(PathBuf);

impl OnTmpfs {
    fn new(name: &str) -> OnTmpfs {
        let dir = format!("/dev/shm/forebay-between-{}-{name}", std::process::id());
        std::fs::create_dir(&dir).unwrap();
        OnTmpfs(dir.into())
    }
    fn path(&self, path: &str) -> CString {
        CString::new(format!("{}/{path}", self.0.display())).unwrap()
    }
    fn rename_with(&self, from: &str, to: &str, how: libc::c_uint) -> Result<(), Errno> {
        let (from, to, at) = (self.path(from), self.path(to), libc::AT_FDCWD);
        // SAFETY: both paths are C strings that outlive the call.
        checked(unsafe { libc::renameat2(at, from.as_ptr(), at, to.as_ptr(), how) })
    }
}

impl Drop for OnTmpfs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The result of a call of libc.
fn checked(result: libc::c_int) -> Result<(), Errno> {
    match result {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

impl Place for OnTmpfs {
    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        // SAFETY: both paths are C strings that live until the call ends.
        checked(unsafe { libc::rename(self.path(from).as_ptr(), self.path(to).as_ptr()) })
    }
    fn rename_new(&self, from: &str, to: &str) -> Result<(), Errno> {
        self.rename_with(from, to, libc::RENAME_NOREPLACE)
    }
    fn exchange(&self, one: &str, other: &str) -> Result<(), Errno> {
        self.rename_with(one, other, libc::RENAME_EXCHANGE)
    }
    fn link(&self, from: &str, to: &str) -> Result<(), Errno> {
        // SAFETY: both paths are C strings that live until the call ends.
        checked(unsafe { libc::link(self.path(from).as_ptr(), self.path(to).as_ptr()) })
    }
    fn unlink(&self, path: &str) -> Result<(), Errno> {
        // SAFETY: the path is a C string that lives until the call ends.
        checked(unsafe { libc::unlink(self.path(path).as_ptr()) })
    }
    fn create(&self, path: &str) -> Result<(), Errno> {
        let flags = O_CREAT | O_EXCL | O_RDWR;
        // SAFETY: the path is a C string that lives until the call ends.
        let fd = unsafe { libc::open(self.path(path).as_ptr(), flags, 0o600) };
        checked(fd)?;
        // SAFETY: the descriptor was just opened, and nothing else has it.
        checked(unsafe { libc::close(fd) })
    }
    fn put(&self, path: &str, content: &[u8]) {
        std::fs::write(self.0.join(path), content).unwrap();
    }
    fn mkdir(&self, path: &str) -> Result<(), Errno> {
        // SAFETY: the path is a C string that lives until the call ends.
        checked(unsafe { libc::mkdir(self.path(path).as_ptr(), 0o700) })
    }
    fn rmdir(&self, path: &str) -> Result<(), Errno> {
        // SAFETY: the path is a C string that lives until the call ends.
        checked(unsafe { libc::rmdir(self.path(path).as_ptr()) })
    }
    fn look(&self) -> Seen {
        fn into(seen: &mut Seen, top: &Path, dir: &Path) {
            for e in std::fs::read_dir(dir).unwrap() {
                let path = e.unwrap().path();
                let name = path.strip_prefix(top).unwrap().display().to_string();
                let meta = path.symlink_metadata().unwrap();
                assert!(!meta.file_type().is_socket());
                if meta.is_dir() {
                    seen.insert(name, None);
                    into(seen, top, &path);
                } else {
                    seen.insert(
                        name,
                        Some((std::fs::read_to_string(&path).unwrap(), meta.nlink())),
                    );
                }
            }
        }
        let mut seen = Seen::new();
        into(&mut seen, &self.0, &self.0);
        seen
    }
}

/// Makes the state before the operations.
fn prepare(at: &dyn Place) {
    at.put("a", b"first");
    at.put("b", b"second");
    at.link("a", "c").unwrap();
    at.mkdir("d").unwrap();
    at.mkdir("e").unwrap();
    at.put("e/f", b"inside");
}

const OPERATIONS: [&str; 46] = [
    "rename a b",
    "rename a n",
    "rename b a",
    "rename b c",
    "rename b d/n",
    "rename a c",
    "rename c n",
    "rename n b",
    "rename b b",
    "rename e/f b",
    "rename e/f d/n",
    "rename b e/f",
    "rename d n",
    "rename e d",
    "rename d e",
    "rename-new a n",
    "rename-new b n",
    "rename-new a b",
    "rename-new c a",
    "rename-new e/f n",
    "rename-new d n",
    "rename-new d e",
    "rename-new e a",
    "exchange a b",
    "exchange c a",
    "exchange b n",
    "exchange b b",
    "exchange e/f b",
    "exchange b d",
    "exchange d e",
    "exchange d e/f",
    "exchange e e/f",
    "unlink a",
    "unlink b",
    "unlink n",
    "unlink e/f",
    "link a n",
    "link b d/n",
    "link b n",
    "create n",
    "create d/n",
    "mkdir n",
    "mkdir d/n",
    "rmdir d",
    "rmdir e",
    "clear d",
];

fn carry_out(at: &dyn Place, what: &str) -> Result<(), Errno> {
    let words: Vec<&str> = what.split(' ').collect();
    match words[..] {
        ["rename", from, to] => at.rename(from, to),
        ["rename-new", from, to] => at.rename_new(from, to),
        ["exchange", one, other] => at.exchange(one, other),
        ["link", from, to] => at.link(from, to),
        ["unlink", path] => at.unlink(path),
        ["create", path] => at.create(path),
        ["mkdir", path] => at.mkdir(path),
        ["rmdir", path] => at.rmdir(path),
        ["clear", path] => at.rmdir(&format!("{path}/n")).and_then(|()| at.rmdir(path)),
        _ => panic!("no operation {what:?}"),
    }
}

/// The results of the first and the second operation, and the state after both.
type Outcome = (Result<(), Errno>, Result<(), Errno>, Seen);

/// The results of two operations on tmpfs, in both orders.
fn expected(first: &str, second: &str) -> Vec<Outcome> {
    let mut expected = [false, true]
        .map(|swapped| {
            let at = OnTmpfs::new("expected");
            prepare(&at);
            let (x, y) = if swapped {
                (second, first)
            } else {
                (first, second)
            };
            let x = carry_out(&at, x);
            let y = carry_out(&at, y);
            let (x, y) = if swapped { (y, x) } else { (x, y) };
            (x, y, at.look())
        })
        .to_vec();
    // An operation looks up paths first. When the operation uses the paths' objects, the other
    // operation may have removed or made them, so these errors are allowed, too.
    for (one, other, swapped) in [(first, second, false), (second, first, true)] {
        let errors: &[Errno] = match one.split_once(' ') {
            Some(("link", _)) => &[Errno::NOENT, Errno::EXIST],
            _ if one.contains('/') => &[Errno::NOENT],
            _ => &[],
        };
        for e in errors {
            let at = OnTmpfs::new("expected");
            prepare(&at);
            let (x, y) = (Err(*e), carry_out(&at, other));
            let (x, y) = if swapped { (y, x) } else { (x, y) };
            expected.push((x, y, at.look()));
        }
    }
    expected
}

/// Carries out both operations, the second at request `at` of the first one, and compares. Returns
/// false if the first one sends fewer requests.
fn try_one(nodes: &Nodes, n: usize, first: &str, second: &str, at: usize, behind: bool) -> bool {
    let dir = format!("/between{n}");
    let view = |k: usize| InPool {
        fs: &nodes.views[(n + k) % nodes.views.len()],
        dir: dir.clone(),
    };
    view(0).mkdir("").unwrap();
    prepare(&view(1));
    let story = format!("{second:?} in {first:?} (number {n}), at request {at}, behind: {behind}");
    let (reached, wait_reached) = mpsc::channel();
    let (ended, wait_ended) = mpsc::channel();
    let (result, other, waited) = std::thread::scope(|scope| {
        let second_at = view(1);
        let other = scope.spawn(move || {
            wait_reached.recv().ok()?;
            let what = match second {
                "list" => Err(second_at.list()),
                _ => Ok(carry_out(&second_at, second)),
            };
            let _ = ended.send(());
            Some(what)
        });
        let (tell, told) = mpsc::channel();
        set_between(Between {
            at,
            behind,
            what: Box::new(move || {
                let _ = reached.send(());
                // Go on after 15 ms in any case: the other operation may be waiting for this one to
                // end.
                let over = wait_ended.recv_timeout(Duration::from_millis(15));
                let _ = tell.send(over.is_err());
            }),
        });
        let result = carry_out(&view(0), first);
        end_between();
        (result, other.join().unwrap(), told.try_recv().ok())
    });
    match &other {
        None => {}
        Some(Ok(other)) => {
            let both = expected(first, second);
            let got = (result, *other, view(2).look());
            assert!(
                both.contains(&got),
                "{story}: got\n{got:?}, which is none of\n{both:?}"
            );
        }
        // If the other operation ended without waiting, the listing must show the state at one
        // moment.
        Some(Err(seen)) if waited == Some(false) => {
            let [before, after] = [false, true].map(|done| {
                let at = OnTmpfs::new("list");
                prepare(&at);
                if done {
                    let _ = carry_out(&at, first);
                }
                at.look().into_keys().collect::<Vec<_>>()
            });
            assert!(
                *seen == before || *seen == after,
                "{story}: saw {seen:?}, which is neither {before:?} nor {after:?}"
            );
        }
        Some(Err(_)) => {}
    }
    clear(&view(1));
    other.is_some()
}

fn clear(at: &InPool<'_>) {
    for (path, node) in at.look().into_iter().rev() {
        match node {
            None => at.rmdir(&path).unwrap(),
            Some(_) => at.unlink(&path).unwrap(),
        }
    }
    at.rmdir("").unwrap();
}

#[test]
fn one_in_the_middle_of_the_other() {
    let seconds = std::env::var("FOREBAY_BETWEEN_SECONDS").map_or(20, |s| s.parse().unwrap());
    let limit = if seconds == 0 { 3000 } else { seconds + 100 };
    let nodes = Nodes::new("between", 3, &["memory:64M"], limit);
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for first in OPERATIONS {
        pairs.extend(OPERATIONS.map(|second| (first, second)));
        pairs.push((first, "list"));
    }
    if let Ok(word) = std::env::var("FOREBAY_BETWEEN_ONLY") {
        pairs.retain(|(first, second)| first.contains(&word) || second.contains(&word));
    }
    let mut random = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    for k in (1..pairs.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        pairs.swap(k, (random % (k as u64 + 1)) as usize);
    }
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut n, mut done) = (random as usize % 1_000_000, 0);
    for (first, second) in &pairs {
        for behind in [false, true] {
            for at in 1.. {
                n += 1;
                if !try_one(&nodes, n, first, second, at, behind) {
                    break;
                }
                done += 1;
            }
        }
        if seconds > 0 && Instant::now() > until {
            break;
        }
    }
    println!("{done} times");
    assert!(done > 20);
    nodes.recover();
    nodes.assert_whole();
    assert_eq!(nodes.used(), 0, "pages are left");
}

/// The two names of a rename must have existed at the same time. Between the look-ups of the two
/// names, another process moves the file from one to the other and back.
#[test]
fn what_goes_there_and_back_is_never_in_both_places() {
    const THERE: &str = "rename a b";
    const BACK: &str = "rename b a";
    let nodes = Nodes::new("there-and-back", 3, &["memory:64M"], 200);
    let (mut n, mut both) = (0, 0);
    for what in [
        "rename a b",
        "rename-new a b",
        "rename-new a c",
        "exchange a b",
    ] {
        // In each turn, the files are on other nodes than in the turn before.
        for _ in 0..8 {
            for (first, second) in (1..20).flat_map(|first| (1..3).map(move |s| (first, s))) {
                n += 1;
                let dir = format!("/there-and-back{n}");
                let view = |k: usize| InPool {
                    fs: &nodes.views[(n + k) % nodes.views.len()],
                    dir: dir.clone(),
                };
                view(0).mkdir("").unwrap();
                view(1).put("a", b"a");
                let (go, told_to_go) = mpsc::channel::<mpsc::Sender<()>>();
                let (result, others) = std::thread::scope(|scope| {
                    let other_at = view(1);
                    let other = scope.spawn(move || {
                        let steps = [THERE, BACK].into_iter();
                        let done = steps.map_while(|step| {
                            let over = told_to_go.recv().ok()?;
                            let done = carry_out(&other_at, step);
                            let _ = over.send(());
                            Some(done)
                        });
                        done.collect::<Vec<_>>()
                    });
                    // Returns after 15 ms in any case: the other thread's step may be waiting for
                    // this thread's operation to end.
                    let step = |go: &mpsc::Sender<mpsc::Sender<()>>| {
                        let (over, is_over) = mpsc::channel();
                        let _ = go.send(over);
                        let _ = is_over.recv_timeout(Duration::from_millis(15));
                    };
                    let what_first = Box::new(move || {
                        step(&go);
                        set_between(Between {
                            at: second,
                            behind: true,
                            what: Box::new(move || step(&go)),
                        });
                    });
                    set_between(Between {
                        at: first,
                        behind: true,
                        what: what_first,
                    });
                    let result = carry_out(&view(0), what);
                    end_between();
                    (result, other.join().unwrap())
                });
                let got = (result, &others[..], view(2).look());
                let possible = (0..=others.len()).map(|before| {
                    let at = OnTmpfs::new("there-and-back");
                    at.put("a", b"a");
                    let mut steps = [THERE, BACK][..others.len()].to_vec();
                    steps.insert(before, what);
                    let mut done: Vec<_> = steps.iter().map(|s| carry_out(&at, s)).collect();
                    (done.remove(before), done, at.look())
                });
                let possible: Vec<_> = possible.collect();
                assert!(
                    possible.iter().any(|p| (p.0, &p.1[..], p.2.clone()) == got),
                    "{what:?} (number {n}), there behind request {first}, back {second} later: got\n\
                     {got:?}, which is none of\n{possible:?}"
                );
                both += usize::from(others.len() == 2);
                clear(&view(1));
                if others.is_empty() {
                    break;
                }
            }
        }
    }
    println!("{n} times, {both} there and back");
    assert!(both > 50, "{both}");
    nodes.recover();
    nodes.assert_whole();
}

/// All nodes rename files to one free name at once, without replacing: one of them succeeds.
#[test]
fn one_of_many_renames_to_a_free_name_succeeds() {
    const EACH: usize = 2;
    let nodes = Nodes::new("one-of-many", 3, &["memory:64M"], 120);
    let start = Barrier::new(nodes.views.len() * EACH);
    for n in 0..60 {
        let dir = format!("/one-of-many{n}");
        let view = |k: usize| InPool {
            fs: &nodes.views[k % nodes.views.len()],
            dir: dir.clone(),
        };
        view(n).mkdir("").unwrap();
        let all: Vec<usize> = (0..nodes.views.len() * EACH).collect();
        let own = |k: usize| format!("own{k}");
        // Files; in some rounds, also directories, which the node of names moves.
        let is_dir = |k: usize| n.is_multiple_of(3) && k.is_multiple_of(2);
        for &k in &all {
            if is_dir(k) {
                view(k + n).mkdir(&own(k)).unwrap()
            } else {
                view(k + n).put(&own(k), own(k).as_bytes())
            }
        }
        let results: Vec<Result<(), Errno>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (all.iter())
                .map(|&k| {
                    let (view, start, own) = (view(k), &start, own(k));
                    scope.spawn(move || {
                        start.wait();
                        view.rename_new(&own, "free")
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let won: Vec<usize> = all
            .iter()
            .copied()
            .filter(|&k| results[k].is_ok())
            .collect();
        assert_eq!(won.len(), 1, "round {n}: {results:?}");
        let lost = results.iter().filter(|r| **r == Err(Errno::EXIST)).count();
        assert_eq!(lost, all.len() - 1, "round {n}: {results:?}");
        let seen = view(n + 1).look();
        for &k in &all {
            let content = (!is_dir(k)).then(|| (own(k), 1));
            let name = if k == won[0] { "free".into() } else { own(k) };
            assert_eq!(seen.get(&name), Some(&content), "round {n}, {k}");
        }
        assert_eq!(seen.len(), all.len(), "round {n}: {seen:?}");
        clear(&view(n));
    }
    nodes.assert_whole();
    assert_eq!(nodes.used(), 0, "pages are left");
}
