//! Attached processes: their slots, whether they live, and critical sections.
//!
//! Every process that uses a node store has a slot in the control region. What it holds
//! there (locks, descriptors, open counts) is found from its slot, so that anyone can
//! release it when the process is gone. A process that calls exec keeps its slot; a child
//! gets one of its own before it runs.

use crate::control::{
    Control, FIRST_SLOTS, KEPT_PROCESSES, MAX_PROCESSES, Process, slot_state as state,
};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, compiler_fence};

mod beside;

/// This process's id, from the kernel (never cached: forks and vforks change it).
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Reads the file `/proc/PID/NAME` into `text`, without allocation, and without a free descriptor
/// where it must be (at the limit of descriptors: [`beside::read`]).
fn proc_file<'a>(pid: u32, name: &[u8], text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let mut path = [0u8; 40];
    let mut at = 0;
    for part in [&b"/proc/"[..], decimal(pid, &mut [0; 10]), b"/", name] {
        path[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let path = std::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    let n = match read_whole(path, text) {
        Err(Errno::MFILE) => beside::read(path, text)?,
        read => read?,
    };
    Ok(&text[..n])
}

/// Reads the beginning of the file at `path`, up to the length of `text`; how many bytes there were.
fn read_whole(path: &std::ffi::CStr, text: &mut [u8]) -> Result<usize, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    rustix::io::read(&fd, text)
}

/// The beginning of `/proc/PID/NAME`, up to the length of `text`, also at the limit of descriptors.
/// `name` has at most 20 bytes.
///
/// # Errors
/// What open and read say: ENOENT or ESRCH if there is no such process, or it is hidden; EMFILE,
/// ENFILE, EACCES and others if nothing can be said.
pub fn proc_text<'a>(pid: u32, name: &str, text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    proc_file(pid, name.as_bytes(), text)
}

/// The fields of the text of a `/proc/PID/stat` behind the command name, which may hold anything but
/// ends at the last ')'. The first one is the state.
fn stat_fields(text: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let after = text.iter().rposition(|&b| b == b')')? + 2;
    Some(text.get(after..)?.split(|&b| b == b' '))
}

/// What the kernel says of a process.
///
/// A process is dead only if the kernel says so. Whatever keeps it from answering (no descriptors, a
/// seccomp filter, a hidden or missing /proc) makes the answer `Unknown`, and unknown is alive:
/// what the living hold must never be taken from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs; when it started, in clock ticks since boot.
    Runs(u64),
    /// There is no such process, or only its zombie. (A process whose first thread has ended but not
    /// the others looks like a zombie with more than one thread.)
    Gone,
    /// There is one, or the kernel doesn't say; why it can't be looked at.
    Unknown(Errno),
}

/// What the kernel says of the process `pid`. Of one that is gone it needs no descriptor.
pub fn life(pid: u32) -> Life {
    if is_gone(pid) {
        return Life::Gone;
    }
    let mut text = [0u8; 512];
    let unknown = |e| match is_gone(pid) {
        // It ended between these looks.
        true => Life::Gone,
        false => Life::Unknown(e),
    };
    let text = match proc_file(pid, b"stat", &mut text) {
        Ok(text) => text,
        Err(e) => return unknown(e),
    };
    life_in(text).unwrap_or_else(|| unknown(Errno::IO))
}

/// Whether the kernel says that there is no such process, not even a zombie.
fn is_gone(pid: u32) -> bool {
    match rustix::process::Pid::from_raw(pid as i32) {
        Some(pid) if pid.as_raw_nonzero().get() > 0 => {
            rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
        }
        // Numbers that no process has.
        _ => true,
    }
}

/// What the text of a `/proc/PID/stat` says; None if it is none.
fn life_in(text: &[u8]) -> Option<Life> {
    let mut fields = stat_fields(text)?;
    let state = fields.next()?;
    let threads = fields.nth(16)?;
    if state == b"X" || state == b"Z" && matches!(threads, b"0" | b"1") {
        return Some(Life::Gone);
    }
    let started = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
    Some(Life::Runs(started))
}

