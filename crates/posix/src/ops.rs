//! Operations on resolved places and on objects, with POSIX's permissions and errors.

use crate::cache::DirInfo;
use crate::controls;
use crate::cred::{EXEC, READ, WRITE};
use crate::fs::{Fs, Stat};
use crate::path::{Fail, Follow, Goal, MAX_ATTEMPTS, Name, Place, pause};
use crate::{ObjectId, RenameMode};
use forebay_client::controls::Declared;
use forebay_store::{Away, Distribution, Entry, Inode, NewObject, PATH_MAX, SetAttr, now};
use libc::{
    IN_ATTRIB, IN_CREATE, IN_DELETE, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_ISVTX,
};
use rustix::io::{Errno, Result};

/// Longest extended attribute.
const XATTR_SIZE_MAX: usize = 65_536;

/// The name that a description made by O_TMPFILE has.
pub const UNNAMED: &[u8] = b"#unnamed";

/// What is needed to change a directory: the place of the entry.
struct EntryPlace<'a> {
    dir: &'a DirInfo,
    name: &'a Name,
    entry: Option<Entry>,
    slash: bool,
    epoch: u64,
}

/// What was found by its name has gone since: the name leads to something else now, or to nothing.
fn look_again(e: Errno) -> Errno {
    match e {
        Errno::NOENT => Errno::STALE,
        e => e,
    }
}

