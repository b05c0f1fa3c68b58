//! The table of locks on files: a hash table whose chains each have a lock.
//!
//! A change of an owner's locks is made in steps. At each moment the owner has at least the locks
//! that it has both before and after the change, and the chain is intact. So a process that dies
//! during a change leaves nothing that must be repaired.

use super::{DESCRIPTION, InTheWay, LockType, Owner, Request, Sort, stamp};
use crate::control_region::{
    FileLock, LockChain, MAX_FILE_LOCKS, MAX_OPEN, MAX_PROCESSES, lock_kind,
};
use crate::declared::User;
use crate::process::Critical;
use crate::quiescence::Section;
use crate::views::LockTable;
use crate::{NodeId, ObjectId, Store};
use forebay_runtime::atomics::{Ordering::*, futex};
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::collections::HashSet;

/// The owner's number in a fence: no process or description has it.
const NOBODY: u64 = u64::MAX;

/// The locks of one object. While this value lives, their chain is locked.
pub struct Locks<'a> {
    store: &'a Store,
    chain: &'a LockChain,
    object: ObjectId,
    /// A lock was released or reduced: the waiting processes must be woken.
    freed: Cell<bool>,
    _critical: Critical,
    _section: Option<Section<'a>>,
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        self.chain.lock.release();
        if self.freed.get() && self.chain.waiters.load(Acquire) != 0 {
            self.chain.changes.fetch_add(1, AcqRel);
            futex::wake(&self.chain.changes, u32::MAX);
        }
    }
}

impl FileLock {
    fn owner(&self) -> Owner {
        Owner {
            node: NodeId(self.node.load(Relaxed)),
            number: self.owner.load(Relaxed),
            slot: self.slot.load(Relaxed),
        }
    }

    fn range(&self) -> (u64, u64) {
        (self.start.load(Relaxed), self.end.load(Relaxed))
    }

    /// Whether the entry isn't a lock, but a note or a fence.
    fn is_note(&self) -> bool {
        self.kind.load(Relaxed) & (lock_kind::REMOTE | lock_kind::FENCE) != 0
    }

    fn is_fence(&self) -> bool {
        self.kind.load(Relaxed) & lock_kind::FENCE != 0
    }

    /// Whether the entry is a lock that a program has set and relies on.
    fn is_lock(&self) -> bool {
        !self.is_note() && Sort::of_kind(self.kind.load(Relaxed)) != Sort::Use
    }

    /// Turns the lock into a fence against its owner's node ([`lock_kind::FENCE`]). The kind is
    /// stored first: from then on, the entry conflicts with no lock.
    fn make_fence(&self) {
        self.kind.store(lock_kind::FENCE, Release);
        self.owner.store(NOBODY, Relaxed);
        self.slot.store(0, Relaxed);
        self.start.store(0, Relaxed);
        self.end.store(0, Relaxed);
        self.stamp.store(stamp(), Release);
    }

    fn in_the_way(&self) -> InTheWay {
        let (start, end) = self.range();
        InTheWay {
            owner: self.owner(),
            has: LockType::of_kind(self.kind.load(Relaxed)),
            start,
            end,
        }
    }

    /// Returns the user, if the entry is a use.
    fn user(&self) -> Option<User> {
        let is_use = Sort::of_kind(self.kind.load(Relaxed)) == Sort::Use && !self.is_note();
        is_use.then(|| User {
            node: self.owner().node.0,
            party: self.range().0,
        })
    }

    /// Whether the entry is a lock of the owner and sort of `r`.
    fn is_of(&self, r: &Request) -> bool {
        let sort = Sort::of_kind(self.kind.load(Relaxed));
        !self.is_note() && sort == r.sort && self.owner() == r.owner
    }

    fn is_in_the_way(&self, r: &Request) -> bool {
        let kind = self.kind.load(Relaxed);
        let (start, end) = self.range();
        let meets = match r.sort {
            Sort::Use => self.owner().node != r.owner.node || start != r.start,
            _ => start <= r.end && r.start <= end && self.owner() != r.owner,
        };
        meets
            && !self.is_note()
            && Sort::of_kind(kind) == r.sort
            && (kind & lock_kind::EXCLUSIVE != 0 || r.want == LockType::Exclusive)
            && r.want != LockType::Unlocked
    }
}

