//! The driver: starts the workers, commands them phase by phase, and has each phase checked by the
//! search.

use crate::calls;
use crate::host::{Host, Processes};
use crate::memory::{Command, Shared, wait, wake};
use crate::model::{Rules, State};
use crate::operation::{Call, Operation, lost};
use crate::options::Options;
use crate::random::Random;
use crate::search::{Cut, Done, Verdict, search, smallest};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Maximum number of steps of a search before it is given up.
const LIMIT: usize = 400_000;
/// Number of phases in one directory.
const ROUND: u32 = 150;

/// How a run ended.
pub enum End {
    Fine,
    /// A history that no POSIX file system could have produced.
    Impossible,
    /// A call didn't return in time.
    Hang,
}

/// Runs phases and judges them.
pub struct Driver<'a> {
    options: &'a Options,
    shared: &'static Shared,
    host: &'a mut dyn Host,
    /// The number of each worker's process.
    numbers: Vec<u16>,
    next_number: u16,
    states: Vec<State>,
    cut: Cut,
    random: Random,
    counts: Counts,
    /// The latest kill of a worker happened at this time or later. Nanoseconds.
    killed: u64,
}

#[derive(Default)]
struct Counts {
    phases: u64,
    operations: u64,
    together: u64,
    lost: u64,
    killed: u64,
    undecided: u64,
    states: usize,
}

/// Runs phases until the limit of time or number, or until an error is found.
pub fn run(options: &Options) -> Result<End, String> {
    let path = PathBuf::from(format!(
        "/dev/shm/forebay-check-{}-{:x}",
        std::process::id(),
        calls::now()
    ));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let shared = Shared::map(&file).map_err(|e| format!("mmap: {e}"))?;
    let mut host = Processes::new(options, path.clone());
    let end = Driver::new(options, shared, &mut host).drive();
    let _ = std::fs::remove_file(&path);
    end
}

impl<'a> Driver<'a> {
    /// Makes a driver for the workers of `host`, which share the memory `shared`.
    pub fn new(options: &'a Options, shared: &'static Shared, host: &'a mut dyn Host) -> Self {
        shared.seed.store(options.seed, Relaxed);
        shared.phase.store(1, Relaxed);
        Driver {
            options,
            shared,
            host,
            numbers: Vec::new(),
            next_number: 0,
            states: vec![State::new()],
            cut: Cut::new(),
            random: Random::new(options.seed),
            counts: Counts::default(),
            killed: 0,
        }
    }

    /// Runs phases until the limit of time or number, or until an error is found.
    ///
    /// # Errors
    /// The reason why the driver couldn't run, in words.
    pub fn drive(mut self) -> Result<End, String> {
        let end = self.run();
        self.end();
        let c = &self.counts;
        println!(
            "seed {}: {} phases, {} operations, {} pairs of them at the same time, {} cut off, {} processes \
             killed, {} phases undecided, at most {} states",
            self.options.seed,
            c.phases,
            c.operations,
            c.together,
            c.lost,
            c.killed,
            c.undecided,
            c.states
        );
        end
    }
}

