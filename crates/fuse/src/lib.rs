//! The FUSE face: a pool as a mounted file system.
//!
//! For programs that the preloaded library can't reach: static binaries, Go, shells that are
//! running already, file managers. One process serves a mount ([`Mounted::serve`]); it uses the
//! pool as every other process does, through `posix`, so that what it does and what preloaded
//! programs do at the same time are one.
//!
//! The kernel judges permissions (`default_permissions`) by the attributes that it is given. It
//! keeps names and attributes only while no other process uses the pool ([`keeping`]), and no data:
//! else it asks each time, since others may change them at any moment without telling us. Only
//! mappings go through its page cache ([`cached`]), and only what was changed of its pages is
//! written back ([`fetched`]). What was just looked up stays there for a moment ([`recent`]). What
//! the kernel has to know unasked, it is told ([`notices`]).
//!
//! - [`protocol`]: what is said. [`device`]: mounting. [`face`]: the answers.
//! - [`serve`]: the threads that take requests.
//!   [`keeping`]: what the kernel keeps. [`reserve`]: memory when there is none.

#![warn(missing_docs)]

mod cached;
mod device;
mod face;
mod fetched;
mod keeping;
mod known;
mod notices;
mod protocol;
mod recent;
mod reserve;
mod serve;

pub use device::{Options, mounted, unmount};
pub use reserve::Allocator;

use forebay_client::Pool;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mount that nobody serves yet.
pub struct Mounted(Arc<serve::Server>);

/// What ends the service of a mount from elsewhere.
#[derive(Clone)]
pub struct Stopper(Arc<serve::Server>);

impl Mounted {
    /// Mounts a pool at a directory.
    ///
    /// # Errors
    /// As device.rs says: no /dev/fuse, no `fusermount3`, no right to the directory. If the kernel
    /// is too old.
    pub fn new(pool: Arc<Pool>, dir: &Path, options: &Options) -> io::Result<Mounted> {
        serve::greeted(device::mount(dir, options)?, pool).map(Mounted)
    }

    /// Its end.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.0.clone())
    }

    /// Answers the kernel until the mount is taken away, and closes what was open through it.
    /// `ready` is called when it is usable.
    ///
    /// # Errors
    /// If threads can't be started.
    pub fn serve(self, ready: impl FnOnce()) -> io::Result<()> {
        self.0.run(ready)
    }
}

impl Stopper {
    /// Has nothing more answered, and closes what was open through the mount. False: some still
    /// waited for after 2 s; then this process is to end as if it were killed.
    pub fn stop(&self) -> bool {
        self.0.stop()
    }
}