/// When this process started, in clock ticks since boot.
///
/// # Errors
/// Why that can't be read in /proc: ENFILE, EACCES, ENOENT and others.
fn own_start(pid: u32) -> Result<u64, Errno> {
    let mut text = [0u8; 512];
    match life_in(proc_file(pid, b"stat", &mut text)?) {
        Some(Life::Runs(started)) => Ok(started),
        // The first thread has ended, and this one is about to be the last.
        Some(_) => Err(Errno::SRCH),
        None => Err(Errno::IO),
    }
}

/// What tells this process's PID namespace from others; 0 if it can't be found out.
pub fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |s| s.st_ino)
}

/// Whether the processes of this pool have their numbers from this process's PID namespace. In
/// another one all of them would look dead, and their locks free. None if this process's can't be
/// found out.
pub fn sees_others(control: &Control) -> Option<bool> {
    let mine = Some(namespace()).filter(|&n| n != 0)?;
    let theirs = control.header().namespace.load(Relaxed);
    Some(theirs == 0 || theirs == mine)
}

/// Whether this process has been made into another PID namespace than its parent's.
pub fn is_apart() -> bool {
    rustix::process::getppid().is_none()
}

thread_local! {
    /// This thread answers other processes, and never waits for one of them.
    static ANSWERS: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread answers other processes, and reads nothing about them in /proc. A read of
/// `/proc/PID/stat` waits while that process is in exec, and exec waits until the files that it closes
/// are answered for: a thread that answers for files must not wait there.
pub fn answer_others() {
    ANSWERS.set(true);
}

/// Whether this thread answers other processes: [`answer_others`].
pub fn is_answering() -> bool {
    ANSWERS.get()
}

/// Whether the process is stopped, by a signal or a debugger. Unknown, and so false, to a thread that
/// answers others.
pub fn is_stopped(pid: u32) -> bool {
    if is_answering() {
        return false;
    }
    let mut text = [0u8; 512];
    let text = proc_file(pid, b"stat", &mut text).unwrap_or_default();
    stat_fields(text)
        .and_then(|mut f| f.next())
        .is_some_and(|s| matches!(s, b"T" | b"t"))
}

/// Whether the calling thread is the only one of this process; false if that can't be found out.
pub fn is_alone() -> bool {
    // A directory for each thread, beside the two that every directory has.
    rustix::fs::stat("/proc/self/task").is_ok_and(|s| s.st_nlink == 3)
}

/// The name of the program that the process runs: `?` if there is none.
pub fn name(pid: u32, text: &mut [u8; 16]) -> &str {
    let name = proc_file(pid, b"comm", text).ok();
    let name = name.and_then(|n| std::str::from_utf8(n).ok());
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

/// The owner word of a slot: state, process id, start time (tells a reused id; 0: not known).
fn word(state: u32, pid: u32, started: u64) -> u64 {
    u64::from(state) << (TIME_BITS + PID_BITS) | u64::from(pid) << TIME_BITS | started & TIME
}

/// What tells this process from all others of the node, also from later ones with its id.
///
/// # Errors
/// Why its start time can't be read in /proc.
pub fn own_word() -> Result<u64, Errno> {
    let me = pid();
    Ok(word(state::USED, me, own_start(me)?))
}

/// As [`own_word`]; without the start time where that can't be read. Such a word counts as alive as
/// long as there is any process with this id.
pub fn own_word_or_id() -> u64 {
    let me = pid();
    word(state::USED, me, own_start(me).unwrap_or(0))
}

/// As [`own_word`], of the process `pid`; None if it doesn't run, or can't be looked at. Not for
/// threads that answer others.
pub fn word_running(pid: u32) -> Option<u64> {
    match life(pid) {
        Life::Runs(started) => Some(word(state::USED, pid, started)),
        Life::Gone | Life::Unknown(_) => None,
    }
}

/// As [`own_word`], from what is noted in this process's slot; None if `slot` is another one's, or its time isn't known.
pub(crate) fn noted_word(control: &Control, slot: u32) -> Option<u64> {
    let owner = control.process(slot as usize).owner.load(Acquire);
    let noted = u64::from(state::USED) << (TIME_BITS + PID_BITS) | owner & OF_PROCESS;
    (is_mine(control, slot) && owner & TIME != 0).then_some(noted)
}

/// The process to which the thread `tid` belongs; None if there is no such thread. The kernel says so
/// without waiting for anybody; only before Linux 6.13, for others than first threads, /proc does
/// (`status`, which doesn't wait for an exec either).
pub fn process_of(tid: u32) -> Option<u32> {
    match pidfd(tid, 0) {
        Ok(_) => return Some(tid),
        Err(Errno::SRCH) => return None,
        // No first thread, or the call is forbidden.
        Err(_) => {}
    }
    if let Some(found) = pidfd(tid, PIDFD_THREAD).ok().and_then(|fd| group_of(&fd)) {
        return Some(found);
    }
    let mut text = [0u8; 512];
    let text = proc_file(tid, b"status", &mut text).ok()?;
    let line = text
        .split(|&b| b == b'\n')
        .find_map(|l| l.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The flag of pidfd_open(2) for any thread. Linux 6.9.
const PIDFD_THREAD: u32 = libc::O_EXCL as u32;

fn pidfd(pid: u32, flags: u32) -> Result<OwnedFd, Errno> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::from_bits_retain(flags))
}

/// The process of a thread, by PIDFD_GET_INFO (Linux 6.13).
fn group_of(thread: &OwnedFd) -> Option<u32> {
    /// `struct pidfd_info` as it was first.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        pid: u32,
        tgid: u32,
        more: [u32; 10],
    }
    const GET_INFO: rustix::ioctl::Opcode = rustix::ioctl::opcode::read_write::<Info>(0xff, 11);
    let mut info = Info {
        mask: 1,
        ..Info::default()
    };
    // SAFETY: the call reads and writes a `struct pidfd_info` of the size in its number.
    let asked = unsafe {
        let call = rustix::ioctl::Updater::<GET_INFO, Info>::new(&mut info);
        rustix::ioctl::ioctl(thread, call)
    };
    (asked.is_ok() && info.mask & 1 != 0 && info.tgid != 0).then_some(info.tgid)
}

/// Whether the kernel says that the process has ended (there is none of this number, or only its
/// zombie), without waiting for it; false if the kernel can't be asked.
pub fn has_ended(pid: u32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    match pidfd(pid, 0) {
        Ok(fd) => {
            let now = Timespec::default();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1)
        }
        // EINVAL, ENOENT: the number is a thread's by now.
        Err(e) => matches!(e, Errno::SRCH | Errno::INVAL | Errno::NOENT),
    }
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
    let read = match read_whole(path, &mut text) {
        Err(Errno::MFILE) => beside::read(path, &mut text),
        read => read,
    };
    let Ok(n) = read else { return 0 };
    // Hexadecimal digits and dashes, of which the first 16 digits will do.
    let digits = text[..n].iter().filter_map(|&b| char::from(b).to_digit(16));
    let boot = digits.take(16).fold(0, |all, d| all << 4 | u64::from(d));
    BOOT.store(boot, Relaxed);
    boot
}

