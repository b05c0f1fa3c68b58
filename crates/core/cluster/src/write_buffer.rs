//! Buffers a process's writes to a file, and sends them to the file's home in one message.
//!
//! The home carries the writes out in their order, each as one write. Meanwhile the process may
//! continue ([`FileData::begin_writes`]). A message has at most [`MAX_WRITES_PER_MESSAGE`] writes
//! and `MAX_BODY` bytes.

use crate::data::whole;
use crate::live::with_open;
use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::peers::{Bytes, MAX_BODY, Sent};
use crate::views::FileData;
use forebay_runtime::guard;
use forebay_store::stripe_units::CHANGED;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;

/// Maximum number of writes in one message.
const MAX_WRITES_PER_MESSAGE: usize = 1024;

/// Writes to one file that weren't sent yet, in their order.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    /// Offset and length of each write.
    list: Vec<(u64, u32)>,
    /// The bytes of the writes, one after the other.
    bytes: Vec<u8>,
}

impl WriteBuffer {
    /// Whether the buffer has no writes.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of bytes of all writes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Removes all writes, but doesn't free the memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }

    /// Returns the number of bytes that a write at `at` may add, if the buffer may have at most
    /// `most` bytes.
    pub fn room(&self, at: u64, most: usize) -> usize {
        if self.list.len() < MAX_WRITES_PER_MESSAGE || self.follows(at) {
            most.min(MAX_BODY).saturating_sub(self.bytes.len())
        } else {
            0
        }
    }

    fn follows(&self, at: u64) -> bool {
        let last = self.list.last();
        last.is_some_and(|&(start, len)| start + u64::from(len) == at)
    }

    /// Adds a write, for which there must be [room](WriteBuffer::room).
    ///
    /// # Errors
    /// EFAULT if `from` isn't mapped.
    ///
    /// # Safety
    /// `from` is memory of the program, which may be unmapped.
    pub unsafe fn add(&mut self, at: u64, from: *const u8, len: usize) -> Result<()> {
        assert!(
            len <= MAX_BODY - self.bytes.len(),
            "a buffer has room for what is added"
        );
        self.bytes.reserve(len);
        let end = self.bytes.len();
        // SAFETY: `bytes` has room for `len` more bytes; `guard::copy` returns false if `from`
        // isn't mapped.
        unsafe {
            if !guard::copy(from, self.bytes.as_mut_ptr().add(end), len) {
                return Err(Errno::FAULT);
            }
            self.bytes.set_len(end + len);
        }
        match self.list.last_mut() {
            Some(last) if last.0 + u64::from(last.1) == at => last.1 += len as u32,
            _ => self.list.push((at, len as u32)),
        }
        assert!(
            self.list.len() <= MAX_WRITES_PER_MESSAGE,
            "a message has a limit of writes"
        );
        debug_assert_eq!(
            self.list
                .iter()
                .map(|piece| piece.1 as usize)
                .sum::<usize>(),
            self.bytes.len(),
            "a buffer has the bytes of its writes"
        );
        Ok(())
    }

    /// The highest offset at which a write ends.
    pub fn end(&self) -> u64 {
        let ends = self.list.iter().map(|&(at, len)| at + u64::from(len));
        ends.max().unwrap_or(0)
    }

    /// Whether one of the writes touches this range.
    pub fn touch(&self, at: u64, len: usize) -> bool {
        let end = at.saturating_add(len as u64);
        self.list
            .iter()
            .any(|&(start, n)| start < end && at < start + u64::from(n))
    }

    /// Returns the bytes of this range, if the last write that touches the range covers all of it.
    pub fn cover(&self, at: u64, len: usize) -> Option<&[u8]> {
        let end = at.checked_add(len as u64)?;
        let mut after = self.bytes.len();
        for &(start, n) in self.list.iter().rev() {
            after -= n as usize;
            if start < end && at < start + u64::from(n) {
                let covers = start <= at && end <= start + u64::from(n);
                let from = after + at.checked_sub(start)? as usize;
                return covers.then(|| &self.bytes[from..from + len]);
            }
        }
        None
    }

    fn each(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = &self.bytes[..];
        self.list.iter().map(move |&(at, len)| {
            let (bytes, behind) = rest.split_at(len as usize);
            rest = behind;
            (at, bytes)
        })
    }
}

/// Buffered writes that [`FileData::begin_writes`] has begun; [`FileData::end_writes`] waits for
/// them.
#[derive(Debug)]
pub struct Sending(Way);

#[derive(Debug)]
enum Way {
    Done(Result<()>),
    Sent(NodeId, Sent),
}

impl<'a> FileData<'a> {
    /// Begins the buffered writes to the open file `id`. The caller must not change the buffer
    /// until it has called [`FileData::end_writes`].
    pub fn begin_writes(&self, index: u32, id: ObjectId, buffer: &WriteBuffer) -> Sending {
        if self.store().content().live_id(index) != id {
            // The file was closed by another thread meanwhile.
            return Sending(Way::Done(Err(Errno::STALE)));
        }
        if let Err(e) = self.cluster.locks().check_lease(index) {
            return Sending(Way::Done(Err(e)));
        }
        let Some((home, id)) = self
            .cluster
            .opens()
            .remote_live(index)
            .filter(|_| self.cluster.stripes().striped(index).is_none())
        else {
            return Sending(Way::Done(self.write_each(index, buffer)));
        };
        let (kind, head) = writes_message(id, buffer);
        let bytes = Bytes::Send(buffer.bytes.as_ptr(), buffer.bytes.len());
        // SAFETY: `bytes` are those of the buffer, which outlives the call.
        let sent = self
            .cluster
            .other_nodes()
            .map(|nodes| unsafe { nodes.send(home, kind, &head, bytes) });
        Sending(match sent {
            Ok(sent) => Way::Sent(home, sent),
            Err(e) => Way::Done(Err(e)),
        })
    }

