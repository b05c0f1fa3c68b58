//! A call of another node, and the checks that handlers share.
//!
//! A message may contain any values. A handler checks each one before use: EPROTO for values that
//! no node sends, EREMCHG if another node is the home.

use crate::Cluster;
use crate::peers::messages::List;
use forebay_placement::NodeId;
use forebay_store::{ObjectId, Slot};
use rustix::io::Errno;

/// The context that a handler needs besides the arguments of its request.
pub(super) struct Call<'a> {
    /// The pool, as the request's class sees it: [`Cluster::nonblocking`], or not.
    pub(super) store: Cluster<'a>,
    /// The requesting node.
    pub(super) from: NodeId,
}

/// The results of several, as one reply.
pub(super) fn each<T>(results: impl Iterator<Item = Result<T, Errno>>) -> List<Result<T, u32>> {
    let reply = results.map(|one| one.map_err(|e| e.raw_os_error() as u32));
    List(reply.collect())
}

/// EREMCHG if the object lies on another node.
pub(super) fn home(store: &Cluster<'_>, id: ObjectId) -> Result<ObjectId, Errno> {
    match store.remote_home(id) {
        // No node asks for such an object.
        _ if id.is_part() || id.is_view() => Err(Errno::PROTO),
        None => Ok(id),
        Some(_) => Err(Errno::REMCHG),
    }
}

/// EREMCHG if the entry lies on another node, EPROTO if it is no name.
pub(super) fn home_of_entry(store: &Cluster<'_>, dir: ObjectId, name: &[u8]) -> Result<(), Errno> {
    check_name(name)?;
    match store.remote(Slot::of_entry(dir, name)) {
        None => Ok(()),
        Some(_) => Err(Errno::REMCHG),
    }
}

/// EPROTO for an object that has no parts; EREMCHG if this node is the home, which has none either.
pub(super) fn part_here(store: &Cluster<'_>, id: ObjectId) -> Result<ObjectId, Errno> {
    if id.is_part() {
        return Err(Errno::PROTO);
    }
    match home(store, id) {
        Ok(_) => Err(Errno::REMCHG),
        Err(_) => Ok(id),
    }
}

/// The word, if it can be declared for a file.
pub(super) fn checked(word: u64) -> Result<u64, Errno> {
    forebay_store::controls::checked(word).ok_or(Errno::PROTO)
}

pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        // Not a path: a name that leads elsewhere would do so wherever the file is staged to.
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

/// Calls `f` with the live entry of a file whose home this node is.
pub(super) fn with_file<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let acquired = store.live_acquire_held(home(store, id)?);
    let (live, held) = acquired.map_err(|e| match e {
        // The asking node has the file open; this node has lost it, by a death.
        Errno::NOENT => Errno::STALE,
        e => e,
    })?;
    let result = f(live);
    drop(held);
    store.objects().live_release(live).and(result)
}

/// As [`with_file`], for a change that needs room. EXFULL: there is none, and the file may grow on
/// other nodes.
pub(super) fn with_file_in_room<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T, Errno>,
) -> Result<T, Errno> {
    with_file(store, id, |live| match f(live) {
        Err(Errno::NOSPC) if store.parts().spill_here(live)? => {
            Err(forebay_store::stripe_units::CHANGED)
        }
        done => done,
    })
}

/// A buffer of `len` bytes that `read` fills; `read` returns how many bytes it has written.
///
/// # Safety
/// `read` writes no more than `len` bytes, and as many as it says.
pub(super) unsafe fn bytes_read(
    len: usize,
    read: impl FnOnce(*mut u8) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    let mut bytes: Vec<u8> = Vec::with_capacity(len);
    let n = read(bytes.as_mut_ptr())?;
    assert!(n <= len, "{n} bytes were read into {len}");
    // SAFETY: this many bytes were written; the vector has room for `len`.
    unsafe { bytes.set_len(n) };
    Ok(bytes)
}
