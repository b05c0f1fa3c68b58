//! A pool's files by path. Paths are inside the pool (`/case/mesh.h5`), without the prefix under
//! which programs see it.
//!
//! This module caches nothing: each call sees the effects of earlier calls of all processes. All
//! sessions of the process and all `Pool` objects share one open pool. A forked child opens the
//! pool again; its parent's objects raise EPERM.

use crate::bytes::{Borrowed, Unfilled, filled};
use crate::chunk::{Chunk, Memory};
use crate::error::{closed, raise, raise_of};
use forebay_controls::Declared;
use forebay_iov::chunk;
use forebay_iov::{Access, Attached, Errno, PoolFile};
use forebay_posix as posix;
use forebay_runtime::threads::{read_lock, write_lock};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::RwLock;

/// Attributes of a file: (inode, mode, nlink, uid, gid, size, atime, mtime, ctime, btime); times in
/// nanoseconds since 1970.
type Attributes = (u64, u32, u64, u32, u32, u64, i64, i64, i64, i64);

fn attributes(s: &posix::Stat) -> Attributes {
    (
        s.ino,
        s.mode,
        s.nlink.into(),
        s.uid,
        s.gid,
        s.size,
        s.atime,
        s.mtime,
        s.ctime,
        s.btime,
    )
}

/// An open pool. `Pool("")` opens the pool that `$FOREBAY_POOL` names, else `default`.
#[pyclass(frozen, subclass, weakref, module = "forebay._native")]
pub struct Pool {
    fs: RwLock<Option<Attached>>,
}

impl Pool {
    fn attached(&self) -> PyResult<Attached> {
        let fs = read_lock(&self.fs);
        let fs = fs.clone().ok_or_else(|| closed("pool"))?;
        fs.check().map_err(raise)?;
        Ok(fs)
    }

