//! Caches on this node the bytes that were read from other nodes' laminated files.
//!
//! A laminated file doesn't change within one edition. A copy belongs to one edition and is used
//! for that edition only. A read fetches the whole chunks that it touches, at most 8 MiB at a time,
//! and caches them if this node has room for copies. The keeper asks the homes which copies are
//! still valid, and removes the others. The store creates and removes the copies
//! (`store/src/cached_copies.rs`).

use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::views::FileData;
use forebay_runtime::guard;
use forebay_store::cached_copies::{Copy, Last};
use forebay_store::{CHUNK, NodeId, Result, Slot};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Maximum number of bytes that are fetched at once.
const MAX_FETCH_BYTES: u64 = 8 * CHUNK;
/// Maximum number of copies in one request.
const BATCH: usize = 1000;

impl<'a> FileData<'a> {
    /// As [`FileData::read`], for a laminated file whose bytes this node may cache.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(crate) unsafe fn read_last(
        &self,
        index: u32,
        last: Last,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let len = len.min(last.size.saturating_sub(offset) as usize);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            // SAFETY: done < len, so the address lies in the caller's buffer.
            let (out, left) = (unsafe { to.add(done) }, len - done);
            // SAFETY: `left` bytes of the caller's buffer follow from `out` on.
            match unsafe { self.read_next(index, last, at, out, left) } {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads at most `len` bytes from `at` on: up to the end of the chunk, or more if one fetch
    /// brings more. The range must lie within the file. Returns the number of bytes.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    unsafe fn read_next(
        &self,
        index: u32,
        last: Last,
        at: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let n = len.min((CHUNK - at % CHUNK) as usize);
        if self.lies_here(index, at) {
            // SAFETY: n <= len, so the range lies in the caller's buffer.
            return unsafe { self.read_where_it_lies(index, at, to, n) };
        }
        let copy = self.store().local_copies().copy_of(index, last);
        if let Some(copy) = copy {
            // SAFETY: n <= len, so the range lies in the caller's buffer.
            if unsafe {
                self.store()
                    .local_copies()
                    .read_copy(copy, last, at, Some(to), n)?
            } {
                return Ok(n);
            }
        }
        // One read fetches all chunks of the range up to the first one that is cached or lies on
        // this node. The fetched chunks may lie on several nodes.
        let first = at / CHUNK * CHUNK;
        let most = last.size.min(first + MAX_FETCH_BYTES);
        let wanted = (at + len as u64).min(most);
        let mut end = first + CHUNK;
        while end < wanted && !self.lies_here(index, end) {
            let n = (last.size - end).min(CHUNK) as usize;
            // SAFETY: without a target (None), nothing is written.
            let there = |copy| unsafe {
                self.store()
                    .local_copies()
                    .read_copy(copy, last, end, None, n)
            };
            if copy.is_some_and(|copy| there(copy) == Ok(true)) {
                break;
            }
            end += CHUNK;
        }
        let end = end.min(most);
        let n = (wanted.min(end) - at) as usize;
        let bytes = (end - first) as usize;
        let mut fetched: Vec<u8> = Vec::new();
        if !self.store().local_copies().may_copy() || fetched.try_reserve_exact(bytes).is_err() {
            // SAFETY: n <= len, so the range lies in the caller's buffer.
            return unsafe { self.read_where_it_lies(index, at, to, n) };
        }
        // SAFETY: the vector has room for `bytes` bytes, of which the read has written `n`.
        unsafe {
            let n = self.read_where_it_lies(index, first, fetched.as_mut_ptr(), bytes)?;
            fetched.set_len(n);
        }
        if fetched.len() == bytes {
            // If the bytes can't be cached, the next read fetches them again.
            let _: Result<()> = self
                .store()
                .local_copies()
                .keep_copy(index, last, first, &fetched);
        }
        // Fewer than `bytes` bytes came if the file was made mutable again and truncated since.
        let skip = ((at - first) as usize).min(fetched.len());
        let n = n.min(fetched.len() - skip);
        // SAFETY: n <= len, and `fetched` has `n` bytes after the first `skip`.
        if unsafe { guard::copy(fetched.as_ptr().add(skip), to, n) } {
            Ok(n)
        } else {
            Err(Errno::FAULT)
        }
    }

    /// Whether the chunk at this offset of an open file lies on this node: then this node needs no
    /// copy.
    fn lies_here(&self, index: u32, offset: u64) -> bool {
        let (Some(f), Ok(others)) = (
            self.cluster.stripes().striped(index),
            self.cluster.other_nodes(),
        ) else {
            return false;
        };
        !f.spilled
            && others.node_of(Slot::of_chunk(f.id, f.chunk.chunk_of(offset))) == others.this_node()
    }

    /// Removes the copies whose files were removed or replaced. Returns the number of copies that
    /// are left. Copies of an unreachable node's files aren't removed until the node can be
    /// reached.
    ///
    /// # Errors
    /// EIO.
    pub fn sweep_copies(&self) -> Result<usize> {
        if self.store().remote.is_none() {
            return Ok(0);
        }
        let all = self.store().local_copies().all_copies()?;
        let mut by_home: BTreeMap<Option<NodeId>, Vec<&Copy>> = BTreeMap::new();
        for copy in &all {
            let home = self.cluster.remote_home(copy.id.whole());
            by_home.entry(home).or_default().push(copy);
        }
        let (mut left, mut result) = (0, Ok(()));
        for (home, copies) in by_home {
            let mut silent = false;
            for batch in copies.chunks(BATCH) {
                if silent {
                    left += batch.len();
                    continue;
                }
                let asked = List(batch.iter().map(|c| (c.id.whole(), c.edition)).collect());
                let stand = match home {
                    Some(home) => self
                        .cluster
                        .ask(home, request::COPIED, &asked)
                        .map(|List(l)| l),
                    None => (asked.0.iter())
                        .map(|&(id, edition)| self.store().local_copies().stands(id, edition))
                        .collect(),
                };
                silent = stand.is_err();
                let stand: Vec<bool> = stand.unwrap_or_else(|_| vec![true; batch.len()]);
                for (copy, stands) in batch.iter().zip(stand) {
                    if stands {
                        left += 1
                    } else {
                        result = self.store().local_copies().drop_copy(copy.id).and(result)
                    }
                }
            }
        }
        self.store().local_copies().recount_copied()?;
        self.store().local_copies().make_room(0);
        result.map(|()| left)
    }
}
