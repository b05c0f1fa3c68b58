//! The control `consistency`: when other processes and nodes see a program's writes, and what the
//! program itself sees.
//!
//! Nodes are stores in one process (`support/nodes.rs`). A program is a view that may buffer writes
//! (`Fs::for_program`), as the preloaded library uses it.

mod support;

use forebay_posix::{ChunkSize, Distribution, Errno, File, Fs, ObjectId};
use std::sync::atomic::Ordering::SeqCst;
use support::declare::{declare, get};
use support::nodes::Nodes;
use support::*;

fn nodes(name: &str) -> Nodes {
    Nodes::new(name, 3, &["memory:64M"], 120)
}

/// Makes a file on this node, and declares these controls for it.
fn make(fs: &Fs, path: &str, what: &str) {
    let f = fs.open(path.as_bytes(), O_CREAT | O_EXCL | O_WRONLY, 0o600);
    f.unwrap().close().unwrap();
    declare(fs, path, what);
}

fn open<'a>(fs: &'a Fs, path: &str) -> File<'a> {
    fs.open(path.as_bytes(), O_RDWR, 0).unwrap()
}

fn part(f: &File<'_>, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let n = f.read_at(&mut bytes, at).unwrap();
    bytes.truncate(n);
    bytes
}

/// A way to commit a file's writes. Returns the file if it stays open.
type Commit = for<'a> fn(&'a Fs, File<'a>) -> Option<File<'a>>;

