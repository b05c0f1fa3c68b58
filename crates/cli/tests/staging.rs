//! Tests staging into a pool and out of it, with real processes, kills and full media.

mod place;

use place::{Place, finish, kill, make_tree, manifest, noise, set_mtime};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Returns the report of a staging. The staging must be complete.
#[track_caller]
fn report(place: &Place, args: &[&str]) -> serde_json::Value {
    let said = place
        .forebay(&[&["stage"], args, &["--json"]].concat())
        .expect(0);
    said.json()
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let p = Place::new();
    let had_xattrs = make_tree(&p.at("tree"));
    p.up("memory:256M");
    for threads in ["1", "4"] {
        let pool = format!("/case-{threads}/below");
        let out = format!("back-{threads}/below");
        let r = report(&p, &["in", "tree", &pool, "--threads", threads]);
        assert_eq!(r["files"], r["moved_files"]);
        assert_eq!(
            (r["failed"].as_u64(), r["skipped"].as_u64()),
            (Some(0), Some(0))
        );
        assert!(
            r["moved_bytes"].as_u64() < Some(20 << 20),
            "holes were moved: {r}"
        );
        assert_eq!(r["warnings"].as_array().map(Vec::len), Some(0));
        report(&p, &["out", &pool, &out, "--threads", threads]);
        assert_eq!(manifest(&p.at("tree")), manifest(&p.at(&out)));
        let root = |path: &str| {
            p.at(path)
                .metadata()
                .map(|m| (m.mode(), m.mtime_nsec()))
                .unwrap()
        };
        assert_eq!(root("tree"), root(&out));
        let sparse = p.at(&out).join("sparse").metadata().unwrap();
        assert!(
            sparse.blocks() * 512 < 8 << 20,
            "the hole is gone: {} blocks",
            sparse.blocks()
        );
    }
    if had_xattrs {
        assert!(manifest(&p.at("tree")).iter().any(|l| l.contains("Some(")));
    }
}

#[test]
fn only_what_differs_moves() {
    let p = Place::new();
    let tree = p.at("tree");
    make_tree(&tree);
    p.up("memory:256M");
    for (direction, from, to) in [("in", "tree", "/case"), ("out", "/case", "back")] {
        let first = report(&p, &[direction, from, to]);
        let again = report(&p, &[direction, from, to]);
        assert_eq!(
            (again["moved_files"].as_u64(), again["moved_bytes"].as_u64()),
            (Some(0), Some(0))
        );
        assert_eq!(again["unchanged"], first["files"]);
        let summed = report(&p, &[direction, from, to, "--checksum"]);
        assert_eq!(summed["moved_files"], 0);
    }
    // A file is moved again if its time has changed, with or without its content. With --checksum,
    // if only the time has changed, only the time is set. A changed mode moves nothing.
    std::fs::write(tree.join("deep/er/4096"), noise(77, 4096)).unwrap();
    std::fs::set_permissions(tree.join("program"), PermissionsExt::from_mode(0o4711)).unwrap();
    let r = report(&p, &["in", "tree", "/case"]);
    assert_eq!(
        (r["moved_files"].as_u64(), r["moved_bytes"].as_u64()),
        (Some(1), Some(4096))
    );
    set_mtime(&tree.join("deep/er/4097"), 1, 2);
    let r = report(&p, &["in", "tree", "/case", "--checksum"]);
    assert_eq!(r["moved_files"], 0);
    // With the same size and time, only a checksum shows that the content differs.
    let path = tree.join("deep/er/70000");
    let time = path.metadata().unwrap();
    std::fs::write(&path, noise(78, 70_000)).unwrap();
    set_mtime(&path, time.mtime(), time.mtime_nsec());
    assert_eq!(report(&p, &["in", "tree", "/case"])["moved_files"], 0);
    assert_eq!(
        report(&p, &["in", "tree", "/case", "--checksum"])["moved_files"],
        1
    );
    // A hard link becomes a separate file, and a file becomes a symbolic link.
    std::fs::remove_file(tree.join("deep/hard-2")).unwrap();
    std::fs::write(tree.join("deep/hard-2"), noise(9, 10_000)).unwrap();
    std::fs::remove_file(tree.join("empty")).unwrap();
    std::os::unix::fs::symlink("program", tree.join("empty")).unwrap();
    report(&p, &["in", "tree", "/case"]);
    report(&p, &["out", "/case", "back", "--checksum"]);
    assert_eq!(manifest(&tree), manifest(&p.at("back")));
}

