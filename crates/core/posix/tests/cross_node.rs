//! Kills operations over several nodes at every step. The changes of each must then be either
//! undone or done completely, and no intent may be left over.
//!
//! A separate process carries an operation out on all stores of a pool, and kills itself before or
//! after the n-th request between nodes, for every n that occurs.

mod support;

use forebay_posix::{ChunkSize, Distribution, Errno, Fs, RenameMode};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use support::nodes::Nodes;
use support::*;

/// The visible state of a pool: all paths, with the content of files and their number of links.
type Seen = BTreeMap<String, Option<(Vec<u8>, u32)>>;

fn look(fs: &Fs) -> Seen {
    let mut seen = Seen::new();
    let mut todo = vec![String::new()];
    while let Some(dir) = todo.pop() {
        for e in fs.list(format!("{dir}/").as_bytes()).unwrap() {
            let path = format!("{dir}/{}", String::from_utf8_lossy(&e.name));
            if e.kind == libc::S_IFDIR {
                assert_eq!(fs.stat(path.as_bytes(), false).unwrap().ino, e.ino);
                todo.push(path.clone());
                seen.insert(path, None);
            } else {
                let nlink = fs.stat(path.as_bytes(), false).unwrap().nlink;
                let content = match e.kind {
                    libc::S_IFLNK => fs.readlink(path.as_bytes()).unwrap(),
                    _ => read_all(&fs.open(path.as_bytes(), O_RDONLY, 0).unwrap()),
                };
                seen.insert(path, Some((content, nlink)));
            }
        }
    }
    seen
}

fn put(fs: &Fs, path: &str, content: &[u8]) {
    let f = fs.open(path.as_bytes(), O_CREAT | O_RDWR, 0o644).unwrap();
    write_all(&f, content, 0);
    f.close().unwrap();
}

/// Makes the files for one operation. The files' names contain the number `n`, so that they are on
/// other nodes each time.
fn prepare(nodes: &Nodes, n: usize) {
    let view = |k: usize| &nodes.views[(n + k) % nodes.views.len()];
    put(view(0), &format!("/source{n}"), b"the source");
    put(view(1), &format!("/target{n}"), &pattern(3, 5000));
    view(2)
        .link(
            format!("/source{n}").as_bytes(),
            format!("/other{n}").as_bytes(),
        )
        .unwrap();
    for dir in ["full", "empty", "empty-too"] {
        view(3)
            .mkdir(format!("/{dir}{n}").as_bytes(), 0o755)
            .unwrap();
    }
    view(2)
        .mkdir_with(
            format!("/keeping{n}").as_bytes(),
            0o755,
            Distribution::LocalAll,
        )
        .unwrap();
    view(1)
        .mkdir_with(format!("/striped{n}").as_bytes(), 0o755, STRIPED)
        .unwrap();
    put(view(0), &format!("/striped{n}/long"), &pattern(7, LONG));
    put(view(4), &format!("/full{n}/inside"), b"inside");
    // The index of attributes must be updated, too.
    for (k, tagged) in ["source", "target", "full", "empty", "keeping"]
        .iter()
        .enumerate()
    {
        let path = format!("/{tagged}{n}");
        (view(k).set_xattr(path.as_bytes(), b"user.k", b"v", true)).unwrap();
    }
    view(5)
        .symlink(b"inside", format!("/full{n}/link").as_bytes())
        .unwrap();
}

const STRIPED: Distribution = Distribution::Striped(ChunkSize::LEAST);
/// Size of a file of four chunks. Bytes.
const LONG: usize = 3_500_000;

const OPERATIONS: [&str; 31] = [
    "create-together",
    "cut",
    "cut-into-part",
    "append",
    "unlink-long",
    "mkdir-striped",
    "mkdir-keeping",
    "into-keeping",
    "rename",
    "replace",
    "rename-dir",
    "replace-dir",
    "into-dir",
    "unlink",
    "unlink-last",
    "link",
    "create",
    "mkdir",
    "rmdir",
    "unlink-link",
    "rename-link",
    "same",
    "refused",
    "refused-kind",
    "exchange",
    "exchange-linked",
    "exchange-dirs",
    "exchange-kinds",
    "exchange-down",
    "exchange-link",
    "exchange-same",
];