fn staying<'a>(f: File<'a>, commit: impl FnOnce(&File<'a>)) -> Option<File<'a>> {
    commit(&f);
    Some(f)
}

const COMMITS: [(&str, Commit); 8] = [
    ("close", |_, f| {
        f.close().unwrap();
        None
    }),
    ("fsync", |_, f| staying(f, |f| f.sync().unwrap())),
    ("close of another", |fs, f| {
        let other = fs.open(b"/f", O_RDONLY, 0).unwrap();
        staying(f, |_| other.close().unwrap())
    }),
    ("all", |fs, f| staying(f, |_| fs.buffers().publish_all())),
    ("before a fork", |fs, f| {
        staying(f, |_| fs.buffers().write_back_all())
    }),
    ("truncation", |_, f| staying(f, |f| f.set_len(6).unwrap())),
    ("times", |_, f| {
        staying(f, |f| f.set_times(None, Some(5)).unwrap())
    }),
    ("rename", |fs, f| {
        staying(f, |_| fs.rename(b"/f", b"/f").unwrap())
    }),
];

#[test]
fn others_see_what_is_committed() {
    let nodes = nodes("committed");
    for value in ["commit", "session"] {
        for (name, commit) in COMMITS {
            make(&nodes.views[1], "/f", &format!("consistency={value}"));
            let program = nodes.program(0);
            let f = open(&program, "/f");
            assert_eq!(f.write_at(b"abc", 0), Ok(3));
            assert_eq!(f.write_at(b"def", 3), Ok(3));
            // Other processes need not see the writes before they are committed, and they don't.
            for other in [&nodes.views[0], &nodes.views[1], &nodes.program(2)] {
                assert_eq!(other.stat(b"/f", true).unwrap().size, 0, "{name}");
                assert_eq!(get(other, "/f"), b"");
            }
            let _open = commit(&program, f);
            for other in [&nodes.views[0], &nodes.views[1], &nodes.program(2)] {
                assert_eq!(get(other, "/f"), b"abcdef", "{name}");
            }
            nodes.views[2].unlink(b"/f").unwrap();
        }
    }
    nodes.assert_whole();
}

#[test]
fn the_default_and_what_lies_here_is_as_ever() {
    let nodes = nodes("strict");
    for (path, home, what) in [
        ("/default", 1, "on_violation=report"),
        ("/sequential", 1, "consistency=sequential"),
        ("/here", 0, "consistency=commit"),
        ("/append", 1, "consistency=commit,mutability=append"),
    ] {
        make(&nodes.views[home], path, what);
        let program = nodes.program(0);
        let f = open(&program, path);
        assert_eq!(f.write_at(b"abc", 0), Ok(3));
        assert_eq!(get(&nodes.views[2], path), b"abc", "{path}");
    }
    // Views of faces other than the preloaded library buffer nothing.
    make(&nodes.views[1], "/faces", "consistency=commit");
    let f = open(&nodes.views[0], "/faces");
    assert_eq!(f.write_at(b"abc", 0), Ok(3));
    assert_eq!(get(&nodes.views[2], "/faces"), b"abc");
    // Appends, and writes with O_SYNC, are sent at once, after the buffered writes.
    let program = nodes.program(0);
    for (flags, end) in [(O_APPEND, "3"), (libc::O_SYNC, "4")] {
        make(&nodes.views[1], "/through", "consistency=commit");
        let f = open(&program, "/through");
        assert_eq!(f.write_at(b"012", 0), Ok(3));
        let through = program.open(b"/through", O_WRONLY | flags, 0).unwrap();
        assert_eq!(through.write_at(end.as_bytes(), 3), Ok(1));
        let seen = get(&nodes.views[2], "/through");
        assert_eq!(seen, format!("012{end}").as_bytes());
        program.unlink(b"/through").unwrap();
    }
}

#[test]
fn many_small_writes_cost_few_questions() {
    let nodes = nodes("few");
    make(&nodes.views[1], "/f", "consistency=commit");
    let program = nodes.program(0);
    let f = open(&program, "/f");
    let asked = || nodes.together.asked.load(SeqCst);
    let before = asked();
    let block = pattern(3, 8192);
    for i in 0..256 {
        assert_eq!(f.write_at(&block, i * 8192), Ok(8192));
    }
    f.sync().unwrap();
    assert!(asked() - before <= 6, "{} requests", asked() - before);
    // Scattered writes, too, take few requests.
    let before = asked();
    for i in 0..1000 {
        assert_eq!(f.write_at(b"x", i * 2003 % (2 << 20)), Ok(1));
    }
    f.sync().unwrap();
    assert!(asked() - before <= 3, "{} requests", asked() - before);
    let mut wanted = block.repeat(256);
    for i in 0..1000 {
        wanted[i * 2003 % (2 << 20)] = b'x';
    }
    assert!(get(&nodes.views[2], "/f") == wanted);
}

/// Whatever a program does to a file that it alone uses, it sees the file as if writes weren't
/// buffered. After a commit, other processes see the same.
#[test]
fn a_program_sees_its_own_writes() {
    let nodes = nodes("own");
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0]
        .mkdir_with(b"/striped", 0o700, striped)
        .unwrap();
    for seed in 1..=40 {
        let mut random = Random(seed * 7919 + 1);
        let mut below = |n: u64| random.next() % n;
        let path = ["/f", "/striped/f"][seed as usize % 2];
        make(&nodes.views[1], path, "consistency=commit");
        let program = nodes.program(0);
        // Uses two descriptions of one program.
        let files = [open(&program, path), open(&program, path)];
        let most = [3_000, 3_000_000][seed as usize / 2 % 2];
        let mut model: Vec<u8> = Vec::new();
        for step in 0..300 {
            let f = &files[below(2) as usize];
            let (at, len) = (below(most), 1 + below(most / 10) as usize);
            match below(12) {
                0..6 => {
                    let bytes = pattern(seed * 1000 + step, len);
                    assert_eq!(f.write_at(&bytes, at), Ok(len));
                    let end = at as usize + len;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                6..9 => {
                    let (from, to) = (at as usize, at as usize + len);
                    let wanted = &model[from.min(model.len())..to.min(model.len())];
                    assert!(part(f, at, len) == wanted, "seed {seed}, step {step}");
                }
                9 => assert_eq!(f.size(), model.len() as u64),
                10 if below(3) == 0 => {
                    f.set_len(at).unwrap();
                    model.resize(at as usize, 0);
                }
                _ if below(4) == 0 => {
                    f.sync().unwrap();
                    assert!(
                        get(&nodes.views[2], path) == model,
                        "seed {seed}, step {step}"
                    );
                }
                _ => assert_eq!(
                    program.stat(path.as_bytes(), true).unwrap().size,
                    model.len() as u64
                ),
            }
        }
        for f in files {
            f.close().unwrap();
        }
        assert!(get(&nodes.views[2], path) == model, "seed {seed}");
        program.unlink(path.as_bytes()).unwrap();
    }
    nodes.assert_whole();
}

#[test]
fn an_error_is_told_once() {
    let nodes = Nodes::new("errors", 3, &["memory:8M"], 60);
    for close in [true, false] {
        make(&nodes.views[1], "/f", "consistency=commit");
        let program = nodes.program(0);
        let f = open(&program, "/f");
        let block = pattern(5, 100_000);
        // The data don't fit into the pool. The writing process gets the error at the next commit,
        // or from a write that is sent at once.
        let written = (0..200).map_while(|i| f.write_at(&block, i * 100_000).ok());
        let written = written.take_while(|&n| n == block.len()).count();
        assert!(written > 60, "{written}");
        if close {
            assert_eq!(f.close(), Err(Errno::NOSPC))
        } else {
            assert_eq!(f.sync(), Err(Errno::NOSPC));
            f.set_len(0).unwrap();
            assert_eq!(f.sync(), Ok(()));
            assert_eq!(f.write_at(b"small", 0), Ok(5));
            assert_eq!(f.close(), Ok(()));
            assert_eq!(get(&nodes.views[1], "/f"), b"small");
        }
        program.unlink(b"/f").unwrap();
    }
    // The last close of an immutable file publishes its buffered writes before it laminates the
    // file.
    make(
        &nodes.views[1],
        "/f",
        "consistency=commit,mutability=immutable",
    );
    let program = nodes.program(0);
    let f = open(&program, "/f");
    assert_eq!(f.write_at(b"abc", 0), Ok(3));
    f.close().unwrap();
    let id = ObjectId(program.stat(b"/f", true).unwrap().ino);
    assert!(
        program.controls_of(id).unwrap().1,
        "laminated with the last close"
    );
    assert_eq!(get(&nodes.views[2], "/f"), b"abc");
}

#[test]
fn more_files_than_there_are_places() {
    let nodes = nodes("places");
    let program = nodes.program(0);
    let name = |i: u32| format!("/f{i}");
    (0..100).for_each(|i| make(&nodes.views[1], &name(i), "consistency=commit"));
    let files: Vec<File<'_>> = (0..100).map(|i| open(&program, &name(i))).collect();
    for at in [0, 3] {
        for (i, f) in files.iter().enumerate() {
            assert_eq!(f.write_at(format!("{i:03}").as_bytes(), at), Ok(3));
        }
    }
    for (i, f) in files.into_iter().enumerate() {
        assert_eq!(part(&f, 0, 100), format!("{i:03}{i:03}").as_bytes());
        f.close().unwrap();
        let seen = get(&nodes.views[2], &name(i as u32));
        assert_eq!(seen, format!("{i:03}{i:03}").as_bytes());
    }
}

/// Reads the whole file in small pieces.
fn in_pieces(f: &File<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        match part(f, bytes.len() as u64, 1000) {
            piece if piece.is_empty() => return bytes,
            piece => bytes.extend(piece),
        }
    }
}

