//! The view by attributes (`/.by`), compared with a walk through the whole tree.

mod support;

use forebay_posix::{Errno, Fs, ObjectId};
use forebay_store::{Match, Term, record::Order};
use std::collections::{BTreeMap, BTreeSet};
use support::nodes::Nodes;
use support::*;

const KEYS: [&str; 3] = ["project", "step", "a=b/c%"];
const VALUES: [&str; 4] = ["mcse", "3", "", "x/y=z%"];

fn touch(fs: &Fs, path: &str) {
    let f = fs.open(path.as_bytes(), O_CREAT | O_RDWR, 0o644);
    f.unwrap().close().unwrap();
}

fn tag(fs: &Fs, path: &str, key: &str, value: &str) {
    let name = format!("user.{key}");
    fs.set_xattr(path.as_bytes(), name.as_bytes(), value.as_bytes(), true)
        .unwrap();
}

/// The names that a directory lists.
fn list(fs: &Fs, path: &str) -> BTreeSet<String> {
    let all = fs.list(path.as_bytes()).unwrap();
    let names: BTreeSet<String> = all
        .iter()
        .map(|e| String::from_utf8(e.name.clone()).unwrap())
        .collect();
    assert_eq!(names.len(), all.len(), "{path}: a name is listed twice");
    names
}

fn written(text: &str, key: bool) -> String {
    let text = text.replace('%', "%25").replace('/', "%2F");
    match key {
        true => text.replace('=', "%3D"),
        false if text.is_empty() => "%".into(),
        false => text,
    }
}

/// Attributes of all files and directories by inode number, as a walk finds them.
fn walk(fs: &Fs) -> BTreeMap<u64, BTreeMap<String, String>> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut found = BTreeMap::new();
    let mut todo = vec![String::new()];
    while let Some(dir) = todo.pop() {
        for e in fs.list(format!("{dir}/").as_bytes()).unwrap() {
            let path = format!("{dir}/{}", text(e.name));
            let mut all = BTreeMap::new();
            for name in fs.xattrs(path.as_bytes(), false).unwrap() {
                let value = fs.xattr(path.as_bytes(), &name, false).unwrap();
                all.insert(text(name).replacen("user.", "", 1), text(value));
            }
            found.insert(e.ino, all);
            if e.kind == libc::S_IFDIR {
                todo.push(path);
            }
        }
    }
    found
}

/// Checks that a directory of the view lists links to exactly these objects.
fn check_links(fs: &Fs, path: &str, expected: &BTreeSet<u64>) {
    let mut met = BTreeSet::new();
    let mut named = BTreeMap::new();
    for e in fs.list(path.as_bytes()).unwrap() {
        let name = String::from_utf8(e.name).unwrap();
        assert_eq!(e.kind, libc::S_IFLNK);
        let link = format!("{path}/{name}");
        let own = fs.stat(link.as_bytes(), false).unwrap();
        let target = String::from_utf8(fs.readlink(link.as_bytes()).unwrap()).unwrap();
        assert_eq!((own.ino, own.size), (e.ino, target.len() as u64), "{link}");
        let there = fs.stat(link.as_bytes(), true).unwrap();
        assert!(met.insert(there.ino), "{link}: twice");
        // The link leads up to the root and down again to the object's own path.
        let direct = format!("/{}", target.trim_start_matches("../"));
        let same = fs.stat(direct.as_bytes(), false).unwrap();
        assert_eq!(same.ino, there.ino, "{link} -> {target}");
        let last = direct.rsplit('/').next().unwrap().to_owned();
        let numbered = format!("{last}~{}", there.ino);
        let again = fs.stat(format!("{path}/{numbered}").as_bytes(), true);
        assert_eq!(again.unwrap().ino, there.ino, "{numbered}");
        let count = named.entry(last.clone()).or_insert((0, true));
        count.0 += 1;
        count.1 &= name == numbered;
        assert!(name == last || name == numbered, "{link} -> {target}");
    }
    for (name, (n, numbered)) in named {
        assert_eq!(n > 1, numbered, "{path}/{name}");
    }
    assert_eq!(&met, expected, "{path}");
}

