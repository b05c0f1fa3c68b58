//! Watches (inotify): who wants to know what happens to an object, and telling them.
//!
//! A program's inotify descriptor is the kernel's own, so waiting for it, duplicating and
//! inheriting it are the kernel's business. What is watched for an object of the pool is a
//! *shadow*: an empty directory `watches/ID/MASK.N` of the node's directory, one for each object
//! and descriptor, of which the kernel tells only that something was made in it. Who changes the
//! object makes, and removes again, a file in it whose name says what happened (`event.rs`); the
//! preload library turns that back into the event when the program reads it. So order, limits, and
//! the merging of equal events are the kernel's too.
//!
//! Watches are the node's: told is what processes of this node do, wherever the object lies. As
//! long as there are none, it costs a look at one word. What a killed watcher leaves is swept away
//! by the keeper (`sweep.rs`).

mod event;
mod shadow;
mod sweep;

pub use event::{Happened, SHADOW_MASK};

use crate::ObjectId;
use crate::control::open_flag::TOLD;
use crate::control::{Control, Open, WatchState};
use crate::lock::Lock;
use crate::process::{Critical, ProcessLock};
use crate::views::Watches;
use event::file_name;
use forebay_media::atomics::Ordering::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// What goes wrong by chance is tried so often.
const TRIES: usize = 3;

/// This process has given up system calls that telling takes (seccomp).
static SILENT: AtomicBool = AtomicBool::new(false);
/// Threads of one process take turns, too: the lock knows processes only.
static THREADS: ProcessLock = ProcessLock::new();

/// From now on this process tells nobody what it does.
pub fn be_silent() {
    SILENT.store(true, Release);
}

/// In a forked child: the thread that changed watches may be one that it doesn't have.
pub fn after_fork_in_child() {
    THREADS.reset();
}

