//! The C functions for buffers and mapped chunks. In C, a mapping's address is its handle: each
//! session has a table of its mappings by address.

use super::{code, handle, place};
use crate::abi;
use crate::chunk::share;
use crate::{Access, Chunk, Collection, Error, Result, Session, Token};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};

/// Stores a chunk in the session's table, and returns its address.
fn keep(session: &Session, chunk: Chunk) -> Result<*mut c_void> {
    let address = chunk.address();
    session
        .mapped()?
        .insert(address.addr(), chunk.into_mapped());
    Ok(address.cast())
}

fn unknown(memory: *const c_void) -> Error {
    Error::invalid(format!(
        "{memory:p} isn't where this session has something in a pool's memory: only what iov_allocate (with a pool), iov_chunk_map and \
         iov_chunk_attach gave"
    ))
}

fn allocate(session: &Session, len: usize) -> Result<*mut c_void> {
    session.check()?;
    if session.pool().is_some() {
        return keep(session, Chunk::allocate(session, len)?);
    }
    let mut memory = std::ptr::null_mut();
    // SAFETY: `memory` is a local variable, valid for writing a pointer.
    match unsafe { libc::posix_memalign(&mut memory, 4096, len.max(1)) } {
        0 => Ok(memory),
        e => Err(Error::of(
            format!("a buffer of {len} bytes"),
            Errno::from_raw_os_error(e),
        )),
    }
}

/// Allocates a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_allocate(session: *const Session, len: usize) -> *mut c_void {
    let mut memory = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    code(|| unsafe {
        memory = allocate(handle(session, "session")?, len)?;
        Ok(())
    });
    memory
}

/// Frees a buffer.
///
/// # Safety
/// `session` is null or a handle. `memory` is a result of `iov_allocate` for this session, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_free(session: *const Session, memory: *mut c_void) {
    // SAFETY: the caller promises that `session` is null or a handle.
    let Ok(session) = (unsafe { handle(session, "session") }) else {
        return;
    };
    if session.pool().is_some() {
        // Fails in a forked child, which doesn't have the memory.
        let taken = session.mapped().map(|mut all| all.remove(&memory.addr()));
        drop(taken);
        return;
    }
    // SAFETY: in a session without a pool, the buffer came from `posix_memalign`; null is allowed,
    // too.
    unsafe { libc::free(memory) }
}

/// Maps a chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_chunk_map(
    collection: *const Collection,
    at: u64,
    len: usize,
    access: c_int,
    memory: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let to = place(memory, "the place for the memory")?;
        *to = std::ptr::null_mut();
        let access = match access {
            0 => Access::Read,
            1 => Access::Write,
            other => return Err(Error::invalid(format!("{other} is no access to memory"))),
        };
        let collection = handle(collection, "collection")?;
        let chunk = Chunk::map(collection, at, len, access)?;
        *to = keep(collection.workspace().session(), chunk)?;
        Ok(())
    })
}

/// Unmaps a chunk, and removes it from the session's table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_chunk_unmap(session: *const Session, memory: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let chunk = handle(session, "session")?.mapped()?.remove(&memory.addr());
        chunk.map(drop).ok_or_else(|| unknown(memory))
    })
}

/// Creates a token by which other processes can map the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_chunk_share(
    session: *const Session,
    memory: *const c_void,
    len: usize,
    token: *mut abi::Token,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let to = place(token, "the place for the token")?;
        let mapped = handle(session, "session")?.mapped()?;
        let before = mapped.range(..=memory.addr()).next_back();
        let (start, chunk) = before.ok_or_else(|| unknown(memory))?;
        let from = memory.addr() - start;
        if from >= chunk.len() {
            return Err(unknown(memory));
        }
        to.bytes = share(chunk, from, len)?.0;
        Ok(())
    })
}

/// Maps the memory that another process's token names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_chunk_attach(
    session: *const Session,
    token: *const abi::Token,
    memory: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let to = place(memory, "the place for the memory")?;
        *to = std::ptr::null_mut();
        let session = handle(session, "session")?;
        let chunk = Chunk::attach(session, &Token(handle(token, "token")?.bytes))?;
        if let Some(len) = len.as_mut() {
            *len = chunk.len();
        }
        *to = keep(session, chunk)?;
        Ok(())
    })
}
