//! The node store: one node's share of a pool, a data structure and not a server.
//!
//! Every process of the user opens the same store and works on it directly:
//! - *records* (names, attributes, extents) in LMDB, sharded by slot ([`lmdb`], [`shards`]);
//! - *bytes* in extents of media (crate `forebay-media`, [`data`]);
//! - what only matters while processes run (locks, open objects with their true size,
//!   open file descriptions, process slots) in the control region ([`control`]).
//!
//! Promises: a finished write is seen by the next read of any process; changes of names are atomic,
//! also over several shards; a process may be killed at any instant, and the others go on with
//! consistent data and get back what it held. Locks are taken in the order: live object (two of
//! them: ascending), shards (ascending), bucket of the live table; never backwards.

pub mod accounting;
#[cfg(test)]
mod alone;
pub mod attributes;
mod checkpoint;
pub mod codec;
pub mod control;
pub mod controls;
pub mod copies;
pub mod data;
pub mod dirs;
mod durable;
pub mod ephemeral;
mod extent_cache;
pub mod foreign;
pub mod fsck;
pub mod index;
mod journal;
pub mod live;
pub mod locks;
pub mod map_table;
pub mod mapped;
#[cfg(all(test, loom))]
mod models;
pub mod names;
mod open;
pub mod parts;
pub mod placements;
pub mod process;
mod quiescence;
mod recount;
mod recover;
mod reload;
mod repair;
pub mod shards;
mod sole;
mod tables;
pub mod view;
pub mod watches;

pub use checkpoint::Loaded;
pub use control::{Limits, MAX_FDS, MAX_SHARDS, NAME_MAX, PATH_MAX};
pub use data::{CHUNK, Drained, MAX_SIZE};
pub use dirs::DirPosition;
pub use ephemeral::{Followed, Maker};
pub use forebay_media::{Extent, Medium, PAGE, Region, Usage};
pub use forebay_placement::{ChunkSize, Distribution, NodeId, ObjectId, Slot};
pub use forebay_records::{lmdb, record};
pub use foreign::{Foreign, Opened};
pub use fsck::{Finding, Report};
pub use index::{Description, Match, Number, OwnedName, Term};
pub use journal::{Journal, RING};
pub use live::Held;
pub use locks::LockType;
pub use mapped::{MapPiece, NOTICE, NOTICE_VALUE, on_shrink};
pub use names::{NewObject, RenameMode, SetAttr};
pub use quiescence::Section;
pub use record::{Entry, Inode, S_IFMT};
pub use recover::Reaped;
pub use rustix::io::{Errno, Result};
pub use tables::Table;

// Where they lay.
pub(crate) use forebay_runtime::lock;
pub use forebay_runtime::threads;

use control::{Control, ProcessArea};
use extent_cache::ExtentCache;
use lmdb::Env;
use process::{Critical, ProcessLock};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

/// Not attached.
const NO_SLOT: u32 = u32::MAX;
/// A thread that is between slots: what it opens and closes itself is none of the table's
/// business.
const BETWEEN: u32 = u32::MAX - 2;
/// A vfork child that gets a slot when it first needs one.
const BORROW_LATER: u32 = u32::MAX - 1;

thread_local! {
    /// Slot and area of a vfork child that runs on this thread in the parent's memory.
    static BORROWED: Cell<(u32, *mut ProcessArea)> = const { Cell::new((NO_SLOT, std::ptr::null_mut())) };
}

/// How long a thread that takes the process's slot waits for one that executes a program.
/// Milliseconds.
const EXEC_TURNS: u32 = 10_000;

/// A node store, opened by this process.
pub struct Store {
    pub control: Control,
    control_path: PathBuf,
    pub media: Vec<Medium>,
    pub envs: Vec<Env>,
    slot: AtomicU32,
    area: AtomicPtr<ProcessArea>,
    /// The slot whose area is mapped.
    area_slot: AtomicU32,
    attaching: ProcessLock,
    /// This process mends the store.
    mending: AtomicBool,
    /// How often this process has attached.
    attachments: AtomicU32,
    cache: ExtentCache,
    journal: Option<Journal>,
    /// What belongs to other nodes, if this is the share of one node among several.
    pub foreign: Option<std::sync::Arc<dyn Foreign>>,
}

