//! Declared controls in programs' operations: on new files, at opening, and when a program violates
//! them.
//!
//! The store refuses violations ([`forebay_store::controls`]). [`ControlGate`] reports a refused
//! violation on standard error and in the pool's list of violations. If the controls ask only for a
//! report, the violation is added to the list and nothing more. Files without controls cost one
//! test.
//!
//! A new file gets its controls from three sources: what its view declares ([`Fs::declaring`]), its
//! directory, and the pool's rules by path. For each control the first source that sets it wins. A
//! face that serves other processes opens and makes files in a view for each of them
//! ([`Fs::for_process`]).

pub use crate::aside::ASIDE;
use crate::cache::DirInfo;
use crate::file::File;
use crate::fs::{Caller, Fs};
use crate::origin::OriginGate;
use crate::path::Place;
use crate::pool_ref::PoolRef;
use crate::rule_cache::RuleCache;
use forebay_client::controls::{
    At, Controls, Declared, Mutability, OnViolation, Parallelism, Persistence, Rules,
};
use forebay_client::{Pool, Violation, impossible};
use forebay_cluster::Cluster;
use forebay_store::controls::{
    Change, DeclareOutcome, LAMINATED, Opener, Party, SERVED, User, declared, is_allowed,
    is_ephemeral, pid_of_party, settled,
};
use forebay_store::process::{is_answering, pid, process_of, write_notice};
use forebay_store::{Creator, Distribution, Inode, ObjectId, SetAttr, Store, now};
use rustix::io::{Errno, Result};
use std::hash::Hasher;
use std::sync::atomic::{Ordering::*, fence};
use twox_hash::XxHash3_64;

/// The extended attribute through which programs read and set the controls of a file or directory.
pub const ATTRIBUTE: &[u8] = b"user.forebay.controls";

/// Maximum number of bytes of a path that a message shows.
const SHOWN: usize = 100;

/// Stands for a process that a face serves but can't see, since it is in another PID namespace.
pub const UNSEEN: u32 = u32::MAX;

/// The value of [`ATTRIBUTE`]: the declared controls of a file or directory.
pub(crate) fn as_attribute(inode: &Inode) -> Result<Vec<u8>> {
    match declared(inode.controls).0 {
        Declared::NOTHING => Err(Errno::NODATA),
        declared => Ok(declared.to_string().into_bytes()),
    }
}

/// Applies declared controls in a view: selects those of new objects, and refuses or reports
/// operations on open files that violate them. See the module.
#[derive(Clone, Copy)]
pub struct ControlGate<'a> {
    pool: PoolRef<'a>,
    /// The results of the pool's rules for directories.
    ruled: &'a RuleCache,
    origin: OriginGate<'a>,
    /// The process for which the view works, and the controls that the view declares.
    caller: &'a Caller,
    /// Whether new files get their controls later, by [`Fs::settle`].
    settles: bool,
}

impl Fs {
    /// Returns the [`ControlGate`] of this view.
    #[inline]
    pub fn controls(&self) -> ControlGate<'_> {
        ControlGate {
            pool: self.pool_ref(),
            ruled: self.ruled(),
            origin: self.origin_gate(),
            caller: self.caller(),
            settles: self.settles(),
        }
    }

    /// Sets [`ATTRIBUTE`] of an object. `create` is checked as for other attributes.
    pub(crate) fn set_as_attribute(
        &self,
        id: ObjectId,
        inode: &Inode,
        value: &[u8],
        create: Option<bool>,
        known: Option<(ObjectId, &[u8])>,
    ) -> Result<()> {
        match (create, as_attribute(inode).is_ok()) {
            (Some(true), true) => return Err(Errno::EXIST),
            (Some(false), false) => return Err(Errno::NODATA),
            _ => {}
        }
        let text = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
        let declared = text.parse().map_err(|_| Errno::INVAL)?;
        self.declare(id, declared, known).map_err(|declare_error| {
            if let Some(why) = declare_error.why {
                write_notice(format_args!("can't declare {declared}: {why}"));
            }
            declare_error.error
        })
    }

    /// The control bits of a file that is fetched from the origin as `name` in `dir`: those
    /// declared controls that concern the origin. `is_written`: whether changes under this path are
    /// written to the origin.
    ///
    /// # Errors
    /// As for [`ControlGate::controls_of_new`].
    pub fn controls_from_origin(
        &self,
        dir: ObjectId,
        name: &[u8],
        is_written: bool,
    ) -> Result<u64> {
        let dir = self.resolver().dir_info(dir)?;
        let ruled = self
            .controls()
            .ruled_in(&dir, |rules, at| rules.declared_for(at, name))?;
        let all = declared(dir.controls).0.or(ruled);
        let persistence = all
            .persistence
            .filter(|p| *p == Persistence::Origin && is_written);
        let declared = Declared {
            persistence,
            temporality: all.temporality,
            ..Declared::NOTHING
        };
        Ok(declared.bits())
    }
}

