//! Tests of the registry with a real etcd: one process at a time changes a campaign, and a process
//! that has lost its lock writes nothing.

#[path = "../../../faces/verbs/tests/support/dir.rs"]
mod dir;
#[path = "../../../faces/verbs/tests/support/etcd.rs"]
#[expect(dead_code, reason = "the tests of verbs use the rest")]
mod etcd;

use dir::Dir;
use etcd::{TestEtcd, encoded};
use forebay_campaign::record::Campaign;
use forebay_campaign::registry::{EtcdPlace, LOCK_TIMEOUT, Registry, RegistryPlace};
use std::time::{Duration, Instant};

fn registry(etcd: &TestEtcd, owner: &str) -> Registry {
    let place = EtcdPlace::parse(&format!("http://{}/site", etcd.endpoint())).unwrap();
    Registry::open(&RegistryPlace::Etcd(place), owner).unwrap()
}

#[test]
fn one_process_at_a_time_and_users_apart() {
    let etcd = TestEtcd::new();
    let (one, two) = (registry(&etcd, "ann"), registry(&etcd, "ann"));
    let held = one.add(Campaign::new("c", "ann")).unwrap();
    let busy = two.hold("c", Duration::ZERO).unwrap_err();
    assert!(busy.contains("another process works"), "{busy}");
    drop(held);
    let mut held = two.hold("c", Duration::ZERO).unwrap();
    held.campaign.note("seen");
    held.save().unwrap();
    held.campaign.note("again");
    held.save().unwrap();
    drop(held);
    assert_eq!(one.get("c").unwrap().events.len(), 2);
    assert!(
        one.add(Campaign::new("c", "ann"))
            .unwrap_err()
            .contains("there is a campaign")
    );
    let other = registry(&etcd, "bob");
    assert!(other.get("c").unwrap_err().contains("no campaign 'c'"));
    drop(other.add(Campaign::new("c", "bob")).unwrap());
    for n in 0..450 {
        let record = serde_json::to_vec(&Campaign::new(&format!("n{n}"), "ann")).unwrap();
        let (key, value) = (
            encoded(format!("/site/ann/records/n{n}").as_bytes()),
            encoded(&record),
        );
        etcd.ask(
            "/v3/kv/put",
            &format!(r#"{{"key": "{key}", "value": "{value}"}}"#),
        );
    }
    let key = encoded(b"/site/ann/records/bad");
    etcd.ask(
        "/v3/kv/put",
        &format!(r#"{{"key": "{key}", "value": "e30="}}"#),
    );
    let (all, bad) = one.list().unwrap();
    assert_eq!((all.len(), bad.len()), (451, 1), "{bad:?}");
    assert!(bad[0].contains("/site/ann/records/bad"));
    one.hold("c", Duration::ZERO).unwrap().forget().unwrap();
    assert!(one.get("c").is_err() && other.get("c").is_ok());
    assert!(etcd.keys().iter().all(|key| !key.contains("/locks/")));
}

#[test]
fn who_has_lost_the_lock_writes_nothing() {
    let etcd = TestEtcd::new();
    let (one, two) = (registry(&etcd, "ann"), registry(&etcd, "ann"));
    drop(one.add(Campaign::new("c", "ann")).unwrap());
    let mut late = one.hold("c", Duration::ZERO).unwrap();
    // Removing the key has the effect of an expired lease.
    let lock = encoded(b"/site/ann/locks/c");
    etcd.ask("/v3/kv/deleterange", &format!(r#"{{"key": "{lock}"}}"#));
    late.campaign.note("late");
    let lost = late.save().unwrap_err();
    assert!(lost.contains("lock of the campaign is lost"), "{lost}");
    let mut next = two.hold("c", Duration::ZERO).unwrap();
    next.campaign.note("next");
    next.save().unwrap();
    assert!(late.save().unwrap_err().contains("is lost"));
    assert!(late.forget().unwrap_err().contains("is lost"));
    // Dropping the first lock doesn't release the second one.
    next.campaign.note("more");
    next.save().unwrap();
    let events: Vec<String> = one
        .get("c")
        .unwrap()
        .events
        .into_iter()
        .map(|e| e.what)
        .collect();
    assert_eq!(events, ["next", "more"]);
}

#[test]
fn an_etcd_that_is_restarted_loses_nothing() {
    let mut etcd = TestEtcd::new();
    let (one, two) = (registry(&etcd, "ann"), registry(&etcd, "ann"));
    drop(one.add(Campaign::new("c", "ann")).unwrap());
    let mut held = one.hold("c", Duration::ZERO).unwrap();
    etcd.kill();
    let saver = std::thread::spawn(move || {
        held.campaign.note("while it was away");
        held.save().map(|()| held)
    });
    std::thread::sleep(Duration::from_secs(3));
    assert!(etcd.start());
    let held = saver.join().unwrap().unwrap();
    // The lock is still held, because its lease is renewed.
    std::thread::sleep(Duration::from_secs(9));
    assert!(
        two.hold("c", Duration::ZERO)
            .unwrap_err()
            .contains("another process works")
    );
    held.save().unwrap();
    drop(held);
    assert_eq!(two.get("c").unwrap().events.len(), 1);
    drop(two.hold("c", LOCK_TIMEOUT).unwrap());
    etcd.kill();
    let began = Instant::now();
    let why = two.get("c").unwrap_err();
    assert!(why.contains("no answer from etcd"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(40));
}
