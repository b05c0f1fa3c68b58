//! The finder on this machine's C library and loader, and on artificial code.

use super::*;
use crate::Hooks;
use crate::object::loaded;
use crate::test_hooks::EVERY;

fn objects() -> Vec<(Object, Vec<Site>)> {
    // SAFETY: the object stays loaded, and unit tests don't patch it.
    let sites = |o: &Object| unsafe { find(o) };
    loaded()
        .list
        .into_iter()
        .flatten()
        .map(|o| (o, sites(&o)))
        .collect()
}

/// The finder finds the `syscall` instructions of this machine's libraries. It must not miss any
/// `0f 05` after `mov imm32,%eax`, which is hardly ever data.
#[test]
fn finds_the_sites_of_this_machine() {
    let all = objects();
    assert!(all.iter().any(|(o, _)| o.name.starts_with(b"libc.so")));
    assert!(all.iter().any(|(o, _)| o.name.starts_with(b"ld-linux")));
    for (object, sites) in &all {
        // SAFETY: the object stays loaded, and unit tests don't patch it.
        let code = unsafe { object.code() };
        for (i, w) in code.windows(7).enumerate() {
            if w[0] == 0xb8 && w[3..] == [0, 0, 0x0f, 0x05] {
                let at = object.code_low + i as u32 + 5;
                let site = sites.iter().find(|s| s.at == at).expect("found");
                let nr = i32::from(w[1]) + 256 * i32::from(w[2]);
                assert!(
                    site.nr == nr || site.nr == -1,
                    "{at:x}: {} is not {nr}",
                    site.nr
                );
            }
        }
        println!(
            "{}: {} sites",
            String::from_utf8_lossy(&object.name),
            sites.len()
        );
    }
}

/// All calls that the loaded libc makes can be patched; rt_sigreturn is recognised and left
/// unpatched.
#[test]
fn all_can_be_patched() {
    for (object, sites) in objects() {
        let unknown = sites.iter().filter(|s| s.nr < 0).count();
        let stays = sites
            .iter()
            .filter(|s| s.form == FORM_WINDOW && usize::from(s.pre) >= JUMP)
            .count();
        let hops = sites.iter().filter(|s| s.form == FORM_HOP).count();
        println!(
            "{}: {} sites, {unknown} numbers unknown, {stays} keep their instruction, {hops} by short jump",
            String::from_utf8_lossy(&object.name),
            sites.len()
        );
        for s in &sites {
            assert!(s.is_sane(object.code_low, object.code_high), "{s:x?}");
            // SAFETY: `s` is sane (asserted), and the object stays loaded.
            assert!(unsafe { s.matches(object.base) });
            assert_ne!(s.form, FORM_NONE, "{s:x?}");
            assert_eq!(s.wanted(&EVERY), s.nr != super::super::NR_SIGRETURN as i32);
        }
        for w in sites.windows(2) {
            assert!(
                w[0].start + w[0].window_len() as u32 <= w[1].start,
                "windows overlap: {w:x?}"
            );
        }
        if !sites.is_empty() {
            assert!(
                sites
                    .iter()
                    .any(|s| s.nr == super::super::NR_SIGRETURN as i32)
            );
        }
    }
}

/// The numbers of the calls that a file system needs to intercept are known at libc's sites, so
/// that other sites needn't be patched.
#[test]
fn file_calls_are_known_by_number() {
    let all = objects();
    let libc_sites = &all
        .iter()
        .find(|(o, _)| o.name.starts_with(b"libc.so"))
        .expect("libc")
        .1;
    let numbers = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_openat,
        libc::SYS_close,
        libc::SYS_newfstatat,
        libc::SYS_fstat,
        libc::SYS_lseek,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_access,
        libc::SYS_dup,
        libc::SYS_dup2,
        libc::SYS_dup3,
        libc::SYS_fcntl,
        libc::SYS_flock,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_truncate,
        libc::SYS_ftruncate,
        libc::SYS_getdents64,
        libc::SYS_getcwd,
        libc::SYS_chdir,
        libc::SYS_fchdir,
        libc::SYS_rename,
        libc::SYS_renameat2,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_link,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
        libc::SYS_symlink,
        libc::SYS_readlink,
        libc::SYS_chmod,
        libc::SYS_fchmod,
        libc::SYS_chown,
        libc::SYS_fchown,
        libc::SYS_statfs,
        libc::SYS_fstatfs,
        libc::SYS_statx,
        libc::SYS_utimensat,
        libc::SYS_fallocate,
        libc::SYS_sendfile,
        libc::SYS_copy_file_range,
        libc::SYS_setxattr,
        libc::SYS_getxattr,
        libc::SYS_listxattr,
        libc::SYS_removexattr,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_vfork,
        libc::SYS_ioctl,
        libc::SYS_mknodat,
        libc::SYS_linkat,
        libc::SYS_faccessat,
    ];
    for nr in numbers {
        assert!(libc_sites.iter().any(|s| i64::from(s.nr) == nr), "{nr}");
    }
}

