//! What Forebay costs programs that have nothing to do with the pool: at their start, at
//! each of their system calls, and `forebay run` itself.

use crate::children;
use crate::driver::Driver;
use crate::pool::Side;
use std::path::Path;
use std::time::Duration;

/// One cost: the same thing without and with Forebay, several times each.
pub struct Cost {
    pub name: &'static str,
    pub unit: &'static str,
    pub plain: Vec<f64>,
    pub with: Vec<f64>,
    /// What may be added, in the same unit.
    pub limit: f64,
    pub error: Option<String>,
}

impl Cost {
    fn new(name: &'static str, unit: &'static str, limit: f64) -> Cost {
        Cost {
            name,
            unit,
            plain: Vec::new(),
            with: Vec::new(),
            limit,
            error: None,
        }
    }

    /// Repeats `measure` for both sides in turn.
    fn repeat(
        mut self,
        times: usize,
        mut measure: impl FnMut(Side) -> Result<f64, String>,
    ) -> Cost {
        for repetition in 0..times {
            let mut sides = [Side::Plain, Side::Pool];
            if repetition % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                match measure(side) {
                    Ok(value) if side == Side::Plain => self.plain.push(value),
                    Ok(value) => self.with.push(value),
                    Err(e) => {
                        self.error = Some(e);
                        return self;
                    }
                }
            }
        }
        self
    }
}

/// `forebay run -- true`, with its own pool of the default media, beside `true`.
pub fn run(driver: &mut Driver) -> Cost {
    let limit = Duration::from_secs(20);
    let pool = &driver.pool;
    Cost::new("run", "ms", 60.0).repeat(2 * driver.options.reps + 1, |side| {
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

/// A worker of [`crate::costly`]: seconds of one operation.
fn one_worker(
    driver: &Driver,
    side: Side,
    what: &str,
    count: usize,
    pieces: usize,
) -> Result<f64, String> {
    let words = [
        what.to_string(),
        driver.pool.plain().display().to_string(),
        "0".into(),
        count.to_string(),
        pieces.to_string(),
    ];
    let commands = vec![driver.pool.worker(side, &words)];
    let limit = Duration::from_secs(30);
    children::run_team(commands, limit, driver.pool.scratch())
        .map(|outcome| outcome.seconds / outcome.operations)
}

/// Starting a program from a program that is under `forebay exec`.
pub fn exec(driver: &mut Driver) -> Cost {
    Cost::new("exec", "ms", 3.0).repeat(driver.options.reps, |side| {
        one_worker(driver, side, "cost-spawn", 20, 10).map(|s| s * 1e3)
    })
}

/// A system call beside the pool.
pub struct Unrelated {
    name: &'static str,
    worker: &'static str,
    /// System calls of one operation.
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

pub fn unrelated(driver: &mut Driver, what: Unrelated) -> Cost {
    // Many short processes: one differs from the next by more than what is looked for.
    let times = 5 * driver.options.reps;
    Cost::new(what.name, "ns/call", 60.0).repeat(times, |side| {
        one_worker(driver, side, what.worker, 2_000, 11).map(|s| s * 1e9 / what.calls)
    })
}
