//! Processes and threads that share the memory and the thread area of the thread that made them,
//! while both run: children of clone with CLONE_VM, but with neither CLONE_VFORK nor CLONE_SETTLS.
//!
//! The thread area leads to all that libc and this library keep for each thread (errno, critical
//! sections, the slot of a vfork child), so two threads that run at once must not share one. Such a
//! process, a *shared-memory clone*, has a thread area of its own while it is in our code, and the
//! shared one again when it goes back. While a process has shared-memory clones, each intercepted
//! call asks the kernel who makes it.

use crate::program::{process, user};
use forebay_intercept::{CALL_DEPTH, Call, raw};
use forebay_posix::Errno;
use state::*;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Places in the table's first part; each further one has twice as many as the one before.
const FIRST: usize = 64;
/// Parts, for more shared-memory clones than Linux has process ids.
const TABLE_SEGMENTS: usize = 17;
/// Number of calls by other threads after which ended shared-memory clones are searched for.
const SWEEP: u32 = 1024;
/// The shared thread area begins with its own address, here.
const SELF: usize = 16;
/// Bytes of the kernel's structure for robust locks.
const ROBUST_LEN: i64 = 24;

mod state {
    pub const FREE: u32 = 0;
    /// Taken by the thread that fills it.
    pub const TAKEN: u32 = 1;
    /// For a child that is being made.
    pub const READY: u32 = 2;
    pub const USED: u32 = 3;
    /// The clone has ended; its thread area still exists.
    pub const DEAD: u32 = 4;
}

#[derive(Default)]
struct SharedVmClone {
    state: AtomicU32,
    /// The end of its stack, by which the child knows it.
    stack: AtomicUsize,
    /// The clone's own thread area, and the one that it shares.
    area: AtomicUsize,
    shared: AtomicUsize,
    tid: AtomicU32,
    /// While it makes a process: the stack on which that process will run its call, see
    /// [`stack_of`].
    making: AtomicUsize,
    /// The child of its vfork, which runs in its place.
    child: AtomicU32,
    /// The signals that the clone blocks when it begins.
    mask: AtomicU64,
    /// Where in a thread area libc keeps the thread's id, and the list of robust locks; 0: unknown.
    tid_at: AtomicUsize,
    robust_at: AtomicUsize,
    /// Identity of the process slot reserved for it.
    reserved: AtomicU32,
}

impl SharedVmClone {
    /// Whether the caller, with this thread id and on the thread area `shared`, belongs to this
    /// clone.
    fn is(&self, tid: u32, shared: usize) -> bool {
        self.state.load(Acquire) == USED
            && self.shared.load(Relaxed) == shared
            && (self.tid.load(Relaxed) == tid || self.child.load(Relaxed) == tid)
    }

    /// Whether the caller, which makes `call` on the thread area `shared`, may be the child that
    /// this clone is making.
    fn makes(&self, call: &Call, shared: usize) -> bool {
        self.state.load(Acquire) == USED
            && self.shared.load(Relaxed) == shared
            && is_at(call, self.making.load(Relaxed))
    }

    fn goes(&self, from: u32, to: u32) -> bool {
        self.state.load(Acquire) == from
            && self
                .state
                .compare_exchange(from, to, AcqRel, Relaxed)
                .is_ok()
    }
}

/// The table, in parts that are made when they are needed and stay.
static TABLE: [AtomicPtr<SharedVmClone>; TABLE_SEGMENTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; TABLE_SEGMENTS];
/// Number of entries that are READY or USED.
static COUNT: AtomicU32 = AtomicU32::new(0);
static OTHERS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static SHARED_VM_CLONE: Cell<bool> = const { Cell::new(false) };
    static HAS_SLOT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this process has shared-memory clones.
#[inline]
pub fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Whether the caller is such a clone, inside our code.
pub fn is_one() -> bool {
    SHARED_VM_CLONE.with(Cell::get)
}

/// Whether the caller is one with a process slot of its own, for as long as it lives.
pub fn has_slot() -> bool {
    HAS_SLOT.with(Cell::get)
}

/// Whether the caller isn't the first thread of its process.
pub fn is_thread() -> bool {
    gettid() != process::own_pid()
}

/// On a thread area of its own until dropped.
pub struct Inside {
    shared: usize,
    clone: &'static SharedVmClone,
}

impl Inside {
    /// The shared-memory clone is about to make a process.
    pub fn makes(&self, call: &Call) {
        self.clone.making.store(stack_of(call), Release);
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        set_area(self.shared);
    }
}

