//! Limits of a daemon's use of its host: cores, memory, network.

use crate::Error;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

/// Minimum memory that a daemon needs. Bytes.
pub const LEAST_MEMORY: u64 = 32 << 20;
/// Maximum number of bytes of requests that one node has in progress.
const MAX_IN_PROGRESS: u64 = 256 << 20;

/// Limits on a daemon. None: no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The cores on which the daemon's threads may run.
    pub cpus: Option<Cpus>,
    /// Memory of the daemon itself, without the pool's media and records, since all processes share
    /// those. Bytes.
    pub memory: Option<u64>,
    /// Maximum bandwidth to other nodes, and from them. Bytes per second.
    pub bandwidth: Option<u64>,
}

impl Limits {
    /// Whether any limit is set.
    pub fn any(&self) -> bool {
        *self != Limits::default()
    }

    /// Checks the limits, for a request timeout of `request_timeout` seconds.
    ///
    /// # Errors
    /// [`Error::LittleMemory`], [`Error::LittleBandwidth`].
    pub fn check(&self, request_timeout: f64) -> Result<(), Error> {
        if self.memory.is_some_and(|m| m < LEAST_MEMORY) {
            let least = LEAST_MEMORY;
            return Err(Error::LittleMemory { least });
        }
        // It must be possible to transfer all requests in progress of a node within the request
        // timeout.
        let least = (MAX_IN_PROGRESS as f64 / request_timeout) as u64;
        if self.bandwidth.is_some_and(|b| b < least) {
            return Err(Error::LittleBandwidth {
                request_timeout,
                least,
            });
        }
        Ok(())
    }
}

/// A choice of cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cpus {
    /// This number of the host's cores.
    Count(usize),
    /// These cores.
    List(Vec<usize>),
}

impl Cpus {
    /// Chooses cores out of `all` for the daemon number `index` of its host: the last ones, since
    /// systems and schedulers use the first ones first. Several daemons get different cores while
    /// there are enough.
    ///
    /// # Errors
    /// [`Error::AbsentCore`] if a core of the list doesn't exist.
    pub fn pick(&self, all: &[usize], index: usize) -> Result<Vec<usize>, Error> {
        match self {
            Cpus::List(list) => match list.iter().find(|c| !all.contains(c)) {
                Some(c) => Err(Error::AbsentCore(*c)),
                None => Ok(list.clone()),
            },
            Cpus::Count(count) => {
                let n = all.len();
                let count = (*count).min(n);
                let at = |k: usize| all[n - 1 - (index * count + k) % n];
                let mut picked: Vec<usize> = (0..count).map(at).collect();
                picked.sort_unstable();
                picked.dedup();
                Ok(picked)
            }
        }
    }
}

/// Parses a number such as `4`, or a list such as taskset's: `0-3,8`; a list of one core ends with
/// a comma.
impl FromStr for Cpus {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cpus, Error> {
        let bad = || Error::NoCores(text.to_owned());
        let number = |t: &str| t.trim().parse::<usize>().ok().filter(|c| *c < 4096);
        if !text.contains([',', '-']) {
            let count = number(text).filter(|n| *n > 0).ok_or_else(bad)?;
            return Ok(Cpus::Count(count));
        }
        let mut list = Vec::new();
        for part in text.split(',').filter(|p| !p.trim().is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            match (number(from), number(to)) {
                (Some(from), Some(to)) if from <= to => list.extend(from..=to),
                _ => return Err(bad()),
            }
        }
        list.sort_unstable();
        list.dedup();
        if list.is_empty() {
            Err(bad())
        } else {
            Ok(Cpus::List(list))
        }
    }
}

/// The cores that this process may run on.
pub fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
}

