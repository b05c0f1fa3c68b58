//! Patching of objects other than libc: programs and libraries with `syscall` instructions of their
//! own.
//!
//! Most objects have no such instruction; a table records them ([`crate::known`]). The others are
//! patched like libc, but their sites are found function by function, and their gates save all
//! vector registers. Guarantees: patched code does the same as before; a function that can't be
//! decoded is left alone; loading the same file at the same address again needs no new memory.

use crate::arch::{self, raw};
use crate::cache;
use crate::frames::Frames;
use crate::hooks::{File, Hooks};
use crate::known::Known;
use crate::object::{self, Object};
use crate::patch::{Job, Sites};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Maximum length of code that is searched: searching longer code would take more time than
/// intercepting its calls is worth. Bytes.
const CODE_MAX: u32 = 256 << 20;
/// Libraries that bypass libc on purpose and aren't patched: sanitizers, whose own calls should not
/// be intercepted; the kernel's vDSO; Forebay's.
const LEFT_ALONE: [&[u8]; 8] = [
    b"libasan.so",
    b"libtsan.so",
    b"liblsan.so",
    b"libubsan.so",
    b"libhwasan.so",
    b"libclang_rt.",
    b"linux-vdso",
    b"libforebay_",
];

/// Limit on the bytes of a note segment that are read.
const NOTES_MAX: usize = 4096;
const PAGE: u64 = 4096;

/// The arguments of [`start`], and the objects that have been patched.
struct Others {
    hooks: &'static Hooks,
    dir: Option<std::ffi::CString>,
    done: Vec<Job>,
}

struct Shared(UnsafeCell<Option<Others>>);
// SAFETY: only the holder of the lock `BUSY` uses the value.
unsafe impl Sync for Shared {}

static ALL: Shared = Shared(UnsafeCell::new(None));
/// Id of the process whose thread holds the lock of `ALL`; 0: free. A forked child may inherit its
/// parent's id here. No thread of the child will release that lock, so the child takes it over.
static BUSY: AtomicU32 = AtomicU32::new(0);

fn with(f: impl FnOnce(&mut Option<Others>)) {
    // SAFETY: getpid takes no arguments.
    let me = unsafe { raw(libc::SYS_getpid, [0; 6]) } as u32;
    let before = BUSY.load(Relaxed);
    if before == me || BUSY.compare_exchange(before, me, Acquire, Relaxed).is_err() {
        return;
    }
    // SAFETY: this thread holds the lock `BUSY`, so no other reference exists.
    f(unsafe { &mut *ALL.0.get() });
    BUSY.store(0, Release);
}

/// Patches the loaded objects; from then on [`mapped`] patches objects that are loaded later.
///
/// # Safety
/// As for [`crate::install`], which has been called.
pub(crate) unsafe fn start(hooks: &'static Hooks, dir: Option<&CStr>) {
    let own = arch::own_region();
    let mut found = Vec::new();
    object::for_each(|path, object| {
        let name = object::file_name(path);
        let alone = object::is_libc(name) || LEFT_ALONE.iter().any(|n| name.starts_with(n));
        let (low, high) = object.code_range();
        if alone || (low..high).contains(&own) {
            return;
        }
        let mut object = object;
        if object.id().is_empty() {
            // The loader's name of the program itself is empty.
            let path = if name.is_empty() {
                c"/proc/self/exe"
            } else {
                path
            };
            identify(&mut object, libc::AT_FDCWD.into(), path);
        }
        found.push(object);
    });
    with(|all| {
        let known = dir.and_then(Known::open);
        let others = all.insert(Others {
            hooks,
            dir: dir.map(CStr::to_owned),
            done: Vec::new(),
        });
        for object in found {
            let read = |at: u32, to: &mut [u8]| {
                // SAFETY: the object is loaded, and is patched only after these bytes are copied.
                let bytes = unsafe { object.bytes(at, to.len()) };
                bytes.is_some_and(|b| {
                    to.copy_from_slice(b);
                    true
                })
            };
            // SAFETY: the object is loaded, and nothing of it has run yet (the caller's promise).
            unsafe { others.patch(object, known.as_ref(), &read) };
        }
    });
}

/// Derives an id from the file for an object without a build id.
fn identify(object: &mut Object, dirfd: i64, path: &CStr) {
    // SAFETY: the path ends in 0; all zeros is a valid stat, and the kernel fills it.
    let stat = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let flags = if path.is_empty() {
            libc::AT_EMPTY_PATH
        } else {
            0
        };
        let to = (&raw mut stat) as i64;
        let args = [dirfd, path.as_ptr() as i64, to, flags.into(), 0, 0];
        (raw(libc::SYS_newfstatat, args) == 0).then_some(stat)
    };
    // A file without a link can't be loaded again, so it needs no id.
    if let Some(s) = stat.filter(|s| s.st_nlink > 0) {
        let fields = [
            s.st_dev as i64,
            s.st_ino as i64,
            s.st_size,
            s.st_mtime,
            s.st_mtime_nsec,
            s.st_ctime,
            s.st_ctime_nsec,
        ];
        let bytes: Vec<u8> = fields.iter().flat_map(|f| f.to_le_bytes()).collect();
        let sums = [cache::mix(2, &bytes), cache::mix(3, &bytes)];
        let mut id = *b"file----------------";
        id[4..12].copy_from_slice(&sums[0].to_le_bytes());
        id[12..].copy_from_slice(&sums[1].to_le_bytes());
        object.set_id(&id);
    }
}

