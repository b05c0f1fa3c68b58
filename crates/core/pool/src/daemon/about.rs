//! The state of a daemon's node, which `forebay status` and `df` request.

use super::core::Core;
use super::{Reach, wire};
use forebay_client::{MediumUsage, Pool};
use forebay_cluster::serve::Reply;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of the request for an [`About`]: the number before the daemons' own kinds
/// (`wire::OWN`). The request has no head; the reply is an [`About`] as JSON.
pub const ABOUT: u16 = wire::OWN - 1;
/// Maximum number of unreachable nodes that a reply lists.
const MAX_UNREACHABLE_NODES: usize = 200;

/// The state of a node, as its daemon sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// Time from which the node's daemon has served. Seconds since 1970.
    pub since: u64,
    /// The use of each of the node's media.
    pub media: Vec<MediumUsage>,
    /// Size of the node's records. Bytes.
    pub record_bytes: Option<u64>,
    /// Number of bytes in the node's media that copies of other nodes' files use.
    #[serde(default)]
    pub copied: u64,
    /// Number of attached processes.
    pub processes: usize,
    /// Nodes that this node can't reach.
    pub unreachable: Vec<Unreachable>,
}

/// A node that can't be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unreachable {
    /// The node's number.
    pub node: u32,
    /// Time from which the node couldn't be reached. Seconds since 1970.
    pub since: u64,
    /// The reason, if it is known.
    pub why: Option<String>,
}

/// The handler of [`ABOUT`] requests.
#[derive(Default)]
pub struct AboutHandler {
    core: OnceLock<Weak<Core>>,
    since: OnceLock<u64>,
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl AboutHandler {
    /// Sets the core, whose links are reported.
    pub fn set(&self, core: Weak<Core>) {
        let _ = self.core.set(core);
        let _ = self.since.set(seconds(SystemTime::now()));
    }

    /// The daemon's core.
    ///
    /// # Errors
    /// EHOSTDOWN if the daemon isn't ready.
    pub fn core(&self) -> Result<Arc<Core>, Errno> {
        let core = self.core.get().and_then(Weak::upgrade);
        core.ok_or(Errno::HOSTDOWN)
    }

    /// The reply to [`ABOUT`].
    ///
    /// # Errors
    /// EHOSTDOWN if the daemon isn't ready.
    pub fn answer(&self, pool: &Pool) -> Result<Reply, Errno> {
        let core = self.core()?;
        let unreachable = core.links.states().into_iter();
        let unreachable = unreachable
            .filter(|s| s.reach == Reach::Unreachable)
            .take(MAX_UNREACHABLE_NODES)
            .map(|s| Unreachable {
                node: s.node.0,
                since: seconds(s.since),
                why: s.why.map(|w| w.chars().take(100).collect()),
            });
        let about = About {
            since: self.since.get().copied().unwrap_or(0),
            media: pool.usage(),
            record_bytes: pool.store().files.used().ok(),
            copied: pool.store().local_copies().copied().bytes,
            processes: pool.attached().len(),
            unreachable: unreachable.collect(),
        };
        Ok(Reply {
            head: serde_json::to_vec(&about).map_err(|_| Errno::IO)?,
            ..Reply::default()
        })
    }
}
