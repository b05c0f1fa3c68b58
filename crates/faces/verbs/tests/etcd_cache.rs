//! The local copy of etcd's content: which changes reads through it see, and its behaviour when it
//! is damaged, outdated, or shared.

mod support;

use forebay_fuzz::Random;
use forebay_iov::meta::{New, Scope, Store};
use forebay_iov::{Errno, Key, Session};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::etcd::TestEtcd;
use support::relay::Server;
use support::{Dir, meta, names, new};

const AGE: Duration = Duration::from_secs(2);

/// Opens a session without a copy, and one with a copy in `dir`.
fn sessions(etcd: &TestEtcd, dir: &Dir) -> (Session, Session) {
    let cached = cached_place(etcd, dir);
    let plain = Session::open(&etcd.place("?cache=off")).unwrap();
    (plain, Session::open(&cached).unwrap())
}

fn cached_place(etcd: &TestEtcd, dir: &Dir) -> String {
    etcd.place(&format!("?cache={}", dir.text()))
}

fn create(store: &dyn Store, scope: Scope, name: &str, value: &str) -> forebay_iov::Record {
    let new = new(name, &[("k", value), ("all", "")]);
    store.create(scope, &new, &mut |_| Ok(())).unwrap()
}

fn workspace(store: &dyn Store, name: &str) -> Scope {
    let made = store.create(Scope::Root, &new(name, &[]), &mut |_| Ok(()));
    Scope::In(made.unwrap().uuid)
}

/// Asserts that both stores return the same for a scope.
fn same(one: &dyn Store, other: &dyn Store, scope: Scope) {
    for text in [
        "",
        "k = 1",
        "k > 0 and exists all",
        "not k = 2",
        "k != \"1\"",
        "all = \"\"",
    ] {
        assert_eq!(names(one, scope, text), names(other, scope, text), "{text}");
    }
}

/// Returns the directory of the only copy in `dir`.
fn copy_in(dir: &Dir) -> PathBuf {
    let mut all = std::fs::read_dir(&dir.0).unwrap();
    all.next().unwrap().unwrap().path()
}

#[test]
fn what_others_change_is_seen_at_once() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let (plain, cached) = sessions(&etcd, &dir);
    let (plain, cached) = (plain.store(), cached.store());
    let scope = workspace(plain, "w");
    let mut random = Random::new(3);
    let mut known = Vec::new();
    for round in 0..200 {
        let (writer, reader) = if random.once_in(2) {
            (plain, cached)
        } else {
            (cached, plain)
        };
        match random.below(4) {
            0 | 1 => known.push(create(
                writer,
                scope,
                &format!("n{round}"),
                &random.below(3).to_string(),
            )),
            2 if !known.is_empty() => {
                let value = (!random.once_in(3)).then(|| random.below(3).to_string());
                let change = ("k".to_owned(), value);
                writer
                    .update(scope, random.one_of(&known).uuid, &[change])
                    .unwrap();
            }
            3 if known.len() > 9 => {
                let gone = known.swap_remove(random.below(known.len()));
                writer.remove(scope, gone.uuid).unwrap();
                let found = reader.find(scope, Key::Uuid(gone.uuid));
                assert_eq!(found.unwrap_err().errno(), Errno::NOENT);
            }
            _ => {}
        }
        if let Some(one) = known.last() {
            let (by_name, by_uuid) = (Key::Name(&one.name), Key::Uuid(one.uuid));
            assert_eq!(reader.find(scope, by_name), writer.find(scope, by_uuid));
        }
        same(plain, cached, scope);
    }
    // A removed workspace isn't found.
    for one in known {
        plain.remove(scope, one.uuid).unwrap();
    }
    let Scope::In(uuid) = scope else {
        unreachable!()
    };
    plain.remove(Scope::Root, uuid).unwrap();
    let gone = cached.find(scope, Key::Name("n0")).unwrap_err();
    assert_eq!(gone.errno(), Errno::NOENT);
    same(plain, cached, Scope::Root);
}

