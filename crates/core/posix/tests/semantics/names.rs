//! Tests of names: links, renames, directories, unusual paths.

use super::MIB;
use super::O_DIRECTORY;
use super::support::*;
use forebay_posix::{Errno, Fail, Follow, ObjectId, RenameMode, Whence};

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
            (
                p.used(),
                forebay_store::accounting::count_objects(p.store())
            ),
            (0, Ok((1, 0))),
            "{len} bytes"
        );
    }
    // The file is truncated, and other files reuse its room, before it is removed: no page may be
    // freed twice.
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
    // Between two names of one file, rename does nothing.
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
    // A name that ends in a slash must be a directory's.
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
    // A rename onto an empty directory elsewhere.
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
        p.cluster()
            .namespace()
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
    // A second view has its own cache; the store is the same.
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
    let out = p
        .resolver()
        .walk(ObjectId::ROOT, b"/out", Follow::Yes)
        .map(|_| ());
    assert_eq!(out, Err(Fail::Outside(b"/etc/passwd".to_vec())));
    let above = p
        .resolver()
        .walk(ObjectId::ROOT, b"/d/../../etc", Follow::Yes)
        .map(|_| ());
    assert_eq!(above, Err(Fail::Outside(b"/etc".to_vec())));
    p.symlink(b"/etc", b"/etc-link").unwrap();
    for (path, out) in [
        (&b"/d/../.."[..], &b"/"[..]),
        (b"/../", b"/"),
        (b"/etc-link/x/y", b"/etc/x/y"),
    ] {
        let got = p
            .resolver()
            .walk(ObjectId::ROOT, path, Follow::No)
            .map(|_| ());
        assert_eq!(got, Err(Fail::Outside(out.to_vec())));
    }
    // A file is created through a dangling link, but not with O_EXCL.
    assert!(is(
        p.open(b"/dangling", O_CREAT | O_EXCL | O_WRONLY, 0o600),
        Errno::EXIST
    ));
    assert!(is(p.open(b"/relative", libc::O_NOFOLLOW, 0), Errno::LOOP));
    p.put("/dangling", b"made");
    assert_eq!(p.get("/nowhere"), b"made");
    assert!(p.stat(b"/dir/", false).unwrap().mode & libc::S_IFMT == libc::S_IFDIR);
    assert_eq!(p.rmdir(b"/dir"), Err(Errno::NOTDIR));
    // A link that is replaced by one to another target takes effect at once.
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
        (Err(Errno::NOENT), 0)
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
    // Lists portions of 100 entries. Half of the listed entries are removed at once, and also some
    // entries that weren't listed yet.
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
        // The last entry was refused, so the next portion begins with it.
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
    // Lists from the start again, and from other positions.
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
    p.store().objects().open_release(open).unwrap();
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
