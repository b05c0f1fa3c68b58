//! Writes back changes that were made through mappings of files whose bytes lie on other nodes.
//!
//! Only changed bytes are written, so that nodes that change different bytes of a page don't undo
//! each other's work. The changes of a range travel as *runs*. A run consists of its start (4
//! bytes, relative to the range), its length (4 bytes), the bytes as they were when the page was
//! fetched, and the new bytes. The node that stores the file compares its bytes with the old bytes
//! of the run. If the bytes differ, another process has changed them since. The run overwrites that
//! change, and the conflict is reported.

use crate::data::whole;
use crate::peers::requests::request;
use crate::peers::{Bytes, MAX_BODY};
use crate::views::Mappings;
use forebay_placement::NodeId;
use forebay_store::control_region::Live;
use forebay_store::stripe_units::CHANGED;
use forebay_store::{ObjectId, Result};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering::*;

const HEAD: usize = 8;
/// The error of a write beyond the end: the file was truncated, and the run is dropped.
const GONE: Errno = Errno::SRCH;

/// A run of changed bytes.
struct Run<'a> {
    at: usize,
    before: &'a [u8],
    now: &'a [u8],
}

/// Returns start and end of each run in which `now` differs from `before`. Both have the same
/// length.
fn runs<'a>(before: &'a [u8], now: &'a [u8]) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut left = before[at..]
            .chunks_exact(64)
            .zip(now[at..].chunks_exact(64));
        at += 64 * left.by_ref().take_while(|(a, b)| a == b).count();
        let differs = |i: &usize| before[*i] != now[*i];
        let start = (at..before.len()).find(differs)?;
        at = (start..before.len())
            .find(|i| !differs(i))
            .unwrap_or(before.len());
        Some((start, at))
    })
}

/// Calls `send` with bodies of at most `most` bytes that together contain all changes.
pub(crate) fn pack(
    before: &[u8],
    now: &[u8],
    most: usize,
    mut send: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut body: Vec<u8> = Vec::new();
    for (start, end) in runs(before, now) {
        let mut at = start;
        while at < end {
            if body.len() + HEAD + 2 > most {
                send(&body)?;
                body.clear();
            }
            let to = end.min(at + (most - body.len() - HEAD) / 2);
            body.extend((at as u32).to_le_bytes());
            body.extend(((to - at) as u32).to_le_bytes());
            body.extend(&before[at..to]);
            body.extend(&now[at..to]);
            at = to;
        }
    }
    if body.is_empty() { Ok(()) } else { send(&body) }
}

/// Returns the first run of a body, and the rest; None if the body is malformed.
fn unpack(body: &[u8]) -> Option<(Run<'_>, &[u8])> {
    let (at, rest) = body.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let (before, rest) = rest.split_at_checked(len)?;
    let (now, rest) = rest.split_at_checked(len)?;
    let at = u32::from_le_bytes(*at) as usize;
    Some((Run { at, before, now }, rest))
}

/// Bytes that two processes changed to different values: their range in the file, and the node of
/// the other process, if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Offsets in the file. Not all bytes of the range need be in conflict.
    pub range: Range<u64>,
    /// The number of the other process's node.
    pub with: Option<u32>,
}

/// The reply to MERGE.
pub(crate) type WireConflict = Option<(u64, u64, Option<u32>)>;

impl Conflict {
    /// Extends `all` by a further conflict, if there is one.
    pub fn add(all: &mut Option<Conflict>, one: Option<Conflict>) {
        let Some(one) = one else { return };
        let all = all.get_or_insert_with(|| one.clone());
        all.range = all.range.start.min(one.range.start)..all.range.end.max(one.range.end);
        if all.with != one.with {
            all.with = None;
        }
    }

    /// Encodes the conflict as a reply.
    pub(crate) fn reply(this: Option<Conflict>) -> WireConflict {
        this.map(|c| (c.range.start, c.range.end, c.with))
    }

    fn from_wire(reply: WireConflict) -> Option<Conflict> {
        reply.map(|(from, to, with)| Conflict {
            range: from..to,
            with,
        })
    }
}

