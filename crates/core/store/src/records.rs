//! The operations on records: on entries, on objects, and on the records attached to objects.
//!
//! Only the implementation knows how records are found and stored. Callers look up names, create,
//! link, rename and remove, and read and change inodes. So another index of names and objects can
//! replace LMDB, or copies of records can be kept elsewhere, without a change in the callers.
//! `shards.rs` has the one implementation, over LMDB. The reasons for these operations:
//! docs/decisions/0092-records-behind-operations.md.
//!
//! - [`Records`] is the interface of a store's records: views for reading, transactions for
//!   changing.
//! - [`ReadRecords`] is a view: the last committed state of one shard.
//! - [`ChangeRecords`] is a transaction: several operations become visible together, or none does.
//!
//! Besides its inode an object has *attached records*, each under a [`Key`]: extended attributes,
//! extents of chunks after the first, checksums, names on other nodes, keys in the index. Attached
//! records form an ordered map, with the operations `attach`, `detach` and `each_attached`. These
//! operations don't reach entries and inodes.
//!
//! The implementation is chosen at compile time: no call goes through a table of functions.
//!
//! [`Key`]: crate::record::Key

use crate::MAX_SHARDS;
use crate::ObjectId;
use crate::object::Named;
use crate::record::{Entry, EntryRecord, Inode, Key};
use rustix::io::Result;

/// An entry's directory and name, and the shard that has its record. Made by
/// [`Records::entry_ref`]; finding the shard takes a hash, which is computed once.
#[derive(Clone, Copy)]
pub struct EntryRef<'n> {
    pub(crate) dir: ObjectId,
    pub(crate) name: &'n [u8],
    pub(crate) shard: usize,
}

impl<'n> EntryRef<'n> {
    /// Directory and name.
    pub fn named(&self) -> Named<'n> {
        (self.dir, self.name)
    }

    /// The shard of the entry.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// The shard of the entry, as the set of a transaction.
    pub fn set(&self) -> ShardSet {
        ShardSet(0).with(self.shard)
    }
}

/// A set of shards, one bit each: what a transaction may read and change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardSet(pub u64);

impl ShardSet {
    /// The set of these shards.
    pub fn of(shards: &[usize]) -> ShardSet {
        shards.iter().fold(ShardSet(0), |set, &s| set.with(s))
    }

    pub fn with(self, shard: usize) -> ShardSet {
        assert!(shard < MAX_SHARDS, "there is a shard {shard}");
        ShardSet(self.0 | 1 << shard)
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let shard = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (shard < 64).then_some(shard)
        })
    }
}

/// The space that a transaction is about to take or free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The transaction adds up to this many bytes of records.
    Bytes(usize),
    /// The transaction frees more than it takes: allowed on a full file system.
    Removal,
    /// The transaction updates existing records, with up to 4 KiB of content. Such a transaction is
    /// allowed on a full file system as long as enough room is left for removals: otherwise bytes
    /// written before would be lost.
    Update,
}

/// The records of a store.
pub trait Records: 'static {
    /// Reads the last committed state of a shard.
    type View<'r>: ReadRecords;
    /// A transaction in progress.
    type Transaction<'r>: ChangeRecords;

    /// Returns the entry's directory, name and shard. With an empty name, the shard is that of the
    /// directory's own inode, for an intent on the object.
    fn entry_ref<'n>(&self, name: Named<'n>) -> EntryRef<'n>;

    /// The last committed state of `shard`. Waits while a commit over several shards is in
    /// progress, so that no reader sees half of one.
    ///
    /// # Errors
    /// EAGAIN if there are too many readers; ENOSPC if there is no memory for one more; EIO.
    fn records(&self, shard: usize) -> Result<Self::View<'_>>;

    /// As [`Records::records`], of the shard of `id`.
    ///
    /// # Errors
    /// As for [`Records::records`].
    fn records_of(&self, id: ObjectId) -> Result<Self::View<'_>>;

    /// As [`Records::records`], but doesn't wait: for a transaction (its shards are locked), and
    /// for callers that may see half of a commit.
    ///
    /// # Errors
    /// As for [`Records::records`].
    fn committed(&self, shard: usize) -> Result<Self::View<'_>>;

    /// Runs `f` in a transaction over `set` and commits what it did, or undoes it if it fails.
    ///
    /// # Errors
    /// Those of `f`; ENOSPC; ETIMEDOUT if a live process holds a shard for 30 s.
    fn transact<T>(
        &self,
        set: ShardSet,
        need: Need,
        f: impl FnOnce(&mut Self::Transaction<'_>) -> Result<T>,
    ) -> Result<T>;
}

