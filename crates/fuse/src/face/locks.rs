//! Locks: flock(2)'s belong to the handle. Those on ranges belong to a process or a descriptor,
//! which the kernel gives a number; for each of them and each file we keep a description of our
//! own, to which they belong in the pool. They go with it.

use super::{Call, Wait, object};
use crate::protocol::{self as p, Args, Head, Reply};
use forebay_posix::controls::ASIDE;
use forebay_posix::{Errno, Fs, ObjectId};
use forebay_store::Entry;
use forebay_store::controls::keeping_for;
use forebay_store::locks::{LockType, Owner, TO_THE_END, interruptible};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By owner and file: what holds their locks.
#[derive(Default)]
pub struct Locks(Mutex<HashMap<(u64, u64), Arc<Holder>>>);

/// A description to which locks belong. Closed, and they given up, when it is dropped.
struct Holder {
    fs: Arc<Fs>,
    open: u32,
    /// The handle by which the first of them was asked for.
    handle: u32,
    pid: u32,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.fs.store().open_release(self.open);
    }
}

impl Locks {
    fn all(&self) -> MutexGuard<'_, HashMap<(u64, u64), Arc<Holder>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process has closed a descriptor of the file.
    pub fn drop_owner(&self, owner: u64, node: u64) {
        let mut all = self.all();
        if !all.is_empty() {
            let gone = all.remove(&(owner, node));
            drop(all);
            drop(gone);
        }
    }

    /// All of them go.
    pub fn let_go(&self) {
        let all = std::mem::take(&mut *self.all());
        drop(all);
    }

    /// Nobody has this handle any more: what a descriptor owned goes (a process's went before).
    pub fn drop_handle(&self, handle: u32) {
        let mut all = self.all();
        if !all.is_empty() {
            let gone: Vec<_> = all.extract_if(|_, h| h.handle == handle).collect();
            drop(all);
            drop(gone);
        }
    }
}

/// The requested lock.
struct Asked {
    handle: u32,
    owner: u64,
    range: (u64, u64),
    want: LockType,
    pid: u32,
    flock: bool,
}

fn asked(a: &mut Args<'_>) -> Result<Asked, Errno> {
    let (handle, owner) = (super::handle(a)?, a.u64()?);
    let range = (a.u64()?, a.u64()?.min(TO_THE_END));
    let want = match a.u32()? as i32 {
        libc::F_RDLCK => LockType::Shared,
        libc::F_WRLCK => LockType::Exclusive,
        libc::F_UNLCK => LockType::Unlocked,
        _ => return Err(Errno::INVAL),
    };
    Ok(Asked {
        handle,
        owner,
        range,
        want,
        pid: a.u32()?,
        flock: a.u32()? & p::LK_FLOCK != 0,
    })
}

/// Takes a lock, or gives what waits for it. Most are free: then no thread is needed for them.
fn waiting(
    lock: impl Fn(bool) -> Result<(), Errno> + Send + 'static,
) -> Result<Option<Wait>, Errno> {
    match lock(false) {
        Err(Errno::AGAIN | ASIDE) => Ok(Some(Box::new(move |cancel| {
            interruptible(cancel, || lock(true))
        }))),
        done => done.map(|()| None),
    }
}

impl Call<'_> {
    /// What holds the locks that `asked` is about.
    fn holder(&self, node: u64, asked: &Asked) -> Result<Arc<Holder>, Errno> {
        let known = self.locks.all().get(&(asked.owner, node)).cloned();
        if let Some(holder) = known {
            return Ok(holder);
        }
        let fs = self.own.clone();
        let kind = fs.store().open_file(asked.handle).kind.load(Relaxed);
        let id = object(node);
        let flags = match kind {
            libc::S_IFDIR => libc::O_RDONLY,
            _ => libc::O_RDWR,
        };
        // Not under the mutex: others needn't wait for this file. By this nobody uses it: the
        // program has it open besides.
        let open = keeping_for(fs.store().node(), || {
            fs.open_object(Entry { id, kind }, flags, false, ObjectId::ROOT, b"")
        })?;
        let new = Arc::new(Holder {
            fs,
            open,
            handle: asked.handle,
            pid: asked.pid,
        });
        // Another thread of the process may have been faster; then this one is closed after the
        // mutex.
        let holder = (self.locks.all())
            .entry((asked.owner, node))
            .or_insert_with(|| new.clone())
            .clone();
        Ok(holder)
    }

    pub(super) fn lock_at_once(&self, head: &Head, a: &mut Args<'_>) -> Result<(), Errno> {
        let asked = asked(a)?;
        let cluster = self.fs().cluster();
        if asked.flock {
            return cluster.flock(asked.handle, asked.want, false);
        }
        if asked.want == LockType::Unlocked && asked.range == (0, TO_THE_END) {
            self.locks.drop_owner(asked.owner, head.node);
            return Ok(());
        }
        let holder = self.holder(head.node, &asked)?;
        cluster.lock_range(holder.open, true, asked.want, asked.range, false)
    }

    /// F_SETLKW, flock(2): what waits for it, if it can't be had at once.
    pub(super) fn lock_waiting(
        &self,
        head: &Head,
        a: &mut Args<'_>,
    ) -> Result<Option<Wait>, Errno> {
        let asked = asked(a)?;
        let (fs, want) = (self.own.clone(), asked.want);
        if asked.flock {
            return waiting(move |waits| fs.cluster().flock(asked.handle, want, waits));
        }
        let holder = self.holder(head.node, &asked)?;
        waiting(move |waits| {
            fs.cluster()
                .lock_range(holder.open, true, want, asked.range, waits)
        })
    }

    /// F_GETLK.
    pub(super) fn lock_in_the_way(
        &self,
        head: &Head,
        a: &mut Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let asked = asked(a)?;
        let holder = self.holder(head.node, &asked)?;
        let cluster = self.fs().cluster();
        let found = cluster.range_in_the_way(holder.open, true, asked.want, asked.range)?;
        let Some(other) = found else {
            reply.u64(0).u64(0).u32(libc::F_UNLCK as u32).u32(0);
            return Ok(());
        };
        let kind = match other.has {
            LockType::Shared => libc::F_RDLCK,
            _ => libc::F_WRLCK,
        };
        // That of another mount or node: it has no number here.
        let pid = match other.owner.pid() {
            Some(pid) if other.owner.node == cluster.node() => pid,
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

    /// The process for which we hold something; -1 if it isn't ours, as of descriptors.
    fn pid_behind(&self, owner: Owner) -> u32 {
        let store = self.fs().store();
        let all = self.locks.all();
        let found = all.values().find(|h| store.description_owns(h.open, owner));
        found.map_or(u32::MAX, |h| h.pid)
    }
}
