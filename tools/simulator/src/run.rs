//! One run of the simulator: a pool, its daemons, some workers, and faults.
//!
//! The first process of the run starts all others and is the checker's driver: it makes workers
//! carry out operations, phase by phase, and judges what they recorded. Meanwhile it kills daemons
//! and workers, and partitions nodes. At the end it checks that no resource is left over.

use crate::face::PoolFace;
use crate::network::{self, Simulated};
use crate::world::{self, NEVER, key, world};
use forebay_check::host::Host;
use forebay_check::later;
use forebay_check::memory::Shared;
use forebay_check::options::{Consistency, Options};
use forebay_check::random::Random;
use forebay_check::weak::{Kind, Weak};
use forebay_check::worker::Worker;
use forebay_check::{Driver, End};
use forebay_client::{CreateOptions, Keeper, Member, Pool, PoolConfig, node_dir};
use forebay_placement::map::{Address, Medium, MediumKind};
use forebay_placement::{Node, NodeId, PoolMap, State};
use forebay_pool::daemon::{self, Daemon};
use forebay_posix::{ChunkSize, Distribution, Fs, ObjectId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const NAME: &str = "sim";
const POOL: &str = "51515151515151515151515151515151";
const TOP: &str = "/t";
/// Nanoseconds per millisecond.
const MS: u64 = 1_000_000;
/// Time in a phase after which no more faults are injected. Nanoseconds.
const ENOUGH: u64 = 3_000 * MS;

/// The parameters that a seed decides, besides the order of all steps.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub nodes: u32,
    pub workers: usize,
    pub phases: u64,
    pub striped: bool,
    /// One in this many messages is lost, and cuts its connection; 0: none.
    pub lost: u32,
    /// Upper bound of the delay of most messages. Microseconds.
    pub delay: u64,
    /// Whether daemons are killed and started again; whether nodes are partitioned for a while.
    pub daemons: bool,
    pub apart: bool,
    /// Number of phases, of 1000, in which a worker is killed.
    pub kill: u64,
    /// The consistency of all files; None: sequential. For any other consistency, only the files'
    /// bytes are checked.
    pub consistency: Option<Consistency>,
    /// Whether the daemon and the workers of a node are killed together.
    pub hosts: bool,
    /// Average number of clock reads until another thread has its turn; 0: reads cause no switch.
    pub preempt: u32,
    /// Whether messages are printed.
    pub tell: bool,
}

impl Plan {
    /// Returns the plan for this seed.
    pub fn of(seed: u64) -> Plan {
        let mut r = Random::new(seed ^ 0x0051_a4f0);
        let nodes = 2 + r.below(3) as u32;
        let workers = (nodes as usize).max(3) + r.below(3) as usize;
        let (calm, lossy) = (r.once_in(5), r.once_in(2));
        let lost = [30, 100, 400][r.below(3) as usize];
        Plan {
            seed,
            nodes,
            workers,
            phases: 24,
            striped: r.once_in(3),
            lost: if !calm && lossy { lost } else { 0 },
            delay: [20, 200, 2000][r.below(3) as usize],
            daemons: !calm && r.once_in(3),
            apart: !calm && r.once_in(4),
            kill: if !calm && r.once_in(2) { 150 } else { 0 },
            preempt: [16, 64, 400][r.below(3) as usize],
            consistency: match r.below(12) {
                0..3 => Some(Consistency::Commit),
                3 => Some(Consistency::Session),
                4 => Some(Consistency::Eventual(5)),
                _ => None,
            },
            hosts: !calm && r.once_in(5),
            tell: false,
        }
    }

    fn faults(&self) -> bool {
        self.lost > 0 || self.daemons || self.apart || self.hosts
    }
}

/// The memory in which processes report to the first one.
#[repr(C)]
struct Progress {
    /// Number of processes that have finished, of those for which the first process waits.
    done: AtomicU32,
}

/// Starts a process that runs `f` in the world; returns its id.
fn process(f: impl FnOnce()) -> u32 {
    let task = world().new_task();
    // SAFETY: this process has one thread, so the child inherits no held lock.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: this prctl takes no pointer.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            world().arrive(task);
            f();
            // The parent kills this process: the moment of its end must not depend on the machine.
            loop {
                world().wait(key(u64::from(task), 0xe4d), NEVER);
            }
        }
        pid if pid > 0 => {
            world().set_process(task, pid as u32);
            pid as u32
        }
        _ => panic!("fork: {}", std::io::Error::last_os_error()),
    }
}

/// Kills a process, and waits until it has ended.
fn kill(pid: u32) {
    let mut status = 0;
    // SAFETY: the child is this process's own; waitpid writes only to `status`.
    unsafe {
        libc::kill(pid as i32, libc::SIGKILL);
        libc::waitpid(pid as i32, &mut status, 0);
    }
    world().forget(pid);
}

