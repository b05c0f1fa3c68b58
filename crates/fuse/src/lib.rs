//! The FUSE face: a pool as a mounted file system.
//!
//! For programs that the preloaded library can't reach: static binaries, Go, shells that are
//! running already, file managers. One process serves a mount ([`Mounted::serve`]); it uses the
//! pool as every other process does, through `posix`, so that what it does and what preloaded
//! programs do at the same time are one.
//!
//! The kernel judges permissions (`default_permissions`) by the attributes that it is given, and
//! keeps nothing: names, attributes and data are asked for each time, since others may change them at any
//! moment without telling us. Only mappings go through its page cache ([`cached`]), and
//! only what was changed of its pages is written back ([`fetched`]). What was
//! just looked up stays there for a moment ([`recent`]). What the kernel has to know unasked, it is told ([`notices`]).
//!
//! - [`protocol`]: what is said. [`device`]: mounting. [`face`]: the answers.
//! - [`serve`]: threads. [`crew`]: how many. [`follow`]: on which core. [`waiting`]: for the next request.

#![warn(missing_docs)]

mod cached;
mod crew;
mod device;
mod face;
mod fetched;
mod follow;
mod known;
mod notices;
mod protocol;
mod recent;
mod serve;
mod waiting;

pub use device::{Options, mounted, unmount};

use forebay_client::Pool;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A mount that nobody serves yet.
pub struct Mounted {
    device: OwnedFd,
    pool: Arc<Pool>,
}

impl Mounted {
    /// Mounts a pool at a directory.
    ///
    /// # Errors
    /// As device.rs says: no /dev/fuse, no `fusermount3`, no right to the directory.
    pub fn new(pool: Arc<Pool>, dir: &Path, options: &Options) -> io::Result<Mounted> {
        Ok(Mounted {
            device: device::mount(dir, options)?,
            pool,
        })
    }

    /// Answers the kernel until the mount is taken away. `ready` is called when it is usable.
    ///
    /// # Errors
    /// If the kernel is too old, or threads can't be started.
    pub fn serve(self, ready: impl FnOnce()) -> io::Result<()> {
        serve::run(self.device, self.pool, ready)
    }
}
