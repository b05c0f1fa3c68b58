//! Tests of the check with damage of every kind: each is found, named, and repaired.

use super::*;
use crate::Store;
use crate::checkpoint::tests::store_with_journal;
use crate::control_region::live_flag;
use crate::lmdb::OnFull;
use crate::record::{ChunkMap, Entry, Inode, JOURNAL, Key, tail};
use crate::repair::tests::{TestStore, make, make_in, read, store, store_on, write};
use crate::{Extent, Medium, ObjectId, PAGE};
use std::os::unix::fs::FileExt;

const ROOT: ObjectId = ObjectId::ROOT;

fn put(s: &Store, shard: usize, key: &[u8], value: Option<&[u8]>) {
    let room = &s.control.shard(shard).room;
    let mut txn = s.files.of(shard).write(room, 4096, OnFull::Fails).unwrap();
    match value {
        Some(value) => txn.put(key, value).unwrap(),
        None => assert!(txn.del(key).unwrap()),
    }
    txn.commit().unwrap();
}

fn change(s: &Store, id: ObjectId, f: impl FnOnce(&mut Inode, &mut Vec<u8>)) {
    let shard = s.files.shard_of(id);
    let record = s
        .files
        .of(shard)
        .fresh_snapshot()
        .unwrap()
        .get(&Key::inode(id))
        .unwrap()
        .unwrap()
        .to_vec();
    let (mut inode, tail) = Inode::decode(&record).unwrap();
    let mut tail = tail.to_vec();
    f(&mut inode, &mut tail);
    put(s, shard, &Key::inode(id), Some(&inode.encode(&tail)));
}

fn mkdir(s: &Store, dir: ObjectId, name: &str) -> ObjectId {
    make_in(s, dir, name, libc::S_IFDIR | 0o755)
}

fn fill(s: &Store, id: ObjectId, bytes: &[u8]) {
    let index = s.objects().live_acquire_here(id).unwrap().0;
    write(s, index, 0, bytes);
    s.objects().live_release(index).unwrap();
}

fn content(s: &Store, id: ObjectId) -> Vec<u8> {
    let index = s.objects().live_acquire_here(id).unwrap().0;
    let bytes = read(s, index);
    s.objects().live_release(index).unwrap();
    bytes
}

fn entry_shard(s: &Store, dir: ObjectId, name: &str) -> usize {
    s.files.shard_of_entry(dir, name.as_bytes())
}

/// A store with a few files and directories.
struct Filled {
    s: TestStore,
    /// /small, /big (two MiB), /dir, /dir/sub, /dir/sub/file
    small: ObjectId,
    big: ObjectId,
    dir: ObjectId,
    sub: ObjectId,
    file: ObjectId,
}

fn filled(name: &str) -> Filled {
    let s = store(&format!("fsck-{name}"));
    let small = make(&s, "small");
    let big = make(&s, "big");
    let dir = mkdir(&s, ROOT, "dir");
    let sub = mkdir(&s, dir, "sub");
    let file = make_in(&s, sub, "file", libc::S_IFREG | 0o600);
    fill(&s, small, b"a small one");
    fill(&s, big, &vec![7; 1_500_000]);
    fill(&s, file, &[5; 20_000]);
    assert_eq!(check(&s), Ok(vec![]));
    Filled {
        s,
        small,
        big,
        dir,
        sub,
        file,
    }
}

/// Checks that the damage is found (a finding contains `words`) and repaired, and that the store is
/// consistent then.
fn finds(name: &str, words: &str, damage: impl FnOnce(&Filled)) -> Filled {
    let f = filled(name);
    damage(&f);
    let found = check(&f.s).unwrap();
    assert!(
        found.iter().any(|x| x.contains(words)),
        "{name}: no finding says '{words}': {found:#?}"
    );
    let report = mend(&f.s).unwrap();
    assert!(
        report
            .findings
            .iter()
            .any(|x| x.to_string().contains(words)),
        "{name}: {report:#?}"
    );
    assert!(
        report.findings.iter().all(|x| x.repaired),
        "{name}: not repaired: {report:#?}"
    );
    assert_eq!(check(&f.s), Ok(vec![]), "{name}");
    // The store works afterwards.
    fill(&f.s, make(&f.s, "afterwards"), &[1; 5000]);
    assert_eq!(check(&f.s), Ok(vec![]), "{name}");
    f
}

