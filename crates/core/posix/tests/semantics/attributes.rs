//! Tests of times, modes, owners and extended attributes, and of finding damage.

use super::support::*;
use forebay_posix::{Errno, Fail, ObjectId};

#[test]
fn times() {
    let p = TestPool::new("times");
    p.mkdir(b"/d", 0o755).unwrap();
    p.put("/d/f", b"1");
    let times = |path: &str| {
        let s = p.stat(path.as_bytes(), false).unwrap();
        (s.mtime, s.ctime)
    };
    // The clock from which times are taken advances every few milliseconds only.
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
    // link, chmod and rename change ctime only.
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
    // Times that were set don't change when the file is closed, opened and read. Times can be set
    // for open files, too.
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
    // One time can be set without the other.
    p.set_times(b"/d/f", None, Some(1), true).unwrap();
    let s = p.stat(b"/d/f", true).unwrap();
    assert_eq!((s.atime, s.mtime), (5_000_000_001, 1));
    p.set_times(b"/d/l", None, Some(2), false).unwrap();
    assert_eq!(times("/d/l").0, 2);
}

#[test]
fn a_removed_directory_that_is_open_keeps_its_attributes() {
    let p = TestPool::new("removed-attributes");
    for replaced in [false, true] {
        p.mkdir(b"/d", 0o755).unwrap();
        p.mkdir(b"/other", 0o755).unwrap();
        p.chmod(b"/d", 0o751).unwrap();
        let d = p.open(b"/d", O_RDONLY, 0).unwrap();
        let id = ObjectId(d.stat().unwrap().ino);
        let big = [1; 300];
        let set = |name: &[u8], value: &[u8]| p.set_attribute(id, name, value, 0, None);
        set(b"user.kept", b"value").unwrap();
        set(b"user.too-large", &big).unwrap();
        if replaced {
            p.rename(b"/other", b"/d").unwrap();
        } else {
            p.rmdir(b"/d").unwrap();
        }
        let s = d.stat().unwrap();
        assert_eq!((s.mode, s.nlink), (libc::S_IFDIR | 0o751, 0));
        assert_eq!(p.get_attribute(id, b"user.kept").unwrap(), b"value");
        // Those that have no room are gone, and can't be set.
        assert_eq!(p.attribute_names(id).unwrap(), [b"user.kept"]);
        assert_eq!(set(b"user.too-large", &big), Err(Errno::NOSPC));
        p.remove_attribute(id, b"user.kept").unwrap();
        assert_eq!(p.get_attribute(id, b"user.kept"), Err(Errno::NODATA));
        // Another description of it has the same attributes, also after a change.
        p.change_mode(id, 0o700).unwrap();
        let dot = p.open_at(id, b".", O_RDONLY, 0).unwrap();
        assert_eq!(p.stat_open(dot).unwrap().mode, libc::S_IFDIR | 0o700);
        p.change_times(id, Some(5), Some(7), false).unwrap();
        assert_eq!(
            (d.stat().unwrap().mtime, p.stat_open(dot).unwrap().atime),
            (7, 5)
        );
        let made = p.open_at(id, b"x", O_RDWR | O_CREAT, 0o600);
        assert_eq!(made, Err(Fail::Errno(Errno::NOENT)));
        p.description(dot).release().unwrap();
        d.close().unwrap();
        // It isn't in use any more.
        assert_eq!(p.change_mode(id, 0o755), Err(Errno::NOENT));
        p.rmdir(if replaced { b"/d" } else { &b"/other"[..] })
            .unwrap();
    }
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
    // The file's owner is set to the same user: set-user-id is removed nevertheless.
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
        let set = |name: &[u8], flags| p.set_attribute(id, name, b"2", flags, None);
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
    // A renamed file keeps its attributes. The attributes are removed with the file.
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
    // Damage: pages marked as free though a file has them, and pages marked as used that no file
    // has.
    let cells = p.store().media()[0].cells();
    let mut bits = cells.used_bits();
    let word = bits.iter().position(|&w| w != 0).unwrap();
    let good = bits.clone();
    bits[word] &= bits[word] - 1;
    let last = bits.len() - 1;
    bits[last] |= 1 << 63;
    cells.rebuild(&bits);
    let findings = forebay_store::fsck::check(p.store()).unwrap();
    for words in ["in use by nobody", "marked as free"] {
        assert!(findings.iter().any(|f| f.contains(words)), "{findings:?}");
    }
    assert_eq!(p.store().recovery().rebuild_free_space(), Ok(2));
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
