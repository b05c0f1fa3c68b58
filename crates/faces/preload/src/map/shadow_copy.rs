//! Shadow copies: a node's copies of remote files, for shared mappings.
//!
//! A shadow copy is a file of this node's kernel, in the pool's directory, named by the object's
//! id. All processes of the node that map the remote file map this copy, so each sees the others'
//! stores at once, over fork too. At the remote file's own offsets the copy holds the mapped bytes.
//! From [`BEFORE`] on it holds the same bytes as they were fetched or last written back: the
//! difference is what processes of this node have changed. From [`STATE`] on it holds a state of
//! each chunk, which tells how many of the chunk's pages have been fetched. The file is sparse:
//! pages that haven't been fetched take no space.
//!
//! A process that fetches or writes back locks the copy; the kernel releases the lock if the
//! process dies. No process keeps the copy open. The first process that maps the file makes the
//! copy. The copy is removed when, by the table of mappings, no process maps the file any more. So
//! a killed process leaves no outdated copy that a later process would use.

use super::spans::{Span, Spans};
use crate::program::process;
use forebay_cluster::Conflict;
use forebay_posix::{Errno, Fs};
use forebay_store::{CHUNK, MapPiece, ObjectId, PAGE};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

/// Upper bound of the offsets that can be mapped. Bytes.
const MAX_OFFSET: u64 = BEFORE;
const BEFORE: u64 = 1 << 40;
const STATE: u64 = 1 << 41;
const LEN: u64 = STATE + 2 * (BEFORE / CHUNK);
const CHUNK_PAGES: u16 = (CHUNK / PAGE as u64) as u16;
/// State, in place of a number of pages, of a chunk that lies on this node and is mapped directly.
const OWN: u16 = u16::MAX;
/// Offset that is added to the copy's descriptor in the field `medium` of a [`MapPiece`] of a
/// shadow copy. Smaller values of `medium` are numbers of media.
pub const MEDIUM: usize = 1 << 32;
/// Maximum length of a range that is fetched as a whole when it is mapped. Of a longer range, only
/// touched pages are fetched. Bytes. System calls don't fault in pages, so only fetched pages work
/// as their buffers.
pub const EAGER: usize = 64 << 20;
/// Number of bytes after a touched page's chunk that are fetched with it.
pub const AHEAD: u64 = 3 * CHUNK;
/// Number of tries, 1 ms apart, to lock a shadow copy while another process fetches or writes back.
const MAX_LOCK_ATTEMPTS: u32 = 30_000;

/// The open shadow copy of a file.
pub struct ShadowCopy<'a> {
    pub file: OwnedFd,
    fs: &'a Fs,
    live: u32,
}

/// Result of writing back or fetching. A conflict: bytes that another process had changed, too.
pub type Merged = Result<Option<Conflict>, Errno>;

fn directory(fs: &Fs) -> PathBuf {
    fs.pool().dir().join("copies")
}

fn path(fs: &Fs, id: ObjectId) -> PathBuf {
    directory(fs).join(format!("{:016x}", id.0))
}

/// Locks the directory of shadow copies. Held while copies are made or removed.
fn lock_directory(fs: &Fs, make: bool) -> Result<OwnedFd, Errno> {
    let path = directory(fs);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || forebay_runtime::fd::with_room(|| rustix::fs::open(&path, flags, Mode::empty()));
    let dir = match open() {
        Err(Errno::NOENT) if make => {
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
            open()?
        }
        other => other?,
    };
    take_turn(&dir).map(|()| dir)
}

