//! A worker: one process of one run. It prepares, prints `ready`, starts at the time that the
//! driver sets, and prints `done OPERATIONS SECONDS` (if wanted, also its peak of memory in KiB).
//! It cleans up only when the driver sends `end`, so that the removal of its files doesn't disturb
//! another worker's measurement.

use crate::sys;
use std::io::{BufRead, Write};

pub struct Worker {
    /// The directory of this run, shared by its workers.
    pub directory: String,
    pub index: usize,
    pub count: usize,
    pub passes: usize,
}

impl Worker {
    /// Returns the prefix of this worker's names, which is different for every worker.
    pub fn prefix(&self) -> String {
        format!("{}/w{:02}-", self.directory, self.index)
    }

    /// Prints that the preparation is done, and waits for the start. Returns the time of the start.
    pub fn start(&self) -> Result<u64, String> {
        send_line("ready")?;
        let line = receive_line()?;
        let start: u64 = line
            .strip_prefix("go ")
            .and_then(|t| t.parse().ok())
            .ok_or(format!("the driver said {line:?} instead of a start"))?;
        sys::sleep_until(start);
        Ok(start)
    }

    /// Reports the measured part, which began at `start`, and waits until all workers have ended
    /// their measured parts.
    pub fn done(&self, start: u64, operations: usize) -> Result<(), String> {
        self.report(operations, (sys::now() - start) as f64 / 1e9)
    }

    /// As [`Worker::done`]; also reports this process's peak of memory.
    pub fn done_with_peak(&self, start: u64, operations: usize) -> Result<(), String> {
        let seconds = (sys::now() - start) as f64 / 1e9;
        let path = "/proc/self/status";
        let status = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))
            .ok_or(format!("{path} has no peak of memory"))?;
        send_line(&format!("done {operations} {seconds:.9} {peak}"))?;
        receive_line().map(drop)
    }

    pub fn report(&self, operations: usize, seconds: f64) -> Result<(), String> {
        send_line(&format!("done {operations} {seconds:.9}"))?;
        receive_line().map(drop)
    }
}

fn send_line(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| format!("standard output: {e}"))
}

fn receive_line() -> Result<String, String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err("the driver is gone".into()),
        Ok(_) => Ok(line.trim_end().to_string()),
        Err(e) => Err(format!("standard input: {e}")),
    }
}
