//! Several processes on one pool: races, what each sees of the others' operations, and kills.
//!
//! The workers run this test binary again, with their role in the environment.

#[path = "support/left.rs"]
mod left;
mod support;

use forebay_posix::{Errno, Fail, Fs, ObjectId, RenameMode};
use left::records_and_journal_agree;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use support::*;

/// Maximum time that a survivor may wait for one operation while others are killed.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Not a test: the code of the other processes.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, fs)) = worker_role() else {
        return;
    };
    let number = |i: usize| a[i].parse::<u64>().unwrap();
    match role.as_str() {
        "exclusive" => {
            for i in 0..number(0) {
                let path = format!("/e{i}");
                match fs.open(path.as_bytes(), O_CREAT | O_EXCL | O_WRONLY, 0o600) {
                    Ok(f) => {
                        write_all(&f, a[1].as_bytes(), 0);
                        println!("> {i}");
                    }
                    Err(e) => assert_eq!(e, Errno::EXIST),
                }
            }
        }
        "append" => {
            for i in 0..number(0) {
                let f = fs
                    .open(b"/log", O_CREAT | O_APPEND | O_WRONLY, 0o600)
                    .unwrap();
                let line = line(&a[1], i);
                assert_eq!(f.write_at(line.as_bytes(), 0), Ok(line.len()));
            }
        }
        "churn" => churn(&fs, &a[0], number(1)),
        "size" => {
            // Reads a file that another process has just written and closed, or still has open.
            let f = fs.open(a[0].as_bytes(), O_RDONLY, 0).unwrap();
            println!(
                "> {} {}",
                fs.stat(a[0].as_bytes(), true).unwrap().size,
                f.size()
            );
            println!("> {}", String::from_utf8(read_all(&f)).unwrap());
        }
        "records" => write_records(&fs, number(0)),
        "replace" => {
            let mut i = 0u8;
            while fs.stat(b"/stop", false).is_err() {
                i = i.wrapping_add(1);
                let part = b"/part";
                let f = fs.open(part, O_CREAT | O_TRUNC | O_WRONLY, 0o600).unwrap();
                write_all(&f, &[i; 3000], 0);
                f.close().unwrap();
                fs.rename(part, b"/current").unwrap();
            }
            println!("> {i}");
        }
        "move" => {
            for i in 0..number(0) {
                // Waits until the observer has made this turn's directory, however slow it is.
                if i % number(1) == 0 {
                    let turn = format!("/turn{}", i / number(1));
                    wait_until("a look", || fs.stat(turn.as_bytes(), false).is_ok());
                }
                let (from, to) = (format!("/from/{i}"), format!("/to/x{i}"));
                fs.rename(from.as_bytes(), to.as_bytes()).unwrap();
            }
        }
        "leak" => {
            let f = fs.open(b"/left", O_CREAT | O_RDWR, 0o600).unwrap();
            write_all(&f, &[1; 200_000], 0);
            fs.unlink(b"/left").unwrap();
            let g = fs.open(b"/kept", O_CREAT | O_RDWR, 0o600).unwrap();
            write_all(&g, &[2; 100_000], 0);
            fs.mkdir(b"/ready", 0o700).unwrap();
            std::thread::sleep(Duration::from_secs(30));
        }
        "hoard" => {
            let f = fs.open(b"/hoard", O_CREAT | O_RDWR, 0o600).unwrap();
            write_all(&f, &vec![1; number(0) as usize], 0);
            fs.unlink(b"/hoard").unwrap();
            fs.mkdir(b"/ready", 0o700).unwrap();
            std::thread::sleep(Duration::from_secs(30));
        }
        "storm" => storm(&fs, number(0), number(1)),
        other => panic!("no such role: {other}"),
    }
    fs.store().recovery().detach().unwrap();
}

fn line(who: &str, i: u64) -> String {
    let mut line = format!("{who} {i} ");
    line.extend(std::iter::repeat_n('x', 20 + (i as usize * 37) % 300));
    line.push('\n');
    line
}

