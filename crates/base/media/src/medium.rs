//! A medium: its segment file, its map, and reading and writing of extents.

mod copy;

pub use copy::Position;

use crate::CELL_PAGES;
use crate::cells::Cells;
use crate::fault::{self, Point};
use crate::put::put_all;
use crate::region::Region;
use crate::touched::Touched;
use crate::{Extent, MediumKind, PAGE, memory};
use forebay_runtime::fd::{Lent, Place};
use forebay_runtime::guard;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Advice as FileAdvice, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire},
};

const CELL: usize = CELL_PAGES * PAGE;
/// Size of the windows in which segments in memory are mapped, each at its first use. Bytes.
const WINDOW: usize = 256 << 20;
/// Alignment of windows: the address range of one page table. Bytes.
const ALIGN: usize = 2 << 20;
/// Number of cells whose room is reserved in one step.
const RESERVE_STEP: usize = 8;

/// How full a medium is. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub capacity: u64,
    pub used: u64,
    /// Reserved from the file system now; at least as much as is used.
    pub reserved: u64,
}

/// One medium of a node, opened by this process.
pub struct Medium {
    kind: MediumKind,
    segment: PathBuf,
    cells: Cells,
    windows: Box<[AtomicPtr<u8>]>,
    /// The parts of the segment that this process has touched.
    touched: Touched,
    /// Descriptor of the segment, opened at its first use.
    file: Place,
    /// As `file`, but opened for reading only.
    reading: Place,
}

impl Medium {
    /// Creates the segment in `dir`, and the map.
    ///
    /// # Errors
    /// EEXIST if the segment or the map exists; ENOSPC if there is no room for the map.
    pub fn create(dir: &Path, map: &Path, capacity: u64, tracks: bool) -> Result<()> {
        let segment = rustix::fs::open(
            dir.join("segment"),
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )?;
        rustix::fs::ftruncate(&segment, capacity / CELL as u64 * CELL as u64)?;
        if tracks {
            crate::sync_all(segment.as_fd())?;
        }
        Medium::create_map(map, capacity, tracks)
    }

    /// Creates only the map, with all pages free. `tracks`: whether the map tracks which pages are
    /// durable.
    ///
    /// # Errors
    /// As for [`Medium::create`].
    pub fn create_map(map: &Path, capacity: u64, tracks: bool) -> Result<()> {
        let cells = (capacity / CELL as u64) as usize;
        let map = Region::create(map, Cells::map_len(cells, tracks), true)?;
        Cells::format(&map, cells);
        Ok(())
    }

    /// Creates the map for the existing segment in `dir`. In the new map, no page is in use, and
    /// every page counts as initialised: a read of a file returns the segment's bytes.
    ///
    /// # Errors
    /// ENODATA if the segment doesn't have this capacity, ENOSPC if there is no room for the map;
    /// errors of the file system.
    pub fn recreate_map(dir: &Path, map: &Path, capacity: u64, tracks: bool) -> Result<()> {
        let cells = (capacity / CELL as u64) as usize;
        if rustix::fs::stat(dir.join("segment"))?.st_size as usize != cells * CELL {
            return Err(Errno::NODATA);
        }
        let new = map.with_extension("new");
        let _ = rustix::fs::unlink(&new);
        let region = Region::create(&new, Cells::map_len(cells, tracks), true)?;
        Cells::format(&region, cells);
        let cells = Cells::open(region, 0, cells).map_err(|_| Errno::INVAL)?;
        for cell in 0..cells.count() {
            cells.set_init((cell * CELL_PAGES) as u64, CELL_PAGES, true);
        }
        rustix::fs::rename(&new, map)
    }