impl Fs {
    /// The entry to change; `dots` is the error for `.`, `..` and `/`.
    fn entry_place<'a>(&self, place: &'a Place, dots: Errno) -> Result<EntryPlace<'a>> {
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
        let inode = self.store().stat(id)?;
        Ok(Stat::new(id, &self.store().with_parts(id, inode)?))
    }

    /// Attributes of what is at a place.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn stat_place(&self, place: &Place) -> Result<Stat> {
        let id = place.existing()?.id;
        if let Some(inode) = place.inode() {
            return Ok(Stat::new(id, &self.store().with_parts(id, inode)?));
        }
        match self.stat_id(id) {
            // It went between looking it up and looking at it: look again.
            Err(Errno::NOENT) if matches!(place, Place::Entry { .. }) => Err(Errno::STALE),
            other => other,
        }
    }

    /// Whether the process may read, write, execute (a sum; 0: exists) what is there.
    ///
    /// # Errors
    /// EACCES, ENOENT.
    pub fn access(&self, place: &Place, want: u32) -> Result<()> {
        let e = place.existing()?;
        if want == 0 {
            return Ok(());
        }
        self.cred().check(&self.store().stat(e.id)?, want)
    }

    /// What is made as `name` in `dir`.
    fn new_object<'a>(
        &self,
        dir: &DirInfo,
        name: &[u8],
        mode: u32,
        target: &'a [u8],
    ) -> NewObject<'a> {
        let setgid = dir.mode & S_ISGID != 0;
        let inherit = if setgid && mode & S_IFMT == S_IFDIR {
            S_ISGID
        } else {
            0
        };
        NewObject {
            mode: mode | inherit,
            uid: self.cred().uid(),
            gid: if setgid { dir.gid } else { self.cred().gid() },
            rdev: 0,
            target,
            distribution: None,
            controls: self.controls_of_new(dir, name, mode),
        }
    }

    /// Creates at a place; EEXIST if something is there.
    fn create_new(&self, p: &EntryPlace<'_>, new: &NewObject<'_>) -> Result<ObjectId> {
        if p.entry.is_some() {
            return Err(Errno::EXIST);
        }
        self.cred().check_dir(p.dir, WRITE | EXEC)?;
        let id = self
            .store()
            .create_object(p.dir.id, p.name, new, p.epoch)?
            .map_err(|_| Errno::EXIST)?;
        self.store()
            .tell_dir(p.dir.id, p.name, new.mode & S_IFMT, IN_CREATE);
        Ok(id)
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOSPC.
    pub fn make_dir(&self, place: &Place, mode: u32) -> Result<()> {
        let p = self.entry_place(place, Errno::EXIST)?;
        let new = self.new_object(p.dir, p.name, S_IFDIR | mode & 0o1777, b"");
        self.create_new(&p, &new).map(|_| ())
    }

    /// As [`Fs::make_dir`], of a directory whose content is distributed so.
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
        let mut new = self.new_object(p.dir, p.name, S_IFDIR | mode & 0o1777, b"");
        new.distribution = Some(distribution);
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
            k @ (libc::S_IFCHR | libc::S_IFBLK) if self.cred().is_root() => k,
            libc::S_IFCHR | libc::S_IFBLK | S_IFDIR => return Err(Errno::PERM),
            _ => return Err(Errno::INVAL),
        };
        if p.slash {
            return Err(Errno::NOENT);
        }
        let mut new = self.new_object(p.dir, p.name, kind | mode & 0o7777, b"");
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
        let new = self.new_object(p.dir, p.name, S_IFLNK | 0o777, target);
        self.create_new(&p, &new).map(|_| ())
    }

    /// readlink(2), uncut.
    ///
    /// # Errors
    /// EINVAL if it isn't a symbolic link.
    pub fn read_symlink(&self, place: &Place) -> Result<Vec<u8>> {
        let e = place.existing()?;
        if e.kind != S_IFLNK {
            return Err(Errno::INVAL);
        }
        Ok(self.store().inode_tail(e.id)?.1)
    }

    /// link(2): one more name for object `id`.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, EACCES, ENOSPC.
    pub fn make_link(&self, id: ObjectId, place: &Place) -> Result<()> {
        let p = self.entry_place(place, Errno::EXIST)?;
        if p.entry.is_some() {
            return Err(Errno::EXIST);
        }
        if p.slash {
            return Err(Errno::NOENT);
        }
        let store = self.store();
        let inode = store.stat(id)?;
        if inode.is_dir() {
            return Err(Errno::PERM);
        }
        self.cred().check_dir(p.dir, WRITE | EXEC)?;
        store.link(id, p.dir.id, p.name, p.epoch)?;
        store.tell_self(id, inode.kind(), IN_ATTRIB);
        store.tell_dir(p.dir.id, p.name, inode.kind(), IN_CREATE);
        Ok(())
    }

    /// In a sticky directory only the owner of the entry or of the directory may take it.
    fn check_sticky(&self, dir: &DirInfo, id: ObjectId) -> Result<()> {
        if dir.mode & S_ISVTX == 0 || self.cred().owns(dir.uid) {
            return Ok(());
        }
        if self
            .cred()
            .owns(self.store().stat(id).map_err(look_again)?.uid)
        {
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
        let store = self.store();
        store.unlink(p.dir.id, p.name, Some(e), p.epoch)?;
        self.drop_stand_in(e);
        store.tell_self(e.id, e.kind, IN_ATTRIB);
        store.tell_if_gone(e.id, e.kind);
        store.tell_dir(p.dir.id, p.name, e.kind, IN_DELETE);
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
        let store = self.store();
        store.rmdir(p.dir.id, p.name, p.epoch)?;
        store.tell_if_gone(e.id, e.kind);
        store.tell_dir(p.dir.id, p.name, e.kind, IN_DELETE);
        Ok(())
    }

    /// rename(2) and renameat2(2) inside the pool.
    ///
    /// # Errors
    /// As rename(2). [`Fail::Outside`] if either path leads out.
    pub fn rename_at(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        mode: RenameMode,
    ) -> std::result::Result<(), Fail> {
        for attempt in 0..MAX_ATTEMPTS {
            let source = self.walk(from.0, from.1, Follow::No)?;
            let target = self.walk(to.0, to.1, Follow::No)?;
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
    /// As rename(2); ESTALE: resolve both again.
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
            return Err(Errno::NOTDIR);
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
                // Its ".." changes: that takes the right to write it.
                let inode = self.store().stat(moved.id).map_err(look_again)?;
                self.cred().check(&inode, WRITE)?;
            }
        }
        let epoch = f.epoch.min(t.epoch);
        self.store()
            .rename((f.dir.id, f.name), (t.dir.id, t.name), mode, epoch)?;
        if let Some(target) = t.entry {
            self.drop_stand_in(target);
        }
        let (old, new) = ((f.dir.id, &f.name[..]), (t.dir.id, &t.name[..]));
        // Of two names of one file, none goes.
        if t.entry.is_none_or(|target| target.id != source.id) {
            let store = self.store();
            let replaced = t.entry.filter(|_| !exchange).map(|t| (t.id, t.kind));
            store.tell_moved(source.id, source.kind, old, new, replaced);
            if let Some(back) = t.entry.filter(|_| exchange) {
                store.tell_moved(back.id, back.kind, new, old, None);
            }
        }
        Ok(())
    }

    /// chmod(2).
    ///
    /// # Errors
    /// EPERM, EOPNOTSUPP for a symbolic link.
    pub fn change_mode(&self, id: ObjectId, mode: u32) -> Result<()> {
        let i = self.store().stat(id)?;
        if i.is_link() {
            return Err(Errno::OPNOTSUPP);
        }
        if !self.cred().owns(i.uid) {
            return Err(Errno::PERM);
        }
        let mut mode = mode & 0o7777;
        if !self.cred().is_root() && !self.cred().in_group(i.gid) {
            mode &= !S_ISGID;
        }
        self.store().set_attr(
            id,
            &SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            },
        )
    }

    /// chown(2); None leaves one as it is.
    ///
    /// # Errors
    /// EPERM.
    pub fn change_owner(&self, id: ObjectId, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let i = self.store().stat(id)?;
        if !self.cred().is_root() {
            let keeps_user = uid.is_none_or(|u| u == i.uid);
            let own_group = gid.is_none_or(|g| g == i.gid || self.cred().in_group(g));
            if !self.cred().owns(i.uid) || !keeps_user || !own_group {
                return Err(Errno::PERM);
            }
        }
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let special = S_ISUID | if i.mode & 0o010 != 0 { S_ISGID } else { 0 };
        let mode = (i.is_file() && i.mode & special != 0).then_some(i.mode & 0o7777 & !special);
        self.store().set_attr(
            id,
            &SetAttr {
                mode,
                uid,
                gid,
                ..SetAttr::default()
            },
        )
    }

    /// utimensat(2): None leaves a time as it is. `now`: both are "now", which whoever may
    /// write the file may set.
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
        let i = self.store().stat(id)?;
        if !self.cred().owns(i.uid) {
            if !now {
                return Err(Errno::PERM);
            }
            self.cred().check(&i, WRITE)?;
        }
        self.store().set_attr(
            id,
            &SetAttr {
                atime,
                mtime,
                ..SetAttr::default()
            },
        )
    }

    // ---- extended attributes ----

    fn attribute_object(&self, id: ObjectId, name: &[u8], want: u32) -> Result<Inode> {
        let i = self.store().stat(id)?;
        let known = |prefix: &[u8]| name.len() > prefix.len() && name.starts_with(prefix);
        if known(b"user.") {
            if !i.is_file() && !i.is_dir() {
                return Err(if want == WRITE {
                    Errno::PERM
                } else {
                    Errno::NODATA
                });
            }
            self.cred().check(&i, want)?;
        } else if known(b"trusted.") || known(b"security.") {
            if !self.cred().is_root() && want == WRITE {
                return Err(Errno::PERM);
            }
        } else {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(i)
    }

    /// getxattr(2), uncut.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP for a name space that isn't kept, EACCES.
    pub fn get_attribute(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.attribute_object(id, name, READ)?;
        if name == controls::ATTRIBUTE {
            return controls::as_attribute(&inode);
        }
        self.store().attribute(id, name)
    }

    /// setxattr(2) with its flags.
    ///
    /// # Errors
    /// EEXIST, ENODATA, EOPNOTSUPP, E2BIG, ERANGE, EACCES, EPERM, ENOSPC.
    ///
    /// `known`: a directory and the name in it by which the caller has found the object, if any.
    pub fn set_attribute(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        flags: i32,
        known: Option<(ObjectId, &[u8])>,
    ) -> Result<()> {
        if name.is_empty() || name.len() > forebay_store::NAME_MAX {
            return Err(Errno::RANGE);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        let create = match flags {
            0 => None,
            libc::XATTR_CREATE => Some(true),
            libc::XATTR_REPLACE => Some(false),
            _ => return Err(Errno::INVAL),
        };
        let inode = self.attribute_object(id, name, WRITE)?;
        if name == controls::ATTRIBUTE {
            return self.set_as_attribute(id, &inode, value, create);
        }
        self.store().set_attribute(id, name, value, create, known)
    }

    /// removexattr(2).
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP, EACCES, EPERM.
    pub fn remove_attribute(&self, id: ObjectId, name: &[u8]) -> Result<()> {
        let inode = self.attribute_object(id, name, WRITE)?;
        if name == controls::ATTRIBUTE {
            controls::as_attribute(&inode)?;
            return self.set_controls(id, Declared::NOTHING);
        }
        if !inode.has_attributes {
            return Err(Errno::NODATA);
        }
        self.store().remove_attribute(id, name)
    }

    // ---- opening ----

    /// open(2): an open file description, to be released by the caller.
    ///
    /// # Errors
    /// As open(2). [`Fail::Outside`] if the path leads out of the pool.
    pub fn open_at(
        &self,
        base: ObjectId,
        path: &[u8],
        flags: i32,
        mode: u32,
    ) -> std::result::Result<u32, Fail> {
        self.at(base, path, Goal::of_open(flags), |place| {
            self.open_place(place, flags, mode)
        })
    }

    /// open(2) at a place.
    ///
    /// # Errors
    /// As open(2).
    pub fn open_place(&self, place: &Place, flags: i32, mode: u32) -> Result<u32> {
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return self.open_unnamed(place, flags, mode);
        }
        let creating = flags & libc::O_CREAT != 0;
        let entry = match place {
            Place::Entry {
                entry: None, slash, ..
            } if creating => {
                if *slash {
                    return Err(Errno::ISDIR);
                }
                if flags & libc::O_DIRECTORY != 0 {
                    return Err(Errno::INVAL);
                }
                let p = self.entry_place(place, Errno::ISDIR)?;
                self.cred().check_dir(p.dir, WRITE | EXEC)?;
                let new = self.new_object(p.dir, p.name, S_IFREG | mode & 0o7777, b"");
                let section = self.store().section()?;
                match self.store().create_open(p.dir.id, p.name, &new, p.epoch)? {
                    Ok((id, live, held)) => {
                        self.store().tell_dir(p.dir.id, p.name, S_IFREG, IN_CREATE);
                        let opened = Some((live, Some(held)));
                        let (kind, bits) = (S_IFREG, flags as u32);
                        let open = self
                            .store()
                            .open_create_held(id, kind, opened, bits, p.dir.id, p.name)
                            .inspect_err(|_| _ = self.store().live_release(live))?;
                        drop(section);
                        return self.opened(open, live, flags & !libc::O_TRUNC);
                    }
                    Err(_) if flags & libc::O_EXCL != 0 => return Err(Errno::EXIST),
                    // Somebody was faster: open theirs.
                    Err(_) => return Err(Errno::STALE),
                }
            }
            _ => {
                let e = match place.existing() {
                    Ok(_) if creating && flags & libc::O_EXCL != 0 => return Err(Errno::EXIST),
                    other => other?,
                };
                if creating && e.kind == S_IFDIR {
                    return Err(Errno::ISDIR);
                }
                e
            }
        };
        let (parent, name) = place.parent_and_name();
        let mut away = place.take_away();
        let opened = self.open_found(entry, flags, false, (parent, name), &mut away);
        if let Some(unused) = away.opened {
            self.store().close_opened(unused);
        }
        match opened {
            // Removed between looking it up and opening it.
            Err(Errno::NOENT) => Err(Errno::STALE),
            other => other,
        }
    }

    /// EACCES unless the object, no directory, may be opened with these flags.
    pub(crate) fn check_open(&self, id: ObjectId, flags: i32) -> Result<()> {
        match self.cred().is_root() {
            true => Ok(()),
            false => self.check_inode(&self.store().stat(id)?, flags),
        }
    }

    fn check_inode(&self, inode: &Inode, flags: i32) -> Result<()> {
        let mut want = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if flags & libc::O_TRUNC != 0 {
            want |= WRITE;
        }
        self.cred().check(inode, want)
    }

    /// Opens an object that was found by name.
    ///
    /// # Errors
    /// EACCES, EISDIR, ENOTDIR, ELOOP, ENXIO, ENFILE; ENOENT if it has just gone.
    pub fn open_object(
        &self,
        e: Entry,
        flags: i32,
        fresh: bool,
        parent: ObjectId,
        name: &[u8],
    ) -> Result<u32> {
        self.open_found(e, flags, fresh, (parent, name), &mut Away::default())
    }

    /// As [`Fs::open_object`], with what came along when it was found.
    fn open_found(
        &self,
        e: Entry,
        flags: i32,
        fresh: bool,
        (parent, name): (ObjectId, &[u8]),
        away: &mut Away,
    ) -> Result<u32> {
        let store = self.store();
        let path_only = flags & libc::O_PATH != 0;
        let access = flags & libc::O_ACCMODE;
        if flags & libc::O_DIRECTORY != 0 && e.kind != S_IFDIR {
            return Err(if e.kind == S_IFLNK && !path_only {
                Errno::LOOP
            } else {
                Errno::NOTDIR
            });
        }
        match e.kind {
            S_IFDIR => {
                if !path_only {
                    if access != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
                        return Err(Errno::ISDIR);
                    }
                    self.cred().check(&store.stat(e.id)?, READ)?;
                }
                // A directory being read keeps the last name in the description.
                store.open_create(e.id, e.kind, None, flags as u32, parent, b"")
            }
            S_IFREG => {
                let check = !fresh && !path_only;
                let permitted = |away: &Away| match away.inode {
                    Some(inode) => self.check_inode(&inode, flags),
                    None => self.check_open(e.id, flags),
                };
                // The attributes may come with the answer of its home that it is open.
                let late = away.inode.is_none() && store.is_object_away(e.id);
                if check && !late {
                    permitted(away)?;
                }
                let section = store.section()?;
                let (live, held) = store.live_acquire_opened(e.id, away)?;
                if let Some(inode) = &away.inode {
                    store.note_controls(live, inode.controls);
                }
                let mut ready = Ok(());
                if check && late {
                    ready = permitted(away);
                }
                let cut = check && flags & libc::O_TRUNC != 0;
                let controlled = !path_only && store.controls(live) != 0;
                if ready.is_ok() && cut && !controlled {
                    ready = store.truncate(live, 0);
                }
                if let Err(error) = ready {
                    drop(held);
                    let _ = store.live_release(live);
                    return Err(error);
                }
                let opened = Some((live, Some(held)));
                let open = store
                    .open_create_held(e.id, e.kind, opened, flags as u32, parent, name)
                    .inspect_err(|_| _ = store.live_release(live))?;
                drop(section);
                match controlled {
                    true => {
                        self.opened(open, live, if cut { flags } else { flags & !libc::O_TRUNC })
                    }
                    false => Ok(open),
                }
            }
            _ if path_only => store.open_create(e.id, e.kind, None, flags as u32, parent, name),
            S_IFLNK => Err(Errno::LOOP),
            // FIFOs are opened in another way (nodes.rs); a socket or device can't be.
            _ => Err(Errno::NXIO),
        }
    }

    fn open_unnamed(&self, place: &Place, flags: i32, mode: u32) -> Result<u32> {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::INVAL);
        }
        let e = place.existing()?;
        if e.kind != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        let dir = self.dir_info(e.id)?;
        self.cred().check_dir(&dir, WRITE | EXEC)?;
        let store = self.store();
        let new = self.new_object(&dir, UNNAMED, S_IFREG | mode & 0o7777, b"");
        let _section = store.section()?;
        let id = store.create_unnamed(e.id, &new)?;
        let (live, held) = store.live_acquire_held(id)?;
        store.live_set_unlinked(id)?;
        store
            .open_create_held(
                id,
                S_IFREG,
                Some((live, Some(held))),
                flags as u32,
                e.id,
                UNNAMED,
            )
            .inspect_err(|_| _ = store.live_release(live))
    }

    /// Now, for the faces.
    pub fn now(&self) -> i64 {
        now()
    }
}
