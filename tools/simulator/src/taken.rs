//! Replaces libc's functions for waiting, clocks, threads and randomness.
//!
//! These definitions take precedence over libc's for Rust's standard library, rustix (built with
//! `use-libc`) and LMDB. In a thread that isn't simulated they do what libc's functions do.

use crate::real::{real, real_syscall};
use crate::world::{NEVER, is_simulated, key, world};
use libc::{
    c_int, c_long, c_uint, c_void, clockid_t, pthread_attr_t, pthread_mutex_t, pthread_t, timespec,
};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

fn fail(error: c_int) -> c_long {
    // SAFETY: the address is that of this thread's errno, which is always writable.
    unsafe { *libc::__errno_location() = error };
    -1
}

fn nanoseconds(t: &timespec) -> u64 {
    (t.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(t.tv_nsec as u64)
}

/// # Safety
/// As for syscall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    n: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if !is_simulated() {
        return real_syscall(n, a, b, c, d, e, f);
    }
    match n {
        // SAFETY: the caller's promise.
        libc::SYS_futex => unsafe {
            futex(
                a as *const AtomicU32,
                b as c_int,
                c as u32,
                d as *const timespec,
            )
        },
        libc::SYS_getrandom => {
            // SAFETY: the caller's promise.
            unsafe { getrandom(a as *mut c_void, b as usize, c as c_uint) as c_long }
        }
        _ => real_syscall(n, a, b, c, d, e, f),
    }
}

unsafe fn futex(
    word: *const AtomicU32,
    how: c_int,
    value: u32,
    timeout: *const timespec,
) -> c_long {
    let world = world();
    // A word in memory that processes share is identified by its offset in a page. If two words
    // have the same offset, waking waiters of the wrong one does no harm.
    let key = match how & libc::FUTEX_PRIVATE_FLAG {
        0 => key(word as u64 & 4095, 0x5a5a),
        _ => key(word as u64, std::process::id().into()),
    };
    let shared = how & libc::FUTEX_PRIVATE_FLAG == 0;
    let clock = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    match how & !clock {
        what @ (libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET) => {
            // SAFETY: the caller passes a valid word, as futex(2) demands.
            if unsafe { (*word).load(SeqCst) } != value {
                return fail(libc::EAGAIN);
            }
            let deadline = if timeout.is_null() {
                NEVER
            } else {
                // SAFETY: the caller passes a valid timeout, as futex(2) demands.
                let time = nanoseconds(unsafe { &*timeout });
                match what {
                    libc::FUTEX_WAIT => world.now().saturating_add(time),
                    _ => time,
                }
            };
            if world.wait(key, deadline) {
                0
            } else {
                fail(libc::ETIMEDOUT)
            }
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let most = if shared { u64::MAX } else { u64::from(value) };
            let woken = world.wake(key, most);
            if woken > 0 && world.once_in(4) {
                world.give_way();
            }
            woken as c_long
        }
        _ => fail(libc::ENOSYS),
    }
}

/// # Safety
/// As for clock_gettime(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    if !is_simulated() {
        let real = real!(
            c"clock_gettime",
            unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int
        );
        // SAFETY: the caller's promise.
        return unsafe { real(clock, to) };
    }
    let mut now = world().look();
    if matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        now += 1_700_000_000_000_000_000;
    }
    // SAFETY: the caller's promise.
    unsafe {
        (*to).tv_sec = (now / 1_000_000_000) as libc::time_t;
        (*to).tv_nsec = (now % 1_000_000_000) as c_long;
    }
    0
}

/// # Safety
/// As for nanosleep(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    if !is_simulated() {
        let real = real!(
            c"nanosleep",
            unsafe extern "C" fn(*const timespec, *mut timespec) -> c_int
        );
        // SAFETY: the caller's promise.
        return unsafe { real(time, left) };
    }
    // SAFETY: the caller's promise.
    world().sleep(nanoseconds(unsafe { &*time }));
    0
}

