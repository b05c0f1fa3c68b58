//! Declarations on files that other processes have open: which uses are counted, when a declaration
//! is refused, and what remains when processes die.
//!
//! Nodes are stores in one process (`support/nodes.rs`); `open_as` opens files for another process.

mod support;

use forebay_client::Pool;
use forebay_client::controls::Declared;
use forebay_posix::{ChunkSize, Distribution, Errno, File, Fs, ObjectId};
use forebay_store::SetAttr;
use std::sync::atomic::Ordering::SeqCst;
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
    match role.as_str() {
        "laminates" => laminate(&a),
        "says" => declare_and_be_killed(&a),
        "holds" => hold(&a),
        "maps" => only_map(&fs, &a),
        other => panic!("{other}"),
    }
}

/// Maps a file as if for writing, closes it, and waits. Argument: path.
fn only_map(fs: &Fs, a: &[String]) {
    let open = open_as(fs, 0, &a[0], O_RDWR).unwrap();
    let written = fs.write(open, None, b"half"[..].into());
    assert_eq!(written, Ok(4));
    map(fs, open);
    close(fs, open);
    fs.mkdir(b"/ready", 0o700).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}
/// Opens and closes a file for writing, on all stores of a pool, and is killed at a request of
/// closing it. Arguments: the nodes' directories, path, number of the request, and whether the
/// process is killed after that request.
fn laminate(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let f = nodes.views[1].open(a[1].as_bytes(), O_WRONLY, 0).unwrap();
    let asked = nodes.together.asked.load(SeqCst);
    nodes.together.kill_behind.store(a[3] == "true", SeqCst);
    let at: usize = a[2].parse().unwrap();
    nodes.together.kill_at.store(asked + at, SeqCst);
    f.close().unwrap();
    nodes.together.kill_at.store(0, SeqCst);
    // SAFETY: the call takes no pointers; it only ends this process.
    unsafe { libc::_exit(0) };
}

/// Declares a file exclusive, and is killed at a request of the declaration. Arguments: as for
/// [`laminate`].
fn declare_and_be_killed(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let fs = &nodes.views[1];
    let id = ObjectId(fs.stat(a[1].as_bytes(), true).unwrap().ino);
    let asked = nodes.together.asked.load(SeqCst);
    nodes.together.kill_behind.store(a[3] == "true", SeqCst);
    let at: usize = a[2].parse().unwrap();
    nodes.together.kill_at.store(asked + at, SeqCst);
    // Refused if several processes have the file open.
    let _ = fs.set_controls(id, ALONE.parse().unwrap());
    nodes.together.kill_at.store(0, SeqCst);
    // SAFETY: the call takes no pointers; it only ends this process.
    unsafe { libc::_exit(0) };
}

