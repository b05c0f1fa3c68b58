//! [`Fs`]: the view of one process on a pool.
//!
//! The calls of POSIX are its methods. The view has all that a call depends on: credentials,
//! caches, and the process for which it opens and makes files ([`Caller`]). Other files add the
//! calls, and the parts of the view: types that hold only what they need (the crate's head lists
//! them). Views of one process share everything but the [`Caller`] ([`Fs::for_process`],
//! [`Fs::declaring`]); making one costs two or three reference counts.

use crate::buffers::BufferCaches;
use crate::cache::DirCache;
use crate::cred::{Cred, OfThread};
use crate::origin_caches::OriginCaches;
use crate::pool_ref::PoolRef;
use crate::rule_cache::RuleCache;
use forebay_client::Pool;
use forebay_client::controls::Declared;
use forebay_cluster::{Cluster, Salvage, SalvageCell};
use forebay_store::controls::Opener;
use forebay_store::{Inode, ObjectId, PAGE, Store};
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
        // A small file inside its record takes no pages. A program that reads 0 blocks as "all
        // holes" must still copy the file's bytes.
        let inline = if i.pages == 0 {
            i.size.min(PAGE as u64).div_ceil(PAGE as u64)
        } else {
            0
        };
        // The pool has no pages of a file whose bytes are at the origin only. A program that reads
        // 0 blocks as "all holes" must still fetch and copy them.
        let released = if i.origin.is_released() && i.is_file() {
            i.size.div_ceil(PAGE as u64)
        } else {
            0
        };
        Stat {
            ino: id.0,
            mode: i.mode,
            nlink: i.nlink,
            uid: i.uid,
            gid: i.gid,
            rdev: i.rdev,
            size: if i.is_dir() { PAGE as u64 } else { i.size },
            blocks: match i.kind() {
                libc::S_IFREG => {
                    let small = i.size <= forebay_store::record::INLINE_MAX as u64;
                    (i.pages + if small { inline } else { 0 }).max(released) * (PAGE as u64 / 512)
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

/// The process for which a view opens and makes files.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// Id of a thread; the view works for that thread's process. 0: this process.
    /// [`UNSEEN`](crate::controls::UNSEEN): a process that the face can't see.
    pub process: u32,
    /// Controls of new files. These controls override those of the directory and of the rules.
    pub declared: Declared,
}

impl Default for Caller {
    fn default() -> Caller {
        Caller {
            process: 0,
            declared: Declared::NOTHING,
        }
    }
}

/// A process's view on a pool. See the crate's documentation.
pub struct Fs {
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    /// Buffered writes and read-ahead windows of files with weaker consistency. None: this view
    /// treats all files as strict.
    buffers: Option<Arc<BufferCaches>>,
    caller: Caller,
}

/// The state that the views of one process share.
struct Shared {
    cred: Cred,
    cache: DirCache,
    ruled: RuleCache,
    origin: OriginCaches,
    /// New files get their controls later, by [`Fs::settle`].
    settles: bool,
    /// See [`Fs::device`].
    device: u64,
    /// See [`Fs::salvage`].
    salvage: SalvageCell,
}

impl Shared {
    fn new(pool: &Pool, cred: Cred, settles: bool, of_origin: bool) -> Arc<Shared> {
        let minor = pool
            .config()
            .uuid
            .bytes()
            .fold(7u32, |n, b| n.wrapping_mul(31).wrapping_add(u32::from(b)));
        Arc::new(Shared {
            // Major number 0, as of all file systems without a device. Minor numbers of the
            // kernel's own such file systems count up from 1.
            device: libc::makedev(0, FIRST_MINOR | minor & (FIRST_MINOR - 1)),
            cred,
            cache: DirCache::new(),
            ruled: RuleCache::new(),
            origin: OriginCaches::new(pool, of_origin),
            settles,
            salvage: SalvageCell::new(),
        })
    }
}

/// Lowest minor device number of pools; the highest is twice this number, less 1.
const FIRST_MINOR: u32 = 1 << 19;

impl Fs {
    /// The view of this process.
    pub fn new(pool: Arc<Pool>) -> Fs {
        Fs {
            shared: Shared::new(&pool, Cred::new(&pool), false, false),
            pool,
            buffers: None,
            caller: Caller::default(),
        }
    }

    /// The view of a program that publishes its writes ([`FileBuffers::publish`]) when it closes
    /// files, forks, ends and so on. Until then, where the file's controls allow it, writes may be
    /// buffered and reads may be served from bytes read ahead.
    ///
    /// [`FileBuffers::publish`]: crate::FileBuffers::publish
    pub fn for_program(pool: Arc<Pool>) -> Fs {
        Fs {
            buffers: Some(Arc::new(BufferCaches::new())),
            ..Fs::new(pool)
        }
    }

    /// The view of a process that writes files in pieces, under temporary names. The files have
    /// strict semantics until [`Fs::settle`].
    pub fn for_staging(pool: Arc<Pool>) -> Fs {
        Fs {
            shared: Shared::new(&pool, Cred::new(&pool), true, false),
            ..Fs::new(pool)
        }
    }

    /// The view of the service that fetches files from the pool's origin: the view uses what is in
    /// the pool, and fetches nothing.
    pub fn for_origin(pool: Arc<Pool>) -> Fs {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Fs {
            // Permissions were checked before a program asked the service. And the service must
            // write to files for which even their owner has no write permission.
            shared: Shared::new(&pool, Cred::judged(&pool, uid, gid), false, true),
            ..Fs::new(pool)
        }
    }

    /// The view of a face whose requests the kernel has already allowed. New objects belong to the
    /// user `uid` and the group `gid`.
    pub fn judged_by_kernel(pool: Arc<Pool>, uid: u32, gid: u32) -> Fs {
        Fs {
            shared: Shared::new(&pool, Cred::judged(&pool, uid, gid), false, false),
            ..Fs::new(pool)
        }
    }

    /// The same view for a face that serves other processes: the view opens and makes files for the
    /// process to which the thread `id` belongs. [`UNSEEN`]: for a process that the face can't see;
    /// 0: for the calling process.
    ///
    /// [`UNSEEN`]: crate::controls::UNSEEN
    pub fn for_process(&self, id: u32) -> Fs {
        self.with(Caller {
            process: id,
            ..self.caller
        })
    }

    /// The same view, which declares these controls for files that it makes. The controls override
    /// those of the directory and of the rules.
    pub fn declaring(&self, declared: Declared) -> Fs {
        self.with(Caller {
            declared,
            ..self.caller
        })
    }

    fn with(&self, caller: Caller) -> Fs {
        Fs {
            pool: self.pool.clone(),
            shared: self.shared.clone(),
            buffers: self.buffers.clone(),
            caller,
        }
    }

    /// The process for which this view opens and makes files.
    #[inline]
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The process for which this view opens files.
    pub(crate) fn opener(&self) -> Opener {
        match self.caller.process {
            0 => Opener::Own,
            id => Opener::Served(id),
        }
    }

    /// The device number of the pool's files, which distinguishes them from files of other file
    /// systems.
    pub fn device(&self) -> u64 {
        self.shared.device
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The node store.
    pub fn store(&self) -> &Store {
        self.pool.store()
    }

    /// The pool as one store, whichever nodes its objects are on.
    pub fn cluster(&self) -> Cluster<'_> {
        self.pool_ref().cluster()
    }

    /// The pool, for the parts of this view.
    #[inline]
    pub(crate) fn pool_ref(&self) -> PoolRef<'_> {
        PoolRef::new(&self.pool, &self.shared.salvage)
    }

    /// If nodes are dead, collects the names that the living nodes know. From now on this view uses
    /// these names, so that all objects on living nodes can be saved ([`Salvage`]). Directories
    /// whose path isn't known are shown in `lost+found` of the directory `top`. If all nodes
    /// answer, returns None and ends an earlier salvage.
    ///
    /// # Errors
    /// EIO; EHOSTDOWN if nodes die again and again meanwhile.
    pub fn salvage(&self, top: &[u8]) -> Result<Option<Arc<Salvage>>> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let collected = self.cluster().dead_nodes().collect_salvage((uid, gid))?;
        let Some(mut collected) = collected else {
            self.shared.salvage.set(None);
            return Ok(None);
        };
        self.shared.salvage.set(Some(Arc::new(collected.clone())));
        let top = match self.stat(top, true) {
            Ok(found) if found.mode & libc::S_IFMT == libc::S_IFDIR => Ok(ObjectId(found.ino)),
            // `lost+found` can be shown only in a directory.
            Ok(_) => Err(Errno::NOTDIR),
            Err(Errno::HOSTDOWN) => self
                .cluster()
                .dead_nodes()
                .salvaged_top(&mut collected, top),
            Err(e) => Err(e),
        };
        if let Ok(top) = top {
            let shown = self
                .cluster()
                .dead_nodes()
                .show_unnamed(&mut collected, top);
            if shown.is_ok() {
                self.shared.salvage.set(Some(Arc::new(collected)));
            }
        }
        Ok(self.salvaged())
    }

    /// Ends the use of a salvage.
    pub fn end_salvage(&self) {
        self.shared.salvage.set(None);
    }

    /// The salvage that this view uses, if any.
    pub fn salvaged(&self) -> Option<Arc<Salvage>> {
        self.shared.salvage.get()
    }

    /// The credentials of the calling thread.
    #[inline]
    pub(crate) fn cred(&self) -> OfThread<'_> {
        self.shared.cred.ids()
    }

    /// The credentials of the process.
    #[inline]
    pub(crate) fn credentials(&self) -> &Cred {
        &self.shared.cred
    }

    /// Attributes as this process sees them.
    pub(crate) fn stat_of(&self, id: ObjectId, inode: &Inode) -> Stat {
        let stat = Stat::new(id, inode);
        match self.cred().map() {
            None => stat,
            Some(map) => Stat {
                uid: map.shown_user(stat.uid),
                gid: map.shown_group(stat.gid),
                ..stat
            },
        }
    }

    /// This process's caches of the pool's origin.
    #[inline]
    pub(crate) fn origin_caches(&self) -> &OriginCaches {
        &self.shared.origin
    }

    pub(crate) fn settles(&self) -> bool {
        self.shared.settles
    }

    /// The buffers of this process. None: this view buffers nothing.
    #[inline]
    pub(crate) fn buffer_caches(&self) -> Option<&BufferCaches> {
        self.buffers.as_deref()
    }

    pub(crate) fn cache(&self) -> &DirCache {
        &self.shared.cache
    }

    /// The results of the rules for directories.
    pub(crate) fn ruled(&self) -> &RuleCache {
        &self.shared.ruled
    }

    /// The mount prefix.
    pub fn mount(&self) -> &[u8] {
        self.pool.config().mount.as_bytes()
    }

    /// Reads the process's credentials again. Must be called when the process, which has one
    /// thread, has changed its user, groups or capabilities.
    pub fn refresh_credentials(&self) {
        self.shared.cred.refresh();
    }

    /// Makes each check read the calling thread's credentials from now on. Must be called when one
    /// of several threads has changed its own credentials, or before a vfork child does so, since
    /// that child shares this memory. `with_namespace`: the thread or child is in another user
    /// namespace.
    pub fn credentials_differ(&self, with_namespace: bool) {
        self.shared.cred.ask_each_time(with_namespace);
    }

    /// Whether credentials depend on the thread since [`Fs::credentials_differ`].
    pub fn do_credentials_differ(&self) -> bool {
        self.shared.cred.threads_differ()
    }

    /// Reads the map of the user namespace and the credentials again. Must be called when the
    /// process, which has one thread, may be in another user namespace than before.
    pub fn refresh_user_namespace(&self) {
        self.shared.cred.read_map();
        self.shared.cred.refresh();
    }

    /// Resets the view's caches. Must be the first call in a forked child.
    pub fn after_fork_in_child(&self) {
        self.shared.cache.after_fork_in_child();
        self.shared.ruled.begin_anew();
        self.shared.origin.begin_anew();
        if let Some(buffers) = &self.buffers {
            buffers.begin_anew();
        }
        self.pool().after_fork_in_child();
        forebay_store::watches::after_fork_in_child();
    }
}
