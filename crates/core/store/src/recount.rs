//! Takes back what was lost with dead processes: references, entries and pages that only they knew.
//!
//! During quiescence (see [`crate::quiescence`]) every use is recorded: descriptors and mappings in
//! the tables of processes, descriptions that no table refers to by their `owner`, entries used for
//! a moment in `held`. Every page in use is named by a record or a live entry. So whatever else is
//! counted or in use is lost. The tables are corrected during quiescence. Pages are compared
//! afterwards, by copies of the maps and views of the records as of the quiescence: no process uses
//! a lost page until it is taken back here.

use crate::control_region::{MAX_FDS, MAX_LIVE, MAX_OPEN, MAX_PROCESSES, live_flag as flag};
use crate::live::held_entry;
use crate::process::{self, Critical};
use crate::record::{ChunkMap, extents_in, parse_key};
use crate::record_tree::Meta;
use crate::records::ReadRecords;
use crate::shards;
use crate::views::Recovery;
use crate::{Extent, ObjectId, Store};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Maximum time that all processes wait for quiescence.
const QUIESCE_TIMEOUT: Duration = Duration::from_millis(100);

/// The store as it was during quiescence.
pub(crate) struct View<'s> {
    /// The records, shard by shard.
    pub shards: Vec<shards::View<'s>>,
    /// Live entries in use.
    pub live: HashMap<u64, LiveState>,
    /// The bits of pages in use, per medium.
    pub used: Vec<Vec<u64>>,
    /// The meta pages of the record files, as of the quiescence.
    pub metas: Vec<std::result::Result<Meta, String>>,
    /// The states of the shards, as of the quiescence.
    pub states: Vec<ShardState>,
    /// Figures of each medium's map: pages in use; cells wrongly marked as full; cells from 0 on
    /// with reserved room, parked ones not counted.
    pub counters: Vec<(u64, usize, usize)>,
}

/// The control region's figures for a shard.
pub(crate) struct ShardState {
    pub multi: u32,
    pub removing: u32,
    pub last_seq: u64,
}

/// The state of a live entry.
#[derive(Clone, Debug)]
pub(crate) struct LiveState {
    pub index: u32,
    pub flags: u32,
    pub size: u64,
    pub pages: u64,
    pub first: ChunkMap,
}

/// The recorded number of uses of each open file description and of each live entry.
pub(crate) struct Uses {
    pub opens: Vec<u32>,
    pub lives: Vec<u32>,
}