fn options(plan: &Plan) -> daemon::Options {
    let _ = plan;
    daemon::Options::default()
}

fn dir(node: u32) -> PathBuf {
    node_dir(NAME, node)
}

fn map(plan: &Plan) -> PoolMap {
    let node = |k: u32| {
        let address = network::address(k);
        Node {
            number: NodeId(k),
            name: format!("node{k}"),
            addresses: vec![Address {
                ip: address.ip(),
                port: address.port(),
            }],
            state: State::Up,
            since: 0,
            weight: 100,
            media: vec![Medium {
                kind: MediumKind::Memory,
                capacity: 64 << 20,
            }],
        }
    };
    PoolMap::first([0x51; 16], (0..plan.nodes).map(node).collect()).expect("a sound map")
}

/// Creates the store of a node.
fn make(plan: &Plan, node: u32) {
    let o = CreateOptions {
        name: NAME.into(),
        mount: "/fb".into(),
        media: vec!["memory:64M".parse().expect("a medium")],
        reserve: Some(0),
        rules: Default::default(),
        origin: None,
    };
    let member = Member {
        node,
        nodes: plan.nodes,
    };
    let config = PoolConfig::of_node(&o, POOL, member).expect("a node can be made");
    Pool::create_node(&config, &[7; 32]).expect("a node can be made");
}

/// Runs the daemon and the keeper of a node.
fn keep(plan: &Plan, dir: &Path) {
    let daemon = Daemon::listen_over(dir, options(plan), |n| Ok(Simulated::start(n)));
    let daemon = daemon.expect("the daemon starts");
    let pool = daemon.pool().expect("it has a pool").clone();
    let keeper = Keeper::take_charge(pool).expect("it has no keeper");
    let map = daemon::read_map(dir).unwrap_or_else(|| map(plan));
    daemon.serve(Arc::new(map)).expect("it serves");
    keeper.run().expect("it keeps");
}

fn open(node: u32) -> Fs {
    Fs::for_program(Arc::new(
        Pool::open_dir(&dir(node)).expect("the node is there"),
    ))
}

/// Checks that a node's store is intact, and that no resource is left over.
fn inspect(node: u32) {
    let pool = Pool::open_dir(&dir(node)).expect("the node is there");
    let store = pool.store();
    for table in forebay_store::tables::all(store.control()) {
        if table.used > 0 {
            broken(&format!(
                "node {node}: {} of {} are left over",
                table.used, table.name
            ));
        }
    }
    if store.locks().has_remote_locks() {
        broken(&format!("node {node}: locks of other nodes are left over"));
    }
    for (what, found) in [
        ("is damaged", forebay_store::fsck::check(store)),
        (
            "doesn't fit",
            pool.cluster()
                .checks()
                .inspect_across()
                .map(|r| r.findings.iter().map(|f| format!("{f:?}")).collect()),
        ),
    ] {
        match found {
            Ok(found) if found.is_empty() => {}
            found => broken(&format!("node {node} {what}: {found:#?}")),
        }
    }
}

fn broken(what: &str) {
    println!("BROKEN: {what}");
    world().broken.store(1, SeqCst);
}

/// The processes of a run.
struct Processes<'a> {
    plan: &'a Plan,
    options: &'a Options,
    progress: &'static Progress,
    path: PathBuf,
    daemons: Vec<Option<u32>>,
    /// When each killed daemon is started again. Nanoseconds.
    back: Vec<u64>,
    workers: Vec<u32>,
    /// Number of workers started so far; and the times at which the workers that use files with
    /// weaker consistency begin and end.
    started: u64,
    span: (u64, u64),
    calm: bool,
    shared: &'static Shared,
    /// The phase's number, and the time when it began. Nanoseconds.
    phase: (u32, u64),
}

