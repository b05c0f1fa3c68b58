//! What POSIX promises for files and names, through `Fs` and `File`.

mod support;

use forebay_posix::{Errno, Fail, Follow, ObjectId, RenameMode, Whence};
use support::*;

const O_DIRECTORY: i32 = libc::O_DIRECTORY;
const MIB: usize = 1 << 20;

// ---- creating and opening ----

#[test]
fn open_flags() {
    let p = TestPool::new("flags");
    assert!(is(p.open(b"/f", O_RDONLY, 0), Errno::NOENT));
    p.put("/f", b"hello");
    assert!(is(
        p.open(b"/f", O_CREAT | O_EXCL | O_RDWR, 0o600),
        Errno::EXIST
    ));
    let f = p.open(b"/f", O_CREAT | O_RDWR, 0o600).unwrap();
    assert_eq!(read_all(&f), b"hello");
    let g = p.open(b"/f", O_TRUNC | O_WRONLY, 0).unwrap();
    assert_eq!((f.size(), f.read_at(&mut [0; 5], 0)), (0, Ok(0)));
    assert_eq!(g.read_at(&mut [0; 5], 0), Err(Errno::BADF));
    let r = p.open(b"/f", O_RDONLY, 0).unwrap();
    assert_eq!(r.write_at(b"x", 0), Err(Errno::BADF));
    assert_eq!(r.set_len(0), Err(Errno::INVAL));
    assert!(is(p.open(b"/", O_WRONLY, 0), Errno::ISDIR));
    assert!(is(p.open(b"/f", O_DIRECTORY, 0), Errno::NOTDIR));
    assert!(is(p.open(b"/f/", O_RDONLY, 0), Errno::NOTDIR));
    assert!(is(
        p.open(b"/new/", O_CREAT | O_WRONLY, 0o600),
        Errno::ISDIR
    ));
    assert!(is(
        p.open(b"/f/x", O_CREAT | O_WRONLY, 0o600),
        Errno::NOTDIR
    ));
    assert!(is(
        p.open(b"/no/x", O_CREAT | O_WRONLY, 0o600),
        Errno::NOENT
    ));
    assert!(is(p.open(b"", O_RDONLY, 0), Errno::NOENT));
}

#[test]
fn the_offset_belongs_to_the_open_file() {
    let p = TestPool::new("offset");
    let open = p
        .open_at(ObjectId::ROOT, b"/f", O_CREAT | O_RDWR, 0o600)
        .unwrap();
    // SAFETY: the slices are readable or writable.
    unsafe {
        assert_eq!(p.write(open, None, b"abcdef".as_ptr(), 6), Ok(6));
        assert_eq!(p.seek(open, Whence::Start, 2), Ok(2));
        let mut b = [0; 3];
        assert_eq!(p.read(open, None, b.as_mut_ptr(), 3), Ok(3));
        assert_eq!(&b, b"cde");
        assert_eq!(p.seek(open, Whence::Current, -1), Ok(4));
        assert_eq!(p.seek(open, Whence::End, 10), Ok(16));
        assert_eq!(p.seek(open, Whence::Current, -17), Err(Errno::INVAL));
        assert_eq!(p.write(open, None, b"z".as_ptr(), 1), Ok(1));
    }
    assert_eq!(p.get("/f"), b"abcdef\0\0\0\0\0\0\0\0\0\0z");
    p.store().open_release(open).unwrap();
}

#[test]
fn an_unnamed_file_vanishes_or_gets_a_name() {
    let p = TestPool::new("unnamed");
    let f = p.open(b"/", libc::O_TMPFILE | O_RDWR, 0o600).unwrap();
    write_all(&f, &pattern(1, 100_000), 0);
    assert_eq!(
        (p.list(b"/").unwrap().len(), f.stat().unwrap().nlink),
        (0, 0)
    );
    p.assert_whole();
    f.close().unwrap();
    assert_eq!((p.used(), p.store().count_objects()), (0, Ok((1, 0))));
    let open = p
        .open_at(ObjectId::ROOT, b"/", libc::O_TMPFILE | O_RDWR, 0o600)
        .unwrap();
    let id = p.store().live_id(p.live_of(open).unwrap());
    p.at(ObjectId::ROOT, b"/named", Follow::No, |place| {
        p.make_link(id, place)
    })
    .unwrap();
    p.store().open_release(open).unwrap();
    assert_eq!(p.stat(b"/named", false).unwrap().nlink, 1);
    p.assert_whole();
}

// ---- data ----

#[test]
fn sizes_at_every_boundary_survive_closing() {
    let p = TestPool::new("sizes");
    let sizes = [
        0,
        1,
        1023,
        1024,
        1025,
        4095,
        4096,
        4097,
        MIB - 1,
        MIB,
        MIB + 1,
        3 * MIB,
        5 * MIB + 77,
    ];
    for (n, &len) in sizes.iter().enumerate() {
        let path = format!("/f{n}");
        let bytes = pattern(n as u64, len);
        p.put(&path, &bytes);
        assert!(p.get(&path) == bytes, "size {len}");
        let s = p.stat(path.as_bytes(), true).unwrap();
        assert_eq!(s.size, len as u64);
        assert_eq!(
            s.blocks,
            (len.div_ceil(4096) * 8) as u64,
            "blocks of {len} bytes"
        );
        // Written again into the middle, and once more as long.
        let f = p.open(path.as_bytes(), O_RDWR, 0).unwrap();
        let at = len / 2;
        write_all(&f, b"new", at as u64);
        f.close().unwrap();
        let mut expected = bytes.clone();
        expected.resize(len.max(at + 3), 0);
        expected[at..at + 3].copy_from_slice(b"new");
        assert!(p.get(&path) == expected, "size {len}, changed");
    }
    p.assert_whole();
    for n in 0..sizes.len() {
        p.unlink(format!("/f{n}").as_bytes()).unwrap();
    }
    assert_eq!(p.used(), 0);
}

