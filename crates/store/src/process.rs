//! Attached processes: their slots, whether they live, and critical sections.
//!
//! Every process that uses a node store has a slot in the control region. What it holds
//! there (locks, descriptors, open counts) is found from its slot, so that anyone can
//! release it when the process is gone. A process that calls exec keeps its slot; a child
//! gets one of its own before it runs.

use crate::control::{Control, KEPT_PROCESSES, MAX_PROCESSES, Process, slot_state as state};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, compiler_fence};

/// This process's id, from the kernel (never cached: forks and vforks change it).
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Reads the file `/proc/PID/NAME` into `text`, without allocation.
fn proc_file<'a>(pid: u32, name: &[u8], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = [0u8; 32];
    let mut at = 0;
    for part in [&b"/proc/"[..], decimal(pid, &mut [0; 10]), b"/", name] {
        path[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let fd = rustix::fs::open(
        &path[..at],
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .ok()?;
    let n = rustix::io::read(&fd, &mut *text).ok()?;
    Some(&text[..n])
}

/// The fields of `/proc/PID/stat` behind the command name, which may hold anything but ends
/// at the last ')'. The first one is the state.
fn stat_fields(pid: u32, text: &mut [u8; 512]) -> Option<impl Iterator<Item = &[u8]>> {
    let text = proc_file(pid, b"stat", text)?;
    let after = text.iter().rposition(|&b| b == b')')? + 2;
    Some(text.get(after..)?.split(|&b| b == b' '))
}

/// Start time of `pid` in clock ticks since boot; None if there is no such process, or
/// only its zombie. (A process whose first thread has ended but not the others looks like a
/// zombie with more than one thread.)
fn start_time(pid: u32) -> Option<u64> {
    let mut text = [0u8; 512];
    let mut fields = stat_fields(pid, &mut text)?;
    let state = fields.next()?;
    let threads = fields.nth(16)?;
    if state == b"X" || state == b"Z" && matches!(threads, b"0" | b"1") {
        return None;
    }
    std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()
}

/// What tells this process's PID namespace from others; 0 if it can't be found out.
pub fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |s| s.st_ino)
}

/// Whether the processes of this pool have their numbers from this process's PID namespace, as far
/// as can be found out. In another one all of them would look dead, and their locks free.
pub fn sees_others(control: &Control) -> bool {
    match control.header().namespace.load(Relaxed) {
        0 => true,
        theirs => matches!(namespace(), 0) || theirs == namespace(),
    }
}

/// Whether this process has been made into another PID namespace than its parent's.
pub fn is_apart() -> bool {
    rustix::process::getppid().is_none()
}

/// Whether the process is stopped, by a signal or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let mut text = [0u8; 512];
    stat_fields(pid, &mut text)
        .and_then(|mut f| f.next())
        .is_some_and(|s| matches!(s, b"T" | b"t"))
}

/// Whether the calling thread is the only one of this process; false if that can't be found out.
pub fn is_alone() -> bool {
    // A directory for each thread, beside the two that every directory has.
    rustix::fs::stat("/proc/self/task").is_ok_and(|s| s.st_nlink == 3)
}

/// Whether the process has certainly ended: there is none of this number, or only its zombie.
pub fn has_ended(pid: u32) -> bool {
    let Some(id) = rustix::process::Pid::from_raw(pid as i32) else {
        return true;
    };
    if rustix::process::test_kill_process(id) == Err(Errno::SRCH) {
        return true;
    }
    let mut text = [0u8; 512];
    let Some(mut fields) = stat_fields(pid, &mut text) else {
        return false;
    };
    let state = fields.next();
    // One whose first thread has ended, but not the others, looks like a zombie, too.
    state == Some(b"X") || state == Some(b"Z") && matches!(fields.nth(16), Some(b"0" | b"1"))
}

/// The name of the program that the process runs: `?` if there is none.
pub fn name(pid: u32, text: &mut [u8; 16]) -> &str {
    let name = proc_file(pid, b"comm", text).and_then(|n| std::str::from_utf8(n).ok());
    name.map_or("?", str::trim_end)
}

/// One line on standard error: a raw system call, no allocation, whatever state the program
/// that we are part of is in. Nothing if it goes to a file of a pool: that would need locks.
pub fn write_notice(what: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let mut line = [0u8; 256];
    let mut rest = &mut line[..];
    let _ = writeln!(rest, "forebay: {what}");
    let left = rest.len();
    let n = line.len() - left;
    // SAFETY: only borrowed for the call; a closed one is an error.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line[..n]);
}

