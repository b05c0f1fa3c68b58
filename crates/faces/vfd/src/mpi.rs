//! The MPI library of the calling process, and the ranks that have a file open together.
//!
//! The driver links to no MPI library. A parallel HDF5 depends on the MPI library that the program
//! uses, so MPI's functions are looked up through HDF5's handle. MPI's handles are stored in 64
//! bits: those of MPICH (also Intel MPI, Cray MPICH, MVAPICH) are 32-bit numbers, those of Open MPI
//! pointers. The System V ABI of x86-64 passes either in one register.
//!
//! Guarantees: [`Group::agree`] has the same result on all ranks. So a failure on one rank is a
//! failure on all, and no rank waits for one that has given up.

use crate::file::Failure;
use crate::library::Library;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_void};

/// A communicator, an info object, a datatype or an operation of MPI.
pub type Handle = usize;

/// Maximum number of bytes of an error message that other ranks get.
const SENTENCE: usize = 504;

type GetInt = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Frees = unsafe extern "C" fn(*mut Handle) -> c_int;
type GetFlag = unsafe extern "C" fn(*mut c_int) -> c_int;
type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type AbiVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Bcast = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle) -> c_int;
type Allreduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle) -> c_int;
type Extent = unsafe extern "C" fn(Handle, *mut isize, *mut isize) -> c_int;
type Envelope =
    unsafe extern "C" fn(Handle, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type Contents =
    unsafe extern "C" fn(Handle, c_int, c_int, c_int, *mut c_int, *mut isize, *mut c_void) -> c_int;

/// Size of a handle in arrays (bytes), and values of MPI's constants.
#[derive(Clone, Copy)]
struct Abi {
    handle_bytes: usize,
    comm_null: Handle,
    info_null: Handle,
    byte: Handle,
    int: Handle,
    max: Handle,
    /// The value of MPI_COMBINER_NAMED: 0 in Open MPI, 1 in MPICH.
    first_combiner: c_int,
}

/// The functions of an MPI library that the driver uses.
#[derive(Clone, Copy)]
pub struct Mpi {
    abi: Abi,
    rank: GetInt,
    size: GetInt,
    free_comm: Frees,
    free_info: Frees,
    free_type: Frees,
    make_info: Frees,
    finalized: GetFlag,
    bcast: Bcast,
    allreduce: Allreduce,
    type_size: GetInt,
    type_extent: Extent,
    type_envelope: Envelope,
    type_contents: Contents,
}

fn missing(what: &str) -> Failure {
    (Errno::NOTSUP, format!("MPI: {what}"))
}

/// Converts the return value of an MPI function.
fn check(code: c_int, what: &str) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err((Errno::IO, format!("{what} failed with MPI's error {code}"))),
    }
}

impl Abi {
    fn of(library: Library) -> Result<Abi, Failure> {
        if let Some(comm_null) = library.address(c"ompi_mpi_comm_null") {
            let at = |name: &CStr| {
                let absent = || missing("Open MPI's constants aren't all there");
                library.address(name).ok_or_else(absent)
            };
            return Ok(Abi {
                handle_bytes: size_of::<usize>(),
                comm_null,
                info_null: at(c"ompi_mpi_info_null")?,
                byte: at(c"ompi_mpi_byte")?,
                int: at(c"ompi_mpi_int")?,
                max: at(c"ompi_mpi_op_max")?,
                first_combiner: 0,
            });
        }
        // SAFETY: MPI has these signatures; the buffer is longer than
        // MPI_MAX_LIBRARY_VERSION_STRING.
        let (version, standard) = unsafe {
            let get = library.function::<Version>(c"MPI_Get_library_version");
            let get = get.ok_or_else(|| missing("HDF5's library has none"))?;
            let (mut text, mut len) = (vec![0u8; 16384], 0);
            check(
                get(text.as_mut_ptr().cast(), &mut len),
                "MPI_Get_library_version",
            )?;
            text.truncate(usize::try_from(len).unwrap_or(0));
            let mut abi = (-1, -1);
            if let Some(get) = library.function::<AbiVersion>(c"MPI_Abi_get_version") {
                get(&mut abi.0, &mut abi.1);
            }
            (String::from_utf8_lossy(&text).into_owned(), abi.0 >= 0)
        };
        let known = ["PICH", "Intel(R) MPI"].iter().any(|k| version.contains(k));
        if !known || standard {
            let first = version.lines().next().unwrap_or_default();
            return Err(missing(&format!(
                "the driver knows the ABIs of MPICH and Open MPI, not that of '{first}'"
            )));
        }
        // The numbers of MPICH's ABI, which are the same since MPICH 3.1.
        Ok(Abi {
            handle_bytes: size_of::<c_int>(),
            comm_null: 0x0400_0000,
            info_null: 0x1c00_0000,
            byte: 0x4c00_010d,
            int: 0x4c00_0405,
            max: 0x5800_0001,
            first_combiner: 1,
        })
    }
}

