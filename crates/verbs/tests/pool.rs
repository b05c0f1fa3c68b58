//! Verbs on a pool: collections are files of it, and files are collections.

mod support;

use forebay_client::Pool;
use forebay_iov::{
    Batch, Collection, Errno, Failure, Key, Meta, Options, Order, Predicate, Session, Workspace,
};
use forebay_posix::Fs;
use std::process::Command;
use std::sync::Arc;
use support::{Dir, TestPool, meta, options};

#[test]
fn collections_are_files_with_attributes() {
    let pool = TestPool::new("files");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &meta(&[("owner", "me")])).unwrap();
    let with = Options {
        meta: meta(&[("project", "mcse"), ("step", "3")]),
        ..Options::default()
    };
    let c = Collection::create(&w, "p.3", &with).unwrap();
    c.write(b"hello", 0).unwrap();
    assert_eq!(c.append(b" world").unwrap(), 5);
    let uuid = c.uuid().unwrap();
    c.close().unwrap();
    drop((c, w, session));

    // As programs see it.
    let fs = Fs::new(Arc::new(Pool::open("files").unwrap()));
    assert_eq!(fs.stat(b"/w/p.3", true).unwrap().size, 11);
    assert_eq!(fs.xattr(b"/w/p.3", b"user.project", true).unwrap(), b"mcse");
    assert_eq!(fs.xattr(b"/w", b"user.owner", true).unwrap(), b"me");
    let view = fs.list(b"/.by/project=mcse/step=3").unwrap();
    assert_eq!(view[0].name, b"p.3");
    // And what they do.
    fs.open(b"/w/plain", libc::O_CREAT | libc::O_WRONLY, 0o644)
        .unwrap()
        .write_at(b"plain", 0)
        .unwrap();
    fs.mkdir(b"/w/sub", 0o755).unwrap();
    fs.open(b"/w/.hidden", libc::O_CREAT | libc::O_WRONLY, 0o644)
        .unwrap();
    fs.symlink(b"p.3", b"/w/link").unwrap();
    fs.set_xattr(b"/w/p.3", b"user.step", b"4", true).unwrap();
    fs.rename(b"/w/p.3", b"/w/p.4").unwrap();
    drop(fs);

    let session = pool.session();
    let w = Workspace::load(&session, Key::Name("w")).unwrap();
    let all = Collection::search(&w, &Predicate::everything()).unwrap();
    let names: Vec<&str> = all.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["p.4", "plain"]);
    let renamed = Collection::lookup(&w, Key::Uuid(uuid)).unwrap();
    assert_eq!(renamed.name, "p.4");
    assert_eq!(renamed.meta, meta(&[("project", "mcse"), ("step", "4")]));
    let found = Predicate::parse(r#"project = "mcse" and step > 3"#).unwrap();
    assert_eq!(Collection::search(&w, &found).unwrap(), [renamed]);
    let plain = Collection::open(&w, Key::Name("plain")).unwrap();
    let mut bytes = [0; 9];
    assert_eq!(plain.read(&mut bytes, 0).unwrap(), 5);
    let id = plain.uuid().unwrap();
    let by_id = Collection::lookup(&w, Key::Uuid(id)).unwrap();
    assert_eq!(by_id.name, "plain");
    plain.set_meta(&[("k".into(), Some("v".into()))]).unwrap();
    assert_eq!(plain.get_meta().unwrap(), meta(&[("k", "v")]));
    plain.set_meta(&[("k".into(), None)]).unwrap();
    for (name, errno) in [
        ("sub", Errno::NOENT),
        ("link", Errno::NOENT),
        (".hidden", Errno::NOENT),
        ("../w", Errno::NOENT),
    ] {
        let error = Collection::lookup(&w, Key::Name(name)).unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
    }
    let refused = w.clone().delete().unwrap_err();
    assert_eq!(refused.errno(), Errno::NOTEMPTY);
    drop((plain, w, session));
    pool.assert_whole();
}

#[test]
fn every_back_end_under_a_pool() {
    let pool = TestPool::new("backends");
    let dir = Dir::new();
    let session = pool.session();
    session.attach("scratch", "directory", dir.text()).unwrap();
    session.attach("same", "forebay", "backends").unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    for backend in ["forebay", "same", "scratch", "memory"] {
        let c = Collection::create(&w, backend, &options(backend, &[])).unwrap();
        c.write(&vec![7; 3 << 20], 1).unwrap();
        c.truncate(1 << 20).unwrap();
        assert_eq!(c.append(b"end").unwrap(), 1 << 20);
        c.sync().unwrap();
        c.close().unwrap();
        let again = Collection::open(&w, Key::Name(backend)).unwrap();
        let mut bytes = vec![1; 2 << 20];
        assert_eq!(again.read(&mut bytes, 0).unwrap(), (1 << 20) + 3);
        assert_eq!(&bytes[..2], [0, 7]);
        assert_eq!(&bytes[(1 << 20) - 1..(1 << 20) + 3], b"\x07end");
    }
    assert_eq!(
        std::fs::metadata(dir.0.join("w/scratch")).unwrap().len(),
        (1 << 20) + 3
    );
    // Who hasn't attached it, or is another process, is told so.
    let other = pool.session();
    let same = Workspace::load(&other, Key::Name("w")).unwrap();
    let refused = |name| Collection::open(&same, Key::Name(name)).err().unwrap();
    assert_eq!(refused("scratch").errno(), Errno::NODEV);
    assert!(
        refused("memory")
            .to_string()
            .contains("the memory of the process")
    );
    assert!(Collection::open(&same, Key::Name("forebay")).is_ok());
    // A pool under another store.
    let outside = Session::open("memory").unwrap();
    outside.attach("pool", "forebay", "backends").unwrap();
    let v = Workspace::create(&outside, "v", &Meta::new()).unwrap();
    let c = Collection::create(&v, "c", &options("pool", &[])).unwrap();
    c.write(b"x", 0).unwrap();
    let seen = Workspace::load(&session, Key::Name("v")).unwrap();
    assert_eq!(
        Collection::lookup(&seen, Key::Name("c")).unwrap().backend,
        "forebay"
    );
    Collection::delete(&v, Key::Name("c")).unwrap();
    assert!(Workspace::load(&session, Key::Name("v")).is_err());
    for backend in ["forebay", "same", "scratch", "memory"] {
        Collection::delete(&w, Key::Name(backend)).unwrap();
    }
    w.delete().unwrap();
    drop((c, v, outside, same, other, session));
    pool.assert_whole();
}

