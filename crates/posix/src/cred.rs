//! Credentials of a process, and permission checks.
//!
//! The credentials are read once and again when the process has changed them ([`Cred::refresh`]),
//! which also counts a generation up: cached permissions of an older generation don't hold. A face
//! whose requests the kernel has already judged allows everything ([`Cred::judged`]).

use crate::cache::DirInfo;
use forebay_store::Inode;
use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write, or to change a directory's entries.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXEC: u32 = 1;

const MAX_GROUPS: usize = 64;

/// Effective user, group and supplementary groups of this process.
pub(crate) struct Cred {
    uid: AtomicU32,
    gid: AtomicU32,
    group_count: AtomicU32,
    groups: [AtomicU32; MAX_GROUPS],
    /// Changes with them: what was allowed before may not be now.
    generation: AtomicU32,
    /// Somebody else has judged already: everything is allowed.
    judged: bool,
}

impl Cred {
    /// The credentials of this process.
    pub fn new() -> Cred {
        let c = Cred::judged(0, 0);
        c.refresh();
        Cred { judged: false, ..c }
    }

    /// Credentials of a user whom the kernel has judged.
    pub fn judged(uid: u32, gid: u32) -> Cred {
        Cred {
            uid: AtomicU32::new(uid),
            gid: AtomicU32::new(gid),
            group_count: AtomicU32::new(0),
            groups: [const { AtomicU32::new(0) }; MAX_GROUPS],
            generation: AtomicU32::new(0),
            judged: true,
        }
    }

    /// Asks the kernel again (after setuid and the like).
    pub fn refresh(&self) {
        self.uid.store(rustix::process::geteuid().as_raw(), Relaxed);
        self.gid.store(rustix::process::getegid().as_raw(), Relaxed);
        let mut n = 0;
        if let Ok(groups) = rustix::process::getgroups() {
            for (place, g) in self.groups.iter().zip(&groups) {
                place.store(g.as_raw(), Relaxed);
                n += 1;
            }
        }
        self.group_count.store(n, Relaxed);
        self.generation.fetch_add(1, Release);
    }

    /// Changes with the credentials.
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// Effective user.
    pub fn uid(&self) -> u32 {
        self.uid.load(Relaxed)
    }

    /// Effective group.
    pub fn gid(&self) -> u32 {
        self.gid.load(Relaxed)
    }

    /// Whether all is allowed.
    pub fn is_root(&self) -> bool {
        self.judged || self.uid() == 0
    }

    /// Whether `gid` is the effective group or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        let n = self.group_count.load(Relaxed) as usize;
        self.gid() == gid || self.groups[..n].iter().any(|g| g.load(Relaxed) == gid)
    }

    /// Whether `want` (a sum of READ, WRITE, EXEC) is allowed.
    pub fn allows(&self, mode: u32, uid: u32, gid: u32, want: u32) -> bool {
        if self.judged {
            return true;
        }
        if self.is_root() {
            // Root may do all but execute what nobody may execute.
            let dir = mode & libc::S_IFMT == libc::S_IFDIR;
            return want & EXEC == 0 || dir || mode & 0o111 != 0;
        }
        let bits = if self.uid() == uid {
            mode >> 6
        } else if self.in_group(gid) {
            mode >> 3
        } else {
            mode
        };
        bits & want == want
    }

    /// EACCES unless `want` is allowed on the directory; EROFS for changing one of the view.
    ///
    /// # Errors
    /// EACCES.
    pub fn check_dir(&self, dir: &DirInfo, want: u32) -> Result<()> {
        if want & WRITE != 0 && dir.id.is_view() {
            return Err(Errno::ROFS);
        }
        if self.allows(dir.mode, dir.uid, dir.gid, want) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// EACCES unless `want` is allowed on the object.
    ///
    /// # Errors
    /// EACCES.
    pub fn check(&self, inode: &Inode, want: u32) -> Result<()> {
        if self.allows(inode.mode, inode.uid, inode.gid, want) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Whether the process owns what belongs to `uid`.
    pub fn owns(&self, uid: u32) -> bool {
        self.is_root() || self.uid() == uid
    }
}

/// The process's umask, as the kernel knows it; 077 where it doesn't say: files are never more open
/// than the program wants.
///
/// From /proc: asking by umask(2) would change it for a moment, for all threads.
pub fn umask() -> u32 {
    let of = |line: &[u8]| {
        let mask = std::str::from_utf8(line.strip_prefix(b"Umask:")?).ok()?;
        u32::from_str_radix(mask.trim(), 8).ok()
    };
    let mut text = [0u8; 512];
    let pid = forebay_store::process::pid();
    let status = forebay_store::process::proc_text(pid, "status", &mut text).unwrap_or_default();
    let mut lines = status.split(|&b| b == b'\n');
    lines.find_map(of).unwrap_or(0o077)
}
