//! The back end `forebay`: a collection's bytes are the file `/WORKSPACE/NAME` of a pool.
//!
//! Unmodified programs see the files under the pool's prefix, with the semantics of its files. If
//! the session's metadata are in the same pool, a collection's file is also its record: the
//! metadata store creates and removes it.
//!
//! The collection's controls are declared for its file, and the pool applies them for every program
//! that opens it. `temporality` is a hint: the pool ignores a temporality that its media can't
//! follow.

use super::{Address, Backend, Mapped, Object};
use crate::mapped::Access;
use crate::pool::Attached;
use crate::process::Generation;
use crate::{Error, Result};
use forebay_client::impossible;
use forebay_controls::{Controls, Declared, Mutability, Persistence, Temporality};
use forebay_posix::{Entry, ObjectId};
use forebay_runtime::threads::lock;
use libc::{O_CREAT, O_EXCL, O_NOFOLLOW, O_RDONLY, O_RDWR};
use rustix::io::Errno;
use std::sync::Mutex;

/// The back end `forebay`.
pub struct Forebay {
    fs: Attached,
    /// Whether the files are the metadata store's records, so that the store creates and removes
    /// them.
    files_are_records: bool,
}

/// Access to the open pool file of an object.
pub struct PoolFile<'a>(&'a Open);

struct Open {
    fs: Attached,
    open: Option<u32>,
    /// Serialises appends, which use the open file description's offset.
    end: Mutex<()>,
    generation: Generation,
    path: String,
}

impl Forebay {
    /// Opens the back end for the pool of this name; an empty name selects `$FOREBAY_POOL`, or else
    /// `default`.
    ///
    /// # Errors
    /// If the pool can't be opened.
    pub fn open(pool: &str) -> Result<Forebay> {
        Attached::open(pool).map(|fs| Forebay::over(fs, false))
    }

    pub(crate) fn over(fs: Attached, files_are_records: bool) -> Forebay {
        Forebay {
            fs,
            files_are_records,
        }
    }

    /// Declares the controls of a new collection for its file.
    fn declare(&self, address: &Address, controls: &Controls) -> Result<()> {
        let declared = self.in_file(controls);
        if declared.is_nothing() {
            return Ok(());
        }
        let id = self.id(address);
        id.and_then(|id| self.fs.set_controls(id, declared))
            .map_err(|e| Error::of(format!("can't declare {declared} of {}", path(address)), e))
    }

    /// Returns the controls of the collection that are declared for its file.
    fn in_file(&self, controls: &Controls) -> Declared {
        let needed = Declared::needed_for(controls);
        let hint = Controls {
            temporality: controls.temporality,
            ..Controls::default()
        };
        Declared {
            temporality: needed.temporality.filter(|_| self.cannot(&hint).is_none()),
            // `failure` concerns batches, not the file.
            failure: None,
            ..needed
        }
    }

    /// Returns why the pool can't keep the controls; None if it can.
    fn cannot(&self, controls: &Controls) -> Option<String> {
        let config = self.fs.pool().config();
        impossible(controls, &config.media, config.origin.is_some())
    }

    /// Returns the pool.
    pub(crate) fn pool(&self) -> &Attached {
        &self.fs
    }

    /// Returns the id of a collection's file. If files are records, the id is taken from the UUID,
    /// without a look-up of the name.
    fn id(&self, address: &Address) -> std::result::Result<ObjectId, Errno> {
        match self
            .files_are_records
            .then(|| crate::meta::object_of(&self.fs, address.uuid))
        {
            Some(id) => id.ok_or(Errno::NOENT),
            None => Ok(ObjectId(self.fs.stat(path(address).as_bytes(), false)?.ino)),
        }
    }

    /// Creates the collection's file and opens it.
    fn create_file(&self, address: &Address) -> std::result::Result<Open, Errno> {
        let flags = O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW;
        let open = self
            .fs
            .open(path(address).as_bytes(), flags, self.fs.mode(0o666))?;
        Ok(self.opened(open.into_open(), address))
    }