fn path(s: &Store, names: &[&str]) -> Option<ObjectId> {
    let mut at = ROOT;
    for n in names {
        at = s.names().entry_of(at, n.as_bytes()).unwrap()?.id;
    }
    Some(at)
}

#[test]
fn names() {
    finds("kind", "it says type", |f| {
        let e = Entry {
            id: f.small,
            kind: libc::S_IFLNK,
        };
        put(
            &f.s,
            entry_shard(&f.s, ROOT, "small"),
            &Key::entry(ROOT, b"small"),
            Some(&e.encode()),
        );
    });
    finds("dangling", "doesn't exist", |f| {
        let e = Entry {
            id: ObjectId(f.small.0 + (1 << 20)),
            kind: libc::S_IFREG,
        };
        put(
            &f.s,
            entry_shard(&f.s, ROOT, "gone"),
            &Key::entry(ROOT, b"gone"),
            Some(&e.encode()),
        );
    });
    let f = finds("nameless", "it has no name, and isn't noted as such", |f| {
        put(
            &f.s,
            entry_shard(&f.s, ROOT, "big"),
            &Key::entry(ROOT, b"big"),
            None,
        );
    });
    let lost = path(&f.s, &["lost+found", &format!("#{}", f.big.0)]).unwrap();
    assert_eq!(content(&f.s, lost), vec![7; 1_500_000]);
    let f = finds("nameless-dir", "it has no name", |f| {
        put(
            &f.s,
            entry_shard(&f.s, f.dir, "sub"),
            &Key::entry(f.dir, b"sub"),
            None,
        );
    });
    let file = path(&f.s, &["lost+found", &format!("#{}", f.sub.0), "file"]).unwrap();
    assert_eq!(content(&f.s, file), [5; 20_000]);
    finds("links", "link count 9, but it should be 1", |f| {
        change(&f.s, f.file, |i, _| i.nlink = 9)
    });
    finds("dir-links", "link count 1, but it should be 3", |f| {
        change(&f.s, f.dir, |i, _| i.nlink = 1)
    });
    finds("elsewhere", "it says that it is 'other'", |f| {
        change(&f.s, f.sub, |_, name| *name = b"other".to_vec())
    });
    finds("two-names", "a directory has one name", |f| {
        let e = Entry {
            id: f.sub,
            kind: libc::S_IFDIR,
        };
        put(
            &f.s,
            entry_shard(&f.s, ROOT, "again"),
            &Key::entry(ROOT, b"again"),
            Some(&e.encode()),
        );
    });
    finds("slash", "that can't be a name", |f| {
        let e = Entry {
            id: f.small,
            kind: libc::S_IFREG,
        };
        put(
            &f.s,
            entry_shard(&f.s, ROOT, "a/b"),
            &Key::entry(ROOT, b"a/b"),
            Some(&e.encode()),
        );
    });
    finds(
        "orphan-open-by-nobody",
        "it has no name and nobody has it open",
        |f| {
            put(
                &f.s,
                entry_shard(&f.s, ROOT, "small"),
                &Key::entry(ROOT, b"small"),
                None,
            );
            put(
                &f.s,
                f.s.files.shard_of(f.small),
                &Key::orphan(f.small),
                Some(&[]),
            );
            change(&f.s, f.small, |i, _| i.nlink = 0);
        },
    );
    finds("orphan-with-name", "but is noted as having none", |f| {
        put(
            &f.s,
            f.s.files.shard_of(f.small),
            &Key::orphan(f.small),
            Some(&[]),
        );
    });
    let f = finds("missing-directory", "that directory doesn't exist", |f| {
        put(&f.s, f.s.files.shard_of(f.sub), &Key::inode(f.sub), None);
    });
    assert!(path(&f.s, &["lost+found", &format!("#{}", f.file.0)]).is_some());
    let f = finds("no-root", "there is no root directory", |f| {
        put(&f.s, f.s.files.shard_of(ROOT), &Key::inode(ROOT), None);
    });
    assert_eq!(path(&f.s, &["dir", "sub", "file"]), Some(f.file));
}

