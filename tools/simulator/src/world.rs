//! The world of a simulation: virtual time, and a token. Of all threads of all processes, only the
//! one that has the token runs.
//!
//! The world lies in memory that all processes of a simulation share. Each of their threads is a
//! *task*. The task with the token passes it on when it waits (see [`crate::taken`], which replaces
//! libc's functions for waiting). The seed decides which task is next. When no task can go on, the
//! time jumps to the earliest deadline. So nothing depends on the machine, and the same seed gives
//! the same run.
//!
//! Nothing here needs a lock: only the task with the token reads and writes.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Maximum number of tasks at the same time.
pub const TASKS: usize = 1024;
/// A deadline that never comes. Nanoseconds.
pub const NEVER: u64 = u64::MAX;
/// In place of a task: the thread isn't simulated.
pub const NONE: u32 = u32::MAX;
/// The time on all clocks when a world begins. Nanoseconds.
const BEGINNING: u64 = 1_000_000_000_000;
/// Virtual time that reading a clock takes. Nanoseconds.
const LOOK: u64 = 150;
/// Virtual time that a yield takes. Nanoseconds.
const GIVE_WAY: u64 = 1_000;

/// States of a task.
const FREE: u32 = 0;
const READY: u32 = 1;
const BLOCKED: u32 = 2;
const RUNNING: u32 = 3;

/// A thread of a simulated process.
#[repr(C)]
pub struct Task {
    state: AtomicU32,
    /// A futex word: 1 while the task has the token.
    go: AtomicU32,
    key: AtomicU64,
    deadline: AtomicU64,
    timed_out: AtomicU32,
    /// The id of the task's process.
    pub pid: AtomicU32,
    pub tid: AtomicU32,
    /// The thread's pthread id.
    pub thread: AtomicU64,
}

/// The state that the processes of a simulation share, except the network's messages.
#[repr(C)]
pub struct World {
    now: AtomicU64,
    random: AtomicU64,
    /// Number of times that the token was passed: shows whether the run makes progress.
    pub switches: AtomicU64,
    /// Hash of all decisions so far.
    trace: AtomicU64,
    /// Tasks with this index and higher ones have never been used.
    used: AtomicU32,
    /// Average number of clock reads until the reading task loses the token; 0: it never does.
    pub preempt: AtomicU32,
    /// Whether something forbidden has happened: a panic, or that no task can go on.
    pub broken: AtomicU32,
    tasks: [Task; TASKS],
}

static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// This thread's task.
    static ME: std::cell::Cell<u32> = const { std::cell::Cell::new(NONE) };
}

/// Maps `bytes` zero bytes, which child processes will share.
pub fn shared(bytes: usize) -> *mut u8 {
    let (all, how) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: the kernel chooses unused addresses, so no mapping is replaced.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, all, how, -1, 0) };
    assert!(at != libc::MAP_FAILED, "no memory");
    at.cast()
}

/// Makes the world of this process's children.
pub fn make() -> &'static World {
    let world: *mut World = shared(size_of::<World>()).cast();
    WORLD.store(world, SeqCst);
    // SAFETY: the world stays mapped, and zeros are a valid value of it.
    unsafe { &*world }
}

/// Returns the world. There must be one.
pub fn world() -> &'static World {
    // SAFETY: only processes in a simulation call this, so the world was made; it stays mapped.
    unsafe { &*WORLD.load(SeqCst) }
}

/// Whether this thread is simulated.
pub fn is_simulated() -> bool {
    ME.get() != NONE
}

