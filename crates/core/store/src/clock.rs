//! The clock of files: what their times are set to.

/// Two changes that are less than this time apart may get the same file time. Nanoseconds.
pub const TICK: i64 = 20_000_000;

/// The time now, with the granularity of the kernel's file times. Nanoseconds since 1970.
pub fn now() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
