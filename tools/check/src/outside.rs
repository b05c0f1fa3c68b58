//! Checks a pool with an origin. Processes in the pool use files while an outside process changes,
//! reads and removes the same files in the directory that is the pool's origin.
//!
//! Several lanes run at the same time, each with a process in the pool and its own files. A lane
//! runs one story after the other, chosen by the seed, with random pauses. Each story tests one way
//! in which a change by others is noticed. The story fails if the change isn't noticed within a
//! bound; if a version is lost that no process has replaced knowingly; or if any process reads a
//! part of a version. The process in the pool obeys lines on its standard input ([`work`]). The
//! driver is the outside process.
//!
//! A version is a file that begins with its number and size, which determine its other bytes.

use crate::driver::End;
use crate::options::Options;
use crate::random::Random;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The word after `worker` on the command line of a worker of this module.
pub const WORD: &str = "outside";
/// Maximum size of a version. Bytes.
const LARGEST: u64 = 200_000;
/// Pause between two checks whether a change was noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The times within which changes must be noticed.
#[derive(Clone, Copy)]
struct Bounds {
    lag: Duration,
    /// Interval between two checks of the origin by the pool, plus the duration of a check.
    look: Duration,
    /// Time from the last change of a file until the origin has it.
    drained: Duration,
}

/// How often a change was noticed in a story, and the longest time that this took.
#[derive(Clone, Copy, Default)]
struct Row {
    count: u64,
    longest: Duration,
    bound: Duration,
}

type Rows = Mutex<BTreeMap<&'static str, Row>>;
type Done<T> = Result<T, String>;

/// Runs lanes until the time limit, or until one finds an error.
///
/// # Errors
/// The reason why the check couldn't run, in words.
pub fn run(options: &Options, origin: &Path) -> Done<End> {
    let (lag, look, slack) = (options.lag, options.look, options.slack);
    let ms = Duration::from_millis;
    let bounds = Bounds {
        lag: ms(lag),
        look: ms(look + slack),
        drained: ms(lag + lag / 2 + slack),
    };
    let beside = origin.with_extension("outside");
    std::fs::create_dir_all(&beside).map_err(|e| format!("{}: {e}", beside.display()))?;
    let (rows, found) = (Rows::default(), Mutex::new(None));
    let (is_over, ids) = (AtomicBool::new(false), AtomicU64::new(1));
    let until = Instant::now() + Duration::from_secs(options.seconds);
    std::thread::scope(|scope| {
        for index in 0..options.workers {
            let (rows, found, is_over, ids, beside) = (&rows, &found, &is_over, &ids, &beside);
            scope.spawn(move || {
                let result = Lane::new(options, origin, beside, index, (bounds, ids, rows));
                let mut lane = match result {
                    Ok(lane) => lane,
                    Err(e) => return note(found, is_over, Err(e)),
                };
                while Instant::now() < until && !is_over.load(Relaxed) {
                    if let Err(what) = lane.story() {
                        let told = format!("lane {index}: {what}\n{}", lane.log.join("\n"));
                        return note(found, is_over, Ok(told));
                    }
                }
            });
        }
    });
    let _ = std::fs::remove_dir_all(&beside);
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (name, row) in &rows {
        println!(
            "{name}: {} times, noticed after {} ms at most, stated {} ms",
            row.count,
            row.longest.as_millis(),
            row.bound.as_millis()
        );
    }
    let stories: u64 = rows.values().map(|row| row.count).sum();
    println!(
        "seed {}: {stories} changes noticed in {} ways",
        options.seed,
        rows.len()
    );
    match found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(End::Fine),
        Some(Ok(told)) => {
            println!("impossible: {told}");
            Ok(End::Impossible)
        }
        Some(Err(e)) => Err(e),
    }
}

fn note(found: &Mutex<Option<Done<String>>>, is_over: &AtomicBool, result: Done<String>) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    found.get_or_insert(result);
    is_over.store(true, Relaxed);
}