#[test]
fn holes_read_as_zero_also_in_recycled_extents() {
    let p = TestPool::with("holes", &["memory:8M"]);
    for round in 0..3 {
        p.put("/garbage", &vec![0xff; 7 * MIB]);
        p.unlink(b"/garbage").unwrap();
        let f = p.open(b"/sparse", O_CREAT | O_RDWR, 0o600).unwrap();
        let mut expected = vec![0; 3 * MIB];
        for at in [5, 5000, 70_000, MIB - 2, MIB + 9000, 2 * MIB + 1] {
            write_all(&f, b"data", at as u64);
            expected[at..at + 4].copy_from_slice(b"data");
        }
        f.set_len(3 * MIB as u64).unwrap();
        assert!(read_all(&f) == expected, "round {round}");
        f.close().unwrap();
        assert!(p.get("/sparse") == expected, "round {round}, closed");
        p.unlink(b"/sparse").unwrap();
    }
}

#[test]
fn many_sessions_of_appending() {
    let p = TestPool::new("sessions");
    let mut expected = Vec::new();
    // Different lengths, so that files pass all kinds of boundaries while closed.
    for i in 0..400u64 {
        let piece = pattern(i, [100, 5000, 13, 9000][i as usize % 4]);
        let f = p
            .open(b"/log", O_CREAT | O_APPEND | O_WRONLY, 0o600)
            .unwrap();
        write_all(&f, &piece, 0);
        f.close().unwrap();
        expected.extend_from_slice(&piece);
    }
    assert!(p.get("/log") == expected);
    p.assert_whole();
    p.unlink(b"/log").unwrap();
    assert_eq!(p.used(), 0);
}

#[test]
fn truncating_down_and_up_again_shows_zeros() {
    let p = TestPool::new("truncate");
    let cuts = [0, 3, 1024, 4096, 5001, MIB - 1, MIB, MIB + 1, 2 * MIB + 5];
    for &cut in &cuts {
        for close in [false, true] {
            p.put("/f", &vec![0xdd; 3 * MIB]);
            let mut f = p.open(b"/f", O_RDWR, 0).unwrap();
            f.set_len(cut as u64).unwrap();
            if close {
                f.close().unwrap();
                f = p.open(b"/f", O_RDWR, 0).unwrap();
            }
            f.set_len(2 * MIB as u64 + 100).unwrap();
            let mut expected = vec![0xdd; cut.min(2 * MIB + 100)];
            expected.resize(2 * MIB + 100, 0);
            assert!(read_all(&f) == expected, "cut at {cut}, closed: {close}");
        }
    }
    p.put("/small", b"0123456789");
    let f = p.open(b"/small", O_RDWR, 0).unwrap();
    f.set_len(4).unwrap();
    f.close().unwrap();
    let f = p.open(b"/small", O_RDWR, 0).unwrap();
    f.set_len(8).unwrap();
    assert_eq!(read_all(&f), b"0123\0\0\0\0");
    assert_eq!(f.set_len(u64::MAX), Err(Errno::FBIG));
    p.assert_whole();
}

#[test]
fn a_full_pool_loses_nothing_and_recovers() {
    let p = TestPool::with("full", &["memory:4M"]);
    p.put("/small", &pattern(1, 5000));
    let f = p.open(b"/big", O_CREAT | O_RDWR, 0o600).unwrap();
    let (mut written, mut error) = (0, None);
    let bytes = pattern(2, 6 * MIB);
    while error.is_none() {
        match f.write_at(&bytes[written..written + 300_000], written as u64) {
            Ok(n) => written += n,
            Err(e) => error = Some(e),
        }
        assert!(written < 5 * MIB);
    }
    assert_eq!(error, Some(Errno::NOSPC));
    assert!(written > 3 * MIB && f.size() == written as u64);
    let all = read_all(&f);
    assert!(all == bytes[..written]);
    f.close().unwrap();
    assert!(p.get("/big") == all);
    assert_eq!(p.get("/small"), pattern(1, 5000));
    // Names and small files still find room, and deleting works.
    p.put("/tiny", b"x");
    p.assert_whole();
    p.unlink(b"/big").unwrap();
    p.put("/again", &pattern(3, 3 * MIB));
    assert!(p.get("/again") == pattern(3, 3 * MIB));
}

