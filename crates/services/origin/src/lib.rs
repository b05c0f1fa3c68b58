//! The origin service: it makes the slow store behind a pool part of the pool's namespace.
//!
//! A pool with an origin (`forebay up --origin DIR`) shows the files of a directory of another file
//! system. Objects have the states of hierarchical storage management
//! ([`forebay_store::OriginState`]):
//!
//! ```text
//!             listed            opened              evicted, changed outside
//!  (origin) ---------> released ---------> archived ------------------------> released
//!                                             |  ^ drained
//!  (made in the pool) -----> none             v  |
//!                             `-------------> dirty (follows from the change time)
//! ```
//!
//! Guarantees: a file at the origin appears under its name only when it is complete and verified
//! (by the copier of `forebay-staging`). The pool never drops bytes that the origin doesn't have.
//! If both sides have changed a file, both versions are kept. The pool's consistency doesn't depend
//! on the service, which can be killed at any instant: each change of a state is one transaction of
//! the store, made after the bytes have been copied.
//!
//! On each other node, a [`copier`] moves the bytes of files on its node when the service orders it
//! to ([`orders`]).
//!
//! The service consists of parts in layers ([`service`]). The service runs as threads of the keeper
//! of the pool's first node: one accepts requests ([`serve`]), one writes back changes ([`drain`]),
//! one compares the origin with the pool to find changes by others ([`external_changes`]), one
//! receives the kernel's events about such changes ([`notices`]), one evicts files while the media
//! are nearly full ([`room`]). One thread at a time works on an object ([`object_locks`]).

mod attributes;
mod bytes;
mod copier;
mod copy_progress;
mod directories;
mod drain;
mod error;
mod external_changes;
mod fill;
mod fill_table;
mod links;
mod listing;
mod marks;
mod names;
mod notices;
mod object_locks;
mod object_writer;
mod orders;
mod origin_only;
mod pass;
mod pending_creates;
mod quota;
mod ranges;
mod remote_copiers;
mod room;
mod serve;
mod service;
mod settings;
mod shared;
mod side;
mod status;
mod tree;
mod watches;
mod write_back;
mod writing;

pub use status::{Problem, Status};

use copier::{Copier, Orders};
use forebay_client::origin::{OriginConfig, SERVICE_NODE, SIGN};
use forebay_client::{Pool, PoolError};
use forebay_posix::Fs;
use rustix::io::Errno;
use service::Origin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Maximum time that [`check`] waits for a server.
const CHECKED: Duration = Duration::from_secs(10);

/// Checks that this process can use an origin. Returns whether the origin contains anything.
///
/// # Errors
/// The reason why the origin can't be used, and what the user can do.
pub fn check(config: &OriginConfig) -> std::result::Result<bool, forebay_backing::Error> {
    let side = forebay_backing::open(&config.path, config.timeout().min(CHECKED))?;
    let unusable = |e| forebay_backing::Error::Unusable(side.explain(e));
    let is_empty = side.is_empty(b"").map_err(unusable)?;
    Ok(!is_empty)
}

/// Starts, on the node that has the origin, the service of the pool; on the other nodes, a copier.
/// Returns once the service accepts requests. Does nothing in a pool without an origin.
///
/// # Errors
/// [`PoolError::Invalid`] if the origin can't be opened; [`PoolError::Io`] if the service's socket
/// or a file of its state can't be made or read, or a thread can't be started.
pub fn start(pool: &Arc<Pool>) -> std::result::Result<(), PoolError> {
    let Some(config) = pool.config().origin.clone() else {
        return Ok(());
    };
    let failed = |e| PoolError::io("can't serve the origin of the pool in", pool.dir(), e);
    if !config.is_bucket() {
        let sign = std::fs::write(pool.dir().join(SIGN), &config.path);
        sign.map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    }
    let member = pool.config().member;
    if member.is_some_and(|member| member.node != SERVICE_NODE) {
        if pool.config().has_quota() {
            pool.store().quota().activate();
        }
        if config.is_bucket() {
            return Ok(());
        }
        let copier = pool.clone();
        let thread = std::thread::Builder::new().name("fb-copier".into());
        // In a thread: opening a slow origin may take long.
        let started = thread.spawn(move || start_copier(copier, config));
        started.map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::AGAIN)))?;
        return Ok(());
    }
    let side = forebay_backing::open(&config.path, config.timeout()).map_err(|why| {
        PoolError::Invalid(format!("the origin {} can't be opened: {why}", config.path))
    })?;
    let origin = Origin::load(pool, config, side);
    let origin = origin.map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    let origin = Arc::new(origin);
    origin.listing.prepare_root().map_err(failed)?;
    if pool.config().has_quota() {
        // Usage is counted from here on. No program uses the pool before.
        pool.store().quota().activate();
    }
    origin.orders.stop_copiers();
    serve::start(pool.dir(), &origin).map_err(failed)?;
    type Task = fn(&Origin);
    let threads: [(&str, Task); 5] = [
        ("fb-drain", |origin| origin.drain.drain_for_ever()),
        ("fb-outside", |origin| origin.external.look_for_ever()),
        ("fb-notices", |origin| origin.notices.notice_for_ever()),
        ("fb-room", |origin| origin.room.keep_room()),
        ("fb-quota", |origin| origin.watch_quota()),
    ];
    for (name, work) in threads {
        let origin = origin.clone();
        let thread = std::thread::Builder::new().name(name.into());
        let started = thread.spawn(move || work(&origin));
        started.map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::AGAIN)))?;
    }
    Ok(())
}

/// Starts the copier of a node other than the service's. If the copier can't be started, the
/// service's node copies the files of this node.
fn start_copier(pool: Arc<Pool>, config: OriginConfig) {
    let Ok(side) = forebay_backing::open(&config.path, config.timeout()) else {
        return;
    };
    let copier = Arc::new(Copier {
        fs: Fs::for_origin(pool.clone()),
        pool: pool.clone(),
        config,
        side,
        orders: Orders::default(),
        moved: AtomicU64::new(0),
    });
    let _ = serve::start(pool.dir(), &copier);
}