/// The set of shadows, locked.
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
        &self.0.control.header().watches
    }

    /// Whether anything may be watched: else there is nobody to tell.
    #[inline]
    pub fn has_watches(&self) -> bool {
        self.watch_state().any.load(Relaxed) != 0
    }

    /// Tells that `what` (bits of inotify(7)) happened to an object. `at`: the directory and the
    /// name in it by which it was reached; its watchers are told first. A directory's are known
    /// anyway.
    #[inline]
    pub fn tell(&self, id: ObjectId, kind: u32, at: Option<(ObjectId, &[u8])>, what: u32) {
        if self.has_watches() {
            self.tell_both(id, kind, at, what);
        }
    }

    /// As [`Store::tell`] of an open file, if it was opened by a program ([`Store::tell_opened`]).
    #[inline]
    pub fn tell_open(&self, open: u32, what: u32) {
        if self.has_watches() {
            self.tell_of_description(self.objects().open_file(open), what);
        }
    }

    /// A program has opened it. From now on, what happens by it is told, its end too.
    pub fn tell_opened(&self, open: u32) {
        let o = self.objects().open_file(open);
        if o.flags.load(Relaxed) as i32 & libc::O_PATH == 0 {
            o.flags.fetch_or(TOLD, AcqRel);
            self.tell_open(open, libc::IN_OPEN);
        }
    }

    /// Only those who watch the object itself.
    pub fn tell_self(&self, id: ObjectId, kind: u32, what: u32) {
        if self.has_watches() {
            self.tell_watchers(id, &Happened::new(what, kind, b"", 0), false);
        }
    }

    /// Only those who watch the directory: a name has come or gone.
    pub fn tell_dir(&self, dir: ObjectId, name: &[u8], kind: u32, what: u32) {
        if self.has_watches() {
            self.tell_watchers(dir, &Happened::new(what, kind, name, 0), false);
        }
    }

    /// An object has got another name.
    pub fn tell_moved(
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
        // The kernel's own count from 1 on.
        let cookie = 1 << 31 | self.watch_state().cookies.fetch_add(1, Relaxed);
        let left = Happened::new(libc::IN_MOVED_FROM, kind, from.1, cookie);
        self.tell_watchers(from.0, &left, false);
        let came = Happened::new(libc::IN_MOVED_TO, kind, to.1, cookie);
        self.tell_watchers(to.0, &came, false);
        if let Some((id, kind)) = replaced {
            self.tell_self(id, kind, libc::IN_ATTRIB);
        }
        self.tell_self(id, kind, libc::IN_MOVE_SELF);
        self.rename_open(id, to);
        if let Some((id, kind)) = replaced {
            self.tell_if_gone(id, kind);
        }
    }

    /// The names of open files are those by which they are watched.
    fn rename_open(&self, id: ObjectId, (dir, name): (ObjectId, &[u8])) {
        let end = self
            .control
            .header()
            .free_open
            .end(crate::control::MAX_OPEN);
        for o in (0..end).map(|i| self.objects().open_file(i)) {
            if o.id.load(Relaxed) == id.0 && o.kind.load(Relaxed) != libc::S_IFDIR {
                o.parent.store(dir.0, Relaxed);
                self.objects().open_set_name(o, name);
            }
        }
    }

    /// If the object is gone, tells so, and ends its watches.
    pub fn tell_if_gone(&self, id: ObjectId, kind: u32) {
        if self.has_watches()
            && self.watch_state().may_be_watched(id)
            && self.names().inode_of(id).map(|_| ()) == Err(Errno::NOENT)
        {
            self.tell_self(id, kind, libc::IN_DELETE_SELF);
            self.end_watches(id);
        }
    }

    #[cold]
    fn tell_both(&self, id: ObjectId, kind: u32, at: Option<(ObjectId, &[u8])>, what: u32) {
        let by_itself;
        let at = match at {
            Some((_, b"")) | None if kind == libc::S_IFDIR && id != ObjectId::ROOT => {
                let found = self.names().inode_of(id).ok();
                by_itself = found.map(|(inode, name)| (ObjectId(inode.parent), name));
                by_itself.as_ref().map(|(dir, name)| (*dir, &name[..]))
            }
            Some((_, b"")) => None,
            at => at,
        };
        if let Some((dir, name)) = at {
            self.tell_watchers(dir, &Happened::new(what, kind, name, 0), false);
        }
        self.tell_watchers(id, &Happened::new(what, kind, b"", 0), false);
    }

    #[cold]
    fn tell_of_description(&self, o: &Open, what: u32) {
        if o.flags.load(Relaxed) & TOLD == 0 {
            return;
        }
        let (id, kind) = (ObjectId(o.id.load(Relaxed)), o.kind.load(Relaxed));
        let dir = ObjectId(o.parent.load(Relaxed));
        let state = self.watch_state();
        if kind == libc::S_IFDIR {
            return self.tell_both(id, kind, None, what);
        }
        if !state.may_be_watched(dir) && !state.may_be_watched(id) {
            return;
        }
        let mut name = Vec::new();
        self.objects().open_name(o, &mut name);
        let there = self
            .names()
            .entry_of(dir, &name)
            .is_ok_and(|e| e.is_some_and(|e| e.id == id));
        if !name.is_empty() {
            self.tell_watchers(dir, &Happened::new(what, kind, &name, 0), !there);
        }
        self.tell_watchers(id, &Happened::new(what, kind, b"", 0), !there);
    }

    /// Before a description ends; what is to be said when it has ended.
    pub(crate) fn tell_closing(&self, o: &Open) -> Option<(ObjectId, u32)> {
        if !self.has_watches() {
            return None;
        }
        let writes = o.flags.load(Relaxed) as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let what = match writes {
            true => libc::IN_CLOSE_WRITE,
            false => libc::IN_CLOSE_NOWRITE,
        };
        self.tell_of_description(o, what);
        Some((ObjectId(o.id.load(Relaxed)), o.kind.load(Relaxed)))
    }

    /// Tells those who watch `id`. `unlinked`: it happened by a name that is gone.
    fn tell_watchers(&self, id: ObjectId, what: &Happened<'_>, unlinked: bool) {
        if !self.watch_state().may_be_watched(id) || SILENT.load(Relaxed) {
            return;
        }
        let _critical = Critical::enter();
        // Nobody is told what can't be told for lack of memory or descriptors.
        let _ = self.tell_shadows(id, what, unlinked);
    }

    fn tell_shadows(&self, id: ObjectId, what: &Happened<'_>, unlinked: bool) -> Result<()> {
        let mut file = None;
        let mut done: Vec<u64> = Vec::new();
        for _ in 0..TRIES {
            let mut changed = false;
            for shadow in self.shadows_of(id)? {
                if done.contains(&shadow.number) {
                    continue;
                }
                let skips = unlinked && shadow.mask & libc::IN_EXCL_UNLINK != 0;
                if shadow.mask & what.mask & libc::IN_ALL_EVENTS == 0 || skips {
                    continue;
                }
                if file.is_none() {
                    self.keep_long_name(what)?;
                    file = Some(file_name(what));
                }
                let Some(file) = &file else { continue };
                let told = match shadow.mask & libc::IN_ONESHOT {
                    0 => poke(&self.shadow_path(id, &shadow), file),
                    _ => self.tell_once(id, &shadow, file),
                };
                match told {
                    Ok(()) => done.push(shadow.number),
                    // Its mask was changed, or it has gone.
                    Err(_) => changed = true,
                }
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// Held for changes of the set of shadows.
    fn change_watches(self) -> Result<Changing<'s>> {
        let critical = Critical::enter();
        THREADS.seize();
        let locked = self
            .0
            .watches()
            .watch_state()
            .lock
            .acquire(&self.0.control, self.0.process_slot()?);
        match locked {
            Ok(_) => Ok(Changing(&self.0.control, critical)),
            Err(e) => {
                THREADS.reset();
                Err(e)
            }
        }
    }

    /// A path in the directory of watches.
    fn watch_path(&self, below: impl AsRef<Path>) -> PathBuf {
        let dir = self.control_path.parent().unwrap_or(Path::new("/"));
        dir.join("watches").join(below)
    }
}

/// Word and bit of the filter for an id.
fn place(id: ObjectId) -> (usize, u64) {
    let hash = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    (hash as usize / 64, 1 << (hash % 64))
}

/// Has the kernel tell those who watch the directory that `file` was made in it.
fn poke(shadow: &Path, file: &[u8]) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = shadow.join(std::ffi::OsStr::from_bytes(file));
    for _ in 0..TRIES {
        let made = rustix::fs::mknodat(CWD, &path, FileType::RegularFile, Mode::RUSR, 0);
        let removed = rustix::fs::unlinkat(CWD, &path, AtFlags::empty());
        match made {
            // Somebody is just telling the same. Is it the same event? Better twice than never.
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
    forebay_media::with_room(|| rustix::fs::open(path, flags, Mode::empty()))
}
