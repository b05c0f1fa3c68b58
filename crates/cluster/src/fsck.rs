//! The part of the check that needs other nodes: records of this node that refer to theirs.
//!
//! Each entry leads to an object, each name that an object counts exists, each part has its file,
//! and no intent is left. To be called while nothing changes.

use crate::Cluster;
use crate::peers::messages::Record;
use crate::peers::requests::request;
use forebay_store::fsck::Report;
use forebay_store::names::link_in;
use forebay_store::record::{Entry, Key, parse_key};
use forebay_store::shards::Need;
use rustix::io::{Errno, Result};

const PART: &str = "names";

impl<'a> Cluster<'a> {
    /// Asks the other nodes of a pool, while nothing changes, for what this one's records refer to.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be asked.
    pub fn inspect_across(&self) -> Result<Report> {
        let mut report = Report::default();
        if self.foreign.is_none() {
            return Ok(report);
        }
        let (mut entries, mut links, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut parts = Vec::new();
        for env in &self.envs {
            env.snapshot()?.scan(b"", |key, value| {
                match parse_key(key) {
                    Some((b'D', dir, name)) => {
                        if let Some(e) = Entry::decode(value) {
                            entries.push((dir, name.to_vec(), e));
                        }
                    }
                    Some((b'L', id, rest)) => {
                        if let Some((dir, name, true)) = link_in(rest, value) {
                            links.push((id, dir, name.to_vec()));
                        }
                    }
                    // Without a name: parts of a removed file that are about to go.
                    Some((b'N', dir, name)) if !name.is_empty() => notes.push((dir, name.to_vec())),
                    // What copies are of may be gone: the keeper comes upon it.
                    Some((b'I', id, _)) if id.is_part() && !id.is_copy() => parts.push(id),
                    _ => {}
                }
                true
            })?;
        }
        report.entries = (entries.len() + links.len()) as u64;
        for (dir, name, entry) in entries {
            let Some(home) = self.object_away(entry.id) else {
                continue;
            };
            let there: Result<Record> = self.ask(home, request::STAT, &entry.id);
            let wrong = match there {
                Ok(record) if record.0.kind() == entry.kind => continue,
                Ok(_) => "is of another type",
                Err(Errno::NOENT) => "doesn't exist there",
                Err(e) => return Err(e),
            };
            report.add(
                PART,
                format!(
                    "the entry {} of directory {}: its object {} on node {} {wrong}",
                    shown(&name),
                    dir.0,
                    entry.id.0,
                    home.0
                ),
                "remove it with rm",
            );
        }
        for (id, dir, name) in links {
            let Some(home) = self.entry_away(dir, &name) else {
                continue;
            };
            let there: Option<Entry> = self.ask(home, request::LOOKUP, &(dir, &name[..]))?;
            if there.is_none_or(|e| e.id != id) {
                report.add(
                    PART,
                    format!(
                        "object {}: it counts the name {} in directory {}, which isn't on node {}",
                        id.0,
                        shown(&name),
                        dir.0,
                        home.0
                    ),
                    "nothing is lost but its room; down and up give it back",
                );
            }
        }
        for part in parts {
            let home = self.object_away(part.whole()).ok_or(Errno::REMCHG)?;
            let there: Result<Record> = self.ask(home, request::STAT, &part.whole());
            match there {
                Ok(_) => {}
                Err(Errno::NOENT) => report.add(
                    PART,
                    format!(
                        "this node has a part of file {}, which isn't on node {} any more",
                        part.whole().0,
                        home.0
                    ),
                    "nothing is lost but its room; down and up give it back",
                ),
                Err(e) => return Err(e),
            }
        }
        for (dir, name) in notes {
            report.add(
                PART,
                format!(
                    "something that began with the entry {} of directory {} isn't complete",
                    shown(&name),
                    dir.0
                ),
                "the node's daemon completes it as soon as the other nodes can be reached",
            );
        }
        Ok(report)
    }
}

impl<'a> Cluster<'a> {
    /// After a loss of power on all nodes, each has the records that it had written: what one of
    /// them noted last, another one may have lost. Makes what lies here fit what lies on others: an
    /// entry without its object goes; a name that a file counts comes back if nothing else has it
    /// by now; a part without its file goes. How many. Only while nobody uses the pool, and when
    /// all nodes have settled their notes.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be asked.
    pub fn mend_across(&self) -> Result<usize> {
        if self.foreign.is_none() {
            return Ok(0);
        }
        self.settle_notes()?;
        let (mut entries, mut links, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for env in &self.envs {
            env.snapshot()?.scan(b"", |key, value| {
                match parse_key(key) {
                    Some((b'D', dir, name)) => {
                        let entry = Entry::decode(value);
                        entries.extend(entry.map(|e| (dir, name.to_vec(), e)));
                    }
                    Some((b'L', id, rest)) => {
                        if let Some((dir, name, true)) = link_in(rest, value) {
                            links.push((id, dir, name.to_vec()));
                        }
                    }
                    Some((b'I', id, _)) if id.is_part() && !id.is_copy() => parts.push(id.whole()),
                    _ => {}
                }
                true
            })?;
        }
        let mut mended = 0;
        for (id, dir, name) in links {
            let home = self.entry_away(dir, &name);
            let there = self.lookup(dir, &name)?;
            if home.is_none() || there.is_some_and(|e| e.id == id) {
                continue;
            }
            let kind = self.stat(id)?.kind();
            let back = match (there, home, self.stat(dir)) {
                (None, Some(home), Ok(_)) => {
                    let entry = Entry { id, kind };
                    let epoch = self.names().names_epoch();
                    let question = (dir, &name[..], entry, false, epoch);
                    self.ask(home, request::INSERT, &question)?.is_none()
                }
                (_, _, Err(Errno::NOENT) | Ok(_)) => false,
                (_, _, Err(e)) => return Err(e),
            };
            if !back {
                self.cross_node().lose_name(id, (dir, &name), None, false)?;
            }
            mended += 1;
        }
        for (dir, name, entry) in entries {
            if self.object_away(entry.id).is_none() {
                continue;
            }
            match self.stat(entry.id) {
                Ok(_) => continue,
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
            let shard = self.shard_of_entry(dir, &name);
            let key = Key::entry(dir, &name);
            self.write(self.set(&[shard]), Need::Removal, |w| w.del(shard, &key))?;
            mended += 1;
        }
        for id in parts {
            match self.stat(id) {
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    self.parts().drop_part(id)?;
                    mended += 1;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(mended)
    }
}

fn shown(name: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(name))
}
