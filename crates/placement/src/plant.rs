//! Planted faults: what the simulator has to find, to show that it would find such a fault if
//! somebody made it.
//!
//! Without the feature `plant` there are none. With it, there is the one that `FOREBAY_PLANT`
//! names.

/// Whether this fault is there.
#[cfg(feature = "plant")]
pub fn planted(name: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = NAME.get_or_init(|| std::env::var("FOREBAY_PLANT").ok());
    planted.as_deref() == Some(name)
}

/// Whether this fault is there.
#[cfg(not(feature = "plant"))]
#[inline(always)]
pub const fn planted(_name: &str) -> bool {
    false
}
