//! Tests of the number of requests to other nodes that operations need: each request costs a round
//! trip.

mod support;

use forebay_placement::{NodeId, Slot};
use forebay_posix::{Distribution, Errno, Fs, ObjectId};
use std::sync::atomic::Ordering::SeqCst;
use support::nodes::Nodes;
use support::*;

/// Counts the requests that `f` sends: those with a reply, and those without.
fn asked<T>(nodes: &Nodes, f: impl FnOnce() -> T) -> (usize, usize) {
    let together = &nodes.together;
    let count = || (together.asked.load(SeqCst), together.one_way.load(SeqCst));
    let before = count();
    f();
    let after = count();
    let one_way = after.1 - before.1;
    (after.0 - before.0 - one_way, one_way)
}

fn make(fs: &Fs, path: &[u8]) {
    let f = fs.open(path, O_CREAT | O_EXCL | O_RDWR, 0o644).unwrap();
    write_all(&f, &pattern(1, 5000), 0);
    f.close().unwrap();
}

/// A name in `dir` whose entry would be on `node`.
fn name_on(nodes: &Nodes, dir: &[u8], node: u32) -> Vec<u8> {
    let id = forebay_posix::ObjectId(nodes.views[0].stat(dir, true).unwrap().ino);
    let at = |name: &str| nodes.together.node_of(Slot::of_entry(id, name.as_bytes()));
    let name = (0..)
        .map(|i| format!("name-{i}"))
        .find(|n| at(n) == NodeId(node));
    [dir, b"/", name.unwrap().as_bytes()].concat()
}

#[test]
fn where_name_and_file_lie_on_one_other_node() {
    let nodes = Nodes::new("counts", 3, &["memory:64M"], 100);
    let (here, there) = (&nodes.views[0], &nodes.views[1]);
    there
        .mkdir_with(b"/there", 0o755, Distribution::LocalAll)
        .unwrap();
    make(there, b"/there/file");
    // From now on the path to the directory is cached.
    here.stat(b"/there/file", true).unwrap();

    assert_eq!(
        asked(&nodes, || here.stat(b"/there/file", true).unwrap()),
        (1, 0)
    );
    for flags in [O_RDONLY, O_RDWR, O_RDWR | O_CREAT] {
        let open = || here.open(b"/there/file", flags, 0o644).unwrap();
        assert_eq!(
            asked(&nodes, || open().close().unwrap()),
            (1, 1),
            "{flags:o}"
        );
        // The file is open on this node already, so the use that came with the reply is ended by a
        // second message.
        let first = open();
        assert_eq!(asked(&nodes, open), (1, 1), "{flags:o}");
        first.close().unwrap();
    }
    let file = here.open(b"/there/file", O_RDWR, 0).unwrap();
    assert_eq!(
        asked(&nodes, || file.read_at(&mut [0; 4096], 0).unwrap()),
        (1, 0)
    );
    assert_eq!(asked(&nodes, || write_all(&file, &[1; 4096], 0)), (1, 0));
    assert_eq!(asked(&nodes, || file.stat().unwrap()), (1, 0));
    assert_eq!(asked(&nodes, || file.close().unwrap()), (0, 1));
    for (name, value) in [("user.one", "1"), ("user.two", "2")] {
        here.set_xattr(b"/there/file", name.as_bytes(), value.as_bytes(), true)
            .unwrap();
    }
    let id = ObjectId(here.stat(b"/there/file", true).unwrap().ino);
    assert_eq!(
        asked(&nodes, || here.cluster().search().describe(id).unwrap()),
        (1, 0)
    );
    let (described, known) = (
        here.cluster().search().describe(id),
        there.cluster().search().describe(id),
    );
    assert_eq!(described, known);
    let missing = ObjectId(id.0 + 1000);
    let (away, own) = (vec![id; 1000], vec![id, missing, ObjectId::ROOT]);
    let count = asked(&nodes, || {
        let all = here.cluster().search().describe_all(&away);
        assert!(all.iter().all(|one| *one == described));
    });
    assert!((2..20).contains(&count.0), "{count:?}");
    let all = here.cluster().search().describe_all(&own);
    assert_eq!(
        (&all[0], all[1].as_ref().err()),
        (&described, Some(&Errno::NOENT))
    );
    assert!(all[2].as_ref().unwrap().inode.is_dir());
    let described = described.unwrap();
    assert_eq!(described.name.unwrap().1, b"file");
    assert_eq!(described.attributes.unwrap().len(), 2);

    let create = |name: &[u8], flags| {
        let flags = O_CREAT | O_WRONLY | flags;
        here.open(name, flags, 0o644).unwrap().close().unwrap();
    };
    assert_eq!(asked(&nodes, || create(b"/there/new", O_EXCL)), (1, 0));
    assert_eq!(asked(&nodes, || create(b"/there/other", 0)), (2, 0));
    let again = || {
        here.open(b"/there/new", O_CREAT | O_EXCL | O_WRONLY, 0o644)
            .err()
    };
    assert_eq!(
        asked(&nodes, || assert_eq!(again(), Some(Errno::EXIST))),
        (1, 0)
    );
    nodes.assert_whole();
}

