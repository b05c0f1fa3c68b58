//! Watches (inotify): which descriptors watch an object, and the notices to them.
//!
//! A program's inotify descriptor is the kernel's own, so waiting for it, duplicating and
//! inheriting it are the kernel's business. For an object of the pool, the kernel watches a
//! *shadow*: an empty directory `watches/ID/MASK.N` of the node's directory, one for each object
//! and descriptor. The kernel reports only that something was made in the shadow. A process that
//! changes the object makes a file in the shadow, and removes it again. The file's name encodes the
//! event (`event.rs`); the preload library decodes the name when the program reads it. So order,
//! limits, and the merging of equal events are the kernel's too.
//!
//! Watches belong to the node, and report what processes of this node do, wherever the object lies.
//! Without watches, the cost is a test of one word. The keeper removes the remains of killed
//! watchers (`sweep.rs`).

mod event;
mod shadow;
mod sweep;

pub use event::{Happened, SHADOW_MASK};

use crate::ObjectId;
use crate::control_region::open_flag::WATCHED;
use crate::control_region::{Control, Open, WatchState};
use crate::lock::Lock;
use crate::process::{Critical, ProcessLock};
use crate::views::Watches;
use event::file_name;
use forebay_runtime::atomics::Ordering::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Number of attempts after a transient failure.
const TRIES: usize = 3;

/// Set when this process may no longer use the system calls that notices need (seccomp).
static SILENT: AtomicBool = AtomicBool::new(false);
/// Makes the threads of this process take turns: the lock of [`WatchState`] distinguishes processes
/// only, not their threads.
static THREADS: ProcessLock = ProcessLock::new();

/// Stops this process from sending notices.
pub fn be_silent() {
    SILENT.store(true, Release);
}

/// Frees `THREADS` in a forked child, where the thread that holds it may not exist.
pub fn after_fork_in_child() {
    THREADS.reset();
}

/// The held lock of the set of shadows.
struct Changing<'a>(&'a Control, Critical);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let _ = &self.1;
        self.0.header().watches.lock.release();
        THREADS.reset();
    }
}

impl WatchState {
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    fn may_be_watched(&self, id: ObjectId) -> bool {
        let (word, bit) = place(id);
        self.filter[word].load(Relaxed) & bit != 0
    }

    fn set(&self, id: ObjectId) {
        let (word, bit) = place(id);
        self.filter[word].fetch_or(bit, AcqRel);
        self.any.store(1, Release);
    }
}

