//! Aligning the clocks of nodes, from the recording itself.
//!
//! A request leaves one node (`LINK_SEND`) and is carried out on another (`SERVE_ENTER` to
//! `SERVE_EXIT`), whose reply comes back (`LINK_REPLY`). So the other node's clock can't be so far
//! ahead that `SERVE_EXIT` is after the reply, nor so far behind that `SERVE_ENTER` is before the
//! sending. All requests between two nodes bound the difference of their clocks to an interval. The
//! interval's middle becomes the offset, and half its length is the maximum error.

use crate::stream::Recording;
use forebay_trace::Point;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The change that was made to the times of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offset that was added to the node's times. Nanoseconds.
    pub offset: i64,
    /// Maximum remaining error, in both directions. Nanoseconds. None: unknown.
    pub error: Option<u64>,
}

/// Moves the times of all nodes to the clock of the first one. `same`: whether two nodes have the
/// same clock, because they are on one host.
pub fn align(
    recording: &mut Recording,
    same: impl Fn(u16, u16) -> bool,
) -> BTreeMap<u16, Alignment> {
    let nodes: BTreeSet<u16> = recording.events.iter().map(|e| e.node).collect();
    let mut done = BTreeMap::new();
    let Some(&first) = nodes.first() else {
        return done;
    };
    let exact = Alignment {
        offset: 0,
        error: Some(0),
    };
    done.insert(first, exact);
    let bounds = bounds(recording);
    // Each step goes from aligned nodes to a node that has exchanged requests with one of them.
    while let Some((node, alignment)) = next(&nodes, &done, &bounds, &same) {
        done.insert(node, alignment);
    }
    for node in nodes {
        let unknown = Alignment {
            offset: 0,
            error: None,
        };
        done.entry(node).or_insert(unknown);
    }
    for event in &mut recording.events {
        let moved = event.record.time as i64 + done[&event.node].offset;
        event.record.time = moved.max(0) as u64;
    }
    recording.sort();
    done
}

fn next(
    nodes: &BTreeSet<u16>,
    done: &BTreeMap<u16, Alignment>,
    bounds: &HashMap<(u16, u16), (i64, i64)>,
    same: impl Fn(u16, u16) -> bool,
) -> Option<(u16, Alignment)> {
    for &node in nodes.iter().filter(|n| !done.contains_key(n)) {
        for (&known, &alignment) in done {
            if same(node, known) {
                return Some((node, alignment));
            }
            if let Some(&(low, high)) = bounds.get(&(known, node))
                && low <= high
                && let Some(error) = alignment.error
            {
                let offset = alignment.offset + low + (high - low) / 2;
                let error = Some(error + (high - low).unsigned_abs().div_ceil(2));
                return Some((node, Alignment { offset, error }));
            }
        }
    }
    None
}

/// Returns, by (a, b), the bounds of the offset that moves node b's times to node a's clock.
/// Nanoseconds.
fn bounds(recording: &Recording) -> HashMap<(u16, u16), (i64, i64)> {
    let mut bounds: HashMap<(u16, u16), (i64, i64)> = HashMap::new();
    let mut narrow = |a: u16, b: u16, low: i64, high: i64| {
        for (key, low, high) in [
            ((a, b), low, high),
            ((b, a), high.saturating_neg(), low.saturating_neg()),
        ] {
            let bound = bounds.entry(key).or_insert((i64::MIN / 4, i64::MAX / 4));
            *bound = (bound.0.max(low), bound.1.min(high));
        }
    };
    // Identifies the n-th request of a kind within a program's request, on both nodes.
    type Key = (u64, u16, u16, u64);
    let mut sides: HashMap<(Key, u32), Vec<i64>> = HashMap::new();
    for event in &recording.events {
        let (r, [node, kind, ..]) = (&event.record, event.record.fields);
        let (asker, answerer) = (event.node, node as u16);
        let (a, b, side) = match () {
            () if r.point == Point::LINK_SEND as u16 => (asker, answerer, 0),
            () if r.point == Point::SERVE_ENTER as u16 => (answerer, asker, 1),
            () if r.point == Point::SERVE_EXIT as u16 => (answerer, asker, 2),
            () if r.point == Point::LINK_REPLY as u16 => (asker, answerer, 3),
            () => continue,
        };
        sides
            .entry(((r.request, a, b, kind), side))
            .or_default()
            .push(r.time as i64);
    }
    for ((key, side), sent) in &sides {
        let (_, a, b, _) = *key;
        let at = |side: u32| {
            sides
                .get(&(*key, side))
                .filter(|times| times.len() == sent.len())
        };
        if *side != 0 || a == b {
            continue;
        }
        let (Some(began), Some(ended), Some(replied)) = (at(1), at(2), at(3)) else {
            continue;
        };
        for i in 0..sent.len() {
            narrow(a, b, sent[i] - began[i], replied[i] - ended[i]);
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Event;
    use forebay_trace::read::Record;

    #[test]
    fn a_clock_that_is_ahead_is_found() {
        let event = |node: u16, point: Point, time: i64, other: u64, request: u64| Event {
            node,
            record: Record {
                number: 0,
                time: time as u64,
                point: point as u16,
                process: 1,
                thread: 1,
                request,
                fields: [other, 5, 0, 0],
                text: None,
            },
        };
        let ahead = 1_000_000;
        let mut recording = Recording::default();
        for i in 0..10i64 {
            let (t, r) = (10_000_000 + i * 1000, i as u64);
            recording.events.extend([
                event(0, Point::LINK_SEND, t, 2, r),
                event(2, Point::SERVE_ENTER, t + 40 + i + ahead, 0, r),
                event(2, Point::SERVE_EXIT, t + 60 + ahead, 0, r),
                event(0, Point::LINK_REPLY, t + 110 - i, 2, r),
                event(3, Point::LINK_UP, t, 0, r),
            ]);
        }
        let done = align(&mut recording, |_, _| false);
        assert_eq!(done[&0].error, Some(0));
        let (offset, error) = (done[&2].offset, done[&2].error.unwrap() as i64);
        assert!(
            (offset + ahead).abs() <= error && error <= 50,
            "{offset} ± {error}"
        );
        assert_eq!(done[&3].error, None);
        let moved = recording
            .events
            .iter()
            .find(|e| e.node == 2)
            .unwrap()
            .record
            .time as i64;
        assert!((moved - 10_000_040).abs() <= error);
    }
}