/// Returns a key for waiting, made of two numbers.
pub fn key(a: u64, b: u64) -> u64 {
    mix(a ^ mix(b))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn sleep_for_real(word: &AtomicU32) {
    while word.swap(0, SeqCst) == 0 {
        let none = 0;
        let wait = libc::c_long::from(libc::FUTEX_WAIT);
        crate::real::real_syscall(libc::SYS_futex, word.as_ptr() as i64, wait, 0, none, 0, 0);
    }
}

impl World {
    /// Begins a simulation with this seed. The calling thread becomes the first task and has the
    /// token.
    pub fn begin(&self, seed: u64) {
        self.now.store(BEGINNING, SeqCst);
        self.random.store(mix(seed ^ 0x5eed), SeqCst);
        let me = self.new_task();
        self.task(me).state.store(RUNNING, SeqCst);
        self.here_is(me);
    }

    /// The virtual time. Nanoseconds.
    pub fn now(&self) -> u64 {
        self.now.load(SeqCst)
    }

    /// Hash of all decisions so far: the same in each run of a seed.
    pub fn trace(&self) -> u64 {
        self.trace.load(SeqCst)
    }

    /// Adds a decision to the hash of decisions.
    pub fn note(&self, what: u64) {
        self.trace
            .store(mix(self.trace().rotate_left(5) ^ what), SeqCst);
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        let next = self.random.load(SeqCst).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.store(next, SeqCst);
        mix(next)
    }

    /// A random number from 0 to `n` - 1.
    pub fn below(&self, n: u64) -> u64 {
        self.random() % n.max(1)
    }

    /// True in one of `n` calls on average; never if `n` is 0.
    pub fn once_in(&self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    fn task(&self, index: u32) -> &Task {
        &self.tasks[index as usize]
    }

    /// Creates a task for a thread or process that is about to begin.
    pub fn new_task(&self) -> u32 {
        let free = |t: &Task| t.state.load(SeqCst) == FREE;
        let Some(index) = self.tasks.iter().position(free) else {
            self.report("too many tasks");
            std::process::abort();
        };
        let task = &self.tasks[index];
        task.go.store(0, SeqCst);
        task.timed_out.store(0, SeqCst);
        task.thread.store(0, SeqCst);
        task.pid.store(std::process::id(), SeqCst);
        task.tid.store(0, SeqCst);
        task.state.store(READY, SeqCst);
        let used = self.used.load(SeqCst).max(index as u32 + 1);
        self.used.store(used, SeqCst);
        index as u32
    }

    /// Frees a task whose thread couldn't be started.
    pub fn drop_task(&self, index: u32) {
        self.task(index).state.store(FREE, SeqCst);
    }

    /// Sets the process of a task that is about to begin.
    pub fn set_process(&self, index: u32, pid: u32) {
        self.task(index).pid.store(pid, SeqCst);
    }

    /// Virtual time since the beginning. Nanoseconds.
    pub fn elapsed(&self) -> u64 {
        self.now() - BEGINNING
    }

    fn here_is(&self, index: u32) {
        ME.set(index);
        let task = self.task(index);
        task.pid.store(std::process::id(), SeqCst);
        let tid = crate::real::real_syscall(libc::SYS_gettid, 0, 0, 0, 0, 0, 0);
        task.tid.store(tid as u32, SeqCst);
    }

    /// Makes this thread the task `index`, and waits until it has the token.
    pub fn arrive(&self, index: u32) {
        sleep_for_real(&self.task(index).go);
        self.here_is(index);
    }

    /// Sets a task's pthread id, by which [`World::thread_runs`] finds it.
    pub fn set_thread(&self, index: u32, thread: u64) {
        self.task(index).thread.store(thread, SeqCst);
    }

    /// Whether the thread `thread` of this process still runs.
    pub fn thread_runs(&self, thread: u64) -> bool {
        let pid = std::process::id();
        self.all().any(|t| {
            t.state.load(SeqCst) != FREE
                && t.pid.load(SeqCst) == pid
                && t.thread.load(SeqCst) == thread
        })
    }

    fn all(&self) -> impl Iterator<Item = &Task> {
        self.tasks[..self.used.load(SeqCst) as usize].iter()
    }

    /// Picks one of the tasks that can go on, marks it as running and returns its index. If no task
    /// can go on, the clock moves to the earliest deadline.
    fn pick(&self) -> u32 {
        loop {
            let now = self.now();
            let can = |t: &Task| match t.state.load(SeqCst) {
                READY => true,
                BLOCKED => t.deadline.load(SeqCst) <= now,
                _ => false,
            };
            let n = self.all().filter(|t| can(t)).count();
            if n > 0 {
                let which = if n == 1 {
                    0
                } else {
                    self.below(n as u64) as usize
                };
                let found = self.all().enumerate().filter(|(_, t)| can(t)).nth(which);
                let (index, task) = found.expect("there are so many");
                let timed_out = u32::from(task.state.load(SeqCst) == BLOCKED);
                task.timed_out.store(timed_out, SeqCst);
                task.state.store(RUNNING, SeqCst);
                self.note(index as u64 ^ now << 10);
                return index as u32;
            }
            let blocked = self.all().filter(|t| t.state.load(SeqCst) == BLOCKED);
            match blocked.map(|t| t.deadline.load(SeqCst)).min() {
                Some(NEVER) | None => {
                    self.report("nobody can go on");
                    std::process::abort();
                }
                Some(first) => self.now.store(first, SeqCst),
            }
        }
    }

    fn hand_to(&self, next: u32) {
        self.switches.fetch_add(1, SeqCst);
        let go = &self.task(next).go;
        go.store(1, SeqCst);
        let wake = libc::c_long::from(libc::FUTEX_WAKE);
        crate::real::real_syscall(libc::SYS_futex, go.as_ptr() as i64, wake, 1, 0, 0, 0);
    }

    fn switch(&self, state: u32, key: u64, deadline: u64) -> bool {
        let me = ME.get();
        let task = self.task(me);
        task.key.store(key, SeqCst);
        task.deadline.store(deadline, SeqCst);
        task.state.store(state, SeqCst);
        let next = self.pick();
        if next != me {
            self.hand_to(next);
            sleep_for_real(&task.go);
        }
        task.timed_out.swap(0, SeqCst) == 0
    }

    /// Blocks this task until another one calls [`World::wake`] with this key, or until the
    /// deadline. Returns whether it was woken.
    pub fn wait(&self, key: u64, deadline: u64) -> bool {
        self.switch(BLOCKED, key, deadline)
    }

    /// Wakes up to `most` tasks that wait with this key. Returns their number.
    pub fn wake(&self, key: u64, most: u64) -> u64 {
        let mut woken = 0;
        for task in self.all() {
            let waits = task.state.load(SeqCst) == BLOCKED && task.key.load(SeqCst) == key;
            if waits && woken < most {
                task.state.store(READY, SeqCst);
                woken += 1;
            }
        }
        woken
    }

    /// Yields to other tasks.
    pub fn give_way(&self) {
        self.now.fetch_add(GIVE_WAY, SeqCst);
        self.switch(READY, 0, NEVER);
    }

    /// Sleeps for `time` nanoseconds.
    pub fn sleep(&self, time: u64) {
        self.wait(
            key(u64::from(ME.get()), 0x51ee9),
            self.now().saturating_add(time.max(1)),
        );
    }

    /// Returns the time that a thread reads from a clock. The task may lose the token first.
    pub fn look(&self) -> u64 {
        self.now.fetch_add(LOOK, SeqCst);
        if self.once_in(self.preempt.load(SeqCst).into()) {
            self.give_way();
        }
        self.now()
    }

    /// Ends this thread's task.
    pub fn leave(&self) {
        let task = self.task(ME.get());
        ME.set(NONE);
        let thread = task.thread.load(SeqCst);
        task.state.store(FREE, SeqCst);
        self.wake(key(u64::from(std::process::id()), thread), u64::MAX);
        let next = self.pick();
        self.hand_to(next);
    }

    /// Removes the tasks of process `pid`, which was killed.
    pub fn forget(&self, pid: u32) {
        for task in self.all() {
            if task.pid.load(SeqCst) == pid {
                task.state.store(FREE, SeqCst);
            }
        }
    }

    /// Prints the state of all tasks on standard error.
    pub fn report(&self, why: &str) {
        self.broken.store(1, SeqCst);
        eprintln!(
            "simulator: {why} at {:.6} s",
            (self.now() - BEGINNING) as f64 / 1e9
        );
        for (index, t) in self.all().enumerate() {
            let state = match t.state.load(SeqCst) {
                READY => "ready",
                BLOCKED => "waits",
                RUNNING => "runs",
                _ => continue,
            };
            let (pid, tid) = (t.pid.load(SeqCst), t.tid.load(SeqCst));
            let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
            let until = match t.deadline.load(SeqCst) {
                NEVER => "ever".into(),
                at => format!("{:.6} s", at.saturating_sub(BEGINNING) as f64 / 1e9),
            };
            let comm = comm.unwrap_or_default();
            eprintln!(
                "  task {index}, process {pid}, thread {tid} {}: {state} until {until}",
                comm.trim()
            );
        }
    }
}
