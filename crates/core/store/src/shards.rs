//! Transactions over one or several shards.
//!
//! A change of one shard is an LMDB transaction. A change of several shards, such as a rename, is
//! made atomic by a journal: the first shard's transaction also stores the changes of the other
//! shards; then the others commit; then the journal is removed. Readers wait while a shard's
//! `multi` counter is odd, so that none sees half of the change. If the process dies in between,
//! the next process that takes a lock of these shards finds it abandoned and carries out the
//! journal ([`Store::recover_commits`]).

mod operations;
mod rewrite;

pub(crate) use rewrite::{write_changes, write_file};

use crate::control_region::MAX_SHARDS;
use crate::lmdb::{OnFull, Snapshot, WriteTxn};
use crate::lock::Acquired;
use crate::object::Named;
use crate::process::Critical;
use crate::record::{JOURNAL, changes, push_change};
use crate::records::{EntryRef, Need, Records, ShardSet};
use crate::{ObjectId, Store};
use forebay_runtime::atomics::{Ordering::*, spin_loop};
use rustix::io::{Errno, Result};
use smallvec::SmallVec;

/// The last committed state of a shard: see [`ReadRecords`].
///
/// [`ReadRecords`]: crate::records::ReadRecords
pub struct View<'s>(Snapshot<'s>);

