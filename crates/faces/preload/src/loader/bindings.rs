//! Binds this library's own references to functions of libc and the loader, so that no other
//! library's functions of the same name are called.
//!
//! The loader binds this library's calls as it binds the program's: to sanitizers, profilers and
//! other libraries that define functions of the same names. Such a function may wait for a lock
//! whose holder waits for this library: ThreadSanitizer finds a race in this library's `memset`,
//! and opens files to report it, both under its locks. Or it may call the pool from within this
//! library. So, before anything else, this module binds each reference again: to the function of
//! that name and version in libc or the loader. Until then no such function may be called, not even
//! by code that a compiler generates: so texts are compared byte by byte.

use crate::loader::link_map::{LinkMap, headers_in_memory};
use forebay_intercept::raw;
use forebay_media::PAGE;
use libc::{Elf64_Rela, Elf64_Sym};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::null;

/// Entries of a dynamic section (elf.h).
mod tag {
    pub const PLTRELSZ: usize = 2;
    pub const STRTAB: usize = 5;
    pub const SYMTAB: usize = 6;
    pub const RELA: usize = 7;
    pub const RELASZ: usize = 8;
    pub const JMPREL: usize = 23;
    pub const GNU_HASH: usize = 0x6fff_fef5;
    pub const VERSYM: usize = 0x6fff_fff0;
    pub const VERDEF: usize = 0x6fff_fffc;
    pub const VERNEED: usize = 0x6fff_fffe;
}

/// Types of relocations that store a function's address.
const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;
/// Types of symbols: a function, and a function that selects the actual one.
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// The bits of an entry of the version table that hold the version's number.
const VERSION: u16 = 0x7fff;
/// Maximum number of versions of other libraries' symbols that this library needs.
const VERSIONS: usize = 64;

/// The beginning of the structure from which debuggers learn the loaded objects (`r_debug`).
#[repr(C)]
struct Debug {
    version: i32,
    first: *const LinkMap,
}

unsafe extern "C" {
    /// The loader's structure for the program's namespace.
    #[link_name = "_r_debug"]
    static OBJECTS: Debug;
    /// This library's dynamic section.
    #[link_name = "_DYNAMIC"]
    static DYNAMIC: u8;
}

/// A C string that is never freed.
#[derive(Clone, Copy)]
struct Text(*const c_char);

impl Text {
    fn bytes(self) -> impl Iterator<Item = u8> {
        let mut at = self.0.cast::<u8>();
        std::iter::from_fn(move || {
            // SAFETY: a Text ends with a null byte, beyond which nothing is read. The read is
            // volatile, so that no loop over it is compiled to a call of strlen.
            unsafe {
                let byte = at.read_volatile();
                at = at.add(usize::from(byte != 0));
                (byte != 0).then_some(byte)
            }
        })
    }

    fn is(self, other: Text) -> bool {
        self.bytes().eq(other.bytes())
    }

    /// Returns the last component of a path.
    fn file_name(self) -> Text {
        let slash = self.bytes().zip(1..).filter(|&(b, _)| b == b'/').last();
        // SAFETY: the offset is at most the text's length.
        Text(unsafe { self.0.add(slash.map_or(0, |(_, next)| next)) })
    }
}

/// Addresses of a loaded object's tables. Null: the object has no such table.
#[derive(Clone, Copy)]
struct Tables {
    base: usize,
    symbols: *const Elf64_Sym,
    texts: *const c_char,
    /// The version number of each symbol.
    versions: *const u16,
    defined: *const u8,
    needed: *const u8,
    hashes: *const u32,
    /// The tables of relocations, with the number of entries.
    places: [(*const Elf64_Rela, usize); 2],
}

/// A version that an object needs of a library: its number in the object, the library, and its
/// number in the library.
#[derive(Clone, Copy)]
struct Version {
    here: u16,
    library: Tables,
    there: u16,
}

impl Tables {
    fn of(map: &LinkMap) -> Tables {
        let entry = |wanted: usize| {
            let mut at = map.dynamic.cast::<[usize; 2]>();
            // SAFETY: the section ends with an entry of tag 0.
            unsafe {
                while (*at)[0] != wanted && (*at)[0] != 0 {
                    at = at.add(1);
                }
                if (*at)[0] == 0 { 0 } else { (*at)[1] }
            }
        };
        // The loader has made the addresses of some tables absolute, but not of all.
        let table = |wanted: usize| match entry(wanted) {
            at if at == 0 || at >= map.base => at,
            at => map.base + at,
        };
        let count = |wanted: usize| entry(wanted) / size_of::<Elf64_Rela>();
        Tables {
            base: map.base,
            symbols: table(tag::SYMTAB) as _,
            texts: table(tag::STRTAB) as _,
            versions: table(tag::VERSYM) as _,
            defined: table(tag::VERDEF) as _,
            needed: table(tag::VERNEED) as _,
            hashes: table(tag::GNU_HASH) as _,
            places: [
                (table(tag::RELA) as _, count(tag::RELASZ)),
                (table(tag::JMPREL) as _, count(tag::PLTRELSZ)),
            ],
        }
    }