    /// Opens medium number `index`, whose segment is in `dir`.
    ///
    /// # Errors
    /// ENODATA or EINVAL if the files aren't a medium of this capacity; errors of open and mmap.
    pub fn open(
        index: usize,
        kind: MediumKind,
        dir: &Path,
        map: &Path,
        capacity: u64,
    ) -> Result<Medium> {
        let cells = (capacity / CELL as u64) as usize;
        let map = Region::open(map, Cells::map_len(cells, false))?;
        let cells = Cells::open(map, index as u8, cells).map_err(|_| Errno::INVAL)?;
        if rustix::fs::stat(dir.join("segment"))?.st_size as usize != cells.count() * CELL {
            return Err(Errno::NODATA);
        }
        let windows = (cells.count() * CELL).div_ceil(WINDOW);
        Ok(Medium {
            kind,
            segment: dir.join("segment"),
            windows: (0..windows).map(|_| AtomicPtr::new(null_mut())).collect(),
            touched: Touched::new(cells.count()),
            cells,
            file: Place::empty(),
            reading: Place::empty(),
        })
    }

    /// The medium's kind.
    pub fn kind(&self) -> &MediumKind {
        &self.kind
    }

    /// The allocator's map.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// How full the medium is.
    pub fn usage(&self) -> Usage {
        Usage {
            capacity: (self.cells.count() * CELL) as u64,
            used: self.cells.used_pages() * PAGE as u64,
            reserved: (self.cells.backed() * CELL) as u64,
        }
    }

    /// Takes an extent of at most `want` pages. If no page is free, reserves more room.
    ///
    /// # Errors
    /// ENOSPC when the medium, or the file system under it, is full; EDQUOT, EIO.
    pub fn alloc(&self, want: usize) -> Result<Extent> {
        fault::check(Point::Pages)?;
        loop {
            if let Some(e) = self.cells.alloc(want, false) {
                return Ok(e);
            }
            match self.reserve(RESERVE_STEP) {
                Ok(true) => {}
                Ok(false) => return self.cells.alloc(want, true).ok_or(Errno::NOSPC),
                Err(e @ (Errno::NOSPC | Errno::DQUOT)) => {
                    return self.cells.alloc(want, true).ok_or(e);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Reserves room for up to `step` more cells, beginning with parked cells (those whose room was
    /// given back). False if all cells have room already.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EIO of the file system under the medium; ENOSPC if memory is short.
    pub fn reserve(&self, step: usize) -> Result<bool> {
        Ok(self.reserve_cells(step)?.is_some())
    }

    /// As [`Medium::reserve`], and makes the kernel allocate the pages, so that their first write
    /// needn't wait for that.
    ///
    /// # Errors
    /// As for [`Medium::reserve`].
    pub fn prepare(&self, step: usize) -> Result<bool> {
        let cells = self.reserve_cells(step)?;
        for cell in cells.clone().into_iter().flatten() {
            self.warm(cell);
        }
        Ok(cells.is_some())
    }

    /// Reserves room for up to `step` cells. Returns their range; None if all cells have room
    /// already.
    fn reserve_cells(&self, step: usize) -> Result<Option<std::ops::Range<usize>>> {
        if let Some(first) = self.use_again()? {
            let mut end = first + 1;
            while end < first + step && matches!(self.use_again_only(end), Ok(true)) {
                end += 1;
            }
            return Ok(Some(first..end));
        }
        let have = self.cells.reserved();
        let end = (have + step).min(self.cells.count());
        if end <= have {
            return Ok(None);
        }
        self.reserve_room(have, end)?;
        self.cells.set_reserved(end);
        Ok(Some(have..end))
    }

    /// Reserves the room of the first parked cell. Returns the cell; None if none is parked.
    fn use_again(&self) -> Result<Option<usize>> {
        match self.cells.begin_unparking() {
            Some(cell) => self.end_unparking(cell).map(|()| Some(cell)),
            None => Ok(None),
        }
    }

    /// Reserves the room of `cell` if it is parked. Returns whether it was parked.
    fn use_again_only(&self, cell: usize) -> Result<bool> {
        if self.cells.begin_unparking_of(cell) {
            self.end_unparking(cell).map(|()| true)
        } else {
            Ok(false)
        }
    }

    fn end_unparking(&self, cell: usize) -> Result<()> {
        let reserved = self.reserve_room(cell, cell + 1);
        self.cells.end_unparking(cell, reserved.is_ok());
        reserved
    }

    fn reserve_room(&self, from: usize, to: usize) -> Result<()> {
        fault::check(Point::Room)?;
        let (at, len) = ((from * CELL) as u64, ((to - from) * CELL) as u64);
        let file = self.file()?;
        if self.is_memory() {
            return memory::reserve(&file, false, at, len);
        }
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), at, len))
    }

    /// Gives the room of the last unused cell below `end` back to the file system. Returns that
    /// cell, which is the `end` for the next call; None if no cell is unused. Only within an
    /// operation in flight of the store.
    ///
    /// # Errors
    /// EOPNOTSUPP where the file system can't punch holes; EIO and others of the file system.
    pub fn give_back(&self, mut end: usize) -> Result<Option<usize>> {
        while let Some(cell) = self.cells.last_empty(end) {
            end = cell;
            if !self.cells.begin_parking(cell) {
                continue;
            }
            let file = self.file();
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (at, len) = ((cell * CELL) as u64, CELL as u64);
            let given = file.and_then(|file| {
                rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, hole, at, len))
            });
            // After an error other than the three below, part of the room may have been given back:
            // the cell stays parked.
            match given {
                Ok(()) => self.cells.end_parking(cell, true),
                Err(e) => {
                    let whole = matches!(e, Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM);
                    self.cells.end_parking(cell, !whole);
                    return Err(e);
                }
            }
            return Ok(Some(cell));
        }
        Ok(None)
    }

