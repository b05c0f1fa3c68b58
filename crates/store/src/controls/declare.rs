//! Saying something of a file that others have open, so that it holds for them, too.
//!
//! As long as nothing was said of a file, nobody counts who has it open. Before something is said
//! for which that matters (`exclusive`, `append`, `immutable`), they are counted, on all nodes:
//! 1. The home notes in the live entry of the file that uses are [`COUNTED`]. Whoever opens the
//!    file from then on notes his use, as if something had been said. If nobody has it open, it is
//!    said at once, and that is all.
//! 2. Each node notes the uses of its open file descriptions at the home (`Cluster::count_here`).
//!    Who is opening the file just then has either made his description before, and is found, or
//!    sees behind that that there was a count, and looks again what was said ([`Store::counts`]).
//!    Who has died doesn't count.
//! 3. The home, with the locks of the file held, looks whether what is to be said holds, and says
//!    it, or doesn't.
//!
//! Whoever is killed in between leaves uses that are true, and end with their descriptions; and
//! nothing said. Should the file have been closed and forgotten in between, so that uses aren't
//! counted any more, it begins again.
//!
//! Mappings keep their descriptions. What is stored through them is seen by nobody where they show
//! the pages of the medium: of a file that is only to grow there must be none that can be written.
//! So the third step looks for them once more behind the word; then all nodes are told the word and
//! do the same, since parts of striped files are mapped there, and if there is one by now, it is
//! taken back. Who maps it notes that, and looks at the word behind that.

use crate::codec::{List, Wire};
use crate::control::{MAX_OPEN, Open};
use crate::declared::{COUNTED, User, declared, is_kept, kept_for};
use crate::process::Critical;
use crate::views::DeclaredControls;
use crate::{ObjectId, SetAttr};
use forebay_controls::{Controls, Mutability, OnViolation, Parallelism};
use forebay_media::atomics::{Ordering::*, fence};
use rustix::io::{Errno, Result};

/// How often it is begun again.
pub const ATTEMPTS: u32 = 100;

/// What has become of something that was to be said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclareOutcome {
    /// It wasn't: others use the file so that it wouldn't hold.
    pub refused: bool,
    /// More than one of those who should be alone: parties, or (of `exclusive(node)`) one of each
    /// node.
    pub open: Vec<User>,
    /// Processes that can change what should only grow through mappings.
    pub mapped: Vec<User>,
}

impl Wire for DeclareOutcome {
    type Owned = DeclareOutcome;

    fn put(&self, to: &mut Vec<u8>) {
        self.refused.put(to);
        (self.open.len() as u32).put(to);
        self.open.iter().for_each(|user| user.put(to));
        (self.mapped.len() as u32).put(to);
        self.mapped.iter().for_each(|user| user.put(to));
    }
    fn take(from: &mut &[u8]) -> Option<DeclareOutcome> {
        let (refused, List(open), List(mapped)) = Wire::take(from)?;
        Some(DeclareOutcome {
            refused,
            open,
            mapped,
        })
    }
}

/// Whether it matters who has a file open when this is said of it.
pub fn concerns_users(controls: &Controls) -> bool {
    controls.parallelism != Parallelism::Shared || controls.mutability != Mutability::Overwrite
}

