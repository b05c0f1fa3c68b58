//! Fetching whole files from the origin, and all files below a path.

use crate::attributes::ObjectAttributes;
use crate::error::{Done, Error};
use crate::listing::Listing;
use crate::marks::{Marks, is_clean};
use crate::orders::CopierOrders;
use crate::quota::Quota;
use crate::ranges::Ranges;
use crate::room::Room;
use crate::shared::Shared;
use crate::side::{below, print, threads};
use crate::tree::Tree;
use forebay_backing::{Meta, PoolFile, StoreFile, pool_time};
use forebay_posix::{File, ObjectId};
use forebay_staging::{Care, copy_content};
use forebay_store::{Entry, Inode, OriginMark, OriginState, SetAttr};
use rustix::io::{Errno, Result};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of attempts to read a file that changes while it is read.
const ATTEMPTS: usize = 3;
/// Maximum number of attempts to fetch a file while the pool is full, and the pause between two
/// attempts. In all 1 s.
const ROOM_ATTEMPTS: usize = 20;
const ROOM_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Fetches whole files.
pub struct Bytes {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub orders: Arc<CopierOrders>,
    pub attributes: Arc<ObjectAttributes>,
    pub listing: Arc<Listing>,
    pub room: Arc<Room>,
    pub ranges: Arc<Ranges>,
    pub quota: Arc<Quota>,
}

impl Bytes {
    /// Fetches the bytes of a file, unless they are in the pool. In a full pool, other files are
    /// evicted. If `cut`, the caller is about to truncate the file: nothing is fetched, and the
    /// file's size is set to 0.
    ///
    /// # Errors
    /// The errno, and what failed.
    pub fn bring_bytes(&self, id: ObjectId, name: (ObjectId, &[u8]), cut: bool) -> Done {
        for _ in 0..ROOM_ATTEMPTS {
            match self.try_to_bring(id, name, cut) {
                Err(Error {
                    errno: Errno::NOSPC,
                    ..
                }) => {
                    let size = self.shared.inode(id).map_or(0, |inode| inode.size);
                    let home = self.shared.cluster().home_of(id);
                    if self.room.evict_least_used(size, home).unwrap_or(0) == 0 {
                        // Nothing could be evicted: clean files are in use, or dirty ones are being
                        // written back.
                        std::thread::sleep(ROOM_POLL_INTERVAL);
                    }
                    self.shared.advance();
                }
                done => return done,
            }
        }
        self.try_to_bring(id, name, cut)
    }

    fn try_to_bring(&self, id: ObjectId, (dir, name): (ObjectId, &[u8]), cut: bool) -> Done {
        let (_held, relative) = match self.tree.path_held(dir) {
            Ok((held, relative)) => (held, Some(relative)),
            // The directory `dir` was removed, or moved out of the origin's tree, while a process
            // has the file open.
            Err(_) => (self.tree.paths(), None),
        };
        let _working = self.marks.lock(id);
        self.orders.make_sure_of(id)?;
        let inode = self.shared.inode(id)?;
        if !inode.origin.is_released() {
            return Ok(());
        }
        if cut {
            // If the requesting process dies before it truncates the file, the file is empty rather
            // than full of zeros.
            self.shared.resize(id, 0)?;
            self.quota.others(-(inode.size as i64), 0);
            let mark = OriginMark {
                state: OriginState::Archived,
                synced: 0,
                ..inode.origin
            };
            return self.marks.set_mark(id, mark).map_err(Error::from);
        }
        let relative = match relative {
            Some(at) if self.tree.has_name(dir, name, id) => below(&at, name),
            _ => self.tree.find(id)?,
        };
        self.fetch(id, &relative).map_err(|e| match e {
            // Another object has the name: the requesting process looks the name up again.
            Errno::STALE => e.into(),
            e => Error::new(e, self.shared.error_text(&relative, "can't be read", e)),
        })
    }

