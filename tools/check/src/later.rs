//! Checks files with weaker consistency. Processes on all nodes write, commit and read the cells of
//! one file after the other, and record each operation with its times. Then [`crate::visible`]
//! judges the records.
//!
//! Time is divided into rounds. Each round has its own file, which all processes use during the
//! round. A killed process is started again, as a process with another number. Records are appended
//! line by line to a file outside the pool, so that none is lost:
//!
//! ```text
//! W round cell value begin    a written cell
//! R round cell opened begin   half of a read cell: its first or its last two words
//! C round begin               a commit
//! = end values-that-were-read the operation of the lines before has ended
//! !                           the operation of the lines before has failed
//! ```

use crate::calls::{self, Face, Result};
use crate::driver::End;
use crate::options::{Consistency, Options, weak};
use crate::random::Random;
use crate::visible::{Commit, History, NEVER, Read, Rules, Write, judge};
use crate::weak::Kind;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Length of a round. Nanoseconds.
const ROUND: u64 = 40_000_000;
const CELLS: u64 = 6;
/// The word after `worker` on the command line of a worker of this module.
pub const WORD: &str = "later";

/// Runs workers until the time limit, then judges their records.
pub fn run(options: &Options, consistency: Consistency) -> std::result::Result<End, String> {
    if options.cell < 16 {
        return Err("--consistency needs cells of 16 bytes (--cell) or more".into());
    }
    let name = format!("forebay-check-{}-{:x}", std::process::id(), calls::now());
    let dir = PathBuf::from("/dev/shm").join(name);
    std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let ended = run_in(options, consistency, &dir);
    let _ = std::fs::remove_dir_all(&dir);
    ended
}

fn run_in(
    options: &Options,
    consistency: Consistency,
    dir: &std::path::Path,
) -> std::result::Result<End, String> {
    let begin = calls::now() + 300_000_000;
    let until = begin + options.seconds * 1_000_000_000;
    let mut processes = 0;
    let mut start = |w: usize| -> std::result::Result<Child, String> {
        let node = (w as u64 % options.nodes).to_string();
        let mut words: Vec<String> = options
            .with
            .iter()
            .map(|x| x.replace("{}", &node))
            .collect();
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        words.push(me.display().to_string());
        words.extend(["worker", WORD].map(String::from));
        words.push(dir.join(processes.to_string()).display().to_string());
        words.push(options.top.clone());
        let weak = u64::from(weak(&options.weak_name)? == Kind::NoCommit);
        for number in [
            begin,
            until,
            options.seed,
            processes,
            options.cell as u64,
            weak,
        ] {
            words.push(number.to_string());
        }
        processes += 1;
        std::process::Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", words[0]))
    };
    let mut children = (0..options.workers)
        .map(&mut start)
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut random = Random::new(options.seed);
    let mut killed = 0u64;
    while calls::now() < until {
        std::thread::sleep(Duration::from_nanos(ROUND));
        if random.below(1000) < options.kill {
            let w = random.below(children.len() as u64) as usize;
            std::thread::sleep(Duration::from_micros(random.below(ROUND / 1000)));
            let _ = children[w].kill();
            let _ = children[w].wait();
            children[w] = start(w)?;
            killed += 1;
        }
    }
    let bound = Instant::now() + Duration::from_secs(options.bound);
    for child in &mut children {
        loop {
            match child.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => break,
                Some(status) => return Err(format!("a worker ended: {status}")),
                None if Instant::now() < bound => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let _ = child.kill();
                    println!("seed {}: a worker hangs", options.seed);
                    return Ok(End::Hang);
                }
            }
        }
    }
    judge_notes(dir, options.seed, processes, consistency, killed)
}

/// Judges the records of `processes` processes in the directory `dir`.
///
/// # Errors
/// A sentence, if records can't be read.
pub fn judge_notes(
    dir: &std::path::Path,
    seed: u64,
    processes: u64,
    consistency: Consistency,
    killed: u64,
) -> std::result::Result<End, String> {
    let mut history = History::default();
    for process in 0..processes as usize {
        // A process that was killed before its first operation has recorded nothing.
        let text = std::fs::read_to_string(dir.join(process.to_string())).unwrap_or_default();
        take(&text, process, consistency, &mut history)
            .map_err(|e| format!("process {process}: {e}"))?;
    }
    let rules = Rules {
        at_once: matches!(consistency, Consistency::Eventual(_)),
        ordered: consistency == Consistency::Commit,
    };
    let judged = judge(&history, rules);
    println!(
        "seed {}: {} writes, {} commits, {} reads, {} of them of something older, {killed} processes killed",
        seed,
        history.writes.len(),
        history.commits.len(),
        history.reads.len(),
        judged.as_ref().map_or(0, |seen| seen.older),
    );
    Ok(match judged {
        Ok(_) => End::Fine,
        Err(e) => {
            println!("seed {}: impossible: {e}", seed);
            End::Impossible
        }
    })
}

