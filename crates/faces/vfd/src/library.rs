//! Access to the HDF5 library that calls the driver.
//!
//! A process may have several HDF5 libraries (h5py, netCDF4 and tables each load one with
//! RTLD_LOCAL), and the driver links to none. The caller is the library that contains the call's
//! return address; HDF5's functions are looked up only in this library.

use crate::file::Failure;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// An identifier of HDF5, such as of a property list or an error class.
pub type Hid = i64;

/// A loaded HDF5 library. The library has loaded the driver, and stays loaded as long as the
/// driver.
#[derive(Clone, Copy)]
pub struct Library(*mut c_void);

// SAFETY: the value is a handle of dlopen, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: as for `Send`.
unsafe impl Sync for Library {}

/// How an HDF5 call transfers data.
#[derive(Clone, Copy)]
pub struct Transfer {
    /// The call is collective: unless the transfer is a vector, MPI datatypes describe it.
    pub collective: bool,
    /// All ranks take part in the transfer.
    pub together: bool,
    /// The MPI datatypes that describe the transfer in memory and in the file.
    pub memory: usize,
    pub file: usize,
}

type ConfigStr = unsafe extern "C" fn(Hid, *mut c_char, usize) -> isize;
type Push = unsafe extern "C" fn(
    Hid,
    *const c_char,
    *const c_char,
    c_uint,
    Hid,
    Hid,
    Hid,
    *const c_char,
    ...
) -> c_int;

impl Library {
    /// Returns the library that contains the address `caller`.
    pub fn of(caller: usize) -> Option<Library> {
        // SAFETY: an all-zero Dl_info is valid; dladdr fills it, or returns 0.
        let name = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(caller as *const c_void, &mut info) == 0 || info.dli_fname.is_null() {
                return None;
            }
            info.dli_fname
        };
        // SAFETY: `name` is a C string of the loader. RTLD_NOLOAD loads nothing, so no code runs.
        let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        // Without a handle, HDF5 is linked into the program itself: uses the program's handle.
        let handle = if handle.is_null() {
            // SAFETY: null stands for the program, which is loaded.
            unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
        } else {
            handle
        };
        (!handle.is_null()).then_some(Library(handle))
    }

    fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library stays loaded as long as the driver; `name` is a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// Returns the address of a variable of the library.
    pub fn address(self, name: &CStr) -> Option<usize> {
        self.symbol(name).map(|at| at as usize)
    }

    /// Returns a function of the library, or of a library on which it depends.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: function pointers have the size of data pointers; the caller promises the type.
        self.symbol(name)
            .map(|found| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }

    /// Returns copies of a property list's communicator and info object, which the caller must
    /// free. `None` in a serial library. All ranks of the communicator must call this function.
    pub fn mpi_params(self, list: Hid) -> Option<(usize, usize)> {
        type Params = unsafe extern "C" fn(Hid, *mut usize, *mut usize) -> c_int;
        let (mut comm, mut info) = (0, 0);
        // SAFETY: parallel HDF5 1.14 and later have this signature; MPI's handles have 4 or 8
        // bytes.
        let done = unsafe {
            self.function::<Params>(c"H5Pget_mpi_params")
                .map(|get| get(list, &mut comm, &mut info))
        };
        (done? >= 0).then_some((comm, info))
    }

    /// Whether the library has the functions that [`Library::transfer`] needs.
    pub fn tells_transfers(self) -> bool {
        self.symbol(c"H5CX_get_io_xfer_mode").is_some()
            && self.symbol(c"H5CX_get_mpio_coll_opt").is_some()
            && self.symbol(c"H5CX_get_mpi_coll_datatypes").is_some()
    }

    /// Returns how the current call of HDF5 transfers data.
    ///
    /// # Errors
    /// ENOTSUP if the library doesn't have the functions for this, or they fail.
    pub fn transfer(self) -> Result<Transfer, Failure> {
        type Get = unsafe extern "C" fn(*mut c_int) -> c_int;
        type Types = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
        let silent = || {
            (
                rustix::io::Errno::NOTSUP,
                "HDF5 doesn't say how it transfers".to_owned(),
            )
        };
        let (mut mode, mut individual, mut memory, mut file) = (0, 0, 0, 0);
        // SAFETY: the signatures are those of H5CXprivate.h of parallel HDF5 1.14 to 2.x; each
        // function writes an enumeration or an MPI handle. HDF5 demands that they run inside a call
        // of HDF5, as here.
        let told = unsafe {
            let get = self
                .function::<Get>(c"H5CX_get_io_xfer_mode")
                .ok_or_else(silent)?;
            let option = self
                .function::<Get>(c"H5CX_get_mpio_coll_opt")
                .ok_or_else(silent)?;
            let types = self
                .function::<Types>(c"H5CX_get_mpi_coll_datatypes")
                .ok_or_else(silent)?;
            get(&mut mode) >= 0
                && option(&mut individual) >= 0
                && types(&mut memory, &mut file) >= 0
        };
        if told {
            Ok(Transfer {
                collective: mode == 1,
                together: mode == 1 && individual == 0,
                memory,
                file,
            })
        } else {
            Err(silent())
        }
    }

    /// Returns the configuration string of a file access property list. Empty if it has none.
    pub fn driver_config(self, list: Hid) -> String {
        let Some(found) = self.symbol(c"H5Pget_driver_config_str") else {
            return String::new();
        };
        // SAFETY: HDF5 1.14 and later have this signature.
        let get: ConfigStr = unsafe { std::mem::transmute::<*mut c_void, ConfigStr>(found) };
        let mut text = vec![0u8; 4096];
        // SAFETY: the buffer has room for `text.len()` bytes.
        let len = unsafe { get(list, text.as_mut_ptr().cast(), text.len()) };
        match usize::try_from(len) {
            Ok(len) => {
                text.truncate(len.min(4095));
                String::from_utf8_lossy(&text)
                    .trim_end_matches('\0')
                    .to_owned()
            }
            Err(_) => String::new(),
        }
    }

    /// Returns an identifier that the library stores in a variable once it is initialised.
    fn identifier(self, name: &CStr) -> Option<Hid> {
        // SAFETY: HDF5's variables of identifiers are hid_t, and live as long as the library.
        self.symbol(name).map(|at| unsafe { *at.cast::<Hid>() })
    }

    /// Puts a sentence onto HDF5's error stack, or writes it to standard error if that isn't
    /// possible.
    pub fn report(self, sentence: &str) {
        let text = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
        let push = self.symbol(c"H5Epush2");
        let class = self.identifier(c"H5E_ERR_CLS_g");
        let major = self.identifier(c"H5E_VFL_g");
        let minor = self.identifier(c"H5E_CANTOPENFILE_g");
        match (push, class, major, minor) {
            (Some(push), Some(class), Some(major), Some(minor)) => {
                // SAFETY: HDF5 has this signature; the format takes one string.
                unsafe {
                    let push: Push = std::mem::transmute::<*mut c_void, Push>(push);
                    push(
                        0,
                        c"forebay".as_ptr(),
                        c"forebay_vfd".as_ptr(),
                        0,
                        class,
                        major,
                        minor,
                        c"%s".as_ptr(),
                        text.as_ptr(),
                    );
                }
            }
            _ => eprintln!("forebay: {sentence}"),
        }
    }
}
