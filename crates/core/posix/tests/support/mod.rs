//! Tools that the tests of this folder share: pools below a separate FOREBAY_HOME in shared memory,
//! which is removed at the end in any case; a time limit; worker processes.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test that includes this file uses a part of it"
)]

pub mod declare;
pub mod nodes;
pub mod operations;

use forebay_client::controls::Rules;
use forebay_client::{CreateOptions, Pool};
use forebay_posix::{Errno, Fail, File, FileToMake, Fs, ObjectId, RenameMode};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

pub use libc::{O_APPEND, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

const HOMES: &str = "/dev/shm";
const PREFIX: &str = "forebay-posix-test-";

/// Number of pools in use. The home directory is removed with the last one.
static IN_USE: Mutex<usize> = Mutex::new(0);

fn home() -> PathBuf {
    Path::new(HOMES).join(format!("{PREFIX}{}", std::process::id()))
}

/// Removes what killed test processes have left.
fn remove_leftovers() {
    for e in std::fs::read_dir(HOMES).into_iter().flatten().flatten() {
        let name = e.file_name().to_string_lossy().into_owned();
        if let Some(pid) = name.strip_prefix(PREFIX)
            && !Path::new("/proc").join(pid).exists()
        {
            let _ = std::fs::remove_dir_all(e.path());
        }
    }
}

/// The pool of one test, with a view on it.
pub struct TestPool {
    fs: Option<Fs>,
    name: String,
    _limit: Limit,
}

impl std::ops::Deref for TestPool {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        self.fs.as_ref().expect("only drop takes it")
    }
}

impl TestPool {
    /// A pool with these media; `DIR` in their descriptions stands for a directory that is made for
    /// the pool.
    pub fn with(name: &str, media: &[&str]) -> TestPool {
        TestPool::limited(name, media, 120)
    }

    /// As [`TestPool::with`], for a test that may take up to `seconds`.
    pub fn limited(name: &str, media: &[&str], seconds: u64) -> TestPool {
        TestPool::ruled(name, media, "", seconds)
    }

    /// As [`TestPool::limited`], with these rules.
    pub fn ruled(name: &str, media: &[&str], rules: &str, seconds: u64) -> TestPool {
        let mut in_use = IN_USE.lock().unwrap_or_else(|e| e.into_inner());
        if *in_use == 0 {
            remove_leftovers();
            // SAFETY: each thread that reads the environment holds IN_USE, or runs a test that has
            // set the variable before.
            unsafe { std::env::set_var("FOREBAY_HOME", home()) };
        }
        std::fs::create_dir_all(home().join(format!("{name}.files"))).unwrap();
        *in_use += 1;
        let dir = home().join(format!("{name}.files"));
        let media = media
            .iter()
            .map(|m| m.replace("DIR", dir.to_str().unwrap()).parse().unwrap())
            .collect();
        set_private(&home());
        let o = CreateOptions {
            name: name.into(),
            mount: "/fb".into(),
            media,
            reserve: None,
            rules: Rules::parse(rules, "/fb").unwrap(),
            origin: None,
        };
        let pool = Pool::create(&o).unwrap();
        let fs = Some(Fs::new(Arc::new(pool)));
        TestPool {
            fs,
            name: name.into(),
            _limit: Limit::new(name, seconds),
        }
    }

    /// As [`TestPool::limited`], with checksums for all files.
    pub fn summed(name: &str, media: &[&str], seconds: u64) -> TestPool {
        let rules = "[[rule]]\npath = \"/**\"\nintegrity = \"checksum\"\n";
        TestPool::ruled(name, media, rules, seconds)
    }

    pub fn new(name: &str) -> TestPool {
        TestPool::with(name, &["memory:64M"])
    }

    /// Bytes in use in all media.
    pub fn used(&self) -> u64 {
        self.pool().usage().iter().map(|u| u.used).sum()
    }

    /// Fails unless the checker finds no damage in the store.
    pub fn assert_whole(&self) {
        let findings = forebay_store::fsck::check(self.store()).unwrap();
        assert!(findings.is_empty(), "the store is damaged: {findings:#?}");
    }

    /// As [`TestPool::assert_whole`], while other processes use the store and may die.
    pub fn assert_whole_online(&self) {
        let report = forebay_store::fsck::inspect(self.store()).unwrap();
        // A process that has died and wasn't reaped yet isn't damage of the store.
        let dead = report.findings.iter().any(|f| f.what.contains("is dead"));
        assert!(
            dead || report.is_clean(),
            "the store is damaged: {:#?}",
            report.findings
        );
    }

    /// A process that runs `role` of this test binary's `worker` on the pool.
    pub fn worker(&self, role: &str, arguments: &str) -> Worker {
        self.worker_for(role, arguments, 40)
    }

