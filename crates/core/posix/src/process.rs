//! The pool's state of this process: its process slot. The slot's area has the working directory
//! and umask, beside descriptors and mappings.
//!
//! A process takes a slot when it first needs one. A child's slot is filled before the child begins
//! ([`Process::prepare_child`]): a forked child adopts the slot ([`Process::adopt`]); a vfork child
//! runs in its parent's memory, and its thread *borrows* the slot ([`Process::borrow`]); the next
//! program after exec resumes it ([`Process::resume`]).

use crate::Fs;
use crate::thread_fs::{self, ThreadFs};
use forebay_store::control_region::MAX_PROCESSES;
use forebay_store::lending;
use forebay_store::process as slots;
use forebay_store::{Inode, ObjectId, Result, Store, now};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Id of the working directory that was last entered (0: none), and its parent, mode and owner
/// (uid << 32 | gid) at that time.
static ENTERED: AtomicU64 = AtomicU64::new(0);
static ENTERED_FROM: AtomicU64 = AtomicU64::new(0);
static ENTERED_MODE: AtomicU32 = AtomicU32::new(0);
static ENTERED_OWNER: AtomicU64 = AtomicU64::new(0);

/// This process's slot in the pool; see the module.
#[derive(Clone, Copy)]
pub struct Process<'a>(pub(crate) &'a Store);

impl Fs {
    /// This process's slot in the pool.
    #[inline]
    pub fn process(&self) -> Process<'_> {
        Process(self.store())
    }
}