/// `n` in decimal, without allocation.
fn decimal(mut n: u32, buffer: &mut [u8; 10]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buffer[at..];
        }
    }
}

const TIME_BITS: u32 = 40;
const PID_BITS: u32 = 22;
const TIME: u64 = (1 << TIME_BITS) - 1;
const OF_PROCESS: u64 = (1 << (TIME_BITS + PID_BITS)) - 1;

/// The owner word of a slot: state, process id, start time (tells a reused id).
fn word(state: u32, pid: u32) -> u64 {
    let started = start_time(pid).unwrap_or(0) & TIME;
    u64::from(state) << (TIME_BITS + PID_BITS) | u64::from(pid) << TIME_BITS | started
}

/// What tells this process from all others of the node, also from later ones with its id.
pub fn own_word() -> u64 {
    word(state::USED, pid())
}

/// As [`own_word`], of the process `pid`; None if it doesn't run, or can't be looked at.
pub fn word_running(pid: u32) -> Option<u64> {
    Some(word(state::USED, pid)).filter(|word| word & TIME != 0)
}

/// As [`own_word`], from what is noted in this process's slot; None if `slot` is another one's, or its time isn't known.
pub(crate) fn noted_word(control: &Control, slot: u32) -> Option<u64> {
    let owner = control.process(slot as usize).owner.load(Acquire);
    let noted = u64::from(state::USED) << (TIME_BITS + PID_BITS) | owner & OF_PROCESS;
    (is_mine(control, slot) && owner & TIME != 0).then_some(noted)
}

