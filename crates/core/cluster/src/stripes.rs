//! Files whose chunks are spread over the nodes (distribution `striped`).
//!
//! The object of a striped file lies at its home, with its size and chunk 0. So a file of one chunk
//! is like any other. Each other node may have a *part*, a separate object ([`ObjectId::part`]): a
//! sparse file that contains that node's chunks at the offsets of the whole file. A node creates
//! its part when one of its chunks is first written.
//!
//! - A write sends its pieces to all their nodes at once. A write that makes the file longer then
//!   reports the new end to the home (GROW). So every byte below the size has been written. If
//!   another process has appended meanwhile, or is appending, the home refuses the new end, and the
//!   write is repeated after the append.
//! - A read needs the size. A process may use the size of the home's last reply until the file is
//!   cut (truncated); *cuts* counts the truncations. Each request to a part contains the number of
//!   cuts that the requesting process knows. A part that was cut since refuses (EXFULL), and the
//!   process fetches the size and the cuts from the home again.
//! - Cutting ([`cuts`]) truncates all parts, then the object at the home. To cut, a process needs
//!   the file's *lease*, which only one process has at a time. Appending behind chunk 0 needs the
//!   lease, too.
//!
//! The module [`seal`] handles controls that are declared while the file is open. [`placed`]
//! handles spilled files, which differ from striped ones only in where their chunks lie.
//!
//! A read or write of at most 1 MiB within one chunk is atomic, as in any other file. During a
//! longer write to existing bytes, readers may see some pieces before others. All bytes that a
//! write adds to the file appear at one moment.

mod cuts;
mod merged;
mod own;
mod placed;
mod seal;
mod whole;
mod writing;

use crate::backoff::Backoff;
use crate::peers::requests::request;
use crate::peers::{Bytes, MAX_BODY, PeerReply, PeerRequest};
use crate::views::Stripes;
use forebay_runtime::guard;
use forebay_store::control_region::live_flag as flag;
use forebay_store::controls::{Change, check_word};
use forebay_store::data::MAX_SIZE;
use forebay_store::stripe_units::{CHANGED, Known};
use forebay_store::views::Parts;
use forebay_store::{ChunkSize, NodeId, ObjectId, Result, Slot};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// Maximum number of pieces of one call that are in progress at the same time.
const MAX_PIECES_IN_FLIGHT: usize = 64;

/// A striped file that this process has open.
pub(crate) struct Striped {
    pub id: ObjectId,
    /// Index of the file's live entry on this node. On other nodes than the home, the entry has the
    /// flag `REMOTE`.
    pub index: u32,
    pub chunk: ChunkSize,
    /// The file's home; None if that is this node.
    pub home: Option<NodeId>,
    /// Whether the file is spilled: then records at its home contain the locations of its chunks.
    pub spilled: bool,
    /// A node that is unreachable and fenced off, so that its part isn't truncated.
    pub lost: Option<NodeId>,
}

/// Where a piece of a range lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In the object itself, on this node.
    Object,
    /// In this node's part.
    Part,
    /// In the object itself, on another node: its home.
    Home(NodeId),
    /// In the part on this other node.
    On(NodeId),
}

/// A piece of a range: `len` bytes at `offset` of the file. The piece begins `done` bytes after the
/// start of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    place: Place,
    offset: u64,
    done: usize,
    len: usize,
}

impl<'a> Stripes<'a> {
    /// Returns the open file with the live entry `index`, if it is striped or spilled.
    #[inline]
    pub(crate) fn striped(&self, index: u32) -> Option<Striped> {
        let live = self.store().objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let (chunk, spilled) = match id.stripe() {
            Some(chunk) => (chunk, false),
            None if live.flags.load(Acquire) & flag::PARTS != 0 => (ChunkSize::LEAST, true),
            None => return None,
        };
        if id.is_part() || self.store().remote.is_none() {
            return None;
        }
        Some(Striped {
            id,
            index,
            chunk,
            home: self.cluster.remote_home(id),
            spilled,
            lost: None,
        })
    }

    /// Whether all of `offset..offset + len` lies at the home.
    fn is_first(f: &Striped, offset: u64, len: usize) -> bool {
        !f.spilled && offset.saturating_add(len as u64) <= f.chunk.bytes()
    }

    /// Returns the size and the cuts that are known without a request: at the home the present
    /// ones, on other nodes those of the home's last reply.
    fn known(&self, f: &Striped) -> Option<Known> {
        let live = self.store().objects().live(f.index);
        let cuts = live.cuts.load(Acquire);
        let appends = live.appends.load(Acquire);
        let size = live.size.load(Acquire);
        if live.cuts.load(Acquire) != cuts || f.home.is_some() && size == 0 {
            return None;
        }
        Some(Known {
            size,
            cuts,
            appends,
            word: live.controls.load(Acquire),
        })
    }