impl Process<'_> {
    /// Whether this process has a slot.
    pub fn is_attached(self) -> bool {
        self.0.attachment.is_attached()
    }

    /// Takes a slot, unless the process has one. Returns its number.
    ///
    /// # Errors
    /// EAGAIN if all are in use, ENOSPC.
    pub fn attach(self) -> Result<u32> {
        self.0.area()?;
        self.0.process_slot()
    }

    /// The calling thread's own [`ThreadFs`], if it has one. A vfork child has none, and uses its
    /// process's working directory and umask.
    #[inline]
    fn own_fs(self) -> Option<&'static ThreadFs> {
        if thread_fs::any() && lending::lent().is_none() {
            thread_fs::current()
        } else {
            None
        }
    }

    /// The working directory, if it is recorded as a directory of the pool.
    #[inline]
    pub fn working_dir(self) -> Option<ObjectId> {
        let area = self.0.area().ok()?;
        let id = self
            .own_fs()
            .map_or(&area.cwd, |own| &own.cwd)
            .load(Acquire);
        (id != 0).then_some(ObjectId(id))
    }

    /// Records the working directory (None: it isn't in the pool). Returns the previous working
    /// directory.
    ///
    /// # Errors
    /// As for [`Process::attach`].
    pub fn note_working_dir(self, dir: Option<ObjectId>) -> Result<Option<ObjectId>> {
        let area = self.0.area()?;
        let cwd = self.own_fs().map_or(&area.cwd, |own| &own.cwd);
        let before = cwd.swap(dir.map_or(0, |d| d.0), AcqRel);
        Ok((before != 0).then_some(ObjectId(before)))
    }

    /// The attributes of the working directory `dir` at the time when this process, or its parent
    /// by fork, entered it. Times are now. A removed directory has no record.
    pub(crate) fn entered(self, dir: ObjectId) -> Option<Inode> {
        if ENTERED.load(Acquire) != dir.0 {
            return None;
        }
        let owner = ENTERED_OWNER.load(Acquire);
        Some(Inode {
            mode: ENTERED_MODE.load(Acquire),
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            parent: ENTERED_FROM.load(Acquire),
            ..Inode::made_at(now())
        })
    }

    /// Records the attributes of the new working directory `dir`.
    ///
    /// # Errors
    /// ENOENT if the directory was removed and isn't in use.
    pub fn note_entered(self, dir: ObjectId, inode: Result<Inode>) -> Result<()> {
        let inode = match inode {
            Err(Errno::NOENT) => self.removed_dir(dir)?.inode,
            inode => inode?,
        };
        if ENTERED.load(Acquire) != dir.0 {
            self.let_go_of_removed();
        }
        ENTERED_FROM.store(inode.parent, Release);
        ENTERED_MODE.store(inode.mode, Release);
        ENTERED_OWNER.store(u64::from(inode.uid) << 32 | u64::from(inode.gid), Release);
        ENTERED.store(dir.0, Release);
        Ok(())
    }

    /// The umask, if it is recorded.
    pub fn umask(self) -> Option<u32> {
        let area = self.0.area().ok()?;
        let umask = self.own_fs().map_or(&area.umask, |own| &own.umask);
        umask.load(Acquire).checked_sub(1)
    }

    /// Records the umask, if a slot is available.
    pub fn note_umask(self, mask: u32) {
        if let Ok(area) = self.0.area() {
            let umask = self.own_fs().map_or(&area.umask, |own| &own.umask);
            debug_assert!(mask <= 0o777, "a umask has permission bits only: {mask:o}");
            umask.store(mask + 1, Release);
        }
    }

    /// Gives the calling thread its own working directory and umask from now on, in `own`. Both
    /// begin as copies of those that the thread has now.
    pub fn begin_own_fs(self, own: &'static ThreadFs) {
        let cwd = self.working_dir().map_or(0, |dir| dir.0);
        thread_fs::begin(own, cwd, self.umask().map_or(0, |mask| mask + 1));
    }

    /// Makes the next program after exec get the working directory and umask of the calling thread.
    /// Returns those of the process, for [`Self::take_back`] if the exec fails; None if the thread
    /// has none of its own.
    pub fn hand_on_thread_fs(self) -> Option<(u64, u32)> {
        let own = self.own_fs()?;
        let area = self.0.area().ok()?;
        Some((
            area.cwd.swap(own.cwd.load(Acquire), AcqRel),
            area.umask.swap(own.umask.load(Acquire), AcqRel),
        ))
    }

    /// Restores, after a failed exec, the working directory and umask that
    /// [`Self::hand_on_thread_fs`] has returned.
    pub fn take_back(self, (cwd, umask): (u64, u32)) {
        if let Ok(area) = self.0.area() {
            area.cwd.store(cwd, Release);
            area.umask.store(umask, Release);
        }
    }

    /// Opens now all files of the node that are otherwise opened when they are first needed.
    ///
    /// # Errors
    /// Errors of open.
    pub fn open_all(self) -> Result<()> {
        self.0.open_all()
    }

    /// Opens all of the node's files but the records, as [`Process::open_all`] does.
    ///
    /// # Errors
    /// Errors of open.
    pub fn open_files(self) -> Result<()> {
        self.0.open_files()
    }

    /// The records that this process has open, as a set of shards: bit n for shard n.
    pub fn open_records(self) -> u64 {
        self.0.files.open()
    }

    /// Closes, in a vfork child, the records that aren't in `kept`.
    pub fn close_records(self, kept: u64) {
        self.0.files.close_but(kept);
    }

    /// Treats records that aren't in `kept` as closed. A vfork child in this process's memory
    /// opened them, and their descriptors ended with the child. Called in the parent.
    pub fn forget_records(self, kept: u64) {
        self.0.files.forget_but(kept);
    }

    /// Reserves a slot for a child, and copies descriptors, mappings, working directory and umask
    /// into it. Returns the identity of the reserved slot. For a child that shares this process's
    /// memory, mappings are copied only so that their files stay open if this process dies before
    /// the child.
    ///
    /// # Errors
    /// EAGAIN if all are in use, ENOSPC.
    pub fn prepare_child(self, shares_memory: bool) -> Result<u32> {
        let store = self.0;
        let mut reserved = slots::reserve(store.control());
        if reserved == Err(Errno::AGAIN) && store.recovery().reap().is_ok_and(|r| r.processes > 0) {
            // The slots belonged to dead processes that no keeper has cleaned up.
            reserved = slots::reserve(store.control());
        }
        let reserved = reserved?;
        let slot = slots::slot_of(reserved);
        assert!(
            Ok(slot) != store.process_slot(),
            "a child has a slot of its own"
        );
        self.fill(slot, shares_memory).inspect_err(|_| {
            self.drop_child(slot);
        })?;
        Ok(reserved)
    }

    /// Makes the slot that is reserved for a child outlive this process. Called in the parent as
    /// soon as the child exists.
    pub fn hand_over(self, reserved: u32, child: u32) {
        slots::hand_over(self.0.control(), reserved, child);
    }

    fn fill(self, slot: u32, shares_memory: bool) -> Result<()> {
        let store = self.0;
        let area = store.areas().map(slot)?;
        let from = store.area()?;
        // SAFETY: the area consists of atomics, was just mapped, and is unmapped below.
        let to = unsafe { &*area };
        let end = store.objects().fds_end();
        store.control().reserve_fds(slot, to, end)?;
        let _section = store.section()?;
        store
            .control()
            .process(slot as usize)
            .fds_end
            .store(end as u32, Release);
        // Other threads may open and close descriptors meanwhile.
        for n in 0..end {
            let (Some(from), Some(to)) = (from.fd(n), to.fd(n)) else {
                break;
            };
            match store.objects().open_retain_at(from) {
                Some(open) => to.store(open + 1, Release),
                None if to.load(Relaxed) != 0 => to.store(0, Release),
                None => {}
            }
        }
        store.mappings().map_inherit(slot, to, shares_memory)?;
        to.cwd
            .store(self.working_dir().map_or(0, |dir| dir.0), Release);
        to.umask
            .store(self.umask().map_or(0, |mask| mask + 1), Release);
        // SAFETY: nothing refers to the area any more.
        unsafe { store.areas().unmap(area) };
        Ok(())
    }

    /// Frees the slot of a child that wasn't made, or that has ended.
    pub fn drop_child(self, slot: u32) {
        let _ = self.0.recovery().release_slot(slot);
    }

    /// Makes the thread of a vfork child use the slot that was reserved for the child, until
    /// [`Process::end_borrowing`]. Returns false if there is no such slot, or it can't be claimed;
    /// the child then takes a slot when it first needs one.
    pub fn borrow(self, reserved: Option<u32>) -> bool {
        let store = self.0;
        let Some(reserved) = reserved else {
            lending::borrow_later();
            return false;
        };
        lending::between_slots();
        if !slots::is_apart() && !slots::claim(store.control(), reserved) {
            lending::borrow_later();
            return false;
        }
        let slot = slots::slot_of(reserved);
        match store.areas().map(slot) {
            Ok(area) => {
                lending::lend(slot, area);
                true
            }
            Err(_) => {
                lending::borrow_later();
                false
            }
        }
    }

    /// The slot that this thread borrows; None if it borrows none.
    pub fn borrowed(self) -> Option<u32> {
        lending::lent()
    }

    /// Makes this thread use the process's own slot again.
    pub fn end_borrowing(self) {
        self.0.end_lending();
    }

    /// Takes over, in a forked child, the slot that was reserved for it. If the result is false,
    /// the child has no descriptors of the pool and no working directory in it.
    pub fn adopt(self, reserved: u32) -> bool {
        lending::between_slots();
        let adopted = slots::claim(self.0.control(), reserved)
            && self.0.adopt(slots::slot_of(reserved)).is_ok();
        self.0.end_lending();
        adopted
    }

    /// Takes over the slot that the previous program handed on by exec (`executed`), or that
    /// another instance of the library has used so far in this process. False if the slot isn't
    /// this process's.
    pub fn resume(self, slot: u32, executed: bool) -> bool {
        if slot as usize >= MAX_PROCESSES || !slots::is_mine(self.0.control(), slot) {
            // The slot's number was left in the environment by another process.
            return false;
        }
        let taken = if executed {
            self.0.resume(slot)
        } else {
            self.0.adopt(slot)
        };
        taken.is_ok() && self.0.area().is_ok()
    }

    /// The slot that the next program takes over, if there is one and its owner is certain.
    /// `borrows`: this thread runs a vfork child.
    pub fn slot_for_exec(self, borrows: bool) -> Option<u32> {
        if borrows {
            lending::lent()
        } else {
            self.0.attachment.settled_slot()
        }
    }

    /// Gives up the slot. Returns its number, for another instance of the library that takes it
    /// over.
    pub fn give_up_slot(self) -> Option<u32> {
        self.0.attachment.give_up_slot()
    }

    /// Whether the process maps files.
    pub fn has_mappings(self) -> bool {
        self.0.mappings().maps_end() > 0
    }

    /// Removes the recorded mappings: exec has ended them.
    pub fn end_mappings(self) {
        let _ = self.0.mappings().end_mappings();
    }

    /// Checks whether files that the process maps have become shorter.
    pub fn catch_up(self) {
        self.0.mappings().catch_up();
    }

    /// Releases all that this process has in the pool, before the process ends. If other threads
    /// are in the middle of an operation, the keeper does so later.
    pub fn end(self) {
        let _ = self.0.recovery().end();
        // A process that only looked up names has readers, but no slot.
        self.0.files.end_readers();
    }

    /// Frees this process's reader slots in the records, because the next program after exec
    /// couldn't find them.
    pub fn end_readers(self) {
        self.0.files.end_readers();
    }
}
