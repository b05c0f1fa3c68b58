//! Verbs on a pool: collections are files of the pool, and its files are collections.

mod support;

use forebay_client::Pool;
use forebay_iov::{
    Batch, Collection, Errno, Failure, Key, Meta, Options, Order, Predicate, Session, Workspace,
};
use forebay_posix::Fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Dir, Stuck, TestPool, meta, options};

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

    // Programs see the collection as a file.
    let fs = Fs::new(Arc::new(Pool::open("files").unwrap()));
    assert_eq!(fs.stat(b"/w/p.3", true).unwrap().size, 11);
    assert_eq!(fs.xattr(b"/w/p.3", b"user.project", true).unwrap(), b"mcse");
    assert_eq!(fs.xattr(b"/w", b"user.owner", true).unwrap(), b"me");
    let view = fs.list(b"/.by/project=mcse/step=3").unwrap();
    assert_eq!(view[0].name, b"p.3");
    // A file that a program creates is a collection.
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
    // A session without the back end gets an error, as another process would.
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
    // A session whose metadata aren't in the pool, with the pool as back end.
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
fn a_batch_on_a_pool() {
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

    drop((running, c, w, session));
    pool.assert_whole();
}

/// Starts a batch that makes every kind of change. The batch's last operation never ends or kills
/// the process.
fn begin_and_wait(place: &str, scratch: &str, commit: bool) {
    let session = Session::open(place).unwrap();
    session.attach("scratch", "directory", scratch).unwrap();
    session.attach_backend("stuck", Arc::new(Stuck)).unwrap();
    let w = Workspace::load(&session, Key::Name("w")).unwrap();
    let old = Collection::open(&w, Key::Name("old")).unwrap();
    let file = Collection::open(&w, Key::Name("file")).unwrap();
    let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
    let (_, new) = batch
        .create(&w, "new", options("forebay", &[("k", "2")]))
        .unwrap();
    batch.write(&new, 0, b"n").unwrap();
    batch
        .create(&w, "new file", options("scratch", &[]))
        .unwrap();
    batch.write(&old, 2, vec![b'x'; 3 << 20]).unwrap();
    batch.truncate(&old, 3).unwrap();
    batch.write(&file, 0, b"changed").unwrap();
    let changes = [
        ("k".into(), Some("3".into())),
        ("l".into(), Some("4".into())),
    ];
    batch.set_meta(&old, &changes).unwrap();
    batch.delete(&w, Key::Name("doomed")).unwrap();
    if commit {
        // Deleting from the back end `stuck` kills the process.
        batch.delete(&w, Key::Name("stuck")).unwrap()
    } else {
        batch.create(&w, "stuck", options("stuck", &[])).unwrap().0
    };
    batch.start().unwrap().wait(None).unwrap();
    panic!("still here");
}

