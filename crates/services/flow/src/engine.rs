//! The engine moves runs from state to state: it starts them, notices when they end, and adopts the
//! runs of an earlier service.
//!
//! One thread makes one pass after the other. All state that a pass needs is in the records and in
//! the runs' directories. So if the service is killed, the next one can continue everything.
//!
//! ```text
//! queued --> running --> succeeded | failed | cancelled
//!    ^          |  '---> waiting (for an approval) --> queued
//!    '--lost----'
//! ```

use crate::area::{self, Area};
use crate::launch;
use crate::records::{Executor, Run, Stage, State, Workflow};
use crate::service::{Done, Service, Which};
use crate::{Result, now, slurm};
use forebay_runtime::threads::lock;
use rustix::fs::FlockOperation;
use std::collections::{HashMap, HashSet};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pause between two passes.
const PASS: Duration = Duration::from_millis(300);
/// Time within which a keeper must have locked its run. Seconds.
const BEGIN: u64 = 10;
/// Time after which Snakemake is killed if it hasn't ended on request. Seconds.
const ENDING: u64 = 30;
/// Time after a failure until work on a workflow is tried again.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Engine {
    service: Arc<Service>,
    /// The keepers that this service has started, by run.
    children: HashMap<Which, Child>,
    /// Process groups of Snakemake that were asked to end, by run.
    asked: HashMap<Which, String>,
    /// Workflows on which a thread is working, and the times at which work on workflows failed.
    busy: Arc<Mutex<HashSet<(String, String)>>>,
    failed: Arc<Mutex<HashMap<(String, String), Instant>>>,
}

/// The result of checking a run in state Running.
enum Found {
    Alive,
    Exit(i32),
    /// The run's processes have ended, and have left no exit code.
    Gone,
}

