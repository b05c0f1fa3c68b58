//! etcd as metadata store under faults: etcd is unreachable, replies get lost, another server
//! replies in its place, processes die.

mod support;

use forebay_iov::meta::{New, Scope};
use forebay_iov::undo::Undo;
use forebay_iov::{Collection, Errno, Key, Meta, Options, Predicate, Session, Uuid, Workspace};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::etcd::{TestEtcd, encoded};
use support::relay::{Server, request};
use support::{TestPool, meta, names, new, options};

/// Maximum duration of any verb, whatever happens to etcd.
const BOUND: Duration = Duration::from_secs(20);

fn bounded<T>(what: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let done = what();
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    done
}

#[test]
fn it_is_killed_and_started_again() {
    let mut etcd = TestEtcd::new();
    let session = Session::open(&etcd.place("?cache=off")).unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let scope = Scope::In(w.uuid());
    let store = session.store();
    store
        .create(scope, &new("a", &[("k", "v")]), &mut |_| Ok(()))
        .unwrap();
    etcd.kill();
    for failed in [
        bounded(|| store.find(scope, Key::Name("a")).map(|_| ())),
        bounded(|| {
            store
                .create(scope, &new("b", &[]), &mut |_| Ok(()))
                .map(|_| ())
        }),
        bounded(|| store.search(scope, &Predicate::everything(), 9).map(|_| ())),
        bounded(|| Session::open(&etcd.place("")).map(|_| ())),
    ] {
        let error = failed.unwrap_err();
        assert_eq!(error.errno(), Errno::HOSTUNREACH, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&etcd.endpoint()) && text.contains("no answer from etcd"),
            "{text}"
        );
    }
    assert!(etcd.start());
    store
        .create(scope, &new("b", &[("k", "v")]), &mut |_| Ok(()))
        .unwrap();
    assert_eq!(names(store, scope, "k = \"v\""), ["a", "b"]);
    // A request during the restart waits until etcd replies again.
    etcd.kill();
    std::thread::scope(|threads| {
        let found = threads.spawn(|| store.find(scope, Key::Name("b")));
        assert!(etcd.start());
        // On a busy machine, the request's time may be over before etcd replies. The request then
        // fails as if etcd were unreachable.
        if let Err(e) = found.join().unwrap() {
            assert_eq!(e.errno(), Errno::HOSTUNREACH, "{e}");
        }
    });
    assert_eq!(names(store, scope, ""), ["a", "b"]);
}

#[test]
fn what_answers_is_not_etcd() {
    let answer = |status: &'static str, body: &'static str| {
        Server::new(move |mut stream| {
            let _ = request(&stream);
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(body.as_bytes());
        })
    };
    let servers = [
        ("closes", Server::new(drop)),
        (
            "junk",
            Server::new(|mut stream| _ = stream.write_all(&[0x80; 5000])),
        ),
        ("no json", answer("200 OK", "<html>hello</html>")),
        ("other json", answer("200 OK", "{\"hello\": [1]}")),
        ("not found", answer("404 Not Found", "404 page not found")),
        ("an odd error", answer("500 Oh", "{\"error\": 7}")),
        (
            "cut off",
            answer("200 OK", "{\"header\":{\"cluster_id\":\"7\""),
        ),
        (
            "base64",
            answer(
                "200 OK",
                "{\"header\":{\"cluster_id\":\"7\"},\"kvs\":[{\"key\":\"%%\"}]}",
            ),
        ),
        (
            "another's record",
            answer(
                "200 OK",
                "{\"header\":{\"cluster_id\":\"7\"},\"succeeded\":true,\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"aw==\",\"value\":\"aGVsbG8=\"}]}}]}",
            ),
        ),
        (
            "hangs",
            Server::new(|stream| {
                let _ = request(&stream);
                std::thread::sleep(BOUND * 2);
            }),
        ),
        (
            "trickles",
            Server::new(|mut stream| {
                let _ = request(&stream);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
                while stream.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }),
        ),
    ];
    std::thread::scope(|threads| {
        for (what, server) in &servers {
            threads.spawn(move || {
                let error =
                    bounded(|| Session::open(&format!("etcd://{}?cache=off", server.endpoint())));
                let error = error.err().unwrap_or_else(|| panic!("{what}: it opened"));
                let known = [Errno::TIMEDOUT, Errno::PROTO, Errno::HOSTUNREACH];
                assert!(known.contains(&error.errno()), "{what}: {error}");
                assert!(error.to_string().contains("etcd"), "{what}: {error}");
            });
        }
    });
    // The session finds the working endpoint after those that don't work.
    let etcd = TestEtcd::new();
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for bad in [
        unused.to_string(),
        servers[0].1.endpoint(),
        servers[2].1.endpoint(),
    ] {
        let place = format!("etcd://{bad},{}/behind?cache=off", etcd.endpoint());
        let session = Session::open(&place).unwrap();
        Workspace::create(&session, &format!("w {}", bad.len()), &Meta::new()).ok();
        assert!(!names(session.store(), Scope::Root, "").is_empty());
    }
    let other = TestEtcd::new();
    let two = format!("etcd://{},{}?cache=off", etcd.endpoint(), other.endpoint());
    let session = Session::open(&two).unwrap();
    drop(etcd);
    let error = bounded(|| session.store().find(Scope::Root, Key::Name("w"))).unwrap_err();
    assert!(error.to_string().contains("another cluster"), "{error}");
}

