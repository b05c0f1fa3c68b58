//! The view of one process on a pool, and its simple path interface.

use crate::cache::DirCache;
use crate::cred::Cred;
use crate::path::{Fail, Follow, Place};
use crate::places::Places;
use crate::readahead::Window;
use crate::rule_cache::RuleCache;
use crate::writeback::Kept;
use crate::{File, RenameMode};
use forebay_client::Pool;
use forebay_store::{Cluster, Distribution, Inode, ObjectId, PAGE, Store};
use rustix::io::{Errno, Result};
use std::sync::Arc;

/// Attributes of an object. Times are nanoseconds since 1970; blocks are of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
}

impl Stat {
    pub(crate) fn new(id: ObjectId, i: &Inode) -> Stat {
        // A small file inside its record takes no pages; programs that take 0 blocks for
        // "all holes" must not be misled.
        let inline = if i.pages == 0 {
            i.size.min(PAGE as u64).div_ceil(PAGE as u64)
        } else {
            0
        };
        Stat {
            ino: id.0,
            mode: i.mode,
            nlink: i.nlink,
            uid: i.uid,
            gid: i.gid,
            rdev: if i.is_file() { 0 } else { i.rdev },
            size: if i.is_dir() { PAGE as u64 } else { i.size },
            blocks: match i.kind() {
                libc::S_IFREG => {
                    let small = i.size <= forebay_store::record::INLINE_MAX as u64;
                    (i.pages + if small { inline } else { 0 }) * (PAGE as u64 / 512)
                }
                libc::S_IFDIR => PAGE as u64 / 512,
                _ => 0,
            },
            atime: i.atime,
            mtime: i.mtime,
            ctime: i.ctime,
            btime: i.btime,
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    /// Type bits of the mode (S_IFMT).
    pub kind: u32,
}

/// A process's view on a pool. See the crate's documentation.
pub struct Fs {
    pool: Arc<Pool>,
    cred: Cred,
    cache: DirCache,
    ruled: RuleCache,
    /// What it makes gets its controls by [`Fs::settle`].
    settles: bool,
    /// What files with weaker consistency keep here; None: all are strict.
    kept: Option<Box<(Places<Kept>, Places<Window>)>>,
}

impl Fs {
    /// The view of this process.
    pub fn new(pool: Arc<Pool>) -> Fs {
        Fs {
            pool,
            cred: Cred::new(),
            cache: DirCache::new(),
            ruled: RuleCache::new(),
            settles: false,
            kept: None,
        }
    }

    /// The view of a program that publishes what it has written ([`Fs::publish`]) when it closes files, forks, ends and so
    /// on: until then it may be kept back, and what is read may be read ahead, where the file's controls say so.
    pub fn for_program(pool: Arc<Pool>) -> Fs {
        Fs {
            kept: Some(Box::new((Places::new(), Places::new()))),
            ..Fs::new(pool)
        }
    }

    /// The view of who writes files under other names than they will have, in pieces: they are strict until
    /// [`Fs::settle`].
    pub fn for_staging(pool: Arc<Pool>) -> Fs {
        Fs {
            settles: true,
            ..Fs::new(pool)
        }
    }

    /// The view of a face that asks only for what the kernel has allowed already. What is made
    /// belongs to the user and group given.
    pub fn judged_by_kernel(pool: Arc<Pool>, uid: u32, gid: u32) -> Fs {
        Fs {
            cred: Cred::judged(uid, gid),
            ..Fs::new(pool)
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The node store.
    pub fn store(&self) -> &Store {
        self.pool.store()
    }

    /// The pool as one store, on whatever nodes its objects lie.
    pub fn cluster(&self) -> Cluster<'_> {
        self.pool.cluster()
    }

    pub(crate) fn cred(&self) -> &Cred {
        &self.cred
    }

    pub(crate) fn settles(&self) -> bool {
        self.settles
    }

    /// What was written and isn't published.
    pub(crate) fn writeback(&self) -> Option<&Places<Kept>> {
        self.kept.as_ref().map(|kept| &kept.0)
    }

    /// What was read ahead.
    pub(crate) fn windows(&self) -> Option<&Places<Window>> {
        self.kept.as_ref().map(|kept| &kept.1)
    }

    pub(crate) fn cache(&self) -> &DirCache {
        &self.cache
    }

    /// What the rules know of directories.
    pub(crate) fn ruled(&self) -> &RuleCache {
        &self.ruled
    }

    /// The mount prefix.
    pub fn mount(&self) -> &[u8] {
        self.pool.config().mount.as_bytes()
    }

    /// Must be called when the process has changed its user or groups.
    pub fn refresh_credentials(&self) {
        self.cred.refresh();
    }

    /// In a forked child, before anything else.
    pub fn after_fork_in_child(&self) {
        self.cache.after_fork_in_child();
        self.ruled.begin_anew();
        if let Some(kept) = &self.kept {
            kept.0.begin_anew();
            kept.1.begin_anew();
        }
        self.store().after_fork_in_child();
        forebay_store::watches::after_fork_in_child();
    }

    /// Tells those who watch what is at a place, or the directory it is in, that `what` (bits of
    /// inotify(7)) happened to it. Names that come and go, and what happens by open files, is told anyway.
    pub fn tell_place(&self, place: &Place, what: u32) {
        if self.store().has_watches()
            && let Ok(e) = place.existing()
        {
            let at = place.parent_and_name();
            self.store().tell(e.id, e.kind, Some(at), what);
        }
    }

    // ---- simple path interface: absolute inside the pool; links out of it are EXDEV ----

    pub(crate) fn simple<T>(
        &self,
        path: &[u8],
        follow: bool,
        f: impl FnMut(&Place) -> Result<T>,
    ) -> Result<T> {
        let follow = if follow { Follow::Yes } else { Follow::No };
        self.at(ObjectId::ROOT, path, follow, f).map_err(no_outside)
    }

    /// Attributes of `path`.
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Stat> {
        self.simple(path, follow, |p| self.stat_place(p))
    }

    /// Opens `path`; `flags` are libc's O_*.
    pub fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<File<'_>> {
        let open = self
            .open_at(ObjectId::ROOT, path, flags, mode)
            .map_err(no_outside)?;
        self.store().tell_opened(open);
        Ok(File::new(self, open))
    }

    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.simple(path, false, |p| self.make_dir(p, mode))
    }

    /// Makes a directory whose content is distributed so.
    pub fn mkdir_with(&self, path: &[u8], mode: u32, distribution: Distribution) -> Result<()> {
        self.simple(path, false, |p| self.make_dir_with(p, mode, distribution))
    }

    /// As `mkdir`, of what will be renamed to `becomes` in the same directory: its content is distributed as of what is made there by
    /// that name.
    ///
    /// # Errors
    /// As for `mkdir`.
    pub fn mkdir_as(&self, path: &[u8], becomes: &[u8], mode: u32) -> Result<()> {
        self.simple(path, false, |p| self.make_dir_as(p, becomes, mode))
    }

    pub fn mknod(&self, path: &[u8], mode: u32, rdev: u64) -> Result<()> {
        self.simple(path, false, |p| self.make_node(p, mode, rdev).map(|_| ()))
    }

    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.simple(path, false, |p| self.remove_dir(p))
    }

    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        self.simple(path, false, |p| self.remove_file(p))
    }

    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let root = ObjectId::ROOT;
        self.rename_at((root, from), (root, to), RenameMode::Replace)
            .map_err(no_outside)
    }

    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let id = self.simple(old, false, |p| p.existing())?.id;
        self.simple(new, false, |p| self.make_link(id, p))
    }

    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.simple(path, false, |p| self.make_symlink(target, p))
    }

    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.simple(path, false, |p| self.read_symlink(p))
    }

    pub fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        self.simple(path, true, |p| self.change_mode(p.existing()?.id, mode))
    }

    pub fn chown(
        &self,
        path: &[u8],
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> Result<()> {
        self.simple(path, follow, |p| {
            self.change_owner(p.existing()?.id, uid, gid)
        })
    }

    /// Sets times in nanoseconds since 1970; None leaves one as it is.
    pub fn set_times(
        &self,
        path: &[u8],
        atime: Option<i64>,
        mtime: Option<i64>,
        follow: bool,
    ) -> Result<()> {
        self.simple(path, follow, |p| {
            self.change_times(p.existing()?.id, atime, mtime, false)
        })
    }

    /// All entries of a directory but `.` and `..`, in no particular order.
    pub fn list(&self, path: &[u8]) -> Result<Vec<DirEntry>> {
        self.simple(path, true, |p| {
            let e = p.existing()?;
            if e.kind != libc::S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            let mut entries = Vec::new();
            self.cluster()
                .list(e.id, &mut Default::default(), |name, e| {
                    entries.push(DirEntry {
                        name: name.to_vec(),
                        ino: e.id.0,
                        kind: e.kind,
                    });
                    true
                })?;
            Ok(entries)
        })
    }

    /// Names of the extended attributes.
    pub fn xattrs(&self, path: &[u8], follow: bool) -> Result<Vec<Vec<u8>>> {
        self.simple(path, follow, |p| {
            self.cluster().attributes(p.existing()?.id)
        })
    }

    pub fn xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<Vec<u8>> {
        self.simple(path, follow, |p| self.get_attribute(p.existing()?.id, name))
    }

    pub fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], follow: bool) -> Result<()> {
        self.simple(path, follow, |p| {
            self.set_attribute(p.existing()?.id, name, value, 0, Some(p.parent_and_name()))
        })
    }

    pub fn remove_xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<()> {
        self.simple(path, follow, |p| {
            self.remove_attribute(p.existing()?.id, name)
        })
    }
}

fn no_outside(f: Fail) -> Errno {
    match f {
        Fail::Errno(e) => e,
        Fail::Outside(_) => Errno::XDEV,
    }
}