#[test]
fn where_name_and_file_lie_on_two_nodes() {
    let nodes = Nodes::new("counts-two", 3, &["memory:64M"], 100);
    let here = &nodes.views[0];
    here.mkdir(b"/d", 0o755).unwrap();
    let open = |path: &[u8]| {
        let f = here.open(path, O_RDONLY, 0).unwrap();
        assert_eq!(f.read_at(&mut [0; 10], 0), Ok(10));
        f.close().unwrap();
    };
    for (entry, creator, opening) in [
        (0, 0, (0, 0)),
        (0, 1, (1, 1)),
        (1, 0, (1, 0)),
        (2, 1, (2, 1)),
    ] {
        let path = name_on(&nodes, b"/d", entry);
        make(&nodes.views[creator], &path);
        here.stat(&path, true).unwrap();
        let reads = usize::from(creator != 0);
        let expected = (opening.0 + reads, opening.1);
        assert_eq!(asked(&nodes, || open(&path)), expected, "{entry} {creator}");
        let stat = || here.stat(&path, true).unwrap();
        assert_eq!(asked(&nodes, stat), (opening.0, 0), "{entry} {creator}");
        here.unlink(&path).unwrap();
    }
    nodes.assert_whole();
}

#[test]
fn what_was_removed_goes_with_its_last_close() {
    let nodes = Nodes::new("counts-room", 2, &["memory:64M"], 100);
    let (here, there) = (&nodes.views[0], &nodes.views[1]);
    there
        .mkdir_with(b"/there", 0o755, Distribution::LocalAll)
        .unwrap();
    let used = nodes.used();
    for _ in 0..20 {
        make(there, b"/there/file");
        let one = here.open(b"/there/file", O_RDONLY, 0).unwrap();
        let other = here.open(b"/there/file", O_RDONLY, 0).unwrap();
        there.unlink(b"/there/file").unwrap();
        one.close().unwrap();
        assert_eq!(other.read_at(&mut [0; 5000], 0), Ok(5000));
        assert!(nodes.used() > used);
        other.close().unwrap();
        assert_eq!(nodes.used(), used);
    }
    nodes.assert_whole();
}

/// An extended attribute.
const STEP: (&[u8], &[u8]) = (b"user.step", b"3");