    /// Reserves room for all cells up to the last one in use; room that is reserved already stays
    /// reserved. Only while no other process uses the medium.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT, EIO.
    pub fn reserve_again(&self) -> Result<()> {
        self.cells.forget_reserved();
        while self.cells.reserved() < self.cells.used_cells() {
            self.reserve(RESERVE_STEP)?;
        }
        Ok(())
    }

    /// Room that the file system has allocated to the segment. Bytes.
    ///
    /// # Errors
    /// Errors of stat.
    pub fn allocated(&self) -> Result<u64> {
        Ok(rustix::fs::stat(&self.segment)?.st_blocks as u64 * 512)
    }

    /// Frees an extent.
    pub fn free(&self, e: Extent) {
        self.cells.free(e);
    }

    /// The segment's descriptor, for reading, writing and mapping extents into a program.
    ///
    /// # Errors
    /// Errors of open.
    pub fn file(&self) -> Result<Lent> {
        self.opened(&self.file, OFlags::RDWR)
    }

    /// As [`Medium::file`], but for reading only: the kernel then refuses to make a shared mapping
    /// of this descriptor writable.
    ///
    /// # Errors
    /// Errors of open.
    pub fn file_for_reading(&self) -> Result<Lent> {
        self.opened(&self.reading, OFlags::RDONLY)
    }

    fn opened(&self, place: &Place, how: OFlags) -> Result<Lent> {
        place.lend_or_open(|| rustix::fs::open(&self.segment, how | OFlags::CLOEXEC, Mode::empty()))
    }

    /// Returns the address of byte `offset` of the segment; maps the window around it if needed.
    fn address(&self, offset: usize) -> Result<*mut u8> {
        let slot = &self.windows[offset / WINDOW];
        let mut base = slot.load(Acquire);
        if base.is_null() {
            let start = offset / WINDOW * WINDOW;
            let len = WINDOW.min(self.cells.count() * CELL - start);
            let new = map_aligned(self.file()?.as_fd(), start as u64, len)?;
            match slot.compare_exchange(base, new, AcqRel, Acquire) {
                Ok(_) => base = new,
                Err(other) => {
                    // SAFETY: only this thread knows the mapping, since another thread stored its
                    // own first.
                    let _ = unsafe { munmap(new.cast(), len) };
                    base = other;
                }
            }
        }
        // SAFETY: the address lies inside the window, which is mapped.
        Ok(unsafe { base.add(offset % WINDOW) })
    }

