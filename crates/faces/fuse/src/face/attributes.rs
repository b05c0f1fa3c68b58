//! Answers requests for attributes: those of stat, and extended attributes.

use super::{Call, object};
use crate::protocol::{self as p, Args, Head, Reply, fattr};
use forebay_posix::{ObjectId, Stat};
use rustix::io::{Errno, Result};

/// Returns the mode bits to remove when a user without privileges changes a file: set-user-ID, and
/// set-group-ID if the group may execute the file or the user isn't in the group.
fn privileges(mode: u32, is_member: impl FnOnce() -> bool) -> u32 {
    let bits = mode & (libc::S_ISUID | libc::S_ISGID);
    if bits & libc::S_ISGID != 0 && mode & libc::S_IXGRP == 0 && is_member() {
        bits & !libc::S_ISGID
    } else {
        bits
    }
}

fn privileges_of(head: &Head, stat: &Stat) -> u32 {
    privileges(stat.mode, || is_member(head, stat.gid))
}

/// Whether `gid` is the requesting thread's group, or one of its supplementary groups. If the
/// thread can't be seen, it counts as having no supplementary groups. Reading a thread's `status` can't wait for this
/// reply: it doesn't take the lock of the process's mappings, which the thread may hold.
fn is_member(head: &Head, gid: u32) -> bool {
    let is_one_of = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", head.pid)).ok()?;
        let groups = status.lines().find_map(|l| l.strip_prefix("Groups:"))?;
        Some(groups.split_whitespace().any(|g| g.parse() == Ok(gid)))
    };
    head.gid == gid || head.pid != 0 && is_one_of().unwrap_or(false)
}

/// Returns the events (bits of inotify(7)) that watchers get for a change of the attributes
/// `valid`.
fn watch_events(valid: u32, open: bool) -> u32 {
    let has = |bits: u32| valid & bits != 0;
    let mut what = match (has(fattr::ATIME), has(fattr::MTIME)) {
        (true, false) => libc::IN_ACCESS,
        (false, true) if !has(fattr::SIZE) => libc::IN_MODIFY,
        (true, true) => libc::IN_ATTRIB,
        _ => 0,
    };
    if has(fattr::UID | fattr::GID | fattr::MODE) {
        what |= libc::IN_ATTRIB;
    }
    // For an open file, truncation has reported the change already.
    if has(fattr::SIZE) && !open {
        what |= libc::IN_MODIFY;
    }
    what
}