#[test]
fn a_circle_of_directories() {
    let f = finds("circle", "it lies inside itself", |f| {
        // /dir is moved into /dir/sub.
        put(
            &f.s,
            entry_shard(&f.s, ROOT, "dir"),
            &Key::entry(ROOT, b"dir"),
            None,
        );
        let e = Entry {
            id: f.dir,
            kind: libc::S_IFDIR,
        };
        put(
            &f.s,
            entry_shard(&f.s, f.sub, "dir"),
            &Key::entry(f.sub, b"dir"),
            Some(&e.encode()),
        );
        let sub = f.sub.0;
        change(&f.s, f.dir, |i, _| i.parent = sub);
        change(&f.s, f.sub, |i, _| i.nlink = 3);
        change(&f.s, ROOT, |i, _| i.nlink = 2);
    });
    let lost = path(&f.s, &["lost+found"]).unwrap();
    let names: Vec<_> = f.s.list(lost).into_iter().map(|(n, e)| (n, e.id)).collect();
    assert_eq!(names.len(), 1);
    assert!(names[0].1 == f.dir || names[0].1 == f.sub);
}

#[test]
fn records_that_are_none() {
    for (name, key, value, words) in [
        ("inode", None, Some(&b"garbage"[..]), "can't be read"),
        ("key", Some(&b"Zfoo"[..]), Some(b"x"), "is none of ours"),
        (
            "tag",
            Some(b"Q\0\0\0\0\0\0\0\x01rest"),
            Some(b"x"),
            "is none of ours",
        ),
        (
            "journal",
            Some(JOURNAL),
            Some(b"\x05\0\xff\xff\x01\0\0\0"),
            "isn't complete",
        ),
    ] {
        finds(&format!("record-{name}"), words, |f| {
            let (shard, own) = (f.s.files.shard_of(f.file), Key::inode(f.file));
            put(&f.s, shard, key.unwrap_or(&own), value);
        });
    }
    finds("extents-of-nobody", "doesn't exist, but has extents", |f| {
        let id = ObjectId(f.small.0 + (1 << 30));
        put(
            &f.s,
            f.s.files.shard_of(id),
            &Key::chunk(id, 3),
            Some(&ChunkMap::default().encode()),
        );
    });
    finds(
        "attributes-of-nobody",
        "doesn't exist, but has extended attributes",
        |f| {
            let id = ObjectId(f.small.0 + (1 << 30));
            put(
                &f.s,
                f.s.files.shard_of(id),
                &Key::attribute(id, b"user.x"),
                Some(b"1"),
            );
        },
    );
    finds(
        "unknown-attributes",
        "extended attributes that it doesn't know of",
        |f| {
            put(
                &f.s,
                f.s.files.shard_of(f.small),
                &Key::attribute(f.small, b"user.x"),
                Some(b"1"),
            );
        },
    );
    finds("chunk-garbage", "extents of object", |f| {
        put(
            &f.s,
            f.s.files.shard_of(f.big),
            &Key::chunk(f.big, 1),
            Some(b"12345"),
        );
    });
    finds("wrong-shard", "belongs to shard", |f| {
        let shard = (f.s.files.shard_of(f.small) + 1) % f.s.files.count();
        put(&f.s, shard, &Key::orphan(f.small), Some(&[]));
    });
}

#[test]
fn files() {
    let f = finds("inline-size", "bytes in its record", |f| {
        change(&f.s, f.small, |i, _| i.size = 900)
    });
    assert_eq!(content(&f.s, f.small), b"a small one");
    finds("pages", "pages, but its extents have", |f| {
        change(&f.s, f.big, |i, _| i.pages = 3)
    });
    finds("impossible-size", "is impossible", |f| {
        change(&f.s, f.big, |i, _| i.size = u64::MAX)
    });
    finds("type", "is none", |f| {
        change(&f.s, f.small, |i, _| i.mode = 0o030_644)
    });
    finds("tail", "doesn't belong there", |f| {
        change(&f.s, f.dir, |i, _| i.tail = tail::EXTENTS)
    });
    finds(
        "first-extents",
        "the extents of its first MiB can't be read",
        |f| {
            change(&f.s, f.big, |_, t| t.truncate(5));
        },
    );
}

