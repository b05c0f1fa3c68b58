//! The threads that read a pool's state, so that the screen never waits.
//!
//! One thread reads the shared memory of this host's nodes, which never blocks. One asks the
//! daemons for the nodes' states, and may wait as long as the pool's request timeout. Up to
//! [`MAX_POLLING_THREADS`] run `forebay stats` on the other hosts; a silent host delays only the
//! hosts of the same thread. One looks up names of files. All of them write to one [`Known`].
//!
//! The mutex of `Known` is held only for copying. Lock order: `Known` before the tally.

use super::files::Tally;
use super::known::{Known, Medium, NodeState, Stuck, Survey, Violations};
use super::names::Found;
use super::rings::Rings;
use crate::fail::{Fail, code};
use crate::found::{named, open_all};
use crate::peers::Peers;
use crate::slow::SlowOperation;
use crate::survey::{self, State};
use crate::trace::nodes;
use crate::{slow, stats};
use forebay_client::{MediumUsage, Pool, keeper_pid, places};
use forebay_runtime::process::is_stopped;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of threads that ask other hosts.
const MAX_POLLING_THREADS: usize = 32;
/// How often a thread checks whether it should end, and reads the rings again, which hold only the
/// newest events.
const STEP: Duration = Duration::from_millis(50);
/// Each host is asked for its slow operations only once in this many intervals.
const SLOW_EVERY: u32 = 5;
/// Pause after a lookup that left files without names.
const UNKNOWN_NAME_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of violations kept for the screen.
const LATEST_VIOLATIONS: usize = 50;

/// State that the threads share.
struct Shared {
    pool: String,
    every: Duration,
    known: Mutex<Known>,
    tally: Mutex<Tally>,
    files: AtomicBool,
    ends: AtomicBool,
}

/// The threads that collect a pool's figures.
pub struct Collector {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Locks a mutex, even if a thread that held it has panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Collector {
    /// Begins to collect the pool's figures.
    ///
    /// # Errors
    /// If the pool doesn't exist, or a thread can't be started.
    pub fn begin(pool: &str, every: Duration, files: bool) -> Result<Collector, Fail> {
        drop(nodes(pool)?);
        let peers = Peers::look(pool)?;
        let mut known = Known {
            pool: pool.to_owned(),
            every,
            ..Known::default()
        };
        let hosts: Vec<String> = peers
            .iter()
            .flat_map(Peers::hosts)
            .map(str::to_owned)
            .collect();
        for host in hosts.iter().map(String::as_str).chain([""]) {
            known.sources.insert(host.to_owned(), Default::default());
        }
        let shared = Arc::new(Shared {
            pool: pool.to_owned(),
            every,
            known: Mutex::new(known),
            tally: Mutex::default(),
            files: AtomicBool::new(files),
            ends: AtomicBool::new(false),
        });
        let mut collector = Collector {
            shared,
            threads: Vec::new(),
        };
        collector.start("top-here", Shared::look_here)?;
        collector.start("top-survey", Shared::survey)?;
        collector.start("top-names", Shared::names)?;
        if let Some(peers) = peers.map(Arc::new) {
            let askers = hosts.len().min(MAX_POLLING_THREADS);
            for i in 0..askers {
                let mine: Vec<String> = hosts.iter().skip(i).step_by(askers).cloned().collect();
                let peers = peers.clone();
                collector.start("top-host", move |shared| shared.ask(&peers, &mine))?;
            }
        }
        Ok(collector)
    }

