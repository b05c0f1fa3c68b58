//! The sizes of the control region's tables, and the offset of each table.

use super::shared::*;
use crate::map_table::MapRef;
use forebay_runtime::atomics::{AtomicU32, AtomicU64};
use forebay_runtime::slots::MAX_PROCESSES;

/// Maximum number of shards of a node store.
pub const MAX_SHARDS: usize = 64;
/// Maximum number of objects open at the same time on a node of any size: see [`Limits`].
pub const MAX_LIVE: usize = MAX_OPEN;
/// Maximum number of open file descriptions at the same time on a node of any size: see [`Limits`].
pub const MAX_OPEN: usize = 1 << 20;
/// Minimum number of open file descriptions for which a node of any size has room.
pub const MIN_OPEN: usize = if cfg!(loom) { 64 } else { 1 << 17 };
/// Number of open file descriptions for which a node has room, per core.
pub const OPEN_PER_CORE: usize = 1 << 13;
/// Maximum number of locks on files (on ranges and on whole files) at the same time, on a node of
/// any size.
pub const MAX_FILE_LOCKS: usize = MAX_OPEN;

pub(super) const DIR_TIMES: usize = 16_384;

/// Numbers of entries of a control region's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open file descriptions; also open objects, and locks on files. A power of two.
    pub open: u32,
    /// Mappings of the pool's files in each process.
    pub maps: u32,
}

impl Limits {
    /// Returns the limits for this machine: [`OPEN_PER_CORE`] open files for each core; and a
    /// quarter more mappings than the kernel lets a process have, since the kernel may count two of
    /// the table's mappings as one.
    pub fn of_machine() -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let maps = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let maps: Option<usize> = maps.ok().and_then(|n| n.trim().parse().ok());
        Limits::of(cores, maps.unwrap_or(LEAST_MAPS))
    }

    /// Limits for a machine of this many cores, whose kernel lets a process have this many
    /// mappings.
    pub fn of(cores: usize, kernel_maps: usize) -> Limits {
        let open = cores
            .saturating_mul(OPEN_PER_CORE)
            .clamp(MIN_OPEN, MAX_OPEN);
        let maps = kernel_maps.saturating_add(kernel_maps / 4);
        Limits {
            open: open.next_power_of_two() as u32,
            maps: maps.clamp(LEAST_MAPS, MAX_MAPS) as u32,
        }
    }

    /// Returns these limits, read from a region; None if they are invalid.
    pub(super) fn checked(self) -> Option<Limits> {
        let open = self.open.is_power_of_two() && self.open as usize <= MAX_OPEN;
        (open && self.maps > 0 && self.maps as usize <= MAX_MAPS).then_some(self)
    }
}

/// Minimum number of entries in a process's table of mappings.
pub(super) const LEAST_MAPS: usize = if cfg!(loom) { 16 } else { 1 << 16 };
/// Maximum number of entries in a process's table of mappings.
pub(super) const MAX_MAPS: usize = 1 << 22;

/// Where the tables of a control region lie: offsets in bytes, and numbers of entries.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub limits: Limits,
    pub(super) buckets: usize,
    pub(super) lock_chains: usize,
    pub(super) live_at: usize,
    pub(super) far_extents_at: usize,
    pub(super) finishers_at: usize,
    pub(super) open_at: usize,
    pub(super) open_owners_at: usize,
    pub(super) lock_chains_at: usize,
    pub(super) file_locks_at: usize,
    /// Offset of the processes' areas. Every process maps the part before them.
    pub areas_at: usize,
    /// Bytes of one process's area.
    pub area_len: usize,
}

impl Layout {
    /// The layout of a region with these limits.
    pub fn of(limits: Limits) -> Layout {
        let open = limits.open as usize;
        let (buckets, lock_chains) = ((open / 4).max(1), (open / 16).max(1));
        let live_at = align(BUCKETS_AT + buckets * size_of::<Bucket>());
        let far_extents_at = align(live_at + open * size_of::<Live>());
        let finishers_at = align(far_extents_at + open * size_of::<FarExtents>());
        let open_at = align(finishers_at + open * size_of::<AtomicU32>());
        let open_owners_at = align(open_at + open * size_of::<Open>());
        let lock_chains_at = align(open_owners_at + open * size_of::<AtomicU32>());
        let file_locks_at = align(lock_chains_at + lock_chains * size_of::<LockChain>());
        let areas_at = align(file_locks_at + open * size_of::<FileLock>());
        let maps = limits.maps as usize;
        let words = mark_words(limits.maps);
        let area_len =
            size_of::<ProcessArea>() + maps * size_of::<MapRef>() + words * size_of::<AtomicU64>();
        Layout {
            limits,
            buckets,
            lock_chains,
            live_at,
            far_extents_at,
            finishers_at,
            open_at,
            open_owners_at,
            lock_chains_at,
            file_locks_at,
            areas_at,
            area_len: align(area_len),
        }
    }

    /// Length of the whole file in bytes.
    pub fn file_len(&self) -> usize {
        self.areas_at + MAX_PROCESSES * self.area_len
    }

    /// Where the area of `slot` begins.
    pub fn area_at(&self, slot: u32) -> usize {
        self.areas_at + slot as usize * self.area_len
    }
}

/// Returns the number of 64-bit words of the marks of a table of `maps` mappings. A mark says that
/// a mapping has to lose pages. A second level marks the words that contain marks.
pub(super) fn mark_words(maps: u32) -> usize {
    let maps = maps as usize;
    maps.div_ceil(64) + maps.div_ceil(64 * 64)
}

/// Offset of the node's tracing data: the switches of tracepoints, and the counters of ended
/// processes.
pub const TRACED_AT: usize = align(size_of::<Header>());
pub(super) const SHARDS_AT: usize = align(TRACED_AT + forebay_trace::shared::LEN);
pub(super) const PROCESSES_AT: usize = align(SHARDS_AT + MAX_SHARDS * size_of::<Shard>());
pub(super) const DIR_TIMES_AT: usize = align(PROCESSES_AT + MAX_PROCESSES * size_of::<Process>());
pub(super) const BUCKETS_AT: usize = align(DIR_TIMES_AT + DIR_TIMES * size_of::<DirTime>());