/// Checks that the whole view shows the same as a walk.
fn check_view(fs: &Fs) {
    let all = walk(fs);
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in all.values().flatten() {
        values.entry(key).or_default().insert(value);
    }
    let keys: BTreeSet<String> = values.keys().map(|key| written(key, true)).collect();
    assert_eq!(list(fs, "/.by"), keys);
    let having = |words: &[(&str, &str)]| -> BTreeSet<u64> {
        let has = |a: &BTreeMap<String, String>| {
            let mut words = words.iter();
            words.all(|(key, value)| a.get(*key).is_some_and(|v| v == value))
        };
        all.iter()
            .filter(|(_, a)| has(a))
            .map(|(id, _)| *id)
            .collect()
    };
    for (key, its) in &values {
        let dir = format!("/.by/{}", written(key, true));
        let texts: BTreeSet<String> = its.iter().map(|v| written(v, false)).collect();
        assert_eq!(list(fs, &dir), texts);
        for value in its {
            let one = format!("{dir}={}", written(value, false));
            check_links(fs, &one, &having(&[(key, value)]));
            for other in KEYS {
                for and in VALUES {
                    let both = having(&[(key, value), (other, and)]);
                    let path = format!("{one}/{}/{}", written(other, true), written(and, false));
                    if both.is_empty() {
                        assert_eq!(fs.stat(path.as_bytes(), true).err(), Some(Errno::NOENT))
                    } else {
                        check_links(fs, &path, &both)
                    }
                }
            }
        }
    }
}

/// Checks that searches by comparison find the same as a walk.
fn check_searches(fs: &Fs) {
    let all = walk(fs);
    let dirs = all.keys().map(|id| ObjectId(*id)).chain([ObjectId::ROOT]);
    let dirs: Vec<ObjectId> = dirs
        .filter(|id| id.0 == 1 || fs.cluster().namespace().stat(*id).unwrap().is_dir())
        .collect();
    let matching = |terms: &[Term]| {
        let mut found = BTreeSet::new();
        for dir in &dirs {
            let cluster = fs.cluster();
            let each = |one: Match| {
                assert!(found.insert(one.id.0), "{terms:?}: {one:?} twice");
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let has = one.attributes.unwrap();
                let has = has
                    .iter()
                    .map(|(name, value)| (text(&name[5..]), text(value)));
                assert_eq!(has.collect::<BTreeMap<_, _>>(), all[&one.id.0]);
            };
            cluster.search().matching(terms, *dir, each).unwrap();
        }
        found
    };
    let having = |holds: &dyn Fn(&BTreeMap<String, String>) -> bool| -> BTreeSet<u64> {
        let all = all.iter().filter(|(_, has)| holds(has));
        all.map(|(id, _)| *id).collect()
    };
    let within = |key: &str, low, high| Term::Within(key.into(), low, high);
    for key in KEYS {
        let exists = within(key, Order::FIRST_NUMBER, Order::LAST);
        let number = within(key, Order::of_value(b"2"), Order::of_value(b"3.0"));
        let other = within(KEYS[0], Order::FIRST_TEXT, Order::LAST);
        assert_eq!(
            matching(std::slice::from_ref(&exists)),
            having(&|has| has.contains_key(key))
        );
        let three = |has: &BTreeMap<_, _>| has.get(key).is_some_and(|v: &String| v == "3");
        assert_eq!(matching(&[exists.clone(), number]), having(&three));
        let texts = |has: &BTreeMap<_, _>| {
            has.contains_key(key) && has.get(KEYS[0]).is_some_and(|v: &String| v != "3")
        };
        assert_eq!(matching(&[exists, other]), having(&texts));
    }
}