#[test]
fn one_file_goes_where_it_is_told() {
    let p = Place::new();
    std::fs::write(p.at("file"), b"content").unwrap();
    std::fs::create_dir(p.at("dir")).unwrap();
    std::fs::create_dir(p.at("dir/sub")).unwrap();
    p.up("memory:64M");
    report(&p, &["in", "file", "/a/b"]);
    report(&p, &["in", "file", "/fb/new/"]);
    report(&p, &["in", "file", "/"]);
    let files = p.pool_files("/");
    assert_eq!(
        files,
        [
            ("/a/b".into(), 7),
            ("/file".into(), 7),
            ("/new/file".into(), 7)
        ]
    );
    report(&p, &["out", "/fb/a/b", "dir"]);
    assert_eq!(std::fs::read(p.at("dir/b")).unwrap(), b"content");
    // Files and directories whose paths conflict.
    let stage = |args: &[&str]| p.forebay(&[&["stage"], args].concat()).expect(120);
    stage(&["in", "dir", "/a/b"]).says(&["/fb/a/b", "not a directory"]);
    stage(&["in", "file", "/a/b/c"]).says(&["part of this path is a file"]);
    stage(&["in", "nothing", "/x"]).says(&["nothing", "no such file"]);
    stage(&["out", "/nothing", "x"]).says(&["/fb/nothing", "no such file"]);
    stage(&["out", "/a", "/fb/x"]).says(&["mount prefix"]);
    std::fs::create_dir_all(p.at("dir/file")).unwrap();
    stage(&["out", "/file", "dir"]).says(&["in the way", "remove it"]);
    std::fs::write(p.at("dir2"), b"").unwrap();
    stage(&["out", "/a", "dir2"]).says(&["dir2", "not a directory"]);
}

#[test]
fn what_cannot_be_staged_is_told() {
    let p = Place::new();
    std::fs::create_dir(p.at("tree")).unwrap();
    std::fs::write(p.at("tree/a"), b"a").unwrap();
    let fifo = std::ffi::CString::new(p.text("tree/fifo")).unwrap();
    // SAFETY: `fifo` is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    p.up("memory:64M");
    let said = p.forebay(&["stage", "in", "tree", "/t"]).expect(0);
    said.says(&["tree/fifo: a FIFO, not staged", "1 skipped"]);
    // A directory occupies the path of one file: the other files arrive, and the staging is
    // incomplete.
    std::fs::create_dir_all(p.at("out/a/x")).unwrap();
    std::fs::write(p.at("tree/b"), b"b").unwrap();
    report(&p, &["in", "tree", "/t"]);
    let said = p.forebay(&["stage", "out", "/t", "out"]).expect(120);
    said.says(&[
        "out/a: is a directory",
        "incomplete",
        "forebay stage out /t out --pool default",
    ]);
    assert_eq!(std::fs::read(p.at("out/b")).unwrap(), b"b");
}

