//! Tests with random programs. A simple simulation of `docs/explanation/semantics.md` finds the
//! controls that would have refused or changed an operation. The advisor must not propose them.

mod programs;

use forebay_report::advise::advise;
use programs::*;
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};

const RANKS: u32 = 4;
const NODES: u32 = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A rank's open file: whether for writing, since when, and whether it has uncommitted writes.
struct Open {
    writes: bool,
    since: u64,
    dirty: bool,
}

/// The simulated file, in a pool that interprets each control in the strictest way.
#[derive(Default)]
struct Simulated {
    open: BTreeMap<u32, Open>,
    size: u64,
    laminated: bool,
    /// Time of each rank's last write.
    wrote: BTreeMap<u32, u64>,
    time: u64,
    violated: BTreeSet<&'static str>,
}

impl Simulated {
    fn opened(&mut self, rank: u32, writes: bool, empties: bool) {
        self.time += 1;
        if !self.open.is_empty() {
            self.violated.insert("parallelism=exclusive");
        }
        if self.open.keys().any(|other| other % NODES != rank % NODES) {
            self.violated.insert("parallelism=exclusive(node)");
        }
        if writes && self.laminated {
            self.violated.insert("mutability=immutable");
        }
        if empties && self.size > 0 {
            self.violated.insert("mutability=append");
            self.size = 0;
        }
        let since = self.time;
        self.open.insert(
            rank,
            Open {
                writes,
                since,
                dirty: false,
            },
        );
    }

    fn closed(&mut self, rank: u32) {
        self.time += 1;
        let wrote = self.open.remove(&rank).unwrap().writes;
        let writers = self.open.values().any(|o| o.writes);
        self.laminated |= wrote && !writers && self.size > 0;
    }

    fn wrote(&mut self, rank: u32, at: u64, n: u64) {
        self.time += 1;
        if at != self.size {
            self.violated.insert("mutability=append");
        }
        self.size = self.size.max(at + n);
        self.wrote.insert(rank, self.time);
        self.open.get_mut(&rank).unwrap().dirty = true;
    }

    fn truncated(&mut self, rank: u32, size: u64) {
        self.time += 1;
        if size == self.size {
            return;
        }
        self.violated.insert("mutability=append");
        self.size = size;
        self.wrote.insert(rank, self.time);
        self.open.get_mut(&rank).unwrap().dirty = true;
    }

    fn read(&mut self, rank: u32) {
        self.time += 1;
        if self
            .open
            .iter()
            .any(|(other, open)| *other != rank && open.dirty)
        {
            self.violated
                .extend(["consistency=commit", "consistency=session"]);
        }
        let since = self.open[&rank].since;
        if self
            .wrote
            .iter()
            .any(|(other, time)| *other != rank && *time > since)
        {
            self.violated.insert("consistency=session");
        }
    }
}

#[test]
fn what_a_run_contradicts_is_never_proposed() {
    let (mut proposed, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for seed in 0..6000 {
        let mut random = Random(seed * 77 + 1);
        let (mut programs, mut file) = (Programs::on(NODES), Simulated::default());
        let ranks = 1 + random.below(u64::from(RANKS)) as u32;
        // Some programs mostly append, some read much, some have little overlap.
        let (appends, overlaps, steps) =
            (random.below(2) == 0, random.below(3), random.below(40) + 4);
        let id = programs.open(0, "/d/f", made());
        file.opened(0, true, false);
        for _ in 0..steps {
            let rank = random.below(ranks.into()) as u32;
            match file.open.get(&rank) {
                None => {
                    if overlaps == 0 && !file.open.is_empty() {
                        continue;
                    }
                    let writes = random.below(3) == 0;
                    let empties = writes && random.below(6) == 0;
                    let mut flags = if writes { OFlags::RDWR } else { OFlags::RDONLY };
                    flags |= if empties {
                        OFlags::TRUNC
                    } else {
                        OFlags::empty()
                    };
                    programs.open(rank, "/d/f", flags);
                    file.opened(rank, writes, empties);
                }
                Some(_) if random.below(4) == 0 => {
                    programs.close(rank, id);
                    file.closed(rank);
                }
                Some(open) if open.writes && random.below(12) == 0 => {
                    let size = random.below(3) * MIB;
                    programs.truncate(rank, id, size);
                    file.truncated(rank, size);
                }
                Some(open) if open.writes && random.below(2) == 0 => {
                    let n = 1 + random.below(2) * MIB;
                    let at = if appends {
                        file.size
                    } else {
                        random.below(3) * MIB
                    };
                    programs.write(rank, id, at, n);
                    file.wrote(rank, at, n);
                }
                Some(_) => {
                    programs.read(rank, id, random.below(2) * MIB, 4096);
                    file.read(rank);
                }
            }
        }
        let advice = advise(&programs.run());
        for proposal in advice.proposals.iter().chain(&advice.fitting) {
            let control = format!("{}={}", proposal.control, proposal.value);
            assert!(
                !file.violated.contains(control.as_str()),
                "seed {seed}: {proposal:#?}"
            );
            *proposed.entry(control).or_insert(0) += 1;
        }
        for control in file.violated {
            *refused.entry(control).or_insert(0) += 1;
        }
    }
    // Each control is violated by enough programs, and proposed for enough, for a significant test.
    for control in [
        "mutability=immutable",
        "mutability=append",
        "parallelism=exclusive",
        "consistency=commit",
        "consistency=session",
    ] {
        assert!(
            proposed.get(control).is_some_and(|n| *n > 20),
            "{control}: {proposed:?}"
        );
        assert!(
            refused.get(control).is_some_and(|n| *n > 20),
            "{control}: {refused:?}"
        );
    }
}