impl Call<'_> {
    pub(super) fn get_attributes(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let stat = self.stat_of_request(a)?;
        reply.u64(0).u32(0).u32(0).attributes(&stat);
        Ok(())
    }

    /// Returns the attributes for GETATTR and STATX.
    fn stat_of_request(&self, a: &mut Args<'_>) -> Result<Stat> {
        let flags = a.u32()?;
        a.skip(4)?;
        let open = super::handle(a)?;
        let stat = self.stat(self.head.node, (flags & p::GETATTR_FH != 0).then_some(open))?;
        self.announce_size(self.head.node, stat.size)?;
        Ok(stat)
    }

    /// Answers STATX, which includes the time of birth.
    pub(super) fn statx(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let s = self.stat_of_request(a)?;
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        reply.u64(0).u32(0).u32(0).zeros(16);
        reply.u32(mask).u32(4096).u64(0);
        reply.u32(s.nlink).u32(s.uid).u32(s.gid);
        reply.u16(s.mode as u16).u16(0);
        reply
            .u64(p::node_of(s.ino))
            .u64(s.size)
            .u64(s.blocks)
            .u64(0);
        for time in [s.atime, s.btime, s.ctime, s.mtime] {
            let (seconds, nanos) = p::seconds(time);
            reply.u64(seconds).u32(nanos).u32(0);
        }
        reply.u32(libc::major(s.rdev)).u32(libc::minor(s.rdev));
        reply.zeros(8 + 14 * 8);
        Ok(())
    }

    pub(super) fn set_attributes(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let valid = a.u32()?;
        a.skip(4)?;
        let open = super::handle(a)?;
        let size = a.u64()?;
        a.skip(8)?;
        let (atime, mtime, _) = (a.u64()?, a.u64()?, a.u64()?);
        let (atime, mtime) = (p::time(atime, a.u32()?), p::time(mtime, a.u32()?));
        a.skip(4)?;
        let mode = a.u32()?;
        a.skip(4)?;
        let (uid, gid) = (a.u32()?, a.u32()?);
        let has = |bits: u32| valid & bits != 0;
        let (fs, id) = (self.fs(), self.object());
        let open = has(fattr::FH).then_some(open);

        let (uid, gid) = (
            has(fattr::UID).then_some(uid),
            has(fattr::GID).then_some(gid),
        );
        let now = fs.now();
        let pick = |set: u32, to_now: u32, given: i64| {
            has(set).then(|| if has(to_now) { now } else { given })
        };
        let atime = pick(fattr::ATIME, fattr::ATIME_NOW, atime);
        let mtime = pick(fattr::MTIME, fattr::MTIME_NOW, mtime);
        let change = || {
            if uid.is_some() || gid.is_some() {
                fs.change_owner(id, uid, gid)?;
            }
            if !has(fattr::ANY) {
                self.set_nothing(&self.stat(self.head.node, open)?)?;
            }
            if has(fattr::MODE) {
                fs.change_mode(id, mode)?;
            }
            if has(fattr::SIZE) {
                match open {
                    Some(open) => fs.truncate_open(open, size)?,
                    None => self.truncate(self.head.node, size)?,
                }
                if has(fattr::KILL_SUIDGID) {
                    self.drop_privileges(self.head.node)?;
                }
            }
            if atime.is_some() || mtime.is_some() {
                fs.change_times(id, atime, mtime, false)?;
            }
            Ok(())
        };
        match change() {
            Err(Errno::NOENT) => self.directories.change_removed(self.head.node, |stat| {
                stat.uid = uid.unwrap_or(stat.uid);
                stat.gid = gid.unwrap_or(stat.gid);
                if has(fattr::MODE) {
                    stat.mode = stat.mode & libc::S_IFMT | mode & 0o7777;
                }
                stat.atime = atime.unwrap_or(stat.atime);
                stat.mtime = mtime.unwrap_or(stat.mtime);
                stat.ctime = now;
            })?,
            changed => changed?,
        }
        let stat = self.stat(self.head.node, open)?;
        self.cached.set(self.head.node, stat.size);
        if fs.store().watches().has_watches() {
            self.notify_watchers(id, stat.mode, watch_events(valid, open.is_some()));
        }
        reply.u64(0).u32(0).u32(0).attributes(&stat);
        Ok(())
    }

    /// Reports a change of the object to watchers that don't use the mount.
    fn notify_watchers(&self, id: ObjectId, mode: u32, what: u32) {
        let known = self.known.name(id.0);
        let at = known.as_ref().map(|(dir, name)| (*dir, &name[..]));
        self.fs()
            .store()
            .watches()
            .tell(id, mode & libc::S_IFMT, at, what);
    }

    /// Removes the bits of [`privileges`], after a user without privileges has written the file.
    pub(super) fn drop_privileges(&self, node: u64) -> Result<()> {
        let stat = self.fs().stat_id(object(node))?;
        match privileges_of(self.head, &stat) {
            0 => Ok(()),
            some => self
                .fs()
                .change_mode(object(node), stat.mode & 0o7777 & !some),
        }
    }

    /// Removes the bits of [`privileges`] before a change for which the kernel doesn't tell whether
    /// the user has privileges. Assumes that root has them. For root without CAP_FSETID, the kernel
    /// sends a separate request that sets nothing.
    pub(super) fn drop_users_privileges(&self, node: u64) -> Result<()> {
        if self.head.uid == 0 || privileges_of(self.head, &self.fs().stat_id(object(node))?) == 0 {
            return Ok(());
        }
        self.drop_privileges(node)
    }

    /// Handles a request that sets no attribute. Such a request comes from chown(2) with neither
    /// user nor group, or removes privileges before fallocate(2) and copy_file_range(2). chown(2)
    /// by users other than the owner and root must not remove privileges; for the two other calls
    /// see [`drop_users_privileges`](Self::drop_users_privileges).
    fn set_nothing(&self, stat: &Stat) -> Result<()> {
        let is_other = self.head.uid != 0 && self.head.uid != stat.uid;
        if is_other && privileges_of(self.head, stat) != 0 {
            return Ok(());
        }
        self.fs().change_owner(self.object(), None, None)
    }

    // ---- extended attributes ----

    pub(super) fn setxattr(&self, a: &mut Args<'_>) -> Result<()> {
        let (size, flags) = (a.u32()? as usize, a.u32()?);
        let name = a.text()?;
        let value = a.take(size)?;
        let known = self.known.name(self.head.node);
        let known = known.as_ref().map(|(dir, name)| (*dir, &name[..]));
        let (fs, id) = (self.fs(), self.object());
        fs.set_attribute(id, name, value, flags as i32, known)?;
        self.notify_attribute(id);
        Ok(())
    }

    fn notify_attribute(&self, id: ObjectId) {
        if self.fs().store().watches().has_watches()
            && let Ok(stat) = self.fs().stat_id(id)
        {
            self.notify_watchers(id, stat.mode, libc::IN_ATTRIB);
        }
    }

    pub(super) fn getxattr(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let room = a.u64()? as u32 as usize;
        let value = self.fs().get_attribute(self.object(), a.text()?)?;
        put_sized(reply, room, &value)
    }

    pub(super) fn listxattr(&self, a: &mut Args<'_>, reply: &mut Reply) -> Result<()> {
        let room = a.u64()? as u32 as usize;
        let mut list = Vec::new();
        for name in self.fs().attribute_names(self.object())? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        put_sized(reply, room, &list)
    }

    pub(super) fn removexattr(&self, a: &mut Args<'_>) -> Result<()> {
        let id = self.object();
        self.fs().remove_attribute(id, a.text()?)?;
        self.notify_attribute(id);
        Ok(())
    }
}

/// Appends a value to a reply for which the program has `room` bytes; if 0, appends only its size.
fn put_sized(reply: &mut Reply, room: usize, value: &[u8]) -> Result<()> {
    match room {
        0 => _ = reply.u32(value.len() as u32).u32(0),
        room if room < value.len() => return Err(Errno::RANGE),
        _ => _ = reply.put(value),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_group_bit_is_a_privilege_only_where_the_group_may_execute() {
        assert_eq!(super::privileges(0o106755, || true), 0o6000);
        assert_eq!(super::privileges(0o106745, || true), 0o4000);
        assert_eq!(super::privileges(0o106745, || false), 0o6000);
        assert_eq!(super::privileges(0o100755, || false), 0);
    }
}
