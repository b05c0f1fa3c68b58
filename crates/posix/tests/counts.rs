//! How many questions to other nodes an operation takes: each costs a round trip.

mod support;

use forebay_placement::{NodeId, Slot};
use forebay_posix::{Distribution, Errno, Fs};
use std::sync::atomic::Ordering::SeqCst;
use support::nodes::Nodes;
use support::*;

/// What `f` asks: so many answers are waited for, so many aren't.
fn asked<T>(nodes: &Nodes, f: impl FnOnce() -> T) -> (usize, usize) {
    let together = &nodes.together;
    let count = || (together.asked.load(SeqCst), together.told.load(SeqCst));
    let before = count();
    f();
    let after = count();
    let told = after.1 - before.1;
    (after.0 - before.0 - told, told)
}

fn make(fs: &Fs, path: &[u8]) {
    let f = fs.open(path, O_CREAT | O_EXCL | O_RDWR, 0o644).unwrap();
    write_all(&f, &pattern(1, 5000), 0);
    f.close().unwrap();
}

/// A name in `dir` whose entry lies on `node`.
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
    // From here on the way to the directory is known.
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
        // It is open here already: what came along is given back.
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
    for (entry, maker, opening) in [
        (0, 0, (0, 0)),
        (0, 1, (1, 1)),
        (1, 0, (1, 0)),
        (2, 1, (2, 1)),
    ] {
        let path = name_on(&nodes, b"/d", entry);
        make(&nodes.views[maker], &path);
        here.stat(&path, true).unwrap();
        let reads = usize::from(maker != 0);
        let expected = (opening.0 + reads, opening.1);
        assert_eq!(asked(&nodes, || open(&path)), expected, "{entry} {maker}");
        let stat = || here.stat(&path, true).unwrap();
        assert_eq!(asked(&nodes, stat), (opening.0, 0), "{entry} {maker}");
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