#[test]
fn what_memory_cannot_hold_goes_to_the_next_medium() {
    let p = TestPool::with("overflow", &["memory:2M", "files:DIR:8M"]);
    let bytes = pattern(7, 6 * MIB);
    p.put("/f", &bytes);
    assert!(p.get("/f") == bytes);
    let usage = p.pool().usage();
    assert!(
        usage[0].used > 0 && usage[1].used >= 4 * MIB as u64,
        "{usage:?}"
    );
    let f = p.open(b"/f", O_RDWR, 0).unwrap();
    f.set_len(MIB as u64 * 3 + 5).unwrap();
    f.set_len(MIB as u64 * 4).unwrap();
    let mut expected = bytes[..3 * MIB + 5].to_vec();
    expected.resize(4 * MIB, 0);
    assert!(read_all(&f) == expected);
    f.close().unwrap();
    p.unlink(b"/f").unwrap();
    assert_eq!(p.used(), 0);
    p.assert_whole();
}

#[test]
fn a_medium_in_splinters_leaves_large_files_to_the_next() {
    let p = TestPool::with("splinters", &["memory:2M", "files:DIR:8M"]);
    for i in 0..512 {
        p.put(&format!("/{i}"), &pattern(i, 4096));
    }
    for i in (0..512).step_by(2) {
        p.unlink(format!("/{i}").as_bytes()).unwrap();
    }
    p.put("/large", &pattern(1, 3 * MIB));
    assert!(p.get("/large") == pattern(1, 3 * MIB));
    assert!(
        (1..512)
            .step_by(2)
            .all(|i| p.get(&format!("/{i}")) == pattern(i, 4096))
    );
    p.assert_whole();
}

#[test]
fn punching_reserving_and_finding_holes() {
    let p = TestPool::with("punch", &["memory:8M"]);
    p.put("/f", &vec![0xcc; 2 * MIB]);
    let open = p.open_at(ObjectId::ROOT, b"/f", O_RDWR, 0).unwrap();
    let live = p.live_of(open).unwrap();
    let s = p.store();
    s.punch(live, 4096, 8192, false).unwrap();
    s.punch(live, 2 * MIB as u64 - 10, 100, false).unwrap();
    assert_eq!(s.size(live), Ok(2 * MIB as u64));
    assert_eq!(p.seek(open, Whence::Hole, 0), Ok(4096));
    assert_eq!(p.seek(open, Whence::Data, 4096), Ok(12288));
    assert_eq!(p.seek(open, Whence::Hole, 12288), Ok(2 * MIB as u64));
    assert_eq!(p.seek(open, Whence::Data, 2 * MIB as i64), Err(Errno::NXIO));
    let mut expected = vec![0xcc; 2 * MIB];
    expected[4096..12288].fill(0);
    expected[2 * MIB - 10..].fill(0);
    assert!(p.get("/f") == expected);
    // Room that is reserved can be written whatever else happens.
    s.reserve_range(live, 2 * MIB as u64, 2 * MIB as u64, false)
        .unwrap();
    assert_eq!(s.size(live), Ok(2 * MIB as u64));
    assert_eq!(
        s.reserve_range(live, 0, 20 * MIB as u64, false),
        Err(Errno::NOSPC)
    );
    let filler = p.open(b"/filler", O_CREAT | O_WRONLY, 0o600).unwrap();
    let mut at = 0;
    while let Ok(n) = filler.write_at(&[1; 4096], at) {
        at += n as u64;
    }
    let f = p.open(b"/f", O_RDWR, 0).unwrap();
    write_all(&f, &pattern(1, 2 * MIB), 2 * MIB as u64);
    s.reserve_range(live, 0, 4 * MIB as u64, true).unwrap();
    s.punch(live, 4 * MIB as u64, 10, true).unwrap();
    assert_eq!(f.size(), 4 * MIB as u64 + 10);
    expected.extend(pattern(1, 2 * MIB));
    expected.extend([0; 10]);
    assert!(read_all(&f) == expected);
    s.open_release(open).unwrap();
    drop((f, filler));
    p.assert_whole();
}

// ---- names ----

#[test]
fn an_unlinked_file_lives_until_its_last_close() {
    let p = TestPool::new("unlinked");
    for len in [0, 500, 100_000, 3 * MIB] {
        let bytes = pattern(3, len);
        p.put("/f", &bytes);
        let f = p.open(b"/f", O_RDWR, 0).unwrap();
        let g = p.open(b"/f", O_RDWR, 0).unwrap();
        p.unlink(b"/f").unwrap();
        assert_eq!(p.stat(b"/f", true), Err(Errno::NOENT));
        assert_eq!(g.stat().unwrap().nlink, 0);
        write_all(&f, b"more", len as u64);
        f.close().unwrap();
        assert_eq!(read_all(&g), [&bytes[..], b"more"].concat());
        p.assert_whole();
        g.close().unwrap();
        assert_eq!(
            (p.used(), p.store().count_objects()),
            (0, Ok((1, 0))),
            "{len} bytes"
        );
    }
    // Shrunk and reused by others before it goes: nothing may be given back twice.
    p.put("/f", &pattern(1, MIB));
    let f = p.open(b"/f", O_RDWR, 0).unwrap();
    f.set_len(10).unwrap();
    p.put("/other", &pattern(2, MIB));
    p.unlink(b"/f").unwrap();
    f.close().unwrap();
    p.put("/third", &pattern(3, MIB));
    assert!(p.get("/other") == pattern(2, MIB));
    p.assert_whole();
}

