//! Effects on an operation before it is carried out: the operation is counted, waits, hangs or
//! fails.
//!
//! Operations wait concurrently for their latency, and one after another for their bytes: the rate
//! limits all operations together. An operation that hangs checks every [`LOOK`] whether its
//! process has been killed; if so, it fails with EINTR. So a dead origin doesn't prevent a killed
//! process from ending.

use crate::settings::{Kind, Settings};
use crate::stats::Stats;
use rustix::io::{Errno, Result};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often an operation that hangs checks whether its process has been killed.
const LOOK: Duration = Duration::from_millis(50);
/// Time during which the simulated load of other users stays the same.
const LOAD: Duration = Duration::from_millis(100);

/// A request of the kernel.
pub struct Operation<'o> {
    pub kind: Kind,
    /// The path relative to the mounted directory.
    pub path: &'o [u8],
    /// The thread that makes the request.
    pub pid: u32,
    /// Whether the operation opens a file for writing.
    pub writes: bool,
}

struct Inner {
    settings: Settings,
    /// Number of operations so far. Determines which operations a fault with a share concerns.
    drawn: u64,
    /// The time by which the bytes of all operations so far will have been transferred.
    moved_at: Instant,
    stats: Stats,
}

/// Settings and counters of a mounted file system.
pub struct Effects {
    inner: Mutex<Inner>,
    changed: Condvar,
    began: Instant,
}

impl Effects {
    pub fn new(settings: Settings) -> Effects {
        let began = Instant::now();
        let inner = Inner {
            settings,
            drawn: 0,
            moved_at: began,
            stats: Stats::default(),
        };
        Effects {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            began,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes all settings. Operations that hang continue, unless the new settings make them hang,
    /// too.
    pub fn set(&self, settings: Settings) {
        let mut inner = self.inner();
        inner.settings = settings;
        inner.moved_at = Instant::now();
        self.changed.notify_all();
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.inner().stats.clone()
    }

    /// Sets the counters to 0, except the number of operations that hang.
    pub fn reset(&self) {
        let mut inner = self.inner();
        let stalled = inner.stats.stalled;
        inner.stats = Stats {
            stalled,
            ..Stats::default()
        };
    }

    /// Counts an operation, and waits until it may be carried out. Blocks as the settings demand.
    ///
    /// # Errors
    /// The error that the settings demand. EINTR if the operation hung and its process was killed.
    pub fn begin(&self, operation: &Operation<'_>) -> Result<()> {
        let kind = operation.kind;
        let mut inner = self.inner();
        *inner.stats.operations.entry(kind).or_default() += 1;
        if matches!(kind, Kind::Open | Kind::Create) {
            inner.stats.opened(operation.path, operation.writes);
        }
        // The process that closed the file doesn't wait for the release, and doesn't get its error.
        if kind == Kind::Release {
            return Ok(());
        }
        let pause = inner.settings.latency_ms + inner.load(self.began.elapsed());
        if pause > 0.0 {
            drop(inner);
            std::thread::sleep(Duration::from_secs_f64(pause / 1000.0));
            inner = self.inner();
        }
        if inner.draw(operation, true).is_some() {
            inner = self.hang(inner, operation)?;
        }
        let changes = kind.changes() || operation.writes;
        let error = match inner.draw(operation, false) {
            _ if inner.settings.read_only && changes => Some(Errno::ROFS),
            _ if inner.settings.full && kind.needs_room() => Some(Errno::NOSPC),
            drawn => drawn.map(Errno::from_raw_os_error),
        };
        match error {
            None => Ok(()),
            Some(error) => {
                *inner.stats.failed.entry(kind).or_default() += 1;
                Err(error)
            }
        }
    }

    fn hang<'i>(
        &'i self,
        mut inner: MutexGuard<'i, Inner>,
        operation: &Operation<'_>,
    ) -> Result<MutexGuard<'i, Inner>> {
        inner.stats.stalled += 1;
        let mut result = Ok(());
        while inner.hangs(operation) && result.is_ok() {
            let waited = self.changed.wait_timeout(inner, LOOK);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            if was_killed(operation.pid) {
                result = Err(Errno::INTR);
            }
        }
        inner.stats.stalled -= 1;
        result.map(|()| inner)
    }

    /// Whether the file system is full.
    pub fn is_full(&self) -> bool {
        self.inner().settings.full
    }

    /// Counts bytes that were read, and waits until the rate allows them.
    pub fn has_read(&self, path: &[u8], offset: u64, bytes: usize) {
        let mut inner = self.inner();
        inner.stats.has_read(path, offset, bytes as u64);
        let end = inner.turn(bytes);
        drop(inner);
        wait_until(end);
    }