    /// Opens the collection's file.
    fn open_file(
        &self,
        address: &Address,
        controls: &Controls,
    ) -> std::result::Result<Open, Errno> {
        let entry = Entry {
            id: self.id(address)?,
            kind: libc::S_IFREG,
        };
        // A laminated file can only be opened for reading. If the file is the record, the record's
        // `mutability` is `immutable` for every laminated file, unless the file was declared
        // immutable after the record was read.
        let may_be = !self.files_are_records || controls.mutability == Mutability::Immutable;
        let sealed = || self.fs.controls_of(entry.id).map(|(_, sealed)| sealed);
        let open = if may_be && sealed()? {
            self.open_for(entry, O_RDONLY, address)
        } else {
            match self.open_for(entry, O_RDWR, address) {
                Err(Errno::PERM) if !may_be && sealed()? => self.open_for(entry, O_RDONLY, address),
                opened => opened,
            }
        };
        Ok(self.opened(open?, address))
    }

    fn open_for(
        &self,
        entry: Entry,
        access: i32,
        address: &Address,
    ) -> std::result::Result<u32, Errno> {
        match crate::meta::object_of(&self.fs, address.workspace_uuid) {
            Some(parent) if self.files_are_records => {
                let name = address.name.as_bytes();
                self.fs.open_object(entry, access, false, parent, name)
            }
            _ => {
                let flags = access | O_NOFOLLOW;
                let place = self.fs.open(path(address).as_bytes(), flags, 0)?;
                Ok(place.into_open())
            }
        }
    }

    fn opened(&self, open: u32, address: &Address) -> Open {
        Open {
            fs: self.fs.clone(),
            open: Some(open),
            end: Mutex::new(()),
            generation: Generation::now(),
            path: path(address),
        }
    }
}

fn path(address: &Address) -> String {
    format!("/{}/{}", address.workspace, address.name)
}