/// One random change of names or attributes.
fn change(views: &[&Fs], r: &mut Random) {
    let fs = views[r.below(views.len())];
    // Few names in few directories, so that operations often meet the same ones.
    let dirs = ["", "/d", "/e", "/d/e"];
    let path = |r: &mut Random| format!("{}/{}", dirs[r.below(4)], ["f", "g", "e"][r.below(3)]);
    let (one, other) = (path(r), path(r));
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let key = format!("user.{}", KEYS[r.below(3)]);
    let value = VALUES[r.below(4)].as_bytes();
    // Many operations fail: the object is missing, or the name exists.
    let _ = match r.below(12) {
        0 => fs
            .open(one, O_CREAT | O_RDWR, 0o644)
            .and_then(|f| f.close()),
        1 => fs.mkdir(one, 0o755),
        2 => fs.unlink(one),
        3 => fs.rmdir(one),
        4 => fs.rename(one, other),
        5 => fs.link(one, other),
        6 => exchange(fs, one, other),
        7 => fs.remove_xattr(one, key.as_bytes(), true),
        _ => fs.set_xattr(one, key.as_bytes(), value, true),
    };
}

fn changes(views: &[&Fs], seed: u64, steps: usize, whole: impl Fn()) {
    let mut r = Random(seed);
    for dir in ["/d", "/d/e"] {
        views[0].mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    for step in 0..steps {
        change(views, &mut r);
        if step % 20 == 19 {
            whole();
            check_view(views[r.below(views.len())]);
            check_searches(views[r.below(views.len())]);
        }
    }
}

#[test]
fn it_shows_what_a_walk_finds() {
    let p = TestPool::new("view-walk");
    changes(&[&p], 7, 1500, || p.assert_whole());
}

#[test]
fn it_shows_what_a_walk_finds_on_several_nodes() {
    let nodes = Nodes::new("view-nodes", 4, &["memory:32M"], 120);
    let views: Vec<&Fs> = nodes.views.iter().collect();
    changes(&views, 11, 800, || nodes.assert_whole());
}

/// A search has more results than fit one message, some of them too long to be included.
#[test]
fn searches_of_several_nodes_take_as_many_pages_as_they_need() {
    let nodes = Nodes::new("view-pages", 3, &["memory:64M"], 120);
    nodes.views[0].mkdir(b"/d", 0o755).unwrap();
    let filler = "x".repeat(150);
    for n in 0..900 {
        let fs = &nodes.views[n % 3];
        let path = format!("/d/{n}");
        touch(fs, &path);
        tag(fs, &path, "n", &n.to_string());
        tag(fs, &path, "filler", &filler);
        if n % 100 == 7 {
            tag(fs, &path, "long", &"y".repeat(10_000));
        }
    }
    let fs = &nodes.views[1];
    let dir = ObjectId(fs.stat(b"/d", true).unwrap().ino);
    let number = |text: &str| Order::of_value(text.as_bytes());
    let within = Term::Within(b"n".to_vec(), number("100"), number("849.5"));
    let filled = Term::Equal(b"filler".to_vec(), filler.into());
    for terms in [&[within.clone()][..], &[filled, within]] {
        let mut found = BTreeMap::new();
        let each = |one: Match| {
            let name: usize = String::from_utf8(one.name).unwrap().parse().unwrap();
            assert_eq!(one.attributes.is_none(), name % 100 == 7);
            assert_eq!(found.insert(name, one.id), None);
        };
        fs.cluster().search().matching(terms, dir, each).unwrap();
        assert!(found.into_keys().eq(100..850));
    }
    let root = |_| panic!("it isn't in the root");
    let all = Term::Within(b"n".to_vec(), Order::FIRST_NUMBER, Order::LAST);
    fs.cluster()
        .search()
        .matching(&[all], ObjectId::ROOT, root)
        .unwrap();
}

#[test]
fn it_is_read_like_directories_and_links() {
    let p = TestPool::new("view-plain");
    p.mkdir(b"/runs", 0o755).unwrap();
    p.mkdir(b"/runs/1", 0o755).unwrap();
    assert_eq!(list(&p, "/.by"), BTreeSet::new());
    p.put("/runs/1/out", b"first");
    p.put("/out.txt", b"second");
    tag(&p, "/runs/1/out", "project", "mcse");
    tag(&p, "/out.txt", "project", "mcse");
    tag(&p, "/out.txt", "step", "3");
    tag(&p, "/runs", "kind", "runs");
    // The view isn't in the root's listing.
    assert_eq!(list(&p, "/"), ["out.txt", "runs"].map(String::from).into());
    assert_eq!(
        list(&p, "/.by/project=mcse"),
        ["out", "out.txt"].map(String::from).into()
    );
    assert_eq!(p.get("/.by/project=mcse/out"), b"first");
    assert_eq!(p.get("/.by/step=3/project=mcse/out.txt"), b"second");
    assert_eq!(
        p.readlink(b"/.by/project=mcse/step/3/out.txt").unwrap(),
        b"../../../../out.txt"
    );
    assert_eq!(p.get("/.by/kind=runs/runs/1/out"), b"first");
    // `..` in the view leads up again.
    assert_eq!(p.get("/.by/step=3/../../out.txt"), b"second");
    let root = p.stat(b"/", true).unwrap().ino;
    assert_eq!(p.stat(b"/.by/..", true).unwrap().ino, root);
    let dir = p.stat(b"/.by/step=3/project=mcse", true).unwrap();
    assert_eq!(dir.mode, libc::S_IFDIR | 0o555);
    let id = forebay_posix::ObjectId(dir.ino);
    assert_eq!(
        p.cluster().namespace().path_of(id).unwrap(),
        b"/.by/step=3/project=mcse"
    );
    // Keys, values and names that don't occur give ENOENT.
    for none in [
        "/.by/project=other",
        "/.by/other",
        "/.by/step=3/out",
        "/.by/project=mcse/step=4",
    ] {
        assert_eq!(
            p.stat(none.as_bytes(), true).err(),
            Some(Errno::NOENT),
            "{none}"
        );
    }
    // Writing through a link writes to the file.
    let f = p.open(b"/.by/step=3/out.txt", O_RDWR, 0).unwrap();
    write_all(&f, b"SECOND", 0);
    f.close().unwrap();
    assert_eq!(p.get("/out.txt"), b"SECOND");
    // A value that is too long for a name.
    let long = "v".repeat(300);
    tag(&p, "/out.txt", "long", &long);
    let texts = list(&p, "/.by/long");
    let text = texts.first().unwrap();
    assert!(text.starts_with("%#"), "{text}");
    assert_eq!(
        list(&p, &format!("/.by/long={text}")),
        ["out.txt".to_owned()].into()
    );
    p.assert_whole();
}

#[test]
fn nothing_is_made_in_it() {
    let p = TestPool::new("view-refused");
    p.put("/f", b"");
    tag(&p, "/f", "k", "v");
    let rofs =
        |what: &str, result: Result<(), Errno>| assert_eq!(result, Err(Errno::ROFS), "{what}");
    let make = |path: &str| p.open(path.as_bytes(), O_CREAT | O_RDWR, 0o644).map(|_| ());
    rofs("create", make("/.by/new"));
    rofs("create among links", make("/.by/k=v/new"));
    rofs("mkdir", p.mkdir(b"/.by/k=v/new", 0o755));
    rofs("symlink", p.symlink(b"x", b"/.by/k/new"));
    rofs("link", p.link(b"/f", b"/.by/k=v/new"));
    rofs("unlink", p.unlink(b"/.by/k=v/f"));
    rofs("rmdir", p.rmdir(b"/.by/k=v"));
    rofs("rmdir of all", p.rmdir(b"/.by"));
    rofs("rename into", p.rename(b"/f", b"/.by/k=v/g"));
    rofs("rename out", p.rename(b"/.by/k=v/f", b"/g"));
    rofs("rename of all", p.rename(b"/.by", b"/by"));
    rofs("rename over", p.rename(b"/f", b"/.by"));
    rofs("chmod", p.chmod(b"/.by/k=v", 0o777));
    rofs("utimes", p.set_times(b"/.by/k=v", Some(0), Some(0), true));
    rofs("attribute", p.set_xattr(b"/.by/k=v", b"user.x", b"y", true));
    assert_eq!(p.mkdir(b"/.by", 0o755), Err(Errno::EXIST));
    assert_eq!(p.mkdir(b"/.by/k=v", 0o755), Err(Errno::EXIST));
    // The same name elsewhere is an ordinary directory.
    p.mkdir(b"/d", 0o755).unwrap();
    p.mkdir(b"/d/.by", 0o755).unwrap();
    p.put("/d/.by/f", b"own");
    assert_eq!(p.get("/d/.by/f"), b"own");
    p.assert_whole();
}

#[test]
fn it_lists_many() {
    let p = TestPool::with("view-many", &["memory:256M"]);
    const FILES: usize = 5000;
    for n in 0..FILES {
        let dir = format!("/{}", n % 50);
        let _ = p.mkdir(dir.as_bytes(), 0o755);
        // Each name is used twice.
        let path = format!("{dir}/{}", n / 2 * 2);
        let path = if n % 2 == 0 {
            path
        } else {
            format!("/{}/{}", n % 50, n - 1)
        };
        touch(&p, &path);
        tag(&p, &path, "all", "yes");
        tag(&p, &path, "third", &(n % 3).to_string());
        tag(&p, &path, "fine", &(n % 1500).to_string());
        if n % 1000 == 0 {
            tag(&p, &path, "few", "yes");
        }
    }
    let all = list(&p, "/.by/all=yes");
    assert_eq!(all.len(), FILES);
    assert!(all.iter().all(|name| name.contains('~')));
    assert_eq!(list(&p, "/.by/all=yes/few=yes").len(), FILES / 1000);
    assert_eq!(list(&p, "/.by/few=yes/all=yes").len(), FILES / 1000);
    // Lists keys and values: few that many files have, and many that few files have.
    let keys = ["all", "few", "fine", "third"];
    assert_eq!(list(&p, "/.by"), keys.map(String::from).into());
    let numbers = |n: usize| (0..n).map(|n| n.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(list(&p, "/.by/third"), numbers(3));
    assert_eq!(list(&p, "/.by/fine"), numbers(1500));
}

#[test]
fn a_file_is_found_under_the_names_it_has() {
    let p = TestPool::new("view-names");
    p.put("/one", b"1");
    p.link(b"/one", b"/two").unwrap();
    p.link(b"/one", b"/three").unwrap();
    tag(&p, "/one", "k", "v");
    assert_eq!(list(&p, "/.by/k=v"), ["one".to_owned()].into());
    // After its indexed name is removed, the object is listed under one of its other names.
    p.unlink(b"/one").unwrap();
    let name = list(&p, "/.by/k=v").pop_first().unwrap();
    assert!(name == "two" || name == "three", "{name}");
    p.assert_whole();
    p.rename(format!("/{name}").as_bytes(), b"/four").unwrap();
    assert_eq!(p.get("/.by/k=v/four"), b"1");
    // An object that is open, but has no name any more.
    let f = p.open(b"/four", O_RDWR, 0).unwrap();
    for name in ["/two", "/three", "/four"] {
        let _ = p.unlink(name.as_bytes());
    }
    assert_eq!(p.stat(b"/.by/k=v", true).err(), Some(Errno::NOENT));
    p.assert_whole();
    f.close().unwrap();
    p.assert_whole();
    assert_eq!(list(&p, "/.by"), BTreeSet::new());
}
