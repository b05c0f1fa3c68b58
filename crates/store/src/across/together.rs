//! Many names at once: the steps of each link are those of `link_across`, in the same order, so that a death leaves what it leaves there. But
//! each step's questions to other nodes are asked together, and travel in few packets.

use crate::elsewhere::messages::{decode, encode, kind};
use crate::elsewhere::{Bytes, Question};
use crate::record::Entry;
use crate::{NAME_MAX, NodeId, ObjectId, Store};
use rustix::io::{Errno, Result};

use super::is_unclear;

impl Store {
    /// As [`Store::link`] for each of these objects, names and directories: what other nodes are asked for that, they are asked together.
    /// Each succeeds or fails by itself.
    pub fn link_all(&self, links: &[(ObjectId, ObjectId, &[u8])], epoch: u64) -> Vec<Result<()>> {
        let mut results = vec![Ok(()); links.len()];
        let mut asked = Vec::new();
        for (i, &(id, parent, name)) in links.iter().enumerate() {
            let away = self.entry_away(parent, name);
            let kind = self.stat(id).map(|inode| inode.kind());
            match (away, self.object_away(id), kind) {
                (Some(home), None, Ok(kind))
                    if name.len() <= NAME_MAX && self.offer_link(id, (parent, name)).is_ok() =>
                {
                    asked.push((i, home, Entry { id, kind }));
                }
                _ => results[i] = self.link(id, parent, name, epoch),
            }
        }
        let insert = |&(i, home, entry): &(usize, NodeId, Entry)| {
            let (_, parent, name) = links[i];
            (home, encode(&(parent, name, entry, true, epoch)))
        };
        let answers = self.ask_together(kind::INSERT, asked.iter().map(insert).collect());
        let mut held = Vec::new();
        for ((i, home, entry), answer) in asked.into_iter().zip(answers) {
            let (id, parent, name) = links[i];
            let there = answer.and_then(|head| decode::<Option<Entry>>(&head).ok_or(Errno::PROTO));
            if there == Ok(None) {
                let counted = self.count_offered(id, (parent, name));
                held.push((i, home, entry, counted.is_ok()));
                if let Err(e) = counted {
                    results[i] = self.withdraw_link(id, (parent, name)).and(Err(e));
                }
                continue;
            }
            results[i] = self
                .withdraw_link(id, (parent, name))
                .and_then(|()| match there {
                    Ok(_) => Err(Errno::EXIST),
                    // Others are at that name: we wait for them.
                    Err(Errno::AGAIN) => self.link(id, parent, name, epoch),
                    Err(e) => Err(e),
                });
        }
        let release = |&(i, home, entry, stays): &(usize, NodeId, Entry, bool)| {
            let (_, parent, name) = links[i];
            (home, encode(&(parent, name, entry, stays)))
        };
        let answers = self.ask_together(kind::RELEASE, held.iter().map(release).collect());
        for ((i, _, entry, stays), answer) in held.into_iter().zip(answers) {
            let (_, parent, name) = links[i];
            let released = match answer {
                Err(Errno::AGAIN) => self.release_entry((parent, name), entry, stays),
                answer => answer.map(|_| ()),
            };
            match released {
                // Its home finds out by asking.
                Err(e) if !is_unclear(e) && stays => results[i] = Err(e),
                _ => {}
            }
        }
        results
    }

    /// Asks nodes at once: their answers, encoded, in the same order.
    fn ask_together(&self, kind: u16, questions: Vec<(NodeId, Vec<u8>)>) -> Vec<Result<Vec<u8>>> {
        let asked: Vec<Question<'_>> = questions
            .iter()
            .map(|(node, head)| Question {
                node: *node,
                kind,
                head,
                bytes: Bytes::None,
            })
            .collect();
        let answers = match self.other_nodes() {
            // SAFETY: there are no bytes.
            Ok(others) if !asked.is_empty() => unsafe { others.ask_all(&asked) },
            Ok(_) => Vec::new(),
            Err(e) => vec![Err(e); asked.len()],
        };
        let heads = answers.into_iter().map(|told| told.map(|told| told.head));
        heads.collect()
    }
}