    /// Touches the pages of `len` bytes at `offset` of the segment (in one cell) that this process
    /// hasn't touched, in groups: see [`Touched`].
    fn touch(&self, offset: usize, len: usize) -> Result<()> {
        let Some(at) = self.mapped(offset)? else {
            return Ok(());
        };
        self.touched.first_time(offset, len, |group| {
            // SAFETY: the group lies in the cell, and so in the window, of `offset`; its room is
            // reserved.
            unsafe { at.offset(group as isize - offset as isize).read_volatile() };
        });
        Ok(())
    }

    /// Makes the kernel allocate the pages of a cell whose room is reserved.
    fn warm(&self, cell: usize) {
        if self.is_memory()
            && let Ok(at) = self.address(cell * CELL)
        {
            // SAFETY: the pages belong to the segment's mapping, and madvise keeps their content.
            // If it fails, the kernel allocates pages when they are touched.
            // allocates pages when they are touched.
            let _ = unsafe { madvise(at.cast(), CELL, Advice::LinuxPopulateWrite) };
        }
    }

    /// Returns the address of byte `offset` of the segment. None if the segment is accessed by
    /// system calls: on `files`, and where the program has no address space left (`ulimit -v`).
    fn mapped(&self, offset: usize) -> Result<Option<*mut u8>> {
        if !self.is_memory() {
            return Ok(None);
        }
        match self.address(offset) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NOMEM) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_memory(&self) -> bool {
        self.kind == MediumKind::Memory
    }

    /// Copies `len` bytes at `from` into the extent at byte `offset`, and marks the pages of that
    /// range initialised. If such a page wasn't initialised, its bytes outside the range become
    /// zero.
    ///
    /// # Errors
    /// EFAULT if `from` isn't readable; EIO and others of `files` media.
    ///
    /// # Safety
    /// The range is inside the extent.
    pub unsafe fn write(
        &self,
        e: Extent,
        offset: usize,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        debug_assert!(len > 0 && offset + len <= e.pages() * PAGE);
        let end = offset + len;
        let (first, last) = (offset / PAGE, (end - 1) / PAGE);
        let (start_page, base) = (e.start(), e.start() as usize * PAGE);
        // Must come before the first write to these pages (see [`Touched`]).
        self.touch(base + offset, len)?;
        // An uninitialised page may contain anything: clear its bytes around the written ones.
        let head = offset % PAGE;
        if head > 0 && !self.cells.is_init(start_page + first as u64) {
            self.zero_bytes(base + first * PAGE, head)?;
        }
        let tail = end % PAGE;
        if tail > 0 && !self.cells.is_init(start_page + last as u64) {
            self.zero_bytes(base + end, PAGE - tail)?;
        }
        if let Some(to) = self.mapped(base + offset)? {
            // SAFETY: `to` lies in the segment's mapping with room for the extent. Programs that
            // race here damage only their own bytes.
            if !unsafe { guard::copy(from, to, len) } {
                return Err(Errno::FAULT);
            }
        } else {
            // SAFETY: the caller promises that `len` bytes at `from` can be read.
            let bytes = unsafe { std::slice::from_raw_parts(from, len) };
            self.pwrite(bytes, base + offset)?;
        }
        self.cells
            .set_init(start_page + first as u64, last - first + 1, true);
        Ok(())
    }