fn all() -> impl Iterator<Item = &'static SharedVmClone> {
    let parts = TABLE.iter().enumerate().map_while(|(n, part)| {
        let part = part.load(Acquire);
        // SAFETY: what `grow` made, which stays.
        (!part.is_null()).then(|| unsafe { std::slice::from_raw_parts(part, FIRST << n) })
    });
    parts.flatten()
}

/// Makes the table's next part. False if there is no memory, or no part left.
fn grow() -> bool {
    let Some((n, next)) = (TABLE.iter().enumerate()).find(|(_, part)| part.load(Acquire).is_null())
    else {
        return false;
    };
    let mut part = Vec::new();
    if part.try_reserve_exact(FIRST << n).is_err() {
        return false;
    }
    part.resize_with(FIRST << n, SharedVmClone::default);
    let part = Box::into_raw(part.into_boxed_slice());
    let null = std::ptr::null_mut();
    if next
        .compare_exchange(null, part.cast(), AcqRel, Relaxed)
        .is_err()
    {
        // SAFETY: made above. Another thread was first.
        drop(unsafe { Box::from_raw(part) });
    }
    true
}

fn kernel(nr: i64, a: [i64; 3]) -> i64 {
    // SAFETY: calls that only ask, or with structures of ours.
    unsafe { raw(nr, [a[0], a[1], a[2], 0, 0, 0]) }
}

fn gettid() -> u32 {
    kernel(libc::SYS_gettid, [0; 3]) as u32
}