    /// Runs one file system call without the interpreter's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        path: &str,
        f: impl FnOnce(&posix::Fs, &[u8]) -> posix::Result<T> + Send,
    ) -> PyResult<T> {
        let fs = self.attached()?;
        let done = py.detach(|| f(&fs, path.as_bytes()));
        done.map_err(|e| raise_of(e, path))
    }
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (name = ""))]
    fn new(py: Python<'_>, name: &str) -> PyResult<Pool> {
        let fs = py.detach(|| Attached::open(name)).map_err(raise)?;
        Ok(Pool {
            fs: RwLock::new(Some(fs)),
        })
    }

    /// The pool's name.
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.attached()?.pool().config().name.clone())
    }

    /// The path under which programs see the pool (`/fb`).
    #[getter]
    fn mount(&self) -> PyResult<String> {
        Ok(String::from_utf8_lossy(self.attached()?.mount()).into_owned())
    }

    /// Returns the capacity of the whole pool, and the used part of it. Bytes.
    fn capacity(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let fs = self.attached()?;
        Ok(py.detach(|| fs.pool().capacity()))
    }

    /// Closes this object. Its files and sessions stay usable.
    fn close(&self) {
        *write_lock(&self.fs) = None;
    }

    /// Whether this object was closed.
    #[getter]
    fn closed(&self) -> bool {
        read_lock(&self.fs).is_none()
    }

    /// Opens a file with the `flags` of `os.open`.
    #[pyo3(signature = (path, flags = 0, mode = 0o666))]
    fn open_file(&self, py: Python<'_>, path: &str, flags: i32, mode: u32) -> PyResult<File> {
        let fs = self.attached()?;
        let mode = fs.mode(mode);
        let open = py.detach(|| {
            fs.open(path.as_bytes(), flags, mode)
                .map(posix::File::into_open)
        });
        let open = open.map_err(|e| raise_of(e, path))?;
        Ok(File {
            path: path.to_owned(),
            open: RwLock::new(Some(PoolFile::new(fs, open))),
        })
    }

    /// Returns the attributes of the object at a path.
    #[pyo3(signature = (path, follow = true))]
    fn stat(&self, py: Python<'_>, path: &str, follow: bool) -> PyResult<Attributes> {
        self.call(py, path, |fs, path| {
            fs.stat(path, follow).map(|s| attributes(&s))
        })
    }

    /// Returns a directory's entries, unsorted: (name, mode), where the mode has only the type
    /// bits.
    fn list(&self, py: Python<'_>, path: &str) -> PyResult<Vec<(String, u32)>> {
        let list = self.call(py, path, |fs, path| fs.list(path))?;
        Ok(list.into_iter().map(|e| (text(&e.name), e.kind)).collect())
    }

    /// Returns a directory's entries with their attributes. Leaves out names that are removed
    /// meanwhile.
    fn scan(&self, py: Python<'_>, path: &str) -> PyResult<Vec<(String, Attributes)>> {
        let scan = self.call(py, path, |fs, path| {
            let mut all = Vec::new();
            for entry in fs.list(path)? {
                let mut of_it = path.to_vec();
                if of_it.last() != Some(&b'/') {
                    of_it.push(b'/');
                }
                of_it.extend_from_slice(&entry.name);
                match fs.stat(&of_it, false) {
                    Ok(stat) => all.push((entry.name, attributes(&stat))),
                    Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(all)
        })?;
        Ok(scan.into_iter().map(|(name, a)| (text(&name), a)).collect())
    }

    /// Returns a file's bytes from `start` to `end` (None: its end), in one call.
    #[pyo3(signature = (path, start = 0, end = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        start: u64,
        end: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fs = self.attached()?;
        let opened = py.detach(|| {
            let file = fs.open(path.as_bytes(), libc::O_RDONLY, 0)?;
            let stat = file.stat()?;
            match stat.mode & libc::S_IFMT {
                libc::S_IFDIR => Err(Errno::ISDIR),
                _ => Ok((file, stat.size)),
            }
        });
        let (file, size) = opened.map_err(|e| raise_of(e, path))?;
        let end = end.map_or(size, |end| end.min(size));
        let len = usize::try_from(end.saturating_sub(start)).map_err(|_| too_long())?;
        filled(py, len, |memory| {
            read_all(&file, memory, start).map_err(|e| raise_of(e, path))
        })
    }

    /// Creates a file with these bytes, or replaces an existing file's bytes, in one call.
    #[pyo3(signature = (path, data, exclusive = false, mode = 0o666))]
    fn write(
        &self,
        py: Python<'_>,
        path: &str,
        data: &Bound<'_, PyAny>,
        exclusive: bool,
        mode: u32,
    ) -> PyResult<()> {
        let data = Borrowed::of(data, false)?;
        let fs = self.attached()?;
        let mode = fs.mode(mode);
        let flags = if exclusive {
            libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL
        } else {
            libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC
        };
        let data = &data;
        let done = py.detach(|| {
            let file = fs.open(path.as_bytes(), flags, mode)?;
            write_all(&file, data.as_ref(), 0)?;
            file.close()
        });
        done.map_err(|e| raise_of(e, path))
    }

    /// Creates a directory. FileExistsError if the name exists.
    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: &str, mode: u32) -> PyResult<()> {
        let mode = self.attached()?.mode(mode);
        self.call(py, path, |fs, path| fs.mkdir(path, mode))
    }

    /// Removes an empty directory. OSError (ENOTEMPTY) if it has entries.
    fn rmdir(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.rmdir(path))
    }

    /// Removes a name. The file is removed when it has no names and no process has it open.
    fn unlink(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.unlink(path))
    }

    /// Renames an object, as `os.rename` does: atomically replaces an existing object that has the
    /// new name.
    fn rename(&self, py: Python<'_>, path: &str, to: &str) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.rename(path, to.as_bytes()))
    }

    /// Adds a name (hard link) to a file. FileExistsError if the name exists.
    fn link(&self, py: Python<'_>, path: &str, to: &str) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.link(path, to.as_bytes()))
    }

    /// Creates a symbolic link at `path`. FileExistsError if the name exists.
    fn symlink(&self, py: Python<'_>, target: &str, path: &str) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.symlink(target.as_bytes(), path))
    }

    /// Returns the target of a symbolic link. OSError (EINVAL) if the object isn't one.
    fn readlink(&self, py: Python<'_>, path: &str) -> PyResult<String> {
        let target = self.call(py, path, |fs, path| fs.readlink(path))?;
        Ok(text(&target))
    }

    /// Sets the permission bits.
    fn chmod(&self, py: Python<'_>, path: &str, mode: u32) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.chmod(path, mode))
    }

    /// Sets access and modification times: nanoseconds since 1970; None leaves a time unchanged.
    fn set_times(
        &self,
        py: Python<'_>,
        path: &str,
        atime: Option<i64>,
        mtime: Option<i64>,
    ) -> PyResult<()> {
        self.call(py, path, |fs, path| fs.set_times(path, atime, mtime, true))
    }

    /// Truncates a file to `size` bytes, or extends it with zeros.
    fn truncate(&self, py: Python<'_>, path: &str, size: u64) -> PyResult<()> {
        self.call(py, path, |fs, path| {
            let file = fs.open(path, libc::O_WRONLY, 0)?;
            file.set_len(size)?;
            file.close()
        })
    }

    /// Copies a file's bytes inside the pool, sharing the pages where the pool can. Returns the
    /// number of bytes.
    fn copy(&self, py: Python<'_>, path: &str, to: &str) -> PyResult<u64> {
        let mode = self.attached()?.mode(0o666);
        self.call(py, path, |fs, path| {
            let from = fs.open(path, libc::O_RDONLY, 0)?;
            if from.stat()?.mode & libc::S_IFMT == libc::S_IFDIR {
                return Err(Errno::ISDIR);
            }
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
            let into = fs.open(to.as_bytes(), flags, mode)?;
            let mut done = 0;
            loop {
                match from.copy_to(done, &into, done, u64::from(u32::MAX))? {
                    0 => break,
                    n => done += n,
                }
            }
            into.close()?;
            Ok(done)
        })
    }

    /// Returns the names of the extended attributes.
    fn xattrs(&self, py: Python<'_>, path: &str) -> PyResult<Vec<String>> {
        let names = self.call(py, path, |fs, path| fs.xattrs(path, true))?;
        Ok(names.iter().map(|n| text(n)).collect())
    }

    /// Returns the value of an extended attribute. OSError (ENODATA) if it doesn't exist.
    fn xattr(&self, py: Python<'_>, path: &str, name: &str) -> PyResult<Vec<u8>> {
        self.call(py, path, |fs, path| fs.xattr(path, name.as_bytes(), true))
    }

    /// Sets an extended attribute, or replaces its value.
    fn set_xattr(&self, py: Python<'_>, path: &str, name: &str, value: Vec<u8>) -> PyResult<()> {
        self.call(py, path, |fs, path| {
            fs.set_xattr(path, name.as_bytes(), &value, true)
        })
    }

    /// Removes an extended attribute. OSError (ENODATA) if it doesn't exist.
    fn remove_xattr(&self, py: Python<'_>, path: &str, name: &str) -> PyResult<()> {
        self.call(py, path, |fs, path| {
            fs.remove_xattr(path, name.as_bytes(), true)
        })
    }

    /// Declares controls (`"mutability=append"`) for a file. For a directory, they apply to its
    /// future entries.
    fn declare(&self, py: Python<'_>, path: &str, controls: &str) -> PyResult<()> {
        let declared: Declared = controls
            .parse()
            .map_err(|e| PyValueError::new_err(format!("controls '{controls}': {e}")))?;
        self.call(py, path, |fs, path| {
            let id = posix::ObjectId(fs.stat(path, true)?.ino);
            fs.set_controls(id, declared)
        })
    }

    /// Returns the declared controls of the object at a path, as text.
    fn declared(&self, py: Python<'_>, path: &str) -> PyResult<String> {
        let (declared, _) = self.call(py, path, |fs, path| {
            fs.controls_of(posix::ObjectId(fs.stat(path, true)?.ino))
        })?;
        Ok(declared.to_string())
    }

    /// Maps a range of a file's bytes into this process's memory. The bytes must be on this node,
    /// in one piece.
    #[pyo3(signature = (path, start = 0, length = None, writable = false))]
    fn map(
        &self,
        py: Python<'_>,
        path: &str,
        start: u64,
        length: Option<u64>,
        writable: bool,
    ) -> PyResult<Chunk> {
        let fs = self.attached()?;
        let stat = py.detach(|| fs.stat(path.as_bytes(), true));
        let stat = stat.map_err(|e| raise_of(e, path))?;
        let length = length.unwrap_or_else(|| stat.size.saturating_sub(start));
        let length = usize::try_from(length).map_err(|_| too_long())?;
        let access = if writable {
            Access::Write
        } else {
            Access::Read
        };
        let id = posix::ObjectId(stat.ino);
        let mapped = py.detach(|| chunk::Chunk::map_file(&fs, id, start, length, access));
        let mapped = mapped.map_err(|e| raise(e.about(path)))?;
        Ok(Chunk(Memory::new(mapped, !writable)))
    }
}

