//! The verbs through their C interface. Loads the library beside this program, as any program
//! would.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

type Handle = *mut c_void;

#[repr(C)]
struct Pair {
    key: *const c_char,
    value: *const c_char,
}

#[repr(C)]
struct Options {
    size: usize,
    backend: *const c_char,
    controls: *const c_char,
    meta: *const Pair,
    meta_count: usize,
}

/// A workspace of a pool, in use until the process ends.
pub struct Workspace {
    library: Handle,
    session: Handle,
    workspace: Handle,
}

/// Returns the library's path: beside this program (in a build), or the installed one.
fn library() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| format!("my own program: {e}"))?;
    let places = ["libforebay_iov.so", "../lib/libforebay_iov.so"];
    let mut places = places.iter().map(|p| me.with_file_name(p));
    places
        .find(|p| p.is_file())
        .ok_or_else(|| format!("libforebay_iov.so isn't beside {}", me.display()))
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} contains NUL"))
}

impl Workspace {
    /// Opens the pool that the environment names, and the workspace in it.
    ///
    /// # Errors
    /// Those of the library, in words.
    pub fn load(name: &str) -> Result<Workspace, String> {
        let path = library()?;
        let file = text(&path.to_string_lossy())?;
        // SAFETY: the name is a string; our own library has no initialisers that need preparation.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(format!("{} can't be loaded", path.display()));
        }
        let mut it = Workspace {
            library,
            session: null_mut(),
            workspace: null_mut(),
        };
        let mut session: Handle = null_mut();
        // SAFETY: the functions have these types (include/forebay/iov.h); all pointers are valid
        // during the calls.
        unsafe {
            let open: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
                std::mem::transmute(it.function(c"iov_session_open")?);
            it.done(
                "opening the pool",
                open(c"pool".as_ptr(), &mut session).into(),
            )?;
            let create: unsafe extern "C" fn(
                Handle,
                *const c_char,
                *const Pair,
                usize,
                *mut Handle,
            ) -> c_int = std::mem::transmute(it.function(c"iov_workspace_create")?);
            let load: unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> c_int =
                std::mem::transmute(it.function(c"iov_workspace_load")?);
            let name = text(name)?;
            let mut workspace = null_mut();
            if create(session, name.as_ptr(), null(), 0, &mut workspace) != 0 {
                let loaded = load(session, name.as_ptr(), &mut workspace);
                it.done("the workspace", loaded.into())?;
            }
            (it.session, it.workspace) = (session, workspace);
        }
        Ok(it)
    }

    fn function(&self, name: &CStr) -> Result<Handle, String> {
        // SAFETY: the library stays loaded while `self` exists; `name` is a C string.
        let found = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        if found.is_null() {
            Err(format!("the library has no {}", name.to_string_lossy()))
        } else {
            Ok(found)
        }
    }

    fn done(&self, what: &str, result: i64) -> Result<i64, String> {
        if result >= 0 {
            return Ok(result);
        }
        // SAFETY: the function has this type; it returns a C string that is valid until the next
        // failure.
        let text = unsafe {
            let error: unsafe extern "C" fn() -> *const c_char =
                std::mem::transmute(self.function(c"iov_error")?);
            CStr::from_ptr(error()).to_string_lossy().into_owned()
        };
        Err(format!("{what}: {text}"))
    }

    /// Makes a collection with metadata.
    ///
    /// # Errors
    /// Those of the library, in words.
    pub fn create(&self, name: &str, meta: &[(&str, &str)]) -> Result<(), String> {
        type Create =
            unsafe extern "C" fn(Handle, *const c_char, *const Options, *mut Handle, Handle) -> i64;
        let both = |(key, value): &(&str, &str)| Ok((text(key)?, text(value)?));
        let texts: Vec<_> = meta.iter().map(both).collect::<Result<_, String>>()?;
        let pairs: Vec<Pair> = texts
            .iter()
            .map(|(key, value)| Pair {
                key: key.as_ptr(),
                value: value.as_ptr(),
            })
            .collect();
        let options = Options {
            size: size_of::<Options>(),
            backend: null(),
            controls: null(),
            meta: pairs.as_ptr(),
            meta_count: pairs.len(),
        };
        let (label, mut collection) = (text(name)?, null_mut());
        // SAFETY: the functions have these types; all pointers are valid during the calls.
        unsafe {
            let create: Create = std::mem::transmute(self.function(c"iov_collection_create")?);
            let close: unsafe extern "C" fn(Handle, Handle) -> i64 =
                std::mem::transmute(self.function(c"iov_collection_close")?);
            let made = create(
                self.workspace,
                label.as_ptr(),
                &options,
                &mut collection,
                null_mut(),
            );
            self.done(name, made)?;
            self.done(name, close(collection, null_mut())).map(drop)
        }
    }

    /// Makes collections by one batch, and closes them.
    ///
    /// # Errors
    /// Those of the library, in words.
    pub fn create_all(&self, names: &[String]) -> Result<(), String> {
        type Create =
            unsafe extern "C" fn(Handle, *const c_char, *const Options, *mut Handle, Handle) -> i64;
        self.batch(|batch| {
            // SAFETY: the functions have these types; all pointers are valid during the calls.
            unsafe {
                let create: Create = std::mem::transmute(self.function(c"iov_collection_create")?);
                let close: unsafe extern "C" fn(Handle, Handle) -> i64 =
                    std::mem::transmute(self.function(c"iov_collection_close")?);
                for name in names {
                    let (label, mut made) = (text(name)?, null_mut());
                    let added = create(self.workspace, label.as_ptr(), null(), &mut made, batch);
                    self.done(name, added)?;
                    self.done(name, close(made, batch))?;
                }
            }
            Ok(())
        })
    }

    /// Deletes a collection, without a batch.
    ///
    /// # Errors
    /// Those of the library, in words.
    pub fn delete(&self, name: &str) -> Result<(), String> {
        self.delete_in(&[name.to_owned()], null_mut())
    }

    /// Deletes collections by one batch.
    ///
    /// # Errors
    /// Those of the library, in words.
    pub fn delete_all(&self, names: &[String]) -> Result<(), String> {
        self.batch(|batch| self.delete_in(names, batch))
    }

    fn delete_in(&self, names: &[String], batch: Handle) -> Result<(), String> {
        type Delete = unsafe extern "C" fn(Handle, *const c_char, Handle) -> i64;
        for name in names {
            let label = text(name)?;
            // SAFETY: the function has this type; all pointers are valid during the call.
            let deleted = unsafe {
                let delete: Delete = std::mem::transmute(self.function(c"iov_collection_delete")?);
                delete(self.workspace, label.as_ptr(), batch)
            };
            self.done(name, deleted)?;
        }
        Ok(())
    }

    /// Runs a batch to which `fill` adds the operations.
    fn batch(&self, fill: impl FnOnce(Handle) -> Result<(), String>) -> Result<(), String> {
        type New = unsafe extern "C" fn(Handle, c_int, c_int, *mut Handle) -> c_int;
        type Wait = unsafe extern "C" fn(Handle, i64) -> c_int;
        type Done = unsafe extern "C" fn(Handle) -> c_int;
        let mut batch: Handle = null_mut();
        // SAFETY: the functions have these types; all pointers are valid during the calls.
        unsafe {
            let new: New = std::mem::transmute(self.function(c"iov_batch_create")?);
            // IOV_STOP, IOV_FREE.
            self.done("a batch", new(self.session, 0, 0, &mut batch).into())?;
            fill(batch)?;
            let wait: Wait = std::mem::transmute(self.function(c"iov_wait")?);
            let [start, result, free]: [Done; 3] = [
                std::mem::transmute::<Handle, Done>(self.function(c"iov_batch_start")?),
                std::mem::transmute::<Handle, Done>(self.function(c"iov_batch_result")?),
                std::mem::transmute::<Handle, Done>(self.function(c"iov_batch_free")?),
            ];
            self.done("starting the batch", start(batch).into())?;
            self.done("waiting for the batch", wait(batch, -1).into())?;
            self.done("the batch", result(batch).into())?;
            self.done("freeing the batch", free(batch).into()).map(drop)
        }
    }

    /// Returns the number of collections that match a predicate.
    ///
    /// # Errors
    /// Those of the library, in words.
    pub fn search(&self, predicate: &str) -> Result<usize, String> {
        type Search = unsafe extern "C" fn(Handle, *const c_char, *mut Handle, Handle) -> i64;
        let (words, mut records) = (text(predicate)?, null_mut());
        // SAFETY: the functions have these types; all pointers are valid during the calls.
        unsafe {
            let search: Search = std::mem::transmute(self.function(c"iov_collection_search")?);
            let count: unsafe extern "C" fn(Handle) -> usize =
                std::mem::transmute(self.function(c"iov_records_count")?);
            let free: unsafe extern "C" fn(Handle) =
                std::mem::transmute(self.function(c"iov_records_free")?);
            let found = search(self.workspace, words.as_ptr(), &mut records, null_mut());
            self.done(predicate, found)?;
            let found = count(records);
            free(records);
            Ok(found)
        }
    }
}
