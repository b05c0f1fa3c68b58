//! Tests that every metadata store must pass.

mod support;

use forebay_fuzz::Random;
#[cfg(feature = "etcd")]
use forebay_iov::Session;
use forebay_iov::meta::{Memory, New, Scope, Store};
use forebay_iov::{Errno, Key, Meta, Predicate, Record, Uuid};
use std::sync::Barrier;
use support::meta;
#[cfg(feature = "etcd")]
use support::{Dir, etcd::TestEtcd};

fn create(store: &dyn Store, scope: Scope, name: &str, pairs: &[(&str, &str)]) -> Record {
    let new = New {
        name,
        meta: meta(pairs),
        backend: "memory",
        ..New::default()
    };
    store.create(scope, &new, &mut |_| Ok(())).unwrap()
}

fn names(found: Vec<Record>) -> Vec<String> {
    found.into_iter().map(|r| r.name).collect()
}

fn search(store: &dyn Store, scope: Scope, text: &str) -> Vec<String> {
    let predicate = Predicate::parse(text).unwrap();
    names(store.search(scope, &predicate, usize::MAX).unwrap())
}

fn change(key: &str, value: Option<&str>) -> (String, Option<String>) {
    (key.into(), value.map(str::to_owned))
}

/// A function that makes a separate workspace for each test.
type Fresh<'a> = &'a dyn Fn(&str) -> Scope;

fn check(store: &dyn Store) {
    let fresh = |name: &str| Scope::In(create(store, Scope::Root, name, &[]).uuid);
    records_come_and_go(store, &fresh);
    the_call_before_creation_can_refuse(store, &fresh);
    metadata_changes(store, &fresh);
    searches_find_what_holds(store, &fresh);
    random_changes_and_searches(store, &fresh);
    one_of_many_creates_a_name(store, &fresh);
    a_workspace_goes_or_gets_a_collection(store, &fresh);
    many_are_created_together(store, &fresh);
    records_with_much_metadata(store, &fresh);
}

/// Of two changes that exclude each other, one is refused.
fn a_workspace_goes_or_gets_a_collection(store: &dyn Store, fresh: Fresh<'_>) {
    for round in 0..40 {
        let scope = fresh(&format!("goes {round}"));
        let Scope::In(workspace) = scope else {
            unreachable!()
        };
        let begin = Barrier::new(2);
        let (made, gone) = std::thread::scope(|threads| {
            let make = threads.spawn(|| {
                begin.wait();
                let new = New {
                    name: "c",
                    backend: "memory",
                    ..New::default()
                };
                store.create(scope, &new, &mut |_| Ok(()))
            });
            begin.wait();
            let gone = store.remove(Scope::Root, workspace);
            (make.join().unwrap(), gone)
        });
        match (made, gone) {
            (Ok(made), Err(e)) => {
                assert_eq!(e.errno(), Errno::NOTEMPTY, "{e}");
                assert_eq!(store.find(scope, Key::Name("c")).unwrap(), made);
            }
            (Err(e), Ok(())) => assert_eq!(e.errno(), Errno::NOENT, "{e}"),
            both => panic!("{both:?}"),
        }
    }
}

fn many_are_created_together(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("together");
    create(store, scope, "n7", &[]);
    let names: Vec<String> = (0..200).map(|n| format!("n{}", n % 150)).collect();
    let new = |name| New {
        name,
        meta: meta(&[("k", name)]),
        backend: "memory",
        ..New::default()
    };
    let all: Vec<New<'_>> = names.iter().map(|name| new(name)).collect();
    let mut seen = Vec::new();
    let made = store.create_all(scope, &all, &mut |i, record| match i {
        9 => Err(forebay_iov::Error::new(Errno::NOSPC, "no")),
        _ => {
            seen.push((i, record.uuid));
            Ok(())
        }
    });
    assert_eq!(made.len(), 200);
    for (i, made) in made.iter().enumerate() {
        match made {
            Ok(record) => {
                assert!(i < 150 || i == 159);
                assert_eq!((&record.name, &record.meta), (&names[i], &all[i].meta));
                assert_eq!(&store.find(scope, Key::Name(&names[i])).unwrap(), record);
                assert!(seen.contains(&(i, record.uuid)));
            }
            Err(e) if i == 9 => assert_eq!(e.errno(), Errno::NOSPC),
            Err(e) => {
                assert!(i >= 150 || i == 7);
                assert_eq!(e.errno(), Errno::EXIST, "{e}");
            }
        }
    }
    assert_eq!(search(store, scope, "").len(), 150);
    assert_eq!(search(store, scope, "k = \"n149\""), ["n149"]);
    let nowhere = Scope::In(Uuid::random().unwrap());
    let made = store.create_all(nowhere, &all[..3], &mut |_, _| Ok(()));
    for made in made {
        assert_eq!(made.unwrap_err().errno(), Errno::NOENT);
    }
    many_are_found_and_removed_together(store, scope, nowhere);
}