#[test]
fn what_a_killed_process_has_begun_is_undone_or_completed() {
    for commit in [false, true] {
        let pool = TestPool::new("killed");
        let dir = Dir::new();
        let session = pool.session();
        session.attach("scratch", "directory", dir.text()).unwrap();
        session.attach("stuck", "memory", "").unwrap();
        let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
        let old = Collection::create(&w, "old", &options("forebay", &[("k", "1")])).unwrap();
        old.write(b"0123456789", 0).unwrap();
        let file = Collection::create(&w, "file", &options("scratch", &[])).unwrap();
        file.write(b"as it was before", 0).unwrap();
        Collection::create(&w, "doomed", &Options::default()).unwrap();
        if commit {
            Collection::create(&w, "stuck", &options("stuck", &[])).unwrap();
        }
        let test = std::env::current_exe().unwrap();
        let ran = Command::new(test)
            .args(["--exact", "child"])
            .env("VERBS_TEST_CHILD", pool.place())
            .env("VERBS_TEST_KILLED", dir.text())
            .env("VERBS_TEST_COMMIT", if commit { "yes" } else { "no" })
            .output()
            .unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&ran.status),
            Some(9),
            "{ran:?}"
        );
        let names = |w: &Workspace| -> Vec<String> {
            let all = Collection::search(w, &Predicate::everything()).unwrap();
            all.into_iter().map(|r| r.name).collect()
        };
        assert!(names(&w).contains(&"new".into()));
        // A session without a needed back end can't undo or complete the batch; the error names the
        // back end.
        let lacking = pool.session();
        let error = Workspace::load(&lacking, Key::Name("w")).err().unwrap();
        assert_eq!(error.errno(), Errno::NODEV, "{error}");
        assert!(error.to_string().contains("half done"), "{error}");
        drop(lacking);
        Workspace::load(&session, Key::Name("w")).unwrap();
        let mut bytes = [0; 32];
        let n = old.read(&mut bytes, 0).unwrap();
        let was = file.read(&mut [0; 32], 0).unwrap();
        assert_eq!(was, 16);
        if commit {
            assert_eq!(&bytes[..n], b"01x");
            assert_eq!(old.get_meta().unwrap(), meta(&[("k", "3"), ("l", "4")]));
            assert_eq!(names(&w), ["file", "new", "new file", "old"]);
        } else {
            assert_eq!(&bytes[..n], b"0123456789");
            assert_eq!(old.get_meta().unwrap(), meta(&[("k", "1")]));
            assert_eq!(names(&w), ["doomed", "file", "old"]);
            let mut text = [0; 16];
            file.read(&mut text, 0).unwrap();
            assert_eq!(&text, b"as it was before");
            assert!(!dir.0.join("w/new file").exists());
        }
        // No log is left, so the batch isn't undone a second time.
        old.write(b"later", 0).unwrap();
        Workspace::load(&session, Key::Name("w")).unwrap();
        old.read(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..5], b"later");
        drop((old, file, w, session));
        let fs = Fs::new(Arc::new(Pool::open("killed").unwrap()));
        let names: Vec<_> = fs.list(b"/").unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(names, [b"w".to_vec()]);
        drop(fs);
        pool.assert_whole();
    }
}

/// Runs batches that change two collections and the metadata of one to the same number. Every third
/// is rolled back.
fn change_for_ever(place: &str) -> ! {
    let session = Session::open(place).unwrap();
    let w = Workspace::load(&session, Key::Name("w")).unwrap();
    let a = Collection::open(&w, Key::Name("a")).unwrap();
    let b = Collection::open(&w, Key::Name("b")).unwrap();
    let mut bytes = [0; 8];
    a.read(&mut bytes, 0).unwrap();
    for n in u64::from_le_bytes(bytes) + 1.. {
        let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
        batch.write(&a, 0, n.to_le_bytes()).unwrap();
        batch.truncate(&a, 8 + n % 5000).unwrap();
        batch
            .set_meta(&a, &[("n".into(), Some(n.to_string()))])
            .unwrap();
        batch
            .create(&w, &format!("made {n}"), Options::default())
            .unwrap();
        batch.truncate(&b, 8 + n % 5000).unwrap();
        batch.write(&b, 0, n.to_le_bytes()).unwrap();
        match n % 3 {
            0 => _ = batch.open(&w, Key::Name("absent")).unwrap(),
            _ => _ = batch.delete(&w, Key::Name(&format!("made {n}"))).unwrap(),
        }
        batch.start().unwrap().wait(None).unwrap();
    }
    unreachable!()
}

