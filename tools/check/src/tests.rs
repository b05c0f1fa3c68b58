//! Tests of the checker with histories made by hand, possible and impossible ones.

use crate::model::{Rules, State};
use crate::operation::*;
use crate::search::{Cut, Done, Verdict, search};

const A: Path = Path {
    len: 1,
    names: [0, 0, 0],
};
const B: Path = Path {
    len: 1,
    names: [1, 0, 0],
};

/// Returns the operations of each process, which are given with their start and end.
fn done(all: Vec<Vec<(u64, u64, Operation)>>) -> Vec<Done> {
    let mut id = 100;
    let mut timed = |(start, end, mut o): (u64, u64, Operation)| {
        id += 1;
        (o.start, o.end) = (start, end);
        if o.id == 0 {
            o.id = id;
        }
        o
    };
    all.into_iter()
        .enumerate()
        .map(|(worker, operations)| Done {
            worker: worker as u16,
            operations: operations.into_iter().map(&mut timed).collect(),
        })
        .collect()
}

fn verdict_by(rules: Rules, all: Vec<Vec<(u64, u64, Operation)>>) -> Verdict {
    search(&[State::new()], &done(all), &Cut::new(), rules, 100_000)
}

fn verdict(all: Vec<Vec<(u64, u64, Operation)>>) -> Verdict {
    verdict_by(Rules::default(), all)
}

#[track_caller]
fn possible(all: Vec<Vec<(u64, u64, Operation)>>) {
    let verdict = verdict(all);
    assert!(matches!(verdict, Verdict::Possible(_)), "{verdict:?}");
}

#[track_caller]
fn impossible(all: Vec<Vec<(u64, u64, Operation)>>) {
    let verdict = verdict(all);
    assert!(matches!(verdict, Verdict::Impossible), "{verdict:?}");
}

fn open(path: Path, flags: u8) -> Operation {
    Operation {
        path,
        flags,
        ..Operation::of(Call::Open)
    }
}

fn on(call: Call, path: Path) -> Operation {
    Operation {
        path,
        ..Operation::of(call)
    }
}

fn two(call: Call, path: Path, to: Path) -> Operation {
    Operation {
        to,
        ..on(call, path)
    }
}

fn with(errno: i32, o: Operation) -> Operation {
    Operation { errno, ..o }
}

fn append(value: u64) -> Operation {
    Operation {
        n: 1,
        count: 1,
        value: value << 8,
        ..Operation::of(Call::Append)
    }
}

fn write(value: u64, at: u32, n: u32) -> Operation {
    Operation {
        at,
        n,
        count: n,
        value: value << 8,
        ..Operation::of(Call::Write)
    }
}

/// A read of 4 cells from the start. `cells`: the values found in each cell. 0 stands for zeros;
/// [`value`] gives the value of a written cell.
fn read(cells: &[&[u64]]) -> Operation {
    let mut o = Operation {
        n: 4,
        count: cells.len() as u32,
        ..Operation::of(Call::Read)
    };
    for (k, values) in cells.iter().enumerate() {
        o.values[k] = values.len() as u8;
        o.found[k][..values.len()].copy_from_slice(values);
    }
    o
}

fn value(of: u64, cell: u64) -> u64 {
    of << 8 | cell
}

fn size(call: Call, cells: u32) -> Operation {
    Operation {
        path: A,
        size: cells,
        links: 1,
        inode: 7,
        ..Operation::of(call)
    }
}

fn creating() -> Operation {
    open(A, CREATE)
}

#[test]
fn what_is_finished_is_seen() {
    let w = (10, 20, append(1));
    possible(vec![vec![
        (1, 2, creating()),
        w,
        (30, 40, size(Call::Stat, 1)),
    ]]);
    impossible(vec![vec![
        (1, 2, creating()),
        w,
        (30, 40, size(Call::Stat, 0)),
    ]]);
    let other = |start, end, cells| vec![(start, end, size(Call::Stat, cells))];
    impossible(vec![vec![(1, 2, creating()), w], other(21, 25, 0)]);
    // While the write is in progress, either size is right.
    possible(vec![vec![(1, 2, creating()), w], other(15, 25, 0)]);
    possible(vec![vec![(1, 2, creating()), w], other(15, 25, 1)]);
}