#[test]
fn space() {
    finds("outside", "lies outside its medium", |f| {
        let far = Extent::new(0, 1 << 30, 256);
        put(
            &f.s,
            f.s.files.shard_of(f.big),
            &Key::chunk(f.big, 1),
            Some(&far.0.to_le_bytes()),
        );
    });
    finds("no-medium", "lies outside its medium", |f| {
        let far = Extent::new(9, 0, 256);
        put(
            &f.s,
            f.s.files.shard_of(f.big),
            &Key::chunk(f.big, 1),
            Some(&far.0.to_le_bytes()),
        );
    });
    let f = finds("twice", "belong to another file, too", |f| {
        let mut first = Vec::new();
        change(&f.s, f.big, |_, t| first = t.clone());
        change(&f.s, f.file, |i, t| {
            (i.pages, i.size) = (ChunkMap::decode(&first).unwrap().pages() as u64, 20_000);
            *t = first;
        });
    });
    assert_eq!(content(&f.s, f.big), vec![7; 1_500_000]);
    assert_eq!(content(&f.s, f.file), vec![7; 20_000]);
    fill(&f.s, f.file, &[8; 20_000]);
    assert_eq!(
        content(&f.s, f.big),
        vec![7; 1_500_000],
        "still the same pages"
    );
    finds("lost-pages", "in use by nobody", |f| {
        _ = f.s.media()[0].alloc(100).unwrap()
    });
    finds("free-pages", "marked as free", |f| {
        let mut first = Vec::new();
        change(&f.s, f.big, |_, t| first = t.clone());
        f.s.free_extents(ChunkMap::decode(&first).unwrap().extents().to_vec());
    });
    finds("counter", "but its counter says", |f| {
        f.map(0, 16, &77u64.to_le_bytes())
    });
    finds("reserved", "room is said to be reserved", |f| {
        f.map(0, 24, &2_000_000u64.to_le_bytes())
    });
    finds("full", "are marked as full", |f| {
        f.map(0, PAGE as u64, &[0xf0])
    });
}

impl Filled {
    /// Changes bytes of a medium's map.
    fn map(&self, _medium: usize, at: u64, bytes: &[u8]) {
        let map = self.s.dir.join("map");
        std::fs::File::options()
            .write(true)
            .open(map)
            .unwrap()
            .write_all_at(bytes, at)
            .unwrap();
    }
}

#[test]
fn what_must_not_lie_in_memory() {
    use forebay_media::MediumKind;
    let media = [
        ("medium", MediumKind::Memory),
        ("medium-1", MediumKind::Files("/".into())),
    ];
    let s = store_on("fsck-places", &media);
    let said: forebay_controls::Declared = "persistence=node".parse().unwrap();
    let bytes = [(500, "lies in its record"), (1_500_000, "lie in memory")];
    for (size, words) in bytes {
        let id = make(&s, words);
        fill(&s, id, &vec![7; size]);
        change(&s, id, |i, _| i.controls = said.bits());
        let found = check(&s).unwrap();
        assert!(found.len() == 1 && found[0].contains(words), "{found:#?}");
        let report = mend(&s).unwrap();
        assert!(report.findings.iter().all(|f| f.repaired), "{report:?}");
        // A file that is recorded to be moved is no finding any more. Such a file is moved later.
        assert_eq!(check(&s), Ok(vec![]));
        assert_eq!(s.content().drain_here(u64::MAX, |_, _| ()).unwrap().left, 0);
        assert_eq!(s.media()[0].usage().used, 0);
        assert!(s.media()[1].usage().used >= size as u64);
        assert_eq!(content(&s, id), vec![7; size]);
        assert_eq!(check(&s), Ok(vec![]));
    }
}

