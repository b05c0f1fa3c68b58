//! The table of workloads: names, amounts, goals.

/// The unit of a rate.
#[derive(Clone, Copy, PartialEq)]
pub enum Unit {
    /// Operations, shown in thousands per second.
    Operations,
    /// Bytes, shown in GB (10^9 bytes) per second. The worker counts blocks of 1 MiB.
    Bytes,
}

impl Unit {
    /// Converts a rate to the unit in which it is shown.
    pub fn shown(self, operations_per_second: f64) -> f64 {
        match self {
            Unit::Operations => operations_per_second / 1e3,
            Unit::Bytes => operations_per_second * MIB as f64 / 1e9,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Unit::Operations => "k/s",
            Unit::Bytes => "GB/s",
        }
    }
}

/// Size of a large block. Bytes.
pub const MIB: usize = 1 << 20;
/// Size of a small file: the size that comparisons with mdtest usually use. Bytes.
pub const SMALL: usize = 3901;
/// Maximum size of all files of blocks of one run together. Bytes.
const MAX_RUN_BYTES: usize = 1 << 30;

/// The amount of work of one process.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Number of files, or of blocks of a file.
    pub count: usize,
    /// Number of passes over the files or blocks. For `seq-write-4k` and `map-fresh`: number of
    /// files.
    pub passes: usize,
}

pub struct Workload {
    pub name: &'static str,
    pub about: &'static str,
    pub unit: Unit,
    /// The project's goal for the ratio of pool to plain, if there is one.
    pub goal: Option<f64>,
    quick: Amount,
    full: Amount,
    /// Size of one of the `count` blocks, if [`MAX_RUN_BYTES`] applies; else 0. Bytes.
    block: usize,
}

impl Workload {
    /// Whether each pass makes a file that stays until the end.
    fn is_new_files(&self) -> bool {
        matches!(self.name, "seq-write-4k" | "map-fresh")
    }

    /// Returns the amount of work of one of `procs` processes, within [`MAX_RUN_BYTES`].
    pub fn amount(&self, quick: bool, procs: usize) -> Amount {
        let mut amount = if quick { self.quick } else { self.full };
        if let Some(share) = (MAX_RUN_BYTES / procs).checked_div(self.block) {
            amount.count = amount.count.min(share.max(1));
            if self.is_new_files() {
                amount.passes = amount.passes.min((share / amount.count).max(1));
            }
        }
        amount
    }
}

const fn amount(count: usize, passes: usize) -> Amount {
    Amount { count, passes }
}

const fn operations(
    name: &'static str,
    about: &'static str,
    goal: Option<f64>,
    quick: Amount,
    full: Amount,
) -> Workload {
    Workload {
        name,
        about,
        unit: Unit::Operations,
        goal,
        quick,
        full,
        block: 0,
    }
}

const fn small_blocks(
    name: &'static str,
    about: &'static str,
    quick: usize,
    full: usize,
) -> Workload {
    Workload {
        block: 4096,
        ..operations(
            name,
            about,
            Some(1.0),
            amount(16384, quick),
            amount(16384, full),
        )
    }
}

const fn large_blocks(
    name: &'static str,
    about: &'static str,
    goal: Option<f64>,
    quick: Amount,
    full: Amount,
) -> Workload {
    Workload {
        unit: Unit::Bytes,
        block: MIB,
        ..operations(name, about, goal, quick, full)
    }
}

const fn pages(name: &'static str, about: &'static str, quick: Amount, full: Amount) -> Workload {
    Workload {
        block: 4096,
        ..operations(name, about, None, quick, full)
    }
}