impl<'a> ControlGate<'a> {
    #[inline]
    fn pool(&self) -> &'a Pool {
        self.pool.pool()
    }

    #[inline]
    fn store(&self) -> &'a Store {
        self.pool.store()
    }

    #[inline]
    fn cluster(&self) -> Cluster<'a> {
        self.pool.cluster()
    }
    /// The controls of the object that is made as `name` in `dir`, as a bit set. The controls come
    /// from `own_controls`, then from the directory's declared controls, then from the rules.
    ///
    /// # Errors
    /// Errors of looking up the directory's path, such as EHOSTDOWN: without the path, the rules
    /// that apply aren't known.
    pub(crate) fn controls_of_new(
        &self,
        dir: &DirInfo,
        name: &[u8],
        mode: u32,
        own_controls: Declared,
    ) -> Result<u64> {
        let rules = &self.pool().config().rules;
        if rules.is_empty() && dir.controls == 0 && own_controls.is_nothing() {
            return Ok(0);
        }
        let own_controls = match mode & libc::S_IFMT {
            // A directory stores only controls declared for its parent; the rules for its entries
            // are found by its path.
            libc::S_IFDIR => declared(dir.controls).0,
            libc::S_IFREG if self.settles => own_controls,
            libc::S_IFREG => self.declared_for_file(dir, name, own_controls)?,
            _ => Declared::NOTHING,
        };
        Ok(own_controls.bits())
    }

    /// The controls of a file that is made as `name` in `dir`. `own_controls` override those of the
    /// directory and of the rules.
    fn declared_for_file(
        &self,
        dir: &DirInfo,
        name: &[u8],
        own_controls: Declared,
    ) -> Result<Declared> {
        let inherited = own_controls.or(declared(dir.controls).0);
        let ruled = self.ruled_in(dir, |rules, at| rules.declared_for(at, name))?;
        let all = inherited.or(ruled);
        if all.persistence == Some(Persistence::Origin)
            && let Some(why) = self.origin.not_written_to_origin(dir.id, name)?
        {
            let name = String::from_utf8_lossy(name);
            write_notice(format_args!(
                "{name} can't be made: persistence = \"origin\" is declared of it, but {why}"
            ));
            return Err(Errno::OPNOTSUPP);
        }
        Ok(all)
    }

    /// The controls that the rules declare for `dir` or an entry in it. `of` selects these controls
    /// from the rules and their cached state at `dir`.
    fn ruled_in(
        &self,
        dir: &DirInfo,
        of: impl FnOnce(&Rules, &At) -> Declared,
    ) -> Result<Declared> {
        let rules = &self.pool().config().rules;
        if rules.is_empty() {
            return Ok(Declared::NOTHING);
        }
        let key = (dir.id, self.store().names_epoch().now());
        let find = || Ok(rules.at(&self.cluster().namespace().path_of(dir.id)?));
        self.ruled.with(key, find, |at| of(rules, at))
    }

    /// Distribution of the new directory `name` in `dir`, if it differs from that of `dir`. A
    /// directory whose files are `exclusive` has its entries on the node that makes it, since that
    /// node will probably use them (`docs/decisions/0041-controls.md`).
    ///
    /// # Errors
    /// As for [`ControlGate::controls_of_new`].
    pub(crate) fn distribution_of_new(
        &self,
        dir: &DirInfo,
        name: &[u8],
        mode: u32,
    ) -> Result<Option<Distribution>> {
        if mode & libc::S_IFMT != libc::S_IFDIR || dir.id.distribution() != Distribution::Local {
            return Ok(None);
        }
        let ruled = self.ruled_in(dir, |rules, at| {
            rules.declared_within(&rules.below(at, name))
        })?;
        let own_controls = declared(dir.controls).0.or(ruled).parallelism;
        let exclusive = !matches!(own_controls, None | Some(Parallelism::Shared));
        Ok(exclusive.then_some(Distribution::LocalAll))
    }

    /// The creator to be recorded for a new object with this mode and the controls `word`: if the
    /// object is ephemeral, the process for which this view works; otherwise None.
    ///
    /// # Errors
    /// EOPNOTSUPP: the process can't be seen. ESRCH: the process has ended. [`ASIDE`]: this thread
    /// may not examine the process.
    pub(crate) fn creator_of_new(&self, mode: u32, word: u64) -> Result<Option<Creator>> {
        if mode & libc::S_IFMT != libc::S_IFREG || !is_ephemeral(word) {
            return Ok(None);
        }
        let pid = match self.caller.process {
            0 => None,
            UNSEEN => return Err(Errno::OPNOTSUPP),
            _ if is_answering() => return Err(ASIDE),
            id => Some(process_of(id).ok_or(Errno::SRCH)?),
        };
        self.store().declared().creator(pid).map(Some)
    }
}

