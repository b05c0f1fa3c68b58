//! Opening an object at a place: finds or makes the object, and makes an open file description of
//! it.
//!
//! Opening a file first acquires its live entry (the use is recorded in the process's slot), then
//! makes a description, then checks the file's controls. If the controls refuse the opening, the
//! description is released. If names have changed since the place was resolved, the result is
//! ESTALE, and the caller resolves the path again.

use crate::aside::ASIDE;
use crate::cred::{EXEC, READ, WRITE};
use crate::fs::Fs;
use crate::path::{Fail, Goal, Place};
use forebay_cluster::RemoteOpen;
use forebay_store::controls::Opener;
use forebay_store::{Entry, Inode, NewOpen, ObjectId};
use libc::{IN_CREATE, S_IFDIR, S_IFLNK, S_IFREG};
use rustix::io::{Errno, Result};
use rustix::thread::CapabilitySet;
use std::time::Duration;

/// Pause of an opener between two checks whether a lease still conflicts.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The name in descriptions of files that were made with O_TMPFILE.
pub const UNNAMED: &[u8] = b"#unnamed";

/// How a regular file is opened: what the phases of [`Fs::open_regular`] have in common.
struct FileOpening<'a> {
    id: ObjectId,
    /// Flags of open(2).
    flags: i32,
    /// Whether another process, which has the file open, sent the description.
    fresh: bool,
    /// The directory and the name by which the file was found.
    by: (ObjectId, &'a [u8]),
    opener: Opener,
    /// Whether the file is opened with O_PATH.
    path_only: bool,
    /// Whether permissions are checked.
    checks: bool,
    /// Whether bytes that are at the pool's origin only are fetched.
    brings: bool,
    /// Whether the file's home, another node, is asked only when the live entry is acquired.
    late: bool,
}

/// The work that [`Fs::prepare_live`] leaves to later phases.
struct PreparedLive {
    /// Whether the file must be truncated, once it has a description.
    truncates: bool,
    /// The controls in the reply of the file's home; 0: none, or the home is this node.
    controls_at_home: u64,
}