/// An open transaction: the shards of its set are locked.
pub struct Write<'s> {
    store: &'s Store,
    set: ShardSet,
    need: Need,
    /// The shards that were accessed: usually one.
    txns: SmallVec<[(usize, WriteTxn<'s>); 2]>,
    /// Shards that were changed.
    dirty: u64,
    /// Shards whose `removing` counter this transaction has made odd.
    removing: u64,
    /// Whether the transaction may make resolved paths wrong.
    names_change: bool,
    /// Whether the transaction leaves work to the keeper.
    unsettled: bool,
    /// Objects whose leftover records are to be removed once the transaction is committed.
    leftovers: SmallVec<[ObjectId; 2]>,
    /// Number of files charged to the quota; the charge is taken back if the transaction fails.
    charged: i64,
    /// Bytes and files that are given back to the quota once the transaction is committed.
    freed: (i64, i64),
    /// The changes so far, recorded if several shards are locked or there is a journal.
    log: Option<Vec<u8>>,
}

/// Number of times that a waiting process takes a shard's lock and finds a counter of the shard
/// odd, before the counter is taken for damaged.
const MAX_ODD_READS: u32 = 10_000;

/// Maximum size of a journal for which every transaction has room. Pages.
const MAX_JOURNAL_PAGES: usize = 8;

impl Store {
    /// Opens the records of all shards. Otherwise, a shard's records are opened when they are used
    /// first.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENFILE: those that could be opened stay open.
    pub fn open_records(&self) -> Result<()> {
        let opened = (0..self.files.count()).map(|shard| self.committed(shard).map(drop));
        opened.fold(Ok(()), Result::and)
    }

    /// Reads the last committed state of a shard. The caller has locked all shards.
    ///
    /// # Errors
    /// As for [`Records::records`].
    pub(crate) fn fresh_records(&self, shard: usize) -> Result<View<'_>> {
        self.files.of(shard).fresh_snapshot().map(View)
    }

    /// Makes all record files of a new store, with room for the first records.
    ///
    /// # Errors
    /// ENOSPC and errors of the file system.
    pub(crate) fn make_records(&self) -> Result<()> {
        (0..self.files.count()).try_for_each(|shard| {
            self.transact(ShardSet::of(&[shard]), Need::Bytes(0), |w| {
                w.txn(shard).map(|_| ())
            })
        })
    }

    /// Waits until a shard's counter is even. The process that made it odd holds the shard's lock.
    ///
    /// # Errors
    /// EIO: the counter stays odd although no process holds the lock, so it was overwritten.
    #[inline]
    pub(crate) fn wait_even(
        &self,
        shard: usize,
        counter: impl Fn(&crate::control_region::Shard) -> u32,
    ) -> Result<()> {
        if counter(self.control.shard(shard)).is_multiple_of(2) {
            Ok(())
        } else {
            self.wait_until_even(shard, counter)
        }
    }

    #[cold]
    fn wait_until_even(
        &self,
        shard: usize,
        counter: impl Fn(&crate::control_region::Shard) -> u32,
    ) -> Result<()> {
        let state = self.control.shard(shard);
        for _ in 0..200 {
            if counter(state).is_multiple_of(2) {
                return Ok(());
            }
            spin_loop();
        }
        for _ in 0..MAX_ODD_READS {
            let _critical = Critical::enter();
            self.lock_shards(ShardSet::of(&[shard]))?;
            let even = counter(state).is_multiple_of(2);
            state.lock.release();
            if even || counter(state).is_multiple_of(2) {
                return Ok(());
            }
        }
        Err(Errno::IO)
    }

    /// Removes what a committed transaction has left of an object; failures are left to the keeper.
    #[cold]
    fn settle(&self, id: ObjectId) {
        if self.names().settle_leftovers_of(id).is_err() {
            self.control.header().leaks.store(1, Release);
            self.control.wake_keeper();
        }
    }

    /// Locks the shards in ascending order, completing first what a dead process began.
    pub(crate) fn lock_shards(&self, set: ShardSet) -> Result<()> {
        let me = self.process_slot()?;
        loop {
            let mut abandoned = false;
            for shard in set.iter() {
                match self.acquire(shard, me) {
                    Ok(Acquired::Clean) => {}
                    Ok(Acquired::Abandoned) => abandoned = true,
                    Err(e) => {
                        self.unlock_before(set, shard);
                        return Err(e);
                    }
                }
            }
            if abandoned {
                self.control.header().recover.store(1, Release);
            } else if self.control.header().recover.load(Acquire) == 0 {
                return Ok(());
            }
            self.unlock_before(set, MAX_SHARDS);
            self.recover_commits()?;
        }
    }

    /// Takes the lock of a shard.
    #[inline]
    fn acquire(&self, shard: usize, me: u32) -> Result<Acquired> {
        let lock = &self.control.shard(shard).lock;
        if lock.is_free() {
            return lock.acquire(&self.control, me);
        }
        forebay_trace::event!(SHARD_WAIT_ENTER, shard);
        let begin = forebay_trace::clock::now();
        let acquired = lock.acquire(&self.control, me);
        forebay_trace::count::waited(begin);
        forebay_trace::event!(SHARD_WAIT_EXIT, shard);
        acquired
    }

    pub(crate) fn unlock_before(&self, set: ShardSet, end: usize) {
        for shard in set.iter().take_while(|&s| s < end) {
            self.control.shard(shard).lock.release();
        }
    }

    /// Completes commits over several shards that a dead process left half done.
    ///
    /// # Errors
    /// LMDB's errors; EIO for a journal that can't be read.
    pub fn recover_commits(&self) -> Result<()> {
        self.with_all_locked(|| self.recover_locked())
    }

    /// As [`Store::recover_commits`], with all shards locked.
    pub(crate) fn recover_locked(&self) -> Result<()> {
        self.complete_journals()?;
        if let Some(journal) = self.durability().active_journal() {
            self.durability().redo_pending(journal)?;
        }
        for shard in self.files.all().iter() {
            let s = self.control.shard(shard);
            s.multi.fetch_add(s.multi.load(Relaxed) % 2, AcqRel);
            s.removing.fetch_add(s.removing.load(Relaxed) % 2, AcqRel);
        }
        self.control.header().names_epoch.fetch_add(1, AcqRel);
        self.control.header().recover.store(0, Release);
        Ok(())
    }

    /// Runs `f` while no process changes any shard. If a dead process had a shard locked, sets the
    /// flag `recover`: the dead process's commit may be incomplete.
    pub(crate) fn with_all_locked<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _critical = Critical::enter();
        let me = self.process_slot()?;
        let all = self.files.all();
        for shard in all.iter() {
            match self.control.shard(shard).lock.acquire(&self.control, me) {
                Ok(Acquired::Clean) => {}
                Ok(Acquired::Abandoned) => self.control.header().recover.store(1, Release),
                Err(e) => {
                    self.unlock_before(all, shard);
                    return Err(e);
                }
            }
        }
        let result = f();
        self.unlock_before(all, MAX_SHARDS);
        result
    }

    fn complete_journals(&self) -> Result<()> {
        for first in 0..self.files.count() {
            let journal = self.committed(first)?.journal()?.map(<[u8]>::to_vec);
            let Some(journal) = journal else { continue };
            self.redo(&journal)?;
            let mut txn = self.begin(first, Need::Removal)?;
            txn.del(JOURNAL)?;
            self.commit_one(first, txn)?;
        }
        Ok(())
    }

    /// Repeats recorded changes, in one transaction for each shard. All shards are locked.
    pub(crate) fn redo(&self, list: &[u8]) -> Result<()> {
        for shard in 0..self.files.count() {
            let mut txn = None;
            for change in changes(list) {
                let (of, key, value) = change.ok_or(Errno::IO)?;
                if of != shard {
                    continue;
                }
                let txn = match &mut txn {
                    Some(t) => t,
                    none => none.insert(self.begin(shard, Need::Removal)?),
                };
                match value {
                    Some(value) => txn.put(key, value)?,
                    None => _ = txn.del(key)?,
                }
            }
            if let Some(txn) = txn {
                self.commit_one(shard, txn)?;
            }
        }
        Ok(())
    }

    pub(crate) fn begin(&self, shard: usize, need: Need) -> Result<WriteTxn<'_>> {
        let room = &self.control.shard(shard).room;
        let (payload, on_full) = match need {
            Need::Bytes(n) => (n, OnFull::Fails),
            Need::Removal => (0, OnFull::Removes),
            Need::Update => (4096, OnFull::Updates),
        };
        let before = room.reserved.load(Relaxed);
        forebay_trace::event!(TRANSACTION_BEGIN, shard);
        let txn = self.files.of(shard).write(room, payload, on_full)?;
        if room.reserved.load(Relaxed) != before
            && let Some(journal) = self.durability().active_journal()
            && let Err(e) = self.durability().reserve_checkpoint(journal)
        {
            // No records may be added for which a checkpoint has no room on disk. A transaction
            // that may run on a full file system continues; the room that it reserved isn't
            // counted.
            room.reserved.store(before, Relaxed);
            if on_full == OnFull::Fails {
                return Err(e);
            }
        }
        Ok(txn)
    }

    fn commit_one(&self, shard: usize, txn: WriteTxn<'_>) -> Result<()> {
        debug_assert!(
            !self.control.shard(shard).lock.is_free(),
            "a shard that is changed is locked: {shard}"
        );
        txn.commit()?;
        self.control.shard(shard).commits.fetch_add(1, AcqRel);
        Ok(())
    }
}

