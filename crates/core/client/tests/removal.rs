//! Removal of pools while another process still creates a part of them, as after a cancelled start.

use forebay_client::{CreateOptions, Pool};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Creates files in the pool's directory while it exists, for at most `time`.
fn makes_a_node(pool: &Path, time: Duration) {
    let end = Instant::now() + time;
    for n in 0.. {
        let node = pool.join("node-7");
        let made =
            std::fs::create_dir(&node).and_then(|()| std::fs::write(node.join("part"), b"x"));
        let also = std::fs::write(pool.join(format!("part-{n}")), b"x");
        if Instant::now() > end || (made.is_err() && also.is_err() && !pool.exists()) {
            return;
        }
    }
}

#[test]
fn a_pool_that_is_still_being_made_is_removed() {
    let home = Home(format!("/dev/shm/forebay-removal-{}", std::process::id()).into());
    // SAFETY: this is the program's only test, so no other thread uses the environment.
    unsafe { std::env::set_var("FOREBAY_HOME", &home.0) };
    let options = CreateOptions {
        name: "busy".into(),
        mount: "/fb".into(),
        media: vec!["memory:8M".parse().unwrap()],
        reserve: None,
        rules: Default::default(),
        origin: None,
    };
    let dir = home.0.join("busy");
    for round in 0..10 {
        drop(Pool::create(&options).unwrap());
        std::thread::scope(|s| {
            let made = s.spawn(|| makes_a_node(&dir, Duration::from_millis(200)));
            // Wait until the thread is at work.
            while !dir.join("part-9").exists() {
                std::thread::yield_now();
            }
            let removed = Pool::destroy("busy");
            assert!(removed.is_ok(), "round {round}: {removed:?}");
            made.join().unwrap();
        });
        assert!(!dir.exists(), "round {round}");
    }
}
