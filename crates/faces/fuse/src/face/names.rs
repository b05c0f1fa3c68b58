//! Answers requests for names: lookup, creation, rename, removal.

use super::{Call, inside, object};
use crate::protocol::{self as p, Args, Reply, device};
use forebay_posix::{Follow, Fs, Goal, Place, RenameMode};
use rustix::io::{Errno, Result};

impl Call<'_> {
    /// Looks up a name. A regular file is kept open for a moment, since the next request may open
    /// it.
    pub(super) fn lookup(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        const FLAGS: i32 = libc::O_RDONLY | libc::O_NOFOLLOW;
        let (fs, name) = (self.fs(), a.text()?);
        let found = fs
            .resolver()
            .at(self.object(), name, Goal::of_open(FLAGS), |place| {
                let entry = place.existing()?;
                if entry.kind == libc::S_IFREG {
                    self.known.note(entry.id.0, self.object(), name);
                }
                if entry.kind != libc::S_IFREG || self.recent.has(entry.id.0) {
                    return fs.stat_place(place);
                }
                let open = fs.keep_place(place, FLAGS)?;
                let stat = fs.stat_open(open);
                self.recent.keep(fs, entry.id.0, open);
                stat
            });
        let stat = found.map_err(inside)?;
        self.announce_size(p::node_of(stat.ino), stat.size)?;
        self.directories.note(p::node_of(stat.ino), &stat);
        reply.entry(&stat);
        Ok(())
    }

    /// Calls `f` with the place of `name` in the request's directory.
    fn at<T>(&self, fs: &Fs, name: &[u8], f: impl FnMut(&Place) -> Result<T>) -> Result<T> {
        let done = fs.resolver().at(self.object(), name, Follow::No, f);
        done.map_err(inside)
    }

    /// Replies with the entry `name` of the request's directory.
    fn tell(&self, name: &[u8], reply: &mut Reply) -> Result<()> {
        let fs = self.fs();
        let stat = self.at(fs, name, |p| fs.stat_place(p))?;
        // The kernel may already know an object with this number. The kernel never discards the
        // reply to a creation, so it adopts the size in that reply.
        self.cached.set(p::node_of(stat.ino), stat.size);
        self.directories.note(p::node_of(stat.ino), &stat);
        reply.entry(&stat);
        Ok(())
    }

    pub(super) fn readlink(&self, reply: &mut Reply) -> Result<()> {
        let (inode, target) = self.fs().cluster().namespace().inode_tail(self.object())?;
        if !inode.is_link() {
            return Err(Errno::INVAL);
        }
        reply.put(&target);
        Ok(())
    }

    pub(super) fn symlink(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (name, target) = (a.text()?, a.text()?);
        let fs = self.fs_of();
        self.at(&fs, name, |p| fs.make_symlink(target, p))?;
        self.tell(name, reply)
    }

    pub(super) fn mknod(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (mode, rdev) = (a.u32()?, device(a.u32()?));
        // Skips the umask, which the kernel has applied.
        a.skip(8)?;
        let name = a.text()?;
        let fs = self.fs_of();
        self.at(&fs, name, |p| fs.make_node(p, mode, rdev))?;
        self.tell(name, reply)
    }

    pub(super) fn mkdir(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let mode = a.u32()?;
        a.skip(4)?;
        let name = a.text()?;
        let fs = self.fs_of();
        let made = fs.resolver().at(self.object(), name, Goal::DIRECTORY, |p| {
            fs.make_dir(p, mode)
        });
        made.map_err(inside)?;
        self.tell(name, reply)
    }

    pub(super) fn unlink(&self, a: &mut Args<'_>) -> Result<()> {
        let (fs, name) = (self.fs(), a.text()?);
        self.at(fs, name, |p| fs.remove_file(p))
    }

    pub(super) fn rmdir(&self, a: &mut Args<'_>) -> Result<()> {
        let (fs, name) = (self.fs(), a.text()?);
        self.at(fs, name, |p| fs.remove_dir(p))
    }

    pub(super) fn rename(&self, a: &mut Args<'_>, with_flags: bool) -> Result<()> {
        let to = object(a.u64()?);
        let flags = if with_flags { a.u64()? as u32 } else { 0 };
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let (old, new) = (a.text()?, a.text()?);
        let fs = self.fs();
        self.keeping
            .renames((self.head.node, old), (p::node_of(to.0), new));
        let done = fs.rename_at((self.object(), old), (to, new), mode);
        done.map_err(inside)
    }

    pub(super) fn link(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let (fs, what, name) = (self.fs(), object(a.u64()?), a.text()?);
        self.at(fs, name, |p| fs.make_link(what, p))?;
        self.tell(name, reply)
    }
}
