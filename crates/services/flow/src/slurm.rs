//! The jobs of a run in Slurm. The jobs' names are `fb-ID_UUID`, given by the executor plug-in; ID
//! is the run's.

use crate::{Result, programs};
use std::process::Command;
use std::time::{Duration, Instant};

/// Maximum time until cancelled jobs have ended.
const GOING: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the prefix of the names of a run's jobs.
pub fn prefix(run: &str) -> String {
    format!("fb-{run}")
}

/// Cancels a run's remaining jobs, and waits until none is left. `command` returns a command that
/// runs as the run's user.
///
/// # Errors
/// Slurm doesn't answer, or jobs don't end in time.
pub fn clear(run: &str, command: &dyn Fn(&str) -> Command) -> Result<()> {
    let until = Instant::now() + GOING;
    let mut cancelled = Vec::new();
    loop {
        let left = jobs(run, command)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("Slurm's jobs {} don't end", left.join(" ")));
        }
        let new: Vec<&String> = left.iter().filter(|id| !cancelled.contains(*id)).collect();
        if !new.is_empty() {
            programs::output(command("scancel").args(&new))?;
            cancelled.extend(new.into_iter().cloned().collect::<Vec<_>>());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn jobs(run: &str, command: &dyn Fn(&str) -> Command) -> Result<Vec<String>> {
    let text = programs::output(command("squeue").args(["--me", "--noheader", "--format=%i %j"]))?;
    Ok(named(&text, &prefix(run)))
}

/// Returns the ids of the jobs whose names have this prefix, from squeue's output.
fn named(text: &str, prefix: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(' '));
    lines
        .filter(|(_, name)| name.trim().starts_with(&format!("{prefix}_")))
        .map(|(id, _)| id.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn jobs_by_name() {
        let text = "12 fb-ab_1-2\n13 fb-abc_1\n14 other\n\n15\n16_3 fb-ab_9\n";
        assert_eq!(super::named(text, "fb-ab"), ["12", "16_3"]);
    }
}