/// Returns the bytes of a version.
fn version(id: u64, size: u64) -> Vec<u8> {
    let mut text = format!("version {id} {size}\n").into_bytes();
    let mut random = Random::new(id);
    while (text.len() as u64) < size {
        text.extend_from_slice(&random.next().to_le_bytes());
    }
    text
}

/// Returns the number of the version that `text` holds; an error if `text` isn't a version.
fn id_of(text: &[u8]) -> Done<u64> {
    let head = text.split(|&b| b == b'\n').next().unwrap_or_default();
    let head = String::from_utf8_lossy(head).into_owned();
    let words: Vec<&str> = head.split(' ').collect();
    if let ["version", id, size] = words[..]
        && let (Ok(id), Ok(size)) = (id.parse(), size.parse())
        && version(id, size) == text
    {
        return Ok(id);
    }
    Err(format!(
        "torn {} bytes, {}",
        text.len(),
        head.escape_debug()
    ))
}

/// Carries out one line, with names below `top`. Returns the reply: `ok`, `is ID`, `size N`, `names
/// ...`, `torn ...`, or `error NUMBER`.
fn act(top: &str, held: &mut Option<File>, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let at = |name: &str| format!("{top}/{name}");
    let whole = |mut file: &File| -> std::io::Result<String> {
        let mut text = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut text)?;
        Ok(id_of(&text).map_or_else(|torn| torn, |id| format!("is {id}")))
    };
    let ok = |()| "ok".to_owned();
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    let done = match words[..] {
        ["write", name, id, size] => {
            std::fs::write(at(name), version(number(id), number(size))).map(ok)
        }
        // The version is written under another name, then renamed.
        ["put", name, id, size] => {
            let part = format!("{name}.part");
            std::fs::write(at(&part), version(number(id), number(size)))
                .and_then(|()| std::fs::rename(at(&part), at(name)))
                .map(ok)
        }
        ["read", name] => File::open(at(name)).and_then(|file| whole(&file)),
        ["hold", name] => File::open(at(name)).and_then(|file| {
            let told = whole(&file)?;
            *held = Some(file);
            Ok(told)
        }),
        ["again"] => held.as_ref().map_or(Ok("none held".into()), whole),
        ["drop"] => {
            *held = None;
            Ok("ok".into())
        }
        ["size", name] => std::fs::metadata(at(name)).map(|meta| format!("size {}", meta.len())),
        ["list", name] => std::fs::read_dir(at(name)).map(|entries| {
            let names = entries.flatten();
            let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
            format!("names {}", names.collect::<Vec<_>>().join(" "))
        }),
        ["mkdir", name] => std::fs::create_dir(at(name)).map(ok),
        ["rmdir", name] => std::fs::remove_dir(at(name)).map(ok),
        ["unlink", name] => std::fs::remove_file(at(name)).map(ok),
        _ => Ok("unknown".into()),
    };
    done.unwrap_or_else(|e| format!("error {}", e.raw_os_error().unwrap_or(0)))
}

