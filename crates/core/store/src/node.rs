//! [`Store`]: an open node store in one process.
//!
//! This module holds the parts of a store, opens it, and defines what the store asks of the layer
//! above ([`Remote`]). `node/attachment.rs` takes and keeps the process's slot. Higher modules add
//! the operations as methods of [`Store`].

mod attachment;

pub use attachment::Attachment;

use crate::control_region::Control;
use crate::extent_cache::ExtentCache;
use crate::lock_request::Owner;
use crate::quiescence::{self, Quiet, Section};
use crate::record::{Entry, Inode};
use crate::record_files::RecordFiles;
use crate::ring::Journal;
use crate::{Extent, Medium, NodeId, ObjectId, Slot};
use rustix::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A node store, opened by this process.
pub struct Store {
    pub control: Control,
    pub(crate) control_path: PathBuf,
    pub media: Vec<Medium>,
    /// The record files, one for each shard.
    pub files: RecordFiles,
    /// This process's slot.
    pub attachment: Attachment,
    /// Whether this process repairs the store.
    pub(crate) mending: AtomicBool,
    pub(crate) cache: ExtentCache,
    pub(crate) journal: Option<Journal>,
    /// Access to the objects of other nodes, if this is the share of one node among several.
    pub remote: Option<std::sync::Arc<dyn Remote>>,
    /// The process's part in the node's tracing, as long as the store is open.
    _traced: forebay_trace::Attached,
}

/// Services of the layer above for objects of other nodes. A store alone in its pool has none.
pub trait Remote: Send + Sync {
    /// This node's number.
    fn node(&self) -> NodeId;

    /// Whether this node is the home of `slot`.
    fn keeps(&self, slot: Slot) -> bool;

    /// Notifies the home of another node's object that this node's last use of it, `number`, has
    /// ended. Doesn't wait.
    fn closed(&self, id: ObjectId, number: u64);

    /// Notifies the home of another node's object that `owner`, of this node, has released its
    /// locks.
    ///
    /// # Errors
    /// EIO and the like; no error if the object's home can't be reached.
    fn unlocked(&self, store: &Store, id: ObjectId, owner: Owner) -> Result<()>;

    /// The attributes of an object of any node, and the tail of its record.
    ///
    /// # Errors
    /// ENOENT; EHOSTDOWN.
    fn inode_of(&self, store: &Store, id: ObjectId) -> Result<(Inode, Vec<u8>)>;

    /// The entry `name` of `parent`, on any node.
    ///
    /// # Errors
    /// EHOSTDOWN; EIO.
    fn entry_of(&self, store: &Store, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>>;

    /// Laminates an object if lamination is due, when a description of the object has ended. The
    /// object is another node's, or other nodes have parts of it. `live`: its live entry on this
    /// node.
    ///
    /// # Errors
    /// ENOSPC: the object isn't laminated; EHOSTDOWN.
    fn written(&self, store: &Store, id: ObjectId, live: Option<u32>) -> Result<()>;
}

impl Store {
    /// Opens a store. Record files and segments are opened when they are first used.
    ///
    /// # Errors
    /// ENODATA or EINVAL if `control` isn't the control region of a store of this version;
    /// errors of open and mmap.
    pub fn open(
        control_path: &Path,
        records: &Path,
        record_bytes: usize,
        media: Vec<Medium>,
        journal: Option<Journal>,
    ) -> Result<Store> {
        let (control, traced) = Store::open_control(control_path)?;
        let files = RecordFiles::new(records, control.shards(), record_bytes);
        Ok(Store {
            control,
            control_path: control_path.to_owned(),
            media,
            files,
            attachment: Attachment::none(),
            mending: AtomicBool::new(false),
            cache: ExtentCache::new(),
            journal,
            remote: None,
            _traced: traced,
        })
    }

    /// Takes a store over into this process's namespaces. From now on, processes of another PID
    /// namespace that still use the store count as dead, and inodes have the ids of this user
    /// namespace.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn take_over(control_path: &Path) -> Result<()> {
        let (control, _) = Store::open_control(control_path)?;
        control.header().take_over();
        Ok(())
    }

    fn open_control(path: &Path) -> Result<(Control, forebay_trace::Attached)> {
        let fd = rustix::fs::open(
            path,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let control = Control::map(&fd)?.in_file(path);
        let rings = path.with_file_name(crate::RINGS);
        let attached = forebay_trace::attach(&fd, crate::control_region::TRACED_AT as u64, &rings)?;
        Ok((control, attached))
    }

    /// Makes this the store of one node among several.
    pub fn among(mut self, remote: std::sync::Arc<dyn Remote>) -> Store {
        self.remote = Some(remote);
        self
    }

    /// The media, fastest first.
    pub fn media(&self) -> &[Medium] {
        &self.media
    }

    /// The control region.
    pub fn control(&self) -> &Control {
        &self.control
    }

    // ---- sections ----

    /// Begins a section, waiting for the end of quiescence if there is one: see
    /// [`crate::quiescence`].
    ///
    /// # Errors
    /// ETIMEDOUT if quiescence doesn't end; EAGAIN if this process can't attach.
    #[inline]
    pub fn section(&self) -> Result<Section<'_>> {
        quiescence::begin(&self.control, || self.process_slot())
    }

    /// Waits until all sections have ended, and keeps new ones from beginning, for at most
    /// `timeout`. Not to be called inside a section.
    ///
    /// # Errors
    /// EBUSY if a section doesn't end in time.
    pub(crate) fn quiet(&self, timeout: Duration) -> Result<Quiet<'_>> {
        quiescence::quiet(&self.control, self.process_slot()?, timeout)
    }

    // ---- record files and media ----

    /// Attaches the process, and opens all record files and segments now. A process that becomes
    /// another user afterwards needs nothing more of the pool's directory. Goes on after a failure.
    ///
    /// # Errors
    /// The first one, of those of attaching, open and mmap.
    pub fn open_all(&self) -> Result<()> {
        let attached = self.process_slot().map(drop);
        let records = self.open_records();
        let files = self.open_files();
        let for_reading = (self.media.iter())
            .map(|m| m.file_for_reading().map(drop))
            .fold(Ok(()), Result::and);
        attached.and(records).and(files).and(for_reading)
    }

    /// Opens all segments and the journal now.
    ///
    /// # Errors
    /// Those of open and mmap.
    pub fn open_files(&self) -> Result<()> {
        self.media.iter().try_for_each(|m| m.file().map(|_| ()))?;
        self.durability().open_journal()
    }

    /// Returns extents to their media.
    pub(crate) fn free_extents(&self, extents: impl IntoIterator<Item = Extent>) {
        for e in extents {
            if let Some(m) = self.media.get(e.medium()) {
                m.free(e);
            }
        }
    }
}