/// Reading a jump table never reads outside of the segments.
#[test]
fn jump_tables_are_read_inside_segments_only() {
    let bytes = [1u8, 0, 0, 0, 2, 0, 0];
    let readable = [(100u64, &bytes[..])];
    assert_eq!(read_i32(&readable, 100), Some(1));
    for at in [0, 99, 101 + 3, 106, 107, u64::MAX, u64::MAX - 3] {
        assert_eq!(read_i32(&readable, at), None, "{at}");
    }
}

/// Returns the only site of artificial code.
fn only(code: &'static [u8]) -> Site {
    // SAFETY: the object is the slice, which lives for ever and isn't changed.
    let sites = unsafe { find(&Object::of_code(code)) };
    assert_eq!(sites.len(), 1);
    sites[0]
}

#[test]
fn forms() {
    // mov $257,%eax; syscall; ret
    let s = only(&[0xb8, 1, 1, 0, 0, 0x0f, 5, 0xc3]);
    assert_eq!(
        (s.nr, s.form, s.start, s.pre, s.post),
        (257, FORM_WINDOW, 0, 5, 0)
    );
    // xor %eax,%eax; syscall; cmp $-4096,%rax; ret
    let s = only(&[0x31, 0xc0, 0x0f, 5, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0xc3]);
    assert_eq!(
        (s.nr, s.form, s.start, s.pre, s.post),
        (0, FORM_WINDOW, 2, 0, 6)
    );
    // mov $1,%eax; L: syscall; cmp $-4096,%rax; jmp L: the number isn't certain, and L must stay a
    // jump target.
    let s = only(&[
        0xb8, 1, 0, 0, 0, 0x0f, 5, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0xeb, 0xf6,
    ]);
    assert_eq!(
        (s.nr, s.form, s.start, s.pre, s.post),
        (-1, FORM_WINDOW, 5, 0, 6)
    );
    // jmp A; mov $1,%eax; syscall; A: cmp $-4096,%rax; ret: a jump leads to the comparison, too.
    let s = only(&[
        0xeb, 7, 0xb8, 1, 0, 0, 0, 0x0f, 5, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0xc3,
    ]);
    assert_eq!(
        (s.nr, s.form, s.start, s.pre, s.post),
        (1, FORM_WINDOW, 2, 5, 0)
    );
    // jmp S; mov $1,%eax; S: syscall; ret: no instruction can be displaced, and there are no dead
    // bytes.
    let s = only(&[0xeb, 5, 0xb8, 1, 0, 0, 0, 0x0f, 5, 0xc3]);
    assert_eq!((s.nr, s.form), (-1, FORM_NONE));
    // mov x(%rip),%edi; mov $3,%eax; syscall: a position-dependent instruction isn't moved.
    let s = only(&[0x8b, 0x3d, 0, 0, 0, 0, 0x31, 0xc0, 0x0f, 5, 0xc3]);
    assert_eq!((s.nr, s.form), (0, FORM_NONE));
    // rt_sigreturn in both encodings.
    assert_eq!(only(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 5, 0x90]).nr, 15);
    assert_eq!(only(&[0xb8, 15, 0, 0, 0, 0x0f, 5, 0x90]).nr, 15);
}

/// mov %edi,%eax; jmp S; S: syscall; ret; seven dead bytes; ret
const HOP: [u8; 15] = [
    0x89, 0xf8, 0xeb, 0, 0x0f, 5, 0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0xc3,
];

static SEEN: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

unsafe extern "C-unwind" fn see(call: &crate::Call) -> i64 {
    SEEN.fetch_add(1, core::sync::atomic::Ordering::SeqCst);
    if call.nr == libc::SYS_getppid {
        4711
    } else {
        crate::PASS
    }
}

static SEEING: Hooks = Hooks {
    syscall: see,
    ..EVERY
};

/// Patches and calls a site of the form that no site of this machine's libc needs.
#[test]
fn hops() {
    use crate::arch;
    let len = 65536;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the code and the trampolines lie in a new mapping, executable before it is called.
    let function = unsafe {
        let block = libc::mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        assert_ne!(block, libc::MAP_FAILED);
        block.cast::<[u8; HOP.len()]>().write(HOP);
        let object = Object::of_code(core::slice::from_raw_parts(block.cast(), HOP.len()));
        let site = find(&object)[0];
        assert_eq!(
            (site.nr, site.form, site.at, site.hop),
            (-1, FORM_HOP, 4, 7)
        );
        let start = block as usize + 4096;
        let mut region = arch::Region {
            start,
            len: len - 4096,
            next: start,
            far: true,
            wide: false,
        };
        region.begin_far();
        arch::set_hooks(&SEEING);
        let slot = region.add(&SEEING, object.base, &site).unwrap();
        arch::patch(object.base, &site, slot);
        assert_eq!(
            libc::mprotect(block, len, libc::PROT_READ | libc::PROT_EXEC),
            0
        );
        core::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(i64) -> i64>(block)
    };
    // SAFETY: the function is complete and executable; the calls have no arguments.
    unsafe {
        assert_eq!(function(libc::SYS_getpid), i64::from(libc::getpid()));
        assert_eq!(function(libc::SYS_getppid), 4711);
        assert_eq!(function(100_000), -i64::from(libc::ENOSYS));
    }
    assert_eq!(SEEN.load(core::sync::atomic::Ordering::SeqCst), 2);
}