/// Adds the records of one process to the history.
fn take(
    text: &str,
    process: usize,
    consistency: Consistency,
    history: &mut History,
) -> std::result::Result<(), String> {
    let (mut writes, mut reads, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    // The last line may be incomplete: a killed process may have been writing it.
    for line in text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
    {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or("");
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        let numbers = numbers.ok_or(format!("bad line {line:?}"))?;
        match (what, &numbers[..]) {
            ("W", &[file, cell, value, begin]) => writes.push(Write {
                process,
                place: (file, cell),
                value,
                begin,
                end: NEVER,
            }),
            ("R", &[file, cell, opened, begin]) => reads.push(Read {
                process,
                place: (file, cell),
                value: 0,
                since: match consistency {
                    Consistency::Commit => begin,
                    Consistency::Session => opened,
                    Consistency::Eventual(ms) => begin.saturating_sub(ms * 1_000_000),
                },
                begin,
                end: NEVER,
            }),
            ("C", &[file, begin]) => commits.push(Commit {
                process,
                file,
                begin,
                end: NEVER,
            }),
            ("=", [end, values @ ..]) if values.len() == reads.len() => {
                writes.iter_mut().for_each(|w| w.end = *end);
                commits.iter_mut().for_each(|c| c.end = *end);
                for (read, value) in reads.iter_mut().zip(values) {
                    (read.end, read.value) = (*end, *value);
                }
                reads.retain(|read| read.value != TORN);
                history.reads.append(&mut reads);
                history.writes.append(&mut writes);
                history.commits.append(&mut commits);
            }
            // The operation failed: it isn't known whether it was carried out, nor what was read.
            ("!", []) => {
                history.writes.append(&mut writes);
                commits.clear();
                reads.clear();
            }
            _ => return Err(format!("bad line {line:?}")),
        }
    }
    history.writes.append(&mut writes);
    Ok(())
}

/// In place of a value: the cell was read during a write, or a process was killed while it was
/// writing the cell.
const TORN: u64 = u64::MAX;

/// Returns the value that two words of a cell show. The words differ if old and new bytes are
/// mixed: bytes are copied one by one, also within words.
fn shown(words: &[u8]) -> u64 {
    let (one, other) = words.split_at(8);
    if one == other {
        one.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    } else {
        TORN
    }
}

struct Worker<'a> {
    face: &'a mut dyn Face,
    notes: std::fs::File,
    top: String,
    begin: u64,
    process: u64,
    cell: usize,
    random: Random,
    written: u64,
    /// Whether commits are recorded but not made, to test the checker.
    lies: bool,
}

