//! The addresses, build ids and functions of the loaded objects whose code is patched. This module
//! reads only the mapped image, never a file, and only inside the segments that the loader reports.

use crate::report::MAX_OBJECTS;
use core::ffi::{CStr, c_int, c_void};

/// Maximum number of bytes of a build id that are used (SHA-1 has 20).
pub(crate) const ID_MAX: usize = 32;
const SEGMENTS: usize = 16;

/// A loaded library or program, with one of its code segments.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    /// The object's load address; all other addresses in this struct are relative to it.
    pub base: usize,
    /// Start of the code segment.
    pub code_low: u32,
    /// End of the code segment.
    pub code_high: u32,
    /// Index of this code segment among the object's code segments: nearly all objects have only
    /// one.
    pub part: u8,
    /// File name.
    pub name: [u8; 32],
    id: [u8; ID_MAX],
    id_len: usize,
    /// Start and end of each segment that is readable and not writable.
    segments: [(u32, u32); SEGMENTS],
    /// Address of `.eh_frame_hdr`; 0: none.
    pub frames: u32,
}

/// Prefixes of the file names of the objects that [`crate::install`] patches.
const NAMES: [&[u8]; 5] = [
    b"libc.so",
    b"ld-linux",
    b"libpthread.so",
    b"librt.so",
    b"libdl.so",
];

/// The loaded objects that are to be patched.
pub(crate) struct Objects {
    pub list: [Option<Object>; MAX_OBJECTS],
    pub count: usize,
}

impl Objects {
    /// Returns only the objects whose file name has this prefix.
    pub(crate) fn only(mut self, prefix: &[u8]) -> Objects {
        for place in &mut self.list {
            if place.is_some_and(|o| !o.name.starts_with(prefix)) {
                *place = None;
            }
        }
        self.count = self.list.iter().flatten().count();
        self
    }
}

/// Whether a file with this name is patched by [`crate::install`] itself.
pub(crate) fn is_libc(file: &[u8]) -> bool {
    NAMES.iter().any(|n| file.starts_with(n))
}

/// Passes each loaded object to `visit`, with its path from the loader. An object with several code
/// segments is passed once for each of them.
pub(crate) fn for_each(mut visit: impl FnMut(&CStr, Object)) {
    unsafe extern "C" fn pass<F: FnMut(&CStr, Object)>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: `info` is valid during the callback; `visit` is the closure that `for_each`
        // passed.
        unsafe {
            let (info, visit) = (&*info, &mut *visit.cast::<F>());
            if !info.dlpi_name.is_null() && !info.dlpi_phdr.is_null() {
                let path = CStr::from_ptr(info.dlpi_name);
                let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
                let (base, name) = (info.dlpi_addr as usize, file_name(path));
                for part in 0..SEGMENTS {
                    match Object::read(base, name, headers, part) {
                        Some(o) => visit(path, o),
                        None => break,
                    }
                }
            }
        }
        0
    }
    fn passing<F: FnMut(&CStr, Object)>(
        _: &F,
    ) -> unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int {
        pass::<F>
    }
    let callback = passing(&visit);
    // SAFETY: `callback` is made for the type of `visit`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback), (&raw mut visit).cast()) };
}

/// Returns the last component of a path.
pub(crate) fn file_name(path: &CStr) -> &[u8] {
    let path = path.to_bytes();
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

/// Returns the loaded objects that [`crate::install`] patches.
pub(crate) fn loaded() -> Objects {
    let mut found = Objects {
        list: [None; MAX_OBJECTS],
        count: 0,
    };
    // SAFETY: the callback `visit` takes an Objects; `found` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: `info` is valid during the callback; `data` is the pointer that `loaded` passed.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Objects>()) };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() || found.count == found.list.len() {
        return 0;
    }
    // SAFETY: the loader passes a C string that is valid during the callback.
    let file = file_name(unsafe { CStr::from_ptr(info.dlpi_name) });
    if !is_libc(file) {
        return 0;
    }
    // SAFETY: the loader passes a table of `dlpi_phnum` headers, valid during the callback.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    // SAFETY: the loader has loaded this object, and these are its headers.
    if let Some(object) = unsafe { Object::read(info.dlpi_addr as usize, file, headers, 0) } {
        found.list[found.count] = Some(object);
        found.count += 1;
    }
    0
}

impl Object {
    unsafe fn read(
        base: usize,
        file: &[u8],
        headers: &[libc::Elf64_Phdr],
        part: usize,
    ) -> Option<Object> {
        let mut object = Object::of_headers(base, file, headers, part)?;
        for h in headers.iter().filter(|h| h.p_type == libc::PT_NOTE) {
            // SAFETY: the caller's promise: the object is loaded. `bytes` checks that the note is
            // inside it.
            if let Some(notes) = unsafe { object.bytes(h.p_vaddr as u32, h.p_memsz as usize) } {
                object.read_notes(notes);
            }
        }
        Some(object)
    }