impl Backend for Forebay {
    fn kind(&self) -> &str {
        "forebay"
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn place(&self) -> String {
        let config = self.fs.pool().config();
        format!("the pool '{}' ({})", config.name, config.uuid)
    }

    fn supports(&self, controls: &Controls) -> Result<()> {
        // With `persistence=process`, the pool removes the file when the process that created it
        // ends. A record in another store would then refer to a missing file.
        if controls.persistence == Persistence::Process && !self.files_are_records {
            return Err(Error::unsupported(
                "the back end 'forebay' can't keep persistence=process where the metadata lie elsewhere",
            ));
        }
        let wanted = Controls {
            temporality: Temporality::default(),
            ..*controls
        };
        match self.cannot(&wanted) {
            Some(why) => Err(Error::unsupported(format!("the back end 'forebay': {why}"))),
            None => Ok(()),
        }
    }

    fn declared_of_record(&self, controls: &Controls) -> Declared {
        if self.files_are_records {
            self.in_file(controls)
        } else {
            Declared::NOTHING
        }
    }

    fn create(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>> {
        if self.files_are_records {
            return self.open(address, controls);
        }
        let cannot = |e| Error::of(format!("can't make {} in the pool", path(address)), e);
        // Another process may remove the workspace's directory between its creation and the file's.
        for _ in 0..100 {
            match self.create_file(address) {
                Ok(open) if self.in_file(controls).is_nothing() => return Ok(Box::new(open)),
                Ok(open) => {
                    drop(open);
                    self.declare(address, controls)?;
                    return self.open(address, controls);
                }
                Err(Errno::NOENT) => {
                    let dir = format!("/{}", address.workspace);
                    match self.fs.mkdir(dir.as_bytes(), self.fs.mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(e) => return Err(cannot(e)),
                    }
                }
                Err(e) => return Err(cannot(e)),
            }
        }
        Err(cannot(Errno::BUSY))
    }

    fn open(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>> {
        let opened = self.open_file(address, controls);
        let cannot = |e| Error::of(format!("can't open {} in the pool", path(address)), e);
        Ok(Box::new(opened.map_err(cannot)?))
    }

    fn delete(&self, address: &Address) -> Result<()> {
        if self.files_are_records {
            return Ok(());
        }
        match self.fs.unlink(path(address).as_bytes()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => {
                return Err(Error::of(
                    format!("can't remove {} from the pool", path(address)),
                    e,
                ));
            }
        }
        // Removing the directory fails, as it should, if it has other files.
        let _ = self.fs.rmdir(format!("/{}", address.workspace).as_bytes());
        Ok(())
    }
}

impl Open {
    fn open(&self) -> u32 {
        self.open.expect("only close takes it")
    }

    fn failed(&self, what: &str, errno: Errno) -> Error {
        Error::of(format!("can't {what} {} in the pool", self.path), errno)
    }
}

impl Object for Open {
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self
                .fs
                .read_chunk(self.open(), &mut to[done..], at + done as u64)
            {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => return Err(self.failed("read", e)),
            }
        }
        Ok(done)
    }

    fn write(&self, from: &[u8], at: u64) -> Result<()> {
        let mut done = 0;
        while done < from.len() {
            match self
                .fs
                .write_chunk(self.open(), &from[done..], at + done as u64)
            {
                Ok(0) => return Err(self.failed("write", Errno::NOSPC)),
                Ok(n) => done += n,
                Err(e) => return Err(self.failed("write", e)),
            }
        }
        Ok(())
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        let _turn = lock(&self.end);
        match self.fs.append_chunk(self.open(), from) {
            Ok((at, n)) if n == from.len() => Ok(at),
            // A second write could put the rest behind bytes that another process appended
            // meanwhile.
            Ok(_) => Err(self.failed("append all to", Errno::NOSPC)),
            Err(e) => Err(self.failed("append to", e)),
        }
    }

    fn truncate(&self, size: u64) -> Result<()> {
        let cut = self.fs.truncate_open(self.open(), size);
        cut.map_err(|e| self.failed("truncate", e))
    }

    fn size(&self) -> Result<u64> {
        // Publishes buffered bytes first, so that the size includes them.
        let size = self.fs.buffers().publish(self.open());
        let size = size.and_then(|()| self.fs.live_of(self.open()));
        let size = size.and_then(|live| self.fs.cluster().data().size(live));
        size.map_err(|e| self.failed("stat", e))
    }

    fn sync(&self) -> Result<()> {
        let synced = self.fs.sync_open(self.open());
        synced.map_err(|e| self.failed("sync", e))
    }

    fn map(&self, at: u64, len: usize, access: Access) -> Result<Mapped> {
        let mapped = Mapped::of_open(&self.fs, self.open(), at, len, access);
        mapped.map_err(|e| e.about(format!("{} in the pool", self.path)))
    }

    fn copy_to(&self, at: u64, len: u64, to: &dyn Object, to_at: u64) -> Result<Option<u64>> {
        let Some(PoolFile(to)) = to.in_pool().filter(|to| to.0.fs.is(&self.fs)) else {
            return Ok(None);
        };
        let mut done = 0;
        while done < len {
            let (from, into) = (Some(at + done), Some(to_at + done));
            let copied = (self.fs).copy_range((self.open(), from), (to.open(), into), len - done);
            match copied {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => {
                    let text = format!("can't copy {} to {} in the pool", self.path, to.path);
                    return Err(Error::of(text, e));
                }
            }
        }
        Ok(Some(done))
    }

    fn in_pool(&self) -> Option<PoolFile<'_>> {
        Some(PoolFile(self))
    }

    fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some(open) => self
                .fs
                .release(open)
                .map_err(|e| self.failed("write back", e)),
            None => Ok(()),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A forked child must not close its parent's file.
        if self.generation.is_now() {
            let _ = self.close();
        }
    }
}
