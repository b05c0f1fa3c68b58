//! The ids by which the kernel judges the calling thread's access to files; its user namespace; and
//! numbers of threads.
//!
//! Linux keeps user, groups and capabilities for each thread; libc's functions change them for all
//! threads of a process at once. The functions of this module return the calling thread's ids. This
//! module's functions make the system calls directly, since libc's functions would be intercepted
//! like the program's.

/// The number of the initial user namespace (PROC_USER_INIT_INO in the kernel).
pub const INITIAL_USER_NAMESPACE: u64 = 0xefff_fffd;

/// Returns the user id that counts for files: the effective one, unless setfsuid(2) has set
/// another.
pub fn fsuid() -> u32 {
    current_id(libc::SYS_setfsuid).unwrap_or_else(|| rustix::process::geteuid().as_raw())
}

/// The group id that counts for files.
pub fn fsgid() -> u32 {
    current_id(libc::SYS_setfsgid).unwrap_or_else(|| rustix::process::getegid().as_raw())
}

/// Calls setfsuid(2) or setfsgid(2) with an invalid id: the call returns the present id and changes
/// nothing.
fn current_id(nr: i64) -> Option<u32> {
    // SAFETY: the call takes no pointer, and changes nothing.
    u32::try_from(unsafe { call(nr, [u32::MAX.into(), 0, 0, 0, 0]) }).ok()
}

/// Makes a system call.
///
/// # Safety
/// As for the system call `nr`.
#[cfg(target_arch = "x86_64")]
unsafe fn call(nr: i64, a: [i64; 5]) -> i64 {
    let mut result = nr;
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn call(_: i64, _: [i64; 5]) -> i64 {
    -i64::from(libc::ENOSYS)
}

/// The calling thread's id.
pub fn thread_id() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// Whether this process has a thread with this id.
pub fn is_thread(id: u32) -> bool {
    let pid = std::process::id();
    // SAFETY: signal 0 only checks whether the thread exists.
    unsafe { call(libc::SYS_tgkill, [pid.into(), id.into(), 0, 0, 0]) == 0 }
}

/// Whether the calling thread shares its working directory and umask with thread `with` of this
/// process.
pub fn shares_fs(with: u32) -> bool {
    const KCMP_FS: i64 = 3;
    let me = thread_id().into();
    // SAFETY: kcmp(2) only compares.
    is_thread(with) && unsafe { call(libc::SYS_kcmp, [me, with.into(), KCMP_FS, 0, 0]) == 0 }
}

/// Number of threads of this process; 2 if it can't be determined.
pub fn thread_count() -> u64 {
    rustix::fs::stat("/proc/self/task").map_or(2, |s| s.st_nlink.saturating_sub(2))
}

/// A number that identifies this process's user namespace; None if it can't be determined.
pub fn user_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/self/ns/user")
        .ok()
        .map(|s| s.st_ino)
}
