//! Open file descriptions, by their numbers in the control region: the object of each, how it is
//! open, and the references to it.
//!
//! A [`Description`] only identifies a description, and holds no reference. Reading and writing
//! through a description is in `file.rs`, and its leases are in `leases.rs`.

use crate::{Entry, Fs, Name, Place, UNNAMED};
use forebay_store::control_region::{Open, open_flag};
use forebay_store::{NewOpen, ObjectId, Result};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// An open file description; see the module.
#[derive(Clone, Copy)]
pub struct Description<'a> {
    pub(crate) fs: &'a Fs,
    pub(crate) open: u32,
}

impl Fs {
    /// The open file description `open`.
    #[inline]
    pub fn description(&self, open: u32) -> Description<'_> {
        Description { fs: self, open }
    }

    /// Makes a description of one of the kernel's FIFOs. The FIFO stands in for the object `id`.
    ///
    /// # Errors
    /// ENFILE.
    pub fn describe_fifo(&self, id: ObjectId, flags: i32) -> Result<u32> {
        self.store()
            .objects()
            .open_create(&NewOpen::new(id, libc::S_IFIFO, flags as u32), None)
    }
}

impl<'a> Description<'a> {
    #[inline]
    pub(crate) fn record(self) -> &'a Open {
        self.fs.store().objects().open_file(self.open)
    }

    /// The object that is open.
    #[inline]
    pub fn id(self) -> ObjectId {
        ObjectId(self.record().id.load(Relaxed))
    }

    /// The object's type, as in its mode (S_IFMT).
    #[inline]
    pub fn kind(self) -> u32 {
        self.record().kind.load(Relaxed)
    }

    /// The directory of the name by which the object was opened.
    pub fn parent(self) -> ObjectId {
        ObjectId(self.record().parent.load(Relaxed))
    }

    /// The name by which the object was opened.
    pub fn name(self) -> Vec<u8> {
        let mut name = Vec::new();
        self.fs
            .store()
            .objects()
            .open_name(self.record(), &mut name);
        name
    }

    /// Flags of open(2), and the store's own bits.
    #[inline]
    pub fn flags(self) -> i32 {
        self.record().flags.load(Relaxed) as i32
    }

    /// The flags that fcntl(2) shows with F_GETFL.
    pub fn shown_flags(self) -> i32 {
        const ONCE: i32 =
            libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;
        self.flags() & !(ONCE | open_flag::OURS as i32)
    }

    /// Whether this description's open(2) made the file.
    pub fn has_made_it(self) -> bool {
        self.flags() & libc::O_CREAT != 0
    }

    /// Sets the status flags, as fcntl(2) does with F_SETFL.
    ///
    /// # Errors
    /// EPERM for O_NOATIME on another user's file; EINVAL for O_DIRECT on a directory.
    pub fn set_status(self, flags: i32) -> Result<()> {
        if flags & !self.flags() & libc::O_NOATIME != 0
            && !self.fs.cred().owns(self.fs.stat_open(self.open)?.uid)
        {
            return Err(Errno::PERM);
        }
        if flags & libc::O_DIRECT != 0 && self.kind() != libc::S_IFREG {
            return Err(Errno::INVAL);
        }
        self.set_flags(
            libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DIRECT,
            flags,
        );
        Ok(())
    }

    /// Sets the description's flags in `mask` to those in `flags`.
    pub fn set_flags(self, mask: i32, flags: i32) {
        debug_assert!(
            mask & libc::O_ACCMODE == 0,
            "a description keeps how it was opened"
        );
        let set = |old: u32| Some(old & !(mask as u32) | flags as u32 & mask as u32);
        let _ = self.record().flags.fetch_update(AcqRel, Acquire, set);
    }

    /// Current offset: bytes in a file, number of entries in a directory.
    #[inline]
    pub fn offset(self) -> u64 {
        self.record().offset.load(Relaxed)
    }

    /// Sets the offset, without checks.
    pub fn set_offset(self, offset: u64) {
        self.record().offset.store(offset, Release);
    }

    #[inline]
    pub fn is_dir(self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Whether the description was opened with O_PATH.
    #[inline]
    pub fn is_path_only(self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    /// Whether the description's descriptors refer to one of the kernel's FIFOs. Those of a FIFO
    /// opened with O_PATH are placeholders.
    #[inline]
    pub fn is_fifo(self) -> bool {
        self.kind() == libc::S_IFIFO && !self.is_path_only()
    }

    /// Whether writes go to the end of the file.
    #[inline]
    pub fn appends(self) -> bool {
        self.flags() & libc::O_APPEND != 0
    }

    /// Returns the [`Place`] of the open object, with the name by which it was opened.
    pub fn place(self) -> Place {
        let entry = Entry {
            id: self.id(),
            kind: self.kind(),
        };
        let name = match entry.kind {
            libc::S_IFDIR => Vec::new(),
            _ => self.name(),
        };
        let name = Name::new(&name).unwrap_or_else(|_| Name::empty());
        self.fs.resolver().place_of(self.parent(), name, entry)
    }

    /// Adds a name for the open file. A file without any name must have been made by O_TMPFILE.
    ///
    /// # Errors
    /// As linkat(2) with AT_EMPTY_PATH; ESTALE: the caller must resolve the target's path again.
    pub fn link(self, target: &Place) -> Result<()> {
        let id = self.id();
        if self.fs.stat_id(id)?.nlink == 0 {
            let exclusive = self.flags() & libc::O_EXCL != 0;
            if self.name() != UNNAMED || exclusive {
                return Err(Errno::NOENT);
            }
        }
        self.fs.make_link(id, target)
    }

    /// Notifies watchers of the file that it was opened and, if it existed before, truncated
    /// (`cut`).
    pub fn notify_opened(self, cut: bool) {
        let store = self.fs.store();
        store.watches().notify_opened(self.open);
        if cut {
            store.watches().notify_open(self.open, libc::IN_MODIFY);
        }
    }

    /// Number of references to the description, descriptors included, in all processes.
    pub fn uses(self) -> u32 {
        self.record().refs.load(Acquire)
    }

    /// Drops a reference. The last one closes the file. Buffered writes of this process stay
    /// buffered, see [`Fs::release`].
    ///
    /// # Errors
    /// ENOSPC, EIO: the record can't be written.
    pub fn release(self) -> Result<()> {
        let at_origin = self.fs.origin_gate().write_through_open(self.open);
        self.fs.store().objects().open_release(self.open)?;
        at_origin
    }

    /// Drops a closed descriptor's reference, after publishing the file's buffered writes and
    /// releasing all locks that the process has on the file, as POSIX requires. Locks of the
    /// description end with the description's last descriptor.
    ///
    /// # Errors
    /// As for [`Description::release`].
    pub fn close(self) -> Result<()> {
        self.fs.buffers().publish_unheard(self.open);
        // If a lock can't be given up now, the keeper releases it when the process ends.
        let _ = self.fs.store().locks().end_process_locks(self.id());
        self.release()
    }
}