impl Processes<'_> {
    fn start_daemon(&mut self, node: u32) {
        let plan = self.plan;
        let pid = process(|| keep(plan, &dir(node)));
        self.daemons[node as usize] = Some(pid);
    }

    fn kill_daemon(&mut self, node: u32, back: u64) {
        if let Some(pid) = self.daemons[node as usize].take() {
            println!("{:12.3} ms: the daemon of node {node} is killed", ms());
            kill(pid);
            network::wires().gone(node);
            self.back[node as usize] = world().now() + back;
        }
    }

    /// Makes workers write, commit and read files with weaker consistency, and judges what these
    /// workers recorded.
    fn later(&mut self, consistency: Consistency) -> Result<End, String> {
        let (world, plan) = (world(), self.plan);
        self.progress.done.store(0, SeqCst);
        let begin = world.now() + 300 * MS;
        self.span = (begin, begin + plan.phases * 50 * MS);
        for w in 0..plan.workers {
            self.start(w)?;
        }
        let mut killed = 0;
        while world.now() < self.span.1 {
            let turn = self.tick().as_nanos() as u64;
            world.sleep(turn);
            if plan.kill > 0 && world.now() < self.span.1 && world.once_in(30) {
                let w = world.below(plan.workers as u64) as usize;
                self.kill(w, 0);
                self.start(w)?;
                killed += 1;
            }
        }
        let bound = world.now() + 120_000 * MS;
        while (self.progress.done.load(SeqCst) as usize) < plan.workers {
            let turn = self.tick().as_nanos() as u64;
            world.sleep(turn);
            if world.now() > bound {
                self.end(&[]);
                return Ok(End::Hang);
            }
        }
        self.end(&[]);
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        later::judge_notes(dir, plan.seed, self.started, consistency, killed)
    }

    /// Runs `f` for each node in turn, each time in a process of its own.
    fn each(&self, f: impl Fn(u32)) {
        for node in 0..self.plan.nodes {
            self.progress.done.store(0, SeqCst);
            let pid = process(|| {
                f(node);
                self.progress.done.store(1, SeqCst);
            });
            let until = world().now() + 200_000 * MS;
            while self.progress.done.load(SeqCst) == 0 {
                world().sleep(MS);
                if world().now() > until {
                    world().report("a process doesn't end");
                    break;
                }
            }
            kill(pid);
        }
    }
}

fn ms() -> f64 {
    world().elapsed() as f64 / 1e6
}

impl Host for Processes<'_> {
    fn start(&mut self, w: usize) -> Result<(), String> {
        let (plan, options, path, progress) = (self.plan, self.options, &self.path, self.progress);
        let node = w as u32 % plan.nodes;
        let number = self.started;
        self.started += 1;
        let span = self.span;
        let pid = process(|| {
            let mut face = PoolFace::new(open(node));
            if plan.consistency.is_some() {
                let notes = path.with_file_name(number.to_string());
                let mut words = vec![notes.display().to_string(), TOP.into()];
                let numbers = [span.0, span.1, plan.seed, number, options.cell as u64, 0];
                words.extend(numbers.map(|n| n.to_string()));
                if let Err(e) = later::work(&words, &mut face) {
                    broken(&format!("worker {w}: {e}"));
                }
                progress.done.fetch_add(1, SeqCst);
                // The face isn't dropped: it ends with this process, which the parent kills.
                return std::mem::forget(face);
            }
            let file = std::fs::File::options().read(true).write(true).open(path);
            let shared = Shared::map(&file.expect("it is there")).expect("it can be mapped");
            let weak = Weak::new(Kind::Nothing, Box::new(face));
            let (cell, most, locks) = (options.cell, options.operations, options.locks());
            let mut worker = Worker::new(shared, w, &options.top, cell, most, locks, weak);
            if let Err(e) = worker.work() {
                broken(&format!("worker {w}: {e}"));
            }
            std::mem::forget(worker);
        });
        match self.workers.get_mut(w) {
            Some(old) => *old = pid,
            None => self.workers.push(pid),
        }
        Ok(())
    }

    fn ended(&mut self, _w: usize) -> Option<String> {
        None
    }

    fn kill(&mut self, w: usize, _pid: u32) {
        println!("{:12.3} ms: worker {w} is killed", ms());
        kill(self.workers[w]);
        // When a host fails, several processes die at once.
        if self.plan.hosts && self.plan.consistency.is_none() && world().once_in(2) {
            let node = w as u32 % self.plan.nodes;
            self.kill_daemon(node, world().below(500 * MS));
        }
    }

    fn wait(&mut self, _w: usize) {}

    fn tick(&mut self) -> Duration {
        let (world, plan) = (world(), self.plan);
        let now = world.now();
        let phase = self.shared.phase.load(SeqCst);
        if phase != self.phase.0 {
            self.phase = (phase, now);
        }
        // Late in a phase, no more faults are injected: a phase that doesn't end then hangs.
        let calm = self.calm || plan.consistency.is_none() && now > self.phase.1 + ENOUGH;
        for node in 0..plan.nodes {
            if self.daemons[node as usize].is_none() && now >= self.back[node as usize] {
                self.start_daemon(node);
            }
        }
        if plan.daemons && !calm && world.once_in(60) {
            let back = [MS, 20 * MS, 2_000 * MS][world.below(3) as usize];
            let node = world.below(plan.nodes.into()) as u32;
            self.kill_daemon(node, world.below(back));
        }
        if plan.hosts && !calm && now < self.span.1 && world.once_in(200) {
            let node = world.below(plan.nodes.into()) as u32;
            self.kill_daemon(node, world.below(500 * MS));
            for w in (0..plan.workers).filter(|w| *w as u32 % plan.nodes == node) {
                self.kill(w, 0);
                let _ = self.start(w);
            }
        }
        if plan.apart && !calm && world.once_in(60) {
            let a = world.below(plan.nodes.into()) as u32;
            let b = (a + 1 + world.below(u64::from(plan.nodes) - 1) as u32) % plan.nodes;
            let most = [10 * MS, 200 * MS, 3_000 * MS][world.below(3) as usize];
            println!("{:12.3} ms: nodes {a} and {b} don't reach each other", ms());
            network::wires().part(a, b, now + world.below(most));
        }
        Duration::from_micros(300 + world.below(3 * plan.delay))
    }

    fn killed_within(&self) -> Duration {
        Duration::from_micros(10 * self.plan.delay)
    }

    fn end(&mut self, _pids: &[u32]) {
        for pid in std::mem::take(&mut self.workers) {
            kill(pid);
        }
    }
}