    /// Counts bytes that were written, and waits until the rate allows them.
    pub fn has_written(&self, path: &[u8], bytes: usize) {
        let mut inner = self.inner();
        inner.stats.has_written(path, bytes as u64);
        let end = inner.turn(bytes);
        drop(inner);
        wait_until(end);
    }
}

impl Inner {
    /// Returns the errno with which an operation fails or, with `hangs`, 0 if the operation hangs;
    /// None if no such fault concerns it.
    fn draw(&mut self, operation: &Operation<'_>, hangs: bool) -> Option<i32> {
        let (seed, drawn) = (self.settings.seed, &mut self.drawn);
        let faults = self.settings.faults.iter();
        for fault in faults.filter(|fault| (fault.errno == 0) == hangs) {
            if !fault.concerns(operation.kind, operation.path) {
                continue;
            }
            *drawn += 1;
            if fault.share >= 1.0 || fraction(seed, *drawn) < fault.share {
                return Some(fault.errno);
            }
        }
        None
    }

    /// Whether an operation that hangs must still hang by the present settings.
    fn hangs(&self, operation: &Operation<'_>) -> bool {
        let mut faults = self.settings.faults.iter();
        faults.any(|fault| fault.errno == 0 && fault.concerns(operation.kind, operation.path))
    }

    /// Returns the delay by the simulated load of other users. Milliseconds.
    fn load(&self, elapsed: Duration) -> f64 {
        if self.settings.contention_ms <= 0.0 {
            return 0.0;
        }
        let now = (elapsed.as_millis() / LOAD.as_millis()) as u64;
        // The third power makes most delays short, and few of them long.
        self.settings.contention_ms * fraction(!self.settings.seed, now).powi(3)
    }

    /// Returns the time by which `bytes` will have been transferred, after all earlier ones; None
    /// if there is no limit.
    fn turn(&mut self, bytes: usize) -> Option<Instant> {
        if self.settings.rate == 0 {
            return None;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.settings.rate as f64);
        self.moved_at = self.moved_at.max(Instant::now()) + takes;
        Some(self.moved_at)
    }
}

fn wait_until(end: Option<Instant>) {
    if let Some(left) = end.and_then(|end| end.checked_duration_since(Instant::now())) {
        std::thread::sleep(left);
    }
}

/// Returns a number from 0 to 1 that a seed and a counter determine (splitmix64).
fn fraction(seed: u64, n: u64) -> f64 {
    let mut z = seed.wrapping_add((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Whether a thread has got SIGKILL, or no longer exists.
fn was_killed(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else {
        // Id 0 stands for the kernel itself, or for a thread of another PID namespace: not killed.
        return thread != 0;
    };
    let pending = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:"));
    let mut masks = pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    masks.any(|mask| mask & (1 << (libc::SIGKILL - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Fault;
    use std::sync::Arc;

    fn operation(kind: Kind) -> Operation<'static> {
        Operation {
            kind,
            path: b"a",
            pid: std::process::id(),
            writes: false,
        }
    }

    #[test]
    fn a_share_of_the_operations_fails_by_the_seed() {
        let fault = Fault {
            errno: libc::EIO,
            share: 0.05,
            ..Fault::default()
        };
        let run = |seed| -> Vec<bool> {
            let effects = Effects::new(Settings {
                seed,
                faults: vec![fault.clone()],
                ..Settings::default()
            });
            let all = 0..10_000;
            all.map(|_| effects.begin(&operation(Kind::Read)).is_err())
                .collect()
        };
        let failed = run(1).iter().filter(|failed| **failed).count();
        assert!((400..600).contains(&failed), "{failed}");
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn the_rate_is_that_of_all_together() {
        let effects = Arc::new(Effects::new(Settings {
            rate: 10_000_000,
            ..Settings::default()
        }));
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|n| effects.has_read(b"a", n * 100_000, 100_000)));
            }
        });
        let seconds = began.elapsed().as_secs_f64();
        assert!((0.19..1.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn what_hangs_goes_on_when_the_settings_change() {
        let effects = Effects::new(Settings {
            faults: vec![Fault::default()],
            ..Settings::default()
        });
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| effects.begin(&operation(Kind::Getattr)));
            while effects.stats().stalled == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            effects.set(Settings {
                read_only: true,
                ..Settings::default()
            });
            assert_eq!(hanging.join().unwrap(), Ok(()));
        });
        assert_eq!(effects.stats().stalled, 0);
        assert_eq!(effects.begin(&operation(Kind::Write)), Err(Errno::ROFS));
        assert_eq!(effects.begin(&operation(Kind::Read)), Ok(()));
    }
}