#[test]
fn a_copy_asks_for_one_thing_or_for_nothing() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    let relay = Server::relay(etcd.port, move |_| {
        count.fetch_add(1, SeqCst);
        false
    });
    let place = |age: &str| format!("etcd://{}?cache={}&age={age}", relay.endpoint(), dir.text());
    let strict = Session::open(&place("0s")).unwrap();
    let strict = strict.store();
    let scope = workspace(strict, "w");
    for n in 0..50 {
        create(strict, scope, &format!("n{n}"), "1");
    }
    let requests = |what: &dyn Fn()| {
        let before = requests.load(SeqCst);
        what();
        requests.load(SeqCst) - before
    };
    // An outdated or missing copy is updated from etcd.
    assert!(requests(&|| assert_eq!(names(strict, scope, "k = 1").len(), 50)) > 1);
    let ten = || {
        for n in 0..10 {
            assert_eq!(names(strict, scope, "k = 1").len(), 50);
            strict.find(scope, Key::Name(&format!("n{n}"))).unwrap();
        }
    };
    assert_eq!(requests(&ten), 20);
    let loose = Session::open(&place("3600s")).unwrap();
    let loose = loose.store();
    loose.find(scope, Key::Name("n7")).unwrap();
    let some = || {
        for _ in 0..10 {
            assert_eq!(names(loose, scope, "k = 1").len(), 50);
            loose.find(scope, Key::Name("n7")).unwrap();
        }
    };
    assert_eq!(requests(&some), 0);
    // A session sees its own changes at once; the copy is updated when that pays.
    create(loose, scope, "own", "1");
    for _ in 0..10 {
        assert_eq!(names(loose, scope, "k = 1").len(), 51);
    }
    assert_eq!(requests(&|| _ = names(loose, scope, "k = 1")), 0);
}

