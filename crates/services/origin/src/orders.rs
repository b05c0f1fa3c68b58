//! Orders to the copiers of other nodes: a file is copied by the node that has its bytes, if that
//! node sees the origin.
//!
//! If the node doesn't see the origin, or its copier fails, the service copies the file itself.
//! Before copying, the service makes sure that the copier has stopped ([`Order::Stop`] with a new
//! number): no other process may write to a file on which the service works.

use crate::remote_copiers::{Copiers, number};
use crate::shared::Shared;
use crate::side::print;
use forebay_backing::Meta;
use forebay_client::origin::{Order, Refusal, Request, SERVICE_NODE};
use forebay_posix::ObjectId;
use forebay_staging::{PART_PREFIX, Report};
use forebay_store::codec::List;
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Minimum number of bytes for which a copier is used.
const WORTH: u64 = 1 << 20;
/// Maximum total length of the names of files in one order. Bytes.
const NAMES: usize = 16 << 10;
/// Maximum number of attempts to stop a copier on a node that reports that it has none: the node's
/// daemon may be about to start.
const ATTEMPTS: usize = 3;
const RECONNECT_INTERVAL: Duration = Duration::from_millis(300);

/// Whether an error of a copy means that the copier has failed. ESTALE doesn't: the copier has seen
/// another version at the origin than the service has, and has ended the order.
fn is_copiers_failure(error: Errno) -> bool {
    error != Errno::STALE
}

/// Gives orders to the copiers of the other nodes.
pub struct CopierOrders {
    pub shared: Arc<Shared>,
    pub copiers: Copiers,
}

impl CopierOrders {
    /// Returns the number of bytes that the copiers have copied.
    pub fn copied_bytes(&self) -> u64 {
        self.copiers.bytes.load(Relaxed)
    }

    /// Returns the node that copies this file, if that isn't the service's own node.
    fn copier_of(&self, id: ObjectId, bytes: u64) -> Option<u32> {
        // A bandwidth limit holds only if a single node copies. Only the service's node has a
        // bucket's credentials.
        if self.shared.is_paced() || self.shared.side.is_object_store() || bytes < WORTH {
            return None;
        }
        let home = self.shared.cluster().home_of(id)?;
        (home != SERVICE_NODE && self.copiers.is_usable(home)).then_some(home)
    }

    fn order(&self, node: u32, order: Order) -> std::result::Result<String, Refusal> {
        let service = self.copiers.service.load(Relaxed);
        let request = Request::Order { service, order };
        let mut moves = || {
            self.shared.advance();
        };
        self.shared.pool.order_copier(node, &request, &mut moves)
    }

    /// Makes the node that has a file's bytes copy a range of the version `there` from the origin
    /// into the pool. Returns the number of copied bytes. None: the service has to copy the range
    /// itself. The caller holds the object's lock, or has claimed the blocks.
    ///
    /// # Errors
    /// ENOSPC: that node's media are full. EHOSTDOWN, ETIMEDOUT: that node may still be copying.
    pub fn copy_there(
        &self,
        id: ObjectId,
        path: &[u8],
        there: &Meta,
        (start, end): (u64, u64),
    ) -> Result<Option<u64>> {
        let Some(node) = self.copier_of(id, end - start) else {
            return Ok(None);
        };
        if self.copiers.note(node).is_err() {
            return Ok(None);
        }
        let order = Order::Copy {
            id,
            path: path.to_vec(),
            version: print(there),
            at: start,
            length: end - start,
        };
        match self.order(node, order) {
            Ok(text) => {
                let bytes = text.parse().map_err(|_| Errno::PROTO)?;
                self.copiers.bytes.fetch_add(bytes, Relaxed);
                Ok(Some(bytes))
            }
            Err(refusal) if refusal.error == Errno::NOSPC => Err(Errno::NOSPC),
            // The copier has found another version at the origin. The service compares it, and
            // copies the range itself.
            Err(refusal) if !is_copiers_failure(refusal.error) => Ok(None),
            Err(_) => {
                self.stop_copier(node)?;
                Ok(None)
            }
        }
    }

    /// Makes a node that has files of a directory write them back. Returns None if the service has
    /// to write them itself.
    ///
    /// # Errors
    /// EHOSTDOWN, ETIMEDOUT: that node may still be writing.
    pub fn write_there(
        &self,
        node: u32,
        at: &[u8],
        names: &[Vec<u8>],
        compares: bool,
    ) -> Result<Option<Report>> {
        if self.copiers.note(node).is_err() || !self.sees_writes(node)? {
            return Ok(None);
        }
        let order = Order::Write {
            path: at.to_vec(),
            names: List(names.to_vec()),
            compares,
        };
        let report = self.order(node, order).ok();
        match report.and_then(|text| serde_json::from_str::<Report>(&text).ok()) {
            Some(report) => {
                self.copiers.bytes.fetch_add(report.moved_bytes, Relaxed);
                Ok(Some(report))
            }
            None => {
                self.stop_copier(node)?;
                Ok(None)
            }
        }
    }

