//! Controls of files, on one node and over several: what they rule out, what is told of it, what deaths leave.
//!
//! Nodes are stores in one process (`support/nodes.rs`); `work_for` makes a thread open files for another process.

mod support;

use forebay_client::Pool;
use forebay_client::controls::Declared;
use forebay_posix::controls::work_for;
use forebay_posix::{ChunkSize, Distribution, Errno, File, Follow, Fs, ObjectId};
use forebay_store::SetAttr;
use std::sync::atomic::Ordering::SeqCst;
use support::nodes::Nodes;
use support::*;

/// Not a test: what the other processes do.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, fs)) = worker_role() else {
        return;
    };
    match role.as_str() {
        "laminates" => return laminate(&a),
        "says" => return say_and_be_killed(&a),
        "holds" => return hold(&a),
        _ => {}
    }
    let open = fs
        .open_at(ObjectId::ROOT, a[0].as_bytes(), O_CREAT | O_RDWR, 0o600)
        .unwrap_or_else(|_| panic!("can't open {}", a[0]));
    fs.store().fd_set(5, Some(open)).unwrap();
    // SAFETY: readable.
    let written = unsafe { fs.write(open, None, b"half".as_ptr(), 4) };
    assert_eq!(written, Ok(4));
    match role.as_str() {
        "is-killed" => {
            fs.mkdir(b"/ready", 0o700).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        "maps" => {
            map(&fs, open);
            fs.store().fd_set(5, None).unwrap();
            fs.store().open_release(open).unwrap();
            fs.mkdir(b"/ready", 0o700).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        // Without closing it: the process gives back what it has.
        "ends" => fs.store().detach().unwrap(),
        other => panic!("{other}"),
    }
}

/// Opens and closes a file for writing on all stores of a pool, and is killed at a question of closing it. Arguments: the nodes'
/// directories, path, which question, whether behind it.
fn laminate(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let f = nodes.views[1].open(a[1].as_bytes(), O_WRONLY, 0).unwrap();
    let asked = nodes.together.asked.load(SeqCst);
    nodes.together.kill_behind.store(a[3] == "true", SeqCst);
    let at: usize = a[2].parse().unwrap();
    nodes.together.kill_at.store(asked + at, SeqCst);
    f.close().unwrap();
    nodes.together.kill_at.store(0, SeqCst);
    // SAFETY: ends this process.
    unsafe { libc::_exit(0) };
}

/// Says of a file that it is exclusive, and is killed at a question of that. Arguments: as for [`laminate`].
fn say_and_be_killed(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let fs = &nodes.views[1];
    let id = ObjectId(fs.stat(a[1].as_bytes(), true).unwrap().ino);
    let asked = nodes.together.asked.load(SeqCst);
    nodes.together.kill_behind.store(a[3] == "true", SeqCst);
    let at: usize = a[2].parse().unwrap();
    nodes.together.kill_at.store(asked + at, SeqCst);
    // Refused, if several have it open.
    let _ = fs.set_controls(id, ALONE.parse().unwrap());
    nodes.together.kill_at.store(0, SeqCst);
    // SAFETY: ends this process.
    unsafe { libc::_exit(0) };
}

/// Has a file open. Arguments: the nodes' directories, path, on which node, what is made then.
fn hold(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let fs = &nodes.views[a[2].parse::<usize>().unwrap()];
    let _held = fs.open(a[1].as_bytes(), O_RDWR, 0).unwrap();
    fs.mkdir(a[3].as_bytes(), 0o700).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

fn say(fs: &Fs, path: &str, what: &str) {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.set_controls(id, what.parse().unwrap()).unwrap();
}

fn is_laminated(fs: &Fs, path: &str) -> bool {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.controls_of(id).unwrap().1
}

fn put(fs: &Fs, path: &str, bytes: &[u8]) -> forebay_posix::Result<()> {
    let f = fs.open(path.as_bytes(), O_CREAT | O_WRONLY, 0o600)?;
    assert_eq!(f.write_at(bytes, 0)?, bytes.len());
    f.close()
}

fn get(fs: &Fs, path: &str) -> Vec<u8> {
    read_all(&fs.open(path.as_bytes(), O_RDONLY, 0).unwrap())
}

/// Views of one node, and of three.
fn each(name: &str, f: impl Fn(&[&Fs])) {
    let one = TestPool::new(name);
    f(&[&one]);
    one.assert_whole();
    let nodes = Nodes::new(&format!("{name}-of"), 3, &["memory:32M"], 60);
    f(&nodes.views.iter().collect::<Vec<_>>());
    nodes.assert_whole();
}

#[test]
fn what_is_appended_to_only_grows() {
    each("append", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let path = format!("/log{k}");
            put(nodes[0], &path, b"begin").unwrap();
            say(nodes[0], &path, "mutability=append");
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
            // The name is another matter.
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
        say(nodes[0], "/ckpt", "mutability=immutable");
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let path = format!("/ckpt/{k}");
            let name = path.as_bytes();
            let one = fs.open(name, O_CREAT | O_RDWR, 0o600).unwrap();
            // Nothing is in it yet.
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
            // What isn't its content may change; and who says so may write again.
            fs.set_times(name, None, Some(1), true).unwrap();
            assert!(is_laminated(fs, &path));
            say(other, &path, "mutability=overwrite");
            put(fs, &path, b"ONE").unwrap();
            assert_eq!(get(other, &path), b"ONEtwo");
            say(fs, &path, "mutability=immutable");
            put(other, &path, b"TWO").unwrap();
            assert!(is(put(fs, &path, b"no"), Errno::PERM));
            other.unlink(name).unwrap();
            put(fs, &path, b"another").unwrap();
            assert!(is_laminated(other, &path));
            // One that gets its name when it is written.
            let nameless = fs.open(b"/ckpt", libc::O_TMPFILE | O_RDWR, 0o600).unwrap();
            write_all(&nameless, b"whole", 0);
            let id = ObjectId(nameless.stat().unwrap().ino);
            let later = format!("/ckpt/later{k}");
            let linked = fs.at(ObjectId::ROOT, later.as_bytes(), Follow::No, |place| {
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
    // No thread has such an id: each stands for a process.
    const ONE: u32 = (1 << 22) + 17;
    const TWO: u32 = (1 << 22) + 18;
    each("exclusive", |nodes| {
        nodes[0].mkdir(b"/own", 0o700).unwrap();
        say(nodes[0], "/own", "parallelism=exclusive");
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let path = format!("/own/{k}");
            let open = |fs: &Fs, pid: u32| {
                work_for(pid);
                let opened = fs.open_at(ObjectId::ROOT, path.as_bytes(), O_CREAT | O_RDWR, 0o600);
                work_for(0);
                opened.map_err(|e| match e {
                    forebay_posix::Fail::Errno(e) => e,
                    forebay_posix::Fail::Outside(_) => Errno::XDEV,
                })
            };
            let close = |fs: &Fs, open: u32| fs.store().open_release(open).unwrap();
            let first = open(fs, 0).unwrap();
            let second = open(fs, 0).unwrap();
            assert_eq!(open(fs, ONE), Err(Errno::BUSY));
            if nodes.len() > 1 {
                assert_eq!(open(other, 0), Err(Errno::BUSY));
            }
            // Looking at it opens nothing.
            assert_eq!(other.stat(path.as_bytes(), true).unwrap().size, 0);
            close(fs, first);
            assert_eq!(open(fs, ONE), Err(Errno::BUSY));
            close(fs, second);
            let theirs = open(other, ONE).unwrap();
            assert_eq!(open(other, TWO), Err(Errno::BUSY));
            close(other, theirs);

            say(fs, &path, "parallelism=exclusive(node)");
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
                say(
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
                // Once, though it was tried three times.
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
    say(&pool, "/said", "mutability=overwrite");
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
    // What is said of a directory comes before the rules, control by control.
    assert_eq!(
        of("/said/below/x.log"),
        "mutability=overwrite,on_violation=report"
    );
    // It stays what it is.
    pool.rename(b"/ckpt/a/1", b"/1.log").unwrap();
    assert!(is_laminated(&pool, "/1.log"));
    // As an attribute it is set and taken back, but not listed: copies are files of their own.
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
    // With whom it goes is known when it is made.
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
    say(&pool, "/ckpt", "mutability=immutable,parallelism=exclusive");
    pool.worker("ends", "/ckpt/whole").finish();
    assert!(is_laminated(&pool, "/ckpt/whole"));
    let worker = pool.worker("is-killed", "/ckpt/half");
    wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
    assert!(is(pool.open(b"/ckpt/half", O_RDONLY, 0), Errno::BUSY));
    worker.kill();
    // At once: who is in the way is looked at.
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
        say(fs, &path, "mutability=append");
        let f = other.open(path.as_bytes(), O_RDWR, 0).unwrap();
        for at in [0, 1 << 20, (5 << 20) - 1, (5 << 20) + 1] {
            assert_eq!(f.write_at(b"x", at), Err(Errno::PERM), "{at}");
        }
        assert_eq!(f.set_len(1 << 20), Err(Errno::PERM));
        assert_eq!(f.write_at(&content, 5 << 20), Ok(content.len()));
        f.close().unwrap();
        let a = other.open(path.as_bytes(), O_WRONLY | O_APPEND, 0).unwrap();
        assert_eq!(a.write_at(b"end", 0), Ok(3));
        say(fs, &path, "mutability=immutable");
        put(fs, &path, &content[..10]).unwrap();
        assert!(!is_laminated(fs, &path));
        a.close().unwrap();
        assert!(is_laminated(fs, &path));
        assert!(is(put(fs, &path, b"x"), Errno::PERM));
        assert_eq!(get(fs, &path), [&content[..], &content, b"end"].concat());
    }
    nodes.assert_whole();
}

/// All that is refused of a laminated file to who has opened it before anything was said.
fn is_refused_everywhere(stale: &File<'_>, appending: &File<'_>, size: u64) {
    for at in (0..=size).step_by(1 << 20) {
        assert_eq!(stale.write_at(b"no", at), Err(Errno::PERM), "at {at}");
    }
    let long = vec![1; size as usize];
    assert_eq!(stale.write_at(&long, 0), Err(Errno::PERM));
    for size in [0, 10, size - 1, size + 1] {
        assert_eq!(stale.set_len(size), Err(Errno::PERM), "to {size}");
    }
    assert_eq!(appending.write_at(b"no", 0), Err(Errno::PERM));
}

#[test]
fn what_is_said_while_it_is_open_holds_at_once() {
    const SIZE: usize = 5 << 20;
    let nodes = Nodes::new("said-while-open", 3, &["memory:64M"], 60);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0].mkdir_with(b"/s", 0o700, striped).unwrap();
    nodes.views[0].mkdir(b"/l", 0o700).unwrap();
    for (k, dir) in ["/s", "/l", "/s", "/l", "/s", "/l"].into_iter().enumerate() {
        let [fs, other, third] = [0, 1, 2].map(|n| &nodes.views[(k + n) % 3]);
        let path = format!("{dir}/{k}");
        put(fs, &path, &pattern(k as u64, SIZE)).unwrap();
        let stale = other.open(path.as_bytes(), O_RDWR, 0).unwrap();
        let appending = other.open(path.as_bytes(), O_WRONLY | O_APPEND, 0).unwrap();
        for at in 0..5 {
            assert_eq!(stale.write_at(b"old", at << 20), Ok(3));
        }
        let mapped = open_as(other, 0, &path, O_RDWR).unwrap();
        say(fs, &path, "mutability=append");
        for at in [0, 10, 1 << 20, SIZE as u64 - 1, SIZE as u64 + 1] {
            assert_eq!(
                stale.write_at(b"no", at),
                Err(Errno::PERM),
                "{path} at {at}"
            );
        }
        // What a mount writes back, which isn't told of mappings.
        for at in [0, 1 << 20, SIZE as u64 - 1] {
            let merged = other.merge(mapped, at, b"o", b"n").map(|_| ());
            assert_eq!(merged, Err(Errno::PERM), "{path} at {at}");
        }
        close(other, mapped);
        assert_eq!(stale.set_len(1 << 20), Err(Errno::PERM));
        assert_eq!(appending.write_at(b"end", 0), Ok(3));
        say(third, &path, "mutability=immutable");
        // It isn't laminated before those have closed it who had it open.
        assert_eq!(stale.write_at(b"new", 2 << 20), Ok(3));
        write_again(third, &path);
        assert!(!is_laminated(fs, &path));
        assert_eq!(stale.write_at(b"new", 3 << 20), Ok(3));
        let whole = get(third, &path);
        assert_eq!(whole.len(), SIZE + 3);
        appending.close().unwrap();
        assert!(!is_laminated(fs, &path));
        stale.close().unwrap();
        assert!(is_laminated(fs, &path));
        for fs in [fs, other, third] {
            assert!(get(fs, &path) == whole, "{path}");
            assert!(is(fs.open(path.as_bytes(), O_RDWR, 0), Errno::PERM));
        }
    }
    nodes.assert_whole();
}

/// Opens a file for writing and closes it.
fn write_again(fs: &Fs, path: &str) {
    let f = fs.open(path.as_bytes(), O_WRONLY, 0).unwrap();
    f.close().unwrap();
}

/// As [`say`], without counting who has it open: as if they were on a node that was given up, and comes again.
fn say_uncounted(fs: &Fs, path: &str, what: &str) {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    let declared: Declared = what.parse().unwrap();
    let set = SetAttr {
        controls: Some(declared.bits()),
        ..SetAttr::default()
    };
    fs.store().set_attr(id, &set).unwrap();
    fs.store().tell_writers(id).unwrap();
}

#[test]
fn who_was_not_counted_is_refused() {
    const SIZE: usize = 5 << 20;
    let nodes = Nodes::new("uncounted", 3, &["memory:64M"], 60);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0].mkdir_with(b"/s", 0o700, striped).unwrap();
    nodes.views[0].mkdir(b"/l", 0o700).unwrap();
    for (k, dir) in ["/s", "/l", "/s", "/l", "/s", "/l"].into_iter().enumerate() {
        let [fs, other, third] = [0, 1, 2].map(|n| &nodes.views[(k + n) % 3]);
        let path = format!("{dir}/{k}");
        put(fs, &path, &pattern(k as u64, SIZE)).unwrap();
        let stale = other.open(path.as_bytes(), O_RDWR, 0).unwrap();
        let appending = other.open(path.as_bytes(), O_WRONLY | O_APPEND, 0).unwrap();
        for at in 0..5 {
            assert_eq!(stale.write_at(b"old", at << 20), Ok(3));
        }
        say_uncounted(third, &path, "mutability=immutable");
        assert_eq!(stale.write_at(b"new", 2 << 20), Ok(3));
        let whole = get(third, &path);
        write_again(third, &path);
        assert!(is_laminated(fs, &path));
        is_refused_everywhere(&stale, &appending, SIZE as u64);
        for fs in [fs, other, third] {
            assert!(get(fs, &path) == whole, "{path}");
        }
        appending.close().unwrap();
        stale.close().unwrap();
        assert!(get(other, &path) == whole, "{path}");
    }
    nodes.assert_whole();
}

/// Opens for a process, not ours, of which there is no thread with such an id.
fn open_as(fs: &Fs, pid: u32, path: &str, flags: i32) -> Result<u32, Errno> {
    work_for(pid);
    let opened = fs.open_at(ObjectId::ROOT, path.as_bytes(), flags, 0o600);
    work_for(0);
    opened.map_err(|e| match e {
        forebay_posix::Fail::Errno(e) => e,
        forebay_posix::Fail::Outside(_) => Errno::XDEV,
    })
}

fn close(fs: &Fs, open: u32) {
    fs.store().open_release(open).unwrap();
}

fn try_to_say(fs: &Fs, path: &str, what: &str) -> Result<(), String> {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    let known = Some((ObjectId::ROOT, &path.as_bytes()[1..]));
    fs.say(id, what.parse().unwrap(), known).map_err(|unsaid| {
        assert_eq!(unsaid.error, Errno::BUSY);
        unsaid.why.expect("who is in the way")
    })
}

fn said_of(fs: &Fs, path: &str) -> String {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.controls_of(id).unwrap().0.to_string()
}

const ONE: u32 = (1 << 22) + 17;
const TWO: u32 = (1 << 22) + 18;
const ALONE: &str = "parallelism=exclusive";

#[test]
fn those_who_have_it_open_already_count() {
    each("counted", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let third = nodes[(k + 2) % nodes.len()];
            let path = format!("/f{k}");
            put(third, &path, b"x").unwrap();
            // One, whoever it is and whoever says it, is alone from now on.
            for flags in [O_RDONLY, O_WRONLY, O_RDWR | O_APPEND] {
                let first = open_as(other, ONE, &path, flags).unwrap();
                try_to_say(fs, &path, ALONE).unwrap();
                for view in nodes {
                    assert_eq!(open_as(view, TWO, &path, O_RDONLY), Err(Errno::BUSY));
                }
                let again = open_as(other, ONE, &path, O_RDWR).unwrap();
                close(other, first);
                assert_eq!(open_as(third, TWO, &path, O_RDWR), Err(Errno::BUSY));
                close(other, again);
                close(third, open_as(third, TWO, &path, O_RDWR).unwrap());
                say(fs, &path, "");
            }
            // Several aren't.
            let first = open_as(other, ONE, &path, O_RDWR).unwrap();
            let second = open_as(third, TWO, &path, O_RDONLY).unwrap();
            for view in nodes {
                let why = try_to_say(view, &path, ALONE).unwrap_err();
                assert!(why.starts_with("2 processes have it open ("), "{why}");
                assert!(why.contains(&ONE.to_string()), "{why}");
                assert!(why.contains(&TWO.to_string()), "{why}");
                assert_eq!(said_of(fs, &path), "");
            }
            // Who comes now isn't refused: nothing was said.
            close(fs, open_as(fs, 0, &path, O_RDWR).unwrap());
            // As one for which there is only to be a report.
            try_to_say(fs, &path, &format!("{ALONE},on_violation=report")).unwrap();
            let (all, _) = Pool::violations(fs.pool().dir()).unwrap();
            let said = |v: &&forebay_client::Violation| {
                v.path == path && v.what.starts_with("said while 2 processes")
            };
            let found = all.iter().find(said).unwrap();
            assert!(!found.refused);
            assert_eq!(found.control, "parallelism = \"exclusive\"");
            close(other, first);
            try_to_say(fs, &path, ALONE).unwrap();
            assert_eq!(open_as(other, ONE, &path, O_RDONLY), Err(Errno::BUSY));
            close(third, second);
            close(other, open_as(other, ONE, &path, O_RDONLY).unwrap());
            // By nodes.
            say(fs, &path, "");
            let several = [ONE, TWO].map(|pid| open_as(other, pid, &path, O_RDWR).unwrap());
            try_to_say(fs, &path, "parallelism=exclusive(node)").unwrap();
            if nodes.len() > 1 {
                assert_eq!(open_as(third, ONE, &path, O_RDONLY), Err(Errno::BUSY));
                say(fs, &path, "");
                let more = open_as(third, ONE, &path, O_RDONLY).unwrap();
                let why = try_to_say(fs, &path, "parallelism=exclusive(node)").unwrap_err();
                assert!(why.starts_with("2 nodes have it open ("), "{why}");
                close(third, more);
                try_to_say(fs, &path, "parallelism=exclusive(node)").unwrap();
            }
            // What is counted by nodes isn't one process.
            let why = try_to_say(fs, &path, ALONE).unwrap_err();
            assert!(why.starts_with("2 processes have it open ("), "{why}");
            for open in several {
                close(other, open);
            }
            try_to_say(fs, &path, ALONE).unwrap();
            fs.unlink(path.as_bytes()).unwrap();
        }
    });
}

/// Many threads, each for a process, open and close files on all nodes while `exclusive` is said of them and taken back.
#[test]
fn who_opens_it_meanwhile_counts_too() {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    const ROUNDS: usize = 150;
    each("meanwhile", |nodes| {
        // In which round it is exclusive just now, for sure; 0: in none. How many have it open, at least.
        let (alone, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let done = AtomicBool::new(false);
        let (mut kept, mut refused) = (0, 0);
        put(nodes[0], "/f", b"x").unwrap();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (alone, done, inside) = (&alone, &done, &inside);
                let fs = nodes[n % nodes.len()];
                scope.spawn(move || {
                    let mut random = Random(n as u64 + 7);
                    while !done.load(SeqCst) {
                        let was_alone = alone.load(SeqCst);
                        let flags = [O_RDONLY, O_RDWR][random.below(2)];
                        let open = match open_as(fs, ONE + n as u32, "/f", flags) {
                            Ok(open) => open,
                            Err(e) => {
                                assert_eq!(e, Errno::BUSY);
                                continue;
                            }
                        };
                        let others = inside.fetch_add(1, SeqCst);
                        let still = was_alone != 0 && alone.load(SeqCst) == was_alone;
                        assert!(!still || others == 0, "beside {others} others");
                        for _ in 0..random.below(200) {
                            std::hint::spin_loop();
                        }
                        inside.fetch_sub(1, SeqCst);
                        close(fs, open);
                        for _ in 0..random.below(4000) {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
            for round in 0..ROUNDS {
                let fs = nodes[round % nodes.len()];
                match try_to_say(fs, "/f", ALONE) {
                    Ok(()) => {
                        let now = inside.load(SeqCst);
                        assert!(now < 2, "{now} at once");
                        alone.store(round + 1, SeqCst);
                        kept += 1;
                        std::thread::sleep(std::time::Duration::from_micros(300));
                        alone.store(0, SeqCst);
                        say(fs, "/f", "");
                    }
                    Err(_) => refused += 1,
                }
            }
            done.store(true, SeqCst);
        });
        assert!(kept > 0 && kept + refused == ROUNDS, "{kept} of {ROUNDS}");
        try_to_say(nodes[0], "/f", ALONE).unwrap();
    });
}

#[test]
fn the_dead_do_not_count() {
    let nodes = Nodes::new("dead-users", 3, &["memory:32M"], 90);
    let dirs: Vec<_> = nodes.dirs.iter().map(|d| d.to_string_lossy()).collect();
    let dirs = dirs.join(":");
    for (n, on) in [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)] {
        let fs = &nodes.views[n % 3];
        let (path, ready) = (format!("/f{n}"), format!("/ready{n}"));
        put(fs, &path, b"x").unwrap();
        let mine = open_as(&nodes.views[2], ONE, &path, O_RDWR).unwrap();
        let worker = nodes.pools[0].worker("holds", &format!("{dirs} {path} {on} {ready}"));
        wait_until("the worker has it open", || {
            fs.stat(ready.as_bytes(), true).is_ok()
        });
        let why = try_to_say(fs, &path, ALONE).unwrap_err();
        assert!(
            why.contains(&format!("{} on node {on}", worker.pid())),
            "{why}"
        );
        worker.kill();
        // At once: the node on which it was looks who is there.
        try_to_say(fs, &path, ALONE).unwrap();
        assert_eq!(open_as(fs, TWO, &path, O_RDWR), Err(Errno::BUSY));
        close(&nodes.views[2], mine);
        close(fs, open_as(fs, TWO, &path, O_RDWR).unwrap());
    }
    nodes.recover();
    nodes.assert_whole();
}

/// A place in the table of mappings, as for a mapping that can be written.
fn map(fs: &Fs, open: u32) -> &forebay_store::control::MapRef {
    use forebay_store::control::map_flag::{CHANGES, COPY, SHARED};
    let copy = match fs.store().is_away(fs.live_of(open).unwrap()) {
        true => COPY,
        false => 0,
    };
    fs.store().map_claim(open, SHARED | CHANGES | copy).unwrap()
}

#[test]
fn mappings_are_uses_as_long_as_they_last() {
    each("mappings", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let path = format!("/f{k}");
            put(fs, &path, b"content").unwrap();
            // Of a file that is only to grow there are none.
            for view in [fs, &other] {
                let open = open_as(view, ONE, &path, O_RDWR).unwrap();
                let mapping = map(view, open);
                close(view, open);
                for saying in [fs, &other] {
                    let why = try_to_say(saying, &path, "mutability=append").unwrap_err();
                    assert!(why.starts_with("1 process maps it for writing ("), "{why}");
                    assert!(why.contains(&std::process::id().to_string()), "{why}");
                    assert_eq!(said_of(fs, &path), "");
                }
                try_to_say(fs, &path, "mutability=append,on_violation=report").unwrap();
                view.store().map_release(mapping).unwrap();
                try_to_say(fs, &path, "mutability=append").unwrap();
                let open = open_as(fs, ONE, &path, O_RDWR).unwrap();
                let live = fs.live_of(open).unwrap();
                assert_eq!(fs.check_shared_writing_again(open, live), Err(Errno::PERM));
                close(fs, open);
                say(fs, &path, "");
            }
            let (all, _) = Pool::violations(fs.pool().dir()).unwrap();
            let reported = |v: &forebay_client::Violation| {
                v.path == path && v.what.starts_with("said while 1 process maps it")
            };
            assert!(all.iter().any(reported), "{all:?}");
            // One that is to be laminated is so when the last of them goes; whoever writes it meanwhile.
            let open = open_as(other, ONE, &path, O_RDWR).unwrap();
            let mapping = map(other, open);
            close(other, open);
            say(fs, &path, "mutability=immutable");
            write_again(fs, &path);
            assert!(!is_laminated(fs, &path));
            // Nor is it one process's.
            let mine = open_as(fs, TWO, &path, O_RDONLY).unwrap();
            let both = "parallelism=exclusive,mutability=immutable";
            let why = try_to_say(fs, &path, both).unwrap_err();
            assert!(why.starts_with("2 processes have it open"), "{why}");
            close(fs, mine);
            assert!(!is_laminated(fs, &path));
            other.store().map_release(mapping).unwrap();
            assert!(is_laminated(fs, &path));
            assert!(is(fs.open(path.as_bytes(), O_RDWR, 0), Errno::PERM));
        }
    });
}

#[test]
fn who_only_maps_it_and_is_killed_does_not_laminate_it() {
    let pool = TestPool::new("killed-mapping");
    put(&pool, "/f", b"content").unwrap();
    say(&pool, "/f", "mutability=immutable");
    let worker = pool.worker("maps", "/f");
    wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
    write_again(&pool, "/f");
    assert!(!is_laminated(&pool, "/f"));
    worker.kill();
    pool.store().reap().unwrap();
    assert!(!is_laminated(&pool, "/f"));
    write_again(&pool, "/f");
    assert!(is_laminated(&pool, "/f"));
    pool.assert_whole();
}

#[test]
fn who_says_it_may_be_killed() {
    let nodes = Nodes::new("killed-saying", 3, &["memory:64M"], 120);
    let dirs: Vec<_> = nodes.dirs.iter().map(|d| d.to_string_lossy()).collect();
    let dirs = dirs.join(":");
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0].mkdir_with(b"/s", 0o700, striped).unwrap();
    nodes.views[0].mkdir(b"/l", 0o700).unwrap();
    let (mut n, mut not_yet, mut already) = (0, 0, 0);
    for (dir, behind, both) in [
        ("/l", false, false),
        ("/l", true, false),
        ("/l", true, true),
        ("/s", false, false),
        ("/s", true, true),
    ] {
        for at in 1.. {
            n += 1;
            let path = format!("{dir}/{n}");
            let home = &nodes.views[n % 3];
            put(home, &path, &pattern(n as u64, 3 << 20)).unwrap();
            let [one, two] = [&nodes.views[(n + 1) % 3], &nodes.views[(n + 2) % 3]];
            let first = open_as(one, ONE, &path, O_RDWR).unwrap();
            let second = both.then(|| open_as(two, TWO, &path, O_RDWR).unwrap());
            let worker = nodes.pools[0].worker("says", &format!("{dirs} {path} {at} {behind}"));
            let whole = !worker.finish_killed();
            nodes.recover();
            let story = format!("{dir}, killed at {at}, behind: {behind}, both: {both}");
            let said = said_of(home, &path);
            assert!(said.is_empty() || said == ALONE, "{story}: {said}");
            match second {
                // It never holds.
                Some(second) => {
                    assert_eq!(said, "", "{story}");
                    close(home, open_as(home, 0, &path, O_RDWR).unwrap());
                    try_to_say(home, &path, ALONE).unwrap_err();
                    close(one, first);
                    try_to_say(home, &path, ALONE).unwrap();
                    assert_eq!(
                        open_as(one, ONE, &path, O_RDONLY),
                        Err(Errno::BUSY),
                        "{story}"
                    );
                    close(two, second);
                }
                // If it was said, it holds; else it is as if nobody had tried.
                None => {
                    assert!(!whole || said == ALONE, "{story}");
                    match said.is_empty() {
                        true => {
                            not_yet += 1;
                            close(two, open_as(two, TWO, &path, O_RDWR).unwrap());
                            try_to_say(two, &path, ALONE).unwrap();
                        }
                        false => already += 1,
                    }
                    assert_eq!(
                        open_as(two, TWO, &path, O_RDONLY),
                        Err(Errno::BUSY),
                        "{story}"
                    );
                    close(one, first);
                }
            }
            close(two, open_as(two, TWO, &path, O_RDWR).unwrap());
            home.unlink(path.as_bytes()).unwrap();
            nodes.assert_whole();
            if whole {
                break;
            }
        }
    }
    assert!(not_yet > 3 && already > 1, "{n}: {not_yet}, {already}");
}

#[test]
fn who_laminates_may_be_killed() {
    const SIZE: usize = 4 << 20;
    let nodes = Nodes::new("killed-laminating", 3, &["memory:64M"], 120);
    let dirs: Vec<_> = nodes.dirs.iter().map(|d| d.to_string_lossy()).collect();
    let dirs = dirs.join(":");
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0].mkdir_with(b"/s", 0o700, striped).unwrap();
    let mut n = 0;
    for behind in [false, true] {
        for at in 1.. {
            n += 1;
            let path = format!("/s/{n}");
            let content = pattern(n, SIZE);
            put(&nodes.views[0], &path, &content).unwrap();
            let fs = &nodes.views[n as usize % 3];
            let stale = fs.open(path.as_bytes(), O_RDWR, 0).unwrap();
            let appending = fs.open(path.as_bytes(), O_WRONLY | O_APPEND, 0).unwrap();
            assert_eq!(stale.write_at(&content, 0), Ok(SIZE));
            say_uncounted(&nodes.views[2], &path, "mutability=immutable");
            let worker =
                nodes.pools[0].worker("laminates", &format!("{dirs} {path} {at} {behind}"));
            let whole = !worker.finish_killed();
            nodes.recover();
            for view in &nodes.views {
                // What a keeper does every some seconds: of who was killed while giving up its use.
                view.store().check_lock_owners().unwrap();
            }
            let story = format!("killed at {at}, behind: {behind}");
            assert!(!whole || is_laminated(fs, &path), "{story}");
            assert!(get(fs, &path) == content, "{story}");
            if !is_laminated(fs, &path) {
                assert_eq!(stale.write_at(&content[..100], 0), Ok(100), "{story}");
                nodes.views[1]
                    .open(path.as_bytes(), O_WRONLY, 0)
                    .unwrap()
                    .close()
                    .unwrap();
            }
            assert!(is_laminated(fs, &path), "{story}");
            is_refused_everywhere(&stale, &appending, SIZE as u64);
            assert!(get(&nodes.views[1], &path) == content, "{story}");
            drop((stale, appending));
            fs.unlink(path.as_bytes()).unwrap();
            nodes.assert_whole();
            if whole {
                break;
            }
        }
    }
    assert!(n > 8, "{n}");
}
