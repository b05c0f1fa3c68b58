//! Counters as numbers to show: by kind of operation, for a process, a node or a pool.

use forebay_trace::block::{Block, CLASSES, OPERATIONS, Times, begin_of_class};
use forebay_trace::clock::Scale;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

/// Durations of operations. Only some operations are timed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Durations {
    /// Number of timed operations.
    pub timed: u64,
    /// Sum of their durations. Nanoseconds.
    pub nanoseconds: u64,
    /// Number of timed operations by class. The key is the class's upper bound in nanoseconds.
    /// Empty classes are left out.
    pub classes: BTreeMap<u64, u64>,
}

/// Returns the count of the class whose bound is within a tenth of `bound`. Bounds of a class
/// differ slightly between readings and between nodes, because each reading measures the length of
/// a clock tick. Bounds of different classes differ by at least a third.
fn same_class(classes: &mut BTreeMap<u64, u64>, bound: u64) -> Option<&mut u64> {
    let (from, to) = (bound - bound / 10, bound + bound / 10);
    classes.range_mut(from..=to).next().map(|(_, count)| count)
}

impl Durations {
    fn of(times: &Times, scale: &Scale) -> Durations {
        let mut classes = BTreeMap::new();
        for (i, class) in times.classes.iter().enumerate() {
            let count = class.load(Relaxed);
            if count > 0 {
                let end = begin_of_class((i + 1).min(CLASSES));
                *classes.entry(scale.length(end)).or_default() += count;
            }
        }
        Durations {
            timed: times.timed.load(Relaxed),
            nanoseconds: scale.length(times.ticks.load(Relaxed)),
            classes,
        }
    }

    /// Adds other durations.
    pub fn add(&mut self, other: &Durations) {
        self.timed += other.timed;
        self.nanoseconds += other.nanoseconds;
        for (&class, count) in &other.classes {
            match same_class(&mut self.classes, class) {
                Some(mine) => *mine += count,
                None => *self.classes.entry(class).or_default() += count,
            }
        }
    }

    fn less(&mut self, earlier: &Durations) {
        self.timed = self.timed.saturating_sub(earlier.timed);
        self.nanoseconds = self.nanoseconds.saturating_sub(earlier.nanoseconds);
        for (&class, count) in &earlier.classes {
            if let Some(now) = same_class(&mut self.classes, class) {
                *now = now.saturating_sub(*count);
            }
        }
    }

    /// Returns the mean duration. Nanoseconds.
    pub fn mean(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.nanoseconds as f64 / self.timed as f64)
    }

    /// Returns the duration that a share of the operations doesn't exceed, rounded up to its
    /// class's bound. Nanoseconds.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let all: u64 = self.classes.values().sum();
        let mut left = (all as f64 * share).ceil().max(1.0) as u64;
        for (&class, &count) in &self.classes {
            if count >= left {
                return Some(class);
            }
            left -= count;
        }
        None
    }
}

/// Counters of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Number of operations.
    pub count: u64,
    /// Number of bytes that the operations moved.
    pub bytes: u64,
    /// Number of operations that failed.
    pub errors: u64,
    /// Number of operations that sent a request to another node.
    pub remote: u64,
    /// Durations of the operations that were timed.
    pub durations: Durations,
}

impl Counted {
    /// Estimates the time of all operations: the mean of the timed ones, times the number of all.
    /// Nanoseconds.
    pub fn time(&self) -> f64 {
        self.durations.mean().unwrap_or(0.0) * self.count as f64
    }
}

/// Counters of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Operations by the name of their kind; kinds without operations are left out.
    pub operations: BTreeMap<String, Counted>,
    /// Bytes sent to other nodes.
    pub sent: u64,
    /// Bytes received from other nodes.
    pub received: u64,
    /// Number and durations of requests to other nodes.
    #[serde(rename = "asks")]
    pub requests: Durations,
    /// Number and durations of waits for locks.
    pub waits: Durations,
}

