//! Operations on resolved paths ([`Place`]) and on objects, with POSIX's permissions and errors.
//!
//! Each operation checks the permissions of the calling process, then calls the cluster. ESTALE
//! means that names have changed since the path was resolved; [`Resolver::at`] resolves it again.
//!
//! [`Resolver::at`]: crate::Resolver::at

use crate::cache::DirInfo;
use crate::cred::{EXEC, WRITE};
use crate::fs::{Fs, Stat};
use crate::id_map::NO_ID;
use crate::path::{Fail, Follow, Goal, MAX_ATTEMPTS, Name, Place, pause};
use crate::xattr::check_attribute;
use crate::{ObjectId, RenameMode};
use forebay_client::controls::Declared;
use forebay_cluster::NewFile;
use forebay_store::{Distribution, Entry, NewObject, PATH_MAX, SetAttr, now};
use libc::{
    IN_ATTRIB, IN_CREATE, IN_DELETE, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_ISVTX,
};
use rustix::io::{Errno, Result};
use rustix::thread::CapabilitySet;

/// The directory entry that an operation makes, changes or removes.
pub(crate) struct EntryPlace<'a> {
    pub dir: &'a DirInfo,
    pub name: &'a Name,
    entry: Option<Entry>,
    slash: bool,
    pub epoch: u64,
}

/// A file for [`Fs::make_files`].
#[derive(Clone, Copy, Debug)]
pub struct FileToMake<'a> {
    /// The file's id, from [`Fs::draw_files`].
    pub id: ObjectId,
    /// The file's name.
    pub name: &'a [u8],
    /// The file's extended attributes of users: names and values.
    pub attributes: &'a [(Vec<u8>, Vec<u8>)],
    /// The file's own controls, which override those of its directory and of the rules.
    pub own_controls: Declared,
}

/// Turns ENOENT into ESTALE: the object was removed after its name was looked up, so the path must
/// be resolved again.
fn look_again(e: Errno) -> Errno {
    match e {
        Errno::NOENT => Errno::STALE,
        e => e,
    }
}

