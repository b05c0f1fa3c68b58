//! Records the use of files with declared controls, on any node.
//!
//! An open file description of such a file records its use in the lock table of the file's home
//! before it reads or changes the file. The home refuses a use that the controls forbid, or reports
//! it. The end of the description ends the use and, where the controls ask for that, laminates the
//! file.

use crate::peers::requests::request;
use crate::views::Declarations;
use forebay_controls::{Mutability, OnViolation, Parallelism};
use forebay_store::control_region::open_flag::LAMINATES;
use forebay_store::controls::{
    COUNTED, Change, Party, WRITES, check_word, declared, depends_on_size, is_last,
};
use forebay_store::locks::{LockType, Request, Sort};
use forebay_store::process::Critical;
use forebay_store::record::Inode;
use forebay_store::stripe_units::CHANGED;
use forebay_store::views::Parts;
use forebay_store::{ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> Declarations<'a> {
    /// Checks whether the controls of a striped file of any node permit a change, as
    /// `DeclaredControls::check_change` does for other files.
    pub(crate) fn check_striped(&self, index: u32, change: Change) -> Result<()> {
        let word = self.store().declared().controls(index);
        if word == 0 {
            return Ok(());
        }
        let judged = check_word(word, self.size_for(index, word)?, change);
        if judged.is_ok() || self.cluster.opens().remote_live(index).is_none() {
            return judged;
        }
        // Other controls may have been declared since this node stored `word`.
        let inode = self
            .cluster
            .namespace()
            .stat(self.store().content().live_id(index))?;
        if inode.controls != word {
            self.store()
                .objects()
                .live(index)
                .controls
                .store(inode.controls, Release);
        }
        check_word(inode.controls, inode.size, change)
    }

    /// Returns the size of an open file if checking a change against the controls in `word` needs
    /// it, else 0. (Finding the size of a striped file takes requests to other nodes, so it isn't
    /// done at each write.)
    ///
    /// # Errors
    /// As for [`crate::FileData::size`].
    pub fn size_for(&self, index: u32, word: u64) -> Result<u64> {
        if depends_on_size(word) {
            self.cluster.data().size(index)
        } else {
            Ok(0)
        }
    }

    /// Stores in the live entry the controls of another node's file, as the file's home reported
    /// them when the file was opened.
    pub fn note_controls(&self, index: u32, inode: &Inode) {
        if self.cluster.opens().remote_live(index).is_none() {
            return;
        }
        let live = self.store().objects().live(index);
        let known = live.edition.load(Acquire);
        if inode.edition == 0 && known == 0 {
            live.controls.store(inode.controls, Release);
            return;
        }
        let _critical = Critical::enter();
        let Ok(_lock) = self.store().objects().lock_live(index) else {
            // The live entry can't be locked. With an even edition, this node uses no copies; the
            // home refuses operations that the controls forbid.
            live.edition.store(known.next_multiple_of(2), Release);
            return;
        };
        // Replies of the home to several openers may arrive out of order: only the latest edition
        // is stored.
        if inode.edition >= live.edition.load(Relaxed) {
            live.controls.store(inode.controls, Release);
            live.edition.store(0, SeqCst);
            live.last_size.store(inode.size, SeqCst);
            if is_last(inode.edition) && self.store().content().live_id(index).stripe().is_some() {
                Parts::remember_locked(live, inode.size, inode.cuts);
            }
            live.edition.store(inode.edition, SeqCst);
        }
    }

    /// Makes the home laminate the object `id`, if that is due. Called when an open file
    /// description that may laminate the file has ended. If other nodes have parts, first truncates
    /// the file to its present size.
    ///
    /// # Errors
    /// ENOSPC: the home has no room, and the file isn't laminated. EHOSTDOWN: the home doesn't
    /// reply.
    pub(crate) fn laminate_written(&self, id: ObjectId, live: Option<u32>) -> Result<()> {
        let laminated = match self.cluster.remote_home(id) {
            Some(home) => self.cluster.ask(home, request::LAMINATE, &id),
            None => self.store().declared().laminate_here(id),
        };
        match live {
            Some(live) if laminated == Err(CHANGED) => self.cluster.stripes().seal(live),
            _ => laminated,
        }
    }

    /// Begins the use of a file with the controls `word` by a new open file description, before the
    /// description reads or changes the file. The use ends with the description.
    ///
    /// # Errors
    /// EBUSY: the file is exclusive, and another party has it open. EPERM: the file is laminated,
    /// and `writes` is true. If the controls only report violations, the function returns these two
    /// as `Ok(Some(errno))`.
    pub fn begin_use(
        &self,
        open: u32,
        word: u64,
        party: Party,
        writes: bool,
    ) -> Result<Option<Errno>> {
        let (declared, _) = declared(word);
        let controls = declared.resolve();
        let counted = word & COUNTED != 0;
        let laminates = writes && (controls.mutability == Mutability::Immutable || counted);
        let want = match controls.parallelism {
            Parallelism::Process | Parallelism::Node => LockType::Exclusive,
            Parallelism::Shared if laminates || counted => LockType::Shared,
            Parallelism::Shared => return Ok(None),
        };
        let o = self.store().objects().open_file(open);
        let request = Request {
            object: ObjectId(o.id.load(Acquire)),
            owner: self.store().locks().lock_owner_description(open),
            sort: Sort::Use,
            want,
            start: party,
            end: if writes { WRITES } else { 0 },
        };
        let mut begun = self.cluster.locks().lock(&request, false);
        if begun == Err(Errno::AGAIN) {
            // The conflicting use may be that of a killed process.
            self.store().recovery().reap()?;
            begun = self.cluster.locks().lock(&request, false);
        }
        let report = controls.on_violation == OnViolation::Report;
        // A violation that is only reported doesn't keep the description from laminating the file.
        if laminates && (begun.is_ok() || report && begun == Err(Errno::AGAIN)) {
            o.flags.fetch_or(LAMINATES, AcqRel);
        }
        match begun {
            Ok(()) => Ok(None),
            Err(e @ (Errno::AGAIN | Errno::PERM)) => {
                let e = if e == Errno::AGAIN { Errno::BUSY } else { e };
                if report { Ok(Some(e)) } else { Err(e) }
            }
            Err(e) => Err(e),
        }
    }
}
