use super::*;
use crate::NodeId;
use crate::repair::tests::{TestStore, make, store};
use rustix::io::Errno;

const BYTES: usize = 24;

fn owner(n: u64) -> Owner {
    Owner {
        node: NodeId(7),
        number: DESCRIPTION | n,
        slot: 0,
    }
}

fn range(object: ObjectId, owner: Owner, want: LockType, start: u64, end: u64) -> Request {
    Request {
        object,
        owner,
        sort: Sort::Range,
        want,
        start,
        end,
    }
}

/// Number of runs of bytes that have the same lock of one owner.
fn runs(bytes: &[LockType; BYTES]) -> usize {
    let mut last = LockType::Unlocked;
    let mut runs = 0;
    for &b in bytes {
        runs += usize::from(b != LockType::Unlocked && b != last);
        last = b;
    }
    runs
}

fn places_in_use(s: &TestStore) -> usize {
    s.locks().linked_locks().unwrap().len()
}

#[test]
fn ranges_are_what_a_table_of_bytes_says() {
    let s = store("locks-model");
    let object = make(&s, "f");
    let mut r = forebay_fuzz::Random::new(42);
    let mut bytes = [[LockType::Unlocked; BYTES]; 3];
    let (mut done, mut refused) = (0, 0);
    for step in 0..30_000 {
        let me = r.below(3);
        let start = r.below(BYTES) as u64;
        let end = start + r.below(BYTES - start as usize) as u64;
        let want = LockType::of(r.below(3) as u32).unwrap();
        let cells = start as usize..end as usize + 1;
        let free = (0..3).filter(|o| *o != me).all(|o| {
            bytes[o][cells.clone()].iter().all(|has| match want {
                LockType::Unlocked => true,
                LockType::Shared => *has != LockType::Exclusive,
                LockType::Exclusive => *has == LockType::Unlocked,
            })
        });
        let told = s
            .locks()
            .lock_now(&range(object, owner(me as u64), want, start, end))
            .unwrap();
        assert_eq!(told.is_none(), free, "step {step}");
        match told {
            None => {
                bytes[me][cells].fill(want);
                done += 1;
            }
            Some(other) => {
                let o = (other.owner.number & !DESCRIPTION) as usize;
                let there = other.start as usize..other.end as usize + 1;
                assert!(
                    bytes[o][there].iter().all(|b| *b == other.has),
                    "step {step}"
                );
                refused += 1;
            }
        }
        let wanted: usize = bytes.iter().map(runs).sum();
        assert_eq!(places_in_use(&s), wanted, "step {step}");
    }
    assert!(done > 5000 && refused > 5000, "{done} {refused}");
    for o in 0..3 {
        s.locks().locks_of(object).unwrap().remove(owner(o));
    }
    assert_eq!(places_in_use(&s), 0);
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}

#[test]
fn flock_and_ranges_have_nothing_to_do_with_each_other() {
    let s = store("locks-sorts");
    let object = make(&s, "f");
    let whole = |n, want| Request {
        sort: Sort::Whole,
        ..range(object, owner(n), want, 0, TO_THE_END)
    };
    assert_eq!(s.locks().lock_now(&whole(1, LockType::Exclusive)), Ok(None));
    let all = range(object, owner(2), LockType::Exclusive, 0, TO_THE_END);
    assert_eq!(s.locks().lock_now(&all), Ok(None));
    assert!(
        s.locks()
            .lock_now(&whole(2, LockType::Shared))
            .unwrap()
            .is_some()
    );
    assert_eq!(s.locks().lock_now(&whole(1, LockType::Shared)), Ok(None));
    assert_eq!(s.locks().lock_now(&whole(2, LockType::Shared)), Ok(None));
    // A lock of flock that can't be changed is lost: as in Linux.
    assert!(
        s.locks()
            .lock_now(&whole(1, LockType::Exclusive))
            .unwrap()
            .is_some()
    );
    assert_eq!(s.locks().lock_now(&whole(2, LockType::Exclusive)), Ok(None));
}

#[test]
fn a_full_table_is_an_error_and_loses_nothing() {
    let s = store("locks-full");
    let object = make(&s, "f");
    let one = |at: u64| range(object, owner(1), LockType::Shared, at, at);
    let long = range(object, owner(2), LockType::Shared, 0, 10);
    assert_eq!(s.locks().lock_now(&long), Ok(None));
    // The entries are taken directly, because setting as many locks in one chain would take long.
    let mut taken = Vec::new();
    while let Some(i) = s.control.take_lock().unwrap() {
        taken.push(i);
    }
    assert_eq!(s.locks().lock_now(&one(100)), Err(Errno::NOLCK));
    let middle = range(object, owner(2), LockType::Unlocked, 5, 5);
    assert_eq!(s.locks().lock_now(&middle), Err(Errno::NOLCK));
    assert!(
        s.locks()
            .locks_of(object)
            .unwrap()
            .conflict(&range(object, owner(1), LockType::Exclusive, 5, 5))
            .is_some()
    );
    // A repair returns the taken entries to the free list.
    s.control.header().leaks.store(1, Relaxed);
    assert_eq!(s.recovery().put_in_order(), Ok(true));
    assert_eq!(s.locks().lock_now(&one(100)), Ok(None));
    assert_eq!(s.locks().lock_now(&middle), Ok(None));
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}

#[test]
fn reaping_gives_up_what_a_killed_process_had() {
    let s = store("locks-reaped");
    let object = make(&s, "f");
    let mut child = std::process::Command::new("sleep")
        .arg("30")
        .spawn()
        .unwrap();
    let slot = crate::process::attach(&s.control).unwrap();
    let p = s.control.process(slot as usize);
    let word = crate::process::word_of(child.id());
    p.owner.store(word, Release);
    p.locked.store(1, Release);
    let other = s.locks().lock_owner_slot(slot);
    let all = range(object, other, LockType::Exclusive, 0, TO_THE_END);
    assert_eq!(s.locks().lock_now(&all), Ok(None));
    assert_eq!(s.recovery().reap().unwrap().processes, 0);
    assert_eq!(places_in_use(&s), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(s.recovery().reap().unwrap().processes, 1);
    assert_eq!(places_in_use(&s), 0);
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}