#[test]
fn nobody_goes_back_in_time() {
    let all = |first: u32, second: u32| {
        vec![
            vec![(1, 2, creating()), (10, 100, append(1))],
            vec![(20, 30, size(Call::Stat, first))],
            vec![(40, 50, size(Call::Stat, second))],
        ]
    };
    possible(all(0, 1));
    possible(all(1, 1));
    possible(all(0, 0));
    impossible(all(1, 0));
}

#[test]
fn appends_neither_overlap_nor_get_lost() {
    let all = |cells: &[&[u64]]| {
        vec![
            vec![
                (1, 2, creating()),
                (10, 20, append(1)),
                (30, 40, read(cells)),
            ],
            vec![(3, 4, open(A, 0)), (11, 21, append(2))],
        ]
    };
    possible(all(&[&[value(1, 1)], &[value(2, 1)]]));
    possible(all(&[&[value(2, 1)], &[value(1, 1)]]));
    impossible(all(&[&[value(2, 1)]]));
    impossible(all(&[&[value(2, 1)], &[value(2, 1)]]));
    impossible(all(&[&[value(2, 1)], &[0]]));
}

#[test]
fn exclusive_creation_has_one_winner() {
    let exclusive = || open(A, CREATE | EXCLUSIVE);
    possible(vec![
        vec![(1, 10, exclusive())],
        vec![(2, 11, with(libc::EEXIST, exclusive()))],
    ]);
    impossible(vec![vec![(1, 10, exclusive())], vec![(2, 11, exclusive())]]);
    impossible(vec![
        vec![(1, 10, with(libc::EEXIST, exclusive()))],
        vec![(2, 11, with(libc::EEXIST, exclusive()))],
    ]);
}

#[test]
fn a_renamed_file_is_at_one_place() {
    let renamed = |stats: Vec<(u64, u64, Operation)>| {
        vec![
            vec![(1, 2, creating()), (10, 100, two(Call::Rename, A, B))],
            stats,
        ]
    };
    let there = |p| Operation {
        path: p,
        ..size(Call::Stat, 0)
    };
    let gone = |p| with(libc::ENOENT, there(p));
    possible(renamed(vec![(20, 30, there(A)), (40, 50, gone(B))]));
    possible(renamed(vec![(20, 30, gone(A)), (40, 50, there(B))]));
    // A reader can't find the name removed from the old place, and afterwards not present at the
    // new one.
    impossible(renamed(vec![(20, 30, gone(A)), (40, 50, gone(B))]));
    impossible(renamed(vec![(20, 30, there(B)), (40, 50, there(A))]));
    // Only one of two renames can have moved the file.
    impossible(vec![
        vec![(1, 2, creating()), (10, 100, two(Call::Rename, A, B))],
        vec![(10, 100, two(Call::Rename, A, B))],
    ]);
}

#[test]
fn an_exchange_happens_at_one_moment() {
    let exchanged = |stats: Vec<(u64, u64, Operation)>| {
        let first = (5, 6, append(1));
        let exchange = (10, 100, two(Call::Exchange, A, B));
        vec![
            vec![(1, 2, creating()), first, exchange],
            vec![(3, 4, open(B, CREATE))],
            stats,
        ]
    };
    let stat = |path, cells| Operation {
        path,
        inode: 7 + u64::from(cells),
        ..size(Call::Stat, cells)
    };
    possible(exchanged(vec![(20, 30, stat(A, 1)), (40, 50, stat(B, 0))]));
    possible(exchanged(vec![(20, 30, stat(A, 0)), (40, 50, stat(B, 1))]));
    possible(exchanged(vec![(20, 30, stat(A, 1)), (40, 50, stat(B, 1))]));
    impossible(exchanged(vec![(20, 30, stat(A, 0)), (40, 50, stat(B, 0))]));
    impossible(exchanged(vec![(20, 30, stat(B, 1)), (40, 50, stat(A, 1))]));
    let missing = |errno| with(errno, two(Call::Exchange, A, B));
    possible(vec![vec![
        (1, 2, creating()),
        (3, 4, missing(libc::ENOENT)),
    ]]);
    impossible(vec![vec![(1, 2, creating()), (3, 4, missing(0))]]);
    // A directory can't be moved into itself, by either order of the two paths.
    let inside = |one, other| {
        let into = with(libc::EINVAL, two(Call::Exchange, one, other));
        let d = Path::new(&[3]);
        vec![vec![
            (1, 2, on(Call::Mkdir, d)),
            (3, 4, open(Path::new(&[3, 0]), CREATE)),
            (5, 6, into),
        ]]
    };
    possible(inside(Path::new(&[3]), Path::new(&[3, 0])));
    possible(inside(Path::new(&[3, 0]), Path::new(&[3])));
    impossible(inside(Path::new(&[3, 0]), Path::new(&[3, 0])));
}