impl Driver<'_> {
    fn run(&mut self) -> Result<End, String> {
        for w in 0..self.options.workers {
            self.start(w)?;
            self.numbers.push(self.next_number);
            self.next_number += 1;
        }
        for w in 0..self.options.workers {
            self.wait_for(w)?;
        }
        let until = Instant::now() + Duration::from_secs(self.options.seconds);
        let mut fresh = 0;
        while self.counts.phases < self.options.phases && Instant::now() < until {
            // In a new directory, operations of earlier phases that were cut off can't take effect
            // any more.
            let haunted = self.states.iter().any(|s| !s.ghosts.is_empty());
            if fresh == 0 || haunted || self.states.len() > 2000 {
                if let Some(end) = self.begin()? {
                    return Ok(end);
                }
                fresh = ROUND;
            }
            fresh -= 1;
            if let Some(end) = self.phase()? {
                return Ok(end);
            }
        }
        Ok(End::Fine)
    }

    fn start(&mut self, w: usize) -> Result<(), String> {
        self.shared.worker[w].phase.store(0, Relaxed);
        self.host.start(w)
    }

    /// Waits until a new worker is ready.
    fn wait_for(&mut self, w: usize) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(self.options.bound);
        let phase = self.shared.phase.load(Relaxed);
        loop {
            let ended = self.shared.ended.load(Acquire);
            if self.shared.worker[w].phase.load(Acquire) == phase {
                return Ok(());
            }
            if let Some(status) = self.host.ended(w) {
                return Err(format!("worker {w} ended at once: {status}"));
            }
            if Instant::now() > until {
                return Err(format!("worker {w} isn't there in time"));
            }
            let turn = self.host.tick();
            wait(&self.shared.ended, ended, turn);
        }
    }

    /// Makes all workers carry out a command; for a command to one worker, `chosen` is its number.
    /// Kills worker `victim`, if any, and records the time in `killed`. Returns [`End::Hang`] if a
    /// worker hangs.
    fn command(
        &mut self,
        command: Command,
        chosen: usize,
        victim: Option<usize>,
    ) -> Result<Option<End>, String> {
        let shared = self.shared;
        shared.command.store(command as u32, Relaxed);
        shared.who.store(chosen as u32, Relaxed);
        shared.workers.store(self.options.workers as u32, Relaxed);
        shared.begun.store(0, Relaxed);
        let phase = shared.phase.load(Relaxed) + 1;
        shared.phase.store(phase, Release);
        wake(&shared.phase);
        if let Some(victim) = victim {
            let within = self.host.killed_within().as_micros() as u64;
            std::thread::sleep(Duration::from_micros(self.random.below(within)));
            self.killed = calls::now();
            self.host
                .kill(victim, shared.worker[victim].pid.load(Relaxed));
            self.counts.killed += 1;
        }
        let since = Instant::now();
        loop {
            let ended = shared.ended.load(Acquire);
            let mut missing = None;
            for w in 0..self.options.workers {
                if Some(w) != victim && shared.worker[w].phase.load(Acquire) != phase {
                    missing = Some(w);
                }
            }
            let Some(w) = missing else { break };
            if since.elapsed().as_millis() > 200
                && let Some(status) = self.host.ended(w)
                && shared.worker[w].phase.load(Acquire) != phase
            {
                return Err(format!("worker {w} ended in phase {phase}: {status}"));
            }
            if since.elapsed() > Duration::from_secs(self.options.bound) {
                return Ok(Some(self.hangs(phase)));
            }
            let turn = self.host.tick();
            wait(&shared.ended, ended, turn);
        }
        if let Some(victim) = victim {
            self.host.wait(victim);
        }
        Ok(None)
    }

    fn hangs(&self, phase: u32) -> End {
        println!(
            "HANG: phase {phase} isn't over after {} s (seed {})",
            self.options.bound, self.options.seed
        );
        for (w, worker) in self.shared.worker[..self.options.workers]
            .iter()
            .enumerate()
        {
            if worker.phase.load(Acquire) != phase {
                let last = worker.operations().last().map(ToString::to_string);
                println!(
                    "  worker {w}, process {}: {}",
                    worker.pid.load(Relaxed),
                    last.unwrap_or_default()
                );
            }
        }
        End::Hang
    }

    fn begin(&mut self) -> Result<Option<End>, String> {
        self.states = vec![State::new()];
        self.cut.clear();
        self.shared.round.fetch_add(1, Relaxed);
        let chosen = self.random.below(self.options.workers as u64) as usize;
        self.command(Command::Begin, chosen, None)
    }

    /// Runs one phase: random operations, usually followed by one worker's observation of all
    /// files. Then checks both.
    fn phase(&mut self) -> Result<Option<End>, String> {
        let n = self.options.workers;
        let victim = (self.options.kill > 0 && self.random.below(1000) < self.options.kill)
            .then(|| self.random.below(n as u64) as usize);
        if let Some(end) = self.command(Command::Work, n, victim)? {
            return Ok(Some(end));
        }
        let mut done: Vec<Done> = (0..n)
            .map(|w| Done {
                worker: self.numbers[w],
                operations: self.shared.worker[w].operations(),
            })
            .collect();
        if let Some(victim) = victim {
            // If the worker was killed before it began, its operations are still those of the
            // previous phase.
            let phase = self.shared.phase.load(Relaxed);
            done[victim].operations.retain(|o| o.is_of(phase));
            done[victim].operations.push(Operation {
                id: u32::MAX - u32::from(self.numbers[victim]),
                start: self.killed,
                ..Operation::of(Call::Death)
            });
            self.start(victim)?;
            self.wait_for(victim)?;
            self.numbers[victim] = self.next_number;
            self.next_number += 1;
        }
        if !self.random.once_in(4) {
            let chosen = self.random.below(n as u64) as usize;
            if let Some(end) = self.command(Command::Observe, chosen, None)? {
                return Ok(Some(end));
            }
            let seen = self.shared.worker[chosen].operations();
            if victim == Some(chosen) {
                done.push(Done {
                    worker: self.numbers[chosen],
                    operations: seen,
                });
            } else {
                done[chosen].operations.extend(seen);
            }
        }
        self.count(&done);
        Ok(self.check(done))
    }

    fn count(&mut self, done: &[Done]) {
        self.counts.phases += 1;
        for (w, d) in done.iter().enumerate() {
            self.counts.operations += d.operations.len() as u64;
            for o in &d.operations {
                self.counts.lost += u64::from(o.unknown() && o.call != Call::Death);
                let others = done[w + 1..].iter().flat_map(|d| &d.operations);
                let met = others
                    .filter(|x| x.start < o.end && o.start < x.end)
                    .count();
                self.counts.together += met as u64;
            }
        }
    }

    fn check(&mut self, done: Vec<Done>) -> Option<End> {
        if !self.options.faults
            && let Some(o) = done
                .iter()
                .flat_map(|d| &d.operations)
                .find(|o| lost(o.errno))
        {
            println!("nothing was cut off, but: {o} (seed {})", self.options.seed);
            return Some(End::Impossible);
        }
        let rules = Rules {
            by_cells: self.options.by_cells,
            pieces: self.options.pieces,
            ..Rules::default()
        };
        match search(&self.states, &done, &self.cut, rules, LIMIT) {
            Verdict::Possible(states) => {
                self.counts.states = self.counts.states.max(states.len());
                self.states = states;
                let all = done.iter().flat_map(|d| &d.operations);
                self.cut
                    .extend(all.filter(|o| o.unknown()).map(|o| (o.id, *o)));
                None
            }
            Verdict::Undecided => {
                self.counts.undecided += 1;
                // No state is known any more: more than 2000 states make the loop change to a new
                // directory.
                self.states.resize(2001, State::new());
                None
            }
            Verdict::Impossible => {
                self.report(done, rules);
                Some(End::Impossible)
            }
        }
    }

    fn report(&self, done: Vec<Done>, rules: Rules) {
        println!(
            "IMPOSSIBLE: no single POSIX file system could have done this (seed {}, phase {}, directory {}/r{}-{})",
            self.options.seed,
            self.shared.phase.load(Relaxed),
            self.options.top,
            self.options.seed,
            self.shared.round.load(Relaxed)
        );
        for state in self.states.iter().take(3) {
            println!(
                "  before, it was (one of {} possibilities):",
                self.states.len()
            );
            print!("{state}");
        }
        if self.options.whole {
            println!("  the whole phase, in microseconds, process (node):");
            self.print(&done);
        }
        println!("  then, in microseconds, process (node):");
        self.print(&smallest(&self.states, done, &self.cut, rules));
    }

    fn print(&self, done: &[Done]) {
        let mut all: Vec<(u16, &Operation)> = done
            .iter()
            .flat_map(|d| d.operations.iter().map(|o| (d.worker, o)))
            .collect();
        all.sort_by_key(|(_, o)| o.start);
        let first = all.first().map_or(0, |(_, o)| o.start);
        for (worker, o) in all {
            let micros = |t: u64| t.saturating_sub(first) as f64 / 1000.0;
            let node = self.numbers.iter().position(|n| *n == worker);
            println!(
                "    {:9.1} to {:9.1}  {worker} ({})  {}: {o}",
                micros(o.start),
                micros(o.end),
                node.map_or("?".into(), |w| (w as u64 % self.options.nodes).to_string()),
                crate::operation::shown(u64::from(o.id) << 8),
            );
        }
    }

    fn end(&mut self) {
        let phase = &self.shared.phase;
        self.shared.command.store(Command::End as u32, Relaxed);
        phase.fetch_add(1, Release);
        wake(phase);
        let workers = &self.shared.worker[..self.options.workers];
        let pids: Vec<u32> = workers.iter().map(|w| w.pid.load(Relaxed)).collect();
        self.host.end(&pids);
    }
}
