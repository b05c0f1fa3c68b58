//! Writing changes back: a pass walks the directories whose entries are in the pool, and writes the
//! files that have changed and aren't being changed any more.
//!
//! Directories, symbolic links and attributes are written when the walk meets them, the files of a
//! directory in batches (`write_back.rs`). If a node of the pool can't be reached, only its objects
//! fail: the pass continues with the other objects, and reports those that failed.

use crate::attributes::ObjectAttributes;
use crate::directories::Directories;
use crate::error::{Done, Error};
use crate::links::Links;
use crate::marks::{Marks, is_clean};
use crate::pass::{Pass, TICK, is_early, is_made, is_young};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::side::{below, print, split};
use crate::tree::Tree;
use crate::write_back::{BATCH, Dirty, OBJECTS, WriteBack, batches};
use forebay_backing::PoolStore;
use forebay_client::controls::Persistence;
use forebay_client::origin::OriginMode;
use forebay_cluster::LOST_AND_FOUND;
use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use forebay_staging::{Failure, Options, Report, conclude_salvage};
use forebay_store::controls::declared;
use forebay_store::{Entry, Inode, OriginMark, OriginState};
use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Divisor: walks take at most one part in `SHARE` of the time. The time for writing isn't limited.
const SHARE: u32 = 10;
/// Maximum pause between two passes, unless [`SHARE`] requires a longer one.
const MAX_REST: Duration = Duration::from_secs(1);
/// Maximum time for which a sync repeats passes because files change while they are copied.
const REPEATS: Duration = Duration::from_secs(10);

/// Error messages for changes that can't be written back while a node of the pool is dead: for a
/// directory's entries, and for one object.
const NAMES_MISSING: &str =
    "a node of the pool doesn't answer (forebay status): names that it keeps can't be listed";
const NODE_UNREACHABLE: &str = "its node of the pool doesn't answer (forebay status)";

/// The findings of a pass in one directory.
struct Visit<'a> {
    dir: ObjectId,
    at: &'a [u8],
    lag: Duration,
    /// Subdirectories that the walk has to visit.
    below_it: Vec<(ObjectId, Vec<u8>)>,
    /// Files to be written back.
    dirty: Vec<Dirty>,
    has_written: bool,
}

/// Writes back changes, in passes over the tree.
pub struct Drain {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub attributes: Arc<ObjectAttributes>,
    pub directories: Arc<Directories>,
    pub write_back: Arc<WriteBack>,
    pub links: Arc<Links>,
    pub settings: Arc<Settings>,
    /// Whether a pass has met a file that is to be written early ([`is_early`]).
    pub has_early: AtomicBool,
    /// Locked by the pass that collects files of living nodes while other nodes are dead.
    pub salvaging: Mutex<()>,
}

impl Drain {
    /// Writes back changes until the pool is removed.
    pub fn drain_for_ever(&self) {
        let lag = Duration::from_millis(self.shared.config.lag_ms);
        while self.shared.is_there() {
            if self.settings.is_held() {
                std::thread::sleep(lag.clamp(Duration::from_millis(50), Duration::from_secs(1)));
                continue;
            }
            let began = Instant::now();
            let pass = self.pass(b"", lag);
            for (at, why) in &pass.failed {
                self.shared
                    .ledger
                    .problem(at, self.shared.side.show(at), why.clone());
            }
            let walk = began.elapsed().saturating_sub(pass.wrote);
            // The pause may be shorter than the lag, since some files are written back without a
            // lag.
            let rest = (walk * SHARE).max((lag / 2).min(MAX_REST));
            std::thread::sleep(rest.clamp(Duration::from_millis(50), Duration::from_secs(60)));
        }
    }

