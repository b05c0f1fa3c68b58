//! The durable part of the reply cache: records of the requests that a node's daemon has carried
//! out for other nodes. The records are in a file of the node's directory and outlive the daemon.
//!
//! A request that changes something has a record from before it is carried out until the requester
//! has the reply. So the next daemon knows which requests a killed daemon had begun, and what their
//! replies were: a request that is sent again is answered, never carried out twice.
//!
//! ```text
//! 0       header: magic, id, number of records that have pages
//! 4 KiB   16,384 records of 256 bytes
//! ```
//! The file `replies` is sparse. Pages are allocated for 256 records at a time before these records
//! are touched, so that a full file system gives an error and no SIGBUS. One daemon at a time uses
//! the file, under the lock of [`super::RequestServer`]. A record's state is stored last, so that a
//! kill leaves the old record valid.

use super::clock;
use super::region::random;
use forebay_media::Region;
use forebay_runtime::atomics::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of records of one node: 4 MiB in all, allocated as they are used.
pub const RECORDS: usize = 16 << 10;
/// Maximum number of bytes of a reply that are recorded. Of a longer reply, only its existence is
/// recorded.
pub const RECORDED_REPLY_BYTES: usize = 208;

const MAGIC: u64 = 0x3130_5045_5259_4246; // "FBYREP01"
const RECORDS_AT: usize = 4 << 10;
const LEN: usize = RECORDS_AT + RECORDS * size_of::<Record>();
/// Number of records whose pages are allocated at once.
const STEP: usize = 256;

const FREE: u32 = 0;
const BEGUN: u32 = 1;
const DONE: u32 = 2;
const LOST: u32 = 3;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    id: AtomicU64,
    /// Number of records that have pages. The first records have them.
    end: AtomicU64,
}

#[repr(C, align(256))]
struct Record {
    requester: AtomicU64,
    number: AtomicU64,
    /// The requester doesn't send the request again after this time ([`clock`]).
    until: AtomicU64,
    state: AtomicU32,
    status: AtomicU32,
    length: AtomicU32,
    pad: AtomicU32,
    bytes: [AtomicU8; RECORDED_REPLY_BYTES],
}

const _: () = assert!(size_of::<Record>() == 256);

/// Outcome of a request to an earlier daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The request was begun, and may have been carried out, partly or completely.
    Begun,
    /// The request was carried out, with this reply: 0 or an errno, and the head.
    Done(u32, Vec<u8>),
    /// The request was carried out; the reply is no longer known.
    Lost,
}

/// A request to an earlier daemon that has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The requesting node's id ([`super::RequestServer::id`]).
    pub requester: u64,
    /// The request's number among those of the requesting node.
    pub number: u64,
    /// The request's record.
    pub record: u32,
    /// The request's outcome.
    pub known: Known,
}

struct Places {
    free: Vec<u32>,
    /// Number of records that have pages. Further records were never used.
    end: usize,
}

/// The records of a node.
pub struct Replies {
    region: Region,
    file: OwnedFd,
    places: Mutex<Places>,
}

impl Replies {
    /// Opens the records of the node in `dir`, or creates them. Also returns the requests recorded
    /// by earlier daemons.
    ///
    /// # Errors
    /// ENOSPC if there is no room for the first records; EINVAL for a file of another version;
    /// errors of open and mmap.
    pub fn open(dir: &Path) -> Result<(Replies, Vec<Left>)> {
        let path = dir.join("replies");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?;
        if rustix::fs::fstat(&file)?.st_size < LEN as i64 {
            rustix::fs::ftruncate(&file, LEN as u64)?;
        }
        let replies = Replies {
            region: Region::map(&file, 0, LEN)?,
            file,
            places: Mutex::new(Places {
                free: Vec::new(),
                end: 0,
            }),
        };
        replies.reserve(0, RECORDS_AT)?;
        let header = replies.header();
        match header.magic.load(Acquire) {
            MAGIC => {}
            0 => {
                header.id.store(random()?, Relaxed);
                header.magic.store(MAGIC, Release);
            }
            _ => return Err(Errno::INVAL),
        }
        let left = replies.load()?;
        Ok((replies, left))
    }

    /// Reads the records of earlier daemons, among those that have pages.
    fn load(&self) -> Result<Vec<Left>> {
        let mut left = Vec::new();
        let mut places = self.places();
        places.end = (self.header().end.load(Acquire) as usize).min(RECORDS);
        if places.end == 0 {
            self.grow(&mut places)?;
            return Ok(left);
        }
        for index in (0..places.end as u32).rev() {
            let record = self.record(index);
            let known = match record.state.load(Acquire) {
                BEGUN => Known::Begun,
                DONE => {
                    let length = (record.length.load(Relaxed) as usize).min(RECORDED_REPLY_BYTES);
                    let bytes = record.bytes[..length].iter().map(|b| b.load(Relaxed));
                    Known::Done(record.status.load(Relaxed), bytes.collect())
                }
                LOST => Known::Lost,
                _ => {
                    places.free.push(index);
                    continue;
                }
            };
            left.push(Left {
                requester: record.requester.load(Relaxed),
                number: record.number.load(Relaxed),
                record: index,
                known,
            });
        }
        Ok(left)
    }

    fn header(&self) -> &Header {
        // SAFETY: the header has only atomics, and the region is large enough for it.
        unsafe { self.region.at(0) }
    }

