//! Sets up a place for one test: its own FOREBAY_HOME, its own files, and time limits.

#![allow(
    dead_code,
    reason = "each test that includes this file uses a part of it"
)]

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The program under test.
pub const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");
/// Time limit of a command, longer than any should take.
const LIMIT: Duration = Duration::from_secs(120);

pub struct Place {
    /// The test's FOREBAY_HOME.
    pub home: PathBuf,
    /// Directory of the test's files outside of pools.
    pub files: PathBuf,
}

/// The exit code and output of a finished command.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Panics with the whole output, unless the exit code is `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Said {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.out, self.err
        );
        self
    }

    /// Panics unless stderr has all of `words`.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Said {
        for word in words {
            assert!(self.err.contains(word), "'{word}' is not in: {}", self.err);
        }
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e} in: {}", self.out))
    }
}

/// Waits for `child`, at most `LIMIT`. Returns its output.
pub fn finish(mut child: Child) -> Said {
    use std::io::Read;
    let mut pipes = (child.stdout.take(), child.stderr.take());
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = reader(pipes.0.take().map(|p| Box::new(p) as _));
    let err = reader(pipes.1.take().map(|p| Box::new(p) as _));
    let until = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > until => {
                child.kill().unwrap();
                panic!(
                    "took longer than {LIMIT:?}; stderr: {}",
                    err.join().unwrap()
                );
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let code = status.code().unwrap_or_else(|| {
        128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0)
    });
    Said {
        code,
        out: out.join().unwrap(),
        err: err.join().unwrap(),
    }
}

impl Place {
    pub fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = format!(
            "forebay-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let home = Path::new("/dev/shm").join(&id);
        let files = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&id);
        for dir in [&home, &files] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).unwrap();
        Place { home, files }
    }

    /// Returns the path of a file outside of pools.
    pub fn at(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// Returns the path of a file outside of pools as text.
    pub fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    /// Returns the content of a file of a pool.
    pub fn content(&self, path: &str, pool: &str) -> String {
        let words = ["stage", "out", path, "content", "--pool", pool];
        self.forebay(&words).expect(0);
        let content = std::fs::read_to_string(self.at("content")).unwrap();
        std::fs::remove_file(self.at("content")).unwrap();
        content
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FOREBAY);
        command
            .args(args)
            .current_dir(&self.files)
            .env("FOREBAY_HOME", &self.home)
            .env("FOREBAY", FOREBAY)
            .env_remove("FOREBAY_POOL")
            .env_remove("LD_PRELOAD")
            .env("FOREBAY_PRELOAD", some_library())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    /// Runs `forebay` with these arguments.
    pub fn forebay(&self, args: &[&str]) -> Said {
        finish(self.start(args))
    }

    /// Starts the default pool.
    #[track_caller]
    pub fn up(&self, media: &str) {
        self.forebay(&["up", "--media", media]).expect(0);
    }

    /// Returns the process id of the default pool's keeper.
    pub fn keeper(&self) -> u32 {
        let status = self.forebay(&["status", "--json"]).expect(0).json();
        status["keeper"].as_u64().expect("a keeper") as u32
    }

    /// Kills the keeper, and waits until it is gone.
    pub fn kill_keeper(&self) {
        self.end_keeper(libc::SIGKILL);
    }

    /// Sends the keeper a signal that ends it, and waits until it is gone.
    pub fn end_keeper(&self, signal: i32) {
        kill(self.keeper(), signal);
        let until = Instant::now() + LIMIT;
        while self.forebay(&["pools"]).out.contains("running") {
            assert!(Instant::now() < until, "the keeper lives on");
        }
    }

    /// Returns paths and sizes of the files in the pool, without leftovers of interrupted staging.
    pub fn pool_files(&self, root: &str) -> Vec<(String, u64)> {
        let list = self
            .forebay(&["ls", "-R", "-a", "--json", root])
            .expect(0)
            .json();
        let mut files: Vec<(String, u64)> = list
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["type"] == "file")
            .map(|e| {
                (
                    e["path"].as_str().unwrap().to_owned(),
                    e["size"].as_u64().unwrap(),
                )
            })
            .filter(|(path, _)| !path.contains("/.forebay-part-"))
            .collect();
        files.sort();
        files
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.home)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let _ = self
                .command(&["down", "--force", "--pool"])
                .arg(name)
                .output();
        }
        for dir in [&self.home, &self.files] {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill takes no pointer.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Returns a library that does nothing when preloaded: the C library itself. These tests are about
/// the command line; other tests run programs in pools.
fn some_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|l| l.contains("/libc.so") || l.contains("/libc-"))
        .unwrap();
    PathBuf::from(&line[line.find('/').unwrap()..])
}

