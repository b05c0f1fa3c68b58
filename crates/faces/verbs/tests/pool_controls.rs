//! Controls of collections in a pool. The controls are declared for the file, as far as the pool's
//! media can support them.

mod support;

use forebay_client::Pool;
use forebay_client::controls::{Declared, Mutability, Persistence, Temporality};
use forebay_iov::{Collection, Errno, Key, Meta, Options, Session, Workspace};
use forebay_posix::Fs;
use std::sync::Arc;
use support::TestPool;

/// Returns options with these controls and the pool as back end.
fn with(declared: &str) -> Options {
    Options {
        controls: declared.parse::<Declared>().unwrap().resolve(),
        backend: Some("forebay".into()),
        ..Options::default()
    }
}

/// Returns the controls declared for the file of the collection `name` of the workspace `w`.
fn of_file(fs: &Fs, name: &str) -> Declared {
    let stat = fs.stat(format!("/w/{name}").as_bytes(), false).unwrap();
    fs.controls_of(forebay_posix::ObjectId(stat.ino)).unwrap().0
}

#[test]
fn controls_hold_for_whoever_opens_the_file() {
    let pool = TestPool::new("held");
    for place in [pool.place(), "memory".into()] {
        let session = Session::open(&place).unwrap();
        if place == "memory" {
            session.attach("forebay", "forebay", "held").unwrap();
        }
        let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
        let create =
            |name: &str, controls: &str| Collection::create(&w, name, &with(controls)).unwrap();
        let fs = Fs::new(Arc::new(Pool::open("held").unwrap()));
        let writes = |path: &[u8]| fs.open(path, libc::O_WRONLY, 0).map(|_| ()).err();

        let log = create("log", "mutability=append,consistency=commit");
        log.append(b"one").unwrap();
        assert_eq!(log.write(b"x", 0).unwrap_err().errno(), Errno::PERM);
        assert_eq!(log.truncate(0).unwrap_err().errno(), Errno::PERM);
        log.write(b"two", 3).unwrap();
        let record = Collection::lookup(&w, Key::Name("log")).unwrap();
        assert_eq!(record.controls.mutability, Mutability::Append);

        let ckpt = create("ckpt", "mutability=immutable,parallelism=exclusive(node)");
        ckpt.write(b"state", 0).unwrap();
        assert_eq!(writes(b"/w/ckpt"), None);
        ckpt.close().unwrap();
        assert_eq!(writes(b"/w/ckpt"), Some(Errno::PERM));
        let again = Collection::open(&w, Key::Name("ckpt")).unwrap();
        let mut bytes = [0; 9];
        assert_eq!(again.read(&mut bytes, 0).unwrap(), 5);
        assert!(again.write(b"x", 0).is_err());
        again.close().unwrap();

        let own = create("own", "parallelism=exclusive");
        let others = fs.for_process(17);
        let opened = others.open(b"/w/own", libc::O_WRONLY, 0).map(drop);
        assert_eq!(opened, Err(Errno::BUSY));
        own.close().unwrap();
        for name in ["log", "ckpt", "own"] {
            Collection::delete(&w, Key::Name(name)).unwrap();
        }
        w.close();
    }
}

#[test]
fn a_collection_can_go_with_its_process() {
    let pool = TestPool::new("scratch");
    let session = Session::open(&pool.place()).unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let declared = "persistence=process,mutability=append";
    let scratch = Collection::create(&w, "scratch", &with(declared)).unwrap();
    scratch.append(b"x").unwrap();
    scratch.close().unwrap();
    Collection::create(&w, "stays", &with(""))
        .unwrap()
        .close()
        .unwrap();
    let fs = Fs::new(Arc::new(Pool::open("scratch").unwrap()));
    assert_eq!(
        of_file(&fs, "scratch").to_string(),
        "mutability=append,persistence=process"
    );
    assert!(of_file(&fs, "stays").is_nothing());
    let record = Collection::lookup(&w, Key::Name("scratch")).unwrap();
    assert_eq!(record.controls.persistence, Persistence::Process);
    // The file's creator, this process, is alive: the file stays.
    let followed = fs.cluster().declarations().follow_creators().unwrap();
    assert_eq!((followed.gone, followed.left), (0, 1));
    // Refused if the record is in another store: the record would refer to a removed file.
    let memory = Session::open("memory").unwrap();
    memory.attach("forebay", "forebay", "scratch").unwrap();
    let other = Workspace::create(&memory, "o", &Meta::new()).unwrap();
    let refused = Collection::create(&other, "c", &with("persistence=process"));
    assert_eq!(refused.err().unwrap().errno(), Errno::OPNOTSUPP);
    Collection::delete(&w, Key::Name("scratch")).unwrap();
    assert_eq!(
        fs.cluster().declarations().follow_creators().unwrap().left,
        0
    );
}

#[test]
fn a_pool_keeps_what_its_media_can() {
    let dir = support::Dir::new();
    let files = format!("files:{}:64M", dir.text());
    for (name, media) in [
        ("kept-memory", vec!["memory:64M"]),
        ("kept-files", vec![&files[..]]),
        ("kept-both", vec!["memory:64M", &files[..]]),
    ] {
        let pool = TestPool::with_media(name, &media);
        let session = Session::open(&pool.place()).unwrap();
        let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
        let fs = Fs::new(Arc::new(Pool::open(name).unwrap()));
        let only_files = name == "kept-files";

        let durable = Collection::create(&w, "durable", &with("persistence=durable"));
        match durable {
            Ok(c) => {
                assert!(only_files, "{name}");
                c.write(b"state", 0).unwrap();
                c.sync().unwrap();
                c.close().unwrap();
                assert_eq!(of_file(&fs, "durable").to_string(), "persistence=durable");
                let record = Collection::lookup(&w, Key::Name("durable")).unwrap();
                assert_eq!(record.controls.persistence, Persistence::Durable);
            }
            Err(e) => {
                assert!(!only_files, "{name}: {e}");
                assert_eq!(e.errno(), Errno::OPNOTSUPP);
                assert!(e.to_string().contains("durable"), "{e}");
                let none = Collection::lookup(&w, Key::Name("durable")).err().unwrap();
                assert_eq!(none.errno(), Errno::NOENT);
            }
        }
        let node = Collection::create(&w, "node", &with("persistence=node"));
        assert!(node.is_ok() || !only_files, "{name}");
        drop(node);

        // Every pool accepts `temporality`, which is a hint. The hint is declared for the file only
        // if it has an effect in this pool.
        for (declared, moves) in [("once", true), ("bursty", name == "kept-both")] {
            let c = Collection::create(&w, declared, &with(&format!("temporality={declared}")))
                .unwrap();
            c.close().unwrap();
            let own = of_file(&fs, declared);
            assert_eq!(own.temporality.is_some(), moves, "{name}: {own}");
            let record = Collection::lookup(&w, Key::Name(declared)).unwrap();
            assert_ne!(record.controls.temporality, Temporality::Multiple);
        }
        w.close();
    }
}