/// Runs a worker on `face`, for the command `worker later`.
///
/// # Errors
/// The reason why the worker can't run, in words.
pub fn work(arguments: &[String], face: &mut dyn Face) -> std::result::Result<(), String> {
    let [notes, top, numbers @ ..] = arguments else {
        return Err("a worker is started by the driver only".into());
    };
    let numbers: Vec<u64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
    let &[begin, until, seed, process, cell, lies] = &numbers[..] else {
        return Err("a worker is started by the driver only".into());
    };
    let parent = calls::parent();
    let mut worker = Worker {
        face,
        notes: std::fs::File::create(notes).map_err(|e| format!("{notes}: {e}"))?,
        top: top.clone(),
        begin,
        process,
        cell: cell as usize,
        random: Random::new(seed.wrapping_add(process)),
        written: 0,
        lies: lies != 0,
    };
    while calls::now() < begin {
        std::thread::sleep(Duration::from_millis(1));
    }
    while calls::now() < until && calls::parent() == parent {
        // Operations that failed are tried again in the next round.
        if worker.round().is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

impl Worker<'_> {
    fn note(&mut self, text: &str) {
        // If the records are incomplete, nothing can be judged.
        self.notes
            .write_all(text.as_bytes())
            .expect("the notes can be written");
    }

    /// Records the end of an operation. Returns its result.
    fn end<T>(&mut self, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.note(&format!("= {}\n", calls::now())),
            Err(_) => self.note("!\n"),
        }
        result
    }

    fn now(&self) -> u64 {
        (calls::now() - self.begin) / ROUND
    }

    /// Uses the file of the current round until the round ends.
    fn round(&mut self) -> Result<()> {
        let round = self.now();
        let path = |round: u64| format!("{}/later-{}-{round}", self.top, self.begin);
        let (path, old) = (path(round), path(round.saturating_sub(5)));
        if round >= 5 && self.random.once_in(2) {
            let _ = self.face.unlink(&old);
        }
        let mut opened = calls::now();
        let mut fd = self.face.open(&path, libc::O_RDWR | libc::O_CREAT)?;
        while self.now() == round {
            let done = match self.random.below(20) {
                0..8 => self.write(fd, round),
                8..16 => self.read(fd, round, opened),
                16 | 17 => self.commit(round, |face| face.close(fd)).and_then(|()| {
                    if self.lies {
                        return Ok(());
                    }
                    opened = calls::now();
                    fd = self.face.open(&path, libc::O_RDWR)?;
                    Ok(())
                }),
                18 => self.commit(round, |face| face.sync(fd)),
                _ => match self.face.flock(fd, libc::LOCK_EX) {
                    Ok(_) => self.commit(round, |face| face.flock(fd, libc::LOCK_UN)),
                    Err(libc::EAGAIN) => Ok(()),
                    Err(e) => Err(e),
                },
            };
            if done.is_err() {
                break;
            }
            if self.random.once_in(8) {
                std::thread::sleep(Duration::from_micros(self.random.below(2000)));
            }
        }
        self.commit(round, |face| face.close(fd))
    }

    /// Returns a random range of cells.
    fn cells(&mut self) -> std::ops::Range<u64> {
        let first = self.random.below(CELLS);
        let most = (CELLS - first).min(3);
        first..first + 1 + self.random.below(most)
    }

    fn write(&mut self, fd: i32, round: u64) -> Result<()> {
        let cells = self.cells();
        let (mut bytes, mut notes) = (Vec::new(), String::new());
        let now = calls::now();
        for cell in cells.clone() {
            self.written += 1;
            let value = (self.process + 1) << 32 | self.written;
            bytes.extend(value.to_le_bytes().repeat(self.cell / 8));
            let _ = writeln!(notes, "W {round} {cell} {value} {now}");
        }
        self.note(&notes);
        let written = self
            .face
            .write_at(fd, &bytes, cells.start * self.cell as u64);
        let all = |n| {
            if n == bytes.len() {
                Ok(())
            } else {
                Err(libc::EIO)
            }
        };
        self.end(written.and_then(all))
    }

    fn read(&mut self, fd: i32, round: u64, opened: u64) -> Result<()> {
        let cells = self.cells();
        let now = calls::now();
        let count = (cells.end - cells.start) as usize;
        let mut notes = String::new();
        // Two records for each cell: for its first two words, and for its last two.
        for cell in cells.clone().flat_map(|cell| [cell, cell]) {
            let _ = writeln!(notes, "R {round} {cell} {opened} {now}");
        }
        self.note(&notes);
        // Cells that don't exist yet count as 0.
        let mut bytes = vec![0; count * self.cell];
        match self
            .face
            .read_at(fd, &mut bytes, cells.start * self.cell as u64)
        {
            Err(e) => self.end(Err(e)),
            Ok(_) => {
                let mut end = format!("= {}", calls::now());
                for cell in bytes.chunks_exact(self.cell) {
                    for words in [&cell[..16], &cell[self.cell - 16..]] {
                        let _ = write!(end, " {}", shown(words));
                    }
                }
                self.note(&(end + "\n"));
                Ok(())
            }
        }
    }

    fn commit(
        &mut self,
        round: u64,
        commit: impl FnOnce(&mut dyn Face) -> Result<()>,
    ) -> Result<()> {
        self.note(&format!("C {round} {}\n", calls::now()));
        let done = if self.lies {
            Ok(())
        } else {
            commit(&mut *self.face)
        };
        self.end(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_words_say_nothing() {
        let both = |one: u64, other: u64| [one.to_le_bytes(), other.to_le_bytes()].concat();
        assert_eq!(shown(&both(5 << 32 | 7, 5 << 32 | 7)), 5 << 32 | 7);
        assert_eq!(shown(&both(0, 0)), 0);
        assert_eq!(shown(&both(5 << 32 | 7, 6 << 32 | 7)), TORN);
        let mut history = History::default();
        let text = format!("R 3 1 90 140\nR 3 1 90 140\n= 150 7 {TORN}\n");
        take(&text, 2, Consistency::Session, &mut history).unwrap();
        assert_eq!(history.reads.len(), 1);
    }

    #[test]
    fn notes_become_a_history() {
        let mut history = History::default();
        let text = "W 3 1 7 100\nW 3 2 8 100\n= 110\nC 3 120\n= 130\nR 3 1 90 140\nR 3 1 90 140\n= 150 7 0\n\
                    C 3 160\n!\nR 3 1 90 170\n!\nW 3 1 9 180\n!\nW 3 1 10 190\n";
        take(text, 2, Consistency::Session, &mut history).unwrap();
        let ends: Vec<u64> = history.writes.iter().map(|w| w.end).collect();
        assert_eq!(ends, [110, 110, NEVER, NEVER]);
        assert_eq!(history.commits.len(), 1);
        let reads: Vec<_> = history
            .reads
            .iter()
            .map(|r| (r.value, r.since, r.end))
            .collect();
        assert_eq!(reads, [(7, 90, 150), (0, 90, 150)]);
        assert!(
            judge(&history, Rules::default()).is_err(),
            "7 and then nothing"
        );
        // The last line of a killed process may be incomplete.
        assert!(take("W 3 1 7 100\n= 11", 3, Consistency::Commit, &mut history).is_ok());
        let bad = ["X\n", "W 1\n", "= 1 2\n", "W 1 2 3 x\n"];
        assert!(
            bad.iter()
                .all(|b| take(b, 0, Consistency::Commit, &mut History::default()).is_err())
        );
    }
}
