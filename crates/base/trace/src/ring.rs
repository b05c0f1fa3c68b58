//! The ring of a process: a file with the process's newest events.
//!
//! ```text
//! 64 bytes   Header: magic, table of points, number of events, process, counters, program
//! 64 bytes   each event: number, time, point and thread, request, up to four fields
//! ```
//! An event is one cache line. An event's number determines its place, and is written last. So a
//! reader sees complete events only, also in the ring of a process that was killed. A text takes
//! the place of a second event. Writers don't wait for each other. If the ring wraps around while
//! an event is being written, another writer may overwrite the event; the reader then drops it.
//!
//! The ring is made at the process's first event, and remains after the process has ended. A forked
//! child gets its own.

use crate::points::Point;
use crate::shared::{READER_TIMEOUT, RING_EVENTS_RANGE, SHARED};
use crate::{clock, thread};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::CStr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence};

pub(crate) const MAGIC: u64 = 0x3130_474e_4952_4246; // "FBRING01"
/// Size of an event, and of the header. Bytes.
pub const EVENT: usize = 64;
/// Maximum size of the recorded part of a text. Bytes.
pub const TEXT: usize = 48;
/// Flag in an event's word `what`: a text follows.
pub(crate) const WITH_TEXT: u64 = 1 << 63;
/// In place of a point's number: this is a text, not an event.
pub(crate) const IS_TEXT: u64 = 0xffff;

/// The beginning of a ring.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The value of [`crate::points::table`] in the program.
    pub table: AtomicU64,
    /// Number of events: a power of two.
    pub events: AtomicU32,
    /// Process id.
    pub process: AtomicU32,
    /// Number of events recorded so far.
    pub next: AtomicU64,
    /// The reader has taken all events with lower numbers than this.
    pub taken: AtomicU64,
    /// Readers don't show events with lower numbers than this: such events were cleared.
    pub cleared: AtomicU64,
    /// The program's name.
    pub name: [AtomicU64; 2],
}

/// An event.
#[repr(C)]
pub struct Event {
    /// One more than the event's number; written last. 0: no event.
    pub number: AtomicU64,
    /// Ticks.
    pub time: AtomicU64,
    /// The point (lowest 16 bits) and the thread (bits 32 to 62).
    pub what: AtomicU64,
    /// Id of the request on which the thread worked ([`crate::request`]).
    pub request: AtomicU64,
    /// The fields of the event.
    pub fields: [AtomicU64; 4],
}

const _: () = assert!(size_of::<Header>() == EVENT && size_of::<Event>() == EVENT);

/// Maximum length of the path of a directory of rings. Bytes.
const MAX_DIRECTORY_BYTES: usize = 512;

/// Directory of the rings of the pool's processes: length and bytes of its path. A fixed array,
/// since an event may be recorded inside the allocator.
static RINGS: Mutex<(usize, [u8; MAX_DIRECTORY_BYTES])> = Mutex::new((0, [0; MAX_DIRECTORY_BYTES]));
/// Sets the directory in which this process will make its ring. If the path is longer than
/// [`MAX_DIRECTORY_BYTES`], nothing is recorded.
pub(crate) fn make_in(dir: &Path) {
    let path = dir.as_os_str().as_encoded_bytes();
    let len = if path.len() <= MAX_DIRECTORY_BYTES {
        path.len()
    } else {
        0
    };
    // A thread that makes a ring holds the lock for a moment. In a forked child that thread may not
    // exist: then the lock is never free, and the child records nothing.
    let place = (0..1000).find_map(|_| {
        let place = RINGS.try_lock();
        place.inspect_err(|_| std::thread::yield_now()).ok()
    });
    if let Some(mut place) = place {
        place.0 = len;
        place.1[..len].copy_from_slice(&path[..len]);
    }
}

/// Returns the directory for this process's ring. None if there is none, or if another thread holds
/// the lock.
fn rings() -> Option<(usize, [u8; MAX_DIRECTORY_BYTES])> {
    let rings = *RINGS.try_lock().ok()?;
    (rings.0 > 0).then_some(rings)
}

