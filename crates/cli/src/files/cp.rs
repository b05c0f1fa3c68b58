//! `forebay cp`: copies inside a pool. The nodes that hold the bytes copy them
//! ([`forebay_posix::File::copy_to`]); holes stay holes.

use super::session::Session;
use super::targets::{Target, targets};
use super::walk::{Node, Visitor, errno, walk};
use crate::fail::Fail;
use crate::file_args::Cp;
use forebay_posix::{Errno, File, Follow, Fs, Goal, ObjectId, Place, Result, Stat, umask};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub fn cp(name: &str, a: &Cp) -> std::result::Result<u8, Fail> {
    let session = Session::open(name)?;
    for target in targets(&session, &a.src, &a.dst)? {
        // Without -r, a link stands for the file that it names.
        match Node::start(
            &session.fs,
            &target.shown,
            target.path.clone(),
            !a.recursive,
        ) {
            Err(Errno::NOENT) if is_outside(&target.shown) => {
                let what = "isn't in the pool, but outside; bring it in with: forebay stage in";
                session.complain(&target.shown, what);
            }
            Err(e) => session.complain_errno(&target.shown, "can't be copied", e),
            Ok(node) if node.is_dir() && !a.recursive => {
                let what = "is a directory; copy it with: forebay cp -r";
                session.complain(&target.shown, what);
            }
            Ok(node) if node.kind != libc::S_IFREG && !a.recursive => {
                let what = "is neither a file nor a directory; copy it with: forebay cp -r";
                session.complain(&target.shown, what);
            }
            Ok(node) => _ = copy_tree(&session, node, &target, a.preserve),
        }
    }
    Ok(session.end())
}

/// Whether a path that the pool hasn't leads to something outside.
fn is_outside(path: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(path)).exists()
}

/// Copies an object and all below it; with `preserve`, with owner, mode, times and attributes.
/// Names what can't be copied; true: all was.
pub fn copy_tree(session: &Session, start: Node, target: &Target, preserve: bool) -> bool {
    let mut copier = Copier {
        session,
        target,
        preserve,
        mask: umask(),
        made: Vec::new(),
        top: None,
        failed: false,
    };
    walk(&session.fs, start, &mut copier);
    !copier.failed
}

/// A directory of the destination.
struct Made {
    id: ObjectId,
    /// The source's attributes, if the directory is new.
    stat: Option<Stat>,
}

struct Copier<'a> {
    session: &'a Session,
    target: &'a Target,
    preserve: bool,
    mask: u32,
    /// The directories of the destination that are being filled.
    made: Vec<Made>,
    /// The first one: a copy into itself would never end.
    top: Option<ObjectId>,
    failed: bool,
}

impl Copier<'_> {
    fn fs(&self) -> &Fs {
        &self.session.fs
    }

    /// Where a node's copy is: the directory, and the name or path from there.
    fn place_of<'n>(&'n self, node: &'n Node) -> (ObjectId, &'n [u8]) {
        match self.made.last() {
            None => (ObjectId::ROOT, &self.target.to),
            Some(above) => (above.id, &node.name),
        }
    }

    fn complain(&mut self, node: &Node, e: Errno) {
        self.failed = true;
        self.session
            .complain_errno(&node.shown, "can't be copied", e);
    }

    fn refuse(&mut self, node: &Node, what: &str) {
        self.failed = true;
        self.session.complain(&node.shown, what);
    }

    /// Metadata of the destination; None if nothing exists there.
    fn existing(&self, (base, name): (ObjectId, &[u8]), follow: Follow) -> Result<Option<Stat>> {
        let fs = self.fs();
        match errno(fs.at(base, name, follow, |place| fs.stat_place(place))) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn make_directory(&mut self, node: &Node) -> Result<Made> {
        let fs = self.fs();
        let stat = node.stat(fs)?;
        let (base, name) = self.place_of(node);
        // Only the destination that the user names may be a link to a directory.
        let follow = match node.depth {
            0 => Follow::Yes,
            _ => Follow::No,
        };
        match self.existing((base, name), follow)? {
            Some(there) if there.mode & libc::S_IFMT == libc::S_IFDIR => Ok(Made {
                id: ObjectId(there.ino),
                stat: None,
            }),
            Some(_) => Err(Errno::NOTDIR),
            None => {
                let mode = stat.mode & 0o777 & !self.mask | 0o700;
                let goal = Goal::DIRECTORY;
                errno(fs.at(base, name, goal, |place| fs.make_dir(place, mode)))?;
                let made = errno(fs.at(base, name, Follow::No, Place::existing))?;
                Ok(Made {
                    id: made.id,
                    stat: Some(stat),
                })
            }
        }
    }

    /// Copies a file's bytes to the file of that name, which is made or replaced.
    fn copy_file(&self, node: &Node) -> Result<()> {
        let fs = self.fs();
        // At the start of a walk, a link has been followed already where it should be.
        let flags = match node.depth {
            0 => libc::O_RDONLY,
            _ => libc::O_RDONLY | libc::O_NOFOLLOW,
        };
        let from = File::new(fs, errno(fs.open_at(node.base, &node.name, flags, 0))?);
        let stat = from.stat()?;
        let (base, name) = self.place_of(node);
        let mode = stat.mode & 0o777 & !self.mask;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
        let to = File::new(fs, errno(fs.open_at(base, name, flags, mode))?);
        copy_bytes(&from, &to, stat.size)?;
        let id = ObjectId(to.stat()?.ino);
        to.close()?;
        match self.preserve {
            true => self.set_attributes(node.id, &stat, id, base, name),
            false => Ok(()),
        }
    }

    /// Makes a link, FIFO, socket or device.
    fn make_special(&self, node: &Node) -> Result<()> {
        let fs = self.fs();
        let stat = node.stat(fs)?;
        let (base, name) = self.place_of(node);
        if self.existing((base, name), Follow::No)?.is_some() {
            errno(fs.at(base, name, Follow::No, |place| fs.remove_file(place)))?;
        }
        match node.kind {
            libc::S_IFLNK => {
                let target = node.at(fs, |place| fs.read_symlink(place))?;
                errno(fs.at(base, name, Follow::No, |p| fs.make_symlink(&target, p)))?;
            }
            _ => {
                let mode = stat.mode & !(self.mask & 0o777);
                let make = |place: &Place| fs.make_node(place, mode, stat.rdev);
                errno(fs.at(base, name, Follow::No, make))?;
            }
        }
        let made = errno(fs.at(base, name, Follow::No, Place::existing))?;
        match self.preserve {
            true => self.set_attributes(node.id, &stat, made.id, base, name),
            false => Ok(()),
        }
    }

    /// Gives a copy the attributes of its source. An owner that this user can't set stays.
    fn set_attributes(
        &self,
        source: ObjectId,
        stat: &Stat,
        id: ObjectId,
        base: ObjectId,
        name: &[u8],
    ) -> Result<()> {
        let fs = self.fs();
        let is_link = stat.mode & libc::S_IFMT == libc::S_IFLNK;
        let mut mode = stat.mode & 0o7777;
        if fs.change_owner(id, Some(stat.uid), Some(stat.gid)).is_err() {
            let _ = fs.change_owner(id, None, Some(stat.gid));
            mode &= 0o1777;
        }
        if !is_link {
            for attribute in fs.attribute_names(source)? {
                if attribute.starts_with(b"user.") {
                    let value = fs.get_attribute(source, &attribute)?;
                    let place = name.iter().all(|&b| b != b'/').then_some((base, name));
                    fs.set_attribute(id, &attribute, &value, 0, place)?;
                }
            }
            fs.change_mode(id, mode)?;
        }
        fs.change_times(id, Some(stat.atime), Some(stat.mtime), false)
    }
}

