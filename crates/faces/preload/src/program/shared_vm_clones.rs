//! Shared-memory clones: processes and threads that share the memory and the thread area of the
//! thread that made them, while both run. Such a clone is a child of clone with CLONE_VM, but with
//! neither CLONE_VFORK nor CLONE_SETTLS.
//!
//! libc and this library reach their data of each thread through its thread area: errno, critical
//! sections, the slot of a vfork child. So two threads that run at once must not share a thread
//! area. A shared-memory clone therefore switches to a separate thread area while it runs this
//! library's code, and back to the shared one when it leaves. While a process has shared-memory
//! clones, each intercepted call asks the kernel for the caller's thread id.

use crate::program::{process, user};
use forebay_intercept::{CALL_DEPTH, Call, raw};
use forebay_posix::Errno;
use state::*;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Number of entries in the table's first segment; each further segment has twice as many as the
/// one before.
const FIRST: usize = 64;
/// Number of segments: enough for more shared-memory clones than Linux has process ids.
const TABLE_SEGMENTS: usize = 17;
/// Number of calls by other threads after which ended shared-memory clones are searched for.
const SWEEP: u32 = 1024;
/// Offset in a thread area of a word that holds the thread area's own address. Bytes.
const SELF: usize = 16;
/// Size of the kernel's structure for robust locks. Bytes.
const ROBUST_LEN: i64 = 24;

mod state {
    pub const FREE: u32 = 0;
    /// A thread is filling the entry.
    pub const TAKEN: u32 = 1;
    /// Prepared for a child that is being made.
    pub const READY: u32 = 2;
    pub const USED: u32 = 3;
    /// The clone has ended; the clone's thread area still exists.
    pub const DEAD: u32 = 4;
}

#[derive(Default)]
struct SharedVmClone {
    state: AtomicU32,
    /// The end of the clone's stack. A clone that begins is matched with its entry by this address.
    stack: AtomicUsize,
    /// The clone's own thread area, which it uses in this library's code.
    area: AtomicUsize,
    shared: AtomicUsize,
    tid: AtomicU32,
    /// While the clone makes a process: the end of the stack on which that process will run its
    /// call, see [`stack_of`].
    making: AtomicUsize,
    /// Thread id of the clone's vfork child; 0: none. The child runs in the clone's memory while
    /// the clone is suspended.
    child: AtomicU32,
    /// The signals that the clone blocks once it has begun.
    mask: AtomicU64,
    /// Offset in a thread area of the thread's id; 0: unknown.
    tid_at: AtomicUsize,
    robust_at: AtomicUsize,
    /// Identity of the process slot reserved for the clone.
    reserved: AtomicU32,
}

impl SharedVmClone {
    /// Whether the caller, with thread id `tid` and on the thread area `shared`, is this clone or
    /// its vfork child.
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

/// The table of clones, in segments that are allocated when they are needed and never freed.
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

/// Whether the caller is a shared-memory clone, inside this library's code.
pub fn is_one() -> bool {
    SHARED_VM_CLONE.with(Cell::get)
}

/// Whether the caller is a shared-memory clone that has its own process slot while it lives.
pub fn has_slot() -> bool {
    HAS_SLOT.with(Cell::get)
}

/// Whether the caller is a thread other than the first one of its process.
pub fn is_thread() -> bool {
    gettid() != process::own_pid()
}

/// A guard: the calling clone uses its own thread area until the guard is dropped.
pub struct Inside {
    shared: usize,
    clone: &'static SharedVmClone,
}

impl Inside {
    /// Records that the shared-memory clone is about to make a process.
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
        // SAFETY: `grow` made the segment with this many entries; it is never freed.
        (!part.is_null()).then(|| unsafe { std::slice::from_raw_parts(part, FIRST << n) })
    });
    parts.flatten()
}

/// Allocates the table's next segment. False if there is no memory, or no segment left.
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
        // SAFETY: `part` was made above and isn't in the table, since another thread was first.
        drop(unsafe { Box::from_raw(part) });
    }
    true
}

