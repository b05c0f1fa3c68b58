//! Resolution of paths to places ([`Place`]).
//!
//! [`Resolver`] goes from a base directory along a path to a [`Place`]. A place is a directory
//! entry, which may exist or not, or a directory that the path doesn't name by an entry (`/`, `.`,
//! `..`). Symbolic links on the path are followed. A place has the epoch of names for which it is
//! valid. Operations that find it outdated fail with ESTALE, and [`Resolver::at`] resolves the path
//! again, at most [`MAX_ATTEMPTS`] times.

use crate::cache::{CacheKey, DirCache, DirInfo};
use crate::cred::{Cred, EXEC, OfThread, WRITE};
use crate::fs::Fs;
use crate::origin::OriginGate;
use crate::pool_ref::PoolRef;
use crate::process::Process;
use forebay_client::origin::Lead;
use forebay_cluster::{Cluster, Found, RemoteOpen};
use forebay_store::{Entry, Inode, NAME_MAX, ObjectId, PATH_MAX, Store};
use rustix::io::{Errno, Result};
use std::cell::RefCell;

/// Maximum number of symbolic links in one path, as in Linux.
const MAX_LINKS: usize = 40;
/// Maximum number of attempts to resolve a path while other processes keep renaming its
/// directories.
pub(crate) const MAX_ATTEMPTS: usize = 10_000;

/// Why an operation on a path isn't done in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fail {
    /// Resolving the path failed.
    Errno(Errno),
    /// The path leads out of the pool, to this absolute path.
    Outside(Vec<u8>),
    /// The path leads to a file that is at the pool's origin only. The value is the file's absolute
    /// path for the kernel.
    Origin(Vec<u8>),
}

impl From<Errno> for Fail {
    fn from(e: Errno) -> Fail {
        Fail::Errno(e)
    }
}

/// Whether a symbolic link as the last component is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Yes,
    /// Only where the path ends in `/`: the link must lead to a directory then.
    No,
    /// Not even if the path ends in `/`: the name itself is made, removed or renamed.
    Never,
}

/// The purpose for which a path is resolved. If the look-up needs a request to a peer, the request
/// may do the first part of the operation, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Any other purpose.
    Other,
    /// To open the object.
    Open,
    /// To make a file that doesn't exist yet. If only a peer knows whether the file exists, no
    /// look-up is sent: the attempt to make the file shows whether it exists.
    MakeNew,
    /// To make a directory, or to rename one to this name.
    MakeDirectory,
}

/// How the last component of a path is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Whether a symbolic link is followed.
    pub follow: Follow,
    /// The purpose.
    pub purpose: Purpose,
}

impl From<Follow> for Goal {
    fn from(follow: Follow) -> Goal {
        Goal {
            follow,
            purpose: Purpose::Other,
        }
    }
}

impl Goal {
    /// Goal of mkdir(2), and of the new name of a directory in rename(2).
    pub const DIRECTORY: Goal = Goal {
        follow: Follow::Never,
        purpose: Purpose::MakeDirectory,
    };

    /// Goal of open(2) with these flags.
    pub fn of_open(flags: i32) -> Goal {
        let has = |flag: i32| flags & flag == flag;
        let exclusive = has(libc::O_CREAT | libc::O_EXCL);
        Goal {
            follow: if exclusive || has(libc::O_NOFOLLOW) {
                Follow::No
            } else {
                Follow::Yes
            },
            purpose: if has(libc::O_PATH) || has(libc::O_DIRECTORY) {
                Purpose::Other
            } else if exclusive {
                Purpose::MakeNew
            } else {
                Purpose::Open
            },
        }
    }
}

/// Whether a path may lead through the view by attributes: whether a component ends with `.by`.
fn passes_view(head: &[u8]) -> bool {
    head.windows(4).any(|part| part == b".by/")
}