    /// Fetches the `user.*` attributes of a released file. `dir` and `name`: a name that it has, or
    /// has had.
    ///
    /// # Errors
    /// Errors of reading the attributes at the origin.
    pub fn bring_attributes(&self, id: ObjectId, (dir, name): (ObjectId, &[u8])) -> Result<()> {
        let (_held, at) = match self.tree.path_held(dir) {
            Ok((held, at)) => (held, Some(at)),
            Err(_) => (self.tree.paths(), None),
        };
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        if !inode.origin.is_released() {
            return Ok(());
        }
        let relative = match at {
            Some(at) if self.tree.has_name(dir, name, id) => below(&at, name),
            _ => self.tree.find(id)?,
        };
        self.attributes.bring_user_attributes(&relative)?;
        if is_clean(&inode) {
            self.marks
                .set_clean(id, inode.ctime, inode.origin, SetAttr::default())
        } else {
            Ok(())
        }
    }

    /// Copies a released file into the pool. The caller holds the object's lock and the lock on the
    /// paths.
    fn fetch(&self, id: ObjectId, relative: &[u8]) -> Result<()> {
        if self.ranges.bring_rest(id, relative)? {
            return Ok(());
        }
        self.orders.make_sure_of(id)?;
        let mut last = Errno::IO;
        for _ in 0..ATTEMPTS {
            match self.fetch_once(id, relative) {
                // The origin's file has changed while it was read.
                Err(Errno::STALE) => last = Errno::BUSY,
                done => return done,
            }
        }
        Err(last)
    }

    fn fetch_once(&self, id: ObjectId, relative: &[u8]) -> Result<()> {
        let inode = self.shared.inode(id)?;
        // If the file isn't clean, the pool's attributes have changed and aren't written back yet.
        let has_own_attributes = !is_clean(&inode);
        let filled = self.fill(id, relative).and_then(|filled| {
            if !self.shared.side.is_object_store() {
                self.attributes.bring_user_attributes(relative)?;
            }
            Ok(filled)
        });
        let mut set = SetAttr {
            mtime: Some(inode.mtime),
            ..SetAttr::default()
        };
        let rights = |inode: &Inode| (inode.mode, inode.uid, inode.gid);
        let has_own_attributes =
            has_own_attributes || rights(&self.shared.inode(id)?) != rights(&inode);
        if let (Ok((_, meta)), false) = (&filled, has_own_attributes) {
            set.mtime = Some(pool_time(meta.mtime));
            set.mode = Some(meta.permissions());
            if self.shared.side.is_object_store() {
                // Listings of a bucket lack owner and group.
                (set.uid, set.gid) = (Some(meta.uid), Some(meta.gid));
            }
        }
        let mark = match &filled {
            Ok((_, meta)) => OriginMark {
                state: OriginState::Archived,
                print: print(meta),
                synced: 0,
            },
            // The failed fetch has set the file's change time, but hasn't changed the file.
            Err(_) => inode.origin,
        };
        if has_own_attributes {
            set.origin = Some(OriginMark { synced: 0, ..mark });
            self.marks.fills().is_marked(id, &mark);
            self.shared.cluster().namespace().set_attr(id, &set)?;
        } else {
            self.marks.set_clean(id, inode.ctime, mark, set)?
        }
        let (bytes, _) = filled?;
        self.shared.ledger.fetched.add(1, bytes);
        self.shared.ledger.is_solved(relative);
        Ok(())
    }