#[test]
fn a_removed_file_lives_while_it_is_open() {
    let all = |links: u32, cells: u32| {
        let stat = Operation {
            links,
            ..size(Call::Fstat, cells)
        };
        vec![
            vec![(1, 2, creating()), (10, 20, append(1)), (50, 60, stat)],
            vec![(30, 40, on(Call::Unlink, A))],
        ]
    };
    possible(all(0, 1));
    impossible(all(1, 1));
    impossible(all(0, 0));
}

#[test]
fn a_directory_with_entries_is_not_removed() {
    let inside = Path::new(&[3, 0]);
    let d = Path::new(&[3]);
    let all = |create: i32, remove: i32| {
        vec![
            vec![
                (1, 2, on(Call::Mkdir, d)),
                (10, 100, with(create, open(inside, CREATE))),
            ],
            vec![(10, 100, with(remove, on(Call::Rmdir, d)))],
        ]
    };
    possible(all(0, libc::ENOTEMPTY));
    possible(all(libc::ENOENT, 0));
    impossible(all(0, 0));
    impossible(all(libc::ENOENT, libc::ENOTEMPTY));
}

#[test]
fn a_listing_shows_what_was_there_all_the_time() {
    let list = |listed| Operation {
        listed,
        ..Operation::of(Call::List)
    };
    let all = |listed| {
        vec![
            vec![(1, 2, creating()), (10, 100, two(Call::Rename, A, B))],
            vec![
                (5, 6, open(Path::new(&[2]), CREATE)),
                (20, 90, list(listed)),
            ],
        ]
    };
    // While a is renamed to b, a listing may show either, both or none.
    for listed in [0b101, 0b110, 0b111, 0b100] {
        possible(all(listed));
    }
    impossible(all(0b001));
    impossible(all(0b1101));
}

#[test]
fn a_write_in_place_may_be_seen_in_parts_but_not_later() {
    let (old, new) = (value(1, 1), value(2, 1));
    let all = |start, end, cells: &[&[u64]]| {
        vec![
            vec![
                (1, 2, creating()),
                (3, 4, write(1, 0, 2)),
                (10, 100, write(2, 0, 2)),
            ],
            vec![(5, 6, open(A, 0)), (start, end, read(cells))],
        ]
    };
    let (old2, new2) = (value(1, 2), value(2, 2));
    for cells in [
        [&[old][..], &[new2]],
        [&[new], &[old2]],
        [&[old, new], &[old2]],
        [&[old, new], &[old2, new2]],
    ] {
        possible(all(20, 30, &cells));
        impossible(all(110, 120, &cells));
    }
    impossible(all(20, 30, &[&[old], &[0]]));
    impossible(all(20, 30, &[&[old]]));
    impossible(all(20, 30, &[&[DAMAGED], &[old2]]));
}

/// Histories that `--pieces` allows, and some that it doesn't allow either.
#[test]
fn in_pieces_an_append_may_come_into_a_write() {
    let pieces = Rules {
        pieces: true,
        ..Rules::default()
    };
    let (a, b) = (value(2, 1), value(3, 1));
    let all = |cells: &[&[u64]], then: &[&[u64]]| {
        vec![
            vec![
                (1, 2, creating()),
                (3, 4, append(2)),
                (20, 90, write(4, 0, 3)),
                (100, 110, read(then)),
            ],
            vec![
                (5, 6, open(A, APPEND)),
                (25, 30, read(cells)),
                (40, 50, append(3)),
            ],
        ]
    };
    let w = [value(4, 1), value(4, 2), value(4, 3)];
    // A read sees a cell of the write before the append begins; then the write overwrites appended
    // cells.
    let history = all(&[&[w[0]]], &[&[w[0]], &[w[1]], &[w[2]]]);
    assert!(matches!(verdict(history.clone()), Verdict::Impossible));
    let verdict = verdict_by(pieces, history);
    assert!(matches!(verdict, Verdict::Possible(_)), "{verdict:?}");
    for (cells, then) in [
        // The append is lost, or it is interrupted in its middle.
        (&[&[w[0]][..]][..], [&[w[0]][..], &[w[1]], &[b]]),
        // The write overwrites what other processes may have written since.
        (&[&[w[0]]], [&[a], &[w[1]], &[w[2]]]),
        // A part of the write is added before the rest.
        (&[&[w[0]], &[w[1]]], [&[w[0]], &[w[1]], &[w[2]]]),
    ] {
        let verdict = verdict_by(pieces, all(cells, &then));
        assert!(matches!(verdict, Verdict::Impossible), "{verdict:?}");
    }
}