#[test]
fn hard_links_share_everything() {
    let p = TestPool::new("links");
    p.mkdir(b"/d", 0o755).unwrap();
    p.put("/a", b"one");
    p.link(b"/a", b"/d/b").unwrap();
    p.put("/d/b", b"two");
    assert_eq!(p.get("/a"), b"two");
    let (a, b) = (p.stat(b"/a", true).unwrap(), p.stat(b"/d/b", true).unwrap());
    assert_eq!((a, a.nlink), (b, 2));
    assert_eq!(p.link(b"/a", b"/d/b"), Err(Errno::EXIST));
    assert_eq!(p.link(b"/d", b"/e"), Err(Errno::PERM));
    assert_eq!(p.link(b"/no", b"/e"), Err(Errno::NOENT));
    // Both names of one file: rename does nothing.
    p.rename(b"/a", b"/d/b").unwrap();
    assert_eq!(p.stat(b"/a", true).unwrap().nlink, 2);
    p.unlink(b"/a").unwrap();
    assert_eq!(
        (p.get("/d/b"), p.stat(b"/d/b", true).unwrap().nlink),
        (b"two".to_vec(), 1)
    );
    p.symlink(b"x", b"/s").unwrap();
    p.link(b"/s", b"/s2").unwrap();
    assert_eq!(p.readlink(b"/s2"), Ok(b"x".to_vec()));
    p.assert_whole();
}

#[test]
fn renaming_files() {
    let p = TestPool::new("rename");
    p.put("/a", &pattern(1, 20_000));
    p.put("/b", &pattern(2, 30_000));
    let old = p.open(b"/b", O_RDONLY, 0).unwrap();
    p.rename(b"/a", b"/b").unwrap();
    assert_eq!(p.stat(b"/a", true), Err(Errno::NOENT));
    assert_eq!(
        (p.get("/b"), read_all(&old)),
        (pattern(1, 20_000), pattern(2, 30_000))
    );
    assert_eq!(old.stat().unwrap().nlink, 0);
    old.close().unwrap();
    assert_eq!(p.used(), 20_480);
    p.mkdir(b"/d", 0o755).unwrap();
    assert_eq!(p.rename(b"/b", b"/d"), Err(Errno::ISDIR));
    assert_eq!(p.rename(b"/d", b"/b"), Err(Errno::NOTDIR));
    assert_eq!(p.rename(b"/no", b"/b"), Err(Errno::NOENT));
    assert_eq!(p.rename(b"/b", b"/x/"), Err(Errno::NOTDIR));
    assert_eq!(p.rename(b"/b", b"/no/b"), Err(Errno::NOENT));
    p.rename(b"/b", b"/b").unwrap();
    p.put("/c", b"c");
    let root = ObjectId::ROOT;
    let rename = |from: &[u8], to: &[u8], mode| p.rename_at((root, from), (root, to), mode);
    let fails = |e| Err(Fail::Errno(e));
    assert_eq!(
        rename(b"/b", b"/c", RenameMode::NoReplace),
        fails(Errno::EXIST)
    );
    assert_eq!(
        rename(b"/b", b"/n", RenameMode::Exchange),
        fails(Errno::NOENT)
    );
    rename(b"/b", b"/c", RenameMode::Exchange).unwrap();
    assert_eq!(
        (p.get("/b"), p.get("/c")),
        (b"c".to_vec(), pattern(1, 20_000))
    );
    rename(b"/b", b"/n", RenameMode::NoReplace).unwrap();
    p.put("/d/inside", b"i");
    rename(b"/d", b"/n", RenameMode::Exchange).unwrap();
    assert_eq!(
        (p.get("/d"), p.get("/n/inside")),
        (b"c".to_vec(), b"i".to_vec())
    );
    // A slash asks for a directory where it stands.
    let not = fails(Errno::NOTDIR);
    assert_eq!(rename(b"/n", b"/d/", RenameMode::Exchange), not);
    assert_eq!(rename(b"/d/", b"/n", RenameMode::Exchange), not);
    rename(b"/d", b"/n/", RenameMode::Exchange).unwrap();
    rename(b"/d/", b"/n", RenameMode::Exchange).unwrap();
    let into = fails(Errno::INVAL);
    assert_eq!(rename(b"/n", b"/n/inside", RenameMode::Exchange), into);
    assert_eq!(rename(b"/n/inside", b"/n", RenameMode::Exchange), into);
    p.assert_whole();
}

#[test]
fn renaming_directories() {
    let p = TestPool::new("rename-dirs");
    for d in ["/a", "/a/b", "/a/b/c", "/x", "/y"] {
        p.mkdir(d.as_bytes(), 0o755).unwrap();
    }
    p.put("/a/b/c/f", b"deep");
    let f = p.open(b"/a/b/c/f", O_RDWR, 0).unwrap();
    assert_eq!(p.rename(b"/a", b"/a/b/a"), Err(Errno::INVAL));
    assert_eq!(p.rename(b"/a", b"/a/b"), Err(Errno::INVAL));
    assert_eq!(p.rename(b"/x", b"/a"), Err(Errno::NOTEMPTY));
    assert_eq!(p.rename(b"/a/b", b"/a"), Err(Errno::NOTEMPTY));
    assert_eq!(p.rename(b"/", b"/z"), Err(Errno::BUSY));
    // Onto an empty one, elsewhere.
    p.rename(b"/a/b", b"/x").unwrap();
    assert_eq!(
        (p.get("/x/c/f"), p.stat(b"/a/b/c/f", true)),
        (b"deep".to_vec(), Err(Errno::NOENT))
    );
    write_all(&f, b"DEEP", 0);
    assert_eq!(p.get("/x/c/f"), b"DEEP");
    let links = |path: &str| p.stat(path.as_bytes(), true).unwrap().nlink;
    assert_eq!((links("/"), links("/a"), links("/x")), (5, 2, 3));
    assert_eq!(
        p.store()
            .path_of(ObjectId(p.stat(b"/x/c", true).unwrap().ino)),
        Ok(b"/x/c".to_vec())
    );
    let root = ObjectId::ROOT;
    p.rename_at((root, b"/x"), (root, b"/y"), RenameMode::Exchange)
        .unwrap();
    assert_eq!(p.get("/y/c/f"), b"DEEP");
    p.rename(b"/y/c", b"/a/c2").unwrap();
    assert_eq!((links("/y"), links("/a"), links("/")), (2, 3, 5));
    assert_eq!(p.get("/a/c2/../c2/./f"), b"DEEP");
    drop(f);
    p.assert_whole();
}

