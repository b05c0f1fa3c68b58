//! Computes capacity and usage of the whole pool. Processes request these from their own node's
//! daemon, for statfs(2).
//!
//! A result is reused for a second, so each node gets at most one request a second, however many
//! programs call statfs. A node that doesn't answer in time counts with its last reply; a node that
//! can't be reached counts as full.

use super::about::{ABOUT, About};
use super::core::Core;
use super::pending::Waiting;
use forebay_client::Pool;
use forebay_cluster::serve::Reply;
use forebay_net::NodeId;
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use forebay_cluster::peers::CAPACITY;

const _: () = assert!(CAPACITY < ABOUT);

/// How long a result is reused.
const FRESH: Duration = Duration::from_secs(1);
/// How long the computation of a result waits for replies of the other nodes.
const WAITS: Duration = Duration::from_millis(500);

/// Maximum number of nodes that a reply lists: those with the most room.
const ROOMS: usize = 64;

/// Capacity of a node, as far as its host has room for it, and how much of it is used. Bytes.
type Bytes = (u64, u64);

#[derive(Default)]
struct Known {
    since: Option<Instant>,
    /// Capacity and usage of each other node.
    nodes: HashMap<NodeId, Bytes>,
    sum: Bytes,
    /// The nodes with the most room, encoded.
    rooms: Vec<u8>,
}

/// The last replies of the other nodes.
#[derive(Default)]
pub struct Capacity {
    known: Mutex<Known>,
    /// The last result, for callers that arrive while a new one is computed.
    last: Mutex<(Bytes, Vec<u8>)>,
}

impl Capacity {
    /// The reply to [`CAPACITY`].
    ///
    /// # Errors
    /// None; all handlers have this result type.
    pub fn answer(&self, core: &Core, pool: &Pool) -> Result<Reply, Errno> {
        let ((mut size, mut used), rooms) = match self.known.try_lock() {
            Ok(mut known) => {
                if known.since.is_none_or(|since| since.elapsed() >= FRESH) {
                    known.refresh(core);
                    *lock(&self.last) = (known.sum, known.rooms.clone());
                }
                (known.sum, known.rooms.clone())
            }
            Err(TryLockError::Poisoned(_)) => lock(&self.last).clone(),
            // Another thread computes the result. This thread waits only if there is no older
            // result.
            Err(TryLockError::WouldBlock) => {
                // `last` is cloned first: in a match on its guard, this thread would hold that lock
                // while it waits for the other thread, which needs it.
                let last = lock(&self.last).clone();
                if last.0 == (0, 0) {
                    let known = lock(&self.known);
                    (known.sum, known.rooms.clone())
                } else {
                    last
                }
            }
        };
        for u in pool.usage() {
            size += u.used + u.available;
            used += u.used;
        }
        used = used.saturating_sub(pool.store().local_copies().copied().bytes);
        Ok(Reply {
            head: [&size.to_le_bytes()[..], &used.to_le_bytes(), &rooms].concat(),
            ..Reply::default()
        })
    }
}

impl Known {
    fn refresh(&mut self, core: &Core) {
        let map = core.local().maps.get();
        let nodes = map.iter().flat_map(|m| m.nodes());
        let others = nodes.filter(|n| n.number != core.local().me);
        let requests: Vec<_> = others
            .map(|n| {
                let waiting = Waiting::new(Vec::new(), None, 0);
                core.ask_here(n.number, ABOUT, waiting.clone());
                let size = n.media.iter().map(|m| m.capacity).sum::<u64>();
                (n.number, size, waiting)
            })
            .collect();
        let until = Instant::now() + WAITS;
        let mut sum = (0, 0);
        let mut rooms: Vec<(u64, NodeId)> = Vec::new();
        for (node, size, waiting) in requests {
            let about = match waiting.wait(until, Duration::ZERO) {
                Some((0, head, _)) => serde_json::from_slice::<About>(&head).ok(),
                Some(_) => {
                    // The node can't be reached, so nothing can be written there, and the node
                    // counts as full.
                    self.nodes.insert(node, (size, size));
                    None
                }
                None => None,
            };
            let answers = about.is_some();
            if let Some(about) = about {
                // Capacity for which the node's host has no room isn't counted.
                let used: u64 = about.media.iter().map(|m| m.used).sum();
                let available: u64 = about.media.iter().map(|m| m.available).sum();
                let size = used + available;
                self.nodes
                    .insert(node, (size, used.saturating_sub(about.copied)));
            }
            // A node that never answered counts as full.
            let (size, used) = *self.nodes.get(&node).unwrap_or(&(size, size));
            sum = (sum.0 + size, sum.1 + used);
            if answers {
                rooms.push((size.saturating_sub(used), node));
            }
        }
        rooms.sort_unstable_by(|a, b| b.cmp(a));
        rooms.truncate(ROOMS);
        self.rooms.clear();
        for (free, node) in rooms {
            self.rooms.extend(node.0.to_le_bytes());
            self.rooms.extend(free.to_le_bytes());
        }
        self.sum = sum;
        self.since = Some(Instant::now());
    }
}