/// A consistent view of the records of one shard. Errors are EIO: a record is damaged.
pub trait ReadRecords {
    /// The entry, if there is one.
    fn look_up(&self, at: EntryRef<'_>) -> Result<Option<EntryRecord>>;

    /// The intent on an entry, encoded: a change of it over several nodes has begun.
    fn intent(&self, at: EntryRef<'_>) -> Result<Option<&[u8]>>;

    /// Calls `each` with the names of a directory's entries in this shard that follow `after`, in
    /// order, until it returns false. An empty `after`: from the first one on.
    fn list(
        &self,
        dir: ObjectId,
        after: &[u8],
        each: impl FnMut(&[u8], EntryRecord) -> bool,
    ) -> Result<()>;

    /// Calls `each` for the entries of all directories, until it returns false: directory, name,
    /// and entry. The entry is None if its record is damaged.
    fn each_entry(
        &self,
        each: impl FnMut(ObjectId, &[u8], Option<EntryRecord>) -> bool,
    ) -> Result<()>;

    /// Calls `each` for the intents on entries, until it returns false: directory, name (empty for
    /// an intent on the object itself), and the encoded intent.
    fn each_intent(&self, each: impl FnMut(ObjectId, &[u8], &[u8]) -> bool) -> Result<()>;

    /// Whether the object exists.
    fn exists(&self, id: ObjectId) -> Result<bool>;

    /// The inode and its tail: see [`crate::record::tail`].
    fn inode(&self, id: ObjectId) -> Result<Option<(Inode, &[u8])>>;

    /// Calls `each` for the objects from `from` on, in order of their ids, until it returns false:
    /// id, and inode with tail. Inode and tail are None if the record is damaged.
    fn each_inode(
        &self,
        from: ObjectId,
        each: impl FnMut(ObjectId, Option<(Inode, &[u8])>) -> bool,
    ) -> Result<()>;

    /// The attached record with this key.
    fn attached(&self, key: &Key) -> Result<Option<&[u8]>>;

    /// Calls `each` for attached records from the key `from` on, in order, until it returns false:
    /// key and value. `each` must return false at the first key of another tag.
    fn each_attached(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Calls `each` for all records from the key `from` on, in the form in which checkpoints have
    /// them ([`crate::record`]), until it returns false.
    fn each_record(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()>;
}

/// A transaction. The operations of one transaction see each other's changes; other readers see
/// them after the commit. An operation may concern shards of the transaction's set only. Errors are
/// ENOSPC, and EIO for a damaged record; after an error the caller must abandon the transaction.
pub trait ChangeRecords {
    // ---- entries ----

    /// The entry, if there is one.
    fn look_up(&mut self, at: EntryRef<'_>) -> Result<Option<EntryRecord>>;

    /// Whether `at` has exactly this entry, and no other node is changing it.
    fn has_entry(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<bool>;

    /// Adds an entry, unless the name has one: then returns the existing entry.
    fn link(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<Option<EntryRecord>>;

    /// Adds an entry and its object, which lie in one shard, unless the name has an entry: then
    /// returns the existing entry.
    fn create(
        &mut self,
        at: EntryRef<'_>,
        entry: Entry,
        inode: &Inode,
        tail: &[u8],
    ) -> Result<Option<EntryRecord>>;

    /// Removes `entry`; false if `at` doesn't have it, or other nodes are changing it.
    fn unlink(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<bool>;

    /// Removes the entry of `at`, whichever it is; false if there is none.
    fn clear_entry(&mut self, at: EntryRef<'_>) -> Result<bool>;

    /// Moves `entry` from one name to another, and replaces the entry of the latter, if there is
    /// one.
    fn rename(&mut self, from: EntryRef<'_>, to: EntryRef<'_>, entry: Entry) -> Result<()>;

    /// Exchanges the entries of two names.
    fn exchange(&mut self, a: (EntryRef<'_>, Entry), b: (EntryRef<'_>, Entry)) -> Result<()>;

    /// Sets the entry of `at`, and replaces an existing one.
    fn set_entry(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<()>;

    /// Sets the entry of `at`, marked as one that several nodes are changing: look-ups of it wait.
    fn set_changing(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<()>;

    /// Whether a directory has no entries in this store. All shards must be locked.
    fn is_empty(&mut self, dir: ObjectId) -> Result<bool>;

    /// Removes the entry of an empty directory. All shards must be locked.
    ///
    /// # Errors
    /// ENOENT: `at` doesn't have `entry`; ENOTEMPTY.
    fn rmdir(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<()>;

    /// The intent on an entry, encoded.
    fn intent(&mut self, at: EntryRef<'_>) -> Result<Option<&[u8]>>;

    /// Sets the intent on an entry.
    fn set_intent(&mut self, at: EntryRef<'_>, intent: &[u8]) -> Result<()>;

    /// Removes the intent on an entry, if there is one.
    fn end_intent(&mut self, at: EntryRef<'_>) -> Result<()>;

    // ---- objects ----

    /// Whether the object exists.
    fn exists(&mut self, id: ObjectId) -> Result<bool>;

    /// The inode and its tail.
    fn inode(&mut self, id: ObjectId) -> Result<Option<(Inode, &[u8])>>;

    /// Adds an object, unless it exists. Returns whether it was added.
    fn add_object(&mut self, id: ObjectId, inode: &Inode, tail: &[u8]) -> Result<bool>;

    /// Sets an object's inode and tail; adds the object if it doesn't exist.
    fn set_inode(&mut self, id: ObjectId, inode: &Inode, tail: &[u8]) -> Result<()>;

    /// Changes an object's inode with `change`; the tail stays.
    ///
    /// # Errors
    /// ENOENT.
    fn change_inode<T>(&mut self, id: ObjectId, change: impl FnOnce(&mut Inode) -> T) -> Result<T>;

    /// Removes the object; its attached records stay.
    fn remove_object(&mut self, id: ObjectId) -> Result<()>;

    // ---- attached records ----

    /// The record with this key that is attached to `id`.
    fn attached(&mut self, id: ObjectId, key: &[u8]) -> Result<Option<&[u8]>>;

    /// As [`ReadRecords::each_attached`], in the shard of `id`.
    fn each_attached(
        &mut self,
        id: ObjectId,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;

    /// Sets an attached record.
    fn attach(&mut self, id: ObjectId, key: &[u8], value: &[u8]) -> Result<()>;

    /// Adds an attached record, unless there is one with this key.
    fn attach_new(&mut self, id: ObjectId, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes an attached record; false if there is none.
    fn detach(&mut self, id: ObjectId, key: &[u8]) -> Result<bool>;
}