impl Store {
    /// Creates control region and empty records (one file per shard in `records`), with a
    /// root directory of the given mode and owner. With a journal (and its media, whose
    /// pages it tells of), all of it is on stable storage then; a checkpoint is due
    /// whenever the journal has grown to `bound` bytes.
    ///
    /// # Errors
    /// EEXIST, ENOSPC and what the file system says.
    pub fn create(
        control: &Path,
        records: &Path,
        (shards, record_bytes): (usize, usize),
        root: (u32, u32, u32),
        journal: Option<(Journal, Vec<Medium>, u64)>,
    ) -> Result<()> {
        Store::new_control(control, shards)?;
        let (journal, media, bound) = match journal {
            Some((journal, media, bound)) => (Some(journal), media, bound),
            None => (None, Vec::new(), 0),
        };
        let store = Store::open(control, records, record_bytes, media, journal)?;
        store.format_root(root)?;
        store.set_journal_bound(bound);
        store.checkpoint()?;
        if let Some(journal) = &store.journal {
            store.reserve_checkpoint(journal)?;
        }
        store.make_spare_journal()
    }

    /// A checkpoint is due whenever the journal has grown to `bound` bytes, unless another
    /// bound has been set before.
    pub fn set_journal_bound(&self, bound: u64) {
        let place = &self.journal_state().bound;
        let _ = place.compare_exchange(0, bound, AcqRel, Relaxed);
    }

    /// Sets another bound of the journal; for tests.
    pub fn change_journal_bound(&self, bound: u64) {
        self.journal_state().bound.store(bound, Release);
    }

    /// Creates only the control region: for a pool whose records have survived a reboot.
    ///
    /// # Errors
    /// As for create.
    pub fn create_control(control: &Path, shards: usize) -> Result<()> {
        let control = Store::new_control(control, shards)?;
        // Whoever used the records before may have left orphans and pages in use.
        control.header().leaks.store(1, Release);
        Ok(())
    }

    fn new_control(control: &Path, shards: usize) -> Result<Control> {
        Control::create(control, shards, Limits::of_machine())
    }

    /// Opens a store. Record files and segments are opened when they are first used.
    ///
    /// # Errors
    /// ENODATA or EINVAL if `control` isn't the control region of a store of this version;
    /// what open and mmap say.
    pub fn open(
        control_path: &Path,
        records: &Path,
        record_bytes: usize,
        media: Vec<Medium>,
        journal: Option<Journal>,
    ) -> Result<Store> {
        let control = Store::open_control(control_path)?;
        let envs = (0..control.shards())
            .map(|i| Env::new(records.join(format!("{i:02}")), record_bytes))
            .collect();
        Ok(Store {
            control,
            control_path: control_path.to_owned(),
            media,
            envs,
            slot: AtomicU32::new(NO_SLOT),
            area: AtomicPtr::new(std::ptr::null_mut()),
            area_slot: AtomicU32::new(NO_SLOT),
            attaching: ProcessLock::new(),
            mending: AtomicBool::new(false),
            attachments: AtomicU32::new(0),
            cache: ExtentCache::new(),
            journal,
            foreign: None,
        })
    }

