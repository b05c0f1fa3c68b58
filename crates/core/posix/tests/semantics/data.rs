//! Tests of the content of files: sizes, holes, full media.

use super::MIB;
use super::support::*;
use forebay_posix::{Errno, ObjectId, Whence};

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
        // Writes three bytes into the middle. The write may make a small file longer.
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
    // Pieces of different lengths, so that files cross boundaries of all kinds while closed.
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
    // There is still room for names and small files, and files can be deleted.
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
fn a_hole_gives_its_room_back() {
    let p = TestPool::with("hole-room", &["memory:8M"]);
    p.put("/f", &vec![0xcc; 4 * MIB]);
    let open = p.open_at(ObjectId::ROOT, b"/f", O_RDWR, 0).unwrap();
    let live = p.live_of(open).unwrap();
    let cluster = p.cluster();
    let mut expected = vec![0xcc; 4 * MIB];
    let all = p.stat_open(open).unwrap().blocks;
    // For each hole: its start, its end, and the number of bytes that all holes so far have freed.
    let holes = [
        // Two whole chunks.
        (MIB, 3 * MIB, 2 * MIB),
        // Holes at the start or in the middle of a chunk free no room.
        (3 * MIB, 3 * MIB + 8192, 2 * MIB),
        (8192, 16_384, 2 * MIB),
        // Up to the end of the first chunk, and of the file.
        (MIB / 2, MIB, 2 * MIB + MIB / 2),
        (3 * MIB + MIB / 2 + 5, 4 * MIB, 3 * MIB - 4096),
        // The first hole again.
        (MIB, 3 * MIB, 3 * MIB - 4096),
    ];
    for (from, to, room) in holes {
        let len = (to - from) as u64;
        cluster.data().punch(live, from as u64, len, false).unwrap();
        expected[from..to].fill(0);
        assert!(p.get("/f") == expected, "{from}..{to}");
        let left = p.stat_open(open).unwrap().blocks;
        assert_eq!((all - left) * 512, room as u64, "{from}..{to}");
    }
    assert_eq!(
        p.seek(open, Whence::Hole, 2 * MIB as i64),
        Ok(2 * MIB as u64)
    );
    // Other files can use the freed room, and the holes can be written again.
    p.put("/other", &vec![0xdd; 6 * MIB]);
    p.unlink(b"/other").unwrap();
    let f = p.open(b"/f", O_RDWR, 0).unwrap();
    write_all(&f, &pattern(1, 2 * MIB), 3 * MIB as u64 / 2);
    expected[3 * MIB / 2..7 * MIB / 2].copy_from_slice(&pattern(1, 2 * MIB));
    assert!(read_all(&f) == expected);
    cluster.store().objects().open_release(open).unwrap();
    drop(f);
    assert!(p.get("/f") == expected);
    p.assert_whole();
}

#[test]
fn punching_reserving_and_finding_holes() {
    let p = TestPool::with("punch", &["memory:8M"]);
    p.put("/f", &vec![0xcc; 2 * MIB]);
    let open = p.open_at(ObjectId::ROOT, b"/f", O_RDWR, 0).unwrap();
    let live = p.live_of(open).unwrap();
    let cluster = p.cluster();
    cluster.data().punch(live, 4096, 8192, false).unwrap();
    cluster
        .data()
        .punch(live, 2 * MIB as u64 - 10, 100, false)
        .unwrap();
    assert_eq!(cluster.data().size(live), Ok(2 * MIB as u64));
    assert_eq!(p.seek(open, Whence::Hole, 0), Ok(4096));
    assert_eq!(p.seek(open, Whence::Data, 4096), Ok(12288));
    assert_eq!(p.seek(open, Whence::Hole, 12288), Ok(2 * MIB as u64));
    assert_eq!(p.seek(open, Whence::Data, 2 * MIB as i64), Err(Errno::NXIO));
    let mut expected = vec![0xcc; 2 * MIB];
    expected[4096..12288].fill(0);
    expected[2 * MIB - 10..].fill(0);
    assert!(p.get("/f") == expected);
    // Reserved ranges can be written even when the pool is full.
    cluster
        .data()
        .reserve_range(live, 2 * MIB as u64, 2 * MIB as u64, false)
        .unwrap();
    assert_eq!(cluster.data().size(live), Ok(2 * MIB as u64));
    assert_eq!(
        cluster
            .data()
            .reserve_range(live, 0, 20 * MIB as u64, false),
        Err(Errno::NOSPC)
    );
    let filler = p.open(b"/filler", O_CREAT | O_WRONLY, 0o600).unwrap();
    let mut at = 0;
    while let Ok(n) = filler.write_at(&[1; 4096], at) {
        at += n as u64;
    }
    let f = p.open(b"/f", O_RDWR, 0).unwrap();
    write_all(&f, &pattern(1, 2 * MIB), 2 * MIB as u64);
    cluster
        .data()
        .reserve_range(live, 0, 4 * MIB as u64, true)
        .unwrap();
    cluster
        .data()
        .punch(live, 4 * MIB as u64, 10, true)
        .unwrap();
    assert_eq!(f.size(), 4 * MIB as u64 + 10);
    expected.extend(pattern(1, 2 * MIB));
    expected.extend([0; 10]);
    assert!(read_all(&f) == expected);
    cluster.store().objects().open_release(open).unwrap();
    drop((f, filler));
    p.assert_whole();
}