/// Uses the records n0 to n149 in `scope`.
fn many_are_found_and_removed_together(store: &dyn Store, scope: Scope, nowhere: Scope) {
    let uuid = store.find(scope, Key::Name("n3")).unwrap().uuid;
    let unknown = Uuid::random().unwrap();
    let keys = [
        Key::Name("n1"),
        Key::Name("nothing"),
        Key::Uuid(uuid),
        Key::Name("a/b"),
        Key::Uuid(unknown),
        Key::Name("n2"),
    ];
    let found = store.find_all(scope, &keys);
    let names: Vec<Result<&str, Errno>> = found
        .iter()
        .map(|r| r.as_ref().map(|r| &*r.name).map_err(|e| e.errno()))
        .collect();
    let absent = Err(Errno::NOENT);
    assert_eq!(
        names,
        [Ok("n1"), absent, Ok("n3"), absent, absent, Ok("n2")]
    );
    for found in store.find_all(nowhere, &keys) {
        assert_eq!(found.unwrap_err().errno(), Errno::NOENT);
    }
    let all = store.search(scope, &Predicate::everything(), 999).unwrap();
    assert_eq!(all.len(), 150);
    for n in ["n5", "n70"] {
        let gone = all.iter().find(|r| r.name == n).unwrap();
        store.remove(scope, gone.uuid).unwrap();
    }
    // A new collection with the name of a removed one is another collection.
    create(store, scope, "n5", &[("k", "again")]);
    let twice = [&all[..], &all[..1]].concat();
    let removed = store.remove_all(scope, &twice);
    assert_eq!(removed.len(), 151);
    for (i, (removed, record)) in removed.iter().zip(&twice).enumerate() {
        match removed {
            Ok(()) => assert!(record.name != "n5" && record.name != "n70" && i < 150),
            Err(e) => {
                assert!(record.name == "n5" || record.name == "n70" || i == 150);
                assert_eq!(e.errno(), Errno::NOENT, "{e}");
            }
        }
    }
    assert_eq!(search(store, scope, ""), ["n5"]);
    assert_eq!(search(store, scope, "k = \"again\""), ["n5"]);
    assert_eq!(search(store, scope, "k = \"n1\""), [""; 0]);
}

fn records_with_much_metadata(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("much");
    let keys: Vec<String> = (0..300).map(|n| format!("key {n}")).collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|k| (k.as_str(), "1")).collect();
    let much = create(store, scope, "much", &pairs).uuid;
    let found = |text: &str| search(store, scope, text);
    assert_eq!(found("`key 0` = 1 and `key 299` = 1"), ["much"]);
    let changes: Vec<_> = keys.iter().map(|k| change(k, Some("2"))).collect();
    let before = store.update(scope, much, &changes).unwrap();
    assert_eq!(before, meta(&pairs));
    for n in [0, 99, 150, 299] {
        assert_eq!(found(&format!("`key {n}` = 2")), ["much"]);
        assert_eq!(found(&format!("`key {n}` = 1")), [""; 0]);
    }
    let changes: Vec<_> = keys.iter().map(|k| change(k, None)).collect();
    store.update(scope, much, &changes[1..]).unwrap();
    assert_eq!(found("exists `key 0`"), ["much"]);
    assert_eq!(found("exists `key 1` or exists `key 299`"), [""; 0]);
    store.update(scope, much, &changes).unwrap();
    store.remove(scope, much).unwrap();
    assert_eq!(found(""), [""; 0]);
}

