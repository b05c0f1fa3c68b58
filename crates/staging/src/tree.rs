//! A whole staging: list the source, make the directories, move what differs, and set
//! the directories' own attributes last, when nothing changes in them any more.
//!
//! Levels of the tree are listed one after the other, the directories of a level in
//! parallel. Then small files go in parallel, large ones one by one with all threads on
//! their ranges. Of several hard links to one file the first is a file like others; the
//! rest are linked to it.

use crate::attributes;
use crate::copy::{self, RANGE, Trouble};
use crate::parallel::for_each;
use crate::part;
use crate::place::{Meta, Place, PlaceFile, join, split};
use crate::report::Ledger;
use crate::{Options, Progress, Report, StageError};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Files from this size on are copied by several threads.
const LARGE: u64 = 2 * RANGE;
/// Files from this size on are synced one by one, before they are read back.
const SYNC_EACH: u64 = 1 << 20;
/// So many smaller ones are synced together, before they get their names.
const SYNC_BATCH: usize = 4096;

/// One object of the source, by its path below the source's root.
struct Entry {
    below: Vec<u8>,
    meta: Meta,
}

/// What came of one file.
enum Outcome {
    Moved(u64),
    /// Complete under this name; it gets its own when it is on stable storage.
    Waiting(Vec<u8>, u64),
    Unchanged,
    Failed(String),
    Stopped,
}

struct Job<'a, S, D> {
    from: &'a S,
    src: Vec<u8>,
    to: &'a D,
    dst: Vec<u8>,
    options: &'a Options,
    threads: usize,
    progress: &'a Progress,
    ledger: Ledger,
    /// Which file of the source each destination file with several links stands for.
    claimed: Mutex<HashMap<(u64, u64), (u64, u64)>>,
}

/// Stages `src` of `from` to `dst` of `to`, any two places.
///
/// # Errors
/// If it can't even begin. What goes wrong later is in the report.
pub fn stage<S: Place, D: Place>(
    from: &S,
    src: &[u8],
    to: &D,
    dst: &[u8],
    options: &Options,
    progress: &Progress,
) -> Result<Report, StageError> {
    let began = std::time::Instant::now();
    let src = trimmed(src);
    let meta = from
        .stat(src, true)
        .map_err(|e| source_error(from, src, e))?;
    let into = dst.ends_with(b"/");
    let mut dst = trimmed(dst).to_vec();
    let mut there = match to.stat(&dst, true) {
        Ok(meta) => Some(meta),
        Err(Errno::NOENT) => None,
        Err(e) => return Err(target_error(to, &dst, e)),
    };
    if meta.is_file() && (there.is_some_and(|m| m.is_dir()) || there.is_none() && into) {
        let name = split(src).1;
        if matches!(name, b"" | b"." | b"..") {
            return Err(source_error(from, src, Errno::ISDIR));
        }
        dst = join(&dst, name);
        there = to.stat(&dst, false).ok();
    }
    match (meta.kind(), there) {
        (libc::S_IFDIR, Some(t)) if !t.is_dir() => {
            let what = "is not a directory, but the source is; choose another destination";
            return Err(StageError {
                path: to.show(&dst),
                what: what.into(),
            });
        }
        (libc::S_IFREG, Some(t)) if t.is_dir() => {
            let what =
                "is a directory, in the way of a file; remove it or choose another destination";
            return Err(StageError {
                path: to.show(&dst),
                what: what.into(),
            });
        }
        (libc::S_IFDIR | libc::S_IFREG, _) => {}
        _ => {
            let what = "is neither a file nor a directory; nothing else can be staged";
            return Err(StageError {
                path: from.show(src),
                what: what.into(),
            });
        }
    }
    make_parents(to, split(&dst).0)?;

    let job = Job {
        from,
        src: src.to_vec(),
        to,
        dst,
        options,
        threads: options.thread_count(),
        progress,
        ledger: Ledger::new(),
        claimed: Mutex::new(HashMap::new()),
    };
    job.run(meta, there.is_none());
    let mut report = job.ledger.finish();
    report.interrupted |= progress.stopped();
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

fn trimmed(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(1, |at| at + 1);
    &path[..end.min(path.len())]
}

fn source_error(place: &impl Place, path: &[u8], e: Errno) -> StageError {
    let what = match e {
        Errno::NOENT => "there is no such file or directory to stage".to_owned(),
        Errno::ISDIR => "can't be staged to a directory by this name".to_owned(),
        e => format!("can't be read: {}", place.explain(e)),
    };
    StageError {
        path: place.show(path),
        what,
    }
}

fn target_error(place: &impl Place, path: &[u8], e: Errno) -> StageError {
    let what = match e {
        Errno::NOTDIR => {
            "can't be made: part of this path is a file; choose another destination".to_owned()
        }
        e => format!("can't be written: {}", place.explain(e)),
    };
    StageError {
        path: place.show(path),
        what,
    }
}

/// Makes the directories above a destination as far as they are missing.
fn make_parents(to: &impl Place, directory: &[u8]) -> Result<(), StageError> {
    match to.stat(directory, true) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(target_error(to, directory, Errno::NOTDIR)),
        Err(Errno::NOENT) if !matches!(directory, b"." | b"/" | b"") => {
            make_parents(to, split(directory).0)?;
            match to.mkdir(directory, 0o777) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(target_error(to, directory, e)),
            }
        }
        Err(e) => Err(target_error(to, directory, e)),
    }
}