#[test]
fn nothing_is_done_twice_or_denied_when_answers_are_lost() {
    let etcd = TestEtcd::new();
    let lose = Arc::new(AtomicBool::new(false));
    let lost = Arc::new(AtomicU32::new(0));
    let (on, count) = (lose.clone(), lost.clone());
    // Loses the reply to the next change, and no other.
    let relay = Server::relay(etcd.port, move |body| {
        let loses = body.contains("request_put") && on.swap(false, SeqCst);
        count.fetch_add(u32::from(loses), SeqCst);
        loses
    });
    let session = Session::open(&format!("etcd://{}?cache=off", relay.endpoint())).unwrap();
    let store = session.store();
    let losing = || lose.store(true, SeqCst);
    let w = store
        .create(Scope::Root, &new("w", &[]), &mut |_| Ok(()))
        .unwrap();
    let scope = Scope::In(w.uuid);
    losing();
    let mut seen = Vec::new();
    let a = store.create(scope, &new("a", &[("k", "1")]), &mut |r| {
        seen.push(r.uuid);
        Ok(())
    });
    let a = a.unwrap();
    assert_eq!(seen, [a.uuid]);
    assert_eq!(store.find(scope, Key::Name("a")).unwrap(), a);
    losing();
    let again = store.create(scope, &new("a", &[]), &mut |_| Ok(()));
    // The lost reply was that the name exists. The store tries again, and gets the same reply.
    assert_eq!(again.unwrap_err().errno(), Errno::EXIST);
    losing();
    let change = [("k".to_owned(), Some("2".to_owned()))];
    assert_eq!(
        store.update(scope, a.uuid, &change).unwrap(),
        meta(&[("k", "1")])
    );
    assert_eq!(names(store, scope, "k = 2"), ["a"]);
    assert_eq!(names(store, scope, "k = 1"), [""; 0]);
    let log = store.undo_log().unwrap();
    let entry = |n: u8| Undo::Created {
        workspace: w.uuid,
        uuid: Uuid([n; 16]),
    };
    losing();
    log.note(entry(1)).unwrap();
    log.note(entry(2)).unwrap();
    losing();
    log.commit().unwrap();
    assert_eq!(log.entries().unwrap(), (vec![entry(1), entry(2)], true));
    log.end();
    losing();
    store.remove(scope, a.uuid).unwrap();
    assert_eq!(
        store.find(scope, Key::Uuid(a.uuid)).unwrap_err().errno(),
        Errno::NOENT
    );
    losing();
    let many: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
    let all: Vec<New<'_>> = many.iter().map(|name| new(name, &[])).collect();
    let made = store.create_all(scope, &all, &mut |_, _| Ok(()));
    assert!(made.iter().all(Result::is_ok));
    assert_eq!(names(store, scope, "").len(), 100);
    assert_eq!(lost.load(SeqCst), 7);
}