impl<'s> Recovery<'s> {
    /// Finds and frees what dead processes have lost: references, entries, pages, objects without a
    /// name. False if nothing was lost, or if other processes have operations in flight that don't
    /// end in time: then the caller tries again later.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn put_in_order(&self) -> Result<bool> {
        const LOOKING: u32 = 2;
        let leaks = &self.store.control.header().leaks;
        if leaks.load(Acquire) == 0 {
            return Ok(false);
        }
        let settled = self.store.names().settle_leftovers();
        let quiet = match self.store.quiet(QUIESCE_TIMEOUT) {
            Err(Errno::BUSY) => return Ok(false),
            other => other?,
        };
        // A process that dies from now on sets another value, so that its losses are looked for,
        // too.
        leaks.store(LOOKING, Release);
        self.store.media().iter().for_each(|m| m.cells().recount());
        let unused = self.recount_tables()?;
        let view = view(self.store);
        drop(quiet);
        let mut result = Ok(());
        for index in unused {
            result = self.store.objects().live_release(index).and(result);
        }
        let view = view?;
        self.take_back_pages(&view)?;
        for orphan in orphans(&view)? {
            self.remove_orphan(orphan)?;
        }
        result = result.and(settled);
        if result.is_ok() {
            let _ = leaks.compare_exchange(LOOKING, 0, AcqRel, Relaxed);
        }
        result.map(|()| true)
    }

    /// Corrects all counts, frees the entries that no process uses, and puts all free entries into
    /// their lists. To be called during quiescence. Returns the live entries that no process uses
    /// any more: each now has one use, which the caller must release.
    pub(crate) fn recount_tables(&self) -> Result<Vec<u32>> {
        let h = self.store.control.header();
        let uses = count_uses(self.store)?;
        let me = process::identity(&self.store.control, self.store.process_slot()?);
        h.free_open.clear();
        let mut directories = 0;
        for (i, &n) in uses.opens.iter().enumerate().rev() {
            let o = self.store.objects().open_file(i as u32);
            if o.refs.load(Acquire) != n {
                o.refs.store(n, Release);
            }
            if n == 0 {
                self.store.control.open_owner(i as u32).store(0, Relaxed);
                o.live.store(0, Relaxed);
                o.id.store(0, Relaxed);
                o.locker.store(0, Relaxed);
                h.free_open.push(i as u32, &o.next);
            } else if o.kind.load(Acquire) == libc::S_IFDIR {
                directories += 1;
            }
        }
        h.open_directories.store(directories, Release);
        self.store.locks().recount_locks()?;
        let mut unused = Vec::new();
        h.free_live.clear();
        for (i, &n) in uses.lives.iter().enumerate().rev() {
            let live = self.store.objects().live(i as u32);
            if !self.store.objects().is_linked(i as u32)? {
                live.refs.store(0, Relaxed);
                live.flags.store(0, Relaxed);
                live.id.store(0, Relaxed);
                self.store.control.finisher(i as u32).store(0, Relaxed);
                live.copy.store(0, Relaxed);
                h.free_live.push(i as u32, &live.next);
            } else if n == 0 {
                live.flags.fetch_and(!flag::GONE, AcqRel);
                self.store.control.finisher(i as u32).store(me, Release);
                live.refs.store(1, Release);
                unused.push(i as u32);
            } else if live.refs.load(Acquire) != n {
                live.refs.store(n, Release);
            }
        }
        Ok(unused)
    }

    /// Frees the pages that no file used at the time of `view`. Returns their number.
    fn take_back_pages(&self, view: &View<'_>) -> Result<u64> {
        let mut lost = view.used.clone();
        view.each_extent(|_, e| {
            for page in e.start()..e.start() + e.pages() as u64 {
                if let Some(word) = lost
                    .get_mut(e.medium())
                    .and_then(|u| u.get_mut(page as usize / 64))
                {
                    *word &= !(1 << (page % 64));
                }
            }
        })?;
        let _section = self.store.section()?;
        let mut freed = 0;
        for (medium, words) in lost.iter().enumerate() {
            for (w, &word) in words.iter().enumerate() {
                let mut left = word;
                while left != 0 {
                    let first = left.trailing_zeros();
                    let run = (left >> first).trailing_ones();
                    let at = w as u64 * 64 + u64::from(first);
                    self.store
                        .free_extents([Extent::new(medium as u8, at, run as usize)]);
                    freed += u64::from(run);
                    left &= !(u64::MAX >> (64 - run) << first);
                }
            }
        }
        Ok(freed)
    }
}

/// Counts the uses of all descriptions and live entries. To be called during quiescence.
pub(crate) fn count_uses(store: &Store) -> Result<Uses> {
    let h = store.control.header();
    let mut opens = vec![0u32; h.free_open.end(MAX_OPEN) as usize];
    let mut lives = vec![0u32; h.free_live.end(MAX_LIVE) as usize];
    let mut holders = std::collections::HashSet::new();
    for slot in 0..MAX_PROCESSES as u32 {
        let p = store.control.process(slot as usize);
        if p.owner.load(Acquire) == 0 {
            continue;
        }
        holders.insert(process::identity(&store.control, slot));
        let held = p.held.iter().filter_map(|h| held_entry(h.load(Acquire)));
        held.for_each(|i| count(&mut lives, i));
        let mapped = store.areas().map(slot)?;
        // SAFETY: mapped above, and unmapped only after the last use; all fields are atomics.
        let area = unsafe { &*mapped };
        let held = store.objects().more_held(slot, area).iter();
        let held = held.filter_map(|h| held_entry(h.load(Acquire)));
        held.for_each(|i| count(&mut lives, i));
        let end = (p.fds_end.load(Acquire) as usize).min(MAX_FDS);
        let fds = (0..end).filter_map(|n| area.fd(n)).map(|f| f.load(Acquire));
        let maps = store.control.maps_of(area);
        let maps = maps.up_to(p.maps_end.load(Acquire) as usize);
        let maps = maps.iter().map(|m| m.open.load(Acquire));
        fds.chain(maps)
            .filter_map(|open| open.checked_sub(1))
            .for_each(|i| count(&mut opens, i));
        // SAFETY: the area is used only in this turn of the loop.
        unsafe { store.areas().unmap(mapped) };
    }
    for (i, uses) in opens.iter_mut().enumerate() {
        let o = store.objects().open_file(i as u32);
        // A description that a table refers to has been handed over to the table, whatever its
        // owner word says.
        if *uses == 0 && holders.contains(&store.control.open_owner(i as u32).load(Acquire)) {
            *uses = 1;
        }
        if *uses > 0
            && let Some(live) = o.live.load(Acquire).checked_sub(1)
        {
            count(&mut lives, live);
        }
    }
    for i in 0..lives.len() as u32 {
        let live = store.objects().live(i);
        let remote = live.flags.load(Acquire) & flag::REMOTE != 0;
        let part = if remote { live.part.load(Acquire) } else { 0 };
        for own in [part, live.copy.load(Acquire)] {
            if let Some(own) = own.checked_sub(1)
                && store.objects().is_linked(i)?
            {
                count(&mut lives, own);
            }
        }
    }
    for (i, uses) in lives.iter_mut().enumerate() {
        *uses += u32::from(holders.contains(&store.control.finisher(i as u32).load(Acquire)));
    }
    Ok(Uses { opens, lives })
}

