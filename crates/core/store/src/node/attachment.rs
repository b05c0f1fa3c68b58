//! Attaches this process to a store: gives the process a slot in the control region, and maps the
//! slot's area.
//!
//! A process attaches when it first needs a slot, and keeps the slot until it ends. The area is
//! mapped with it. A vfork child runs in its parent's memory, but has its own slot: the parent's
//! thread borrows that slot meanwhile ([`lending::lend`]).
//!
//! `attaching` is held while the process takes a slot. A process attaches only if no process
//! repairs the store (`no_repair`), and first ends the exclusive use by another process
//! (`exclusive_mount.rs`).

use crate::areas::ProcessAreas;
use crate::control_region::{Control, MAX_PROCESSES, ProcessArea};
use crate::lending::{self, BETWEEN, BORROW_LATER, NO_SLOT};
use crate::process::{self, Critical, ProcessLock};
use crate::{Store, quiescence};
use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Maximum time that a thread which attaches waits for another one that executes a program.
/// Milliseconds.
const MAX_EXEC_WAIT: u32 = 10_000;

/// This process's slot in the control region, and the slot's area. At most one slot is taken at a
/// time, and the area is mapped before the slot is known to be taken.
pub struct Attachment {
    slot: AtomicU32,
    area: AtomicPtr<ProcessArea>,
    /// The process slot whose area is mapped.
    area_slot: AtomicU32,
    attaching: ProcessLock,
    /// Number of times that this process has attached.
    attachments: AtomicU32,
}

impl Attachment {
    pub(super) fn none() -> Attachment {
        Attachment {
            slot: AtomicU32::new(NO_SLOT),
            area: AtomicPtr::new(std::ptr::null_mut()),
            area_slot: AtomicU32::new(NO_SLOT),
            attaching: ProcessLock::new(),
            attachments: AtomicU32::new(0),
        }
    }

    /// Returns the slot for which calls on this thread act, if there is one. Doesn't attach.
    pub(crate) fn attached_slot(&self) -> Option<u32> {
        if lending::slot() == NO_SLOT {
            Some(self.slot.load(Acquire)).filter(|&slot| slot != NO_SLOT)
        } else {
            lending::lent()
        }
    }

    /// Returns the slot of this process, if it has one. Waits until an attach in progress has
    /// ended.
    pub fn settled_slot(&self) -> Option<u32> {
        let _one = self.attaching.hold();
        Some(self.slot.load(Acquire)).filter(|&slot| slot != NO_SLOT)
    }

    /// Whether this process has a slot already.
    pub fn is_attached(&self) -> bool {
        self.slot.load(Acquire) != NO_SLOT
    }

    /// Whether any slot other than this process's is in use.
    pub fn any_attached(&self, control: &Control) -> bool {
        let mine = self.slot.load(Acquire) as usize;
        (0..MAX_PROCESSES).any(|i| i != mine && control.process(i).owner.load(Acquire) != 0)
    }

    /// Returns the number of times that other processes have attached, modulo 2^32.
    pub fn attachments_of_others(&self, control: &Control) -> u32 {
        let all = control.header().activity.load(Acquire);
        all.wrapping_sub(self.attachments.load(Acquire))
    }

    /// Gives the slot up without releasing what it holds. For a process that continues to use the
    /// slot through another `Store`, which adopts it.
    pub fn give_up_slot(&self) -> Option<u32> {
        Some(self.slot.swap(NO_SLOT, AcqRel)).filter(|&slot| slot != NO_SLOT)
    }
}