    /// Whether the object has all tables that are needed to look up names and versions.
    fn are_whole(&self) -> bool {
        !(self.symbols.is_null() || self.texts.is_null() || self.versions.is_null())
    }

    /// # Safety
    /// `at` must lie inside the object's string table (DT_STRTAB).
    unsafe fn text(&self, at: u32) -> Text {
        // SAFETY: the caller promises that `at` lies inside the string table.
        Text(unsafe { self.texts.add(at as usize) })
    }

    /// Fills `found` with the versions that this object needs of loaded libraries. Returns their
    /// number.
    fn find_needed(&self, found: &mut [MaybeUninit<Version>]) -> usize {
        let (mut count, mut file) = (0, self.needed);
        // SAFETY: reads by the layouts of Elf64_Verneed (version and count, file, first, next) and
        // Elf64_Vernaux (hash, flags and number, name, next), which the linker has filled; next is
        // 0 at the end.
        unsafe {
            while !file.is_null() {
                let [_, name, first, next] = file.cast::<[u32; 4]>().read();
                let library = library(self.text(name));
                let mut one = file.add(first as usize);
                loop {
                    let [hash, number, _, next] = one.cast::<[u32; 4]>().read();
                    if let Some(library) = library
                        && let Some(there) = library.defines(hash)
                        && let Some(place) = found.get_mut(count)
                    {
                        let here = (number >> 16) as u16 & VERSION;
                        place.write(Version {
                            here,
                            library,
                            there,
                        });
                        count += 1;
                    }
                    if next == 0 {
                        break;
                    }
                    one = one.add(next as usize);
                }
                file = if next == 0 {
                    null()
                } else {
                    file.add(next as usize)
                };
            }
        }
        count
    }

    /// Returns the number of the version with this hash, if this object defines it.
    fn defines(&self, hash: u32) -> Option<u16> {
        let mut at = self.defined;
        // SAFETY: reads by the layout of Elf64_Verdef, which the linker has filled: version and
        // flags, number and count, hash, first, next (0 at the end).
        unsafe {
            while !at.is_null() {
                let [_, number, its, _, next] = at.cast::<[u32; 5]>().read();
                if its == hash {
                    return Some(number as u16 & VERSION);
                }
                at = if next == 0 {
                    null()
                } else {
                    at.add(next as usize)
                };
            }
        }
        None
    }

    /// Returns the address of the function that this object defines under a name and a version.
    fn function(&self, name: Text, version: u16) -> Option<usize> {
        if !self.are_whole() || self.hashes.is_null() {
            return None;
        }
        let hash = name
            .bytes()
            .fold(5381_u32, |h, b| h.wrapping_mul(33).wrapping_add(b.into()));
        // SAFETY: reads by the layout of GNU_HASH: a head, a filter, buckets, and for each symbol
        // the hash of its name; a hash whose lowest bit is set ends its bucket.
        unsafe {
            let [buckets, first, filter, _] = self.hashes.cast::<[u32; 4]>().read();
            let bucket = self.hashes.add(4 + 2 * filter as usize);
            let chain = bucket.add(buckets as usize);
            let mut number = bucket.add((hash % buckets) as usize).read();
            while number >= first {
                let its = chain.add((number - first) as usize).read();
                let symbol = self.symbols.add(number as usize).read();
                if its | 1 == hash | 1
                    && self.versions.add(number as usize).read() & VERSION == version
                    && self.text(symbol.st_name).is(name)
                {
                    return self.address(&symbol);
                }
                if its & 1 == 1 {
                    return None;
                }
                number += 1;
            }
        }
        None
    }

    fn address(&self, symbol: &Elf64_Sym) -> Option<usize> {
        let at = self.base + symbol.st_value as usize;
        match symbol.st_info & 0xf {
            _ if symbol.st_shndx == 0 => None,
            STT_FUNC => Some(at),
            STT_GNU_IFUNC => {
                // SAFETY: `at` is libc's own resolver, which only checks the processor's features.
                let which = unsafe { std::mem::transmute::<usize, extern "C" fn() -> usize>(at) };
                Some(which())
            }
            _ => None,
        }
    }