/// The owner word of another process, for tests.
#[cfg(test)]
pub(crate) fn word_of(pid: u32) -> u64 {
    word(state::USED, pid, own_start(pid).unwrap_or(0))
}

/// State in an owner word.
pub fn state_of(word: u64) -> u32 {
    (word >> (TIME_BITS + PID_BITS)) as u32
}

/// Process id in an owner word.
pub fn pid_of(word: u64) -> u32 {
    (word >> TIME_BITS) as u32 & ((1 << PID_BITS) - 1)
}

/// Whether the process in an owner word still runs, as far as the kernel says: see [`Life`]. A thread
/// that answers others takes a later process with the same number for it.
pub fn runs(word: u64) -> bool {
    if is_answering() {
        return !has_ended(pid_of(word));
    }
    match life(pid_of(word)) {
        Life::Runs(started) => word & TIME == 0 || started & TIME == word & TIME,
        Life::Gone => false,
        Life::Unknown(_) => true,
    }
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
/// EAGAIN if all slots are taken; ENOTCONN, or EMFILE and ENFILE, if this process's start time can't be
/// read in /proc, without which nobody could tell it from a later one with its id: a line on
/// standard error says so.
pub fn attach(control: &Control) -> Result<u32, Errno> {
    let me = pid();
    let started = own_start(me).map_err(|e| {
        write_notice(format_args!(
            "process {me} can't use the pool: its start time can't be read in /proc/{me}/stat ({}); {}",
            std::io::Error::from(e),
            match e {
                Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
                _ => "it needs a /proc in which it sees itself",
            }
        ));
        match e {
            Errno::MFILE | Errno::NFILE => e,
            _ => Errno::NOTCONN,
        }
    })?;
    take_free(control, word(state::USED, me, started))
}

/// Takes a slot of the reserve for this process, to release what dead processes hold.
///
/// # Errors
/// EAGAIN if they are all taken.
pub(crate) fn attach_kept(control: &Control) -> Result<u32, Errno> {
    let me = pid();
    let mine = word(state::USED, me, own_start(me)?);
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
    take_free(
        control,
        word(state::RESERVED, me, own_start(me).unwrap_or(0)),
    )
}

/// Takes a free slot, with this owner word.
fn take_free(control: &Control, mine: u64) -> Result<u32, Errno> {
    const ORDINARY: usize = MAX_PROCESSES - KEPT_PROCESSES;
    let first = pid_of(mine) as usize;
    // Those first whose areas have memory; then any.
    let among = |slots: usize| (0..slots).map(move |k| KEPT_PROCESSES + (first + k) % slots);
    let ordinary = among(FIRST_SLOTS).chain(among(ORDINARY));
    let kept = 0..if uses_reserve() { KEPT_PROCESSES } else { 0 };
    for i in ordinary.chain(kept) {
        let owner = &control.process(i).owner;
        if owner.load(Relaxed) == 0 && owner.compare_exchange(0, mine, AcqRel, Relaxed).is_ok() {
            return Ok(i as u32);
        }
    }
    Err(Errno::AGAIN)
}

/// Makes the reserved `slot` this process's own. A child that can't read its start time, and couldn't
/// tell anybody of it, is noted without: see [`own_word_or_id`].
pub fn claim(control: &Control, slot: u32) {
    control
        .process(slot as usize)
        .owner
        .store(own_word_or_id(), Release);
}

/// Becomes the one who reaps `slot`, if its process (or its last reaper) is dead.
pub(crate) fn begin_reaping(control: &Control, slot: u32) -> bool {
    let owner = &control.process(slot as usize).owner;
    let now = owner.load(Acquire);
    if state_of(now) == state::FREE || runs(now) {
        return false;
    }
    let me = pid();
    // Should this process die meanwhile, others must be able to tell.
    let Ok(started) = own_start(me) else {
        return false;
    };
    let mine = word(state::REAPING, me, started);
    owner.compare_exchange(now, mine, AcqRel, Relaxed).is_ok()
}

/// Makes a slot free for others.
pub(crate) fn free(control: &Control, slot: u32) {
    let p: &Process = control.process(slot as usize);
    p.generation.fetch_add(1, AcqRel);
    p.locked.store(0, Relaxed);
    p.held_end.store(0, Relaxed);
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

/// Threads of this process that are about to execute another program.
static EXECUTING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread is one of them.
    static EXECUTES: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, no other thread of this process takes a slot: see [`begin_exec`].
pub struct Executing(());

/// This thread is about to execute another program. The program takes over the slot that its
/// environment names. A slot that another thread took after that was written down would stay behind,
/// with the locks that the thread held, and its owner, this process, would go on living.
pub fn begin_exec() -> Executing {
    EXECUTES.with(|e| e.set(true));
    EXECUTING.fetch_add(1, SeqCst);
    Executing(())
}

impl Drop for Executing {
    fn drop(&mut self) {
        EXECUTING.fetch_sub(1, SeqCst);
        EXECUTES.with(|e| e.set(false));
    }
}

/// In a forked child: only the thread that forked is there.
pub fn forget_exec() {
    EXECUTING.store(0, SeqCst);
    EXECUTES.with(|e| e.set(false));
}

/// Whether another thread is about to execute a program.
pub(crate) fn others_execute() -> bool {
    EXECUTING.load(SeqCst) != 0 && !EXECUTES.with(Cell::get)
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
        let runs = |pid| matches!(life(pid), Life::Runs(_));
        assert!(runs(pid()));
        assert_eq!(life((1 << PID_BITS) - 1), Life::Gone);
        assert_eq!(life(0), Life::Gone);
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        assert!(runs(child.id()));
        child.kill().unwrap();
        // Dead but not waited for: a zombie doesn't count as alive.
        for _ in 0..200 {
            if life(child.id()) == Life::Gone {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(life(child.id()), Life::Gone);
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_answers_others_asks_the_kernel_alone() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let word = word_of(child.id());
        std::thread::scope(|s| {
            let answers = s.spawn(|| {
                answer_others();
                assert!(is_answering());
                assert!(runs(word) && runs(own_word().unwrap()) && !is_stopped(child.id()));
                child.kill().unwrap();
                // Not waited for: a zombie.
                let begun = std::time::Instant::now();
                while runs(word) {
                    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
                    std::thread::yield_now();
                }
                child.wait().unwrap();
                assert!(!runs(word));
            });
            answers.join().unwrap();
        });
        assert!(!is_answering());
    }

    #[test]
    fn threads_belong_to_their_process() {
        assert_eq!(process_of(pid()), Some(pid()));
        let tid = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let other = std::thread::spawn(move || (tid(), process_of(tid())));
        let (id, of) = other.join().unwrap();
        assert_ne!(id, pid());
        assert_eq!(of, Some(pid()));
        assert_eq!(process_of(1 << 30), None);
    }

    #[test]
    fn owner_words_keep_state_id_and_time() {
        let w = own_word().unwrap();
        assert_eq!((state_of(w), pid_of(w)), (state::USED, pid()));
        assert!(runs(w));
        assert!(!runs(w ^ 1), "another start time is another process");
        assert_eq!(pid_of(word(state::RESERVED, 4_194_303, 7)), 4_194_303);
    }

    #[test]
    fn an_owner_without_a_start_time_lives_as_long_as_there_is_any_process_with_its_id() {
        assert!(runs(word(state::USED, pid(), 0)));
        assert!(!runs(word(state::USED, (1 << PID_BITS) - 1, 0)));
    }

    #[test]
    fn without_a_descriptor_a_file_of_proc_reads_the_same() {
        let (mut here, mut there) = ([0; 64], [0; 64]);
        let path = c"/proc/sys/kernel/random/boot_id";
        let n = read_whole(path, &mut here).unwrap();
        assert_eq!(beside::read(path, &mut there), Ok(n));
        assert_eq!(here[..n], there[..n]);
        let absent = beside::read(c"/proc/self/no-such-file", &mut there);
        assert_eq!(absent, Err(Errno::NOENT));
        // What it closes is its own.
        assert!(rustix::io::fcntl_getfd(std::io::stdout()).is_ok());
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
