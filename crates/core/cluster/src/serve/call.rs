//! The context of another node's request, and the checks that handlers share.
//!
//! A message may contain any values. A handler checks each one before use: EPROTO for values that
//! no node sends, EREMCHG if another node is the home.

use super::Server;
use crate::Cluster;
use crate::peers::messages::List;
use forebay_placement::NodeId;
use forebay_store::{ObjectId, Slot, Store};
use rustix::io::Errno;

/// A request that is carried out: what its handler needs besides the arguments.
pub(super) struct Call<'a> {
    /// The daemon's state about other nodes.
    pub(super) server: &'a Server,
    /// The view of the pool: [`Cluster::nonblocking`] if the request's class requires that.
    pub(super) cluster: Cluster<'a>,
    /// The requesting node.
    pub(super) from: NodeId,
}

impl Call<'_> {
    /// Returns this node's store.
    pub(super) fn store(&self) -> &Store {
        self.cluster.store()
    }

    /// Checks that the object's home is this node. EREMCHG if another node is.
    pub(super) fn home(&self, id: ObjectId) -> Result<ObjectId, Errno> {
        home(&self.cluster, id)
    }

    /// Checks that the entry's home is this node. EREMCHG if another node is; EPROTO if `name`
    /// isn't valid.
    pub(super) fn home_of_entry(&self, dir: ObjectId, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        match self.cluster.remote(Slot::of_entry(dir, name)) {
            None => Ok(()),
            Some(_) => Err(Errno::REMCHG),
        }
    }

    /// Checks that this node may have a part of the file. EPROTO for an object without parts;
    /// EREMCHG if this node is the home, which has no part.
    pub(super) fn part_here(&self, id: ObjectId) -> Result<ObjectId, Errno> {
        if id.is_part() {
            return Err(Errno::PROTO);
        }
        match self.home(id) {
            Ok(_) => Err(Errno::REMCHG),
            Err(_) => Ok(id),
        }
    }

    /// Calls `f` with the live entry of the file `id`. This node must be the file's home.
    pub(super) fn with_file<T>(
        &self,
        id: ObjectId,
        f: impl FnOnce(u32) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let acquired = self.cluster.opens().live_acquire_held(self.home(id)?);
        let (live, held) = acquired.map_err(|e| match e {
            // The requesting node has the file open, but the object was deleted here after a node
            // or daemon died.
            Errno::NOENT => Errno::STALE,
            e => e,
        })?;
        let result = f(live);
        drop(held);
        self.store().objects().live_release(live).and(result)
    }

    /// As [`Call::with_file`], for a change that needs room. If this node has no room, marks the
    /// file as spilled and returns EXFULL.
    pub(super) fn with_file_in_room<T>(
        &self,
        id: ObjectId,
        f: impl FnOnce(u32) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.with_file(id, |live| match f(live) {
            Err(Errno::NOSPC) if self.store().parts().spill_here(live)? => {
                Err(forebay_store::stripe_units::CHANGED)
            }
            done => done,
        })
    }
}

/// Encodes the results for several files as one reply.
pub(super) fn each<T>(results: impl Iterator<Item = Result<T, Errno>>) -> List<Result<T, u32>> {
    let reply = results.map(|one| one.map_err(|e| e.raw_os_error() as u32));
    List(reply.collect())
}

/// Checks that the object's home is this node. EREMCHG if another node is.
pub(super) fn home(cluster: &Cluster<'_>, id: ObjectId) -> Result<ObjectId, Errno> {
    match cluster.remote_home(id) {
        // No node sends requests about a part or a view.
        _ if id.is_part() || id.is_view() => Err(Errno::PROTO),
        None => Ok(id),
        Some(_) => Err(Errno::REMCHG),
    }
}

/// Returns the controls `word` if they can be declared for a file; else EPROTO.
pub(super) fn checked(word: u64) -> Result<u64, Errno> {
    forebay_store::controls::checked(word).ok_or(Errno::PROTO)
}

pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        // A name isn't a path: `..` or a slash would lead out of the directory to which the file is
        // staged.
        b"." | b".." => Err(Errno::PROTO),
        _ if name.contains(&b'/') => Err(Errno::PROTO),
        _ if (1..=forebay_store::NAME_MAX).contains(&name.len()) => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

pub(super) fn check_size(size: u64) -> Result<(), Errno> {
    if size <= forebay_store::MAX_SIZE {
        Ok(())
    } else {
        Err(Errno::FBIG)
    }
}

/// Calls `read` with a buffer of `len` bytes, and returns the bytes that `read` has written there.
/// `read` returns their number.
///
/// # Safety
/// `read` writes at most `len` bytes, and as many as it returns.
pub(super) unsafe fn bytes_read(
    len: usize,
    read: impl FnOnce(*mut u8) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    let mut bytes: Vec<u8> = Vec::with_capacity(len);
    let n = read(bytes.as_mut_ptr())?;
    assert!(n <= len, "{n} bytes were read into {len}");
    // SAFETY: `read` has written `n` bytes; the vector has room for `len`.
    unsafe { bytes.set_len(n) };
    Ok(bytes)
}
