//! How a thread waits for the next request: asleep, or awake for a moment before.
//!
//! To wake a thread on another core than the program's takes several times as long as the answer. Who has just been
//! answered asks again soon, as a rule: so a thread looks again and again whether there is something
//! before it sleeps, for hardly longer than the waking takes. It does so only while that pays ([`VAIN`]), and
//! while nothing else wants its core ([`Waiter::is_in_the_way`]).

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long awake. To wake a thread on an idle core takes 5 to 30 us, and the program that is answered has to be woken too.
const AWAKE: Duration = Duration::from_micros(50);
/// So many times in vain in a row, and it sleeps at once,
const VAIN: u32 = 4;
/// for so long at first, and twice as long each time, up to
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);
/// It is looked so often whether it is in the way. If so it sleeps at once, for so long at first, and twice as long
/// each time until it isn't, up to
const PERIOD: Duration = Duration::from_millis(4);
const LONGEST_WAY: Duration = Duration::from_secs(1);
/// What is taken so soon was there already: nobody is woken in that time.
const AT_ONCE: Duration = Duration::from_micros(2);

/// The requests of a mount, for one thread.
pub struct Waiter {
    asleep: Arc<OwnedFd>,
    /// The same mount, where a read doesn't wait; opened when it is first needed.
    awake: Option<Arc<OwnedFd>>,
    /// In vain so many times in a row.
    vain: u32,
    pause: Duration,
    /// Until then it sleeps at once.
    until: Option<Instant>,
    /// When it was last looked whether it is in the way.
    looked: Instant,
    /// How long it has been awake for nothing since then.
    idle: Duration,
    /// How long it has had to wait for a core by then, in ns.
    delayed: u64,
    delays: Option<File>,
    /// How long it gives way the next time.
    way: Duration,
}

/// A request.
pub struct Taken {
    /// Its bytes.
    pub len: usize,
    /// Where it is to be answered.
    pub device: Arc<OwnedFd>,
    /// It was there already.
    pub was_there: bool,
}

impl Waiter {
    pub fn new(device: OwnedFd) -> Waiter {
        Waiter {
            asleep: Arc::new(device),
            awake: None,
            vain: 0,
            pause: PAUSE,
            until: None,
            looked: Instant::now(),
            idle: Duration::ZERO,
            delayed: 0,
            delays: None,
            way: PERIOD,
        }
    }

    /// Waits for the next request, awake first if that may be; None if the mount is gone.
    ///
    /// # Errors
    /// What reading the device says.
    pub fn next(&mut self, into: &mut [u8], awake: bool) -> io::Result<Option<Taken>> {
        let begun = Instant::now();
        let (taken, device) = match awake.then(|| self.look(into, begun)).flatten() {
            Some((taken, device)) => (taken?, device),
            None => (take(&self.asleep, into)?, &self.asleep),
        };
        Ok(taken.map(|len| Taken {
            len,
            device: device.clone(),
            was_there: begun.elapsed() < AT_ONCE,
        }))
    }

    /// Looks again and again, as long as that is good for.
    fn look(
        &mut self,
        into: &mut [u8],
        begun: Instant,
    ) -> Option<(io::Result<Option<usize>>, &Arc<OwnedFd>)> {
        if self.until.is_some_and(|until| begun < until) || self.is_in_the_way(begun) {
            return None;
        }
        if self.awake.is_none() {
            let device = crate::device::another(&self.asleep).ok()?;
            rustix::io::ioctl_fionbio(&device, true).ok()?;
            self.awake = Some(Arc::new(device));
        }
        let device = self.awake.as_ref()?;
        loop {
            let read = rustix::io::read(device, &mut *into);
            let spent = begun.elapsed();
            if let Some(taken) = taken(read) {
                (self.vain, self.until, self.pause) = (0, None, PAUSE);
                self.idle += spent;
                return Some((taken, device));
            }
            if spent >= AWAKE {
                self.idle += spent;
                break;
            }
            (0..16).for_each(|_| std::hint::spin_loop());
        }
        self.vain += 1;
        if self.vain >= VAIN {
            // Next time once in vain is enough.
            self.vain = VAIN - 1;
            self.until = Some(begun + self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        None
    }

    /// Whether this thread, mostly awake for nothing, has had to share its core: then it is to leave it to others.
    fn is_in_the_way(&mut self, now: Instant) -> bool {
        let period = now - self.looked;
        if period < PERIOD {
            return false;
        }
        if self.delays.is_none() {
            self.delays = File::open("/proc/thread-self/schedstat").ok();
        }
        let delayed = self.delays.as_ref().and_then(delay).unwrap_or(0);
        let shared = Duration::from_nanos(delayed.saturating_sub(self.delayed));
        let was_awake = self.idle * 2 > period;
        let is = was_awake && shared * 4 > period;
        (self.looked, self.delayed, self.idle) = (now, delayed, Duration::ZERO);
        if is {
            self.way = (2 * self.way).min(LONGEST_WAY);
            self.until = Some(now + self.way);
        } else if was_awake {
            self.way = PERIOD;
        }
        is
    }
}

/// The next request's length; None if the mount is gone.
///
/// # Errors
/// What reading the device says.
pub fn take(device: &OwnedFd, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        if let Some(taken) = taken(rustix::io::read(device, &mut *into)) {
            return taken;
        }
    }
}

/// What a read has given; None if it is to be done once more.
fn taken(read: Result<usize, Errno>) -> Option<io::Result<Option<usize>>> {
    match read {
        Ok(n) => Some(Ok(Some(n))),
        // ENOENT: the request was interrupted before it was taken.
        Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => None,
        Err(Errno::NODEV) => Some(Ok(None)),
        Err(e) => Some(Err(e.into())),
    }
}

/// How long a thread has waited for a core in all, in ns: the second number of `schedstat`.
fn delay(schedstat: &File) -> Option<u64> {
    let mut text = [0; 128];
    let n = schedstat.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..n]).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_vain_it_is_awake_ever_less_often() {
        // A request is what has been written into a pipe.
        let (awake, kernel) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&awake, true).unwrap();
        let (asleep, beside) = rustix::pipe::pipe().unwrap();
        let mut waiter = Waiter {
            awake: Some(Arc::new(awake)),
            ..Waiter::new(asleep)
        };
        let mut into = [0; 64];
        let mut look = |waiter: &mut Waiter, now| waiter.look(&mut into, now).is_some();
        let now = Instant::now();
        for _ in 0..VAIN {
            assert_eq!(waiter.until, None);
            assert!(!look(&mut waiter, now));
        }
        // It doesn't look any more, not even if there is something; in time it does.
        rustix::io::write(&kernel, b"request").unwrap();
        assert_eq!(waiter.until, Some(now + PAUSE));
        assert!(!look(&mut waiter, now));
        assert_eq!(waiter.pause, 2 * PAUSE);
        assert!(look(&mut waiter, now + PAUSE));
        assert_eq!((waiter.until, waiter.pause), (None, PAUSE));
        // Who may not be awake sleeps until there is something.
        rustix::io::write(&beside, b"another").unwrap();
        let taken = waiter.next(&mut into, false).unwrap().unwrap();
        assert_eq!((taken.len, &into[..7]), (7, &b"another"[..]));
        assert!(Arc::ptr_eq(&taken.device, &waiter.asleep));
    }

    #[test]
    fn the_time_for_which_a_thread_waited_for_a_core_only_grows() {
        let file = File::open("/proc/thread-self/schedstat").unwrap();
        let before = delay(&file).unwrap();
        std::thread::yield_now();
        assert!(delay(&file).unwrap() >= before);
    }
}
