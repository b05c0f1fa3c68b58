//! Pools with an origin: files that are at the origin only are fetched before they are used.
//!
//! [`OriginGate`] sends a request to the origin service (`forebay_client::origin`) when it meets a
//! directory whose entries, or a file whose bytes, aren't in the pool. The service also makes,
//! removes and renames what the origin has, in the pool and at the origin. Pools without an origin
//! pay one test.

use crate::aside::ASIDE;
use crate::cache::DirInfo;
use crate::fs::Fs;
use crate::off::Off;
use crate::origin_caches::OriginCaches;
use crate::pool_ref::PoolRef;
use forebay_client::Pool;
use forebay_client::controls::Persistence;
use forebay_client::origin::{Lead, OriginConfig, OriginMode, Request};
use forebay_cluster::Cluster;
use forebay_store::controls::declared;
use forebay_store::process::{is_answering, write_notice};
use forebay_store::{
    DirPosition, Entry, Inode, NewObject, ObjectId, OriginState, RenameMode, Store,
};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of requests for more quota for one change: other processes may use up what is
/// granted.
const QUOTA_ATTEMPTS: usize = 8;

/// Fetches from the pool's origin what a call needs, before the call continues; see the module.
#[derive(Clone, Copy)]
pub struct OriginGate<'a> {
    pool: PoolRef<'a>,
    pub(crate) caches: &'a OriginCaches,
    /// Whether the view reads ahead, so that it needs more bytes than a program asks for.
    pub(crate) reads_ahead: bool,
}

impl Fs {
    /// Returns the [`OriginGate`] of this view.
    #[inline]
    pub fn origin_gate(&self) -> OriginGate<'_> {
        OriginGate {
            pool: self.pool_ref(),
            caches: self.origin_caches(),
            reads_ahead: self.buffer_caches().is_some(),
        }
    }
}

