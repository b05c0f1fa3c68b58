//! Writing striped files, and copying to them.
//!
//! A write sends its pieces to all their nodes at once, then reports the new end to the home. A
//! write that the home has refused is repeated, without the bytes that lie in chunks that the file
//! had already. After [`TRIES`] attempts the write takes the lease.

use super::{CHANGED, Known, MAX_PIECES_IN_FLIGHT, Piece, Place, Striped, Stripes};
use crate::copy_range::{Range, Source, Target};
use crate::peers::requests::request;
use crate::peers::{Bytes, MAX_BODY};
use forebay_store::control_region::live_flag as flag;
use forebay_store::controls::{Change, check_word};
use forebay_store::data::MAX_SIZE;
use forebay_store::{NodeId, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

/// Number of tries after which a write is done under a lease.
const TRIES: u32 = 4;

/// The bytes of a repeated write that aren't written again: the write's first `len` bytes, which
/// lie in chunks that the file had already. Valid only while the file was truncated `cuts` times.
/// Writing these bytes again could undo later writes of other processes.
#[derive(Clone, Copy, Default)]
pub(super) struct InPlace {
    len: usize,
    cuts: u64,
}

impl InPlace {
    fn since(self, known: Known) -> usize {
        if self.cuts == known.cuts { self.len } else { 0 }
    }
}

/// The bytes to be written.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// The caller's memory from this address on.
    Bytes(*const u8),
    /// The bytes of an open file from an offset on.
    Of(u32, u64),
}

impl Content {
    /// Returns the content without its first `n` bytes.
    fn behind(self, n: usize) -> Content {
        match self {
            Content::Bytes(from) => Content::Bytes(from.wrapping_add(n)),
            Content::Of(file, at) => Content::Of(file, at + n as u64),
        }
    }
}

/// Calls `write` for each piece. Returns the number of bytes written without a gap from the first
/// piece on, and the error that caused the gap. EXFULL: the whole write has to be repeated.
fn add_up(
    pieces: &[Piece],
    mut write: impl FnMut(&Piece) -> Result<usize>,
) -> Result<(usize, Option<Errno>)> {
    let (mut done, mut whole, mut error) = (0, true, None);
    for p in pieces {
        match write(p) {
            Err(CHANGED) => return Err(CHANGED),
            _ if !whole => {}
            Ok(n) => {
                done += n;
                whole = n == p.len;
                error = (!whole).then_some(Errno::NOSPC);
            }
            Err(e) => (whole, error) = (false, Some(e)),
        }
    }
    Ok((done, error))
}

impl<'a> Stripes<'a> {
    // ---- writing ----