    fn record(&self, index: u32) -> &Record {
        assert!((index as usize) < RECORDS);
        // SAFETY: a Record is made of atomics; `at` checks bounds and alignment.
        unsafe {
            self.region
                .at(RECORDS_AT + index as usize * size_of::<Record>())
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, at: usize, len: usize) -> Result<()> {
        let how = FallocateFlags::empty();
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, how, at as u64, len as u64))
    }

    fn grow(&self, places: &mut Places) -> Result<()> {
        if places.end >= RECORDS {
            return Err(Errno::NOSPC);
        }
        let first = places.end;
        let at = RECORDS_AT + first * size_of::<Record>();
        self.reserve(at, STEP * size_of::<Record>())?;
        places.end += STEP;
        assert!(places.end <= RECORDS, "the table of records has a limit");
        self.header().end.store(places.end as u64, Release);
        places.free.extend((first as u32..places.end as u32).rev());
        Ok(())
    }

    /// A number that identifies these records. While the number doesn't change, no record has been
    /// lost.
    pub fn id(&self) -> u64 {
        self.header().id.load(Relaxed)
    }

    /// Records that a request is about to be carried out; the requester won't send it again after
    /// `until`. None if there is no space for a record now.
    pub fn begin(&self, requester: u64, number: u64, until: u64) -> Option<u32> {
        let mut places = self.places();
        if places.free.is_empty() {
            // A tmpfs that is full now may have space later.
            let _ = self.grow(&mut places);
        }
        let index = places.free.pop()?;
        drop(places);
        let record = self.record(index);
        let before = record.state.load(Relaxed);
        assert!(
            !matches!(before, BEGUN | DONE | LOST),
            "a record is used once: {index}"
        );
        record.requester.store(requester, Relaxed);
        record.number.store(number, Relaxed);
        record.until.store(until, Relaxed);
        record.state.store(BEGUN, Release);
        Some(index)
    }

    /// Records that the request is about to be carried out again.
    pub fn begin_again(&self, index: u32, until: u64) {
        self.renew(index, until);
        let before = self.record(index).state.swap(BEGUN, AcqRel);
        assert!(
            before == BEGUN,
            "a request that is begun again was begun: {index}"
        );
    }

    /// Postpones the time until which the request may be sent again.
    pub fn renew(&self, index: u32, until: u64) {
        self.record(index).until.fetch_max(until, Relaxed);
    }

    /// Records that the request was carried out, with this reply; None: the reply isn't recorded.
    pub fn done(&self, index: u32, answer: Option<(u32, &[u8])>) {
        let record = self.record(index);
        assert!(
            record.state.load(Relaxed) == BEGUN,
            "a request that is done was begun: {index}"
        );
        let state = match answer {
            Some((status, head)) if head.len() <= RECORDED_REPLY_BYTES => {
                record.status.store(status, Relaxed);
                record.length.store(head.len() as u32, Relaxed);
                for (to, byte) in record.bytes.iter().zip(head) {
                    to.store(*byte, Relaxed);
                }
                DONE
            }
            _ => LOST,
        };
        record.state.store(state, Release);
    }

    /// Whether the requester may still send the request again at time `now`.
    pub fn is_due(&self, index: u32, now: u64) -> bool {
        self.record(index).until.load(Relaxed) >= now
    }

    /// Lets the record expire now; for tests.
    #[doc(hidden)]
    pub fn expire(&self, index: u32) {
        self.record(index).until.store(0, Relaxed);
    }

    /// Frees the record: the requester has the reply, or won't send the request again.
    pub fn free(&self, index: u32) {
        let before = self.record(index).state.swap(FREE, AcqRel);
        assert!(before != FREE, "a record is freed once: {index}");
        self.places().free.push(index);
    }

    /// Number of records in use.
    pub fn in_use(&self) -> usize {
        let places = self.places();
        assert!(
            places.free.len() <= places.end,
            "free records are among all"
        );
        places.end - places.free.len()
    }
}

/// The time `nanoseconds` from now, on the clock of the records.
pub fn ahead(nanoseconds: u64) -> u64 {
    clock().saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("fb-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_begun_and_answered_outlives_the_daemon() {
        let dir = Dir::new("replies-outlive");
        let (replies, left) = Replies::open(&dir.0).unwrap();
        assert_eq!(left, []);
        let id = replies.id();
        let soon = ahead(1_000_000_000);
        let numbers: Vec<u32> = (0..1000)
            .map(|n| replies.begin(7, n, soon).unwrap())
            .collect();
        replies.done(numbers[1], Some((3, b"answer")));
        replies.done(numbers[2], Some((0, &[9; RECORDED_REPLY_BYTES + 1])));
        replies.done(numbers[3], None);
        for index in &numbers[4..] {
            replies.free(*index);
        }
        assert_eq!(replies.in_use(), 4);
        drop(replies);
        let (replies, mut left) = Replies::open(&dir.0).unwrap();
        assert_eq!((replies.id(), replies.in_use()), (id, 4));
        left.sort_by_key(|l| l.number);
        let known: Vec<_> = left
            .iter()
            .map(|l| (l.requester, l.number, &l.known))
            .collect();
        let done = Known::Done(3, b"answer".to_vec());
        let all = [Known::Begun, done, Known::Lost, Known::Lost];
        assert_eq!(
            known,
            [
                (7, 0, &all[0]),
                (7, 1, &all[1]),
                (7, 2, &all[2]),
                (7, 3, &all[3])
            ]
        );
        // All records can be used, and no more.
        for n in 0..RECORDS as u64 - 4 {
            assert!(replies.begin(8, n, soon).is_some(), "{n}");
        }
        assert_eq!(replies.begin(8, 0, soon), None);
        replies.free(left[0].record);
        assert!(replies.begin(8, 0, soon).is_some());
        assert!(replies.is_due(left[0].record, clock()));
        assert!(!replies.is_due(left[0].record, soon + 1));
    }
}