impl<'a> OriginGate<'a> {
    #[inline]
    pub(crate) fn pool(&self) -> &'a Pool {
        self.pool.pool()
    }

    #[inline]
    pub(crate) fn store(&self) -> &'a Store {
        self.pool.store()
    }

    #[inline]
    pub(crate) fn cluster(&self) -> Cluster<'a> {
        self.pool.cluster()
    }

    /// Whether files that are at the pool's origin only are fetched before they are used.
    #[inline]
    pub(crate) fn has_origin(&self) -> bool {
        self.caches.has_origin
    }

    /// The origin's modes, if some paths are at the origin only.
    #[inline]
    pub(crate) fn off(&self) -> Option<&'a Off> {
        self.caches.off.as_ref()
    }

    /// An open file as a request names it: the file's id, and the directory and name by which it
    /// was opened.
    pub(crate) fn opened_as(&self, open: u32) -> (ObjectId, ObjectId, Vec<u8>) {
        let o = self.store().objects().open_file(open);
        let mut name = Vec::new();
        self.store().objects().open_name(o, &mut name);
        let (id, dir) = (o.id.load(Relaxed), o.parent.load(Relaxed));
        (ObjectId(id), ObjectId(dir), name)
    }

    /// The id of an open file.
    fn id_of(&self, open: u32) -> ObjectId {
        ObjectId(self.store().objects().open_file(open).id.load(Relaxed))
    }

    /// The pool's origin, if this view fetches files from it.
    #[inline]
    fn origin(&self) -> Option<&OriginConfig> {
        if self.has_origin() {
            self.pool().config().origin.as_ref()
        } else {
            None
        }
    }

    fn ask_origin(&self, request: &Request) -> Result<()> {
        self.ask_origin_for(request).map(|_| ())
    }

    pub(crate) fn ask_origin_for(&self, request: &Request) -> Result<String> {
        if is_answering() {
            return Err(ASIDE);
        }
        match self.pool().ask_origin(request) {
            Ok(text) => Ok(text),
            Err(refusal) => {
                if !refusal.text.is_empty() {
                    write_notice(format_args!("{}", refusal.text));
                }
                Err(refusal.error)
            }
        }
    }

    /// Fetches a directory's entries if they are at the origin only. Returns the directory.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin.
    #[inline]
    pub(crate) fn with_entries(&self, dir: DirInfo) -> Result<DirInfo> {
        if !dir.is_released {
            return Ok(dir);
        }
        self.bring_entries(dir.id)?;
        Ok(DirInfo {
            is_released: false,
            ..dir
        })
    }

    /// Fetches the entries of a directory.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin.
    pub(crate) fn bring_entries(&self, dir: ObjectId) -> Result<()> {
        match self.origin() {
            None => Ok(()),
            Some(_) => self.ask_origin(&Request::Entries { dir }),
        }
    }

    /// Fetches the bytes of a file that is about to be opened with these flags of open(2). Returns
    /// true if the bytes are fetched by ranges instead, once the file is open
    /// ([`OriginGate::begin_ranges`]). `permitted` checks whether the process may open the file.
    ///
    /// # Errors
    /// Errors of `permitted`, and of reading the file at the origin. EROFS: the flags ask for
    /// writing, and the path is read-only.
    #[inline]
    pub(crate) fn bring_bytes(
        &self,
        (dir, name): (ObjectId, &[u8]),
        id: ObjectId,
        flags: i32,
        permitted: impl FnOnce(&Inode) -> Result<()>,
    ) -> Result<bool> {
        if !self.has_origin() || flags & libc::O_PATH != 0 {
            return Ok(false);
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            self.check_read_only(dir, name)?;
        }
        let inode = self.cluster().namespace().stat(id)?;
        match inode.origin.state {
            OriginState::None | OriginState::Archived => Ok(false),
            OriginState::Released if self.may_come_by_ranges(id, &inode, flags) => Ok(true),
            OriginState::Released => {
                // Checked before the origin service truncates the file: a process that may not
                // write to the file must not truncate it.
                permitted(&inode)?;
                let cut = flags & libc::O_TRUNC != 0 && inode.controls == 0;
                let name = name.to_vec();
                self.ask_origin(&Request::Bytes { id, dir, name, cut })?;
                Ok(false)
            }
        }
    }

    /// Fetches the `user.*` attributes of an object, if only the origin has them. With `changes`,
    /// fetches its bytes, too: from then on, the pool's attributes are the valid ones.
    ///
    /// # Errors
    /// Errors of reading the object at the origin.
    #[inline]
    pub fn bring_attributes(&self, id: ObjectId, changes: bool) -> Result<()> {
        if !self.has_origin() {
            return Ok(());
        }
        let inode = self.cluster().namespace().stat(id)?;
        if !inode.origin.is_released() {
            return Ok(());
        }
        let (dir, name) = (ObjectId(0), Vec::new());
        match (inode.is_dir(), changes) {
            (true, _) => self.bring_entries(id),
            (false, true) => {
                let cut = false;
                self.ask_origin(&Request::Bytes { id, dir, name, cut })
            }
            (false, false) => self.ask_origin(&Request::Attributes { id, dir, name }),
        }
    }

    /// Where the entry `name` of a directory is: in the pool, or at the origin.
    ///
    /// # Errors
    /// Errors of looking up the directory's path.
    #[inline]
    pub(crate) fn lead(&self, dir: ObjectId, name: &[u8]) -> Result<Lead> {
        match self.off() {
            Some(off) if !dir.is_view() => {
                let key = (dir, self.store().names_epoch().now());
                off.lead(key, name, || self.path_behind(dir))
            }
            _ => Ok(Lead::Pool),
        }
    }

    /// The path of a directory, if the origin covers it; None otherwise.
    fn path_behind(&self, dir: ObjectId) -> Result<Option<Vec<u8>>> {
        let path = self.cluster().namespace().path_of(dir)?;
        let origin = self.pool().config().origin.as_ref();
        let is_behind = origin.is_some_and(|origin| origin.relative(&path).is_some());
        Ok(is_behind.then_some(path))
    }

    /// Checks that an object of this kind may be renamed from `from` to `to`, or without `from` may
    /// get the new name `to`.
    ///
    /// # Errors
    /// EXDEV: the new path is at the origin only; or the object is a directory, and the rename
    /// would change the modes of entries below it.
    pub(crate) fn check_modes(
        &self,
        kind: u32,
        from: Option<(ObjectId, &[u8])>,
        to: (ObjectId, &[u8]),
    ) -> Result<()> {
        let Some(off) = self.off() else {
            return Ok(());
        };
        let is_dir = kind == libc::S_IFDIR;
        let stays = match self.lead(to.0, to.1)? {
            Lead::Pool => true,
            Lead::OriginUnlessDirectory => is_dir,
            Lead::Origin => false,
        };
        let at = |(dir, name): (ObjectId, &[u8])| {
            let key = (dir, self.store().names_epoch().now());
            off.at(key, name, || self.path_behind(dir))
        };
        let is_same = match from {
            Some(from) if is_dir => at(from)? == at(to)?,
            _ => true,
        };
        if stays && is_same {
            Ok(())
        } else {
            Err(Errno::XDEV)
        }
    }

    /// The path at the origin that corresponds to `rest`, a path relative to a directory of the
    /// pool. Makes that directory at the origin if it isn't there.
    ///
    /// # Errors
    /// Errors of making the directory at the origin.
    pub(crate) fn path_at_origin(&self, dir: ObjectId, rest: &[u8]) -> Result<Vec<u8>> {
        let origin = self.origin().ok_or(Errno::XDEV)?;
        let path = self.cluster().namespace().path_of(dir)?;
        let relative = origin.relative(&path).ok_or(Errno::XDEV)?;
        let mark = self.cluster().namespace().stat(dir)?.origin;
        if mark.state == OriginState::None || mark.synced == 0 && mark.print == 0 {
            self.ask_origin(&Request::Settle { dir })?;
        }
        let mut there = origin.path.clone().into_bytes();
        for part in [relative, rest].into_iter().filter(|p| !p.is_empty()) {
            there.push(b'/');
            there.extend_from_slice(part);
        }
        Ok(there)
    }

    /// Makes the pool show the entries of a directory that are at the origin only.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin.
    #[inline]
    pub(crate) fn show_origin_only(&self, dir: ObjectId) -> Result<()> {
        match self.off() {
            Some(off) if !dir.is_view() => {
                let key = (dir, self.store().names_epoch().now());
                if off.may_hold_origin_only(key, || self.path_behind(dir))? {
                    self.ask_origin(&Request::OriginOnly { dir })
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }

    /// Whether the bytes of an open file aren't in the pool, since another process released the
    /// file between [`OriginGate::bring_bytes`] and its opening.
    ///
    /// # Errors
    /// Errors of looking the file up.
    #[inline]
    pub(crate) fn was_released(&self, id: ObjectId) -> Result<bool> {
        if self.has_origin() {
            Ok(self.cluster().namespace().stat(id)?.origin.is_released())
        } else {
            Ok(false)
        }
    }

    /// Checks that the entry `name` of a directory may change.
    ///
    /// # Errors
    /// EROFS: the entry's path is read-only.
    #[inline]
    pub(crate) fn check_read_only(&self, dir: ObjectId, name: &[u8]) -> Result<()> {
        match self.origin() {
            Some(origin) if origin.may_be(OriginMode::ReadOnly) => {
                self.check_mode(origin, dir, name)
            }
            _ => Ok(()),
        }
    }

    /// Evicts clean files from a full pool, to make room for `bytes` more of an open file. Returns
    /// false if that isn't possible.
    #[cold]
    pub(crate) fn makes_room(&self, open: u32, bytes: usize) -> bool {
        if !self.has_origin() || is_answering() {
            return false;
        }
        let (id, bytes) = (self.id_of(open), bytes as u64);
        self.pool().ask_origin(&Request::Room { id, bytes }).is_ok()
    }

    /// Requests more of the pool's quota for a node: this many bytes and files. Returns false if
    /// the quota has too few left, or the pool has no quota.
    ///
    /// # Errors
    /// [`ASIDE`]: the request must be sent by another thread.
    #[cold]
    pub(crate) fn gets_quota(&self, node: u32, (bytes, files): (u64, u64)) -> Result<bool> {
        if !self.has_origin() || !self.store().quota().is_active() {
            return Ok(false);
        }
        if is_answering() {
            return Err(ASIDE);
        }
        let grant = Request::Grant { node, bytes, files };
        Ok(self.pool().ask_origin(&grant).is_ok())
    }

    /// The number of this node.
    pub(crate) fn this_node(&self) -> u32 {
        self.pool().config().member.map_or(0, |member| member.node)
    }

    /// Calls `change`, which may make an open file `bytes` longer. If the quota refuses, requests
    /// that many bytes and calls `change` again.
    pub(crate) fn with_quota<T>(
        &self,
        open: u32,
        bytes: u64,
        change: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let node = || self.cluster().room().quota_node(self.id_of(open));
        self.while_granted(node, (bytes, 0), change)
    }

    /// Calls `make`, which makes an object in a directory. If the quota refuses, requests quota for
    /// one object and calls `make` again. `make` must hold no section when it fails: waiting for
    /// the origin service inside a section would block other processes.
    pub(crate) fn with_quota_for<T>(
        &self,
        (dir, name, new): (ObjectId, &[u8], &NewObject<'_>),
        make: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let node = || self.cluster().room().quota_node_of_new(dir, name, new);
        self.while_granted(node, (0, 1), make)
    }

    #[inline]
    fn while_granted<T>(
        &self,
        node: impl Fn() -> u32,
        wanted: (u64, u64),
        mut change: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..QUOTA_ATTEMPTS {
            match change() {
                Err(Errno::DQUOT) if self.gets_quota(node(), wanted)? => {}
                done => return done,
            }
        }
        change()
    }

    /// Copies what was written to an open file to the origin, if its path's mode is write-through,
    /// or if `persistence = "origin"` is declared for the file.
    ///
    /// # Errors
    /// Errors of writing the file to the origin. EOPNOTSUPP: `persistence = "origin"` is declared,
    /// but nothing is written to the origin under the file's path.
    #[inline]
    pub fn write_through_open(&self, open: u32) -> Result<()> {
        let flags = || self.store().objects().open_file(open).flags.load(Relaxed) as i32;
        match self.origin() {
            Some(_) if flags() & libc::O_ACCMODE == libc::O_RDONLY => Ok(()),
            Some(origin) => self.write_through(origin, open),
            None => Ok(()),
        }
    }

    /// As [`OriginGate::write_through_open`], also for a descriptor that isn't open for writing:
    /// the file may have been written through others.
    ///
    /// # Errors
    /// As for [`OriginGate::write_through_open`].
    #[inline]
    pub(crate) fn sync_through_open(&self, open: u32) -> Result<()> {
        match self.origin() {
            Some(origin) => self.write_through(origin, open),
            None => Ok(()),
        }
    }

    fn write_through(&self, origin: &OriginConfig, open: u32) -> Result<()> {
        let is_declared = self.is_declared_at_origin(open);
        if is_declared || origin.may_be(OriginMode::WriteThrough) {
            self.sync_at_origin(origin, open, is_declared)
        } else {
            Ok(())
        }
    }

    /// Whether `persistence = "origin"` is declared for an open file.
    fn is_declared_at_origin(&self, open: u32) -> bool {
        let live = &self.store().objects().open_file(open).live;
        let Some(live) = live.load(Relaxed).checked_sub(1) else {
            return false;
        };
        let word = self.store().declared().controls(live);
        word != 0 && declared(word).0.persistence == Some(Persistence::Origin)
    }

    /// Returns why changes of the entry `name` of a directory are never written to an origin; None
    /// if they are written. With an empty `name`, the changes are those of the directory's entries.
    ///
    /// # Errors
    /// Errors of looking up the directory's path.
    pub(crate) fn not_written_to_origin(
        &self,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<Option<&'static str>> {
        let Some(origin) = self.pool().config().origin.as_ref() else {
            return Ok(Some("the pool has no origin"));
        };
        let path = self.path_in(dir, name)?;
        if origin.relative(&path).is_none() {
            return Ok(Some("the origin isn't behind its path"));
        }
        let mode = origin.mode_of(&path);
        // Without a name, the modes of the directory's entries depend on their own paths.
        Ok(
            (!name.is_empty() && !mode.is_written()).then_some(match mode {
                OriginMode::ReadOnly => "its path's mode is read-only",
                OriginMode::Off => "its path's mode is off",
                _ => "its path's mode is scratch",
            }),
        )
    }

    /// The path of the entry `name` of a directory, or of the directory if there is no name.
    fn path_in(&self, dir: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        let mut path = self.cluster().namespace().path_of(dir)?;
        if !name.is_empty() {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    #[cold]
    fn sync_at_origin(&self, origin: &OriginConfig, open: u32, is_declared: bool) -> Result<()> {
        let kind = &self.store().objects().open_file(open).kind;
        if kind.load(Relaxed) != libc::S_IFREG {
            return Ok(());
        }
        let (id, dir, name) = self.opened_as(open);
        let Ok(path) = self.path_in(dir, &name) else {
            return Ok(());
        };
        let mode = origin.relative(&path).map(|_| origin.mode_of(&path));
        match mode {
            Some(OriginMode::WriteThrough) => {}
            Some(OriginMode::WriteBack) if is_declared => {}
            // A file whose names are all removed isn't reported: no user expects it at the origin.
            Some(_) | None if is_declared && self.cluster().namespace().stat(id)?.nlink > 0 => {
                let shown = String::from_utf8_lossy(&path);
                write_notice(format_args!(
                    "{shown}: persistence = \"origin\" is declared of it, but nothing is written to \
                     the origin under that path"
                ));
                return Err(Errno::OPNOTSUPP);
            }
            Some(_) | None => return Ok(()),
        }
        self.ask_origin(&Request::SyncFile { id, dir, name })
    }

    #[cold]
    fn check_mode(&self, origin: &OriginConfig, dir: ObjectId, name: &[u8]) -> Result<()> {
        let path = self.path_in(dir, name)?;
        let is_behind = origin.relative(&path).is_some();
        if is_behind && origin.mode_of(&path) == OriginMode::ReadOnly {
            Err(Errno::ROFS)
        } else {
            Ok(())
        }
    }

    /// Removes a name of the object `e` at the origin and in the pool. Returns false, and does
    /// nothing, if the origin doesn't have the object.
    ///
    /// # Errors
    /// Errors of removing the object; EROFS.
    #[inline]
    pub(crate) fn remove_by_origin(&self, dir: ObjectId, name: &[u8], e: Entry) -> Result<bool> {
        if !self.has_origin() {
            return Ok(false);
        }
        self.check_read_only(dir, name)?;
        if self.cluster().namespace().stat(e.id)?.origin.state == OriginState::None {
            return Ok(false);
        }
        let name = name.to_vec();
        self.ask_origin(&Request::Remove {
            dir,
            name,
            id: e.id,
        })?;
        Ok(true)
    }

    /// Checks that the directory `id` is empty. Called before [`OriginGate::remove_by_origin`].
    ///
    /// # Errors
    /// ENOTEMPTY; errors of listing the directory at the origin.
    pub(crate) fn check_empty(&self, id: ObjectId) -> Result<()> {
        if !self.has_origin() {
            return Ok(());
        }
        if self.cluster().namespace().stat(id)?.origin.is_released() {
            self.bring_entries(id)?;
        }
        self.show_origin_only(id)?;
        let mut is_empty = true;
        self.cluster()
            .namespace()
            .list(id, &mut DirPosition::default(), |_, _| {
                is_empty = false;
                false
            })?;
        if is_empty {
            Ok(())
        } else {
            Err(Errno::NOTEMPTY)
        }
    }

    /// Adds a name for an object at the origin and in the pool. Returns false, and does nothing, if
    /// the origin doesn't have the object. `known`: an earlier name of the object.
    ///
    /// # Errors
    /// Errors of link(2). EXDEV: the origin has the object, but not the directory of the name.
    #[inline]
    pub(crate) fn link_by_origin(
        &self,
        id: ObjectId,
        known: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
    ) -> Result<bool> {
        if !self.has_origin()
            || self.cluster().namespace().stat(id)?.origin.state == OriginState::None
        {
            return Ok(false);
        }
        self.ask_origin(&Request::Link {
            id,
            known: (known.0, known.1.to_vec()),
            to: (to.0, to.1.to_vec()),
        })?;
        Ok(true)
    }

    /// Renames the entry `from` to `to`, at the origin and in the pool. Returns false, and does
    /// nothing, if the origin has neither the renamed object nor the replaced one.
    ///
    /// # Errors
    /// Errors of rename(2); EROFS. EOPNOTSUPP: the two names were to be exchanged.
    #[inline]
    pub(crate) fn rename_by_origin(
        &self,
        from: (ObjectId, &[u8], Entry),
        to: (ObjectId, &[u8], Option<Entry>),
        mode: RenameMode,
    ) -> Result<bool> {
        if !self.has_origin() {
            return Ok(false);
        }
        self.check_read_only(from.0, from.1)?;
        self.check_read_only(to.0, to.1)?;
        let state = |e: Entry| Ok(self.cluster().namespace().stat(e.id)?.origin.state);
        let replaced = to.2.map_or(Ok(OriginState::None), state)?;
        if (state(from.2)?, replaced) == (OriginState::None, OriginState::None) {
            return Ok(false);
        }
        if mode == RenameMode::Exchange {
            return Err(Errno::OPNOTSUPP);
        }
        self.ask_origin(&Request::Rename {
            from: (from.0, from.1.to_vec()),
            to: (to.0, to.1.to_vec()),
            id: from.2.id,
            replaced: to.2.map(|replaced| replaced.id),
            may_replace: mode == RenameMode::Replace,
        })?;
        Ok(true)
    }
}
