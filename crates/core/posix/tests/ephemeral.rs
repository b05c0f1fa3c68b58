//! `persistence = "process"`: files are removed, with all their names, when the process that made
//! them ends, however it ends and whichever nodes the files are on. No other file is removed.
//!
//! The tests call `follow`, which does what a keeper does every second.

mod support;

use forebay_posix::controls::UNSEEN;
use forebay_posix::{ChunkSize, Distribution, Errno, Follow, Fs, ObjectId};
use forebay_store::Followed;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use support::nodes::Nodes;
use support::*;

/// Directories of the tests: files in the first two are ephemeral; files in the second one are also
/// striped.
const DIRS: [&str; 4] = ["/own", "/own-striped", "/other", "/mine"];
const STRIPED: Distribution = Distribution::Striped(ChunkSize::LEAST);

fn declare(fs: &Fs, path: &str, what: &str) -> Result<(), Errno> {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.set_controls(id, what.parse().unwrap())
}

fn make_dirs(fs: &Fs) {
    for dir in DIRS {
        let distribution = match dir {
            "/own-striped" => STRIPED,
            _ => Distribution::Local,
        };
        fs.mkdir_with(dir.as_bytes(), 0o700, distribution).unwrap();
        if dir.starts_with("/own") {
            declare(fs, dir, "persistence=process").unwrap();
        }
    }
}

fn put(fs: &Fs, path: &str, bytes: &[u8]) {
    let f = fs
        .open(path.as_bytes(), O_CREAT | O_TRUNC | O_RDWR, 0o600)
        .unwrap();
    write_all(&f, bytes, 0);
    f.close().unwrap();
}

/// Makes an unnamed file in `dir`, and gives it a name.
fn put_unnamed(fs: &Fs, dir: &str, path: &str) {
    let f = fs
        .open(dir.as_bytes(), libc::O_TMPFILE | O_RDWR, 0o600)
        .unwrap();
    write_all(&f, b"unnamed", 0);
    let id = ObjectId(f.stat().unwrap().ino);
    let linked = fs
        .resolver()
        .at(ObjectId::ROOT, path.as_bytes(), Follow::No, |place| {
            fs.make_link(id, place)
        });
    assert!(linked.is_ok());
    f.close().unwrap();
}

/// Names of all files.
fn names(fs: &Fs) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dir in DIRS {
        for e in fs.list(dir.as_bytes()).unwrap() {
            found.insert(format!("{dir}/{}", String::from_utf8(e.name).unwrap()));
        }
    }
    found
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// Repeats the keepers' work until no more files are removed. Returns the sums over all turns.
fn follow(nodes: &[&Fs]) -> Followed {
    let mut sum = Followed::default();
    loop {
        let mut round = Followed::default();
        for fs in nodes {
            let done = fs.cluster().declarations().follow_creators().unwrap();
            round.gone += done.gone;
            round.left += done.left;
        }
        sum.gone += round.gone;
        sum.left = round.left;
        if round.gone == 0 {
            return sum;
        }
    }
}

/// Makes files in every way, with `n` in their names; all of them are removed with this process.
/// Some of the names are in directories whose files aren't ephemeral.
fn make_all(fs: &Fs, n: usize) {
    put(fs, &format!("/own/small{n}"), b"small");
    put(fs, &format!("/own/large{n}"), &pattern(1, 300_000));
    put(fs, &format!("/own-striped/long{n}"), &pattern(2, 3_500_000));
    put_unnamed(fs, "/own", &format!("/own/linked{n}"));
    put_unnamed(fs, "/own", &format!("/other/linked{n}"));
    put(fs, &format!("/own/moves{n}"), b"moves");
    let p = |name: &str| format!("{name}{n}").into_bytes();
    fs.rename(&p("/own/moves"), &p("/other/moved")).unwrap();
    fs.link(&p("/other/moved"), &p("/other/again")).unwrap();
    fs.link(&p("/own/large"), &p("/other/large")).unwrap();
    fs.unlink(&p("/own/large")).unwrap();
    fs.set_xattr(&p("/own/small"), b"user.k", b"v", true)
        .unwrap();
    fs.link(&p("/own/small"), &p("/other/small")).unwrap();
    fs.remove_xattr(&p("/own/small"), b"user.k", true).unwrap();
}