#[test]
fn control_region() {
    let c = |f: &Filled| -> &'static crate::control_region::Control {
        // SAFETY: the store outlives every use in these closures.
        unsafe { &*std::ptr::from_ref(&f.s.control) }
    };
    finds("open-refs", "users, but has 0", |f| {
        let o =
            f.s.objects()
                .open_create(&crate::NewOpen::new(f.dir, libc::S_IFDIR, 0), None)
                .unwrap();
        f.s.control.open_owner(o).store(0, Relaxed);
    });
    finds("live-refs", "it counts 3 users, but has 0", |f| {
        let i = f.s.objects().live_acquire_here(f.small).unwrap().0;
        f.s.objects().live_retain(i);
        f.s.objects().live_retain(i);
    });
    finds("lost-entry", "that nobody uses are missing", |f| {
        c(f).take_live().unwrap().unwrap();
    });
    finds("list-circle", "it runs in a circle", |f| {
        for i in 0..2 {
            let next = &c(f).live(i).next;
            c(f).header().free_live.push(i, next);
            next.store(i + 1, Relaxed);
        }
    });
    finds("chain-garbage", "which can't be", |f| {
        c(f).bucket(99).head.store(0xffff_fff0, Relaxed)
    });
    finds("chain-circle", "in it twice", |f| {
        let i = f.s.objects().live_acquire_here(f.small).unwrap().0;
        f.s.objects().live(i).next.store(i + 1, Relaxed);
    });
    finds("odd-multi", "marked as changing", |f| {
        c(f).shard(1).multi.store(7, Relaxed)
    });
    finds("number", "the next object would get number", |f| {
        let shard = f.s.files.shard_of(f.file);
        c(f).shard(shard).last_seq.store(1, Relaxed);
    });
    finds("flags", "its flags are", |f| {
        let i = f.s.objects().live_acquire_here(f.small).unwrap().0;
        f.s.objects()
            .live(i)
            .flags
            .fetch_or(1 << 20 | live_flag::LOADED, Relaxed);
    });
    finds("lock", "is held by a process that is gone", |f| {
        let slot = process::attach(c(f)).unwrap();
        c(f).dir_time(5).lock.acquire(c(f), slot).unwrap();
        process::free(c(f), slot);
    });
    finds(
        "slot",
        "it is nobody's, but something is noted in it",
        |f| c(f).process(4000).fds_end.store(7, Relaxed),
    );
    finds("slot-state", "is dead, but not released", |f| {
        let slot = process::attach(c(f)).unwrap();
        let owner = &c(f).process(slot as usize).owner;
        owner.store(owner.load(Relaxed) ^ 1, Relaxed);
    });
}

/// A repair that fails after it has changed records restarts the journal all the same.
#[test]
fn the_journal_follows_a_repair_that_fails() {
    let s = store_with_journal("fsck-journal");
    let (big, file) = (make(&s, "big"), make(&s, "file"));
    fill(&s, big, &vec![7; 1 << 20]);
    fill(&s, file, &[5; 20_000]);
    // There is no room for a copy of the pages that two files have.
    let rest = s.media()[0].usage();
    let rest = vec![9; (rest.capacity - rest.used) as usize];
    fill(&s, make(&s, "rest"), &rest);
    let mut first = Vec::new();
    change(&s, big, |_, t| first = t.clone());
    change(&s, file, |i, t| {
        i.pages = ChunkMap::decode(&first).unwrap().pages() as u64;
        *t = first;
    });
    assert_eq!(mend(&s).map(|_| ()), Err(Errno::NOSPC));
    assert!(!s.durability().journal_stopped());
}

/// Overwrites bytes in the pages of a record file behind the two meta pages.
#[test]
fn damaged_record_files_do_no_harm() {
    for (n, fill) in [0u8, 0xff, 0x55, 0xa7].into_iter().enumerate() {
        for page in [1u64, 2, 3, 4, 5] {
            let f = filled(&format!("tree-{n}-{page}"));
            let (path, dir) = (f.s.files.of(0).path().to_owned(), f.s.dir.clone());
            let mut s = f.s;
            let (control, records) = (dir.join("control"), dir.join("records"));
            s.store = None;
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[fill; 1500], page * 4096 + 8 * n as u64)
                .unwrap();
            let kind = forebay_media::MediumKind::Memory;
            let medium =
                Medium::open(0, kind, &dir.join("medium"), &dir.join("map"), 8 << 20).unwrap();
            s.store = Some(Store::open(&control, &records, 64 << 20, vec![medium], None).unwrap());
            let report = mend(&s).unwrap();
            assert!(report.findings.iter().all(|x| x.repaired), "{report:#?}");
            assert_eq!(check(&s), Ok(vec![]), "page {page}, {fill:#x}");
        }
    }
}

#[test]
fn a_record_file_without_meta_pages_is_told() {
    let f = filled("no-meta");
    let file = std::fs::File::options()
        .write(true)
        .open(f.s.files.of(2).path())
        .unwrap();
    file.write_all_at(&[0x11; 8192], 0).unwrap();
    let found = check(&f.s).unwrap();
    assert!(
        found
            .iter()
            .any(|x| x.contains("neither of its two meta pages")),
        "{found:#?}"
    );
    assert!(!mend(&f.s).unwrap().findings[0].repaired);
}

