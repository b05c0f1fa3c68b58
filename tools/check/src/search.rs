//! Decides whether a phase could have happened. Tries all orders of the steps of its operations
//! that agree with their times, from each possible state before the phase. Returns the possible
//! states after it.
//!
//! The algorithm is Wing and Gong's search, with Lowe's memory of what was tried before.

use crate::model::{After, Id, LOOKS, Progress, Rules, State};
use crate::operation::{Call, Operation};
use crate::steps::Stepping;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Maximum number of states that wait to be tried, or that result from a phase. More would fill the
/// memory.
const OPEN: usize = 100_000;

/// The operations of one process in a phase.
pub struct Done {
    /// The number of the process. No other process of the run has it.
    pub worker: u16,
    pub operations: Vec<Operation>,
}

/// The result of a search.
#[derive(Debug)]
pub enum Verdict {
    /// The operations could have happened; the possible states after them.
    Possible(Vec<State>),
    Impossible,
    /// The search was given up after `limit` steps.
    Undecided,
}

/// Operations of earlier phases that were cut off, by number.
pub type Cut = HashMap<Id, Operation>;

struct Node {
    state: State,
    /// For each process: the number of its operations that have ended, and the progress of the next
    /// one if it has begun.
    at: Vec<(usize, Option<Progress>)>,
}

struct Search<'a> {
    done: &'a [Done],
    cut: &'a Cut,
    rules: Rules,
    /// For each operation of each process: how many operations of each other process ended before
    /// it began.
    before: Vec<Vec<Vec<usize>>>,
}

/// Decides whether the operations could have happened, beginning in one of the states `starts`.
/// Tries at most `limit` steps.
pub fn search(
    starts: &[State],
    done: &[Done],
    cut: &Cut,
    mut rules: Rules,
    limit: usize,
) -> Verdict {
    rules.torn = done.iter().flat_map(|d| &d.operations).any(Operation::torn);
    let before = done
        .iter()
        .map(|d| {
            let counts = |o: &Operation| {
                let over = |x: &&Operation| x.end != 0 && x.end < o.start;
                done.iter()
                    .map(|other| other.operations.iter().take_while(over).count())
                    .collect()
            };
            d.operations.iter().map(counts).collect()
        })
        .collect();
    Search {
        done,
        cut,
        rules,
        before,
    }
    .run(starts, limit)
}

impl Search<'_> {
    fn run(&self, starts: &[State], limit: usize) -> Verdict {
        let mut tried: HashSet<u128> = HashSet::new();
        let mut finals: HashSet<State> = HashSet::new();
        let mut open: Vec<Node> = starts
            .iter()
            .map(|state| Node {
                state: state.clone(),
                at: vec![(0, None); self.done.len()],
            })
            .collect();
        let mut steps = Vec::new();
        while let Some(mut node) = open.pop() {
            self.look(&mut node);
            if !tried.insert(fingerprint(&node)) {
                continue;
            }
            if tried.len() > limit || open.len() > OPEN || finals.len() > OPEN {
                return Verdict::Undecided;
            }
            if self.is_over(&node) {
                node.state.forget();
                finals.insert(node.state);
                continue;
            }
            self.step_workers(&node, &mut steps, &mut open);
            self.step_ghosts(&node, &mut steps, &mut open);
        }
        if finals.is_empty() {
            return Verdict::Impossible;
        }
        Verdict::Possible(finals.into_iter().collect())
    }

    fn is_over(&self, node: &Node) -> bool {
        node.at
            .iter()
            .zip(self.done)
            .all(|(at, done)| at.0 == done.operations.len())
    }

    /// Returns the current operation of a process, if it can have begun.
    fn current(&self, node: &Node, w: usize) -> Option<&Operation> {
        let index = node.at[w].0;
        let operation = self.done[w].operations.get(index)?;
        let earlier = &self.before[w][index];
        node.at
            .iter()
            .zip(earlier)
            .all(|(at, n)| at.0 >= *n)
            .then_some(operation)
    }

    /// Lets all operations that only read see this state. No possibility is lost: a read changes
    /// nothing, so it may happen at the first moment that fits.
    fn look(&self, node: &mut Node) {
        loop {
            let mut changed = false;
            for w in 0..self.done.len() {
                let Some(operation) = self.current(node, w) else {
                    continue;
                };
                let worker = self.done[w].worker;
                if operation.unknown() {
                    node.state.haunt(operation, worker);
                    node.at[w] = (node.at[w].0 + 1, None);
                    changed = true;
                    continue;
                }
                let mut progress = match node.at[w].1 {
                    Some(progress) => progress,
                    None => node.state.begin(operation, worker),
                };
                if progress.stage == LOOKS
                    && node
                        .state
                        .look(operation, worker, &mut progress, self.rules)
                {
                    node.at[w] = (node.at[w].0 + 1, None);
                    changed = true;
                } else {
                    node.at[w].1 = Some(progress);
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn step_workers(&self, node: &Node, steps: &mut Vec<After>, open: &mut Vec<Node>) {
        for w in 0..self.done.len() {
            let (Some(operation), (index, Some(progress))) = (self.current(node, w), node.at[w])
            else {
                continue;
            };
            Stepping {
                operation,
                worker: self.done[w].worker,
                rules: self.rules,
                out: steps,
            }
            .step(&node.state, progress);
            for after in steps.drain(..) {
                let mut at = node.at.clone();
                at[w] = if after.over {
                    (index + 1, None)
                } else {
                    (index, Some(after.progress))
                };
                open.push(Node {
                    state: after.state,
                    at,
                });
            }
        }
    }

    fn step_ghosts(&self, node: &Node, steps: &mut Vec<After>, open: &mut Vec<Node>) {
        for ghost in &node.state.ghosts {
            let of_now = || {
                self.done
                    .iter()
                    .flat_map(|d| &d.operations)
                    .find(|o| o.id == ghost.id)
            };
            let Some(operation) = self.cut.get(&ghost.id).or_else(of_now) else {
                continue;
            };
            Stepping {
                operation,
                worker: ghost.worker,
                rules: self.rules,
                out: steps,
            }
            .step(&node.state, ghost.progress);
            for mut after in steps.drain(..) {
                if after.over {
                    after.state.ghosts.retain(|g| g.id != ghost.id);
                } else if let Some(g) = after.state.ghosts.iter_mut().find(|g| g.id == ghost.id) {
                    g.progress = after.progress;
                }
                open.push(Node {
                    state: after.state,
                    at: node.at.clone(),
                });
            }
        }
    }
}

/// Returns a hash of 128 bits of a node, which is taken as different for all nodes of a search.
fn fingerprint(node: &Node) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, &node.state, &node.at).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0x5eed) << 64 | half(0xfeed)
}

