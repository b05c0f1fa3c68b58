//! Writing changes back: a pass walks the directories whose entries are in the pool, and copies what
//! has changed and rests.
//!
//! A file's bytes are copied by the copier of `forebay-staging`: beside the target, verified, synced,
//! renamed. The mark that makes it clean has the change time from before the copy; so a write that
//! comes meanwhile leaves it dirty. The files of a directory are copied together, since they share
//! the sync.

use crate::Origin;
use crate::side::{below, print, rights};
use forebay_client::origin::OriginMode;
use forebay_posix::ObjectId;
use forebay_staging::{
    Meta, Names, Options, Place, PlainPlace, PoolPlace, Progress, Team, apply_attributes, explain,
    stage,
};
use forebay_store::{DirPosition, Entry, Inode, OriginMark, OriginState, now};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time stamps advance by ticks of some milliseconds: within this time, a later write may have the
/// same.
const TICK: Duration = Duration::from_millis(20);
/// A pass takes at most this part of the time.
const SHARE: u32 = 10;
/// How often a sync repeats a pass because files have changed while they were copied.
const REPEATS: usize = 20;

/// The result of a pass.
#[derive(Default)]
pub struct Pass {
    /// Changes that are too young, or that were made while they were copied.
    pub young: u64,
    /// What couldn't be written back: its path, and why.
    pub failed: Vec<(Vec<u8>, String)>,
}

/// A file to be written back.
struct Dirty {
    id: ObjectId,
    name: Vec<u8>,
    inode: Inode,
}

impl Origin {
    /// Writes changes back until the pool is removed.
    pub fn drain_for_ever(&self) {
        let lag = Duration::from_millis(self.config.lag_ms);
        while self.is_there() {
            let began = Instant::now();
            let pass = self.pass(b"", lag);
            for (at, why) in &pass.failed {
                self.ledger.problem(at, self.side.show(at), why.clone());
            }
            let rest = (began.elapsed() * SHARE).max(lag / 2);
            std::thread::sleep(rest.clamp(Duration::from_millis(50), Duration::from_secs(60)));
        }
    }

    /// Writes all changes below a path back.
    ///
    /// # Errors
    /// What couldn't be written back.
    pub fn sync(&self, relative: &[u8]) -> std::result::Result<(), Vec<(Vec<u8>, String)>> {
        let mut pass = Pass::default();
        for _ in 0..REPEATS {
            pass = self.pass(relative, Duration::ZERO);
            if pass.young == 0 {
                break;
            }
            std::thread::sleep(TICK);
        }
        for (at, why) in &pass.failed {
            self.ledger.problem(at, self.side.show(at), why.clone());
        }
        if pass.failed.is_empty() && pass.young > 0 {
            let why = format!("{} object(s) keep changing", pass.young);
            pass.failed.push((relative.to_vec(), why));
        }
        match pass.failed.is_empty() {
            true => Ok(()),
            false => Err(pass.failed),
        }
    }

    /// Calls `each` for all objects below a path of the origin that are in the pool: with the
    /// directory, the path at the origin, the entry, the inode.
    pub fn each_object(
        &self,
        relative: &[u8],
        each: &mut dyn FnMut(ObjectId, &[u8], Entry, &Inode) -> Result<()>,
    ) -> Result<()> {
        let top = self.fs.stat(&self.pool_path(relative), false)?;
        let mut todo = vec![(ObjectId(top.ino), relative.to_vec())];
        if top.mode & libc::S_IFMT != libc::S_IFDIR {
            let id = ObjectId(top.ino);
            let kind = top.mode & libc::S_IFMT;
            return each(ObjectId(0), relative, Entry { id, kind }, &self.inode(id)?);
        }
        while let Some((dir, at)) = todo.pop() {
            for (name, entry) in self.entries(dir)? {
                let path = below(&at, &name);
                let inode = match self.inode(entry.id) {
                    Err(Errno::NOENT) => continue,
                    inode => inode?,
                };
                if inode.is_dir() && !inode.origin.is_released() {
                    todo.push((entry.id, path.clone()));
                }
                each(dir, &path, entry, &inode)?;
            }
        }
        Ok(())
    }

    /// The entries of a directory that are in the pool.
    pub fn entries(&self, dir: ObjectId) -> Result<Vec<(Vec<u8>, Entry)>> {
        let mut entries = Vec::new();
        self.fs
            .cluster()
            .list(dir, &mut DirPosition::default(), |name, entry| {
                entries.push((name.to_vec(), entry));
                true
            })?;
        Ok(entries)
    }