/// Number of names that [`make_all`] leaves.
const MADE: usize = 8;

/// Not a test: the code of the other processes.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, fs)) = worker_role() else {
        return;
    };
    match role.as_str() {
        // Uses all stores of a pool of several nodes, and is killed at a request in the middle of
        // an operation.
        "among" => among(&a),
        "makes" => {
            make_all(&fs, 0);
            fs.mkdir(b"/ready", 0o700).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        "ends" => {
            make_all(&fs, 0);
            fs.store().recovery().detach().unwrap();
        }
        // Ends without detaching from the pool.
        "exits" => {
            make_all(&fs, 0);
            // SAFETY: the call takes no pointers; it only ends this process.
            unsafe { libc::_exit(0) };
        }
        "removes" => {
            fs.mkdir(b"/ready", 0o700).unwrap();
            loop {
                fs.cluster().declarations().follow_creators().unwrap();
            }
        }
        "goes-on" => go_on(&fs, a[0].parse().unwrap()),
        other => panic!("{other}"),
    }
}

/// Makes, renames, links and removes this process's files until it is killed.
fn go_on(fs: &Fs, seed: u64) {
    let mut random = Random(seed);
    fs.mkdir(b"/ready", 0o700).unwrap();
    loop {
        let path = |random: &mut Random| {
            let dir = ["/own", "/other", "/own"][random.below(3)];
            format!("{dir}/made{}", random.below(8)).into_bytes()
        };
        let (a, b) = (path(&mut random), path(&mut random));
        // An operation fails if a name exists that shouldn't, or the reverse.
        match random.below(9) {
            0..=3 => {
                let own = [&b"/own/"[..], &a[a.len() - 5..]].concat();
                let size = [10, 900, 5000, 200_000][random.below(4)];
                if let Ok(f) = fs.open(&own, O_CREAT | O_EXCL | O_RDWR, 0o600) {
                    write_all(&f, &pattern(size as u64, size), 0);
                    f.close().unwrap();
                }
            }
            4 => _ = fs.rename(&a, &b),
            5 => _ = fs.link(&a, &b),
            6 => _ = exchange(fs, &a, &b),
            7 => _ = fs.set_xattr(&a, b"user.k", b"v", true),
            _ => _ = fs.unlink(&a),
        }
    }
}

#[test]
fn what_a_process_made_goes_with_it_and_nothing_else() {
    let pool = TestPool::new("makers");
    make_dirs(&pool);
    put(&pool, "/own/mine", b"mine, I live");
    put(&pool, "/mine/pool", b"nobody's");
    pool.link(b"/own/mine", b"/mine/mine").unwrap();
    let before = names(&pool);
    let used = pool.used();
    for way in ["makes", "ends", "exits"] {
        let worker = pool.worker(way, "");
        if way == "makes" {
            wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
            pool.rmdir(b"/ready").unwrap();
            // No file is removed while the process lives.
            let followed = follow(&[&pool]);
            assert_eq!((followed.gone, followed.left), (0, 7));
            assert_eq!(names(&pool).len(), before.len() + MADE);
            // Another process that has such a file open can continue to use it, even after its name
            // is removed.
            let open = pool.open(b"/other/large0", O_RDWR, 0).unwrap();
            worker.kill();
            assert_eq!(follow(&[&pool]).left, 2);
            assert_eq!(names(&pool), before);
            assert_eq!(read_all(&open), pattern(1, 300_000));
            write_all(&open, b"more", 300_000);
            open.close().unwrap();
        } else {
            assert!(!worker.finish_killed());
        }
        assert_eq!(follow(&[&pool]).left, 1, "{way}");
        assert_eq!(names(&pool), before, "{way}");
        pool.store().recovery().settle().unwrap();
        assert_eq!(pool.used(), used, "{way}");
        pool.assert_whole();
    }
    assert_eq!(pool.get("/mine/mine"), b"mine, I live");
}