impl Fs {
    /// The directory and name of a place. Fails with `dots` for `.`, `..` and `/`.
    pub(crate) fn entry_place<'a>(&self, place: &'a Place, dots: Errno) -> Result<EntryPlace<'a>> {
        match place {
            Place::Dir { .. } => Err(dots),
            Place::Entry {
                dir,
                name,
                entry,
                slash,
                epoch,
                ..
            } => Ok(EntryPlace {
                dir,
                name,
                entry: *entry,
                slash: *slash,
                epoch: *epoch,
            }),
        }
    }

    /// Attributes of an object.
    ///
    /// # Errors
    /// ENOENT.
    pub fn stat_id(&self, id: ObjectId) -> Result<Stat> {
        self.buffers().write_back(id);
        let inode = self.inode_in_use(id)?;
        Ok(self.stat_of(id, &self.cluster().data().with_parts(id, inode)?))
    }

    /// Attributes of the object at a place.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn stat_place(&self, place: &Place) -> Result<Stat> {
        let id = place.existing()?.id;
        if let Some(inode) = place.inode()
            && !self.buffers().keeps(id)
        {
            return Ok(self.stat_of(id, &self.cluster().data().with_parts(id, inode)?));
        }
        match self.stat_id(id) {
            // The object was removed between the lookup and the check: look again.
            Err(Errno::NOENT) if matches!(place, Place::Entry { .. }) => Err(Errno::STALE),
            // The working directory was removed.
            Err(Errno::NOENT) => Ok(self.stat_of_removed(id, S_IFDIR)),
            other => other,
        }
    }

    /// Attributes of an object that was removed while it was in use.
    pub(crate) fn stat_of_removed(&self, id: ObjectId, kind: u32) -> Stat {
        Stat {
            ino: id.0,
            mode: kind | 0o755,
            nlink: 0,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            size: 4096,
            blocks: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
        }
    }

    /// Checks that the process may read, write or execute the object (`want`: a sum of READ, WRITE
    /// and EXEC; 0: the object exists).
    ///
    /// # Errors
    /// EACCES, ENOENT.
    pub fn access(&self, place: &Place, want: u32) -> Result<()> {
        let e = place.existing()?;
        if want == 0 {
            return Ok(());
        }
        self.cred().check(&self.inode_in_use(e.id)?, want)
    }

    /// As [`Fs::access`], for the real user (access(2)) if `real`.
    ///
    /// # Errors
    /// EACCES, ENOENT.
    pub fn access_as(&self, place: &Place, want: u32, real: bool) -> Result<()> {
        if !real || want == 0 {
            return self.access(place, want);
        }
        let inode = self.inode_in_use(place.existing()?.id)?;
        self.credentials().real_ids().check(&inode, want)
    }

    /// Builds a new object `name` in `dir`. A file gets the controls that this view declares.
    ///
    /// # Errors
    /// As for [`ControlGate::controls_of_new`], [`ControlGate::creator_of_new`] and
    /// [`OriginGate::check_modes`].
    ///
    /// [`ControlGate::controls_of_new`]: crate::ControlGate
    /// [`ControlGate::creator_of_new`]: crate::ControlGate
    /// [`OriginGate::check_modes`]: crate::OriginGate
    pub(crate) fn new_object<'a>(
        &self,
        dir: &DirInfo,
        name: &[u8],
        mode: u32,
        target: &'a [u8],
    ) -> Result<NewObject<'a>> {
        self.new_object_with(dir, name, mode, target, self.caller().declared)
    }

    fn new_object_with<'a>(
        &self,
        dir: &DirInfo,
        name: &[u8],
        mode: u32,
        target: &'a [u8],
        declared: Declared,
    ) -> Result<NewObject<'a>> {
        assert!(mode & S_IFMT != 0, "an object that is made has a type");
        self.origin_gate()
            .check_modes(mode & S_IFMT, None, (dir.id, name))?;
        let setgid = dir.mode & S_ISGID != 0;
        let inherit = if setgid && mode & S_IFMT == S_IFDIR {
            S_ISGID
        } else {
            0
        };
        let cred = self.cred();
        let (uid, own_gid) = (cred.uid(), cred.gid());
        let gid = if setgid { dir.gid } else { own_gid };
        if uid == NO_ID || gid == NO_ID {
            return Err(Errno::OVERFLOW);
        }
        let mut mode = mode | inherit;
        // A user outside the directory's group must not make a program that runs with the group's
        // rights.
        if setgid
            && inherit == 0
            && mode & S_ISGID != 0
            && !cred.in_group(gid)
            && !cred.can_with(CapabilitySet::FSETID, dir.uid, dir.gid)
        {
            mode &= !S_ISGID;
        }
        drop(cred);
        let gate = self.controls();
        let controls = gate.controls_of_new(dir, name, mode, declared)?;
        Ok(NewObject {
            mode,
            uid,
            gid,
            rdev: 0,
            target,
            distribution: gate.distribution_of_new(dir, name, mode)?,
            controls,
            creator: gate.creator_of_new(mode, controls)?,
            stub: None,
        })
    }

    /// Creates an object at a place; EEXIST if the place has an entry.
    fn create_new(&self, p: &EntryPlace<'_>, new: &NewObject<'_>) -> Result<ObjectId> {
        if p.entry.is_some() {
            return Err(Errno::EXIST);
        }
        self.cred().check_dir(p.dir, WRITE | EXEC)?;
        self.origin_gate().check_read_only(p.dir.id, p.name)?;
        let make = || {
            let cluster = self.cluster();
            cluster
                .namespace()
                .create_object(p.dir.id, p.name, new, p.epoch)
        };
        let id = self
            .origin_gate()
            .with_quota_for((p.dir.id, p.name, new), make)?
            .map_err(|_| Errno::EXIST)?;
        if new.mode & S_IFMT == S_IFDIR {
            forebay_trace::event_of!(POSIX_DIRECTORY_MADE, p.name, id.0, p.dir.id.0);
        }
        self.store()
            .watches()
            .notify_dir(p.dir.id, p.name, new.mode & S_IFMT, IN_CREATE);
        Ok(id)
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOSPC.
    pub fn make_dir(&self, place: &Place, mode: u32) -> Result<()> {
        let p = self.entry_place(place, Errno::EXIST)?;
        let new = self.new_object(p.dir, p.name, S_IFDIR | mode & 0o1777, b"")?;
        self.create_new(&p, &new).map(|_| ())
    }

    /// As [`Fs::make_dir`], with this distribution of the directory's content.
    ///
    /// # Errors
    /// As for [`Fs::make_dir`].
    pub fn make_dir_with(
        &self,
        place: &Place,
        mode: u32,
        distribution: Distribution,
    ) -> Result<()> {
        let p = self.entry_place(place, Errno::EXIST)?;
        let mut new = self.new_object(p.dir, p.name, S_IFDIR | mode & 0o1777, b"")?;
        new.distribution = Some(distribution);
        self.create_new(&p, &new).map(|_| ())
    }

    /// As [`Fs::make_dir`], for a directory that will be renamed to `becomes`.
    pub(crate) fn make_dir_as(&self, place: &Place, becomes: &[u8], mode: u32) -> Result<()> {
        let p = self.entry_place(place, Errno::EXIST)?;
        let mut new = self.new_object(p.dir, p.name, S_IFDIR | mode & 0o1777, b"")?;
        new.distribution = self
            .controls()
            .distribution_of_new(p.dir, becomes, S_IFDIR)?;
        self.create_new(&p, &new).map(|_| ())
    }

    /// mknod(2): regular files, FIFOs, sockets and devices as names.
    ///
    /// # Errors
    /// EEXIST, EACCES, EPERM, ENOSPC.
    pub fn make_node(&self, place: &Place, mode: u32, rdev: u64) -> Result<ObjectId> {
        let p = self.entry_place(place, Errno::EXIST)?;
        let kind = match mode & libc::S_IFMT {
            0 => S_IFREG,
            k @ (S_IFREG | libc::S_IFIFO | libc::S_IFSOCK) => k,
            k @ (libc::S_IFCHR | libc::S_IFBLK) if self.cred().can(CapabilitySet::MKNOD) => k,
            libc::S_IFCHR | libc::S_IFBLK | S_IFDIR => return Err(Errno::PERM),
            _ => return Err(Errno::INVAL),
        };
        if p.slash && p.entry.is_none() {
            return Err(Errno::NOENT);
        }
        let mut new = self.new_object(p.dir, p.name, kind | mode & 0o7777, b"")?;
        new.rdev = rdev;
        self.create_new(&p, &new)
    }

    /// symlink(2).
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOENT for an empty target, ENAMETOOLONG, ENOSPC.
    pub fn make_symlink(&self, target: &[u8], place: &Place) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let p = self.entry_place(place, Errno::EXIST)?;
        if p.slash && p.entry.is_none() {
            return Err(Errno::NOENT);
        }
        let new = self.new_object(p.dir, p.name, S_IFLNK | 0o777, target)?;
        self.create_new(&p, &new).map(|_| ())
    }

    /// readlink(2). Returns the whole target.
    ///
    /// # Errors
    /// EINVAL if it isn't a symbolic link.
    pub fn read_symlink(&self, place: &Place) -> Result<Vec<u8>> {
        let e = place.existing()?;
        if e.kind != S_IFLNK {
            return Err(Errno::INVAL);
        }
        Ok(self.cluster().namespace().inode_tail(e.id)?.1)
    }

    /// link(2): one more name for the object at `source`.
    ///
    /// # Errors
    /// ENOENT; as [`Fs::make_link`].
    pub fn make_link_to(&self, source: &Place, place: &Place) -> Result<()> {
        let e = source.existing()?;
        match self.entry_place(source, Errno::PERM) {
            Ok(s) => self.link_object(e.id, (s.dir.id, s.name), place),
            Err(_) => self.make_link(e.id, place),
        }
    }

    /// link(2): one more name for object `id`.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, EACCES, ENOSPC; those of the pool's origin.
    pub fn make_link(&self, id: ObjectId, place: &Place) -> Result<()> {
        self.link_object(id, (ObjectId(0), b""), place)
    }

    /// Adds a name for object `id`. `known`: an earlier name of the object, if the caller knows
    /// one.
    fn link_object(&self, id: ObjectId, known: (ObjectId, &[u8]), place: &Place) -> Result<()> {
        let p = self.entry_place(place, Errno::EXIST)?;
        if p.entry.is_some() {
            return Err(Errno::EXIST);
        }
        if p.slash {
            return Err(Errno::NOENT);
        }
        let cluster = self.cluster();
        let inode = cluster.namespace().stat(id)?;
        if inode.is_dir() {
            return Err(Errno::PERM);
        }
        self.cred().check_dir(p.dir, WRITE | EXEC)?;
        self.origin_gate().check_read_only(p.dir.id, p.name)?;
        self.buffers().write_back(id);
        let by_origin = self
            .origin_gate()
            .link_by_origin(id, known, (p.dir.id, p.name));
        if !by_origin.map_err(look_again)? {
            cluster.namespace().link(id, p.dir.id, p.name, p.epoch)?;
        }
        cluster
            .store()
            .watches()
            .notify_self(id, inode.kind(), IN_ATTRIB);
        cluster
            .store()
            .watches()
            .notify_dir(p.dir.id, p.name, inode.kind(), IN_CREATE);
        Ok(())
    }

    /// Reserves ids for new files with these names in `dir`, for [`Fs::make_files`].
    ///
    /// # Errors
    /// ENOSPC.
    pub fn draw_files(&self, dir: ObjectId, names: &[&[u8]]) -> Result<Vec<ObjectId>> {
        self.cluster().namespace().draw_files(dir, names)
    }

    /// Makes empty files in the directory `dir`, with ids from [`Fs::draw_files`]. A file appears
    /// together with its extended attributes. Each file is made independently of the others:
    /// returns one result for each.
    ///
    /// # Errors
    /// For all files: ENOENT, EACCES, and ERANGE, E2BIG, EOPNOTSUPP for attributes. For each:
    /// EEXIST, ENOSPC; ESTALE if names have changed meanwhile.
    pub fn make_files(
        &self,
        dir: ObjectId,
        files: &[FileToMake<'_>],
        mode: u32,
    ) -> Result<Vec<Result<()>>> {
        let cluster = self.cluster();
        let epoch = cluster.store().names_epoch().now();
        let info = self.resolver().dir_info(dir)?;
        self.cred().check_dir(&info, WRITE | EXEC)?;
        let attributes = files.iter().flat_map(|file| file.attributes);
        for (name, value) in attributes {
            check_attribute(name, value)?;
        }
        let mut all: Vec<NewFile<'_>> = Vec::with_capacity(files.len());
        for file in files {
            let mode = S_IFREG | mode & 0o7777;
            all.push(NewFile {
                id: file.id,
                name: file.name,
                new: self.new_object_with(&info, file.name, mode, b"", file.own_controls)?,
                attributes: file.attributes,
            });
        }
        let mut made = cluster.namespace().create_files(dir, &all, epoch);
        assert!(
            made.len() == files.len(),
            "each file that is made has a result"
        );
        let refused = made
            .iter()
            .filter(|made| **made == Err(Errno::DQUOT))
            .count();
        let gate = self.origin_gate();
        if refused > 0 && gate.gets_quota(gate.this_node(), (0, refused as u64))? {
            for one in made.iter_mut().filter(|one| **one == Err(Errno::DQUOT)) {
                *one = Err(Errno::STALE);
            }
        }
        for (file, _) in files.iter().zip(&made).filter(|(_, made)| made.is_ok()) {
            cluster
                .store()
                .watches()
                .notify_dir(dir, file.name, S_IFREG, IN_CREATE);
        }
        Ok(made)
    }

    /// Looks names up in the directory `dir`, each separately.
    ///
    /// # Errors
    /// ENOENT, EACCES for all of them; for each, the errors of its look-up.
    pub fn look_up_all(
        &self,
        dir: ObjectId,
        names: &[&[u8]],
    ) -> Result<Vec<Result<Option<Entry>>>> {
        let info = self
            .origin_gate()
            .with_entries(self.resolver().dir_info(dir)?)?;
        self.cred().check_dir(&info, EXEC)?;
        Ok(self.cluster().namespace().lookup_all(dir, names))
    }

    /// Removes these entries of the directory `dir`, all of them files. Returns for each whether
    /// the name still had that entry and was removed.
    ///
    /// # Errors
    /// ENOENT, EACCES for all of them. For each: EPERM; others as for
    /// [`forebay_cluster::Namespace::unlink_files`].
    pub fn remove_files(
        &self,
        dir: ObjectId,
        files: &[(&[u8], Entry)],
    ) -> Result<Vec<Result<bool>>> {
        let cluster = self.cluster();
        let epoch = cluster.store().names_epoch().now();
        let info = self.resolver().dir_info(dir)?;
        self.cred().check_dir(&info, WRITE | EXEC)?;
        let allow = |(name, e): &(&[u8], Entry)| {
            self.check_sticky(&info, e.id)?;
            self.origin_gate().remove_by_origin(dir, name, *e)
        };
        let allowed: Vec<Result<bool>> = files.iter().map(allow).collect();
        let mine = files.iter().zip(&allowed);
        let mine = mine.filter(|(_, by_origin)| **by_origin == Ok(false));
        let mine: Vec<(&[u8], Entry)> = mine.map(|(file, _)| *file).collect();
        let mut removed = cluster
            .namespace()
            .unlink_files(dir, &mine, epoch)
            .into_iter();
        assert!(
            removed.len() == mine.len(),
            "each file that is removed has a result"
        );
        let notify = |((name, e), by_origin): (&(&[u8], Entry), Result<bool>)| {
            let removed = by_origin? || removed.next().unwrap_or(Err(Errno::IO))?;
            if removed {
                cluster
                    .store()
                    .watches()
                    .notify_self(e.id, e.kind, IN_ATTRIB);
                cluster.store().watches().notify_if_gone(e.id, e.kind);
                cluster
                    .store()
                    .watches()
                    .notify_dir(dir, name, e.kind, IN_DELETE);
            }
            Ok(removed)
        };
        Ok(files.iter().zip(allowed).map(notify).collect())
    }

    /// Returns EPERM if `dir` is sticky and the process owns neither `dir` nor the object `id`.
    fn check_sticky(&self, dir: &DirInfo, id: ObjectId) -> Result<()> {
        if dir.mode & S_ISVTX == 0 || self.cred().uid() == dir.uid {
            return Ok(());
        }
        let inode = self.cluster().namespace().stat(id).map_err(look_again)?;
        let cred = self.cred();
        if cred.uid() == inode.uid || cred.can_with(CapabilitySet::FOWNER, inode.uid, inode.gid) {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }

    /// unlink(2).
    ///
    /// # Errors
    /// ENOENT, EISDIR, EACCES, EPERM.
    pub fn remove_file(&self, place: &Place) -> Result<()> {
        let p = self.entry_place(place, Errno::ISDIR)?;
        let e = p.entry.ok_or(Errno::NOENT)?;
        if e.kind == S_IFDIR {
            return Err(Errno::ISDIR);
        }
        if p.slash {
            return Err(Errno::NOTDIR);
        }
        self.cred().check_dir(p.dir, WRITE | EXEC)?;
        self.check_sticky(p.dir, e.id)?;
        let by_origin = self.origin_gate().remove_by_origin(p.dir.id, p.name, e);
        let cluster = self.cluster();
        if !by_origin.map_err(look_again)? {
            cluster
                .namespace()
                .unlink(p.dir.id, p.name, Some(e), p.epoch)?;
        }
        self.drop_stand_in(e);
        cluster
            .store()
            .watches()
            .notify_self(e.id, e.kind, IN_ATTRIB);
        cluster.store().watches().notify_if_gone(e.id, e.kind);
        cluster
            .store()
            .watches()
            .notify_dir(p.dir.id, p.name, e.kind, IN_DELETE);
        Ok(())
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EINVAL, EBUSY, EACCES, EPERM.
    pub fn remove_dir(&self, place: &Place) -> Result<()> {
        if let Place::Dir { last, .. } = place {
            return Err(match &last[..] {
                b"." => Errno::INVAL,
                b".." => Errno::NOTEMPTY,
                _ => Errno::BUSY,
            });
        }
        let p = self.entry_place(place, Errno::BUSY)?;
        let e = p.entry.ok_or(Errno::NOENT)?;
        if e.kind != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        self.cred().check_dir(p.dir, WRITE | EXEC)?;
        self.check_sticky(p.dir, e.id)?;
        self.origin_gate().check_read_only(p.dir.id, p.name)?;
        self.origin_gate().check_empty(e.id).map_err(look_again)?;
        let by_origin = self.origin_gate().remove_by_origin(p.dir.id, p.name, e);
        let cluster = self.cluster();
        if !by_origin.map_err(look_again)? {
            cluster.namespace().rmdir(p.dir.id, p.name, p.epoch)?;
        }
        cluster.store().watches().notify_if_gone(e.id, e.kind);
        cluster
            .store()
            .watches()
            .notify_dir(p.dir.id, p.name, e.kind, IN_DELETE);
        Ok(())
    }

    /// rename(2) and renameat2(2) inside the pool.
    ///
    /// # Errors
    /// As rename(2). [`Fail::Outside`] if either path leads out of the pool.
    pub fn rename_at(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        mode: RenameMode,
    ) -> std::result::Result<(), Fail> {
        for attempt in 0..MAX_ATTEMPTS {
            let source = self.resolver().walk(from.0, from.1, Follow::Never)?;
            let goal = match source.existing() {
                Ok(source) if source.kind == S_IFDIR => Goal::DIRECTORY,
                _ => Follow::Never.into(),
            };
            let target = self.resolver().walk_for(to.0, to.1, goal)?;
            match self.rename_places(&source, &target, mode) {
                Err(Errno::STALE) => pause(attempt),
                other => return Ok(other?),
            }
        }
        Err(Fail::Errno(Errno::BUSY))
    }

    /// rename(2) between places.
    ///
    /// # Errors
    /// As rename(2); ESTALE: the caller must resolve both paths again.
    pub fn rename_places(&self, from: &Place, to: &Place, mode: RenameMode) -> Result<()> {
        let f = self.entry_place(from, Errno::BUSY)?;
        let t = self.entry_place(
            to,
            if mode == RenameMode::NoReplace {
                Errno::EXIST
            } else {
                Errno::BUSY
            },
        )?;
        let source = f.entry.ok_or(Errno::NOENT)?;
        let exchange = mode == RenameMode::Exchange;
        if (f.slash || t.slash && !exchange) && source.kind != S_IFDIR {
            // The rename itself checks whether both existed at the same time.
            let exists = mode == RenameMode::NoReplace && t.entry.is_some();
            return Err(if exists { Errno::EXIST } else { Errno::NOTDIR });
        }
        if let Some(target) = t.entry
            && t.slash
            && target.kind != S_IFDIR
        {
            return Err(Errno::NOTDIR);
        }
        self.cred().check_dir(f.dir, WRITE | EXEC)?;
        self.cred().check_dir(t.dir, WRITE | EXEC)?;
        self.check_sticky(f.dir, source.id)?;
        if let Some(target) = t.entry {
            self.check_sticky(t.dir, target.id)?;
        }
        for moved in [Some(source), t.entry.filter(|_| exchange)] {
            if let Some(moved) = moved.filter(|m| m.kind == S_IFDIR && f.dir.id != t.dir.id) {
                // The directory's ".." changes, which requires write permission on the directory.
                let inode = self
                    .cluster()
                    .namespace()
                    .stat(moved.id)
                    .map_err(look_again)?;
                self.cred().check(&inode, WRITE)?;
            }
        }
        let (old, new) = ((f.dir.id, &f.name[..]), (t.dir.id, &t.name[..]));
        self.origin_gate()
            .check_modes(source.kind, Some(old), new)?;
        if let Some(target) = t.entry.filter(|_| exchange) {
            self.origin_gate()
                .check_modes(target.kind, Some(new), old)?;
        }
        self.buffers().write_back(source.id);
        let by_origin = self.origin_gate().rename_by_origin(
            (f.dir.id, f.name, source),
            (t.dir.id, t.name, t.entry),
            mode,
        );
        if !by_origin.map_err(look_again)? {
            let epoch = f.epoch.min(t.epoch);
            self.cluster().namespace().rename(
                (f.dir.id, f.name),
                (t.dir.id, t.name),
                mode,
                epoch,
            )?;
        }
        forebay_trace::event_of!(POSIX_RENAMED, t.name, source.id.0, t.dir.id.0);
        if let Some(back) = t.entry.filter(|_| exchange) {
            forebay_trace::event_of!(POSIX_RENAMED, f.name, back.id.0, f.dir.id.0);
        }
        if let Some(target) = t.entry {
            self.drop_stand_in(target);
        }
        let (old, new) = ((f.dir.id, &f.name[..]), (t.dir.id, &t.name[..]));
        // If both names are of one file, rename removes neither.
        if t.entry.is_none_or(|target| target.id != source.id) {
            let store = self.store();
            let replaced = t.entry.filter(|_| !exchange).map(|t| (t.id, t.kind));
            store
                .watches()
                .notify_moved(source.id, source.kind, old, new, replaced);
            if let Some(back) = t.entry.filter(|_| exchange) {
                store
                    .watches()
                    .notify_moved(back.id, back.kind, new, old, None);
            }
        }
        Ok(())
    }

    /// chmod(2).
    ///
    /// # Errors
    /// EPERM, EOPNOTSUPP for a symbolic link.
    pub fn change_mode(&self, id: ObjectId, mode: u32) -> Result<()> {
        let i = self.inode_in_use(id)?;
        if i.is_link() {
            return Err(Errno::OPNOTSUPP);
        }
        if !self.cred().owns(i.uid) {
            return Err(Errno::PERM);
        }
        let mut mode = mode & 0o7777;
        let cred = self.cred();
        if !cred.in_group(i.gid) && !cred.can_with(CapabilitySet::FSETID, i.uid, i.gid) {
            mode &= !S_ISGID;
        }
        drop(cred);
        self.set_mode(id, mode)
    }

    fn set_mode(&self, id: ObjectId, mode: u32) -> Result<()> {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let cluster = self.cluster();
        self.set_attributes_in_use(id, &set)?;
        if cluster.store().peers().is_object_remote(id) {
            // Updates this node's live entry of a file that has its home on a peer.
            let known = |index| cluster.store().objects().live(index).set_privileged(mode);
            cluster.store().objects().with_live(id, known)?;
        }
        Ok(())
    }

    /// Clears the set-user-ID bit of an open file, and the set-group-ID bit if the group may
    /// execute the file or the caller isn't a member of the group. For a process with CAP_FSETID,
    /// does nothing. Must be called before the file's bytes change.
    ///
    /// # Errors
    /// Errors of changing the mode.
    #[inline]
    pub(crate) fn before_change(&self, live: u32) -> Result<()> {
        if self.store().objects().live(live).is_privileged() {
            self.drop_privileges(self.store().content().live_id(live))
        } else {
            Ok(())
        }
    }

    #[cold]
    fn drop_privileges(&self, id: ObjectId) -> Result<()> {
        let cred = self.cred();
        if cred.can(CapabilitySet::FSETID) {
            return Ok(());
        }
        let inode = self.cluster().namespace().stat(id)?;
        let group = inode.mode & libc::S_IXGRP != 0 || !cred.in_group(inode.gid);
        let bits = S_ISUID | if group { S_ISGID } else { 0 };
        if inode.mode & bits == 0 {
            return Ok(());
        }
        drop(cred);
        self.set_mode(id, inode.mode & 0o7777 & !bits)
    }

    /// chown(2). None leaves the user or the group as it is.
    ///
    /// # Errors
    /// EPERM; EINVAL for an id of this user namespace that the pool doesn't know.
    pub fn change_owner(&self, id: ObjectId, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let cred = self.cred();
        let (uid, gid) = match cred.map() {
            None => (uid, gid),
            Some(map) => {
                let known = |id: Option<u32>| id.ok_or(Errno::INVAL);
                (
                    uid.map(|own| known(map.user(own))).transpose()?,
                    gid.map(|own| known(map.group(own))).transpose()?,
                )
            }
        };
        let i = self.inode_in_use(id)?;
        // If neither user nor group changes, only the change time is set.
        if !cred.can_with(CapabilitySet::CHOWN, i.uid, i.gid) {
            let owns = cred.uid() == i.uid;
            let keeps_user = uid.is_none_or(|u| owns && u == i.uid);
            let own_group = gid.is_none_or(|g| owns && (g == i.gid || cred.in_group(g)));
            if !keeps_user || !own_group {
                return Err(Errno::PERM);
            }
        }
        let special = S_ISUID | if i.mode & 0o010 != 0 { S_ISGID } else { 0 };
        let mode = (i.is_file() && i.mode & special != 0).then_some(i.mode & 0o7777 & !special);
        if mode.is_some() && !cred.owns(i.uid) {
            return Err(Errno::PERM);
        }
        drop(cred);
        self.set_attributes_in_use(
            id,
            &SetAttr {
                mode,
                uid,
                gid,
                ctime: Some(now()),
                ..SetAttr::default()
            },
        )
    }

    /// utimensat(2). None leaves a time as it is. `now`: both times are the current time, which a
    /// process that may write to the file may set even if it doesn't own it.
    ///
    /// # Errors
    /// EPERM, EACCES.
    pub fn change_times(
        &self,
        id: ObjectId,
        atime: Option<i64>,
        mtime: Option<i64>,
        now: bool,
    ) -> Result<()> {
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        // Buffered writes, if published later, would change the times again.
        self.buffers().write_back(id);
        let i = self.inode_in_use(id)?;
        if !self.cred().owns(i.uid) {
            if !now {
                return Err(Errno::PERM);
            }
            self.cred().check(&i, WRITE)?;
        }
        self.set_attributes_in_use(
            id,
            &SetAttr {
                atime,
                mtime,
                ..SetAttr::default()
            },
        )
    }

    /// The current time in nanoseconds since 1970, for the faces.
    pub fn now(&self) -> i64 {
        now()
    }
}
