//! FIFOs and Unix sockets: names in the pool, each with a stand-in in the kernel.
//!
//! The object in the pool has the name, the permissions and the times. Processes communicate
//! through a FIFO or socket of the kernel in the pool's own directory, the *stand-in*. The stand-in
//! is named by the object's id, made when the object is first opened or bound, and removed with it.

use crate::Fs;
use crate::cred::WRITE;
use crate::path::Place;
use forebay_store::{Entry, ObjectId};
use libc::{S_IFIFO, S_IFSOCK};
use rustix::fs::{FileType, Mode};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Fs {
    fn stand_in(&self, id: ObjectId) -> Result<CString> {
        let dir = self.pool().dir().join("nodes");
        match rustix::fs::mkdir(&dir, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let path = dir.join(format!("{:x}", id.0));
        CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
    }

    /// The path of the symbolic link that stores, as its target, the path to which a program bound
    /// the socket of `stand_in`.
    ///
    /// # Errors
    /// None in practice: the path has no zero byte.
    pub fn label(&self, stand_in: &CStr) -> Result<CString> {
        CString::new([stand_in.to_bytes(), b".path"].concat()).map_err(|_| Errno::INVAL)
    }

    /// As [`Fs::label`], for an address that the kernel returned; None if the address isn't a
    /// stand-in's.
    pub fn label_of(&self, address: &CStr) -> Option<CString> {
        let address_dir = Path::new(OsStr::from_bytes(address.to_bytes())).parent()?;
        let is_stand_in = address_dir == self.pool().dir().join("nodes");
        is_stand_in.then(|| self.label(address).ok()).flatten()
    }

    /// The kernel's FIFO to open instead of the FIFO at `place`; None if open(2) with these
    /// flags doesn't open a FIFO there.
    ///
    /// # Errors
    /// EACCES; errors of making the FIFO.
    pub fn fifo(&self, place: &Place, flags: i32) -> Result<Option<(ObjectId, CString)>> {
        let not_open = libc::O_PATH | libc::O_DIRECTORY;
        let Ok(Entry { id, kind: S_IFIFO }) = place.existing() else {
            return Ok(None);
        };
        if flags & not_open != 0
            || flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL
        {
            return Ok(None);
        }
        self.check_open(id, flags)?;
        let path = self.stand_in(id)?;
        match rustix::fs::mknodat(
            rustix::fs::CWD,
            &*path,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        ) {
            Ok(()) | Err(Errno::EXIST) => Ok(Some((id, path))),
            Err(e) => Err(e),
        }
    }

    /// Makes a socket's name. Returns the path to which the kernel's socket is to be bound.
    ///
    /// # Errors
    /// EADDRINUSE if the name exists; as mknod(2).
    pub fn make_socket(&self, place: &Place, mode: u32) -> Result<CString> {
        match self.make_node(place, S_IFSOCK | mode & 0o777, 0) {
            Ok(id) => self.stand_in(id),
            Err(Errno::EXIST) => Err(Errno::ADDRINUSE),
            Err(e) => Err(e),
        }
    }

    /// The kernel's socket to connect to instead of the one at `place`.
    ///
    /// # Errors
    /// ECONNREFUSED if it isn't a socket, EACCES, ENOENT.
    pub fn socket(&self, place: &Place) -> Result<CString> {
        let e = place.existing()?;
        if e.kind != S_IFSOCK {
            return Err(Errno::CONNREFUSED);
        }
        self.access(place, WRITE)?;
        self.stand_in(e.id)
    }

    /// Removes the stand-in of the object `e` if the object was removed. Called after a name of the
    /// object was removed.
    pub(crate) fn drop_stand_in(&self, e: Entry) {
        if matches!(e.kind, S_IFIFO | S_IFSOCK)
            && self.cluster().namespace().stat(e.id) == Err(Errno::NOENT)
            && let Ok(path) = self.stand_in(e.id)
        {
            // The stand-in may never have been made.
            let _ = rustix::fs::unlink(&*path);
            if let Ok(label) = self.label(&path) {
                let _ = rustix::fs::unlink(label);
            }
        }
    }
}