impl Fs {
    /// The controls of a file that is staged in as `to`. No process of the pool created it, so
    /// `persistence = "process"` is left out.
    fn declared_for_staged(&self, to: &[u8]) -> Result<Declared> {
        let own_controls = self.simple(to, false, |place| match place {
            Place::Entry { dir, name, .. } => {
                self.controls()
                    .declared_for_file(dir, name, self.caller().declared)
            }
            Place::Dir { .. } => Err(Errno::ISDIR),
        })?;
        Ok(Declared {
            persistence: own_controls
                .persistence
                .filter(|p| *p != Persistence::Process),
            ..own_controls
        })
    }

    /// Opens `path`, a new file that is to be staged in as `to`, as [`Fs::open`] does. Of the
    /// controls of `to`, the file gets only `persistence = "node"`, which decides where the file's
    /// bytes lie. The file gets the others when it is complete ([`Fs::settle`]).
    ///
    /// # Errors
    /// As for looking `to` up, and as open(2).
    pub fn open_staged(&self, path: &[u8], to: &[u8], flags: i32, mode: u32) -> Result<File<'_>> {
        if !self.store().content().drains() {
            return self.open(path, flags, mode);
        }
        let persistence = self.declared_for_staged(to)?.persistence;
        let own_controls = Declared {
            persistence: persistence.filter(|p| *p == Persistence::Node),
            ..Declared::NOTHING
        };
        let open = self
            .declaring(own_controls)
            .open(path, flags, mode)?
            .take_open();
        Ok(File::new(self, open))
    }

    /// Gives the complete, closed file at `path` the controls that it would have got under the name
    /// `to` (except `persistence = "process"`). An immutable file that isn't empty is laminated.
    ///
    /// # Errors
    /// Errors of looking `path` and `to` up, and of changing the file.
    pub fn settle(&self, path: &[u8], to: &[u8]) -> Result<()> {
        let own_controls = self.declared_for_staged(to)?;
        let file = self.stat(path, false)?;
        // The controls with which the file was made.
        let before = if self.store().content().drains() {
            self.cluster()
                .namespace()
                .stat(ObjectId(file.ino))?
                .controls
        } else {
            0
        };
        if own_controls.is_nothing() && before == 0 || file.mode & libc::S_IFMT != libc::S_IFREG {
            return Ok(());
        }
        let immutable = own_controls.mutability == Some(Mutability::Immutable) && file.size > 0;
        let set = SetAttr {
            controls: Some(own_controls.bits() | if immutable { LAMINATED } else { 0 }),
            ..SetAttr::default()
        };
        self.cluster()
            .namespace()
            .set_attr(ObjectId(file.ino), &set)?;
        self.cluster()
            .declarations()
            .follow_word(ObjectId(file.ino), before, own_controls.bits())
    }

    /// The controls of an object, and whether it is laminated.
    ///
    /// # Errors
    /// ENOENT.
    pub fn controls_of(&self, id: ObjectId) -> Result<(Declared, bool)> {
        Ok(declared(self.cluster().namespace().stat(id)?.controls))
    }

    /// Declares controls for a file or directory. They replace earlier ones. A laminated file
    /// becomes writable again.
    ///
    /// # Errors
    /// As for [`Fs::declare`].
    pub fn set_controls(&self, id: ObjectId, declared: Declared) -> Result<()> {
        self.declare(id, declared, None)
            .map_err(|declare_error| declare_error.error)
    }

    /// As [`Fs::set_controls`], for an object with the known name `known`: directory and name.
    ///
    /// # Errors
    /// EPERM: the object belongs to another user. EOPNOTSUPP: the object is neither a file nor a
    /// directory, or this pool can't keep the controls, or an existing file would become ephemeral.
    /// EBUSY: other processes have the file open, or mapped, which the controls forbid. EHOSTDOWN:
    /// a node that has it open can't be asked. With `persistence = "node"`, if the file's bytes
    /// have to move to `files` media: ENOSPC if these are full, EBUSY if the file is mapped. After
    /// an error nothing is declared.
    pub fn declare(
        &self,
        id: ObjectId,
        declared: Declared,
        known: Option<(ObjectId, &[u8])>,
    ) -> std::result::Result<(), DeclareError> {
        let inode = self.cluster().namespace().stat(id)?;
        let (controls, config) = (declared.resolve(), self.pool().config());
        let kept = impossible(&controls, &config.media, config.origin.is_some()).is_none();
        if !inode.is_file() && !inode.is_dir() || !kept {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !self.cred().owns(inode.uid) {
            return Err(Errno::PERM.into());
        }
        let place = if inode.is_dir() {
            Some((id, &b""[..]))
        } else {
            known
        };
        if controls.persistence == Persistence::Origin
            && let Some((dir, name)) = place
            && let Some(why) = self.origin_gate().not_written_to_origin(dir, name)?
        {
            return Err(DeclareError {
                error: Errno::OPNOTSUPP,
                why: Some(why.to_owned()),
            });
        }
        self.buffers().write_back(id);
        if !inode.is_file() {
            let set = SetAttr {
                controls: Some(declared.bits()),
                ..SetAttr::default()
            };
            return Ok(self.cluster().namespace().set_attr(id, &set)?);
        }
        let done = self.cluster().declarations().declare(id, declared)?;
        let why = || {
            in_words(
                &done,
                controls.parallelism,
                self.store().peers().node_of_several(),
            )
        };
        if done.refused {
            return Err(DeclareError {
                error: Errno::BUSY,
                why: Some(why()),
            });
        }
        for (which, others) in [
            (Which::Parallelism, &done.open),
            (Which::Mutability, &done.mapped),
        ] {
            if !others.is_empty() {
                self.controls()
                    .note_against(id, &controls, which, known, &why());
            }
        }
        self.cluster().declarations().notify_writers(id)?;
        let (before, now) = (inode.controls, declared.bits());
        let placed = self
            .cluster()
            .declarations()
            .follow_word(id, before, now)
            .inspect_err(|_| {
                // Restores the previous declaration, except `persistence = "process"`: the creator
                // is no longer known. Bytes that were moved aren't moved back.
                let (was, laminated) = forebay_store::controls::declared(before);
                let was = Declared {
                    persistence: was.persistence.filter(|p| *p != Persistence::Process),
                    ..was
                };
                let laminated = if laminated { LAMINATED } else { 0 };
                let set = SetAttr {
                    controls: Some(was.bits() | laminated),
                    ..SetAttr::default()
                };
                let declare_error = self.cluster().namespace().set_attr(id, &set);
                _ = declare_error
                    .and_then(|()| self.cluster().declarations().follow_word(id, now, before));
            });
        Ok(placed?)
    }
}