#[test]
fn kills_at_any_instant_leave_nothing() {
    let pool = TestPool::limited("makers-killed", &["memory:64M"], 240);
    make_dirs(&pool);
    put(&pool, "/own/mine", b"mine");
    put(&pool, "/other/pool", b"nobody's");
    let (before, used) = (names(&pool), pool.used());
    let mut random = Random(7);
    let mut gone = 0;
    for round in 1..=40 {
        let worker = pool.worker("goes-on", &round.to_string());
        wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
        // The keepers' work, at any moment while the worker runs, removes no file and does no harm.
        let looks = random.below(30);
        for _ in 0..looks {
            assert_eq!(
                pool.cluster()
                    .declarations()
                    .follow_creators()
                    .unwrap()
                    .gone,
                0
            );
        }
        std::thread::sleep(std::time::Duration::from_micros(random.below(20_000) as u64));
        worker.kill();
        pool.store().recovery().settle().unwrap();
        pool.rmdir(b"/ready").unwrap();
        gone += follow(&[&pool]).gone;
        assert_eq!(names(&pool), before, "round {round}");
        assert_eq!(pool.used(), used, "round {round}");
        pool.assert_whole();
    }
    assert!(gone > 40, "{gone}");
}

#[test]
fn a_killed_remover_leaves_nothing_undone() {
    let pool = TestPool::limited("makers-remover", &["memory:64M"], 120);
    make_dirs(&pool);
    put(&pool, "/mine/f", b"nobody's");
    let used = pool.used();
    let mut random = Random(3);
    for round in 0..10 {
        assert!(!pool.worker("exits", "").finish_killed());
        let remover = pool.worker("removes", "");
        wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
        std::thread::sleep(std::time::Duration::from_micros(random.below(600) as u64));
        remover.kill();
        pool.rmdir(b"/ready").unwrap();
        pool.store().recovery().settle().unwrap();
        follow(&[&pool]);
        assert_eq!(names(&pool), set(&["/mine/f"]), "round {round}");
        assert_eq!(pool.used(), used, "round {round}");
        pool.assert_whole();
    }
}

#[test]
fn who_makes_it_is_decided_when_it_is_made() {
    let pool = TestPool::new("makers-said");
    make_dirs(&pool);
    put(&pool, "/mine/f", b"x");
    // An existing file can't be declared ephemeral, since its creator isn't known. A directory can
    // be declared ephemeral at any time.
    assert_eq!(
        declare(&pool, "/mine/f", "persistence=process"),
        Err(Errno::OPNOTSUPP)
    );
    declare(&pool, "/mine", "persistence=process").unwrap();
    declare(&pool, "/mine", "").unwrap();
    // Other controls may be declared for an ephemeral file, and it may be declared permanent.
    assert!(!pool.worker("exits", "").finish_killed());
    declare(
        &pool,
        "/own/small0",
        "persistence=process,mutability=append",
    )
    .unwrap();
    declare(&pool, "/other/moved0", "mutability=append").unwrap();
    pool.store().recovery().settle().unwrap();
    follow(&[&pool]);
    let kept = ["/mine/f", "/other/again0", "/other/moved0"];
    assert_eq!(names(&pool), set(&kept));
    pool.assert_whole();
    // Directories and symbolic links made in /own aren't ephemeral.
    pool.mkdir(b"/own/dir", 0o700).unwrap();
    pool.symlink(b"x", b"/own/link").unwrap();
    assert_eq!(follow(&[&pool]), Followed::default());
    // A face makes files for other processes, but not for one that has ended, or that can't be
    // seen.
    for (id, refused) in [((1 << 22) + 17, Errno::SRCH), (UNSEEN, Errno::OPNOTSUPP)] {
        let theirs = pool.for_process(id);
        let made = theirs.open(b"/own/none", O_CREAT | O_RDWR, 0o600).map(drop);
        assert_eq!(made, Err(refused));
    }
    // Given a thread's id, the face makes the file for the thread's process.
    let mut child = std::process::Command::new("sleep")
        .arg("30")
        .spawn()
        .unwrap();
    put(&pool.for_process(child.id()), "/own/theirs", b"x");
    let said = "persistence=process".parse().unwrap();
    put(&pool.declaring(said), "/mine/said", b"x");
    put(&pool, "/mine/not-said", b"x");
    assert_eq!(follow(&[&pool]).left, 2);
    child.kill().unwrap();
    // A process that wasn't waited for counts as ended, too.
    wait_until("its file goes", || follow(&[&pool]).left == 1);
    child.wait().unwrap();
    let all = [
        &kept[..],
        &["/mine/said", "/mine/not-said", "/own/dir", "/own/link"],
    ]
    .concat();
    assert_eq!(names(&pool), set(&all));
    pool.assert_whole();
}