#[test]
fn another_view_with_cached_paths_follows_at_once() {
    let p = TestPool::new("views");
    // A second view has a cache of its own; the store is the same.
    let dir = p.pool().dir().to_owned();
    p.mkdir(b"/a", 0o755).unwrap();
    p.mkdir(b"/a/b", 0o755).unwrap();
    p.put("/a/b/f", b"1");
    let mut other = p.worker("watch", "");
    wait_until("the watcher has looked", || p.stat(b"/seen", true).is_ok());
    p.rename(b"/a", b"/z").unwrap();
    p.mkdir(b"/a", 0o755).unwrap();
    p.mkdir(b"/a/b", 0o755).unwrap();
    p.put("/a/b/f", b"2");
    p.mkdir(b"/go", 0o755).unwrap();
    wait_until("the watcher is done", || other.is_done());
    assert_eq!(other.finish(), ["1", "2", "1"]);
    assert!(dir.exists());
}

/// Not a test: what the other process does.
#[test]
#[ignore = "started by another test in a process of its own"]
fn worker() {
    let Some((role, _, fs)) = worker_role() else {
        return;
    };
    assert_eq!(role, "watch");
    let get = |path: &str| {
        let f = fs.open(path.as_bytes(), O_RDONLY, 0).unwrap();
        println!("> {}", String::from_utf8(read_all(&f)).unwrap());
    };
    get("/a/b/f");
    fs.mkdir(b"/seen", 0o755).unwrap();
    wait_until("the other side has renamed", || {
        fs.stat(b"/go", true).is_ok()
    });
    get("/a/b/f");
    get("/z/b/f");
}

#[test]
fn symbolic_links() {
    let p = TestPool::new("symlinks");
    p.mkdir(b"/d", 0o755).unwrap();
    p.mkdir(b"/d/e", 0o755).unwrap();
    p.put("/d/f", b"content");
    for (target, link) in [
        ("d/f", "/relative"),
        ("../f", "/d/e/up"),
        ("/fb/d/f", "/absolute"),
        ("/fb/d", "/dir"),
        ("nowhere", "/dangling"),
        ("loop2", "/loop1"),
        ("loop1", "/loop2"),
        ("/etc/passwd", "/out"),
    ] {
        p.symlink(target.as_bytes(), link.as_bytes()).unwrap();
    }
    for path in [
        "/relative",
        "/d/e/up",
        "/absolute",
        "/dir/f",
        "/dir/e/../f",
        "/dir/e/up",
    ] {
        assert_eq!(p.get(path), b"content", "{path}");
    }
    assert_eq!(p.stat(b"/relative", false).unwrap().size, 3);
    assert_eq!(p.readlink(b"/absolute"), Ok(b"/fb/d/f".to_vec()));
    assert_eq!(p.readlink(b"/d/f"), Err(Errno::INVAL));
    assert_eq!(p.stat(b"/dangling", true), Err(Errno::NOENT));
    assert_eq!(p.stat(b"/loop1", true), Err(Errno::LOOP));
    assert_eq!(p.stat(b"/loop1/x", false), Err(Errno::LOOP));
    assert_eq!(p.stat(b"/out", true), Err(Errno::XDEV));
    let out = p.walk(ObjectId::ROOT, b"/out", Follow::Yes).map(|_| ());
    assert_eq!(out, Err(Fail::Outside(b"/etc/passwd".to_vec())));
    let above = p
        .walk(ObjectId::ROOT, b"/d/../../etc", Follow::Yes)
        .map(|_| ());
    assert_eq!(above, Err(Fail::Outside(b"/etc".to_vec())));
    p.symlink(b"/etc", b"/etc-link").unwrap();
    for (path, out) in [
        (&b"/d/../.."[..], &b"/"[..]),
        (b"/../", b"/"),
        (b"/etc-link/x/y", b"/etc/x/y"),
    ] {
        let got = p.walk(ObjectId::ROOT, path, Follow::No).map(|_| ());
        assert_eq!(got, Err(Fail::Outside(out.to_vec())));
    }
    // Created through a dangling link; not if it must be new.
    assert!(is(
        p.open(b"/dangling", O_CREAT | O_EXCL | O_WRONLY, 0o600),
        Errno::EXIST
    ));
    assert!(is(p.open(b"/relative", libc::O_NOFOLLOW, 0), Errno::LOOP));
    p.put("/dangling", b"made");
    assert_eq!(p.get("/nowhere"), b"made");
    assert!(p.stat(b"/dir/", false).unwrap().mode & libc::S_IFMT == libc::S_IFDIR);
    assert_eq!(p.rmdir(b"/dir"), Err(Errno::NOTDIR));
    // A link changed to point elsewhere takes effect at once.
    p.mkdir(b"/d2", 0o755).unwrap();
    p.put("/d2/f", b"other");
    p.symlink(b"d2", b"/new").unwrap();
    p.rename(b"/new", b"/dir").unwrap();
    assert_eq!(p.get("/dir/f"), b"other");
    p.unlink(b"/dir").unwrap();
    assert_eq!(p.stat(b"/dir/f", true), Err(Errno::NOENT));
    assert_eq!(p.symlink(b"", b"/x"), Err(Errno::NOENT));
    assert_eq!(p.symlink(&[b'a'; 4096], b"/x"), Err(Errno::NAMETOOLONG));
    p.assert_whole();
}

