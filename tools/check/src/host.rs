//! The processes of a check: starting, watching and killing them.

use crate::calls;
use crate::options::Options;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The operations on processes that a [`crate::Driver`] needs.
pub trait Host {
    /// Starts the process of worker `w`.
    ///
    /// # Errors
    /// Why the process can't be started, in words.
    fn start(&mut self, w: usize) -> Result<(), String>;

    /// Returns how the process of worker `w` ended, if it ended by itself.
    fn ended(&mut self, w: usize) -> Option<String>;

    /// Kills worker `w`, process `pid`, at once.
    fn kill(&mut self, w: usize, pid: u32);

    /// Waits until worker `w`, which was killed, has ended.
    fn wait(&mut self, w: usize);

    /// Lets the host do its own work. Called repeatedly while a phase runs. Returns the maximum
    /// time until the next call.
    fn tick(&mut self) -> Duration {
        Duration::from_millis(20)
    }

    /// Returns the time from the beginning of a phase within which workers are killed.
    fn killed_within(&self) -> Duration {
        Duration::from_micros(1500)
    }

    /// Ends the run: waits for the workers, which were commanded to end, and kills those that don't
    /// end. `pids` are their processes.
    fn end(&mut self, pids: &[u32]);
}

/// A host whose workers are processes of this program, or of a command that starts it.
pub struct Processes<'a> {
    options: &'a Options,
    /// The file that the workers share.
    path: PathBuf,
    children: Vec<Option<Child>>,
}

impl<'a> Processes<'a> {
    /// Makes a host for workers that share the file `path`.
    pub fn new(options: &'a Options, path: PathBuf) -> Processes<'a> {
        Processes {
            options,
            path,
            children: (0..options.workers).map(|_| None).collect(),
        }
    }
}

impl Host for Processes<'_> {
    fn start(&mut self, w: usize) -> Result<(), String> {
        let node = (w as u64 % self.options.nodes).to_string();
        let mut words: Vec<String> = self
            .options
            .with
            .iter()
            .map(|word| word.replace("{}", &node))
            .collect();
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        words.push(me.display().to_string());
        words.push("worker".into());
        words.push(self.path.display().to_string());
        words.push(w.to_string());
        words.push(self.options.top.clone());
        words.push(self.options.cell.to_string());
        words.push(self.options.operations.to_string());
        words.push(self.options.locks().number().to_string());
        words.push(self.options.weak_name.clone());
        let child = std::process::Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", words[0]))?;
        self.children[w] = Some(child);
        Ok(())
    }

    fn ended(&mut self, w: usize) -> Option<String> {
        match self.children[w].as_mut()?.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            _ => None,
        }
    }

    fn kill(&mut self, _w: usize, pid: u32) {
        calls::kill(pid);
    }

    fn wait(&mut self, w: usize) {
        if let Some(child) = &mut self.children[w] {
            let _ = child.wait();
        }
    }

    fn end(&mut self, pids: &[u32]) {
        let until = Instant::now() + Duration::from_secs(5);
        for child in self.children.iter_mut().flatten() {
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        // The worker may be a child of another program that `with` names: find it by its arguments.
        let path = self.path.display().to_string();
        for pid in pids {
            let ours = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if ours.split(|b| *b == 0).any(|word| word == path.as_bytes()) {
                calls::kill(*pid);
            }
        }
    }
}