impl Mpi {
    /// Returns the MPI library that an HDF5 library uses.
    ///
    /// # Errors
    /// ENOTSUP if its ABI isn't known, or functions are missing.
    fn of(library: Library) -> Result<Mpi, Failure> {
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the types above are those that the MPI standard declares.
                unsafe { library.function($name) }
                    .ok_or_else(|| missing(&format!("there is no function {:?}", $name)))?
            };
        }
        Ok(Mpi {
            abi: Abi::of(library)?,
            rank: find!(c"MPI_Comm_rank"),
            size: find!(c"MPI_Comm_size"),
            free_comm: find!(c"MPI_Comm_free"),
            free_info: find!(c"MPI_Info_free"),
            free_type: find!(c"MPI_Type_free"),
            make_info: find!(c"MPI_Info_create"),
            finalized: find!(c"MPI_Finalized"),
            bcast: find!(c"MPI_Bcast"),
            allreduce: find!(c"MPI_Allreduce"),
            type_size: find!(c"MPI_Type_size"),
            type_extent: find!(c"MPI_Type_get_extent"),
            type_envelope: find!(c"MPI_Type_get_envelope"),
            type_contents: find!(c"MPI_Type_get_contents"),
        })
    }

    /// Whether a datatype is MPI_BYTE.
    pub fn is_byte(&self, datatype: Handle) -> bool {
        datatype == self.abi.byte
    }

    /// Returns the size of a datatype in bytes.
    ///
    /// # Errors
    /// EIO if the MPI function fails.
    pub fn type_size(&self, datatype: Handle) -> Result<usize, Failure> {
        let mut size = 0;
        // SAFETY: HDF5 or MPI made the datatype; MPI writes only to `size`.
        let code = unsafe { (self.type_size)(datatype, &mut size) };
        check(code, "MPI_Type_size")?;
        usize::try_from(size).map_err(|_| (Errno::OVERFLOW, "a datatype is over 2 GiB".into()))
    }

    /// Returns the extent of a datatype: the distance between two elements in an array. Bytes.
    ///
    /// # Errors
    /// EIO if the MPI function fails.
    pub fn type_extent(&self, datatype: Handle) -> Result<i64, Failure> {
        let (mut lower, mut extent) = (0, 0);
        // SAFETY: as in `type_size`; MPI_Aint has a pointer's size.
        let code = unsafe { (self.type_extent)(datatype, &mut lower, &mut extent) };
        check(code, "MPI_Type_get_extent")?;
        Ok(extent as i64)
    }

    /// Returns how a datatype was constructed. `None`: MPI predefines the datatype.
    ///
    /// # Errors
    /// EIO if an MPI function fails.
    pub fn type_parts(&self, datatype: Handle) -> Result<Option<Parts>, Failure> {
        let (mut ints, mut addresses, mut types, mut combiner) = (0, 0, 0, 0);
        // SAFETY: as in `type_size`.
        let code = unsafe {
            (self.type_envelope)(
                datatype,
                &mut ints,
                &mut addresses,
                &mut types,
                &mut combiner,
            )
        };
        check(code, "MPI_Type_get_envelope")?;
        let combiner = combiner - self.abi.first_combiner;
        if combiner == 0 {
            return Ok(None);
        }
        let len = |n: c_int| usize::try_from(n).unwrap_or(0);
        let mut parts = Parts {
            mpi: *self,
            combiner,
            ints: vec![0; len(ints)],
            addresses: vec![0; len(addresses)],
            types: Vec::new(),
        };
        let mut packed = vec![0usize; len(types)];
        // SAFETY: the arrays have the lengths that MPI returned; handles have 4 or 8 bytes.
        let code = unsafe {
            let (i, a) = (parts.ints.as_mut_ptr(), parts.addresses.as_mut_ptr());
            (self.type_contents)(
                datatype,
                ints,
                addresses,
                types,
                i,
                a,
                packed.as_mut_ptr().cast(),
            )
        };
        check(code, "MPI_Type_get_contents")?;
        parts.types = match self.abi.handle_bytes {
            4 => {
                let halves = packed.iter().flat_map(|w| [*w & 0xffff_ffff, *w >> 32]);
                halves.take(len(types)).collect()
            }
            _ => packed,
        };
        Ok(Some(parts))
    }
}