/// Writes the runs in a body with `write`, after comparing the present bytes, which `read` reads,
/// with the runs' old bytes. Returns the range of bytes that another process had also changed, to
/// different values.
fn apply(
    offset: u64,
    mut body: &[u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize>,
    mut write: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Option<Range<u64>>> {
    let mut found = Vec::new();
    let mut conflict: Option<Range<u64>> = None;
    while !body.is_empty() {
        let (run, rest) = unpack(body).ok_or(Errno::PROTO)?;
        body = rest;
        let at = offset.checked_add(run.at as u64).ok_or(Errno::PROTO)?;
        found.clear();
        found.resize(run.now.len(), 0);
        let n = read(at, &mut found)?;
        let there = found.iter().zip(run.before).zip(run.now).take(n);
        let is_both = |((found, before), now): &((&u8, &u8), &u8)| found != before && found != now;
        let mut both = (at..).zip(there).filter(|(_, bytes)| is_both(bytes));
        if let Some((first, _)) = both.next() {
            let last = both.last().map_or(first, |(last, _)| last);
            conflict = Some(conflict.map_or(first, |c| c.start.min(first))..last + 1);
        }
        match write(at, run.now) {
            Ok(()) | Err(GONE) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(conflict)
}

impl<'a> Mappings<'a> {
    /// Writes those bytes of a range of a file that differ between `before` and `now`. Bytes beyond
    /// the present end of the file are left out. Changes of the same bytes by other processes are
    /// overwritten, and reported.
    ///
    /// # Errors
    /// As for [`FileData::write_at`]. Some of the changes may have been written.
    pub fn merge(
        &self,
        index: u32,
        offset: u64,
        before: &[u8],
        now: &[u8],
    ) -> Result<Option<Conflict>> {
        self.cluster.locks().check_lease(index)?;
        let mut conflict = None;
        if self.cluster.stripes().striped(index).is_some() {
            self.cluster
                .stripes()
                .merge_striped(index, offset, (before, now), &mut conflict)?;
            return Ok(conflict);
        }
        let merged = pack(before, now, MAX_BODY, |body| {
            let one = match self.cluster.opens().remote_live(index) {
                Some((home, id)) => self.merge_remote(home, id, None, offset, body)?,
                None => self.merge_here(index, None, None, offset, body)?,
            };
            Conflict::add(&mut conflict, one);
            Ok(())
        });
        match self.cluster.stripes().spilled_by(index, &merged)? {
            Some(_) => {
                self.cluster
                    .stripes()
                    .merge_striped(index, offset, (before, now), &mut conflict)?
            }
            None => merged?,
        }
        Ok(conflict)
    }

    /// Makes another node write the runs in a body. `cuts`: number of truncations, if the file has
    /// parts (`stripes.rs`).
    pub(crate) fn merge_remote(
        &self,
        node: NodeId,
        id: ObjectId,
        cuts: Option<u64>,
        offset: u64,
        body: &[u8],
    ) -> Result<Option<Conflict>> {
        let bytes = Bytes::Send(body.as_ptr(), body.len());
        // SAFETY: `bytes` are those of `body`, which outlives the request.
        let reply = unsafe {
            self.cluster
                .ask_with(node, request::MERGE, &(id, cuts, offset), bytes)
        };
        reply.map(|(conflict, _)| Conflict::from_wire(conflict))
    }

    /// Writes the runs in a body to a file of this node, for a process of the node `by` (None: of
    /// this node). `cuts`: the number of truncations that the process knows, for a file with parts.
    pub(crate) fn merge_here(
        &self,
        index: u32,
        cuts: Option<u64>,
        by: Option<NodeId>,
        offset: u64,
        body: &[u8],
    ) -> Result<Option<Conflict>> {
        // For a striped file, no node records the last writer.
        let with = match cuts {
            None => self.changed_beside(index, by),
            Some(_) => None,
        };
        let check = |live: &Live, end: u64| {
            live.change_by(by);
            if cuts.is_some_and(|cuts| live.cuts.load(Acquire) != cuts) {
                return Err(CHANGED);
            }
            if end <= live.size.load(Acquire) {
                Ok(())
            } else {
                Err(GONE)
            }
        };
        let both = apply(
            offset,
            body,
            // SAFETY: pointer and length are those of the slice `to`.
            |at, to| unsafe {
                self.store()
                    .content()
                    .read_here(index, at, to.as_mut_ptr(), to.len())
            },
            |at, now| {
                let size = self.store().objects().live(index).size.load(Acquire);
                let now = &now[..now.len().min(size.saturating_sub(at) as usize)];
                let end = at + now.len() as u64;
                let bytes = (now.as_ptr(), now.len());
                // SAFETY: pointer and length are those of `now`.
                let written = self.store().recovery().with_room_of_the_dead(|| unsafe {
                    self.store()
                        .content()
                        .write_here(index, Some(at), bytes, true, |live| check(live, end))
                });
                whole(written?.1, now.len())
            },
        )?;
        Ok(both.map(|range| Conflict { range, with }))
    }

    /// Returns the number of the node whose process was the last to change a file of this node, if
    /// that node isn't `by`.
    fn changed_beside(&self, index: u32, by: Option<NodeId>) -> Option<u32> {
        match self.store().objects().live(index).changed_beside(by)? {
            None => self.store().peers().node_of_several(),
            Some(node) => Some(node.0),
        }
    }

    /// As [`Mappings::merge_here`], for this node's part of a striped file.
    pub(crate) fn merge_part(
        &self,
        part: u32,
        cuts: u64,
        offset: u64,
        body: &[u8],
    ) -> Result<Option<Conflict>> {
        let both = apply(
            offset,
            body,
            |at, to| {
                let all = to.len();
                // SAFETY: pointer and length are those of the slice `to`. Bytes behind the end of
                // the part read as zero.
                unsafe {
                    self.store()
                        .parts()
                        .read_part(part, cuts, at, to.as_mut_ptr(), all)
                }
                .map(|_| all)
            },
            |at, now| {
                // SAFETY: pointer and length are those of `now`.
                let written = self.store().recovery().with_room_of_the_dead(|| unsafe {
                    self.store()
                        .parts()
                        .write_part(part, cuts, at, (now.as_ptr(), now.len()))
                });
                whole(written?, now.len())
            },
        )?;
        // Offsets in a part are the same as in the whole file.
        Ok(both.map(|range| Conflict { range, with: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(seed: u64, len: usize, share: u64) -> (Vec<u8>, Vec<u8>) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            state >> 33
        };
        let before: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        let mut now = before.clone();
        let mut at = 0;
        while at < len {
            let run = (next() % 300 + 1) as usize;
            if next() % 10 < share {
                (at..len.min(at + run)).for_each(|i| now[i] = next() as u8);
            }
            at += run;
        }
        (before, now)
    }

    #[test]
    fn only_what_changed_is_written() {
        for seed in 0..200 {
            let (before, now) = changed(seed, (seed as usize * 97) % 5000, seed % 11);
            // Another process has changed all bytes that are equal in `before` and `now`.
            let theirs = |i: usize| {
                if before[i] == now[i] {
                    !before[i]
                } else {
                    before[i]
                }
            };
            let mut file: Vec<u8> = (0..before.len()).map(theirs).collect();
            let mut bodies = 0;
            let most = 64 + (seed as usize % 7) * 100;
            pack(&before, &now, most, |body| {
                assert!(body.len() <= most);
                bodies += 1;
                let there = file.clone();
                let conflict = apply(
                    1000,
                    body,
                    |at, to| {
                        let from = at as usize - 1000;
                        to.copy_from_slice(&there[from..from + to.len()]);
                        Ok(to.len())
                    },
                    |at, now| {
                        let from = at as usize - 1000;
                        file[from..from + now.len()].copy_from_slice(now);
                        Ok(())
                    },
                );
                assert_eq!(conflict, Ok(None));
                Ok(())
            })
            .unwrap();
            for i in 0..before.len() {
                let want = if before[i] == now[i] {
                    !before[i]
                } else {
                    now[i]
                };
                assert_eq!(file[i], want, "seed {seed}, byte {i}");
            }
            assert_eq!(bodies == 0, before == now);
        }
    }

    #[test]
    fn who_changed_the_same_bytes_is_found_out() {
        let (before, now) = (*b"abcdef", *b"abXYef");
        let conflict = |there: &[u8; 6]| {
            let mut conflict = None;
            pack(&before, &now, 100, |body| {
                let read = |at: u64, to: &mut [u8]| {
                    to.copy_from_slice(&there[at as usize - 10..][..to.len()]);
                    Ok(to.len())
                };
                conflict = apply(10, body, read, |_, _| Ok(()))?;
                Ok(())
            })
            .unwrap();
            conflict
        };
        assert_eq!(conflict(&before), None);
        // No conflict if the other process wrote the same values, or changed other bytes; else a
        // conflict.
        assert_eq!(conflict(b"abXdef"), None);
        assert_eq!(conflict(b"ZbcdeZ"), None);
        assert_eq!(conflict(b"abZdef"), Some(12..13));
        assert_eq!(conflict(b"abXZef"), Some(13..14));
        assert_eq!(conflict(b"abZZef"), Some(12..14));
    }

    #[test]
    fn what_is_no_body_is_refused() {
        let read = |_: u64, to: &mut [u8]| Ok(to.len());
        for body in [
            &b"abc"[..],
            b"\0\0\0\0\xff\xff\xff\xffabc",
            b"\0\0\0\0\x02\0\0\0abc",
        ] {
            assert_eq!(apply(0, body, read, |_, _| Ok(())), Err(Errno::PROTO));
        }
    }
}