/// The names of two objects that are exchanged, by kind.
fn exchanged(what: &str, n: usize) -> Option<[String; 2]> {
    let both = match what {
        "exchange" => ["source#", "target#"],
        "exchange-linked" => ["full#/inside", "other#"],
        "exchange-dirs" => ["full#", "keeping#"],
        "exchange-kinds" => ["source#", "full#"],
        "exchange-down" => ["full#/inside", "empty#"],
        "exchange-link" => ["full#/link", "target#"],
        "exchange-same" => ["other#", "source#"],
        _ => return None,
    };
    Some(both.map(|name| format!("/{name}").replace('#', &n.to_string())))
}

fn carry_out(fs: &Fs, what: &str, n: usize) -> Result<(), Errno> {
    let p = |name: &str| format!("/{name}").replace('#', &n.to_string()).into_bytes();
    if let Some([a, b]) = exchanged(what, n) {
        return exchange(fs, a.as_bytes(), b.as_bytes());
    }
    match what {
        "rename" => fs.rename(&p("source#"), &p("new#")),
        "replace" => fs.rename(&p("source#"), &p("target#")),
        "rename-dir" => fs.rename(&p("full#"), &p("moved#")),
        "replace-dir" => fs.rename(&p("full#"), &p("empty#")),
        "into-dir" => fs.rename(&p("empty#"), &p("empty-too#/down")),
        "unlink" => fs.unlink(&p("source#")),
        "unlink-last" => fs.unlink(&p("target#")),
        "link" => fs.link(&p("target#"), &p("full#/linked")),
        "create" => fs
            .open(&p("full#/created"), O_CREAT | O_EXCL | O_RDWR, 0o600)
            .and_then(|f| f.close()),
        "create-together" => {
            let made = make_together(fs, &p("full#"), &names_together(), (b"user.k", b"v"))?;
            made.into_iter().collect()
        }
        "mkdir" => fs.mkdir(&p("full#/dir"), 0o700),
        "mkdir-keeping" => fs.mkdir_with(&p("full#/dir"), 0o700, Distribution::LocalAll),
        "mkdir-striped" => fs.mkdir_with(&p("full#/dir"), 0o700, STRIPED),
        "cut" => truncate(fs, &p("striped#/long"), 1000),
        "cut-into-part" => truncate(fs, &p("striped#/long"), 2_200_000),
        "append" => fs
            .open(&p("striped#/long"), O_WRONLY | O_APPEND, 0)
            .and_then(|f| {
                assert_eq!(f.write_at(b"at the end", 0), Ok(10));
                f.close()
            }),
        "unlink-long" => fs.unlink(&p("striped#/long")),
        "into-keeping" => fs.rename(&p("source#"), &p("keeping#/new")),
        "rmdir" => fs.rmdir(&p("empty#")),
        "unlink-link" => fs.unlink(&p("full#/link")),
        "rename-link" => fs.rename(&p("full#/link"), &p("link#")),
        "same" => fs.rename(&p("source#"), &p("other#")),
        "refused" => {
            let refused = rename_with(fs, &p("source#"), &p("target#"), RenameMode::NoReplace);
            assert_eq!(refused, Err(Errno::EXIST));
            Ok(())
        }
        // Only the home of the new name finds out that the rename isn't possible.
        "refused-kind" => {
            let refused = fs.rename(&p("source#"), &p("empty#"));
            assert_eq!(refused, Err(Errno::ISDIR));
            Ok(())
        }
        _ => panic!("no operation {what}"),
    }
}

/// Names of files that are made in one batch.
fn names_together() -> Vec<String> {
    (0..6).map(|i| format!("together-{i}")).collect()
}

fn truncate(fs: &Fs, path: &[u8], size: u64) -> Result<(), Errno> {
    let f = fs.open(path, O_RDWR, 0)?;
    f.set_len(size)?;
    f.close()
}

fn nodes_of(dirs: &str) -> Nodes {
    Nodes::open(dirs.split(':').map(Into::into).collect(), 60)
}