impl Fs {
    /// open(2). Returns an open file description, which the caller must release.
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
        self.resolver()
            .at(base, path, Goal::of_open(flags), |place| {
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

    /// Opens the object at a place, which must exist, and keeps it open for programs of this node.
    /// Such an open doesn't count as a use by a program.
    ///
    /// # Errors
    /// As open(2).
    pub fn keep_place(&self, place: &Place, flags: i32) -> Result<u32> {
        self.open_place_by(place, flags, 0, Opener::Kept(self.store().peers().node()))
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
            // Without a keeper, dead processes may still occupy places in the table of
            // descriptions. With O_EXCL there is no second try: a second try would find the file
            // that the first one made.
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
                let gate = self.origin_gate();
                gate.check_read_only(p.dir.id, p.name)?;
                let new = self.new_object(p.dir, p.name, S_IFREG | mode & 0o7777, b"")?;
                let counts = self.store().declared().counts();
                let (section, made) = gate.with_quota_for((p.dir.id, p.name, &new), || {
                    let section = self.store().section()?;
                    let made = self
                        .cluster()
                        .namespace()
                        .create_open(p.dir.id, p.name, &new, p.epoch)?;
                    Ok((section, made))
                })?;
                match made {
                    Ok((id, live, held)) => {
                        self.store()
                            .watches()
                            .notify_dir(p.dir.id, p.name, S_IFREG, IN_CREATE);
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
                    // Another process made the file first: the path has to be resolved again.
                    Err(_) => return Err(Errno::STALE),
                }
            }
            Place::Entry { slash: true, .. } if creating => return Err(Errno::ISDIR),
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
        let mut remote = place.take_remote();
        let opened = self.open_found(entry, flags, false, (parent, name), &mut remote, opener);
        if let Some(unused) = remote.opened {
            self.cluster().opens().close_opened(unused);
        }
        match opened {
            // The object was removed after it was looked up.
            Err(Errno::NOENT) if matches!(place, Place::Entry { .. }) => Err(Errno::STALE),
            other => other,
        }
    }

    /// Checks that the object, which isn't a directory, may be opened with these flags.
    pub(crate) fn check_open(&self, id: ObjectId, flags: i32) -> Result<()> {
        if self.cred().can(CapabilitySet::DAC_OVERRIDE) {
            Ok(())
        } else {
            self.check_inode(&self.cluster().namespace().stat(id)?, flags)
        }
    }

    /// As [`Fs::check_open`], for an object whose inode is known.
    pub(crate) fn check_inode(&self, inode: &Inode, flags: i32) -> Result<()> {
        let mut want = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if flags & libc::O_TRUNC != 0 {
            want |= WRITE;
        }
        self.cred().check(inode, want)?;
        if flags & libc::O_NOATIME != 0 && !self.cred().owns(inode.uid) {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// Opens an object that the caller found by its name. `fresh`: another process, which has it
    /// open, sent the description: permissions and leases aren't checked again.
    ///
    /// # Errors
    /// EACCES, EISDIR, ENOTDIR, ELOOP, ENXIO, ENFILE; ENOENT if the object was just removed. While
    /// a conflicting lease exists: EAGAIN with O_NONBLOCK, ETXTBSY in programs, [`ASIDE`] in
    /// mounts.
    pub fn open_object(
        &self,
        e: Entry,
        flags: i32,
        fresh: bool,
        parent: ObjectId,
        name: &[u8],
    ) -> Result<u32> {
        let mut remote = RemoteOpen::default();
        self.open_found(e, flags, fresh, (parent, name), &mut remote, self.opener())
    }

    /// Opens an object and keeps it open for programs of this node. Such an open doesn't count as a
    /// use by a program.
    ///
    /// # Errors
    /// As for [`Fs::open_object`].
    pub fn keep_object(&self, e: Entry, flags: i32) -> Result<u32> {
        let opener = Opener::Kept(self.store().peers().node());
        let by = (ObjectId::ROOT, &b""[..]);
        self.open_found(e, flags, false, by, &mut RemoteOpen::default(), opener)
    }

    /// As [`Fs::open_object`], with the state that a peer returned with the object's entry. Waits
    /// until the owner of a conflicting lease releases it; `lease-break-time` bounds the wait.
    ///
    /// # Errors
    /// If the call doesn't wait: EAGAIN with O_NONBLOCK; ETXTBSY in programs, which wait themselves
    /// so that signals can interrupt them (`preload/src/served/leases.rs`); [`ASIDE`] in mounts,
    /// which wait on a thread that can be interrupted.
    fn open_found(
        &self,
        e: Entry,
        flags: i32,
        fresh: bool,
        by: (ObjectId, &[u8]),
        remote: &mut RemoteOpen,
        opener: Opener,
    ) -> Result<u32> {
        loop {
            match self.open_found_once(e, flags, fresh, by, remote, opener) {
                Err(Errno::TXTBSY) if self.cred().is_judged() => return Err(ASIDE),
                Err(Errno::TXTBSY) if self.buffer_caches().is_none() => {
                    std::thread::sleep(LEASE_POLL_INTERVAL);
                }
                opened => return opened,
            }
        }
    }

    fn open_found_once(
        &self,
        e: Entry,
        flags: i32,
        fresh: bool,
        by: (ObjectId, &[u8]),
        remote: &mut RemoteOpen,
        opener: Opener,
    ) -> Result<u32> {
        // Only the description that made the file has the flag O_CREAT.
        let kept = (flags & !libc::O_CREAT) as u32;
        let new = NewOpen::new(e.id, e.kind, kept).by(opener);
        let path_only = flags & libc::O_PATH != 0;
        if flags & libc::O_DIRECTORY != 0 && e.kind != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        match e.kind {
            S_IFDIR => self.open_directory(&new.named(by.0, b""), flags),
            S_IFREG => {
                let opening = FileOpening {
                    id: e.id,
                    flags,
                    fresh,
                    by,
                    opener,
                    path_only,
                    checks: !fresh && !path_only,
                    brings: !fresh && !opener.is_kept(),
                    // If the home must still be asked to open the object, it may return the
                    // attributes with its reply.
                    late: remote.inode.is_none()
                        && self.cluster().store().peers().is_object_remote(e.id),
                };
                self.open_regular(&new.named(by.0, by.1), &opening, remote)
            }
            _ if path_only => self
                .store()
                .objects()
                .open_create(&new.named(by.0, by.1), None),
            S_IFLNK => Err(Errno::LOOP),
            // `nodes.rs` opens FIFOs; sockets and devices can't be opened.
            _ => Err(Errno::NXIO),
        }
    }

    /// Opens a directory. Its description `new` has, in place of a file's name, the name up to
    /// which the directory has been read: none yet.
    #[inline(always)]
    fn open_directory(&self, new: &NewOpen<'_>, flags: i32) -> Result<u32> {
        let objects = self.store().objects();
        if flags & libc::O_PATH != 0 {
            return objects.open_create(new, None);
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return Err(Errno::ISDIR);
        }
        let inode = self.inode_in_use(new.id)?;
        self.check_inode(&inode, flags)?;
        if flags & libc::O_DIRECT != 0 {
            return Err(Errno::INVAL);
        }
        let open = objects.open_create(new, None)?;
        if inode.nlink == 0 {
            // The attributes of a removed directory, for the new description, too.
            let _ = self.process().change_removed_dir(new.id, |_| Ok(()));
        }
        Ok(open)
    }

    /// Opens a regular file: fetches its bytes, checks permissions, acquires its live entry
    /// ([`Fs::prepare_live`]), makes the description, applies controls
    /// ([`Fs::finish_opening`]).
    #[inline(always)]
    fn open_regular(
        &self,
        new: &NewOpen<'_>,
        opening: &FileOpening<'_>,
        remote: &mut RemoteOpen,
    ) -> Result<u32> {
        let cluster = self.cluster();
        let id = opening.id;
        let gate = self.origin_gate();
        let allows = |inode: &Inode| self.check_inode(inode, opening.flags);
        let by_ranges =
            opening.brings && gate.bring_bytes(opening.by, id, opening.flags, allows)?;
        if opening.checks && !opening.late {
            self.check_remote(opening, remote)?;
        }
        let counts = match remote.inode {
            Some(_) => remote.counts,
            None => cluster.store().declared().counts(),
        };
        let section = cluster.store().section()?;
        let (live, held) = cluster.opens().live_acquire_opened(id, remote)?;
        let prepared = match self.prepare_live(opening, by_ranges, live, remote) {
            Ok(prepared) => prepared,
            Err(error) => {
                drop(held);
                let _ = cluster.store().objects().live_release(live);
                return Err(error);
            }
        };
        let opened = Some((live, Some(held)));
        let open = cluster
            .store()
            .objects()
            .open_create_held(new, opened)
            .inspect_err(|_| _ = cluster.store().objects().live_release(live))?;
        drop(section);
        debug_assert_eq!(self.id_of_open(open), id.0, "a description is of its file");
        let counted = (counts, prepared.controls_at_home);
        let open = self.finish_opening(opening, open, (live, prepared.truncates), counted)?;
        if by_ranges
            && !opening.path_only
            && let Err(error) = gate.begin_ranges(open)
        {
            let _ = cluster.store().objects().open_release(open);
            return Err(error);
        }
        Ok(open)
    }

    /// Checks permissions by the attributes that a peer returned, or else by the object's record.
    #[inline(always)]
    fn check_remote(&self, opening: &FileOpening<'_>, remote: &RemoteOpen) -> Result<()> {
        match remote.inode {
            Some(inode) => self.check_inode(&inode, opening.flags),
            None => self.check_open(opening.id, opening.flags),
        }
    }

    /// Checks and prepares a file whose live entry was acquired, before the file has a description:
    /// permissions, if its home had to be asked; leases; the truncation, if no controls need the
    /// description for that.
    #[inline(always)]
    fn prepare_live(
        &self,
        opening: &FileOpening<'_>,
        by_ranges: bool,
        live: u32,
        remote: &mut RemoteOpen,
    ) -> Result<PreparedLive> {
        let cluster = self.cluster();
        let (id, late) = (opening.id, opening.late);
        if late && !opening.path_only && remote.inode.is_none() {
            // The object was already open here, so its home sent no attributes. The object's
            // controls may have been declared since.
            remote.inode = Some(cluster.namespace().stat(id)?);
        }
        if let Some(inode) = &remote.inode {
            cluster.declarations().note_controls(live, inode);
            if cluster.store().peers().is_object_remote(id) {
                let entry = cluster.store().objects().live(live);
                entry.set_privileged(inode.mode);
            }
        }
        if opening.checks && late {
            self.check_remote(opening, remote)?;
        }
        if opening.brings
            && !opening.path_only
            && !by_ranges
            && self.origin_gate().was_released(id)?
        {
            return Err(Errno::STALE);
        }
        // If `fresh`, another process sent the description: conflicting leases were broken when
        // that process opened the file.
        if !opening.fresh {
            self.heed_leases(live, None, opening.flags, opening.opener)?;
        }
        let truncates = opening.checks && opening.flags & libc::O_TRUNC != 0;
        // The controls in the live entry may come from an older reply, to another process that
        // opens the file: use those of this reply.
        let controls_at_home = if cluster.store().peers().is_object_remote(id) {
            remote.inode.map_or(0, |inode| inode.controls)
        } else {
            0
        };
        let controlled = cluster.store().declared().controls(live) != 0 || controls_at_home != 0;
        if truncates && !controlled {
            self.before_change(live)?;
            cluster.data().truncate(live, 0)?;
        }
        Ok(PreparedLive {
            truncates: truncates && controlled,
            controls_at_home,
        })
    }

    /// Heeds leases that were granted before the description `open` was visible, and applies the
    /// file's controls to it. `truncates`: the file is truncated only then. Releases the
    /// description if the file may not be opened.
    #[inline(always)]
    fn finish_opening(
        &self,
        opening: &FileOpening<'_>,
        open: u32,
        (live, truncates): (u32, bool),
        counted: (u32, u64),
    ) -> Result<u32> {
        let (flags, opener) = (opening.flags, opening.opener);
        if !opening.fresh
            && let Err(error) = self.heed_leases(live, Some(open), flags, opener)
        {
            let _ = self.store().objects().open_release(open);
            return Err(error);
        }
        if opening.path_only {
            return Ok(open);
        }
        let flags = if truncates {
            flags
        } else {
            flags & !libc::O_TRUNC
        };
        self.opened(open, live, flags, counted, opener)
    }

    fn open_unnamed(&self, place: &Place, flags: i32, mode: u32, opener: Opener) -> Result<u32> {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::INVAL);
        }
        let e = place.existing()?;
        if e.kind != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        let dir = self.resolver().dir_info(e.id)?;
        self.cred().check_dir(&dir, WRITE | EXEC)?;
        let gate = self.origin_gate();
        gate.check_read_only(e.id, UNNAMED)?;
        let cluster = self.cluster();
        let new = self.new_object(&dir, UNNAMED, S_IFREG | mode & 0o7777, b"");
        let new = new.map_err(|e| match e {
            // EXDEV: most names in this directory are at the origin only, and a file without a name
            // can't be made there.
            Errno::XDEV => Errno::OPNOTSUPP,
            e => e,
        })?;
        let counts = cluster.store().declared().counts();
        let (section, id) = gate.with_quota_for((e.id, b"", &new), || {
            let section = cluster.store().section()?;
            Ok((section, cluster.namespace().create_unnamed(e.id, &new)?))
        })?;
        let (live, held) = cluster.opens().live_acquire_held(id)?;
        cluster.store().objects().live_set_unlinked(id)?;
        let opened = Some((live, Some(held)));
        let new = NewOpen::new(id, S_IFREG, flags as u32)
            .named(e.id, UNNAMED)
            .by(opener);
        let open = cluster
            .store()
            .objects()
            .open_create_held(&new, opened)
            .inspect_err(|_| _ = cluster.store().objects().live_release(live))?;
        drop(section);
        self.opened(open, live, flags & !libc::O_TRUNC, (counts, 0), opener)
    }
}
