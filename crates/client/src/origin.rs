//! The slow store behind a pool: what a pool's configuration says of it, and how processes ask the
//! origin service.
//!
//! The service runs in the keeper's process of one node, [`SERVICE_NODE`]. A process of this node
//! that needs something that is at the origin only connects to `origin.sock` in the node's
//! directory, sends one [`Request`] and waits for the reply; processes of other nodes do the same
//! through their daemon. While the service works, it sends a sign of progress every second; a
//! process that gets none for the origin's timeout gives up, so that a dead origin delays nobody for
//! ever.
//!
//! `config`: where the origin lies, and modes by path; `modes`: those, computed name by name;
//! `request`: messages; `ask`: sending them and waiting.

mod ask;
mod config;
mod modes;
mod request;

pub use ask::{Asker, Refusal, ask, order};
pub use config::{OriginConfig, OriginMode, OriginRule, Quota};
pub use forebay_cluster::serve::origin::{MESSAGE, PROGRESS, RESULT, SOCKET};
pub use modes::{Lead, Modes, ModesAt};
pub use request::{Order, QuotaStatus, Request, encode_result};

/// A file in a node's directory: its pool has an origin.
pub const SIGN: &str = "origin";
/// The node on which the service runs.
pub const SERVICE_NODE: u32 = 0;
/// How long a process waits for a sign of progress, unless the pool's configuration says it.
/// Milliseconds.
pub const TIMEOUT_MS: u64 = 60_000;
/// Size from which files come in by ranges, unless the pool's configuration says it. Bytes.
pub const RANGES: u64 = 64 << 20;
/// Bytes that come in together. Whole blocks of a file are in the pool, or aren't.
pub const BLOCK: u64 = 8 << 20;