/// Keeps a file open. Arguments: the nodes' directories, path, number of the node, and a directory
/// to make when the file is open.
fn hold(a: &[String]) {
    let nodes = Nodes::open(a[0].split(':').map(Into::into).collect(), 60);
    let fs = &nodes.views[a[2].parse::<usize>().unwrap()];
    let _held = fs.open(a[1].as_bytes(), O_RDWR, 0).unwrap();
    fs.mkdir(a[3].as_bytes(), 0o700).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Checks that all changes of a laminated file are refused to a process that opened the file before
/// its controls were declared.
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

/// Size of the files of [`opened_elsewhere`]. Bytes.
const SIZE: usize = 5 << 20;

/// Calls `f` for some files, striped and not, with the views of three nodes. The second node has
/// the file open for writing and for appending, and has written to it.
fn opened_elsewhere(name: &str, f: impl Fn([&Fs; 3], &str, File<'_>, File<'_>)) {
    let nodes = Nodes::new(name, 3, &["memory:64M"], 60);
    let striped = Distribution::Striped(ChunkSize::LEAST);
    nodes.views[0].mkdir_with(b"/s", 0o700, striped).unwrap();
    nodes.views[0].mkdir(b"/l", 0o700).unwrap();
    for (k, dir) in ["/s", "/l", "/s", "/l", "/s", "/l"].into_iter().enumerate() {
        let views = [0, 1, 2].map(|n| &nodes.views[(k + n) % 3]);
        let path = format!("{dir}/{k}");
        put(views[0], &path, &pattern(k as u64, SIZE)).unwrap();
        let stale = views[1].open(path.as_bytes(), O_RDWR, 0).unwrap();
        let appending = views[1]
            .open(path.as_bytes(), O_WRONLY | O_APPEND, 0)
            .unwrap();
        for at in 0..5 {
            assert_eq!(stale.write_at(b"old", at << 20), Ok(3));
        }
        f(views, &path, stale, appending);
    }
    nodes.assert_whole();
}

#[test]
fn what_is_said_while_it_is_open_holds_at_once() {
    opened_elsewhere(
        "said-while-open",
        |[fs, other, third], path, stale, appending| {
            let mapped = open_as(other, 0, path, O_RDWR).unwrap();
            declare(fs, path, "mutability=append");
            for at in [0, 10, 1 << 20, SIZE as u64 - 1, SIZE as u64 + 1] {
                assert_eq!(
                    stale.write_at(b"no", at),
                    Err(Errno::PERM),
                    "{path} at {at}"
                );
            }
            // Merges bytes that a program changed through a mapping, as a mount does when the kernel
            // writes them back. The declaration can't be refused earlier: the kernel doesn't notify
            // a mount when a file is mapped.
            for at in [0, 1 << 20, SIZE as u64 - 1] {
                let merged = other.merge(mapped, at, b"o", b"n").map(|_| ());
                assert_eq!(merged, Err(Errno::PERM), "{path} at {at}");
            }
            close(other, mapped);
            assert_eq!(stale.set_len(1 << 20), Err(Errno::PERM));
            assert_eq!(appending.write_at(b"end", 0), Ok(3));
            declare(third, path, "mutability=immutable");
            // The file isn't laminated before all processes that had it open have closed it.
            assert_eq!(stale.write_at(b"new", 2 << 20), Ok(3));
            write_again(third, path);
            assert!(!is_laminated(fs, path));
            assert_eq!(stale.write_at(b"new", 3 << 20), Ok(3));
            let whole = get(third, path);
            assert_eq!(whole.len(), SIZE + 3);
            appending.close().unwrap();
            assert!(!is_laminated(fs, path));
            stale.close().unwrap();
            assert!(is_laminated(fs, path));
            for fs in [fs, other, third] {
                assert!(get(fs, path) == whole, "{path}");
                assert!(is(fs.open(path.as_bytes(), O_RDWR, 0), Errno::PERM));
            }
        },
    );
}

/// As [`declare`], without counting the file's users, as if these were on a node that was given up
/// and comes back later.
fn declare_uncounted(fs: &Fs, path: &str, what: &str) {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    let declared: Declared = what.parse().unwrap();
    let set = SetAttr {
        controls: Some(declared.bits()),
        ..SetAttr::default()
    };
    fs.cluster().namespace().set_attr(id, &set).unwrap();
    fs.cluster().declarations().notify_writers(id).unwrap();
}

#[test]
fn who_was_not_counted_is_refused() {
    opened_elsewhere("uncounted", |[fs, other, third], path, stale, appending| {
        declare_uncounted(third, path, "mutability=immutable");
        assert_eq!(stale.write_at(b"new", 2 << 20), Ok(3));
        let whole = get(third, path);
        write_again(third, path);
        assert!(is_laminated(fs, path));
        is_refused_everywhere(&stale, &appending, SIZE as u64);
        for fs in [fs, other, third] {
            assert!(get(fs, path) == whole, "{path}");
        }
        appending.close().unwrap();
        stale.close().unwrap();
        assert!(get(other, path) == whole, "{path}");
    });
}

fn try_to_declare(fs: &Fs, path: &str, what: &str) -> Result<(), String> {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    let known = Some((ObjectId::ROOT, &path.as_bytes()[1..]));
    fs.declare(id, what.parse().unwrap(), known)
        .map_err(|declare_error| {
            assert_eq!(declare_error.error, Errno::BUSY);
            declare_error.why.expect("who is in the way")
        })
}

fn said_of(fs: &Fs, path: &str) -> String {
    let id = ObjectId(fs.stat(path.as_bytes(), true).unwrap().ino);
    fs.controls_of(id).unwrap().0.to_string()
}

const ALONE: &str = "parallelism=exclusive";

#[test]
fn those_who_have_it_open_already_count() {
    each("counted", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let third = nodes[(k + 2) % nodes.len()];
            let path = format!("/f{k}");
            put(third, &path, b"x").unwrap();
            // A file with one user can be declared exclusive for it, whatever the open flags and
            // whichever process declares it.
            for flags in [O_RDONLY, O_WRONLY, O_RDWR | O_APPEND] {
                let first = open_as(other, ONE, &path, flags).unwrap();
                try_to_declare(fs, &path, ALONE).unwrap();
                for view in nodes {
                    assert_eq!(open_as(view, TWO, &path, O_RDONLY), Err(Errno::BUSY));
                }
                let again = open_as(other, ONE, &path, O_RDWR).unwrap();
                close(other, first);
                assert_eq!(open_as(third, TWO, &path, O_RDWR), Err(Errno::BUSY));
                close(other, again);
                close(third, open_as(third, TWO, &path, O_RDWR).unwrap());
                declare(fs, &path, "");
            }
            // A file with two users can't be declared exclusive.
            let first = open_as(other, ONE, &path, O_RDWR).unwrap();
            let second = open_as(third, TWO, &path, O_RDONLY).unwrap();
            for view in nodes {
                let why = try_to_declare(view, &path, ALONE).unwrap_err();
                assert!(why.starts_with("2 processes have it open ("), "{why}");
                assert!(why.contains(&ONE.to_string()), "{why}");
                assert!(why.contains(&TWO.to_string()), "{why}");
                assert_eq!(said_of(fs, &path), "");
            }
            // A process that opens the file now isn't refused, since nothing was declared.
            close(fs, open_as(fs, 0, &path, O_RDWR).unwrap());
            // With `on_violation=report` the declaration isn't refused, only reported.
            try_to_declare(fs, &path, &format!("{ALONE},on_violation=report")).unwrap();
            let (all, _) = Pool::violations(fs.pool().dir()).unwrap();
            let said = |v: &&forebay_client::Violation| {
                v.path == path && v.what.starts_with("said while 2 processes")
            };
            let found = all.iter().find(said).unwrap();
            assert!(!found.refused);
            assert_eq!(found.control, "parallelism = \"exclusive\"");
            close(other, first);
            try_to_declare(fs, &path, ALONE).unwrap();
            assert_eq!(open_as(other, ONE, &path, O_RDONLY), Err(Errno::BUSY));
            close(third, second);
            close(other, open_as(other, ONE, &path, O_RDONLY).unwrap());
            // A control that counts nodes: several processes of one node are one user.
            declare(fs, &path, "");
            let several = [ONE, TWO].map(|pid| open_as(other, pid, &path, O_RDWR).unwrap());
            try_to_declare(fs, &path, "parallelism=exclusive(node)").unwrap();
            if nodes.len() > 1 {
                assert_eq!(open_as(third, ONE, &path, O_RDONLY), Err(Errno::BUSY));
                declare(fs, &path, "");
                let more = open_as(third, ONE, &path, O_RDONLY).unwrap();
                let why = try_to_declare(fs, &path, "parallelism=exclusive(node)").unwrap_err();
                assert!(why.starts_with("2 nodes have it open ("), "{why}");
                close(third, more);
                try_to_declare(fs, &path, "parallelism=exclusive(node)").unwrap();
            }
            // For a control that counts processes, several processes of one node are several users.
            let why = try_to_declare(fs, &path, ALONE).unwrap_err();
            assert!(why.starts_with("2 processes have it open ("), "{why}");
            for open in several {
                close(other, open);
            }
            try_to_declare(fs, &path, ALONE).unwrap();
            fs.unlink(path.as_bytes()).unwrap();
        }
    });
}