/// Not a test: carries out an operation. Arguments: the nodes' directories, operation, number, the
/// request at which the process is killed (0: none), and whether it is killed after that request.
/// Prints the number of requests.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, _)) = worker_role() else {
        return;
    };
    assert_eq!(role, "one");
    let nodes = nodes_of(&a[0]);
    let (n, at): (usize, usize) = (a[2].parse().unwrap(), a[3].parse().unwrap());
    let fs = &nodes.views[n % nodes.views.len()];
    nodes.together.kill_behind.store(a[4] == "true", SeqCst);
    nodes.together.kill_at.store(at, SeqCst);
    carry_out(fs, &a[1], n).unwrap();
    nodes.together.kill_at.store(0, SeqCst);
    println!("> {}", nodes.together.asked.load(SeqCst));
}

#[test]
fn killed_at_every_step() {
    let nodes = Nodes::new("across-kills", 3, &["memory:64M"], 300);
    let dirs: Vec<String> = nodes
        .dirs
        .iter()
        .map(|d| d.to_string_lossy().into_owned())
        .collect();
    let dirs = dirs.join(":");
    let mut n = 0;
    let (mut undone, mut done, mut recovered) = (0, 0, 0);
    for what in OPERATIONS {
        for behind in [false, true] {
            for at in 1.. {
                n += 1;
                prepare(&nodes, n);
                let before = look(&nodes.views[0]);
                let arguments = format!("{dirs} {what} {n} {at} {behind}");
                let mut worker = nodes.pools[0].worker("one", &arguments);
                wait_until("the worker ends", || worker.is_done());
                let whole = !worker.finish_killed();
                let left = nodes.recover();
                recovered += left;
                let after = look(&nodes.views[n % 3]);
                nodes.assert_whole();
                let story = format!("{what}, number {n}, killed at request {at}, behind: {behind}");
                match (after == before, whole) {
                    (true, false) => undone += 1,
                    _ => {
                        // The operation has taken effect, and recovery has completed it.
                        done += 1;
                        check_done((what, n, !whole), &before, &after, &story);
                    }
                }
                // The large file is removed now, to free its room.
                let _ = nodes.views[0].unlink(format!("/striped{n}/long").as_bytes());
                if whole {
                    break;
                }
            }
        }
    }
    println!("{n} operations: {undone} undone, {done} done; {recovered} completed from notes");
    assert!(undone > 30 && done > 30 && recovered > 10);
    clear(&nodes);
}

fn long(seen: &mut Seen, n: usize) -> &mut Vec<u8> {
    let file = seen.get_mut(&format!("/striped{n}/long")).unwrap();
    &mut file.as_mut().unwrap().0
}