    /// Chooses which of these files (object, name, size) other nodes write back. Returns each of
    /// those nodes with the indices of its files.
    pub fn shared_out<'f>(
        &self,
        files: impl Iterator<Item = (ObjectId, &'f [u8], u64)>,
    ) -> Vec<(u32, Vec<usize>)> {
        let mut lists: HashMap<u32, (Vec<usize>, usize, u64)> = HashMap::new();
        for (i, (id, name, size)) in files.enumerate() {
            let Some(node) = self.copier_of(id, WORTH) else {
                continue;
            };
            let (list, length, bytes) = lists.entry(node).or_default();
            if *length + name.len() < NAMES {
                list.push(i);
                *length += name.len() + 1;
                *bytes += size;
            }
        }
        let worth = lists
            .into_iter()
            .filter(|(_, (_, _, bytes))| *bytes >= WORTH);
        worth.map(|(node, (list, _, _))| (node, list)).collect()
    }

    /// Whether a node and the service have the same directory as the origin: the node has to see a
    /// file that the service makes there.
    fn sees_writes(&self, node: u32) -> Result<bool> {
        if self.copiers.state().writers.contains(&node) {
            return Ok(true);
        }
        let probe = [
            PART_PREFIX,
            format!("seen-{node}-{:x}", number()).as_bytes(),
        ]
        .concat();
        let Ok(file) = self.shared.side.create(&probe, b"") else {
            return Ok(false);
        };
        let _ = file.close();
        let seen = self.order(
            node,
            Order::Look {
                path: probe.clone(),
            },
        );
        let _ = self.shared.side.unlink(&probe);
        match seen {
            Ok(_) => {
                self.copiers.state().writers.insert(node);
                Ok(true)
            }
            Err(_) => {
                self.stop_copier(node)?;
                Ok(false)
            }
        }
    }

    /// Stops a copier that has failed. The copier isn't used again for a while.
    ///
    /// # Errors
    /// EHOSTDOWN, ETIMEDOUT: the copier may still be at work.
    fn stop_copier(&self, node: u32) -> Result<()> {
        {
            let mut state = self.copiers.state();
            state.failed.insert(node, Instant::now());
            state.unstopped.insert(node);
            state.writers.remove(&node);
        }
        self.stop(node)
    }

    /// Makes sure that no copier on the file's node still carries out orders with an earlier
    /// service number.
    /// # Errors
    /// EHOSTDOWN, ETIMEDOUT: the copier may still be at work.
    pub fn make_sure_of(&self, id: ObjectId) -> Result<()> {
        if self.copiers.state().unstopped.is_empty() {
            return Ok(());
        }
        let Some(home) = self.shared.cluster().home_of(id) else {
            return Ok(());
        };
        if self.copiers.state().unstopped.contains(&home) {
            self.stop(home)
        } else {
            Ok(())
        }
    }

    /// Stops the orders that copiers still carry out for earlier services, on all nodes that can be
    /// reached.
    pub fn stop_copiers(&self) {
        let unstopped = self.copiers.state().unstopped.clone();
        for node in unstopped {
            // While a node can't be reached, no thread works on its files: see `make_sure_of`.
            let _ = self.stop(node);
        }
    }

    fn stop(&self, node: u32) -> Result<()> {
        // The new number is higher than those of all earlier orders. Other threads may raise it
        // further.
        self.copiers.service.fetch_max(number(), Relaxed);
        for attempt in 0.. {
            match self.order(node, Order::Stop {}) {
                Ok(_) => break,
                Err(refusal) => match refusal.error {
                    // The node runs no copier, so there is nothing to stop.
                    Errno::NOTCONN if attempt >= ATTEMPTS => break,
                    // Another thread of the service has stopped the copier with a higher number.
                    Errno::CANCELED if attempt < ATTEMPTS => {}
                    Errno::NOTCONN => std::thread::sleep(RECONNECT_INTERVAL),
                    e => return Err(e),
                },
            }
        }
        self.copiers.state().unstopped.remove(&node);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_no_failure_of_its_copier() {
        assert!(!is_copiers_failure(forebay_backing::Error::Changed.errno()));
        for trouble in [
            forebay_backing::Error::Differs,
            forebay_backing::Error::Stopped,
            forebay_backing::Error::Read(Errno::NOENT),
        ] {
            assert!(is_copiers_failure(trouble.errno()), "{trouble:?}");
        }
    }
}