impl<S: Place, D: Place> Job<'_, S, D> {
    fn source(&self, below: &[u8]) -> Vec<u8> {
        join(&self.src, below)
    }

    fn target(&self, below: &[u8]) -> Vec<u8> {
        join(&self.dst, below)
    }

    fn fail_target(&self, below: &[u8], what: &str, e: Errno) {
        let text = format!("{what}: {}", self.to.explain(e));
        self.ledger.fail(self.to.show(&self.target(below)), text);
    }

    fn fail_source(&self, below: &[u8], what: &str, e: Errno) {
        let text = format!("{what}: {}", self.from.explain(e));
        self.ledger.fail(self.from.show(&self.source(below)), text);
    }

    fn run(&self, root: Meta, root_is_new: bool) {
        let root = Entry {
            below: Vec::new(),
            meta: root,
        };
        let mut levels = Vec::new();
        let mut files = Vec::new();
        if root.meta.is_dir() {
            let mut level = if self.make_directory(&root) {
                vec![root]
            } else {
                Vec::new()
            };
            while !level.is_empty() && !self.progress.stopped() {
                let found = Mutex::new((Vec::new(), Vec::new()));
                for_each(self.threads, &level, |d| self.visit(d, &found));
                let (directories, more) = found.into_inner().unwrap_or_else(|e| e.into_inner());
                files.extend(more);
                levels.push(std::mem::replace(&mut level, directories));
            }
        } else {
            let (directory, name) = split(&self.dst);
            part::sweep(self.to, directory, Some(name));
            files.push(root);
        }
        self.progress.listed.store(true, Relaxed);
        self.move_files(files);

        // Deepest first: setting up a directory changes the one above it.
        for (depth, level) in levels.iter().enumerate().rev() {
            if depth == 0 && !self.may_set_root(root_is_new) {
                break;
            }
            for_each(self.threads, level, |d| self.attributes(d));
        }
        if self.options.sync
            && self.ledger.with(|r| r.moved_files + r.directories > 0)
            && let Err(e) = self.to.sync_all(if levels.is_empty() {
                split(&self.dst).0
            } else {
                &self.dst
            })
        {
            self.fail_target(b"", "writing to stable storage", e);
        }
    }

    /// The destination itself takes the source's attributes, unless it is a place that
    /// others share or that has its own reasons for its mode.
    fn may_set_root(&self, is_new: bool) -> bool {
        is_new
            || self.dst != b"/"
                && self
                    .to
                    .stat(&self.dst, true)
                    .is_ok_and(|m| m.permissions() & 0o1000 == 0)
    }

    /// Makes the destination of a directory, writable for us until its attributes are set.
    fn make_directory(&self, d: &Entry) -> bool {
        let dst = self.target(&d.below);
        let result = match self.to.mkdir(&dst, d.meta.permissions() | 0o700) {
            Err(Errno::EXIST) => match self.to.stat(&dst, d.below.is_empty()) {
                Ok(m) if m.is_dir() => {
                    let writable = m.permissions() & 0o700 == 0o700;
                    // Whether it really can't be written will be seen.
                    let _ = writable || self.to.chmod(&dst, m.permissions() | 0o700).is_ok();
                    part::sweep(self.to, &dst, None);
                    Ok(())
                }
                Ok(_) => Err(Errno::EXIST),
                Err(e) => Err(e),
            },
            other => other,
        };
        match result {
            Ok(()) => {
                self.ledger.with(|r| r.directories += 1);
                return true;
            }
            Err(Errno::EXIST) => self.ledger.fail(
                self.to.show(&dst),
                "is in the way of a directory; remove it and stage again".into(),
            ),
            Err(e) => self.fail_target(&d.below, "can't be made", e),
        }
        false
    }

    /// Lists one directory: its directories are made, its files collected.
    fn visit(&self, d: &Entry, found: &Mutex<(Vec<Entry>, Vec<Entry>)>) {
        let src = self.source(&d.below);
        let names = match self.from.list(&src) {
            Ok(names) => names,
            Err(e) => return self.fail_source(&d.below, "can't be listed", e),
        };
        for name in names {
            if self.progress.stopped() {
                return;
            }
            let below = join(&d.below, &name);
            let meta = match self.from.stat(&join(&src, &name), false) {
                Ok(meta) => meta,
                Err(e) => {
                    self.fail_source(&below, "can't be read", e);
                    continue;
                }
            };
            let entry = Entry { below, meta };
            match entry.meta.kind() {
                libc::S_IFDIR => {
                    if self.make_directory(&entry) {
                        lock(found).0.push(entry);
                    }
                }
                libc::S_IFREG if part::is_part(&name) => {
                    self.skip(&entry, "left by an interrupted staging, not staged");
                }
                libc::S_IFREG | libc::S_IFLNK => {
                    self.progress.files_found.fetch_add(1, Relaxed);
                    lock(found).1.push(entry);
                }
                libc::S_IFIFO => self.skip(&entry, "a FIFO, not staged"),
                libc::S_IFSOCK => self.skip(&entry, "a socket, not staged"),
                _ => self.skip(&entry, "a device, not staged"),
            }
        }
    }

    fn skip(&self, entry: &Entry, what: &str) {
        self.ledger.with(|r| r.skipped += 1);
        self.ledger
            .warn(self.from.show(&self.source(&entry.below)), what.to_owned());
    }

    fn move_files(&self, mut files: Vec<Entry>) {
        // In a fixed order, so that a repetition finds the same first link of a file.
        files.sort_unstable_by(|a, b| a.below.cmp(&b.below));
        let mut first: HashMap<(u64, u64), usize> = HashMap::new();
        let (mut small, mut large, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for entry in files {
            let m = &entry.meta;
            let several = m.is_file() && m.nlink > 1;
            if several && let Some(&leader) = first.get(&(m.dev, m.ino)) {
                links.push((entry, leader));
                continue;
            }
            let size = if m.is_file() { m.size } else { 0 };
            self.progress.bytes_found.fetch_add(size, Relaxed);
            self.ledger.with(|r| r.bytes += size);
            let list: &mut Vec<Entry> = if size >= LARGE {
                &mut large
            } else {
                &mut small
            };
            if several {
                // The index says which list, too.
                let index = 2 * list.len() + usize::from(size >= LARGE);
                first.insert((m.dev, m.ino), index);
            }
            list.push(entry);
        }
        self.ledger
            .with(|r| r.files += (small.len() + large.len() + links.len()) as u64);

        for batch in small.chunks(if self.options.sync {
            SYNC_BATCH
        } else {
            usize::MAX
        }) {
            self.move_batch(batch);
        }
        for e in &large {
            let outcome = self.move_one(e, self.threads);
            self.note(e, outcome);
        }
        for_each(self.threads, &links, |(entry, leader)| {
            let list = if leader % 2 == 1 { &large } else { &small };
            let outcome = match list.get(leader / 2) {
                _ if self.progress.stopped() => Outcome::Stopped,
                Some(leader) => self.link(entry, leader),
                None => Outcome::Failed("its first link was not staged".into()),
            };
            self.note(entry, outcome);
        });
    }

    fn move_batch(&self, batch: &[Entry]) {
        let waiting = Mutex::new(Vec::new());
        for_each(self.threads, batch, |e| match self.move_one(e, 1) {
            Outcome::Waiting(part, bytes) => lock(&waiting).push((e, part, bytes)),
            outcome => self.note(e, outcome),
        });
        let waiting = waiting.into_inner().unwrap_or_else(|e| e.into_inner());
        let Some((_, part, _)) = waiting.first() else {
            return;
        };
        let synced = self.to.sync_all(split(part).0);
        for_each(self.threads, &waiting, |(e, part, bytes)| {
            let outcome = match synced {
                Ok(()) => match self.put_in_place(part, &self.target(&e.below)) {
                    Ok(()) => Outcome::Moved(*bytes),
                    Err(what) => Outcome::Failed(what),
                },
                Err(error) => {
                    let _ = self.to.unlink(part);
                    let why = self.to.explain(error);
                    Outcome::Failed(format!("can't be written to stable storage: {why}"))
                }
            };
            self.note(e, outcome);
        });
    }

    fn move_one(&self, entry: &Entry, threads: usize) -> Outcome {
        if self.progress.stopped() {
            Outcome::Stopped
        } else if entry.meta.is_symlink() {
            self.symlink(entry)
        } else {
            self.file(entry, threads)
        }
    }

    fn note(&self, entry: &Entry, outcome: Outcome) {
        self.progress.files_done.fetch_add(1, Relaxed);
        match outcome {
            Outcome::Moved(bytes) => self.ledger.with(|r| {
                r.moved_files += 1;
                r.moved_bytes += bytes;
            }),
            Outcome::Waiting(..) => unreachable!("only in a batch"),
            Outcome::Unchanged => self.ledger.with(|r| r.unchanged += 1),
            Outcome::Failed(what) => {
                self.ledger
                    .fail(self.to.show(&self.target(&entry.below)), what);
            }
            Outcome::Stopped => self.ledger.with(|r| r.interrupted = true),
        }
    }

    /// Sets the attributes of what is in place; notes what fails.
    fn attributes(&self, entry: &Entry) {
        if let Err(what) = self.set_attributes(entry, &self.target(&entry.below), &entry.meta) {
            self.ledger
                .fail(self.to.show(&self.target(&entry.below)), what);
        }
    }

    fn set_attributes(&self, entry: &Entry, dst: &[u8], meta: &Meta) -> Result<(), String> {
        match attributes::apply(self.from, &self.source(&entry.below), meta, self.to, dst) {
            Ok(applied) => {
                if applied.without_xattrs {
                    let what = "its extended attributes can't be kept here, and were left out";
                    self.ledger
                        .warn(self.to.show(&self.target(&entry.below)), what.into());
                }
                Ok(())
            }
            Err((step, e)) => Err(format!("{step} failed: {}", self.to.explain(e))),
        }
    }

    /// Renames `part` to where `below` belongs.
    fn put_in_place(&self, part: &[u8], dst: &[u8]) -> Result<(), String> {
        self.to.rename(part, dst).map_err(|e| {
            let _ = self.to.unlink(part);
            match e {
                Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST => in_the_way(),
                e => format!("can't be put in place: {}", self.to.explain(e)),
            }
        })
    }

    fn part_of(&self, dst: &[u8]) -> Vec<u8> {
        let (directory, name) = split(dst);
        join(directory, &part::name(name))
    }

    fn symlink(&self, entry: &Entry) -> Outcome {
        self.try_symlink(entry).unwrap_or_else(Outcome::Failed)
    }

    fn try_symlink(&self, entry: &Entry) -> Result<Outcome, String> {
        let dst = self.target(&entry.below);
        let target = self
            .from
            .readlink(&self.source(&entry.below))
            .map_err(|e| format!("can't be read: {}", self.from.explain(e)))?;
        let there = self.to.stat(&dst, false).ok();
        if there.is_some_and(|t| t.is_dir()) {
            return Err(in_the_way());
        }
        if there.is_some_and(|t| t.is_symlink()) && self.to.readlink(&dst) == Ok(target.clone()) {
            self.set_attributes(entry, &dst, &entry.meta)?;
            return Ok(Outcome::Unchanged);
        }
        let part = self.part_of(&dst);
        retry_after_removing(self.to, &part, || self.to.symlink(&target, &part))
            .map_err(|e| format!("can't be made: {}", self.to.explain(e)))?;
        self.set_attributes(entry, &part, &entry.meta)
            .inspect_err(|_| _ = self.to.unlink(&part))?;
        self.put_in_place(&part, &dst)?;
        Ok(Outcome::Moved(0))
    }

    fn link(&self, entry: &Entry, leader: &Entry) -> Outcome {
        let (dst, first) = (self.target(&entry.below), self.target(&leader.below));
        let Ok(goal) = self.to.stat(&first, false) else {
            return Outcome::Failed(format!(
                "is a hard link to {}, which was not staged",
                self.to.show(&first)
            ));
        };
        match self.to.stat(&dst, false) {
            Ok(t) if (t.dev, t.ino) == (goal.dev, goal.ino) => return Outcome::Unchanged,
            Ok(t) if t.is_dir() => return Outcome::Failed(in_the_way()),
            _ => {}
        }
        let part = self.part_of(&dst);
        let linked = retry_after_removing(self.to, &part, || self.to.link(&first, &part))
            .map_err(|e| format!("can't be linked: {}", self.to.explain(e)))
            .and_then(|()| self.put_in_place(&part, &dst));
        match linked {
            Ok(()) => Outcome::Moved(0),
            Err(what) => Outcome::Failed(what),
        }
    }

    fn file(&self, entry: &Entry, threads: usize) -> Outcome {
        let waits = self.options.sync && entry.meta.size < SYNC_EACH;
        match self.is_there(entry) {
            Ok(false) => {}
            Ok(true) => {
                let dst = self.target(&entry.below);
                return match self.set_attributes(entry, &dst, &entry.meta) {
                    Ok(()) => Outcome::Unchanged,
                    Err(what) => Outcome::Failed(what),
                };
            }
            Err(outcome) => return outcome,
        }
        let (dst, part) = (
            self.target(&entry.below),
            self.part_of(&self.target(&entry.below)),
        );
        let moved = self.copy(entry, &part, threads).and_then(|(bytes, meta)| {
            let placed = self
                .set_attributes(entry, &part, &meta)
                .inspect_err(|_| _ = self.to.unlink(&part))
                .and_then(|()| {
                    if waits {
                        Ok(())
                    } else {
                        self.put_in_place(&part, &dst)
                    }
                });
            placed.map(|()| bytes).map_err(Outcome::Failed)
        });
        match moved {
            Ok(bytes) if waits => Outcome::Waiting(part, bytes),
            Ok(bytes) => Outcome::Moved(bytes),
            Err(outcome) => outcome,
        }
    }

    /// Whether the destination has this file already.
    fn is_there(&self, entry: &Entry) -> Result<bool, Outcome> {
        let m = &entry.meta;
        let dst = self.target(&entry.below);
        let t = match self.to.stat(&dst, false) {
            Ok(t) if t.is_dir() => return Err(Outcome::Failed(in_the_way())),
            Ok(t) => t,
            Err(Errno::NOENT) => return Ok(false),
            Err(e) => {
                return Err(Outcome::Failed(format!(
                    "can't be written: {}",
                    self.to.explain(e)
                )));
            }
        };
        if !t.is_file() || t.size != m.size {
            return Ok(false);
        }
        if t.nlink > 1 {
            // One file there must not stand for two files here.
            let mut claimed = self.claimed.lock().unwrap_or_else(|e| e.into_inner());
            let by = claimed.entry((t.dev, t.ino)).or_insert((m.dev, m.ino));
            if *by != (m.dev, m.ino) || m.nlink == 1 {
                return Ok(false);
            }
        }
        if !self.options.checksum {
            let same = t.mtime == m.mtime;
            self.progress
                .bytes_done
                .fetch_add(if same { m.size } else { 0 }, Relaxed);
            return Ok(same);
        }
        let (Ok(a), Ok(b)) = (
            self.from
                .open(&self.source(&entry.below), entry.below.is_empty()),
            self.to.open(&dst, false),
        ) else {
            // Copying will say what's wrong with the source.
            return Ok(false);
        };
        copy::same(&a, &b, m.size, self.progress).map_err(|t| self.trouble(entry, t))
    }

    fn trouble(&self, entry: &Entry, trouble: Trouble) -> Outcome {
        let src = || self.from.show(&self.source(&entry.below));
        Outcome::Failed(match trouble {
            Trouble::Stopped => return Outcome::Stopped,
            Trouble::Read(e) => format!("can't read {}: {}", src(), self.from.explain(e)),
            Trouble::Write(e) => format!("can't be written: {}", self.to.explain(e)),
            Trouble::ReadBack(e) => {
                format!("can't be read back for verification: {}", self.to.explain(e))
            }
            Trouble::Changed => {
                format!("{} changed while it was copied; stage again when it rests", src())
            }
            Trouble::Differs => {
                "what arrived is not what left (size or checksum); stage again, and check the storage"
                    .into()
            }
        })
    }

    /// Copies the content to `part` and verifies it. Leaves nothing behind if that fails.
    fn copy(&self, entry: &Entry, part: &[u8], threads: usize) -> Result<(u64, Meta), Outcome> {
        let trouble = |t| self.trouble(entry, t);
        let from = self
            .from
            .open(&self.source(&entry.below), entry.below.is_empty())
            .map_err(|e| trouble(Trouble::Read(e)))?;
        let to = retry_after_removing(self.to, part, || self.to.create(part))
            .map_err(|e| trouble(Trouble::Write(e)))?;
        let copied = self
            .copy_content(&from, &to, entry.meta.size, threads)
            .map_err(trouble);
        let closed = to.close().map_err(|e| trouble(Trouble::Write(e)));
        copied
            .and_then(|copied| closed.map(|()| copied))
            .inspect_err(|_| _ = self.to.unlink(part))
    }

    fn copy_content(
        &self,
        from: &S::File<'_>,
        to: &D::File<'_>,
        size_seen: u64,
        threads: usize,
    ) -> Result<(u64, Meta), Trouble> {
        let before = at_rest(from).map_err(Trouble::Read)?;
        if !before.is_file() {
            return Err(Trouble::Changed);
        }
        let done = Mutex::new(Ok(Vec::new()));
        let ranges = copy::ranges(before.size);
        for_each(threads, &ranges, |&(start, end)| {
            if lock(&done).is_ok() {
                let result = copy::copy(from, to, start, end, self.progress);
                note_first(&done, result);
            }
        });
        let ranges = done.into_inner().unwrap_or_else(|e| e.into_inner())?;
        if to.meta().map_err(Trouble::Write)?.size != before.size {
            // It ends in a hole.
            to.set_len(before.size).map_err(Trouble::Write)?;
        }
        let after = from.meta().map_err(Trouble::Read)?;
        if (after.size, after.mtime, after.ctime) != (before.size, before.mtime, before.ctime) {
            return Err(Trouble::Changed);
        }
        if self.options.sync && size_seen >= SYNC_EACH {
            to.sync().map_err(Trouble::Write)?;
            to.forget_cached();
        }
        if to.meta().map_err(Trouble::ReadBack)?.size != before.size {
            return Err(Trouble::Differs);
        }
        let verified = Mutex::new(Ok(Vec::new()));
        for_each(threads, &ranges, |range| {
            if lock(&verified).is_ok() {
                note_first(&verified, copy::verify(to, range, self.progress));
            }
        });
        verified.into_inner().unwrap_or_else(|e| e.into_inner())?;
        Ok((ranges.iter().map(copy::Range::data).sum(), before))
    }
}

