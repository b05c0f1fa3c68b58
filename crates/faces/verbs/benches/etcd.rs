//! Measures verbs whose metadata are in etcd: without a local copy, with a copy that is always
//! fresh, and with one that may be a minute old.
//!
//! Run it by `make bench ONLY=etcd`. The benchmark starts its own etcd, which doesn't sync its
//! disk, and creates 100,000 collections there.

#[path = "../tests/support/mod.rs"]
mod support;

use forebay_fuzz::Random;
use forebay_iov::meta::{New, Scope};
use forebay_iov::{Key, Session};
use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;
use support::etcd::TestEtcd;
use support::{Dir, names, new};

const RECORDS: usize = 100_000;
/// Number of records created together.
const GROUP: usize = 990;

fn main() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let open = |options: &str| Session::open(&etcd.place(options)).unwrap();
    let plain = open("?cache=off");
    let strict = open(&format!("?cache={}", dir.text()));
    let loose = open(&format!("?cache={}&age=60s", dir.text()));
    let made = (plain.store()).create(Scope::Root, &new("w", &[]), &mut |_| Ok(()));
    let scope = Scope::In(made.unwrap().uuid);

    took("create one by one", 1000, |n| {
        create(&plain, scope, n..n + 1);
    });
    let groups = (RECORDS - 1000) / GROUP;
    took(&format!("create {GROUP} together"), groups, |n| {
        let first = 1000 + n * GROUP;
        create(&plain, scope, first..first + GROUP);
    });
    let mut random = Random::new(1);
    let mut find = |session: &Session| {
        let name = name(random.below(RECORDS));
        black_box(session.store().find(scope, Key::Name(&name)).unwrap());
    };
    let hits = |session: &Session, n: usize| {
        let text = format!("project = \"mcse\" and step = {}", n * 31 % 1000);
        assert_eq!(names(session.store(), scope, &text).len(), 100);
    };
    took("find, without a copy", 2000, |_| find(&plain));
    took("search of 100, without a copy", 30, |n| hits(&plain, n));
    // The search costs as much as loading, so that the next read loads the copy.
    assert_eq!(names(strict.store(), scope, "exists step").len(), RECORDS);
    took("load the copy", 1, |_| find(&strict));
    println!("{:34} {:>9} bytes", "a record in the copy", {
        size(&dir.0) / RECORDS as u64
    });
    took("find, as of now", 2000, |_| find(&strict));
    took("search of 100, as of now", 200, |n| hits(&strict, n));
    find(&loose);
    took("find, age=60s", 20_000, |_| find(&loose));
    took("search of 100, age=60s", 200, |n| hits(&loose, n));
    create(&plain, scope, RECORDS..RECORDS + 1);
    took("find, behind by one", 1000, |_| find(&strict));
}

fn name(n: usize) -> String {
    format!("n{n:06}")
}

/// Creates records, a hundred for each value of `step`.
fn create(session: &Session, scope: Scope, all: std::ops::Range<usize>) {
    let all: Vec<(String, String)> = all.map(|n| (name(n), (n / 100).to_string())).collect();
    let all: Vec<New<'_>> = (all.iter())
        .map(|(name, step)| new(name, &[("project", "mcse"), ("step", step)]))
        .collect();
    let made = session.store().create_all(scope, &all, &mut |_, _| Ok(()));
    assert!(made.iter().all(Result::is_ok));
}

/// Calls `f` `times` times, and prints the time per call.
fn took(what: &str, times: usize, f: impl FnMut(usize)) {
    let begin = Instant::now();
    (0..times).for_each(f);
    let each = begin.elapsed().as_secs_f64() * 1e6 / times as f64;
    println!("{what:34} {each:>9.0} us each, of {times}");
}

/// Returns the number of bytes that a directory's files occupy on disk.
fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let of = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
        of if of.is_dir() => size(&entry.path()),
        of => of.blocks() * 512,
    };
    entries.map(of).sum()
}
