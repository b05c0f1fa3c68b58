//! The table of callbacks that HDF5 calls, and the two functions by which HDF5 loads the driver.
//!
//! The structures are those of HDF5 1.14 and 2.x (`H5FDdevelop.h`, class version 1). An open file
//! is a [`File`], which begins with the structure that HDF5 uses ([`Base`]). HDF5 calls the
//! callbacks of one file from one thread at a time. No panic unwinds out of a callback: the library
//! aborts (`panic = "abort"`).

use crate::config::Config;
use crate::file::{self, Failure, Identity, Lock, Mode, Open};
use crate::library::{Hid, Library, Transfer};
use crate::mpi::Group;
use crate::pieces::{self, Piece};
use crate::together;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::Once;

/// Version of HDF5's structure [`Class`].
const CLASS_VERSION: c_uint = 1;
/// The driver's number, in the range that HDF5 reserves for unregistered drivers (256 to 511).
pub const VALUE: c_int = 0x1fb;
/// HDF5's type of plug-ins that are file drivers.
const PLUGIN_VFD: c_int = 2;
/// Largest address. Bytes; HDF5's addresses are signed 64-bit offsets.
const MAX_ADDRESS: u64 = i64::MAX as u64;
const UNDEFINED: u64 = u64::MAX;
const MEMORY_TYPES: usize = 7;

const SUCCEED: c_int = 0;
const FAIL: c_int = -1;

// H5F_ACC_*
const READ_WRITE: c_uint = 0x1;
const TRUNCATE: c_uint = 0x2;
const EXCLUSIVE: c_uint = 0x4;
const CREATE: c_uint = 0x10;

// H5FD_FEAT_*: the features of the driver sec2.
const FEATURES: c_ulong = 0x0001 // aggregate metadata
    | 0x0002 | 0x0004 // accumulate metadata, to write and to read
    | 0x0008 // sieve data
    | 0x0010 // aggregate small data
    | 0x1000 // single writer, multiple readers: writes are seen in their order
    | 0x8000; // files are those of the default driver

// H5FD_FEAT_*: the features of the driver mpio, for a file that several ranks have open together.
const FEATURES_OF_RANKS: c_ulong = 0x0001 // aggregate metadata
    | 0x0010 // aggregate small data
    | 0x0100 // uses MPI
    | 0x8000; // files are those of the default driver

// H5FD_CTL_*
const GET_COMMUNICATOR: u64 = 2;
const GET_RANK: u64 = 3;
const GET_SIZE: u64 = 4;
const GET_FILE_SYNC: u64 = 8;
const GET_INFO: u64 = 9;
const FAIL_IF_UNKNOWN: u64 = 1;

// H5FD_MEM_*. In an array of types, NO_LIST means: this and all further elements equal the one
// before.
const NO_LIST: c_int = -1;
const RAW_DATA: c_int = 3;

/// `H5FD_t`: the part of an open file that HDF5 uses.
#[repr(C)]
pub struct Base {
    driver: Hid,
    class: *const Class,
    number: c_ulong,
    access: c_uint,
    features: c_ulong,
    max_address: u64,
    base_address: u64,
    threshold: u64,
    alignment: u64,
    paged: bool,
}

/// An open file, as HDF5 passes it to the callbacks.
#[repr(C)]
pub struct File {
    base: Base,
    open: Option<Open>,
    identity: Identity,
    /// End of the space that HDF5 has allocated in the file. Bytes.
    eoa: u64,
    /// Size of the file, as far as this process knows. Bytes.
    eof: u64,
    library: Option<Library>,
    /// The ranks that have the file open together. `None`: this process opened it alone.
    group: Option<Group>,
    /// `eoa` when the ranks last agreed on the file's size.
    settled: Option<u64>,
}

type Control = unsafe extern "C" fn(*mut File, u64, u64, *const c_void, *mut *mut c_void) -> c_int;

type Terminate = extern "C" fn() -> c_int;
type Never = Option<extern "C" fn()>;

