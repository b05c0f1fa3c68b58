//! What the pool knows of this process: its slot, and in the slot's area its working directory and
//! umask beside descriptors and mappings.
//!
//! A slot is taken when it is first needed. A child's is filled before the child begins
//! ([`Process::prepare_child`]): a forked child adopts it ([`Process::adopt`]); a vfork child runs
//! in its parent's memory and *borrows* it, by its thread ([`Process::borrow`]); the next program
//! after exec resumes it ([`Process::resume`]).

use crate::Fs;
use forebay_store::control::MAX_PROCESSES;
use forebay_store::process as slots;
use forebay_store::{ObjectId, Result, Store};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// See the module.
#[derive(Clone, Copy)]
pub struct Process<'a>(&'a Store);

impl Fs {
    /// This process, as the pool knows it.
    #[inline]
    pub fn process(&self) -> Process<'_> {
        Process(self.store())
    }
}

impl Process<'_> {
    /// Whether it has a slot.
    pub fn is_attached(self) -> bool {
        self.0.is_attached()
    }

    /// Takes a slot, unless it has one: its number.
    ///
    /// # Errors
    /// EAGAIN if all are in use, ENOSPC.
    pub fn attach(self) -> Result<u32> {
        self.0.area()?;
        self.0.process_slot()
    }

    /// The working directory, if it was noted that it lies in the pool.
    #[inline]
    pub fn working_dir(self) -> Option<ObjectId> {
        let id = self.0.area().ok()?.cwd.load(Acquire);
        (id != 0).then_some(ObjectId(id))
    }

    /// Notes the working directory (None: it doesn't lie in the pool); what it was before.
    ///
    /// # Errors
    /// As for [`Process::attach`].
    pub fn note_working_dir(self, dir: Option<ObjectId>) -> Result<Option<ObjectId>> {
        let before = self.0.area()?.cwd.swap(dir.map_or(0, |d| d.0), AcqRel);
        Ok((before != 0).then_some(ObjectId(before)))
    }

    /// The umask, if it was noted.
    pub fn umask(self) -> Option<u32> {
        self.0.area().ok()?.umask.load(Acquire).checked_sub(1)
    }

    /// Notes the umask, if there is a slot to be had.
    pub fn note_umask(self, mask: u32) {
        if let Ok(area) = self.0.area() {
            area.umask.store(mask + 1, Release);
        }
    }

    /// Opens all files of the node that are opened when they are first needed.
    ///
    /// # Errors
    /// What open says.
    pub fn open_all(self) -> Result<()> {
        self.0.open_all()
    }

    /// Reserves a slot for a child, with copies of descriptors, mappings, working directory and
    /// umask, and returns its identity. A child that shares our memory only keeps the files of our
    /// mappings, should we die before it.
    ///
    /// # Errors
    /// EAGAIN if all are in use, ENOSPC.
    pub fn prepare_child(self, shares_memory: bool) -> Result<u32> {
        let store = self.0;
        let mut reserved = slots::reserve(store.control());
        if reserved == Err(Errno::AGAIN) && store.recovery().reap().is_ok_and(|r| r.processes > 0) {
            // They were of the dead: no keeper has come to them.
            reserved = slots::reserve(store.control());
        }
        let reserved = reserved?;
        let slot = slots::slot_of(reserved);
        self.fill(slot, shares_memory).inspect_err(|_| {
            self.drop_child(slot);
        })?;
        Ok(reserved)
    }

    /// In the parent, as soon as there is the child: the slot reserved for it outlives this process.
    pub fn hand_over(self, reserved: u32, child: u32) {
        slots::hand_over(self.0.control(), reserved, child);
    }

    fn fill(self, slot: u32, shares_memory: bool) -> Result<()> {
        let store = self.0;
        let area = store.map_area(slot)?;
        let from = store.area()?;
        // SAFETY: just mapped, made of atomics; unmapped below.
        let to = unsafe { &*area };
        let end = store.objects().fds_end();
        store.control().reserve_fds(slot, to, end)?;
        let _section = store.section()?;
        store
            .control()
            .process(slot as usize)
            .fds_end
            .store(end as u32, Release);
        // Other threads may open and close meanwhile.
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
        to.cwd.store(from.cwd.load(Acquire), Release);
        to.umask.store(from.umask.load(Acquire), Release);
        // SAFETY: nothing refers to it any more.
        unsafe { store.unmap_area(area) };
        Ok(())
    }

    /// There is no child for which the slot was, or it has ended.
    pub fn drop_child(self, slot: u32) {
        let _ = self.0.recovery().release_slot(slot);
    }

    /// In a vfork child: its thread uses the slot that was reserved for it, until
    /// [`Process::end_borrowing`]. Without one (None, or it can't be had) one is taken when it is
    /// first needed: false then.
    pub fn borrow(self, reserved: Option<u32>) -> bool {
        let store = self.0;
        let Some(reserved) = reserved else {
            store.borrow_later();
            return false;
        };
        store.between_slots();
        if !slots::is_apart() && !slots::claim(store.control(), reserved) {
            store.borrow_later();
            return false;
        }
        let slot = slots::slot_of(reserved);
        match store.map_area(slot) {
            Ok(area) => {
                store.lend(slot, area);
                true
            }
            Err(_) => {
                store.borrow_later();
                false
            }
        }
    }

    /// The slot that this thread borrows.
    pub fn borrowed(self) -> Option<u32> {
        self.0.lent()
    }

    /// This thread uses the process's own slot again.
    pub fn end_borrowing(self) {
        self.0.end_lending();
    }

    /// In a forked child: takes over the slot that was reserved for it. False if it can't be had:
    /// the child has neither descriptors of the pool nor a working directory there.
    pub fn adopt(self, reserved: u32) -> bool {
        self.0.between_slots();
        let adopted = slots::claim(self.0.control(), reserved)
            && self.0.adopt(slots::slot_of(reserved)).is_ok();
        self.0.end_lending();
        adopted
    }

    /// Takes over the slot that exec handed on, or that was used so far in this process
    /// (`executed` is false then). False if it isn't this process's.
    pub fn resume(self, slot: u32, executed: bool) -> bool {
        if slot as usize >= MAX_PROCESSES || !slots::is_mine(self.0.control(), slot) {
            // Left in the environment by another process.
            return false;
        }
        let taken = match executed {
            true => self.0.resume(slot),
            false => self.0.adopt(slot),
        };
        taken.is_ok() && self.0.area().is_ok()
    }

    /// The slot that the next program takes over, if there is one and it is settled whose it is.
    /// `borrows`: this thread runs a vfork child.
    pub fn slot_for_exec(self, borrows: bool) -> Option<u32> {
        match borrows {
            true => self.0.lent(),
            false => self.0.settled_slot(),
        }
    }

    /// Another instance of the library takes the slot over, which it is handed.
    pub fn give_up_slot(self) -> Option<u32> {
        self.0.give_up_slot()
    }

    /// Whether files are mapped.
    pub fn has_mappings(self) -> bool {
        self.0.mappings().maps_end() > 0
    }

    /// Mappings are gone: exec has ended them.
    pub fn end_mappings(self) {
        let _ = self.0.mappings().end_mappings();
    }

    /// Looks whether files that it maps have become shorter.
    pub fn catch_up(self) {
        self.0.mappings().catch_up();
    }

    /// Before it ends: gives back what it has. With other threads in the middle of something, that
    /// is left to be reaped.
    pub fn end(self) {
        let _ = self.0.recovery().end();
        // One that only looked at names has readers, but no slot.
        self.0.end_readers();
    }

    /// Gives its readers of the records back, which the next program couldn't find again.
    pub fn end_readers(self) {
        self.0.end_readers();
    }
}