/// Main function of a process in the pool: obeys lines until its input ends.
///
/// # Errors
/// The reason why the process couldn't run, in words.
pub fn work(arguments: &[String]) -> Done<()> {
    let [_, top] = arguments else {
        return Err("a worker is started by the driver only".into());
    };
    let mut held = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let mut out = std::io::stdout().lock();
        let reply = act(top, &mut held, &line);
        writeln!(out, "{reply}")
            .and_then(|()| out.flush())
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// A process in the pool, its files, and their counterparts outside.
struct Lane<'a> {
    origin: String,
    beside: String,
    bounds: Bounds,
    ids: &'a AtomicU64,
    rows: &'a Rows,
    index: usize,
    loses_copies: bool,
    random: Random,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    began: Instant,
    /// The events of the story so far.
    log: Vec<String>,
    stories: u64,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Lane<'a> {
    fn new(
        options: &Options,
        origin: &Path,
        beside: &Path,
        index: usize,
        (bounds, ids, rows): (Bounds, &'a AtomicU64, &'a Rows),
    ) -> Done<Lane<'a>> {
        let node = (index as u64 % options.nodes).to_string();
        let with = options.with.iter().map(|word| word.replace("{}", &node));
        let mut words: Vec<String> = with.collect();
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        words.extend([me.display().to_string(), "worker".into()]);
        words.extend([WORD.to_owned(), options.top.clone()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut child = started.map_err(|e| format!("{}: {e}", words[0]))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else {
            return Err("a worker has no pipes".into());
        };
        Ok(Lane {
            origin: origin.display().to_string(),
            beside: beside.display().to_string(),
            bounds,
            ids,
            rows,
            index,
            loses_copies: options.loses_copies,
            random: Random::new(options.seed.wrapping_add(index as u64 * 7919)),
            child,
            to,
            from: BufReader::new(from),
            began: Instant::now(),
            log: Vec::new(),
            stories: 0,
        })
    }

    fn note(&mut self, who: &str, line: &str, reply: &str) {
        let at = self.began.elapsed().as_millis();
        let told = format!("{who} {line}: {reply}");
        // Of a repeated observation, only the first and the last one are recorded.
        let is_repeated = |old: &String| old.ends_with(&told);
        if self.log.len() > 1 && self.log.iter().rev().take(2).all(is_repeated) {
            self.log.pop();
        }
        self.log.push(format!("  {at:6} ms {told}"));
    }

    /// Returns the reply of the process in the pool to a line.
    fn inside(&mut self, line: &str) -> Done<String> {
        self.send(line)?;
        self.reply(line)
    }

    fn send(&mut self, line: &str) -> Done<()> {
        let sent = writeln!(self.to, "{line}").and_then(|()| self.to.flush());
        sent.map_err(|e| format!("the process in the pool: {e}"))
    }

    fn reply(&mut self, line: &str) -> Done<String> {
        let mut reply = String::new();
        match self.from.read_line(&mut reply) {
            Ok(n) if n > 0 => {}
            _ => return Err("the process in the pool has ended".into()),
        }
        let reply = reply.trim_end().to_owned();
        self.note("inside ", line, &reply);
        self.whole(&reply)
    }

    fn outside(&mut self, line: &str) -> Done<String> {
        let reply = act(&self.origin.clone(), &mut None, line);
        self.note("outside", line, &reply);
        self.whole(&reply)
    }

    /// Writes a version at the origin from outside. The version is written in another directory and
    /// renamed, so that the origin never has a part of it.
    fn put(&mut self, name: &str) -> Done<u64> {
        let (id, size) = (self.next_id(), self.random.below(LARGEST));
        let part = format!("{}/{}", self.beside, name.replace('/', "-"));
        let to = format!("{}/{name}", self.origin);
        let put =
            std::fs::write(&part, version(id, size)).and_then(|()| std::fs::rename(&part, to));
        self.note(
            "outside",
            &format!("put {name} {id} {size}"),
            &format!("{put:?}"),
        );
        put.map_err(|e| format!("{name} can't be put: {e}"))?;
        Ok(id)
    }

    fn write(&mut self, name: &str) -> Done<u64> {
        let (id, size) = (self.next_id(), self.random.below(LARGEST));
        self.wants(&format!("write {name} {id} {size}"), "ok")?;
        Ok(id)
    }

    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed)
    }

    /// Returns `reply`; an error if it reports a part of a version, which no reader may ever get.
    fn whole(&self, reply: &str) -> Done<String> {
        if reply.starts_with("torn") {
            Err(format!("no version: {reply}"))
        } else {
            Ok(reply.to_owned())
        }
    }

    fn wants(&mut self, line: &str, reply: &str) -> Done<()> {
        match self.inside(line)? {
            got if got == reply => Ok(()),
            got => Err(format!("inside, {line}: {got}, not {reply}")),
        }
    }

    fn rest(&mut self, most: Duration) {
        let pause = self.random.below(most.as_millis() as u64 + 1);
        std::thread::sleep(Duration::from_millis(pause));
    }

    /// Repeats `look` until it returns that the change was noticed, at most until the time in
    /// `bound`.
    fn notices(
        &mut self,
        what: &'static str,
        (since, bound): (Instant, Duration),
        look: impl FnMut(&mut Self) -> Done<bool>,
    ) -> Done<()> {
        let took = self.is_noticed(what, (since, bound), look)?;
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(what).or_default();
        row.count += 1;
        row.longest = row.longest.max(took);
        row.bound = bound;
        Ok(())
    }

    fn is_noticed(
        &mut self,
        what: &str,
        (since, bound): (Instant, Duration),
        mut look: impl FnMut(&mut Self) -> Done<bool>,
    ) -> Done<Duration> {
        loop {
            let begin = since.elapsed();
            if look(self)? {
                return Ok(since.elapsed());
            }
            if begin > bound {
                return Err(format!(
                    "{what}: not noticed within {} ms",
                    bound.as_millis()
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Makes a file that the pool and the origin both have, with its bytes in the pool. Returns its
    /// version.
    fn clean(&mut self, name: &str) -> Done<u64> {
        let id = if self.random.once_in(2) {
            let id = self.put(name)?;
            let bound = (Instant::now(), self.bounds.look);
            self.is_noticed("a new file", bound, |lane| lane.shows(name, id))?;
            id
        } else {
            let id = self.write(name)?;
            let bound = (Instant::now(), self.bounds.drained);
            self.is_noticed("a file that is written back", bound, |lane| {
                Ok(lane.outside(&format!("read {name}"))? == format!("is {id}"))
            })?;
            // Gives the pool time to record that the file is written back.
            std::thread::sleep(self.bounds.drained.min(Duration::from_millis(500)));
            id
        };
        Ok(id)
    }

    fn shows(&mut self, name: &str, id: u64) -> Done<bool> {
        Ok(self.inside(&format!("read {name}"))? == format!("is {id}"))
    }

    fn story(&mut self) -> Done<()> {
        self.log.clear();
        self.stories += 1;
        let name = format!("{}-{}-{}", std::process::id(), self.index, self.stories);
        let most = self.bounds.lag;
        self.rest(most);
        match self.random.below(9) {
            0 => self.added(&name),
            1 => self.removed(&name),
            2 => self.changed_released(&name),
            3 => self.changed(&name),
            4 => self.changed_while_open(&name),
            5 => self.removed_dirty(&name),
            6 => self.directory(&name),
            7 => self.read_outside(&name),
            _ => self.changed_by_both(&name),
        }
    }

    fn added(&mut self, name: &str) -> Done<()> {
        let id = self.put(name)?;
        let bound = (Instant::now(), self.bounds.look);
        self.notices("add a file", bound, |lane| {
            Ok(lane.inside("list .")?.split(' ').any(|other| other == name))
        })?;
        self.wants(&format!("read {name}"), &format!("is {id}"))
    }

    fn removed(&mut self, name: &str) -> Done<()> {
        let id = self.clean(name)?;
        let holds = self.random.once_in(2);
        if holds {
            self.wants(&format!("hold {name}"), &format!("is {id}"))?;
        }
        self.outside(&format!("unlink {name}"))?;
        let bound = (Instant::now(), self.bounds.look);
        self.notices("remove a clean file", bound, |lane| {
            let got = lane.inside(&format!("read {name}"))?;
            if got == format!("is {id}") || got == "error 2" {
                Ok(got == "error 2")
            } else {
                Err(format!("{name}: {got}"))
            }
        })?;
        if holds {
            self.wants("again", &format!("is {id}"))?;
            self.wants("drop", "ok")?;
        }
        Ok(())
    }

    fn changed_released(&mut self, name: &str) -> Done<()> {
        self.put(name)?;
        let bound = (Instant::now(), self.bounds.look);
        self.is_noticed("a new file", bound, |lane| {
            Ok(lane.inside(&format!("size {name}"))?.starts_with("size"))
        })?;
        let most = self.bounds.look;
        self.rest(most);
        let id = self.put(name)?;
        let since = Instant::now();
        if self.random.once_in(2) {
            let size = self.outside(&format!("size {name}"))?;
            return self.notices("change a released file: its size", (since, most), |lane| {
                Ok(lane.inside(&format!("size {name}"))? == size)
            });
        }
        // The first check must succeed: a change of a released file must be noticed at once.
        self.notices(
            "change a released file: its bytes",
            (since, Duration::ZERO),
            |lane| {
                if lane.shows(name, id)? {
                    Ok(true)
                } else {
                    Err("an older version than the origin's was brought in".into())
                }
            },
        )
    }

    fn changed(&mut self, name: &str) -> Done<()> {
        let old = self.clean(name)?;
        let id = self.put(name)?;
        let bound = (Instant::now(), self.bounds.look);
        self.notices("change a clean file", bound, |lane| {
            lane.is_either(name, old, id)
        })
    }

    /// Whether a file in the pool has its new version; an error if it has neither version.
    fn is_either(&mut self, name: &str, old: u64, new: u64) -> Done<bool> {
        let got = self.inside(&format!("read {name}"))?;
        if got == format!("is {old}") || got == format!("is {new}") {
            Ok(got == format!("is {new}"))
        } else {
            Err(format!("{name}: {got}, neither version {old} nor {new}"))
        }
    }

    fn changed_while_open(&mut self, name: &str) -> Done<()> {
        let old = self.clean(name)?;
        self.wants(&format!("hold {name}"), &format!("is {old}"))?;
        let id = self.put(name)?;
        let most = self.bounds.look.as_millis() as u64;
        let open = Duration::from_millis(most / 3 + self.random.below(most));
        let since = Instant::now();
        while since.elapsed() < open {
            self.wants("again", &format!("is {old}"))?;
            std::thread::sleep(POLL_INTERVAL * 5);
        }
        self.wants("drop", "ok")?;
        let bound = (Instant::now(), self.bounds.look);
        self.notices(
            "change a clean file that is open, after its close",
            bound,
            |lane| lane.is_either(name, old, id),
        )
    }

    fn removed_dirty(&mut self, name: &str) -> Done<()> {
        self.clean(name)?;
        let id = self.write(name)?;
        let since = Instant::now();
        let most = self.bounds.lag / 2;
        self.rest(most);
        self.outside(&format!("unlink {name}"))?;
        if since.elapsed() > self.bounds.lag / 4 * 3 {
            // The file may have been written back already. Then it is clean, and is removed.
            return Ok(());
        }
        let bound = (since, self.bounds.drained + self.bounds.look);
        self.notices("remove a dirty file", bound, |lane| {
            lane.wants(&format!("read {name}"), &format!("is {id}"))?;
            Ok(lane.outside(&format!("read {name}"))? == format!("is {id}"))
        })
    }

    fn directory(&mut self, name: &str) -> Done<()> {
        self.wants(&format!("mkdir {name}"), "ok")?;
        let file = format!("{name}/file");
        self.clean_in(&file)?;
        let theirs = format!("{name}/theirs");
        let id = self.put(&theirs)?;
        let most = self.bounds.look / 4;
        self.rest(most);
        self.wants(&format!("unlink {file}"), "ok")?;
        let since = Instant::now();
        self.wants(&format!("rmdir {name}"), "error 39")?;
        self.notices(
            "put a file into a directory that the pool removes",
            (since, Duration::ZERO),
            |lane| lane.shows(&theirs, id),
        )?;
        self.wants(&format!("unlink {theirs}"), "ok")?;
        self.wants(&format!("rmdir {name}"), "ok")
    }

    /// Makes a file in the pool and waits until the origin has it.
    fn clean_in(&mut self, name: &str) -> Done<()> {
        let id = self.write(name)?;
        let bound = (Instant::now(), self.bounds.drained * 2);
        self.is_noticed("a file that is written back", bound, |lane| {
            Ok(lane.outside(&format!("read {name}"))? == format!("is {id}"))
        })?;
        std::thread::sleep(self.bounds.drained.min(Duration::from_millis(500)));
        Ok(())
    }

    fn read_outside(&mut self, name: &str) -> Done<()> {
        let (mut last, mut seen) = (0, 0);
        for _ in 0..self.random.below(8) + 2 {
            let (id, size) = (self.next_id(), self.random.below(LARGEST));
            self.wants(&format!("put {name} {id} {size}"), "ok")?;
            last = id;
            let until = Instant::now() + Duration::from_millis(self.random.below(300));
            while Instant::now() < until {
                seen = self.is_later(name, seen)?;
            }
        }
        let bound = (Instant::now(), self.bounds.drained);
        self.notices("read a file that the pool changes", bound, |lane| {
            seen = lane.is_later(name, seen)?;
            Ok(seen == last)
        })
    }

    /// Returns the version that the origin has; an error if it is older than version `seen`.
    fn is_later(&mut self, name: &str, seen: u64) -> Done<u64> {
        let got = self.outside(&format!("read {name}"))?;
        let id = got.strip_prefix("is ").and_then(|id| id.parse().ok());
        std::thread::sleep(POLL_INTERVAL);
        match id {
            Some(id) if id >= seen => Ok(id),
            None if seen == 0 && got == "error 2" => Ok(0),
            _ => Err(format!("outside, {name}: {got} after version {seen}")),
        }
    }

    fn changed_by_both(&mut self, name: &str) -> Done<()> {
        self.clean(name)?;
        let lag = self.bounds.lag;
        let (id, size) = (self.next_id(), self.random.below(LARGEST));
        let write = format!("write {name} {id} {size}");
        let is_first = self.random.once_in(2);
        let mut theirs = (0, Instant::now());
        if !is_first {
            theirs = (self.put(name)?, Instant::now());
            self.rest(lag);
        }
        let begin = Instant::now();
        self.send(&write)?;
        if self.reply(&write)? != "ok" {
            return Err("the pool's version can't be written".into());
        }
        let end = Instant::now();
        if is_first {
            self.rest(lag);
            theirs = (self.put(name)?, Instant::now());
        }
        // A version may be lost only if the side that replaced it may have known it.
        let needs_theirs = is_first || theirs.1 > begin;
        let needs_ours = !is_first || theirs.1 < end + lag / 4 * 3;
        let since = Instant::now();
        let bound = (since, self.bounds.drained);
        let both = |lane: &mut Self| -> Done<(bool, bool)> {
            let copies = lane.copies_of(name)?;
            if lane.loses_copies {
                for copy in &copies {
                    lane.outside(&format!("unlink {copy}"))?;
                }
            }
            let mut found = vec![lane.outside(&format!("read {name}"))?];
            for copy in &copies {
                found.push(lane.outside(&format!("read {copy}"))?);
            }
            let has = |id: u64| found.contains(&format!("is {id}"));
            let is_complete = (has(id) || !needs_ours) && (has(theirs.0) || !needs_theirs);
            Ok((
                is_complete && (has(id) || has(theirs.0)),
                !copies.is_empty(),
            ))
        };
        let what = "change a dirty file";
        self.notices(what, bound, |lane| Ok(both(lane)?.0))?;
        // The origin keeps its version, and the pool gets it.
        let bound = (Instant::now(), self.bounds.look + self.bounds.drained);
        self.is_noticed(
            "the origin's version of a file that both have changed",
            bound,
            |lane| {
                if !both(lane)?.0 {
                    return Err("a version is lost".into());
                }
                let there = lane.outside(&format!("read {name}"))?;
                Ok(lane.inside(&format!("read {name}"))? == there)
            },
        )?;
        for copy in self.copies_of(name)? {
            self.outside(&format!("unlink {copy}"))?;
        }
        Ok(())
    }

    fn copies_of(&mut self, name: &str) -> Done<Vec<String>> {
        let start = format!("{name}.forebay-conflict-");
        let names = self.outside("list .")?;
        let copies = names.split(' ').filter(|other| other.starts_with(&start));
        Ok(copies.map(str::to_owned).collect())
    }
}