/// `H5FD_class_t`.
#[repr(C)]
pub struct Class {
    version: c_uint,
    value: c_int,
    name: *const c_char,
    max_address: u64,
    close_degree: c_int,
    terminate: Option<Terminate>,
    superblock: [Never; 3],
    list_size: usize,
    list: [Never; 3],
    transfer_size: usize,
    transfer: [Never; 2],
    open: unsafe extern "C" fn(*const c_char, c_uint, Hid, u64) -> *mut File,
    close: unsafe extern "C" fn(*mut File) -> c_int,
    cmp: unsafe extern "C" fn(*const File, *const File) -> c_int,
    query: unsafe extern "C" fn(*const File, *mut c_ulong) -> c_int,
    type_map: Never,
    alloc: Never,
    free: Never,
    get_eoa: unsafe extern "C" fn(*const File, c_int) -> u64,
    set_eoa: unsafe extern "C" fn(*mut File, c_int, u64) -> c_int,
    get_eof: unsafe extern "C" fn(*const File, c_int) -> u64,
    handle: Never,
    read: unsafe extern "C" fn(*mut File, c_int, Hid, u64, usize, *mut c_void) -> c_int,
    write: unsafe extern "C" fn(*mut File, c_int, Hid, u64, usize, *const c_void) -> c_int,
    read_vector: Vector<*mut c_void>,
    write_vector: Vector<*const c_void>,
    /// Absent: HDF5 converts selections to vectors.
    selections: [Never; 2],
    flush: unsafe extern "C" fn(*mut File, Hid, bool) -> c_int,
    truncate: unsafe extern "C" fn(*mut File, Hid, bool) -> c_int,
    lock: unsafe extern "C" fn(*mut File, bool) -> c_int,
    unlock: unsafe extern "C" fn(*mut File) -> c_int,
    del: unsafe extern "C" fn(*const c_char, Hid) -> c_int,
    ctl: Option<Control>,
    free_lists: [c_int; MEMORY_TYPES],
}

/// A read or write of several ranges, with memory behind pointers of type `P`.
type Vector<P> = unsafe extern "C" fn(
    *mut File,
    Hid,
    u32,
    *const c_int,
    *const u64,
    *const usize,
    *const P,
) -> c_int;

// SAFETY: the table consists of constants and functions, and no code changes it.
unsafe impl Sync for Class {}

static CLASS: Class = Class {
    version: CLASS_VERSION,
    value: VALUE,
    name: c"forebay".as_ptr(),
    max_address: MAX_ADDRESS,
    // H5F_CLOSE_WEAK, as in sec2.
    close_degree: 1,
    terminate: None,
    superblock: [None; 3],
    list_size: 0,
    list: [None; 3],
    transfer_size: 0,
    transfer: [None; 2],
    open,
    close,
    cmp,
    query,
    type_map: None,
    alloc: None,
    free: None,
    get_eoa,
    set_eoa,
    get_eof,
    handle: None,
    read,
    write,
    read_vector,
    write_vector,
    selections: [None; 2],
    flush,
    truncate,
    lock,
    unlock,
    del,
    ctl: Some(ctl),
    // H5FD_FLMAP_DICHOTOMY: separate free lists for metadata and raw data.
    free_lists: [1, 1, 1, 3, 3, 1, 1],
};

/// Tells HDF5 that this plug-in is a file driver.
#[unsafe(no_mangle)]
pub extern "C" fn H5PLget_plugin_type() -> c_int {
    PLUGIN_VFD
}

/// Returns the driver's table to HDF5. HDF5 copies the table.
#[unsafe(no_mangle)]
pub extern "C" fn H5PLget_plugin_info() -> *const c_void {
    static REPORT: Once = Once::new();
    REPORT.call_once(forebay_runtime::defect::report);
    (&raw const CLASS).cast()
}

/// Whether `$HDF5_USE_FILE_LOCKING` disables locks.
fn locks_are_off() -> bool {
    std::env::var("HDF5_USE_FILE_LOCKING").is_ok_and(|v| v == "FALSE" || v == "0")
}

/// Whether `$HDF5_USE_FILE_LOCKING` tolerates file systems without locks.
fn locks_are_tried() -> bool {
    std::env::var("HDF5_USE_FILE_LOCKING").is_ok_and(|v| v == "BEST_EFFORT")
}

impl File {
    /// Carries out an operation on the open file. Puts a failure onto HDF5's error stack.
    fn attempt(&mut self, f: impl FnOnce(&mut File, &Open) -> Result<(), Failure>) -> c_int {
        let Some(open) = self.open.take() else {
            return FAIL;
        };
        let done = f(self, &open);
        self.open = Some(open);
        match done {
            Ok(()) => SUCCEED,
            Err(failure) => {
                self.report(&failure);
                FAIL
            }
        }
    }

    fn report(&self, failure: &Failure) {
        report(self.library, failure);
    }
}

