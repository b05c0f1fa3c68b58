//! Tests of creating and opening files.

use super::O_DIRECTORY;
use super::support::*;
use forebay_posix::{Errno, Follow, ObjectId, Whence};

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
    assert_eq!(p.write(open, None, b"abcdef"[..].into()), Ok(6));
    assert_eq!(p.seek(open, Whence::Start, 2), Ok(2));
    let mut b = [0; 3];
    assert_eq!(p.read(open, None, (&mut b[..]).into()), Ok(3));
    assert_eq!(&b, b"cde");
    assert_eq!(p.seek(open, Whence::Current, -1), Ok(4));
    assert_eq!(p.seek(open, Whence::End, 10), Ok(16));
    assert_eq!(p.seek(open, Whence::Current, -17), Err(Errno::INVAL));
    assert_eq!(p.write(open, None, b"z"[..].into()), Ok(1));
    assert_eq!(p.get("/f"), b"abcdef\0\0\0\0\0\0\0\0\0\0z");
    p.store().objects().open_release(open).unwrap();
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
    assert_eq!(
        (
            p.used(),
            forebay_store::accounting::count_objects(p.store())
        ),
        (0, Ok((1, 0)))
    );
    let open = p
        .open_at(ObjectId::ROOT, b"/", libc::O_TMPFILE | O_RDWR, 0o600)
        .unwrap();
    let id = p.store().content().live_id(p.live_of(open).unwrap());
    p.resolver()
        .at(ObjectId::ROOT, b"/named", Follow::No, |place| {
            p.make_link(id, place)
        })
        .unwrap();
    p.store().objects().open_release(open).unwrap();
    assert_eq!(p.stat(b"/named", false).unwrap().nlink, 1);
    p.assert_whole();
}
