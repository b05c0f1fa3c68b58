//! Answers the kernel's requests, each by one or two calls of `posix`.

mod attributes;
mod dirs;
mod files;
mod locks;
mod names;

use crate::cached::Cached;
use crate::directories::Directories;
use crate::keeping::Keeping;
use crate::known::Known;
use crate::notices::Notices;
use crate::protocol::{self as p, Args, Head, Reply, opcode as op};
use crate::recent::Recent;
use forebay_client::Pool;
use forebay_posix::controls::{ASIDE, UNSEEN};
use forebay_posix::{Fail, Fs, ObjectId, Stat};
use forebay_runtime::threads::{read_lock, write_lock};
use forebay_store::process::is_answering;
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// The answer to a request.
pub enum Answer {
    /// Send the reply, or an error.
    Reply(Result<()>),
    /// Send no reply.
    None,
    /// Send the result of a wait for a lock.
    Wait(Wait),
}

/// A function that waits for a lock, and returns early when the flag is set.
pub type Wait = Box<dyn FnOnce(&AtomicBool) -> Result<()> + Send>;

/// A pool, as the kernel sees it.
pub struct Face {
    pool: Arc<Pool>,
    /// The view of the user that serves the mount.
    own: Arc<Fs>,
    /// Views of the users for whom something was created, by user and group. An object that is
    /// created through a view belongs to its user.
    others: RwLock<HashMap<(u32, u32), Arc<Fs>>>,
    dirs: dirs::Dirs,
    locks: locks::Locks,
    recent: Arc<Recent>,
    known: Known,
    directories: Directories,
    /// Number of requests in progress that may free space.
    freeing: AtomicUsize,
    pub cached: Cached,
    pub keeping: Keeping,
}

/// How long a request that finds no space waits, at most, for space that is being freed.
const GIVING_BACK: Duration = Duration::from_millis(500);
/// Maximum number of views that are kept. A mount for all users may need more; then all are
/// dropped.
const MAX_VIEWS: usize = 256;

impl Face {
    /// Creates the face of a mount.
    ///
    /// # Errors
    /// If a thread can't be started.
    pub fn new(pool: Arc<Pool>, notices: Arc<Notices>, keeping: Keeping) -> io::Result<Face> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let own = Arc::new(Fs::judged_by_kernel(pool.clone(), uid, gid));
        let recent = Arc::default();
        Recent::watch(&recent, own.clone())?;
        Ok(Face {
            own,
            pool,
            others: RwLock::default(),
            dirs: dirs::Dirs::default(),
            locks: locks::Locks::default(),
            recent,
            known: Known::default(),
            directories: Directories::default(),
            freeing: AtomicUsize::new(0),
            cached: Cached::new(notices),
            keeping,
        })
    }

    /// Closes files that are kept open for the next requests, and those that the kernel hasn't
    /// closed. Called after the last request.
    ///
    /// # Errors
    /// If files can't be written back.
    pub fn end(&self) -> Result<()> {
        self.keeping.end();
        self.locks.let_go();
        self.recent.let_go(self.fs());
        self.fs().store().recovery().close_owned()
    }

    /// Returns the view for requests that create nothing.
    pub fn fs(&self) -> &Fs {
        &self.own
    }

    /// Returns the view in which new objects belong to the requesting user.
    fn others_view(&self, head: &Head) -> Arc<Fs> {
        let user = (head.uid, head.gid);
        let read = read_lock(&self.others);
        if let Some(fs) = read.get(&user) {
            return fs.clone();
        }
        drop(read);
        let mut others = write_lock(&self.others);
        if others.len() >= MAX_VIEWS {
            others.clear();
        }
        let new = || Arc::new(Fs::judged_by_kernel(self.pool.clone(), user.0, user.1));
        others.entry(user).or_insert_with(new).clone()
    }

    /// Answers a request. Puts the reply's content into `reply`.
    pub fn answer(&self, head: &Head, args: Args<'_>, reply: &mut Reply) -> Answer {
        let request = Call {
            face: self,
            fs: self.own.for_process(requester(head)),
            head,
        };
        let answer = request.answer(args.clone(), reply);
        match answer {
            // The request had no effect, and space may be freed in a moment.
            Answer::Reply(Err(Errno::DQUOT | Errno::NOSPC)) if self.is_giving_back() => {
                if is_answering() {
                    return Answer::Reply(Err(ASIDE));
                }
                self.wait_for_room();
                reply.clear();
                request.answer(args, reply)
            }
            answer => answer,
        }
    }

    /// Whether files are being closed or removed, or are kept open for a moment, so that space may
    /// be freed soon.
    fn is_giving_back(&self) -> bool {
        !self.recent.is_empty() || self.freeing.load(Relaxed) > 0
    }

    /// Waits until the space of files that programs have removed and closed is freed. The kernel
    /// reports the close only after the program has continued.
    fn wait_for_room(&self) {
        let until = Instant::now() + GIVING_BACK;
        self.recent.let_go(self.fs());
        while self.freeing.load(Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes what a request has opened, if the kernel didn't accept the reply.
    pub fn unanswered(&self, head: &Head, reply: &mut Reply) {
        // If the reply has an entry, the handle follows the entry.
        let at = match head.opcode {
            op::OPEN | op::OPENDIR => p::REPLY_HEAD,
            op::CREATE | op::TMPFILE => p::REPLY_HEAD + p::ENTRY,
            _ => return,
        };
        let reply = reply.finish(head.unique);
        if let Some(open) = reply.get(at..at + 4).and_then(|b| b.try_into().ok()) {
            let open = u32::from_ne_bytes(open);
            self.dirs.forget(open);
            let _ = self.close(open);
        }
    }
}

/// A request that is being answered, with the view of the requesting process.
struct Call<'a> {
    face: &'a Face,
    fs: Fs,
    head: &'a Head,
}