impl<'s> Watches<'s> {
    #[inline]
    fn watch_state(self) -> &'s WatchState {
        &self.store.control.header().watches
    }

    /// Whether anything may be watched: otherwise there is no watcher to notify.
    #[inline]
    pub fn has_watches(&self) -> bool {
        self.watch_state().any.load(Relaxed) != 0
    }

    /// Reports that `what` (bits of inotify(7)) happened to an object. `at`: the directory and the
    /// name in it by which the object was reached; the directory's watchers are notified first. For
    /// a directory, `at` isn't needed: the directory's inode has both.
    #[inline]
    pub fn tell(&self, id: ObjectId, kind: u32, at: Option<(ObjectId, &[u8])>, what: u32) {
        if self.has_watches() {
            self.notify_both(id, kind, at, what);
        }
    }

    /// As [`Watches::tell`], for an open file, if it was opened by a program
    /// ([`Watches::notify_opened`]).
    #[inline]
    pub fn notify_open(&self, open: u32, what: u32) {
        if self.has_watches() {
            self.notify_of_description(self.store.objects().open_file(open), what);
        }
    }

    /// Marks a description as opened by a program. From now on, operations through it, and its end,
    /// are reported to watchers.
    pub fn notify_opened(&self, open: u32) {
        let o = self.store.objects().open_file(open);
        if o.flags.load(Relaxed) as i32 & libc::O_PATH == 0 {
            o.flags.fetch_or(WATCHED, AcqRel);
            self.notify_open(open, libc::IN_OPEN);
        }
    }

    /// Notifies only the watchers of the object itself.
    pub fn notify_self(&self, id: ObjectId, kind: u32, what: u32) {
        if self.has_watches() {
            self.notify_watchers(id, &Happened::new(what, kind, b"", 0), false);
        }
    }

    /// Notifies only the watchers of the directory: a name was added or removed.
    pub fn notify_dir(&self, dir: ObjectId, name: &[u8], kind: u32, what: u32) {
        if self.has_watches() {
            self.notify_watchers(dir, &Happened::new(what, kind, name, 0), false);
        }
    }

    /// Reports that an object has got another name.
    pub fn notify_moved(
        &self,
        id: ObjectId,
        kind: u32,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        replaced: Option<(ObjectId, u32)>,
    ) {
        if !self.has_watches() {
            return;
        }
        // The kernel's own cookies count from 1 on; those made here have the highest bit.
        let cookie = 1 << 31 | self.watch_state().cookies.fetch_add(1, Relaxed);
        let left = Happened::new(libc::IN_MOVED_FROM, kind, from.1, cookie);
        self.notify_watchers(from.0, &left, false);
        let came = Happened::new(libc::IN_MOVED_TO, kind, to.1, cookie);
        self.notify_watchers(to.0, &came, false);
        if let Some((id, kind)) = replaced {
            self.notify_self(id, kind, libc::IN_ATTRIB);
        }
        self.notify_self(id, kind, libc::IN_MOVE_SELF);
        self.rename_open(id, to);
        if let Some((id, kind)) = replaced {
            self.notify_if_gone(id, kind);
        }
    }

    /// Sets the name in the descriptions of a renamed file, since watchers are found by this name.
    fn rename_open(&self, id: ObjectId, (dir, name): (ObjectId, &[u8])) {
        let end = self
            .store
            .control
            .header()
            .free_open
            .end(crate::control_region::MAX_OPEN);
        for o in (0..end).map(|i| self.store.objects().open_file(i)) {
            if o.id.load(Relaxed) == id.0 && o.kind.load(Relaxed) != libc::S_IFDIR {
                o.parent.store(dir.0, Relaxed);
                self.store.objects().open_set_name(o, name);
            }
        }
    }

    /// If the object was removed, reports that, and ends its watches.
    pub fn notify_if_gone(&self, id: ObjectId, kind: u32) {
        if self.has_watches()
            && self.watch_state().may_be_watched(id)
            && self.store.names().inode_of(id).map(|_| ()) == Err(Errno::NOENT)
        {
            self.notify_self(id, kind, libc::IN_DELETE_SELF);
            self.end_watches(id);
        }
    }

    #[cold]
    fn notify_both(&self, id: ObjectId, kind: u32, at: Option<(ObjectId, &[u8])>, what: u32) {
        let by_itself;
        let at = match at {
            Some((_, b"")) | None if kind == libc::S_IFDIR && id != ObjectId::ROOT => {
                let found = self.store.names().inode_of(id).ok();
                by_itself = found.map(|(inode, name)| (ObjectId(inode.parent), name));
                by_itself.as_ref().map(|(dir, name)| (*dir, &name[..]))
            }
            Some((_, b"")) => None,
            at => at,
        };
        if let Some((dir, name)) = at {
            self.notify_watchers(dir, &Happened::new(what, kind, name, 0), false);
        }
        self.notify_watchers(id, &Happened::new(what, kind, b"", 0), false);
    }

    #[cold]
    fn notify_of_description(&self, o: &Open, what: u32) {
        if o.flags.load(Relaxed) & WATCHED == 0 {
            return;
        }
        let (id, kind) = (ObjectId(o.id.load(Relaxed)), o.kind.load(Relaxed));
        let dir = ObjectId(o.parent.load(Relaxed));
        let state = self.watch_state();
        if kind == libc::S_IFDIR {
            return self.notify_both(id, kind, None, what);
        }
        if !state.may_be_watched(dir) && !state.may_be_watched(id) {
            return;
        }
        let mut name = Vec::new();
        self.store.objects().open_name(o, &mut name);
        let there = self
            .store
            .names()
            .entry_of(dir, &name)
            .is_ok_and(|e| e.is_some_and(|e| e.id == id));
        if !name.is_empty() {
            self.notify_watchers(dir, &Happened::new(what, kind, &name, 0), !there);
        }
        self.notify_watchers(id, &Happened::new(what, kind, b"", 0), !there);
    }

    /// Notifies watchers that a description is closed; must be called before it ends. Returns
    /// object and kind for [`Watches::notify_if_gone`], to be called after it has ended.
    pub(crate) fn notify_closing(&self, o: &Open) -> Option<(ObjectId, u32)> {
        if !self.has_watches() {
            return None;
        }
        let writes = o.flags.load(Relaxed) as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let what = if writes {
            libc::IN_CLOSE_WRITE
        } else {
            libc::IN_CLOSE_NOWRITE
        };
        self.notify_of_description(o, what);
        Some((ObjectId(o.id.load(Relaxed)), o.kind.load(Relaxed)))
    }

    /// Notifies the watchers of `id`. `unlinked`: the event happened through a name that was
    /// removed.
    fn notify_watchers(&self, id: ObjectId, what: &Happened<'_>, unlinked: bool) {
        if !self.watch_state().may_be_watched(id) || SILENT.load(Relaxed) {
            return;
        }
        let _critical = Critical::enter();
        // Watchers miss events for which there is no memory or descriptor.
        let _ = self.notify_shadows(id, what, unlinked);
    }

    fn notify_shadows(&self, id: ObjectId, what: &Happened<'_>, unlinked: bool) -> Result<()> {
        let mut file = None;
        let mut done: Vec<u64> = Vec::new();
        for _ in 0..TRIES {
            let mut changed = false;
            for shadow in self.shadows_of(id)? {
                if done.contains(&shadow.number) {
                    continue;
                }
                let skips = unlinked && shadow.mask & libc::IN_EXCL_UNLINK != 0;
                let wanted = shadow.mask & what.mask & libc::IN_ALL_EVENTS;
                if wanted == 0 || skips {
                    continue;
                }
                if file.is_none() {
                    self.keep_long_name(what)?;
                    file = Some(file_name(what));
                }
                let Some(file) = &file else { continue };
                let notice = match shadow.mask & libc::IN_ONESHOT {
                    0 => poke(&self.shadow_path(id, &shadow), file),
                    _ => self.notify_once(id, &shadow, file),
                };
                match notice {
                    Ok(()) => done.push(shadow.number),
                    // The watch's mask was changed, or the watch was removed.
                    Err(_) => changed = true,
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Locks the set of shadows, for changes of it.
    fn change_watches(self) -> Result<Changing<'s>> {
        let critical = Critical::enter();
        THREADS.seize();
        let locked = self
            .store
            .watches()
            .watch_state()
            .lock
            .acquire(&self.store.control, self.store.process_slot()?);
        match locked {
            Ok(_) => Ok(Changing(&self.store.control, critical)),
            Err(e) => {
                THREADS.reset();
                Err(e)
            }
        }
    }

    /// A path below the directory of watches.
    fn watch_path(&self, below: impl AsRef<Path>) -> PathBuf {
        let dir = self.store.control_path.parent().unwrap_or(Path::new("/"));
        dir.join("watches").join(below)
    }
}

/// Word and bit of an id in the filter of watched objects.
fn place(id: ObjectId) -> (usize, u64) {
    let hash = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    (hash as usize / 64, 1 << (hash % 64))
}

/// Makes the kernel report to the watchers of `shadow` that `file` was made in it.
fn poke(shadow: &Path, file: &[u8]) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = shadow.join(std::ffi::OsStr::from_bytes(file));
    for _ in 0..TRIES {
        let made = rustix::fs::mknodat(CWD, &path, FileType::RegularFile, Mode::RUSR, 0);
        let removed = rustix::fs::unlinkat(CWD, &path, AtFlags::empty());
        match made {
            // Another process is making the same file, maybe for another event. This event is
            // reported all the same: better twice than never.
            Err(Errno::EXIST) => {}
            Ok(()) => {
                let _ = removed;
                return Ok(());
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn open_dir(path: &Path) -> Result<rustix::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    forebay_runtime::fd::with_room(|| rustix::fs::open(path, flags, Mode::empty()))
}
