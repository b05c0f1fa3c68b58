//! Durations: pairs of `_ENTER` and `_EXIT` events of one thread, nested as they happened.

use crate::stream::{Event, Recording};
use forebay_trace::points::POINTS;
use std::collections::{BTreeMap, HashMap};

/// Work between two events of a thread.
#[derive(Clone, Debug)]
pub struct Span {
    /// The event with which the span began.
    pub enter: Event,
    /// Nanoseconds since 1970.
    pub end: u64,
    /// Time in it that no span within it covers. Nanoseconds.
    pub own: u64,
    /// In how many others it lies.
    pub depth: usize,
    /// Index of the surrounding span in the list; None: there is none.
    pub parent: Option<usize>,
    /// The first field of the event with which the span ended.
    pub outcome: u64,
}

impl Span {
    /// The name of its points without `_ENTER`.
    pub fn name(&self) -> &'static str {
        let name = self.enter.record.name();
        name.strip_suffix("_ENTER").unwrap_or(name)
    }

    /// Nanoseconds.
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.enter.record.time)
    }
}

/// The spans of a recording, and the events that began one that never ended in it (the program was
/// killed then, or hangs there).
pub fn spans(recording: &Recording) -> (Vec<Span>, Vec<Event>) {
    let mut spans: Vec<Span> = Vec::new();
    // For each thread, the operations that have begun: the place of each in `spans`, or None if its
    // end isn't known yet.
    let mut open: HashMap<(u16, u32, u32), Vec<usize>> = HashMap::new();
    for event in &recording.events {
        let name = event.record.name();
        let key = (event.node, event.record.process, event.record.thread);
        let stack = open.entry(key).or_default();
        if name.ends_with("_ENTER") {
            let span = Span {
                enter: event.clone(),
                end: 0,
                own: 0,
                depth: stack.len(),
                parent: stack.last().copied(),
                outcome: 0,
            };
            stack.push(spans.len());
            spans.push(span);
        } else if let Some(stem) = name.strip_suffix("_EXIT") {
            let Some(at) = stack.iter().rposition(|&i| spans[i].name() == stem) else {
                // The operation began before the recording, or its beginning is lost.
                continue;
            };
            let index = stack[at];
            // Spans that began within it have no end, since events were lost.
            stack.truncate(at);
            spans[index].end = event.record.time;
            spans[index].outcome = event.record.fields[0];
        }
    }
    let unfinished: Vec<Event> = open
        .values()
        .flatten()
        .map(|&i| spans[i].enter.clone())
        .collect();
    let ended: Vec<bool> = spans.iter().map(|s| s.end != 0).collect();
    let mut places: Vec<Option<usize>> = Vec::with_capacity(spans.len());
    let mut kept = 0;
    for &ended in &ended {
        places.push(ended.then(|| {
            kept += 1;
            kept - 1
        }));
    }
    let parents: Vec<Option<usize>> = spans.iter().map(|s| s.parent).collect();
    let around = |mut parent: Option<usize>| {
        while let Some(i) = parent {
            if let Some(place) = places[i] {
                return Some(place);
            }
            parent = parents[i];
        }
        None
    };
    let mut finished: Vec<Span> = Vec::with_capacity(kept);
    for span in spans.into_iter().filter(|s| s.end != 0) {
        let parent = around(span.parent);
        finished.push(Span {
            own: span.length(),
            parent,
            ..span
        });
    }
    for i in 0..finished.len() {
        if let Some(parent) = finished[i].parent {
            let length = finished[i].length();
            finished[parent].own = finished[parent].own.saturating_sub(length);
        }
    }
    (finished, unfinished)
}

/// How often and how long something was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How often.
    pub count: u64,
    /// All together. Nanoseconds.
    pub total: u64,
    /// Time without that of inner spans. Nanoseconds.
    pub own: u64,
    /// The longest. Nanoseconds.
    pub longest: u64,
}

/// Costs by the path of surrounding spans, such as `CALL > POSIX_OPEN > CLUSTER_CREATE`, in the
/// order of a walk.
pub fn costs(spans: &[Span]) -> BTreeMap<Vec<&'static str>, Cost> {
    let mut costs: BTreeMap<Vec<&'static str>, Cost> = BTreeMap::new();
    let mut paths: Vec<Vec<&'static str>> = Vec::with_capacity(spans.len());
    for span in spans {
        let mut path = span.parent.map_or(Vec::new(), |p| paths[p].clone());
        path.push(span.name());
        let cost = costs.entry(path.clone()).or_default();
        cost.count += 1;
        cost.total += span.length();
        cost.own += span.own;
        cost.longest = cost.longest.max(span.length());
        paths.push(path);
    }
    costs
}

/// Whether the point begins or ends a span.
pub fn is_of_span(point: u16) -> bool {
    let name = POINTS[point as usize].name;
    name.ends_with("_ENTER") || name.ends_with("_EXIT")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_trace::Point;
    use forebay_trace::read::Record;

    fn event(point: Point, time: u64, thread: u32) -> Event {
        Event {
            node: 0,
            record: Record {
                number: 0,
                time,
                point: point as u16,
                process: 1,
                thread,
                request: 9,
                fields: [0; 4],
                text: None,
            },
        }
    }

    #[test]
    fn spans_nest_and_parts_add_up() {
        use Point::*;
        let recording = Recording {
            events: vec![
                event(CALL_ENTER, 100, 1),
                event(POSIX_OPEN_ENTER, 110, 1),
                event(CALL_ENTER, 112, 2),
                event(STORE_CREATE_ENTER, 120, 1),
                event(STORE_CREATE_EXIT, 150, 1),
                event(POSIX_OPEN_EXIT, 170, 1),
                event(CALL_EXIT, 200, 1),
                // The operation's beginning is lost.
                event(STORE_LOOKUP_EXIT, 210, 1),
            ],
            ..Recording::default()
        };
        let (spans, unfinished) = spans(&recording);
        assert_eq!(spans.len(), 3);
        assert_eq!(unfinished.len(), 1);
        let costs = costs(&spans);
        let whole = costs[&vec!["CALL"]];
        assert_eq!((whole.count, whole.total, whole.own), (1, 100, 40));
        let create = costs[&vec!["CALL", "POSIX_OPEN", "STORE_CREATE"]];
        assert_eq!((create.total, create.own), (30, 30));
        let own: u64 = costs.values().map(|c| c.own).sum();
        assert_eq!(own, whole.total, "the parts add up");
    }
}