/// Binds all threads of this process to these cores.
///
/// # Errors
/// [`Error::Unbound`] if the kernel refuses it.
pub fn bind(cores: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|c| set.set(*c));
    let bound = |tid: i32| rustix::thread::sched_setaffinity(Pid::from_raw(tid), &set);
    let mut done = BTreeSet::new();
    let mut passes_without_new = 0;
    loop {
        // A thread that is just being created has the cores of its creator, and may not be listed
        // yet. So the loop repeats until no new threads are listed, and once more.
        let tasks = std::fs::read_dir("/proc/self/task")
            .map_err(|e| Error::Unbound(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        let tasks = tasks
            .flatten()
            .filter_map(|t| t.file_name().to_str()?.parse().ok());
        let new: Vec<i32> = tasks.filter(|t| !done.contains(t)).collect();
        if new.is_empty() {
            passes_without_new += 1;
            if passes_without_new > 1 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for task in new {
            match bound(task) {
                Ok(()) | Err(Errno::SRCH) => done.insert(task),
                Err(e) => return Err(Error::Unbound(e)),
            };
        }
    }
}

/// A daemon's budget of memory and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Maximum number of bytes of received requests that aren't carried out yet.
    pub requests: usize,
    /// Maximum number of unused buffers for requests that are kept for reuse.
    pub kept: usize,
    /// Maximum number of bytes of replies that aren't sent yet.
    pub replies: usize,
    /// Maximum number of bytes of replies in the reply cache.
    pub remembered: usize,
    /// Maximum number of threads, for each class of threads that has a maximum.
    pub threads: usize,
}

impl Budget {
    /// The budget for these limits and this number of cores.
    pub fn of(limits: &Limits, cores: Option<usize>) -> Budget {
        // Several threads for each core, since threads wait most of the time.
        let threads = cores.map_or(32, |n| (8 * n).clamp(4, 32));
        let Some(memory) = limits.memory else {
            return Budget {
                requests: MAX_IN_PROGRESS as usize,
                kept: 16,
                // Limited by how much other nodes have requested.
                replies: usize::MAX,
                remembered: 64 << 20,
                threads,
            };
        };
        // Half of the minimum is for the program itself, its stacks and its connections.
        let rest = (memory - memory.min(LEAST_MEMORY / 2)) as usize;
        Budget {
            requests: (rest / 2).min(MAX_IN_PROGRESS as usize),
            kept: ((rest / 4) >> 20).clamp(1, 16),
            replies: (rest / 4).min(MAX_IN_PROGRESS as usize),
            remembered: (rest / 8).min(64 << 20),
            // Each thread may hold a reply.
            threads: threads.min(((rest / 8) >> 20).max(2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores() {
        let cpus = |text: &str| text.parse::<Cpus>();
        assert_eq!(cpus("3"), Ok(Cpus::Count(3)));
        assert_eq!(cpus("0-2,7, 5"), Ok(Cpus::List(vec![0, 1, 2, 5, 7])));
        assert_eq!(cpus("4,"), Ok(Cpus::List(vec![4])));
        for bad in ["", "0", "x", ",", "3-1", "1-", "-1", "1,x", "99999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
        let all = [0, 1, 2, 3, 8, 9];
        let pick = |c: Cpus, i| c.pick(&all, i).unwrap();
        assert_eq!(pick(Cpus::Count(2), 0), [8, 9]);
        assert_eq!(pick(Cpus::Count(2), 1), [2, 3]);
        assert_eq!(pick(Cpus::Count(2), 3), [8, 9]);
        assert_eq!(pick(Cpus::Count(4), 1), [0, 1, 8, 9]);
        assert_eq!(pick(Cpus::Count(100), 5), all);
        assert_eq!(pick(Cpus::List(vec![1, 9]), 7), [1, 9]);
        assert!(Cpus::List(vec![4]).pick(&all, 0).is_err());
    }

    #[test]
    fn budgets_add_up() {
        for memory in [32 << 20, 48 << 20, 64 << 20, 200 << 20, 1 << 30, 16 << 30] {
            let limits = Limits {
                memory: Some(memory),
                ..Limits::default()
            };
            let b = Budget::of(&limits, None);
            let sum = b.requests + b.replies + b.remembered + (b.threads << 20);
            assert!(sum as u64 <= memory - LEAST_MEMORY / 2 + (1 << 20), "{b:?}");
            assert!(b.replies >= 1 << 20 && b.requests >= 2 << 20 && b.threads >= 2);
        }
        let one = Budget::of(&Limits::default(), Some(1));
        assert_eq!(one.threads, 8);
    }

    #[test]
    fn what_is_too_little() {
        let limits = |memory, bandwidth| Limits {
            cpus: None,
            memory,
            bandwidth,
        };
        assert!(limits(Some(31 << 20), None).check(10.0).is_err());
        assert!(limits(Some(32 << 20), Some(26 << 20)).check(10.0).is_ok());
        let why = limits(None, Some(26 << 20)).check(5.0).unwrap_err();
        let why = why.to_string();
        assert!(why.contains("at least 52M"), "{why}");
    }
}
