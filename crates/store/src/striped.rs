//! Files whose chunks are spread over the nodes (distribution `striped`).
//!
//! A striped file's object lies at its home, as any file's, and so do its size and chunk 0: a file of one
//! chunk is one like others. Each other node has a *part*, an object of its own ([`ObjectId::part`]):
//! a sparse file with the same offsets, which holds the chunks that belong there, and is made when one of them
//! is first written.
//!
//! - A write goes to all its nodes at once; then, if the file becomes longer, the home is told (GROW).
//!   So what is within the size is written. Should somebody have appended to the file meanwhile, or be at it, the home refuses, and all is
//!   written again: it comes behind the appending.
//! - A read needs the size. Who has asked for it may use it as long as the file isn't cut: *cuts* counts that.
//!   Every question to a part says how many cuts its asker knows of; a part that was cut since refuses (EXFULL), and the asker
//!   asks the home again.
//! - Cutting ([`cuts`]) goes over all parts, then the home, under a *lease* of one at a time. Appending behind chunk 0
//!   needs the lease, too.
//!
//! What is said of a file after it was opened is known to its home at once, and to others when they ask it: [`seal`].
//!
//! Inside one chunk (and 1 MiB of it) reads and writes are as in any file; longer ones in place are seen in pieces. What a write
//! adds to the file is there at one moment.

mod cuts;
mod merged;
mod own;
mod parts;
mod seal;

use crate::across::Nap;
use crate::control::{Live, live_flag as flag};
use crate::data::{MAX_SIZE, Range, Source, Target};
use crate::elsewhere::messages::{Record, decode, encode, kind};
use crate::elsewhere::{Bytes, MAX_BODY, Question, Told};
use crate::record::Inode;
use crate::uses::{Change, check_word};
use crate::{ChunkSize, NodeId, ObjectId, Result, Slot, Store};
use forebay_media::guard;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

pub(crate) use parts::Holder;

/// What is known of the file isn't so any more.
pub(crate) const CHANGED: Errno = Errno::XFULL;
/// Pieces of one call that are under way at the same time.
const AT_ONCE: usize = 64;

/// After so many tries, what is written is written under a lease.
const TRIES: u32 = 4;

/// A striped file that this process has open.
pub(crate) struct Striped {
    pub id: ObjectId,
    /// Its live entry here: its own at home, or one that stands for it.
    pub index: u32,
    pub chunk: ChunkSize,
    /// None: this node.
    pub home: Option<NodeId>,
}

/// The size is at least this, as long as the file isn't cut again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub size: u64,
    pub cuts: u64,
    /// How often it was appended to under a lease, or in its first chunk where a longer write had begun.
    pub appends: u32,
    /// What was said of it (`uses.rs`).
    pub word: u64,
}

/// Of a write that has to be done again: so many bytes of it lay in chunks that were the file's already, after so many cuts. They
/// aren't written again, which could undo what others wrote there since.
#[derive(Clone, Copy, Default)]
struct InPlace {
    len: usize,
    cuts: u64,
}

impl InPlace {
    fn since(self, known: Known) -> usize {
        if self.cuts == known.cuts { self.len } else { 0 }
    }
}

/// What is written.
#[derive(Clone, Copy)]
enum Content {
    /// The caller's bytes from here on.
    Bytes(*const u8),
    /// What lies in an open file from an offset on.
    Of(u32, u64),
}

impl Content {
    /// What comes so many bytes later.
    fn behind(self, n: usize) -> Content {
        match self {
            Content::Bytes(from) => Content::Bytes(from.wrapping_add(n)),
            Content::Of(file, at) => Content::Of(file, at + n as u64),
        }
    }
}

/// Where a part of a range lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In the object itself, which is here.
    Object,
    /// In this node's part.
    Part,
    /// In the object itself, at this home.
    Home(NodeId),
    /// In that node's part.
    On(NodeId),
}

/// Part of a range: so many bytes at this offset of the file, from `done` on of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    place: Place,
    offset: u64,
    done: usize,
    len: usize,
}