/// How a datatype was constructed from others. Frees the datatypes that MPI has returned.
pub struct Parts {
    mpi: Mpi,
    /// MPI_COMBINER_*, counted from 0.
    pub combiner: c_int,
    pub ints: Vec<c_int>,
    pub addresses: Vec<isize>,
    pub types: Vec<Handle>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        for datatype in &mut self.types {
            let (mut i, mut a, mut t, mut combiner) = (0, 0, 0, 0);
            // SAFETY: a datatype that MPI has returned; each one that isn't predefined is freed
            // once.
            unsafe {
                let envelope = self.mpi.type_envelope;
                if envelope(*datatype, &mut i, &mut a, &mut t, &mut combiner) == 0
                    && combiner != self.mpi.abi.first_combiner
                {
                    (self.mpi.free_type)(datatype);
                }
            }
        }
    }
}

/// The ranks that have a file open together, with the file's copy of the communicator.
pub struct Group {
    pub mpi: Mpi,
    comm: Handle,
    info: Handle,
    pub rank: c_int,
    pub size: c_int,
}

impl Group {
    /// Returns the ranks that a file access property list names. `None`: the list names none, or
    /// the HDF5 library is a serial one. All ranks must call this function.
    ///
    /// # Errors
    /// ENOTSUP if the MPI library isn't known; EIO if a function of it fails.
    pub fn of(library: Option<Library>, list: i64) -> Result<Option<Group>, Failure> {
        let Some(library) = library else {
            return Ok(None);
        };
        // Copies of the list's communicator and info object, which `Group` frees. On the copies,
        // MPI functions return errors instead of aborting.
        let Some((comm, info)) = library.mpi_params(list) else {
            return Ok(None);
        };
        let mpi = Mpi::of(library)?;
        if comm == 0 || comm == mpi.abi.comm_null {
            return Ok(None);
        }
        let mut group = Group {
            mpi,
            comm,
            info,
            rank: 0,
            size: 0,
        };
        if info == 0 || info == mpi.abi.info_null {
            group.info = 0;
            // HDF5 regards a missing info object as an error, so this makes an empty one.
            // SAFETY: MPI writes only to `group.info`, which has room for a handle.
            let code = unsafe { (mpi.make_info)(&mut group.info) };
            check(code, "MPI_Info_create")?;
        }
        // SAFETY: HDF5 keeps the communicator open; MPI writes only to `group`.
        unsafe {
            check((mpi.rank)(comm, &mut group.rank), "MPI_Comm_rank")?;
            check((mpi.size)(comm, &mut group.size), "MPI_Comm_size")?;
        }
        if !library.tells_transfers() {
            return Err((
                Errno::NOTSUP,
                "the HDF5 library hides H5CX_get_io_xfer_mode, so a parallel file can't be used"
                    .into(),
            ));
        }
        Ok(Some(group))
    }

