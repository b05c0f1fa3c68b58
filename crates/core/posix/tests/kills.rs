//! Kills processes at chosen instants. A process does one operation under ptrace, instruction by
//! instruction, and is killed before a random instruction, while another process keeps using the
//! pool. The other process must continue within a second, and the pool must be consistent. Some of
//! the operation's first steps must have happened, the others not.
//!
//! `FOREBAY_KILLS` sets the number of kills (default 100; 40 with a journal).

#[path = "support/left.rs"]
mod left;
mod support;

use forebay_posix::Fs;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use support::operations::*;
use support::*;

/// Maximum time that the other process may be delayed.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of instructions that are executed one by one. Longer operations are killed after
/// some time instead.
const MAX_STEPS: u64 = 60_000;

/// Not a test: the code of the other processes.
#[test]
#[ignore = "started by the other tests in processes of its own"]
fn worker() {
    let Some((role, a, fs)) = worker_role() else {
        return;
    };
    match role.as_str() {
        "victim" => {
            let op = &operations()[a[0].parse::<usize>().unwrap()];
            let mut place = Place::new(&fs, &a[1]);
            // After this, everything that is opened on first use is open.
            look(&fs, &a[1]);
            (op.before)(&mut place).unwrap();
            // SAFETY: the calls take no pointers. The process stops here for the tracer, and once
            // more when the operation is done.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME);
                libc::raise(libc::SIGSTOP);
            }
            for step in &op.steps {
                step(&mut place).unwrap();
            }
            // SAFETY: as above.
            unsafe { libc::raise(libc::SIGSTOP) };
            std::thread::sleep(Duration::from_secs(10));
        }
        "neighbour" => neighbour(&fs, &a[0]),
        other => panic!("no such role: {other}"),
    }
}

/// Uses the pool until told to stop, and counts its operations in a file outside of the pool.
fn neighbour(fs: &Fs, counter: &str) {
    let counter = std::fs::File::create(counter).unwrap();
    let mut longest = Duration::ZERO;
    let mut n = 0u64;
    let shared = fs.open(b"/n/shared", O_CREAT | O_RDWR, 0o600).unwrap();
    while fs.stat(b"/n/stop", false).is_err() {
        let began = Instant::now();
        let path = |x: u64| format!("/n/f{}", x % 40).into_bytes();
        let bytes = pattern(n, [10, 900, 3901, 70_000][n as usize % 4]);
        match n % 7 {
            0..=2 => {
                let f = fs.open(&path(n * 7), O_CREAT | O_WRONLY, 0o600).unwrap();
                write_all(&f, &bytes, 0);
                f.close().unwrap();
            }
            3 => _ = fs.rename(&path(n), &path(n * 3 + 1)),
            4 => _ = fs.unlink(&path(n * 11)),
            5 => {
                write_all(&shared, &bytes, n % 900_000);
                _ = fs.list(b"/t").unwrap();
            }
            _ => {
                // Rarely: when a directory is removed, all processes resolve their paths again, and
                // one that is executed instruction by instruction would never finish.
                if n.is_multiple_of(1000) {
                    let dir = format!("/n/d{}", n % 3);
                    _ = fs.mkdir(dir.as_bytes(), 0o700);
                    _ = fs.rmdir(dir.as_bytes());
                }
                _ = fs.link(&path(n), &path(n + 1));
            }
        }
        longest = longest.max(began.elapsed());
        n += 1;
        counter.write_all_at(&n.to_le_bytes(), 0).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    println!("> {n} {}", longest.as_millis());
    shared.close().unwrap();
    fs.store().recovery().detach().unwrap();
}

/// A process under our control, and the id of the thread that runs the operation.
struct Victim(Child, i32);

/// How the victim ended.
#[derive(Debug, PartialEq)]
enum Fate {
    Killed,
    /// The victim had finished the operation before it could be killed.
    Finished,
}

impl Victim {
    /// Starts a victim, which stops at the beginning of the operation.
    fn new(pool: &TestPool, op: usize, dir: &str) -> Victim {
        let child = worker_command(pool.pool(), "victim", &format!("{op} {dir}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The test harness runs the operation in a separate thread. This thread stops.
        let mut thread = 0;
        wait_until("the victim is at the beginning", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()));
            let stopped = tasks.into_iter().flatten().flatten().find(|t| {
                let stat = std::fs::read_to_string(t.path().join("stat")).unwrap_or_default();
                stat.rsplit(')').next().is_some_and(|s| s.starts_with(" t"))
            });
            thread = stopped.map_or(0, |t| t.file_name().to_string_lossy().parse().unwrap());
            thread != 0
        });
        let victim = Victim(child, thread);
        assert_eq!(
            victim.wait(),
            Some(libc::SIGSTOP),
            "the beginning of operation {op}"
        );
        victim
    }

    /// The signal that has stopped the victim; None if it has ended.
    fn wait(&self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is a local variable, into which the kernel writes one integer.
        let pid = unsafe { libc::waitpid(self.1, &mut status, libc::__WALL) };
        assert_eq!(pid, self.1);
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }

    fn go_on(&self, request: u32) {
        // SAFETY: no pointers are passed, and the traced process is ours and stopped.
        let r = unsafe { libc::ptrace(request, self.1, 0, 0) };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
    }

    /// Executes up to `steps` instructions. Returns how many, and whether the operation is done.
    fn step(&self, steps: u64) -> (u64, bool) {
        for done in 0..steps {
            self.go_on(libc::PTRACE_SINGLESTEP);
            match self.wait() {
                Some(libc::SIGTRAP) => {}
                Some(libc::SIGSTOP) => return (done, true),
                other => panic!("stopped by {other:?}"),
            }
        }
        (steps, false)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        while self.wait().is_some() {}
        if self.1 != self.0.id() as i32 {
            self.0.wait().unwrap();
        }
    }
}