    /// Writes back all changes below a path, without a lag. Blocks.
    ///
    /// # Errors
    /// Paths that couldn't be written back, each with the reason.
    pub fn sync(&self, relative: &[u8]) -> std::result::Result<(), Vec<(Vec<u8>, String)>> {
        let mut pass = self.pass(relative, Duration::ZERO);
        let began = Instant::now();
        while pass.young > 0 && began.elapsed() < REPEATS {
            std::thread::sleep(TICK);
            pass = self.pass(relative, Duration::ZERO);
        }
        for (at, why) in &pass.failed {
            self.shared
                .ledger
                .problem(at, self.shared.side.show(at), why.clone());
        }
        if pass.failed.is_empty() && pass.young > 0 {
            let why = format!("{} object(s) keep changing", pass.young);
            pass.failed.push((relative.to_vec(), why));
        }
        if pass.failed.is_empty() {
            Ok(())
        } else {
            Err(pass.failed)
        }
    }

    /// Makes one pass over everything below a path. Changes younger than `lag` are left to a later
    /// pass. While nodes of the pool are dead, files on living nodes are written back if their
    /// paths are known, and are copied to `lost+found` at the origin otherwise.
    pub fn pass(&self, relative: &[u8], lag: Duration) -> Pass {
        let pass = self.pass_over(relative, lag);
        if !pass.misses_node {
            return pass;
        }
        // `end_salvage` ends the salvage of the whole service. So only one pass at a time may have
        // a salvage.
        let _salvaging = lock(&self.salvaging);
        let top = self.shared.pool_path(relative);
        let pool = PoolStore::new(&self.shared.fs, &self.shared.config.at);
        let salvage = match pool.salvage(&top) {
            // All nodes of the pool answer again.
            Ok(None) => return self.pass_over(relative, lag),
            Ok(Some(salvage)) => salvage,
            Err(_) => return pass,
        };
        let mut pass = self.pass_over(relative, lag);
        let mut report = Report::default();
        if !salvage.shown().is_empty() {
            let lost = below(relative, LOST_AND_FOUND);
            // Salvaged files aren't marked as written back, since their names at the origin aren't
            // those in the pool.
            match self
                .write_back
                .stage(&self.shared.pool_path(&lost), &lost, &Options::stage_out())
            {
                Ok(staged) => report.absorb(staged),
                Err(e) => pass.failed.push((lost, e.to_string())),
            }
        }
        let failed = pass.failed.iter().map(|(at, why)| Failure {
            path: self.shared.side.show(at),
            what: why.clone(),
        });
        report.failures.extend(failed);
        let shown = self.shared.side.show(relative);
        conclude_salvage(&salvage, shown, &*self.shared.side, relative, &mut report);
        self.shared.fs.end_salvage();
        // The first failure is the summary that `conclude_salvage` has made.
        if !report.failures.is_empty() {
            let sentence = report.failures.swap_remove(0);
            pass.failed.insert(0, (relative.to_vec(), sentence.what));
        }
        pass
    }

    fn pass_over(&self, relative: &[u8], lag: Duration) -> Pass {
        let mut pass = Pass::default();
        if self.has_early.load(Relaxed) && !lag.is_zero() {
            // Writes the files first that are declared to be written early, so that they don't wait
            // for other files.
            pass.only_early = true;
            if let Err(e) = self.pass_below(relative, lag, &mut pass) {
                pass.misses_node |= e == Errno::HOSTDOWN;
                pass.failed
                    .push((relative.to_vec(), self.shared.side.explain(e)));
            }
            pass.only_early = false;
            pass.young = 0;
        }
        if let Err(e) = self.pass_below(relative, lag, &mut pass) {
            pass.misses_node |= e == Errno::HOSTDOWN;
            pass.failed
                .push((relative.to_vec(), self.shared.side.explain(e)));
        }
        let began = Instant::now();
        let linked = std::mem::take(&mut pass.linked);
        if let Err(e) = self.links.write_linked(&linked, lag, &mut pass) {
            pass.misses_node |= e == Errno::HOSTDOWN;
            pass.failed
                .push((relative.to_vec(), self.shared.side.explain(e)));
        }
        // In reverse order of paths: a directory's attributes are set after those of directories
        // below it.
        for (at, id) in std::mem::take(&mut pass.late).into_iter().rev() {
            match self.write_directory(id, &at) {
                Ok(true) => {}
                // The directory was renamed or removed meanwhile.
                Ok(false) | Err(Errno::NOENT) => pass.young += 1,
                Err(e) => pass.failed.push((at, self.shared.side.explain(e))),
            }
        }
        pass.wrote += began.elapsed();
        pass
    }

