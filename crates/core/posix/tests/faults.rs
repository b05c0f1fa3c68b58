//! Runs every operation with a fault at each point where one can happen: no free pages, no room on
//! a medium or for records, a medium that can't be written or read, a commit that fails. The
//! operation must return the right error, and some of its first steps must have happened, the
//! others not. The pool must be consistent, and continue to work.

#[path = "support/left.rs"]
mod left;
mod support;

use forebay_media::fault::{self, Point};
use forebay_posix::Errno;
use support::operations::*;
use support::*;

/// Faults are planned for a whole process, so only one test at a time runs.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Runs every operation and makes it fail at `point`, the n-th time for every n. Returns the number
/// of faults.
fn fail_everywhere(name: &str, media: &[&str], point: Point, error: Errno) -> usize {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let mut pool = TestPool::limited(name, media, 120);
    let mut faults = 0;
    let (mut n_dir, ops) = (0, operations());
    for (i, op) in ops.iter().enumerate() {
        if point == Point::Room {
            // A new pool, in which only little room is reserved so far.
            pool = TestPool::limited(&format!("{name}-{i}"), media, 120);
        }
        let states = allowed(&pool, op, "/model");
        for for_good in [false, true] {
            for n in 0.. {
                n_dir += 1;
                let dir = format!("/t{n_dir}");
                furnish(&pool, &dir);
                let mut place = Place::new(&pool, &dir);
                (op.before)(&mut place).unwrap();
                // Occupies all reserved pages, so that the operation has to reserve more.
                let plug = if point == Point::Room {
                    plug(&pool)
                } else {
                    Vec::new()
                };
                fault::plan(point, n, error, for_good);
                let result = op.steps.iter().try_for_each(|step| step(&mut place));
                let happened = fault::end();
                place.give_up();
                if point == Point::Room {
                    let medium = &pool.store().media()[0];
                    plug.into_iter().for_each(|e| medium.free(e));
                    // Frees the additionally reserved room, so that the next operation has to
                    // reserve again.
                    medium.reserve_again().unwrap();
                }
                let what = || format!("{}: fault {n} of {point:?}, for good: {for_good}", op.name);
                if let Err(e) = result {
                    assert!(happened, "{}: {e} without a fault", what());
                    assert_eq!(e, error, "{}", what());
                }
                // Without an error, the operation got around the fault, by another medium for
                // example. A file that couldn't be written back when it was closed is written back
                // by the next use.
                let state = look(&pool, &dir);
                assert!(
                    is_allowed(op, &state, &states) || is_part_of_a_write(op, &state, &states),
                    "{}: half done: {:#?}",
                    what(),
                    state
                        .iter()
                        .map(|(p, s)| (p, s.content.len()))
                        .collect::<Vec<_>>()
                );
                let report = forebay_store::fsck::inspect(pool.store()).unwrap();
                assert!(
                    report.is_clean() && report.left_out.is_none(),
                    "{}: {report:#?}",
                    what()
                );
                clear(&pool, &dir);
                faults += usize::from(happened);
                if !happened {
                    break;
                }
            }
        }
    }
    // A file whose last close failed has its live entry until `settle`.
    pool.store().recovery().settle().unwrap();
    pool.assert_whole();
    assert_eq!(pool.used(), 0);
    eprintln!("{faults} faults of {point:?}");
    if point == Point::Commit && media[0].starts_with("files") {
        left::records_and_journal_agree(&pool, name);
    }
    faults
}

/// Takes all pages that are free and reserved, and returns them.
fn plug(pool: &TestPool) -> Vec<forebay_store::Extent> {
    let cells = pool.store().media()[0].cells();
    std::iter::from_fn(|| cells.alloc(256, true)).collect()
}

/// Whether only the first part of a write was done: the write was short, and writing the rest
/// returned an error.
fn is_part_of_a_write(op: &Operation, state: &State, states: &[State]) -> bool {
    op.name.contains("write")
        && states.windows(2).any(|w| {
            state.len() == w[1].len()
                && state.iter().all(|(path, seen)| {
                    let (before, after) = (w[0].get(path), &w[1].get(path));
                    let from = before.map_or(0, |b| b.content.len());
                    after.is_some_and(|a| {
                        let len = seen.content.len();
                        let byte =
                            |s: Option<&Seen>, i: usize| s.and_then(|s| s.content.get(i).copied());
                        (from.min(a.content.len())..=a.content.len().max(from)).contains(&len)
                            && seen.content.iter().enumerate().all(|(i, c)| {
                                byte(Some(a), i) == Some(*c) || byte(before, i).unwrap_or(0) == *c
                            })
                    })
                })
        })
}

#[test]
fn no_free_pages() {
    assert!(fail_everywhere("fault-pages", &["memory:64M"], Point::Pages, Errno::NOSPC) > 10);
}

#[test]
fn no_free_pages_in_one_of_two_media() {
    assert!(
        fail_everywhere(
            "fault-two",
            &["memory:64M", "memory:64M"],
            Point::Pages,
            Errno::NOSPC
        ) > 10
    );
}

#[test]
fn no_room_in_the_file_system() {
    assert!(fail_everywhere("fault-room", &["memory:64M"], Point::Room, Errno::NOSPC) > 10);
}

#[test]
fn over_quota() {
    assert!(fail_everywhere("fault-quota", &["files:DIR:64M"], Point::Room, Errno::DQUOT) > 10);
    assert!(
        fail_everywhere(
            "fault-quota-write",
            &["files:DIR:64M"],
            Point::Write,
            Errno::DQUOT
        ) > 10
    );
}

#[test]
fn a_medium_that_cannot_be_written() {
    assert!(fail_everywhere("fault-write", &["files:DIR:64M"], Point::Write, Errno::IO) > 10);
}

#[test]
fn a_medium_that_cannot_be_read() {
    fail_everywhere("fault-read", &["files:DIR:64M"], Point::Read, Errno::IO);
}

#[test]
fn no_room_for_records() {
    assert!(
        fail_everywhere(
            "fault-records",
            &["memory:64M"],
            Point::Records,
            Errno::NOSPC
        ) > 10
    );
}

#[test]
fn a_commit_that_fails_with_a_journal() {
    assert!(
        fail_everywhere(
            "fault-journal",
            &["files:DIR:64M"],
            Point::Commit,
            Errno::IO
        ) > 40
    );
}

#[test]
fn a_commit_that_fails() {
    assert!(fail_everywhere("fault-commit", &["memory:64M"], Point::Commit, Errno::IO) > 40);
}