impl Totals {
    /// Returns the totals of a block of counters.
    pub fn of(block: &Block, scale: &Scale) -> Totals {
        let mut operations = BTreeMap::new();
        for &(kind, name) in OPERATIONS {
            let sum = block.sum(kind as usize);
            if sum.count == 0 {
                continue;
            }
            let counted = Counted {
                count: sum.count,
                bytes: sum.bytes,
                errors: sum.errors,
                remote: sum.remote,
                durations: Durations::of(&block.times[kind as usize], scale),
            };
            operations.insert(name.to_owned(), counted);
        }
        Totals {
            operations,
            sent: block.requests.sent.load(Relaxed),
            received: block.requests.received.load(Relaxed),
            requests: Durations::of(&block.requests.times, scale),
            waits: Durations::of(&block.waits, scale),
        }
    }

    /// Adds other totals.
    pub fn add(&mut self, other: &Totals) {
        for (name, counted) in &other.operations {
            let mine = self.operations.entry(name.clone()).or_default();
            mine.count += counted.count;
            mine.bytes += counted.bytes;
            mine.errors += counted.errors;
            mine.remote += counted.remote;
            mine.durations.add(&counted.durations);
        }
        self.sent += other.sent;
        self.received += other.received;
        self.requests.add(&other.requests);
        self.waits.add(&other.waits);
    }

    /// Returns these counters minus `earlier` ones.
    pub fn since(&self, earlier: &Totals) -> Totals {
        let mut rest = self.clone();
        for (name, before) in &earlier.operations {
            if let Some(now) = rest.operations.get_mut(name) {
                now.count = now.count.saturating_sub(before.count);
                now.bytes = now.bytes.saturating_sub(before.bytes);
                now.errors = now.errors.saturating_sub(before.errors);
                now.remote = now.remote.saturating_sub(before.remote);
                now.durations.less(&before.durations);
            }
        }
        rest.operations.retain(|_, counted| counted.count > 0);
        rest.sent = rest.sent.saturating_sub(earlier.sent);
        rest.received = rest.received.saturating_sub(earlier.received);
        rest.requests.less(&earlier.requests);
        rest.waits.less(&earlier.waits);
        rest
    }

    /// Returns the sum over all kinds of operations.
    pub fn all(&self) -> Counted {
        let mut all = Counted::default();
        for counted in self.operations.values() {
            all.count += counted.count;
            all.bytes += counted.bytes;
            all.errors += counted.errors;
            all.remote += counted.remote;
        }
        all
    }

    /// Estimates the time of all operations. Nanoseconds.
    pub fn time(&self) -> f64 {
        // (The sum of no numbers would be -0.)
        self.operations
            .values()
            .map(Counted::time)
            .fold(0.0, |all, time| all + time)
    }

    /// Returns the number of bytes of one kind of operation.
    pub fn bytes(&self, kind: &str) -> u64 {
        self.operations.get(kind).map_or(0, |c| c.bytes)
    }
}

/// The counters of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// The process's node.
    pub node: u32,
    /// Process id. 0: the sum of ended processes whose slots other processes have got.
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// The process's counters.
    pub totals: Totals,
}

/// Returns the counters of the processes of a node.
///
/// # Errors
/// Errors of reading the shared memory.
pub fn of_node(node: &crate::node::Node) -> Result<Vec<Process>, rustix::io::Errno> {
    let scale = node.scale();
    let process = |block: &Block| Process {
        node: node.number.0,
        process: block.process.load(Relaxed),
        program: block.program(),
        totals: Totals::of(block, &scale),
    };
    Ok(node.counted()?.iter().map(|block| process(block)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_two_readings_are_the_same_though_ticks_were_measured_again() {
        let durations = |classes: &[(u64, u64)]| Durations {
            timed: classes.iter().map(|c| c.1).sum(),
            nanoseconds: 0,
            classes: classes.iter().copied().collect(),
        };
        let mut now = durations(&[(394, 10), (100_000_007, 4), (150_000_010, 1)]);
        now.less(&durations(&[(393, 7), (100_000_001, 4)]));
        assert_eq!((now.timed, now.quantile(0.5)), (4, Some(394)));
        assert_eq!(now.quantile(1.0), Some(150_000_010));
        now.add(&durations(&[(395, 2), (593, 1)]));
        assert_eq!(now.classes[&394], 5);
        assert_eq!(now.classes[&593], 1);
    }
}
