//! Planted faults: the simulator has to find them, to show that it would find such a fault in real
//! code.
//!
//! Without the feature `plant` there are none. With it, `FOREBAY_PLANT` names the one that is
//! active.

/// Whether this fault is active.
#[cfg(feature = "plant")]
pub fn planted(name: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = NAME.get_or_init(|| std::env::var("FOREBAY_PLANT").ok());
    planted.as_deref() == Some(name)
}

/// Whether this fault is active.
#[cfg(not(feature = "plant"))]
#[inline(always)]
pub const fn planted(_name: &str) -> bool {
    false
}
