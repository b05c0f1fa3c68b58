//! Helpers shared by the tests in this directory.
#![allow(
    dead_code,
    reason = "each test that includes this file uses a part of it"
)]

mod dir;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod relay;

pub use dir::Dir;
use forebay_iov::backend::{Address, Backend, Object};
use forebay_iov::meta::{New, Scope, Store};
use forebay_iov::{Controls, Meta, Options, Predicate, Session, Workspace};
use std::path::PathBuf;

pub fn meta(pairs: &[(&str, &str)]) -> Meta {
    let own = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    own.collect()
}

pub fn options(backend: &str, pairs: &[(&str, &str)]) -> Options {
    Options {
        meta: meta(pairs),
        backend: Some(backend.into()),
        ..Options::default()
    }
}

/// Returns a record to be created.
pub fn new<'a>(name: &'a str, pairs: &[(&str, &str)]) -> New<'a> {
    New {
        name,
        meta: meta(pairs),
        backend: "memory",
        ..New::default()
    }
}

/// Returns the names of the records that a search finds.
pub fn names(store: &dyn Store, scope: Scope, text: &str) -> Vec<String> {
    let predicate = Predicate::parse(text).unwrap();
    let found = store.search(scope, &predicate, usize::MAX).unwrap();
    found.into_iter().map(|r| r.name).collect()
}

/// Returns a session with metadata in memory, a workspace in it, and the back ends to be tested.
pub fn in_memory(dir: &Dir) -> (Session, Workspace) {
    let session = Session::open("memory").unwrap();
    session.attach("scratch", "directory", dir.text()).unwrap();
    let workspace = Workspace::create(&session, "w", &Meta::new()).unwrap();
    (session, workspace)
}

/// Removes the pools that killed test processes have left.
fn remove_leftovers() {
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("forebay-verbs-test-");
        if pid.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A pool of one node in memory, removed when this is dropped.
pub struct TestPool {
    name: String,
}

static IN_USE: std::sync::Mutex<usize> = std::sync::Mutex::new(0);

fn home() -> PathBuf {
    PathBuf::from(format!(
        "/dev/shm/forebay-verbs-test-{}",
        std::process::id()
    ))
}

impl TestPool {
    pub fn new(name: &str) -> TestPool {
        TestPool::with_media(name, &["memory:64M"])
    }

    pub fn with_media(name: &str, media: &[&str]) -> TestPool {
        let mut in_use = IN_USE.lock().unwrap();
        if *in_use == 0 {
            remove_leftovers();
            std::fs::create_dir_all(home()).unwrap();
            std::fs::set_permissions(home(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
                .unwrap();
            // SAFETY: every reader of the environment in this process holds IN_USE, or runs in a
            // test that has called this before.
            unsafe { std::env::set_var("FOREBAY_HOME", home()) };
        }
        *in_use += 1;
        let made = forebay_client::Pool::create(&forebay_client::CreateOptions {
            name: name.into(),
            mount: "/fb".into(),
            media: media.iter().map(|m| m.parse().unwrap()).collect(),
            reserve: None,
            rules: Default::default(),
            origin: None,
        });
        drop(made.unwrap());
        TestPool { name: name.into() }
    }

    pub fn place(&self) -> String {
        format!("pool:{}", self.name)
    }

    pub fn session(&self) -> Session {
        Session::open(&self.place()).unwrap()
    }

    /// Asserts that the pool's store is consistent. Nothing else may have the pool open.
    pub fn assert_whole(&self) {
        let pool = forebay_client::Pool::open(&self.name).unwrap();
        // No keeper runs in tests, so this cleans up after killed processes.
        pool.store().recovery().reap().unwrap();
        let findings = forebay_store::fsck::check(pool.store()).unwrap();
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        let _ = forebay_client::Pool::destroy(&self.name);
        let mut in_use = IN_USE.lock().unwrap_or_else(|e| e.into_inner());
        *in_use -= 1;
        if *in_use == 0 {
            let _ = std::fs::remove_dir_all(home());
        }
    }
}

/// A back end that kills the process on creating and deleting.
pub struct Stuck;

impl Stuck {
    fn kill() -> ! {
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
        panic!("still here");
    }
}

impl Backend for Stuck {
    fn kind(&self) -> &str {
        "stuck"
    }
    fn outlives_process(&self) -> bool {
        true
    }
    fn supports(&self, _: &Controls) -> forebay_iov::Result<()> {
        Ok(())
    }
    fn create(&self, _: &Address, _: &Controls) -> forebay_iov::Result<Box<dyn Object>> {
        Stuck::kill()
    }
    fn open(&self, _: &Address, _: &Controls) -> forebay_iov::Result<Box<dyn Object>> {
        Stuck::kill()
    }
    fn delete(&self, _: &Address) -> forebay_iov::Result<()> {
        Stuck::kill()
    }
}