/// Many threads, each for another process, open and close files on all nodes while `exclusive` is
/// declared for them and taken back.
#[test]
fn who_opens_it_meanwhile_counts_too() {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    const ROUNDS: usize = 150;
    each("meanwhile", |nodes| {
        // `alone`: the round in which the file is certainly exclusive now; 0: none. `inside`:
        // minimum number of users that have the file open.
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
                match try_to_declare(fs, "/f", ALONE) {
                    Ok(()) => {
                        let now = inside.load(SeqCst);
                        assert!(now < 2, "{now} at once");
                        alone.store(round + 1, SeqCst);
                        kept += 1;
                        std::thread::sleep(std::time::Duration::from_micros(300));
                        alone.store(0, SeqCst);
                        declare(fs, "/f", "");
                    }
                    Err(_) => refused += 1,
                }
            }
            done.store(true, SeqCst);
        });
        assert!(kept > 0 && kept + refused == ROUNDS, "{kept} of {ROUNDS}");
        try_to_declare(nodes[0], "/f", ALONE).unwrap();
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
        let why = try_to_declare(fs, &path, ALONE).unwrap_err();
        assert!(
            why.contains(&format!("{} on node {on}", worker.pid())),
            "{why}"
        );
        worker.kill();
        // No waiting is needed: the node that had the file open checks whether the process still
        // exists.
        try_to_declare(fs, &path, ALONE).unwrap();
        assert_eq!(open_as(fs, TWO, &path, O_RDWR), Err(Errno::BUSY));
        close(&nodes.views[2], mine);
        close(fs, open_as(fs, TWO, &path, O_RDWR).unwrap());
    }
    nodes.recover();
    nodes.assert_whole();
}

/// Claims a place in the table of mappings, as for a mapping for writing.
fn map(fs: &Fs, open: u32) -> &forebay_store::control_region::MapRef {
    use forebay_store::control_region::map_flag::{CHANGES, COPY, SHARED};
    let copy = if fs.cluster().data().is_remote(fs.live_of(open).unwrap()) {
        COPY
    } else {
        0
    };
    fs.store()
        .mappings()
        .map_claim(open, SHARED | CHANGES | copy)
        .unwrap()
}

