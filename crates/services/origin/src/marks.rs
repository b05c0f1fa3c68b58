//! The marks of objects ([`OriginMark`]): which version the origin has of each, and whether the
//! pool has its bytes.
//!
//! A thread that changes a mark holds the object's lock ([`crate::object_locks`]).

use crate::fill_table::Fills;
use crate::object_locks::{ObjectLocks, Working};
use crate::shared::Shared;
use crate::side::attributes_of;
use forebay_posix::ObjectId;
use forebay_store::{Inode, OriginMark, OriginState, SetAttr, TICK, now};
use rustix::io::{Errno, Result};
use std::sync::Arc;
use std::time::Duration;
use twox_hash::XxHash3_64;

/// The marks of all objects, and the locks on objects.
pub struct Marks {
    shared: Arc<Shared>,
    object_locks: ObjectLocks,
    /// The fills of files that are read by ranges. A fill ends when its file isn't released any
    /// more.
    fills: Fills,
}

impl Marks {
    pub fn new(shared: &Arc<Shared>) -> Marks {
        Marks {
            shared: shared.clone(),
            object_locks: ObjectLocks::default(),
            fills: Fills::default(),
        }
    }

    pub fn fills(&self) -> &Fills {
        &self.fills
    }

    /// Locks an object, after waiting until no other thread has it locked.
    pub fn lock(&self, id: ObjectId) -> Working<'_> {
        self.object_locks.begin(id)
    }

    /// Waits for the locks that are held now, as [`ObjectLocks::wait_for_current`].
    pub fn wait_for_current(&self, timeout: Duration) -> bool {
        self.object_locks.wait_for_current(timeout)
    }

    /// Returns a fingerprint of a directory's attributes in the pool, including `user.*`
    /// attributes.
    pub fn print_of_dir(&self, id: ObjectId, inode: &Inode) -> Result<i64> {
        let print = attributes_of(inode);
        if !inode.has_attributes {
            return Ok(print);
        }
        let cluster = self.shared.cluster();
        let mut names = cluster.namespace().attributes(id)?;
        names.sort();
        let mut bytes = print.to_le_bytes().to_vec();
        for name in names {
            let value = match cluster.namespace().attribute(id, &name) {
                Err(Errno::NODATA) => continue,
                value => value?,
            };
            for part in [&name, &value] {
                bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
                bytes.extend_from_slice(part);
            }
        }
        Ok(XxHash3_64::oneshot(&bytes) as i64)
    }

    /// Whether a directory's record is lost because it is on a dead node. Such a directory can't be
    /// marked, and its attributes aren't known.
    pub fn has_lost(&self, dir: ObjectId) -> bool {
        self.shared.fs.salvaged().is_some_and(|s| s.has_lost(dir))
    }

    pub fn set_mark(&self, id: ObjectId, mark: OriginMark) -> Result<()> {
        self.fills.is_marked(id, &mark);
        let set = SetAttr {
            origin: Some(mark),
            ..SetAttr::default()
        };
        self.shared.cluster().namespace().set_attr(id, &set)
    }

    /// Marks a file as clean: pool and origin have the same version. `set`: further attributes to
    /// be set. The file's change time becomes `before`, or [`TICK`] ago if that is earlier. So the
    /// next change, however soon, gets a different change time.
    pub fn set_clean(
        &self,
        id: ObjectId,
        before: i64,
        mark: OriginMark,
        set: SetAttr,
    ) -> Result<()> {
        self.fills.is_marked(id, &mark);
        let mut past = before.min(now() - TICK);
        let set = SetAttr {
            ctime: Some(past),
            origin: Some(OriginMark {
                synced: past,
                ..mark
            }),
            ..set
        };
        self.shared.cluster().namespace().set_attr(id, &set)?;
        let inode = self.shared.inode(id)?;
        if inode.is_spread && inode.ctime != past {
            // A striped file's change time is the latest of those of its parts, so it may be later
            // than `past`. The mark gets that time, once it is old enough.
            past = inode.ctime;
            let rest = past + TICK - now();
            std::thread::sleep(Duration::from_nanos(rest.clamp(0, TICK) as u64));
            self.set_mark(
                id,
                OriginMark {
                    synced: past,
                    ..mark
                },
            )?;
        }
        Ok(())
    }

    /// Marks objects of the directory `dir` that the origin didn't have, and may have from now on.
    /// So processes send a request to this service before they change the objects' names. A process
    /// that has read the old mark and hasn't changed the name yet fails its check of the epoch of
    /// names, and starts again. The caller holds the objects' locks, and looks up their names
    /// afterwards.
    pub fn announce<'i>(
        &self,
        dir: ObjectId,
        objects: impl Iterator<Item = (ObjectId, &'i Inode)>,
    ) -> Result<()> {
        let is_new = |(_, inode): &(ObjectId, &Inode)| inode.origin.state == OriginState::None;
        let new: Vec<ObjectId> = objects.filter(is_new).map(|(id, _)| id).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mark = || {
            let mark = OriginMark {
                state: OriginState::Archived,
                print: 0,
                synced: 0,
            };
            for id in &new {
                match self.set_mark(*id, mark) {
                    Err(Errno::NOENT) => {}
                    done => done?,
                }
            }
            Ok(())
        };
        mark()?;
        // Setting the directory's mark, unchanged, begins a new epoch of names. If the directory's
        // record is lost, names in it can't change anyway.
        if !self.has_lost(dir) {
            self.set_mark(dir, self.shared.inode(dir)?.origin)?;
        }
        // Changes of names that began in the old epoch hold the locks of the objects' shards. So
        // setting the marks again waits for the end of these changes.
        mark()
    }
}

/// Whether pool and origin have the same version of a file.
pub fn is_clean(inode: &Inode) -> bool {
    inode.origin.is_clean(inode.ctime)
}
