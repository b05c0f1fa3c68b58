//! Staging: copies file trees into a pool and out of it; parallel, repeatable, verified.
//!
//! One copier serves both directions. The copier works between two slow stores
//! ([`forebay_backing`]), one of which is the pool. The copier preserves modes, owners (where
//! permitted), times, symbolic links, hard links inside the tree, holes and `user.*` attributes. A
//! file that the destination already has with the same size and time isn't copied again.
//!
//! Guarantees: a file appears under its final name only when it is complete and has been read back
//! with the source's BLAKE3 checksum. Until then its name begins with `.forebay-part-`. If a run is
//! interrupted, the next run removes such files. If any file couldn't be staged, the [`Report`]
//! says so and isn't [`Report::complete`]: a partial success never looks like a success. A bucket,
//! which stores whole objects only, gives the same guarantees in another way
//! ([`forebay_backing::SlowStore::put`]).
//!
//! In a pool of several nodes, one process lists the source, creates the directories and
//! distributes the files to *movers*, one process on each node ([`Team`], [`mover()`]). On stage-in
//! it distributes by size; on stage-out, each file goes to the node that has its bytes.

mod attributes;
mod content;
mod copy;
mod files;
mod foresee;
mod job;
mod mover;
mod pace;
mod part;
mod report;
mod room;
mod salvage;
mod select;
mod team;
mod tree;
mod whole;
mod wire;

pub use attributes::{apply as apply_attributes, apply_metadata, user_attributes};
pub use content::{Care, copy as copy_content, copy_part};
pub use job::{Names, Options, Room};
pub use mover::mover;
pub use pace::Pace;
pub use part::{PREFIX as PART_PREFIX, is_part, name as part_name, sweep as sweep_parts};
pub use report::{Failure, Planned, Progress, Report, Share, StageError};
pub use salvage::conclude as conclude_salvage;
pub use select::Selection;
pub use team::{Mover, Team};
pub use tree::stage;
pub use whole::WholeFile;
