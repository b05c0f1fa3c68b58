//! Pages of a pool's file mapped into this process.
//!
//! While an entry in this process's table of mappings refers to the file's pages, the store doesn't
//! reuse them (`forebay_store::mapped`). The store itself releases the entries of dead processes.
//! This module maps the pages, and unmaps them before it releases the entry. All pages are
//! allocated when the range is mapped, so that no later access fails for lack of space.
//!
//! Truncating the file doesn't affect a mapping: a page that is cut off stays mapped, filled with
//! zeros, and becomes part of the file again if the file grows. So a process that truncates the
//! file needn't wait for the mapping's end (`map_flag::STAYS`).

use crate::pool::Attached;
use crate::process::Generation;
use crate::{Error, Result};
use forebay_posix::{Entry, ObjectId};
use forebay_store::control_region::{MapRef, map_flag};
use forebay_store::{MapPiece, PAGE};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;

/// The access to a mapped chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The range is only read: a store instruction to it ends the program with a signal.
    Read,
    /// The range is read and written.
    Write,
}

/// The file name in messages about a file that was opened by its id.
const UNNAMED: &[u8] = b"#mapped";

/// A mapped range of a file.
pub struct Mapped {
    fs: Attached,
    /// The entry in the table of mappings: while it exists, the store doesn't reuse the file's
    /// pages. Valid as long as `fs` lives.
    place: NonNull<MapRef>,
    object: ObjectId,
    /// Offset in the file. Bytes.
    at: u64,
    /// The address of the byte at offset `at`. The pages that have the first and the last byte are
    /// mapped whole.
    first: NonNull<u8>,
    len: usize,
    access: Access,
    generation: Generation,
}

// SAFETY: the entry at `place` consists of atomics, and only drop releases it. This type makes no
// reference to the mapped memory: it only hands out the address, or copies bytes.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapped {}

/// A range of addresses, unmapped when dropped.
struct Range {
    start: NonNull<u8>,
    len: usize,
}

impl Range {
    /// Reserves addresses for whole pages; an access to them faults until pages are mapped there.
    fn reserve(len: usize) -> std::result::Result<Range, Errno> {
        // SAFETY: the kernel chooses unused addresses, so no existing mapping is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Range { start, len })
    }

    /// Maps a run of a medium's bytes at offset `from` of the range.
    fn put(
        &self,
        fs: &Attached,
        piece: &MapPiece,
        from: usize,
        access: Access,
    ) -> std::result::Result<(), Errno> {
        if from + piece.len > self.len {
            return Err(Errno::IO);
        }
        let medium = fs.store().media().get(piece.medium).ok_or(Errno::IO)?;
        let (segment, prot) = match access {
            Access::Read => (medium.file_for_reading()?, ProtFlags::READ),
            Access::Write => (medium.file()?, ProtFlags::READ | ProtFlags::WRITE),
        };
        // SAFETY: the mapping replaces only reserved addresses of this range, as checked above.
        // Nothing refers to them yet.
        unsafe {
            rustix::mm::mmap(
                self.start.as_ptr().add(from).cast(),
                piece.len,
                prot,
                MapFlags::SHARED | MapFlags::FIXED,
                segment,
                piece.segment_offset,
            )?;
        }
        Ok(())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: these addresses belong to the value that is being dropped, so nothing uses them
        // any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn inside(len: usize, at: usize, all: usize) -> Result<()> {
    match at.checked_add(len) {
        Some(end) if end <= all => Ok(()),
        _ => Err(Error::invalid(format!(
            "{len} bytes at {at} aren't inside a chunk of {all}"
        ))),
    }
}

impl Mapped {
    /// Maps a range of the file of an open file description. The mapping keeps the description
    /// open.
    pub(crate) fn of_open(
        fs: &Attached,
        open: u32,
        at: u64,
        len: usize,
        access: Access,
    ) -> Result<Mapped> {
        let cluster = fs.cluster();
        let failed = |e| Error::of(format!("can't map {len} bytes at {at}"), e);
        fs.origin_gate().bring_whole(open).map_err(failed)?;
        let live = fs.live_of(open).map_err(failed)?;
        if cluster.data().is_remote(live) {
            return Err(Error::new(
                Errno::REMOTE,
                "its bytes lie on another node, or on several: only what lies on this node can be mapped; read it",
            ));
        }
        let size = cluster.data().size(live).map_err(failed)?;
        let end = at.checked_add(len as u64);
        if len == 0 || end.is_none_or(|end| end > size) {
            return Err(Error::invalid(format!(
                "{len} bytes at {at} can't be mapped of a collection of {size}: nothing, or more than there is; make it longer first"
            )));
        }
        if access == Access::Write {
            if !fs.may(open, true) {
                let text = "it can't be mapped for writing: it is open for reading only, as it never changes any more";
                return Err(Error::new(Errno::ACCESS, text));
            }
            fs.controls()
                .check_shared_writing(open, live)
                .map_err(failed)?;
        }
        let kind = map_flag::SHARED
            | map_flag::STAYS
            | match access {
                Access::Read => map_flag::READ_ONLY,
                Access::Write => map_flag::CHANGES,
            };
        let object = ObjectId(
            cluster
                .store()
                .objects()
                .open_file(open)
                .id
                .load(std::sync::atomic::Ordering::Acquire),
        );
        let place = {
            let _turn = fs.claiming()?;
            cluster
                .store()
                .mappings()
                .map_claim(open, kind)
                .map_err(|e| match e {
                    Errno::NOMEM => Error::new(
                        e,
                        "this process has as many chunks mapped as it can have (4096)",
                    ),
                    e => failed(e),
                })?
        };
        let still = match access {
            Access::Read => Ok(()),
            Access::Write => fs.controls().check_shared_writing_again(open, live),
        };
        let put = still.and_then(|()| put_pages(fs, live, at, len, access));
        match put {
            Ok((range, skip)) => {
                // SAFETY: `skip` is less than a page, and the range has at least one page.
                let first = unsafe { range.start.add(skip) };
                std::mem::forget(range);
                Ok(Mapped {
                    fs: fs.clone(),
                    place: NonNull::from(place),
                    object,
                    at,
                    first,
                    len,
                    access,
                    generation: Generation::now(),
                })
            }
            Err(e) => {
                let _ = cluster.store().mappings().map_release(place);
                Err(failed(e))
            }
        }
    }

