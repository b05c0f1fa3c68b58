//! Declares controls for a file that processes on any nodes may have open, in three steps.
//!
//! 1. The home marks the file, and returns the nodes that have it open.
//! 2. Each of these nodes records at the home how its open file descriptions use the file.
//! 3. The home refuses the declaration if a recorded use conflicts with it; otherwise the home sets
//!    the controls.
//!
//! `store/src/controls/declare.rs` contains the home's side of each step.

use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::views::Declarations;
use forebay_controls::{Declared, Mutability, OnViolation, Parallelism};
use forebay_runtime::atomics::{Ordering::*, fence};
use forebay_store::control_region::MAX_OPEN;
use forebay_store::control_region::open_flag::LAMINATES;
use forebay_store::controls::{
    ATTEMPTS, COUNTED, DeclareOutcome, Party, THERE, User, WRITES, concerns_users, declared,
    is_kept, settled,
};
use forebay_store::locks::{LockType, Request, Sort};
use forebay_store::{NodeId, ObjectId, Result, SetAttr};
use rustix::io::Errno;

impl<'a> Declarations<'a> {
    /// Declares these controls for a file on any node. Any processes may have the file open.
    /// Returns whether the declaration was refused, and the conflicting uses.
    ///
    /// # Errors
    /// Those of [`crate::Namespace::set_attr`]; EHOSTDOWN if a node that has the file open can't be
    /// reached; EBUSY if the file was opened during each of several attempts; ENOLCK.
    pub fn declare(&self, id: ObjectId, declared: Declared) -> Result<DeclareOutcome> {
        let (controls, word) = (declared.resolve(), declared.bits());
        if !concerns_users(&controls) {
            let set = SetAttr {
                controls: Some(word),
                ..SetAttr::default()
            };
            return self
                .cluster
                .namespace()
                .set_attr(id, &set)
                .map(|()| DeclareOutcome::default());
        }
        let home = self.cluster.remote_home(id);
        for _ in 0..ATTEMPTS {
            let begun = match home {
                Some(home) => {
                    let asked = self
                        .cluster
                        .ask(home, request::BEGIN_DECLARING, &(id, word))?;
                    asked.map(|List(nodes)| nodes)
                }
                None => self.store().declared().begin_declaring_here(id, word)?,
            };
            let Some(known) = begun else {
                return Ok(DeclareOutcome::default());
            };
            let before = self.cluster.namespace().stat(id)?.controls & !COUNTED;
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
            let outcome = match home {
                Some(home) => self
                    .cluster
                    .ask(home, request::END_DECLARING, &(id, word))?,
                None => self.store().declared().end_declaring_here(id, word)?,
            };
            let Some(mut outcome): Option<DeclareOutcome> = outcome else {
                continue;
            };
            if !grows || outcome.refused {
                return Ok(outcome);
            }
            outcome.mapped.extend(mapped);
            if self.store().remote.is_some() {
                let reply = self.count_everywhere((id, word, true), &known);
                let new = reply.as_ref().map_or(true, |new| !new.is_empty());
                if refused && new {
                    let set = SetAttr {
                        controls: Some(before),
                        ..SetAttr::default()
                    };
                    self.cluster.namespace().set_attr(id, &set)?;
                    outcome.refused = true;
                }
                outcome.mapped.extend(reply?);
            }
            outcome.mapped.sort_unstable();
            outcome.mapped.dedup();
            return Ok(outcome);
        }
        Err(Errno::BUSY)
    }

    /// Makes all nodes record their uses of the file at its home: the second step, or, if the flag
    /// in `arguments` is set, the check that follows the third step. Returns the processes that map
    /// the file for writing. `known`: nodes that must be reached; others may be unreachable.
    fn count_everywhere(
        &self,
        arguments: (ObjectId, u64, bool),
        known: &[u32],
    ) -> Result<Vec<User>> {
        let me = self.store().peers().node();
        let of = |node: NodeId| {
            move |party: Party| User {
                node: node.0,
                party,
            }
        };
        let (id, word, is_declared) = arguments;
        let here = self.count_here(id, word, is_declared)?;
        let mut mapped: Vec<User> = here.into_iter().map(of(me)).collect();
        let Some(peers) = self.cluster.peers() else {
            return Ok(mapped);
        };
        let others = peers.nodes().iter().copied().filter(|n| *n != me);
        let others: Vec<NodeId> = others.collect();
        let answers = self
            .cluster
            .ask_each(&others, request::COUNT_USES, &arguments);
        for (&node, reply) in others.iter().zip(answers) {
            let List(parties) = match reply {
                Ok(parties) => parties,
                // An unreachable node that isn't among `known` doesn't have the file open.
                Err(Errno::HOSTDOWN) if !known.contains(&node.0) => continue,
                // An operation in progress at `node` conflicts: `ask` waits and sends the request
                // again.
                Err(Errno::AGAIN) => self.cluster.ask(node, request::COUNT_USES, &arguments)?,
                Err(e) => return Err(e),
            };
            mapped.extend(parties.into_iter().map(of(node)));
        }
        Ok(mapped)
    }

    /// Carries out the second step on this node: records at the home all uses that matter for the
    /// declaration. Returns the processes of this node that map the file for writing. With
    /// `is_declared`, this node applies the new controls from now on.
    pub(crate) fn count_here(
        &self,
        id: ObjectId,
        word: u64,
        is_declared: bool,
    ) -> Result<Vec<Party>> {
        // Files that dead daemons keep open stay open: the other nodes first have to report to the
        // next daemon which files they have open.
        self.store()
            .recovery()
            .reap_but(&self.store().declared().keepers())?;
        if is_declared && self.cluster.remote_home(id).is_some() {
            let note = |index| {
                self.store()
                    .objects()
                    .live(index)
                    .controls
                    .store(word | COUNTED, SeqCst)
            };
            self.store().objects().with_live(id, note)?;
        }
        let header = self.store().control.header();
        header.counts.fetch_add(1, SeqCst);
        fence(SeqCst);
        let controls = declared(word).0.resolve();
        let alone = controls.parallelism != Parallelism::Shared;
        let immutable = controls.mutability == Mutability::Immutable;
        for index in 0..header.free_open.end(MAX_OPEN) {
            let o = self.store().objects().open_file(index);
            if o.id.load(SeqCst) != id.0 || !alone && !immutable {
                continue;
            }
            let _section = self.store().section()?;
            // A reference keeps the description open while its use is recorded. If all other
            // references are released meanwhile, releasing this one closes the description.
            let more = |n: u32| (n > 0).then_some(n + 1);
            if o.refs.fetch_update(AcqRel, Acquire, more).is_err() {
                continue;
            }
            let counted = if o.id.load(Acquire) == id.0 {
                self.count_one(index, id, alone, immutable)
            } else {
                Ok(())
            };
            // Records that can't be written back are tried again by the next repair.
            let _ = self.store().objects().open_release(index);
            counted?;
        }
        Ok(self.store().mappings().writable_mappings(id))
    }

    fn count_one(&self, index: u32, id: ObjectId, alone: bool, immutable: bool) -> Result<()> {
        let o = self.store().objects().open_file(index);
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
            owner: self.store().locks().lock_owner_description(index),
            sort: Sort::Use,
            want: if alone {
                LockType::Exclusive
            } else {
                LockType::Shared
            },
            start: settled(party),
            end: THERE | if writes { WRITES } else { 0 },
        };
        self.cluster.locks().lock(&request, false)
    }
}