impl<'a> Locks<'a> {
    fn each(&self) -> impl Iterator<Item = (u32, &'a FileLock)> {
        let (store, object) = (self.store, self.object.0);
        let mut next = self.chain.head.load(Acquire);
        std::iter::from_fn(move || {
            let index = next.checked_sub(1)?;
            let lock = store.control.file_lock(index);
            next = lock.next.load(Acquire);
            Some((index, lock))
        })
        .filter(move |(_, lock)| lock.object.load(Relaxed) == object)
    }

    /// Removes the object's entries for which `keep` returns false. Returns whether there were any.
    fn retain(&self, mut keep: impl FnMut(u32, &FileLock) -> bool) -> bool {
        let mut place = &self.chain.head;
        let mut some = false;
        while let Some(index) = place.load(Acquire).checked_sub(1) {
            let lock = self.store.control.file_lock(index);
            if lock.object.load(Relaxed) != self.object.0 || keep(index, lock) {
                place = &lock.next;
                continue;
            }
            place.store(lock.next.load(Acquire), Release);
            lock.object.store(0, Release);
            self.store
                .control
                .header()
                .free_locks
                .push(index, &lock.next);
            some = true;
        }
        self.freed.set(self.freed.get() || some);
        some
    }

    /// Takes an unused entry of the lock table. ENOLCK if there is none.
    fn place(&self) -> Result<u32> {
        match self.store.control.take_lock() {
            Ok(place) => place.ok_or(Errno::NOLCK),
            // ENOLCK is the error of POSIX for a lock that can't be granted for lack of resources.
            Err(Errno::NOSPC) => Err(Errno::NOLCK),
            Err(e) => Err(e),
        }
    }

    fn link(&self, index: u32, owner: Owner, kind: u32, (start, end): (u64, u64)) {
        let lock = self.store.control.file_lock(index);
        assert!(
            lock.object.load(Relaxed) == 0,
            "a free place has no lock: {index}"
        );
        assert!(kind != 0, "a lock has a kind");
        lock.start.store(start, Relaxed);
        lock.end.store(end, Relaxed);
        lock.owner.store(owner.number, Relaxed);
        lock.node.store(owner.node.0, Relaxed);
        lock.slot.store(owner.slot, Relaxed);
        lock.kind.store(kind, Relaxed);
        lock.stamp.store(stamp(), Relaxed);
        lock.object.store(self.object.0, Relaxed);
        lock.next.store(self.chain.head.load(Relaxed), Relaxed);
        self.chain.head.store(index + 1, Release);
    }

    /// Returns the conflicting lock; of several, the lock with the lowest start, since programs
    /// list all locks of a file by repeating the request after the end of each.
    pub fn conflict(&self, r: &Request) -> Option<InTheWay> {
        self.each()
            .filter(|(_, lock)| lock.is_in_the_way(r))
            .map(|(_, lock)| lock.in_the_way())
            .min_by_key(|found| found.start)
    }

    /// Returns all users of the object.
    pub fn users(&self) -> Vec<User> {
        let uses = self.each().filter_map(|(_, lock)| lock.user());
        uses.collect()
    }

    /// Records a use of the object, in place of the owner's former use. If `excludes` is true for
    /// another use, records it only with `beside`. Returns the conflicting use, if any.
    pub fn set_use(
        &self,
        r: &Request,
        excludes: impl Fn(&User) -> bool,
        beside: bool,
    ) -> Result<Option<InTheWay>> {
        self.retain(|_, lock| !lock.is_of(r));
        let other = self
            .each()
            .find(|(_, lock)| lock.user().is_some_and(|user| excludes(&user)))
            .map(|(_, lock)| lock.in_the_way());
        if other.is_none() || beside {
            let kind = r.want.kind() | r.sort as u32;
            self.link(self.place()?, r.owner, kind, (r.start, r.end));
        }
        Ok(other)
    }

    /// Whether a use of the object has one of the flags `bits`.
    pub fn is_used(&self, bits: u64) -> bool {
        let of = |lock: &FileLock| Sort::of_kind(lock.kind.load(Relaxed));
        self.each()
            .any(|(_, lock)| of(lock) == Sort::Use && lock.range().1 & bits != 0)
    }

    /// Returns the processes that own conflicting locks.
    pub fn blockers(&self, r: &Request) -> Vec<Owner> {
        let mut found: Vec<Owner> = Vec::new();
        for (_, lock) in self.each() {
            let owner = lock.owner();
            if lock.is_in_the_way(r) && owner.number & DESCRIPTION == 0 && !found.contains(&owner) {
                found.push(owner);
            }
        }
        found
    }