/// The number of instructions of an operation, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Length {
    /// Approximate number of steps until the operation is done.
    steps: u64,
    known: bool,
}

const UNKNOWN: Length = Length {
    steps: 15_000,
    known: false,
};

fn kill_at(
    pool: &TestPool,
    op: usize,
    dir: &str,
    length: &mut Length,
    r: &mut Random,
) -> (Fate, u64) {
    let victim = Victim::new(pool, op, dir);
    // A long operation (one that copies bytes one by one) sometimes runs without tracing for a
    // while.
    if length.steps >= MAX_STEPS && r.below(2) == 0 {
        victim.go_on(libc::PTRACE_CONT);
        let micros = r.below(3000) as u64;
        std::thread::sleep(Duration::from_micros(micros));
        victim.kill();
        return (Fate::Killed, micros);
    }
    let (at, done) = victim.step(r.below(length.steps as usize) as u64);
    if done {
        *length = Length {
            steps: at.max(1),
            known: true,
        };
    } else if !length.known && length.steps < MAX_STEPS {
        length.steps += length.steps / 4;
    }
    victim.kill();
    (if done { Fate::Finished } else { Fate::Killed }, at)
}

/// Waits until the neighbour has done three more operations. Returns the time that took.
fn goes_on(counter: &std::fs::File) -> Duration {
    let read = || {
        let mut n = [0; 8];
        counter
            .read_exact_at(&mut n, 0)
            .map_or(0, |()| u64::from_le_bytes(n))
    };
    let (began, before) = (Instant::now(), read());
    while read() < before + 3 {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "the neighbour is stuck"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    began.elapsed()
}

#[test]
fn an_operation_killed_at_any_instruction_happened_or_did_not() {
    kill_anywhere("kills", "memory:64M", false);
}

#[test]
fn so_it_is_with_a_journal_which_agrees() {
    kill_anywhere("journalled-kills", "files:DIR:2G", false);
}

#[test]
fn so_it_is_with_checksums_which_fit() {
    kill_anywhere("summed-kills", "memory:64M", true);
}

fn kill_anywhere(name: &str, media: &str, summed: bool) {
    let journalled = media.starts_with("files");
    let kills = std::env::var("FOREBAY_KILLS")
        .ok()
        .and_then(|k| k.parse().ok())
        .unwrap_or(if journalled || summed { 40 } else { 100 });
    let seconds = 60 + kills as u64 * 2;
    let pool = if summed {
        TestPool::summed(name, &[media], seconds)
    } else {
        TestPool::limited(name, &[media], seconds)
    };
    let seed = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()));
    let mut r = Random(seed | 1);
    pool.mkdir(b"/n", 0o755).unwrap();
    pool.mkdir(b"/t", 0o755).unwrap();
    let ops = operations();
    let states: Vec<Vec<State>> = ops
        .iter()
        .map(|op| allowed(&pool, op, "/t/model"))
        .collect();
    let path = pool.pool().dir().with_extension("count");
    std::fs::write(&path, [0; 8]).unwrap();
    let counter = std::fs::File::open(&path).unwrap();
    let limit = 60 + kills as u64 * 2;
    let neighbour = pool.worker_for("neighbour", path.to_str().unwrap(), limit);
    wait_until("the neighbour works", || {
        pool.stat(b"/n/shared", true).is_ok()
    });
    let mut lengths = vec![UNKNOWN; ops.len()];
    let (mut longest, mut in_sections, mut finished) = (Duration::ZERO, 0, 0);
    let mut after = vec![[0u32; 2]; ops.len()];
    for n in 0..kills {
        let op = if n < ops.len() { n } else { r.below(ops.len()) };
        let length = &mut lengths[op];
        let dir = format!("/t/{n}");
        furnish(&pool, &dir);
        let (fate, at) = kill_at(&pool, op, &dir, length, &mut r);
        finished += usize::from(fate == Fate::Finished);
        let waited = goes_on(&counter);
        longest = longest.max(waited);
        let what = || {
            format!(
                "seed {seed}, kill {n}: {} at {at} of {length:?}",
                ops[op].name
            )
        };
        assert!(
            waited < MAX_WAIT,
            "{}: the neighbour waited for {waited:?}",
            what()
        );
        let reaped = pool.store().recovery().reap().unwrap();
        assert_eq!(reaped.processes, 1, "{}", what());
        in_sections += reaped.in_flight;
        let settled = Instant::now();
        while forebay_store::process::is_unsettled(pool.store().control()) {
            assert!(settled.elapsed() < MAX_WAIT, "{}: not put in order", what());
            pool.store().recovery().put_in_order().unwrap();
        }
        let report = forebay_store::fsck::inspect(pool.store()).unwrap();
        assert!(
            report.is_clean() && report.left_out.is_none(),
            "{}: {report:#?}",
            what()
        );
        let state = look(&pool, &dir);
        if !is_allowed(&ops[op], &state, &states[op]) {
            let shown = |s: &State| {
                s.iter()
                    .map(|(p, x)| format!("{p} {:?}", (x.content.len(), x)))
                    .map(|t| t.chars().take(150).collect::<String>())
                    .collect::<Vec<_>>()
            };
            panic!(
                "{}: half done: {:#?}\nallowed: {:#?}",
                what(),
                shown(&state),
                states[op].iter().map(shown).collect::<Vec<_>>()
            );
        }
        after[op][usize::from(state != states[op][0])] += 1;
        if !journalled {
            clear(&pool, &dir);
        }
    }
    pool.mkdir(b"/n/stop", 0o700).unwrap();
    let said = neighbour.finish();
    pool.store().recovery().reap().unwrap();
    pool.assert_whole();
    if journalled {
        left::records_and_journal_agree(&pool, name);
    }
    clear(&pool, "/n");
    clear(&pool, "/t");
    assert_eq!(pool.used(), 0);
    let _ = std::fs::remove_file(path);
    let both = after.iter().filter(|a| a[0] > 0 && a[1] > 0).count();
    eprintln!(
        "{kills} kills in {} operations ({finished} after their end), {in_sections} of them in the middle of something; \
         {both} operations were seen both undone and (partly) done; the neighbour went on within {longest:?} and did (operations, longest in ms): {said:?}",
        ops.len()
    );
}
