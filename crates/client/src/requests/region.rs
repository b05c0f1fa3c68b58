//! The file `requests`: what lies where in it, and how it is made and mapped.
//!
//! ```text
//! 0        header
//! 4 KiB    cells: states, lengths, numbers
//! 64 KiB   head areas: of each cell 48 KiB for a head, 16 KiB for a small body
//! ...      body areas: of the first 64 cells, 1 MiB
//! ```
//! The file is sparse: areas take memory once they have been used.

use super::SMALL_BODY;
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use forebay_media::Region;
use forebay_media::atomics::{AtomicU32, AtomicU64, Ordering::*};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};

/// Requests that may be in progress on a node.
pub const CELLS: usize = 256;
/// Cells with an area for large bytes.
pub const LARGE: usize = 64;

/// The daemon sleeps until it is woken.
pub const ASLEEP: u32 = 1;
/// The daemon sleeps for a moment: what isn't waited for needn't wake it.
pub const DOZING: u32 = 2;

const SHARES: usize = 16;
const MAGIC: u64 = 0x3130_5145_5259_4246; // "FBYREQ01"
const CELLS_AT: usize = 4 << 10;
const HEADS_AT: usize = 64 << 10;
const HEAD_AREA: usize = MAX_HEAD + SMALL_BODY;
const BODIES_AT: usize = HEADS_AT + CELLS * HEAD_AREA;
const LEN: usize = BODIES_AT + LARGE * MAX_BODY;

/// Fixed part at the start.
#[repr(C, align(64))]
pub struct Header {
    magic: AtomicU64,
    /// Tells these requests from those of all other nodes; random.
    pub id: AtomicU64,
    /// The last number that a request has got.
    pub numbers: AtomicU64,
    /// The daemon, as in [`forebay_store::process::own_word`]; 0: none so far.
    pub daemon: AtomicU64,
    /// Counts the versions of the file `map`; 0: there is none yet.
    pub map: AtomicU32,
    /// How long to wait for an answer, in milliseconds.
    pub patience: AtomicU32,
    /// Set by who has waited in vain since there was no daemon: others needn't.
    pub missing: AtomicU32,
    /// After how long without an answer of another node the locks there are lost, in milliseconds;
    /// 0: never.
    pub lease: AtomicU32,
    /// Counts what is posted: the daemon sleeps on it.
    pub bell: AtomicU32,
    /// Whether it does: [`ASLEEP`] or [`DOZING`]; 0: it is awake.
    pub sleeps: AtomicU32,
    /// Counts cells that became free: who needs one sleeps on it.
    pub room: AtomicU32,
    /// How many do.
    pub wanting: AtomicU32,
    /// The same of cells for a node, by its number: who may have no more for this node sleeps
    /// there.
    share: [AtomicU32; SHARES],
    /// When cells of dead processes were looked for last.
    pub reclaimed: AtomicU64,
    /// A bit for each cell that was posted and not looked at yet.
    pub posted: [AtomicU64; CELLS / 64],
}

impl Header {
    /// What who may have no more cells for `node` sleeps on.
    pub fn share_of(&self, node: u32) -> &AtomicU32 {
        &self.share[node as usize % SHARES]
    }
}

/// One request and its answer.
#[repr(C, align(128))]
pub struct Cell {
    /// The asker: an owner word; 0: the cell is free.
    pub owner: AtomicU64,
    /// Which program asks: exec leaves the process, but not its threads.
    pub image: AtomicU64,
    /// See [`super::cell`]. The asker sleeps on it.
    pub state: AtomicU32,
    pub sleeps: AtomicU32,
    /// Which areas have their pages: see [`Shared::reserve`].
    pub reserved: AtomicU32,
    pub node: AtomicU32,
    pub kind: AtomicU32,
    /// 0: no bytes; 1: they go with the request; 2: with the answer.
    pub way: AtomicU32,
    /// Bytes of the head, and of the body or of the room for it.
    pub head: AtomicU32,
    pub body: AtomicU32,
    /// When nobody waits any more, as in [`super::clock`]. The daemon moves it on as long as the
    /// other node says that it is at work.
    pub deadline: AtomicU64,
    /// The request's number, once the daemon has given it one.
    pub number: AtomicU64,
    /// The home's records that know of it, once it was sent ([`super::Replies::id`]); 0: it wasn't.
    pub sent_to: AtomicU64,
    /// The answer: 0 or an error, bytes of its head, bytes that came with it.
    pub status: AtomicU32,
    pub answer: AtomicU32,
    pub received: AtomicU32,
    /// Nobody waits for the answer: once it was posted, the cell is the daemon's.
    pub told: AtomicU32,
}

const _: () = assert!(size_of::<Header>() <= CELLS_AT);
const _: () = assert!(CELLS_AT + CELLS * size_of::<Cell>() <= HEADS_AT);

/// The mapped file.
pub struct Shared {
    region: Region,
    path: PathBuf,
}

