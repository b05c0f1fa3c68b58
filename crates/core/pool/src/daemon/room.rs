//! Limits the memory for requests and replies: buffers for received bytes, and space for bytes to
//! send.

use forebay_net::{Landing, Source};
use forebay_runtime::threads::lock;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a request waits for space before it is refused; its requester sends it again later.
const WAITS: Duration = Duration::from_millis(50);

/// A limit on bytes in use.
struct Room {
    most: usize,
    used: Mutex<usize>,
    freed: Condvar,
}

impl Room {
    fn new(most: usize) -> Room {
        Room {
            most,
            used: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    /// Takes `n` bytes; false if they aren't free by `until`. If nothing else is in use, more than
    /// the limit can be taken.
    fn take(&self, n: usize, until: Instant) -> bool {
        let mut used = lock(&self.used);
        while *used > 0 && used.saturating_add(n) > self.most {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            used = self
                .freed
                .wait_timeout(used, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *used += n;
        true
    }

    fn give_back(&self, n: usize) {
        let mut used = lock(&self.used);
        assert!(*used >= n, "room that is given back was taken");
        *used -= n;
        drop(used);
        self.freed.notify_all();
    }
}

/// Reusable buffers for the bytes of requests.
pub struct Buffers {
    room: Room,
    keeps: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

/// A buffer in use.
pub struct Buffer {
    bytes: Vec<u8>,
    length: usize,
    of: Arc<Buffers>,
}

impl Buffers {
    /// Buffers of at most `most` bytes together. Up to `keeps` unused ones are kept for reuse.
    pub fn new(most: usize, keeps: usize) -> Buffers {
        Buffers {
            room: Room::new(most),
            keeps,
            free: Mutex::default(),
        }
    }

    /// A buffer of at least `length` bytes; None if there is no space in time.
    pub fn get(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let mut bytes = lock(&self.free).pop().unwrap_or_default();
        let size = bytes.len().max(length);
        if !self.room.take(size, Instant::now() + WAITS) {
            return None;
        }
        bytes.resize(size, 0);
        Some(Buffer {
            bytes,
            length,
            of: self.clone(),
        })
    }
}

impl Buffer {
    /// The first `length` bytes of the buffer.
    pub fn bytes(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let size = bytes.len();
        let mut free = lock(&self.of.free);
        if free.len() < self.of.keeps {
            free.push(bytes);
        }
        drop(free);
        self.of.room.give_back(size);
    }
}

impl Landing for Buffer {
    fn length(&self) -> usize {
        self.length
    }

    fn piece(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at..self.length]
    }
}

/// Space for the bytes of replies until they are sent.
pub struct Outgoing(Arc<Room>);

/// Bytes of a reply. The reply may be sent more than once.
pub struct Sending {
    bytes: Arc<Vec<u8>>,
    of: Arc<Room>,
}

impl Outgoing {
    /// Space for at most `most` bytes together.
    pub fn new(most: usize) -> Outgoing {
        Outgoing(Arc::new(Room::new(most)))
    }

    /// Reserves space for these bytes and returns them, ready to be sent; None if there is no space
    /// by `until`.
    pub fn send(&self, bytes: &Arc<Vec<u8>>, until: Instant) -> Option<Sending> {
        self.0.take(bytes.len(), until).then(|| Sending {
            bytes: bytes.clone(),
            of: self.0.clone(),
        })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let size = self.bytes.len();
        // Free the memory first: only then is there space for others.
        self.bytes = Arc::default();
        self.of.give_back(size);
    }
}

impl Source for Sending {
    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn piece(&self, at: usize) -> &[u8] {
        &self.bytes[at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds() {
        let buffers = Arc::new(Buffers::new(1000, 2));
        let first = buffers.get(600).unwrap();
        assert!(buffers.get(500).is_none());
        let second = buffers.get(400).unwrap();
        drop((first, second));
        // A large buffer that is reused for few bytes counts with its whole size.
        let small: Vec<Buffer> = (0..2).map(|_| buffers.get(1).unwrap()).collect();
        assert!(buffers.get(1).is_none());
        drop(small);
        assert_eq!(*lock(&buffers.room.used), 0);
        assert_eq!(lock(&buffers.free).len(), 2);
    }

    #[test]
    fn a_waiting_thread_gets_freed_room() {
        let out = Arc::new(Outgoing::new(1000));
        let (bytes, soon) = (
            Arc::new(vec![7; 700]),
            Instant::now() + Duration::from_millis(20),
        );
        let first = out.send(&bytes, soon).unwrap();
        assert_eq!(first.piece(699), [7]);
        assert!(out.send(&bytes, soon).is_none());
        let (there, other) = (out.clone(), bytes.clone());
        let waiter = std::thread::spawn(move || {
            let late = Instant::now() + Duration::from_secs(20);
            there.send(&other, late).is_some()
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(first);
        assert!(waiter.join().unwrap());
        // A buffer above the limit gets space as soon as nothing else is in use.
        assert!(out.send(&Arc::new(vec![0; 5000]), soon).is_some());
    }
}
