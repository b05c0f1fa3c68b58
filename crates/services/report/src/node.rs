//! Access to the tracing of one node on this host: its switches, rings and counters.

use forebay_client::Place;
use forebay_store::control_region::{Control, MAX_PROCESSES};
use forebay_store::{NodeId, RINGS, Region, process};
use forebay_trace::block::Block;
use forebay_trace::clock::{Moment, Scale};
use forebay_trace::read::{Extent, Ring, Words, read};
use forebay_trace::ring::Header;
use forebay_trace::shared::Shared;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A node whose shared memory is mapped.
pub struct Node {
    /// The node's number; 0 in a pool of one node.
    pub number: NodeId,
    dir: PathBuf,
    file: OwnedFd,
    control: Control,
}

/// A ring's file, and the result of reading it.
pub struct Found {
    /// The ring's file.
    pub path: PathBuf,
    /// The ring's content, or the reason why the file can't be read.
    pub ring: Result<Ring, String>,
}

impl Node {
    /// Maps the shared memory of the node at `place`.
    ///
    /// # Errors
    /// Errors of open and mmap; EINVAL if the memory belongs to another version of Forebay.
    pub fn open(place: &Place) -> Result<Node, Errno> {
        let path = place.dir.join("control");
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let control = Control::map(&file)?;
        if control.traced().head.table.load(Acquire) != forebay_trace::points::table() {
            return Err(Errno::INVAL);
        }
        control.traced().use_clock();
        Ok(Node {
            number: NodeId(place.node.unwrap_or(0)),
            dir: place.dir.clone(),
            file,
            control,
        })
    }

    /// Returns the node's switches and settings.
    pub fn shared(&self) -> &Shared {
        self.control.traced()
    }

    /// Returns the node's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the scale that converts the node's clock ticks to times, as measured until now.
    pub fn scale(&self) -> Scale {
        Scale::between(self.shared().head.begun(), Moment::now())
    }

    /// Returns the files of the node's rings.
    ///
    /// # Errors
    /// Errors of reading the directory.
    pub fn ring_files(&self) -> std::io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(self.dir.join(RINGS)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .collect();
        files.sort();
        Ok(files)
    }

    /// Drops the events of a ring. Removes the ring if its process has ended.
    ///
    /// # Errors
    /// Errors of open, mmap and unlink.
    pub fn clear_ring(&self, path: &Path) -> std::io::Result<()> {
        let region = Region::open(path, size_of::<Header>())?;
        // SAFETY: the region has at least the size of a header, whose fields are atomics.
        let header: &Header = unsafe { region.at(0) };
        header.cleared.store(header.next.load(Acquire), Release);
        if !process::has_ended(header.process.load(Relaxed)) {
            return Ok(());
        }
        std::fs::remove_file(path)?;
        let less = |all: u64| Some(all.saturating_sub(region.len() as u64));
        let _ = (self.shared().head.rings).fetch_update(AcqRel, Relaxed, less);
        Ok(())
    }

    /// Reads all rings of the node.
    ///
    /// # Errors
    /// Errors of reading the directory.
    pub fn rings(&self) -> std::io::Result<Vec<Found>> {
        let found = |path: PathBuf| Found {
            ring: read_file(&path),
            path,
        };
        Ok(self.ring_files()?.into_iter().map(found).collect())
    }

    /// Returns the number that the next event of the ring at `path` will have.
    ///
    /// # Errors
    /// Errors of open and mmap; ENODATA if the file is shorter than a header.
    pub fn ring_end(path: &Path) -> Result<u64, Errno> {
        let region = Region::open(path, size_of::<Header>())?;
        // SAFETY: the region has at least the size of a header, whose fields are atomics.
        let header: &Header = unsafe { region.at(0) };
        Ok(header.next.load(Acquire))
    }

    /// Reads the events of the ring at `path` from number `from` on. Doesn't mark them as taken, so
    /// that a process that records the node's events isn't disturbed.
    ///
    /// # Errors
    /// A sentence with the reason why the ring can't be read.
    pub fn ring_since(path: &Path, from: u64) -> Result<Ring, String> {
        let region = Region::open(path, size_of::<Header>()).map_err(|e| e.to_string())?;
        // SAFETY: a ring consists of 8-byte words, all of them atomics. The region is mapped longer
        // than the slice exists.
        let words = unsafe {
            let base = region.base().cast::<AtomicU64>();
            std::slice::from_raw_parts(base, region.len() / 8)
        };
        read(&Words::new(words), from, Extent::All)
    }

    /// Returns the counters of processes, in the order of their slots. The counters include those
    /// of an ended process until another process gets its slot. The last block is the sum of all
    /// other ended processes.
    ///
    /// # Errors
    /// Errors of reading the file.
    pub fn counted(&self) -> Result<Vec<Box<Block>>, Errno> {
        let mut all = Vec::new();
        let at = |slot: u32| {
            self.control.layout().area_at(slot) + forebay_store::control_region::COUNTED_IN_AREA
        };
        let used = |slot: &u32| self.control.process(*slot as usize).area.load(Acquire) != 0;
        for slot in (0..MAX_PROCESSES as u32).filter(used) {
            let block = self.block(at(slot))?;
            if block.process.load(Relaxed) != 0 {
                all.push(block);
            }
        }
        let ended = std::mem::offset_of!(Shared, head)
            + std::mem::offset_of!(forebay_trace::shared::Head, ended);
        all.push(self.block(forebay_store::control_region::TRACED_AT + ended)?);
        Ok(all)
    }

    fn block(&self, at: usize) -> Result<Box<Block>, Errno> {
        // SAFETY: zeroed memory is a valid block, and so are any other bytes.
        let mut block: Box<Block> = unsafe { Box::new_zeroed().assume_init() };
        // SAFETY: the slice covers exactly the block, which contains only plain numbers, so any
        // bytes may be written to it.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::from_mut(&mut *block).cast::<u8>(),
                size_of::<Block>(),
            )
        };
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.file, &mut bytes[done..], (at + done) as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(block)
    }
}

/// Reads a whole ring from its file.
fn read_file(path: &Path) -> Result<Ring, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let words: Vec<AtomicU64> = (bytes.as_chunks::<8>().0.iter())
        .map(|word| AtomicU64::new(u64::from_le_bytes(*word)))
        .collect();
    read(&Words::new(&words), 0, Extent::All)
}
