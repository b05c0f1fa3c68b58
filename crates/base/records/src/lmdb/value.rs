//! Keys and values in LMDB's form.

use lmdb_master_sys as ffi;

pub(super) fn val(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val {
        mv_size: bytes.len(),
        mv_data: bytes.as_ptr().cast_mut().cast(),
    }
}

/// Returns the bytes of a key or value in LMDB's form.
///
/// # Safety
/// `v` was filled by LMDB in a transaction that lives for `'a`.
pub(super) unsafe fn bytes<'a>(v: &ffi::MDB_val) -> &'a [u8] {
    if v.mv_size == 0 {
        return &[];
    }
    // SAFETY: LMDB's values are valid until the transaction ends or changes the record.
    unsafe { std::slice::from_raw_parts(v.mv_data.cast(), v.mv_size) }
}
