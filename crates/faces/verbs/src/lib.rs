//! The verbs face: I/O for programs that declare what they need.
//!
//! A [`Session`] has a metadata store and back ends. The store has [`Workspace`]s, and a workspace
//! has [`Collection`]s: bytes with a name, a UUID, key-value metadata and controls. Collections are
//! found by name, by UUID, or by a [`Predicate`] over metadata. Verbs are carried out at once, or
//! collected in a [`Batch`] and run while the program does something else. Concepts and rules:
//! `docs/howto/verbs.md`.
//!
//! Everything here can be used by several threads. A forked child can't use its parent's sessions:
//! in the child, every verb on them fails with EPERM. The child opens sessions itself.
//!
//! ```
//! use forebay_iov::{Collection, Options, Predicate, Session, Workspace};
//! # fn main() -> forebay_iov::Result<()> {
//! let session = Session::open("memory")?;
//! let workspace = Workspace::create(&session, "campaign", &Default::default())?;
//! let meta = [("project", "mcse"), ("step", "3")].map(|(k, v)| (k.to_owned(), v.to_owned()));
//! let options = Options { meta: meta.into(), ..Options::default() };
//! let field = Collection::create(&workspace, "pressure.3", &options)?;
//! field.write(b"1013.25", 0)?;
//! field.close()?;
//!
//! let wanted = Predicate::parse(r#"project = "mcse" and step >= 2"#)?;
//! let found = Collection::search(&workspace, &wanted)?;
//! assert_eq!(found[0].name, "pressure.3");
//! # Ok(()) }
//! ```

#![warn(missing_docs)]

pub mod abi;
pub mod backend;
pub mod batch;
pub mod capi;
pub mod chunk;
mod controls_text;
mod error;
mod mapped;
pub mod meta;
mod model;
mod pool;
mod process;
pub mod query;
mod session;
mod settle;
mod uuid;
mod worker_pool;

pub use batch::{Batch, Op, Order, Outcome, Running, Status};
pub use chunk::{Chunk, Token};
pub use controls_text::{read_controls, write_controls};
pub use error::{Error, Result};
pub use forebay_controls::{Controls, Failure};
pub use forebay_store::Term;
pub use mapped::Access;
pub use meta::undo;
pub use meta::{Change, Key, Record};
pub use model::{Collection, Options, Workspace};
pub use pool::{Attached, PoolFile};
pub use query::{Meta, Predicate};
pub use rustix::io::Errno;
pub use session::Session;
pub use uuid::Uuid;