#[test]
fn files_made_together_take_a_question_for_each_node() {
    let nodes = Nodes::new("counts-together", 4, &["memory:64M"], 100);
    let here = &nodes.views[1];
    nodes.views[0].mkdir(b"/d", 0o755).unwrap();
    here.stat(b"/d", true).unwrap();
    let names: Vec<String> = (0..256).map(|n| format!("file-{n}")).collect();
    let (waited, _) = asked(&nodes, || {
        let made = make_together(here, b"/d", &names, STEP).unwrap();
        assert!(made.iter().all(Result::is_ok), "{made:?}");
    });
    // Entries are requested from three homes. Further requests look up the directory and its
    // attributes, and set its change time.
    assert!(
        waited <= 3 + 8,
        "{waited} requests for {} files",
        names.len()
    );
    for view in &nodes.views {
        assert_eq!(view.list(b"/d").unwrap().len(), names.len());
        assert_eq!(view.xattr(b"/d/file-77", b"user.step", true).unwrap(), b"3");
        assert_eq!(view.list(b"/.by/step=3").unwrap().len(), names.len());
    }
    nodes.assert_whole();
    // Existing files stay as they are; the others are made.
    let more: Vec<String> = (200..300).map(|n| format!("file-{n}")).collect();
    let made = make_together(&nodes.views[2], b"/d", &more, STEP).unwrap();
    for (name, made) in more.iter().zip(made) {
        let expected = if names.contains(name) {
            Err(Errno::EXIST)
        } else {
            Ok(())
        };
        assert_eq!(made, expected, "{name}");
    }
    // Of two files with the same name, only one is made.
    let made = make_together(here, b"/d", &["same", "same"], STEP).unwrap();
    assert_eq!(
        made.iter().filter(|made| made.is_ok()).count(),
        1,
        "{made:?}"
    );
    assert_eq!(nodes.views[3].list(b"/.by/step=3").unwrap().len(), 301);
    nodes.assert_whole();
    for e in nodes.views[3].list(b"/d").unwrap() {
        nodes.views[0]
            .unlink(&[b"/d/", &e.name[..]].concat())
            .unwrap();
    }
    nodes.views[0].rmdir(b"/d").unwrap();
    nodes.assert_whole();
    assert!(nodes.views[1].list(b"/.by").unwrap().is_empty());
}

#[test]
fn what_is_made_where_files_are_exclusive_asks_nobody() {
    const RULES: &str = "[[rule]]\npath = '/ranks/**'\nparallelism = 'exclusive'
        [[rule]]\npath = '/**/*.own'\nparallelism = 'exclusive(node)'";
    let nodes = Nodes::ruled("counts-exclusive", 3, &["memory:64M"], RULES, 100);
    let (top, fs) = (&nodes.views[0], &nodes.views[2]);
    let distribution = |path: &[u8]| {
        let id = ObjectId(top.stat(path, true).unwrap().ino);
        (id.distribution(), id.slot())
    };
    let keeps = |path: &[u8]| distribution(path).0 == Distribution::LocalAll;
    for (dir, said) in [
        (&b"/ranks"[..], ""),
        (b"/said", "parallelism=exclusive(node)"),
    ] {
        top.mkdir(dir, 0o755).unwrap();
        let id = ObjectId(top.stat(dir, true).unwrap().ino);
        top.set_controls(id, said.parse().unwrap()).unwrap();
        let rank = [dir, b"/rank2"].concat();
        fs.mkdir(&rank, 0o755).unwrap();
        assert!(keeps(&rank));
        assert_eq!(nodes.together.node_of(distribution(&rank).1), NodeId(2));
        let path = |i: u32| [&rank[..], format!("/{i}").as_bytes()].concat();
        // From now on the path to the directory and its rules are cached.
        make(fs, &path(50));
        for i in 0..50 {
            let (path, new) = (path(i), path(i + 100));
            assert_eq!(asked(&nodes, || make(fs, &path)), (0, 0));
            assert_eq!(asked(&nodes, || fs.stat(&path, true).unwrap()), (0, 0));
            let rename = || fs.rename(&path, &new).unwrap();
            assert_eq!(asked(&nodes, rename), (0, 0));
            assert_eq!(asked(&nodes, || fs.unlink(&new).unwrap()), (0, 0));
        }
        // All nodes see the directory's one remaining file.
        assert_eq!(top.list(&rank).unwrap().len(), 1);
    }
    // A directory has its entries on its own node if a rule declares `exclusive` for everything in
    // the directory, but not if the rule applies to some names only (`*.own`).
    assert!(keeps(b"/ranks") && !keeps(b"/said"));
    fs.mkdir(b"/other", 0o755).unwrap();
    assert!(!keeps(b"/other"));
    // A distribution that was chosen explicitly isn't changed.
    let striped = Distribution::Striped(Default::default());
    fs.mkdir_with(b"/ranks/striped", 0o755, striped).unwrap();
    fs.mkdir(b"/ranks/striped/below", 0o755).unwrap();
    assert_eq!(distribution(b"/ranks/striped/below").0, striped);
    fs.mkdir_with(b"/ranks/spread", 0o755, Distribution::Local)
        .unwrap();
    assert!(!keeps(b"/ranks/spread"));
    nodes.assert_whole();
}