    /// Copies `len` bytes from byte `offset` of the extent to `to`.
    ///
    /// # Errors
    /// EFAULT if `to` isn't writable; EIO and others of `files` media.
    ///
    /// # Safety
    /// No reference to the `len` bytes at `to` is alive, and the range is inside the extent.
    pub unsafe fn read(&self, e: Extent, offset: usize, to: *mut u8, len: usize) -> Result<()> {
        debug_assert!(len > 0 && offset + len <= e.pages() * PAGE);
        let (first, last) = (offset / PAGE, (offset + len - 1) / PAGE);
        if self
            .cells
            .all_init(e.start() + first as u64, last - first + 1)
        {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_out(e.start() as usize * PAGE + offset, to, len) };
        }
        let mut at = offset;
        while at < offset + len {
            let page = at / PAGE;
            let n = ((page + 1) * PAGE).min(offset + len) - at;
            // SAFETY: the address lies in the caller's `len` bytes, since at < offset + len.
            let out = unsafe { to.add(at - offset) };
            if self.cells.is_init(e.start() + page as u64) {
                // SAFETY: the caller's promise.
                unsafe { self.copy_out(e.start() as usize * PAGE + at, out, n)? };
            } else {
                // SAFETY: within the caller's `len` bytes.
                if !unsafe { guard::zero(out, n) } {
                    return Err(Errno::FAULT);
                }
            }
            at += n;
        }
        Ok(())
    }

    /// Advises the kernel that these pages won't be read soon: the kernel drops cached pages of a
    /// `files` medium that are written back. Does nothing on `memory`.
    pub fn let_go(&self, start: u64, pages: usize) {
        if let (MediumKind::Files(_), Ok(file)) = (&self.kind, self.file()) {
            let (at, len) = (start * PAGE as u64, (pages * PAGE) as u64);
            // On a kernel without this advice, the pages stay cached.
            let _ = rustix::fs::fadvise(&file, at, NonZeroU64::new(len), FileAdvice::DontNeed);
        }
    }

    /// Makes `len` bytes of the extent from byte `offset` on read as zero. Whole pages become
    /// uninitialised; zeros are written over parts of initialised pages.
    ///
    /// # Errors
    /// EIO and others of `files` media.
    pub fn zero(&self, e: Extent, offset: usize, len: usize) -> Result<()> {
        let mut at = offset;
        while at < offset + len {
            let page = at / PAGE;
            let n = ((page + 1) * PAGE).min(offset + len) - at;
            let number = e.start() + page as u64;
            if self.cells.is_init(number) {
                if n == PAGE {
                    self.cells.set_init(number, 1, false);
                } else {
                    self.zero_bytes(e.start() as usize * PAGE + at, n)?;
                }
            }
            at += n;
        }
        Ok(())
    }

    /// Makes `pages` pages of the extent from page `first` on initialised, without a change of what
    /// reads return, so that the pages can be mapped.
    ///
    /// # Errors
    /// EIO and others of `files` media.
    pub fn make_init(&self, e: Extent, first: usize, pages: usize) -> Result<()> {
        let (mut page, end) = (first, first + pages);
        while page < end {
            let (run, init) = self.init_run(e, page, end - page);
            if !init {
                let start = e.start() + page as u64;
                self.zero_bytes(start as usize * PAGE, run * PAGE)?;
                self.cells.set_init(start, run, true);
            }
            page += run;
        }
        Ok(())
    }

    /// Returns the number of consecutive pages of the extent, from page `first` on and at most
    /// `most`, with the same state; and whether they are initialised.
    pub fn init_run(&self, e: Extent, first: usize, most: usize) -> (usize, bool) {
        let init = self.is_init(e, first);
        let same = |&p: &usize| self.is_init(e, p) == init;
        (1 + (first + 1..first + most).take_while(same).count(), init)
    }

    /// Whether page `page` of the extent is initialised.
    pub fn is_init(&self, e: Extent, page: usize) -> bool {
        self.cells.is_init(e.start() + page as u64)
    }

    /// Makes all bytes written so far durable. Does nothing on `memory`: bytes there can't be
    /// durable.
    ///
    /// # Errors
    /// EIO and others of the file system.
    pub fn sync(&self) -> Result<()> {
        match self.kind {
            MediumKind::Memory => Ok(()),
            MediumKind::Files(_) => crate::sync_data(self.file()?.as_fd()),
        }
    }

    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) -> Result<()> {
        if let Some(from) = self.mapped(offset)? {
            // SAFETY: `from` lies in the segment's mapping; the caller promises that no reference
            // to the bytes at `to` is alive.
            return if unsafe { guard::copy(from, to, len) } {
                Ok(())
            } else {
                Err(Errno::FAULT)
            };
        }
        // SAFETY: the caller promises that `len` bytes at `to` can be written.
        let mut out = unsafe { std::slice::from_raw_parts_mut(to, len) };
        fault::check(Point::Read)?;
        let mut at = offset as u64;
        while !out.is_empty() {
            match rustix::io::pread(self.file()?, &mut *out, at) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => {
                    out = &mut out[n..];
                    at += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn zero_bytes(&self, offset: usize, len: usize) -> Result<()> {
        if let Some(at) = self.mapped(offset)? {
            // SAFETY: the bytes lie inside the segment's mapping: the caller stays inside an
            // extent.
            unsafe { std::ptr::write_bytes(at, 0, len) };
            return Ok(());
        }
        static ZEROS: [u8; 16 * PAGE] = [0; 16 * PAGE];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(ZEROS.len());
            self.pwrite(&ZEROS[..n], offset + done)?;
            done += n;
        }
        Ok(())
    }

    fn pwrite(&self, bytes: &[u8], offset: usize) -> Result<()> {
        fault::check(Point::Write)?;
        put_all(self.file()?.as_fd(), bytes, offset as u64)
    }
}

/// Maps `len` bytes of a file at an address that is a multiple of [`ALIGN`], since the kernel maps
/// aligned groups of pages around a fault.
fn map_aligned(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: reserves address space at an address that the kernel chooses, maps the file inside
    // it, and unmaps the rest on both sides.
    unsafe {
        let room: *mut u8 = mmap_anonymous(
            null_mut(),
            len + ALIGN,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
        .cast();
        let before = room.align_offset(ALIGN);
        let at = room.add(before);
        if before > 0 {
            munmap(room.cast(), before)?;
        }
        munmap(at.add(len).cast(), ALIGN - before)?;
        let mapped = mmap(
            at.cast(),
            len,
            protection,
            flags | MapFlags::FIXED,
            file,
            offset,
        );
        mapped.map(|p| p.cast()).inspect_err(|_| {
            let _ = munmap(at.cast(), len);
        })
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        for (i, w) in self.windows.iter().enumerate() {
            let base = w.load(Acquire);
            if !base.is_null() {
                let len = WINDOW.min(self.cells.count() * CELL - i * WINDOW);
                // SAFETY: this medium made the mapping and is being dropped, so nothing uses the
                // mapping.
                let _ = unsafe { munmap(base.cast(), len) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI32;

    fn try_both(f: impl Fn(&Medium)) {
        static MADE: AtomicI32 = AtomicI32::new(0);
        for kind in [MediumKind::Memory, MediumKind::Files("/".into())] {
            let number = MADE.fetch_add(1, AcqRel);
            let name = format!("forebay-medium-{}-{number}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir).unwrap();
            let map = dir.join("map");
            Medium::create(&dir, &map, 3 << 20, false).unwrap();
            f(&Medium::open(0, kind, &dir, &map, 3 << 20).unwrap());
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    fn put(m: &Medium, e: Extent, at: usize, bytes: &[u8]) {
        // SAFETY: pointer and length are those of `bytes`.
        unsafe { m.write(e, at, bytes.as_ptr(), bytes.len()).unwrap() }
    }

    fn get(m: &Medium, e: Extent, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0xaa; len];
        // SAFETY: pointer and length are those of `out`.
        unsafe { m.read(e, at, out.as_mut_ptr(), len).unwrap() };
        out
    }

    #[test]
    fn recycled_pages_read_as_zero_around_what_was_written() {
        try_both(|m| {
            let e = m.alloc(4).unwrap();
            put(m, e, 0, &[7; 4 * PAGE]);
            m.free(e);
            let e = m.alloc(4).unwrap();
            put(m, e, PAGE + 100, b"hello");
            let all = get(m, e, 0, 4 * PAGE);
            assert_eq!(&all[PAGE + 100..PAGE + 105], b"hello");
            assert_eq!(all.iter().filter(|&&b| b != 0).count(), 5);
            put(m, e, 0, &[7; 4 * PAGE]);
            m.zero(e, 10, 2 * PAGE).unwrap();
            let all = get(m, e, 0, 4 * PAGE);
            assert_eq!(all.iter().filter(|&&b| b == 0).count(), 2 * PAGE);
            assert!(all[10] == 0 && all[9] == 7 && all[10 + 2 * PAGE] == 7);
        });
    }

    #[test]
    fn what_is_copied_lands_between_other_bytes() {
        try_both(|from| {
            try_both(|to| {
                let (a, b) = (from.alloc(100).unwrap(), to.alloc(100).unwrap());
                let bytes: Vec<u8> = (0..90 * PAGE).map(|i| (i / 7) as u8).collect();
                put(from, a, 5, &bytes);
                put(to, b, 0, &[1; 100 * PAGE]);
                // SAFETY: the ranges lie inside the extents, and the media differ.
                unsafe {
                    let (a, b) = (
                        Position {
                            extent: a,
                            offset: 5,
                        },
                        Position {
                            extent: b,
                            offset: 4000,
                        },
                    );
                    from.copy(a, to, b, bytes.len()).unwrap();
                }
                assert_eq!(get(to, b, 4000, bytes.len()), bytes);
                assert_eq!(get(to, b, 0, 4000), [1; 4000]);
                assert_eq!(get(to, b, 4000 + bytes.len(), 100), [1; 100]);
            });
        });
    }

    #[test]
    fn unused_room_is_given_back_and_taken_again() {
        try_both(|m| {
            let taken: Vec<_> = (0..3).map(|_| m.alloc(256).unwrap()).collect();
            for e in &taken {
                put(m, *e, 0, &[7; 256 * PAGE]);
            }
            assert_eq!(m.give_back(usize::MAX), Ok(None), "all of it is in use");
            let kept = taken[1];
            m.free(taken[0]);
            m.free(taken[2]);
            assert_eq!(m.give_back(usize::MAX), Ok(Some(2)));
            assert_eq!(m.give_back(2), Ok(Some(0)));
            assert_eq!(m.give_back(0), Ok(None));
            assert_eq!(m.usage().reserved, 1 << 20);
            assert!(m.allocated().unwrap() < 3 << 19, "{:?}", m.allocated());
            let again: Vec<_> = std::iter::from_fn(|| m.alloc(256).ok()).collect();
            assert_eq!((again.len(), m.usage().reserved), (2, 3 << 20));
            assert!(m.allocated().unwrap() >= 3 << 20);
            assert_eq!(get(m, again[0], 0, PAGE), vec![0; PAGE]);
            assert_eq!(get(m, kept, 255 * PAGE, PAGE), vec![7; PAGE]);
            assert_eq!(m.prepare(1), Ok(false));
        });
    }

    #[test]
    fn a_full_medium_is_enospc_and_recovers() {
        try_both(|m| {
            let taken: Vec<_> = std::iter::from_fn(|| m.alloc(200).ok()).collect();
            assert_eq!(taken.iter().map(|e| e.pages()).sum::<usize>(), 3 * 256);
            assert_eq!(m.alloc(1), Err(Errno::NOSPC));
            assert_eq!(m.usage().used, 3 << 20);
            taken.into_iter().for_each(|e| m.free(e));
            assert_eq!(m.alloc(256).unwrap().pages(), 256);
        });
    }
}