/// Does the run, in this process and its children. Returns whether no error was found.
pub fn run(plan: &Plan) -> bool {
    let (world, wires) = (world::make(), network::make());
    world.preempt.store(plan.preempt, SeqCst);
    world.begin(plan.seed);
    wires.delay.store(plan.delay * 1000, SeqCst);
    std::panic::set_hook(Box::new(|p| {
        println!("BROKEN: {p}");
        crate::world::world().broken.store(1, SeqCst);
    }));
    // SAFETY: the memory stays mapped, and zeros are a valid `Progress`.
    let progress = unsafe { &*world::shared(size_of::<Progress>()).cast::<Progress>() };
    let path = forebay_client::home().join("operations");
    std::fs::create_dir_all(forebay_client::home()).expect("a home can be made");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let shared = Shared::map(&file.expect("it can be made")).expect("it can be mapped");
    let options = Options {
        workers: plan.workers,
        nodes: plan.nodes.into(),
        phases: plan.phases,
        seconds: 1_000_000_000,
        seed: plan.seed,
        operations: 5,
        // If a daemon is killed in the middle of a request, it isn't known whether the request was
        // carried out. Losses of the network must have no effect.
        faults: plan.daemons || plan.hosts,
        pieces: plan.striped,
        kill: plan.kill,
        bound: 120,
        ..Options::of(TOP)
    };
    let mut host = Processes {
        plan,
        options: &options,
        progress,
        path,
        daemons: vec![None; plan.nodes as usize],
        back: vec![0; plan.nodes as usize],
        workers: Vec::new(),
        started: 0,
        span: (0, 0),
        calm: true,
        shared,
        phase: (0, 0),
    };
    host.each(|node| make(plan, node));
    (0..plan.nodes).for_each(|node| host.start_daemon(node));
    world.sleep(100 * MS);
    host.each(|node| {
        if node == 0 {
            let distribution = if plan.striped {
                Distribution::Striped(ChunkSize::LEAST)
            } else {
                Distribution::Local
            };
            let made = open(0).mkdir_with(TOP.as_bytes(), 0o755, distribution);
            made.expect("a directory can be made");
            let what = match plan.consistency {
                None => return,
                Some(Consistency::Commit) => "consistency=commit".into(),
                Some(Consistency::Session) => "consistency=session".into(),
                Some(Consistency::Eventual(ms)) => format!("consistency=eventual({ms}ms)"),
            };
            let fs = open(0);
            let id = ObjectId(fs.stat(TOP.as_bytes(), true).expect("it is there").ino);
            let set = fs.set_controls(id, what.parse().expect("a control"));
            set.expect("the controls of a directory can be declared");
        }
    });
    wires.lost.store(plan.lost, SeqCst);
    wires.tell.store(u32::from(plan.tell), SeqCst);
    host.calm = !plan.faults();
    let end = match plan.consistency {
        None => Driver::new(&options, shared, &mut host).drive(),
        Some(consistency) => host.later(consistency),
    };
    wires.lost.store(0, SeqCst);
    host.calm = true;
    match end {
        Ok(End::Fine) => {}
        Ok(End::Impossible) => world.broken.store(1, SeqCst),
        Ok(End::Hang) => world.report("operations hang"),
        Err(e) => broken(&e),
    }
    if world.broken.load(SeqCst) == 0 {
        // Waits until daemons have been started again and keepers have released what dead processes
        // held.
        let until = world.now() + 30_000 * MS;
        while world.now() < until {
            world.sleep(10 * MS);
            host.tick();
        }
        host.each(inspect);
    }
    println!(
        "seed {}: {:.3} s of virtual time, {} switches, {} messages lost, trace {:016x}",
        plan.seed,
        world.elapsed() as f64 / 1e9,
        world.switches.load(SeqCst),
        wires.losses.load(SeqCst),
        world.trace(),
    );
    for pid in host.daemons.iter().flatten() {
        kill(*pid);
    }
    world.broken.load(SeqCst) == 0
}