#[test]
fn in_pieces_two_writes_behind_the_end_may_mix() {
    let w = |writer, cell| value(writer, cell);
    let mixed: [&[u64]; 4] = [&[w(5, 1)], &[w(4, 1)], &[w(5, 3)], &[w(4, 3)]];
    let history = vec![
        vec![
            (1, 2, creating()),
            (3, 4, append(2)),
            (20, 90, write(4, 1, 3)),
            (100, 110, read(&mixed)),
        ],
        vec![(5, 6, open(A, APPEND)), (20, 90, write(5, 0, 3))],
    ];
    let by_cells = Rules {
        by_cells: true,
        ..Rules::default()
    };
    let pieces = Rules {
        pieces: true,
        ..by_cells
    };
    let verdict = verdict_by(by_cells, history.clone());
    assert!(matches!(verdict, Verdict::Impossible), "{verdict:?}");
    let verdict = verdict_by(pieces, history);
    assert!(matches!(verdict, Verdict::Possible(_)), "{verdict:?}");
}

#[test]
fn what_grows_a_file_shows_whole() {
    let all = |cells: &[&[u64]]| {
        vec![
            vec![(1, 2, creating()), (10, 100, write(2, 0, 2))],
            vec![(5, 6, open(A, 0)), (20, 30, read(cells))],
        ]
    };
    possible(all(&[]));
    possible(all(&[&[value(2, 1)], &[value(2, 2)]]));
    impossible(all(&[&[value(2, 1)]]));
    impossible(all(&[&[value(2, 1)], &[0]]));
    impossible(all(&[&[0], &[0]]));
}

#[test]
fn locks_keep_others_out() {
    let lock = |call, flags| Operation {
        flags,
        ..Operation::of(call)
    };
    for call in [Call::Flock, Call::Ofd, Call::Range] {
        let all = |mine, yours, errno| {
            vec![
                vec![(1, 2, creating()), (10, 20, lock(call, mine))],
                vec![(5, 6, open(A, 0)), (30, 40, with(errno, lock(call, yours)))],
            ]
        };
        possible(all(0, 0, libc::EAGAIN));
        possible(all(SHARED, SHARED, 0));
        impossible(all(0, 0, 0));
        impossible(all(SHARED, 0, 0));
        impossible(all(SHARED, SHARED, libc::EAGAIN));
    }
}

#[test]
fn what_was_cut_off_is_done_at_any_time_or_never() {
    let cut = with(libc::EIO, append(1));
    let all = |first, second| {
        vec![
            vec![(1, 2, creating()), (10, 20, cut)],
            vec![
                (30, 40, size(Call::Stat, first)),
                (50, 60, size(Call::Stat, second)),
            ],
        ]
    };
    possible(all(0, 0));
    possible(all(0, 1));
    possible(all(1, 1));
    impossible(all(1, 0));
    impossible(all(2, 2));
}

#[test]
fn it_is_always_the_same_file() {
    let stat = |path, inode| Operation {
        path,
        inode,
        ..size(Call::Stat, 0)
    };
    possible(vec![vec![
        (1, 2, creating()),
        (3, 4, stat(A, 5)),
        (5, 6, two(Call::Rename, A, B)),
        (7, 8, stat(B, 5)),
    ]]);
    impossible(vec![vec![
        (1, 2, creating()),
        (3, 4, stat(A, 5)),
        (5, 6, two(Call::Rename, A, B)),
        (7, 8, stat(B, 6)),
    ]]);
    impossible(vec![vec![
        (1, 2, creating()),
        (3, 4, stat(A, 5)),
        (5, 6, open(B, CREATE)),
        (7, 8, stat(B, 5)),
    ]]);
}
