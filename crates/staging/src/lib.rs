//! Staging: files into a pool and out of it; parallel, repeatable, verified.
//!
//! One copier serves both directions, between two [`Place`]s: [`PlainPlace`] (any directory of the
//! kernel) and [`PoolPlace`]. It preserves modes, owners (where permitted), times, symbolic links,
//! hard links inside the tree, holes and `user.*` attributes. A file that exists already with the
//! same size and time is left alone.
//!
//! Guarantees: a file appears under its final name only when it is complete and has been read back
//! with the source's BLAKE3 checksum. Until then its name begins with `.forebay-part-`; the next
//! run removes such files of an interrupted one. What couldn't be staged is in the [`Report`],
//! which is then not [`Report::complete`]: there is no partial success. A store that takes whole
//! objects only, a bucket, promises the same by its own means ([`Objects`]).
//!
//! In a pool of several nodes, one process lists the source, creates the directories and
//! distributes the files to *movers*, a process on each node ([`Team`], [`mover()`]): on stage-in
//! by their sizes, on stage-out to the node that has their bytes.

mod attributes;
mod content;
mod copy;
mod files;
mod foresee;
mod job;
mod meta;
mod mover;
mod objects;
mod pace;
mod parallel;
mod part;
mod place;
mod plain;
mod pool;
mod report;
mod room;
mod select;
mod team;
mod tree;
mod trouble;
mod whole;
mod wire;

pub use attributes::{apply as apply_attributes, apply_metadata, user_attributes};
pub use content::{Care, copy as copy_content, copy_part};
pub use job::{Names, Options, Room};
pub use meta::Meta;
pub use mover::mover;
pub use objects::{Objects, Source};
pub use pace::Pace;
pub use parallel::{for_each, map};
pub use part::{PREFIX as PART_PREFIX, is_part, name as part_name, sweep as sweep_parts};
pub use place::{Place, PlaceFile, explain};
pub use plain::PlainPlace;
pub use pool::{PoolFile, PoolPlace};
pub use report::{Failure, Planned, Progress, Report, Share, StageError};
pub use select::Selection;
pub use team::{Mover, Team};
pub use tree::stage;
pub use trouble::Trouble;
pub use whole::WholeFile;

use forebay_posix::Fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Stages `src`, a file or the content of a directory, to `dst` in the pool.
///
/// # Errors
/// [`StageError`] if it can't begin. Later failures are in the report.
pub fn stage_in(
    fs: &Fs,
    mount: &str,
    src: &Path,
    dst: &[u8],
    options: &Options,
    progress: &Progress,
    team: &Team,
) -> Result<Report, StageError> {
    let pool = PoolPlace::new(fs, mount);
    tree::stage(
        &PlainPlace,
        src.as_os_str().as_bytes(),
        &pool,
        dst,
        options,
        progress,
        team,
    )
}

/// Stages `src` in the pool, a file or the content of a directory, to `dst`.
///
/// # Errors
/// [`StageError`] if it can't begin. Later failures are in the report.
pub fn stage_out(
    fs: &Fs,
    mount: &str,
    src: &[u8],
    dst: &Path,
    options: &Options,
    progress: &Progress,
    team: &Team,
) -> Result<Report, StageError> {
    let pool = PoolPlace::new(fs, mount);
    tree::stage(
        &pool,
        src,
        &PlainPlace,
        dst.as_os_str().as_bytes(),
        options,
        progress,
        team,
    )
}