    /// Removes all locks and notes of an owner. Returns whether there was a note.
    pub fn remove(&self, owner: Owner) -> bool {
        let mut noted = false;
        self.retain(|_, lock| {
            let its = lock.owner() == owner;
            noted |= its && lock.is_note();
            !its
        });
        noted
    }

    /// Records that the owner may have locks on this object of another node.
    pub fn note(&self, owner: Owner) -> Result<()> {
        if !self.has_note(owner) {
            self.link(self.place()?, owner, lock_kind::REMOTE, (0, 0));
        }
        Ok(())
    }

    /// Whether the owner has a note on this object of another node.
    pub fn has_note(&self, owner: Owner) -> bool {
        self.each()
            .any(|(_, lock)| lock.is_note() && lock.owner() == owner)
    }

    /// Whether any owner of this node has a note on this object of another node: then programs of
    /// this node may have locks on it.
    pub fn has_notes(&self) -> bool {
        self.each()
            .any(|(_, lock)| lock.is_note() && !lock.is_fence())
    }

    /// Carries out the request, unless a lock conflicts: then returns that lock.
    fn set(&self, r: &Request) -> Result<Option<InTheWay>> {
        if r.sort != Sort::Range {
            // As in Linux, a lock that is to be changed is released first.
            self.retain(|_, lock| !lock.is_of(r));
        }
        if let Some(other) = self.conflict(r) {
            return Ok(Some(other));
        }
        match (r.sort, r.want) {
            (Sort::Range, _) => self.set_range(r).map(|()| None),
            (_, LockType::Unlocked) => Ok(None),
            (sort, want) => {
                let kind = want.kind() | sort as u32;
                self.link(self.place()?, r.owner, kind, (r.start, r.end));
                Ok(None)
            }
        }
    }

    fn set_range(&self, r: &Request) -> Result<()> {
        let kind = r.want.kind();
        let same = |lock: &FileLock| kind != 0 && lock.kind.load(Relaxed) == kind;
        // The new lock is merged with locks of the same type that it overlaps or touches.
        let (mut start, mut end) = (r.start, r.end);
        let (mut kept, mut split) = (None, None);
        for (index, lock) in self.each().filter(|(_, lock)| lock.is_of(r)) {
            let (s, e) = lock.range();
            if same(lock) && s <= r.end.saturating_add(1) && r.start <= e.saturating_add(1) {
                (start, end) = (start.min(s), end.max(e));
                kept = Some(index);
            } else if !same(lock) && s < r.start && r.end < e {
                split = Some((lock.kind.load(Relaxed), e));
            }
        }
        // Takes all entries first: if the table is full, no lock is changed.
        let new = (kind != 0 && kept.is_none())
            .then(|| self.place())
            .transpose()?;
        let right = match split.map(|_| self.place()).transpose() {
            Ok(right) => right,
            Err(e) => {
                if let Some(new) = new {
                    let free = &self.store.control.header().free_locks;
                    free.push(new, &self.store.control.file_lock(new).next);
                }
                return Err(e);
            }
        };
        if let Some(index) = new {
            self.link(index, r.owner, kind, (start, end));
        } else if let Some(index) = kept {
            let lock = self.store.control.file_lock(index);
            lock.start.store(start, Relaxed);
            lock.end.store(end, Relaxed);
            lock.stamp.store(stamp(), Relaxed);
        }
        if let (Some(index), Some((kind, e))) = (right, split) {
            self.link(index, r.owner, kind, (r.end + 1, e));
        }
        let keep = [new, kept, right];
        let mut less = false;
        self.retain(|index, lock| {
            if !lock.is_of(r) || keep.contains(&Some(index)) {
                return true;
            }
            let (s, e) = lock.range();
            if same(lock) {
                return e < start || end < s;
            }
            if e < r.start || r.end < s {
                return true;
            }
            less = true;
            if s < r.start {
                lock.end.store(r.start - 1, Relaxed);
            } else if r.end < e {
                lock.start.store(r.end + 1, Relaxed);
            } else {
                return false;
            }
            lock.stamp.store(stamp(), Relaxed);
            true
        });
        self.freed.set(self.freed.get() || less);
        Ok(())
    }
}

/// A lock of another node's process or description.
pub struct RemoteLock {
    pub object: ObjectId,
    pub owner: Owner,
    stamp: u64,
}