#[cfg(target_arch = "x86_64")]
fn own_area() -> usize {
    let area;
    // SAFETY: reads the word that every thread area of glibc has there.
    unsafe {
        core::arch::asm!("mov {}, fs:[{}]", out(reg) area, const SELF, options(nostack, readonly));
    }
    area
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn set_area(area: usize) {
    const ARCH_SET_FS: i64 = 0x1002;
    kernel(libc::SYS_arch_prctl, [ARCH_SET_FS, area as i64, 0]);
}

#[cfg(not(target_arch = "x86_64"))]
fn own_area() -> usize {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn set_area(_: usize) {}

/// If a shared-memory clone makes this call, goes over to its own thread area. Nothing that is kept
/// for each thread may be touched by the function that calls this, only by those that it calls.
#[inline(never)]
pub fn enter() -> Option<Inside> {
    let (shared, tid) = (own_area(), gettid());
    let found = all().find(|s| s.is(tid, shared));
    if found.is_none() && OTHERS.fetch_add(1, Relaxed) % SWEEP == SWEEP - 1 {
        sweep();
    }
    found.map(|s| go_over(s, shared))
}

/// As [`enter`], after a clone that returned `ret`: the caller may be the child made by a
/// shared-memory clone, which begins with its creator's state.
#[inline(never)]
pub fn enter_after(call: &Call, ret: i64) -> Option<Inside> {
    let (shared, tid) = (own_area(), gettid());
    let known = all().find(|s| s.is(tid, shared));
    let s = known.or_else(|| all().find(|s| s.makes(call, shared)))?;
    if ret == 0 {
        s.child.store(tid, Release);
    } else if s.tid.load(Relaxed) == tid {
        s.child.store(0, Release);
        s.making.store(0, Release);
    }
    Some(go_over(s, shared))
}

fn go_over(clone: &'static SharedVmClone, shared: usize) -> Inside {
    set_area(clone.area.load(Relaxed));
    Inside { shared, clone }
}

/// Finds shared-memory clones that have ended.
fn sweep() {
    for s in all().filter(|s| s.state.load(Acquire) == USED) {
        let gone =
            kernel(libc::SYS_kill, [s.tid.load(Relaxed).into(), 0, 0]) == -i64::from(libc::ESRCH);
        if gone {
            end(s);
        }
    }
}

/// A shared-memory clone has ended.
fn end(s: &SharedVmClone) {
    if s.goes(USED, DEAD) {
        COUNT.fetch_sub(1, AcqRel);
        if s.reserved.load(Relaxed) != process::NONE {
            process::vfork_ended();
        }
    }
}

/// Where the stack ends that the child of this clone will have; in the parent.
fn stack_of(call: &Call) -> usize {
    let end = match call.nr {
        libc::SYS_clone => call.args[1] as usize,
        libc::SYS_clone3 => {
            // SAFETY: clone3's first argument points to its arguments.
            let given = unsafe { user::take::<libc::clone_args>(call.args[0]) };
            given.map_or(0, |a| a.stack.wrapping_add(a.stack_size) as usize)
        }
        _ => 0,
    };
    // Without a stack of its own it runs on the parent's.
    match end {
        0 => std::ptr::from_ref(call) as usize,
        end => end,
    }
}

/// Whether this is where the call is found on a stack that ends there, or at this address.
fn is_at(call: &Call, stack: usize) -> bool {
    let at = std::ptr::from_ref(call) as usize;
    (at..=at + CALL_DEPTH).contains(&stack)
}

/// The prepared shared-memory clone that makes this call: the call lies near the end of its stack.
/// (If stacks are very small, several ends are near; its own is the nearest.)
fn awaited(call: &Call) -> Option<&'static SharedVmClone> {
    let stack = |s: &&SharedVmClone| s.stack.load(Relaxed);
    all()
        .filter(|s| s.state.load(Acquire) == READY && is_at(call, stack(s)))
        .min_by_key(stack)
}

/// Before the clone that makes a shared-memory clone: a thread area for it. `reserved`: its process
/// slot, if it has one. `mask`: the signals that it blocks, once it has begun.
///
/// libc's own allocation is used for the thread area, as by a process that makes a thread.
///
/// # Errors
/// ENOMEM; ENOSYS if they aren't [`supported`].
pub fn prepare(call: &Call, reserved: u32, mask: u64) -> Result<(), Errno> {
    let libc = Areas::of_libc().ok_or(Errno::NOSYS)?;
    let take = |from: u32| all().find(|s| s.goes(from, TAKEN));
    let s = loop {
        if let Some(s) = take(FREE) {
            break s;
        }
        sweep();
        let mut any = false;
        while let Some(dead) = take(DEAD) {
            // SAFETY: made by `make_area`; no thread is on it.
            unsafe { drop_area(dead.area.load(Relaxed)) };
            dead.state.store(FREE, Release);
            any = true;
        }
        if !any && !grow() {
            return Err(Errno::NOMEM);
        }
    };
    // SAFETY: this thread's own area is read.
    if !unsafe { make_area(s, &libc) } {
        s.state.store(FREE, Release);
        return Err(Errno::NOMEM);
    }
    s.stack.store(stack_of(call), Relaxed);
    s.reserved.store(reserved, Relaxed);
    s.mask.store(mask, Relaxed);
    s.making.store(0, Relaxed);
    s.child.store(0, Relaxed);
    COUNT.fetch_add(1, AcqRel);
    s.state.store(READY, Release);
    Ok(())
}

/// A shared-memory clone that begins.
pub struct Begun {
    /// The clone is on its own thread area.
    _inside: Inside,
    /// Identity of the process slot reserved for it.
    pub reserved: u32,
    /// The signals that the clone blocks.
    pub mask: u64,
}

/// In a child of clone: if it was prepared, it is a shared-memory clone from now on. All signals
/// are blocked.
#[inline(never)]
pub fn begin(call: &Call) -> Option<Begun> {
    let s = awaited(call)?;
    let (shared, tid, area) = (own_area(), gettid(), s.area.load(Relaxed));
    // A clone that had this thread id before has ended.
    all().filter(|s| s.is(tid, shared)).for_each(end);
    s.tid.store(tid, Relaxed);
    s.shared.store(shared, Relaxed);
    s.state.store(USED, Release);
    if let at @ 1.. = s.tid_at.load(Relaxed) {
        // SAFETY: a place in the area, which is only ours.
        unsafe { ((area + at) as *mut u32).write(tid) };
    }
    let inside = go_over(s, shared);
    if let at @ 1.. = s.robust_at.load(Relaxed) {
        kernel(
            libc::SYS_set_robust_list,
            [(area + at) as i64, ROBUST_LEN, 0],
        );
    }
    let reserved = s.reserved.load(Relaxed);
    mark(true, reserved != process::NONE);
    Some(Begun {
        _inside: inside,
        reserved,
        mask: s.mask.load(Relaxed),
    })
}

#[inline(never)]
fn mark(is: bool, has_slot: bool) {
    SHARED_VM_CLONE.with(|s| s.set(is));
    HAS_SLOT.with(|s| s.set(has_slot));
}

/// In the parent, if there is no child after all. Returns whether one was prepared for.
pub fn failed(call: &Call) -> bool {
    let stack = stack_of(call);
    let is_it =
        |s: &&SharedVmClone| s.state.load(Acquire) == READY && s.stack.load(Relaxed) == stack;
    let Some(s) = all().find(is_it) else {
        return false;
    };
    COUNT.fetch_sub(1, AcqRel);
    s.state.store(DEAD, Release);
    true
}

/// In the child of a fork: only the thread that forked exists here, and it is alone now. If it was
/// a shared-memory clone, what it shared may be in any state, so it continues on its own area.
pub fn after_fork_in_child(inside: Option<&Inside>) {
    COUNT.store(u32::from(inside.is_some()), Release);
    for s in all() {
        if inside.is_some_and(|inside| std::ptr::eq(inside.clone, s)) {
            s.tid.store(gettid(), Relaxed);
            s.reserved.store(process::NONE, Relaxed);
            s.child.store(0, Relaxed);
            mark(false, false);
        } else {
            s.state.store(FREE, Relaxed);
        }
    }
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: only a look-up.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// The function that makes thread areas: private to glibc, and the same for twenty years.
struct Areas {
    /// `_dl_allocate_tls`.
    allocate: *mut c_void,
    /// Size of a thread area after thread-local storage: glibc's `struct pthread`. Bytes.
    size: usize,
}

/// Bytes of `struct pthread` from glibc 2.28 to 2.33, where no symbol tells it: libpthread was a
/// library of its own then, which exports none.
const SIZE_BEFORE_2_34: usize = 2304;

impl Areas {
    fn of_libc() -> Option<Areas> {
        let allocate = symbol(c"_dl_allocate_tls")?;
        let size = match symbol(c"_thread_db_sizeof_pthread") {
            // SAFETY: glibc's number, of 4 bytes.
            Some(size) => unsafe { size.cast::<u32>().read() as usize },
            None => size_by_version()?,
        };
        Some(Areas { allocate, size })
    }
}

fn size_by_version() -> Option<usize> {
    // SAFETY: glibc's, a text that stays.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let (major, minor) = version.to_str().ok()?.split_once('.')?;
    let minor: u32 = minor.split('.').next()?.parse().ok()?;
    (major == "2" && (28..=33).contains(&minor)).then_some(SIZE_BEFORE_2_34)
}

/// Whether there can be shared-memory clones. If not, such children share all that they have with
/// their parent.
pub fn supported() -> bool {
    Areas::of_libc().is_some()
}

/// A thread area like this thread's, with thread-local storage as at a thread's beginning.
///
/// # Safety
/// On a thread of glibc's.
unsafe fn make_area(s: &SharedVmClone, libc: &Areas) -> bool {
    type Allocate = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    let own = own_area();
    let (mut robust, mut len) = (0usize, 0usize);
    kernel(
        libc::SYS_get_robust_list,
        [0, &raw mut robust as i64, &raw mut len as i64],
    );
    // SAFETY: the loader's function, libc's number, and areas of that size.
    unsafe {
        let size = libc.size;
        let allocate = std::mem::transmute::<*mut c_void, Allocate>(libc.allocate);
        let area = allocate(std::ptr::null_mut()) as usize;
        if area == 0 {
            return false;
        }
        let (from, to) = (own as *const usize, area as *mut usize);
        // Its own address, where its thread-local storage is (as allocated), its own address.
        to.write(area);
        to.byte_add(SELF).write(area);
        for i in SELF / 8 + 1..size / 8 {
            let word = from.add(i).read();
            let inside = (own..own + size).contains(&word);
            to.add(i)
                .write(if inside { word - own + area } else { word });
        }
        let tid = gettid();
        let words = std::slice::from_raw_parts(own as *const u32, size / 4);
        let tid_at = words
            .iter()
            .skip(8)
            .position(|&w| w == tid)
            .map_or(0, |i| (i + 8) * 4);
        let robust_at = robust
            .checked_sub(own)
            .filter(|at| (1..size - ROBUST_LEN as usize).contains(at));
        if let Some(at) = robust_at {
            // An empty list: it links to itself, forwards and backwards. Nothing is pending.
            let head = (area + at) as *mut usize;
            head.write(head as usize);
            head.sub(1).write(head as usize);
            head.add(2).write(0);
        }
        s.area.store(area, Relaxed);
        s.tid_at.store(tid_at, Relaxed);
        s.robust_at.store(robust_at.unwrap_or(0), Relaxed);
    }
    true
}

/// # Safety
/// `area` was made by [`make_area`], and isn't used any more.
unsafe fn drop_area(area: usize) {
    type Deallocate = unsafe extern "C" fn(*mut c_void, bool);
    if let Some(f) = symbol(c"_dl_deallocate_tls") {
        // SAFETY: the loader's function, the caller's promise.
        unsafe { std::mem::transmute::<*mut c_void, Deallocate>(f)(area as *mut c_void, true) };
    }
}