impl Records for Store {
    type View<'r> = View<'r>;
    type Transaction<'r> = Write<'r>;

    #[inline]
    fn entry_ref<'n>(&self, (dir, name): Named<'n>) -> EntryRef<'n> {
        EntryRef {
            dir,
            name,
            shard: self.files.shard_of_entry(dir, name),
        }
    }

    #[inline]
    fn records(&self, shard: usize) -> Result<View<'_>> {
        self.wait_even(shard, |s| s.multi.load(Acquire))?;
        self.committed(shard)
    }

    #[inline]
    fn records_of(&self, id: ObjectId) -> Result<View<'_>> {
        self.records(self.files.shard_of(id))
    }

    #[inline]
    fn committed(&self, shard: usize) -> Result<View<'_>> {
        self.files.of(shard).snapshot().map(View)
    }

    fn transact<T>(
        &self,
        set: ShardSet,
        need: Need,
        f: impl FnOnce(&mut Write<'_>) -> Result<T>,
    ) -> Result<T> {
        let _critical = Critical::enter();
        if self.durability().active_journal().is_some() {
            self.durability().wait_for_journal();
        }
        assert!(set.0 != 0, "a transaction has a shard");
        self.lock_shards(set)?;
        let mut w = Write {
            store: self,
            set,
            need,
            txns: SmallVec::new(),
            dirty: 0,
            removing: 0,
            names_change: false,
            unsettled: false,
            leftovers: SmallVec::new(),
            charged: 0,
            freed: (0, 0),
            log: (set.0.count_ones() > 1 || self.durability().active_journal().is_some())
                .then(Vec::new),
        };
        let result = f(&mut w).and_then(|v| {
            let committed = forebay_trace::span!(
                TRANSACTION_COMMIT_ENTER,
                TRANSACTION_COMMIT_EXIT,
                [],
                w.commit()
            );
            committed.map(|()| v)
        });
        // Undoes what wasn't committed, before the locks are released.
        w.txns.clear();
        for shard in ShardSet(w.removing).iter() {
            let before = self.control.shard(shard).removing.fetch_add(1, AcqRel);
            assert!(
                before % 2 == 1,
                "a removal that ends was announced: shard {shard}"
            );
        }
        if w.names_change {
            // A caller that resolved a path while the commit was in progress must resolve it again.
            self.names_epoch().bump();
        }
        for shard in set.iter() {
            self.control.shard(shard).lock.release();
        }
        self.quota().credit(match result {
            Ok(_) => w.freed,
            Err(_) => (0, w.charged),
        });
        if w.unsettled && result.is_ok() {
            self.intents().leave_unsettled();
        }
        let leftovers = std::mem::take(&mut w.leftovers);
        if self.durability().active_journal().is_some() {
            self.durability().checkpoint_if_due();
        }
        if result.is_ok() {
            leftovers.iter().for_each(|&id| self.settle(id));
        }
        result
    }
}

