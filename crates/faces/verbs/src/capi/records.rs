//! The C functions for records. The texts and pairs of a handle's records stay in memory until all
//! of the handle's records are freed together.

use crate::abi;
use crate::controls_text::write_controls;
use crate::{Error, Record, Result};
use std::ffi::CString;

/// The type `iov_records`.
pub struct Records {
    records: Vec<abi::Record>,
    /// The memory to which `records` points.
    _texts: Vec<CString>,
    _pairs: Vec<Box<[abi::Pair]>>,
}

impl Records {
    pub fn new(found: &[Record]) -> Result<Records> {
        let mut texts = Vec::new();
        let mut pairs = Vec::new();
        let mut keep = |text: &str| {
            let text = CString::new(text).map_err(|_| Error::invalid("a text contains NUL"))?;
            // Moving a CString doesn't move its text.
            let at = text.as_ptr();
            texts.push(text);
            Ok::<_, Error>(at)
        };
        let mut records = Vec::with_capacity(found.len());
        for record in found {
            let all = record.meta.iter().map(|(key, value)| {
                Ok(abi::Pair {
                    key: keep(key)?,
                    value: keep(value)?,
                })
            });
            let meta: Box<[abi::Pair]> = all.collect::<Result<_>>()?;
            records.push(abi::Record {
                name: keep(&record.name)?,
                backend: keep(&record.backend)?,
                controls: keep(&write_controls(&record.controls))?,
                meta: meta.as_ptr(),
                meta_count: meta.len(),
                uuid: abi::Uuid {
                    bytes: record.uuid.0,
                },
            });
            pairs.push(meta);
        }
        Ok(Records {
            records,
            _texts: texts,
            _pairs: pairs,
        })
    }
}

/// Returns the number of records.
///
/// # Safety
/// `records` is null or a handle of records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_records_count(records: *const Records) -> usize {
    // SAFETY: the caller promises that `records` is null or a handle.
    unsafe { records.as_ref() }.map_or(0, |r| r.records.len())
}

/// Returns the record with index `which`; null if there is none.
///
/// # Safety
/// `records` is null or a handle of records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_records_get(
    records: *const Records,
    which: usize,
) -> *const abi::Record {
    // SAFETY: the caller promises that `records` is null or a handle.
    let record = unsafe { records.as_ref() }.and_then(|r| r.records.get(which));
    record.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Frees all records of a handle.
///
/// # Safety
/// `records` is null or a handle of records. The handle isn't used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_records_free(records: *mut Records) {
    if !records.is_null() {
        // SAFETY: the caller promises a handle, which isn't null here and isn't used afterwards.
        drop(unsafe { Box::from_raw(records) });
    }
}
