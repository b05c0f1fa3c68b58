//! Switches the tracepoints of `forebay top`, and reads their events.
//!
//! Events are read directly from the rings of the processes, so another command may record them at
//! the same time. [`end`] switches off those points that were off before this command. The end of
//! the command, its signals, a panic and the closing of the terminal all call it.

use super::files::{POINTS, Tally};
use crate::fail::Fail;
use crate::trace::nodes;
use forebay_report::collect::{on, switch};
use forebay_report::node::Node;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// The points that this process has switched on, for each node.
static SWITCHED: Mutex<Vec<(Node, Vec<usize>)>> = Mutex::new(Vec::new());
/// Whether the command ends: then no point is switched on any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Switches off the points that [`Rings::begin`] has switched on.
pub fn switch_off() {
    // Tries for at most 0.1 s: a thread that panics while it holds the lock must not wait for
    // itself.
    for _ in 0..100 {
        match SWITCHED.try_lock() {
            Ok(mut switched) => {
                for (node, points) in switched.drain(..) {
                    switch(&node, &points, false);
                }
                return;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Like [`switch_off`], and keeps the points off from now on.
pub fn end() {
    ENDED.store(true, SeqCst);
    switch_off();
}

/// The rings of this host's nodes, and the position up to which each was read.
pub struct Rings {
    nodes: Vec<Node>,
    next: HashMap<PathBuf, u64>,
}

impl Rings {
    /// Switches the points on, and begins with events recorded from now on.
    ///
    /// # Errors
    /// If the pool's nodes can't be read.
    pub fn begin(pool: &str) -> Result<Rings, Fail> {
        let mut next = HashMap::new();
        let nodes_here = nodes(pool)?;
        for path in nodes_here
            .iter()
            .filter_map(|n| n.ring_files().ok())
            .flatten()
        {
            if let Ok(end) = Node::ring_end(&path) {
                next.insert(path, end);
            }
        }
        for node in nodes(pool)? {
            let before = on(&node);
            let ours = POINTS.map(|p| p as usize).into_iter();
            let ours: Vec<usize> = ours.filter(|p| !before.contains(p)).collect();
            if let Ok(mut switched) = SWITCHED.lock()
                && !ENDED.load(SeqCst)
            {
                switch(&node, &ours, true);
                switched.push((node, ours));
            }
        }
        Ok(Rings {
            nodes: nodes_here,
            next,
        })
    }

    /// Adds to `tally` the events recorded since the last call.
    pub fn read(&mut self, tally: &mut Tally) {
        let mut found = HashMap::new();
        for path in self
            .nodes
            .iter()
            .filter_map(|n| n.ring_files().ok())
            .flatten()
        {
            let from = self.next.get(&path).copied().unwrap_or(0);
            // A ring with fewer events than before has the same name but belongs to another
            // process.
            let ring = Node::ring_since(&path, from).or_else(|_| Node::ring_since(&path, 0));
            let next = match ring {
                Ok(ring) => {
                    tally.add(&ring.records, ring.lost);
                    ring.next
                }
                Err(_) => from,
            };
            found.insert(path, next);
        }
        self.next = found;
    }

    /// Whether all points are on.
    pub fn are_on(&self) -> bool {
        let is_on = |node: &Node| {
            let on = on(node);
            POINTS.iter().all(|&p| on.contains(&(p as usize)))
        };
        self.nodes.iter().all(is_on)
    }
}