    /// Asks the home for the size, the cuts and the controls. `write` announces to the home that
    /// parts will be written, so that it records that the file has parts.
    fn look(&self, f: &Striped, write: bool) -> Result<Known> {
        let Some(home) = f.home else {
            return self.store().parts().layout_here(f.index, write);
        };
        let (size, cuts, appends, word) =
            self.cluster.ask(home, request::LAYOUT, &(f.id, write))?;
        let known = Known {
            size,
            cuts,
            appends,
            word,
        };
        self.remember(f, known)?;
        if write {
            self.store()
                .objects()
                .live(f.index)
                .flags
                .fetch_or(flag::PARTS, AcqRel);
        }
        Ok(known)
    }

    /// Stores the home's reply in the live entry, for all processes of this node.
    fn remember(&self, f: &Striped, known: Known) -> Result<()> {
        let _lock = self.store().objects().lock_live(f.index)?;
        let live = self.store().objects().live(f.index);
        Parts::remember_locked(live, known.size, known.cuts);
        live.appends.store(known.appends, Release);
        self.learn(f, known.word);
        Ok(())
    }

    /// Stores in the live entry the controls that the home reports. The file may have been opened
    /// before these controls were declared.
    fn learn(&self, f: &Striped, word: u64) {
        if f.home.is_some() && word != 0 {
            self.store()
                .objects()
                .live(f.index)
                .controls
                .store(word, Release);
        }
    }

