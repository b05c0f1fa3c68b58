//! Opening an object at a place: it is found or made, and becomes an open file description.
//!
//! A file is a live entry first (its use is recorded in the process's slot), then a description,
//! then it is checked against its controls; a refused description is released. If names have
//! changed since the place was resolved, the result is ESTALE and the caller resolves the path
//! again.

use crate::cred::{EXEC, READ, WRITE};
use crate::fs::Fs;
use crate::path::{Fail, Goal, Place};
use forebay_cluster::Away;
use forebay_store::controls::Opener;
use forebay_store::{Entry, Inode, NewOpen, ObjectId};
use libc::{IN_CREATE, S_IFDIR, S_IFLNK, S_IFREG};
use rustix::io::{Errno, Result};

/// The name that a description made by O_TMPFILE has.
pub const UNNAMED: &[u8] = b"#unnamed";

impl Fs {
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
        self.open_place_by(place, flags, mode, self.opener())
    }

    /// Opens what is at a place, which must exist, and keeps it open for programs of this node: no
    /// program has it open by that.
    ///
    /// # Errors
    /// As open(2).
    pub fn keep_place(&self, place: &Place, flags: i32) -> Result<u32> {
        self.open_place_by(place, flags, 0, Opener::Kept(self.store().names().node()))
    }

    fn open_place_by(&self, place: &Place, flags: i32, mode: u32, opener: Opener) -> Result<u32> {
        let (parent, name) = place.parent_and_name();
        let opened = forebay_trace::span!(
            POSIX_OPEN_ENTER,
            POSIX_OPEN_EXIT,
            name,
            [flags],
            self.open_place_retrying(place, flags, mode, opener)
        );
        if let Ok(open) = opened {
            forebay_trace::event_of!(POSIX_OPENED, name, self.id_of_open(open), parent.0, flags);
        }
        opened
    }

    fn open_place_retrying(
        &self,
        place: &Place,
        flags: i32,
        mode: u32,
        opener: Opener,
    ) -> Result<u32> {
        match self.open_place_once(place, flags, mode, opener) {
            // Those who died may have the table's places still, if there is no keeper. (What was
            // made before that failed isn't to be found by who makes it.)
            Err(Errno::NFILE)
                if flags & libc::O_EXCL == 0
                    && self
                        .store()
                        .recovery()
                        .reap()
                        .is_ok_and(|r| r.processes > 0) =>
            {
                self.open_place_once(place, flags, mode, opener)
            }
            result => result,
        }
    }

    fn open_place_once(&self, place: &Place, flags: i32, mode: u32, opener: Opener) -> Result<u32> {
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return self.open_unnamed(place, flags, mode, opener);
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
                self.check_read_only(p.dir.id, p.name)?;
                let new = self.new_object(p.dir, p.name, S_IFREG | mode & 0o7777, b"")?;
                let counts = self.store().declared().counts();
                let (section, made) = self.with_quota_for((p.dir.id, p.name, &new), || {
                    let section = self.store().section()?;
                    let made = self
                        .cluster()
                        .create_open(p.dir.id, p.name, &new, p.epoch)?;
                    Ok((section, made))
                })?;
                match made {
                    Ok((id, live, held)) => {
                        self.store()
                            .watches()
                            .tell_dir(p.dir.id, p.name, S_IFREG, IN_CREATE);
                        let opened = Some((live, Some(held)));
                        let new = NewOpen::new(id, S_IFREG, flags as u32)
                            .named(p.dir.id, p.name)
                            .by(opener);
                        let open = self
                            .store()
                            .objects()
                            .open_create_held(&new, opened)
                            .inspect_err(|_| _ = self.store().objects().live_release(live))?;
                        drop(section);
                        return self.opened(
                            open,
                            live,
                            flags & !libc::O_TRUNC,
                            (counts, 0),
                            opener,
                        );
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
        let opened = self.open_found(entry, flags, false, (parent, name), &mut away, opener);
        if let Some(unused) = away.opened {
            self.cluster().close_opened(unused);
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
            false => self.check_inode(&self.cluster().stat(id)?, flags),
        }
    }

    /// As [`Fs::check_open`], of an object whose inode is known.
    pub(crate) fn check_inode(&self, inode: &Inode, flags: i32) -> Result<()> {
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
        let mut away = Away::default();
        self.open_found(e, flags, fresh, (parent, name), &mut away, self.opener())
    }

    /// Opens an object and keeps it open for programs of this node: no program has it open by that.
    ///
    /// # Errors
    /// As for [`Fs::open_object`].
    pub fn keep_object(&self, e: Entry, flags: i32) -> Result<u32> {
        let opener = Opener::Kept(self.store().names().node());
        let by = (ObjectId::ROOT, &b""[..]);
        self.open_found(e, flags, false, by, &mut Away::default(), opener)
    }

    /// As [`Fs::open_object`], with what came along when it was found.
    fn open_found(
        &self,
        e: Entry,
        flags: i32,
        fresh: bool,
        (parent, name): (ObjectId, &[u8]),
        away: &mut Away,
        opener: Opener,
    ) -> Result<u32> {
        let cluster = self.cluster();
        let new = NewOpen::new(e.id, e.kind, flags as u32).by(opener);
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
                    self.cred().check(&cluster.stat(e.id)?, READ)?;
                }
                // A directory being read keeps the last name in the description.
                cluster.objects().open_create(&new.named(parent, b""), None)
            }
            S_IFREG => {
                let brings = !fresh && !opener.is_kept();
                let by_ranges = brings && self.bring_bytes((parent, name), e.id, flags)?;
                let check = !fresh && !path_only;
                let permitted = |away: &Away| match away.inode {
                    Some(inode) => self.check_inode(&inode, flags),
                    None => self.check_open(e.id, flags),
                };
                // The attributes may come with the answer of its home that it is open.
                let late = away.inode.is_none() && cluster.names().is_object_away(e.id);
                if check && !late {
                    permitted(away)?;
                }
                let counts = match away.inode {
                    Some(_) => away.counts,
                    None => cluster.declared().counts(),
                };
                let section = cluster.section()?;
                let (live, held) = cluster.live_acquire_opened(e.id, away)?;
                let mut ready = Ok(());
                if late && !path_only && away.inode.is_none() {
                    // It was open here already: what was said of it since?
                    ready = cluster.stat(e.id).map(|inode| away.inode = Some(inode));
                }
                if let Some(inode) = &away.inode {
                    cluster.note_controls(live, inode);
                }
                if ready.is_ok() && check && late {
                    ready = permitted(away);
                }
                if ready.is_ok() && brings && !path_only && !by_ranges {
                    ready = match self.was_released(e.id) {
                        Ok(false) => Ok(()),
                        Ok(true) => Err(Errno::STALE),
                        Err(error) => Err(error),
                    };
                }
                let cut = check && flags & libc::O_TRUNC != 0;
                // What is known here may be an older answer by now, of one who opens it as well.
                let told = match cluster.names().is_object_away(e.id) {
                    true => away.inode.map_or(0, |inode| inode.controls),
                    false => 0,
                };
                let controlled = cluster.declared().controls(live) != 0 || told != 0;
                if ready.is_ok() && cut && !controlled {
                    ready = cluster.truncate(live, 0);
                }
                if let Err(error) = ready {
                    drop(held);
                    let _ = cluster.objects().live_release(live);
                    return Err(error);
                }
                let opened = Some((live, Some(held)));
                let open = cluster
                    .objects()
                    .open_create_held(&new.named(parent, name), opened)
                    .inspect_err(|_| _ = cluster.objects().live_release(live))?;
                drop(section);
                if path_only {
                    return Ok(open);
                }
                let flags = match cut && controlled {
                    true => flags,
                    false => flags & !libc::O_TRUNC,
                };
                let open = self.opened(open, live, flags, (counts, told), opener)?;
                if by_ranges && let Err(error) = self.begin_ranges(open) {
                    let _ = cluster.objects().open_release(open);
                    return Err(error);
                }
                Ok(open)
            }
            _ if path_only => cluster
                .objects()
                .open_create(&new.named(parent, name), None),
            S_IFLNK => Err(Errno::LOOP),
            // FIFOs are opened in another way (nodes.rs); a socket or device can't be.
            _ => Err(Errno::NXIO),
        }
    }

    fn open_unnamed(&self, place: &Place, flags: i32, mode: u32, opener: Opener) -> Result<u32> {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::INVAL);
        }
        let e = place.existing()?;
        if e.kind != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        let dir = self.dir_info(e.id)?;
        self.cred().check_dir(&dir, WRITE | EXEC)?;
        self.check_read_only(e.id, UNNAMED)?;
        let cluster = self.cluster();
        let new = self.new_object(&dir, UNNAMED, S_IFREG | mode & 0o7777, b"");
        let new = new.map_err(|e| match e {
            // Under most names, it would be at the origin.
            Errno::XDEV => Errno::OPNOTSUPP,
            e => e,
        })?;
        let counts = cluster.declared().counts();
        let (section, id) = self.with_quota_for((e.id, b"", &new), || {
            let section = cluster.section()?;
            Ok((section, cluster.create_unnamed(e.id, &new)?))
        })?;
        let (live, held) = cluster.live_acquire_held(id)?;
        cluster.objects().live_set_unlinked(id)?;
        let opened = Some((live, Some(held)));
        let new = NewOpen::new(id, S_IFREG, flags as u32)
            .named(e.id, UNNAMED)
            .by(opener);
        let open = cluster
            .objects()
            .open_create_held(&new, opened)
            .inspect_err(|_| _ = cluster.objects().live_release(live))?;
        drop(section);
        self.opened(open, live, flags & !libc::O_TRUNC, (counts, 0), opener)
    }
}
