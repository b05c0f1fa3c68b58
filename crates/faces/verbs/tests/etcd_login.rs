//! etcd with users: login, refusal, and another login when etcd has dropped the token.

mod support;

use forebay_iov::meta::Scope;
use forebay_iov::{
    Batch, Collection, Errno, Failure, Key, Meta, Options, Order, Predicate, Session, Workspace,
};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use support::etcd::{TestEtcd, encoded, post_as};
use support::relay::Server;
use support::{Dir, names, new};

const ROOT: &str = "the root's";
const MINE: &str = "\"mine\\ and nobody's";
/// Time after which etcd drops an unused token. Seconds.
const TTL: &str = "2";

/// An etcd with the users `root` and `me`. `me` may use the keys below /forebay/.
struct WithUsers {
    etcd: TestEtcd,
    dir: Dir,
}

impl WithUsers {
    fn new() -> WithUsers {
        let etcd = TestEtcd::with(&["--auth-token-ttl", TTL, "--bcrypt-cost", "4"]);
        let (from, to) = (encoded(b"/forebay/"), encoded(b"/forebay0"));
        let perm = serde_json::json!({"permType": "READWRITE", "key": from, "range_end": to});
        for (path, request) in [
            (
                "user/add",
                serde_json::json!({"name": "root", "password": ROOT}),
            ),
            ("role/add", serde_json::json!({"name": "root"})),
            (
                "user/grant",
                serde_json::json!({"user": "root", "role": "root"}),
            ),
            (
                "user/add",
                serde_json::json!({"name": "me", "password": MINE}),
            ),
            ("role/add", serde_json::json!({"name": "forebay"})),
            (
                "role/grant",
                serde_json::json!({"name": "forebay", "perm": perm}),
            ),
            (
                "user/grant",
                serde_json::json!({"user": "me", "role": "forebay"}),
            ),
            ("enable", serde_json::json!({})),
        ] {
            let reply = etcd.ask(&format!("/v3/auth/{path}"), &request.to_string());
            assert!(reply.contains("cluster_id"), "{path}: {reply}");
        }
        // Checks that authentication is active.
        let refused = etcd.ask("/v3/kv/range", r#"{"key": "AA=="}"#);
        assert!(refused.contains("user name is empty"), "{refused}");
        let dir = Dir::new();
        let these = WithUsers { etcd, dir };
        these.file("mine", MINE, 0o600);
        these
    }

    /// Writes a file with a password, and returns its path.
    fn file(&self, name: &str, password: &str, mode: u32) -> String {
        let path = self.dir.0.join(name);
        std::fs::write(&path, format!("{password}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().into()
    }

    /// Returns the place of the store for `user`, through this endpoint.
    fn place_at(&self, endpoint: &str, user: &str, prefix: &str, more: &str) -> String {
        let file = format!("{}/mine", self.dir.text());
        format!("etcd://{user}@{endpoint}{prefix}?password={file}&{more}")
    }

    fn place(&self, user: &str, prefix: &str, more: &str) -> String {
        self.place_at(&self.etcd.endpoint(), user, prefix, more)
    }

    /// Carries out a request as root.
    fn as_root(&self, path: &str, request: &serde_json::Value) {
        let login = serde_json::json!({"name": "root", "password": ROOT}).to_string();
        let reply = self.etcd.ask("/v3/auth/authenticate", &login);
        let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
        let token = reply["token"].as_str().unwrap();
        let done = post_as(self.etcd.port, path, &request.to_string(), token).unwrap();
        assert!(done.contains("cluster_id"), "{done}");
    }
}

/// Starts a relay that counts logins.
fn counting(port: u16) -> (Server, Arc<AtomicU32>) {
    let logins = Arc::new(AtomicU32::new(0));
    let count = logins.clone();
    let relay = Server::relay(port, move |body| {
        count.fetch_add(u32::from(body.contains("\"password\"")), SeqCst);
        false
    });
    (relay, logins)
}

fn refused(place: &str, errno: Errno, words: &[&str]) {
    let error = Session::open(place)
        .err()
        .unwrap_or_else(|| panic!("{place}: it opened"));
    let text = error.to_string();
    assert_eq!(error.errno(), errno, "{place}: {text}");
    for word in words {
        assert!(text.contains(word), "{place}: {word:?} isn't in: {text}");
    }
    assert!(
        !text.contains("mine\\") && !text.contains("secret"),
        "{text}"
    );
}

/// Makes every kind of request to etcd: transactions, ranges, leases, logs, watches.
fn use_it(session: &Session, name: &str) {
    let w = Workspace::create(session, name, &Meta::new()).unwrap();
    let mut batch = Batch::new(session, Failure::Rollback, Order::Free);
    for n in 0..5u8 {
        let (_, c) = batch
            .create(&w, &format!("c{n}"), Options::default())
            .unwrap();
        batch.write(&c, 0, vec![n; 100]).unwrap();
        batch.close(&c).unwrap();
    }
    let running = batch.start().unwrap();
    assert!(running.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(running.error(), None);
    let c = Collection::open(&w, Key::Name("c3")).unwrap();
    c.set_meta(&[("step".into(), Some("3".into()))]).unwrap();
    let mut bytes = [0; 200];
    assert_eq!(c.read(&mut bytes, 0).unwrap(), 100);
    c.close().unwrap();
    let scope = Scope::In(w.uuid());
    assert_eq!(names(session.store(), scope, "step = 3"), ["c3"]);
    for n in 0..5 {
        Collection::delete(&w, Key::Name(&format!("c{n}"))).unwrap();
    }
    w.delete().unwrap();
}

#[test]
fn who_logs_in_can_use_it() {
    let these = WithUsers::new();
    let bytes = Dir::new();
    for more in [
        "cache=off".to_owned(),
        format!("cache={}/cache", these.dir.text()),
    ] {
        let session = Session::open(&these.place("me", "", &more)).unwrap();
        session.attach("here", "directory", bytes.text()).unwrap();
        use_it(&session, "w");
    }
}

#[test]
fn a_refused_login_is_explained() {
    let these = WithUsers::new();
    let endpoint = these.etcd.endpoint();
    let of = |user: &str, file: &str| format!("etcd://{user}@{endpoint}?cache=off&password={file}");
    let plain = format!("etcd://{endpoint}?cache=off");
    refused(
        &plain,
        Errno::ACCESS,
        &["USER@HOST", "?password=FILE", &endpoint],
    );
    let wrong = these.file("wrong", "another secret", 0o600);
    refused(
        &of("me", &wrong),
        Errno::ACCESS,
        &["login of 'me'", "authentication failed", &wrong],
    );
    let mine = format!("{}/mine", these.dir.text());
    refused(&of("nobody", &mine), Errno::ACCESS, &["'nobody' is a user"]);
    let open = these.file("open", MINE, 0o640);
    refused(
        &of("me", &open),
        Errno::ACCESS,
        &[&format!("chmod 600 {open}")],
    );
    let empty = these.file("empty", "", 0o600);
    refused(&of("me", &empty), Errno::INVAL, &["empty"]);
    let nothing = format!("{}/nothing", these.dir.text());
    refused(&of("me", &nothing), Errno::NOENT, &[&nothing]);
    refused(&of("me", these.dir.text()), Errno::INVAL, &["regular"]);
    refused(
        &format!("etcd://me:secret@{endpoint}"),
        Errno::INVAL,
        &["?password=FILE"],
    );
    let elsewhere = these.place("me", "/elsewhere", "cache=off");
    refused(
        &elsewhere,
        Errno::ACCESS,
        &["permission denied", "below the prefix"],
    );
    // This etcd has no users.
    let without = TestEtcd::new();
    let place = these.place_at(&without.endpoint(), "me", "", "cache=off");
    refused(&place, Errno::INVAL, &["not enabled", "leave out 'me@'"]);
}

#[test]
fn a_token_that_ran_out_is_renewed() {
    let these = WithUsers::new();
    let (relay, logins) = counting(these.etcd.port);
    let more = format!("cache={}/cache", these.dir.text());
    let place = these.place_at(&relay.endpoint(), "me", "", &more);
    let session = Session::open(&place).unwrap();
    let bytes = Dir::new();
    session.attach("here", "directory", bytes.text()).unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let scope = Scope::In(w.uuid());
    let store = session.store();
    let make = |name: &str| store.create(scope, &new(name, &[("k", "v")]), &mut |_| Ok(()));
    make("a").unwrap();
    let first = logins.load(SeqCst);
    assert!(first > 0);
    // Waits until etcd has dropped the unused token.
    let run_out = || std::thread::sleep(Duration::from_secs(2 * TTL.parse::<u64>().unwrap() + 1));
    run_out();
    // Several threads find at the same time that the token is gone; none gets an error.
    std::thread::scope(|threads| {
        for n in 0..6 {
            let make = &make;
            threads.spawn(move || make(&format!("b{n}")).unwrap());
        }
    });
    let now = logins.load(SeqCst);
    assert!(now > first);
    run_out();
    assert_eq!(names(store, scope, "k = \"v\"").len(), 7);
    assert!(logins.load(SeqCst) > now);
    run_out();
    use_it(&session, "v");
    assert_eq!(store.find(scope, Key::Name("a")).unwrap().name, "a");
}

#[test]
fn a_login_survives_a_restart_of_etcd() {
    let mut these = WithUsers::new();
    let session = Session::open(&these.place("me", "", "cache=off")).unwrap();
    let store = session.store();
    store
        .create(Scope::Root, &new("w", &[]), &mut |_| Ok(()))
        .unwrap();
    these.etcd.kill();
    assert!(these.etcd.start());
    assert_eq!(names(store, Scope::Root, ""), ["w"]);
    store
        .create(Scope::Root, &new("v", &[]), &mut |_| Ok(()))
        .unwrap();
    // A user's further role doesn't disturb the session, as long as the roles permit the request.
    these.as_root("/v3/auth/role/add", &serde_json::json!({"name": "more"}));
    these.as_root(
        "/v3/auth/user/grant",
        &serde_json::json!({"user": "me", "role": "more"}),
    );
    store
        .create(Scope::Root, &new("u", &[]), &mut |_| Ok(()))
        .unwrap();
    assert_eq!(names(store, Scope::Root, ""), ["u", "v", "w"]);
    // With a changed password, etcd refuses the session.
    let changed = serde_json::json!({"name": "me", "password": "another"});
    these.as_root("/v3/auth/user/changepw", &changed);
    let error = store
        .search(Scope::Root, &Predicate::everything(), 9)
        .unwrap_err();
    assert_eq!(error.errno(), Errno::ACCESS, "{error}");
    assert!(error.to_string().contains("login of 'me'"), "{error}");
    these.file("mine", "another", 0o600);
    let again = Session::open(&these.place("me", "", "cache=off")).unwrap();
    assert_eq!(names(again.store(), Scope::Root, ""), ["u", "v", "w"]);
}

/// The code of the child processes of the next test. A child is this program again.
#[test]
fn child() {
    let Ok(place) = std::env::var("ETCD_LOGIN_PLACE") else {
        return;
    };
    match Session::open(&place) {
        Ok(session) => println!("found {:?}", names(session.store(), Scope::Root, "")),
        Err(e) => println!("error {e}"),
    }
}

#[test]
fn the_environment_may_have_the_password() {
    let these = WithUsers::new();
    let place = format!("etcd://me@{}?cache=off", these.etcd.endpoint());
    let run = |password: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env("ETCD_LOGIN_PLACE", &place)
            .env_remove("FOREBAY_ETCD_PASSWORD");
        if let Some(password) = password {
            command.env("FOREBAY_ETCD_PASSWORD", password);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(run(Some(MINE)).contains("found []"));
    let wrong = run(Some("another secret"));
    assert!(
        wrong.contains("the password in $FOREBAY_ETCD_PASSWORD")
            && !wrong.contains("another secret"),
        "{wrong}"
    );
    let without = run(None);
    assert!(
        without.contains("?password=FILE") && without.contains("$FOREBAY_ETCD_PASSWORD"),
        "{without}"
    );
}
