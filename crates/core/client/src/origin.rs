//! The slow store behind a pool: its part of the pool's configuration, and requests of processes to
//! the origin service.
//!
//! The service runs in the keeper's process of one node, [`SERVICE_NODE`]. A process of this node
//! that needs something from the origin only connects to `origin.sock` in the node's directory,
//! sends one [`Request`] and waits for the reply. Processes of other nodes do the same through
//! their daemon. While the service works, it sends a sign of progress every second. A process that
//! gets none for the origin's timeout gives up, so that a dead origin delays no process for ever.
//!
//! Modules: `config`, where the origin is, and the rules for the modes of paths; `modes`, the mode
//! of a path, computed name by name; `request`, the messages; `ask`, sending them and waiting.

mod ask;
mod config;
mod modes;
mod request;

pub use ask::{Asker, Refusal, ask, order};
pub use config::{OriginConfig, Quota};
pub use forebay_cluster::serve::origin::{MESSAGE, PROGRESS, RESULT, SOCKET};
pub use modes::{Lead, Modes, ModesAt, OriginMode, OriginRule};
pub use request::{Order, QuotaStatus, Request, encode_result};

/// Name of a file in a node's directory that exists if the pool has an origin.
pub const SIGN: &str = "origin";
/// The node on which the service runs.
pub const SERVICE_NODE: u32 = 0;
/// Default time that a process waits for a sign of progress. Milliseconds.
pub const TIMEOUT_MS: u64 = 60_000;
/// Default size from which files are fetched by ranges. Bytes.
pub const RANGES: u64 = 64 << 20;
/// Size of a block. A block of a file is fetched and evicted as a whole. Bytes.
pub const BLOCK: u64 = 8 << 20;