/// Copies the data of a file of this size; holes stay holes.
fn copy_bytes(from: &File<'_>, to: &File<'_>, size: u64) -> Result<()> {
    let mut at = 0;
    while at < size {
        let data = match from.seek_data(at) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e),
        };
        let end = from.seek_hole(data)?.min(size);
        at = data;
        while at < end {
            match from.copy_to(at, to, at, end - at) {
                // Others have cut the file.
                Ok(0) => return Ok(()),
                Ok(n) => at += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        at = end.max(data + 1);
    }
    to.set_len(size)
}

impl Visitor for Copier<'_> {
    fn enter(&mut self, node: &Node) -> bool {
        if self.top == Some(node.id) {
            self.refuse(node, "can't be copied into itself");
            return false;
        }
        match self.make_directory(node) {
            Ok(made) if made.id == node.id => {
                self.refuse(node, "can't be copied onto itself");
                false
            }
            Ok(made) => {
                self.top.get_or_insert(made.id);
                self.made.push(made);
                true
            }
            Err(Errno::NOTDIR) => {
                let what = "can't be copied: at the destination, a file is in the way";
                self.refuse(node, what);
                false
            }
            Err(e) => {
                self.complain(node, e);
                false
            }
        }
    }

    fn leave(&mut self, node: &Node) {
        let Some(Made {
            id,
            stat: Some(stat),
        }) = self.made.pop()
        else {
            return;
        };
        let set = match self.preserve {
            true => {
                let (base, name) = self.place_of(node);
                self.set_attributes(node.id, &stat, id, base, name)
            }
            false => self.fs().change_mode(id, stat.mode & 0o777 & !self.mask),
        };
        if let Err(e) = set {
            self.complain(node, e);
        }
    }

    fn file(&mut self, node: &Node) {
        let follow = match node.kind {
            libc::S_IFREG => Follow::Yes,
            _ => Follow::No,
        };
        match self.existing(self.place_of(node), follow) {
            Ok(Some(there)) if there.ino == node.id.0 => {
                return self.refuse(node, "can't be copied onto itself");
            }
            Ok(Some(there)) if there.mode & libc::S_IFMT == libc::S_IFDIR => {
                let what = "can't be copied: at the destination, a directory is in the way";
                return self.refuse(node, what);
            }
            _ => {}
        }
        let copied = match node.kind {
            libc::S_IFREG => self.copy_file(node),
            _ => self.make_special(node),
        };
        match copied {
            Ok(()) => self.session.tell("copied", &node.shown),
            Err(e) => self.complain(node, e),
        }
    }

    fn unlisted(&mut self, directory: &Node, e: Errno) {
        self.failed = true;
        self.session
            .complain_errno(&directory.shown, "can't be listed", e);
    }
}
