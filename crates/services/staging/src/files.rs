//! Copying the files of a staging. Each file is copied under a temporary name and verified, then
//! gets its attributes and its final name. Small files are copied in parallel, large ones one by
//! one, by all threads.

use crate::attributes;
use crate::content::{self, Care};
use crate::copy::{self, RANGE};
use crate::job::{Entry, Job};
use crate::part;
use crate::whole::WholeFile;
use forebay_backing::{
    Attributes, Error, Meta, Replaced, SlowStore, Source, for_each, join, split,
};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Minimum size of files that several threads copy together. Bytes.
const LARGE: u64 = 2 * RANGE;
/// Minimum size of files that are synced one by one, before they are read back. Bytes.
const SYNC_EACH: u64 = 1 << 20;
/// Number of small files that are synced together before they get their final names.
const SYNC_BATCH: usize = 4096;

/// The result for one file.
enum Outcome {
    Moved(u64),
    /// The file is complete under this temporary name, and gets its final name after the sync.
    Waiting(Vec<u8>, u64),
    Unchanged,
    Failed(String),
    Stopped,
}

impl Job<'_> {
    /// Copies the files in `list`.
    pub fn move_list(&self, list: &[Entry]) {
        let is_large = |e: &&Entry| e.meta.is_file() && e.meta.size >= LARGE;
        let (large, small): (Vec<&Entry>, Vec<&Entry>) = list.iter().partition(is_large);
        for batch in small.chunks(if self.options.sync {
            SYNC_BATCH
        } else {
            usize::MAX
        }) {
            self.move_batch(batch);
        }
        for e in large {
            let outcome = self.move_one(e, self.threads);
            self.note(e, outcome);
        }
    }

    /// Creates the hard links `links`: each entry becomes a link to the file in `first` at the
    /// entry's index. These files were copied before.
    pub fn link_all(&self, links: &[(Entry, usize)], first: &[Entry]) {
        for_each(self.threads, links, |(entry, leader)| {
            let outcome = match first.get(*leader) {
                _ if self.progress.stopped() => Outcome::Stopped,
                Some(leader) => self.link(entry, leader),
                None => Outcome::Failed("its first link was not staged".into()),
            };
            self.note(entry, outcome);
        });
    }

    fn move_batch(&self, batch: &[&Entry]) {
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

    /// Sets the attributes of an object that was copied. Records failures.
    pub fn attributes(&self, entry: &Entry) {
        if let Err(what) = self.set_attributes(entry, &self.target(&entry.below), &entry.meta) {
            self.ledger
                .fail(self.to.show(&self.target(&entry.below)), what);
        }
    }

    fn set_attributes(&self, entry: &Entry, dst: &[u8], meta: &Meta) -> Result<(), String> {
        if self.to.is_object_store() {
            return self.put_attributes(entry, dst, meta);
        }
        self.set_attributes_of(entry, &*self.to.at(dst), meta)
    }

    fn set_attributes_of(
        &self,
        entry: &Entry,
        object: &dyn Attributes,
        meta: &Meta,
    ) -> Result<(), String> {
        let source = self.source(&entry.below);
        let applied = attributes::apply(&*self.from.at(&source), meta, object)
            .map_err(|(step, e)| format!("{step} failed: {}", self.to.explain(e)))?;
        let warn = |what: &str| {
            let shown = self.to.show(&self.target(&entry.below));
            self.ledger.warn(shown, what.into());
        };
        if applied.without_xattrs {
            warn("its extended attributes can't be kept here, and were left out");
        }
        if applied.without_time {
            warn(
                "its time of modification can't be kept here, where times reach from 1677 to 2262: \
                 it has the closest of these",
            );
        }
        Ok(())
    }

    /// Sets the mode, owner and time of an object in an object store, unless they are equal
    /// already.
    fn put_attributes(&self, entry: &Entry, dst: &[u8], meta: &Meta) -> Result<(), String> {
        let kept = |m: &Meta| (m.mode, m.uid, m.gid, m.mtime);
        let there = self.to.stat(dst, false);
        if there.is_ok_and(|there| kept(&there) == kept(meta)) {
            return Ok(());
        }
        self.to
            .put_attributes(dst, meta, None)
            .map_err(|e| format!("setting its attributes failed: {}", self.to.explain(e)))?;
        self.warn_of_xattrs(entry);
        Ok(())
    }

    /// Warns if an object has extended attributes, which an object store can't hold.
    fn warn_of_xattrs(&self, entry: &Entry) {
        let source = self.source(&entry.below);
        if self
            .from
            .at(&source)
            .xattrs()
            .is_ok_and(|names| !names.is_empty())
        {
            let what = "its extended attributes can't be kept here, and were left out";
            self.ledger
                .warn(self.to.show(&self.target(&entry.below)), what.into());
        }
    }

    /// Renames the temporary file `part` to its final name `dst`.
    fn put_in_place(&self, part: &[u8], dst: &[u8]) -> Result<(), String> {
        let renamed = self.to.rename(part, dst, true);
        renamed.map(|_| ()).map_err(|e| {
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
        if self.to.is_object_store() {
            self.to
                .put_symlink(&dst, &target, &entry.meta)
                .map_err(|e| format!("can't be made: {}", self.to.explain(e)))?;
            return Ok(Outcome::Moved(0));
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
        forebay_trace::event_of!(STAGE_FILE_ENTER, &entry.below);
        let outcome = self.move_file(entry, threads);
        forebay_trace::event!(STAGE_FILE_EXIT);
        outcome
    }

    fn move_file(&self, entry: &Entry, threads: usize) -> Outcome {
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
        if self.to.is_object_store() {
            return match self.put(entry, threads) {
                Ok(bytes) => Outcome::Moved(bytes),
                Err(trouble) => self.trouble(entry, trouble),
            };
        }
        let (dst, part) = (
            self.target(&entry.below),
            self.part_of(&self.target(&entry.below)),
        );
        let moved = self.copy(entry, (&part, &dst), threads).and_then(|bytes| {
            let placed = if waits {
                Ok(())
            } else {
                self.put_in_place(&part, &dst)
            };
            placed.map(|()| bytes).map_err(Outcome::Failed)
        });
        match moved {
            Ok(bytes) if waits => Outcome::Waiting(part, bytes),
            Ok(bytes) => Outcome::Moved(bytes),
            Err(outcome) => outcome,
        }
    }

    /// Stores a file in one step, for object stores. Returns its size in bytes.
    fn put(&self, entry: &Entry, threads: usize) -> Result<u64, Error> {
        let from = self
            .from
            .open(&self.source(&entry.below), entry.below.is_empty())
            .map_err(Error::Read)?;
        let source = WholeFile::new(&*from, threads, self.progress)?;
        let target = self.target(&entry.below);
        self.to.put(&target, &source, &Vec::new(), Replaced::Seen)?;
        self.warn_of_xattrs(entry);
        Ok(source.meta().size)
    }

    /// Whether the destination has this file or symbolic link, with the same content as far as the
    /// options require a check.
    ///
    /// # Errors
    /// The reason why the entry can't be staged, as a message.
    pub fn has(&self, entry: &Entry) -> Result<bool, String> {
        if entry.meta.is_symlink() {
            let dst = self.target(&entry.below);
            let ours = self.from.readlink(&self.source(&entry.below));
            let is_dir = self.to.stat(&dst, false).is_ok_and(|t| t.is_dir());
            return if is_dir {
                Err(in_the_way())
            } else {
                Ok(ours.is_ok() && self.to.readlink(&dst) == ours)
            };
        }
        self.is_there(entry).map_err(|outcome| match outcome {
            Outcome::Failed(what) => what,
            _ => "can't be compared".into(),
        })
    }

    /// Whether the destination has this regular file already, judged as the options require.
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
            // Two different files of the source must not become one file with two links.
            let mut claimed = lock(&self.claimed);
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
            // Copying the file will report the error.
            return Ok(false);
        };
        copy::same(&*a, &*b, m.size, self.progress).map_err(|t| self.trouble(entry, t))
    }

    fn trouble(&self, entry: &Entry, trouble: Error) -> Outcome {
        let src = || self.from.show(&self.source(&entry.below));
        Outcome::Failed(match trouble {
            Error::Stopped => return Outcome::Stopped,
            Error::Unusable(why) => why,
            Error::Read(e) => format!("can't read {}: {}", src(), self.from.explain(e)),
            Error::Write(e) => format!("can't be written: {}", self.to.explain(e)),
            Error::ReadBack(e) => {
                format!("can't be read back for verification: {}", self.to.explain(e))
            }
            Error::Changed => {
                format!("{} changed while it was copied; stage again when it rests", src())
            }
            Error::Differs => {
                "what arrived is not what left (size or checksum); stage again, and check the storage"
                    .into()
            }
            Error::Damaged => {
                "what arrived is not what left (size or checksum), and it is still there: this \
                 server can't remove it without risk for what others write; remove it and stage \
                 again, and check the storage"
                    .into()
            }
        })
    }

    /// Copies an entry's content to the temporary file `part`, verifies it, and sets the
    /// attributes. `dst`: the file's final name. After a failure, the temporary file is removed.
    fn copy(
        &self,
        entry: &Entry,
        (part, dst): (&[u8], &[u8]),
        threads: usize,
    ) -> Result<u64, Outcome> {
        let trouble = |t| self.trouble(entry, t);
        let from = self
            .from
            .open(&self.source(&entry.below), entry.below.is_empty())
            .map_err(|e| trouble(Error::Read(e)))?;
        let to = retry_after_removing(self.to, part, || self.to.create(part, dst))
            .map_err(|e| trouble(Error::Write(e)))?;
        let care = Care {
            sync: self.options.sync && entry.meta.size >= SYNC_EACH,
            verify: true,
        };
        let set = |object: &dyn Attributes, meta: &Meta| {
            let set = self.set_attributes_of(entry, object, meta);
            set.map_err(Outcome::Failed)
        };
        let copied = content::copy(&*from, &*to, care, threads, self.progress)
            .map_err(trouble)
            .and_then(|(bytes, meta)| match to.attributes() {
                // Setting attributes by path could reach an object with which another process has
                // replaced the file.
                Some(object) => set(object, &meta).map(|()| (bytes, None)),
                None => Ok((bytes, Some(meta))),
            });
        let closed = to.close().map_err(|e| trouble(Error::Write(e)));
        copied
            .and_then(|copied| closed.map(|()| copied))
            .and_then(|(bytes, unset)| match unset {
                Some(meta) => set(&*self.to.at(part), &meta).map(|()| bytes),
                None => Ok(bytes),
            })
            .inspect_err(|_| _ = self.to.unlink(part))
    }
}

fn in_the_way() -> String {
    "is a directory, in the way of a file; remove it and stage again".to_owned()
}

/// Calls `make`, which creates something under the name `part`. If the name exists, left by an
/// earlier attempt of this process, removes it and calls `make` once more.
fn retry_after_removing<T>(
    to: &dyn SlowStore,
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