impl ControlGate<'_> {
    /// Adds an entry to the pool's list of violations: a control of the file isn't kept at the
    /// moment.
    fn note_against(
        &self,
        id: ObjectId,
        controls: &Controls,
        which: Which,
        known: Option<(ObjectId, &[u8])>,
        why: &str,
    ) {
        let mut hash = XxHash3_64::with_seed(which as u64 | 2);
        hash.write_u64(id.0);
        self.pool().note_violation(hash.finish(), || {
            let path = known.and_then(|(dir, name)| {
                let mut path = self.cluster().namespace().path_of(dir).ok()?;
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                Some(String::from_utf8_lossy(&path).into_owned())
            });
            Violation {
                time: now() / 1_000_000_000,
                pid: self.works_for(),
                path: path.unwrap_or_else(|| "?".into()),
                control: which.of(controls),
                what: format!("said while {why}"),
                refused: false,
            }
        });
    }
}

impl Fs {
    /// Completes the opening of the file with the live entry `live`: records the use, and truncates
    /// the file if the flags ask for it. If opening is refused, releases the description.
    /// `at_home`: the file's controls as its home returned them when `DeclaredControls::counts` was
    /// `counts`, or later; 0: none.
    pub(crate) fn opened(
        &self,
        open: u32,
        live: u32,
        flags: i32,
        (counts, at_home): (u32, u64),
        opener: Opener,
    ) -> Result<u32> {
        let cluster = self.cluster();
        let mut word = match cluster.store().declared().controls(live) {
            0 => at_home,
            word => word,
        };
        if cluster.store().declared().counts() != counts
            && cluster
                .store()
                .peers()
                .is_object_remote(cluster.store().content().live_id(live))
        {
            word = match cluster
                .namespace()
                .stat(cluster.store().content().live_id(live))
            {
                Ok(inode) => {
                    cluster.declarations().note_controls(live, &inode);
                    inode.controls
                }
                Err(e) => {
                    let _ = cluster.store().objects().open_release(open);
                    return Err(e);
                }
            };
        }
        // A file that a face keeps open isn't in use by any program.
        if word == 0 || opener.is_kept() {
            return Ok(open);
        }
        self.buffers().look_again_open(open);
        let begun = self.controls().begin_use(open, word, flags);
        let result = begun.and_then(|()| match flags & libc::O_TRUNC {
            0 => Ok(()),
            _ => {
                self.buffers().write_back_open(open);
                self.before_change(live)?;
                let cut = || self.cluster().data().truncate(live, 0);
                self.controls().changing(open, live, Change::Size(0), cut)?;
                self.store().watches().notify_open(open, libc::IN_MODIFY);
                Ok(())
            }
        });
        result
            .map(|()| open)
            .inspect_err(|_| _ = self.store().objects().open_release(open))
    }
}