    /// One pass over all below a path. Changes younger than `lag` wait.
    pub fn pass(&self, relative: &[u8], lag: Duration) -> Pass {
        let mut pass = Pass::default();
        // Of files with several names: the object, and its names.
        let mut linked: HashMap<u64, Vec<Vec<u8>>> = HashMap::new();
        if let Err(e) = self.pass_below(relative, lag, &mut pass, &mut linked) {
            pass.failed.push((relative.to_vec(), explain(e)));
        }
        for (id, names) in linked {
            if let Err(e) = self.link_names(ObjectId(id), &names) {
                pass.failed.push((names[0].clone(), explain(e)));
            }
        }
        pass
    }

    fn pass_below(
        &self,
        relative: &[u8],
        lag: Duration,
        pass: &mut Pass,
        linked: &mut HashMap<u64, Vec<Vec<u8>>>,
    ) -> Result<()> {
        let top = self.fs.stat(&self.pool_path(relative), false)?;
        if top.mode & libc::S_IFMT != libc::S_IFDIR {
            let cut = relative.iter().rposition(|&b| b == b'/');
            let (dir, name) = relative.split_at(cut.map_or(0, |cut| cut + 1));
            let dir = dir.strip_suffix(b"/").unwrap_or(dir);
            let only = |other: &[u8]| other == name;
            let id = ObjectId(self.fs.stat(&self.pool_path(dir), true)?.ino);
            self.pass_dir(id, dir, lag, &only, pass, linked)?;
            return Ok(());
        }
        let mut todo = vec![(ObjectId(top.ino), relative.to_vec())];
        while let Some((dir, at)) = todo.pop() {
            match self.pass_dir(dir, &at, lag, &|_| true, pass, linked) {
                Ok(below) => todo.extend(below),
                // Removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(e) => pass.failed.push((at, explain(e))),
            }
        }
        Ok(())
    }

    /// The entries of one directory. The directories below it.
    fn pass_dir(
        &self,
        dir: ObjectId,
        at: &[u8],
        lag: Duration,
        is_wanted: &dyn Fn(&[u8]) -> bool,
        pass: &mut Pass,
        linked: &mut HashMap<u64, Vec<Vec<u8>>>,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let (mut below_it, mut dirty) = (Vec::new(), Vec::new());
        for (name, entry) in self.entries(dir)? {
            let path = below(at, &name);
            if !is_wanted(&name)
                || self.config.mode_of(&self.pool_path(&path)) != OriginMode::WriteBack
            {
                if entry.kind == libc::S_IFDIR && is_wanted(&name) {
                    below_it.push((entry.id, path));
                }
                continue;
            }
            let inode = match self.inode(entry.id) {
                Err(Errno::NOENT) => continue,
                inode => inode?,
            };
            let mark = inode.origin;
            match inode.kind() {
                libc::S_IFDIR => {
                    if let Err(e) = self.pass_directory(entry.id, &path, &inode) {
                        pass.failed.push((path, explain(e)));
                    } else if !mark.is_released() {
                        below_it.push((entry.id, path));
                    }
                }
                libc::S_IFREG if mark.synced == inode.ctime && mark.state != OriginState::None => {
                    if inode.nlink > 1 {
                        linked.entry(entry.id.0).or_default().push(path);
                    }
                }
                libc::S_IFREG if is_young(&inode, lag) => pass.young += 1,
                libc::S_IFREG if mark.is_released() => {
                    if let Err(e) = self.write_attributes(entry.id, &path) {
                        pass.failed.push((path, explain(e)));
                    }
                }
                libc::S_IFREG => {
                    if inode.nlink > 1 {
                        linked.entry(entry.id.0).or_default().push(path);
                    }
                    let id = entry.id;
                    dirty.push(Dirty { id, name, inode });
                }
                libc::S_IFLNK if mark.state == OriginState::None => {
                    if let Err(e) = self.write_symlink(entry.id, &path) {
                        pass.failed.push((path, explain(e)));
                    }
                }
                _ => {}
            }
        }
        if !dirty.is_empty() {
            self.note_change(dir);
            self.write_files(at, dirty, pass)?;
            self.note_change(dir);
        }
        Ok(below_it)
    }

