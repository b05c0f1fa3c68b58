//! The time that files get.

/// Now, in nanoseconds since 1970, with the granularity of the kernel's file times.
pub fn now() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}