impl ControlGate<'_> {
    fn begin_use(&self, open: u32, word: u64, flags: i32) -> Result<()> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let controls = declared(word).0.resolve();
        let party = match self.caller.process {
            0 => self.store().locks().lock_owner_process()?.number,
            // With `parallelism = "process"`, all threads of the process count as one party.
            id if controls.parallelism == Parallelism::Process => settled(SERVED | Party::from(id)),
            id => SERVED | Party::from(id),
        };
        let begun = self
            .cluster()
            .declarations()
            .begin_use(open, word, party, writes);
        let violated = match begun {
            Err(e @ (Errno::BUSY | Errno::PERM)) => Some((e, true)),
            Ok(Some(e)) => Some((e, false)),
            _ => None,
        };
        if let Some((e, refused)) = violated {
            let control = match e {
                Errno::BUSY => Which::Parallelism,
                _ => Which::Mutability,
            };
            self.tell(open, &controls, control, format_args!("open"), refused);
        }
        begun.map(|_| ())
    }

    /// Calls `f`, which changes the bytes of an open file, and reports a violation if the file's
    /// controls forbid the change.
    pub(crate) fn changing<T>(
        &self,
        open: u32,
        live: u32,
        change: Change,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let word = self.store().declared().controls(live);
        if word == 0 {
            return f();
        }
        let (declared, laminated) = declared(word);
        let controls = declared.resolve();
        let size = || self.cluster().declarations().size_for(live, word);
        let reported = controls.on_violation == OnViolation::Report
            && !is_allowed(&controls, laminated, size()?, change);
        let at = match change {
            Change::From(at) => at.unwrap_or_default(),
            Change::Size(size) => size,
        };
        let result = self.report_damage((open, live), ("change", at), f());
        let refused = matches!(result, Err(Errno::PERM));
        let what = || match change {
            Change::From(Some(at)) => format!("write at {at}"),
            Change::From(None) => "append".into(),
            Change::Size(size) => format!("truncate to {size}"),
        };
        if reported || refused {
            let what = what();
            self.tell(
                open,
                &controls,
                Which::Mutability,
                format_args!("{what}"),
                refused,
            );
        }
        if matches!(result, Err(Errno::NOSPC)) {
            self.report_full(open, live, &what());
        }
        result
    }

    /// Reports ENOSPC to the user for a file whose controls restrict its bytes to `files` media:
    /// the pool's other media may still have room.
    pub(crate) fn report_full(&self, open: u32, live: u32, what: &str) {
        let word = self.store().declared().controls(live);
        if self.store().content().keeps_on_files(word) {
            let controls = declared(word).0.resolve();
            let what = format_args!("{what}");
            self.tell(open, &controls, Which::Persistence, what, true);
        }
    }

    /// Passes on the result of an operation on an open file at an offset. Detected damage is
    /// reported and becomes EIO.
    #[inline]
    pub(crate) fn report_damage<T>(
        &self,
        (open, live): (u32, u32),
        (what, at): (&str, u64),
        done: Result<T>,
    ) -> Result<T> {
        if !matches!(done, Err(Errno::BADMSG)) {
            return done;
        }
        let controls = declared(self.store().declared().controls(live)).0.resolve();
        let what = format_args!("{what} at {at}");
        self.tell(open, &controls, Which::Integrity, what, true);
        Err(Errno::IO)
    }

    /// Refuses a shared mapping for writing of a file with `mutability = "append"`.
    ///
    /// # Errors
    /// EPERM: the file only grows, and violations are refused.
    pub fn check_shared_writing(&self, open: u32, live: u32) -> Result<()> {
        let word = self.store().declared().controls(live);
        let controls = declared(word).0.resolve();
        if word == 0 || controls.mutability != Mutability::Append {
            return Ok(());
        }
        let refused = controls.on_violation == OnViolation::Refuse;
        let what = format_args!("map for writing");
        self.tell(open, &controls, Which::Mutability, what, refused);
        if refused { Err(Errno::PERM) } else { Ok(()) }
    }

    /// As [`ControlGate::check_shared_writing`], after the caller has recorded the mapping:
    /// controls may have been declared since the first check. The caller removes the mapping on an
    /// error. A declaring process searches for mappings after it has set the controls. So the
    /// declaring process finds this mapping, or this check finds the controls.
    ///
    /// # Errors
    /// EPERM.
    pub fn check_shared_writing_again(&self, open: u32, live: u32) -> Result<()> {
        fence(SeqCst);
        self.cluster().mappings().unseal_for_mapping(live)?;
        if self.only_grows(live) {
            self.check_shared_writing(open, live)
        } else {
            Ok(())
        }
    }

    /// Whether an open file may only grow, and violations are refused rather than only reported.
    pub fn only_grows(&self, live: u32) -> bool {
        let controls = declared(self.store().declared().controls(live)).0.resolve();
        controls.mutability == Mutability::Append && controls.on_violation == OnViolation::Refuse
    }

    /// Id of the process for which this view works.
    pub(crate) fn works_for(&self) -> u32 {
        match self.caller.process {
            0 | UNSEEN => pid(),
            pid => pid,
        }
    }

    /// Adds a violation to the pool's list. A refused one is also reported on standard error.
    #[cold]
    fn tell(
        &self,
        open: u32,
        controls: &Controls,
        which: Which,
        what: std::fmt::Arguments<'_>,
        refused: bool,
    ) {
        let mut hash = XxHash3_64::with_seed(which as u64);
        hash.write_u64(self.store().objects().open_file(open).id.load(Relaxed));
        let control = which.of(controls);
        let path = self
            .pool
            .path_of_open(open)
            .unwrap_or_else(|_| b"?".to_vec());
        let path = String::from_utf8_lossy(&path).into_owned();
        let note = || Violation {
            time: now() / 1_000_000_000,
            pid: self.works_for(),
            path: path.clone(),
            control: control.clone(),
            what: what.to_string(),
            refused,
        };
        if !self.pool().note_violation(hash.finish(), note) || !refused {
            return;
        }
        let why = match which {
            Which::Parallelism => "another has it open",
            Which::Integrity => "its bytes are not what was written, by their checksums",
            Which::Persistence => "its bytes may lie on files media only, which have no room left",
            Which::Mutability if controls.mutability == Mutability::Append => "it only grows",
            Which::Mutability => "it was written and closed, and never changes again",
        };
        let mount = String::from_utf8_lossy(self.pool.mount());
        let end = path.floor_char_boundary(SHOWN);
        write_notice(format_args!(
            "{mount}{}: {what} refused, {why} ({control})",
            &path[..end]
        ));
    }
}