impl Others {
    /// Patches one object, if it has any sites. `read` copies the object's bytes by address.
    ///
    /// # Safety
    /// The object's code is mapped, and nothing runs in it yet.
    unsafe fn patch(
        &mut self,
        object: Object,
        known: Option<&Known>,
        read: &dyn Fn(u32, &mut [u8]) -> bool,
    ) {
        if let Some(job) = self.done.iter().find(|j| j.is_for(&object)) {
            // SAFETY: the caller's promise.
            return unsafe { job.patch_other() };
        }
        if object.code_high - object.code_low > CODE_MAX || known.is_some_and(|k| k.has(&object)) {
            return;
        }
        let dir = self.dir.as_deref();
        let sites = dir
            .and_then(|d| Sites::kept(&object, d, self.hooks))
            .unwrap_or_else(|| {
                // SAFETY: the caller's promise.
                let code = unsafe { object.code() };
                let mut frames = Frames::read(object.frames, object.code_high, read);
                let sites = frames.as_mut().map_or(Vec::new(), |frames| {
                    arch::find_by_function(code, object.code_low, frames)
                });
                match (sites.is_empty(), dir) {
                    (true, _) => _ = known.inspect(|k| k.add(&object)),
                    (false, Some(dir)) => cache::save(dir, &object, &sites),
                    (false, None) => {}
                }
                Sites::Found(sites)
            });
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(job) = Job::of_other(self.hooks, object, sites) {
                job.patch_other();
                self.done.push(job);
            }
        }
    }
}

/// Patches code that the loader has just mapped from a file, see [`crate::mapped`].
///
/// # Safety
/// As for [`crate::mapped`].
pub(crate) unsafe fn mapped(file: &File, at: usize, len: usize, offset: u64) {
    with(|all| {
        let Some(others) = all else { return };
        let Some((mut object, headers)) = look(file, at, len, offset) else {
            return;
        };
        if let (true, Some(fd)) = (object.id().is_empty(), file.fd) {
            identify(&mut object, fd.into(), c"");
        }
        let read = |at: u32, to: &mut [u8]| {
            let at = u64::from(at);
            let holds = |h: &&libc::Elf64_Phdr| {
                h.p_type == libc::PT_LOAD
                    && at >= h.p_vaddr
                    && at - h.p_vaddr + to.len() as u64 <= h.p_filesz
            };
            let place = headers
                .iter()
                .find(holds)
                .map(|h| h.p_offset + (at - h.p_vaddr));
            place.is_some_and(|p| (file.read)(to, p) == Some(to.len()))
        };
        let known = others.dir.as_deref().and_then(Known::open);
        // SAFETY: the caller's promise.
        unsafe { others.patch(object, known.as_ref(), &read) };
    });
}

/// Returns the object described by the file's headers, with the code segment mapped at `at`, and
/// the headers.
fn look(
    file: &File,
    at: usize,
    len: usize,
    offset: u64,
) -> Option<(Object, Vec<libc::Elf64_Phdr>)> {
    const HEADER: usize = size_of::<libc::Elf64_Ehdr>();
    const ENTRY: usize = size_of::<libc::Elf64_Phdr>();
    let mut head = [0; 2048];
    let n = (file.read)(&mut head, 0)?;
    if n < HEADER || head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    // SAFETY: `head` has at least as many bytes as a header, and any bytes are a valid header.
    let header: libc::Elf64_Ehdr =
        unsafe { head.as_ptr().cast::<libc::Elf64_Ehdr>().read_unaligned() };
    if usize::from(header.e_phentsize) != ENTRY {
        return None;
    }
    // The program headers nearly always lie in the bytes already read into `head`.
    let bytes = |from: u64, len: usize| {
        let start = usize::try_from(from).ok()?;
        if let Some(there) = head[..n].get(start..start.checked_add(len)?) {
            return Some(there.to_vec());
        }
        let mut bytes = vec![0; len];
        let n = (file.read)(&mut bytes, from)?;
        (n == len).then_some(bytes)
    };
    let table = bytes(header.e_phoff, usize::from(header.e_phnum) * ENTRY)?;
    // SAFETY: each chunk of the table has the size of a program header, and any bytes are a valid
    // one.
    let entry = |b: &[u8]| unsafe { b.as_ptr().cast::<libc::Elf64_Phdr>().read_unaligned() };
    let headers: Vec<libc::Elf64_Phdr> = table.chunks_exact(ENTRY).map(entry).collect();
    let page = |h: &&libc::Elf64_Phdr| h.p_offset.checked_sub(h.p_vaddr % PAGE) == Some(offset);
    let is_code = |h: &&libc::Elf64_Phdr| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0;
    let code = headers.iter().filter(is_code).find(page)?;
    let base = at.wrapping_sub((code.p_vaddr - code.p_vaddr % PAGE) as usize);
    let is_this = |o: &Object| u64::from(o.code_low) == code.p_vaddr;
    let part = |part| Object::of_headers(base, b"", &headers, part);
    let mut object = (0..headers.len()).map_while(part).find(is_this)?;
    if object.code_range().1 > at + len {
        return None;
    }
    for h in headers.iter().filter(|h| h.p_type == libc::PT_NOTE) {
        let notes = bytes(h.p_offset, (h.p_filesz as usize).min(NOTES_MAX));
        notes.iter().for_each(|notes| object.read_notes(notes));
    }
    Some((object, headers))
}

#[cfg(test)]
mod tests;
