//! The loader's records of shared objects, and the program headers that are mapped with a shared
//! object.

use std::ffi::{c_char, c_void};

/// The beginning of the loader's record of a shared object.
#[repr(C)]
pub struct LinkMap {
    pub(crate) base: usize,
    pub(crate) name: *const c_char,
    pub(crate) dynamic: *const c_void,
    pub(crate) next: *const LinkMap,
}

/// Returns the program headers in a shared object's first page; empty if they lie elsewhere.
pub(crate) fn headers_in_memory(map: &LinkMap) -> &[libc::Elf64_Phdr] {
    // SAFETY: the loader has mapped the first page, which holds the header and, in nearly
    // all that linkers make, the program headers.
    unsafe {
        let header = &*(map.base as *const libc::Elf64_Ehdr);
        let end = header.e_phoff + u64::from(header.e_phnum) * 56;
        if header.e_ident[..4] != *b"\x7fELF" || end > 4096 {
            return &[];
        }
        let first = (map.base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        std::slice::from_raw_parts(first, header.e_phnum.into())
    }
}