    /// Returns the object with these program headers and its code segment number `part`, without a
    /// build id.
    pub(crate) fn of_headers(
        base: usize,
        file: &[u8],
        headers: &[libc::Elf64_Phdr],
        part: usize,
    ) -> Option<Object> {
        let mut object = Object {
            base,
            code_low: 0,
            code_high: 0,
            part: part as u8,
            name: [0; 32],
            id: [0; ID_MAX],
            id_len: 0,
            segments: [(0, 0); SEGMENTS],
            frames: 0,
        };
        let n = file.len().min(object.name.len());
        object.name[..n].copy_from_slice(&file[..n]);
        let (mut segments, mut codes) = (0, 0);
        for h in headers {
            let low = u32::try_from(h.p_vaddr).ok()?;
            let high = u32::try_from(h.p_vaddr.checked_add(h.p_memsz)?).ok()?;
            match h.p_type {
                libc::PT_LOAD if h.p_flags & libc::PF_W == 0 && h.p_flags & libc::PF_R != 0 => {
                    if segments < SEGMENTS {
                        object.segments[segments] = (low, high);
                        segments += 1;
                    }
                    if h.p_flags & libc::PF_X != 0 {
                        if codes == part {
                            (object.code_low, object.code_high) = (low, high);
                        }
                        codes += 1;
                    }
                }
                libc::PT_GNU_EH_FRAME => object.frames = low,
                _ => {}
            }
        }
        (object.code_high > object.code_low).then_some(object)
    }

    /// Sets the build id, if the object has none.
    pub(crate) fn set_id(&mut self, id: &[u8]) {
        if self.id_len == 0 && id.len() <= ID_MAX {
            self.id[..id.len()].copy_from_slice(id);
            self.id_len = id.len();
        }
    }

    /// Finds the build id in notes.
    pub(crate) fn read_notes(&mut self, mut notes: &[u8]) {
        let word = |b: &[u8], i: usize| {
            b.get(i..i + 4)
                .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]) as usize)
        };
        while let (Some(name_len), Some(len), Some(kind)) =
            (word(notes, 0), word(notes, 4), word(notes, 8))
        {
            let Some(desc) = name_len
                .checked_next_multiple_of(4)
                .and_then(|n| n.checked_add(12))
            else {
                return;
            };
            let Some(id) = desc.checked_add(len).and_then(|end| notes.get(desc..end)) else {
                return;
            };
            if kind == 3 && notes.get(12..16) == Some(b"GNU\0") && name_len == 4 && len <= ID_MAX {
                self.id[..len].copy_from_slice(id);
                self.id_len = len;
                return;
            }
            let Some(rest) = len
                .checked_next_multiple_of(4)
                .and_then(|l| notes.get(desc + l..))
            else {
                return;
            };
            notes = rest;
        }
    }

    /// Returns an object made of `code`, for tests.
    #[cfg(test)]
    pub(crate) fn of_code(code: &'static [u8]) -> Object {
        let (mut segments, end) = ([(0, 0); SEGMENTS], code.len() as u32);
        segments[0] = (0, end);
        let base = code.as_ptr() as usize;
        Object {
            base,
            code_low: 0,
            code_high: end,
            part: 0,
            name: [0; 32],
            id: [0; ID_MAX],
            id_len: 0,
            segments,
            frames: end,
        }
    }

    /// Returns the build id; empty if the object has none.
    pub(crate) fn id(&self) -> &[u8] {
        &self.id[..self.id_len]
    }

    /// Returns the code's absolute bounds.
    pub(crate) fn code_range(&self) -> (usize, usize) {
        (
            self.base + self.code_low as usize,
            self.base + self.code_high as usize,
        )
    }

    /// Returns `len` bytes at `at`; None unless they lie inside one segment.
    ///
    /// # Safety
    /// As for [`Object::code`].
    pub(crate) unsafe fn bytes(&self, at: u32, len: usize) -> Option<&'static [u8]> {
        let fits = self
            .segments
            .iter()
            .any(|&(low, high)| at >= low && at <= high && len <= (high - at) as usize);
        // SAFETY: the loader has mapped the segment readable, and the object stays loaded (the
        // caller's promise).
        fits.then(|| unsafe {
            core::slice::from_raw_parts((self.base + at as usize) as *const u8, len)
        })
    }

    /// Returns the code.
    ///
    /// # Safety
    /// The object must be loaded, and its code must not change while the slice is used.
    pub(crate) unsafe fn code(&self) -> &'static [u8] {
        // SAFETY: `code_low..code_high` is one of the segments.
        unsafe {
            self.bytes(self.code_low, (self.code_high - self.code_low) as usize)
                .unwrap_or(&[])
        }
    }

    /// Returns all segments that aren't writable, with their relative addresses.
    ///
    /// # Safety
    /// As for [`Object::code`].
    pub(crate) unsafe fn readable(&self) -> Vec<(u64, &'static [u8])> {
        // SAFETY: the caller's promise.
        let bytes = |low: u32, high: u32| unsafe { self.bytes(low, (high - low) as usize) };
        self.segments
            .iter()
            .filter(|s| s.1 > s.0)
            .filter_map(|&(low, high)| Some((low.into(), bytes(low, high)?)))
            .collect()
    }

    /// Returns the starts of functions, from the unwinders' sorted table. Empty if there is no
    /// table of the usual form.
    ///
    /// # Safety
    /// As for [`Object::code`].
    pub(crate) unsafe fn functions(&self) -> Vec<u32> {
        // SAFETY: the caller's promise.
        let head = unsafe { self.bytes(self.frames, 12) };
        // The table's head: version 1; any pointer, a 32-bit count, 32-bit entries relative to the
        // table.
        let Some(&[1, _, 0x03, 0x3b, .., a, b, c, d]) = head else {
            return Vec::new();
        };
        let count = u32::from_le_bytes([a, b, c, d]) as usize;
        // SAFETY: the caller's promise.
        let Some(table) = (unsafe { self.bytes(self.frames + 12, count.saturating_mul(8)) }) else {
            return Vec::new();
        };
        table
            .chunks_exact(8)
            .map(|e| {
                self.frames
                    .wrapping_add_signed(i32::from_le_bytes([e[0], e[1], e[2], e[3]]))
            })
            .filter(|f| (self.code_low..self.code_high).contains(f))
            .collect()
    }
}
