//! The C functions for collections. Each carries out its verb at once, or adds it to a batch.
//! `bytes.rs` has the verbs on bytes.

use super::batches::Collected;
use super::records::Records;
use super::sessions::{give, take};
use super::{changes, code, handle, meta, number, place, text, text_or};
use crate::abi;
use crate::batch::Touch;
use crate::controls_text::read_controls;
use crate::{
    Batch, Collection, Error, Key, Op, Options, Outcome, Predicate, Record, Result, Uuid, Workspace,
};
use std::ffi::{c_char, c_int};

/// Where a verb stores the handle of the records that it found.
struct Place(*mut *mut Records);

// SAFETY: the header demands that the caller doesn't use this memory until the batch has ended.
unsafe impl Send for Place {}

impl Place {
    /// Stores null at `to`, and returns the place for a later handle.
    ///
    /// # Safety
    /// `to` is null, or writable until the verb has been carried out.
    unsafe fn new(to: *mut *mut Records) -> Result<Place> {
        // SAFETY: the caller promises that `to` is null or writable.
        *unsafe { place(to, "the place for the records")? } = std::ptr::null_mut();
        Ok(Place(to))
    }

    fn fill(&self, found: &[Record]) -> Result<Outcome> {
        let records = Box::into_raw(Box::new(Records::new(found)?));
        // SAFETY: `new` has checked that the pointer isn't null; its caller promised that it is
        // writable until the verb has been carried out.
        unsafe { *self.0 = records };
        Ok(Outcome::Number(found.len() as u64))
    }
}

/// Carries out a verb, or adds it to the batch if there is one.
///
/// # Safety
/// `batch` is null or a handle.
pub(super) unsafe fn now_or_later(
    batch: *const Collected,
    now: impl FnOnce() -> Result<i64>,
    later: impl FnOnce(&mut Batch) -> Result<Op>,
) -> Result<i64> {
    // SAFETY: the caller promises that `batch` is null or a handle.
    match unsafe { batch.as_ref() } {
        None => now(),
        Some(batch) => batch.add(later),
    }
}

/// Finds records and stores their handle at `to`, or adds this to the batch if there is one, as a
/// verb with a name and the collections that it touches.
///
/// # Safety
/// `batch` is null or a handle.
unsafe fn find_now_or_later(
    batch: *const Collected,
    to: Place,
    verb: &'static str,
    touches: &[Touch<'_>],
    find: impl FnOnce() -> Result<Vec<Record>> + Send + 'static,
) -> Result<i64> {
    let fill = move || {
        // Makes the closure capture all of `to`, as `to` is `Send`, rather than the pointer inside.
        let to = to;
        to.fill(&find()?)
    };
    // SAFETY: the caller's promise.
    match unsafe { batch.as_ref() } {
        None => fill().map(|_| 0),
        Some(batch) => batch.add(|b| b.add(verb, touches, move |_| fill().map(|_| Outcome::Done))),
    }
}

/// Reads the options of a new collection; null gives the defaults.
///
/// # Safety
/// As documented in the header.
unsafe fn read_options(at: *const abi::Options) -> Result<Options> {
    if at.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: the pointer isn't null, and every version of the structure begins with its size.
    let size = unsafe { (*at).size };
    if size != size_of::<abi::Options>() {
        return Err(Error::invalid(format!(
            "iov_options.size is {size}; this version knows {}: set it to sizeof(struct iov_options)",
            size_of::<abi::Options>()
        )));
    }
    // SAFETY: the caller's structure has the size of this type.
    let options = unsafe { *at };
    // SAFETY: the caller keeps the header's rules for these pointers.
    unsafe {
        Ok(Options {
            meta: meta(options.meta, options.meta_count)?,
            controls: read_controls(text_or(options.controls, "controls", "")?)?,
            backend: if options.backend.is_null() {
                None
            } else {
                Some(text(options.backend, "back end")?.to_owned())
            },
        })
    }
}

/// Creates a collection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_create(
    workspace: *const Workspace,
    name: *const c_char,
    options: *const abi::Options,
    collection: *mut *mut Collection,
    batch: *const Collected,
) -> i64 {
    let mut done = Ok(0);
    // SAFETY: the caller keeps the header's rules for these pointers.
    let given = unsafe {
        give(collection, || {
            let workspace = handle(workspace, "workspace")?;
            let (name, options) = (text(name, "name")?, read_options(options)?);
            let Some(batch) = batch.as_ref() else {
                return Collection::create(workspace, name, &options);
            };
            batch.collect(|batch| {
                let (op, new) = batch.create(workspace, name, options)?;
                done = Ok(i64::from(op.0));
                Ok(new)
            })
        })
    };
    number(|| given.and(done))
}