/// Waits before the next attempt to resolve a path, to let other processes and nodes finish their
/// renames. The first 10 attempts follow at once; then the pause grows to 2 ms at most.
pub(crate) fn pause(attempt: usize) {
    const IMMEDIATE_ATTEMPTS: usize = 10;
    if attempt >= IMMEDIATE_ATTEMPTS {
        // A direct system call, not libc's function: this code runs inside programs, too.
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: 1_000 * attempt.min(2_000) as i64,
        });
    }
}

/// Steps that openat2(2) may forbid while a path is resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// No steps out of the base directory (RESOLVE_BENEATH).
    pub beneath: bool,
    /// The base directory is the root (RESOLVE_IN_ROOT).
    pub in_root: bool,
    /// No symbolic links (RESOLVE_NO_SYMLINKS).
    pub no_links: bool,
    /// No steps out of the pool (RESOLVE_NO_XDEV).
    pub inside_only: bool,
}

/// A file name, on the stack.
#[derive(Clone)]
pub struct Name {
    len: u8,
    bytes: [u8; NAME_MAX],
}

impl Name {
    /// No name.
    pub fn empty() -> Name {
        Name {
            len: 0,
            bytes: [0; NAME_MAX],
        }
    }

    /// # Errors
    /// ENAMETOOLONG.
    pub fn new(name: &[u8]) -> Result<Name> {
        let len = u8::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let mut bytes = [0; NAME_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Name { len, bytes })
    }
}

impl std::ops::Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// Where a path leads.
#[allow(
    clippy::large_enum_variant,
    reason = "one lies on the stack of a call; a box would cost each look-up an allocation"
)]
pub enum Place {
    /// The entry `name` of `dir`.
    Entry {
        dir: DirInfo,
        name: Name,
        /// The entry that the name has now, if any.
        entry: Option<Entry>,
        /// State of the object that a peer returned with the entry.
        remote: RefCell<RemoteOpen>,
        /// Whether the path ended in `/`: the object must then be a directory.
        slash: bool,
        epoch: u64,
    },
    /// A directory itself: the path was `/` or ended in `.` or `..`.
    Dir {
        dir: DirInfo,
        /// The last component (`.`, `..`, or empty for `/`).
        last: Name,
        epoch: u64,
    },
}

impl Place {
    /// The object at the place.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR for `file/`.
    pub fn existing(&self) -> Result<Entry> {
        match self {
            Place::Dir { dir, .. } => Ok(Entry {
                id: dir.id,
                kind: libc::S_IFDIR,
            }),
            Place::Entry { entry: None, .. } => Err(Errno::NOENT),
            Place::Entry {
                entry: Some(e),
                slash,
                ..
            } => {
                if *slash && e.kind != libc::S_IFDIR {
                    return Err(Errno::NOTDIR);
                }
                Ok(*e)
            }
        }
    }

    /// The object's attributes, if a peer returned them with the entry.
    pub(crate) fn inode(&self) -> Option<Inode> {
        match self {
            Place::Entry { remote, .. } => remote.borrow().inode,
            Place::Dir { .. } => None,
        }
    }

    /// Takes the state of the object that a peer returned with the entry.
    pub(crate) fn take_remote(&self) -> RemoteOpen {
        match self {
            Place::Entry { remote, .. } => remote.take(),
            Place::Dir { .. } => RemoteOpen::default(),
        }
    }

    /// Directory in which the object has its name, and the name.
    pub fn parent_and_name(&self) -> (ObjectId, &[u8]) {
        match self {
            Place::Dir { dir, .. } => (dir.id, b""),
            Place::Entry { dir, name, .. } => (dir.id, name),
        }
    }
}

/// A path that is resolved component by component.
struct Walk {
    base: ObjectId,
    goal: Goal,
    want_dir: bool,
    rules: Rules,
    epoch: u64,
    /// The path, in which links that were followed are replaced by their targets. The walk has
    /// passed the bytes before `at`.
    todo: Vec<u8>,
    at: usize,
    /// Number of symbolic links that were followed.
    links: usize,
    /// The directory that has been reached.
    dir: DirInfo,
    /// The last component that was passed, if it is `.` or `..`; otherwise empty.
    last: &'static [u8],
}

