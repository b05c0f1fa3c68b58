//! Measures the costs of Forebay for programs that don't use the pool: at their start, and at each
//! of their system calls; and the cost of `forebay run` itself.

use crate::children;
use crate::pool::{Pool, Side};
use crate::report::Cost;
use std::path::Path;
use std::time::Duration;

/// Measures `forebay run -- true`, with its own pool of the default media, compared with `true`.
pub fn run(pool: &Pool, reps: usize) -> Cost {
    let limit = Duration::from_secs(20);
    Cost::new("run", "ms", 60.0).repeat(2 * reps + 1, |side| {
        let command = match side {
            Side::Plain => pool.command(Path::new("true")),
            Side::Pool => {
                let mut command = pool.forebay();
                command.args(["run", "--", "true"]);
                command
            }
        };
        children::run_one(command, limit, true, pool.scratch()).map(|t| t.as_secs_f64() * 1e3)
    })
}

/// Runs a worker of [`crate::costly`]. Returns the time of one operation in seconds.
fn one_worker(
    pool: &Pool,
    side: Side,
    what: &str,
    count: usize,
    pieces: usize,
) -> Result<f64, String> {
    one_worker_in(
        pool,
        side,
        what,
        &pool.plain().display().to_string(),
        count,
        pieces,
    )
}

/// As [`one_worker`]; the worker uses `directory`.
fn one_worker_in(
    pool: &Pool,
    side: Side,
    what: &str,
    directory: &str,
    count: usize,
    pieces: usize,
) -> Result<f64, String> {
    let words = [
        what.to_string(),
        directory.to_string(),
        "0".into(),
        count.to_string(),
        pieces.to_string(),
    ];
    let commands = vec![pool.worker(side, &words)];
    let limit = Duration::from_secs(30);
    children::run_team(commands, limit, pool.scratch())
        .map(|outcome| outcome.seconds / outcome.operations)
}

/// Measures starting a program from a program that runs under `forebay exec`.
pub fn exec(pool: &Pool, reps: usize) -> Cost {
    Cost::new("exec", "ms", 3.0).repeat(reps, |side| {
        one_worker(pool, side, "cost-spawn", 20, 10).map(|s| s * 1e3)
    })
}

/// Measures a shell script of twenty short programs, in a directory of the side (`inside`) or
/// outside the pool. Each program costs a fork, an exec and a wait.
pub fn script(pool: &Pool, reps: usize, inside: bool) -> Cost {
    let name = if inside {
        "script in the pool"
    } else {
        "script"
    };
    Cost::new(name, "ms", 60.0).repeat(reps, |side| {
        let directory = if inside {
            pool.directory(side)
        } else {
            pool.plain().display().to_string()
        };
        one_worker_in(pool, side, "cost-script", &directory, 1, 15).map(|s| s * 1e3)
    })
}

/// A measurement of system calls that don't concern the pool.
pub struct Unrelated {
    name: &'static str,
    worker: &'static str,
    /// Number of system calls in one operation.
    calls: f64,
}

pub const UNRELATED: [Unrelated; 4] = [
    Unrelated {
        name: "open+read+close /etc/hostname",
        worker: "cost-open",
        calls: 3.0,
    },
    Unrelated {
        name: "pread 16 bytes, /dev/shm",
        worker: "cost-pread",
        calls: 1.0,
    },
    Unrelated {
        name: "stat /tmp",
        worker: "cost-stat",
        calls: 1.0,
    },
    Unrelated {
        name: "getppid",
        worker: "cost-getppid",
        calls: 1.0,
    },
];

pub fn unrelated(pool: &Pool, reps: usize, what: Unrelated) -> Cost {
    // Uses many short processes, since the differences between processes are larger than the cost.
    let times = 5 * reps;
    Cost::new(what.name, "ns/call", 60.0).repeat(times, |side| {
        one_worker(pool, side, what.worker, 2_000, 11).map(|s| s * 1e9 / what.calls)
    })
}