/// A creation that reaches etcd long after the wait for its reply has ended creates nothing.
#[test]
fn a_creation_cannot_come_true_late() {
    let etcd = TestEtcd::new();
    let late: Arc<std::sync::Mutex<Option<String>>> = Arc::default();
    let (keep, port) = (late.clone(), etcd.port);
    // The first creation is delayed; all other requests are forwarded.
    let relay = Server::new(move |mut stream| {
        let Ok((_, body)) = request(&stream) else {
            return;
        };
        let mut late = keep.lock().unwrap();
        if late.is_none() && body.contains("request_txn") {
            *late = Some(body);
            return;
        }
        drop(late);
        let path = if body.contains("TTL") {
            "/v3/lease/grant"
        } else {
            "/v3/kv/txn"
        };
        let answer = support::etcd::post(port, path, &body).unwrap();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            answer.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(answer.as_bytes());
    });
    let session = Session::open(&format!("etcd://{}?cache=off", relay.endpoint())).unwrap();
    let store = session.store();
    let mut seen = 0;
    let made = store.create(Scope::Root, &new("late", &[("late", "late")]), &mut |_| {
        seen += 1;
        Ok(())
    });
    let made = made.unwrap();
    assert_eq!(seen, 2);
    store.remove(Scope::Root, made.uuid).unwrap();
    let kept = late.lock().unwrap().take().unwrap();
    let done = etcd.ask("/v3/kv/txn", &kept);
    assert!(done.contains("responses"), "{done}");
    // Reads from etcd directly, as the relay supports only some requests.
    let plain = Session::open(&etcd.place("?cache=off")).unwrap();
    assert_eq!(names(plain.store(), Scope::Root, ""), [""; 0]);
}

/// Another client with write access to etcd has made a record whose name leads out of the back
/// end's directory.
#[test]
fn a_name_from_etcd_that_leads_elsewhere_reaches_nothing() {
    let etcd = TestEtcd::new();
    let top = support::Dir::new();
    let dir = format!("{}/a/b", top.text());
    std::fs::create_dir_all(&dir).unwrap();
    let outside = format!("{}/a/secret", top.text());
    std::fs::write(&outside, "untouched").unwrap();
    for cache in ["cache=off".to_owned(), format!("cache={}/copy", top.text())] {
        let session = Session::open(&etcd.place(&format!("?{cache}"))).unwrap();
        session.attach("here", "directory", &dir).unwrap();
        let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
        let c = Collection::create(&w, "innocent", &options("here", &[])).unwrap();
        c.write(b"bytes", 0).unwrap();
        let uuid = c.uuid().unwrap();
        drop(c);
        // Replaces the record by one with another name.
        let keys = etcd.keys().into_iter();
        let key = keys
            .filter(|k| k.contains("/r/"))
            .find(|k| k.ends_with(&uuid.to_string()));
        let key = encoded(key.unwrap().as_bytes());
        let reply = etcd.ask("/v3/kv/range", &format!("{{\"key\": \"{key}\"}}"));
        let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
        let value = support::etcd::decoded(reply["kvs"][0]["value"].as_str().unwrap());
        let value = String::from_utf8(value).unwrap();
        assert!(value.contains("innocent"));
        let planted = value.replace("innocent", "../../secret");
        let put = format!(
            "{{\"key\": \"{key}\", \"value\": \"{}\"}}",
            encoded(planted.as_bytes())
        );
        etcd.ask("/v3/kv/put", &put);
        // The local copy may be a little behind.
        std::thread::sleep(Duration::from_millis(500));
        let error = Collection::open(&w, Key::Uuid(uuid))
            .map(|_| ())
            .unwrap_err();
        assert_eq!(error.errno(), Errno::PROTO, "{error}");
        assert!(error.to_string().contains("../../secret"), "{error}");
        let found = session
            .store()
            .search(Scope::In(w.uuid()), &Predicate::everything(), 9);
        assert_eq!(found.unwrap_err().errno(), Errno::PROTO);
        assert!(Collection::delete(&w, Key::Uuid(uuid)).is_err());
        assert_eq!(std::fs::read(&outside).unwrap(), b"untouched");
        // Once the record is restored, the collection is as before.
        let put = format!(
            "{{\"key\": \"{key}\", \"value\": \"{}\"}}",
            encoded(value.as_bytes())
        );
        etcd.ask("/v3/kv/put", &put);
        std::thread::sleep(Duration::from_millis(500));
        Collection::delete(&w, Key::Uuid(uuid)).unwrap();
        w.delete().unwrap();
    }
}