/// An open file without a position. `forebay.Pool.open` returns a file object with one.
#[pyclass(frozen, module = "forebay._native")]
pub struct File {
    path: String,
    open: RwLock<Option<PoolFile>>,
}

impl File {
    fn with<T>(&self, f: impl FnOnce(&posix::File<'_>) -> posix::Result<T>) -> PyResult<T> {
        let open = read_lock(&self.open);
        let open = open.as_ref().ok_or_else(|| closed("file"))?;
        open.pool().check().map_err(raise)?;
        open.with(f).map_err(|e| self.failed(e))
    }

    fn failed(&self, e: Errno) -> PyErr {
        raise_of(e, &self.path)
    }
}

#[pymethods]
impl File {
    /// Reads at offset `at` into a writable buffer. Returns the number of bytes; 0 at the end of
    /// the file.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, at: u64) -> PyResult<usize> {
        let mut buffer = Borrowed::of(buffer, true)?;
        let to = &mut buffer;
        py.detach(|| self.with(|file| file.read_at(to.as_mut(), at)))
    }

    /// Returns the bytes from `at` to the end of the file.
    fn read_from<'py>(&self, py: Python<'py>, at: u64) -> PyResult<Bound<'py, PyAny>> {
        let size = self.size(py)?;
        let len = usize::try_from(size.saturating_sub(at)).map_err(|_| too_long())?;
        filled(py, len, |memory| {
            self.with(|file| read_all(file, memory, at))
        })
    }

    /// Writes all of a buffer at offset `at`. Returns the number of bytes.
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, at: u64) -> PyResult<usize> {
        let buffer = Borrowed::of(buffer, false)?;
        let from = &buffer;
        py.detach(|| self.with(|file| write_all(file, from.as_ref(), at)))?;
        Ok(buffer.len())
    }

    /// Returns the file's current size in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.with(|file| file.stat().map(|s| s.size)))
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        py.detach(|| self.with(|file| file.set_len(size)))
    }

    /// Makes written bytes durable, as fsync(2) does.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(|file| file.sync()))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Attributes> {
        py.detach(|| self.with(|file| file.stat().map(|s| attributes(&s))))
    }

    /// Closes the file. Closing it again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let open = py.detach(|| {
            let mut open = write_lock(&self.open);
            open.take().map_or(Ok(()), PoolFile::close)
        });
        open.map_err(|e| self.failed(e))
    }

    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    #[getter]
    fn closed(&self) -> bool {
        read_lock(&self.open).is_none()
    }
}

/// Reads from offset `at` until `memory` is full or the file ends. Returns the number of bytes.
fn read_all(file: &posix::File<'_>, memory: &mut Unfilled, at: u64) -> posix::Result<usize> {
    let mut done = 0;
    loop {
        let to = memory.rest(done);
        if to.is_empty() {
            return Ok(done);
        }
        match file.read_into(to, at + done as u64)? {
            0 => return Ok(done),
            n => done += n,
        }
    }
}

fn write_all(file: &posix::File<'_>, bytes: &[u8], at: u64) -> posix::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], at + done as u64)? {
            0 => return Err(Errno::NOSPC),
            n => done += n,
        }
    }
    Ok(())
}

/// Converts a name. Bytes that aren't UTF-8 become replacement characters, as in [`forebay_iov`].
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn too_long() -> PyErr {
    PyValueError::new_err("more bytes than fit into memory")
}
