//! Reads the slow operations of a node, for `forebay trace slow` and `forebay top`.

use forebay_report::node::Node;
use forebay_trace::block::OPERATIONS;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::*;

/// One slow operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowOperation {
    pub node: u32,
    /// When the operation began. Nanoseconds since 1970.
    pub begin: u64,
    /// Duration of the operation.
    pub nanoseconds: u64,
    pub operation: String,
    /// Error number; 0 if the operation succeeded.
    pub errno: i32,
    pub process: u32,
    pub thread: u32,
    /// The request's id: `NODE.PROCESS.NUMBER`.
    pub request: String,
    pub requests_to_other_nodes: u64,
    pub nanoseconds_in_requests: u64,
}

/// Formats a request's id for people: `NODE.PROCESS.NUMBER`.
pub fn request(id: u64) -> String {
    let (node, process, number) = forebay_trace::parts(id);
    format!("{node}.{process}.{number}")
}

/// Returns the slow operations of a node, unordered. Leaves out one that is being recorded.
pub fn of_node(node: &Node) -> Vec<SlowOperation> {
    let scale = node.scale();
    let mut found = Vec::new();
    for entry in &node.shared().slow {
        let number = entry.number.load(Acquire);
        let (what, who) = (entry.what.load(Relaxed), entry.who.load(Relaxed));
        let kind = OPERATIONS.get(what as u32 as usize);
        let slow = SlowOperation {
            node: node.number.0,
            begin: scale.time(entry.begin.load(Relaxed)),
            nanoseconds: scale.length(entry.took.load(Relaxed)),
            operation: kind.map_or("?", |o| o.1).to_owned(),
            errno: (what >> 32) as i32,
            process: (who >> 32) as u32,
            thread: who as u32,
            request: request(entry.request.load(Relaxed)),
            requests_to_other_nodes: entry.requests.load(Relaxed),
            nanoseconds_in_requests: scale.length(entry.request_ticks.load(Relaxed)),
        };
        if number != 0 && entry.number.load(Acquire) == number {
            found.push(slow);
        }
    }
    found
}