fn records_come_and_go(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("comes");
    let a = create(store, scope, "a", &[("k", "v")]);
    let b = create(store, scope, "b", &[]);
    assert_ne!(a.uuid, b.uuid);
    assert_eq!((a.name.as_str(), a.backend.as_str()), ("a", "memory"));
    assert_eq!(store.find(scope, Key::Name("a")).unwrap(), a);
    assert_eq!(store.find(scope, Key::Uuid(b.uuid)).unwrap(), b);
    let again = store.create(
        scope,
        &New {
            name: "a",
            backend: "memory",
            ..New::default()
        },
        &mut |_| Ok(()),
    );
    assert_eq!(again.unwrap_err().errno(), Errno::EXIST);
    // A collection of the same name in another workspace is another collection.
    let other = fresh("comes-too");
    assert_ne!(create(store, other, "a", &[]).uuid, a.uuid);
    let absent = |r: forebay_iov::Result<Record>| r.unwrap_err().errno();
    assert_eq!(absent(store.find(other, Key::Name("b"))), Errno::NOENT);
    assert_eq!(absent(store.find(other, Key::Uuid(b.uuid))), Errno::NOENT);
    let nobody = Uuid::random().unwrap();
    assert_eq!(absent(store.find(scope, Key::Uuid(nobody))), Errno::NOENT);
    // A workspace can be removed when it is empty.
    let Scope::In(workspace) = scope else {
        unreachable!()
    };
    let remove = |scope, uuid| store.remove(scope, uuid);
    let refused = remove(Scope::Root, workspace).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOTEMPTY);
    remove(scope, a.uuid).unwrap();
    assert_eq!(remove(scope, a.uuid).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(search(store, scope, "k = \"v\""), [""; 0]);
    remove(scope, b.uuid).unwrap();
    remove(Scope::Root, workspace).unwrap();
    assert_eq!(absent(store.find(scope, Key::Name("a"))), Errno::NOENT);
    let refused = store.create(
        scope,
        &New {
            name: "late",
            backend: "memory",
            ..New::default()
        },
        &mut |_| Ok(()),
    );
    assert_eq!(absent(refused), Errno::NOENT);
    assert_eq!(
        absent(store.find(Scope::Root, Key::Uuid(workspace))),
        Errno::NOENT
    );
}

fn the_call_before_creation_can_refuse(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("before");
    let new = New {
        name: "a",
        meta: meta(&[("k", "v")]),
        backend: "memory",
        ..New::default()
    };
    let mut seen = None;
    let refused = store.create(scope, &new, &mut |record| {
        seen = Some(record.clone());
        Err(forebay_iov::Error::new(Errno::NOSPC, "no"))
    });
    assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
    assert_eq!(seen.unwrap().meta, new.meta);
    assert_eq!(search(store, scope, ""), [""; 0]);
    assert_eq!(search(store, scope, "exists k"), [""; 0]);
    create(store, scope, "a", &[]);
}

fn metadata_changes(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("changes");
    let a = create(store, scope, "a", &[("x", "1"), ("y", "2")]).uuid;
    let now = || store.find(scope, Key::Uuid(a)).unwrap().meta;
    let changes = [
        change("x", Some("7")),
        change("y", None),
        change("z", Some("ä €")),
        change("never", None),
    ];
    let before = store.update(scope, a, &changes).unwrap();
    assert_eq!(before, meta(&[("x", "1"), ("y", "2")]));
    assert_eq!(now(), meta(&[("x", "7"), ("z", "ä €")]));
    assert_eq!(search(store, scope, "x = \"1\" or exists y"), [""; 0]);
    assert_eq!(search(store, scope, "x = 7 and z = \"ä €\""), ["a"]);
    let again = [
        change("x", Some("8")),
        change("x", None),
        change("x", Some("9")),
    ];
    store.update(scope, a, &again).unwrap();
    assert_eq!(now()["x"], "9");
    assert_eq!(search(store, scope, "x = \"9\""), ["a"]);
    assert_eq!(search(store, scope, "x = \"8\" or x = \"7\""), [""; 0]);
    let long = "l".repeat(60_000);
    store
        .update(
            scope,
            a,
            &[change("long", Some(&long)), change("e", Some(""))],
        )
        .unwrap();
    assert_eq!(now()["long"], long);
    assert_eq!(search(store, scope, "long > \"k\" and e = \"\""), ["a"]);
    let nobody = store.update(scope, Uuid::random().unwrap(), &again);
    assert_eq!(nobody.unwrap_err().errno(), Errno::NOENT);
    // The metadata of workspaces can be changed and searched, too.
    let Scope::In(workspace) = scope else {
        unreachable!()
    };
    store
        .update(Scope::Root, workspace, &[change("owner", Some("me"))])
        .unwrap();
    assert_eq!(search(store, Scope::Root, "owner = \"me\""), ["changes"]);
    store
        .update(Scope::Root, workspace, &[change("owner", None)])
        .unwrap();
    assert_eq!(search(store, Scope::Root, "owner = \"me\""), [""; 0]);
}

