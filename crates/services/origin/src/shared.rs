//! The state that all parts of the service share: the pool, its origin, counters and problems.

use crate::copy_progress::watched;
use crate::status::Ledger;
use forebay_backing::SlowStore;
use forebay_client::Pool;
use forebay_client::origin::{OriginConfig, OriginMode};
use forebay_cluster::Cluster;
use forebay_posix::{File, Fs, ObjectId};
use forebay_staging::{Pace, Progress};
use forebay_store::{Entry, Inode};
use rustix::io::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of threads that list, fetch or write back one directory or file.
pub const THREADS: usize = 4;
/// Number of threads that write back small files of one directory. The threads mostly wait for the
/// origin: each file takes about ten operations there.
pub const WRITERS: usize = 8;

/// The pool and its origin, with the counters and problems of the service.
pub struct Shared {
    pub pool: Arc<Pool>,
    pub fs: Fs,
    pub config: OriginConfig,
    /// The origin.
    pub side: Box<dyn SlowStore>,
    pub ledger: Ledger,
    /// Counter that increases with any progress, which distinguishes a long request from one that
    /// hangs.
    moved: AtomicU64,
    /// The limit on bytes per second from and to the origin.
    pace: Option<Arc<Pace>>,
}

impl Shared {
    pub fn new(pool: &Arc<Pool>, config: OriginConfig, side: Box<dyn SlowStore>) -> Shared {
        Shared {
            pool: pool.clone(),
            fs: Fs::for_origin(pool.clone()),
            pace: config.bandwidth.map(|rate| Arc::new(Pace::new(rate))),
            config,
            side,
            ledger: Ledger::default(),
            moved: AtomicU64::new(0),
        }
    }

    /// Returns the stores of the pool's nodes as one.
    pub fn cluster(&self) -> Cluster<'_> {
        self.fs.cluster()
    }

    /// Counts progress of a request.
    pub fn advance(&self) {
        self.moved.fetch_add(1, Relaxed);
    }

    /// Returns the counter of progress.
    pub fn moved(&self) -> &AtomicU64 {
        &self.moved
    }

    /// Whether the bytes per second from and to the origin are limited.
    pub fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Returns a sentence for a failure at a path of the origin, such as "PATH can't be read: ...".
    pub fn error_text(&self, relative: &[u8], what: &str, e: Errno) -> String {
        format!(
            "{} {what}: {}",
            self.side.show(relative),
            self.side.explain(e)
        )
    }

    /// Calls `f` with a [`Progress`] whose bytes count as progress of the service.
    pub fn watched<T>(&self, f: impl FnOnce(&Progress) -> T) -> T {
        let progress = Progress::at(self.pace.clone());
        watched(&self.moved, &progress, || f(&progress))
    }

    /// Returns the path in the pool of a path at the origin.
    pub fn pool_path(&self, relative: &[u8]) -> Vec<u8> {
        self.config.pool_path(relative)
    }

    /// Sets the size of a file that has no bytes in the pool.
    pub fn resize(&self, id: ObjectId, size: u64) -> Result<()> {
        let entry = Entry {
            id,
            kind: libc::S_IFREG,
        };
        let file = File::new(&self.fs, self.fs.keep_object(entry, libc::O_RDWR)?);
        file.set_len(size)?;
        file.close()
    }

    /// Returns the mode of objects of this kind (S_IFMT) at this path of the origin.
    pub fn mode_of(&self, relative: &[u8], kind: u32) -> OriginMode {
        let path = self.pool_path(relative);
        match kind {
            libc::S_IFDIR => self.config.mode_of_dir(&path),
            _ => self.config.mode_of(&path),
        }
    }

    /// Whether objects of this kind (S_IFMT) at this path are at the origin only.
    pub fn is_origin_only(&self, relative: &[u8], kind: u32) -> bool {
        self.mode_of(relative, kind) == OriginMode::Off
    }

    /// Returns an object's inode. For a striped file, its pages and the times of its last write
    /// include those of the parts on other nodes.
    pub fn inode(&self, id: ObjectId) -> Result<Inode> {
        let cluster = self.cluster();
        cluster.data().with_parts(id, cluster.namespace().stat(id)?)
    }

    /// Whether the pool outlives a loss of power.
    pub fn is_durable(&self) -> bool {
        self.pool.config().journal_dir(self.pool.dir()).is_some()
    }

    /// Syncs the pool before files are written back, if the pool outlives a loss of power. Without
    /// the sync, a loss of power could leave a file that is marked clean but lacks its bytes, or is
    /// older than the origin's version.
    pub fn sync_pool(&self) -> Result<()> {
        if self.is_durable() {
            self.cluster().data().sync_everywhere()
        } else {
            Ok(())
        }
    }

    /// Whether the pool still exists. The service's threads end when it doesn't.
    pub fn is_there(&self) -> bool {
        self.pool.dir().join("pool.json").exists()
    }
}