impl Engine {
    pub fn new(service: Arc<Service>) -> Engine {
        Engine {
            service,
            children: HashMap::new(),
            asked: HashMap::new(),
            busy: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Makes passes until `is_over` returns true.
    pub fn work(&mut self, is_over: &dyn Fn() -> bool) {
        while !is_over() {
            self.pass();
            std::thread::sleep(PASS);
        }
    }

    fn pass(&mut self) {
        let all: Vec<Workflow> = {
            let records = self.service.records();
            let is_due = |w: &&Workflow| match w.state {
                Stage::Deleting => true,
                // A killed service left the workflow unfinished, unless this service is making it
                // now.
                Stage::Making => !self.service.is_making(w),
                Stage::Ready => w.is_active(),
            };
            records.all().filter(is_due).cloned().collect()
        };
        for w in all {
            match w.state {
                Stage::Deleting | Stage::Making => self.delete(w),
                Stage::Ready => {
                    for run in w.runs.iter().filter(|r| !r.state.is_over()) {
                        if self.waits(&w) {
                            continue;
                        }
                        if let Err(refusal) = self.step(&w, run) {
                            let what = format!("{}/{}/{}", w.owner, w.name, run.number);
                            self.service.tell(&format!("{what}: {}", refusal.message));
                            note_failure(&self.failed, &w);
                        }
                    }
                }
            }
        }
    }

    /// Whether work on a workflow has to wait: a thread is working on the workflow, or such work
    /// failed less than [`AGAIN`] ago.
    fn waits(&self, w: &Workflow) -> bool {
        let key = (w.owner.clone(), w.name.clone());
        let failed = lock(&self.failed);
        let busy = lock(&self.busy);
        busy.contains(&key) || failed.get(&key).is_some_and(|at| at.elapsed() < AGAIN)
    }

    /// Does long work for a workflow in a separate thread.
    fn aside(
        &self,
        w: &Workflow,
        work: impl FnOnce(&Service, &Workflow) -> Result<()> + Send + 'static,
    ) {
        let key = (w.owner.clone(), w.name.clone());
        let mut busy = lock(&self.busy);
        if !busy.insert(key.clone()) {
            return;
        }
        drop(busy);
        let (service, w) = (Arc::clone(&self.service), w.clone());
        let (busy, failed) = (Arc::clone(&self.busy), Arc::clone(&self.failed));
        std::thread::spawn(move || {
            if let Err(why) = work(&service, &w) {
                service.tell(&format!("{}/{}: {why}", w.owner, w.name));
                note_failure(&failed, &w);
            }
            let mut busy = lock(&busy);
            busy.remove(&key);
        });
    }

    fn delete(&mut self, w: Workflow) {
        if !self.waits(&w) {
            self.aside(&w, |service, w| {
                let account = service.account(&w.owner).map_err(|r| r.message)?;
                service.unmake(&account, w, true)
            });
        }
    }

    fn step(&mut self, w: &Workflow, run: &Run) -> Done<()> {
        match run.state {
            State::Queued => self.start(w, run),
            State::Running => {
                if run.cancelled.is_some() {
                    self.end(w, run)?;
                }
                let found = self.look(w, run)?;
                self.ended(w, run, found)
            }
            _ => Ok(()),
        }
    }

    fn change(&self, w: &Workflow, run: &Run, change: impl FnOnce(&mut Run)) -> Result<()> {
        let number = run.number;
        let mut records = self.service.records();
        records.change(&w.owner, &w.name, |w| w.run_mut(number).map(change))?;
        Ok(())
    }

    /// Starts a run's next attempt. The attempt is recorded before its keeper is started, since a
    /// keeper without a record would be lost.
    fn start(&mut self, w: &Workflow, run: &Run) -> Done<()> {
        let account = self.service.account(&w.owner);
        let account = match account {
            Ok(account) => account,
            Err(refusal) => {
                let end = |r: &mut Run| r.end(State::Failed, refusal.message);
                return Ok(self.change(w, run, end)?);
            }
        };
        self.service.records().change(&w.owner, &w.name, |w| {
            // Includes rules approved since the pass began. Later approvals take effect when
            // Snakemake ends.
            let omitted = w.run(run.number).map(|r| w.unapproved(r));
            if let Some(r) = w.run_mut(run.number) {
                r.omitted = omitted.unwrap_or_default();
                r.state = State::Running;
                r.attempt += 1;
                r.attempted = now();
                r.message = format!("attempt {}", r.attempt);
            }
        })?;
        let w = self.service.workflow(&w.owner, &w.name)?;
        let Some(run) = w.run(run.number) else {
            return Ok(());
        };
        let places = self.service.places(&w, run.number);
        let log = account.act().and_then(|_acting| launch::prepare(&places));
        let config = &self.service.config;
        match log.and_then(|log| launch::start(config, &account, &w, run, &places, log)) {
            Ok(child) => {
                self.children.insert(which(&w, run), child);
            }
            Err(why) => self.change(&w, run, |r| r.end(State::Failed, why))?,
        }
        Ok(())
    }

    /// Checks whether a run is alive.
    fn look(&mut self, w: &Workflow, run: &Run) -> Done<Found> {
        let key = which(w, run);
        let mut is_ours = false;
        if let Some(child) = self.children.get_mut(&key) {
            match child.try_wait() {
                Ok(None) => is_ours = true,
                _ => {
                    self.children.remove(&key);
                }
            }
        }
        if is_ours || self.is_locked(w, run)? {
            return Ok(Found::Alive);
        }
        let name = format!("exit-{}", run.attempt);
        let (code, _) = self.service.run_file(w, run.number, &name, 0, 16)?;
        match String::from_utf8_lossy(&code).trim().parse() {
            Ok(code) => Ok(Found::Exit(code)),
            Err(_) if now() < run.attempted + BEGIN && self.is_new(w, run)? => Ok(Found::Alive),
            Err(_) => Ok(Found::Gone),
        }
    }

    /// Whether the keeper may not have begun yet: the lock's file and the log are empty.
    fn is_new(&self, w: &Workflow, run: &Run) -> Done<bool> {
        let (_, size) = self.service.run_file(w, run.number, "lock", 0, 0)?;
        let (log, _) = self.service.run_file(w, run.number, "log", 0, 1)?;
        Ok(size == 0 && log.is_empty())
    }

    /// Whether the run's keeper or Snakemake is alive: one of them holds the lock.
    fn is_locked(&self, w: &Workflow, run: &Run) -> Done<bool> {
        let account = self.service.account(&w.owner)?;
        let _acting = account.act()?;
        let area = match Area::open(&self.service.places(w, run.number).run) {
            Err(area::Error::Absent) => return Ok(false),
            other => other?,
        };
        let file = match area.get("lock") {
            Err(area::Error::Absent) => return Ok(false),
            other => other?.0,
        };
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        Ok(locked == Err(rustix::io::Errno::WOULDBLOCK))
    }

    /// Makes a cancelled run end: by SIGINT first, by SIGKILL after [`ENDING`].
    fn end(&mut self, w: &Workflow, run: &Run) -> Done<()> {
        let key = which(w, run);
        let (pid, _) = self.service.run_file(w, run.number, "pid", 0, 16)?;
        let pid = String::from_utf8_lossy(&pid).trim().to_owned();
        if pid.is_empty() || !self.is_locked(w, run)? {
            return Ok(());
        }
        let account = self.service.account(&w.owner)?;
        let is_late = run.cancelled.is_some_and(|at| at + ENDING < now());
        if is_late {
            launch::signal(&account, &pid, "KILL");
        } else if self.asked.get(&key) != Some(&pid) {
            launch::signal(&account, &pid, "INT");
            self.asked.insert(key, pid);
        }
        Ok(())
    }

    fn ended(&mut self, w: &Workflow, run: &Run, found: Found) -> Done<()> {
        let most = self.service.config.limits.restarts;
        if let Found::Alive = found {
            return Ok(());
        }
        self.asked.remove(&which(w, run));
        if run.cancelled.is_some() && w.executor == Executor::Slurm {
            let (id, number) = (run.id.clone(), run.number);
            self.aside(w, move |service, w| {
                let account = service.account(&w.owner).map_err(|r| r.message)?;
                slurm::clear(&id, &|program: &str| {
                    let mut command = account.command(program);
                    command.envs(&service.config.environment);
                    command
                })?;
                let end = |r: &mut Run| r.end(State::Cancelled, "on request");
                let mut records = service.records();
                records.change(&w.owner, &w.name, |w| w.run_mut(number).map(end))?;
                Ok(())
            });
            return Ok(());
        }
        self.change(w, run, |r| {
            r.exit = match found {
                Found::Exit(code) => Some(code),
                _ => None,
            };
            match found {
                _ if r.cancelled.is_some() => r.end(State::Cancelled, "on request"),
                Found::Exit(0) if r.omitted.is_empty() => {
                    r.end(State::Succeeded, "all jobs are done")
                }
                Found::Exit(0) => {
                    // Some of the omitted rules may have been approved while the attempt was
                    // running.
                    let is_waiting = |rule: &&String| !r.approvals.iter().any(|a| a.rule == **rule);
                    let left: Vec<&str> =
                        r.omitted.iter().filter(is_waiting).map(|s| &**s).collect();
                    (r.state, r.message) = if left.len() == r.omitted.len() {
                        let what = format!("for an approval of: {}", left.join(", "));
                        (State::Waiting, what)
                    } else {
                        (State::Queued, "to go on with what was approved".into())
                    };
                }
                Found::Exit(code) => {
                    let why = format!("Snakemake ended with exit code {code}: see the log");
                    r.end(State::Failed, why);
                }
                _ if r.lost >= most => {
                    r.end(
                        State::Failed,
                        format!("its processes were gone {} times", r.lost + 1),
                    );
                }
                _ => {
                    r.lost += 1;
                    r.state = State::Queued;
                    r.message = "to be started again: its processes were gone".into();
                }
            }
        })?;
        if w.campaign.is_some() {
            let (service, w) = (Arc::clone(&self.service), w.clone());
            std::thread::spawn(move || service.count(&w, true));
        }
        Ok(())
    }
}

fn note_failure(failed: &Mutex<HashMap<(String, String), Instant>>, w: &Workflow) {
    let mut failed = lock(failed);
    failed.insert((w.owner.clone(), w.name.clone()), Instant::now());
}

fn which(w: &Workflow, run: &Run) -> Which {
    (w.owner.clone(), w.name.clone(), run.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account;
    use crate::config::Config;
    use crate::records::FORMAT;
    use std::collections::BTreeMap;

    #[test]
    fn only_workflows_that_an_earlier_service_left_unfinished_are_deleted() {
        let dir = std::env::temp_dir().join(format!("forebay-flow-making-{}", std::process::id()));
        let config = Config::parse("root = true", &dir).unwrap();
        let service = Arc::new(Service::open(&dir, config, |_| ()).unwrap());
        let owner = account::own().unwrap().name;
        for name in ["left", "ours"] {
            let w = Workflow {
                format: FORMAT,
                name: name.into(),
                owner: owner.clone(),
                created: 1,
                state: Stage::Making,
                executor: Executor::Local,
                approve: Vec::new(),
                campaign: None,
                uploads: BTreeMap::new(),
                runs: Vec::new(),
            };
            service.records().add(w).unwrap();
        }
        let making = service.begin_making(&owner, "ours");
        let mut engine = Engine::new(Arc::clone(&service));
        let names = || {
            let records = service.records();
            let names = records.of(&owner).map(|w| w.name.clone());
            names.collect::<Vec<_>>()
        };
        let wait_for = |engine: &mut Engine, left: &[&str]| {
            let until = Instant::now() + Duration::from_secs(20);
            while names() != left {
                assert!(Instant::now() < until, "there are {:?}", names());
                engine.pass();
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        wait_for(&mut engine, &["ours"]);
        engine.pass();
        assert_eq!(names(), ["ours"]);
        // The record stays in state Making, as if making the workflow had failed and the record
        // couldn't be removed.
        drop(making);
        wait_for(&mut engine, &[]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
