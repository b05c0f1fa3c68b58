//! Declares controls for a file that other processes have open, so that the controls apply to these
//! processes, too.
//!
//! While no controls are declared for a file, its uses by processes aren't recorded. Before
//! controls are declared for which the uses matter (`exclusive`, `append`, `immutable`), the uses
//! of the file are counted on all nodes:
//! 1. The home marks the file's live entry as [`COUNTED`]. From then on, a process that opens the
//!    file records its use, as if controls were declared. If no process has the file open, the
//!    controls are declared at once.
//! 2. Each node records the uses of its open file descriptions at the home
//!    (`Declarations::count_here`). A thread that is opening the file either has made its
//!    description already, which is found; or it sees afterwards that uses were counted, and reads
//!    the controls again ([`DeclaredControls::counts`]). Uses of dead processes aren't counted.
//! 3. The home, holding the locks of the file, checks whether the uses permit the controls. If so,
//!    it declares them.
//!
//! If the declaring process is killed before step 3, no controls are declared. The recorded uses
//! stay correct, and end with their descriptions. If the file was closed before step 3 and its live
//! entry freed, uses aren't recorded any more, and the declaration begins again.
//!
//! A mapping keeps its open file description in use. Stores through a mapping of the medium's pages
//! can't be detected: so a file that may only grow must have no writable mapping. So step 3
//! searches for
//! too, since parts of striped files are mapped there; if a node finds a writable mapping, the
//! controls are set back. A process that maps the file first records the mapping, and then reads
//! the controls.

use crate::codec::{List, Wire};
use crate::control_region::{MAX_OPEN, Open};
use crate::declared::{COUNTED, User, declared, is_kept, kept_for};
use crate::process::Critical;
use crate::views::DeclaredControls;
use crate::{ObjectId, SetAttr};
use forebay_controls::{Controls, Mutability, OnViolation, Parallelism};
use forebay_runtime::atomics::{Ordering::*, fence};
use rustix::io::{Errno, Result};

/// Maximum number of times that a declaration is begun.
pub const ATTEMPTS: u32 = 100;

/// The outcome of a declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclareOutcome {
    /// Whether the declaration was refused because of present users of the file.
    pub refused: bool,
    /// The users that conflict, since the controls permit only one: all parties, or (for
    /// `exclusive(node)`) one party of each node.
    pub open: Vec<User>,
    /// Processes that can change the file through mappings, although it should only grow.
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

/// Whether the present users of a file matter when these controls are declared for it.
pub fn concerns_users(controls: &Controls) -> bool {
    controls.parallelism != Parallelism::Shared || controls.mutability != Mutability::Overwrite
}

impl DeclaredControls<'_> {
    /// Number of times the users of files were counted on this node. Another node's reply about the
    /// controls of a file may be outdated if users were counted since the request.
    pub fn counts(&self) -> u32 {
        self.store.control.header().counts.load(SeqCst)
    }

    /// Carries out the first step, for a file of this node. Returns the nodes other than this one
    /// that have it open. None if no process has it open: then the controls were declared.
    pub fn begin_declaring_here(&self, id: ObjectId, word: u64) -> Result<Option<Vec<u32>>> {
        let (index, held) = self.store.objects().live_acquire_here(id)?;
        let begun = self.begin_declaring_of(index, id, word);
        drop(held);
        self.store.objects().live_release(index).and(begun)
    }

    fn begin_declaring_of(&self, index: u32, id: ObjectId, word: u64) -> Result<Option<Vec<u32>>> {
        let live = self.store.objects().live(index);
        {
            let _critical = Critical::enter();
            let _lock = self.store.objects().lock_live(index)?;
            live.controls.fetch_or(COUNTED, SeqCst);
        }
        fence(SeqCst);
        // A process that opens the file becomes a user of the live entry before it reads the
        // controls.
        if live.refs.load(SeqCst) == 1
            && let Some(outcome) = self.end_declaring_here(id, word)?
            && !outcome.refused
        {
            return Ok(None);
        }
        let end = self.store.control.header().free_open.end(MAX_OPEN);
        let its = (0..end)
            .map(|i| self.store.objects().open_file(i))
            .filter(|o| o.refs.load(Acquire) > 0 && o.id.load(SeqCst) == id.0);
        let mut nodes: Vec<u32> = its
            .filter_map(|o| kept_for(o.party.load(Acquire)))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Some(nodes))
    }

    /// Returns the daemons, living or dead, whose open file descriptions keep files open for other
    /// nodes.
    pub fn keepers(&self) -> Vec<u32> {
        let end = self.store.control.header().free_open.end(MAX_OPEN);
        let is_keeper = |o: &Open| o.refs.load(Acquire) > 0 && is_kept(o.party.load(Acquire));
        let mut owners: Vec<u32> = (0..end)
            .filter(|&i| is_keeper(self.store.objects().open_file(i)))
            .map(|i| self.store.control.open_owner(i).load(Acquire))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    /// Carries out the third step, for a file of this node. None if uses aren't recorded any more:
    /// then the declaration must be begun again.
    pub fn end_declaring_here(&self, id: ObjectId, word: u64) -> Result<Option<DeclareOutcome>> {
        let controls = declared(word).0.resolve();
        let refuse = controls.on_violation == OnViolation::Refuse;
        let set = SetAttr {
            controls: Some(word),
            ..SetAttr::default()
        };
        let mut result = DeclareOutcome::default();
        let (mut lost, mut before) = (false, None);
        let done = self.store.names().set_attr_judged(id, &set, |live| {
            let is_counted =
                |l: &&crate::control_region::Live| l.controls.load(Acquire) & COUNTED != 0;
            let Some(live) = live.filter(is_counted) else {
                lost = true;
                return Err(Errno::STALE);
            };
            {
                let locks = self.store.locks().locks_of(id)?;
                result.open = beside_each_other(locks.users(), controls.parallelism);
                if refuse && !result.open.is_empty() {
                    result.refused = true;
                    return Err(Errno::BUSY);
                }
                // From here on, new uses are checked against the new controls.
                before = Some(live.controls.swap(word | COUNTED, SeqCst));
            }
            if controls.mutability == Mutability::Append {
                // A process that maps the file first records the mapping, and then reads the
                // controls.
                fence(SeqCst);
                let node = self.store.peers().node().0;
                let user = |party| User { node, party };
                result.mapped = self
                    .store
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
            // Restores the old controls, unless another process has declared others meanwhile.
            let new = word | COUNTED;
            self.store.objects().with_live(id, |index| {
                let place = &self.store.objects().live(index).controls;
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

/// Returns those of `users` that must not have the file open at the same time: none, or at least
/// two.
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