/// Opens a collection at once, or adds the opening to a batch. Stores the collection's handle.
///
/// # Safety
/// As documented in the header.
unsafe fn open(
    workspace: *const Workspace,
    key: Result<Key<'_>>,
    collection: *mut *mut Collection,
    batch: *const Collected,
) -> i64 {
    let mut done = Ok(0);
    // SAFETY: the caller keeps the header's rules for these pointers.
    let given = unsafe {
        give(collection, || {
            let workspace = handle(workspace, "workspace")?;
            let key = key?;
            let Some(batch) = batch.as_ref() else {
                return Collection::open(workspace, key);
            };
            batch.collect(|batch| {
                let (op, opened) = batch.open(workspace, key)?;
                done = Ok(i64::from(op.0));
                Ok(opened)
            })
        })
    };
    number(|| given.and(done))
}

/// Opens a collection by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_open(
    workspace: *const Workspace,
    name: *const c_char,
    collection: *mut *mut Collection,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller keeps the header's rules for these pointers.
    unsafe {
        let key = text(name, "name").map(Key::Name);
        open(workspace, key, collection, batch)
    }
}

/// Opens a collection by its UUID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_open_uuid(
    workspace: *const Workspace,
    uuid: *const abi::Uuid,
    collection: *mut *mut Collection,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller keeps the header's rules for these pointers.
    unsafe {
        let key = handle(uuid, "UUID").map(|uuid| Key::Uuid(Uuid(uuid.bytes)));
        open(workspace, key, collection, batch)
    }
}

/// Looks up a collection's record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_lookup(
    workspace: *const Workspace,
    name: *const c_char,
    record: *mut *mut Records,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let to = Place::new(record)?;
        let workspace = handle(workspace, "workspace")?.clone();
        let name = text(name, "name")?.to_owned();
        find_now_or_later(batch, to, "lookup", &[], move || {
            Ok(vec![Collection::lookup(&workspace, Key::Name(&name))?])
        })
    })
}

/// Searches for collections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_search(
    workspace: *const Workspace,
    predicate: *const c_char,
    found: *mut *mut Records,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let to = Place::new(found)?;
        let workspace = handle(workspace, "workspace")?.clone();
        let predicate = Predicate::parse(text(predicate, "predicate")?)?;
        find_now_or_later(batch, to, "search", &[], move || {
            Collection::search(&workspace, &predicate)
        })
    })
}

/// Deletes a collection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_delete(
    workspace: *const Workspace,
    name: *const c_char,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let workspace = handle(workspace, "workspace")?;
        let key = Key::Name(text(name, "name")?);
        let now = || Collection::delete(workspace, key).map(|()| 0);
        now_or_later(batch, now, |b| b.delete(workspace, key))
    })
}

/// Closes a collection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_close(
    collection: *mut Collection,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let collection = take(collection, "collection")?;
        let now = || collection.close().map(|()| 0);
        now_or_later(batch, now, |b| b.close(&collection))
    })
}

/// Returns the collection's UUID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_collection_uuid(
    collection: *const Collection,
    uuid: *mut abi::Uuid,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let to = place(uuid, "the place for the UUID")?;
        to.bytes = handle(collection, "collection")?.uuid()?.0;
        Ok(())
    })
}

/// Returns the collection's record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_get_meta(
    collection: *const Collection,
    record: *mut *mut Records,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let to = Place::new(record)?;
        let collection = handle(collection, "collection")?;
        let known = collection.clone();
        let touches = [Touch::Uses(collection)];
        find_now_or_later(batch, to, "get_meta", &touches, move || {
            let key = Key::Uuid(known.uuid()?);
            Ok(vec![Collection::lookup(known.workspace(), key)?])
        })
    })
}

/// Changes the collection's metadata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_set_meta(
    collection: *const Collection,
    pairs: *const abi::Pair,
    count: usize,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let c = handle(collection, "collection")?;
        let changes = changes(pairs, count)?;
        let now = || c.set_meta(&changes).map(|()| 0);
        now_or_later(batch, now, |b| b.set_meta(c, &changes))
    })
}
