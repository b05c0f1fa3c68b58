//! Media: where the bytes of a pool are stored on one node.
//!
//! A *medium* has a *segment*, one large file: in shared memory for `memory`, on any file system
//! for `files`. The segment consists of 1 MiB *cells*, from which *extents* (runs of 4 KiB pages
//! inside one cell) are allocated. A medium's *map* has two bits per page ("in use" and
//! "initialised") and always lies in memory. All processes share the map and change it with atomic
//! operations only. So no process waits for another. A killed process leaves at worst pages without
//! an owner, which a sweep over the records finds.
//!
//! A page that isn't initialised reads as zero whatever it contains, so recycled extents needn't be
//! cleared. Room is reserved with `fallocate` before a page is handed out: so running out of space
//! is an errno, never SIGBUS. A `memory` segment is mapped and accessed by copying; a `files`
//! segment by pread and pwrite, so that an I/O error is an errno.

mod cells;
mod extent;
pub mod fault;
#[cfg(all(test, loom))]
mod loom_models;
mod medium;
pub mod memory;
mod parking;
mod pending;
mod put;
mod region;
mod spec;
mod sync;
mod touched;

pub use extent::{CELL_PAGES, Extent};
pub use medium::{Medium, Position, Usage};
pub use pending::{Changes, Lacking};
pub use put::{may_grow, put_all, set_size_limit, size_limit};
pub use region::Region;
pub use spec::{MediumKind, MediumSpec, count, format_size, parse_size, parse_time};
pub use sync::{Observer, observe_syncs, sync_all, sync_data};

/// Size of a page, the unit of allocation. Bytes.
pub const PAGE: usize = 4096;