/// The code of the child processes of these tests. A child is this program again.
#[test]
fn child() {
    let Ok(what) = std::env::var("ETCD_TEST_CHILD") else {
        return;
    };
    let place = std::env::var("ETCD_TEST_PLACE").unwrap();
    let session = Session::open(&place).unwrap();
    match what.as_str() {
        "race" => {
            let w = Workspace::load(&session, Key::Name("w")).unwrap();
            let scope = Scope::In(w.uuid());
            let made = (0..100).filter(|n| {
                let name = format!("n{n}");
                match session
                    .store()
                    .create(scope, &new(&name, &[("k", "v")]), &mut |_| Ok(()))
                {
                    Ok(_) => true,
                    Err(e) => {
                        assert_eq!(e.errno(), Errno::EXIST, "{e}");
                        false
                    }
                }
            });
            println!("made {}", made.count());
        }
        other => panic!("{other}"),
    }
}

fn start_child(what: &str, place: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("ETCD_TEST_CHILD", what)
        .env("ETCD_TEST_PLACE", place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_create_the_same_names() {
    let etcd = TestEtcd::new();
    let place = etcd.place("?cache=off");
    let session = Session::open(&place).unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let children: Vec<_> = (0..3).map(|_| start_child("race", &place)).collect();
    let made = children.into_iter().map(|child| {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success());
        let output = String::from_utf8(done.stdout).unwrap();
        let count = output.lines().find_map(|line| line.strip_prefix("made "));
        count.unwrap().parse::<u32>().unwrap()
    });
    assert_eq!(made.sum::<u32>(), 100);
    assert_eq!(
        names(session.store(), Scope::In(w.uuid()), "k = \"v\"").len(),
        100
    );
}

#[test]
fn a_workspace_of_two_pools() {
    let etcd = TestEtcd::new();
    let pools = [TestPool::new("one"), TestPool::new("two")];
    let sessions = ["one", "two"].map(|pool| {
        let session = Session::open(&etcd.place("?cache=off")).unwrap();
        session.attach("forebay", "forebay", pool).unwrap();
        session
    });
    let w = Workspace::create(&sessions[0], "w", &Meta::new()).unwrap();
    let made = Collection::create(&w, "c", &Options::default()).unwrap();
    made.write(b"in one", 0).unwrap();
    made.close().unwrap();
    let w2 = Workspace::load(&sessions[1], Key::Name("w")).unwrap();
    assert_eq!(
        Collection::lookup(&w2, Key::Name("c")).unwrap().backend,
        "forebay"
    );
    for failed in [
        Collection::open(&w2, Key::Name("c")).map(|_| ()),
        Collection::delete(&w2, Key::Name("c")),
    ] {
        let error = failed.unwrap_err();
        assert_eq!(error.errno(), Errno::NODEV);
        let text = error.to_string();
        assert!(
            text.contains("the pool 'one'") && text.contains("the pool 'two'"),
            "{text}"
        );
    }
    // With both back ends attached, collections of both can be used.
    sessions[1].attach("first", "forebay", "one").unwrap();
    let here = Collection::create(&w2, "d", &options("forebay", &[])).unwrap();
    here.write(b"in two", 0).unwrap();
    here.close().unwrap();
    let again = Collection::open(&w, Key::Name("c")).unwrap();
    let mut bytes = [0; 6];
    assert_eq!(again.read(&mut bytes, 0).unwrap(), 6);
    assert_eq!(&bytes, b"in one");
    again.close().unwrap();
    Collection::delete(&w, Key::Name("c")).unwrap();
    Collection::delete(&w2, Key::Name("d")).unwrap();
    w.delete().unwrap();
    drop((made, here, again, w2, sessions));
    for pool in pools {
        pool.assert_whole();
    }
    let left = etcd.keys();
    let all = |key: &String| key.ends_with("/store") || key.ends_with("/s") || key == "probe";
    assert!(left.iter().all(all), "{left:?}");
}

#[test]
fn removed_workspaces_leave_nothing() {
    let etcd = TestEtcd::new();
    let session = Session::open(&etcd.place("/some/where?cache=off")).unwrap();
    let store = session.store();
    let w = store
        .create(Scope::Root, &new("w", &[("k", "v")]), &mut |_| Ok(()))
        .unwrap();
    let keys: Vec<String> = (0..300).map(|n| format!("key {n}")).collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|k| (k.as_str(), "1")).collect();
    let scope = Scope::In(w.uuid);
    let c = store
        .create(scope, &new("c", &pairs), &mut |_| Ok(()))
        .unwrap();
    let changes: Vec<_> = keys
        .iter()
        .map(|k| (k.clone(), Some("2".to_owned())))
        .collect();
    store.update(scope, c.uuid, &changes).unwrap();
    let entries = etcd.keys().iter().filter(|key| key.contains("/i/")).count();
    assert_eq!(entries, 301);
    let refused = store.remove(Scope::Root, w.uuid).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOTEMPTY);
    store.remove(scope, c.uuid).unwrap();
    store.remove(Scope::Root, w.uuid).unwrap();
    let mut left = etcd.keys();
    left.sort();
    let root = Uuid::default();
    assert_eq!(
        left,
        [
            format!("/some/where/{root}/s"),
            "/some/where/store".into(),
            "probe".into()
        ]
    );
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let etcd = TestEtcd::new();
    let session = Session::open(&etcd.place("?cache=off")).unwrap();
    let store = session.store();
    let values: Vec<(String, String)> = (0..40)
        .map(|n| (n.to_string(), "x".repeat(60_000)))
        .collect();
    let pairs: Vec<(&str, &str)> = values.iter().map(|(k, v)| (&**k, &**v)).collect();
    let long = store
        .create(Scope::Root, &new("long", &pairs), &mut |_| Ok(()))
        .unwrap_err();
    assert_eq!(long.errno(), Errno::TOOBIG, "{long}");
    let most = store
        .create(Scope::Root, &new("most", &pairs[..17]), &mut |_| Ok(()))
        .unwrap();
    assert_eq!(store.find(Scope::Root, Key::Name("most")).unwrap(), most);
    // The prefix has another program's keys, or a store of another format.
    let put = |value: &str| {
        let key = encoded(b"/mine/store");
        etcd.ask(
            "/v3/kv/put",
            &format!(
                "{{\"key\": \"{key}\", \"value\": \"{}\"}}",
                encoded(value.as_bytes())
            ),
        );
        Session::open(&etcd.place("/mine?cache=off"))
            .err()
            .unwrap()
            .to_string()
    };
    assert!(put("hello").contains("another prefix"));
    assert!(put("{\"format\": 99, \"store\": \"x\"}").contains("format 99"));
    for wrong in ["etcd:", "etcd://", "etcd:host:1", "etcd://h?what=1"] {
        assert_eq!(
            Session::open(wrong).err().unwrap().errno(),
            Errno::INVAL,
            "{wrong}"
        );
    }
}
