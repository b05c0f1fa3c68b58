//! Undo logs in etcd: which process undoes the batch of a process that has died, or that is wrongly
//! taken for dead.

mod support;

use forebay_iov::meta::Scope;
use forebay_iov::undo::Undo;
use forebay_iov::{
    Batch, Collection, Errno, Failure, Key, Meta, Options, Order, Session, Uuid, Workspace,
};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::etcd::{TestEtcd, encoded};
use support::{Dir, names, options};

/// The code of a test's child process. The child is this program again.
#[test]
fn child() {
    let Ok(place) = std::env::var("ETCD_TEST_CHILD") else {
        return;
    };
    let session = Session::open(&place).unwrap();
    session
        .attach(
            "files",
            "directory",
            &std::env::var("ETCD_TEST_DIR").unwrap(),
        )
        .unwrap();
    let w = Workspace::load(&session, Key::Name("w")).unwrap();
    let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
    let (_, there) = batch.open(&w, Key::Name("there")).unwrap();
    batch.write(&there, 0, b"behind".to_vec()).unwrap();
    batch
        .set_meta(&there, &[("k".into(), Some("behind".into()))])
        .unwrap();
    let (_, made) = batch.create(&w, "made", Options::default()).unwrap();
    batch.write(&made, 0, b"made".to_vec()).unwrap();
    batch.delete(&w, Key::Name("spare")).unwrap();
    let stuck = Arc::new(support::Stuck);
    session.attach_backend("stuck", stuck).unwrap();
    // This operation kills the process.
    batch.create(&w, "last", options("stuck", &[])).unwrap();
    batch.start().unwrap().wait(None).unwrap();
    unreachable!()
}

#[test]
fn an_owner_that_was_taken_for_dead_does_nothing_more() {
    let etcd = TestEtcd::new();
    let (one, other) = (etcd.place("?cache=off"), etcd.place("?cache=off"));
    let (one, other) = (Session::open(&one).unwrap(), Session::open(&other).unwrap());
    let log = one.store().undo_log().unwrap();
    let entry = Undo::Delete {
        workspace: Uuid([1; 16]),
        uuid: Uuid([2; 16]),
    };
    log.note(entry.clone()).unwrap();
    assert!(other.store().left_behind().unwrap().is_empty());
    let keys = etcd.keys();
    let owner = keys.iter().find(|key| key.ends_with("/owner")).unwrap();
    let request = format!("{{\"key\": \"{}\"}}", encoded(owner.as_bytes()));
    etcd.ask("/v3/kv/deleterange", &request);
    let left = other.store().left_behind().unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].entries().unwrap(), (vec![entry.clone()], false));
    for failed in [log.note(entry), log.commit()] {
        let error = failed.unwrap_err();
        assert_eq!(error.errno(), Errno::CANCELED);
        assert!(error.to_string().contains("taken for dead"), "{error}");
    }
    log.end();
    drop(log);
    assert!(one.store().left_behind().unwrap().is_empty());
    // A process that drops an unsettled log leaves it to the next process.
    drop(left);
    let left = one.store().left_behind().unwrap();
    assert_eq!(left.len(), 1);
    left[0].end();
    drop(left);
    assert!(!etcd.keys().iter().any(|key| key.contains("/undo/")));
}

#[test]
fn long_entries_of_a_log_and_too_long_ones() {
    let etcd = TestEtcd::new();
    let session = Session::open(&etcd.place("?cache=off")).unwrap();
    let log = session.store().undo_log().unwrap();
    let wrote = |bytes: usize| Undo::Wrote {
        workspace: Uuid([1; 16]),
        uuid: Uuid([2; 16]),
        at: 7,
        old: (0..bytes).map(|n| n as u8).collect(),
        size: 9,
    };
    log.note(wrote(6 << 20)).unwrap();
    assert_eq!(
        log.note(wrote(70 << 20)).unwrap_err().errno(),
        Errno::TOOBIG
    );
    log.note(wrote(1)).unwrap();
    assert_eq!(
        log.entries().unwrap(),
        (vec![wrote(6 << 20), wrote(1)], false)
    );
    log.end();
}

#[test]
fn what_a_killed_process_has_begun_is_undone() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let place = etcd.place("?cache=off");
    let session = Session::open(&place).unwrap();
    // The metadata outlive the process, so no back end is chosen whose data end with the process.
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let none = Collection::create(&w, "there", &Options::default())
        .err()
        .unwrap();
    assert_eq!(none.errno(), Errno::NODEV, "{none}");
    session.attach("files", "directory", dir.text()).unwrap();
    let there = Collection::create(&w, "there", &Options::default()).unwrap();
    there.write(b"before", 0).unwrap();
    Collection::create(&w, "spare", &Options::default()).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env("ETCD_TEST_CHILD", &place)
        .env("ETCD_TEST_DIR", dir.text())
        .status()
        .unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL)
    );
    let seen = |c: &Collection| {
        let mut bytes = [0; 32];
        let n = c.read(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    };
    assert_eq!(seen(&there), "behind");
    // Undoing the batch may need the other back end.
    session.attach("stuck", "memory", "").unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while seen(&there) == "behind" {
        assert!(Instant::now() < until, "it isn't undone");
        Workspace::load(&session, Key::Name("w")).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(seen(&there), "before");
    assert_eq!(there.get_meta().unwrap(), Meta::new());
    let scope = Scope::In(w.uuid());
    assert_eq!(names(session.store(), scope, ""), ["spare", "there"]);
    assert!(!etcd.keys().iter().any(|key| key.contains("/undo/")));
}

#[test]
fn batches_are_rolled_back_and_committed() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let session = Session::open(&etcd.place("?cache=off")).unwrap();
    session.attach("files", "directory", dir.text()).unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    for fails in [true, false] {
        let mut batch = Batch::new(&session, Failure::Rollback, Order::Free);
        for n in 0..100 {
            let (_, made) = batch
                .create(&w, &format!("n{n}"), options("files", &[("k", "v")]))
                .unwrap();
            batch.write(&made, 0, b"bytes".to_vec()).unwrap();
            batch.close(&made).unwrap();
        }
        if fails {
            batch.open(&w, Key::Name("absent")).unwrap();
        }
        let running = batch.start().unwrap();
        running.wait(None).unwrap();
        assert_eq!(running.error().is_some(), fails);
        let left = if fails { 0 } else { 100 };
        assert_eq!(
            names(session.store(), Scope::In(w.uuid()), "k = \"v\"").len(),
            left
        );
        let files = std::fs::read_dir(dir.0.join("w")).map_or(0, |dir| dir.count());
        assert_eq!(files, left);
    }
    assert!(!etcd.keys().iter().any(|key| key.contains("/undo/")));
}