/// The process to which the thread `tid` belongs; None if there is no such thread.
pub fn process_of(tid: u32) -> Option<u32> {
    let mut text = [0u8; 512];
    let text = proc_file(tid, b"status", &mut text)?;
    let line = text
        .split(|&b| b == b'\n')
        .find_map(|l| l.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// A number that tells this boot of the node from all others; 0 if it can't be found out.
pub fn boot() -> u64 {
    static BOOT: AtomicU64 = AtomicU64::new(0);
    let known = BOOT.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mut text = [0u8; 64];
    let path = c"/proc/sys/kernel/random/boot_id";
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let Ok(n) = file.and_then(|fd| rustix::io::read(&fd, &mut text)) else {
        return 0;
    };
    // Hexadecimal digits and dashes, of which the first 16 digits will do.
    let digits = text[..n].iter().filter_map(|&b| char::from(b).to_digit(16));
    let boot = digits.take(16).fold(0, |all, d| all << 4 | u64::from(d));
    BOOT.store(boot, Relaxed);
    boot
}

/// The owner word of another process, for tests.
#[cfg(test)]
pub(crate) fn word_of(pid: u32) -> u64 {
    word(state::USED, pid)
}

/// State in an owner word.
pub fn state_of(word: u64) -> u32 {
    (word >> (TIME_BITS + PID_BITS)) as u32
}

/// Process id in an owner word.
pub fn pid_of(word: u64) -> u32 {
    (word >> TIME_BITS) as u32 & ((1 << PID_BITS) - 1)
}

/// Whether the process in an owner word still runs.
pub fn runs(word: u64) -> bool {
    start_time(pid_of(word)).is_some_and(|t| t & TIME == word & TIME)
}

/// Whether somebody who still runs looks after `slot`: its process or, once that is dead,
/// the one that reaps it.
pub fn is_alive(control: &Control, slot: u32) -> bool {
    if slot as usize >= MAX_PROCESSES {
        return false;
    }
    let owner = control.process(slot as usize).owner.load(Acquire);
    state_of(owner) != state::FREE && runs(owner)
}

/// Bit that is set in every identity.
pub const HELD: u32 = 1 << 30;
const SLOT_BITS: u32 = MAX_PROCESSES.trailing_zeros();

/// What the present owner of `slot` writes into what it holds: slot and generation.
pub fn identity(control: &Control, slot: u32) -> u32 {
    let generation = control.process(slot as usize).generation.load(Relaxed);
    HELD | (generation << SLOT_BITS & (HELD - 1)) | slot
}

/// Slot in an identity.
pub fn slot_of(identity: u32) -> u32 {
    identity & ((1 << SLOT_BITS) - 1)
}

/// Whether the process that wrote `identity` still runs.
pub fn identity_lives(control: &Control, id: u32) -> bool {
    let slot = slot_of(id);
    let owner = control.process(slot as usize).owner.load(Acquire);
    matches!(state_of(owner), state::RESERVED | state::USED)
        && identity(control, slot) == id
        && runs(owner)
}

/// Process id of the one whose slot is in `identity`, whether it still lives or not.
pub fn pid_of_identity(control: &Control, identity: u32) -> u32 {
    pid_of(
        control
            .process(slot_of(identity) as usize)
            .owner
            .load(Acquire),
    )
}

/// Whether this process may use what is kept back of every table: see [`use_reserve`].
static USES_RESERVE: AtomicBool = AtomicBool::new(false);

/// From now on, this process may use the last places of every table: process slots, live entries,
/// descriptions, locks and reader slots. For commands that look at a pool, mend it, or save its
/// data, and for keepers and daemons: they must work whatever programs have used up.
pub fn use_reserve() {
    USES_RESERVE.store(true, Relaxed);
}

/// Whether this process may use the reserve.
pub(crate) fn uses_reserve() -> bool {
    USES_RESERVE.load(Relaxed)
}

/// Takes a free slot for this process.
///
/// # Errors
/// EAGAIN if all slots are taken.
pub fn attach(control: &Control) -> Result<u32, Errno> {
    let slot = reserve(control)?;
    claim(control, slot);
    Ok(slot)
}

/// Takes a slot of the reserve for this process, to release what dead processes hold.
///
/// # Errors
/// EAGAIN if they are all taken.
pub(crate) fn attach_kept(control: &Control) -> Result<u32, Errno> {
    let mine = word(state::USED, pid());
    let free = |&i: &usize| {
        let owner = &control.process(i).owner;
        owner.compare_exchange(0, mine, AcqRel, Relaxed).is_ok()
    };
    let slot = (0..KEPT_PROCESSES).find(free);
    slot.map(|i| i as u32).ok_or(Errno::AGAIN)
}

/// Takes a free slot on behalf of a child that is about to be made. Until the child
/// claims it, it stands for this process.
///
/// # Errors
/// EAGAIN if all slots are taken.
pub fn reserve(control: &Control) -> Result<u32, Errno> {
    let me = pid();
    let mine = word(state::RESERVED, me);
    const ORDINARY: usize = MAX_PROCESSES - KEPT_PROCESSES;
    let first = me as usize % ORDINARY;
    let ordinary = (0..ORDINARY).map(|k| KEPT_PROCESSES + (first + k) % ORDINARY);
    let kept = 0..if uses_reserve() { KEPT_PROCESSES } else { 0 };
    for i in ordinary.chain(kept) {
        let owner = &control.process(i).owner;
        if owner.load(Relaxed) == 0 && owner.compare_exchange(0, mine, AcqRel, Relaxed).is_ok() {
            return Ok(i as u32);
        }
    }
    Err(Errno::AGAIN)
}

/// Makes the reserved `slot` this process's own.
pub fn claim(control: &Control, slot: u32) {
    control
        .process(slot as usize)
        .owner
        .store(word(state::USED, pid()), Release);
}

/// Becomes the one who reaps `slot`, if its process (or its last reaper) is dead.
pub(crate) fn begin_reaping(control: &Control, slot: u32) -> bool {
    let owner = &control.process(slot as usize).owner;
    let now = owner.load(Acquire);
    state_of(now) != state::FREE
        && !runs(now)
        && owner
            .compare_exchange(now, word(state::REAPING, pid()), AcqRel, Relaxed)
            .is_ok()
}

/// Makes a slot free for others.
pub(crate) fn free(control: &Control, slot: u32) {
    let p: &Process = control.process(slot as usize);
    p.generation.fetch_add(1, AcqRel);
    p.locked.store(0, Relaxed);
    for wait in &p.waits {
        wait.stamp.store(0, Relaxed);
    }
    p.owner.store(0, Release);
}

/// Whether `slot` belongs to this very process (after exec).
pub fn is_mine(control: &Control, slot: u32) -> bool {
    let owner = control.process(slot as usize).owner.load(Acquire);
    matches!(state_of(owner), state::RESERVED | state::USED) && pid_of(owner) == pid()
}

/// A thread's critical sections.
struct Section {
    depth: Cell<u32>,
    /// A signal arrived inside: whoever leaves the outermost section sees to it.
    owed: Cell<bool>,
}

thread_local! {
    static SECTION: Section = const {
        Section { depth: Cell::new(0), owed: Cell::new(false) }
    };
}

/// What a thread that owes a signal calls on leaving: a `fn()`, or null.
static ON_LEAVING: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// A section in which no signal handler of the program runs on this thread: needed while a
/// lock is held, since a handler that used the pool would wait for itself. Sections nest.
///
/// Nothing is blocked: that would take two system calls. Instead, whoever installs handlers
/// that may use the pool wraps them: the wrapper asks [`is_critical`] and, if so, only notes
/// the signal and calls [`owe_signal`]. A signal without a handler kills as SIGKILL does, which
/// the store survives anyway.
pub struct Critical(std::marker::PhantomData<*const ()>);

impl Critical {
    /// Enters a section.
    #[inline]
    pub fn enter() -> Critical {
        SECTION.with(|s| s.depth.set(s.depth.get() + 1));
        compiler_fence(SeqCst);
        Critical(std::marker::PhantomData)
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        SECTION.with(|s| {
            s.depth.set(s.depth.get() - 1);
            compiler_fence(SeqCst);
            if s.owed.get() && s.depth.get() == 0 {
                pay(s);
            }
        });
    }
}

#[cold]
fn pay(section: &Section) {
    section.owed.set(false);
    let f = ON_LEAVING.load(Acquire);
    if !f.is_null() {
        // SAFETY: only `deliver_with` stores here, and it stores a fn().
        unsafe { std::mem::transmute::<*mut (), fn()>(f)() }
    }
}

/// Whether this thread is inside a critical section. For signal handlers.
pub fn is_critical() -> bool {
    SECTION.with(|s| s.depth.get() > 0)
}

/// Has the function given to [`deliver_with`] called when this thread leaves its outermost
/// section. For signal handlers that run inside one.
pub fn owe_signal() {
    SECTION.with(|s| s.owed.set(true));
}

/// Sets what delivers a signal that was held back.
pub fn deliver_with(f: fn()) {
    ON_LEAVING.store(f as *mut (), Release);
}

/// Whether somebody has told us how: then all handlers of this program are wrapped.
pub fn delivers() -> bool {
    !ON_LEAVING.load(Acquire).is_null()
}

/// A lock inside one process that a forked child can reset: the thread that holds it may be
/// one that the child doesn't have.
pub struct ProcessLock(AtomicU32);

/// Held until dropped.
pub struct ProcessGuard<'a>(&'a ProcessLock, Critical);

impl ProcessLock {
    /// A free one.
    pub const fn new() -> ProcessLock {
        ProcessLock(AtomicU32::new(0))
    }

    /// Waits for the lock. Held only for short moments, with signals kept out.
    pub fn hold(&self) -> ProcessGuard<'_> {
        let critical = Critical::enter();
        self.seize();
        ProcessGuard(self, critical)
    }

    /// Takes the lock without a guard, over a fork (the caller keeps signals out): the child
    /// resets its own.
    pub fn seize(&self) {
        let mut turns = 0;
        while self
            .0
            .compare_exchange_weak(0, 1, Acquire, Relaxed)
            .is_err()
        {
            turns += 1;
            match turns {
                ..1000 => std::thread::yield_now(),
                // Its holder waits for something, itself.
                _ => std::thread::sleep(std::time::Duration::from_micros(100)),
            }
        }
    }

    /// Frees it, whoever holds it.
    pub fn reset(&self) {
        self.0.store(0, Release);
    }
}