    /// Copies the origin's bytes into a released file. Returns their number, and the origin's
    /// metadata.
    fn fill(&self, id: ObjectId, relative: &[u8]) -> Result<(u64, Meta)> {
        let from = self.shared.side.open(relative, false)?;
        if let Some(there) = from.user_attributes() {
            self.attributes.take_user_attributes(relative, there)?;
        }
        let before = from.meta()?;
        let entry = Entry {
            id,
            kind: libc::S_IFREG,
        };
        let open = self.shared.fs.keep_object(entry, libc::O_RDWR)?;
        let to = PoolFile::new(File::new(&self.shared.fs, open));
        if self.shared.inode(id)?.pages > 0 {
            // An interrupted fetch has left bytes.
            to.set_len(0)?;
        }
        to.set_len(before.size)?;
        // Files media are read back for verification; memory isn't, since it returns what was
        // written. In a pool that outlives a loss of power, bytes reach stable storage before
        // records refer to them.
        let care = Care {
            sync: self.shared.is_durable(),
            verify: self.shared.pool.config().has_files(),
        };
        let whole = (0, before.size);
        let copied = match self.orders.copy_there(id, relative, &before, whole) {
            Ok(None) => {
                // A failed copy on another node has left bytes. They would fill holes of the file.
                if self.shared.inode(id)?.pages > 0 {
                    to.set_len(0)?;
                    to.set_len(before.size)?;
                }
                let copy = |progress: &_| {
                    copy_content(&*from, &to, care, threads(&*self.shared.side), progress)
                };
                self.shared.watched(copy).map_err(|error| error.errno())
            }
            Ok(Some(bytes)) => match from.meta().map(|meta| self.shared.side.comparable(meta)) {
                Ok(after) if print(&after) == print(&before) => Ok((bytes, after)),
                Ok(_) => Err(Errno::STALE),
                Err(e) => Err(e),
            },
            Err(e) => Err(e),
        };
        if copied.is_err() {
            to.set_len(0)?;
            to.set_len(before.size)?;
        }
        let copied = copied?;
        to.close()?;
        let (bytes, meta) = copied;
        Ok((bytes, self.shared.side.comparable(meta)))
    }

    /// Fetches all files below a path of the origin. Returns the number of fetched files, and the
    /// error messages of the others.
    pub fn prefetch(&self, relative: &[u8]) -> Result<(u64, Vec<String>)> {
        let (mut count, mut failed) = (0, Vec::new());
        self.bring_above(relative)?;
        self.bring_below(relative)?;
        let mut files = Vec::new();
        self.tree
            .each_object(relative, &mut |_, at, entry, inode| {
                if inode.is_file()
                    && inode.origin.is_released()
                    && !self.shared.is_origin_only(at, libc::S_IFREG)
                {
                    files.push((entry.id, at.to_vec()));
                }
                Ok(())
            })?;
        for (id, at) in files {
            let _held = self.tree.paths();
            let _working = self.marks.lock(id);
            match self.shared.inode(id) {
                Ok(inode) if inode.origin.is_released() => {}
                _ => continue,
            }
            match self.fetch(id, &at) {
                Ok(()) => count += 1,
                Err(e) => failed.push(self.shared.error_text(&at, "can't be read", e)),
            }
        }
        Ok((count, failed))
    }

    /// Fetches the entries of all directories above a path.
    fn bring_above(&self, relative: &[u8]) -> Result<()> {
        let mut dir = self.tree.root()?;
        for name in relative
            .split(|&b| b == b'/')
            .filter(|name| !name.is_empty())
        {
            if self.shared.inode(dir)?.origin.is_released() {
                self.listing.bring_entries(dir)?;
            }
            let entry = self
                .shared
                .cluster()
                .namespace()
                .lookup(dir, name)?
                .ok_or(Errno::NOENT)?;
            if entry.kind != libc::S_IFDIR {
                break;
            }
            dir = entry.id;
        }
        Ok(())
    }

    /// Fetches the entries of all directories below a path.
    fn bring_below(&self, relative: &[u8]) -> Result<()> {
        loop {
            let mut released = Vec::new();
            self.tree
                .each_object(relative, &mut |_, at, entry, inode| {
                    let is_released = inode.is_dir() && inode.origin.is_released();
                    if is_released && !self.shared.is_origin_only(at, libc::S_IFDIR) {
                        released.push(entry.id);
                    }
                    Ok(())
                })?;
            let top = ObjectId(
                self.shared
                    .fs
                    .stat(&self.shared.pool_path(relative), true)?
                    .ino,
            );
            let inode = self.shared.inode(top)?;
            if inode.is_dir() && inode.origin.is_released() {
                released.push(top);
            }
            if released.is_empty() {
                return Ok(());
            }
            for dir in released {
                self.listing.bring_entries(dir)?;
            }
        }
    }
}