    /// Makes a directory at the origin, or gives it its new owner and mode.
    fn pass_directory(&self, id: ObjectId, at: &[u8], inode: &Inode) -> Result<()> {
        let now = rights(inode.mode, inode.uid, inode.gid);
        let mark = inode.origin;
        if mark.state != OriginState::None && mark.synced == now {
            return Ok(());
        }
        let _working = self.busy.begin(id);
        if mark.state == OriginState::None {
            self.make_dirs(at)?;
        }
        let pool = PoolPlace::new(&self.fs, &self.config.at);
        let source = self.pool_path(at);
        let meta = pool.stat(&source, false)?;
        // Without its times: they change with what is made in it.
        let there = self.side.meta(at)?;
        let meta = Meta {
            mtime: there.mtime,
            ..meta
        };
        apply_attributes(&pool, &source, &meta, &PlainPlace, &self.side.path(at))
            .map_err(|(_, e)| e)?;
        let state = match mark.state {
            OriginState::None => OriginState::Archived,
            state => state,
        };
        self.set_mark(
            id,
            OriginMark {
                state,
                print: 0,
                synced: now,
            },
        )
    }

    /// Makes a directory of the origin and those above it.
    pub fn make_dirs(&self, at: &[u8]) -> Result<()> {
        match PlainPlace.mkdir(&self.side.path(at), 0o777) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if self.side.meta(at)?.is_dir() => Ok(()),
            Err(Errno::NOENT) if at.contains(&b'/') => {
                let cut = at.iter().rposition(|&b| b == b'/').unwrap_or(0);
                self.make_dirs(&at[..cut])?;
                match PlainPlace.mkdir(&self.side.path(at), 0o777) {
                    Err(Errno::EXIST) => Ok(()),
                    made => made,
                }
            }
            Err(e) => Err(e),
        }
    }

    fn write_symlink(&self, id: ObjectId, at: &[u8]) -> Result<()> {
        let _working = self.busy.begin(id);
        let path = self.side.path(at);
        let target = self.fs.readlink(&self.pool_path(at))?;
        if self.side.look(at)?.is_some_and(|there| !there.is_dir()) {
            if PlainPlace.readlink(&path) != Ok(target.clone()) {
                return Err(Errno::EXIST);
            }
        } else {
            PlainPlace.symlink(&target, &path)?;
        }
        self.is_clean(id, at, self.inode(id)?.ctime)
    }

    /// Gives a file of the origin the attributes that its object in the pool has got.
    fn write_attributes(&self, id: ObjectId, at: &[u8]) -> Result<()> {
        let _working = self.busy.begin(id);
        let inode = self.inode(id)?;
        let there = self.side.meta(at)?;
        if !inode.origin.is_released() || print(&there) != inode.origin.print {
            return Ok(());
        }
        let pool = PoolPlace::new(&self.fs, &self.config.at);
        let source = self.pool_path(at);
        let meta = pool.stat(&source, false)?;
        apply_attributes(&pool, &source, &meta, &PlainPlace, &self.side.path(at))
            .map_err(|(_, e)| e)?;
        self.is_clean(id, at, inode.ctime)
    }

    /// Notes that both sides are the same; in the pool, since this change.
    fn is_clean(&self, id: ObjectId, at: &[u8], synced: i64) -> Result<()> {
        let meta = self.side.meta(at)?;
        let state = match self.inode(id)?.origin.state {
            OriginState::Released => OriginState::Released,
            _ => OriginState::Archived,
        };
        self.ledger.is_solved(at);
        self.moved.fetch_add(1, Relaxed);
        self.set_mark(
            id,
            OriginMark {
                state,
                print: print(&meta),
                synced,
            },
        )
    }

    /// Writes the bytes and attributes of files of one directory back.
    fn write_files(&self, at: &[u8], dirty: Vec<Dirty>, pass: &mut Pass) -> Result<()> {
        let (mut plain, mut same) = (Vec::new(), Vec::new());
        let mut working = Vec::new();
        let mut dirty = dirty;
        // All threads that work on several objects take them in this order.
        dirty.sort_by_key(|d| d.id.0);
        dirty.dedup_by_key(|d| d.id.0);
        for d in dirty {
            working.push(self.busy.begin(d.id));
            let path = below(at, &d.name);
            let there = match self.side.look(&path) {
                Ok(there) => there,
                Err(e) => {
                    pass.failed.push((path, explain(e)));
                    continue;
                }
            };
            match there {
                Some(there) if print(&there) != d.inode.origin.print => {
                    self.write_conflict(at, &d, pass);
                }
                // The copier would take the same size and time for the same content.
                Some(there) if there.size == d.inode.size && there.mtime == d.inode.mtime => {
                    same.push(d);
                }
                _ => plain.push(d),
            }
        }
        self.write_list(at, plain, false, pass);
        self.write_list(at, same, true, pass);
        drop(working);
        Ok(())
    }

    fn write_list(&self, at: &[u8], list: Vec<Dirty>, compares: bool, pass: &mut Pass) {
        if list.is_empty() {
            return;
        }
        let names: Names = list.iter().map(|d| d.name.clone()).collect();
        let options = Options {
            checksum: compares,
            only: Some(names),
            ..Options::stage_out()
        };
        let progress = Progress::default();
        let pool = PoolPlace::new(&self.fs, &self.config.at);
        let (from, to) = (self.pool_path(at), self.side.path(at));
        let done = stage(&pool, &from, &PlainPlace, &to, &options, &progress, &Team::default());
        let report = match done {
            Ok(report) => report,
            Err(e) => {
                let why = self.side.in_words(&e.to_string());
                let failed = list.iter().map(|d| (below(at, &d.name), why.clone()));
                pass.failed.extend(failed);
                return;
            }
        };
        for d in list {
            let path = below(at, &d.name);
            let target = String::from_utf8_lossy(&self.side.path(&path)).into_owned();
            // The copier's paths have one form only.
            let target = target.replace("/./", "/");
            let failure = report
                .failures
                .iter()
                .find(|f| f.path.replace("/./", "/") == target);
            match failure {
                Some(failure) if failure.what.contains("changed while") => pass.young += 1,
                Some(failure) => {
                    let why = self.side.in_words(&failure.what);
                    pass.failed.push((path, why));
                }
                None => match self.is_clean(d.id, &path, d.inode.ctime) {
                    Ok(()) => self.ledger.written.add(1, d.inode.size),
                    // Removed meanwhile.
                    Err(Errno::NOENT) => {}
                    Err(e) => pass.failed.push((path, explain(e))),
                },
            }
        }
    }

    /// Both sides have changed a file: the pool's version goes beside the origin's.
    fn write_conflict(&self, at: &[u8], d: &Dirty, pass: &mut Pass) {
        let path = below(at, &d.name);
        let suffix = format!(".forebay-conflict-{}", &self.pool.config().uuid[..8]);
        let beside = [&path[..], suffix.as_bytes()].concat();
        let options = Options {
            checksum: true,
            ..Options::stage_out()
        };
        let pool = PoolPlace::new(&self.fs, &self.config.at);
        let (from, to) = (self.pool_path(&path), self.side.path(&beside));
        let progress = Progress::default();
        let done = stage(&pool, &from, &PlainPlace, &to, &options, &progress, &Team::default());
        let why = match done {
            Ok(report) if report.complete() => {
                let what = format!(
                    "was changed in the pool and at the origin; the pool's version is {}",
                    self.side.show(&beside)
                );
                self.ledger.conflict(&path, self.side.show(&path), what);
                // Clean from here on, but of another version than the origin's.
                let mark = OriginMark {
                    synced: d.inode.ctime,
                    state: OriginState::Archived,
                    ..d.inode.origin
                };
                match self.set_mark(d.id, mark) {
                    Ok(()) => return,
                    Err(e) => explain(e),
                }
            }
            Ok(report) => report.failures.first().map_or_else(String::new, |f| f.what.clone()),
            Err(e) => e.to_string(),
        };
        pass.failed.push((path, self.side.in_words(&why)));
    }

    /// Gives a clean file all its names at the origin.
    fn link_names(&self, id: ObjectId, names: &[Vec<u8>]) -> Result<()> {
        let _working = self.busy.begin(id);
        let mut there = Vec::new();
        for name in names {
            there.push(self.side.look(name)?);
        }
        let inode = self.inode(id)?;
        let first = there
            .iter()
            .position(|meta| meta.is_some_and(|meta| print(&meta) == inode.origin.print));
        let Some(first) = first else {
            // All names that the origin had are gone: the next pass writes it under one of these.
            if there.iter().all(Option::is_none) && inode.origin.state == OriginState::Archived {
                return self.set_mark(id, OriginMark::default());
            }
            return Ok(());
        };
        let goal = there[first].map(|meta| (meta.dev, meta.ino));
        let mut has_linked = false;
        for (name, meta) in names.iter().zip(&there) {
            match meta {
                None => {
                    PlainPlace.link(&self.side.path(&names[first]), &self.side.path(name))?;
                    has_linked = true;
                }
                Some(meta) if Some((meta.dev, meta.ino)) != goal && inode.origin.synced != 0 => {
                    // Another file by now; the look at the directory takes care of it.
                }
                Some(_) => {}
            }
        }
        match has_linked {
            true => self.is_clean(id, &names[first], inode.origin.synced),
            false => Ok(()),
        }
    }
}

/// Whether an object has changed so recently that it waits.
fn is_young(inode: &Inode, lag: Duration) -> bool {
    let age = now().saturating_sub(inode.ctime);
    age < lag.max(TICK).as_nanos() as i64
}
