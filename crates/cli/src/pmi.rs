//! PMI-1: the protocol by which processes of an MPI launcher exchange data before MPI runs. With
//! MPICH's mpiexec and its relatives, ranks put values, meet at a barrier, and get the values of
//! others. The protocol is lines of text over a descriptor that the launcher leaves open; it needs
//! no library.

use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::time::{Duration, Instant};

/// Maximum length of a received line. Bytes.
const MAX_LINE: usize = 4096;

/// The connection to the launcher.
pub struct Pmi {
    file: File,
    rest: Vec<u8>,
    space: String,
    within: Duration,
    pub rank: u32,
    pub ranks: u32,
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

impl Pmi {
    /// Connects to the launcher, waiting at most `within` for each reply. Returns None if this
    /// process isn't a rank of a launcher that speaks PMI-1.
    pub fn find(within: Duration) -> Option<Result<Pmi>> {
        let (fd, rank, ranks) = (number("PMI_FD")?, number("PMI_RANK")?, number("PMI_SIZE")?);
        // SAFETY: the launcher has opened the descriptor for this process, and nothing else here
        // uses it. If another rank's variable was inherited, the descriptor isn't open, or gets no
        // reply.
        let file = unsafe {
            if libc::fcntl(fd as RawFd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
                return None;
            }
            File::from_raw_fd(fd as RawFd)
        };
        let mut pmi = Pmi {
            file,
            rest: Vec::new(),
            space: String::new(),
            within,
            rank,
            ranks,
        };
        Some(pmi.begin().map(|()| pmi))
    }

    fn begin(&mut self) -> Result<()> {
        self.ask(
            "cmd=init pmi_version=1 pmi_subversion=1",
            "response_to_init",
        )?;
        self.space = self
            .ask("cmd=get_my_kvsname", "my_kvsname")?
            .value("kvsname")?;
        Ok(())
    }

    /// Publishes a value. Other ranks can get it after all ranks have met.
    pub fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let line = format!("cmd=put kvsname={} key={key} value={value}", self.space);
        self.ask(&line, "put_result").map(|_| ())
    }

    /// Returns the value that a rank has published.
    pub fn get(&mut self, key: &str) -> Result<String> {
        let line = format!("cmd=get kvsname={} key={key}", self.space);
        self.ask(&line, "get_result")?.value("value")
    }

    /// Waits until all ranks have called this.
    pub fn meet(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(|_| ())
    }

    /// Ends this rank's use of PMI. If a rank ends without this call, the launcher ends the others.
    pub fn end(mut self) -> Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(|_| ())
    }

    fn ask(&mut self, line: &str, answer: &str) -> Result<Answer> {
        self.file.write_all(format!("{line}\n").as_bytes())?;
        let answer_line = Answer(self.line()?);
        let what = answer_line.value("cmd")?;
        if what != answer || answer_line.value("rc").is_ok_and(|rc| rc != "0") {
            return Err(Error::other(format!("mpiexec answers '{}'", answer_line.0)));
        }
        Ok(answer_line)
    }

    fn line(&mut self) -> Result<String> {
        let until = Instant::now() + self.within;
        loop {
            if let Some(end) = self.rest.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            let left = until.saturating_duration_since(Instant::now());
            let wait = rustix::time::Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], wait.as_ref()) {
                Ok(0) => return Err(ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let mut some = [0; 1024];
            let n = self.file.read(&mut some)?;
            if n == 0 || self.rest.len() > MAX_LINE {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.rest.extend_from_slice(&some[..n]);
        }
    }
}

/// A line of the launcher, with `name=value` pairs.
struct Answer(String);

impl Answer {
    fn value(&self, name: &str) -> Result<String> {
        let mut pairs = self.0.split_whitespace().filter_map(|p| p.split_once('='));
        let found = pairs.find(|(n, _)| *n == name).map(|(_, v)| v.to_owned());
        found.ok_or_else(|| Error::other(format!("mpiexec answers '{}'", self.0)))
    }
}
