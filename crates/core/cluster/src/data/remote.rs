//! The bytes of files that lie on one other node, and syncs of all nodes.
//!
//! A request carries at most `MAX_BODY` bytes. Longer reads and writes take several requests, and
//! other processes may see the effect of each. The requests of a read are in flight together. If a
//! request after the first one fails, the call returns the number of bytes done before.

use crate::peers::requests::{Signature, request};
use crate::peers::{Bytes, MAX_BODY, PeerRequest};
use crate::views::FileData;
use forebay_store::stripe_units::CHANGED;
use forebay_store::{NodeId, ObjectId, Result};

/// Maximum number of requests of one read that are in flight at the same time.
const MAX_READS_IN_FLIGHT: usize = 4;

/// How requests that were in flight together ended.
enum Batch {
    Whole,
    EndOfFile,
    Failed,
}

impl<'a> FileData<'a> {
    /// Whether the file's bytes lie on another node, or may lie there.
    pub fn is_remote(&self, index: u32) -> bool {
        self.cluster.opens().remote_live(index).is_some()
            || self.cluster.stripes().striped(index).is_some()
    }

    /// Makes the entries of all nodes durable: the effect of `fsync` on a directory.
    ///
    /// # Errors
    /// As for [`FileData::sync`]; EHOSTDOWN if a node can't be reached.
    pub fn sync_entries_everywhere(&self) -> Result<()> {
        self.everywhere(request::SYNC_RECORDS)
            .and(self.store().durability().sync_entries())
    }

    /// Makes everything durable on all nodes: `syncfs`.
    ///
    /// # Errors
    /// As for `Durability::sync_all`; EHOSTDOWN if a node can't be reached: the others have synced.
    pub fn sync_everywhere(&self) -> Result<()> {
        let others = self.everywhere(request::SYNC_ALL);
        self.store().durability().sync_all().and(others)
    }

    /// Sends a request without arguments to all other nodes at once.
    fn everywhere(&self, request: Signature<(), ()>) -> Result<()> {
        let Some(nodes) = self.cluster.peers() else {
            return Ok(());
        };
        let others = nodes.nodes().iter().filter(|n| **n != nodes.this_node());
        let others: Vec<NodeId> = others.copied().collect();
        self.cluster
            .ask_each(&others, request, &())
            .into_iter()
            .collect()
    }

    /// As [`FileData::read`], for a file whose bytes lie on `home`.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(crate) unsafe fn read_remote(
        &self,
        (home, id): (NodeId, ObjectId),
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let mut done = 0;
        while done < len {
            if len - done > MAX_BODY {
                // SAFETY: done < len, and the range is the rest of `to`.
                let (n, end) = unsafe {
                    let rest = (offset + done as u64, to.add(done), len - done);
                    self.read_remote_pipelined((home, id), rest)
                };
                done += n;
                match end {
                    Batch::Whole => continue,
                    Batch::EndOfFile => break,
                    // The request below repeats the failed one, and returns its error.
                    Batch::Failed => {}
                }
            }
            let want = (len - done).min(MAX_BODY);
            let arguments = (id, offset + done as u64, want as u64);
            // SAFETY: done + want <= len, so the range lies in the caller's buffer.
            let reply = unsafe {
                let bytes = Bytes::Receive(to.add(done), want);
                self.cluster
                    .ask_with(home, request::READ, &arguments, bytes)
            };
            match reply {
                Ok(((), n)) => {
                    done += n;
                    if n < want {
                        break;
                    }
                }
                Err(e) if done == 0 || e == CHANGED => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads with up to [`MAX_READS_IN_FLIGHT`] requests in flight. Returns the number of bytes
    /// until the first failed or short reply, and how the requests ended.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    unsafe fn read_remote_pipelined(
        &self,
        (home, id): (NodeId, ObjectId),
        (offset, to, len): (u64, *mut u8, usize),
    ) -> (usize, Batch) {
        let Ok(others) = self.cluster.other_nodes() else {
            return (0, Batch::Failed);
        };
        let mut pieces = Vec::with_capacity(MAX_READS_IN_FLIGHT);
        let mut asked = 0;
        while asked < len && pieces.len() < MAX_READS_IN_FLIGHT {
            let want = (len - asked).min(MAX_BODY);
            let (kind, head) = request::READ.message(&(id, offset + asked as u64, want as u64));
            pieces.push((asked, want, kind, head));
            asked += want;
        }
        let requests: Vec<PeerRequest<'_>> = pieces
            .iter()
            .map(|(at, want, kind, head)| PeerRequest {
                node: home,
                kind: *kind,
                head,
                // SAFETY: at + want <= len, so the range lies in the caller's buffer.
                bytes: Bytes::Receive(unsafe { to.add(*at) }, *want),
            })
            .collect();
        // SAFETY: the pieces are parts of `to`, and don't overlap.
        let answers = unsafe { others.ask_all(&requests) };
        let mut done = 0;
        for (answer, (_, want, ..)) in answers.into_iter().zip(&pieces) {
            match answer {
                Ok(answer) => {
                    done += answer.received;
                    if answer.received < *want {
                        return (done, Batch::EndOfFile);
                    }
                }
                Err(_) => return (done, Batch::Failed),
            }
        }
        (done, Batch::Whole)
    }

    /// As [`FileData::write_at`], for a file whose bytes lie on `home`. A write of more than
    /// `MAX_BODY` bytes takes several requests, and other processes may see the effect of each.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub(crate) unsafe fn write_remote(
        &self,
        (home, id): (NodeId, ObjectId),
        offset: Option<u64>,
        from: *const u8,
        len: usize,
    ) -> Result<(u64, usize)> {
        let mut start = offset;
        let mut done = 0;
        loop {
            let part = (len - done).min(MAX_BODY);
            let at = start.map(|s| s + done as u64);
            // SAFETY: done + part <= len, so the range lies in the caller's buffer.
            let reply = unsafe {
                let bytes = Bytes::Send(from.add(done), part);
                self.cluster
                    .ask_with(home, request::WRITE, &(id, at), bytes)
            };
            match reply {
                Ok(((at, n), _)) => {
                    start.get_or_insert(at);
                    done += n as usize;
                    if (n as usize) < part || done == len {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok((start.unwrap_or(0), done))
    }
}
