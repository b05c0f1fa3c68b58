//! The part of fsck that needs other nodes: checks whether this node's records agree with theirs.
//!
//! Checks that each entry refers to an object, that each name that an object counts has its entry,
//! that each part has its file, and that no intent is left. To be called while nothing in the pool
//! changes.

use crate::Cluster;
use crate::peers::messages::Record;
use crate::peers::requests::request;
use crate::views::Checks;
use forebay_store::fsck::Report;
use forebay_store::names::link_in;
use forebay_store::record::{Entry, Inode, parse_key, tail};
use forebay_store::records::{ChangeRecords, Need, ReadRecords, Records};
use forebay_store::{NodeId, ObjectId, now};
use rustix::io::{Errno, Result};
use std::time::{Duration, Instant};

const PART: &str = "names";
/// Maximum time for which one node's check sends requests to other nodes. Records not checked by
/// then are counted.
const REMOTE_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

impl<'a> Checks<'a> {
    /// Checks this node's records against those of the other nodes of a pool, during quiescence,
    /// for at most 30 s; [`Report::unasked`] counts the records that couldn't be checked in that
    /// time.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached.
    pub fn inspect_across(&self) -> Result<Report> {
        if self.store().remote.is_none() {
            return Ok(Report::default());
        }
        let References {
            entries,
            links,
            dirs,
            parts,
            notes,
        } = self.references()?;
        let mut inspection = Inspection {
            cluster: self.cluster,
            until: Instant::now() + REMOTE_CHECK_TIMEOUT,
            report: Report {
                entries: (entries.len() + links.len()) as u64,
                ..Report::default()
            },
        };
        inspection.check_entries(entries)?;
        inspection.check_directories(dirs)?;
        inspection.check_links(links)?;
        inspection.check_parts(parts)?;
        inspection.list_intents(notes);
        Ok(inspection.report)
    }
}

/// One comparison of this node's records with those of other nodes.
struct Inspection<'a> {
    cluster: Cluster<'a>,
    /// The time from which on no further request is sent.
    until: Instant,
    report: Report,
}

