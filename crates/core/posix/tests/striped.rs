//! Does a short write in the middle of a long write to a striped or spilled file: before and after
//! each request that the long write sends. The file must be as if one write came before the other,
//! in either order. Bytes of the long write that another process has seen must not be written a
//! second time.

mod support;

use forebay_media::Extent;
use forebay_posix::{ChunkSize, Distribution, File, Fs};
use std::sync::mpsc;
use std::time::Duration;
use support::nodes::{Between, Nodes, end_between, set_between};
use support::*;

/// Size of the file before the writes: the file ends in chunk 0, or in chunk 1.
const OLD: [usize; 2] = [1000, (1 << 20) + 1000];
/// Offset and length of the long write: the write begins inside the file and ends in chunk 2.
const LONG: (usize, usize) = (600, (5 << 20) / 2);

/// The short writes: at this many bytes before or after the end of the file; None: appended.
const SHORT: [Option<i64>; 5] = [
    None,
    // Inside the file.
    Some(-350),
    // Across its end.
    Some(-100),
    Some(0),
    // Leaves a hole.
    Some(4000),
];

fn put(content: &mut Vec<u8>, bytes: &[u8], at: Option<usize>) {
    let at = at.unwrap_or(content.len());
    content.resize(content.len().max(at + bytes.len()), 0);
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

fn with_file<T>(fs: &Fs, path: &str, append: bool, f: impl FnOnce(&File<'_>) -> T) -> T {
    let flags = O_CREAT | O_RDWR | if append { O_APPEND } else { 0 };
    let file = fs.open(path.as_bytes(), flags, 0o600).unwrap();
    let done = f(&file);
    file.close().unwrap();
    done
}

fn write(fs: &Fs, path: &str, bytes: &[u8], at: Option<usize>) {
    with_file(fs, path, at.is_none(), |f| {
        write_all(f, bytes, at.unwrap_or(0) as u64)
    });
}

/// Describes runs of equal bytes by their lengths and values.
fn runs(bytes: &[u8]) -> String {
    let mut described = String::new();
    for run in bytes.chunk_by(|a, b| a == b) {
        described += &format!("{} {:?} ", run.len(), run[0] as char);
    }
    described
}

/// Keeps a node full while this exists.
struct Full<'a>(&'a Fs, Vec<Extent>);

impl Full<'_> {
    fn new(fs: &Fs) -> Full<'_> {
        let medium = &fs.store().media()[0];
        Full(fs, std::iter::from_fn(|| medium.alloc(256).ok()).collect())
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        let medium = &self.0.store().media()[0];
        self.1.drain(..).for_each(|e| medium.free(e));
    }
}

/// Does both writes, the short one at request `at` of the long one, and compares the file with what
/// is expected. Returns false if the long write sends fewer requests.
fn try_one(
    nodes: &Nodes,
    n: usize,
    (dir, old, short): (&str, usize, Option<i64>),
    at: usize,
    behind: bool,
) -> bool {
    let fs = |k: usize| &nodes.views[(n + k) % nodes.views.len()];
    let path = format!("/{dir}/{n}");
    let story = format!("number {n}: {short:?} in {old} bytes at request {at}, behind: {behind}");
    let short = short.map(|by| (old as i64 + by) as usize);
    let in_place = old > 1 << 20;
    let old = vec![b'o'; old];
    write(fs(0), &path, &old, Some(0));
    let full = (dir == "local").then(|| Full::new(fs(0)));

    let (reached, wait_reached) = mpsc::channel();
    let (ended, wait_ended) = mpsc::channel();
    let seen = std::thread::scope(|scope| {
        let (path, fs) = (&path, &fs);
        let other = scope.spawn(move || {
            wait_reached.recv().ok()?;
            write(fs(1), path, &[b's'; 300], short);
            // If the long write is visible in a chunk whose bytes it overwrites, it must not write
            // there again: a later write to that chunk must not be undone.
            let mut seen = [0];
            with_file(fs(1), path, false, |f| f.read_at(&mut seen, 620)).unwrap();
            write(fs(1), path, b"x", Some(620));
            let _ = ended.send(());
            Some(seen[0])
        });
        set_between(Between {
            at,
            behind,
            what: Box::new(move || {
                let _ = reached.send(());
                let _ = wait_ended.recv_timeout(Duration::from_secs(5));
            }),
        });
        let long = vec![b'w'; LONG.1];
        write(fs(2), path, &long, Some(LONG.0));
        end_between();
        other.join().unwrap()
    });

    if let Some(seen) = seen {
        let mut got = with_file(fs(1), &path, false, read_all);
        let then = got[620];
        assert!(
            then == b'x' || !in_place || seen == b'o' && then == b'w',
            "{story}: byte 620 was {:?}, and is {:?}",
            seen as char,
            then as char
        );
        let long = vec![b'w'; LONG.1];
        let [mut short_first, mut long_first] = [old.clone(), old];
        put(&mut short_first, &[b's'; 300], short);
        put(&mut short_first, &long, Some(LONG.0));
        put(&mut long_first, &long, Some(LONG.0));
        put(&mut long_first, &[b's'; 300], short);
        got[620] = b'w';
        assert!(
            got == short_first || got == long_first,
            "{story}: got {}",
            runs(&got)
        );
    }
    drop(full);
    fs(0).unlink(path.as_bytes()).unwrap();
    nodes.drop_parts();
    seen.is_some()
}

#[test]
fn a_short_write_in_the_middle_of_a_long_one() {
    each_way("striped");
}

#[test]
fn the_same_of_a_file_that_grows_from_a_full_node() {
    each_way("local");
}

fn each_way(dir: &str) {
    let nodes = Nodes::new(dir, 3, &["memory:64M"], 100);
    nodes.views[0].mkdir(b"/local", 0o755).unwrap();
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0]
        .mkdir_with(b"/striped", 0o755, striped)
        .unwrap();
    let (mut n, mut done) = (0, 0);
    for (old, short) in OLD.iter().flat_map(|&o| SHORT.map(|s| (o, s))) {
        for behind in [false, true] {
            // In each turn, the file lies on other nodes than in the turn before.
            for turn in 0..3 {
                for at in 1.. {
                    n += 3 - n % 3 + turn;
                    if !try_one(&nodes, n, (dir, old, short), at, behind) {
                        break;
                    }
                    done += 1;
                }
            }
        }
    }
    println!("{done} times");
    assert!(done > 100);
    nodes.assert_whole();
    assert_eq!(nodes.used(), 0, "pages are left");
}