/// The next component of a path.
struct Component {
    name: Name,
    /// Offset of the component's end in the path.
    end: usize,
    /// Whether nothing but slashes follows.
    is_last: bool,
    /// Whether a slash follows.
    slash: bool,
}

impl Walk {
    /// The next component; None at the end.
    fn next_component(&mut self) -> Result<Option<Component>> {
        while self.todo.get(self.at) == Some(&b'/') {
            self.at += 1;
        }
        assert!(
            self.at <= self.todo.len(),
            "a walk ends at the end of its path"
        );
        if self.at == self.todo.len() {
            return Ok(None);
        }
        let next = self.rest().iter().position(|&b| b == b'/');
        let end = next.map_or(self.todo.len(), |n| self.at + n);
        Ok(Some(Component {
            name: Name::new(&self.todo[self.at..end])?,
            end,
            is_last: self.todo[end..].iter().all(|&b| b == b'/'),
            slash: end < self.todo.len(),
        }))
    }

    /// The part of the path that hasn't been passed.
    fn rest(&self) -> &[u8] {
        &self.todo[self.at..]
    }

    /// Records that the walk has reached the directory to which the component leads.
    fn passes(&mut self, component: &Component, last: &'static [u8]) {
        (self.at, self.last) = (component.end, last);
    }

    /// Whether a component is followed if it is a symbolic link.
    fn follows(&self, component: &Component) -> bool {
        let last_is_followed = match self.goal.follow {
            Follow::Yes => true,
            Follow::No => component.slash,
            Follow::Never => false,
        };
        !component.is_last || last_is_followed || self.want_dir
    }
}

/// Resolves paths with the credentials of one view; see the module.
#[derive(Clone, Copy)]
pub struct Resolver<'a> {
    pool: PoolRef<'a>,
    credentials: &'a Cred,
    cache: &'a DirCache,
    origin: OriginGate<'a>,
    /// Paths may be longer than `PATH_MAX`.
    takes_long_paths: bool,
}

impl Fs {
    /// Resolves paths with the credentials of this view.
    #[inline]
    pub fn resolver(&self) -> Resolver<'_> {
        Resolver {
            pool: self.pool_ref(),
            credentials: self.credentials(),
            cache: self.cache(),
            origin: self.origin_gate(),
            takes_long_paths: self.settles(),
        }
    }
}