/// Puts a failure onto the library's error stack. The text ends with `errno = N`, as sec2's texts
/// do; h5py raises the exception for this number, such as `FileNotFoundError`.
fn report(library: Option<Library>, (errno, sentence): &Failure) {
    let text = format!("{sentence}, errno = {}", errno.raw_os_error());
    match library {
        Some(library) => library.report(&text),
        None => eprintln!("forebay: {text}"),
    }
}

/// Checks that a range is within the driver's addresses.
fn check_range(at: u64, len: usize) -> Result<(), Failure> {
    match at.checked_add(len as u64) {
        Some(end) if end <= MAX_ADDRESS => Ok(()),
        _ => Err((
            rustix::io::Errno::OVERFLOW,
            format!("{len} bytes at {at} are beyond the largest address"),
        )),
    }
}

/// Calls `open_from` with the return address of this call as its fifth argument.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn open(_: *const c_char, _: c_uint, _: Hid, _: u64) -> *mut File {
    std::arch::naked_asm!("mov r8, [rsp]", "jmp {inner}", inner = sym open_from)
}

unsafe extern "C" fn open_from(
    name: *const c_char,
    flags: c_uint,
    list: Hid,
    max_address: u64,
    caller: usize,
) -> *mut File {
    let library = Library::of(caller);
    // SAFETY: HDF5 passes a C string that is valid during the call.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let opened = Group::of(library, list).and_then(|group| {
        let config = configured(library, list).and_then(|config| match max_address {
            0 | UNDEFINED => Err((
                rustix::io::Errno::INVAL,
                "the largest address can't be".into(),
            )),
            _ => Ok(config),
        });
        let mode = Mode {
            write: flags & READ_WRITE != 0,
            create: flags & CREATE != 0,
            truncate: flags & TRUNCATE != 0,
            exclusive: flags & EXCLUSIVE != 0,
        };
        let (open, eof) = match &group {
            Some(group) => together::open(group, &name, mode, config)?,
            None => {
                let open = file::open(&name, mode, &config?)?;
                let eof = open.size()?;
                (open, eof)
            }
        };
        Ok((open, eof, group))
    });
    match opened {
        Ok((open, eof, group)) => {
            // SAFETY: `Base` consists of numbers and pointers, for which zeros are valid. HDF5
            // fills them in.
            let base: Base = unsafe { std::mem::zeroed() };
            Box::into_raw(Box::new(File {
                base,
                identity: open.identity(),
                open: Some(open),
                eoa: 0,
                eof,
                library,
                group,
                settled: None,
            }))
        }
        Err(failure) => {
            report(library, &failure);
            std::ptr::null_mut()
        }
    }
}

/// Returns the configuration: the property list's, else `$HDF5_DRIVER_CONFIG`.
fn configured(library: Option<Library>, list: Hid) -> Result<Config, Failure> {
    let text = library
        .map(|l| l.driver_config(list))
        .filter(|t| !t.is_empty());
    let text = text.or_else(|| std::env::var("HDF5_DRIVER_CONFIG").ok());
    let invalid = |e| {
        (
            rustix::io::Errno::INVAL,
            format!("configuration of the driver: {e}"),
        )
    };
    Config::parse(&text.unwrap_or_default()).map_err(invalid)
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: `open` made the file as a box, and HDF5 closes it once.
    let mut file = unsafe { Box::from_raw(file) };
    let closed = file.open.take().map_or(Ok(()), |open| match &file.group {
        Some(group) => together::close(group, open),
        None => open.close(),
    });
    match closed {
        Ok(()) => SUCCEED,
        Err(failure) => {
            file.report(&failure);
            FAIL
        }
    }
}

unsafe extern "C" fn cmp(a: *const File, b: *const File) -> c_int {
    // SAFETY: HDF5 passes two open files of this driver.
    let (a, b) = unsafe { (&*a, &*b) };
    a.identity.cmp(&b.identity) as c_int
}

unsafe extern "C" fn query(file: *const File, flags: *mut c_ulong) -> c_int {
    // SAFETY: null, or an open file of this driver, as HDF5 passes it.
    let of_ranks = unsafe { file.as_ref() }.is_some_and(|f| f.group.is_some());
    if !flags.is_null() {
        let features = if of_ranks {
            FEATURES_OF_RANKS
        } else {
            FEATURES
        };
        // SAFETY: HDF5 passes the address of a variable that this function may set.
        unsafe { *flags = features };
    }
    SUCCEED
}

