//! Operations that need exclusive use of a striped file: truncation, and appending after its first
//! chunk.
//!
//! A truncation is called a cut. The cutting process holds the file's lease, which the home gives
//! it for a limited time. The cutting process first cuts all parts, each of which counts its cuts,
//! then the object at the home. The cut takes effect with the latter. If the process dies before,
//! some parts have counted one cut more than the home, and the next process that notices this
//! completes the cut ([`Stripes::settle_cut`]). A lease whose holder is dead, or whose time is
//! over, can be taken over: the new holder truncates the file to its present size, so that requests
//! of the former holder that are still in progress are refused.

use super::writing::{Content, InPlace};
use super::*;
use crate::peers::requests::request;
use forebay_store::process::{identity, identity_lives};
use forebay_store::stripe_units::Holder;

/// A lease that this process holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub number: u64,
    pub known: Known,
}

impl<'a> Stripes<'a> {
    /// Waits for the file's lease and returns it. Takes over the lease if its holder is dead.
    pub(super) fn lease(&self, f: &Striped) -> Result<Lease> {
        let me = identity(&self.store().control, self.store().process_slot()?);
        let mut backoff = Backoff::new();
        let mut over = None;
        for n in 1u32.. {
            let reply = match f.home {
                None => {
                    let node = self.cluster.other_nodes()?.this_node();
                    self.store().parts().lease_here(f.index, (node, me), over)?
                }
                Some(home) => self.cluster.ask(home, request::LEASE, &(f.id, me, over))?,
            };
            let holder: Holder = match reply {
                Ok((number, size, cuts, appends, taken, word)) => {
                    let known = Known {
                        size,
                        cuts,
                        appends,
                        word,
                    };
                    let lease = Lease { number, known };
                    self.learn(f, word);
                    if taken {
                        self.finish_cut(f, lease)?;
                        over = None;
                        continue;
                    }
                    return Ok(lease);
                }
                Err(holder) => holder,
            };
            backoff.wait()?;
            if n.is_multiple_of(4) && self.lessee_is_dead(&holder) {
                over = Some(holder.2);
            }
        }
        Err(Errno::HOSTDOWN)
    }

    /// Whether the holder of a lease is known to be dead. If the holder's node can't be asked,
    /// returns false: then the lease has to expire.
    fn lessee_is_dead(&self, (node, process, _): &Holder) -> bool {
        let node = NodeId(*node);
        if self
            .cluster
            .other_nodes()
            .is_ok_and(|o| o.this_node() == node)
        {
            return !identity_lives(&self.store().control, *process);
        }
        self.cluster.ask(node, request::LIVES, process) == Ok(false)
    }

    /// Releases the lease, after truncating or extending the file to `size`. EXFULL if another
    /// process has taken over the lease.
    pub(super) fn end_lease(
        &self,
        f: &Striped,
        lease: Lease,
        cuts: u64,
        size: Option<u64>,
    ) -> Result<()> {
        let as_of = (cuts, lease.known.appends);
        let ours = match f.home {
            None => self
                .store()
                .parts()
                .end_lease_here(f.index, lease.number, as_of, size)?,
            Some(home) => {
                let arguments = (f.id, lease.number, as_of, size);
                self.cluster.ask(home, request::END_LEASE, &arguments)?
            }
        };
        if ours { Ok(()) } else { Err(CHANGED) }
    }

    /// Truncates all parts, on any nodes.
    pub(super) fn cut_parts(&self, f: &Striped, cuts: u64, size: u64) -> Result<()> {
        let mut nodes = self.part_nodes(f.id)?;
        nodes.retain(|&node| Some(node) != f.lost);
        let reply = self
            .cluster
            .ask_each(&nodes, request::CUT_PART, &(f.id, cuts, size));
        reply.into_iter().collect::<Result<()>>()?;
        if f.home.is_some() {
            self.store().parts().cut_part(f.id, cuts, size)?;
        }
        Ok(())
    }

    /// Completes the truncation that the former holder of `lease` has begun, or truncates the file
    /// to its present size. Releases the lease.
    fn finish_cut(&self, f: &Striped, lease: Lease) -> Result<()> {
        let Known { size, cuts, .. } = lease.known;
        let (cuts, size) = self.cut_ahead(f, cuts)?.unwrap_or((cuts + 1, size));
        self.cut_parts(f, cuts, size)?;
        self.end_lease(f, lease, cuts, Some(size))
    }

