//! Controls of files, on one node and on several: what they forbid, what is reported, and what
//! remains when processes die.
//!
//! Nodes are stores in one process (`support/nodes.rs`); `open_as` opens files for another process.

mod support;

use forebay_client::Pool;
use forebay_posix::{ChunkSize, Distribution, Errno, Follow, Fs, ObjectId};
use support::declare::*;
use support::nodes::Nodes;
use support::*;

/// Not a test: the code of the other processes.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, fs)) = worker_role() else {
        return;
    };
    let open = fs
        .open_at(ObjectId::ROOT, a[0].as_bytes(), O_CREAT | O_RDWR, 0o600)
        .unwrap_or_else(|_| panic!("can't open {}", a[0]));
    fs.store().objects().fd_set(5, Some(open)).unwrap();
    let written = fs.write(open, None, b"half"[..].into());
    assert_eq!(written, Ok(4));
    match role.as_str() {
        "is-killed" => {
            fs.mkdir(b"/ready", 0o700).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        // Doesn't close the file; only detaches the process.
        "ends" => fs.store().recovery().detach().unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_appended_to_only_grows() {
    each("append", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let path = format!("/log{k}");
            put(nodes[0], &path, b"begin").unwrap();
            declare(nodes[0], &path, "mutability=append");
            let f = fs.open(path.as_bytes(), O_RDWR, 0).unwrap();
            assert_eq!(f.write_at(b"X", 0), Err(Errno::PERM));
            assert_eq!(f.write_at(b"X", 4), Err(Errno::PERM));
            assert_eq!(f.write_at(b"X", 6), Err(Errno::PERM));
            assert_eq!(f.write_at(b" and", 5), Ok(4));
            assert_eq!(f.set_len(3), Err(Errno::PERM));
            assert_eq!(f.set_len(10), Ok(()));
            let appending = fs.open(path.as_bytes(), O_WRONLY | O_APPEND, 0).unwrap();
            assert_eq!(appending.write_at(b"end", 0), Ok(3));
            assert!(is(
                fs.open(path.as_bytes(), O_WRONLY | O_TRUNC, 0),
                Errno::PERM
            ));
            assert_eq!(get(fs, &path), b"begin and\0end");
            // Changes of the name and of attributes are allowed.
            fs.chmod(path.as_bytes(), 0o400).unwrap();
            fs.rename(path.as_bytes(), b"/log").unwrap();
            fs.unlink(b"/log").unwrap();
        }
    });
}

#[test]
fn a_file_is_laminated_with_the_last_close_after_writing() {
    each("laminated", |nodes| {
        nodes[0].mkdir(b"/ckpt", 0o700).unwrap();
        declare(nodes[0], "/ckpt", "mutability=immutable");
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let path = format!("/ckpt/{k}");
            let name = path.as_bytes();
            let one = fs.open(name, O_CREAT | O_RDWR, 0o600).unwrap();
            // The file hasn't been written and closed yet, so it can be opened for writing.
            fs.open(name, O_WRONLY, 0).unwrap().close().unwrap();
            let two = other.open(name, O_WRONLY, 0).unwrap();
            write_all(&one, b"one", 0);
            one.close().unwrap();
            assert!(!is_laminated(fs, &path));
            write_all(&two, b"two", 3);
            two.close().unwrap();
            assert!(is_laminated(fs, &path) && is_laminated(other, &path));
            for fs in [fs, &other] {
                for flags in [O_WRONLY, O_RDWR, O_WRONLY | O_APPEND, O_WRONLY | O_TRUNC] {
                    assert!(is(fs.open(name, flags, 0), Errno::PERM), "{flags:#x}");
                }
                assert_eq!(get(fs, &path), b"onetwo");
            }
            // Attributes may change, the content may not. A new declaration allows writing again.
            fs.set_times(name, None, Some(1), true).unwrap();
            assert!(is_laminated(fs, &path));
            declare(other, &path, "mutability=overwrite");
            put(fs, &path, b"ONE").unwrap();
            assert_eq!(get(other, &path), b"ONEtwo");
            declare(fs, &path, "mutability=immutable");
            put(other, &path, b"TWO").unwrap();
            assert!(is(put(fs, &path, b"no"), Errno::PERM));
            other.unlink(name).unwrap();
            put(fs, &path, b"another").unwrap();
            assert!(is_laminated(other, &path));
            // A file that gets its name after it was written.
            let nameless = fs.open(b"/ckpt", libc::O_TMPFILE | O_RDWR, 0o600).unwrap();
            write_all(&nameless, b"whole", 0);
            let id = ObjectId(nameless.stat().unwrap().ino);
            let later = format!("/ckpt/later{k}");
            let linked = fs
                .resolver()
                .at(ObjectId::ROOT, later.as_bytes(), Follow::No, |place| {
                    fs.make_link(id, place)
                });
            assert!(linked.is_ok());
            nameless.close().unwrap();
            assert!(is_laminated(other, &later));
        }
    });
}