impl<'a> Resolver<'a> {
    #[inline]
    fn store(&self) -> &'a Store {
        self.pool.store()
    }

    #[inline]
    fn cluster(&self) -> Cluster<'a> {
        self.pool.cluster()
    }

    #[inline]
    fn cred(&self) -> OfThread<'a> {
        self.credentials.ids()
    }

    /// Resolves `path` and calls `f`; repeats both if names changed in between.
    ///
    /// # Errors
    /// Errors of resolving (ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG), of `f`, or
    /// [`Fail::Outside`] and [`Fail::Origin`].
    pub fn at<T>(
        &self,
        base: ObjectId,
        path: &[u8],
        goal: impl Into<Goal>,
        mut f: impl FnMut(&Place) -> Result<T>,
    ) -> std::result::Result<T, Fail> {
        let goal = goal.into();
        for attempt in 0..MAX_ATTEMPTS {
            let place = self.walk_for(base, path, goal)?;
            let result = f(&place);
            if let Some(opened) = place.take_remote().opened {
                self.cluster().opens().close_opened(opened);
            }
            match result {
                Err(Errno::STALE) => pause(attempt),
                result => return Ok(result?),
            }
        }
        Err(Fail::Errno(Errno::BUSY))
    }

    /// As [`Resolver::at`], with steps forbidden by `rules`.
    ///
    /// # Errors
    /// Errors of [`Resolver::at`]; EXDEV, ELOOP for forbidden steps.
    pub fn at_with<T>(
        &self,
        base: ObjectId,
        path: &[u8],
        follow: Follow,
        rules: Rules,
        mut f: impl FnMut(&Place) -> Result<T>,
    ) -> std::result::Result<T, Fail> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if path[0] == b'/' && rules.beneath {
            return Err(Errno::XDEV.into());
        }
        for attempt in 0..MAX_ATTEMPTS {
            let epoch = self.store().names_epoch().now();
            match f(&self.walk_slowly(base, path, epoch, follow.into(), false, rules)?) {
                Err(Errno::STALE) => pause(attempt),
                result => return Ok(result?),
            }
        }
        Err(Fail::Errno(Errno::BUSY))
    }

    /// A place for an object that the caller knows by a descriptor, not by a path.
    pub fn place_of(&self, parent: ObjectId, name: Name, entry: Entry) -> Place {
        let epoch = self.store().names_epoch().now();
        let dir = DirInfo::unknown(parent);
        Place::Entry {
            dir,
            name,
            entry: Some(entry),
            remote: RefCell::default(),
            slash: false,
            epoch,
        }
    }

    /// A place for a directory that the caller knows by its id: as if `.` were resolved from that
    /// directory.
    ///
    /// # Errors
    /// ENOENT if it was removed and isn't in use, ENOTDIR.
    pub fn dir_place(&self, id: ObjectId) -> Result<Place> {
        let epoch = self.store().names_epoch().now();
        Ok(Place::Dir {
            dir: self.dir_in_use(id)?,
            last: Name::new(b".")?,
            epoch,
        })
    }

    /// Attributes of directory `id`.
    ///
    /// # Errors
    /// ENOENT if it was removed, ENOTDIR.
    pub(crate) fn dir_info(&self, id: ObjectId) -> Result<DirInfo> {
        let inode = self.cluster().namespace().stat(id)?;
        if !inode.is_dir() {
            return Err(Errno::NOTDIR);
        }
        Ok(Self::info_of(id, &inode))
    }

    /// As [`Resolver::dir_info`], also of a removed directory that is in use.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    fn dir_in_use(&self, id: ObjectId) -> Result<DirInfo> {
        match self.dir_info(id) {
            Err(Errno::NOENT) => {
                let removed = Process(self.store()).removed_dir(id)?;
                Ok(DirInfo {
                    is_removed: true,
                    ..Self::info_of(id, &removed.inode)
                })
            }
            info => info,
        }
    }

    fn info_of(id: ObjectId, inode: &Inode) -> DirInfo {
        DirInfo {
            id,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            controls: inode.controls,
            is_released: inode.origin.is_released(),
            is_removed: false,
        }
    }

    /// Resolves `path` from directory `base`.
    ///
    /// # Errors
    /// See [`Resolver::at`].
    pub fn walk(
        &self,
        base: ObjectId,
        path: &[u8],
        follow: Follow,
    ) -> std::result::Result<Place, Fail> {
        self.walk_for(base, path, follow.into())
    }

    /// As [`Resolver::walk`], for the given purpose.
    ///
    /// # Errors
    /// See [`Resolver::at`].
    pub fn walk_for(
        &self,
        base: ObjectId,
        path: &[u8],
        goal: Goal,
    ) -> std::result::Result<Place, Fail> {
        forebay_trace::event_of!(POSIX_WALK_ENTER, path);
        let place = self.resolve(base, path, goal);
        forebay_trace::event!(
            POSIX_WALK_EXIT,
            match &place {
                Err(Fail::Errno(e)) => e.raw_os_error(),
                _ => 0,
            }
        );
        place
    }

    #[inline(always)]
    fn resolve(&self, base: ObjectId, path: &[u8], goal: Goal) -> std::result::Result<Place, Fail> {
        let Goal { follow, purpose } = goal;
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.len() >= PATH_MAX && !self.takes_long_paths {
            return Err(Errno::NAMETOOLONG.into());
        }
        let epoch = self.store().names_epoch().now();
        // The common case: everything up to the last name is in the cache.
        let base = if path[0] == b'/' {
            ObjectId::ROOT
        } else {
            base
        };
        let cut = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
        let (head, last) = path.split_at(cut);
        if !matches!(last, b"" | b"." | b"..") {
            let cred = self.credentials.generation();
            let key = CacheKey::new(base, head);
            let dir = match self.cache.get(key, epoch, cred) {
                Some(dir) => Some(dir),
                None => {
                    match self.walk_slowly(
                        base,
                        head,
                        epoch,
                        Follow::Yes.into(),
                        true,
                        Rules::default(),
                    ) {
                        // `walk_slowly` below walks the path with its last name, and so determines
                        // the path outside.
                        Err(Fail::Outside(_) | Fail::Origin(_)) => None,
                        Err(e) => return Err(e),
                        Ok(Place::Dir { dir, .. }) => {
                            self.cred().check_dir(&dir, EXEC)?;
                            if dir.is_removed {
                                return Err(Errno::NOENT.into());
                            }
                            let dir = self.origin.with_entries(dir)?;
                            // Paths through the view depend on attributes, and paths in a salvage
                            // on the nodes that are alive, not only on the epoch of names.
                            let is_fixed = !base.is_view() && !passes_view(head);
                            if is_fixed && self.pool.salvaged().is_none() {
                                self.cache.put(key, epoch, cred, &dir);
                            }
                            Some(dir)
                        }
                        Ok(Place::Entry { .. }) => None,
                    }
                }
            };
            // For an entry that may be at the origin only, `walk_slowly` finds out where it is.
            if let Some(dir) = dir.filter(|dir| self.is_surely_here(dir.id, last)) {
                let name = Name::new(last)?;
                let Found {
                    entry,
                    inode,
                    opened,
                    counts,
                } = match purpose {
                    Purpose::MakeNew if self.may_make_unseen(&dir, &name) => Found::default(),
                    _ => self
                        .cluster()
                        .namespace()
                        .find(dir.id, last, purpose == Purpose::Open)?,
                };
                if follow != Follow::Yes || entry.is_none_or(|e| e.kind != libc::S_IFLNK) {
                    let remote = RefCell::new(RemoteOpen {
                        opened,
                        inode,
                        counts,
                    });
                    return Ok(Place::Entry {
                        dir,
                        name,
                        entry,
                        remote,
                        slash: false,
                        epoch,
                    });
                }
            }
        }
        self.walk_slowly(base, path, epoch, goal, false, Rules::default())
    }

    /// Whether an entry of a directory, if it exists, is in the pool and not at the origin only.
    #[inline]
    fn is_surely_here(&self, dir: ObjectId, name: &[u8]) -> bool {
        self.origin.off().is_none() || matches!(self.origin.lead(dir, name), Ok(Lead::Pool))
    }

    /// Ends a walk at the origin: the result for `rest`, a path relative to a directory of the
    /// pool.
    #[cold]
    fn to_origin(self, dir: ObjectId, rest: &[u8], rules: Rules) -> Fail {
        // The kernel couldn't apply these rules to a path at the origin.
        if rules.beneath || rules.in_root || rules.inside_only {
            return Errno::XDEV.into();
        }
        match self.origin.path_at_origin(dir, rest) {
            Ok(path) => Fail::Origin(path),
            Err(e) => e.into(),
        }
    }

    /// Whether a path from the root of the pool leads to an object that is at the origin only.
    pub fn is_at_origin(&self, mut path: &[u8]) -> bool {
        if self.origin.off().is_none() {
            return false;
        }
        while path.len() >= PATH_MAX {
            // If a directory is at the origin only, so are all entries below it. So the beginning
            // of a path that is too long tells whether its end is at the origin.
            let cut = path[..PATH_MAX - 1].iter().rposition(|&b| b == b'/');
            path = &path[..cut.unwrap_or(0).max(1)];
        }
        let walked = self.walk(ObjectId::ROOT, path, Follow::No);
        matches!(walked, Err(Fail::Origin(_)))
    }

    /// Whether a file may be made without a look-up of its name. If a peer has the entry, the
    /// look-up takes a request to that peer, and so does the attempt to make the file. A process
    /// that may not make files here needs the look-up: EEXIST precedes EACCES.
    fn may_make_unseen(&self, dir: &DirInfo, name: &Name) -> bool {
        self.store().peers().is_entry_remote(dir.id, name)
            && self.cred().check_dir(dir, WRITE | EXEC).is_ok()
    }

    /// Resolves a path component by component. With `want_dir`, the end must be a directory and is
    /// returned as [`Place::Dir`].
    fn walk_slowly(
        &self,
        base: ObjectId,
        path: &[u8],
        epoch: u64,
        goal: Goal,
        want_dir: bool,
        rules: Rules,
    ) -> std::result::Result<Place, Fail> {
        let start = if path.first() == Some(&b'/') && !rules.in_root {
            ObjectId::ROOT
        } else {
            base
        };
        let mut walk = Walk {
            base,
            goal,
            want_dir,
            rules,
            epoch,
            todo: path.to_vec(),
            at: 0,
            links: 0,
            dir: self.dir_in_use(start)?,
            last: b"",
        };
        while let Some(component) = walk.next_component()? {
            self.cred().check_dir(&walk.dir, EXEC)?;
            match &component.name[..] {
                b"." => walk.passes(&component, b"."),
                b".." => self.walk_up(&mut walk, &component)?,
                _ => {
                    if let Some(place) = self.walk_down(&mut walk, component)? {
                        return Ok(place);
                    }
                }
            }
        }
        Ok(Place::Dir {
            dir: walk.dir,
            last: Name::new(walk.last)?,
            epoch,
        })
    }

    /// Walks to the parent directory.
    fn walk_up(&self, walk: &mut Walk, component: &Component) -> std::result::Result<(), Fail> {
        let (rules, dir) = (walk.rules, walk.dir.id);
        let is_top = rules.in_root && dir == walk.base;
        if !is_top {
            if rules.beneath && dir == walk.base || rules.inside_only && dir == ObjectId::ROOT {
                return Err(Errno::XDEV.into());
            }
            if dir == ObjectId::ROOT {
                let rest = &walk.todo[component.end..];
                return Err(Fail::Outside(self.above_mount(rest)));
            }
            walk.dir = if walk.dir.is_removed {
                self.above_removed(dir)?
            } else {
                let parent = ObjectId(self.cluster().namespace().stat(dir)?.parent);
                self.dir_info(parent)?
            };
        }
        walk.passes(component, b"..");
        Ok(())
    }

    /// The parent that a removed directory had. If it was removed too, nothing is known of it but
    /// that it was there.
    ///
    /// # Errors
    /// ENOENT: the parent isn't known, as after an exec in the removed directory.
    #[cold]
    fn above_removed(&self, dir: ObjectId) -> Result<DirInfo> {
        let parent = ObjectId(Process(self.store()).removed_dir(dir)?.inode.parent);
        if parent.0 == 0 {
            return Err(Errno::NOENT);
        }
        match self.dir_in_use(parent) {
            Err(Errno::NOENT) => Ok(DirInfo {
                mode: libc::S_IFDIR | 0o755,
                is_removed: true,
                ..DirInfo::unknown(parent)
            }),
            info => info,
        }
    }

    /// Walks to an entry: into a directory, along a link, or to the end of the path. At the end,
    /// returns the entry's place.
    fn walk_down(
        &self,
        walk: &mut Walk,
        component: Component,
    ) -> std::result::Result<Option<Place>, Fail> {
        let Found {
            entry,
            inode,
            counts,
            ..
        } = self.find_on_walk(walk, &component)?;
        let is_last = component.is_last;
        match entry {
            Some(e) if e.kind == libc::S_IFLNK && walk.follows(&component) => {
                self.walk_along_link(walk, e.id, &component)?;
                Ok(None)
            }
            Some(e) if e.kind == libc::S_IFDIR && (!is_last || walk.want_dir) => {
                walk.dir = self.dir_info(e.id)?;
                walk.passes(&component, b"");
                Ok(None)
            }
            _ if is_last && !walk.want_dir => Ok(Some(Place::Entry {
                dir: walk.dir,
                name: component.name,
                entry,
                remote: RefCell::new(RemoteOpen {
                    inode,
                    counts,
                    ..RemoteOpen::default()
                }),
                slash: component.slash,
                epoch: walk.epoch,
            })),
            Some(_) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// Looks up a component. If the object is at the pool's origin only, the walk ends there.
    fn find_on_walk(
        &self,
        walk: &mut Walk,
        component: &Component,
    ) -> std::result::Result<Found, Fail> {
        let name = &component.name;
        if walk.dir.is_removed {
            return Err(Errno::NOENT.into());
        }
        let lead = self.origin.lead(walk.dir.id, name)?;
        if lead == Lead::Origin {
            return Err(self.to_origin(walk.dir.id, walk.rest(), walk.rules));
        }
        walk.dir = self.origin.with_entries(walk.dir)?;
        let dir = walk.dir.id;
        let mut found = self.cluster().namespace().find(dir, name, false)?;
        if lead == Lead::OriginUnlessDirectory {
            let is_made = component.is_last && walk.goal.purpose == Purpose::MakeDirectory;
            if is_made && found.entry.is_none() {
                self.origin.show_origin_only(dir)?;
                found = self.cluster().namespace().find(dir, name, false)?;
            }
            if found.entry.map_or(!is_made, |e| e.kind != libc::S_IFDIR) {
                return Err(self.to_origin(dir, walk.rest(), walk.rules));
            }
        }
        Ok(found)
    }

    /// Replaces a component that is a symbolic link by the link's target.
    fn walk_along_link(
        &self,
        walk: &mut Walk,
        link: ObjectId,
        component: &Component,
    ) -> std::result::Result<(), Fail> {
        let rules = walk.rules;
        walk.links += 1;
        if walk.links > MAX_LINKS || rules.no_links {
            return Err(Errno::LOOP.into());
        }
        // ENOENT: the link was replaced after it was looked up.
        let (_, mut next) = self.cluster().namespace().inode_tail(link)?;
        // As in Linux, the path may become longer than PATH_MAX here; MAX_LINKS bounds it.
        next.extend_from_slice(&walk.todo[component.end..]);
        if next.first() == Some(&b'/') && rules.in_root {
            walk.dir = self.dir_info(walk.base)?;
        } else if next.first() == Some(&b'/') {
            if rules.beneath || rules.inside_only {
                return Err(Errno::XDEV.into());
            }
            match self.inside(&next) {
                Some(inside) => next = inside,
                None => return Err(Fail::Outside(next)),
            }
            walk.dir = self.dir_info(ObjectId::ROOT)?;
        }
        (walk.todo, walk.at) = (next, 0);
        Ok(())
    }

    /// The absolute path of `rest` (empty, or beginning with `/`) below the directory that contains
    /// the mount prefix. `..` of the pool's root leads to that directory.
    fn above_mount(&self, rest: &[u8]) -> Vec<u8> {
        let mount = self.pool.mount();
        let cut = mount.iter().rposition(|&b| b == b'/').unwrap_or(0);
        if cut == 0 && rest.is_empty() {
            return b"/".to_vec();
        }
        [&mount[..cut], rest].concat()
    }

    /// Translates an absolute path under the mount prefix to an absolute path inside the pool. None
    /// for other paths.
    pub fn inside(&self, path: &[u8]) -> Option<Vec<u8>> {
        match path.strip_prefix(self.pool.mount())? {
            b"" => Some(b"/".to_vec()),
            rest if rest[0] == b'/' => Some(rest.to_vec()),
            _ => None,
        }
    }
}