#[test]
fn a_repair_needs_to_be_alone() {
    let f = filled("alone");
    let mut other = std::process::Command::new("sleep")
        .arg("30")
        .spawn()
        .unwrap();
    let slot = process::attach(&f.s.control).unwrap();
    let owner = &f.s.control.process(slot as usize).owner;
    owner.store(process::word_of(other.id()), Relaxed);
    assert_eq!(mend(&f.s).map(|_| ()), Err(Errno::BUSY));
    assert_eq!(inspect(&f.s).unwrap().others, 1);
    assert!(inspect(&f.s).unwrap().is_clean());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(mend(&f.s).unwrap().findings.iter().all(|x| x.repaired));
}

#[test]
fn a_stray_write_into_a_record_is_noticed_whichever_byte_it_hits() {
    let f = finds("stray", "something has written over it", |f| {
        let snapshot =
            f.s.files
                .of(f.s.files.shard_of(f.small))
                .fresh_snapshot()
                .unwrap();
        let value = snapshot.get(&Key::inode(f.small)).unwrap().unwrap();
        let (at, len) = (value.as_ptr().cast_mut(), value.len() + 8);
        for i in 0..len {
            // SAFETY: the records are mapped for writing. The test changes them as a program may by
            // mistake.
            unsafe { *at.add(i) ^= 0x10 };
            assert_eq!(
                f.s.names().stat_here(f.small).err(),
                Some(rustix::io::Errno::IO),
                "byte {i}"
            );
            // SAFETY: as above.
            unsafe { *at.add(i) ^= 0x10 };
        }
        assert!(f.s.names().stat_here(f.small).is_ok());
        // SAFETY: as above. This is the last byte of the content.
        unsafe { *at.add(len - 9) = b'E' };
    });
    assert_eq!(content(&f.s, f.small), b"a small onE");
}

/// Overwrites eight bytes somewhere in the record files: either `fsck` finds the change, or no read
/// returns anything different.
#[test]
fn no_stray_store_into_the_records_changes_anything_unnoticed() {
    let f = filled("strays");
    let mut ids = vec![f.small, f.big, f.file];
    for i in 0..120u8 {
        let id = make_in(&f.s, f.dir, &format!("f{i}"), libc::S_IFREG | 0o600);
        fill(&f.s, id, &vec![i; 10 + 30 * usize::from(i)]);
        ids.push(id);
    }
    let whole = |f: &Filled| -> Vec<Vec<u8>> { ids.iter().map(|&id| content(&f.s, id)).collect() };
    let wanted = whole(&f);
    let mut random = forebay_fuzz::Random::new(72);
    let (mut found, mut harmless) = (0, 0);
    for trial in 0..1000 {
        let env = &f.s.files.of(random.below(f.s.files.count()));
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).open(env.path()).unwrap();
        // After the last page in use there is room that was reserved ahead.
        let at = random.below(env.used().unwrap() as usize - 8) as u64;
        let mut before = [0; 8];
        file.read_exact_at(&mut before, at).unwrap();
        let stray: [u8; 8] = std::array::from_fn(|_| random.number() as u8);
        file.write_all_at(&stray, at).unwrap();
        let description = check(&f.s).unwrap();
        if description.is_empty() {
            assert!(
                whole(&f) == wanted,
                "trial {trial}: {at} of {:?}",
                env.path()
            );
            harmless += 1;
        } else {
            found += 1;
        }
        file.write_all_at(&before, at).unwrap();
    }
    assert!(found > 20, "{found} found, {harmless} harmless");
    assert_eq!(check(&f.s), Ok(vec![]));
    println!("{found} found, {harmless} harmless");
}