    /// Waits until the buffered writes are done.
    ///
    /// # Errors
    /// As for [`FileData::write_at`]; ENOSPC also if only some of the writes were done.
    pub fn end_writes(&self, id: ObjectId, buffer: &WriteBuffer, sending: Sending) -> Result<()> {
        let (home, sent) = match sending.0 {
            Way::Done(done) => return done,
            Way::Sent(home, sent) => (home, sent),
        };
        match self.answer_writes(home, id, buffer, sent) {
            // The file is spilled, or must be spilled since its home is full.
            Err(CHANGED) => with_open(&self.cluster, id, |live| self.write_each(live, buffer)),
            done => done,
        }
    }

    fn answer_writes(
        &self,
        home: NodeId,
        id: ObjectId,
        buffer: &WriteBuffer,
        sent: Sent,
    ) -> Result<()> {
        match self.cluster.other_nodes()?.answer(sent) {
            // An operation in progress at the home conflicts with the writes. The home never waits
            // for such an operation, so this node does.
            Err(Errno::AGAIN) => {
                let bytes = Bytes::Send(buffer.bytes.as_ptr(), buffer.bytes.len());
                let arguments = (id, List(buffer.list.clone()));
                // SAFETY: `bytes` are those of the buffer, which outlives the request.
                let asked = unsafe {
                    self.cluster
                        .ask_with(home, request::WRITE_PIECES, &arguments, bytes)
                };
                asked.map(|_| ())
            }
            reply => reply.map(|_| ()),
        }
    }

    /// Carries out the writes one after the other, as writes that weren't buffered.
    fn write_each(&self, index: u32, buffer: &WriteBuffer) -> Result<()> {
        buffer.each().try_for_each(|(at, bytes)| {
            // SAFETY: pointer and length are those of `bytes`.
            let write = || unsafe { self.write_at(index, Some(at), bytes.as_ptr(), bytes.len()) };
            whole(
                self.cluster.namespace().with_room_of_the_removed(write)?.1,
                bytes.len(),
            )
        })
    }

    /// Carries out buffered writes of the node `from` on a file of this node.
    pub(crate) fn write_all_here(
        &self,
        index: u32,
        from: NodeId,
        list: &[(u64, u32)],
        body: &[u8],
    ) -> Result<()> {
        let all: u64 = list.iter().map(|p| u64::from(p.1)).sum();
        if all != body.len() as u64 {
            return Err(Errno::PROTO);
        }
        let mut rest = body;
        for &(at, len) in list {
            let (bytes, behind) = rest.split_at(len as usize);
            rest = behind;
            // SAFETY: pointer and length are those of `bytes`.
            let written = self.store().recovery().with_room_of_the_dead(|| unsafe {
                let input = (bytes.as_ptr(), bytes.len());
                self.store()
                    .content()
                    .write_here(index, Some(at), input, true, |live| {
                        live.change_by(Some(from));
                        self.store().parts().may_write(live, Some(at), bytes.len())
                    })
            });
            whole(written?.1, bytes.len())?;
        }
        Ok(())
    }
}

fn writes_message(id: ObjectId, buffer: &WriteBuffer) -> (u16, Vec<u8>) {
    request::WRITE_PIECES.message(&(id, List(buffer.list.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(buffer: &mut WriteBuffer, at: u64, bytes: &[u8]) {
        assert!(buffer.room(at, MAX_BODY) >= bytes.len());
        // SAFETY: pointer and length are those of `bytes`.
        unsafe { buffer.add(at, bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    #[test]
    fn the_last_write_counts() {
        let mut p = WriteBuffer::default();
        assert!(p.is_empty() && p.end() == 0 && p.cover(0, 1).is_none());
        add(&mut p, 10, b"abc");
        add(&mut p, 13, b"def");
        add(&mut p, 0, b"x");
        assert_eq!(p.list, [(10, 6), (0, 1)], "what follows is the same piece");
        assert_eq!(p.cover(11, 4), Some(&b"bcde"[..]));
        add(&mut p, 12, b"--");
        assert_eq!(p.cover(12, 2), Some(&b"--"[..]));
        assert_eq!(p.cover(11, 2), None, "two have a part of it");
        assert!(p.touch(11, 2) && p.touch(0, 100) && !p.touch(1, 9) && !p.touch(16, 5));
        assert_eq!(p.end(), 16);
        let each: Vec<_> = p.each().collect();
        assert_eq!(each, [(10, &b"abcdef"[..]), (0, b"x"), (12, b"--")]);
        p.clear();
        assert!(p.is_empty() && p.bytes.is_empty() && !p.touch(0, 100));
    }

    #[test]
    fn a_message_has_its_bounds() {
        let mut p = WriteBuffer::default();
        for i in 0..MAX_WRITES_PER_MESSAGE as u64 {
            add(&mut p, i * 10, b"abc");
        }
        assert_eq!(p.room(5, MAX_BODY), 0);
        assert_eq!(
            p.room(MAX_WRITES_PER_MESSAGE as u64 * 10 - 7, 5000),
            5000 - 3 * MAX_WRITES_PER_MESSAGE
        );
        assert!(writes_message(ObjectId(1), &p).1.len() <= crate::peers::MAX_HEAD);
    }
}