#[test]
fn directories() {
    let p = TestPool::new("dirs");
    p.mkdir(b"/d", 0o750).unwrap();
    p.mkdir(b"/d/sub/", 0o755).unwrap();
    p.put("/f", b"");
    let s = p.stat(b"/d", true).unwrap();
    assert_eq!((s.mode, s.nlink), (libc::S_IFDIR | 0o750, 3));
    assert_eq!(p.mkdir(b"/d", 0o755), Err(Errno::EXIST));
    assert_eq!(p.mkdir(b"/", 0o755), Err(Errno::EXIST));
    assert_eq!(p.mkdir(b"/no/d", 0o755), Err(Errno::NOENT));
    assert_eq!(p.mkdir(b"/f/d", 0o755), Err(Errno::NOTDIR));
    assert_eq!(p.rmdir(b"/d"), Err(Errno::NOTEMPTY));
    assert_eq!(p.rmdir(b"/f"), Err(Errno::NOTDIR));
    assert_eq!(p.rmdir(b"/no"), Err(Errno::NOENT));
    assert_eq!(p.rmdir(b"/d/."), Err(Errno::INVAL));
    assert_eq!(p.rmdir(b"/d/sub/.."), Err(Errno::NOTEMPTY));
    assert_eq!(p.rmdir(b"/"), Err(Errno::BUSY));
    assert_eq!(p.unlink(b"/d"), Err(Errno::ISDIR));
    assert_eq!(p.unlink(b"/f/"), Err(Errno::NOTDIR));
    p.rmdir(b"/d/sub").unwrap();
    assert_eq!(p.stat(b"/d", true).unwrap().nlink, 2);
    let open = p.open(b"/d", O_DIRECTORY, 0).unwrap();
    p.rmdir(b"/d/").unwrap();
    assert_eq!(
        (open.entries(), open.stat().unwrap().nlink),
        (Ok(vec![]), 0)
    );
    assert!(is(p.open(b"/d/x", O_CREAT | O_WRONLY, 0o600), Errno::NOENT));
    p.assert_whole();
}

#[test]
fn listing_thousands_while_they_go() {
    let p = TestPool::new("listing");
    p.mkdir(b"/d", 0o755).unwrap();
    let count = 5000;
    for i in 0..count {
        p.mknod(format!("/d/{i}").as_bytes(), libc::S_IFREG | 0o600, 0)
            .unwrap();
    }
    let open = p.open_at(ObjectId::ROOT, b"/d", O_DIRECTORY, 0).unwrap();
    // In portions of 100; half of what has been listed goes at once, and some that wasn't.
    let mut seen = std::collections::HashSet::new();
    let mut gone = std::collections::HashSet::new();
    let mut offsets = Vec::new();
    loop {
        let mut portion = Vec::new();
        p.read_dir(open, |name, _, _, next| {
            portion.push((String::from_utf8(name.to_vec()).unwrap(), next));
            portion.len() <= 100
        })
        .unwrap();
        // The last one was refused and comes again.
        if portion.len() > 100 {
            portion.pop();
        }
        if portion.is_empty() {
            break;
        }
        for (k, (name, next)) in portion.iter().enumerate() {
            assert!(seen.insert(name.clone()), "{name} was listed twice");
            assert!(!gone.contains(name), "{name} was listed after its removal");
            offsets.push(*next);
            if k % 2 == 0 && name.parse::<u32>().is_ok() {
                p.unlink(format!("/d/{name}").as_bytes()).unwrap();
                gone.insert(name.clone());
            }
        }
        let unseen = (0..count)
            .map(|i| i.to_string())
            .find(|n| !seen.contains(n) && !gone.contains(n));
        if let Some(name) = unseen {
            p.unlink(format!("/d/{name}").as_bytes()).unwrap();
            gone.insert(name);
        }
    }
    assert!(seen.contains(".") && seen.contains(".."));
    for i in 0..count {
        let name = i.to_string();
        assert!(
            seen.contains(&name) || gone.contains(&name),
            "{name} was never listed"
        );
    }
    assert!(offsets.iter().copied().eq(1..=offsets.len() as u64));
    // From the start again, and from a position.
    let left = p.list(b"/d").unwrap().len();
    for start in [0, 1, 2, 700] {
        p.seek(open, Whence::Start, start).unwrap();
        let mut n = 0;
        p.read_dir(open, |_, _, _, _| {
            n += 1;
            true
        })
        .unwrap();
        assert_eq!(n, left + 2 - start as usize);
    }
    p.store().open_release(open).unwrap();
}