/// Returns `len` bytes that don't repeat soon, different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Creates a tree with everything that staging preserves. Returns whether it has extended
/// attributes.
pub fn make_tree(root: &Path) -> bool {
    use std::ffi::OsStr;
    use std::fs::{self, File, set_permissions};
    let mode = |path: &Path, mode| set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    fs::create_dir_all(root.join("deep/er/still")).unwrap();
    fs::create_dir(root.join("empty-directory")).unwrap();
    File::create(root.join("empty")).unwrap();
    for (i, len) in [1, 100, 4095, 4096, 4097, 70_000, 1 << 20, 3_000_001]
        .into_iter()
        .enumerate()
    {
        fs::write(root.join(format!("deep/er/{len}")), noise(i as u64, len)).unwrap();
    }
    let odd: [&[u8]; 6] = [
        b"sp ace",
        b"new\nline",
        b"\xff\xfe not text",
        b"-dash",
        b"*?[x]",
        "größe-文件".as_bytes(),
    ];
    for name in odd {
        fs::write(root.join("deep").join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::write(root.join("x".repeat(255)), b"a long name").unwrap();
    fs::write(root.join("read-only"), b"r").unwrap();
    mode(&root.join("read-only"), 0o400);
    fs::write(root.join("program"), b"#!/bin/sh\n").unwrap();
    mode(&root.join("program"), 0o755);
    fs::write(root.join("deep/hard-1"), noise(9, 10_000)).unwrap();
    for link in ["deep/hard-2", "deep/er/still/hard-3"] {
        fs::hard_link(root.join("deep/hard-1"), root.join(link)).unwrap();
    }
    std::os::unix::fs::symlink("er/4096", root.join("deep/link")).unwrap();
    std::os::unix::fs::symlink("/no/such\nplace", root.join("dangling")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 5 << 20).unwrap();
    sparse.write_all_at(b"near the end", 40 << 20).unwrap();
    sparse.set_len((48 << 20) + 7).unwrap();
    File::create(root.join("all-hole"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    // SAFETY: the strings are terminated.
    let has_xattrs = unsafe {
        let path = std::ffi::CString::new(root.join("program").as_os_str().as_bytes()).unwrap();
        let value = b"some\0value";
        libc::setxattr(
            path.as_ptr(),
            c"user.forebay".as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    } == 0;
    mode(&root.join("deep/er/still"), 0o750);
    mode(&root.join("empty-directory"), 0o1777);
    // Sets unusual times: before 1970, and with nanoseconds. The directories come last, since
    // changes in them set their times.
    for (path, sec, ns) in [
        ("deep/er/1", 1_234_567_890, 123_456_789),
        ("deep/er/100", -86_400, 5),
        ("dangling", 1_000_000_000, 0),
        ("deep/er", 1_500_000_000, 999_999_999),
        ("deep", 1_400_000_000, 1),
    ] {
        set_mtime(&root.join(path), sec, ns);
    }
    has_xattrs
}

pub fn set_mtime(path: &Path, sec: i64, ns: i64) {
    let c = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let time = libc::timespec {
        tv_sec: sec,
        tv_nsec: ns,
    };
    // SAFETY: the pointers refer to memory that outlives the call.
    let rc = unsafe {
        libc::utimensat(
            libc::AT_FDCWD,
            c.as_ptr(),
            [time, time].as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    assert_eq!(rc, 0);
}

/// Describes everything about a tree that staging preserves, one line per object, in order. The
/// root itself is left out.
pub fn manifest(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_owned()];
    let mut inodes: std::collections::BTreeMap<u64, Vec<PathBuf>> = Default::default();
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let m = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            let content = if m.is_dir() {
                pending.push(path.clone());
                "directory".into()
            } else if m.is_symlink() {
                format!("-> {:?}", std::fs::read_link(&path).unwrap())
            } else {
                inodes.entry(m.ino()).or_default().push(name.clone());
                let bytes = std::fs::read(&path).unwrap();
                let sum = bytes.iter().fold(0u64, |h, &b| {
                    (h ^ u64::from(b))
                        .wrapping_mul(0x0100_0000_01b3)
                        .rotate_left(5)
                });
                format!("{} bytes {sum:x}", bytes.len())
            };
            let xattr = xattr(&path);
            let links = if m.is_dir() { 0 } else { m.nlink() };
            lines.push(format!(
                "{name:?} {:o} {links} {}:{} {}.{:09} {content} {xattr:?}",
                m.mode(),
                m.uid(),
                m.gid(),
                m.mtime(),
                m.mtime_nsec(),
            ));
        }
    }
    for mut group in inodes.into_values().filter(|g| g.len() > 1) {
        group.sort();
        lines.push(format!("one file: {group:?}"));
    }
    lines.sort();
    lines
}

fn xattr(path: &Path) -> Option<Vec<u8>> {
    let c = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = vec![0; 256];
    // SAFETY: the buffer has the length that is passed.
    let n = unsafe {
        libc::lgetxattr(
            c.as_ptr(),
            c"user.forebay".as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    value.truncate(usize::try_from(n).ok()?);
    Some(value)
}
