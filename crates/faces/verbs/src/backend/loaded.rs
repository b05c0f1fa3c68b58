//! Back ends from shared objects. A shared object's function `iov_backend_ops()` returns the table
//! of functions that `include/forebay/iov_backend.h` declares.
//!
//! A shared object stays loaded until the process ends: threads that it has started may still run
//! its code. Each attachment has an instance of the back end. `init` creates the instance;
//! `shutdown` ends it after the last collection that uses it is dropped.

use super::{Address, Backend, Object};
use crate::abi::{self, BACKEND_ABI, BackendTable};
use crate::controls_text::write_controls;
use crate::process::Generation;
use crate::{Error, Result};
use forebay_controls::Controls;
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;

/// The back end of a shared object.
pub struct Loaded(Arc<Instance>);

struct Instance {
    ops: BackendTable,
    kind: String,
    /// The instance, as returned by `init`.
    backend: *mut c_void,
    /// Whether `init` succeeded, so that `shutdown` must be called.
    initialised: bool,
    generation: Generation,
}

// SAFETY: the header demands functions that several threads may call at the same time, and the
// other fields never change after `open`.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

struct Open {
    instance: Arc<Instance>,
    /// Null when the object is closed.
    object: *mut c_void,
}

// SAFETY: as for `Instance`: several threads may call the functions with `object` at the same time.
unsafe impl Send for Open {}
// SAFETY: as for `Send`.
unsafe impl Sync for Open {}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("'{text}' contains NUL")))
}

/// Copies a C text for messages; None for null.
///
/// # Safety
/// `text` is null, or ends with NUL.
unsafe fn shown(text: *const c_char) -> Option<String> {
    // SAFETY: the caller promises that `text` ends with NUL if it isn't null.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    text.map(|text| text.to_string_lossy().into_owned())
}

/// Loads the shared object at `path` and returns its table of functions.
fn table(path: &str) -> Result<BackendTable> {
    let file = c_text(path)?;
    // SAFETY: loading runs the object's constructors. A process that attaches the object trusts it
    // as part of the program.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: dlerror's text is valid until the thread's next call of a dl function.
        let why = unsafe { shown(libc::dlerror()) }.unwrap_or_default();
        return Err(Error::new(
            Errno::NOENT,
            format!("can't load {path}: {why}"),
        ));
    }
    // SAFETY: the library is loaded, and the name ends with NUL.
    let symbol = unsafe { libc::dlsym(library, c"iov_backend_ops".as_ptr()) };
    if symbol.is_null() {
        return Err(Error::invalid(format!(
            "{path} is no back end: it has no function iov_backend_ops"
        )));
    }
    // SAFETY: the header declares the function of this name with this type.
    let ops = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const BackendTable>(symbol)()
    };
    if ops.is_null() {
        return Err(Error::invalid(format!(
            "{path} is no back end: it has no table"
        )));
    }
    // SAFETY: every version of the table begins with `abi` and `size`.
    let (version, size) = unsafe { ((*ops).abi, (*ops).size) };
    if version != BACKEND_ABI || size < size_of::<BackendTable>() {
        return Err(Error::invalid(format!(
            "the back end {path} was made for version {version} of the table, with {size} bytes; this is \
             version {BACKEND_ABI}, with {} bytes: compile it anew",
            size_of::<BackendTable>()
        )));
    }
    // SAFETY: the table has at least this size, and its version guarantees these fields.
    Ok(unsafe { *ops })
}

impl Loaded {
    /// Loads the shared object at `path` and initialises an instance with this configuration.
    ///
    /// # Errors
    /// ENOENT; EINVAL if `path` can't be loaded or is no back end of this version; the errors of
    /// `init`.
    pub fn open(path: &str, config: &str) -> Result<Loaded> {
        let ops = table(path)?;
        // SAFETY: the header demands that `kind` is null, or a C string that is never freed.
        let kind = unsafe { shown(ops.kind) }.unwrap_or_else(|| path.into());
        let functions = [
            ("init", ops.init.is_some()),
            ("shutdown", ops.shutdown.is_some()),
            ("supports", ops.supports.is_some()),
            ("create", ops.create.is_some()),
            ("open", ops.open.is_some()),
            ("remove", ops.remove.is_some()),
            ("read", ops.read.is_some()),
            ("write", ops.write.is_some()),
            ("append", ops.append.is_some()),
            ("truncate", ops.truncate.is_some()),
            ("length", ops.length.is_some()),
            ("sync", ops.sync.is_some()),
            ("close", ops.close.is_some()),
        ];
        if let Some((name, _)) = functions.iter().find(|(_, there)| !there) {
            return Err(Error::invalid(format!(
                "the back end {path} has no function '{name}'"
            )));
        }
        let mut instance = Instance {
            ops,
            kind,
            backend: std::ptr::null_mut(),
            initialised: false,
            generation: Generation::now(),
        };
        let config = c_text(config)?;
        let mut backend = std::ptr::null_mut();
        let made = match ops.init {
            // SAFETY: the texts are C strings that outlive the call; the back end writes only to
            // `backend`.
            Some(init) => unsafe { init(config.as_ptr(), &mut backend) },
            None => -libc::ENOSYS,
        };
        instance.check(i64::from(made), "initialise it")?;
        instance.backend = backend;
        instance.initialised = true;
        Ok(Loaded(Arc::new(instance)))
    }