#[test]
fn a_killed_staging_is_resumed() {
    let p = Place::new();
    let tree = p.at("tree");
    std::fs::create_dir(&tree).unwrap();
    let large = 70 << 20;
    std::fs::write(tree.join("large"), noise(1, large)).unwrap();
    for i in 0..20u64 {
        std::fs::write(tree.join(format!("small-{i}")), noise(i, 500_000)).unwrap();
    }
    p.up("memory:256M");
    let whole: Vec<(String, u64)> = {
        let size = |i: usize| if i == 0 { large as u64 } else { 500_000 };
        let mut names: Vec<String> = (0..20).map(|i| format!("/t/small-{i}")).collect();
        names.insert(0, "/t/large".into());
        names
            .into_iter()
            .enumerate()
            .map(|(i, n)| (n, size(i)))
            .collect()
    };
    let mut killed = 0;
    for delay in [1, 3, 10, 20, 40, 80, 120, 200, 300] {
        let child = p.start(&["stage", "in", "tree", "/t"]);
        std::thread::sleep(Duration::from_millis(delay));
        kill(child.id(), libc::SIGKILL);
        killed += usize::from(finish(child).code == 128 + 9);
        if p.forebay(&["ls", "/t"]).code == 0 {
            for file in p.pool_files("/t") {
                assert!(
                    whole.contains(&file),
                    "a short file under its final name: {file:?}"
                );
            }
        }
    }
    assert!(killed > 0);
    report(&p, &["in", "tree", "/t"]);
    let names = p.forebay(&["ls", "-a", "/t"]).expect(0).out;
    assert!(!names.contains(".forebay-part-"), "left behind: {names}");

    for delay in [1, 10, 30, 80, 200] {
        let child = p.start(&["stage", "out", "/t", "back"]);
        std::thread::sleep(Duration::from_millis(delay));
        kill(child.id(), libc::SIGKILL);
        finish(child);
        for entry in std::fs::read_dir(p.at("back"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().into_string().unwrap();
            if !name.starts_with(".forebay-part-") {
                let size = entry.metadata().unwrap().len();
                assert!(
                    whole.contains(&(format!("/t/{name}"), size)),
                    "{name}: {size}"
                );
            }
        }
    }
    report(&p, &["out", "/t", "back"]);
    assert_eq!(manifest(&tree), manifest(&p.at("back")));
}

#[test]
fn a_full_pool_is_no_success() {
    let p = Place::new();
    std::fs::create_dir(p.at("tree")).unwrap();
    for i in 0..24u64 {
        std::fs::write(p.at("tree").join(format!("f{i}")), noise(i, 1 << 20)).unwrap();
    }
    p.up("memory:8M");
    let said = p
        .forebay(&["stage", "in", "--force", "tree", "/t"])
        .expect(120);
    said.says(&["the pool is full", "--media", "incomplete"]);
    let arrived = p.pool_files("/t");
    assert!(
        !arrived.is_empty() && arrived.len() < 24,
        "{}",
        arrived.len()
    );
    assert!(arrived.iter().all(|f| f.1 == 1 << 20), "short: {arrived:?}");
    assert!(!p.forebay(&["ls", "-a", "/t"]).out.contains("part"));
    // The files that have arrived are whole, and the space of the others is free again.
    let said = p.forebay(&["stage", "out", "/t", "back"]).expect(0);
    assert!(said.err.contains("staged out"));
    for (path, _) in arrived {
        let name = Path::new(&path).file_name().unwrap().to_owned();
        let read = |dir: &str| std::fs::read(p.at(dir).join(&name)).unwrap();
        assert!(read("tree") == read("back"), "{path}");
    }
}

#[test]
fn a_source_that_changes_is_noticed() {
    let p = Place::new();
    let path = p.at("growing");
    std::fs::write(&path, noise(1, 64 << 20)).unwrap();
    p.up("memory:256M");
    let child = p.start(&["stage", "in", "growing", "/g"]);
    let until = std::time::Instant::now() + Duration::from_millis(50);
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    while std::time::Instant::now() < until {
        std::io::Write::write_all(&mut file, b"more").unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let said = finish(child);
    if said.code == 0 {
        // The scan began after the last change, so the copy must be complete.
        assert_eq!(
            p.pool_files("/"),
            [("/g".into(), path.metadata().unwrap().len())]
        );
    } else {
        assert_eq!(said.code, 120);
        said.says(&["changed while it was copied"]);
        assert_eq!(p.pool_files("/"), []);
    }
}