    /// As [`TestPool::worker`], with a limit of this many seconds.
    pub fn worker_for(&self, role: &str, arguments: &str, seconds: u64) -> Worker {
        let child = worker_command(self.pool(), role, arguments)
            .env("FOREBAY_TEST_LIMIT", seconds.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Worker {
            child,
            role: role.into(),
        }
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        let f = self
            .open(path.as_bytes(), O_CREAT | O_TRUNC | O_WRONLY, 0o644)
            .unwrap();
        write_all(&f, bytes, 0);
        f.close().unwrap();
    }

    pub fn get(&self, path: &str) -> Vec<u8> {
        read_all(&self.open(path.as_bytes(), O_RDONLY, 0).unwrap())
    }
}

fn set_private(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
}

impl Drop for TestPool {
    fn drop(&mut self) {
        self.fs = None;
        let mut in_use = IN_USE.lock().unwrap_or_else(|e| e.into_inner());
        let _ = Pool::destroy(&self.name);
        let _ = std::fs::remove_dir_all(home().join(format!("{}.files", self.name)));
        *in_use -= 1;
        if *in_use == 0 {
            let _ = std::fs::remove_dir_all(home());
        }
    }
}

/// Ends the whole process if a test doesn't end in time.
pub struct Limit(mpsc::Sender<()>);

impl Limit {
    pub fn new(what: &str, seconds: u64) -> Limit {
        let (sender, receiver) = mpsc::channel();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if receiver.recv_timeout(Duration::from_secs(seconds))
                == Err(mpsc::RecvTimeoutError::Timeout)
            {
                eprintln!("{what}: not done after {seconds} s");
                std::process::abort();
            }
        });
        Limit(sender)
    }
}

/// A command that runs this test binary again, as `role` of its `worker` on the pool.
pub fn worker_command(pool: &Pool, role: &str, arguments: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "worker",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("FOREBAY_TEST_ROLE", role)
        .env("FOREBAY_TEST_ARGUMENTS", arguments)
        .env("FOREBAY_TEST_POOL", pool.dir())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    command
}

/// A worker process. Killed when dropped.
pub struct Worker {
    child: Child,
    role: String,
}

impl Worker {
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_done(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the worker's end. True if it was killed, false if it succeeded.
    pub fn finish_killed(mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let status = self.child.wait().unwrap();
        let killed = status.signal() == Some(libc::SIGKILL);
        assert!(killed || status.success(), "worker {}: {status}", self.role);
        killed
    }

    /// Waits for the worker's end, and returns the lines that it has printed (those after `> `).
    pub fn finish(mut self) -> Vec<String> {
        use std::io::Read;
        let mut out = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        let status = self.child.wait().unwrap();
        assert!(
            status.success(),
            "worker {} failed: {status}\n{out}",
            self.role
        );
        out.lines()
            .filter_map(|l| Some(l.split_once("> ")?.1.to_owned()))
            .collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns, in a worker, its role, its arguments and a view on the pool; None if a user started the
/// test.
pub fn worker_role() -> Option<(String, Vec<String>, Fs)> {
    let role = std::env::var("FOREBAY_TEST_ROLE").ok()?;
    let limit = std::env::var("FOREBAY_TEST_LIMIT")
        .ok()
        .and_then(|l| l.parse().ok());
    // SAFETY: the calls take no pointers. The worker dies with the test that started it, or when
    // its time is over.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(limit.unwrap_or(40));
    }
    let arguments = std::env::var("FOREBAY_TEST_ARGUMENTS").unwrap();
    let dir = std::env::var("FOREBAY_TEST_POOL").unwrap();
    let fs = Fs::new(Arc::new(Pool::open_dir(Path::new(&dir)).unwrap()));
    Some((
        role,
        arguments.split_whitespace().map(str::to_owned).collect(),
        fs,
    ))
}

/// Waits until `done` returns true, at most ten seconds.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// renameat2(2) with RENAME_EXCHANGE.
pub fn exchange(fs: &Fs, a: &[u8], b: &[u8]) -> forebay_posix::Result<()> {
    rename_with(fs, a, b, RenameMode::Exchange)
}

/// renameat2(2).
pub fn rename_with(fs: &Fs, a: &[u8], b: &[u8], mode: RenameMode) -> forebay_posix::Result<()> {
    let root = ObjectId::ROOT;
    match fs.rename_at((root, a), (root, b), mode) {
        Err(Fail::Errno(e)) => Err(e),
        other => {
            other.expect("nothing leads outside");
            Ok(())
        }
    }
}

/// Makes files of a directory in one batch, each with this attribute. Returns a result for each.
pub fn make_together<N: AsRef<[u8]>>(
    fs: &Fs,
    dir: &[u8],
    names: &[N],
    (key, value): (&[u8], &[u8]),
) -> Result<Vec<Result<(), Errno>>, Errno> {
    let dir = ObjectId(fs.stat(dir, true)?.ino);
    let names: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
    let attributes = [(key.to_vec(), value.to_vec())];
    let ids = fs.draw_files(dir, &names)?;
    let files: Vec<FileToMake<'_>> = (ids.into_iter().zip(&names))
        .map(|(id, name)| FileToMake {
            id,
            name,
            attributes: &attributes,
            own_controls: Default::default(),
        })
        .collect();
    fs.make_files(dir, &files, 0o600)
}

pub fn write_all(f: &File<'_>, bytes: &[u8], offset: u64) {
    let mut done = 0;
    while done < bytes.len() {
        let n = f.write_at(&bytes[done..], offset + done as u64).unwrap();
        assert!(n > 0);
        done += n;
    }
}

pub fn read_all(f: &File<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; f.size() as usize];
    assert_eq!(f.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert_eq!(f.read_at(&mut [0], bytes.len() as u64), Ok(0));
    bytes
}

/// Bytes that depend on `seed` and on their offset.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i * 31 + (i >> 8) * 7 + seed * 101) % 251) as u8 + 1)
        .collect()
}

/// A small random number generator (xorshift64*), the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}

pub fn is<T>(result: forebay_posix::Result<T>, e: Errno) -> bool {
    matches!(result, Err(got) if got == e)
}