fn kernel(nr: i64, a: [i64; 3]) -> i64 {
    // SAFETY: the calls only read, or get structures of this library.
    unsafe { raw(nr, [a[0], a[1], a[2], 0, 0, 0]) }
}

fn gettid() -> u32 {
    kernel(libc::SYS_gettid, [0; 3]) as u32
}

#[cfg(target_arch = "x86_64")]
fn own_area() -> usize {
    let area;
    // SAFETY: reads the word at SELF, which every thread area of glibc has.
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

/// Switches to the clone's own thread area if a shared-memory clone makes the intercepted call. The
/// function that calls `enter` must not touch thread-local data itself; only functions that it
/// calls may.
#[inline(never)]
pub fn enter() -> Option<Inside> {
    let (shared, tid) = (own_area(), gettid());
    let found = all().find(|s| s.is(tid, shared));
    if found.is_none() && OTHERS.fetch_add(1, Relaxed) % SWEEP == SWEEP - 1 {
        sweep();
    }
    found.map(|s| go_over(s, shared))
}

/// Like [`enter`], after a clone call that returned `ret`. The calling thread may also be a child
/// that a shared-memory clone has just made: the child begins with its creator's thread area.
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

/// Finds shared-memory clones that have ended, and marks them as ended.
fn sweep() {
    for s in all().filter(|s| s.state.load(Acquire) == USED) {
        let gone =
            kernel(libc::SYS_kill, [s.tid.load(Relaxed).into(), 0, 0]) == -i64::from(libc::ESRCH);
        if gone {
            end(s);
        }
    }
}

/// Marks a shared-memory clone as ended.
fn end(s: &SharedVmClone) {
    if s.goes(USED, DEAD) {
        COUNT.fetch_sub(1, AcqRel);
        if s.reserved.load(Relaxed) != process::NONE {
            process::vfork_ended();
        }
    }
}

/// Returns the end of the stack that the child of this clone call will have. Called in the parent.
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
    // A child without a separate stack runs on the parent's.
    match end {
        0 => std::ptr::from_ref(call) as usize,
        end => end,
    }
}

/// Whether `call` lies at `stack`, or at most [`CALL_DEPTH`] bytes below it, where the trampoline
/// puts a call on a stack that ends at `stack`.
fn is_at(call: &Call, stack: usize) -> bool {
    let at = std::ptr::from_ref(call) as usize;
    (at..=at + CALL_DEPTH).contains(&stack)
}

/// Returns the prepared shared-memory clone that makes this call: the call lies near the end of its
/// stack. (If stacks are very small, several ends are near; the clone's own is the nearest.)
fn awaited(call: &Call) -> Option<&'static SharedVmClone> {
    let stack = |s: &&SharedVmClone| s.stack.load(Relaxed);
    all()
        .filter(|s| s.state.load(Acquire) == READY && is_at(call, stack(s)))
        .min_by_key(stack)
}

/// Prepares an entry and a thread area for the shared-memory clone that `call` is about to make.
/// `reserved`: the clone's process slot, if it has one. `mask`: the signals that the clone blocks
/// once it has begun.
///
/// libc's own function allocates the thread area, as when a process makes a thread.
///
/// # Errors
/// ENOMEM; ENOSYS if clones aren't [`supported`].
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
            // SAFETY: `make_area` made the area, and no thread uses it.
            unsafe { drop_area(dead.area.load(Relaxed)) };
            dead.state.store(FREE, Release);
            any = true;
        }
        if !any && !grow() {
            return Err(Errno::NOMEM);
        }
    };
    // SAFETY: `make_area` reads this thread's own area, and writes only to the new one.
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
    /// Keeps the clone on its own thread area.
    _inside: Inside,
    /// Identity of the process slot reserved for the clone.
    pub reserved: u32,
    /// The signals that the clone blocks.
    pub mask: u64,
}

