//! Tests of what POSIX promises for files and names, through `Fs` and `File`.

mod attributes;
mod data;
mod names;
mod opening;
#[path = "../support/mod.rs"]
mod support;

use support::*;

const O_DIRECTORY: i32 = libc::O_DIRECTORY;
const MIB: usize = 1 << 20;

#[test]
#[ignore = "started by another test in a process of its own"]
fn worker() {
    let Some((role, _, fs)) = worker_role() else {
        return;
    };
    assert_eq!(role, "watch");
    let get = |path: &str| {
        let f = fs.open(path.as_bytes(), O_RDONLY, 0).unwrap();
        println!("> {}", String::from_utf8(read_all(&f)).unwrap());
    };
    get("/a/b/f");
    fs.mkdir(b"/seen", 0o755).unwrap();
    wait_until("the other side has renamed", || {
        fs.stat(b"/go", true).is_ok()
    });
    get("/a/b/f");
    get("/z/b/f");
}
