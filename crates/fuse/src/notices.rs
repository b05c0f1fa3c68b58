//! Notices: messages to the kernel that it hasn't asked for.

use crate::protocol::{self as p, Reply};
use std::os::fd::OwnedFd;

/// The way to the kernel, by a descriptor of the mount.
pub struct Notices(pub OwnedFd);

impl Notices {
    fn send(&self, what: i32, mut message: Reply) {
        let len = (message.len() + p::REPLY_HEAD) as u32;
        let mut bytes = message.finish(0).to_owned();
        bytes[..p::REPLY_HEAD].copy_from_slice(&p::head(len, what, 0));
        // ENOENT: it has nothing of the file. Anything else: the mount is gone.
        let _ = rustix::io::write(&self.0, &bytes);
    }

    /// What the kernel has of a file in its page cache is old: it writes back what was changed
    /// through mappings, and forgets it all. Waits for requests of the kernel, which others have to
    /// answer.
    pub fn forget_pages(&self, node: u64) {
        let mut message = Reply::new();
        message.u64(node).u64(0).u64(0);
        self.send(p::NOTIFY_INVAL_INODE, message);
    }

    /// What the kernel has of an object's attributes is old, and so are those in answers to
    /// requests that have begun. Waits only where the inode is being made or removed.
    pub fn forget_attributes(&self, node: u64) {
        let mut message = Reply::new();
        // A negative offset: no pages.
        message.u64(node).u64(u64::MAX).u64(0);
        self.send(p::NOTIFY_INVAL_INODE, message);
    }

    /// All names that the kernel has are old, and so are those in answers to requests that have
    /// begun.
    pub fn forget_names(&self) {
        self.send(p::NOTIFY_INC_EPOCH, Reply::new());
    }

    /// A file has these bytes there, and so reaches at least so far: the kernel takes both for true
    /// at once, unlike the size in an answer, which it may throw away. Waits as `forget_pages`
    /// does.
    pub fn store(&self, node: u64, at: u64, bytes: &[u8]) {
        let mut message = Reply::new();
        message.u64(node).u64(at).u32(bytes.len() as u32).u32(0);
        message.put(bytes);
        self.send(p::NOTIFY_STORE, message);
    }
}