#[test]
fn one_at_a_time() {
    each("exclusive", |nodes| {
        nodes[0].mkdir(b"/own", 0o700).unwrap();
        declare(nodes[0], "/own", "parallelism=exclusive");
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let path = format!("/own/{k}");
            let open = |fs: &Fs, pid: u32| open_as(fs, pid, &path, O_CREAT | O_RDWR);
            let first = open(fs, 0).unwrap();
            let second = open(fs, 0).unwrap();
            assert_eq!(open(fs, ONE), Err(Errno::BUSY));
            if nodes.len() > 1 {
                assert_eq!(open(other, 0), Err(Errno::BUSY));
            }
            // stat opens nothing.
            assert_eq!(other.stat(path.as_bytes(), true).unwrap().size, 0);
            close(fs, first);
            assert_eq!(open(fs, ONE), Err(Errno::BUSY));
            close(fs, second);
            let theirs = open(other, ONE).unwrap();
            assert_eq!(open(other, TWO), Err(Errno::BUSY));
            close(other, theirs);

            declare(fs, &path, "parallelism=exclusive(node)");
            let of_node = [open(fs, 0).unwrap(), open(fs, ONE).unwrap()];
            if nodes.len() > 1 {
                assert_eq!(open(other, 0), Err(Errno::BUSY));
            }
            for f in of_node {
                close(fs, f);
            }
            close(other, open(other, 0).unwrap());
        }
    });
}

#[test]
fn a_violation_is_refused_or_done_and_listed() {
    each("listed", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let of = |what: &str| format!("/{what}{k}");
            for what in ["refuse", "report"] {
                put(nodes[0], &of(what), b"0123").unwrap();
                declare(
                    nodes[0],
                    &of(what),
                    &format!("mutability=append,on_violation={what}"),
                );
                let f = fs.open(of(what).as_bytes(), O_RDWR, 0).unwrap();
                for _ in 0..3 {
                    let done = f.write_at(b"x", 1);
                    assert_eq!(
                        done,
                        if what == "refuse" {
                            Err(Errno::PERM)
                        } else {
                            Ok(1)
                        }
                    );
                }
            }
            assert_eq!(get(fs, &of("refuse")), b"0123");
            assert_eq!(get(fs, &of("report")), b"0x23");
            let (all, full) = Pool::violations(fs.pool().dir()).unwrap();
            assert!(!full);
            let of_them = |path: String| {
                let mut found = all.iter().filter(|v| v.path == path);
                // The violation is listed once, though the operation was tried three times.
                (found.next().unwrap(), found.count())
            };
            for what in ["refuse", "report"] {
                let (v, more) = of_them(of(what));
                assert_eq!(more, 0);
                assert_eq!(v.pid, std::process::id());
                assert_eq!(v.control, "mutability = \"append\"");
                assert_eq!(v.what, "write at 1");
                assert_eq!(v.refused, what == "refuse");
            }
        }
    });
}

