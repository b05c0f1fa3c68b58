//! Whether what lies on this node fits what lies on others: every entry leads to an object, and every
//! name that an object counts is there.

use super::findings::Report;
use crate::Store;
use crate::across::link_in;
use crate::elsewhere::messages::{Record, kind};
use crate::record::{Entry, parse_key};
use rustix::io::{Errno, Result};

const PART: &str = "names";

impl Store {
    /// Asks the other nodes of a pool, while nothing changes, for what this one's records refer to.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be asked.
    pub fn inspect_across(&self) -> Result<Report> {
        let mut report = Report::default();
        if self.elsewhere.is_none() {
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
            let there: Result<Record> = self.ask(home, kind::STAT, &entry.id);
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
            let there: Option<Entry> = self.ask(home, kind::LOOKUP, &(dir, &name[..]))?;
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
            let there: Result<Record> = self.ask(home, kind::STAT, &part.whole());
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

fn shown(name: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(name))
}