impl Store {
    /// The areas of processes.
    #[inline]
    pub fn areas(&self) -> ProcessAreas<'_> {
        ProcessAreas {
            control: &self.control,
            path: &self.control_path,
        }
    }

    /// This process's slot, attaching first if needed.
    ///
    /// # Errors
    /// EAGAIN if all process slots are taken; errors of mmap.
    pub fn process_slot(&self) -> Result<u32> {
        match lending::slot() {
            NO_SLOT => {}
            BETWEEN => return Err(Errno::AGAIN),
            BORROW_LATER => return self.borrow_now(),
            borrowed => return Ok(borrowed),
        }
        match self.attachment.slot.load(Acquire) {
            NO_SLOT => self.attach(),
            slot => Ok(slot),
        }
    }

    #[cold]
    fn attach(&self) -> Result<u32> {
        match self.attach_with(process::attach) {
            // Dead processes hold slots that no keeper has released yet.
            Err(Errno::AGAIN) if self.any_ended() => {
                // A slot of the reserve lets this process release them.
                self.attach_with(process::attach_kept)?;
                let reaped = self.recovery().reap();
                let kept = self.attachment.give_up_slot();
                let attached = self.attach_with(process::attach);
                if let Some(kept) = kept {
                    process::free(&self.control, kept);
                }
                reaped.and(attached)
            }
            result => result,
        }
    }

    /// Whether the process of any slot has ended.
    fn any_ended(&self) -> bool {
        (0..MAX_PROCESSES).any(|i| {
            let owner = self.control.process(i).owner.load(Acquire);
            owner != 0 && process::has_ended(process::pid_of(owner))
        })
    }

    fn attach_with(&self, take: fn(&Control) -> Result<u32>) -> Result<u32> {
        let mut turns = 0;
        let _one = loop {
            let one = self.attachment.attaching.hold();
            let slot = self.attachment.slot.load(Acquire);
            if slot != NO_SLOT {
                return Ok(slot);
            }
            if !process::others_execute() || turns == MAX_EXEC_WAIT {
                break one;
            }
            // The exec of the other thread ends this thread, unless the kernel refuses the exec.
            drop(one);
            std::thread::sleep(std::time::Duration::from_millis(1));
            turns += 1;
        };
        lending::between_slots();
        let slot = take(&self.control);
        let slot = slot.and_then(|slot| {
            // The order matters: either a repair sees this slot, or this process sees the repair.
            let alone = self
                .no_repair()
                .and_then(|()| self.sole_use().end_of_others(slot));
            let done = alone.and_then(|()| self.adopt(slot));
            done.inspect_err(|_| process::free(&self.control, slot))
                .map(|()| slot)
        });
        self.give_up_borrowed();
        let slot = slot?;
        forebay_trace::event!(ATTACHED, slot);
        self.attachment.attachments.fetch_add(1, AcqRel);
        self.control.wake_keeper();
        Ok(slot)
    }

    /// Returns EBUSY while another process repairs the store, which keeps the control region's file
    /// locked.
    fn no_repair(&self) -> Result<()> {
        if self.mending.load(Acquire) {
            return Ok(());
        }
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.control_path, flags, rustix::fs::Mode::empty())?;
        let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
        rustix::fs::flock(&file, shared).map_err(|_| Errno::BUSY)
    }

    /// Uses a slot that this process had before exec, or that its parent prepared.
    ///
    /// # Errors
    /// Those of mmap.
    pub fn adopt(&self, slot: u32) -> Result<()> {
        if self.attachment.area.load(Acquire).is_null()
            || self.attachment.area_slot.load(Acquire) != slot
        {
            let area = self.areas().map(slot)?;
            self.attachment.area.store(area, Release);
            self.attachment.area_slot.store(slot, Release);
        }
        self.attachment.slot.store(slot, Release);
        // SAFETY: an area stays mapped until the store is dropped, which ends the counting.
        unsafe { forebay_trace::count::count_in(&(*self.attachment.area.load(Acquire)).counted) };
        Ok(())
    }

    /// Uses, after exec, the slot that this process had before. Operations of its other threads
    /// were cut off by the exec, as if their process had been killed.
    ///
    /// # Errors
    /// Those of mmap, and of writing files back.
    pub fn resume(&self, slot: u32) -> Result<()> {
        self.adopt(slot)?;
        let before = process::identity(&self.control, slot);
        let p = self.control.process(slot as usize);
        p.generation.fetch_add(1, AcqRel);
        if p.in_flight.swap(0, AcqRel) != 0 {
            self.control.header().leaks.store(1, Release);
        }
        p.waits_for.store(0, Relaxed);
        self.locks().forget_waits(slot);
        self.recovery().release_owned(slot, before, true)
    }

    /// This process's area: working directory and descriptor table.
    ///
    /// # Errors
    /// As for [`Store::process_slot`].
    pub fn area(&self) -> Result<&ProcessArea> {
        self.process_slot()?;
        let borrowed = lending::area();
        let area = if borrowed.is_null() {
            self.attachment.area.load(Acquire)
        } else {
            borrowed
        };
        // SAFETY: the area was mapped for `adopt` or `lend`, and isn't unmapped while it is in use.
        Ok(unsafe { &*area })
    }

    #[cold]
    fn borrow_now(&self) -> Result<u32> {
        let _critical = Critical::enter();
        lending::between_slots();
        let lent = process::attach(&self.control)
            .and_then(|slot| {
                let alone = self.sole_use().end_of_others(slot);
                let area = alone.and_then(|()| self.areas().map(slot));
                let area = area.inspect_err(|_| process::free(&self.control, slot))?;
                Ok((slot, area))
            })
            .inspect_err(|_| lending::borrow_later());
        let (slot, area) = lent?;
        lending::lend(slot, area);
        self.control.wake_keeper();
        Ok(slot)
    }

    /// Ends [`lending::lend`].
    pub fn end_lending(&self) {
        quiescence::forget_sections();
        self.give_up_borrowed();
    }

    fn give_up_borrowed(&self) {
        let area = lending::area();
        if !area.is_null() {
            // SAFETY: mapped for the child, which has ended, so nothing uses it.
            unsafe { self.areas().unmap(area) };
        }
        lending::clear();
    }

    /// Forgets the parent's slot and area, which a forked child must not use. Must be called in the
    /// child before anything else.
    pub fn after_fork_in_child(&self) {
        self.attachment.attaching.reset();
        self.attachment.slot.store(NO_SLOT, Release);
        self.attachment.area.store(std::ptr::null_mut(), Release);
        forebay_trace::forked();
        for env in self.files.iter() {
            env.after_fork_in_child();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let slot = *self.attachment.slot.get_mut();
        // In a forked child that hasn't run its fork handlers yet, the slot is the parent's.
        if slot != NO_SLOT && process::is_mine(&self.control, slot) {
            let _ = self.recovery().detach();
        }
        let area = *self.attachment.area.get_mut();
        if !area.is_null() {
            // SAFETY: this store mapped the area, and nothing can use it without the store.
            unsafe {
                forebay_trace::count::stop_in(&(*area).counted);
                self.areas().unmap(area);
            }
        }
    }
}