#[test]
fn nobody_attaches_during_a_repair() {
    let t = store("locked-out");
    t.recovery().detach().unwrap();
    let repair = std::fs::File::open(&t.control_path).unwrap();
    rustix::fs::flock(&repair, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(t.process_slot(), Err(Errno::BUSY));
    assert!(!t.attachment.any_attached(&t.control));
    // Nor may a repair begin during another one.
    assert_eq!(mend(&t).map(|_| ()), Err(Errno::BUSY));
    drop(repair);
    assert!(mend(&t).unwrap().is_clean());
    assert!(t.process_slot().is_ok());
}

#[test]
fn the_index() {
    use crate::Term;
    use crate::index::find::Wanted;
    use crate::record::{Mark, Order, Word};
    let word = Word::new(b"k", b"v");
    let mark = |name: &[u8], id| Mark {
        name: crate::index::hash_of(name),
        id,
    };
    let tag = |f: &Filled| {
        let known = Some((ROOT, &b"small"[..]));
        f.s.names()
            .set_attribute_here(f.small, b"user.k", b"v", None, known)
            .unwrap();
        f.s.names()
            .set_attribute_here(f.dir, b"user.k", b"v", None, None)
            .unwrap();
        assert_eq!(check(&f.s), Ok(vec![]));
    };
    let listed = |f: &Filled| -> Vec<Vec<u8>> {
        let page =
            f.s.index()
                .search_here(&[word], Mark::FIRST, None, 9)
                .unwrap();
        let mut names: Vec<_> = page.items.into_iter().map(|hit| hit.name.1).collect();
        names.sort();
        names
    };
    let whole = [b"dir".to_vec(), b"small".to_vec()];
    let matching = |f: &Filled| -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let all = [Term::Within(
            b"k".to_vec(),
            Order::FIRST_NUMBER,
            Order::LAST,
        )];
        let all: Vec<_> = all.iter().filter_map(Wanted::new).collect();
        f.s.index()
            .all_matching_here(&all, ROOT, |found| names.push(found.name))
            .unwrap();
        names.sort();
        names
    };
    let f = finds("index-lost", "an attribute of it isn't in the index", |f| {
        tag(f);
        let key = Key::indexed(word, mark(b"small", f.small));
        put(&f.s, f.s.files.shard_of(f.small), &key, None);
    });
    assert_eq!(listed(&f), whole);
    let f = finds(
        "index-lost-dir",
        "an attribute of it isn't in the index",
        |f| {
            tag(f);
            let key = Key::indexed(word, mark(b"dir", f.dir));
            put(&f.s, f.s.files.shard_of(f.dir), &key, None);
        },
    );
    assert_eq!(listed(&f), whole);
    let order = Order::of_value(b"v");
    let f = finds("order-lost", "an attribute of it isn't in the index", |f| {
        tag(f);
        let key = Key::ordered(word.key, order, f.small);
        put(&f.s, f.s.files.shard_of(f.small), &key, None);
    });
    assert_eq!(matching(&f), whole);
    let f = finds("order-stray", "is in the index that it hasn't", |f| {
        tag(f);
        let key = Key::ordered(word.key, Order::LAST_NUMBER, f.dir);
        put(&f.s, f.s.files.shard_of(f.dir), &key, Some(b""));
    });
    assert_eq!(matching(&f), whole);
    let f = finds("index-stray", "is in the index that it hasn't", |f| {
        tag(f);
        let key = Key::indexed(word, mark(b"big", f.big));
        put(&f.s, f.s.files.shard_of(f.big), &key, Some(b""));
    });
    assert_eq!(listed(&f), whole);
    let f = finds("index-attribute", "is in the index that it hasn't", |f| {
        tag(f);
        let key = Key::attribute(f.small, b"user.k");
        put(&f.s, f.s.files.shard_of(f.small), &key, None);
    });
    assert_eq!(listed(&f), whole[..1]);
    let f = finds("index-name", "none of its names is noted", |f| {
        tag(f);
        let key = Key::known_name(f.small, ROOT, b"small");
        put(&f.s, f.s.files.shard_of(f.small), &key, None);
    });
    assert_eq!(listed(&f), whole);
    let f = finds(
        "index-wrong-name",
        "is noted for it, which it hasn't",
        |f| {
            tag(f);
            let key = Key::known_name(f.small, ROOT, b"a-name");
            put(&f.s, f.s.files.shard_of(f.small), &key, Some(b""));
        },
    );
    assert_eq!(listed(&f), whole);
    finds("index-view", "can't be read", |f| {
        let id = ObjectId::view_dir(5);
        put(&f.s, f.s.files.shard_of(id), &Key::view(id), Some(b"k=v"));
    });
}