    /// As `FileData::write_at`, for a striped or spilled file.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub(crate) unsafe fn write_striped(
        &self,
        f: &Striped,
        offset: Option<u64>,
        from: *const u8,
        len: usize,
    ) -> Result<(u64, usize)> {
        // SAFETY: the caller promises that `from` is readable for `len` bytes.
        unsafe { self.put_striped(f, offset, Content::Bytes(from), len) }
    }

    /// As `FileData::copy`, to a striped or spilled file.
    pub(crate) fn copy_striped(
        &self,
        (from, at): (u32, u64),
        f: &Striped,
        to_at: u64,
        len: usize,
    ) -> Result<usize> {
        let content = Content::Of(from, at);
        // SAFETY: the content is a range of a file, so no memory is read.
        unsafe { self.put_striped(f, Some(to_at), content, len) }.map(|(_, n)| n)
    }

    /// Writes a range all of which lies at the home, with one request. `offset` None: appends.
    ///
    /// # Safety
    /// [`Content::Bytes`] must be readable for `len` bytes.
    unsafe fn put_first(
        &self,
        f: &Striped,
        offset: Option<u64>,
        content: Content,
        len: usize,
    ) -> Result<(u64, usize)> {
        match (content, f.home) {
            // SAFETY: the caller promises that `content` is readable for `len` bytes.
            (Content::Bytes(from), Some(home)) => unsafe {
                self.cluster
                    .data()
                    .write_remote((home, f.id), offset, from, len)
            },
            // SAFETY: as above.
            (Content::Bytes(from), None) => unsafe {
                self.store()
                    .content()
                    .write_here(f.index, offset, (from, len), true, |live| {
                        self.store().parts().may_write(live, offset, len)
                    })
            },
            (Content::Of(from, at), home) => {
                let to = offset.ok_or(Errno::INVAL)?;
                let done = match home {
                    Some(home) => {
                        self.cluster
                            .data()
                            .copy_remote((from, at), (home, f.id), to, len)
                    }
                    None => {
                        let range = (at, to, len as u64);
                        self.cluster.data().copy_in(
                            Source::Open(from),
                            f.index,
                            &[range],
                            Target::File(None),
                        )
                    }
                };
                done.map(|n| (to, n))
            }
        }
    }

    /// # Safety
    /// [`Content::Bytes`] must be readable for `len` bytes.
    unsafe fn put_striped(
        &self,
        f: &Striped,
        offset: Option<u64>,
        content: Content,
        len: usize,
    ) -> Result<(u64, usize)> {
        let first = match offset {
            Some(at) => Stripes::is_first(f, at, len),
            None => len <= MAX_BODY,
        };
        if first {
            // SAFETY: the caller promises that `content` is readable for `len` bytes.
            let written = unsafe { self.put_first(f, offset, content, len) };
            if written != Err(CHANGED) {
                return written;
            }
        }
        let Some(offset) = offset else {
            // SAFETY: the caller promises that `content` is readable for `len` bytes.
            return unsafe { self.write_leased(f, None, (content, len), InPlace::default()) };
        };
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > MAX_SIZE) {
            return Err(Errno::FBIG);
        }
        let (mut fresh, mut tries, mut in_place) = (false, 0, InPlace::default());
        self.retry_cut(f, || {
            tries += 1;
            if tries > TRIES {
                // Other processes keep appending: the lease makes the processes take turns.
                // SAFETY: the caller promises that `content` is readable for `len` bytes.
                return unsafe { self.write_leased(f, Some(offset), (content, len), in_place) };
            }
            let has_parts =
                self.store().objects().live(f.index).flags.load(Acquire) & flag::PARTS != 0;
            let known = match self.known(f).filter(|_| has_parts && !fresh) {
                Some(known) => known,
                None => {
                    let known = self.look(f, true)?;
                    check_word(known.word, known.size, Change::From(Some(offset)))?;
                    known
                }
            };
            fresh = true;
            // SAFETY: the caller promises that `content` is readable for `len` bytes.
            let (done, error) =
                unsafe { self.write_rest(f, known, offset, (content, len), in_place)? };
            let end = offset + done as u64;
            if done > 0 && end > known.size {
                let there = f.chunk.chunk_of(known.size) * f.chunk.bytes();
                in_place = InPlace {
                    len: there.saturating_sub(offset) as usize,
                    cuts: known.cuts,
                };
                self.grow(f, known, end)?;
            }
            match error {
                Some(e) if done == 0 => Err(e),
                _ => Ok((offset, done)),
            }
        })
    }

    /// Does what [`Stripes::write_pieces`] does, except for the bytes that are in place.
    ///
    /// # Safety
    /// [`Content::Bytes`] must be readable for `len` bytes.
    pub(super) unsafe fn write_rest(
        &self,
        f: &Striped,
        known: Known,
        offset: u64,
        (content, len): (Content, usize),
        in_place: InPlace,
    ) -> Result<(usize, Option<Errno>)> {
        let there = in_place.since(known).min(len);
        let (content, offset) = (content.behind(there), offset + there as u64);
        // SAFETY: there <= len, and `content` is the caller's content without its first `there`
        // bytes.
        let (done, error) =
            unsafe { self.write_pieces(f, known.cuts, offset, content, len - there)? };
        Ok((there + done, error))
    }

    /// Writes pieces of a file that has been truncated `cuts` times, as far as this process knows.
    /// Returns the number of bytes written, and the error that ended the write. The bytes become
    /// part of the file when the home records the new size. EXFULL: the write must be repeated from
    /// the beginning.
    ///
    /// # Safety
    /// [`Content::Bytes`] must be readable for `len` bytes.
    unsafe fn write_pieces(
        &self,
        f: &Striped,
        cuts: u64,
        offset: u64,
        content: Content,
        len: usize,
    ) -> Result<(usize, Option<Errno>)> {
        self.cluster.declarations().prepare_parts(f)?;
        let mut done = 0;
        while done < len {
            let turn = (len - done).min(MAX_PIECES_IN_FLIGHT * MAX_BODY);
            let pieces = self.spread(f, cuts, (offset + done as u64, turn), true)?;
            let (n, error) = match content.behind(done) {
                // SAFETY: done + turn <= len, so the range lies in the caller's buffer.
                Content::Bytes(from) => unsafe { self.write_turn(f, cuts, &pieces, from)? },
                Content::Of(file, at) => self.copy_turn(f, cuts, &pieces, (file, at))?,
            };
            done += n;
            if n < turn {
                return Ok((done, error));
            }
        }
        Ok((done, None))
    }

    /// # Safety
    /// `from` must be readable as far as the pieces go.
    unsafe fn write_turn(
        &self,
        f: &Striped,
        cuts: u64,
        pieces: &[Piece],
        from: *const u8,
    ) -> Result<(usize, Option<Errno>)> {
        let id = f.id;
        let head = |p: &Piece| request::WRITE_PART.message(&(id, cuts, p.offset));
        // SAFETY: `from` is readable as far as the pieces go.
        let at = |p: &Piece| unsafe { from.add(p.done) };
        // SAFETY: `at(p)` has `p.len` bytes of the caller's buffer.
        let reply = unsafe { self.ask_pieces(pieces, head, |p| Bytes::Send(at(p), p.len))? };
        let mut reply = reply.into_iter();
        add_up(pieces, |p| {
            let bytes = (at(p), p.len);
            match p.place {
                // SAFETY: as above.
                Place::Object => unsafe {
                    self.store()
                        .parts()
                        .write_behind(f.index, cuts, p.offset, bytes)
                },
                Place::Part => match self.own_part(f, true)? {
                    // SAFETY: as above.
                    Some(part) => unsafe {
                        self.store().parts().write_part(part, cuts, p.offset, bytes)
                    },
                    None => Err(Errno::IO),
                },
                Place::Home(_) | Place::On(_) => {
                    let reply = reply.next().ok_or(Errno::PROTO)??;
                    let n = request::WRITE_PART.decode(&reply.head)?;
                    Ok(n as usize)
                }
            }
        })
    }

    /// As [`Stripes::write_turn`], for content that lies in an open file: each node gets one
    /// request for all its pieces.
    fn copy_turn(
        &self,
        f: &Striped,
        cuts: u64,
        pieces: &[Piece],
        (from, at): (u32, u64),
    ) -> Result<(usize, Option<Errno>)> {
        let range = |p: &Piece| (at + p.done as u64, p.offset, p.len as u64);
        let mut asked: BTreeMap<NodeId, Vec<Range>> = BTreeMap::new();
        for p in pieces {
            if let Place::Home(node) | Place::On(node) = p.place {
                asked.entry(node).or_default().push(range(p));
            }
        }
        let mut done = self.cluster.data().ask_copies(from, f.id, cuts, asked)?;
        let source = Source::Open(from);
        add_up(pieces, |p| match p.place {
            Place::Object => {
                self.cluster
                    .data()
                    .copy_in(source, f.index, &[range(p)], Target::Behind(cuts))
            }
            Place::Part => {
                let part = self.own_part(f, true)?.ok_or(Errno::IO)?;
                self.cluster
                    .data()
                    .copy_in(source, part, &[range(p)], Target::Part(cuts))
            }
            // The node has replied with one total: it has copied the first bytes of its pieces, in
            // their order, up to that total.
            Place::Home(node) | Place::On(node) => match done.get_mut(&node) {
                Some(Ok(left)) => {
                    let n = p.len.min(*left);
                    *left -= n;
                    Ok(n)
                }
                Some(Err(e)) => Err(*e),
                None => Err(Errno::PROTO),
            },
        })
    }

    /// Makes the home record that the file is written up to `end`.
    pub(super) fn grow(&self, f: &Striped, known: Known, end: u64) -> Result<()> {
        let as_of = (known.cuts, known.appends);
        match f.home {
            None => self.store().parts().grow_here(f.index, as_of, end),
            Some(home) => {
                self.cluster.ask(home, request::GROW, &(f.id, as_of, end))?;
                self.remember(f, Known { size: end, ..known })
            }
        }
    }
}