/// Makes the caller, a child of clone, a shared-memory clone, if an entry was prepared for it.
/// Called with all signals blocked.
#[inline(never)]
pub fn begin(call: &Call) -> Option<Begun> {
    let s = awaited(call)?;
    let (shared, tid, area) = (own_area(), gettid(), s.area.load(Relaxed));
    // An earlier clone with the same thread id has ended.
    all().filter(|s| s.is(tid, shared)).for_each(end);
    s.tid.store(tid, Relaxed);
    s.shared.store(shared, Relaxed);
    s.state.store(USED, Release);
    if let at @ 1.. = s.tid_at.load(Relaxed) {
        // SAFETY: the field is inside the clone's area, which only this thread uses.
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

/// Gives up the entry that was prepared for a child that couldn't be made; called in the parent.
/// Returns whether there was such an entry.
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

/// Frees the entries of the parent's clones in a forked child, which has only the thread that
/// forked. If the forking thread was a shared-memory clone, it continues on its own thread area:
/// the shared one may be in any state.
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
    // SAFETY: `name` is a C string; dlsym only looks it up.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// The functions for thread areas. They are private to glibc and have stayed the same for twenty
/// years.
struct Areas {
    /// `_dl_allocate_tls`.
    allocate: *mut c_void,
    /// Size of a thread area after thread-local storage: glibc's `struct pthread`. Bytes.
    size: usize,
}

/// Size of `struct pthread` from glibc 2.28 to 2.33. Bytes. These versions have no symbol for the
/// size: libpthread, then a separate library, doesn't export one.
const SIZE_BEFORE_2_34: usize = 2304;

impl Areas {
    fn of_libc() -> Option<Areas> {
        let allocate = symbol(c"_dl_allocate_tls")?;
        let size = match symbol(c"_thread_db_sizeof_pthread") {
            // SAFETY: `size` is the address of glibc's symbol, a number of 4 bytes.
            Some(size) => unsafe { size.cast::<u32>().read() as usize },
            None => size_by_version()?,
        };
        Some(Areas { allocate, size })
    }
}

fn size_by_version() -> Option<usize> {
    // SAFETY: glibc's string, which is never freed.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let (major, minor) = version.to_str().ok()?.split_once('.')?;
    let minor: u32 = minor.split('.').next()?.parse().ok()?;
    (major == "2" && (28..=33).contains(&minor)).then_some(SIZE_BEFORE_2_34)
}

/// Whether clones can get separate thread areas. If not, clones share their parent's thread area
/// even in this library's code.
pub fn supported() -> bool {
    Areas::of_libc().is_some()
}

/// Makes a copy of this thread's area, with thread-local storage as at a thread's start. False if
/// there is no memory.
///
/// # Safety
/// Called on a thread made by glibc.
unsafe fn make_area(s: &SharedVmClone, libc: &Areas) -> bool {
    type Allocate = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    let own = own_area();
    let (mut robust, mut len) = (0usize, 0usize);
    kernel(
        libc::SYS_get_robust_list,
        [0, &raw mut robust as i64, &raw mut len as i64],
    );
    // SAFETY: calls the loader's function by its type, and accesses areas within glibc's size.
    unsafe {
        let size = libc.size;
        let allocate = std::mem::transmute::<*mut c_void, Allocate>(libc.allocate);
        let area = allocate(std::ptr::null_mut()) as usize;
        if area == 0 {
            return false;
        }
        let (from, to) = (own as *const usize, area as *mut usize);
        // First word and SELF: the area's own address. The word between (its thread-local storage)
        // stays as allocated.
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
            // An empty list links to itself, forwards and backwards; no lock operation is pending.
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
        // SAFETY: calls the loader's function by its type; the caller promises that no thread uses
        // the area.
        unsafe { std::mem::transmute::<*mut c_void, Deallocate>(f)(area as *mut c_void, true) };
    }
}