    fn pass_below(&self, relative: &[u8], lag: Duration, pass: &mut Pass) -> Result<()> {
        let top = self
            .shared
            .fs
            .stat(&self.shared.pool_path(relative), false)?;
        let is_dir = top.mode & libc::S_IFMT == libc::S_IFDIR;
        let (above, name) = if is_dir {
            (relative, &b""[..])
        } else {
            split(relative)
        };
        let dir = ObjectId(
            self.shared
                .fs
                .stat(&self.shared.pool_path(above), true)?
                .ino,
        );
        let held = self.tree.paths();
        if self.directories.settle(dir)? != above {
            // The directory was renamed meanwhile.
            pass.young += 1;
            return Ok(());
        }
        drop(held);
        if !is_dir {
            self.pass_dir(dir, above, lag, &|other| other == name, pass)?;
            return Ok(());
        }
        let inode = self.shared.inode(dir)?;
        let mode = self
            .shared
            .config
            .mode_of_dir(&self.shared.pool_path(relative));
        if mode.is_written()
            && !self.marks.has_lost(dir)
            && inode.origin.synced != self.marks.print_of_dir(dir, &inode)?
        {
            pass.late.insert(relative.to_vec(), dir);
        }
        let mut todo = vec![(dir, relative.to_vec())];
        while let Some((dir, at)) = todo.pop() {
            match self.pass_dir(dir, &at, lag, &|_| true, pass) {
                Ok(below) => todo.extend(below),
                // The directory was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(Errno::HOSTDOWN) => pass.misses(at, NODE_UNREACHABLE),
                Err(e) => pass.failed.push((at, self.shared.side.explain(e))),
            }
            if pass.is_cut_off {
                // The origin's server can't be reached, so the remaining requests would fail, too.
                break;
            }
        }
        Ok(())
    }

