//! On which core requests are answered.
//!
//! A thread that waits is woken, as a rule, on a core that is idle. The program that
//! asks waits meanwhile, and is woken there when it is answered: two cores wake each other for each request, which takes
//! several times as long as the answer. So while one thread alone asks, requests are answered on its
//! core, as they would be by a file system in the kernel.
//!
//! Where other cores are idle, the scheduler moves the program to one of them with each answer, since its own is busy
//! answering. Then to follow is worse than not to (half as many requests): who keeps leaving is let go for a while.

use rustix::thread::CpuSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// So many requests of one thread in a row, and it is followed.
const ALONE: u32 = 16;
/// It is looked so often whether it is still there, while it asks; sooner when it had just left. Not longer: what runs on
/// the core of one that has moved on holds us up. All in ns.
const PERIOD: u64 = 8_000_000;
const SOON: u64 = 1_000_000;
/// Changes between threads that ask, after which none is followed.
const STRANGERS: u32 = 8;

/// So many looks in a row at which it had left the core on which it was answered, and it isn't followed any more,
const LEFT: u32 = 2;
/// for so long at first, and twice as long each time until it has stayed once, up to
const PAUSE: u64 = 32_000_000;
const LONGEST_PAUSE: u64 = 1_000_000_000;

/// No core in particular.
const ANY: u32 = u32::MAX;

/// Who asks, and where to answer. All are guesses: it is correct with any value.
pub struct Follow {
    /// Where we may run at all.
    allowed: Option<CpuSet>,
    at: AtomicU32,
    who: AtomicU32,
    in_a_row: AtomicU32,
    strangers: AtomicU32,
    /// When to look next.
    next: AtomicU64,
    /// At so many looks in a row it had left.
    left: AtomicU32,
    /// How long it isn't followed when it has left the next time.
    pause: AtomicU64,
}

/// Where a thread may run by now.
pub struct Bound(u32);

impl Follow {
    pub fn new() -> Follow {
        let allowed = rustix::thread::sched_getaffinity(None).ok();
        Follow {
            allowed: allowed.filter(|set| set.count() > 1),
            at: AtomicU32::new(ANY),
            who: AtomicU32::new(0),
            in_a_row: AtomicU32::new(0),
            strangers: AtomicU32::new(0),
            next: AtomicU64::new(0),
            left: AtomicU32::new(0),
            pause: AtomicU64::new(PAUSE),
        }
    }

    /// The calling thread may have inherited from another where it runs.
    pub fn begin(&self) -> Bound {
        if let Some(all) = &self.allowed {
            let _ = rustix::thread::sched_setaffinity(None, all);
        }
        Bound(ANY)
    }

    /// The calling thread shall run where it is best by now.
    pub fn go(&self, bound: &mut Bound) {
        let at = self.at.load(Relaxed);
        let Some(all) = &self.allowed else { return };
        if at == bound.0 {
            return;
        }
        bound.0 = at;
        let _ = match at {
            ANY => rustix::thread::sched_setaffinity(None, all),
            core => {
                let mut one = CpuSet::new();
                one.set(core as usize);
                rustix::thread::sched_setaffinity(None, &one)
            }
        };
    }

    /// Nobody is followed.
    pub fn is_nobody(&self) -> bool {
        self.at.load(Relaxed) == ANY
    }

    /// A request of this thread has come; it waits until it is answered. 0: it isn't known, or nobody waits.
    pub fn asked(&self, who: u32) {
        if who == 0 || self.allowed.is_none() {
            return;
        }
        if self.who.load(Relaxed) != who {
            self.who.store(who, Relaxed);
            self.in_a_row.store(0, Relaxed);
            if self.strangers.fetch_add(1, Relaxed) >= STRANGERS {
                self.at.store(ANY, Relaxed);
            }
            return;
        }
        if self.in_a_row.fetch_add(1, Relaxed) < ALONE {
            return;
        }
        let now = nanos();
        if now >= self.next.load(Relaxed) {
            self.strangers.store(0, Relaxed);
            let wait = self.seen_on(core_of(who));
            self.next.store(now + wait, Relaxed);
        }
    }

    /// Who asks alone has run on this core last. How long not to look again.
    fn seen_on(&self, core: Option<u32>) -> u64 {
        let ours = |core: &u32| match &self.allowed {
            Some(all) => (*core as usize) < CpuSet::MAX_CPU && all.is_set(*core as usize),
            None => false,
        };
        let Some(core) = core.filter(ours) else {
            self.at.store(ANY, Relaxed);
            return PERIOD;
        };
        let was = self.at.swap(core, Relaxed);
        if was == core {
            self.left.store(0, Relaxed);
            self.pause.store(PAUSE, Relaxed);
            return PERIOD;
        }
        if was == ANY || self.left.fetch_add(1, Relaxed) + 1 < LEFT {
            return SOON;
        }
        self.left.store(0, Relaxed);
        self.at.store(ANY, Relaxed);
        let pause = self.pause.load(Relaxed);
        self.pause.store((2 * pause).min(LONGEST_PAUSE), Relaxed);
        pause
    }
}

fn nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The core on which a thread has run last.
fn core_of(thread: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    core_in(&stat)
}

/// By the 39th field; the second may contain blanks.
fn core_in(stat: &str) -> Option<u32> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_one_of_ours() {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let ours = rustix::thread::sched_getaffinity(None).unwrap();
        assert!(ours.is_set(core_of(me).unwrap() as usize));
    }

    #[test]
    fn who_keeps_leaving_is_let_go() {
        let mut both = CpuSet::new();
        both.set(0);
        both.set(1);
        let follow = Follow {
            allowed: Some(both),
            ..Follow::new()
        };
        let seen = |cores: &[u32]| cores.iter().map(|&c| follow.seen_on(Some(c))).last();
        let at = || follow.at.load(Relaxed);
        // One move is nothing, if it stays then.
        for (core, wait) in [(0, SOON), (1, SOON), (1, PERIOD), (0, SOON), (0, PERIOD)] {
            assert_eq!((seen(&[core]), at()), (Some(wait), core));
        }
        // The second in a row is one too many, and the next time it is let go for longer.
        assert_eq!((seen(&[1, 0]), at()), (Some(PAUSE), ANY));
        assert_eq!((seen(&[0, 1, 0]), at()), (Some(2 * PAUSE), ANY));
        (0..9).for_each(|_| _ = seen(&[0, 1, 0]));
        assert_eq!((seen(&[0, 1, 0]), at()), (Some(LONGEST_PAUSE), ANY));
        // Until it has stayed once.
        assert_eq!((seen(&[0, 0, 1, 0]), at()), (Some(PAUSE), ANY));
    }
}