impl Inspection<'_> {
    /// Whether no time is left for a further request. Counts the record that isn't checked then.
    fn is_late(&mut self) -> bool {
        let is_late = Instant::now() >= self.until;
        self.report.unasked += u64::from(is_late);
        is_late
    }

    /// Checks that the object of each entry exists at its home, with the entry's type.
    fn check_entries(&mut self, entries: Vec<(ObjectId, Vec<u8>, Entry)>) -> Result<()> {
        for (dir, name, entry) in entries {
            let Some(home) = self.cluster.remote_home(entry.id) else {
                continue;
            };
            if self.is_late() {
                continue;
            }
            let there: Result<Record> = self.cluster.ask(home, request::STAT, &entry.id);
            let wrong = match there {
                Ok(record) if record.0.kind() != entry.kind => "is of another type",
                Ok(record) if is_in_other_directory(&record.0, dir) => "is in another directory",
                Ok(_) => continue,
                Err(Errno::NOENT) => "doesn't exist there",
                Err(e) => return Err(e),
            };
            self.report.add(
                PART,
                format!(
                    "the entry {} of directory {}: its object {} on node {} {wrong}",
                    shown(&name),
                    dir.0,
                    entry.id.0,
                    home.0
                ),
                "it is removed",
            );
        }
        Ok(())
    }

    /// Looks an entry of another node up there. None if the entry is this node's, or no time is
    /// left.
    fn look_up(&mut self, dir: ObjectId, name: &[u8]) -> Result<Option<(NodeId, Option<Entry>)>> {
        let Some(home) = self.cluster.remote_home_of_entry(dir, name) else {
            return Ok(None);
        };
        if self.is_late() {
            return Ok(None);
        }
        let there: Option<Entry> = self.cluster.ask(home, request::LOOKUP, &(dir, name))?;
        Ok(Some((home, there)))
    }

    /// Checks that each directory has the name that it says it has.
    fn check_directories(&mut self, dirs: Vec<(ObjectId, ObjectId, Vec<u8>)>) -> Result<()> {
        for (id, dir, name) in dirs {
            let (home, wrong) = match self.look_up(dir, &name)? {
                Some((home, Some(e))) if e.id != id => {
                    (home, "where that name leads to another object")
                }
                Some((home, None)) => (home, "where there is no such name"),
                _ => continue,
            };
            self.report.add(
                PART,
                format!(
                    "directory {}: it says that it is {} in directory {}, on node {}, {wrong}",
                    id.0,
                    shown(&name),
                    dir.0,
                    home.0
                ),
                "it gets a name again",
            );
        }
        Ok(())
    }

    /// Checks that each name that an object counts leads to it.
    fn check_links(&mut self, links: Vec<(ObjectId, ObjectId, Vec<u8>)>) -> Result<()> {
        for (id, dir, name) in links {
            let Some((home, there)) = self.look_up(dir, &name)? else {
                continue;
            };
            if there.is_none_or(|e| e.id != id) {
                self.report.add(
                    PART,
                    format!(
                        "object {}: it counts the name {} in directory {}, which isn't on node {}",
                        id.0,
                        shown(&name),
                        dir.0,
                        home.0
                    ),
                    "it gets the name back if nothing else has it; without another name, it goes",
                );
            }
        }
        Ok(())
    }

    /// Checks that the file of each part exists.
    fn check_parts(&mut self, parts: Vec<Part>) -> Result<()> {
        // Without a link, a part is removed as soon as no process has it open.
        for part in parts.into_iter().filter(|p| p.nlink > 0).map(|p| p.id) {
            if self.is_late() {
                continue;
            }
            let home = self
                .cluster
                .remote_home(part.whole())
                .ok_or(Errno::REMCHG)?;
            let there: Result<Record> = self.cluster.ask(home, request::STAT, &part.whole());
            match there {
                Ok(_) => {}
                Err(Errno::NOENT) => self.report.add(
                    PART,
                    format!(
                        "this node has a part of file {}, which isn't on node {} any more",
                        part.whole().0,
                        home.0
                    ),
                    "it is removed",
                ),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reports the intents that are left.
    fn list_intents(&mut self, notes: Vec<(ObjectId, Vec<u8>)>) {
        for (dir, name) in notes {
            self.report.add(
                PART,
                format!(
                    "something that began with the entry {} of directory {} isn't complete",
                    shown(&name),
                    dir.0
                ),
                "the node's daemon completes it as soon as the other nodes can be reached",
            );
        }
    }
}

/// The objects to which this node's records refer, on any node.
#[derive(Default)]
struct References {
    /// Entries: a directory, a name in it, and the object to which it refers.
    entries: Vec<(ObjectId, Vec<u8>, Entry)>,
    /// Names that an object counts: the object, a directory and the name in it.
    links: Vec<(ObjectId, ObjectId, Vec<u8>)>,
    /// Directories: each with its parent and its name there.
    dirs: Vec<(ObjectId, ObjectId, Vec<u8>)>,
    parts: Vec<Part>,
    /// Entries with an intent: an operation on them isn't complete.
    notes: Vec<(ObjectId, Vec<u8>)>,
}

/// A part of a striped file.
struct Part {
    id: ObjectId,
    nlink: u32,
}

impl<'a> Checks<'a> {
    fn references(&self) -> Result<References> {
        let mut found = References::default();
        for shard in 0..self.store().files.count() {
            self.store()
                .committed(shard)?
                .each_record(b"", |key, value| {
                    match parse_key(key) {
                        Some((b'D', dir, name)) => {
                            let entry = Entry::decode(value);
                            found.entries.extend(entry.map(|e| (dir, name.to_vec(), e)));
                        }
                        Some((b'L', id, rest)) => {
                            if let Some((dir, name, true)) = link_in(rest, value) {
                                found.links.push((id, dir, name.to_vec()));
                            }
                        }
                        // An intent without a name: the parts of a removed file are about to be
                        // removed.
                        Some((b'N', dir, name)) if !name.is_empty() => {
                            found.notes.push((dir, name.to_vec()));
                        }
                        // Copies aren't checked: a copy's file may be removed already, and then the
                        // keeper removes the copy.
                        Some((b'I', id, _)) if id.is_part() && !id.is_copy() => {
                            let inode = Inode::decode(value).map(|(inode, _)| inode);
                            let nlink = inode.map_or(0, |inode| inode.nlink);
                            found.parts.push(Part { id, nlink });
                        }
                        Some((b'I', id, _)) => found.dirs.extend(named_dir(id, value)),
                        _ => {}
                    }
                    true
                })?;
        }
        Ok(found)
    }

    /// Whether this node has intents: operations on entries that aren't complete.
    ///
    /// # Errors
    /// If the records can't be read.
    pub fn has_notes(&self) -> Result<bool> {
        let mut any = false;
        for shard in 0..self.store().files.count() {
            self.store().committed(shard)?.each_intent(|_, name, _| {
                // An intent without a name: the parts of a removed file are about to be removed.
                any |= !name.is_empty();
                !any
            })?;
        }
        Ok(any)
    }

    /// Makes this node's records agree with those of other nodes, after a loss of power on all
    /// nodes. Each node then has its last records on disk, and one may have records of a change
    /// that another has lost. Removes entries without an object; restores names that a file counts,
    /// unless another object has the name; gives a directory without an entry its old entry, or one
    /// in the root; removes parts without a file. Returns the number of repairs.
    ///
    /// To be called only while no process uses the pool, and after all nodes have settled their
    /// intents ([`crate::Namespace::settle_notes`], [`Checks::has_notes`]): half of a rename in
    /// progress looks like an entry without its object.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached.
    pub fn mend_across(&self) -> Result<usize> {
        if self.store().remote.is_none() {
            return Ok(0);
        }
        self.cluster.namespace().settle_notes()?;
        let References {
            entries,
            links,
            dirs,
            parts,
            ..
        } = self.references()?;
        let mut mended = 0;
        for (id, dir, name) in links {
            let home = self.cluster.remote_home_of_entry(dir, &name);
            let there = self.cluster.namespace().lookup(dir, &name)?;
            if home.is_none() || there.is_some_and(|e| e.id == id) {
                continue;
            }
            let kind = self.cluster.namespace().stat(id)?.kind();
            let back = match (there, home, self.cluster.namespace().stat(dir)) {
                (None, Some(home), Ok(_)) => {
                    let entry = Entry { id, kind };
                    let epoch = self.store().names_epoch().now();
                    let arguments = (dir, &name[..], entry, false, epoch);
                    self.cluster
                        .ask(home, request::INSERT, &arguments)?
                        .is_none()
                }
                (_, _, Err(Errno::NOENT) | Ok(_)) => false,
                (_, _, Err(e)) => return Err(e),
            };
            if !back {
                self.cluster
                    .cross_node()
                    .lose_name(id, (dir, &name), None, false)?;
            }
            mended += 1;
        }
        for (dir, name, entry) in entries {
            if self.cluster.remote_home(entry.id).is_none() {
                continue;
            }
            match self.cluster.namespace().stat(entry.id) {
                Ok(inode) if is_in_other_directory(&inode, dir) => {}
                Ok(_) => continue,
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
            let at = self.store().entry_ref((dir, &name));
            self.store()
                .transact(at.set(), Need::Removal, |w| w.clear_entry(at))?;
            mended += 1;
        }
        for (id, dir, name) in dirs {
            mended += usize::from(self.name_again(id, (dir, &name))?);
        }
        for id in parts.iter().map(|part| part.id.whole()) {
            match self.cluster.namespace().stat(id) {
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    self.store().parts().drop_part(id)?;
                    mended += 1;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(mended)
    }
}

impl<'a> Checks<'a> {
    /// Restores a directory's entry, if the name in the directory's inode belongs to another node
    /// and has no entry there. If the name refers to another object now, makes a new entry in the
    /// root. Returns whether an entry was made.
    fn name_again(&self, id: ObjectId, (dir, name): (ObjectId, &[u8])) -> Result<bool> {
        let Some(home) = self.cluster.remote_home_of_entry(dir, name) else {
            return Ok(false);
        };
        let there: Option<Entry> = self.cluster.ask(home, request::LOOKUP, &(dir, name))?;
        if there.is_some_and(|e| e.id == id) {
            return Ok(false);
        }
        let kind = libc::S_IFDIR;
        let entry = Entry { id, kind };
        let is_dir_there = match self.cluster.namespace().stat(dir) {
            Ok(inode) => inode.is_dir(),
            Err(Errno::NOENT) => false,
            Err(e) => return Err(e),
        };
        if there.is_none() && is_dir_there {
            let arguments = (dir, name, entry, false, self.store().names_epoch().now());
            if self
                .cluster
                .ask(home, request::INSERT, &arguments)?
                .is_none()
            {
                return Ok(true);
            }
        }
        // Choose a name whose entry lies on this node, so that one local transaction makes all
        // changes.
        let names = (0..1u32 << 20).map(|n| format!("#{}.{n}", id.0).into_bytes());
        let mut here = names.filter(|name| {
            self.cluster
                .remote_home_of_entry(ObjectId::ROOT, name)
                .is_none()
        });
        let name = here.next().ok_or(Errno::NOSPC)?;
        let at = self.store().entry_ref((ObjectId::ROOT, &name));
        let set = at.set().with(self.store().files.shard_of(id));
        self.store().transact(set, Need::Update, |w| {
            w.set_entry(at, entry)?;
            let (mut inode, _) = w.inode(id)?.ok_or(Errno::IO)?;
            inode.parent = ObjectId::ROOT.0;
            inode.tail = tail::NAME;
            inode.ctime = now();
            w.set_inode(id, &inode, &name)?;
            w.names_change();
            Ok(())
        })?;
        Ok(true)
    }
}

/// Returns a directory other than the root with the parent and name in its inode.
fn named_dir(id: ObjectId, record: &[u8]) -> Option<(ObjectId, ObjectId, Vec<u8>)> {
    let (inode, name) = Inode::decode(record)?;
    let is_named = inode.is_dir() && id != ObjectId::ROOT && inode.tail == tail::NAME;
    is_named.then(|| (id, ObjectId(inode.parent), name.to_vec()))
}

/// Whether a directory's inode names another parent than `dir`.
fn is_in_other_directory(inode: &Inode, dir: ObjectId) -> bool {
    inode.is_dir() && inode.parent != dir.0
}

fn shown(name: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(name))
}