    /// Whether this rank creates files, truncates them and holds their locks.
    pub fn leads(&self) -> bool {
        self.rank == 0
    }

    /// Whether MPI is finalized, so that no rank can be reached.
    fn is_over(&self) -> bool {
        let mut over = 0;
        // SAFETY: MPI writes only to `over`. MPI_Finalized may be called at any time.
        unsafe { (self.mpi.finalized)(&mut over) != 0 || over != 0 }
    }

    /// Waits for all ranks, which must all call this function. If the operation failed on one rank,
    /// it fails on all: ranks where it succeeded get the failure of the last rank where it failed.
    ///
    /// # Errors
    /// The failure in `mine`, or another rank's; EIO if MPI fails.
    pub fn agree<T>(&self, mine: Result<T, Failure>) -> Result<T, Failure> {
        if self.is_over() {
            return mine;
        }
        let failed: c_int = if mine.is_err() { self.rank + 1 } else { 0 };
        let mut last: c_int = 0;
        // SAFETY: `failed` and `last` are one number each, as the count says; MPI writes only to
        // `last`.
        let code = unsafe {
            let (from, to) = (&raw const failed, &raw mut last);
            (self.mpi.allreduce)(
                from.cast(),
                to.cast(),
                1,
                self.mpi.abi.int,
                self.mpi.abi.max,
                self.comm,
            )
        };
        check(code, "MPI_Allreduce")?;
        if last == 0 {
            return mine;
        }
        let mut message = [0u8; 4 + SENTENCE];
        if let (Err((errno, text)), true) = (&mine, last == self.rank + 1) {
            message[..4].copy_from_slice(&errno.raw_os_error().to_le_bytes());
            let text = &text.as_bytes()[..text.floor_char_boundary(SENTENCE)];
            message[4..4 + text.len()].copy_from_slice(text);
        }
        self.broadcast(&mut message, last - 1)?;
        mine.and_then(|_| {
            let (errno, text) = message.split_at(4);
            let errno = i32::from_le_bytes(errno.try_into().expect("4 bytes"));
            let text = String::from_utf8_lossy(text);
            let text = text.trim_end_matches('\0');
            Err((
                Errno::from_raw_os_error(errno),
                format!("rank {}: {text}", last - 1),
            ))
        })
    }

    /// Sends the bytes of rank `from` to all ranks, which must all call this function.
    ///
    /// # Errors
    /// EIO if MPI fails.
    pub fn broadcast(&self, bytes: &mut [u8], from: c_int) -> Result<(), Failure> {
        let len = c_int::try_from(bytes.len()).map_err(|_| missing("a message is over 2 GiB"))?;
        // SAFETY: `bytes` has `len` bytes, and no other reference to them exists.
        let code = unsafe {
            let at = bytes.as_mut_ptr().cast();
            (self.mpi.bcast)(at, len, self.mpi.abi.byte, from, self.comm)
        };
        check(code, "MPI_Bcast")
    }

    /// Stores the communicator in HDF5's variable.
    ///
    /// # Safety
    /// `to` has room for an MPI_Comm.
    pub unsafe fn store_comm(&self, to: *mut c_void) {
        // SAFETY: the caller promises that `to` has room for the handle.
        unsafe { self.store(self.comm, to) }
    }

    /// Stores the info object in HDF5's variable.
    ///
    /// # Safety
    /// `to` has room for an MPI_Info.
    pub unsafe fn store_info(&self, to: *mut c_void) {
        // SAFETY: the caller promises that `to` has room for the handle.
        unsafe { self.store(self.info, to) }
    }

    unsafe fn store(&self, handle: Handle, to: *mut c_void) {
        // SAFETY: the caller promises that `to` has room for an MPI handle, which is the first 4 or
        // 8 bytes of `handle`.
        unsafe {
            let from = (&raw const handle).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, to.cast(), self.mpi.abi.handle_bytes);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_over() {
            return;
        }
        // SAFETY: the group owns both objects, and frees them once.
        unsafe {
            (self.mpi.free_comm)(&mut self.comm);
            (self.mpi.free_info)(&mut self.info);
        }
    }
}