impl View<'_> {
    /// The journal of a commit over several shards that isn't complete.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn journal(&self) -> Result<Option<&[u8]>> {
        self.0.get(JOURNAL)
    }

    /// Calls `each` for all records, damaged ones included, until it returns false: key, value, and
    /// whether the value's checksum is right.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn each_stored(&self, each: impl FnMut(&[u8], &[u8], bool) -> bool) -> Result<()> {
        self.0.scan_all(each)
    }
}

impl<'s> Write<'s> {
    /// The locked shards.
    pub fn set(&self) -> ShardSet {
        self.set
    }

    fn txn(&mut self, shard: usize) -> Result<&mut WriteTxn<'s>> {
        debug_assert!(self.set.0 >> shard & 1 == 1, "shard {shard} isn't locked");
        let at = match self.txns.iter().position(|txn| txn.0 == shard) {
            Some(at) => at,
            None => {
                self.txns.push((shard, self.store.begin(shard, self.need)?));
                self.txns.len() - 1
            }
        };
        Ok(&mut self.txns[at].1)
    }

    /// Removes and returns the transaction of a changed shard, to be committed.
    fn take(&mut self, shard: usize) -> WriteTxn<'s> {
        let at = self.txns.iter().position(|txn| txn.0 == shard);
        self.txns.swap_remove(at.expect("a dirty shard's")).1
    }

    /// The value of `key` as this transaction sees it.
    fn get(&mut self, shard: usize, key: &[u8]) -> Result<Option<&[u8]>> {
        self.txn(shard)?.get(key)
    }

    /// Calls `each` for keys and values from `from` on, until it returns false.
    fn scan(
        &mut self,
        shard: usize,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.txn(shard)?.scan(from, each)
    }

    /// Sets `key`.
    fn put(&mut self, shard: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.txn(shard)?.put(key, value)?;
        self.note(shard, key, Some(value));
        Ok(())
    }

    /// Sets `key` if it doesn't exist; otherwise returns the existing value.
    fn insert(&mut self, shard: usize, key: &[u8], value: &[u8]) -> Result<Option<&[u8]>> {
        // An existing value is read a second time below, since its borrow lasts as long as the
        // result.
        if self.txn(shard)?.insert(key, value)? {
            self.note(shard, key, Some(value));
            return Ok(None);
        }
        self.get(shard, key)
    }

    /// Removes `key`; false if there was none.
    fn del(&mut self, shard: usize, key: &[u8]) -> Result<bool> {
        let there = self.txn(shard)?.del(key)?;
        if there {
            self.note(shard, key, None);
        }
        Ok(there)
    }

    /// Charges the quota for one more object. If the transaction fails, the charge is taken back.
    ///
    /// # Errors
    /// EDQUOT.
    pub fn charge_file(&mut self) -> Result<()> {
        self.store.quota().charge_file()?;
        self.charged += 1;
        Ok(())
    }

    /// Takes back a charge, because the object isn't made.
    pub fn uncharge_file(&mut self) {
        assert!(self.charged > 0, "a charge that is taken back was made");
        self.charged -= 1;
        self.store.quota().credit((0, 1));
    }

    /// Returns bytes and files to the quota, once the transaction is committed.
    pub fn free_quota(&mut self, bytes: i64, files: i64) {
        self.freed.0 += bytes;
        self.freed.1 += files;
    }

    /// Reserves room for changes of this many pages more than usual.
    pub fn more_room(&mut self, shard: usize, pages: usize) -> Result<()> {
        let store = self.store;
        let room = &store.control.shard(shard).room;
        let txn = self.txn(shard)?;
        store.files.of(shard).reserve_more(txn, room, pages as u64)
    }

    fn note(&mut self, shard: usize, key: &[u8], value: Option<&[u8]>) {
        self.dirty |= 1 << shard;
        if let Some(log) = &mut self.log {
            push_change(log, shard, key, value);
        }
    }

    /// Announces that objects may leave `shard`: from now on, a process that opens one of them
    /// waits for the end of this transaction and then checks whether the object still exists.
    pub fn begin_removing(&mut self, shard: usize) {
        if self.removing >> shard & 1 == 0 {
            self.removing |= 1 << shard;
            let before = self
                .store
                .control
                .shard(shard)
                .removing
                .fetch_add(1, SeqCst);
            assert!(
                before.is_multiple_of(2),
                "one removal at a time: shard {shard}"
            );
        }
    }

    /// Announces that resolved paths become wrong: the epoch of names changes before the commit (in
    /// case the process dies after it) and again after.
    pub fn names_change(&mut self) {
        self.names_change = true;
    }

    /// Announces that this transaction leaves work to the keeper.
    pub fn leave_unsettled(&mut self) {
        self.unsettled = true;
    }

    /// Announces that leftover records of an object are to be removed once this transaction is
    /// committed.
    pub(crate) fn leave_leftovers(&mut self, id: ObjectId) {
        self.leftovers.push(id);
    }

    fn commit(&mut self) -> Result<()> {
        let dirty = ShardSet(self.dirty);
        assert!(
            self.dirty & !self.set.0 == 0,
            "only locked shards are changed"
        );
        let Some(first) = dirty.iter().next() else {
            return Ok(());
        };
        let store = self.store;
        if self.names_change {
            store.names_epoch().bump();
        }
        let log = self.log.take();
        let noted = match (store.durability().active_journal(), &log) {
            (Some(journal), Some(log)) => Some((
                journal,
                store.durability().note_commit(journal, dirty, log)?,
            )),
            _ => None,
        };
        let (result, begun) = if self.dirty.count_ones() == 1 {
            let txn = self.take(first);
            (store.commit_one(first, txn), false)
        } else {
            self.commit_several(first, dirty, &log.expect("several shards keep a log"))
        };
        if let Some((journal, position)) = noted
            && !begun
        {
            if result.is_err()
                && let Err(e) = store.durability().note_void(journal, position)
            {
                // The journal contains the change, so recovery must carry it out.
                store.control.header().recover.store(1, Release);
                return Err(e);
            }
            store.durability().end_pending(dirty);
        }
        result
    }

    /// Commits changes of several shards. Also returns whether the commit has begun but couldn't be
    /// completed: then the next process that locks one of the shards completes it.
    fn commit_several(&mut self, first: usize, dirty: ShardSet, log: &[u8]) -> (Result<()>, bool) {
        let store = self.store;
        let mut rest = Vec::new();
        for (shard, key, value) in changes(log).flatten().filter(|c| c.0 != first) {
            push_change(&mut rest, shard, key, value);
        }
        let pages = rest.len() / forebay_media::PAGE;
        let room = match pages {
            0..=MAX_JOURNAL_PAGES => Ok(()),
            more => self.more_room(first, more),
        };
        if let Err(e) = room.and_then(|()| self.txn(first)?.put(JOURNAL, &rest)) {
            return (Err(e), false);
        }
        for shard in dirty.iter() {
            let before = store.control.shard(shard).multi.fetch_add(1, SeqCst);
            assert!(
                before.is_multiple_of(2),
                "one commit at a time: shard {shard}"
            );
        }
        let (mut result, mut begun) = (Ok(()), false);
        for (n, shard) in dirty.iter().enumerate() {
            let txn = self.take(shard);
            result = store.commit_one(shard, txn);
            if result.is_err() {
                if n > 0 {
                    // The first part is committed, so the change is made: the rest follows by
                    // recovery, before any process sees these shards again.
                    store.control.header().recover.store(1, Release);
                    return (Ok(()), true);
                }
                break;
            }
        }
        if result.is_ok() {
            let removed = (|| {
                let mut txn = store.begin(first, Need::Removal)?;
                txn.del(JOURNAL)?;
                store.commit_one(first, txn)
            })();
            if removed.is_err() {
                // Recovery repeats the whole change before any other operation.
                store.control.header().recover.store(1, Release);
                begun = true;
            }
        }
        for shard in dirty.iter() {
            let before = store.control.shard(shard).multi.fetch_add(1, SeqCst);
            assert!(
                before % 2 == 1,
                "a commit that ends has begun: shard {shard}"
            );
        }
        (result, begun)
    }
}