    fn start(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), Fail> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || work(&shared));
        let thread = thread.map_err(|e| Fail::failed(format!("can't start a thread: {e}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Locks and returns all that is known so far.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.shared.known)
    }

    /// Switches the collection of files and directories on or off.
    pub fn show_files(&self, on: bool) {
        self.shared.files.store(on, Release);
    }

    /// Ends the threads. Waits at most 1 s and leaves threads that wait for a host: the process
    /// ends soon.
    pub fn end(self) {
        self.shared.ends.store(true, Release);
        let until = Instant::now() + Duration::from_secs(1);
        for thread in self.threads {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn ends(&self) -> bool {
        self.ends.load(Acquire)
    }

    /// Changes the collected figures, and marks them as changed.
    fn tell(&self, change: impl FnOnce(&mut Known)) {
        let mut known = lock(&self.known);
        change(&mut known);
        known.version += 1;
    }

    /// Sleeps until `next`, or until the threads are to end. Calls `step` every [`STEP`].
    fn wait(&self, next: Instant, mut step: impl FnMut()) {
        while !self.ends() {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(STEP));
            step();
        }
    }

    /// Reads the shared memory of this host's nodes, once in each interval.
    fn look_here(&self) {
        let mut next = Instant::now();
        let mut rings: Option<Rings> = None;
        let mut begun = next;
        while !self.ends() {
            let wanted = self.files.load(Acquire);
            if wanted != rings.is_some() {
                rings = if wanted {
                    Rings::begin(&self.pool).ok()
                } else {
                    None
                };
                if rings.is_none() {
                    super::rings::switch_off();
                }
                *lock(&self.tally) = Tally::default();
                self.tell(|known| known.hot = None);
                begun = Instant::now();
            } else if let Some(rings) = &mut rings {
                let mut tally = lock(&self.tally);
                rings.read(&mut tally);
                let mut hot = tally.take(begun.elapsed());
                begun = Instant::now();
                hot.off = !rings.are_on();
                drop(tally);
                self.tell(|known| known.hot = Some(hot));
            }
            if places(&self.pool).is_empty() {
                let gone = format!("the pool '{}' has been removed", self.pool);
                self.tell(|known| known.gone = Some(gone));
                return;
            }
            self.read_here();
            next = (next + self.every).max(Instant::now());
            self.wait(next, || {
                if let Some(rings) = &mut rings {
                    rings.read(&mut lock(&self.tally));
                }
            });
        }
    }

    fn read_here(&self) {
        let counters = stats::here(&self.pool).map_err(|e| e.message);
        let slow = nodes(&self.pool).map(|n| n.iter().flat_map(slow::of_node).collect());
        let found = violations(&self.pool);
        self.tell(|known| {
            let source = known.sources.entry(String::new()).or_default();
            source.update(counters);
            if let Ok(slow) = slow {
                source.slow = slow;
            }
            known.violations = found;
        });
    }

    /// Asks these hosts for their counters, one after the other, once in each interval.
    fn ask(&self, peers: &Peers, hosts: &[String]) {
        let mut turn = 0u32;
        while !self.ends() {
            let next = Instant::now() + self.every;
            for host in hosts {
                let output = peers.output(host, &stats::ask_host(&self.pool));
                let counters = stats::read(host, output);
                let answers = counters.is_ok();
                self.tell(|known| {
                    known
                        .sources
                        .entry(host.clone())
                        .or_default()
                        .update(counters)
                });
                if answers && turn.is_multiple_of(SLOW_EVERY) {
                    self.ask_slow(peers, host);
                }
                if self.ends() {
                    return;
                }
            }
            turn = turn.wrapping_add(1);
            self.wait(next, || {});
        }
    }

    fn ask_slow(&self, peers: &Peers, host: &str) {
        let arguments = ["trace", "slow", "--json", "--here", "--pool", &self.pool];
        let Ok(output) = peers.output(host, &arguments) else {
            return;
        };
        if let Ok(slow) = serde_json::from_slice::<Vec<SlowOperation>>(&output) {
            self.tell(|known| known.sources.entry(host.to_owned()).or_default().slow = slow);
        }
    }

    /// Asks for the states of all nodes, once in each interval.
    fn survey(&self) {
        while !self.ends() {
            let next = Instant::now() + self.every;
            let stuck = stuck(&self.pool);
            self.tell(|known| known.stuck = stuck);
            let found = look(&self.pool);
            self.tell(|known| match found {
                Ok(survey) => {
                    known.survey = Some(survey);
                    known.failed = None;
                }
                Err(e) => known.failed = Some(e.message),
            });
            self.wait(next, || {});
        }
    }

    /// Looks up the names of files that the tally doesn't know yet.
    fn names(&self) {
        while !self.ends() {
            let mut pause = STEP * 4;
            if self.files.load(Acquire) {
                let unknown = lock(&self.tally).unknown();
                if !unknown.is_empty() {
                    Found::look(&self.pool, &unknown).tell(&mut lock(&self.tally));
                    // Files that were removed after their use have no names any more.
                    if !lock(&self.tally).unknown().is_empty() {
                        pause = UNKNOWN_NAME_RETRY_INTERVAL;
                    }
                }
            }
            self.wait(Instant::now() + pause, || {});
        }
    }
}

/// Returns the violations recorded on this host's nodes.
fn violations(pool: &str) -> Violations {
    let mut found = crate::violations::read(places(pool).into_iter().map(|place| place.dir));
    found.all.sort_by_key(|v| std::cmp::Reverse(v.time));
    let (count, refused) = (
        found.all.len(),
        found.all.iter().filter(|v| v.refused).count(),
    );
    found.all.truncate(LATEST_VIOLATIONS);
    Violations {
        count,
        refused,
        full: found.full,
        latest: found.all,
        unread: found.unread.into_iter().map(|e| e.message).collect(),
    }
}

/// Returns the processes on this host that wait for a stopped process.
fn stuck(pool: &str) -> Vec<Stuck> {
    let of = |pool: Arc<Pool>| {
        let node = pool.config().member.map_or(0, |m| m.node);
        let found = forebay_store::process::stuck(pool.store().control()).into_iter();
        let found = found.map(move |(waiter, holder)| Stuck {
            node,
            waiter: named(&[waiter]),
            holder: named(&[holder]),
            holder_pid: holder,
        });
        found.collect::<Vec<_>>()
    };
    open_all(pool).into_iter().flat_map(of).collect()
}

fn medium(u: &MediumUsage) -> Medium {
    Medium {
        used: u.used,
        capacity: u.capacity,
    }
}

/// Returns the time since `created`, which is in seconds since 1970.
fn since(created: i64) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_sub(Duration::from_secs(created.max(0) as u64))
}

/// Returns the states of all nodes of a pool.
///
/// # Errors
/// If the pool doesn't exist or can't be read.
fn look(name: &str) -> Result<Survey, Fail> {
    if !places(name).iter().any(|p| p.node.is_some()) {
        let pool = Pool::open(name)?;
        let state = match pool.keeper_pid() {
            None => State::Dead,
            Some(pid) if is_stopped(pid) => State::Paused,
            Some(_) => State::Up,
        };
        let node = NodeState {
            number: 0,
            state,
            media: pool.usage().iter().map(medium).collect(),
            processes: pool.attached().len(),
        };
        return Ok(Survey {
            at: Instant::now(),
            up_for: since(pool.config().created),
            nodes: vec![node],
        });
    }
    let found = survey::Survey::of(name)?;
    // A daemon that is silent because it has died since the survey began counts as dead.
    let died = |k: &survey::Known| {
        let here = k.here.as_ref();
        here.is_some_and(|h| keeper_pid(&h.place.dir).is_none())
    };
    let node = |k: &survey::Known| NodeState {
        number: k.node.number.0,
        state: match k.state {
            State::Unreachable if died(k) => State::Dead,
            state => state,
        },
        media: (k.use_of.iter())
            .flat_map(|u| u.media.iter().map(medium))
            .collect(),
        processes: k.use_of.as_ref().map_or(0, |u| u.processes),
    };
    let nodes: Vec<NodeState> = found.nodes.iter().map(node).collect();
    if nodes.is_empty() {
        return Err(Fail::new(
            code::NO_POOL,
            format!("the pool '{name}' has no nodes"),
        ));
    }
    Ok(Survey {
        at: Instant::now(),
        up_for: since(found.config.created),
        nodes,
    })
}
