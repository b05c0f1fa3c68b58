//! Reading an object of a bucket.
//!
//! Guarantees: all bytes are of the version whose attributes were read when the object was opened.
//! A reply that breaks off is requested again from where it ended; the break is never taken for the
//! object's end.
//!
//! A request is for up to [`WINDOW`] bytes. The request's reply is kept open, so that the next read
//! of a thread continues it. There is one reply for each thread that reads a separate range.

use crate::bucket::attributes::Head;
use crate::bucket::client::{ATTEMPTS, Client};
use crate::bucket::fault::{Fault, GARBAGE};
use crate::meta::Meta;
use crate::store::{StoreFile, UserAttributes};
use forebay_runtime::threads::lock;
use rustix::io::{Errno, Result};
use std::io::Read;
use std::sync::Mutex;

/// Maximum number of bytes of one request. Requests end at multiples of this number, as the
/// copier's ranges do.
const WINDOW: u64 = 16 << 20;
/// Maximum number of replies per object that are kept open.
const OPEN: usize = 64;

/// A reply that is being read: the offset of its next byte, and its end.
struct Stream {
    at: u64,
    end: u64,
    from: Box<dyn Read + Send>,
}

/// An open object.
pub struct BucketFile<'a> {
    client: &'a Client,
    key: String,
    head: Head,
    streams: Mutex<Vec<Stream>>,
}

impl<'a> BucketFile<'a> {
    /// Opens the version of an object that `head` describes.
    pub(crate) fn new(client: &'a Client, key: &str, head: Head) -> BucketFile<'a> {
        BucketFile {
            client,
            key: key.to_owned(),
            head,
            streams: Mutex::default(),
        }
    }

    /// Returns a reply whose next byte is at offset `at`.
    fn stream(&self, at: u64) -> std::result::Result<Stream, Fault> {
        let mut streams = lock(&self.streams);
        if let Some(found) = streams.iter().position(|s| s.at == at) {
            return Ok(streams.swap_remove(found));
        }
        drop(streams);
        let end = (at / WINDOW + 1) * WINDOW;
        let size = self.head.meta.size;
        let end = end.min(size);
        let from = self
            .client
            .get(&self.key, (at, end), (&self.head.etag, size))?;
        Ok(Stream {
            at,
            end,
            from: Box::new(from),
        })
    }
}

impl StoreFile for BucketFile<'_> {
    /// Returns the attributes of the version that is being read, even if the object has a newer
    /// one.
    fn meta(&self) -> Result<Meta> {
        Ok(self.head.meta)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        if at >= self.head.meta.size || buffer.is_empty() {
            return Ok(0);
        }
        let mut last = GARBAGE;
        for _ in 0..ATTEMPTS {
            let mut stream = self.stream(at).map_err(|fault| fault.errno)?;
            let most = (stream.end - at).min(buffer.len() as u64) as usize;
            match stream.from.read(&mut buffer[..most]) {
                // The reply has ended too early.
                Ok(0) => last = Errno::CONNRESET,
                Ok(n) => {
                    stream.at += n as u64;
                    let mut streams = lock(&self.streams);
                    if stream.at < stream.end && streams.len() < OPEN {
                        streams.push(stream);
                    } else {
                        drop(streams);
                        finish(stream);
                    }
                    return Ok(n);
                }
                Err(e) => last = Fault::of_network(e.into()).errno,
            }
        }
        Err(last)
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        if at < self.head.meta.size {
            Ok(at)
        } else {
            Err(Errno::NXIO)
        }
    }

    fn seek_hole(&self, at: u64) -> Result<u64> {
        if at < self.head.meta.size {
            Ok(self.head.meta.size)
        } else {
            Err(Errno::NXIO)
        }
    }

    fn user_attributes(&self) -> Option<&UserAttributes> {
        Some(&self.head.user)
    }
}

/// Reads the end mark of a reply that was read to its last byte, so that its connection can be used
/// again.
fn finish(mut stream: Stream) {
    if stream.at == stream.end {
        let _ = stream.from.read(&mut [0; 1]);
    }
}