/// Answers HDF5's requests about a file that ranks have open together: for the communicator, rank,
/// size or info object, and whether reads need a sync before (no).
unsafe extern "C" fn ctl(
    file: *mut File,
    operation: u64,
    flags: u64,
    _: *const c_void,
    answer: *mut *mut c_void,
) -> c_int {
    // SAFETY: null, or an open file of this driver, as HDF5 passes it.
    let group = unsafe { file.as_ref() }.and_then(|f| f.group.as_ref());
    let (Some(group), false) = (group, answer.is_null()) else {
        return unknown(flags);
    };
    // SAFETY: for each of these operations, HDF5 passes the address of a pointer to a variable of
    // the type that the operation stores.
    unsafe {
        let to = *answer;
        match operation {
            GET_COMMUNICATOR => group.store_comm(to),
            GET_INFO => group.store_info(to),
            GET_RANK => *to.cast::<c_int>() = group.rank,
            GET_SIZE => *to.cast::<c_int>() = group.size,
            GET_FILE_SYNC => *to.cast::<bool>() = false,
            _ => return unknown(flags),
        }
    }
    SUCCEED
}

fn unknown(flags: u64) -> c_int {
    match flags & FAIL_IF_UNKNOWN {
        0 => SUCCEED,
        _ => FAIL,
    }
}

unsafe extern "C" fn get_eoa(file: *const File, _: c_int) -> u64 {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    unsafe { (*file).eoa }
}

unsafe extern "C" fn set_eoa(file: *mut File, _: c_int, at: u64) -> c_int {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    unsafe { (*file).eoa = at };
    SUCCEED
}

unsafe extern "C" fn get_eof(file: *const File, _: c_int) -> u64 {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    unsafe { (*file).eof }
}

/// Reads pieces. Reads small pieces that are close to each other in the file with one call.
///
/// # Safety
/// Each piece must point to a buffer of its length.
unsafe fn read_pieces(open: &Open, all: &[Piece]) -> Result<(), Failure> {
    let mut gathered = Vec::new();
    for run in pieces::runs(all, pieces::GAP) {
        let run = &all[run];
        let (first, last) = (run[0], run[run.len() - 1]);
        check_range(last.at, last.len)?;
        if run.len() == 1 {
            // SAFETY: the caller promises that the piece points to a buffer of its length.
            let to = unsafe { std::slice::from_raw_parts_mut(first.memory as *mut u8, first.len) };
            open.read(first.at, to)?;
            continue;
        }
        gathered.resize((last.end() - first.at) as usize, 0);
        open.read(first.at, &mut gathered)?;
        for piece in run {
            let from = &gathered[(piece.at - first.at) as usize..][..piece.len];
            // SAFETY: the caller promises that the piece points to a buffer of its length.
            unsafe { std::slice::from_raw_parts_mut(piece.memory as *mut u8, piece.len) }
                .copy_from_slice(from);
        }
    }
    Ok(())
}

/// Writes pieces. Writes small pieces that are adjacent in the file with one call.
///
/// # Safety
/// As for [`read_pieces`].
unsafe fn write_pieces(file: &mut File, open: &Open, all: &[Piece]) -> Result<(), Failure> {
    let mut gathered = Vec::new();
    for run in pieces::runs(all, 0) {
        let run = &all[run];
        let (first, last) = (run[0], run[run.len() - 1]);
        check_range(last.at, last.len)?;
        // SAFETY: the caller promises that each piece points to a buffer of its length.
        let of = |p: &Piece| unsafe { std::slice::from_raw_parts(p.memory as *const u8, p.len) };
        if run.len() == 1 {
            open.write(first.at, of(&first))?;
        } else {
            gathered.clear();
            run.iter().for_each(|p| gathered.extend_from_slice(of(p)));
            open.write(first.at, &gathered)?;
        }
        file.eof = file.eof.max(last.end());
    }
    Ok(())
}

impl File {
    /// Returns how HDF5 transfers data in the current call. `None`: this process opened the file
    /// alone.
    fn transfer(&self) -> Result<Option<(&Group, Transfer)>, Failure> {
        match (&self.group, self.library) {
            (Some(group), Some(library)) => Ok(Some((group, library.transfer()?))),
            _ => Ok(None),
        }
    }