static RING: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
/// Whether a thread is making the ring, or has failed to make one.
static MAKING: AtomicU32 = AtomicU32::new(0);
const BUSY: u32 = 1;

/// Drops this process's reference to its ring, so that the next event makes a new one: after fork,
/// and when a pool is attached or detached.
pub(crate) fn forget() {
    RING.store(std::ptr::null_mut(), Release);
    MAKING.store(0, Release);
}

/// Records an event.
#[cold]
#[inline(never)]
pub fn record(point: Point, fields: &[u64]) {
    if let Some(ring) = ring() {
        let number = place(ring, 1);
        write(ring, number, point as u64, fields);
    }
}

/// Records an event with a text.
#[cold]
#[inline(never)]
pub fn record_text(point: Point, fields: &[u64], text: &[u8]) {
    let Some(ring) = ring() else { return };
    let number = place(ring, 2);
    let event = event(ring, number + 1);
    event.number.store(0, Relaxed);
    fence(Release);
    event
        .what
        .store(IS_TEXT | (text.len().min(TEXT) as u64) << 16, Relaxed);
    let mut words = [0u8; TEXT];
    let len = text.len().min(TEXT);
    words[..len].copy_from_slice(&text[..len]);
    let places = [&event.time, &event.request]
        .into_iter()
        .chain(&event.fields);
    for (place, word) in places.zip(words.as_chunks::<8>().0) {
        place.store(u64::from_le_bytes(*word), Relaxed);
    }
    event.number.store(number + 2, Release);
    write(ring, number, point as u64 | WITH_TEXT, fields);
}

/// Takes the next `count` places of the ring. Returns the number of the first one.
#[inline]
fn place(ring: &Header, count: u64) -> u64 {
    let number = ring.next.fetch_add(count, Relaxed);
    if SHARED.head.reader.load(Relaxed) != 0 && SHARED.head.waits.load(Relaxed) != 0 {
        wait(ring, number + count);
    }
    number
}

/// Waits until the reader has taken the events that the events numbered below `end` will overwrite.
#[cold]
fn wait(ring: &Header, end: u64) {
    let head = &SHARED.head;
    let events = u64::from(ring.events.load(Relaxed));
    let begin = clock::monotonic();
    while end.saturating_sub(ring.taken.load(Acquire)) > events {
        if !SHARED.is_read() {
            // The reader was killed or is stopped: processes stop waiting for it.
            head.waits.store(0, Relaxed);
        }
        if head.waits.load(Relaxed) == 0 || clock::monotonic() - begin > READER_TIMEOUT {
            return;
        }
        let pause = rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000,
        };
        let _ = rustix::thread::nanosleep(&pause);
    }
}

#[inline]
fn event(ring: &Header, number: u64) -> &Event {
    let mask = u64::from(ring.events.load(Relaxed)) - 1;
    let at = 1 + (number & mask) as usize;
    // SAFETY: the header is followed by as many events as it says; header and event have the same
    // size.
    unsafe { &*std::ptr::from_ref(ring).cast::<Event>().add(at) }
}

#[inline]
fn write(ring: &Header, number: u64, point: u64, fields: &[u64]) {
    let event = event(ring, number);
    event.number.store(0, Relaxed);
    fence(Release);
    event.time.store(clock::now(), Relaxed);
    let thread = u64::from(thread::id() & 0x7fff_ffff) << 32;
    event.what.store(point | thread, Relaxed);
    event.request.store(thread::request(), Relaxed);
    for (i, place) in event.fields.iter().enumerate() {
        place.store(fields.get(i).copied().unwrap_or(0), Relaxed);
    }
    event.number.store(number + 1, Release);
}

#[inline]
fn ring() -> Option<&'static Header> {
    let ring = RING.load(Acquire);
    // SAFETY: null, or a ring, which is never unmapped.
    unsafe { ring.as_ref() }.or_else(make_once)
}

