//! Durations (*spans*), from pairs of `_ENTER` and `_EXIT` events of a thread, nested as in the
//! program.

use crate::stream::{Event, Recording};
use forebay_trace::points::POINTS;
use std::collections::{BTreeMap, HashMap};

/// The time between an `_ENTER` event of a thread and its `_EXIT` event.
#[derive(Clone, Debug)]
pub struct Span {
    /// The `_ENTER` event.
    pub enter: Event,
    /// Time of the `_EXIT` event. Nanoseconds since 1970.
    pub end: u64,
    /// Time that no inner span covers. Nanoseconds.
    pub own: u64,
    /// Number of spans that surround this one.
    pub depth: usize,
    /// Index of the directly surrounding span in the list. None: no span surrounds this one.
    pub parent: Option<usize>,
    /// The first field of the `_EXIT` event.
    pub outcome: u64,
}

impl Span {
    /// Returns the name of the span's tracepoints without `_ENTER`.
    pub fn name(&self) -> &'static str {
        let name = self.enter.record.name();
        name.strip_suffix("_ENTER").unwrap_or(name)
    }

    /// Returns the span's duration. Nanoseconds.
    pub fn length(&self) -> u64 {
        self.end.saturating_sub(self.enter.record.time)
    }
}

/// Returns the spans of a recording, and the `_ENTER` events without an `_EXIT` event: the program
/// was killed during the span, or hangs in it.
pub fn spans(recording: &Recording) -> (Vec<Span>, Vec<Event>) {
    let mut spans: Vec<Span> = Vec::new();
    // For each thread, the spans that have begun and not ended, outermost first: their indices in
    // `spans`.
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
                // The span began before the recording, or its `_ENTER` event was lost.
                continue;
            };
            let index = stack[at];
            // Inner spans that are still open have no end, since their `_EXIT` events were lost.
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

/// Number and time of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of spans.
    pub count: u64,
    /// Sum of their durations. Nanoseconds.
    pub total: u64,
    /// Time that no inner spans cover. Nanoseconds.
    pub own: u64,
    /// Duration of the longest span. Nanoseconds.
    pub longest: u64,
}

/// Returns the costs by the path of surrounding spans, such as `CALL > POSIX_OPEN >
/// CLUSTER_CREATE`. Sorted, so that inner spans follow their outer span.
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

/// Whether a tracepoint begins or ends a span.
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
                // The `_ENTER` event of this span is lost.
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
