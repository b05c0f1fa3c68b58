//! Measures costs and gains of the index of attributes: `view FILES`, as root. Sets an attribute
//! that isn't indexed (`trusted.k`) on FILES files, and one that is (`user.k`, each value on a
//! hundred files). Then lists a hundred hits by the view. Times are in microseconds. A million
//! files need 1 GiB of /dev/shm.

use forebay_client::{CreateOptions, Pool};
use forebay_posix::{Fs, ObjectId};
use std::sync::Arc;
use std::time::Instant;

const HITS: usize = 100;

fn main() {
    let count = std::env::args().nth(1);
    let count = count.map_or(1_000_000, |n| n.parse().expect("a number"));
    let name = format!("view-example-{}", std::process::id());
    let pool = Pool::create(&CreateOptions {
        name: name.clone(),
        mount: "/fb".into(),
        media: vec!["memory:64M".parse().expect("a medium")],
        reserve: None,
        rules: Default::default(),
        origin: None,
    });
    let fs = Fs::new(Arc::new(pool.expect("a pool")));
    measure(&fs, count);
    drop(fs);
    Pool::destroy(&name).expect("removing the pool");
}

fn measure(fs: &Fs, count: usize) {
    let path = |n: usize| format!("/{}/file.{n}", n % 1000);
    let each = |what: &str, f: &dyn Fn(usize)| {
        let began = Instant::now();
        (0..count).for_each(f);
        let us = began.elapsed().as_secs_f64() * 1e6 / count as f64;
        println!("{what}: {us:.2}");
    };
    for dir in 0..1000 {
        let made = fs.mkdir(format!("/{dir}").as_bytes(), 0o755);
        made.expect("mkdir");
    }
    each("create", &|n| {
        let made = fs.open(path(n).as_bytes(), libc::O_CREAT | libc::O_WRONLY, 0o644);
        made.and_then(|f| f.close()).expect("create");
    });
    let values = (count / HITS).max(1);
    for attribute in ["trusted.k", "user.k"] {
        each(&format!("setxattr {attribute}"), &|n| {
            let (path, value) = (path(n), format!("{}", n % values));
            let set = fs.set_xattr(
                path.as_bytes(),
                attribute.as_bytes(),
                value.as_bytes(),
                true,
            );
            set.expect("setxattr");
        });
    }
    if fs.stat(b"/.by", true).is_err() {
        // The store that this one is compared with has no view.
        return;
    }
    let list = |dir: &str| {
        let began = Instant::now();
        let links = fs.list(dir.as_bytes()).expect("the view");
        (began.elapsed().as_secs_f64() * 1e6, links)
    };
    let mut times: Vec<f64> = (0..101)
        .map(|n| {
            let (us, links) = list(&format!("/.by/k={}", n * values / 101));
            assert_eq!(links.len(), HITS.min(count));
            us
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("list of {HITS}, median: {:.0}", times[50]);
    println!("list of {HITS}, slowest: {:.0}", times[100]);
    let began = Instant::now();
    for link in list("/.by/k=0").1 {
        let link = [b"/.by/k=0/", &link.name[..]].concat();
        fs.stat(&link, true).expect("a file");
    }
    let us = began.elapsed().as_secs_f64() * 1e6;
    println!("list of {HITS}, and stat of each: {us:.0}");
    let (us, all) = list("/.by/k");
    println!("list of {} values: {us:.0}", all.len());
    let unknown = fs.open(b"/last", libc::O_CREAT | libc::O_WRONLY, 0o644);
    unknown.and_then(|f| f.close()).expect("create");
    let id = ObjectId(fs.stat(b"/last", true).expect("stat").ino);
    let began = Instant::now();
    let set = fs.set_attribute(id, b"user.k", b"0", 0, None);
    set.expect("setxattr");
    let us = began.elapsed().as_secs_f64() * 1e6;
    println!("setxattr of a file whose name has to be searched: {us:.0}");
    each("rename", &|n| {
        let to = format!("{}.new", path(n));
        let moved = fs.rename(path(n).as_bytes(), to.as_bytes());
        moved.expect("rename");
    });
    each("unlink", &|n| {
        let gone = fs.unlink(format!("{}.new", path(n)).as_bytes());
        gone.expect("unlink");
    });
}