    /// Maps a range of the file with this id.
    pub(crate) fn by_id(
        fs: &Attached,
        object: ObjectId,
        at: u64,
        len: usize,
        access: Access,
    ) -> Result<Mapped> {
        let failed = |e: Errno| match e {
            Errno::NOENT => Error::new(e, "what this token names is gone: nobody has it any more"),
            e => Error::of("what this token names can't be opened", e),
        };
        if object.is_view() {
            return Err(failed(Errno::NOENT));
        }
        if !fs
            .cluster()
            .namespace()
            .stat(object)
            .map_err(failed)?
            .is_file()
        {
            return Err(failed(Errno::NOENT));
        }
        let entry = Entry {
            id: object,
            kind: libc::S_IFREG,
        };
        let flags = match access {
            Access::Read => libc::O_RDONLY,
            Access::Write => libc::O_RDWR,
        };
        let open = fs.open_object(entry, flags, false, ObjectId::ROOT, UNNAMED);
        let open = open.map_err(failed)?;
        let mapped = Mapped::of_open(fs, open, at, len, access);
        let _ = fs.release(open);
        mapped
    }

    /// Creates a file without a name and maps all of it.
    pub(crate) fn buffer(fs: &Attached, len: usize) -> Result<Mapped> {
        let failed = |e| Error::of(format!("a buffer of {len} bytes in the pool"), e);
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        let open = fs.open(b"/", flags, 0o600).map_err(failed)?.into_open();
        let longer = fs.truncate_open(open, len.max(1) as u64).map_err(failed);
        let mapped = longer.and_then(|()| Mapped::of_open(fs, open, 0, len.max(1), Access::Write));
        let _ = fs.release(open);
        mapped
    }

    /// Checks that this process has the mapping.
    ///
    /// # Errors
    /// EPERM in a forked child, which doesn't have the mapping.
    pub(crate) fn check(&self) -> Result<()> {
        self.generation.check()
    }

    pub(crate) fn pool(&self) -> &Attached {
        &self.fs
    }

    /// Returns the file's id and the mapping's offset in the file, in bytes.
    pub(crate) fn object(&self) -> (ObjectId, u64) {
        (self.object, self.at)
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn read(&self, to: &mut [u8], at: usize) -> Result<()> {
        inside(to.len(), at, self.len)?;
        // SAFETY: inside the mapping, as was just checked. Other threads and processes may write at
        // the same time: as with any shared memory, the copy may then mix old and new bytes, and
        // every byte value is valid.
        unsafe {
            std::ptr::copy_nonoverlapping(self.first.as_ptr().add(at), to.as_mut_ptr(), to.len())
        };
        Ok(())
    }

    pub(crate) fn write(&self, from: &[u8], at: usize) -> Result<()> {
        inside(from.len(), at, self.len)?;
        if self.access == Access::Read {
            return Err(Error::new(
                Errno::ACCESS,
                "this chunk was mapped for reading",
            ));
        }
        // SAFETY: as for `read`, and the range is mapped for writing.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.first.as_ptr().add(at), from.len())
        };
        Ok(())
    }

    fn range(&self) -> Range {
        let skip = self.at as usize % PAGE;
        Range {
            // SAFETY: `of_open` set `first` to `skip` bytes after the start of the range.
            start: unsafe { self.first.sub(skip) },
            len: (skip + self.len).next_multiple_of(PAGE),
        }
    }
}

/// Maps the pages of the file's range `at..at + len` at new addresses. Returns them, and the offset
/// of `at` in the first page.
fn put_pages(
    fs: &Attached,
    live: u32,
    at: u64,
    len: usize,
    access: Access,
) -> std::result::Result<(Range, usize), Errno> {
    let skip = at as usize % PAGE;
    let (from, whole) = (at - skip as u64, (skip + len).next_multiple_of(PAGE));
    let range = Range::reserve(whole)?;
    let mut there = 0;
    for piece in fs.cluster().mappings().map(live, from, whole, usize::MAX)? {
        range.put(fs, &piece, (piece.at - from) as usize, access)?;
        there += piece.len;
    }
    // A forked child doesn't inherit the mapping, as the child has no table entry that prevents the
    // reuse of the pages. SAFETY: the range was just mapped by this function.
    unsafe { rustix::mm::madvise(range.start.as_ptr().cast(), whole, Advice::LinuxDontFork)? };
    match there {
        n if n == whole => Ok((range, skip)),
        // The file was truncated meanwhile, so some pages are missing.
        _ => Err(Errno::AGAIN),
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // A forked child has neither the mapping nor the table entry.
        if !self.generation.is_now() {
            return;
        }
        drop(self.range());
        // SAFETY: `place` refers to an entry of the pool's table of mappings, which is in memory as
        // long as `fs` lives.
        let place = unsafe { self.place.as_ref() };
        let _ = self.fs.store().mappings().map_release(place);
    }
}