/// Whether other nodes may have parts of it, by its record.
pub(crate) fn has_parts(id: ObjectId, inode: &Inode) -> bool {
    id.stripe().is_some() && !id.is_part() && inode.is_file() && inode.parent != 0
}

/// What a record says of cuts and parts: for the live entry.
pub(crate) fn parts_in(id: ObjectId, inode: &Inode) -> (u64, u32) {
    let parts = if has_parts(id, inode) { flag::PARTS } else { 0 };
    (inode.rdev, parts)
}

fn with_times_and_pages(mut inode: Inode, parts: &[Inode]) -> Inode {
    let changed = inode.ctime;
    for part in parts {
        inode.pages += part.pages;
        // Unless its times were set since.
        if part.mtime > changed {
            inode.mtime = inode.mtime.max(part.mtime);
            inode.ctime = inode.ctime.max(part.mtime);
        }
    }
    inode
}

/// Has each piece written: how many bytes from the first on are, and why not all. What lies behind a gap doesn't count. EXFULL:
/// all over again.
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

impl Store {
    /// Puts into an inode what its live entry knows of cuts and parts.
    pub(crate) fn note_parts(live: &Live, inode: &mut Inode) {
        let id = ObjectId(live.id.load(Relaxed));
        if id.stripe().is_none() || !inode.is_file() {
            return;
        }
        inode.rdev = live.cuts.load(Acquire);
        if live.flags.load(Acquire) & flag::PARTS != 0 && !id.is_part() {
            inode.parent = 1;
        }
    }

    /// What an open file is, if it is striped over several nodes.
    #[inline]
    pub(crate) fn striped(&self, index: u32) -> Option<Striped> {
        let id = ObjectId(self.live(index).id.load(Relaxed));
        let chunk = id.stripe()?;
        if id.is_part() || self.elsewhere.is_none() {
            return None;
        }
        Some(Striped {
            id,
            index,
            chunk,
            home: self.object_away(id),
        })
    }

    /// Whether all of `offset..offset + len` lies at the home.
    fn is_first(f: &Striped, offset: u64, len: usize) -> bool {
        offset.saturating_add(len as u64) <= f.chunk.bytes()
    }

    /// What is known without asking: at home all, elsewhere what was told before.
    fn known(&self, f: &Striped) -> Option<Known> {
        let live = self.live(f.index);
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

    /// Asks the home. Who will write to parts says so: the home has to know that there are some.
    fn look(&self, f: &Striped, write: bool) -> Result<Known> {
        let Some(home) = f.home else {
            return self.layout_here(f.index, write);
        };
        let (size, cuts, appends, word) = self.ask(home, kind::LAYOUT, &(f.id, write))?;
        let known = Known {
            size,
            cuts,
            appends,
            word,
        };
        self.remember(f, known)?;
        if write {
            self.live(f.index).flags.fetch_or(flag::PARTS, AcqRel);
        }
        Ok(known)
    }

    /// Keeps what the home has told, for this node's processes.
    fn remember(&self, f: &Striped, known: Known) -> Result<()> {
        let _lock = self.lock_live(f.index)?;
        let live = self.live(f.index);
        Store::remember_locked(live, known.size, known.cuts);
        live.appends.store(known.appends, Release);
        self.learn(f, known.word);
        Ok(())
    }

    /// Keeps what the home tells of the controls of a file that was opened before they were said.
    fn learn(&self, f: &Striped, word: u64) {
        if f.home.is_some() && word != 0 {
            self.live(f.index).controls.store(word, Release);
        }
    }

    /// Keeps the size that a file of another node has after so many cuts. Locked.
    pub(crate) fn remember_locked(live: &Live, size: u64, cuts: u64) {
        let before = live.cuts.load(Relaxed);
        if before < cuts {
            // In this order: who reads size and cuts never takes a size for that of later cuts.
            live.size.store(0, Release);
            live.cuts.store(cuts, Release);
        }
        if before <= cuts {
            live.size.fetch_max(size, AcqRel);
        }
    }

    fn spread(&self, f: &Striped, offset: u64, len: usize) -> Result<Vec<Piece>> {
        let others = self.other_nodes()?;
        let me = others.me();
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
            pieces.push(Piece {
                place,
                offset: at,
                done,
                len: n,
            });
            done += n;
        }
        Ok(pieces)
    }