impl<'s> LockTable<'s> {
    /// Locks the chain of an object, so that no other thread reads or changes the object's locks
    /// meanwhile.
    pub fn locks_of(self, object: ObjectId) -> Result<Locks<'s>> {
        let section = self.store.section()?;
        self.locks_of_held(object, Some(section))
    }

    /// As [`LockTable::locks_of`]. `section` is None during quiescence.
    fn locks_of_held(self, object: ObjectId, section: Option<Section<'s>>) -> Result<Locks<'s>> {
        let critical = Critical::enter();
        let chain = self.store.control.lock_chain(object.0);
        chain
            .lock
            .acquire(&self.store.control, self.store.process_slot()?)?;
        Ok(Locks {
            store: self.store,
            chain,
            object,
            freed: Cell::new(false),
            _critical: critical,
            _section: section,
        })
    }

    /// Sets or releases a lock on an object of this node. Returns the conflicting lock, if any.
    pub fn lock_now(&self, request: &Request) -> Result<Option<InTheWay>> {
        let locks = self.locks_of(request.object)?;
        match (request.sort, request.want) {
            (Sort::Use, LockType::Shared | LockType::Exclusive) => {
                self.store.declared().note_use(&locks, request)
            }
            _ => locks.set(request),
        }
    }

    fn all_locks(self) -> impl Iterator<Item = (ObjectId, &'s FileLock)> {
        let end = self.store.control.header().free_locks.end(MAX_FILE_LOCKS);
        (0..end)
            .map(|i| self.store.control.file_lock(i))
            .map(|lock| (ObjectId(lock.object.load(Acquire)), lock))
            .filter(|(object, _)| object.0 != 0)
    }

    /// Returns the objects on which the process in `slot`, which sets no more locks, has locks or
    /// notes, with the owner. The owner is read from the locks: a process that cleans up behind a
    /// dead one has taken over its slot already.
    pub(super) fn locked_from(&self, slot: u32) -> Vec<(ObjectId, Owner)> {
        let me = self.store.peers().node();
        let all = self
            .all_locks()
            .map(|(object, lock)| (object, lock.owner()));
        let its = |o: &Owner| o.node == me && o.slot == slot && o.pid().is_some();
        let mut found: Vec<_> = all.filter(|(_, owner)| its(owner)).collect();
        found.sort_unstable_by_key(|(object, owner)| (object.0, owner.number));
        found.dedup();
        found
    }

    /// Returns the locks of other nodes on objects of this node.
    pub fn remote_locks(&self) -> Vec<RemoteLock> {
        let me = self.store.peers().node();
        self.all_locks()
            .filter(|(_, lock)| lock.owner().node != me && !lock.is_note())
            .map(|(object, lock)| RemoteLock {
                object,
                owner: lock.owner(),
                stamp: lock.stamp.load(Relaxed),
            })
            .collect()
    }

    /// Whether other nodes have locks on objects of this node.
    pub fn has_remote_locks(&self) -> bool {
        let me = self.store.peers().node();
        self.all_locks()
            .any(|(_, lock)| lock.owner().node != me && !lock.is_note())
    }

    /// Removes a lock of another node's program, unless the program has set it again since.
    pub fn drop_remote_lock(&self, remote: &RemoteLock) -> Result<()> {
        self.locks_of(remote.object)?.retain(|_, lock| {
            lock.owner() != remote.owner || lock.stamp.load(Relaxed) != remote.stamp
        });
        Ok(())
    }

    /// Returns the objects of this node on which programs of `node` have locks.
    pub fn locked_by(&self, node: NodeId) -> HashSet<ObjectId> {
        self.all_locks()
            .filter(|(_, l)| l.owner().node == node && l.is_lock())
            .map(|(object, _)| object)
            .collect()
    }

    /// Returns the objects of other nodes on which this node's programs may have locks.
    pub fn noted(&self) -> HashSet<ObjectId> {
        let notes = self
            .all_locks()
            .filter(|(_, l)| l.is_note() && !l.is_fence());
        notes.map(|(object, _)| object).collect()
    }

    /// Removes all entries of a node that was given up, except on objects on which its programs
    /// have locks and for which `may` is false. Where entries are removed, all locks of its
    /// programs on an object become one fence.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn end_node_locks(&self, node: NodeId, may: impl Fn(ObjectId) -> bool) -> Result<()> {
        let theirs = |l: &FileLock| l.owner().node == node && !l.is_fence();
        let objects: HashSet<ObjectId> = (self.all_locks().filter(|(_, l)| theirs(l)))
            .map(|(object, _)| object)
            .collect();
        for object in objects {
            let locks = self.locks_of(object)?;
            if !may(object) && locks.each().any(|(_, l)| theirs(l) && l.is_lock()) {
                continue;
            }
            let fenced = |l: &FileLock| l.owner().node == node && l.is_fence();
            let mut fence = locks.each().any(|(_, l)| fenced(l));
            locks.retain(|_, l| {
                if theirs(l) && l.is_lock() && !fence {
                    l.make_fence();
                    fence = true;
                }
                !theirs(l)
            });
            locks.freed.set(true);
        }
        Ok(())
    }

    /// Returns all fences: pairs of a node, and an object of this node on which it has lost its
    /// locks.
    pub fn fences(&self) -> Vec<(NodeId, ObjectId)> {
        let fences = self.all_locks().filter(|(_, l)| l.is_fence());
        fences.map(|(object, l)| (l.owner().node, object)).collect()
    }

    /// Removes a fence, after the node's programs have learned that their locks are lost, or the
    /// object was removed.
    pub fn lift_fence(&self, node: NodeId, object: ObjectId) -> Result<()> {
        let fence = |l: &FileLock| l.is_fence() && l.owner().node == node;
        self.locks_of(object)?.retain(|_, l| !fence(l));
        Ok(())
    }

    /// Returns the nodes that have locks on objects of this node.
    pub fn nodes_with_locks(&self) -> Vec<NodeId> {
        let nodes: HashSet<NodeId> = self.remote_locks().iter().map(|f| f.owner.node).collect();
        nodes.into_iter().collect()
    }

    /// Returns the numbers of this node's living owners: processes and descriptions.
    fn owners_here(&self) -> HashSet<u64> {
        let processes = (0..MAX_PROCESSES as u32)
            .map(|slot| self.lock_owner_slot(slot).number)
            .filter(|number| *number != 0);
        let end = self.store.control.header().free_open.end(MAX_OPEN);
        let descriptions = (0..end)
            .map(|i| self.store.objects().open_file(i))
            .filter(|o| o.refs.load(Acquire) > 0 && o.locker.load(Acquire) != 0)
            .map(|o| self.owner_of_locker(o.locker.load(Acquire)).number);
        processes.chain(descriptions).collect()
    }

    /// During quiescence: removes locks whose owners have ended, and puts all entries that aren't
    /// in a chain into the free list.
    pub(crate) fn recount_locks(&self) -> Result<()> {
        let (me, here) = (self.store.peers().node(), self.owners_here());
        let lost = |l: &FileLock| l.owner().node == me && !here.contains(&l.owner().number);
        let objects: HashSet<ObjectId> = (self.all_locks().filter(|(_, l)| lost(l)))
            .map(|(object, _)| object)
            .collect();
        for object in objects {
            self.locks_of_held(object, None)?.retain(|_, l| !lost(l));
        }
        let linked = self.linked_locks().unwrap_or_default();
        let free = &self.store.control.header().free_locks;
        free.clear();
        for index in (0..free.end(MAX_FILE_LOCKS)).rev() {
            if !linked.contains(&index) {
                let lock = self.store.control.file_lock(index);
                lock.object.store(0, Release);
                free.push(index, &lock.next);
            }
        }
        Ok(())
    }

    /// Returns the entries that are in chains; None if a chain has a cycle or an index outside the
    /// table.
    pub fn linked_locks(&self) -> Option<HashSet<u32>> {
        let mut linked = HashSet::new();
        for chain in self.store.control.lock_chains() {
            let mut next = chain.head.load(Acquire);
            while let Some(index) = next.checked_sub(1) {
                if index as usize >= MAX_FILE_LOCKS || !linked.insert(index) {
                    return None;
                }
                next = self.store.control.file_lock(index).next.load(Acquire);
            }
        }
        Some(linked)
    }

    /// Returns, during quiescence, the locks whose owners, of this node, don't exist any more.
    pub(crate) fn stray_locks(&self) -> Vec<(ObjectId, Owner)> {
        let (me, here) = (self.store.peers().node(), self.owners_here());
        self.all_locks()
            .map(|(object, lock)| (object, lock.owner()))
            .filter(|(_, owner)| owner.node == me && !here.contains(&owner.number))
            .collect()
    }
}
