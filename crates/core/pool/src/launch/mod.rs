//! Starting the daemons of a pool: the driver of the protocol in [`start`](crate::start).
//!
//! Each daemon is launched by its parent in the tree ([`launcher`]). The daemon gets the pool's
//! description on its standard input ([`Begin`]), and exchanges messages with the parent on
//! standard input and output until the pool runs ([`messages`]). The pool's key, the hosts and all
//! options are sent there: never on a command line, in an environment, or in a file that others
//! could read. A daemon that loses its parent before the pool runs removes what it has made, and
//! ends.

mod child;
mod drive;
pub mod launcher;
pub mod messages;
mod node;
mod plan;

pub use child::Child;
pub use drive::{Outcome, Work, drive, order};
pub use launcher::{Launcher, launcher, remote};
pub use messages::{Begin, Key};
pub use node::{Host, Own, Running};
pub use plan::{How, Listen, OneTime, Plan};