    /// Splits a range of a file that was truncated `cuts` times into pieces, by the nodes on which
    /// the pieces lie. `make`: the pieces are about to be written.
    fn spread(
        &self,
        f: &Striped,
        cuts: u64,
        (offset, len): (u64, usize),
        make: bool,
    ) -> Result<Vec<Piece>> {
        if f.spilled {
            return self.spread_by_room(f, cuts, (offset, len), make);
        }
        let others = self.cluster.other_nodes()?;
        let me = others.this_node();
        let mut pieces = Vec::with_capacity(len / MAX_BODY + 2);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let chunk = f.chunk.chunk_of(at);
            let left = (chunk + 1) * f.chunk.bytes() - at;
            let n = (len - done).min(MAX_BODY).min(left as usize);
            let node = others.node_of(Slot::of_chunk(f.id, chunk));
            let place = match f.home {
                None if node == me => Place::Object,
                Some(home) if node == home => Place::Home(home),
                _ if node == me => Place::Part,
                _ => Place::On(node),
            };
            assert!(n > 0, "a piece has bytes");
            pieces.push(Piece {
                place,
                offset: at,
                done,
                len: n,
            });
            done += n;
        }
        debug_assert!(
            pieces.is_sorted_by(|a, b| a.done + a.len == b.done) && done == len,
            "pieces cover their range once, in order"
        );
        Ok(pieces)
    }

    /// Sends requests for the `pieces` that lie on other nodes, all at once. Returns the replies,
    /// in order.
    ///
    /// # Safety
    /// The bytes that `bytes` returns must be valid to read, or to write.
    unsafe fn ask_pieces(
        &self,
        pieces: &[Piece],
        head: impl Fn(&Piece) -> (u16, Vec<u8>),
        bytes: impl Fn(&Piece) -> Bytes,
    ) -> Result<Vec<Result<PeerReply>>> {
        let remote = |p: &Piece| match p.place {
            Place::Home(node) | Place::On(node) => Some(node),
            _ => None,
        };
        let asked: Vec<_> = pieces
            .iter()
            .filter_map(|p| remote(p).map(|node| (node, head(p), bytes(p))))
            .collect();
        let requests: Vec<PeerRequest<'_>> = asked
            .iter()
            .map(|(node, head, bytes)| PeerRequest {
                node: *node,
                kind: head.0,
                head: &head.1,
                bytes: *bytes,
            })
            .collect();
        // SAFETY: the caller promises that what `bytes` returns is valid.
        Ok(unsafe { self.cluster.other_nodes()?.ask_all(&requests) })
    }

    /// Repeats `f` while it fails because the file was truncated meanwhile (EXFULL).
    fn retry_cut<T>(&self, file: &Striped, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::new();
        for n in 1u32.. {
            match f() {
                Err(CHANGED) => {}
                result => return result,
            }
            backoff.wait()?;
            if n.is_multiple_of(8) {
                // The process that truncates the file may have died.
                self.settle_cut(file)?;
            }
        }
        Err(Errno::HOSTDOWN)
    }

    // ---- reading ----

    /// As [`crate::FileData::read`], for a striped or spilled file.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(crate) unsafe fn read_striped(
        &self,
        f: &Striped,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        if Stripes::is_first(f, offset, len) {
            return match f.home {
                // SAFETY: the caller promises that `to` is writable for `len` bytes.
                Some(home) => unsafe {
                    self.cluster
                        .data()
                        .read_remote((home, f.id), offset, to, len)
                },
                // SAFETY: as above.
                None => unsafe { self.store().content().read_here(f.index, offset, to, len) },
            };
        }
        let mut fresh = false;
        self.retry_cut(f, || {
            let wanted = offset.saturating_add(len as u64);
            let mut known = self.known(f).filter(|_| !fresh);
            fresh = true;
            if known.is_none_or(|k| f.home.is_some() && wanted > k.size) {
                known = Some(self.look(f, false)?);
            }
            let known = known.ok_or(Errno::IO)?;
            let n = len.min(known.size.saturating_sub(offset) as usize);
            let mut done = 0;
            while done < n {
                let part = (n - done).min(MAX_PIECES_IN_FLIGHT * MAX_BODY);
                // SAFETY: done + part <= len, so the range lies in the caller's buffer.
                unsafe { self.read_pieces(f, known, offset + done as u64, to.add(done), part)? };
                done += part;
            }
            debug_assert!(n <= len, "{n} bytes are read into {len}");
            Ok(n)
        })
    }

    /// Reads a range that lies within the file's size.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    unsafe fn read_pieces(
        &self,
        f: &Striped,
        known: Known,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let pieces = self.spread(f, known.cuts, (offset, len), false)?;
        let (id, cuts) = (f.id, known.cuts);
        let head = |p: &Piece| match p.place {
            Place::Home(_) if !f.spilled => request::READ.message(&(id, p.offset, p.len as u64)),
            _ => request::READ_PART.message(&(id, cuts, p.offset, p.len as u64)),
        };
        // SAFETY: the pieces lie in the `len` bytes that the caller promises.
        let at = |p: &Piece| unsafe { to.add(p.done) };
        // SAFETY: `at(p)` has `p.len` bytes of the caller's buffer.
        let reply = unsafe { self.ask_pieces(&pieces, head, |p| Bytes::Receive(at(p), p.len))? };
        let mut reply = reply.into_iter();
        for p in &pieces {
            let got = match p.place {
                // SAFETY: as above.
                Place::Object => unsafe {
                    self.store()
                        .content()
                        .read_here(f.index, p.offset, at(p), p.len)?
                },
                Place::Part => match self.own_part(f, false)? {
                    // SAFETY: as above.
                    Some(part) => unsafe {
                        self.store()
                            .parts()
                            .read_part(part, cuts, p.offset, at(p), p.len)?
                    },
                    None => 0,
                },
                _ => reply.next().ok_or(Errno::PROTO)??.received,
            };
            if got == p.len {
                continue;
            }
            if matches!(p.place, Place::Object | Place::Home(_)) {
                // The object's bytes end only at the end of the file, so the size has changed.
                return Err(CHANGED);
            }
            // SAFETY: got <= p.len, and the range is the rest of the piece.
            if got > p.len || !unsafe { guard::zero(at(p).add(got), p.len - got) } {
                return Err(Errno::FAULT);
            }
        }
        Ok(())
    }

    /// Returns the live entry of this node's part, which stays open as long as the file. With
    /// `make`, the part is created if there is none.
    pub(crate) fn own_part(&self, f: &Striped, make: bool) -> Result<Option<u32>> {
        let live = self.store().objects().live(f.index);
        if let Some(part) = live.part.load(Acquire).checked_sub(1) {
            return Ok(Some(part));
        }
        let _section = self.store().section()?;
        let (part, held) = match self.cluster.opens().live_acquire_held(f.id.part()) {
            Err(Errno::NOENT) if make => {
                self.store().parts().make_part(f.id)?;
                self.cluster.opens().live_acquire_held(f.id.part())?
            }
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        assert!(part != f.index, "a part has a live entry of its own");
        let mine = live
            .part
            .compare_exchange(0, part + 1, AcqRel, Acquire)
            .is_ok();
        drop(held);
        if mine {
            return Ok(Some(part));
        }
        // Another thread has opened the part meanwhile: use its live entry.
        self.store().objects().live_release(part)?;
        Ok(live.part.load(Acquire).checked_sub(1))
    }
}

const _: () = assert!(MAX_BODY as u64 <= forebay_store::CHUNK);