impl Default for ProcessLock {
    fn default() -> ProcessLock {
        ProcessLock::new()
    }
}

impl Drop for ProcessGuard<'_> {
    fn drop(&mut self) {
        let _ = &self.1;
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_tell_processes_apart() {
        assert!(start_time(pid()).is_some());
        assert!(start_time(u32::MAX / 2).is_none());
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        assert!(start_time(child.id()).is_some());
        child.kill().unwrap();
        // Dead but not waited for: a zombie doesn't count as alive.
        for _ in 0..200 {
            if start_time(child.id()).is_none() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(start_time(child.id()).is_none());
        child.wait().unwrap();
    }

    #[test]
    fn owner_words_keep_state_id_and_time() {
        let w = word(state::USED, pid());
        assert_eq!((state_of(w), pid_of(w)), (state::USED, pid()));
        assert!(runs(w));
        assert!(!runs(w ^ 1), "another start time is another process");
        assert_eq!(pid_of(word(state::RESERVED, 4_194_303)), 4_194_303);
    }

    #[test]
    fn critical_sections_nest_and_pay_once_at_the_end() {
        static PAID: AtomicU32 = AtomicU32::new(0);
        deliver_with(|| {
            assert!(!is_critical());
            PAID.fetch_add(1, Relaxed);
        });
        {
            let _a = Critical::enter();
            {
                let _b = Critical::enter();
                owe_signal();
            }
            assert!(is_critical());
            assert_eq!(PAID.load(Relaxed), 0);
        }
        drop(Critical::enter());
        assert_eq!(PAID.load(Relaxed), 1);
    }
}
