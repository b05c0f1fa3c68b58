//! Test that no thread of the network wakes up while there is no work. This file has no other test,
//! since the test counts the context switches of the process's threads.

mod support;

use forebay_net::{PoolKey, Request};
use std::collections::BTreeMap;
use std::time::Duration;
use support::*;

/// Returns the number of context switches of each of the network's threads.
fn switches() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !name.starts_with("fb-") {
            continue;
        }
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let count = |line: &str| -> Option<u64> {
            let (name, value) = line.split_once(':')?;
            (name.ends_with("_ctxt_switches")).then(|| value.trim().parse().ok())?
        };
        let id = task.file_name().into_string().unwrap();
        all.insert(
            format!("{} {id}", name.trim()),
            status.lines().filter_map(count).sum(),
        );
    }
    all
}

#[test]
fn idle_nodes_use_no_processor() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let (a, b) = (node(1, &key), node(2, &key));
        let c = a.connect(b.peer()).unwrap();
        for _ in 0..100 {
            let request = Request {
                kind: ECHO,
                ..Request::default()
            };
            c.call(request, soon(200)).unwrap();
        }
        // The timer of the first deadline fires once more.
        std::thread::sleep(Duration::from_millis(500));
        let before = switches();
        assert_eq!(before.len(), 12, "{before:?}");
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(switches(), before);
        assert!(c.ended().is_none());
    });
}
