//! Releasing what dead processes held, and rebuilding what only memory knew.

use crate::control::{MAX_PROCESSES, slot_state as state};
use crate::record::{ChunkMap, Inode, parse_key, tail};
use crate::{ObjectId, Store, process};
use forebay_media::{CELL_PAGES, Extent};
use rustix::io::Result;
use std::sync::atomic::Ordering::*;

/// What [`Store::reap`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Processes that had died.
    pub processes: usize,
    /// Descriptors that they had open.
    pub descriptors: usize,
    /// Processes that died between taking pages and noting them: a sweep is due.
    pub in_flight: usize,
}

impl Store {
    /// Process ids attached now, without looking whether they still live.
    pub fn attached(&self) -> Vec<u32> {
        (0..MAX_PROCESSES)
            .map(|i| self.control.process(i))
            .filter(|p| p.state.load(Acquire) == state::USED)
            .map(|p| p.pid.load(Relaxed))
            .collect()
    }

    /// Whether any slot is in use.
    pub fn any_attached(&self) -> bool {
        (0..MAX_PROCESSES).any(|i| self.control.process(i).state.load(Acquire) != state::FREE)
    }

    /// Gives this process's slot and all that it holds back, before it ends.
    ///
    /// # Errors
    /// What writing files back says.
    pub fn detach(&self) -> Result<()> {
        if !self.is_attached() {
            return Ok(());
        }
        let slot = self.me()?;
        let result = self.release_descriptors(slot).map(|_| ());
        self.control.process(slot as usize).state.store(state::FREE, Release);
        self.after_detach();
        result
    }

    /// Releases what dead processes hold: descriptors, open counts, commits half done,
    /// reader slots. Locks pass on by themselves.
    ///
    /// # Errors
    /// What writing their files back says.
    pub fn reap(&self) -> Result<Reaped> {
        let mut reaped = Reaped::default();
        for slot in 0..MAX_PROCESSES as u32 {
            let p = self.control.process(slot as usize);
            let now = p.state.load(Acquire);
            if now == state::FREE || process::is_alive(&self.control, slot) {
                continue;
            }
            let me = self.me()?;
            if slot == me || p.state.compare_exchange(now, state::REAPING, AcqRel, Relaxed).is_err() {
                continue;
            }
            p.reaper.store(me + 1, Release);
            reaped.descriptors += self.release_descriptors(slot)?;
            reaped.processes += 1;
            reaped.in_flight += usize::from(p.in_flight.swap(0, AcqRel) != 0);
            p.reaper.store(0, Release);
            p.state.store(state::FREE, Release);
        }
        if reaped.processes > 0 {
            self.recover_commits()?;
            for env in &self.envs {
                env.release_dead_readers()?;
            }
        }
        Ok(reaped)
    }

    /// Releases all descriptors of `slot`; how many there were.
    fn release_descriptors(&self, slot: u32) -> Result<usize> {
        let p = self.control.process(slot as usize);
        let end = p.fds_end.swap(0, AcqRel) as usize;
        let area = self.map_area(slot)?;
        // SAFETY: just mapped; made of atomics.
        let a = unsafe { &*area };
        let mut released = 0;
        let mut result = Ok(());
        for place in &a.fds[..end.min(a.fds.len())] {
            if let Some(open) = place.swap(0, AcqRel).checked_sub(1) {
                released += 1;
                // One that can't be written back must not keep the others.
                result = self.open_release(open).and(result);
            }
        }
        a.cwd.store(0, Release);
        a.umask.store(0, Release);
        // SAFETY: only used in this function.
        unsafe { self.unmap_area(area) };
        result.map(|()| released)
    }

    /// Forgets everything of the control region that belongs to processes, writes back
    /// open files and removes orphans: after all processes of a pool have died.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn settle(&self) -> Result<Reaped> {
        let reaped = self.reap()?;
        self.recover_commits()?;
        self.remove_orphans()?;
        Ok(reaped)
    }

    /// Rebuilds the maps of free pages from the records. Only while nobody else uses the
    /// store. Returns how many pages were marked wrongly.
    ///
    /// # Errors
    /// EIO.
    pub fn rebuild_free_space(&self) -> Result<u64> {
        let mut used: Vec<Vec<u64>> =
            self.media().iter().map(|m| vec![0; m.cells().count() * 4]).collect();
        let mut mark = |e: Extent| {
            let Some(bits) = used.get_mut(e.medium()) else { return };
            for page in e.start()..e.start() + e.pages() as u64 {
                if let Some(word) = bits.get_mut(page as usize / 64) {
                    *word |= 1 << (page % 64);
                }
            }
        };
        const { assert!(CELL_PAGES == 4 * 64) };
        for shard in 0..self.shard_count() {
            self.envs[shard].snapshot()?.scan(b"I", |key, value| {
                match (parse_key(key), Inode::decode(value)) {
                    (Some((b'I', ..)), Some((inode, bytes))) if inode.tail == tail::EXTENTS => {
                        if let Some(map) = ChunkMap::decode(bytes) {
                            map.extents().iter().for_each(|&e| mark(e));
                        }
                        true
                    }
                    (Some((b'I', ..)), _) => true,
                    _ => false,
                }
            })?;
            self.envs[shard].snapshot()?.scan(b"X", |key, value| {
                let is_chunk = matches!(parse_key(key), Some((b'X', ..)));
                if is_chunk && let Some(map) = ChunkMap::decode(value) {
                    map.extents().iter().for_each(|&e| mark(e));
                }
                is_chunk
            })?;
        }
        Ok(self.media().iter().zip(&used).map(|(m, bits)| m.cells().rebuild(bits)).sum())
    }

    /// Number of objects and of directory entries, for reports.
    ///
    /// # Errors
    /// EIO.
    pub fn count_objects(&self) -> Result<(u64, u64)> {
        let (mut objects, mut entries) = (0, 0);
        for env in &self.envs {
            env.snapshot()?.scan(b"", |key, _| {
                objects += u64::from(key.first() == Some(&b'I'));
                entries += u64::from(key.first() == Some(&b'D'));
                true
            })?;
        }
        Ok((objects, entries))
    }

    /// The name of `id` in directory `parent`, found by listing it; None if it has none.
    ///
    /// # Errors
    /// EIO.
    pub fn name_in(&self, parent: ObjectId, id: ObjectId) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.list(parent, &mut Default::default(), |name, entry| {
            if entry.id == id {
                found = Some(name.to_vec());
            }
            found.is_none()
        })?;
        Ok(found)
    }
}
