//! A staging from beginning to end: list the source, create the directories, copy the files that
//! differ, and set the directories' attributes last, since copying changes them.
//!
//! The levels of the tree are listed one after the other; the directories of a level in parallel.
//! Then the files are copied ([`crate::files`]), also by movers on other nodes ([`team`]). Of a
//! file with several hard links, the first name is copied, and the others become links to it.

use crate::job::{Entry, Job};
use crate::part;
use crate::report::Ledger;
use crate::team::{self, Team};
use crate::{Options, Progress, Report, StageError};
use forebay_backing::{Meta, SlowStore, for_each, join, map, split, trimmed};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Stages `src` of `from` to `dst` of `to`. One of the stores is the pool of the team's movers.
/// Blocks.
///
/// # Errors
/// [`StageError`] if the staging can't begin. Later failures are in the report.
pub fn stage(
    from: &dyn SlowStore,
    src: &[u8],
    to: &dyn SlowStore,
    dst: &[u8],
    options: &Options,
    progress: &Progress,
    team: &Team,
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
    // In an object store, a directory exists as soon as it has entries.
    if there.is_none() && !to.is_object_store() && !options.dry_run {
        make_parents(to, split(&dst).0)?;
    }

    let job = Job::new(from, src, to, &dst, options, progress);
    job.run(meta, there.is_none(), team)?;
    let mut report = job.ledger.finish();
    report.interrupted |= progress.stopped();
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

fn source_error(place: &dyn SlowStore, path: &[u8], e: Errno) -> StageError {
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

fn target_error(place: &dyn SlowStore, path: &[u8], e: Errno) -> StageError {
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

/// Creates the missing directories above the destination.
fn make_parents(to: &dyn SlowStore, directory: &[u8]) -> Result<(), StageError> {
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

impl<'a> Job<'a> {
    pub fn new(
        from: &'a dyn SlowStore,
        src: &[u8],
        to: &'a dyn SlowStore,
        dst: &[u8],
        options: &'a Options,
        progress: &'a Progress,
    ) -> Job<'a> {
        Job {
            from,
            src: src.to_vec(),
            to,
            dst: dst.to_vec(),
            options,
            threads: options.thread_count(),
            progress,
            ledger: Ledger::new(),
            claimed: Mutex::new(HashMap::new()),
            made: Mutex::default(),
        }
    }

    pub fn source(&self, below: &[u8]) -> Vec<u8> {
        join(&self.src, below)
    }

    pub fn target(&self, below: &[u8]) -> Vec<u8> {
        join(&self.dst, below)
    }

    pub fn fail_target(&self, below: &[u8], what: &str, e: Errno) {
        let text = format!("{what}: {}", self.to.explain(e));
        self.ledger.fail(self.to.show(&self.target(below)), text);
    }

    pub fn fail_source(&self, below: &[u8], what: &str, e: Errno) {
        let text = format!("{what}: {}", self.from.explain(e));
        self.ledger.fail(self.from.show(&self.source(below)), text);
    }

    fn run(&self, root: Meta, root_is_new: bool, team: &Team) -> Result<(), StageError> {
        let root = Entry {
            below: Vec::new(),
            meta: root,
        };
        let mut levels = Vec::new();
        let mut files = Vec::new();
        if root.meta.is_dir() {
            let mut level = if self.makes_later() || self.make_directory(&root) {
                vec![root]
            } else {
                Vec::new()
            };
            while !level.is_empty() && !self.progress.stopped() {
                let found = Mutex::new((Vec::new(), Vec::new()));
                let each = (self.threads / level.len()).max(1);
                for_each(self.threads, &level, |d| self.visit(d, each, &found));
                let (directories, more) = found.into_inner().unwrap_or_else(|e| e.into_inner());
                files.extend(more);
                levels.push(std::mem::replace(&mut level, directories));
            }
        } else if self.is_selected(split(&self.src).1, false) {
            let (directory, name) = split(&self.dst);
            if !self.options.dry_run {
                part::sweep(self.to, directory, Some(name));
            }
            files.push(root);
        }
        if self.makes_later() {
            self.prune(&mut levels, &files);
        }
        self.check_room(&files)
            .inspect_err(|_| self.undo_directories())?;
        self.progress.listed.store(true, Relaxed);
        if self.options.dry_run {
            self.foresee(&levels, files);
            return Ok(());
        }
        if self.makes_later() && !levels.is_empty() {
            self.make_directories(&mut levels, &mut files);
        }
        self.move_files(files, team);

        // Deepest first: setting a directory's attributes may change the times of the directory
        // above.
        for (depth, level) in levels.iter().enumerate().rev() {
            if depth == 0 && (self.options.only.is_some() || !self.may_set_root(root_is_new)) {
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
        Ok(())
    }

    /// Whether the destination's root gets the attributes of the source's root. An existing root
    /// doesn't get them if it is the root of a store, or sticky because other users share it.
    fn may_set_root(&self, is_new: bool) -> bool {
        is_new
            || self.dst != b"/"
                && self
                    .to
                    .stat(&self.dst, true)
                    .is_ok_and(|m| m.permissions() & 0o1000 == 0)
    }

    /// Creates the destination's directory for `d`. The directory is writable for this user until
    /// its attributes are set.
    pub fn make_directory(&self, d: &Entry) -> bool {
        let dst = self.target(&d.below);
        let made = self.to.mkdir(&dst, d.meta.permissions() | 0o700);
        if made.is_ok() {
            lock(&self.made).push(dst.clone());
        }
        let result = match made {
            Err(Errno::EXIST) => match self.to.stat(&dst, d.below.is_empty()) {
                Ok(m) if m.is_dir() => {
                    let writable = m.permissions() & 0o700 == 0o700;
                    // If the change fails, writing into the directory will fail and be reported.
                    let _ = writable || self.to.at(&dst).chmod(m.permissions() | 0o700).is_ok();
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

    /// Lists one directory of the source: creates its subdirectories, and collects its files in
    /// `found`. `threads`: number of threads that read its entries' metadata.
    fn visit(&self, d: &Entry, threads: usize, found: &Mutex<(Vec<Entry>, Vec<Entry>)>) {
        let src = self.source(&d.below);
        let mut names = Vec::new();
        match self.from.list_into(&src, &mut names) {
            Ok(()) => {}
            // Some entries are on a dead node. Entries on other nodes are staged all the same.
            Err(e) if !names.is_empty() => self.fail_source(&d.below, "was listed in part", e),
            Err(e) => self.fail_source(&d.below, "can't be listed", e),
        }
        if let Some(only) = &self.options.only {
            names.retain(|name| only.contains(name));
        }
        let metas = map(threads, &names, |name| match self.progress.stopped() {
            true => Err(Errno::CANCELED),
            // In a damaged pool, or one whose medium was changed, a name could be a path that leads
            // outside the destination.
            false if !is_name(name) => Err(Errno::ILSEQ),
            false => self.from.stat(&join(&src, name), false),
        });
        for (name, meta) in names.into_iter().zip(metas) {
            if self.progress.stopped() {
                return;
            }
            if !is_name(&name) {
                let shown = name.escape_ascii().to_string();
                self.ledger.fail(
                    format!("{}: '{shown}'", self.from.show(&src)),
                    "can't be the name of a file, so it wasn't staged".into(),
                );
                continue;
            }
            let below = join(&d.below, &name);
            let meta = match meta {
                Ok(meta) => meta,
                Err(e) => {
                    self.fail_source(&below, "can't be read", e);
                    continue;
                }
            };
            if !self.is_selected(&below, meta.is_dir()) {
                continue;
            }
            let entry = Entry { below, meta };
            match entry.meta.kind() {
                libc::S_IFDIR => {
                    if self.makes_later() || self.make_directory(&entry) {
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

    /// Whether the patterns select an object to be staged, or a directory to be listed. Counts the
    /// object as excluded if not.
    fn is_selected(&self, below: &[u8], is_dir: bool) -> bool {
        let selection = &self.options.selection;
        let is_included = if is_dir {
            selection.may_include_below(below)
        } else {
            selection.includes(below)
        };
        let is_selected = is_included && !selection.excludes(below);
        if !is_selected {
            self.ledger.with(|r| r.excluded += 1);
        }
        is_selected
    }

    fn skip(&self, entry: &Entry, what: &str) {
        self.ledger.with(|r| r.skipped += 1);
        self.ledger
            .warn(self.from.show(&self.source(&entry.below)), what.to_owned());
    }

    fn move_files(&self, mut files: Vec<Entry>, team: &Team) {
        // In a fixed order, so that another run chooses the same first name of a file.
        files.sort_unstable_by(|a, b| a.below.cmp(&b.below));
        let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
        let (mut single, mut first, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for entry in files {
            let m = &entry.meta;
            // An object store has one name per object, so each name becomes a separate file.
            let several = m.is_file() && m.nlink > 1 && !self.to.is_object_store();
            if several && let Some(&leader) = seen.get(&(m.dev, m.ino)) {
                links.push((entry, leader));
                continue;
            }
            let size = entry.bytes();
            self.progress.bytes_found.fetch_add(size, Relaxed);
            self.ledger.with(|r| r.bytes += size);
            if several {
                seen.insert((m.dev, m.ino), first.len());
                first.push(entry);
            } else {
                single.push(entry);
            }
        }
        self.ledger
            .with(|r| r.files += (single.len() + first.len() + links.len()) as u64);
        team::share(self, team, single);
        // Links are made by this process, since only it knows which names are one file at the
        // destination.
        self.move_list(&first);
        self.link_all(&links, &first);
    }
}

/// Whether a listed name is a valid component of a path.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_that_is_a_path_is_none() {
        for good in [&b"a"[..], b"..a", b"a b", b"\xff"] {
            assert!(is_name(good));
        }
        for bad in [&b""[..], b".", b"..", b"../x", b"/etc", b"a/b", b"a\0b"] {
            assert!(!is_name(bad));
        }
    }
}