#[test]
fn rules_and_directories_say_it_of_new_files() {
    const RULES: &str = r#"
        [[rule]]
        path = "/ckpt/**"
        mutability = "immutable"
        [[rule]]
        path = "/**/*.log"
        mutability = "append"
        on_violation = "report"
    "#;
    let pool = TestPool::ruled("rules", &["memory:16M"], RULES, 60);
    pool.mkdir(b"/ckpt", 0o700).unwrap();
    pool.mkdir(b"/ckpt/a", 0o700).unwrap();
    pool.mkdir(b"/said", 0o700).unwrap();
    declare(&pool, "/said", "mutability=overwrite");
    pool.mkdir(b"/said/below", 0o700).unwrap();
    let of = |path: &str| {
        put(&pool, path, b"x").unwrap();
        let xattr = pool.xattr(path.as_bytes(), b"user.forebay.controls", true);
        let id = ObjectId(pool.stat(path.as_bytes(), true).unwrap().ino);
        let (said, _) = pool.controls_of(id).unwrap();
        assert_eq!(xattr.unwrap_or_default(), said.to_string().into_bytes());
        said.to_string()
    };
    assert_eq!(of("/ckpt/a/1"), "mutability=immutable");
    assert_eq!(of("/ckpt/a/1.log"), "mutability=append,on_violation=report");
    assert_eq!(of("/x"), "");
    assert_eq!(of("/x.log"), "mutability=append,on_violation=report");
    // Each control declared for the directory overrides that of the rules.
    assert_eq!(
        of("/said/below/x.log"),
        "mutability=overwrite,on_violation=report"
    );
    // The file keeps its controls when it is renamed.
    pool.rename(b"/ckpt/a/1", b"/1.log").unwrap();
    assert!(is_laminated(&pool, "/1.log"));
    // The attribute can be set and removed, but isn't listed: a copy of the file gets its own
    // controls.
    let name = b"user.forebay.controls";
    pool.set_xattr(b"/x", name, b"parallelism=exclusive", true)
        .unwrap();
    assert_eq!(
        pool.xattr(b"/x", name, true).unwrap(),
        b"parallelism=exclusive"
    );
    assert!(pool.xattrs(b"/x", true).unwrap().is_empty());
    for wrong in ["parallelism=some", "x", "consistency=eventual"] {
        assert_eq!(
            pool.set_xattr(b"/x", name, wrong.as_bytes(), true),
            Err(Errno::INVAL)
        );
    }
    // A file becomes ephemeral only when it is made, since its creator must be known.
    assert_eq!(
        pool.set_xattr(b"/x", name, b"persistence=process", true),
        Err(Errno::OPNOTSUPP)
    );
    pool.remove_xattr(b"/x", name, true).unwrap();
    assert_eq!(pool.xattr(b"/x", name, true), Err(Errno::NODATA));
    assert_eq!(pool.remove_xattr(b"/x", name, true), Err(Errno::NODATA));
    pool.assert_whole();
}

#[test]
fn what_a_killed_process_wrote_is_not_laminated() {
    let pool = TestPool::new("cut-short");
    pool.mkdir(b"/ckpt", 0o700).unwrap();
    declare(&pool, "/ckpt", "mutability=immutable,parallelism=exclusive");
    pool.worker("ends", "/ckpt/whole").finish();
    assert!(is_laminated(&pool, "/ckpt/whole"));
    let worker = pool.worker("is-killed", "/ckpt/half");
    wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
    assert!(is(pool.open(b"/ckpt/half", O_RDONLY, 0), Errno::BUSY));
    worker.kill();
    // No waiting is needed: open checks whether the processes that use the file are alive.
    put(&pool, "/ckpt/half", b"whole").unwrap();
    assert!(is_laminated(&pool, "/ckpt/half"));
    assert_eq!(get(&pool, "/ckpt/half"), b"whole");
    pool.assert_whole();
}

#[test]
fn striped_files_keep_them_too() {
    let nodes = Nodes::new("striped-controls", 3, &["memory:64M"], 60);
    let fs = &nodes.views[0];
    let striped = Distribution::Striped(ChunkSize::LEAST);
    fs.mkdir_with(b"/s", 0o700, striped).unwrap();
    for (k, fs) in nodes.views.iter().enumerate() {
        let other = &nodes.views[(k + 1) % 3];
        let path = format!("/s/{k}");
        let content = pattern(k as u64, 5 << 20);
        put(fs, &path, &content).unwrap();
        declare(fs, &path, "mutability=append");
        let f = other.open(path.as_bytes(), O_RDWR, 0).unwrap();
        for at in [0, 1 << 20, (5 << 20) - 1, (5 << 20) + 1] {
            assert_eq!(f.write_at(b"x", at), Err(Errno::PERM), "{at}");
        }
        assert_eq!(f.set_len(1 << 20), Err(Errno::PERM));
        assert_eq!(f.write_at(&content, 5 << 20), Ok(content.len()));
        f.close().unwrap();
        let a = other.open(path.as_bytes(), O_WRONLY | O_APPEND, 0).unwrap();
        assert_eq!(a.write_at(b"end", 0), Ok(3));
        declare(fs, &path, "mutability=immutable");
        put(fs, &path, &content[..10]).unwrap();
        assert!(!is_laminated(fs, &path));
        a.close().unwrap();
        assert!(is_laminated(fs, &path));
        assert!(is(put(fs, &path, b"x"), Errno::PERM));
        assert_eq!(get(fs, &path), [&content[..], &content, b"end"].concat());
    }
    nodes.assert_whole();
}