    /// Makes the pass for the entries of one directory. Returns its subdirectories that the walk
    /// has to visit.
    fn pass_dir(
        &self,
        dir: ObjectId,
        at: &[u8],
        lag: Duration,
        is_wanted: &dyn Fn(&[u8]) -> bool,
        pass: &mut Pass,
    ) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let Some(_held) = self.tree.held_at(dir, at)? else {
            // The directory was renamed meanwhile.
            pass.young += 1;
            return Ok(Vec::new());
        };
        let mut visit = Visit {
            dir,
            at,
            lag,
            below_it: Vec::new(),
            dirty: Vec::new(),
            has_written: false,
        };
        let mut entries = Vec::new();
        match self.tree.entries_into(dir, &mut entries) {
            Err(Errno::HOSTDOWN) => pass.misses(at.to_vec(), NAMES_MISSING),
            listed => listed?,
        }
        let salvage = self.shared.fs.salvaged();
        let is_invented = |e: &Entry| salvage.as_ref().is_some_and(|s| s.is_invented(e.id));
        entries.retain(|(name, entry)| is_wanted(name) && !is_invented(entry));
        for (name, entry) in entries {
            match self.pass_entry(&mut visit, name.clone(), entry, pass) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::HOSTDOWN) => pass.misses(below(at, &name), NODE_UNREACHABLE),
                Err(e) => pass
                    .failed
                    .push((below(at, &name), self.shared.side.explain(e))),
            }
        }
        if !visit.dirty.is_empty() {
            visit.has_written = true;
            let most = if self.shared.side.is_object_store() {
                OBJECTS
            } else {
                BATCH
            };
            let began = Instant::now();
            let written = batches(std::mem::take(&mut visit.dirty), most)
                .into_iter()
                .try_for_each(|batch| self.write_back.write_files(dir, at, batch, pass));
            pass.wrote += began.elapsed();
            written?;
        }
        if visit.has_written {
            pass.late.insert(at.to_vec(), dir);
        }
        Ok(visit.below_it)
    }

    /// Makes the pass for one entry. Directories and symbolic links are written now; a dirty file
    /// is added to `visit.dirty`.
    ///
    /// # Errors
    /// EHOSTDOWN: the object's node can't be reached. ENOENT: the object was removed meanwhile.
    /// Errors of the origin.
    fn pass_entry(
        &self,
        visit: &mut Visit<'_>,
        name: Vec<u8>,
        entry: Entry,
        pass: &mut Pass,
    ) -> Result<()> {
        let path = below(visit.at, &name);
        let mode = self.shared.mode_of(&path, entry.kind);
        if !mode.is_written() {
            if entry.kind == libc::S_IFDIR && mode != OriginMode::Off {
                visit.below_it.push((entry.id, path));
            }
            return Ok(());
        }
        let inode = self.shared.inode(entry.id)?;
        let mark = inode.origin;
        let mut lag = visit.lag;
        if is_early(&inode) {
            self.has_early.store(true, Relaxed);
            // A file that is open may continue to change, so it is written back only after the lag.
            if !is_clean(&inode) && !self.shared.cluster().opens().is_open(entry.id)? {
                lag = Duration::ZERO;
            }
        } else if pass.only_early && !inode.is_dir() {
            return Ok(());
        }
        match inode.kind() {
            libc::S_IFDIR if self.marks.has_lost(entry.id) => {
                self.directories.make_lost_dir(&path)?;
                visit.below_it.push((entry.id, path));
            }
            libc::S_IFDIR => {
                self.pass_subdirectory(visit, (entry.id, &inode), (&name, path), pass)?
            }
            libc::S_IFREG | libc::S_IFLNK if inode.nlink > 1 => {
                let names = pass.linked.entry(entry.id.0).or_default();
                names.push((visit.dir, path));
            }
            libc::S_IFREG if is_clean(&inode) => {}
            libc::S_IFREG if is_young(&inode, lag) => pass.young += 1,
            libc::S_IFREG if mark.is_released() => {
                let is_written = self.write_attributes(entry.id, &path)?;
                pass.young += u64::from(!is_written);
            }
            libc::S_IFREG => {
                let id = entry.id;
                visit.dirty.push(Dirty { id, name, inode });
            }
            libc::S_IFLNK if mark.state != OriginState::None && is_clean(&inode) => {}
            libc::S_IFLNK if is_young(&inode, lag) => pass.young += 1,
            libc::S_IFLNK => {
                self.write_symlink(entry.id, (visit.dir, &name), &path, &inode)?;
                visit.has_written = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Part of [`Drain::pass_entry`] for a directory: makes it at the origin, and records whether
    /// its attributes are to be set and its entries visited.
    fn pass_subdirectory(
        &self,
        visit: &mut Visit<'_>,
        (id, inode): (ObjectId, &Inode),
        (name, path): (&[u8], Vec<u8>),
        pass: &mut Pass,
    ) -> Result<()> {
        if !is_made(&inode.origin) {
            match self.directories.make_directory(id, visit.dir, name, &path) {
                Ok(true) => visit.has_written = true,
                Ok(false) | Err(Errno::NOENT) => {
                    pass.young += 1;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        if inode.origin.synced != self.marks.print_of_dir(id, inode)? {
            pass.late.insert(path.clone(), id);
        }
        if !inode.origin.is_released() {
            visit.below_it.push((id, path));
        }
        Ok(())
    }

    /// Sets the attributes of a directory of the origin to those of the pool's directory. Returns
    /// false if the directory's path has changed.
    fn write_directory(&self, id: ObjectId, at: &[u8]) -> Result<bool> {
        if self.marks.has_lost(id) {
            return Ok(true);
        }
        let Some(_held) = self.tree.held_at(id, at)? else {
            return Ok(false);
        };
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        if inode.origin.state == OriginState::None {
            return Ok(true);
        }
        self.attributes.write_attributes_of(at, &inode)?;
        self.marks.set_mark(
            id,
            OriginMark {
                synced: self.marks.print_of_dir(id, &inode)?,
                ..inode.origin
            },
        )?;
        Ok(true)
    }

    fn write_symlink(
        &self,
        id: ObjectId,
        (dir, name): (ObjectId, &[u8]),
        at: &[u8],
        seen: &Inode,
    ) -> Result<()> {
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        if inode.ctime != seen.ctime || inode.origin != seen.origin {
            return Ok(());
        }
        self.marks.announce(dir, std::iter::once((id, &inode)))?;
        if !self.tree.has_name(dir, name, id) {
            return Ok(());
        }
        let target = self.shared.fs.readlink(&self.shared.pool_path(at))?;
        match self.shared.side.look(at)? {
            None => self.shared.side.symlink(&target, at)?,
            Some(there) if there.is_symlink() && self.shared.side.readlink(at)? == target => {}
            // In the pool, the symbolic link has replaced the object that the origin still has.
            Some(there) if !there.is_dir() && print(&there) == seen.origin.print => {
                self.shared.side.unlink(at)?;
                self.shared.side.symlink(&target, at)?;
            }
            Some(_) => return Err(Errno::EXIST),
        }
        self.attributes.write_attributes_of(at, seen)?;
        self.write_back.is_written(id, at, seen.ctime)
    }

    /// Sets, at the origin, the attributes of a file whose bytes are at the origin only. Returns
    /// false if the file has been fetched, has several names or has another version at the origin:
    /// then a later pass writes the attributes.
    fn write_attributes(&self, id: ObjectId, at: &[u8]) -> Result<bool> {
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        if is_clean(&inode) {
            return Ok(true);
        }
        // Setting the attributes changes the fingerprint of the origin's version. Threads that
        // fetch blocks of the file compare this fingerprint.
        let _pause = self.marks.fills().pause(id);
        let there = self.shared.side.meta(at)?;
        if !inode.origin.is_released() || inode.nlink > 1 || print(&there) != inode.origin.print {
            return Ok(false);
        }
        self.attributes.write_attributes_of(at, &inode)?;
        self.write_back.is_written(id, at, inode.ctime)?;
        Ok(true)
    }

    /// Makes sure that the origin has a file's changes from before this call, if the file's
    /// controls or its path's mode require it. Blocks.
    ///
    /// # Errors
    /// The errno, and what failed. EBUSY: others keep changing the file.
    pub fn sync_file(&self, id: ObjectId, (dir, name): (ObjectId, &[u8])) -> Done {
        let began = Instant::now();
        let changed = self.shared.inode(id)?.ctime;
        while began.elapsed() < REPEATS {
            let inode = self.shared.inode(id)?;
            if inode.nlink == 0 || is_clean(&inode) || inode.origin.synced >= changed {
                return Ok(());
            }
            let relative = if self.tree.has_name(dir, name, id) {
                crate::side::below(&self.tree.relative_of(dir)?, name)
            } else {
                self.tree.find(id)?
            };
            let mode = self
                .shared
                .config
                .mode_of(&self.shared.pool_path(&relative));
            match declared(inode.controls).0.persistence == Some(Persistence::Origin) {
                true if mode.is_written() => {}
                true => {
                    let text = format!(
                        "{}: persistence = \"origin\" is declared of it, but the mode of its path is {mode}",
                        self.shared.side.show(&relative)
                    );
                    return Err(Error::new(Errno::OPNOTSUPP, text));
                }
                false if mode == OriginMode::WriteThrough => {}
                false => return Ok(()),
            }
            let pass = self.pass(&relative, Duration::ZERO);
            if let Some((at, why)) = pass.failed.into_iter().next() {
                let text = format!("{}: {why}", self.shared.side.show(&at));
                self.shared
                    .ledger
                    .problem(&at, self.shared.side.show(&at), why);
                return Err(Error::new(Errno::IO, text));
            }
            if pass.young > 0 {
                std::thread::sleep(TICK);
            }
        }
        Err(Error::new(Errno::BUSY, "others keep changing the file"))
    }
}
