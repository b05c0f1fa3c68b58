//! Shadows: directories that the kernel watches in place of objects of the pool.
//!
//! `watches/ID/MASK.N` is the shadow number N of object ID, for one inotify descriptor. That
//! descriptor is to get the events in MASK. `watches/by-inode/INODE` is a symbolic link to `ID N`:
//! the kernel names the shadows that a descriptor watches by their inode numbers. A shadow that has
//! sent its only event (IN_ONESHOT) is renamed to `-N` before it is removed.

use super::{open_dir, poke};
use crate::ObjectId;
use crate::views::Watches;
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;

/// The supported bits of a mask.
const KEPT_MASK: u32 = libc::IN_ALL_EVENTS | libc::IN_ONESHOT | libc::IN_EXCL_UNLINK;
/// A shadow of an object.
pub(super) struct Shadow {
    pub number: u64,
    pub mask: u32,
}

fn shadow_of(name: &str) -> Option<Shadow> {
    let (mask, number) = name.split_once('.')?;
    Some(Shadow {
        number: u64::from_str_radix(number, 16).ok()?,
        mask: u32::from_str_radix(mask, 16).ok()?,
    })
}

/// Returns the names in one of the watches' directories. Skips names that aren't UTF-8, which this
/// code never creates.
pub(super) fn names_in(dir: &Path) -> Result<Vec<String>> {
    let fd = open_dir(dir)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(fd)? {
        if let Ok(name) = entry?.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

pub(super) fn id_of(name: &str) -> Option<ObjectId> {
    u64::from_str_radix(name, 16).ok().map(ObjectId)
}

/// A watch of an inotify descriptor.
pub(super) struct Watched {
    pub inode: u64,
    /// The device number, as the kernel prints it in `fdinfo`.
    device: u64,
    wd: i32,
}

/// Returns the watches in the `fdinfo` of an inotify descriptor.
pub(super) fn watched_by(fdinfo: &str) -> impl Iterator<Item = Watched> {
    let lines = fdinfo.lines().filter_map(|l| l.strip_prefix("inotify "));
    lines.filter_map(|line| {
        let number = |name: &str| {
            let field = line.split(' ').find_map(|f| f.strip_prefix(name))?;
            u64::from_str_radix(field, 16).ok()
        };
        Some(Watched {
            inode: number("ino:")?,
            device: number("sdev:")?,
            wd: number("wd:")? as i32,
        })
    })
}

fn watched_by_own(fd: i32) -> Result<Vec<Watched>> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
    Ok(watched_by(&text.map_err(|_| Errno::BADF)?).collect())
}

/// Returns the device number of a file, in the form that the kernel prints in `fdinfo`.
fn device_of(s: &rustix::fs::Stat) -> u64 {
    u64::from(rustix::fs::major(s.st_dev)) << 20 | u64::from(rustix::fs::minor(s.st_dev))
}

impl Watches<'_> {
    fn object_dir(&self, id: ObjectId) -> PathBuf {
        self.watch_path(format!("{:x}", id.0))
    }

    fn inode_link(&self, inode: u64) -> PathBuf {
        self.watch_path("by-inode").join(format!("{inode:x}"))
    }

    pub(super) fn shadow_path(&self, id: ObjectId, s: &Shadow) -> PathBuf {
        self.object_dir(id)
            .join(format!("{:08x}.{:x}", s.mask, s.number))
    }

    pub(super) fn shadows_of(&self, id: ObjectId) -> Result<Vec<Shadow>> {
        match names_in(&self.object_dir(id)) {
            Ok(names) => Ok(names.iter().filter_map(|n| shadow_of(n)).collect()),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Makes the inotify descriptor `fd` watch an object. `mask` as for inotify_add_watch(2). `add`
    /// makes that call on a path, with [`super::SHADOW_MASK`]. Returns the result of `add`.
    ///
    /// # Errors
    /// EEXIST (IN_MASK_CREATE), ENOSPC, and those of `add`.
    pub fn watch(
        &self,
        fd: i32,
        id: ObjectId,
        mask: u32,
        add: impl Fn(&Path) -> Result<i64>,
    ) -> Result<i64> {
        let _changing = self.change_watches()?;
        let own = self.shadows_of(id)?;
        if !own.is_empty() {
            let watched = watched_by_own(fd)?;
            for shadow in own {
                let path = self.shadow_path(id, &shadow);
                let there = rustix::fs::stat(&path).is_ok_and(|s| {
                    let same = |w: &Watched| (w.inode, w.device) == (s.st_ino, device_of(&s));
                    watched.iter().any(same)
                });
                if !there {
                    continue;
                }
                if mask & libc::IN_MASK_CREATE != 0 {
                    return Err(Errno::EXIST);
                }
                let before = if mask & libc::IN_MASK_ADD != 0 {
                    shadow.mask
                } else {
                    0
                };
                let changed = Shadow {
                    mask: mask & KEPT_MASK | before,
                    ..shadow
                };
                let new = self.shadow_path(id, &changed);
                rustix::fs::rename(&path, &new)?;
                return add(&new);
            }
        }
        let number = self.watch_state().shadows.fetch_add(1, Relaxed);
        let shadow = Shadow {
            number,
            mask: mask & KEPT_MASK,
        };
        let path = self.shadow_path(id, &shadow);
        self.make_shadow(id, &path, number)?;
        self.watch_state().set(id);
        let added = add(&path);
        if added.is_err() {
            self.remove_shadow(&path);
        }
        added
    }

    fn make_shadow(&self, id: ObjectId, path: &Path, number: u64) -> Result<()> {
        let private = Mode::RWXU;
        for _ in 0..super::TRIES {
            match rustix::fs::mkdir(path, private) {
                Err(Errno::NOENT) => {
                    for dir in ["", "names", "by-inode"] {
                        let _ = rustix::fs::mkdir(self.watch_path(dir), private);
                    }
                    let _ = rustix::fs::mkdir(self.object_dir(id), private);
                }
                // The shadow is from a time before the control region was rebuilt.
                Err(Errno::EXIST) => self.remove_shadow(path),
                Err(e) => return Err(e),
                Ok(()) => {
                    let inode = rustix::fs::stat(path)?.st_ino;
                    let link = self.inode_link(inode);
                    // Removes a link that an earlier shadow with the same inode number has left.
                    let _ = rustix::fs::unlink(&link);
                    return rustix::fs::symlink(format!("{:x} {number:x}", id.0), &link)
                        .inspect_err(|_| self.remove_shadow(path));
                }
            }
        }
        Err(Errno::NOENT)
    }

    /// Removes a shadow. The kernel then sends IN_IGNORED to the descriptors that watch it.
    pub(super) fn remove_shadow(&self, path: &Path) {
        if let Ok(s) = rustix::fs::stat(path) {
            let _ = rustix::fs::unlink(self.inode_link(s.st_ino));
        }
        // A process that is sending an event has a file in the shadow for a moment.
        for _ in 0..1000 {
            if rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) != Err(Errno::NOTEMPTY) {
                break;
            }
            for left in names_in(path).unwrap_or_default() {
                let _ = rustix::fs::unlink(path.join(left));
            }
        }
    }

    /// Sends a shadow its only event, and removes the shadow.
    pub(super) fn notify_once(&self, id: ObjectId, shadow: &Shadow, file: &[u8]) -> Result<()> {
        let spent = self.object_dir(id).join(format!("-{:x}", shadow.number));
        // Only the process that succeeds in renaming the shadow sends the event.
        rustix::fs::rename(self.shadow_path(id, shadow), &spent)?;
        let told = poke(&spent, file);
        self.remove_shadow(&spent);
        told
    }

    /// Ends all watches of an object that was removed.
    pub(super) fn end_watches(&self, id: ObjectId) {
        let Ok(_changing) = self.change_watches() else {
            return;
        };
        for shadow in self.shadows_of(id).unwrap_or_default() {
            self.remove_shadow(&self.shadow_path(id, &shadow));
        }
        let _ = rustix::fs::rmdir(self.object_dir(id));
    }

    /// Returns the watches of the inotify descriptor `fd` on the pool: watch descriptors, and
    /// inodes of shadows.
    pub fn watched_by(&self, fd: i32) -> Vec<(i32, u64)> {
        let Ok(ours) = rustix::fs::stat(self.watch_path("by-inode")) else {
            return Vec::new();
        };
        let watched = watched_by_own(fd).unwrap_or_default();
        let device = device_of(&ours);
        let here = watched.iter().filter(|w| w.device == device);
        here.map(|w| (w.wd, w.inode)).collect()
    }

    /// Removes the shadow with this inode, if there is one. No process watches the shadow any more.
    pub fn unwatch(&self, inode: u64) {
        if let Ok(_changing) = self.change_watches() {
            self.remove_unwatched(inode);
        }
    }

    pub(super) fn remove_unwatched(&self, inode: u64) {
        let link = self.inode_link(inode);
        let Ok(text) = rustix::fs::readlink(&link, Vec::new()) else {
            return;
        };
        let _ = rustix::fs::unlink(&link);
        let ids = text.to_str().ok().and_then(|t| t.split_once(' '));
        let Some((id, number)) = ids else { return };
        let dir = self.watch_path(id);
        for name in names_in(&dir).unwrap_or_default() {
            if name.rsplit(['.', '-']).next() == Some(number) {
                self.remove_shadow(&dir.join(name));
            }
        }
        let _ = rustix::fs::rmdir(&dir);
    }
}