    fn object(
        &self,
        what: &str,
        function: Option<
            unsafe extern "C" fn(
                *mut c_void,
                *const abi::Address,
                *const c_char,
                *mut *mut c_void,
            ) -> c_int,
        >,
        address: &Address,
        controls: &Controls,
    ) -> Result<Box<dyn Object>> {
        let controls = c_text(&write_controls(controls))?;
        let mut object = std::ptr::null_mut();
        let done = with_address(address, |address| match function {
            // SAFETY: the texts are C strings that outlive the call; the back end writes only to
            // `object`.
            Some(f) => unsafe { f(self.0.backend, address, controls.as_ptr(), &mut object) },
            None => -libc::ENOSYS,
        })?;
        self.0.check(i64::from(done), what)?;
        if object.is_null() {
            let text = format!("the back end '{}' gave no object", self.0.kind);
            return Err(Error::new(Errno::IO, text));
        }
        Ok(Box::new(Open {
            instance: self.0.clone(),
            object,
        }))
    }
}

fn with_address<T>(address: &Address, f: impl FnOnce(&abi::Address) -> T) -> Result<T> {
    let (workspace, name) = (c_text(&address.workspace)?, c_text(&address.name)?);
    Ok(f(&abi::Address {
        workspace: workspace.as_ptr(),
        name: name.as_ptr(),
        uuid: abi::Uuid {
            bytes: address.uuid.0,
        },
    }))
}

impl Instance {
    /// Checks a function's return value: a number, or a negative errno.
    fn check(&self, returned: i64, what: &str) -> Result<u64> {
        if let Ok(number) = u64::try_from(returned) {
            return Ok(number);
        }
        let code = i32::try_from(-returned).unwrap_or(libc::EIO);
        let errno = Errno::from_raw_os_error(if code < 4096 { code } else { libc::EIO });
        let message = match self.ops.error {
            // SAFETY: the header demands a text that is valid until this thread's next call, or
            // null.
            Some(error) => unsafe { shown(error()) },
            None => None,
        };
        let about = format!("the back end '{}' can't {what}", self.kind);
        Err(match message {
            Some(text) => Error::new(errno, format!("{about}: {text}")),
            None => Error::of(about, errno),
        })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let needed = self.initialised && self.generation.is_now();
        if let Some(shutdown) = self.ops.shutdown.filter(|_| needed) {
            // SAFETY: `init` returned this instance, and nothing uses it any more.
            unsafe { shutdown(self.backend) }
        }
    }
}

impl Backend for Loaded {
    fn kind(&self) -> &str {
        &self.0.kind
    }

    fn outlives_process(&self) -> bool {
        self.0.ops.outlives_process != 0
    }

    fn supports(&self, controls: &Controls) -> Result<()> {
        let declared = write_controls(controls);
        let text = c_text(&declared)?;
        let able = match self.0.ops.supports {
            // SAFETY: `init` made the back end; `text` is a C string that outlives the call.
            Some(f) => unsafe { f(self.0.backend, text.as_ptr()) },
            None => -libc::ENOSYS,
        };
        self.0
            .check(i64::from(able), &format!("keep '{declared}'"))
            .map(|_| ())
    }

    fn create(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>> {
        self.object("create it", self.0.ops.create, address, controls)
    }

    fn open(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>> {
        self.object("open it", self.0.ops.open, address, controls)
    }

    fn delete(&self, address: &Address) -> Result<()> {
        let gone = with_address(address, |address| match self.0.ops.remove {
            // SAFETY: `init` made the back end; the address and its texts outlive the call.
            Some(f) => unsafe { f(self.0.backend, address) },
            None => -libc::ENOSYS,
        })?;
        self.0.check(i64::from(gone), "remove it").map(|_| ())
    }
}

/// Calls a function of the table. `Loaded::open` has checked that the function is present.
macro_rules! call {
    ($open:expr, $function:ident, $what:literal $(, $argument:expr)*) => {{
        let open: &Open = $open;
        let returned = match open.instance.ops.$function {
            // SAFETY: the arguments are as the header demands; the object is open, and each length
            // is that of its slice.
            Some(f) => i64::from(unsafe { f(open.object $(, $argument)*) }),
            None => -i64::from(libc::ENOSYS),
        };
        open.instance.check(returned, $what)
    }};
}

impl Object for Open {
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let (start, len) = (to.as_mut_ptr().cast(), to.len());
        let n = call!(self, read, "read", start, len, at)? as usize;
        if n <= len {
            Ok(n)
        } else {
            Err(Error::new(
                Errno::IO,
                format!(
                    "the back end '{}' read {n} of {len} bytes",
                    self.instance.kind
                ),
            ))
        }
    }

    fn write(&self, from: &[u8], at: u64) -> Result<()> {
        let (start, len) = (from.as_ptr().cast(), from.len());
        call!(self, write, "write", start, len, at).map(|_| ())
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        let (start, len) = (from.as_ptr().cast(), from.len());
        call!(self, append, "append", start, len)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        call!(self, truncate, "truncate", size).map(|_| ())
    }

    fn size(&self) -> Result<u64> {
        call!(self, length, "get the length")
    }

    fn sync(&self) -> Result<()> {
        call!(self, sync, "sync").map(|_| ())
    }

    fn close(&mut self) -> Result<()> {
        let closed = call!(self, close, "close").map(|_| ());
        self.object = std::ptr::null_mut();
        closed
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.object.is_null() && self.instance.generation.is_now() {
            let _ = self.close();
        }
    }
}