#[test]
fn names_may_be_odd_but_not_too_long() {
    let p = TestPool::new("names");
    let long = [b'n'; 255];
    let too_long = [b'n'; 256];
    let path = |n: &[u8]| [b"/", n].concat();
    for name in [
        &long[..],
        b"a b\n\t",
        b"\xff\xfe\x01",
        b"...",
        b"-",
        "žluťoučký".as_bytes(),
    ] {
        p.mkdir(&path(name), 0o755).unwrap();
        assert!(p.list(b"/").unwrap().iter().any(|e| e.name == name));
        p.put("/f", b"1");
        p.rename(b"/f", &[&path(name)[..], b"/f"].concat()).unwrap();
        assert_eq!(p.list(&path(name)).unwrap()[0].name, b"f");
    }
    for result in [
        p.mkdir(&path(&too_long), 0o755),
        p.stat(&path(&too_long), true).map(|_| ()),
        p.stat(&[&path(&too_long)[..], b"/x"].concat(), true)
            .map(|_| ()),
        p.rename(&path(&long), &path(&too_long)),
        p.stat(&vec![b'/'; 4096], true).map(|_| ()),
    ] {
        assert_eq!(result, Err(Errno::NAMETOOLONG));
    }
    let deep: Vec<u8> = path(&long).repeat(15);
    let mut at = Vec::new();
    for part in deep.chunks(256) {
        at.extend_from_slice(part);
        let _ = p.mkdir(&at, 0o755);
    }
    assert_eq!(p.stat(&deep, true).unwrap().nlink, 2);
    p.assert_whole();
}

// ---- attributes ----

#[test]
fn times() {
    let p = TestPool::new("times");
    p.mkdir(b"/d", 0o755).unwrap();
    p.put("/d/f", b"1");
    let times = |path: &str| {
        let s = p.stat(path.as_bytes(), false).unwrap();
        (s.mtime, s.ctime)
    };
    // The clock that times are taken from ticks every few milliseconds.
    let tick = || std::thread::sleep(std::time::Duration::from_millis(10));
    let changes = |what: &str, path: &str, f: &dyn Fn()| {
        let before = times(path);
        tick();
        f();
        let after = times(path);
        assert!(
            after.0 > before.0 && after.1 > before.1,
            "{what}: {before:?} {after:?}"
        );
    };
    changes("create", "/d", &|| p.put("/d/g", b""));
    changes("unlink", "/d", &|| p.unlink(b"/d/g").unwrap());
    changes("mkdir", "/d", &|| p.mkdir(b"/d/s", 0o755).unwrap());
    changes("rename", "/d", &|| p.rename(b"/d/s", b"/s").unwrap());
    changes("rename", "/", &|| p.rename(b"/s", b"/d/s").unwrap());
    changes("rmdir", "/d", &|| p.rmdir(b"/d/s").unwrap());
    changes("symlink", "/d", &|| p.symlink(b"x", b"/d/l").unwrap());
    changes("link", "/d", &|| p.link(b"/d/f", b"/d/h").unwrap());
    changes("write", "/d/f", &|| p.put("/d/f", b"22"));
    p.put("/empty", b"");
    changes("truncation of an empty file", "/empty", &|| {
        p.put("/empty", b"")
    });
    // Only ctime: link, chmod, rename.
    for what in ["link", "chmod", "rename"] {
        let before = times("/d/f");
        tick();
        match what {
            "link" => p.link(b"/d/f", b"/d/i").unwrap(),
            "chmod" => p.chmod(b"/d/f", 0o640).unwrap(),
            _ => {
                p.rename(b"/d/f", b"/d/f2").unwrap();
                p.rename(b"/d/f2", b"/d/f").unwrap();
            }
        }
        let after = times("/d/f");
        assert!(after.0 == before.0 && after.1 > before.1, "{what}");
    }
    // Set by hand, they stay through close, open and reading; of open files, too.
    let check = |path: &str| {
        let s = p.stat(path.as_bytes(), true).unwrap();
        assert_eq!(
            (s.atime, s.mtime),
            (5_000_000_001, -7_000_000_002),
            "{path}"
        );
    };
    let f = p.open(b"/d/f", O_RDWR, 0).unwrap();
    write_all(&f, b"333", 0);
    f.set_times(Some(5_000_000_001), Some(-7_000_000_002))
        .unwrap();
    check("/d/f");
    f.close().unwrap();
    check("/d/f");
    assert_eq!(p.get("/d/f"), b"333");
    check("/d/f");
    p.set_times(b"/d", Some(5_000_000_001), Some(-7_000_000_002), true)
        .unwrap();
    check("/d");
    // One alone leaves the other.
    p.set_times(b"/d/f", None, Some(1), true).unwrap();
    let s = p.stat(b"/d/f", true).unwrap();
    assert_eq!((s.atime, s.mtime), (5_000_000_001, 1));
    p.set_times(b"/d/l", None, Some(2), false).unwrap();
    assert_eq!(times("/d/l").0, 2);
}

