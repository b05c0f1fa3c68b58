//! The file `requests`: its layout, and how it is created and mapped.
//!
//! ```text
//! 0        header
//! 4 KiB    cells: states, lengths, numbers
//! 64 KiB   head areas: of each cell 48 KiB for a head, 16 KiB for a small body
//! ...      body areas: of the first 64 cells, 1 MiB
//! ```
//! The file is sparse: areas take memory from their first use on.

use super::SMALL_BODY;
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use forebay_media::{Region, memory};
use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};

/// Maximum number of requests in progress on a node.
pub const CELLS: usize = 256;
/// Number of cells with an area for large bodies.
pub const LARGE: usize = 64;

/// Value of [`Header::sleeps`]: the daemon sleeps until it is woken.
pub const ASLEEP: u32 = 1;
/// Value of [`Header::sleeps`]: the daemon sleeps for some milliseconds; one-way requests needn't
/// wake it.
pub const DOZING: u32 = 2;

const SHARES: usize = 16;
const MAGIC: u64 = 0x3230_5145_5259_4246; // "FBYREQ02"
const CELLS_AT: usize = 4 << 10;
const HEADS_AT: usize = 64 << 10;
const HEAD_AREA: usize = MAX_HEAD + SMALL_BODY;
const BODIES_AT: usize = HEADS_AT + CELLS * HEAD_AREA;
const LEN: usize = BODIES_AT + LARGE * MAX_BODY;

/// The header, at the start of the file.
#[repr(C, align(64))]
pub struct Header {
    magic: AtomicU64,
    /// A random number that distinguishes this node's requests from those of all other nodes.
    pub id: AtomicU64,
    /// The last request number that was assigned.
    pub numbers: AtomicU64,
    /// The daemon's owner word ([`forebay_store::process::own_word`]); 0: no daemon so far.
    pub daemon: AtomicU64,
    /// Counts the versions of the file `map`; 0: the file doesn't exist yet.
    pub map: AtomicU32,
    /// Request timeout. Milliseconds.
    pub request_timeout: AtomicU32,
    /// 1 after the daemon didn't answer within the request timeout: other processes needn't wait as
    /// long. The daemon resets it when it takes requests.
    pub missing: AtomicU32,
    /// Time after which this node's locks on a peer are lost if the peer doesn't answer.
    /// Milliseconds; 0: never.
    pub lease: AtomicU32,
    /// Counts posted requests; the daemon sleeps on this word.
    pub bell: AtomicU32,
    /// Whether the daemon sleeps: [`ASLEEP`] or [`DOZING`]; 0: it is awake.
    pub sleeps: AtomicU32,
    /// Counts freed cells; threads that need a cell sleep on this word.
    pub room: AtomicU32,
    /// Number of threads that sleep on `room`.
    pub wanting: AtomicU32,
    /// As `room`, for threads that wait because their request's node has no share of cells left;
    /// indexed by the node's number.
    share: [AtomicU32; SHARES],
    /// Time of the last search for cells of dead processes ([`super::clock`]).
    pub reclaimed: AtomicU64,
    /// One bit for each cell: whether it is posted and the daemon hasn't taken it yet.
    pub posted: [AtomicU64; CELLS / 64],
}

impl Header {
    /// The word on which a thread sleeps while requests to `node` may have no more cells.
    pub fn share_of(&self, node: u32) -> &AtomicU32 {
        &self.share[node as usize % SHARES]
    }
}

/// One request and its reply.
#[repr(C, align(128))]
pub struct Cell {
    /// Owner word of the requester; 0: the cell is free.
    pub owner: AtomicU64,
    /// Random number of the requesting program, by which cells that a program claimed before exec
    /// are found.
    pub image: AtomicU64,
    /// See [`super::cell`]. The requester sleeps on this word.
    pub state: AtomicU32,
    pub sleeps: AtomicU32,
    /// Which areas have their pages allocated; see [`Shared::reserve`].
    pub reserved: AtomicU32,
    pub node: AtomicU32,
    pub kind: AtomicU32,
    /// 0: no bytes; 1: bytes are sent with the request; 2: bytes are received with the reply.
    pub way: AtomicU32,
    /// Bytes of the head; bytes of the body, or of the space for a received one.
    pub head: AtomicU32,
    pub body: AtomicU32,
    /// When the requester stops waiting ([`super::clock`]). The daemon postpones it while the peer
    /// reports progress.
    pub deadline: AtomicU64,
    /// The request's number; 0 until the daemon assigns one.
    pub number: AtomicU64,
    /// Id of the home's reply cache to which the request was sent ([`super::Replies::id`]); 0: not
    /// sent.
    pub sent_to: AtomicU64,
    /// The requester's trace id ([`forebay_trace::request`]).
    pub traced: AtomicU64,
    /// The reply: 0 or an errno; bytes of its head; number of bytes received with it.
    pub status: AtomicU32,
    pub answer: AtomicU32,
    pub received: AtomicU32,
    /// 1: one-way. No process waits for the reply, and a posted cell belongs to the daemon.
    pub one_way: AtomicU32,
}