#[test]
fn what_is_staged_in_has_no_maker() {
    let rule = "[[rule]]\npath = \"/s/**\"\npersistence = \"process\"\nmutability = \"append\"\n";
    let pool = TestPool::ruled("makers-staged", &["memory:16M"], rule, 60);
    pool.mkdir(b"/s", 0o700).unwrap();
    let staging = Fs::for_staging(std::sync::Arc::new(
        forebay_client::Pool::open_dir(pool.pool().dir()).unwrap(),
    ));
    put(&staging, "/s/part", b"staged");
    staging.settle(b"/s/part", b"/s/whole").unwrap();
    staging.rename(b"/s/part", b"/s/whole").unwrap();
    let id = ObjectId(pool.stat(b"/s/whole", true).unwrap().ino);
    let (said, _) = pool.controls_of(id).unwrap();
    assert_eq!(said.to_string(), "mutability=append");
    assert_eq!(follow(&[&pool]), Followed::default());
}

/// Operations in the middle of which processes are killed. The files were made before the
/// operation, or are made by it.
const OPERATIONS: [&str; 12] = [
    "create",
    "create-striped",
    "mknod",
    "unnamed",
    "rename",
    "replace",
    "replaced",
    "link",
    "exchange",
    "exchange-mine",
    "unlink",
    "index",
];

fn carry_out(fs: &Fs, what: &str, n: usize) -> Result<(), Errno> {
    let p = |name: &str| format!("{name}{n}").into_bytes();
    match what {
        "create" => put(fs, &format!("/own/created{n}"), b"created"),
        "create-striped" => put(fs, &format!("/own-striped/c{n}"), &pattern(3, 2_500_000)),
        "mknod" => {
            let at = fs
                .resolver()
                .at(ObjectId::ROOT, &p("/own/node"), Follow::No, |place| {
                    fs.make_node(place, libc::S_IFREG | 0o600, 0)
                });
            assert!(at.is_ok());
        }
        "unnamed" => put_unnamed(fs, "/own", &format!("/other/unnamed{n}")),
        "rename" => fs.rename(&p("/own/small"), &p("/other/new"))?,
        "replace" => fs.rename(&p("/own/small"), &p("/other/again"))?,
        // The ephemeral file is replaced by a file of another process.
        "replaced" => fs.rename(&p("/mine/a"), &p("/other/again"))?,
        "link" => fs.link(&p("/own-striped/long"), &p("/mine/linked"))?,
        "exchange" => exchange(fs, &p("/own/small"), &p("/other/again"))?,
        "exchange-mine" => exchange(fs, &p("/other/again"), &p("/mine/a"))?,
        "unlink" => fs.unlink(&p("/other/again"))?,
        "index" => fs.set_xattr(&p("/other/again"), b"user.k", b"v", true)?,
        other => panic!("{other}"),
    }
    Ok(())
}

/// Carries out an operation. Arguments: the nodes' directories, operation, number, the request at
/// which the process is killed, and whether it is killed after that request.
fn among(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let (n, at): (usize, usize) = (a[2].parse().unwrap(), a[3].parse().unwrap());
    let fs = &nodes.views[n % nodes.views.len()];
    make_all(fs, n);
    let asked = nodes.together.asked.load(SeqCst);
    nodes.together.kill_behind.store(a[4] == "true", SeqCst);
    nodes.together.kill_at.store(asked + at, SeqCst);
    carry_out(fs, &a[1], n).unwrap();
    nodes.together.kill_at.store(0, SeqCst);
    // SAFETY: the call takes no pointers; it only ends this process.
    unsafe { libc::_exit(0) };
}

