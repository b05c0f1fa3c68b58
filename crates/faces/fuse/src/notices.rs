//! Notices: messages to the kernel that it hasn't requested.

use crate::protocol::{self as p, Reply};
use std::os::fd::OwnedFd;

/// Sends notices through a descriptor of the mount.
pub struct Notices(pub OwnedFd);

impl Notices {
    fn send(&self, what: i32, mut message: Reply) {
        let len = (message.len() + p::REPLY_HEAD) as u32;
        let mut bytes = message.finish(0).to_owned();
        bytes[..p::REPLY_HEAD].copy_from_slice(&p::head(len, what, 0));
        // Ignored errors: ENOENT if the kernel caches nothing of the file, others if the mount was
        // removed.
        let _ = rustix::io::write(&self.0, &bytes);
    }

    /// Makes the kernel write back changes that were made through mappings of a file, and forget
    /// the file's pages. Waits for requests of the kernel, which other threads have to answer.
    pub fn forget_pages(&self, node: u64) {
        let mut message = Reply::new();
        message.u64(node).u64(0).u64(0);
        self.send(p::NOTIFY_INVAL_INODE, message);
    }

    /// Ends the validity of a name: the kernel looks the name up again before it uses it. Mounts on
    /// the name stay. Waits for requests that create, look up or remove names in the directory.
    pub fn expire_name(&self, dir: u64, name: &[u8]) {
        let mut message = Reply::new();
        message.u64(dir).u32(name.len() as u32).u32(p::EXPIRE_ONLY);
        message.put(name).put(&[0]);
        self.send(p::NOTIFY_INVAL_ENTRY, message);
    }

    /// Gives the kernel bytes of a file, and makes it assume that the file reaches at least to
    /// their end. The kernel accepts both, whereas it may discard the size in a reply. Waits as
    /// `forget_pages` does.
    pub fn store(&self, node: u64, at: u64, bytes: &[u8]) {
        let mut message = Reply::new();
        message.u64(node).u64(at).u32(bytes.len() as u32).u32(0);
        message.put(bytes);
        self.send(p::NOTIFY_STORE, message);
    }
}