/// # Safety
/// As for clock_nanosleep(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !is_simulated() {
        type Sleep =
            unsafe extern "C" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;
        let real = real!(c"clock_nanosleep", Sleep);
        // SAFETY: the caller's promise.
        return unsafe { real(clock, flags, time, left) };
    }
    // SAFETY: the caller's promise.
    let time = nanoseconds(unsafe { &*time });
    let world = world();
    match flags & libc::TIMER_ABSTIME {
        0 => world.sleep(time),
        _ => world.sleep(time.saturating_sub(world.now())),
    }
    0
}

/// sched_yield(2).
#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> c_int {
    if !is_simulated() {
        return real_syscall(libc::SYS_sched_yield, 0, 0, 0, 0, 0, 0) as c_int;
    }
    world().give_way();
    0
}

/// # Safety
/// As for getrandom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(to: *mut c_void, len: usize, flags: c_uint) -> isize {
    if !is_simulated() {
        return real_syscall(
            libc::SYS_getrandom,
            to as c_long,
            len as c_long,
            flags.into(),
            0,
            0,
            0,
        ) as isize;
    }
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u8>().add(i).write(world().random() as u8) };
    }
    len as isize
}

/// # Safety
/// As for pthread_mutex_lock(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    type Lock = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
    if !is_simulated() {
        let real = real!(c"pthread_mutex_lock", Lock);
        // SAFETY: the caller's promise.
        return unsafe { real(mutex) };
    }
    let real = real!(c"pthread_mutex_trylock", Lock);
    loop {
        // SAFETY: the caller's promise.
        match unsafe { real(mutex) } {
            libc::EBUSY => world().sleep(2_000),
            other => return other,
        }
    }
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

struct Beginning {
    start: Start,
    argument: *mut c_void,
    task: u32,
}

/// Returns the key whose destructor detects a thread's end, after the destructors of its other
/// keys.
fn end_key() -> libc::pthread_key_t {
    static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
    if KEY.load(SeqCst) == u32::MAX {
        let mut made = 0;
        // SAFETY: pthread_key_create writes only to `made`.
        unsafe { libc::pthread_key_create(&mut made, Some(ends)) };
        KEY.store(made, SeqCst);
    }
    KEY.load(SeqCst)
}

/// The destructor of [`end_key`]. Ends the thread's task at the last of up to four calls
/// (PTHREAD_DESTRUCTOR_ITERATIONS): then the destructors of all other keys have run.
unsafe extern "C" fn ends(turn: *mut c_void) {
    let turn = turn as usize;
    if turn == 4 {
        return world().leave();
    }
    // SAFETY: `end_key` has made the key; its value is a number, not a pointer.
    unsafe { libc::pthread_setspecific(end_key(), (turn + 1) as *const c_void) };
}

/// Value of the key in a new thread: the number of the first call of the destructor.
const FIRST_TURN: usize = 1;

extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below made this pointer from a box.
    let b = unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    let (start, argument) = (b.start, b.argument);
    world().arrive(b.task);
    drop(b);
    // SAFETY: `end_key` has made the key; its value is a number, not a pointer.
    unsafe { libc::pthread_setspecific(end_key(), FIRST_TURN as *const c_void) };
    start(argument)
}

/// # Safety
/// As for pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    type Create =
        unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;
    let real = real!(c"pthread_create", Create);
    if !is_simulated() {
        // SAFETY: the caller's promise.
        return unsafe { real(thread, attributes, start, argument) };
    }
    end_key();
    let task = world().new_task();
    let b = Box::into_raw(Box::new(Beginning {
        start,
        argument,
        task,
    }));
    // SAFETY: the caller's promise; the box belongs to the new thread.
    let result = unsafe { real(thread, attributes, begin, b.cast()) };
    if result != 0 {
        world().drop_task(task);
        return result;
    }
    // SAFETY: `real` has written the thread's id.
    world().set_thread(task, unsafe { *thread });
    if world().once_in(2) {
        world().give_way();
    }
    0
}

/// # Safety
/// As for pthread_join(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int {
    if is_simulated() {
        while world().thread_runs(thread) {
            world().wait(key(std::process::id().into(), thread), NEVER);
        }
    }
    let real = real!(
        c"pthread_join",
        unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int
    );
    // SAFETY: the caller's promise.
    unsafe { real(thread, value) }
}
