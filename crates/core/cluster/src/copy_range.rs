//! Copies bytes from file to file, without passing them through the requesting process's memory.
//!
//! The node that is to store the copied bytes carries out the copy ([`FileData::copy_in`]). That
//! node copies the source bytes that it stores itself from page to page (`store/src/data/copy.rs`)
//! and reads the others from their nodes, 1 MiB at a time, without a lock. For a copy into a file
//! of another node, a process sends that node a request of a few bytes. For a copy into a striped
//! file, the process sends a request to each node with chunks.
//!
//! A copy is done in steps of at most [`COPIED_AT_ONCE`] bytes and about half a second. A step
//! consists of several writes, each of which takes effect when it is done. An error in the middle
//! of a step ends the step; the next step returns it.

mod remote;

use crate::live::with_open;
use crate::peers::MAX_BODY;
use crate::views::FileData;
use forebay_store::control_region::Live;
use forebay_store::controls::Change;
use forebay_store::data::overlap;
use forebay_store::stripe_units::CHANGED;
use forebay_store::views::Parts;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Maximum number of bytes that one step copies, and that one request to a node may contain.
pub const COPIED_AT_ONCE: u64 = 8 << 20;
/// Time after which a step begins no further write, so that the requesting process doesn't take the
/// node for dead.
const MAX_STEP_TIME: Duration = Duration::from_millis(500);

/// A range to be copied: offset in the source, offset in the target, length. Bytes.
pub(crate) type Range = (u64, u64, u64);

/// The source of the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// A file that is open on this node and lies on any node.
    Open(u32),
    /// A file of another node. The requesting process keeps the file open.
    On(NodeId, ObjectId),
}

/// The object of this node into which bytes are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// A file. The copy is for a process of the given node; None: of this node.
    File(Option<NodeId>),
    /// The bytes of a striped file at its home (they may lie beyond the file's end), and the number
    /// of the file's truncations.
    Behind(u64),
    /// A part of a striped file; and the number of the file's truncations.
    Part(u64),
}

impl Target {
    fn grows(self) -> bool {
        !matches!(self, Target::Behind(_))
    }
}

impl<'a> FileData<'a> {
    /// Copies up to `len` bytes of one open file, from an offset on, to an offset of another.
    /// Returns the number of bytes copied. A number less than `len` doesn't mean that the first
    /// file ends; 0 does.
    ///
    /// # Errors
    /// EINVAL if both are the same file and the ranges overlap; the errors of reading the first
    /// file and of writing the second.
    pub fn copy(&self, (from, at): (u32, u64), (to, to_at): (u32, u64), len: u64) -> Result<u64> {
        let len = len.min(COPIED_AT_ONCE);
        if from == to && overlap(at, to_at, len) {
            return Err(Errno::INVAL);
        }
        self.cluster.locks().check_lease(from)?;
        self.cluster.locks().check_lease(to)?;
        let len = len as usize;
        let done = if let Some(file) = self.cluster.stripes().striped(to) {
            self.cluster
                .declarations()
                .check_striped(to, Change::From(Some(to_at)))?;
            self.cluster
                .stripes()
                .copy_striped((from, at), &file, to_at, len)
        } else {
            let range = (at, to_at, len as u64);
            let done = match self.cluster.opens().remote_live(to) {
                Some(remote) => self.copy_remote((from, at), remote, to_at, len),
                None => self.copy_in(Source::Open(from), to, &[range], Target::File(None)),
            };
            match self.cluster.stripes().spilled_by(to, &done)? {
                Some(file) => self
                    .cluster
                    .stripes()
                    .copy_striped((from, at), &file, to_at, len),
                None => done,
            }
        };
        match done {
            Err(Errno::NODATA) => Ok(0),
            done => done.map(|n| n as u64),
        }
    }