impl DeclaredControls<'_> {
    /// How often those who have files open were counted on this node. What is asked about a file of
    /// another node may not be so any more if there was a count since before that.
    pub fn counts(&self) -> u32 {
        self.control.header().counts.load(SeqCst)
    }

    /// The first step, for a file of this node: the nodes that are known to have it open, besides
    /// this one. None: nobody has, and it was said.
    pub fn begin_saying_here(&self, id: ObjectId, word: u64) -> Result<Option<Vec<u32>>> {
        let (index, held) = self.objects().live_acquire_here(id)?;
        let begun = self.begin_saying_of(index, id, word);
        drop(held);
        self.objects().live_release(index).and(begun)
    }

    fn begin_saying_of(&self, index: u32, id: ObjectId, word: u64) -> Result<Option<Vec<u32>>> {
        let live = self.objects().live(index);
        {
            let _critical = Critical::enter();
            let _lock = self.objects().lock_live(index)?;
            live.controls.fetch_or(COUNTED, SeqCst);
        }
        fence(SeqCst);
        // Who opens it is a user of the entry before he looks at the word.
        if live.refs.load(SeqCst) == 1
            && let Some(said) = self.end_saying_here(id, word)?
            && !said.refused
        {
            return Ok(None);
        }
        let end = self.control.header().free_open.end(MAX_OPEN);
        let its = (0..end)
            .map(|i| self.objects().open_file(i))
            .filter(|o| o.refs.load(Acquire) > 0 && o.id.load(SeqCst) == id.0);
        let mut nodes: Vec<u32> = its
            .filter_map(|o| kept_for(o.party.load(Acquire)))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Some(nodes))
    }

    /// Who keeps files open for other nodes, or has until he died.
    pub fn keepers(&self) -> Vec<u32> {
        let end = self.control.header().free_open.end(MAX_OPEN);
        let is_keeper = |o: &Open| o.refs.load(Acquire) > 0 && is_kept(o.party.load(Acquire));
        let mut owners: Vec<u32> = (0..end)
            .filter(|&i| is_keeper(self.objects().open_file(i)))
            .map(|i| self.control.open_owner(i).load(Acquire))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// The third step, for a file of this node. None: uses aren't counted any more.
    pub fn end_saying_here(&self, id: ObjectId, word: u64) -> Result<Option<DeclareOutcome>> {
        let controls = declared(word).0.resolve();
        let refuse = controls.on_violation == OnViolation::Refuse;
        let set = SetAttr {
            controls: Some(word),
            ..SetAttr::default()
        };
        let mut result = DeclareOutcome::default();
        let (mut lost, mut before) = (false, None);
        let done = self.names().set_attr_judged(id, &set, |live| {
            let is_counted = |l: &&crate::control::Live| l.controls.load(Acquire) & COUNTED != 0;
            let Some(live) = live.filter(is_counted) else {
                lost = true;
                return Err(Errno::STALE);
            };
            {
                let locks = self.locks().locks_of(id)?;
                result.open = beside_each_other(locks.users(), controls.parallelism);
                if refuse && !result.open.is_empty() {
                    result.refused = true;
                    return Err(Errno::BUSY);
                }
                // From here on, uses are judged by it.
                before = Some(live.controls.swap(word | COUNTED, SeqCst));
            }
            if controls.mutability == Mutability::Append {
                // Who maps it looks at the word behind noting that.
                fence(SeqCst);
                let node = self.names().node().0;
                let user = |party| User { node, party };
                result.mapped = self
                    .mappings()
                    .writable_mappings(id)
                    .into_iter()
                    .map(user)
                    .collect();
                if refuse && !result.mapped.is_empty() {
                    result.refused = true;
                    return Err(Errno::BUSY);
                }
            }
            Ok(())
        });
        let Err(e) = done else {
            return Ok(Some(result));
        };
        if let Some(before) = before {
            // Nobody else has said anything meanwhile, or that stays.
            let new = word | COUNTED;
            self.objects().with_live(id, |index| {
                let place = &self.objects().live(index).controls;
                _ = place.compare_exchange(new, before, SeqCst, Relaxed);
            })?;
        }
        match (lost, result.refused) {
            (true, _) => Ok(None),
            (_, true) => Ok(Some(result)),
            _ => Err(e),
        }
    }
}

/// Of these users of a file, those who mustn't have it open at the same time: none, or several.
fn beside_each_other(mut users: Vec<User>, parallelism: Parallelism) -> Vec<User> {
    users.sort_unstable();
    match parallelism {
        Parallelism::Shared => users.clear(),
        Parallelism::Process => users.dedup(),
        Parallelism::Node => users.dedup_by_key(|user| user.node),
    }
    if users.len() < 2 {
        users.clear();
    }
    users
}