    /// Completes, under the lease, a truncation whose process has died. If there was one, releases
    /// the lease and returns EXFULL.
    pub(super) fn complete_cut(&self, f: &Striped, lease: Lease) -> Result<()> {
        match self.cut_ahead(f, lease.known.cuts)? {
            None => Ok(()),
            Some((cuts, size)) => {
                self.cut_parts(f, cuts, size)?;
                self.end_lease(f, lease, cuts, Some(size))?;
                Err(CHANGED)
            }
        }
    }

    /// Checks, under the lease, that the declared controls permit the change. If not, releases the
    /// lease and returns EPERM.
    fn check_leased(&self, f: &Striped, lease: Lease, change: Change) -> Result<()> {
        let Known {
            size, cuts, word, ..
        } = lease.known;
        check_word(word, size, change).or_else(|e| {
            self.end_lease(f, lease, cuts, None)?;
            Err(e)
        })
    }

    /// Returns the truncation that some part has carried out and the home hasn't, if there is one:
    /// its number, and the new size.
    fn cut_ahead(&self, f: &Striped, cuts: u64) -> Result<Option<(u64, u64)>> {
        let parts = self.part_inodes(f.id, f.lost)?;
        let ahead = parts.iter().filter(|part| part.cuts > cuts);
        Ok(ahead
            .max_by_key(|part| part.cuts)
            .map(|part| (part.cuts, part.cut_size)))
    }

    /// As [`Stripes::settle_cut`], for a file that needn't be open.
    pub(super) fn settle_cut_of(&self, id: ObjectId) -> Result<()> {
        let (index, held) = self.cluster.opens().live_acquire_held(id)?;
        let settled = match self.striped(index) {
            Some(f) => self.settle_cut(&f),
            None => Ok(()),
        };
        drop(held);
        self.store().objects().live_release(index).and(settled)
    }

    /// Completes a truncation whose process has died, if there is one.
    pub(super) fn settle_cut(&self, f: &Striped) -> Result<()> {
        let lease = self.lease(f)?;
        self.complete_cut(f, lease)
            .and_then(|()| self.end_lease(f, lease, lease.known.cuts, None))
            .or_else(|e| if e == CHANGED { Ok(()) } else { Err(e) })
    }

    /// As [`FileData::truncate`], for a striped or spilled file.
    pub(crate) fn truncate_striped(&self, f: &Striped, size: u64) -> Result<()> {
        self.retry_cut(f, || {
            let done = match f.home {
                None => self
                    .store()
                    .content()
                    .truncate_here(f.index, |live| self.store().parts().may_cut(live, size)),
                Some(home) => self.cluster.ask(home, request::TRUNCATE, &(f.id, size)),
            };
            if done != Err(CHANGED) {
                return done;
            }
            let lease = self.lease(f)?;
            self.complete_cut(f, lease)?;
            self.check_leased(f, lease, Change::Size(size))?;
            let Known {
                size: old, cuts, ..
            } = lease.known;
            if size >= old {
                // The file has at most `size` bytes now, so no part has to be truncated.
                return self.end_lease(f, lease, cuts, Some(size));
            }
            self.cut_parts(f, cuts + 1, size)?;
            self.end_lease(f, lease, cuts + 1, Some(size))
        })
    }

    /// Writes under the file's lease. `offset` None: appends, where the file's end lies behind the
    /// first chunk before or after the write. The bytes in `in_place` aren't written again.
    ///
    /// # Safety
    /// [`Content::Bytes`] must be readable for `len` bytes.
    pub(super) unsafe fn write_leased(
        &self,
        f: &Striped,
        offset: Option<u64>,
        (content, len): (Content, usize),
        in_place: InPlace,
    ) -> Result<(u64, usize)> {
        self.retry_cut(f, || {
            let lease = self.lease(f)?;
            self.check_leased(f, lease, Change::From(offset))?;
            let Known { size, cuts, .. } = lease.known;
            let at = offset.unwrap_or(size);
            let fits = at
                .checked_add(len as u64)
                .is_some_and(|end| end <= MAX_SIZE);
            let written = if fits {
                // SAFETY: the caller promises that `content` is readable for `len` bytes.
                unsafe { self.write_rest(f, lease.known, at, (content, len), in_place) }
            } else {
                Err(Errno::FBIG)
            };
            let (done, error) = match written {
                Ok(written) => written,
                Err(e) => {
                    self.end_lease(f, lease, cuts, None)?;
                    return Err(e);
                }
            };
            let end = (done > 0).then_some(at + done as u64);
            self.end_lease(f, lease, cuts, end)?;
            match error {
                Some(e) if done == 0 => Err(e),
                _ => Ok((at, done)),
            }
        })
    }
}