/// Compares the state with the model's result.
fn check_done((what, n, killed): (&str, usize, bool), before: &Seen, after: &Seen, story: &str) {
    let mut expected = before.clone();
    let p = |name: &str| format!("/{name}").replace('#', &n.to_string());
    let mut moved = |from: String, to: String| {
        let old = expected.get(&to).cloned().flatten();
        let below = format!("{from}/");
        let inside: Vec<String> = expected
            .keys()
            .filter(|k| k.starts_with(&below))
            .cloned()
            .collect();
        for path in inside {
            let node = expected.remove(&path).unwrap();
            expected.insert(format!("{to}/{}", &path[below.len()..]), node);
        }
        let node = expected.remove(&from).unwrap();
        expected.insert(to, node);
        old
    };
    let exchanged = exchanged(what, n);
    if let Some([a, b]) = exchanged.filter(|_| what != "exchange-same") {
        moved(a.clone(), "/kept".into());
        moved(b.clone(), a);
        moved("/kept".into(), b);
    }
    match what {
        "rename" => _ = moved(p("source#"), p("new#")),
        "replace" => _ = moved(p("source#"), p("target#")),
        "rename-dir" => _ = moved(p("full#"), p("moved#")),
        "replace-dir" => _ = moved(p("full#"), p("empty#")),
        "into-dir" => _ = moved(p("empty#"), p("empty-too#/down")),
        "rename-link" => _ = moved(p("full#/link"), p("link#")),
        "unlink" => {
            expected.remove(&p("source#"));
            let other = expected.get_mut(&p("other#")).unwrap().as_mut().unwrap();
            other.1 -= 1;
        }
        "unlink-last" => _ = expected.remove(&p("target#")),
        "unlink-link" => _ = expected.remove(&p("full#/link")),
        "link" => {
            let target = expected.get_mut(&p("target#")).unwrap();
            target.as_mut().unwrap().1 += 1;
            let target = target.clone();
            expected.insert(p("full#/linked"), target);
        }
        "create" => _ = expected.insert(p("full#/created"), Some((Vec::new(), 1))),
        "into-keeping" => _ = moved(p("source#"), p("keeping#/new")),
        "cut" => long(&mut expected, n).truncate(1000),
        "cut-into-part" => long(&mut expected, n).truncate(2_200_000),
        "append" => long(&mut expected, n).extend_from_slice(b"at the end"),
        "unlink-long" => _ = expected.remove(&p("striped#/long")),
        // Each file is made independently: if the process was killed, only some of the files may
        // exist.
        "create-together" => {
            for name in names_together() {
                let path = format!("{}/{name}", p("full#"));
                if !killed || after.contains_key(&path) {
                    expected.insert(path, Some((Vec::new(), 1)));
                }
            }
        }
        "mkdir" | "mkdir-keeping" | "mkdir-striped" => _ = expected.insert(p("full#/dir"), None),
        "rmdir" => _ = expected.remove(&p("empty#")),
        _ => {}
    }
    for (path, node) in &expected {
        let got = after.get(path);
        let short = |n: &Option<(Vec<u8>, u32)>| n.as_ref().map(|f| (f.0.len(), f.1));
        assert!(
            got == Some(node),
            "{story}: {path} is {:?} instead of {:?}",
            got.map(short),
            short(node)
        );
    }
    let more: Vec<_> = after
        .keys()
        .filter(|k| !expected.contains_key(*k))
        .collect();
    assert!(more.is_empty(), "{story}: there are also {more:?}");
}

fn clear(nodes: &Nodes) {
    for (path, node) in look(&nodes.views[0]).into_iter().rev() {
        match node {
            None => nodes.views[1].rmdir(path.as_bytes()).unwrap(),
            Some(_) => nodes.views[2].unlink(path.as_bytes()).unwrap(),
        }
    }
    nodes.drop_parts();
    assert_eq!(nodes.used(), 0, "pages are left");
    nodes.assert_whole();
}

/// If a daemon is killed in the middle of a change of directories, a directory stays frozen on all
/// nodes. The next daemon thaws it, and so does each node that learns of a later change.
#[test]
fn what_a_killed_daemon_has_left_frozen_is_thawed() {
    let nodes = Nodes::new("across-frozen", 3, &["memory:32M"], 60);
    nodes.views[0].mkdir(b"/d", 0o755).unwrap();
    let id = forebay_posix::ObjectId(nodes.views[0].stat(b"/d", true).unwrap().ino);
    let freeze = || {
        for view in &nodes.views {
            let epoch = ((view.store().names_epoch().now() >> 32) + 1) << 32;
            view.store().intents().freeze(epoch, id).unwrap();
            assert!(view.store().names_epoch().check_frozen(id).is_err());
        }
    };
    let thawed = || {
        nodes
            .views
            .iter()
            .all(|v| v.store().names_epoch().check_frozen(id).is_ok())
    };
    freeze();
    let begin = |n: usize| nodes.together.servers[n].begin_names(&nodes.views[n].cluster());
    // Node 1 isn't the node of names: its daemon must not thaw anything.
    begin(1).unwrap();
    assert!(!thawed());
    begin(0).unwrap();
    assert!(thawed());
    put(&nodes.views[1], "/d/new", b"made");
    freeze();
    for view in &nodes.views {
        view.store()
            .names_epoch()
            .raise(((view.store().names_epoch().now() >> 32) + 1) << 32);
    }
    assert!(thawed());
    nodes.assert_whole();
}