#[test]
fn wherever_it_lies_it_goes_and_whatever_was_under_way() {
    let nodes = Nodes::new("makers-among", 3, &["memory:64M"], 400);
    let views: Vec<&Fs> = nodes.views.iter().collect();
    let dirs: Vec<_> = nodes.dirs.iter().map(|d| d.to_string_lossy()).collect();
    let dirs = dirs.join(":");
    make_dirs(views[0]);
    put(views[0], "/own/mine", b"mine");
    let (mut n, mut gone) = (0, 0);
    for what in OPERATIONS {
        for behind in [false, true] {
            for at in 1.. {
                n += 1;
                let fs = views[n % 3];
                put(fs, &format!("/mine/a{n}"), b"nobody's");
                put(
                    views[(n + 1) % 3],
                    &format!("/mine/b{n}"),
                    &pattern(5, 70_000),
                );
                let arguments = format!("{dirs} {what} {n} {at} {behind}");
                let worker = nodes.pools[0].worker("among", &arguments);
                let whole = !worker.finish_killed();
                nodes.recover();
                let followed = follow(&views);
                gone += followed.gone;
                let story = format!("{what}, number {n}, killed at {at}, behind: {behind}");
                // One file is left: the one of this process, which is alive.
                assert_eq!(followed.left, 1, "{story}");
                let left = names(views[(n + 2) % 3]);
                // The file that isn't ephemeral may have got another name.
                let a = ["/mine/a", "/other/again"].map(|name| format!("{name}{n}"));
                let a = a.iter().find(|name| left.contains(*name)).expect(&story);
                let all = [a, &format!("/mine/b{n}"), "/own/mine"];
                assert_eq!(left, set(&all), "{story}");
                assert_eq!(
                    read_all(&fs.open(a.as_bytes(), O_RDONLY, 0).unwrap()),
                    b"nobody's"
                );
                nodes.assert_whole();
                fs.unlink(a.as_bytes()).unwrap();
                fs.unlink(format!("/mine/b{n}").as_bytes()).unwrap();
                if whole {
                    break;
                }
            }
        }
    }
    fs_unlink_all(views[1]);
    assert_eq!(follow(&views), Followed::default());
    nodes.drop_parts();
    assert_eq!(nodes.used(), 0, "pages are left");
    assert!(gone > 6 * n, "{gone} in {n}");
}

fn fs_unlink_all(fs: &Fs) {
    for name in names(fs) {
        fs.unlink(name.as_bytes()).unwrap();
    }
}

#[test]
fn a_maker_on_another_node_is_asked_for() {
    let nodes = Nodes::new("makers-away", 3, &["memory:32M"], 60);
    let views: Vec<&Fs> = nodes.views.iter().collect();
    make_dirs(views[0]);
    // The files are made on node 0; some have other homes, since the home of a striped file is the
    // home of its entry.
    for n in 0..12 {
        put(
            views[0],
            &format!("/own-striped/{n}"),
            &pattern(n, 2_000_000),
        );
        put(views[n as usize % 3], &format!("/own/{n}"), b"x");
    }
    let homes: BTreeSet<Option<u32>> = (0..12)
        .map(|n| {
            let ino = views[0].stat(format!("/own/{n}").as_bytes(), true).unwrap();
            views[0].cluster().home_of(ObjectId(ino.ino))
        })
        .collect();
    assert_eq!(homes.len(), 3);
    let asked = nodes.together.asked.load(SeqCst);
    assert_eq!(follow(&views), Followed { gone: 0, left: 24 });
    // Each node sends one request to each other node, for all of that node's files.
    assert!(nodes.together.asked.load(SeqCst) - asked <= 6);
    fs_unlink_all(views[2]);
    assert_eq!(follow(&views), Followed::default());
    nodes.assert_whole();
}