#[test]
fn small_reads_of_a_session_cost_few_questions() {
    let nodes = nodes("ahead");
    let content = pattern(9, 2_000_000);
    for (value, most) in [
        ("session", 20),
        ("eventual(10s)", 20),
        ("commit", 3000),
        ("sequential", 3000),
    ] {
        let path = "/f";
        make(&nodes.views[1], path, &format!("consistency={value}"));
        let f = open(&nodes.views[1], path);
        write_all(&f, &content, 0);
        f.close().unwrap();
        let program = nodes.program(0);
        let f = open(&program, path);
        let before = nodes.together.asked.load(SeqCst);
        assert!(in_pieces(&f) == content);
        let asked = nodes.together.asked.load(SeqCst) - before;
        assert!(asked <= most, "{value}: {asked} requests");
        if most > 20 {
            assert!(asked >= 2000, "{value}: {asked} requests");
        }
        // Reads that aren't sequential don't fetch more than they need.
        let received = |len: u64| part(&f, len * 7919 % 1_900_000, 10).len();
        assert!((1..100).all(|i| received(i) == 10));
        program.unlink(path.as_bytes()).unwrap();
    }
}

#[test]
fn a_session_sees_what_was_closed_before_it_was_opened() {
    let nodes = nodes("session");
    make(&nodes.views[1], "/f", "consistency=session");
    let (reader, writer) = (nodes.program(0), nodes.program(2));
    let write = |bytes: &[u8]| {
        let f = open(&writer, "/f");
        write_all(&f, bytes, 0);
        f.close().unwrap();
    };
    write(&[b'a'; 5000]);
    let first = open(&reader, "/f");
    assert_eq!(part(&first, 0, 10), [b'a'; 10]);
    write(&[b'b'; 5000]);
    // A process that had the file open may continue to use the bytes that it has fetched, and does
    // so here. A process that opens the file now sees the new bytes.
    assert_eq!(part(&first, 10, 10), [b'a'; 10]);
    let second = open(&reader, "/f");
    assert_eq!(part(&second, 0, 10), [b'b'; 10]);
    write(&[b'c'; 5000]);
    second.close().unwrap();
    assert_eq!(part(&first, 0, 10), [b'c'; 10]);
    // The read-ahead window ends when the process opens the file again, syncs it, writes to it or
    // truncates it.
    let changes: [fn(&Fs, &File<'_>); 4] = [
        |fs, _| drop(fs.open(b"/f", O_RDONLY, 0).unwrap()),
        |_, f| f.sync().unwrap(),
        |_, f| assert_eq!(f.write_at(b"x", 4000), Ok(1)),
        |_, f| f.set_len(5000).unwrap(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        assert_eq!(part(&first, 0, 10).len(), 10);
        write(&[b'd' + n as u8; 5000]);
        change(&reader, &first);
        assert_eq!(part(&first, 0, 10), [b'd' + n as u8; 10], "{n}");
    }
    // Reads at the end of the file always ask the home.
    assert_eq!(part(&first, 5000, 10), b"");
    let f = open(&writer, "/f");
    write_all(&f, b"more", 5000);
    f.close().unwrap();
    assert_eq!(part(&first, 5000, 10), b"more");
}

#[test]
fn what_is_read_is_not_older_than_the_bound() {
    let nodes = nodes("eventual");
    make(&nodes.views[1], "/f", "consistency=eventual(100ms)");
    let (reader, writer) = (nodes.program(0), nodes.program(2));
    let (out, input) = (open(&writer, "/f"), open(&reader, "/f"));
    write_all(&out, &0u64.to_le_bytes().repeat(1000), 0);
    // The time when each number was written.
    let mut written = vec![std::time::Instant::now()];
    let (mut older, mut last) = (0, 0);
    for n in 1..1500u64 {
        // Written bytes are visible to the writing node at once.
        write_all(&out, &n.to_le_bytes().repeat(1000), 0);
        written.push(std::time::Instant::now());
        let asked = std::time::Instant::now();
        let bytes = part(&input, (n % 900) * 8, 8);
        let seen = u64::from_le_bytes(bytes.try_into().unwrap());
        if let Some(next) = written.get(seen as usize + 1) {
            let age = asked.duration_since(*next);
            assert!(age.as_millis() < 100, "{seen} at {n}: {age:?}");
            older += 1;
        }
        last = seen;
        assert_eq!(get(&nodes.views[1], "/f")[..8], n.to_le_bytes());
    }
    assert!(older > 0 && last > 0, "nothing was read ahead");
}
