//! [`Fs`]: the view of one process on a pool.
//!
//! All operations of this crate are its methods. What a call depends on is in the view:
//! credentials, caches, and the process for which it opens and makes files ([`Caller`]). Views of
//! one process share everything but the last ([`Fs::for_process`], [`Fs::declaring`]); making one
//! costs two or three reference counts.

use crate::cache::DirCache;
use crate::cred::Cred;
use crate::kept::{Kept, Window};
use crate::known_blocks::RangeCache;
use crate::off::Off;
use crate::per_file_cache::Places;
use crate::rule_cache::RuleCache;
use forebay_client::Pool;
use forebay_client::controls::Declared;
use forebay_cluster::Cluster;
use forebay_store::controls::Opener;
use forebay_store::{Inode, ObjectId, PAGE, Store};
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
        // A program that takes 0 blocks for "all holes" must not lose what the origin has.
        let released = match i.origin.is_released() && i.is_file() {
            true => i.size.div_ceil(PAGE as u64),
            false => 0,
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

/// On whose behalf a view opens and makes files.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// The process for which it works, by the id of a thread; 0: the own one;
    /// [`UNSEEN`](crate::controls::UNSEEN).
    pub process: u32,
    /// Controls of new files. They precede those of the directory and of the rules.
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
    own: Arc<Own>,
    /// What files with weaker consistency keep here; None: all are strict.
    kept: Option<Arc<(Places<Kept>, Places<Window>)>>,
    caller: Caller,
}

/// What the views of one process share.
struct Own {
    cred: Cred,
    cache: DirCache,
    ruled: RuleCache,
    ranges: RangeCache,
    /// New files get their controls later, by [`Fs::settle`].
    settles: bool,
    /// What lies at the pool's origin only is brought in before it is used.
    has_origin: bool,
    /// The origin's modes, if some paths are at the origin only.
    off: Option<Off>,
    /// See [`Fs::device`].
    device: u64,
}

impl Own {
    fn new(pool: &Pool, cred: Cred, settles: bool, of_origin: bool) -> Arc<Own> {
        let minor = pool
            .config()
            .uuid
            .bytes()
            .fold(7u32, |n, b| n.wrapping_mul(31).wrapping_add(u32::from(b)));
        let has_origin = pool.config().origin.is_some() && !of_origin;
        Arc::new(Own {
            device: libc::makedev(0xfb0, minor & 0xf_ffff),
            has_origin,
            off: Off::of(pool).filter(|_| !of_origin),
            cred,
            cache: DirCache::new(),
            ruled: RuleCache::new(),
            ranges: RangeCache::new(has_origin),
            settles,
        })
    }
}

impl Fs {
    /// The view of this process.
    pub fn new(pool: Arc<Pool>) -> Fs {
        Fs {
            own: Own::new(&pool, Cred::new(), false, false),
            pool,
            kept: None,
            caller: Caller::default(),
        }
    }

    /// The view of a program that publishes what it has written ([`Fs::publish`]) when it closes
    /// files, forks, ends and so on: until then it may be kept back, and what is read may be read
    /// ahead, where the file's controls say so.
    pub fn for_program(pool: Arc<Pool>) -> Fs {
        Fs {
            kept: Some(Arc::new((Places::new(), Places::new()))),
            ..Fs::new(pool)
        }
    }

    /// The view of who writes files under other names than they will have, in pieces: they are
    /// strict until [`Fs::settle`].
    pub fn for_staging(pool: Arc<Pool>) -> Fs {
        Fs {
            own: Own::new(&pool, Cred::new(), true, false),
            ..Fs::new(pool)
        }
    }

    /// The view of the service that brings in what lies at the pool's origin: it sees the pool as it
    /// is.
    pub fn for_origin(pool: Arc<Pool>) -> Fs {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Fs {
            // Programs were judged before they asked; files that their owner may only read come in, too.
            own: Own::new(&pool, Cred::judged(uid, gid), false, true),
            ..Fs::new(pool)
        }
    }

    /// The view of a face that asks only for what the kernel has allowed already. What is made
    /// belongs to the user and group given.
    pub fn judged_by_kernel(pool: Arc<Pool>, uid: u32, gid: u32) -> Fs {
        Fs {
            own: Own::new(&pool, Cred::judged(uid, gid), false, false),
            ..Fs::new(pool)
        }
    }

    /// The same view for a face that serves other processes: it opens and makes files for the
    /// process to which the thread `id` belongs; [`UNSEEN`]: for one that the face can't see; 0:
    /// for the own one.
    ///
    /// [`UNSEEN`]: crate::controls::UNSEEN
    pub fn for_process(&self, id: u32) -> Fs {
        self.with(Caller {
            process: id,
            ..self.caller
        })
    }

    /// The same view, which declares these controls of files that it makes, before those of their
    /// directory and of the rules.
    pub fn declaring(&self, declared: Declared) -> Fs {
        self.with(Caller {
            declared,
            ..self.caller
        })
    }

    fn with(&self, caller: Caller) -> Fs {
        Fs {
            pool: self.pool.clone(),
            own: self.own.clone(),
            kept: self.kept.clone(),
            caller,
        }
    }

    /// On whose behalf this view opens and makes files.
    pub(crate) fn caller(&self) -> Caller {
        self.caller
    }

    /// The process for which this view opens files.
    pub(crate) fn opener(&self) -> Opener {
        match self.caller.process {
            0 => Opener::Own,
            id => Opener::Served(id),
        }
    }

    /// The device number of the pool's files: tells them from those of other file systems.
    pub fn device(&self) -> u64 {
        self.own.device
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
        &self.own.cred
    }

    /// Whether what lies at the pool's origin only is brought in before it is used.
    #[inline]
    pub(crate) fn has_origin(&self) -> bool {
        self.own.has_origin
    }

    /// The origin's modes, if some paths are at the origin only.
    #[inline]
    pub(crate) fn off(&self) -> Option<&Off> {
        self.own.off.as_ref()
    }

    pub(crate) fn settles(&self) -> bool {
        self.own.settles
    }

    /// Writes that aren't published.
    pub(crate) fn writeback(&self) -> Option<&Places<Kept>> {
        self.kept.as_ref().map(|kept| &kept.0)
    }

    /// Bytes that were read ahead.
    pub(crate) fn windows(&self) -> Option<&Places<Window>> {
        self.kept.as_ref().map(|kept| &kept.1)
    }

    pub(crate) fn cache(&self) -> &DirCache {
        &self.own.cache
    }

    /// What the rules know of directories.
    pub(crate) fn ruled(&self) -> &RuleCache {
        &self.own.ruled
    }

    /// Which blocks of files at the origin are in the pool.
    pub(crate) fn ranges(&self) -> &RangeCache {
        &self.own.ranges
    }

    /// The mount prefix.
    pub fn mount(&self) -> &[u8] {
        self.pool.config().mount.as_bytes()
    }

    /// Must be called when the process has changed its user or groups.
    pub fn refresh_credentials(&self) {
        self.own.cred.refresh();
    }

    /// In a forked child, before anything else.
    pub fn after_fork_in_child(&self) {
        self.own.cache.after_fork_in_child();
        self.own.ruled.begin_anew();
        self.own.ranges.begin_anew();
        if let Some(off) = &self.own.off {
            off.begin_anew();
        }
        if let Some(kept) = &self.kept {
            kept.0.begin_anew();
            kept.1.begin_anew();
        }
        self.pool().after_fork_in_child();
        forebay_store::watches::after_fork_in_child();
    }
}
