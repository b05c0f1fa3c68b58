//! Orders to the copiers of other nodes: a file is copied by the node that has its bytes, if that
//! node sees the origin.
//!
//! If it doesn't, or fails, the service copies itself. Before, it ensures that the copier has
//! stopped ([`Order::Stop`] with a new number): no other process may write to a file on which the
//! service works.

use crate::remote_copiers::number;
use crate::service::Origin;
use crate::side::print;
use forebay_backing::Meta;
use forebay_client::origin::{Order, Refusal, Request, SERVICE_NODE};
use forebay_posix::ObjectId;
use forebay_staging::{PART_PREFIX, Report};
use forebay_store::codec::List;
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// For fewer bytes, no copier is used.
const WORTH: u64 = 1 << 20;
/// Longest names of files in one order, together. Bytes.
const NAMES: usize = 16 << 10;
/// How often a node without a copier is asked to stop it: its daemon may be about to start.
const ATTEMPTS: usize = 3;
const RECONNECT_INTERVAL: Duration = Duration::from_millis(300);

impl Origin {
    /// The node that copies this file, if it isn't the service's own node.
    fn copier_of(&self, id: ObjectId, bytes: u64) -> Option<u32> {
        // A bandwidth limit is kept by one node. Only the service's node has the credentials of a
        // bucket.
        if self.pace.is_some() || self.side.is_object_store() || bytes < WORTH {
            return None;
        }
        let home = self.fs.cluster().home_of(id)?;
        (home != SERVICE_NODE && self.copiers.is_usable(home)).then_some(home)
    }

    fn order(&self, node: u32, order: Order) -> std::result::Result<String, Refusal> {
        let service = self.copiers.service.load(Relaxed);
        let request = Request::Order { service, order };
        let mut moves = || {
            self.moved.fetch_add(1, Relaxed);
        };
        self.pool.order_copier(node, &request, &mut moves)
    }

    /// Makes the node that has a file's bytes copy a range of this version in, over the same bytes.
    /// None: this node has to do that. The caller holds the object's lock, or has claimed these
    /// blocks.
    ///
    /// # Errors
    /// ENOSPC: that node's media are full. ESTALE: there is another version. EHOSTDOWN, ETIMEDOUT:
    /// that node may still copy.
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
            Err(_) => {
                self.stop_copier(node)?;
                Ok(None)
            }
        }
    }

    /// Makes the node that has files of a directory write them back. None: this node has to.
    ///
    /// # Errors
    /// EHOSTDOWN, ETIMEDOUT: that node may still write.
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

    /// Chooses which of these files (object, name, size) other nodes write back. Returns each such
    /// node with the indices of its files.
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

    /// Whether a node sees a file that this one makes at the origin: it has the same directory.
    fn sees_writes(&self, node: u32) -> Result<bool> {
        if self.copiers.state().writers.contains(&node) {
            return Ok(true);
        }
        let probe = [
            PART_PREFIX,
            format!("seen-{node}-{:x}", number()).as_bytes(),
        ]
        .concat();
        let Ok(file) = self.side.create(&probe, b"") else {
            return Ok(false);
        };
        let _ = file.close();
        let seen = self.order(
            node,
            Order::Look {
                path: probe.clone(),
            },
        );
        let _ = self.side.unlink(&probe);
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

    /// Stops a copier that has failed, and doesn't use it for a while.
    ///
    /// # Errors
    /// EHOSTDOWN, ETIMEDOUT: it may still work.
    fn stop_copier(&self, node: u32) -> Result<()> {
        {
            let mut state = self.copiers.state();
            state.failed.insert(node, Instant::now());
            state.unstopped.insert(node);
            state.writers.remove(&node);
        }
        self.stop(node)
    }

    /// Makes sure that no copier carries orders of an earlier number out on the file's node.
    ///
    /// # Errors
    /// EHOSTDOWN, ETIMEDOUT: it may still do.
    pub fn make_sure_of(&self, id: ObjectId) -> Result<()> {
        if self.copiers.state().unstopped.is_empty() {
            return Ok(());
        }
        let Some(home) = self.fs.cluster().home_of(id) else {
            return Ok(());
        };
        if self.copiers.state().unstopped.contains(&home) {
            self.stop(home)
        } else {
            Ok(())
        }
    }

    /// Stops what copiers still do for earlier services, as far as their nodes can be reached.
    pub fn stop_copiers(&self) {
        let unstopped = self.copiers.state().unstopped.clone();
        for node in unstopped {
            // If it can't be reached, its files can't be worked on: see `make_sure_of`.
            let _ = self.stop(node);
        }
    }

    fn stop(&self, node: u32) -> Result<()> {
        // A number higher than those of all earlier orders. Other threads count on from it.
        self.copiers.service.fetch_max(number(), Relaxed);
        for attempt in 0.. {
            match self.order(node, Order::Stop {}) {
                Ok(_) => break,
                Err(refusal) => match refusal.error {
                    // No copier runs: there is nothing to stop.
                    Errno::NOTCONN if attempt >= ATTEMPTS => break,
                    // Another thread of this service has stopped it with a higher number.
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
