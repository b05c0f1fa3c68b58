//! Workspaces and collections on every back end; refusals and their messages.

mod support;

use forebay_controls::{Mutability, Parallelism, Persistence};
use forebay_fuzz::Random;
use forebay_iov::{Collection, Controls, Errno, Key, Meta, Options, Predicate, Session, Workspace};
use std::sync::Barrier;
use support::{Dir, in_memory, meta, options};

const KEEPING: [&str; 2] = ["memory", "scratch"];

#[cfg(not(feature = "etcd"))]
#[test]
fn a_build_without_etcd_says_so() {
    let refused = Session::open("etcd://127.0.0.1:2379").err().unwrap();
    assert_eq!(refused.errno(), Errno::INVAL);
    assert!(refused.to_string().contains("without etcd"), "{refused}");
}

#[test]
fn what_is_written_is_read() {
    let dir = Dir::new();
    let (_session, w) = in_memory(&dir);
    for backend in KEEPING {
        let c = Collection::create(&w, backend, &options(backend, &[])).unwrap();
        assert_eq!(c.size().unwrap(), 0);
        c.write(b"behind", 3 << 20).unwrap();
        c.write(b"begin", 0).unwrap();
        assert_eq!(c.size().unwrap(), (3 << 20) + 6);
        let mut bytes = [9; 8];
        assert_eq!(c.read(&mut bytes, 1).unwrap(), 8);
        assert_eq!(&bytes, b"egin\0\0\0\0");
        assert_eq!(c.read(&mut bytes, (3 << 20) + 2).unwrap(), 4);
        assert_eq!(&bytes[..4], b"hind");
        assert_eq!(c.read(&mut bytes, 4 << 20).unwrap(), 0);
        assert_eq!(c.append(b"!").unwrap(), (3 << 20) + 6);
        c.truncate(2).unwrap();
        c.truncate(4).unwrap();
        assert_eq!(c.read(&mut bytes, 0).unwrap(), 4);
        assert_eq!(&bytes[..4], b"be\0\0");
        c.sync().unwrap();
        c.close().unwrap();
        for error in [c.write(b"x", 0), c.close(), c.size().map(|_| ())] {
            assert_eq!(error.unwrap_err().errno(), Errno::BADF);
        }
        let again = Collection::open(&w, Key::Name(backend)).unwrap();
        assert_eq!(again.size().unwrap(), 4);
        assert_eq!(
            again.uuid().unwrap(),
            Collection::lookup(&w, Key::Name(backend)).unwrap().uuid
        );
        // A process that has the collection open can continue to use it.
        Collection::delete(&w, Key::Name(backend)).unwrap();
        assert_eq!(again.read(&mut bytes, 0).unwrap(), 4);
        let gone = Collection::open(&w, Key::Name(backend)).err().unwrap();
        assert_eq!(gone.errno(), Errno::NOENT);
    }
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
    w.delete().unwrap();
}

