//! Child processes of the driver. Each has its own process group; after a time limit, the whole
//! group is killed. A child's messages are kept for the report.

use crate::sys;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often a waiting thread checks whether the user has interrupted the program.
const GLANCE: Duration = Duration::from_millis(100);
/// Time from the start signal until workers start. Nanoseconds.
const LEAD_NANOSECONDS: u64 = 3_000_000;
const INTERRUPTED: &str = "interrupted";

/// A file without a name that collects the messages of children.
struct Messages(File);

impl Messages {
    fn new(directory: &Path) -> Result<Messages, String> {
        let path = directory.join("messages");
        let file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let _ = std::fs::remove_file(&path);
        Ok(Messages(file))
    }

    fn output(&self) -> Result<Stdio, String> {
        let copy = self.0.try_clone();
        copy.map(Stdio::from)
            .map_err(|e| format!("a descriptor: {e}"))
    }

    /// Appends the collected messages to an error.
    fn explain(mut self, error: String) -> String {
        let mut output = Vec::new();
        let read = self
            .0
            .rewind()
            .and_then(|()| (&self.0).take(4096).read_to_end(&mut output));
        let output = String::from_utf8_lossy(&output)
            .trim()
            .replace('\n', "\n    ");
        match read {
            Ok(_) if !output.is_empty() => format!("{error}\n    {output}"),
            _ => error,
        }
    }
}

/// The result of the workers of one run.
pub struct Outcome {
    pub operations: f64,
    /// Time that the slowest worker took.
    pub seconds: f64,
    /// Peak memory of the largest worker. KiB; 0 if no worker reported it.
    pub peak: f64,
}

/// Runs one command to its end. Returns how long that took. `heed`: whether the command is killed
/// if the user interrupts.
pub fn run_one(
    mut command: Command,
    limit: Duration,
    heed: bool,
    scratch: &Path,
) -> Result<Duration, String> {
    let messages = Messages::new(scratch)?;
    command
        .stdin(Stdio::null())
        .stdout(messages.output()?)
        .stderr(messages.output()?)
        .process_group(0);
    let what = describe(&command);
    let started = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("{what}: {e}"))?;
    let leader = child.id();
    let (ended, end) = channel::<()>();
    let guard = std::thread::spawn(move || watch(&end, leader, started + limit, heed));
    sys::wait_end(leader);
    let took = started.elapsed();
    drop(ended);
    // The guard may kill by the child's process id, so the id must not be freed before the guard
    // ends.
    let killed = guard.join().unwrap_or(None);
    let status = child.wait().map_err(|e| format!("{what}: {e}"))?;
    match killed {
        Some(why) => Err(messages.explain(format!("{what}: {why}"))),
        None if status.success() => Ok(took),
        None => Err(messages.explain(format!("{what}: {status}"))),
    }
}

/// Kills the process group of `leader` at the deadline or, with `heed`, when the user interrupts.
/// Returns the reason; None if the child ended before.
fn watch(end: &Receiver<()>, leader: u32, deadline: Instant, heed: bool) -> Option<String> {
    loop {
        match end.recv_timeout(GLANCE) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return None,
        }
        let why = if Instant::now() >= deadline {
            "it took too long and was killed"
        } else if heed && sys::interrupted() {
            INTERRUPTED
        } else {
            continue;
        };
        sys::kill_group(leader);
        return Some(why.to_string());
    }
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|a| a.to_string_lossy()));
    words.join(" ")
}

/// The workers of one run. Dropping the team kills the workers that are still running.
struct Team {
    children: Vec<Child>,
    events: Receiver<(usize, Option<String>)>,
    deadline: Instant,
}

impl Drop for Team {
    fn drop(&mut self) {
        for child in &mut self.children {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                sys::kill_group(child.id());
                let _ = child.wait();
            }
        }
    }
}

/// Runs the workers: all prepare, then all start at the same time, then all end.
pub fn run_team(
    commands: Vec<Command>,
    limit: Duration,
    scratch: &Path,
) -> Result<Outcome, String> {
    let messages = Messages::new(scratch)?;
    let (sender, events) = channel();
    let mut team = Team {
        children: Vec::new(),
        events,
        deadline: Instant::now() + limit,
    };
    let outcome = start(&mut team, commands, &sender, &messages).and_then(|()| {
        drop(sender);
        conduct(&mut team)
    });
    drop(team);
    outcome.map_err(|e| messages.explain(e))
}