#[test]
fn mappings_are_uses_as_long_as_they_last() {
    each("mappings", |nodes| {
        for (k, fs) in nodes.iter().enumerate() {
            let other = nodes[(k + 1) % nodes.len()];
            let path = format!("/f{k}");
            put(fs, &path, b"content").unwrap();
            // A file that is mapped for writing can't be declared `mutability=append`.
            for view in [fs, &other] {
                let open = open_as(view, ONE, &path, O_RDWR).unwrap();
                let mapping = map(view, open);
                close(view, open);
                for declaring_view in [fs, &other] {
                    let why =
                        try_to_declare(declaring_view, &path, "mutability=append").unwrap_err();
                    assert!(why.starts_with("1 process maps it for writing ("), "{why}");
                    assert!(why.contains(&std::process::id().to_string()), "{why}");
                    assert_eq!(said_of(fs, &path), "");
                }
                try_to_declare(fs, &path, "mutability=append,on_violation=report").unwrap();
                view.store().mappings().map_release(mapping).unwrap();
                try_to_declare(fs, &path, "mutability=append").unwrap();
                let open = open_as(fs, ONE, &path, O_RDWR).unwrap();
                let live = fs.live_of(open).unwrap();
                assert_eq!(
                    fs.controls().check_shared_writing_again(open, live),
                    Err(Errno::PERM)
                );
                close(fs, open);
                declare(fs, &path, "");
            }
            let (all, _) = Pool::violations(fs.pool().dir()).unwrap();
            let reported = |v: &forebay_client::Violation| {
                v.path == path && v.what.starts_with("said while 1 process maps it")
            };
            assert!(all.iter().any(reported), "{all:?}");
            // A file that was declared immutable is laminated when the last mapping for writing
            // ends, even if another process writes the file before.
            let open = open_as(other, ONE, &path, O_RDWR).unwrap();
            let mapping = map(other, open);
            close(other, open);
            declare(fs, &path, "mutability=immutable");
            write_again(fs, &path);
            assert!(!is_laminated(fs, &path));
            // While another process maps the file, it can't be declared exclusive either.
            let mine = open_as(fs, TWO, &path, O_RDONLY).unwrap();
            let both = "parallelism=exclusive,mutability=immutable";
            let why = try_to_declare(fs, &path, both).unwrap_err();
            assert!(why.starts_with("2 processes have it open"), "{why}");
            close(fs, mine);
            assert!(!is_laminated(fs, &path));
            other.store().mappings().map_release(mapping).unwrap();
            assert!(is_laminated(fs, &path));
            assert!(is(fs.open(path.as_bytes(), O_RDWR, 0), Errno::PERM));
        }
    });
}

#[test]
fn who_only_maps_it_and_is_killed_does_not_laminate_it() {
    let pool = TestPool::new("killed-mapping");
    put(&pool, "/f", b"content").unwrap();
    declare(&pool, "/f", "mutability=immutable");
    let worker = pool.worker("maps", "/f");
    wait_until("the worker is ready", || pool.stat(b"/ready", true).is_ok());
    write_again(&pool, "/f");
    assert!(!is_laminated(&pool, "/f"));
    worker.kill();
    pool.store().recovery().reap().unwrap();
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
                // Two processes have the file open: the declaration never takes effect.
                Some(second) => {
                    assert_eq!(said, "", "{story}");
                    close(home, open_as(home, 0, &path, O_RDWR).unwrap());
                    try_to_declare(home, &path, ALONE).unwrap_err();
                    close(one, first);
                    try_to_declare(home, &path, ALONE).unwrap();
                    assert_eq!(
                        open_as(one, ONE, &path, O_RDONLY),
                        Err(Errno::BUSY),
                        "{story}"
                    );
                    close(two, second);
                }
                // If the controls were declared, they take effect; otherwise nothing has changed.
                None => {
                    assert!(!whole || said == ALONE, "{story}");
                    if said.is_empty() {
                        not_yet += 1;
                        close(two, open_as(two, TWO, &path, O_RDWR).unwrap());
                        try_to_declare(two, &path, ALONE).unwrap();
                    } else {
                        already += 1
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
            declare_uncounted(&nodes.views[2], &path, "mutability=immutable");
            let worker =
                nodes.pools[0].worker("laminates", &format!("{dirs} {path} {at} {behind}"));
            let whole = !worker.finish_killed();
            nodes.recover();
            for view in &nodes.views {
                // The keeper's periodic work, for processes that were killed while giving up their
                // use.
                view.cluster().locks().check_lock_owners().unwrap();
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
