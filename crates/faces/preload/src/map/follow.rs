//! Pages of mappings that change with their files: pages are mapped when they are touched, and
//! removed when a file becomes shorter.

use super::pages::{self, How};
use super::spans::{self, Span};
use super::vmas;
use super::{locked, remote};
use crate::pool;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs};
use forebay_store::control_region::map_flag;
use forebay_store::process::is_critical;
use forebay_store::{PAGE, Store};
use std::sync::atomic::{AtomicI32, Ordering::*};

/// The thread that ends the process ([`before_exit`]), by its id; 0: none yet.
static ENDS: AtomicI32 = AtomicI32::new(0);

/// Allocates the pages of a buffer that lies in a mapping, before this library, or the kernel,
/// touches them. Returns how many bytes of the buffer, from its start, are mapped.
///
/// # Errors
/// EFAULT if not even the first byte is mapped: the file has no such page.
pub fn resident(at: u64, len: usize) -> Result<usize, Errno> {
    if len == 0 || !spans::any() {
        return Ok(len);
    }
    let Some(spans) = locked::lock() else {
        return Ok(len);
    };
    let end = at.saturating_add(len as u64);
    let mut first = end;
    for span in spans.within(at, end).filter(|s| s.has(map_flag::PARTIAL)) {
        let (from, to) = (at.max(span.start()), end.min(span.end()));
        let (from, to) = (from - from % PAGE as u64, to.next_multiple_of(PAGE as u64));
        if !pages::empty(from, to).is_empty() {
            let _ = pages::fill(&spans, span, from, to, usize::MAX);
            if let Some(vma) = pages::empty(from, to).first() {
                first = first.min(vma.start.max(at));
            }
        }
    }
    if first == at {
        return Err(Errno::FAULT);
    }
    Ok((first - at) as usize)
}

/// Whether another thread is ending the process. A thread that uses a mapping that [`before_exit`]
/// has made inaccessible faults. Such a thread must have no further effect.
pub fn is_ended_by_other() -> bool {
    let ends = ENDS.load(Acquire);
    // SAFETY: gettid takes no arguments.
    ends != 0 && i64::from(ends) != unsafe { raw(libc::SYS_gettid, [0; 6]) } as i64
}

/// Handles SIGBUS at `address`: maps the file's page at the address, if the file has one by now.
/// False if it has none, or if the address is in no mapping of a pool file: then the program gets
/// the signal. While another thread ends the process, waits for the end, also after SIGSEGV.
pub fn on_fault(address: u64) -> bool {
    if is_ended_by_other() {
        loop {
            // SAFETY: pause takes no arguments, and only waits for a signal.
            unsafe { raw(libc::SYS_pause, [0; 6]) };
        }
    }
    if !spans::any() || is_critical() {
        return false;
    }
    // SAFETY: returns the address of this thread's errno, which is valid while the thread runs.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: as above. The value is saved because functions of libc below may change it.
    let saved = unsafe { *errno_at };
    let there = fault(address);
    // SAFETY: `errno_at` is the address of this thread's errno.
    unsafe { *errno_at = saved };
    there
}

fn fault(address: u64) -> bool {
    let Some(spans) = locked::lock() else {
        return false;
    };
    let Some(span) = spans.at(address) else {
        return false;
    };
    if span
        .file(spans.fs)
        .is_none_or(|(_, size)| span.offset_of(address) >= size)
    {
        return false;
    }
    match pages::fill_around(&spans, span, address) {
        // No page was missing: another thread has mapped the page, unless the page itself is bad.
        Ok(false) => span.has(map_flag::PARTIAL) && vmas::at(address).is_some() && !again(address),
        filled => filled.is_ok(),
    }
}

/// Handles the signal [`NOTICE`]: removes from the mappings the pages that files have lost. False
/// if the signal isn't this library's, so that the program gets it.
pub fn on_notice(info: &libc::siginfo_t) -> bool {
    if let Some(fs) = pool::open_fs()
        && spans::any()
    {
        fs.process().catch_up();
    }
    // SAFETY: with SI_QUEUE, the kernel has stored a value in `info`.
    info.si_code == libc::SI_QUEUE
        && unsafe { info.si_value() }.sival_ptr as usize == forebay_store::NOTICE_VALUE
}

/// Whether this address has faulted twice in a row on this thread.
fn again(address: u64) -> bool {
    thread_local! {
        static LAST: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    LAST.with(|l| l.replace(address)) == address
}

/// Maps the new pages of a file that this process has made longer by other means than writing.
/// These pages are mapped at once, so that system calls can use them, too.
pub fn grown(fs: &Fs, open: u32) {
    let (Some(spans), Ok(live)) = (locked::lock(), fs.live_of(open)) else {
        return;
    };
    let gains = |s: &Span| {
        s.has(map_flag::PARTIAL)
            && s.file(fs)
                .is_some_and(|(l, size)| l == live && s.offset_of(s.start()) < size)
    };
    let copy = fs.cluster().data().is_remote(live);
    let some: Vec<Span> = spans.of_file(live, copy).filter(gains).collect();
    pages::fill_grown(&spans, &some);
}

/// Removes from all mappings the pages that files have lost.
pub fn cut_all(_: &Store) {
    if let Some(spans) = locked::lock() {
        pages::cut(&spans);
    }
}

/// Makes the mappings that can change files inaccessible, before the process releases its resources
/// and ends. Other threads may still run for a moment, and must not write to pages that may belong
/// to other files by then.
pub fn before_exit() {
    let Some(spans) = locked::lock() else { return };
    // SAFETY: gettid takes no arguments.
    ENDS.store(unsafe { raw(libc::SYS_gettid, [0; 6]) } as i32, Release);
    for span in spans.iter().filter(|s| s.has(map_flag::CHANGES)) {
        let how = How {
            prot: libc::PROT_NONE,
            shared: true,
            read_only: false,
            flags: 0,
        };
        // SAFETY: replaces a mapping of the program, which is about to end.
        let _ =
            unsafe { pages::put_empty(span.start(), span.len() as usize, how, libc::MAP_FIXED) };
    }
    let copies: Vec<Span> = spans.copies().collect();
    if !copies.is_empty() {
        remote::forget(&spans, &copies);
    }
}