/// Returns the smallest impossible part of a phase: the operations that had ended when the first
/// impossible result appeared, without those that only read other objects.
pub fn smallest(starts: &[State], done: Vec<Done>, cut: &Cut, rules: Rules) -> Vec<Done> {
    let impossible = |done: &[Done]| {
        matches!(
            search(starts, done, cut, rules, 30_000),
            Verdict::Impossible
        )
    };
    let mut ends: Vec<u64> = done
        .iter()
        .flat_map(|d| d.operations.iter().map(|o| o.end))
        .collect();
    ends.sort_unstable();
    let found = ends
        .iter()
        .map(|end| until(&done, *end))
        .find(|d| impossible(d));
    let Some(mut done) = found else { return done };
    for w in 0..done.len() {
        let mut index = done[w].operations.len();
        while index > 0 {
            index -= 1;
            let o = done[w].operations[index];
            // If a file was opened only for reading, leave out all operations on it together.
            let with_it =
                |x: &Operation| x.slot == o.slot && (x.call.needs_open() || x.call == Call::Open);
            let closed = done[w].operations[index + 1..]
                .iter()
                .position(|x| x.slot == o.slot && x.call == Call::Close);
            let mut less: Vec<Operation> = done[w].operations.clone();
            if o.call == Call::Open && o.errno == 0 && o.only_looks() {
                let Some(closed) = closed else { continue };
                let mut place = 0;
                less.retain(|x| {
                    place += 1;
                    place <= index || place > index + closed + 2 || !with_it(x)
                });
            } else if o.only_looks() && (o.call != Call::Open || o.errno != 0) {
                less.remove(index);
            } else {
                continue;
            }
            let all = std::mem::replace(&mut done[w].operations, less);
            if !impossible(&done) {
                done[w].operations = all;
            }
        }
    }
    done
}

/// Returns the operations known at a moment. Those in progress at that time may or may not have
/// been carried out.
fn until(done: &[Done], moment: u64) -> Vec<Done> {
    let known = |o: &Operation| {
        let mut o = *o;
        if o.end > moment {
            (o.end, o.errno) = (0, 0);
        }
        o
    };
    done.iter()
        .map(|d| Done {
            worker: d.worker,
            operations: d
                .operations
                .iter()
                .filter(|o| o.start < moment)
                .map(known)
                .collect(),
        })
        .collect()
}