impl Shared {
    /// Maps the file in the node's directory `dir`; makes it if there is none.
    ///
    /// # Errors
    /// If the file can't be opened or mapped, or isn't of this format.
    pub fn open(dir: &Path) -> Result<Shared> {
        let path = dir.join("requests");
        let region = match Region::open(&path, LEN) {
            Err(Errno::NOENT) => {
                create(dir, &path)?;
                Region::open(&path, LEN)?
            }
            region => region?,
        };
        let shared = Shared { region, path };
        if shared.header().magic.load(Acquire) != MAGIC {
            return Err(Errno::INVAL);
        }
        Ok(shared)
    }

    pub fn header(&self) -> &Header {
        // SAFETY: nothing but atomics, and the region has room for it.
        unsafe { self.region.at(0) }
    }

    pub fn cell(&self, index: usize) -> &Cell {
        assert!(index < CELLS);
        // SAFETY: as above.
        unsafe { self.region.at(CELLS_AT + index * size_of::<Cell>()) }
    }

    /// Where the head of a request or an answer lies: room for [`MAX_HEAD`] bytes.
    pub fn head_at(&self, index: usize) -> *mut u8 {
        assert!(index < CELLS);
        // SAFETY: inside the region.
        unsafe { self.region.base().add(HEADS_AT + index * HEAD_AREA) }
    }

    /// Where a body of `len` bytes lies; None if the cell has no room for it.
    pub fn body_at(&self, index: usize, len: usize) -> Option<*mut u8> {
        if len <= SMALL_BODY {
            // SAFETY: inside the region.
            return Some(unsafe { self.head_at(index).add(MAX_HEAD) });
        }
        let fits = index < LARGE && len <= MAX_BODY;
        // SAFETY: inside the region.
        fits.then(|| unsafe { self.region.base().add(BODIES_AT + index * MAX_BODY) })
    }

    /// Makes sure that the pages of a cell's areas are there: touching them must not fail where
    /// the file system is full.
    ///
    /// # Errors
    /// ENOSPC if the file system has no room.
    pub fn reserve(&self, index: usize, body: usize) -> Result<()> {
        let cell = self.cell(index);
        let head = (1, HEADS_AT + index * HEAD_AREA, HEAD_AREA);
        let large = (body > SMALL_BODY).then(|| (2, BODIES_AT + index * MAX_BODY, MAX_BODY));
        for (bit, at, len) in [Some(head), large].into_iter().flatten() {
            if cell.reserved.load(Acquire) & bit != 0 {
                continue;
            }
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
            forebay_media::memory::reserve(&file, false, at as u64, len as u64)?;
            cell.reserved.fetch_or(bit, AcqRel);
        }
        Ok(())
    }
}

/// How many requests the processes of the node in `dir` have asked others, and its daemon, since
/// the file is there.
///
/// # Errors
/// ENOENT if there is none; EINVAL if it isn't of this version.
pub fn questions_of(dir: &Path) -> Result<u64> {
    let region = Region::open(&dir.join("requests"), LEN)?;
    // SAFETY: as in `Shared::header`.
    let header: &Header = unsafe { region.at(0) };
    match header.magic.load(Acquire) {
        MAGIC => Ok(header.numbers.load(Relaxed)),
        _ => Err(Errno::INVAL),
    }
}

/// Cells of the node in `dir` that somebody has, and how many there are.
///
/// # Errors
/// What opening the file of requests says; EINVAL if it is of another version.
pub fn cells_of(dir: &Path) -> Result<(usize, usize)> {
    let region = Region::open(&dir.join("requests"), LEN)?;
    // SAFETY: as in `Shared::header` and `Shared::cell`.
    let (header, cell) = unsafe {
        let cell = |i| region.at::<Cell>(CELLS_AT + i * size_of::<Cell>());
        (region.at::<Header>(0), cell)
    };
    if header.magic.load(Acquire) != MAGIC {
        return Err(Errno::INVAL);
    }
    let used = (0..CELLS).filter(|&i| cell(i).owner.load(Acquire) != 0);
    Ok((used.count(), CELLS))
}

/// Takes back cells of processes that have ended, of the node in `dir`; how many.
///
/// # Errors
/// What opening the file of requests says.
pub fn reclaim_cells(dir: &Path) -> Result<usize> {
    let shared = Shared::open(dir)?;
    Ok(shared.reclaim_dead(forebay_store::process::own_word_or_id()))
}

/// Makes the file: under its name it appears whole.
fn create(dir: &Path, path: &Path) -> Result<()> {
    let part = dir.join(format!(
        "requests.{}",
        rustix::process::getpid().as_raw_nonzero()
    ));
    let _ = rustix::fs::unlink(&part);
    let made = (|| {
        let region = Region::create(&part, LEN, false)?;
        let file = rustix::fs::open(&part, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, HEADS_AT as u64)?;
        let shared = Shared {
            region,
            path: part.clone(),
        };
        let header = shared.header();
        header.id.store(random()?, Relaxed);
        header.patience.store(10_000, Relaxed);
        header.magic.store(MAGIC, Release);
        match rustix::fs::link(&part, path) {
            // Somebody else was faster.
            Err(Errno::EXIST) => Ok(()),
            linked => linked,
        }
    })();
    let _ = rustix::fs::unlink(&part);
    made
}

/// A random number other than 0.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes) | 1)
}