    /// Returns the pieces of a transfer that isn't a vector: `count` bytes, or the ranges of
    /// `count` elements of MPI datatypes.
    fn scalar(&self, at: u64, count: usize, memory: usize) -> Result<Vec<Piece>, Failure> {
        if let Some((group, transfer)) = self.transfer()?
            && transfer.collective
        {
            let mpi = &group.mpi;
            if count > 0 && !(mpi.is_byte(transfer.memory) && mpi.is_byte(transfer.file)) {
                let buffer = pieces::flatten(mpi, transfer.memory, count)?;
                // The file's datatype is repeated until its elements have as many bytes as those of
                // memory.
                let total: usize = buffer.iter().map(|(_, len)| len).sum();
                if total == 0 {
                    return Ok(Vec::new());
                }
                let file = pieces::fill(mpi, transfer.file, total)?;
                return pieces::pair(at, &file, memory, &buffer);
            }
        }
        let len = count;
        Ok(if len > 0 {
            vec![Piece { at, len, memory }]
        } else {
            Vec::new()
        })
    }

    /// Ends a write. If ranks have the file open together, publishes the write at once: HDF5 lets
    /// any rank read metadata, or overwrite fill values, after a barrier that the driver doesn't
    /// see. If `kept` is true, publishes only transfers of all ranks; such a transfer has the same
    /// result on all ranks after all have written.
    fn written(&self, open: &Open, done: Result<(), Failure>, kept: bool) -> Result<(), Failure> {
        let Some(group) = &self.group else {
            return done;
        };
        // `together` is the same on all ranks.
        let together = matches!(self.transfer()?, Some((_, Transfer { together: true, .. })));
        let done = if kept && !together {
            done
        } else {
            done.and_then(|()| open.publish())
        };
        if together { group.agree(done) } else { done }
    }
}

unsafe extern "C" fn read(
    file: *mut File,
    _: c_int,
    _: Hid,
    at: u64,
    len: usize,
    to: *mut c_void,
) -> c_int {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    let file = unsafe { &mut *file };
    file.attempt(|file, open| {
        let pieces = file.scalar(at, len, to as usize)?;
        // SAFETY: HDF5 passes a buffer of `len` bytes, or of the extent of its datatype.
        unsafe { read_pieces(open, &pieces) }
    })
}

unsafe extern "C" fn write(
    file: *mut File,
    _: c_int,
    _: Hid,
    at: u64,
    len: usize,
    from: *const c_void,
) -> c_int {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    let file = unsafe { &mut *file };
    file.attempt(|file, open| {
        let pieces = file.scalar(at, len, from as usize);
        // SAFETY: as for `read`.
        let done = pieces.and_then(|pieces| unsafe { write_pieces(file, open, &pieces) });
        // Published at once: HDF5 writes fill values and metadata by this callback, and programs'
        // data by `write_vector`.
        file.written(open, done, false)
    })
}

/// The sizes of a vector's elements. A 0 means: this and all further sizes equal the one before.
struct Sizes {
    at: *const usize,
    last: Option<usize>,
}

impl Sizes {
    /// Returns the size of element `i`. The caller asks for the elements in order.
    ///
    /// # Safety
    /// The array has an element `i`, or a 0 before it.
    unsafe fn get(&mut self, i: usize) -> usize {
        if let Some(last) = self.last {
            return last;
        }
        // SAFETY: no 0 has been read so far, so the caller promises that element `i` exists.
        let size = unsafe { *self.at.add(i) };
        if size == 0 && i > 0 {
            // SAFETY: i > 0, so element i - 1 exists and has been read before.
            let last = unsafe { *self.at.add(i - 1) };
            self.last = Some(last);
            return last;
        }
        size
    }
}

/// Returns the pieces of a vector.
///
/// # Safety
/// The arrays have `count` elements; `sizes` may end earlier with a 0.
unsafe fn vector<T>(
    count: u32,
    addresses: *const u64,
    sizes: *const usize,
    buffers: *const *const T,
) -> Vec<Piece> {
    let mut sizes = Sizes {
        at: sizes,
        last: None,
    };
    let mut all = Vec::new();
    for i in 0..count as usize {
        // SAFETY: the caller promises that `addresses` and `buffers` have `count` elements, and
        // that `sizes` has them or ends with a 0.
        let piece = unsafe {
            Piece {
                at: *addresses.add(i),
                len: sizes.get(i),
                memory: *buffers.add(i) as usize,
            }
        };
        pieces::add(&mut all, piece);
    }
    all
}

/// Whether a vector contains metadata.
///
/// # Safety
/// The array has `count` elements, or ends with [`NO_LIST`].
unsafe fn has_metadata(count: u32, kinds: *const c_int) -> bool {
    // SAFETY: the caller promises that the array has `count` elements or ends with NO_LIST, behind
    // which no element is read.
    let kinds = (0..count as usize).map(|i| unsafe { *kinds.add(i) });
    kinds
        .take_while(|kind| *kind != NO_LIST)
        .any(|kind| kind != RAW_DATA)
}

