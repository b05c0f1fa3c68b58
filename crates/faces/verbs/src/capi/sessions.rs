//! The C functions for sessions, back ends and workspaces.

use super::records::Records;
use super::{changes, code, handle, meta, place, text, text_or};
use crate::abi;
use crate::backend::Loaded;
use crate::meta::{Key, Scope};
use crate::{Error, Predicate, Result, Session, Workspace};
use forebay_controls::Declared;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Once};

/// Stores a handle of a new object at `to`; null if the object can't be made.
///
/// # Safety
/// `to` is null or writable.
pub(super) unsafe fn give<T>(to: *mut *mut T, made: impl FnOnce() -> Result<T>) -> Result<()> {
    // SAFETY: the caller promises that `to` is null or writable.
    let to = unsafe { place(to, "the place for the result")? };
    *to = std::ptr::null_mut();
    *to = Box::into_raw(Box::new(made()?));
    Ok(())
}

/// Takes back a handle that [`give`] has stored, and returns its object.
///
/// # Safety
/// `at` is null, or a handle from [`give`] that isn't used afterwards.
pub(super) unsafe fn take<T>(at: *mut T, what: &str) -> Result<T> {
    if at.is_null() {
        return Err(Error::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: `at` isn't null, so the caller promises a handle from `give` that isn't used
    // afterwards.
    Ok(*unsafe { Box::from_raw(at) })
}

/// Opens a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_session_open(at: *const c_char, session: *mut *mut Session) -> c_int {
    static REPORT: Once = Once::new();
    REPORT.call_once(forebay_runtime::defect::report);
    // SAFETY: the caller's promise.
    code(|| unsafe { give(session, || Session::open(text(at, "place")?)) })
}

/// Closes a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_session_close(session: *mut Session) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe { take(session, "session").map(drop) })
}

/// Attaches a back end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_backend_attach(
    session: *const Session,
    name: *const c_char,
    kind: *const c_char,
    config: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let session = handle(session, "session")?;
        let (name, kind) = (text(name, "name")?, text(kind, "kind")?);
        let config = text_or(config, "configuration", "")?;
        if kind.contains('/') {
            session.check()?;
            let about = |e: Error| e.about(format!("back end '{name}'"));
            let loaded = Loaded::open(kind, config).map_err(about)?;
            session.attach_backend(name, Arc::new(loaded))
        } else {
            session.attach(name, kind, config)
        }
    })
}

/// Chooses a back end for new collections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_backend_choose(
    session: *const Session,
    pattern: *const c_char,
    controls: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let session = handle(session, "session")?;
        let (pattern, name) = (text(pattern, "pattern")?, text(name, "name")?);
        let declared = text_or(controls, "controls", "")?;
        let controls = declared.parse::<Declared>();
        let controls =
            controls.map_err(|e| Error::invalid(format!("the controls '{declared}': {e}")))?;
        session.choose(pattern, controls, name)
    })
}

/// Makes a workspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_create(
    session: *const Session,
    name: *const c_char,
    pairs: *const abi::Pair,
    count: usize,
    workspace: *mut *mut Workspace,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        give(workspace, || {
            let session = handle(session, "session")?;
            Workspace::create(session, text(name, "name")?, &meta(pairs, count)?)
        })
    })
}

/// Opens an existing workspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_load(
    session: *const Session,
    name: *const c_char,
    workspace: *mut *mut Workspace,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        give(workspace, || {
            let session = handle(session, "session")?;
            Workspace::load(session, Key::Name(text(name, "name")?))
        })
    })
}

/// Searches for workspaces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_search(
    session: *const Session,
    predicate: *const c_char,
    found: *mut *mut Records,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        give(found, || {
            let session = handle(session, "session")?;
            let predicate = Predicate::parse(text(predicate, "predicate")?)?;
            Records::new(&Workspace::search(session, &predicate)?)
        })
    })
}

/// Returns the record of a workspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_get_meta(
    workspace: *const Workspace,
    record: *mut *mut Records,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        give(record, || {
            let workspace = handle(workspace, "workspace")?;
            workspace.session().check()?;
            let store = workspace.session().store();
            Records::new(&[store.find(Scope::Root, Key::Uuid(workspace.uuid()))?])
        })
    })
}

/// Changes a workspace's metadata.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_set_meta(
    workspace: *const Workspace,
    pairs: *const abi::Pair,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe { handle(workspace, "workspace")?.set_meta(&changes(pairs, count)?) })
}

/// Closes a workspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_close(workspace: *mut Workspace) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe { take(workspace, "workspace").map(Workspace::close) })
}

/// Deletes a workspace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_workspace_delete(workspace: *mut Workspace) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        handle(workspace, "workspace")?.clone().delete()?;
        take(workspace, "workspace").map(drop)
    })
}