/// Takes a view of the whole store. To be called during quiescence.
pub(crate) fn view(store: &Store) -> Result<View<'_>> {
    let _critical = Critical::enter();
    let (shards, states, metas) = store.with_all_locked(|| {
        if store.control.header().recover.load(Acquire) != 0 {
            store.recover_locked()?;
        }
        let shards = 0..store.files.count();
        let shards = shards.map(|shard| store.fresh_records(shard));
        let states = (0..store.files.count()).map(|i| {
            let s = store.control.shard(i);
            ShardState {
                multi: s.multi.load(Acquire),
                removing: s.removing.load(Acquire),
                last_seq: s.last_seq.load(Acquire),
            }
        });
        let metas = store.files.iter().map(|env| Meta::of(env.path()));
        Ok((
            shards.collect::<Result<Vec<_>>>()?,
            states.collect(),
            metas.collect(),
        ))
    })?;
    let live = open_objects(store)?.into_iter().map(|(id, index)| {
        let l = store.objects().live(index);
        let state = LiveState {
            index,
            flags: l.flags.load(Acquire),
            size: l.size.load(Acquire),
            pages: l.pages.load(Acquire),
            first: store.content().first_chunk(index),
        };
        (id, state)
    });
    Ok(View {
        live: live.collect(),
        used: store
            .media()
            .iter()
            .map(|m| m.cells().used_bits())
            .collect(),
        counters: (store.media().iter().map(|m| m.cells()))
            .map(|c| (c.used_pages(), c.wrongly_full(), c.reserved()))
            .collect(),
        shards,
        states,
        metas,
    })
}

/// The objects whose live entries are newer than their records: ids, and indices of the
/// entries.
pub(crate) fn open_objects(store: &Store) -> Result<HashMap<u64, u32>> {
    let mut open = HashMap::new();
    for i in 0..store.control.header().free_live.end(MAX_LIVE) {
        // An entry outside its chain was left by a process that died while it was taking or
        // returning the entry.
        if store.objects().live(i).flags.load(Acquire) & flag::LOADED != 0
            && store.objects().is_linked(i)?
        {
            open.insert(store.objects().live(i).id.load(Acquire), i);
        }
    }
    Ok(open)
}

impl View<'_> {
    /// Calls `each` for every extent in a record or a live entry: also in the record of an open
    /// file, although that record may be older than the live entry.
    fn each_extent(&self, mut each: impl FnMut(ObjectId, Extent)) -> Result<()> {
        for (&id, live) in &self.live {
            let first = live.first.extents().iter();
            first.for_each(|&e| each(ObjectId(id), e));
        }
        for shard in &self.shards {
            shard.each_stored(|key, value, _| {
                if let Some((id, map)) = extents_in(key, value) {
                    map.extents().iter().for_each(|&e| each(id, e));
                }
                true
            })?;
        }
        Ok(())
    }
}

/// The objects in `view` that have no name and that no process had open.
fn orphans(view: &View<'_>) -> Result<Vec<ObjectId>> {
    let mut found = Vec::new();
    for shard in &view.shards {
        shard.each_attached(b"O", |key, _| match parse_key(key) {
            Some((b'O', id, _)) => {
                if !view.live.contains_key(&id.0) {
                    found.push(id);
                }
                true
            }
            _ => false,
        })?;
    }
    Ok(found)
}

fn count(counts: &mut [u32], i: u32) {
    if let Some(n) = counts.get_mut(i as usize) {
        *n += 1;
    }
}
