//! A launched daemon: its process, and the messages to and from it.

use super::Launcher;
use super::messages::{Begin, Unread, encode_down, greet, hear_greeting, read_up};
use crate::start::{Down, Event};
use forebay_runtime::threads::lock;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// How long to wait for more error output after a launch has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Maximum number of bytes of error output that are kept: the last ones of the output.
const WORDS: usize = 4096;

/// The launch of one daemon.
pub struct Child {
    /// The queue of messages to the daemon; dropped to close the pipe.
    to: Option<Sender<Zeroizing<Vec<u8>>>>,
    written: Receiver<()>,
    process: OwnedFd,
    ended: Receiver<()>,
}

impl Child {
    /// Launches the daemon of node `begin.me`. The daemon's messages and its end are sent to
    /// `events`.
    ///
    /// # Errors
    /// If the command can't be run.
    pub fn launch(
        begin: &Begin,
        launcher: &dyn Launcher,
        events: Sender<Event>,
    ) -> io::Result<Child> {
        let node = begin.me;
        let mut command = launcher.command(node);
        let program = command.get_program().to_string_lossy().into_owned();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("can't run {program}: {e}"));
        let pipes = [Stdio::piped(), Stdio::piped(), Stdio::piped()];
        let [input, output, errors] = pipes;
        let spawned = command.stdin(input).stdout(output).stderr(errors).spawn();
        let mut child = spawned.map_err(named)?;
        let pid = Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Ok(process), (Some(stdin), Some(stdout), Some(stderr))) = (process, pipes) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::other("can't watch over the launched process"));
        };
        let (to, queue) = channel();
        let _ = to.send(begin.encode());
        let words = Words::default();
        let (ends, ended) = channel();
        let spawn = |name: &str| std::thread::Builder::new().name(format!("{name}-{node}"));
        let (writing, written) = channel();
        spawn("to").spawn(move || {
            write(stdin, &queue);
            drop(writing);
        })?;
        let heard = words.clone();
        let (silence, silent) = channel::<()>();
        spawn("words").spawn(move || {
            heard.hear(stderr);
            drop(silence);
        })?;
        spawn("from").spawn(move || {
            let end = read(node, stdout, &events);
            // The child's error output may arrive a moment later.
            let _ = silent.recv_timeout(LAST_WORDS);
            let _ = events.send(Event::Lost(node, words.why(&end)));
            let _ = child.wait();
            drop(ends);
        })?;
        Ok(Child {
            to: Some(to),
            written,
            process,
            ended,
        })
    }

    /// Queues a message to the daemon, without waiting.
    pub fn send(&self, down: &Down) {
        if let Some(to) = &self.to {
            let _ = to.send(encode_down(down));
        }
    }

    /// Closes the pipe to the daemon, after waiting until all messages are written, at most 1 s.
    pub fn close(&mut self) {
        self.to = None;
        // Nothing is sent on this channel, which is closed when the thread that writes has ended.
        let _ = self.written.recv_timeout(Duration::from_secs(1));
    }

    /// Waits until the launch has ended, at most until the time `until`. Kills it if it hasn't.
    pub fn end(mut self, until: Instant) {
        self.to = None;
        let left = until.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
            let _ = self.ended.recv_timeout(LAST_WORDS);
        }
    }
}

fn write(mut to: ChildStdin, queue: &Receiver<Zeroizing<Vec<u8>>>) {
    // A broken pipe is noticed by the thread that reads: the other side sends nothing any more.
    let mut write_all = || -> io::Result<()> {
        greet(&mut to)?;
        for message in queue {
            to.write_all(&message)?;
        }
        Ok(())
    };
    let _ = write_all();
}

/// Passes the daemon's messages to `events` until the pipe ends. Returns why it ended.
fn read(node: u32, from: ChildStdout, events: &Sender<Event>) -> Unread {
    let mut from = io::BufReader::new(from);
    if let Err(e) = hear_greeting(&mut from) {
        return e;
    }
    loop {
        match read_up(&mut from) {
            Ok(up) => {
                let _ = events.send(Event::Child(node, up));
            }
            Err(e) => return e,
        }
    }
}

/// The last bytes of a launch's standard error.
#[derive(Clone, Default)]
struct Words(Arc<Mutex<VecDeque<u8>>>);

impl Words {
    fn hear(&self, mut from: ChildStderr) {
        let mut buffer = [0; 512];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let mut kept = lock(&self.0);
            kept.extend(&buffer[..n]);
            let excess = kept.len().saturating_sub(WORDS);
            kept.drain(..excess);
        }
    }

    /// Why the launch has ended: the last line of its error output, if there is any.
    fn why(&self, end: &Unread) -> String {
        let mut kept = lock(&self.0);
        let output = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
        let mut lines = output.lines().map(str::trim).filter(|l| !l.is_empty());
        let text = match end {
            Unread::Closed => lines.next_back().map(str::to_owned),
            _ => None,
        };
        let mut why = text.unwrap_or_else(|| end.to_string());
        why.retain(|c| !c.is_control());
        why
    }
}