    /// Asks for what of `pieces` lies on other nodes, all at once; the answers, in order.
    ///
    /// # Safety
    /// What `bytes` makes is the caller's to read, or to write.
    unsafe fn ask_pieces(
        &self,
        pieces: &[Piece],
        head: impl Fn(&Piece) -> (u16, Vec<u8>),
        bytes: impl Fn(&Piece) -> Bytes,
    ) -> Result<Vec<Result<Told>>> {
        let away = |p: &Piece| match p.place {
            Place::Home(node) | Place::On(node) => Some(node),
            _ => None,
        };
        let asked: Vec<_> = pieces
            .iter()
            .filter_map(|p| away(p).map(|node| (node, head(p), bytes(p))))
            .collect();
        let questions: Vec<Question<'_>> = asked
            .iter()
            .map(|(node, head, bytes)| Question {
                node: *node,
                kind: head.0,
                head: &head.1,
                bytes: *bytes,
            })
            .collect();
        // SAFETY: the caller's promise.
        Ok(unsafe { self.other_nodes()?.ask_all(&questions) })
    }

    /// Does `f` again as long as the file is being cut meanwhile.
    fn retry_cut<T>(&self, file: &Striped, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        let mut nap = Nap::new();
        for n in 1u32.. {
            match f() {
                Err(CHANGED) => {}
                result => return result,
            }
            nap.wait()?;
            if n.is_multiple_of(8) {
                // Whoever was cutting may have died.
                self.settle_cut(file)?;
            }
        }
        Err(Errno::HOSTDOWN)
    }

    // ---- reading ----