const _: () = assert!(size_of::<Header>() <= CELLS_AT);
const _: () = assert!(CELLS_AT + CELLS * size_of::<Cell>() <= HEADS_AT);

/// The mapped file.
pub struct Shared {
    region: Region,
    path: PathBuf,
}

impl Shared {
    /// Maps the file in the node's directory `dir`; creates it if there is none.
    ///
    /// # Errors
    /// EINVAL if the file isn't of this format; errors of open and mmap.
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
        // SAFETY: the header has only atomics, and the region is large enough for it.
        unsafe { self.region.at(0) }
    }

    pub fn cell(&self, index: usize) -> &Cell {
        assert!(index < CELLS);
        // SAFETY: a Cell is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(CELLS_AT + index * size_of::<Cell>()) }
    }

    /// Address of a request's or reply's head: [`MAX_HEAD`] bytes.
    pub fn head_at(&self, index: usize) -> *mut u8 {
        assert!(index < CELLS);
        // SAFETY: index < CELLS, so the cell's area lies in the region, which has LEN bytes.
        unsafe { self.region.base().add(HEADS_AT + index * HEAD_AREA) }
    }

    /// Address of a body of `len` bytes; None if the cell has no space for it.
    pub fn body_at(&self, index: usize, len: usize) -> Option<*mut u8> {
        if len <= SMALL_BODY {
            // SAFETY: a cell's area has SMALL_BODY bytes behind the head.
            return Some(unsafe { self.head_at(index).add(MAX_HEAD) });
        }
        let fits = index < LARGE && len <= MAX_BODY;
        // SAFETY: index < LARGE, so the body's area lies in the region, which has LEN bytes.
        fits.then(|| unsafe { self.region.base().add(BODIES_AT + index * MAX_BODY) })
    }

    /// Allocates the pages of a cell's areas, so that touching them later doesn't fail on a full
    /// file system.
    ///
    /// # Errors
    /// ENOSPC if the file system is full; errors of open, if the kernel can't reserve memory through
    /// a mapping (before 5.14).
    pub fn reserve(&self, index: usize, body: usize) -> Result<()> {
        let cell = self.cell(index);
        let head = (1, HEADS_AT + index * HEAD_AREA, HEAD_AREA);
        let large = (body > SMALL_BODY).then(|| (2, BODIES_AT + index * MAX_BODY, MAX_BODY));
        for (bit, at, len) in [Some(head), large].into_iter().flatten() {
            if cell.reserved.load(Acquire) & bit != 0 {
                continue;
            }
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::open(&self.path, flags, Mode::empty()) {
                Ok(file) => memory::reserve(&file, false, at as u64, len as u64)?,
                // A process that has no descriptor left, or has become another user, can't open the
                // file. It reserves the memory through the mapping.
                Err(e @ (Errno::MFILE | Errno::NFILE | Errno::ACCESS | Errno::PERM)) => {
                    memory::reserve_mapped(&self.region, at, len)
                        .map_err(|why| if why == Errno::INVAL { e } else { why })?;
                }
                Err(e) => return Err(e),
            }
            cell.reserved.fetch_or(bit, AcqRel);
        }
        Ok(())
    }
}

/// Number of requests that processes of the node in `dir`, and its daemon, have sent since the file
/// was created.
///
/// # Errors
/// ENOENT if there is no file; EINVAL if it isn't of this version.
pub fn requests_sent(dir: &Path) -> Result<u64> {
    let region = Region::open(&dir.join("requests"), LEN)?;
    // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
    let header: &Header = unsafe { region.at(0) };
    match header.magic.load(Acquire) {
        MAGIC => Ok(header.numbers.load(Relaxed)),
        _ => Err(Errno::INVAL),
    }
}

/// Number of cells in use on the node in `dir`, and of all cells.
///
/// # Errors
/// EINVAL if the file is of another version; errors of opening it.
pub fn cells_of(dir: &Path) -> Result<(usize, usize)> {
    let region = Region::open(&dir.join("requests"), LEN)?;
    // SAFETY: both types are made of atomics; `at` checks bounds and alignment.
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

/// Reclaims cells of ended processes on the node in `dir`. Returns their number.
///
/// # Errors
/// As for [`Shared::open`].
pub fn reclaim_cells(dir: &Path) -> Result<usize> {
    let shared = Shared::open(dir)?;
    Ok(shared.reclaim_dead(forebay_store::process::own_word_or_id()))
}

/// Creates the complete file under another name, then links it to `path`.
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
        header.request_timeout.store(10_000, Relaxed);
        header.magic.store(MAGIC, Release);
        match rustix::fs::link(&part, path) {
            // Another process created the file first.
            Err(Errno::EXIST) => Ok(()),
            linked => linked,
        }
    })();
    let _ = rustix::fs::unlink(&part);
    made
}

/// A random number other than 0.
///
/// # Errors
/// Errors of getrandom.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes) | 1)
}
