//! Attached processes: their slots, whether they live, and critical sections.
//!
//! Every process that uses a node store has a slot in the control region. What it holds
//! there (locks, descriptors, open counts) is found from its slot, so that anyone can
//! release it when the process is gone. A process that calls exec keeps its slot; a child
//! gets one of its own before it runs.

use crate::control::{Control, MAX_PROCESSES, Process, slot_state as state};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::Ordering::*;
use syscalls::Sysno;

/// This process's id, from the kernel (never cached: forks and vforks change it).
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Start time of `pid` in clock ticks since boot; None if there is no such process, or
/// only its zombie.
fn start_time(pid: u32) -> Option<u64> {
    let mut path = [0u8; 32];
    let mut at = 0;
    for part in [&b"/proc/"[..], decimal(pid, &mut [0; 10]), b"/stat"] {
        path[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let fd = rustix::fs::open(
        &path[..at],
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .ok()?;
    let mut text = [0u8; 512];
    let n = rustix::io::read(&fd, &mut text).ok()?;
    // The command name, field 2, may hold anything but ends at the last ')'.
    let rest = &text[..n];
    let after = rest.iter().rposition(|&b| b == b')')? + 2;
    let mut fields = rest.get(after..)?.split(|&b| b == b' ');
    if matches!(fields.next()?, b"Z" | b"X") {
        return None;
    }
    std::str::from_utf8(fields.nth(18)?).ok()?.parse().ok()
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

/// Whether the process that `slot` belongs to still runs.
pub fn is_alive(control: &Control, slot: u32) -> bool {
    if slot as usize >= MAX_PROCESSES {
        return false;
    }
    let p = control.process(slot as usize);
    match p.state.load(Acquire) {
        state::FREE => false,
        // A slot being reaped is alive as long as its reaper is.
        state::REAPING => {
            let reaper = p.reaper.load(Acquire);
            reaper != 0 && reaper - 1 != slot && is_alive(control, reaper - 1)
        }
        _ => start_time(p.pid.load(Acquire)).is_some_and(|t| t == p.started.load(Acquire)),
    }
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

/// Takes a free slot on behalf of a child that is about to be made. Until the child
/// claims it, it stands for this process.
///
/// # Errors
/// EAGAIN if all slots are taken.
pub fn reserve(control: &Control) -> Result<u32, Errno> {
    let me = pid();
    let first = me as usize % MAX_PROCESSES;
    for k in 0..MAX_PROCESSES {
        let i = (first + k) % MAX_PROCESSES;
        let p = control.process(i);
        if p.state.load(Relaxed) == state::FREE
            && p.state.compare_exchange(state::FREE, state::RESERVED, AcqRel, Relaxed).is_ok()
        {
            p.pid.store(me, Release);
            p.started.store(start_time(me).unwrap_or(0), Release);
            return Ok(i as u32);
        }
    }
    Err(Errno::AGAIN)
}

/// Makes the reserved `slot` this process's own.
pub fn claim(control: &Control, slot: u32) {
    let p: &Process = control.process(slot as usize);
    let me = pid();
    p.started.store(start_time(me).unwrap_or(0), Release);
    p.pid.store(me, Release);
    p.state.store(state::USED, Release);
}

/// Whether `slot` belongs to this very process (after exec).
pub fn is_mine(control: &Control, slot: u32) -> bool {
    let p = control.process(slot as usize);
    p.state.load(Acquire) != state::FREE && p.pid.load(Acquire) == pid()
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static SAVED: Cell<u64> = const { Cell::new(0) };
}

/// A section in which no signal handler runs on this thread: needed while a lock is held,
/// since a handler that used the pool would wait for itself. Sections nest.
pub struct Critical(std::marker::PhantomData<*const ()>);

impl Critical {
    /// Enters a section.
    pub fn enter() -> Critical {
        DEPTH.with(|d| {
            if d.get() == 0 {
                SAVED.with(|s| s.set(set_mask(u64::MAX)));
            }
            d.set(d.get() + 1);
        });
        Critical(std::marker::PhantomData)
    }
}

impl Drop for Critical {
    fn drop(&mut self) {
        DEPTH.with(|d| {
            d.set(d.get() - 1);
            if d.get() == 0 {
                set_mask(SAVED.with(|s| s.get()));
            }
        });
    }
}

/// Sets this thread's signal mask; the one before.
fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: rt_sigprocmask(SIG_SETMASK) with two valid 8-byte masks. It can't fail.
    let _ = unsafe {
        syscalls::syscall4(
            Sysno::rt_sigprocmask,
            libc::SIG_SETMASK as usize,
            &raw const mask as usize,
            &raw mut old as usize,
            8,
        )
    };
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_tell_processes_apart() {
        assert!(start_time(pid()).is_some());
        assert!(start_time(u32::MAX / 2).is_none());
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
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
    fn critical_sections_nest() {
        let before = set_mask(0);
        {
            let _a = Critical::enter();
            let _b = Critical::enter();
            let now = set_mask(u64::MAX);
            assert_ne!(now, 0);
        }
        assert_eq!(set_mask(before), 0);
    }
}