/// The file's metadata, once its last change lies so far back that another one would show
/// in its times: they advance by ticks of some milliseconds only.
fn at_rest(file: &impl PlaceFile) -> rustix::io::Result<Meta> {
    const TICK: Duration = Duration::from_millis(20);
    let meta = file.meta()?;
    let changed = Duration::from_nanos(u64::try_from(meta.mtime).unwrap_or(0));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    match now.checked_sub(changed) {
        Some(age) if age < TICK => {
            std::thread::sleep(TICK - age);
            file.meta()
        }
        _ => Ok(meta),
    }
}

fn in_the_way() -> String {
    "is a directory, in the way of a file; remove it and stage again".to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Collects results until the first error, which it keeps.
fn note_first<T, E>(all: &Mutex<Result<Vec<T>, E>>, one: Result<T, E>) {
    let mut all = lock(all);
    match (&mut *all, one) {
        (Ok(list), Ok(value)) => list.push(value),
        (Ok(_), Err(e)) => *all = Err(e),
        (Err(_), _) => {}
    }
}

/// Makes something under the name `part`; if that is taken, by an earlier try of this
/// process, once more after removing it.
fn retry_after_removing<T>(
    to: &impl Place,
    part: &[u8],
    make: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match make() {
        Err(Errno::EXIST) => {
            to.unlink(part)?;
            make()
        }
        other => other,
    }
}