#[cold]
fn make_once() -> Option<&'static Header> {
    // Nothing to do if another thread is making the ring, if this is a signal handler that
    // interrupted the making, or if an attempt has failed.
    MAKING.compare_exchange(0, BUSY, AcqRel, Relaxed).ok()?;
    let made = make();
    match made {
        Ok(ring) => {
            RING.store(std::ptr::from_ref(ring).cast_mut(), Release);
            MAKING.store(0, Release);
            Some(ring)
        }
        Err(Errno::AGAIN) => {
            MAKING.store(0, Release);
            None
        }
        Err(_) => {
            SHARED.head.refused.fetch_add(1, Relaxed);
            None
        }
    }
}

/// The path of a ring, `DIR/PROCESS.TIME` with the time in hexadecimal. Built without allocation.
struct Name {
    bytes: [u8; MAX_DIRECTORY_BYTES + 48],
    len: usize,
}

impl Name {
    fn new_dir(dir: &[u8]) -> Name {
        let mut name = Name {
            bytes: [0; MAX_DIRECTORY_BYTES + 48],
            len: 0,
        };
        name.push(dir);
        name
    }

    fn new(dir: &[u8], process: u64, time: u64) -> Name {
        let mut name = Name::new_dir(dir);
        name.push(b"/");
        name.number(process, 10);
        name.push(b".");
        name.number(time, 16);
        name
    }

    fn push(&mut self, more: &[u8]) {
        self.bytes[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
    }

    fn number(&mut self, mut n: u64, base: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(n % base) as usize];
            n /= base;
            if n == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }

    fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_with_nul(&self.bytes[..=self.len]).ok()
    }
}

/// Makes this process's ring and maps it.
///
/// # Errors
/// EAGAIN if the ring can't be made now. EDQUOT if all rings together would be too large. Errors of
/// open, fallocate and mmap.
fn make() -> Result<&'static Header, Errno> {
    let dir = rings().ok_or(Errno::AGAIN)?;
    let head = &SHARED.head;
    let (least, most) = RING_EVENTS_RANGE;
    let events = head
        .ring_events
        .load(Relaxed)
        .clamp(least, most)
        .next_power_of_two();
    let bytes = (events as usize + 1) * EVENT;
    if head.rings.fetch_add(bytes as u64, AcqRel) + bytes as u64 > head.rings_limit.load(Relaxed) {
        head.rings.fetch_sub(bytes as u64, AcqRel);
        return Err(Errno::DQUOT);
    }
    let made = (|| {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let path = Name::new(&dir.1[..dir.0], pid as u64, clock::monotonic());
        let path = path.as_c_str().ok_or(Errno::NAMETOOLONG)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let open = || rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let file = match open() {
            // This is the first ring of the node: make the directory.
            Err(Errno::NOENT) => {
                let place = Name::new_dir(&dir.1[..dir.0]);
                let place = place.as_c_str().ok_or(Errno::NAMETOOLONG)?;
                let made = rustix::fs::mkdir(place, Mode::RWXU);
                made.or_else(|e| if e == Errno::EXIST { Ok(()) } else { Err(e) })?;
                open()?
            }
            file => file?,
        };
        let mapped = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)
            .and_then(|()| {
                let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
                // SAFETY: the kernel chooses an unused address, so no mapping is replaced.
                unsafe {
                    rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0)
                }
            });
        let mapped = mapped.inspect_err(|_| {
            let _ = rustix::fs::unlink(path);
        })?;
        // SAFETY: the mapping is never unmapped, and zeroed memory is a valid header.
        let ring = unsafe { &*mapped.cast::<Header>() };
        ring.table.store(crate::points::table(), Relaxed);
        ring.events.store(events, Relaxed);
        ring.process.store(pid as u32, Relaxed);
        for (place, half) in ring.name.iter().zip(thread::program()) {
            place.store(half, Relaxed);
        }
        ring.magic.store(MAGIC, Release);
        Ok(ring)
    })();
    made.inspect_err(|_| {
        head.rings.fetch_sub(bytes as u64, AcqRel);
    })
}
