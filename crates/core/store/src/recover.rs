//! Releases what dead processes held, and rebuilds what only memory knew.

use crate::control_region::ProcessArea;
use crate::control_region::{MAX_LIVE, MAX_OPEN, MAX_PROCESSES, live_flag as flag, map_flag};
use crate::live::{Chain, held_entry};
use crate::process::Critical;
use crate::record::extents_in;
use crate::records::{ReadRecords, Records};
use crate::recount::open_objects;
use crate::views::Recovery;
use crate::{ObjectId, process};
use forebay_media::{CELL_PAGES, Extent};
use rustix::io::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::*;

/// The result of [`Recovery::reap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Number of processes that had died.
    pub processes: usize,
    /// Number of descriptors that these processes had open.
    pub descriptors: usize,
    /// Number of processes that died in a section: entries or pages may be lost.
    pub in_flight: usize,
}

impl<'s> Recovery<'s> {
    /// Releases this process's slot and all that it holds, before the process ends.
    ///
    /// # Errors
    /// Those of writing files back.
    pub fn detach(&self) -> Result<()> {
        if !self.store.attachment.is_attached() {
            return Ok(());
        }
        let slot = self.store.process_slot()?;
        // A process that has become another user can't open the area: the keeper releases
        // everything when the process has ended.
        let area = self.store.areas().map(slot)?;
        let result = self.release_area(slot, area, false).map(|_| ());
        self.store.files.end_readers();
        process::free(&self.store.control, slot);
        let _ = self.store.attachment.give_up_slot();
        result
    }

    /// Closes what this process has open without descriptors, before it ends normally: the handles
    /// of a server whose clients have ended without closing them. Nothing else in this process may
    /// use the store any more.
    ///
    /// # Errors
    /// Those of writing files back.
    pub fn close_owned(&self) -> Result<()> {
        if !self.store.attachment.is_attached() {
            return Ok(());
        }
        let slot = self.store.process_slot()?;
        self.release_owned(slot, process::identity(&self.store.control, slot), false)
    }

    /// As [`Recovery::detach`], for a process that is about to end. If the process has other
    /// threads, their operations end with it, and what they held is found through its slot. So the
    /// slot isn't freed then, but left to the process that reaps this one.
    ///
    /// # Errors
    /// As for [`Recovery::detach`].
    pub fn end(&self) -> Result<()> {
        if !self.store.attachment.is_attached() || process::is_alone() {
            return self.detach();
        }
        let slot = self.store.process_slot()?;
        let area = self.store.areas().map(slot)?;
        let result = self.release_area(slot, area, false).map(|_| ());
        self.store.files.end_readers();
        result
    }

    /// Releases a slot that was prepared for a child, or lent to a child that has ended.
    ///
    /// # Errors
    /// Those of writing files back. If this process can't map the slot's area, for instance because
    /// it has become another user's, the slot is left to the process that reaps it.
    pub fn release_slot(&self, slot: u32) -> Result<()> {
        let area = self.store.areas().map(slot)?;
        let result = self.release_area(slot, area, false).map(|_| ());
        process::free(&self.store.control, slot);
        result
    }

    /// Releases what dead processes hold: descriptors, open counts, locks, half-done commits,
    /// reader slots, and what they lost in the middle of an operation.
    ///
    /// # Errors
    /// Those of writing the dead processes' files back.
    pub fn reap(&self) -> Result<Reaped> {
        forebay_trace::span!(REAP_ENTER, REAP_EXIT, [], self.reap_but(&[]))
    }

    /// As [`Recovery::reap`], but skips the processes with the identities `but`, dead or not.
    pub fn reap_but(&self, but: &[u32]) -> Result<Reaped> {
        let mut reaped = Reaped::default();
        let mut result = Ok(());
        for slot in 0..MAX_PROCESSES as u32 {
            let p = self.store.control.process(slot as usize);
            if p.owner.load(Acquire) == 0 || process::is_alive(&self.store.control, slot) {
                continue;
            }
            let me = self.store.process_slot()?;
            if slot == me || but.contains(&process::identity(&self.store.control, slot)) {
                continue;
            }
            if !process::begin_reaping(&self.store.control, slot) {
                continue;
            }
            // A failure for one file must not prevent the release of the others, nor of the slot.
            let dead = process::identity(&self.store.control, slot);
            let owned = self.release_owned(slot, dead, true);
            match self.release_descriptors(slot, true) {
                Ok(n) => reaped.descriptors += n,
                Err(e) => result = Err(e),
            }
            result = owned.and(result);
            reaped.processes += 1;
            p.waits_for.store(0, Relaxed);
            if p.in_flight.load(Acquire) != 0 {
                reaped.in_flight += 1;
                self.store.control.header().leaks.store(1, Release);
                p.in_flight.store(0, Release);
            }
            process::free(&self.store.control, slot);
        }
        if reaped.processes > 0 {
            self.pass_on_locks()?;
            self.store.recover_commits()?;
            for env in self.store.files.iter() {
                env.release_dead_readers()?;
            }
            if self.store.names().settle_leftovers().is_err() {
                // Tried again by `put_in_order`.
                self.store.control.header().leaks.store(1, Release);
            }
            self.put_in_order()?;
        }
        result.map(|()| reaped)
    }