unsafe extern "C" fn read_vector(
    file: *mut File,
    _: Hid,
    count: u32,
    _: *const c_int,
    addresses: *const u64,
    sizes: *const usize,
    buffers: *const *mut c_void,
) -> c_int {
    // SAFETY: HDF5 passes a file of this driver; its arrays have `count` elements, and each buffer
    // has its size.
    unsafe {
        let all = vector(count, addresses, sizes, buffers.cast::<*const c_void>());
        (*file).attempt(|_, open| read_pieces(open, &all))
    }
}

unsafe extern "C" fn write_vector(
    file: *mut File,
    _: Hid,
    count: u32,
    kinds: *const c_int,
    addresses: *const u64,
    sizes: *const usize,
    buffers: *const *const c_void,
) -> c_int {
    // SAFETY: as for `read_vector`.
    unsafe {
        let all = vector(count, addresses, sizes, buffers);
        let metadata = has_metadata(count, kinds);
        (*file).attempt(|file, open| {
            let done = write_pieces(file, open, &all);
            file.written(open, done, !metadata)
        })
    }
}

unsafe extern "C" fn flush(file: *mut File, _: Hid, closing: bool) -> c_int {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    let file = unsafe { &mut *file };
    file.attempt(|file, open| match &file.group {
        // The callback `close` publishes the writes.
        Some(_) if closing => Ok(()),
        Some(group) => group.agree(open.publish()),
        None => open.publish(),
    })
}

unsafe extern "C" fn truncate(file: *mut File, _: Hid, _: bool) -> c_int {
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    let file = unsafe { &mut *file };
    let eoa = file.eoa;
    match file.group {
        Some(_) if file.settled == Some(eoa) => return SUCCEED,
        None if eoa == file.eof => return SUCCEED,
        _ => {}
    }
    file.attempt(|file, open| {
        match &file.group {
            Some(group) => together::set_size(group, open, eoa)?,
            None => open.set_size(eoa)?,
        }
        (file.eof, file.settled) = (eoa, Some(eoa));
        Ok(())
    })
}

unsafe extern "C" fn lock(file: *mut File, write: bool) -> c_int {
    if locks_are_off() {
        return SUCCEED;
    }
    let kind = if write { Lock::Exclusive } else { Lock::Shared };
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    let file = unsafe { &mut *file };
    file.attempt(|file, open| match &file.group {
        // Rank 0 takes one lock for all ranks.
        Some(group) if group.leads() => group.agree(take(open, kind)),
        Some(group) => group.agree(Ok(())),
        None => take(open, kind),
    })
}

fn take(open: &Open, kind: Lock) -> Result<(), Failure> {
    match open.lock(kind) {
        Err((rustix::io::Errno::NOSYS, _)) if locks_are_tried() => Ok(()),
        Err((rustix::io::Errno::WOULDBLOCK, _)) => Err((
            rustix::io::Errno::WOULDBLOCK,
            "another process has the file open (HDF5_USE_FILE_LOCKING=FALSE takes no lock)".into(),
        )),
        locked => locked,
    }
}

unsafe extern "C" fn unlock(file: *mut File) -> c_int {
    if locks_are_off() {
        return SUCCEED;
    }
    // SAFETY: HDF5 passes an open file of this driver, which no other thread uses during the call.
    let file = unsafe { &mut *file };
    if file.group.as_ref().is_some_and(|group| !group.leads()) {
        return SUCCEED;
    }
    file.attempt(|_, open| open.lock(Lock::None))
}

/// Calls `del_from` with the return address of this call as its third argument.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn del(_: *const c_char, _: Hid) -> c_int {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {inner}", inner = sym del_from)
}

unsafe extern "C" fn del_from(name: *const c_char, list: Hid, caller: usize) -> c_int {
    let library = Library::of(caller);
    // SAFETY: HDF5 passes a C string that is valid during the call.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let remove = || configured(library, list).and_then(|config| file::remove(&name, &config));
    let removed = Group::of(library, list).and_then(|group| match group {
        Some(group) if group.leads() => group.agree(remove()),
        Some(group) => group.agree(Ok(())),
        None => remove(),
    });
    match removed {
        Ok(()) => SUCCEED,
        Err(failure) => {
            report(library, &failure);
            FAIL
        }
    }
}
