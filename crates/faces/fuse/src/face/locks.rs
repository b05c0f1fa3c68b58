//! Answers requests for locks. Locks of flock(2) belong to the handle. Range locks belong to a
//! process or a descriptor, to which the kernel gives an owner number. For each owner and file, an
//! open file description of the mount owns the locks in the pool; closing it releases them.

use super::{Call, Wait, object};
use crate::protocol::{self as p, Args, Reply};
use forebay_posix::Fs;
use forebay_posix::controls::ASIDE;
use forebay_runtime::threads::lock;
use forebay_store::Entry;
use forebay_store::locks::{LockType, Owner, TO_THE_END, interruptible};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Mutex, MutexGuard};

/// The descriptions that own locks, by owner number and node number.
#[derive(Default)]
pub struct Locks(Mutex<HashMap<(u64, u64), Arc<Holder>>>);

/// A description that owns locks. Dropping it closes the description, which releases the locks.
struct Holder {
    fs: Arc<Fs>,
    open: u32,
    /// The handle through which the first lock was requested.
    handle: u32,
    pid: u32,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.fs.store().objects().open_release(self.open);
    }
}

impl Locks {
    fn all(&self) -> MutexGuard<'_, HashMap<(u64, u64), Arc<Holder>>> {
        lock(&self.0)
    }

    /// Releases an owner's locks of a file, when a process has closed a descriptor of it.
    pub fn drop_owner(&self, owner: u64, node: u64) {
        let mut all = self.all();
        if !all.is_empty() {
            let gone = all.remove(&(owner, node));
            drop(all);
            drop(gone);
        }
    }

    /// Releases all locks.
    pub fn let_go(&self) {
        let all = std::mem::take(&mut *self.all());
        drop(all);
    }

    /// Releases the locks that belong to a descriptor, when its handle was closed. (Locks of
    /// processes were released before.)
    pub fn drop_handle(&self, handle: u32) {
        let mut all = self.all();
        if !all.is_empty() {
            let gone: Vec<_> = all.extract_if(|_, h| h.handle == handle).collect();
            drop(all);
            drop(gone);
        }
    }
}

/// A request for a lock.
struct LockRequest {
    handle: u32,
    owner: u64,
    range: (u64, u64),
    want: LockType,
    pid: u32,
    flock: bool,
}

fn lock_request(a: &mut Args<'_>) -> Result<LockRequest> {
    let (handle, owner) = (super::handle(a)?, a.u64()?);
    let range = (a.u64()?, a.u64()?.min(TO_THE_END));
    let want = match a.u32()? as i32 {
        libc::F_RDLCK => LockType::Shared,
        libc::F_WRLCK => LockType::Exclusive,
        libc::F_UNLCK => LockType::Unlocked,
        _ => return Err(Errno::INVAL),
    };
    Ok(LockRequest {
        handle,
        owner,
        range,
        want,
        pid: a.u32()?,
        flock: a.u32()? & p::LK_FLOCK != 0,
    })
}

/// Takes a lock if it is free; otherwise returns a function that waits for it. Usually the lock is
/// free, and no thread has to wait.
fn waiting(lock: impl Fn(bool) -> Result<()> + Send + 'static) -> Result<Option<Wait>> {
    match lock(false) {
        Err(Errno::AGAIN | ASIDE) => Ok(Some(Box::new(move |cancel| {
            interruptible(cancel, || lock(true))
        }))),
        done => done.map(|()| None),
    }
}

impl Call<'_> {
    /// Returns the description that owns this owner's locks of the file; opens one if there is
    /// none.
    fn holder(&self, node: u64, request: &LockRequest) -> Result<Arc<Holder>> {
        let known = self.locks.all().get(&(request.owner, node)).cloned();
        if let Some(holder) = known {
            return Ok(holder);
        }
        let fs = self.own.clone();
        let kind = fs
            .store()
            .objects()
            .open_file(request.handle)
            .kind
            .load(Relaxed);
        let id = object(node);
        let flags = match kind {
            libc::S_IFDIR => libc::O_RDONLY,
            _ => libc::O_RDWR,
        };
        // Opened without the mutex, so that requests for other files needn't wait. Not counted as
        // an open by a program: the program already has the file open.
        let open = fs.keep_object(Entry { id, kind }, flags)?;
        let new = Arc::new(Holder {
            fs,
            open,
            handle: request.handle,
            pid: request.pid,
        });
        // Another thread of the process may have added a holder meanwhile. Then `new` is dropped,
        // and closed, after the mutex is released.
        let holder = (self.locks.all())
            .entry((request.owner, node))
            .or_insert_with(|| new.clone())
            .clone();
        Ok(holder)
    }

    pub(super) fn lock_at_once(&self, a: &mut Args<'_>) -> Result<()> {
        let request = lock_request(a)?;
        let cluster = self.fs().cluster();
        if request.flock {
            return cluster.locks().flock(request.handle, request.want, false);
        }
        if request.want == LockType::Unlocked && request.range == (0, TO_THE_END) {
            self.locks.drop_owner(request.owner, self.head.node);
            return Ok(());
        }
        let holder = self.holder(self.head.node, &request)?;
        cluster
            .locks()
            .lock_range(holder.open, true, request.want, request.range, false)
    }

    /// Handles F_SETLKW and flock(2): returns a function that waits, if the lock isn't free.
    pub(super) fn lock_waiting(&self, a: &mut Args<'_>) -> Result<Option<Wait>> {
        let request = lock_request(a)?;
        let (fs, want) = (self.own.clone(), request.want);
        if request.flock {
            return waiting(move |waits| fs.cluster().locks().flock(request.handle, want, waits));
        }
        let holder = self.holder(self.head.node, &request)?;
        waiting(move |waits| {
            fs.cluster()
                .locks()
                .lock_range(holder.open, true, want, request.range, waits)
        })
    }

    /// Handles F_GETLK.
    pub(super) fn lock_in_the_way(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let request = lock_request(a)?;
        let holder = self.holder(self.head.node, &request)?;
        let cluster = self.fs().cluster();
        let found =
            cluster
                .locks()
                .range_in_the_way(holder.open, true, request.want, request.range)?;
        let Some(other) = found else {
            reply.u64(0).u64(0).u32(libc::F_UNLCK as u32).u32(0);
            return Ok(());
        };
        let kind = match other.has {
            LockType::Shared => libc::F_RDLCK,
            _ => libc::F_WRLCK,
        };
        // An owner that uses another mount or node has no process id here.
        let pid = match other.owner.pid() {
            Some(pid) if other.owner.node == cluster.store().peers().node() => pid,
            Some(_) => u32::MAX,
            None => self.pid_behind(other.owner),
        };
        reply
            .u64(other.start)
            .u64(other.end)
            .u32(kind as u32)
            .u32(pid);
        Ok(())
    }

    /// Returns the process for which this mount holds the locks of `owner`; -1 if there is none,
    /// since a descriptor's locks belong to no process.
    fn pid_behind(&self, owner: Owner) -> u32 {
        let store = self.fs().store();
        let all = self.locks.all();
        let found = all
            .values()
            .find(|h| store.locks().description_owns(h.open, owner));
        found.map_or(u32::MAX, |h| h.pid)
    }
}