#[test]
fn modes_and_owners() {
    let p = TestPool::new("modes");
    p.put("/f", b"1");
    let f = p.open(b"/f", O_RDWR, 0).unwrap();
    write_all(&f, b"open", 0);
    p.chmod(b"/f", 0o4751).unwrap();
    assert_eq!(f.stat().unwrap().mode, libc::S_IFREG | 0o4751);
    f.close().unwrap();
    assert_eq!(p.stat(b"/f", true).unwrap().mode, libc::S_IFREG | 0o4751);
    assert_eq!(p.chmod(b"/no", 0o600), Err(Errno::NOENT));
    let me = p.stat(b"/f", true).unwrap();
    p.chown(b"/f", Some(me.uid), Some(me.gid), true).unwrap();
    // Who owns it is settled anew: set-user-id goes.
    assert_eq!(p.stat(b"/f", true).unwrap().mode, libc::S_IFREG | 0o751);
    if me.uid == 0 {
        p.chown(b"/f", Some(123), None, true).unwrap();
        let s = p.stat(b"/f", true).unwrap();
        assert_eq!((s.uid, s.gid), (123, me.gid));
    }
    p.mknod(b"/fifo", libc::S_IFIFO | 0o600, 0).unwrap();
    assert_eq!(p.stat(b"/fifo", true).unwrap().mode, libc::S_IFIFO | 0o600);
    assert!(is(p.open(b"/fifo", O_RDONLY, 0), Errno::NXIO));
    p.mkdir(b"/g", 0o755).unwrap();
    p.chmod(b"/g", 0o2775).unwrap();
    p.mkdir(b"/g/sub", 0o755).unwrap();
    assert_eq!(p.stat(b"/g/sub", true).unwrap().mode & 0o7777, 0o2755);
}

#[test]
fn extended_attributes() {
    let p = TestPool::new("xattrs");
    p.put("/f", b"content");
    p.mkdir(b"/d", 0o755).unwrap();
    for path in [&b"/f"[..], b"/d"] {
        assert_eq!(p.xattr(path, b"user.a", true), Err(Errno::NODATA));
        p.set_xattr(path, b"user.a", b"1", true).unwrap();
        p.set_xattr(path, b"user.empty", b"", true).unwrap();
        let large = pattern(1, 65_536);
        p.set_xattr(path, b"user.large", &large, true).unwrap();
        assert!(p.xattr(path, b"user.large", true) == Ok(large));
        assert_eq!(p.xattr(path, b"user.empty", true), Ok(vec![]));
        let mut names = p.xattrs(path, true).unwrap();
        names.sort();
        assert_eq!(names, [&b"user.a"[..], b"user.empty", b"user.large"]);
        let id = ObjectId(p.stat(path, true).unwrap().ino);
        let set = |name: &[u8], flags| p.set_attribute(id, name, b"2", flags);
        assert_eq!(set(b"user.a", libc::XATTR_CREATE), Err(Errno::EXIST));
        assert_eq!(set(b"user.b", libc::XATTR_REPLACE), Err(Errno::NODATA));
        assert_eq!(set(b"other.b", 0), Err(Errno::OPNOTSUPP));
        assert_eq!(set(&[b'u'; 256], 0), Err(Errno::RANGE));
        assert_eq!(
            p.set_xattr(path, b"user.x", &[0; 65_537], true),
            Err(Errno::TOOBIG)
        );
        set(b"user.a", libc::XATTR_REPLACE).unwrap();
        assert_eq!(p.xattr(path, b"user.a", true), Ok(b"2".to_vec()));
        p.remove_xattr(path, b"user.a", true).unwrap();
        assert_eq!(p.remove_xattr(path, b"user.a", true), Err(Errno::NODATA));
        assert_eq!(p.xattrs(path, true).unwrap().len(), 2);
    }
    // They stay with the file and go with it.
    p.rename(b"/f", b"/d/g").unwrap();
    assert_eq!(p.xattrs(b"/d/g", true).unwrap().len(), 2);
    p.unlink(b"/d/g").unwrap();
    p.rmdir(b"/d").unwrap();
    p.assert_whole();
}

#[test]
fn damage_is_found() {
    let p = TestPool::new("damage");
    p.put("/f", &pattern(1, 100_000));
    p.put("/g", &pattern(2, 100_000));
    p.assert_whole();
    // Pages marked as free though a file has them; and pages that nobody has.
    let cells = p.store().media()[0].cells();
    let mut bits = cells.used_bits();
    let word = bits.iter().position(|&w| w != 0).unwrap();
    let good = bits.clone();
    bits[word] &= bits[word] - 1;
    let last = bits.len() - 1;
    bits[last] |= 1 << 63;
    cells.rebuild(&bits);
    let findings = p.store().check().unwrap();
    for words in ["in use by nobody", "marked as free"] {
        assert!(findings.iter().any(|f| f.contains(words)), "{findings:?}");
    }
    assert_eq!(p.store().rebuild_free_space(), Ok(2));
    assert_eq!(cells.used_bits(), good);
    p.assert_whole();
}

#[test]
fn data_behind_a_hole_of_petabytes_is_found_at_once() {
    let pool = TestPool::new("petabytes");
    let f = pool.open(b"/f", O_CREAT | O_RDWR, 0o600).unwrap();
    let far = 1u64 << 54;
    f.set_len(far).unwrap();
    assert_eq!(f.seek_data(0), Err(Errno::NXIO));
    write_all(&f, b"x", far);
    assert_eq!(f.seek_data(0), Ok(far));
    assert_eq!(f.seek_hole(0), Ok(0));
}