#[test]
fn kills_at_any_time_leave_all_or_nothing() {
    let pool = TestPool::new("kills");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let a = Collection::create(&w, "a", &options("forebay", &[("n", "0")])).unwrap();
    let b = Collection::create(&w, "b", &Options::default()).unwrap();
    a.write(&[0; 8], 0).unwrap();
    b.write(&[0; 8], 0).unwrap();
    let seen = |c: &Collection| {
        let mut bytes = [0; 8];
        c.read(&mut bytes, 0).unwrap();
        (u64::from_le_bytes(bytes), c.size().unwrap())
    };
    let mut random = forebay_fuzz::Random::new(5);
    let test = std::env::current_exe().unwrap();
    for _ in 0..15 {
        let before = seen(&a).0;
        let mut child = Command::new(&test)
            .args(["--exact", "child"])
            .env("VERBS_TEST_CHILD", pool.place())
            .env("VERBS_TEST_ENDLESS", "yes")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while seen(&a).0 == before {
            assert!(Instant::now() < until && child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        // Kills the process at a random point of a batch.
        std::thread::sleep(Duration::from_micros(random.below(5000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        Workspace::load(&session, Key::Name("w")).unwrap();
        let (n, size) = seen(&a);
        assert_eq!(seen(&b), (n, size));
        assert_eq!(a.get_meta().unwrap()["n"], n.to_string());
        assert!(n % 3 != 0 || n == 0, "{n} was to be rolled back");
        assert_eq!(
            Collection::search(&w, &Predicate::everything())
                .unwrap()
                .len(),
            2
        );
    }
    drop((a, b, w, session));
    pool.assert_whole();
}

#[test]
fn a_batch_on_a_pool_is_rolled_back_where_it_runs() {
    let pool = TestPool::new("rolled");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let c = Collection::create(&w, "c", &Options::default()).unwrap();
    c.write(b"before", 0).unwrap();
    let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
    batch.create(&w, "new", Options::default()).unwrap();
    batch.create(&w, "memory", options("memory", &[])).unwrap();
    batch.write(&c, 0, b"behind it all").unwrap();
    // While the batch runs, no other process regards its log as that of a dead process.
    let (_, again) = batch.open(&w, Key::Name("c")).unwrap();
    batch.open(&w, Key::Name("absent")).unwrap();
    let running = batch.start().unwrap();
    running.wait(None).unwrap();
    assert_eq!(running.error().unwrap().errno(), Errno::NOENT);
    let mut bytes = [0; 32];
    let n = again.read(&mut bytes, 0).unwrap();
    assert_eq!(&bytes[..n], b"before");
    let all = Collection::search(&w, &Predicate::everything()).unwrap();
    assert_eq!(all.len(), 1);
    drop((running, again, c, w, session));
    pool.assert_whole();
}

#[test]
fn copies_inside_a_pool_and_out_of_it() {
    let pool = TestPool::new("copies");
    let session = pool.session();
    session.attach("elsewhere", "memory", "").unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let create =
        |name: &str, backend: &str| Collection::create(&w, name, &options(backend, &[])).unwrap();
    let (a, b) = (create("a", "forebay"), create("b", "forebay"));
    let outside = create("outside", "elsewhere");
    let bytes: Vec<u8> = (0..9_500_000u32).map(|i| (i / 7) as u8).collect();
    let (size, all) = (bytes.len() as u64, u64::MAX);
    let content = |c: &Collection| {
        let mut bytes = vec![0; c.size().unwrap() as usize];
        assert_eq!(c.read(&mut bytes, 0).unwrap(), bytes.len());
        bytes
    };
    a.write(&bytes, 0).unwrap();
    b.write(b"before", 0).unwrap();
    assert_eq!(a.copy(0, all, &b, 3).unwrap(), size);
    assert!(content(&b) == [b"bef", &bytes[..]].concat());
    assert_eq!(b.copy(3, all, &outside, 0).unwrap(), size);
    assert!(content(&outside) == bytes);
    b.truncate(0).unwrap();
    assert_eq!(outside.copy(5, 4_000_000, &b, 0).unwrap(), 4_000_000);
    assert!(content(&b) == bytes[5..4_000_005]);
    assert_eq!(a.copy(size, all, &b, 0).unwrap(), 0);
    // Copies a collection onto itself, by the same handle and by another one.
    let again = Collection::open(&w, Key::Name("a")).unwrap();
    for c in [&a, &again] {
        assert_eq!(a.copy(0, 10, c, 9).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(a.copy(0, 10, c, 100).unwrap(), 10);
    }
    assert!(content(&a)[100..110] == bytes[..10]);
    drop((a, b, again, outside, w, session));
    pool.assert_whole();
}

#[test]
fn a_copy_is_rolled_back_with_its_batch() {
    let pool = TestPool::new("copied-back");
    let session = pool.session();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let create = |name: &str| Collection::create(&w, name, &Options::default()).unwrap();
    let (a, b) = (create("a"), create("b"));
    a.write(&vec![b'a'; 5_000_000], 0).unwrap();
    b.write(&vec![b'b'; 3_000_000], 0).unwrap();
    for fails in [true, false] {
        let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
        batch.copy(&a, (0, 4_000_000), &b, 1_000_000).unwrap();
        batch.copy(&a, (0, 10), &b, 0).unwrap();
        if fails {
            batch.open(&w, Key::Name("absent")).unwrap();
        }
        let running = batch.start().unwrap();
        running.wait(None).unwrap();
        assert_eq!(running.error().is_some(), fails);
        let mut bytes = vec![0; b.size().unwrap() as usize];
        b.read(&mut bytes, 0).unwrap();
        let copied = bytes.iter().filter(|byte| **byte == b'a').count();
        let expected = if fails {
            (3_000_000, 0)
        } else {
            (5_000_000, 4_000_010)
        };
        assert_eq!((bytes.len(), copied), expected);
    }
    drop((a, b, w, session));
    pool.assert_whole();
}

/// Creates workspaces until the process is killed.
fn make_workspaces(place: &str) -> ! {
    let session = Session::open(place).unwrap();
    for n in 0.. {
        let name = format!("made {} {n}", std::process::id());
        let with = meta(&[("a", "1"), ("b", "2"), ("c", "3")]);
        Workspace::create(&session, &name, &with)
            .unwrap()
            .delete()
            .unwrap();
    }
    unreachable!()
}

#[test]
fn half_a_workspace_of_a_killed_process_is_swept() {
    let pool = TestPool::new("half");
    let session = pool.session();
    Workspace::create(&session, "w", &Meta::new()).unwrap();
    let fs = Fs::new(Arc::new(Pool::open("half").unwrap()));
    let hidden = || -> usize {
        let names = fs.list(b"/").unwrap().into_iter();
        names.filter(|e| e.name.starts_with(b".new-")).count()
    };
    let (mut left, mut random) = (0, forebay_fuzz::Random::new(9));
    let until = Instant::now() + Duration::from_secs(60);
    while left == 0 {
        assert!(Instant::now() < until, "no kill hit the making of one");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child"])
            .env("VERBS_TEST_CHILD", pool.place())
            .env("VERBS_TEST_MAKING", "yes")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // A directory that a living process is creating isn't removed.
        while hidden() == 0 {
            assert!(Instant::now() < until && child.try_wait().unwrap().is_none());
        }
        Workspace::load(&session, Key::Name("w")).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        left = hidden();
    }
    Workspace::load(&session, Key::Name("w")).unwrap();
    assert_eq!(hidden(), 0);
    drop((fs, session));
    pool.assert_whole();
}

/// The code of the child processes that the tests here start.
#[test]
fn child() {
    let Ok(place) = std::env::var("VERBS_TEST_CHILD") else {
        return;
    };
    if std::env::var("VERBS_TEST_MAKING").is_ok() {
        make_workspaces(&place);
    }
    if std::env::var("VERBS_TEST_ENDLESS").is_ok() {
        change_for_ever(&place);
    }
    if let Ok(scratch) = std::env::var("VERBS_TEST_KILLED") {
        let commit = std::env::var("VERBS_TEST_COMMIT").is_ok_and(|c| c == "yes");
        begin_and_wait(&place, &scratch, commit);
    }
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

    // SAFETY: the child only makes the calls under test, and leaves without running destructors.
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
        // SAFETY: `_exit` ends the child without running destructors.
        unsafe { libc::_exit(if refused && own.is_ok() { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: the kernel writes only to `status`, a local variable.
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