#[test]
fn random_verbs_as_on_a_vector() {
    let dir = Dir::new();
    let (_session, w) = in_memory(&dir);
    let mut random = Random::new(1);
    for backend in KEEPING {
        let c = Collection::create(&w, backend, &options(backend, &[])).unwrap();
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..400 {
            let at = random.below(3 << 20);
            let bytes = random.bytes(5000);
            match random.below(5) {
                0 => {
                    c.write(&bytes, at as u64).unwrap();
                    if !bytes.is_empty() {
                        let end = at + bytes.len();
                        model.resize(model.len().max(end), 0);
                        model[at..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    assert_eq!(c.append(&bytes).unwrap(), model.len() as u64);
                    model.extend(&bytes);
                }
                2 => {
                    c.truncate(at as u64).unwrap();
                    model.resize(at, 0);
                }
                _ => {
                    let mut read = vec![1; 9000];
                    let n = c.read(&mut read, at as u64).unwrap();
                    let there = model.get(at..).unwrap_or(&[]);
                    assert_eq!(&read[..n], &there[..there.len().min(9000)]);
                }
            }
            assert_eq!(c.size().unwrap(), model.len() as u64);
        }
    }
}

#[test]
fn appends_of_many_lie_behind_each_other() {
    let dir = Dir::new();
    let (_session, w) = in_memory(&dir);
    for backend in KEEPING {
        drop(Collection::create(&w, backend, &options(backend, &[])).unwrap());
        let begin = Barrier::new(4);
        std::thread::scope(|threads| {
            for who in 0..4u8 {
                let (w, begin) = (&w, &begin);
                threads.spawn(move || {
                    let c = Collection::open(w, Key::Name(backend)).unwrap();
                    begin.wait();
                    for _ in 0..100 {
                        c.append(&[who; 100]).unwrap();
                    }
                });
            }
        });
        let c = Collection::open(&w, Key::Name(backend)).unwrap();
        let mut bytes = vec![9; 50_000];
        assert_eq!(c.read(&mut bytes, 0).unwrap(), 40_000);
        let mut count = [0; 4];
        for record in bytes[..40_000].chunks(100) {
            assert!(record.iter().all(|b| *b == record[0]));
            count[usize::from(record[0])] += 1;
        }
        assert_eq!(count, [100; 4]);
    }
}

#[test]
fn copies_go_between_back_ends() {
    let dir = Dir::new();
    let (_session, w) = in_memory(&dir);
    let a = Collection::create(&w, "a", &options("memory", &[])).unwrap();
    let b = Collection::create(&w, "b", &options("scratch", &[])).unwrap();
    let bytes = Random::new(3).bytes(1 << 23);
    a.write(&bytes, 5).unwrap();
    let n = bytes.len() as u64;
    assert_eq!(a.copy(5, u64::MAX, &b, 7).unwrap(), n);
    let mut read = vec![0; bytes.len()];
    b.read(&mut read, 7).unwrap();
    assert!(read == bytes);
    assert_eq!(a.copy(n + 5, 10, &b, 0).unwrap(), 0);
    let over = a.copy(0, 10, &a, 9).unwrap_err();
    assert_eq!(over.errno(), Errno::INVAL);
    assert_eq!(a.copy(0, 10, &a, 10).unwrap(), 10);
}

#[test]
fn collections_are_found_by_name_uuid_and_metadata() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    for step in 0..5 {
        let pairs = [("project", "mcse"), ("step", &format!("{step}"))];
        let c = Collection::create(&w, &format!("p.{step}"), &options("scratch", &pairs)).unwrap();
        c.write(&[step], 0).unwrap();
    }
    let wanted = Predicate::parse(r#"project = "mcse" and step >= 3"#).unwrap();
    let found = Collection::search(&w, &wanted).unwrap();
    let names: Vec<&str> = found.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["p.3", "p.4"]);
    let c = Collection::open(&w, Key::Uuid(found[1].uuid)).unwrap();
    let mut byte = [0];
    c.read(&mut byte, 0).unwrap();
    assert_eq!(byte, [4]);
    c.set_meta(&[("step".into(), Some("1".into()))]).unwrap();
    assert_eq!(
        c.get_meta().unwrap(),
        meta(&[("project", "mcse"), ("step", "1")])
    );
    assert_eq!(Collection::search(&w, &wanted).unwrap().len(), 1);
    w.set_meta(&[("kind".into(), Some("run".into()))]).unwrap();
    let by_kind = Predicate::equal("kind", "run");
    assert_eq!(
        Workspace::search(&session, &by_kind).unwrap()[0].uuid,
        w.uuid()
    );
    assert_eq!(w.get_meta().unwrap(), meta(&[("kind", "run")]));
    let same = Workspace::load(&session, Key::Uuid(w.uuid())).unwrap();
    assert_eq!(same.name(), "w");
    same.close();
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    let refused = |name: &str, options: &Options, errno: Errno, word: &str| {
        let error = Collection::create(&w, name, options).err().unwrap();
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    let plain = Options::default();
    for name in ["", ".", "..", "a/b", ".hidden", "a\0b"] {
        refused(name, &plain, Errno::INVAL, "the name");
    }
    refused(&"n".repeat(256), &plain, Errno::NAMETOOLONG, "256 bytes");
    for (key, word) in [("", "empty"), ("forebay.x", "own"), ("a`b", "'`'")] {
        refused("c", &options("memory", &[(key, "v")]), Errno::INVAL, word);
    }
    let long = "v".repeat(70_000);
    refused(
        "c",
        &options("memory", &[("k", &long)]),
        Errno::TOOBIG,
        "70000",
    );
    let none = "attached: memory, scratch";
    refused("c", &options("elsewhere", &[]), Errno::NODEV, none);
    for (controls, word) in [
        (
            Controls {
                parallelism: Parallelism::Process,
                ..Controls::default()
            },
            "parallelism=exclusive",
        ),
        (
            Controls {
                mutability: Mutability::Immutable,
                ..Controls::default()
            },
            "mutability=immutable",
        ),
        (
            Controls {
                persistence: Persistence::Durable,
                ..Controls::default()
            },
            "persistence=durable",
        ),
    ] {
        let with = Options {
            controls,
            ..Options::default()
        };
        refused("c", &with, Errno::OPNOTSUPP, word);
    }
    let all = Predicate::everything();
    assert!(
        Collection::search(&w, &all).unwrap().is_empty(),
        "refused, nothing is left"
    );
    // Creating a collection overwrites no file. After the refusal its name is free.
    std::fs::create_dir(dir.0.join("w")).unwrap();
    std::fs::write(dir.0.join("w/c"), "mine").unwrap();
    refused("c", &options("scratch", &[]), Errno::EXIST, "w/c");
    assert!(Collection::create(&w, "c", &plain).is_ok());
    assert_eq!(std::fs::read(dir.0.join("w/c")).unwrap(), b"mine");

    let open = |at: &str| Session::open(at).err().unwrap().to_string();
    assert!(open("nowhere").contains("'nowhere'"));
    let attach = |kind: &str, config: &str| session.attach("b", kind, config).unwrap_err();
    assert!(attach("tape", "").to_string().contains("kind 'tape'"));
    assert!(attach("memory", "4G").to_string().contains("'4G'"));
    assert_eq!(attach("directory", "/nonexistent").errno(), Errno::NOENT);
    assert_eq!(attach("directory", "/dev/null").errno(), Errno::NOTDIR);
    let twice = session.attach("scratch", "memory", "").unwrap_err();
    assert_eq!(twice.errno(), Errno::EXIST);
    let twice = Workspace::create(&session, "w", &Meta::new())
        .err()
        .unwrap();
    assert_eq!(twice.errno(), Errno::EXIST);
    assert!(twice.to_string().contains("workspace 'w'"));
    let kept = w.clone().delete().unwrap_err();
    assert_eq!(kept.errno(), Errno::NOTEMPTY);
}

#[test]
fn a_forked_child_is_refused_and_opens_its_own() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    let c = Collection::create(&w, "c", &options("memory", &[])).unwrap();
    // Starts the worker threads, so that a fork loses them.
    let mut batch = forebay_iov::Batch::new(&session, Default::default(), Default::default());
    batch.write(&c, 0, b"x").unwrap();
    batch.start().unwrap().wait(None).unwrap();
    // SAFETY: the child only makes the calls under test, and leaves without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |e: Option<forebay_iov::Error>| e.is_some_and(|e| e.errno() == Errno::PERM);
        let all = [
            refused(c.write(b"y", 0).err()),
            refused(Collection::create(&w, "d", &Options::default()).err()),
            refused(session.attach("x", "memory", "").err()),
            refused(Workspace::load(&session, Key::Name("w")).err()),
        ];
        drop((c, w, session));
        let own = Session::open("memory").and_then(|own| {
            let w = Workspace::create(&own, "w", &Meta::new())?;
            let c = Collection::create(&w, "c", &Options::default())?;
            let mut batch = forebay_iov::Batch::new(&own, Default::default(), Default::default());
            let op = batch.write(&c, 0, b"y")?;
            let running = batch.start()?;
            running.wait(None)?;
            running.result(op)
        });
        let fine = all.iter().all(|r| *r) && own.is_ok();
        // SAFETY: `_exit` ends the child without running destructors.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: the kernel writes only to `status`, a local variable.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    c.write(b"z", 0).unwrap();
}
