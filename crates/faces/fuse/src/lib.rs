//! The FUSE face: a pool as a mounted file system.
//!
//! For programs that the preloaded library can't reach: static binaries, Go, shells that are
//! already running, file managers. One process serves a mount ([`Mounted::serve`]). The process
//! uses the pool like any other, through `posix`, so programs on the mount and preloaded programs
//! see each other's changes.
//!
//! The kernel checks permissions (`default_permissions`) by the attributes that it gets. The kernel
//! caches names only while no other process uses the pool ([`keeping`]). It caches neither attributes
//! nor data, since programs outside the mount may change them without notice to it. Only mappings use
//! its page cache ([`cached`]), and only changed bytes of its pages are written back
//! ([`fetched`]). Files that were just looked up stay open for a moment ([`recent`]). [`notices`]
//! are messages that the kernel hasn't requested. [`directories`] holds the last attributes of
//! removed directories.
//!
//! - [`protocol`]: messages. [`device`]: mounting. [`face`]: answers to requests.
//! - [`serve`]: the threads that receive requests. [`keeping`]: which names the kernel may cache.
//!   [`reserve`]: memory for when the system has none.

#![warn(missing_docs)]

mod cached;
mod counted;
mod device;
mod directories;
mod face;
mod fetched;
mod keeping;
mod known;
mod notices;
mod protocol;
mod recent;
mod reserve;
mod serve;

pub use device::{Options, mount_at, mounted, remount, unmount};
pub use reserve::Allocator;

use forebay_client::Pool;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mount that isn't served yet.
pub struct Mounted(Arc<serve::Server>);

/// A handle that ends the service of a mount, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<serve::Server>);

impl Mounted {
    /// Mounts a pool at a directory.
    ///
    /// # Errors
    /// If /dev/fuse, `fusermount3`, or the right to use the directory is missing; if the kernel is
    /// too old.
    pub fn new(pool: Arc<Pool>, dir: &Path, options: &Options) -> io::Result<Mounted> {
        serve::greeted(device::mount(dir, options)?, pool).map(Mounted)
    }

    /// Returns a handle that can end the service.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.0.clone())
    }

    /// Answers the kernel until the mount is removed, then closes the files that were opened
    /// through it. Calls `ready` when the mount is usable.
    ///
    /// # Errors
    /// If threads can't be started.
    pub fn serve(self, ready: impl FnOnce()) -> io::Result<()> {
        self.0.run(ready)
    }
}

impl Stopper {
    /// Stops answering, and closes the files that were opened through the mount. Returns false if a
    /// request is still unanswered after 2 s or a file can't be closed; the process must then exit
    /// without closing the files itself.
    pub fn stop(&self) -> bool {
        self.0.stop()
    }
}
