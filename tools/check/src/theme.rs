//! Chooses the operations of a phase.

use crate::operation::*;
use crate::random::Random;

/// The theme of a phase: few names, and operations that conflict.
pub struct Theme {
    /// Number of operations that each process carries out.
    pub operations: u64,
    /// The paths that most of the operations use.
    hot: [Path; 2],
    calls: &'static [Call],
}

const FILES: &[Call] = &[
    Call::Open,
    Call::Open,
    Call::Open,
    Call::Write,
    Call::Write,
    Call::Append,
    Call::Append,
    Call::Read,
    Call::Read,
    Call::Read,
    Call::Truncate,
    Call::Fstat,
    Call::Stat,
    Call::Close,
];
const NAMED: &[Call] = &[
    Call::Open,
    Call::Open,
    Call::Unlink,
    Call::Unlink,
    Call::Link,
    Call::Rename,
    Call::Rename,
    Call::Exchange,
    Call::Stat,
    Call::Stat,
    Call::List,
    Call::Fstat,
    Call::Close,
];
const DIRECTORIES: &[Call] = &[
    Call::Mkdir,
    Call::Mkdir,
    Call::Mkdir,
    Call::Rmdir,
    Call::Rmdir,
    Call::Rename,
    Call::Rename,
    Call::Exchange,
    Call::Exchange,
    Call::Open,
    Call::Open,
    Call::Unlink,
    Call::List,
    Call::Stat,
];
const LOCKS: &[Call] = &[
    Call::Open,
    Call::Flock,
    Call::Flock,
    Call::Ofd,
    Call::Ofd,
    Call::Range,
    Call::Range,
    Call::Close,
    Call::Append,
];
const ALL: &[Call] = &[
    Call::Open,
    Call::Open,
    Call::Open,
    Call::Open,
    Call::Close,
    Call::Write,
    Call::Append,
    Call::Read,
    Call::Read,
    Call::Truncate,
    Call::Fstat,
    Call::Stat,
    Call::Stat,
    Call::Unlink,
    Call::Link,
    Call::Rename,
    Call::Rename,
    Call::Exchange,
    Call::Mkdir,
    Call::Mkdir,
    Call::Rmdir,
    Call::List,
    Call::Flock,
    Call::Range,
    Call::Ofd,
];

impl Theme {
    pub fn new(random: &mut Random, most: u64) -> Theme {
        Theme {
            operations: 1 + random.below(most),
            hot: [any_file(random), any_file(random)],
            calls: random.of::<&[Call]>(&[FILES, FILES, NAMED, NAMED, DIRECTORIES, LOCKS, ALL]),
        }
    }

    pub fn file(&self, random: &mut Random) -> Path {
        if random.once_in(4) {
            any_file(random)
        } else {
            *random.of(&self.hot)
        }
    }

    pub fn operation(&self, random: &mut Random) -> Operation {
        let mut o = Operation::of(*random.of(self.calls));
        o.path = self.file(random);
        o.to = self.file(random);
        let directory = matches!(o.call, Call::Mkdir | Call::Rmdir | Call::List)
            || random.once_in(if o.call.renames() { 3 } else { 12 });
        if directory {
            o.path = any_directory(random);
            if !random.once_in(4) {
                o.to = any_directory(random);
            }
            if o.call == Call::List && random.once_in(2) {
                o.path = Path::default();
            }
        }
        match o.call {
            Call::Open => {
                o.flags = *random.of(&[
                    0,
                    0,
                    CREATE,
                    CREATE,
                    CREATE,
                    CREATE | APPEND,
                    CREATE | APPEND,
                    CREATE | EXCLUSIVE,
                    CREATE | EXCLUSIVE | APPEND,
                    CREATE | TRUNCATE,
                    TRUNCATE,
                ]);
            }
            Call::Write | Call::Append | Call::Read => {
                o.at = random.below(5) as u32;
                let most = if random.once_in(3) { 3 } else { 1 };
                o.n = 1 + random.below(most) as u32;
                if o.call == Call::Read {
                    o.n = 1 + random.below(CELLS as u64 - 2) as u32;
                }
            }
            Call::Truncate => o.n = random.below(6) as u32,
            Call::Flock | Call::Ofd | Call::Range => {
                o.flags = *random.of(&[0, 0, SHARED, UNLOCK]);
            }
            _ => {}
        }
        o
    }
}

fn any_file(random: &mut Random) -> Path {
    let name = random.below(3) as u8;
    match random.below(10) {
        0..5 => Path::new(&[name]),
        5..9 => Path::new(&[3 + random.below(2) as u8, name]),
        _ => Path::new(&[3, 4, name]),
    }
}

fn any_directory(random: &mut Random) -> Path {
    *random.of(&[
        Path::new(&[3]),
        Path::new(&[3]),
        Path::new(&[4]),
        Path::new(&[4]),
        Path::new(&[3, 4]),
        Path::new(&[4, 3]),
    ])
}