#[test]
fn exclusive_creation_has_one_winner() {
    let pool = TestPool::new("exclusive");
    let workers: Vec<_> = (0..4)
        .map(|w| pool.worker("exclusive", &format!("300 w{w}")))
        .collect();
    let mut won: Vec<(u64, usize)> = Vec::new();
    for (w, worker) in workers.into_iter().enumerate() {
        won.extend(
            worker
                .finish()
                .iter()
                .map(|l| (l.parse::<u64>().unwrap(), w)),
        );
    }
    won.sort_unstable();
    assert!(
        won.iter().map(|(i, _)| *i).eq(0..300),
        "not exactly one winner each"
    );
    for (i, w) in won {
        assert_eq!(pool.get(&format!("/e{i}")), format!("w{w}").into_bytes());
    }
    pool.assert_whole();
}

#[test]
fn appended_lines_are_neither_lost_nor_torn() {
    let pool = TestPool::new("append");
    let workers: Vec<_> = (0..4)
        .map(|w| pool.worker("append", &format!("500 w{w}")))
        .collect();
    workers.into_iter().for_each(|w| _ = w.finish());
    let text = String::from_utf8(pool.get("/log")).unwrap();
    let mut next = [0u64; 4];
    for l in text.split_inclusive('\n') {
        let who: usize = l[1..2].parse().unwrap();
        assert_eq!(l, line(&format!("w{who}"), next[who]));
        next[who] += 1;
    }
    assert_eq!(next, [500; 4]);
    pool.assert_whole();
}