/// Locks a shadow copy's file. ETIMEDOUT after about 30 s: a stopped process holds the lock.
fn take_turn(file: &OwnedFd) -> Result<(), Errno> {
    for _ in 0..MAX_LOCK_ATTEMPTS {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
    Err(Errno::TIMEDOUT)
}

/// Removes all shadow copies that no process maps any more: killed processes left them.
pub fn sweep(fs: &Fs) {
    let Ok(dir) = lock_directory(fs, false) else {
        return;
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_str().ok();
        if let Some(id) = name.and_then(|n| u64::from_str_radix(n, 16).ok()) {
            remove(fs, &dir, ObjectId(id));
        }
    }
}

/// Removes the shadow copy of a file that this process no longer maps, unless another process maps
/// it.
pub fn leave(fs: &Fs, id: ObjectId) {
    if let Ok(dir) = lock_directory(fs, false) {
        remove(fs, &dir, id);
    }
}

fn remove(fs: &Fs, _locked: &OwnedFd, id: ObjectId) {
    if !fs.mappings().is_copied(id, None) {
        let _ = rustix::fs::unlink(path(fs, id));
    }
}

/// A part of a shadow copy, mapped into this process.
struct View {
    at: *mut u8,
    len: usize,
}

impl View {
    /// Maps whole pages.
    fn new(file: &OwnedFd, offset: u64, len: usize) -> Result<View, Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address, so no mapping is replaced.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        Ok(View { at: at.cast(), len })
    }

    /// Copies bytes of the view. Other processes may be storing to them, so no reference to them is
    /// made.
    fn copy(&self, from: usize, to: &mut [u8]) {
        assert!(
            from <= self.len,
            "a view is read from inside: {from} of {}",
            self.len
        );
        let n = to.len().min(self.len - from);
        // SAFETY: the `n` bytes lie inside the view, which stays mapped while `self` exists.
        unsafe { std::ptr::copy_nonoverlapping(self.at.add(from), to.as_mut_ptr(), n) };
    }

    fn put(&self, at: usize, from: &[u8]) {
        assert!(
            at <= self.len,
            "a view is written inside: {at} of {}",
            self.len
        );
        let n = from.len().min(self.len - at);
        // SAFETY: the `n` bytes lie inside the view, which stays mapped while `self` exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.at.add(at), n) };
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n * 8 + 8 <= self.len);
        // SAFETY: the word is inside the view (asserted), which is page-aligned and mapped while
        // `self` exists.
        unsafe { &*self.at.cast::<AtomicU64>().add(n) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.len) };
    }
}

/// The lock on a shadow copy. The lock belongs to one open file description, so other threads of
/// the process wait for it, too.
struct Turn<'a>(&'a OwnedFd);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

/// Merges changes of other nodes into a word that may have been changed on this node. `before` is
/// the common old value. Returns whether a byte was changed on both sides, to different values.
fn merge_word(here: &AtomicU64, before: u64, remote: u64) -> bool {
    let mut conflict = false;
    let _ = here.fetch_update(AcqRel, Acquire, |now| {
        let (mut bytes, before, remote) = (
            now.to_ne_bytes(),
            before.to_ne_bytes(),
            remote.to_ne_bytes(),
        );
        conflict = false;
        for i in 0..8 {
            if bytes[i] == before[i] {
                bytes[i] = remote[i];
            } else if remote[i] != before[i] {
                conflict |= bytes[i] != remote[i];
            }
        }
        Some(u64::from_ne_bytes(bytes))
    });
    conflict
}

impl<'a> ShadowCopy<'a> {
    /// Opens the shadow copy of a file that this process maps; None if there is none.
    pub fn of(fs: &'a Fs, live: u32) -> Option<ShadowCopy<'a>> {
        let path = path(fs, fs.mappings().id(live));
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&path, flags, Mode::empty());
        let file = forebay_runtime::fd::with_room(open).ok()?;
        Some(ShadowCopy { file, fs, live })
    }