#[test]
fn a_batch_on_a_pool_and_what_it_refuses() {
    let pool = TestPool::new("batch");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let mut batch = Batch::new(&session, Failure::Stop, Order::Free);
    for n in 0..500 {
        let with = Options {
            meta: meta(&[("n", &n.to_string())]),
            ..Options::default()
        };
        let (_, c) = batch.create(&w, &format!("c{n}"), with).unwrap();
        batch.write(&c, 0, [n as u8; 100]).unwrap();
        batch.close(&c).unwrap();
    }
    let running = batch.start().unwrap();
    running.wait(None).unwrap();
    assert_eq!(running.error(), None);
    let found = Collection::search(&w, &Predicate::parse("n >= 490").unwrap()).unwrap();
    assert_eq!(found.len(), 10);
    let c = Collection::open(&w, Key::Uuid(found[9].uuid)).unwrap();
    assert_eq!(c.size().unwrap(), 100);

    let mut batch = Batch::new(&session, Failure::Rollback, Order::Free);
    batch.write(&c, 0, b"x").unwrap();
    let running = batch.start().unwrap();
    running.wait(None).unwrap();
    assert_eq!(running.error().unwrap().errno(), Errno::OPNOTSUPP);
    // What would be gone with the process leaves its record.
    let mut batch = Batch::new(&session, Failure::Rollback, Order::Free);
    batch.create(&w, "m", options("memory", &[])).unwrap();
    let running = batch.start().unwrap();
    running.wait(None).unwrap();
    assert_eq!(running.error().unwrap().errno(), Errno::OPNOTSUPP);
    assert!(Collection::lookup(&w, Key::Name("m")).is_err());
    drop((running, c, w, session));
    pool.assert_whole();
}

/// In another process, started by the test below.
#[test]
fn child() {
    let Ok(place) = std::env::var("VERBS_TEST_CHILD") else {
        return;
    };
    let session = Session::open(&place).unwrap();
    let w = Workspace::load(&session, Key::Name("w")).unwrap();
    let theirs = Collection::search(&w, &Predicate::equal("from", "parent")).unwrap();
    let c = Collection::open(&w, Key::Uuid(theirs[0].uuid)).unwrap();
    let own = Collection::create(&w, "child", &options("forebay", &[("from", "child")])).unwrap();
    c.copy(0, 100, &own, 0).unwrap();
}

#[test]
fn processes_share_a_workspace_and_forked_ones_open_it_anew() {
    let pool = TestPool::new("shared");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let c = Collection::create(&w, "parent", &options("forebay", &[("from", "parent")])).unwrap();
    c.write(b"from the parent", 0).unwrap();
    let test = std::env::current_exe().unwrap();
    let ran = Command::new(test)
        .args(["--exact", "child"])
        .env("VERBS_TEST_CHILD", pool.place())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let theirs = Collection::open(&w, Key::Name("child")).unwrap();
    let mut bytes = [0; 32];
    let n = theirs.read(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..n], b"from the parent");

    // SAFETY: the child calls what this test is about, and leaves without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = c.write(b"y", 0).is_err_and(|e| e.errno() == Errno::PERM);
        drop((c, theirs, w, session));
        let own = Session::open(&pool.place()).and_then(|own| {
            let w = Workspace::load(&own, Key::Name("w"))?;
            let c = Collection::open(&w, Key::Name("parent"))?;
            c.append(b" and the fork")?;
            c.close()
        });
        // SAFETY: leaves at once.
        unsafe { libc::_exit(if refused && own.is_ok() { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    let n = c.read(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..n], b"from the parent and the fork");
    drop((c, theirs, w, session));
    pool.assert_whole();
}

#[test]
fn pools_that_are_not_there() {
    let pool = TestPool::new("there");
    let absent = Session::open("pool:absent").err().unwrap();
    assert_eq!(absent.errno(), Errno::NOENT);
    assert!(absent.to_string().contains("forebay up"));
    assert_eq!(
        Session::open("pool:a/b").err().unwrap().errno(),
        Errno::INVAL
    );
    let session = Session::open("memory").unwrap();
    let absent = session.attach("p", "forebay", "absent").unwrap_err();
    assert_eq!(absent.errno(), Errno::NOENT);
    drop(pool);
}