    /// Takes a store over into this process's PID namespace: those of another one that still use it
    /// count as dead from now on.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn take_over(control_path: &Path) -> Result<()> {
        let control = Store::open_control(control_path)?;
        let namespace = &control.header().namespace;
        namespace.store(process::namespace(), Release);
        Ok(())
    }

    fn open_control(path: &Path) -> Result<Control> {
        let fd = rustix::fs::open(
            path,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        Ok(Control::map(&fd)?.in_file(path))
    }

    /// Makes this the store of one node among several.
    pub fn among(mut self, foreign: std::sync::Arc<dyn Foreign>) -> Store {
        self.foreign = Some(foreign);
        self
    }

    /// The media, fastest first.
    pub fn media(&self) -> &[Medium] {
        &self.media
    }

    /// The control region.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Bytes of all records.
    ///
    /// # Errors
    /// What opening the record files says.
    pub fn record_bytes(&self) -> Result<u64> {
        self.envs.iter().map(Env::used).sum()
    }

    // ---- this process ----

    /// This process's slot, attaching first if needed.
    ///
    /// # Errors
    /// EAGAIN if all process slots are taken; what mmap says.
    pub fn process_slot(&self) -> Result<u32> {
        match BORROWED.with(Cell::get).0 {
            NO_SLOT => {}
            BETWEEN => return Err(Errno::AGAIN),
            BORROW_LATER => return self.borrow_now(),
            borrowed => return Ok(borrowed),
        }
        match self.slot.load(Acquire) {
            NO_SLOT => self.attach(),
            slot => Ok(slot),
        }
    }

    /// The slot that calls on this thread act for, if there is one.
    pub(crate) fn attached_slot(&self) -> Option<u32> {
        if BORROWED.with(Cell::get).0 == NO_SLOT {
            Some(self.slot.load(Acquire)).filter(|&slot| slot != NO_SLOT)
        } else {
            self.lent()
        }
    }

    /// The slot of this process, if it has one: not before an attach in progress has ended.
    pub fn settled_slot(&self) -> Option<u32> {
        let _one = self.attaching.hold();
        Some(self.slot.load(Acquire)).filter(|&slot| slot != NO_SLOT)
    }

    /// Whether this process has a slot already.
    pub fn is_attached(&self) -> bool {
        self.slot.load(Acquire) != NO_SLOT
    }

    #[cold]
    fn attach(&self) -> Result<u32> {
        match self.attach_with(process::attach) {
            // Of the dead, if no keeper has come to them.
            Err(Errno::AGAIN) if self.any_ended() => {
                // From a slot that only serves to release others.
                self.attach_with(process::attach_kept)?;
                let reaped = self.reap();
                let kept = self.give_up_slot();
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
        (0..control::MAX_PROCESSES).any(|i| {
            let owner = self.control.process(i).owner.load(Acquire);
            owner != 0 && process::has_ended(process::pid_of(owner))
        })
    }

    fn attach_with(&self, take: fn(&Control) -> Result<u32>) -> Result<u32> {
        let mut turns = 0;
        let _one = loop {
            let one = self.attaching.hold();
            let slot = self.slot.load(Acquire);
            if slot != NO_SLOT {
                return Ok(slot);
            }
            if !process::others_execute() || turns == EXEC_TURNS {
                break one;
            }
            // This thread ends with that, unless the kernel refuses the program.
            drop(one);
            std::thread::sleep(std::time::Duration::from_millis(1));
            turns += 1;
        };
        self.between_slots();
        let slot = take(&self.control);
        let slot = slot.and_then(|slot| {
            // In this order, so that a repair sees us or we see it.
            let alone = self
                .no_repair()
                .and_then(|()| self.end_sole_use_of_others(slot));
            let done = alone.and_then(|()| self.adopt(slot));
            done.inspect_err(|_| process::free(&self.control, slot))
                .map(|()| slot)
        });
        self.give_up_borrowed();
        let slot = slot?;
        self.attachments.fetch_add(1, AcqRel);
        self.control.wake_keeper();
        Ok(slot)
    }

    /// How often other processes than this one have attached, modulo 2^32: it changes with each.
    pub fn attachments_of_others(&self) -> u32 {
        let all = self.control.header().activity.load(Acquire);
        all.wrapping_sub(self.attachments.load(Acquire))
    }

    /// EBUSY while another process mends the store: it has the control region locked.
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
    /// What mmap says.
    pub fn adopt(&self, slot: u32) -> Result<()> {
        if self.area.load(Acquire).is_null() || self.area_slot.load(Acquire) != slot {
            let area = self.map_area(slot)?;
            self.area.store(area, Release);
            self.area_slot.store(slot, Release);
        }
        self.slot.store(slot, Release);
        Ok(())
    }

    /// After exec: uses the slot of the program before. What its other threads were just
    /// doing ended with them, as if their process had been killed.
    ///
    /// # Errors
    /// What mmap says, and what writing files back says.
    pub fn resume(&self, slot: u32) -> Result<()> {
        self.adopt(slot)?;
        let before = process::identity(&self.control, slot);
        let p = self.control.process(slot as usize);
        p.generation.fetch_add(1, AcqRel);
        if p.in_flight.swap(0, AcqRel) != 0 {
            self.control.header().leaks.store(1, Release);
        }
        p.waits_for.store(0, Relaxed);
        self.forget_waits(slot);
        self.release_owned(slot, before, true)
    }

    /// Gives the slot up without releasing what it holds: this process goes on to use it
    /// through another `Store`, which adopts it.
    pub fn give_up_slot(&self) -> Option<u32> {
        Some(self.slot.swap(NO_SLOT, AcqRel)).filter(|&slot| slot != NO_SLOT)
    }

    /// Maps the area of `slot`. Stays mapped: areas are few per process.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for it; what open and mmap say.
    pub fn map_area(&self, slot: u32) -> Result<*mut ProcessArea> {
        self.control.reserve_area(slot)?;
        let fd = rustix::fs::open(
            &self.control_path,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        );
        let layout = self.control.layout();
        let at = layout.areas_at + slot as usize * layout.area_len;
        let region = match fd {
            // A forked child needs its area also where its parent has taken all descriptors.
            Err(Errno::MFILE | Errno::NFILE) => self.control.area(slot as usize)?,
            fd => Region::map(&fd?, at as u64, layout.area_len)?,
        };
        let base = region.base().cast();
        std::mem::forget(region);
        Ok(base)
    }

    /// Unmaps an area that [`Store::map_area`] gave.
    ///
    /// # Safety
    /// Nothing may use it any more.
    pub unsafe fn unmap_area(&self, area: *mut ProcessArea) {
        // SAFETY: mapped by map_area with this length; the caller vouches for the rest.
        let _ = unsafe { rustix::mm::munmap(area.cast(), self.control.layout().area_len) };
    }

    /// This process's area: working directory and descriptor table.
    ///
    /// # Errors
    /// As for [`Store::process_slot`].
    pub fn area(&self) -> Result<&ProcessArea> {
        self.process_slot()?;
        let borrowed = BORROWED.with(Cell::get).1;
        let area = if borrowed.is_null() {
            self.area.load(Acquire)
        } else {
            borrowed
        };
        // SAFETY: mapped by adopt or lend, and never unmapped while in use.
        Ok(unsafe { &*area })
    }

    /// From now on, calls on this thread act for the process in `slot` (a vfork child).
    pub fn lend(&self, slot: u32, area: *mut ProcessArea) {
        BORROWED.with(|b| b.set((slot, area)));
    }

    /// Until [`Store::lend`] or [`Store::end_lending`], this thread has no slot at all: it
    /// is about to get one, and must not touch another process's table meanwhile.
    pub fn between_slots(&self) {
        BORROWED.with(|b| b.set((BETWEEN, std::ptr::null_mut())));
    }

    /// As [`Store::lend`], with a slot that is only taken when it is needed.
    pub fn borrow_later(&self) {
        BORROWED.with(|b| b.set((BORROW_LATER, std::ptr::null_mut())));
    }

    #[cold]
    fn borrow_now(&self) -> Result<u32> {
        let _critical = Critical::enter();
        self.between_slots();
        let lent = process::attach(&self.control)
            .and_then(|slot| {
                let alone = self.end_sole_use_of_others(slot);
                let area = alone.and_then(|()| self.map_area(slot));
                let area = area.inspect_err(|_| process::free(&self.control, slot))?;
                Ok((slot, area))
            })
            .inspect_err(|_| self.borrow_later());
        let (slot, area) = lent?;
        self.lend(slot, area);
        self.control.wake_keeper();
        Ok(slot)
    }

    /// Whether calls on this thread act for another process than that whose memory this is (a vfork
    /// child).
    pub fn acts_for_another(&self) -> bool {
        BORROWED.with(Cell::get).0 != NO_SLOT
    }

    /// The slot lent to the vfork child on this thread, if it has one.
    pub fn lent(&self) -> Option<u32> {
        match BORROWED.with(Cell::get).0 {
            NO_SLOT | BORROW_LATER | BETWEEN => None,
            slot => Some(slot),
        }
    }

    /// Ends [`Store::lend`].
    pub fn end_lending(&self) {
        quiescence::forget_sections();
        self.give_up_borrowed();
    }

    fn give_up_borrowed(&self) {
        let area = BORROWED.with(Cell::get).1;
        if !area.is_null() {
            // SAFETY: mapped for the child, which is gone.
            unsafe { self.unmap_area(area) };
        }
        BORROWED.with(|b| b.set((NO_SLOT, std::ptr::null_mut())));
    }

    /// Gives back what this process keeps to read records faster: it is about to end, or to execute
    /// another program. Should it go on all the same, it takes new ones.
    pub fn end_readers(&self) {
        self.envs.iter().for_each(Env::end_readers);
    }

    fn after_detach(&self) {
        self.slot.store(NO_SLOT, Release);
    }

    /// Opens all record files and segments now.
    ///
    /// # Errors
    /// What open and mmap say.
    pub fn open_all(&self) -> Result<()> {
        for env in &self.envs {
            drop(env.snapshot()?);
        }
        self.media.iter().try_for_each(|m| m.file().map(|_| ()))?;
        self.open_journal()
    }

    /// In a forked child, before anything else: nothing of the parent's may be used.
    pub fn after_fork_in_child(&self) {
        self.attaching.reset();
        self.slot.store(NO_SLOT, Release);
        self.area.store(std::ptr::null_mut(), Release);
        for env in &self.envs {
            env.after_fork_in_child();
        }
    }

    /// Gives extents back to their media.
    fn free_extents(&self, extents: impl IntoIterator<Item = Extent>) {
        for e in extents {
            if let Some(m) = self.media.get(e.medium()) {
                m.free(e);
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let slot = *self.slot.get_mut();
        // In a forked child that hasn't been told so, it is the parent's.
        if slot != NO_SLOT && process::is_mine(&self.control, slot) {
            let _ = self.detach();
        }
        let area = *self.area.get_mut();
        if !area.is_null() {
            // SAFETY: ours; nothing can use it without self.
            unsafe { self.unmap_area(area) };
        }
    }
}

/// Now, in nanoseconds since 1970, with the granularity of the kernel's file times.
pub fn now() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
