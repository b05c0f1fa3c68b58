//! Declaring controls of a file that others may have open, on whatever nodes, in three steps.
//!
//! The home begins and says which nodes have the file open. Each of those notes the uses of its
//! open descriptions at the home. The home ends: it refuses if a use is in the way, otherwise the
//! controls hold. `store/src/controls/declare.rs` has what the home does in each step.

use crate::Cluster;
use crate::peers::messages::List;
use crate::peers::requests::request;
use forebay_controls::{Declared, Mutability, OnViolation, Parallelism};
use forebay_media::atomics::{Ordering::*, fence};
use forebay_store::control::MAX_OPEN;
use forebay_store::control::open_flag::LAMINATES;
use forebay_store::controls::{
    ATTEMPTS, COUNTED, DeclareOutcome, Party, THERE, User, WRITES, concerns_users, declared,
    is_kept, settled,
};
use forebay_store::locks::{LockType, Request, Sort};
use forebay_store::{NodeId, ObjectId, Result, SetAttr};
use rustix::io::Errno;

impl<'a> Cluster<'a> {
    /// Says this of a file from now on, wherever it lies and whoever has it open; what was refused,
    /// or is only to be reported.
    ///
    /// # Errors
    /// Those of [`Cluster::set_attr`]; EHOSTDOWN: a node that has it open can't be asked; EBUSY: it
    /// is opened and closed all the time; ENOLCK.
    pub fn declare(&self, id: ObjectId, declared: Declared) -> Result<DeclareOutcome> {
        let (controls, word) = (declared.resolve(), declared.bits());
        if !concerns_users(&controls) {
            let set = SetAttr {
                controls: Some(word),
                ..SetAttr::default()
            };
            return self.set_attr(id, &set).map(|()| DeclareOutcome::default());
        }
        let home = self.object_away(id);
        for _ in 0..ATTEMPTS {
            let begun = match home {
                Some(home) => {
                    let asked = self.ask(home, request::BEGIN_SAYING, &(id, word))?;
                    asked.map(|List(nodes)| nodes)
                }
                None => self.declared().begin_saying_here(id, word)?,
            };
            let Some(known) = begun else {
                return Ok(DeclareOutcome::default());
            };
            let before = self.stat(id)?.controls & !COUNTED;
            let mapped = self.count_everywhere((id, word, false), &known)?;
            let grows = controls.mutability == Mutability::Append;
            let refused = controls.on_violation == OnViolation::Refuse;
            if grows && refused && !mapped.is_empty() {
                return Ok(DeclareOutcome {
                    refused,
                    mapped,
                    ..DeclareOutcome::default()
                });
            }
            let said = match home {
                Some(home) => self.ask(home, request::END_SAYING, &(id, word))?,
                None => self.declared().end_saying_here(id, word)?,
            };
            let Some(mut said): Option<DeclareOutcome> = said else {
                continue;
            };
            if !grows || said.refused {
                return Ok(said);
            }
            said.mapped.extend(mapped);
            if self.foreign.is_some() {
                let told = self.count_everywhere((id, word, true), &known);
                let new = told.as_ref().map_or(true, |new| !new.is_empty());
                if refused && new {
                    let set = SetAttr {
                        controls: Some(before),
                        ..SetAttr::default()
                    };
                    self.set_attr(id, &set)?;
                    said.refused = true;
                }
                said.mapped.extend(told?);
            }
            said.mapped.sort_unstable();
            said.mapped.dedup();
            return Ok(said);
        }
        Err(Errno::BUSY)
    }

    /// The second step, or with true what is done behind the third; the processes that map it for
    /// writing. `known`: nodes that have to be asked; others may be out of reach.
    fn count_everywhere(
        &self,
        question: (ObjectId, u64, bool),
        known: &[u32],
    ) -> Result<Vec<User>> {
        let me = self.names().node();
        let of = |node: NodeId| {
            move |party: Party| User {
                node: node.0,
                party,
            }
        };
        let (id, word, is_said) = question;
        let here = self.count_here(id, word, is_said)?;
        let mut mapped: Vec<User> = here.into_iter().map(of(me)).collect();
        let Some(elsewhere) = self.peers() else {
            return Ok(mapped);
        };
        let others = elsewhere.nodes().iter().copied().filter(|n| *n != me);
        let others: Vec<NodeId> = others.collect();
        let answers = self.ask_each(&others, request::COUNT_USES, &question);
        for (&node, told) in others.iter().zip(answers) {
            let List(parties) = match told {
                Ok(parties) => parties,
                // Who isn't there has nothing open.
                Err(Errno::HOSTDOWN) if !known.contains(&node.0) => continue,
                // Others are at it.
                Err(Errno::AGAIN) => self.ask(node, request::COUNT_USES, &question)?,
                Err(e) => return Err(e),
            };
            mapped.extend(parties.into_iter().map(of(node)));
        }
        Ok(mapped)
    }

    /// The second step on this node: the home is told of all uses, as far as that matters for what
    /// is to be said. Returns the processes of this node that map the file for writing. With
    /// `is_said`, this node goes by the word from now on.
    pub(crate) fn count_here(&self, id: ObjectId, word: u64, is_said: bool) -> Result<Vec<Party>> {
        // Not a daemon: the other nodes need a moment to tell the next one what they have open.
        self.recovery().reap_but(&self.declared().keepers())?;
        if is_said && self.object_away(id).is_some() {
            let note = |index| {
                self.objects()
                    .live(index)
                    .controls
                    .store(word | COUNTED, SeqCst)
            };
            self.objects().with_live(id, note)?;
        }
        let header = self.control.header();
        header.counts.fetch_add(1, SeqCst);
        fence(SeqCst);
        let controls = declared(word).0.resolve();
        let alone = controls.parallelism != Parallelism::Shared;
        let immutable = controls.mutability == Mutability::Immutable;
        for index in 0..header.free_open.end(MAX_OPEN) {
            let o = self.objects().open_file(index);
            if o.id.load(SeqCst) != id.0 || !alone && !immutable {
                continue;
            }
            let _section = self.section()?;
            // It doesn't end while it is counted; if it would have, it does so here.
            let more = |n: u32| (n > 0).then_some(n + 1);
            if o.refs.fetch_update(AcqRel, Acquire, more).is_err() {
                continue;
            }
            let counted = match o.id.load(Acquire) == id.0 {
                true => self.count_one(index, id, alone, immutable),
                false => Ok(()),
            };
            // What can't be written back is tried again when all is put in order.
            let _ = self.objects().open_release(index);
            counted?;
        }
        Ok(self.mappings().writable_mappings(id))
    }

    fn count_one(&self, index: u32, id: ObjectId, alone: bool, immutable: bool) -> Result<()> {
        let o = self.objects().open_file(index);
        let (flags, party) = (o.flags.load(Acquire) as i32, o.party.load(Acquire));
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if flags & libc::O_PATH != 0 || is_kept(party) || !alone && !writes {
            return Ok(());
        }
        if immutable && writes {
            o.flags.fetch_or(LAMINATES, AcqRel);
        }
        let request = Request {
            object: id,
            owner: self.locks().lock_owner_description(index),
            sort: Sort::Use,
            want: if alone {
                LockType::Exclusive
            } else {
                LockType::Shared
            },
            start: settled(party),
            end: THERE | if writes { WRITES } else { 0 },
        };
        self.lock(&request, false)
    }
}