    /// Copies ranges, one after another, to an object of this node. Returns the number of bytes, at
    /// least one.
    ///
    /// # Errors
    /// ENODATA: the source ends before the ranges; else as for [`FileData::copy`].
    pub(crate) fn copy_in(
        &self,
        source: Source,
        index: u32,
        ranges: &[Range],
        target: Target,
    ) -> Result<usize> {
        let begun = Instant::now();
        let mut buffer = Vec::new();
        let mut done = 0;
        for &(at, to_at, len) in ranges {
            let mut n = 0;
            while n < len {
                if done > 0 && begun.elapsed() >= MAX_STEP_TIME {
                    return Ok(done);
                }
                let most = (len - n).min(MAX_BODY as u64) as usize;
                let (at, to_at) = (at + n, to_at + n);
                match self.copy_piece((source, at), index, to_at, most, target, &mut buffer) {
                    Ok(more) => (n, done) = (n + more as u64, done + more),
                    Err(e) if done == 0 => return Err(e),
                    // The caller requests the rest, and then gets the error.
                    Err(_) => return Ok(done),
                }
            }
        }
        Ok(done)
    }

    /// Copies one piece of at most 1 MiB. Returns the number of bytes, at least one.
    fn copy_piece(
        &self,
        (source, at): (Source, u64),
        index: u32,
        to_at: u64,
        len: usize,
        target: Target,
        buffer: &mut Vec<u8>,
    ) -> Result<usize> {
        if let Source::Open(from) = source
            && !self.is_remote(from)
        {
            let copy = || {
                let check = |live: &Live, len| self.check_target(live, to_at, len, target);
                self.store().content().copy_here(
                    (from, at),
                    (index, to_at),
                    len,
                    target.grows(),
                    check,
                )
            };
            match self.cluster.namespace().with_room_of_the_removed(copy) {
                // The source was spilled to other nodes meanwhile: fetch its bytes.
                Err(CHANGED) if self.is_remote(from) => {}
                done => return done,
            }
        }
        self.fetch(buffer, source, at, len)?;
        self.cluster
            .namespace()
            .with_room_of_the_removed(|| self.put_fetched(buffer, index, to_at, target))
    }

    /// Reads up to `len` bytes of a source, from `at` on, into `buffer`.
    fn fetch(&self, buffer: &mut Vec<u8>, source: Source, at: u64, len: usize) -> Result<()> {
        buffer.clear();
        buffer.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the vector has room for `len` bytes, of which `n` have been written.
        unsafe {
            let to = buffer.as_mut_ptr();
            let n = match source {
                Source::Open(from) => self.read(from, at, to, len)?,
                Source::On(node, id) => match self.read_remote((node, id), at, to, len) {
                    Err(CHANGED) => {
                        with_open(&self.cluster, id, |live| self.read(live, at, to, len))?
                    }
                    read => read?,
                },
            };
            buffer.set_len(n);
        }
        if buffer.is_empty() {
            Err(Errno::NODATA)
        } else {
            Ok(())
        }
    }

    fn put_fetched(&self, bytes: &[u8], index: u32, at: u64, target: Target) -> Result<usize> {
        let input = (bytes.as_ptr(), bytes.len());
        let check = |live: &Live| self.check_target(live, at, bytes.len(), target);
        // SAFETY: `input` is the slice `bytes`, which outlives the call.
        unsafe {
            self.store()
                .content()
                .write_here(index, Some(at), input, target.grows(), check)
        }
        .map(|(_, n)| n)
    }

    /// Checks whether a target, which the caller has locked, may be written to.
    fn check_target(&self, live: &Live, at: u64, len: usize, target: Target) -> Result<()> {
        match target {
            Target::File(by) => {
                live.change_by(by);
                self.store().parts().may_write(live, Some(at), len)
            }
            Target::Behind(cuts) => Parts::check_behind(live, cuts, at, len),
            Target::Part(cuts) => Parts::check_cuts(live, cuts),
        }
    }
}