/// Creates, renames and unlinks files; leaves `count` files and a hard link of each.
fn churn(fs: &Fs, who: &str, count: u64) {
    for i in 0..count {
        let path = |what: &str| format!("/shared/{what}-{who}-{i}").into_bytes();
        let f = fs
            .open(&path("a"), O_CREAT | O_EXCL | O_WRONLY, 0o600)
            .unwrap();
        write_all(&f, &pattern(i, 10 + (i as usize % 7) * 900), 0);
        drop(f);
        fs.rename(&path("a"), &path("b")).unwrap();
        fs.link(&path("b"), &path("c")).unwrap();
        let f = fs.open(&path("gone"), O_CREAT | O_WRONLY, 0o600).unwrap();
        write_all(&f, &[9; 5000], 0);
        fs.unlink(&path("gone")).unwrap();
        drop(f);
        fs.mkdir(&path("dir"), 0o700).unwrap();
        if i % 2 == 0 {
            fs.rmdir(&path("dir")).unwrap();
        }
        // A file that all workers use at once.
        match fs.open(b"/shared/contended", O_CREAT | O_WRONLY, 0o600) {
            Ok(f) => write_all(&f, who.as_bytes(), 0),
            Err(e) => assert_eq!(e, Errno::NOENT),
        }
        match fs.unlink(b"/shared/contended") {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn one_directory_changed_by_many_keeps_count() {
    let pool = TestPool::new("churn");
    pool.mkdir(b"/shared", 0o755).unwrap();
    let workers: Vec<_> = (0..4)
        .map(|w| pool.worker("churn", &format!("w{w} 150")))
        .collect();
    workers.into_iter().for_each(|w| _ = w.finish());
    let entries = pool.list(b"/shared").unwrap();
    assert_eq!(entries.len(), 4 * (150 * 2 + 75));
    assert_eq!(pool.stat(b"/shared", true).unwrap().nlink, 2 + 4 * 75);
    for e in &entries {
        let name = String::from_utf8(e.name.clone()).unwrap();
        if !name.starts_with("dir-") {
            let i: u64 = name.rsplit('-').next().unwrap().parse().unwrap();
            assert_eq!(
                pool.get(&format!("/shared/{name}")),
                pattern(i, 10 + (i as usize % 7) * 900)
            );
        }
    }
    pool.assert_whole();
}

#[test]
fn another_process_sees_writes_and_sizes_at_once() {
    let pool = TestPool::new("visible");
    for len in [10usize, 1024, 3000, 300_000] {
        let text: String = (0..len).map(|i| (b'a' + (i % 26) as u8) as char).collect();
        let path = format!("/f{len}");
        let f = pool.open(path.as_bytes(), O_CREAT | O_RDWR, 0o600).unwrap();
        write_all(&f, text.as_bytes(), 0);
        let expected = [format!("{len} {len}"), text.clone()];
        assert_eq!(pool.worker("size", &path).finish(), expected, "while open");
        f.close().unwrap();
        assert_eq!(pool.worker("size", &path).finish(), expected, "after close");
    }
}

const RECORD: usize = 6000;

fn write_records(fs: &Fs, count: u64) {
    let f = fs.open(b"/records", O_CREAT | O_WRONLY, 0o600).unwrap();
    for i in 0..count {
        assert_eq!(
            f.write_at(&[i as u8 + 1; RECORD], i * RECORD as u64),
            Ok(RECORD)
        );
    }
}

#[test]
fn a_reader_never_sees_half_a_written_record() {
    let pool = TestPool::new("records");
    let f = pool.open(b"/records", O_CREAT | O_RDONLY, 0o600).unwrap();
    let mut writer = pool.worker("records", "250");
    let mut seen = 0;
    let mut buffer = vec![0u8; RECORD];
    loop {
        let done = writer.is_done();
        let size = f.size();
        assert_eq!(size % RECORD as u64, 0);
        for i in seen..size / RECORD as u64 {
            assert_eq!(f.read_at(&mut buffer, i * RECORD as u64), Ok(RECORD));
            assert!(
                buffer.iter().all(|&b| b == i as u8 + 1),
                "record {i} is not whole"
            );
        }
        seen = size / RECORD as u64;
        if done {
            break;
        }
    }
    writer.finish();
    assert_eq!(seen, 250);
}

#[test]
fn a_replaced_file_is_always_there() {
    let pool = TestPool::new("replace");
    pool.put("/current", &[0; 3000]);
    let mut writer = pool.worker("replace", "");
    // The loop ends when 30 replacements were seen; the writer has a time limit.
    let (mut last, mut seen) = (0, 0);
    while seen < 30 {
        assert!(!writer.is_done(), "only {seen} replacements were seen");
        let bytes = pool.get("/current");
        assert_eq!(bytes.len(), 3000);
        assert!(
            bytes.iter().all(|&b| b == bytes[0]),
            "a mixture of two files"
        );
        seen += u32::from(bytes[0] != last);
        last = bytes[0];
    }
    pool.mkdir(b"/stop", 0o700).unwrap();
    let last: u8 = writer.finish()[0].parse().unwrap();
    assert_eq!(pool.get("/current"), [last; 3000]);
    pool.assert_whole();
}

#[test]
fn a_file_on_its_way_to_another_directory_is_never_missing() {
    let pool = TestPool::new("moving");
    pool.mkdir(b"/from", 0o755).unwrap();
    pool.mkdir(b"/to", 0o755).unwrap();
    for i in 0..400 {
        pool.put(&format!("/from/{i}"), b"x");
    }
    let mut mover = pool.worker("move", "400 40");
    let mut turns = 0;
    loop {
        let done = mover.is_done();
        pool.mkdir(format!("/turn{turns}").as_bytes(), 0o700)
            .unwrap();
        for i in 0..400 {
            let (from, to) = (format!("/from/{i}"), format!("/to/x{i}"));
            let there = pool.stat(from.as_bytes(), false).is_ok()
                || pool.stat(to.as_bytes(), false).is_ok();
            assert!(there, "file {i} is nowhere");
            // A file that was seen under its new name can't have the old one any more.
            if pool.stat(to.as_bytes(), false).is_ok() {
                assert_eq!(pool.stat(from.as_bytes(), false), Err(Errno::NOENT));
            }
        }
        turns += 1;
        if done {
            break;
        }
    }
    mover.finish();
    // The files were observed while they were moved.
    assert!(turns > 10);
    assert_eq!(pool.list(b"/to").unwrap().len(), 400);
    pool.assert_whole();
}

#[test]
fn what_a_killed_process_had_open_is_released() {
    let pool = TestPool::new("released");
    pool.put("/mine", &[3; 50_000]);
    let before = pool.used();
    let mine = pool.open(b"/mine", O_RDWR, 0).unwrap();
    let worker = pool.worker("leak", "");
    wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
    assert!(pool.used() > before);
    worker.kill();
    assert_eq!(pool.store().recovery().reap().unwrap().processes, 1);
    // The file without a name is removed; the other one is complete and written back.
    assert_eq!(pool.get("/kept"), [2; 100_000]);
    pool.unlink(b"/kept").unwrap();
    assert_eq!(pool.used(), before);
    write_all(&mine, &[4; 10], 0);
    mine.close().unwrap();
    pool.assert_whole();
}

#[test]
fn who_finds_no_room_gets_that_of_the_dead() {
    let pool = TestPool::with("hoard", &["memory:16M"]);
    let mine = pool.open(b"/mine", O_CREAT | O_RDWR, 0o600).unwrap();
    let worker = pool.worker("hoard", "10000000");
    wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
    assert_eq!(mine.write_at(&[2; 100], 12_000_000), Ok(100));
    let bytes = vec![3; 10_000_000];
    let some = mine.write_at(&bytes, 0).unwrap();
    assert!(some < bytes.len());
    assert_eq!(
        mine.write_at(&bytes[some..], some as u64),
        Err(Errno::NOSPC)
    );
    worker.kill();
    write_all(&mine, &bytes[some..], some as u64);
    assert_eq!(mine.size(), 12_000_100);
    mine.close().unwrap();
    pool.unlink(b"/mine").unwrap();
    pool.assert_whole();
}

/// Uses a file through descriptors, as the preloaded library does: opens, duplicates, and closes
/// it.
fn through_the_table(fs: &Fs, path: &[u8]) -> forebay_posix::Result<()> {
    let open = match fs.open_at(ObjectId::ROOT, path, O_CREAT | O_RDWR, 0o600) {
        Err(Fail::Errno(e)) => return Err(e),
        other => other.unwrap(),
    };
    let store = fs.store();
    assert_eq!(store.objects().fd_set(700, Some(open)), Ok(None));
    {
        let _section = store.section()?;
        store.objects().open_retain(open)?;
        assert_eq!(store.objects().fd_set(701, Some(open)), Ok(None));
    }
    for fd in [700, 701] {
        let bytes = [fd as u8; 2000];
        if fs.live_of(open).is_ok() {
            fs.write(open, None, bytes[..].into())?;
        }
        let _section = store.section()?;
        assert_eq!(store.objects().fd_set(fd, None), Ok(Some(open)));
        store.objects().open_release(open)?;
    }
    Ok(())
}

/// Does random operations on few names until told to stop. No operation may take long.
fn storm(fs: &Fs, number: u64, seed: u64) {
    let mut r = Random(seed * 7919 + number + 1);
    let mut longest = Duration::ZERO;
    let name = |r: &mut Random| format!("/s{}/n{}", r.below(3), r.below(12)).into_bytes();
    let log = fs
        .open(
            format!("/log{number}").as_bytes(),
            O_CREAT | O_APPEND | O_WRONLY,
            0o600,
        )
        .unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let mut i = 0u64;
    while Instant::now() < end && fs.stat(b"/stop", false).is_err() {
        let (a, b) = (name(&mut r), name(&mut r));
        let start = Instant::now();
        let result = match r.below(16) {
            0..=2 => fs.open(&a, O_CREAT | O_WRONLY, 0o600).and_then(|f| {
                let len = [5, 900, 1500, 40_000, 1_200_000][r.below(5)];
                f.write_at(&vec![r.next() as u8 | 1; len], r.below(3000) as u64)?;
                f.close()
            }),
            3 => fs
                .open(&a, O_TRUNC | O_RDWR, 0)
                .and_then(|f| f.set_len(r.below(100_000) as u64)),
            4 => fs.open(&a, O_RDWR, 0).and_then(|f| {
                let mut buffer = vec![0; 5000];
                f.read_at(&mut buffer, r.below(5000) as u64)?;
                f.set_len(r.below(5000) as u64)
            }),
            5 | 6 => fs.rename(&a, &b),
            7 => fs.link(&a, &b),
            8 | 9 => fs.unlink(&a),
            12 => through_the_table(fs, &a),
            15 => fs.open(&a, O_RDWR, 0).and_then(|f| f.sync()),
            13 => fs.set_xattr(&a, b"user.x", &[7; 3000][..r.below(3000)], true),
            14 => {
                let root = ObjectId::ROOT;
                fs.rename_at((root, &a), (root, &b), RenameMode::Exchange)
                    .map_err(|e| match e {
                        Fail::Errno(e) => e,
                        outside => panic!("{outside:?}"),
                    })
            }
            10 => fs.mkdir(&a, 0o700).and_then(|()| fs.rmdir(&a)),
            _ => fs.set_times(&a, None, Some(1_000_000), true),
        };
        let took = start.elapsed();
        longest = longest.max(took);
        assert!(took < MAX_WAIT, "an operation took {took:?}");
        match result {
            Ok(())
            | Err(Errno::NOENT | Errno::EXIST | Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY)
            | Err(Errno::NOSPC | Errno::PERM) => {}
            Err(e) => panic!("{e} ({e:?})"),
        }
        i += 1;
        let line = format!("{i}\n");
        assert_eq!(log.write_at(line.as_bytes(), 0), Ok(line.len()));
    }
    println!("> {}", longest.as_millis());
}

/// Kills workers at random moments while others continue; afterwards everything must be consistent.
fn kill_storm(name: &str, media: &str, seed: u64, seconds: u64) {
    static KILLS: AtomicU64 = AtomicU64::new(0);
    let pool = TestPool::with(name, &[media]);
    // If the pool has a journal, its checkpoints are frequent.
    pool.store().durability().change_journal_bound(300 << 10);
    for d in 0..3 {
        pool.mkdir(format!("/s{d}").as_bytes(), 0o755).unwrap();
    }
    let mut r = Random(seed);
    let mut next = 0;
    let start = |next: &mut u64| {
        *next += 1;
        pool.worker("storm", &format!("{} {seed}", *next - 1))
    };
    let mut workers: Vec<(u64, Worker)> = (0..4).map(|_| (next, start(&mut next))).collect();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut released, mut in_sections, mut checks) = (0, 0, 0);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_micros(r.below(60_000) as u64));
        let victim = r.below(workers.len());
        if workers[victim].1.is_done() {
            workers.swap_remove(victim).1.finish();
            panic!("a worker ended by itself");
        }
        let fresh = (next, start(&mut next));
        std::mem::replace(&mut workers[victim], fresh).1.kill();
        KILLS.fetch_add(1, Relaxed);
        if r.below(3) == 0 {
            let reaped = pool.store().recovery().reap().unwrap();
            released += reaped.processes;
            in_sections += reaped.in_flight;
            // During the check, the other workers continue.
            checks += 1;
            if checks % 8 == 0 {
                pool.assert_whole_online();
            }
        }
    }
    pool.mkdir(b"/stop", 0o700).unwrap();
    let mut longest = 0;
    for (_, w) in workers {
        longest = w
            .finish()
            .iter()
            .filter_map(|l| l.parse().ok())
            .max()
            .unwrap_or(0)
            .max(longest);
    }
    let last = pool.store().recovery().reap().unwrap();
    released += last.processes;
    in_sections += last.in_flight;
    // Everything that dead processes held is released, whatever they were doing.
    pool.assert_whole();
    eprintln!(
        "{next} workers, {released} of them dead and released, {in_sections} of these in the middle of something, longest wait {longest} ms"
    );
    if media.starts_with("files") {
        records_and_journal_agree(&pool, name);
    }
    // Some workers die before they have attached, so they aren't counted.
    assert!(
        released as u64 > next / 2,
        "{released} of {next} were released"
    );
    // The log of each worker is complete up to the moment of its kill.
    for w in 0..next {
        let path = format!("/log{w}");
        if pool.stat(path.as_bytes(), true).is_ok() {
            let text = String::from_utf8(pool.get(&path)).unwrap();
            assert!(
                text.lines()
                    .map(|l| l.parse::<u64>().unwrap())
                    .eq(1..=text.lines().count() as u64)
            );
            pool.unlink(path.as_bytes()).unwrap();
        }
    }
    // The pool continues to work, and all its room can be freed.
    for d in 0..3 {
        for e in pool.list(format!("/s{d}").as_bytes()).unwrap() {
            let path = [format!("/s{d}/").as_bytes(), &e.name[..]].concat();
            if e.kind == libc::S_IFDIR {
                pool.rmdir(&path).unwrap();
            } else {
                let f = pool.open(&path, O_RDWR, 0).unwrap();
                assert_eq!(read_all(&f).len() as u64, f.size());
                write_all(&f, b"still works", f.size());
                f.close().unwrap();
                pool.unlink(&path).unwrap();
            }
        }
    }
    assert_eq!(pool.used(), 0);
    pool.assert_whole();
}

fn kill_seconds() -> u64 {
    let seconds = std::env::var("FOREBAY_KILL_SECONDS");
    seconds.map_or(5, |s| s.parse().unwrap())
}

#[test]
fn kills_at_any_instant_leave_a_whole_store() {
    let seed = std::process::id() as u64;
    kill_storm("storm", "memory:64M", seed, kill_seconds());
}

#[test]
fn kills_leave_a_journal_that_agrees_with_the_records() {
    let seed = std::process::id() as u64;
    kill_storm("journalled", "files:DIR:128M", seed, kill_seconds());
}