    /// Frees the reader slots of killed processes that had no process slot. These processes only
    /// looked up names, and are never reaped.
    ///
    /// # Errors
    /// Those of opening the records.
    pub fn sweep_readers(&self) -> Result<()> {
        let attached: HashSet<u32> = (0..MAX_PROCESSES)
            .map(|i| process::pid_of(self.store.control.process(i).owner.load(Acquire)))
            .collect();
        let mut ended = HashMap::new();
        for env in self.store.files.iter() {
            let mut others = env.readers()?;
            others.retain(|pid| !attached.contains(pid));
            let mut has_ended = |pid| *ended.entry(pid).or_insert_with(|| process::has_ended(pid));
            if others.into_iter().any(&mut has_ended) {
                env.release_dead_readers()?;
            }
        }
        Ok(())
    }

    /// Runs `f`. If `f` finds no room, releases what dead processes held (the keeper may not have
    /// done that yet), removes copies, and runs `f` once more. The caller must not hold a lock.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_room_of_the_dead<T>(&self, f: impl Fn() -> Result<T>) -> Result<T> {
        match f() {
            Err(Errno::NOSPC) => {
                let reaped = self.reap().is_ok_and(|r| r.processes > 0);
                if self.store.local_copies().drop_all_copies() == Ok(true) || reaped {
                    f()
                } else {
                    Err(Errno::NOSPC)
                }
            }
            result => result,
        }
    }

    /// Takes over the locks of dead processes, repairs the protected data, and releases the locks.
    /// (Locks of shards: [`crate::Store::recover_commits`].)
    fn pass_on_locks(&self) -> Result<()> {
        let _critical = Critical::enter();
        let c = &self.store.control;
        let me = self.store.process_slot()?;
        let h = c.header();
        let opens = (0..h.free_open.end(MAX_OPEN)).map(|i| &self.store.objects().open_file(i).lock);
        let times = c.dir_times().map(|place| &place.lock);
        let chains = c.lock_chains().map(|chain| &chain.lock);
        for lock in opens.chain(times).chain(chains).chain([h.watches.lock()]) {
            if lock.stray(c).is_some() {
                lock.acquire(c, me)?;
                lock.release();
            }
        }
        for bucket in c.buckets().filter(|b| b.lock.stray(c).is_some()) {
            drop(Chain::of(self.store, bucket)?);
        }
        for i in 0..h.free_live.end(MAX_LIVE) {
            if self.store.objects().live(i).lock.stray(c).is_some() {
                drop(self.store.objects().lock_live(i)?);
            }
        }
        Ok(())
    }

    /// Releases all descriptors of `slot` after its process has ended or was `killed`. Returns
    /// their number.
    fn release_descriptors(&self, slot: u32, killed: bool) -> Result<usize> {
        let area = self.store.areas().map(slot)?;
        self.release_area(slot, area, killed)
    }

    /// As [`Recovery::release_descriptors`], for a slot whose area is mapped. Unmaps the area.
    fn release_area(&self, slot: u32, area: *mut ProcessArea, killed: bool) -> Result<usize> {
        let p = self.store.control.process(slot as usize);
        let end = p.fds_end.load(Acquire) as usize;
        // SAFETY: the caller has mapped the area, which is made of atomics and unmapped below.
        let a = unsafe { &*area };
        let mut released = 0;
        let mut result = Ok(());
        for place in (0..end).map_while(|n| a.fd(n)) {
            if place.load(Relaxed) == 0 {
                continue;
            }
            let _section = self.store.section()?;
            if let Some(open) = place.swap(0, AcqRel).checked_sub(1) {
                released += 1;
                if killed {
                    self.store.declared().cut_short(open);
                }
                // A file that can't be written back must not prevent the release of the others.
                result = self.store.objects().open_release(open).and(result);
            }
        }
        let ended = self.store.mappings().map_end(slot, a, |map| {
            if killed
                && map.flags.load(Acquire) & map_flag::CHANGES != 0
                && let Some(open) = map.open.load(Acquire).checked_sub(1)
            {
                self.store.declared().cut_short(open);
            }
        });
        result = ended.and(result);
        p.fds_end.store(0, Release);
        a.cwd.store(0, Release);
        a.umask.store(0, Release);
        result = self.store.locks().end_all_locks(slot).and(result);
        // SAFETY: no reference to the area is used from here on.
        unsafe { self.store.areas().unmap(area) };
        result.map(|()| released)
    }

    /// Releases what the process `dead` in `slot` used without a descriptor: descriptions on their
    /// way from or to its table, files that it opened without a descriptor, live entries held for a
    /// moment. `killed`: the process didn't end normally.
    pub(crate) fn release_owned(&self, slot: u32, dead: u32, killed: bool) -> Result<()> {
        let mut result = Ok(());
        let _section = self.store.section()?;
        let area = self.store.areas().map(slot)?;
        let end = self
            .store
            .control
            .process(slot as usize)
            .fds_end
            .load(Acquire) as usize;
        // SAFETY: mapped above, and unmapped only after the last use; all fields are atomics.
        let a = unsafe { &*area };
        let p = self.store.control.process(slot as usize);
        let maps = self.store.control.maps_of(a);
        let maps = maps.up_to(p.maps_end.load(Acquire) as usize);
        let in_table = |open: u32| {
            let mut fds = (0..end).map_while(|n| a.fd(n));
            fds.any(|f| f.load(Acquire) == open + 1)
                || maps.iter().any(|m| m.open.load(Acquire) == open + 1)
        };
        let h = self.store.control.header();
        for i in 0..h.free_open.end(MAX_OPEN) {
            let owner = self.store.control.open_owner(i);
            if owner.load(Acquire) != dead {
                continue;
            }
            if self.store.objects().open_file(i).refs.load(Acquire) > 0 && in_table(i) {
                owner.store(0, Release);
            } else {
                if killed {
                    self.store.declared().cut_short(i);
                }
                result = self.store.objects().open_release(i).and(result);
            }
        }
        for i in 0..h.free_live.end(MAX_LIVE) {
            if self.store.control.finisher(i).load(Acquire) == dead {
                result = self.store.objects().live_release(i).and(result);
            }
        }
        // SAFETY: mapped until the end of this function; made of atomics.
        let more = self.store.objects().more_held(slot, unsafe { &*area });
        for place in self
            .store
            .control
            .process(slot as usize)
            .held
            .iter()
            .chain(more)
        {
            if let Some(index) = held_entry(place.swap(0, AcqRel)) {
                result = self.store.objects().live_release(index).and(result);
            }
        }
        // SAFETY: no reference to the area is used from here on.
        unsafe { self.store.areas().unmap(area) };
        result
    }

    /// Rebuilds the maps of free pages from the records. Only while no other process uses the
    /// store. Returns the number of pages that were marked wrongly.
    ///
    /// # Errors
    /// EIO.
    pub fn rebuild_free_space(&self) -> Result<u64> {
        const { assert!(CELL_PAGES == 4 * 64) };
        let mut used: Vec<Vec<u64>> = self
            .store
            .media()
            .iter()
            .map(|m| vec![0; m.cells().count() * 4])
            .collect();
        self.each_extent(|_, e| {
            let Some(bits) = used.get_mut(e.medium()) else {
                return;
            };
            for page in e.start()..e.start() + e.pages() as u64 {
                if let Some(word) = bits.get_mut(page as usize / 64) {
                    *word |= 1 << (page % 64);
                }
            }
        })?;
        self.note_unused(&used)?;
        Ok(self
            .store
            .media()
            .iter()
            .zip(&used)
            .map(|(m, bits)| m.cells().rebuild(bits))
            .sum())
    }

    /// Prepares the freeing of pages that aren't `used`: syncs the journal, so that on stable
    /// storage, too, no file has them any more; then records that they are no longer durable.
    fn note_unused(&self, used: &[Vec<u64>]) -> Result<()> {
        let Some(journal) = self.store.durability().active_journal() else {
            return Ok(());
        };
        self.store.durability().sync_journal()?;
        let _critical = process::Critical::enter();
        self.store
            .durability()
            .lock_journal(journal)?
            .note_pages(|changes| {
                for (m, used) in self.store.media().iter().zip(used) {
                    m.cells().durable_beside(used, |e| changes.cleared.push(e));
                }
            })
    }

    /// Calls `each` for every extent of every object. For open files, the extents of chunk 0 are
    /// those in the live table.
    pub(crate) fn each_extent(&self, mut each: impl FnMut(ObjectId, Extent)) -> Result<()> {
        let open = open_objects(self.store)?;
        for (&id, &i) in &open {
            if self.store.objects().live(i).flags.load(Acquire) & flag::INLINE == 0 {
                self.store
                    .content()
                    .first_chunk(i)
                    .extents()
                    .iter()
                    .for_each(|&e| each(ObjectId(id), e));
            }
        }
        for shard in 0..self.store.files.count() {
            self.store
                .committed(shard)?
                .each_record(b"", |key, value| {
                    if let Some((id, map)) = extents_in(key, value)
                        && (key[0] != b'I' || !open.contains_key(&id.0))
                    {
                        map.extents().iter().for_each(|&e| each(id, e));
                    }
                    true
                })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::tests::{make, store};

    #[test]
    fn what_threads_were_opening_when_their_process_ended_is_given_back() {
        let s = store("ends-with-threads");
        let live = s.objects().live_acquire_here(make(&s, "f")).unwrap().0;
        // Until the description is in a table of descriptors, only its owner word leads to it.
        let open = s
            .objects()
            .open_create(&crate::NewOpen::new(ObjectId::ROOT, 0, 0), Some(live))
            .unwrap();
        // Each test runs in a separate thread, so this process has several.
        assert!(!process::is_alone());
        s.recovery().end().unwrap();
        let slot = s.attachment.give_up_slot().expect("it stays attached");
        let owner = &s.control.process(slot as usize).owner;
        assert_eq!(process::pid_of(owner.load(Relaxed)), process::pid());
        // With another start time, the process counts as ended.
        owner.store(owner.load(Relaxed) ^ 1, Relaxed);
        assert_eq!(s.recovery().reap().map(|r| r.processes), Ok(1));
        assert_eq!(s.objects().open_file(open).refs.load(Relaxed), 0);
        assert_eq!(s.objects().live(live).id.load(Relaxed), 0);
        let taken = crate::accounting::count(&s).unwrap();
        assert_eq!((taken.open.used, taken.live.used), (0, 0));
    }

    #[test]
    fn a_childs_slot_is_reaped_with_its_parent_only_until_it_is_handed_over() {
        let s = store("reserved");
        let owner = |reserved| {
            let slot = process::slot_of(reserved);
            &s.control.process(slot as usize).owner
        };
        let dead = |reserved| {
            // With another start time, the process counts as ended.
            let owner = owner(reserved);
            owner.store(owner.load(Relaxed) ^ 1, Relaxed);
            s.recovery().reap().map(|r| r.processes)
        };
        let claimed = process::reserve(&s.control).unwrap();
        assert!(process::claim(&s.control, claimed));
        assert!(!process::claim(&s.control, claimed));
        let handed_over = process::reserve(&s.control).unwrap();
        process::hand_over(&s.control, handed_over, 1);
        assert_eq!(process::pid_of(owner(handed_over).load(Relaxed)), 1);
        assert_eq!(s.recovery().reap().map(|r| r.processes), Ok(0));
        assert!(process::claim(&s.control, handed_over));
        let lost = process::reserve(&s.control).unwrap();
        assert_eq!(dead(lost), Ok(1));
        // The slot is in use again, by another process.
        let others = process::reserve(&s.control).unwrap();
        assert_eq!(process::slot_of(others), process::slot_of(lost));
        assert!(!process::claim(&s.control, lost));
        process::hand_over(&s.control, lost, 1);
        assert!(process::claim(&s.control, others));
    }

    #[test]
    fn a_reserve_of_each_table_is_left_for_those_who_need_it() {
        let s = store("reserve");
        let slots: Vec<u32> = (0..MAX_PROCESSES)
            .map_while(|_| process::reserve(&s.control).ok())
            .collect();
        let kept = crate::control_region::RESERVED_PROCESSES;
        assert_eq!(slots.len(), MAX_PROCESSES - kept);
        assert!(process::attach_kept(&s.control).is_ok());
        let h = s.control.header();
        let limit = h.free_live.limit() as usize;
        let next = |i| &s.control.live(i).next;
        let room = |_| Ok(limit as u32);
        let mut taken: Vec<u32> = (0..limit)
            .map_while(|_| h.free_live.pop(limit, next, room).unwrap())
            .collect();
        assert_eq!(
            taken.len(),
            limit - crate::control_region::RESERVED_ENTRIES as usize
        );
        assert!(
            taken
                .iter()
                .all(|&i| i >= crate::control_region::RESERVED_ENTRIES)
        );
        assert_eq!(h.free_live.end(limit), limit as u32);
        // Every free entry below the end is in a list.
        let free = h.free_live.walk(limit, next).unwrap();
        assert_eq!(free.len(), crate::control_region::RESERVED_ENTRIES as usize);
        let last = taken.pop().unwrap();
        h.free_live.push(last, next(last));
        assert_eq!(h.free_live.pop(limit, next, room), Ok(Some(last)));
    }
}