fn start(
    team: &mut Team,
    commands: Vec<Command>,
    sender: &Sender<(usize, Option<String>)>,
    messages: &Messages,
) -> Result<(), String> {
    for (index, mut command) in commands.into_iter().enumerate() {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(messages.output()?)
            .process_group(0);
        let mut child = command
            .spawn()
            .map_err(|e| format!("{}: {e}", describe(&command)))?;
        if let Some(out) = child.stdout.take() {
            let sender = sender.clone();
            std::thread::spawn(move || pass_on(index, out, &sender));
        }
        team.children.push(child);
    }
    Ok(())
}

/// Passes each line of a worker on to `sender`, and `None` at the end of the worker's output.
fn pass_on(index: usize, out: ChildStdout, sender: &Sender<(usize, Option<String>)>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if sender.send((index, Some(line))).is_err() {
            return;
        }
    }
    let _ = sender.send((index, None));
}

fn conduct(team: &mut Team) -> Result<Outcome, String> {
    team.hear("prepare", &mut |line| (line == "ready").then_some(()))?;
    team.send(&format!("go {}\n", sys::now() + LEAD_NANOSECONDS))?;
    let (mut operations, mut seconds, mut peak) = (0.0, 0.0_f64, 0.0_f64);
    team.hear("work", &mut |line| {
        let mut words = line.strip_prefix("done ")?.split(' ');
        operations += words.next()?.parse::<f64>().ok()?;
        seconds = seconds.max(words.next()?.parse().ok()?);
        if let Some(word) = words.next() {
            peak = peak.max(word.parse().ok()?);
        }
        Some(())
    })?;
    team.send("end\n")?;
    team.finish()?;
    if operations <= 0.0 || seconds <= 0.0 {
        return Err(format!(
            "{operations} operations in {seconds} s: that cannot be"
        ));
    }
    Ok(Outcome {
        operations,
        seconds,
        peak,
    })
}

impl Team {
    fn next(&self, doing: &str) -> Result<(usize, Option<String>), String> {
        loop {
            match self.events.recv_timeout(GLANCE) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Disconnected) => return Err("all workers are gone".into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if sys::interrupted() {
                return Err(INTERRUPTED.into());
            }
            if Instant::now() >= self.deadline {
                return Err(format!("too long to {doing}: killed"));
            }
        }
    }

    /// Waits until each worker has sent one line that `understand` accepts.
    fn hear(
        &self,
        doing: &str,
        understand: &mut dyn FnMut(&str) -> Option<()>,
    ) -> Result<(), String> {
        for _ in 0..self.children.len() {
            match self.next(doing)? {
                (_, Some(line)) if understand(&line).is_some() => {}
                (index, Some(line)) => return Err(format!("worker {index} said {line:?}")),
                (index, None) => return Err(format!("worker {index} failed to {doing}")),
            }
        }
        Ok(())
    }

    fn send(&mut self, line: &str) -> Result<(), String> {
        for (index, child) in self.children.iter_mut().enumerate() {
            let Some(input) = child.stdin.as_mut() else {
                continue;
            };
            input
                .write_all(line.as_bytes())
                .map_err(|e| format!("worker {index} is gone: {e}"))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        for _ in 0..self.children.len() {
            if let (index, Some(line)) = self.next("clean up")? {
                return Err(format!("worker {index} said {line:?} at its end"));
            }
        }
        for index in 0..self.children.len() {
            loop {
                match self.children[index].try_wait() {
                    Ok(Some(status)) if status.success() => break,
                    Ok(Some(status)) => return Err(format!("worker {index}: {status}")),
                    Ok(None) if Instant::now() < self.deadline => {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    Ok(None) => return Err(format!("worker {index} doesn't end")),
                    Err(e) => return Err(format!("worker {index}: {e}")),
                }
            }
        }
        Ok(())
    }
}