    /// Opens or makes the shadow copy, for a new mapping `place`. The mapping isn't published yet.
    ///
    /// # Errors
    /// ENODEV where a shadow copy isn't possible; the kernel's errors.
    pub fn make(spans: &Spans, live: u32, place: Span, end: u64) -> Result<ShadowCopy<'a>, Errno> {
        let fs = spans.fs;
        if process::in_vfork_child() || end > MAX_OFFSET || forebay_media::size_limit() < LEN {
            return Err(Errno::NODEV);
        }
        static SWEPT: AtomicBool = AtomicBool::new(false);
        if !SWEPT.swap(true, Relaxed) {
            sweep(fs);
        }
        fs.mappings().note_copied(live);
        let _one = lock_directory(fs, true)?;
        let id = fs.mappings().id(live);
        if fs.mappings().is_copied(id, Some(place.0))
            && let Some(copy) = ShadowCopy::of(fs, live)
        {
            return Ok(copy);
        }
        let path = path(fs, id);
        let _ = rustix::fs::unlink(&path);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = forebay_runtime::fd::with_room(|| rustix::fs::open(&path, flags, mode))?;
        rustix::fs::ftruncate(&file, LEN)?;
        Ok(ShadowCopy { file, fs, live })
    }

    /// Returns the copy's inode number, which the kernel shows in lists of mappings.
    pub fn ino(&self) -> Option<u64> {
        rustix::fs::fstat(&self.file).ok().map(|s| s.st_ino)
    }

    fn turn(&self) -> Result<Turn<'_>, Errno> {
        take_turn(&self.file).map(|()| Turn(&self.file))
    }

    /// Reserves pages of the copy, so that touching them can't fail.
    fn room(&self, at: u64, len: usize) -> Result<(), Errno> {
        let flags = FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.file, flags, at, len as u64) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// Frees pages of the copy.
    fn drop_pages(&self, from: u64, to: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        if from < to {
            rustix::fs::fallocate(&self.file, flags, from, to - from)
        } else {
            Ok(())
        }
    }

    /// Returns the state of each chunk in `chunks`: the number of fetched pages plus one; 0: the
    /// chunk hasn't been fetched.
    fn states(&self, chunks: Range<u64>) -> Result<Vec<u16>, Errno> {
        let mut bytes = vec![0; 2 * (chunks.end - chunks.start) as usize];
        let mut done = 0;
        while done < bytes.len() {
            let at = STATE + 2 * chunks.start + done as u64;
            match rustix::io::pread(&self.file, &mut bytes[done..], at) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        let number = |b: &[u8]| u16::from_ne_bytes([b[0], b[1]]);
        Ok(bytes.chunks_exact(2).map(number).collect())
    }

    fn set_state(&self, chunk: u64, state: u16) -> Result<(), Errno> {
        let at = STATE + 2 * chunk;
        let page = at - at % PAGE as u64;
        self.room(page, PAGE)?;
        let view = View::new(&self.file, page, PAGE)?;
        view.put((at - page) as usize, &state.to_ne_bytes());
        Ok(())
    }

    /// Reads the remote file's bytes from the nodes that have them; zeros beyond the file's end.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            // SAFETY: `to` has room for `len - done` bytes: the rest of the vector.
            let n = unsafe {
                let to = bytes.as_mut_ptr().add(done);
                self.fs
                    .cluster()
                    .data()
                    .read(self.live, at + done as u64, to, len - done)?
            };
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(bytes)
    }

    fn fetch(&self, chunk: u64, size: u64) -> Result<u16, Errno> {
        let from = chunk * CHUNK;
        let pages = (size - from).min(CHUNK).div_ceil(PAGE as u64);
        let len = pages as usize * PAGE;
        self.room(from, len)?;
        self.room(BEFORE + from, len)?;
        let bytes = self.read(from, len)?;
        for at in [from, BEFORE + from] {
            View::new(&self.file, at, len)?.put(0, &bytes);
        }
        self.set_state(chunk, pages as u16 + 1)?;
        Ok(pages as u16 + 1)
    }

    /// Fetches the missing parts of `range`, if they are at most `budget` pages. Returns the pieces
    /// that can be mapped, in order.
    ///
    /// # Errors
    /// EHOSTDOWN and other errors of reading remote files; ENOSPC if there is no room for the copy.
    pub fn pieces(&self, range: Range<u64>, budget: usize) -> Result<Vec<MapPiece>, Errno> {
        let size = self.fs.cluster().data().size(self.live)?;
        let end = range
            .end
            .min(size.next_multiple_of(PAGE as u64))
            .min(MAX_OFFSET);
        if range.start >= end {
            return Ok(Vec::new());
        }
        let _turn = self.turn()?;
        let chunks = range.start / CHUNK..end.div_ceil(CHUNK);
        let states = self.states(chunks.clone())?;
        let part = |chunk: u64| {
            let from = (chunk * CHUNK).max(range.start);
            (from, (chunk * CHUNK + CHUNK).min(end))
        };
        // All processes of the node must map the same pages of a chunk: the copy's, or the
        // originals if they lie on this node.
        let is_own = |chunk: u64, state: u16| {
            let cluster = self.fs.cluster();
            state == OWN
                || state == 0
                    && cluster
                        .mappings()
                        .is_own(self.live, chunk * CHUNK, CHUNK, size)
        };
        let missing: u64 = chunks
            .clone()
            .zip(&states)
            .filter(|(chunk, state)| **state == 0 && !is_own(*chunk, 0))
            .map(|(chunk, _)| part(chunk).1 - part(chunk).0)
            .sum();
        let fetch = missing.div_ceil(PAGE as u64) as usize <= budget;
        let mut pieces: Vec<MapPiece> = Vec::new();
        for (chunk, mut state) in chunks.zip(states) {
            let (from, to) = part(chunk);
            let have =
                |state: u16| chunk * CHUNK + u64::from(state.saturating_sub(1)) * PAGE as u64;
            if is_own(chunk, state) {
                if state == 0 {
                    self.set_state(chunk, OWN)?;
                }
                pieces.extend(self.own(from, to, if fetch { budget } else { 0 })?);
                continue;
            }
            if state == 0 && fetch {
                state = self.fetch(chunk, size)?;
            } else if state != 0 && state <= CHUNK_PAGES && have(state) < to {
                // The file has grown since the chunk was fetched.
                (state, _) = self.follow(chunk, state, size)?;
            }
            let to = to.min(have(state));
            if state == 0 || from >= to {
                continue;
            }
            let len = (to - from) as usize;
            match pieces.last_mut() {
                Some(p) if p.medium >= MEDIUM && p.at + p.len as u64 == from => p.len += len,
                _ => pieces.push(MapPiece {
                    at: from,
                    medium: MEDIUM + self.file.as_raw_fd() as usize,
                    segment_offset: from,
                    len,
                }),
            }
        }
        Ok(pieces)
    }

    /// Returns the mappable pages of a chunk that lies on this node.
    fn own(&self, from: u64, to: u64, budget: usize) -> Result<Vec<MapPiece>, Errno> {
        let cluster = self.fs.cluster();
        let len = (to - from) as usize;
        match cluster.mappings().map_own(self.live, from, len, budget) {
            // The file is sparse, and there is no room: missing pages are allocated when they are
            // touched.
            Err(Errno::NOSPC) if budget != usize::MAX => {
                cluster.mappings().map_own(self.live, from, len, 0)
            }
            other => other,
        }
    }

    /// Merges changes made on other nodes into a fetched chunk. Returns its new state, and the
    /// conflict if any.
    fn follow(&self, chunk: u64, state: u16, size: u64) -> Result<(u16, Option<Conflict>), Errno> {
        let from = chunk * CHUNK;
        let had = from + u64::from(state - 1) * PAGE as u64;
        let pages = size.saturating_sub(from).min(CHUNK).div_ceil(PAGE as u64);
        let len = pages as usize * PAGE;
        let mut conflict = None;
        if len > 0 {
            self.room(from, len)?;
            self.room(BEFORE + from, len)?;
            let bytes = self.read(from, len)?;
            let here = View::new(&self.file, from, len)?;
            let before = View::new(&self.file, BEFORE + from, len)?;
            for (n, now) in bytes.chunks_exact(8).enumerate() {
                let now = u64::from_ne_bytes(now.try_into().map_err(|_| Errno::IO)?);
                let old = before.word(n).load(Relaxed);
                if old != now {
                    if merge_word(here.word(n), old, now) {
                        let at = from + 8 * n as u64;
                        let range = at..at + 8;
                        Conflict::add(&mut conflict, Some(Conflict { range, with: None }));
                    }
                    before.word(n).store(now, Relaxed);
                }
            }
        }
        // If the file has become shorter, frees the pages beyond its end.
        let end = from + len as u64;
        self.drop_pages(end, had)?;
        self.drop_pages(BEFORE + end, BEFORE + had)?;
        let state = if len == 0 { 0 } else { pages as u16 + 1 };
        self.set_state(chunk, state)?;
        Ok((state, conflict))
    }

    fn fetched(&self, range: &Range<u64>) -> Result<Vec<(u64, u16)>, Errno> {
        let chunks = range.start / CHUNK..range.end.min(MAX_OFFSET).div_ceil(CHUNK);
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        // States of chunks that have never been touched are a hole, which is skipped.
        let first = 2 * chunks.start;
        let data = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(STATE + first));
        let from = match data {
            Ok(at) => ((at - STATE) / 2).max(chunks.start),
            Err(Errno::NXIO) => return Ok(Vec::new()),
            Err(_) => chunks.start,
        };
        let states = self.states(from..chunks.end.max(from))?;
        let all = (from..).zip(states);
        Ok(all
            .filter(|(_, state)| *state != 0 && *state != OWN)
            .collect())
    }

    /// Merges changes made on other nodes in `range` into the copy.
    ///
    /// # Errors
    /// EHOSTDOWN and other errors of reading remote files.
    pub fn refresh(&self, range: Range<u64>) -> Merged {
        let _turn = self.turn()?;
        let fetched = self.fetched(&range)?;
        if fetched.is_empty() {
            return Ok(None);
        }
        let size = self.fs.cluster().data().size(self.live)?;
        let mut conflict = None;
        for (chunk, state) in fetched {
            Conflict::add(&mut conflict, self.follow(chunk, state, size)?.1);
        }
        Ok(conflict)
    }

    /// Writes back the changes that processes of this node have made in `range`.
    ///
    /// # Errors
    /// EHOSTDOWN, ENOSPC and other errors of writing: bytes that couldn't be written back still
    /// count as changed.
    pub fn write_back(&self, range: Range<u64>) -> Merged {
        let _turn = self.turn()?;
        let mut conflict = None;
        let mut page = vec![0; PAGE];
        for (chunk, state) in self.fetched(&range)? {
            let (from, pages) = (chunk * CHUNK, usize::from(state - 1));
            let here = View::new(&self.file, from, pages * PAGE)?;
            let before = View::new(&self.file, BEFORE + from, pages * PAGE)?;
            // SAFETY: only the process that holds the lock changes these bytes.
            let old = unsafe { std::slice::from_raw_parts(before.at, before.len) };
            let wanted = |n: usize| {
                let at = from + (n * PAGE) as u64;
                at < range.end && at + PAGE as u64 > range.start
            };
            let mut differs = |n: &usize| {
                here.copy(n * PAGE, &mut page);
                wanted(*n) && page[..] != old[n * PAGE..][..PAGE]
            };
            let Some(first) = (0..pages).find(&mut differs) else {
                continue;
            };
            let last = (first..pages).rev().find(&mut differs).unwrap_or(first);
            let mut now = vec![0; (last + 1 - first) * PAGE];
            here.copy(first * PAGE, &mut now);
            let at = from + (first * PAGE) as u64;
            let then = &old[first * PAGE..][..now.len()];
            Conflict::add(
                &mut conflict,
                self.fs
                    .cluster()
                    .mappings()
                    .merge(self.live, at, then, &now)?,
            );
            before.put(first * PAGE, &now);
        }
        Ok(conflict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_both_sides_are_kept() {
        let word = |text: &[u8; 8]| u64::from_ne_bytes(*text);
        let merge = |here: &[u8; 8], remote: &[u8; 8]| {
            let at = AtomicU64::new(word(here));
            let conflict = merge_word(&at, word(b"abcdefgh"), word(remote));
            (at.into_inner().to_ne_bytes(), conflict)
        };
        assert_eq!(merge(b"abcdefgh", b"abcdefgX"), (*b"abcdefgX", false));
        assert_eq!(merge(b"aYcdefgh", b"abcdefgX"), (*b"aYcdefgX", false));
        assert_eq!(merge(b"abcdefgX", b"abcdefgX"), (*b"abcdefgX", false));
        assert_eq!(merge(b"abcdefgY", b"Zbcdefgh"), (*b"ZbcdefgY", false));
        // The byte stored on this node stays, and is written back later.
        assert_eq!(merge(b"abcdefgY", b"abcdefgX"), (*b"abcdefgY", true));
    }
}