#[test]
fn what_others_change_is_seen_within_the_bound() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let plain = Session::open(&etcd.place("?cache=off")).unwrap();
    let place = format!("{}&age={}s", cached_place(&etcd, &dir), AGE.as_secs());
    let cached = Session::open(&place).unwrap();
    let scope = workspace(plain.store(), "w");
    assert_eq!(names(cached.store(), scope, "k = 1"), [""; 0]);
    for n in 0..3 {
        let start = Instant::now();
        create(plain.store(), scope, &format!("n{n}"), "1");
        let written = Instant::now();
        loop {
            // The read may use a revision that etcd returned for a request sent up to `AGE`
            // earlier.
            let read = Instant::now();
            let found = names(cached.store(), scope, "k = 1").len();
            if found > n {
                break;
            } else {
                assert!(read < written + AGE, "{:?}", start.elapsed())
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    create(cached.store(), scope, "own", "1");
    assert_eq!(names(cached.store(), scope, "k = 1").len(), 4);
}

#[test]
fn an_etcd_that_forgets_its_past_or_everything() {
    let (mut etcd, dir) = (TestEtcd::new(), Dir::new());
    let (plain, cached) = sessions(&etcd, &dir);
    let scope = workspace(plain.store(), "w");
    for n in 0..5 {
        create(plain.store(), scope, &format!("n{n}"), "1");
        same(plain.store(), cached.store(), scope);
        let gone = create(plain.store(), scope, "gone", "1");
        plain.store().remove(scope, gone.uuid).unwrap();
        etcd.compact();
        same(plain.store(), cached.store(), scope);
        same(plain.store(), cached.store(), Scope::Root);
    }
    etcd.kill();
    assert!(etcd.start());
    create(plain.store(), scope, "again", "1");
    same(plain.store(), cached.store(), scope);
    etcd.kill();
    etcd.wipe();
    assert!(etcd.start());
    // etcd now has another store, although under the same name and with as high a revision.
    let (plain, anew) = sessions(&etcd, &dir);
    for n in 0..30 {
        workspace(plain.store(), &format!("w{n}"));
    }
    same(plain.store(), anew.store(), Scope::Root);
    assert_eq!(names(cached.store(), Scope::Root, "").len(), 30);
    let gone = cached.store().find(scope, Key::Name("again")).unwrap_err();
    assert_eq!(gone.errno(), Errno::NOENT);
}

/// The code of the child processes of these tests. A child is this program again.
#[test]
fn child() {
    let Ok(what) = std::env::var("CACHE_TEST_CHILD") else {
        return;
    };
    let session = Session::open(&std::env::var("CACHE_TEST_PLACE").unwrap()).unwrap();
    let store = session.store();
    let w = store.find(Scope::Root, Key::Name("w")).unwrap();
    let scope = Scope::In(w.uuid);
    match what.as_str() {
        "read" => _ = names(store, scope, "k = 1"),
        "endless" => loop {
            names(store, scope, "k = 1");
        },
        "share" => {
            let me = std::process::id();
            for n in 0..40 {
                let made = create(store, scope, &format!("{me} {n}"), &format!("of {me}"));
                let own = names(store, scope, &format!("k = \"of {me}\""));
                assert!(own.contains(&made.name), "{own:?}");
                assert_eq!(own.len(), n + 1 - n / 2);
                if n % 2 == 1 {
                    store.remove(scope, made.uuid).unwrap();
                }
            }
        }
        other => panic!("{other}"),
    }
}

fn start_child(what: &str, place: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env("CACHE_TEST_CHILD", what)
        .env("CACHE_TEST_PLACE", place)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_damaged_copy_is_made_anew() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let place = cached_place(&etcd, &dir);
    let plain = Session::open(&etcd.place("?cache=off")).unwrap();
    let scope = workspace(plain.store(), "w");
    for n in 0..20 {
        create(plain.store(), scope, &format!("n{n}"), "1");
    }
    let read = |what: &str| {
        let status = start_child("read", &place).wait().unwrap();
        assert!(status.success(), "{what}: {status}");
        copy_in(&dir)
    };
    let copy = read("new");
    let records = copy.join("records");
    let inode =
        |file: &std::fs::File| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    let junk: Vec<u8> = Random::new(1)
        .bytes(1 << 16)
        .into_iter()
        .chain([7; 8192])
        .collect();
    let damages: [(&str, &dyn Fn()); 6] = [
        ("cut off", &|| {
            std::fs::File::options()
                .write(true)
                .open(&records)
                .unwrap()
                .set_len(8192)
                .unwrap()
        }),
        ("empty", &|| std::fs::write(&records, b"").unwrap()),
        ("junk", &|| {
            let file = std::fs::File::options().write(true).open(&records).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &junk, 0).unwrap();
        }),
        ("of another start", &|| {
            std::fs::write(copy.join("boot"), b"another").unwrap()
        }),
        ("without its lock", &|| {
            std::fs::remove_file(copy.join("records-lock")).unwrap()
        }),
        ("gone", &|| std::fs::remove_dir_all(&copy).unwrap()),
    ];
    for (what, damage) in damages {
        // The old file is kept open, so that no new file gets its inode number.
        let before = std::fs::File::open(&records).unwrap();
        damage();
        read(what);
        let after = std::fs::File::open(&records).unwrap();
        // A copy is still used if only its lock file is missing; otherwise the copy is replaced.
        assert_eq!(
            inode(&before) == inode(&after),
            what == "without its lock",
            "{what}"
        );
    }
    let cached = Session::open(&place).unwrap();
    same(plain.store(), cached.store(), scope);
    // Removes the copy while it is in use.
    std::fs::remove_dir_all(&copy).unwrap();
    for n in 0..20 {
        create(cached.store(), scope, &format!("m{n}"), "1");
        same(plain.store(), cached.store(), scope);
    }
    let again = Session::open(&place).unwrap();
    same(plain.store(), again.store(), scope);
    assert!(records.exists());
    // If no copy can be made, opening the session fails with a message.
    let nowhere = etcd.place("?cache=/proc/nowhere");
    let error = Session::open(&nowhere).err().unwrap().to_string();
    assert!(
        error.contains("/proc/nowhere") && error.contains("cache=off"),
        "{error}"
    );
}

#[test]
fn processes_share_a_copy() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let (plain, cached) = sessions(&etcd, &dir);
    let scope = workspace(plain.store(), "w");
    let place = cached_place(&etcd, &dir);
    let children: Vec<_> = (0..4).map(|_| start_child("share", &place)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(names(cached.store(), scope, "").len(), 80);
    same(plain.store(), cached.store(), scope);
}

#[test]
fn large_scopes_are_loaded_later_and_loading_may_be_killed() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    let place = cached_place(&etcd, &dir);
    let (plain, cached) = sessions(&etcd, &dir);
    let scope = workspace(plain.store(), "w");
    let name = |n: usize| format!("n{n:05}");
    let all: Vec<String> = (0..3000).map(name).collect();
    let new = |name| New {
        name,
        meta: meta(&[("k", "1"), ("n", name)]),
        ..New::default()
    };
    let all: Vec<New<'_>> = all.iter().map(|name| new(name)).collect();
    let made = plain.store().create_all(scope, &all, &mut |_, _| Ok(()));
    assert!(made.iter().all(Result::is_ok));
    cached.store().find(scope, Key::Name("n00007")).unwrap();
    let used = || {
        std::os::unix::fs::MetadataExt::blocks(
            &std::fs::metadata(copy_in(&dir).join("records")).unwrap(),
        )
    };
    let before = used();
    for _ in 0..3 {
        cached.store().find(scope, Key::Name("n00007")).unwrap();
    }
    assert_eq!(used(), before, "loaded for a few look-ups");
    let mut random = Random::new(2);
    for _ in 0..6 {
        let mut child = start_child("endless", &place);
        // Kills the process at a random point of its load.
        std::thread::sleep(Duration::from_millis(random.below(400) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(names(cached.store(), scope, "k = 1").len(), 3000);
        assert_eq!(names(cached.store(), scope, "n = \"n02999\""), ["n02999"]);
    }
    // Processes wait at most 10 s for the load of a killed process.
    let until = Instant::now() + Duration::from_secs(60);
    while used() < before + 3000 {
        assert!(Instant::now() < until, "it isn't loaded");
        assert_eq!(names(cached.store(), scope, "k = 1").len(), 3000);
    }
}
