//! The bytes of files that lie on one other node, and syncs of all nodes.
//!
//! A request carries at most `MAX_BODY` bytes. Longer reads and writes go in several requests,
//! which other processes may see one by one; those of a read are in flight together. An error after
//! the first request ends the call with the bytes that were done.

use crate::Cluster;
use crate::peers::messages::Record;
use crate::peers::requests::{Signature, request};
use crate::peers::{Bytes, MAX_BODY, PeerRequest};
use forebay_store::control::{MAX_LIVE, live_flag};
use forebay_store::parts::CHANGED;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// Requests of one read that are in flight at the same time.
const AT_ONCE: usize = 4;

/// How requests that were in flight together ended.
enum Batch {
    Whole,
    EndOfFile,
    Failed,
}

impl<'a> Cluster<'a> {
    /// Whether the file's bytes lie on another node, or may lie there.
    pub fn is_away(&self, index: u32) -> bool {
        self.live_away(index).is_some() || self.striped(index).is_some()
    }

    /// Makes all entries durable, whatever node they lie on: what `fsync` of a directory does.
    ///
    /// # Errors
    /// As for [`Cluster::sync`]; EHOSTDOWN if a node can't be told.
    pub fn sync_entries_everywhere(&self) -> Result<()> {
        self.everywhere(request::SYNC_RECORDS)
            .and(self.durability().sync_entries())
    }

    /// Makes everything durable on all nodes: `syncfs`.
    ///
    /// # Errors
    /// As for `Store::sync_all`; EHOSTDOWN if a node can't be told: the others have done it.
    pub fn sync_everywhere(&self) -> Result<()> {
        let elsewhere = self.everywhere(request::SYNC_ALL);
        self.durability().sync_all().and(elsewhere)
    }

    /// Asks all other nodes at once for something without arguments.
    fn everywhere(&self, request: Signature<(), ()>) -> Result<()> {
        let Some(nodes) = self.peers() else {
            return Ok(());
        };
        let others = nodes.nodes().iter().filter(|n| **n != nodes.this_node());
        let others: Vec<NodeId> = others.copied().collect();
        self.ask_each(&others, request, &()).into_iter().collect()
    }

    /// The daemon of `home` has been started anew: tells it what this node has open there. How many
    /// it couldn't be told of any more: removed meanwhile.
    ///
    /// # Errors
    /// EHOSTDOWN if it can't be asked.
    pub fn open_again(&self, home: NodeId) -> Result<usize> {
        let mut lost = 0;
        let header = self.control.header();
        for i in 0..header.free_live.end(MAX_LIVE) {
            let live = self.objects().live(i);
            let id = ObjectId(live.id.load(Acquire));
            let away = live.flags.load(Acquire) & live_flag::AWAY != 0;
            if id.0 == 0 || !away || self.object_away(id) != Some(home) {
                continue;
            }
            let number = live.ctime.load(Relaxed) as u64;
            match self.ask(home, request::REOPEN, &(id, number)) {
                Ok(()) => {}
                Err(Errno::HOSTDOWN) => return Err(Errno::HOSTDOWN),
                Err(_) => lost += 1,
            }
        }
        Ok(lost)
    }

    pub(crate) fn stat_away(&self, home: NodeId, id: ObjectId) -> Result<Record> {
        self.ask(home, request::STAT, &id)
    }

    /// As [`Cluster::read`].
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(crate) unsafe fn read_away(
        &self,
        (home, id): (NodeId, ObjectId),
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let mut done = 0;
        while done < len {
            if len - done > MAX_BODY {
                // SAFETY: what is left of `to`.
                let (n, end) = unsafe {
                    let rest = (offset + done as u64, to.add(done), len - done);
                    self.read_away_at_once((home, id), rest)
                };
                done += n;
                match end {
                    Batch::Whole => continue,
                    Batch::EndOfFile => break,
                    // Its second answer says why.
                    Batch::Failed => {}
                }
            }
            let want = (len - done).min(MAX_BODY);
            let question = (id, offset + done as u64, want as u64);
            // SAFETY: done + want <= len.
            let told = unsafe {
                let bytes = Bytes::Receive(to.add(done), want);
                self.ask_with(home, request::READ, &question, bytes)
            };
            match told {
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

    /// Reads with up to [`AT_ONCE`] requests in flight: how many bytes until the first failed
    /// request, and how it ended.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    unsafe fn read_away_at_once(
        &self,
        (home, id): (NodeId, ObjectId),
        (offset, to, len): (u64, *mut u8, usize),
    ) -> (usize, Batch) {
        let Ok(others) = self.other_nodes() else {
            return (0, Batch::Failed);
        };
        let mut pieces = Vec::with_capacity(AT_ONCE);
        let mut asked = 0;
        while asked < len && pieces.len() < AT_ONCE {
            let want = (len - asked).min(MAX_BODY);
            let (kind, head) = request::READ.message(&(id, offset + asked as u64, want as u64));
            pieces.push((asked, want, kind, head));
            asked += want;
        }
        let questions: Vec<PeerRequest<'_>> = pieces
            .iter()
            .map(|(at, want, kind, head)| PeerRequest {
                node: home,
                kind: *kind,
                head,
                // SAFETY: at + want <= len.
                bytes: Bytes::Receive(unsafe { to.add(*at) }, *want),
            })
            .collect();
        // SAFETY: the pieces are parts of `to`, and don't overlap.
        let answers = unsafe { others.ask_all(&questions) };
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

    /// As [`Cluster::write_at`]. What is longer than a message is written in several steps, which
    /// others may see one by one.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub(crate) unsafe fn write_away(
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
            // SAFETY: done + part <= len.
            let told = unsafe {
                let bytes = Bytes::Send(from.add(done), part);
                self.ask_with(home, request::WRITE, &(id, at), bytes)
            };
            match told {
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