    /// As [`Store::read`].
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
        if Store::is_first(f, offset, len) {
            return match f.home {
                // SAFETY: passed on.
                Some(home) => unsafe { self.read_away((home, f.id), offset, to, len) },
                // SAFETY: passed on.
                None => unsafe { self.read_here(f.index, offset, to, len) },
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
                let part = (n - done).min(AT_ONCE * MAX_BODY);
                // SAFETY: done + part <= len.
                unsafe { self.read_pieces(f, known, offset + done as u64, to.add(done), part)? };
                done += part;
            }
            Ok(n)
        })
    }

    /// Reads what is within the size.
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
        let pieces = self.spread(f, offset, len)?;
        let (id, cuts) = (f.id, known.cuts);
        let head = |p: &Piece| match p.place {
            Place::Home(_) => (kind::READ, encode(&(id, p.offset, p.len as u64))),
            _ => (kind::READ_PART, encode(&(id, cuts, p.offset, p.len as u64))),
        };
        // SAFETY: pieces stay within len.
        let at = |p: &Piece| unsafe { to.add(p.done) };
        // SAFETY: as above.
        let told = unsafe { self.ask_pieces(&pieces, head, |p| Bytes::Receive(at(p), p.len))? };
        let mut told = told.into_iter();
        for p in &pieces {
            let got = match p.place {
                // SAFETY: as above.
                Place::Object => unsafe { self.read_here(f.index, p.offset, at(p), p.len)? },
                Place::Part => match self.own_part(f, false)? {
                    // SAFETY: as above.
                    Some(part) => unsafe { self.read_part(part, cuts, p.offset, at(p), p.len)? },
                    None => 0,
                },
                _ => told.next().ok_or(Errno::PROTO)??.received,
            };
            if got == p.len {
                continue;
            }
            if matches!(p.place, Place::Object | Place::Home(_)) {
                // The home knows the size, so that has changed.
                return Err(CHANGED);
            }
            // SAFETY: the rest of the piece.
            if got > p.len || !unsafe { guard::zero(at(p).add(got), p.len - got) } {
                return Err(Errno::FAULT);
            }
        }
        Ok(())
    }

    // ---- writing ----

    /// As [`Store::write_at`].
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
        // SAFETY: passed on.
        unsafe { self.put_striped(f, offset, Content::Bytes(from), len) }
    }

    /// As [`Store::copy`].
    pub(crate) fn copy_striped(
        &self,
        (from, at): (u32, u64),
        f: &Striped,
        to_at: u64,
        len: usize,
    ) -> Result<usize> {
        let content = Content::Of(from, at);
        // SAFETY: there are no bytes of the caller's.
        unsafe { self.put_striped(f, Some(to_at), content, len) }.map(|(_, n)| n)
    }

    /// Writes what all lies at the home, in one question: an appended piece lies behind nobody else's.
    ///
    /// # Safety
    /// Bytes must be readable for `len` bytes.
    unsafe fn put_first(
        &self,
        f: &Striped,
        offset: Option<u64>,
        content: Content,
        len: usize,
    ) -> Result<(u64, usize)> {
        match (content, f.home) {
            // SAFETY: passed on.
            (Content::Bytes(from), Some(home)) => unsafe {
                self.write_away((home, f.id), offset, from, len)
            },
            // SAFETY: passed on.
            (Content::Bytes(from), None) => unsafe {
                self.write_here(f.index, offset, (from, len), true, |live| {
                    self.may_write(live, offset, len)
                })
            },
            (Content::Of(from, at), home) => {
                let to = offset.ok_or(Errno::INVAL)?;
                let done = match home {
                    Some(home) => self.copy_away((from, at), (home, f.id), to, len),
                    None => {
                        let range = (at, to, len as u64);
                        self.copy_in(Source::Open(from), f.index, &[range], Target::File(None))
                    }
                };
                done.map(|n| (to, n))
            }
        }
    }

    /// # Safety
    /// Bytes must be readable for `len` bytes.
    unsafe fn put_striped(
        &self,
        f: &Striped,
        offset: Option<u64>,
        content: Content,
        len: usize,
    ) -> Result<(u64, usize)> {
        let first = match offset {
            Some(at) => Store::is_first(f, at, len),
            None => len <= MAX_BODY,
        };
        if first {
            // SAFETY: passed on.
            let written = unsafe { self.put_first(f, offset, content, len) };
            if written != Err(CHANGED) {
                return written;
            }
        }
        let Some(offset) = offset else {
            // SAFETY: passed on.
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
                // Others keep appending: it takes turns with them.
                // SAFETY: passed on.
                return unsafe { self.write_leased(f, Some(offset), (content, len), in_place) };
            }
            let told = self.live(f.index).flags.load(Acquire) & flag::PARTS != 0;
            let known = match self.known(f).filter(|_| told && !fresh) {
                Some(known) => known,
                None => {
                    let known = self.look(f, true)?;
                    check_word(known.word, known.size, Change::From(Some(offset)))?;
                    known
                }
            };
            fresh = true;
            // SAFETY: passed on.
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

    /// As [`Store::write_pieces`], but for what is in place.
    ///
    /// # Safety
    /// Bytes must be readable for `len` bytes.
    unsafe fn write_rest(
        &self,
        f: &Striped,
        known: Known,
        offset: u64,
        (content, len): (Content, usize),
        in_place: InPlace,
    ) -> Result<(usize, Option<Errno>)> {
        let there = in_place.since(known).min(len);
        let (content, offset) = (content.behind(there), offset + there as u64);
        // SAFETY: so much is left of it.
        let (done, error) =
            unsafe { self.write_pieces(f, known.cuts, offset, content, len - there)? };
        Ok((there + done, error))
    }

    /// Writes pieces, knowing of so many cuts; how many bytes from the start on, and why not all. They
    /// are part of the file when the home is told that it has grown. EXFULL: all over again.
    ///
    /// # Safety
    /// Bytes must be readable for `len` bytes.
    unsafe fn write_pieces(
        &self,
        f: &Striped,
        cuts: u64,
        offset: u64,
        content: Content,
        len: usize,
    ) -> Result<(usize, Option<Errno>)> {
        self.prepare_parts(f)?;
        let mut done = 0;
        while done < len {
            let turn = (len - done).min(AT_ONCE * MAX_BODY);
            let pieces = self.spread(f, offset + done as u64, turn)?;
            let (n, error) = match content.behind(done) {
                // SAFETY: done + turn <= len.
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
        let head = |p: &Piece| (kind::WRITE_PART, encode(&(id, cuts, p.offset)));
        // SAFETY: the caller's promise.
        let at = |p: &Piece| unsafe { from.add(p.done) };
        // SAFETY: as above.
        let told = unsafe { self.ask_pieces(pieces, head, |p| Bytes::Send(at(p), p.len))? };
        let mut told = told.into_iter();
        add_up(pieces, |p| {
            let bytes = (at(p), p.len);
            match p.place {
                // SAFETY: as above.
                Place::Object => unsafe { self.write_behind(f.index, cuts, p.offset, bytes) },
                Place::Part => match self.own_part(f, true)? {
                    // SAFETY: as above.
                    Some(part) => unsafe { self.write_part(part, cuts, p.offset, bytes) },
                    None => Err(Errno::IO),
                },
                Place::Home(_) | Place::On(_) => {
                    let told = told.next().ok_or(Errno::PROTO)??;
                    let n: u64 = decode(&told.head).ok_or(Errno::PROTO)?;
                    Ok(n as usize)
                }
            }
        })
    }

    /// As [`Store::write_turn`], of what lies in an open file: each node is asked for all that belongs there.
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
        let mut done = self.ask_copies(from, f.id, cuts, asked)?;
        let source = Source::Open(from);
        add_up(pieces, |p| match p.place {
            Place::Object => self.copy_in(source, f.index, &[range(p)], Target::Behind(cuts)),
            Place::Part => {
                let part = self.own_part(f, true)?.ok_or(Errno::IO)?;
                self.copy_in(source, part, &[range(p)], Target::Part(cuts))
            }
            // In the order of its pieces.
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

    /// Tells the home that the file is written up to `end`.
    fn grow(&self, f: &Striped, known: Known, end: u64) -> Result<()> {
        let as_of = (known.cuts, known.appends);
        match f.home {
            None => self.grow_here(f.index, as_of, end),
            Some(home) => {
                self.ask::<()>(home, kind::GROW, &(f.id, as_of, end))?;
                self.remember(f, Known { size: end, ..known })
            }
        }
    }

    // ---- the rest ----

    /// The other nodes that may have a part.
    pub(crate) fn part_nodes(&self, id: ObjectId) -> Result<Vec<NodeId>> {
        let others = self.other_nodes()?;
        let home = others.node_of(id.slot());
        let all = others.nodes().iter().copied();
        Ok(all.filter(|&n| n != home && n != others.me()).collect())
    }

    /// The attributes of a file, whose home has told `inode`, with what its parts add to them: pages, and
    /// when they were written.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be asked; ENOENT if it goes meanwhile.
    pub fn with_parts(&self, id: ObjectId, mut inode: Inode) -> Result<Inode> {
        if !has_parts(id, &inode) || self.elsewhere.is_none() {
            return Ok(inode);
        }
        loop {
            let parts = self.part_inodes(id)?;
            if parts.iter().all(|part| part.rdev <= inode.rdev) {
                return Ok(with_times_and_pages(inode, &parts));
            }
            // It is being cut. Whoever was at it may have died: then it must not happen later on.
            self.settle_cut_of(id)?;
            inode = self.stat(id)?;
        }
    }

    /// What the nodes that have parts of a file say of them.
    fn part_inodes(&self, id: ObjectId) -> Result<Vec<Inode>> {
        let nodes = self.part_nodes(id)?;
        let told = self
            .other_nodes()?
            .ask_each(&nodes, kind::STAT_PART, &encode(&id));
        let mut parts = Vec::with_capacity(told.len() + 1);
        for told in told {
            let part: Option<Record> = decode(&told?.head).ok_or(Errno::PROTO)?;
            parts.extend(part.map(|record| record.0));
        }
        if self.object_away(id).is_some() {
            parts.extend(self.stat_part(id)?);
        }
        Ok(parts)
    }

    /// As [`Store::sync`].
    pub(crate) fn sync_striped(&self, f: &Striped) -> Result<()> {
        if self.look(f, false)?.size > f.chunk.bytes() {
            let nodes = self.part_nodes(f.id)?;
            let head = encode(&f.id);
            let told = self.other_nodes()?.ask_each(&nodes, kind::SYNC_PART, &head);
            told.into_iter().try_for_each(|t| t.map(|_| ()))?;
            if f.home.is_some()
                && let Some(part) = self.own_part(f, false)?
            {
                self.sync_here(part)?;
            }
        }
        // Last: it says how long the file is.
        match f.home {
            None => self.sync_here(f.index),
            Some(home) => self.ask(home, kind::SYNC, &f.id),
        }
    }

    /// As [`Store::reserve_range`], and with `punch` as [`Store::punch`].
    pub(crate) fn room_striped(
        &self,
        f: &Striped,
        (offset, len): (u64, u64),
        grow: bool,
        punch: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= MAX_SIZE);
        let end = end.ok_or(Errno::FBIG)?;
        self.retry_cut(f, || {
            let first = end <= f.chunk.bytes();
            let known = self.look(f, !first && !punch)?;
            let change = match punch {
                true => Change::From(Some(offset)),
                false => Change::Size(MAX_SIZE),
            };
            check_word(known.word, known.size, change)?;
            if !first && !punch {
                self.prepare_parts(f)?;
            }
            // Nothing lies behind the end.
            let until = if punch { end.min(known.size) } else { end };
            let mut at = offset;
            while at < until {
                let turn = (until - at).min((AT_ONCE * MAX_BODY) as u64);
                self.room_turn(f, known.cuts, at, turn as usize, punch)?;
                at += turn;
            }
            if grow && end > known.size {
                self.grow(f, known, end)?;
            }
            Ok(())
        })
    }

    fn room_turn(
        &self,
        f: &Striped,
        cuts: u64,
        offset: u64,
        len: usize,
        punch: bool,
    ) -> Result<()> {
        let pieces = self.spread(f, offset, len)?;
        let id = f.id;
        let head = |p: &Piece| match p.place {
            Place::Home(_) => {
                let kind = if punch { kind::PUNCH } else { kind::RESERVE };
                (kind, encode(&(id, p.offset, p.len as u64, false)))
            }
            _ => (
                kind::ROOM_PART,
                encode(&(id, cuts, p.offset, p.len as u64, punch)),
            ),
        };
        // SAFETY: there are no bytes.
        let told = unsafe { self.ask_pieces(&pieces, head, |_| Bytes::None)? };
        told.into_iter().try_for_each(|t| t.map(|_| ()))?;
        for p in &pieces {
            match p.place {
                Place::Object if punch => {
                    self.punch_here(f.index, p.offset, p.len as u64, false)?;
                }
                Place::Object => self.reserve_here(f.index, p.offset, p.len as u64, false)?,
                Place::Part => {
                    if let Some(part) = self.own_part(f, !punch)? {
                        self.room_part(part, cuts, (p.offset, p.len as u64), punch)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// As [`Store::seek_data`]. In a file of several chunks, all is taken for data.
    pub(crate) fn seek_striped(&self, f: &Striped, offset: u64, hole: bool) -> Result<u64> {
        let size = self.look(f, false)?.size;
        if size > f.chunk.bytes() {
            return match (offset < size, hole) {
                (false, _) => Err(Errno::NXIO),
                (true, false) => Ok(offset),
                (true, true) => Ok(size),
            };
        }
        match f.home {
            None => self.seek_here(f.index, offset, hole),
            Some(home) => self.ask(home, kind::SEEK, &(f.id, offset, hole)),
        }
    }
}