/// The control that was violated, or because of which an operation fails.
#[derive(Clone, Copy)]
enum Which {
    Parallelism,
    Mutability,
    Persistence,
    Integrity,
}

impl Which {
    /// The control and its value as users write them.
    fn of(self, controls: &Controls) -> String {
        match self {
            Which::Mutability => format!("mutability = \"{}\"", controls.mutability),
            Which::Parallelism => format!("parallelism = \"{}\"", controls.parallelism),
            Which::Persistence => format!("persistence = \"{}\"", controls.persistence),
            Which::Integrity => format!("integrity = \"{}\"", controls.integrity),
        }
    }
}

/// Why a declaration failed.
#[derive(Clone, Debug)]
pub struct DeclareError {
    pub error: Errno,
    /// With EBUSY: the users that prevent the declaration.
    pub why: Option<String>,
}

impl From<Errno> for DeclareError {
    fn from(error: Errno) -> DeclareError {
        DeclareError { error, why: None }
    }
}

/// Maximum number of users of a file that a message lists.
const NAMED: usize = 6;

/// The processes or nodes that have a file open, or the processes that map it, as part of a
/// message. In a pool of several nodes, each process is listed with its node.
fn in_words(
    own_controls: &DeclareOutcome,
    parallelism: Parallelism,
    of_several: Option<u32>,
) -> String {
    let nodes_only = parallelism == Parallelism::Node && !own_controls.open.is_empty();
    let (users, what) = if nodes_only {
        (&own_controls.open, "nodes have it open")
    } else if !own_controls.open.is_empty() {
        (&own_controls.open, "processes have it open")
    } else if own_controls.mapped.len() == 1 {
        (&own_controls.mapped, "process maps it for writing")
    } else {
        (&own_controls.mapped, "processes map it for writing")
    };
    let one = |user: &User| match (nodes_only, of_several) {
        (true, _) => user.node.to_string(),
        (false, None) => pid_of_party(user.party).to_string(),
        (false, Some(_)) => format!("{} on node {}", pid_of_party(user.party), user.node),
    };
    let mut names: Vec<String> = users.iter().take(NAMED).map(one).collect();
    if users.len() > NAMED {
        names.push("...".into());
    }
    format!("{} {what} ({})", users.len(), names.join(", "))
}