/// All workloads, in the order in which they run. `list` is last, since its directory stays until
/// the end.
pub const WORKLOADS: &[Workload] = &[
    operations(
        "create",
        "create and close empty files, one directory for all",
        Some(1.5),
        amount(8_000, 1),
        amount(60_000, 1),
    ),
    operations(
        "stat",
        "stat of empty files",
        Some(1.2),
        amount(8_000, 3),
        amount(40_000, 6),
    ),
    operations(
        "open-close",
        "open for reading and close",
        Some(1.0),
        amount(8_000, 2),
        amount(40_000, 4),
    ),
    operations(
        "unlink",
        "unlink of empty files, one directory for all",
        Some(1.5),
        amount(8_000, 1),
        amount(60_000, 1),
    ),
    operations(
        "small-write",
        "create, write 3901 bytes, close",
        Some(1.2),
        amount(5_000, 1),
        amount(30_000, 1),
    ),
    operations(
        "small-read",
        "open, read 3901 bytes, close",
        Some(1.2),
        amount(5_000, 2),
        amount(20_000, 6),
    ),
    operations(
        "mkdir-rmdir",
        "mkdir and rmdir (a pair is one operation)",
        None,
        amount(5_000, 1),
        amount(40_000, 1),
    ),
    operations(
        "rename",
        "rename of empty files within the directory",
        None,
        amount(8_000, 1),
        amount(60_000, 1),
    ),
    operations(
        "append",
        "write 100 bytes to a file of its own with O_APPEND",
        None,
        amount(30_000, 1),
        amount(250_000, 1),
    ),
    small_blocks(
        "seq-write-4k",
        "write 4 KiB blocks one after the other, new 64 MiB files",
        1,
        4,
    ),
    small_blocks(
        "seq-read-4k",
        "read 4 KiB blocks one after the other, a 64 MiB file",
        3,
        16,
    ),
    small_blocks(
        "rand-write-4k",
        "pwrite 4 KiB blocks at random, an existing 64 MiB file",
        2,
        10,
    ),
    small_blocks(
        "rand-read-4k",
        "pread 4 KiB blocks at random, a 64 MiB file",
        3,
        16,
    ),
    large_blocks(
        "fresh-1m",
        "write 1 MiB blocks into a new file (128 or 256 MiB)",
        Some(2.0),
        amount(128, 1),
        amount(256, 1),
    ),
    large_blocks(
        "overwrite-1m",
        "pwrite 1 MiB blocks over those of a file",
        None,
        amount(128, 2),
        amount(256, 4),
    ),
    large_blocks(
        "read-1m",
        "pread 1 MiB blocks of a file",
        Some(1.2),
        amount(128, 3),
        amount(256, 6),
    ),
    pages(
        "map-read",
        "mmap a 64 MiB file, load from each page",
        amount(16_384, 3),
        amount(16_384, 16),
    ),
    pages(
        "map-fresh",
        "ftruncate a new file to 64 MiB, mmap it, store to each page",
        amount(16_384, 1),
        amount(16_384, 4),
    ),
    pages(
        "map-grow",
        "write a page at the end of a file, load it through a mapping",
        amount(2_048, 1),
        amount(8_192, 2),
    ),
    operations(
        "list",
        "opendir, readdir to the end; 100 000 or 1 000 000 files (an entry is one operation)",
        Some(1.5),
        amount(100_000, 2),
        amount(1_000_000, 1),
    ),
];

/// The costs for uninvolved programs: name, description.
pub const COSTS: &[(&str, &str)] = &[
    ("run", "forebay run -- true, beside true"),
    (
        "exec",
        "posix_spawn of /bin/true 200 times, by a process under forebay exec",
    ),
    (
        "script",
        "a shell script of 20 short programs under forebay exec, outside and inside of the pool",
    ),
    (
        "unrelated",
        "system calls that have nothing to do with the pool",
    ),
];

/// The measurements on several nodes, which `--only` can select: name, description.
pub const NODE_MEASUREMENTS: &[(&str, &str)] = &[
    (
        "latency",
        "one stat, open, create, 4 KiB read or write on another node, and a TCP round trip",
    ),
    (
        "transfers",
        "1 and 16 MiB read and written on another node, and a TCP stream",
    ),
    (
        "consistency",
        "8 KiB after 8 KiB to and from a file on another node, by its consistency, beside the strict default",
    ),
    (
        "copies",
        "64 MiB from file to file, here, on another node and between two others: copy_file_range, beside reading and writing",
    ),
    (
        "laminated",
        "a laminated file of another node, read for the second time, and one of the same node",
    ),
    (
        "spread",
        "creates and stats of 4 and 8 processes on 4 nodes, and on /dev/shm",
    ),
    ("starts", "forebay up of 1, 2, 4 and 8 nodes"),
    (
        "wide-list",
        "listing 100 000 or 1 000 000 files made from all nodes: seconds and memory",
    ),
];

/// The measurement of a mount: name, description.
pub const MOUNT: (&str, &str) = (
    "fuse",
    "a pool through a mount, beside a trivial pass-through file system (FUSE)",
);
/// The measurement of searches: name, description.
pub const SEARCH: (&str, &str) = (
    "search",
    "100 of 1 000 000 collections found by the verbs, on 1 and 4 nodes (only when asked for, or in a long run)",
);
/// The measurement of batches: name, description.
pub const BATCHES: (&str, &str) = (
    "batches",
    "batches of 1000 creates and deletes by the verbs on 4 nodes, beside one by one; with requests for each",
);

#[cfg(test)]
mod tests {
    use super::{MAX_RUN_BYTES, WORKLOADS};

    #[test]
    fn files_of_blocks_stay_within_the_bound() {
        for w in WORKLOADS {
            for (quick, procs) in [(true, 1), (true, 64), (false, 1), (false, 4), (false, 64)] {
                let amount = w.amount(quick, procs);
                assert!(amount.count > 0 && amount.passes > 0, "{}", w.name);
                let files = if w.is_new_files() { amount.passes } else { 1 };
                let bytes = procs * files * amount.count * w.block;
                assert!(bytes <= MAX_RUN_BYTES, "{} {procs}: {bytes}", w.name);
            }
        }
    }
}
