//! Watches, through the kernel's own inotify descriptors on shadows (`store/src/watches.rs`): the
//! events, their receivers, and the shadows that are left over.

mod support;

use forebay_posix::{Errno, ObjectId};
use forebay_store::watches::SHADOW_MASK;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use support::*;

struct Watcher(i32);

impl Watcher {
    fn new() -> Watcher {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        assert!(fd >= 0);
        Watcher(fd)
    }

    fn add(&self, pool: &TestPool, path: &[u8], mask: u32) -> forebay_posix::Result<i64> {
        let id = ObjectId(pool.stat(path, true).unwrap().ino);
        pool.store()
            .watches()
            .watch(self.0, id, mask, |shadow: &Path| {
                let path = CString::new(shadow.as_os_str().as_bytes()).unwrap();
                // SAFETY: the path is a C string that outlives the call.
                let wd = unsafe { libc::inotify_add_watch(self.0, path.as_ptr(), SHADOW_MASK) };
                assert!(wd > 0);
                Ok(wd.into())
            })
    }

    /// Watch descriptor, mask and name of all events.
    fn events(&self, pool: &TestPool) -> Vec<(i32, u32, String)> {
        let mut all = Vec::new();
        let mut buffer = [0u8; 65536];
        loop {
            // SAFETY: the buffer has the length that is passed.
            let n = unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) };
            if n <= 0 {
                return all;
            }
            let mut rest = &buffer[..n as usize];
            while !rest.is_empty() {
                let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
                let (wd, mask, len) = (word(0) as i32, word(4), word(12) as usize);
                let name = rest[16..16 + len].split(|&b| b == 0).next().unwrap();
                let (mask, name) = match pool.store().watches().happened(name) {
                    Some(e) => (e.mask, e.name.into_owned()),
                    None => (mask, name.to_vec()),
                };
                all.push((wd, mask, String::from_utf8(name).unwrap()));
                rest = &rest[16 + len..];
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this watcher's own, and isn't used any more.
        unsafe { libc::close(self.0) };
    }
}

/// Names of shadows and of the files that belong to them.
fn left(pool: &TestPool) -> Vec<String> {
    let mut all = Vec::new();
    let top = pool.pool().dir().join("watches");
    for name in std::fs::read_dir(top).unwrap().flatten() {
        match name.file_name().to_str().unwrap() {
            "names" | "by-inode" => {
                let inside = std::fs::read_dir(name.path()).unwrap().flatten();
                all.extend(inside.map(|e| e.file_name().into_string().unwrap()));
            }
            id => all.push(id.to_owned()),
        }
    }
    all
}

#[test]
fn each_watcher_is_told_what_it_wants_to_know() {
    let pool = TestPool::new("watches-masks");
    pool.mkdir(b"/d", 0o755).unwrap();
    pool.put("/d/f", b"");
    assert!(!pool.store().watches().has_watches());
    let (one, other) = (Watcher::new(), Watcher::new());
    assert_eq!(
        one.add(&pool, b"/d", libc::IN_CREATE | libc::IN_CLOSE_WRITE),
        Ok(1)
    );
    assert_eq!(one.add(&pool, b"/d/f", libc::IN_ALL_EVENTS), Ok(2));
    assert_eq!(
        other.add(&pool, b"/d/f", libc::IN_MODIFY | libc::IN_ONESHOT),
        Ok(1)
    );
    let f = pool.open(b"/d/f", O_RDWR, 0).unwrap();
    write_all(&f, b"one", 0);
    write_all(&f, b"two", 0);
    f.close().unwrap();
    pool.put("/d/new", b"");
    pool.mkdir(b"/d/sub", 0o755).unwrap();
    let told = |wd, mask, name: &str| (wd, mask, name.to_owned());
    let of_dir = [
        told(1, libc::IN_CLOSE_WRITE, "f"),
        told(1, libc::IN_CREATE, "new"),
        told(1, libc::IN_CLOSE_WRITE, "new"),
        told(1, libc::IN_CREATE | libc::IN_ISDIR, "sub"),
    ];
    let of_file = [
        told(2, libc::IN_OPEN, ""),
        // Equal events in a row are merged into one.
        told(2, libc::IN_MODIFY, ""),
        told(2, libc::IN_CLOSE_WRITE, ""),
    ];
    let (dir, file): (Vec<_>, Vec<_>) = one.events(&pool).into_iter().partition(|e| e.0 == 1);
    assert_eq!(dir, of_dir);
    assert_eq!(file, of_file);
    let once = [told(1, libc::IN_MODIFY, ""), told(1, libc::IN_IGNORED, "")];
    assert_eq!(other.events(&pool), once);
    // The same object again, with another mask.
    assert_eq!(one.add(&pool, b"/d", libc::IN_DELETE), Ok(1));
    let also = libc::IN_MASK_ADD | libc::IN_ATTRIB;
    assert_eq!(one.add(&pool, b"/d/f", also), Ok(2));
    assert!(is(
        one.add(&pool, b"/d", libc::IN_MASK_CREATE | libc::IN_OPEN),
        Errno::EXIST
    ));
    pool.unlink(b"/d/f").unwrap();
    let gone = [
        told(2, libc::IN_ATTRIB, ""),
        told(2, libc::IN_DELETE_SELF, ""),
        told(2, libc::IN_IGNORED, ""),
        told(1, libc::IN_DELETE, "f"),
    ];
    assert_eq!(one.events(&pool), gone);
    pool.assert_whole();
}

#[test]
fn what_nobody_watches_any_more_is_swept_away() {
    let pool = TestPool::new("watches-sweep");
    pool.put("/f", b"");
    let long = "x".repeat(255);
    let (one, other) = (Watcher::new(), Watcher::new());
    one.add(&pool, b"/", libc::IN_CREATE).unwrap();
    one.add(&pool, b"/f", libc::IN_OPEN).unwrap();
    other.add(&pool, b"/f", libc::IN_OPEN).unwrap();
    pool.put(&format!("/{long}"), b"");
    assert_eq!(one.events(&pool), [(1, libc::IN_CREATE, long)]);
    let store = pool.store();
    store.watches().sweep_watches().unwrap();
    let both = left(&pool).len();
    drop(one);
    store.watches().sweep_watches().unwrap();
    assert!(store.watches().has_watches() && left(&pool).len() < both);
    drop(pool.open(b"/f", O_RDONLY, 0).unwrap());
    assert_eq!(other.events(&pool), [(1, libc::IN_OPEN, String::new())]);
    // Ends the watches of `other`.
    for (_, inode) in store.watches().watched_by(other.0) {
        store.watches().unwatch(inode);
    }
    assert_eq!(other.events(&pool), [(1, libc::IN_IGNORED, String::new())]);
    drop(other);
    store.watches().sweep_watches().unwrap();
    assert!(!store.watches().has_watches());
    assert_eq!(left(&pool), Vec::<String>::new());
    pool.assert_whole();
}
