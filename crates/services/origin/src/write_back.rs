//! Writing the files of one directory back, bytes and attributes, in batches.
//!
//! The copier of `forebay-staging` writes a file beside its target, verifies, syncs and renames it.
//! The mark that makes the file clean has the change time from before the copy, so a write during
//! the copy leaves the file dirty. The files of a batch are copied together, because they share the
//! sync; each file is copied by the node that has it. If the origin has a version that the pool
//! doesn't know, both sides have changed the file: the pool's version is stored beside the
//! origin's.

use crate::marks::{Marks, is_clean};
use crate::object_writer::{ObjectWriter, Put, Written};
use crate::orders::CopierOrders;
use crate::pass::{Pass, TICK, is_young};
use crate::shared::{Shared, WRITERS};
use crate::side::{below, is_cut_off, print, split};
use crate::tree::Tree;
use crate::writing::Writing;
use forebay_backing::{Meta, PoolStore, SlowStore, explain, map};
use forebay_posix::ObjectId;
use forebay_staging::{Options, Report, StageError, Team, part_name, stage};
use forebay_store::{Inode, OriginMark, OriginState};
use rustix::io::{Errno, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum number of files, and of their bytes, in one batch.
pub const BATCH: usize = 256;
const BATCH_BYTES: u64 = 256 << 20;
/// Maximum number of files in one batch to a bucket. The number is smaller, because objects share
/// no sync, and a process that removes a file of the batch waits for the whole batch.
pub const OBJECTS: usize = 64;
/// Maximum number of attempts to remove an incomplete file while the origin returns errors.
const PART_ATTEMPTS: usize = 5;

/// If a directory has at most this many entries per dirty file, one listing of the bucket replaces
/// the look-ups of the files.
const LISTED: usize = 500;

/// The metadata of the origin's object under a name; None if there is no such object.
type Looked = Result<Option<Meta>>;

/// A file to be written back.
pub struct Dirty {
    pub id: ObjectId,
    pub name: Vec<u8>,
    pub inode: Inode,
}

/// Writes back files.
pub struct WriteBack {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub orders: Arc<CopierOrders>,
    pub object_writer: Arc<ObjectWriter>,
    /// The versions that are being written.
    pub writing: Writing,
}

impl WriteBack {
    pub fn writing(&self) -> &Writing {
        &self.writing
    }

    /// Writes the bytes and attributes of dirty files of one directory back.
    pub fn write_files(
        &self,
        dir: ObjectId,
        at: &[u8],
        mut dirty: Vec<Dirty>,
        pass: &mut Pass,
    ) -> Result<()> {
        // All threads that lock several objects lock them in this order.
        dirty.sort_by_key(|d| d.id.0);
        let _working: Vec<_> = dirty.iter().map(|d| self.marks.lock(d.id)).collect();
        let current = self.still_dirty(at, dirty, pass);
        let objects = current.iter().map(|d| (d.id, &d.inode));
        self.marks.announce(dir, objects)?;
        let looks = match self.looks(dir, at, &current) {
            Ok(looks) => looks,
            Err(e) => {
                let why = self.shared.side.explain(e);
                let failed = current.iter().map(|d| (below(at, &d.name), why.clone()));
                pass.failed.extend(failed);
                pass.is_cut_off = is_cut_off(e);
                return Ok(());
            }
        };
        let (mut plain, mut same, mut puts) = (Vec::new(), Vec::new(), Vec::new());
        for (d, there) in current.into_iter().zip(looks) {
            let path = below(at, &d.name);
            // From here on, a process that wants to change the name asks this service first, and
            // waits.
            if !self.tree.has_name(dir, &d.name, d.id) {
                pass.young += 1;
                continue;
            }
            let there = match there {
                Ok(there) => there,
                Err(e) => {
                    pass.failed.push((path, self.shared.side.explain(e)));
                    continue;
                }
            };
            match there {
                Some(there) if !self.is_known(&path, &there, &d.inode.origin) => {
                    self.write_conflict(&path, (d.id, &d.inode), pass);
                }
                there if self.shared.side.is_object_store() => puts.push((d, path, there)),
                // Same size and time: the copier would take the content for unchanged, unless it
                // compares checksums.
                Some(there)
                    if there.size == d.inode.size && there.is_modified_at(d.inode.mtime.into()) =>
                {
                    same.push(d);
                }
                _ => plain.push(d),
            }
        }
        if self.shared.side.is_object_store() {
            return self.write_objects(&puts, pass);
        }
        self.write_list(at, plain, false, pass);
        self.write_list(at, same, true, pass);
        Ok(())
    }

    /// Returns the files that are still dirty and old enough, with their current inodes. The caller
    /// holds the files' locks.
    fn still_dirty(&self, at: &[u8], dirty: Vec<Dirty>, pass: &mut Pass) -> Vec<Dirty> {
        let mut current = Vec::new();
        for d in dirty {
            // The file may have changed since the walk: another pass has written it, or its names
            // have changed.
            match self
                .orders
                .make_sure_of(d.id)
                .and_then(|()| self.shared.inode(d.id))
            {
                Ok(inode) if is_clean(&inode) => {}
                Ok(inode) if is_young(&inode, TICK) => pass.young += 1,
                // The file has got a second name since the walk. The next pass writes the file with
                // all its names.
                Ok(inode) if inode.nlink > 1 => pass.young += 1,
                Ok(inode) => current.push(Dirty { inode, ..d }),
                Err(Errno::NOENT) => {}
                Err(e) => pass
                    .failed
                    .push((below(at, &d.name), self.shared.side.explain(e))),
            }
        }
        current
    }

    /// Returns the origin's versions of files of one directory, in the order of `list`.
    fn looks(&self, dir: ObjectId, at: &[u8], list: &[Dirty]) -> Result<Vec<Looked>> {
        if !self.shared.side.is_object_store() {
            let look = |d: &Dirty| self.shared.side.look(&below(at, &d.name));
            return Ok(map(WRITERS, list, look));
        }
        if list.len() * LISTED >= self.tree.entries(dir)?.len() {
            // One listing of a thousand names costs as much as two look-ups.
            let entries = self
                .shared
                .side
                .entries(at, &|_| false)?
                .unwrap_or_default();
            let there: HashMap<Vec<u8>, Meta> = entries.all.into_iter().collect();
            let find = |d: &Dirty| match there.get(&d.name).copied() {
                // The listed version isn't the known one. A look-up also returns the modification
                // time, which tells whether the service wrote this version.
                Some(meta) if print(&meta) != d.inode.origin.print => {
                    self.shared.side.look(&below(at, &d.name))
                }
                found => Ok(found),
            };
            return Ok(list.iter().map(find).collect());
        }
        let mut looks = Vec::new();
        for d in list {
            match self.shared.side.look(&below(at, &d.name)) {
                Err(e) if is_cut_off(e) => return Err(e),
                look => looks.push(look),
            }
        }
        Ok(looks)
    }

    /// Writes files to a bucket. `list`: each file with its path, and the version that it replaces.
    fn write_objects(
        &self,
        list: &[(Dirty, Vec<u8>, Option<Meta>)],
        pass: &mut Pass,
    ) -> Result<()> {
        let versions = list.iter();
        let versions = versions.map(|(d, path, _)| (&path[..], d.inode.size, d.inode.mtime));
        self.writing
            .begin(versions)
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let puts: Vec<Put<'_>> = list
            .iter()
            .map(|(d, path, there)| Put {
                id: d.id,
                path,
                size: d.inode.size,
                replaced: *there,
            })
            .collect();
        let times: Vec<i64> = list.iter().map(|(d, _, _)| d.inode.ctime).collect();
        self.put_files(&puts, &times, pass);
        Ok(())
    }

    /// Writes the dirty files of one directory to a bucket. `times`: the files' change times from
    /// before the write.
    pub fn put_files(&self, files: &[Put<'_>], times: &[i64], pass: &mut Pass) {
        let results = self.object_writer.put_all(files);
        for ((put, synced), result) in files.iter().zip(times).zip(results) {
            match result {
                Some(Written::Done(version)) => {
                    match self.has_version(put.id, put.path, version, *synced) {
                        Ok(()) => self.shared.ledger.written.add(1, put.size),
                        // The file was removed meanwhile.
                        Err(Errno::NOENT) => {}
                        Err(e) => pass.failed.push((put.path.to_vec(), explain(e))),
                    }
                }
                Some(Written::Young) => pass.young += 1,
                Some(Written::Failed(why)) => pass.failed.push((put.path.to_vec(), why)),
                None => {
                    pass.is_cut_off = true;
                    let why = "not tried: the server can't be reached".to_owned();
                    pass.failed.push((put.path.to_vec(), why));
                }
            }
        }
    }

    fn write_list(&self, at: &[u8], list: Vec<Dirty>, compares: bool, pass: &mut Pass) {
        if list.is_empty() {
            return;
        }
        let options = Options {
            checksum: compares,
            threads: WRITERS,
            ..Options::stage_out()
        };
        let paths: Vec<_> = list.iter().map(|d| below(at, &d.name)).collect();
        let versions = paths.iter().zip(&list);
        let versions = versions.map(|(path, d)| (&path[..], d.inode.size, d.inode.mtime));
        if let Err(e) = self.writing.begin(versions) {
            let why = format!("the pool's directory can't be written: {e}");
            pass.failed
                .extend(paths.into_iter().map(|path| (path, why.clone())));
            return;
        }
        if let Err(e) = self.shared.sync_pool() {
            let why = format!("the pool can't be synced: {}", self.shared.side.explain(e));
            pass.failed
                .extend(paths.into_iter().map(|path| (path, why.clone())));
            return;
        }
        for (list, report) in self.copy_list(at, list, &options) {
            match report {
                Ok(report) => self.settle_list(at, list, &report, pass),
                Err(why) => {
                    let failed = list.iter().map(|d| (below(at, &d.name), why.clone()));
                    pass.failed.extend(failed);
                }
            }
        }
    }

    /// Copies files of one directory, each from the node that has it, all nodes at the same time.
    /// Returns each node's files with its report, or with the reason why copying couldn't begin.
    fn copy_list(
        &self,
        at: &[u8],
        list: Vec<Dirty>,
        options: &Options,
    ) -> Vec<(Vec<Dirty>, std::result::Result<Report, String>)> {
        let files = list.iter().map(|d| (d.id, &d.name[..], d.inode.size));
        let mut nodes: HashMap<usize, u32> = HashMap::new();
        for (node, indices) in self.orders.shared_out(files) {
            nodes.extend(indices.into_iter().map(|i| (i, node)));
        }
        let pool = PoolStore::new(&self.shared.fs, &self.shared.config.at);
        let here_only =
            |d: &Dirty| pool.is_found_here_only(&self.shared.pool_path(&below(at, &d.name)));
        let mut lists: BTreeMap<Option<u32>, Vec<Dirty>> = BTreeMap::new();
        for (i, d) in list.into_iter().enumerate() {
            let node = nodes.get(&i).copied().filter(|_| !here_only(&d));
            lists.entry(node).or_default().push(d);
        }
        std::thread::scope(|scope| {
            let copies: Vec<_> = lists
                .into_iter()
                .map(|(node, list)| {
                    let copy = move || {
                        let report = self.copy_from(node, at, &list, options);
                        (list, report)
                    };
                    scope.spawn(copy)
                })
                .collect();
            copies
                .into_iter()
                .filter_map(|copy| copy.join().ok())
                .collect()
        })
    }

    /// Makes a node copy files of one directory. `node`: None for this node.
    fn copy_from(
        &self,
        node: Option<u32>,
        at: &[u8],
        list: &[Dirty],
        options: &Options,
    ) -> std::result::Result<Report, String> {
        let names: Vec<Vec<u8>> = list.iter().map(|d| d.name.clone()).collect();
        if let Some(node) = node {
            match self.orders.write_there(node, at, &names, options.checksum) {
                Ok(Some(report)) => {
                    self.remove_parts(at, &report, &names);
                    return Ok(report);
                }
                Ok(None) => {}
                Err(e) => {
                    return Err(format!(
                        "node {node}, which has it: {}",
                        self.shared.side.explain(e)
                    ));
                }
            }
        }
        let options = Options {
            only: Some(names.into_iter().collect()),
            ..options.clone()
        };
        let report = self.stage(&self.shared.pool_path(at), at, &options);
        report.map_err(|e| e.to_string())
    }

    /// Evaluates the report of copied files of one directory: marks the files that were copied to
    /// the origin as clean.
    fn settle_list(&self, at: &[u8], list: Vec<Dirty>, report: &Report, pass: &mut Pass) {
        let accounted = report.moved_files + report.unchanged + report.failed;
        if accounted < list.len() as u64 || report.interrupted {
            // Some files have lost their names meanwhile. The next pass finds out which.
            pass.young += list.len() as u64;
            return;
        }
        let metas = map(WRITERS, &list, |d| {
            self.shared.side.meta(&below(at, &d.name))
        });
        for (d, meta) in list.into_iter().zip(metas) {
            let path = below(at, &d.name);
            let target = self.shared.side.show(&path);
            let failure = report.failures.iter().find(|f| f.path == target);
            match failure {
                Some(failure) if failure.what.contains("changed while") => pass.young += 1,
                Some(failure) => {
                    pass.failed.push((path, failure.what.clone()));
                }
                None => match meta
                    .and_then(|meta| self.has_version(d.id, &path, print(&meta), d.inode.ctime))
                {
                    Ok(()) => self.shared.ledger.written.add(1, d.inode.size),
                    // The file was removed meanwhile.
                    Err(Errno::NOENT) => {}
                    Err(e) => pass.failed.push((path, self.shared.side.explain(e))),
                },
            }
        }
    }

    /// Copies `from` in the pool to `to` at the origin. The copy counts as progress of the service.
    pub fn stage(
        &self,
        from: &[u8],
        to: &[u8],
        options: &Options,
    ) -> std::result::Result<Report, StageError> {
        let pool = PoolStore::new(&self.shared.fs, &self.shared.config.at);
        let report = self.shared.watched(|progress| {
            stage(
                &pool,
                from,
                &*self.shared.side,
                to,
                options,
                progress,
                &Team::default(),
            )
        });
        if !report.as_ref().is_ok_and(Report::complete) {
            let (dir, name) = split(to);
            match &options.only {
                Some(names) => names.iter().for_each(|name| self.remove_part(to, name)),
                None => self.remove_part(dir, name),
            }
        }
        report
    }

    /// Stores the pool's version of a file beside the origin's, because both sides have changed it.
    pub fn write_conflict(&self, path: &[u8], (id, inode): (ObjectId, &Inode), pass: &mut Pass) {
        let suffix = format!(".forebay-conflict-{}", &self.shared.pool.config().uuid[..8]);
        let beside = [path, suffix.as_bytes()].concat();
        let options = Options {
            checksum: true,
            ..Options::stage_out()
        };
        let written = if self.shared.side.is_object_store() {
            let there = self
                .shared
                .side
                .look(&beside)
                .map_err(|e| self.shared.side.explain(e));
            // An object under that name was left by an earlier conflict.
            match there.and_then(|there| self.object_writer.put_one((id, inode), &beside, there)) {
                Ok(Some(_)) => Ok(None),
                Ok(None) => {
                    pass.young += 1;
                    return;
                }
                Err(why) => Ok(Some(why)),
            }
        } else {
            self.stage(&self.shared.pool_path(path), &beside, &options)
                .map(|report| {
                    let first = || report.failures.first().map(|f| f.what.clone());
                    (!report.complete()).then(|| first().unwrap_or_default())
                })
        };
        let why = match written {
            Ok(None) => {
                let what = format!(
                    "was changed in the pool and at the origin; the pool's version is {}",
                    self.shared.side.show(&beside)
                );
                self.shared
                    .ledger
                    .conflict(path, self.shared.side.show(path), what);
                // The file is clean from here on. Its mark keeps the fingerprint from before the
                // conflict, so the next comparison gives the file the origin's version.
                let mark = OriginMark {
                    synced: inode.ctime,
                    state: OriginState::Archived,
                    ..inode.origin
                };
                match self.marks.set_mark(id, mark) {
                    Ok(()) => return,
                    Err(e) => self.shared.side.explain(e),
                }
            }
            Ok(Some(why)) => why,
            Err(e) => e.to_string(),
        };
        pass.failed.push((path.to_vec(), why));
    }

    /// Removes the incomplete files that a copier may have left, if its report tells of a failure.
    fn remove_parts(&self, dir: &[u8], report: &Report, names: &[Vec<u8>]) {
        if !report.complete() {
            names.iter().for_each(|name| self.remove_part(dir, name));
        }
    }

    /// Removes the incomplete file of `name`; a failed copier may have left one. No other process
    /// removes it while this process lives.
    fn remove_part(&self, dir: &[u8], name: &[u8]) {
        let part = below(dir, &part_name(name));
        for _ in 0..PART_ATTEMPTS {
            match self.shared.side.unlink(&part) {
                Ok(()) | Err(Errno::NOENT) => return,
                Err(_) => {}
            }
        }
    }

    /// Records that origin and pool have the same version; `synced` is the pool's change time of
    /// that version.
    pub fn is_written(&self, id: ObjectId, at: &[u8], synced: i64) -> Result<()> {
        self.has_version(id, at, print(&self.shared.side.meta(at)?), synced)
    }

    /// As [`WriteBack::is_written`], for a caller that knows the fingerprint of the origin's
    /// version.
    pub fn has_version(&self, id: ObjectId, at: &[u8], print: u64, synced: i64) -> Result<()> {
        let state = match self.shared.inode(id)?.origin.state {
            OriginState::Released => OriginState::Released,
            _ => OriginState::Archived,
        };
        self.shared.ledger.is_solved(at);
        self.shared.advance();
        self.marks.set_mark(
            id,
            OriginMark {
                state,
                print,
                synced,
            },
        )?;
        self.writing.end(at);
        Ok(())
    }

    /// Whether the origin's version of a file is the one that the pool knows, or that the service
    /// has just written.
    pub fn is_known(&self, path: &[u8], there: &Meta, mark: &OriginMark) -> bool {
        print(there) == mark.print || self.writing.is_ours(path, there)
    }
}

/// Divides files into batches of at most `most` files and `BATCH_BYTES`. While a batch is written,
/// its files can't be renamed; the limits bound that time.
pub fn batches(files: Vec<Dirty>, most: usize) -> Vec<Vec<Dirty>> {
    let mut batches: Vec<Vec<Dirty>> = Vec::new();
    let mut bytes = 0;
    for d in files {
        match batches.last_mut() {
            Some(last) if last.len() < most && bytes + d.inode.size <= BATCH_BYTES => {
                bytes += d.inode.size;
                last.push(d);
            }
            _ => {
                bytes = d.inode.size;
                batches.push(vec![d]);
            }
        }
    }
    batches
}