impl Deref for Call<'_> {
    type Target = Face;

    fn deref(&self) -> &Face {
        self.face
    }
}

impl Call<'_> {
    /// Returns the view for operations that create nothing.
    fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Returns the pool's id of the request's node.
    fn object(&self) -> ObjectId {
        object(self.head.node)
    }

    /// Returns the view in which new objects belong to the requesting user.
    fn fs_of(&self) -> Fs {
        let view = self.others_view(self.head);
        view.for_process(requester(self.head))
    }

    fn answer(&self, mut a: Args<'_>, reply: &mut Reply) -> Answer {
        let a = &mut a;
        let frees = matches!(
            self.head.opcode,
            op::RELEASE | op::UNLINK | op::RENAME | op::RENAME2
        );
        self.freeing.fetch_add(usize::from(frees), Relaxed);
        let result = match self.head.opcode {
            op::FORGET => {
                self.directories.forget(self.head.node);
                return Answer::None;
            }
            op::BATCH_FORGET => {
                let _ = self.forget_batch(a);
                return Answer::None;
            }
            op::SETLKW => match self.lock_waiting(a) {
                Ok(Some(wait)) => return Answer::Wait(wait),
                Ok(None) => Ok(()),
                Err(e) => Err(e),
            },
            op::LOOKUP => self.lookup(a, reply),
            op::GETATTR => self.get_attributes(a, reply),
            op::STATX => self.statx(a, reply),
            op::SETATTR => self.set_attributes(a, reply),
            op::READLINK => self.readlink(reply),
            op::SYMLINK => self.symlink(a, reply),
            op::MKNOD => self.mknod(a, reply),
            op::MKDIR => self.mkdir(a, reply),
            op::UNLINK => self.unlink(a),
            op::RMDIR => self.rmdir(a),
            op::RENAME => self.rename(a, false),
            op::RENAME2 => self.rename(a, true),
            op::LINK => self.link(a, reply),
            op::OPEN => self.open(a, reply),
            op::CREATE => self.create(a, reply),
            op::TMPFILE => self.tmpfile(a, reply),
            op::READ => self.read(a, reply),
            op::WRITE => self.write(a, reply),
            op::FLUSH => self.flush(a),
            op::FSYNC | op::FSYNCDIR => self.fsync(a),
            op::SYNCFS => self.fs().cluster().data().sync_everywhere(),
            op::RELEASE => self.release(a),
            op::FALLOCATE => self.fallocate(a),
            op::LSEEK => self.lseek(a, reply),
            op::COPY_FILE_RANGE => self.copy_file_range(a, reply),
            op::OPENDIR => self.opendir(a, reply),
            op::READDIR => self.readdir(a, reply),
            op::RELEASEDIR => self.releasedir(a),
            op::SETXATTR => self.setxattr(a),
            op::GETXATTR => self.getxattr(a, reply),
            op::LISTXATTR => self.listxattr(a, reply),
            op::REMOVEXATTR => self.removexattr(a),
            op::GETLK => self.lock_in_the_way(a, reply),
            op::SETLK => self.lock_at_once(a),
            op::STATFS => self.statfs(reply),
            op::DESTROY => Ok(()),
            op::IOCTL => Err(Errno::NOTTY),
            _ => Err(Errno::NOSYS),
        };
        self.freeing.fetch_sub(usize::from(frees), Relaxed);
        Answer::Reply(result)
    }

    fn statfs(&self, reply: &mut Reply) -> Result<()> {
        const UNIT: u32 = 4096;
        self.let_go()?;
        let pool = self.fs().pool();
        // To find the usage of a quota, a request is sent to the origin's service, which may block.
        if is_answering() && pool.config().has_quota() {
            return Err(ASIDE);
        }
        let room = pool.room();
        let blocks = room.bytes / u64::from(UNIT);
        let free = room.free_bytes / u64::from(UNIT);
        reply.u64(blocks).u64(free).u64(free);
        reply.u64(room.files).u64(room.free_files);
        reply.u32(UNIT).u32(255).u32(UNIT).u32(0).zeros(24);
        Ok(())
    }

    /// Frees the space of files that are kept open for a moment.
    ///
    /// # Errors
    /// [`ASIDE`] if that must be done on another thread.
    fn let_go(&self) -> Result<()> {
        if !self.recent.is_empty() {
            if is_answering() {
                return Err(ASIDE);
            }
            self.recent.let_go(self.fs());
        }
        Ok(())
    }

    /// Notifies the kernel of a file's size, if necessary. Must be called before the size is sent
    /// to the kernel in a reply.
    ///
    /// # Errors
    /// [`ASIDE`] if that must be done on another thread.
    fn announce_size(&self, node: u64, size: u64) -> Result<()> {
        self.cached.announce_size(node, size, self.head.pid, || {
            let open = self.open_node(node, libc::O_RDONLY).ok()?;
            let mut last = [0];
            let n = self.fs().read_chunk(open, &mut last, size - 1);
            let _ = self.fs().store().objects().open_release(open);
            (n == Ok(1)).then_some(last[0])
        })
    }

    /// Returns the attributes of the open description, or else of the node.
    fn stat(&self, node: u64, open: Option<u32>) -> Result<Stat> {
        let found = match open {
            Some(open) => self.fs().stat_open(open),
            None => self.fs().stat_id(object(node)),
        };
        match found {
            Err(Errno::NOENT) => self.directories.removed(node).ok_or(Errno::NOENT),
            found => found.inspect(|stat| self.directories.note(node, stat)),
        }
    }

    fn forget_batch(&self, a: &mut Args<'_>) -> Result<()> {
        let count = a.u32()?;
        a.skip(4)?;
        for _ in 0..count {
            self.directories.forget(a.u64()?);
            // The number of look-ups to forget: the kernel always sends all of them.
            a.skip(8)?;
        }
        Ok(())
    }
}

/// Returns the id of the requesting process.
fn requester(head: &Head) -> u32 {
    match head.pid {
        0 => UNSEEN,
        id => id,
    }
}

/// Returns the pool's id of a node.
fn object(node: u64) -> ObjectId {
    match node {
        p::ROOT_NODE => ObjectId::ROOT,
        node => ObjectId(node),
    }
}

/// Converts an error. The kernel sends only single names, so none leads out of the pool.
fn inside(f: Fail) -> Errno {
    match f {
        Fail::Errno(e) => e,
        Fail::Outside(_) | Fail::Origin(_) => Errno::XDEV,
    }
}

/// Reads a handle, which is the number of an open file description.
fn handle(a: &mut Args<'_>) -> Result<u32> {
    u32::try_from(a.u64()?).map_err(|_| Errno::BADF)
}