fn searches_find_what_holds(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("searches");
    for n in 0..40 {
        let (name, step) = (format!("c{n:02}"), format!("{n}"));
        let project = ["mcse", "other"][n % 2];
        create(
            store,
            scope,
            &name,
            &[("project", project), ("step", &step), ("odd key/=%", "a b")],
        );
    }
    create(store, scope, "bare", &[]);
    // A similar record in another scope isn't found.
    let elsewhere = fresh("searches-not");
    create(
        store,
        elsewhere,
        "c00",
        &[("project", "mcse"), ("step", "2")],
    );
    let found = |text| search(store, scope, text);
    assert_eq!(found("").len(), 41);
    assert_eq!(found("")[..2], ["bare", "c00"]);
    assert_eq!(found(r#"project = "mcse" and step >= 36"#), ["c36", "c38"]);
    assert_eq!(found("step < 2 or step = 39.0"), ["c00", "c01", "c39"]);
    assert_eq!(found("not exists step"), ["bare"]);
    assert_eq!(found("step != 0").len(), 39);
    assert_eq!(found(r#"`odd key/=%` = "a b" and step = "12""#), ["c12"]);
    assert_eq!(found("nobody = 1"), [""; 0]);
    ranges(store, &fresh("ranges"));
    let all = Predicate::parse("exists step").unwrap();
    let first = store.search(scope, &all, 3).unwrap();
    assert_eq!(names(first), ["c00", "c01", "c02"]);
    let gone = store.search(Scope::In(Uuid::random().unwrap()), &all, 3);
    assert_eq!(gone.unwrap_err().errno(), Errno::NOENT);
}

/// Comparisons have exact results, whatever the index's order of values is.
fn ranges(store: &dyn Store, scope: &Scope) {
    let values = [
        ("minus", "-2.5"),
        ("small", "1e-300"),
        ("one", "01.0"),
        ("two", "2"),
        ("stamp0", "1763804027123456788"),
        ("stamp1", "1763804027123456789"),
        ("stamp2", "1763804027123456790"),
        ("huge0", "170141183460469231731687303715884105726"),
        ("huge1", "170141183460469231731687303715884105727"),
        ("real", "1.5e300"),
        ("day1", "2026-11-21"),
        ("day2", "2026-11-22T10:00:00.000000001Z"),
        ("day3", "2026-11-22T10:00:00.000000002Z"),
        ("word", "word"),
        ("none", ""),
    ];
    for (name, value) in values {
        create(store, *scope, name, &[("v", value)]);
    }
    for text in [
        "v < 0",
        "v <= 1",
        "v = 1",
        "v > 1 and v < 3",
        "v >= 1e-300 and v <= 2.0",
        "v > 2 and v < 1",
        "v = 1763804027123456789",
        "v > 1763804027123456789 and v < 2e18",
        "v < 1763804027123456789 and v > 2",
        "v = 170141183460469231731687303715884105726",
        "v > 170141183460469231731687303715884105726",
        "v > 1e300",
        "v != 2",
        r#"v > "2""#,
        r#"v < "2""#,
        r#"v >= "2026-11-22" and v < "2026-11-23""#,
        r#"v > "2026-11-22T10:00:00.000000001Z" and v < "3""#,
        r#"v != """#,
        r#"v <= """#,
        r#"v = """#,
        "exists v",
        "v > 1 or v = \"word\"",
        "(v = 2 or v = 1) and exists v and not v = 1",
    ] {
        let predicate = Predicate::parse(text).unwrap();
        let holding = values
            .iter()
            .filter(|(_, value)| predicate.holds(&meta(&[("v", value)])));
        let mut expected: Vec<&str> = holding.map(|(name, _)| *name).collect();
        expected.sort_unstable();
        assert_eq!(search(store, *scope, text), expected, "{text}");
    }
    // A changed value is found under its new value.
    let one = store.find(*scope, Key::Name("one")).unwrap().uuid;
    store
        .update(*scope, one, &[change("v", Some("7"))])
        .unwrap();
    assert_eq!(search(store, *scope, "v > 0.5 and v < 8"), ["one", "two"]);
    store.update(*scope, one, &[change("v", None)]).unwrap();
    assert_eq!(search(store, *scope, "v > 0.5 and v < 8"), ["two"]);
}

/// After any changes, a search finds the same records as comparing every record with the predicate.
fn random_changes_and_searches(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("random");
    let mut random = Random::new(7);
    let mut known: Vec<(Record, Meta)> = Vec::new();
    for round in 0..300 {
        let value = |random: &mut Random| *random.one_of(&["1", "2", "10", "x", "1.0", ""]);
        match random.below(4) {
            0 | 1 => {
                let value = value(&mut random);
                let made = create(store, scope, &format!("n{round}"), &[("a", value)]);
                let meta = made.meta.clone();
                known.push((made, meta));
            }
            2 if !known.is_empty() => {
                let which = random.below(known.len());
                let key = *random.one_of(&["a", "b", "c"]);
                let value = (!random.once_in(3)).then(|| value(&mut random));
                let changes = [change(key, value)];
                store.update(scope, known[which].0.uuid, &changes).unwrap();
                match value {
                    Some(value) => known[which].1.insert(key.into(), value.into()),
                    None => known[which].1.remove(key),
                };
            }
            3 if known.len() > 20 => {
                let (gone, _) = known.swap_remove(random.below(known.len()));
                store.remove(scope, gone.uuid).unwrap();
            }
            _ => {}
        }
        let text = *random.one_of(&[
            "a = \"1\"",
            "a = 1",
            "a < 10 and b = \"x\"",
            "exists c or b >= 2",
            "not a = \"x\" and exists b",
            "a = \"\" or c != \"1\"",
            "a = \"1\" and b = \"1\"",
        ]);
        let predicate = Predicate::parse(text).unwrap();
        let holding = known.iter().filter(|(_, meta)| predicate.holds(meta));
        let mut expected: Vec<String> = holding.map(|(r, _)| r.name.clone()).collect();
        expected.sort();
        assert_eq!(search(store, scope, text), expected, "{text}");
    }
}

fn one_of_many_creates_a_name(store: &dyn Store, fresh: Fresh<'_>) {
    let scope = fresh("many");
    let begin = Barrier::new(4);
    let made: usize = std::thread::scope(|threads| {
        let each = || {
            begin.wait();
            let tries = (0..50).map(|n| {
                let name = format!("n{n}");
                let new = New {
                    name: &name,
                    backend: "memory",
                    meta: meta(&[("k", "v")]),
                    ..New::default()
                };
                store.create(scope, &new, &mut |_| Ok(()))
            });
            let fine = |r: &forebay_iov::Result<Record>| match r {
                Ok(_) => true,
                Err(e) => {
                    assert_eq!(e.errno(), Errno::EXIST, "{e}");
                    false
                }
            };
            tries.filter(fine).count()
        };
        let all: Vec<_> = (0..4).map(|_| threads.spawn(each)).collect();
        all.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(made, 50);
    assert_eq!(search(store, scope, "k = \"v\"").len(), 50);
}

#[test]
fn memory() {
    check(&Memory::default());
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_without_a_cache() {
    let etcd = TestEtcd::new();
    let session = Session::open(&etcd.place("?cache=off")).unwrap();
    check(session.store());
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_with_a_cache() {
    let (etcd, dir) = (TestEtcd::new(), Dir::new());
    // A session sees its own changes at once, whatever age of data it accepts.
    for (prefix, age) in [("strict", "0s"), ("old", "3600s")] {
        let place = etcd.place(&format!("/{prefix}?cache={}&age={age}", dir.text()));
        let session = Session::open(&place).unwrap();
        check(session.store());
    }
}

#[test]
fn a_pool() {
    let pool = support::TestPool::new("meta");
    let session = pool.session();
    check(session.store());
    drop(session);
    pool.assert_whole();
}
