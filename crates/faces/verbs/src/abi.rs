//! The C types of `include/forebay/iov.h` and `include/forebay/iov_backend.h`. Tests compare their
//! sizes and offsets with those that a C compiler finds in the headers.

use std::ffi::{c_char, c_int, c_void};

/// Version of the C interface for programs. Incremented when a function or a type is added.
pub const ABI: u32 = 2;
/// Version of the table of functions of a loaded back end.
pub const BACKEND_ABI: u32 = 1;

/// Size of a token. Bytes.
pub const TOKEN: usize = 48;

/// `struct iov_uuid`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Uuid {
    /// The UUID's bytes.
    pub bytes: [u8; 16],
}

/// `iov_function *`.
pub type Function = Option<unsafe extern "C" fn(*mut c_void)>;

/// `struct iov_token`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Token {
    /// The token's bytes.
    pub bytes: [u8; TOKEN],
}

/// `struct iov_pair`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair {
    /// A key.
    pub key: *const c_char,
    /// The key's value; null removes the key.
    pub value: *const c_char,
}

/// `struct iov_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    /// Size of the structure in the header with which the program was compiled. Bytes.
    pub size: usize,
    /// Name of a back end; null: the one that `iov_backend_choose` selects, or else the session's
    /// default.
    pub backend: *const c_char,
    /// Controls as a text; null: the defaults.
    pub controls: *const c_char,
    /// Metadata.
    pub meta: *const Pair,
    /// Number of pairs.
    pub meta_count: usize,
}

/// `struct iov_record`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record {
    /// The name.
    pub name: *const c_char,
    /// The back end.
    pub backend: *const c_char,
    /// Controls that differ from the defaults, as a text.
    pub controls: *const c_char,
    /// Metadata, sorted by key.
    pub meta: *const Pair,
    /// Number of pairs.
    pub meta_count: usize,
    /// The UUID.
    pub uuid: Uuid,
}

/// `struct iov_address`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Address {
    /// The workspace's name.
    pub workspace: *const c_char,
    /// The collection's name.
    pub name: *const c_char,
    /// The collection's UUID.
    pub uuid: Uuid,
}

/// `struct iov_backend_table`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the C header says what each of them is for")]
pub struct BackendTable {
    pub abi: u32,
    pub outlives_process: u32,
    pub size: usize,
    pub kind: *const c_char,
    pub init: Option<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>,
    pub shutdown: Option<unsafe extern "C" fn(*mut c_void)>,
    pub supports: Option<unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int>,
    pub create: Option<
        unsafe extern "C" fn(*mut c_void, *const Address, *const c_char, *mut *mut c_void) -> c_int,
    >,
    pub open: Option<
        unsafe extern "C" fn(*mut c_void, *const Address, *const c_char, *mut *mut c_void) -> c_int,
    >,
    pub remove: Option<unsafe extern "C" fn(*mut c_void, *const Address) -> c_int>,
    pub read: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64) -> i64>,
    pub write: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize, u64) -> c_int>,
    pub append: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> i64>,
    pub truncate: Option<unsafe extern "C" fn(*mut c_void, u64) -> c_int>,
    pub length: Option<unsafe extern "C" fn(*mut c_void) -> i64>,
    pub sync: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    pub close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    pub error: Option<unsafe extern "C" fn() -> *const c_char>,
}