    /// Returns the slots that hold addresses of functions, each with the address that it should
    /// hold. The address is in this library if this library defines the function, otherwise in the
    /// library from which this library needs the function.
    fn bindings(&self, needed: &[Version]) -> impl Iterator<Item = (*mut usize, usize)> {
        let target = |number: usize| {
            // SAFETY: the linker made an entry in both tables for each symbol of a relocation.
            let (symbol, version) = unsafe {
                (
                    self.symbols.add(number).read(),
                    self.versions.add(number).read() & VERSION,
                )
            };
            if symbol.st_shndx != 0 {
                return self.address(&symbol);
            }
            let from = needed.iter().find(|v| v.here == version)?;
            // SAFETY: the linker made this the offset of a name in the table of texts.
            let name = unsafe { self.text(symbol.st_name) };
            from.library.function(name, from.there)
        };
        self.places.iter().flat_map(move |&(first, count)| {
            let kinds = R_X86_64_GLOB_DAT..=R_X86_64_JUMP_SLOT;
            (0..if first.is_null() { 0 } else { count })
                // SAFETY: the table has `count` entries.
                .map(move |n| unsafe { first.add(n).read() })
                .filter(move |r| kinds.contains(&(r.r_info & 0xffff_ffff)))
                .filter_map(move |r| {
                    let place = (self.base + r.r_offset as usize) as *mut usize;
                    Some((place, target((r.r_info >> 32) as usize)?))
                })
        })
    }
}

/// Returns the objects that are loaded in the program's namespace.
fn objects() -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: the loader's list of objects doesn't change while constructors run.
    let first = unsafe { OBJECTS.first.as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |o| unsafe { o.next.as_ref() })
}

/// Returns the loader's record of this instance of the library, if the instance is in the program's
/// namespace.
pub fn own_record() -> Option<&'static LinkMap> {
    objects().find(|o| o.dynamic.cast() == &raw const DYNAMIC)
}

/// File names of Forebay's libraries that intercept calls: this one, and the `LD_AUDIT` library,
/// which is built from the same code.
const OURS: [&CStr; 2] = [c"libforebay_preload.so", c"libforebay_audit.so"];

/// Whether this copy of the library is the first in the program's namespace. A program may load
/// another copy as a plug-in: HDF5, for instance, loads all libraries of a directory.
pub fn is_first() -> bool {
    let is_ours = |o: &LinkMap| {
        let name = Text(o.name);
        !o.name.is_null() && OURS.iter().any(|n| name.file_name().is(Text(n.as_ptr())))
    };
    let first = objects().find(|o| o.dynamic.cast() == &raw const DYNAMIC || is_ours(o));
    first.is_some_and(|o| o.dynamic.cast() == &raw const DYNAMIC)
}

/// Returns the tables of the loaded library with this file name.
fn library(name: Text) -> Option<Tables> {
    objects()
        .find(|o| !o.name.is_null() && Text(o.name).file_name().is(name))
        .map(Tables::of)
}

/// Binds this library's references to itself, libc and the loader, if it is in the program's
/// namespace. (In the auditing namespace it is alone with libc.)
///
/// # Safety
/// Called by this library's constructor, before any call that could be bound to another library's
/// function.
pub unsafe fn to_their_own() {
    let Some(map) = own_record() else {
        return;
    };
    let own = Tables::of(map);
    if !own.are_whole() {
        return;
    }
    let mut needed = [const { MaybeUninit::uninit() }; VERSIONS];
    let count = own.find_needed(&mut needed);
    // SAFETY: `find_needed` has filled in `count` entries.
    let needed = unsafe { needed[..count].assume_init_ref() };
    let others = || {
        own.bindings(needed)
            // SAFETY: `place` is a slot of this library, which the loader has filled.
            .filter(|&(place, target)| unsafe { place.read() } != target)
    };
    if others().next().is_none() {
        return;
    }
    // The loader has made the pages that hold these slots read-only.
    let sealed = headers_in_memory(map)
        .iter()
        .find(|h| h.p_type == libc::PT_GNU_RELRO);
    let from = sealed.map_or(0, |h| (map.base + h.p_vaddr as usize) & !(PAGE - 1));
    let to = sealed.map_or(0, |h| {
        (map.base + (h.p_vaddr + h.p_memsz) as usize) & !(PAGE - 1)
    });
    let protect = |how: i32| {
        let args = [from as i64, (to - from) as i64, how.into(), 0, 0, 0];
        // SAFETY: changes only pages of this library, which no other code than the loader changes.
        to == from || unsafe { raw(libc::SYS_mprotect, args) } == 0
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE) {
        // SAFETY: the slots are this library's and writable now; the targets have the same types.
        others().for_each(|(place, target)| unsafe { place.write(target) });
        protect(libc::PROT_READ);
    }
}
